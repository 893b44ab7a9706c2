/* micro.c - passes over a rollout: its rows as micro-batches, and what models say of them. */
#include "rollout_private.h"
#include <string.h>

static int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

int dt_rollout_n_micro(const dt_rollout *r, const dt_task *t, int64_t n)
{
    return (int)ceil_div(ceil_div(n, t->batching.micro_batch_size), t->nranks);
}

/* Prompt and completion as a sequence: every token but the last predicts the next; targets are the completion's. */
static void add_row(dt_rollout *r, int64_t row)
{
    dt_batch *b = &r->batch;
    const dt_rollout_row *x = &r->row[row];
    const int32_t *ids = dt_rollout_ids(r, row), n = x->n_prompt + x->n_new;
    const uint64_t key = dt_mix64(x->number);
    for (int32_t i = 0; i < n; i++, b->n_tok++) {
        const bool predicts = i + 1 >= x->n_prompt && i + 1 < n;
        b->token[b->n_tok] = ids[i];
        b->target[b->n_tok] = predicts ? ids[i + 1] : -1;
        b->weight[b->n_tok] = predicts ? 1 : 0;
        b->pos[b->n_tok] = i;
        b->token_key[b->n_tok] = dt_mix64(key + (uint64_t)i);
    }
    b->full_len[b->n_seq++] = 0;
    b->seq_start[b->n_seq] = b->n_tok;
}

const dt_batch *dt_rollout_micro(dt_rollout *r, const dt_task *t, const int64_t *order, int64_t first, int64_t n,
                                 int micro, const int64_t **row)
{
    dt_batch *b = &r->batch;
    const int64_t m = t->batching.micro_batch_size, from = ((int64_t)micro * t->nranks + t->comm->rank) * m,
                  end = dt_min_i64(from + m, n);
    b->n_tok = b->n_seq = 0;
    b->seq_start[0] = 0;
    for (int64_t i = from; i < end; i++) {
        r->rows_of_micro[b->n_seq] = order[first + i];
        add_row(r, order[first + i]);
    }
    b->n_samples = b->n_seq;
    dt_batch_finish(b);
    if (row) *row = r->rows_of_micro;
    return b;
}

/* ---- scoring ----------------------------------------------------------------------------------------------------- */

dt_err dt_rollout_policy(void *self, dt_task *t, const dt_batch *b, float *out)
{
    dt_phase_enter(t->phase, "score", "policy");
    DT_TRY(dt_model_forward(t->model, b, true, atomic_load(&t->phase->step) - 1));
    return dt_model_logp(t->model, b, dt_task_inv_temperature(t), out, NULL, NULL);
}

/* From the token before the completion's first to the last of all. */
static void keep(dt_rollout *r, const dt_batch *b, const int64_t *row, int array)
{
    for (int32_t s = 0; s < b->n_seq; s++) {
        const dt_rollout_row *x = &r->row[row[s]];
        memcpy(dt_rollout_array(r, array, row[s]), r->scores + b->seq_start[s] + x->n_prompt - 1,
               (size_t)(x->n_new + 1) * sizeof(float));
    }
}

/* All that others have is zero here. */
static dt_err score(dt_rollout *r, dt_task *t, const int64_t *order, dt_rollout_scorer scorer, void *self, int array)
{
    const rollout_floats *a = &r->array[array];
    const int n_micro = dt_rollout_n_micro(r, t, r->n_rows);
    memset(a->at, 0, (size_t)(r->n_rows * a->ld) * sizeof(float));
    for (int micro = 0; micro < n_micro; micro++) {
        const int64_t *row;
        const dt_batch *b = dt_rollout_micro(r, t, order, 0, r->n_rows, micro, &row);
        DT_TRY(scorer(self, t, b, r->scores));
        keep(r, b, row, array);
    }
    return dt_fault("rollout.score");
}

dt_err dt_rollout_score(dt_rollout *r, dt_task *t, const int64_t *order, dt_rollout_scorer scorer, void *self,
                        int array)
{
    const rollout_floats *a = &r->array[array];
    const double begin_s = dt_now_s();
    DT_TRY(dt_comm_agree(t->comm, score(r, t, order, scorer, self, array)));
    dt_phase_enter(t->phase, "score", "share");
    DT_TRY(rollout_sum(t->comm, a->at, (size_t)(r->n_rows * a->ld) * sizeof(float)));
    if (scorer == dt_rollout_policy) r->policy = array;
    r->score_seconds += dt_now_s() - begin_s;
    return DT_OK;
}

dt_err dt_rollout_share(const dt_rollout *r, dt_task *t, double *x, int n)
{
    const int64_t from = rollout_first_of(r->n_rows, t->comm->rank, t->nranks),
                  end = rollout_first_of(r->n_rows, t->comm->rank + 1, t->nranks);
    dt_phase_enter(t->phase, "score", "share");
    return rollout_join(t->comm, x, (size_t)n * sizeof *x, 0, r->n_rows, from, end);
}
