/* dpo.c - direct preference optimisation: a model is aligned with pairs of answers, of which one is better, against a
 * frozen reference (algorithms.md 3). With S the sum of an answer's log-probabilities, its ratio is S_policy -
 * S_reference; a loss of the two ratios of a pair gives each token of an answer the same weight, minus the loss's
 * derivative by the answer's ratio. Both answers go through one forward. */
#include "dpo_loss.h"
#include "pairs.h"
#include "reference.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct dpo {
    dt_dpo_loss loss_of;
    dt_reference reference;
    dt_micro step;     /* of the step at work, but for the batch */
    double inv_chosen; /* 1 / the tokens of the step's chosen answers */
    /* what the sft term of a pair is multiplied by, so that its mean over pairs is one over tokens: of the step, and of
     * the whole validation */
    double sft[2];
    int loss, n_pairs, correct, n_chosen, hit, entropy, n_target, n_tok, n_samples, beta;
    int reward[DT_N_SIDES], margin, logp[DT_N_SIDES];
} dpo;

/* What a pair says of itself, by the policy and by the reference. */
typedef struct answers {
    double ratio[DT_N_SIDES], logp[DT_N_SIDES];
    double nll[DT_N_SIDES]; /* without ld_alpha */
    int64_t n_tok[DT_N_SIDES], shorter;
    double beta;
} answers;

/* ---- what is counted --------------------------------------------------------------------------------------------- */

static void declare(dpo *d, dt_sums *s)
{
    d->loss = dt_sums_declare(s, "loss", DT_SUM_LOSS, 1);
    d->n_pairs = dt_sums_declare(s, "dpo/pairs", DT_SUM_UNITS, 1);
    d->correct = dt_sums_declare(s, "dpo/correct", DT_SUM_UNITS, 1);
    d->reward[0] = dt_sums_declare(s, "dpo/reward_of_chosen", DT_SUM_LOSS, 1);
    d->reward[1] = dt_sums_declare(s, "dpo/reward_of_rejected", DT_SUM_LOSS, 1);
    d->margin = dt_sums_declare(s, "dpo/margin", DT_SUM_LOSS, 1);
    d->logp[0] = dt_sums_declare(s, "dpo/logp_of_chosen", DT_SUM_LOSS, 1);
    d->logp[1] = dt_sums_declare(s, "dpo/logp_of_rejected", DT_SUM_LOSS, 1);
    d->beta = dt_sums_declare(s, "dpo/betas", DT_SUM_LOSS, 1);
    d->n_chosen = dt_sums_declare(s, "dpo/tokens_of_chosen", DT_SUM_UNITS, 1);
    d->hit = dt_sums_declare(s, "dpo/hits", DT_SUM_UNITS, 1);
    d->entropy = dt_sums_declare(s, "dpo/entropies", DT_SUM_UNITS, DT_ENTROPY_UNIT);
    d->n_target = dt_sums_declare(s, "dpo/targets", DT_SUM_UNITS, 1);
    d->n_tok = dt_sums_declare(s, "tokens", DT_SUM_UNITS, 1);
    d->n_samples = dt_sums_declare(s, "samples", DT_SUM_UNITS, 1);
    pairs_show(s, "loss", "validation_loss", "loss", "dpo/pairs");
    pairs_show(s, "dpo/rewards/chosen", "dpo/validation_rewards/chosen", "dpo/reward_of_chosen", "dpo/pairs");
    pairs_show(s, "dpo/rewards/rejected", "dpo/validation_rewards/rejected", "dpo/reward_of_rejected", "dpo/pairs");
    pairs_show(s, "dpo/rewards/accuracies", "dpo/validation_rewards/accuracies", "dpo/correct", "dpo/pairs");
    pairs_show(s, "dpo/rewards/margins", "dpo/validation_rewards/margins", "dpo/margin", "dpo/pairs");
    pairs_show(s, "dpo/logps/chosen", "dpo/validation_logps/chosen", "dpo/logp_of_chosen", "dpo/pairs");
    pairs_show(s, "dpo/logps/rejected", "dpo/validation_logps/rejected", "dpo/logp_of_rejected", "dpo/pairs");
    pairs_show(s, "dpo/mean_token_accuracy", "dpo/validation_mean_token_accuracy", "dpo/hits", "dpo/tokens_of_chosen");
    pairs_show(s, "dpo/entropy", "dpo/validation_entropy", "dpo/entropies", "dpo/targets");
    dt_sums_show(s, DT_SHOW_TRAIN, "dpo/beta", "dpo/betas", "dpo/pairs", NULL);
    dt_sums_show(s, DT_SHOW_VALIDATION, "validation_samples", "samples", NULL, NULL);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void check(dt_task *t)
{
    if (!t->comm) return; /* --plan */
    dt_task_need_data(t, "train", t->cfg->data_train);
    dt_task_need(t, "model", "path", t->cfg->model_path, "a model to align");
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
    if (n_chosen > 0) d->sft[1] = dt_dpo_weight(&d->loss_of, DT_DPO_SFT) * (double)n_samples / (double)n_chosen;
    return DT_OK;
}

static void open_reference(dt_task *t, dpo *d)
{
    const bool named = *t->cfg->dpo_reference_path;
    const char *path = named ? t->cfg->dpo_reference_path : t->cfg->model_path;
    if (t->n_units == 0 || (t->comm && !*path)) return; /* told already */
    dt_mistakes_add(t->mistakes, dt_reference_open(&d->reference, t, path));
}

static void dpo_open(dt_task *t)
{
    dpo *d = calloc(1, sizeof *d);
    pairs_open(t, t->cfg->data_seq_len, true);
    if (!d) {
        dt_mistakes_add(t->mistakes, dt_fail(DT_ERR_MEMORY, "no memory for the task"));
        return;
    }
    t->self = d;
    dt_mistakes_add(t->mistakes, dt_dpo_loss_make(&d->loss_of, t->cfg));
    declare(d, t->sums);
    dt_mistakes_add(t->mistakes, count_validation(t, d));
    open_reference(t, d);
}

static dt_err dpo_plan(const dt_task *t, int stage, dt_memory *memory)
{
    const dpo *d = t->self;
    memory->at[DT_MEM_DATA][DT_ON_HOST] += dt_task_data_nbytes(t);
    return dt_reference_plan(&d->reference, t, memory);
}

static dt_err dpo_begin(dt_task *t) { return dt_reference_begin(&((dpo *)t->self)->reference, t); }

static void dpo_close(dt_task *t)
{
    dpo *d = t->self;
    dt_task_close_data(t);
    if (d) dt_reference_close(&d->reference, t->ledger);
    free(d);
    t->self = NULL;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static dt_err dpo_next_micro(dt_task *t, int64_t step, int micro, dt_micro *m)
{
    dpo *d = t->self;
    if (micro == 0) {
        dt_step_counts counts;
        DT_TRY(dt_loader_step_counts(t->train, step, &counts));
        d->step.n_micro = dt_loader_n_micro(t->train, step);
        d->step.inv_norm = 1 / (double)counts.n_samples;
        d->inv_chosen = 1 / (double)counts.n_chosen;
        d->sft[0] = dt_dpo_weight(&d->loss_of, DT_DPO_SFT) * (double)counts.n_samples / (double)counts.n_chosen;
    }
    *m = d->step;
    DT_TRY(dt_loader_batch(t->train, step, micro, &m->batch));
    return dt_reference_score(&d->reference, t, m->batch);
}

/* MM-DPO: beta of a pair, by how much its chosen answer is better. */
static double beta_of(const dt_config *cfg, double margin)
{
    const double size = strcmp(cfg->dpo_negative_margin, "abs") == 0 ? fabs(margin) : fmax(margin, 0);
    return cfg->dpo_beta * (1 + cfg->dpo_beta_w * -expm1(-cfg->dpo_beta_k * size));
}

static int64_t count_targets(const dt_batch *b, int64_t sequence)
{
    int64_t n = 0;
    for (int32_t i = b->seq_start[sequence]; i < b->seq_start[sequence + 1]; i++) n += b->target[i] >= 0;
    return n;
}

/* ld_alpha is the weight of an answer's tokens beyond the length of the other one. */
static void add_up(const dt_task *t, const dt_batch *b, int64_t k, int side, const float *logp, answers *a)
{
    const dpo *d = t->self;
    const int64_t sequence = DT_N_SIDES * k + side;
    int64_t n = 0;
    for (int32_t i = b->seq_start[sequence]; i < b->seq_start[sequence + 1]; i++) {
        if (b->target[i] < 0) continue;
        const double share = n++ < a->shorter ? 1 : t->cfg->dpo_ld_alpha;
        a->ratio[side] += share * ((double)logp[i] - (double)d->reference.logp[i]);
        a->logp[side] += share * (double)logp[i];
        a->nll[side] -= (double)logp[i];
    }
}

static answers look_at(const dt_task *t, const dt_batch *b, int64_t k, const float *logp)
{
    answers a = {.beta = beta_of(t->cfg, (double)b->margin[k])};
    for (int side = 0; side < DT_N_SIDES; side++) a.n_tok[side] = count_targets(b, DT_N_SIDES * k + side);
    a.shorter = dt_min_i64(a.n_tok[0], a.n_tok[1]);
    for (int side = 0; side < DT_N_SIDES; side++) add_up(t, b, k, side, logp, &a);
    return a;
}

/* sft: what each token of the chosen answer adds to -u. */
static void weigh_side(const dt_task *t, const dt_batch *b, int64_t k, int side, const answers *a, double slope,
                       double sft, float *u)
{
    const int64_t sequence = DT_N_SIDES * k + side;
    int64_t n = 0;
    for (int32_t i = b->seq_start[sequence]; i < b->seq_start[sequence + 1]; i++) {
        const double share = n < a->shorter ? 1 : t->cfg->dpo_ld_alpha;
        u[i] = b->target[i] < 0 ? 0.0f : (float)(-slope * share + sft);
        n += b->target[i] >= 0;
    }
}

static dt_err dpo_weights(dt_task *t, const dt_micro *m, const dt_predictions *p, dt_weights *w)
{
    const dpo *d = t->self;
    const dt_batch *b = m->batch;
    const double sft = dt_dpo_weight(&d->loss_of, DT_DPO_SFT) * d->inv_chosen;
    for (int64_t k = 0; k < b->n_samples; k++) {
        const answers a = look_at(t, b, k, p->logp);
        double slope[DT_N_SIDES];
        dt_dpo_loss_of(&d->loss_of, a.beta, a.ratio, a.n_tok, slope);
        for (int side = 0; side < DT_N_SIDES; side++)
            weigh_side(t, b, k, side, &a, slope[side] * m->inv_norm, side == 0 ? sft : 0, w->u);
    }
    return DT_OK;
}

static void collect_tokens(dt_task *t, const dt_batch *b, const dt_predictions *p)
{
    const dpo *d = t->self;
    int64_t n_hit = 0, n_chosen = 0;
    double entropy = 0;
    for (int32_t s = 0; s < b->n_seq; s++)
        for (int32_t i = b->seq_start[s]; i < b->seq_start[s + 1]; i++) {
            if (b->target[i] < 0) continue;
            entropy += (double)p->entropy[i];
            n_chosen += s % DT_N_SIDES == 0;
            n_hit += s % DT_N_SIDES == 0 && p->hit[i];
        }
    dt_sums_count(t->sums, d->hit, n_hit);
    dt_sums_count(t->sums, d->n_chosen, n_chosen);
    dt_sums_add(t->sums, d->entropy, entropy);
    dt_sums_count(t->sums, d->n_target, b->n_target);
}

static void dpo_collect(dt_task *t, const dt_micro *m, const dt_predictions *p)
{
    const dpo *d = t->self;
    const dt_batch *b = m->batch;
    const double sft = d->sft[m->inv_norm == 0];
    double loss = 0, slope[DT_N_SIDES];
    for (int64_t k = 0; k < b->n_samples; k++) {
        const answers a = look_at(t, b, k, p->logp);
        loss += dt_dpo_loss_of(&d->loss_of, a.beta, a.ratio, a.n_tok, slope) + sft * a.nll[0];
        dt_sums_count(t->sums, d->correct, a.ratio[0] > a.ratio[1]);
        dt_sums_add(t->sums, d->margin, a.beta * (a.ratio[0] - a.ratio[1]));
        dt_sums_add(t->sums, d->beta, a.beta);
        for (int side = 0; side < DT_N_SIDES; side++) {
            dt_sums_add(t->sums, d->reward[side], a.beta * a.ratio[side]);
            dt_sums_add(t->sums, d->logp[side], a.logp[side]);
        }
    }
    dt_sums_add(t->sums, d->loss, loss);
    collect_tokens(t, b, p);
    dt_sums_count(t->sums, d->n_pairs, b->n_samples);
    dt_sums_count(t->sums, d->n_tok, b->n_tok);
    dt_sums_count(t->sums, d->n_samples, b->n_samples);
}

static dt_err dpo_evaluate(dt_task *t, int64_t micro)
{
    dpo *d = t->self;
    dt_micro m = {0};
    dt_phase_enter(t->phase, "read", "validation");
    DT_TRY(dt_loader_eval_batch(t->valid, micro, &m.batch));
    DT_TRY(dt_reference_score(&d->reference, t, m.batch));
    return dt_task_forward(t, &m);
}

const dt_task_ops dt_task_dpo = {.name = "dpo",
                                 .trains = true,
                                 .no_dropout = true,
                                 .check = check,
                                 .open = dpo_open,
                                 .plan = dpo_plan,
                                 .begin = dpo_begin,
                                 .close = dpo_close,
                                 .next_micro = dpo_next_micro,
                                 .weights = dpo_weights,
                                 .collect = dpo_collect,
                                 .evaluate = dpo_evaluate,
                                 .step_after = dt_task_data_step_after};
