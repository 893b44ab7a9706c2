/* test_comm_abort.c - ending the job ends this process with the code asked for, also when MPI_Abort never returns. The
 * one below stands in for MPI's. */
#include "dtrain/comm/comm.h"
#include <mpi.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static bool hangs;

int MPI_Abort(MPI_Comm comm, int code)
{
    (void)comm;
    (void)code;
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

static void a_broken_abort_has_a_last_resort(void **state)
{
    (void)state;
    hangs = true;
    assert_int_equal(code_of_child(), 74);
}

static void an_abort_that_returns_ends_the_process(void **state)
{
    (void)state;
    hangs = false;
    assert_int_equal(code_of_child(), 74);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_broken_abort_has_a_last_resort),
        cmocka_unit_test(an_abort_that_returns_ends_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
