/* mpi_zero_fault.c - one rank fails inside zero, at each of its points: only that rank gets the error, no rank
 * hangs, and the vote reports the error to all.
 * DEVICES: cpu queue */
#include "mpi_test.h"
#include "dtrain/zero/zero.h"
#include "ref_zero.h"

/* Faults are counted over the life of the process, so each test has its own passages. The failing rank is the last. A
 * step of 2 micro-steps at stage 3 reduces each of REF_ZERO_UNITS units twice. Every fault counts all passages of its
 * point. */
static void arm(int nranks)
{
    char text[256];
    snprintf(text, sizeof text,
             "zero.reduce:%d:3:error,zero.update:%d:2:error,zero.gather:%d:1:nospace,zero.update:%d:3:error,comm."
             "replicate:%d:2:error",
             nranks - 1, nranks - 1, nranks - 1, nranks - 1, nranks - 1);
    setenv("DTRAIN_FAULT", text, 1);
}

typedef struct fixture {
    dt_comm comm;
    dt_device dev;
    dt_ledger ledger;
    dt_unit units[REF_ZERO_UNITS];
    dt_zero *z;
    ref_zero_model model;
    dt_err err; /* of this rank, since the last vote */
} fixture;

static MPI_Comm world(const fixture *f) { return *(MPI_Comm *)dt_comm_mpi_handle(&f->comm); }

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    *state = f;
    int nranks;
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    arm(nranks); /* before the first place that may fail is passed: the variable is read there, once */
    if (!f || dt_comm_open(&f->comm) != DT_OK) return -1;
    if (dt_device_open(&f->dev, "cpu", f->comm.local_rank, 1, &f->ledger) != DT_OK) return -1;
    if (dt_comm_attach(&f->comm, &f->dev, "mpi", true) != DT_OK || ref_zero_make_units(f->units, false) != DT_OK)
        return -1;
    const dt_zero_options opt = {.stage = 3,
                                 .param_dtype = DT_BF16,
                                 .grad_dtype = DT_F32,
                                 .optimizer = &dt_optimizer_adamw,
                                 .reproducible = true,
                                 .overlap_comm = true};
    if (dt_zero_open(&f->z, &opt, f->units, REF_ZERO_UNITS, &f->comm, &f->dev, NULL, NULL) != DT_OK) return -1;
    f->model = (ref_zero_model){.units = f->units, .source = dt_zero_source(f->z), .dev = &f->dev};
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    dt_zero_close(f->z);
    ref_zero_free_units(f->units);
    dt_comm_close(&f->comm);
    const size_t live = atomic_load(&f->ledger.total_now);
    dt_device_close(&f->dev);
    free(f);
    return live == 0 ? 0 : -1;
}

static void step(fixture *f)
{
    f->err = DT_OK;
    for (int a = 0; a < 2; a++) {
        dt_zero_begin_micro(f->z, a, 2);
        const dt_err err = ref_zero_micro_step(&f->model, 1, a * f->comm.nranks + f->comm.rank);
        if (f->err == DT_OK) f->err = err;
    }
}

static void update(fixture *f)
{
    const dt_optimizer_step with = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.9, .eps = 1e-8, .grad_scale = 1, .t = 1};
    const dt_err err = dt_zero_update(f->z, &with, NULL);
    if (f->err == DT_OK) f->err = err;
}

/** Only the last rank has failed, with `want`, and after the vote all know; then go on. */
static void check_vote(fixture *f, dt_err want)
{
    const bool mine = f->err == (f->comm.rank == f->comm.nranks - 1 ? want : DT_OK);
    dt_vote vote = {.err = f->err};
    const bool voted =
        dt_comm_vote(&f->comm, &vote) == DT_OK && vote.err == (int32_t)want && vote.failed_rank == f->comm.nranks - 1;
    assert_all(world(f), mine);
    assert_all(world(f), voted);
    dt_error_clear();
}

TEST(a_fault_while_gathering_reaches_the_vote)
{
    fixture *f = *state;
    f->err = dt_zero_init_random(f->z, 1); /* gathers nothing at stage 3, but passes the point */
    check_vote(f, DT_ERR_WRITE);
}

TEST(a_fault_while_reducing_reaches_the_vote)
{
    fixture *f = *state;
    step(f);
    double sum;
    if (dt_zero_grad_sum_squares_reproducible(f->z, &sum) != DT_OK && f->err == DT_OK) f->err = DT_ERR_ARG;
    check_vote(f, DT_ERR_FAULT);
    dt_zero_discard(f->z);
}

TEST(a_fault_while_updating_reaches_the_vote)
{
    fixture *f = *state;
    step(f);
    update(f);
    assert_all(world(f), f->err == DT_OK); /* nothing is left of the skipped step */
    step(f);
    update(f);
    check_vote(f, DT_ERR_FAULT);
}

/* At stage 0 the update gathers the gradients: the rank that fails brings its sums all the same. */
TEST(a_fault_while_updating_at_stage_0_reaches_the_vote)
{
    fixture *f = *state, whole = *f;
    const dt_zero_options opt = {.stage = 0,
                                 .param_dtype = DT_BF16,
                                 .grad_dtype = DT_F32,
                                 .optimizer = &dt_optimizer_adamw,
                                 .overlap_comm = true};
    assert_all(world(f),
               dt_zero_open(&whole.z, &opt, whole.units, REF_ZERO_UNITS, &whole.comm, &whole.dev, NULL, NULL) == DT_OK);
    whole.model.source = dt_zero_source(whole.z);
    step(&whole);
    update(&whole);
    check_vote(&whole, DT_ERR_FAULT);
    step(&whole);
    update(&whole);
    assert_all(world(f), whole.err == DT_OK);
    dt_zero_close(whole.z);
}

/* Two nodes, or three, each with all states. */
TEST(a_fault_while_groups_exchange_reaches_the_vote)
{
    fixture *f = *state, g = *f;
    const int n_nodes = f->comm.nranks == 3 ? 3 : 2;
    const dt_zero_options opt = {.stage = 2,
                                 .n_groups = n_nodes,
                                 .param_dtype = DT_BF16,
                                 .grad_dtype = DT_F32,
                                 .optimizer = &dt_optimizer_adamw,
                                 .overlap_comm = true};
    skip_all_if(f->comm.nranks == 1, "one rank has no groups");
    setenv("DTRAIN_FAKE_NODES", n_nodes == 3 ? "3" : "2", 1);
    const dt_mesh_shape by_node = {.tp = 1, .cp = 1, .by_node = true};
    bool ok = dt_comm_open(&g.comm) == DT_OK && dt_comm_mesh(&g.comm, &by_node) == DT_OK &&
              dt_comm_attach(&g.comm, &g.dev, "mpi", true) == DT_OK;
    unsetenv("DTRAIN_FAKE_NODES");
    ok = ok && dt_zero_open(&g.z, &opt, g.units, REF_ZERO_UNITS, &g.comm, &g.dev, NULL, NULL) == DT_OK;
    assert_all(world(f), ok);
    g.model.source = dt_zero_source(g.z);
    step(&g);
    double sum;
    if (dt_zero_grad_sum_squares(g.z, &sum) != DT_OK && g.err == DT_OK) g.err = DT_ERR_FAULT;
    check_vote(&g, DT_ERR_FAULT);
    dt_zero_discard(g.z);
    step(&g);
    update(&g);
    assert_all(world(f), g.err == DT_OK);
    dt_zero_close(g.z);
    dt_comm_close(&g.comm);
}

MPI_TEST_MAIN(setup, teardown)
