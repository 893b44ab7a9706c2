/* zero.c - open and close. All model states and staging buffers are allocated here, from the layout (arrange.h). */
#include "zero_impl.h"
#include <stdlib.h>
#include <string.h>

int zero_list_memory(dt_zero *z, zero_memory list[ZERO_MAX_MEMORY])
{
    const zero_layout *l = &z->lay;
    const size_t grad = dt_dtype_size(l->grad_kept), half = sizeof(uint16_t);
    const dt_memspace updates = l->grads_down ? DT_ON_HOST : DT_ON_DEVICE;
    const zero_memory buffers[] = {
        {&z->grads, DT_MEM_GRADS, DT_ON_DEVICE, (size_t)l->grads_len * grad},
        {&z->host_grads, DT_MEM_GRADS, l->host_grad_space, l->grads_down ? (size_t)l->opt_len * grad : 0},
        {&z->grad_slots, DT_MEM_STAGING, DT_ON_DEVICE, ZERO_GRAD_SLOTS * (size_t)l->grad_slot_len * grad},
        {&z->grad_arena, DT_MEM_STAGING, DT_ON_DEVICE, l->grad_arena_bytes},
        {&z->bucket, DT_MEM_STAGING, DT_ON_DEVICE, l->bucket_bytes},
        {&z->results, DT_MEM_STAGING, DT_ON_DEVICE, l->results_bytes},
        {&z->watched, DT_MEM_STAGING, DT_ON_DEVICE, l->watched_bytes},
        {&z->scratch, DT_MEM_STAGING, updates, zero_scratch_nbytes(l)},
        {&z->direction, DT_MEM_STAGING, DT_ON_DEVICE, (size_t)l->direction_len * half},
        {&z->blocks, DT_MEM_STAGING, DT_ON_DEVICE, (size_t)l->blocks_len * half},
        {&z->owned_matrices, DT_MEM_STAGING, DT_ON_DEVICE, (size_t)l->owned_len * half},
        {&z->matrix_scratch, DT_MEM_STAGING, DT_ON_DEVICE, l->matrix_scratch_bytes},
        {&z->matrix_sums, DT_MEM_STAGING, DT_ON_DEVICE, (size_t)l->n_matrices * 16},
        {&z->host_direction, DT_MEM_STAGING, DT_ON_PINNED, l->grads_down ? (size_t)l->direction_len * half : 0},
        {&z->host, DT_MEM_STAGING, DT_ON_PINNED, l->host_bytes},
        {&z->up.memory, DT_MEM_STAGING, DT_ON_PINNED, zero_ring_bytes(l->n_buffers, l->up_bytes)},
        {&z->fetch.memory, DT_MEM_STAGING, DT_ON_PINNED, zero_ring_bytes(l->n_buffers, l->fetch_bytes)},
        {&z->swap.memory, DT_MEM_STAGING, DT_ON_HOST, zero_ring_bytes(l->n_buffers, l->swap_bytes)},
    };
    enum { N_BUFFERS = sizeof buffers / sizeof buffers[0] };
    _Static_assert(N_BUFFERS + 3 * DT_N_PARTS + ZERO_MAX_ARRAYS <= ZERO_MAX_MEMORY, "all buffers have room");
    int n = N_BUFFERS;
    memcpy(list, buffers, sizeof buffers);
    for (int p = 0; p < DT_N_PARTS; p++) {
        const size_t size = dt_dtype_size(l->param_dtype[p]);
        list[n++] = (zero_memory){&z->params[p], DT_MEM_PARAMS, DT_ON_DEVICE, (size_t)l->params_len[p] * size};
        list[n++] = (zero_memory){&z->param_arena[p], DT_MEM_STAGING, DT_ON_DEVICE, l->param_arena_bytes[p]};
        if (l->away_space != DT_IN_FILE)
            list[n++] = (zero_memory){&z->away[p], DT_MEM_PARAMS, l->away_space, (size_t)l->away_len[p] * size};
    }
    for (int a = 0; a < l->n_arrays; a++)
        if (l->array[a].space != DT_IN_FILE)
            list[n++] = (zero_memory){&z->array[a], DT_MEM_OPTIMIZER, l->array[a].space, zero_array_nbytes(l, a)};
    return n;
}

/* States are zeroed: optimizer states before the first step, and padding always. */
static dt_err alloc_memory(dt_zero *z)
{
    zero_memory list[ZERO_MAX_MEMORY];
    for (int i = 0, n = zero_list_memory(z, list); i < n; i++) {
        const zero_memory *m = &list[i];
        if (m->nbytes == 0) continue; /* z->opt.host may be missing */
        const bool zeroed = m->category != DT_MEM_STAGING || m->buf == &z->watched;
        dt_err (*alloc)(dt_buf *, dt_device *, dt_memspace, size_t, dt_memcat) =
            zeroed ? dt_buf_alloc_zeroed : dt_buf_alloc;
        DT_TRY(alloc(m->buf, zero_memory_of(z, m->space), m->space, m->nbytes, m->category));
    }
    return DT_OK;
}

static dt_err make_streams(dt_zero *z)
{
    const dt_device_ops *ops = z->dev->ops;
    z->comm_stream = z->compute;
    z->gather_in_update = !z->lay.whole_grads || ops->host_accessible;
    if (z->opt.overlap_comm) {
        DT_TRY(dt_stream_open(z->dev, &z->comm_stream, "communication"));
        z->own_stream = true;
    }
    DT_TRY(ops->event_create(z->dev, &z->mark));
    for (int u = 0; u < z->n_units; u++) {
        for (int p = 0; p < DT_N_PARTS; p++)
            if (!zero_is_empty(&z->lay, u, (dt_part)p))
                DT_TRY(ops->event_create(z->dev, &z->state[u].part[p].gathered));
        DT_TRY(ops->event_create(z->dev, &z->state[u].reduced));
    }
    return DT_OK;
}

static dt_err open_local(dt_zero *z)
{
    DT_ALLOC(z->state, z->n_units, "out of memory for the states of %d units", z->n_units);
    DT_ALLOC(z->in_arena, 2 * (size_t)z->n_units, "out of memory for the states of %d units", z->n_units);
    z->in_grads = z->in_arena + z->n_units;
    DT_EXPECT(!zero_offloads(z) || (z->opt.host && z->opt.host->ops->host_accessible));
    DT_TRY(make_streams(z));
    DT_TRY(zero_slices_make(z));
    DT_TRY(alloc_memory(z));
    return zero_offload_open(z);
}

dt_err dt_zero_open(dt_zero **out, const dt_zero_options *opt, const dt_unit *units, int n_units, dt_comm *comm,
                    dt_device *dev, dt_stream *compute, dt_phase *phase)
{
    *out = NULL;
    dt_zero *z = calloc(1, sizeof *z);
    dt_err err = z ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for dt_zero");
    if (z) {
        *z = (dt_zero){.opt = *opt,
                       .units = units,
                       .n_units = n_units,
                       .comm = comm,
                       .sum = &comm->mesh.sum,
                       .shard = &comm->mesh.shard,
                       .replicate = &comm->mesh.replicate,
                       .dev = dev,
                       .compute = compute,
                       .phase = phase,
                       .at = ZERO_NOWHERE};
        err = zero_layout_make(&z->lay, opt, units, n_units, z->sum->size);
        if (err == DT_OK && z->lay.n_groups != z->replicate->size)
            err = dt_fail(DT_ERR_ARG, "internal: dt_zero_open: states in %d groups, but ranks in %d groups",
                          z->lay.n_groups, z->replicate->size);
        if (err == DT_OK) err = open_local(z);
    }
    err = dt_comm_agree(comm, err); /* one rank alone may run out of memory */
    if (err != DT_OK) {
        dt_zero_close(z);
        return err;
    }
    *out = z;
    return DT_OK;
}

static void destroy_streams(dt_zero *z)
{
    const dt_device_ops *ops = z->dev->ops;
    for (int u = 0; z->state && u < z->n_units; u++) {
        for (int p = 0; p < DT_N_PARTS; p++)
            if (z->state[u].part[p].gathered) ops->event_destroy(z->dev, z->state[u].part[p].gathered);
        if (z->state[u].reduced) ops->event_destroy(z->dev, z->state[u].reduced);
    }
    if (z->mark) ops->event_destroy(z->dev, z->mark);
    if (z->own_stream) dt_stream_close(z->dev, z->comm_stream);
}

/* The last update and its gather may still be in flight. */
static void wait_for_streams(dt_zero *z)
{
    (void)z->dev->ops->stream_sync(z->dev, z->compute);
    if (z->own_stream) (void)z->dev->ops->stream_sync(z->dev, z->comm_stream);
}

void dt_zero_close(dt_zero *z)
{
    if (!z) return;
    wait_for_streams(z);
    zero_offload_close(z);
    destroy_streams(z);
    zero_memory list[ZERO_MAX_MEMORY];
    for (int i = 0, n = zero_list_memory(z, list); i < n; i++) dt_buf_free(list[i].buf);
    zero_layout_free(&z->lay);
    zero_slices_free(z);
    free(z->state);
    free(z->in_arena);
    free(z);
}

dt_param_source dt_zero_source(dt_zero *z)
{
    return (dt_param_source){.self = z,
                             .params_acquire = zero_params_acquire,
                             .params_release = zero_params_release,
                             .grads_acquire = zero_grads_acquire,
                             .grads_release = zero_grads_release,
                             .params_resident = zero_params_resident};
}
