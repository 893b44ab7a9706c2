/* jsonl.h - metrics.jsonl: one JSON object a line. */
#ifndef DTRAIN_REPORT_JSONL_H
#define DTRAIN_REPORT_JSONL_H

#include "dtrain/report.h"
#include "lines.h"

/** Put a record's line into out (cleared first). 9 significant digits; what is not finite becomes null. */
void dt_jsonl_train(dt_record *out, const dt_train_record *rec);
void dt_jsonl_validation(dt_record *out, int64_t step, double loss, const dt_metric *more, int n_more);

/** Rewrite the file, by way of PATH.part and a rename, with the lines that are kept: each training step once, in order
 *  (unless it may have several). Lines that are not whole objects with a step (a torn one, at the end as a rule) go
 *  too. A warning says what was left out, and where a step is missing. A missing file is left missing. DT_ERR_DATA
 *  (cannot read), DT_ERR_WRITE. */
dt_err dt_jsonl_cut(const char *path, const dt_kept *kept);

#endif
