/* dpo_partners.c - one forward pass of model and reference over all pairs of a step, before its first gradient, for
 * losses that compare pairs and for a beta of the whole step. */
#include "dpo.h"
#include "../pairs.h"
#include <string.h>

int64_t dpo_max_pairs(const dt_task *t)
{
    const int64_t in_validation = t->valid ? dt_loader_info(t->valid)->n_samples : 0;
    return dt_max_i64(t->batching.train_batch_size, in_validation);
}

static void note_answers(const dpo_answers *a, double *x)
{
    for (int side = 0; side < DT_N_SIDES; side++) {
        x[DT_AOT_POLICY + side] = a->pair.logp[side];
        x[DT_AOT_REFERENCE + side] = a->pair.logp[side] - a->pair.ratio[side];
    }
}

/* Evaluate the pairs of this rank's micro-batch. The values of other ranks' pairs stay 0. */
static dt_err look_at(dt_task *t, const dt_batch *b, int64_t step, int64_t first)
{
    dpo *d = t->self;
    const dt_predictions p = {.logp = t->buffers.results.logp};
    DT_TRY(dpo_score_reference(t, b));
    DT_TRY(dt_task_logp(t, b));
    t->first_sample = first;
    for (int64_t k = 0; k < b->n_samples; k++) {
        const dpo_answers a = dpo_pair_of(t, b, k, &p);
        if (d->aot.number) note_answers(&a, d->aot.number + (first + k) * DT_AOT_NUMBERS);
        if (d->batch_beta.gap) d->batch_beta.gap[first + k] = a.pair.ratio[0] - a.pair.ratio[1];
    }
    return DT_OK;
}

static void clear(dpo *d)
{
    if (d->aot.number) memset(d->aot.number, 0, (size_t)d->aot.n_alloc * DT_AOT_NUMBERS * sizeof *d->aot.number);
    if (d->batch_beta.gap) memset(d->batch_beta.gap, 0, (size_t)d->batch_beta.n_alloc * sizeof *d->batch_beta.gap);
}

dt_err dpo_match(dt_task *t, dt_loader *l, int64_t step, int64_t n_pairs)
{
    dpo *d = t->self;
    clear(d);
    DT_TRY(dt_task_look_ahead(t, l, step, false, look_at));
    DT_TRY(dt_fault("task.pairs"));
    if (d->aot.number) {
        DT_TRY(answers_add_up(t, d->aot.number, n_pairs * DT_AOT_NUMBERS));
        dt_aot_match(&d->aot, n_pairs, t->batching.train_batch_size);
    }
    if (!d->batch_beta.gap || step == DT_EVALUATION) return DT_OK;
    DT_TRY(answers_add_up(t, d->batch_beta.gap, n_pairs));
    dt_batch_beta_find(&d->batch_beta, n_pairs, step * t->batching.train_batch_size);
    return DT_OK;
}
