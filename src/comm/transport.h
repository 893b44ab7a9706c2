/* transport.h - state of the transport "mpi" and declarations of its parts. Reductions and gathers work on host memory;
 * exchanges take memory of any device. */
#ifndef DTRAIN_COMM_TRANSPORT_H
#define DTRAIN_COMM_TRANSPORT_H

#include "reduce.h"
#include "shm.h"

/** Buffers that all axes share. */
typedef struct dt_transport {
    int n_threads;        /* for copies and sums */
    size_t stream_nbytes; /* results of at least this size are written with non-temporal stores */
    dt_buf net;           /* two sets of received blocks and node sums to send */
    size_t net_set_nbytes;
    MPI_Request *requests;     /* two sets */
    int n_requests;            /* per set; together at least 2 * nranks */
    const void **src;          /* [nranks] inputs of a fold */
    dt_buf pinned;             /* staging for a device whose memory the host cannot access */
    dt_event *returned;        /* the last copy from there to the device has completed */
    dt_shm windows[DT_N_AXES]; /* by dt_axis.window */
} dt_transport;

/** How an axis is served. */
typedef struct dt_route {
    dt_shm *shm;
    bool shared; /* members on one node exchange through shared memory, on every node alike */
    /* several nodes with the same number of members, above one: sum inside the node, then exchange sums */
    bool hierarchical;
    int n_far;             /* number of members reached by messages */
    size_t message_nbytes; /* maximum bytes of one message of a reduction */
} dt_route;

static inline dt_transport *dt_transport_of(const dt_axis *axis) { return axis->comm->impl; }
static inline const dt_route *dt_route_of(const dt_axis *axis) { return axis->route; }

/** Is member i reached through shared memory, or is it this rank? */
static inline bool dt_transport_shares_memory(const dt_axis *axis, int i)
{
    return i == axis->rank || (dt_route_of(axis)->shared && axis->node_of[i] == axis->node);
}

dt_err dt_transport_reduce_scatter(const dt_axis *axis, const dt_reduction *r);
dt_err dt_transport_all_gather(const dt_axis *axis, const void *send, void *recv, size_t stride, size_t nbytes);
/** dt_comm_ops.exchange: messages, staged if the host cannot access the device's memory. */
dt_err dt_transport_exchange(const dt_axis *axis, const char *kind, const dt_parcel *m, int n, dt_stream *stream);
/** Make this stream wait until the copies from the pinned buffer have completed. The next stream waits for the work
 *  that follows, up to give_pinned. */
static inline dt_err dt_transport_take_pinned(const dt_axis *axis, dt_stream *stream)
{
    dt_device *dev = axis->comm->dev;
    return dev->ops->event_wait(dev, dt_transport_of(axis)->returned, stream);
}
static inline dt_err dt_transport_give_pinned(const dt_axis *axis, dt_stream *stream)
{
    dt_device *dev = axis->comm->dev;
    return dev->ops->event_record(dev, dt_transport_of(axis)->returned, stream);
}

#endif
