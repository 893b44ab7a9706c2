/* test_zero_streams.c - whatever order the events allow, all views and the final states of zero have the bits that the
 * order of the calls gives. */
#include "zero_streams.h"

enum { N_STEPS = 3, N_SEEDS = 3 };

static dt_err hash_states(rank_thread *t, dt_zero *z)
{
    static const int64_t most = 1 << 16;
    float *values = calloc((size_t)most, sizeof *values);
    dt_err err = values ? DT_OK : DT_ERR_MEMORY;
    for (dt_state s = 0; s < dt_zero_n_states(z); s++)
        for (int i = 0; i < dt_zero_n_slices(z) && err == DT_OK; i++) {
            const dt_slice *p = &dt_zero_owned(z)[i];
            if (!dt_zero_has_state(z, s, p)) continue;
            err = dt_zero_state_read(z, s, p, 0, p->n, values);
            t->states = hash_bytes(t->states, values, (size_t)p->n * sizeof *values);
        }
    free(values);
    return err;
}

/** As a checkpoint is read: every state anew. */
static dt_err write_states(dt_zero *z)
{
    static const int64_t most = 1 << 16;
    float *values = calloc((size_t)most, sizeof *values);
    dt_err err = values ? DT_OK : DT_ERR_MEMORY;
    for (int s = 0; s < dt_zero_n_states(z); s++)
        for (int i = 0; i < dt_zero_n_slices(z) && err == DT_OK; i++) {
            const dt_slice *p = &dt_zero_owned(z)[i];
            if (!dt_zero_has_state(z, (dt_state)s, p)) continue;
            for (int64_t k = 0; k < p->n; k++) values[k] = (float)((p->first + k) % 251 + 1 + i + s) * 0x1p-10f;
            err = dt_zero_state_write(z, (dt_state)s, p, 0, p->n, values);
            for (int64_t k = 0; k < p->n; k++) values[k] = NAN; /* the caller's again */
        }
    free(values);
    return keep(err, dt_zero_state_written(z));
}

/** A pass that only looks, as a validation does: what it shows are the parameters before whatever follows. */
static dt_err look_at_all(rank_thread *t, dt_zero *z)
{
    dt_param_source s = dt_zero_source(z);
    for (int u = 0; u < REF_ZERO_UNITS; u++) {
        DT_TRY(look(t, &s, u));
        DT_TRY(s.params_release(s.self, u));
    }
    return DT_OK;
}

/* What follows an update, or a look, while its gathers are on their way. */
static dt_err change_states(rank_thread *t, dt_zero *z)
{
    DT_TRY(write_states(z));
    DT_TRY(look_at_all(t, z));
    DT_TRY(dt_zero_init_random(z, 3));
    DT_TRY(look_at_all(t, z));
    DT_TRY(dt_zero_state_written(z));
    DT_TRY(write_states(z));
    DT_TRY(one_update(t, z, N_STEPS + 1));
    DT_TRY(dt_zero_state_written(z)); /* a rank may have nothing to write */
    DT_TRY(one_update(t, z, N_STEPS + 2));
    DT_TRY(dt_zero_state_written(z));
    DT_TRY(micro_steps(t, z, N_STEPS + 2)); /* states are read ahead for an update that does not come */
    dt_zero_discard(z);
    DT_TRY(dt_zero_clear_states(z));
    DT_TRY(one_update(t, z, N_STEPS + 2));
    DT_TRY(hash_states(t, z));
    DT_TRY(one_update(t, z, N_STEPS + 3));
    DT_TRY(dt_zero_init_random(z, 2));
    DT_TRY(one_update(t, z, N_STEPS + 4));
    DT_TRY(hash_states(t, z));
    DT_TRY(one_update(t, z, N_STEPS + 4));
    DT_TRY(dt_zero_clear_states(z));  /* while replicas are gathered, and states on their way to the file */
    DT_TRY(dt_zero_state_written(z)); /* other ranks may not have come to it */
    DT_TRY(one_update(t, z, N_STEPS + 5));
    DT_TRY(look_at_all(t, z));
    return hash_states(t, z);
}

static dt_err train(rank_thread *t, dt_zero *z)
{
    DT_TRY(dt_zero_init_random(z, 1));
    for (int step = 1; step <= N_STEPS; step++) {
        DT_TRY(micro_steps(t, z, step));
        DT_CHECK(z->n_deferred == 0, DT_ERR_ARG, "%d reductions are left to the norm", z->n_deferred);
        if (step == 2) { /* a skipped step, without a look at the norm */
            dt_zero_discard(z);
            continue;
        }
        if (step == 1) /* the last update waits without it */
            DT_TRY(z->opt.reproducible ? dt_zero_grad_sum_squares_reproducible(z, &t->norm)
                                       : dt_zero_grad_sum_squares(z, &t->norm));
        DT_TRY(dt_zero_update(z, &WITH, NULL));
    }
    DT_TRY(hash_states(t, z));
    DT_TRY(one_update(t, z, N_STEPS));
    DT_TRY(change_states(t, z));
    return one_update(t, z, N_STEPS + 6); /* is closed with that in flight */
}

static void expect_same(const rank_thread *want, const rank_thread *got, int stage, const char *order)
{
    for (int r = 0; r < N_THREADS; r++) {
        for (int i = 0; i < want[r].n_trace; i++)
            if (got[r].trace[i] != want[r].trace[i])
                fail_msg("stage %d, %s, rank %d: view %d differs", stage, order, r, i);
        assert_true(got[r].norm == want[r].norm);
        assert_true(got[r].states == want[r].states);
    }
}

/** base: of each stage and type; parameters are offloaded at stage 3 alone. */
static void check_orders(bool with_frozen, const dt_zero_options *base)
{
    static const struct {
        dt_queue_order order;
        const char *name;
        int n_seeds;
    } orders[] = {{DT_QUEUE_LATE, "all late", 1},
                  {DT_QUEUE_LATE_DEFAULT, "compute late", 1},
                  {DT_QUEUE_LATE_OTHERS, "exchange late", 1},
                  {DT_QUEUE_ANY, "any order", N_SEEDS}};

    rank_thread *want = calloc(N_THREADS, sizeof *want), *got = calloc(N_THREADS, sizeof *got);
    for (int k = 0; k < 8; k++) {
        const int stage = k / 2;
        dt_zero_options opt = *base;
        opt.stage = stage;
        opt.param_dtype = k % 2 ? DT_BF16 : DT_F32;
        opt.grad_dtype = DT_F32;
        opt.optimizer = &dt_optimizer_adamw;
        opt.prefetch_bucket_size = 1 << 20;
        if (stage < 3) opt.offload_param = DT_OFFLOAD_NONE;
        run_ranks(want, train, &opt, with_frozen, DT_QUEUE_AT_ONCE, 0);
        for (size_t o = 0; o < sizeof orders / sizeof orders[0]; o++)
            for (int seed = 0; seed < orders[o].n_seeds; seed++) {
                run_ranks(got, train, &opt, with_frozen, orders[o].order, (uint64_t)seed);
                expect_same(want, got, stage, orders[o].name);
            }
    }
    free(want);
    free(got);
}

static void check_exchange(bool with_frozen, bool reproducible, bool overlap, int64_t bucket)
{
    const dt_zero_options opt = {.reproducible = reproducible,
                                 .overlap_comm = overlap,
                                 .reduce_bucket_size = bucket,
                                 .allgather_bucket_size = bucket};
    check_orders(with_frozen, &opt);
}

TEST(overlapped_exchange_changes_no_bit) { check_exchange(false, false, true, 0); }
TEST(overlapped_exchange_in_buckets_changes_no_bit) { check_exchange(false, false, true, 600); }
TEST(overlapped_reproducible_sums_change_no_bit) { check_exchange(false, true, true, 0); }
TEST(one_stream_needs_no_events) { check_exchange(false, true, false, 600); }
TEST(overlapped_exchange_of_two_parts_changes_no_bit) { check_exchange(true, false, true, 0); }

/* ---- offload ----------------------------------------------------------------------------------------------------- */

TEST(offload_to_host_memory_changes_no_bit)
{
    dt_zero_options opt = offloaded(DT_OFFLOAD_CPU, DT_OFFLOAD_CPU, 2);
    check_orders(true, &opt);
    opt.overlap_comm = false;
    check_orders(false, &opt);
}
TEST(offload_to_a_file_changes_no_bit)
{
    dt_zero_options opt = offloaded(DT_OFFLOAD_NVME, DT_OFFLOAD_NVME, 3);
    check_orders(true, &opt);
    opt.reproducible = true;
    opt.buffer_count = 1;
    check_orders(false, &opt);
}
TEST(offload_of_only_parameters_changes_no_bit)
{
    dt_zero_options opt = offloaded(DT_OFFLOAD_NONE, DT_OFFLOAD_CPU, 2);
    check_orders(false, &opt);
    opt.offload_param = DT_OFFLOAD_NVME;
    check_orders(true, &opt);
}

/* Sums are exchanged after their reduction and before they are copied down. */
TEST(exchange_among_groups_changes_no_bit)
{
    dt_zero_options opt = {.overlap_comm = true, .n_groups = N_THREADS, .reduce_bucket_size = 600};
    check_orders(false, &opt);
    opt = offloaded(DT_OFFLOAD_CPU, DT_OFFLOAD_CPU, 2);
    opt.n_groups = N_THREADS;
    check_orders(true, &opt);
}

int main(void)
{
    setenv("DTRAIN_SWAP_IO", "late,buffered", 0);
    return run_listed(NULL, NULL, NULL);
}
