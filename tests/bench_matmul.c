/* bench_matmul.c - how fast matmuls are, by the library and by our own kernels: those of a layer of training,
 * and those of generation, which read a matrix of weights for a few rows.
 *
 *     bench_matmul [tokens] [width]        defaults 8192 4096 on a GPU, 256 768 on a processor
 *
 * DTRAIN_DEVICE=cuda names the device. Every matmul is queued often enough for its start not to count; the best of
 * three such rows is kept. */
#include "bench.h"

typedef struct form {
    const char *name;
    int64_t m, n, k;
    bool trans_a, trans_b, bias, addend, accumulate, act, slope, sums, invariant;
    bool c_float; /* else of the type of A and B */
    dt_dtype dt;
} form;

static dt_dtype type_of_c(const form *f) { return f->c_float ? DT_F32 : f->dt; }

typedef struct matmul {
    dt_matmul mm;
    const void *a, *b;
    void *c;
} matmul;

static matmul prepare(bench *b, const form *f)
{
    const size_t c_nbytes = (size_t)(f->m * f->n) * 4;
    matmul p = {.a = bench_values(b, f->m * f->k, f->dt, 0.5f),
                .b = bench_values(b, f->k * f->n, f->dt, 0.5f),
                .c = bench_room(b, c_nbytes),
                .mm = dt_dense_matmul(f->m, f->n, f->k, f->trans_a, f->trans_b, f->dt, type_of_c(f))};
    p.mm.accumulate = f->accumulate, p.mm.batch_invariant = f->invariant;
    if (f->bias) p.mm.bias = bench_room(b, (size_t)f->n * 4);
    if (f->addend) p.mm.addend = bench_room(b, c_nbytes), p.mm.ldd = f->n, p.mm.addend_dtype = type_of_c(f);
    if (f->act || f->slope) {
        p.mm.epilogue = f->act ? DT_EPILOGUE_ACT : DT_EPILOGUE_ACT_BACKWARD, p.mm.act = DT_ACT_GELU_TANH;
        p.mm.aux = bench_room(b, c_nbytes), p.mm.ld_aux = f->n;
    }
    if (f->sums) p.mm.sums_of = DT_SUMS_OF_A, p.mm.sums = bench_room(b, (size_t)f->m * 4), p.mm.sums_dtype = DT_F32;
    return p;
}

static dt_err run_matmul(bench *b, const void *what)
{
    const matmul *p = what;
    return b->ops->matmul(&b->dev, &p->mm, p->a, p->b, p->c, NULL);
}

static double best_us(const form *f, bool own)
{
    bench b;
    double us = 0;
    if (own) setenv("DTRAIN_CUDA_PRODUCT", "own", 1), setenv("DTRAIN_ONEDNN", "none", 1);
    bench_open(&b, "cpu");
    const matmul p = prepare(&b, f);
    TRY_OR_END(bench_best(&b, run_matmul, &p, 3, &us));
    bench_close(&b);
    unsetenv("DTRAIN_CUDA_PRODUCT"), unsetenv("DTRAIN_ONEDNN");
    return us;
}

static void measure(const form *f)
{
    const double flops = 2.0 * (double)f->m * (double)f->n * (double)f->k,
                 nbytes = (double)(f->m * f->k + f->k * f->n) * (double)dt_dtype_size(f->dt) +
                          (double)(f->m * f->n) * (double)dt_dtype_size(type_of_c(f)),
                 us = best_us(f, false), own = best_us(f, true);
    printf("%-34s %6lld %6lld %6lld %10.1f %8.1f %8.0f %10.1f %8.1f %8.0f\n", f->name, (long long)f->m, (long long)f->n,
           (long long)f->k, us, flops / us * 1e-6, nbytes / us * 1e-3, own, flops / own * 1e-6, nbytes / own * 1e-3);
    fflush(stdout);
}

static void train(int64_t t, int64_t w, dt_dtype dt)
{
    const form forms[] = {
        {.name = "x W^T", .m = t, .n = w, .k = w, .trans_b = true},
        {.name = "x W^T + bias", .m = t, .n = w, .k = w, .trans_b = true, .bias = true},
        {.name = "x W^T + bias + residual", .m = t, .n = w, .k = w, .trans_b = true, .bias = true, .addend = true},
        {.name = "x W + bias", .m = t, .n = w, .k = w, .bias = true},
        {.name = "gelu(x W^T + bias), with aux",
         .m = t,
         .n = 4 * w,
         .k = w,
         .trans_b = true,
         .bias = true,
         .act = true},
        {.name = "dy W", .m = t, .n = w, .k = 4 * w},
        {.name = "(dy W) gelu'(aux)", .m = t, .n = 4 * w, .k = w, .slope = true},
        {.name = "dW += dy^T x, fp32", .m = w, .n = w, .k = t, .trans_a = true, .accumulate = true, .c_float = true},
        {.name = "dW = dy^T x, sums of dy", .m = 4 * w, .n = w, .k = t, .trans_a = true, .sums = true},
    };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        form f = forms[i];
        f.dt = dt;
        measure(&f);
    }
}

static void generate(int64_t w, int64_t n_rows)
{
    const form forms[] = {{.name = "rows, W [w, w]", .n = w, .k = w},
                          {.name = "rows, W [4w, w]", .n = 4 * w, .k = w},
                          {.name = "rows, W [w, 4w]", .n = w, .k = 4 * w},
                          {.name = "rows, a vocabulary", .n = 50304, .k = w, .c_float = true}};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        form f = forms[i];
        f.m = n_rows, f.dt = DT_BF16, f.trans_b = true, f.invariant = true;
        measure(&f);
    }
}

int main(int argc, char **argv)
{
    bench b;
    bench_open(&b, "cpu");
    bench_describe(&b);
    const bool gpu = b.ops->own_memory;
    bench_close(&b);
    const int64_t t = argc > 1 ? atoll(argv[1]) : gpu ? 8192 : 256, w = argc > 2 ? atoll(argv[2]) : gpu ? 4096 : 768;
    printf("%-34s %6s %6s %6s %10s %8s %8s %10s %8s %8s\n", "", "m", "n", "k", "us", "TFLOP/s", "GB/s", "own us",
           "TFLOP/s", "GB/s");
    printf("bf16\n");
    train(t, w, DT_BF16);
    printf("fp32\n");
    train(t / 4, w, DT_F32);
    printf("batch-invariant bf16\n");
    for (int64_t rows = 1; rows <= 256; rows *= 4) generate(w, rows);
    return 0;
}
