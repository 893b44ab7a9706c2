/* bench_stored.c - speed of matmuls with weights that are stored as int8 or nf4 (nf4.h), compared with weights of the
 * type that is computed in: y = x W^T on the matrices of a model of 0.5 and of 7 billion parameters.
 *
 *     bench_stored [rows] [bf16|fp32]        defaults 1 bf16
 *
 * One row is a step of generation, which reads each weight once: the call is batch-invariant, and as many matrices are
 * used in turn as are beyond the caches (0.4 GB in four bits). The ways take turns; the best of five rounds is kept.
 * DTRAIN_DEVICE=cuda names the device. */
#include "bench.h"
#include "dtrain/device/nf4.h"

enum { N_WAYS = 3, ROUNDS = 5 };
static const char *const WAYS[N_WAYS] = {"plain", "int8", "nf4"};
enum { PLAIN, INT8, NF4 };

typedef struct job {
    int64_t m, n, k;
    int n_matrices, way;
    dt_dtype dt;
    const char *a, *b[N_WAYS];
    uint8_t *blocks;
    float *scale;
    void *c;
} job;

static size_t nbytes_of(const job *j, int way)
{
    const size_t n = (size_t)(j->n * j->k);
    return way == PLAIN ? n * dt_dtype_size(j->dt) : way == NF4 ? n / 2 : n;
}

static void prepare(bench *b, job *j)
{
    const int64_t room = (int64_t)400 << 20, n = j->n * j->k;
    bench_open(b, "cpu");
    j->n_matrices = j->m > 64 ? 1 : (int)(room / (n / 2)) + 1;
    j->a = bench_values(b, j->m * j->k, j->dt, 0.5f), j->c = bench_values(b, j->m * j->n, j->dt, 0.5f);
    j->scale = bench_values(b, j->n + 2 * dt_nf4_groups(n), DT_F32, 0.5f);
    j->blocks = bench_values(b, dt_nf4_blocks(n) * j->n_matrices, DT_I8, 0);
    for (int w = 0; w < N_WAYS; w++) {
        const dt_dtype dt = w == PLAIN ? j->dt : DT_I8;
        j->b[w] = bench_values(b, (int64_t)(nbytes_of(j, w) / dt_dtype_size(dt)) * j->n_matrices, dt, 0.5f);
    }
}

static dt_scaled how_of(const job *j, int matrix)
{
    if (j->way == PLAIN) return (dt_scaled){.how = DT_SCALE_NONE};
    if (j->way == INT8) return (dt_scaled){.how = DT_SCALE_ROWS, .stored = DT_I8, .scale = j->scale};
    return (dt_scaled){.how = DT_SCALE_NF4,
                       .stored = DT_NF4X2,
                       .scale = j->scale,
                       .blocks = j->blocks + (size_t)matrix * (size_t)dt_nf4_blocks(j->n * j->k)};
}

/* All matrices once. */
static dt_err run_matmuls(bench *b, const void *what)
{
    const job *j = what;
    dt_matmul mm = dt_dense_matmul(j->m, j->n, j->k, false, true, j->dt, j->dt);
    mm.batch_invariant = j->m == 1;
    for (int i = 0; i < j->n_matrices; i++) {
        mm.b_scaled = how_of(j, i);
        DT_TRY(b->ops->matmul(&b->dev, &mm, j->a, j->b[j->way] + (size_t)i * nbytes_of(j, j->way), j->c, NULL));
    }
    return DT_OK;
}

static void measure(int64_t m, int64_t n, int64_t k, dt_dtype dt)
{
    bench b;
    job j = {.m = m, .n = n, .k = k, .dt = dt};
    double best[N_WAYS] = {INFINITY, INFINITY, INFINITY}, us = 0;
    prepare(&b, &j);
    for (int round = 0; round < ROUNDS; round++)
        for (j.way = 0; j.way < N_WAYS; j.way++) {
            TRY_OR_END(bench_time(&b, run_matmuls, &j, 1, &us));
            best[j.way] = fmin(best[j.way], us / j.n_matrices);
        }
    for (int w = 0; w < N_WAYS; w++)
        printf("%6lld %6lld %6lld  %-7s %10.1f us %8.1f GB/s %8.1f GFLOP/s %6.2f\n", (long long)m, (long long)n,
               (long long)k, WAYS[w], best[w], (double)nbytes_of(&j, w) / best[w] * 1e-3,
               2.0 * (double)m * (double)n * (double)k / best[w] * 1e-3, best[0] / best[w]);
    fflush(stdout);
    bench_close(&b);
}

int main(int argc, char **argv)
{
    static const int64_t shapes[][2] = {{4864, 896}, {896, 4864}, {4096, 4096}, {11008, 4096}, {4096, 11008}};
    const int64_t m = argc > 1 ? atoll(argv[1]) : 1;
    const dt_dtype dt = argc > 2 && !strcmp(argv[2], "fp32") ? DT_F32 : DT_BF16;
    printf("%s\n%6s %6s %6s\n", dt_dtype_name(dt), "m", "n", "k");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) measure(m, shapes[i][0], shapes[i][1], dt);
    return 0;
}
