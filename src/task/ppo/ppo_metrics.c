/* ppo_metrics.c - metrics of PPO, under TRL's names (algorithms.md 4.6). Ratios are summed minus 1: their variance is
 * much smaller than 1 and would be lost to rounding in a difference of large sums. */
#include "ppo.h"
#include <math.h>

static const char *const number_names[PPO_N_NUMBERS] = {
    [PPO_KL] = "ppo/objective/kl",
    [PPO_ENTROPY] = "ppo/objective/entropy",
    [PPO_NON_SCORE] = "ppo/objective/non_score_reward",
    [PPO_RLHF] = "ppo/objective/rlhf_reward",
    [PPO_SCORES] = "ppo/objective/scores",
    [PPO_EOS] = "ppo/val/num_eos_tokens",
    [PPO_KL_COEF] = "ppo/kl_coef",
    [PPO_COSTS] = "ppo/objective/costs",
    [PPO_EPISODE_COST] = "ppo/episode_cost",
    [PPO_LAMBDA] = "ppo/lambda",
};

static const char *const value_names[PPO_MAX_CRITICS][2] = {{"ppo/loss/value", "ppo/val/clipfrac"},
                                                            {"ppo/loss/cost_value", "ppo/val/cost_clipfrac"}};

static double plus_one(double x) { return x + 1; }

static int metric(dt_sums *s, const char *name, dt_sum_kind kind, const char *bottom)
{
    return dt_sums_metric(s, DT_SHOW_TRAIN, name, kind, bottom);
}

void ppo_declare(dt_task *t)
{
    ppo *p = ppo_of(t);
    dt_sums *s = t->sums;
    p->sums.n_tok = dt_sums_declare(s, "ppo/tokens", DT_SUM_UNITS, 1);
    p->sums.entropy = dt_sums_declare(s, "ppo/entropies", DT_SUM_UNITS, DT_ENTROPY_UNIT);
    p->sums.ratio = dt_sums_declare(s, "ppo/ratios_less_1", DT_SUM_LOSS, 1);
    p->sums.ratio_squares = dt_sums_declare(s, "ppo/ratios_less_1_squared", DT_SUM_LOSS, 1);
    p->sums.n_states = dt_sums_declare(s, "ppo/states", DT_SUM_UNITS, 1);
    p->sums.loss = metric(s, "loss", DT_SUM_LOSS, "ppo/tokens");
    p->sums.policy = metric(s, "ppo/loss/policy", DT_SUM_LOSS, "ppo/tokens");
    for (int i = 0; i < 1 + p->with_costs; i++) {
        p->sums.value[i] = metric(s, value_names[i][0], DT_SUM_LOSS, "ppo/states");
        p->sums.value_clipped[i] = metric(s, value_names[i][1], DT_SUM_UNITS, "ppo/states");
    }
    p->sums.approxkl = metric(s, "ppo/policy/approxkl", DT_SUM_LOSS, "ppo/tokens");
    p->sums.clipped = metric(s, "ppo/policy/clipfrac", DT_SUM_UNITS, "ppo/tokens");
    dt_sums_show(s, DT_SHOW_TRAIN, "ppo/policy/entropy", "ppo/entropies", "ppo/tokens", NULL);
    dt_sums_show(s, DT_SHOW_TRAIN, "ppo/val/ratio", "ppo/ratios_less_1", "ppo/tokens", plus_one);
    dt_sums_show_variance(s, DT_SHOW_TRAIN, "ppo/val/ratio_var", "ppo/ratios_less_1_squared", "ppo/ratios_less_1",
                          "ppo/tokens");
    for (int i = 0; i < (p->with_costs ? PPO_N_NUMBERS : PPO_N_WITHOUT_COSTS); i++)
        p->sums.number[i] = metric(s, number_names[i], DT_SUM_REAL, NULL);
    p->sums.episode = metric(s, "ppo/episode", DT_SUM_MAX, NULL);
    for (int f = 0; f < ppo_n_functions(p); f++) {
        char name[DT_SUM_NAME];
        snprintf(name, sizeof name, "ppo/rewards/%.29s/mean", dt_rewards_names(p->rewards)[f]);
        p->sums.mean[f] = metric(s, name, DT_SUM_MEAN, NULL);
    }
}

/* ---- a micro-step ------------------------------------------------------------------------------------------------ */

static void collect_completion(dt_task *t, const dt_batch *b, int32_t sequence, const dt_predictions *predicted)
{
    ppo *p = ppo_of(t);
    const ppo_completion c = ppo_completion_of(t, b, sequence);
    const float *old = dt_rollout_array(p->rollout, PPO_OLD, c.row);
    const float *advantage = dt_rollout_array(p->rollout, PPO_ADVANTAGE, c.row);
    double loss = 0, entropy = 0, approxkl = 0, ratio = 0, squares = 0;
    int64_t n_clipped = 0;
    for (int32_t k = 0; k < c.n; k++) {
        const double logp = (double)predicted->logp[c.first_target + k], off = logp - (double)old[k],
                     less_1 = expm1(off);
        const dt_ppo_term term = dt_ppo_policy_loss(logp, (double)old[k], (double)advantage[k], t->cfg->ppo_cliprange);
        loss += term.loss, n_clipped += term.clipped;
        approxkl += 0.5 * off * off; /* KL of old and new policy, to second order */
        ratio += less_1, squares += less_1 * less_1;
        entropy += (double)predicted->entropy[c.first_target + k];
    }
    dt_sums_add(t->sums, p->sums.loss, loss - t->cfg->ppo_ent_coef * entropy);
    dt_sums_add(t->sums, p->sums.policy, loss);
    dt_sums_add(t->sums, p->sums.approxkl, approxkl);
    dt_sums_add(t->sums, p->sums.ratio, ratio);
    dt_sums_add(t->sums, p->sums.ratio_squares, squares);
    dt_sums_add(t->sums, p->sums.entropy, entropy);
    dt_sums_count(t->sums, p->sums.clipped, n_clipped);
    dt_sums_count(t->sums, p->sums.n_tok, c.n);
    dt_sums_count(t->sums, p->sums.n_states, c.n_states);
}

void ppo_collect(dt_task *t, const dt_micro *m, const dt_predictions *predicted)
{
    for (int32_t s = 0; s < m->batch->n_seq; s++) collect_completion(t, m->batch, s, predicted);
}

/* The displayed loss is a sum over the step's tokens divided by their number. A factor converts a mean over states to
 * that form. */
void ppo_collect_critic(dt_task *t, const dt_batch *b, int critic)
{
    ppo *p = ppo_of(t);
    const double factor = t->cfg->ppo_vf_coef * p->inv_states / p->step.inv_norm;
    for (int32_t s = 0; s < b->n_seq; s++) {
        const ppo_completion c = ppo_completion_of(t, b, s);
        const float *old = dt_rollout_array(p->rollout, PPO_VALUE + 2 * critic, c.row);
        const float *target = dt_rollout_array(p->rollout, PPO_RETURN + 2 * critic, c.row);
        double loss = 0;
        int64_t n_clipped = 0;
        for (int32_t k = 0; k < c.n_states; k++) {
            const dt_ppo_term term = dt_ppo_value_loss((double)p->critic[critic].value[c.first + k], (double)old[k],
                                                       (double)target[k], p->cliprange_value);
            loss += term.loss, n_clipped += term.clipped;
        }
        dt_sums_add(t->sums, p->sums.loss, loss * factor);
        dt_sums_add(t->sums, p->sums.value[critic], loss);
        dt_sums_count(t->sums, p->sums.value_clipped[critic], n_clipped);
    }
}

void ppo_collect_numbers(dt_task *t)
{
    const ppo *p = ppo_of(t);
    for (int i = 0; i < (p->with_costs ? PPO_N_NUMBERS : PPO_N_WITHOUT_COSTS); i++)
        dt_sums_add(t->sums, p->sums.number[i], p->number[i]);
    for (int f = 0; f < ppo_n_functions(p); f++) dt_sums_add(t->sums, p->sums.mean[f], p->mean[f]);
    dt_sums_add(t->sums, p->sums.episode, (double)((dt_rollout_number(p->rollout) + 1) * ppo_n_rows(t)));
}
