/* test_device_int8.c - products in int8 (dt_int8_product): against their definition in plain loops, against
 * bitsandbytes (make_int8_fixtures.py), and that all units and cuts give the same bits.
 * DEVICES: cpu queue */
#include "device_fixture.h"
#include <jansson.h>

static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F16};
enum { N_TYPES = sizeof types / sizeof types[0] };

/* One row, few and many, odd extents at odd places, several panels of rows, a long sum of the largest codes. */
static const struct size {
    int64_t m, n, k, gap;
} sizes[] = {{1, 1, 1, 0},     {1, 200, 129, 3},  {3, 17, 40, 0},  {16, 64, 128, 0},
             {20, 75, 260, 8}, {33, 70, 65, 5},   {5, 66, 192, 0}, {64, 48, 16, 0},
             {600, 70, 72, 0}, {47, 130, 350, 1}, {5, 9, 0, 0},    {2, 20, 70000, 0}};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

typedef struct form {
    float threshold;
    bool bias, addend, float_addend, accumulate, activation, batch_invariant, float_c;
} form;
static const form forms[] = {
    {.threshold = 0},
    {.threshold = 6, .bias = true, .addend = true},
    {.threshold = 6, .batch_invariant = true, .bias = true},
    {.threshold = 7, .accumulate = true, .float_c = true},
    {.threshold = 0x1p-20f, .bias = true, .activation = true}, /* nearly all are outliers */
    {.threshold = 100, .batch_invariant = true, .addend = true},
};
enum { N_FORMS = sizeof forms / sizeof forms[0] };

typedef struct product {
    form how;
    dt_matmul mm;
    ref_array a, bias, addend, c;
    int8_t *q;
    float *scale;
} product;

static uint64_t any(int64_t i) { return dt_mix64((uint64_t)i); }

/* Numbers of A up to 1, one in 150 up to 16. */
static product random_product(const form *how, const struct size *s, dt_dtype dt)
{
    product x = {.how = *how, .mm = matmul_with_gaps(s->m, s->n, s->k, s->gap, true, dt)};
    x.mm.int8 = (dt_int8_product){true, how->threshold};
    x.mm.accumulate = how->accumulate, x.mm.batch_invariant = how->batch_invariant;
    if (how->float_c) x.mm.c_dtype = DT_F32;
    if (how->activation) x.mm.epilogue = DT_EPILOGUE_ACT, x.mm.act = DT_ACT_SILU;
    x.a = ref_random(dt, s->m * x.mm.lda, 1, 1), x.bias = ref_random(dt, s->n, 2, 1);
    if (how->float_addend) x.mm.addend_dtype = DT_F32;
    x.addend = ref_random(x.mm.addend_dtype, s->m * x.mm.ldd, 3, 1),
    x.c = ref_random(x.mm.c_dtype, s->m * x.mm.ldc, 4, 1);
    for (int64_t i = 0; i < x.a.n; i++)
        if (any(i) % 150 == 7) ref_set(&x.a, i, 16 * ref_get(&x.a, i));
    x.q = malloc((size_t)(s->n * x.mm.ldb + 1)), x.scale = malloc((size_t)(s->n + 1) * sizeof *x.scale);
    assert_true(x.q && x.scale);
    for (int64_t i = 0; i < s->n * x.mm.ldb; i++) x.q[i] = (int8_t)(s->k > 60000 ? 127 : (int)(any(i) % 255) - 127);
    for (int64_t r = 0; r < s->n; r++) x.scale[r] = (float)(any(r + 1) % 1000) * 0x1p-10f / 127;
    return x;
}

static void drop(product *x)
{
    ref_drop(&x->a), ref_drop(&x->bias), ref_drop(&x->addend), ref_drop(&x->c);
    free(x->q), free(x->scale);
}

static dt_err attempt(fixture *f, product *x)
{
    dt_matmul mm = x->mm;
    mm.bias = x->how.bias ? ON(x->bias) : NULL;
    mm.addend = x->how.addend ? ON(x->addend) : NULL;
    mm.b_scaled = (dt_scaled){.how = DT_SCALE_ROWS, .stored = DT_I8, .scale = ARR(x->scale, mm.n)};
    return TRY(matmul, &mm, ON(x->a), ARR(x->q, mm.n * mm.ldb), ON(x->c));
}
static void run(fixture *f, product *x) { assert_int_equal(attempt(f, x), DT_OK); }

/* ---- what it means ----------------------------------------------------------------------------------------------- */

static bool is_outlier(const product *x, int64_t i, int64_t p)
{
    if (x->how.threshold == 0) return false;
    for (int64_t r = x->how.batch_invariant ? i : 0; r < (x->how.batch_invariant ? i + 1 : x->mm.m); r++)
        if (fabs(ref_get(&x->a, r * x->mm.lda + p)) >= (double)x->how.threshold) return true;
    return false;
}

static float largest_of_row(const product *x, int64_t i)
{
    float most = 0;
    for (int64_t p = 0; p < x->mm.k; p++) {
        const float v = fabsf((float)ref_get(&x->a, i * x->mm.lda + p));
        if (v > most && (x->how.threshold == 0 || v < x->how.threshold)) most = v;
    }
    return most;
}

/* Row i of A: codes with their scale, and what is beside them. */
static double row_of_codes(const product *x, int64_t i, double *code, double *beside)
{
    const float largest = largest_of_row(x, i), factor = largest > 0 ? 127.0f / largest : 0;
    for (int64_t p = 0; p < x->mm.k; p++) {
        const float v = (float)ref_get(&x->a, i * x->mm.lda + p);
        const bool out = is_outlier(x, i, p);
        code[p] = out ? 0 : (double)rintf(v * factor);
        beside[p] = out ? (double)v : 0;
    }
    return (double)(largest / 127);
}

static double number(const product *x, int64_t j, int64_t p)
{
    float v;
    dt_set_element(&v, x->mm.dt, 0, (float)x->q[j * x->mm.ldb + p] * x->scale[j]);
    return (double)dt_element(&v, x->mm.dt, 0);
}

/* want [m][ldc] holds C before. The largest sum of the sizes of what is added up is returned: a sum in float is off by
 * at most 2^-24 of it for each addition. */
static double plain_product(const product *x, double *want)
{
    const dt_matmul *mm = &x->mm;
    double *code = malloc((size_t)(mm->k + 1) * sizeof *code), *beside = malloc((size_t)(mm->k + 1) * sizeof *beside);
    double most = 0;
    assert_true(code && beside);
    for (int64_t i = 0; i < mm->m; i++) {
        const double scale = row_of_codes(x, i, code, beside);
        for (int64_t j = 0; j < mm->n; j++) {
            double sum = 0, y = 0, size = 2 /* bias, and addend or C: up to 1 each */, slope;
            for (int64_t p = 0; p < mm->k; p++) {
                sum += code[p] * (double)x->q[j * mm->ldb + p];
                if (beside[p] != 0) y += beside[p] * number(x, j, p), size += fabs(beside[p] * number(x, j, p));
            }
            y += sum * scale * (double)x->scale[j], size += fabs(sum * scale * (double)x->scale[j]);
            y += x->how.bias ? ref_get(&x->bias, j) : 0;
            y += x->how.addend ? ref_get(&x->addend, i * mm->ldd + j) : x->how.accumulate ? want[i * mm->ldc + j] : 0;
            if (x->how.activation) y = ref_act(mm->act, y, &slope);
            want[i * mm->ldc + j] = y;
            most = size > most ? size : most;
        }
    }
    free(code), free(beside);
    return most;
}

static int64_t most_additions(const product *x)
{
    int64_t n = 5; /* S as a float, the product of the scales and of both; bias, and addend or C */
    for (int64_t p = 0; p < x->mm.k; p++)
        for (int64_t i = 0, found = 0; i < x->mm.m && !found; i++) found = is_outlier(x, i, p), n += found;
    return n;
}

/* An activation may start from P as it was rounded; 1.1 is above its slope, and above what second orders add. */
static void check(fixture *f, const form *how, const struct size *s, dt_dtype dt)
{
    if (!is_tried()) return;
    product x = random_product(how, s, dt);
    double *want = ref_doubles(&x.c);
    const double sums = 0x1p-24 * (double)most_additions(&x) * plain_product(&x, want),
                 rounded = how->activation ? 1.1 * dt_roundoff(dt) * (ref_largest(want, x.c.n) + 1) : 0;
    run(f, &x);
    assert_true(ref_near(&x.c, want, 1.1 * sums + rounded, "a product in int8"));
    free(want), drop(&x);
}

TEST(products_are_as_defined)
{
    for (int i = 0; i < N_SIZES; i++)
        for (int k = 0; k < N_FORMS; k++)
            for (int t = 0; t < N_TYPES; t++) check(*state, &forms[k], &sizes[i], types[t]);
}

/* ---- what must not matter ---------------------------------------------------------------------------------------- */

/* A row that is batch-invariant is the row alone, and of a threshold all rows alone are the same call with that row. */
TEST(a_row_alone_has_the_same_bits)
{
    const struct size s = {37, 50, 130, 0}, one = {1, 50, 130, 0};
    const form how = {.threshold = 6, .batch_invariant = true, .bias = true};
    for (int t = 0; t < N_TYPES; t++) {
        product all = random_product(&how, &s, types[t]);
        run(*state, &all);
        for (int64_t i = 0; i < s.m; i += 4)
            for (int plain = 0; plain < 2; plain++) {
                product row = random_product(&how, &one, types[t]);
                row.mm.batch_invariant = row.how.batch_invariant = !plain;
                for (int64_t p = 0; p < s.k; p++) ref_set(&row.a, p, ref_get(&all.a, i * s.k + p));
                run(*state, &row);
                for (int64_t j = 0; j < s.n; j++) assert_true(ref_get(&row.c, j) == ref_get(&all.c, i * s.n + j));
                drop(&row);
            }
        drop(&all);
    }
}

static int open_with(void **state, const char *unit)
{
    setenv("DTRAIN_INT8", unit, 1);
    const int err = open_device(state);
    unsetenv("DTRAIN_INT8");
    return err;
}

/* Of a processor without a unit another stands in. */
TEST(all_units_give_the_same_bits)
{
    static const char *const others[] = {"plain", "dot"};
    for (size_t u = 0; u < sizeof others / sizeof others[0]; u++) {
        void *other;
        assert_int_equal(open_with(&other, others[u]), 0);
        for (int i = 0; i < N_SIZES; i++) {
            product x = random_product(&forms[1], &sizes[i], DT_BF16),
                    y = random_product(&forms[1], &sizes[i], DT_BF16);
            run(*state, &x), run(other, &y);
            assert_memory_equal(x.c.p, y.c.p, ref_bytes(&x.c));
            drop(&x), drop(&y);
        }
        close_device(&other);
    }
}

/* What a rank holds after its first step it holds in all: a batch with many outliers takes no more. */
TEST(outliers_take_no_memory)
{
    const struct size s = {70, 80, 1000, 0};
    const form how = {.threshold = 6};
    size_t held[2];
    void *fresh;
    assert_int_equal(open_device(&fresh), 0);
    for (int many = 0; many < 2; many++) {
        product x = random_product(&how, &s, DT_BF16);
        for (int64_t i = 0; i < x.a.n; i++) ref_set(&x.a, i, many ? 8 : 1);
        run(fresh, &x);
        held[many] = dt_device_overhead(&((fixture *)fresh)->dev);
        drop(&x);
    }
    close_device(&fresh);
    assert_int_equal(held[0], held[1]);
}

static const void *row_of(const ref_array *a, int64_t row, int64_t ld)
{
    return (const char *)a->p + (size_t)(row * ld) * dt_dtype_size(a->dt);
}

/* On a GPU rows become int8 as many at a time as a stream's workspace has room for. */
TEST(panels_of_rows_do_not_matter)
{
    fixture *f = *state;
    const struct size s = {300, 3, DT_INT8_MOST_K, 0}, few = {10, 3, DT_INT8_MOST_K, 0};
    static const form ways[] = {{.addend = true}, {.addend = true, .float_addend = true, .float_c = true}};
    if (strcmp(OPS(f)->name, "cuda") != 0) skip(); /* panels of the CPU have 512 rows: sizes */
    for (int way = 0; way < 2; way++) {
        product all = random_product(&ways[way], &s, DT_BF16);
        run(f, &all);
        for (int64_t first = 0; first < s.m; first += s.m - few.m) {
            product part = random_product(&ways[way], &few, DT_BF16);
            memcpy(part.a.p, row_of(&all.a, first, all.mm.lda), ref_bytes(&part.a));
            memcpy(part.addend.p, row_of(&all.addend, first, all.mm.ldd), ref_bytes(&part.addend));
            run(f, &part);
            assert_memory_equal(part.c.p, row_of(&all.c, first, all.mm.ldc), ref_bytes(&part.c));
            drop(&part);
        }
        drop(&all);
    }
}

/* ---- numbers that are none, and what cannot be ------------------------------------------------------------------- */

TEST(what_is_no_number_shows_in_its_row)
{
    static const float values[] = {NAN, INFINITY, -INFINITY}, thresholds[] = {0, 6};
    const struct size s = {20, 40, 70, 0};
    for (int v = 0; v < 3; v++)
        for (int t = 0; t < 2; t++)
            for (int d = 0; d < N_TYPES; d++) {
                const form how = {.threshold = thresholds[t]};
                product x = random_product(&how, &s, types[d]);
                for (int64_t j = 0; j < s.n; j++) x.q[j * s.k + 2] = 5, x.scale[j] = 0.01f;
                ref_set(&x.a, 3 * s.k + 2, (double)values[v]);
                run(*state, &x);
                for (int64_t i = 0; i < x.c.n; i++) assert_true(!isfinite(ref_get(&x.c, i)) == (i / s.n == 3));
                drop(&x);
            }
}

/* 127 / largest is infinite, and 0 times that no number: its code must be 0. Column 0 alone counts in B. */
TEST(a_zero_stays_zero_in_a_row_of_tiny_numbers)
{
    const struct size s = {2, 20, 64, 0};
    const form how = {.threshold = 6};
    product x = random_product(&how, &s, DT_F32);
    for (int64_t i = 0; i < x.a.n; i++) ref_set(&x.a, i, i % s.k ? 0x1p-130 * (i % 2 ? 1 : -1) : 0);
    for (int64_t i = 0; i < s.n * s.k; i++) x.q[i] = i % s.k ? 0 : 100;
    for (int64_t j = 0; j < s.n; j++) x.scale[j] = 1;
    run(*state, &x);
    for (int64_t i = 0; i < x.c.n; i++) assert_true(ref_get(&x.c, i) == 0);
    drop(&x);
}

TEST(other_forms_are_refused)
{
    const struct size s = {4, 8, 16, 0};
    const form how = {.threshold = 6};
    for (int bad = 0; bad < 3; bad++) {
        product x = random_product(&how, &s, DT_F32);
        if (bad == 0) x.mm.trans_b = false, x.mm.ldb = s.k;
        if (bad == 1) x.mm.int8.threshold = -1;
        if (bad == 2) x.mm.int8.threshold = NAN;
        assert_int_equal(attempt(*state, &x), DT_ERR_ARG);
        drop(&x);
    }
}

/* ---- bitsandbytes ------------------------------------------------------------------------------------------------ */

static double at(const json_t *of, const char *key, int64_t i)
{
    return json_number_value(json_array_get(json_object_get(of, key), (size_t)i));
}

/* make_int8_fixtures.py */
static double activation(int64_t i, int64_t k)
{
    return i / k == 4 ? 0 : ((double)(any(i) >> 56) - 128) / 64 * (any(i + 7777) % 40 == 0 ? 4 : 1);
}

TEST(it_is_what_bitsandbytes_computes)
{
    json_t *file = json_load_file("tests/data/int8_product.json", 0, NULL), *cases = json_object_get(file, "cases");
    assert_true(json_array_size(cases) == 2);
    const struct size s = {json_integer_value(json_object_get(file, "m")),
                           json_integer_value(json_object_get(file, "n")),
                           json_integer_value(json_object_get(file, "k")), 0};
    for (size_t c = 0; c < json_array_size(cases); c++) {
        const json_t *want = json_array_get(cases, c);
        const form how = {.threshold = (float)json_number_value(json_object_get(want, "threshold")), .bias = true};
        product x = random_product(&how, &s, DT_F32);
        double code[1000], beside[1000];
        for (int64_t i = 0; i < x.a.n; i++) ref_set(&x.a, i, activation(i, s.k));
        for (int64_t i = 0; i < s.n * s.k; i++) x.q[i] = (int8_t)at(file, "codes", i);
        for (int64_t j = 0; j < s.n; j++)
            x.scale[j] = (float)at(file, "scb", j) / 127, ref_set(&x.bias, j, at(file, "bias", j));
        for (int64_t i = 0; i < s.m; i++) { /* the definition above, code for code */
            assert_true(fabs(row_of_codes(&x, i, code, beside) * 127 - at(want, "scales", i)) <= 0x1p-22);
            for (int64_t p = 0; p < s.k; p++) assert_true(code[p] == at(want, "codes", i * s.k + p));
        }
        size_t n_outliers = 0;
        for (int64_t p = 0; p < s.k; p++)
            if (is_outlier(&x, 0, p)) assert_true(at(want, "outliers", (int64_t)n_outliers++) == p);
        assert_int_equal(n_outliers, json_array_size(json_object_get(want, "outliers")));
        run(*state, &x);
        /* numbers up to 18 from fewer than 16 roundings, and where its CUDA kernels have 1 / 127^2 = 6.200012e-5 the
         * processor's have 6.200124e-5 */
        for (int64_t i = 0; i < x.c.n; i++)
            assert_true(fabs(ref_get(&x.c, i) - at(want, "y", i)) <= 18 * (16 * 0x1p-24 + 1.9e-5));
        drop(&x);
    }
    json_decref(file);
}

int main(void)
{
    int failed = run_listed("as it comes", open_device, close_device);
    for (int i = 0; ref_is_cpu() && i < ref_n_isas(); i++)
        failed += run_listed(ref_take_isa(i), open_device, close_device);
    return failed != 0;
}
