/* dpo_partners.c - losses that compare a pair with others need all pairs of a step before the first gradient: one pass
 * of model and reference over the step without backward. */
#include "dpo.h"
#include <string.h>

int64_t dpo_most_pairs(const dt_task *t)
{
    const int64_t in_validation = t->valid ? dt_loader_info(t->valid)->n_samples : 0;
    return dt_max_i64(t->batching.train_batch_size, in_validation);
}

/* This rank's: the others have zeros in their places. */
static dt_err score(dt_task *t, const dt_batch *b, int64_t first)
{
    dpo *d = t->self;
    const dt_predictions p = {.logp = t->buffers.results.logp};
    DT_TRY(dpo_score_reference(t, b));
    dt_phase_enter(t->phase, "score", "policy");
    DT_TRY(dt_model_forward(t->model, b, false, 0));
    DT_TRY(dt_model_logp(t->model, b, 1.0f, t->buffers.results.logp, NULL, NULL));
    d->first_pair = first;
    for (int64_t k = 0; k < b->n_samples; k++) {
        const dpo_answers a = dpo_look_at(t, b, k, &p);
        double *x = d->aot.number + (first + k) * DT_AOT_NUMBERS;
        for (int side = 0; side < DT_N_SIDES; side++) {
            x[DT_AOT_POLICY + side] = a.logp[side];
            x[DT_AOT_REFERENCE + side] = a.logp[side] - a.pair.ratio[side];
        }
    }
    return DT_OK;
}

static dt_err share(dt_task *t, int64_t n_pairs)
{
    dpo *d = t->self;
    for (int64_t at = 0; at < n_pairs; at += 1 << 20) { /* an int counts the numbers */
        const int64_t n = dt_min_i64(1 << 20, n_pairs - at);
        DT_TRY(
            dt_comm_reduce_host_f64(t->comm, d->aot.number + at * DT_AOT_NUMBERS, (int)(n * DT_AOT_NUMBERS), DT_SUM));
    }
    dt_aot_match(&d->aot, n_pairs, t->batching.train_batch_size);
    return DT_OK;
}

static int64_t first_of(const dt_task *t, int64_t micro)
{
    return (micro * t->nranks + t->comm->rank) * t->batching.micro_batch_size;
}

static void clear(dt_aot *a) { memset(a->number, 0, (size_t)a->n_alloc * DT_AOT_NUMBERS * sizeof *a->number); }

dt_err dpo_match_step(dt_task *t, int64_t step)
{
    dpo *d = t->self;
    dt_step_counts counts;
    const dt_batch *b;
    DT_TRY(dt_loader_step_counts(t->train, step, &counts));
    clear(&d->aot);
    for (int micro = 0; micro < d->step.n_micro; micro++) {
        DT_TRY(dt_loader_batch(t->train, step, micro, &b));
        DT_TRY(score(t, b, first_of(t, micro)));
    }
    return share(t, counts.n_samples);
}

dt_err dpo_match_validation(dt_task *t)
{
    const dt_batch *b;
    clear(&((dpo *)t->self)->aot);
    for (int64_t micro = 0; micro < t->n_validation; micro++) {
        DT_TRY(dt_loader_eval_batch(t->valid, micro, &b));
        DT_TRY(score(t, b, first_of(t, micro)));
    }
    return share(t, dt_loader_info(t->valid)->n_samples);
}
