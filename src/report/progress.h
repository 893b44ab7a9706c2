/* progress.h - the texts of the progress line. */
#ifndef DTRAIN_REPORT_PROGRESS_H
#define DTRAIN_REPORT_PROGRESS_H

#include "dtrain/report/report.h"
#include "record.h"

/** Format a record without newline into out (cleared first). left_s: remaining time, negative if unknown. */
void dt_progress_format(dt_text *out, const dt_train_record *rec, int64_t total_steps, double left_s);
void dt_progress_format_validation(dt_text *out, int64_t step, int64_t total_steps, double loss, const dt_metric *more,
                                   int n_more);

#endif
