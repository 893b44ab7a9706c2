/* comm.h - the ranks of a run and the axes of their mesh, collectives on an axis, and the vote by which all ranks reach
 * one decision.
 *
 * Transports. A communicator is opened over a duplicate of MPI_COMM_WORLD, with MPI_ERRORS_RETURN. The transport of
 * comm.backend moves tensors. "mpi" uses shared memory windows within a node and MPI between nodes; device memory that
 * the host cannot access is staged in pinned memory. "nccl" uses NCCL. Votes and small host values always use MPI.
 *
 * Functions marked `Collective`: all ranks of the run, or of the axis, call them in the same order relative to other
 * collectives, with the same counts, types and root. Functions marked `Local` do not communicate. `Agreed` means that
 * all ranks return the same code (dt_comm_agree), except DT_ERR_COMM. Arguments of collectives on tensors are memory of
 * comm->dev, device or host. They are borrowed until the stream is synchronised, and results are valid after
 * dt_device_ops.stream_sync or an event on the stream. Collectives on host values are synchronous: results are valid
 * when the call returns.
 *
 * Axes. A module uses the axis that it needs (dt_mesh). Only comm and main use the rank and the number of ranks of the
 * run. dt_comm_first selects the one rank that writes files.
 *
 * Errors. After DT_ERR_COMM the communicator is unusable: the caller returns the error, and main ends the job. A
 * collective on tensors may return another error: of a copy to or from the device, or an injected fault. This rank has
 * then taken part in it with undefined values, and the caller keeps the error for the next vote. After DT_ERR_ARG the
 * rank has not taken part.
 *
 * A rank whose device has failed permanently (dt_device_fail) enters no further collective or exchange. Every function
 * then returns DT_ERR_COMM with the device's message, and dt_comm_leave ends the job with the exit code of
 * DT_ERR_FAULT.
 *
 * With comm->check the ranks exchange a description of every collective before it begins. If the descriptions differ,
 * all ranks return DT_ERR_COMM. The message names a rank that differs from the majority, its collective and the
 * majority's. Later collectives return DT_ERR_COMM without an exchange. */
#ifndef DTRAIN_COMM_H
#define DTRAIN_COMM_H

#include "dtrain/device/device.h"

typedef struct dt_comm dt_comm;

/* ---- types ------------------------------------------------------------------------------------------------------- */

/** How a vote combines a value. A vote may carry any number of values in any order, the same on all ranks. */
typedef enum dt_vote_kind {
    DT_VOTE_COUNT, /* sum of integers: exact, independent of order */
    DT_VOTE_SUM,   /* sum of doubles, in rank order */
    DT_VOTE_MAX,   /* maximum; NaN if any rank's value is NaN */
    DT_VOTE_MIN    /* minimum; NaN if any rank's value is NaN */
} dt_vote_kind;

/** A value of a vote. In: this rank's. Out: the combination of all ranks' values. */
typedef struct dt_vote_value {
    int64_t kind; /* dt_vote_kind */
    union {
        int64_t count; /* DT_VOTE_COUNT */
        double real;   /* the other kinds */
    };
} dt_vote_value;

/** Status of a superstep. In: this rank's status. Out: the combined status, the same on all ranks. */
typedef struct dt_vote {
    int32_t err;           /* dt_err; out: the error of the lowest failing rank, DT_OK if none failed */
    int32_t failed_rank;   /* out: the lowest failing rank, or -1 */
    int32_t stop;          /* stop request; out: the maximum */
    int32_t nonfinite;     /* non-finite flag; out: the maximum */
    dt_vote_value *values; /* [n_values], the caller's; may be NULL if n_values is 0 */
    int n_values;          /* more than 8 need dt_comm_vote_reserve */
} dt_vote;

/** Bytes that this rank sends to a member of an axis and receives from it; either may be 0. */
typedef struct dt_parcel {
    int rank;
    const void *send;
    void *recv;
    size_t send_nbytes, recv_nbytes;
} dt_parcel;

/** An axis of the mesh: the ranks among which a tensor, or work, is divided. Read-only. */
typedef struct dt_axis {
    const char *name;
    int rank, size; /* this rank's coordinate, and the number of ranks */
    dt_comm *comm;
    int node, n_nodes;          /* nodes of its members, numbered by their first member */
    int local_rank, local_size; /* within the node, among the members */
    bool even_nodes;            /* all these nodes have the same number of members */
    int max_local, min_local;   /* maximum and minimum number of members of a node */
    bool in_order;              /* its members are all ranks of the run, in the order of their numbers */
    int *member;                /* [size] their ranks in the run; these five tables are owned by comm */
    int *block_of;              /* [size] block of a reduce-scatter that each member receives; mostly its own number */
    int *node_of, *local_of;    /* [size] */
    int *member_at; /* [n_nodes * max_local] member by node and local rank, -1 if the node has fewer members */
    /* index in dt_mesh.axis of the axis with the same members on each node, whose shared memory it uses; -1: no members
     * share a node */
    int window;
    dt_parcel *messages; /* [size] scratch of an exchange; owned by comm */
    void *route;         /* state of the transport for this axis */
} dt_axis;

/** The axes of a team. A team is the ranks that work on the same samples: neighbours on a node, the first axis fastest.
 *  A row: the axis, its word in messages, and what its ranks divide. true: tokens; they have the same parameters, and
 *  their gradients are added. false: parameters; they have the same tokens. */
#define DT_TEAM_AXES(AXIS)                                                                                             \
    AXIS(tp, "tensor", false) /* the matrices of a layer are split */                                                  \
    AXIS(cp, "context", true) /* a sequence is split */

#define DT_ONE_MORE(name, word, tokens) +1
#define DT_AXIS_OF_MESH(name, word, tokens) dt_axis name;
#define DT_AXIS_SIZE(name, word, tokens) int name;
#define DT_AXIS_OF_ONE(name, word, tokens) 1,
enum { DT_N_TEAM_AXES = DT_TEAM_AXES(DT_ONE_MORE), DT_N_AXES = 5 + DT_N_TEAM_AXES };

/** How the ranks are arranged (dt_comm_mesh). Each axis of size n contains the ranks that differ in this coordinate
 *  only. world = team x data, and sum = data x the axes of a team that divide tokens = shard x replicate. */
typedef union dt_mesh {
    struct {
        dt_axis world; /* all ranks, in the order of their numbers */
        dt_axis data;  /* which samples a rank reads */
        dt_axis sum;   /* ranks with the same parameters and different tokens: their gradients are added */
        /* of sum: ranks among which ZeRO divides states, and ranks that hold the same shard */
        dt_axis shard, replicate;
        DT_TEAM_AXES(DT_AXIS_OF_MESH)
    };
    dt_axis axis[DT_N_AXES]; /* the axes of a team are the last */
} dt_mesh;

/** A sum of dt_comm_ops.reduce_scatter: block b of send begins at element b * stride. */
typedef struct dt_reduction {
    const void *send;
    void *recv;
    dt_dtype send_dt, recv_dt;
    int64_t count, stride; /* stride 0: all ranks receive the sum of the same elements */
    bool accumulate, ordered;
} dt_reduction;

/** A transport. Arguments are those of the public functions, and already checked. */
typedef struct dt_comm_ops {
    const char *name; /* value of comm.backend that selects it */
    /** Allocate staging buffers and connect the ranks. Collective on comm. */
    dt_err (*open)(dt_comm *comm);
    /** Free what open allocated. Collective on comm. */
    void (*close)(dt_comm *comm);
    /** Has an exchange in flight failed? Local; any thread. NULL: the call of a collective reports its own failure. */
    dt_err (*poll)(const dt_comm *comm);
    /** Describe the exchange in flight on the device. Local; any thread. NULL: exchanges are complete on return. */
    void (*where)(const dt_comm *comm, char *out, size_t out_size);
    /** dt_comm_reduce_scatter. */
    dt_err (*reduce_scatter)(const dt_axis *axis, const dt_reduction *r, dt_stream *stream);
    /** dt_comm_all_gather, dt_comm_replicate: recv[r * stride ..] = send of rank r. kind: name of the collective. */
    dt_err (*all_gather)(const dt_axis *axis, const char *kind, const void *send, void *recv, size_t stride,
                         size_t nbytes, dt_stream *stream);
    /** Exchange messages with other members: n < size, at most one in each direction for each. */
    dt_err (*exchange)(const dt_axis *axis, const char *kind, const dt_parcel *m, int n, dt_stream *stream);
} dt_comm_ops;

/** Another rank on this rank's host. */
typedef struct dt_neighbour {
    int rank;
    int pid; /* 0: the process is in another PID namespace */
} dt_neighbour;

/** A communicator. The caller may set the fields marked "set by the caller"; all others are read-only. */
struct dt_comm {
    int rank, nranks;
    int local_rank, local_nranks; /* within this node */
    dt_mesh mesh;
    int n_sharing;            /* ranks on this rank's device, including itself; 0 before dt_comm_find_devices */
    int max_sharing;          /* maximum of n_sharing over all ranks */
    bool leads;               /* this rank is the lowest on its device */
    char host[64];            /* host name */
    dt_neighbour *neighbours; /* [n_neighbours] the other ranks on this host, in rank order; owned */
    int n_neighbours;
    dt_device *dev;           /* of dt_comm_attach; borrowed */
    const dt_comm_ops *ops;   /* the transport; NULL before dt_comm_attach */
    bool use_shared_memory;   /* argument of dt_comm_attach */
    bool threads;             /* MPI_THREAD_MULTIPLE is available */
    struct dt_chunks *chunks; /* stored.h: buffer lent for file I/O, or NULL; set by the caller */
    double timeout_s;         /* maximum seconds that a transport waits for other ranks; set by the caller */
    const dt_phase *phase;    /* this rank's phase, for messages, or NULL; set by the caller, alike on all ranks */
    bool check;               /* compare collectives before each begins; set by the caller, alike on all ranks */
    atomic_bool attached;     /* dt_comm_poll may ask the transport */
    bool alone;               /* no launcher (mpirun, srun) started this process */
    bool counts;              /* opened by dt_comm_open_counted */
    double traffic_bytes;     /* bytes that this rank has sent in collectives on tensors, by their formulas below */
    atomic_llong sequence;    /* number of collectives begun; read by the watchdog's thread */
    struct dt_comm_mpi *mpi;  /* MPI communicators and tables; owned */
    void *impl;               /* state of the transport; owned by it */
};

/* ---- start and end ----------------------------------------------------------------------------------------------- */

/** Initialise MPI and set comm->threads and comm->alone. Collective over the processes of the job; call it first.
 *
 *  A process that was started without a launcher keeps Open MPI from starting a daemon.
 *
 *  comm  out  not open yet: pass it to dt_comm_open
 *
 *  DT_ERR_USAGE: the launcher started several processes but MPI sees one, because launcher and library belong to
 *  different MPIs; MPI is finalised again. DT_ERR_COMM: MPI failed. */
dt_err dt_comm_start(dt_comm *comm);

/** Report to the collecting ranks (0 and 1) that this rank has waited for long. Local, does not wait; only from the
 *  watchdog's thread, like the next two functions. Without comm->threads the three do nothing. */
void dt_comm_report_waiting(const dt_comm *comm);

/** Discard the reports received so far, because this rank made progress. Local. */
void dt_comm_forget_waiting(const dt_comm *comm);

/** Describe the ranks that have not reported, on a collecting rank: "; no report from rank 3 on host b (stopped,
 *  unreachable or still computing)". Local.
 *
 *  out  out  [out_size] bytes; "" on other ranks, or if all have reported
 *
 *  Returns out. */
char *dt_comm_not_waiting(const dt_comm *comm, char *out, size_t out_size);

/** Open a communicator over all ranks: find nodes, neighbours and cores. Collective. Votes and host values work after
 *  it; tensors need dt_comm_attach.
 *
 *  comm  inout  of dt_comm_start, or {0} if the caller initialised MPI; closed by dt_comm_close
 *
 *  Not agreed: after an error the caller ends the job. DT_ERR_COMM: MPI failed or is not initialised. DT_ERR_MEMORY.
 *  DT_ERR_USAGE: DTRAIN_FAKE_NODES is invalid. */
dt_err dt_comm_open(dt_comm *comm);

/** End the whole job with this exit code (MPI_Abort). Any thread. If MPI_Abort hangs, this process ends after 5 s. */
_Noreturn void dt_comm_abort(int code);

/** Before the program ends with err, which has been printed: end the job (dt_comm_abort) if other ranks may wait for
 *  this rank in a collective, or if the device has failed. Returns if err is DT_OK, if all ranks know of the error
 *  (dt_comm_failed_together), or if there is only one rank. Local; comm may be NULL. */
void dt_comm_leave(const dt_comm *comm, dt_err err);

/** Finalise MPI, after dt_comm_leave and dt_comm_close. Collective over the processes of the job. */
void dt_comm_stop(void);

/** Name the MPI library: "Open MPI v4.1.4 (standard 3.1)". Local. out: out [out_size] bytes. Returns out. */
char *dt_comm_library(char *out, size_t out_size);

/** Free the communicator. Collective, and only while all ranks are in agreement: a rank that fails alone does not call
 *  it. Safe on NULL and {0}; leaves {0}. */
void dt_comm_close(dt_comm *comm);

/* ---- cores ------------------------------------------------------------------------------------------------------- */

/** Number of cores for this rank, at least 1. Local.
 *
 *  If the ranks of a host have disjoint CPU sets, it is the size of this rank's set, else its share of the cores that
 *  they may use together. SLURM_CPUS_PER_TASK is an upper limit. */
int dt_comm_cores(const dt_comm *comm);

/** Choose the number of threads of this rank. Local.
 *
 *  Rank 0 warns of more threads than cores, on its own host and on the host with the most ranks per core. If wanted is
 *  0, it also warns of cores of the job that the launcher's binding leaves unused.
 *
 *  wanted     0: dt_comm_cores
 *  where      name of the setting, for messages
 *  n_threads  out
 *
 *  DT_ERR_USAGE: more than 16 threads per core of the machine. */
dt_err dt_comm_threads(const dt_comm *comm, int64_t wanted, const char *where, int *n_threads);

/* ---- groups and transport ---------------------------------------------------------------------------------------- */

/** Can dev use this backend ("auto", "mpi", "nccl")? Local. DT_ERR_USAGE with the reason: the backend is unknown, was
 *  not built, or does not support dev. dev: {0} if none could be opened. */
dt_err dt_comm_has_backend(const char *backend, const dt_device *dev);

/** How dt_comm_mesh arranges the ranks. DT_MESH_FLAT, without teams, is the mesh after dt_comm_open. */
typedef struct dt_mesh_shape {
    DT_TEAM_AXES(DT_AXIS_SIZE) /* sizes of the axes of a team, at least 1 */
    bool by_node; /* the shard axis ends at the node, and replicate connects nodes; false: sum is one shard axis */
} dt_mesh_shape;
#define DT_MESH_FLAT ((dt_mesh_shape){DT_TEAM_AXES(DT_AXIS_OF_ONE) false})

/** The ranks of a team: how many divide its tokens, and its parameters. Local. */
typedef struct dt_team {
    int size[DT_N_TEAM_AXES];
    int64_t n, n_tokens, n_parts; /* n = n_tokens * n_parts */
} dt_team;
dt_team dt_team_of(const dt_mesh_shape *shape);
/** Sizes of the axes data and sum among n ranks. Local. */
int dt_mesh_data(const dt_mesh_shape *shape, int n);
int dt_mesh_sum(const dt_mesh_shape *shape, int n);
/** The mesh of ranks that do not exist, for plans: sizes, and nodes of the axes as rank 0 sees them, without tables. On
 *  an axis that divides tokens this is the last rank: in causal attention its tokens see the most keys. comm: may be
 *  NULL; collectives then must not be called. Local. */
void dt_mesh_plan(dt_mesh *mesh, dt_comm *comm, int nranks, int ranks_per_node, const dt_mesh_shape *shape);

/** Arrange the ranks in another mesh. Before dt_comm_attach, and before collectives on an axis of some of the ranks.
 *  Local: all ranks return the same, from tables that they share.
 *
 *  DT_ERR_USAGE: the size of a team does not divide the number of ranks; or, with by_node, nodes have different numbers
 *  of ranks, or it does not divide that of a node. DT_ERR_MEMORY. After an error the mesh is as before. */
dt_err dt_comm_mesh(dt_comm *comm, const dt_mesh_shape *shape);

/** The member with this local rank on a node; -1: the node has fewer members. Local. node < n_nodes; local_rank <
 *  max_local. */
static inline int dt_axis_at(const dt_axis *axis, int node, int local_rank)
{
    return axis->member_at[(size_t)node * (size_t)axis->max_local + (size_t)local_rank];
}

/** Index of the block of a reduce-scatter that this rank receives. Local. */
static inline int dt_axis_block(const dt_axis *axis)
{
    return axis->block_of ? axis->block_of[axis->rank] : axis->rank;
}

/** The number of ranks that divide the tokens of a sample. Local. */
static inline int dt_mesh_n_tokens(const dt_mesh *mesh) { return mesh->sum.size / mesh->data.size; }
/** The axis of all ranks, for host values. Local. */
static inline const dt_axis *dt_comm_all(const dt_comm *comm) { return &comm->mesh.world; }
/** Is this the rank that writes shared files and reports for the run? Local. */
static inline bool dt_comm_first(const dt_comm *comm) { return comm->rank == 0; }
/** Is this the first rank of its team? Is it the first of those that have parts of the same parameters? Local. */
bool dt_comm_first_of_team(const dt_comm *comm);
bool dt_comm_first_of_parts(const dt_comm *comm);
/** This rank's number, for messages. Local. */
static inline int dt_comm_number(const dt_comm *comm) { return comm->rank; }
/** Number of ranks of the run, for messages and plans. Local. */
static inline int dt_comm_ranks(const dt_comm *comm) { return comm->nranks; }
/* Resources that the ranks of a node share, independent of axes: devices, memory and disks. */
/** Number of this rank among those of its node, which selects its device. Local. */
static inline int dt_comm_number_on_node(const dt_comm *comm) { return comm->local_rank; }
/** Number of ranks of this rank's node. Local. */
static inline int dt_comm_ranks_on_node(const dt_comm *comm) { return comm->local_nranks; }
/** Number of nodes. With several, files are on a file system that they share. Local. */
static inline int dt_comm_nodes(const dt_comm *comm) { return comm->mesh.world.n_nodes; }

/** Find which ranks share a device: set n_sharing, max_sharing and leads. Collective. A rank that could not open its
 *  device passes {0}. DT_ERR_MEMORY, agreed; DT_ERR_COMM. */
dt_err dt_comm_find_devices(dt_comm *comm, const dt_device *dev);

/** Choose the transport and allocate its staging buffers (DT_MEM_STAGING in dev's ledger). Collective; all ranks take
 *  the same transport.
 *
 *  dev            borrowed until dt_comm_close
 *  backend        "mpi", "nccl" or "auto": nccl if there are several ranks, each has a GPU of its own and all can load
 *                 it, else mpi
 *  shared_memory  the transport mpi may use shared memory windows within a node
 *
 *  DT_ERR_USAGE, agreed: the backend cannot be used. DT_ERR_MEMORY, DT_ERR_FAULT, DT_ERR_COMM. After an error comm has
 *  no transport. */
dt_err dt_comm_attach(dt_comm *comm, dt_device *dev, const char *backend, bool shared_memory);

/** The error of a sequence in which a rank takes part in later collectives after its own error: the first, except that
 *  DT_ERR_COMM outranks it, because comm is then unusable. Local. */
static inline dt_err dt_first_err(dt_err first, dt_err then)
{
    return first == DT_OK || then == DT_ERR_COMM ? then : first;
}

/* ---- collectives on tensors -------------------------------------------------------------------------------------- */

/** Sum over the ranks of an axis; each rank receives one block of the sum.
 *
 *      recv[i] = (accumulate ? recv[i] : 0) + sum over r of send_r[b * count + i],    0 <= i < count
 *
 *  with b = dt_axis_block(axis). On most axes b is the rank. On the axis sum, the blocks of ranks with the same shard
 *  are adjacent. Collective on the axis; asynchronous on stream. Sends (size - 1) * count elements.
 *
 *  send     in     [size * count] of send_dt
 *  recv     inout  [count] of recv_dt; may be this rank's block of send if the types are equal and accumulate is false
 *  ordered  add in rank order: ((recv + s_0) + s_1) + ..., in float, rounded to recv_dt at the end only. false: the
 *           fastest order, which is the same in every call with the same ranks and nodes
 *
 *  DT_ERR_ARG: count, types or overlap. DT_ERR_COMM, DT_ERR_FAULT: see the top of the file. */
dt_err dt_comm_reduce_scatter(const dt_axis *axis, const void *send, dt_dtype send_dt, void *recv, dt_dtype recv_dt,
                              int64_t count, bool accumulate, bool ordered, dt_stream *stream);

/** Concatenate the blocks of the ranks of an axis:  recv[r * nbytes ..] = send of rank r. Collective on the axis;
 *  asynchronous on stream. Sends (size - 1) * nbytes.
 *
 *  send  in   [nbytes]; may be this rank's block of recv
 *  recv  out  [size * nbytes]
 *
 *  Errors as dt_comm_reduce_scatter. */
dt_err dt_comm_all_gather(const dt_axis *axis, const void *send, void *recv, size_t nbytes, dt_stream *stream);

/** Exchange blocks among the ranks of an axis: for every rank r, buf[r * stride ..] becomes the block of rank r. As an
 *  all-gather in place, with gaps. Collective on the axis; asynchronous on stream; nothing happens with one rank. Sends
 *  (size - 1) * nbytes.
 *
 *  buf     inout  [size * stride] bytes; in: this rank's block, nbytes at rank * stride
 *  stride  at least nbytes
 *
 *  Errors as dt_comm_reduce_scatter. */
dt_err dt_comm_replicate(const dt_axis *axis, void *buf, size_t stride, size_t nbytes, dt_stream *stream);

/** Replace each element by its sum over the ranks of an axis. Collective on the axis; asynchronous on stream. Sends at
 *  most 2 (size - 1) / size * count elements, or (size - 1) * count if they are few.
 *
 *  buf      inout  [count] of dt
 *  ordered  as dt_comm_reduce_scatter; few elements are always added in rank order
 *
 *  All ranks get the same bits. Not on the axis sum if it ends at nodes (replicate.size > 1). Errors as
 *  dt_comm_reduce_scatter. Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
 *  MPICH", 2005. */
dt_err dt_comm_all_reduce(const dt_axis *axis, void *buf, dt_dtype dt, int64_t count, bool ordered, dt_stream *stream);

/** Send a block to each rank of an axis, and receive one from each, contiguous in rank order. Collective on the axis;
 *  asynchronous on stream.
 *
 *  send, recv                in, out  must not overlap
 *  send_nbytes, recv_nbytes  in       [size] bytes to and from each rank; host; send_nbytes[r] here equals
 *                                     recv_nbytes[this rank] on rank r, which comm->check verifies
 *
 *  Errors as dt_comm_reduce_scatter. */
dt_err dt_comm_all_to_all_v(const dt_axis *axis, const void *send, const size_t *send_nbytes, void *recv,
                            const size_t *recv_nbytes, dt_stream *stream);

/** Copy the bytes of one rank of an axis to the others. Collective on the axis; asynchronous on stream. Root sends
 *  2 (size - 1) / size * nbytes, and every other rank half of that. Up to 64 KiB, or on two ranks, root sends
 *  (size - 1) * nbytes, and the others nothing.
 *
 *  buf   in on root, out on the other ranks: [nbytes]
 *  root  a rank of the axis
 *
 *  Errors as dt_comm_reduce_scatter. */
dt_err dt_comm_broadcast(const dt_axis *axis, void *buf, size_t nbytes, int root, dt_stream *stream);

/* ---- collectives on host values ---------------------------------------------------------------------------------- */

/** Copy root's bytes to all ranks. Collective on comm, synchronous. Any size.
 *
 *  buf  in on root, out on the other ranks: [nbytes], host, the caller's
 *
 *  DT_ERR_COMM, DT_ERR_ARG. */
dt_err dt_comm_broadcast_host(dt_comm *comm, void *buf, size_t nbytes, int root);
/** As dt_comm_broadcast_host from rank 0, for a time when rank 0 may wait long for its own input: the other ranks sleep
 *  meanwhile, at most 5 ms at a time, instead of using a core. nbytes: of one message. */
dt_err dt_comm_broadcast_late(dt_comm *comm, void *buf, size_t nbytes);

/** How dt_comm_reduce_host_* combine values. */
typedef enum dt_reduce_op { DT_SUM, DT_MAX, DT_MIN } dt_reduce_op;

/** Replace each value by its sum, maximum or minimum over the ranks of an axis: values of samples on the axis data,
 *  those of a rank or of its states on dt_comm_all. Collective on the axis, synchronous.
 *
 *  values  inout  [n], host, the caller's
 *
 *  DT_ERR_COMM, DT_ERR_ARG. */
dt_err dt_comm_reduce_host_i64(const dt_axis *axis, int64_t *values, int n, dt_reduce_op op);
/** As dt_comm_reduce_host_i64. MPI chooses the order of a sum: use DT_VOTE_SUM if it must be reproducible. */
dt_err dt_comm_reduce_host_f64(const dt_axis *axis, double *values, int n, dt_reduce_op op);
/** As dt_comm_reduce_host_i64, sums modulo 2^64. */
dt_err dt_comm_sum_host_u64(const dt_axis *axis, uint64_t *values, int n);

/** Combine arrays of which every 64-bit word is non-zero on at most one rank of an axis: all its ranks get all words,
 *  bit for bit. Collective on the axis, synchronous. No rank needs to know which rank holds which word.
 *
 *  x       inout  host, the caller's
 *  nbytes  any size, a multiple of 8
 *
 *  DT_ERR_COMM, DT_ERR_ARG. */
dt_err dt_comm_join_host(const dt_axis *axis, void *x, size_t nbytes);

/** Copy a text of rank 0 to all ranks. Collective on comm, synchronous, agreed.
 *
 *  text    rank 0: in, its own text, unchanged, or NULL, which all ranks then get
 *          other ranks: out, malloc'ed and 0-terminated, to be freed by the caller; NULL on error
 *  nbytes  length: in on rank 0, out on the others; NULL: the text ends with a 0
 *
 *  DT_ERR_MEMORY, DT_ERR_COMM. */
dt_err dt_comm_share_text(dt_comm *comm, char **text, size_t *nbytes);

enum { DT_TEXT_PART = 1 << 15 }; /* bytes of a part of a gathered text */
/** Write the next part of this rank's text. Returns its length; 0: the text has ended. */
typedef size_t (*dt_text_source)(void *ctx, char part[DT_TEXT_PART]);
/** Take the next part of a rank's text; rank 0 only. */
typedef dt_err (*dt_text_sink)(void *ctx, int rank, const char *part, size_t nbytes);

/** Pass the texts of all ranks to rank 0's sink, in rank order and in parts, so that no rank holds a whole text.
 *  Collective on comm, synchronous, agreed, including the sink's first error. Rank 0 receives all parts even after its
 *  sink has failed. ctx: passed to source and sink.
 *
 *  DT_ERR_MEMORY, DT_ERR_COMM, or the sink's error. */
dt_err dt_comm_gather_text(dt_comm *comm, dt_text_source source, dt_text_sink sink, void *ctx);

/* ---- votes ------------------------------------------------------------------------------------------------------- */

/** Combine the status of all ranks at the end of a superstep: one MPI_Allreduce. Collective on comm, synchronous.
 *  Allocates nothing.
 *
 *  vote  inout  see dt_vote; vote->err is data and not returned
 *
 *  DT_ERR_COMM: the exchange failed. DT_ERR_ARG: more values than reserved. */
dt_err dt_comm_vote(dt_comm *comm, dt_vote *vote);

/** Reserve space for votes of n_values values. Local. DT_ERR_MEMORY. */
dt_err dt_comm_vote_reserve(dt_comm *comm, int n_values);

/** Check that all ranks have read the same content of a file. fingerprint: any hash of that content; it must equal rank
 *  0's. Collective on comm, synchronous, agreed. DT_ERR_DATA: a rank's differs. DT_ERR_COMM. */
dt_err dt_comm_same_file(dt_comm *comm, const char *path, uint64_t fingerprint);

/** Return the error code of the lowest failing rank on all ranks; DT_OK if none failed. Collective on comm,
 *  synchronous: one MPI_Allreduce.
 *
 *  err  this rank's error. A failing rank keeps its own message. A rank that passed DT_OK records the message
 *       "rank R failed: <dt_error_words>". Only rank R prints (dt_comm_prints_error)
 *
 *  DT_ERR_COMM: the exchange failed. A rank that failed in dt_comm_attach without an agreement gets its own err back
 *  without an exchange: main must end the job. */
dt_err dt_comm_agree(dt_comm *comm, dt_err err);
#ifdef __clang_analyzer__ /* an error of this rank is never dropped */
static inline dt_err dt_comm_agree_all(dt_comm *comm, dt_err err)
{
    const dt_err all = (dt_comm_agree)(comm, err);
    return all == DT_OK ? err : all;
}
#define dt_comm_agree(comm, err) dt_comm_agree_all(comm, err)
#endif

/** Does this rank print its error? False if the last agreement or vote named another rank, which prints for all. Local;
 *  comm may be NULL. */
bool dt_comm_prints_error(const dt_comm *comm);

/** Did the last agreement or vote end in an error, so that all ranks know of it and can end in order? False after an
 *  error of this rank only. Local; comm may be NULL. */
bool dt_comm_failed_together(const dt_comm *comm);

/* ---- for transports and the watchdog ----------------------------------------------------------------------------- */

/** May this rank enter an exchange? DT_ERR_COMM with the device's message if its device has failed. Local. Transports
 *  call it before every exchange that follows a copy or a kernel of the same collective. */
dt_err dt_comm_may_join(const dt_comm *comm);

/** Has an exchange that was queued on a GPU failed? DT_ERR_COMM. Local, does not wait; any thread. */
dt_err dt_comm_poll(const dt_comm *comm);

/** Describe this rank's current collective: the last that the host has begun and, if the device runs them, the first
 *  that the device has not completed. Local; any thread. out: out [out_size] bytes. Returns out. */
char *dt_comm_where(const dt_comm *comm, char *out, size_t out_size);

/* ---- for plans --------------------------------------------------------------------------------------------------- */

/** Parameters that determine the staging of a transport. */
typedef struct dt_comm_shape {
    int nranks, ranks_per_node;
    int max_sharing;    /* maximum number of ranks on a device */
    bool shared_memory; /* as dt_comm_attach */
    dt_mesh_shape mesh;
} dt_comm_shape;

/** Memory of a rank's staging buffers. Local. On a device that was opened to plan, "nccl" counts as available. */
dt_memory dt_comm_plan(const char *backend, const dt_device *dev, const dt_comm_shape *shape);

/** Bytes of device memory that the transport nccl needs for staging, for blocks of the other ranks of nranks. Local. */
size_t dt_nccl_staging_of(int nranks);

/** Open a communicator for a plan: rank 0 of nranks that do not exist, on a counting device (counting_device.h). Local.
 *
 *  Collectives on tensors count the launches of the transport nccl. MPI is not used: dt_comm_agree and dt_comm_reduce_*
 *  and dt_comm_sum_host_u64 return this rank's own values. Other collectives must not be called. Close it with
 *  dt_comm_close.
 *
 *  comm  out
 *  dev   borrowed until dt_comm_close
 *
 *  DT_ERR_MEMORY. */
dt_err dt_comm_open_counted(dt_comm *comm, dt_device *dev, int nranks, int ranks_per_node, const dt_mesh_shape *shape);

/** A rank's own data in collectives on tensors: for a reduce-scatter its block, for the others its contribution. */
typedef struct dt_traffic {
    double reduced_elems, reduced_bytes, gathered_bytes, replicated_bytes;
} dt_traffic;

/** Bytes that a rank sends: to ranks of its node, and to ranks of other nodes. */
typedef struct dt_sent {
    double within, between;
} dt_sent;
/** Bytes that a rank sends in these collectives on the axis sum, by the algorithms of the transport. Local. ordered: as
 *  dt_comm_reduce_scatter. */
dt_sent dt_comm_sent(const char *backend, const dt_device *dev, const dt_comm_shape *shape, bool ordered,
                     const dt_traffic *traffic);

/** Pointer to the MPI_Comm over all ranks, owned by comm, for tests; NULL if comm is not open. Local. */
void *dt_comm_mpi_handle(const dt_comm *comm);

#endif
