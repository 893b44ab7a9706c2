/* states.c - states by name: the slices of named tensors that a rank is in charge of, and host access for checkpoints.
 *
 * Exactly one rank is in charge of each element, at every stage, and writes it into checkpoints. Every owner of a shard
 * reads it from a checkpoint. */
#include "dtrain/device/block8.h"
#include "zero_impl.h"
#include <stdlib.h>
#include <string.h>

static bool has_scales(const dt_zero *z) { return z->lay.n_states > 0 && z->lay.state_dtype == DT_I8; }
static bool has_packed(const dt_zero *z)
{
    for (int a = 0; a < z->lay.n_arrays; a++)
        if (z->lay.array[a].packed) return true;
    return false;
}
/** Is it the scales of a state? */
static bool is_scale(const dt_zero *z, dt_state s) { return s >= DT_STATE_OPTIMIZER + z->lay.n_states; }

/** Intersection of a tensor with elements begin .. end-1 of its part. */
static dt_slice slice_between(int unit, int tensor, const dt_tensor *t, int64_t begin, int64_t end)
{
    const int64_t lo = dt_max_i64(t->offset, begin), hi = dt_min_i64(t->offset + t->n_elems, end);
    if (lo >= hi) return (dt_slice){.unit = unit, .tensor = tensor, .flat = begin}; /* empty intersection */
    return (dt_slice){.unit = unit, .tensor = tensor, .first = lo - t->offset, .n = hi - lo, .flat = lo};
}

/** The blocks of 8-bit states in a slice of a tensor. Both begin at multiples of a block. */
static dt_slice blocks_of(const dt_slice *p)
{
    dt_slice blocks = *p;
    blocks.scales = true;
    blocks.first = p->first / DT_BLOCK8, blocks.n = dt_ceil_div(p->n, DT_BLOCK8);
    return blocks;
}

/** Tables of the scales: slices and tensors of blocks. */
static dt_err make_scales(dt_zero *z)
{
    DT_ALLOC(z->scale_tensors, z->n_units, "out of memory for tables of %d units", z->n_units);
    for (int i = 0; i < z->n_slices; i++) {
        z->scale_slices[i] = blocks_of(&z->slices[i]);
        z->scale_owned[i] = blocks_of(&z->state_owned[i]);
    }
    for (int u = 0; u < z->n_units; u++) {
        const int n = z->units[u].n_tensors;
        DT_ALLOC(z->scale_tensors[u], n + 1, "out of memory for the table of %d tensors", n);
        for (int i = 0; i < n; i++) {
            dt_tensor *t = &z->scale_tensors[u][i];
            *t = z->units[u].tensors[i];
            DT_EXPECT(t->split_whole == 0); /* blocks of a part are not blocks of the whole tensor */
            t->n_dims = 1;
            t->n_elems = t->shape[0] = dt_ceil_div(t->n_elems, DT_BLOCK8);
        }
    }
    for (int k = 0; k < z->lay.n_states; k++)
        snprintf(z->scale_names[k], DT_NAME_MAX, "%s_absmax", z->opt.optimizer->state_names[k]);
    return DT_OK;
}

dt_err zero_slices_make(dt_zero *z)
{
    int n = 0;
    for (int u = 0; u < z->n_units; u++) n += z->units[u].n_tensors;
    DT_ALLOC(z->slices, 5 * (size_t)n + 1, "out of memory for the table of %d tensors", n);
    z->owned = z->slices + n, z->state_owned = z->owned + n;
    z->scale_slices = z->state_owned + n, z->scale_owned = z->scale_slices + n;
    const bool owns_all = z->lay.whole_opt && has_packed(z);
    for (int u = 0; u < z->n_units; u++)
        for (int i = 0; i < z->units[u].n_tensors; i++, z->n_slices++) {
            const dt_tensor *t = &z->units[u].tensors[i];
            const dt_shards *s = zero_shards(&z->lay, u, t->part);
            const int64_t own = zero_own(z, u, t->part), charge = zero_charge(z, u, t->part);
            /* if all ranks of the axis tp have the same, the first is in charge */
            const int64_t in_charge = t->split_whole > 0 || dt_comm_first_of_parts(z->comm) ? s->charge_len : 0;
            z->owned[z->n_slices] = slice_between(u, i, t, own, own + s->shard_len);
            z->slices[z->n_slices] = slice_between(u, i, t, charge, charge + in_charge);
            z->state_owned[z->n_slices] = owns_all ? slice_between(u, i, t, 0, s->padded_len) : z->owned[z->n_slices];
        }
    return has_scales(z) ? make_scales(z) : DT_OK;
}

void zero_slices_free(dt_zero *z)
{
    for (int u = 0; z->scale_tensors && u < z->n_units; u++) free(z->scale_tensors[u]);
    free(z->scale_tensors);
    free(z->slices);
}

int dt_zero_n_slices(const dt_zero *z) { return z->n_slices; }
const dt_slice *dt_zero_slices(const dt_zero *z) { return z->slices; }
const dt_slice *dt_zero_owned(const dt_zero *z) { return z->owned; }
const dt_slice *dt_zero_slices_of(const dt_zero *z, dt_state s) { return is_scale(z, s) ? z->scale_slices : z->slices; }
const dt_slice *dt_zero_owned_of(const dt_zero *z, dt_state s)
{
    return s == DT_STATE_PARAM ? z->owned : is_scale(z, s) ? z->scale_owned : z->state_owned;
}
const dt_unit *dt_zero_unit(const dt_zero *z, const dt_slice *p) { return &z->units[p->unit]; }
const dt_tensor *dt_zero_tensor(const dt_zero *z, const dt_slice *p)
{
    return p->scales ? &z->scale_tensors[p->unit][p->tensor] : &dt_zero_unit(z, p)->tensors[p->tensor];
}

const dt_optimizer_ops *dt_zero_optimizer(const dt_zero *z) { return z->lay.has_grads ? z->opt.optimizer : NULL; }
dt_dtype dt_zero_state_type(const dt_zero *z) { return z->opt.state_dtype; }
int dt_zero_n_states(const dt_zero *z) { return DT_STATE_OPTIMIZER + z->lay.n_states * (1 + has_scales(z)); }
const char *dt_zero_state_name(const dt_zero *z, dt_state s)
{
    if (is_scale(z, s)) return z->scale_names[s - DT_STATE_OPTIMIZER - z->lay.n_states];
    return s == DT_STATE_PARAM ? NULL : z->opt.optimizer->state_names[s - DT_STATE_OPTIMIZER];
}

/** Are the states of its tensor fp32 for any state_dtype? */
static bool is_plain(const dt_zero *z, const dt_slice *p)
{
    return dt_zero_keeps_fp32(z->lay.state_dtype, &z->units[p->unit].tensors[p->tensor]);
}

bool dt_zero_has_state(const dt_zero *z, dt_state s, const dt_slice *p)
{
    if (is_scale(z, s) != p->scales) return false;
    if (s == DT_STATE_PARAM) return true;
    const dt_unit *unit = &z->units[p->unit];
    const dt_tensor *t = &unit->tensors[p->tensor];
    const int k = (s - DT_STATE_OPTIMIZER) % (z->lay.n_states ? z->lay.n_states : 1);
    return z->lay.has_grads && t->trainable && (dt_optimizer_states_of(z->opt.optimizer, t) >> k & 1) &&
           !(is_scale(z, s) && is_plain(z, p));
}

/** The array that stores a state of a slice; -1: a parameter without a master. */
static int array_of(const dt_zero *z, dt_state s, const dt_slice *p)
{
    const int k = s - DT_STATE_OPTIMIZER;
    if (s == DT_STATE_PARAM) return z->lay.has_master && dt_zero_tensor(z, p)->part == DT_TRAINED ? ZERO_MASTER : -1;
    if (is_scale(z, s)) return zero_scale_array(&z->lay, k - z->lay.n_states);
    return is_plain(z, p) ? zero_plain_array(&z->lay, k) : zero_state_array(k);
}

dt_dtype dt_zero_state_dtype(const dt_zero *z, dt_state s, const dt_slice *p)
{
    const int a = array_of(z, s, p);
    return a < 0 ? z->lay.param_dtype[dt_zero_tensor(z, p)->part] : z->lay.array[a].dtype;
}

/** The memory space of a state of a slice. */
static dt_memspace space_of(const dt_zero *z, dt_state s, const dt_slice *p)
{
    const int a = array_of(z, s, p);
    return a < 0 ? z->lay.units[p->unit].part[dt_zero_tensor(z, p)->part].space : z->lay.array[a].space;
}

/** Address of element skip of a slice, in device or host memory; not for states in the file. */
static void *state_at(const dt_zero *z, dt_state s, const dt_slice *p, int64_t skip)
{
    const int a = array_of(z, s, p);
    const int64_t x = p->flat + skip * (p->scales ? DT_BLOCK8 : 1);
    return a < 0 ? zero_param_at(z, p->unit, dt_zero_tensor(z, p)->part, x) : zero_entry_at(z, a, p->unit, x);
}

static int64_t in_file_at(const dt_zero *z, dt_state s, const dt_slice *p, int64_t skip)
{
    const int a = array_of(z, s, p);
    const int64_t x = p->flat + skip;
    return a < 0 ? zero_param_in_file(z, p->unit, dt_zero_tensor(z, p)->part, x) : zero_entry_in_file(z, a, p->unit, x);
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

/** Clear the states in the file, which follow the master, through the host's scratch. */
static dt_err clear_file(dt_zero *z)
{
    const int64_t end = (int64_t)zero_arrays_nbytes(&z->lay, DT_IN_FILE, z->lay.n_arrays);
    memset(z->host.ptr, 0, z->lay.host_bytes);
    for (int64_t at = (int64_t)zero_arrays_nbytes(&z->lay, DT_IN_FILE, 1); at < end; at += (int64_t)z->lay.host_bytes)
        DT_TRY(dt_swap_write_bytes(z->file, at, z->host.ptr, (size_t)dt_min_i64((int64_t)z->lay.host_bytes, end - at)));
    return DT_OK;
}

dt_err dt_zero_clear_states(dt_zero *z)
{
    DT_TRY(zero_before_write(z));
    for (int a = 1; a < z->lay.n_arrays; a++) {
        dt_buf *b = &z->array[a];
        if (!b->ptr) continue;
        if (z->lay.array[a].space == DT_ON_DEVICE)
            DT_TRY(z->dev->ops->zero(z->dev, b->ptr, b->nbytes, z->compute));
        else
            memset(b->ptr, 0, b->nbytes);
    }
    return clear_file(z);
}

/* ---- derived copies ---------------------------------------------------------------------------------------------- */

/** Stage 0: every rank receives the states that the owners wrote. Packed arrays have no shards: every rank owns all of
 *  them. */
static dt_err gather_replicas(dt_zero *z, dt_err err)
{
    for (int u = 0; u < z->n_units; u++)
        for (int a = z->lay.has_master ? ZERO_MASTER : 1; a < z->lay.n_arrays && err != DT_ERR_COMM; a++) {
            dt_shards shards = *zero_shards(&z->lay, u, DT_TRAINED);
            const zero_array *array = &z->lay.array[a];
            if (shards.flat_len == 0 || array->packed) continue;
            shards.shard_len /= array->per;
            err = zero_gather(z, &shards, zero_entry_at(z, a, u, zero_own(z, u, DT_TRAINED)), zero_entry_at(z, a, u, 0),
                              array->dtype, err);
        }
    return err;
}

/** Gather the parameters of all parts from their owned shards. Trained parameters are first rounded from the master. */
static dt_err gather_all(dt_zero *z, dt_err err)
{
    const bool rounds = z->lay.has_master;
    err = rounds ? zero_update_units(z, NULL, err) : dt_first_err(err, dt_fault("zero.gather"));
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
