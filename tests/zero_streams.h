/* zero_streams.h - zero of two ranks on a device whose streams are really asynchronous (the queue device).
 *
 * Two ranks are two threads. The collectives below take the place of comm's: they queue on the stream they are given
 * and meet the other rank when the queue comes to them, as NCCL's do; both ranks queue and run the same things in the
 * same order, so they always meet. */
#ifndef DTRAIN_TESTS_ZERO_STREAMS_H
#define DTRAIN_TESTS_ZERO_STREAMS_H

#include "cases.h"
#include "dtrain/zero/zero.h"
#include "../src/backends/queue.h"
#include "../src/zero/zero_impl.h"
#include "ref_zero.h"
#include <pthread.h>

enum { N_THREADS = 2, N_TRACE = 4096, N_MICRO = 2 };

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

static inline rank_thread *thread_of(const dt_device *dev)
{
    return (rank_thread *)((char *)dev - offsetof(rank_thread, dev));
}

static inline void meet(const dt_comm *comm, const void *mine)
{
    meeting *m = thread_of(comm->dev)->meet;
    m->data[comm->rank] = mine;
    pthread_barrier_wait(&m->barrier);
}
static inline void part(const dt_comm *comm) { pthread_barrier_wait(&thread_of(comm->dev)->meet->barrier); }

typedef struct exchange {
    const dt_axis *axis;
    const void *send;
    void *recv;
    dt_dtype send_dt, recv_dt;
    int64_t count;
    bool accumulate;
    int64_t stride;
} exchange;

static inline float get(const void *x, dt_dtype t, int64_t i)
{
    return t == DT_F32 ? ((const float *)x)[i] : dt_bf16_to_float(((const uint16_t *)x)[i]);
}

static inline void put(void *x, dt_dtype t, int64_t i, float value)
{
    if (t == DT_F32)
        ((float *)x)[i] = value;
    else
        ((uint16_t *)x)[i] = dt_bf16_from_float(value);
}

static inline dt_err do_reduce_scatter(dt_device *cpu, const void *args)
{
    const exchange *a = args;
    const int64_t mine = dt_axis_block(a->axis) * a->count;
    void *recv = dt_queue_reach(a->recv);
    float *sum = calloc((size_t)a->count, sizeof *sum);
    meet(a->axis->comm, dt_queue_reach(a->send));
    for (int64_t i = 0; i < a->count; i++) {
        if (a->accumulate) sum[i] = get(recv, a->recv_dt, i);
        for (int r = 0; r < N_THREADS; r++)
            sum[i] += get(thread_of(a->axis->comm->dev)->meet->data[r], a->send_dt, mine + i);
    }
    part(a->axis->comm); /* recv may lie in send, which the other one reads until here */
    for (int64_t i = 0; i < a->count; i++) put(recv, a->recv_dt, i, sum[i]);
    part(a->axis->comm);
    free(sum);
    return DT_OK;
}

dt_err dt_comm_reduce_scatter(const dt_axis *axis, const void *send, dt_dtype send_dt, void *recv, dt_dtype recv_dt,
                              int64_t count, bool accumulate, bool ordered, dt_stream *stream)
{
    const exchange a = {axis, send, recv, send_dt, recv_dt, count, accumulate, 0};
    return dt_queue_call(axis->comm->dev, stream, do_reduce_scatter, &a, sizeof a);
}

static inline dt_err do_all_gather(dt_device *cpu, const void *args)
{
    const exchange *a = args;
    meet(a->axis->comm, dt_queue_reach(a->send));
    for (int r = 0; r < a->axis->size; r++) {
        char *to = (char *)dt_queue_reach(a->recv) + (size_t)r * (size_t)a->count;
        const void *from = thread_of(a->axis->comm->dev)->meet->data[a->axis->size == 1 ? a->axis->comm->rank : r];
        /* the own place is there already, and the other one reads it */
        if (to != from) memcpy(to, from, (size_t)a->count);
    }
    part(a->axis->comm);
    return DT_OK;
}

dt_err dt_comm_all_gather(const dt_axis *axis, const void *send, void *recv, size_t nbytes, dt_stream *stream)
{
    const exchange a = {.axis = axis, .send = send, .recv = recv, .count = (int64_t)nbytes};
    thread_of(axis->comm->dev)->n_gathers++;
    return dt_queue_call(axis->comm->dev, stream, do_all_gather, &a, sizeof a);
}

/** count: bytes of a part, stride apart. */
static inline dt_err do_replicate(dt_device *cpu, const void *args)
{
    const exchange *a = args;
    char *parts = dt_queue_reach(a->recv);
    meet(a->axis->comm, parts);
    for (int g = 0; g < a->axis->size; g++) {
        const char *from = thread_of(a->axis->comm->dev)->meet->data[g];
        if (g != a->axis->rank) memcpy(parts + g * a->stride, from + g * a->stride, (size_t)a->count);
    }
    part(a->axis->comm);
    return DT_OK;
}

dt_err dt_comm_replicate(const dt_axis *axis, void *buf, size_t stride, size_t nbytes, dt_stream *stream)
{
    const exchange a = {.axis = axis, .recv = buf, .count = (int64_t)nbytes, .stride = (int64_t)stride};
    return dt_queue_call(axis->comm->dev, stream, do_replicate, &a, sizeof a);
}

/* Only matrix optimizers call these. */
dt_err dt_comm_all_to_all_v(const dt_axis *axis, const void *send, const size_t *send_nbytes, void *recv,
                            const size_t *recv_nbytes, dt_stream *stream)
{
    return DT_ERR_ARG;
}

dt_err dt_comm_broadcast(const dt_axis *axis, void *buf, size_t nbytes, int root, dt_stream *stream)
{
    return DT_ERR_ARG;
}

dt_err dt_comm_all_reduce(const dt_axis *axis, void *buf, dt_dtype dt, int64_t count, bool ordered, dt_stream *stream)
{
    return DT_ERR_ARG;
}

dt_err dt_comm_agree(dt_comm *comm, dt_err err) { return err; }

dt_err dt_comm_reduce_host_f64(const dt_axis *axis, double *values, int n, dt_reduce_op op)
{
    dt_comm *comm = axis->comm;
    double most = values[0];
    meet(comm, values);
    for (int r = 0; r < N_THREADS; r++) most = fmax(most, *(const double *)thread_of(comm->dev)->meet->data[r]);
    part(comm);
    values[0] = most;
    part(comm);
    return n == 1 && op == DT_MAX ? DT_OK : DT_ERR_ARG;
}

/** For what no test here asks: a base in fewer bits. */
dt_err dt_comm_join_host(const dt_axis *axis, void *x, size_t nbytes) { return DT_ERR_ARG; }

dt_err dt_comm_sum_host_u64(const dt_axis *axis, uint64_t *values, int n)
{
    dt_comm *comm = axis->comm;
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

static inline uint64_t hash_bytes(uint64_t h, const void *data, size_t nbytes)
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

static inline dt_err do_look(dt_device *cpu, const void *args)
{
    const work *w = args;
    *w->trace = hash_bytes(*w->trace, dt_queue_reach(w->data), (size_t)w->len * dt_dtype_size(w->dtype));
    return DT_OK;
}

static inline dt_err do_write(dt_device *cpu, const void *args)
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

static inline dt_err keep(dt_err first, dt_err then) { return first == DT_OK ? then : first; }

static inline dt_err look(rank_thread *t, dt_param_source *s, int u)
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
static inline dt_err write_grads(rank_thread *t, const dt_grad_view *view, int u, int64_t step, int64_t job,
                                 int last_tensor, int half)
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

static inline dt_err queued_micro_step(rank_thread *t, dt_param_source *s, int64_t step, int64_t job)
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

static inline dt_err micro_steps(rank_thread *t, dt_zero *z, int64_t step)
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

static inline dt_err one_update(rank_thread *t, dt_zero *z, int64_t step)
{
    DT_TRY(micro_steps(t, z, step));
    return dt_zero_update(z, &WITH, NULL);
}

/* ---- a run of both ----------------------------------------------------------------------------------------------- */

static inline void *run_thread(void *arg)
{
    rank_thread *t = arg;
    dt_zero *z = NULL;
    t->err = dt_zero_open(&z, &t->opt, t->units, REF_ZERO_UNITS, &t->comm, &t->dev, NULL, NULL);
    if (t->err == DT_OK) t->err = t->run(t, z);
    if (t->err != DT_OK) print_error("rank %d: %s\n", t->comm.rank, dt_error_message());
    dt_zero_close(z);
    return NULL;
}

/** Both ranks in an order, each by a seed of its own. An error (of the program) may strand the other thread: the test's
 *  timeout ends it. */
static inline void run_ranks(rank_thread *t, dt_err (*run)(rank_thread *, dt_zero *), const dt_zero_options *opt,
                             bool with_frozen, dt_queue_order order, uint64_t seed)
{
    static int blocks[N_THREADS];
    meeting m;
    pthread_t id[N_THREADS];
    for (int r = 0; r < N_THREADS; r++) blocks[r] = r;
    assert_int_equal(pthread_barrier_init(&m.barrier, NULL, N_THREADS), 0);
    for (int r = 0; r < N_THREADS; r++) {
        memset(&t[r], 0, sizeof t[r]);
        t[r].opt = *opt;
        t[r].run = run;
        t[r].meet = &m;
        assert_int_equal(ref_zero_make_units(t[r].units, with_frozen), DT_OK);
        assert_int_equal(dt_queue_open(&t[r].dev, order, N_THREADS * seed + (uint64_t)r, &t[r].ledger), DT_OK);
        assert_int_equal(dt_device_open_host(&t[r].host, 1, false, &t[r].ledger), DT_OK);
        t[r].opt.host = &t[r].host;
        t[r].comm = (dt_comm){.rank = r, .nranks = N_THREADS, .dev = &t[r].dev};
        const dt_axis all = {.rank = r, .size = N_THREADS, .comm = &t[r].comm, .block_of = blocks},
                      one = {.size = 1, .comm = &t[r].comm};
        const bool groups = opt->n_groups > 1; /* of one rank each */
        t[r].comm.mesh.world = t[r].comm.mesh.sum = all;
        t[r].comm.mesh.shard = groups ? one : all, t[r].comm.mesh.replicate = groups ? all : one;
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

static inline dt_zero_options offloaded(dt_offload optimizer, dt_offload param, int buffer_count)
{
    return (dt_zero_options){.overlap_comm = true,
                             .offload_optimizer = optimizer,
                             .offload_param = param,
                             .sub_group_size = 1024,
                             .buffer_count = buffer_count,
                             .pin_memory = true,
                             .nvme_path = "/tmp"};
}

#endif
