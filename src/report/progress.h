/* progress.h - the line that people watch. */
#ifndef DTRAIN_REPORT_PROGRESS_H
#define DTRAIN_REPORT_PROGRESS_H

#include "dtrain/report.h"
#include "record.h"

typedef struct dt_progress {
    bool live; /* one line, rewritten; else a line per record */
    int64_t total_steps;
    double flops_per_token;
    int64_t first_step;      /* of the first record seen, -1 before it */
    double first_s, shown_s; /* clock at the first record and at the last rewriting */
    dt_record line;          /* text of the last record */
    bool pending;            /* the live line stands without its newline, or was not shown yet */
} dt_progress;

void dt_progress_open(dt_progress *p, int64_t total_steps, double flops_per_token);
void dt_progress_train(dt_progress *p, const dt_train_record *rec);
void dt_progress_validation(dt_progress *p, int64_t step, double loss, const dt_metric *more, int n_more);
/** End the live line, if there is one; the next record begins another. */
void dt_progress_close(dt_progress *p);

/** The text of a record, without newline, into out (cleared first). left_s: time left, negative when unknown. */
void dt_progress_format(dt_record *out, const dt_train_record *rec, int64_t total_steps, double flops_per_token, double left_s);
/** "45s", "12m30s", "3h05m", "2d04h" into out [at least 24]; returns out. */
char *dt_progress_duration(double seconds, char *out);

#endif
