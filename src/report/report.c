/* report.c - passes each record to the progress line, the JSON file, the table and the event file. All of them write
 * complete records immediately. Records reported before a kill therefore exist after it, and a resumed run can truncate
 * them to the step of its checkpoint. */
#include "dtrain/report/report.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "dtrain/config/config.h"
#include "dtrain/io/io.h"
#include "metrics_csv.h"
#include "events.h"
#include "fields.h"
#include "metrics_jsonl.h"
#include "progress.h"

struct dt_report {
    bool to_stdout, to_jsonl, to_csv, to_tensorboard;
    dt_progress progress;
    dt_text line;
    dt_record_file jsonl;
    dt_csv csv;
    dt_events events;
};

/* The part of an existing file to keep; last_step 0: nothing, a new file is started. */
static dt_kept kept_of(const dt_report_options *opt)
{
    return (dt_kept){.last_step = opt->append ? INT64_MAX : opt->resume_step,
                     .redo_validation = opt->redo_validation,
                     .every = opt->every};
}

static dt_err path_of(const dt_report_options *opt, const char *name, char path[PATH_MAX])
{
    DT_CHECK(dt_join_path(path, opt->output_dir, name, ""), DT_ERR_WRITE, "%s: the name of its %s is too long",
             opt->output_dir, name);
    return DT_OK;
}

static dt_err open_jsonl(dt_report *r, const dt_report_options *opt)
{
    char path[PATH_MAX];
    const dt_kept kept = kept_of(opt);
    DT_TRY(path_of(opt, "metrics.jsonl", path));
    if (kept.last_step > 0) DT_TRY(dt_jsonl_cut(path, &kept));
    DT_TRY(dt_record_file_open(&r->jsonl, path, kept.last_step > 0));
    r->to_jsonl = true;
    return DT_OK;
}

/* look: only check whether it can be opened. */
static dt_err open_csv(dt_report *r, const dt_report_options *opt, bool look)
{
    char path[PATH_MAX];
    const dt_kept kept = kept_of(opt);
    DT_TRY(path_of(opt, "metrics.csv", path));
    if (look) return dt_csv_look(path, &kept);
    DT_TRY(dt_csv_open(&r->csv, path, &kept));
    r->to_csv = true;
    return DT_OK;
}

static dt_err open_events(dt_report *r, const dt_report_options *opt)
{
    const int64_t first = opt->append ? -1 : opt->resume_step > 0 ? opt->resume_step + 1 : 0;
    DT_TRY(dt_events_open(&r->events, opt->output_dir, first));
    if (opt->config) DT_TRY(dt_events_config(&r->events, opt->resume_step, opt->config));
    r->to_tensorboard = true;
    return DT_OK;
}

static dt_err open_sinks(dt_report *r, const dt_report_options *opt)
{
    if (opt->to_jsonl || opt->to_csv || opt->to_tensorboard) DT_TRY(dt_make_dirs(opt->output_dir));
    if (opt->to_csv) DT_TRY(open_csv(r, opt, true)); /* before any file is truncated */
    if (opt->to_jsonl) DT_TRY(open_jsonl(r, opt));
    if (opt->to_csv) DT_TRY(open_csv(r, opt, false));
    if (opt->to_tensorboard) DT_TRY(open_events(r, opt));
    if (opt->to_stdout) dt_progress_open(&r->progress, opt->total_steps, opt->stdout_every_s);
    r->to_stdout = opt->to_stdout;
    return DT_OK;
}

/* Metrics records are shorter, so a step reallocates no buffer. */
static void reserve_records(dt_report *r)
{
    dt_events *e = &r->events;
    dt_text *const all[] = {&r->line, &r->progress.line, &r->csv.row, &e->value, &e->summary, &e->event, &e->frame};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) dt_text_reserve(all[i], 4096);
}

dt_err dt_report_choose(dt_report_options *opt, const char *list, const char *where)
{
    const struct {
        const char *word;
        bool *wanted;
    } sinks[] = {{"stdout", &opt->to_stdout},
                 {"jsonl", &opt->to_jsonl},
                 {"csv", &opt->to_csv},
                 {"tensorboard", &opt->to_tensorboard}};
    char **words;
    int n;
    dt_err err = dt_config_split(list, &words, &n);
    for (int i = 0; i < n && err == DT_OK; i++) {
        bool known = false;
        for (size_t k = 0; k < sizeof sinks / sizeof sinks[0]; k++)
            if (strcmp(words[i], sinks[k].word) == 0) known = *sinks[k].wanted = true;
        if (!known && strcmp(words[i], "wandb") == 0)
            err = dt_fail(DT_ERR_USAGE,
                          "%s: the run itself does not write to wandb, because it may have no network: set jsonl, then "
                          "`python3 wandb_offline.py OUTPUT_DIR` creates a directory for `wandb sync` (in tools/ of "
                          "the source, share/dtrain/tools of an installation)",
                          where);
        else if (!known)
            err = dt_fail(DT_ERR_USAGE, "%s: expected any of stdout, jsonl, csv, tensorboard, found '%s'", where,
                          words[i]);
    }
    dt_list_free(words, n);
    return err;
}

dt_err dt_report_open(dt_report **r, const dt_report_options *opt)
{
    *r = calloc(1, sizeof **r);
    DT_CHECK(*r, DT_ERR_MEMORY, "out of memory for the report (%zu bytes)", sizeof **r);
    (*r)->jsonl.fd = (*r)->csv.file.fd = (*r)->events.file.fd = -1;
    const dt_err err = open_sinks(*r, opt);
    if (err != DT_OK) {
        dt_report_close(*r);
        *r = NULL;
        return err;
    }
    reserve_records(*r);
    return DT_OK;
}

/* Tag "train/NAME", unless the task's name has a prefix ("dpo/accuracy"). "validation_accuracy" becomes
 * "validation/accuracy". */
static void add_event(dt_events *e, const char *group, const char *name, double value)
{
    char tag[256];
    const size_t len = strlen(group);
    if (strchr(name, '/'))
        snprintf(tag, sizeof tag, "%s", name);
    else
        snprintf(tag, sizeof tag, "%s/%s", group,
                 strncmp(name, group, len) == 0 && name[len] == '_' ? name + len + 1 : name);
    dt_events_add(e, tag, value);
}

static dt_err train_event(dt_report *r, const dt_train_record *rec)
{
    dt_events *e = &r->events;
    dt_field fields[DT_N_FIELDS];
    dt_fields_of(rec, fields);
    dt_events_begin(e, rec->step);
    for (int i = 0; i < DT_N_FIELDS; i++)
        if (fields[i].tag && fields[i].known) dt_events_add(e, fields[i].tag, fields[i].value);
    for (int i = 0; i < rec->n_more; i++) add_event(e, "train", rec->more[i].name, rec->more[i].value);
    return dt_events_end(e);
}

dt_err dt_report_train(dt_report *r, const dt_train_record *rec)
{
    if (!r) return DT_OK;
    DT_TRY(dt_fault("report"));
    if (r->to_jsonl) {
        dt_jsonl_train(&r->line, rec);
        DT_TRY(dt_record_file_write(&r->jsonl, &r->line));
    }
    if (r->to_csv) DT_TRY(dt_csv_train(&r->csv, rec));
    if (r->to_tensorboard) DT_TRY(train_event(r, rec));
    if (r->to_stdout) dt_progress_train(&r->progress, rec);
    return DT_OK;
}

dt_err dt_report_validation(dt_report *r, int64_t step, double loss, const dt_metric *more, int n_more)
{
    if (!r) return DT_OK;
    if (r->to_jsonl) {
        dt_jsonl_validation(&r->line, step, loss, more, n_more);
        DT_TRY(dt_record_file_write(&r->jsonl, &r->line));
    }
    if (r->to_csv) DT_TRY(dt_csv_validation(&r->csv, step, loss, more, n_more));
    if (r->to_tensorboard) {
        dt_events_begin(&r->events, step);
        dt_events_add(&r->events, "Loss/validation", loss);
        for (int i = 0; i < n_more; i++) add_event(&r->events, "validation", more[i].name, more[i].value);
        DT_TRY(dt_events_end(&r->events));
    }
    if (r->to_stdout) dt_progress_validation(&r->progress, step, loss, more, n_more);
    return DT_OK;
}

void dt_report_activity(dt_report *r, int64_t step, const char *text)
{
    if (r && r->to_stdout) dt_progress_activity(&r->progress, step, text);
}

void dt_report_end_line(dt_report *r)
{
    if (r && r->to_stdout) dt_progress_end_line(&r->progress);
}

void dt_report_last_line(dt_report *r)
{
    if (r && r->to_stdout) dt_progress_close(&r->progress);
}

dt_err dt_report_flush(dt_report *r)
{
    if (!r) return DT_OK;
    dt_report_end_line(r); /* the caller logs its next action on its own line */
    if (r->to_csv) DT_TRY(dt_record_file_sync(&r->csv.file));
    if (r->to_jsonl) DT_TRY(dt_record_file_sync(&r->jsonl));
    if (r->to_tensorboard) DT_TRY(dt_events_sync(&r->events));
    return DT_OK;
}

void dt_report_close(dt_report *r)
{
    if (!r) return;
    dt_progress_free(&r->progress);
    dt_record_file_close(&r->jsonl);
    dt_csv_close(&r->csv);
    dt_events_close(&r->events);
    dt_text_free(&r->line);
    free(r);
}
