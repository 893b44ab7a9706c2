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

bool grpo_makes_beams(const dt_config *cfg) { return strcmp(cfg->grpo_rollout, "beam") == 0; }

/* ---- the loss ---------------------------------------------------------------------------------------------------- */

static double or_else(const char *text, double otherwise) { return *text ? strtod(text, NULL) : otherwise; }

void grpo_read_options(grpo *g, const dt_config *cfg)
{
    dt_grpo_loss *l = &g->loss_of;
    *l = (dt_grpo_loss){.sequence_level = strcmp(cfg->grpo_importance_sampling_level, "sequence") == 0,
                        .epsilon = cfg->grpo_epsilon,
                        .epsilon_high = or_else(cfg->grpo_epsilon_high, cfg->grpo_epsilon),
                        .delta = or_else(cfg->grpo_delta, INFINITY),
                        .beta = cfg->grpo_beta,
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
    g->rule = (dt_advantage_rule){.num_generations = (int)cfg->grpo_num_generations,
                                  .weight = g->weight,
                                  .scale = strcmp(cfg->grpo_scale_rewards, "group") == 0   ? DT_SCALED_BY_GROUP
                                           : strcmp(cfg->grpo_scale_rewards, "batch") == 0 ? DT_SCALED_BY_BATCH
                                                                                           : DT_UNSCALED,
                                  .normalize_then_sum =
                                      strcmp(cfg->grpo_multi_objective_aggregation, "normalize_then_sum") == 0};
}

/* ---- combinations of keys ---------------------------------------------------------------------------------------- */

static bool weighs_by_length(dt_grpo_type type)
{
    return type == DT_BNPO || type == DT_DR_GRPO || type == DT_DAPO || type == DT_CISPO;
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
    static const char *const of_reference[] = {"reference_path", "sync_reference_steps", "sync_reference_mixup",
                                               "use_bias_correction_kl", NULL},
                             *const of_draws[] = {"top_k", "top_p", "min_p", NULL};
    if (t->comm && !dt_comm_first(t->comm)) return;
    if (cfg->grpo_beta == 0) warn_of_unused(cfg, of_reference, "with beta = 0 there is no reference");
    if (grpo_makes_beams(cfg)) warn_of_unused(cfg, of_draws, "rollout = beam does not sample");
    if (l->sequence_level && weighs_by_length(l->type))
        DT_WARN("[grpo] importance_sampling_level = sequence with loss_type = %s weights completions by their length; "
                "for GSPO, set loss_type = grpo",
                cfg->grpo_loss_type);
    if (!l->sequence_level && l->type == DT_LUSPO)
        DT_WARN("[grpo] loss_type = luspo is intended for importance_sampling_level = sequence");
    if (l->sequence_level && l->type == DT_VESPO)
        DT_WARN("[grpo] importance_sampling_level has no effect with loss_type = vespo, which uses its own ratio per "
                "completion");
    if (l->beta > 0 && !l->use_bias_correction_kl)
        DT_INFO("grpo.use_bias_correction_kl = false: the divergence from the reference is not multiplied by the "
                "ratio; TRL 1.16 and later multiply it by default");
}

void grpo_check(const grpo *g, const dt_task *t)
{
    dt_mistakes_add(t->mistakes, check_generation(t));
    if (t->cfg->grpo_top_p == 0)
        dt_mistakes_add(t->mistakes, dt_config_fail(t->cfg, "grpo", "top_p", "expected a number above 0, found 0"));
    dt_mistakes_add(t->mistakes, check_overlong(t->cfg));
    warn(g, t);
}
