/* task.h - the list of tasks, and metrics common to language models. A task is defined in step.h. */
#ifndef DTRAIN_TASK_H
#define DTRAIN_TASK_H

#include "dtrain/step/step.h"

/** All tasks; the last element is NULL. */
extern const dt_task_ops *const dt_tasks[];
/** The task with this value of run.task; NULL: none. Local. */
const dt_task_ops *dt_task_find(const char *name);

/* ---- language models --------------------------------------------------------------------------------------------- */

/** Indices (dt_sums_declare) of the sums of language models, over target tokens. */
typedef struct dt_lm_sums {
    int nll, weight; /* sums of weight * -logp, in nats, and of weights, in units of DT_WEIGHT_UNIT */
    /* nll, the sum of weight * divergence from a reference, or without a reference that of weight * p * -logp */
    int loss;
    int target, hit; /* number of target tokens, and of those that were the most probable token */
    int entropy;     /* of the predictions, nats in units of DT_ENTROPY_UNIT */
} dt_lm_sums;
#define DT_WEIGHT_UNIT 0x1p-20
#define DT_ENTROPY_UNIT 0x1p-24
/** Declare these sums and their metrics: "loss" (nats per unit of weight), "accuracy", "entropy"; for validations
 *  "validation_loss", "perplexity", ... The sum "samples" is declared already. nll: the metric of -logp if it is not
 *  the loss; NULL: it is. Local; errors as dt_sums_declare. */
void dt_lm_declare(dt_lm_sums *l, dt_sums *sums, const char *nll);
/** Add this rank's micro-batch b with its predictions to the sums. Local. */
void dt_lm_collect(const dt_lm_sums *l, dt_sums *sums, const dt_batch *b, const dt_predictions *p);

#define DT_TASK_TABLE(name) extern const dt_task_ops dt_task_##name;
DT_TASK_LIST(DT_TASK_TABLE)

#endif
