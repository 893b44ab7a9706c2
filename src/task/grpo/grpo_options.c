/* grpo_options.c - read and validate [grpo]. */
#include "grpo.h"
#include "dtrain/core/plural.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- batches ----------------------------------------------------------------------------------------------------- */

int64_t grpo_generation_size(const dt_task *t)
{
    const dt_config *cfg = t->cfg;
    if (cfg->grpo_generation_batch_size) return cfg->grpo_generation_batch_size;
    if (!cfg->grpo_steps_per_generation) return t->batching.train_batch_size;
    return cfg->grpo_steps_per_generation * t->batching.micro_batch_size * t->data->size;
}

/* All generations of a step use the same weights, so they are created together. */
int64_t grpo_n_rows(const dt_task *t) { return dt_max_i64(grpo_generation_size(t), t->batching.train_batch_size); }

int64_t grpo_n_steps(const dt_task *t)
{
    return grpo_n_rows(t) / t->batching.train_batch_size * t->cfg->grpo_num_iterations;
}

/* True if batches are placeholders: the configured ones were refused, or a plan tries others. */
static bool is_stand_in(const dt_task *t)
{
    const int64_t batch = t->cfg->batch_train_batch_size, micro = t->cfg->batch_micro_batch_size;
    return (batch && batch != t->batching.train_batch_size) || (micro && micro != t->batching.micro_batch_size);
}

static dt_err check_generation(const dt_task *t)
{
    const dt_config *cfg = t->cfg;
    const int64_t n_rows = grpo_generation_size(t), batch = t->batching.train_batch_size,
                  group = cfg->grpo_num_generations;
    if (is_stand_in(t)) return DT_OK;
    DT_CONFIG_CHECK(!cfg->grpo_generation_batch_size || !cfg->grpo_steps_per_generation, cfg, "grpo",
                    "generation_batch_size", "expected only one of steps_per_generation and generation_batch_size");
    const bool whole = n_rows % batch == 0 || batch % n_rows == 0;
    DT_CONFIG_CHECK(!cfg->grpo_generation_batch_size || whole, cfg, "grpo", "generation_batch_size",
                    "expected a multiple or a divisor of batch.train_batch_size = %" PRId64 ", found %" PRId64
                    "; the nearest multiple above is %" PRId64,
                    batch, n_rows, dt_ceil_div(n_rows, batch) * batch);
    DT_CONFIG_CHECK(whole, cfg, "grpo", "steps_per_generation",
                    "expected a multiple or a divisor of the %" PRId64
                    " micro-steps of an optimizer step, found %" PRId64
                    ": no optimizer step may use part of a generation",
                    t->batching.accumulation, cfg->grpo_steps_per_generation);
    DT_CONFIG_CHECK(n_rows >= batch || cfg->grpo_num_iterations == 1, cfg, "grpo", "num_iterations",
                    "expected 1, because an optimizer step uses several generations (%" PRId64
                    " completions per generation, %" PRId64 " per step) and would use each %" PRId64 " times",
                    n_rows, batch, cfg->grpo_num_iterations);
    DT_CONFIG_CHECK(n_rows % group == 0, cfg, "grpo", "num_generations",
                    "a generation has %" PRId64 " completion%s: expected a multiple of num_generations = %" PRId64
                    "; the next one is %" PRId64 " (set batch.train_batch_size or generation_batch_size)",
                    n_rows, dt_plural(n_rows), group, dt_ceil_div(n_rows, group) * group);
    return DT_OK;
}

static dt_err check_overlong(const dt_config *cfg)
{
    const int64_t longest =
        cfg->grpo_overlong_max_length ? cfg->grpo_overlong_max_length : cfg->grpo_max_completion_length;
    DT_CONFIG_CHECK(cfg->grpo_overlong_cache <= longest, cfg, "grpo", "overlong_cache",
                    "expected at most the maximum completion length, %" PRId64 " tokens, found %" PRId64, longest,
                    cfg->grpo_overlong_cache);
    return DT_OK;
}

/* An environment answers sampled completions. */
static dt_err check_environment(const dt_config *cfg)
{
    const bool generates = *cfg->grpo_environment && !*cfg->grpo_rollouts;
    DT_CONFIG_CHECK(!generates || !*cfg->rec_catalogue, cfg, "grpo", "environment",
                    "expected none with rec.catalogue, whose items are whole completions");
    DT_CONFIG_CHECK(!generates || !grpo_makes_beams(cfg), cfg, "grpo", "rollout",
                    "expected sample with grpo.environment, because beams of a search share their text; found beam");
    return DT_OK;
}

bool grpo_makes_beams(const dt_config *cfg) { return strcmp(cfg->grpo_rollout, "beam") == 0; }

/* ---- the loss ---------------------------------------------------------------------------------------------------- */

static double or_else(const char *text, double otherwise) { return *text ? strtod(text, NULL) : otherwise; }

static void read_divergence(grpo *g, const dt_config *cfg)
{
    const bool automatic = strcmp(cfg->grpo_kl_in_reward, "auto") == 0,
               in_reward =
                   automatic ? dt_estimators[g->rule.type].kl_in_reward : strcmp(cfg->grpo_kl_in_reward, "true") == 0;
    g->beta = cfg->grpo_beta;
    g->kl_in_reward = in_reward && g->beta > 0;
    g->rule.kl_coef = g->kl_in_reward ? g->beta : 0;
}

void grpo_read_options(grpo *g, const dt_config *cfg)
{
    dt_grpo_loss *l = &g->loss_of;
    g->rule = (dt_advantage_rule){.num_generations = (int)cfg->grpo_num_generations,
                                  .weight = g->weight,
                                  .scale = strcmp(cfg->grpo_scale_rewards, "group") == 0   ? DT_SCALED_BY_GROUP
                                           : strcmp(cfg->grpo_scale_rewards, "batch") == 0 ? DT_SCALED_BY_BATCH
                                                                                           : DT_UNSCALED,
                                  .normalize_then_sum =
                                      strcmp(cfg->grpo_multi_objective_aggregation, "normalize_then_sum") == 0,
                                  .normalize = cfg->grpo_normalize_advantages,
                                  .clips = *cfg->grpo_reward_clip_range};
    while (strcmp(cfg->grpo_advantage, dt_estimators[g->rule.type].name) != 0) g->rule.type++;
    read_divergence(g, cfg);
    *l = (dt_grpo_loss){.sequence_level = strcmp(cfg->grpo_importance_sampling_level, "sequence") == 0,
                        .product = strcmp(cfg->grpo_importance_sampling_level, "product") == 0,
                        .epsilon = cfg->grpo_epsilon,
                        .epsilon_high = or_else(cfg->grpo_epsilon_high, cfg->grpo_epsilon),
                        .delta = or_else(cfg->grpo_delta, INFINITY),
                        .beta = g->kl_in_reward ? 0 : g->beta,
                        .k2 = strcmp(cfg->grpo_kl_estimator, "k2") == 0,
                        .use_bias_correction_kl = cfg->grpo_use_bias_correction_kl,
                        .sapo_temperature_pos = cfg->grpo_sapo_temperature_pos,
                        .sapo_temperature_neg = cfg->grpo_sapo_temperature_neg,
                        .vespo_k_pos = cfg->grpo_vespo_k_pos,
                        .vespo_lambda_pos = cfg->grpo_vespo_lambda_pos,
                        .vespo_k_neg = cfg->grpo_vespo_k_neg,
                        .vespo_lambda_neg = cfg->grpo_vespo_lambda_neg,
                        .off_policy_mask_threshold = or_else(cfg->grpo_off_policy_mask_threshold, INFINITY),
                        .max_completion_length = (int32_t)cfg->grpo_max_completion_length};
    while (strcmp(cfg->grpo_loss_type, dt_grpo_type_names[l->type]) != 0) l->type++;
}

/* ---- combinations of keys ---------------------------------------------------------------------------------------- */

static bool weighs_by_length(dt_grpo_type type)
{
    return type == DT_BNPO || type == DT_DR_GRPO || type == DT_DAPO || type == DT_CISPO;
}

static dt_err read_clip_range(grpo *g, const dt_config *cfg)
{
    char *end = NULL, *last = NULL;
    if (!g->rule.clips) return DT_OK;
    g->rule.least = strtod(cfg->grpo_reward_clip_range, &end);
    const bool two = end != cfg->grpo_reward_clip_range && *(end += strspn(end, " ")) == ',';
    if (two) g->rule.most = strtod(end + 1, &last);
    DT_CONFIG_CHECK(two && last != end + 1 && !last[strspn(last, " ")] && g->rule.least <= g->rule.most, cfg, "grpo",
                    "reward_clip_range", "expected two numbers, MIN, MAX, the lower one first; found %s",
                    cfg->grpo_reward_clip_range);
    return DT_OK;
}

/* Keys that only some estimators use. */
static dt_err check_advantage(const grpo *g, const dt_config *cfg)
{
    const dt_estimator *e = &dt_estimators[g->rule.type];
    const bool of_group = g->rule.type == DT_ADVANTAGE_GROUP;
    DT_CONFIG_CHECK(cfg->grpo_num_generations > 1 || !e->compares, cfg, "grpo", "num_generations",
                    "expected at least 2, because advantage = %s compares the completions of a prompt; found 1",
                    e->name);
    DT_CONFIG_CHECK(cfg->grpo_num_generations > 1 || !cfg->grpo_dynamic_sampling, cfg, "grpo", "dynamic_sampling",
                    "expected false with num_generations = 1, because no prompt has completions to compare");
    DT_CONFIG_CHECK(of_group || !dt_config_differs(cfg, "grpo", "scale_rewards"), cfg, "grpo", "scale_rewards",
                    "expected the default, because advantage = %s does not use it", e->name);
    DT_CONFIG_CHECK(!g->rule.normalize_then_sum || (of_group && !g->kl_in_reward), cfg, "grpo",
                    "multi_objective_aggregation",
                    "expected sum_then_normalize: normalize_then_sum needs advantage = group and no divergence in the "
                    "reward (kl_in_reward)");
    DT_CONFIG_CHECK(!g->rule.normalize_then_sum || !g->rule.clips, cfg, "grpo", "reward_clip_range",
                    "expected none with multi_objective_aggregation = normalize_then_sum, which has no weighted sum of "
                    "rewards to clip");
    DT_CONFIG_CHECK(!g->rule.normalize || e->normalizes, cfg, "grpo", "normalize_advantages",
                    "expected false, because advantage = %s %s", e->name,
                    e->of_tokens ? "always normalises them" : "has scale_rewards for this");
    DT_CONFIG_CHECK(!cfg->grpo_use_bias_correction_kl || !g->kl_in_reward, cfg, "grpo", "use_bias_correction_kl",
                    "expected false, because the divergence is part of the reward (kl_in_reward), not of the loss");
    DT_CONFIG_CHECK(!dt_config_differs(cfg, "grpo", "kl_estimator") || !g->kl_in_reward, cfg, "grpo", "kl_estimator",
                    "expected the default, because the divergence is part of the reward (kl_in_reward), not of the "
                    "loss");
    return DT_OK;
}

/* keys: terminated by NULL. */
static void warn_of_unused(const dt_config *cfg, const char *const *keys, const char *why)
{
    for (; *keys; keys++)
        if (dt_config_differs(cfg, "grpo", *keys)) DT_WARN("grpo.%s is not used: %s", *keys, why);
}

static void warn(const grpo *g, const dt_task *t)
{
    const dt_config *cfg = t->cfg;
    const dt_grpo_loss *l = &g->loss_of;
    static const char *const of_reference[] = {"reference_path",
                                               "sync_reference_steps",
                                               "sync_reference_mixup",
                                               "use_bias_correction_kl",
                                               "kl_in_reward",
                                               "kl_estimator",
                                               NULL},
                             *const of_draws[] = {"top_k", "top_p", "min_p", NULL},
                             *const of_turns[] = {"environment", "max_tool_calling_iterations", NULL};
    if (t->comm && !dt_comm_first(t->comm)) return;
    if (*cfg->grpo_rollouts) warn_of_unused(cfg, of_turns, "completions come from grpo.rollouts");
    if (!*cfg->grpo_environment) warn_of_unused(cfg, of_turns + 1, "there is no grpo.environment");
    if (cfg->grpo_beta == 0) warn_of_unused(cfg, of_reference, "with beta = 0 there is no reference");
    if (grpo_makes_beams(cfg)) warn_of_unused(cfg, of_draws, "rollout = beam does not sample");
    if ((l->sequence_level || l->product) && weighs_by_length(l->type))
        DT_WARN(
            "[grpo] importance_sampling_level = %s with loss_type = %s weights completions by their length; for %s, "
            "set loss_type = grpo",
            cfg->grpo_importance_sampling_level, cfg->grpo_loss_type, l->product ? "RLOO" : "GSPO");
    if (!l->sequence_level && l->type == DT_LUSPO)
        DT_WARN("[grpo] loss_type = luspo is intended for importance_sampling_level = sequence");
    if ((l->sequence_level || l->product) && l->type == DT_VESPO)
        DT_WARN("[grpo] importance_sampling_level has no effect with loss_type = vespo, which uses its own ratio per "
                "completion");
    if (l->beta > 0 && !l->use_bias_correction_kl)
        DT_INFO("grpo.use_bias_correction_kl = false: the divergence from the reference is not multiplied by the "
                "ratio; TRL 1.16 and later multiply it by default");
}

void grpo_check(grpo *g, const dt_task *t)
{
    dt_mistakes_add(t->mistakes, check_generation(t));
    dt_mistakes_add(t->mistakes, check_advantage(g, t->cfg));
    dt_mistakes_add(t->mistakes, read_clip_range(g, t->cfg));
    if (t->cfg->grpo_top_p == 0)
        dt_mistakes_add(t->mistakes, dt_config_fail(t->cfg, "grpo", "top_p", "expected a number above 0, found 0"));
    dt_mistakes_add(t->mistakes, check_overlong(t->cfg));
    dt_mistakes_add(t->mistakes, check_environment(t->cfg));
    warn(g, t);
}
