/* transport_gather.c - all-gather among the ranks of a group, and exchange between groups, on host memory.
 *
 * Inside a node each rank publishes its block in the window, chunk by chunk, and the others copy it. Between nodes
 * blocks are sent by messages directly from and to the callers' buffers.
 *
 * If nodes have the same number of ranks, a block passes between nodes once: rank l of each node exchanges with ranks l
 * of the other nodes and then publishes what it received. Otherwise every rank sends to every rank of other nodes. A
 * group is all nodes or this node only; the algorithm is the same.
 *
 * Ranks with the same index in different groups are on different nodes, so they exchange only by messages. */
#include "transport.h"

typedef struct gathering {
    dt_comm *comm;
    dt_transport *t;
    const char *send; /* the block's part in this round */
    char *recv;       /* address of this round's part from the group's rank 0; rank r's is r * stride further */
    size_t stride, nbytes, chunk;
    int n_nodes; /* of the group */
    bool stream;
} gathering;

enum { TAG_GATHER = 3, TAG_REPLICA = 4, ROUND_NBYTES = 64 << 20 };

/** Destination of the block of rank r, a member of the group. */
static char *block_of(const gathering *g, int r)
{
    return g->recv + (size_t)(g->comm->piece_of[r] / g->comm->n_groups) * g->stride;
}
static bool is_member(const dt_comm *c, int r) { return c->piece_of[r] % c->n_groups == c->group; }
static int64_t n_chunks(const gathering *g) { return (int64_t)((g->nbytes + g->chunk - 1) / g->chunk); }

static dt_err post_exchange(gathering *g, MPI_Comm mpi, int with, int whose, MPI_Request *receive, MPI_Request *give)
{
    DT_MPI(MPI_Irecv(block_of(g, whose), (int)g->nbytes, MPI_BYTE, with, TAG_GATHER, mpi, receive));
    DT_MPI(MPI_Isend(g->send, (int)g->nbytes, MPI_BYTE, with, TAG_GATHER, mpi, give));
    return DT_OK;
}

/** Exchange with every far rank (flat), or with the ranks of the same local rank on the other nodes (hierarchical). The
 *  requests of node i are i (receive) and n_nodes + i (send). */
static dt_err post_messages(gathering *g)
{
    const dt_comm *c = g->comm;
    MPI_Request *req = g->t->requests;
    for (int i = 0; i < g->t->n_requests; i++) req[i] = MPI_REQUEST_NULL;
    if (g->t->hierarchical) {
        for (int i = 1; i < g->n_nodes; i++) {
            const int node = (c->node + i) % c->n_nodes;
            DT_TRY(post_exchange(g, c->mpi->across, node, dt_comm_rank_of(c, node, c->local_rank), &req[node],
                                 &req[c->n_nodes + node]));
        }
        return DT_OK;
    }
    for (int i = 1, n = 0; i < c->nranks; i++) {
        const int r = (c->rank + i) % c->nranks;
        if (dt_transport_near(c, r) || !is_member(c, r)) continue;
        DT_TRY(post_exchange(g, c->mpi->world, r, r, &req[n], &req[n + 1]));
        n += 2;
    }
    return DT_OK;
}

/* Steps: the chunks of the own node's blocks, then (hierarchical) those of the next node, and so on. */
static int step_node(const gathering *g, int64_t step)
{
    return (int)((g->comm->node + step / n_chunks(g)) % g->comm->n_nodes);
}
static size_t step_offset(const gathering *g, int64_t step) { return (size_t)(step % n_chunks(g)) * g->chunk; }

static dt_err fill(void *arg, int64_t step, char *slot)
{
    gathering *g = arg;
    const dt_comm *c = g->comm;
    const int node = step_node(g, step);
    const size_t offset = step_offset(g, step), n = dt_min_size(g->chunk, g->nbytes - offset);
    char *mine = block_of(g, dt_comm_rank_of(c, node, c->local_rank));
    const char *from = node == c->node ? g->send : mine;
    if (node != c->node && offset == 0) DT_MPI(MPI_Wait(&g->t->requests[node], MPI_STATUS_IGNORE));
    if (slot) dt_reduce_copy(slot, from + offset, n, false, g->t->n_threads);
    if (from != mine) dt_reduce_copy(mine + offset, from + offset, n, g->stream, g->t->n_threads);
    return DT_OK;
}

static dt_err consume(void *arg, int64_t step)
{
    gathering *g = arg;
    const dt_comm *c = g->comm;
    const size_t offset = step_offset(g, step), n = dt_min_size(g->chunk, g->nbytes - offset);
    for (int i = 1; i < g->t->shm.n; i++) {
        const int l = (c->local_rank + i) % c->local_nranks;
        char *to = block_of(g, dt_comm_rank_of(c, step_node(g, step), l)) + offset;
        dt_reduce_copy(to, dt_shm_peer(&g->t->shm, l, step), n, g->stream, g->t->n_threads);
    }
    return DT_OK;
}

static dt_err gather_round(gathering *g)
{
    enum { PIPELINE_STEPS = 4, LEAST_CHUNK = 64 << 10, LINE = 64 };
    g->chunk = (g->nbytes + PIPELINE_STEPS - 1) / PIPELINE_STEPS;
    if (g->chunk < LEAST_CHUNK) g->chunk = LEAST_CHUNK;
    g->chunk = dt_min_size(g->chunk, g->t->shm.slot_nbytes) / LINE * LINE;
    DT_TRY(post_messages(g));
    const int64_t n_steps = n_chunks(g) * (g->t->hierarchical ? g->n_nodes : 1);
    DT_TRY(dt_shm_run(&g->t->shm, n_steps, fill, consume, g));
    DT_MPI(MPI_Waitall(g->t->n_requests, g->t->requests, MPI_STATUSES_IGNORE));
    return DT_OK;
}

dt_err dt_transport_all_gather(dt_comm *comm, const void *send, void *recv, size_t nbytes)
{
    DT_TRY(dt_comm_may_join(comm));
    const size_t round = comm->n_nodes > 1 || !dt_transport_of(comm)->shared
                             ? dt_min_size(ROUND_NBYTES, comm->mpi->max_message)
                             : SIZE_MAX;
    for (size_t done = 0; done < nbytes; done += dt_min_size(round, nbytes - done)) {
        gathering g = {.comm = comm,
                       .t = dt_transport_of(comm),
                       .send = (const char *)send + done,
                       .recv = (char *)recv + done,
                       .stride = nbytes,
                       .nbytes = dt_min_size(round, nbytes - done),
                       .n_nodes = comm->n_nodes / comm->n_groups,
                       .stream = nbytes * (size_t)comm->group_nranks >= dt_transport_of(comm)->stream_nbytes};
        DT_TRY(gather_round(&g));
    }
    return DT_OK;
}

/* ---- between groups ---------------------------------------------------------------------------------------------- */

static dt_err replicate_round(dt_comm *c, char *buf, size_t stride, int nbytes)
{
    MPI_Request *req = dt_transport_of(c)->requests;
    int n = 0;
    for (int i = 1; i < c->n_groups; i++) {
        const int to = (c->group + i) % c->n_groups, from = (c->group - i + c->n_groups) % c->n_groups;
        DT_MPI(MPI_Irecv(buf + (size_t)from * stride, nbytes, MPI_BYTE, from, TAG_REPLICA, c->mpi->across, &req[n++]));
        DT_MPI(
            MPI_Isend(buf + (size_t)c->group * stride, nbytes, MPI_BYTE, to, TAG_REPLICA, c->mpi->across, &req[n++]));
    }
    DT_MPI(MPI_Waitall(n, req, MPI_STATUSES_IGNORE));
    return DT_OK;
}

dt_err dt_transport_replicate(dt_comm *comm, void *buf, size_t stride, size_t nbytes)
{
    DT_TRY(dt_comm_may_join(comm));
    const size_t round = dt_min_size(ROUND_NBYTES, comm->mpi->max_message);
    for (size_t done = 0; done < nbytes; done += round)
        DT_TRY(replicate_round(comm, (char *)buf + done, stride, (int)dt_min_size(round, nbytes - done)));
    return DT_OK;
}
