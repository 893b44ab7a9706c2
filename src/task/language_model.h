/* language_model.h - shared code of training and evaluating a language model. Private to src/task. */
#ifndef DTRAIN_TASK_LANGUAGE_MODEL_H
#define DTRAIN_TASK_LANGUAGE_MODEL_H

#include "dtrain/task/task.h"

/* Functions of a task whose t->self begins with dt_lm_sums. */

/** In open. training: open data.train. nll: as of dt_lm_declare. Local. */
void lm_open(dt_task *t, bool training, const char *nll);
/** The divisor of a step's loss is its sum of weights. Local. */
dt_err lm_begin_step(dt_task *t, int64_t step, const dt_step_counts *counts);
void lm_collect(dt_task *t, const dt_micro *m, const dt_predictions *p);

#endif
