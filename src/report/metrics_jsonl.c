/* metrics_jsonl.c - the sink "jsonl". Lines are written without a library, because they are flat and their digits are
 * part of the file format. They are read with jansson, because a crash or another program may have damaged the file. */
#include "metrics_jsonl.h"
#include "fields.h"
#include "sink.h"

#include <errno.h>
#include <math.h>
#include <unistd.h>

#include "dtrain/io/io.h"
#include "dtrain/io/json.h"

static void put_key(dt_text *out, const char *name)
{
    dt_text_printf(out, "%s\"", out->n > 1 ? ", " : "");
    for (const char *c = name; *c; c++) {
        if (*c == '"' || *c == '\\')
            dt_text_printf(out, "\\%c", *c);
        else if ((unsigned char)*c < 0x20)
            dt_text_printf(out, "\\u%04x", (unsigned)*c);
        else
            dt_text_append(out, c, 1);
    }
    dt_text_printf(out, "\": ");
}

static void put_real(dt_text *out, const char *name, double value)
{
    put_key(out, name);
    if (value == trunc(value) && fabs(value) < 0x1p53) /* integers (bytes, counts) are printed with all digits */
        dt_text_printf(out, "%.0f", value);
    else if (isfinite(value))
        dt_text_printf(out, "%.9g", value);
    else
        dt_text_printf(out, "null");
}

static void put_more_and_end(dt_text *out, const dt_metric *more, int n_more)
{
    for (int i = 0; i < n_more; i++) put_real(out, more[i].name, more[i].value);
    dt_text_printf(out, "}\n");
}

static void put_train(dt_text *out, const dt_train_record *rec)
{
    dt_field fields[DT_N_FIELDS];
    dt_fields_of(rec, fields);
    out->n = 0;
    dt_text_printf(out, "{");
    for (int i = 0; i < DT_FIELD_SKIPPED; i++)
        if (fields[i].known) put_real(out, fields[i].name, fields[i].value);
    if (rec->skipped) {
        put_key(out, "skipped");
        dt_text_printf(out, "true");
    }
    put_more_and_end(out, rec->more, rec->n_more);
}

static void put_validation(dt_text *out, const dt_validation *v)
{
    out->n = 0;
    dt_text_printf(out, "{");
    put_real(out, "step", (double)v->step);
    put_real(out, "validation_loss", v->loss);
    put_more_and_end(out, v->more, v->n_more);
}

static bool parse_line(const char *line, size_t nbytes, dt_line *found)
{
    if (line[nbytes - 1] != '\n') return false;
    json_t *object;
    if (dt_json_parse(&object, "", line, nbytes, DT_JSON_LAST_KEY | DT_JSON_RECORD) != DT_OK) dt_error_clear();
    const json_t *step = json_object_get(object, "step"); /* NULL if the line is not an object */
    found->step = json_is_integer(step) ? (int64_t)json_integer_value(step) : -1;
    found->is_validation = json_object_get(object, "validation_loss") != NULL;
    json_decref(object);
    return found->step >= 0;
}

dt_err dt_jsonl_cut(const char *path, const dt_kept *kept)
{
    FILE *in;
    if (access(path, F_OK) != 0 && errno == ENOENT) return dt_lines_warn_gone(path, kept), DT_OK;
    DT_TRY(dt_check_replaceable(path)); /* reading a pipe to its end could block forever */
    DT_TRY(dt_open_text(path, &in));
    const dt_err err = dt_lines_rewrite(in, path, kept, &(dt_line_format){.parse = parse_line});
    fclose(in);
    return err;
}

/* ---- the sink ---------------------------------------------------------------------------------------------------- */

typedef struct jsonl {
    dt_record_file file; /* first: dt_sink_sync_file */
    dt_text line;
} jsonl;

static const char FILE_NAME[] = "metrics.jsonl";

static dt_err jsonl_open(void *self, const dt_report_options *opt)
{
    jsonl *j = self;
    char path[PATH_MAX];
    const dt_kept kept = dt_sink_kept(opt);
    j->file.fd = -1;
    DT_TRY(dt_sink_path(opt, FILE_NAME, path));
    if (kept.last_step > 0) DT_TRY(dt_jsonl_cut(path, &kept));
    dt_text_reserve(&j->line, DT_RECORD_NBYTES);
    return dt_record_file_open(&j->file, path, kept.last_step > 0);
}

static dt_err jsonl_train(void *self, const dt_train_record *rec)
{
    jsonl *j = self;
    put_train(&j->line, rec);
    return dt_record_file_write(&j->file, &j->line);
}

static dt_err jsonl_validation(void *self, const dt_validation *v)
{
    jsonl *j = self;
    put_validation(&j->line, v);
    return dt_record_file_write(&j->file, &j->line);
}

static void jsonl_close(void *self)
{
    jsonl *j = self;
    dt_record_file_close(&j->file);
    dt_text_free(&j->line);
}

const dt_sink dt_sink_jsonl = {.record = FILE_NAME,
                               .needs_dir = true,
                               .nbytes = sizeof(jsonl),
                               .open = jsonl_open,
                               .train = jsonl_train,
                               .validation = jsonl_validation,
                               .sync = dt_sink_sync_file,
                               .close = jsonl_close};
