/* language_model.h - shared code of training and evaluating a language model. Private to src/task. */
#ifndef DTRAIN_TASK_LANGUAGE_MODEL_H
#define DTRAIN_TASK_LANGUAGE_MODEL_H

#include "dtrain/task/task.h"

typedef struct language_model {
    dt_lm_sums sums;
    dt_micro step; /* of the current step, all but the batch */
} language_model;

void lm_open(dt_task *t);
void lm_collect(dt_task *t, const dt_micro *m, const dt_predictions *p);
/** A micro-batch of t->valid: forward and metrics. Does not use language_model. Collective. */
dt_err lm_evaluate(dt_task *t, int64_t micro);

#endif
