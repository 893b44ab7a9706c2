/* batch_beta.h - one beta for all pairs of a step, computed from the policy's preferences (Wu et al., "beta-DPO",
 * NeurIPS 2024, arXiv:2407.08639; algorithms.md 3.4). Private to src/task.
 *
 * Symbols  M_i -> gap: x_c - x_r of pair i, M_0 -> mean, sigma -> deviation, rho -> keep, m -> momentum, alpha -> w.
 *
 * A set is a step's pairs, over all ranks and micro-steps. Its beta depends only on values that all ranks share. */
#ifndef DTRAIN_TASK_BATCH_BETA_H
#define DTRAIN_TASK_BATCH_BETA_H

#include "../pair_loss.h"
#include "dtrain/step/step.h"

/** Moments of the gaps of the steps so far. */
typedef struct dt_gap_state {
    double mean, deviation; /* meaningless before the first step */
    int64_t n_steps;
} dt_gap_state;

typedef struct dt_batch_beta {
    double beta, w, keep, momentum;
    uint64_t seed;
    dt_gap_state state; /* after the last applied update; stored in checkpoints */

    /* of the current step */
    dt_gap_state next; /* the next state if the update is applied */
    double value;      /* its beta */
    double share_kept; /* of its pairs */
    double *part;      /* [n_alloc]: factor of a pair's loss: pairs / pairs kept, or 0 */

    int64_t n_alloc; /* pairs */
    double *gap;     /* [n_alloc]: filled before dt_batch_beta_find; NULL: not in use */
    dt_pair_key *key;
} dt_batch_beta;

/** Carve the arrays of n pairs (dt_carve). */
void dt_batch_beta_lay_out(dt_batch_beta *b, int64_t n, void *block, size_t *used);

/** Compute beta from gap [0 .. n_pairs-1]; the first belongs to sample first_sample of the training:
 *
 *     mean      <- m mean      + (1 - m) (mean of the gaps)                   first step: mean of the gaps
 *     deviation <- m deviation + (1 - m) (unbiased deviation of the gaps)     first step: deviation of the gaps
 *     kept       = floor(keep * n_pairs) pairs (at least one), sampled without replacement with probabilities
 *                  exp(-(gap - mean)^2 / (2 deviation^2)), equal if deviation is 0
 *     value      = beta (1 + w (mean of the kept gaps - mean)), at least min(0.001, beta)
 *
 *  With gaps that are not finite the state is unchanged, value is beta, and all pairs are kept. */
void dt_batch_beta_find(dt_batch_beta *b, int64_t n_pairs, int64_t first_sample);
/** Accept the next state: the step's update was applied. */
void dt_batch_beta_keep(dt_batch_beta *b);

/** In open: store its state in checkpoints. Without its items, b is unchanged at a resume. Local. */
void dt_batch_beta_store(dt_batch_beta *b, dt_task *t);

#endif
