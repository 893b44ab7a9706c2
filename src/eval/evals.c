/* evals.c - an evaluation: scores the texts of all benchmarks by the forward of training, and computes metrics. */
#include "dtrain/io/io.h"
#include "eval_private.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static dt_err open_tokenizer(dt_evals *e, const dt_task *t)
{
    DT_CONFIG_CHECK(*t->tokenizer, t->cfg, "eval", "tasks",
                    "texts need a tokenizer, and the model has none; set [model] tokenizer");
    DT_TRY(dt_tokenizer_open(&e->tokenizer, t->tokenizer));
    const dt_tokenizer_info *info = dt_tokenizer_get_info(e->tokenizer);
    DT_CONFIG_CHECK(info->n_own <= t->mc->vocab_size, t->cfg, "eval", "tasks",
                    "the tokenizer has %d tokens, but the model only %" PRId64, info->n_own, t->mc->vocab_size);
    e->prefix = info->bos >= 0 ? info->bos : info->eos;
    return dt_encoder_open(&e->encoder, e->tokenizer);
}

static dt_err set_limits(dt_evals *e, dt_task *t)
{
    dt_model_options *o = t->model_opt;
    const int64_t most = t->mc->max_position_embeddings, wanted = t->cfg->eval_max_length;
    DT_CONFIG_CHECK(!t->mc->learned_positions || wanted <= most, t->cfg, "eval", "max_length",
                    "expected at most max_position_embeddings = %" PRId64 ", found %" PRId64, most, wanted);
    e->max_length = (int32_t)dt_min_i64(wanted ? wanted : most, INT32_MAX / 2);
    e->max_tok = o->max_tok, e->max_seq = (int32_t)t->cfg->eval_batch_size;
    return DT_OK;
}

/* Encoding the texts is what takes long. */
static dt_err make_requests(dt_evals *e, dt_task *t)
{
    uint64_t hash = 0;
    for (int i = 0; i < e->n_benches; i++) {
        DT_TRY(eval_read_documents(&e->bench[i], t->cfg));
        DT_TRY(eval_make_requests(e, &e->bench[i], t->cfg));
    }
    for (size_t i = 0; i < e->ids.n; i++) {
        DT_CHECK(e->ids.id[i] < t->mc->vocab_size, DT_ERR_DATA,
                 "[eval] tasks: token %d is outside the model's vocabulary", e->ids.id[i]);
        hash = dt_mix64(hash + (uint64_t)e->ids.id[i]);
    }
    DT_TRY(eval_make_batches(e));
    for (int i = 0; i < e->n_benches; i++) e->n_generating += e->bench[i].form == EVAL_GENERATE;
    e->n_micro = dt_ceil_div(e->n_batches, t->data->size) + e->n_generating;
    return dt_task_reads(t, t->cfg->eval_tasks, hash);
}

static void widen_model(const dt_evals *e, dt_model_options *o)
{
    o->max_tok = e->max_tok;
    o->max_seq = (int32_t)dt_max_i64(o->max_seq, e->max_seq);
    for (int k = 0; k < e->n_benches; k++)
        for (int64_t i = 0; i < e->bench[k].n_requests; i++) {
            const eval_request *r = &e->bench[k].request[i];
            o->max_pos = (int32_t)dt_max_i64(o->max_pos, r->n_context + r->n_continuation - 1);
        }
}

static dt_err open_all(dt_evals *e, dt_task *t)
{
    const dt_config *cfg = t->cfg;
    DT_CONFIG_CHECK(t->n_labels == 0, cfg, "eval", "tasks",
                    "benchmarks score texts by their log-probabilities, but the model of task %s has no vocabulary",
                    t->ops->name);
    DT_CONFIG_CHECK(!cfg->eval_log_samples || *cfg->run_output_dir, cfg, "eval", "log_samples",
                    "needs run.output_dir, which is empty");
    DT_TRY(eval_read_files(e, cfg));
    for (int i = 0; i < e->n_benches; i++)
        DT_CONFIG_CHECK(cfg->mesh_cp == 1 || e->bench[i].form != EVAL_GENERATE, cfg, "mesh", "cp",
                        "expected 1, found %" PRId64 ": the benchmark %s generates texts, whose tokens are not divided",
                        cfg->mesh_cp, e->bench[i].name);
    e->first_shown = t->sums->n_shown[DT_SHOW_VALIDATION];
    for (int i = 0; i < e->n_benches; i++) DT_TRY(eval_declare(&e->bench[i], t->sums));
    if (t->n_units == 0) return DT_OK; /* a mistake in the model, already reported */
    DT_TRY(set_limits(e, t));
    dt_err err = open_tokenizer(e, t);
    if (err == DT_OK) err = make_requests(e, t);
    if (err != DT_OK && !t->comm) return dt_error_clear(), DT_OK; /* a plan works without the files */
    DT_TRY(err);
    widen_model(e, t->model_opt);
    eval_widen_generation(e, t);
    return eval_open_judge(e, t);
}

/* ---- a part of the task ------------------------------------------------------------------------------------------ */

/* Host memory of texts and results; documents are not counted. */
static size_t text_nbytes(const dt_evals *e)
{
    size_t n = e->ids.n_alloc * sizeof *e->ids.id + (size_t)e->n_batches * sizeof *e->batch +
               dt_tokenizer_nbytes(e->tokenizer);
    for (int i = 0; i < e->n_benches; i++) {
        const eval_bench *b = &e->bench[i];
        n += (size_t)b->docs.n * (sizeof *b->item + sizeof *b->score) +
             (size_t)b->n_requests * (sizeof *b->request + (b->is_judged ? 4 : 2) * sizeof *b->logp);
    }
    return n;
}

static dt_err plan(const void *self, const dt_task *t, dt_memory *memory)
{
    const dt_evals *e = self;
    (void)t;
    memory->at[DT_MEM_DATA][DT_ON_HOST] += text_nbytes(e) + eval_generation_nbytes(e, t) +
                                           eval_generators_nbytes(e, t) +
                                           (e->max_tok ? dt_batch_nbytes(e->max_tok, e->max_seq) : 0);
    return DT_OK;
}

static dt_err begin(void *self, dt_task *t)
{
    dt_evals *e = self;
    dt_err err = dt_batch_alloc(&e->micro, e->max_tok, e->max_seq, t->ledger);
    if (err == DT_OK) err = eval_begin_generation(e, t);
    dt_ledger_add(t->ledger, DT_MEM_DATA, DT_ON_HOST, e->nbytes = text_nbytes(e) + eval_generation_nbytes(e, t));
    return dt_comm_agree(t->comm, err);
}

static void close_evals(void *self, dt_task *t)
{
    dt_evals *e = self;
    dt_ledger_sub(t->ledger, DT_MEM_DATA, DT_ON_HOST, e->nbytes);
    eval_close_generation(e);
    dt_batch_free(&e->micro, t->ledger);
    for (int i = 0; i < e->n_benches; i++) eval_free_bench(&e->bench[i]);
    dt_encoder_close(e->encoder);
    dt_tokenizer_close(e->tokenizer);
    free(e->bench), free(e->ids.id), free(e->batch), free(e);
}

dt_evals *dt_evals_open(dt_task *t)
{
    static const dt_task_part_ops part = {.plan = plan, .begin = begin, .close = close_evals};
    if (!*t->cfg->eval_tasks || dt_config_doubted(t->cfg, "eval", NULL)) return NULL;
    dt_evals *e = calloc(1, sizeof *e);
    if (!e) {
        dt_mistakes_add(t->mistakes, dt_fail(DT_ERR_MEMORY, "out of memory for benchmarks"));
        return NULL;
    }
    dt_task_hold(t, &part, e);
    const dt_err err = open_all(e, t);
    dt_mistakes_add(t->mistakes, err);
    return err == DT_OK ? e : NULL;
}

/* ---- an evaluation ----------------------------------------------------------------------------------------------- */

int64_t dt_evals_n_micro(const dt_evals *e) { return e ? e->n_micro : 0; }

int dt_evals_first_shown(const dt_evals *e) { return e->first_shown; }

/* Keep the results of the texts in e->micro. */
static dt_err keep(dt_evals *e, const dt_task *t, const struct eval_batch *x)
{
    const dt_batch *m = &e->micro;
    const dt_head_results *from = &t->buffers.results;
    eval_bench *b = &e->bench[x->bench];
    for (int i = 0; i < x->n; i++) {
        double logp = 0;
        bool greedy = true;
        for (int32_t k = m->seq_target[i]; k < m->seq_target[i + 1]; k++)
            logp += (double)from->logp[k], greedy &= from->hit[k];
        DT_CHECK(isfinite(logp), DT_ERR_NONFINITE, "benchmark %s: the log-probability of a text is %g", b->name, logp);
        b->logp[x->first + i] = logp;
        b->greedy[x->first + i] = greedy;
    }
    return DT_OK;
}

dt_err eval_share(const dt_axis *data, double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += INT32_MAX / 2)
        DT_TRY(dt_comm_reduce_host_f64(data, x + i, (int)dt_min_i64(n - i, INT32_MAX / 2), DT_SUM));
    return DT_OK;
}

/* Metrics are the same on all ranks, so the maximum over ranks is the value itself. */
static dt_err conclude(dt_evals *e, eval_bench *b, dt_task *t)
{
    DT_TRY(eval_compute(b, t->cfg));
    for (int i = 0; i < b->n_results; i++) {
        const eval_result *r = &b->result[i];
        dt_sums_add(t->sums, r->sum, r->value);
        if (r->sum_of_error) dt_sums_add(t->sums, r->sum_of_error, r->error);
    }
    if (!t->cfg->eval_log_samples || !dt_comm_first(t->comm)) return DT_OK;
    return eval_write_samples(e, b, t->cfg);
}

static dt_err finish(dt_evals *e, dt_task *t)
{
    dt_phase_enter(t->phase, "evaluate", "metrics");
    for (int i = 0; i < e->n_benches; i++) {
        DT_TRY(eval_share(t->data, e->bench[i].logp, e->bench[i].n_requests));
        DT_TRY(eval_share(t->data, e->bench[i].greedy, e->bench[i].n_requests));
    }
    dt_err err = dt_fault("eval.finish");
    for (int i = 0; i < e->n_benches && err == DT_OK; i++) err = conclude(e, &e->bench[i], t);
    e->evaluated = err == DT_OK;
    return dt_comm_agree(t->comm, err);
}

static void clear(dt_evals *e)
{
    for (int i = 0; i < e->n_benches; i++) {
        memset(e->bench[i].logp, 0, (size_t)e->bench[i].n_requests * sizeof(double));
        memset(e->bench[i].greedy, 0, (size_t)e->bench[i].n_requests * sizeof(double));
    }
}

/* A micro-batch of texts to score. */
static dt_err score(dt_evals *e, dt_task *t, int64_t micro)
{
    const int64_t batch = micro * t->data->size + t->data->rank;
    const dt_head_results *r = &t->buffers.results;
    eval_fill_batch(e, batch);
    dt_phase_enter(t->phase, "forward", "evaluation");
    DT_TRY(dt_model_forward(t->model, &e->micro, false, 0));
    dt_phase_enter(t->phase, "head", "evaluation");
    DT_TRY(dt_model_logp(t->model, &e->micro, 1, r->logp, r->hit, r->entropy));
    return batch < e->n_batches ? keep(e, t, &e->batch[batch]) : DT_OK;
}

/* The n-th benchmark with generated texts. */
static eval_bench *generating(dt_evals *e, int64_t n)
{
    eval_bench *b = e->bench;
    for (;; b++)
        if (b->form == EVAL_GENERATE && n-- == 0) return b;
}

dt_err dt_evals_micro(dt_evals *e, dt_task *t, int64_t micro)
{
    const int64_t n_scored = e->n_micro - e->n_generating;
    if (micro == 0) clear(e);
    DT_TRY(micro < n_scored ? score(e, t, micro) : eval_generate(e, generating(e, micro - n_scored), t));
    return micro == e->n_micro - 1 ? finish(e, t) : DT_OK;
}
