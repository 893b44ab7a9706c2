/* states.c - states by name: the slices of named tensors that a rank is in charge of, and host access for checkpoints.
 *
 * The range that a rank is in charge of belongs to it alone at every stage, even if it holds more. Each element
 * therefore has exactly one writer. When a checkpoint is read, every owner of a shard reads it. */
#include "zero_impl.h"
#include <stdlib.h>
#include <string.h>

/** Intersection of a tensor with elements begin .. end-1 of its part. */
static dt_slice slice_between(int unit, int tensor, const dt_tensor *t, int64_t begin, int64_t end)
{
    const int64_t lo = dt_max_i64(t->offset, begin), hi = dt_min_i64(t->offset + t->n_elems, end);
    if (lo >= hi) return (dt_slice){.unit = unit, .tensor = tensor, .flat = begin}; /* empty intersection */
    return (dt_slice){.unit = unit, .tensor = tensor, .first = lo - t->offset, .n = hi - lo, .flat = lo};
}

dt_err zero_slices_make(dt_zero *z)
{
    int n = 0;
    for (int u = 0; u < z->n_units; u++) n += z->units[u].n_tensors;
    z->slices = calloc(2 * (size_t)n + 1, sizeof *z->slices);
    DT_CHECK(z->slices, DT_ERR_MEMORY, "out of memory for the table of %d tensors", n);
    z->owned = z->slices + n;
    for (int u = 0; u < z->n_units; u++)
        for (int i = 0; i < z->units[u].n_tensors; i++, z->n_slices++) {
            const dt_tensor *t = &z->units[u].tensors[i];
            const dt_shards *s = zero_shards(&z->lay, u, t->part);
            const int64_t own = zero_own(z, u, t->part), charge = zero_charge(z, u, t->part);
            /* of what all ranks of the axis tp have alike, the first is in charge */
            const int64_t in_charge = t->split_whole > 0 || z->comm->mesh.tp.rank == 0 ? s->charge_len : 0;
            z->owned[z->n_slices] = slice_between(u, i, t, own, own + s->shard_len);
            z->slices[z->n_slices] = slice_between(u, i, t, charge, charge + in_charge);
        }
    return DT_OK;
}

int dt_zero_n_slices(const dt_zero *z) { return z->n_slices; }
const dt_slice *dt_zero_slices(const dt_zero *z) { return z->slices; }
const dt_slice *dt_zero_owned(const dt_zero *z) { return z->owned; }
const dt_unit *dt_zero_unit(const dt_zero *z, const dt_slice *p) { return &z->units[p->unit]; }
const dt_tensor *dt_zero_tensor(const dt_zero *z, const dt_slice *p) { return &dt_zero_unit(z, p)->tensors[p->tensor]; }

const dt_optimizer_ops *dt_zero_optimizer(const dt_zero *z) { return z->lay.has_grads ? z->opt.optimizer : NULL; }
int dt_zero_n_states(const dt_zero *z) { return DT_STATE_OPTIMIZER + z->lay.n_states; }
const char *dt_zero_state_name(const dt_zero *z, dt_state s)
{
    return s == DT_STATE_PARAM ? NULL : z->opt.optimizer->state_names[s - DT_STATE_OPTIMIZER];
}

bool dt_zero_has_state(const dt_zero *z, dt_state s, const dt_slice *p)
{
    return s == DT_STATE_PARAM || (z->lay.has_grads && dt_zero_tensor(z, p)->trainable);
}

/** Are its parameters stored in the master? */
static bool in_master(const dt_zero *z, const dt_slice *p)
{
    return z->lay.has_master && dt_zero_tensor(z, p)->part == DT_TRAINED;
}

dt_dtype dt_zero_state_dtype(const dt_zero *z, dt_state s, const dt_slice *p)
{
    return s == DT_STATE_PARAM && !in_master(z, p) ? z->lay.param_dtype[dt_zero_tensor(z, p)->part] : DT_F32;
}

/** The memory space of a state of a slice. */
static dt_memspace space_of(const dt_zero *z, dt_state s, const dt_slice *p)
{
    if (s == DT_STATE_PARAM && !in_master(z, p)) return z->lay.units[p->unit].part[dt_zero_tensor(z, p)->part].space;
    return z->lay.opt_space;
}

/** Address of element skip of a slice, in device or host memory; not for states in the file. */
static void *state_at(const dt_zero *z, dt_state s, const dt_slice *p, int64_t skip)
{
    const int64_t x = p->flat + skip;
    if (s != DT_STATE_PARAM) return zero_opt_at(z, &z->states[s - DT_STATE_OPTIMIZER], p->unit, x);
    return in_master(z, p) ? (void *)zero_opt_at(z, &z->master, p->unit, x)
                           : zero_param_at(z, p->unit, dt_zero_tensor(z, p)->part, x);
}

static int64_t in_file_at(const dt_zero *z, dt_state s, const dt_slice *p, int64_t skip)
{
    const int64_t x = p->flat + skip;
    if (s != DT_STATE_PARAM) return zero_state_in_file(z, 1 + s - DT_STATE_OPTIMIZER, p->unit, x);
    return in_master(z, p) ? zero_state_in_file(z, 0, p->unit, x)
                           : zero_param_in_file(z, p->unit, dt_zero_tensor(z, p)->part, x);
}

void *dt_zero_state_ptr(dt_zero *z, dt_state s, const dt_slice *p)
{
    if (s < 0 || s >= dt_zero_n_states(z) || !dt_zero_has_state(z, s, p)) return NULL;
    const dt_memspace space = space_of(z, s, p);
    return space == DT_IN_FILE || (space == DT_ON_DEVICE && !z->dev->ops->host_accessible) ? NULL
                                                                                           : state_at(z, s, p, 0);
}

static dt_err check_range(const dt_zero *z, dt_state s, const dt_slice *p, int64_t skip, int64_t n)
{
    DT_EXPECT(s >= 0 && s < dt_zero_n_states(z));
    DT_EXPECT(dt_zero_has_state(z, s, p));
    DT_EXPECT(skip >= 0 && n >= 0 && n <= p->n - skip);
    return DT_OK;
}

/** Copy elements to or from the device through pinned memory, in chunks. The caller's buffer may be any host memory,
 *  including the pinned buffer itself. */
static dt_err copy_staged(dt_zero *z, char *device, char *host, size_t nbytes, bool to_device)
{
    const bool is_pinned = host == z->host.ptr;
    for (size_t done = 0; done < nbytes; done += z->lay.host_bytes) {
        const size_t some = nbytes - done < z->lay.host_bytes ? nbytes - done : z->lay.host_bytes;
        if (to_device && !is_pinned) memcpy(z->host.ptr, host + done, some);
        DT_TRY(z->dev->ops->copy(z->dev, to_device ? device + done : z->host.ptr,
                                 to_device ? z->host.ptr : device + done, some, z->compute));
        DT_TRY(z->dev->ops->stream_sync(z->dev, z->compute));
        if (!to_device && !is_pinned) memcpy(host + done, z->host.ptr, some);
    }
    return DT_OK;
}

dt_err zero_move(dt_zero *z, dt_state s, const dt_slice *p, int64_t skip, int64_t n, void *host, bool write)
{
    const size_t nbytes = (size_t)n * dt_dtype_size(dt_zero_state_dtype(z, s, p));
    const dt_memspace space = space_of(z, s, p);
    if (space == DT_IN_FILE) {
        const int64_t at = in_file_at(z, s, p, skip);
        if (write) return dt_swap_write_bytes(z->file, at, host, nbytes);
        DT_TRY(zero_drain(z)); /* writes of the last update may still be in flight */
        return dt_swap_read_bytes(z->file, at, host, nbytes);
    }
    void *kept = state_at(z, s, p, skip);
    if (space == DT_ON_DEVICE && !z->dev->ops->host_accessible) return copy_staged(z, kept, host, nbytes, write);
    memcpy(write ? kept : host, write ? host : kept, nbytes);
    return DT_OK;
}

/* No ordering with the comm stream: an in-place gather does not change its source shard. */
dt_err dt_zero_state_read(dt_zero *z, dt_state s, const dt_slice *p, int64_t skip, int64_t n, void *host)
{
    DT_TRY(check_range(z, s, p, skip, n));
    return n == 0 ? DT_OK : zero_move(z, s, p, skip, n, host, false);
}

size_t dt_zero_saved_nbytes(const dt_zero *z, dt_part part) { return zero_saved_nbytes(&z->lay, part); }

dt_err dt_zero_state_fetch(dt_zero *z, dt_state s, const dt_slice *p, void *host, dt_stream *stream)
{
    DT_TRY(check_range(z, s, p, 0, p->n));
    if (p->n == 0) return DT_OK;
    const dt_memspace space = space_of(z, s, p);
    if (space == DT_IN_FILE) return zero_move(z, s, p, 0, p->n, host, false);
    const size_t nbytes = (size_t)p->n * dt_dtype_size(dt_zero_state_dtype(z, s, p));
    const bool away = space != DT_ON_DEVICE; /* in host memory, where copies complete before the call returns */
    dt_device *dev = away ? z->opt.host : z->dev;
    return dev->ops->copy(dev, host, state_at(z, s, p, 0), nbytes, away ? NULL : stream);
}

dt_err zero_before_write(dt_zero *z)
{
    DT_TRY(zero_compute_after_comm(z));
    DT_TRY(zero_offload_begin(z));
    return zero_forget(z);
}

dt_err dt_zero_state_write(dt_zero *z, dt_state s, const dt_slice *p, int64_t skip, int64_t n, const void *host)
{
    DT_TRY(check_range(z, s, p, skip, n));
    if (n == 0) return DT_OK;
    DT_TRY(zero_before_write(z));
    return zero_move(z, s, p, skip, n, (void *)host, true);
}

/** Clear states in host memory, or in the file through the host's scratch. */
static dt_err clear_offloaded(dt_zero *z)
{
    if (z->lay.opt_space != DT_IN_FILE) {
        for (int k = 0; k < z->lay.n_states; k++) memset(z->states[k].ptr, 0, z->states[k].nbytes);
        return DT_OK;
    }
    const int64_t from = z->lay.opt_len * (int64_t)sizeof(float), end = from * (1 + z->lay.n_states);
    memset(z->host.ptr, 0, z->lay.host_bytes);
    for (int64_t at = from; at < end; at += (int64_t)z->lay.host_bytes)
        DT_TRY(dt_swap_write_bytes(z->file, at, z->host.ptr, (size_t)dt_min_i64((int64_t)z->lay.host_bytes, end - at)));
    return DT_OK;
}

dt_err dt_zero_clear_states(dt_zero *z)
{
    DT_TRY(zero_before_write(z));
    if (z->lay.opt_space != DT_ON_DEVICE) return z->lay.n_states > 0 ? clear_offloaded(z) : DT_OK;
    for (int k = 0; k < z->lay.n_states; k++)
        DT_TRY(z->dev->ops->zero(z->dev, z->states[k].ptr, z->states[k].nbytes, z->compute));
    return DT_OK;
}

/* ---- derived copies ---------------------------------------------------------------------------------------------- */

/** Stage 0: every rank receives the states that the owners wrote. */
static dt_err gather_replicas(dt_zero *z, dt_err err)
{
    for (int u = 0; u < z->n_units; u++)
        for (int k = z->lay.has_master ? -1 : 0;
             !zero_is_empty(&z->lay, u, DT_TRAINED) && k < z->lay.n_states && err != DT_ERR_COMM; k++) {
            const dt_buf *kept = k < 0 ? &z->master : &z->states[k];
            err =
                zero_gather(z, zero_shards(&z->lay, u, DT_TRAINED), zero_opt_at(z, kept, u, zero_own(z, u, DT_TRAINED)),
                            zero_opt_at(z, kept, u, 0), DT_F32, err);
        }
    return err;
}

/** Gather the parameters of all parts from their owned shards. Trained parameters are first rounded from the master. */
static dt_err gather_all(dt_zero *z, dt_err err)
{
    const bool rounds = z->lay.has_master;
    err = rounds ? zero_update_units(z, NULL, err) : zero_first_err(err, dt_fault("zero.gather"));
    for (int u = 0; u < z->n_units; u++)
        for (int p = rounds ? DT_FROZEN : 0; p < DT_N_PARTS; p++)
            err = zero_gather_changed(z, u, (dt_part)p, z->compute, err);
    return err;
}

dt_err dt_zero_state_written(dt_zero *z)
{
    dt_err err = zero_comm_after_compute(z);
    if (z->lay.whole_opt) err = gather_replicas(z, err);
    if (err != DT_ERR_COMM) err = gather_all(z, err);
    z->in_micro = false;
    return err;
}
