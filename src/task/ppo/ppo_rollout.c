/* ppo_rollout.c - a rollout from prompts to advantages (algorithms.md 4.2, 4.3, 4.5).
 *
 * Models process the rows in the micro-batches of the first epoch, so that its first step starts from exactly the
 * values of the rollout. Every rank then does the remaining, small work for all rows, without communication. */
#include "ppo.h"
#include <float.h>
#include <math.h>
#include <string.h>

/* ---- scores of models -------------------------------------------------------------------------------------------- */

static void copy(float *out, const float *from, const dt_batch *b)
{
    memcpy(out, from, (size_t)b->n_tok * sizeof *out);
}

static dt_err by_judge(void *self, dt_task *t, const dt_batch *b, float *out)
{
    dt_judge *j = self;
    DT_TRY(dt_judge_score(j, t, b));
    copy(out, j->value, b);
    return DT_OK;
}

static dt_err by_critic(void *self, dt_task *t, const dt_batch *b, float *out)
{
    dt_critic *c = self;
    DT_TRY(dt_critic_forward(c, t, b));
    copy(out, c->value, b);
    return DT_OK;
}

/* A safety model scores the whole text at its last token. The cost is the negative score. */
static dt_err find_costs(dt_task *t)
{
    ppo *p = ppo_of(t);
    DT_TRY(dt_rollout_score(p->rollout, t, p->order, by_judge, &p->cost, DT_SCORED_TOKENS, PPO_COST_RETURN));
    for (int64_t i = 0; i < ppo_n_rows(t); i++)
        p->cost_of[i] =
            -(double)dt_rollout_array(p->rollout, PPO_COST_RETURN, i)[dt_rollout_row_of(p->rollout, i)->n_new];
    return DT_OK;
}

static dt_err ask_models(dt_task *t)
{
    ppo *p = ppo_of(t);
    DT_TRY(dt_rollout_score(p->rollout, t, p->order, dt_rollout_policy, NULL, DT_SCORED_TARGETS, PPO_OLD));
    DT_TRY(dt_rollout_score(p->rollout, t, p->order, dt_reference_scores, &p->reference, DT_SCORED_TARGETS,
                            PPO_REFERENCE));
    DT_TRY(dt_rollout_score(p->rollout, t, p->order, by_critic, &p->critic[0], DT_SCORED_TOKENS, PPO_VALUE));
    if (!p->with_costs) return DT_OK;
    DT_TRY(dt_rollout_score(p->rollout, t, p->order, by_critic, &p->critic[1], DT_SCORED_TOKENS, PPO_COST_VALUE));
    return find_costs(t);
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

/* Rewards in a file of rollouts are used instead of functions. */
static dt_err ask_functions(dt_task *t)
{
    ppo *p = ppo_of(t);
    int n;
    const double *const given = dt_rollout_given_rewards(p->rollout, &n), *reward = given ? given : p->reward;
    const double *const weight = p->rewards ? dt_rewards_weights(p->rewards) : NULL;
    if (!given) {
        n = dt_rewards_n(p->rewards);
        DT_TRY(dt_rewards_score(p->rewards, t, p->rollout, p->order, 0, p->reward));
    } else if (p->rewards)
        memcpy(p->reward, given, (size_t)(ppo_n_rows(t) * n) * sizeof *given);
    for (int64_t i = 0; i < ppo_n_rows(t); i++) p->score[i] = dt_reward_total(n, weight, reward + i * n);
    return DT_OK;
}

static void average_functions(dt_task *t)
{
    ppo *p = ppo_of(t);
    const int n_funcs = ppo_n_functions(p);
    for (int f = 0; f < n_funcs; f++) {
        double sum = 0;
        int64_t n = 0;
        for (int64_t i = 0; i < ppo_n_rows(t); i++) {
            const double reward = p->reward[i * n_funcs + f];
            if (!isnan(reward)) sum += reward, n++;
        }
        p->mean[f] = n > 0 ? sum / (double)n : 0;
    }
}

/* Uses the moments of all scores so far, including these. */
static void scale_scores(dt_task *t)
{
    ppo *p = ppo_of(t);
    const dt_config *cfg = t->cfg;
    if (!cfg->ppo_use_score_scaling) return;
    dt_running_update(&p->running, p->score, ppo_n_rows(t));
    const double factor = 1 / (dt_running_std(&p->running) + FLT_EPSILON);
    const double mean = cfg->ppo_use_score_norm ? p->running.mean : 0;
    for (int64_t i = 0; i < ppo_n_rows(t); i++) p->score[i] = (p->score[i] - mean) * factor;
}

static void settle_scores(dt_task *t)
{
    ppo *p = ppo_of(t);
    const double most = p->score_clip;
    for (int64_t i = 0; i < ppo_n_rows(t); i++) {
        if (isnan(p->score[i])) p->score[i] = 0; /* no function applies */
        if (!dt_rollout_row_of(p->rollout, i)->ended) p->score[i] -= t->cfg->ppo_missing_eos_penalty;
    }
    scale_scores(t);
    for (int64_t i = 0; i < ppo_n_rows(t); i++) p->score[i] = fmin(fmax(p->score[i], -most), most);
}

/* ---- advantages -------------------------------------------------------------------------------------------------- */

/* Stores the rewards of all tokens in the array of advantages, and those of costs in the array of their returns. The
 * divergence penalty counts in both. */
static void find_rewards(dt_task *t)
{
    ppo *p = ppo_of(t);
    const dt_kl_estimator how = strcmp(t->cfg->ppo_kl_estimator, "k3") == 0 ? DT_KL_K3 : DT_KL_K1;
    const dt_ppo_penalty taken = {how, p->kl.coef}, added = {how, -p->kl.coef};
    const int64_t n_rows = ppo_n_rows(t);
    double kl = 0, entropy = 0, score = 0, cost = 0;
    int64_t n_ended = 0;
    for (int64_t i = 0; i < n_rows; i++) {
        const dt_rollout_row *row = dt_rollout_row_of(p->rollout, i);
        const int32_t n = row->n_new, n_states = dt_ppo_n_states(n, (int32_t)t->cfg->ppo_response_length);
        const float *old = dt_rollout_array(p->rollout, PPO_OLD, i);
        const float *reference = dt_rollout_array(p->rollout, PPO_REFERENCE, i);
        p->tokens[i] = dt_rollout_array(p->rollout, PPO_ADVANTAGE, i), p->len[i] = n_states;
        kl += dt_ppo_rewards(&taken, old, reference, n, n_states, p->score[i], p->tokens[i]);
        for (int32_t k = 0; k < n; k++) entropy -= (double)old[k];
        score += p->score[i], n_ended += row->ended;
        if (!p->with_costs) continue;
        dt_ppo_rewards(&added, old, reference, n, n_states, p->cost_of[i],
                       dt_rollout_array(p->rollout, PPO_COST_RETURN, i));
        cost += p->cost_of[i];
    }
    const double each = 1 / (double)n_rows;
    p->number[PPO_KL] = kl * each, p->number[PPO_ENTROPY] = entropy * each, p->number[PPO_SCORES] = score * each;
    p->number[PPO_NON_SCORE] = -p->kl.coef * kl * each;
    p->number[PPO_RLHF] = p->number[PPO_NON_SCORE] + p->number[PPO_SCORES];
    p->number[PPO_EOS] = (double)n_ended, p->number[PPO_KL_COEF] = p->kl.coef, p->number[PPO_COSTS] = cost * each;
}

/* Replaces rewards by advantages, and adds the values to get returns. */
static void find_returns(const dt_task *t, const float *value, int32_t n_states, float *reward, float *returns)
{
    dt_ppo_advantages(value, n_states, t->cfg->ppo_gamma, t->cfg->ppo_lam, reward);
    for (int32_t k = 0; k < n_states && returns != reward; k++) returns[k] = reward[k] + value[k];
}

static void find_advantages(dt_task *t)
{
    ppo *p = ppo_of(t);
    const double lambda = dt_multiplier_value(&p->lambda);
    const int64_t n_rows = ppo_n_rows(t);
    if (t->cfg->ppo_whiten_rewards) dt_ppo_whiten(p->tokens, p->len, n_rows, true);
    for (int64_t i = 0; i < n_rows; i++) {
        const int32_t n_states = p->len[i];
        float *advantage = p->tokens[i];
        find_returns(t, dt_rollout_array(p->rollout, PPO_VALUE, i), n_states, advantage,
                     dt_rollout_array(p->rollout, PPO_RETURN, i));
        p->len[i] = dt_rollout_row_of(p->rollout, i)->n_new;
        if (!p->with_costs) continue;
        const float *value = dt_rollout_array(p->rollout, PPO_COST_VALUE, i);
        float *of_cost = dt_rollout_array(p->rollout, PPO_COST_RETURN, i);
        find_returns(t, value, n_states, of_cost, of_cost);
        for (int32_t k = 0; k < n_states; k++) {
            advantage[k] = (float)dt_ppo_combined((double)advantage[k], (double)of_cost[k], lambda);
            of_cost[k] += value[k];
        }
    }
    dt_ppo_whiten(p->tokens, p->len, n_rows, false);
}

/* Update the controllers for the next rollout. */
static void update_controllers(dt_task *t)
{
    ppo *p = ppo_of(t);
    const int64_t n_rows = ppo_n_rows(t);
    dt_kl_controller_update(&p->kl, p->number[PPO_KL], n_rows);
    if (!p->with_costs) return;
    for (int64_t i = 0; i < n_rows; i++) dt_window_add(&p->costs, p->cost_of[i]);
    p->number[PPO_LAMBDA] = dt_multiplier_value(&p->lambda);
    p->number[PPO_EPISODE_COST] = dt_window_mean(&p->costs);
    dt_multiplier_step(&p->lambda, p->number[PPO_EPISODE_COST]);
}

static dt_err make(dt_task *t, int64_t number)
{
    ppo *p = ppo_of(t);
    DT_TRY(dt_rollout_fill(p->rollout, t));
    dt_rollout_shuffle(t, number, 0, ppo_n_rows(t), p->order);
    DT_TRY(ask_models(t));
    return ask_functions(t);
}

static const char *const *names_of(const ppo *p)
{
    static const char *const of_file[] = {"reward"};
    return p->rewards ? dt_rewards_names(p->rewards) : of_file;
}

/* Watch the functions, or without them the score of the file. */
static void watch_rewards(dt_task *t)
{
    ppo *p = ppo_of(t);
    const dt_watched_rewards rewards = {.reward = p->rewards ? p->reward : p->score,
                                        .n_rows = ppo_n_rows(t),
                                        .n_ended = dt_rollout_n_ended(p->rollout),
                                        .group_len = ppo_n_rows(t),
                                        .stride = p->n_funcs};
    dt_reward_watch_rollout(p->watch, p->n_funcs, names_of(p), &rewards, dt_comm_first(t->comm));
}

dt_err ppo_roll_out(dt_task *t, int64_t number)
{
    ppo *p = ppo_of(t);
    dt_rollout_start(p->rollout, number);
    const dt_err err = make(t, number);
    if (err == DT_ERR_STOP) dt_rollout_undo(p->rollout);
    DT_TRY(err);
    average_functions(t);
    watch_rewards(t);
    settle_scores(t);
    find_rewards(t);
    find_advantages(t);
    update_controllers(t);
    return dt_rollout_write(p->rollout, t, p->n_funcs, names_of(p), p->rewards ? p->reward : p->score, NULL);
}
