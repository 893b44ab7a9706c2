/* grpo_generation.c - a generation: completions with rewards and advantages, and the old and reference
 * log-probabilities. Every rank holds all of it, so derived values are the same on all ranks. */
#include "grpo.h"
#include <string.h>

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* If one step uses all rows, no shuffling is needed. */
static void put_in_order(grpo *g, const dt_task *t, int64_t number)
{
    const int64_t n = grpo_n_rows(t);
    for (int64_t i = 0; i < n; i++) g->order[i] = i;
    if (n > t->batching.train_batch_size) dt_rollout_shuffle(t, number, 0, n, g->order);
}

void grpo_find_advantages(grpo *g, const dt_task *t)
{
    put_in_order(g, t, g->n_generations - 1);
    g->share_flat = dt_advantages(&g->rule, dt_rollout_n_rows(g->rollout), g->reward, g->total, g->advantage, g->flat);
}

bool grpo_takes_part(const grpo *g, const dt_task *t, int64_t row)
{
    return !t->cfg->grpo_mask_truncated_completions || dt_rollout_row_of(g->rollout, row)->ended;
}

/* ---- completions ------------------------------------------------------------------------------------------------- */

/* Remove groups without a learning signal, and move up the rewards of the others. False: there is none. */
static bool drop_flat(grpo *g)
{
    const int64_t n_rows = dt_rollout_n_rows(g->rollout);
    int64_t n = 0;
    for (int64_t i = 0; i < n_rows; i++) {
        g->drop[i] = g->flat[i / g->rule.num_generations];
        if (g->drop[i]) continue;
        memmove(g->reward + n * g->rule.n_funcs, g->reward + i * g->rule.n_funcs,
                (size_t)g->rule.n_funcs * sizeof *g->reward);
        n++;
    }
    if (n < n_rows) dt_rollout_drop(g->rollout, g->drop);
    return n < n_rows;
}

static int64_t count_tokens(const grpo *g, int64_t first)
{
    int64_t n = 0;
    for (int64_t i = first; i < dt_rollout_n_rows(g->rollout); i++) {
        const dt_rollout_row *row = dt_rollout_row_of(g->rollout, i);
        n += row->n_prompt + row->n_new;
    }
    return n;
}

static dt_err complete(grpo *g, dt_task *t, int64_t *n_tokens)
{
    const int64_t most = t->cfg->grpo_dynamic_sampling ? t->cfg->grpo_dynamic_sampling_rounds : 1;
    *n_tokens = 0;
    for (g->n_rounds = 1;; g->n_rounds++) {
        const int64_t first = dt_rollout_n_rows(g->rollout);
        DT_TRY(dt_rollout_fill(g->rollout, t));
        DT_TRY(grpo_add_targets(g, t, first));
        *n_tokens += count_tokens(g, first);
        /* in later rounds only the new rows: the order covers all */
        DT_TRY(grpo_reward_rows(g, t, g->rollout, first > 0 ? NULL : g->order, first, g->reward));
        grpo_find_advantages(g, t);
        if (g->n_rounds == most || !drop_flat(g)) return DT_OK;
    }
}

/* A generation counts when it is complete; one that a signal interrupts is repeated. */
static dt_err make(grpo *g, dt_task *t, int64_t *n_tokens)
{
    DT_TRY(complete(g, t, n_tokens));
    grpo_find_diversity(g);
    if (g->array[GRPO_OLD] >= 0)
        DT_TRY(
            dt_rollout_score(g->rollout, t, g->order, dt_rollout_policy, NULL, DT_SCORED_TARGETS, g->array[GRPO_OLD]));
    if (g->array[GRPO_REF] >= 0)
        DT_TRY(dt_rollout_score(g->rollout, t, g->order, dt_reference_scores, &g->reference, DT_SCORED_TARGETS,
                                g->array[GRPO_REF]));
    return dt_rollout_write(g->rollout, t, g->rule.n_funcs, g->name, g->reward, g->advantage);
}

dt_err grpo_generate(grpo *g, dt_task *t)
{
    int64_t n_tokens;
    dt_rollout_start(g->rollout, g->n_generations++);
    put_in_order(g, t, g->n_generations - 1);
    const dt_err err = make(g, t, &n_tokens);
    if (err != DT_OK) {
        g->n_generations--;
        return err;
    }
    const dt_watched_rewards rewards = {.reward = g->reward,
                                        .n_rows = dt_rollout_n_rows(g->rollout),
                                        .n_ended = dt_rollout_n_ended(g->rollout),
                                        .group_len = t->cfg->grpo_num_generations,
                                        .stride = g->rule.n_funcs};
    dt_reward_watch_rollout(g->watch, g->n_given, g->name, &rewards, dt_comm_first(t->comm));
    g->num_tokens += n_tokens;
    g->n_used = 0;
    return DT_OK;
}
