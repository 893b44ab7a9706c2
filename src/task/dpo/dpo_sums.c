/* dpo_sums.c - metrics of task dpo (algorithms.md 3.3). The even sequences of a batch are chosen answers, the odd ones
 * rejected answers. Rewards and margins use the beta of the helpful goal. */
#include "dpo.h"
#include "../pair_loss.h"
#include "../pairs.h"
#include <float.h>
#include <math.h>

static void declare_common(dpo_sums *d, dt_sums *s)
{
    d->n_pairs = dt_sums_declare(s, "dpo/pairs", DT_SUM_UNITS, 1);
    d->n_chosen = dt_sums_declare(s, "dpo/tokens_of_chosen", DT_SUM_UNITS, 1);
    d->n_rejected = dt_sums_declare(s, "dpo/tokens_of_rejected", DT_SUM_UNITS, 1);
    d->n_target = dt_sums_declare(s, "dpo/targets", DT_SUM_UNITS, 1);
    d->loss = pairs_metric(s, "loss", DT_SUM_LOSS, 1, "dpo/pairs");
    d->reward[0] = pairs_metric(s, "dpo/rewards/chosen", DT_SUM_LOSS, 1, "dpo/pairs");
    d->reward[1] = pairs_metric(s, "dpo/rewards/rejected", DT_SUM_LOSS, 1, "dpo/pairs");
    d->correct = pairs_metric(s, "dpo/rewards/accuracies", DT_SUM_UNITS, 1, "dpo/pairs");
    d->margin = pairs_metric(s, "dpo/rewards/margins", DT_SUM_LOSS, 1, "dpo/pairs");
    d->logp[0] = pairs_metric(s, "dpo/logps/chosen", DT_SUM_LOSS, 1, "dpo/pairs");
    d->logp[1] = pairs_metric(s, "dpo/logps/rejected", DT_SUM_LOSS, 1, "dpo/pairs");
    d->logit[0] = pairs_metric(s, "dpo/logits/chosen", DT_SUM_LOSS, 1, "dpo/tokens_of_chosen");
    d->logit[1] = pairs_metric(s, "dpo/logits/rejected", DT_SUM_LOSS, 1, "dpo/tokens_of_rejected");
    d->hit = pairs_metric(s, "dpo/mean_token_accuracy", DT_SUM_UNITS, 1, "dpo/tokens_of_chosen");
    d->entropy = pairs_metric(s, "dpo/entropy", DT_SUM_UNITS, DT_ENTROPY_UNIT, "dpo/targets");
    d->beta[DPO_HELPFUL] = dt_sums_metric(s, DT_SHOW_TRAIN, "dpo/beta", DT_SUM_LOSS, "dpo/pairs");
    dt_sums_show(s, DT_SHOW_VALIDATION, "validation_samples", "samples", NULL, NULL);
}

static void declare_harmless(dpo_sums *d, dt_sums *s)
{
    d->delta[DPO_HARMLESS] = pairs_metric(s, "dpo/delta_harmless", DT_SUM_LOSS, 1, "dpo/pairs");
    d->beta[DPO_HARMLESS] = dt_sums_metric(s, DT_SHOW_TRAIN, "dpo/beta_harmless", DT_SUM_LOSS, "dpo/pairs");
    d->goal_loss[DPO_HELPFUL] = pairs_metric(s, "dpo/loss_helpful", DT_SUM_LOSS, 1, "dpo/pairs");
    d->goal_loss[DPO_HARMLESS] = pairs_metric(s, "dpo/loss_harmless", DT_SUM_LOSS, 1, "dpo/pairs");
    d->cost = pairs_metric(s, "dpo/cost", DT_SUM_LOSS, 1, "dpo/pairs");
    d->cost_ema = dt_sums_metric(s, DT_SHOW_TRAIN, "dpo/cost_ema", DT_SUM_REAL, NULL);
    d->lambda = dt_sums_metric(s, DT_SHOW_TRAIN, "dpo/lambda", DT_SUM_REAL, NULL);
}

static void declare_gaps(dpo_sums *d, dt_sums *s)
{
    d->gap_mean = dt_sums_metric(s, DT_SHOW_TRAIN, "dpo/gap_mean", DT_SUM_REAL, NULL);
    d->gap_std = dt_sums_metric(s, DT_SHOW_TRAIN, "dpo/gap_std", DT_SUM_REAL, NULL);
    d->share_kept = dt_sums_metric(s, DT_SHOW_TRAIN, "dpo/frac_kept", DT_SUM_REAL, NULL);
}

/* TRL's metrics of losses without a reference. */
static void declare_alone(dpo *d, dt_sums *s)
{
    d->sums.n_text = dt_sums_declare(s, "dpo/tokens_of_text", DT_SUM_UNITS, 1);
    if (dt_dpo_weight(&d->loss_of, DT_DPO_SFT) > 0)
        d->sums.nll = pairs_metric(s, "dpo/nll_loss", DT_SUM_LOSS, 1, "dpo/tokens_of_text");
    if (!dt_dpo_weight(&d->loss_of, DT_DPO_ORPO)) return;
    d->sums.log_odds_ratio = pairs_metric(s, "dpo/log_odds_ratio", DT_SUM_LOSS, 1, "dpo/pairs");
    d->sums.log_odds = pairs_metric(s, "dpo/log_odds_chosen", DT_SUM_LOSS, 1, "dpo/pairs");
}

/* With only a harmless judge, the helpful goal uses the margins of the data. */
static bool is_judged(const dpo *d) { return d->has_judge[DPO_HELPFUL] || d->has_judge[DPO_HARMLESS]; }

void dpo_declare(const dt_task *t, dpo *d)
{
    declare_common(&d->sums, t->sums);
    if (d->kl_coef > 0) d->sums.kl = pairs_metric(t->sums, "dpo/kl", DT_SUM_LOSS, 1, "dpo/tokens_of_chosen");
    if (d->beta_rule == DPO_BETA_OF_BATCH) declare_gaps(&d->sums, t->sums);
    if (d->alone) declare_alone(d, t->sums);
    if (is_judged(d))
        d->sums.delta[DPO_HELPFUL] = pairs_metric(t->sums, "dpo/delta_helpful", DT_SUM_LOSS, 1, "dpo/pairs");
    if (d->has_judge[DPO_HARMLESS]) declare_harmless(&d->sums, t->sums);
}

static void collect_tokens(dt_task *t, const dt_batch *b, const dt_predictions *p)
{
    const dpo_sums *d = &((const dpo *)t->self)->sums;
    int64_t n_hit = 0, n_chosen = 0, n_rejected = 0;
    double entropy = 0, logit[DT_N_SIDES] = {0};
    for (int32_t s = 0; s < b->n_seq; s++)
        for (int32_t i = dpo_targets_of(b, s).first; i < b->seq_target[s + 1]; i++) {
            entropy += (double)p->entropy[i];
            logit[s % DT_N_SIDES] += (double)p->mean_logit[i];
            n_chosen += s % DT_N_SIDES == 0;
            n_rejected += s % DT_N_SIDES != 0;
            n_hit += s % DT_N_SIDES == 0 && p->hit[i];
        }
    dt_sums_count(t->sums, d->hit, n_hit);
    dt_sums_count(t->sums, d->n_chosen, n_chosen);
    dt_sums_count(t->sums, d->n_rejected, n_rejected);
    dt_sums_add(t->sums, d->entropy, entropy);
    dt_sums_count(t->sums, d->n_target, n_chosen + n_rejected);
    for (int side = 0; side < DT_N_SIDES; side++) dt_sums_add(t->sums, d->logit[side], logit[side]);
}

static void collect_judged(dt_task *t, const dpo_answers *a, const double by_goal[DPO_GOALS])
{
    const dpo *d = t->self;
    const dpo_sums *s = &d->sums;
    if (is_judged(d)) dt_sums_add(t->sums, s->delta[DPO_HELPFUL], a->delta[DPO_HELPFUL]);
    if (!d->has_judge[DPO_HARMLESS]) return;
    dt_sums_add(t->sums, s->delta[DPO_HARMLESS], a->delta[DPO_HARMLESS]);
    dt_sums_add(t->sums, s->beta[DPO_HARMLESS], a->beta[DPO_HARMLESS]);
    for (int goal = 0; goal < DPO_GOALS; goal++) dt_sums_add(t->sums, s->goal_loss[goal], by_goal[goal]);
    dt_sums_add(t->sums, s->cost, a->cost);
}

/* Precomputed log-probabilities come from other batches than the model's, so even equal models differ by rounding. A
 * difference of ratios within a few fp32 units of its operands is not a preference. */
static double rounding_of(const dpo *d, const dpo_answers *a)
{
    return d->precomputed.logp ? 8 * (double)FLT_EPSILON * (fabs(a->pair.logp[0]) + fabs(a->pair.logp[1])) : 0;
}

static void collect_pair(dt_task *t, const dpo_answers *a)
{
    const dpo *d = t->self;
    const dpo_sums *s = &d->sums;
    const double beta = a->beta[DPO_HELPFUL], value[DT_N_SIDES] = {dt_dpo_value_of(&d->loss_of, &a->pair, 0),
                                                                   dt_dpo_value_of(&d->loss_of, &a->pair, 1)};
    const bool of_means = d->alone && dt_dpo_averages(&d->loss_of);
    dt_sums_count(t->sums, s->correct, value[0] - value[1] > rounding_of(d, a));
    dt_sums_add(t->sums, s->margin, beta * (value[0] - value[1]));
    dt_sums_add(t->sums, s->beta[DPO_HELPFUL], beta);
    if (d->kl_coef > 0) dt_sums_add(t->sums, s->kl, a->kl);
    for (int side = 0; side < DT_N_SIDES; side++) {
        dt_sums_add(t->sums, s->reward[side], beta * value[side]);
        dt_sums_add(t->sums, s->logp[side], a->pair.logp[side] / (of_means ? (double)a->pair.n_tok[side] : 1));
    }
}

static void collect_alone(dt_task *t, const dt_batch *b, int64_t k, const dpo_answers *a)
{
    const dpo *d = t->self;
    if (!d->alone) return;
    dt_sums_count(t->sums, d->sums.n_text, b->seq_target[DT_N_SIDES * k + 1] - b->seq_target[DT_N_SIDES * k]);
    if (dt_dpo_weight(&d->loss_of, DT_DPO_SFT) > 0) dt_sums_add(t->sums, d->sums.nll, a->nll);
    if (!dt_dpo_weight(&d->loss_of, DT_DPO_ORPO)) return;
    dt_sums_add(t->sums, d->sums.log_odds_ratio, dt_log_sigmoid(dt_dpo_log_odds(&a->pair)));
    dt_sums_add(t->sums, d->sums.log_odds, dt_dpo_log_odds(&a->pair));
}

void dpo_collect(dt_task *t, const dt_micro *m, const dt_predictions *p)
{
    const dpo *d = t->self;
    const dt_batch *b = m->batch;
    const double per_token = d->pairs_per_token[m->validation];
    double loss = 0, by_goal[DPO_GOALS], slope[DT_N_SIDES];
    for (int64_t k = 0; k < b->n_samples; k++) {
        const dpo_answers a = dpo_pair_of(t, b, k, p);
        loss += dpo_loss_of(d, &a, by_goal, slope) + per_token * dpo_token_loss(d, &a);
        collect_pair(t, &a);
        collect_alone(t, b, k, &a);
        collect_judged(t, &a, by_goal);
    }
    dt_sums_add(t->sums, d->sums.loss, loss);
    collect_tokens(t, b, p);
    dt_sums_count(t->sums, d->sums.n_pairs, b->n_samples);
}
