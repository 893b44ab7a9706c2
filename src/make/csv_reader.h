/* csv_reader.h - comma-separated tables (RFC 4180): finds the end of a row, and parses a row into a JSON object.
 * The columns history_item_sid, history_item_title and history_item_id hold Python lists, as pandas writes
 * them. */
#ifndef DTRAIN_DATA_MAKE_CSV_H
#define DTRAIN_DATA_MAKE_CSV_H

#include "dtrain/io/json.h"

/** Parser state before the next byte of a row. A quote opens a field only at its start. Inside, two quotes
 *  are one. */
typedef enum dt_csv_state { DT_CSV_START, DT_CSV_BARE, DT_CSV_QUOTED, DT_CSV_CLOSED } dt_csv_state;
dt_csv_state dt_csv_step(dt_csv_state state, char c);

/** Column names, from the file's first row. */
typedef struct dt_csv_header {
    char **name; /* [n] */
    int n;
} dt_csv_header;
/** Parse a header row. DT_ERR_DATA: malformed row, or duplicate name. Call dt_csv_header_free also after an error. */
dt_err dt_csv_header_parse(dt_csv_header *h, const char *row, size_t nbytes);
bool dt_csv_header_has(const dt_csv_header *h, const char *name);
void dt_csv_header_free(dt_csv_header *h);

/** Parse a row into {COLUMN: text, or list of texts}; the caller owns *json. DT_ERR_DATA, naming the
 *  column: wrong number of fields, an unclosed quote, a quote inside an unquoted field, invalid UTF-8, or
 *  a malformed list. */
dt_err dt_csv_row(json_t **json, const dt_csv_header *h, const char *row, size_t nbytes);

#endif
