/* internal.h - shared declarations of comm: MPI communicators, the mesh, and error checks of MPI calls. */
#ifndef DTRAIN_COMM_INTERNAL_H
#define DTRAIN_COMM_INTERNAL_H

#include "dtrain/comm/comm.h"
#include <mpi.h>

struct dt_comm_mpi {
    MPI_Comm world; /* a duplicate, so that messages cannot match those of other code */
    MPI_Comm node;  /* ranks that share memory */
    MPI_Op vote_op;
    MPI_Datatype vote_type;     /* of one dt_vote_value */
    dt_vote_value *vote_values; /* [vote_room]: values that a vote sends and receives */
    int vote_room;
    int failed_rank; /* of the last agreement or vote; -1: no rank failed */
    /* cores that the ranks of this host may use together, divided by their number, rounded down: 0 if there are more
     * ranks than cores */
    int cores_per_rank;
    int host_cores, host_ranks; /* number of those cores; number of ranks */
    bool own_cores;             /* the core sets of this host's ranks are disjoint */
    /* the host of the run with the most ranks per core: the same on all ranks */
    struct dt_comm_crowd {
        int ranks, cores;
        char host[64];
    } crowd;
    size_t max_message; /* maximum bytes in one MPI call; below INT_MAX; tests of the splitting lower it */
    /* by axis, created at first use (dt_comm_group): for host values of an axis of some ranks, and for comm->check */
    MPI_Comm group[DT_N_AXES], check[DT_N_AXES];
    int64_t n_issued[DT_N_AXES]; /* with comm->check: collectives of each axis; teams issue different numbers of them */
    MPI_Comm roll;               /* for roll_call.c; MPI_COMM_NULL on one rank */
    char (*roll_hosts)[64];      /* [nranks] the ranks' hosts; NULL unless this rank collects reports */
    bool *reported;              /* [nranks] ranks that reported since the last progress; used by the watchdog thread */
    bool differ;                 /* comm->check found different collectives: no further exchange */
    bool apart; /* this rank has failed and the others do not know: it votes on no further error, main ends the job */
};

/** Make the axis of all ranks. node_of: [nranks] any number of each rank's node, the same on all ranks. Local. */
dt_err dt_mesh_world(dt_comm *comm, const int *node_of);
/** Free the tables of all axes. Local. */
void dt_mesh_free(dt_comm *comm);
/** The communicator of an axis's ranks in a table by axis, created at first use. group: out. Collective on the axis. */
dt_err dt_comm_group(const dt_axis *axis, MPI_Comm table[DT_N_AXES], MPI_Comm *group);

/** Open the roll call's communicator and gather the hosts' names. Collective. */
dt_err dt_roll_open(dt_comm *comm);

/** Record an MPI error with MPI's own message. */
dt_err dt_comm_mpi_fail(int code, const char *call, const char *file, int line);
#ifdef __clang_analyzer__
#define dt_comm_mpi_fail(...) ((dt_comm_mpi_fail)(__VA_ARGS__), DT_ERR_COMM)
#endif

#define DT_MPI(call)                                                                                                   \
    do {                                                                                                               \
        int dt_m_ = (call);                                                                                            \
        if (dt_m_ != MPI_SUCCESS) return dt_comm_mpi_fail(dt_m_, #call, __FILE__, __LINE__);                           \
    } while (0)

/** Description of a collective: the same on all ranks. */
typedef struct dt_collective {
    const char *kind;
    int64_t count;             /* elements; bytes if no types are given; or values */
    dt_dtype send_dt, recv_dt; /* for a reduction of tensors */
    int root;                  /* -1: none */
    bool accumulate, ordered;  /* for a reduction of tensors */
    const dt_axis *axis;       /* NULL: host values of all ranks */
    bool on_host;              /* on host values: phase and unit of the ranks may differ */
} dt_collective;
/** Begin the next collective: number it and, with comm->check, verify that all ranks issue the same one. DT_ERR_COMM
 * if ranks differ, or this rank must not join. */
dt_err dt_comm_next(dt_comm *comm, const dt_collective *c);

/** With comm->check: DT_ERR_COMM on all members if one sends another number of bytes than its receiver expects. */
dt_err dt_comm_check_sizes(const dt_axis *axis, const size_t *send_nbytes, const size_t *recv_nbytes);

/** Create and free the MPI operation and type of the vote. */
dt_err dt_comm_vote_open(struct dt_comm_mpi *mpi);
void dt_comm_vote_close(struct dt_comm_mpi *mpi);

extern const dt_comm_ops dt_comm_mpi_ops, dt_comm_count_ops;
dt_memory dt_comm_mpi_plan(const dt_comm_shape *shape, bool host_accessible);

#endif
