/* bench_layers.c - how near the operations of a layer that are bound by memory come to the speed of a copy.
 *
 *     bench_layers [device] [megabytes] [rounds]        defaults cuda 128 10
 *
 * Operations are run in bf16 at the widths of known models, on so many tokens that a matrix [tokens, width] has the
 * given size: more than caches hold. Time is the device's own, between events; bytes are those that an operation must
 * read and write. Best of the rounds, each of which is as many calls as take some milliseconds. */
#include "bench.h"

typedef struct shape {
    const char *name;
    int64_t C, F, n_heads, n_kv_heads, head_dim, V;
} shape;

static const shape shapes[] = {{"Llama 8B", 4096, 14336, 32, 8, 128, 128256},
                               {"Qwen 7B", 3584, 18944, 28, 4, 128, 152064},
                               {"Qwen 0.5B", 896, 4864, 14, 2, 64, 151936},
                               {"GPT-2 1.5B", 1600, 6400, 25, 25, 64, 50257},
                               {"GPT-2 124M", 768, 3072, 12, 12, 64, 50257}};

/* What the operations work on. */
typedef struct layer {
    shape s;
    int64_t T, W; /* tokens; width of q, k and v */
    void *x, *y, *z, *wide, *half_wide, *weight, *grad, *table;
    float *mean, *rstd, *scratch, *cos_sin;
    int32_t *pos, *id, *order;
    uint64_t *key;
} layer;

static const float EPS = 1e-5f;
enum { N_POS = 4096 };

/* ---- operations -------------------------------------------------------------------------------------------------- */

#define OP(name, call)                                                                                                 \
    static dt_err run_##name(bench *b, const void *what)                                                               \
    {                                                                                                                  \
        const layer *l = what;                                                                                         \
        const int64_t T = l->T, C = l->s.C, F = l->s.F;                                                                \
        const dt_rmsnorm rows = {T, C, 1, C, C, EPS, false, DT_BF16, false};                                           \
        (void)T, (void)C, (void)F, (void)rows;                                                                         \
        return b->ops->call;                                                                                           \
    }
OP(copy, copy(&b->dev, l->y, l->x, (size_t)(T *C * 2), NULL))
OP(convert, convert(&b->dev, l->grad, DT_F32, l->y, DT_BF16, T *C / 2, NULL))
OP(add_into, add_into(&b->dev, l->x, DT_BF16, l->grad, DT_F32, true, T *C / 2, NULL))
OP(add, add(&b->dev, l->x, l->y, l->z, DT_BF16, T *C, NULL))
OP(rmsnorm, rmsnorm_forward(&b->dev, &rows, l->x, l->weight, l->y, l->rstd, NULL))
OP(rmsnorm_backward, rmsnorm_backward(&b->dev, &rows, l->x, l->weight, l->rstd, l->y, l->z, true, l->table, DT_F32,
                                      true, l->scratch, NULL))
OP(layernorm, layernorm_forward(&b->dev, l->x, l->weight, l->weight, l->y, l->mean, l->rstd, T, C, EPS, DT_BF16, NULL))
OP(layernorm_backward, layernorm_backward(&b->dev, l->x, l->weight, l->rstd, l->rstd, l->y, l->z, true, l->table,
                                          (float *)l->table + C, DT_F32, true, T, C, l->scratch, DT_BF16, NULL))
/* q and k of T tokens in place, or with norms from `wide` to `half_wide` of a quarter of them */
static dt_heads heads_of(const layer *l, int64_t n_tok, const void *norm)
{
    const shape *s = &l->s;
    return (dt_heads){.n_tok = n_tok,
                      .n_heads = (int)s->n_heads,
                      .n_kv_heads = (int)s->n_kv_heads,
                      .head_dim = (int)s->head_dim,
                      .x_ld = l->W,
                      .q_ld = l->W,
                      .kv_ld = l->W,
                      .q_norm = norm,
                      .k_norm = norm,
                      .eps = EPS,
                      .pos = l->pos,
                      .cos_sin = l->cos_sin,
                      .dt = DT_BF16};
}
static char *k_in(const layer *l, void *q) { return (char *)q + 2 * l->s.n_heads * l->s.head_dim; }
static dt_err run_turned(bench *b, const void *what)
{
    const layer *l = what;
    const dt_heads h = heads_of(l, l->T, NULL);
    return b->ops->heads_forward(&b->dev, &h, l->wide, l->wide, k_in(l, l->wide), NULL, NULL, NULL, NULL);
}
static dt_err run_heads(bench *b, const void *what)
{
    const layer *l = what;
    const dt_heads h = heads_of(l, l->T / 4, l->weight);
    return b->ops->heads_forward(&b->dev, &h, l->wide, l->half_wide, k_in(l, l->half_wide), NULL, l->rstd, l->rstd,
                                 NULL);
}
static dt_err run_heads_backward(bench *b, const void *what)
{
    const layer *l = what;
    const dt_heads h = heads_of(l, l->T / 4, l->weight);
    return b->ops->heads_backward(&b->dev, &h, l->wide, l->rstd, l->rstd, l->half_wide, k_in(l, l->half_wide), l->table,
                                  l->table, DT_F32, true, l->scratch, NULL);
}
OP(silu, act_forward(&b->dev, DT_ACT_SILU, l->wide, l->half_wide, DT_BF16, T *F, NULL))
OP(gelu, act_forward(&b->dev, DT_ACT_GELU, l->wide, l->half_wide, DT_BF16, T *F, NULL))
OP(gelu_tanh_backward,
   act_backward(&b->dev, DT_ACT_GELU_TANH, l->wide, l->half_wide, l->half_wide, DT_BF16, T *F, NULL))
OP(swiglu, glu_forward(&b->dev, DT_ACT_SILU, 0, l->wide, l->half_wide, DT_BF16, T, F, NULL))
OP(swiglu_backward, glu_backward(&b->dev, DT_ACT_SILU, 0, l->wide, l->half_wide, l->wide, DT_BF16, T, F, NULL))
OP(dropout, dropout(&b->dev, l->x, l->z, l->y, 0.1f, 7, l->key, T, C, DT_BF16, NULL))
OP(bias_backward, bias_backward(&b->dev, l->half_wide, T, F, F, DT_BF16, l->table, DT_F32, true, NULL))
OP(gather, gather_rows(&b->dev, l->x, l->order, l->y, T, C, DT_BF16, NULL))
OP(scatter, scatter_rows(&b->dev, l->x, l->order, l->y, T, C, DT_BF16, NULL))
OP(embedding, embedding_forward(&b->dev, l->id, l->pos, l->table, l->x, l->y, T, C, DT_BF16, NULL))
OP(embedding_backward, embedding_backward(&b->dev, l->y, l->id, l->order, l->table, T, C, DT_BF16, DT_F32, NULL))

/* ---- measuring --------------------------------------------------------------------------------------------------- */

static double distinct_ids(const int32_t *id, const int32_t *order, int64_t n)
{
    int64_t distinct = 0;
    for (int64_t i = 0; i < n; i++) distinct += i == 0 || id[order[i]] != id[order[i - 1]];
    return (double)distinct;
}

static void measure_shape(bench *b, const layer *l, double n_ids, int rounds)
{
    double copy_rate = 0;
    const shape *s = &l->s;
    const double m = 2.0 * (double)(l->T * s->C), f = 2.0 * (double)(l->T * s->F),
                 qk = 2.0 * (double)(l->T * (s->n_heads + s->n_kv_heads) * s->head_dim);
    const struct {
        const char *name;
        bench_call run;
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
    printf("%s: %" PRId64 " tokens of %" PRId64 "\n", s->name, l->T, s->C);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        double us;
        TRY_OR_END(bench_best(b, all[i].run, l, rounds, &us));
        const double rate = all[i].nbytes / us * 1e-3;
        if (i == 0) copy_rate = rate;
        printf("  %-20s %10.1f us %9.1f GB/s  %.2f\n", all[i].name, us, rate, rate / copy_rate);
        fflush(stdout);
    }
}

/* ---- data -------------------------------------------------------------------------------------------------------- */

static const int32_t *sorted_by;
static int by_id(const void *a, const void *b)
{
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    return sorted_by[i] != sorted_by[j] ? (sorted_by[i] < sorted_by[j] ? -1 : 1) : (i > j) - (i < j);
}

/* Ids as uneven as words: the most frequent some percent of all. Returns how many are distinct. */
static double fill_tokens(bench *b, layer *l)
{
    const int64_t T = l->T;
    int32_t *id = calloc((size_t)T, 4), *order = calloc((size_t)T, 4), *pos = calloc((size_t)T, 4);
    uint64_t *key = calloc((size_t)T, 8);
    if (!id || !order || !pos || !key) exit(1);
    for (int64_t t = 0; t < T; t++) {
        const double u = (double)(dt_mix64((uint64_t)t) >> 11) * 0x1p-53;
        id[t] = (int32_t)(pow((double)l->s.V, u) - 1);
        order[t] = (int32_t)t, pos[t] = (int32_t)(t % N_POS), key[t] = dt_mix64((uint64_t)(T + t));
    }
    sorted_by = id;
    qsort(order, (size_t)T, 4, by_id);
    const double n_ids = distinct_ids(id, order, T);
    l->id = bench_given(b, id, (size_t)T * 4), l->order = bench_given(b, order, (size_t)T * 4);
    l->pos = bench_given(b, pos, (size_t)T * 4), l->key = bench_given(b, key, (size_t)T * 8);
    free(id), free(order), free(pos), free(key);
    return n_ids;
}

static void prepare(bench *b, layer *l)
{
    const shape *s = &l->s;
    const int64_t T = l->T, most = s->F > s->head_dim * N_POS ? s->F : s->head_dim * N_POS;
    l->x = bench_values(b, T * s->C > N_POS * s->C ? T * s->C : N_POS * s->C, DT_BF16, 1);
    l->y = bench_values(b, T * s->C, DT_BF16, 1), l->z = bench_values(b, T * s->C, DT_BF16, 1);
    l->wide = bench_values(b, T * 2 * s->F, DT_BF16, 1), l->half_wide = bench_values(b, T * s->F, DT_BF16, 1);
    l->weight = bench_values(b, 2 * s->C, DT_BF16, 1), l->rstd = bench_values(b, T * s->n_heads, DT_F32, 1);
    l->grad = bench_values(b, T * s->C / 2, DT_F32, 1), l->table = bench_values(b, s->V * s->C, DT_F32, 1);
    l->mean = bench_values(b, T, DT_F32, 1), l->cos_sin = bench_values(b, most, DT_F32, 1);
    l->scratch = bench_values(b, b->ops->norm_scratch_elems(&b->dev, s->C), DT_F32, 1);
}

int main(int argc, char **argv)
{
    const double megabytes = argc > 2 ? atof(argv[2]) : 128;
    bench b;
    bench_open(&b, argc > 1 ? argv[1] : "cuda");
    bench_describe(&b);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        layer l = {.s = shapes[i]};
        l.T = (int64_t)(megabytes * 1e6 / 2 / (double)l.s.C) / 4 * 4 + 4;
        l.W = (l.s.n_heads + 2 * l.s.n_kv_heads) * l.s.head_dim;
        prepare(&b, &l);
        measure_shape(&b, &l, fill_tokens(&b, &l), argc > 3 ? atoi(argv[3]) : 10);
        bench_drop(&b);
    }
    bench_close(&b);
    return 0;
}
