/* logits.h - a row of logits on the host: sums of exponentials, and the choice of a token. Double, in fixed orders: the
 * same bits on every machine. What every device's draw_tokens is held to, and what the sampler draws with.
 *
 * A choice: repetition penalty, temperature, then top-k, top-p and min-p, each of what the one before it left; then one
 * uniform number u in [0, 1) picks the token by the inverse of the cumulative distribution in the order of ids: the
 * first id v whose p_0 + ... + p_v exceeds u. algorithms.md, appendix B. */
#ifndef DTRAIN_LOGITS_H
#define DTRAIN_LOGITS_H

#include "dtrain/device/device_ops.h"

/** out[i] = e^(scale * (x[i] - top)) for x[i] <= top, scale > 0; relative error below 4e-16, 0 where the result would
 *  be below 2^-1022. */
void dt_logits_exp(const float *x, int64_t n, double top, double scale, double *out);

/** The lowest id of the largest of n logits; -1 when one is NaN or +inf, or all are -inf. */
int64_t dt_logits_first_best(const float *x, int64_t n);
/** The same. DT_ERR_NONFINITE naming what there is in its place. */
dt_err dt_logits_best(const float *x, int64_t n, int32_t *best);

/** log(sum over v of e^(scale * logits[v])): scale * logits[t] minus it is the log-probability of t at the temperature
 *  1/scale. +inf or NaN among the logits give no finite number. */
double dt_logits_log_sum_exp(const float *logits, int64_t n, double scale);

/** What may be drawn, in the scratch that it was made in: ids ascending, and weights, by id, that are probabilities but
 *  for their sum. */
typedef struct dt_token_weights {
    const int32_t *id; /* [n] */
    int64_t n;
    const double *weight; /* [vocabulary] */
} dt_token_weights;

/** Bytes of scratch for a vocabulary, aligned as by malloc; the content may be anything. */
size_t dt_token_weights_scratch(int64_t n_vocab);
/** The ids that how leaves of the allowed ones, bit v % 32 of allowed[v / 32] (NULL: all), and their weights; greedy:
 *  one id. seen: likewise (NULL: none). false when an allowed logit is NaN or +inf, or no allowed one is above -inf. */
bool dt_token_weights_of(const dt_choice *how, const float *logits, const uint32_t *allowed, const uint32_t *seen,
                         int64_t n_vocab, void *scratch, dt_token_weights *w);
double dt_token_weights_sum(const dt_token_weights *w);
int32_t dt_token_weights_draw(const dt_token_weights *w, double u);

#endif
