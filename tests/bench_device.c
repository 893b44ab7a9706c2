/* bench_device.c - how fast the CPU device is: peak and bandwidth of the machine now, then each operation of one
 * training step of GPT-2 124M as a fraction of them, then the step.
 *
 *     bench_device [tokens] [sequences] [rounds] [threads]        defaults 256 4 5 0
 *
 * Operations are run in turn, round after round, and the best time of each is kept: what else the machine does falls on
 * all of them alike. Every operation works on the memory that it would have in a step of that size. */
#include "dtrain/device/device.h"
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { C = 768, FF = 3072, V = 50257, LAYERS = 12, HEADS = 12, HEAD_DIM = 64, CHUNK_ROWS = 256 };

typedef struct bench {
    dt_device dev;
    dt_ledger ledger;
    int64_t n_tok;
    int n_seq;
    dt_dtype dt;
    dt_buf x, w, y, z, grad, head, logits, opt[4], scratch;
    int32_t *q_start, *kv_len, *id, *order;
} bench;

typedef struct operation operation;
struct operation {
    const char *name;
    double flops, nbytes; /* of one call */
    double per_step;      /* calls in a step */
    dt_err (*run)(bench *b, const operation *op);
    dt_matmul mm;
    double best_s;
};

/* ---- what the machine can do ------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#include <immintrin.h>
__attribute__((target("avx512f"))) static double spin_512(int64_t n)
{
    __m512 s[12], a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
    for (int i = 0; i < 12; i++) s[i] = _mm512_set1_ps((float)i);
    for (int64_t k = 0; k < n; k++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) s[i] = _mm512_fmadd_ps(s[i], a, b);
    float sum = 0, lane[16];
    for (int i = 0; i < 12; i++) {
        _mm512_storeu_ps(lane, s[i]);
        sum += lane[i];
    }
    return (double)sum;
}
static bool can_spin(void) { return __builtin_cpu_supports("avx512f"); }
#else
static double spin_512(int64_t n) { return (double)n; }
static bool can_spin(void) { return false; }
#endif

/* Multiply-adds on registers; 0 where this file has no code for the processor. */
static double peak_gflops(int n_threads)
{
    if (!can_spin()) return 0;
    const int64_t n = 400000;
    volatile double sink = 0;
    double start = dt_now_s();
#pragma omp parallel num_threads(n_threads)
    {
        const double s = spin_512(n);
#pragma omp atomic
        sink += s;
    }
    return n_threads * 12.0 * 16 * 2 * (double)n / (dt_now_s() - start) * 1e-9;
}

/* AdamW's pattern without its arithmetic: read four streams, write three. */
__attribute__((optimize("O3"))) static double stream_gbs(bench *b)
{
    float *g = b->opt[0].ptr, *p = b->opt[1].ptr, *m = b->opt[2].ptr, *v = b->opt[3].ptr;
    const int64_t n = (int64_t)(b->opt[0].nbytes / 4);
    const double start = dt_now_s();
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < n / 1024; at++) {
        const float *restrict gs = g + at * 1024;
        float *restrict ps = p + at * 1024, *restrict ms = m + at * 1024, *restrict vs = v + at * 1024;
        for (int i = 0; i < 1024; i++) {
            /* all loads first: they alias stores mod 4 KiB */
            const float s = gs[i] * 0.5f, pi = ps[i] + s, mi = ms[i] + s, vi = vs[i] + s;
            ps[i] = pi, ms[i] = mi, vs[i] = vi;
        }
    }
    return 28.0 * (double)n / (dt_now_s() - start) * 1e-9;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static dt_err run_matmul(bench *b, const operation *op)
{
    const bool head = op->mm.n == V || op->mm.k == V || op->mm.m == V;
    void *big = op->mm.n == V ? b->logits.ptr : b->y.ptr;
    if (op->mm.trans_a)
        return b->dev.ops->matmul(&b->dev, &op->mm, op->mm.m == V ? b->logits.ptr : b->x.ptr, b->z.ptr, b->grad.ptr,
                                  NULL);
    dt_matmul mm = op->mm;
    mm.bias = head || mm.trans_b ? NULL : b->z.ptr;
    return b->dev.ops->matmul(&b->dev, &mm, mm.k == V ? b->logits.ptr : b->x.ptr, head ? b->head.ptr : b->w.ptr, big,
                              NULL);
}

static dt_attention attention_of(const bench *b)
{
    const int32_t len = (int32_t)(b->n_tok / b->n_seq);
    return (dt_attention){.n_seq = b->n_seq,
                          .n_heads = HEADS,
                          .n_kv_heads = HEADS,
                          .head_dim = HEAD_DIM,
                          .q_start = b->q_start,
                          .kv_start = b->q_start,
                          .kv_len = b->kv_len,
                          .n_tok = (int32_t)b->n_tok,
                          .max_q_len = len,
                          .max_kv_len = len,
                          .q_ld = 3 * C,
                          .kv_ld = 3 * C,
                          .o_ld = C,
                          .scale = 0.125f,
                          .dt = b->dt};
}
static void *column(void *p, dt_dtype dt, int64_t c) { return (char *)p + c * (int64_t)dt_dtype_size(dt); }

static dt_err run_attention(bench *b, const operation *op)
{
    const dt_attention at = attention_of(b);
    float *lse = b->scratch.ptr;
    return b->dev.ops->attention_forward(&b->dev, &at, b->x.ptr, column(b->x.ptr, b->dt, C),
                                         column(b->x.ptr, b->dt, 2 * C), b->y.ptr, lse, NULL);
}
static dt_err run_attention_backward(bench *b, const operation *op)
{
    const dt_attention at = attention_of(b);
    float *lse = b->scratch.ptr, *scratch = lse + b->n_tok * HEADS;
    return b->dev.ops->attention_backward(&b->dev, &at, b->x.ptr, column(b->x.ptr, b->dt, C),
                                          column(b->x.ptr, b->dt, 2 * C), b->y.ptr, lse, b->y.ptr, b->z.ptr,
                                          column(b->z.ptr, b->dt, C), column(b->z.ptr, b->dt, 2 * C), scratch, NULL);
}
static dt_err run_norm(bench *b, const operation *op)
{
    float *mean = b->scratch.ptr;
    return b->dev.ops->layernorm_forward(&b->dev, b->x.ptr, b->w.ptr, b->w.ptr, b->y.ptr, mean, mean + b->n_tok,
                                         b->n_tok, C, 1e-5f, b->dt, NULL);
}
static dt_err run_norm_backward(bench *b, const operation *op)
{
    float *mean = b->scratch.ptr;
    return b->dev.ops->layernorm_backward(&b->dev, b->x.ptr, b->w.ptr, mean, mean + b->n_tok, b->y.ptr, b->z.ptr, true,
                                          b->grad.ptr, b->grad.ptr, DT_F32, true, b->n_tok, C, mean + 2 * b->n_tok,
                                          b->dt, NULL);
}
static dt_err run_gelu(bench *b, const operation *op)
{
    return b->dev.ops->act_forward(&b->dev, DT_ACT_GELU_TANH, b->x.ptr, b->y.ptr, b->dt, b->n_tok * FF, NULL);
}
static dt_err run_gelu_backward(bench *b, const operation *op)
{
    return b->dev.ops->act_backward(&b->dev, DT_ACT_GELU_TANH, b->x.ptr, b->y.ptr, b->z.ptr, b->dt, b->n_tok * FF,
                                    NULL);
}
static dt_err run_add(bench *b, const operation *op)
{
    return b->dev.ops->add(&b->dev, b->x.ptr, b->y.ptr, b->y.ptr, b->dt, b->n_tok * C, NULL);
}
static dt_err run_bias(bench *b, const operation *op)
{
    return b->dev.ops->bias_backward(&b->dev, b->y.ptr, b->n_tok, FF, FF, b->dt, b->grad.ptr, DT_F32, true, NULL);
}
static dt_err run_embedding(bench *b, const operation *op)
{
    DT_TRY(b->dev.ops->embedding_forward(&b->dev, b->id, b->id, b->head.ptr, b->head.ptr, b->y.ptr, b->n_tok, C, b->dt,
                                         NULL));
    return b->dev.ops->embedding_backward(&b->dev, b->y.ptr, b->id, b->order, b->grad.ptr, b->n_tok, C, b->dt, DT_F32,
                                          NULL);
}
static dt_err run_classifier(bench *b, const operation *op)
{
    static const float weight[CHUNK_ROWS];
    float logp[CHUNK_ROWS];
    const dt_classifier cl = {.n_rows = CHUNK_ROWS,
                              .n_vocab = V,
                              .logits_ld = V,
                              .inv_temperature = 1,
                              .dlogits_dtype = DT_F32,
                              .target = b->id,
                              .weight = weight,
                              .logp = logp};
    return b->dev.ops->classifier(&b->dev, &cl, b->logits.ptr, NULL);
}
static dt_err run_adamw(bench *b, const operation *op)
{
    const dt_adamw o = {.lr = 1e-4f,
                        .beta1 = 0.9f,
                        .beta2 = 0.95f,
                        .eps = 1e-8f,
                        .weight_decay = 0.1f,
                        .fix1 = 0.1f,
                        .fix2 = 0.05f,
                        .grad_scale = 1};
    return b->dev.ops->adamw_step(&b->dev, &o, b->opt[0].ptr, DT_F32, b->opt[1].ptr, b->opt[2].ptr, b->opt[3].ptr,
                                  b->dt == DT_BF16 ? b->head.ptr : NULL, DT_BF16, (int64_t)(b->opt[0].nbytes / 4),
                                  NULL);
}
static dt_err run_sgd(bench *b, const operation *op)
{
    const dt_sgd o = {.lr = 1e-4f, .momentum = 0.9f, .l2 = 0.1f, .grad_scale = 1};
    return b->dev.ops->sgd_step(&b->dev, &o, b->opt[0].ptr, DT_F32, b->opt[1].ptr, b->opt[2].ptr,
                                b->dt == DT_BF16 ? b->head.ptr : NULL, DT_BF16, (int64_t)(b->opt[0].nbytes / 4), NULL);
}
static dt_err run_norm_of_gradient(bench *b, const operation *op)
{
    double sum;
    return b->dev.ops->sum_squares(&b->dev, b->opt[0].ptr, DT_F32, (int64_t)(b->opt[0].nbytes / 4), &sum, NULL);
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

/* mm of C[m,n] = A B; forms: 0 x W, 1 dy W^T, 2 x^T dy */
static operation matmul(const char *name, double per_step, int64_t m, int64_t n, int64_t k, int form, dt_dtype dt,
                        dt_dtype c)
{
    return (operation){.name = name,
                       .per_step = per_step,
                       .run = run_matmul,
                       .flops = 2.0 * (double)m * (double)n * (double)k,
                       .mm = {.m = m,
                              .n = n,
                              .k = k,
                              .trans_a = form == 2,
                              .trans_b = form == 1,
                              .lda = form == 2 ? m : k,
                              .ldb = form == 1 ? k : n,
                              .ldc = n,
                              .dt = dt,
                              .c_dtype = c,
                              .accumulate = form == 2}};
}

static int list_operations(bench *b, operation *list)
{
    const int64_t T = b->n_tok, len = T / b->n_seq;
    const double t = (double)T, e = (double)dt_dtype_size(b->dt),
                 pairs = (double)(len * (len + 1) / 2 * b->n_seq) * HEADS * HEAD_DIM,
                 n_opt = (double)(b->opt[0].nbytes / 4);
    const dt_dtype d = b->dt;
    const double chunks = ceil(t / CHUNK_ROWS);
    const operation all[] = {
        matmul("qkv     x W", LAYERS, T, 3 * C, C, 0, d, d),
        matmul("proj    x W", LAYERS, T, C, C, 0, d, d),
        matmul("fc      x W", LAYERS, T, FF, C, 0, d, d),
        matmul("fc2     x W", LAYERS, T, C, FF, 0, d, d),
        matmul("qkv     dy W'", LAYERS, T, C, 3 * C, 1, d, d),
        matmul("proj    dy W'", LAYERS, T, C, C, 1, d, d),
        matmul("fc      dy W'", LAYERS, T, C, FF, 1, d, d),
        matmul("fc2     dy W'", LAYERS, T, FF, C, 1, d, d),
        matmul("qkv     x'dy", LAYERS, C, 3 * C, T, 2, d, DT_F32),
        matmul("proj    x'dy", LAYERS, C, C, T, 2, d, DT_F32),
        matmul("fc      x'dy", LAYERS, C, FF, T, 2, d, DT_F32),
        matmul("fc2     x'dy", LAYERS, FF, C, T, 2, d, DT_F32),
        matmul("head    x W'", chunks, CHUNK_ROWS, V, C, 1, d, DT_F32),
        matmul("head    dz W", chunks, CHUNK_ROWS, C, V, 0, d, d),
        matmul("head    dz'x", chunks, V, C, CHUNK_ROWS, 2, d, DT_F32),
        {.name = "attention", .flops = 4 * pairs, .per_step = LAYERS, .run = run_attention},
        {.name = "attention backward", .flops = 10 * pairs, .per_step = LAYERS, .run = run_attention_backward},
        {.name = "layernorm", .nbytes = 2 * t * C * e, .per_step = 2 * LAYERS + 1, .run = run_norm},
        {.name = "layernorm backward", .nbytes = 4 * t * C * e, .per_step = 2 * LAYERS + 1, .run = run_norm_backward},
        {.name = "gelu", .nbytes = 2 * t * FF * e, .per_step = LAYERS, .run = run_gelu},
        {.name = "gelu backward", .nbytes = 3 * t * FF * e, .per_step = LAYERS, .run = run_gelu_backward},
        {.name = "add", .nbytes = 3 * t * C * e, .per_step = 2 * LAYERS, .run = run_add},
        {.name = "bias backward (3072)",
         .nbytes = t * FF * e,
         .per_step = LAYERS * (3.0 * C + C + FF + C) / FF,
         .run = run_bias},
        {.name = "embedding both ways", .nbytes = 6 * t * C * e, .per_step = 1, .run = run_embedding},
        {.name = "classifier", .nbytes = 3.0 * CHUNK_ROWS * V * 4, .per_step = chunks, .run = run_classifier},
        {.name = "gradient norm", .nbytes = 4 * n_opt, .per_step = 1, .run = run_norm_of_gradient},
        {.name = "sgd", .nbytes = (20 + (d == DT_BF16 ? 2 : 0)) * n_opt, .per_step = 0, .run = run_sgd},
        {.name = "adamw", .nbytes = (28 + (d == DT_BF16 ? 2 : 0)) * n_opt, .per_step = 1, .run = run_adamw},
    };
    memcpy(list, all, sizeof all);
    return (int)(sizeof all / sizeof all[0]);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static dt_err fill(bench *b, dt_buf *buf, int64_t n_floats, bool as_float)
{
    DT_TRY(dt_buf_alloc(buf, &b->dev, DT_ON_DEVICE, (size_t)n_floats * 4, DT_MEM_OTHER));
    for (int64_t i = 0; i < n_floats; i++) {
        const float x = (float)((i * 2654435761u >> 8) % 1000) * 1e-3f - 0.5f;
        if (as_float) {
            ((float *)buf->ptr)[i] = x;
        } else {
            ((uint32_t *)buf->ptr)[i] = (uint32_t)dt_bf16_from_float(x) * 0x10001u;
        }
    }
    return DT_OK;
}

static dt_err prepare(bench *b)
{
    const bool f = b->dt == DT_F32;
    const int64_t T = b->n_tok < CHUNK_ROWS ? CHUNK_ROWS : b->n_tok, n_param = 124439808;
    DT_TRY(fill(b, &b->x, T * FF, f));
    DT_TRY(fill(b, &b->y, T * FF, f));
    DT_TRY(fill(b, &b->z, T * FF, f));
    DT_TRY(fill(b, &b->w, (int64_t)C * FF, f));
    DT_TRY(fill(b, &b->head, (int64_t)V * C * (f ? 1 : 2), f));
    DT_TRY(fill(b, &b->grad, (int64_t)V * C, true));
    DT_TRY(fill(b, &b->logits, (int64_t)V * CHUNK_ROWS, f));
    for (int i = 0; i < 4; i++) DT_TRY(fill(b, &b->opt[i], n_param, true));
    b->q_start = calloc((size_t)b->n_seq + 1, 4), b->kv_len = calloc((size_t)b->n_seq, 4);
    b->id = calloc((size_t)T, 4), b->order = calloc((size_t)T, 4);
    for (int s = 0; s <= b->n_seq; s++) b->q_start[s] = (int32_t)(b->n_tok / b->n_seq * s);
    for (int s = 0; s < b->n_seq; s++) b->kv_len[s] = (int32_t)(b->n_tok / b->n_seq);
    for (int64_t t = 0; t < T; t++) b->id[t] = (int32_t)t, b->order[t] = (int32_t)t;
    const dt_attention at = attention_of(b);
    const int64_t scratch = b->n_tok * HEADS + b->dev.ops->attention_scratch_elems(&b->dev, &at) + 2 * T +
                            b->dev.ops->norm_scratch_elems(&b->dev, C);
    return dt_buf_alloc(&b->scratch, &b->dev, DT_ON_DEVICE, (size_t)scratch * 4, DT_MEM_OTHER);
}

static dt_err measure(bench *b, int rounds, int n_threads)
{
    operation list[40];
    double peak = 0, stream = 0, total = 0, matmuls = 0;
    const int n = list_operations(b, list);
    for (int i = 0; i < n; i++) list[i].best_s = INFINITY;
    for (int r = 0; r < rounds + 1; r++) {
        peak = fmax(peak, peak_gflops(n_threads));
        stream = fmax(stream, stream_gbs(b));
        for (int i = 0; i < n; i++) {
            const int repeat = list[i].flops + 10 * list[i].nbytes < 5e8 ? 4 : 1;
            for (int k = 0; k < repeat; k++) {
                const double start = dt_now_s();
                DT_TRY(list[i].run(b, &list[i]));
                list[i].best_s = fmin(list[i].best_s, dt_now_s() - start);
            }
        }
    }
    printf("%s, %lld tokens in %d sequences: peak %.0f GFLOP/s fp32, stream %.1f GB/s\n", dt_dtype_name(b->dt),
           (long long)b->n_tok, b->n_seq, peak, stream);
    for (int i = 0; i < n; i++) {
        const operation *o = &list[i];
        const double rate = o->flops > 0 ? o->flops / o->best_s * 1e-9 : o->nbytes / o->best_s * 1e-9;
        printf("  %-22s %9.3f ms x %5.1f = %8.1f ms  %7.1f %s  %.2f\n", o->name, o->best_s * 1e3, o->per_step,
               o->best_s * o->per_step * 1e3, rate, o->flops > 0 ? "GFLOP/s" : "GB/s   ",
               rate / (o->flops > 0 ? peak : stream));
        total += o->best_s * o->per_step;
        if (o->run == run_matmul) matmuls += o->best_s * o->per_step;
    }
    printf("  step %.0f ms (matmuls %.0f): %.0f tokens/s\n", total * 1e3, matmuls * 1e3, (double)b->n_tok / total);
    return DT_OK;
}

static void drop(bench *b)
{
    dt_buf *const all[] = {&b->x,      &b->w,      &b->y,      &b->z,      &b->grad,   &b->head,
                           &b->logits, &b->opt[0], &b->opt[1], &b->opt[2], &b->opt[3], &b->scratch};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) dt_buf_free(all[i]);
    free(b->q_start), free(b->kv_len), free(b->id), free(b->order);
    dt_device_close(&b->dev);
}

int main(int argc, char **argv)
{
    const int64_t n_tok = argc > 1 ? atoll(argv[1]) : 256;
    const int n_seq = argc > 2 ? atoi(argv[2]) : 4, rounds = argc > 3 ? atoi(argv[3]) : 5,
              n_threads = argc > 4 ? atoi(argv[4]) : 0;
    if (n_tok < 1 || n_seq < 1 || n_tok % n_seq) {
        fprintf(stderr, "tokens must be a multiple of sequences\n");
        return 64;
    }
    for (int t = 0; t < 2; t++) {
        bench b = {.n_tok = n_tok, .n_seq = n_seq, .dt = t ? DT_BF16 : DT_F32};
        dt_err err = dt_device_open(&b.dev, "cpu", 0, n_threads, &b.ledger);
        char text[200] = "";
        if (err == DT_OK && t == 0) b.dev.ops->describe(&b.dev, text, sizeof text), printf("%s\n", text);
        if (err == DT_OK) err = prepare(&b);
        if (err == DT_OK) err = measure(&b, rounds, n_threads ? n_threads : omp_get_max_threads());
        drop(&b);
        if (err != DT_OK) {
            fprintf(stderr, "%s\n", dt_error_message());
            return dt_exit_code(err);
        }
    }
    return 0;
}
