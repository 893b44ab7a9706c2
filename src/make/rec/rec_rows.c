/* rec_rows.c - first pass over the rows: counts them, which sampling requires, and finds each user's longest row. */
#include "rec_rows.h"
#include "../input.h"
#include "dtrain/io/io.h"
#include <stdlib.h>
#include <string.h>

typedef struct scan {
    dt_rec_rows *rows;
    bool longest, below_header;
    const atomic_bool *stop;
    json_t *header;  /* NULL: malformed */
    json_t *of_user; /* {user: number of the kept row} */
    int64_t *len;    /* [rows->n]: history length per row */
} scan;

/* If the row is at least as long as the user's longest so far, it replaces that row. */
static dt_err compare(scan *s, const json_t *row)
{
    const char *user = json_string_value(json_object_get(row, "user_id"));
    const json_t *history = json_object_get(row, "history_item_sid"), *before = json_object_get(s->of_user, user);
    const int64_t number = s->rows->n;
    if (!history) history = json_object_get(row, "history_item_title");
    s->len[number] = (int64_t)json_array_size(history);
    if (before && s->len[json_integer_value(before)] > s->len[number]) {
        s->rows->keep[number] = 0;
        return DT_OK;
    }
    if (before) s->rows->keep[json_integer_value(before)] = 0;
    DT_CHECK(json_object_set_new(s->of_user, user, json_integer(number)) == 0, DT_ERR_MEMORY,
             "out of memory for users");
    return DT_OK;
}

static dt_err scan_header(scan *s, const char *text, size_t nbytes)
{
    json_decref(s->header);
    s->below_header = true;
    const dt_err err = dt_csv_header_parse(&s->header, text, nbytes);
    if (err == DT_ERR_DATA) return dt_error_clear(), DT_OK; /* reported in the second pass */
    return err;
}

static dt_err scan_row(void *self, const char *text, size_t nbytes, size_t n_binary, int64_t line)
{
    scan *s = self;
    json_t *row = NULL;
    if (!s->below_header) return scan_header(s, text, nbytes);
    dt_err err = DT_OK;
    if (s->longest) {
        DT_GROW(s->len, s->rows->n, "out of memory for the lengths of rows");
        DT_GROW(s->rows->keep, s->rows->n, "out of memory for the lengths of rows");
        s->rows->keep[s->rows->n] = 1; /* malformed rows are kept, and reported in the second pass */
        s->len[s->rows->n] = 0;
        err = dt_csv_row(&row, s->header, text, nbytes);
        if (err == DT_ERR_DATA) dt_error_clear(), err = DT_OK;
        if (err == DT_OK && json_object_get(row, "user_id")) err = compare(s, row);
        json_decref(row);
    }
    s->rows->n++;
    return err;
}

static dt_err scan_file(scan *s, const char *path)
{
    dt_input in;
    int64_t n_read = 0;
    const bool is_stdin = strcmp(path, "-") == 0;
    DT_CHECK(!is_stdin && dt_is_file(path), DT_ERR_USAGE,
             "%s can be read only once: expected a regular file, because sampled or longest rows need a second pass",
             is_stdin ? "standard input" : path);
    dt_err err = dt_input_open(&in, path, &n_read, s->stop);
    s->below_header = false;
    if (err == DT_OK) err = dt_input_each_row(&in, scan_row, s);
    dt_input_close(&in);
    return err;
}

dt_err dt_rec_rows_scan(dt_rec_rows *rows, char *const *paths, int n_paths, bool longest, const atomic_bool *stop)
{
    scan s = {.rows = rows, .longest = longest, .stop = stop, .of_user = json_object()};
    *rows = (dt_rec_rows){0};
    dt_err err = s.of_user ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for users");
    for (int i = 0; i < n_paths && err == DT_OK; i++) err = scan_file(&s, paths[i]);
    rows->n_kept = rows->n;
    for (int64_t i = 0; rows->keep && i < rows->n; i++) rows->n_kept -= !rows->keep[i];
    json_decref(s.header);
    json_decref(s.of_user);
    free(s.len);
    return err;
}
