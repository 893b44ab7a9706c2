/* distill.c - task distill: trains a student on the probabilities of a frozen teacher (algorithms.md 3.6). The loss of
 * a target token is a divergence of both distributions over the whole vocabulary. The head computes it in chunks of
 * rows (dt_head_pass), so the logits of neither model exist for all tokens.
 *
 * In a share lmbda of the steps the student samples the answers itself. In the others they are those of the data, or
 * with seq_kd samples of the teacher. Which steps these are, their prompts and their random numbers depend on the seed
 * and the number of the step only, so a checkpoint contains no answers.
 *
 * Source   Agarwal et al., "On-Policy Distillation of Language Models", ICLR 2024, arXiv:2306.13649, equation 1; values
 *          match TRL's GKDTrainer. */
#include "dtrain/rollout/rollout.h"
#include "dtrain/step/step.h"
#include "dtrain/tokenizer/tokenizer.h"
#include "known_teacher.h"
#include "language_model.h"
#include "reference.h"
#include <string.h>

/* Where the answers of a step come from. */
typedef enum source { BY_STUDENT, BY_TEACHER, N_SAMPLERS, OF_DATA = N_SAMPLERS } source;

typedef struct distill {
    dt_lm_sums of_tokens; /* first: t->self of language_model.h */
    dt_reference teacher;
    dt_known_teacher known;          /* instead of teacher: teacher_logprobs */
    dt_rollout *rollout[N_SAMPLERS]; /* NULL: no step needs it */
    const int64_t *row;              /* of the student's rollout, in a micro-batch of its answers; else NULL */
    int on_policy;
} distill;

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static bool is_known(const dt_task *t) { return *t->cfg->distill_teacher_logprobs; }

/* The file has only the answers of data.train. */
static dt_err check_known(const dt_task *t)
{
    const dt_config *cfg = t->cfg;
    if (!is_known(t)) return DT_OK;
    DT_CONFIG_CHECK(!*cfg->distill_teacher_path, cfg, "distill", "teacher_logprobs",
                    "expected only one of teacher_path and teacher_logprobs");
    DT_CONFIG_CHECK(cfg->distill_lmbda == 0 && !cfg->distill_seq_kd, cfg, "distill",
                    cfg->distill_seq_kd ? "seq_kd" : "lmbda",
                    "expected %s with teacher_logprobs, whose file has no values for sampled answers",
                    cfg->distill_seq_kd ? "false" : "0");
    DT_CONFIG_CHECK(
        !*cfg->data_validation, cfg, "data", "validation",
        "expected none with distill.teacher_logprobs, whose file has values for data.train only; run.task = "
        "eval measures the student");
    DT_CONFIG_CHECK(!strcmp(cfg->data_packing, "auto") || !strcmp(cfg->data_packing, "none"), cfg, "data", "packing",
                    "expected none with distill.teacher_logprobs, found %s", cfg->data_packing);
    return DT_OK;
}

/* Keys of sampled answers. */
static dt_err check_sampling(const dt_task *t)
{
    const dt_config *cfg = t->cfg;
    DT_CONFIG_CHECK(!cfg->distill_seq_kd || cfg->distill_lmbda < 1, cfg, "distill", "seq_kd",
                    "expected false with lmbda = 1, because the student samples the answers of every step");
    const bool samples = cfg->distill_seq_kd || cfg->distill_lmbda > 0;
    if (!samples && dt_config_differs(cfg, "distill", "max_new_tokens") && (!t->comm || dt_comm_first(t->comm)))
        DT_WARN("distill.max_new_tokens is not used: with lmbda = 0 and seq_kd = false no answers are sampled");
    return DT_OK;
}

static void check(dt_task *t)
{
    dt_mistakes_add(t->mistakes, check_known(t));
    dt_mistakes_add(t->mistakes, check_sampling(t));
    if (!t->comm) return; /* --plan */
    dt_task_need_data(t, "train", t->cfg->data_train);
    if (!is_known(t)) dt_task_need(t, "distill", "teacher_path", t->cfg->distill_teacher_path, "a teacher");
}

static const char *token_of(const dt_tokenizer *z, int32_t id)
{
    const char *token = dt_tokenizer_token(z, id);
    return token ? token : "none";
}

/* The same id must be the same token. */
static dt_err compare(const dt_tokenizer *a, const dt_tokenizer *b, const char *teacher, const char *student)
{
    const int32_t n = (int32_t)dt_max_i64(dt_tokenizer_get_info(a)->n_own, dt_tokenizer_get_info(b)->n_own);
    for (int32_t id = 0; id < n; id++)
        DT_CHECK(strcmp(token_of(a, id), token_of(b, id)) == 0, DT_ERR_DATA,
                 "%s: expected the tokenizer of the model in training, %s: token %d is %s, in the teacher's %s",
                 teacher, student, (int)id, token_of(b, id), token_of(a, id));
    return DT_OK;
}

/* Tokenizers that dtrain cannot read are not compared. */
static dt_err check_tokenizer(const dt_task *t, const char *teacher)
{
    const char *const path[] = {teacher, t->tokenizer};
    dt_tokenizer *z[2] = {NULL, NULL};
    dt_err err = DT_OK;
    for (int i = 0; i < 2; i++)
        if (path[i] && *path[i] && dt_tokenizer_open(&z[i], path[i]) != DT_OK) dt_error_clear();
    if (z[0] && z[1] && strcmp(dt_tokenizer_get_info(z[0])->name, dt_tokenizer_get_info(z[1])->name) != 0)
        err = compare(z[0], z[1], path[0], path[1]);
    for (int i = 0; i < 2; i++) dt_tokenizer_close(z[i]);
    return err;
}

/* The rollout generates as the student's positions require. */
static dt_err check_sampler(const dt_task *t, const distill *d)
{
    const dt_model_config *mc = d->teacher.scorer.mc;
    const int64_t n = t->cfg->data_seq_len;
    DT_CONFIG_CHECK(!d->rollout[BY_TEACHER] || !mc ||
                        dt_model_recompute_length(mc, n) == dt_model_recompute_length(t->mc, n),
                    t->cfg, "distill", "seq_kd",
                    "expected false, because only one of teacher and student has rotary embeddings that depend on the "
                    "length of the text");
    return DT_OK;
}

static void open_teacher(dt_task *t, distill *d)
{
    const char *logprobs = t->cfg->distill_teacher_logprobs;
    if (is_known(t) && t->n_units > 0)
        dt_mistakes_add(t->mistakes, dt_config_lead_to(t->cfg, "distill", "teacher_logprobs",
                                                       dt_known_teacher_open(&d->known, t, logprobs)));
    if (is_known(t)) return;
    const char *path = t->cfg->distill_teacher_path;
    if (t->n_units == 0 || (t->comm && !*path)) return; /* already reported */
    d->teacher.scorer.name = "the teacher";
    d->teacher.scorer.generates = d->rollout[BY_TEACHER];
    dt_err err = dt_reference_open(&d->teacher, t, path);
    if (err == DT_OK) err = check_tokenizer(t, d->teacher.scorer.frozen.from.tokenizer);
    dt_mistakes_add(t->mistakes, dt_config_lead_to(t->cfg, "distill", "teacher_path", err));
    if (err == DT_OK) dt_mistakes_add(t->mistakes, check_sampler(t, d));
}

static bool reads_answers(const dt_task *t) { return t->cfg->distill_lmbda < 1 && !t->cfg->distill_seq_kd; }

static dt_rollout *open_rollout(dt_task *t, source by, const char *metrics)
{
    const dt_config *cfg = t->cfg;
    const distill *d = t->self;
    const dt_rollout_options opt = {.section = "distill",
                                    .by_other = by == BY_TEACHER,
                                    .unsaved = true,
                                    .writes_with = d->rollout[BY_STUDENT],
                                    .records = true,
                                    .n_rows = t->batching.train_batch_size,
                                    .num_generations = 1,
                                    .max_completion = (int32_t)cfg->distill_max_new_tokens,
                                    .sampling = {.temperature = cfg->distill_temperature,
                                                 .top_p = 1,
                                                 .repetition_penalty = 1,
                                                 .seed = (uint64_t)cfg->run_seed},
                                    .from_file = ""};
    dt_rollout *r = dt_rollout_open(t, &opt);
    if (r) dt_rollout_declare(r, t->sums, metrics);
    return r;
}

static void open_rollouts(dt_task *t, distill *d)
{
    const int64_t n = t->batching.train_batch_size;
    if (t->cfg->distill_lmbda > 0) {
        d->rollout[BY_STUDENT] = open_rollout(t, BY_STUDENT, "distill");
        d->on_policy = dt_sums_metric(t->sums, DT_SHOW_TRAIN, "distill/on_policy", DT_SUM_MEAN, NULL);
    }
    if (t->cfg->distill_lmbda < 1 && t->cfg->distill_seq_kd)
        d->rollout[BY_TEACHER] = open_rollout(t, BY_TEACHER, "teacher");
    const dt_rollout *first = d->rollout[d->rollout[BY_STUDENT] ? BY_STUDENT : BY_TEACHER];
    if (reads_answers(t) || !first || dt_rollout_n_prompts(first) == 0) return;
    /* an epoch consists of whole steps; prompts left over come first in the next epoch */
    t->steps_per_epoch = dt_max_i64(1, dt_rollout_n_prompts(first) / n);
    t->samples_per_epoch = t->steps_per_epoch * n;
}

/* Runs after the begin of the teacher and the rollouts. */
static dt_err begin(void *self, dt_task *t)
{
    const distill *d = self;
    dt_rollout *r = d->rollout[BY_TEACHER];
    return dt_comm_agree(t->comm, r ? dt_rollout_use(r, t, d->teacher.scorer.model) : DT_OK);
}

static void distill_open(dt_task *t)
{
    static const dt_task_part_ops part = {.begin = begin};
    distill *d = t->self;
    t->temperature = t->cfg->distill_temperature;
    t->kl_mix = 1 - t->cfg->distill_beta;
    t->model_opt->head |= DT_HEAD_DIVERGENCE;
    lm_open(t, reads_answers(t), "distill/nll");
    open_rollouts(t, d);
    open_teacher(t, d);
    dt_task_hold(t, &part, d);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static source source_of(const dt_task *t, int64_t step)
{
    const uint64_t key = dt_rng_key((uint64_t)t->cfg->run_seed, DT_RNG_ON_POLICY);
    if ((double)(dt_mix64(key + (uint64_t)step) >> 11) * 0x1p-53 < t->cfg->distill_lmbda) return BY_STUDENT;
    return t->cfg->distill_seq_kd ? BY_TEACHER : OF_DATA;
}

static dt_err begin_samples(dt_task *t, dt_rollout *r, int64_t step)
{
    const int64_t n = t->batching.train_batch_size;
    int64_t n_target = 0;
    dt_rollout_rewind(r, step * n);
    dt_rollout_start(r, step);
    DT_TRY(dt_rollout_fill(r, t));
    DT_TRY(dt_rollout_write(r, t, 0, NULL, NULL, NULL));
    dt_rollout_collect(r, t);
    for (int64_t i = 0; i < n; i++) n_target += dt_rollout_row_of(r, i)->n_new;
    t->micro = (dt_micro){.n_micro = dt_rollout_n_micro(r, t, n), .inv_norm = 1 / (double)n_target};
    return DT_OK;
}

static dt_err distill_score(dt_task *t, const dt_batch *b)
{
    distill *d = t->self;
    return is_known(t) ? dt_known_teacher_read(&d->known, b) : dt_scorer_forward(&d->teacher.scorer, t, b);
}

static dt_err distill_next_micro(dt_task *t, int64_t step, int micro, dt_micro *m)
{
    distill *d = t->self;
    const source from = source_of(t, step);
    const int64_t *row;
    d->row = NULL;
    if (from == OF_DATA) return dt_task_data_micro(t, step, micro, m);
    if (micro == 0) DT_TRY(begin_samples(t, d->rollout[from], step));
    *m = t->micro;
    DT_TRY(dt_rollout_micro(d->rollout[from], t, NULL, 0, t->batching.train_batch_size, micro, &m->batch, &row));
    if (from == BY_STUDENT) d->row = row;
    return distill_score(t, m->batch);
}

static dt_err distill_weights(dt_task *t, const dt_micro *m, const dt_predictions *p, dt_weights *w)
{
    const dt_batch *b = m->batch;
    for (int64_t i = 0; i < b->n_target; i++) {
        w->u[i] = 0;
        w->kl[i] = (float)(b->weight[b->target_row[i]] * m->inv_norm);
    }
    return DT_OK;
}

static void distill_collect(dt_task *t, const dt_micro *m, const dt_predictions *p)
{
    const distill *d = t->self;
    lm_collect(t, m, p);
    if (d->row && !m->validation) dt_rollout_compare(d->rollout[BY_STUDENT], t, m->batch, d->row, p->logp);
}

static dt_err distill_after_step(dt_task *t, int64_t step, bool applied)
{
    const distill *d = t->self;
    if (d->rollout[BY_STUDENT]) dt_sums_add(t->sums, d->on_policy, source_of(t, step - 1) == BY_STUDENT);
    return DT_OK;
}

static int64_t step_after(const dt_task *t, int64_t samples)
{
    return reads_answers(t) ? dt_task_data_step_after(t, samples) : samples / t->batching.train_batch_size;
}

/* Flush rollouts.jsonl. */
static dt_err distill_save(dt_task *t, dt_named_arrays *items)
{
    const distill *d = t->self;
    for (int by = 0; by < N_SAMPLERS; by++)
        if (d->rollout[by]) DT_TRY(dt_rollout_save(d->rollout[by], t, items));
    return DT_OK;
}

const dt_task_ops dt_task_distill = {.name = "distill",
                                     .trains = true,
                                     .weights_known = true,
                                     .no_dropout = true,
                                     .images = true,
                                     .watch = {"distill/nll"},
                                     .num_tokens = "distill/num_tokens",
                                     .self_nbytes = sizeof(distill),
                                     .check = check,
                                     .open = distill_open,
                                     .next_micro = distill_next_micro,
                                     .begin_step = lm_begin_step,
                                     .score = distill_score,
                                     .weights = distill_weights,
                                     .collect = distill_collect,
                                     .after_step = distill_after_step,
                                     .step_after = step_after,
                                     .save = distill_save};
