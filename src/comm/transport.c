/* transport.c - the transport "mpi": its buffers, and staging for devices whose memory the host cannot access.
 *
 * Reductions and gathers are written for host memory (transport_reduce.c, transport_gather.c). For another device a
 * chunk is copied to pinned memory on the caller's stream, after the work that produces it. It is exchanged there and
 * copied back on that stream, before the work that needs it. transport_exchange.c stages its messages likewise.
 *
 * The host waits once, for the data to send. An event makes the next user of the pinned buffer, on any stream, wait for
 * the copies back. This serves ranks that share a GPU and machines without a better transport. Copies do not overlap
 * the exchange.
 *
 * Buffers are allocated once, when the transport is attached: a collective allocates nothing. */
#include "transport.h"
#include <omp.h>
#include <stdlib.h>

enum {
    SLOT_NBYTES = 1 << 20,  /* two of them fit in the L2 cache of usual server cores */
    NET_NBYTES = 8 << 20,   /* target size of a set of messages */
    MESSAGE_MIN = 32 << 10, /* below, latency dominates the cost of a message */
    MESSAGE_MAX = 1 << 20,
    STREAM_NBYTES = 8 << 20, /* larger than a core's cache, in addition to the slots */
    PINNED_NBYTES = 16 << 20,
    PINNED_MIN_PER_RANK = 64 << 10,
    LINE = 64
};

static size_t clamp(size_t x, size_t low, size_t high) { return x < low ? low : x > high ? high : x; }

/** Choose the route of an axis. net_set_nbytes: upper limit of a set of messages, from values that all ranks share.
 *  Returns the number of messages in a set. */
static size_t plan_route(const dt_axis *a, bool shared_memory, size_t net_set_nbytes, dt_route *r)
{
    r->shared = shared_memory && a->max_local > 1;
    r->hierarchical = r->shared && a->n_nodes > 1 && a->max_local == a->min_local;
    const size_t n_far_max = (size_t)(a->size - (r->shared ? a->min_local : 1)), line = LINE * sizeof(float);
    const size_t n = r->hierarchical && 2 * (size_t)a->n_nodes > n_far_max ? 2 * (size_t)a->n_nodes : n_far_max;
    r->message_nbytes = n ? clamp(NET_NBYTES / n, MESSAGE_MIN, MESSAGE_MAX) / line * line : 0;
    if (n * r->message_nbytes > net_set_nbytes) r->message_nbytes = net_set_nbytes / n / line * line;
    return n;
}

/** Buffers for all axes have the size that the whole run needs. Sets n_requests and net_set_nbytes. */
static void plan(const dt_axis *world, bool shared_memory, dt_transport *t)
{
    dt_route r = {0};
    const size_t n = plan_route(world, shared_memory, SIZE_MAX, &r);
    t->net_set_nbytes = n * r.message_nbytes;
    t->n_requests = 2 * (int)n;
}

/* Size of the pinned buffer for tensors of a device that the host cannot access. */
static size_t pinned_nbytes(int nranks, bool host_accessible)
{
    return host_accessible || nranks == 1 ? 0
                                          : clamp(PINNED_NBYTES, (size_t)(nranks + 2) * PINNED_MIN_PER_RANK, SIZE_MAX);
}

/* Windows of a rank: one for each axis whose ranks on a node are another division of its ranks (mesh.c). */
static int n_windows(const dt_comm_shape *shape, int max_local)
{
    const dt_team team = dt_team_of(&shape->mesh);
    if (!shape->shared_memory) return 0;
    int n = (dt_mesh_sum(&shape->mesh, max_local) > 1) + (team.n_parts > 1 && max_local > 1) +
            (team.n_tokens > 1 && dt_mesh_data(&shape->mesh, max_local) > 1);
    for (int k = 0; k < DT_N_TEAM_AXES; k++) n += team.size[k] > 1;
    return n;
}

dt_memory dt_comm_mpi_plan(const dt_comm_shape *shape, bool host_accessible)
{
    const int nranks = shape->nranks, ranks_per_node = shape->ranks_per_node, rest = nranks % ranks_per_node;
    const dt_axis world = {.size = nranks,
                           .n_nodes = (nranks + ranks_per_node - 1) / ranks_per_node,
                           .max_local = nranks < ranks_per_node ? nranks : ranks_per_node,
                           .min_local = rest ? rest : ranks_per_node};
    dt_transport t = {0};
    plan(&world, shape->shared_memory, &t);
    dt_memory memory = {0};
    memory.at[DT_MEM_STAGING][DT_ON_PINNED] = pinned_nbytes(nranks, host_accessible);
    memory.at[DT_MEM_STAGING][DT_ON_HOST] =
        2 * t.net_set_nbytes + (size_t)n_windows(shape, world.max_local) * dt_shm_window_nbytes(SLOT_NBYTES);
    return memory;
}

/* All messages of an axis fit in the buffers of the whole run, because its members are a part of the run's ranks. */
static dt_err plan_routes(dt_comm *comm, dt_transport *t, bool shared)
{
    const int threads = omp_get_max_threads(), cores = comm->mpi->cores_per_rank;
    plan(&comm->mesh.world, shared, t);
    t->n_threads = threads < cores ? threads : cores > 0 ? cores : 1;
    t->stream_nbytes = STREAM_NBYTES;
    for (int i = 0; i < DT_N_AXES; i++) {
        dt_axis *a = &comm->mesh.axis[i];
        dt_route *r;
        DT_ALLOC(r, 1, "out of memory for the transport");
        a->route = r;
        const int n = (int)plan_route(a, shared && a->window >= 0, t->net_set_nbytes, r);
        if (2 * n > t->n_requests) t->n_requests = 2 * n;
        if (a->size > t->n_requests) t->n_requests = a->size;
        r->shm = &t->windows[r->shared ? a->window : i];
        r->n_far = a->size - (r->shared ? a->local_size : 1);
    }
    return DT_OK;
}

static dt_err alloc_buffers(dt_comm *comm, dt_transport *t)
{
    DT_TRY(dt_buf_alloc(&t->net, comm->dev, DT_ON_HOST, 2 * t->net_set_nbytes, DT_MEM_STAGING));
    DT_TRY(dt_buf_alloc(&t->pinned, comm->dev, DT_ON_PINNED,
                        pinned_nbytes(comm->nranks, comm->dev->ops->host_accessible), DT_MEM_STAGING));
    DT_TRY(comm->dev->ops->event_create(comm->dev, &t->returned));
    DT_ALLOC(t->src, comm->nranks, "out of memory for the tables of %d ranks", comm->nranks);
    DT_ALLOC(t->requests, 2 * t->n_requests + 1, "out of memory for the tables of %d ranks", comm->nranks);
    for (int i = 0; i < 2 * t->n_requests; i++) t->requests[i] = MPI_REQUEST_NULL;
    return DT_OK;
}

static void free_buffers(dt_comm *comm, dt_transport *t)
{
    if (t->returned) {
        (void)comm->dev->ops->event_sync(comm->dev, t->returned);
        comm->dev->ops->event_destroy(comm->dev, t->returned);
    }
    dt_buf_free(&t->net);
    dt_buf_free(&t->pinned);
    free(t->src);
    free(t->requests);
    for (int i = 0; i < DT_N_AXES; i++) {
        dt_shm_close(&t->windows[i]);
        free(comm->mesh.axis[i].route);
        comm->mesh.axis[i].route = NULL;
    }
    free(t);
}

static void count_windows(const dt_comm *comm, const dt_transport *t, bool add)
{
    size_t nbytes = 0;
    for (int i = 0; i < DT_N_AXES; i++) nbytes += t->windows[i].window_nbytes;
    if (!comm->dev->ledger || nbytes == 0) return;
    if (add)
        dt_ledger_add(comm->dev->ledger, DT_MEM_STAGING, DT_ON_HOST, nbytes);
    else
        dt_ledger_sub(comm->dev->ledger, DT_MEM_STAGING, DT_ON_HOST, nbytes);
}

/* A window for each different division of a node's ranks. If one cannot be opened, none is used. */
static dt_err open_windows(dt_comm *comm, dt_transport *t, bool *shared)
{
    for (int i = 0; i < DT_N_AXES; i++)
        t->windows[i] = (dt_shm){.n = 1, .progress = MPI_COMM_NULL, .slot_nbytes = SLOT_NBYTES};
    *shared = comm->use_shared_memory && comm->mesh.world.max_local > 1;
    for (int i = 0; i < DT_N_AXES && *shared; i++) {
        const dt_axis *a = &comm->mesh.axis[i];
        if (a->window == i && a->size > 1) DT_TRY(dt_shm_open(&t->windows[i], a, SLOT_NBYTES, shared));
    }
    for (int i = 0; i < DT_N_AXES && !*shared; i++) dt_shm_close(&t->windows[i]);
    return DT_OK;
}

static dt_err mpi_open(dt_comm *comm)
{
    dt_transport *t = calloc(1, sizeof *t);
    bool shared = false;
    dt_err err = dt_comm_agree(comm, t ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the transport"));
    if (err != DT_OK) {
        free(t);
        return err;
    }
    err = open_windows(comm, t, &shared);
    if (err == DT_OK) {
        err = plan_routes(comm, t, shared);
        if (err == DT_OK) err = alloc_buffers(comm, t);
        err = dt_comm_agree(comm, err);
    }
    if (err != DT_OK) {
        free_buffers(comm, t);
        return err;
    }
    count_windows(comm, t, true);
    comm->impl = t;
    return DT_OK;
}

static void mpi_close(dt_comm *comm)
{
    dt_transport *t = comm->impl;
    count_windows(comm, t, false);
    free_buffers(comm, t);
    comm->impl = NULL;
}

/* ---- devices whose memory the host cannot access ----------------------------------------------------------------- */

static dt_err copy_on(dt_comm *comm, void *dst, const void *src, size_t nbytes, dt_stream *stream)
{
    return comm->dev->ops->copy(comm->dev, dst, src, nbytes, stream);
}

static dt_err sync(dt_comm *comm, dt_stream *stream) { return comm->dev->ops->stream_sync(comm->dev, stream); }

static dt_err staged_reduce_scatter(const dt_axis *axis, const dt_reduction *d, dt_stream *stream)
{
    dt_comm *comm = axis->comm;
    const dt_transport *t = dt_transport_of(axis);
    const size_t elem = dt_dtype_size(d->send_dt), recv_elem = dt_dtype_size(d->recv_dt);
    const size_t n_blocks = d->stride ? (size_t)axis->size : 1;
    char *blocks = t->pinned.ptr;
    const int64_t per_round = (int64_t)(t->pinned.nbytes / ((size_t)axis->size * elem + recv_elem)) / LINE * LINE;
    char *sum = blocks + (size_t)per_round * (size_t)axis->size * elem;
    dt_err err = dt_transport_take_pinned(axis, stream);
    for (int64_t done = 0; done < d->count && err != DT_ERR_COMM; done += per_round) {
        const int64_t n = d->count - done < per_round ? d->count - done : per_round;
        const size_t nbytes = (size_t)n * elem, recv_nbytes = (size_t)n * recv_elem;
        char *to = (char *)d->recv + (size_t)done * recv_elem;
        for (size_t b = 0; b < n_blocks; b++)
            err = dt_first_err(err, copy_on(comm, blocks + b * nbytes,
                                            (const char *)d->send + (b * (size_t)d->stride + (size_t)done) * elem,
                                            nbytes, stream));
        if (d->accumulate) err = dt_first_err(err, copy_on(comm, sum, to, recv_nbytes, stream));
        err = dt_first_err(err, sync(comm, stream));
        dt_reduction part = *d;
        part.send = blocks, part.recv = sum, part.count = n, part.stride = d->stride ? n : 0;
        err = dt_first_err(err, dt_transport_reduce_scatter(axis, &part));
        err = dt_first_err(err, copy_on(comm, to, sum, recv_nbytes, stream));
    }
    return dt_first_err(err, dt_transport_give_pinned(axis, stream));
}

static dt_err staged_all_gather(const dt_axis *axis, const char *send, char *recv, size_t stride, size_t nbytes,
                                dt_stream *stream)
{
    dt_comm *comm = axis->comm;
    const dt_transport *t = dt_transport_of(axis);
    char *blocks = t->pinned.ptr;
    const size_t per_round = t->pinned.nbytes / (size_t)axis->size / LINE * LINE;
    dt_err err = dt_transport_take_pinned(axis, stream);
    for (size_t done = 0; done < nbytes && err != DT_ERR_COMM; done += per_round) {
        const size_t n = nbytes - done < per_round ? nbytes - done : per_round;
        char *mine = blocks + (size_t)axis->rank * n;
        err = dt_first_err(err, copy_on(comm, mine, send + done, n, stream));
        err = dt_first_err(err, sync(comm, stream));
        err = dt_first_err(err, dt_transport_all_gather(axis, mine, blocks, n, n));
        for (size_t r = 0; r < (size_t)axis->size; r++)
            if (recv + r * stride != send)
                err = dt_first_err(err, copy_on(comm, recv + r * stride + done, blocks + r * n, n, stream));
    }
    return dt_first_err(err, dt_transport_give_pinned(axis, stream));
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* With one rank nothing leaves the device. */
static dt_err mpi_reduce_scatter(const dt_axis *axis, const dt_reduction *d, dt_stream *stream)
{
    dt_device *dev = axis->comm->dev;
    if (axis->size == 1 && d->send == d->recv) return DT_OK;
    if (axis->size == 1)
        return dev->ops->add_into(dev, d->send, d->send_dt, d->recv, d->recv_dt, d->accumulate, d->count, stream);
    if (!dev->ops->host_accessible) return staged_reduce_scatter(axis, d, stream);
    return dt_transport_reduce_scatter(axis, d);
}

static dt_err mpi_all_gather(const dt_axis *axis, const char *kind, const void *send, void *recv, size_t stride,
                             size_t nbytes, dt_stream *stream)
{
    (void)kind;
    if (axis->size == 1) return copy_on(axis->comm, recv, send, nbytes, stream);
    if (!axis->comm->dev->ops->host_accessible) return staged_all_gather(axis, send, recv, stride, nbytes, stream);
    return dt_transport_all_gather(axis, send, recv, stride, nbytes);
}

const dt_comm_ops dt_comm_mpi_ops = {
    .name = "mpi",
    .open = mpi_open,
    .close = mpi_close,
    .reduce_scatter = mpi_reduce_scatter,
    .all_gather = mpi_all_gather,
    .exchange = dt_transport_exchange,
};
