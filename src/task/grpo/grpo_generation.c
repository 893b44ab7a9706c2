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

static double kl_at(const grpo *g, int64_t row, int32_t k)
{
    return (double)dt_rollout_array(g->rollout, g->array[GRPO_OLD], row)[k] -
           (double)dt_rollout_array(g->rollout, g->array[GRPO_REF], row)[k];
}

double grpo_reward_kl(const grpo *g, int64_t row, int32_t n)
{
    double sum = 0;
    for (int32_t k = 0; k < n; k++) sum += kl_at(g, row, k);
    return sum;
}

/* The divergences of rows, and those of tokens, which token_advantage has until dt_token_advantages. Until the rows are
 * scored they are 0. */
static void find_divergences(grpo *g, const dt_task *t)
{
    const bool known = g->kl_in_reward && g->scored;
    for (int64_t i = 0; i < dt_rollout_n_rows(g->rollout); i++) {
        const int32_t n_new = dt_rollout_row_of(g->rollout, i)->n_new;
        if (g->kl) g->kl[i] = known && grpo_takes_part(g, t, i) ? grpo_reward_kl(g, i, n_new) : 0;
        if (!g->token_advantage) continue;
        g->n_tok[i] = n_new;
        for (int32_t k = 0; k < n_new; k++)
            g->token_advantage[i * g->most_tokens + k] = known ? (float)kl_at(g, i, k) : 0;
    }
}

void grpo_find_advantages(grpo *g, const dt_task *t)
{
    const int64_t n_rows = dt_rollout_n_rows(g->rollout);
    put_in_order(g, t, g->place.n_generations - 1);
    find_divergences(g, t);
    g->share_flat = dt_advantages(&g->rule, n_rows, g->reward, g->kl, g->total, g->advantage, g->flat);
    if (g->token_advantage)
        dt_token_advantages(&g->rule, n_rows, g->n_tok, g->total, g->most_tokens, g->token_advantage, g->advantage);
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
    for (g->place.n_rounds = 1;; g->place.n_rounds++) {
        const int64_t first = dt_rollout_n_rows(g->rollout);
        DT_TRY(dt_rollout_fill(g->rollout, t));
        DT_TRY(grpo_add_targets(g, t, first));
        *n_tokens += count_tokens(g, first);
        /* in later rounds only the new rows: the order covers all */
        DT_TRY(grpo_reward_rows(g, t, g->rollout, first > 0 ? NULL : g->order, first, g->reward));
        grpo_find_advantages(g, t);
        if (g->place.n_rounds == most || !drop_flat(g)) return DT_OK;
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
    g->scored = true;
    if (g->kl_in_reward) grpo_find_advantages(g, t);
    return dt_rollout_write(g->rollout, t, g->rule.n_funcs, g->name, g->reward, g->advantage);
}

dt_err grpo_generate(grpo *g, dt_task *t)
{
    int64_t n_tokens;
    g->scored = false;
    dt_rollout_start(g->rollout, g->place.n_generations++);
    put_in_order(g, t, g->place.n_generations - 1);
    const dt_err err = make(g, t, &n_tokens);
    if (err != DT_OK) {
        g->place.n_generations--;
        return err;
    }
    const dt_watched_rewards rewards = {.reward = g->reward,
                                        .n_rows = dt_rollout_n_rows(g->rollout),
                                        .n_ended = dt_rollout_n_ended(g->rollout),
                                        .group_len = t->cfg->grpo_num_generations,
                                        .stride = g->rule.n_funcs};
    dt_reward_watch_rollout(g->watch, g->n_watched, g->name, &rewards, dt_comm_first(t->comm));
    g->place.num_tokens += n_tokens;
    g->place.n_used = 0;
    return DT_OK;
}
