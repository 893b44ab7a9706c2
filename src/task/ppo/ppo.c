/* ppo.c - proximal policy optimisation (algorithms.md 4): a policy with rewards for its completions, and a critic that
 * predicts the expected return. */
#include "ppo.h"
#include "dtrain/step/step.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static bool has_rewards(const dt_config *cfg) { return *cfg->ppo_reward_path || *cfg->ppo_reward_funcs; }

static void check(dt_task *t)
{
    const dt_config *cfg = t->cfg;
    if (cfg->ppo_use_score_norm && !cfg->ppo_use_score_scaling)
        dt_mistakes_add(t->mistakes,
                        dt_config_fail(cfg, "ppo", "use_score_norm", "needs use_score_scaling; set both, or neither"));
    dt_mistakes_add(t->mistakes,
                    dt_multiplier_check(cfg, "ppo", cfg->ppo_lambda_min, cfg->ppo_lambda_max, cfg->ppo_lambda_init));
    if (!t->comm) return; /* --plan */
    if (!*cfg->ppo_rollouts) dt_task_need_data(t, "train", cfg->data_train);
    dt_task_need(t, "model", "path", cfg->model_path, "a model to align");
    if (!*cfg->ppo_rollouts && !*cfg->ppo_reward_funcs)
        dt_task_need(t, "ppo", "reward_path", cfg->ppo_reward_path, "a reward model, or reward_funcs");
    if (*cfg->data_validation && dt_comm_first(t->comm))
        DT_WARN("data.validation is not used: task ppo has no validation");
    if (*cfg->rec_catalogue && !cfg->rec_freeze_llm && dt_comm_first(t->comm))
        DT_WARN("rec.catalogue is not used: task ppo does not restrict completions to items; task grpo does");
}

static dt_err open_rollout(dt_task *t)
{
    ppo *p = ppo_of(t);
    const dt_config *cfg = t->cfg;
    dt_rollout_options opt = {.section = "ppo",
                              .n_rows = ppo_n_rows(t),
                              .num_generations = 1,
                              .max_completion = (int32_t)cfg->ppo_response_length,
                              .stop_token = cfg->ppo_stop_token,
                              .sampling = dt_sampling_default(),
                              .from_file = cfg->ppo_rollouts,
                              .n_arrays = p->with_costs ? PPO_N_ARRAYS : PPO_COST_VALUE,
                              .array_name = {[PPO_OLD] = "old_logps",
                                             [PPO_REFERENCE] = "ref_logps",
                                             [PPO_ADVANTAGE] = "advantages",
                                             [PPO_VALUE] = "values",
                                             [PPO_RETURN] = "returns",
                                             [PPO_COST_VALUE] = "cost_values",
                                             [PPO_COST_RETURN] = "cost_returns"}};
    opt.sampling.temperature = t->temperature;
    opt.sampling.seed = (uint64_t)cfg->run_seed;
    p->rollout = dt_rollout_open(t, &opt);
    return DT_OK;
}

/* Attribute an error in a model's files to its key. */
static dt_err at_key(const dt_task *t, const char *key, dt_err err)
{
    return err == DT_ERR_DATA ? dt_config_lead_to(t->cfg, "ppo", key, err) : err;
}

/* Check that the number of rewards in a file of rollouts matches the functions. */
static dt_err check_given(const dt_task *t)
{
    const ppo *p = ppo_of(t);
    const char *const file = t->cfg->ppo_rollouts;
    int n;
    if (!*file || dt_rollout_n_prompts(p->rollout) == 0) return DT_OK; /* no file, or a reported error */
    dt_rollout_given_rewards(p->rollout, &n);
    DT_CHECK(n > 0 || p->rewards, DT_ERR_DATA, "%s contains no rewards; set ppo.reward_path or ppo.reward_funcs", file);
    DT_CHECK(n == 0 || !p->rewards || n == p->n_funcs, DT_ERR_DATA,
             "%s: expected %d rewards per completion, one per reward function, found %d", file, p->n_funcs, n);
    return DT_OK;
}

/* The reward model counts as the first of the functions. */
static void open_rewards(dt_task *t)
{
    ppo *p = ppo_of(t);
    const dt_config *cfg = t->cfg;
    p->n_funcs = 1;
    if (has_rewards(cfg))
        p->rewards =
            dt_rewards_open(t, "ppo", cfg->ppo_reward_path, cfg->ppo_reward_funcs, cfg->ppo_reward_weights, NULL);
    if (p->rewards) p->n_funcs = (int)dt_max_i64(1, dt_rewards_n(p->rewards));
    if (!has_rewards(cfg) || p->rewards) dt_mistakes_add(t->mistakes, check_given(t));
}

/* Without value_path the critic starts from the reward model if given, otherwise from the policy. */
static void open_critics(dt_task *t)
{
    ppo *p = ppo_of(t);
    const dt_config *cfg = t->cfg;
    const char *key = *cfg->ppo_value_path ? "value_path" : "reward_path";
    const char *path = *cfg->ppo_value_path    ? cfg->ppo_value_path
                       : *cfg->ppo_reward_path ? cfg->ppo_reward_path
                                               : cfg->model_path;
    dt_mistakes_add(t->mistakes, at_key(t, key, dt_critic_open(&p->critic[0], t, "critic", path, 1)));
    if (!p->with_costs) return;
    dt_mistakes_add(t->mistakes,
                    at_key(t, "cost_path", dt_judge_open(&p->cost, t, "the cost model", cfg->ppo_cost_path)));
    dt_mistakes_add(t->mistakes,
                    at_key(t, "cost_path", dt_critic_open(&p->critic[1], t, "cost_critic", cfg->ppo_cost_path, -1)));
    if (p->critic[1].trained) p->critic[1].trained->key = "cost_path";
}

static void open_models(dt_task *t)
{
    if (t->n_units == 0 || (t->comm && !*t->cfg->model_path)) return; /* already reported */
    dt_reference_open_key(&ppo_of(t)->reference, t, "ppo", t->cfg->ppo_reference_path, 0, 0);
    open_rewards(t);
    open_critics(t);
}

static double number_or(const char *text, double otherwise)
{
    if (strcmp(text, "null") == 0) return HUGE_VAL;
    return *text ? strtod(text, NULL) : otherwise;
}

/* Defaults. With costs they are those of Safe-RLHF. */
static void set_usual(ppo *p, const dt_config *cfg)
{
    p->kl_coef = number_or(cfg->ppo_kl_coef, p->with_costs ? 0.01 : 0.05);
    p->score_clip = number_or(cfg->ppo_score_clip, p->with_costs ? 50 : HUGE_VAL);
    p->cliprange_value = number_or(cfg->ppo_cliprange_value, p->with_costs ? 5 : 0.2);
}

static void set_controllers(ppo *p, const dt_config *cfg)
{
    p->kl = (dt_kl_controller){.coef = p->kl_coef,
                               .adaptive = cfg->ppo_adaptive_kl,
                               .target = cfg->ppo_adaptive_kl_target,
                               .horizon = cfg->ppo_adaptive_kl_horizon};
    p->running = (dt_running){.variance = 1};
    p->costs.room = cfg->ppo_cost_window;
    p->lambda = (dt_multiplier){.lr = cfg->ppo_lambda_lr,
                                .min = cfg->ppo_lambda_min,
                                .max = cfg->ppo_lambda_max,
                                .limit = cfg->ppo_cost_limit,
                                .log_value = log(cfg->ppo_lambda_init)};
}

/* Count whole rollouts: as many as needed for total_episodes. */
static void count_steps(dt_task *t)
{
    const ppo *p = ppo_of(t);
    const dt_config *cfg = t->cfg;
    const int64_t n_prompts = dt_rollout_n_prompts(p->rollout), n_rows = ppo_n_rows(t), n_steps = ppo_n_steps(cfg);
    const int64_t episodes =
        cfg->ppo_total_episodes ? cfg->ppo_total_episodes : (int64_t)ceil(cfg->run_epochs * (double)n_prompts);
    t->schedule_steps = n_steps;
    if (n_prompts == 0) return; /* already reported */
    t->total_steps = dt_ceil_div(episodes, n_rows) * n_steps;
    t->steps_per_epoch = dt_ceil_div(n_prompts, n_rows) * n_steps;
    t->samples_per_epoch = n_prompts * cfg->ppo_num_ppo_epochs;
}

/* Count whole rollouts, each used for several epochs of steps. Returns 0 (unknown) if target_kl may skip steps. */
static int64_t count_all_steps(const dt_config *cfg, double samples_per_epoch, double samples_per_step)
{
    const double episodes = cfg->ppo_total_episodes
                                ? (double)cfg->ppo_total_episodes
                                : cfg->run_epochs * samples_per_epoch / (double)cfg->ppo_num_ppo_epochs;
    const double n_rollouts = ceil(episodes / (samples_per_step * (double)cfg->ppo_num_mini_batches) - 1e-6);
    if (cfg->ppo_target_kl > 0) return 0;
    return (int64_t)n_rollouts * cfg->ppo_num_ppo_epochs * cfg->ppo_num_mini_batches;
}

static void store(dt_task *t)
{
    ppo *p = ppo_of(t);
    dt_task_state(t, "ppo_numbers", DT_NAMED_F64, PPO_N_NUMBERS, p->number, false);
    dt_task_state(t, "ppo_rewards", DT_NAMED_F64, DT_MAX_REWARDS, p->mean, false);
    dt_task_state(t, "ppo_epoch_kl", DT_NAMED_F64, 2, p->epoch_kl, false);
    dt_task_state(t, "scores", DT_NAMED_F64, sizeof p->running / sizeof(double), &p->running, false);
    if (p->kl.adaptive) dt_task_state(t, "kl_coef", DT_NAMED_F64, 1, &p->kl.coef, true);
    if (!p->with_costs) return;
    dt_multiplier_store(&p->lambda, t);
    t->saved_nbytes += (double)(1 + p->costs.room) * 8;
}

static size_t lay_out(void *self, const dt_task *t, void *block)
{
    ppo *p = self;
    const int64_t n = ppo_n_rows(t);
    size_t used = 0;
    p->order = dt_carve(block, &used, n, sizeof *p->order);
    p->reward = dt_carve(block, &used, n * p->n_funcs, sizeof *p->reward);
    p->score = dt_carve(block, &used, n, sizeof *p->score);
    p->cost_of = dt_carve(block, &used, p->with_costs ? n : 0, sizeof *p->cost_of);
    p->costs.last = dt_carve(block, &used, p->with_costs ? p->costs.room : 0, sizeof *p->costs.last);
    p->tokens = dt_carve(block, &used, n, sizeof *p->tokens);
    p->len = dt_carve(block, &used, n, sizeof *p->len);
    return used;
}

static void ppo_open(dt_task *t)
{
    static const dt_task_part_ops arrays = {.lay_out = lay_out};
    ppo *p = t->self;
    dt_task_hold(t, &arrays, p);
    p->with_costs = *t->cfg->ppo_cost_path;
    t->temperature = t->cfg->ppo_temperature + 1e-7; /* as in TRL */
    if (t->cfg->ppo_ent_coef > 0) t->model_opt->head |= DT_HEAD_ENTROPY_WEIGHT;
    set_usual(p, t->cfg);
    set_controllers(p, t->cfg);
    if (p->kl_coef <= 0 && t->cfg->ppo_adaptive_kl)
        dt_mistakes_add(
            t->mistakes,
            dt_config_fail(t->cfg, "ppo", "adaptive_kl",
                           "expected false, or kl_coef above 0, because the adaptive coefficient is a multiple of "
                           "kl_coef"));
    dt_mistakes_add(t->mistakes, open_rollout(t));
    if (!p->rollout) return;
    open_models(t);
    count_steps(t);
    ppo_declare(t);
    dt_rollout_declare(p->rollout, t->sums, "ppo");
    store(t);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

ppo_completion ppo_completion_of(const dt_task *t, const dt_batch *b, int32_t sequence)
{
    const ppo *p = ppo_of(t);
    const dt_rollout_row *row = dt_rollout_row_of(p->rollout, p->row[sequence]);
    return (ppo_completion){.row = p->row[sequence],
                            .first = b->seq_start[sequence] + row->n_prompt - 1,
                            .first_target = b->seq_target[sequence],
                            .n = row->n_new,
                            .n_states = dt_ppo_n_states(row->n_new, (int32_t)t->cfg->ppo_response_length)};
}

/* Compute divisors for means over the minibatch's tokens and states. Every rank knows all lengths. */
static void count_minibatch(dt_task *t)
{
    ppo *p = ppo_of(t);
    const int64_t n = t->batching.train_batch_size;
    int64_t n_tok = 0, n_states = 0;
    for (int64_t i = 0; i < n; i++) {
        const int32_t n_new = dt_rollout_row_of(p->rollout, p->order[p->first + i])->n_new;
        n_tok += n_new, n_states += dt_ppo_n_states(n_new, (int32_t)t->cfg->ppo_response_length);
    }
    p->step = (dt_micro){.n_micro = dt_rollout_n_micro(p->rollout, t, n), .inv_norm = 1 / (double)dt_max_i64(1, n_tok)};
    p->inv_states = 1 / (double)dt_max_i64(1, n_states);
}

static dt_err begin_step(dt_task *t, int64_t step)
{
    ppo *p = ppo_of(t);
    const int64_t n_steps = ppo_n_steps(t->cfg), n_mini = t->cfg->ppo_num_mini_batches;
    const int64_t rollout = step / n_steps, mini = step % n_steps % n_mini;
    if (dt_rollout_number(p->rollout) != rollout) DT_TRY(ppo_roll_out(t, rollout));
    p->epoch = step % n_steps / n_mini;
    p->first = mini * t->batching.train_batch_size;
    if (mini == 0) p->epoch_kl[0] = p->epoch_kl[1] = 0;
    dt_rollout_shuffle(t, rollout, p->epoch, ppo_n_rows(t), p->order);
    count_minibatch(t);
    dt_rollout_collect(p->rollout, t);
    return DT_OK;
}

static dt_err ppo_next_micro(dt_task *t, int64_t step, int micro, dt_micro *m)
{
    ppo *p = ppo_of(t);
    if (micro == 0) DT_TRY(begin_step(t, step));
    *m = p->step;
    return dt_rollout_micro(p->rollout, t, p->order, p->first, t->batching.train_batch_size, micro, &m->batch, &p->row);
}

static dt_err ppo_weights(dt_task *t, const dt_micro *m, const dt_predictions *predicted, dt_weights *w)
{
    const ppo *p = ppo_of(t);
    const dt_batch *b = m->batch;
    for (int32_t s = 0; s < b->n_seq; s++) {
        const ppo_completion c = ppo_completion_of(t, b, s);
        const float *old = dt_rollout_array(p->rollout, PPO_OLD, c.row);
        const float *advantage = dt_rollout_array(p->rollout, PPO_ADVANTAGE, c.row);
        for (int32_t k = 0; k < c.n; k++) {
            const dt_ppo_term term = dt_ppo_policy_loss((double)predicted->logp[c.first_target + k], (double)old[k],
                                                        (double)advantage[k], t->cfg->ppo_cliprange);
            w->u[c.first_target + k] = (float)(term.slope * m->inv_norm);
        }
    }
    for (int64_t i = 0; w->entropy && i < b->n_target; i++) w->entropy[i] = (float)(t->cfg->ppo_ent_coef * m->inv_norm);
    return DT_OK;
}

static dt_err train_critic(dt_task *t, const dt_batch *b, int i)
{
    ppo *p = ppo_of(t);
    dt_critic *critic = &p->critic[i];
    const double weight = t->cfg->ppo_vf_coef * p->inv_states;
    DT_TRY(dt_critic_forward(critic, t, b));
    ppo_collect_critic(t, b, i);
    memset(critic->dvalue, 0, (size_t)b->n_tok * sizeof *critic->dvalue);
    for (int32_t s = 0; s < b->n_seq; s++) {
        const ppo_completion c = ppo_completion_of(t, b, s);
        const float *old = dt_rollout_array(p->rollout, PPO_VALUE + 2 * i, c.row);
        const float *target = dt_rollout_array(p->rollout, PPO_RETURN + 2 * i, c.row);
        for (int32_t k = 0; k < c.n_states; k++) {
            const dt_ppo_term term = dt_ppo_value_loss((double)critic->value[c.first + k], (double)old[k],
                                                       (double)target[k], p->cliprange_value);
            critic->dvalue[c.first + k] = (float)(term.slope * weight);
        }
    }
    return dt_critic_backward(critic, t, b);
}

static dt_err ppo_train_auxiliary(dt_task *t, const dt_micro *m)
{
    for (int i = 0; i < 1 + ppo_of(t)->with_costs; i++) DT_TRY(train_critic(t, m->batch, i));
    return DT_OK;
}

/* Skip the remaining epochs of a rollout if one has moved the policy too far. */
static dt_err ppo_after_step(dt_task *t, int64_t step, bool applied)
{
    ppo *p = ppo_of(t);
    const dt_config *cfg = t->cfg;
    const int64_t n_mini = cfg->ppo_num_mini_batches;
    const bool epoch_ends = p->first == (n_mini - 1) * t->batching.train_batch_size;
    ppo_collect_numbers(t);
    p->epoch_kl[0] += dt_sums_value(t->sums, p->sums.approxkl);
    p->epoch_kl[1] += dt_sums_value(t->sums, p->sums.n_tok);
    if (cfg->ppo_target_kl > 0 && epoch_ends && p->epoch_kl[0] > cfg->ppo_target_kl * p->epoch_kl[1])
        t->left_out = (cfg->ppo_num_ppo_epochs - 1 - p->epoch) * n_mini;
    return DT_OK;
}

/* ---- state for a resume ------------------------------------------------------------------------------------------ */

static dt_err ppo_save(dt_task *t, dt_named_arrays *items)
{
    const ppo *p = ppo_of(t);
    DT_TRY(dt_rollout_save(p->rollout, t, items));
    return dt_comm_agree(t->comm, p->with_costs ? dt_window_save(&p->costs, items) : DT_OK);
}

static dt_err ppo_load(dt_task *t, const dt_named_arrays *items)
{
    ppo *p = ppo_of(t);
    const bool has_costs = p->with_costs && dt_named_arrays_find(items, "costs");
    DT_TRY(dt_rollout_load(p->rollout, t, items));
    return dt_comm_agree(t->comm, has_costs ? dt_window_load(&p->costs, items) : DT_OK);
}

const dt_task_ops dt_task_ppo = {.name = "ppo",
                                 .trains = true,
                                 .no_dropout = true,
                                 .images = true,
                                 .watch = {"ppo/objective/scores"},
                                 .self_nbytes = sizeof(ppo),
                                 .check = check,
                                 .open = ppo_open,
                                 .next_micro = ppo_next_micro,
                                 .weights = ppo_weights,
                                 .train_auxiliary = ppo_train_auxiliary,
                                 .collect = ppo_collect,
                                 .after_step = ppo_after_step,
                                 .count_steps = count_all_steps,
                                 .save = ppo_save,
                                 .load = ppo_load};
