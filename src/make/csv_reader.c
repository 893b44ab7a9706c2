/* csv_reader.c - a state machine with four states finds the ends of fields and rows. The reading thread uses it
 * to find row ends, the workers to split rows. */
#include "csv_reader.h"
#include "dtrain/make/rec_files.h"
#include "dtrain/tokenizer/tokenizer.h"
#include "dtrain/text/utf8.h"
#include <stdlib.h>
#include <string.h>

dt_csv_state dt_csv_step(dt_csv_state state, char c)
{
    if (state == DT_CSV_QUOTED) return c == '"' ? DT_CSV_CLOSED : DT_CSV_QUOTED;
    if (state == DT_CSV_CLOSED && c == '"') return DT_CSV_QUOTED;
    if (c == ',' || c == '\n') return DT_CSV_START;
    return state == DT_CSV_START && c == '"' ? DT_CSV_QUOTED : state == DT_CSV_CLOSED ? DT_CSV_CLOSED : DT_CSV_BARE;
}

/* Copy a field without its quotes to out (at least as long as the row). *at moves to the byte that ends the field. */
static dt_err take_field(const char *row, size_t nbytes, size_t *at, char *out, size_t *n_out)
{
    dt_csv_state state = DT_CSV_START;
    for (*n_out = 0; *at < nbytes && (state == DT_CSV_QUOTED || row[*at] != ','); ++*at) {
        const dt_csv_state before = state;
        state = dt_csv_step(state, row[*at]);
        DT_CHECK(before != DT_CSV_CLOSED || state == DT_CSV_QUOTED, DT_ERR_DATA,
                 "expected a comma after the closing quote, found '%c' at byte %zu", row[*at], *at + 1);
        const bool opens = before == DT_CSV_START && state == DT_CSV_QUOTED;
        if (state != DT_CSV_CLOSED && !opens) out[(*n_out)++] = row[*at];
    }
    DT_CHECK(state != DT_CSV_QUOTED, DT_ERR_DATA, "the file ends inside a quoted field of this row");
    return DT_OK;
}

typedef dt_err field_fn(void *self, int column, const char *text, size_t nbytes);

static dt_err each_field(const char *row, size_t nbytes, field_fn *fn, void *self)
{
    if (nbytes > 0 && row[nbytes - 1] == '\n') nbytes--;
    if (nbytes > 0 && row[nbytes - 1] == '\r') nbytes--;
    char *field = malloc(nbytes + 1);
    DT_CHECK(field, DT_ERR_MEMORY, "out of memory for a row of %zu bytes", nbytes);
    dt_err err = DT_OK;
    size_t at = 0, n;
    for (int column = 0; err == DT_OK; column++) {
        err = take_field(row, nbytes, &at, field, &n);
        field[n] = '\0';
        if (err == DT_OK) err = fn(self, column, field, n);
        if (at == nbytes) break;
        at++; /* the comma */
    }
    free(field);
    return err;
}

/* ---- the header -------------------------------------------------------------------------------------------------- */

static dt_err add_column(void *names, int column, const char *text, size_t nbytes)
{
    DT_CHECK(dt_utf8_valid(text, nbytes) == nbytes && !memchr(text, '\0', nbytes), DT_ERR_DATA,
             "expected column names in UTF-8, found another name in column %d", column + 1);
    DT_CHECK(!dt_csv_header_has(names, text), DT_ERR_DATA, "column %s occurs twice", text);
    DT_CHECK(json_array_append_new(names, json_stringn(text, nbytes)) == 0, DT_ERR_MEMORY,
             "out of memory for the names of columns");
    return DT_OK;
}

dt_err dt_csv_header_parse(json_t **names, const char *row, size_t nbytes)
{
    *names = json_array();
    const dt_err err = *names ? each_field(row, nbytes, add_column, *names)
                              : dt_fail(DT_ERR_MEMORY, "out of memory for the names of columns");
    if (err != DT_OK) json_decref(*names), *names = NULL;
    return err;
}

bool dt_csv_header_has(const json_t *names, const char *name)
{
    const json_t *one;
    size_t i;
    json_array_foreach(names, i, one) if (strcmp(json_string_value(one), name) == 0) return true;
    return false;
}

/* ---- a row ------------------------------------------------------------------------------------------------------- */

typedef struct row {
    const json_t *names;
    json_t *json;
    int n;
} row;

static bool is_list(const char *column)
{
    return strcmp(column, "history_item_sid") == 0 || strcmp(column, "history_item_title") == 0 ||
           strcmp(column, "history_item_id") == 0;
}

static dt_err add_field(void *self, int column, const char *text, size_t nbytes)
{
    row *r = self;
    r->n = column + 1;
    const char *name = json_string_value(json_array_get(r->names, (size_t)column));
    if (!name) return DT_OK; /* more fields than names: counted here, reported by the caller */
    json_t *value;
    DT_CHECK(dt_utf8_valid(text, nbytes) == nbytes && !memchr(text, '\0', nbytes), DT_ERR_DATA,
             "%s: expected UTF-8 text without zero bytes", name);
    if (is_list(name))
        DT_TRY(dt_error_prefix(dt_python_list(&value, text, nbytes), "%s: ", name));
    else
        value = json_stringn(text, nbytes);
    DT_CHECK(value && json_object_set_new(r->json, name, value) == 0, DT_ERR_MEMORY, "out of memory for a row");
    return DT_OK;
}

dt_err dt_csv_row(json_t **json, const json_t *names, const char *text, size_t nbytes)
{
    row r = {.names = names, .json = json_object()};
    const int n = (int)json_array_size(names);
    *json = NULL;
    DT_CHECK(r.json, DT_ERR_MEMORY, "out of memory for a row");
    dt_err err = each_field(text, nbytes, add_field, &r);
    if (err == DT_OK && r.n != n)
        err = dt_fail(DT_ERR_DATA, "expected %d fields as in the first line, found %d", n, r.n);
    if (err == DT_OK)
        *json = r.json;
    else
        json_decref(r.json);
    return err;
}
