/* offload.c - an optimizer whose master weights and states are kept in host memory or in a file. Gradients are copied
 * to the host, the host updates, and parameters are copied to the device.
 *
 *     backward   down      each unit's sum is copied to host memory after its reduction, concurrently with the device
 *                read      last micro-step: reads the first sub-groups' master and states from the file
 *     norm                 the host sums squares of the gradients: clipping must be known before the update
 *     update     read      reads a sub-group's master and states from the file, some sub-groups ahead
 *                step      the host's own kernels, one pass over the sub-group
 *                up        copies rounded parameters to the device from a staging buffer, during the next step
 *                write     writes master and states to the file, during the next steps and the next forward
 *     gather     gathers a unit's parameters once they are on the device, during the update of the next unit
 *
 * Only gradients and parameters are copied to or from the device, so only they use pinned memory. Master and states use
 * ordinary host memory. Staging buffers are used in turn; each is waited for before it is reused. */
#include "zero_impl.h"
#include <stdlib.h>

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

static dt_err open_ring(dt_zero *z, zero_ring *r, size_t nbytes, bool device_copies)
{
    if (nbytes == 0) return DT_OK;
    const int n = z->lay.n_buffers;
    DT_ALLOC(r->buffer, n, "out of memory for a table of %d buffers", n);
    r->n = n;
    char *const first = (char *)dt_swap_round_up((size_t)r->memory.ptr);
    for (int i = 0; i < n; i++) {
        r->buffer[i] = (zero_buffer){.at = first + (size_t)i * nbytes, .unit = -1};
        if (device_copies) DT_TRY(z->dev->ops->event_create(z->dev, &r->buffer[i].copied));
    }
    return DT_OK;
}

static void close_ring(dt_zero *z, zero_ring *r)
{
    for (int i = 0; i < r->n; i++)
        if (r->buffer[i].copied) z->dev->ops->event_destroy(z->dev, r->buffer[i].copied);
    free(r->buffer);
}

static dt_err number_groups(dt_zero *z)
{
    DT_ALLOC(z->first_group, z->n_units + 1, "out of memory for a table of %d units", z->n_units);
    for (int u = 0; u < z->n_units; u++) {
        const int64_t len = zero_shards(&z->lay, u, DT_TRAINED)->shard_len;
        z->first_group[u + 1] = z->first_group[u] + (len + z->lay.group_len - 1) / z->lay.group_len;
    }
    z->n_groups = z->first_group[z->n_units];
    return DT_OK;
}

static zero_group group_of(const dt_zero *z, int64_t g)
{
    int u = 0;
    while (z->first_group[u + 1] <= g) u++;
    const int64_t done = (g - z->first_group[u]) * z->lay.group_len;
    const int64_t left = zero_shards(&z->lay, u, DT_TRAINED)->shard_len - done;
    return (zero_group){u, zero_own(z, u, DT_TRAINED) + done, dt_min_i64(z->lay.group_len, left)};
}

dt_err zero_offload_open(dt_zero *z)
{
    const zero_layout *l = &z->lay;
    if (!zero_offloads(z)) return DT_OK;
    DT_TRY(dt_stream_open(z->dev, &z->copy_stream, "copies"));
    z->own_copy_stream = true;
    for (int u = 0; u < z->n_units && l->grads_down; u++) DT_TRY(z->dev->ops->event_create(z->dev, &z->state[u].down));
    for (int k = 0; k < ZERO_GRAD_SLOTS; k++) z->slot_unit[k] = -1;
    if (l->grads_down) DT_TRY(number_groups(z));
    DT_TRY(open_ring(z, &z->up, l->up_bytes, true));
    DT_TRY(open_ring(z, &z->swap, l->swap_bytes, false));
    DT_TRY(open_ring(z, &z->fetch, l->fetch_bytes, true));
    if (!l->has_file) return DT_OK;
    const dt_swap_options file = zero_file_options(l, z->opt.nvme_path, z->dev->ledger);
    return dt_swap_open(&z->file, &file);
}

void zero_offload_close(dt_zero *z)
{
    dt_swap_close(z->file);
    if (z->own_copy_stream) (void)z->dev->ops->stream_sync(z->dev, z->copy_stream);
    close_ring(z, &z->up);
    close_ring(z, &z->swap);
    close_ring(z, &z->fetch);
    for (int u = 0; z->state && u < z->n_units; u++)
        if (z->state[u].down) z->dev->ops->event_destroy(z->dev, z->state[u].down);
    if (z->own_copy_stream) dt_stream_close(z->dev, z->copy_stream);
    free(z->first_group);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static dt_err wait_requests(dt_zero *z, zero_buffer *b)
{
    dt_err err = DT_OK;
    for (int k = 0; k < 1 + DT_MAX_STATES && z->file; k++)
        err = dt_first_err(err, dt_swap_wait(z->file, &b->request[k]));
    return err;
}

dt_err zero_buffer_wait(dt_zero *z, zero_buffer *b)
{
    if (b->copying) DT_TRY(z->dev->ops->event_sync(z->dev, b->copied));
    b->copying = false;
    if (b->to_write) DT_TRY(zero_fetch_write(z, b));
    return wait_requests(z, b);
}

dt_err zero_drain(dt_zero *z)
{
    dt_err err = DT_OK;
    zero_ring *const with_file[] = {&z->swap, &z->fetch};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < with_file[k]->n; i++)
            err = dt_first_err(err, zero_buffer_wait(z, &with_file[k]->buffer[i]));
    return err;
}

dt_err zero_forget(dt_zero *z)
{
    const dt_err err = zero_drain(z);
    for (int i = 0; i < z->fetch.n; i++) z->fetch.buffer[i].unit = -1;
    z->next_read = 0;
    return err;
}

dt_err zero_wait_down(dt_zero *z)
{
    DT_TRY(dt_fault("zero.down"));
    return z->dev->ops->stream_sync(z->dev, z->copy_stream);
}

/* An unused prefetch gather may still read parameters in host memory. The caller has queued a wait for it on the
 * compute stream. */
dt_err zero_offload_begin(dt_zero *z)
{
    if (!z->own_copy_stream) return DT_OK;
    DT_TRY(z->dev->ops->stream_sync(z->dev, z->compute));
    DT_TRY(z->dev->ops->stream_sync(z->dev, z->copy_stream));
    for (int i = 0; i < z->up.n; i++) z->up.buffer[i].copying = false;
    for (int i = 0; i < z->fetch.n; i++) z->fetch.buffer[i].copying = false;
    return DT_OK;
}

/* ---- backward: gradients to host memory -------------------------------------------------------------------------- */

dt_err zero_send_down(dt_zero *z, int u, const void *sum, bool last_micro)
{
    zero_unit_state *s = &z->state[u];
    const zero_range done = zero_summed(z, u, last_micro);
    const size_t size = dt_dtype_size(z->lay.grad_kept), skip = (size_t)(done.lo - zero_own(z, u, DT_TRAINED)) * size;
    if (z->comm_stream != z->copy_stream) DT_TRY(z->dev->ops->event_wait(z->dev, s->reduced, z->copy_stream));
    DT_TRY(zero_copy(z, "down", u, zero_sum_at(z, u, done.lo), (const char *)sum + skip, (size_t)done.n * size,
                     z->copy_stream));
    return z->dev->ops->event_record(z->dev, s->down, z->copy_stream);
}

/* ---- update: master and states ----------------------------------------------------------------------------------- */

int64_t zero_entry_in_file(const dt_zero *z, int a, int u, int64_t x)
{
    return (int64_t)zero_arrays_nbytes(&z->lay, DT_IN_FILE, a) +
           zero_entry(z, a, u, x) * (int64_t)dt_dtype_size(z->lay.array[a].dtype);
}

static size_t group_nbytes(const zero_layout *l, int a)
{
    return (size_t)l->group_len * dt_dtype_size(l->array[a].dtype);
}

/** Address of array a of a sub-group in its buffer. */
static void *in_buffer(const dt_zero *z, const zero_buffer *b, int a)
{
    char *at = b->at;
    for (int i = 0; i < a; i++) at += group_nbytes(&z->lay, i);
    return at;
}

/** Read or write master and the first n_states states of a sub-group, between the file and its buffer. */
static dt_err move_states(dt_zero *z, int64_t g, bool write, int n_states)
{
    const zero_group group = group_of(z, g);
    zero_buffer *b = &z->swap.buffer[g % z->swap.n];
    for (int k = 0; k <= n_states; k++) {
        const size_t nbytes = dt_swap_round_up((size_t)group.n * dt_dtype_size(z->lay.array[k].dtype));
        const int64_t at = zero_entry_in_file(z, k, group.unit, group.lo);
        DT_TRY(write ? dt_swap_write(z->file, at, in_buffer(z, b, k), nbytes, &b->request[k])
                     : dt_swap_read(z->file, at, in_buffer(z, b, k), nbytes, &b->request[k]));
    }
    return DT_OK;
}

/** Request the states of sub-group g and of the following ones. At most half of the buffers are used for reads, the
 *  other half for writes in flight. */
static dt_err read_ahead(dt_zero *z, int64_t g, int n_states)
{
    const int64_t end = dt_min_i64(g + z->swap.n / 2 + 1, z->n_groups);
    for (; z->next_read < end; z->next_read++) {
        DT_TRY(wait_requests(z, &z->swap.buffer[z->next_read % z->swap.n]));
        DT_TRY(move_states(z, z->next_read, false, n_states));
    }
    return DT_OK;
}

/** No request is in flight and none has failed. A failure is reported at the next point where ranks can agree on it. */
static bool is_at_rest(dt_zero *z, const zero_buffer *b)
{
    bool rests = true;
    for (int k = 0; k <= z->lay.n_states; k++)
        rests = rests && dt_swap_done(z->file, &b->request[k]) && !b->request[k].error;
    return rests;
}

/* The previous update wrote a sub-group from the buffer that receives this read. Once the buffer is idle, the file is
 * up to date. */
dt_err zero_offload_ahead(dt_zero *z)
{
    while (z->next_read < dt_min_i64(z->swap.n, z->n_groups) && is_at_rest(z, &z->swap.buffer[z->next_read]))
        DT_TRY(move_states(z, z->next_read++, false, z->lay.n_states));
    return DT_OK;
}

/** Provide the states to update: in place, or in the buffer into which they were read. */
static dt_err take_states(dt_zero *z, int u, int64_t g, const zero_update *up, zero_slice *s)
{
    if (z->lay.opt_space != DT_IN_FILE) {
        s->master = zero_entry_at(z, ZERO_MASTER, u, group_of(z, g).lo);
        return DT_OK;
    }
    zero_buffer *b = &z->swap.buffer[g % z->swap.n];
    DT_TRY(read_ahead(z, g, up && !up->applies ? z->lay.n_states : 0));
    DT_TRY(dt_fault("zero.read"));
    DT_TRY(wait_requests(z, b));
    s->master = in_buffer(z, b, 0);
    for (int a = 1; a <= z->lay.n_states; a++) s->array[a] = in_buffer(z, b, a);
    return DT_OK;
}

static dt_err give_states(dt_zero *z, int64_t g, const zero_update *up)
{
    if (z->lay.opt_space != DT_IN_FILE || !up) return DT_OK;
    DT_TRY(dt_fault("zero.write"));
    return move_states(z, g, true, up->applies ? 0 : z->lay.n_states);
}

/* ---- update: parameters ------------------------------------------------------------------------------------------ */

/** Choose where the rounded parameters of a sub-group are written: directly if the host can access the destination,
 *  otherwise into a buffer. shard: buffer for the unit's parameters, if they are kept in the file. */
static dt_err take_params(dt_zero *z, int u, int64_t g, const zero_buffer *shard, zero_slice *s)
{
    const int64_t lo = group_of(z, g).lo;
    const dt_memspace space = z->lay.units[u].part[DT_TRAINED].space;
    zero_buffer *b = space == DT_ON_DEVICE ? &z->up.buffer[g % z->up.n] : NULL;
    if (b) DT_TRY(zero_buffer_wait(z, b));
    s->param = b                     ? b->at
               : space != DT_IN_FILE ? zero_param_at(z, u, DT_TRAINED, lo)
                                     : shard->at + (size_t)(lo - zero_own(z, u, DT_TRAINED)) *
                                                       dt_dtype_size(z->lay.param_dtype[DT_TRAINED]);
    return DT_OK;
}

/** Queue the copy to the device; the host continues. */
static dt_err give_params(dt_zero *z, int u, int64_t g)
{
    if (z->lay.units[u].part[DT_TRAINED].space != DT_ON_DEVICE) return DT_OK;
    const zero_group group = group_of(z, g);
    zero_buffer *b = &z->up.buffer[g % z->up.n];
    DT_TRY(dt_fault("zero.up"));
    DT_TRY(zero_copy(z, "up", u, zero_param_at(z, u, DT_TRAINED, group.lo), b->at,
                     (size_t)group.n * dt_dtype_size(z->lay.param_dtype[DT_TRAINED]), z->copy_stream));
    b->copying = true;
    return z->dev->ops->event_record(z->dev, b->copied, z->copy_stream);
}

/** last: the last visit of the unit, which writes its parameters. */
static dt_err update_group(dt_zero *z, int u, int64_t g, const zero_buffer *shard, const zero_update *up, bool last)
{
    const zero_group group = group_of(z, g);
    const int64_t at = group.lo - zero_own(z, u, DT_TRAINED);
    zero_slice s = {.dev = z->opt.host, .grad_dtype = z->lay.grad_kept, .fresh = last};
    s.grad = zero_sum_at(z, u, group.lo);
    if (zero_is_twice(z, u)) s.direction = zero_at(&z->host_direction, at, DT_BF16);
    DT_TRY(take_states(z, u, g, up, &s));
    if (last) DT_TRY(take_params(z, u, g, shard, &s));
    DT_TRY(dt_fault("zero.step"));
    DT_TRY(zero_step(z, u, group.lo, group.lo + group.n, &s, up));
    if (last) DT_TRY(give_params(z, u, g));
    return give_states(z, g, up);
}

dt_err zero_offload_unit(dt_zero *z, int u, const zero_update *up)
{
    const bool last = !up || up->applies || !zero_is_twice(z, u),
               in_file = last && z->lay.units[u].part[DT_TRAINED].space == DT_IN_FILE;
    zero_buffer *shard = NULL;
    z->next_read = dt_max_i64(z->next_read, z->first_group[u]); /* a second visit skips units */
    if (in_file) DT_TRY(zero_fetch_take(z, u, DT_TRAINED, &shard));
    for (int64_t g = z->first_group[u]; g < z->first_group[u + 1]; g++) DT_TRY(update_group(z, u, g, shard, up, last));
    return in_file ? zero_fetch_write(z, shard) : DT_OK;
}
