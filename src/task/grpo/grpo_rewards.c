/* grpo_rewards.c - the rewards of completions: from grpo.reward_funcs or grpo.rollouts, with those of the environment
 * and the penalty for long completions as more functions. */
#include "grpo.h"
#include "dtrain/step/step.h"
#include <stdio.h>
#include <string.h>

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Name the functions of grpo.rollouts, which has rewards without names. */
static void name_given(grpo *g, int n)
{
    for (int k = 0; k < n; k++) {
        snprintf(g->given_name[k], sizeof g->given_name[k], "reward_%d", k);
        g->name[k] = g->given_name[k];
    }
    g->n_given = n;
}

static dt_err open_given(grpo *g, const dt_task *t, int n)
{
    DT_CONFIG_CHECK(n <= DT_MAX_REWARDS, t->cfg, "grpo", "rollouts",
                    "expected at most %d rewards per completion, found %d", DT_MAX_REWARDS, n);
    name_given(g, n);
    return dt_reward_weights(t->cfg, "grpo", t->cfg->grpo_reward_weights, n, "rewards in grpo.rollouts", g->weight);
}

static void open_functions(grpo *g, dt_task *t)
{
    const dt_config *cfg = t->cfg;
    const bool is_refused = *cfg->grpo_rollouts && g->rollout && dt_rollout_n_prompts(g->rollout) == 0; /* reported */
    if (*cfg->grpo_environment && !*cfg->grpo_reward_funcs) return;
    if (!is_refused)
        dt_task_need(t, "grpo", "reward_funcs", cfg->grpo_reward_funcs, "reward functions or grpo.environment");
    g->rewards = dt_rewards_open(t, "grpo", "", cfg->grpo_reward_funcs, cfg->grpo_reward_weights, g->items.catalogue);
    if (!g->rewards) return;
    g->n_given = dt_rewards_n(g->rewards);
    memcpy(g->name, dt_rewards_names(g->rewards), (size_t)g->n_given * sizeof *g->name);
    memcpy(g->weight, dt_rewards_weights(g->rewards), (size_t)g->n_given * sizeof *g->weight);
}

void grpo_open_rewards(grpo *g, dt_task *t)
{
    const dt_config *cfg = t->cfg;
    int n = 0;
    if (g->rollout) dt_rollout_given_rewards(g->rollout, &n);
    if (n > 0)
        dt_mistakes_add(t->mistakes, open_given(g, t, n));
    else
        open_functions(g, t);
    g->rule.n_funcs = g->n_given;
    if (g->turns) {
        g->name[g->rule.n_funcs] = "environment";
        g->weight[g->rule.n_funcs++] = 1;
    }
    g->n_watched = g->rule.n_funcs;
    if (cfg->grpo_overlong_cache == 0) return;
    g->name[g->rule.n_funcs] = "overlong";
    g->weight[g->rule.n_funcs++] = cfg->grpo_overlong_penalty;
}

/* ---- rewards of a generation ------------------------------------------------------------------------------------- */

static double overlong(const grpo *g, const dt_task *t, const dt_rollout *r, int64_t row)
{
    const dt_config *cfg = t->cfg;
    const int64_t longest =
        cfg->grpo_overlong_max_length ? cfg->grpo_overlong_max_length : cfg->grpo_max_completion_length;
    return dt_overlong_penalty(dt_rollout_row_of(r, row)->n_new, (int32_t)longest, (int32_t)cfg->grpo_overlong_cache);
}

dt_err grpo_reward_rows(grpo *g, dt_task *t, dt_rollout *r, const int64_t *order, int64_t first, double *reward)
{
    int n = 0;
    const double *given = dt_rollout_given_rewards(r, &n);
    if (!given && g->rewards) {
        DT_TRY(dt_rewards_score(g->rewards, t, r, order, first, g->given));
        given = g->given;
    }
    for (int64_t i = first; i < dt_rollout_n_rows(r); i++) {
        double *const mine = reward + i * g->rule.n_funcs;
        if (g->n_given > 0) memcpy(mine, given + i * g->n_given, (size_t)g->n_given * sizeof *mine);
        if (g->turns) mine[g->n_given] = dt_rollout_row_of(r, i)->reward;
        if (g->n_watched < g->rule.n_funcs) mine[g->n_watched] = overlong(g, t, r, i);
    }
    return DT_OK;
}
