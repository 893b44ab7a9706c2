/* test_zero_overlap.c - zero's overlap with the device's work, shown by the order of events and not by time: which
 * work is in flight when other work begins. */
#include "cases.h"
#include "zero_streams.h"

/** Is a part of the unit in the file alone, and not on its way from there? */
static bool is_behind(const dt_zero *z, int u)
{
    for (int p = 0; p < DT_N_PARTS; p++) {
        bool comes = zero_is_empty(&z->lay, u, (dt_part)p) || z->state[u].part[p].resident;
        for (int i = 0; i < z->fetch.n; i++)
            comes |= z->fetch.buffer[i].unit == u && z->fetch.buffer[i].part == (dt_part)p;
        if (!comes) return true;
    }
    return false;
}

/** Forward and backward without the embedding's use at the head, so backward visits units in plain reverse order.
 *  While a unit is computed, the next one is gathered, and the one after that is being read from the file. */
static dt_err pass_and_look(rank_thread *t, dt_zero *z, int *n_behind)
{
    enum { HEAD = REF_ZERO_UNITS - 1, N_TURNS = 2 * HEAD };
    const dt_param_source s = dt_zero_source(z);
    *n_behind = 0;
    dt_zero_begin_micro(z, 0, 1);
    for (int i = 0; i <= N_TURNS; i++) {
        const int u = i <= HEAD ? i : N_TURNS - i, two_on = i + 2 <= HEAD ? i + 2 : N_TURNS - i - 2;
        dt_param_view view;
        DT_TRY(s.params_acquire(s.self, u, &view));
        DT_TRY(t->dev.ops->stream_sync(&t->dev, z->comm_stream)); /* buffers are free */
        if (i + 2 <= N_TURNS) *n_behind += is_behind(z, two_on);
        DT_TRY(s.params_release(s.self, u));
    }
    return DT_OK;
}

static dt_err two_passes(rank_thread *t, dt_zero *z)
{
    int n_behind = 0;
    DT_TRY(dt_zero_init_random(z, 1));
    for (int k = 0; k < 2; k++) DT_TRY(pass_and_look(t, z, &n_behind)); /* the first teaches which unit follows which */
    t->n_trace = 1;
    DT_CHECK(n_behind == 0, DT_ERR_ARG, "%d units were not read ahead of their turn", n_behind);
    return DT_OK;
}

TEST(the_file_is_read_ahead_both_ways)
{
    rank_thread *t = calloc(N_THREADS, sizeof *t);
    dt_zero_options opt = offloaded(DT_OFFLOAD_NVME, DT_OFFLOAD_NVME, 3);
    opt.stage = 3;
    opt.param_dtype = DT_BF16, opt.grad_dtype = DT_F32;
    opt.optimizer = &dt_optimizer_adamw;
    opt.tied_unit = -1;
    opt.prefetch_bucket_size = 1 << 20;
    run_ranks(t, two_passes, &opt, false, DT_QUEUE_AT_ONCE, 0);
    free(t);
}

/* An optimizer that records the work in flight when an update steps on the host. One record for each thread. */
static _Thread_local struct look_around {
    rank_thread *t;
    dt_zero *z;
    int n_steps;
    int64_t n_waits;        /* of the host, before the first step of the update */
    int n_waited;           /* steps before which it waited for the device again */
    int64_t n_asked_for;    /* sub-groups whose states were asked for when the first was updated */
    int n_gathered, before; /* gathers queued when the last step began; before the update */
} around;

static int64_t host_waits(const rank_thread *t)
{
    const dt_queue_counts c = dt_queue_counts_of(&t->dev);
    return c.host_waits + c.event_waits;
}

static dt_err step_and_look(dt_device *dev, const dt_optimizer_step *s, const dt_update_range *r)
{
    const int64_t waits = host_waits(around.t);
    if (around.n_steps++ == 0) around.n_waits = waits, around.n_asked_for = around.z->next_read;
    around.n_waited += waits != around.n_waits;
    around.n_gathered = around.t->n_gathers - around.before;
    return dt_adamw_step(dev, s, r);
}

static int n_under_way(const zero_ring *r)
{
    int n = 0;
    for (int i = 0; i < r->n; i++)
        for (int k = 0; k < 1 + DT_MAX_STATES; k++) n += r->buffer[i].request[k].under_way;
    return n;
}

/** A step in which nothing on streams other than compute's runs before a wait for it. */
static dt_err one_step_and_look(rank_thread *t, dt_zero *z)
{
    DT_TRY(dt_zero_init_random(z, 1));
    const int64_t waits = host_waits(t);
    memset(z->host_grads.ptr, 0xff, z->host_grads.nbytes); /* NaN */
    DT_TRY(micro_steps(t, z, 1));
    DT_CHECK(host_waits(t) == waits, DT_ERR_ARG, "the host waited in a micro-step");
    float first;
    memcpy(&first, zero_sum_at(z, 0, zero_own(z, 0, DT_TRAINED)), sizeof first);
    DT_CHECK(isnan(first), DT_ERR_ARG, "backward went on when the last gradients had come down");
    DT_TRY(dt_zero_grad_sum_squares(z, &t->norm));
    DT_CHECK(isfinite(t->norm), DT_ERR_ARG, "the norm was taken before all gradients were down");
    const bool reads = n_under_way(&z->swap) > 0 && z->next_read == dt_min_i64(z->swap.n, z->n_groups);
    DT_CHECK(!z->file || reads, DT_ERR_ARG, "nothing was read before the update began");
    around = (struct look_around){.t = t, .z = z, .before = t->n_gathers};
    DT_TRY(dt_zero_update(z, &WITH, NULL));
    DT_CHECK(!z->file || n_under_way(&z->swap) > 0, DT_ERR_ARG, "the update ended when all was written");
    t->n_trace = 1;
    DT_CHECK(around.n_steps > 2 && around.n_waited == 0, DT_ERR_ARG, "%d of %d sub-groups waited for the device",
             around.n_waited, around.n_steps);
    DT_CHECK(around.n_gathered > 0 || z->lay.stage == 3, DT_ERR_ARG, "no unit was gathered before all were updated");
    DT_CHECK(!z->file || around.n_asked_for > 1, DT_ERR_ARG, "no sub-group was read while the first was updated");
    return DT_OK;
}

/** A step that ends in its middle, as an error ends it: gradients are on their way down. */
static dt_err leave_in_a_step(rank_thread *t, dt_zero *z)
{
    DT_TRY(dt_zero_init_random(z, 1));
    t->n_trace = 1;
    return micro_steps(t, z, 1);
}

TEST(closing_waits_for_transfers_in_flight)
{
    rank_thread *t = calloc(N_THREADS, sizeof *t);
    dt_zero_options opt = offloaded(DT_OFFLOAD_CPU, DT_OFFLOAD_CPU, 2);
    opt.stage = 3;
    opt.param_dtype = DT_BF16, opt.grad_dtype = DT_F32;
    opt.optimizer = &dt_optimizer_adamw;
    run_ranks(t, leave_in_a_step, &opt, false, DT_QUEUE_LATE, 0);
    run_ranks(t, leave_in_a_step, &opt, false, DT_QUEUE_LATE_OTHERS, 0);
    free(t);
}

TEST(offload_overlaps_the_device)
{
    rank_thread *t = calloc(N_THREADS, sizeof *t);
    dt_optimizer_ops looks = dt_optimizer_adamw;
    looks.step = step_and_look;
    for (int k = 0; k < 4; k++) {
        dt_zero_options opt = offloaded(k & 1 ? DT_OFFLOAD_NVME : DT_OFFLOAD_CPU, DT_OFFLOAD_NONE, 64);
        opt.stage = 1 + (k & 2);
        opt.param_dtype = DT_BF16, opt.grad_dtype = DT_F32;
        opt.optimizer = &looks;
        run_ranks(t, one_step_and_look, &opt, false, DT_QUEUE_LATE_OTHERS, 0);
    }
    free(t);
}

/** The head's parameters are the last that an update writes: the next pass has them while they are written. */
static dt_err update_and_acquire(rank_thread *t, dt_zero *z)
{
    const dt_param_source s = dt_zero_source(z);
    const int head = REF_ZERO_UNITS - 1;
    dt_param_view view;
    DT_TRY(dt_zero_init_random(z, 1));
    DT_TRY(one_update(t, z, 1));
    dt_zero_begin_micro(z, 0, 1);
    const int n_writes = n_under_way(&z->fetch);
    DT_CHECK(n_writes > 0, DT_ERR_ARG, "the update ended when all parameters were written");
    DT_TRY(s.params_acquire(s.self, head, &view));
    DT_CHECK(n_under_way(&z->fetch) == n_writes, DT_ERR_ARG, "parameters at hand were waited for");
    return s.params_release(s.self, head);
}

TEST(parameters_are_used_while_they_are_written)
{
    rank_thread *t = calloc(N_THREADS, sizeof *t);
    dt_zero_options opt = offloaded(DT_OFFLOAD_NVME, DT_OFFLOAD_NVME, 64);
    opt.stage = 3;
    opt.param_dtype = DT_BF16, opt.grad_dtype = DT_F32;
    opt.optimizer = &dt_optimizer_adamw;
    run_ranks(t, update_and_acquire, &opt, false, DT_QUEUE_LATE, 0);
    opt.offload_optimizer = DT_OFFLOAD_NONE;
    run_ranks(t, update_and_acquire, &opt, false, DT_QUEUE_AT_ONCE, 0);
    free(t);
}

static int n_to_write(const zero_ring *r)
{
    int n = 0;
    for (int i = 0; i < r->n; i++) n += r->buffer[i].to_write;
    return n;
}

/** The device rounds parameters that are kept in the file. There is a buffer for each unit. The first ones are
 *  written while the device fills the last half of them. Those are written at the first poll after their copy to the
 *  host. */
static dt_err update_and_look(rank_thread *t, dt_zero *z)
{
    const dt_param_source s = dt_zero_source(z);
    const int half = z->fetch.n / 2;
    dt_param_view view;
    DT_TRY(dt_zero_init_random(z, 1));
    DT_TRY(one_update(t, z, 1));
    DT_CHECK(n_under_way(&z->fetch) > 0 && n_to_write(&z->fetch) == half, DT_ERR_ARG,
             "%d of %d buffers are being written, %d wait for the device", n_under_way(&z->fetch), z->fetch.n,
             n_to_write(&z->fetch));
    DT_TRY(t->dev.ops->stream_sync(&t->dev, NULL));
    dt_zero_begin_micro(z, 0, 1);
    DT_TRY(s.params_acquire(s.self, 0, &view));
    DT_CHECK(n_to_write(&z->fetch) == 0, DT_ERR_ARG, "what had come down was not written");
    return s.params_release(s.self, 0);
}

TEST(parameters_are_written_as_they_come_down)
{
    rank_thread *t = calloc(N_THREADS, sizeof *t);
    dt_zero_options opt = offloaded(DT_OFFLOAD_NONE, DT_OFFLOAD_NVME, REF_ZERO_UNITS);
    opt.stage = 3;
    opt.param_dtype = DT_BF16, opt.grad_dtype = DT_F32;
    opt.optimizer = &dt_optimizer_adamw;
    run_ranks(t, update_and_look, &opt, false, DT_QUEUE_LATE, 0);
    free(t);
}

int main(void)
{
    setenv("DTRAIN_SWAP_IO", "late,buffered", 0);
    return run_listed(NULL, NULL, NULL);
}
