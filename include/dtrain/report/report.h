/* report.h - a run's output for users: the sinks of log.report_to, such as the progress line and metrics.jsonl. Every
 * function is Local. Rank 0 reports; on other ranks the report is closed, and every call does nothing. */
#ifndef DTRAIN_REPORT_H
#define DTRAIN_REPORT_H

#include "dtrain/config/config.h"
#include "dtrain/core/core.h"

typedef struct dt_report dt_report;

/** Options of dt_report_open. */
typedef struct dt_report_options {
    const dt_config *cfg; /* [log] names the sinks and has their keys; run.output_dir, "": no sink that needs it */
    const char *config;   /* the resolved configuration, for TensorBoard; NULL: omit */
    /* > 0: remove records after this step (and an incomplete last line) from metrics.jsonl and .csv, and append; 0: new
     * files */
    int64_t resume_step;
    bool append;          /* append to existing records of any steps: an evaluation; resume_step is ignored */
    bool redo_validation; /* the validation of resume_step will be repeated: remove its record as well */
    int64_t every;        /* steps between two training records; 0: unknown */
    int64_t total_steps;
} dt_report_options;

/** A named value in addition to the fixed fields. */
typedef struct dt_metric {
    const char *name;
    double value;
} dt_metric;

/** A training record. */
typedef struct dt_train_record {
    int64_t step;        /* optimizer steps done, including this one */
    int64_t total_steps; /* of the run, as known now; 0: as at the start */
    double loss, lr, grad_norm;
    int64_t tokens, samples;                               /* since the start of the run, over all ranks */
    double step_time, tokens_per_second, flops_per_second; /* flops_per_second 0: unknown */
    /* peak bytes, maximum over ranks: device memory, pinned memory, resident set of the process */
    int64_t memory_device, memory_pinned, memory_host;
    double mfu;   /* model-FLOPs utilisation: fraction of the devices' peak; 0: unknown */
    bool skipped; /* the update was skipped */
    const dt_metric *more;
    int n_more;
    const char *const *watch; /* NULL-terminated names of these that the progress line shows; NULL: none */
} dt_train_record;

/** Check log.report_to and the keys of its sinks. DT_ERR_USAGE naming an unknown sink or the key. */
dt_err dt_report_check(const dt_config *cfg);
/** Name of the i-th file of run.output_dir that a resumed run truncates, from 0; NULL after the last. */
const char *dt_report_record(int i);

/** Open the sinks of log.report_to. resume_step > 0 rewrites metrics.jsonl atomically without later records, each step
 *  once. r: out, closed with dt_report_close. opt: borrowed during the call. DT_ERR_USAGE: an unknown sink.
 *  DT_ERR_WRITE, DT_ERR_DATA (an existing file is not one of records), DT_ERR_MEMORY. */
dt_err dt_report_open(dt_report **r, const dt_report_options *opt);
/** Report a training step. r may be NULL, as in all calls below. DT_ERR_WRITE. */
dt_err dt_report_train(dt_report *r, const dt_train_record *rec);
/** Report a validation after a step. DT_ERR_WRITE. */
dt_err dt_report_validation(dt_report *r, int64_t step, double loss, const dt_metric *more, int n_more);
/** Show the present activity of a long step in the progress line, at limited intervals. */
void dt_report_activity(dt_report *r, int64_t step, const char *text);
/** End the progress line, so that the next output begins a new line. */
void dt_report_end_line(dt_report *r);
/** Print the line of the last step, if it has not been printed. */
void dt_report_last_line(dt_report *r);
/** fsync all files, before a checkpoint names the step. DT_ERR_WRITE. */
dt_err dt_report_flush(dt_report *r);
/** Close all sinks. Safe on NULL. */
void dt_report_close(dt_report *r);

/** A file of JSON objects, one per line, each with its "step"; a step may have any number of lines. */
typedef struct dt_journal dt_journal;
/** Open a journal. last_step 0: replace the file. Otherwise append, after removing lines of later steps and an
 *  incomplete last line. j: out, closed with dt_journal_close. DT_ERR_WRITE, DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err dt_journal_open(dt_journal **j, const char *path, int64_t last_step);
/** Begin a group of lines, which the caller writes to *f, a memory buffer. DT_ERR_MEMORY. */
dt_err dt_journal_begin(dt_journal *j, FILE **f);
/** End the group: close *f and append all its lines to the file, or none. err: the caller's error; the lines are then
 *  discarded, and err returned. DT_ERR_WRITE, DT_ERR_MEMORY. */
dt_err dt_journal_end(dt_journal *j, dt_err err);
/** fsync the file. Safe on NULL. DT_ERR_WRITE. */
dt_err dt_journal_sync(dt_journal *j);
/** Close the journal. Safe on NULL. */
void dt_journal_close(dt_journal *j);

/** State that decides which lines of a kind are shown. Initialise to {0}. */
typedef struct dt_cadence {
    int64_t n_shown;
    double last_s; /* dt_now_s() at the last line shown */
} dt_cadence;
/** True if the current record is shown as a line. every_s >= 0: at least every_s seconds have passed since the last
 *  line. every_s < 0: the first ten are shown. Then one line follows per 10 seconds or per 2 % of the run's duration,
 *  whichever is longer, but at least one every 10 minutes. A second gives at most 10 lines, a minute 16, an hour about
 *  160, a day about 350. start_s, now_s: dt_now_s() at the start and now. */
bool dt_cadence_shows(dt_cadence *c, double every_s, double start_s, double now_s);

#endif
