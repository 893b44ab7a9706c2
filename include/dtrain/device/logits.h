/* logits.h - a row of logits on the host: sums of exponentials, and the choice of a token. Computed in double and in a
 * fixed order: the same bits on every machine. These functions define the result of draw_tokens on every device; the
 * sampler uses them too. Every function is Local.
 *
 * A choice applies repetition penalty, temperature, top-k, top-p and min-p, in this order. Then a uniform number u in
 * [0, 1) selects the token by the inverse of the cumulative distribution in the order of ids: the first id v with p_0 +
 * ... + p_v > u. algorithms.md, appendix B. */
#ifndef DTRAIN_LOGITS_H
#define DTRAIN_LOGITS_H

#include "dtrain/device/device_ops.h"

/** out[i] = e^(scale * (x[i] - top)) for x[i] <= top, scale > 0, with a relative error below 4e-16; 0 if the result
 *  would be below 2^-1022. */
void dt_logits_exp(const float *x, int64_t n, double top, double scale, double *out);

/** The lowest id of the largest of n logits; -1 if one is NaN or +inf, or all are -inf. */
int64_t dt_logits_first_best(const float *x, int64_t n);

/** log(sum over v of e^(scale * logits[v])): scale * logits[t] minus it is the log-probability of t at the temperature
 *  1/scale. Not finite if a logit is +inf or NaN. */
double dt_logits_log_sum_exp(const float *logits, int64_t n, double scale);

/** Tokens that may be sampled, in the caller's scratch: ascending ids, and unnormalised probabilities, indexed by
 *  id. */
typedef struct dt_token_weights {
    const int32_t *id; /* [n] */
    int64_t n;
    const double *weight; /* [vocabulary] */
} dt_token_weights;

/** Bytes of scratch for a vocabulary, aligned as by malloc; its content is undefined. */
size_t dt_token_weights_scratch(int64_t n_vocab);
/** Compute the allowed ids that remain after the transforms of how, and their weights; greedy: one id. allowed: bit v %
 *  32 of allowed[v / 32]; NULL: all. seen: likewise; NULL: none. False: an allowed logit is NaN or +inf, or none is
 *  above -inf. */
bool dt_token_weights_of(const dt_choice *how, const float *logits, const uint32_t *allowed, const uint32_t *seen,
                         int64_t n_vocab, void *scratch, dt_token_weights *w);
/** Sum of the weights, in the order of ids. */
double dt_token_weights_sum(const dt_token_weights *w);
/** The token that u in [0, 1) selects. */
int32_t dt_token_weights_draw(const dt_token_weights *w, double u);

#endif
