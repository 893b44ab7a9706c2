/* task.h - what a step optimises: an objective sees log-probabilities and returns weights (architecture.md, idea 3).
 *
 * Every language-model objective is a function L of token log-probabilities. It gives u[t] = -dL/dlogp_t; the head
 * turns that into gradients. Where u does not depend on logp (pre-training, SFT) head forward and backward are one
 * pass. A new algorithm is a new dt_objective. */
#ifndef DTRAIN_TASK_H
#define DTRAIN_TASK_H

#include "dtrain/model.h"

/** Sums over target tokens, exact so that they are free of order: added over micro-steps and ranks, then divided once.
 *  Fixed-point units: weights 2^-20 (DT_WEIGHT_UNIT); the loss of a micro-batch is split, what is below 16 in units of
 *  2^-28 (DT_LOSS_UNIT) and the rest in units of 16 (DT_LOSS_HIGH), so that neither a diverging loss nor 10^19 nats of
 *  validation overflow. */
#define DT_LOSS_UNIT 0x1p-28
#define DT_LOSS_HIGH 0x1p4
#define DT_WEIGHT_UNIT 0x1p-20
#define DT_ENTROPY_UNIT 0x1p-24
typedef struct dt_lm_sums {
    int64_t loss_fixed, loss_high; /* sum of weight * -logp */
    int64_t weight_fixed;          /* sum of weights */
    int64_t n_target, n_hit, n_tok, n_samples;
    int64_t entropy_fixed; /* sum over targets of the prediction's entropy, in DT_ENTROPY_UNIT */
    /* a loss that is no number, or beyond 2^50 a micro-batch, was met (and left out of the sums) */
    bool nonfinite;
} dt_lm_sums;

/** The sums as counts of a vote (comm.h), which adds them over the ranks, and back. */
void dt_lm_sums_to_counts(const dt_lm_sums *sums, int64_t *counts);
dt_lm_sums dt_lm_sums_from_counts(const int64_t *counts, bool nonfinite);

/** The mean loss per unit of weight; 0 when there is no weight, NAN when nonfinite. */
double dt_lm_mean_loss(const dt_lm_sums *sums);
/** Share of the targets that were the most probable token, and the mean entropy of the predictions (nats); 0 without
 *  targets. */
double dt_lm_accuracy(const dt_lm_sums *sums);
double dt_lm_mean_entropy(const dt_lm_sums *sums);

typedef struct dt_objective dt_objective;
struct dt_objective {
    const char *name;
    bool weights_known; /* u depends on the batch alone: weights() gets logp NULL */
    /** Fill u[n_tok]; inv_norm is 1 / (sum of weights over the whole optimizer step, all ranks). Local. */
    dt_err (*weights)(const dt_objective *o, const dt_batch *b, const float *logp, double inv_norm, float *u);
    /** Add the batch's metrics to sums, from logp, hit and entropy [n_tok]. Local. */
    void (*metrics)(const dt_objective *o, const dt_batch *b, const float *logp, const uint8_t *hit,
                    const float *entropy, dt_lm_sums *sums);
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
                          int64_t step, dt_lm_sums *sums, dt_phase *phase);
/** Forward and metrics alone. */
dt_err dt_task_evaluate(dt_model *m, const dt_objective *o, const dt_batch *b, dt_task_buffers *t, dt_lm_sums *sums,
                        dt_phase *phase);

#endif
