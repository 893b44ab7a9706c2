/* progress.h - the progress line. */
#ifndef DTRAIN_REPORT_PROGRESS_H
#define DTRAIN_REPORT_PROGRESS_H

#include "dtrain/report/report.h"
#include "record.h"

typedef struct dt_progress {
    bool live; /* one line that is rewritten; otherwise a line per record */
    int64_t total_steps;
    double every_s;                  /* minimum time between two lines; < 0: dt_cadence_shows chooses it */
    int64_t first_step;              /* of the first record seen, -1 before it */
    double open_s, first_s, shown_s; /* clock at the opening, at the first record and at the last rewriting */
    dt_cadence train, validation, activity;
    dt_text line; /* text of the last record */
    bool pending; /* the last record is not displayed yet, or is in the live line without a newline */
} dt_progress;

void dt_progress_open(dt_progress *p, int64_t total_steps, double every_s);
void dt_progress_train(dt_progress *p, const dt_train_record *rec);
void dt_progress_validation(dt_progress *p, int64_t step, double loss, const dt_metric *more, int n_more);
/** Show the present activity of a step: in the live line at most every 100 ms, otherwise in a separate line at most
 *  every 10 s. */
void dt_progress_activity(dt_progress *p, int64_t step, const char *text);
/** End the live line, if any; the next record starts a new one. */
void dt_progress_end_line(dt_progress *p);
/** Show the last record if it is not displayed yet. */
void dt_progress_close(dt_progress *p);
void dt_progress_free(dt_progress *p); /* closes it */

/** Format a record without newline into out (cleared first). left_s: remaining time, negative if unknown. */
void dt_progress_format(dt_text *out, const dt_train_record *rec, int64_t total_steps, double left_s);
void dt_progress_format_validation(dt_text *out, int64_t step, int64_t total_steps, double loss, const dt_metric *more,
                                   int n_more);

#endif
