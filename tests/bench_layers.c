/* bench_layers.c - how near the operations of a layer that are bound by memory come to the speed of a copy.
 *
 *     bench_layers [device] [megabytes] [rounds]        defaults cuda 128 10
 *
 * Operations are run in bf16 at the widths of known models, on so many tokens that a matrix [tokens, width] has the
 * given size: more than caches hold. Time is the device's own, between events; bytes are those that an operation must
 * read and write. Best of the rounds, each of which is as many calls as take some milliseconds. */
#include "dtrain/device/device.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
    const char *name;
    int64_t C, F, n_heads, n_kv_heads, head_dim, V;
} shape;

static const shape shapes[] = {{"Llama 8B", 4096, 14336, 32, 8, 128, 128256},
                               {"Qwen 7B", 3584, 18944, 28, 4, 128, 152064},
                               {"Qwen 0.5B", 896, 4864, 14, 2, 64, 151936},
                               {"GPT-2 1.5B", 1600, 6400, 25, 25, 64, 50257},
                               {"GPT-2 124M", 768, 3072, 12, 12, 64, 50257}};

typedef struct bench {
    dt_device dev;
    const dt_device_ops *ops;
    dt_ledger ledger;
    shape s;
    int64_t T, W; /* tokens; width of q, k and v */
    dt_buf x, y, z, wide, half_wide, weight, rstd, grad, table, scratch, cos_sin, pos, id, order, key;
    dt_event *from, *to;
    int rounds;
    double copy_gbs;
} bench;

static const float EPS = 1e-5f;
enum { N_POS = 4096 };

/* ---- operations -------------------------------------------------------------------------------------------------- */

typedef dt_err (*run_op)(bench *b);
#define OP(name, call)                                                                                                 \
    static dt_err run_##name(bench *b)                                                                                 \
    {                                                                                                                  \
        const shape *s = &b->s;                                                                                        \
        const int64_t T = b->T, C = s->C;                                                                              \
        (void)s, (void)T, (void)C;                                                                                     \
        return b->ops->call;                                                                                           \
    }
OP(copy, copy(&b->dev, b->y.ptr, b->x.ptr, (size_t)(T *C * 2), NULL))
OP(convert, convert(&b->dev, b->grad.ptr, DT_F32, b->y.ptr, DT_BF16, T *C / 2, NULL))
OP(add_into, add_into(&b->dev, b->x.ptr, DT_BF16, b->grad.ptr, DT_F32, true, T *C / 2, NULL))
OP(add, add(&b->dev, b->x.ptr, b->y.ptr, b->z.ptr, DT_BF16, T *C, NULL))
OP(rmsnorm, rmsnorm_forward(&b->dev, b->x.ptr, b->weight.ptr, b->y.ptr, b->rstd.ptr, T, C, 1, C, C, EPS, DT_BF16, NULL))
OP(rmsnorm_backward, rmsnorm_backward(&b->dev, b->x.ptr, b->weight.ptr, b->rstd.ptr, b->y.ptr, b->z.ptr, true,
                                      b->table.ptr, DT_F32, true, T, C, 1, C, C, b->scratch.ptr, DT_BF16, NULL))
OP(layernorm, layernorm_forward(&b->dev, b->x.ptr, b->weight.ptr, b->weight.ptr, b->y.ptr, b->key.ptr, b->rstd.ptr, T,
                                C, EPS, DT_BF16, NULL))
OP(layernorm_backward,
   layernorm_backward(&b->dev, b->x.ptr, b->weight.ptr, b->rstd.ptr, b->rstd.ptr, b->y.ptr, b->z.ptr, true,
                      b->table.ptr, (float *)b->table.ptr + C, DT_F32, true, T, C, b->scratch.ptr, DT_BF16, NULL))
/* q and k of T tokens in place, or with norms from `wide` to `half_wide` of a quarter of them */
static dt_heads heads_of(const bench *b, int64_t n_tok, const void *norm)
{
    const shape *s = &b->s;
    return (dt_heads){.n_tok = n_tok,
                      .n_heads = (int)s->n_heads,
                      .n_kv_heads = (int)s->n_kv_heads,
                      .head_dim = (int)s->head_dim,
                      .x_ld = b->W,
                      .q_ld = b->W,
                      .kv_ld = b->W,
                      .q_norm = norm,
                      .k_norm = norm,
                      .eps = EPS,
                      .pos = b->pos.ptr,
                      .cos_sin = b->cos_sin.ptr,
                      .dt = DT_BF16};
}
static char *k_in(const bench *b, const dt_buf *buf) { return (char *)buf->ptr + 2 * b->s.n_heads * b->s.head_dim; }
static dt_err run_turned(bench *b)
{
    const dt_heads h = heads_of(b, b->T, NULL);
    return b->ops->heads_forward(&b->dev, &h, b->wide.ptr, b->wide.ptr, k_in(b, &b->wide), NULL, NULL, NULL, NULL);
}
static dt_err run_heads(bench *b)
{
    const dt_heads h = heads_of(b, b->T / 4, b->weight.ptr);
    return b->ops->heads_forward(&b->dev, &h, b->wide.ptr, b->half_wide.ptr, k_in(b, &b->half_wide), NULL, b->rstd.ptr,
                                 b->rstd.ptr, NULL);
}
static dt_err run_heads_backward(bench *b)
{
    const dt_heads h = heads_of(b, b->T / 4, b->weight.ptr);
    return b->ops->heads_backward(&b->dev, &h, b->wide.ptr, b->rstd.ptr, b->rstd.ptr, b->half_wide.ptr,
                                  k_in(b, &b->half_wide), b->table.ptr, b->table.ptr, DT_F32, true, b->scratch.ptr,
                                  NULL);
}
OP(silu, act_forward(&b->dev, DT_ACT_SILU, b->wide.ptr, b->half_wide.ptr, DT_BF16, T * s->F, NULL))
OP(gelu, act_forward(&b->dev, DT_ACT_GELU, b->wide.ptr, b->half_wide.ptr, DT_BF16, T * s->F, NULL))
OP(gelu_tanh_backward,
   act_backward(&b->dev, DT_ACT_GELU_TANH, b->wide.ptr, b->half_wide.ptr, b->half_wide.ptr, DT_BF16, T * s->F, NULL))
OP(swiglu, glu_forward(&b->dev, DT_ACT_SILU, b->wide.ptr, b->half_wide.ptr, DT_BF16, T, s->F, NULL))
OP(swiglu_backward,
   glu_backward(&b->dev, DT_ACT_SILU, b->wide.ptr, b->half_wide.ptr, b->wide.ptr, DT_BF16, T, s->F, NULL))
OP(dropout, dropout(&b->dev, b->x.ptr, b->z.ptr, b->y.ptr, 0.1f, 7, b->key.ptr, T, C, DT_BF16, NULL))
OP(bias_backward, bias_backward(&b->dev, b->half_wide.ptr, T, s->F, s->F, DT_BF16, b->table.ptr, DT_F32, true, NULL))
OP(gather, gather_rows(&b->dev, b->x.ptr, b->order.ptr, b->y.ptr, T, C, DT_BF16, NULL))
OP(scatter, scatter_rows(&b->dev, b->x.ptr, b->order.ptr, b->y.ptr, T, C, DT_BF16, NULL))
OP(embedding, embedding_forward(&b->dev, b->id.ptr, b->pos.ptr, b->table.ptr, b->x.ptr, b->y.ptr, T, C, DT_BF16, NULL))
OP(embedding_backward,
   embedding_backward(&b->dev, b->y.ptr, b->id.ptr, b->order.ptr, b->table.ptr, T, C, DT_BF16, DT_F32, NULL))

/* ---- measuring --------------------------------------------------------------------------------------------------- */

static dt_err time_calls(bench *b, run_op run, int n, double *us)
{
    float ms;
    DT_TRY(b->ops->event_record(&b->dev, b->from, NULL));
    for (int i = 0; i < n; i++) DT_TRY(run(b));
    DT_TRY(b->ops->event_record(&b->dev, b->to, NULL));
    DT_TRY(b->ops->event_sync(&b->dev, b->to));
    DT_TRY(b->ops->event_elapsed_ms(&b->dev, b->from, b->to, &ms));
    *us = 1000.0 * (double)ms / n;
    return DT_OK;
}

static dt_err measure(bench *b, const char *name, run_op run, double nbytes)
{
    double us, best = INFINITY;
    DT_TRY(time_calls(b, run, 1, &us));
    const int n = us > 5000 ? 1 : (int)(5000 / (us + 1)) + 1;
    for (int r = 0; r < b->rounds; r++) {
        DT_TRY(time_calls(b, run, n, &us));
        best = fmin(best, us);
    }
    const double gbs = nbytes / best * 1e-3;
    if (run == run_copy) b->copy_gbs = gbs;
    printf("  %-20s %10.1f us %9.1f GB/s  %.2f\n", name, best, gbs, gbs / b->copy_gbs);
    fflush(stdout);
    return DT_OK;
}

static double distinct_ids(const int32_t *id, const int32_t *order, int64_t n)
{
    int64_t distinct = 0;
    for (int64_t i = 0; i < n; i++) distinct += i == 0 || id[order[i]] != id[order[i - 1]];
    return (double)distinct;
}

static dt_err measure_shape(bench *b, double n_ids)
{
    const shape *s = &b->s;
    const double m = 2.0 * (double)(b->T * s->C), f = 2.0 * (double)(b->T * s->F),
                 qk = 2.0 * (double)(b->T * (s->n_heads + s->n_kv_heads) * s->head_dim);
    const struct {
        const char *name;
        run_op run;
        double nbytes;
    } all[] = {{"copy", run_copy, 2 * m},
               {"convert", run_convert, 1.5 * m},
               {"add_into", run_add_into, 2.5 * m},
               {"add", run_add, 3 * m},
               {"rmsnorm", run_rmsnorm, 2 * m},
               {"rmsnorm backward", run_rmsnorm_backward, 4 * m},
               {"layernorm", run_layernorm, 2 * m},
               {"layernorm backward", run_layernorm_backward, 4 * m},
               {"rope of q and k", run_turned, 2 * qk},
               {"q, k normed, turned", run_heads, 2 * qk / 4},
               {"the same backward", run_heads_backward, 3 * qk / 4},
               {"silu", run_silu, 2 * f},
               {"gelu", run_gelu, 2 * f},
               {"gelu_tanh backward", run_gelu_tanh_backward, 3 * f},
               {"swiglu", run_swiglu, 3 * f},
               {"swiglu backward", run_swiglu_backward, 5 * f},
               {"dropout and sum", run_dropout, 3 * m},
               {"bias backward", run_bias_backward, f},
               {"gather", run_gather, 2 * m},
               {"scatter", run_scatter, 2 * m},
               {"embedding", run_embedding, 2 * m + n_ids * 2.0 * (double)s->C},
               {"embedding backward", run_embedding_backward, m + n_ids * 8.0 * (double)s->C}};
    printf("%s: %" PRId64 " tokens of %" PRId64 "\n", s->name, b->T, s->C);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) DT_TRY(measure(b, all[i].name, all[i].run, all[i].nbytes));
    return DT_OK;
}

/* ---- data -------------------------------------------------------------------------------------------------------- */

static dt_err to_device(bench *b, dt_buf *buf, const void *host, size_t nbytes)
{
    DT_TRY(dt_buf_alloc(buf, &b->dev, DT_ON_DEVICE, nbytes, DT_MEM_OTHER));
    DT_TRY(b->ops->copy(&b->dev, buf->ptr, host, nbytes, NULL));
    return b->ops->stream_sync(&b->dev, NULL);
}

/* Values between -1 and 1 in a repeating pattern. */
static dt_err fill(bench *b, dt_buf *buf, int64_t n, dt_dtype dt)
{
    enum { PATTERN = 1 << 20 };
    const size_t e = dt_dtype_size(dt);
    char *pattern = malloc(PATTERN * e);
    dt_err err = pattern ? dt_buf_alloc(buf, &b->dev, DT_ON_DEVICE, (size_t)n * e, DT_MEM_OTHER)
                         : dt_fail(DT_ERR_MEMORY, "no memory for a pattern");
    for (int64_t i = 0; i < PATTERN && err == DT_OK; i++) {
        const float x = (float)(int32_t)(uint32_t)dt_mix64((uint64_t)i) * 0x1p-31f;
        if (dt == DT_F32)
            ((float *)pattern)[i] = x;
        else
            ((uint16_t *)pattern)[i] = dt_bf16_from_float(x);
    }
    for (int64_t at = 0; at < n && err == DT_OK; at += PATTERN)
        err = b->ops->copy(&b->dev, (char *)buf->ptr + (size_t)at * e, pattern,
                           (size_t)(n - at < PATTERN ? n - at : PATTERN) * e, NULL);
    if (err == DT_OK) err = b->ops->stream_sync(&b->dev, NULL);
    free(pattern);
    return err;
}

static const int32_t *sorted_by;
static int by_id(const void *a, const void *b)
{
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    return sorted_by[i] != sorted_by[j] ? (sorted_by[i] < sorted_by[j] ? -1 : 1) : (i > j) - (i < j);
}

/* Ids as uneven as words: the most frequent some percent of all. */
static dt_err fill_tokens(bench *b, double *n_ids)
{
    const int64_t T = b->T;
    int32_t *id = calloc((size_t)T, 4), *order = calloc((size_t)T, 4), *pos = calloc((size_t)T, 4);
    uint64_t *key = calloc((size_t)T, 8);
    dt_err err = id && order && pos && key ? DT_OK : dt_fail(DT_ERR_MEMORY, "no memory for tokens");
    for (int64_t t = 0; t < T && err == DT_OK; t++) {
        const double u = (double)(dt_mix64((uint64_t)t) >> 11) * 0x1p-53;
        id[t] = (int32_t)(pow((double)b->s.V, u) - 1);
        order[t] = (int32_t)t, pos[t] = (int32_t)(t % N_POS), key[t] = dt_mix64((uint64_t)(T + t));
    }
    sorted_by = id;
    if (err == DT_OK) qsort(order, (size_t)T, 4, by_id);
    if (err == DT_OK) *n_ids = distinct_ids(id, order, T);
    if (err == DT_OK) err = to_device(b, &b->id, id, (size_t)T * 4);
    if (err == DT_OK) err = to_device(b, &b->order, order, (size_t)T * 4);
    if (err == DT_OK) err = to_device(b, &b->pos, pos, (size_t)T * 4);
    if (err == DT_OK) err = to_device(b, &b->key, key, (size_t)T * 8);
    free(id), free(order), free(pos), free(key);
    return err;
}

static dt_err prepare(bench *b, double *n_ids)
{
    const shape *s = &b->s;
    const int64_t T = b->T, most = s->F > s->head_dim * N_POS ? s->F : s->head_dim * N_POS;
    DT_TRY(fill(b, &b->x, T * s->C > N_POS * s->C ? T * s->C : N_POS * s->C, DT_BF16));
    DT_TRY(fill(b, &b->y, T * s->C, DT_BF16));
    DT_TRY(fill(b, &b->z, T * s->C, DT_BF16));
    DT_TRY(fill(b, &b->wide, T * 2 * s->F, DT_BF16));
    DT_TRY(fill(b, &b->half_wide, T * s->F, DT_BF16));
    DT_TRY(fill(b, &b->weight, 2 * s->C, DT_BF16));
    DT_TRY(fill(b, &b->rstd, T * s->n_heads, DT_F32));
    DT_TRY(fill(b, &b->grad, T * s->C / 2, DT_F32));
    DT_TRY(fill(b, &b->table, s->V * s->C, DT_F32));
    DT_TRY(fill(b, &b->cos_sin, most, DT_F32));
    DT_TRY(fill(b, &b->scratch, b->ops->norm_scratch_elems(&b->dev, s->C), DT_F32));
    return fill_tokens(b, n_ids);
}

static void drop(bench *b)
{
    dt_buf *const all[] = {&b->x,     &b->y,       &b->z,       &b->wide, &b->half_wide, &b->weight, &b->rstd, &b->grad,
                           &b->table, &b->scratch, &b->cos_sin, &b->pos,  &b->id,        &b->order,  &b->key};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) dt_buf_free(all[i]);
}

static dt_err run_all(bench *b, double megabytes)
{
    DT_TRY(b->ops->event_create(&b->dev, &b->from));
    DT_TRY(b->ops->event_create(&b->dev, &b->to));
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        double n_ids = 0;
        b->s = shapes[i];
        b->T = (int64_t)(megabytes * 1e6 / 2 / (double)b->s.C) / 4 * 4 + 4;
        b->W = (b->s.n_heads + 2 * b->s.n_kv_heads) * b->s.head_dim;
        dt_err err = prepare(b, &n_ids);
        if (err == DT_OK) err = measure_shape(b, n_ids);
        drop(b);
        if (err != DT_OK) return err;
    }
    return DT_OK;
}

int main(int argc, char **argv)
{
    bench b = {.rounds = argc > 3 ? atoi(argv[3]) : 10};
    char text[300] = "";
    dt_err err = dt_device_open(&b.dev, argc > 1 ? argv[1] : "cuda", 0, 0, &b.ledger);
    if (err == DT_OK) {
        b.ops = b.dev.ops;
        b.ops->describe(&b.dev, text, sizeof text);
        printf("%s\n", text);
        err = run_all(&b, argc > 2 ? atof(argv[2]) : 128);
        if (b.from) b.ops->event_destroy(&b.dev, b.from);
        if (b.to) b.ops->event_destroy(&b.dev, b.to);
    }
    dt_device_close(&b.dev);
    if (err != DT_OK) fprintf(stderr, "%s\n", dt_error_message());
    return err == DT_OK ? 0 : dt_exit_code(err);
}
