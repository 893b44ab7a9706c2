/* bench_limits.c - what this machine can do now, for the limits of bench_train.sh and bench_grpo.sh, on one line:
 *     "fp32 GFLOP/s, bf16 GFLOP/s, GB/s of updating, GB/s of reading".
 *
 *     bench_limits [threads] [rounds] [device]
 *
 * The rates of matmuls are the best of a few large shapes, of the device's own library. Bandwidths of the
 * processor: updating four arrays in place with three written back (what AdamW moves), and adding up the words of an
 * array; of other devices both are that of a copy, read and written. Best of all rounds: a limit is what the machine
 * reaches when it is let. */
#include "forms.h"
#include <omp.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
    int64_t m, n, k;
} shape;

static bool is_processor(const dt_device *dev) { return !strcmp(dev->ops->name, "cpu"); }

static double matmul_gflops(dt_device *dev, dt_dtype dt, const shape *s, const dt_buf *a, const dt_buf *b,
                            const dt_buf *c)
{
    const dt_matmul mm = dt_dense_matmul(s->m, s->n, s->k, false, true, dt, dt);
    const int in_a_row = is_processor(dev) ? 1 : 20;
    dev->ops->matmul(dev, &mm, a->ptr, b->ptr, c->ptr, NULL);
    if (dev->ops->stream_sync(dev, NULL)) return 0;
    const double begin_s = dt_now_s();
    int n = 0;
    do {
        for (int k = 0; k < in_a_row; k++, n++)
            if (dev->ops->matmul(dev, &mm, a->ptr, b->ptr, c->ptr, NULL)) return 0;
        if (dev->ops->stream_sync(dev, NULL)) return 0;
    } while (dt_now_s() - begin_s < 0.1);
    return 2e-9 * (double)s->m * (double)s->n * (double)s->k * n / (dt_now_s() - begin_s);
}

/* Loads of an element come before its stores, and the arrays do not begin at equal places of their pages: stores must
 * not look like the source of a later load. */
__attribute__((optimize("O3"))) static double update_gbs(float *x, int64_t n)
{
    enum { BLOCK = 1024, APART = 272 };
    float *g = x, *p = x + n + APART, *m = x + 2 * (n + APART), *v = x + 3 * (n + APART);
    const double begin_s = dt_now_s();
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < n; at += BLOCK) {
        const float *restrict gs = g + at;
        float *restrict ps = p + at, *restrict ms = m + at, *restrict vs = v + at;
        for (int i = 0; i < BLOCK; i++) {
            const float s = gs[i] * 0.5f, pi = ps[i] + s, mi = ms[i] + s, vi = vs[i] + s;
            ps[i] = pi, ms[i] = mi, vs[i] = vi;
        }
    }
    return 28e-9 * (double)n / (dt_now_s() - begin_s);
}

__attribute__((optimize("O3"))) static double read_gbs(const float *x, int64_t n)
{
    const uint64_t *words = (const uint64_t *)x;
    uint64_t sum = 0;
    const double begin_s = dt_now_s();
#pragma omp parallel for schedule(static) reduction(+ : sum)
    for (int64_t i = 0; i < n / 2; i++) sum += words[i];
    const double s = dt_now_s() - begin_s;
    return sum == 1 ? 0 : 4e-9 * (double)n / s; /* the compiler would drop unused reads */
}

/* Of one half of the array onto the other. */
static double copy_gbs(dt_device *dev, float *x, int64_t n)
{
    enum { IN_A_ROW = 20 };
    const size_t nbytes = (size_t)n / 2 * sizeof *x;
    double begin_s = 0;
    for (int k = -1; k < IN_A_ROW; k++) {
        if (dev->ops->copy(dev, x + n / 2, x, nbytes, NULL)) return 0;
        if (k >= 0) continue;
        if (dev->ops->stream_sync(dev, NULL)) return 0;
        begin_s = dt_now_s();
    }
    return dev->ops->stream_sync(dev, NULL) ? 0 : 2e-9 * (double)nbytes * IN_A_ROW / (dt_now_s() - begin_s);
}

static void keep_larger(double *best, double rate)
{
    if (rate > *best) *best = rate;
}

int main(int argc, char **argv)
{
    enum { MAX = 4096 * 4096, STREAM = 16 << 20 };
    static const shape shapes[] = {{1024, 3072, 768}, {1024, 4096, 4096}, {2048, 2048, 2048}};
    const int n_threads = argc > 1 ? atoi(argv[1]) : 2, n_rounds = argc > 2 ? atoi(argv[2]) : 5;
    const char *const name = argc > 3 ? argv[3] : "cpu";
    dt_ledger ledger = {0};
    dt_device dev = {0};
    dt_buf a, b, c, x;
    omp_set_num_threads(n_threads);
    if (dt_device_open(&dev, name, 0, n_threads, &ledger) ||
        dt_buf_alloc(&a, &dev, DT_ON_DEVICE, MAX * 4, DT_MEM_OTHER) ||
        dt_buf_alloc(&b, &dev, DT_ON_DEVICE, MAX * 4, DT_MEM_OTHER) ||
        dt_buf_alloc(&c, &dev, DT_ON_DEVICE, MAX * 4, DT_MEM_OTHER) ||
        dt_buf_alloc(&x, &dev, DT_ON_DEVICE, (size_t)STREAM * 16 + 16384, DT_MEM_OTHER)) {
        fprintf(stderr, "%s\n", dt_error_message());
        return 1;
    }
    double best[4] = {0};
    const int64_t n = 4 * STREAM;
    for (int r = 0; r < n_rounds; r++) {
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
            for (int d = 0; d < 2; d++)
                keep_larger(&best[d], matmul_gflops(&dev, d ? DT_BF16 : DT_F32, &shapes[s], &a, &b, &c));
        const bool processor = is_processor(&dev);
        keep_larger(&best[2], processor ? update_gbs(x.ptr, STREAM) : copy_gbs(&dev, x.ptr, n));
        keep_larger(&best[3], processor ? read_gbs(x.ptr, n) : best[2]);
    }
    printf("%.0f %.0f %.1f %.1f\n", best[0], best[1], best[2], best[3]);
    dt_buf_free(&a), dt_buf_free(&b), dt_buf_free(&c), dt_buf_free(&x);
    dt_device_close(&dev);
    return 0;
}
