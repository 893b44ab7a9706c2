/* mpi_start.c - MPI ends in order also where its own threads have hardly run, as on a machine with far too much to do:
 * each time that one of them has waited, it goes on a tenth of a second later. The verdict is the exit status: what
 * goes wrong does so in MPI_Finalize. */
// NP: 1 2
#include "mpi_test.h"
#include <dlfcn.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

static atomic_int n_late;

/* Stands in for the C library's, which the event loop of Open MPI's progress thread waits in. */
int poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    int (*waits)(struct pollfd *, nfds_t, int);
    *(void **)&waits = dlsym(RTLD_NEXT, "poll");
    const int n_ready = waits(fds, n, timeout_ms);
    n_late += gettid() != getpid();
    for (const double end_s = dt_now_s() + (gettid() != getpid() ? 0.1 : 0); dt_now_s() < end_s;) sched_yield();
    return n_ready;
}

static void threads_of_mpi_are_late(void **state)
{
    (void)state;
#if defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION == 4
    assert_true(n_late > 0);
#endif
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_of_mpi_are_late)};
    MPI_TEST_MAIN(argc, argv, tests);
}
