/* zero_run.h - ZeRO on a model of tensors without layers, compared with plain loops: shared by mpi_zero.c and
 * mpi_zero_offload.c. */
#ifndef DTRAIN_TESTS_ZERO_RUN_H
#define DTRAIN_TESTS_ZERO_RUN_H

#include "zero_fixture.h"

enum { N_JOBS = 12 /* micro-batches of a step: divides by 1, 2, 3, 4 ranks */, N_STEPS = 3 };

static int setup(void **state)
{
    if (open_ranks(state) != 0) return -1;
    fixture *f = *state;
    if (ref_zero_make_units(f->units, false) != DT_OK || ref_zero_make_units(f->frozen_units, true) != DT_OK) return -1;
    f->total = dt_max_i64(ref_zero_total(f->units), ref_zero_total(f->frozen_units));
    return 0;
}

/* ---- all states of all tensors, on every rank -------------------------------------------------------------------- */

typedef struct states {
    float *param, *m, *v, *grad; /* each [total], unit after unit */
} states;

static states states_alloc(const fixture *f)
{
    states s;
    float **const arrays[] = {&s.param, &s.m, &s.v, &s.grad};
    for (int k = 0; k < 4; k++) *arrays[k] = calloc((size_t)f->total, sizeof(float));
    return s;
}

static void states_free(states *s) { free(s->param), free(s->m), free(s->v), free(s->grad); }

/** Where a slice begins in them. */
static int64_t slice_begin(const dt_unit *units, const dt_slice *p)
{
    return ref_zero_begin(units, p->unit, p->tensor) + p->first;
}

/** Elements of a slice, whatever their type. */
static dt_err read_floats(dt_zero *z, dt_state s, const dt_slice *p, int64_t skip, int64_t n, float *out)
{
    const dt_dtype dtype = dt_zero_state_dtype(z, s, p);
    if (dtype == DT_F32) return dt_zero_state_read(z, s, p, skip, n, out);
    const dt_err err = dt_zero_state_read(z, s, p, skip, n, out);
    for (int64_t i = n - 1; err == DT_OK && i >= 0; i--) { /* in place: 16-bit element i lies at or before float i */
        uint16_t h[2] = {0};
        memcpy(h, (const char *)out + 2 * i, sizeof *h);
        out[i] = dt_element(h, dtype, 0);
    }
    return err;
}

/** Read this rank's slices in two calls each, and join them with the other ranks'. */
static bool collect_one(fixture *f, dt_zero *z, const dt_unit *units, dt_state s, float *out)
{
    memset(out, 0, (size_t)f->total * sizeof *out);
    dt_err err = DT_OK;
    for (int i = 0; i < dt_zero_n_slices(z) && err == DT_OK; i++) {
        const dt_slice *p = &dt_zero_slices(z)[i];
        const int64_t half = p->n / 2, at = slice_begin(units, p);
        if (!dt_zero_has_state(z, s, p)) continue;
        err = read_floats(z, s, p, 0, half, out + at);
        if (err == DT_OK) err = read_floats(z, s, p, half, p->n - half, out + at + half);
    }
    /* -0 would become +0; both sides of a comparison go through this. */
    MPI_Allreduce(MPI_IN_PLACE, out, (int)f->total, MPI_FLOAT, MPI_SUM, world(f));
    return err == DT_OK;
}

static bool collect(fixture *f, dt_zero *z, const dt_unit *units, states *s)
{
    const bool ok = collect_one(f, z, units, DT_STATE_PARAM, s->param) &
                    collect_one(f, z, units, DT_STATE_OPTIMIZER, s->m) &
                    collect_one(f, z, units, DT_STATE_OPTIMIZER + 1, s->v);
    return ok;
}

static bool same_bits(const fixture *f, const float *a, const float *b)
{
    for (int64_t i = 0; i < f->total; i++)
        if (a[i] != b[i] && !(isnan(a[i]) && isnan(b[i]))) {
            print_error("element %lld: %.9g, expected %.9g\n", (long long)i, (double)a[i], (double)b[i]);
            return false;
        }
    return true;
}

static bool same_states(const fixture *f, const states *a, const states *b)
{
    return same_bits(f, a->param, b->param) && same_bits(f, a->m, b->m) && same_bits(f, a->v, b->v);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

static const double group_lr[] = {1e-2, 4e-3}; /* as many as ref_zero_make_units makes */

static dt_adamw adamw_at(int64_t step)
{
    return (dt_adamw){.lr = 1e-2f,
                      .beta1 = 0.9f,
                      .beta2 = 0.99f,
                      .eps = 1e-8f,
                      .weight_decay = 0.1f,
                      .grad_scale = 0.25f,
                      .fix1 = (float)(1 - pow((double)0.9f, (double)step)),
                      .fix2 = (float)(1 - pow((double)0.99f, (double)step))};
}

static dt_optimizer_step step_at(int64_t step)
{
    return (dt_optimizer_step){
        .lr = 1e-2, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .grad_scale = 0.25, .t = step};
}

typedef struct run_options {
    dt_zero_options zero;
    bool tied, frozen_tensors, inexact;
} run_options;

typedef struct run {
    fixture *f;
    run_options opt;
    const dt_unit *units;
    dt_zero *z;
    ref_zero_model model;
} run;

static const dt_unit *units_of(const fixture *f, const run_options *opt)
{
    return opt->frozen_tensors ? f->frozen_units : f->units;
}

static dt_err run_open(run *r, fixture *f, const run_options *opt)
{
    *r = (run){.f = f, .opt = *opt, .units = units_of(f, opt)};
    r->opt.zero.host = &f->host;
    DT_TRY(dt_zero_open(&r->z, &r->opt.zero, r->units, REF_ZERO_UNITS, &f->comm, &f->dev, NULL, NULL));
    r->model = (ref_zero_model){.units = r->units,
                                .source = dt_zero_source(r->z),
                                .dev = &f->dev,
                                .exact = !opt->inexact,
                                .tied_unit = opt->tied ? opt->zero.tied_unit : -1,
                                .slack = 0x1p-8f /* half a unit of 8 bits */};
    return DT_OK;
}

static dt_err sum_squares_of(run *r, double *sum)
{
    return r->opt.zero.reproducible ? dt_zero_grad_sum_squares_reproducible(r->z, sum)
                                    : dt_zero_grad_sum_squares(r->z, sum);
}

/** One optimizer step; step counts from 1. Gives the sum of squares of the gradients over all ranks. */
static dt_err run_step(run *r, int64_t step, double *sum_squares)
{
    const int n_micro = N_JOBS / r->f->comm.nranks;
    dt_err err = DT_OK;
    for (int a = 0; a < n_micro; a++) {
        dt_zero_begin_micro(r->z, a, n_micro);
        const dt_err e = ref_zero_micro_step(&r->model, step, (int64_t)a * r->f->comm.nranks + r->f->comm.rank);
        if (err == DT_OK) err = e;
    }
    const dt_err e = sum_squares_of(r, sum_squares);
    if (err == DT_OK) err = e;
    DT_TRY(dt_comm_reduce_host_f64(dt_comm_all(&r->f->comm), sum_squares, 1, DT_SUM));
    const dt_optimizer_step with = step_at(step);
    const dt_err u = dt_zero_update(r->z, &with, group_lr);
    return err == DT_OK ? u : err;
}

/** The same step in plain loops on s. Returns the sum of squares. */
static double plain_step(const run *r, int64_t step, states *s)
{
    ref_zero_sum_grads(r->units, !r->opt.inexact, r->model.tied_unit, r->opt.zero.grad_dtype, step, N_JOBS, s->grad);
    double sum = 0;
    for (int64_t i = 0; i < r->f->total; i++) sum += (double)s->grad[i] * s->grad[i];
    const dt_adamw opt = adamw_at(step);
    ref_zero_adamw(r->units, &opt, group_lr, s->grad, s->param, s->m, s->v);
    return sum;
}

/** Rounding: a step adds to a parameter at most a few units of 2^-24 of itself and of lr times mhat/sqrt(vhat), which
 *  stays below 8 here; m and v likewise with |g| <= 1/4. 16 units a step leave room for another order of the
 *  operations. */
static bool close_to(const fixture *f, const states *a, const states *b, int n_steps)
{
    const float unit = 16 * 0x1p-24f * (float)n_steps;
    for (int64_t i = 0; i < f->total; i++) {
        const bool ok = fabsf(a->param[i] - b->param[i]) <= unit * (fabsf(b->param[i]) + 8e-2f) &&
                        fabsf(a->m[i] - b->m[i]) <= unit * 0.25f && fabsf(a->v[i] - b->v[i]) <= unit * 0.0625f;
        if (!ok) {
            print_error("element %lld: %.9g %.9g %.9g, expected %.9g %.9g %.9g\n", (long long)i, (double)a->param[i],
                        (double)a->m[i], (double)a->v[i], (double)b->param[i], (double)b->m[i], (double)b->v[i]);
            return false;
        }
    }
    return true;
}

static dt_zero_options zero_options(int stage, dt_dtype param, dt_dtype grad)
{
    return (dt_zero_options){.stage = stage,
                             .n_groups = n_groups,
                             .param_dtype = param,
                             .grad_dtype = grad,
                             .optimizer = &dt_optimizer_adamw};
}

/** Train N_STEPS from a random start; hold parameters that the model sees, norm and states against the plain loops. */
static bool trains_like_plain_loops(fixture *f, const run_options *opt, states *end)
{
    run r;
    states ref = states_alloc(f);
    bool ok = run_open(&r, f, opt) == DT_OK && dt_zero_init_random(r.z, 7) == DT_OK && collect(f, r.z, r.units, &ref);
    memcpy(end->param, ref.param, (size_t)f->total * sizeof(float));
    r.model.expect = end->param;
    for (int step = 1; ok && step <= N_STEPS; step++) {
        double got, want = plain_step(&r, step, &ref);
        ok = run_step(&r, step, &got) == DT_OK && got == want && r.model.n_wrong == 0;
        if (!ok)
            print_error("stage %d, step %d: sum of squares %.17g, expected %.17g; %lld wrong elements in views\n",
                        opt->zero.stage, step, got, want, (long long)r.model.n_wrong);
        ok = collect(f, r.z, r.units, end) && ok; /* what the next step's views must show */
    }
    ok = ok && close_to(f, end, &ref, N_STEPS);
    dt_zero_close(r.z);
    states_free(&ref);
    return ok;
}

typedef struct types {
    dt_dtype param, grad;
} types;
static const types all_types[] = {
    {DT_F32, DT_F32}, {DT_BF16, DT_BF16}, {DT_BF16, DT_F32}, {DT_F16, DT_F16}, {DT_F16, DT_F32}};
enum { N_TYPES = sizeof all_types / sizeof all_types[0] };

/** All stages, with what `vary` sets, must end with the same bits, close to the plain loops. */
static void check_all_stages(fixture *f, void (*vary)(run_options *, int variant), int n_variants)
{
    states first = states_alloc(f), other = states_alloc(f);
    for (int t = 0; t < N_TYPES; t++) {
        bool have = false;
        for (int stage = 0; stage <= 3; stage++)
            for (int variant = 0; variant < n_variants; variant++) {
                run_options opt = {.zero = zero_options(stage, all_types[t].param, all_types[t].grad), .tied = true};
                vary(&opt, variant);
                assert_all(world(f), trains_like_plain_loops(f, &opt, have ? &other : &first));
                assert_all(world(f), !have || same_states(f, &other, &first));
                have = true;
            }
    }
    states_free(&first);
    states_free(&other);
}

/** Write all states, each run in two calls. */
static inline dt_err put_states(run *r, const states *s)
{
    const float *const arrays[] = {s->param, s->m, s->v};
    for (dt_state k = 0; k < dt_zero_n_states(r->z); k++)
        for (int i = 0; i < dt_zero_n_slices(r->z); i++) {
            const dt_slice *p = &dt_zero_owned(r->z)[i];
            const float *from = arrays[k] + slice_begin(r->units, p);
            const int64_t some = p->n / 3;
            DT_TRY(dt_zero_state_write(r->z, k, p, 0, some, from));
            DT_TRY(dt_zero_state_write(r->z, k, p, some, p->n - some, from + some));
        }
    return dt_zero_state_written(r->z);
}

/* The offloaded states, and the count and size of their buffers; parameters only at stage 3. */
static const struct offload {
    dt_offload optimizer, param;
    int64_t sub_group_size; /* units have up to 4160 elements */
    int buffer_count;
    bool pin_memory;
} offloads[] = {
    {DT_OFFLOAD_CPU, DT_OFFLOAD_NONE, 0, 2, true},     {DT_OFFLOAD_CPU, DT_OFFLOAD_CPU, 1024, 2, true},
    {DT_OFFLOAD_NONE, DT_OFFLOAD_CPU, 0, 1, false},    {DT_OFFLOAD_NVME, DT_OFFLOAD_CPU, 1024, 4, false},
    {DT_OFFLOAD_NVME, DT_OFFLOAD_NVME, 2048, 3, true}, {DT_OFFLOAD_NVME, DT_OFFLOAD_NVME, 1024, 1, true},
    {DT_OFFLOAD_NONE, DT_OFFLOAD_NVME, 0, 2, true},
};
enum { N_OFFLOADS = sizeof offloads / sizeof offloads[0] };

static inline void set_offload(run_options *o, int variant)
{
    const struct offload *how = &offloads[variant];
    o->zero.offload_optimizer = how->optimizer;
    o->zero.offload_param = o->zero.stage == 3 ? how->param : DT_OFFLOAD_NONE;
    o->zero.sub_group_size = how->sub_group_size;
    o->zero.buffer_count = how->buffer_count;
    o->zero.pin_memory = how->pin_memory;
    o->zero.nvme_path = "/tmp";
}

#endif
