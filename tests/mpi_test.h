/* mpi_test.h - for tests that run under mpirun.
 *
 * cmocka leaves a failed test by longjmp: on one rank alone that strands the others in the next collective. So a
 * verdict is formed on each rank, voted on, and fails on all ranks together. */
#ifndef DTRAIN_MPI_TEST_H
#define DTRAIN_MPI_TEST_H

#include "cases.h"
#include "dtrain/comm/comm.h"
#include <mpi.h>

/** Does cond hold on all ranks of comm? Collective. */
static inline bool vote_ranks(MPI_Comm comm, bool cond)
{
    int n_bad, bad = !cond;
    MPI_Allreduce(&bad, &n_bad, 1, MPI_INT, MPI_SUM, comm);
    return n_bad == 0;
}

/** The same, and names the ranks where it does not. */
static inline bool vote_all(MPI_Comm comm, bool cond, const char *text, const char *file, int line)
{
    int rank;
    MPI_Comm_rank(comm, &rank);
    if (!cond) print_error("%s:%d: rank %d: does not hold: %s %s\n", file, line, rank, text, dt_error_message());
    return vote_ranks(comm, cond);
}

/** Fail the test on all ranks unless cond holds on all ranks. Collective; cond may differ between ranks. */
#define assert_all(comm, cond)                                                                                         \
    do {                                                                                                               \
        if (!vote_all((comm), (cond), #cond, __FILE__, __LINE__)) fail();                                              \
    } while (0)

/** Fail the test on all ranks unless the error is `want` on all ranks, with a message that contains the text ("": any).
 *  Clears the message. */
#define assert_all_fail(comm, err, want, text)                                                                         \
    do {                                                                                                               \
        assert_all((comm), (err) == (want) && strstr(dt_error_message(), (text)));                                     \
        dt_error_clear();                                                                                              \
    } while (0)

/** Skip the test on all ranks when cond holds (it must not differ between ranks). */
#define skip_all_if(cond, why)                                                                                         \
    do {                                                                                                               \
        if (cond) {                                                                                                    \
            print_message("skip: %s\n", why);                                                                          \
            skip();                                                                                                    \
        }                                                                                                              \
    } while (0)

/** main() of such a test, with the functions that open and close the state of all its tests, or NULL. Results are rank
 *  0's stdout, in the file TEST_RESULTS where that is set; other ranks write to stderr alone. The status is the verdict
 *  of all ranks. */
#define MPI_TEST_MAIN(setup, teardown)                                                                                 \
    int main(int argc, char **argv)                                                                                    \
    {                                                                                                                  \
        mpi_test_begin(&argc, &argv);                                                                                  \
        return mpi_test_end(run_listed(NULL, (setup), (teardown)));                                                    \
    }

static inline void mpi_test_begin(int *argc, char ***argv)
{
    int rank, nranks;
    dt_comm comm;
    if (dt_comm_start(&comm) != DT_OK || !comm.threads) exit(70);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    dt_log_open(rank, nranks, "test");
    const char *results = rank > 0 ? "/dev/null" : getenv("TEST_RESULTS");
    if (results && !freopen(results, "w", stdout)) MPI_Abort(MPI_COMM_WORLD, 70);
}

/* A group's state: a communicator without a device. */
static inline int open_comm_alone(void **state)
{
    static dt_comm comm;
    *state = &comm;
    return dt_comm_open(&comm) != DT_OK;
}
static inline int close_comm_alone(void **state) { return dt_comm_close(*state), 0; }

static inline int mpi_test_end(int n_failed)
{
    MPI_Allreduce(MPI_IN_PLACE, &n_failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Finalize();
    return n_failed ? 1 : 0;
}

#endif
