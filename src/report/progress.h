/* progress.h - the line that people watch. */
#ifndef DTRAIN_REPORT_PROGRESS_H
#define DTRAIN_REPORT_PROGRESS_H

#include "dtrain/report.h"
#include "record.h"

/** Lines of one kind: which of them are shown. */
typedef struct dt_cadence {
    int64_t n_shown;
    double last_s; /* clock at the last one shown */
} dt_cadence;

typedef struct dt_progress {
    bool live; /* one line, rewritten; else a line per record */
    int64_t total_steps;
    double flops_per_token;
    double every_s;                  /* least time between two lines; < 0: dt_cadence_shows chooses it */
    int64_t first_step;              /* of the first record seen, -1 before it */
    double open_s, first_s, shown_s; /* clock at the opening, at the first record and at the last rewriting */
    dt_cadence train, validation;
    dt_record line; /* text of the last record */
    bool pending;   /* the last record was not shown yet, or stands in the live line without its newline */
} dt_progress;

/** Is the record of this moment shown as a line of its own? every_s >= 0: when so much time has passed since the last
 *  one. every_s < 0: the first ten; behind them one in 10 seconds or in 2 % of the time that the run has taken,
 *  whichever is longer, and at least one every 10 minutes. A second gives at most ten lines, a minute 16, an hour some
 *  160, a day some 350. start_s, now_s: clock at the start and now. */
bool dt_cadence_shows(dt_cadence *c, double every_s, double start_s, double now_s);

void dt_progress_open(dt_progress *p, int64_t total_steps, double flops_per_token, double every_s);
void dt_progress_train(dt_progress *p, const dt_train_record *rec);
void dt_progress_validation(dt_progress *p, int64_t step, double loss, const dt_metric *more, int n_more);
/** End the live line, if there is one; the next record begins another. */
void dt_progress_end_line(dt_progress *p);
/** Show the last record, if it was not shown. */
void dt_progress_close(dt_progress *p);
void dt_progress_free(dt_progress *p); /* closes it */

/** The text of a record, without newline, into out (cleared first). left_s: time left, negative when unknown. */
void dt_progress_format(dt_record *out, const dt_train_record *rec, int64_t total_steps, double flops_per_token,
                        double left_s);
void dt_progress_format_validation(dt_record *out, int64_t step, int64_t total_steps, double loss,
                                   const dt_metric *more, int n_more);

#endif
