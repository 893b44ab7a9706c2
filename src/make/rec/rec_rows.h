/* rec_rows.h - counts the rows of several files, and selects which of them are kept. */
#ifndef DTRAIN_DATA_MAKE_REC_ROWS_H
#define DTRAIN_DATA_MAKE_REC_ROWS_H

#include "../csv_reader.h"
#include <stdatomic.h>

typedef struct dt_rec_rows {
    int64_t n, n_kept;
    uint8_t *keep; /* [n]; NULL: keep all. The caller frees it, also after an error */
} dt_rec_rows;

/** Read all files once. longest: for each user (column user_id) keep only the row with the longest
 *  history, the last one on ties. Malformed rows are kept. DT_ERR_USAGE: an input is standard input or a
 *  pipe, which cannot be read twice. DT_ERR_STOP: *stop was set; stop may be NULL. DT_ERR_DATA. */
dt_err dt_rec_rows_scan(dt_rec_rows *rows, char *const *paths, int n_paths, bool longest, const atomic_bool *stop);

#endif
