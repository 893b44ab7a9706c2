/* jsonl.h - metrics.jsonl: one JSON object a line. */
#ifndef DTRAIN_REPORT_JSONL_H
#define DTRAIN_REPORT_JSONL_H

#include "dtrain/report.h"
#include "record.h"

/** Put a record's line into out (cleared first). 9 significant digits; what is not finite becomes null. flops_per_token
 *  0: leave the rate out. */
void dt_jsonl_train(dt_record *out, const dt_train_record *rec, double flops_per_token);
void dt_jsonl_validation(dt_record *out, int64_t step, double loss, const dt_metric *more, int n_more);

/** Rewrite the file, by way of PATH.part and a rename, with the lines of steps up to last_step alone, and with
 *  redo_validation without the validation of last_step. Lines that are not whole objects with a step (a torn one, at
 *  the end as a rule) go too; *n_bad counts them. A missing file is left missing. DT_ERR_DATA (cannot read),
 *  DT_ERR_WRITE. */
dt_err dt_jsonl_cut(const char *path, int64_t last_step, bool redo_validation, int64_t *n_bad);

#endif
