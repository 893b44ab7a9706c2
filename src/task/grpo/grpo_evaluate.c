/* grpo_evaluate.c - a validation: completes and rewards the prompts of data.validation like those of training. Its loss
 * is minus the mean reward, so the best checkpoint has the highest reward. Every validation uses the same random
 * numbers. With a catalogue, the validation is that of task eval instead (ranking.h). */
#include "grpo.h"
#include <math.h>
#include <stdio.h>

static double minus(double x) { return 0 - x; } /* avoids -0 */

static void show(dt_sums *s, const char *name, const char *top, const char *bottom, double (*map)(double))
{
    dt_sums_show(s, DT_SHOW_VALIDATION, name, top, bottom, map);
}

static void declare_functions(grpo *g, dt_sums *s)
{
    char sum[2 * DT_SUM_NAME], count[2 * DT_SUM_NAME], shown[2 * DT_SUM_NAME];
    for (int k = 0; k < g->rule.n_funcs; k++) {
        snprintf(sum, sizeof sum, "grpo/valid/%.28s/sum", g->name[k]);
        snprintf(count, sizeof count, "grpo/valid/%.28s/n", g->name[k]);
        snprintf(shown, sizeof shown, "grpo/validation_rewards/%.23s", g->name[k]);
        g->sums.valid_func[k] = dt_sums_declare(s, sum, DT_SUM_LOSS, 1);
        g->sums.valid_n_func[k] = dt_sums_declare(s, count, DT_SUM_UNITS, 1);
        show(s, shown, sum, count, NULL);
    }
}

static void declare(grpo *g, dt_sums *s)
{
    grpo_sums *c = &g->sums;
    c->valid_loss = dt_sums_declare(s, "grpo/valid_loss", DT_SUM_LOSS, 1);
    c->valid_rewarded = dt_sums_declare(s, "grpo/valid_rewarded", DT_SUM_UNITS, 1);
    c->valid_rows = dt_sums_declare(s, "grpo/valid_rows", DT_SUM_UNITS, 1);
    c->valid_tokens = dt_sums_declare(s, "grpo/valid_tokens", DT_SUM_UNITS, 1);
    c->valid_cut = dt_sums_declare(s, "grpo/valid_cut", DT_SUM_UNITS, 1);
    show(s, "validation_loss", "grpo/valid_loss", "grpo/valid_rewarded", NULL);
    show(s, "grpo/validation_reward", "grpo/valid_loss", "grpo/valid_rewarded", minus);
    declare_functions(g, s);
    show(s, "grpo/validation_completions/mean_length", "grpo/valid_tokens", "grpo/valid_rows", NULL);
    show(s, "grpo/validation_completions/clipped_ratio", "grpo/valid_cut", "grpo/valid_rows", NULL);
    show(s, "validation_samples", "grpo/valid_rows", NULL, NULL);
}

void grpo_open_validation(grpo *g, dt_task *t, const dt_rollout_options *training)
{
    dt_rollout_options opt = *training;
    if (!*t->cfg->data_validation) return;
    if (*t->cfg->rec_catalogue) {
        g->search = dt_ranking_open(t, &g->items, false);
        return;
    }
    if (*t->cfg->grpo_rollouts)
        dt_mistakes_add(t->mistakes,
                        dt_config_fail(t->cfg, "data", "validation",
                                       "expected none with grpo.rollouts, because the run then has no policy rollouts "
                                       "or rewards for validation prompts"));
    opt.validation = true;
    opt.n_arrays = 0;
    opt.sampling.seed = dt_mix64(opt.sampling.seed + 1); /* other random numbers than in training */
    g->valid = dt_rollout_open(t, &opt);
}

void grpo_declare_validation(grpo *g, dt_task *t)
{
    if (!g->valid) return;
    const int64_t n_rows = grpo_n_rows(t), n_all = dt_rollout_n_prompts(g->valid) * g->rule.num_generations;
    t->n_validation = dt_ceil_div(n_all, n_rows);
    declare(g, t->sums);
}

static void count(const grpo *g, dt_task *t, int64_t row)
{
    const grpo_sums *c = &g->sums;
    dt_sums *s = t->sums;
    const double *reward = g->valid_reward + row * g->rule.n_funcs,
                 total = dt_reward_total(g->rule.n_funcs, g->weight, reward);
    const dt_rollout_row *y = dt_rollout_row_of(g->valid, row);
    for (int k = 0; k < g->rule.n_funcs; k++) {
        if (isnan(reward[k])) continue;
        dt_sums_add(s, c->valid_func[k], reward[k]);
        dt_sums_count(s, c->valid_n_func[k], 1);
    }
    if (!isnan(total)) {
        dt_sums_add(s, c->valid_loss, -total);
        dt_sums_count(s, c->valid_rewarded, 1);
    }
    dt_sums_count(s, c->valid_rows, 1);
    dt_sums_count(s, c->valid_tokens, y->n_new);
    dt_sums_count(s, c->valid_cut, !y->ended);
}

/* The last rollout wraps around to the first prompts, which are not counted again. */
dt_err grpo_evaluate(dt_task *t, int64_t micro)
{
    grpo *g = t->self;
    if (g->search) return dt_ranking_evaluate(g->search, t, micro);
    const int64_t n_rows = grpo_n_rows(t), n_all = dt_rollout_n_prompts(g->valid) * g->rule.num_generations;
    if (micro == 0) dt_rollout_rewind(g->valid, 0);
    dt_rollout_start(g->valid, micro);
    DT_TRY(dt_rollout_fill(g->valid, t));
    DT_TRY(grpo_reward_rows(g, t, g->valid, NULL, 0, g->valid_reward));
    for (int64_t row = 0; row < dt_min_i64(n_rows, n_all - micro * n_rows); row++)
        if (dt_rollout_is_mine(g->valid, t, row)) count(g, t, row);
    return DT_OK;
}
