/* grpo.c - policy optimisation without a critic (algorithms.md 5.1-5.3). The model generates one or more completions
 * per prompt. The advantage of a completion is its reward relative to those of others (advantages.h). Training makes
 * completions with a positive advantage more probable.
 *
 * A generation is used for one or more optimizer steps. Everything that normalises a step is computed from the
 * generation, which every rank holds, before the step's first backward. */
#include "grpo.h"
#include "dtrain/step/step.h"
#include "../dpo/quantile.h"
#include <string.h>

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void check(dt_task *t)
{
    if (!t->comm) return; /* --plan */
    if (!*t->cfg->grpo_rollouts) dt_task_need_data(t, "train", t->cfg->data_train);
    dt_task_need(t, "model", "path", t->cfg->model_path, "a model to align");
}

static void open_rollout(grpo *g, dt_task *t)
{
    const dt_config *cfg = t->cfg;
    dt_rollout_options opt = {.section = "grpo",
                              .n_rows = grpo_n_rows(t),
                              .num_generations = g->rule.num_generations,
                              .max_completion = (int32_t)g->most_tokens,
                              .beams = grpo_makes_beams(cfg),
                              .constraint = dt_generation_items_constraint(&g->items),
                              .sampling = {.temperature = cfg->grpo_temperature,
                                           .top_k = cfg->grpo_top_k,
                                           .top_p = cfg->grpo_top_p,
                                           .min_p = cfg->grpo_min_p,
                                           .repetition_penalty = cfg->grpo_repetition_penalty,
                                           .seed = (uint64_t)cfg->run_seed},
                              .from_file = cfg->grpo_rollouts,
                              .turns = g->turns};
    const char *const names[GRPO_N_ARRAYS] = {"old_logp", "ref_logp"};
    const bool kept[GRPO_N_ARRAYS] = {grpo_n_steps(t) > 1 || g->kl_in_reward, g->beta > 0};
    for (int i = 0; i < GRPO_N_ARRAYS; i++) {
        g->array[i] = kept[i] ? opt.n_arrays : -1;
        if (kept[i]) opt.array_name[opt.n_arrays++] = names[i];
    }
    t->temperature = cfg->grpo_temperature;
    grpo_draw_more(g, cfg, &opt);
    g->rollout = dt_rollout_open(t, &opt);
    grpo_open_validation(g, t, &opt);
}

/* An epoch consists of whole generations. Prompts left over come first in the next epoch. */
static void count_steps(const grpo *g, dt_task *t)
{
    const int64_t n_prompts = g->rollout ? dt_rollout_n_prompts(g->rollout) : 0,
                  n_groups = dt_max_i64(1, grpo_n_rows(t) / g->rule.num_generations);
    if (n_prompts == 0) return;
    t->steps_per_epoch = dt_max_i64(1, n_prompts / n_groups) * grpo_n_steps(t);
    t->samples_per_epoch = t->steps_per_epoch * t->batching.train_batch_size;
}

static size_t lay_out(void *self, const dt_task *t, void *block)
{
    grpo *g = self;
    const bool of_tokens = dt_estimators[g->rule.type].of_tokens;
    const int64_t n = grpo_n_rows(t), n_funcs = g->rule.n_funcs, n_given = g->n_given;
    const bool by_entropy = t->cfg->grpo_top_entropy_quantile < 1;
    const int64_t n_tok = by_entropy ? t->batching.accumulation * t->model_opt->max_tok : 0;
    size_t used = 0;
    g->reward = dt_carve(block, &used, n * n_funcs, sizeof *g->reward);
    g->given = dt_carve(block, &used, n * n_given, sizeof *g->given);
    g->valid_reward = dt_carve(block, &used, g->valid ? n * n_funcs : 0, sizeof *g->valid_reward);
    g->total = dt_carve(block, &used, n, sizeof *g->total);
    g->advantage = dt_carve(block, &used, n, sizeof *g->advantage);
    if (g->kl_in_reward) g->kl = dt_carve(block, &used, n, sizeof *g->kl);
    if (of_tokens) g->token_advantage = dt_carve(block, &used, n * g->most_tokens, sizeof *g->token_advantage);
    if (of_tokens) g->n_tok = dt_carve(block, &used, n, sizeof *g->n_tok);
    g->order = dt_carve(block, &used, n, sizeof *g->order);
    g->flat = dt_carve(block, &used, n, sizeof *g->flat);
    g->drop = dt_carve(block, &used, n, sizeof *g->drop);
    g->entropy = dt_carve(block, &used, n_tok, sizeof *g->entropy);
    g->selected = dt_carve(block, &used, n_tok, sizeof *g->selected);
    g->tokens = dt_carve(block, &used,
                         n * dt_generation_items_depth(&g->items, *t->cfg->rec_catalogue ? DT_ITEMS_USUAL_DEPTH : 0),
                         sizeof *g->tokens);
    g->item = dt_carve(block, &used, g->n_drawn, sizeof *g->item);
    g->drawn = dt_carve(block, &used, g->n_drawn, sizeof *g->drawn);
    return used;
}

/* In a generation's only step every ratio is 1, also if old log-probabilities are kept for the reward. */
static bool has_ratios(const dt_task *t) { return grpo_n_steps(t) > 1; }

static void grpo_open(dt_task *t)
{
    static const dt_task_part_ops arrays = {.lay_out = lay_out};
    grpo *g = t->self;
    dt_task_hold(t, &arrays, g);
    grpo_read_options(g, t->cfg);
    grpo_check(g, t);
    g->rule.n_of_set = grpo_generation_size(t);
    if (t->cfg->grpo_ent_coef != 0) t->model_opt->head |= DT_HEAD_ENTROPY_WEIGHT;
    dt_generation_items_open(&g->items, t);
    if (*t->cfg->grpo_environment && !*t->cfg->grpo_rollouts)
        g->turns = dt_environment_open(t, "grpo", t->cfg->grpo_environment, t->cfg->grpo_max_tool_calling_iterations);
    g->most_tokens = dt_generation_items_depth(&g->items, g->loss_of.max_completion_length);
    open_rollout(g, t);
    dt_mistakes_add(t->mistakes, grpo_check_items(g, t));
    grpo_open_rewards(g, t);
    if (g->beta > 0)
        dt_reference_open_key(&g->reference, t, "grpo", t->cfg->grpo_reference_path, t->cfg->grpo_sync_reference_steps,
                              t->cfg->grpo_sync_reference_mixup);
    count_steps(g, t);
    /* without ratios and divergence the slope of the loss depends on the advantages only */
    t->weights_known = !has_ratios(t) && g->loss_of.beta == 0;
    t->saved_nbytes += (double)grpo_n_rows(t) * g->rule.n_funcs * sizeof *g->reward;
    dt_task_state(t, "grpo_place", DT_NAMED_I64, sizeof g->place / sizeof(int64_t), &g->place, false);
    if (g->rollout) grpo_declare(g, t);
    grpo_declare_validation(g, t);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* Tokens of a batch that count in the loss. */
static int64_t count_tokens(const grpo *g, const dt_task *t, const int64_t *row, int64_t n)
{
    int64_t n_tokens = 0;
    for (int64_t i = 0; i < n; i++)
        if (grpo_takes_part(g, t, row[i])) n_tokens += dt_rollout_row_of(g->rollout, row[i])->n_new;
    return n_tokens;
}

static void begin_step(grpo *g, const dt_task *t)
{
    const int64_t n = t->batching.train_batch_size, m = t->batching.micro_batch_size;
    const int64_t first = g->place.n_used++ * n % grpo_n_rows(t);
    g->step = (grpo_step){.first = first,
                          .counts = {.n_completions = n,
                                     .n_tokens = count_tokens(g, t, g->order + first, n),
                                     .n_micro = dt_ceil_div(n, m)},
                          .micro = {.n_micro = dt_rollout_n_micro(g->rollout, t, n), .inv_norm = 1 / (double)n}};
}

/* The completion of sequence s. */
static dt_grpo_completion completion_of(const grpo *g, const dt_task *t, const dt_batch *b, int32_t s,
                                        const float *logp)
{
    const int64_t row = g->step.row[s];
    const dt_rollout_row *y = dt_rollout_row_of(g->rollout, row);
    const float *kept[GRPO_N_ARRAYS];
    const bool uses[GRPO_N_ARRAYS] = {has_ratios(t), g->loss_of.beta > 0};
    for (int i = 0; i < GRPO_N_ARRAYS; i++) kept[i] = uses[i] ? dt_rollout_array(g->rollout, g->array[i], row) : NULL;
    const int32_t at = b->seq_target[s];
    return (dt_grpo_completion){.n = grpo_takes_part(g, t, row) ? y->n_new : 0,
                                .advantage = g->advantage[row],
                                .advantages = g->token_advantage ? g->token_advantage + row * g->most_tokens : NULL,
                                .logp = logp + at,
                                .old = kept[GRPO_OLD],
                                .ref = kept[GRPO_REF],
                                .entropy = g->step.entropy ? g->step.entropy + at : NULL,
                                .entropy_least = g->step.entropy_least};
}

/* Batch `micro` of the step, and its rows. */
static dt_err batch_of(grpo *g, const dt_task *t, int micro, const dt_batch **b)
{
    DT_TRY(
        dt_rollout_micro(g->rollout, t, g->order, g->step.first, t->batching.train_batch_size, micro, b, &g->step.row));
    g->step.counts.n_micro_tokens = count_tokens(g, t, g->step.row, (*b)->n_seq);
    return DT_OK;
}

/* Store the entropies of a batch, and append those that count to `selected`. */
static dt_err find_entropies(grpo *g, dt_task *t, int micro, int64_t *n_selected)
{
    const dt_batch *b;
    DT_TRY(batch_of(g, t, micro, &b));
    const dt_head_pass pass = {.inv_temperature = dt_task_inv_temperature(t)};
    float *const entropy = g->entropy + (int64_t)micro * t->model_opt->max_tok;
    DT_TRY(dt_model_forward(t->model, b, false, 0));
    DT_TRY(dt_model_predict(t->model, b, &pass, &(dt_head_results){.entropy = entropy}));
    for (int32_t s = 0; s < b->n_seq; s++) {
        const dt_grpo_completion y = completion_of(g, t, b, s, entropy);
        memcpy(g->selected + *n_selected, entropy + b->seq_target[s], (size_t)y.n * sizeof *entropy);
        *n_selected += y.n;
    }
    return DT_OK;
}

/* The minimum entropy of tokens in the policy term. Needs a pass over the whole step before its first backward. */
static dt_err find_top_entropies(grpo *g, dt_task *t)
{
    const float q = (float)(1 - t->cfg->grpo_top_entropy_quantile);
    int64_t n = 0;
    dt_phase_enter(t->phase, "score", "entropy");
    for (int micro = 0; micro < g->step.micro.n_micro; micro++) DT_TRY(find_entropies(g, t, micro, &n));
    return dt_quantile(t->data, g->selected, n, q, &g->step.entropy_least);
}

static dt_err grpo_next_micro(dt_task *t, int64_t step, int micro, dt_micro *m)
{
    grpo *g = t->self;
    const bool by_entropy = t->cfg->grpo_top_entropy_quantile < 1;
    if (micro == 0) {
        if (dt_rollout_n_rows(g->rollout) == 0) DT_TRY(grpo_generate(g, t));
        begin_step(g, t);
        if (by_entropy) DT_TRY(find_top_entropies(g, t));
        dt_rollout_collect(g->rollout, t);
    }
    *m = g->step.micro;
    DT_TRY(batch_of(g, t, micro, &m->batch));
    if (by_entropy) g->step.entropy = g->entropy + (int64_t)micro * t->model_opt->max_tok;
    return DT_OK;
}

static dt_err grpo_weights(dt_task *t, const dt_micro *m, const dt_predictions *p, dt_weights *w)
{
    const grpo *g = t->self;
    const dt_batch *b = m->batch;
    const float *const logp = p ? p->logp : w->u; /* weights_known: any values do, because none is used */
    const double of_entropy = t->cfg->grpo_ent_coef / (double)g->step.counts.n_tokens;
    memset(w->u, 0, (size_t)b->n_target * sizeof *w->u); /* some completions take no part */
    if (w->entropy) memset(w->entropy, 0, (size_t)b->n_target * sizeof *w->entropy);
    for (int32_t s = 0; s < b->n_seq; s++) {
        dt_grpo_result result;
        const int32_t at = b->seq_target[s];
        const dt_grpo_completion y = completion_of(g, t, b, s, logp);
        dt_grpo_loss_of(&g->loss_of, &y, dt_grpo_kappa(&g->loss_of, y.n, &g->step.counts), w->u + at, &result);
        for (int32_t i = 0; w->entropy && i < y.n; i++) w->entropy[at + i] = (float)of_entropy;
    }
    return DT_OK;
}

static void grpo_collect(dt_task *t, const dt_micro *m, const dt_predictions *p)
{
    grpo *g = t->self;
    const dt_batch *b = m->batch;
    for (int32_t s = 0; s < b->n_seq; s++) {
        dt_grpo_result result;
        const dt_grpo_completion y = completion_of(g, t, b, s, p->logp);
        const double kappa = dt_grpo_kappa(&g->loss_of, y.n, &g->step.counts);
        const double loss = dt_grpo_loss_of(&g->loss_of, &y, kappa, NULL, &result);
        if (g->kl_in_reward) result.kl = grpo_reward_kl(g, g->step.row[s], y.n);
        grpo_count(g, t, &y, &result, loss, p->entropy + b->seq_target[s]);
    }
    if (g->array[GRPO_OLD] < 0) dt_rollout_compare(g->rollout, t, b, g->step.row, p->logp);
}

/* After its last use a generation is discarded, so no checkpoint contains it. */
static dt_err grpo_after_step(dt_task *t, int64_t step, bool applied)
{
    grpo *g = t->self;
    grpo_count_generation(g, t);
    if (g->place.n_used >= grpo_n_steps(t)) dt_rollout_start(g->rollout, g->place.n_generations);
    return g->beta > 0 ? dt_reference_after_step(&g->reference, t, step) : DT_OK;
}

/* ---- resuming ---------------------------------------------------------------------------------------------------- */

static dt_err grpo_save(dt_task *t, dt_named_arrays *items)
{
    const grpo *g = t->self;
    const int64_t n = dt_rollout_n_rows(g->rollout) * g->rule.n_funcs;
    DT_TRY(
        dt_comm_agree(t->comm, n > 0 ? dt_named_arrays_add(items, "grpo_rewards", DT_NAMED_F64, n, g->reward) : DT_OK));
    return dt_rollout_save(g->rollout, t, items);
}

static dt_err load_rewards(grpo *g, const dt_task *t, const dt_named_arrays *items)
{
    const dt_named_array *rewards = dt_named_arrays_find(items, "grpo_rewards");
    const int64_t n = dt_rollout_n_rows(g->rollout) * g->rule.n_funcs;
    if (n == 0) return DT_OK;
    if (rewards && rewards->n == n) return dt_named_arrays_get(items, "grpo_rewards", DT_NAMED_F64, n, g->reward);
    dt_rollout_discard(g->rollout, t, "its rewards come from other functions");
    return DT_OK;
}

static dt_err grpo_load(dt_task *t, const dt_named_arrays *items)
{
    grpo *g = t->self;
    DT_TRY(dt_rollout_load(g->rollout, t, items));
    DT_TRY(dt_comm_agree(t->comm, load_rewards(g, t, items)));
    g->scored = true;
    grpo_find_advantages(g, t);
    grpo_find_diversity(g);
    return DT_OK;
}

const dt_task_ops dt_task_grpo = {.name = "grpo",
                                  .trains = true,
                                  .no_dropout = true,
                                  .images = true,
                                  .watch = {"grpo/reward"},
                                  .self_nbytes = sizeof(grpo),
                                  .check = check,
                                  .open = grpo_open,
                                  .next_micro = grpo_next_micro,
                                  .weights = grpo_weights,
                                  .collect = grpo_collect,
                                  .after_step = grpo_after_step,
                                  .evaluate = grpo_evaluate,
                                  .save = grpo_save,
                                  .load = grpo_load};
