/* language_model.c - pre-training and SFT differ only in which tokens are targets, and the data settles that; so they are one objective. */
#include "dtrain/task.h"
#include <math.h>

static dt_err lm_weights(const dt_objective *o, const dt_batch *b, const float *logp, double inv_norm, float *u)
{
    (void)o, (void)logp;
    for (int32_t t = 0; t < b->n_tok; t++) u[t] = b->target[t] < 0 ? 0.0f : (float)(b->weight[t] * inv_norm);
    return DT_OK;
}

static void lm_metrics(const dt_objective *o, const dt_batch *b, const float *logp, const uint8_t *hit, dt_lm_sums *sums)
{
    (void)o;
    double loss = 0; /* one micro-batch in the order of its tokens: the same on whichever rank it is */
    for (int32_t t = 0; t < b->n_tok; t++) {
        if (b->target[t] < 0) continue;
        loss -= (double)b->weight[t] * logp[t];
        sums->n_hit += hit[t];
    }
    if (isfinite(loss)) sums->loss_fixed += llrint(loss / DT_LOSS_UNIT);
    else sums->nonfinite = true;
    sums->weight_fixed += b->weight_fixed;
    sums->n_target += b->n_target;
    sums->n_tok += b->n_tok;
    sums->n_samples += b->n_samples;
}

const dt_objective dt_objective_lm = {.name = "lm", .weights_known = true, .weights = lm_weights, .metrics = lm_metrics};
