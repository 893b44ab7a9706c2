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

/** Parse a header row into the list of the columns' names. names: out, freed with json_decref; NULL on error.
 *  DT_ERR_DATA: malformed row, or duplicate name. DT_ERR_MEMORY. */
dt_err dt_csv_header_parse(json_t **names, const char *row, size_t nbytes);
/** Is there a column of this name? */
bool dt_csv_header_has(const json_t *names, const char *name);

/** Parse a row into {COLUMN: text, or list of texts}; the caller owns *json. DT_ERR_DATA, naming the
 *  column: wrong number of fields, an unclosed quote, a quote inside an unquoted field, invalid UTF-8, or
 *  a malformed list. */
dt_err dt_csv_row(json_t **json, const json_t *names, const char *row, size_t nbytes);

#endif
