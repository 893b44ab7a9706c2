/* test_device_gates.c - convolution and gates of linear attention, and blocks, against plain loops in double.
 * DEVICES: cpu queue */
#include "device_fixture.h"
#include "ref_delta.h"

static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F16};
enum { N_TYPES = sizeof types / sizeof types[0], MAX_SEQ = 5 };

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* Elements between rows: not written. */
static void expect_near(ref_array *a, double *want, double tol, const char *what)
{
    for (int64_t i = 0; i < a->n; i++) {
        if (!isnan(want[i])) continue;
        assert_true(isnan(ref_get(a, i)));
        ref_set(a, i, 0), want[i] = 0;
    }
    assert_true(ref_near(a, want, tol, what));
}

/* ---- convolution ------------------------------------------------------------------------------------------------- */

static const struct conv_shape {
    int64_t width;
    int kernel, n_seq, len[MAX_SEQ];
} convs[] = {{1, 1, 1, {1}},         {67, 4, 4, {1, 0, 2, 70}}, {130, 4, 2, {65, 64}},
             {5, 8, 3, {3, 9, 200}}, {64, 2, 1, {129}},         {3, 3, 5, {1, 1, 1, 2, 4}}};
enum { N_CONVS = sizeof convs / sizeof convs[0] };

typedef struct conv_arrays {
    dt_conv c;
    int32_t starts[MAX_SEQ + 1], rows[MAX_SEQ];
    ref_array x, weight, y, state, dy, dx, dweight, scratch;
} conv_arrays;

static void make_conv(fixture *f, conv_arrays *a, const struct conv_shape *s, dt_dtype dt)
{
    *a = (conv_arrays){0};
    for (int i = 0; i < s->n_seq; i++) a->starts[i + 1] = a->starts[i] + s->len[i], a->rows[i] = (i + 1) % s->n_seq;
    const int64_t T = a->starts[s->n_seq];
    a->c = (dt_conv){s->n_seq, a->starts, (int32_t)T, s->width, s->kernel, s->width + 3, s->width + 1, a->rows, dt};
    a->x = ref_random(dt, T * a->c.x_ld, 1, 2), a->weight = ref_random(dt, s->width * s->kernel, 2, 1);
    a->state = ref_random(dt, s->n_seq * (s->kernel - 1) * s->width, 3, 2), a->y = ref_new(dt, T * a->c.y_ld);
    a->dy = ref_random(dt, T * a->c.y_ld, 4, 1), a->dx = ref_new(dt, T * a->c.x_ld);
    a->dweight = ref_random(DT_F32, s->width * s->kernel, 5, 1);
    a->scratch = ref_new(DT_F32, OPS(f)->conv_scratch_elems(&f->dev, &a->c));
}
static void drop_conv(conv_arrays *a)
{
    ref_array *const all[] = {&a->x, &a->weight, &a->y, &a->state, &a->dy, &a->dx, &a->dweight, &a->scratch};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) ref_drop(all[i]);
}
static dt_conv conv_there(fixture *f, conv_arrays *a)
{
    dt_conv c = a->c;
    c.q_start = ARR(a->starts, c.n_seq + 1);
    if (c.state_row) c.state_row = ARR(a->rows, c.n_seq);
    return c;
}

TEST(convolution)
{
    fixture *f = *state;
    for (int i = 0; i < N_CONVS; i++)
        for (int way = 0; way < 3 * N_TYPES; way++) {
            conv_arrays a;
            const bool with_state = way % 3 > 0;
            make_conv(f, &a, &convs[i], types[way / 3]);
            if (way % 3 == 2) a.c.state_row = NULL;
            double *x = ref_doubles(&a.x), *w = ref_doubles(&a.weight), *y = ref_doubles(&a.y),
                   *kept = ref_doubles(&a.state);
            ref_conv_forward(&a.c, x, w, y, with_state ? kept : NULL);
            const dt_conv c = conv_there(f, &a);
            RUN(conv_forward, &c, ON(a.x), ON(a.weight), ON(a.y), with_state ? ON(a.state) : NULL);
            expect_near(&a.y, y, 0x1p-24 * 64, "y"); /* sums of 8 terms up to 2, and e^x */
            expect_near(&a.state, kept, 0, "state");
            free(x), free(w), free(y), free(kept), drop_conv(&a);
        }
}

TEST(convolution_back)
{
    fixture *f = *state;
    for (int i = 0; i < N_CONVS; i++)
        for (int way = 0; way < 2 * N_TYPES; way++) {
            conv_arrays a;
            const bool accumulate = way & 1;
            make_conv(f, &a, &convs[i], types[way / 2]);
            double *x = ref_doubles(&a.x), *w = ref_doubles(&a.weight), *dy = ref_doubles(&a.dy),
                   *dx = ref_doubles(&a.dx), *dw = ref_doubles(&a.dweight);
            for (int64_t t = 0; t < a.c.n_tok; t++)
                for (int64_t col = 0; col < a.c.width; col++) dx[t * a.c.x_ld + col] = 0;
            for (int64_t j = 0; j < a.dweight.n && !accumulate; j++) dw[j] = 0;
            ref_conv_backward(&a.c, x, w, dy, dx, dw);
            const dt_conv c = conv_there(f, &a);
            RUN(conv_backward, &c, ON(a.x), ON(a.weight), ON(a.dy), ON(a.dx), ON(a.dweight), DT_F32, accumulate,
                ON(a.scratch));
            expect_near(&a.dx, dx, 0x1p-24 * 64, "dx");
            expect_near(&a.dweight, dw, 0x1p-24 * 64 * sqrt((double)a.c.n_tok + 1), "dweight"); /* a term a token */
            free(x), free(w), free(dy), free(dx), free(dw), drop_conv(&a);
        }
}

/* Token by token with a state, or all at once: the same bits. */
TEST(convolution_token_by_token)
{
    fixture *f = *state;
    for (int t = 0; t < N_TYPES; t++) {
        conv_arrays a;
        const struct conv_shape s = {67, 4, 1, {20}};
        make_conv(f, &a, &s, types[t]);
        ref_array whole = ref_copy(&a.state), y = ref_copy(&a.y);
        dt_conv c = conv_there(f, &a);
        RUN(conv_forward, &c, ON(a.x), ON(a.weight), ON(y), ON(whole));
        for (int32_t i = 0; i < 20; i++) {
            a.starts[1] = 1, a.c.n_tok = 1;
            c = conv_there(f, &a);
            RUN(conv_forward, &c, ON_FROM(a.x, i * c.x_ld), ON(a.weight), ON_FROM(a.y, i * c.y_ld), ON(a.state));
        }
        assert_memory_equal(a.y.p, y.p, ref_bytes(&y));
        assert_memory_equal(a.state.p, whole.p, ref_bytes(&whole));
        ref_drop(&whole), ref_drop(&y), drop_conv(&a);
    }
}

/* ---- decay and strength ------------------------------------------------------------------------------------------ */

TEST(decay_and_strength)
{
    fixture *f = *state;
    const struct {
        int64_t n_rows, width, gap;
    } sizes[] = {{1, 1, 0}, {70, 5, 7}, {200, 70, 0}};
    for (int i = 0; i < 3; i++)
        for (int t = 0; t < 2 * N_TYPES; t++) {
            const dt_dtype dt = types[t / 2];
            const bool accumulate = t & 1;
            const int64_t W = sizes[i].width, ld = 2 * W + sizes[i].gap, n = sizes[i].n_rows * W;
            const dt_delta_gates d = {sizes[i].n_rows, W, ld, dt};
            ref_array x = ref_random(dt, sizes[i].n_rows * ld, 1, 25), a_log = ref_random(dt, W, 2, 2),
                      bias = ref_random(dt, W, 3, 2), g = ref_new(DT_F32, n), beta = ref_new(DT_F32, n),
                      dg = ref_random(DT_F32, n, 4, 1), dbeta = ref_random(DT_F32, n, 5, 1),
                      dx = ref_new(dt, sizes[i].n_rows * ld), dlog = ref_random(DT_F32, W, 6, 1),
                      dbias = ref_random(DT_F32, W, 7, 1),
                      scratch = ref_new(DT_F32, OPS(f)->norm_scratch_elems(&f->dev, W));
            double *wg = ref_doubles(&g), *wb = ref_doubles(&beta), *wx = ref_doubles(&dx), *wl = ref_doubles(&dlog),
                   *wd = ref_doubles(&dbias), largest = 0;
            for (int64_t c = 0; c < W && !accumulate; c++) wl[c] = wd[c] = 0;
            for (int64_t j = 0; j < n; j++) {
                const int64_t c = j % W, at = j / W * ld + c;
                const double rate = exp(ref_get(&a_log, c)), s = ref_get(&x, at) + ref_get(&bias, c),
                             da = -ref_get(&dg, j) * rate * sigmoid(s);
                wg[j] = -rate * (s > 30 ? s : log1p(exp(s))), wb[j] = sigmoid(ref_get(&x, at + W));
                wx[at] = da, wx[at + W] = ref_get(&dbeta, j) * wb[j] * (1 - wb[j]);
                wl[c] += ref_get(&dg, j) * wg[j], wd[c] += da;
                largest = fmax(largest, fabs(wg[j]));
            }
            RUN(delta_gates_forward, &d, ON(x), ON_FROM(x, W), ON(a_log), ON(bias), ON(g), ON(beta));
            RUN(delta_gates_backward, &d, ON(x), ON(g), ON(beta), ON(a_log), ON(bias), ON(dg), ON(dbeta), ON(dx),
                ON_FROM(dx, W), ON(dlog), ON(dbias), DT_F32, accumulate, ON(scratch));
            const double terms = sqrt((double)sizes[i].n_rows + 1);
            expect_near(&g, wg, 0x1p-24 * 8 * largest, "g");
            expect_near(&beta, wb, 0x1p-24 * 8, "beta");
            expect_near(&dx, wx, 0x1p-24 * 64, "da and db");
            expect_near(&dlog, wl, 0x1p-24 * 8 * largest * terms, "da_log");
            expect_near(&dbias, wd, 0x1p-24 * 64 * terms, "ddt_bias");
            ref_array *const all[] = {&x, &a_log, &bias, &g, &beta, &dg, &dbeta, &dx, &dlog, &dbias, &scratch};
            for (size_t j = 0; j < sizeof all / sizeof all[0]; j++) ref_drop(all[j]);
            free(wg), free(wb), free(wx), free(wl), free(wd);
        }
}

/* ---- norm(x) silu(z) --------------------------------------------------------------------------------------------- */

/* Row r of an array in groups. */
static int64_t row_of(const dt_rmsnorm *n, int64_t r, int64_t ld)
{
    return r / n->group * ld + r % n->group * n->width;
}

static double *gathered(const dt_rmsnorm *n, const ref_array *a, int64_t ld)
{
    double *rows = malloc((size_t)(n->n_rows * n->width + 1) * sizeof *rows);
    for (int64_t i = 0; i < n->n_rows * n->width; i++) rows[i] = ref_get(a, row_of(n, i / n->width, ld) + i % n->width);
    return rows;
}
static void scatter(const dt_rmsnorm *n, const double *rows, double *to, int64_t ld)
{
    for (int64_t i = 0; i < n->n_rows * n->width; i++) to[row_of(n, i / n->width, ld) + i % n->width] = rows[i];
}

static void check_norm_gate(fixture *f, int64_t n_rows, int64_t width, int64_t group, dt_dtype dt, bool accumulate)
{
    const int64_t W = group * width, G = n_rows / group, xld = W + 1, yld = W + 2, zld = W + 4, all_n = n_rows * width;
    const dt_rmsnorm n = {n_rows, width, group, xld, yld, 1e-6f, false, dt, false};
    ref_array x = ref_random(dt, G * xld, 1, 1), weight = ref_random(dt, width, 2, 1),
              z = ref_random(dt, G * zld, 3, 4), y = ref_new(dt, G * yld), rstd = ref_new(DT_F32, n_rows),
              dy = ref_random(dt, G * yld, 4, 1), dx = ref_new(dt, G * xld), dz = ref_new(dt, G * zld),
              dw = ref_random(DT_F32, width, 5, 1),
              scratch = ref_new(DT_F32, OPS(f)->norm_scratch_elems(&f->dev, width));
    double *xs = gathered(&n, &x, xld), *zs = gathered(&n, &z, zld), *d = gathered(&n, &dy, yld),
           *ys = calloc((size_t)all_n, sizeof *ys), *dxs = calloc((size_t)all_n, sizeof *ys),
           *dzs = calloc((size_t)all_n, sizeof *ys), *w = ref_doubles(&weight), *rs = ref_doubles(&rstd),
           *mean = calloc((size_t)n_rows, sizeof *mean), *dws = ref_doubles(&dw), *wy = ref_doubles(&y),
           *wdx = ref_doubles(&dx), *wdz = ref_doubles(&dz);
    for (int64_t c = 0; c < width && !accumulate; c++) dws[c] = 0;
    ref_norm_forward(xs, w, NULL, ys, mean, rs, n_rows, width, 1e-6);
    for (int64_t i = 0; i < all_n; i++) {
        const double s = sigmoid(zs[i]);
        dzs[i] = d[i] * ys[i] * s * (1 + zs[i] * (1 - s));
        ys[i] *= zs[i] * s, d[i] *= zs[i] * s;
    }
    ref_norm_backward(xs, w, mean, rs, d, dxs, dws, NULL, n_rows, width);
    scatter(&n, ys, wy, yld), scatter(&n, dxs, wdx, xld), scatter(&n, dzs, wdz, zld);
    RUN(norm_gate_forward, &n, ON(x), ON(weight), ON(z), zld, ON(y), ON(rstd));
    RUN(norm_gate_backward, &n, ON(x), ON(weight), ON(z), zld, ON(rstd), ON(dy), ON(dx), ON(dz), ON(dw), DT_F32,
        accumulate, ON(scratch));
    /* 16 bits: the norm is rounded twice, by u of at most sqrt(width), before it meets a gate of at most 4 */
    const double u = dt == DT_F32 ? 0 : dt_roundoff(dt), norm = sqrt((double)width), most = ref_largest(rs, n_rows),
                 tol = 0x1p-24 * (32 + 4 * norm) * (1 + norm), stored = 2.5 * u * norm * 4;
    expect_near(&y, wy, tol + stored, "y");
    expect_near(&rstd, rs, 0x1p-24 * (8 + norm) * most, "rstd");
    expect_near(&dx, wdx, tol * (1 + most) * 4, "dx");
    expect_near(&dz, wdz, tol + stored, "dz");
    expect_near(&dw, dws, tol * 4 * sqrt((double)n_rows), "dweight");
    ref_array *const all[] = {&x, &weight, &z, &y, &rstd, &dy, &dx, &dz, &dw, &scratch};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) ref_drop(all[i]);
    double *const doubles[] = {xs, zs, d, ys, dxs, dzs, w, rs, mean, dws, wy, wdx, wdz};
    for (size_t i = 0; i < sizeof doubles / sizeof doubles[0]; i++) free(doubles[i]);
}

TEST(norm_and_gate)
{
    for (int t = 0; t < 2 * N_TYPES; t++) {
        check_norm_gate(*state, 1, 1, 1, types[t / 2], t & 1);
        check_norm_gate(*state, 66, 37, 3, types[t / 2], t & 1);
        check_norm_gate(*state, 130, 128, 2, types[t / 2], t & 1);
        check_norm_gate(*state, 5, 1024, 1, types[t / 2], t & 1);
    }
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* Queries and gates of a projection that interleaves them by head. */
TEST(blocks)
{
    fixture *f = *state;
    for (int t = 0; t < N_TYPES; t++) {
        const int64_t rows = 9, n = 3, width = 21, x_ld = n * width + 2, y_ld = 2 * n * width;
        const dt_blocks b = {rows, n, width, x_ld, width, y_ld, 2 * width, types[t]};
        ref_array x = ref_random(types[t], rows * x_ld, 1, 2), gate = ref_random(types[t], rows * y_ld, 2, 6),
                  copy = ref_new(types[t], rows * y_ld), y = ref_new(types[t], rows * x_ld),
                  dy = ref_random(types[t], rows * x_ld, 3, 1), dx = ref_new(types[t], rows * x_ld),
                  dgate = ref_new(types[t], rows * y_ld);
        double *wc = ref_doubles(&copy), *wy = ref_doubles(&y), *wdx = ref_doubles(&dx), *wdg = ref_doubles(&dgate);
        for (int64_t i = 0; i < rows * n * width; i++) {
            const int64_t r = i / (n * width), h = i / width % n, at = r * x_ld + h * width + i % width,
                          at_y = r * y_ld + 2 * h * width + i % width;
            const double s = sigmoid(ref_get(&gate, at_y)), d = ref_get(&dy, at);
            wc[at_y] = ref_get(&x, at), wy[at] = ref_get(&x, at) * s;
            wdx[at] = d * s, wdg[at_y] = d * ref_get(&x, at) * s * (1 - s);
        }
        RUN(copy_blocks, &b, ON(x), ON(copy));
        RUN(sigmoid_gate_forward, &b, ON(x), ON(gate), ON(y));
        RUN(sigmoid_gate_backward, &b, ON(x), ON(gate), ON(dy), ON(dx), ON(dgate));
        expect_near(&copy, wc, 0, "copy");
        expect_near(&y, wy, 0x1p-24 * 16, "y");
        expect_near(&dx, wdx, 0x1p-24 * 16, "dx");
        expect_near(&dgate, wdg, 0x1p-24 * 16, "dgate");
        ref_array *const all[] = {&x, &gate, &copy, &y, &dy, &dx, &dgate};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) ref_drop(all[i]);
        free(wc), free(wy), free(wdx), free(wdg);
    }
}

/* ---- gates of rows ----------------------------------------------------------------------------------------------- */

TEST(gates_of_rows)
{
    fixture *f = *state;
    static const int64_t sizes[][2] = {{1, 1}, {9, 20}, {34, 64}, {6, 1100}}; /* rows, width */
    for (int c = 0; c < 4 * N_TYPES; c++) {
        const int64_t rows = sizes[c % 4][0], width = sizes[c % 4][1];
        const dt_dtype dt = types[c / 4];
        ref_array gate = ref_random(DT_F32, rows, 1, 5), x = ref_random(dt, rows * width, 2, 1), y = ref_copy(&x),
                  dx = ref_random(dt, rows * width, 3, 1), dgate = ref_new(dt, rows);
        double *wy = ref_doubles(&x), *wdx = ref_doubles(&dx), *wdg = calloc((size_t)rows, sizeof *wdg);
        for (int64_t i = 0; i < rows * width; i++) {
            const double s = sigmoid(ref_get(&gate, i / width));
            wdg[i / width] += s * (1 - s) * wy[i] * wdx[i];
            wy[i] *= s, wdx[i] *= s;
        }
        RUN(row_gate_forward, ON(gate), ON(y), rows, width, dt);
        RUN(row_gate_backward, ON(gate), ON(x), ON(dx), ON(dgate), rows, width, dt);
        expect_near(&y, wy, 0x1p-24 * 16, "y");
        expect_near(&dx, wdx, 0x1p-24 * 16, "dx");
        expect_near(&dgate, wdg, 0x1p-24 * (16 + (double)width), "dgate");
        ref_array *const all[] = {&gate, &x, &y, &dx, &dgate};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) ref_drop(all[i]);
        free(wy), free(wdx), free(wdg);
    }
}

/* ---- factors of magnitudes --------------------------------------------------------------------------------------- */

/* A part of a matrix whose rows have an adapter, stored by rows or by columns. */
TEST(factors_of_magnitudes)
{
    fixture *f = *state;
    enum { OUT = 7, FIRST = 2, ROWS = 11 };
    for (int c = 0; c < 4 * N_TYPES; c++) {
        const dt_dtype dt = types[c / 4];
        const int64_t n_in = c & 1 ? 301 : 5, r = c & 1 ? 3 : 1;
        const dt_row_lengths d = {.n_out = OUT,
                                  .n_in = n_in,
                                  .r = r,
                                  .first = FIRST,
                                  .w_ld = c & 2 ? ROWS : n_in,
                                  .in_first = c & 2,
                                  .scale = 1.5f,
                                  .dt = dt};
        ref_array w = ref_random(dt, ROWS * n_in, 1, 2), a = ref_random(dt, r * n_in, 2, 1),
                  b = ref_random(dt, OUT * r, 3, 1), m = ref_random(dt, OUT, 4, 1), factor = ref_new(dt, OUT),
                  inverse = ref_new(DT_F32, OUT), other = ref_new(DT_F32, OUT);
        double factors[OUT], inverses[OUT];
        for (int64_t k = 0; k < r; k++) ref_set(&b, r + k, 0); /* row 1 is zero */
        for (int64_t i = 0; i < n_in; i++) ref_set(&w, d.in_first ? i * ROWS + FIRST + 1 : (FIRST + 1) * n_in + i, 0);
        for (int64_t j = 0; j < OUT; j++) {
            double sum = j == 1; /* a zero row counts as one of length 1 */
            for (int64_t i = 0; i < n_in; i++) {
                double v = ref_get(&w, d.in_first ? i * ROWS + FIRST + j : (FIRST + j) * n_in + i);
                for (int64_t k = 0; k < r; k++) v += 1.5 * ref_get(&b, j * r + k) * ref_get(&a, k * n_in + i);
                sum += v * v;
            }
            factors[j] = ref_get(&m, j) / sqrt(sum), inverses[j] = 1 / sqrt(sum);
        }
        ref_array rounded = ref_new(dt, OUT);
        RUN(magnitude_factors, &d, ON(w), ON(a), ON(b), ON(m), ON(factor), ON(rounded), dt);
        RUN(magnitude_factors, &d, ON(w), ON(a), ON(b), ON(m), ON(other), ON(inverse), DT_F32);
        expect_near(&factor, factors, 0x1p-24 * (16 + (double)n_in), "factor");
        expect_near(&other, factors, 0x1p-24 * (16 + (double)n_in), "factor in float");
        expect_near(&inverse, inverses, 0x1p-24 * (16 + (double)n_in), "inverse");
        ref_array *const all[] = {&w, &a, &b, &m, &factor, &inverse, &other, &rounded};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) ref_drop(all[i]);
    }
}

TEST(inconsistent_values_are_refused)
{
    fixture *f = *state;
    float x[64] = {0};
    const dt_conv conv = {.width = 4, .kernel = 9, .x_ld = 4, .y_ld = 4};
    const dt_blocks blocks = {1, 2, 3, 6, 3, 5, 3, DT_F32};
    const dt_delta_gates gates = {1, 4, 3, DT_F32};
    const dt_rmsnorm norm = {1, 4, 1, 4, 4, 1, true, DT_F32, false};
    assert_fails(TRY(conv_forward, &conv, ARR(x, 64), ARR(x, 63), ARR(x, 62), NULL), DT_ERR_ARG, "conv");
    assert_fails(TRY(copy_blocks, &blocks, ARR(x, 64), ARR(x, 63)), DT_ERR_ARG, "blocks");
    assert_fails(
        TRY(delta_gates_forward, &gates, ARR(x, 64), ARR(x, 63), ARR(x, 62), ARR(x, 61), ARR(x, 60), ARR(x, 59)),
        DT_ERR_ARG, "delta_gates");
    assert_fails(TRY(norm_gate_forward, &norm, ARR(x, 64), ARR(x, 63), ARR(x, 62), 4, ARR(x, 61), NULL), DT_ERR_ARG,
                 "norm_gate");
}

int main(void) { return run_with_each_isa() != 0; }
