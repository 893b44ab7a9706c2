/* test_device_epilogue.c - epilogues of a matmul: an addend, an activation or its derivative, sums for bias
 * gradients. They are compared with plain loops in double, and bitwise with the separate calls.
 * DEVICES: cpu queue */
#include "device_fixture.h"

enum { LARGE = 2, DOTS = 4, EACH_ISA = 8 };

/* A matmul and all that it may read or write, as host arrays. */
typedef struct work {
    dt_matmul mm; /* without pointers */
    bool with_bias, with_addend, with_aux;
    ref_array a, b, bias, addend, aux, c, sums;
} work;

static const int64_t sizes[][3] = {{1, 1, 1},    {3, 17, 1},   {17, 1, 3},    {5, 70, 0},    {40, 100, 37},
                                   {66, 48, 16}, {72, 64, 40}, {129, 65, 33}, {300, 50, 70}, {35, 96, 1030}};
enum { N_SIZES = sizeof sizes / sizeof sizes[0], N_SMALL = 7 };

/* form: 1 A transposed, 2 B transposed, 3 to 5 with distances between rows, in whole chunks of 16 bytes where n is. */
static dt_matmul make_form(const int64_t *size, int form, dt_dtype dt, dt_dtype c_dtype)
{
    const int64_t gap = form > 2 ? size[1] % 8 ? 3 : 8 : 0;
    dt_matmul mm = {.m = size[0], .n = size[1], .k = size[2], .trans_a = form % 3 == 1, .trans_b = form % 3 == 2};
    mm.dt = dt, mm.c_dtype = c_dtype;
    mm.lda = (mm.trans_a ? mm.m : mm.k) + gap, mm.ldb = (mm.trans_b ? mm.k : mm.n) + 2 * gap;
    mm.ldc = mm.n + gap, mm.ldd = mm.n + 2 * gap, mm.ld_aux = mm.n + 3 * gap;
    mm.addend_dtype = dt, mm.sums_dtype = DT_F32;
    return mm;
}

static work make_work(const dt_matmul *mm)
{
    const int64_t n_sums = mm->sums_of == DT_SUMS_OF_A ? mm->m : mm->n;
    work w = {.mm = *mm, .with_bias = true, .with_aux = true};
    w.a = ref_random(mm->dt, (mm->trans_a ? mm->k : mm->m) * mm->lda, 1, 1);
    w.b = ref_random(mm->dt, (mm->trans_b ? mm->n : mm->k) * mm->ldb, 2, 1);
    w.bias = ref_random(mm->dt, mm->n, 3, 1);
    w.addend = ref_random(mm->addend_dtype, mm->m * mm->ldd, 4, 1);
    w.aux = mm->epilogue == DT_EPILOGUE_ACT ? ref_new(mm->dt, mm->m * mm->ld_aux)
                                            : ref_random(mm->dt, mm->m * mm->ld_aux, 5, 4);
    w.c = mm->accumulate ? ref_random(mm->c_dtype, mm->m * mm->ldc, 6, 1) : ref_new(mm->c_dtype, mm->m * mm->ldc);
    w.sums = mm->accumulate_sums ? ref_random(mm->sums_dtype, n_sums, 7, 1) : ref_new(mm->sums_dtype, n_sums);
    return w;
}

static void drop_work(work *w)
{
    ref_array *const all[] = {&w->a, &w->b, &w->bias, &w->addend, &w->aux, &w->c, &w->sums};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) ref_drop(all[i]);
}

static void run_work(fixture *f, work *w)
{
    dt_matmul mm = w->mm;
    if (w->with_bias) mm.bias = ON(w->bias);
    if (w->with_addend) mm.addend = ON(w->addend);
    if (w->with_aux && mm.epilogue != DT_EPILOGUE_NONE) mm.aux = ON(w->aux);
    if (mm.sums_of != DT_SUMS_NONE) mm.sums = ON(w->sums);
    RUN(matmul, &mm, ON(w->a), ON(w->b), ON(w->c));
}

/* As in test_device_matmul.c: k products and partial sums of a size of sqrt(k), four times; and the addend. */
static double matmul_error(int64_t k) { return 4 * 0x1p-24 * ((double)k + 3); }

/* What lies between the rows is left out. */
static bool near_in_columns(const ref_array *got, double *want, int64_t m, int64_t n, int64_t ld, double tol,
                            const char *what)
{
    ref_array dense = ref_new(got->dt, m * n);
    double *want_dense = malloc((size_t)(m * n + 1) * sizeof *want_dense);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            ref_set(&dense, i * n + j, ref_get(got, i * ld + j));
            want_dense[i * n + j] = want[i * ld + j];
        }
    const bool near = ref_near(&dense, want_dense, tol, what);
    ref_drop(&dense), free(want_dense);
    return near;
}

/* The types of A and B, and of C. */
static const dt_dtype in_types[] = {DT_F32, DT_BF16, DT_BF16, DT_F16, DT_F16},
                      c_types[] = {DT_F32, DT_F32, DT_BF16, DT_F32, DT_F16}, types[] = {DT_F32, DT_BF16, DT_F16};
enum { N_PAIRS = sizeof in_types / sizeof in_types[0], N_TYPES = sizeof types / sizeof types[0] };
static double half_unit(dt_dtype dt) { return dt == DT_F32 ? 0x1p-24 : dt_roundoff(dt) / 2; }

/* As in test_device_layers.c, where the input may be as large as that. */
static double act_error(double largest) { return 0x1p-24 * 16 * (1 + fmin(largest, 8)); }

/* The plain loop on copies of the same arrays; results in c and sums, aux as it is or as it must be. */
static void check_work(fixture *f, work *w, const char *what)
{
    const dt_matmul *mm = &w->mm;
    double *a = ref_doubles(&w->a), *b = ref_doubles(&w->b), *bias = ref_doubles(&w->bias),
           *addend = ref_doubles(&w->addend), *aux = ref_doubles(&w->aux), *c = ref_doubles(&w->c),
           *sums = ref_doubles(&w->sums);
    const ref_matmul_args x = {.a = a,
                               .b = b,
                               .bias = w->with_bias ? bias : NULL,
                               .addend = w->with_addend ? addend : NULL,
                               .c = c,
                               .aux = w->with_aux ? aux : NULL,
                               .sums = sums};
    const double most = (double)mm->k + 3; /* |P| */
    ref_matmul(mm, &x);
    const double of_p =
        matmul_error(mm->k) + library_error(f, mm->c_dtype, w->with_bias + w->with_addend + mm->accumulate,
                                            mm->epilogue == DT_EPILOGUE_ACT && w->with_aux ? aux : c, mm->m * mm->ldc);
    double of_c = of_p;
    run_work(f, w);
    /* P is rounded before the activation; slopes are at most 1.2 */
    if (mm->epilogue == DT_EPILOGUE_ACT) of_c = 1.2 * (of_p + half_unit(mm->dt) * most) + act_error(most);
    if (mm->epilogue == DT_EPILOGUE_ACT_BACKWARD) of_c = 1.2 * (of_p + half_unit(mm->dt) * most) + act_error(4) * most;
    if (mm->epilogue == DT_EPILOGUE_ACT && w->with_aux)
        assert_true(near_in_columns(&w->aux, aux, mm->m, mm->n, mm->ld_aux, of_p, what));
    assert_true(near_in_columns(&w->c, c, mm->m, mm->n, mm->ldc, of_c, what));
    if (mm->sums_of != DT_SUMS_NONE) { /* a rounding for each term; those of C have C's errors */
        const bool of_results = mm->sums_of == DT_SUMS_OF_C;
        const double n = (double)(of_results ? mm->m : mm->k),
                     tol = (n + 1) * (of_results ? of_c + 1.2 * half_unit(mm->c_dtype) * most : 0x1p-24 * 8);
        assert_true(ref_near(&w->sums, sums, tol, what));
    }
    free(a), free(b), free(bias), free(addend), free(aux), free(c), free(sums);
}

/* ---- addend ------------------------------------------------------------------------------------------------------ */

TEST_OF(ALWAYS | DOTS, an_addend_of_either_type_is_rounded_once)
{
    for (int s = 0; s < N_SIZES; s++)
        for (int form = 0; form < 6; form++)
            for (int way = 0; way < 4 * N_PAIRS; way++) {
                if (!is_tried()) continue;
                dt_matmul mm = make_form(sizes[s], form, in_types[way % N_PAIRS], c_types[way % N_PAIRS]);
                if (way / N_PAIRS & 1) mm.addend_dtype = DT_F32;
                work w = make_work(&mm);
                ref_array was = ref_copy(&w.addend);
                w.with_bias = way / (2 * N_PAIRS);
                w.with_addend = true;
                check_work(*state, &w, "matmul with an addend");
                assert_memory_equal(w.addend.p, was.p, ref_bytes(&was));
                drop_work(&w), ref_drop(&was);
            }
}

/* C = A B + D, by accumulation onto a copy of D, and with D named twice. */
TEST_OF(ALWAYS | DOTS, an_addend_is_what_could_be_accumulated_onto)
{
    fixture *f = *state;
    for (int s = 0; s < N_SIZES; s++)
        for (int form = 0; form < 6; form++)
            for (int way = 0; way < 2 * N_PAIRS; way++) {
                if (!is_tried()) continue;
                dt_matmul mm = make_form(sizes[s], form, in_types[way % N_PAIRS], c_types[way % N_PAIRS]);
                if (library_rounds(f, mm.c_dtype)) continue; /* not the same layout as C's */
                mm.ldd = mm.ldc, mm.addend_dtype = mm.c_dtype;
                work w = make_work(&mm);
                ref_array onto = ref_copy(&w.addend), same = ref_copy(&w.addend);
                w.with_bias = way / N_PAIRS;
                w.with_addend = true;
                ref_drop(&w.c), w.c = ref_copy(&w.addend);
                run_work(f, &w);
                mm.accumulate = true;
                mm.bias = w.with_bias ? ON(w.bias) : NULL;
                RUN(matmul, &mm, ON(w.a), ON(w.b), ON(onto));
                mm.accumulate = false;
                mm.bias = w.with_bias ? ON(w.bias) : NULL;
                mm.addend = ON(same);
                RUN(matmul, &mm, ON(w.a), ON(w.b), ON(same));
                assert_memory_equal(onto.p, w.c.p, ref_bytes(&onto));
                assert_memory_equal(same.p, w.c.p, ref_bytes(&onto));
                drop_work(&w), ref_drop(&onto), ref_drop(&same);
            }
}

/* ---- activations ------------------------------------------------------------------------------------------------- */

TEST(activations_of_matmuls)
{
    for (int s = 0; s < N_SMALL; s++)
        for (int form = 0; form < 6; form++)
            for (int way = 0; way < 16 * N_TYPES; way++) {
                if (!is_tried()) continue;
                const dt_dtype dt = types[way / 16];
                dt_matmul mm = make_form(sizes[s], form, dt, dt);
                mm.epilogue = way & 1 ? DT_EPILOGUE_ACT : DT_EPILOGUE_ACT_BACKWARD;
                mm.act = (dt_activation)(way >> 1 & 3);
                mm.accumulate = way & 8 && form % 2;
                work w = make_work(&mm);
                w.with_addend = way & 8 && !mm.accumulate;
                w.with_bias = mm.epilogue == DT_EPILOGUE_ACT;
                w.with_aux = mm.epilogue == DT_EPILOGUE_ACT_BACKWARD || form > 2;
                check_work(*state, &w, way & 1 ? "act(matmul)" : "matmul times slope");
                drop_work(&w);
            }
}

/* Of a large matmul with an odd extent a library may take the multiples of 8: in columns, rows (A transposed) or
 * terms, the last in several panels of rows. */
TEST_OF(LARGE, large_matmuls_with_one_odd_extent)
{
    static const struct odd_case {
        int64_t size[3];
        int form;
        dt_dtype dt;
        dt_epilogue epilogue;
        bool with_addend;
    } cases[] = {
        {{264, 16384, 35}, 2, DT_BF16, DT_EPILOGUE_ACT, false},
        {{264, 1029, 520}, 0, DT_F16, DT_EPILOGUE_ACT_BACKWARD, true},
        {{517, 1032, 264}, 1, DT_BF16, DT_EPILOGUE_ACT, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct odd_case *c = &cases[i];
        dt_matmul mm = make_form(c->size, c->form, c->dt, c->dt);
        mm.lda = (mm.lda + 7) / 8 * 8, mm.ldb = (mm.ldb + 7) / 8 * 8, mm.ldc = (mm.ldc + 7) / 8 * 8;
        mm.ldd = mm.ldc + 8, mm.ld_aux = mm.ldc + 16;
        mm.epilogue = c->epilogue, mm.act = DT_ACT_GELU_TANH;
        work w = make_work(&mm);
        w.with_addend = c->with_addend;
        check_work(*state, &w, "large matmul with an odd extent");
        drop_work(&w);
    }
}

/* Bitwise equal to a matmul into aux followed by the activation's own call. A library may start from the matmul
 * before it was rounded into aux, unless it is told not to. */
TEST(an_epilogue_is_the_two_calls)
{
    fixture *f = *state;
    for (int s = 0; s < N_SIZES; s++)
        for (int way = 0; way < 16 * N_TYPES; way++) {
            const dt_dtype dt = types[way / 16];
            const int64_t n = sizes[s][0] * sizes[s][1];
            dt_matmul mm = make_form(sizes[s], 2, dt, dt), plain = mm;
            mm.epilogue = way & 1 ? DT_EPILOGUE_ACT : DT_EPILOGUE_ACT_BACKWARD;
            mm.act = (dt_activation)(way >> 1 & 3);
            mm.act_of_aux = way & 8;
            const bool by_library = library_rounds(f, dt) && mm.act == DT_ACT_GELU_TANH, of_aux = way & 1 && way & 8;
            if (by_library && !of_aux) continue; /* near, which is another test's */
            work w = make_work(&mm);
            ref_array p = ref_new(dt, n), y = ref_new(dt, n);
            run_work(f, &w);
            plain.bias = ON(w.bias);
            RUN(matmul, &plain, ON(w.a), ON(w.b), ON(p));
            if (way & 1) {
                if (!by_library) assert_memory_equal(w.aux.p, p.p, ref_bytes(&p));
                RUN(act_forward, mm.act, ON(w.aux), ON(y), dt, n);
            } else {
                RUN(act_backward, mm.act, ON(w.aux), ON(p), ON(y), dt, n);
            }
            assert_memory_equal(w.c.p, y.p, ref_bytes(&y));
            drop_work(&w), ref_drop(&p), ref_drop(&y);
        }
}

/* Slopes against differences of the plain loop: L = sum of g_ij act(P)_ij with a matmul for g; dL/dx at x = aux. */
TEST(the_derivative_is_that_of_the_activation)
{
    fixture *f = *state;
    enum { M = 7, N = 19, K = 5 };
    const double h = 1e-4;
    for (int act = 0; act < DT_N_ACT; act++) {
        const int64_t size[] = {M, N, K};
        dt_matmul mm = make_form(size, 0, DT_F32, DT_F32), plain = mm;
        mm.epilogue = DT_EPILOGUE_ACT_BACKWARD, mm.act = (dt_activation)act;
        work w = make_work(&mm);
        ref_array g = ref_new(DT_F32, M * N);
        w.with_bias = false;
        run_work(f, &w);
        RUN(matmul, &plain, ON(w.a), ON(w.b), ON(g));
        for (int64_t i = 0; i < M * N; i++) {
            double slope;
            const double x = ref_get(&w.aux, i), up = ref_act(mm.act, x + h, &slope),
                         down = ref_act(mm.act, x - h, &slope), want = ref_get(&g, i) * (up - down) / (2 * h);
            /* third derivatives are at most 2: h^2/3 |g|; and the matmul's own rounding */
            assert_true(fabs(ref_get(&w.c, i) - want) <= K * (h * h + 4 * 0x1p-24 * 16));
        }
        drop_work(&w), ref_drop(&g);
    }
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

TEST_OF(ALWAYS | EACH_ISA, sums_of_rows_and_columns)
{
    for (int s = 0; s < N_SMALL; s++)
        for (int form = 0; form < 6; form++)
            for (int way = 0; way < 12 * N_PAIRS; way++) {
                dt_matmul mm = make_form(sizes[s], form, in_types[way % N_PAIRS], c_types[way % N_PAIRS]);
                const int how = way / N_PAIRS;
                mm.sums_of = (dt_matmul_sums)(DT_SUMS_OF_A + how % 3);
                mm.sums_dtype = !(how / 3 & 1) ? DT_F32 : mm.dt == DT_F16 ? DT_F16 : DT_BF16;
                mm.accumulate_sums = how / 6;
                work w = make_work(&mm);
                w.with_bias = form % 2;
                check_work(*state, &w, "sums with a matmul");
                drop_work(&w);
            }
}

/* dW = dY^T X with the gradient of the bias, and dX = (dY W) act'(aux) with the gradient of the bias before it. */
TEST(bias_gradients_are_those_of_their_own_call)
{
    fixture *f = *state;
    for (int s = 0; s < N_SIZES; s++)
        for (int way = 0; way < 2 * N_PAIRS; way++) {
            const bool of_c = way >= N_PAIRS;
            dt_matmul mm = make_form(sizes[s], of_c ? 0 : 1, in_types[way % N_PAIRS], c_types[way % N_PAIRS]);
            mm.sums_of = of_c ? DT_SUMS_OF_C : DT_SUMS_OF_A;
            if (of_c && mm.dt == mm.c_dtype) mm.epilogue = DT_EPILOGUE_ACT_BACKWARD, mm.act = DT_ACT_GELU_TANH;
            work w = make_work(&mm);
            ref_array want = ref_new(DT_F32, w.sums.n);
            run_work(f, &w);
            if (of_c)
                RUN(bias_backward, ON(w.c), mm.m, mm.n, mm.ldc, mm.c_dtype, ON(want), DT_F32, false);
            else
                RUN(bias_backward, ON(w.a), mm.k, mm.m, mm.lda, mm.dt, ON(want), DT_F32, false);
            assert_memory_equal(w.sums.p, want.p, ref_bytes(&want));
            drop_work(&w), ref_drop(&want);
        }
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void refuse(fixture *f, const dt_matmul *mm, float *x, const char *why)
{
    dt_error_clear();
    assert_int_equal(TRY(matmul, mm, ARR(x, 64), ARR(x, 64), ARR(x, 64)), DT_ERR_ARG);
    if (!strstr(dt_error_message(), why)) fail_msg("\"%s\" does not say \"%s\"", dt_error_message(), why);
    dt_error_clear();
}

TEST(impossible_values_are_refused)
{
    fixture *f = *state;
    float x[64] = {0};
    const dt_matmul good = {.m = 2, .n = 4, .k = 8, .lda = 8, .ldb = 4, .ldc = 4, .ldd = 4, .ld_aux = 4};
    dt_matmul mm = good;
    mm.accumulate = true, mm.addend = ARR(x, 64);
    refuse(f, &mm, x, "accumulate");
    mm = good, mm.addend = ARR(x, 64), mm.ldd = 3;
    refuse(f, &mm, x, "ldd");
    mm = good, mm.addend = ARR(x, 64), mm.addend_dtype = DT_BF16;
    refuse(f, &mm, x, "addend_dtype");
    mm = good, mm.dt = DT_BF16, mm.epilogue = DT_EPILOGUE_ACT;
    refuse(f, &mm, x, "c_dtype");
    mm = good, mm.epilogue = DT_EPILOGUE_ACT_BACKWARD;
    refuse(f, &mm, x, "aux");
    mm = good, mm.epilogue = DT_EPILOGUE_ACT, mm.aux = ARR(x, 64), mm.ld_aux = 2;
    refuse(f, &mm, x, "ld_aux");
    mm = good, mm.sums_of = DT_SUMS_OF_A;
    refuse(f, &mm, x, "sums");
    mm = good, mm.b_scaled = (dt_scaled){.how = DT_SCALE_ROWS, .stored = DT_F32, .scale = ARR(x, 64)};
    refuse(f, &mm, x, "stored");
    mm = good, mm.b_scaled = (dt_scaled){.how = DT_SCALE_ROWS, .stored = DT_I8};
    refuse(f, &mm, x, "scale");
    mm = good, mm.b_scaled = (dt_scaled){.how = DT_SCALE_NF4, .stored = DT_NF4X2, .scale = ARR(x, 64)};
    refuse(f, &mm, x, "blocks");
    mm = good, mm.b_scaled = (dt_scaled){.how = DT_SCALE_ROWS, .stored = DT_I8, .scale = ARR(x, 64)};
    mm.sums_of = DT_SUMS_OF_B, mm.sums = ARR(x, 64);
    refuse(f, &mm, x, "sums_of");
    mm = good, mm.a_scaled = (dt_scaled){.how = DT_SCALE_MATRIX, .stored = DT_F32, .scale = ARR(x, 64)};
    refuse(f, &mm, x, "a_scaled");
}

int main(void)
{
    int failed = run_listed("native bf16 where there is one", open_device, close_device);
    failed += run_groups(LARGE, "what a library may take in parts", open_device, close_device);
    setenv("DTRAIN_ONEDNN", "none", 1), setenv("DTRAIN_CUDA_PRODUCT", "own", 1);
    failed += run_listed("our own kernels alone", open_device, close_device);
    unsetenv("DTRAIN_ONEDNN"), unsetenv("DTRAIN_CUDA_PRODUCT");
    setenv("DTRAIN_BF16", "dot", 1);
    failed += run_groups(DOTS, "pairwise dot products", open_device, close_device);
    setenv("DTRAIN_BF16", "none", 1); /* as on a processor without it */
    failed += run_listed(ref_take_isa(0), open_device, close_device);
    for (int i = 1; i < ref_n_isas(); i++) failed += run_groups(EACH_ISA, ref_take_isa(i), open_device, close_device);
    return failed != 0;
}
