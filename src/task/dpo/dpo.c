/* dpo.c - direct preference optimisation: aligns a model with pairs of a better and a worse answer, against a frozen
 * reference (algorithms.md 3). With S the sum of an answer's log-probabilities, its ratio is S_policy - S_reference.
 * A loss depends on the two ratios of a pair. All tokens of an answer have the same weight: minus the loss's
 * derivative by the answer's ratio. One forward computes both answers.
 *
 * A frozen judge may score how helpful an answer is (MM-DPO), and a second one how safe it is (Safe-MM-DPO). A
 * multiplier then weighs safety. It is updated after each step from sums over all ranks. */
#include "dpo.h"
#include "dtrain/step/step.h"
#include "../pairs.h"
#include "dtrain/core/plural.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void check(dt_task *t)
{
    answers_check_policy(t);
    if (t->comm && t->cfg->dpo_precompute_reference)
        dt_task_need(t, "run", "output_dir", t->cfg->run_output_dir,
                     "a directory for the precomputed log-probabilities");
}

static dt_err count_validation(const dt_task *t, dpo *d)
{
    const int64_t n_steps = t->valid ? dt_loader_info(t->valid)->steps_per_epoch : 0;
    int64_t n_samples = 0, n_chosen = 0;
    for (int64_t step = 0; step < n_steps; step++) {
        dt_step_counts counts;
        DT_TRY(dt_loader_step_counts(t->valid, step, &counts));
        n_samples += counts.n_samples, n_chosen += counts.n_chosen;
    }
    if (n_chosen > 0) d->pairs_per_token[1] = (double)n_samples / (double)n_chosen;
    return DT_OK;
}

static const char *judge_path(const dt_config *cfg, int goal)
{
    return goal == DPO_HELPFUL ? cfg->dpo_helpful_path : cfg->dpo_harmless_path;
}

static dt_err check_settings(const dt_config *cfg, const dpo *d)
{
    const dt_dpo_loss *l = &d->loss_of;
    const char *own_mean = dt_dpo_averages(l);
    DT_CONFIG_CHECK(!cfg->dpo_average || !own_mean, cfg, "dpo", "average",
                    "expected false, because loss_type = %s already divides by the lengths of answers", own_mean);
    DT_CONFIG_CHECK(dt_dpo_weight(l, DT_DPO_SIMPO) > 0 || !dt_config_differs(cfg, "dpo", "simpo_gamma"), cfg, "dpo",
                    "simpo_gamma", "expected the default for this loss_type: only simpo has a margin");
    DT_CONFIG_CHECK(!l->sft_on_prompt || d->kl_coef == 0, cfg, "dpo", "kl_coef",
                    "expected 0, because the divergence is averaged over answers, but the term sft over whole texts "
                    "(sft_on_prompt)");
    DT_CONFIG_CHECK(!cfg->dpo_precompute_reference || cfg->dpo_sync_reference_steps == 0, cfg, "dpo",
                    "precompute_reference",
                    "expected false with sync_reference_steps, because such a reference changes during training");
    DT_CONFIG_CHECK(
        !cfg->dpo_precompute_reference || !d->full_kl, cfg, "dpo", "kl_estimator",
        "expected k3, because full needs the reference in memory and precompute_reference does not keep it");
    DT_CONFIG_CHECK(!cfg->dpo_use_wpo || !dt_dpo_needs_partners(l), cfg, "dpo", "use_wpo",
                    "expected false, because loss_type = aot and aot_unpaired compare answers of different pairs, "
                    "which have no joint weight");
    DT_CONFIG_CHECK(
        d->beta_rule != DPO_BETA_OF_BATCH || (!*cfg->dpo_helpful_path && !*cfg->dpo_harmless_path), cfg, "dpo",
        "dynamic_beta",
        "expected margin or factor, because batch cannot use the margins of judges (helpful_path, harmless_path)");
    DT_CONFIG_CHECK(d->beta_rule != DPO_BETA_OF_BATCH || !dt_dpo_needs_partners(l), cfg, "dpo", "dynamic_beta",
                    "batch skips pairs, but loss_type = aot and aot_unpaired compare answers of different pairs; "
                    "choose another dynamic_beta");
    return dt_multiplier_check(cfg, "dpo", cfg->dpo_lambda_min, cfg->dpo_lambda_max, cfg->dpo_lambda_init);
}

/* Keys of the reference, for losses that have none. */
static dt_err check_alone(const dt_config *cfg, const dpo *d)
{
    static const char *const keys[] = {"reference_path",         "precompute_reference", "sync_reference_steps",
                                       "sync_reference_mixup",   "kl_estimator",         "f_divergence",
                                       "f_alpha_divergence_coef"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        DT_CONFIG_CHECK(!dt_config_differs(cfg, "dpo", keys[i]), cfg, "dpo", keys[i],
                        "expected the default, because loss_type = %s has no reference", cfg->dpo_loss_type);
    DT_CONFIG_CHECK(d->kl_coef == 0, cfg, "dpo", "kl_coef", "expected 0, because loss_type = %s has no reference",
                    cfg->dpo_loss_type);
    DT_CONFIG_CHECK(
        d->beta_rule != DPO_BETA_OF_BATCH, cfg, "dpo", "dynamic_beta",
        "expected margin or factor, because batch compares ratios to a reference and loss_type = %s has none",
        cfg->dpo_loss_type);
    return DT_OK;
}

static double usual_beta_w(dpo_beta_rule rule)
{
    static const double usual[] = {[DPO_BETA_OF_MARGIN] = 0.5, [DPO_BETA_OF_FACTOR] = 0.1, [DPO_BETA_OF_BATCH] = 0.6};
    return usual[rule];
}

static void read_batch_beta(dpo *d, const dt_config *cfg)
{
    if (strcmp(cfg->dpo_dynamic_beta, "factor") == 0) d->beta_rule = DPO_BETA_OF_FACTOR;
    if (strcmp(cfg->dpo_dynamic_beta, "batch") == 0) d->beta_rule = DPO_BETA_OF_BATCH;
    d->batch_beta = (dt_batch_beta){.beta = cfg->dpo_beta,
                                    .keep = cfg->dpo_beta_keep,
                                    .momentum = cfg->dpo_beta_momentum,
                                    .seed = (uint64_t)cfg->run_seed,
                                    .value = cfg->dpo_beta};
}

static dt_err read_settings(const dt_task *t, dpo *d)
{
    const dt_config *cfg = t->cfg;
    read_batch_beta(d, cfg);
    for (int goal = 0; goal < DPO_GOALS; goal++) d->has_judge[goal] = *judge_path(cfg, goal);
    const bool harmless = d->has_judge[DPO_HARMLESS];
    d->beta_w = *cfg->dpo_beta_w ? strtod(cfg->dpo_beta_w, NULL) : usual_beta_w(d->beta_rule);
    d->batch_beta.w = d->beta_w;
    d->multiplier = (dt_multiplier){.lr = cfg->dpo_lambda_lr,
                                    .min = cfg->dpo_lambda_min,
                                    .max = cfg->dpo_lambda_max,
                                    .limit = cfg->dpo_cost_limit,
                                    .log_value = log(cfg->dpo_lambda_init)};
    DT_TRY(dt_dpo_loss_make(&d->loss_of, cfg));
    d->kl_coef = *cfg->dpo_kl_coef                                 ? strtod(cfg->dpo_kl_coef, NULL)
                 : harmless && dt_dpo_needs_reference(&d->loss_of) ? 0.1
                                                                   : 0;
    d->alone = !dt_dpo_needs_reference(&d->loss_of);
    if (d->alone) DT_TRY(check_alone(cfg, d));
    d->full_kl = d->kl_coef > 0 && strcmp(cfg->dpo_kl_estimator, "full") == 0;
    return check_settings(cfg, d);
}

static bool precomputes(const dt_task *t) { return t->cfg->dpo_precompute_reference; }

static void open_models(dt_task *t, dpo *d)
{
    static const char *const names[DPO_GOALS] = {"the helpful model", "the harmless model"}, *const keys[DPO_GOALS] = {
                                                                                                 "helpful_path",
                                                                                                 "harmless_path"};
    const dt_config *cfg = t->cfg;
    const bool named = *cfg->dpo_reference_path;
    const char *path = named ? cfg->dpo_reference_path : cfg->model_path;
    if (t->n_units == 0 || (t->comm && !*path)) return; /* already reported */
    for (int goal = 0; goal < DPO_GOALS; goal++) {
        if (!d->has_judge[goal]) continue;
        const dt_err err = dt_judge_open(&d->judge[goal], t, names[goal], judge_path(t->cfg, goal));
        dt_mistakes_add(t->mistakes, dt_config_lead_to(t->cfg, "dpo", keys[goal], err));
    }
    if (d->alone) return;
    if (!precomputes(t)) {
        dt_reference_open_key(&d->reference, t, "dpo", cfg->dpo_reference_path, cfg->dpo_sync_reference_steps,
                              cfg->dpo_sync_reference_mixup);
        return;
    }
    const dt_err err = dt_precomputed_open(&d->precomputed, t, path);
    dt_mistakes_add(t->mistakes, named ? dt_config_lead_to(cfg, "dpo", "reference_path", err) : err);
}

/* Image placeholders are no targets. */
static dt_err check_prompts(const dt_task *t, const dpo *d)
{
    const dt_loader *const loaders[] = {t->train, t->valid};
    for (int i = 0; i < 2 && d->loss_of.sft_on_prompt; i++)
        DT_CONFIG_CHECK(!loaders[i] || dt_loader_info(loaders[i])->images.size == 0, t->cfg, "dpo", "sft_on_prompt",
                        "expected false, because the prompts of data.%s have images", i ? "validation" : "train");
    return DT_OK;
}

static void warn_of_ties(const dt_task *t)
{
    const dt_data_info *info = dt_task_warned_data(t);
    if (info && info->n_ties)
        DT_WARN("[data] train: skipped %lld pair%s without a better answer (ties)", (long long)info->n_ties,
                dt_plural(info->n_ties));
}

/* Data made for a reward model may have margins that the user does not intend for DPO. */
static void say_margins(const dt_task *t, const dpo *d)
{
    const dt_data_info *info = t->train ? dt_loader_info(t->train) : NULL;
    const bool judged = d->has_judge[DPO_HELPFUL] || d->beta_rule == DPO_BETA_OF_BATCH;
    if (info && info->has_margins && d->beta_w > 0 && !judged)
        DT_INFO("beta of each pair depends on its margin in the data, with beta_w = %g; to use dpo.beta = %g for all "
                "pairs, set dpo.beta_w = 0",
                d->beta_w, t->cfg->dpo_beta);
}

static size_t lay_out(void *self, const dt_task *t, void *block)
{
    dpo *d = self;
    size_t used = 0;
    if (dt_dpo_needs_partners(&d->loss_of)) dt_aot_lay_out(&d->aot, dpo_max_pairs(t), block, &used);
    if (d->beta_rule == DPO_BETA_OF_BATCH)
        dt_batch_beta_lay_out(&d->batch_beta, t->batching.train_batch_size, block, &used);
    return used;
}

static void dpo_open(dt_task *t)
{
    static const dt_task_part_ops arrays = {.lay_out = lay_out};
    dpo *d = t->self;
    dt_mistakes_add(t->mistakes, read_settings(t, d));
    answers_open(t,
                 &(dt_task_data){.kind = DT_DATASET_PREFERENCE,
                                 .truncate = true,
                                 .no_ties = true,
                                 .prompt_targets = d->loss_of.sft_on_prompt},
                 DT_N_SIDES);
    dt_mistakes_add(t->mistakes, check_prompts(t, d));
    warn_of_ties(t);
    dt_task_hold(t, &arrays, d);
    t->model_opt->head |=
        DT_HEAD_MEAN_LOGIT | (t->cfg->dpo_use_wpo ? DT_HEAD_SUM_SQUARES : 0) | (d->full_kl ? DT_HEAD_DIVERGENCE : 0);
    dpo_declare(t, d);
    dt_mistakes_add(t->mistakes, count_validation(t, d));
    open_models(t, d);
    say_margins(t, d);
    if (d->has_judge[DPO_HARMLESS]) dt_multiplier_store(&d->multiplier, t);
    if (d->beta_rule == DPO_BETA_OF_BATCH) dt_batch_beta_store(&d->batch_beta, t);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

dt_err dpo_score_reference(dt_task *t, const dt_batch *b)
{
    dpo *d = t->self;
    if (d->alone) return DT_OK;
    return precomputes(t) ? dt_precomputed_read(&d->precomputed, d->part, b) : dt_reference_score(&d->reference, t, b);
}

const float *dpo_reference_logp(const dpo *d) { return d->precomputed.logp ? d->precomputed.logp : d->reference.logp; }

static dt_err dpo_score(dt_task *t, const dt_batch *b)
{
    dpo *d = t->self;
    for (int goal = 0; goal < DPO_GOALS; goal++)
        if (d->has_judge[goal]) DT_TRY(dt_judge_score(&d->judge[goal], t, b));
    return dpo_score_reference(t, b);
}

static dt_err dpo_begin_step(dt_task *t, int64_t step, const dt_step_counts *counts)
{
    dpo *d = t->self;
    d->part = DT_OF_TRAINING;
    d->inv_chosen = 1 / (double)counts->n_chosen;
    d->pairs_per_token[0] = (double)counts->n_samples / (double)counts->n_chosen;
    return d->aot.number || d->batch_beta.gap ? dpo_match(t, t->train, step, counts->n_samples) : DT_OK;
}

static dt_err begin_validation(dt_task *t)
{
    dpo *d = t->self;
    d->part = DT_OF_VALIDATION;
    return d->aot.number ? dpo_match(t, t->valid, DT_EVALUATION, dt_loader_info(t->valid)->n_samples) : DT_OK;
}

static dt_err dpo_weights(dt_task *t, const dt_micro *m, const dt_predictions *p, dt_weights *w)
{
    const dt_batch *b = m->batch;
    for (int64_t k = 0; k < b->n_samples; k++) {
        const dpo_answers a = dpo_pair_of(t, b, k, p);
        dpo_weigh(t, b, k, &a, p, m->inv_norm, w);
    }
    return DT_OK;
}

/* Count the multiplier that the step used, then update it. */
static void update_multiplier(dt_task *t, bool applied)
{
    dpo *d = t->self;
    const double n_pairs = dt_sums_value(t->sums, d->sums.n_pairs);
    dt_sums_add(t->sums, d->sums.lambda, dt_multiplier_value(&d->multiplier));
    if (applied) dt_multiplier_update(&d->multiplier, dt_sums_value(t->sums, d->sums.cost) / n_pairs);
    dt_sums_add(t->sums, d->sums.cost_ema, d->multiplier.ema);
}

static void update_beta(dt_task *t, bool applied)
{
    dpo *d = t->self;
    dt_sums_add(t->sums, d->sums.gap_mean, d->batch_beta.next.mean);
    dt_sums_add(t->sums, d->sums.gap_std, d->batch_beta.next.deviation);
    dt_sums_add(t->sums, d->sums.share_kept, d->batch_beta.share_kept);
    if (applied) dt_batch_beta_keep(&d->batch_beta);
}

static dt_err dpo_after_step(dt_task *t, int64_t step, bool applied)
{
    dpo *d = t->self;
    if (d->has_judge[DPO_HARMLESS]) update_multiplier(t, applied);
    if (d->batch_beta.gap) update_beta(t, applied);
    return dt_reference_after_step(&d->reference, t, step);
}

const dt_task_ops dt_task_dpo = {.name = "dpo",
                                 .trains = true,
                                 .no_dropout = true,
                                 .images = true,
                                 .watch = {"dpo/rewards/accuracies", "dpo/rewards/margins"},
                                 .num_tokens = "dpo/num_tokens",
                                 .self_nbytes = sizeof(dpo),
                                 .check = check,
                                 .open = dpo_open,
                                 .begin_step = dpo_begin_step,
                                 .begin_validation = begin_validation,
                                 .score = dpo_score,
                                 .weights = dpo_weights,
                                 .collect = dpo_collect,
                                 .after_step = dpo_after_step};
