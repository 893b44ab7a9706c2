/* dpo_pairs.c - evaluates a pair from its log-probabilities: ratios, margins and betas, its loss and the weights of its
 * tokens. */
#include "dpo.h"
#include "../pair_loss.h"
#include <math.h>
#include <string.h>

dpo_targets dpo_targets_of(const dt_batch *b, int64_t s)
{
    const int32_t n_prompt = s % DT_N_SIDES == 0 ? dt_labels_of(b)->n_prompt[s / DT_N_SIDES] : 0;
    return (dpo_targets){b->seq_target[s] + n_prompt, b->seq_target[s + 1]};
}

/* Weight of the n-th token of an answer: ld_alpha beyond the length of the other answer, else 1; with dpo.average
 * divided by the number of tokens. */
static double share_of(const dt_config *cfg, const dpo_answers *a, int side, int64_t n)
{
    return (n < a->shorter ? 1 : cfg->dpo_ld_alpha) / (cfg->dpo_average ? (double)a->pair.n_tok[side] : 1);
}

static double kl_of(const dpo *d, const dt_predictions *p, int32_t i, double off)
{
    if (!d->full_kl) return dt_k3(off);
    return p->kl ? (double)p->kl[i] : 0;
}

static void add_up(const dt_task *t, const dt_batch *b, int64_t k, int side, const dt_predictions *p, dpo_answers *a)
{
    const dpo *d = t->self;
    const float *const of_reference = dpo_reference_logp(d);
    const dpo_targets answer = dpo_targets_of(b, DT_N_SIDES * k + side);
    int64_t n = 0;
    double aligned = 0;
    for (int32_t i = answer.first; i < answer.end; i++) {
        const double share = share_of(t->cfg, a, side, n++), logp = (double)p->logp[i],
                     reference = of_reference ? (double)of_reference[i] : 0;
        a->pair.ratio[side] += share * (logp - reference);
        a->pair.logp[side] += share * logp;
        a->sum_logp[side] += logp;
        if (side == 0 && d->kl_coef > 0) a->kl += kl_of(d, p, i, reference - logp);
        if (p->log_sum_squares) aligned += logp - (double)p->log_sum_squares[i];
    }
    if (p->log_sum_squares) a->weight *= exp(aligned / (double)a->pair.n_tok[side]);
}

/* Beta of a pair with margin delta (MM-DPO). With DPO_BETA_OF_BATCH a validation uses dpo.beta. */
static double beta_of(const dt_task *t, double delta)
{
    const dpo *d = t->self;
    const dt_config *cfg = t->cfg;
    const double w = d->beta_w;
    if (d->beta_rule == DPO_BETA_OF_BATCH)
        return d->part == DT_OF_TRAINING && d->batch_beta.gap ? d->batch_beta.value : cfg->dpo_beta;
    if (d->beta_rule == DPO_BETA_OF_FACTOR) return fmax(cfg->dpo_beta * (1 + w * delta), fmin(1e-3, cfg->dpo_beta));
    const double size = strcmp(cfg->dpo_negative_margin, "abs") == 0 ? fabs(delta) : fmax(delta, 0);
    return cfg->dpo_beta * (1 + w * -expm1(-cfg->dpo_beta_k * size));
}

static double mean_logp(const dpo_answers *a, int side) { return a->sum_logp[side] / (double)a->pair.n_tok[side]; }

static void judge(const dt_task *t, const dt_batch *b, int64_t k, dpo_answers *a)
{
    const dpo *d = t->self;
    a->delta[DPO_HELPFUL] = (double)dt_labels_of(b)->margin[k];
    for (int goal = 0; goal < DPO_GOALS; goal++) {
        const float *score = d->judge[goal].score + DT_N_SIDES * k;
        if (d->has_judge[goal]) a->delta[goal] = (double)score[0] - (double)score[1];
        a->beta[goal] = beta_of(t, a->delta[goal]);
    }
    if (!d->has_judge[DPO_HARMLESS]) return;
    const float *safety = d->judge[DPO_HARMLESS].score + DT_N_SIDES * k;
    const double first = dt_sigmoid(mean_logp(a, 0) - mean_logp(a, 1));
    a->cost = -first * (double)safety[0] - (1 - first) * (double)safety[1];
}

dpo_answers dpo_pair_of(const dt_task *t, const dt_batch *b, int64_t k, const dt_predictions *p)
{
    const dpo *d = t->self;
    dpo_answers a = {.weight = 1, .part = 1};
    for (int side = 0; side < DT_N_SIDES; side++) {
        const dpo_targets answer = dpo_targets_of(b, DT_N_SIDES * k + side);
        a.pair.n_tok[side] = answer.end - answer.first;
    }
    a.shorter = dt_min_i64(a.pair.n_tok[0], a.pair.n_tok[1]);
    for (int side = 0; side < DT_N_SIDES; side++) add_up(t, b, k, side, p, &a);
    a.nll = -a.sum_logp[0];
    for (int32_t i = b->seq_target[DT_N_SIDES * k]; i < dpo_targets_of(b, DT_N_SIDES * k).first; i++)
        a.nll -= (double)p->logp[i];
    if (d->aot.number) memcpy(a.pair.partner, d->aot.partner[t->first_sample + k], sizeof a.pair.partner);
    if (d->batch_beta.gap && d->part == DT_OF_TRAINING) a.part = d->batch_beta.part[t->first_sample + k];
    judge(t, b, k, &a);
    return a;
}

double dpo_loss_of(const dpo *d, const dpo_answers *a, double by_goal[DPO_GOALS], double slope[DT_N_SIDES])
{
    const double weight = a->weight * a->part;
    double other[DT_N_SIDES] = {0}, helpful = 1, harmless = 0;
    by_goal[DPO_HELPFUL] = weight * dt_dpo_loss_of(&d->loss_of, a->beta[DPO_HELPFUL], &a->pair, slope);
    by_goal[DPO_HARMLESS] = 0;
    if (d->has_judge[DPO_HARMLESS]) {
        const double lambda = dt_multiplier_value(&d->multiplier);
        helpful = 1 / (1 + lambda), harmless = 1 - helpful;
        by_goal[DPO_HARMLESS] = weight * dt_dpo_loss_of(&d->loss_of, a->beta[DPO_HARMLESS], &a->pair, other);
    }
    for (int side = 0; side < DT_N_SIDES; side++)
        slope[side] = weight * (helpful * slope[side] + harmless * other[side]);
    return helpful * by_goal[DPO_HELPFUL] + harmless * by_goal[DPO_HARMLESS];
}

double dpo_token_loss(const dpo *d, const dpo_answers *a)
{
    return d->kl_coef * a->kl + a->weight * dt_dpo_weight(&d->loss_of, DT_DPO_SFT) * a->nll;
}

static void weigh_side(const dt_task *t, const dt_batch *b, int64_t k, int side, const dpo_answers *a,
                       const dt_predictions *p, double slope, const dt_weights *w)
{
    const dpo *d = t->self;
    const dpo_targets answer = dpo_targets_of(b, DT_N_SIDES * k + side);
    /* weights of the terms that are means over the tokens of chosen answers */
    const double sft = side == 0 ? a->weight * dt_dpo_weight(&d->loss_of, DT_DPO_SFT) * d->inv_chosen : 0,
                 kl = side == 0 ? d->kl_coef * d->inv_chosen : 0;
    int64_t n = 0;
    for (int32_t i = b->seq_target[DT_N_SIDES * k + side]; i < answer.first; i++) w->u[i] = (float)sft;
    for (int32_t i = answer.first; i < answer.end; i++) {
        double u = -slope * share_of(t->cfg, a, side, n++) + sft;
        if (kl > 0 && !d->full_kl) u -= kl * dt_k3_slope((double)dpo_reference_logp(d)[i] - (double)p->logp[i]);
        w->u[i] = (float)u;
        if (w->kl) w->kl[i] = (float)kl;
    }
}

void dpo_weigh(const dt_task *t, const dt_batch *b, int64_t k, const dpo_answers *a, const dt_predictions *p,
               double inv_norm, const dt_weights *w)
{
    double by_goal[DPO_GOALS], slope[DT_N_SIDES];
    dpo_loss_of(t->self, a, by_goal, slope);
    for (int side = 0; side < DT_N_SIDES; side++) weigh_side(t, b, k, side, a, p, slope[side] * inv_norm, w);
}
