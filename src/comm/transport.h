/* transport.h - state of the transport "mpi" and declarations of its parts. Everything here works on host memory. */
#ifndef DTRAIN_COMM_TRANSPORT_H
#define DTRAIN_COMM_TRANSPORT_H

#include "reduce.h"
#include "shm.h"

typedef struct dt_transport {
    dt_shm shm;
    bool shared; /* ranks of one node exchange through shared memory, on every node alike */
    /* several nodes with the same number of ranks, above one: sum inside the node, then exchange sums */
    bool hierarchical;
    int n_threads;        /* for copies and sums */
    size_t stream_nbytes; /* results of at least this size are written with non-temporal stores */
    int n_far;            /* number of ranks reached by messages */
    size_t piece_nbytes;  /* maximum bytes of one message of a reduction */
    dt_buf net;           /* two sets of received blocks and node sums to send */
    size_t net_set_nbytes;
    MPI_Request *requests; /* two sets */
    int n_requests;        /* per set */
    const void **src;      /* [nranks] inputs of a fold */
    dt_buf pinned;         /* staging for a device whose memory the host cannot access */
    dt_event *returned;    /* the last copy from there to the device has completed */
} dt_transport;

static inline dt_transport *dt_transport_of(const dt_comm *comm) { return comm->impl; }

/** Is rank r reached through shared memory, or is it this rank? */
static inline bool dt_transport_near(const dt_comm *comm, int r)
{
    return r == comm->rank || (dt_transport_of(comm)->shared && comm->mpi->node_of[r] == comm->node);
}

dt_err dt_transport_reduce_scatter(dt_comm *comm, const void *send, dt_dtype send_dt, void *recv, dt_dtype recv_dt,
                                   int64_t count, bool accumulate, bool ordered);
dt_err dt_transport_all_gather(dt_comm *comm, const void *send, void *recv, size_t nbytes);
dt_err dt_transport_replicate(dt_comm *comm, void *buf, size_t stride, size_t nbytes);

#endif
