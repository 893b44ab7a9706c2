/* bench_stored.c - speed of matmuls with weights that are stored as int8 or nf4 (nf4.h), compared with weights of the
 * type that is computed in: y = x W^T on the matrices of a model of 0.5 and of 7 billion parameters.
 *
 *     bench_stored [rows] [bf16|fp32]        defaults 1 bf16
 *
 * One row is a step of generation, which reads each weight once: the call is batch-invariant, and as many matrices are
 * used in turn as are beyond the caches (0.4 GB in four bits). The ways take turns; the best of five rounds is kept.
 * DTRAIN_DEVICE=cuda names the device. */
#include "dtrain/device/device.h"
#include "dtrain/device/nf4.h"
#include <stdlib.h>
#include <string.h>

enum { N_WAYS = 3, ROUNDS = 5 };
static const char *const WAYS[N_WAYS] = {"plain", "int8", "nf4"};
enum { PLAIN, INT8, NF4 };

typedef struct bench {
    dt_device dev;
    dt_ledger ledger;
    int64_t m, n, k;
    int n_matrices;
    dt_dtype dt;
    dt_buf a, c, scale, blocks, b[N_WAYS];
    dt_event *from, *to;
} bench;

#define TRY_OR_END(call)                                                                                               \
    do {                                                                                                               \
        if ((call) != DT_OK) {                                                                                         \
            fprintf(stderr, "bench_stored: %s\n", dt_error_message());                                                 \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static size_t nbytes_of(const bench *b, int way)
{
    const size_t n = (size_t)(b->n * b->k);
    return way == PLAIN ? n * dt_dtype_size(b->dt) : way == NF4 ? n / 2 : n;
}

/* Small values of any type, or bytes: the same in each of `times` copies. */
static dt_buf filled(bench *b, size_t nbytes, int times, dt_dtype dt)
{
    dt_buf buf;
    char *host = malloc(nbytes);
    if (!host) exit(1);
    TRY_OR_END(dt_buf_alloc(&buf, &b->dev, DT_ON_DEVICE, nbytes * (size_t)times, DT_MEM_OTHER));
    for (size_t i = 0; i < nbytes / dt_dtype_size(dt); i++) {
        if (dt_is_float(dt))
            dt_set_element(host, dt, (int64_t)i, (float)((double)(dt_mix64(i) >> 40) * 0x1p-24 - 0.5));
        else
            host[i] = (char)dt_mix64(i);
    }
    for (int i = 0; i < times; i++)
        TRY_OR_END(b->dev.ops->copy(&b->dev, (char *)buf.ptr + (size_t)i * nbytes, host, nbytes, NULL));
    TRY_OR_END(b->dev.ops->stream_sync(&b->dev, NULL));
    free(host);
    return buf;
}

static void open_bench(bench *b)
{
    const int64_t room = (int64_t)400 << 20, n = b->n * b->k;
    TRY_OR_END(dt_device_open(&b->dev, "cpu", 0, 0, &b->ledger));
    b->n_matrices = b->m > 64 ? 1 : (int)(room / (n / 2)) + 1;
    b->a = filled(b, (size_t)(b->m * b->k) * dt_dtype_size(b->dt), 1, b->dt);
    b->c = filled(b, (size_t)(b->m * b->n) * dt_dtype_size(b->dt), 1, b->dt);
    b->scale = filled(b, (size_t)(b->n + 2 * dt_nf4_groups(n)) * sizeof(float), 1, DT_F32);
    b->blocks = filled(b, (size_t)dt_nf4_blocks(n), b->n_matrices, DT_I8);
    for (int w = 0; w < N_WAYS; w++) b->b[w] = filled(b, nbytes_of(b, w), b->n_matrices, w == PLAIN ? b->dt : DT_I8);
    TRY_OR_END(b->dev.ops->event_create(&b->dev, &b->from));
    TRY_OR_END(b->dev.ops->event_create(&b->dev, &b->to));
}

static void close_bench(bench *b)
{
    dt_buf *const all[] = {&b->a, &b->c, &b->scale, &b->blocks, &b->b[0], &b->b[1], &b->b[2]};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) dt_buf_free(all[i]);
    b->dev.ops->event_destroy(&b->dev, b->from);
    b->dev.ops->event_destroy(&b->dev, b->to);
    dt_device_close(&b->dev);
}

static dt_scaled how_of(const bench *b, int way, int matrix)
{
    const size_t blocks = (size_t)dt_nf4_blocks(b->n * b->k);
    if (way == PLAIN) return (dt_scaled){.how = DT_SCALE_NONE};
    if (way != NF4) return (dt_scaled){.how = DT_SCALE_ROWS, .stored = DT_I8, .scale = b->scale.ptr};
    return (dt_scaled){.how = DT_SCALE_NF4,
                       .stored = DT_NF4X2,
                       .scale = b->scale.ptr,
                       .blocks = (uint8_t *)b->blocks.ptr + (size_t)matrix * blocks};
}

/* Seconds of a matmul: all matrices once. */
static double seconds_of(bench *b, int way)
{
    float ms = 0;
    TRY_OR_END(b->dev.ops->event_record(&b->dev, b->from, NULL));
    for (int i = 0; i < b->n_matrices; i++) {
        const dt_matmul mm = {.m = b->m,
                              .n = b->n,
                              .k = b->k,
                              .trans_b = true,
                              .lda = b->k,
                              .ldb = b->k,
                              .ldc = b->n,
                              .dt = b->dt,
                              .c_dtype = b->dt,
                              .batch_invariant = b->m == 1,
                              .b_scaled = how_of(b, way, i)};
        const char *at = (char *)b->b[way].ptr + (size_t)i * nbytes_of(b, way);
        TRY_OR_END(b->dev.ops->matmul(&b->dev, &mm, b->a.ptr, at, b->c.ptr, NULL));
    }
    TRY_OR_END(b->dev.ops->event_record(&b->dev, b->to, NULL));
    TRY_OR_END(b->dev.ops->event_sync(&b->dev, b->to));
    TRY_OR_END(b->dev.ops->event_elapsed_ms(&b->dev, b->from, b->to, &ms));
    return ms * 1e-3 / b->n_matrices;
}

static void measure(int64_t m, int64_t n, int64_t k, dt_dtype dt)
{
    bench b = {.m = m, .n = n, .k = k, .dt = dt};
    double best[N_WAYS] = {1e9, 1e9, 1e9};
    open_bench(&b);
    for (int round = 0; round < ROUNDS; round++)
        for (int w = 0; w < N_WAYS; w++) {
            const double s = seconds_of(&b, w);
            best[w] = s < best[w] ? s : best[w];
        }
    for (int w = 0; w < N_WAYS; w++)
        printf("%6lld %6lld %6lld  %-7s %10.1f us %8.1f GB/s %8.1f GFLOP/s %6.2f\n", (long long)m, (long long)n,
               (long long)k, WAYS[w], best[w] * 1e6, (double)nbytes_of(&b, w) / best[w] * 1e-9,
               2.0 * (double)m * (double)n * (double)k / best[w] * 1e-9, best[0] / best[w]);
    fflush(stdout);
    close_bench(&b);
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
