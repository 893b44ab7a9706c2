/* nccl_twin.c - NCCL over MPI, for the simulator of CUDA, whose memory is the host's. As NCCL does, it refuses an id
 * that is not rank 0's. Calls of a communicator that does not block are done when they return, but every other one
 * reports that it is in progress, for several queries. A caller that continues earlier is refused. With
 * CUDA_SIM_HANG=N the Nth collective never completes on its stream, on every rank where it is set, while the host
 * continues. */
#include "faults.h"
#include "library.h"
#include "nccl.h"
#include <mpi.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 256 };
struct ncclComm {
    MPI_Comm world;
    int rank, nranks;
    int n_calls;
    atomic_int questions; /* to which the last call is still in progress; the watchdog asks, too */
};
static MPI_Request group[MOST];
static int n_group;
static cudaStream_t group_stream;
static ncclComm_t group_comm;

/* The end of a call that can be in progress when it returns. */
static ncclResult_t begun(ncclComm_t comm, int code)
{
    if (code) return ncclSystemError;
    comm->questions = comm->n_calls++ % 3;
    return comm->questions > 0 ? ncclInProgress : ncclSuccess;
}
static bool is_busy(ncclComm_t comm) { return comm->questions > 0; }

static bool hangs(cudaStream_t stream)
{
    static long n_calls;
    const char *nth = getenv("CUDA_SIM_HANG");
    if (!nth || ++n_calls != strtol(nth, NULL, 10)) return false;
    sim_stick(stream);
    return true;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclSuccess ? "no error" : "an error of the simulated NCCL";
}
const char *ncclGetLastError(ncclComm_t comm) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    SIM_NCCL_PASSES("ncclGetUniqueId");
    memset(id, 0x3c, sizeof *id);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    SIM_NCCL_PASSES("ncclCommInitRankConfig");
    ncclUniqueId right;
    ncclGetUniqueId(&right);
    if (memcmp(&id, &right, sizeof id) != 0 || config->blocking) return ncclInvalidArgument;
    *comm = malloc(sizeof **comm);
    **comm = (struct ncclComm){.rank = rank, .nranks = nranks};
    return begun(*comm, MPI_Comm_dup(MPI_COMM_WORLD, &(*comm)->world));
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result)
{
    SIM_NCCL_PASSES("ncclCommGetAsyncError");
    int left = comm->questions;
    while (left > 0 && !atomic_compare_exchange_weak(&comm->questions, &left, left - 1)) {
    }
    *result = left > 0 ? ncclInProgress : ncclSuccess;
    return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    SIM_NCCL_PASSES("ncclCommFinalize");
    return is_busy(comm) ? ncclInvalidArgument : begun(comm, 0);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (is_busy(comm)) return ncclInvalidArgument;
    MPI_Comm_free(&comm->world);
    free(comm);
    return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    free(comm);
    return ncclSuccess;
}

static ncclResult_t result_of(int code) { return code ? ncclSystemError : ncclSuccess; }

ncclResult_t ncclGroupStart(void) { return (ncclResult_t)sim_nccl_passes("ncclGroupStart"); }
ncclResult_t ncclGroupEnd(void)
{
    SIM_NCCL_PASSES("ncclGroupEnd");
    if (n_group == 0) return ncclSuccess;
    sim_library_goes_on();
    const int code = hangs(group_stream) ? 0 : MPI_Waitall(n_group, group, MPI_STATUSES_IGNORE);
    sim_library_pauses();
    n_group = 0;
    return begun(group_comm, code);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    SIM_NCCL_PASSES("ncclSend");
    if (n_group == MOST || is_busy(comm)) return ncclInvalidArgument;
    group_stream = stream, group_comm = comm;
    sim_library_begins(stream, "ncclSend");
    sim_library_touches(send, count, false);
    const int code = MPI_Isend(send, (int)count, MPI_BYTE, peer, 0, comm->world, &group[n_group++]);
    sim_library_ends();
    return result_of(code);
}
ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    SIM_NCCL_PASSES("ncclRecv");
    if (n_group == MOST || is_busy(comm)) return ncclInvalidArgument;
    sim_library_begins(stream, "ncclRecv");
    sim_library_touches(recv, count, true);
    const int code = MPI_Irecv(recv, (int)count, MPI_BYTE, peer, 0, comm->world, &group[n_group++]);
    sim_library_ends();
    return result_of(code);
}
ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    SIM_NCCL_PASSES("ncclAllGather");
    if (is_busy(comm)) return ncclInvalidArgument;
    if (hangs(stream)) return ncclSuccess;
    /* then the rank's own piece is read, and not written */
    const bool in_place = (const char *)send == (char *)recv + (size_t)comm->rank * count;
    sim_library_begins(stream, "ncclAllGather");
    sim_library_touches(send, count, false);
    for (int r = 0; r < comm->nranks; r++)
        if (!in_place || r != comm->rank) sim_library_touches((char *)recv + (size_t)r * count, count, true);
    const int code =
        MPI_Allgather(in_place ? MPI_IN_PLACE : send, (int)count, MPI_BYTE, recv, (int)count, MPI_BYTE, comm->world);
    sim_library_ends();
    return begun(comm, code);
}
