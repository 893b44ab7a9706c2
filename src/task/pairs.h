/* pairs.h - shared code of tasks that train on answers. Private to src/task. */
#ifndef DTRAIN_TASK_PAIRS_H
#define DTRAIN_TASK_PAIRS_H

#include "dtrain/task/task.h"

/** Call in open: opens [data] as `what` says (training and validation are set), and reserves memory for a micro-batch
 *  even if no file defines its lengths (--plan). n_texts: of a sample. */
void answers_open(dt_task *t, const dt_task_data *what, int n_texts);

/** dt_task_ops.check: data.train and model.path are required, except for --plan. Local. */
void answers_check_policy(dt_task *t);

/** Sum x [n] over the axis data. Each value is 0 on all its ranks but one, so the sums are exact for any number of
 *  ranks. Collective on the axis. */
dt_err answers_add_up(const dt_task *t, double *x, int64_t n);

/** Declare a sum and its metric sum / bottom: TASK/NAME in training steps, and TASK/validation_NAME in validations.
 *  Returns the index of the sum. */
int pairs_metric(dt_sums *s, const char *name, dt_sum_kind kind, double unit, const char *bottom);

#endif
