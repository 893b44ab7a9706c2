/* test_muon.c - Muon against plain loops and torch.optim.Muon, step for step, in every shape of a matrix.
 * DEVICES: cpu queue */
#include "device_fixture.h"
#include "dtrain/optim/optim.h"
#include "ref_muon.h"
#include <jansson.h>

enum { N_STEPS = 4, STRIDE = 13 /* of elements in the file */, MAX_ELEMS = 1024, MAX_SCRATCH = 1 << 16 };

/* |a - b| / |b| of the change by a step. Sums in another order round to the next bf16, 0.4 % away at most, and the
 * iterations spread that: 0.3 % in the plain loops. torch also rounds norm and quotients to bf16: 1.8 %. */
static const double OF_LOOPS = 0.01, OF_TORCH = 0.03;

/** Element i of a gradient, or of the start (step 0): a few binary orders. */
static float number_of(int kase, int64_t step, int64_t i)
{
    const uint64_t h = dt_mix64((uint64_t)(i + 100000 * kase + 10000000 * step));
    return ldexpf((float)(h % 4096) / 2048 - 1, -(int)(h >> 40) % 8);
}

typedef struct matrix {
    int64_t rows, cols;
    float param[MAX_ELEMS], momentum[MAX_ELEMS];
} matrix;

static double sum_squares(const uint16_t *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += pow((double)dt_bf16_to_float(x[i]), 2);
    return sum;
}

/** One update by the optimizer's functions, in the order in which ZeRO calls them. */
static void take_step(fixture *f, const dt_optimizer_step *s, const float *grad, matrix *m, uint16_t *out)
{
    static char scratch[MAX_SCRATCH];
    const dt_matrix_optimizer *o = dt_optimizer_muon.matrices;
    const int64_t n = m->rows * m->cols;
    uint16_t x[MAX_ELEMS] = {0};
    assert_true(o->scratch_nbytes(m->rows, m->cols) <= sizeof scratch);
    dt_update_range r = {.grad = ARR(grad, n), .grad_dtype = DT_F32, .direction = ARR(x, n), .n = n};
    r.states[2] = ARR(m->momentum, n);
    assert_int_equal(back_to_host(f, "direction", o->direction(&f->dev, s, &r)), DT_OK);
    void *on_dev = ARR(x, n);
    assert_int_equal(back_to_host(f, "matrix",
                                  o->matrix(&f->dev, s, on_dev, m->rows, m->cols, sum_squares(x, n),
                                            ARR(scratch, MAX_SCRATCH), NULL)),
                     DT_OK);
    r = (dt_update_range){.direction = ARR(x, n), .master = ARR(m->param, n), .n = n};
    r.param = ARR(out, n), r.param_dtype = DT_BF16;
    assert_int_equal(back_to_host(f, "apply", o->apply(&f->dev, s, m->rows, m->cols, &r)), DT_OK);
}

/** |a - b| / |b| of the changes since `before`, every stride-th element. b: from the file, or all. */
static double error_of(const float *before, const float *a, const double *b, int64_t n, int64_t stride)
{
    double sum = 0, all = 0;
    for (int64_t i = 0; i < n; i += stride) {
        const double change = b[i / stride] - (double)before[i];
        sum += pow((double)a[i] - b[i / stride], 2), all += change * change;
    }
    return all > 0 ? sqrt(sum / all) : sqrt(sum);
}

static const json_t *member(const json_t *of, const char *name) { return json_object_get(of, name); }

static void check_momentum(const matrix *m, const json_t *want)
{
    const int64_t n = m->rows * m->cols;
    for (int64_t i = 0; i < n; i += STRIDE)
        assert_true(fabs((double)m->momentum[i] - json_number_value(json_array_get(want, (size_t)(i / STRIDE)))) <
                    1e-6);
}

/** Parameters after step k match the file's; `was`: before it. */
static void check_params(const json_t *of, int64_t k, const float *was, const matrix *m, int64_t n, const char *whose)
{
    const json_t *want = json_array_get(member(of, "params"), (size_t)k);
    double b[MAX_ELEMS];
    assert_int_equal(json_array_size(want), dt_ceil_div(n, STRIDE));
    for (size_t i = 0; i < json_array_size(want); i++) b[i] = json_number_value(json_array_get(want, i));
    const double error = error_of(was, m->param, b, n, STRIDE);
    if (!(error <= OF_TORCH))
        fail_msg("%d x %d, step %d: %s is off by %g", (int)m->rows, (int)m->cols, (int)k, whose, error);
}

static void check_case(fixture *f, const json_t *of, int kase)
{
    const json_t *shape = member(of, "shape");
    const dt_config cfg = {.optimizer_muon_momentum = json_number_value(member(of, "momentum")),
                           .optimizer_muon_nesterov = json_is_true(member(of, "nesterov")),
                           .optimizer_muon_ns_steps = json_integer_value(member(of, "ns_steps")),
                           .optimizer_muon_lr_scale = json_string_value(member(of, "lr_scale"))};
    matrix m = {.rows = json_integer_value(json_array_get(shape, 0)),
                .cols = json_integer_value(json_array_get(shape, 1))};
    const int64_t n = m.rows * m.cols;
    const bool no_gradient = m.rows == 9;
    float start[MAX_ELEMS], grad[MAX_ELEMS];
    for (int64_t i = 0; i < n; i++) m.param[i] = start[i] = number_of(kase, 0, i);
    matrix ref = m;
    for (int64_t k = 0; k < N_STEPS; k++) {
        const dt_optimizer_step s = {.lr = 1e-2, .weight_decay = 0.1, .grad_scale = 0.25, .t = k + 1, .cfg = &cfg};
        float was[MAX_ELEMS];
        uint16_t out[MAX_ELEMS];
        double want[MAX_ELEMS];
        for (int64_t i = 0; i < n; i++)
            grad[i] = no_gradient && k + 1 < N_STEPS ? 0 : number_of(kase, k + 1, i), was[i] = m.param[i];
        ref_muon_step(&s, m.rows, m.cols, grad, ref.param, ref.momentum);
        take_step(f, &s, grad, &m, out);
        for (int64_t i = 0; i < n; i++)
            want[i] = (double)ref.param[i], assert_true(out[i] == dt_bf16_from_float(m.param[i]));
        const double error = error_of(was, m.param, want, n, 1);
        if (!(error <= OF_LOOPS))
            fail_msg("%d x %d, step %d: plain loops differ by %g", (int)m.rows, (int)m.cols, (int)k, error);
        check_params(of, k, was, &m, n, "dtrain");
        check_params(of, k, was, &ref, n, "the reference");
        check_momentum(&m, json_array_get(member(of, "buffers"), (size_t)k));
        check_momentum(&ref, json_array_get(member(of, "buffers"), (size_t)k));
    }
}

TEST(muon_is_torchs_and_that_of_plain_loops)
{
    fixture *f = *state;
    json_t *all = json_load_file("tests/data/muon.json", 0, NULL);
    assert_int_equal(json_array_size(all), 18);
    for (size_t i = 0; i < json_array_size(all); i++) check_case(f, json_array_get(all, i), (int)i);
    json_decref(all);
}

int main(void) { return run_with_each_isa() != 0; }
