/* report.h - what people see: the progress line, metrics.jsonl, metrics.csv, TensorBoard event files. Rank 0 only;
 * other ranks hold a closed report, on which every call does nothing. */
#ifndef DTRAIN_REPORT_H
#define DTRAIN_REPORT_H

#include "dtrain/core.h"

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
    double flops_per_token; /* for model-flops utilisation; 0: leave out */
} dt_report_options;

/** A number with a name, besides the fixed fields. */
typedef struct dt_metric {
    const char *name;
    double value;
} dt_metric;

typedef struct dt_train_record {
    int64_t step; /* optimizer steps done, this one included */
    double loss, lr, grad_norm;
    int64_t tokens, samples; /* seen since the start of the run, all ranks */
    double step_time, tokens_per_second;
    /* bytes, peak of a rank (the largest): in the device's memory; pinned; resident set of the process */
    int64_t memory_device, memory_pinned, memory_host;
    double mfu;   /* model-FLOPs utilisation: a part of the devices' peak; 0: not known */
    bool skipped; /* the update was left out */
    const dt_metric *more;
    int n_more;
} dt_train_record;

/** Which sinks a list such as "stdout, jsonl" asks for. DT_ERR_USAGE naming a word that is no sink; where: the head of
 *  the message. */
dt_err dt_report_choose(dt_report_options *opt, const char *list, const char *where);

/** resume_step > 0 rewrites metrics.jsonl atomically without what lies beyond, each step once. DT_ERR_WRITE. */
dt_err dt_report_open(dt_report **r, const dt_report_options *opt);
dt_err dt_report_train(dt_report *r, const dt_train_record *rec); /* r may be NULL in all of these */
dt_err dt_report_validation(dt_report *r, int64_t step, double loss, const dt_metric *more, int n_more);
void dt_report_end_line(dt_report *r); /* what is printed next has a line of its own */
dt_err dt_report_done(dt_report *r);   /* all steps are done: TensorBoard shows the run as a success */
dt_err dt_report_flush(dt_report *r);  /* to the disk: before a checkpoint names the step */
void dt_report_close(dt_report *r);

#endif
