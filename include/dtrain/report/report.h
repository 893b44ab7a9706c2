/* report.h - what people see: the progress line, metrics.jsonl, metrics.csv, TensorBoard event files. Rank 0 only;
 * other ranks hold a closed report, on which every call does nothing. */
#ifndef DTRAIN_REPORT_H
#define DTRAIN_REPORT_H

#include "dtrain/core/core.h"

typedef struct dt_report dt_report;

typedef struct dt_report_options {
    const char *output_dir;
    bool to_stdout, to_jsonl, to_csv, to_tensorboard;
    const char *config; /* the resolved configuration, for TensorBoard; NULL: leave out */
    /* where standard output is no terminal: least time between two training lines; < 0: spaced by how long the run
     * takes */
    double stdout_every_s;
    /* > 0: drop records beyond this step from metrics.jsonl and .csv (and a torn last line), then go on; 0: start
     * anew */
    int64_t resume_step;
    bool append;          /* add to all that is there, whatever its steps: an evaluation; resume_step does not matter */
    bool redo_validation; /* the validation of resume_step will be done again: drop its record, too */
    int64_t every;        /* steps between two training records; 0: not known */
    int64_t total_steps;
} dt_report_options;

/** A number with a name, besides the fixed fields. */
typedef struct dt_metric {
    const char *name;
    double value;
} dt_metric;

typedef struct dt_train_record {
    int64_t step;        /* optimizer steps done, this one included */
    int64_t total_steps; /* of the run, as is known by now; 0: as at the start */
    double loss, lr, grad_norm;
    int64_t tokens, samples;                               /* seen since the start of the run, all ranks */
    double step_time, tokens_per_second, flops_per_second; /* the last 0: not known */
    /* bytes, peak of a rank (the largest): in the device's memory; pinned; resident set of the process */
    int64_t memory_device, memory_pinned, memory_host;
    double mfu;   /* model-FLOPs utilisation: a part of the devices' peak; 0: not known */
    bool skipped; /* the update was left out */
    const dt_metric *more;
    int n_more;
    const char *const *watch; /* names among them that the progress line shows beside the loss, to a NULL; NULL: none */
} dt_train_record;

/** Which sinks a list such as "stdout, jsonl" asks for. DT_ERR_USAGE naming a word that is no sink; where: the head of
 *  the message. */
dt_err dt_report_choose(dt_report_options *opt, const char *list, const char *where);

/** resume_step > 0 rewrites metrics.jsonl atomically without what lies beyond, each step once. DT_ERR_WRITE. */
dt_err dt_report_open(dt_report **r, const dt_report_options *opt);
dt_err dt_report_train(dt_report *r, const dt_train_record *rec); /* r may be NULL in all of these */
dt_err dt_report_validation(dt_report *r, int64_t step, double loss, const dt_metric *more, int n_more);
/** What a step is at that takes its time, for the progress line alone: shown now and then. */
void dt_report_activity(dt_report *r, int64_t step, const char *text);
void dt_report_end_line(dt_report *r);  /* what is printed next has a line of its own */
void dt_report_last_line(dt_report *r); /* the line of the last step is printed, if it was not its turn so far */
dt_err dt_report_done(dt_report *r);    /* all steps are done: TensorBoard shows the run as a success */
dt_err dt_report_flush(dt_report *r);   /* to the disk: before a checkpoint names the step */
void dt_report_close(dt_report *r);

/** A file of JSON objects, one a line, each with the "step" that it belongs to, any number to a step. */
typedef struct dt_journal dt_journal;
/** last_step 0: a new file takes the place of what is there. Else lines go behind those that are there, without the
 *  lines of later steps and what is not a whole line. DT_ERR_WRITE, DT_ERR_DATA. */
dt_err dt_journal_open(dt_journal **j, const char *path, int64_t last_step);
/** Lines are written to *f, which is in memory a buffer alone, until end, which closes it: all of them or none are in
 *  the file then. err: the writer's own, for which they are left out, and which is returned. DT_ERR_WRITE;
 *  DT_ERR_MEMORY. */
dt_err dt_journal_begin(dt_journal *j, FILE **f);
dt_err dt_journal_end(dt_journal *j, dt_err err);
dt_err dt_journal_sync(dt_journal *j); /* safe on NULL, as close */
void dt_journal_close(dt_journal *j);

/** Lines of one kind: which of them are shown. */
typedef struct dt_cadence {
    int64_t n_shown;
    double last_s; /* clock at the last one shown */
} dt_cadence;
/** Is the record of this moment shown as a line of its own? every_s >= 0: when so much time has passed since the last
 *  one. every_s < 0: the first ten; behind them one in 10 seconds or in 2 % of the time that the run has taken,
 *  whichever is longer, and at least one every 10 minutes. A second gives at most ten lines, a minute 16, an hour some
 *  160, a day some 350. start_s, now_s: clock at the start and now. */
bool dt_cadence_shows(dt_cadence *c, double every_s, double start_s, double now_s);

#endif
