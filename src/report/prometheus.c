/* prometheus.c - the sink "prometheus": a file with the last records, for the textfile collector of Prometheus'
 * node_exporter.
 *
 * Source  Prometheus, "Text exposition format", version 0.0.4. node_exporter reads *.prom at each scrape, and refuses
 *         samples with a time.
 *
 * The file is replaced by a rename, so a scrape never reads a part of it. A scrape needs no durability: nothing is
 * flushed to disk. Scrapes are seconds apart, and on a parallel file system a rename can take milliseconds, so short
 * steps replace the file at most once a second.
 *
 * Names of tasks' metrics ("dpo/rewards/margins") are labels. In a Prometheus name, "a/b" and "a_b" would be equal. */
#include "sink.h"
#include "fields.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dtrain/io/io.h"

#define REPLACE_S 1 /* minimum time between two training records in the file */

typedef struct prometheus {
    char path[PATH_MAX], part[PATH_MAX];
    bool temporary;  /* removed at the end */
    bool written;    /* this run has written the file */
    double shown_s;  /* time at which a training record replaced the file */
    bool pending;    /* a record is not in the file yet */
    bool failing;    /* the last replacement failed, with a warning */
    int64_t n_steps; /* of the run */
    dt_text label;   /* of all samples: output_dir="..." */
    dt_text train, validation, all;
} prometheus;

/* ---- format ------------------------------------------------------------------------------------------------------ */

/* The value of a label: UTF-8, with three escapes. */
static void put_escaped(dt_text *out, const char *text)
{
    for (size_t left = strlen(text), n; left > 0; text += n, left -= n) {
        const char *escape = *text == '\\' ? "\\\\" : *text == '"' ? "\\\"" : *text == '\n' ? "\\n" : NULL;
        n = dt_utf8_length(text, left);
        if (escape)
            dt_text_append(out, escape, 2);
        else if (n > 0)
            dt_text_append(out, text, n);
        else
            dt_text_append(out, "\xef\xbf\xbd", 3), n = dt_utf8_bad(text, left);
    }
}

static void put_value(dt_text *out, double x)
{
    if (isnan(x))
        dt_text_printf(out, " NaN\n");
    else if (isinf(x))
        dt_text_printf(out, x > 0 ? " +Inf\n" : " -Inf\n");
    else
        dt_text_printf(out, x == rint(x) && fabs(x) < 0x1p53 ? " %.0f\n" : " %.9g\n", x);
}

static void put_family(dt_text *out, const char *name, const char *type, const char *help)
{
    dt_text_printf(out, "# HELP dtrain_%s %s\n# TYPE dtrain_%s %s\n", name, help, name, type);
}

static void put_sample(const prometheus *p, dt_text *out, const char *name, const char *metric, double value)
{
    dt_text_printf(out, "dtrain_%s{", name);
    dt_text_append(out, p->label.bytes, p->label.n);
    if (metric) {
        dt_text_printf(out, ",name=\"");
        put_escaped(out, metric);
        dt_text_append(out, "\"", 1);
    }
    dt_text_append(out, "}", 1);
    put_value(out, value);
}

static void put_gauge(const prometheus *p, dt_text *out, const char *name, const char *help, double value)
{
    put_family(out, name, "gauge", help);
    put_sample(p, out, name, NULL, value);
}

/* A sample for each name. If a name occurs twice, its last value counts, as in the table. */
static void put_metrics(const prometheus *p, dt_text *out, const char *name, const char *help, const dt_metric *more,
                        int n_more)
{
    if (n_more > 0) put_family(out, name, "gauge", help);
    for (int i = 0; i < n_more; i++) {
        int k = n_more - 1;
        while (strcmp(more[k].name, more[i].name) != 0) k--;
        if (k == i) put_sample(p, out, name, more[i].name, more[i].value);
    }
}

static void put_field(const prometheus *p, dt_text *out, const dt_field *field)
{
    put_family(out, field->metric, field->type, field->help);
    put_sample(p, out, field->metric, NULL, field->value);
}

/* ---- file -------------------------------------------------------------------------------------------------------- */

static dt_err write_part(const prometheus *p)
{
    int fd;
    DT_CHECK(!p->all.failed, DT_ERR_MEMORY, "%s: out of memory for the metrics", p->path);
    DT_TRY(dt_create_file(p->part, &fd));
    return dt_close_written(fd, p->part, false, dt_write_at(fd, p->part, 0, p->all.bytes, p->all.n));
}

static dt_err replace(prometheus *p, bool running)
{
    dt_text *all = &p->all;
    all->n = 0;
    put_gauge(p, all, "running", "1 while the run reports, 0 after its end.", running);
    if (p->n_steps > 0) put_gauge(p, all, "steps", "Optimizer steps of the whole run.", (double)p->n_steps);
    dt_text_append(all, p->train.bytes, p->train.n);
    dt_text_append(all, p->validation.bytes, p->validation.n);
    all->failed |= p->train.failed | p->validation.failed | p->label.failed;
    dt_err err = write_part(p);
    if (err == DT_OK) err = dt_rename_file(p->part, p->path);
    if (err == DT_OK)
        p->written = true;
    else
        dt_remove_part(p->part);
    p->pending = false;
    return err;
}

/* The directory of a collector is not part of the run's results. If it becomes unwritable, the run continues. */
static dt_err show(prometheus *p)
{
    const dt_err err = replace(p, true);
    const bool failed = err == DT_ERR_WRITE && p->temporary;
    if (failed && !p->failing) DT_WARN("%s; training continues without this file", dt_error_message());
    if (failed) dt_error_clear();
    p->failing = failed;
    return failed ? DT_OK : err;
}

/* ---- the sink ---------------------------------------------------------------------------------------------------- */

/* A collector with a misspelled name would show nothing, so the name is checked before the first step. */
static dt_err prometheus_keys(const dt_config *cfg)
{
    const char *path = cfg->log_prometheus_path, *slash = strrchr(path, '/');
    char folder[PATH_MAX];
    if (!*path) return DT_OK;
    DT_CONFIG_CHECK(dt_has_ending(path, ".prom"), cfg, "log", "prometheus_path",
                    "expected the name of a file that ends in .prom, because node_exporter reads no other files, found "
                    "'%s'",
                    path);
    snprintf(folder, sizeof folder, "%.*s", slash == path ? 1 : slash ? (int)(slash - path) : 1, slash ? path : ".");
    DT_CONFIG_CHECK(dt_is_directory(folder), cfg, "log", "prometheus_path",
                    "expected a file in an existing directory, found no directory %s", folder);
    return DT_OK;
}

static dt_err find_path(prometheus *p, const dt_report_options *opt)
{
    const char *path = opt->cfg->log_prometheus_path;
    p->temporary = *path;
    if (!p->temporary) DT_TRY(dt_sink_path(opt, "metrics.prom", p->path));
    DT_CHECK(!p->temporary || snprintf(p->path, sizeof p->path, "%s", path) < PATH_MAX, DT_ERR_WRITE,
             "%s: the path is too long", path);
    DT_CHECK(snprintf(p->part, sizeof p->part, "%s.part", p->path) < PATH_MAX, DT_ERR_WRITE, "%s: the path is too long",
             p->path);
    return DT_OK;
}

static dt_err prometheus_open(void *self, const dt_report_options *opt)
{
    prometheus *p = self;
    dt_text *const texts[] = {&p->train, &p->validation, &p->all};
    DT_TRY(find_path(p, opt));
    char *full = realpath(opt->cfg->run_output_dir, NULL);
    dt_text_printf(&p->label, "output_dir=\"");
    put_escaped(&p->label, full ? full : opt->cfg->run_output_dir);
    dt_text_append(&p->label, "\"", 1);
    free(full);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) dt_text_reserve(texts[i], 2 * DT_RECORD_NBYTES);
    p->n_steps = opt->total_steps;
    p->shown_s = -INFINITY;
    return replace(p, true);
}

static dt_err prometheus_train(void *self, const dt_train_record *rec)
{
    prometheus *p = self;
    dt_field fields[DT_N_FIELDS];
    const double now = dt_now_s();
    dt_fields_of(rec, fields);
    if (rec->total_steps > 0) p->n_steps = rec->total_steps;
    p->train.n = 0;
    for (int i = 0; i < DT_N_FIELDS; i++)
        if (fields[i].known || i == DT_FIELD_SKIPPED) put_field(p, &p->train, &fields[i]);
    put_metrics(p, &p->train, "metric", "Further metrics of the last training record.", rec->more, rec->n_more);
    p->pending = now - p->shown_s < REPLACE_S;
    if (p->pending) return DT_OK;
    p->shown_s = now;
    return show(p);
}

static dt_err prometheus_validation(void *self, const dt_validation *v)
{
    prometheus *p = self;
    dt_text *out = &p->validation;
    out->n = 0;
    put_gauge(p, out, "validation_step", "Optimizer steps done at the last validation.", (double)v->step);
    put_gauge(p, out, "validation_loss", "Validation loss.", v->loss);
    put_metrics(p, out, "validation_metric", "Further metrics of the last validation.", v->more, v->n_more);
    return show(p);
}

static dt_err prometheus_sync(void *self)
{
    prometheus *p = self;
    return p->pending ? show(p) : DT_OK;
}

/* A file in the collector's directory is removed, because the collector would export it forever. A file in output_dir
 * is a result of the run and stays. */
static void prometheus_close(void *self)
{
    prometheus *p = self;
    const bool failed = *dt_error_message();
    if (p->written && p->temporary) {
        unlink(p->path);
    } else if (p->written && replace(p, false) != DT_OK && !failed) {
        DT_WARN("%s", dt_error_message());
        dt_error_clear();
    }
    dt_text_free(&p->label);
    dt_text_free(&p->train);
    dt_text_free(&p->validation);
    dt_text_free(&p->all);
}

static const char *path_of(const dt_config *cfg) { return cfg->log_prometheus_path; }

const dt_sink dt_sink_prometheus = {.needs_dir = true,
                                    .other_path = path_of,
                                    .other_key = "log.prometheus_path",
                                    .keys = prometheus_keys,
                                    .nbytes = sizeof(prometheus),
                                    .open = prometheus_open,
                                    .train = prometheus_train,
                                    .validation = prometheus_validation,
                                    .sync = prometheus_sync,
                                    .close = prometheus_close};
