/* device_fixture.h - for cmocka programs of one process: the device under test, opened once per group, and its
 * operations on host arrays.
 *
 * An operation works on copies in device memory. ON(a), ON_FROM(a, i) and ARR(p, n) make the copy of an array when they
 * name it as an argument; RUN waits for the operation and brings all copies back. What a test prepares and checks is
 * host memory, whatever the device. */
#ifndef DTRAIN_TESTS_DEVICE_FIXTURE_H
#define DTRAIN_TESTS_DEVICE_FIXTURE_H

#include "cases.h"
#include "forms.h"
#include "ref_device.h"

enum { MAX_COPIES = 20, GUARD = 256 };

/* A host array on the device, with guards on both sides. */
typedef struct device_copy {
    void *host;
    size_t nbytes;
    char *staged; /* guard, array, guard: as it goes there, and as it comes back */
    dt_buf buf;
} device_copy;

typedef struct fixture {
    dt_device dev;
    dt_ledger ledger;
    device_copy copies[MAX_COPIES]; /* of the operation that is being called */
    int n_copies;
} fixture;

#define OPS(f) ((f)->dev.ops)
#define ON(a) on_device(f, (a).p, ref_bytes(&(a)))                        /* a ref_array */
#define ON_FROM(a, i) ((char *)ON(a) + (size_t)(i)*dt_dtype_size((a).dt)) /* its elements from i on */
#define ARR(p, n) on_device(f, (p), (size_t)(n) * sizeof *(p))            /* n elements at p */
#define TRY(op, ...) back_to_host(f, #op, OPS(f)->op(&f->dev, __VA_ARGS__, NULL))
#define RUN(op, ...) assert_int_equal(TRY(op, __VA_ARGS__), DT_OK)

/* The same array twice in a call is one array. */
static inline void *on_device(fixture *f, const void *host, size_t nbytes)
{
    int i = 0;
    while (i < f->n_copies && (f->copies[i].host != host || f->copies[i].nbytes != nbytes)) i++;
    device_copy *c = &f->copies[i];
    assert_true(i < MAX_COPIES);
    if (i == f->n_copies) {
        *c = (device_copy){.host = (void *)host, .nbytes = nbytes, .staged = malloc(nbytes + 2 * GUARD)};
        assert_non_null(c->staged);
        memset(c->staged, 0xff, nbytes + 2 * GUARD);
        if (nbytes > 0) memcpy(c->staged + GUARD, host, nbytes);
        assert_int_equal(dt_buf_alloc(&c->buf, &f->dev, DT_ON_DEVICE, nbytes + 2 * GUARD, DT_MEM_OTHER), DT_OK);
        assert_int_equal(OPS(f)->copy(&f->dev, c->buf.ptr, c->staged, c->buf.nbytes, NULL), DT_OK);
        f->n_copies++;
    }
    return (char *)c->buf.ptr + GUARD;
}

static inline bool guards_hold(const device_copy *c)
{
    const char *before = c->staged, *after = c->staged + GUARD + c->nbytes;
    int i = 0;
    while (i < GUARD && before[i] == (char)0xff && after[i] == (char)0xff) i++;
    return i == GUARD;
}

/* Returns the operation's error, at the call or later. What it left alone is not written: it may be constant. */
static inline dt_err back_to_host(fixture *f, const char *op, dt_err err)
{
    bool beside = false;
    for (int i = 0; i < f->n_copies && err == DT_OK; i++)
        err = OPS(f)->copy(&f->dev, f->copies[i].staged, f->copies[i].buf.ptr, f->copies[i].buf.nbytes, NULL);
    const dt_err late = OPS(f)->stream_sync(&f->dev, NULL);
    for (int i = 0; i < f->n_copies; i++) {
        device_copy *c = &f->copies[i];
        beside = beside || !guards_hold(c);
        if (c->nbytes > 0 && memcmp(c->host, c->staged + GUARD, c->nbytes) != 0)
            memcpy(c->host, c->staged + GUARD, c->nbytes);
        free(c->staged);
        dt_buf_free(&c->buf);
    }
    f->n_copies = 0;
    if (beside) fail_msg("%s wrote beside an array", op);
    return err == DT_OK ? late : err;
}

/* Are matmuls a library's that may round P before it adds D or bias, and start an activation from P before it is
 * rounded? cuBLASLt does, in 16 bits. */
static inline bool library_rounds(const fixture *f, dt_dtype c_dtype)
{
    const char *matmuls = getenv("DTRAIN_CUDA_PRODUCT");
    return c_dtype != DT_F32 && !strcmp(OPS(f)->name, "cuda") && !(matmuls && !strcmp(matmuls, "own"));
}

/* What that may add to the error of sums want[n] with n_added values of at most 1 each: half a unit of each partial
 * sum. */
static inline double library_error(const fixture *f, dt_dtype c_dtype, int n_added, const double *want, int64_t n)
{
    double largest = 0;
    for (int64_t i = 0; i < n; i++)
        if (fabs(want[i]) > largest) largest = fabs(want[i]);
    const double half_unit = c_dtype == DT_F16 ? 0x1p-12 : 0x1p-9;
    return library_rounds(f, c_dtype) ? n_added * half_unit * (largest + n_added) : 0;
}

/* C[m,n] = A op(B), in whose rows `gap` elements follow (in those of D twice as many); what goes with it is left to the
 * caller, with all in dt. */
static inline dt_matmul matmul_with_gaps(int64_t m, int64_t n, int64_t k, int64_t gap, bool trans_b, dt_dtype dt)
{
    dt_matmul mm = dt_dense_matmul(m, n, k, false, trans_b, dt, dt);
    mm.lda += gap, mm.ldb += gap, mm.ldc += gap, mm.ldd = n + 2 * gap, mm.addend_dtype = dt;
    return mm;
}

static inline int open_device(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    *state = f;
    if (f && dt_device_open(&f->dev, "cpu", 0, 2, &f->ledger) == DT_OK) return 0;
    print_error("%s\n", dt_error_message());
    return -1;
}

static inline int close_device(void **state)
{
    fixture *f = *state;
    dt_device_close(&f->dev);
    free(f);
    return 0;
}

/* Runs the tests with each set of instructions of the CPU, or once on another device; the number that failed. */
static inline int run_with_each_isa(void)
{
    int failed = 0;
    for (int i = 0; i < ref_n_isas(); i++) failed += run_listed(ref_take_isa(i), open_device, close_device);
    return failed;
}

#endif
