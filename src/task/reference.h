/* reference.h - the reference of a policy: a frozen model that computes log-probabilities of a batch's targets. Private
 * to src/task. See scorer.h for the location of its parameters and for the times at which its forward may run.
 *
 * It may follow the policy (TR-DPO, arXiv 2404.09656). Checkpoints then contain it as the model "reference". */
#ifndef DTRAIN_TASK_REFERENCE_H
#define DTRAIN_TASK_REFERENCE_H

#include "dtrain/io/io.h"
#include "dtrain/core/named_arrays.h"
#include "dtrain/step/scorer.h"
#include <string.h>

/** Initialise to {0}. */
typedef struct dt_reference {
    dt_scorer scorer;
    float *logp;        /* [max_tok] of the last batch's targets */
    int64_t sync_steps; /* steps between updates; 0: no updates */
    double mixup;
    int64_t weights[2]; /* for comparison at a resume: dt_hash_parameters, and the type; 0: no comparison */
    void *chunk;        /* staging for parameters of both models, if it follows the policy */
} dt_reference;

/** In open, after t->model_opt covers the batches: add it to the task's parts. r->scorer.name, for messages, may be set
 *  before; NULL: "the reference". With DT_HEAD_DIVERGENCE it becomes
 *  t->reference. If only adapters are trained and path is model.path, the reference is the model in training without
 *  its adapters. If that model starts with adapters (lora.path, or a checkpoint with adapters), the reference is a
 *  frozen copy with them. path NULL, or "" in a plan: a model with the shape of the one in training. A resume compares
 *  its weights with those at the start of the run, unless they follow the policy or have another type now (DT_ERR_BASE:
 *  they differ). Local. Errors of dt_scorer_open, without the key. */
dt_err dt_reference_open(dt_reference *r, dt_task *t, const char *path);
/** Call at most once, after dt_reference_open: every sync_steps steps, reference <- mixup policy + (1 - mixup)
 *  reference, in fp32, then rounded to the reference's type. Local. DT_ERR_DATA: its shape differs from that of the
 *  model in training. DT_ERR_USAGE: it is the model in training without its adapters. */
dt_err dt_reference_follow(dt_reference *r, dt_task *t, int64_t sync_steps, double mixup);
/** In open: both, for the value of [section] reference_path; "": model.path. Errors are added to t->mistakes. Local. */
void dt_reference_open_key(dt_reference *r, dt_task *t, const char *section, const char *value, int64_t sync_steps,
                           double mixup);

/** Compute the batch's log-probabilities into r->logp, 0 without a target. Collective. */
dt_err dt_reference_score(dt_reference *r, dt_task *t, const dt_batch *b);
/** The same into out: a dt_rollout_scorer whose self is the dt_reference. */
dt_err dt_reference_scores(void *reference, dt_task *t, const dt_batch *b, float *out);
/** In after_step: mix, if this step is due. Collective; a local error ends the job. */
dt_err dt_reference_after_step(dt_reference *r, dt_task *t, int64_t step);

#endif
