/* grads.c - grads_acquire, grads_release and the gradient norm.
 *
 * Full gradients (stages 0 and 1): backward writes into the full buffer and accumulates in later micro-steps. The
 * last micro-step reduces in place.
 *
 * Sharded gradients (stages 2 and 3, and every stage in reproducible mode): backward writes the micro-step's
 * gradients into the unit's region of the arena. Release adds their sum over the ranks to the owned shard. Another
 * unit may have used the region before, so gaps between trainable tensors are cleared before sending. Frozen parts
 * have no gradients.
 *
 * Backward will soon wait for the gather of the unit after the next. It waits for the reduction of this unit only
 * when another unit's gradients need its arena region. The communication stream runs in order, so a reduction is
 * deferred until params_acquire has queued the gathers of another unit. Each such call issues one deferred
 * reduction. In the last micro-step a reduction is deferred only if another unit is known to follow. The last unit
 * issues all remaining reductions. Other ranks then never wait for a reduction of a rank that fails.
 *
 * With an offloaded optimizer the sums are kept in host memory. Full gradients are copied to the host in the last
 * micro-step, own shard only. Shards pass through a slot on the device. The previous sum is copied up, and the same
 * call as without offload adds this micro-step, so the bits are equal. The new sum is copied down asynchronously. A
 * skipped step may leave such copies in flight; the copies of the next step are queued after them. */
#include "zero_impl.h"
#include <math.h>
#include <string.h>

static bool overlap(const zero_layout *l, int a, int b)
{
    const int64_t at_a = l->units[a].grad_held_at, at_b = l->units[b].grad_held_at;
    return at_a < at_b + zero_shards(l, b, DT_TRAINED)->padded_len &&
           at_b < at_a + zero_shards(l, a, DT_TRAINED)->padded_len;
}

static dt_err wait_reduced(dt_zero *z, int u)
{
    zero_unit_state *s = &z->state[u];
    for (int i = 0; i < z->n_deferred; i++)
        if (z->deferred[i].unit == u) DT_TRY(zero_reduce_deferred(z));
    if (s->reduce_pending && z->comm_stream != z->compute)
        DT_TRY(zero_compute_wait(z, s->reduced, z->units[u].name, s->reduce_number));
    s->reduce_pending = false;
    return DT_OK;
}

static dt_err leave_region(dt_zero *z, int u)
{
    DT_EXPECT(z->state[u].grads_held == 0);
    return wait_reduced(z, u);
}

/** Wait until no other unit uses the arena region of unit u, which u then gets. */
static dt_err take_region(dt_zero *z, int u)
{
    int n = 0;
    dt_err err = DT_OK;
    for (int i = 0; i < z->n_in_grads; i++) {
        const int v = z->in_grads[i];
        const bool leaves = v == u || (overlap(&z->lay, u, v) && err == DT_OK);
        if (leaves && v != u) err = leave_region(z, v);
        if (!leaves) z->in_grads[n++] = v;
    }
    z->in_grads[n++] = u;
    z->n_in_grads = n;
    return err;
}

/** Where backward writes unit u's gradients [padded_len] of grad_dtype. */
static void *written_at(const dt_zero *z, int u)
{
    if (z->lay.whole_grads) return zero_grad_at(z, u, 0);
    return zero_at(&z->grad_arena, z->lay.units[u].grad_held_at, z->lay.grad_dtype);
}

dt_err zero_grads_acquire(void *self, int u, dt_grad_view *view)
{
    dt_zero *z = self;
    DT_EXPECT(u >= 0 && u < z->n_units && z->lay.has_grads);
    zero_unit_state *s = &z->state[u];
    DT_EXPECT(!zero_is_empty(&z->lay, u, DT_TRAINED));
    DT_EXPECT(z->in_micro);
    DT_EXPECT(s->micro_done != z->micro_serial);
    if (s->grads_held == 0) {
        DT_TRY(wait_reduced(z, u));
        if (!z->lay.whole_grads) DT_TRY(take_region(z, u));
    }
    s->grads_held++;
    *view = (dt_grad_view){
        .data = written_at(z, u), .dtype = z->lay.grad_dtype, .accumulate = z->lay.whole_grads && !z->first_micro};
    return z->last_micro ? zero_offload_ahead(z) : DT_OK;
}

/** Clear the gaps between the trainable runs of a unit. */
static dt_err clear_gaps(dt_zero *z, int u, void *grads)
{
    const zero_unit_layout *ul = &z->lay.units[u];
    const size_t elem_size = dt_dtype_size(z->lay.grad_dtype);
    int64_t from = 0;
    for (int k = 0; k <= ul->n_runs; k++) {
        const zero_run *run = &z->lay.runs[ul->first_run + k];
        const int64_t to = k < ul->n_runs ? run->start : zero_shards(&z->lay, u, DT_TRAINED)->padded_len;
        if (to > from)
            DT_TRY(z->dev->ops->zero(z->dev, (char *)grads + (size_t)from * elem_size, (size_t)(to - from) * elem_size,
                                     z->compute));
        if (k < ul->n_runs) from = run->start + run->len;
    }
    return DT_OK;
}

/** Store the maximum |g| of this rank's own gradients of a unit in its slot, over the micro-steps of a step. It is not
 *  finite if one of the gradients is not. first: the first micro-step. Does nothing if gradients are not watched, or on
 *  a single rank, where own gradients are the sums. */
static dt_err watch(dt_zero *z, int u, const void *grads, bool first)
{
    const dt_device_ops *ops = z->dev->ops;
    char *work = z->watched.ptr, *slot = work + (size_t)(1 + u) * ZERO_RESULT_NBYTES;
    if (!z->watching || z->sum->size == 1) return DT_OK;
    DT_TRY(ops->abs_max(z->dev, grads, z->lay.grad_dtype, zero_shards(&z->lay, u, DT_TRAINED)->padded_len,
                        (float *)(void *)work, z->compute));
    return ops->add_into(z->dev, work, DT_F32, slot, DT_F32, !first, 1, z->compute);
}

/** Start of the range that this rank is in charge of, in its shard of sums. */
static void *charge_at(const dt_zero *z, int u, void *own)
{
    const int64_t skip = zero_charge(z, u, DT_TRAINED) - zero_own(z, u, DT_TRAINED);
    return (char *)own + (size_t)skip * dt_dtype_size(z->lay.grad_kept);
}

/** Full gradients [padded_len], last micro-step: the sums are written in place. At stage 0 they are gathered
 *  immediately, concurrently with backward, or by the update (gather_in_update). */
static dt_err reduce_in_place(dt_zero *z, int u, void *own, dt_err err)
{
    void *whole = zero_grad_at(z, u, 0);
    const dt_shards *shards = zero_shards(&z->lay, u, DT_TRAINED);
    err = dt_first_err(err, watch(z, u, whole, true));
    err = dt_first_err(err, zero_comm_after_compute(z));
    err = zero_reduce(z, shards, whole, z->lay.grad_dtype, z->lay.grad_sent, charge_at(z, u, own), z->lay.grad_kept,
                      false, err);
    err = zero_replicate(z, shards, own, z->lay.grad_kept, err);
    if (z->lay.whole_opt && !z->gather_in_update && err != DT_ERR_COMM)
        err = zero_gather(z, shards, own, whole, z->lay.grad_kept, err);
    return err;
}

/** Sharded gradients: adds this micro-step's sum to the previous sum. After the last micro-step all owners receive the
 *  total. */
static dt_err reduce_from_arena(dt_zero *z, const zero_deferred *d, void *own, dt_err err)
{
    void *micro = written_at(z, d->unit);
    const dt_shards *shards = zero_shards(&z->lay, d->unit, DT_TRAINED);
    err = dt_first_err(err, clear_gaps(z, d->unit, micro));
    err = dt_first_err(err, watch(z, d->unit, micro, d->first_micro));
    err = dt_first_err(err, zero_comm_after_compute(z));
    err = zero_reduce(z, shards, micro, z->lay.grad_dtype, z->lay.grad_sent, charge_at(z, d->unit, own),
                      z->lay.grad_kept, !d->first_micro, err);
    return d->last_micro ? zero_replicate(z, shards, own, z->lay.grad_kept, err) : err;
}

/** The next slot. The comm stream waits until it is free; then it holds the previous sum, if any. */
static dt_err take_slot(dt_zero *z, int u, bool first_micro, void **slot)
{
    const int k = z->next_slot, before = z->slot_unit[k];
    *slot = zero_at(&z->grad_slots, k * z->lay.grad_slot_len, z->lay.grad_kept);
    z->next_slot = (k + 1) % ZERO_GRAD_SLOTS;
    z->slot_unit[k] = u;
    if (before >= 0) DT_TRY(z->dev->ops->event_wait(z->dev, z->state[before].down, z->comm_stream));
    if (first_micro) return DT_OK;
    const zero_range sum = zero_summed(z, u, false);
    DT_TRY(z->dev->ops->event_wait(z->dev, z->state[u].down, z->comm_stream));
    return zero_copy(z, "up", u, charge_at(z, u, *slot), zero_sum_at(z, u, sum.lo),
                     (size_t)sum.n * dt_dtype_size(z->lay.grad_kept), z->comm_stream);
}

/** Device address at which this rank's shard of the sums is computed. */
static dt_err take_own(dt_zero *z, int u, bool first_micro, void **own)
{
    if (z->lay.grads_down && !z->lay.whole_grads) return take_slot(z, u, first_micro, own);
    *own = zero_grad_at(z, u, zero_own(z, u, DT_TRAINED));
    return DT_OK;
}

static dt_err reduce_unit(dt_zero *z, const zero_deferred *d)
{
    zero_unit_state *s = &z->state[d->unit];
    void *own = NULL;
    const zero_phase before = zero_enter(z, "reduce", z->units[d->unit].name);
    dt_err err = dt_first_err(dt_fault("zero.reduce"), take_own(z, d->unit, d->first_micro, &own));
    err = z->lay.whole_grads ? reduce_in_place(z, d->unit, own, err) : reduce_from_arena(z, d, own, err);
    err = dt_first_err(err, z->dev->ops->event_record(z->dev, s->reduced, z->comm_stream));
    s->reduce_pending = true;
    s->reduce_number = zero_last_collective(z);
    if (z->lay.grads_down && err != DT_ERR_COMM)
        err = dt_first_err(err, zero_send_down(z, d->unit, own, d->last_micro));
    zero_leave(z, before);
    return err;
}

/* May a reduction wait until the next gathers are queued? Not after the last unit of a step, so that the norm needs no
 * collectives. */
static bool may_defer(const dt_zero *z)
{
    if (z->last_micro && z->n_incomplete == 0) return false;
    const bool gathers = z->at.last >= 0 && z->comm_stream != z->compute;
    return gathers && z->n_deferred < ZERO_N_DEFERRED && (!z->last_micro || zero_another_follows(z));
}

dt_err zero_grads_release(void *self, int u)
{
    dt_zero *z = self;
    DT_EXPECT(u >= 0 && u < z->n_units && z->state[u].grads_held > 0);
    zero_unit_state *s = &z->state[u];
    if (--s->grads_held > 0) return DT_OK;
    s->micro_done = z->micro_serial;
    z->n_incomplete -= z->lay.units[u].n_runs > 0;
    if (z->lay.whole_grads && !z->last_micro) return DT_OK;
    if (z->lay.whole_grads && z->sum->size == 1 && !z->lay.grads_down) return DT_OK;
    const zero_deferred complete = {u, z->first_micro, z->last_micro};
    if (may_defer(z)) {
        z->deferred[z->n_deferred++] = complete;
        return DT_OK;
    }
    const dt_err err = zero_reduce_deferred(z);
    return err == DT_ERR_COMM ? err : dt_first_err(err, reduce_unit(z, &complete));
}

dt_err zero_reduce_oldest(dt_zero *z)
{
    if (z->n_deferred == 0) return DT_OK;
    const zero_deferred oldest = z->deferred[0];
    z->n_deferred--;
    memmove(z->deferred, z->deferred + 1, (size_t)z->n_deferred * sizeof *z->deferred);
    return reduce_unit(z, &oldest);
}

dt_err zero_reduce_deferred(dt_zero *z)
{
    dt_err err = DT_OK;
    while (z->n_deferred > 0 && err != DT_ERR_COMM) err = dt_first_err(err, zero_reduce_oldest(z));
    return err;
}

void dt_zero_begin_micro(dt_zero *z, int index, int n_micro)
{
    z->micro_serial++;
    z->in_micro = true;
    z->n_incomplete = 0;
    for (int u = 0; u < z->n_units; u++) z->n_incomplete += z->lay.units[u].n_runs > 0;
    z->first_micro = index == 0;
    z->last_micro = index == n_micro - 1;
    zero_params_begin_micro(z);
}

/* The first micro-step of the next step overwrites the gradients. */
void dt_zero_discard(dt_zero *z)
{
    z->in_micro = false;
    z->n_deferred = 0;
}

dt_err zero_check_complete(const dt_zero *z)
{
    DT_EXPECT(z->lay.has_grads);
    DT_EXPECT(z->in_micro && z->last_micro);
    for (int u = 0; u < z->n_units; u++)
        DT_EXPECT(z->state[u].micro_done == z->micro_serial || z->lay.units[u].n_runs == 0);
    return DT_OK;
}

/* ---- sum of squares ---------------------------------------------------------------------------------------------- */

typedef enum square_op { ABS_MAX, SUM_SQUARES, SUM_SQUARES_FIXED } square_op;

static dt_err queue_one(dt_zero *z, square_op op, int u, int64_t lo, int64_t hi, int shift, int slot)
{
    dt_device *dev = z->lay.grads_down ? z->opt.host : z->dev;
    dt_stream *stream = z->lay.grads_down ? NULL : z->compute;
    const void *x = zero_sum_at(z, u, lo);
    void *result = (char *)(z->lay.grads_down ? z->host.ptr : z->results.ptr) + (size_t)slot * ZERO_RESULT_NBYTES;
    switch (op) {
    case ABS_MAX:
        return dev->ops->abs_max(dev, x, z->lay.grad_kept, hi - lo, result, stream);
    case SUM_SQUARES:
        return dev->ops->sum_squares(dev, x, z->lay.grad_kept, hi - lo, result, stream);
    case SUM_SQUARES_FIXED:
        return dev->ops->sum_squares_fixed(dev, x, z->lay.grad_kept, hi - lo, shift, result, stream);
    }
    return DT_ERR_ARG;
}

/** Does this rank count the run? If all ranks of the axis tp have the same, only the first does. */
static bool counts(const dt_zero *z, const zero_run *run) { return run->divided || dt_comm_first_of_parts(z->comm); }

/** Run op over the trainable elements that this rank is in charge of, in the memory space of their sums. Stores *n
 *  results in z->host. A unit without frozen tensors takes one call because its padding is zero. */
static dt_err over_own_grads(dt_zero *z, square_op op, int shift, int *n)
{
    *n = 0;
    for (int u = 0; u < z->n_units; u++) {
        const zero_unit_layout *ul = &z->lay.units[u];
        const zero_range charge = zero_summed(z, u, false);
        const int64_t begin = charge.lo, end = begin + charge.n;
        z->state[u].first_result = *n;
        if (begin == end) continue;
        if (ul->all_trainable) {
            if (counts(z, &z->lay.runs[ul->first_run])) DT_TRY(queue_one(z, op, u, begin, end, shift, (*n)++));
            continue;
        }
        for (int k = 0; k < ul->n_runs; k++) {
            const zero_run *run = &z->lay.runs[ul->first_run + k];
            const int64_t lo = run->start > begin ? run->start : begin,
                          hi = run->start + run->len < end ? run->start + run->len : end;
            if (lo < hi && counts(z, run)) DT_TRY(queue_one(z, op, u, lo, hi, shift, (*n)++));
        }
    }
    if (*n > 0 && !z->lay.grads_down)
        DT_TRY(z->dev->ops->copy(z->dev, z->host.ptr, z->results.ptr, (size_t)*n * ZERO_RESULT_NBYTES, z->compute));
    return z->dev->ops->stream_sync(z->dev, z->compute);
}

static const void *result_of(const dt_zero *z, int slot)
{
    return (const char *)z->host.ptr + (size_t)slot * ZERO_RESULT_NBYTES;
}

/* ---- location of non-finite gradients ---------------------------------------------------------------------------- */

void dt_zero_watch(dt_zero *z, bool on) { z->watching = on; }
dt_nonfinite dt_zero_nonfinite(const dt_zero *z) { return z->nonfinite; }

static char *host_watched(const dt_zero *z)
{
    return (char *)z->host.ptr + (size_t)z->lay.n_results * ZERO_RESULT_NBYTES;
}

/** Queue the copy to the host; over_own_grads synchronises the stream. */
static dt_err bring_watched(dt_zero *z)
{
    if (!z->watching || z->sum->size == 1) return DT_OK;
    return z->dev->ops->copy(z->dev, host_watched(z), z->watched.ptr, z->lay.watched_bytes, z->compute);
}

static bool own_is_finite(const dt_zero *z, int u)
{
    float x;
    memcpy(&x, host_watched(z) + (size_t)(1 + u) * ZERO_RESULT_NBYTES, sizeof x);
    return isfinite(x);
}

/** Results of one unit, of n in total: floats for ABS_MAX, doubles for SUM_SQUARES. */
static bool sums_are_finite(const dt_zero *z, square_op op, int u, int n)
{
    const int end = u + 1 < z->n_units ? z->state[u + 1].first_result : n;
    for (int i = z->state[u].first_result; i < end; i++) {
        float largest;
        double squares;
        memcpy(&largest, result_of(z, i), sizeof largest);
        memcpy(&squares, result_of(z, i), sizeof squares);
        if (op == ABS_MAX ? !isfinite(largest) : !isfinite(squares)) return false;
    }
    return true;
}

static void note_nonfinite(dt_zero *z, square_op op, int n)
{
    const bool lone = z->sum->size == 1;
    int sum = z->n_units - 1, own = z->n_units - 1;
    while (sum >= 0 && sums_are_finite(z, op, sum, n)) sum--;
    while (own >= 0 && (lone || !z->watching || own_is_finite(z, own))) own--;
    z->nonfinite = (dt_nonfinite){.own_unit = lone ? sum : own, .sum_unit = sum};
}

static dt_err largest_abs(dt_zero *z, float *largest)
{
    int n;
    *largest = 0;
    DT_TRY(over_own_grads(z, ABS_MAX, 0, &n));
    note_nonfinite(z, ABS_MAX, n);
    for (int i = 0; i < n; i++) {
        float x;
        memcpy(&x, result_of(z, i), sizeof x);
        if (!(x <= *largest)) *largest = x;
    }
    return DT_OK;
}

/** Exact sum over all ranks of rint(x^2 2^shift). Uses 32-bit limbs in 64-bit words, so that the sum over ranks loses
 *  no carry. */
static dt_err fixed_sum(dt_zero *z, int shift, double *sum, dt_err err)
{
    int n = 0;
    err = dt_first_err(err, over_own_grads(z, SUM_SQUARES_FIXED, shift, &n));
    unsigned __int128 own = 0;
    for (int i = 0; i < n && err == DT_OK; i++) {
        uint64_t word[2];
        memcpy(word, result_of(z, i), sizeof word);
        own += ((unsigned __int128)word[1] << 64) + word[0];
    }
    uint64_t limb[4];
    for (int k = 0; k < 4; k++) limb[k] = (uint64_t)(own >> (32 * k)) & 0xffffffffu;
    err = dt_first_err(err, dt_comm_sum_host_u64(dt_comm_all(z->comm), limb, 4));
    unsigned __int128 total = 0;
    for (int k = 3; k >= 0; k--) total = (total << 32) + limb[k];
    *sum = dt_comm_first(z->comm) ? ldexp((double)total, -shift) : 0;
    return err;
}

/** Adds the squares as integers, scaled so that each term is below 2^52. The result depends neither on the order of
 *  summation nor on the partition of the gradients. */
static dt_err exact_sum_squares(dt_zero *z, double *sum)
{
    float largest = 0;
    dt_err err = largest_abs(z, &largest);
    double agreed = err == DT_OK && isfinite(largest) ? largest : INFINITY; /* MPI_MAX would lose a NaN */
    err = dt_first_err(err, dt_comm_reduce_host_f64(dt_comm_all(z->comm), &agreed, 1, DT_MAX));
    if (err == DT_ERR_COMM || agreed == 0 || isinf(agreed)) {
        *sum = dt_comm_first(z->comm) ? agreed : 0;
        return err;
    }
    int exponent;
    frexp(agreed, &exponent); /* largest < 2^exponent */
    return fixed_sum(z, 52 - 2 * exponent, sum, err);
}

/** Make the step's sums valid for the compute stream, or in host memory, and queue the copy of the watch slots. */
static dt_err finish_sums(dt_zero *z)
{
    dt_err err = zero_compute_after_comm(z);
    if (z->lay.grads_down) err = dt_first_err(err, zero_wait_down(z));
    return dt_first_err(err, bring_watched(z));
}

dt_err dt_zero_grad_sum_squares_reproducible(dt_zero *z, double *sum)
{
    *sum = 0;
    DT_TRY(zero_check_complete(z));
    const dt_err err = finish_sums(z);
    return err == DT_ERR_COMM ? err : dt_first_err(err, exact_sum_squares(z, sum));
}

dt_err dt_zero_grad_sum_squares(dt_zero *z, double *sum)
{
    int n;
    *sum = 0;
    DT_TRY(zero_check_complete(z));
    DT_TRY(finish_sums(z));
    DT_TRY(over_own_grads(z, SUM_SQUARES, 0, &n));
    note_nonfinite(z, SUM_SQUARES, n);
    for (int i = 0; i < n; i++) {
        double x;
        memcpy(&x, result_of(z, i), sizeof x);
        *sum += x;
    }
    return DT_OK;
}
