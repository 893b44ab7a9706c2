/* reference.h - the reference of a policy: a frozen model that says how probable the targets of a task's batches are.
 * Private to src/task. When it works, and how it is kept: scorer.h.
 *
 * It may follow the policy (TR-DPO, arXiv 2404.09656): then it is in checkpoints, as the model "reference". */
#ifndef DTRAIN_TASK_REFERENCE_H
#define DTRAIN_TASK_REFERENCE_H

#include "dtrain/scorer.h"

/** {0} to start from. */
typedef struct dt_reference {
    dt_scorer scorer;
    float *logp;        /* [max_tok] of the last batch's targets */
    int64_t sync_steps; /* it follows every so many steps; 0: it does not */
    double mixup;
    void *chunk; /* of both models' parameters, on their way */
    void *block;
    size_t nbytes;
} dt_reference;

/** In open, when t->model_opt is as wide as the batches, and asks for divergences (DT_HEAD_DIVERGENCE) if they are from
 *  this model: it is t->reference then. Where adapters alone are trained, of the model at this path, it is that model
 *  without them; or, where it starts with adapters (lora.path, a checkpoint that has them), a copy with those. path
 *  NULL, or "" in a plan: one like the model in training. What is wrong is returned, without the key. Local. */
dt_err dt_reference_open(dt_reference *r, dt_task *t, const char *path);
/** After it, and once only: every so many steps, reference <- mixup policy + (1 - mixup) reference, in fp32 and then
 *  rounded to its type. DT_ERR_DATA: it has another shape than the model in training. Local. */
dt_err dt_reference_follow(dt_reference *r, dt_task *t, int64_t sync_steps, double mixup);
/** Add what it holds. Local. */
dt_err dt_reference_plan(const dt_reference *r, const dt_task *t, dt_memory *memory);
/** In begin. Collective, agreed. */
dt_err dt_reference_begin(dt_reference *r, dt_task *t);
void dt_reference_close(dt_reference *r, dt_ledger *ledger); /* safe on {0} */

/** The batch's log-probabilities into r->logp, 0 where there is no target. Collective. */
dt_err dt_reference_score(dt_reference *r, dt_task *t, const dt_batch *b);
/** The same into out: a dt_rollout_scorer, reference the dt_reference. */
dt_err dt_reference_scores(void *reference, dt_task *t, const dt_batch *b, float *out);
/** In after_step: follow, where it is time. Collective. */
dt_err dt_reference_after_step(dt_reference *r, dt_task *t, int64_t step);

#endif
