/* micro.c - passes over a rollout: splits rows into micro-batches and stores scores of models. */
#include "rollout_private.h"
#include "dtrain/step/step.h"
#include <string.h>

static const double VOTE_EVERY_S = 0.5;

void dt_rollout_shuffle(const dt_task *t, int64_t rollout, int64_t epoch, int64_t n, int64_t *order)
{
    const uint64_t of_rollout = dt_rng_key((uint64_t)t->cfg->run_seed, DT_RNG_MINIBATCH) + (uint64_t)rollout;
    const uint64_t key = dt_mix64(dt_mix64(of_rollout) + (uint64_t)epoch);
    for (int64_t i = 0; i < n; i++)
        order[i] = t->cfg->data_shuffle ? (int64_t)dt_rng_permute(key, (uint64_t)n, (uint64_t)i) : i;
}

int dt_rollout_n_micro(const dt_rollout *r, const dt_task *t, int64_t n)
{
    return (int)dt_ceil_div(dt_ceil_div(n, t->batching.micro_batch_size), t->data->size);
}

/* Append prompt and completion as a sequence. Every token but the last predicts the next one; targets are the model's
 * tokens of the completion. */
static dt_err add_row(dt_rollout *r, int64_t row)
{
    dt_batch *b = &r->batch;
    const dt_rollout_row *x = &r->row[row];
    const int32_t *ids = dt_rollout_ids(r, row), n = x->n_prompt + dt_rollout_n_completion(x);
    const uint64_t key = dt_mix64(x->number);
    for (int32_t i = 0; i < n; i++, b->n_tok++) {
        const int32_t next = i + 1 - x->n_prompt; /* in the completion */
        const bool predicts = next >= 0 && i + 1 < n && !dt_rollout_is_observed(r, row, next);
        b->token[b->n_tok] = ids[i];
        b->target[b->n_tok] = predicts ? ids[i + 1] : -1;
        b->weight[b->n_tok] = predicts ? 1 : 0;
        b->pos[b->n_tok] = i;
        b->token_key[b->n_tok] = dt_mix64(key + (uint64_t)i);
    }
    b->full_len[b->n_seq] = 0;
    b->prompt_len[b->n_seq++] = x->n_prompt;
    b->seq_start[b->n_seq] = b->n_tok;
    return rollout_add_images(r, row);
}

dt_err dt_rollout_micro(dt_rollout *r, const dt_task *t, const int64_t *order, int64_t first, int64_t n, int micro,
                        const dt_batch **batch, const int64_t **row)
{
    dt_batch *b = &r->batch;
    const int64_t m = t->batching.micro_batch_size, from = ((int64_t)micro * t->data->size + t->data->rank) * m,
                  end = dt_min_i64(from + m, n);
    b->n_tok = b->n_seq = 0;
    b->seq_start[0] = 0;
    dt_images_clear(b);
    for (int64_t i = from; i < end; i++) {
        const int64_t at = order ? order[first + i] : first + i;
        r->rows_of_micro[b->n_seq] = at;
        DT_TRY(add_row(r, at));
    }
    b->n_samples = b->n_seq;
    dt_batch_finish(b);
    *row = r->rows_of_micro;
    *batch = b;
    return DT_OK;
}

/* ---- scoring ----------------------------------------------------------------------------------------------------- */

dt_err dt_rollout_policy(void *self, dt_task *t, const dt_batch *b, float *out)
{
    dt_phase_enter(t->phase, "score", "policy");
    DT_TRY(dt_model_forward(t->model, b, true, atomic_load(&t->phase->step) - 1));
    return dt_model_logp(t->model, b, dt_task_inv_temperature(t), out, NULL, NULL);
}

static void keep(dt_rollout *r, const dt_batch *b, const int64_t *row, dt_scored scored, int array)
{
    for (int32_t s = 0; s < b->n_seq; s++) {
        const dt_rollout_row *x = &r->row[row[s]];
        const bool of_targets = scored == DT_SCORED_TARGETS;
        const int32_t first = of_targets ? b->seq_target[s] : b->seq_start[s] + x->n_prompt - 1;
        memcpy(dt_rollout_array(r, array, row[s]), r->scores + first, (size_t)(x->n_new + !of_targets) * sizeof(float));
    }
}

/* A pass over all rows: what it computes, and the array that stores it. */
typedef struct pass {
    dt_rollout_scorer scorer;
    void *self;
    dt_scored scored;
    int array;
} pass;

/* Ranks vote on whether to continue after a number of micro-batches that takes the slowest rank about half a second. */
typedef struct pace {
    int next, interval;
    double since_s, begin_s;
} pace;

static dt_err vote_on_going_on(dt_task *t, pace *p, dt_err err, int done, int n_micro)
{
    dt_vote_value gap_s = {.kind = DT_VOTE_MAX, .real = dt_now_s() - p->since_s};
    if (err == DT_OK) err = dt_fault("rollout.score");
    dt_vote vote = {.err = err, .stop = rollout_is_asked_to_stop(t), .values = &gap_s, .n_values = 1};
    dt_phase_enter(t->phase, "score", "agree");
    DT_TRY(dt_comm_vote(t->comm, &vote));
    if (vote.err != DT_OK) return (dt_err)vote.err;
    if (vote.stop) return dt_comm_agree(t->comm, dt_fail(DT_ERR_STOP, "stopped during the scoring of completions"));
    if (gap_s.real > VOTE_EVERY_S)
        p->interval = p->interval > 1 ? p->interval / 2 : 1;
    else if (gap_s.real < VOTE_EVERY_S / 2)
        p->interval *= 2;
    p->next = done + p->interval;
    p->since_s = dt_now_s();
    if (done > 0)
        rollout_show_progress(t, "micro-batches scored", p->begin_s, done, n_micro, -1, (double)done / n_micro);
    return DT_OK;
}

static dt_err score_micro(dt_rollout *r, dt_task *t, const int64_t *order, int micro, const pass *with)
{
    const dt_batch *b;
    const int64_t *row;
    DT_TRY(dt_rollout_micro(r, t, order, 0, r->n_rows, micro, &b, &row));
    DT_TRY(with->scorer(with->self, t, b, r->scores));
    keep(r, b, row, with->scored, with->array);
    return DT_OK;
}

/* A local error is reported in the next vote. If other ranks depend on this rank's passes, it ends the job instead. */
static dt_err score(dt_rollout *r, dt_task *t, const int64_t *order, const pass *with)
{
    const int n_micro = dt_rollout_n_micro(r, t, r->n_rows);
    const double now_s = dt_now_s();
    pace p = {.interval = 1, .since_s = now_s, .begin_s = now_s};
    dt_err err = DT_OK;
    for (int micro = 0; micro < n_micro; micro++) {
        if (micro >= p.next) DT_TRY(err = vote_on_going_on(t, &p, err, micro, n_micro));
        if (err == DT_OK) err = score_micro(r, t, order, micro, with);
        if (err == DT_ERR_COMM || (err != DT_OK && t->stage == 3)) return err;
    }
    return dt_comm_agree(t->comm, err == DT_OK ? dt_fault("rollout.share_scores") : err);
}

dt_err dt_rollout_score(dt_rollout *r, dt_task *t, const int64_t *order, dt_rollout_scorer scorer, void *self,
                        dt_scored scored, int array)
{
    const pass with = {scorer, self, scored, array};
    const rollout_floats *a = &r->array[array];
    const size_t nbytes = (size_t)(r->n_rows * a->ld) * sizeof(float);
    const double begin_s = dt_now_s();
    memset(a->at, 0, nbytes); /* rows of other ranks must be zero for dt_comm_join_host */
    const dt_err err = score(r, t, order, &with);
    if (err == DT_ERR_STOP) dt_rollout_undo(r);
    DT_TRY(err);
    dt_phase_enter(t->phase, "score", "share");
    DT_TRY(dt_comm_join_host(t->data, a->at, nbytes));
    if (scorer == dt_rollout_policy) r->policy = array;
    r->score_seconds += dt_now_s() - begin_s;
    return DT_OK;
}
