/* test_device_rows.c - batch-invariant matmuls on every instruction set: results are correct, and the bits of a row do
 * not depend on the other rows of the call.
 * DEVICES: cpu queue */
#include "device_fixture.h"

typedef struct matmul {
    dt_matmul mm;
    ref_array a, b, bias, addend, c;
    bool with_bias, with_addend;
} matmul;

static matmul make_matmul(int64_t m, int64_t n, int64_t k, bool trans_b, dt_dtype dt, dt_dtype c_dtype, int way)
{
    matmul p = {.mm = {.m = m,
                       .n = n,
                       .k = k,
                       .trans_b = trans_b,
                       .lda = k + 3,
                       .ldb = (trans_b ? k : n) + 2,
                       .ldc = n + 1,
                       .dt = dt,
                       .c_dtype = c_dtype,
                       .accumulate = way % 3 == 1,
                       .ldd = n + 4,
                       .addend_dtype = way < 3 ? DT_F32 : dt,
                       .batch_invariant = true},
                .with_bias = way >= 3,
                .with_addend = way % 3 == 2};
    p.a = ref_random(dt, m * p.mm.lda, 1, 1), p.b = ref_random(dt, (trans_b ? n : k) * p.mm.ldb, 2, 1),
    p.bias = ref_random(dt, n, 3, 1);
    p.c = ref_random(c_dtype, m * p.mm.ldc, 4, 1);
    p.addend = ref_random(p.mm.addend_dtype, m * p.mm.ldd, 5, 1);
    return p;
}

static void drop_matmul(matmul *p)
{
    ref_drop(&p->a), ref_drop(&p->b), ref_drop(&p->bias), ref_drop(&p->addend), ref_drop(&p->c);
}

/* Rows first .. first+m-1 of the matmul into c. */
static void run_rows(fixture *f, const matmul *p, int64_t first, int64_t m, const ref_array *c)
{
    dt_matmul mm = p->mm;
    mm.m = m;
    mm.bias = p->with_bias ? ON(p->bias) : NULL;
    mm.addend = p->with_addend ? ON_FROM(p->addend, first * mm.ldd) : NULL;
    RUN(matmul, &mm, ON_FROM(p->a, first * mm.lda), ON(p->b), ON_FROM(*c, first * mm.ldc));
}

/* Rounding as in test_device_matmul.c: k products of at most 1, partial sums of at most k; four times that of random
 * signs. */
static void check_value(fixture *f, const matmul *p)
{
    ref_array c = ref_copy(&p->c);
    double *a = ref_doubles(&p->a), *b = ref_doubles(&p->b), *bias = ref_doubles(&p->bias), *want = ref_doubles(&p->c),
           *addend = ref_doubles(&p->addend);
    const ref_matmul_args x = {
        .a = a, .b = b, .bias = p->with_bias ? bias : NULL, .addend = p->with_addend ? addend : NULL, .c = want};
    ref_matmul(&p->mm, &x);
    run_rows(f, p, 0, p->mm.m, &c);
    assert_true(ref_near(&c, want, 4 * 0x1p-24 * ((double)p->mm.k + 2), "batch-invariant matmul"));
    ref_drop(&c), free(a), free(b), free(bias), free(want), free(addend);
}

static void check_pieces(fixture *f, const matmul *p)
{
    static const int64_t pieces[] = {1, 2, 3, 5, 17};
    const size_t nbytes = (size_t)(p->mm.m * p->mm.ldc) * dt_dtype_size(p->mm.c_dtype);
    ref_array whole = ref_copy(&p->c);
    run_rows(f, p, 0, p->mm.m, &whole);
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        ref_array c = ref_copy(&p->c);
        for (int64_t r = 0; r < p->mm.m; r += pieces[i])
            run_rows(f, p, r, p->mm.m - r < pieces[i] ? p->mm.m - r : pieces[i], &c);
        assert_memory_equal(c.p, whole.p, nbytes);
        ref_drop(&c);
    }
    ref_drop(&whole);
}

static const int64_t sizes[][3] = {{1, 1, 1},      {2, 3, 17},    {3, 17, 2},   {70, 65, 33},  {19, 48, 64},
                                   {7, 31, 129},   {5, 40, 0},    {9, 7, 2100}, {6, 70, 1030}, {8, 300, 40},
                                   {66, 530, 130}, {4, 1100, 24}, {66, 72, 264}};

/* The types of A and B, and of C. */
static const dt_dtype in_types[] = {DT_F32, DT_BF16, DT_BF16, DT_F16, DT_F16},
                      c_types[] = {DT_F32, DT_F32, DT_BF16, DT_F32, DT_F16};
enum { N_TYPES = sizeof in_types / sizeof in_types[0] };

static void for_all_sizes(fixture *f, void (*check)(fixture *f, const matmul *p))
{
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int types = 0; types < N_TYPES; types++)
            for (int way = 0; way < 12; way++) {
                if (!is_tried()) continue;
                matmul p = make_matmul(sizes[i][0], sizes[i][1], sizes[i][2], way & 1, in_types[types], c_types[types],
                                       way >> 1);
                check(f, &p);
                drop_matmul(&p);
            }
}

TEST(batch_invariant_matmuls_are_matmuls) { for_all_sizes(*state, check_value); }
TEST(a_row_does_not_depend_on_the_others) { for_all_sizes(*state, check_pieces); }

/* A few of a matmul's rows, and one, have the bits that they have among all. */
static void check_some_rows(fixture *f, const matmul *p)
{
    const int64_t some[][2] = {{0, 1}, {1, 16}, {p->mm.m / 3, p->mm.m / 7}, {p->mm.m - 1, 1}};
    ref_array whole = ref_copy(&p->c);
    run_rows(f, p, 0, p->mm.m, &whole);
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        const int64_t first = some[i][0] * p->mm.ldc;
        ref_array c = ref_copy(&p->c);
        run_rows(f, p, some[i][0], some[i][1], &c);
        for (int64_t r = 0; r < some[i][1]; r++)
            assert_memory_equal((const float *)c.p + first + r * p->mm.ldc,
                                (const float *)whole.p + first + r * p->mm.ldc, (size_t)p->mm.n * sizeof(float));
        ref_drop(&c);
    }
    ref_drop(&whole);
}

/* So many rows, columns or terms that a device may take another kernel for all than for some. */
TEST(a_row_of_very_many_is_the_same)
{
    static const int64_t many[][3] = {{1540, 1416, 72}, {300, 128, 264}, {80, 904, 136}};
    for (size_t i = 0; i < sizeof many / sizeof many[0]; i++)
        for (int way = 0; way < 6; way++) {
            if (!is_tried()) continue;
            matmul p = make_matmul(many[i][0], many[i][1], many[i][2], way & 1, in_types[way & 6], DT_F32, 0);
            p.mm.lda += 5, p.mm.ldb += 6; /* 16 bytes, in either type */
            ref_drop(&p.a), ref_drop(&p.b);
            p.a = ref_random(p.mm.dt, p.mm.m * p.mm.lda, 1, 1);
            p.b = ref_random(p.mm.dt, (way & 1 ? p.mm.n : p.mm.k) * p.mm.ldb, 2, 1);
            check_some_rows(*state, &p);
            drop_matmul(&p);
        }
}

TEST(threads_do_not_change_a_row)
{
    fixture *f = *state, other = {0};
    matmul p = make_matmul(3, 1100, 70, true, DT_BF16, DT_F32, 0);
    ref_array c = ref_copy(&p.c), d = ref_copy(&p.c);
    assert_int_equal(dt_device_open(&other.dev, "cpu", 0, 5, &other.ledger), DT_OK);
    run_rows(f, &p, 0, 3, &c);
    run_rows(&other, &p, 0, 3, &d);
    assert_memory_equal(c.p, d.p, (size_t)(p.mm.m * p.mm.ldc) * sizeof(float));
    dt_device_close(&other.dev);
    ref_drop(&c), ref_drop(&d), drop_matmul(&p);
}

TEST(a_transposed_a_is_refused)
{
    fixture *f = *state;
    float x[64] = {0};
    const dt_matmul mm = {
        .m = 2, .n = 4, .k = 8, .trans_a = true, .lda = 2, .ldb = 4, .ldc = 4, .batch_invariant = true};
    assert_fails(TRY(matmul, &mm, ARR(x, 64), ARR(x, 64), ARR(x, 64)), DT_ERR_ARG, "trans_a");
}

int main(void)
{
    int failed = run_with_each_isa();
    if (!ref_is_cpu()) return failed != 0;
    setenv("DTRAIN_BF16", "none", 1); /* the last set again, without pairwise dot products */
    failed += run_listed("none", open_device, close_device);
    return failed != 0;
}
