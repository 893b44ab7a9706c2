/* report.c - passes each record to the sinks that log.report_to names. Files of records get complete records
 * immediately. Records reported before a kill therefore exist after it, and a resumed run can truncate them to the step
 * of its checkpoint. */
#include "dtrain/report/report.h"

#include <stdlib.h>
#include <string.h>

#include "dtrain/io/io.h"
#include "sink.h"

#define ROW(name) {#name, &dt_sink_##name},
static const struct {
    const char *name;
    const dt_sink *sink;
} SINKS[] = {DT_SINKS(ROW, ROW)};
enum { N_SINKS = sizeof SINKS / sizeof SINKS[0] };

struct dt_report {
    struct {
        const dt_sink *sink;
        void *self;
    } open[N_SINKS];
    int n;
};

/* ---- choice ------------------------------------------------------------------------------------------------------ */

static int sink_named(const char *word)
{
    int i = 0;
    while (i < N_SINKS && strcmp(word, SINKS[i].name) != 0) i++;
    return i;
}

static dt_err fail_unknown(const dt_config *cfg, const char *word)
{
    if (strcmp(word, "wandb") != 0)
        return dt_config_fail(cfg, "log", "report_to", "expected any of " DT_SINK_NAMES ", found '%s'", word);
    return dt_config_fail(cfg, "log", "report_to",
                          "the run itself does not write to wandb, because it may have no network: set jsonl, then "
                          "`python3 wandb_offline.py OUTPUT_DIR` creates a directory for `wandb sync` (in tools/ of "
                          "the source, share/dtrain/tools of an installation)");
}

static dt_err choose(const dt_config *cfg, bool wanted[N_SINKS])
{
    char **words;
    int n;
    dt_err err = dt_config_split(cfg->log_report_to, &words, &n);
    memset(wanted, 0, N_SINKS * sizeof *wanted);
    for (int i = 0; i < n && err == DT_OK; i++) {
        const int k = sink_named(words[i]);
        if (k < N_SINKS)
            wanted[k] = true;
        else
            err = fail_unknown(cfg, words[i]);
    }
    dt_list_free(words, n);
    return err;
}

dt_err dt_report_check(const dt_config *cfg)
{
    bool wanted[N_SINKS];
    DT_TRY(choose(cfg, wanted));
    for (int i = 0; i < N_SINKS; i++)
        if (wanted[i] && SINKS[i].sink->keys) DT_TRY(SINKS[i].sink->keys(cfg));
    return DT_OK;
}

const char *dt_report_record(int i)
{
    for (int k = 0; k < N_SINKS; k++)
        if (SINKS[k].sink->record && i-- == 0) return SINKS[k].sink->record;
    return NULL;
}

/* ---- open, close ------------------------------------------------------------------------------------------------- */

dt_kept dt_sink_kept(const dt_report_options *opt)
{
    return (dt_kept){.last_step = opt->append ? INT64_MAX : opt->resume_step,
                     .redo_validation = opt->redo_validation,
                     .every = opt->every};
}

dt_err dt_sink_path(const dt_report_options *opt, const char *name, char path[PATH_MAX])
{
    const char *dir = opt->cfg->run_output_dir;
    DT_CHECK(dt_join_path(path, dir, name, ""), DT_ERR_WRITE, "%s: the name of its %s is too long", dir, name);
    return DT_OK;
}

dt_err dt_sink_sync_file(void *self) { return dt_record_file_sync(self); }

static bool writes_in_dir(const dt_sink *s, const dt_config *cfg)
{
    return s->needs_dir && !(s->other_path && *s->other_path(cfg));
}

/* The default of report_to names sinks that an evaluation without run.output_dir does not use. */
static void warn_of_no_dir(int sink, const dt_config *cfg)
{
    const char *key = SINKS[sink].sink->other_key;
    if (dt_config_given(cfg, "log", "report_to"))
        DT_WARN("[log] report_to: %s writes nothing; set run.output_dir%s%s", SINKS[sink].name, key ? " or " : "",
                key ? key : "");
}

static dt_err open_sinks(dt_report *r, const dt_report_options *opt)
{
    const char *dir = opt->cfg->run_output_dir;
    bool wanted[N_SINKS], dir_needed = false;
    DT_TRY(choose(opt->cfg, wanted));
    for (int i = 0; i < N_SINKS; i++) {
        if (!wanted[i] || !writes_in_dir(SINKS[i].sink, opt->cfg)) continue;
        wanted[i] = *dir != '\0';
        dir_needed |= wanted[i];
        if (!wanted[i]) warn_of_no_dir(i, opt->cfg);
    }
    if (dir_needed) DT_TRY(dt_make_dirs(dir));
    for (int i = 0; i < N_SINKS; i++)
        if (wanted[i] && SINKS[i].sink->check) DT_TRY(SINKS[i].sink->check(opt));
    for (int i = 0; i < N_SINKS; i++) {
        const dt_sink *sink = SINKS[i].sink;
        if (!wanted[i]) continue;
        void *self = calloc(1, sink->nbytes);
        DT_CHECK(self, DT_ERR_MEMORY, "out of memory for the report (%zu bytes)", sink->nbytes);
        r->open[r->n].sink = sink, r->open[r->n++].self = self;
        DT_TRY(sink->open(self, opt));
    }
    return DT_OK;
}

dt_err dt_report_open(dt_report **r, const dt_report_options *opt)
{
    *r = calloc(1, sizeof **r);
    DT_CHECK(*r, DT_ERR_MEMORY, "out of memory for the report (%zu bytes)", sizeof **r);
    const dt_err err = open_sinks(*r, opt);
    if (err == DT_OK) return DT_OK;
    dt_report_close(*r);
    *r = NULL;
    return err;
}

void dt_report_close(dt_report *r)
{
    for (int i = 0; r && i < r->n; i++) {
        r->open[i].sink->close(r->open[i].self);
        free(r->open[i].self);
    }
    free(r);
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

dt_err dt_report_train(dt_report *r, const dt_train_record *rec)
{
    if (!r) return DT_OK;
    DT_TRY(dt_fault("report"));
    for (int i = 0; i < r->n; i++) DT_TRY(r->open[i].sink->train(r->open[i].self, rec));
    return DT_OK;
}

dt_err dt_report_validation(dt_report *r, int64_t step, double loss, const dt_metric *more, int n_more)
{
    const dt_validation v = {step, loss, more, n_more};
    for (int i = 0; r && i < r->n; i++) DT_TRY(r->open[i].sink->validation(r->open[i].self, &v));
    return DT_OK;
}

void dt_report_activity(dt_report *r, int64_t step, const char *text)
{
    for (int i = 0; r && i < r->n; i++)
        if (r->open[i].sink->activity) r->open[i].sink->activity(r->open[i].self, step, text);
}

void dt_report_end_line(dt_report *r)
{
    for (int i = 0; r && i < r->n; i++)
        if (r->open[i].sink->end_line) r->open[i].sink->end_line(r->open[i].self);
}

void dt_report_last_line(dt_report *r)
{
    for (int i = 0; r && i < r->n; i++)
        if (r->open[i].sink->last_line) r->open[i].sink->last_line(r->open[i].self);
}

dt_err dt_report_flush(dt_report *r)
{
    dt_report_end_line(r); /* the caller logs its next action on its own line */
    for (int i = 0; r && i < r->n; i++)
        if (r->open[i].sink->sync) DT_TRY(r->open[i].sink->sync(r->open[i].self));
    return DT_OK;
}
