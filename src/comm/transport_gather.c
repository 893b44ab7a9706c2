/* transport_gather.c - all-gather among the ranks of an axis, on host memory.
 *
 * Inside a node each rank publishes its block in the window, chunk by chunk, and the others copy it. Between nodes
 * blocks are sent by messages directly from and to the callers' buffers.
 *
 * If nodes have the same number of ranks, a block passes between nodes once: rank l of each node exchanges with ranks l
 * of the other nodes and then publishes what it received. Otherwise every rank sends to every rank of other nodes. */
#include "transport.h"

typedef struct gathering {
    const dt_axis *axis;
    dt_transport *t;
    const dt_route *route;
    const char *send; /* the block's part in this round */
    char *recv;       /* address of this round's part from rank 0; rank r's is r * stride further */
    size_t stride, nbytes, chunk;
    bool stream;
} gathering;

enum { TAG_GATHER = 3, ROUND_NBYTES = 64 << 20 };

static char *block_of(const gathering *g, int i) { return g->recv + (size_t)i * g->stride; }
static int64_t n_chunks(const gathering *g) { return (int64_t)((g->nbytes + g->chunk - 1) / g->chunk); }

static dt_err post_exchange(gathering *g, int with, MPI_Request *receive, MPI_Request *give)
{
    const MPI_Comm mpi = g->axis->comm->mpi->world;
    const int rank = g->axis->member[with];
    DT_MPI(MPI_Irecv(block_of(g, with), (int)g->nbytes, MPI_BYTE, rank, TAG_GATHER, mpi, receive));
    DT_MPI(MPI_Isend(g->send, (int)g->nbytes, MPI_BYTE, rank, TAG_GATHER, mpi, give));
    return DT_OK;
}

/** Exchange with every far rank (flat), or with the ranks of the same local rank on the other nodes (hierarchical). The
 *  requests of node i are i (receive) and n_nodes + i (send). */
static dt_err post_messages(gathering *g)
{
    const dt_axis *a = g->axis;
    MPI_Request *req = g->t->requests;
    for (int i = 0; i < g->t->n_requests; i++) req[i] = MPI_REQUEST_NULL;
    for (int i = 1; i < a->n_nodes && g->route->hierarchical; i++) {
        const int node = (a->node + i) % a->n_nodes;
        DT_TRY(post_exchange(g, dt_axis_at(a, node, a->local_rank), &req[node], &req[a->n_nodes + node]));
    }
    for (int i = 1, n = 0; i < a->size && !g->route->hierarchical; i++) {
        const int r = (a->rank + i) % a->size;
        if (dt_transport_shares_memory(a, r)) continue;
        DT_TRY(post_exchange(g, r, &req[n], &req[n + 1]));
        n += 2;
    }
    return DT_OK;
}

/* Steps: the chunks of the own node's blocks, then (hierarchical) those of the next node, and so on. */
static int step_node(const gathering *g, int64_t step)
{
    return (int)((g->axis->node + step / n_chunks(g)) % g->axis->n_nodes);
}
static size_t step_offset(const gathering *g, int64_t step) { return (size_t)(step % n_chunks(g)) * g->chunk; }

static dt_err fill(void *arg, int64_t step, char *slot)
{
    gathering *g = arg;
    const dt_axis *a = g->axis;
    const int node = step_node(g, step);
    const size_t offset = step_offset(g, step), n = dt_min_size(g->chunk, g->nbytes - offset);
    char *mine = block_of(g, dt_axis_at(a, node, a->local_rank));
    const char *from = node == a->node ? g->send : mine;
    if (node != a->node && offset == 0) DT_MPI(MPI_Wait(&g->t->requests[node], MPI_STATUS_IGNORE));
    if (slot) dt_reduce_copy(slot, from + offset, n, false, g->t->n_threads);
    if (from != mine) dt_reduce_copy(mine + offset, from + offset, n, g->stream, g->t->n_threads);
    return DT_OK;
}

static dt_err consume(void *arg, int64_t step)
{
    gathering *g = arg;
    const dt_axis *a = g->axis;
    const dt_shm *shm = g->route->shm;
    const size_t offset = step_offset(g, step), n = dt_min_size(g->chunk, g->nbytes - offset);
    for (int i = 1; i < shm->n; i++) {
        const int l = (a->local_rank + i) % a->local_size;
        char *to = block_of(g, dt_axis_at(a, step_node(g, step), l)) + offset;
        dt_reduce_copy(to, dt_shm_peer(shm, l, step), n, g->stream, g->t->n_threads);
    }
    return DT_OK;
}

static dt_err gather_round(gathering *g)
{
    enum { PIPELINE_STEPS = 4, MIN_CHUNK = 64 << 10, LINE = 64 };
    g->chunk = (g->nbytes + PIPELINE_STEPS - 1) / PIPELINE_STEPS;
    if (g->chunk < MIN_CHUNK) g->chunk = MIN_CHUNK;
    g->chunk = dt_min_size(g->chunk, g->route->shm->slot_nbytes) / LINE * LINE;
    DT_TRY(post_messages(g));
    const int64_t n_steps = n_chunks(g) * (g->route->hierarchical ? g->axis->n_nodes : 1);
    DT_TRY(dt_shm_run(g->route->shm, n_steps, fill, consume, g));
    DT_MPI(MPI_Waitall(g->t->n_requests, g->t->requests, MPI_STATUSES_IGNORE));
    return DT_OK;
}

dt_err dt_transport_all_gather(const dt_axis *axis, const void *send, void *recv, size_t stride, size_t nbytes)
{
    dt_transport *t = dt_transport_of(axis);
    DT_TRY(dt_comm_may_join(axis->comm));
    const size_t round = axis->n_nodes > 1 || !dt_route_of(axis)->shared
                             ? dt_min_size(ROUND_NBYTES, axis->comm->mpi->max_message)
                             : SIZE_MAX;
    for (size_t done = 0; done < nbytes; done += dt_min_size(round, nbytes - done)) {
        gathering g = {.axis = axis,
                       .t = t,
                       .route = dt_route_of(axis),
                       .send = (const char *)send + done,
                       .recv = (char *)recv + done,
                       .stride = stride,
                       .nbytes = dt_min_size(round, nbytes - done),
                       .stream = nbytes * (size_t)axis->size >= t->stream_nbytes};
        DT_TRY(gather_round(&g));
    }
    return DT_OK;
}
