/* test_device_heads.c - heads_forward and heads_backward: norms of heads, rotation, and writes to a cache. Results are
 * compared with double, and bitwise with the separate operations.
 * DEVICES: cpu queue */
#include "device_fixture.h"

static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F16};
enum { N_TYPES = sizeof types / sizeof types[0], N_POS = 9 };

/* Widths of a vector and several, whole and not; more tokens than a block has threads for; cut: elements that rows are
 * longer than what is in them. */
static const struct shape {
    int n_tok, n_heads, n_kv_heads, head_dim, cut;
} shapes[] = {{3, 2, 1, 64, 0},  {5, 3, 1, 34, 3},   {1, 1, 1, 1, 0},  {70, 4, 2, 128, 8}, {9, 2, 2, 72, 0},
              {4, 6, 2, 80, 16}, {3, 2, 1, 256, 24}, {2, 2, 1, 25, 1}, {300, 1, 1, 2, 0},  {40, 5, 5, 96, 0}};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

/* Arguments of a call. */
typedef struct form {
    bool norms, turns, cached, plus_one, in_place;
    bool in_part, neighbours; /* the rotation; q then has a table of its own */
} form;

/* A call's arrays on the host. */
typedef struct arrays {
    dt_heads h; /* without addresses */
    form how;
    ref_array x, q, k, v, q_norm, k_norm, rstd_q, rstd_k;
    float table[N_POS * DT_ATTENTION_MAX_HEAD_DIM], q_table[N_POS * DT_ATTENTION_MAX_HEAD_DIM];
    int32_t pos[300], kv_row[300];
} arrays;

/* An even number of elements; of heads of 34 and 25 no whole vectors. */
static int part_of(int head_dim) { return head_dim < 4 ? 2 : head_dim / 8 * 2 + 2; }

static void make(arrays *a, const struct shape *s, form how, dt_dtype dt)
{
    const int64_t d = s->head_dim, Q = s->n_heads * d, K = s->n_kv_heads * d, T = s->n_tok;
    *a = (arrays){.how = how};
    a->h = (dt_heads){.n_tok = T,
                      .n_heads = s->n_heads,
                      .n_kv_heads = s->n_kv_heads,
                      .head_dim = s->head_dim,
                      .x_ld = Q + 2 * K + s->cut,
                      .q_ld = how.in_place ? Q + 2 * K + s->cut : Q + s->cut,
                      .kv_ld = how.in_place ? Q + 2 * K + s->cut : K + s->cut,
                      .eps = 1e-5f,
                      .plus_one = how.plus_one,
                      .rotary_dim = how.in_part ? part_of(s->head_dim) : 0,
                      .neighbours = how.neighbours,
                      .dt = dt};
    const int64_t rotary = dt_heads_rotary_dim(&a->h);
    a->x = ref_random(dt, T * a->h.x_ld, 1, 2);
    a->q = ref_new(dt, T * a->h.q_ld), a->k = ref_new(dt, T * a->h.kv_ld), a->v = ref_new(dt, T * a->h.kv_ld);
    a->q_norm = ref_random(dt, d, 2, 1), a->k_norm = ref_random(dt, d, 3, 1);
    a->rstd_q = ref_new(DT_F32, T * s->n_heads), a->rstd_k = ref_new(DT_F32, T * s->n_kv_heads);
    for (int p = 0; p < N_POS; p++)
        for (int i = 0; i < rotary / 2; i++) {
            float *row = a->table + p * rotary;
            row[i] = cosf((float)p * 0.1f * (float)i), row[rotary / 2 + i] = sinf((float)p * 0.1f * (float)i);
        }
    for (int64_t i = 0; i < N_POS * rotary; i++) a->q_table[i] = a->table[i] * 1.25f;
    for (int t = 0; t < T; t++) a->pos[t] = t * 7 % N_POS, a->kv_row[t] = (int32_t)T - 1 - t;
}

static void drop(arrays *a)
{
    ref_drop(&a->x), ref_drop(&a->q), ref_drop(&a->k), ref_drop(&a->v), ref_drop(&a->q_norm), ref_drop(&a->k_norm);
    ref_drop(&a->rstd_q), ref_drop(&a->rstd_k);
}

static dt_heads on_the_device(fixture *f, arrays *a)
{
    dt_heads h = a->h;
    if (a->how.norms) h.q_norm = ON(a->q_norm), h.k_norm = ON(a->k_norm);
    const int64_t n = N_POS * (int64_t)dt_heads_rotary_dim(&h);
    if (a->how.turns) h.pos = ARR(a->pos, h.n_tok), h.cos_sin = ARR(a->table, n);
    if (a->how.turns && a->how.neighbours) h.q_cos_sin = ARR(a->q_table, n);
    if (a->how.cached) h.kv_row = ARR(a->kv_row, h.n_tok);
    return h;
}

/* To q, k and v, or in place in x. */
static void run_forward(fixture *f, arrays *a)
{
    const int64_t Q = a->h.n_heads * a->h.head_dim;
    const dt_heads h = on_the_device(f, a);
    float *rstd_q = a->how.norms ? ON(a->rstd_q) : NULL, *rstd_k = a->how.norms ? ON(a->rstd_k) : NULL;
    if (a->how.in_place)
        RUN(heads_forward, &h, ON(a->x), ON(a->x), ON_FROM(a->x, Q), NULL, rstd_q, rstd_k);
    else
        RUN(heads_forward, &h, ON(a->x), ON(a->q), ON(a->k), ON(a->v), rstd_q, rstd_k);
}

static form form_of(int way)
{
    return (form){way & 1, way >> 1 & 1, way >> 2 & 1, way >> 3 & 1, way >> 4 & 1, way >> 5 & 1, way >> 6 & 1};
}

static bool makes_sense(form how, const struct shape *s)
{
    const int rotary = how.in_part ? part_of(s->head_dim) : s->head_dim;
    return !(how.turns && (rotary % 2 || rotary > s->head_dim)) && !(how.cached && how.in_place) &&
           !(how.plus_one && !how.norms) && (how.turns || !(how.in_part || how.neighbours));
}

static ref_heads reference(arrays *a, const double *x, const double *wq, const double *wk, double *q, double *k,
                           double *v)
{
    return (ref_heads){.x = x,
                       .q_norm = a->how.norms ? wq : NULL,
                       .k_norm = a->how.norms ? wk : NULL,
                       .cos_sin = a->how.turns ? a->table : NULL,
                       .q_cos_sin = a->how.turns && a->how.neighbours ? a->q_table : NULL,
                       .pos = a->pos,
                       .kv_row = a->how.cached ? a->kv_row : NULL,
                       .q = q,
                       .k = k,
                       .v = v};
}

/* A norm: sums of width squares in float; its result of 16 bits was rounded twice before it turns, as xhat and as what
 * turns: by half a unit of at most sqrt 2 of the largest result each, and a turn adds two such errors with factors
 * cos and sin. */
static double forward_error(const arrays *a, double largest)
{
    const double u = dt_roundoff(a->h.dt), norm = 0x1p-24 * (8 + sqrt((double)a->h.head_dim)) * 4;
    if (!a->how.norms) return a->how.turns ? 0x1p-24 * 4 * (1 + largest) : 0;
    return norm * (1 + largest) + (a->h.dt != DT_F32 ? (a->how.turns ? 4 : 1) * u * largest : 0);
}

/* The factors of a norm. */
static double *factors(const arrays *a, const ref_array *weight)
{
    double *f = ref_doubles(weight);
    for (int64_t i = 0; i < weight->n && a->how.plus_one; i++) f[i] += 1;
    return f;
}

static void check_forward(fixture *f, const struct shape *s, form how, dt_dtype dt)
{
    arrays a;
    make(&a, s, how, dt);
    const int64_t Q = a.h.n_heads * a.h.head_dim;
    double *x = ref_doubles(&a.x), *wq = factors(&a, &a.q_norm), *wk = factors(&a, &a.k_norm),
           *in_x = ref_doubles(&a.x);
    double *q = ref_doubles(&a.q), *k = ref_doubles(&a.k), *v = ref_doubles(&a.v);
    const ref_heads r =
        how.in_place ? reference(&a, x, wq, wk, in_x, in_x + Q, NULL) : reference(&a, x, wq, wk, q, k, v);
    ref_heads_forward(&a.h, &r);
    run_forward(f, &a);
    ref_array *const all[] = {&a.x, &a.q, &a.k, &a.v};
    double *const want[] = {in_x, q, k, v};
    for (int i = how.in_place ? 0 : 1; i < (how.in_place ? 1 : 4); i++)
        for (int64_t j = 0; j < all[i]->n; j++) { /* between the rows nothing is written */
            if (!isnan(want[i][j])) continue;
            assert_true(isnan(ref_get(all[i], j)));
            ref_set(all[i], j, 0), want[i][j] = 0;
        }
    for (int i = how.in_place ? 0 : 1; i < (how.in_place ? 1 : 4); i++)
        assert_true(
            ref_near(all[i], want[i], i == 3 ? 0 : forward_error(&a, ref_largest(want[i], all[i]->n)), "heads"));
    free(x), free(wq), free(wk), free(in_x), free(q), free(k), free(v);
    drop(&a);
}

TEST(heads_arrive_as_they_should)
{
    for (int i = 0; i < N_SHAPES; i++)
        for (int way = 0; way < 128; way++)
            for (int t = 0; t < N_TYPES; t++)
                if (makes_sense(form_of(way), &shapes[i])) check_forward(*state, &shapes[i], form_of(way), types[t]);
}

/* Gradients: what arrives in 16 bits is rounded after it has turned back, by u of at most dmax, and dx is rstd times
 * (g - xhat mean(g xhat)), where the mean of |xhat| is at most 1. The sums over n heads of such errors times xhat. */
static void check_backward(fixture *f, const struct shape *s, form how, dt_dtype dt, dt_dtype gt)
{
    arrays a;
    make(&a, s, how, dt);
    const int64_t d = s->head_dim, T = s->n_tok;
    run_forward(f, &a);
    ref_array dq = ref_random(dt, T * a.h.q_ld, 4, 1), dk = ref_random(dt, T * a.h.kv_ld, 5, 1);
    ref_array dwq = ref_random(gt, d, 6, 1), dwk = ref_new(gt, d),
              scratch = ref_new(DT_F32, OPS(f)->norm_scratch_elems(&f->dev, d));
    const bool accumulate = how.cached; /* which backward does not look at */
    if (!accumulate)
        ref_drop(&dwq), dwq = ref_new(gt, d);
    else
        ref_drop(&dwk), dwk = ref_random(gt, d, 7, 1);
    double *x = ref_doubles(&a.x), *wq = factors(&a, &a.q_norm), *wk = factors(&a, &a.k_norm), *q = ref_doubles(&dq),
           *k = ref_doubles(&dk), *sq = ref_doubles(&dwq), *sk = ref_doubles(&dwk);
    const double *rstd = ref_doubles(&a.rstd_q), *rstd_k = ref_doubles(&a.rstd_k);
    for (int64_t c = 0; c < d && !accumulate; c++) sq[c] = sk[c] = 0;
    const ref_heads r = reference(&a, x, wq, wk, q, k, NULL);
    ref_heads_backward(&a.h, &r, sq, sk);
    const dt_heads h = on_the_device(f, &a);
    if (how.norms)
        RUN(heads_backward, &h, ON(a.x), ON(a.rstd_q), ON(a.rstd_k), ON(dq), ON(dk), ON(dwq), ON(dwk), gt, accumulate,
            ON(scratch));
    else
        RUN(heads_backward, &h, NULL, NULL, NULL, ON(dq), ON(dk), NULL, NULL, gt, accumulate, NULL);
    const double u = dt != DT_F32 && how.turns ? dt_roundoff(dt) * (how.plus_one ? 2 : 1) : 0,
                 float_error = 0x1p-24 * (8 + sqrt((double)d)) * (how.plus_one ? 8 : 4);
    double tol = 0x1p-24 * 8, of_sums = 0;
    if (how.norms) {
        const double rs = fmax(ref_largest(rstd, T * s->n_heads), ref_largest(rstd_k, T * s->n_kv_heads)),
                     xhat = rs * ref_largest(x, a.x.n), n = (double)(T * s->n_heads);
        tol = (float_error * (1 + xhat) + u * 1.5 * (1 + xhat)) * rs;
        of_sums = float_error * (1 + xhat) * n + u * 1.5 * xhat * n;
        assert_true(ref_near(&dwq, sq, of_sums, "gradient of q's weight"));
        assert_true(ref_near(&dwk, sk, of_sums, "gradient of k's weight"));
    }
    assert_true(ref_near(&dq, q, tol, "dq"));
    assert_true(ref_near(&dk, k, tol, "dk"));
    ref_drop(&dq), ref_drop(&dk), ref_drop(&dwq), ref_drop(&dwk), ref_drop(&scratch), drop(&a);
    free(x), free(wq), free(wk), free(q), free(k), free(sq), free(sk), free((void *)rstd), free((void *)rstd_k);
}

TEST(gradients_come_back)
{
    for (int i = 0; i < N_SHAPES; i++)
        for (int way = 0; way < 64; way++)
            for (int t = 0; t < 2 * N_TYPES; t++)
                if (makes_sense(form_of(way % 16 + way / 16 * 32), &shapes[i]))
                    check_backward(*state, &shapes[i], form_of(way % 16 + way / 16 * 32), types[t % N_TYPES],
                                   t < N_TYPES ? DT_F32 : types[t % N_TYPES]);
}

/* ---- the bits of one operation after the other ------------------------------------------------------------------- */

/* n heads of each token from column `from` on, one after the other. */
static ref_array dense(const ref_array *a, const dt_heads *h, int n, int64_t from, int64_t ld)
{
    ref_array y = ref_new(a->dt, h->n_tok * n * h->head_dim);
    const size_t nbytes = (size_t)(n * h->head_dim) * dt_dtype_size(a->dt);
    for (int64_t t = 0; t < h->n_tok; t++)
        memcpy((char *)y.p + (size_t)t * nbytes, (char *)a->p + (size_t)(t * ld + from) * dt_dtype_size(a->dt), nbytes);
    return y;
}

/* The norm of n heads as an operation of its own, then the rotation as another; backward the other way round. */
static void check_bits(fixture *f, arrays *a, int n, int64_t from, const ref_array *weight, const ref_array *got,
                       int64_t ld, const ref_array *rstd_got)
{
    const int64_t d = a->h.head_dim, rows = a->h.n_tok * n;
    ref_array x = dense(&a->x, &a->h, n, from, a->h.x_ld), y = ref_new(x.dt, x.n), rstd = ref_new(DT_F32, rows);
    const dt_rmsnorm norm = {rows, d, 1, d, d, a->h.eps, a->h.plus_one, x.dt, false};
    RUN(rmsnorm_forward, &norm, ON(x), ON(*weight), ON(y), ON(rstd));
    dt_heads turn = {.n_tok = a->h.n_tok, .n_heads = n, .n_kv_heads = n, .head_dim = (int)d, .dt = x.dt};
    turn.x_ld = 2 * n * d, turn.q_ld = turn.kv_ld = n * d;
    ref_array twice = ref_new(x.dt, 2 * x.n), k = ref_new(x.dt, x.n); /* the same heads as q and as k */
    const size_t row = (size_t)(n * d) * dt_dtype_size(x.dt);
    for (int64_t t = 0; t < 2 * a->h.n_tok; t++)
        memcpy((char *)twice.p + (size_t)t * row, (char *)y.p + (size_t)(t / 2) * row, row);
    turn.pos = ARR(a->pos, a->h.n_tok), turn.cos_sin = ARR(a->table, N_POS * d);
    RUN(heads_forward, &turn, ON(twice), ON(y), ON(k), NULL, NULL, NULL);
    ref_array fused = dense(got, &a->h, n, 0, ld);
    assert_memory_equal(fused.p, y.p, ref_bytes(&y));
    assert_memory_equal(fused.p, k.p, ref_bytes(&y));
    assert_memory_equal(rstd_got->p, rstd.p, ref_bytes(&rstd));
    ref_drop(&x), ref_drop(&y), ref_drop(&rstd), ref_drop(&twice), ref_drop(&k), ref_drop(&fused);
}

TEST(one_pass_has_the_bits_of_several)
{
    fixture *f = *state;
    if (!strcmp(OPS(f)->name, "cuda")) skip(); /* sums squares in another order than rmsnorm_forward */
    for (int i = 0; i < N_SHAPES; i++)
        for (int t = 0; t < N_TYPES; t++) {
            arrays a;
            if (shapes[i].head_dim % 2) continue;
            make(&a, &shapes[i], (form){.norms = true, .turns = true, .plus_one = i % 2}, types[t]);
            run_forward(f, &a);
            check_bits(f, &a, a.h.n_heads, 0, &a.q_norm, &a.q, a.h.q_ld, &a.rstd_q);
            check_bits(f, &a, a.h.n_kv_heads, a.h.n_heads * a.h.head_dim, &a.k_norm, &a.k, a.h.kv_ld, &a.rstd_k);
            drop(&a);
        }
}

/* Backward of q's heads: back through the rotation, then the norm's own backward. */
TEST(one_pass_back_has_the_bits_of_several)
{
    fixture *f = *state;
    if (!strcmp(OPS(f)->name, "cuda")) skip();
    for (int t = 0; t < N_TYPES; t++) {
        arrays a;
        make(&a, &shapes[3], (form){.norms = true, .turns = true}, types[t]);
        run_forward(f, &a);
        const int64_t d = a.h.head_dim, n = a.h.n_heads, rows = a.h.n_tok * n;
        ref_array dq = ref_random(types[t], a.q.n, 4, 1), dk = ref_random(types[t], a.k.n, 5, 1),
                  dwq = ref_new(DT_F32, d), dwk = ref_new(DT_F32, d), dw = ref_new(DT_F32, d),
                  scratch = ref_new(DT_F32, OPS(f)->norm_scratch_elems(&f->dev, d));
        ref_array q_alone = ref_copy(&dq), k_alone = ref_copy(&dk), x = dense(&a.x, &a.h, (int)n, 0, a.h.x_ld);
        dt_heads h = on_the_device(f, &a);
        RUN(heads_backward, &h, ON(a.x), ON(a.rstd_q), ON(a.rstd_k), ON(dq), ON(dk), ON(dwq), ON(dwk), DT_F32, false,
            ON(scratch));
        a.how.norms = false;
        h = on_the_device(f, &a);
        RUN(heads_backward, &h, NULL, NULL, NULL, ON(q_alone), ON(k_alone), NULL, NULL, DT_F32, false, NULL);
        ref_array dy = dense(&q_alone, &a.h, (int)n, 0, a.h.q_ld), fused = dense(&dq, &a.h, (int)n, 0, a.h.q_ld);
        const dt_rmsnorm norm = {rows, d, 1, d, d, a.h.eps, a.h.plus_one, types[t], false};
        RUN(rmsnorm_backward, &norm, ON(x), ON(a.q_norm), ON(a.rstd_q), ON(dy), ON(dy), false, ON(dw), DT_F32, false,
            ON(scratch));
        assert_memory_equal(fused.p, dy.p, ref_bytes(&dy));
        assert_memory_equal(dwq.p, dw.p, ref_bytes(&dw));
        ref_array *const all[] = {&dq, &dk, &dwq, &dwk, &dw, &scratch, &q_alone, &k_alone, &x, &dy, &fused};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) ref_drop(all[i]);
        drop(&a);
    }
}

/* A row of a cache does not depend on the other tokens of the call. */
TEST(a_single_token_has_the_same_bits)
{
    fixture *f = *state;
    for (int t = 0; t < N_TYPES; t++) {
        arrays a, b;
        const struct shape one = {1, 4, 2, 128, 8};
        const form how = {.norms = true, .turns = true};
        make(&a, &shapes[3], how, types[t]), make(&b, &one, how, types[t]);
        const int64_t at = 41;
        memcpy(b.x.p, (char *)a.x.p + (size_t)(at * a.h.x_ld) * dt_dtype_size(types[t]), ref_bytes(&b.x));
        b.pos[0] = a.pos[at];
        run_forward(f, &a), run_forward(f, &b);
        assert_memory_equal(b.q.p, (char *)a.q.p + (size_t)(at * a.h.q_ld) * dt_dtype_size(types[t]),
                            (size_t)(4 * 128) * dt_dtype_size(types[t]));
        assert_memory_equal(b.k.p, (char *)a.k.p + (size_t)(at * a.h.kv_ld) * dt_dtype_size(types[t]),
                            (size_t)(2 * 128) * dt_dtype_size(types[t]));
        drop(&a), drop(&b);
    }
}

TEST(inconsistent_values_are_refused)
{
    fixture *f = *state;
    float x[64] = {0}, table[8] = {0};
    const int32_t pos[1] = {0};
    const dt_heads right = {
        .n_tok = 1, .n_heads = 2, .n_kv_heads = 1, .head_dim = 4, .x_ld = 16, .q_ld = 8, .kv_ld = 4};
    for (int i = 0; i < 9; i++) {
        dt_heads h = right;
        if (i == 0) h.x_ld = 15;
        if (i == 1) h.q_ld = 7;
        if (i == 2) h.head_dim = 257, h.x_ld = h.q_ld = h.kv_ld = 4096;
        if (i == 3) h.q_norm = ARR(table, 8);
        if (i == 4) h.head_dim = 3, h.cos_sin = ARR(table, 8), h.pos = ARR(pos, 1);
        if (i == 5) h.cos_sin = ARR(table, 8);
        if (i == 6) h.rotary_dim = 6, h.cos_sin = ARR(table, 8), h.pos = ARR(pos, 1);
        if (i == 7) h.rotary_dim = 1, h.cos_sin = ARR(table, 8), h.pos = ARR(pos, 1);
        if (i == 8) h.q_cos_sin = ARR(table, 8);
        assert_fails(TRY(heads_forward, &h, ARR(x, 16), ARR(x, 8), ARR(x, 4), ARR(x, 5), NULL, NULL), DT_ERR_ARG,
                     "heads");
    }
}

int main(void) { return run_with_each_isa() != 0; }
