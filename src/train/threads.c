/* threads.c - how many threads a rank may have. Launchers bind in different ways: ranks may each own cores, share the job's cores, or be free on the
 * node; the union of what the ranks of a node may use, and whether their sets overlap, tells which. */
#include "run.h"
#include <mpi.h>
#include <sched.h>
#include <stdlib.h>

static void own_cores(cpu_set_t *set)
{
    CPU_ZERO(set);
    if (sched_getaffinity(0, sizeof *set, set)) CPU_SET(0, set);
}

int run_threads_planned(const dt_run *run, int ranks_per_node)
{
    cpu_set_t set;
    own_cores(&set);
    const int shared = CPU_COUNT(&set) / ranks_per_node;
    return run->cfg.run_threads > 0 ? (int)run->cfg.run_threads : shared > 1 ? shared : 1;
}

dt_err run_threads(const dt_run *run, int *n_threads)
{
    enum { WORDS = CPU_SETSIZE / 64 };
    cpu_set_t set;
    uint64_t mine[WORDS] = {0}, all[WORDS];
    int counts[2] = {0, 0}, sums[2];

    if (run->cfg.run_threads > 0) {
        *n_threads = (int)run->cfg.run_threads;
        return DT_OK;
    }
    own_cores(&set);
    for (int c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &set)) mine[c / 64] |= 1ull << (c % 64), counts[0]++;

    MPI_Comm node;
    const MPI_Comm world = *(MPI_Comm *)dt_comm_mpi_handle(run->comm);
    if (MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node) ||
        MPI_Allreduce(mine, all, WORDS, MPI_UINT64_T, MPI_BOR, node) || MPI_Allreduce(counts, sums, 1, MPI_INT, MPI_SUM, node))
        return dt_fail(DT_ERR_COMM, "cannot find out which cores the ranks of a node share");
    MPI_Comm_free(&node);

    int n_union = 0;
    for (int w = 0; w < WORDS; w++) n_union += __builtin_popcountll(all[w]);
    const bool disjoint = sums[0] == n_union;
    *n_threads = disjoint ? counts[0] : n_union / run->comm->local_nranks;
    if (*n_threads < 1) *n_threads = 1;
    return DT_OK;
}
