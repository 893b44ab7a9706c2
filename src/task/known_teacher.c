/* known_teacher.c - see known_teacher.h. */
#include "known_teacher.h"
#include <inttypes.h>

static dt_err check(const dt_known_teacher *k, const dt_task *t)
{
    const dt_known_info *x = &k->file.info;
    const char *path = k->file.path;
    DT_CHECK(x->vocab_size == t->mc->vocab_size, DT_ERR_DATA,
             "%s: the teacher has vocab_size %" PRId64 ", but the model in training has %" PRId64, path, x->vocab_size,
             t->mc->vocab_size);
    DT_CHECK(x->k <= x->vocab_size, DT_ERR_DATA, "%s: %" PRId64 " tokens per target exceed the vocabulary", path, x->k);
    DT_CHECK(x->temperature == t->temperature, DT_ERR_DATA,
             "%s: temperature: the file has %g, but distill.temperature is %g", path, x->temperature, t->temperature);
    if (!t->train) return DT_OK;
    DT_CHECK(x->seq_len == t->cfg->data_seq_len, DT_ERR_DATA,
             "%s: seq_len: the file has %" PRId64 ", but data.seq_len is %" PRId64
             " (dtrain-generate --seq-len sets that of the file)",
             path, x->seq_len, t->cfg->data_seq_len);
    DT_CHECK(x->data == dt_known_key(t->train) && x->n_targets == dt_known_index(t->train, NULL), DT_ERR_DATA,
             "%s: the file belongs to another dataset than data.train = %s", path, t->cfg->data_train);
    return DT_OK;
}

static size_t lay_out(void *self, const dt_task *t, void *block)
{
    dt_known_teacher *k = self;
    const int64_t n = (int64_t)t->model_opt->max_tok * k->file.info.k;
    size_t used = 0;
    k->first = dt_carve(block, &used, t->train ? dt_loader_info(t->train)->n_samples + 1 : 0, sizeof *k->first);
    k->known.token = dt_carve(block, &used, n, sizeof *k->known.token);
    k->known.logp = dt_carve(block, &used, n, sizeof *k->known.logp);
    return used;
}

/* Each rank verifies a share of the file. */
static dt_err begin(void *self, dt_task *t)
{
    const dt_known_teacher *k = self;
    const dt_known_info *x = &k->file.info;
    dt_known_index(t->train, k->first);
    const int64_t from = x->n_targets * t->data->rank / t->data->size,
                  end = x->n_targets * (t->data->rank + 1) / t->data->size;
    uint64_t sum[2] = {0, 0};
    DT_TRY(dt_comm_agree(t->comm, dt_known_sum(&k->file, from, end - from, sum)));
    DT_TRY(dt_comm_sum_host_u64(t->data, sum, 2));
    const bool altered = sum[0] != x->sum[0] || sum[1] != x->sum[1];
    return dt_comm_agree(
        t->comm, altered ? dt_fail(DT_ERR_DATA, "%s: the checksum does not match the contents", k->file.path) : DT_OK);
}

static void close_teacher(void *self, dt_task *t)
{
    dt_known_teacher *k = self;
    (void)t;
    dt_known_close(&k->file);
}

static dt_err compare(const void *self, const int64_t *found)
{
    const dt_known_teacher *k = self;
    DT_CHECK(*found == k->key, DT_ERR_BASE,
             "%s: expected the log-probabilities that the run started with, found others", k->file.path);
    return DT_OK;
}

dt_err dt_known_teacher_open(dt_known_teacher *k, dt_task *t, const char *path)
{
    static const dt_task_part_ops part = {.lay_out = lay_out, .begin = begin, .close = close_teacher};
    dt_task_hold(t, &part, k);
    DT_TRY(dt_known_open(&k->file, path, true));
    DT_TRY(check(k, t));
    const dt_known_info *x = &k->file.info;
    k->key = (int64_t)dt_mix64(dt_mix64(x->data ^ x->sum[0]) ^ x->sum[1]);
    dt_task_identity(t, "teacher_logprobs", 1, &k->key, compare, k);
    if (t->comm) DT_TRY(dt_task_reads(t, k->file.path, (uint64_t)k->key));
    k->known.k = (int32_t)k->file.info.k;
    t->known = &k->known;
    t->model_opt->max_known = k->known.k;
    return DT_OK;
}

dt_err dt_known_teacher_read(dt_known_teacher *k, const dt_batch *b)
{
    int64_t at = 0;
    for (int64_t i = 0; i < b->n_samples; i++) {
        const int64_t first = k->first[b->sample[i]], n = k->first[b->sample[i] + 1] - first;
        DT_TRY(dt_known_read(&k->file, first, n, k->known.token + at, k->known.logp + at));
        at += n * k->known.k;
    }
    return DT_OK;
}
