/* test_device_latent.c - the heads of latent attention and their gradients, against plain loops in double.
 * DEVICES: cpu queue */
#include "device_fixture.h"

static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F16};
enum { N_TYPES = sizeof types / sizeof types[0], N_POS = 9, MAX_TOK = 300 };

/* cut: elements that rows are longer than what is in them. */
static const struct shape {
    int n_tok, n_heads, nope, rope, v, cut;
} shapes[] = {{1, 1, 1, 2, 1, 0},     {3, 2, 5, 4, 6, 3},        {70, 3, 128, 64, 128, 8},
              {9, 2, 16, 64, 192, 0}, {MAX_TOK, 5, 7, 6, 13, 1}, {2, 128, 64, 32, 64, 16}};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0], N_WAYS = 8 };

/* A call's arrays on the host. */
typedef struct arrays {
    dt_latent l; /* without addresses */
    bool in_place;
    ref_array xq, xkv, xr, q, kv;
    float table[N_POS * DT_ATTENTION_MAX_HEAD_DIM];
    int32_t pos[MAX_TOK], kv_row[MAX_TOK];
} arrays;

static void make(arrays *a, const struct shape *s, int way, dt_dtype dt)
{
    const int64_t Q = s->n_heads * (s->nope + s->rope), V = s->n_heads * s->v, T = s->n_tok;
    *a = (arrays){.in_place = way & 1};
    a->l = (dt_latent){.n_tok = T,
                       .n_heads = s->n_heads,
                       .nope_dim = s->nope,
                       .rope_dim = s->rope,
                       .v_dim = s->v,
                       .xq_ld = Q + s->cut,
                       .xkv_ld = s->n_heads * (s->nope + s->v) + s->cut,
                       .xr_ld = s->rope + 2 * s->cut,
                       .q_ld = Q + s->cut,
                       .kv_ld = Q + V + s->cut,
                       .neighbours = way & 4,
                       .dt = dt};
    a->xq = ref_random(dt, T * a->l.xq_ld, 1, 2), a->xkv = ref_random(dt, T * a->l.xkv_ld, 2, 2);
    a->xr = ref_random(dt, T * a->l.xr_ld, 3, 2);
    a->q = ref_random(dt, T * a->l.q_ld, 4, 2), a->kv = ref_random(dt, T * a->l.kv_ld, 5, 2);
    for (int p = 0; p < N_POS; p++)
        for (int i = 0; i < s->rope / 2; i++) {
            float *row = a->table + p * s->rope;
            row[i] = cosf((float)p * 0.1f * (float)i), row[s->rope / 2 + i] = sinf((float)p * 0.1f * (float)i);
        }
    for (int t = 0; t < T; t++) a->pos[t] = t * 7 % N_POS, a->kv_row[t] = way & 2 ? (int32_t)T - 1 - t : t;
}

static dt_latent on_the_device(fixture *f, arrays *a, bool cached)
{
    dt_latent l = a->l;
    l.pos = ARR(a->pos, l.n_tok), l.cos_sin = ARR(a->table, N_POS * l.rope_dim);
    if (cached) l.kv_row = ARR(a->kv_row, l.n_tok);
    return l;
}

static void drop(arrays *a)
{
    ref_drop(&a->xq), ref_drop(&a->xkv), ref_drop(&a->xr), ref_drop(&a->q), ref_drop(&a->kv);
}

/* The rotation of token t, in double; sign -1: its inverse. */
static void turn(const arrays *a, int64_t t, const double *from, double *to, double sign)
{
    const int half = a->l.rope_dim / 2;
    const float *row = a->table + a->pos[t] * a->l.rope_dim;
    for (int i = 0; i < half; i++) {
        const int j = a->l.neighbours ? 2 * i : i, k = a->l.neighbours ? 2 * i + 1 : half + i;
        const double x = from[j], y = from[k], c = row[i], s = sign * row[half + i];
        to[j] = x * c - y * s, to[k] = y * c + x * s;
    }
}

static void check_forward(fixture *f, const struct shape *s, int way, dt_dtype dt)
{
    arrays a;
    make(&a, s, way, dt);
    const int64_t H = s->n_heads, N = s->nope, D = N + s->rope, V = s->v;
    double *xq = ref_doubles(&a.xq), *xkv = ref_doubles(&a.xkv), *xr = ref_doubles(&a.xr), *q = ref_doubles(&a.q),
           *kv = ref_doubles(&a.kv);
    if (a.in_place) memcpy(q, xq, (size_t)a.xq.n * sizeof *q);
    for (int64_t t = 0; t < s->n_tok; t++)
        for (int64_t h = 0; h < H; h++) {
            double *k = kv + a.kv_row[t] * a.l.kv_ld + h * D, *v = kv + a.kv_row[t] * a.l.kv_ld + H * D + h * V;
            const double *from = xkv + t * a.l.xkv_ld + h * (N + V);
            memcpy(q + t * a.l.q_ld + h * D, xq + t * a.l.xq_ld + h * D, (size_t)N * sizeof *q);
            turn(&a, t, xq + t * a.l.xq_ld + h * D + N, q + t * a.l.q_ld + h * D + N, 1);
            memcpy(k, from, (size_t)N * sizeof *k);
            memcpy(v, from + N, (size_t)V * sizeof *v);
            turn(&a, t, xr + t * a.l.xr_ld, k + N, 1);
        }
    const dt_latent l = on_the_device(f, &a, way & 2);
    RUN(latent_forward, &l, ON(a.xq), ON(a.xkv), ON(a.xr), a.in_place ? ON(a.xq) : ON(a.q), ON(a.kv),
        ON_FROM(a.kv, H * D));
    assert_true(ref_near(a.in_place ? &a.xq : &a.q, q, 0x1p-21, "q"));
    assert_true(ref_near(&a.kv, kv, 0x1p-21, "k and v"));
    free(xq), free(xkv), free(xr), free(q), free(kv);
    drop(&a);
}

TEST(heads_are_put_together)
{
    for (int i = 0; i < N_SHAPES * N_WAYS * N_TYPES; i++)
        check_forward(*state, &shapes[i % N_SHAPES], i / N_SHAPES % N_WAYS, types[i / N_SHAPES / N_WAYS]);
}

static void check_backward(fixture *f, const struct shape *s, int way, dt_dtype dt)
{
    arrays a; /* xq, xkv and xr are the gradients that come out; q and kv those that go in */
    make(&a, s, way & ~2, dt);
    const int64_t H = s->n_heads, N = s->nope, R = s->rope, D = N + R, V = s->v;
    double *xq = ref_doubles(&a.xq), *xkv = ref_doubles(&a.xkv), *xr = ref_doubles(&a.xr), *q = ref_doubles(&a.q),
           *kv = ref_doubles(&a.kv);
    if (a.in_place) memcpy(xq, q, (size_t)a.q.n * sizeof *q);
    for (int64_t t = 0; t < s->n_tok; t++) {
        double sum[DT_ATTENTION_MAX_HEAD_DIM] = {0};
        for (int64_t h = 0; h < H; h++) {
            const double *k = kv + t * a.l.kv_ld + h * D, *v = kv + t * a.l.kv_ld + H * D + h * V;
            double *to = xkv + t * a.l.xkv_ld + h * (N + V);
            memcpy(xq + t * a.l.xq_ld + h * D, q + t * a.l.q_ld + h * D, (size_t)N * sizeof *q);
            turn(&a, t, q + t * a.l.q_ld + h * D + N, xq + t * a.l.xq_ld + h * D + N, -1);
            memcpy(to, k, (size_t)N * sizeof *k);
            memcpy(to + N, v, (size_t)V * sizeof *v);
            for (int64_t c = 0; c < R; c++) sum[c] += k[N + c];
        }
        turn(&a, t, sum, xr + t * a.l.xr_ld, -1);
    }
    const dt_latent l = on_the_device(f, &a, false);
    RUN(latent_backward, &l, ON(a.q), ON(a.kv), ON_FROM(a.kv, H * D), a.in_place ? ON(a.q) : ON(a.xq), ON(a.xkv),
        ON(a.xr));
    assert_true(ref_near(a.in_place ? &a.q : &a.xq, xq, 0x1p-21, "dxq"));
    assert_true(ref_near(&a.xkv, xkv, 0, "dxkv"));
    /* H additions of values up to 2 H */
    assert_true(ref_near(&a.xr, xr, (double)(H + 4) * 4 * (double)H * 0x1p-24, "dxr"));
    free(xq), free(xkv), free(xr), free(q), free(kv);
    drop(&a);
}

TEST(gradients_come_back)
{
    for (int i = 0; i < N_SHAPES * N_WAYS * N_TYPES; i++)
        check_backward(*state, &shapes[i % N_SHAPES], i / N_SHAPES % N_WAYS, types[i / N_SHAPES / N_WAYS]);
}

TEST(inconsistent_values_are_refused)
{
    fixture *f = *state;
    float x[64] = {0};
    const int32_t pos[1] = {0};
    for (int i = 0; i < 8; i++) {
        dt_latent l = {.n_tok = 1,
                       .n_heads = 2,
                       .nope_dim = 2,
                       .rope_dim = 2,
                       .v_dim = 3,
                       .xq_ld = 8,
                       .xkv_ld = 10,
                       .xr_ld = 2,
                       .q_ld = 8,
                       .kv_ld = 14};
        l.pos = ARR(pos, 1), l.cos_sin = ARR(x, 8);
        if (i == 0) l.xq_ld = 7;
        if (i == 1) l.xkv_ld = 9;
        if (i == 2) l.xr_ld = 1;
        if (i == 3) l.q_ld = 7;
        if (i == 4) l.kv_ld = 7;
        if (i == 5) l.rope_dim = 3;
        if (i == 6) l.rope_dim = 258, l.xq_ld = l.xr_ld = l.q_ld = l.kv_ld = 4096;
        if (i == 7) l.pos = NULL;
        assert_fails(TRY(latent_forward, &l, ARR(x, 16), ARR(x, 17), ARR(x, 2), ARR(x, 18), ARR(x, 19), ARR(x, 20)),
                     DT_ERR_ARG, "latent");
    }
}

int main(void) { return run_with_each_isa() != 0; }
