// QUICK: 2 3 4 queue
/* mpi_zero.c - every stage, at every number of ranks, trains like plain loops on one rank; what it holds and sends is
 * what the plan says.
 *
 * Gradients are multiples of 1/64 whose sums are exact in either type and any order, so the summed gradient, the norm,
 * and with it every stage's update, have one right answer in bits.
 * DEVICES: cpu queue */
#include "zero_run.h"

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void vary_overlap(run_options *o, int variant)
{
    o->zero.overlap_comm = variant & 1;
    o->zero.prefetch_bucket_size = variant & 1 ? 1 << 20 : 0;
}
TEST_OF(ALWAYS | BY_NODE, every_stage_trains_like_plain_loops) { check_all_stages(*state, vary_overlap, 2); }

static void vary_buckets(run_options *o, int variant)
{
    o->zero.overlap_comm = true;
    /* of up to 4160 elements: slices of 16 elements a rank at the least */
    o->zero.reduce_bucket_size = variant ? 1000 : 1;
    o->zero.allgather_bucket_size = variant ? 777 : 1;
    o->zero.prefetch_bucket_size = 1700; /* some blocks come early, some do not */
    o->zero.param_persistence_threshold = variant ? 1700 : 2;
}
TEST_OF(ALWAYS | BY_NODE, buckets_and_persistent_units_change_nothing) { check_all_stages(*state, vary_buckets, 2); }

static void vary_untied(run_options *o, int variant)
{
    o->tied = false;
    o->zero.tied_unit = variant ? -1 : 0;
    o->zero.overlap_comm = true;
    o->zero.prefetch_bucket_size = 1 << 20;
}
TEST(untied_models_need_less_room) { check_all_stages(*state, vary_untied, 2); }

/* The embedding is not always the first unit. */
static void vary_tied_unit(run_options *o, int variant)
{
    o->zero.tied_unit = 2;
    o->zero.overlap_comm = variant & 1;
    o->zero.prefetch_bucket_size = variant & 1 ? 1 << 20 : 0;
}
TEST(any_unit_may_be_the_tied_one) { check_all_stages(*state, vary_tied_unit, 2); }

static void vary_frozen(run_options *o, int variant)
{
    o->frozen_tensors = true;
    o->zero.reproducible = variant == 1;
    o->zero.overlap_comm = true;
    o->zero.prefetch_bucket_size = variant == 1 ? 0 : 1 << 20;
    if (variant < 2) return;
    o->zero.reduce_bucket_size = 300;
    o->zero.allgather_bucket_size = 500;
    o->zero.param_persistence_threshold =
        900; /* replicated where little of a unit is trained, next to a sharded frozen part */
}
TEST_OF(ALWAYS | BY_NODE, frozen_tensors_stay_as_they_are) { check_all_stages(*state, vary_frozen, 3); }

/** The order-independent sum of squares: integer multiples of 2^-shift, the largest term below 2^52 of them. */
static double fixed_sum_squares(const float *x, int64_t n)
{
    float largest = 0;
    int exponent;
    for (int64_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(x[i]));
    frexp(largest, &exponent);
    const int shift = 52 - 2 * exponent;
    unsigned __int128 sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (unsigned __int128)rint(ldexp((double)x[i] * x[i], shift));
    return ldexp((double)sum, -shift);
}

/** The device's AdamW on four host arrays [n]. */
static dt_err device_adamw(fixture *f, const dt_adamw *opt, float *const arrays[4], int64_t n)
{
    const dt_device_ops *ops = f->dev.ops;
    const size_t nbytes = (size_t)n * sizeof(float);
    dt_buf on[4] = {0};
    dt_err err = DT_OK;
    for (int k = 0; k < 4 && err == DT_OK; k++) {
        err = dt_buf_alloc(&on[k], &f->dev, DT_ON_DEVICE, nbytes, DT_MEM_OTHER);
        if (err == DT_OK) err = ops->copy(&f->dev, on[k].ptr, arrays[k], nbytes, NULL);
    }
    if (err == DT_OK)
        err = ops->adamw_step(&f->dev, opt, on[0].ptr, DT_F32, on[1].ptr, on[2].ptr, on[3].ptr, NULL, DT_F32, n, NULL);
    for (int k = 1; k < 4 && err == DT_OK; k++) err = ops->copy(&f->dev, arrays[k], on[k].ptr, nbytes, NULL);
    if (err == DT_OK) err = ops->stream_sync(&f->dev, NULL);
    for (int k = 0; k < 4; k++) dt_buf_free(&on[k]);
    return err;
}

/* Those of algorithms.md 9.2, each in its turn; the first leaves all as it is. */
enum { N_KNOBS = 7 };
static void turn_knob(const fixture *f, dt_zero_options *z, int knob)
{
    dt_zero_plan plan;
    z->overlap_comm = knob > 1;
    z->prefetch_bucket_size = knob > 2 ? 1 << 20 : 0;
    if (knob == 1) z->reduce_bucket_size = 500;
    if (knob == 3) z->reduce_bucket_size = 1;
    if (knob == 4) z->allgather_bucket_size = 500;
    if (knob == 5) z->param_persistence_threshold = 1700;
    if (knob != 6 || dt_zero_plan_make(z, f->units, REF_ZERO_UNITS, f->comm.nranks, &plan) != DT_OK) return;
    z->max_live_parameters = plan.least_live_parameters;
}

TEST_OF(ALWAYS | BY_NODE, reproducible_sums_are_a_left_fold_over_micro_batches)
{
    fixture *f = *state;
    states ref = states_alloc(f), got = states_alloc(f);
    for (int t = 0; t < N_TYPES; t++)
        for (int way = 0; way < 3 + N_KNOBS; way++) {
            const int stage = way < 3 ? way : 3;
            run_options opt = {
                .zero = zero_options(stage, all_types[t].param, all_types[t].grad), .tied = true, .inexact = true};
            opt.zero.reproducible = true;
            turn_knob(f, &opt.zero, way < 3 ? way == 2 : way - 3);
            run r;
            bool ok = run_open(&r, f, &opt) == DT_OK && dt_zero_init_random(r.z, 7) == DT_OK &&
                      collect(f, r.z, r.units, &ref);
            for (int step = 1; ok && step <= N_STEPS; step++) {
                ref_zero_sum_grads(r.units, false, 0, opt.zero.grad_dtype, step, N_JOBS, ref.grad);
                double sum;
                ok = run_step(&r, step, &sum) == DT_OK && sum == fixed_sum_squares(ref.grad, f->total);
                /* the device's own AdamW, over whole tensors: bits must not depend on where shards are cut */
                const dt_adamw all = adamw_at(step);
                for (int u = 0; u < REF_ZERO_UNITS; u++)
                    for (int k = 0; k < r.units[u].n_tensors; k++) {
                        const dt_tensor *tensor = &r.units[u].tensors[k];
                        const int64_t at = ref_zero_begin(r.units, u, k);
                        dt_adamw one = all;
                        if (!tensor->decay) one.weight_decay = 0;
                        one.lr = (float)group_lr[tensor->lr_group];
                        float *const arrays[4] = {ref.grad + at, ref.param + at, ref.m + at, ref.v + at};
                        ok = ok && device_adamw(f, &one, arrays, tensor->n_elems) == DT_OK;
                    }
            }
            ok = ok && collect(f, r.z, r.units, &got) && same_states(f, &got, &ref);
            assert_all(world(f), ok);
            dt_zero_close(r.z);
        }
    states_free(&ref);
    states_free(&got);
}

/** FNV-1a and dt_rng_normal by the whole tensor: the start that any rank count and stage must give. */
static void plain_init(const dt_unit *units, uint64_t seed, float *param)
{
    for (int u = 0; u < REF_ZERO_UNITS; u++)
        for (int k = 0; k < units[u].n_tensors; k++) {
            const dt_tensor *t = &units[u].tensors[k];
            float *to = param + ref_zero_begin(units, u, k);
            uint64_t h = UINT64_C(14695981039346656037);
            for (const char *c = t->name; *c; c++) h = (h ^ (uint64_t)(unsigned char)*c) * UINT64_C(1099511628211);
            if (t->init_std > 0)
                dt_rng_normal(dt_rng_key(seed, DT_RNG_INIT), h, 0, t->n_elems, t->init_std, to);
            else
                for (int64_t i = 0; i < t->n_elems; i++) to[i] = t->init_value;
        }
}

TEST_OF(ALWAYS | BY_NODE, random_initialisation_depends_only_on_seed_and_names)
{
    fixture *f = *state;
    states s = states_alloc(f), want = states_alloc(f);
    plain_init(f->units, 11, want.param);
    for (int t = 0; t < N_TYPES; t++)
        for (int stage = 0; stage <= 3; stage++) {
            const run_options opt = {.zero = zero_options(stage, all_types[t].param, all_types[t].grad)};
            run r;
            const bool ok =
                run_open(&r, f, &opt) == DT_OK && dt_zero_init_random(r.z, 11) == DT_OK && collect(f, r.z, r.units, &s);
            assert_all(world(f), ok && same_states(f, &s, &want));
            dt_zero_close(r.z);
        }
    states_free(&s);
    states_free(&want);
}

/** Longer than the scratch through which it is made. */
TEST(a_long_tensor_starts_as_in_one_piece)
{
    fixture *f = *state;
    const int64_t n = 400003;
    dt_unit unit = {.name = "long"};
    float *want = malloc((size_t)n * sizeof *want);
    bool ok = want && dt_unit_add(&unit, "w", 1, &n, true, true, 0.02f, 0) == DT_OK;
    if (ok)
        dt_rng_normal(dt_rng_key(2, DT_RNG_INIT), UINT64_C(0xaf63ea4c86020456) /* FNV-1a of "w" */, 0, n, 0.02f, want);
    for (int t = 0; t < 2; t++) {
        dt_zero_options opt = zero_options(3, all_types[t].param, all_types[t].grad);
        opt.optimizer = NULL;
        dt_zero *z = NULL;
        ok = ok && dt_zero_open(&z, &opt, &unit, 1, &f->comm, &f->dev, NULL, NULL) == DT_OK &&
             dt_zero_init_random(z, 2) == DT_OK;
        assert_all(world(f), ok);
        const dt_slice *p = dt_zero_slices(z);
        void *got = malloc(((size_t)p->n + 1) * sizeof(float));
        ok = got && dt_zero_state_read(z, DT_STATE_PARAM, p, 0, p->n, got) == DT_OK;
        for (int64_t i = 0; ok && i < p->n; i++)
            ok = ref_zero_is_rounded(got, all_types[t].param, i, want[p->first + i]);
        free(got);
        assert_all(world(f), ok);
        dt_zero_close(z);
    }
    dt_unit_free(&unit);
    free(want);
}

/** Units of which nothing is trained, and trained ones without an optimizer. */
TEST(frozen_models_show_their_parameters)
{
    fixture *f = *state;
    dt_unit frozen[REF_ZERO_UNITS];
    bool ok = ref_zero_make_units(frozen, false) == DT_OK;
    dt_units_choose_trained(frozen, REF_ZERO_UNITS, NULL, NULL);
    states want = states_alloc(f);
    plain_init(f->units, 5, want.param);
    for (int k = 0; k < 16; k++) {
        const int stage = k / 4, t = k % 2;
        run_options opt = {.zero = zero_options(stage, all_types[t].param, all_types[t].grad)};
        if (k / 2 % 2) opt.zero.optimizer = NULL;
        run r;
        ok = run_open(&r, f, &opt) == DT_OK && ok;
        if (ok && opt.zero.optimizer) { /* the same sizes and offsets, in the other part */
            dt_zero_close(r.z);
            r.units = r.model.units = frozen;
            ok = dt_zero_open(&r.z, &opt.zero, frozen, REF_ZERO_UNITS, &f->comm, &f->dev, NULL, NULL) == DT_OK;
            r.model.source = dt_zero_source(r.z);
        }
        ok = ok && dt_zero_init_random(r.z, 5) == DT_OK;
        ok = ok && dt_zero_state_dtype(r.z, DT_STATE_PARAM, dt_zero_slices(r.z)) == all_types[t].param;
        ok = ok && !dt_zero_has_state(r.z, DT_STATE_OPTIMIZER, dt_zero_slices(r.z));
        r.model.expect = want.param;
        dt_param_view view;
        dt_grad_view grads;
        for (int u = 0; ok && u < REF_ZERO_UNITS; u++) {
            ok = r.model.source.params_acquire(r.model.source.self, u, &view) == DT_OK;
            const dt_part part = opt.zero.optimizer ? DT_FROZEN : DT_TRAINED;
            ok = ok && view.part[part].dtype == all_types[t].param && !view.part[!part].data;
            const float *p = want.param + ref_zero_begin(f->units, u, 0);
            const int64_t n = f->units[u].flat_len[DT_TRAINED];
            void *data = ok ? ref_zero_read(&f->dev, view.part[part].data, n, all_types[t].param) : NULL;
            ok = data != NULL;
            for (int64_t i = 0; ok && i < n; i++) ok = ref_zero_is_rounded(data, all_types[t].param, i, p[i]);
            free(data);
            ok = r.model.source.params_release(r.model.source.self, u) == DT_OK && ok;
        }
        ok = ok && r.model.source.grads_acquire(r.model.source.self, 0, &grads) == DT_ERR_ARG;
        assert_all(world(f), ok);
        dt_error_clear();
        dt_zero_close(r.z);
    }
    states_free(&want);
    ref_zero_free_units(frozen);
}

/** Is each element of the tensors in so many of the ranks' slices? */
static bool cover(fixture *f, const dt_zero *z, const dt_slice *(*slices)(const dt_zero *), float times)
{
    float *count = calloc((size_t)f->total, sizeof *count);
    bool ok = true;
    int n = 0;
    for (int u = 0; u < REF_ZERO_UNITS; u++)
        for (int k = 0; ok && k < f->units[u].n_tensors; k++, n++) {
            const dt_slice *p = &slices(z)[n];
            const dt_tensor *t = &f->units[u].tensors[k];
            ok = p->unit == u && p->tensor == k && dt_zero_tensor(z, p) == t && p->n >= 0;
            ok = ok && (p->n == 0 || p->flat == t->offset + p->first);
            for (int64_t i = 0; ok && i < p->n; i++) count[slice_begin(f->units, p) + i]++;
        }
    ok = ok && n == dt_zero_n_slices(z);
    MPI_Allreduce(MPI_IN_PLACE, count, (int)f->total, MPI_FLOAT, MPI_SUM, world(f));
    for (int u = 0; u < REF_ZERO_UNITS; u++)
        for (int k = 0; k < f->units[u].n_tensors; k++)
            for (int64_t i = 0; i < f->units[u].tensors[k].n_elems; i++)
                ok = ok && count[ref_zero_begin(f->units, u, k) + i] == times;
    free(count);
    return ok;
}

TEST_OF(ALWAYS | BY_NODE, slices_cover_every_tensor_once)
{
    fixture *f = *state;
    for (int stage = 0; stage <= 3; stage++) {
        const run_options opt = {.zero = zero_options(stage, DT_F32, DT_F32)};
        run r;
        bool ok = run_open(&r, f, &opt) == DT_OK;
        for (int n = 0; ok && n < dt_zero_n_slices(r.z); n++) {
            const dt_slice *p = &dt_zero_slices(r.z)[n];
            ok = p->n == 0 || (dt_zero_state_ptr(r.z, DT_STATE_PARAM, p) != NULL) == f->dev.ops->host_accessible;
        }
        assert_all(world(f), ok && cover(f, r.z, dt_zero_slices, 1));
        assert_all(world(f), cover(f, r.z, dt_zero_owned, (float)f->comm.mesh.replicate.size));
        dt_zero_close(r.z);
    }
}

TEST_OF(ALWAYS | BY_NODE, a_skipped_step_leaves_no_trace)
{
    fixture *f = *state;
    states want = states_alloc(f), got = states_alloc(f);
    for (int stage = 0; stage <= 3; stage++) {
        run_options opt = {.zero = zero_options(stage, DT_BF16, DT_F32), .tied = true};
        opt.zero.overlap_comm = true;
        for (int skip = 0; skip < 2; skip++) {
            run r;
            double sum;
            bool ok = run_open(&r, f, &opt) == DT_OK && dt_zero_init_random(r.z, 3) == DT_OK;
            for (int a = 0; ok && skip && a < 2; a++) {
                dt_zero_begin_micro(r.z, a, 2);
                ok = ref_zero_micro_step(&r.model, 99, f->comm.rank) == DT_OK;
            }
            if (ok && skip) dt_zero_discard(r.z);
            const dt_optimizer_step first = step_at(1);
            ok = ok && dt_zero_update(r.z, &first, NULL) == DT_ERR_ARG; /* there is nothing to update with */
            dt_error_clear();
            ok = ok && run_step(&r, 1, &sum) == DT_OK && collect(f, r.z, r.units, skip ? &got : &want);
            assert_all(world(f), ok);
            dt_zero_close(r.z);
        }
        assert_all(world(f), same_states(f, &got, &want));
    }
    states_free(&want), states_free(&got);
}

/** Two micro-steps of zeros, but for infinity in the first: of unit 2 on the last rank, of unit 1 on rank 0. */
static dt_err step_with_infinity(run *r)
{
    const dt_param_source *s = &r->model.source;
    const dt_comm *comm = &r->f->comm;
    for (int k = 0; k < 2 * REF_ZERO_UNITS; k++) {
        const int micro = k / REF_ZERO_UNITS, u = k % REF_ZERO_UNITS;
        const int64_t len = r->units[u].flat_len[DT_TRAINED];
        dt_grad_view view;
        if (u == 0) dt_zero_begin_micro(r->z, micro, 2);
        DT_TRY(s->grads_acquire(s->self, u, &view));
        uint16_t *data = calloc((size_t)len, sizeof *data);
        if (micro == 0 && ((u == 2 && comm->rank == comm->nranks - 1) || (u == 1 && comm->rank == 0)))
            data[70] = 0x7f80;
        dt_err err = view.accumulate ? DT_OK : ref_zero_write(&r->f->dev, view.data, len, view.dtype, data);
        if (err == DT_OK) err = r->f->dev.ops->stream_sync(&r->f->dev, NULL);
        free(data);
        DT_TRY(err);
        DT_TRY(s->grads_release(s->self, u));
    }
    return DT_OK;
}

/** The owner of the sum knows the unit; the rank that it came from knows where it looks at what it sends. */
static bool infinity_is_found(run *r, bool watched)
{
    dt_comm *comm = &r->f->comm;
    const int rank = comm->rank, last = comm->nranks - 1;
    const int own = !watched && last > 0 ? -1 : rank == last ? 2 : rank == 0 ? 1 : -1;
    double sum = 0;
    dt_zero_watch(r->z, watched);
    dt_err err = step_with_infinity(r);
    if (err == DT_OK) err = sum_squares_of(r, &sum);
    const dt_nonfinite found = dt_zero_nonfinite(r->z);
    double values[2] = {sum, found.sum_unit};
    if (err == DT_OK) err = dt_comm_reduce_host_f64(dt_comm_all(comm), values, 1, DT_SUM);
    if (err == DT_OK) err = dt_comm_reduce_host_f64(dt_comm_all(comm), values + 1, 1, DT_MAX);
    dt_zero_discard(r->z);
    return err == DT_OK && !isfinite(values[0]) && values[1] == 2 && found.own_unit == own;
}

TEST_OF(ALWAYS | BY_NODE, non_finite_gradients_make_the_norm_non_finite_and_are_found)
{
    fixture *f = *state;
    for (int stage = 0; stage <= 3; stage++)
        for (int reproducible = 0; reproducible < 2; reproducible++) {
            run_options opt = {.zero = zero_options(stage, DT_BF16, DT_BF16)};
            opt.zero.reproducible = reproducible;
            run r;
            bool ok = run_open(&r, f, &opt) == DT_OK;
            for (int watched = 0; watched < 2; watched++) ok = ok && infinity_is_found(&r, watched);
            assert_all(world(f), ok);
            dt_zero_close(r.z);
        }
}

/* ---- bytes and volume -------------------------------------------------------------------------------------------- */

static double bytes_of_states(const dt_memory *m)
{
    return (double)(dt_memory_total(m) - dt_memory_of(m, DT_MEM_STAGING) - dt_memory_of(m, DT_MEM_OTHER));
}

TEST_OF(ALWAYS | BY_NODE, measured_state_bytes_are_the_papers_plus_padding)
{
    fixture *f = *state;
    const double n = f->comm.mesh.shard.size;
    int64_t shards = 0, n_param = 0, whole = 0;
    for (int u = 0; u < REF_ZERO_UNITS; u++) {
        const dt_shards s =
            dt_shards_of(f->units[u].flat_len[DT_TRAINED], f->comm.nranks, f->comm.mesh.replicate.size, DT_SHARD_ALIGN);
        shards += s.shard_len, whole += s.padded_len, n_param += f->units[u].n_param;
    }
    const double paper[] = {16, 4 + 12 / n, 2 + 14 / n, 16 / n};
    const int whole_bytes[] = {16, 4, 2, 0};
    for (int stage = 0; stage <= 3; stage++) {
        const run_options opt = {.zero = zero_options(stage, DT_BF16, DT_BF16)};
        const dt_memory before = dt_ledger_now(&f->ledger);
        run r;
        const bool ok = run_open(&r, f, &opt) == DT_OK;
        const dt_memory now = dt_ledger_now(&f->ledger);
        const double held = bytes_of_states(&now) - bytes_of_states(&before);
        /* Padding: what shards (and whole buffers, up to a multiple of DT_GROUP_ALIGN a unit) have above n_param. */
        const double padding =
            whole_bytes[stage] * (double)(whole - n_param + REF_ZERO_UNITS * DT_GROUP_ALIGN) +
            (16 - whole_bytes[stage]) * ((double)shards - (double)n_param / n + REF_ZERO_UNITS * DT_GROUP_ALIGN);
        assert_all(world(f),
                   ok && held >= paper[stage] * (double)n_param && held <= paper[stage] * (double)n_param + padding);
        dt_zero_close(r.z);
    }
}

TEST_OF(ALWAYS | BY_NODE, bytes_sent_match_the_plan)
{
    fixture *f = *state;
    const int n_micro = N_JOBS / f->comm.nranks;
    for (int stage = 0; stage <= 3; stage++)
        for (int variant = 0; variant < 4; variant++) {
            run_options opt = {.zero = zero_options(stage, DT_F32, DT_F32), .tied = true};
            opt.zero.reproducible = variant & 1;
            opt.frozen_tensors = variant & 2;
            opt.zero.overlap_comm = true;
            opt.zero.prefetch_bucket_size = 1 << 20;
            dt_zero_plan plan;
            run r;
            double sum;
            bool ok = dt_zero_plan_make(&opt.zero, units_of(f, &opt), REF_ZERO_UNITS, f->comm.nranks, &plan) == DT_OK &&
                      run_open(&r, f, &opt) == DT_OK;
            ok = ok && run_step(&r, 1, &sum) == DT_OK; /* stage 3 records the order of units */
            const double before = f->comm.traffic_bytes;
            ok = ok && run_step(&r, 2, &sum) == DT_OK;
            const double sent = f->comm.traffic_bytes - before,
                         planned = n_micro * plan.sent_bytes_per_micro_step + plan.sent_bytes_per_step;
            if (stage < 3) ok = ok && sent == planned;
            if (stage == 3) ok = ok && sent <= planned;
            /* frozen units need not be gathered again while their buffers are not reused, even across an update */
            if (stage == 3 && !opt.frozen_tensors) ok = ok && sent >= planned / 2;
            if (!ok) print_error("stage %d: %.17g bytes sent, %.17g planned\n", stage, sent, planned);
            assert_all(world(f), ok);
            dt_zero_close(r.z);
        }
}

/* ---- misuse ------------------------------------------------------------------------------------------------------ */

TEST(broken_brackets_are_refused)
{
    fixture *f = *state;
    for (int stage = 0; stage <= 3; stage++) {
        run_options opt = {.zero = zero_options(stage, DT_F32, DT_F32)};
        opt.zero.tied_unit = -1;
        run r;
        bool ok = run_open(&r, f, &opt) == DT_OK;
        const dt_param_source s = dt_zero_source(r.z);
        dt_param_view view;
        dt_grad_view grads;
        ok = ok && s.params_release(s.self, 1) == DT_ERR_ARG && s.grads_release(s.self, 1) == DT_ERR_ARG;
        ok = ok && s.params_acquire(s.self, REF_ZERO_UNITS, &view) == DT_ERR_ARG;
        ok = ok && s.grads_acquire(s.self, 1, &grads) == DT_ERR_ARG; /* no micro-step */
        dt_zero_begin_micro(r.z, 0, 1);
        ok = ok && s.grads_acquire(s.self, 1, &grads) == DT_OK && s.grads_release(s.self, 1) == DT_OK;
        ok = ok && s.grads_acquire(s.self, 1, &grads) == DT_ERR_ARG; /* complete */
        double sum;
        /* gradients of the other units are missing */
        ok = ok && dt_zero_grad_sum_squares(r.z, &sum) == DT_ERR_ARG &&
             dt_zero_grad_sum_squares_reproducible(r.z, &sum) == DT_ERR_ARG;
        if (stage == 3 && f->comm.mesh.shard.size > 1) {
            ok = ok && s.params_acquire(s.self, 1, &view) == DT_OK;
            ok = ok && s.params_acquire(s.self, 2, &view) == DT_ERR_ARG &&
                 s.params_release(s.self, 1) == DT_OK; /* no room for both */
        }
        dt_error_clear();
        assert_all(world(f), ok);
        dt_zero_close(r.z);
    }
}

TEST_OF(ALWAYS | BY_NODE, too_few_live_parameters_are_refused_on_all_ranks)
{
    fixture *f = *state;
    run_options opt = {.zero = zero_options(3, DT_F32, DT_F32)};
    opt.zero.max_live_parameters = 100;
    run r;
    const dt_err want =
        f->comm.mesh.shard.size > 1 ? DT_ERR_USAGE : DT_OK; /* alone in its group a rank gathers nothing */
    const bool ok = run_open(&r, f, &opt) == want && (want == DT_OK || r.z == NULL);
    dt_error_clear();
    assert_all(world(f), ok);
    dt_zero_close(r.z);
}

int main(int argc, char **argv) { return run_zero_tests(argc, argv, setup); }
