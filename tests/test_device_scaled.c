/* test_device_scaled.c - matmuls with weights that are stored as int8 with scales, or as nf4: forward y = x W^T and
 * backward dx = dy W. They are compared with plain loops in double, and with the matmul of the same weights in the
 * compute type.
 * DEVICES: cpu queue */
#include "device_fixture.h"
#include "dtrain/device/nf4.h"

enum { LARGE = 2 };

static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F16};
enum { N_TYPES = sizeof types / sizeof types[0] };

/* One row, tiles of every kind, long sums, odd extents at odd places, whole blocks of
 * four bits and more than one group of them; where rows of B are whole chunks, the last step of several pieces half
 * full, and so many columns that a block of a GPU computes all pieces. */
static const struct size {
    int64_t m, n, k, gap;
} sizes[] = {{1, 1, 1, 0},      {1, 200, 129, 3}, {3, 17, 40, 0},    {16, 64, 128, 8},   {20, 75, 260, 0},
             {33, 70, 65, 8},   {77, 130, 96, 5}, {64, 48, 16, 0},   {300, 264, 72, 0},  {5, 9, 0, 0},
             {2, 50, 22000, 0}, {1, 64, 640, 0},  {7, 80, 1088, 64}, {20, 130, 192, 64}, {12, 40, 48, 0},
             {5, 530, 320, 0},  {33, 70, 640, 0}, {40, 530, 192, 0}};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

/* What goes with a matmul. */
typedef struct form {
    bool trans_b, one_scale, bias, addend, accumulate, activation, batch_invariant, float_c, nf4;
    int finer; /* of nf4 */
} form;
static const form forms[] = {
    {.trans_b = true},
    {.trans_b = false},
    {.trans_b = true, .bias = true, .addend = true},
    {.trans_b = false, .accumulate = true, .float_c = true},
    {.trans_b = true, .one_scale = true, .bias = true, .activation = true},
    {.trans_b = false, .one_scale = true, .addend = true},
    {.trans_b = true, .batch_invariant = true, .bias = true},
    {.trans_b = false, .batch_invariant = true},
    {.trans_b = true, .nf4 = true, .bias = true, .addend = true},
    {.trans_b = false, .nf4 = true, .accumulate = true, .float_c = true},
    {.trans_b = true, .nf4 = true, .batch_invariant = true, .bias = true},
    {.trans_b = true, .nf4 = true, .finer = 5, .batch_invariant = true},
    {.trans_b = false, .nf4 = true, .finer = 8},
    {.trans_b = false, .nf4 = true, .batch_invariant = true},
};
enum { N_FORMS = sizeof forms / sizeof forms[0] };

/* B as stored, its scales, and the weights that they represent, in the compute type. */
typedef struct weights {
    uint8_t *q, *blocks;
    float *scale;
    int64_t q_len, n_blocks, n_scales;
    ref_array numbers;
} weights;

static weights room_for(const form *how, dt_dtype dt, int64_t rows, int64_t ld)
{
    const int64_t n = rows * ld;
    weights w = {.q_len = n, .n_scales = rows, .numbers = ref_new(dt, n)};
    if (how->nf4) w.q_len = (n + 1) / 2, w.n_blocks = dt_nf4_blocks(n), w.n_scales = 2 * dt_nf4_pairs(n, how->finer);
    w.q = malloc((size_t)w.q_len + 1), w.blocks = malloc((size_t)w.n_blocks + 1);
    w.scale = malloc((size_t)(w.n_scales + 1) * sizeof *w.scale);
    assert_true(w.q && w.blocks && w.scale);
    return w;
}

static uint64_t any(int64_t i) { return dt_mix64((uint64_t)i); }

/* Values from -1 to 1. */
static weights random_weights(const form *how, dt_dtype dt, int64_t rows, int64_t ld)
{
    weights w = room_for(how, dt, rows, ld);
    for (int64_t i = 0; i < w.q_len; i++) w.q[i] = (uint8_t)(how->nf4 ? any(i) : any(i) % 255 - 127);
    for (int64_t b = 0; b < w.n_blocks; b++) w.blocks[b] = (uint8_t)any(b + 7);
    for (int64_t r = 0; r < w.n_scales; r++) w.scale[r] = (float)(any(r + 1) % 1000) * 0x1p-10f / (how->nf4 ? 2 : 127);
    for (int64_t i = 0; i < w.numbers.n; i++) {
        float x;
        if (how->nf4)
            dt_dequantise_nf4(w.q + i / 2, w.blocks, w.scale, how->finer, i, 1, &x);
        else
            x = (float)(int8_t)w.q[i] * w.scale[how->one_scale ? 0 : i / ld];
        dt_set_element(w.numbers.p, dt, i, x);
    }
    return w;
}

static void drop(weights *w)
{
    free(w->q), free(w->blocks), free(w->scale);
    ref_drop(&w->numbers);
}

static dt_matmul matmul_of(const form *how, const struct size *s, dt_dtype dt)
{
    dt_matmul mm = matmul_with_gaps(s->m, s->n, s->k, s->gap, how->trans_b, dt);
    mm.accumulate = how->accumulate, mm.batch_invariant = how->batch_invariant;
    if (how->float_c) mm.c_dtype = DT_F32;
    if (how->activation) mm.epilogue = DT_EPILOGUE_ACT, mm.act = DT_ACT_SILU;
    return mm;
}

/* The matmul with B as stored, or (numbers) with the matrix of its dequantised weights. */
static void run(fixture *f, const form *how, dt_matmul mm, weights *w, bool numbers, ref_array *a, ref_array *bias,
                ref_array *addend, ref_array *c)
{
    mm.bias = how->bias ? ON(*bias) : NULL;
    mm.addend = how->addend ? ON(*addend) : NULL;
    if (numbers) {
        RUN(matmul, &mm, ON(*a), ON(w->numbers), ON(*c));
        return;
    }
    mm.b_scaled = (dt_scaled){.how = how->nf4         ? DT_SCALE_NF4
                                     : how->one_scale ? DT_SCALE_MATRIX
                                                      : DT_SCALE_ROWS,
                              .stored = how->nf4 ? DT_NF4X2 : DT_I8,
                              .scale = ARR(w->scale, w->n_scales),
                              .blocks = how->nf4 ? ARR(w->blocks, w->n_blocks) : NULL,
                              .finer = how->finer};
    RUN(matmul, &mm, ON(*a), ARR(w->q, w->q_len), ON(*c));
}

/* Sums of k products of at most 1: test_device_matmul.c; an activation starts from P as it was rounded, and has a slope
 * below 1.1. */
static double error_of(const fixture *f, const form *how, const dt_matmul *mm, const double *want, int64_t n)
{
    const double sums = 4 * 0x1p-24 * ((double)mm->k + 4),
                 rounded = how->activation ? 1.1 * dt_roundoff(mm->dt) * (ref_largest(want, n) + 1) : 0;
    return 1.1 * sums + rounded + library_error(f, mm->c_dtype, how->bias + how->addend + how->accumulate, want, n);
}

static void check(fixture *f, const form *how, const struct size *s, dt_dtype dt)
{
    const dt_matmul mm = matmul_of(how, s, dt);
    weights w = random_weights(how, dt, how->trans_b ? s->n : s->k, mm.ldb);
    ref_array a = ref_random(dt, s->m * mm.lda, 1, 1), bias = ref_random(dt, s->n, 2, 1),
              addend = ref_random(dt, s->m * mm.ldd, 3, 1), c = ref_random(mm.c_dtype, s->m * mm.ldc, 4, 1),
              same = ref_copy(&c);
    double *a64 = ref_doubles(&a), *b64 = ref_doubles(&w.numbers), *bias64 = ref_doubles(&bias),
           *addend64 = ref_doubles(&addend), *want = ref_doubles(&c);
    ref_matmul(
        &mm, &(ref_matmul_args){a64, b64, how->bias ? bias64 : NULL, how->addend ? addend64 : NULL, want, NULL, NULL});
    run(f, how, mm, &w, false, &a, &bias, &addend, &c);
    assert_true(ref_near(&c, want, error_of(f, how, &mm, want, c.n), "a matmul with scales"));
    if (how->batch_invariant) { /* whose sums have one order */
        run(f, how, mm, &w, true, &a, &bias, &addend, &same);
        assert_memory_equal(c.p, same.p, ref_bytes(&c));
    }
    ref_drop(&a), ref_drop(&bias), ref_drop(&addend), ref_drop(&c), ref_drop(&same), drop(&w);
    free(a64), free(b64), free(bias64), free(addend64), free(want);
}

TEST(matmuls_equal_those_of_the_dequantised_weights)
{
    for (int i = 0; i < N_SIZES; i++)
        for (int k = 0; k < N_FORMS; k++)
            for (int t = 0; t < N_TYPES; t++)
                if (is_tried()) check(*state, &forms[k], &sizes[i], types[t]);
}

/* A GPU dequantises 9 million weights in two panels of columns, the second of them narrower; for 16 rows the library
 * gets them. */
TEST_OF(LARGE, large_matrices_are_dequantised_in_panels)
{
    static const struct size few = {2, 10, 900000, 0}, many = {16, 10, 900000, 0};
    static const form columns = {.trans_b = false}, rows = {.trans_b = true, .bias = true, .addend = true},
                      nf4_columns = {.nf4 = true}, nf4_rows = {.trans_b = true, .nf4 = true, .finer = 3};
    check(*state, &columns, &few, DT_BF16);
    check(*state, &nf4_columns, &few, DT_F16);
    check(*state, &rows, &many, DT_F16);
    check(*state, &nf4_rows, &many, DT_BF16);
}

/* ---- from weights to int8 ---------------------------------------------------------------------------------------- */

TEST(a_row_is_rounded_to_even)
{
    const float w[] = {0.5f, -1, 0.25f}, zeros[3] = {0}, bad[] = {1, NAN, 2}, large[] = {1, INFINITY, 2};
    int8_t q[3];
    float scale;
    dt_quantise_row(w, 3, q, &scale);
    assert_true(q[0] == 64 && q[1] == -127 && q[2] == 32); /* 63.5 is halfway */
    assert_true(fabsf((float)q[0] * scale - 0.503937f) < 1e-6f && fabsf((float)q[2] * scale - 0.251969f) < 1e-6f);
    assert_true(fabsf((float)q[1] * scale + 1) < 0x1p-23f);
    dt_quantise_row(zeros, 3, q, &scale);
    assert_true(q[0] == 0 && q[1] == 0 && q[2] == 0 && scale == 0);
    dt_quantise_row(bad, 3, q, &scale);
    assert_true(isnan(scale));
    dt_quantise_row(large, 3, q, &scale);
    assert_true(isinf(scale));
}

/* |w - q scale| <= scale / 2, and a little for the rounding of the scale: 127 half units of it. */
TEST(round_trip_errors_are_at_most_half_a_step)
{
    enum { N = 1000 };
    ref_array w = ref_random(DT_F32, N, 1, 3);
    int8_t q[N];
    float scale;
    dt_quantise_row(w.p, N, q, &scale);
    for (int i = 0; i < N; i++)
        assert_true(fabs(ref_get(&w, i) - (double)q[i] * (double)scale) <= (double)scale * (0.5 + 128 * 0x1p-24));
    ref_drop(&w);
}

/* A NaN or infinity shows in the result, whether it is in A or among the scales. */
TEST(non_finite_inputs_are_not_hidden)
{
    fixture *f = *state;
    for (int t = 0; t < N_TYPES; t++)
        for (int way = 0; way < 8; way++) {
            const struct size s = {20, 40, 24, 0};
            const form how = {.trans_b = way & 1, .nf4 = way & 4};
            const dt_matmul mm = matmul_of(&how, &s, types[t]);
            weights w = random_weights(&how, types[t], how.trans_b ? s.n : s.k, mm.ldb);
            ref_array a = ref_random(types[t], s.m * mm.lda, 1, 1), c = ref_new(mm.c_dtype, s.m * mm.ldc);
            if (way & 2)
                ref_set(&a, 3 * mm.lda + 2, NAN);
            else
                w.scale[w.n_scales - 1] = NAN;
            run(f, &how, mm, &w, false, &a, NULL, NULL, &c);
            bool shows = false;
            for (int64_t i = 0; i < c.n; i++) shows = shows || isnan(ref_get(&c, i));
            assert_true(shows);
            ref_drop(&a), ref_drop(&c), drop(&w);
        }
}

int main(void)
{
    int failed = run_listed("as it comes", open_device, close_device);
    failed += run_groups(LARGE, "large", open_device, close_device);
    setenv("DTRAIN_ONEDNN", "none", 1), setenv("DTRAIN_CUDA_PRODUCT", "own", 1);
    failed += run_listed("our own kernels alone", open_device, close_device);
    unsetenv("DTRAIN_ONEDNN"), unsetenv("DTRAIN_CUDA_PRODUCT");
    setenv("DTRAIN_BF16", "none", 1);
    failed += run_with_each_isa();
    return failed != 0;
}
