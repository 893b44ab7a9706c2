/* test_comm_abort.c - ending the job ends this process with the code asked for, also when MPI_Abort never returns.
 * The stub below replaces MPI's. */
#include "cases.h"
#include "dtrain/comm/comm.h"
#include <mpi.h>
#include <sys/wait.h>

static bool hangs;

int MPI_Abort(MPI_Comm comm, int code)
{
    while (hangs) pause();
    return MPI_SUCCESS;
}

static int code_of_child(void)
{
    int status;
    const pid_t child = fork();
    if (child == 0) dt_comm_abort(74);
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(a_broken_abort_has_a_last_resort)
{
    hangs = true;
    assert_int_equal(code_of_child(), 74);
}

TEST(an_abort_that_returns_ends_the_process)
{
    hangs = false;
    assert_int_equal(code_of_child(), 74);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
