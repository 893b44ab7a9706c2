/* pairs.h - shared code of tasks that train on pairs of answers. Private to src/task. */
#ifndef DTRAIN_TASK_PAIRS_H
#define DTRAIN_TASK_PAIRS_H

#include "dtrain/task/task.h"

/** Call in open: opens [data] as pairs of texts of at most seq_len tokens, and reserves memory for a micro-batch even
 *  if no file defines their lengths (--plan). truncate: truncate longer texts; otherwise their pairs are skipped.
 *  no_ties: also skip pairs in which neither text is better. */
void pairs_open(dt_task *t, int64_t seq_len, bool truncate, bool no_ties);

/** Display the quotient of two sums, under one name for training steps and another for validations. */
void pairs_show(dt_sums *s, const char *name, const char *validation, const char *top, const char *bottom);

#endif
