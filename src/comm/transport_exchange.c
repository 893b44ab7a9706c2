/* transport_exchange.c - messages between the ranks of an axis, inside a node and between nodes.
 *
 * MPI moves them, through shared memory inside a node. If the host cannot access the memory, a part of each message is
 * staged at a time. The pinned buffer has two slots for each member, one for each direction. */
#include "transport.h"

enum { TAG_MESSAGE = 4, ROUND_NBYTES = 64 << 20, LINE = 64 };

typedef struct exchange_round {
    const dt_axis *axis;
    const dt_parcel *m;
    int n;
    size_t done, max_nbytes; /* bytes of each message: in earlier rounds, and at most in this one */
    char *staged;            /* the pinned buffer; NULL: messages are not staged */
    dt_stream *stream;
} exchange_round;

static size_t part(const exchange_round *r, size_t nbytes)
{
    return nbytes > r->done ? dt_min_size(r->max_nbytes, nbytes - r->done) : 0;
}

/** Slots in the pinned buffer: of the message to member i, and from it. */
static char *outgoing(const exchange_round *r, int i) { return r->staged + (size_t)(2 * i) * r->max_nbytes; }
static char *incoming(const exchange_round *r, int i) { return r->staged + (size_t)(2 * i + 1) * r->max_nbytes; }

static dt_err copy(const exchange_round *r, void *to, const void *from, size_t nbytes)
{
    dt_device *dev = r->axis->comm->dev;
    return nbytes > 0 ? dev->ops->copy(dev, to, from, nbytes, r->stream) : DT_OK;
}

static dt_err stage(const exchange_round *r)
{
    dt_device *dev = r->axis->comm->dev;
    dt_err err = DT_OK;
    for (int i = 0; i < r->n; i++)
        err = dt_first_err(err,
                           copy(r, outgoing(r, i), (const char *)r->m[i].send + r->done, part(r, r->m[i].send_nbytes)));
    return dt_first_err(err, dev->ops->stream_sync(dev, r->stream));
}

static dt_err unstage(const exchange_round *r)
{
    dt_err err = DT_OK;
    for (int i = 0; i < r->n; i++)
        err = dt_first_err(err, copy(r, (char *)r->m[i].recv + r->done, incoming(r, i), part(r, r->m[i].recv_nbytes)));
    return err;
}

static dt_err send_parts(const exchange_round *r)
{
    const dt_comm *comm = r->axis->comm;
    MPI_Request *req = dt_transport_of(r->axis)->requests;
    int n_req = 0;
    DT_TRY(dt_comm_may_join(comm));
    for (int i = 0; i < r->n; i++) {
        const dt_parcel *m = &r->m[i];
        const size_t take = part(r, m->recv_nbytes);
        void *to = r->staged ? incoming(r, i) : (char *)m->recv + r->done;
        if (take > 0)
            DT_MPI(MPI_Irecv(to, (int)take, MPI_BYTE, r->axis->member[m->rank], TAG_MESSAGE, comm->mpi->world,
                             &req[n_req++]));
    }
    for (int i = 0; i < r->n; i++) {
        const dt_parcel *m = &r->m[i];
        const size_t give = part(r, m->send_nbytes);
        const void *from = r->staged ? outgoing(r, i) : (const char *)m->send + r->done;
        if (give > 0)
            DT_MPI(MPI_Isend(from, (int)give, MPI_BYTE, r->axis->member[m->rank], TAG_MESSAGE, comm->mpi->world,
                             &req[n_req++]));
    }
    DT_MPI(MPI_Waitall(n_req, req, MPI_STATUSES_IGNORE));
    return DT_OK;
}

dt_err dt_transport_exchange(const dt_axis *axis, const char *kind, const dt_parcel *m, int n, dt_stream *stream)
{
    (void)kind;
    dt_transport *t = dt_transport_of(axis);
    const bool accessible = axis->comm->dev->ops->host_accessible;
    exchange_round r = {.axis = axis, .m = m, .n = n, .stream = stream};
    r.staged = accessible ? NULL : t->pinned.ptr;
    r.max_nbytes = accessible ? dt_min_size(ROUND_NBYTES, axis->comm->mpi->max_message)
                              : t->pinned.nbytes / (2 * (size_t)axis->size) / LINE * LINE;
    size_t all = 0;
    for (int i = 0; i < n; i++) {
        const size_t longer = m[i].send_nbytes > m[i].recv_nbytes ? m[i].send_nbytes : m[i].recv_nbytes;
        if (longer > all) all = longer;
    }
    /* a rank that waits for shared memory then lets these messages progress */
    for (int i = 0; i < DT_N_AXES; i++) t->windows[i].progress = axis->comm->mpi->world;
    dt_err err = accessible ? DT_OK : dt_transport_take_pinned(axis, stream);
    for (; r.done < all && err != DT_ERR_COMM; r.done += r.max_nbytes) {
        if (!accessible) err = dt_first_err(err, stage(&r));
        err = dt_first_err(err, send_parts(&r));
        if (!accessible && err != DT_ERR_COMM) err = dt_first_err(err, unstage(&r));
    }
    return accessible ? err : dt_first_err(err, dt_transport_give_pinned(axis, stream));
}
