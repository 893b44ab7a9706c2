/* kto.c - task kto: aligns a model with single answers, each labelled good or bad, against a frozen reference
 * (algorithms.md 3.5). With S the sum of an answer's log-probabilities, its ratio is S_policy - S_reference. Training
 * raises the ratios of good answers above the model's average ratio, and lowers those of bad answers below it. The
 * average of kto is estimated over prompts with the answers of other samples of the step, that of bco over all answers
 * so far. Both take one forward of both models before the first gradient.
 *
 * Source   Ethayarajh et al., "KTO", ICML 2024, arXiv:2402.01306, equations 7 and 8; values match TRL's KTOTrainer.
 *          D'Oosterlinck et al., "APO", arXiv:2408.06266, equation 7, unpaired.
 *          Jung et al., "BCO", arXiv:2404.04656, without underlying distribution matching; TRL 1.0's BCOTrainer. */
#include "dtrain/step/step.h"
#include "pair_loss.h"
#include "pairs.h"
#include "reference.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { BAD, GOOD, N_LABELS };

/* The average ratio that answers are compared with, by loss_type: of mismatched samples; 0; of all answers so far. */
typedef enum kto_average { OF_MISMATCHED, OF_NOTHING, OF_ALL } kto_average;

/* Mean of the ratios of the steps so far, as TRL's RunningMoments. */
typedef struct kto_running {
    double mean;
    int64_t n;
} kto_running;

typedef struct kto {
    double beta, weight[N_LABELS];
    kto_average average;
    dt_reference reference;
    /* [n_alloc] ratios of a step's samples, mismatched or with their own answers, or of the validation */
    double *ratio;
    /* OF_ALL: [n_alloc] the reference's part of the ratios of this rank's samples of a step */
    double *of_reference;
    bool knows_reference; /* of_reference has the current batch */
    int64_t n_alloc;
    kto_running all, next; /* OF_ALL: in checkpoints; after the current step */
    double kl;             /* the average; OF_MISMATCHED: at least 0 */
    int loss, n_answers, n[N_LABELS], reward[N_LABELS], logp[N_LABELS], logit[N_LABELS], n_tok_of[N_LABELS];
    int entropy, n_target, kl_of_step, kl_of_validation;
} kto;

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void declare_average(kto *k, dt_sums *s)
{
    const bool all = k->average == OF_ALL;
    const char *validation = all ? "kto/validation_delta" : "kto/validation_kl";
    k->kl_of_step = dt_sums_metric(s, DT_SHOW_TRAIN, all ? "kto/delta" : "kto/kl", DT_SUM_REAL, NULL);
    /* equal on all ranks and in all micro-steps */
    k->kl_of_validation = dt_sums_declare(s, validation, DT_SUM_MAX, 1);
    dt_sums_show(s, DT_SHOW_VALIDATION, validation, validation, NULL, NULL);
}

static void declare(kto *k, dt_sums *s)
{
    static const char *const names[N_LABELS] = {"rejected", "chosen"}; /* as TRL */
    char name[DT_SUM_NAME], of[DT_SUM_NAME], tokens[DT_SUM_NAME];
    k->n_answers = dt_sums_declare(s, "kto/answers", DT_SUM_UNITS, 1);
    k->n_target = dt_sums_declare(s, "kto/targets", DT_SUM_UNITS, 1);
    k->loss = pairs_metric(s, "loss", DT_SUM_LOSS, 1, "kto/answers");
    for (int label = N_LABELS - 1; label >= 0; label--) {
        snprintf(of, sizeof of, "kto/%s", names[label]);
        snprintf(tokens, sizeof tokens, "kto/tokens_of_%s", names[label]);
        k->n[label] = dt_sums_declare(s, of, DT_SUM_UNITS, 1);
        k->n_tok_of[label] = dt_sums_declare(s, tokens, DT_SUM_UNITS, 1);
        snprintf(name, sizeof name, "kto/rewards/%s", names[label]);
        k->reward[label] = pairs_metric(s, name, DT_SUM_LOSS, 1, of);
        snprintf(name, sizeof name, "kto/logps/%s", names[label]);
        k->logp[label] = pairs_metric(s, name, DT_SUM_LOSS, 1, of);
        snprintf(name, sizeof name, "kto/logits/%s", names[label]);
        k->logit[label] = pairs_metric(s, name, DT_SUM_LOSS, 1, tokens);
    }
    dt_sums_show_difference(s, DT_SHOW_TRAIN, "kto/rewards/margins", "kto/rewards/chosen", "kto/rewards/rejected");
    dt_sums_show_difference(s, DT_SHOW_VALIDATION, "kto/validation_rewards/margins", "kto/validation_rewards/chosen",
                            "kto/validation_rewards/rejected");
    k->entropy = pairs_metric(s, "kto/entropy", DT_SUM_UNITS, DT_ENTROPY_UNIT, "kto/targets");
    declare_average(k, s);
    dt_sums_show(s, DT_SHOW_VALIDATION, "validation_samples", "samples", NULL, NULL);
}

static dt_err check_keys(const dt_task *t, const kto *k)
{
    DT_CONFIG_CHECK(k->weight[GOOD] > 0 || k->weight[BAD] > 0, t->cfg, "kto", "undesirable_weight",
                    "expected above 0 with kto.desirable_weight = 0, or no answer counts; found 0");
    DT_CONFIG_CHECK(t->batching.train_batch_size > 1 || strcmp(t->cfg->kto_loss_type, "kto") != 0, t->cfg, "batch",
                    "train_batch_size",
                    "expected at least 2 with kto.loss_type = kto, which compares a sample with the answers of others; "
                    "found %lld",
                    (long long)t->batching.train_batch_size);
    return DT_OK;
}

/* Equation 8 of the paper: the weights of all good answers add up to 1 to 4/3 times those of all bad ones. Within a
 * factor of 2 of this range the choice matters little. */
static void warn_of_labels(const dt_task *t, const kto *k, const dt_data_info *info)
{
    const double low = 1, high = 4.0 / 3, good = k->weight[GOOD] * info->flagged_share,
                 bad = k->weight[BAD] * (1 - info->flagged_share), ratio = good / bad;
    const int64_t n_good = info->n_flagged, n_bad = info->n_samples - n_good;
    const bool more_good = ratio > high;
    if (n_good == 0 || n_bad == 0)
        DT_WARN("[data] train = %s: found %" PRId64 " good and %" PRId64 " bad answers: kto learns from the difference "
                "between them; add records with label %s",
                t->cfg->data_train, n_good, n_bad, n_good ? "false" : "true");
    else if (k->average != OF_ALL && good > 0 && bad > 0 && (ratio < low / 2 || ratio > 2 * high))
        DT_WARN("[data] train = %s: found %" PRId64 " good and %" PRId64
                " bad answers: weights included, the good ones count %.3g times as much as the bad ones; usual is 1 to "
                "4/3, with kto.%s = %.3g to %.3g",
                t->cfg->data_train, n_good, n_bad, ratio, more_good ? "undesirable_weight" : "desirable_weight",
                more_good ? k->weight[BAD] * ratio / high : k->weight[GOOD] * low / ratio,
                more_good ? k->weight[BAD] * ratio / low : k->weight[GOOD] * high / ratio);
}

/* A sample without others is compared with its own answer, as in TRL. */
static dt_err warn_of_data(const dt_task *t, const kto *k)
{
    const dt_data_info *info = dt_task_warned_data(t);
    dt_step_counts last;
    if (!info) return DT_OK;
    warn_of_labels(t, k, info);
    if (k->average != OF_MISMATCHED || t->batching.train_batch_size == 1) return DT_OK;
    DT_TRY(dt_loader_step_counts(t->train, info->steps_per_epoch - 1, &last));
    if (last.n_samples == 1)
        DT_WARN("[batch] train_batch_size = %" PRId64 ": the last step of an epoch has 1 of the %" PRId64
                " samples, so its kl comes from its own answer; choose another batch size",
                t->batching.train_batch_size, info->n_samples);
    if (t->valid && dt_loader_info(t->valid)->n_samples == 1)
        DT_WARN("[data] validation = %s: it has 1 sample, so its kl comes from its own answer",
                t->cfg->data_validation);
    return DT_OK;
}

static size_t lay_out(void *self, const dt_task *t, void *block)
{
    kto *k = self;
    size_t used = 0;
    const int64_t in_validation = t->valid ? dt_loader_info(t->valid)->n_samples : 0;
    k->n_alloc = dt_max_i64(t->batching.train_batch_size, in_validation);
    if (k->average != OF_NOTHING) k->ratio = dt_carve(block, &used, k->n_alloc, sizeof *k->ratio);
    if (k->average == OF_ALL) k->of_reference = dt_carve(block, &used, k->n_alloc, sizeof *k->of_reference);
    return used;
}

static void kto_open(dt_task *t)
{
    static const dt_task_part_ops arrays = {.lay_out = lay_out};
    const dt_config *cfg = t->cfg;
    kto *k = t->self;
    k->beta = cfg->kto_beta;
    k->weight[GOOD] = cfg->kto_desirable_weight;
    k->weight[BAD] = cfg->kto_undesirable_weight;
    k->average = strcmp(cfg->kto_loss_type, "kto") == 0   ? OF_MISMATCHED
                 : strcmp(cfg->kto_loss_type, "bco") == 0 ? OF_ALL
                                                          : OF_NOTHING;
    answers_open(
        t, &(dt_task_data){.kind = DT_DATASET_UNPAIRED, .truncate = true, .mismatched = k->average == OF_MISMATCHED},
        1);
    dt_task_hold(t, &arrays, k);
    dt_mistakes_add(t->mistakes, check_keys(t, k));
    dt_mistakes_add(t->mistakes, warn_of_data(t, k));
    t->model_opt->head |= DT_HEAD_MEAN_LOGIT;
    declare(k, t->sums);
    dt_reference_open_key(&k->reference, t, "kto", cfg->kto_reference_path, cfg->kto_sync_reference_steps,
                          cfg->kto_sync_reference_mixup);
    if (k->average != OF_ALL) return;
    dt_task_state(t, "ratio_mean", DT_NAMED_F64, 1, &k->all.mean, true);
    dt_task_state(t, "ratio_count", DT_NAMED_I64, 1, &k->all.n, true);
}

/* ---- the average ratio ------------------------------------------------------------------------------------------- */

static double sum_of(const dt_batch *b, int64_t sequence, const float *logp)
{
    double sum = 0;
    for (int32_t i = b->seq_target[sequence]; i < b->seq_target[sequence + 1]; i++) sum += (double)logp[i];
    return sum;
}

/* Compute the ratios of one micro-batch. */
static dt_err find_ratios(dt_task *t, const dt_batch *b, int64_t step, int64_t first)
{
    kto *k = t->self;
    const float *logp = t->buffers.results.logp;
    DT_TRY(dt_reference_score(&k->reference, t, b));
    DT_TRY(dt_task_logp(t, b));
    for (int64_t i = 0; i < b->n_samples; i++) {
        const double of_reference = sum_of(b, i, k->reference.logp);
        k->ratio[first + i] = sum_of(b, i, logp) - of_reference;
        if (k->of_reference) k->of_reference[first + i] = of_reference;
    }
    return DT_OK;
}

static dt_err average(dt_task *t, int64_t n)
{
    kto *k = t->self;
    double sum = 0;
    DT_TRY(dt_fault("task.kto"));
    DT_TRY(answers_add_up(t, k->ratio, n));
    for (int64_t i = 0; i < n; i++) sum += k->ratio[i];
    if (k->average == OF_ALL) {
        k->next.n = k->all.n + n;
        k->next.mean = k->all.mean + (sum - (double)n * k->all.mean) / (double)k->next.n;
        k->kl = k->next.mean;
        return DT_OK;
    }
    k->kl = sum > 0 ? sum / (double)n : isnan(sum) ? sum : 0;
    return DT_OK;
}

/* For a step of n samples, or for DT_EVALUATION. */
static dt_err estimate(dt_task *t, dt_loader *l, int64_t step, int64_t n)
{
    kto *k = t->self;
    if (k->average == OF_ALL) k->kl = k->all.mean;
    if (k->average == OF_NOTHING || (k->average == OF_ALL && step == DT_EVALUATION)) return DT_OK;
    memset(k->ratio, 0, (size_t)k->n_alloc * sizeof *k->ratio);
    DT_TRY(dt_task_look_ahead(t, l, step, k->average == OF_MISMATCHED, find_ratios));
    return average(t, n);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static dt_err kto_begin_step(dt_task *t, int64_t step, const dt_step_counts *counts)
{
    kto *k = t->self;
    k->knows_reference = k->of_reference;
    return estimate(t, t->train, step, counts->n_samples);
}

static dt_err begin_validation(dt_task *t)
{
    kto *k = t->self;
    k->knows_reference = false;
    return estimate(t, t->valid, DT_EVALUATION, dt_loader_info(t->valid)->n_samples);
}

static dt_err kto_score(dt_task *t, const dt_batch *b)
{
    kto *k = t->self;
    return k->knows_reference ? DT_OK : dt_reference_score(&k->reference, t, b);
}

static double ratio_of(const dt_task *t, const dt_batch *b, int64_t i, double logp)
{
    const kto *k = t->self;
    return logp - (k->knows_reference ? k->of_reference[t->first_sample + i] : sum_of(b, i, k->reference.logp));
}

/* The loss weight (1 - sigmoid(z)), bco -weight log sigmoid(z), with z = beta (ratio - kl) for a good answer, -beta
 * (ratio - kl) for a bad one. *slope: its derivative by the ratio. */
static double loss_of(const kto *k, double ratio, bool good, double *slope)
{
    const double sign = good ? 1 : -1, z = sign * k->beta * (ratio - k->kl), weight = k->weight[good];
    if (k->average == OF_ALL) {
        *slope = -sign * weight * k->beta * dt_sigmoid(-z);
        return -weight * dt_log_sigmoid(z);
    }
    *slope = -sign * weight * k->beta * dt_sigmoid(z) * dt_sigmoid(-z);
    return weight * dt_sigmoid(-z);
}

static dt_err kto_weights(dt_task *t, const dt_micro *m, const dt_predictions *p, dt_weights *w)
{
    const kto *k = t->self;
    const dt_batch *b = m->batch;
    const dt_batch_labels *labels = dt_labels_of(b);
    for (int64_t i = 0; i < b->n_samples; i++) {
        double slope;
        loss_of(k, ratio_of(t, b, i, sum_of(b, i, p->logp)), labels->good[i], &slope);
        for (int32_t at = b->seq_target[i]; at < b->seq_target[i + 1]; at++) w->u[at] = (float)(-slope * m->inv_norm);
    }
    return DT_OK;
}

static void collect_tokens(dt_task *t, const dt_batch *b, int64_t sequence, bool good, const dt_predictions *p)
{
    const kto *k = t->self;
    double entropy = 0, logit = 0;
    const int32_t first = b->seq_target[sequence], end = b->seq_target[sequence + 1];
    for (int32_t i = first; i < end; i++) {
        entropy += (double)p->entropy[i];
        logit += (double)p->mean_logit[i];
    }
    dt_sums_add(t->sums, k->entropy, entropy);
    dt_sums_add(t->sums, k->logit[good], logit);
    dt_sums_count(t->sums, k->n_tok_of[good], end - first);
}

/* TRL's delta is a mean of rewards, its kl one of ratios. */
static double shown_average(const kto *k) { return k->average == OF_ALL ? k->beta * k->kl : k->kl; }

static void kto_collect(dt_task *t, const dt_micro *m, const dt_predictions *p)
{
    const kto *k = t->self;
    const dt_batch *b = m->batch;
    const dt_batch_labels *labels = dt_labels_of(b);
    double slope;
    for (int64_t i = 0; i < b->n_samples; i++) {
        const bool good = labels->good[i];
        const double logp = sum_of(b, i, p->logp), ratio = ratio_of(t, b, i, logp);
        dt_sums_add(t->sums, k->loss, loss_of(k, ratio, good, &slope));
        dt_sums_add(t->sums, k->reward[good], k->beta * ratio);
        dt_sums_add(t->sums, k->logp[good], logp);
        dt_sums_count(t->sums, k->n[good], 1);
        collect_tokens(t, b, i, good, p);
    }
    if (m->validation) dt_sums_add(t->sums, k->kl_of_validation, shown_average(k));
    dt_sums_count(t->sums, k->n_answers, b->n_samples);
    dt_sums_count(t->sums, k->n_target, b->n_target);
}

static dt_err kto_after_step(dt_task *t, int64_t step, bool applied)
{
    kto *k = t->self;
    dt_sums_add(t->sums, k->kl_of_step, shown_average(k));
    if (applied) k->all = k->next;
    return dt_reference_after_step(&k->reference, t, step);
}

const dt_task_ops dt_task_kto = {.name = "kto",
                                 .trains = true,
                                 .no_dropout = true,
                                 .images = true,
                                 .watch = {"kto/rewards/margins", "kto/kl", "kto/delta"},
                                 .num_tokens = "kto/num_tokens",
                                 .self_nbytes = sizeof(kto),
                                 .check = answers_check_policy,
                                 .open = kto_open,
                                 .begin_step = kto_begin_step,
                                 .begin_validation = begin_validation,
                                 .score = kto_score,
                                 .weights = kto_weights,
                                 .collect = kto_collect,
                                 .after_step = kto_after_step};
