/* reference.h - a frozen model that scores the batches of a task: the reference of a policy. Private to src/task.
 *
 * It works in the activations of the model in training, so it has its pass before the training forward of a batch. */
#ifndef DTRAIN_TASK_REFERENCE_H
#define DTRAIN_TASK_REFERENCE_H

#include "dtrain/frozen_model.h"
#include "dtrain/task.h"

typedef struct dt_reference {
    dt_frozen_model frozen;
    dt_model_options opt;
    dt_model *model;
    float *logp; /* [max_tok] of the last batch's targets */
    size_t nbytes;
} dt_reference;

/** In open, when t->model_opt is as wide as the batches: describe the model at path, and make the model in training
 *  lend it what it needs. path NULL: one like that (for --plan). What is wrong is returned, without the key. Local. */
dt_err dt_reference_open(dt_reference *r, dt_task *t, const char *path);
/** Add what it holds. Local. */
dt_err dt_reference_plan(const dt_reference *r, const dt_task *t, dt_memory *memory);
/** In begin. Collective, agreed. */
dt_err dt_reference_begin(dt_reference *r, dt_task *t);
void dt_reference_close(dt_reference *r, dt_ledger *ledger); /* safe on {0} */

/** The batch's log-probabilities into r->logp, 0 where there is no target. Collective. */
dt_err dt_reference_score(dt_reference *r, dt_task *t, const dt_batch *b);

#endif
