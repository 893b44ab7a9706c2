/* update.c - the optimizer's step on the elements that this rank updates: its shards, or everything at stage 0.
 *
 * Each call updates one run of tensors with the same learning rate and decay, limited to the shard. The same pass over
 * memory writes the rounded parameters. A unit's parameters are gathered immediately after its update, concurrently
 * with the update of the next unit. offload.c updates offloaded states through the same calls. */
#include "zero_impl.h"

static dt_optimizer_step step_of(const zero_update *up, const zero_run *run)
{
    dt_optimizer_step one = *up->step;
    if (up->group_lr) one.lr = up->group_lr[run->lr_group];
    if (!run->decay) one.weight_decay = 0;
    return one;
}

/** param[i] = master[i] rounded, i = from .. to-1. */
static dt_err round_range(const dt_zero *z, const zero_slice *s, int64_t from, int64_t to)
{
    const dt_update_range r = zero_range_of(z, s, from, to);
    return from < to ? s->dev->ops->convert(s->dev, r.master, DT_F32, r.param, r.param_dtype, r.n, r.stream) : DT_OK;
}

/** Matrix run: master and parameters from the results. */
static dt_err apply_run(const dt_zero *z, const zero_slice *s, const dt_optimizer_step *one, const zero_run *run,
                        int64_t from, int64_t to)
{
    const zero_matrix *m = &z->lay.matrices[run->matrix];
    const dt_update_range r = zero_range_of(z, s, from, to);
    return z->opt.optimizer->matrices->apply(s->dev, one, m->rows, m->cols, &r);
}

dt_err zero_step(const dt_zero *z, int u, int64_t lo, int64_t hi, const zero_slice *s, const zero_update *up)
{
    const zero_unit_layout *ul = &z->lay.units[u];
    if (!up) return round_range(z, s, 0, hi - lo);
    int64_t done = lo;
    for (int k = 0; k < ul->n_runs; k++) {
        const zero_run *run = &z->lay.runs[ul->first_run + k];
        const int64_t from = dt_max_i64(run->start, lo), to = dt_min_i64(run->start + run->len, hi);
        if (from >= to || (up->applies && run->matrix < 0)) continue;
        const dt_optimizer_step one = step_of(up, run);
        if (s->fresh) DT_TRY(round_range(z, s, done - lo, from - lo));
        DT_TRY(up->applies ? apply_run(z, s, &one, run, from - lo, to - lo)
                           : zero_step_states(z, u, lo, s, &one, run, from - lo, to - lo));
        done = to;
    }
    return s->fresh ? round_range(z, s, done - lo, hi - lo) : DT_OK;
}

/* ---- on the device ----------------------------------------------------------------------------------------------- */

/** A slice that starts at element lo. Parameters are in device memory, or in their arena region if they are kept off
 *  the device. */
static zero_slice slice_on_device(const dt_zero *z, int u, int64_t lo, const void *grad, bool last)
{
    zero_slice s = {.dev = z->dev, .stream = z->compute, .grad = grad, .grad_dtype = z->lay.grad_kept};
    s.master = zero_master_at(z, u, lo);
    for (int a = 1; a < z->lay.n_arrays; a++)
        if (!z->lay.array[a].packed) s.array[a] = zero_entry_at(z, a, u, lo);
    if (zero_is_twice(z, u)) s.direction = zero_at(&z->direction, z->lay.whole_opt ? lo : 0, DT_BF16);
    if (!z->lay.has_master) return s;
    s.fresh = z->lay.units[u].part[DT_TRAINED].space != DT_ON_DEVICE;
    s.param = s.fresh
                  ? (char *)zero_held_at(z, u, DT_TRAINED) + (size_t)lo * dt_dtype_size(z->lay.param_dtype[DT_TRAINED])
                  : zero_param_at(z, u, DT_TRAINED, lo);
    if (s.fresh && !last) s.fresh = false, s.param = NULL; /* the second visit writes all of it */
    return s;
}

/** Gather columns a .. a+count-1 of a unit's summed gradients into the bucket, contiguous by rank, on the comm stream.
 *  Enters the collective even after an earlier error. */
static dt_err gather_columns(dt_zero *z, int u, int64_t a, int64_t count, dt_err err)
{
    const zero_phase before = zero_enter(z, "gather", z->units[u].name);
    const void *own = zero_grad_at(z, u, zero_own(z, u, DT_TRAINED) + a);
    err = dt_first_err(err, dt_comm_all_gather(z->shard, own, z->bucket.ptr,
                                               (size_t)count * dt_dtype_size(z->lay.grad_kept), z->comm_stream));
    zero_leave(z, before);
    return err;
}

/** Stage 0 with sums still at their owners: gathers columns a .. a+count-1 of all shards, so that every rank updates
 *  with the same bits. They are used while they are in the processor's cache. */
static dt_err update_from_sums(dt_zero *z, int u, const zero_update *up, dt_err err)
{
    const int64_t shard_len = zero_shards(&z->lay, u, DT_TRAINED)->shard_len, most = z->lay.update_per_rank;
    for (int64_t a = 0; a < shard_len && err != DT_ERR_COMM; a += most) {
        const int64_t count = shard_len - a < most ? shard_len - a : most;
        err = dt_first_err(err, zero_comm_after_compute(z)); /* the previous update may still read the bucket */
        err = gather_columns(z, u, a, count, err);
        if (err == DT_OK) err = zero_compute_after_comm(z);
        for (int r = 0; r < z->shard->size && err == DT_OK; r++) {
            const int64_t lo = r * shard_len + a;
            const zero_slice s = slice_on_device(z, u, lo, zero_at(&z->bucket, r * count, z->lay.grad_kept), true);
            err = zero_step(z, u, lo, lo + count, &s, up);
        }
    }
    return err;
}

static dt_err update_on_device(dt_zero *z, int u, const zero_update *up)
{
    const dt_shards *shards = zero_shards(&z->lay, u, DT_TRAINED);
    const bool all = z->lay.whole_opt && up;
    const int64_t lo = all ? 0 : zero_own(z, u, DT_TRAINED), hi = all ? shards->padded_len : lo + shards->shard_len;
    const bool last = !up || up->applies || !zero_is_twice(z, u);
    const zero_slice s = slice_on_device(z, u, lo, up && !up->applies ? zero_grad_at(z, u, lo) : NULL, last);
    DT_TRY(zero_step(z, u, lo, hi, &s, up));
    return s.fresh ? zero_send_away(z, u) : DT_OK;
}

static dt_err update_unit(dt_zero *z, int u, const zero_update *up, dt_err err)
{
    if (z->lay.whole_opt && z->gather_in_update && up && !up->applies) return update_from_sums(z, u, up, err);
    if (err != DT_OK) return err;
    return z->lay.grads_down ? zero_offload_unit(z, u, up) : update_on_device(z, u, up);
}

/** Update a unit, and gather its parameters if no second visit follows. */
static dt_err visit_unit(dt_zero *z, int u, const zero_update *up, dt_err err)
{
    dt_stream *const wrote = z->lay.grads_down ? z->copy_stream : z->compute;
    const bool gathers = !(z->lay.whole_opt && up); /* at stage 0 all ranks compute the same update */
    if (zero_is_empty(&z->lay, u, DT_TRAINED)) return err;
    if (z->phase) dt_phase_enter(z->phase, "update", z->units[u].name);
    err = update_unit(z, u, up, err);
    if (up && !up->applies && zero_is_twice(z, u)) return err == DT_ERR_COMM ? err : zero_gather_matrices(z, u, err);
    return gathers ? zero_gather_changed(z, u, DT_TRAINED, wrote, err) : err;
}

/** The second visit, to the units with matrices. */
static dt_err update_matrices(dt_zero *z, const zero_update *up, dt_err err)
{
    const zero_update apply = {up->step, up->group_lr, true};
    if (z->lay.n_matrices == 0 || err == DT_ERR_COMM) return err;
    if (err == DT_OK) err = zero_change_matrices(z, up);
    z->next_read = 0;
    for (int u = 0; u < z->n_units && err != DT_ERR_COMM; u++) {
        if (!zero_is_twice(z, u)) continue;
        err = zero_return_matrices(z, u, err);
        if (err != DT_ERR_COMM) err = visit_unit(z, u, &apply, err);
    }
    return err;
}

dt_err zero_update_units(dt_zero *z, const zero_update *up, dt_err err)
{
    dt_stream *const wrote = z->lay.grads_down ? z->copy_stream : z->compute;
    if (!(z->lay.whole_opt && up)) err = dt_first_err(err, dt_fault("zero.gather"));
    err = dt_first_err(err, zero_offload_begin(z));
    for (int u = 0; u < z->n_units && err != DT_ERR_COMM; u++) err = visit_unit(z, u, up, err);
    if (up) err = update_matrices(z, up, err);
    z->next_read = 0;
    return dt_first_err(err, zero_comm_after(z, wrote)); /* later gathers send these shards */
}

dt_err dt_zero_update(dt_zero *z, const dt_optimizer_step *step, const double *group_lr)
{
    const zero_update up = {step, group_lr, false};
    DT_TRY(zero_check_complete(z));
    const zero_phase before = zero_enter(z, "update", "");
    dt_err err = zero_reduce_deferred(z);
    err = dt_first_err(err, dt_fault("zero.update"));
    if (err != DT_ERR_COMM) err = dt_first_err(err, zero_compute_after_comm(z));
    err = zero_update_units(z, &up, err);
    z->in_micro = false;
    zero_leave(z, before);
    return err;
}
