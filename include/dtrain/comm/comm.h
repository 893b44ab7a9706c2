/* comm.h - collectives over the ranks of a run, and the vote by which they stay together.
 *
 * A communicator is opened over MPI_COMM_WORLD (duplicated, errors returned). Tensors move by the transport of the
 * backend: "mpi" (through shared memory windows between ranks of one node, MPI between nodes; serves device buffers by
 * staging them in pinned memory) or "nccl". Votes and small host values always go by MPI. Every function here is
 * collective over all ranks unless said otherwise; counts and types must agree.
 *
 * Groups. What is partitioned lies over the ranks of a group, and every group has all of it. At first there is one
 * group of all ranks; dt_comm_group makes one of each node. A rank has a number in its group; ranks of one number in
 * different groups hold the same.
 *
 * Errors. After DT_ERR_COMM the communicator is unusable: pass the error up, main ends the job. A collective on
 * tensors that returns another error (of a copy to or from the device, or an injected one) has been joined by this
 * rank all the same, with whatever its buffers held: keep the error for the next vote. DT_ERR_ARG alone means that
 * the rank did not join.
 *
 * A rank whose device has failed for good (dt_device_fail) has nothing to give and no use for what it would get: it
 * begins no collective of any kind, nor an exchange inside of one. All return DT_ERR_COMM with the device's message,
 * so the rank passes it up, and dt_comm_leave ends the job with the exit code of DT_ERR_FAULT.
 *
 * With comm->check every collective, of tensors and of host values, is preceded by an exchange of what it is. Where
 * ranks differ all of them get DT_ERR_COMM, which names a rank that differs from most, what it calls and what they
 * call; later collectives return it again and exchange nothing. */
#ifndef DTRAIN_COMM_H
#define DTRAIN_COMM_H

#include "dtrain/device/device.h"

typedef struct dt_comm dt_comm;

/** A number that a vote brings together. Each says how, so a vote may carry any number of them in any order, the same
 *  on all ranks. */
typedef enum dt_vote_kind {
    DT_VOTE_COUNT, /* sum of integers: exact, so free of order */
    DT_VOTE_SUM,   /* sum of doubles, in the order of ranks */
    DT_VOTE_MAX,   /* largest; a NaN wins */
    DT_VOTE_MIN    /* least; a NaN wins */
} dt_vote_kind;
typedef struct dt_vote_value {
    int64_t kind; /* dt_vote_kind */
    union {
        int64_t count; /* DT_VOTE_COUNT */
        double real;   /* the others */
    };
} dt_vote_value;

/** What every rank brings to the agreement at the end of a superstep, and what all take away. In: this rank's. Out:
 *  everybody's. */
typedef struct dt_vote {
    int32_t err;         /* dt_err; out: the error of the lowest failing rank, DT_OK when none failed */
    int32_t failed_rank; /* out: that rank, or -1 */
    int32_t stop;        /* out: the largest */
    int32_t nonfinite;   /* out: the largest */
    /* [n_values], the caller's; NULL: none. More than 8 need dt_comm_vote_reserve */
    dt_vote_value *values;
    int n_values;
} dt_vote;

typedef struct dt_comm_ops {
    const char *name; /* value of comm.backend that selects it */
    dt_err (*open)(dt_comm *comm);
    void (*close)(dt_comm *comm);
    /** Has an exchange under way failed? From any thread. NULL: what fails says so where it is called. */
    dt_err (*poll)(const dt_comm *comm);
    /** What the device is at, in words, from any thread. NULL: exchanges are done when their call returns. */
    void (*where)(const dt_comm *comm, char *out, size_t out_size);
    dt_err (*reduce_scatter)(dt_comm *comm, const void *send, dt_dtype send_dt, void *recv, dt_dtype recv_dt,
                             int64_t count, bool accumulate, bool ordered, dt_stream *stream);
    dt_err (*all_gather)(dt_comm *comm, const void *send, void *recv, size_t nbytes, dt_stream *stream);
    dt_err (*replicate)(dt_comm *comm, void *buf, size_t stride, size_t nbytes, dt_stream *stream);
    dt_err (*broadcast)(dt_comm *comm, void *buf, size_t nbytes, int root, dt_stream *stream);
} dt_comm_ops;

/** Another rank on this rank's host. pid 0: its process cannot be seen from here (another PID namespace). */
typedef struct dt_neighbour {
    int rank, pid;
} dt_neighbour;

struct dt_comm {
    int rank, nranks;
    int local_rank, local_nranks; /* among the ranks of this node */
    int node, n_nodes;
    int group_rank, group_nranks; /* among the ranks of this group */
    int group, n_groups;
    bool even_nodes;  /* all have equally many ranks */
    int *piece_of;    /* [nranks] the piece of a reduce-scatter that ends at a rank: group_rank * n_groups + group */
    int n_sharing;    /* ranks on the device of this rank, itself one of them; 0 before dt_comm_find_devices */
    int most_sharing; /* on the device that most ranks share */
    bool leads;       /* the lowest of the ranks on its device */
    char host[64];
    dt_neighbour *neighbours; /* [n_neighbours] the other ranks on this host, in order; the communicator's */
    int n_neighbours;
    dt_device *dev;
    const dt_comm_ops *ops;
    bool use_shared_memory;
    bool threads;             /* MPI may be called by several threads */
    struct dt_chunks *chunks; /* stored.h: NULL, or lent for what passes to and from files; the caller's to set */
    double timeout_s;         /* the longest that a transport waits for other ranks, the caller's to set */
    const dt_phase *phase; /* NULL, or where this rank stands, for messages; the caller's to set, on all ranks alike */
    bool check;            /* all ranks agree on what each collective is before it begins; likewise */
    atomic_bool attached;  /* may be polled */
    bool alone;            /* no launcher (mpirun, srun) started this process */
    bool counts;           /* of dt_comm_open_counted: votes are this rank's alone */
    double traffic_bytes;  /* sent by this rank through the collectives below, as their formulas count it */
    atomic_llong sequence; /* collectives issued: for the watchdog's report, which another thread makes */
    struct dt_comm_mpi *mpi; /* communicators and windows */
    void *impl;              /* the transport's own state */
};

/** Start MPI, first of all: comm->threads and comm->alone are known then. DT_ERR_USAGE when the launcher has started
 *  several processes and MPI sees one alone, because they are of different libraries (MPI is then finalised again).
 *  Started without a launcher, Open MPI is kept from starting a daemon. */
dt_err dt_comm_start(dt_comm *comm);

/** Report that this rank has waited long, to the ranks that collect such reports (0 and 1). Local; from the watchdog's
 *  thread alone, as the two below. Without comm->threads they do nothing. */
void dt_comm_report_waiting(const dt_comm *comm);
/** There was progress: reports so far count no more. Local. */
void dt_comm_forget_waiting(const dt_comm *comm);
/** On a rank that collects reports, the ranks that have not reported: "; no report from rank 3 on host b (stopped,
 *  unreachable or still computing)". "" on the other ranks, or if all have. Returns out. Local. */
char *dt_comm_not_waiting(const dt_comm *comm, char *out, size_t out_size);

/** Find ranks and nodes; no device yet, votes work. comm: of dt_comm_start, or {0} where MPI was started by another. */
dt_err dt_comm_open(dt_comm *comm);
/** End the whole job with this exit code, from any thread. Should MPI_Abort itself hang, this process ends 5 s
 *  later. */
_Noreturn void dt_comm_abort(int code);
/** A program is about to end, with this error, which has been told. Returns when nobody waits for this rank: all is
 *  well, all ranks know of the error, or there is one rank. Else ends the job: the others wait in a collective, and
 *  finalising would hang. So it does where the device has failed, which may never answer to being closed. */
void dt_comm_leave(const dt_comm *comm, dt_err err);
/** After dt_comm_leave and dt_comm_close: end MPI. */
void dt_comm_stop(void);
/** The MPI in use: "Open MPI v4.1.4 (standard 3.1)". Returns out. */
char *dt_comm_library(char *out, size_t out_size);
/** Cores for one rank: where the ranks of a machine have sets of their own, this rank's; else its part of what they may
 *  use together. SLURM_CPUS_PER_TASK is the most. At least 1. Local. */
int dt_comm_cores(const dt_comm *comm);
/** Threads of this rank: wanted, or with 0 as many as dt_comm_cores. where: what a message calls the setting. Rank 0
 *  warns of more threads than cores, on its own host and on the one with the most ranks per core, and, when nothing is
 *  wanted, of cores of the job that its ranks may not use. Local.
 *  DT_ERR_USAGE: more than 16 threads for each core of the machine. */
dt_err dt_comm_threads(const dt_comm *comm, int64_t wanted, const char *where, int *n_threads);
/** DT_ERR_USAGE, saying why, for a backend that this program was built without, or that does not serve dev ({0}: none
 *  could be opened). Local. */
dt_err dt_comm_has_backend(const char *backend, const dt_device *dev);

/** The ranks of each node become a group, else all ranks one. Before a transport is attached. Local; all ranks return
 *  the same. DT_ERR_USAGE where nodes have different numbers of ranks. */
dt_err dt_comm_group(dt_comm *comm, bool by_node);
/** The rank with this local_rank on a node; -1: there is none. */
int dt_comm_rank_of(const dt_comm *comm, int node, int local_rank);
/** This rank's piece of a reduce-scatter. */
static inline int dt_comm_piece(const dt_comm *comm) { return comm->group_rank * comm->n_groups + comm->group; }

/** Which ranks share a device: fills n_sharing and most_sharing. A rank whose device could not be opened ({0}) takes
 *  part, too. */
dt_err dt_comm_find_devices(dt_comm *comm, const dt_device *dev);
/** Choose the transport ("auto", "mpi", "nccl") for dev and set up its staging buffers (category DT_MEM_STAGING of
 *  dev's ledger). auto: nccl where each of several ranks has a GPU of its own, and all can load it; else mpi. */
dt_err dt_comm_attach(dt_comm *comm, dt_device *dev, const char *backend, bool shared_memory);
/** Collective; only after an agreed end. A rank that fails alone does not call it. */
void dt_comm_close(dt_comm *comm);

/** Leave each rank the sum of its piece:  recv[i] = (accumulate ? recv[i] : 0) + sum over r of send_r[piece*count + i],
 *  0 <= i < count, piece = group_rank * n_groups + group. So the pieces of ranks of one number in their groups lie side
 *  by side; with one group a rank's piece is that of its rank.
 *
 *  send  [nranks*count] of send_dt, borrowed until the stream is synced. recv [count] of recv_dt; may be this rank's
 *  own place inside send when the types are equal and accumulate is false. Added in float. ordered: strictly ((recv +
 *  p0) + p1) + ..., in order of rank, rounded to recv_dt at the end only; else in whichever order is fastest (still the
 *  same every time for the same ranks and nodes). Sends (nranks-1)*count elements. Asynchronous on stream. */
dt_err dt_comm_reduce_scatter(dt_comm *comm, const void *send, dt_dtype send_dt, void *recv, dt_dtype recv_dt,
                              int64_t count, bool accumulate, bool ordered, dt_stream *stream);

/** recv[r*nbytes ..] = send of the group's rank r. send may be this rank's own place inside recv. Sends
 *  (group_nranks-1)*nbytes. Asynchronous on stream. */
dt_err dt_comm_all_gather(dt_comm *comm, const void *send, void *recv, size_t nbytes, dt_stream *stream);

/** buf[g*stride ..] of nbytes becomes that of the rank of group g that has this rank's number; buf[group*stride ..] is
 *  this rank's own. stride >= nbytes. Sends (n_groups-1)*nbytes. Asynchronous on stream. */
dt_err dt_comm_replicate(dt_comm *comm, void *buf, size_t stride, size_t nbytes, dt_stream *stream);

/** buf of every rank becomes root's. Device or host memory. Asynchronous on stream. */
dt_err dt_comm_broadcast(dt_comm *comm, void *buf, size_t nbytes, int root, dt_stream *stream);

/* Small host values, always MPI, synchronous. */
dt_err dt_comm_broadcast_host(dt_comm *comm, void *buf, size_t nbytes, int root); /* any size; split above INT_MAX */
typedef enum dt_reduce_op { DT_SUM, DT_MAX, DT_MIN } dt_reduce_op;
dt_err dt_comm_reduce_host_i64(dt_comm *comm, int64_t *values, int n, dt_reduce_op op);
dt_err dt_comm_reduce_host_f64(dt_comm *comm, double *values, int n, dt_reduce_op op);
dt_err dt_comm_sum_host_u64(dt_comm *comm, uint64_t *values, int n); /* modulo 2^64 */
/** Every byte is zero but on one rank: all get all, bit for bit. Of any size, a multiple of 8 bytes. */
dt_err dt_comm_join_host(dt_comm *comm, void *x, size_t nbytes);
dt_err dt_comm_barrier(dt_comm *comm);

/** A text of rank 0 for all. *text: on rank 0 its own, which stays as it is, or NULL, which all then get; elsewhere
 *  out, malloc'ed with a 0 behind it. *nbytes likewise; nbytes NULL: a text that ends with a 0. Agreed: on an error
 *  *text is NULL on the other ranks. */
dt_err dt_comm_share_text(dt_comm *comm, char **text, size_t *nbytes);
enum { DT_TEXT_PART = 1 << 15 }; /* bytes */
typedef size_t (*dt_text_source)(void *ctx, char part[DT_TEXT_PART]);
typedef dt_err (*dt_text_sink)(void *ctx, int rank, const char *part, size_t nbytes);
/** The texts of all ranks for rank 0, in order of rank and in parts, so that none is in memory whole. source writes the
 *  next part of this rank's text and returns its length, 0 behind the last; sink, on rank 0, is given every part.
 *  Collective; agreed, the sink's error too. */
dt_err dt_comm_gather_text(dt_comm *comm, dt_text_source source, dt_text_sink sink, void *ctx);

/** The vote of a superstep: one MPI_Allreduce, whatever is in it. Returns DT_ERR_COMM when the exchange itself failed;
 *  vote->err is data. Allocates nothing. */
dt_err dt_comm_vote(dt_comm *comm, dt_vote *vote);
/** Make room for votes of so many values. Local. DT_ERR_MEMORY. */
dt_err dt_comm_vote_reserve(dt_comm *comm, int n_values);

/** Each rank has read its own copy of a file, which shall be the same: DT_ERR_DATA where a rank's fingerprint, any hash
 *  of what it read, is not rank 0's. Collective; the same result on all ranks, as of dt_comm_agree. */
dt_err dt_comm_same_file(dt_comm *comm, const char *path, uint64_t fingerprint);

/** All ranks get the code of the lowest failing rank (one MPI_Allreduce). A rank whose own err was DT_OK gets a
 *  recorded message "rank R failed: <name of the error>"; rank R keeps its own message, and it alone is to print
 *  (dt_comm_speaks). */
dt_err dt_comm_agree(dt_comm *comm, dt_err err);
#ifdef __clang_analyzer__ /* nobody's error is lost */
static inline dt_err dt_comm_agree_all(dt_comm *comm, dt_err err)
{
    const dt_err all = (dt_comm_agree)(comm, err);
    return all == DT_OK ? err : all;
}
#define dt_comm_agree(comm, err) dt_comm_agree_all(comm, err)
#endif

/** Is an error of this rank told by this rank? No when the last agreement failed at another one, whose message stands
 *  for all. */
bool dt_comm_speaks(const dt_comm *comm);

/** Did the last agreement or vote end in an error, so that all ranks know of it and may end in order? False after an
 *  error of this rank alone. */
bool dt_comm_failed_together(const dt_comm *comm);

/** For transports: DT_ERR_COMM with the device's message where that has failed. In front of every exchange that a copy
 *  or a kernel of the same collective comes before. Local. */
dt_err dt_comm_may_join(const dt_comm *comm);

/** Has an exchange that was queued on a GPU failed? For the watchdog: from any thread, does not wait. DT_ERR_COMM. */
dt_err dt_comm_poll(const dt_comm *comm);
/** Which collective this rank is in, for the watchdog: the last that the host has begun, and, where they run on a
 *  device, the first that the device has not done. From any thread. Returns out. */
char *dt_comm_where(const dt_comm *comm, char *out, size_t out_size);

/** What the staging of a transport depends on. */
typedef struct dt_comm_shape {
    int nranks, ranks_per_node, most_sharing; /* ranks on a device, at most */
    bool shared_memory;
    bool by_node; /* dt_comm_group */
} dt_comm_shape;
/** The staging that a rank would hold. Local. On a device that was opened to plan, "nccl" is taken to be there. */
dt_memory dt_comm_plan(const char *backend, const dt_device *dev, const dt_comm_shape *shape);

/** The staging of a rank of the transport nccl: pieces of the other ranks, on the device. */
typedef struct dt_nccl_staging {
    int n_pieces;
    size_t nbytes;
} dt_nccl_staging;
dt_nccl_staging dt_nccl_staging_of(int nranks);

/** For a plan: rank 0 of ranks that are not there, on a device that counts (dtrain/perfmodel/counting_device.h):
 *  collectives on tensors queue the launches of the transport nccl. Without MPI: votes and reductions of host values
 *  are this rank's own, and other functions must not be called. Close by dt_comm_close. */
void dt_comm_open_counted(dt_comm *comm, dt_device *dev, int nranks, int ranks_per_node, bool by_node);

/** Of collectives, what one rank hands over: of reductions its piece, of the others what it has. */
typedef struct dt_traffic {
    double reduced_elems, reduced_bytes, gathered_bytes, replicated_bytes;
} dt_traffic;
/** Bytes that a rank sends in these, to ranks of its node and of others, as the transport goes. */
typedef struct dt_sent {
    double within, between;
} dt_sent;
dt_sent dt_comm_sent(const char *backend, const dt_device *dev, const dt_comm_shape *shape, bool ordered,
                     const dt_traffic *traffic);

/** MPI communicator (an MPI_Comm behind a pointer), for the collectives of tests; owned by comm. */
void *dt_comm_mpi_handle(const dt_comm *comm);

#endif
