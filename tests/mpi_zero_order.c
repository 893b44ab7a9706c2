/* mpi_zero_order.c - which collectives zero asks for, of what size and in what order. A lone process is rank 1 of four:
 * the transport sends nothing and writes down what comes, at its turn in the stream of a queue device.
 * NP: 1 */
#include "mpi_test.h"
#include "../src/backends/queue.h"
#include "dtrain/zero/zero.h"
#include "ref_zero.h"

enum { NRANKS = 4, HEAD = REF_ZERO_UNITS - 1, MAX_EVENTS = 4096 };

/** What ran: 'g', 'r' and 'x' gather, reduction and exchange among groups of a unit, 'f' and 'b' work of its forward
 *  and backward, 'c' of its recomputation. */
typedef struct event {
    char what;
    int unit;
    int64_t n_elems; /* of all ranks */
} event;

static struct {
    event list[MAX_EVENTS];
    int n;
} ran;

static dt_err note(dt_device *below, const void *args)
{
    if (ran.n < MAX_EVENTS) memcpy(&ran.list[ran.n++], args, sizeof(event));
    return DT_OK;
}

static dt_phase phase; /* zero says there whose collective it is */

static dt_err queue_note(dt_device *dev, dt_stream *stream, char what, int unit, int64_t n_elems)
{
    const event e = {what, unit, n_elems};
    return dt_queue_call(dev, stream, note, &e, sizeof e);
}

static int unit_of_phase(const dt_unit *units)
{
    int u = 0;
    while (u < REF_ZERO_UNITS && strcmp(units[u].name, atomic_load(&phase.unit)) != 0) u++;
    return u;
}

static dt_unit units[REF_ZERO_UNITS];
static bool with_experts; /* units 2 and 3 are experts of unit 1 */

static dt_err note_reduce(const dt_axis *axis, const dt_reduction *r, dt_stream *stream)
{
    return queue_note(axis->comm->dev, stream, 'r', unit_of_phase(units), NRANKS * r->count);
}

static dt_err note_gather(const dt_axis *axis, const char *kind, const void *send, void *recv, size_t stride,
                          size_t nbytes, dt_stream *stream)
{
    return queue_note(axis->comm->dev, stream, strcmp(kind, "replicate") ? 'g' : 'x', unit_of_phase(units),
                      axis->size * (int64_t)(nbytes / sizeof(float)));
}

static const dt_comm_ops noting = {.name = "noting", .reduce_scatter = note_reduce, .all_gather = note_gather};

typedef struct fixture {
    dt_ledger ledger;
    dt_device dev;
    dt_comm comm;
    const dt_comm_ops *real;
    dt_zero *z;
    dt_zero_plan plan;
} fixture;

static dt_zero_options stage_3(void)
{
    return (dt_zero_options){.stage = 3,
                             .param_dtype = DT_F32,
                             .grad_dtype = DT_F32,
                             .optimizer = &dt_optimizer_adamw,
                             .overlap_comm = true,
                             .tied_unit = -1,
                             .prefetch_bucket_size = 1 << 20};
}

static void open_zero(fixture *f, const dt_zero_options *opt, dt_queue_order order, uint64_t seed)
{
    *f = (fixture){0};
    ran.n = 0;
    assert_int_equal(ref_zero_make_units(units, false), DT_OK);
    for (int u = 2; u <= 3 && with_experts; u++) units[u].role = DT_UNIT_EXPERTS;
    assert_int_equal(dt_queue_open(&f->dev, order, seed, &f->ledger), DT_OK);
    assert_int_equal(dt_comm_open(&f->comm), DT_OK);
    assert_int_equal(dt_comm_attach(&f->comm, &f->dev, "mpi", true), DT_OK);
    f->real = f->comm.ops;
    f->comm.ops = &noting;
    f->comm.nranks = NRANKS, f->comm.rank = 1;
    dt_mesh *m = &f->comm.mesh;
    m->sum.size = NRANKS, m->replicate.size = opt->n_groups ? opt->n_groups : 1;
    m->shard.size = NRANKS / m->replicate.size, m->shard.rank = 1 % m->shard.size;
    m->sum.block_of[0] = m->shard.rank * m->replicate.size;
    assert_int_equal(dt_zero_plan_make(opt, units, REF_ZERO_UNITS, NRANKS, &f->plan), DT_OK);
    if (dt_zero_open(&f->z, opt, units, REF_ZERO_UNITS, &f->comm, &f->dev, NULL, &phase) != DT_OK)
        fail_msg("%s", dt_error_message());
}

static void close_zero(fixture *f)
{
    dt_zero_close(f->z);
    f->comm.ops = f->real;
    f->comm.nranks = 1, f->comm.rank = 0;
    dt_comm_close(&f->comm);
    ref_zero_free_units(units);
    assert_int_equal(atomic_load(&f->ledger.total_now), 0);
    dt_device_close(&f->dev);
}

static void forward_unit(fixture *f, int u)
{
    const dt_param_source s = dt_zero_source(f->z);
    dt_param_view w;
    assert_int_equal(s.params_acquire(s.self, u, &w), DT_OK);
    assert_int_equal(queue_note(&f->dev, NULL, 'f', u, 0), DT_OK);
    assert_int_equal(s.params_release(s.self, u), DT_OK);
}

/* In the model's order: the parameters of a unit, then its gradients, and between them what is recomputed; of the
 * embedding the gradients alone. */
static void backward_unit(fixture *f, int u)
{
    const dt_param_source s = dt_zero_source(f->z);
    dt_param_view w;
    dt_grad_view g;
    if (u > 0) assert_int_equal(s.params_acquire(s.self, u, &w), DT_OK);
    assert_int_equal(queue_note(&f->dev, NULL, 'c', u, 0), DT_OK);
    assert_int_equal(s.grads_acquire(s.self, u, &g), DT_OK);
    assert_int_equal(queue_note(&f->dev, NULL, 'b', u, 0), DT_OK);
    assert_int_equal(s.grads_release(s.self, u), DT_OK);
    if (u > 0) assert_int_equal(s.params_release(s.self, u), DT_OK);
}

static void micro_step(fixture *f, int index, int n_micro)
{
    dt_zero_begin_micro(f->z, index, n_micro);
    for (int u = 0; u < HEAD; u++) forward_unit(f, u);
    for (int u = HEAD; u >= 0; u--) backward_unit(f, u);
}

/* All has run when it returns. */
static void update(fixture *f, bool with_norm)
{
    const dt_optimizer_step with = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.9, .eps = 1e-8, .grad_scale = 1, .t = 1};
    double sum;
    if (with_norm) assert_int_equal(dt_zero_grad_sum_squares(f->z, &sum), DT_OK);
    assert_int_equal(dt_zero_update(f->z, &with, NULL), DT_OK);
    assert_int_equal(f->dev.ops->stream_sync(&f->dev, NULL), DT_OK);
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* The index of the last of those starting at `from`; -1: none. */
static int last_event(int from, char what, int unit)
{
    int i = ran.n - 1;
    while (i >= from && (ran.list[i].what != what || ran.list[i].unit != unit)) i--;
    return i >= from ? i : -1;
}

static int first_event(int from, char what, int unit)
{
    int i = from;
    while (i >= 0 && i < ran.n && (ran.list[i].what != what || ran.list[i].unit != unit)) i++;
    return i < ran.n ? i : -1;
}

static int count_events(int from, char what, int unit)
{
    int n = 0;
    for (int i = from; i < ran.n; i++) n += ran.list[i].what == what && ran.list[i].unit == unit;
    return n;
}

static void print_events(int from)
{
    for (int i = from; i < ran.n; i++) print_error("%c%d ", ran.list[i].what, ran.list[i].unit);
    print_error("\n");
}

#define assert_order(from, holds)                                                                                      \
    do {                                                                                                               \
        if (!(holds)) print_events(from);                                                                              \
        assert_true(holds);                                                                                            \
    } while (0)

/* While unit u-1 is in hand, u-2 is gathered and u is reduced. Backward waits for the first before it recomputes u-2,
 * and for the second before it writes the gradients of u-2, which take the place of those of u. The reduction itself
 * waits for no more than its gradients. The last reductions of a micro-step let the first gathers of the next one pass.
 * The step before teaches zero which unit follows which. */
TEST(gathers_precede_deferrable_reductions)
{
    for (int k = 0; k < DT_QUEUE_N_ORDERS + 8; k++) {
        const dt_queue_order order = k < DT_QUEUE_N_ORDERS ? (dt_queue_order)k : DT_QUEUE_ANY;
        const dt_zero_options opt = stage_3();
        fixture f;
        open_zero(&f, &opt, order, (uint64_t)k);
        for (int step = 0; step < 3; step++) {
            const int from = ran.n;
            for (int a = 0; a < 2; a++) micro_step(&f, a, 2);
            update(&f, true);
            for (int u = 0; u < REF_ZERO_UNITS; u++) assert_order(from, count_events(from, 'r', u) == 2);
            const int second = last_event(from, 'f', 0);
            if (step > 0) { /* those of both micro-steps come after these gathers of the second */
                const int first = last_event(from, 'g', 0);
                assert_order(from, count_events(first, 'r', 1) == 2);
                assert_order(from, count_events(first_event(first, 'g', 2), 'r', 0) == 2);
            }
            for (int u = HEAD; u >= 3 && step > 0; u--) {
                const int reduced = last_event(second, 'r', u);
                assert_order(from, last_event(second, 'g', u - 2) < reduced);
                assert_order(from, last_event(second, 'b', u) < reduced && reduced < last_event(second, 'b', u - 2));
                if (order == DT_QUEUE_LATE_OTHERS) assert_order(from, last_event(second, 'c', u - 2) < reduced);
                if (order == DT_QUEUE_AT_ONCE) assert_order(from, reduced < last_event(second, 'c', u - 1));
            }
        }
        close_zero(&f);
    }
}

/* Units 2 and 3 hold experts of the block 1. Backward computes them again in the order of forward, and then in reverse:
 * 3 follows 2 both times, but what follows 3 differs. While 3 is in hand, the right unit is gathered. */
static void block_of_experts(fixture *f, bool back)
{
    const dt_param_source s = dt_zero_source(f->z);
    dt_param_view w;
    assert_int_equal(s.params_acquire(s.self, 1, &w), DT_OK);
    forward_unit(f, 2);
    forward_unit(f, 3);
    if (back) forward_unit(f, 2);
    for (int u = 1; u <= 3 && back; u++) {
        dt_grad_view g;
        assert_int_equal(s.grads_acquire(s.self, u, &g), DT_OK);
        assert_int_equal(s.grads_release(s.self, u), DT_OK);
    }
    assert_int_equal(s.params_release(s.self, 1), DT_OK);
}

TEST(what_follows_experts_depends_on_the_pass)
{
    const dt_zero_options opt = stage_3();
    fixture f;
    with_experts = true;
    open_zero(&f, &opt, DT_QUEUE_AT_ONCE, 0);
    with_experts = false;
    for (int step = 0; step < 4; step++) {
        const int from = ran.n;
        dt_zero_begin_micro(f.z, 0, 1);
        forward_unit(&f, 0);
        block_of_experts(&f, false);
        backward_unit(&f, HEAD);
        block_of_experts(&f, true);
        backward_unit(&f, 0);
        update(&f, true);
        if (step < 2) continue;
        assert_order(from, first_event(from, 'g', HEAD) < first_event(from, 'f', 3));
        assert_order(from, count_events(from, 'g', 2) <= 2 && count_events(from, 'g', 3) <= 2);
    }
    close_zero(&f);
}

static void hold_grads(fixture *f, int u)
{
    const dt_param_source s = dt_zero_source(f->z);
    dt_grad_view g;
    assert_int_equal(s.grads_acquire(s.self, u, &g), DT_OK);
    assert_int_equal(queue_note(&f->dev, NULL, 'b', u, 0), DT_OK);
}

static void drop_grads(fixture *f, int u)
{
    const dt_param_source s = dt_zero_source(f->z);
    assert_int_equal(s.grads_release(s.self, u), DT_OK);
}

/* A pass that does not go the learned way: another unit is known to follow the head, and does not. */
TEST(a_reduction_is_made_whatever_follows)
{
    static const int REST[] = {HEAD - 3, HEAD - 2, 0};
    const dt_zero_options opt = stage_3();
    fixture f;
    open_zero(&f, &opt, DT_QUEUE_LATE, 0);
    for (int with_norm = 0; with_norm < 2; with_norm++) {
        for (int step = 0; step < 2; step++) micro_step(&f, 0, 1), update(&f, true);
        const int from = ran.n;
        dt_zero_begin_micro(f.z, 0, 1);
        for (int u = 0; u <= HEAD; u++) forward_unit(&f, u);
        hold_grads(&f, HEAD), hold_grads(&f, HEAD - 1);
        drop_grads(&f, HEAD), drop_grads(&f, HEAD - 1);
        for (int i = 0; i <= HEAD - 2; i++) hold_grads(&f, REST[i]), drop_grads(&f, REST[i]);
        double sum;
        if (with_norm)
            assert_int_equal(dt_zero_grad_sum_squares(f.z, &sum), DT_OK);
        else
            update(&f, false);
        for (int u = 0; u < REF_ZERO_UNITS; u++) assert_order(from, count_events(from, 'r', u) == 1);
        if (with_norm) update(&f, false);
        for (int u = HEAD; u > HEAD - 2; u--) /* in the same place */
            assert_order(from, last_event(from, 'r', u) < last_event(from, 'b', u - 2));
    }
    close_zero(&f);
}

/* ---- knobs ------------------------------------------------------------------------------------------------------- */

/** Of a step of one micro-step, when all is learned; bytes that are held on the device. */
typedef struct cost {
    int n_reduce, n_gather;
    int64_t largest_reduce, largest_gather, reduced, gathered; /* elements of all ranks */
    size_t staging, params;
    bool early; /* is a block gathered before the previous unit computes? */
} cost;

static cost cost_of(const dt_zero_options *opt)
{
    fixture f;
    cost c = {0};
    open_zero(&f, opt, DT_QUEUE_AT_ONCE, 0);
    for (int step = 0; step < 2; step++) micro_step(&f, 0, 1), update(&f, true);
    const int from = ran.n;
    micro_step(&f, 0, 1);
    update(&f, true);
    for (int i = from; i < ran.n; i++) {
        const event *e = &ran.list[i];
        if (e->what != 'g' && e->what != 'r') continue;
        const bool gather = e->what == 'g';
        *(gather ? &c.n_gather : &c.n_reduce) += 1;
        *(gather ? &c.gathered : &c.reduced) += e->n_elems;
        int64_t *largest = gather ? &c.largest_gather : &c.largest_reduce;
        *largest = dt_max_i64(*largest, e->n_elems);
    }
    c.early = last_event(from, 'g', 1) < last_event(from, 'b', 2);
    const dt_memory held = dt_ledger_now(&f.ledger);
    for (int p = 0; p < DT_N_MEMSPACE; p++)
        assert_true(f.plan.memory.at[DT_MEM_PARAMS][p] == held.at[DT_MEM_PARAMS][p]);
    c.staging = f.plan.memory.at[DT_MEM_STAGING][DT_ON_DEVICE];
    assert_true(c.staging == held.at[DT_MEM_STAGING][DT_ON_DEVICE]);
    c.params = held.at[DT_MEM_PARAMS][DT_ON_DEVICE];
    close_zero(&f);
    return c;
}

TEST(buckets_bound_what_a_collective_moves)
{
    dt_zero_options opt = stage_3();
    const cost whole = cost_of(&opt);
    assert_int_equal(whole.n_reduce, REF_ZERO_UNITS);
    opt.reduce_bucket_size = 1000;
    const cost reduce = cost_of(&opt);
    assert_true(whole.largest_reduce > 1000 && reduce.largest_reduce <= 1000 && reduce.n_reduce > whole.n_reduce);
    assert_true(reduce.reduced == whole.reduced && reduce.n_gather == whole.n_gather);
    assert_true(reduce.staging > whole.staging && reduce.staging <= whole.staging + 1000 * sizeof(float));
    opt = stage_3();
    opt.allgather_bucket_size = 1000;
    const cost gather = cost_of(&opt);
    assert_true(whole.largest_gather > 1000 && gather.largest_gather <= 1000 && gather.n_gather > whole.n_gather);
    assert_true(gather.gathered == whole.gathered && gather.n_reduce == whole.n_reduce);
    assert_true(gather.staging > whole.staging && gather.staging <= whole.staging + 1000 * sizeof(float));
}

TEST(prefetching_uses_memory_but_no_extra_messages)
{
    dt_zero_options opt = stage_3();
    const cost ahead = cost_of(&opt);
    opt.prefetch_bucket_size = 0;
    const cost alone = cost_of(&opt);
    assert_true(ahead.early && !alone.early);
    assert_true(alone.staging < ahead.staging && alone.gathered >= ahead.gathered);

    dt_zero_plan plan;
    opt = stage_3();
    assert_int_equal(ref_zero_make_units(units, false), DT_OK);
    assert_int_equal(dt_zero_plan_make(&opt, units, REF_ZERO_UNITS, NRANKS, &plan), DT_OK);
    ref_zero_free_units(units);
    opt.max_live_parameters = plan.least_live_parameters; /* room for one, and no more */
    const cost least = cost_of(&opt);
    assert_true(!least.early && least.staging == alone.staging && least.gathered == alone.gathered);
}

TEST(without_overlap_there_is_one_stream_and_less_room)
{
    dt_zero_options opt = stage_3();
    const cost with = cost_of(&opt);
    opt.overlap_comm = false;
    const cost without = cost_of(&opt);
    assert_true(without.staging < with.staging && !without.early && without.n_reduce == with.n_reduce);
}

TEST(small_units_are_not_sharded)
{
    dt_zero_options opt = stage_3();
    const cost none = cost_of(&opt);
    opt.param_persistence_threshold = 1 << 20;
    const cost all = cost_of(&opt);
    assert_true(all.params > 3 * none.params && all.staging < none.staging); /* of four shards one, or all */
    assert_int_equal(all.n_gather, REF_ZERO_UNITS);                          /* once, after the update */
    assert_true(none.n_gather > all.n_gather && all.n_reduce == none.n_reduce);
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

/* With two groups of two ranks, the groups exchange the sums of a unit once a step, directly after its last
 * reduction. Gathers move the data that two ranks hold. */
TEST(sums_pass_between_groups_once_a_step)
{
    enum { N_MICRO = 3 };
    for (int stage = 0; stage <= 3; stage++) {
        dt_zero_options opt = stage_3();
        fixture f;
        opt.stage = stage, opt.n_groups = 2;
        open_zero(&f, &opt, DT_QUEUE_AT_ONCE, 0);
        for (int step = 0; step < 2; step++) {
            const int from = ran.n;
            for (int a = 0; a < N_MICRO; a++) micro_step(&f, a, N_MICRO);
            update(&f, true);
            for (int u = 0; u < REF_ZERO_UNITS; u++) {
                const int exchanged = last_event(from, 'x', u), reduced = last_event(from, 'r', u);
                const dt_shards s = dt_shards_of(units[u].flat_len[DT_TRAINED], NRANKS, 2, DT_SHARD_ALIGN);
                assert_order(from, count_events(from, 'x', u) == 1 && exchanged == reduced + 1);
                assert_order(from, count_events(from, 'r', u) == (stage < 2 ? 1 : N_MICRO));
                assert_true(ran.list[exchanged].n_elems == s.shard_len && ran.list[reduced].n_elems == s.padded_len);
                assert_true(ran.list[last_event(from, 'g', u)].n_elems % s.shard_len == 0);
            }
        }
        close_zero(&f);
    }
}

/* In a step of M micro-steps a rank of K nodes of L sends to other nodes, of P elements (fp32) on N = K L ranks, each
 * time P/N to each node: a reduction its part of the node's sum, a gather its shard, and in groups of a node the
 * exchange its part once, and no gather anything. */
TEST(groups_of_a_node_gather_inside_it)
{
    enum { M = 3, K = 2 };
    const dt_device dev = {.ops = &dt_device_cpu_ops};
    double padded = 0;
    assert_int_equal(ref_zero_make_units(units, false), DT_OK);
    for (int u = 0; u < REF_ZERO_UNITS; u++)
        padded += (double)dt_shards_of(units[u].flat_len[DT_TRAINED], NRANKS, 1, DT_SHARD_ALIGN).padded_len;
    const double once = (K - 1) * padded / NRANKS * 4;
    for (int by_node = 0; by_node < 2; by_node++)
        for (int stage = 0; stage <= 3; stage++) {
            const dt_comm_shape shape = {NRANKS, NRANKS / K, 1, true, {1, 1, by_node}};
            dt_zero_options opt = stage_3();
            dt_zero_plan plan;
            opt.stage = stage, opt.n_groups = by_node ? K : 1;
            assert_int_equal(dt_zero_plan_make(&opt, units, REF_ZERO_UNITS, NRANKS, &plan), DT_OK);
            const double micro = dt_comm_sent("mpi", &dev, &shape, false, &plan.micro_step).between,
                         step = dt_comm_sent("mpi", &dev, &shape, false, &plan.step).between;
            const double reductions = stage < 2 ? 1 : M, gathers = by_node ? 0 : stage < 3 ? 1 : 2 * M;
            assert_true(M * micro + step == (reductions + gathers + by_node) * once);
        }
    ref_zero_free_units(units);
}

MPI_TEST_MAIN(NULL, NULL)
