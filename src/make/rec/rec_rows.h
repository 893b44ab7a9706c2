/* rec_rows.h - which rows of several files there are, and which of them are kept. */
#ifndef DTRAIN_DATA_MAKE_REC_ROWS_H
#define DTRAIN_DATA_MAKE_REC_ROWS_H

#include "../csv_reader.h"
#include <stdatomic.h>

typedef struct dt_rec_rows {
    int64_t n, n_kept;
    uint8_t *keep; /* [n]; NULL: all. The caller's to free, also after an error */
} dt_rec_rows;

/** Read all files once. longest: of each user (column user_id) only the row with the longest history is kept, of equal
 *  ones the last. Malformed rows are kept. DT_ERR_USAGE: one of them is standard input, or a pipe, which cannot be read
 *  again; DT_ERR_STOP: as stop asked, which may be NULL; DT_ERR_DATA. */
dt_err dt_rec_rows_scan(dt_rec_rows *rows, char *const *paths, int n_paths, bool longest, const atomic_bool *stop);

#endif
