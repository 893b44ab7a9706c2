/* bench_matmul.c - how fast matmuls are, by the library and by our own kernels: those of a layer of training,
 * and those of generation, which read a matrix of weights for a few rows.
 *
 *     bench_matmul [tokens] [width]        defaults 8192 4096 on a GPU, 256 768 on a processor
 *
 * DTRAIN_DEVICE=cuda names the device. Every matmul is queued often enough for its start not to count; the best of
 * three such rows is kept. */
#include "dtrain/device/device.h"
#include <stdlib.h>
#include <string.h>

typedef struct bench {
    dt_device dev;
    dt_ledger ledger;
    dt_buf a, b, c, d, bias, aux, sums;
    dt_event *from, *to;
} bench;

typedef struct form {
    const char *name;
    int64_t m, n, k;
    bool trans_a, trans_b, bias, addend, accumulate, act, slope, sums, invariant;
    bool c_float; /* else of the type of A and B */
    dt_dtype dt;
} form;

static dt_dtype type_of_c(const form *f) { return f->c_float ? DT_F32 : f->dt; }

#define TRY_OR_END(call)                                                                                               \
    do {                                                                                                               \
        if ((call) != DT_OK) {                                                                                         \
            fprintf(stderr, "bench_matmul: %s\n", dt_error_message());                                                 \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static dt_buf fresh(bench *b, int64_t nbytes)
{
    dt_buf buf;
    TRY_OR_END(dt_buf_alloc_zeroed(&buf, &b->dev, DT_ON_DEVICE, (size_t)nbytes, DT_MEM_OTHER));
    return buf;
}

/* Small random values: a GPU's clock falls with the number of bits that change, so zeros would be too fast. */
static dt_buf numbers(bench *b, int64_t n, dt_dtype dt)
{
    dt_buf buf = fresh(b, n * (int64_t)dt_dtype_size(dt));
    char *host = malloc(buf.nbytes);
    for (int64_t i = 0; i < n; i++) {
        const float x = (float)((double)(dt_mix64((uint64_t)i) >> 40) * 0x1p-24 - 0.5);
        if (dt == DT_F32)
            ((float *)(void *)host)[i] = x;
        else
            ((uint16_t *)(void *)host)[i] = dt_bf16_from_float(x);
    }
    TRY_OR_END(b->dev.ops->copy(&b->dev, buf.ptr, host, buf.nbytes, NULL));
    TRY_OR_END(b->dev.ops->stream_sync(&b->dev, NULL));
    free(host);
    return buf;
}

static void open_bench(bench *b, const form *f)
{
    *b = (bench){0};
    TRY_OR_END(dt_device_open(&b->dev, "cpu", 0, 0, &b->ledger));
    b->a = numbers(b, f->m * f->k, f->dt), b->b = numbers(b, f->k * f->n, f->dt);
    b->c = fresh(b, f->m * f->n * 4), b->d = fresh(b, f->m * f->n * 4), b->aux = fresh(b, f->m * f->n * 4);
    b->bias = fresh(b, f->n * 4), b->sums = fresh(b, f->m * 4);
    TRY_OR_END(b->dev.ops->event_create(&b->dev, &b->from));
    TRY_OR_END(b->dev.ops->event_create(&b->dev, &b->to));
}

static void close_bench(bench *b)
{
    dt_buf *const all[] = {&b->a, &b->b, &b->c, &b->d, &b->aux, &b->bias, &b->sums};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) dt_buf_free(all[i]);
    b->dev.ops->event_destroy(&b->dev, b->from);
    b->dev.ops->event_destroy(&b->dev, b->to);
    dt_device_close(&b->dev);
}

static dt_matmul describe(const bench *b, const form *f)
{
    return (dt_matmul){.m = f->m,
                       .n = f->n,
                       .k = f->k,
                       .trans_a = f->trans_a,
                       .trans_b = f->trans_b,
                       .lda = f->trans_a ? f->m : f->k,
                       .ldb = f->trans_b ? f->k : f->n,
                       .ldc = f->n,
                       .dt = f->dt,
                       .c_dtype = type_of_c(f),
                       .accumulate = f->accumulate,
                       .batch_invariant = f->invariant,
                       .bias = f->bias ? b->bias.ptr : NULL,
                       .addend = f->addend ? b->d.ptr : NULL,
                       .ldd = f->n,
                       .addend_dtype = type_of_c(f),
                       .epilogue = f->act     ? DT_EPILOGUE_ACT
                                   : f->slope ? DT_EPILOGUE_ACT_BACKWARD
                                              : DT_EPILOGUE_NONE,
                       .act = DT_ACT_GELU_TANH,
                       .aux = f->act || f->slope ? b->aux.ptr : NULL,
                       .ld_aux = f->n,
                       .sums_of = f->sums ? DT_SUMS_OF_A : DT_SUMS_NONE,
                       .sums = f->sums ? b->sums.ptr : NULL,
                       .sums_dtype = DT_F32};
}

static double seconds_of(bench *b, const dt_matmul *mm, int n)
{
    float ms = 0;
    TRY_OR_END(b->dev.ops->event_record(&b->dev, b->from, NULL));
    for (int i = 0; i < n; i++) TRY_OR_END(b->dev.ops->matmul(&b->dev, mm, b->a.ptr, b->b.ptr, b->c.ptr, NULL));
    TRY_OR_END(b->dev.ops->event_record(&b->dev, b->to, NULL));
    TRY_OR_END(b->dev.ops->event_sync(&b->dev, b->to));
    TRY_OR_END(b->dev.ops->event_elapsed_ms(&b->dev, b->from, b->to, &ms));
    return ms * 1e-3 / n;
}

static double best_of(const form *f, bool own)
{
    bench b;
    if (own) setenv("DTRAIN_CUDA_PRODUCT", "own", 1), setenv("DTRAIN_ONEDNN", "none", 1);
    open_bench(&b, f);
    const dt_matmul mm = describe(&b, f);
    seconds_of(&b, &mm, 1); /* trials, choices, loading of kernels */
    const double once = seconds_of(&b, &mm, 3);
    const int n = once > 5e-3 ? 2 : (int)(10e-3 / (once + 1e-6)) + 1;
    double best = seconds_of(&b, &mm, n);
    for (int i = 0; i < 2; i++) {
        const double s = seconds_of(&b, &mm, n);
        best = s < best ? s : best;
    }
    close_bench(&b);
    unsetenv("DTRAIN_CUDA_PRODUCT"), unsetenv("DTRAIN_ONEDNN");
    return best;
}

static void measure(const form *f)
{
    const double flops = 2.0 * (double)f->m * (double)f->n * (double)f->k,
                 nbytes = (double)(f->m * f->k + f->k * f->n) * (double)dt_dtype_size(f->dt) +
                          (double)(f->m * f->n) * (double)dt_dtype_size(type_of_c(f)),
                 s = best_of(f, false), own = best_of(f, true);
    printf("%-34s %6lld %6lld %6lld %10.1f %8.1f %8.0f %10.1f %8.1f %8.0f\n", f->name, (long long)f->m, (long long)f->n,
           (long long)f->k, s * 1e6, flops / s * 1e-12, nbytes / s * 1e-9, own * 1e6, flops / own * 1e-12,
           nbytes / own * 1e-9);
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
    bench b = {0};
    char text[256];
    TRY_OR_END(dt_device_open(&b.dev, "cpu", 0, 0, &b.ledger));
    b.dev.ops->describe(&b.dev, text, sizeof text);
    const bool gpu = b.dev.ops->own_memory;
    dt_device_close(&b.dev);
    const int64_t t = argc > 1 ? atoll(argv[1]) : gpu ? 8192 : 256, w = argc > 2 ? atoll(argv[2]) : gpu ? 4096 : 768;
    printf("%s\n%-34s %6s %6s %6s %10s %8s %8s %10s %8s %8s\n", text, "", "m", "n", "k", "us", "TFLOP/s", "GB/s",
           "own us", "TFLOP/s", "GB/s");
    printf("bf16\n");
    train(t, w, DT_BF16);
    printf("fp32\n");
    train(t / 4, w, DT_F32);
    printf("batch-invariant bf16\n");
    for (int64_t rows = 1; rows <= 256; rows *= 4) generate(w, rows);
    return 0;
}
