/* task.h - what a step optimises: an objective sees log-probabilities and returns weights (architecture.md, idea 3).
 *
 * Every language-model objective is a function L of token log-probabilities. It gives u[t] = -dL/dlogp_t; the head
 * turns that into gradients. Where u does not depend on logp (pre-training, SFT) head forward and backward are one
 * pass. A new algorithm is a new dt_objective. */
#ifndef DTRAIN_TASK_H
#define DTRAIN_TASK_H

#include "dtrain/model.h"
#include "dtrain/sums.h"

/** What a language model counts: of target tokens, but for `tokens` and `samples`. */
typedef struct dt_lm_sums {
    dt_sums *sums;
    int loss, weight;     /* weight * -logp; weights, in 2^-20 */
    int target, hit;      /* targets; those that were the most probable token */
    int entropy;          /* of the predictions, in 2^-24 */
    int n_tok, n_samples; /* "tokens", "samples" */
} dt_lm_sums;
#define DT_WEIGHT_UNIT 0x1p-20
#define DT_ENTROPY_UNIT 0x1p-24
/** Declare them, and what is shown: "loss" (per unit of weight), "accuracy", "entropy"; of a validation
 *  "validation_loss", "perplexity", ... */
void dt_lm_declare(dt_lm_sums *l, dt_sums *sums);

typedef struct dt_objective dt_objective;
struct dt_objective {
    const char *name;
    bool weights_known; /* u depends on the batch alone: weights() gets logp NULL */
    /** Fill u[n_tok]; inv_norm is 1 / (sum of weights over the whole optimizer step, all ranks). Local. */
    dt_err (*weights)(const dt_objective *o, const dt_batch *b, const float *logp, double inv_norm, float *u);
    /** Add the batch's metrics to sums, from logp, hit and entropy [n_tok]. Local. */
    void (*metrics)(const dt_objective *o, const dt_batch *b, const float *logp, const uint8_t *hit,
                    const float *entropy, const dt_lm_sums *sums);
};

/** Pre-training and SFT: L = -(1/N) sum over targets of weight_t logp_t, N the sum of weights of the step
 *  (algorithms.md 1.3). */
extern const dt_objective dt_objective_lm;

/** Host arrays of one micro-batch, allocated once. */
typedef struct dt_task_buffers {
    float *u, *logp, *entropy;
    uint8_t *hit;
    int32_t max_tok;
} dt_task_buffers;
dt_err dt_task_buffers_alloc(dt_task_buffers *t, int32_t max_tok, dt_ledger *ledger);
void dt_task_buffers_free(dt_task_buffers *t, dt_ledger *ledger);
size_t dt_task_buffers_nbytes(int32_t max_tok); /* for the plan */

/** One micro-step: forward, weights, head, backward; also with an empty batch. Collective inside (the units' acquire
 *  and release). */
dt_err dt_task_micro_step(dt_model *m, const dt_objective *o, const dt_batch *b, dt_task_buffers *t, double inv_norm,
                          int64_t step, const dt_lm_sums *sums, dt_phase *phase);
/** Forward and metrics alone. */
dt_err dt_task_evaluate(dt_model *m, const dt_objective *o, const dt_batch *b, dt_task_buffers *t,
                        const dt_lm_sums *sums, dt_phase *phase);

#endif
