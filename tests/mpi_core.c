/* mpi_core.c - the helpers of the tests under mpirun: a failure of one rank is a failure of all. */
#include "mpi_test.h"

TEST(a_vote_gives_every_rank_the_same_result)
{
    int rank, nranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    assert_true(vote_all(MPI_COMM_WORLD, true, "all agree", __FILE__, __LINE__));
    for (int bad = 0; bad < nranks; bad++) {
        int seen = !vote_ranks(MPI_COMM_WORLD, rank != bad), all_saw;
        MPI_Allreduce(&seen, &all_saw, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
        assert_true(all_saw);
    }
}

TEST(faults_are_counted_on_the_log_rank)
{
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    setenv("DTRAIN_FAULT", "here:0:2:error", 1); /* read at the first passage of any point in this process */
    assert_all(MPI_COMM_WORLD, dt_fault("here") == DT_OK);
    assert_all(MPI_COMM_WORLD, dt_fault("here") == (rank == 0 ? DT_ERR_FAULT : DT_OK));
    dt_error_clear();
    assert_all(MPI_COMM_WORLD, dt_fault("here") == DT_OK);
}

MPI_TEST_MAIN(NULL, NULL)
