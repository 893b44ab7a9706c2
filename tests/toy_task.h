/* toy_task.h - a task that is not part of the program: on-policy distillation with two steps to a rollout.
 *
 * A rollout: the model in training continues each prompt; a frozen model (model.path, which is the start, too)
 * scores the new tokens. Token t has the advantage A_t = logp_frozen(t) - old(t), old being the model's own
 * log-probability when it rolled out. Two optimizer steps then take all of it:
 *
 *     L = -(1/M) sum over t of r_t A_t,    r_t = exp(logp_t - old_t),    u_t = r_t A_t / M,
 *
 * with M the number of new tokens of all ranks. In addition to the model, a table of one weight for each token id is
 * trained, with its own updates: its gradient is the sum of that token's advantages, over M. All of a rollout is in
 * the checkpoint, by sample: a resume may begin at its second step, on any number of ranks. */
#ifndef DTRAIN_TESTS_TOY_TASK_H
#define DTRAIN_TESTS_TOY_TASK_H

#include "dtrain/pretrained/frozen_model.h"
#include "dtrain/step/step.h"
#include "dtrain/generate/generate.h"
#include "dtrain/train/train.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOY_PROMPT = 4, TOY_LEN = 16, TOY_STEPS = 2, TOY_EOS = 5, TOY_EPOCH = 10 };

typedef struct toy {
    dt_frozen_model frozen;
    dt_model_options frozen_opt;
    dt_model *judge;
    dt_unit table_unit;
    dt_trained *table;
    dt_buf table_grad[2]; /* of a micro-step: pinned, and on the device */
    dt_generator *generator;
    dt_generate_options generate_opt;
    size_t nbytes; /* of block */
    void *block;   /* the arrays below */
    /* this rank's part of the rollout: its samples in the order of its micro-batches */
    dt_sequence *seqs;
    dt_sequence **order;
    int32_t *ids;             /* [n, TOY_LEN] */
    float *old, *frozen_logp; /* [n, TOY_LEN]: of the token at that place */
    float *logp, *entropy;    /* of a batch */
    uint8_t *hit;
    dt_batch batch;
    int64_t n, rollout, n_new; /* n_new: of all ranks; rollout -1: none yet */
    int loss, tokens, samples, new_tokens, divergence, largest_ratio, frozen_sum;
} toy;

static inline toy *toy_of(const dt_task *t) { return t->self; }
static inline int64_t toy_micros(const dt_task *t) { return t->batching.accumulation; }
/** The number of this rank's k-th sample among those of a step. */
static inline int64_t toy_sample(const dt_task *t, int64_t k)
{
    const int64_t m = t->batching.micro_batch_size;
    return (k / m * t->data->size + t->data->rank) * m + k % m;
}

enum { TOY_IDS, TOY_OLD, TOY_FROZEN, TOY_ARRAYS };
/** The values that a rollout is saved as. */
static inline int64_t toy_saved_len(const dt_task *t)
{
    return TOY_ARRAYS * t->batching.train_batch_size * (TOY_LEN + 1);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void toy_check(dt_task *t) { dt_task_need(t, "model", "path", t->cfg->model_path, "the model that judges"); }

static void toy_declare(toy *y, dt_sums *s)
{
    y->loss = dt_sums_declare(s, "loss", DT_SUM_LOSS, 1);
    y->new_tokens = dt_sums_declare(s, "toy/new_tokens", DT_SUM_UNITS, 1);
    y->tokens = dt_sums_declare(s, "tokens", DT_SUM_UNITS, 1);
    y->samples = dt_sums_declare(s, "samples", DT_SUM_UNITS, 1);
    y->divergence = dt_sums_declare(s, "toy/divergence", DT_SUM_LOSS, 1);
    y->frozen_sum = dt_sums_declare(s, "toy/frozen_logp", DT_SUM_UNITS, 0x1p-20);
    y->largest_ratio = dt_sums_declare(s, "toy/largest_ratio", DT_SUM_LARGEST, 1);
    if (dt_fault("toy.declare") != DT_OK) dt_sums_declare(s, "toy/of_one_rank", DT_SUM_REAL, 1);
    dt_error_clear();
    dt_sums_show(s, DT_SHOW_TRAIN, "loss", "loss", "toy/new_tokens", NULL);
    dt_sums_show(s, DT_SHOW_TRAIN, "toy/divergence", "toy/divergence", "toy/new_tokens", NULL);
    dt_sums_show(s, DT_SHOW_TRAIN, "toy/frozen_logp", "toy/frozen_logp", "toy/new_tokens", NULL);
    dt_sums_show(s, DT_SHOW_TRAIN, "toy/largest_ratio", "toy/largest_ratio", NULL, NULL);
    dt_sums_show(s, DT_SHOW_TRAIN, "toy/new_tokens", "toy/new_tokens", NULL, NULL);
    dt_sums_show(s, DT_SHOW_VALIDATION, "validation_loss", "toy/divergence", "toy/new_tokens", NULL);
}

static inline double toy_number(const char *name, double otherwise)
{
    const char *text = getenv(name);
    return text ? atof(text) : otherwise;
}

/* Its updates have nothing in common with the model's but the schedule. */
static void toy_open_table(dt_task *t)
{
    toy *y = toy_of(t);
    snprintf(y->table_unit.name, sizeof y->table_unit.name, "table");
    dt_mistakes_add(t->mistakes, dt_unit_add(&y->table_unit, "table.weight", 1, (const int64_t[]){t->mc->vocab_size},
                                             true, true, 0.02f, 0));
    y->table = dt_task_train_auxiliary(t, "table", &y->table_unit, 1);
    if (!y->table) return;
    y->table->groups.group[0].lr = toy_number("TOY_TABLE_LR", 0.5);
    y->table->max_grad_norm = toy_number("TOY_TABLE_CLIP", 0.25);
    y->table->settings.weight_decay = 0;
    y->table->zero_opt.stage = -1; /* no override: the run's value counts */
    if (getenv("TOY_TABLE_SGD")) y->table->zero_opt.optimizer = &dt_optimizer_sgd_plain;
    if (getenv("TOY_TABLE_MOMENTUM")) y->table->zero_opt.optimizer = &dt_optimizer_sgd;
}

/* The model in training generates and lends the memory in which the frozen one works. */
static dt_err toy_size(dt_task *t)
{
    toy *y = toy_of(t);
    dt_model_options *o = t->model_opt;
    const int32_t m = (int32_t)t->batching.micro_batch_size;
    dt_memory judge;
    if (o->max_tok < m * TOY_LEN) o->max_tok = m * TOY_LEN;
    if (o->max_seq < m) o->max_seq = m;
    if (o->max_pos < TOY_LEN) o->max_pos = TOY_LEN;
    o->cache_seqs = m, o->cache_len = TOY_LEN, o->batch_invariant = true;
    y->frozen_opt = (dt_model_options){.dtype = o->dtype,
                                       .grad_dtype = o->dtype,
                                       .max_tok = m * TOY_LEN,
                                       .max_seq = m,
                                       .max_pos = o->max_pos,
                                       .batch_invariant = true};
    DT_TRY(dt_model_plan(&y->frozen.mc, &y->frozen_opt, y->frozen.units, y->frozen.n_units, t->dev, &judge));
    o->lend_nbytes = judge.at[DT_MEM_ACTIVATIONS][DT_ON_DEVICE];
    y->frozen_opt.borrows = true;
    y->generate_opt = (dt_generate_options){.sampling = dt_sampling_default(),
                                            .vocab_size = t->mc->vocab_size,
                                            .n_slots = m,
                                            .max_tok = m * TOY_LEN,
                                            .ledger = t->ledger};
    y->generate_opt.sampling.seed = (uint64_t)t->cfg->run_seed;
    y->n = m * toy_micros(t);
    y->nbytes = (size_t)y->n * (sizeof *y->seqs + sizeof *y->order + TOY_LEN * (sizeof *y->ids + 2 * sizeof *y->old)) +
                (size_t)(m * TOY_LEN) * (2 * sizeof(float) + 1);
    return DT_OK;
}

static void toy_open(dt_task *t)
{
    toy *y = calloc(1, sizeof *y);
    t->self = y;
    if (!y) return;
    y->rollout = -1;
    toy_declare(y, t->sums);
    t->steps_per_epoch = TOY_EPOCH;
    t->samples_per_epoch = TOY_EPOCH * t->batching.train_batch_size;
    t->n_validation = toy_micros(t);
    t->keep_gathered = getenv("TOY_KEEP_GATHERED") != NULL;
    if (!*t->cfg->model_path || t->n_units == 0 || !t->dev->ops) return; /* reported already */
    const dt_err err = dt_frozen_model_describe(&y->frozen, t->cfg->model_path, 0);
    dt_mistakes_add(t->mistakes, err == DT_OK ? toy_size(t) : err);
    t->saved_nbytes = (double)(2 + toy_saved_len(t)) * sizeof(int64_t);
    toy_open_table(t);
}

static size_t toy_table_nbytes(const dt_task *t) { return (size_t)t->mc->vocab_size * sizeof(float); }

static dt_err toy_plan(const dt_task *t, int stage, dt_memory *memory)
{
    const toy *y = toy_of(t);
    dt_memory judge;
    memory->at[DT_MEM_STAGING][DT_ON_PINNED] += toy_table_nbytes(t);
    memory->at[DT_MEM_STAGING][DT_ON_DEVICE] += toy_table_nbytes(t);
    DT_TRY(dt_frozen_model_plan(&y->frozen, &t->main->zero_opt, y->frozen_opt.dtype, t->data->size, t->dev, memory));
    DT_TRY(dt_model_plan(&y->frozen.mc, &y->frozen_opt, y->frozen.units, y->frozen.n_units, t->dev, &judge));
    dt_memory_add(memory, &judge);
    memory->at[DT_MEM_DATA][DT_ON_HOST] += y->nbytes + dt_generator_nbytes(&y->generate_opt) +
                                           dt_batch_nbytes(y->frozen_opt.max_tok, y->frozen_opt.max_seq);
    return DT_OK;
}

/* ---- what it holds ----------------------------------------------------------------------------------------------- */

static dt_err toy_alloc(dt_task *t)
{
    toy *y = toy_of(t);
    y->block = calloc(1, y->nbytes);
    DT_CHECK(y->block, DT_ERR_MEMORY, "out of memory for rollouts");
    dt_ledger_add(t->ledger, DT_MEM_DATA, DT_ON_HOST, y->nbytes);
    y->seqs = y->block;
    y->order = (dt_sequence **)(y->seqs + y->n);
    y->ids = (int32_t *)(y->order + y->n);
    y->old = (float *)(y->ids + y->n * TOY_LEN);
    y->frozen_logp = y->old + y->n * TOY_LEN;
    y->logp = y->frozen_logp + y->n * TOY_LEN;
    y->entropy = y->logp + y->frozen_opt.max_tok;
    y->hit = (uint8_t *)(y->entropy + y->frozen_opt.max_tok);
    return dt_batch_alloc(&y->batch, y->frozen_opt.max_tok, y->frozen_opt.max_seq, t->ledger);
}

static dt_err toy_begin_local(dt_task *t)
{
    static const int32_t eos[] = {TOY_EOS};
    toy *y = toy_of(t);
    DT_TRY(toy_alloc(t));
    for (int i = 0; i < 2; i++)
        DT_TRY(dt_buf_alloc(&y->table_grad[i], t->dev, i ? DT_ON_DEVICE : DT_ON_PINNED, toy_table_nbytes(t),
                            DT_MEM_STAGING));
    y->frozen_opt.lender = t->model;
    DT_TRY(dt_model_open(&y->judge, &y->frozen.mc, &y->frozen_opt, y->frozen.units, y->frozen.n_units, t->dev,
                         &y->frozen.source, t->compute, t->phase));
    const dt_decoder decoder = dt_decoder_of_model(t->model);
    y->generate_opt.eos = eos, y->generate_opt.n_eos = 1;
    y->generate_opt.lockstep = t->stage == 3 ? t->comm : NULL;
    return dt_generator_open(&y->generator, &decoder, &y->generate_opt);
}

static dt_err toy_begin(dt_task *t)
{
    toy *y = toy_of(t);
    DT_TRY(dt_frozen_model_load(&y->frozen, &t->main->zero_opt, y->frozen_opt.dtype, t->comm, t->dev, t->compute,
                                t->phase));
    DT_TRY(dt_zero_init_random(y->table->zero, (uint64_t)t->cfg->run_seed));
    return dt_comm_agree(t->comm, toy_begin_local(t));
}

static void toy_close(dt_task *t)
{
    toy *y = toy_of(t);
    if (!y) return;
    dt_generator_close(y->generator);
    dt_model_close(y->judge);
    dt_frozen_model_close(&y->frozen);
    dt_unit_free(&y->table_unit);
    for (int i = 0; i < 2; i++) dt_buf_free(&y->table_grad[i]);
    dt_batch_free(&y->batch, t->ledger);
    if (y->block) dt_ledger_sub(t->ledger, DT_MEM_DATA, DT_ON_HOST, y->nbytes);
    free(y->block);
    free(y);
    t->self = NULL;
}

/* ---- a rollout --------------------------------------------------------------------------------------------------- */

/* The sequences of micro-batch a: each token but the last predicts the next; targets are those that were generated. */
static void toy_fill(dt_task *t, int a)
{
    toy *y = toy_of(t);
    dt_batch *b = &y->batch;
    const int64_t m = t->batching.micro_batch_size;
    b->n_tok = b->n_seq = 0;
    b->seq_start[0] = 0;
    for (int64_t k = a * m; k < (a + 1) * m; k++) {
        const dt_sequence *q = &y->seqs[k];
        for (int32_t i = 0; i + 1 < q->n_ids; i++, b->n_tok++) {
            const bool target = i + 1 >= q->n_prompt;
            b->token[b->n_tok] = q->ids[i];
            b->target[b->n_tok] = target ? q->ids[i + 1] : -1;
            b->weight[b->n_tok] = target ? 1 : 0;
            b->pos[b->n_tok] = i;
            b->token_key[b->n_tok] = dt_mix64(q->number * TOY_LEN + (uint64_t)i);
        }
        b->full_len[b->n_seq++] = 0;
        b->seq_start[b->n_seq] = b->n_tok;
    }
    b->n_samples = m;
    dt_batch_finish(b);
}

/* Stores log-probabilities of a batch's targets at their tokens' positions in the rollout. */
static void toy_keep(dt_task *t, int a, const float *logp, float *kept)
{
    const dt_batch *b = &toy_of(t)->batch;
    const int64_t first = a * t->batching.micro_batch_size;
    for (int32_t s = 0; s < b->n_seq; s++)
        for (int32_t i = b->seq_target[s]; i < b->seq_target[s + 1]; i++)
            kept[(first + s) * TOY_LEN + b->pos[b->target_row[i]] + 1] = logp[i];
}

static void toy_begin_sequences(dt_task *t, int64_t rollout)
{
    toy *y = toy_of(t);
    for (int64_t k = 0; k < y->n; k++) {
        const uint64_t number = (uint64_t)(rollout * t->batching.train_batch_size + toy_sample(t, k));
        int32_t *ids = y->ids + k * TOY_LEN;
        for (int i = 0; i < TOY_PROMPT; i++)
            ids[i] = (int32_t)(dt_mix64(number * TOY_PROMPT + (uint64_t)i) % (uint64_t)t->mc->vocab_size);
        y->seqs[k] = (dt_sequence){
            .number = number, .ids = ids, .n_prompt = TOY_PROMPT, .n_ids = TOY_PROMPT, .max_ids = TOY_LEN};
        y->order[k] = &y->seqs[k];
    }
}

/* The model's own log-probabilities come from a pass like that of a step, so that the first ratio is exactly 1. */
static dt_err toy_score(dt_task *t, int64_t step)
{
    toy *y = toy_of(t);
    for (int a = 0; a < toy_micros(t); a++) {
        toy_fill(t, a);
        dt_phase_enter(t->phase, "score", "frozen");
        DT_TRY(dt_model_forward(y->judge, &y->batch, false, 0));
        DT_TRY(dt_model_logp(y->judge, &y->batch, 1.0f, y->logp, NULL, NULL));
        toy_keep(t, a, y->logp, y->frozen_logp);
        dt_phase_enter(t->phase, "score", "old");
        DT_TRY(dt_model_forward(t->model, &y->batch, true, step));
        DT_TRY(dt_model_logp(t->model, &y->batch, 1.0f, y->logp, y->hit, y->entropy));
        toy_keep(t, a, y->logp, y->old);
    }
    return DT_OK;
}

static dt_err toy_count(dt_task *t)
{
    toy *y = toy_of(t);
    y->n_new = 0;
    for (int64_t k = 0; k < y->n; k++) y->n_new += y->seqs[k].n_ids - y->seqs[k].n_prompt;
    return dt_comm_reduce_host_i64(t->comm, &y->n_new, 1, DT_SUM);
}

static dt_err toy_roll_out(dt_task *t, int64_t rollout, int64_t step)
{
    toy *y = toy_of(t);
    dt_generate_stats stats;
    dt_phase_enter(t->phase, "rollout", "");
    toy_begin_sequences(t, rollout);
    DT_TRY(dt_generator_run(y->generator, y->order, (int)y->n, &stats));
    DT_TRY(dt_fault("toy.rollout"));
    DT_TRY(toy_score(t, step));
    DT_TRY(toy_count(t));
    y->rollout = rollout;
    return DT_OK;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static dt_err toy_next_micro(dt_task *t, int64_t step, int micro, dt_micro *m)
{
    toy *y = toy_of(t);
    if (micro == 0 && y->rollout != step / TOY_STEPS) DT_TRY(toy_roll_out(t, step / TOY_STEPS, step));
    toy_fill(t, micro);
    *m = (dt_micro){.batch = &y->batch, .n_micro = (int)toy_micros(t), .inv_norm = 1 / (double)y->n_new};
    return DT_OK;
}

/* The position in the rollout of a batch's token i, in sequence s of this rank's micro-batch. Its first token's key
 * identifies the micro-batch. */
static int64_t toy_place(const dt_task *t, int32_t s, int32_t i)
{
    const toy *y = toy_of(t);
    const dt_batch *b = &y->batch;
    for (int64_t k = s; k < y->n; k += t->batching.micro_batch_size)
        if (dt_mix64(y->seqs[k].number * TOY_LEN) == b->token_key[b->seq_start[s]]) return k * TOY_LEN + b->pos[i] + 1;
    return 0;
}

static dt_err toy_weights(dt_task *t, const dt_micro *m, const dt_predictions *p, dt_weights *w)
{
    const toy *y = toy_of(t);
    const dt_batch *b = m->batch;
    for (int32_t s = 0; s < b->n_seq; s++)
        for (int32_t i = b->seq_target[s]; i < b->seq_target[s + 1]; i++) {
            const int64_t at = toy_place(t, s, b->target_row[i]);
            const double ratio = exp((double)p->logp[i] - (double)y->old[at]);
            const double gain = (double)y->frozen_logp[at] - (double)y->old[at];
            w->u[i] = (float)(ratio * gain * m->inv_norm);
        }
    return DT_OK;
}

/* The host waits for the micro-step before: its gradient leaves from the same place. */
static dt_err toy_train_auxiliary(dt_task *t, const dt_micro *m)
{
    toy *y = toy_of(t);
    const dt_batch *b = m->batch;
    const dt_param_source source = dt_zero_source(y->table->zero);
    float *grad = y->table_grad[0].ptr;
    const double factor = m->inv_norm * toy_number("TOY_TABLE_SCALE", 1);
    dt_grad_view g;
    DT_TRY(t->dev->ops->stream_sync(t->dev, t->compute));
    memset(grad, 0, toy_table_nbytes(t));
    for (int32_t s = 0; s < b->n_seq; s++)
        for (int32_t i = b->seq_start[s]; i < b->seq_start[s + 1]; i++) {
            const int64_t at = toy_place(t, s, i);
            if (b->target[i] >= 0)
                grad[b->target[i]] += (float)(((double)y->frozen_logp[at] - (double)y->old[at]) * factor);
        }
    DT_TRY(t->dev->ops->copy(t->dev, y->table_grad[1].ptr, grad, toy_table_nbytes(t), t->compute));
    DT_TRY(source.grads_acquire(source.self, 0, &g));
    DT_TRY(t->dev->ops->add_into(t->dev, y->table_grad[1].ptr, DT_F32, g.data, g.dtype, g.accumulate, t->mc->vocab_size,
                                 t->compute));
    return source.grads_release(source.self, 0);
}

static void toy_collect(dt_task *t, const dt_micro *m, const dt_predictions *p)
{
    const toy *y = toy_of(t);
    const dt_batch *b = m->batch;
    double loss = 0, divergence = 0, judged = 0;
    for (int32_t s = 0; s < b->n_seq; s++)
        for (int32_t i = b->seq_target[s]; i < b->seq_target[s + 1]; i++) {
            const int64_t at = toy_place(t, s, b->target_row[i]);
            const double ratio = exp((double)p->logp[i] - (double)y->old[at]);
            loss -= ratio * ((double)y->frozen_logp[at] - (double)y->old[at]);
            divergence += (double)p->logp[i] - (double)y->frozen_logp[at];
            judged += (double)y->frozen_logp[at];
            dt_sums_add(t->sums, y->largest_ratio, ratio);
        }
    dt_sums_add(t->sums, y->loss, loss);
    dt_sums_add(t->sums, y->divergence, divergence);
    dt_sums_add(t->sums, y->frozen_sum, judged);
    dt_sums_count(t->sums, y->new_tokens, b->n_target);
    dt_sums_count(t->sums, y->tokens, b->n_tok);
    dt_sums_count(t->sums, y->samples, b->n_samples);
}

/* The existing rollout, scored by the current model. */
static dt_err toy_evaluate(dt_task *t, int64_t micro)
{
    toy_fill(t, (int)micro);
    const dt_micro m = {.batch = &toy_of(t)->batch, .n_micro = 1};
    return dt_task_forward(t, &m);
}

static int64_t toy_step_after(const dt_task *t, int64_t samples) { return samples / t->batching.train_batch_size; }

/* ---- what a resume needs ----------------------------------------------------------------------------------------- */

static int32_t toy_bits(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* One rank has each sample's values and the others have zeros, so the sums are those values. By sample: its length,
 * then its tokens; the bits of its log-probabilities. */
static dt_err toy_gather(dt_task *t, int64_t *all, int64_t n_all)
{
    const toy *y = toy_of(t);
    memset(all, 0, (size_t)(TOY_ARRAYS * n_all) * sizeof *all);
    for (int64_t k = 0; y->rollout >= 0 && k < y->n; k++) {
        int64_t *row = all + toy_sample(t, k) * (TOY_LEN + 1);
        row[0] = y->seqs[k].n_ids;
        for (int i = 0; i < TOY_LEN; i++) {
            const int64_t at = k * TOY_LEN + i;
            row[1 + i] = y->ids[at];
            row[n_all * TOY_OLD + 1 + i] = toy_bits(y->old[at]);
            row[n_all * TOY_FROZEN + 1 + i] = toy_bits(y->frozen_logp[at]);
        }
    }
    return dt_comm_reduce_host_i64(t->comm, all, (int)(TOY_ARRAYS * n_all), DT_SUM);
}

static dt_err toy_add_items(const toy *y, dt_named_arrays *items, const int64_t *all, int64_t n_all)
{
    const int64_t numbers[] = {y->rollout, y->n_new};
    DT_TRY(dt_named_arrays_add(items, "numbers", DT_NAMED_I64, 2, numbers));
    return dt_named_arrays_add(items, "rollout", DT_NAMED_I64, TOY_ARRAYS * n_all, all);
}

static dt_err toy_save(dt_task *t, dt_named_arrays *items)
{
    const int64_t n_all = t->batching.train_batch_size * (TOY_LEN + 1);
    int64_t *all = malloc((size_t)(TOY_ARRAYS * n_all) * sizeof *all);
    dt_err err = dt_comm_agree(t->comm, all ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for a rollout"));
    if (err == DT_OK) err = toy_gather(t, all, n_all);
    if (err == DT_OK) err = dt_comm_agree(t->comm, toy_add_items(toy_of(t), items, all, n_all));
    free(all);
    return err;
}

static dt_err toy_take(dt_task *t, const int64_t *all, int64_t n_all)
{
    toy *y = toy_of(t);
    toy_begin_sequences(t, y->rollout);
    for (int64_t k = 0; k < y->n; k++) {
        const int64_t *row = all + toy_sample(t, k) * (TOY_LEN + 1);
        DT_CHECK(row[0] >= TOY_PROMPT && row[0] <= TOY_LEN, DT_ERR_DATA, "a sequence of %lld tokens",
                 (long long)row[0]);
        y->seqs[k].n_ids = (int32_t)row[0];
        for (int i = 0; i < TOY_LEN; i++) {
            const int32_t old = (int32_t)row[n_all * TOY_OLD + 1 + i],
                          judged = (int32_t)row[n_all * TOY_FROZEN + 1 + i];
            y->ids[k * TOY_LEN + i] = (int32_t)row[1 + i];
            memcpy(&y->old[k * TOY_LEN + i], &old, sizeof old);
            memcpy(&y->frozen_logp[k * TOY_LEN + i], &judged, sizeof judged);
        }
    }
    return DT_OK;
}

static dt_err toy_load_local(dt_task *t, const dt_named_arrays *items)
{
    toy *y = toy_of(t);
    const int64_t n_all = t->batching.train_batch_size * (TOY_LEN + 1);
    int64_t numbers[2];
    DT_TRY(dt_named_arrays_get(items, "numbers", DT_NAMED_I64, 2, numbers));
    y->rollout = numbers[0], y->n_new = numbers[1];
    const dt_named_array *all = dt_named_arrays_find(items, "rollout");
    DT_CHECK(all && all->type == DT_NAMED_I64 && all->n == TOY_ARRAYS * n_all, DT_ERR_DATA,
             "no rollout of this batch size");
    return y->rollout < 0 ? DT_OK : toy_take(t, all->data, n_all);
}

static dt_err toy_load(dt_task *t, const dt_named_arrays *items)
{
    return dt_comm_agree(t->comm, toy_load_local(t, items));
}

static const dt_task_ops toy_ops = {.name = "toy",
                                    .trains = true,
                                    .check = toy_check,
                                    .open = toy_open,
                                    .plan = toy_plan,
                                    .begin = toy_begin,
                                    .close = toy_close,
                                    .next_micro = toy_next_micro,
                                    .weights = toy_weights,
                                    .train_auxiliary = toy_train_auxiliary,
                                    .collect = toy_collect,
                                    .evaluate = toy_evaluate,
                                    .step_after = toy_step_after,
                                    .save = toy_save,
                                    .load = toy_load};

#endif
