/* csv_reader.h - comma-separated tables (RFC 4180): where a row ends, and a row as a JSON object. The columns
 * history_item_sid, history_item_title and history_item_id hold Python lists, as pandas writes them. */
#ifndef DTRAIN_DATA_MAKE_CSV_H
#define DTRAIN_DATA_MAKE_CSV_H

#include "dtrain/io/json.h"

/** Where in a row the next byte is. A quote opens a field only at its start; within, two of them are one. */
typedef enum dt_csv_place { DT_CSV_START, DT_CSV_BARE, DT_CSV_QUOTED, DT_CSV_CLOSED } dt_csv_place;
dt_csv_place dt_csv_step(dt_csv_place place, char c);

/** The columns of a file, by the names in its first row. */
typedef struct dt_csv_header {
    char **name; /* [n] */
    int n;
} dt_csv_header;
/** DT_ERR_DATA: not a row, or a name twice. dt_csv_header_free also after an error. */
dt_err dt_csv_header_parse(dt_csv_header *h, const char *row, size_t nbytes);
bool dt_csv_header_has(const dt_csv_header *h, const char *name);
void dt_csv_header_free(dt_csv_header *h);

/** {COLUMN: text, or list of texts}; *json is the caller's. DT_ERR_DATA naming the column: another number of fields
 *  than the header has, a quote that is not closed or not at the ends of its field, not UTF-8, no list. */
dt_err dt_csv_row(json_t **json, const dt_csv_header *h, const char *row, size_t nbytes);

#endif
