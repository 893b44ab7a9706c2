/* eval_generate.c - texts that the model generates for benchmarks, by the continuous batching of rollouts. Ranks divide
 * the texts, and all receive all tokens. */
#include "dtrain/pretrained/pretrained.h"
#include "eval_private.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SLOTS = 64 };

/* ---- description ------------------------------------------------------------------------------------------------- */

static dt_err take_real(const eval_bench *b, eval_key key, double most, double *x)
{
    char *end;
    *x = strtod(eval_text(b, key), &end);
    if (*end || end == eval_text(b, key) || !(*x >= 0 && *x <= most))
        return eval_fail(b, key, "expected a number from 0 to %g, found %s", most, eval_text(b, key));
    return DT_OK;
}

dt_err eval_read_generation(eval_bench *b, const dt_config *cfg)
{
    static const eval_key flags[] = {EVAL_ignore_case, EVAL_ignore_punctuation, EVAL_ignore_numbers};
    int top_k;
    b->sampling = dt_sampling_default();
    DT_TRY(eval_take_number(b, EVAL_max_gen_toks, &b->max_new));
    DT_TRY(eval_take_number(b, EVAL_repeats, &b->n_repeats));
    DT_TRY(eval_take_number(b, EVAL_top_k, &top_k));
    DT_TRY(take_real(b, EVAL_temperature, 100, &b->sampling.temperature));
    DT_TRY(take_real(b, EVAL_top_p, 1, &b->sampling.top_p));
    if (cfg->eval_max_gen_toks) b->max_new = (int)cfg->eval_max_gen_toks;
    if (b->max_new == 0) return eval_fail(b, EVAL_max_gen_toks, "expected at least 1, found 0");
    if (b->n_repeats == 0) return eval_fail(b, EVAL_repeats, "expected at least 1, found 0");
    if (b->sampling.top_p == 0) return eval_fail(b, EVAL_top_p, "expected a number above 0, found 0");
    b->sampling.top_k = top_k;
    b->sampling.greedy = b->sampling.temperature == 0;
    DT_TRY(eval_check_word(b, EVAL_compare, "text", "math"));
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) DT_TRY(eval_check_word(b, flags[i], "false", "true"));
    return eval_read_answers(b);
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */

static int64_t first_of(const eval_bench *b, const dt_axis *data, int rank)
{
    return b->n_requests * rank / data->size;
}

static int64_t most_of_a_rank(const eval_bench *b, const dt_axis *data)
{
    return dt_ceil_div(b->n_requests, data->size);
}

static int32_t n_slots(const dt_evals *e, const dt_task *t)
{
    int64_t n = 1;
    for (int i = 0; i < e->n_benches; i++)
        if (e->bench[i].form == EVAL_GENERATE) n = dt_max_i64(n, most_of_a_rank(&e->bench[i], t->data));
    return (int32_t)dt_min_i64(n, dt_min_i64(e->max_tok, MAX_SLOTS));
}

static int64_t longest(const eval_bench *b) { return b->max_context + b->max_new; }

void eval_widen_generation(dt_evals *e, dt_task *t)
{
    dt_model_options *o = t->model_opt;
    for (int i = 0; i < e->n_benches; i++) {
        eval_bench *b = &e->bench[i];
        if (b->form != EVAL_GENERATE) continue;
        for (int64_t k = 0; k < b->n_requests; k++)
            b->max_context = dt_max_i64(b->max_context, b->request[k].n_context);
        o->cache_seqs = (int32_t)dt_max_i64(o->cache_seqs, n_slots(e, t));
        o->cache_len = (int32_t)dt_max_i64(o->cache_len, longest(b));
        o->max_seq = (int32_t)dt_max_i64(o->max_seq, n_slots(e, t));
        o->max_pos = (int32_t)dt_max_i64(o->max_pos, longest(b));
        o->batch_invariant = true;
        o->graphs = t->cfg->run_cuda_graphs;
    }
}

static dt_generate_options options_of(const dt_evals *e, const eval_bench *b, const dt_task *t)
{
    dt_generate_options o = {.sampling = b->sampling,
                             .eos = e->ends,
                             .n_eos = e->n_ends,
                             .vocab_size = t->mc->vocab_size,
                             .n_slots = n_slots(e, t),
                             .recompute_at = dt_model_recompute_length(t->mc, longest(b)),
                             .max_tok = t->model_opt->max_tok,
                             .lockstep = t->comm,
                             .ledger = t->ledger};
    o.sampling.seed = dt_mix64((uint64_t)t->cfg->run_seed + 1);
    return o;
}

/* Of eval_bench.generated: whole words of dt_comm_join_host. */
static size_t generated_nbytes(const eval_bench *b)
{
    return ((size_t)b->n_requests * (size_t)(1 + b->max_new) * sizeof *b->generated + 7) & ~(size_t)7;
}

/* Sequences of a rank while they grow. */
static size_t growing_nbytes(const eval_bench *b, const dt_task *t)
{
    const size_t n = (size_t)most_of_a_rank(b, t->data);
    return n * ((size_t)longest(b) * sizeof(int32_t) + sizeof(dt_sequence) + sizeof(dt_sequence *));
}

size_t eval_generation_nbytes(const dt_evals *e, const dt_task *t)
{
    size_t most = 0, all = 0;
    for (int i = 0; i < e->n_benches; i++) {
        const eval_bench *b = &e->bench[i];
        if (b->form != EVAL_GENERATE) continue;
        all += generated_nbytes(b) + (size_t)(b->n_requests * b->n_filters) * sizeof(double);
        if (growing_nbytes(b, t) > most) most = growing_nbytes(b, t);
    }
    return all + most;
}

/* ---- generation -------------------------------------------------------------------------------------------------- */

/* The text of ids, in which U+FFFD replaces U+0000. NULL: no memory. */
static char *decode(const dt_evals *e, const int32_t *ids, int32_t n)
{
    size_t nbytes;
    dt_text out = {0};
    char *text = dt_decode(e->tokenizer, ids, n, true, &nbytes);
    if (!text || !memchr(text, 0, nbytes)) return text;
    for (size_t i = 0; i < nbytes; i++) dt_text_append(&out, text[i] ? &text[i] : "\xef\xbf\xbd", text[i] ? 1 : 3);
    free(text);
    return dt_text_finish(&out, &nbytes);
}

/* Cut a text before the first of the texts that end it. True: there is one. */
static bool cut(const eval_bench *b, char *text)
{
    bool found = false;
    for (size_t i = 0; i < json_array_size(b->until); i++) {
        const char *term = json_string_value(json_array_get(b->until, i));
        char *at = term && *term ? strstr(text, term) : NULL;
        if (at) *at = '\0', found = true;
    }
    return found;
}

static dt_err on_token(void *ctx, dt_sequence *s)
{
    const eval_bench *b = ctx;
    if (json_array_size(b->until) == 0) return DT_OK;
    char *text = decode(b->evals, s->ids + s->n_prompt, s->n_ids - s->n_prompt);
    DT_CHECK(text, DT_ERR_MEMORY, "out of memory for a text");
    if (cut(b, text) && s->finish == DT_FINISH_NONE) s->finish = DT_FINISH_STOP;
    free(text);
    return DT_OK;
}

static dt_err on_pass(void *ctx)
{
    const eval_bench *b = ctx;
    if (dt_phase_poll(b->task->phase) == DT_OK) return DT_OK;
    dt_error_clear();
    return dt_fail(DT_ERR_STOP, "stopped during an evaluation");
}

size_t eval_generators_nbytes(const dt_evals *e, const dt_task *t)
{
    size_t n = 0;
    for (int i = 0; i < e->n_benches; i++) {
        const dt_generate_options o = options_of(e, &e->bench[i], t);
        if (e->bench[i].form == EVAL_GENERATE) n += dt_generator_nbytes(&o);
    }
    return n;
}

dt_err eval_begin_generation(dt_evals *e, dt_task *t)
{
    const dt_decoder decoder = dt_decoder_of_model(t->model);
    e->n_ends = dt_ends_of_text(dt_tokenizer_get_info(e->tokenizer)->eos, t->generation, t->mc, -1, e->ends);
    for (int i = 0; i < e->n_benches; i++) {
        eval_bench *b = &e->bench[i];
        if (b->form != EVAL_GENERATE) continue;
        dt_generate_options o = options_of(e, b, t);
        b->evals = e, b->task = t;
        o.on_token = on_token, o.on_pass = on_pass, o.ctx = b;
        DT_TRY(dt_generator_open(&b->generator, &decoder, &o));
        DT_ALLOC(b->generated, generated_nbytes(b) / sizeof *b->generated, "out of memory for generated texts");
        DT_ALLOC(b->correct, b->n_requests * b->n_filters, "out of memory for results");
        if (growing_nbytes(b, t) > e->n_growing) e->n_growing = growing_nbytes(b, t);
    }
    if (e->n_growing == 0) return DT_OK;
    e->growing = malloc(e->n_growing);
    DT_CHECK(e->growing, DT_ERR_MEMORY, "out of memory for generated texts");
    return DT_OK;
}

void eval_close_generation(dt_evals *e)
{
    for (int i = 0; i < e->n_benches; i++) dt_generator_close(e->bench[i].generator);
    free(e->growing);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static dt_err run(dt_evals *e, eval_bench *b, const dt_task *t)
{
    const int64_t from = first_of(b, t->data, t->data->rank), n = first_of(b, t->data, t->data->rank + 1) - from;
    dt_sequence **list = e->growing, *sequence = (dt_sequence *)(list + n);
    int32_t *ids = (int32_t *)(sequence + n);
    dt_generate_stats stats;
    for (int64_t k = 0; k < n; k++, ids += longest(b)) {
        const eval_request *r = &b->request[from + k];
        memcpy(ids, e->ids.id + r->at, (size_t)r->n_context * sizeof *ids);
        sequence[k] = (dt_sequence){.number = (uint64_t)(from + k),
                                    .ids = ids,
                                    .n_prompt = r->n_context,
                                    .n_ids = r->n_context,
                                    .max_ids = r->n_context + b->max_new};
        list[k] = &sequence[k];
    }
    DT_TRY(dt_generator_run(b->generator, list, (int)n, &stats));
    for (int64_t k = 0; k < n; k++) {
        int32_t *out = b->generated + (from + k) * (1 + b->max_new);
        *out = sequence[k].n_ids - sequence[k].n_prompt;
        memcpy(out + 1, sequence[k].ids + sequence[k].n_prompt, (size_t)*out * sizeof *out);
    }
    return DT_OK;
}

char *eval_generated_text(const dt_evals *e, const eval_bench *b, int64_t request)
{
    const int32_t *ids = b->generated + request * (1 + b->max_new);
    char *text = decode(e, ids + 1, *ids);
    if (text) cut(b, text);
    return text;
}

static dt_err compare(dt_evals *e, eval_bench *b)
{
    for (int64_t i = 0; i < b->n_requests; i++) {
        const eval_doc *doc = &b->docs.doc[i / b->n_repeats];
        json_t *target = NULL;
        char *text = eval_generated_text(e, b, i);
        dt_err err =
            text ? eval_value_of(b, EVAL_doc_to_target, doc, &target) : dt_fail(DT_ERR_MEMORY, "out of memory");
        for (int f = 0; f < b->n_filters && err == DT_OK; f++) {
            bool correct;
            err = eval_is_correct(b, f, text, target, &correct);
            b->correct[f * b->n_requests + i] = correct;
        }
        json_decref(target);
        free(text);
        DT_TRY(err);
    }
    return DT_OK;
}

dt_err eval_generate(dt_evals *e, eval_bench *b, dt_task *t)
{
    memset(b->generated, 0, generated_nbytes(b));
    dt_phase_enter(t->phase, "rollout", "evaluation");
    DT_TRY(run(e, b, t)); /* in lockstep: an error is the same on all ranks, or ends the job */
    dt_phase_enter(t->phase, "evaluate", "share");
    DT_TRY(dt_comm_join_host(t->data, b->generated, generated_nbytes(b)));
    DT_TRY(dt_comm_agree(t->comm, compare(e, b)));
    return b->is_judged ? eval_judge_texts(e, b, t) : DT_OK;
}
