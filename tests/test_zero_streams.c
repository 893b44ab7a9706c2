/* test_zero_streams.c - zero on a device whose streams are really asynchronous (the queue device): whatever order the
 * events allow, all views and the final states have the bits that the order of the calls gives.
 *
 * Two ranks are two threads. The collectives below take the place of comm's: they queue on the stream they are given
 * and meet the other rank when the queue comes to them, as NCCL's do; both ranks queue and run the same things in the
 * same order, so they always meet. */
#include "dtrain/zero.h"
#include "../src/device/queue.h"
#include "../src/zero/zero_impl.h"
#include "ref_zero.h"
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { N_THREADS = 2, N_TRACE = 4096, N_STEPS = 3, N_MICRO = 2, N_SEEDS = 3 };

/* ---- two ranks --------------------------------------------------------------------------------------------------- */

typedef struct meeting {
    pthread_barrier_t barrier;
    const void *data[N_THREADS];
} meeting;

typedef struct rank_thread rank_thread;
struct rank_thread {
    dt_comm comm;
    dt_device dev, host;
    dt_ledger ledger;
    meeting *meet;
    dt_zero_options opt;
    dt_unit units[REF_ZERO_UNITS];
    uint64_t trace[N_TRACE]; /* hashes of what the queued model saw */
    int n_trace;
    uint64_t states; /* hash of all states at the end */
    int n_gathers;   /* queued */
    double norm;
    dt_err err;
    dt_err (*run)(rank_thread *t, dt_zero *z);
};

static rank_thread *thread_of(const dt_device *dev)
{
    return (rank_thread *)((char *)dev - offsetof(rank_thread, dev));
}

static void meet(const dt_comm *comm, const void *mine)
{
    meeting *m = thread_of(comm->dev)->meet;
    m->data[comm->rank] = mine;
    pthread_barrier_wait(&m->barrier);
}
static void part(const dt_comm *comm) { pthread_barrier_wait(&thread_of(comm->dev)->meet->barrier); }

typedef struct exchange {
    dt_comm *comm;
    const void *send;
    void *recv;
    dt_dtype send_dt, recv_dt;
    int64_t count;
    bool accumulate;
    int64_t stride;
} exchange;

static float get(const void *x, dt_dtype t, int64_t i)
{
    return t == DT_F32 ? ((const float *)x)[i] : dt_bf16_to_float(((const uint16_t *)x)[i]);
}

static void put(void *x, dt_dtype t, int64_t i, float value)
{
    if (t == DT_F32)
        ((float *)x)[i] = value;
    else
        ((uint16_t *)x)[i] = dt_bf16_from_float(value);
}

static dt_err do_reduce_scatter(dt_device *cpu, const void *args)
{
    const exchange *a = args;
    const int64_t mine = dt_comm_piece(a->comm) * a->count;
    void *recv = dt_queue_reach(a->recv);
    float *sum = calloc((size_t)a->count, sizeof *sum);
    meet(a->comm, dt_queue_reach(a->send));
    for (int64_t i = 0; i < a->count; i++) {
        if (a->accumulate) sum[i] = get(recv, a->recv_dt, i);
        for (int r = 0; r < N_THREADS; r++) sum[i] += get(thread_of(a->comm->dev)->meet->data[r], a->send_dt, mine + i);
    }
    part(a->comm); /* recv may lie in send, which the other one reads until here */
    for (int64_t i = 0; i < a->count; i++) put(recv, a->recv_dt, i, sum[i]);
    part(a->comm);
    free(sum);
    return DT_OK;
}

dt_err dt_comm_reduce_scatter(dt_comm *comm, const void *send, dt_dtype send_dt, void *recv, dt_dtype recv_dt,
                              int64_t count, bool accumulate, bool ordered, dt_stream *stream)
{
    const exchange a = {comm, send, recv, send_dt, recv_dt, count, accumulate, 0};
    return dt_queue_call(comm->dev, stream, do_reduce_scatter, &a, sizeof a);
}

static dt_err do_all_gather(dt_device *cpu, const void *args)
{
    const exchange *a = args;
    meet(a->comm, dt_queue_reach(a->send));
    for (int r = 0; r < a->comm->group_nranks; r++) {
        char *to = (char *)dt_queue_reach(a->recv) + (size_t)r * (size_t)a->count;
        const void *from = thread_of(a->comm->dev)->meet->data[a->comm->n_groups > 1 ? a->comm->group : r];
        /* the own place is there already, and the other one reads it */
        if (to != from) memcpy(to, from, (size_t)a->count);
    }
    part(a->comm);
    return DT_OK;
}

dt_err dt_comm_all_gather(dt_comm *comm, const void *send, void *recv, size_t nbytes, dt_stream *stream)
{
    const exchange a = {.comm = comm, .send = send, .recv = recv, .count = (int64_t)nbytes};
    thread_of(comm->dev)->n_gathers++;
    return dt_queue_call(comm->dev, stream, do_all_gather, &a, sizeof a);
}

/** count: bytes of a part, stride apart. */
static dt_err do_replicate(dt_device *cpu, const void *args)
{
    const exchange *a = args;
    char *parts = dt_queue_reach(a->recv);
    meet(a->comm, parts);
    for (int g = 0; g < a->comm->n_groups; g++) {
        const char *from = thread_of(a->comm->dev)->meet->data[g];
        if (g != a->comm->group) memcpy(parts + g * a->stride, from + g * a->stride, (size_t)a->count);
    }
    part(a->comm);
    return DT_OK;
}

dt_err dt_comm_replicate(dt_comm *comm, void *buf, size_t stride, size_t nbytes, dt_stream *stream)
{
    const exchange a = {.comm = comm, .recv = buf, .count = (int64_t)nbytes, .stride = (int64_t)stride};
    return dt_queue_call(comm->dev, stream, do_replicate, &a, sizeof a);
}

dt_err dt_comm_agree(dt_comm *comm, dt_err err) { return err; }

dt_err dt_comm_reduce_host_f64(dt_comm *comm, double *values, int n, dt_reduce_op op)
{
    double most = values[0];
    meet(comm, values);
    for (int r = 0; r < N_THREADS; r++) most = fmax(most, *(const double *)thread_of(comm->dev)->meet->data[r]);
    part(comm);
    values[0] = most;
    part(comm);
    return n == 1 && op == DT_MAX ? DT_OK : DT_ERR_ARG;
}

dt_err dt_comm_sum_host_u64(dt_comm *comm, uint64_t *values, int n)
{
    uint64_t sum[8] = {0};
    meet(comm, values);
    for (int r = 0; r < N_THREADS; r++)
        for (int i = 0; i < n; i++) sum[i] += ((const uint64_t *)thread_of(comm->dev)->meet->data[r])[i];
    part(comm);
    memcpy(values, sum, (size_t)n * sizeof *sum);
    part(comm);
    return DT_OK;
}

/* ---- a model that queues its work -------------------------------------------------------------------------------- */

static uint64_t hash_bytes(uint64_t h, const void *data, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++) h = (h ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
    return h;
}

typedef struct work {
    void *data;
    dt_dtype dtype;
    int64_t len;
    const dt_unit *unit;
    int64_t step, job;
    int index, first_tensor, last_tensor, half;
    bool add;
    uint64_t *trace;
} work;

static dt_err do_look(dt_device *cpu, const void *args)
{
    const work *w = args;
    *w->trace = hash_bytes(*w->trace, dt_queue_reach(w->data), (size_t)w->len * dt_dtype_size(w->dtype));
    return DT_OK;
}

static dt_err do_write(dt_device *cpu, const void *args)
{
    const work *w = args;
    void *grads = dt_queue_reach(w->data);
    for (int k = w->first_tensor; k < w->last_tensor; k++) {
        const dt_tensor *t = &w->unit->tensors[k];
        if (t->part == DT_FROZEN) continue;
        const bool add = w->add || (w->half && k == 0);
        for (int64_t i = t->offset; i < t->offset + t->n_elems; i++) {
            const float g = ref_zero_grad(false, w->step, w->job, w->index, i, w->half && k == 0);
            put(grads, w->dtype, i, add ? get(grads, w->dtype, i) + g : g);
        }
    }
    return DT_OK;
}

static dt_err keep(dt_err first, dt_err then) { return first == DT_OK ? then : first; }

static dt_err look(rank_thread *t, dt_param_source *s, int u)
{
    dt_param_view view;
    uint64_t *trace = &t->trace[t->n_trace++ % N_TRACE];
    DT_TRY(s->params_acquire(s->self, u, &view));
    for (int p = 0; p < DT_N_PARTS; p++) {
        const work w = {
            .data = view.part[p].data, .dtype = view.part[p].dtype, .len = t->units[u].flat_len[p], .trace = trace};
        if (w.len > 0) DT_TRY(dt_queue_call(&t->dev, NULL, do_look, &w, sizeof w));
    }
    return DT_OK;
}

/** half 1: the second part of the tied tensor, and all others. */
static dt_err write_grads(rank_thread *t, const dt_grad_view *view, int u, int64_t step, int64_t job, int last_tensor,
                          int half)
{
    const work w = {.data = view->data,
                    .dtype = view->dtype,
                    .unit = &t->units[u],
                    .step = step,
                    .job = job,
                    .index = u,
                    .last_tensor = last_tensor,
                    .half = half,
                    .add = view->accumulate};
    return dt_queue_call(&t->dev, NULL, do_write, &w, sizeof w);
}

static dt_err queued_micro_step(rank_thread *t, dt_param_source *s, int64_t step, int64_t job)
{
    const int last = REF_ZERO_UNITS - 1;
    dt_grad_view view;
    dt_err err = DT_OK;
    for (int u = 0; u < last; u++) {
        err = keep(err, look(t, s, u));
        err = keep(err, s->params_release(s->self, u));
    }
    for (int u = last; u >= 0; u--) {
        err = keep(err, look(t, s, u));
        if (u == last) { /* the head takes the tied embedding, and keeps its gradients */
            err = keep(err, look(t, s, 0));
            err = keep(err, s->grads_acquire(s->self, 0, &view));
            err = keep(err, write_grads(t, &view, 0, step, job, 1, 0));
            err = keep(err, s->params_release(s->self, 0));
        }
        if (t->units[u].flat_len[DT_TRAINED] > 0) {
            err = keep(err, s->grads_acquire(s->self, u, &view));
            err = keep(err, write_grads(t, &view, u, step, job, t->units[u].n_tensors, u == 0));
            err = keep(err, s->grads_release(s->self, u));
        }
        if (u == 0) err = keep(err, s->grads_release(s->self, 0));
        err = keep(err, s->params_release(s->self, u));
    }
    return err;
}

static dt_err hash_states(rank_thread *t, dt_zero *z)
{
    static const int64_t most = 1 << 16;
    float *values = calloc((size_t)most, sizeof *values);
    dt_err err = values ? DT_OK : DT_ERR_MEMORY;
    for (dt_state s = 0; s < dt_zero_n_states(z); s++)
        for (int i = 0; i < dt_zero_n_pieces(z) && err == DT_OK; i++) {
            const dt_piece *p = &dt_zero_owned(z)[i];
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
        for (int i = 0; i < dt_zero_n_pieces(z) && err == DT_OK; i++) {
            const dt_piece *p = &dt_zero_owned(z)[i];
            if (!dt_zero_has_state(z, (dt_state)s, p)) continue;
            for (int64_t k = 0; k < p->n; k++) values[k] = (float)((p->first + k) % 251 + 1 + i + s) * 0x1p-10f;
            err = dt_zero_state_write(z, (dt_state)s, p, 0, p->n, values);
            for (int64_t k = 0; k < p->n; k++) values[k] = NAN; /* the caller's again */
        }
    free(values);
    return keep(err, dt_zero_state_written(z));
}

static dt_err micro_steps(rank_thread *t, dt_zero *z, int64_t step)
{
    dt_param_source s = dt_zero_source(z);
    for (int a = 0; a < N_MICRO; a++) {
        dt_zero_begin_micro(z, a, N_MICRO);
        DT_TRY(queued_micro_step(t, &s, step, a * N_THREADS + t->comm.rank));
    }
    return DT_OK;
}

static const dt_optimizer_step WITH = {
    .lr = 1e-2, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .grad_scale = 0.5, .t = 1};

static dt_err one_update(rank_thread *t, dt_zero *z, int64_t step)
{
    DT_TRY(micro_steps(t, z, step));
    return dt_zero_update(z, &WITH, NULL);
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
    DT_TRY(dt_zero_clear_states(z)); /* while replicas are gathered, and states on their way to the file */
    return hash_states(t, z);
}

static dt_err train(rank_thread *t, dt_zero *z)
{
    DT_TRY(dt_zero_init_random(z, 1));
    for (int step = 1; step <= N_STEPS; step++) {
        DT_TRY(micro_steps(t, z, step));
        if (step == 2) { /* a skipped step, without a look at the norm */
            dt_zero_discard(z);
            continue;
        }
        if (step == 1) DT_TRY(dt_zero_grad_sum_squares(z, &t->norm)); /* the last update waits by itself */
        DT_TRY(dt_zero_update(z, &WITH, NULL));
    }
    DT_TRY(hash_states(t, z));
    DT_TRY(one_update(t, z, N_STEPS));
    DT_TRY(change_states(t, z));
    return one_update(t, z, N_STEPS + 5); /* is closed with that under way */
}

static void *run_thread(void *arg)
{
    rank_thread *t = arg;
    dt_zero *z = NULL;
    t->err = dt_zero_open(&z, &t->opt, t->units, REF_ZERO_UNITS, &t->comm, &t->dev, NULL, NULL);
    if (t->err == DT_OK) t->err = t->run(t, z);
    if (t->err != DT_OK) print_error("rank %d: %s\n", t->comm.rank, dt_error_message());
    dt_zero_close(z);
    return NULL;
}

/** Both ranks in one order. An error (of the program) may strand the other thread: the test's timeout ends it. */
static void run_ranks(rank_thread *t, dt_err (*run)(rank_thread *, dt_zero *), const dt_zero_options *opt,
                      bool with_frozen, dt_queue_order order, uint64_t seed)
{
    meeting m;
    pthread_t id[N_THREADS];
    assert_int_equal(pthread_barrier_init(&m.barrier, NULL, N_THREADS), 0);
    for (int r = 0; r < N_THREADS; r++) {
        memset(&t[r], 0, sizeof t[r]);
        t[r].opt = *opt;
        t[r].run = run;
        t[r].meet = &m;
        assert_int_equal(ref_zero_make_units(t[r].units, with_frozen), DT_OK);
        assert_int_equal(dt_queue_open(&t[r].dev, order, seed, &t[r].ledger), DT_OK);
        assert_int_equal(dt_device_open_host(&t[r].host, 1, false, &t[r].ledger), DT_OK);
        t[r].opt.host = &t[r].host;
        t[r].comm = (dt_comm){.rank = r, .nranks = N_THREADS, .dev = &t[r].dev};
        if (opt->n_groups > 1) /* of one rank each */
            t[r].comm.n_groups = N_THREADS, t[r].comm.group = r, t[r].comm.group_nranks = 1;
        else
            t[r].comm.n_groups = 1, t[r].comm.group_rank = r, t[r].comm.group_nranks = N_THREADS;
    }
    for (int r = 0; r < N_THREADS; r++) assert_int_equal(pthread_create(&id[r], NULL, run_thread, &t[r]), 0);
    for (int r = 0; r < N_THREADS; r++) {
        pthread_join(id[r], NULL);
        assert_int_equal(t[r].err, DT_OK);
        assert_int_equal(atomic_load(&t[r].ledger.total_now), 0);
        assert_true(t[r].n_trace > 0 && t[r].n_trace <= N_TRACE);
        ref_zero_free_units(t[r].units);
        dt_device_close(&t[r].host);
        dt_device_close(&t[r].dev);
    }
    pthread_barrier_destroy(&m.barrier);
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

static void overlapped_exchange_changes_no_bit(void **state) { check_exchange(false, false, true, 0); }
static void overlapped_exchange_in_buckets_changes_no_bit(void **state) { check_exchange(false, false, true, 600); }
static void overlapped_reproducible_sums_change_no_bit(void **state) { check_exchange(false, true, true, 0); }
static void one_stream_needs_no_events(void **state) { check_exchange(false, true, false, 600); }
static void overlapped_exchange_of_two_parts_changes_no_bit(void **state) { check_exchange(true, false, true, 0); }

/* ---- offload ----------------------------------------------------------------------------------------------------- */

static dt_zero_options offloaded(dt_offload optimizer, dt_offload param, int buffer_count)
{
    return (dt_zero_options){.overlap_comm = true,
                             .offload_optimizer = optimizer,
                             .offload_param = param,
                             .sub_group_size = 1024,
                             .buffer_count = buffer_count,
                             .pin_memory = true,
                             .nvme_path = "/tmp"};
}

static void offload_to_host_memory_changes_no_bit(void **state)
{
    dt_zero_options opt = offloaded(DT_OFFLOAD_CPU, DT_OFFLOAD_CPU, 2);
    check_orders(true, &opt);
    opt.overlap_comm = false;
    check_orders(false, &opt);
}
static void offload_to_a_file_changes_no_bit(void **state)
{
    dt_zero_options opt = offloaded(DT_OFFLOAD_NVME, DT_OFFLOAD_NVME, 3);
    check_orders(true, &opt);
    opt.reproducible = true;
    opt.buffer_count = 1;
    check_orders(false, &opt);
}
static void offload_of_parameters_alone_changes_no_bit(void **state)
{
    dt_zero_options opt = offloaded(DT_OFFLOAD_NONE, DT_OFFLOAD_CPU, 2);
    check_orders(false, &opt);
    opt.offload_param = DT_OFFLOAD_NVME;
    check_orders(true, &opt);
}

/* Sums are exchanged behind their reduction and before they go down. */
static void exchange_among_groups_changes_no_bit(void **state)
{
    dt_zero_options opt = {.overlap_comm = true, .n_groups = N_THREADS, .reduce_bucket_size = 600};
    check_orders(false, &opt);
    opt = offloaded(DT_OFFLOAD_CPU, DT_OFFLOAD_CPU, 2);
    opt.n_groups = N_THREADS;
    check_orders(true, &opt);
}

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

/** Forward and backward, without the embedding's turn at the head, so that the way back is as plain as the way there.
 *  While a unit is in hand the next one is gathered, and the one behind that is on its way from the file. */
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

static void the_file_is_read_ahead_both_ways(void **state)
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

/* What an update on the host finds under way when it steps: an optimizer that looks around. One for each thread. */
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

static dt_err step_and_look(dt_device *dev, const dt_optimizer_step *s, const void *grad, dt_dtype gt, float *master,
                            float *const states[], void *param, dt_dtype param_dt, int64_t n, dt_stream *stream)
{
    const int64_t waits = host_waits(around.t);
    if (around.n_steps++ == 0) around.n_waits = waits, around.n_asked_for = around.z->next_read;
    around.n_waited += waits != around.n_waits;
    around.n_gathered = around.t->n_gathers - around.before;
    return dt_optimizer_adamw.step(dev, s, grad, gt, master, states, param, param_dt, n, stream);
}

static int n_under_way(const zero_ring *r)
{
    int n = 0;
    for (int i = 0; i < r->n; i++)
        for (int k = 0; k < 1 + DT_MAX_STATES; k++) n += r->buffer[i].request[k].under_way;
    return n;
}

/** A step in which nothing on other streams than compute's runs before somebody waits for it. */
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

static void closing_waits_for_what_is_on_its_way(void **state)
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

static void offload_works_beside_the_device(void **state)
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

static void parameters_are_used_while_they_are_written(void **state)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overlapped_exchange_changes_no_bit),
        cmocka_unit_test(overlapped_exchange_in_buckets_changes_no_bit),
        cmocka_unit_test(overlapped_reproducible_sums_change_no_bit),
        cmocka_unit_test(one_stream_needs_no_events),
        cmocka_unit_test(overlapped_exchange_of_two_parts_changes_no_bit),
        cmocka_unit_test(offload_to_host_memory_changes_no_bit),
        cmocka_unit_test(offload_to_a_file_changes_no_bit),
        cmocka_unit_test(offload_of_parameters_alone_changes_no_bit),
        cmocka_unit_test(exchange_among_groups_changes_no_bit),
        cmocka_unit_test(the_file_is_read_ahead_both_ways),
        cmocka_unit_test(closing_waits_for_what_is_on_its_way),
        cmocka_unit_test(offload_works_beside_the_device),
        cmocka_unit_test(parameters_are_used_while_they_are_written),
    };
    setenv("DTRAIN_SWAP_IO", "late,buffered", 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
