/* language_model.c - pre-training and SFT differ only in which tokens are targets, and the data settles that; so they
 * are one objective. */
#include "dtrain/task.h"
#include <math.h>

static dt_err lm_weights(const dt_objective *o, const dt_batch *b, const float *logp, double inv_norm, float *u)
{
    (void)o, (void)logp;
    for (int32_t t = 0; t < b->n_tok; t++) u[t] = b->target[t] < 0 ? 0.0f : (float)(b->weight[t] * inv_norm);
    return DT_OK;
}

static double perplexity(double loss) { return exp(loss > 700 ? 700 : loss); }

void dt_lm_declare(dt_lm_sums *l, dt_sums *s)
{
    *l = (dt_lm_sums){.sums = s,
                      .loss = dt_sums_declare(s, "loss", DT_SUM_LOSS, 1),
                      .weight = dt_sums_declare(s, "weight", DT_SUM_UNITS, DT_WEIGHT_UNIT),
                      .target = dt_sums_declare(s, "targets", DT_SUM_UNITS, 1),
                      .hit = dt_sums_declare(s, "hits", DT_SUM_UNITS, 1),
                      .entropy = dt_sums_declare(s, "entropy", DT_SUM_UNITS, DT_ENTROPY_UNIT),
                      .n_tok = dt_sums_declare(s, "tokens", DT_SUM_UNITS, 1),
                      .n_samples = dt_sums_declare(s, "samples", DT_SUM_UNITS, 1)};
    dt_sums_show(s, DT_SHOW_TRAIN, "loss", "loss", "weight", NULL);
    dt_sums_show(s, DT_SHOW_TRAIN, "accuracy", "hits", "targets", NULL);
    dt_sums_show(s, DT_SHOW_TRAIN, "entropy", "entropy", "targets", NULL);
    dt_sums_show(s, DT_SHOW_VALIDATION, "validation_loss", "loss", "weight", NULL);
    dt_sums_show(s, DT_SHOW_VALIDATION, "perplexity", "loss", "weight", perplexity);
    dt_sums_show(s, DT_SHOW_VALIDATION, "validation_accuracy", "hits", "targets", NULL);
    dt_sums_show(s, DT_SHOW_VALIDATION, "validation_entropy", "entropy", "targets", NULL);
    dt_sums_show(s, DT_SHOW_VALIDATION, "validation_targets", "targets", NULL, NULL);
    dt_sums_show(s, DT_SHOW_VALIDATION, "validation_samples", "samples", NULL, NULL);
}

static void lm_metrics(const dt_objective *o, const dt_batch *b, const float *logp, const uint8_t *hit,
                       const float *entropy, const dt_lm_sums *l)
{
    (void)o;
    double loss = 0, uncertain = 0; /* one micro-batch in the order of its tokens: the same on whichever rank it is */
    int64_t n_hit = 0;
    for (int32_t t = 0; t < b->n_tok; t++) {
        if (b->target[t] < 0) continue;
        loss -= (double)b->weight[t] * logp[t];
        n_hit += hit[t];
        uncertain += (double)entropy[t];
    }
    dt_sums_add(l->sums, l->loss, loss);
    dt_sums_add(l->sums, l->entropy, uncertain);
    dt_sums_count(l->sums, l->weight, b->weight_fixed);
    dt_sums_count(l->sums, l->target, b->n_target);
    dt_sums_count(l->sums, l->hit, n_hit);
    dt_sums_count(l->sums, l->n_tok, b->n_tok);
    dt_sums_count(l->sums, l->n_samples, b->n_samples);
}

const dt_objective dt_objective_lm = {
    .name = "lm", .weights_known = true, .weights = lm_weights, .metrics = lm_metrics};
