/* language_model.c - pre-training and SFT differ only in which tokens are targets, and the data settles that; so they
 * are one objective. */
#include "dtrain/task.h"
#include <math.h>
#include <string.h>

static dt_err lm_weights(const dt_objective *o, const dt_batch *b, const float *logp, double inv_norm, float *u)
{
    (void)o, (void)logp;
    for (int32_t t = 0; t < b->n_tok; t++) u[t] = b->target[t] < 0 ? 0.0f : (float)(b->weight[t] * inv_norm);
    return DT_OK;
}

/* Both parts of a loss below 2^50 are exact, and a sum of 2^17 such micro-batches still fits. */
static void add_loss(dt_lm_sums *sums, double loss)
{
    if (!(fabs(loss) < 0x1p50)) {
        sums->nonfinite = true;
        return;
    }
    const double high = floor(loss / DT_LOSS_HIGH);
    sums->loss_high += (int64_t)high;
    sums->loss_fixed += llrint((loss - high * DT_LOSS_HIGH) / DT_LOSS_UNIT);
}

double dt_lm_mean_loss(const dt_lm_sums *sums)
{
    if (sums->nonfinite) return NAN;
    const double loss = (double)sums->loss_high * DT_LOSS_HIGH + (double)sums->loss_fixed * DT_LOSS_UNIT;
    return sums->weight_fixed > 0 ? loss / ((double)sums->weight_fixed * DT_WEIGHT_UNIT) : 0;
}

double dt_lm_accuracy(const dt_lm_sums *sums)
{
    return sums->n_target > 0 ? (double)sums->n_hit / (double)sums->n_target : 0;
}

double dt_lm_mean_entropy(const dt_lm_sums *sums)
{
    return sums->n_target > 0 ? (double)sums->entropy_fixed * DT_ENTROPY_UNIT / (double)sums->n_target : 0;
}

void dt_lm_sums_to_counts(const dt_lm_sums *s, int64_t *counts)
{
    const int64_t all[] = {s->loss_fixed, s->loss_high, s->weight_fixed, s->n_target,
                           s->n_hit,      s->n_tok,     s->n_samples,    s->entropy_fixed};
    memcpy(counts, all, sizeof all);
}

dt_lm_sums dt_lm_sums_from_counts(const int64_t *c, bool nonfinite)
{
    return (dt_lm_sums){c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7], nonfinite};
}

static void lm_metrics(const dt_objective *o, const dt_batch *b, const float *logp, const uint8_t *hit,
                       const float *entropy, dt_lm_sums *sums)
{
    (void)o;
    double loss = 0, uncertain = 0; /* one micro-batch in the order of its tokens: the same on whichever rank it is */
    for (int32_t t = 0; t < b->n_tok; t++) {
        if (b->target[t] < 0) continue;
        loss -= (double)b->weight[t] * logp[t];
        sums->n_hit += hit[t];
        uncertain += (double)entropy[t];
    }
    add_loss(sums, loss);
    /* no number: the loss is none, either */
    if (isfinite(uncertain)) sums->entropy_fixed += llrint(uncertain / DT_ENTROPY_UNIT);
    sums->weight_fixed += b->weight_fixed;
    sums->n_target += b->n_target;
    sums->n_tok += b->n_tok;
    sums->n_samples += b->n_samples;
}

const dt_objective dt_objective_lm = {
    .name = "lm", .weights_known = true, .weights = lm_weights, .metrics = lm_metrics};
