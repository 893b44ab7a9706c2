/* test_device_experts.c - routing, order of rows, weighted sums and grouped matmuls of mixtures of experts, against
 * plain loops in double.
 * DEVICES: cpu queue */
#include "device_fixture.h"
#include "dtrain/device/nf4.h"

static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F16};
enum { N_TYPES = sizeof types / sizeof types[0] };

/* ---- routing ----------------------------------------------------------------------------------------------------- */

#define WAY(T, E, K, NORMALISE, ...)                                                                                   \
    {                                                                                                                  \
        .n_tok = T, .n_experts = E, .k = K, .normalise = NORMALISE, __VA_ARGS__                                        \
    }
static const dt_routing routings[] = {
    WAY(1, 1, 1, true),
    WAY(5, 3, 3, false),
    WAY(70, 33, 1, true),
    WAY(64, 8, 2, true),
    WAY(19, 7, 3, true),
    WAY(130, 128, 8, true),
    WAY(33, 260, 5, false),
    WAY(37, 24, 4, true, .sigmoid = true, .n_groups = 6, .k_groups = 3, .group_best = 2, .scale = 2.5f),
    WAY(29, 256, 8, true, .sigmoid = true, .n_groups = 8, .k_groups = 4, .group_best = 2, .scale = 2.5f),
    WAY(17, 9, 3, false, .sigmoid = true, .n_groups = 1, .k_groups = 1, .group_best = 2),
    WAY(23, 128, 3, false, .n_groups = 64, .k_groups = 3, .group_best = 1, .scale = 16),
};
enum { N_ROUTINGS = sizeof routings / sizeof routings[0], MOST_EXPERTS = 512 };

/* Logits in [-4, 4]; `alike`: all tokens prefer the same experts, and there are ties. */
static ref_array logits_of(const dt_routing *r, bool alike)
{
    ref_array z = ref_random(DT_F32, r->n_tok * r->n_experts, 5, 4);
    for (int64_t i = 0; i < z.n && alike; i++) ref_set(&z, i, (double)(i % r->n_experts % 3));
    return z;
}

static void ref_softmax(const double *z, double *p, int n)
{
    double most = ref_largest(z, n), sum = 0;
    for (int e = 0; e < n; e++) sum += p[e] = exp(z[e] - most);
    for (int e = 0; e < n; e++) p[e] /= sum;
}

static void ref_scores(const dt_routing *r, const double *z, double *p)
{
    if (!r->sigmoid) ref_softmax(z, p, r->n_experts);
    for (int e = 0; e < r->n_experts && r->sigmoid; e++) p[e] = 1 / (1 + exp(-z[e]));
}

static double ref_lse(const double *z, int n)
{
    double most = z[0], sum = 0;
    for (int e = 1; e < n; e++) most = fmax(most, z[e]);
    for (int e = 0; e < n; e++) sum += exp(z[e] - most);
    return most + log(sum);
}

/* The weights of given experts as a function of the logits. */
static void ref_weights(const dt_routing *r, const double *z, const int32_t *expert, double *w)
{
    double p[MOST_EXPERTS], sum = 0;
    ref_scores(r, z, p);
    for (int j = 0; j < r->k; j++) sum += w[j] = p[expert[j]];
    for (int j = 0; j < r->k; j++) w[j] *= dt_routing_scale(r) / (r->normalise ? sum : 1);
}

/* The sum of the n largest of `of` values. */
static double sum_of_largest(const double *x, int of, int n)
{
    double sum = 0;
    for (int e = 0; e < of; e++) {
        int n_before = 0;
        for (int o = 0; o < of; o++) n_before += x[o] > x[e] || (x[o] == x[e] && o < e);
        if (n_before < n) sum += x[e];
    }
    return sum;
}

/* The values by which experts are chosen, from the operation's own p, so that ties and roundings decide alike. */
static void ref_choices(const dt_routing *r, const float *p, const float *correction, double *c)
{
    const int n_groups = r->n_groups > 1 ? r->n_groups : 1, size = r->n_experts / n_groups;
    double value[DT_MAX_GROUPS];
    for (int e = 0; e < r->n_experts; e++) c[e] = correction ? p[e] + correction[e] : p[e];
    for (int g = 0; g < n_groups; g++) value[g] = (float)sum_of_largest(c + g * size, size, r->group_best);
    for (int g = 0; g < n_groups && n_groups > 1; g++) {
        int n_before = 0;
        for (int o = 0; o < n_groups; o++) n_before += value[o] > value[g] || (value[o] == value[g] && o < g);
        for (int e = g * size; e < (g + 1) * size && n_before >= r->k_groups; e++) c[e] = -INFINITY;
    }
}

/* Each token's experts are its k best, in descending order, ties by number. */
static void check_experts(const dt_routing *r, const double *c, const int32_t *expert)
{
    for (int j = 0; j < r->k; j++) {
        int n_before = 0;
        assert_true(expert[j] >= 0 && expert[j] < r->n_experts && c[expert[j]] > -INFINITY);
        for (int e = 0; e < r->n_experts; e++)
            n_before += c[e] > c[expert[j]] || (c[e] == c[expert[j]] && e < expert[j]);
        assert_int_equal(n_before, j);
    }
}

TEST(routing_chooses_the_best_experts)
{
    fixture *f = *state;
    for (int c = 0; c < 4 * N_ROUTINGS; c++) {
        dt_routing how = routings[c / 4], *r = &how;
        const int64_t n = r->n_tok * r->k, E = r->n_experts;
        ref_array z = logits_of(r, c % 2), weight = ref_new(DT_F32, n), correction = ref_random(DT_F32, E, 11, 1),
                  lse = ref_new(DT_F32, 2 * r->n_tok), p = ref_copy(&z);
        double *z64 = ref_doubles(&z), *want = malloc((size_t)z.n * sizeof *want), *w = malloc((size_t)n * sizeof *w),
               *l = malloc((size_t)lse.n * sizeof *l), choice[MOST_EXPERTS];
        int32_t *expert = malloc((size_t)n * sizeof *expert);
        const float *own = c / 2 % 2 ? correction.p : NULL;
        how.correction = own ? ON(correction) : NULL;
        RUN(route, r, ON(p), ARR(expert, n), ON(weight), c % 3 ? ON(lse) : NULL);
        for (int64_t i = 0; r->sigmoid && i < z.n; i++) {
            assert_true(ref_get(&p, i) == ref_get(&z, i)); /* the logits */
            ref_set(&p, i, 1 / (1 + expf(-(float)ref_get(&z, i))));
        }
        for (int64_t t = 0; t < r->n_tok; t++) {
            ref_choices(r, (const float *)p.p + t * E, own, choice);
            l[2 * t] = ref_lse(z64 + t * E, r->n_experts), l[2 * t + 1] = l[2 * t] * l[2 * t];
            check_experts(r, choice, expert + t * r->k);
            ref_scores(r, z64 + t * E, want + t * E);
            ref_weights(r, z64 + t * E, expert + t * r->k, w + t * r->k);
        }
        /* exponentials of arguments up to 8 and sums of 260 positive terms: 8 + 16 roundings, relative */
        assert_true(ref_near(&p, want, 32 * 0x1p-24, "prob"));
        if (c % 3) assert_true(ref_near(&lse, l, 256 * 0x1p-24, "lse"));
        assert_true(ref_near(&weight, w, dt_routing_scale(r) * 64 * 0x1p-24, "weight"));
        ref_drop(&z), ref_drop(&weight), ref_drop(&correction), ref_drop(&lse), ref_drop(&p);
        free(z64), free(want), free(w), free(expert), free(l);
    }
}

/* L = sum of dw w (+ sum of dprob p) + dsquare l^2, differentiated in double by central differences of 2^-12. */
static double loss_of(const dt_routing *r, const double *z, const int32_t *expert, const double *dw,
                      const double *dprob, double dsquare)
{
    double w[16], p[MOST_EXPERTS], l = ref_lse(z, r->n_experts), sum = dsquare * l * l;
    ref_weights(r, z, expert, w);
    ref_scores(r, z, p);
    for (int j = 0; j < r->k; j++) sum += dw[j] * w[j];
    for (int e = 0; e < r->n_experts && dprob; e++) sum += dprob[e] * p[e];
    return sum;
}

static void differences(const dt_routing *r, double *z, const int32_t *expert, const double *dw, const double *dprob,
                        double dsquare, double *want)
{
    const double h = 0x1p-12;
    for (int e = 0; e < r->n_experts; e++) {
        const double at = z[e];
        z[e] = at + h;
        want[e] = loss_of(r, z, expert, dw, dprob, dsquare);
        z[e] = at - h;
        want[e] = (want[e] - loss_of(r, z, expert, dw, dprob, dsquare)) / (2 * h);
        z[e] = at;
    }
}

TEST(routing_backward_is_the_derivative)
{
    fixture *f = *state;
    for (int c = 0; c < 4 * N_ROUTINGS * N_TYPES; c++) {
        const dt_routing *r = &routings[c / 4 % N_ROUTINGS];
        const dt_dtype dt = types[c / 4 / N_ROUTINGS];
        const bool squares = c % 4 / 2;
        const int64_t n = r->n_tok * r->k, E = r->n_experts;
        ref_array z = logits_of(r, false), p = ref_copy(&z), weight = ref_new(DT_F32, n), dz = ref_new(dt, z.n),
                  dw = ref_random(DT_F32, n, 9, 1), dp = ref_random(DT_F32, E, 10, 1),
                  lse = ref_new(DT_F32, 2 * r->n_tok), dsquare = ref_random(DT_F32, 1, 12, 0.125f);
        double *z64 = ref_doubles(&z), *dw64 = ref_doubles(&dw), *dp64 = ref_doubles(&dp),
               *want = malloc((size_t)z.n * sizeof *want);
        int32_t *expert = malloc((size_t)n * sizeof *expert);
        RUN(route, r, ON(p), ARR(expert, n), ON(weight), ON(lse));
        RUN(route_backward, r, ON(p), ARR(expert, n), ON(dw), c % 2 ? ON(dp) : NULL, squares ? ON(lse) : NULL,
            squares ? ON(dsquare) : NULL, ON(dz), dt);
        for (int64_t t = 0; t < r->n_tok; t++)
            differences(r, z64 + t * E, expert + t * r->k, dw64 + t * r->k, c % 2 ? dp64 : NULL,
                        squares ? ref_get(&dsquare, 0) : 0, want + t * E);
        /* differences: h^2 / 6 of a third derivative below 8; sums of 8 terms below 2 in float */
        assert_true(ref_near(&dz, want, dt_routing_scale(r) * (8 * 0x1p-24 / 6 + 64 * 0x1p-24), "dlogits"));
        ref_drop(&z), ref_drop(&p), ref_drop(&weight), ref_drop(&dz), ref_drop(&dw), ref_drop(&dp), ref_drop(&lse),
            ref_drop(&dsquare);
        free(z64), free(dw64), free(dp64), free(want), free(expert);
    }
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* Experts of the assignments: at random, all to the last one, or each to one that no other has. */
static int32_t expert_of(const dt_routing *r, int64_t i, int way)
{
    return (int32_t)(way == 0   ? (int64_t)(dt_mix64((uint64_t)i) % (uint64_t)r->n_experts)
                     : way == 1 ? r->n_experts - 1
                                : i * 7 % r->n_experts);
}

TEST(rows_are_in_the_order_of_experts_then_of_assignments)
{
    fixture *f = *state;
    for (int c = 0; c < 3 * N_ROUTINGS; c++) {
        const dt_routing *r = &routings[c / 3];
        const int64_t n = r->n_tok * r->k;
        ref_array load = ref_new(DT_F32, r->n_experts);
        for (int32_t e = 0; e < r->n_experts; e++) ref_set(&load, e, 5);
        int32_t *x = malloc((size_t)(4 * n + r->n_experts + 1) * sizeof *x), *row = x + n, *assignment = x + 2 * n,
                *token = x + 3 * n, *start = x + 4 * n;
        for (int64_t i = 0; i < n; i++) x[i] = expert_of(r, i, c % 3);
        RUN(order_experts, r, ARR(x, n), ARR(start, r->n_experts + 1), ARR(row, n), ARR(assignment, n), ARR(token, n),
            c % 2 ? NULL : ON(load));
        for (int32_t e = 0, at = 0; e <= r->n_experts; e++) {
            assert_int_equal(start[e], at);
            for (int64_t i = 0; i < n && e < r->n_experts; i++) {
                if (x[i] != e) continue;
                assert_int_equal(row[i], at);
                assert_int_equal(assignment[at], i);
                assert_int_equal(token[at++], i / r->k);
            }
        }
        for (int32_t e = 0; e < r->n_experts; e++)
            assert_true(ref_get(&load, e) == (c % 2 ? 5 : 5 + start[e + 1] - start[e]));
        ref_drop(&load);
        free(x);
    }
}

/* ---- weighted sums ----------------------------------------------------------------------------------------------- */

TEST(rows_are_combined_in_order)
{
    fixture *f = *state;
    static const int64_t sizes[][3] = {{1, 1, 1}, {7, 3, 20}, {33, 2, 64}, {5, 8, 1100}}; /* tokens, k, width */
    for (int c = 0; c < 4 * 4 * N_TYPES; c++) {
        const int64_t *s = sizes[c / 4 % 4], T = s[0], k = s[1], C = s[2];
        const dt_dtype dt = types[c / 16];
        ref_array y = ref_random(dt, T * k * C, 1, 1), w = ref_random(DT_F32, T * k, 2, 1),
                  out = ref_random(dt, T * C, 3, 1);
        double *y64 = ref_doubles(&y), *w64 = ref_doubles(&w), *want = ref_doubles(&out);
        int32_t *row = malloc((size_t)(T * k) * sizeof *row);
        for (int64_t i = 0; i < T * k; i++) row[i] = (int32_t)(T * k - 1 - i);
        for (int64_t i = 0; i < T * C; i++) {
            double sum = c & 2 ? want[i] : 0;
            for (int64_t j = i / C * k; j < (i / C + 1) * k; j++) sum += (c & 1 ? w64[j] : 1) * y64[row[j] * C + i % C];
            want[i] = sum;
        }
        RUN(combine_rows, ON(y), ARR(row, T * k), c & 1 ? ON(w) : NULL, c & 2 ? ON(out) : NULL, ON(out), T, k, C, dt);
        assert_true(ref_near(&out, want, 16 * 0x1p-24 * (double)(k + 1), "combine_rows"));
        ref_drop(&y), ref_drop(&w), ref_drop(&out);
        free(y64), free(w64), free(want), free(row);
    }
}

TEST(rows_are_weighed_and_their_products_summed)
{
    fixture *f = *state;
    static const int64_t sizes[][2] = {{1, 1}, {9, 20}, {34, 64}, {6, 1100}};
    for (int c = 0; c < 4 * N_TYPES; c++) {
        const int64_t N = sizes[c % 4][0], X = sizes[c % 4][1];
        const dt_dtype dt = types[c / 4];
        ref_array x = ref_random(dt, N * X, 1, 1), dy = ref_random(dt, N * X, 2, 1), w = ref_random(DT_F32, N, 3, 1),
                  dw = ref_new(DT_F32, N);
        double *x64 = ref_doubles(&x), *dy64 = ref_doubles(&dy), *w64 = ref_doubles(&w),
               *want = calloc((size_t)N, sizeof *want);
        int32_t *assignment = malloc((size_t)N * sizeof *assignment);
        for (int64_t r = 0; r < N; r++) assignment[r] = (int32_t)((r + N / 2) % N);
        for (int64_t i = 0; i < N * X; i++) {
            const int32_t a = assignment[i / X];
            want[a] += x64[i] * dy64[i];
            x64[i] *= w64[a], dy64[i] *= w64[a];
        }
        RUN(weigh_rows, ON(x), ON(dy), ARR(assignment, N), ON(w), ON(dw), N, X, dt);
        assert_true(ref_near(&x, x64, 0, "x") && ref_near(&dy, dy64, 0, "dy"));
        assert_true(ref_near(&dw, want, 4 * 0x1p-24 * (double)(X + 4), "dweight"));
        ref_drop(&x), ref_drop(&dy), ref_drop(&w), ref_drop(&dw);
        free(x64), free(dy64), free(w64), free(want), free(assignment);
    }
}

static const int32_t BIAS_START[][6] = {{0, 0, 1, 18, 18, 230}, {0, 70, 70, 70, 140, 141}};

/* weighed: rows have weights. trained: the gradient of the bias is computed; 2: added. */
static void check_bias(fixture *f, const int32_t *start, int64_t width, bool weighed, int trained, dt_dtype dt,
                       dt_dtype gt)
{
    enum { GROUPS = 5 };
    const int64_t N = start[GROUPS];
    ref_array dy = ref_random(dt, N * width, 1, 1), bias = ref_random(dt, GROUPS * width, 2, 1),
              w = ref_random(DT_F32, N, 3, 1), dw = ref_random(DT_F32, N, 4, 1),
              dbias = ref_random(gt, GROUPS * width, 5, 1);
    double *dy64 = ref_doubles(&dy), *bias64 = ref_doubles(&bias), *w64 = ref_doubles(&w), *want_dw = ref_doubles(&dw),
           *want = ref_doubles(&dbias);
    int32_t *assignment = malloc((size_t)N * sizeof *assignment);
    for (int64_t r = 0; r < N; r++) assignment[r] = (int32_t)((r + N / 2) % N);
    for (int64_t i = 0; i < GROUPS * width && trained == 1; i++) want[i] = 0;
    for (int g = 0; g < GROUPS; g++)
        for (int64_t r = start[g]; r < start[g + 1]; r++)
            for (int64_t c = 0; c < width; c++) {
                const double d = dy64[r * width + c];
                if (trained) want[g * width + c] += (weighed ? w64[assignment[r]] : 1) * d;
                if (weighed) want_dw[assignment[r]] += bias64[g * width + c] * d;
            }
    RUN(group_bias_backward, ON(dy), ARR(start, GROUPS + 1), weighed ? ARR(assignment, N) : NULL,
        weighed ? ON(w) : NULL, weighed ? ON(bias) : NULL, weighed ? ON(dw) : NULL, trained ? ON(dbias) : NULL, gt,
        trained == 2, N, GROUPS, width, dt);
    assert_true(ref_near(&dbias, want, 4 * 0x1p-24 * (double)N, "dbias"));
    assert_true(ref_near(&dw, want_dw, 4 * 0x1p-24 * (double)(width + 4), "dweight"));
    ref_drop(&dy), ref_drop(&bias), ref_drop(&w), ref_drop(&dw), ref_drop(&dbias);
    free(dy64), free(bias64), free(w64), free(want_dw), free(want), free(assignment);
}

TEST(gradients_of_biases_are_sums_over_the_rows_of_their_groups)
{
    fixture *f = *state;
    static const int64_t widths[] = {1, 20, 64, 1100};
    for (int c = 0; c < 4 * 2 * 2 * 3 * N_TYPES; c++) {
        const dt_dtype dt = types[c / 48], gt = c % 2 ? DT_F32 : dt;
        check_bias(f, BIAS_START[c / 4 % 2], widths[c % 4], c / 8 % 2, c / 16 % 3, dt, gt);
    }
}

/* ---- grouped matmuls --------------------------------------------------------------------------------------------- */

/* Rows of each group: none, one, few, more than a tile; all in one group; one group. */
static const struct groups {
    int n;
    int32_t rows[6];
    int64_t out, in; /* of a matrix */
} groups[] = {{6, {0, 1, 17, 0, 140, 3}, 40, 24},
              {3, {0, 70, 0}, 96, 64},
              {1, {33}, 17, 20},
              {4, {0, 0, 0, 0}, 8, 8},
              {5, {2, 2, 64, 65, 1}, 72, 300}};
enum { N_GROUPS = sizeof groups / sizeof groups[0] };

enum form { FORWARD, INVARIANT, INPUT_GRADIENT, ONTO, ACTIVATION, WEIGHT_GRADIENT, ACCUMULATED, N_FORMS };

static dt_matmul grouped(const struct groups *g, enum form form, int64_t n_rows, int64_t gap, dt_dtype dt)
{
    dt_matmul mm = dt_dense_matmul(n_rows, g->out, g->in, false, true, dt, dt);
    if (form == INPUT_GRADIENT || form == ONTO) mm = dt_dense_matmul(n_rows, g->in, g->out, false, false, dt, dt);
    if (form >= WEIGHT_GRADIENT) mm = dt_dense_matmul(g->out, g->in, n_rows, true, false, dt, DT_F32);
    mm.accumulate = form == ONTO || form == ACCUMULATED;
    mm.batch_invariant = form == INVARIANT;
    if (form == ACTIVATION) mm.epilogue = DT_EPILOGUE_ACT, mm.act = DT_ACT_SILU;
    if (form < WEIGHT_GRADIENT)
        mm.lda += gap, mm.ldc += gap;
    else
        mm.lda += gap, mm.ldb += gap;
    mm.n_groups = g->n;
    mm.group_stride = g->out * g->in;
    return mm;
}

/* The matmuls of the groups, one after the other. */
static void ref_groups(dt_matmul mm, const int32_t *start, const double *a, const double *b, const double *bias,
                       double *c)
{
    mm.n_groups = 0;
    for (int g = 0; start[g] >= 0 && start[g + 1] >= 0; g++) {
        const int64_t first = start[g], own = g * mm.group_stride;
        dt_matmul one = mm;
        ref_matmul_args x = {.a = a + first * mm.lda, .b = b + own, .c = c + first * mm.ldc};
        *(mm.trans_a ? &one.k : &one.m) = start[g + 1] - first;
        if (mm.trans_a) x.b = b + first * mm.ldb, x.c = c + own;
        if (bias) x.bias = bias + g * mm.n;
        ref_matmul(&one, &x);
    }
}

static void check_groups(fixture *f, const struct groups *g, enum form form, int64_t gap, bool biased, dt_dtype dt)
{
    const int32_t around = gap > 0 ? 3 : 0; /* rows before and after those of the groups */
    int32_t start[9] = {around};
    for (int i = 0; i < g->n; i++) start[i + 1] = start[i] + g->rows[i];
    start[g->n + 1] = -1;
    const int64_t N = start[g->n] + around, matrix = g->n * g->out * g->in;
    dt_matmul mm = grouped(g, form, N, gap, dt);
    const bool wgrad = form >= WEIGHT_GRADIENT;
    ref_array a = ref_random(dt, N * mm.lda + 1, 1, 1), b = ref_random(dt, wgrad ? N * mm.ldb + 1 : matrix, 2, 1),
              c = ref_random(mm.c_dtype, wgrad ? matrix : N * mm.ldc + 1, 3, 1),
              bias = ref_random(dt, g->n * mm.n, 4, 1);
    double *a64 = ref_doubles(&a), *b64 = ref_doubles(&b), *bias64 = ref_doubles(&bias), *want = ref_doubles(&c);
    ref_groups(mm, start, a64, b64, biased ? bias64 : NULL, want);
    if (biased) mm.bias = ON(bias);
    mm.group_start = ARR(start, g->n + 1);
    RUN(matmul, &mm, ON(a), ON(b), ON(c));
    const double k = (double)(wgrad ? N : mm.k);
    assert_true(ref_near(&c, want,
                         8 * 0x1p-24 * (k + 4) +
                             (form == ACTIVATION ? 1.1 * dt_roundoff(dt) * (ref_largest(want, c.n) + 1) : 0),
                         "matmul"));
    ref_drop(&a), ref_drop(&b), ref_drop(&c), ref_drop(&bias);
    free(a64), free(b64), free(bias64), free(want);
}

TEST(grouped_matmuls_are_those_of_their_groups)
{
    fixture *f = *state;
    for (int t = 0; t < N_TYPES; t++)
        for (int g = 0; g < N_GROUPS; g++)
            for (int form = 0; form < N_FORMS; form++)
                for (int gap = 0; gap < 10; gap += 5)
                    for (int biased = 0; biased <= (form < WEIGHT_GRADIENT); biased++)
                        if (is_tried()) check_groups(f, &groups[g], (enum form)form, gap, biased, types[t]);
}

/* The weights of all groups as codes with scales: the result is that of the dequantised weights. A matrix has 96 blocks
 * of four bits, so that a group begins within 256 of them. */
static void check_stored(fixture *f, bool nf4, enum form form, dt_dtype dt)
{
    static const int32_t START[] = {0, 5, 5, 75, 92};
    enum { N_MATRICES = 4, OUT = 96, IN = 64, MATRIX = OUT * IN, ALL = N_MATRICES * MATRIX, N = 92 };
    const struct groups g = {.n = N_MATRICES, .out = OUT, .in = IN};
    const int finer = nf4 ? dt_nf4_finer(dt_nf4_blocks(MATRIX)) : 0;
    const int64_t n_blocks = dt_nf4_blocks(ALL), n_scales = nf4 ? 2 * dt_nf4_pairs(ALL, finer) : N_MATRICES * OUT;
    uint8_t *codes = malloc(ALL), *blocks = malloc((size_t)n_blocks);
    float *scale = malloc((size_t)n_scales * sizeof *scale), x;
    for (int i = 0; i < ALL; i++) codes[i] = (uint8_t)(dt_mix64((uint64_t)i) % 255 + 1);
    for (int64_t i = 0; i < n_blocks; i++) blocks[i] = (uint8_t)dt_mix64((uint64_t)i + 7);
    for (int64_t i = 0; i < n_scales; i++) scale[i] = (float)(i % 17 + 1) * 0x1p-5f / (nf4 ? 2 : 127);
    dt_matmul mm = grouped(&g, form, N, 0, dt);
    ref_array a = ref_random(dt, N * mm.lda, 1, 1), b = ref_new(dt, ALL), c = ref_random(mm.c_dtype, N * mm.ldc, 3, 1);
    for (int64_t i = 0; i < ALL; i++) {
        if (nf4)
            dt_dequantise_nf4(codes + i / 2, blocks, scale, finer, i, 1, &x);
        else
            x = (float)(int8_t)codes[i] * scale[i / IN];
        dt_set_element(b.p, dt, i, x);
    }
    double *a64 = ref_doubles(&a), *b64 = ref_doubles(&b), *want = ref_doubles(&c);
    for (int i = 0; i < N_MATRICES; i++) {
        dt_matmul one = mm;
        one.n_groups = 0, one.m = START[i + 1] - START[i];
        ref_matmul(&one, &(ref_matmul_args){
                             .a = a64 + START[i] * mm.lda, .b = b64 + i * MATRIX, .c = want + START[i] * mm.ldc});
    }
    mm.group_start = ARR(START, N_MATRICES + 1);
    mm.b_scaled = (dt_scaled){.how = nf4 ? DT_SCALE_NF4 : DT_SCALE_ROWS,
                              .stored = nf4 ? DT_NF4X2 : DT_I8,
                              .scale = ARR(scale, n_scales),
                              .blocks = nf4 ? ARR(blocks, n_blocks) : NULL,
                              .finer = finer};
    RUN(matmul, &mm, ON(a), ARR(codes, nf4 ? ALL / 2 : ALL), ON(c));
    assert_true(ref_near(&c, want, 8 * 0x1p-24 * ((double)mm.k + 4), "matmul with stored weights"));
    ref_drop(&a), ref_drop(&b), ref_drop(&c);
    free(a64), free(b64), free(want), free(codes), free(blocks), free(scale);
}

TEST(grouped_matmuls_read_quantised_weights)
{
    fixture *f = *state;
    for (int t = 0; t < N_TYPES; t++)
        for (int nf4 = 0; nf4 < 2; nf4++) {
            check_stored(f, nf4, FORWARD, types[t]);
            check_stored(f, nf4, INVARIANT, types[t]);
            check_stored(f, nf4, INPUT_GRADIENT, types[t]);
        }
}

int main(void) { return run_listed(NULL, open_device, close_device); }
