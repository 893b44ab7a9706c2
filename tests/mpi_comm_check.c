// NP: 2 3
/* mpi_comm_check.c - with comm->check a rank that calls a different collective is detected before any exchange. All
 * ranks report the same: the rank, the position, its call and the others' call. TRANSPORTS: mpi nccl */
#include "mpi_test.h"
#include "dtrain/comm/comm.h"

static const char *transport(void) { return getenv("DTRAIN_COMM") ? getenv("DTRAIN_COMM") : "auto"; }

enum { ODD_RANK = 1, N = 64 };

typedef struct fixture {
    dt_comm comm;
    dt_device dev;
    dt_ledger ledger;
    dt_phase phase;
    dt_buf send, recv;
} fixture;

static void open_comm(fixture *f, bool check)
{
    memset(f, 0, sizeof *f);
    assert_int_equal(dt_device_open(&f->dev, "cpu", 0, 1, &f->ledger), DT_OK);
    assert_int_equal(dt_comm_open(&f->comm), DT_OK);
    dt_phase_enter(&f->phase, "reduce", "model.layers.0");
    f->comm.phase = &f->phase, f->comm.check = check;
    assert_all(MPI_COMM_WORLD, dt_comm_attach(&f->comm, &f->dev, transport(), true) == DT_OK);
    const size_t nbytes = (size_t)N * sizeof(float) * (size_t)f->comm.nranks;
    assert_int_equal(dt_buf_alloc_zeroed(&f->send, &f->dev, DT_ON_DEVICE, nbytes, DT_MEM_OTHER), DT_OK);
    assert_int_equal(dt_buf_alloc_zeroed(&f->recv, &f->dev, DT_ON_DEVICE, nbytes, DT_MEM_OTHER), DT_OK);
}

static void close_comm(fixture *f)
{
    assert_int_equal(f->dev.ops->stream_sync(&f->dev, NULL), DT_OK);
    dt_buf_free(&f->send);
    dt_buf_free(&f->recv);
    dt_comm_close(&f->comm);
    dt_device_close(&f->dev);
}

static dt_err reduce(fixture *f, int64_t count, dt_dtype dt, bool ordered)
{
    return dt_comm_reduce_scatter(&f->comm.mesh.sum, f->send.ptr, dt, f->recv.ptr, dt, count, false, ordered, NULL);
}
static dt_err gather(fixture *f, size_t nbytes)
{
    return dt_comm_all_gather(&f->comm.mesh.shard, f->send.ptr, f->recv.ptr, nbytes, NULL);
}

/* What all ranks but one call, and what that one does. */
typedef dt_err (*one_call)(fixture *f);
static dt_err usual(fixture *f) { return reduce(f, N, DT_F32, false); }
static dt_err other_kind(fixture *f) { return gather(f, N); }
static dt_err other_size(fixture *f) { return reduce(f, N / 2, DT_F32, false); }
static dt_err other_type(fixture *f) { return reduce(f, N, DT_BF16, false); }
static dt_err other_order(fixture *f) { return reduce(f, N, DT_F32, true); }
static dt_err other_unit(fixture *f)
{
    dt_phase_enter(&f->phase, "reduce", "model.layers.1"); /* of as many elements */
    return usual(f);
}
static dt_err other_phase(fixture *f)
{
    dt_phase_enter(&f->phase, "update", "model.layers.0");
    return usual(f);
}
static dt_err root_0(fixture *f) { return dt_comm_broadcast_host(&f->comm, &(char){0}, 1, 0); }
static dt_err root_1(fixture *f) { return dt_comm_broadcast_host(&f->comm, &(char){0}, 1, 1); }
static dt_err vote(fixture *f) { return dt_comm_agree(&f->comm, DT_OK); }
static dt_err then_vote(fixture *f)
{
    DT_TRY(usual(f));
    return vote(f);
}
static dt_err more_values(fixture *f)
{
    int64_t values[2] = {0};
    return dt_comm_reduce_host_i64(dt_comm_all(&f->comm), values, 2, DT_SUM);
}
static dt_err one_value(fixture *f)
{
    int64_t values[2] = {0};
    return dt_comm_reduce_host_i64(dt_comm_all(&f->comm), values, 1, DT_SUM);
}

typedef struct difference {
    one_call most, one;
    const char *its, *theirs; /* in the message */
} difference;

static const difference differences[] = {
    {usual, other_kind, "all_gather of 64 in phase reduce, unit model.layers.0",
     "reduce_scatter of 64 elements, fp32 to fp32 in phase reduce, unit model.layers.0"},
    {usual, other_size, "reduce_scatter of 32 elements", "reduce_scatter of 64 elements"},
    {usual, other_type, "64 elements, bf16 to bf16", "64 elements, fp32 to fp32"},
    {usual, other_order, "fp32 to fp32, in order", "fp32 to fp32 in phase"},
    {usual, other_unit, "unit model.layers.1", "unit model.layers.0"},
    {usual, other_phase, "phase update", "phase reduce"},
    {root_0, root_1, "from rank 1", "from rank 0"},
    {then_vote, vote, "agreement of 1", "reduce_scatter of 64"},
    {one_value, more_values, "reduction of host values of 2", "reduction of host values of 1"},
};

/* Of two ranks neither is the odd one: rank 0 counts. */
static bool names_both(const fixture *f, const difference *d, int64_t number)
{
    char head[128];
    const char *message = dt_error_message();
    snprintf(head, sizeof head, "rank %d on host %s issued number %lld: ", ODD_RANK, f->comm.host, (long long)number);
    return strstr(message, head) && strstr(message, d->its) && strstr(message, d->theirs);
}

TEST(a_rank_that_differs_is_named_by_all)
{
    for (size_t i = 0; i < sizeof differences / sizeof differences[0]; i++) {
        const difference *d = &differences[i];
        fixture f;
        open_comm(&f, true);
        assert_all(MPI_COMM_WORLD, usual(&f) == DT_OK);
        const int64_t number = atomic_load(&f.comm.sequence) + 1;
        const dt_err err = f.comm.rank == ODD_RANK ? d->one(&f) : d->most(&f);
        assert_all(MPI_COMM_WORLD, err == DT_ERR_COMM && names_both(&f, d, number));
        assert_all(MPI_COMM_WORLD, dt_comm_failed_together(&f.comm));
        assert_all(MPI_COMM_WORLD, dt_comm_prints_error(&f.comm) == (f.comm.rank == ODD_RANK));
        /* no rank waits for another any more: ranks may end in different ways */
        assert_all(MPI_COMM_WORLD, f.comm.rank == 0 || (vote(&f) == DT_ERR_COMM && gather(&f, N) == DT_ERR_COMM));
        assert_all(MPI_COMM_WORLD, names_both(&f, d, number));
        close_comm(&f);
        dt_error_clear();
    }
}

/* One call more or fewer shows at the next one, or where a rank comes to the end. */
TEST(a_missing_collective_is_found_at_the_end)
{
    fixture f;
    open_comm(&f, true);
    assert_all(MPI_COMM_WORLD, usual(&f) == DT_OK);
    if (f.comm.rank != ODD_RANK) {
        const dt_err err = usual(&f);
        const bool named =
            strstr(dt_error_message(), "the end in phase reduce") && strstr(dt_error_message(), "reduce_scatter");
        assert_true(err == DT_ERR_COMM && named); /* the odd one is in close_comm */
    }
    close_comm(&f);
}

TEST(the_same_calls_pass_and_numbers_are_the_same)
{
    int64_t n_collectives[2];
    for (int check = 0; check < 2; check++) {
        fixture f;
        open_comm(&f, check);
        const one_call calls[] = {usual, root_0, root_1, other_kind, vote, one_value, then_vote};
        for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) assert_all(MPI_COMM_WORLD, calls[i](&f) == DT_OK);
        /* host values may be given in different phases */
        dt_phase_enter(&f.phase, f.comm.rank ? "save" : "read", "");
        assert_all(MPI_COMM_WORLD, vote(&f) == DT_OK && one_value(&f) == DT_OK);
        n_collectives[check] = atomic_load(&f.comm.sequence);
        close_comm(&f);
    }
    assert_int_equal(n_collectives[0], n_collectives[1]);
}

MPI_TEST_MAIN(NULL, NULL)
