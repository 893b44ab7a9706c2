/* zero_fixture.h - communicator, devices and units of a test of ZeRO, with the ranks in one group or in groups by
 * node: shared by zero_run.h and mpi_states.c. */
#ifndef DTRAIN_TESTS_ZERO_FIXTURE_H
#define DTRAIN_TESTS_ZERO_FIXTURE_H

#include "mpi_test.h"
#include "dtrain/zero/zero.h"
#include "ref_zero.h"
#include <math.h>
#include <string.h>

enum { BY_NODE = 2 }; /* tests that also run with groups of a node */

typedef struct fixture {
    dt_comm comm;
    dt_device dev, host;
    dt_ledger ledger;
    dt_unit units[REF_ZERO_UNITS], frozen_units[REF_ZERO_UNITS];
    int64_t total;
} fixture;

static MPI_Comm world(const fixture *f) { return *(MPI_Comm *)dt_comm_mpi_handle(&f->comm); }

static bool by_node; /* of each run: its groups are the nodes, and there are two or three of these */
static int n_groups = 1;

/* With two ranks and three a node has one, with four two, which are not neighbours. */
static int open_ranks(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    int nranks;
    *state = f;
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    if (by_node) setenv("DTRAIN_FAKE_NODES", nranks == 3 ? "3" : "2:cyclic", 1);
    const dt_mesh_shape shape = {.tp = 1, .cp = 1, .by_node = by_node};
    if (!f || dt_comm_open(&f->comm) != DT_OK || dt_comm_mesh(&f->comm, &shape) != DT_OK) return -1;
    n_groups = f->comm.mesh.replicate.size;
    if (dt_device_open(&f->dev, "cpu", f->comm.local_rank, 1, &f->ledger) != DT_OK) return -1;
    if (dt_device_open_host(&f->host, 1, false, &f->ledger) != DT_OK) return -1;
    return dt_comm_attach(&f->comm, &f->dev, "mpi", true) == DT_OK ? 0 : -1;
}

static int teardown(void **state)
{
    fixture *f = *state;
    ref_zero_free_units(f->units);
    ref_zero_free_units(f->frozen_units);
    dt_comm_close(&f->comm);
    const size_t live = atomic_load(&f->ledger.total_now);
    dt_device_close(&f->host);
    dt_device_close(&f->dev);
    free(f);
    return live == 0 ? 0 : -1;
}

/** The program: all tests, then those of BY_NODE with groups. Its files are many and buffered, with no result before
 *  it is waited for. */
static int run_zero_tests(int argc, char **argv, CMFixtureFunction setup)
{
    int nranks, failed;
    setenv("DTRAIN_SWAP_IO", "late,buffered", 0);
    mpi_test_begin(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    failed = run_listed(NULL, setup, teardown);
    by_node = true;
    if (nranks > 1) failed += run_groups(BY_NODE, "groups of a node", setup, teardown);
    return mpi_test_end(failed);
}

#endif
