/* test_device_optimizer.c - optimizers and reductions on every instruction set; memory, buffers, and opening of the
 * device.
 * DEVICES: cpu queue */
#include "device_fixture.h"
#include "dtrain/device/block8.h"
#include <jansson.h>

enum { ONCE = 2 };

static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F16};
enum { N_TYPES = sizeof types / sizeof types[0] };

/* ---- optimizers -------------------------------------------------------------------------------------------------- */

static const int64_t lengths[] = {1, 17, 1000, 40001};
enum { N_WAYS = 2 * N_TYPES * (N_TYPES + 1) };

/* Is the requested extra output the rounded parameters? */
static bool is_rounded(const ref_array *out, const ref_array *p)
{
    bool same = true;
    for (int64_t j = 0; j < p->n && same; j++) {
        float rounded[1];
        dt_set_element(rounded, out->dt, 0, ((const float *)p->p)[j]);
        same = ref_get(out, j) == (double)dt_element(rounded, out->dt, 0);
    }
    return same;
}

/* way: the gradient's type, what receives the parameters, and where decay is. */
static void check_adamw(fixture *f, int64_t n, int way)
{
    const dt_dtype gt = types[way % N_TYPES];
    const int param_kind = way / N_TYPES % (N_TYPES + 1); /* 0: none */
    const bool l2 = way >= N_WAYS / 2;
    dt_adamw o = usual_adamw(0.01f, 1 - 0.9f * 0.9f, 1 - 0.95f * 0.95f);
    if (l2) o.weight_decay = 0, o.l2 = 0.1f;
    o.grad_scale = 0.5f;
    ref_array g = ref_random(gt, n, 1, 2), p = ref_random(DT_F32, n, 2, 1), m = ref_random(DT_F32, n, 3, 0.1),
              v = ref_random(DT_F32, n, 4, 0.5);
    for (int64_t j = 0; j < n; j++) ref_set(&v, j, fabs(ref_get(&v, j)));
    ref_array out = ref_new(param_kind ? types[param_kind - 1] : DT_F32, n);
    double *g64 = ref_doubles(&g), *p64 = ref_doubles(&p), *m64 = ref_doubles(&m), *v64 = ref_doubles(&v);
    ref_adamw(&o, g64, p64, m64, v64, n);
    RUN(adamw_step, &o, ON(g), gt, ON(p), ON(m), ON(v), param_kind ? ON(out) : NULL, out.dt, n);
    /* u = 2^-24: half the distance of floats below 1. ref_near itself allows u of the result. |g| <= 1, |m| <= 0.1, v
     * <= 0.5, |p| <= 1. m: 1 - beta is exact; c g, beta m and their sum round once each, and |m| <= 0.19 after it:
     * under 3 u. v: c g g rounds twice, beta v and the sum once, all below 0.53: under 3 u. p: keep = 1 - lr wd, keep p
     * and the sum round once each, below 1.2: 4 u. The step |s| = 0.0165 |m| / sqrt(v) has some 10 relative roundings
     * with those inside m and v (halved by the root). v is at least 0.05 g^2 and uniform besides: of 40001 values the
     * least is about 2.5e-4, so |s| <= 0.2 and its error 2 u. With one u to spare for each of the two: 8 u. With l2 p,
     * g may be 1.1 and rounds twice more, by a u together: 0.1 u in m and v, 0.2 u in s, and keep is exact. */
    assert_true(ref_near(&m, m64, 0x1p-24 * 3, "m") && ref_near(&v, v64, 0x1p-24 * 3, "v") &&
                ref_near(&p, p64, 0x1p-24 * 8, "p"));
    assert_true(!param_kind || is_rounded(&out, &p));
    ref_drop(&g), ref_drop(&p), ref_drop(&m), ref_drop(&v), ref_drop(&out);
    free(g64), free(p64), free(m64), free(v64);
}

TEST(adamw_is_algorithm_2_and_adam_has_decay_in_the_gradient)
{
    for (int i = 0; i < 4; i++)
        for (int way = 0; way < N_WAYS; way++) check_adamw(*state, lengths[i], way);
}

static void check_sgd(fixture *f, int64_t n, int way)
{
    const dt_dtype gt = types[way % N_TYPES];
    const int param_kind = way / N_TYPES % (N_TYPES + 1);
    const bool momentum = way >= N_WAYS / 2;
    const dt_sgd o = {.lr = 0.01f, .momentum = momentum ? 0.9f : 0, .l2 = 0.1f, .grad_scale = 0.5f};
    ref_array g = ref_random(gt, n, 1, 2), p = ref_random(DT_F32, n, 2, 1), b = ref_random(DT_F32, n, 3, 1);
    ref_array out = ref_new(param_kind ? types[param_kind - 1] : DT_F32, n);
    double *g64 = ref_doubles(&g), *p64 = ref_doubles(&p), *b64 = ref_doubles(&b);
    ref_sgd(&o, g64, p64, momentum ? b64 : NULL, n);
    RUN(sgd_step, &o, ON(g), gt, ON(p), momentum ? ON(b) : NULL, param_kind ? ON(out) : NULL, out.dt, n);
    /* As above: |g| <= 1.1 after l2 p and the sum have rounded: 1.1 u. b <= 2: momentum b rounds by u / 2, the sum by
     * u: under 3 u. p <= 1.02: lr b rounds by less than u / 32, what b has is 0.03 u, the sum rounds by u: 2 u. */
    assert_true(ref_near(&b, b64, 0x1p-24 * 3, "momentum") && ref_near(&p, p64, 0x1p-24 * 2, "p"));
    assert_true(!param_kind || is_rounded(&out, &p));
    ref_drop(&g), ref_drop(&p), ref_drop(&b), ref_drop(&out), free(g64), free(p64), free(b64);
}

TEST(sgd_follows_its_momentum)
{
    for (int i = 0; i < 4; i++)
        for (int way = 0; way < N_WAYS; way++) check_sgd(*state, lengths[i], way);
}

/* ---- scaled sums ------------------------------------------------------------------------------------------------- */

/* way: the types of x, y and the result. */
static void check_add_scaled(fixture *f, int64_t n, int way)
{
    const dt_dtype xt = types[way % N_TYPES], yt = types[way / N_TYPES % N_TYPES], ot = types[way / N_TYPES / N_TYPES];
    ref_array x = ref_random(xt, n, 1, 2), y = ref_random(yt, n, 2, 2), out = ref_new(ot, n);
    double *want = ref_doubles(&x);
    for (int64_t i = 0; i < n; i++) want[i] = (double)0.7f * want[i] - (double)0.3f * ref_get(&y, i);
    RUN(add_scaled, 0.7f, ON(x), xt, -0.3f, ON(y), yt, ON(out), ot, n);
    assert_true(ref_near(&out, want, 0x1p-24 * 2, "a x + b y")); /* b y and the sum round once each, below 2 */
    if (yt == ot) {
        RUN(add_scaled, 0.7f, ON(x), xt, -0.3f, ON(y), yt, ON(y), ot, n);
        assert_memory_equal(y.p, out.p, ref_bytes(&out));
    }
    if (xt == ot && yt != ot) {
        RUN(add_scaled, 0.7f, ON(x), xt, -0.3f, ON(y), yt, ON(x), ot, n);
        assert_memory_equal(x.p, out.p, ref_bytes(&out));
    }
    ref_drop(&x), ref_drop(&y), ref_drop(&out), free(want);
}

TEST(scaled_sums_of_any_types)
{
    for (int i = 0; i < 4; i++)
        for (int way = 0; way < N_TYPES * N_TYPES * N_TYPES; way++) check_add_scaled(*state, lengths[i], way);
}

/* ---- states of fewer bits ---------------------------------------------------------------------------------------- */

/* Every element is a neighbour of x in bf16, chosen by its word; so however x is divided. */
TEST(stochastic_rounding_follows_its_words)
{
    fixture *f = *state;
    for (int i = 0; i < 4; i++)
        for (uint64_t first = 0; first < 5; first++) {
            const int64_t n = lengths[i];
            ref_array x = ref_random(DT_F32, n, 1, 2), y = ref_new(DT_BF16, n);
            RUN(round_stochastic, ON(x), ON(y), 7, 3, first, n);
            for (int64_t j = 0; j < n; j++) {
                uint32_t w[4], bits;
                dt_philox4x32(7, 3, (first + (uint64_t)j) / 4, w);
                memcpy(&bits, (const float *)x.p + j, sizeof bits);
                const uint32_t want = (bits + (w[(first + (uint64_t)j) % 4] & 0xffff)) >> 16;
                assert_int_equal(((const uint16_t *)y.p)[j], want);
            }
            ref_drop(&x), ref_drop(&y);
        }
}

/* The mean of many roundings is x: the standard deviation of a rounding is at most half of the distance between
 * neighbours, 2^-8 here, and that of the mean of 2^16 is 2^-17. */
TEST(stochastic_rounding_has_the_expected_value)
{
    fixture *f = *state;
    enum { N = 1 << 16 };
    float *x = malloc(N * sizeof *x);
    uint16_t *y = malloc(N * sizeof *y);
    static const float values[] = {1.001f, -1.0039f, 1.9999f};
    for (int v = 0; v < 3; v++) {
        double sum = 0;
        for (int i = 0; i < N; i++) x[i] = values[v];
        RUN(round_stochastic, ARR(x, N), ARR(y, N), 7, 3, 0, N);
        for (int i = 0; i < N; i++) sum += dt_bf16_to_float(y[i]);
        assert_true(fabs(sum / N - (double)values[v]) < 6 * 0x1p-17);
    }
    free(x), free(y);
}

TEST(stochastic_rounding_keeps_what_is_no_number)
{
    fixture *f = *state;
    float x[] = {INFINITY, -INFINITY, NAN, 0, -0.0f};
    uint16_t y[5] = {0};
    RUN(round_stochastic, ARR(x, 5), ARR(y, 5), 7, 3, 0, 5);
    assert_true(y[0] == 0x7f80 && y[1] == 0xff80 && isnan(dt_bf16_to_float(y[2])) && y[3] == 0 && y[4] == 0x8000);
}

static uint8_t nearest(const dt_map8 *map, float x)
{
    int best = 0;
    for (int c = 1; c < 256; c++)
        if (fabs((double)x - (double)map->value[c]) < fabs((double)x - (double)map->value[best])) best = c;
    return (uint8_t)best;
}

/* Codes are the nearest values, or one of two between which x lies in the middle but for rounding. */
static void check_blocks(fixture *f, int64_t n, bool positive)
{
    dt_map8 map;
    dt_map8_make(&map, positive);
    const int64_t n_blocks = dt_ceil_div(n, DT_BLOCK8);
    ref_array x = ref_random(DT_F32, n, 1, 2), back = ref_new(DT_F32, n);
    float *values = x.p, *absmax = malloc((size_t)n_blocks * sizeof *absmax);
    uint8_t *codes = malloc((size_t)n);
    for (int64_t i = 0; i < n; i++) values[i] = (positive ? fabsf(values[i]) : values[i]) * ldexpf(1, -(int)(i % 23));
    for (int64_t i = 0; i < dt_min_i64(n, 300); i++) values[i] = i < DT_BLOCK8 ? 0 : values[i]; /* a block of zeros */
    RUN(quantise_blocks, ON(x), ARR(codes, n), ARR(absmax, n_blocks), positive, n);
    RUN(dequantise_blocks, ARR(codes, n), ARR(absmax, n_blocks), ON(back), positive, n);
    for (int64_t i = 0; i < n; i++) {
        float most = 0;
        for (int64_t j = i / DT_BLOCK8 * DT_BLOCK8; j < dt_min_i64(n, (i / DT_BLOCK8 + 1) * DT_BLOCK8); j++)
            most = fmaxf(most, fabsf(values[j]));
        const float y = most > 0 ? values[i] / most : 0, found = map.value[codes[i]],
                    want = map.value[nearest(&map, y)];
        assert_true(absmax[i / DT_BLOCK8] == most && ref_get(&back, i) == (double)(found * most));
        if (y < 0 && want == 0)
            assert_true(found < 0 && found == map.value[nearest(&map, 0) - 1]);
        else
            assert_true(fabs((double)(found - y)) <= fabs((double)(want - y)) * (1 + 0x1p-20) + 1e-12);
    }
    ref_drop(&x), ref_drop(&back), free(absmax), free(codes);
}

TEST(blocks_of_eight_bits_are_the_nearest_values)
{
    for (int i = 0; i < 4; i++)
        for (int positive = 0; positive < 2; positive++) check_blocks(*state, lengths[i], positive);
}

/* ---- bitsandbytes' AdamW8bit (make_state8_fixtures.py) ----------------------------------------------------------- */

enum { N8 = 65 * 64, N8_BLOCKS = (N8 + DT_BLOCK8 - 1) / DT_BLOCK8, STEPS8 = 4 };

/* Multiples of powers of two in [-1, 1): step 0 is the start, the others are gradients. */
static float number8(int64_t step, int64_t i)
{
    const uint64_t h = dt_mix64((uint64_t)(i + 10000000 * step));
    return ldexpf((float)(h % 4096) / 2048 - 1, -(int)((h >> 40) % 8));
}

/* The bytes of an array in hexadecimal. */
static void read_hex(const json_t *text, void *out, size_t nbytes)
{
    const char *hex = json_string_value(text);
    assert_non_null(hex);
    assert_int_equal(strlen(hex), 2 * nbytes);
    for (size_t i = 0; i < nbytes; i++) {
        unsigned byte;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        ((uint8_t *)out)[i] = (uint8_t)byte;
    }
}

static double number_in(const json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

/* bitsandbytes multiplies by 1 - beta, dtrain by 1 less the float of beta: up to 1.3e-6 of a
 * state. A state between two codes may then take the other one. bitsandbytes' CPU code, unlike its CUDA code, gives
 * small negative values the code of 0. */
static void check_codes(const json_t *one, int k, const uint8_t *codes, const float *absmax)
{
    uint8_t want[N8];
    float want_absmax[N8_BLOCKS];
    int n_other = 0;
    dt_map8 map;
    dt_map8_make(&map, k == 1);
    read_hex(json_object_get(one, k ? "state2" : "state1"), want, sizeof want);
    read_hex(json_object_get(one, k ? "absmax2" : "absmax1"), want_absmax, sizeof want_absmax);
    for (int b = 0; b < N8_BLOCKS; b++) assert_true(fabsf(absmax[b] - want_absmax[b]) <= 0x1p-18f * want_absmax[b]);
    for (int i = 0; i < N8; i++) {
        assert_true(fabsf(map.value[codes[i]] - map.value[want[i]]) <= 0.03f); /* two intervals between values */
        n_other += codes[i] != want[i];
    }
    assert_true(n_other <= N8 / 1000);
}

static void check_adamw8(fixture *f, const json_t *one)
{
    static float grad[N8], p[N8], state[2][N8], absmax[2][N8_BLOCKS], want[N8];
    static uint8_t codes[2][N8];
    const double b1 = json_number_value(json_array_get(json_object_get(one, "betas"), 0)),
                 b2 = json_number_value(json_array_get(json_object_get(one, "betas"), 1)), lr = number_in(one, "lr"),
                 decay = number_in(one, "weight_decay");
    memset(codes, 0, sizeof codes), memset(absmax, 0, sizeof absmax);
    for (int i = 0; i < N8; i++) p[i] = number8(0, i);
    for (int step = 1; step <= STEPS8; step++) {
        dt_adamw o = {.lr = (float)lr, .beta1 = (float)b1, .beta2 = (float)b2, .eps = (float)number_in(one, "eps")};
        o.weight_decay = (float)decay, o.grad_scale = 1;
        o.fix1 = (float)(1 - pow(b1, step)), o.fix2 = (float)(1 - pow(b2, step));
        for (int i = 0; i < N8; i++) grad[i] = number8(step, i);
        for (int k = 0; k < 2; k++)
            RUN(dequantise_blocks, ARR(codes[k], N8), ARR(absmax[k], N8_BLOCKS), ARR(state[k], N8), k, N8);
        RUN(adamw_step, &o, ARR(grad, N8), DT_F32, ARR(p, N8), ARR(state[0], N8), ARR(state[1], N8), NULL, DT_F32, N8);
        for (int k = 0; k < 2; k++)
            RUN(quantise_blocks, ARR(state[k], N8), ARR(codes[k], N8), ARR(absmax[k], N8_BLOCKS), k, N8);
    }
    for (int k = 0; k < 2; k++) check_codes(one, k, codes[k], absmax[k]);
    read_hex(json_object_get(one, "param"), want, sizeof want);
    /* An element with another code moves on by another step. */
    int n_off = 0;
    for (int i = 0; i < N8; i++) n_off += fabs((double)(p[i] - want[i])) > STEPS8 * 0x1p-18;
    assert_true(n_off <= N8 / 1000);
}

TEST(states_of_eight_bits_are_bitsandbytes)
{
    json_t *all = json_load_file("tests/data/states8.json", 0, NULL);
    assert_non_null(all);
    for (int positive = 0; positive < 2; positive++) {
        dt_map8 map;
        float want[256];
        dt_map8_make(&map, positive);
        read_hex(json_object_get(json_object_get(all, "maps"), positive ? "positive" : "signed"), want, sizeof want);
        for (int c = 0; c < 256; c++) assert_true(fabsf(map.value[c] - want[c]) <= 0x1p-22f * fabsf(want[c]));
    }
    const json_t *cases = json_object_get(all, "cases");
    for (size_t i = 0; i < json_array_size(cases); i++) check_adamw8(*state, json_array_get(cases, i));
    json_decref(all);
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

TEST(sums_of_squares)
{
    fixture *f = *state;
    static const int64_t sizes[] = {0, 1, 17, 16385, 100003};
    for (int i = 0; i < 5; i++)
        for (int t = 0; t < N_TYPES; t++) {
            const int64_t n = sizes[i];
            ref_array x = ref_random(types[t], n, 1, 4);
            double sum = 0, got = -1, largest = 0;
            uint64_t exact = 0, fixed[2] = {0};
            float max = -1;
            for (int64_t j = 0; j < n; j++) {
                const double d = ref_get(&x, j);
                sum += d * d, largest = fmax(largest, fabs(d));
                exact += (uint64_t)rint(ldexp(d * d, 30));
            }
            RUN(sum_squares, ON(x), types[t], n, ARR(&got, 1));
            assert_true(fabs(got - sum) <= 1e-12 * sum); /* n 2^-53, any order */
            RUN(abs_max, ON(x), types[t], n, ARR(&max, 1));
            assert_true((double)max == largest);
            RUN(sum_squares_fixed, ON(x), types[t], n, 30, ARR(fixed, 2));
            assert_true(fixed[0] == exact && fixed[1] == 0);
            ref_drop(&x);
        }
}

/* Terms just below 2^52 make the low word overflow: 2^13 of them exceed 2^64. */
TEST(the_fixed_sum_carries)
{
    fixture *f = *state;
    enum { N = 22000 }; /* the sum of the pieces of 16384 carries, too */
    float *x = malloc(N * sizeof *x);
    for (int i = 0; i < N; i++) x[i] = 1.5f;
    uint64_t fixed[2] = {0};
    RUN(sum_squares_fixed, ARR(x, N), DT_F32, N, 50, ARR(fixed, 2)); /* 2.25 * 2^50 each */
    const unsigned __int128 want = (unsigned __int128)N * (9ull << 48);
    assert_true(fixed[0] == (uint64_t)want && fixed[1] == (uint64_t)(want >> 64));
    free(x);
}

TEST(non_finite_values_are_detected)
{
    fixture *f = *state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int b = 0; b < 3; b++)
        for (int at = 0; at < 40; at += 13)
            for (int t = 0; t < N_TYPES; t++) {
                ref_array x = ref_random(types[t], 40, 1, 1);
                double sum = 0;
                float max = 0;
                ref_set(&x, at, (double)bad[b]);
                RUN(sum_squares, ON(x), types[t], 40, ARR(&sum, 1));
                RUN(abs_max, ON(x), types[t], 40, ARR(&max, 1));
                assert_true(!isfinite(sum) && max == INFINITY);
                ref_drop(&x);
            }
}

/* ---- memory and opening ------------------------------------------------------------------------------------------ */

static void move(fixture *f, void *dst, const void *src, size_t nbytes)
{
    assert_int_equal(OPS(f)->copy(&f->dev, dst, src, nbytes, NULL), DT_OK);
    assert_int_equal(OPS(f)->stream_sync(&f->dev, NULL), DT_OK);
}

TEST_OF(ONCE, buffers_are_zeroed_aligned_and_counted)
{
    fixture *f = *state;
    static const size_t sizes[] = {1, 100, 1 << 20, (5 << 20) + 3};
    for (int i = 0; i < 12; i++) {
        const dt_memspace space = (dt_memspace)(i / 4);
        dt_buf b;
        assert_int_equal(dt_buf_alloc_zeroed(&b, &f->dev, space, sizes[i % 4], DT_MEM_GRADS), DT_OK);
        assert_int_equal((uintptr_t)b.ptr % 64, 0);
        char *host = malloc(sizes[i % 4]);
        move(f, host, b.ptr, sizes[i % 4]);
        for (size_t j = 0; j < sizes[i % 4]; j++) assert_int_equal(host[j], 0);
        memset(host, 1, sizes[i % 4]);
        move(f, b.ptr, host, sizes[i % 4]);
        free(host);
        assert_int_equal(atomic_load(&f->ledger.now[DT_MEM_GRADS][space]), sizes[i % 4]);
        dt_buf_free(&b), dt_buf_free(&b);
        assert_int_equal(atomic_load(&f->ledger.total_now), 0);
    }
    assert_fails(dt_buf_alloc_zeroed(&(dt_buf){0}, &f->dev, DT_ON_DEVICE, SIZE_MAX / 4, DT_MEM_GRADS), DT_ERR_MEMORY,
                 "");
    assert_fails(dt_buf_alloc(&(dt_buf){0}, &f->dev, DT_IN_FILE, 1, DT_MEM_GRADS), DT_ERR_ARG, "");
    dt_buf empty;
    assert_int_equal(dt_buf_alloc(&empty, &f->dev, DT_ON_DEVICE, 0, DT_MEM_DATA), DT_OK);
    assert_null(empty.ptr);
    dt_buf_free(&empty);
}

TEST_OF(ONCE, excessive_memory_is_reported)
{
    fixture *f = *state;
    dt_buf b;
    assert_int_equal(dt_buf_alloc(&b, &f->dev, DT_ON_DEVICE, SIZE_MAX / 4, DT_MEM_OPTIMIZER), DT_ERR_MEMORY);
    assert_null(b.ptr);
    assert_says(dt_memcat_name(DT_MEM_OPTIMIZER), "requested");
    assert_int_equal(atomic_load(&f->ledger.total_now), 0);
    dt_error_clear();
    assert_fails(dt_buf_alloc(&b, &f->dev, DT_ON_DEVICE, SIZE_MAX, DT_MEM_OPTIMIZER), DT_ERR_MEMORY, "");
    const size_t left = OPS(f)->memory_free(&f->dev);
    assert_true(left > 1 << 20 && left < (size_t)1 << 50);
}

TEST_OF(ONCE, an_unknown_backend_names_those_built)
{
    dt_device dev;
    dt_ledger ledger = {0};
    assert_fails(dt_device_open(&dev, "tpu", 0, 0, &ledger), DT_ERR_USAGE, dt_device_backends());
    dt_device_close(&dev);
    assert_int_equal(dt_device_open(&dev, "auto", 0, 0, &ledger), DT_OK);
    char text[200] = "";
    dev.ops->describe(&dev, text, sizeof text);
    assert_true(strlen(text) > 0);
    assert_true(dt_device_overhead(&dev) > 0);
    dt_device_close(&dev), dt_device_close(&dev);
}

/* A user who has selected a device other than the CPU, on a machine that lacks it, gets an error that names it. */
TEST_OF(ONCE, errors_name_the_selected_device)
{
    const char *set = getenv("DTRAIN_DEVICE");
    char before[64];
    dt_device dev;
    dt_ledger ledger = {0};
    snprintf(before, sizeof before, "%s", set ? set : "");
    setenv("DTRAIN_DEVICE", "tpu", 1);
    assert_fails(dt_device_open(&dev, "cpu", 0, 0, &ledger), DT_ERR_USAGE, "device tpu is not available: ");
    set ? setenv("DTRAIN_DEVICE", before, 1) : unsetenv("DTRAIN_DEVICE");
}

TEST_OF(ONCE, streams_and_events)
{
    fixture *f = *state;
    dt_stream *s;
    dt_event *a, *b;
    float ms = -1;
    bool done = false;
    assert_int_equal(OPS(f)->stream_create(&f->dev, &s), DT_OK);
    assert_int_equal(OPS(f)->event_create(&f->dev, &a), DT_OK);
    assert_int_equal(OPS(f)->event_create(&f->dev, &b), DT_OK);
    assert_int_equal(OPS(f)->event_query(&f->dev, a, &done), DT_OK);
    assert_true(done); /* never recorded */
    assert_int_equal(OPS(f)->event_sync(&f->dev, a), DT_OK);
    assert_int_equal(OPS(f)->event_record(&f->dev, a, s), DT_OK);
    assert_int_equal(OPS(f)->event_wait(&f->dev, a, NULL), DT_OK);
    assert_int_equal(OPS(f)->event_record(&f->dev, b, s), DT_OK);
    assert_int_equal(OPS(f)->event_sync(&f->dev, a), DT_OK);
    assert_int_equal(OPS(f)->event_query(&f->dev, a, &done), DT_OK);
    assert_true(done);
    assert_int_equal(OPS(f)->event_sync(&f->dev, b), DT_OK);
    assert_int_equal(OPS(f)->event_elapsed_ms(&f->dev, a, b, &ms), DT_OK);
    assert_true(ms >= 0);
    OPS(f)->event_destroy(&f->dev, a), OPS(f)->event_destroy(&f->dev, b), OPS(f)->stream_destroy(&f->dev, s);
}

int main(void)
{
    int failed = run_groups(ONCE, "device", open_device, close_device);
    failed += run_with_each_isa();
    return failed != 0;
}
