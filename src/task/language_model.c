/* language_model.c - pre-training and SFT are one task. They differ only in the targets, which the data determines:
 * L = -(1/N) sum over targets of weight_t logp_t, N the sum of weights of the step (algorithms.md 1.3). With
 * sft.loss_type = dft each term is multiplied by p_t, as a constant. */
#include "language_model.h"
#include "dtrain/step/step.h"
#include "dtrain/core/plural.h"
#include <math.h>
#include <string.h>

/* ---- metrics ----------------------------------------------------------------------------------------------------- */

static double perplexity(double loss) { return exp(loss > 700 ? 700 : loss); }

void dt_lm_declare(dt_lm_sums *l, dt_sums *s, const char *nll)
{
    l->loss = dt_sums_declare(s, "loss", DT_SUM_LOSS, 1);
    l->nll = nll ? dt_sums_declare(s, nll, DT_SUM_LOSS, 1) : l->loss;
    l->weight = dt_sums_declare(s, "weight", DT_SUM_UNITS, DT_WEIGHT_UNIT);
    l->target = dt_sums_declare(s, "targets", DT_SUM_UNITS, 1);
    l->hit = dt_sums_declare(s, "hits", DT_SUM_UNITS, 1);
    l->entropy = dt_sums_declare(s, "entropy", DT_SUM_UNITS, DT_ENTROPY_UNIT);
    dt_sums_show(s, DT_SHOW_TRAIN, "loss", "loss", "weight", NULL);
    if (nll) dt_sums_show(s, DT_SHOW_TRAIN, nll, nll, "weight", NULL);
    dt_sums_show(s, DT_SHOW_TRAIN, "accuracy", "hits", "targets", NULL);
    dt_sums_show(s, DT_SHOW_TRAIN, "entropy", "entropy", "targets", NULL);
    dt_sums_show(s, DT_SHOW_VALIDATION, "validation_loss", "loss", "weight", NULL);
    dt_sums_show(s, DT_SHOW_VALIDATION, "perplexity", nll ? nll : "loss", "weight", perplexity);
    dt_sums_show(s, DT_SHOW_VALIDATION, "validation_accuracy", "hits", "targets", NULL);
    dt_sums_show(s, DT_SHOW_VALIDATION, "validation_entropy", "entropy", "targets", NULL);
    dt_sums_show(s, DT_SHOW_VALIDATION, "validation_targets", "targets", NULL, NULL);
    dt_sums_show(s, DT_SHOW_VALIDATION, "validation_samples", "samples", NULL, NULL);
}

void dt_lm_collect(const dt_lm_sums *l, dt_sums *s, const dt_batch *b, const dt_predictions *p)
{
    double nll = 0, loss = 0, entropy = 0; /* in token order within a micro-batch: the same bits on any rank */
    int64_t n_hit = 0;
    for (int64_t i = 0; i < b->n_target; i++) {
        const double weight = (double)b->weight[b->target_row[i]], logp = (double)p->logp[i];
        nll -= weight * logp;
        if (l->loss != l->nll) loss += weight * (p->kl ? (double)p->kl[i] : -exp(logp) * logp);
        n_hit += p->hit[i];
        entropy += (double)p->entropy[i];
    }
    dt_sums_add(s, l->nll, nll);
    if (l->loss != l->nll) dt_sums_add(s, l->loss, loss);
    dt_sums_add(s, l->entropy, entropy);
    dt_sums_count(s, l->weight, b->weight_fixed);
    dt_sums_count(s, l->target, b->n_target);
    dt_sums_count(s, l->hit, n_hit);
}

/* ---- the task ---------------------------------------------------------------------------------------------------- */

/* A sample is skipped if data.seq_len would cut its images. */
static void warn_of_images(const dt_task *t)
{
    const dt_data_info *info = dt_task_warned_data(t);
    if (info && info->n_too_long)
        DT_WARN("[data] train: skipped %lld sample%s with images that do not fit in data.seq_len = %lld tokens; raise "
                "data.seq_len (dtrain-data info FILE shows the lengths of its samples)",
                (long long)info->n_too_long, dt_plural(info->n_too_long), (long long)t->cfg->data_seq_len);
}

void lm_open(dt_task *t, bool training, const char *nll)
{
    const bool all = t->ops == &dt_task_sft && t->cfg->sft_train_on_inputs;
    dt_task_open_data(t, &(dt_task_data){.training = training, .validation = true, .prompt_targets = all});
    warn_of_images(t);
    dt_lm_declare(t->self, t->sums, nll);
}

void lm_collect(dt_task *t, const dt_micro *m, const dt_predictions *p)
{
    dt_lm_collect(t->self, t->sums, m->batch, p);
}

/* The data, not the name of the task, determines the targets. */
static void warn_of_kind(const dt_task *t)
{
    const dt_data_info *info = dt_task_warned_data(t);
    if (info && info->of_documents)
        DT_WARN("[data] train: files of kind tokens do not separate prompts from answers, so task sft trains on every "
                "token, as task pretrain does");
}

/* Task pretrain is the default. Warn if the data has prompts and answers, because the user may have forgotten to set
 * the task. */
static void open_pretrain(dt_task *t)
{
    lm_open(t, true, NULL);
    const dt_data_info *info = dt_task_warned_data(t);
    if (info && !info->of_documents && !dt_config_given(t->cfg, "run", "task"))
        DT_WARN("[run] task is not set, so it is pretrain, but data.train was made of prompts and answers: set "
                "run.task = sft (the losses are the same)");
}

static void open_sft(dt_task *t)
{
    t->weight_by_p = !strcmp(t->cfg->sft_loss_type, "dft");
    lm_open(t, true, t->weight_by_p ? "sft/nll" : NULL);
    warn_of_kind(t);
}

dt_err lm_begin_step(dt_task *t, int64_t step, const dt_step_counts *counts)
{
    t->micro.inv_norm = counts->weight > 0 ? 1 / counts->weight : 0;
    return DT_OK;
}

static dt_err weights(dt_task *t, const dt_micro *m, const dt_predictions *p, dt_weights *w)
{
    const dt_batch *b = m->batch;
    for (int64_t i = 0; i < b->n_target; i++) w->u[i] = (float)(b->weight[b->target_row[i]] * m->inv_norm);
    return DT_OK;
}

#define LANGUAGE_MODEL                                                                                                 \
    .trains = true, .images = true, .weights_known = true, .self_nbytes = sizeof(dt_lm_sums),                          \
    .begin_step = lm_begin_step, .weights = weights, .collect = lm_collect

const dt_task_ops dt_task_pretrain = {.name = "pretrain", .whole_rows = true, .open = open_pretrain, LANGUAGE_MODEL};
const dt_task_ops dt_task_sft = {.name = "sft", .open = open_sft, LANGUAGE_MODEL};
