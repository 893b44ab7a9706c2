/* grpo_metrics.c - metrics under TRL's names. Means are over all tokens, or completions, of a step. Rewards of a
 * generation are counted in each step that uses it. */
#include "grpo.h"
#include <stdio.h>

/* The advantages of a group sum to nearly zero, and so do its losses. They are stored in smaller units. */
static const double LOSS_SCALE = 0x1p12;
static double of_scaled(double x) { return x / LOSS_SCALE; }

static int declare_mean(dt_sums *s, const char *name)
{
    return dt_sums_metric(s, DT_SHOW_TRAIN, name, DT_SUM_MEAN, NULL);
}

static int declare_loss(dt_sums *s, const char *name)
{
    const int sum = dt_sums_declare(s, name, DT_SUM_LOSS, 1);
    dt_sums_show(s, DT_SHOW_TRAIN, name, name, NULL, of_scaled);
    return sum;
}

static void declare_rewards(grpo *g, dt_sums *s)
{
    char name[2 * DT_SUM_NAME];
    for (int k = 0; k < g->rule.n_funcs; k++) {
        snprintf(name, sizeof name, "grpo/rewards/%.28s/mean", g->name[k]);
        g->sums.func_mean[k] = declare_mean(s, name);
        snprintf(name, sizeof name, "grpo/rewards/%.28s/std", g->name[k]);
        g->sums.func_std[k] = declare_mean(s, name);
    }
    g->sums.reward = declare_mean(s, "grpo/reward");
    g->sums.reward_std = declare_mean(s, "grpo/reward_std");
    g->sums.zero_std = declare_mean(s, "grpo/frac_reward_zero_std");
    /* monotonic, so the maximum is the latest value */
    g->sums.num_tokens = dt_sums_metric(s, DT_SHOW_TRAIN, "grpo/num_tokens", DT_SUM_MAX, NULL);
}

static void declare_ratios(grpo *g, dt_sums *s)
{
    grpo_sums *c = &g->sums;
    const dt_grpo_type type = g->loss_of.type;
    c->n_ratios = dt_sums_declare(s, "grpo/ratios", DT_SUM_UNITS, 1);
    c->n_low = dt_sums_declare(s, "grpo/clipped_low", DT_SUM_UNITS, 1);
    c->n_high = dt_sums_declare(s, "grpo/clipped_high", DT_SUM_UNITS, 1);
    c->n_clipped = dt_sums_declare(s, "grpo/clipped", DT_SUM_UNITS, 1);
    c->low_min = dt_sums_declare(s, "grpo/least_clipped_low", DT_SUM_MIN, 1);
    c->high_max = dt_sums_declare(s, "grpo/most_clipped_high", DT_SUM_MAX, 1);
    c->phi = dt_sums_declare(s, "grpo/phi", DT_SUM_LOSS, 1);
    if (type == DT_CISPO) {
        dt_sums_show(s, DT_SHOW_TRAIN, "grpo/cispo_clip_ratio", "grpo/clipped_high", "grpo/ratios", NULL);
    } else if (type == DT_VESPO) {
        dt_sums_show(s, DT_SHOW_TRAIN, "grpo/vespo/phi_seq_mean", "grpo/phi", "samples", NULL);
    } else if (type != DT_SAPO) {
        dt_sums_show(s, DT_SHOW_TRAIN, "grpo/clip_ratio/low_mean", "grpo/clipped_low", "grpo/ratios", NULL);
        dt_sums_show(s, DT_SHOW_TRAIN, "grpo/clip_ratio/low_min", "grpo/least_clipped_low", NULL, NULL);
        dt_sums_show(s, DT_SHOW_TRAIN, "grpo/clip_ratio/high_mean", "grpo/clipped_high", "grpo/ratios", NULL);
        dt_sums_show(s, DT_SHOW_TRAIN, "grpo/clip_ratio/high_max", "grpo/most_clipped_high", NULL, NULL);
        dt_sums_show(s, DT_SHOW_TRAIN, "grpo/clip_ratio/region_mean", "grpo/clipped", "grpo/ratios", NULL);
    }
}

void grpo_declare(grpo *g, dt_task *t)
{
    dt_sums *s = t->sums;
    grpo_sums *c = &g->sums;
    c->loss = declare_loss(s, "loss");
    declare_rewards(g, s);
    c->n_tokens = dt_sums_declare(s, "grpo/tokens", DT_SUM_UNITS, 1);
    c->kl = dt_sums_declare(s, "grpo/divergence", DT_SUM_LOSS, 1);
    c->entropy = dt_sums_declare(s, "grpo/entropies", DT_SUM_UNITS, DT_ENTROPY_UNIT);
    if (g->beta > 0) dt_sums_show(s, DT_SHOW_TRAIN, "grpo/kl", "grpo/divergence", "grpo/tokens", NULL);
    dt_sums_show(s, DT_SHOW_TRAIN, "grpo/entropy", "grpo/entropies", "grpo/tokens", NULL);
    c->policy_loss = c->entropy_coef = -1;
    if (t->cfg->grpo_ent_coef != 0) {
        c->policy_loss = declare_loss(s, "grpo/policy_loss");
        c->entropy_coef = declare_mean(s, "grpo/entropy_coef");
    }
    declare_ratios(g, s);
    c->rounds = t->cfg->grpo_dynamic_sampling ? declare_mean(s, "grpo/sampling_rounds") : -1;
    c->categorical_diversity = g->items.trie ? declare_mean(s, "rec/categorical_diversity") : -1;
    c->token_diversity = g->items.trie ? declare_mean(s, "rec/token_diversity") : -1;
    dt_rollout_declare(g->rollout, s, "grpo");
}

static double sum_of(const float *x, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += (double)x[i];
    return sum;
}

void grpo_count(grpo *g, dt_task *t, const dt_grpo_completion *y, const dt_grpo_result *r, double loss,
                const float *entropy)
{
    const grpo_sums *c = &g->sums;
    dt_sums *s = t->sums;
    const double entropies = sum_of(entropy, y->n), n_tokens = (double)g->step.counts.n_tokens;
    const double bonus = y->n > 0 ? t->cfg->grpo_ent_coef * entropies / n_tokens : 0;
    dt_sums_add(s, c->loss, LOSS_SCALE * (loss - bonus));
    if (c->policy_loss >= 0) dt_sums_add(s, c->policy_loss, LOSS_SCALE * loss);
    dt_sums_add(s, c->kl, r->kl);
    dt_sums_add(s, c->entropy, entropies);
    dt_sums_add(s, c->phi, r->phi);
    dt_sums_count(s, c->n_tokens, y->n);
    dt_sums_count(s, c->n_ratios, r->n_ratios);
    dt_sums_count(s, c->n_low, r->n_low);
    dt_sums_count(s, c->n_high, r->n_high);
    dt_sums_count(s, c->n_clipped, r->n_low + r->n_high);
    if (r->n_ratios == 0) return;
    dt_sums_add(s, c->low_min, (double)r->n_low / (double)r->n_ratios);
    dt_sums_add(s, c->high_max, (double)r->n_high / (double)r->n_ratios);
}

/* Counts the rewards of one generation; a step with several generations reports their mean. */
static void count_rewards(const grpo *g, dt_sums *s, int64_t first, int64_t n)
{
    const grpo_sums *c = &g->sums;
    for (int k = 0; k < g->rule.n_funcs; k++) {
        const dt_moments m = dt_moments_of(g->reward + first * g->rule.n_funcs + k, n, g->rule.n_funcs);
        dt_sums_add(s, c->func_mean[k], m.mean);
        dt_sums_add(s, c->func_std[k], m.deviation);
    }
    const dt_moments all = dt_moments_of(g->total + first, n, 1);
    dt_sums_add(s, c->reward, all.mean);
    dt_sums_add(s, c->reward_std, all.deviation);
}

void grpo_count_generation(grpo *g, dt_task *t)
{
    const grpo_sums *c = &g->sums;
    dt_sums *s = t->sums;
    const int64_t n_rows = dt_rollout_n_rows(g->rollout), n_of_set = g->rule.n_of_set;
    for (int64_t at = 0; at < n_rows; at += n_of_set) count_rewards(g, s, at, dt_min_i64(n_of_set, n_rows - at));
    dt_sums_add(s, c->zero_std, g->share_flat);
    dt_sums_add(s, c->num_tokens, (double)g->place.num_tokens);
    if (c->entropy_coef >= 0) dt_sums_add(s, c->entropy_coef, t->cfg->grpo_ent_coef);
    if (c->rounds >= 0) dt_sums_add(s, c->rounds, (double)g->place.n_rounds);
    if (!g->items.trie) return;
    dt_sums_add(s, c->categorical_diversity, g->categorical_diversity);
    dt_sums_add(s, c->token_diversity, g->token_diversity);
}
