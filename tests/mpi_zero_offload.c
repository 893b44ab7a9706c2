// QUICK: 2 3 queue
/* mpi_zero_offload.c - states kept in host memory or in a file train with the bits of states on the device, hold what
 * was planned, and move to any other layout and back.
 *
 * With a device below whose arithmetic is not the processor's, states on the device may end with other bits than
 * offloaded ones; the queue device computes on the processor.
 * DEVICES: cpu queue */
#include "zero_run.h"

static void vary_offload(run_options *o, int variant)
{
    set_offload(o, variant);
    o->zero.overlap_comm = variant & 1;
    o->zero.prefetch_bucket_size = 1700;
    o->zero.param_persistence_threshold = variant == 4 ? 1700 : 0;
    o->zero.allgather_bucket_size = variant == 3 ? 500 : 0;
    o->zero.reduce_bucket_size = variant == 4 ? 700 : 0;
}
TEST(offloaded_states_train_like_plain_loops) { check_all_stages(*state, vary_offload, N_OFFLOADS); }

static void vary_reproducible(run_options *o, int variant)
{
    vary_offload(o, variant);
    o->tied = false;
    o->zero.tied_unit = -1;
    o->zero.reproducible = true;
}
TEST_OF(ALWAYS | BY_NODE, reproducible_sums_come_down_as_they_are)
{
    check_all_stages(*state, vary_reproducible, N_OFFLOADS);
}

static void vary_frozen(run_options *o, int variant)
{
    vary_offload(o, variant);
    o->frozen_tensors = true;
}
TEST_OF(ALWAYS | BY_NODE, frozen_tensors_stay_as_they_are) { check_all_stages(*state, vary_frozen, N_OFFLOADS); }

/** One layout of types, offload (0: none, else 1 + its number) and stage. */
static run_options layout(int type, int offload, int stage)
{
    run_options opt = {.zero = zero_options(stage, all_types[type].param, all_types[type].grad), .tied = true};
    opt.zero.overlap_comm = true;
    opt.zero.prefetch_bucket_size = 1 << 20;
    if (offload) set_offload(&opt, offload - 1);
    return opt;
}

/** Trained for a step in one layout, the second step gives the same in another. */
static bool goes_on_in(fixture *f, const run_options *from, const run_options *to)
{
    states mid = states_alloc(f), want = states_alloc(f), got = states_alloc(f);
    run a, b;
    double sum;
    bool ok = run_open(&a, f, from) == DT_OK && dt_zero_init_random(a.z, 3) == DT_OK && run_step(&a, 1, &sum) == DT_OK;
    ok = ok && collect(f, a.z, a.units, &mid) && run_step(&a, 2, &sum) == DT_OK && collect(f, a.z, a.units, &want);
    dt_zero_close(a.z);
    ok = run_open(&b, f, to) == DT_OK && ok && run_step(&b, 1, &sum) == DT_OK; /* something else stood there */
    ok = ok && put_states(&b, &mid) == DT_OK && collect(f, b.z, b.units, &got) && same_states(f, &got, &mid);
    b.model.expect = mid.param;
    ok = ok && run_step(&b, 2, &sum) == DT_OK && b.model.n_wrong == 0;
    ok = ok && collect(f, b.z, b.units, &got) && same_states(f, &got, &want);
    dt_zero_close(b.z);
    states_free(&mid), states_free(&want), states_free(&got);
    return ok;
}

TEST_OF(ALWAYS | BY_NODE, states_move_to_any_layout_and_go_on)
{
    fixture *f = *state;
    for (int type = 0; type < N_TYPES; type++)
        for (int k = 0; k < N_OFFLOADS; k++) {
            const run_options on_device = layout(type, 0, k % 4), offloaded = layout(type, 1 + k, k & 1 ? 3 : k % 4);
            const run_options other = layout(type, 1 + (k + 3) % N_OFFLOADS, 3);
            assert_all(world(f), goes_on_in(f, &on_device, &offloaded));
            assert_all(world(f), goes_on_in(f, &offloaded, &on_device));
            assert_all(world(f), goes_on_in(f, &offloaded, &other));
        }
}

TEST(cleared_states_equal_initial_states)
{
    fixture *f = *state;
    states zero = states_alloc(f), got = states_alloc(f);
    for (int k = 0; k < N_OFFLOADS; k++) {
        const run_options opt = layout(0, 1 + k, 3);
        run r;
        double sum;
        bool ok =
            run_open(&r, f, &opt) == DT_OK && run_step(&r, 1, &sum) == DT_OK && dt_zero_clear_states(r.z) == DT_OK;
        ok = ok && collect(f, r.z, r.units, &got) && same_bits(f, got.m, zero.m) && same_bits(f, got.v, zero.v);
        dt_zero_close(r.z);
        assert_all(world(f), ok);
    }
    states_free(&zero), states_free(&got);
}

static bool holds_what_was_planned(fixture *f, const run_options *opt)
{
    dt_memory expected = dt_ledger_now(&f->ledger);
    dt_zero_plan plan;
    run r;
    double sum;
    if (dt_zero_plan_make(&opt->zero, units_of(f, opt), REF_ZERO_UNITS, f->comm.nranks, &plan) != DT_OK) return false;
    dt_memory_add(&expected, &plan.memory);
    dt_stream_plan(&f->dev, plan.n_streams, &expected);
    bool ok = run_open(&r, f, opt) == DT_OK;
    const dt_memory now = dt_ledger_now(&f->ledger);
    const size_t n_allocs = atomic_load(&f->ledger.n_allocs);
    ok = ok && !memcmp(&now, &expected, sizeof now);
    for (int step = 1; opt->zero.optimizer && step <= 2; step++) ok = run_step(&r, step, &sum) == DT_OK && ok;
    ok = ok && atomic_load(&f->ledger.n_allocs) == n_allocs; /* a step allocates nothing */
    dt_zero_close(r.z);
    return ok;
}

TEST_OF(ALWAYS | BY_NODE, memory_held_matches_the_plan)
{
    fixture *f = *state;
    for (int type = 0; type < N_TYPES; type++)
        for (int stage = 0; stage <= 3; stage++)
            for (int k = -1; k < N_OFFLOADS; k++) { /* -1: nothing is offloaded */
                run_options opt = layout(type, 1 + k, stage);
                opt.zero.reproducible = (k + type) & 1;
                opt.zero.param_persistence_threshold = (k + stage) & 1 ? 1700 : 0;
                opt.frozen_tensors = (k + type + stage) & 2;
                assert_all(world(f), holds_what_was_planned(f, &opt));
            }
}

TEST(frozen_models_are_offloaded_too)
{
    fixture *f = *state;
    for (int k = 0; k < N_OFFLOADS; k++) {
        run_options opt = layout(1, 1 + k, 3);
        opt.zero.optimizer = NULL;
        assert_all(world(f), holds_what_was_planned(f, &opt));
    }
}

TEST(wrong_options_are_refused)
{
    fixture *f = *state;
    run_options opt = layout(0, 0, 2);
    run r;
    opt.zero.offload_param = DT_OFFLOAD_CPU;
    assert_all_fail(world(f), run_open(&r, f, &opt), DT_ERR_ARG, "");
    opt = layout(0, 5, 3);
    opt.zero.nvme_path = "/nowhere";
    assert_all_fail(world(f), run_open(&r, f, &opt), DT_ERR_WRITE, "/nowhere");
}

int main(int argc, char **argv) { return run_zero_tests(argc, argv, setup); }
