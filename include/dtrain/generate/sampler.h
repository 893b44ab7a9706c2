/* sampler.h - how the next token is sampled from a row of logits. algorithms.md, appendix B. Every function is Local.
 *
 * The transforms, in this order: repetition penalty, temperature, top-k, top-p, min-p. Then a uniform number u, a pure
 * function of (seed, sequence, position), selects the token by the inverse of the cumulative distribution in the order
 * of token ids: the first id v with p_0 + ... + p_v > u. A sequence's tokens therefore depend neither on its batch nor
 * on the rank. */
#ifndef DTRAIN_SAMPLER_H
#define DTRAIN_SAMPLER_H

#include "dtrain/device/device_ops.h"

/** Sampling settings. */
typedef struct dt_sampling {
    /* the largest logit after the repetition penalty (ties: the lowest id); the other fields are ignored */
    bool greedy;
    double temperature; /* logits / temperature; 0 or a value without finite inverse means greedy */
    int64_t top_k;      /* the k most probable tokens (ties: the lower ids); 0: all */
    /* of these the smallest set of most probable tokens that reaches p of their sum, at least one; 1: all */
    double top_p;
    double min_p;              /* of these the tokens with at least min_p times the maximum probability; 0: all */
    double repetition_penalty; /* rho, of tokens seen before: logit / rho if positive, else logit * rho; 1: none */
    uint64_t seed;
} dt_sampling;

/** Everything off, temperature 1. */
dt_sampling dt_sampling_default(void);
/** DT_ERR_USAGE naming a value out of range. */
dt_err dt_sampling_check(const dt_sampling *how);

/** The same settings for a device. */
dt_choice dt_sampling_choice(const dt_sampling *how);

/** The uniform number in [0, 1) of a token: 53 bits of Philox with the counter (sequence, position). */
double dt_sampler_uniform(uint64_t seed, uint64_t sequence, uint64_t position);

#endif
