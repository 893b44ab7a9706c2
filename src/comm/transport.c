/* transport.c - the transport "mpi": its buffers, and staging for devices whose memory the host cannot access.
 *
 * All collectives are written for host memory (transport_reduce.c, transport_gather.c). For another device a chunk is
 * copied to pinned memory on the caller's stream, after the work that produces it. It is exchanged there and copied
 * back on that stream, before the work that needs it. The host waits once, for the data to send. An event makes the
 * next user of the pinned buffer, on any stream, wait for the copies back. This serves ranks that share a GPU and
 * machines without a better transport. Copies do not overlap the exchange.
 *
 * Buffers are allocated once, when the transport is attached: a collective allocates nothing. */
#include "transport.h"
#include <omp.h>
#include <stdlib.h>

enum {
    SLOT_NBYTES = 1 << 20, /* two of them fit in the L2 cache of usual server cores */
    NET_NBYTES = 8 << 20,  /* target size of a set of messages */
    PIECE_MIN = 32 << 10,  /* below, latency dominates the cost of a message */
    PIECE_MAX = 1 << 20,
    STREAM_NBYTES = 8 << 20, /* larger than a core's cache, in addition to the slots */
    PINNED_NBYTES = 16 << 20,
    PINNED_MIN_PER_RANK = 64 << 10,
    LINE = 64
};

static size_t clamp(size_t x, size_t low, size_t high) { return x < low ? low : x > high ? high : x; }

/** The distribution of ranks over nodes that determines buffer sizes. */
typedef struct layout {
    int nranks, n_nodes, max_local, min_local;
    bool use_shared_memory;
} layout;

/** Compute sizes from values that all ranks share. */
static void plan(const layout *l, dt_transport *t)
{
    t->shared = l->use_shared_memory && l->max_local > 1;
    t->hierarchical = t->shared && l->n_nodes > 1 && l->max_local == l->min_local;
    const size_t n_far_max = (size_t)(l->nranks - (t->shared ? l->min_local : 1));
    const size_t n_pieces = t->hierarchical && 2 * (size_t)l->n_nodes > n_far_max ? 2 * (size_t)l->n_nodes : n_far_max;
    t->piece_nbytes =
        n_pieces ? clamp(NET_NBYTES / n_pieces, PIECE_MIN, PIECE_MAX) / (LINE * sizeof(float)) * (LINE * sizeof(float))
                 : 0;
    t->net_set_nbytes = n_pieces * t->piece_nbytes;
    t->n_requests = 2 * (int)n_pieces;
}

/* Size of the pinned buffer for tensors of a device that the host cannot access. */
static size_t pinned_nbytes(int nranks, bool host_accessible)
{
    return host_accessible || nranks == 1 ? 0
                                          : clamp(PINNED_NBYTES, (size_t)(nranks + 2) * PINNED_MIN_PER_RANK, SIZE_MAX);
}

dt_memory dt_comm_mpi_plan(const dt_comm_shape *shape, bool host_accessible)
{
    const int nranks = shape->nranks, ranks_per_node = shape->ranks_per_node, rest = nranks % ranks_per_node;
    const layout l = {.nranks = nranks,
                      .n_nodes = (nranks + ranks_per_node - 1) / ranks_per_node,
                      .max_local = nranks < ranks_per_node ? nranks : ranks_per_node,
                      .min_local = rest ? rest : ranks_per_node,
                      .use_shared_memory = shape->shared_memory};
    dt_transport t = {0};
    plan(&l, &t);
    dt_memory memory = {0};
    memory.at[DT_MEM_STAGING][DT_ON_PINNED] = pinned_nbytes(nranks, host_accessible);
    memory.at[DT_MEM_STAGING][DT_ON_HOST] = 2 * t.net_set_nbytes + (t.shared ? dt_shm_window_nbytes(SLOT_NBYTES) : 0);
    return memory;
}

static void plan_of(const dt_comm *comm, bool shared_memory, dt_transport *t)
{
    const struct dt_comm_mpi *mpi = comm->mpi;
    const int threads = omp_get_max_threads(), cores = mpi->cores_per_rank;
    const layout l = {comm->nranks, comm->n_nodes, mpi->max_local, mpi->min_local, shared_memory};
    plan(&l, t);
    t->n_threads = threads < cores ? threads : cores > 0 ? cores : 1;
    t->stream_nbytes = STREAM_NBYTES;
    t->n_far = comm->nranks - (t->shared ? comm->local_nranks : 1);
}

static dt_err alloc_buffers(dt_comm *comm, dt_transport *t)
{
    DT_TRY(dt_buf_alloc(&t->net, comm->dev, DT_ON_HOST, 2 * t->net_set_nbytes, DT_MEM_STAGING));
    DT_TRY(dt_buf_alloc(&t->pinned, comm->dev, DT_ON_PINNED,
                        pinned_nbytes(comm->nranks, comm->dev->ops->host_accessible), DT_MEM_STAGING));
    DT_TRY(comm->dev->ops->event_create(comm->dev, &t->returned));
    t->src = calloc((size_t)comm->nranks, sizeof *t->src);
    t->requests = malloc((2 * (size_t)t->n_requests + 1) * sizeof(MPI_Request));
    DT_CHECK(t->src && t->requests, DT_ERR_MEMORY, "out of memory for the tables of %d ranks", comm->nranks);
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
    free(t);
}

static void count_window(const dt_comm *comm, size_t nbytes, bool add)
{
    if (!comm->dev->ledger || nbytes == 0) return;
    if (add)
        dt_ledger_add(comm->dev->ledger, DT_MEM_STAGING, DT_ON_HOST, nbytes);
    else
        dt_ledger_sub(comm->dev->ledger, DT_MEM_STAGING, DT_ON_HOST, nbytes);
}

static dt_err mpi_open(dt_comm *comm)
{
    dt_transport *t = calloc(1, sizeof *t);
    bool opened = false;
    dt_err err = dt_comm_agree(comm, t ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the transport"));
    if (err != DT_OK) {
        free(t);
        return err;
    }
    t->shm = (dt_shm){.n = 1, .fd = -1, .progress = MPI_COMM_NULL, .slot_nbytes = SLOT_NBYTES};
    err =
        comm->use_shared_memory && comm->mpi->max_local > 1 ? dt_shm_open(&t->shm, comm, SLOT_NBYTES, &opened) : DT_OK;
    if (err == DT_OK) {
        plan_of(comm, opened, t);
        err = dt_comm_agree(comm, alloc_buffers(comm, t));
    }
    if (err != DT_OK) {
        dt_shm_close(&t->shm);
        free_buffers(comm, t);
        return err;
    }
    count_window(comm, t->shm.window_nbytes, true);
    comm->impl = t;
    return DT_OK;
}

static void mpi_close(dt_comm *comm)
{
    dt_transport *t = dt_transport_of(comm);
    count_window(comm, t->shm.window_nbytes, false);
    dt_shm_close(&t->shm);
    free_buffers(comm, t);
    comm->impl = NULL;
}

/* ---- devices whose memory the host cannot access ----------------------------------------------------------------- */

static dt_err copy_on(dt_comm *comm, void *dst, const void *src, size_t nbytes, dt_stream *stream)
{
    return comm->dev->ops->copy(comm->dev, dst, src, nbytes, stream);
}

static dt_err sync(dt_comm *comm, dt_stream *stream) { return comm->dev->ops->stream_sync(comm->dev, stream); }

/* Make this stream wait until the copies from the pinned buffer have completed. The next stream waits for the work that
 * follows. */
static dt_err take_pinned(dt_comm *comm, dt_stream *stream)
{
    return comm->dev->ops->event_wait(comm->dev, dt_transport_of(comm)->returned, stream);
}
static dt_err give_pinned(dt_comm *comm, dt_stream *stream)
{
    return comm->dev->ops->event_record(comm->dev, dt_transport_of(comm)->returned, stream);
}

/** Returns the first error, except that an error of the exchange takes precedence. A rank whose copy fails still takes
 *  part in the exchange, unless its device has failed. */
static dt_err first(dt_err err, dt_err then) { return err == DT_OK || then == DT_ERR_COMM ? then : err; }

static dt_err staged_reduce_scatter(dt_comm *comm, const char *send, dt_dtype send_dt, char *recv, dt_dtype recv_dt,
                                    int64_t count, bool accumulate, bool ordered, dt_stream *stream)
{
    const size_t elem = dt_dtype_size(send_dt), recv_elem = dt_dtype_size(recv_dt), nranks = (size_t)comm->nranks;
    char *pieces = dt_transport_of(comm)->pinned.ptr;
    const int64_t most = (int64_t)(dt_transport_of(comm)->pinned.nbytes / (nranks * elem + recv_elem)) / LINE * LINE;
    char *sum = pieces + (size_t)most * nranks * elem;
    dt_err err = take_pinned(comm, stream);
    for (int64_t done = 0; done < count && err != DT_ERR_COMM; done += most) {
        const int64_t n = count - done < most ? count - done : most;
        const size_t nbytes = (size_t)n * elem, recv_nbytes = (size_t)n * recv_elem;
        char *to = recv + (size_t)done * recv_elem;
        for (size_t r = 0; r < nranks; r++)
            err = first(err, copy_on(comm, pieces + r * nbytes, send + (r * (size_t)count + (size_t)done) * elem,
                                     nbytes, stream));
        if (accumulate) err = first(err, copy_on(comm, sum, to, recv_nbytes, stream));
        err = first(err, sync(comm, stream));
        err = first(err, dt_transport_reduce_scatter(comm, pieces, send_dt, sum, recv_dt, n, accumulate, ordered));
        err = first(err, copy_on(comm, to, sum, recv_nbytes, stream));
    }
    return first(err, give_pinned(comm, stream));
}

static dt_err staged_all_gather(dt_comm *comm, const char *send, char *recv, size_t nbytes, dt_stream *stream)
{
    char *pieces = dt_transport_of(comm)->pinned.ptr;
    const size_t most = dt_transport_of(comm)->pinned.nbytes / (size_t)comm->group_nranks / LINE * LINE;
    dt_err err = take_pinned(comm, stream);
    for (size_t done = 0; done < nbytes && err != DT_ERR_COMM; done += most) {
        const size_t n = nbytes - done < most ? nbytes - done : most;
        char *mine = pieces + (size_t)comm->group_rank * n;
        err = first(err, copy_on(comm, mine, send + done, n, stream));
        err = first(err, sync(comm, stream));
        err = first(err, dt_transport_all_gather(comm, mine, pieces, n));
        for (size_t r = 0; r < (size_t)comm->group_nranks; r++)
            if (recv + r * nbytes != send)
                err = first(err, copy_on(comm, recv + r * nbytes + done, pieces + r * n, n, stream));
    }
    return first(err, give_pinned(comm, stream));
}

static dt_err staged_replicate(dt_comm *comm, char *buf, size_t stride, size_t nbytes, dt_stream *stream)
{
    char *copies = dt_transport_of(comm)->pinned.ptr;
    const size_t most = dt_transport_of(comm)->pinned.nbytes / (size_t)comm->n_groups / LINE * LINE,
                 own = (size_t)comm->group;
    dt_err err = take_pinned(comm, stream);
    for (size_t done = 0; done < nbytes && err != DT_ERR_COMM; done += most) {
        const size_t n = nbytes - done < most ? nbytes - done : most;
        err = first(err, copy_on(comm, copies + own * n, buf + own * stride + done, n, stream));
        err = first(err, sync(comm, stream));
        err = first(err, dt_transport_replicate(comm, copies, n, n));
        for (size_t g = 0; g < (size_t)comm->n_groups; g++)
            if (g != own) err = first(err, copy_on(comm, buf + g * stride + done, copies + g * n, n, stream));
    }
    return first(err, give_pinned(comm, stream));
}

/* ---- one rank: nothing leaves the device ------------------------------------------------------------------------- */

static dt_err own_sum(dt_comm *comm, const void *send, dt_dtype send_dt, void *recv, dt_dtype recv_dt, int64_t count,
                      bool accumulate, dt_stream *stream)
{
    if (send == recv) return DT_OK;
    return comm->dev->ops->add_into(comm->dev, send, send_dt, recv, recv_dt, accumulate, count, stream);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static dt_err mpi_reduce_scatter(dt_comm *comm, const void *send, dt_dtype send_dt, void *recv, dt_dtype recv_dt,
                                 int64_t count, bool accumulate, bool ordered, dt_stream *stream)
{
    if (comm->nranks == 1) return own_sum(comm, send, send_dt, recv, recv_dt, count, accumulate, stream);
    if (!comm->dev->ops->host_accessible)
        return staged_reduce_scatter(comm, send, send_dt, recv, recv_dt, count, accumulate, ordered, stream);
    return dt_transport_reduce_scatter(comm, send, send_dt, recv, recv_dt, count, accumulate, ordered);
}

static dt_err mpi_all_gather(dt_comm *comm, const void *send, void *recv, size_t nbytes, dt_stream *stream)
{
    if (comm->group_nranks == 1) return copy_on(comm, recv, send, nbytes, stream);
    if (!comm->dev->ops->host_accessible) return staged_all_gather(comm, send, recv, nbytes, stream);
    return dt_transport_all_gather(comm, send, recv, nbytes);
}

static dt_err mpi_replicate(dt_comm *comm, void *buf, size_t stride, size_t nbytes, dt_stream *stream)
{
    if (!comm->dev->ops->host_accessible) return staged_replicate(comm, buf, stride, nbytes, stream);
    return dt_transport_replicate(comm, buf, stride, nbytes);
}

const dt_comm_ops dt_comm_mpi_ops = {
    .name = "mpi",
    .open = mpi_open,
    .close = mpi_close,
    .reduce_scatter = mpi_reduce_scatter,
    .all_gather = mpi_all_gather,
    .replicate = mpi_replicate,
};
