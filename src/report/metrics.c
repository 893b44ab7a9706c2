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

static bool grow_rows(dt_metrics *m)
{
    const int64_t cap = m->cap_rows ? 2 * m->cap_rows : 1024;
    for (int c = 0; c < m->n_columns; c++) {
        double *column = realloc(m->columns[c], (size_t)cap * sizeof *column);
        if (!column) return false;
        m->columns[c] = column;
    }
    m->cap_rows = cap;
    return true;
}

static double *add_column(dt_metrics *m, const char *name)
{
    if (m->n_columns >= MAX_COLUMNS) return NULL;
    char **names = realloc(m->names, ((size_t)m->n_columns + 1) * sizeof *names);
    if (names) m->names = names;
    double **columns = names ? realloc(m->columns, ((size_t)m->n_columns + 1) * sizeof *columns) : NULL;
    if (columns) m->columns = columns;
    double *column = columns ? malloc((size_t)m->cap_rows * sizeof *column) : NULL;
    char *copy = column ? strdup(name) : NULL;
    if (!copy) {
        free(column);
        return NULL;
    }
    for (int64_t i = 0; i < m->n_rows; i++) column[i] = NAN;
    m->names[m->n_columns] = copy;
    m->columns[m->n_columns++] = column;
    return column;
}

const double *dt_metrics_column(const dt_metrics *m, const char *name)
{
    for (int c = 0; c < m->n_columns; c++)
        if (strcmp(m->names[c], name) == 0) return m->columns[c];
    return NULL;
}

static dt_err add_row(dt_metrics *m, json_t *object)
{
    DT_CHECK(m->n_rows < m->cap_rows || grow_rows(m), DT_ERR_MEMORY, "no memory for %" PRId64 " records", m->n_rows);
    for (int c = 0; c < m->n_columns; c++) m->columns[c][m->n_rows] = NAN;
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        if (!json_is_number(value) && !json_is_boolean(value)) continue;
        double *column = (double *)dt_metrics_column(m, name);
        if (!column) column = add_column(m, name);
        DT_CHECK(column, DT_ERR_DATA, "cannot store column %d (\"%s\"): more than %d names, or no memory", m->n_columns,
                 name, MAX_COLUMNS);
        column[m->n_rows] = json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
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
