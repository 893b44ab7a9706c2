/* mpi_start.c - MPI shuts down correctly even if its own threads have hardly run, as on an overloaded machine. Each
 * time that one of them has waited, it resumes a tenth of a second later. The exit status is the result: failures
 * occur in MPI_Finalize. MPI_Finalize does not wait for a thread that existed before MPI and never ends. */
// NP: 1 2
#include "mpi_test.h"
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

static atomic_int n_late;

/* Replaces the C library's, which the event loop of Open MPI's progress thread waits in. */
int poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    int (*waits)(struct pollfd *, nfds_t, int);
    *(void **)&waits = dlsym(RTLD_NEXT, "poll");
    const int n_ready = waits(fds, n, timeout_ms);
    n_late += gettid() != getpid();
    for (const double end_s = dt_now_s() + (gettid() != getpid() ? 0.1 : 0); dt_now_s() < end_s;) sched_yield();
    return n_ready;
}

TEST(threads_of_mpi_are_late)
{
#if defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION == 4
    assert_true(n_late > 0);
#endif
}

static atomic_bool works = true;
static void *work(void *arg)
{
    while (works) sched_yield();
    return arg;
}

static FILE *said; /* by the log, while MPI began */

TEST(a_thread_of_the_program_s_own_is_not_waited_for)
{
    char line[512];
    bool waited = false;
    rewind(said);
    while (fgets(line, sizeof line, said)) waited = waited || strstr(line, "still busy");
    assert_all(MPI_COMM_WORLD, !waited);
}

int main(int argc, char **argv)
{
    pthread_t thread;
    const int out = dup(STDERR_FILENO);
    said = tmpfile();
    setenv("DTRAIN_LOG", "debug", 1);
    if (!said || out < 0 || pthread_create(&thread, NULL, work, NULL) != 0) return 70;
    dup2(fileno(said), STDERR_FILENO);
    mpi_test_begin(&argc, &argv);
    dup2(out, STDERR_FILENO);
    const int code = mpi_test_end(run_listed(NULL, NULL, NULL));
    works = false;
    pthread_join(thread, NULL);
    return code;
}
