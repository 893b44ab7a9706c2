/* roll_call.c - determines which ranks still run while all seem to wait.
 *
 * A rank that has waited for half of comm.timeout reports to two collectors, ranks 0 and 1. There are two, because one
 * may be the missing rank. Ranks without a report at the timeout are stopped, unreachable or still computing. Only
 * watchdog threads send reports, on a communicator of their own. */
#include "internal.h"
#include <stdlib.h>
#include <string.h>

enum { N_COLLECTORS = 2 };

static int n_collectors(const dt_comm *comm) { return comm->nranks < N_COLLECTORS ? comm->nranks : N_COLLECTORS; }

/* Watchdogs may call MPI only if all threads may. */
static bool takes_part(const dt_comm *comm) { return comm->threads && comm->nranks > 1 && comm->mpi; }

static bool collects(const dt_comm *comm) { return takes_part(comm) && comm->rank < N_COLLECTORS; }

dt_err dt_roll_open(dt_comm *comm)
{
    struct dt_comm_mpi *mpi = comm->mpi;
    if (comm->nranks == 1) return DT_OK;
    DT_MPI(MPI_Comm_dup(mpi->world, &mpi->roll));
    DT_MPI(MPI_Comm_set_errhandler(mpi->roll, MPI_ERRORS_RETURN));
    if (comm->rank < N_COLLECTORS) {
        DT_ALLOC(mpi->roll_hosts, comm->nranks, "out of memory for the names of %d hosts", comm->nranks);
        DT_ALLOC(mpi->reported, comm->nranks, "out of memory for the names of %d hosts", comm->nranks);
    }
    for (int to = 0; to < n_collectors(comm); to++)
        DT_MPI(MPI_Gather(comm->host, sizeof comm->host, MPI_CHAR, mpi->roll_hosts, sizeof comm->host, MPI_CHAR, to,
                          mpi->roll));
    return DT_OK;
}

void dt_comm_report_waiting(const dt_comm *comm)
{
    if (!takes_part(comm)) return;
    for (int to = 0; to < n_collectors(comm); to++) {
        MPI_Request sent;
        if (to == comm->rank || MPI_Isend(NULL, 0, MPI_BYTE, to, 0, comm->mpi->roll, &sent) != MPI_SUCCESS) continue;
        MPI_Request_free(&sent); /* an empty message needs no buffer */
    }
}

/* Receive the reports that have arrived. MPI_Iprobe may check for messages before it receives any, so it is
 * repeated. */
static void receive(const dt_comm *comm)
{
    enum { PROBES = 64 };
    struct dt_comm_mpi *mpi = comm->mpi;
    MPI_Status from;
    for (int i = 0, arrived; i < PROBES; i++) {
        if (MPI_Iprobe(MPI_ANY_SOURCE, 0, mpi->roll, &arrived, &from) != MPI_SUCCESS) return;
        if (!arrived) continue;
        if (MPI_Recv(NULL, 0, MPI_BYTE, from.MPI_SOURCE, 0, mpi->roll, MPI_STATUS_IGNORE) != MPI_SUCCESS) return;
        mpi->reported[from.MPI_SOURCE] = true;
        i = 0;
    }
}

void dt_comm_forget_waiting(const dt_comm *comm)
{
    if (!collects(comm)) return;
    receive(comm);
    memset(comm->mpi->reported, 0, (size_t)comm->nranks * sizeof *comm->mpi->reported);
}

char *dt_comm_not_waiting(const dt_comm *comm, char *out, size_t out_size)
{
    enum { MOST_NAMED = 8 };
    int n = 0;
    size_t len = 0;
    *out = '\0';
    if (!collects(comm)) return out;
    receive(comm);
    for (int r = 0; r < comm->nranks; r++) {
        if (r == comm->rank || comm->mpi->reported[r] || n++ >= MOST_NAMED || len >= out_size) continue;
        len += (size_t)snprintf(out + len, out_size - len, "%srank %d on host %s", n == 1 ? "; no report from " : ", ",
                                r, comm->mpi->roll_hosts[r]);
    }
    if (n > MOST_NAMED && len < out_size)
        len += (size_t)snprintf(out + len, out_size - len, " and %d more", n - MOST_NAMED);
    if (n > 0 && len < out_size) snprintf(out + len, out_size - len, " (stopped, unreachable or still computing)");
    return out;
}
