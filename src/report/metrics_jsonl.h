/* metrics_jsonl.h - metrics.jsonl: one JSON object per line. */
#ifndef DTRAIN_REPORT_JSONL_H
#define DTRAIN_REPORT_JSONL_H

#include "dtrain/report/report.h"
#include "lines.h"

/** Write a record's line to out (cleared first). 9 significant digits; non-finite values become null. */
void dt_jsonl_train(dt_text *out, const dt_train_record *rec);
void dt_jsonl_validation(dt_text *out, int64_t step, double loss, const dt_metric *more, int n_more);

/** Rewrite the file, through PATH.part and a rename, with the kept lines: each training step once, in order (unless
 * several lines per step are allowed). Lines that are not complete objects with a step are removed (usually a torn
 * last line). A warning reports removed lines and a missing step. A missing file stays missing. DT_ERR_DATA (cannot
 * read), DT_ERR_WRITE. */
dt_err dt_jsonl_cut(const char *path, const dt_kept *kept);

#endif
