/* metrics.c - reads a metrics file into columns, the form that plots need. */
#include "dtrain/report/metrics.h"
#include "dtrain/io/io.h"
#include "dtrain/io/json.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_COLUMNS = 1000 };

/* Make room for one more row, and fill the rows that a new column lacks. */
static dt_err grow_column(dt_metrics *m, int c, int64_t from)
{
    for (int64_t i = from; i <= m->n_rows; i++) {
        DT_GROW(m->columns[c], i, "out of memory for %" PRId64 " records", m->n_rows);
        m->columns[c][i] = NAN;
    }
    return DT_OK;
}

static dt_err add_column(dt_metrics *m, const char *name)
{
    DT_CHECK(m->n_columns < MAX_COLUMNS, DT_ERR_DATA, "cannot store column %d (\"%s\"): more than %d names",
             m->n_columns, name, MAX_COLUMNS);
    DT_GROW(m->names, m->n_columns, "out of memory for %d columns", m->n_columns + 1);
    DT_GROW(m->columns, m->n_columns, "out of memory for %d columns", m->n_columns + 1);
    DT_COPY_TEXT(m->names[m->n_columns], name, "out of memory for %d columns", m->n_columns + 1);
    m->columns[m->n_columns++] = NULL;
    return grow_column(m, m->n_columns - 1, 0);
}

static int column_of(const dt_metrics *m, const char *name)
{
    int c = 0;
    while (c < m->n_columns && strcmp(m->names[c], name) != 0) c++;
    return c;
}

const double *dt_metrics_column(const dt_metrics *m, const char *name)
{
    const int c = column_of(m, name);
    return c < m->n_columns ? m->columns[c] : NULL;
}

static dt_err add_row(dt_metrics *m, json_t *object)
{
    for (int c = 0; c < m->n_columns; c++) DT_TRY(grow_column(m, c, m->n_rows));
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        if (!json_is_number(value) && !json_is_boolean(value)) continue;
        const int c = column_of(m, name);
        if (c == m->n_columns) DT_TRY(add_column(m, name));
        m->columns[c][m->n_rows] = json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
    }
    m->n_rows++;
    return DT_OK;
}

/* Returns NULL if the line is not an object with a step; *why then describes the line. */
static json_t *parse_line(const char *line, size_t nbytes, const char **why)
{
    json_t *object;
    if (dt_json_parse(&object, "", line, nbytes, DT_JSON_LAST_KEY | DT_JSON_RECORD) != DT_OK) dt_error_clear();
    *why = !object ? "not JSON" : !json_is_object(object) ? "not an object" : "an object without an integer \"step\"";
    if (object && json_is_integer(json_object_get(object, "step"))) return object;
    json_decref(object);
    return NULL;
}

static dt_err read_lines(dt_metrics *m, FILE *f, const char *path, char **line)
{
    size_t cap = 0;
    ssize_t n;
    const char *why = NULL;
    int64_t n_line = 0;
    for (errno = 0; (n = getline(line, &cap, f)) >= 0; errno = 0) {
        DT_CHECK(!why, DT_ERR_DATA, "%s:%" PRId64 ": expected a metrics record, found a line that is %s", path, n_line,
                 why);
        n_line++;
        json_t *object = parse_line(*line, (size_t)n, &why);
        if (!object) continue;
        why = NULL;
        const dt_err err = add_row(m, object);
        json_decref(object);
        DT_TRY(err);
    }
    DT_CHECK_ERRNO(feof(f), DT_ERR_DATA, path, "cannot read");
    DT_CHECK(m->n_rows > 0, DT_ERR_DATA, "%s: expected metrics records, found none", path);
    return DT_OK;
}

dt_err dt_metrics_read(dt_metrics *m, const char *path)
{
    *m = (dt_metrics){0};
    FILE *f;
    DT_TRY(dt_open_text(path, &f));
    char *line = NULL;
    const dt_err err = read_lines(m, f, path, &line);
    free(line);
    fclose(f);
    return err;
}

void dt_metrics_free(dt_metrics *m)
{
    for (int c = 0; c < m->n_columns; c++) {
        free(m->names[c]);
        free(m->columns[c]);
    }
    free(m->names);
    free(m->columns);
    *m = (dt_metrics){0};
}
