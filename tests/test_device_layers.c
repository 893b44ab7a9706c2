// QUICK: cudasim
/* test_device_layers.c - elementwise operations, embedding, norms and dropout on every instruction set, compared with
 * double.
 * DEVICES: cpu queue */
#include "device_fixture.h"

static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F16};
enum { N_TYPES = sizeof types / sizeof types[0] };
static const int64_t lengths[] = {1, 3, 17, 64, 1000, 40001}; /* below and beyond a vector, beyond two chunks */
enum { N_LENGTHS = sizeof lengths / sizeof lengths[0] };

/* ---- conversions and sums ---------------------------------------------------------------------------------------- */

TEST(conversion_rounds_like_the_scalar_function)
{
    fixture *f = *state;
    enum { N = 4096 };
    ref_array x = ref_new(DT_F32, N), back = ref_new(DT_F32, N);
    uint32_t *bits = x.p;
    for (int i = 0; i < N; i++) bits[i] = (uint32_t)dt_mix64((uint64_t)i); /* all kinds of values, NaN and Inf too */
    for (int i = 0; i < 256; i++) bits[i] = (uint32_t)i << 24 | 0x8000u | ((uint32_t)i & 1) << 16; /* ties of bf16 */
    bits[256] = 0x7fffffffu, bits[257] = 0xff800001u, bits[258] = 0x7f7fffffu, bits[259] = 0x7f800000u;
    for (uint32_t i = 0; i < 1024; i++) /* values that fp16 represents, next to its ties and on them */
        bits[512 + i] = (i & 1) << 31 | (96 + i / 2 % 50) << 23 | (i * 37 & 1023) << 13 | (i * 5 % 3 + 0xfff);
    for (int t = 1; t < N_TYPES; t++) {
        ref_array h = ref_new(types[t], N);
        RUN(convert, ON(x), DT_F32, ON(h), types[t], N);
        RUN(convert, ON(h), types[t], ON(back), DT_F32, N);
        for (int i = 0; i < N; i++) {
            uint16_t want[2]; /* of a float's size */
            dt_set_element(want, types[t], 0, ((float *)x.p)[i]);
            if (isnan(((float *)x.p)[i])) { /* which NaN is the device's own affair */
                assert_true(isnan(((float *)back.p)[i]));
                continue;
            }
            assert_int_equal(((uint16_t *)h.p)[i], want[0]);
            assert_true(((float *)back.p)[i] == dt_element(want, types[t], 0));
        }
        ref_drop(&h);
    }
    ref_drop(&x), ref_drop(&back);
}

TEST(sums_round_once)
{
    fixture *f = *state;
    for (int way = 0; way < 2 * N_TYPES * N_TYPES; way++)
        for (int l = 0; l < N_LENGTHS; l++) {
            const int64_t n = lengths[l];
            const dt_dtype src = types[way % N_TYPES], dst = types[way / N_TYPES % N_TYPES];
            const bool onto = way >= N_TYPES * N_TYPES;
            ref_array x = ref_random(src, n, 1, 3), y = onto ? ref_random(dst, n, 2, 3) : ref_new(dst, n),
                      z = ref_random(src, n, 3, 3);
            double *x64 = ref_doubles(&x), *want = ref_doubles(&y), *sum = ref_doubles(&z);
            for (int64_t i = 0; i < n; i++) want[i] = (onto ? want[i] : 0) + x64[i], sum[i] += x64[i];
            RUN(add_into, ON(x), src, ON(y), dst, onto, n);
            assert_true(ref_near(&y, want, 0x1p-24 * 6, "add_into"));
            RUN(add, ON(x), ON(z), ON(z), src, n); /* in place */
            assert_true(ref_near(&z, sum, 0x1p-24 * 6, "add"));
            for (int64_t i = 0; i < n; i++) sum[i] = (double)0.7f * x64[i];
            RUN(scale, ON(x), 0.7f, ON(z), src, n);
            assert_true(ref_near(&z, sum, 0x1p-24 * 6, "scale"));
            RUN(scale, ON(z), 1.0f, ON(z), src, n); /* in place */
            assert_true(ref_near(&z, sum, 0x1p-24 * 6, "scale by 1"));
            ref_drop(&x), ref_drop(&y), ref_drop(&z), free(x64), free(want), free(sum);
        }
}

TEST(rows_survive_a_round_trip)
{
    fixture *f = *state;
    const int32_t index[] = {4, 0, 6, 1};
    for (int t = 0; t < N_TYPES; t++) {
        const int64_t width = 33;
        ref_array x = ref_random(types[t], 7 * width, 1, 1), some = ref_new(types[t], 4 * width),
                  y = ref_new(types[t], 7 * width);
        RUN(gather_rows, ON(x), ARR(index, 4), ON(some), 4, width, types[t]);
        RUN(scatter_rows, ON(some), ARR(index, 4), ON(y), 4, width, types[t]);
        for (int64_t r = 0; r < 7; r++)
            for (int64_t c = 0; c < width; c++) {
                const bool moved = r == 4 || r == 0 || r == 6 || r == 1;
                assert_true(moved ? ref_get(&y, r * width + c) == ref_get(&x, r * width + c)
                                  : isnan(ref_get(&y, r * width + c)));
            }
        ref_drop(&x), ref_drop(&some), ref_drop(&y);
    }
}

TEST(rows_can_be_left_out)
{
    fixture *f = *state;
    const int32_t index[] = {-1, 2, -1, 0, -7};
    for (int t = 0; t < N_TYPES; t++)
        for (int64_t width = 1; width <= 70; width += 23) {
            const size_t nbytes = (size_t)width * dt_dtype_size(types[t]);
            ref_array x = ref_random(types[t], 3 * width, 1, 1), some = ref_new(types[t], 5 * width),
                      y = ref_random(types[t], 3 * width, 2, 1), was = ref_copy(&y);
            RUN(gather_rows, ON(x), ARR(index, 5), ON(some), 5, width, types[t]);
            RUN(scatter_rows, ON(some), ARR(index, 5), ON(y), 5, width, types[t]);
            for (int64_t r = 0; r < 5; r++)
                for (int64_t c = 0; c < width; c++)
                    assert_true(ref_get(&some, r * width + c) ==
                                (index[r] < 0 ? 0 : ref_get(&x, index[r] * width + c)));
            assert_memory_equal(y.p, x.p, nbytes);
            assert_memory_equal((char *)y.p + nbytes, (char *)was.p + nbytes, nbytes);
            assert_memory_equal((char *)y.p + 2 * nbytes, (char *)x.p + 2 * nbytes, nbytes);
            ref_drop(&x), ref_drop(&some), ref_drop(&y), ref_drop(&was);
        }
}

TEST(copy_and_zero)
{
    fixture *f = *state;
    for (int l = 0; l < N_LENGTHS; l++) {
        ref_array x = ref_random(DT_BF16, 20 * lengths[l], 1, 1), y = ref_new(DT_BF16, 20 * lengths[l]);
        const size_t nbytes = (size_t)x.n * 2;
        RUN(copy, ON(y), ON(x), nbytes);
        assert_memory_equal(x.p, y.p, nbytes);
        RUN(zero, ON(y), nbytes);
        for (size_t i = 0; i < nbytes; i++) assert_int_equal(((char *)y.p)[i], 0);
        ref_drop(&x), ref_drop(&y);
    }
}

/* ---- activations ------------------------------------------------------------------------------------------------- */

/* Values over the range where something happens, and far outside. Rounding: the step s is within 3 units of 2^-24
 * (argument of the exponential up to 20 with one rounding: relative 20 * 2^-24 where s is not yet 0 or 1, but s times
 * it stays below 4 * 2^-24), the matmul with x adds one; slopes add x ds, |x ds| < 1. */
static double act_error(double x) { return 0x1p-24 * 16 * (fabs(x) < 8 ? 1 + fabs(x) : 9); }

TEST(activations_and_their_slopes)
{
    fixture *f = *state;
    for (int act = 0; act < DT_N_ACT; act++)
        for (int t = 0; t < N_TYPES; t++)
            for (int l = 0; l < N_LENGTHS; l++) {
                const int64_t n = lengths[l];
                ref_array x = ref_random(types[t], n, 1, l % 2 ? 6 : 100), dy = ref_random(types[t], n, 2, 1),
                          y = ref_new(types[t], n);
                double *want = ref_doubles(&x), *grad = ref_doubles(&dy), worst = 0;
                for (int64_t i = 0; i < n; i++) {
                    double slope;
                    worst = fmax(worst, act_error(want[i]));
                    want[i] = ref_act((dt_activation)act, want[i], &slope);
                    grad[i] *= slope;
                }
                RUN(act_forward, (dt_activation)act, ON(x), ON(y), types[t], n);
                assert_true(ref_near(&y, want, worst, "act_forward"));
                RUN(act_backward, (dt_activation)act, ON(x), ON(dy), ON(dy), types[t], n);
                assert_true(ref_near(&dy, grad, worst, "act_backward"));
                ref_drop(&x), ref_drop(&dy), ref_drop(&y), free(want), free(grad);
            }
}

TEST(activations_keep_their_limits)
{
    fixture *f = *state;
    for (int act = 0; act < DT_N_ACT; act++) {
        float x[8] = {1e30f, -1e30f, 0, 200, -200, NAN, 3e38f, -3e38f}, y[8] = {0};
        RUN(act_forward, (dt_activation)act, ARR(x, 8), ARR(y, 8), DT_F32, 8);
        assert_true(y[0] == x[0] && y[1] == 0 && y[2] == 0 && y[3] == 200 && y[4] == 0 && isnan(y[5]) && y[6] == x[6] &&
                    y[7] == 0);
    }
}

/* In a vector, in the remainder after the last one or alone: results of a row must not depend on its position in the
 * batch. */
TEST(an_element_has_the_same_bits_wherever_it_lies)
{
    enum { N = 100, MOST = 40 };
    fixture *f = *state;
    for (int act = 0; act < DT_N_ACT; act++)
        for (int t = 0; t < N_TYPES; t++) {
            const size_t e = dt_dtype_size(types[t]);
            ref_array piece = ref_new(types[t], N), slope = ref_new(types[t], N);
            ref_array x = ref_random(types[t], N, 1, 5), dy = ref_random(types[t], N, 2, 1), y = ref_new(types[t], N),
                      dx = ref_new(types[t], N);
            RUN(act_forward, (dt_activation)act, ON(x), ON(y), types[t], N);
            RUN(act_backward, (dt_activation)act, ON(x), ON(dy), ON(dx), types[t], N);
            for (size_t from = 0; from < N; from += 7)
                for (size_t n = 1; n <= MOST && from + n <= N; n += 3) {
                    RUN(act_forward, (dt_activation)act, ON_FROM(x, from), ON_FROM(piece, from), types[t], (int64_t)n);
                    RUN(act_backward, (dt_activation)act, ON_FROM(x, from), ON_FROM(dy, from), ON_FROM(slope, from),
                        types[t], (int64_t)n);
                    assert_memory_equal((char *)piece.p + from * e, (char *)y.p + from * e, n * e);
                    assert_memory_equal((char *)slope.p + from * e, (char *)dx.p + from * e, n * e);
                }
            ref_drop(&x), ref_drop(&dy), ref_drop(&y), ref_drop(&dx), ref_drop(&piece), ref_drop(&slope);
        }
}

TEST(gated_units)
{
    fixture *f = *state;
    for (int act = 0; act < DT_N_ACT; act++)
        for (int way = 0; way < 4 * N_TYPES; way++) {
            const int t = way % N_TYPES;
            const float limit = way / N_TYPES % 2 ? 1.5f : 0;
            const int64_t rows = 5, width = way >= 2 * N_TYPES ? 72 : act * 120 + 33; /* 1 to 3 blocks of the kernels */
            ref_array g = ref_random(types[t], rows * 2 * width, 1, 4), dy = ref_random(types[t], rows * width, 2, 1),
                      y = ref_new(types[t], rows * width);
            double *g64 = ref_doubles(&g), *dy64 = ref_doubles(&dy),
                   *want = calloc((size_t)(rows * width), sizeof *want);
            double *dg = calloc((size_t)(rows * 2 * width), sizeof *dg);
            for (int64_t i = 0; i < rows * width; i++) {
                const int64_t gate = limit > 0 ? 2 * i : i / width * 2 * width + i % width,
                              up = gate + (limit > 0 ? 1 : width);
                const bool cut = limit > 0 && g64[gate] > limit, up_cut = limit > 0 && fabs(g64[up]) > limit;
                double slope, a = ref_act((dt_activation)act, cut ? limit : g64[gate], &slope),
                              u = up_cut ? copysign(limit, g64[up]) : g64[up];
                if (limit > 0) u += 1;
                want[i] = a * u;
                dg[gate] = cut ? 0 : dy64[i] * u * slope;
                dg[up] = up_cut ? 0 : dy64[i] * a;
            }
            RUN(glu_forward, (dt_activation)act, limit, ON(g), ON(y), types[t], rows, width);
            assert_true(ref_near(&y, want, 4 * act_error(4), "glu_forward"));
            RUN(glu_backward, (dt_activation)act, limit, ON(g), ON(dy), ON(g), types[t], rows, width);
            assert_true(ref_near(&g, dg, 4 * act_error(4), "glu_backward"));
            ref_drop(&g), ref_drop(&dy), ref_drop(&y), free(g64), free(dy64), free(want), free(dg);
        }
}

/* ---- embedding --------------------------------------------------------------------------------------------------- */

TEST(embedding_and_its_gradient)
{
    fixture *f = *state;
    const int32_t token[] = {3, 0, 3, 7, 3, 0}, order[] = {1, 5, 0, 2, 4, 3}, pos[] = {0, 1, 2, 0, 1, 2};
    for (int way = 0; way < 2 * N_TYPES * N_TYPES; way++) {
        const dt_dtype dt = types[way % N_TYPES], gt = types[way / N_TYPES % N_TYPES];
        const bool positions = way >= N_TYPES * N_TYPES;
        const int64_t n_tok = 6, width = positions ? 700 : 5;
        ref_array wte = ref_random(dt, 8 * width, 1, 1), wpe = ref_random(dt, 3 * width, 2, 1),
                  out = ref_new(dt, n_tok * width);
        ref_array dout = ref_random(dt, n_tok * width, 3, 1), grad = ref_random(gt, 8 * width, 4, 1);
        double *wte64 = ref_doubles(&wte), *wpe64 = ref_doubles(&wpe), *dout64 = ref_doubles(&dout),
               *want = ref_doubles(&grad);
        double *sum = calloc((size_t)(n_tok * width), sizeof *sum);
        for (int64_t i = 0; i < n_tok * width; i++) {
            const int64_t t = i / width, c = i % width;
            sum[i] = wte64[token[t] * width + c] + (positions ? wpe64[pos[t] * width + c] : 0);
            want[token[t] * width + c] += dout64[i];
        }
        RUN(embedding_forward, ARR(token, 6), ARR(pos, 6), ON(wte), positions ? ON(wpe) : NULL, ON(out), n_tok, width,
            dt);
        assert_true(ref_near(&out, sum, 0x1p-24 * 2, "embedding"));
        RUN(embedding_backward, ON(dout), ARR(token, 6), ARR(order, 6), ON(grad), n_tok, width, dt, gt);
        assert_true(ref_near(&grad, want, 0x1p-24 * 4 * 4, "embedding gradient"));
        ref_drop(&wte), ref_drop(&wpe), ref_drop(&out), ref_drop(&dout), ref_drop(&grad);
        free(wte64), free(wpe64), free(dout64), free(want), free(sum);
    }
}

/* Ids that fill several turns of the loop, or pieces of 32 that a device may cut the order into, among others. One
 * begins in the middle of a piece, one ends with the piece it begins in, and one begins where a piece does. */
TEST(a_frequent_token_is_summed_once)
{
    fixture *f = *state;
    enum { N = 1000 };
    static const int64_t begins[] = {0, 10, 310, 320, 900, N};
    enum { N_IDS = sizeof begins / sizeof *begins - 1 };
    int32_t id[N], order[N];
    for (int i = 0, v = 0; i < N; i++) {
        v += i == begins[v + 1];
        id[i] = v, order[i] = i;
    }
    for (int way = 0; way < 2 * N_TYPES; way++) {
        const dt_dtype dt = types[way % N_TYPES];
        const int64_t width = way >= N_TYPES ? 520 : 3;
        ref_array dout = ref_new(dt, N * width), grad = ref_new(DT_F32, N_IDS * width);
        for (int64_t i = 0; i < dout.n; i++)
            ref_set(&dout, i, (double)(1 + i % width % 7)); /* sums of these are exact */
        for (int64_t i = 0; i < grad.n; i++) ref_set(&grad, i, (double)(i % 5));
        RUN(embedding_backward, ON(dout), ARR(id, N), ARR(order, N), ON(grad), N, width, dt, DT_F32);
        for (int64_t i = 0; i < grad.n; i++) {
            const int64_t times = begins[i / width + 1] - begins[i / width];
            assert_true(ref_get(&grad, i) == (double)(i % 5 + times * (1 + i % width % 7)));
        }
        ref_drop(&dout), ref_drop(&grad);
    }
}

/* GPT-2's vocabulary, first and last row among those that are used; the others stay as they were. */
TEST(embedding_of_a_large_vocabulary)
{
    fixture *f = *state;
    enum { V = 50257, N = 5 };
    static const int32_t token[N] = {V - 1, 0, 31999, V - 1, 32768}, order[N] = {1, 2, 4, 0, 3};
    for (int way = 0; way < 2 * N_TYPES; way++) {
        const dt_dtype dt = types[way % N_TYPES];
        const int64_t width = way < N_TYPES ? 3 : 72;
        ref_array wte = ref_random(dt, V * width, 1, 1), out = ref_new(dt, N * width),
                  dout = ref_random(dt, N * width, 2, 1), grad = ref_random(DT_F32, V * width, 3, 1);
        double *want = ref_doubles(&grad);
        RUN(embedding_forward, ARR(token, N), NULL, ON(wte), NULL, ON(out), N, width, dt);
        RUN(embedding_backward, ON(dout), ARR(token, N), ARR(order, N), ON(grad), N, width, dt, DT_F32);
        for (int64_t i = 0; i < N * width; i++) {
            const int64_t at = token[i / width] * width + i % width;
            assert_true(ref_get(&out, i) == ref_get(&wte, at));
            want[at] += ref_get(&dout, i);
        }
        assert_true(ref_near(&grad, want, 0x1p-24 * 4, "embedding gradient"));
        ref_drop(&wte), ref_drop(&out), ref_drop(&dout), ref_drop(&grad), free(want);
    }
}

/* ---- norms ------------------------------------------------------------------------------------------------------- */

typedef struct norm_case {
    int64_t n_rows, width, group, group_ld, y_group_ld;
} norm_case;

static const norm_case norm_cases[] = {{1, 1, 1, 1, 1},           {3, 7, 1, 7, 7},
                                       {130, 64, 1, 64, 64},      {5, 768, 1, 800, 768},
                                       {12, 16, 4, 70, 64},       {200, 33, 2, 66, 90},
                                       {84, 128, 3, 512, 400},    {70, 1600, 1, 1600, 1600},
                                       {11, 4096, 1, 4096, 4096}, {3, 20000, 1, 20000, 20000}};

enum norm_form { RMS, RMS_PLUS_ONE, SCALES, LAYER };
static dt_rmsnorm rows_of(const norm_case *k, enum norm_form form, dt_dtype dt)
{
    return (dt_rmsnorm){.n_rows = k->n_rows,
                        .width = k->width,
                        .group = k->group,
                        .group_ld = k->group_ld,
                        .y_group_ld = k->y_group_ld,
                        .eps = 1e-5f,
                        .plus_one = form == RMS_PLUS_ONE,
                        .dt = dt,
                        .only_scales = form == SCALES};
}

static int64_t element_of(const norm_case *k, int64_t i, int64_t ld)
{
    const int64_t r = i / k->width;
    return r / k->group * ld + r % k->group * k->width + i % k->width;
}

/* The rows of a layout as one dense matrix, and back to an array for ref_near. */
static ref_array dense(const norm_case *k, const ref_array *a, int64_t ld)
{
    ref_array d = ref_new(a->dt, k->n_rows * k->width);
    for (int64_t i = 0; i < d.n; i++) ref_set(&d, i, ref_get(a, element_of(k, i, ld)));
    return d;
}

/* Norms: xhat carries the rounding of mean and rstd, sums of width terms in float, 16 ways at least 4: width/4
 * roundings at worst, sqrt of it in practice. Values are of size |x rstd| <= sqrt(width), in fact about 2. */
static double norm_error(const norm_case *k) { return 0x1p-24 * (8 + sqrt((double)k->width)) * 4; }

/* Of a frozen norm the gradients of weight and bias are not asked for; dx has the same bits. start: what it is added
 * to. */
static void expect_same_dx_without_weights(fixture *f, const norm_case *k, ref_array *x, ref_array *w, ref_array *mean,
                                           ref_array *rstd, ref_array *dy, const ref_array *start,
                                           const ref_array *want, enum norm_form form)
{
    const bool add = start != NULL, layer = form == LAYER;
    const dt_rmsnorm n = rows_of(k, form, x->dt);
    ref_array dx = ref_new(want->dt, want->n), scratch = ref_new(DT_F32, OPS(f)->norm_scratch_elems(&f->dev, k->width));
    for (int64_t i = 0; i < want->n && add; i++) ref_set(&dx, i, ref_get(start, i));
    if (layer)
        RUN(layernorm_backward, ON(*x), ON(*w), ON(*mean), ON(*rstd), ON(*dy), ON(dx), add, NULL, NULL, DT_F32, false,
            k->n_rows, k->width, ON(scratch), want->dt);
    else
        RUN(rmsnorm_backward, &n, ON(*x), ON(*w), ON(*rstd), ON(*dy), ON(dx), add, NULL, DT_F32, false, ON(scratch));
    assert_memory_equal(dx.p, want->p, ref_bytes(want));
    ref_drop(&dx), ref_drop(&scratch);
}

/* Of LayerNorm's weight and bias one may be frozen. */
static void expect_each_gradient_alone(fixture *f, const norm_case *k, ref_array *x, ref_array *w, ref_array *mean,
                                       ref_array *rstd, ref_array *dy, const ref_array *dw, const ref_array *db)
{
    for (int bias = 0; bias < 2; bias++) {
        const ref_array *want = bias ? db : dw;
        ref_array one = ref_new(want->dt, want->n), dx = ref_new(x->dt, x->n),
                  scratch = ref_new(DT_F32, OPS(f)->norm_scratch_elems(&f->dev, k->width));
        RUN(layernorm_backward, ON(*x), ON(*w), ON(*mean), ON(*rstd), ON(*dy), ON(dx), false, bias ? NULL : ON(one),
            bias ? ON(one) : NULL, want->dt, false, k->n_rows, k->width, ON(scratch), x->dt);
        assert_memory_equal(one.p, want->p, ref_bytes(want));
        ref_drop(&one), ref_drop(&dx), ref_drop(&scratch);
    }
}

static void check_norm(fixture *f, const norm_case *k, dt_dtype dt, dt_dtype gt, enum norm_form form, bool add)
{
    const bool layer = form == LAYER;
    const dt_rmsnorm rows = rows_of(k, form, dt);
    const float eps = rows.eps;
    const int64_t n = k->n_rows * k->width, n_x = k->n_rows / k->group * k->group_ld,
                  n_y = k->n_rows / k->group * k->y_group_ld;
    ref_array x = ref_random(dt, n_x, 1, 2), w = ref_random(dt, k->width, 2, 1), b = ref_random(dt, k->width, 3, 1),
              y = ref_new(dt, n_y);
    ref_array dy = ref_random(dt, n_y, 4, 1), dx = add ? ref_random(dt, n_x, 5, 1) : ref_new(dt, n_x),
              mean = ref_new(DT_F32, k->n_rows), rstd = ref_new(DT_F32, k->n_rows);
    ref_array dw = add ? ref_random(gt, k->width, 6, 1) : ref_new(gt, k->width),
              db = add ? ref_random(gt, k->width, 7, 1) : ref_new(gt, k->width);
    ref_array scratch = ref_new(DT_F32, OPS(f)->norm_scratch_elems(&f->dev, k->width));
    ref_array x_dense = dense(k, &x, k->group_ld), dy_dense = dense(k, &dy, k->y_group_ld),
              dx_was = dense(k, &dx, k->group_ld), dx_start = add ? ref_random(dt, n_x, 5, 1) : ref_new(dt, 0);
    double *x64 = ref_doubles(&x_dense), *w64 = ref_doubles(&w), *b64 = ref_doubles(&b), *dy64 = ref_doubles(&dy_dense),
           *dw64 = ref_doubles(&dw), *db64 = ref_doubles(&db);
    double *y64 = calloc((size_t)n, 8), *dx64 = calloc((size_t)n, 8), *mean64 = calloc((size_t)k->n_rows, 8),
           *rstd64 = calloc((size_t)k->n_rows, 8), *dw_start = calloc((size_t)k->width, 8);
    for (int64_t c = 0; c < k->width && !add; c++) dw64[c] = db64[c] = 0;
    for (int64_t c = 0; c < k->width && form == RMS_PLUS_ONE; c++) w64[c] += 1;
    memcpy(dw_start, dw64, (size_t)k->width * 8);
    ref_norm_forward(x64, w64, layer ? b64 : NULL, y64, mean64, rstd64, k->n_rows, k->width, (double)eps);
    ref_norm_backward(x64, w64, mean64, rstd64, dy64, dx64, dw64, layer ? db64 : NULL, k->n_rows, k->width);
    if (form == SCALES) {
        memcpy(dw64, dw_start, (size_t)k->width * 8);
        for (int64_t r = 0; r < k->n_rows; r++) rstd64[r] = 1;
        for (int64_t i = 0; i < n; i++) {
            y64[i] = x64[i] * w64[i % k->width];
            dx64[i] = dy64[i] * w64[i % k->width];
            dw64[i % k->width] += dy64[i] * x64[i];
        }
    }
    for (int64_t i = 0; i < n && add; i++) dx64[i] += ref_get(&dx_was, i);
    if (layer) {
        RUN(layernorm_forward, ON(x), ON(w), ON(b), ON(y), ON(mean), ON(rstd), k->n_rows, k->width, eps, dt);
        RUN(layernorm_backward, ON(x), ON(w), ON(mean), ON(rstd), ON(dy), ON(dx), add, ON(dw), ON(db), gt, add,
            k->n_rows, k->width, ON(scratch), dt);
        assert_true(ref_near(&mean, mean64, norm_error(k), "mean"));
    } else {
        RUN(rmsnorm_forward, &rows, ON(x), ON(w), ON(y), ON(rstd));
        RUN(rmsnorm_backward, &rows, ON(x), ON(w), ON(rstd), ON(dy), ON(dx), add, ON(dw), gt, add, ON(scratch));
    }
    expect_same_dx_without_weights(f, k, &x, &w, &mean, &rstd, &dy, add ? &dx_start : NULL, &dx, form);
    if (layer && !add) expect_each_gradient_alone(f, k, &x, &w, &mean, &rstd, &dy, &dw, &db);
    const double large = (1 + ref_largest(rstd64, k->n_rows)) *
                         (form == RMS_PLUS_ONE ? 2 : 1); /* a row of one element may have any variance */
    ref_array y_dense = dense(k, &y, k->y_group_ld), dx_dense = dense(k, &dx, k->group_ld);
    assert_true(ref_near(&rstd, rstd64, norm_error(k) * large, "rstd"));
    /* RMSNorm of plain weights in 16 bits rounds xhat first: half a unit of |xhat weight| <= 8 more */
    const double inner = form == RMS && dt != DT_F32 ? dt_roundoff(dt) / 2 * 8 : 0;
    assert_true(ref_near(&y_dense, y64, norm_error(k) * large + inner, "norm forward"));
    assert_true(ref_near(&dx_dense, dx64, norm_error(k) * large * large, "norm dx"));
    assert_true(ref_near(&dw, dw64, norm_error(k) * large * sqrt((double)k->n_rows), "norm dweight"));
    if (layer) assert_true(ref_near(&db, db64, norm_error(k) * sqrt((double)k->n_rows), "norm dbias"));
    ref_array *const all[] = {&x,  &w,       &b,       &y,        &dy,     &dx,      &mean,     &rstd,    &dw,
                              &db, &scratch, &x_dense, &dy_dense, &dx_was, &y_dense, &dx_dense, &dx_start};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) ref_drop(all[i]);
    free(x64), free(w64), free(b64), free(dy64), free(dw64), free(db64), free(y64), free(dx64), free(mean64),
        free(rstd64), free(dw_start);
}

TEST(norms_and_their_gradients)
{
    for (size_t i = 0; i < sizeof norm_cases / sizeof norm_cases[0]; i++)
        for (int way = 0; way < 12; way++) {
            static const dt_dtype of_x[] = {DT_F32, DT_F32, DT_BF16, DT_BF16, DT_F16, DT_F16},
                                  of_grads[] = {DT_F32, DT_BF16, DT_F32, DT_BF16, DT_F32, DT_F16};
            const norm_case *k = &norm_cases[i];
            const dt_dtype dt = of_x[way % 6], gt = of_grads[way % 6];
            const bool add = way >= 6;
            check_norm(*state, k, dt, gt, RMS, add);
            check_norm(*state, k, dt, gt, RMS_PLUS_ONE, add);
            check_norm(*state, k, dt, gt, SCALES, add);
            if (k->group == 1 && k->group_ld == k->width && k->y_group_ld == k->width && k->width > 1)
                check_norm(*state, k, dt, gt, LAYER, add);
        }
}

TEST(norm_gradients_may_go_over_dy)
{
    fixture *f = *state;
    enum { ROWS = 9, WIDTH = 40 };
    ref_array x = ref_random(DT_F32, ROWS * WIDTH, 1, 1), w = ref_random(DT_F32, WIDTH, 2, 1),
              dy = ref_random(DT_F32, ROWS * WIDTH, 3, 1);
    ref_array dx = ref_new(DT_F32, ROWS * WIDTH), y = ref_new(DT_F32, ROWS * WIDTH),
              s = ref_new(DT_F32, OPS(f)->norm_scratch_elems(&f->dev, WIDTH));
    ref_array mean = ref_new(DT_F32, ROWS), rstd = ref_new(DT_F32, ROWS), dw = ref_new(DT_F32, WIDTH),
              db = ref_new(DT_F32, WIDTH);
    for (int layer = 0; layer < 2; layer++) {
        ref_array in_place = ref_copy(&dy);
        for (int way = 0; way < 2; way++) {
            ref_array *from = way ? &in_place : &dy, *to = way ? &in_place : &dx;
            if (layer) {
                RUN(layernorm_forward, ON(x), ON(w), ON(w), ON(y), ON(mean), ON(rstd), ROWS, WIDTH, 1e-5f, DT_F32);
                RUN(layernorm_backward, ON(x), ON(w), ON(mean), ON(rstd), ON(*from), ON(*to), false, ON(dw), ON(db),
                    DT_F32, false, ROWS, WIDTH, ON(s), DT_F32);
            } else {
                const dt_rmsnorm n = {ROWS, WIDTH, 1, WIDTH, WIDTH, 1e-5f, false, DT_F32, false};
                RUN(rmsnorm_forward, &n, ON(x), ON(w), ON(y), ON(rstd));
                RUN(rmsnorm_backward, &n, ON(x), ON(w), ON(rstd), ON(*from), ON(*to), false, ON(dw), DT_F32, false,
                    ON(s));
            }
        }
        assert_memory_equal(in_place.p, dx.p, ROWS * WIDTH * 4);
        ref_drop(&in_place);
    }
    ref_drop(&x), ref_drop(&w), ref_drop(&dy), ref_drop(&dx), ref_drop(&y), ref_drop(&s);
    ref_drop(&mean), ref_drop(&rstd), ref_drop(&dw), ref_drop(&db);
}

/* ---- dropout ----------------------------------------------------------------------------------------------------- */

TEST(dropout_takes_the_word_of_its_place)
{
    fixture *f = *state;
    const uint64_t token_key[3] = {7, 1ull << 40, dt_mix64(3)};
    static const int64_t widths[] = {1, 5, 255, 600};
    for (int w = 0; w < 4; w++)
        for (int way = 0; way < 3 * N_TYPES; way++) {
            const int64_t width = widths[w];
            const dt_dtype dt = types[way % N_TYPES];
            const bool adds = way >= N_TYPES;
            ref_array x = ref_random(dt, 3 * width, 1, 1), addend = ref_random(dt, 3 * width, 2, 1);
            ref_array *y = way < 2 * N_TYPES ? &x : &addend; /* alone, or with a sum, over either */
            double *want = ref_doubles(&x), *add = ref_doubles(&addend);
            for (int64_t i = 0; i < 3 * width; i++) {
                want[i] *= ref_dropout(0.3f, 99, token_key[i / width], (uint64_t)(i % width));
                if (adds) want[i] += add[i];
            }
            RUN(dropout, ON(x), adds ? ON(addend) : NULL, ON(*y), 0.3f, 99, ARR(token_key, 3), 3, width, dt);
            assert_true(ref_near(y, want, 0x1p-24 * 4, "dropout"));
            ref_drop(&x), ref_drop(&addend), free(want), free(add);
        }
}

TEST(noise_is_uniform_within_its_bound)
{
    fixture *f = *state;
    enum { ROWS = 3, WIDTH = 601 };
    const uint64_t token_key[ROWS] = {7, 1ull << 40, dt_mix64(3)};
    const float bound[ROWS] = {0.25f, 0, 3};
    for (int t = 0; t < N_TYPES; t++) {
        ref_array x = ref_random(types[t], ROWS * WIDTH, 1, 1);
        double *want = ref_doubles(&x), sum = 0, squares = 0;
        for (int64_t i = 0; i < ROWS * WIDTH; i++) {
            const double u = ref_noise(99, token_key[i / WIDTH], (uint64_t)(i % WIDTH));
            sum += u, squares += u * u;
            want[i] += (double)bound[i / WIDTH] * u;
        }
        RUN(add_noise, ON(x), ARR(bound, ROWS), 99, ARR(token_key, ROWS), ROWS, WIDTH, types[t]);
        assert_true(ref_near(&x, want, 0x1p-24 * 4, "noise"));
        /* mean 0 and variance 1/3, within four standard deviations */
        assert_true(fabs(sum) <= 4 * sqrt(ROWS * WIDTH / 3.0));
        assert_true(fabs(squares - ROWS * WIDTH / 3.0) <= 4 * sqrt(ROWS * WIDTH * 4 / 45.0));
        ref_drop(&x), free(want);
    }
}

/* int8 is only kept: rows of it move, and nothing is computed in it. */
TEST(a_type_that_is_only_kept_is_refused)
{
    fixture *f = *state;
    enum { ROWS = 4, WIDTH = 8, N = ROWS * WIDTH };
    const dt_dtype dt = DT_I8;
    ref_array x = ref_random(DT_F32, N, 1, 1), y = ref_new(DT_F32, N), w = ref_random(DT_F32, WIDTH, 2, 1);
    const int32_t index[ROWS] = {2, 0, 3, 1};
    RUN(gather_rows, ON(x), ARR(index, ROWS), ON(y), ROWS, WIDTH, dt);
    for (int r = 0; r < ROWS; r++)
        assert_memory_equal((char *)y.p + r * WIDTH * dt_dtype_size(dt),
                            (char *)x.p + index[r] * WIDTH * dt_dtype_size(dt), WIDTH * dt_dtype_size(dt));
    assert_int_equal(TRY(convert, ON(x), DT_F32, ON(y), dt, N), DT_ERR_ARG);
    assert_int_equal(TRY(add, ON(x), ON(x), ON(y), dt, N), DT_ERR_ARG);
    assert_int_equal(TRY(scale, ON(x), 2.0f, ON(y), dt, N), DT_ERR_ARG);
    assert_int_equal(TRY(add_into, ON(x), DT_F32, ON(y), dt, true, N), DT_ERR_ARG);
    assert_int_equal(TRY(act_forward, DT_ACT_GELU, ON(x), ON(y), dt, N), DT_ERR_ARG);
    const dt_rmsnorm n = {ROWS, WIDTH, 1, WIDTH, WIDTH, 1e-5f, false, dt, false};
    assert_int_equal(TRY(rmsnorm_forward, &n, ON(x), ON(w), ON(y), NULL), DT_ERR_ARG);
    assert_int_equal(TRY(bias_backward, ON(x), ROWS, WIDTH, WIDTH, DT_F32, ON(w), dt, false), DT_ERR_ARG);
    const dt_matmul mm = {.m = 2, .n = 2, .k = 2, .lda = 2, .ldb = 2, .ldc = 2, .dt = dt, .c_dtype = DT_F32};
    assert_fails(TRY(matmul, &mm, ON(x), ON(x), ON(y)), DT_ERR_ARG, dt_dtype_name(dt));
    ref_drop(&x), ref_drop(&y), ref_drop(&w);
}

int main(void) { return run_with_each_isa() != 0; }
