/* transport.h - state of the transport "mpi" and the halves of it. Everything here works on host memory. */
#ifndef DTRAIN_COMM_TRANSPORT_H
#define DTRAIN_COMM_TRANSPORT_H

#include "reduce.h"
#include "shm.h"

typedef struct dt_transport {
    dt_shm shm;
    bool shared; /* ranks of one node exchange through the window, on every node alike */
    /* several nodes with equally many ranks, more than one: sum inside the node, then exchange sums */
    bool hierarchical;
    int n_threads;        /* for copies and sums */
    size_t stream_nbytes; /* results from this size on are written around the cache */
    int n_far;            /* ranks that are reached by messages */
    size_t piece_nbytes;  /* bytes of one message of a reduction, at most */
    dt_buf net;           /* two sets of pieces received and node sums to send */
    size_t net_set_nbytes;
    MPI_Request *requests; /* two sets */
    int n_requests;        /* in a set */
    const void **src;      /* [nranks] inputs of a fold */
    dt_buf pinned;         /* staging of a device whose memory the host cannot touch */
    dt_event *returned;    /* the last copy from there to the device has completed */
} dt_transport;

static inline dt_transport *dt_transport_of(const dt_comm *comm) { return comm->impl; }

/** Is rank r reached through the window (or is it this rank)? */
static inline bool dt_transport_near(const dt_comm *comm, int r)
{
    return r == comm->rank || (dt_transport_of(comm)->shared && comm->mpi->node_of[r] == comm->node);
}

dt_err dt_transport_reduce_scatter(dt_comm *comm, const void *send, dt_dtype send_dt, void *recv, dt_dtype recv_dt,
                                   int64_t count, bool accumulate, bool ordered);
dt_err dt_transport_all_gather(dt_comm *comm, const void *send, void *recv, size_t nbytes);
dt_err dt_transport_replicate(dt_comm *comm, void *buf, size_t stride, size_t nbytes);

#endif
