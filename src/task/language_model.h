/* language_model.h - shared code of training and evaluating a language model. Private to src/task. */
#ifndef DTRAIN_TASK_LANGUAGE_MODEL_H
#define DTRAIN_TASK_LANGUAGE_MODEL_H

#include "dtrain/task/task.h"

typedef struct language_model {
    dt_lm_sums sums;
    dt_micro step; /* of the current step, all but the batch */
} language_model;

/** training: open data.train. nll: as of dt_lm_declare. */
void lm_open(dt_task *t, bool training, const char *nll);
/** A micro-batch of t->train. */
dt_err lm_next_micro(dt_task *t, int64_t step, int micro, dt_micro *m);
void lm_collect(dt_task *t, const dt_micro *m, const dt_predictions *p);
/** A micro-batch of t->valid: forward and metrics. Does not use language_model. Collective. */
dt_err lm_evaluate(dt_task *t, int64_t micro);

#endif
