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
    cudaEvent_t before, after;
    atomic_bool queued; /* the event after it is recorded */
} nccl_note;

typedef struct nccl_state {
    ncclComm_t nccl;
    dt_buf staged;            /* blocks of the other ranks */
    dt_event *free;           /* recorded after the last reader of the staging buffer, which all streams share */
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
        DT_CUDA(cudaEventCreateWithFlags(&t->notes[i].after, cudaEventDisableTiming));
    }
    return DT_OK;
}

static void free_notes(nccl_state *t)
{
    if (dt_device_failure()) return; /* a failed GPU gets nothing back */
    for (int i = 0; i < N_NOTES; i++) {
        if (t->notes[i].before) cudaEventDestroy(t->notes[i].before);
        if (t->notes[i].after) cudaEventDestroy(t->notes[i].after);
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

static void note_after(nccl_note *n, cudaStream_t stream)
{
    record(n->after, stream);
    atomic_store(&n->queued, true);
}

static bool is_done(nccl_note *n) { return atomic_load(&n->queued) && cudaEventQuery(n->after) == cudaSuccess; }

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
    const cudaError_t state = cudaEventQuery(n->after);
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
    const size_t nbytes = dt_nccl_staging_of(comm->nranks);
    DT_TRY(dt_buf_alloc(&t->staged, comm->dev, DT_ON_DEVICE, nbytes, DT_MEM_STAGING));
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

static const char *block(const dt_axis *axis, const dt_reduction *d, int r, int64_t done)
{
    return (const char *)d->send + (size_t)(axis->block_of[r] * d->stride + done) * dt_dtype_size(d->send_dt);
}
static void *result(const dt_reduction *d, int64_t done)
{
    return (char *)d->recv + (size_t)done * dt_dtype_size(d->recv_dt);
}

/* In a group: send to a member of an axis, and receive from it. */
static dt_err swap(const dt_axis *axis, int with, const void *send, void *recv, size_t nbytes, dt_stream *s)
{
    const nccl_state *t = state_of(axis->comm);
    DT_NCCL(axis->comm, ncclSend(send, nbytes, ncclInt8, axis->member[with], t->nccl, s->handle));
    DT_NCCL(axis->comm, ncclRecv(recv, nbytes, ncclInt8, axis->member[with], t->nccl, s->handle));
    return DT_OK;
}

/* Number of blocks that the staging buffer holds: of the other ranks, or a single rank's own. */
static int n_slots(const dt_axis *axis) { return axis->size > 1 ? axis->size - 1 : 1; }

/* Reduce n elements at offset `done` of the blocks of all ranks at once. */
static dt_err reduce_flat(const dt_axis *axis, const dt_reduction *d, int64_t done, int64_t n, dt_stream *s)
{
    const nccl_state *t = state_of(axis->comm);
    const size_t nbytes = (size_t)n * dt_dtype_size(d->send_dt);
    DT_TRY(begin_group(axis->comm));
    for (int k = 0; k < n_slots(axis); k++) {
        /* slots are in rank order; every rank starts with its neighbours */
        const int r = (axis->rank + 1 + k) % axis->size, slot = r > axis->rank ? r - 1 : r;
        DT_TRY(swap(axis, r, block(axis, d, r, done), (char *)t->staged.ptr + (size_t)slot * nbytes, nbytes, s));
    }
    DT_TRY(settle(axis->comm, ncclGroupEnd(), "reduce_scatter"));
    const nccl_fold fold = {.own = block(axis, d, axis->rank, done),
                            .staged = t->staged.ptr,
                            .stride = n,
                            .rank = axis->rank,
                            .nranks = axis->size,
                            .send_dt = d->send_dt,
                            .recv_dt = d->recv_dt,
                            .recv = result(d, done),
                            .accumulate = d->accumulate,
                            .n = n};
    return nccl_fold_blocks(s, &fold);
}

/* Layout of the staging buffer, in strides of the longest part: blocks by node and neighbour, then sums by node, then
 * sums received from other nodes. */
typedef struct node_staging {
    char *pieces;
    float *sums, *came;
    int64_t stride; /* elements */
    int n_nodes, n_near;
} node_staging;

static bool adds_in_nodes(const dt_axis *axis) { return axis->even_nodes && axis->n_nodes > 1 && axis->local_size > 1; }

static node_staging node_staging_of(const dt_axis *axis, size_t elem)
{
    const nccl_state *t = state_of(axis->comm);
    node_staging g = {.pieces = t->staged.ptr, .n_nodes = axis->n_nodes, .n_near = axis->local_size - 1};
    const size_t n_pieces = (size_t)(g.n_nodes * g.n_near), n_sums = (size_t)(2 * g.n_nodes - 1);
    g.stride = (int64_t)(t->staged.nbytes / (n_pieces * elem + n_sums * sizeof(float))) / LINE * LINE;
    g.sums = (float *)(void *)(g.pieces + n_pieces * (size_t)g.stride * elem);
    g.came = g.sums + g.n_nodes * g.stride;
    return g;
}

/* Ranks of a node exchange the blocks of all ranks with their local rank, and add them. */
static dt_err add_in_node(const dt_axis *axis, const dt_reduction *d, const node_staging *g, int64_t done, int64_t n,
                          dt_stream *s)
{
    const int me = axis->local_rank;
    const size_t elem = dt_dtype_size(d->send_dt), nbytes = (size_t)n * elem;
    DT_TRY(begin_group(axis->comm));
    for (int node = 0; node < g->n_nodes; node++)
        for (int k = 1; k <= g->n_near; k++) {
            const int l = (me + k) % axis->local_size, slot = node * g->n_near + (l > me ? l - 1 : l);
            DT_TRY(swap(axis, dt_axis_at(axis, axis->node, l), block(axis, d, dt_axis_at(axis, node, l), done),
                        g->pieces + (size_t)(slot * g->stride) * elem, nbytes, s));
        }
    DT_TRY(settle(axis->comm, ncclGroupEnd(), "reduce_scatter"));
    dt_err err = DT_OK;
    for (int node = 0; node < g->n_nodes; node++) {
        const nccl_fold fold = {.own = block(axis, d, dt_axis_at(axis, node, me), done),
                                .staged = g->pieces + (size_t)(node * g->n_near * g->stride) * elem,
                                .stride = g->stride,
                                .rank = me,
                                .nranks = axis->local_size,
                                .send_dt = d->send_dt,
                                .recv_dt = DT_F32,
                                .recv = g->sums + node * g->stride,
                                .n = n};
        const dt_err folded = nccl_fold_blocks(s, &fold);
        if (err == DT_OK) err = folded;
    }
    return err;
}

/* Ranks with the same local rank exchange their nodes' sums, and add their own in node order. */
static dt_err add_nodes(const dt_axis *axis, const dt_reduction *d, const node_staging *g, int64_t done, int64_t n,
                        dt_stream *s)
{
    const size_t nbytes = (size_t)n * sizeof(float);
    DT_TRY(begin_group(axis->comm));
    for (int k = 1; k < g->n_nodes; k++) {
        const int node = (axis->node + k) % g->n_nodes, slot = node > axis->node ? node - 1 : node;
        DT_TRY(swap(axis, dt_axis_at(axis, node, axis->local_rank), g->sums + node * g->stride,
                    g->came + slot * g->stride, nbytes, s));
    }
    DT_TRY(settle(axis->comm, ncclGroupEnd(), "reduce_scatter"));
    const nccl_fold fold = {.own = g->sums + axis->node * g->stride,
                            .staged = g->came,
                            .stride = g->stride,
                            .rank = axis->node,
                            .nranks = g->n_nodes,
                            .send_dt = DT_F32,
                            .recv_dt = d->recv_dt,
                            .recv = result(d, done),
                            .accumulate = d->accumulate,
                            .n = n};
    return nccl_fold_blocks(s, &fold);
}

/* After a device error the rank still takes part, unless the device has failed permanently. */
static dt_err reduce_by_nodes(const dt_axis *axis, const dt_reduction *d, const node_staging *g, int64_t done,
                              int64_t n, dt_stream *s)
{
    const dt_err near = add_in_node(axis, d, g, done, n, s);
    if (near == DT_ERR_COMM) return near;
    const dt_err far = add_nodes(axis, d, g, done, n, s);
    return near == DT_OK || far == DT_ERR_COMM ? far : near;
}

static dt_err nccl_reduce_scatter(const dt_axis *axis, const dt_reduction *d, dt_stream *stream)
{
    dt_comm *comm = axis->comm;
    nccl_state *t = state_of(comm);
    const dt_device_ops *ops = comm->dev->ops;
    dt_stream *s = cuda_stream(comm->dev, stream, "reduce_scatter");
    const bool by_nodes = adds_in_nodes(axis) && !d->ordered;
    const size_t elem = dt_dtype_size(d->send_dt);
    const node_staging g = by_nodes ? node_staging_of(axis, elem) : (node_staging){0};
    const int64_t most = by_nodes ? g.stride : (int64_t)(t->staged.nbytes / (size_t)n_slots(axis) / elem) / LINE * LINE;
    nccl_note *note = note_before(comm, "reduce_scatter", s->handle);
    dt_err err = ops->event_wait(comm->dev, t->free, stream); /* after a device error the rank still takes part */
    for (int64_t done = 0; done < d->count; done += most) {
        const int64_t n = d->count - done < most ? d->count - done : most;
        const dt_err reduced = by_nodes ? reduce_by_nodes(axis, d, &g, done, n, s) : reduce_flat(axis, d, done, n, s);
        if (reduced == DT_ERR_COMM) return reduced; /* the note is kept: it shows the position */
        if (err == DT_OK) err = reduced;
    }
    note_after(note, s->handle);
    const dt_err marked = ops->event_record(comm->dev, t->free, stream);
    return err == DT_OK ? marked : err;
}

/* Every rank sends its part to every other. Its own is copied unless it is at its place. */
static dt_err exchange_parts(const dt_axis *axis, const char *kind, const char *send, char *buf, size_t stride,
                             size_t nbytes, dt_stream *stream)
{
    dt_comm *comm = axis->comm;
    dt_stream *s = cuda_stream(comm->dev, stream, kind);
    char *own = buf + (size_t)axis->rank * stride;
    const dt_err copied = own == send ? DT_OK : comm->dev->ops->copy(comm->dev, own, send, nbytes, stream);
    if (axis->size == 1) return copied;
    nccl_note *note = note_before(comm, kind, s->handle);
    DT_TRY(begin_group(comm));
    for (int k = 1; k < axis->size; k++) {
        const int r = (axis->rank + k) % axis->size;
        DT_TRY(swap(axis, r, own, buf + (size_t)r * stride, nbytes, s));
    }
    DT_TRY(settle(comm, ncclGroupEnd(), kind));
    note_after(note, s->handle);
    return copied;
}

/* NCCL's own all-gather serves the axes that contain all ranks in their order. */
static dt_err nccl_all_gather(const dt_axis *axis, const char *kind, const void *send, void *recv, size_t stride,
                              size_t nbytes, dt_stream *stream)
{
    dt_comm *comm = axis->comm;
    if (nbytes == 0) return DT_OK;
    if (!axis->in_order || stride != nbytes) return exchange_parts(axis, kind, send, recv, stride, nbytes, stream);
    dt_stream *s = cuda_stream(comm->dev, stream, kind);
    nccl_note *note = note_before(comm, kind, s->handle);
    DT_TRY(dt_comm_may_join(comm));
    DT_TRY(settle(comm, ncclAllGather(send, recv, nbytes, ncclInt8, state_of(comm)->nccl, s->handle), kind));
    note_after(note, s->handle);
    return DT_OK;
}

static dt_err nccl_exchange(const dt_axis *axis, const char *kind, const dt_parcel *m, int n, dt_stream *stream)
{
    dt_comm *comm = axis->comm;
    const nccl_state *t = state_of(comm);
    dt_stream *s = cuda_stream(comm->dev, stream, kind);
    if (n == 0) return DT_OK;
    nccl_note *note = note_before(comm, kind, s->handle);
    DT_TRY(begin_group(comm));
    for (int i = 0; i < n; i++) {
        const int r = axis->member[m[i].rank];
        if (m[i].send_nbytes > 0) DT_NCCL(comm, ncclSend(m[i].send, m[i].send_nbytes, ncclInt8, r, t->nccl, s->handle));
        if (m[i].recv_nbytes > 0) DT_NCCL(comm, ncclRecv(m[i].recv, m[i].recv_nbytes, ncclInt8, r, t->nccl, s->handle));
    }
    DT_TRY(settle(comm, ncclGroupEnd(), kind));
    note_after(note, s->handle);
    return DT_OK;
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
    .exchange = nccl_exchange,
};
