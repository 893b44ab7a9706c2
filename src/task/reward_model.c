/* reward_model.c - task rm: trains a scalar reward on pairs of a better and a worse answer (algorithms.md 2). The
 * reward is the value of a scalar head at a text's last token. Both texts of a pair share one forward. Safety models
 * also have a classification term, which separates safe from unsafe answers at score 0. */
#include "dtrain/step/step.h"
#include "pair_loss.h"
#include "pairs.h"
#include "dtrain/core/plural.h"
#include <string.h>

typedef struct reward_model {
    dt_pair_loss loss_of;
    int loss, n_pairs, n_preferences, correct, margin, reward, n_rewards, least, largest, safe, n_safety;
} reward_model;

/* ---- metrics ----------------------------------------------------------------------------------------------------- */

static void declare(reward_model *r, dt_sums *s, bool harmless)
{
    r->n_pairs = dt_sums_declare(s, "rm/pairs", DT_SUM_UNITS, 1);
    r->n_preferences = dt_sums_declare(s, "rm/preferences", DT_SUM_UNITS, 1);
    r->n_rewards = dt_sums_declare(s, "rm/texts", DT_SUM_UNITS, 1);
    r->loss = pairs_metric(s, "loss", DT_SUM_LOSS, 1, "rm/pairs");
    r->correct = pairs_metric(s, "rm/accuracy", DT_SUM_UNITS, 1, "rm/preferences");
    r->margin = pairs_metric(s, "rm/margin", DT_SUM_LOSS, 1, "rm/preferences");
    r->least = pairs_metric(s, "rm/min_reward", DT_SUM_MIN, 1, NULL);
    r->reward = pairs_metric(s, "rm/mean_reward", DT_SUM_LOSS, 1, "rm/texts");
    r->largest = pairs_metric(s, "rm/max_reward", DT_SUM_MAX, 1, NULL);
    dt_sums_show(s, DT_SHOW_VALIDATION, "validation_samples", "samples", NULL, NULL);
    if (!harmless) return;
    r->n_safety = dt_sums_declare(s, "rm/labels", DT_SUM_UNITS, 1);
    r->safe = pairs_metric(s, "rm/safety_accuracy", DT_SUM_UNITS, 1, "rm/labels");
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static bool is_harmless(const dt_task *t) { return strcmp(t->cfg->rm_kind, "harmless") == 0; }

static dt_err check_length(const dt_config *cfg)
{
    DT_CONFIG_CHECK(cfg->rm_max_length <= cfg->data_seq_len, cfg, "rm", "max_length",
                    "expected at most data.seq_len = %lld, found %lld", (long long)cfg->data_seq_len,
                    (long long)cfg->rm_max_length);
    DT_CONFIG_CHECK(cfg->rm_label_smoothing == 0 || strcmp(cfg->rm_loss_type, "hinge") != 0, cfg, "rm",
                    "label_smoothing", "expected 0, because loss_type = hinge has no label smoothing, found %g",
                    cfg->rm_label_smoothing);
    return DT_OK;
}

static void check(dt_task *t)
{
    if (t->comm) dt_task_need_data(t, "train", t->cfg->data_train); /* optional for --plan */
    dt_mistakes_add(t->mistakes, check_length(t->cfg));
}

static int64_t text_length(const dt_task *t)
{
    return t->cfg->rm_max_length ? t->cfg->rm_max_length : t->cfg->data_seq_len;
}

static void warn_of_data(const dt_task *t)
{
    const dt_data_info *info = dt_task_warned_data(t);
    if (!info) return;
    if (info->n_too_long)
        DT_WARN("[data] train: skipped %lld pair%s with a text of more than %lld tokens; to truncate texts instead, "
                "set rm.truncate = true",
                (long long)info->n_too_long, dt_plural(info->n_too_long), (long long)text_length(t));
    if (is_harmless(t) && !info->has_safety)
        DT_WARN("[rm] kind = harmless: the data does not say which answers are safe, so a score of 0 has no defined "
                "meaning");
}

static void rm_open(dt_task *t)
{
    const dt_config *cfg = t->cfg;
    reward_model *r = t->self;
    answers_open(
        t, &(dt_task_data){.kind = DT_DATASET_PREFERENCE, .truncate = cfg->rm_truncate, .seq_len = text_length(t)},
        DT_N_SIDES);
    r->loss_of = (dt_pair_loss){.type = strcmp(cfg->rm_loss_type, "hinge") == 0 ? DT_PAIR_HINGE : DT_PAIR_SIGMOID,
                                .label_smoothing = cfg->rm_label_smoothing,
                                .center = cfg->rm_center_rewards_coefficient,
                                .w_cls = is_harmless(t) ? cfg->rm_w_cls : 0,
                                .w_tie = cfg->rm_w_tie};
    declare(r, t->sums, is_harmless(t));
    warn_of_data(t);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* Last token of a sequence. */
static int32_t last_of(const dt_batch *b, int64_t sequence) { return b->seq_start[sequence + 1] - 1; }

static double loss_of_pair(const dt_task *t, const dt_batch *b, int64_t k, const float *value,
                           double reward[DT_N_SIDES], double gradient[DT_N_SIDES])
{
    const reward_model *r = t->self;
    for (int side = 0; side < DT_N_SIDES; side++) reward[side] = (double)value[last_of(b, DT_N_SIDES * k + side)];
    const dt_batch_labels *p = dt_labels_of(b);
    const dt_pair_labels labels = {.margin = (double)p->margin[k] + t->cfg->rm_margin,
                                   .tie = p->tie[k],
                                   .safety = {p->safety[DT_N_SIDES * k], p->safety[DT_N_SIDES * k + 1]}};
    return dt_pair_loss_of(&r->loss_of, reward, &labels, gradient);
}

static dt_err rm_weights(dt_task *t, const dt_micro *m, const dt_predictions *p, dt_weights *w)
{
    const dt_batch *b = m->batch;
    double reward[DT_N_SIDES], gradient[DT_N_SIDES];
    for (int32_t i = 0; i < b->n_tok; i++) w->dvalue[i] = 0;
    for (int64_t k = 0; k < b->n_samples; k++) {
        loss_of_pair(t, b, k, p->value, reward, gradient);
        for (int side = 0; side < DT_N_SIDES; side++)
            w->dvalue[last_of(b, DT_N_SIDES * k + side)] = (float)(gradient[side] * m->inv_norm);
    }
    return DT_OK;
}

static void collect_pair(dt_task *t, const dt_batch *b, int64_t k, const double reward[DT_N_SIDES])
{
    const reward_model *r = t->self;
    const dt_batch_labels *p = dt_labels_of(b);
    if (!p->tie[k]) {
        dt_sums_count(t->sums, r->n_preferences, 1);
        dt_sums_count(t->sums, r->correct, reward[0] > reward[1]);
        dt_sums_add(t->sums, r->margin, reward[0] - reward[1]);
    }
    for (int side = 0; side < DT_N_SIDES; side++) {
        const uint8_t safety = p->safety[DT_N_SIDES * k + side];
        dt_sums_add(t->sums, r->reward, reward[side]);
        dt_sums_add(t->sums, r->least, reward[side]);
        dt_sums_add(t->sums, r->largest, reward[side]);
        if (!is_harmless(t) || safety == DT_SAFETY_UNKNOWN) continue;
        dt_sums_count(t->sums, r->n_safety, 1);
        dt_sums_count(t->sums, r->safe, (reward[side] > 0) == (safety == DT_SAFETY_SAFE));
    }
}

static void rm_collect(dt_task *t, const dt_micro *m, const dt_predictions *p)
{
    const reward_model *r = t->self;
    const dt_batch *b = m->batch;
    double loss = 0, reward[DT_N_SIDES], gradient[DT_N_SIDES];
    for (int64_t k = 0; k < b->n_samples; k++) {
        loss += loss_of_pair(t, b, k, p->value, reward, gradient);
        collect_pair(t, b, k, reward);
    }
    dt_sums_add(t->sums, r->loss, loss);
    dt_sums_count(t->sums, r->n_pairs, b->n_samples);
    dt_sums_count(t->sums, r->n_rewards, DT_N_SIDES * b->n_samples);
}

const dt_task_ops dt_task_rm = {.name = "rm",
                                .trains = true,
                                .n_labels = 1,
                                .no_dropout = true,
                                .images = true,
                                .watch = {"rm/accuracy"},
                                .num_tokens = "rm/num_tokens",
                                .self_nbytes = sizeof(reward_model),
                                .check = check,
                                .open = rm_open,
                                .weights = rm_weights,
                                .collect = rm_collect};
