/* test_self_check.c - the self-check passes on devices that compute what the CPU does, and names an operation that does
 * not, whichever it is: each is replaced in turn by one that does nothing, and some by one that is wrong a little. */
#include "cases.h"
#include "../src/backends/queue.h"
#include "ref_device.h"

typedef struct fixture {
    dt_device dev;
    dt_ledger ledger;
    dt_device_ops ops; /* of dev, changed by a test */
    const dt_device_ops *right;
} fixture;

static int open_device(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    *state = f;
    if (!f || dt_device_open(&f->dev, "cpu", 0, 1, &f->ledger) != DT_OK) return -1;
    f->right = f->dev.ops;
    f->ops = *f->dev.ops;
    return 0;
}

static int close_device(void **state)
{
    fixture *f = *state;
    f->dev.ops = f->right;
    dt_device_close(&f->dev);
    free(f);
    return 0;
}

TEST(what_computes_as_the_cpu_does_passes)
{
    fixture *f = *state;
    const dt_err err = dt_device_self_check(&f->dev, 2, NULL);
    if (err != DT_OK) print_error("%s\n", dt_error_message());
    assert_int_equal(err, DT_OK);
    assert_int_equal(atomic_load(&f->ledger.total_now), 0);
}

/* Other kernels, other orders of sums: as far apart as devices that are right may be. */
TEST(the_kernels_of_other_instruction_sets_pass)
{
    for (int i = 0; i < ref_n_isas(); i++) {
        fixture f = {0};
        const char *isa = ref_take_isa(i);
        setenv("DTRAIN_BF16", i % 2 ? "none" : "dot", 1);
        assert_int_equal(dt_device_open(&f.dev, "cpu", 0, 1, &f.ledger), DT_OK);
        unsetenv("DTRAIN_ISA"), unsetenv("DTRAIN_BF16");
        const dt_err err = dt_device_self_check(&f.dev, 2, NULL);
        if (err != DT_OK) print_error("%s: %s\n", isa, dt_error_message());
        assert_int_equal(err, DT_OK);
        dt_device_close(&f.dev);
    }
}

static void expect_named(fixture *f, const char *operation)
{
    f->dev.ops = &f->ops;
    if (dt_device_self_check(&f->dev, 1, NULL) != DT_ERR_FAULT)
        fail_msg("no case of src/selfcheck tries %s", operation);
    if (!strstr(dt_error_message(), operation)) fail_msg("%s is not in: %s", operation, dt_error_message());
    dt_error_clear();
    f->dev.ops = f->right;
    f->ops = *f->right;
    assert_int_equal(atomic_load(&f->ledger.total_now), 0);
}

/* ---- nothing is done --------------------------------------------------------------------------------------------- */

static dt_err nothing(void) { return DT_OK; }

static const struct {
    const char *name;
    size_t at;
} operations[] = {
#define DT_OP(op, ...) {#op, offsetof(dt_device_ops, op)},
#include "dtrain/device/op_list.h"
};

/* Half a second for each operation: in the full tier only (docs/testing.md). e2e_style.sh finds operations without a
 * case. */
TEST(an_operation_that_does_nothing_is_named)
{
    fixture *f = *state;
    const char *full = getenv("FULL");
    if (full && !*full) skip();
    dt_err (*const left_out)(void) = nothing;
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
        memcpy((char *)&f->ops + operations[i].at, &left_out, sizeof left_out);
        expect_named(f, operations[i].name);
    }
}

/* ---- a little wrong ---------------------------------------------------------------------------------------------- */

static const dt_device_ops *right;

static dt_err without_last_term(dt_device *dev, const dt_matmul *mm, const void *a, const void *b, void *c,
                                dt_stream *stream)
{
    dt_matmul wrong = *mm;
    if (wrong.k > 500) wrong.k--;
    return right->matmul(dev, &wrong, a, b, c, stream);
}
static dt_err without_last_key(dt_device *dev, const dt_attention *at, const void *q, const void *k, const void *v,
                               void *out, float *lse, dt_stream *stream)
{
    dt_attention wrong = *at;
    if (wrong.window > 0) wrong.window--;
    return right->attention_forward(dev, &wrong, q, k, v, out, lse, stream);
}
static dt_err larger_epsilon(dt_device *dev, const dt_rmsnorm *n, const void *x, const void *weight, void *y,
                             float *rstd, dt_stream *stream)
{
    dt_rmsnorm wrong = *n;
    wrong.eps *= 2;
    return right->rmsnorm_forward(dev, &wrong, x, weight, y, rstd, stream);
}
static dt_err without_decay(dt_device *dev, const dt_adamw *opt, const void *grad, dt_dtype gt, float *master, float *m,
                            float *v, void *param, dt_dtype param_dt, int64_t n, dt_stream *stream)
{
    dt_adamw wrong = *opt;
    wrong.weight_decay = 0;
    return right->adamw_step(dev, &wrong, grad, gt, master, m, v, param, param_dt, n, stream);
}
static dt_err beside_the_row(dt_device *dev, const void *dy, int64_t m, int64_t n, int64_t ld, dt_dtype dt, void *dbias,
                             dt_dtype gt, bool accumulate, dt_stream *stream)
{
    return right->bias_backward(dev, dy, m, n == 77 ? n + 1 : n, ld, dt, dbias, gt, accumulate, stream);
}
static dt_err refused(dt_device *dev, const void *x, const void *addend, void *y, float p, uint64_t key,
                      const uint64_t *token_key, int64_t n_tok, int64_t width, dt_dtype dt, dt_stream *stream)
{
    return dt_fail(DT_ERR_FAULT, "not today");
}
TEST(a_small_mistake_is_found)
{
    fixture *f = *state;
    right = f->right;
    f->ops.matmul = without_last_term;
    expect_named(f, "matmul 300x40x512");
    f->ops.attention_forward = without_last_key;
    expect_named(f, "window");
    f->ops.rmsnorm_forward = larger_epsilon;
    expect_named(f, "rmsnorm_forward");
    f->ops.adamw_step = without_decay;
    expect_named(f, "adamw's parameters");
    f->ops.bias_backward = beside_the_row;
    expect_named(f, "memory outside the results was overwritten");
    f->ops.dropout = refused;
    expect_named(f, "not today");
}

/* Kernels for arrays in whole chunks of 16 bytes, as those of training are: of the gradient of a matrix, of the
 * gradients of heads of 64, and of long sequences. */
static bool is_whole(const void *a, const void *b, const void *c)
{
    return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) & 15) == 0;
}
static dt_err without_last_term_where_whole(dt_device *dev, const dt_matmul *mm, const void *a, const void *b, void *c,
                                            dt_stream *stream)
{
    const bool gradient = mm->trans_a && !mm->trans_b && mm->accumulate && mm->c_dtype == DT_F32 && mm->dt == DT_BF16,
               whole = mm->n % 8 == 0 && mm->k % 8 == 0 && is_whole(a, b, c);
    return (gradient && whole ? without_last_term : right->matmul)(dev, mm, a, b, c, stream);
}
static dt_err without_a_key_where_whole(dt_device *dev, const dt_attention *at, const void *q, const void *k,
                                        const void *v, const void *out, const float *lse, const void *dout, void *dq,
                                        void *dk, void *dv, float *scratch, dt_stream *stream)
{
    const bool whole = is_whole(q, out, dout) && is_whole(dq, dk, dv);
    DT_TRY(right->attention_backward(dev, at, q, k, v, out, lse, dout, dq, dk, dv, scratch, stream));
    if (whole && at->dt == DT_F16 && at->head_dim == 64 && at->dropout_p == 0) DT_TRY(right->zero(dev, dk, 2, stream));
    return DT_OK;
}
static dt_err without_an_element_of_long(dt_device *dev, const dt_attention *at, const void *q, const void *k,
                                         const void *v, void *out, float *lse, dt_stream *stream)
{
    DT_TRY(right->attention_forward(dev, at, q, k, v, out, lse, stream));
    return at->max_q_len >= 2048 && at->dt == DT_BF16 ? right->zero(dev, out, 2, stream) : DT_OK;
}
TEST(kernels_of_training_are_tried)
{
    fixture *f = *state;
    right = f->right;
    f->ops.matmul = without_last_term_where_whole;
    expect_named(f, "matmul 300x40x512, A'B, bf16, added to a gradient");
    f->ops.attention_backward = without_a_key_where_whole;
    expect_named(f, "causal, 2 heads of 64, fp16");
    f->ops.attention_forward = without_an_element_of_long;
    expect_named(f, "as long sequences, 2 heads of 128, bf16");
}

static dt_err unordered(dt_device *dev, dt_event *event, dt_stream *stream) { return DT_OK; }

TEST(streams_that_do_not_wait_are_found)
{
    fixture f = {0};
    assert_int_equal(dt_queue_open(&f.dev, DT_QUEUE_LATE, 0, &f.ledger), DT_OK);
    f.right = f.dev.ops, f.ops = *f.right;
    f.ops.event_wait = unordered;
    expect_named(&f, "two streams");
    dt_device_close(&f.dev);
}

int main(void) { return run_listed(NULL, open_device, close_device); }
