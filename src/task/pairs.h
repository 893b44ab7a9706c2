/* pairs.h - shared code of tasks that train on pairs of answers. Private to src/task. */
#ifndef DTRAIN_TASK_PAIRS_H
#define DTRAIN_TASK_PAIRS_H

#include "dtrain/task/task.h"

/** Call in open: opens [data] as pairs of texts of at most seq_len tokens, and reserves memory for a micro-batch even
 *  if no file defines their lengths (--plan). truncate: truncate longer texts; otherwise their pairs are skipped.
 *  no_ties: also skip pairs in which neither text is better. */
void pairs_open(dt_task *t, int64_t seq_len, bool truncate, bool no_ties);

/** Declare a sum and its metric sum / bottom: TASK/NAME in training steps, and TASK/validation_NAME in validations.
 *  Returns the index of the sum. */
int pairs_metric(dt_sums *s, const char *name, dt_sum_kind kind, double unit, const char *bottom);

#endif
