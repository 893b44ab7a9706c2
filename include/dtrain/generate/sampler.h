/* sampler.h - how the next token is drawn from a row of logits. algorithms.md, appendix B.
 *
 * The transforms, in this order: repetition penalty, temperature, top-k, top-p, min-p. Then one uniform number u, a
 * pure function of (seed, sequence, position), picks the token by the inverse of the cumulative distribution in the
 * order of token ids: the first id v whose p_0 + ... + p_v exceeds u. So a sequence's tokens depend neither on the
 * batch it runs in nor on the rank. */
#ifndef DTRAIN_SAMPLER_H
#define DTRAIN_SAMPLER_H

#include "dtrain/device/device_ops.h"

typedef struct dt_sampling {
    /* the largest logit (after the repetition penalty), the lowest id on ties; the rest is not looked at */
    bool greedy;
    double temperature; /* logits / temperature; 0, and what has no finite inverse, means greedy */
    int64_t top_k;      /* the k most probable, of equal ones those with lower ids; 0: all */
    /* of those the fewest most probable whose probabilities reach p of their sum, at least one; 1: all */
    double top_p;
    double min_p; /* of those the ones with at least min_p times the probability of the most probable; 0: all */
    double repetition_penalty; /* of tokens seen before: logit / rho when positive, logit * rho otherwise; 1: none */
    uint64_t seed;
} dt_sampling;

/** Everything off, temperature 1. */
dt_sampling dt_sampling_default(void);
/** DT_ERR_USAGE naming what is out of range. */
dt_err dt_sampling_check(const dt_sampling *how);

/** The choice that a device makes. */
dt_choice dt_sampling_choice(const dt_sampling *how);

/** The uniform number in [0, 1) behind a draw: 53 bits of Philox, counter (sequence, position). */
double dt_sampler_uniform(uint64_t seed, uint64_t sequence, uint64_t position);

/** log(sum over v of e^logits[v]), in double: logits[t] minus it is the log-probability of t. +inf or NaN among the
 *  logits give no number. */
double dt_log_sum_exp(const float *logits, int64_t n);

#endif
