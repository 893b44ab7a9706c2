/* transport_reduce.c - reduce-scatter among the ranks of an axis, on host memory.
 *
 * Two algorithms, both in steps over chunks of a block (block r: the elements of send that rank r receives summed):
 *
 * flat          Every rank sends every other rank its block, through the window inside a node, otherwise by messages.
 *               The owner adds the blocks in rank order. One rounding and one order for any nodes: the ordered sum.
 * hierarchical  A node first adds its own ranks' blocks in rank order. Local rank l then holds the node's sums for
 *               the ranks with local rank l on all nodes. It exchanges these sums with them as floats. This sends
 *               local_nranks times fewer bytes between nodes (local_nranks / 2 times for bf16), but additions are
 *               grouped by node.
 *
 * Messages of a chunk are in flight while the node works on the next one, so there are two sets of buffers and
 * requests. */
#include "transport.h"

typedef struct reduction {
    const dt_axis *axis;
    dt_transport *t;
    const dt_route *route;
    dt_reduction of;
    size_t elem; /* bytes per element of send */
    int64_t chunk;
    bool stream;
} reduction;

enum { TAG_BLOCK = 1, TAG_SUM = 2, LINE_ELEMS = 64, PIPELINE_STEPS = 4, MIN_CHUNK = 16384 };

static int64_t n_chunks(const reduction *d) { return (d->of.count + d->chunk - 1) / d->chunk; }
static int64_t chunk_len(const reduction *d, int64_t k) { return dt_min_i64(d->chunk, d->of.count - k * d->chunk); }
/** Address of chunk k of block r. */
static const char *chunk_of(const reduction *d, int r, int64_t k)
{
    return (const char *)d->of.send + (size_t)(d->axis->block_of[r] * d->of.stride + k * d->chunk) * d->elem;
}
static MPI_Request *requests(const reduction *d, int64_t k)
{
    return d->t->requests + (size_t)(k & 1) * (size_t)d->t->n_requests;
}
static char *net_set(const reduction *d, int64_t k)
{
    return (char *)d->t->net.ptr + (size_t)(k & 1) * d->t->net_set_nbytes;
}
/** Add the n_src inputs in t->src to chunk k of the result. */
static void fold_result(const reduction *d, int n_src, dt_dtype src_dt, int64_t k)
{
    const dt_fold fold = {.src = d->t->src,
                          .n_src = n_src,
                          .src_dt = src_dt,
                          .dst = (char *)d->of.recv + (size_t)(k * d->chunk) * dt_dtype_size(d->of.recv_dt),
                          .dst_dt = d->of.recv_dt,
                          .accumulate = d->of.accumulate,
                          .stream = d->stream,
                          .n_threads = d->t->n_threads};
    dt_reduce_fold(&fold, chunk_len(d, k));
}

/** Offset, in a slot of local rank owner, of the block for local rank reader. The owner's own block is omitted. */
static size_t slot_offset(const reduction *d, int owner, int reader)
{
    return (size_t)(reader < owner ? reader : reader - 1) * (size_t)d->chunk * d->elem;
}

/** All ranks compute the same length from values that they share. A block is split into at least a few steps, so that
 *  copying and adding overlap, unless steps would become too short. */
static void choose_chunk(reduction *d, bool messages, size_t message_elem)
{
    const dt_route *t = d->route;
    const int max_local = d->axis->max_local;
    int64_t c = (d->of.count + PIPELINE_STEPS - 1) / PIPELINE_STEPS;
    if (c < MIN_CHUNK) c = MIN_CHUNK;
    if (t->shared && max_local > 1)
        c = dt_min_i64(c, (int64_t)(t->shm->slot_nbytes / (size_t)(max_local - 1) / d->elem));
    if (messages) c = dt_min_i64(c, (int64_t)(t->message_nbytes / message_elem));
    d->chunk = c / LINE_ELEMS * LINE_ELEMS;
}

static void copy_to_slot(const reduction *d, char *slot, int node, int64_t k)
{
    const dt_axis *c = d->axis;
    const size_t nbytes = (size_t)chunk_len(d, k) * d->elem;
    for (int l = 0; slot && l < c->local_size; l++)
        if (l != c->local_rank)
            dt_reduce_copy(slot + slot_offset(d, c->local_rank, l), chunk_of(d, dt_axis_at(c, node, l), k), nbytes,
                           false, d->t->n_threads);
}

/* ---- flat -------------------------------------------------------------------------------------------------------- */

static dt_err post_blocks(reduction *d, int64_t k)
{
    const dt_axis *c = d->axis;
    const int nbytes = (int)((size_t)chunk_len(d, k) * d->elem); /* at most message_nbytes */
    MPI_Request *req = requests(d, k);
    int n = 0;
    for (int i = 1; i < c->size; i++) {
        const int from = (c->rank + i) % c->size;
        if (dt_transport_shares_memory(c, from)) continue;
        char *to = net_set(d, k) + (size_t)n * d->route->message_nbytes;
        DT_MPI(MPI_Irecv(to, nbytes, MPI_BYTE, c->member[from], TAG_BLOCK, c->comm->mpi->world, &req[n++]));
    }
    for (int i = 1; i < c->size; i++) {
        const int to = (c->rank - i + c->size) % c->size; /* in the order of the receives */
        if (!dt_transport_shares_memory(c, to))
            DT_MPI(MPI_Isend(chunk_of(d, to, k), nbytes, MPI_BYTE, c->member[to], TAG_BLOCK, c->comm->mpi->world,
                             &req[n++]));
    }
    return DT_OK;
}

static dt_err flat_fill(void *arg, int64_t k, char *slot)
{
    reduction *d = arg;
    if (d->route->n_far > 0) DT_TRY(post_blocks(d, k));
    copy_to_slot(d, slot, d->axis->node, k);
    return DT_OK;
}

static dt_err flat_consume(void *arg, int64_t k)
{
    reduction *d = arg;
    const dt_axis *c = d->axis;
    if (d->route->n_far > 0) DT_MPI(MPI_Waitall(2 * d->route->n_far, requests(d, k), MPI_STATUSES_IGNORE));
    int n = 0;
    for (int i = 1; i < c->size; i++) {
        const int r = (c->rank + i) % c->size;
        const int l = c->local_of[r];
        if (dt_transport_shares_memory(c, r))
            d->t->src[r] = dt_shm_peer(d->route->shm, l, k) + slot_offset(d, l, c->local_rank);
        else
            d->t->src[r] = net_set(d, k) + (size_t)n++ * d->route->message_nbytes;
    }
    d->t->src[c->rank] = chunk_of(d, c->rank, k);
    fold_result(d, c->size, d->of.send_dt, k);
    return DT_OK;
}

static dt_err reduce_flat(reduction *d)
{
    const int near = d->route->shared ? d->axis->min_local : 1;
    choose_chunk(d, d->axis->size > near, d->elem);
    return dt_shm_run(d->route->shm, n_chunks(d), flat_fill, flat_consume, d);
}

/* ---- hierarchical ------------------------------------------------------------------------------------------------ */

/* A step is (chunk k, node): the other nodes in turn, starting after ours, and our own last. */
static int64_t step_chunk(const reduction *d, int64_t step) { return step / d->axis->n_nodes; }
static int step_node(const reduction *d, int64_t step)
{
    return (int)((d->axis->node + 1 + step % d->axis->n_nodes) % d->axis->n_nodes);
}

/** Layout of a set: the sums to send, by node, then the sums received, by node. */
static char *sum_for(const reduction *d, int64_t k, int node)
{
    return net_set(d, k) + (size_t)node * d->route->message_nbytes;
}
static char *sum_from(const reduction *d, int64_t k, int node) { return sum_for(d, k, d->axis->n_nodes + node); }

static dt_err tree_fill(void *arg, int64_t step, char *slot)
{
    reduction *d = arg;
    copy_to_slot(d, slot, step_node(d, step), step_chunk(d, step));
    return DT_OK;
}

/** Wait for all nodes' sums of chunk k, and add them in node order. */
static dt_err tree_finish(reduction *d, int64_t k)
{
    const dt_axis *c = d->axis;
    DT_MPI(MPI_Waitall(2 * c->n_nodes, requests(d, k), MPI_STATUSES_IGNORE));
    for (int node = 0; node < c->n_nodes; node++)
        d->t->src[node] = node == c->node ? sum_for(d, k, node) : sum_from(d, k, node);
    fold_result(d, c->n_nodes, DT_F32, k);
    return DT_OK;
}

/** Add this node's blocks for (chunk, node) and send the sum to that node. */
static dt_err tree_consume(void *arg, int64_t step)
{
    reduction *d = arg;
    const dt_axis *c = d->axis;
    const int64_t k = step_chunk(d, step), n = chunk_len(d, k);
    const int node = step_node(d, step);
    for (int i = 1; i < c->local_size; i++) {
        const int l = (c->local_rank + i) % c->local_size;
        d->t->src[l] = dt_shm_peer(d->route->shm, l, step) + slot_offset(d, l, c->local_rank);
    }
    d->t->src[c->local_rank] = chunk_of(d, dt_axis_at(c, node, c->local_rank), k);
    const dt_fold fold = {.src = d->t->src,
                          .n_src = c->local_size,
                          .src_dt = d->of.send_dt,
                          .dst = sum_for(d, k, node),
                          .dst_dt = DT_F32,
                          .n_threads = d->t->n_threads};
    dt_reduce_fold(&fold, n);
    MPI_Request *req = requests(d, k);
    if (node != c->node) {
        const MPI_Comm mpi = c->comm->mpi->world;
        const int r = c->member[dt_axis_at(c, node, c->local_rank)];
        DT_MPI(MPI_Irecv(sum_from(d, k, node), (int)n, MPI_FLOAT, r, TAG_SUM, mpi, &req[node]));
        DT_MPI(MPI_Isend(sum_for(d, k, node), (int)n, MPI_FLOAT, r, TAG_SUM, mpi, &req[c->n_nodes + node]));
        return DT_OK;
    }
    req[node] = req[c->n_nodes + node] = MPI_REQUEST_NULL;
    return k > 0 ? tree_finish(d, k - 1) : DT_OK; /* frees the set for chunk k + 1 */
}

static dt_err reduce_hierarchical(reduction *d)
{
    choose_chunk(d, true, sizeof(float));
    DT_TRY(dt_shm_run(d->route->shm, n_chunks(d) * d->axis->n_nodes, tree_fill, tree_consume, d));
    return tree_finish(d, n_chunks(d) - 1);
}

dt_err dt_transport_reduce_scatter(const dt_axis *axis, const dt_reduction *r)
{
    if (r->count == 0) return DT_OK;
    DT_TRY(dt_comm_may_join(axis->comm));
    reduction d = {.axis = axis,
                   .t = dt_transport_of(axis),
                   .route = dt_route_of(axis),
                   .of = *r,
                   .elem = dt_dtype_size(r->send_dt)};
    d.stream = (size_t)r->count * dt_dtype_size(r->recv_dt) >= d.t->stream_nbytes;
    return d.route->hierarchical && !r->ordered ? reduce_hierarchical(&d) : reduce_flat(&d);
}
