// NP: 2 4
/* bench_comm.c - reduce-scatter and all-gather of the transport against MPI's own, on the same buffers, in turn.
 *
 * usage: mpirun -n N bench_comm [MiB ...]     (BENCH_PLAIN=1: without shared memory; default 1 16 256: bytes of the
 * whole buffer, all ranks' pieces)
 *
 * Runs alternate, so a machine that changes its speed changes it for both; the median of the pairs' ratios is what
 * counts. A rate is bytes of the whole buffer over the time of the slowest rank. MPI has no bf16, so its rates are
 * shown without a ratio.
 *
 * "of copy": the same turn's time of each rank copying, with memcpy and all ranks at once, as many bytes from its
 * own memory as an all-gather brings it, over our time. Every gathered byte must be read and written once at least,
 * so no exchange between private buffers goes beyond 1 while the pieces do not fit the caches. Buffers are the
 * device's: touched before, in huge pages, for MPI's calls as for ours. */
#include "dtrain/comm/comm.h"
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PAIRS = 101 };

typedef struct bench {
    dt_comm comm;
    char *send, *recv;
    size_t nbytes; /* whole */
} bench;

typedef void (*run_fn)(bench *b);

static void check(dt_err err)
{
    if (err) {
        fprintf(stderr, "bench_comm: %s\n", dt_error_message());
        MPI_Abort(MPI_COMM_WORLD, dt_exit_code(err));
    }
}

static int64_t count(const bench *b, dt_dtype dt)
{
    return (int64_t)(b->nbytes / dt_dtype_size(dt) / (size_t)b->comm.nranks);
}

static void our_reduce(bench *b)
{
    check(dt_comm_reduce_scatter(&b->comm.mesh.sum, b->send, DT_F32, b->recv, DT_F32, count(b, DT_F32), false, false,
                                 NULL));
}
static void our_reduce_bf16(bench *b)
{
    check(dt_comm_reduce_scatter(&b->comm.mesh.sum, b->send, DT_BF16, b->recv, DT_F32, count(b, DT_BF16), false, false,
                                 NULL));
}
static void mpi_reduce(bench *b)
{
    MPI_Reduce_scatter_block(b->send, b->recv, (int)count(b, DT_F32), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void our_gather(bench *b)
{
    check(dt_comm_all_gather(&b->comm.mesh.shard, b->send, b->recv, b->nbytes / (size_t)b->comm.nranks, NULL));
}
static void our_gather_in_place(bench *b)
{
    const size_t n = b->nbytes / (size_t)b->comm.nranks;
    check(dt_comm_all_gather(&b->comm.mesh.shard, b->recv + n * (size_t)b->comm.rank, b->recv, n, NULL));
}
static void mpi_gather(bench *b)
{
    const int n = (int)(b->nbytes / (size_t)b->comm.nranks);
    MPI_Allgather(b->send, n, MPI_BYTE, b->recv, n, MPI_BYTE, MPI_COMM_WORLD);
}
static void mpi_gather_in_place(bench *b)
{
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, b->recv, (int)(b->nbytes / (size_t)b->comm.nranks), MPI_BYTE,
                  MPI_COMM_WORLD);
}

/** What an all-gather writes at a rank, from its own memory. */
static void copy_alone(bench *b)
{
    const size_t n = b->nbytes / (size_t)b->comm.nranks;
    for (int r = 0; r < b->comm.nranks; r++)
        if (r != b->comm.rank) memcpy(b->recv + n * (size_t)r, b->send + n * (size_t)r, n);
}

/** Seconds of the slowest rank, over n_calls. */
static double timed(bench *b, run_fn run, int n_calls)
{
    MPI_Barrier(MPI_COMM_WORLD);
    const double t0 = MPI_Wtime();
    for (int i = 0; i < n_calls; i++) run(b);
    double t = (MPI_Wtime() - t0) / n_calls;
    MPI_Allreduce(MPI_IN_PLACE, &t, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return t;
}

static int ascending(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, ascending);
    return x[n / 2];
}

/* theirs: MPI's, NULL if MPI has none; limit: the bound of both, or NULL. */
static void compare(bench *b, const char *name, run_fn ours, run_fn theirs, run_fn limit)
{
    double a[MAX_PAIRS], m[MAX_PAIRS], ratio[MAX_PAIRS], share[MAX_PAIRS];
    const int n_calls = b->nbytes >= 16u << 20 ? 1 : 8, n = b->nbytes > 64u << 20 ? 9 : 31;
    timed(b, ours, 2);
    if (theirs) timed(b, theirs, 2);
    for (int i = 0; i < n; i++) {
        a[i] = timed(b, ours, n_calls);
        m[i] = theirs ? timed(b, theirs, n_calls) : a[i];
        ratio[i] = m[i] / a[i];
        share[i] = limit ? timed(b, limit, n_calls) / a[i] : 0;
    }
    const double gb = (double)b->nbytes * 1e-9, q = median(ratio, n);
    if (b->comm.rank != 0) return;
    printf("%d ranks  %7.2f MiB  %-24s %7.2f GB/s", b->comm.nranks, (double)b->nbytes / (1 << 20), name,
           gb / median(a, n));
    if (theirs) printf("   MPI %7.2f GB/s   ratio %5.1f", gb / median(m, n), q);
    if (limit) printf("   of copy %4.2f", median(share, n));
    printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    int level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    bench b = {0};
    dt_device dev;
    dt_ledger ledger = {0};
    check(dt_comm_open(&b.comm));
    check(dt_device_open(&dev, "cpu", b.comm.local_rank, 1, &ledger));
    check(dt_comm_attach(&b.comm, &dev, "auto", getenv("BENCH_PLAIN") == NULL));
    const char *sizes[] = {"1", "16", "256"};
    const char **size = argc > 1 ? (const char **)argv + 1 : sizes;
    for (int k = 0; k < (argc > 1 ? argc - 1 : 3); k++) {
        b.nbytes = (size_t)(atof(size[k]) * (1 << 20)) / 64 / (size_t)b.comm.nranks * 64 * (size_t)b.comm.nranks;
        dt_buf send, recv;
        check(dt_buf_alloc(&send, &dev, DT_ON_DEVICE, b.nbytes, DT_MEM_OTHER));
        check(dt_buf_alloc(&recv, &dev, DT_ON_DEVICE, b.nbytes, DT_MEM_OTHER));
        b.send = send.ptr;
        b.recv = recv.ptr;
        compare(&b, "reduce-scatter fp32", our_reduce, mpi_reduce, NULL);
        compare(&b, "reduce-scatter bf16->fp32", our_reduce_bf16, NULL, NULL);
        compare(&b, "all-gather", our_gather, mpi_gather, copy_alone);
        compare(&b, "all-gather in place", our_gather_in_place, mpi_gather_in_place, copy_alone);
        dt_buf_free(&send);
        dt_buf_free(&recv);
    }
    dt_comm_close(&b.comm);
    dt_device_close(&dev);
    MPI_Finalize();
    return 0;
}
