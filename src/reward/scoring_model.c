/* scoring_model.c - a reward model with the policy's tokenizer scores the rollout's own batches. With another tokenizer
 * it scores texts, in batches of its own. */
#include "scoring_model.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- the model's tokenizer --------------------------------------------------------------------------------------- */

/* Does the model have another tokenizer than the policy? If one of the two is unknown, ids are used as they are. */
static dt_err find_tokenizer(dt_reward_model *m, const dt_task *t)
{
    dt_pretrained from = {0};
    dt_tokenizer *policy = NULL, *own = NULL;
    dt_err err = dt_pretrained_describe(&from, m->path, DT_MODEL_USUAL);
    if (err == DT_OK && from.tokenizer) err = dt_tokenizer_open(&own, from.tokenizer);
    if (err == DT_OK && *t->tokenizer) err = dt_tokenizer_open(&policy, t->tokenizer);
    const bool another =
        own && policy && strcmp(dt_tokenizer_get_info(own)->name, dt_tokenizer_get_info(policy)->name) != 0;
    if (err == DT_OK && another) {
        m->tokenizer = own;
        own = NULL;
        err = dt_encoder_open(&m->encoder, m->tokenizer);
    }
    dt_tokenizer_close(own);
    dt_tokenizer_close(policy);
    dt_pretrained_free(&from);
    return err;
}

/* Memory of its own tokenizer and encoder. */
static size_t texts_nbytes(const dt_reward_model *m)
{
    return dt_tokenizer_nbytes(m->tokenizer) + dt_encoder_nbytes(m->encoder);
}

/* Start of the last path component within the first n characters; n becomes its end, without trailing slashes. */
static size_t last_name(const char *path, size_t *n)
{
    while (*n > 1 && path[*n - 1] == '/') --*n;
    size_t first = *n;
    while (first > 0 && path[first - 1] != '/') first--;
    return first;
}

/* The base name; for the export of a run, RUN/hf, the name of the run. */
static void name_model(dt_reward_model *m)
{
    size_t n = strlen(m->path), first = last_name(m->path, &n);
    if (first > 1 && n - first == 2 && strncmp(m->path + first, "hf", 2) == 0) {
        n = first;
        first = last_name(m->path, &n);
    }
    snprintf(m->name, sizeof m->name, "%.*s", (int)(n - first), m->path + first);
}

static dt_err plan(const void *self, const dt_task *t, dt_memory *memory)
{
    const dt_reward_model *m = self;
    const dt_model_options *opt = &m->judge.scorer.opt;
    (void)t;
    if (m->tokenizer)
        memory->at[DT_MEM_DATA][DT_ON_HOST] += texts_nbytes(m) + dt_batch_nbytes(opt->max_tok, opt->max_seq);
    return DT_OK;
}

static dt_err begin(void *self, dt_task *t)
{
    dt_reward_model *m = self;
    const dt_model_options *opt = &m->judge.scorer.opt;
    const dt_err err = m->tokenizer ? dt_batch_alloc(&m->batch, opt->max_tok, opt->max_seq, t->ledger) : DT_OK;
    return dt_comm_agree(t->comm, err);
}

static void close_texts(void *self, dt_task *t)
{
    dt_reward_model *m = self;
    dt_batch_free(&m->batch, t->ledger);
    dt_ledger_sub(t->ledger, DT_MEM_DATA, DT_ON_HOST, texts_nbytes(m));
    dt_encoder_close(m->encoder);
    dt_tokenizer_close(m->tokenizer);
    free(m->ids.id);
    free(m->path);
}

dt_err dt_reward_model_open(dt_reward_model *m, dt_task *t, const char *path)
{
    static const dt_task_part_ops part = {.plan = plan, .begin = begin, .close = close_texts};
    dt_task_hold(t, &part, m);
    m->path = strdup(path);
    DT_CHECK(m->path, DT_ERR_MEMORY, "out of memory for the name of a reward model");
    name_model(m);
    if (t->comm) DT_TRY(find_tokenizer(m, t)); /* a plan does not need the model */
    dt_ledger_add(t->ledger, DT_MEM_DATA, DT_ON_HOST, texts_nbytes(m));
    if (m->tokenizer) m->judge.scorer.own_pos = (int32_t)dt_min_i64(2 * t->cfg->data_seq_len, INT32_MAX / 2);
    if (m->tokenizer && dt_comm_first(t->comm) && dt_data_show_images(t->cfg->data_train))
        DT_WARN("%s scores texts without their images, because its tokenizer is not the policy's", m->name);
    return dt_judge_open(&m->judge, t, m->name, path);
}

/* ---- scoring in the batches of a rollout ------------------------------------------------------------------------- */

static dt_err score_ids(dt_reward_model *m, dt_task *t, dt_rollout *r, const int64_t *order, int64_t first,
                        double *reward, int stride)
{
    const int64_t n = dt_rollout_n_rows(r) - first;
    const int n_micro = dt_rollout_n_micro(r, t, n);
    for (int micro = 0; micro < n_micro; micro++) {
        const int64_t *row;
        const dt_batch *b;
        DT_TRY(dt_rollout_micro(r, t, order, first, n, micro, &b, &row));
        DT_TRY(dt_judge_score(&m->judge, t, b));
        for (int32_t s = 0; s < b->n_seq; s++) reward[row[s] * stride] = (double)m->judge.score[s];
    }
    return DT_OK;
}

/* ---- scoring in separate batches --------------------------------------------------------------------------------- */

/* Prompt and completion as one text, encoded independently of the policy's tokens. */
static dt_err encode_row(dt_reward_model *m, dt_rollout *r, int64_t row)
{
    const int32_t eos = dt_tokenizer_get_info(m->tokenizer)->eos;
    const char *prompt = dt_rollout_text(r, row, DT_PART_PROMPT, DT_NO_SPECIAL),
               *completion = dt_rollout_text(r, row, DT_PART_COMPLETION, DT_NO_SPECIAL);
    DT_CHECK(prompt && completion, DT_ERR_MEMORY, "out of memory for the text of a completion");
    const dt_span spans[] = {{.text = prompt, .nbytes = strlen(prompt)},
                             {.text = completion, .nbytes = strlen(completion)}};
    m->ids.n = 0;
    DT_TRY(dt_encode(m->encoder, spans, 2, DT_ENCODE_WRAP, &m->ids, NULL));
    const bool ends = dt_rollout_row_of(r, row)->ended && eos >= 0 && (m->ids.n == 0 || m->ids.id[m->ids.n - 1] != eos);
    if (!ends) return DT_OK;
    DT_TRY(dt_ids_reserve(&m->ids, 1));
    m->ids.id[m->ids.n++] = eos;
    return DT_OK;
}

/* Append a sequence of the last tokens that fit the model's limit. *fits false: it must go into the next batch. */
static void add_sequence(dt_reward_model *m, bool *fits)
{
    const dt_model_options *opt = &m->judge.scorer.opt;
    dt_batch *b = &m->batch;
    const int32_t n = (int32_t)dt_min_size(m->ids.n, (size_t)opt->max_pos);
    *fits = b->n_seq < b->max_seq && b->n_tok + n <= b->max_tok;
    if (!*fits) return;
    m->n_cut += (size_t)n < m->ids.n;
    dt_batch_append(b, m->ids.id + m->ids.n - n, n, n + 1);
}

/* Adds rows from *next, as many as fit in a batch, up to `end`; *next advances past them. */
static dt_err fill_batch(dt_reward_model *m, dt_rollout *r, int64_t end, int64_t *next)
{
    dt_batch *b = &m->batch;
    bool fits = true;
    dt_batch_clear(b);
    for (; *next < end && fits; *next += fits) {
        DT_TRY(encode_row(m, r, *next));
        add_sequence(m, &fits);
    }
    dt_batch_finish(b);
    return DT_OK;
}

/* All ranks run the maximum number of passes over the ranks, because all ranks gather a sharded model. */
static dt_err score_texts(dt_reward_model *m, dt_task *t, dt_rollout *r, int64_t first, double *reward, int stride)
{
    const int64_t n = dt_rollout_n_rows(r) - first;
    const int64_t end = first + dt_rollout_first_of(n, t->data->rank + 1, t->data->size);
    int64_t next = first + dt_rollout_first_of(n, t->data->rank, t->data->size), waiting = 1;
    while (waiting) {
        int64_t row = next;
        DT_TRY(dt_comm_agree(t->comm, fill_batch(m, r, end, &next)));
        DT_TRY(dt_judge_score(&m->judge, t, &m->batch));
        for (int32_t s = 0; row < next; row++) reward[row * stride] = (double)m->judge.score[s++];
        waiting = next < end;
        DT_TRY(dt_comm_reduce_host_i64(dt_comm_all(t->comm), &waiting, 1, DT_MAX));
    }
    return DT_OK;
}

dt_err dt_reward_model_score(dt_reward_model *m, dt_task *t, dt_rollout *r, const int64_t *order, int64_t first,
                             double *reward, int stride)
{
    const int64_t n_cut = m->n_cut;
    if (!m->tokenizer) return score_ids(m, t, r, order, first, reward, stride);
    DT_TRY(score_texts(m, t, r, first, reward, stride));
    if (n_cut == 0 && m->n_cut > 0)
        DT_WARN("%s: some prompts with completions exceed %d tokens of its tokenizer; it scores only the last ones",
                m->name, (int)m->judge.scorer.opt.max_pos);
    return DT_OK;
}
