/* update.c - the optimizer's step on what this rank is in charge of: its shards, or at stage 0 everything.
 *
 * The call is made for each run of tensors that agree on learning rate and decay, cut at the shard's ends. The rounded
 * parameters are written by the same pass over memory. */
#include "zero_impl.h"

/* The arguments of dt_zero_update. */
typedef struct update {
    const dt_optimizer_step *step;
    const double *group_lr;
} update;

static dt_optimizer_step step_of(const update *up, const zero_run *run)
{
    dt_optimizer_step one = *up->step;
    if (up->group_lr) one.lr = up->group_lr[run->lr_group];
    if (!run->decay) one.weight_decay = 0;
    return one;
}

/** The optimizer's step on elements lo .. hi-1 of unit u's trained part, run by run:
 *
 *      master[i], states[k][i] <- step(grad[i - lo]);  param[i] = master[i] rounded, where there is a master
 *
 *  grad [hi - lo] of grad_dtype, on the device, what the owners summed; master and states are this rank's. Queues on
 *  the compute stream; padding and frozen tensors between the runs are not touched. */
static dt_err update_range(dt_zero *z, int u, int64_t lo, int64_t hi, const void *grad, dt_dtype grad_dtype,
                           const update *up)
{
    const zero_unit_layout *ul = &z->lay.units[u];
    for (int k = 0; k < ul->n_runs; k++) {
        const zero_run *run = &z->lay.runs[ul->first_run + k];
        const int64_t from = run->start > lo ? run->start : lo,
                      to = run->start + run->len < hi ? run->start + run->len : hi;
        if (from >= to) continue;
        const dt_optimizer_step one = step_of(up, run);
        const char *g = (const char *)grad + (size_t)(from - lo) * dt_dtype_size(grad_dtype);
        void *rounded = z->lay.has_master ? zero_param_at(z, u, DT_TRAINED, from) : NULL;
        float *states[DT_MAX_STATES];
        for (int i = 0; i < z->lay.n_states; i++) states[i] = zero_opt_at(z, &z->states[i], u, from);
        DT_TRY(z->opt.optimizer->step(z->dev, &one, g, grad_dtype, zero_master_at(z, u, from), states, rounded,
                                      z->lay.param_dtype[DT_TRAINED], to - from, z->compute));
    }
    return DT_OK;
}

/** Stage 0, where the sums are still with their owners: columns a .. a+count-1 of all shards are gathered, so every
 *  rank updates with the same bits, and used up while they are in the processor's cache. */
static dt_err update_from_sums(dt_zero *z, int u, const update *up, dt_err err)
{
    const int64_t shard_len = zero_shards(&z->lay, u, DT_TRAINED)->shard_len, most = z->lay.update_per_rank;
    for (int64_t a = 0; a < shard_len && err != DT_ERR_COMM; a += most) {
        const int64_t count = shard_len - a < most ? shard_len - a : most;
        err = zero_first_err(err, zero_comm_after_compute(z)); /* the bucket may still be read by the update before */
        err = zero_gather_columns(z, u, a, count, err);
        if (err == DT_OK) err = zero_compute_after_comm(z);
        for (int r = 0; r < z->comm->nranks && err == DT_OK; r++) {
            const int64_t lo = r * shard_len + a;
            err = update_range(z, u, lo, lo + count, zero_at(&z->bucket, r * count, z->lay.grad_kept), z->lay.grad_kept,
                               up);
        }
    }
    return err;
}

static dt_err update_unit(dt_zero *z, int u, const update *up, dt_err err)
{
    if (z->lay.whole_opt && z->gather_in_update) return update_from_sums(z, u, up, err);
    if (err != DT_OK) return err;
    const dt_shards *s = zero_shards(&z->lay, u, DT_TRAINED);
    const int64_t lo = z->lay.whole_opt ? 0 : zero_own(z, u, DT_TRAINED);
    const int64_t hi = z->lay.whole_opt ? s->padded_len : lo + s->shard_len;
    return update_range(z, u, lo, hi, zero_grad_at(z, u, lo), z->lay.grad_kept, up);
}

dt_err dt_zero_update(dt_zero *z, const dt_optimizer_step *step, const double *group_lr)
{
    const update up = {step, group_lr};
    DT_TRY(zero_check_complete(z));
    const zero_phase before = zero_enter(z, "update", "");
    dt_err err = dt_fault("zero.update");
    err = zero_first_err(err, zero_compute_after_comm(z));
    for (int u = 0; u < z->n_units && err != DT_ERR_COMM; u++) {
        if (zero_is_empty(&z->lay, u, DT_TRAINED)) continue;
        if (z->phase) dt_phase_enter(z->phase, "update", z->units[u].name);
        err = update_unit(z, u, &up, err);
    }
    z->in_micro = false;
    /* At stage 0 all ranks have made the same update. */
    if (!z->lay.whole_opt && err != DT_ERR_COMM) err = zero_gather_params(z, 1, err);
    zero_leave(z, before);
    return err;
}
