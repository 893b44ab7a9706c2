/* nccl.c - the transport "nccl": moves tensors between GPUs. Votes and host values use MPI, which also distributes
 * NCCL's id.
 *
 * A reduce-scatter consists of sends and receives of blocks into a staging buffer, and one kernel that adds them
 * (nccl_fold.h). NCCL's own reduce-scatter adds in its own order and in the type that is sent, and can neither
 * accumulate nor mix types. The fold reads each received byte once, from memory that is several times faster than the
 * link. If all nodes have the same number of ranks, more than one, and the order of the sum is free, each node adds
 * first, and sends one sum.
 *
 * The communicator is non-blocking: a call may return while it is in progress, and is then waited for here, at most
 * comm.timeout. Later errors are found by nccl_poll, which the watchdog calls: a host thread that waits for a GPU that
 * waits for another rank cannot.
 *
 * The host queues far ahead of the GPU, so in a hang the last queued collective says little. Events before and after
 * each collective show which one the GPU has reached (nccl_where). */
#include "nccl_fold.h"
#include "dtrain/comm/comm.h"
#include <nccl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LINE = 64, N_NOTES = 256 };

/* A queued collective. */
typedef struct nccl_note {
    int64_t number;
    const char *kind, *phase, *unit;
    cudaEvent_t before, behind;
    atomic_bool queued; /* the event after it is recorded */
} nccl_note;

typedef struct nccl_state {
    ncclComm_t nccl;
    dt_buf staged;            /* blocks of the other ranks */
    dt_event *free;           /* recorded after the last reader of the staging buffer, which all streams share */
    int n_slots;              /* blocks in it */
    nccl_note notes[N_NOTES]; /* a ring */
    atomic_llong n_notes;
} nccl_state;

static nccl_state *state_of(const dt_comm *comm) { return comm->impl; }

/* CUDA's last error of this thread, or the error with which the GPU failed, which NCCL may not know. */
static cudaError_t error_of_gpu(const dt_comm *comm)
{
    const cuda_state *cuda = cuda_of(comm->dev);
    const cudaError_t refused = cudaGetLastError();
    (void)cudaSetDevice(cuda->ordinal); /* the watchdog's thread has no device yet */
    const cudaError_t state = cudaStreamQuery(cuda->first.handle);
    if (state == cudaErrorNotReady) (void)cudaGetLastError(); /* not an error of the next launch */
    return cuda_is_lost(state) ? state : refused;
}

/* A failed GPU, whatever NCCL reports, or one without memory for NCCL, is an error of this rank and not of the
 * exchange. */
static dt_err nccl_fail(const dt_comm *comm, ncclResult_t result, const char *what)
{
    const nccl_state *t = state_of(comm);
    const char *more = t->nccl ? ncclGetLastError(t->nccl) : "";
    const cudaError_t error = error_of_gpu(comm);
    const bool own = result == ncclUnhandledCudaError || cuda_is_lost(error), tell = own && error != cudaSuccess;
    char message[1024];
    snprintf(message, sizeof message, "NCCL: %s: %s%s%.500s%s%s (set NCCL_DEBUG=WARN in the environment for details)",
             what, ncclGetErrorString(result), *more ? ": " : "", more, tell ? "; the GPU: " : "",
             tell ? cudaGetErrorString(error) : "");
    if (cuda_is_lost(error)) return dt_device_fail("%s", message);
    return dt_fail(own ? DT_ERR_FAULT : DT_ERR_COMM, "%s", message);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Wait until the previous call, with this result, is queued or has failed. */
static dt_err settle(const dt_comm *comm, ncclResult_t result, const char *what)
{
    nccl_state *t = state_of(comm);
    const double begin_s = now_s();
    while (result == ncclInProgress) {
        DT_TRY(dt_comm_may_join(comm)); /* the watchdog may have found a failure */
        if (now_s() - begin_s > comm->timeout_s)
            return dt_fail(DT_ERR_COMM, "NCCL: %s: no response from the other ranks within %.0f s (comm.timeout)", what,
                           comm->timeout_s);
        if (now_s() - begin_s > 1e-3) nanosleep(&(struct timespec){0, 100000}, NULL);
        const ncclResult_t asked = ncclCommGetAsyncError(t->nccl, &result);
        if (asked != ncclSuccess) result = asked;
    }
    return result == ncclSuccess ? DT_OK : nccl_fail(comm, result, what);
}

/* ---- which collective the GPU has reached ------------------------------------------------------------------------ */

static dt_err make_notes(nccl_state *t)
{
    for (int i = 0; i < N_NOTES; i++) {
        DT_CUDA(cudaEventCreateWithFlags(&t->notes[i].before, cudaEventDisableTiming));
        DT_CUDA(cudaEventCreateWithFlags(&t->notes[i].behind, cudaEventDisableTiming));
    }
    return DT_OK;
}

static void free_notes(nccl_state *t)
{
    if (dt_device_failure()) return; /* a failed GPU gets nothing back */
    for (int i = 0; i < N_NOTES; i++) {
        if (t->notes[i].before) cudaEventDestroy(t->notes[i].before);
        if (t->notes[i].behind) cudaEventDestroy(t->notes[i].behind);
    }
}

/* A failure to record an event is not an error of the collective: the device's next operation returns it as well. But
 * no collective is queued on a failed GPU. */
static void record(cudaEvent_t event, cudaStream_t stream)
{
    const cudaError_t error = cudaEventRecord(event, stream);
    if (cuda_is_lost(error)) (void)cuda_fail(error, "a collective", __FILE__, __LINE__);
}

static nccl_note *note_before(const dt_comm *comm, const char *kind, cudaStream_t stream)
{
    nccl_state *t = state_of(comm);
    nccl_note *n = &t->notes[atomic_load(&t->n_notes) % N_NOTES];
    atomic_store(&n->queued, false);
    n->number = atomic_load(&comm->sequence), n->kind = kind;
    n->phase = comm->phase ? atomic_load(&comm->phase->name) : "";
    n->unit = comm->phase ? atomic_load(&comm->phase->unit) : "";
    record(n->before, stream);
    atomic_fetch_add(&t->n_notes, 1);
    return n;
}

static void note_behind(nccl_note *n, cudaStream_t stream)
{
    record(n->behind, stream);
    atomic_store(&n->queued, true);
}

static bool is_done(nccl_note *n) { return atomic_load(&n->queued) && cudaEventQuery(n->behind) == cudaSuccess; }

static const char *state_of_note(const nccl_note *n)
{
    if (!atomic_load(&n->queued)) return "the host is still queueing it";
    return cudaEventQuery(n->before) == cudaSuccess
               ? "it is running and waits for other ranks"
               : "it has not started, because work queued before it is not finished";
}

static void nccl_where(const dt_comm *comm, char *out, size_t out_size)
{
    nccl_state *t = state_of(comm);
    const long long end = atomic_load(&t->n_notes), first = end > N_NOTES ? end - N_NOTES : 0;
    long long k = first;
    *out = '\0';
    if (dt_device_failure()) {
        snprintf(out, out_size, "; the GPU has failed");
        return;
    }
    (void)cudaSetDevice(cuda_of(comm->dev)->ordinal); /* this thread has no device yet */
    while (k < end && is_done(&t->notes[k % N_NOTES])) k++;
    if (k == end) {
        if (end > 0) snprintf(out, out_size, "; the GPU has finished all queued collectives");
        return;
    }
    const nccl_note *n = &t->notes[k % N_NOTES];
    const cudaError_t state = cudaEventQuery(n->behind);
    if (state != cudaSuccess && state != cudaErrorNotReady) { /* every event returns this, so the position is unknown */
        snprintf(out, out_size, "; the GPU has failed: %s", cudaGetErrorName(state));
        return;
    }
    snprintf(out, out_size, "; the GPU is at collective %lld%s, %s in phase %s%s%s: %s", (long long)n->number,
             k == first && first > 0 ? " or before" : "", n->kind, n->phase, *n->unit ? ", unit " : "", n->unit,
             state_of_note(n));
}

/* ---- open, close ------------------------------------------------------------------------------------------------- */

static dt_err make_state(dt_comm *comm)
{
    nccl_state *t = calloc(1, sizeof *t);
    comm->impl = t;
    DT_CHECK(t, DT_ERR_MEMORY, "out of memory for the transport");
    const dt_nccl_staging staging = dt_nccl_staging_of(comm->nranks);
    t->n_slots = staging.n_pieces;
    DT_TRY(dt_buf_alloc(&t->staged, comm->dev, DT_ON_DEVICE, staging.nbytes, DT_MEM_STAGING));
    DT_TRY(make_notes(t));
    return comm->dev->ops->event_create(comm->dev, &t->free);
}

static dt_err connect_ranks(dt_comm *comm, ncclUniqueId id)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t result = ncclCommInitRankConfig(&state_of(comm)->nccl, comm->nranks, id, comm->rank, &config);
    return settle(comm, result, "connecting the ranks");
}

static void free_state(dt_comm *comm)
{
    nccl_state *t = state_of(comm);
    if (!t) return;
    free_notes(t);
    if (t->free) comm->dev->ops->event_destroy(comm->dev, t->free);
    dt_buf_free(&t->staged);
    free(t);
    comm->impl = NULL;
}

/* A rank that cannot continue reports this before the others wait for it inside NCCL. A rank that fails inside NCCL
 * ends the job, because the others would only notice at their timeout. */
static dt_err nccl_open(dt_comm *comm)
{
    ncclUniqueId id;
    memset(&id, 0, sizeof id);
    dt_err err = make_state(comm);
    if (err == DT_OK && comm->rank == 0) {
        const ncclResult_t result = ncclGetUniqueId(&id);
        if (result != ncclSuccess) err = nccl_fail(comm, result, "ncclGetUniqueId");
    }
    err = dt_comm_agree(comm, err);
    if (err == DT_OK) err = dt_comm_broadcast_host(comm, &id, sizeof id, 0);
    if (err == DT_OK) err = connect_ranks(comm, id);
    if (err == DT_OK) return DT_OK;
    if (state_of(comm) && state_of(comm)->nccl) ncclCommAbort(state_of(comm)->nccl);
    free_state(comm);
    return err;
}

static dt_err finalise(dt_comm *comm)
{
    DT_TRY(dt_comm_may_join(comm));
    return settle(comm, ncclCommFinalize(state_of(comm)->nccl), "closing");
}

/* All ranks call this, and no work is queued. A communicator that cannot be finalised is aborted. */
static void nccl_close(dt_comm *comm)
{
    nccl_state *t = state_of(comm);
    if (finalise(comm) == DT_OK)
        ncclCommDestroy(t->nccl);
    else
        ncclCommAbort(t->nccl);
    free_state(comm);
}

static dt_err nccl_poll(const dt_comm *comm)
{
    nccl_state *t = state_of(comm);
    ncclResult_t result = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(t->nccl, &result);
    if (asked != ncclSuccess) result = asked;
    return result == ncclSuccess || result == ncclInProgress ? DT_OK : nccl_fail(comm, result, "exchange between GPUs");
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

#define DT_NCCL(comm, call)                                                                                            \
    do {                                                                                                               \
        const ncclResult_t r_ = (call);                                                                                \
        if (r_ != ncclSuccess && r_ != ncclInProgress) return nccl_fail(comm, r_, #call);                              \
    } while (0)

static dt_err begin_group(dt_comm *comm)
{
    DT_TRY(dt_comm_may_join(comm));
    DT_NCCL(comm, ncclGroupStart());
    return DT_OK;
}

typedef struct reduction {
    const char *send;
    dt_dtype send_dt, recv_dt;
    char *recv;
    int64_t count;
    bool accumulate;
} reduction;

static const char *piece(const dt_comm *comm, const reduction *d, int r, int64_t done)
{
    return d->send + (size_t)(comm->piece_of[r] * d->count + done) * dt_dtype_size(d->send_dt);
}

/* Reduce n elements at offset `done` of the blocks of all ranks at once. */
static dt_err reduce_flat(dt_comm *comm, const reduction *d, int64_t done, int64_t n, dt_stream *s)
{
    const nccl_state *t = state_of(comm);
    const size_t nbytes = (size_t)n * dt_dtype_size(d->send_dt);
    DT_TRY(begin_group(comm));
    for (int k = 0; k < t->n_slots; k++) {
        /* slots are in rank order; every rank starts with its neighbours */
        const int r = comm->nranks > 1 ? (comm->rank + 1 + k) % comm->nranks : 0, slot = r > comm->rank ? r - 1 : r;
        DT_NCCL(comm, ncclSend(piece(comm, d, r, done), nbytes, ncclInt8, r, t->nccl, s->handle));
        DT_NCCL(comm, ncclRecv((char *)t->staged.ptr + (size_t)slot * nbytes, nbytes, ncclInt8, r, t->nccl, s->handle));
    }
    DT_TRY(settle(comm, ncclGroupEnd(), "reduce_scatter"));
    const nccl_fold fold = {.own = piece(comm, d, comm->rank, done),
                            .staged = t->staged.ptr,
                            .stride = n,
                            .rank = comm->rank,
                            .nranks = comm->nranks,
                            .send_dt = d->send_dt,
                            .recv_dt = d->recv_dt,
                            .recv = d->recv + (size_t)done * dt_dtype_size(d->recv_dt),
                            .accumulate = d->accumulate,
                            .n = n};
    return nccl_fold_pieces(s, &fold);
}

/* Layout of the staging buffer, in strides of the longest part: blocks by node and neighbour, then sums by node, then
 * sums received from other nodes. */
typedef struct node_staging {
    char *pieces;
    float *sums, *came;
    int64_t stride; /* elements */
    int n_nodes, n_near;
} node_staging;

static bool adds_in_nodes(const dt_comm *comm)
{
    return comm->even_nodes && comm->n_nodes > 1 && comm->local_nranks > 1;
}

static node_staging node_staging_of(const dt_comm *comm, size_t elem)
{
    const nccl_state *t = state_of(comm);
    node_staging g = {.pieces = t->staged.ptr, .n_nodes = comm->n_nodes, .n_near = comm->local_nranks - 1};
    const size_t n_pieces = (size_t)(g.n_nodes * g.n_near), n_sums = (size_t)(2 * g.n_nodes - 1);
    g.stride = (int64_t)(t->staged.nbytes / (n_pieces * elem + n_sums * sizeof(float))) / LINE * LINE;
    g.sums = (float *)(void *)(g.pieces + n_pieces * (size_t)g.stride * elem);
    g.came = g.sums + g.n_nodes * g.stride;
    return g;
}

/* Ranks of a node exchange the blocks of all ranks with their local rank, and add them. */
static dt_err add_in_node(dt_comm *comm, const reduction *d, const node_staging *g, int64_t done, int64_t n,
                          dt_stream *s)
{
    const nccl_state *t = state_of(comm);
    const int me = comm->local_rank;
    const size_t elem = dt_dtype_size(d->send_dt), nbytes = (size_t)n * elem;
    DT_TRY(begin_group(comm));
    for (int node = 0; node < g->n_nodes; node++)
        for (int k = 1; k <= g->n_near; k++) {
            const int l = (me + k) % comm->local_nranks, slot = node * g->n_near + (l > me ? l - 1 : l),
                      r = dt_comm_rank_of(comm, comm->node, l);
            char *to = g->pieces + (size_t)(slot * g->stride) * elem;
            DT_NCCL(comm, ncclSend(piece(comm, d, dt_comm_rank_of(comm, node, l), done), nbytes, ncclInt8, r, t->nccl,
                                   s->handle));
            DT_NCCL(comm, ncclRecv(to, nbytes, ncclInt8, r, t->nccl, s->handle));
        }
    DT_TRY(settle(comm, ncclGroupEnd(), "reduce_scatter"));
    dt_err err = DT_OK;
    for (int node = 0; node < g->n_nodes; node++) {
        const nccl_fold fold = {.own = piece(comm, d, dt_comm_rank_of(comm, node, me), done),
                                .staged = g->pieces + (size_t)(node * g->n_near * g->stride) * elem,
                                .stride = g->stride,
                                .rank = me,
                                .nranks = comm->local_nranks,
                                .send_dt = d->send_dt,
                                .recv_dt = DT_F32,
                                .recv = g->sums + node * g->stride,
                                .n = n};
        const dt_err folded = nccl_fold_pieces(s, &fold);
        if (err == DT_OK) err = folded;
    }
    return err;
}

/* Ranks with the same local rank exchange their nodes' sums, and add their own in node order. */
static dt_err add_nodes(dt_comm *comm, const reduction *d, const node_staging *g, int64_t done, int64_t n, dt_stream *s)
{
    const nccl_state *t = state_of(comm);
    const size_t nbytes = (size_t)n * sizeof(float);
    DT_TRY(begin_group(comm));
    for (int k = 1; k < g->n_nodes; k++) {
        const int node = (comm->node + k) % g->n_nodes, slot = node > comm->node ? node - 1 : node,
                  r = dt_comm_rank_of(comm, node, comm->local_rank);
        DT_NCCL(comm, ncclSend(g->sums + node * g->stride, nbytes, ncclInt8, r, t->nccl, s->handle));
        DT_NCCL(comm, ncclRecv(g->came + slot * g->stride, nbytes, ncclInt8, r, t->nccl, s->handle));
    }
    DT_TRY(settle(comm, ncclGroupEnd(), "reduce_scatter"));
    const nccl_fold fold = {.own = g->sums + comm->node * g->stride,
                            .staged = g->came,
                            .stride = g->stride,
                            .rank = comm->node,
                            .nranks = g->n_nodes,
                            .send_dt = DT_F32,
                            .recv_dt = d->recv_dt,
                            .recv = d->recv + (size_t)done * dt_dtype_size(d->recv_dt),
                            .accumulate = d->accumulate,
                            .n = n};
    return nccl_fold_pieces(s, &fold);
}

/* After a device error the rank still takes part, unless the device has failed permanently. */
static dt_err reduce_by_nodes(dt_comm *comm, const reduction *d, const node_staging *g, int64_t done, int64_t n,
                              dt_stream *s)
{
    const dt_err near = add_in_node(comm, d, g, done, n, s);
    if (near == DT_ERR_COMM) return near;
    const dt_err far = add_nodes(comm, d, g, done, n, s);
    return near == DT_OK || far == DT_ERR_COMM ? far : near;
}

static dt_err nccl_reduce_scatter(dt_comm *comm, const void *send, dt_dtype send_dt, void *recv, dt_dtype recv_dt,
                                  int64_t count, bool accumulate, bool ordered, dt_stream *stream)
{
    nccl_state *t = state_of(comm);
    const dt_device_ops *ops = comm->dev->ops;
    dt_stream *s = cuda_stream(comm->dev, stream, "reduce_scatter");
    const reduction d = {send, send_dt, recv_dt, recv, count, accumulate};
    const bool by_nodes = adds_in_nodes(comm) && !ordered;
    const size_t elem = dt_dtype_size(send_dt);
    const node_staging g = by_nodes ? node_staging_of(comm, elem) : (node_staging){0};
    const int64_t most = by_nodes ? g.stride : (int64_t)(t->staged.nbytes / (size_t)t->n_slots / elem) / LINE * LINE;
    nccl_note *note = note_before(comm, "reduce_scatter", s->handle);
    dt_err err = ops->event_wait(comm->dev, t->free, stream); /* after a device error the rank still takes part */
    for (int64_t done = 0; done < count; done += most) {
        const int64_t n = count - done < most ? count - done : most;
        const dt_err reduced = by_nodes ? reduce_by_nodes(comm, &d, &g, done, n, s) : reduce_flat(comm, &d, done, n, s);
        if (reduced == DT_ERR_COMM) return reduced; /* the note is kept: it shows the position */
        if (err == DT_OK) err = reduced;
    }
    note_behind(note, s->handle);
    const dt_err marked = ops->event_record(comm->dev, t->free, stream);
    return err == DT_OK ? marked : err;
}

/* Exchange parts among some ranks; each rank's own part is at its offset. in_node: the ranks of this node; else those
 * with the same local rank. */
static dt_err exchange_parts(dt_comm *comm, bool in_node, char *buf, size_t stride, size_t nbytes, dt_stream *stream)
{
    const nccl_state *t = state_of(comm);
    const char *kind = in_node ? "all_gather" : "replicate";
    dt_stream *s = cuda_stream(comm->dev, stream, kind);
    nccl_note *note = note_before(comm, kind, s->handle);
    const int n = in_node ? comm->local_nranks : comm->n_nodes, me = in_node ? comm->local_rank : comm->node;
    DT_TRY(begin_group(comm));
    for (int k = 1; k < n; k++) {
        const int i = (me + k) % n,
                  r = in_node ? dt_comm_rank_of(comm, comm->node, i) : dt_comm_rank_of(comm, i, comm->local_rank);
        DT_NCCL(comm, ncclSend(buf + (size_t)me * stride, nbytes, ncclInt8, r, t->nccl, s->handle));
        DT_NCCL(comm, ncclRecv(buf + (size_t)i * stride, nbytes, ncclInt8, r, t->nccl, s->handle));
    }
    DT_TRY(settle(comm, ncclGroupEnd(), kind));
    note_behind(note, s->handle);
    return DT_OK;
}

static dt_err gather_in_node(dt_comm *comm, const void *send, char *recv, size_t nbytes, dt_stream *stream)
{
    char *own = recv + (size_t)comm->local_rank * nbytes;
    const dt_err copied = own == send ? DT_OK : comm->dev->ops->copy(comm->dev, own, send, nbytes, stream);
    const dt_err err = comm->local_nranks > 1 ? exchange_parts(comm, true, recv, nbytes, nbytes, stream) : DT_OK;
    return err == DT_OK ? copied : err;
}

static dt_err nccl_all_gather(dt_comm *comm, const void *send, void *recv, size_t nbytes, dt_stream *stream)
{
    if (nbytes == 0) return DT_OK;
    if (comm->n_groups > 1) return gather_in_node(comm, send, recv, nbytes, stream);
    dt_stream *s = cuda_stream(comm->dev, stream, "all_gather");
    nccl_note *note = note_before(comm, "all_gather", s->handle);
    DT_TRY(dt_comm_may_join(comm));
    DT_TRY(settle(comm, ncclAllGather(send, recv, nbytes, ncclInt8, state_of(comm)->nccl, s->handle), "all_gather"));
    note_behind(note, s->handle);
    return DT_OK;
}

static dt_err nccl_replicate(dt_comm *comm, void *buf, size_t stride, size_t nbytes, dt_stream *stream)
{
    return nbytes == 0 ? DT_OK : exchange_parts(comm, false, buf, stride, nbytes, stream);
}

/* The only symbol that the program looks up, and the headers it was compiled from. */
DT_OBJECT_INTERFACE(dt_comm_nccl_ops);
extern const dt_comm_ops dt_comm_nccl_ops;
const dt_comm_ops dt_comm_nccl_ops = {
    .name = "nccl",
    .open = nccl_open,
    .close = nccl_close,
    .poll = nccl_poll,
    .where = nccl_where,
    .reduce_scatter = nccl_reduce_scatter,
    .all_gather = nccl_all_gather,
    .replicate = nccl_replicate,
};
