/* zero.c - open and close. All model states and staging buffers are allocated here, from the layout (arrange.h). */
#include "zero_impl.h"
#include <stdlib.h>
#include <string.h>

static dt_err alloc_state(dt_zero *z, dt_buf *buf, int64_t len, dt_dtype dtype, dt_memcat category)
{
    return dt_buf_alloc_zeroed(buf, z->dev, DT_ON_DEVICE, (size_t)len * dt_dtype_size(dtype), category);
}

/* Allocate the master or a state. Files start as zeros too. */
static dt_err alloc_array(dt_zero *z, int a)
{
    const dt_memspace space = z->lay.array[a].space;
    if (space == DT_IN_FILE) return DT_OK;
    return dt_buf_alloc_zeroed(&z->array[a], zero_memory_of(z, space), space, zero_array_nbytes(&z->lay, a),
                               DT_MEM_OPTIMIZER);
}

/* All buffers are zeroed: optimizer states before the first step, and padding always. */
static dt_err alloc_states(dt_zero *z)
{
    const zero_layout *l = &z->lay;
    for (int p = 0; p < DT_N_PARTS; p++)
        DT_TRY(alloc_state(z, &z->params[p], l->params_len[p], l->param_dtype[p], DT_MEM_PARAMS));
    DT_TRY(alloc_state(z, &z->grads, l->grads_len, l->grad_kept, DT_MEM_GRADS));
    for (int a = 0; a < l->n_arrays; a++) DT_TRY(alloc_array(z, a));
    return DT_OK;
}

/* A buffer whose contents need no initial value. */
typedef struct staging {
    dt_buf *buf;
    dt_memspace space;
    size_t nbytes;
} staging;
enum { N_STAGING = 10 + DT_N_PARTS };

static void list_staging(dt_zero *z, staging list[N_STAGING])
{
    const zero_layout *l = &z->lay;
    const dt_memspace updates = l->grads_down ? DT_ON_HOST : DT_ON_DEVICE;
    const staging buffers[N_STAGING - DT_N_PARTS] = {
        {&z->grad_arena, DT_ON_DEVICE, l->grad_arena_bytes},
        {&z->bucket, DT_ON_DEVICE, l->bucket_bytes},
        {&z->results, DT_ON_DEVICE, l->results_bytes},
        {&z->scratch, updates, zero_scratch_nbytes(l)},
        {&z->direction, DT_ON_DEVICE, (size_t)l->direction_len * sizeof(uint16_t)},
        {&z->owned_matrices, DT_ON_DEVICE, (size_t)l->owned_len * sizeof(uint16_t)},
        {&z->matrix_scratch, DT_ON_DEVICE, l->matrix_scratch_bytes},
        {&z->matrix_sums, DT_ON_DEVICE, (size_t)l->n_matrices * 16},
        {&z->host_direction, DT_ON_PINNED, l->grads_down ? (size_t)l->direction_shard_len * sizeof(uint16_t) : 0},
        {&z->host, DT_ON_PINNED, l->host_bytes},
    };
    for (int p = 0; p < DT_N_PARTS; p++) list[p] = (staging){&z->param_arena[p], DT_ON_DEVICE, l->param_arena_bytes[p]};
    memcpy(list + DT_N_PARTS, buffers, sizeof buffers);
}

static dt_err alloc_staging(dt_zero *z)
{
    staging list[N_STAGING];
    list_staging(z, list);
    for (int i = 0; i < N_STAGING; i++)
        DT_TRY(
            dt_buf_alloc(list[i].buf, zero_memory_of(z, list[i].space), list[i].space, list[i].nbytes, DT_MEM_STAGING));
    return dt_buf_alloc_zeroed(&z->watched, z->dev, DT_ON_DEVICE, z->lay.watched_bytes, DT_MEM_STAGING);
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
    DT_EXPECT(!zero_offloads(z) || (z->opt.host && z->opt.host->ops->host_accessible));
    DT_TRY(make_streams(z));
    DT_TRY(zero_slices_make(z));
    DT_TRY(alloc_states(z));
    DT_TRY(alloc_staging(z));
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
                       .last_unit = -1,
                       .before_last = -1};
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
    staging list[N_STAGING];
    list_staging(z, list);
    for (int i = 0; i < N_STAGING; i++) dt_buf_free(list[i].buf);
    for (int p = 0; p < DT_N_PARTS; p++) dt_buf_free(&z->params[p]);
    for (int a = 0; a < ZERO_MAX_ARRAYS; a++) dt_buf_free(&z->array[a]);
    dt_buf_free(&z->grads);
    dt_buf_free(&z->watched);
    zero_layout_free(&z->lay);
    zero_slices_free(z);
    free(z->state);
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
