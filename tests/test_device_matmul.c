/* test_device_matmul.c - matmuls and bias gradients, compared with plain loops in double.
 * DEVICES: cpu queue */
#include "device_fixture.h"

enum { WRONG_LIBRARY = 2, DOTS = 4 };

/* Rounding: each of k products of |a b| <= 1 and each partial sum <= k rounds once: error below k 2^-24 sqrt(k) for
 * random signs, taken 4 times; products of 16 bits are exact in float. Accumulation adds the rounding of what was
 * there (|c| <= 1). */
static double matmul_error(int64_t k) { return 4 * 0x1p-24 * ((double)k + 2) * 1.0; }

static void check_matmul(fixture *f, const dt_matmul *mm, bool with_bias)
{
    if (!is_tried()) return;
    ref_array a = ref_random(mm->dt, (mm->trans_a ? mm->k : mm->m) * mm->lda, 1, 1),
              b = ref_random(mm->dt, (mm->trans_b ? mm->n : mm->k) * mm->ldb, 2, 1);
    ref_array bias = ref_random(mm->dt, mm->n, 3, 1), c = mm->accumulate
                                                              ? ref_random(mm->c_dtype, mm->m * mm->ldc, 4, 1)
                                                              : ref_new(mm->c_dtype, mm->m * mm->ldc);
    double *a64 = ref_doubles(&a), *b64 = ref_doubles(&b), *bias64 = ref_doubles(&bias), *c64 = ref_doubles(&c);
    const ref_matmul_args x = {.a = a64, .b = b64, .bias = with_bias ? bias64 : NULL, .c = c64};
    dt_matmul with = *mm;
    with.bias = with_bias ? ON(bias) : NULL;
    ref_matmul(mm, &x);
    RUN(matmul, &with, ON(a), ON(b), ON(c));
    for (int64_t r = 0; r < mm->m && !mm->accumulate; r++)
        for (int64_t i = mm->n; i < mm->ldc; i++) {
            assert_true(isnan(ref_get(&c, r * mm->ldc + i))); /* between the rows: not ours */
            ref_set(&c, r * mm->ldc + i, 0);
            c64[r * mm->ldc + i] = 0;
        }
    const double of_library = library_error(f, mm->c_dtype, mm->accumulate + with_bias, c64, mm->m * mm->ldc);
    assert_true(ref_near(&c, c64, matmul_error(mm->k) + of_library, "matmul"));
    ref_drop(&a), ref_drop(&b), ref_drop(&bias), ref_drop(&c);
    free(a64), free(b64), free(bias64), free(c64);
}

/* The types of A and B, and of C. */
static const dt_dtype in_types[] = {DT_F32, DT_BF16, DT_BF16, DT_F16, DT_F16},
                      c_types[] = {DT_F32, DT_F32, DT_BF16, DT_F32, DT_F16};
enum { N_TYPES = sizeof in_types / sizeof in_types[0] };

static void check_types(fixture *f, int64_t m, int64_t n, int64_t k, int form, int64_t extra)
{
    for (int types = 0; types < N_TYPES; types++)
        for (int way = 0; way < 4; way++) {
            dt_matmul mm = dt_dense_matmul(m, n, k, form & 1, form >> 1, in_types[types], c_types[types]);
            mm.lda += extra, mm.ldb += 2 * extra, mm.ldc += 3 * extra, mm.accumulate = way & 1;
            check_matmul(f, &mm, way >> 1);
        }
}

TEST(matmuls_of_all_forms_and_odd_sizes)
{
    static const int64_t sizes[][3] = {
        {1, 1, 1},    {1, 3, 17},    {17, 1, 3},  {3, 17, 1},  {129, 65, 33},
        {64, 48, 16}, {80, 31, 129}, {5, 200, 0}, {70, 20, 63} /* oneDNN 2.6 with AMX: an illegal instruction */};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int form = 0; form < 3; form++) {
            check_types(*state, sizes[i][0], sizes[i][1], sizes[i][2], form, 0);
            check_types(*state, sizes[i][0], sizes[i][1], sizes[i][2], form, 3);
        }
}

/* Where strides are ambiguous to a library: single rows, columns and terms, with any distance between rows. */
TEST(thin_matmuls)
{
    for (int form = 0; form < 3; form++) {
        for (int64_t size = 0; size < 27; size++)
            for (int64_t extra = 0; extra < 3; extra++)
                check_types(*state, size / 9 + 1, size / 3 % 3 + 1, size % 3 + 1, form, extra);
        for (int64_t extra = 0; extra < 2; extra++) {
            check_types(*state, 1, 200, 129, form, extra);
            check_types(*state, 300, 1, 257, form, extra);
            check_types(*state, 140, 150, 1, form, extra);
            check_types(*state, 1, 1, 2100, form, extra);
        }
        check_types(*state, 16385, 2, 3, form, 1); /* slabs: the last one is thin */
        check_types(*state, 2, 16385, 3, form, 1);
    }
}

/* Long k (float through the primitive, conversion in several pieces) and more rows than a block. */
TEST(matmuls_longer_than_a_block)
{
    for (int form = 0; form < 3; form++) {
        check_types(*state, 19, 7, 2100, form, 1);
        check_types(*state, 1100, 9, 5, form, 2);
        check_types(*state, 300, 1030, 3, form, 0);
        check_types(*state, 70, 1024, 5, form, 0); /* rows of B 4 KiB apart */
    }
}

/* A vocabulary's size: C is written slab by slab. GPT-2's as the head has it: logits, the gradient of its input, that
 * of its weights. */
TEST(matmuls_as_large_as_a_vocabulary)
{
    enum { GPT2 = 50257, PLAIN = 0, A_TRANSPOSED = 1, B_TRANSPOSED = 2 };
    check_types(*state, 2, GPT2, 3, B_TRANSPOSED, 0);
    check_types(*state, 2, 3, GPT2, PLAIN, 0);
    check_types(*state, GPT2, 3, 2, A_TRANSPOSED, 0);
    for (int form = 0; form < 3; form++) {
        check_types(*state, 16390, 3, 5, form, 1);
        check_types(*state, 3, 16390, 5, form, 1);
    }
}

/* More than one block of rows, columns and k, half a pair at the end, tiles cut at both borders; and C in whole lines,
 * written around the cache. */
TEST_OF(DOTS, bf16_matmuls_of_several_blocks)
{
    static const int64_t sizes[][3] = {{40, 100, 2101}, {270, 60, 1030}, {275, 430, 33},
                                       {520, 512, 24},  {33, 48, 1025},  {270, 6200, 8}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int form = 0; form < 3; form++)
            for (int way = 0; way < 4; way++) {
                dt_matmul mm = dt_dense_matmul(sizes[i][0], sizes[i][1], sizes[i][2], form & 1, form >> 1, DT_BF16,
                                               way & 2 ? DT_BF16 : DT_F32);
                mm.accumulate = way & 1;
                check_matmul(*state, &mm, (form + way) & 1);
            }
}

/* More tiles of C than a GPU has processors: its largest tiles. With a vocabulary's odd number in each place, in rows
 * that lie in whole chunks of 16 bytes: such matmuls may be cut. */
TEST(matmuls_that_fill_a_gpu)
{
    static const int64_t sizes[][3] = {{1544, 1416, 72}, {1544, 1413, 72}, {1541, 1416, 72}, {1544, 1416, 75}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int form = 0; form < 3; form++) {
            const int type = (form + (int)i) % N_TYPES;
            dt_matmul mm = dt_dense_matmul(sizes[i][0], sizes[i][1], sizes[i][2], form & 1, form >> 1, in_types[type],
                                           c_types[type]);
            mm.lda = form & 1 ? 1552 : 80, mm.ldb = form >> 1 ? 80 : 1424, mm.ldc = 1424, mm.accumulate = form == 2;
            check_matmul(*state, &mm, form & 1);
        }
}

/* C of one matmul on n_threads; skips where the kernel is not to be had: what oneDNN does with threads is its own
 * affair. */
static ref_array matmul_on(int n_threads, const dt_matmul *mm, const ref_array *a, const ref_array *b)
{
    fixture other = {0}, *f = &other;
    ref_array c = ref_new(mm->c_dtype, mm->m * mm->ldc);
    assert_int_equal(dt_device_open(&f->dev, "cpu", 0, n_threads, &f->ledger), DT_OK);
    char text[256];
    OPS(f)->describe(&f->dev, text, sizeof text);
    if (!strstr(text, "avx512_bf16") && !strstr(text, "bfmmla")) skip();
    RUN(matmul, mm, ON(*a), ON(*b), ON(c));
    dt_device_close(&f->dev);
    return c;
}

TEST_OF(DOTS, bf16_matmuls_do_not_depend_on_threads)
{
    for (int form = 0; form < 3; form++) {
        const dt_matmul mm = dt_dense_matmul(300, 200, 1100, form == 2, form == 1, DT_BF16, DT_F32);
        ref_array a = ref_random(DT_BF16, 300 * 1100, 1, 1), b = ref_random(DT_BF16, 200 * 1100, 2, 1),
                  one = matmul_on(1, &mm, &a, &b);
        for (int n = 2; n <= 7; n++) {
            ref_array c = matmul_on(n, &mm, &a, &b);
            assert_memory_equal(c.p, one.p, 300 * 200 * sizeof(float));
            ref_drop(&c);
        }
        ref_drop(&a), ref_drop(&b), ref_drop(&one);
    }
}

TEST(every_number_of_tokens_works)
{
    for (int64_t m = 1; m < 140; m++) {
        for (int64_t n = 24; n <= 72; n += 48) {
            const dt_matmul mm = dt_dense_matmul(m, n, 10, false, true, DT_BF16, DT_BF16);
            check_matmul(*state, &mm, true);
        }
    }
}

/* C of one matmul on n_threads, which are all that changes. */
static ref_array reproducible_matmul(int n_threads, const dt_matmul *mm, const ref_array *a, const ref_array *b)
{
    fixture other = {0}, *f = &other;
    ref_array c = ref_new(mm->c_dtype, mm->m * mm->ldc);
    assert_int_equal(dt_device_open(&f->dev, "cpu", 0, n_threads, &f->ledger), DT_OK);
    if (OPS(f)->make_reproducible) OPS(f)->make_reproducible(&f->dev);
    RUN(matmul, mm, ON(*a), ON(*b), ON(c));
    dt_device_close(&f->dev);
    return c;
}

/* Sizes at which a library cuts k among its threads (oneDNN 2.6: from 2 threads on in fp32, from 8 on in bf16), and C's
 * with fewer tiles than threads. */
TEST(a_reproducible_device_does_not_depend_on_threads)
{
    static const int64_t sizes[][3] = {{64, 257, 1000}, {96, 96, 2048}, {33, 130, 1030}, {260, 700, 96}, {3, 5, 4096}};
    static const int threads[] = {2, 3, 5, 8, 16};
    static const dt_dtype types[][2] = {
        {DT_F32, DT_F32}, {DT_BF16, DT_F32}, {DT_BF16, DT_BF16}, {DT_F16, DT_F32}, {DT_F16, DT_F16}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int way = 0; way < 15; way++) {
            if (!is_tried()) continue;
            const int64_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
            const int form = way % 3, type = way / 3;
            dt_matmul mm = dt_dense_matmul(m, n, k, form == 2, form == 1, types[type][0], types[type][1]);
            mm.accumulate = form == 2;
            ref_array a = ref_random(mm.dt, m * k, 1, 1), b = ref_random(mm.dt, k * n, 2, 1),
                      one = reproducible_matmul(1, &mm, &a, &b);
            for (size_t t = 0; t < (ref_is_cpu() ? sizeof threads / sizeof threads[0] : 1); t++) {
                ref_array c = reproducible_matmul(threads[t], &mm, &a, &b);
                assert_memory_equal(c.p, one.p, (size_t)(m * n) * dt_dtype_size(mm.c_dtype));
                ref_drop(&c);
            }
            ref_drop(&a), ref_drop(&b), ref_drop(&one);
        }
}

/* A form that the library computes wrongly in its first trial: DTRAIN_FAULT selects the form. */
TEST_OF(WRONG_LIBRARY, forms_that_the_library_gets_wrong_use_own_kernels)
{
    const char *matmuls = getenv("DTRAIN_CUDA_PRODUCT");
    char device[256];
    ((fixture *)*state)->dev.ops->describe(&((fixture *)*state)->dev, device, sizeof device);
    if ((matmuls && !strcmp(matmuls, "own")) || strstr(device, "no oneDNN")) skip();
    char path[] = "/tmp/dtrain-test-XXXXXX", text[1024] = {0};
    const int file = mkstemp(path), err = dup(STDERR_FILENO), out = dup(STDOUT_FILENO);
    assert_true(file >= 0 && unlink(path) == 0);
    fflush(stdout);
    dup2(file, STDERR_FILENO), dup2(file, STDOUT_FILENO);
    check_types(*state, 65, 70, 33, 1, 2);
    check_types(*state, 65, 70, 33, 1, 0);
    fflush(stdout);
    dup2(err, STDERR_FILENO), dup2(out, STDOUT_FILENO);
    assert_true(pread(file, text, sizeof text - 1, 0) > 0);
    close(file), close(err), close(out);
    const char *first = strstr(text, "computes wrong matmul results (first case: fp32, A transposed, B plain)");
    assert_non_null(first);
    assert_null(strstr(first + 1, "computes wrong matmul results"));
}

TEST(a_wrong_row_distance_is_refused)
{
    fixture *f = *state;
    float x[64] = {0};
    const dt_matmul mm = {.m = 2, .n = 4, .k = 8, .lda = 7, .ldb = 4, .ldc = 4};
    assert_fails(TRY(matmul, &mm, ARR(x, 64), ARR(x, 64), ARR(x, 64)), DT_ERR_ARG, "lda");
}

TEST(bias_gradient_is_the_column_sum)
{
    fixture *f = *state;
    static const int64_t sizes[][3] = {{1, 1, 1}, {3, 64, 64}, {129, 65, 70}, {70, 200, 200}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int way = 0; way < 18; way++) {
            static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F16};
            const int64_t m = sizes[i][0], n = sizes[i][1], ld = sizes[i][2];
            const dt_dtype dt = types[way % 3], gt = types[way / 3 % 3];
            const bool onto = way >= 9;
            ref_array dy = ref_random(dt, m * ld, 5, 1), db = onto ? ref_random(gt, n, 6, 1) : ref_new(gt, n);
            double *dy64 = ref_doubles(&dy), *want = ref_doubles(&db);
            for (int64_t c = 0; c < n; c++) {
                if (!onto) want[c] = 0;
                for (int64_t r = 0; r < m; r++) want[c] += dy64[r * ld + c];
            }
            RUN(bias_backward, ON(dy), m, n, ld, dt, ON(db), gt, onto);
            assert_true(ref_near(&db, want, 0x1p-24 * (double)m * 8, "bias")); /* m roundings of sums of size sqrt(m) */
            ref_drop(&dy), ref_drop(&db), free(dy64), free(want);
        }
}

int main(void)
{
    setenv("DTRAIN_FAULT", "matmul.check:*:1:error", 1);
    int failed = run_groups(WRONG_LIBRARY, "a library with a wrong matmul", open_device, close_device);
    failed += run_listed("native bf16 where there is one", open_device, close_device);
    setenv("DTRAIN_ONEDNN", "none", 1), setenv("DTRAIN_CUDA_PRODUCT", "own", 1);
    failed += run_listed("our own kernels alone", open_device, close_device);
    unsetenv("DTRAIN_ONEDNN"), unsetenv("DTRAIN_CUDA_PRODUCT");
    if (!ref_is_cpu()) return failed != 0;
    setenv("DTRAIN_BF16", "dot", 1);
    failed += run_groups(DOTS, "pairwise dot products", open_device, close_device);
    setenv("DTRAIN_BF16", "none", 1); /* as on a processor without it; kernels only convert, so one set will do */
    failed += run_listed(ref_take_isa(0), open_device, close_device);
    return failed != 0;
}
