/* collectives.c - collectives on tensors: checks their arguments and passes them to the transport.
 *
 * A rank with a local or injected error still takes part and returns the error afterwards. All ranks therefore reach
 * the next vote. */
#include "internal.h"

/* ---- sums and gathers -------------------------------------------------------------------------------------------- */

/* For the timeline: the number of the collective, and this rank's current unit. */
static void begin_on_stream(const dt_comm *comm, dt_stream *stream, const char *kind)
{
    const char *unit = comm->phase ? atomic_load_explicit(&comm->phase->unit, memory_order_relaxed) : "";
    dt_stream_begin(comm->dev, stream, kind, unit, atomic_load_explicit(&comm->sequence, memory_order_relaxed));
}

/* fault: the result if the collective has succeeded. */
static dt_err end_on_stream(const dt_axis *axis, dt_stream *stream, dt_err err, dt_err fault)
{
    dt_stream_end(axis->comm->dev, stream);
    return err == DT_OK ? fault : err;
}

static dt_err check_reduce(const dt_axis *axis, const dt_reduction *d)
{
    DT_EXPECT(axis && axis->comm && axis->comm->ops);
    DT_EXPECT(d->count >= 0 && d->count <= INT64_MAX / 4 / axis->size);
    DT_EXPECT(d->count == 0 || (d->send && d->recv));
    DT_EXPECT(dt_is_float(d->send_dt) && dt_is_float(d->recv_dt));
    const uintptr_t block = (uintptr_t)d->count * dt_dtype_size(d->send_dt), s = (uintptr_t)d->send,
                    r = (uintptr_t)d->recv, recv_len = (uintptr_t)d->count * dt_dtype_size(d->recv_dt);
    const bool in_place = r == s + block * (uintptr_t)dt_axis_block(axis) && d->send_dt == d->recv_dt && !d->accumulate;
    DT_EXPECT(in_place || r >= s + block * (uintptr_t)axis->size || r + recv_len <= s);
    return DT_OK;
}

dt_err dt_comm_reduce_scatter(const dt_axis *axis, const void *send, dt_dtype send_dt, void *recv, dt_dtype recv_dt,
                              int64_t count, bool accumulate, bool ordered, dt_stream *stream)
{
    const dt_err fault = dt_fault("comm.reduce_scatter");
    const dt_reduction d = {send, recv, send_dt, recv_dt, count, count, accumulate, ordered};
    DT_TRY(check_reduce(axis, &d));
    dt_comm *comm = axis->comm;
    DT_TRY(dt_comm_next(
        comm, &(dt_collective){"reduce_scatter", count, send_dt, recv_dt, -1, accumulate, ordered, axis, false}));
    begin_on_stream(comm, stream, "reduce_scatter");
    DT_TRY(end_on_stream(axis, stream, comm->ops->reduce_scatter(axis, &d, stream), DT_OK));
    comm->traffic_bytes += (double)(axis->size - 1) * (double)count * (double)dt_dtype_size(send_dt);
    return fault;
}

/** Begin a collective without arithmetic. */
static dt_err begin(const dt_axis *axis, const char *kind, int64_t count, int root, dt_stream *stream)
{
    DT_TRY(dt_comm_next(axis->comm, &(dt_collective){.kind = kind, .count = count, .root = root, .axis = axis}));
    begin_on_stream(axis->comm, stream, kind);
    return DT_OK;
}

static dt_err gather(const dt_axis *axis, const char *kind, const void *send, void *recv, size_t stride, size_t nbytes,
                     dt_stream *stream)
{
    dt_comm *comm = axis->comm;
    DT_TRY(begin(axis, kind, (int64_t)nbytes, -1, stream));
    DT_TRY(end_on_stream(axis, stream, comm->ops->all_gather(axis, kind, send, recv, stride, nbytes, stream), DT_OK));
    comm->traffic_bytes += (double)(axis->size - 1) * (double)nbytes;
    return DT_OK;
}

dt_err dt_comm_all_gather(const dt_axis *axis, const void *send, void *recv, size_t nbytes, dt_stream *stream)
{
    const dt_err fault = dt_fault("comm.all_gather");
    DT_EXPECT(axis && axis->comm && axis->comm->ops);
    DT_EXPECT(nbytes <= SIZE_MAX / 2 / (size_t)axis->size);
    DT_EXPECT(nbytes == 0 || (send && recv));
    const uintptr_t s = (uintptr_t)send, r = (uintptr_t)recv;
    DT_EXPECT(s == r + nbytes * (uintptr_t)axis->rank || s + nbytes <= r || s >= r + nbytes * (uintptr_t)axis->size);
    const dt_err err = gather(axis, "all_gather", send, recv, nbytes, nbytes, stream);
    return err == DT_OK ? fault : err;
}

dt_err dt_comm_replicate(const dt_axis *axis, void *buf, size_t stride, size_t nbytes, dt_stream *stream)
{
    DT_EXPECT(axis && axis->comm && axis->comm->ops);
    DT_EXPECT(nbytes <= stride && stride <= SIZE_MAX / 2 / (size_t)axis->size);
    DT_EXPECT(nbytes == 0 || buf);
    if (axis->size == 1) return DT_OK;
    const dt_err fault = dt_fault("comm.replicate");
    const dt_err err =
        gather(axis, "replicate", (char *)buf + (size_t)axis->rank * stride, buf, stride, nbytes, stream);
    return err == DT_OK ? fault : err;
}

/* ---- all-reduce -------------------------------------------------------------------------------------------------- */

/** The sum of all ranks' elements [count], on every rank: one step. */
static dt_err sum_at_once(const dt_axis *axis, void *buf, dt_dtype dt, int64_t count, dt_stream *stream)
{
    const dt_reduction d = {.send = buf, .recv = buf, .send_dt = dt, .recv_dt = dt, .count = count, .ordered = true};
    return count > 0 ? axis->comm->ops->reduce_scatter(axis, &d, stream) : DT_OK;
}

/** Each rank sums a block, and the blocks are gathered. count: of a block. */
static dt_err sum_in_blocks(const dt_axis *axis, char *buf, dt_dtype dt, int64_t count, bool ordered, dt_stream *stream)
{
    const size_t nbytes = (size_t)count * dt_dtype_size(dt);
    char *own = buf + (size_t)dt_axis_block(axis) * nbytes;
    const dt_reduction d = {
        .send = buf, .recv = own, .send_dt = dt, .recv_dt = dt, .count = count, .stride = count, .ordered = ordered};
    const dt_err err = count > 0 ? axis->comm->ops->reduce_scatter(axis, &d, stream) : DT_OK;
    if (count == 0 || err == DT_ERR_COMM) return err;
    return dt_first_err(err, axis->comm->ops->all_gather(axis, "all_reduce", own, buf, nbytes, nbytes, stream));
}

dt_err dt_comm_all_reduce(const dt_axis *axis, void *buf, dt_dtype dt, int64_t count, bool ordered, dt_stream *stream)
{
    enum { AT_ONCE = 32 << 10 }; /* bytes up to which one step is faster than two */
    const dt_err fault = dt_fault("comm.all_reduce");
    DT_EXPECT(axis && axis->comm && axis->comm->ops);
    DT_EXPECT(count >= 0 && count <= INT64_MAX / 4 / axis->size && (count == 0 || buf));
    DT_EXPECT(dt_is_float(dt));
    DT_EXPECT(axis != &axis->comm->mesh.sum || axis->comm->mesh.replicate.size == 1);
    const size_t elem = dt_dtype_size(dt);
    const bool at_once = (size_t)count * elem <= AT_ONCE;
    const int64_t block = at_once ? 0 : count / axis->size, done = block * axis->size;
    DT_TRY(dt_comm_next(axis->comm, &(dt_collective){"all_reduce", count, dt, dt, -1, false, ordered, axis, false}));
    if (axis->size == 1) return fault;
    begin_on_stream(axis->comm, stream, "all_reduce");
    dt_err err = sum_in_blocks(axis, buf, dt, block, ordered, stream);
    if (err != DT_ERR_COMM)
        err = dt_first_err(err, sum_at_once(axis, (char *)buf + (size_t)done * elem, dt, count - done, stream));
    DT_TRY(end_on_stream(axis, stream, err, DT_OK));
    axis->comm->traffic_bytes += (double)(axis->size - 1) * (double)(2 * block + count - done) * (double)elem;
    return fault;
}

/* ---- exchanges --------------------------------------------------------------------------------------------------- */

/** Exchange messages with other members. copied: error of this rank so far. */
static dt_err exchange(const dt_axis *axis, const char *kind, const dt_parcel *m, int n, dt_err copied,
                       dt_stream *stream)
{
    const dt_err err = copied == DT_ERR_COMM ? copied : axis->comm->ops->exchange(axis, kind, m, n, stream);
    for (int i = 0; i < n && err != DT_ERR_COMM; i++) axis->comm->traffic_bytes += (double)m[i].send_nbytes;
    return dt_first_err(copied, err);
}

/** Blocks in rank order; sizes of all ranks. */
static dt_err swap_blocks(const dt_axis *axis, const char *send, const size_t *send_nbytes, char *recv,
                          const size_t *recv_nbytes, dt_stream *stream)
{
    dt_device *dev = axis->comm->dev;
    dt_parcel *m = axis->messages;
    dt_err err = DT_OK;
    int n = 0;
    for (int r = 0; r < axis->size; r++) {
        const size_t give = send_nbytes[r], take = recv_nbytes[r];
        if (r != axis->rank && give + take > 0) m[n++] = (dt_parcel){r, send, recv, give, take};
        if (r == axis->rank && give > 0) err = dev->ops->copy(dev, recv, send, give, stream);
        send += give, recv += take;
    }
    return exchange(axis, "all_to_all_v", m, n, err, stream);
}

dt_err dt_comm_all_to_all_v(const dt_axis *axis, const void *send, const size_t *send_nbytes, void *recv,
                            const size_t *recv_nbytes, dt_stream *stream)
{
    const dt_err fault = dt_fault("comm.all_to_all_v");
    DT_EXPECT(axis && axis->comm && axis->comm->ops && send_nbytes && recv_nbytes);
    uintptr_t give = 0, take = 0;
    for (int r = 0; r < axis->size; r++) give += send_nbytes[r], take += recv_nbytes[r];
    const uintptr_t s = (uintptr_t)send, r = (uintptr_t)recv;
    DT_EXPECT((give == 0 || send) && (take == 0 || recv));
    DT_EXPECT(give == 0 || take == 0 || s + give <= r || r + take <= s);
    DT_EXPECT(send_nbytes[axis->rank] == recv_nbytes[axis->rank]);
    DT_TRY(begin(axis, "all_to_all_v", 0, -1, stream));
    dt_err err = dt_comm_check_sizes(axis, send_nbytes, recv_nbytes);
    if (err == DT_OK) err = swap_blocks(axis, send, send_nbytes, recv, recv_nbytes, stream);
    return end_on_stream(axis, stream, err, fault);
}

/** Root sends each rank a part of its own, or the same to all (stride 0). */
static dt_err send_from(const dt_axis *axis, char *buf, size_t stride, size_t nbytes, int root, dt_err err,
                        dt_stream *stream)
{
    dt_parcel *m = axis->messages;
    int n = 0;
    for (int r = 0; r < axis->size && axis->rank == root; r++)
        if (r != root) m[n++] = (dt_parcel){.rank = r, .send = buf + (size_t)r * stride, .send_nbytes = nbytes};
    if (axis->rank != root)
        m[n++] = (dt_parcel){.rank = root, .recv = buf + (size_t)axis->rank * stride, .recv_nbytes = nbytes};
    return nbytes > 0 ? exchange(axis, "broadcast", m, n, err, stream) : err;
}

/* A large buffer is scattered in blocks, which the ranks then gather: root sends it once and not to every rank. */
dt_err dt_comm_broadcast(const dt_axis *axis, void *buf, size_t nbytes, int root, dt_stream *stream)
{
    enum { AT_ONCE = 64 << 10, LINE = 64 };
    const dt_err fault = dt_fault("comm.broadcast");
    DT_EXPECT(axis && axis->comm && axis->comm->ops);
    DT_EXPECT(root >= 0 && root < axis->size && (nbytes == 0 || buf));
    const size_t block = nbytes <= AT_ONCE || axis->size == 2 ? 0 : nbytes / (size_t)axis->size / LINE * LINE,
                 done = block * (size_t)axis->size;
    DT_TRY(begin(axis, "broadcast", (int64_t)nbytes, root, stream));
    dt_err err = send_from(axis, buf, block, block, root, DT_OK, stream);
    if (block > 0 && err != DT_ERR_COMM) {
        char *own = (char *)buf + (size_t)axis->rank * block;
        err = dt_first_err(err, axis->comm->ops->all_gather(axis, "broadcast", own, buf, block, block, stream));
        axis->comm->traffic_bytes += (double)(axis->size - 1) * (double)block;
    }
    if (err != DT_ERR_COMM) err = send_from(axis, (char *)buf + done, 0, nbytes - done, root, err, stream);
    return end_on_stream(axis, stream, err, fault);
}
