/* metrics_csv.c - the sink "csv": a table of records for spreadsheets and data frames. It writes the subset of RFC 4180
 * that metrics.csv needs: names are quoted if necessary, cells are numbers or empty.
 *
 * A new column is appended on the right, so that the positions of existing columns do not change. Old rows get an empty
 * cell there. */
#include "fields.h"
#include "sink.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dtrain/io/io.h"

static const char *const fixed[] = {"step",          "loss",        "lr",        "grad_norm",
                                    "tokens",        "samples",     "step_time", "tokens_per_second",
                                    "memory_device", "memory_host", "skipped",   "validation_loss"};
enum { N_FIXED = sizeof fixed / sizeof fixed[0] };
static const char later[] = "memory_pinned"; /* follows the fixed columns in new tables; older tables lack it */

static const char FILE_NAME[] = "metrics.csv";

/* Columns: step, the fixed fields, then other metrics in the order of first use. */
typedef struct column {
    char *name;
    double cell; /* of the current row */
    bool set;
} column;
typedef struct csv {
    dt_record_file file; /* first: dt_sink_sync_file */
    char *path;
    column *columns;
    int n_columns;
    dt_text row;
} csv;

/* ---- columns ----------------------------------------------------------------------------------------------------- */

static dt_err add_column(csv *c, const char *name)
{
    DT_GROW(c->columns, c->n_columns, "%s: out of memory for a column", c->path);
    column *to = &c->columns[c->n_columns];
    *to = (column){0};
    DT_COPY_TEXT(to->name, name, "%s: out of memory for a column", c->path);
    c->n_columns++;
    return DT_OK;
}

static int find_column(const csv *c, const char *name)
{
    for (int i = 0; i < c->n_columns; i++)
        if (strcmp(c->columns[i].name, name) == 0) return i;
    return -1;
}

static void put_header(const csv *c, dt_text *out)
{
    for (int i = 0; i < c->n_columns; i++) {
        if (i) dt_text_append(out, ",", 1);
        const bool plain = !strpbrk(c->columns[i].name, ",\"\r\n");
        if (!plain) dt_text_append(out, "\"", 1);
        for (const char *p = c->columns[i].name; *p; p++) {
            if (*p == '"') dt_text_append(out, p, 1);
            dt_text_append(out, p, 1);
        }
        if (!plain) dt_text_append(out, "\"", 1);
    }
    dt_text_append(out, "\n", 1);
}

/* The next name of a header line, unquoted in place; NULL after the last. */
static char *next_name(char **at)
{
    char *name = *at, *to = name, *from = name;
    if (!name) return NULL;
    const bool quoted = *from == '"';
    for (from += quoted; *from && *from != '\n' && (quoted || *from != ','); from++) {
        if (quoted && *from == '"' && *++from != '"') break;
        *to++ = *from;
    }
    *at = *from == ',' ? from + 1 : NULL;
    *to = '\0';
    return name;
}

static dt_err read_header(csv *c, char *line)
{
    const char *name;
    for (char *at = line; (name = next_name(&at));) DT_TRY(add_column(c, name));
    for (int i = 0; i < N_FIXED; i++)
        DT_CHECK(i < c->n_columns && strcmp(c->columns[i].name, fixed[i]) == 0, DT_ERR_DATA,
                 "%s: expected a metrics table with column %s at position %d; move the file away", c->path, fixed[i],
                 i + 1);
    return DT_OK;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static int n_cells(const char *line, size_t nbytes)
{
    int n = 1;
    for (size_t i = 0; i < nbytes; i++) n += line[i] == ',';
    return n;
}

static bool parse_row(const char *line, size_t nbytes, dt_line *row)
{
    char *end;
    row->step = strtoll(line, &end, 10);
    row->is_validation = strncmp(end, ",,", 2) == 0; /* the second cell, the loss, is empty */
    return line[nbytes - 1] == '\n' && end != line;
}

/* Append empty cells up to the present number of columns. */
static void pad_row(void *self, dt_text *row)
{
    const csv *c = self;
    for (int k = n_cells(row->bytes, --row->n); k < c->n_columns; k++) dt_text_append(row, ",", 1);
    dt_text_append(row, "\n", 1);
}

/* Rewrite the table with the present columns; in: positioned after the header of the old table, or NULL. */
static dt_err keep_rows(csv *c, FILE *in, const dt_kept *kept)
{
    c->row.n = 0;
    put_header(c, &c->row);
    return dt_lines_rewrite(
        in, c->path, kept,
        &(dt_line_format){.parse = parse_row, .adapt = pad_row, .self = c, .head = &c->row, .n_head = 1});
}

/* Determine the columns; in: NULL for a new table. */
static dt_err find_columns(csv *c, FILE *in)
{
    char *line = NULL;
    size_t cap = 0;
    dt_err err = DT_OK;
    if (in && getline(&line, &cap, in) > 0) {
        err = read_header(c, line);
    } else {
        for (int i = 0; i < N_FIXED && err == DT_OK; i++) err = add_column(c, fixed[i]);
        if (err == DT_OK) err = add_column(c, later);
    }
    free(line);
    return err;
}

/* in: the existing table, positioned after its header, or NULL. */
static dt_err open_table(csv *c, const char *path, const dt_kept *kept, FILE **in)
{
    const bool there = kept->last_step > 0 && (access(path, F_OK) == 0 || errno != ENOENT);
    *in = NULL;
    *c = (csv){.file.fd = -1, .path = strdup(path)};
    DT_CHECK(c->path, DT_ERR_MEMORY, "out of memory for the name of %s", path);
    DT_TRY(dt_check_replaceable(path)); /* reading a pipe to its end could block forever */
    if (!there && kept->last_step > 0) dt_lines_warn_gone(path, kept);
    if (there) DT_TRY(dt_open_text(path, in));
    return find_columns(c, *in);
}

static dt_err csv_open(void *self, const dt_report_options *opt)
{
    csv *c = self;
    FILE *in;
    char path[PATH_MAX];
    const dt_kept kept = dt_sink_kept(opt);
    c->file.fd = -1;
    DT_TRY(dt_sink_path(opt, FILE_NAME, path));
    dt_err err = open_table(c, path, &kept, &in);
    if (err == DT_OK) err = keep_rows(c, in, &kept);
    if (in) fclose(in);
    dt_text_reserve(&c->row, DT_RECORD_NBYTES);
    return err == DT_OK ? dt_record_file_open(&c->file, path, true) : err;
}

static void csv_close(void *self)
{
    csv *c = self;
    dt_record_file_close(&c->file);
    dt_text_free(&c->row);
    for (int i = 0; i < c->n_columns; i++) free(c->columns[i].name);
    free(c->columns);
    free(c->path);
}

static dt_err csv_check(const dt_report_options *opt)
{
    csv c;
    FILE *in;
    char path[PATH_MAX];
    const dt_kept kept = dt_sink_kept(opt);
    DT_TRY(dt_sink_path(opt, FILE_NAME, path));
    const dt_err err = open_table(&c, path, &kept, &in);
    if (in) fclose(in);
    csv_close(&c);
    return err;
}

/* A metric without a column causes a rewrite of the table with one more column, through PATH.part. */
static dt_err widen(csv *c)
{
    char *header = NULL;
    size_t cap = 0;
    FILE *in;
    DT_TRY(dt_open_text(c->path, &in));
    dt_err err =
        getline(&header, &cap, in) > 0 ? DT_OK : dt_fail(DT_ERR_DATA, "%s: the header line is missing", c->path);
    if (err == DT_OK) err = keep_rows(c, in, &(dt_kept){.last_step = INT64_MAX});
    free(header);
    fclose(in);
    DT_TRY(err);
    dt_record_file_close(&c->file);
    return dt_record_file_open(&c->file, c->path, true);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void set_cell(csv *c, int k, double value)
{
    c->columns[k].cell = value;
    c->columns[k].set = true;
}

static dt_err set_more(csv *c, const dt_metric *more, int n_more)
{
    const int before = c->n_columns;
    for (int i = 0; i < n_more; i++)
        if (find_column(c, more[i].name) < 0) DT_TRY(add_column(c, more[i].name));
    if (c->n_columns > before) DT_TRY(widen(c));
    for (int i = 0; i < n_more; i++) set_cell(c, find_column(c, more[i].name), more[i].value);
    return DT_OK;
}

/* Integers are printed with all digits, other values with 9 significant digits. */
static dt_err write_row(csv *c)
{
    c->row.n = 0;
    for (int i = 0; i < c->n_columns; i++) {
        const double x = c->columns[i].cell;
        if (i) dt_text_append(&c->row, ",", 1);
        if (c->columns[i].set)
            dt_text_printf(&c->row, x == rint(x) && fabs(x) < 0x1p53 ? "%.0f" : "%.9g", dt_unsigned_nan(x));
        c->columns[i].set = false;
    }
    dt_text_append(&c->row, "\n", 1);
    return dt_record_file_write(&c->file, &c->row);
}

static dt_err csv_train(void *self, const dt_train_record *rec)
{
    csv *c = self;
    dt_field fields[DT_N_FIELDS];
    dt_metric metrics[DT_N_FIELDS];
    int n = 0;
    dt_fields_of(rec, fields);
    for (int i = 0; i < DT_N_FIELDS; i++)
        if (fields[i].known || i == DT_FIELD_SKIPPED) /* the column "skipped" has no empty cells */
            metrics[n++] = (dt_metric){fields[i].name, fields[i].value};
    DT_TRY(set_more(c, metrics, n));
    DT_TRY(set_more(c, rec->more, rec->n_more));
    return write_row(c);
}

static dt_err csv_validation(void *self, const dt_validation *v)
{
    csv *c = self;
    set_cell(c, 0, (double)v->step);
    set_cell(c, N_FIXED - 1, v->loss);
    DT_TRY(set_more(c, v->more, v->n_more));
    return write_row(c);
}

const dt_sink dt_sink_csv = {.record = FILE_NAME,
                             .needs_dir = true,
                             .nbytes = sizeof(csv),
                             .check = csv_check,
                             .open = csv_open,
                             .train = csv_train,
                             .validation = csv_validation,
                             .sync = dt_sink_sync_file,
                             .close = csv_close};
