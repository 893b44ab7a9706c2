/* eval_judge.c - a frozen reward or safety model scores generated answers, and the answers that they are compared with.
 * Its texts are encoded by its own tokenizer, in batches of its own. */
#include "eval_private.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- a part of the task ------------------------------------------------------------------------------------------ */

static const dt_model_options *limits_of(const eval_judge *j) { return &j->judge.scorer.opt; }

static size_t tokenizer_nbytes(const eval_judge *j)
{
    return dt_tokenizer_nbytes(j->tokenizer) + dt_encoder_nbytes(j->encoder);
}

static dt_err plan(const void *self, const dt_task *t, dt_memory *memory)
{
    const eval_judge *j = self;
    (void)t;
    memory->at[DT_MEM_DATA][DT_ON_HOST] +=
        tokenizer_nbytes(j) +
        (limits_of(j)->max_tok ? dt_batch_nbytes(limits_of(j)->max_tok, limits_of(j)->max_seq) : 0);
    return DT_OK;
}

static dt_err begin(void *self, dt_task *t)
{
    eval_judge *j = self;
    return dt_comm_agree(t->comm, dt_batch_alloc(&j->batch, limits_of(j)->max_tok, limits_of(j)->max_seq, t->ledger));
}

static void close_judge(void *self, dt_task *t)
{
    eval_judge *j = self;
    dt_batch_free(&j->batch, t->ledger);
    dt_ledger_sub(t->ledger, DT_MEM_DATA, DT_ON_HOST, tokenizer_nbytes(j));
    dt_encoder_close(j->encoder);
    dt_tokenizer_close(j->tokenizer);
    free(j->ids.id);
    free(j);
}

static dt_err open_tokenizer(eval_judge *j, const dt_task *t)
{
    dt_pretrained from = {0};
    dt_err err = dt_pretrained_describe(&from, t->cfg->eval_judge_path, DT_MODEL_USUAL);
    const char *path = from.tokenizer ? from.tokenizer : t->tokenizer; /* its own, or that of the model */
    if (err == DT_OK) err = dt_tokenizer_open(&j->tokenizer, path);
    if (err == DT_OK) err = dt_encoder_open(&j->encoder, j->tokenizer);
    dt_pretrained_free(&from);
    return err;
}

dt_err eval_open_judge(dt_evals *e, dt_task *t)
{
    static const dt_task_part_ops part = {.plan = plan, .begin = begin, .close = close_judge};
    bool wanted = false;
    for (int i = 0; i < e->n_benches; i++) wanted |= e->bench[i].is_judged;
    if (!wanted) return DT_OK;
    DT_CONFIG_CHECK(*t->cfg->eval_judge_path, t->cfg, "eval", "judge_path",
                    "expected a reward or safety model, because of the metrics of a benchmark; found none");
    DT_CONFIG_CHECK(t->cfg->mesh_tp == 1, t->cfg, "mesh", "tp",
                    "expected 1, found %" PRId64 ": the judge is not divided", t->cfg->mesh_tp);
    eval_judge *j = e->judge = calloc(1, sizeof *j);
    DT_CHECK(j, DT_ERR_MEMORY, "out of memory for the judge");
    dt_task_hold(t, &part, j);
    j->judge.scorer.own_pos =
        (int32_t)dt_min_i64(2 * dt_max_i64(t->model_opt->max_pos, t->cfg->data_seq_len), INT32_MAX / 2);
    if (t->comm) DT_TRY(dt_config_lead_to(t->cfg, "eval", "judge_path", open_tokenizer(j, t)));
    dt_ledger_add(t->ledger, DT_MEM_DATA, DT_ON_HOST, tokenizer_nbytes(j));
    DT_TRY(dt_config_lead_to(t->cfg, "eval", "judge_path",
                             dt_judge_open(&j->judge, t, "the judge", t->cfg->eval_judge_path)));
    const int64_t n_tokens = j->tokenizer ? dt_tokenizer_get_info(j->tokenizer)->n_own : 0,
                  vocab_size = j->judge.scorer.mc->vocab_size;
    DT_CONFIG_CHECK(n_tokens <= vocab_size, t->cfg, "eval", "judge_path",
                    "the tokenizer has %" PRId64 " tokens, but the judge only %" PRId64, n_tokens, vocab_size);
    return DT_OK;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* The document's fields, with its prompt and the answer. */
static dt_err make_text(const eval_bench *b, int64_t i, const char *answer, json_t **text)
{
    eval_doc doc = b->docs.doc[i / b->n_repeats];
    json_t *record = json_copy(doc.record);
    const bool good = record && json_object_set_new(record, "prompt", json_string(b->prompt[i / b->n_repeats])) == 0 &&
                      json_object_set_new(record, "answer", json_string(answer)) == 0;
    doc.record = record;
    const dt_err err =
        good ? eval_value_of(b, EVAL_judge_text, &doc, text) : dt_fail(DT_ERR_MEMORY, "out of memory for a text");
    json_decref(record);
    return err;
}

/* The ids of text i: of answer i, or, after all answers, of the target of answer i - n. */
static dt_err encode(dt_evals *e, const eval_bench *b, int64_t i)
{
    eval_judge *j = e->judge;
    const int32_t eos = dt_tokenizer_get_info(j->tokenizer)->eos;
    const bool own = i < b->n_requests;
    json_t *text = NULL, *target = NULL;
    char *answer = own ? eval_generated_text(e, b, i) : NULL;
    const int64_t at = own ? i : i - b->n_requests;
    dt_err err = own ? DT_OK : eval_value_of(b, EVAL_doc_to_target, &b->docs.doc[at / b->n_repeats], &target);
    const char *words = own ? answer : json_string_value(target);
    if (err == DT_OK && !words)
        err = dt_fail(DT_ERR_DATA, "benchmark %s: expected a text to compare answers with", b->name);
    if (err == DT_OK) err = make_text(b, at, words, &text);
    j->ids.n = 0;
    if (err == DT_OK && json_is_string(text)) {
        const dt_span span = {.text = json_string_value(text), .nbytes = json_string_length(text)};
        err = dt_encode(j->encoder, &span, 1, DT_ENCODE_WRAP, &j->ids, NULL);
    }
    if (err == DT_OK) err = dt_ids_reserve(&j->ids, 1);
    if (err == DT_OK && eos >= 0 && (j->ids.n == 0 || j->ids.id[j->ids.n - 1] != eos)) j->ids.id[j->ids.n++] = eos;
    if (err == DT_OK && j->ids.n == 0)
        err = dt_fail(DT_ERR_DATA, "benchmark %s: a text for the judge has no tokens", b->name);
    free(answer);
    json_decref(text);
    json_decref(target);
    return err;
}

/* Append a sequence of the last tokens that fit the model's limit. False: it must go into the next batch. */
static bool add_sequence(eval_judge *j)
{
    dt_batch *m = &j->batch;
    const int32_t n = (int32_t)dt_min_size(j->ids.n, (size_t)limits_of(j)->max_pos);
    if (m->n_seq == m->max_seq || m->n_tok + n > m->max_tok) return false;
    dt_batch_append(m, j->ids.id + j->ids.n - n, n, n + 1);
    return true;
}

static dt_err fill(dt_evals *e, const eval_bench *b, int64_t *next, int64_t end)
{
    dt_batch *m = &e->judge->batch;
    bool fits = true;
    dt_batch_clear(m);
    for (; *next < end && fits; *next += fits) {
        DT_TRY(encode(e, b, *next));
        fits = add_sequence(e->judge);
    }
    dt_batch_finish(m);
    return DT_OK;
}

dt_err eval_judge_texts(dt_evals *e, eval_bench *b, dt_task *t)
{
    const int64_t n = 2 * b->n_requests, end = n * (t->data->rank + 1) / t->data->size;
    int64_t next = n * t->data->rank / t->data->size, waiting = 1;
    memset(b->judged, 0, (size_t)n * sizeof *b->judged);
    while (waiting) { /* all ranks run the same number of passes, because all gather a sharded model */
        int64_t i = next;
        dt_phase_enter(t->phase, "evaluate", "judge");
        DT_TRY(dt_comm_agree(t->comm, fill(e, b, &next, end)));
        DT_TRY(dt_judge_score(&e->judge->judge, t, &e->judge->batch));
        for (int32_t s = 0; i < next; i++) b->judged[i] = (double)e->judge->judge.score[s++];
        waiting = next < end;
        DT_TRY(dt_comm_reduce_host_i64(dt_comm_all(t->comm), &waiting, 1, DT_MAX));
    }
    return eval_share(t->data, b->judged, n);
}
