/* queue.c - a device that is honest about time, for tests: the CPU's operations, run as late and in as odd an order as
 * the contract allows.
 *
 * On the CPU device all is done when a call returns, and the host can read what it likes, so a missing event, copy or
 * synchronisation never shows. Here an operation only joins its stream. Streams run by turns drawn from
 * DTRAIN_QUEUE_SEED: at once, now and then, or not before somebody waits; with seed 0 never before somebody waits. An
 * event is the only order between two of them. Copies from and to the host read and write when they run, not when they
 * are called. Device memory is out of the host's reach: addresses carry a bit that no mapping has, so touching one
 * ends the program, and an operation that is handed host memory is refused. Fresh memory is full of NaN. What fails in
 * a queue is returned by the next synchronisation. Memory that is freed while a queued operation has its address ends
 * the program, and so does a stream that is destroyed with operations on it. Waits of the host, and copies that are not
 * from or to pinned memory, are counted.
 *
 * DTRAIN_DEVICE=queue puts it in the place of the CPU device. A node has DTRAIN_QUEUE_DEVICES of it (1), each with
 * DTRAIN_QUEUE_MEMORY bytes (as much as is free): a rank gets no more than what it does not hold itself. Tests may give
 * it an order, and work of their own (queue.h). */
#include "queue.h"
#include <stdlib.h>
#include <string.h>

#define FAR_BIT ((uintptr_t)1 << 54) /* beyond what Linux hands out on x86-64 and on aarch64 */
enum { ARGS_MAX = 320, N_STREAMS = 8, TURN = 32 };

typedef struct entry {
    enum { RUN, RECORD, WAIT } kind;
    dt_err (*run)(dt_device *cpu, const void *args);
    dt_event *event; /* of RECORD and WAIT */
    int64_t serial;  /* of the record that this makes or waits for */
    _Alignas(16) char args[ARGS_MAX];
} entry;

struct dt_stream {
    entry *entries;
    int n, n_max, done;
    int64_t n_run;      /* operations queued since it was made */
    unsigned eagerness; /* of 8: how often an entry runs before somebody waits */
};

struct dt_event {
    int64_t recorded, done; /* serials: of the last record in a queue, and of the last that was reached */
    dt_stream *stream;      /* of the last record; NULL: never recorded */
    int64_t n_before;       /* its n_run then */
    int n_queued;           /* entries that point here */
    bool destroyed;
    double at_s;
};

/* Host memory that was allocated as pinned. */
typedef struct pinned_range {
    const char *begin, *end;
} pinned_range;

typedef struct queue_state {
    dt_device cpu;
    bool planning;
    int n_devices;
    size_t memory;   /* bytes of a device, SIZE_MAX: what the host has */
    dt_stream first; /* the default stream */
    dt_stream *streams[N_STREAMS];
    int n_streams;
    dt_queue_order order;
    uint64_t draws;
    int64_t n_pushed;
    bool host_argument; /* an operation that is being queued was handed host memory */
    dt_err err;         /* of the first entry that failed since the last synchronisation */
    pinned_range *pinned;
    int n_pinned;
    int fail_copy; /* the copy from now on that will fail; 0: none */
    dt_queue_counts counts;
} queue_state;

static queue_state *state_of(const dt_device *dev) { return dev->impl; }
static dt_stream *stream_of(const dt_device *dev, dt_stream *s) { return s ? s : &state_of(dev)->first; }
static unsigned draw(queue_state *q, unsigned n) { return (unsigned)(dt_mix64(q->draws++) % n); }

static bool is_far(const void *p) { return ((uintptr_t)p & FAR_BIT) != 0; }
static void *near(const void *p) { return (void *)((uintptr_t)p & ~FAR_BIT); }
/* The argument of an operation: device memory, or none. */
static void *device_arg(queue_state *q, const void *p)
{
    if (p && !is_far(p)) q->host_argument = true;
    return near(p);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static bool ready(const dt_stream *s)
{
    if (s->done == s->n) return false;
    const entry *e = &s->entries[s->done];
    return e->kind != WAIT || e->event->done >= e->serial;
}

static void release_event(dt_event *e)
{
    if (--e->n_queued == 0 && e->destroyed) free(e);
}

static void run_one(queue_state *q, dt_stream *s)
{
    const entry *e = &s->entries[s->done++];
    if (e->kind == RUN) {
        const dt_err err = e->run(&q->cpu, e->args);
        if (q->err == DT_OK) q->err = err;
    } else {
        if (e->kind == RECORD) e->event->done = e->serial, e->event->at_s = dt_now_s();
        release_event(e->event);
    }
    if (s->done == s->n) s->done = s->n = 0;
}

static unsigned eagerness_of(queue_state *q, const dt_stream *s)
{
    switch (q->order) {
    case DT_QUEUE_AT_ONCE:
        return 8;
    case DT_QUEUE_LATE_DEFAULT:
        return s == &q->first ? 0 : 8;
    case DT_QUEUE_LATE_OTHERS:
        return s == &q->first ? 8 : 0;
    case DT_QUEUE_ANY:
        return (unsigned[]){0, 1, 4, 8}[draw(q, 4)];
    default:
        return 0;
    }
}

/* What would have run by itself by now. */
static void run_some(queue_state *q)
{
    if (q->n_pushed++ % TURN == 0)
        for (int i = 0; i < q->n_streams; i++) q->streams[i]->eagerness = eagerness_of(q, q->streams[i]);
    for (int i = 0; i < q->n_streams; i++)
        while (ready(q->streams[i]) && draw(q, 8) < q->streams[i]->eagerness) run_one(q, q->streams[i]);
}

/* Run s until an event is reached (NULL: to its end), the other streams as far as it waits for them, and now and then
 * further. */
static dt_err drain(queue_state *q, dt_stream *s, const dt_event *until)
{
    while (until ? until->done < until->recorded : s->done < s->n) {
        if (ready(s) && (q->order != DT_QUEUE_ANY || draw(q, 4) > 0)) {
            run_one(q, s);
            continue;
        }
        int n_ready = 0;
        for (int i = 0; i < q->n_streams; i++) n_ready += ready(q->streams[i]);
        DT_CHECK(n_ready > 0, DT_ERR_FAULT, "queue device: a stream waits for an event that no queued work will reach");
        int pick = (int)draw(q, (unsigned)n_ready), i = 0;
        while (!ready(q->streams[i]) || pick-- > 0) i++;
        run_one(q, q->streams[i]);
    }
    return DT_OK;
}

static dt_err append(queue_state *q, dt_stream *s, const entry *e)
{
    if (s->n == s->n_max) {
        const int n_max = s->n_max ? 2 * s->n_max : 256;
        entry *grown = realloc(s->entries, (size_t)n_max * sizeof *grown);
        DT_CHECK(grown, DT_ERR_MEMORY, "queue device: no memory for %d queued operations", n_max);
        s->entries = grown, s->n_max = n_max;
    }
    s->entries[s->n++] = *e;
    run_some(q);
    return DT_OK;
}

static dt_err push(dt_device *dev, dt_stream *stream, const char *name, dt_err (*run)(dt_device *, const void *),
                   const void *args, size_t nbytes)
{
    queue_state *q = state_of(dev);
    entry e = {.kind = RUN, .run = run};
    const bool host_argument = q->host_argument;
    q->host_argument = false;
    DT_CHECK(!host_argument, DT_ERR_ARG, "%s: an array is host memory, expected device memory", name);
    DT_CHECK(nbytes <= sizeof e.args, DT_ERR_ARG, "%s: %zu bytes of arguments", name, nbytes);
    memcpy(e.args, args, nbytes);
    stream_of(dev, stream)->n_run++;
    return append(q, stream_of(dev, stream), &e);
}

/* ---- open, close, memory ----------------------------------------------------------------------------------------- */

static dt_err read_sizes(queue_state *q)
{
    const char *devices = getenv("DTRAIN_QUEUE_DEVICES"), *memory = getenv("DTRAIN_QUEUE_MEMORY");
    uint64_t nbytes = SIZE_MAX;
    q->n_devices = devices ? atoi(devices) : 1;
    DT_CHECK(q->n_devices > 0 && (!memory || dt_parse_bytes(memory, &nbytes)), DT_ERR_USAGE,
             "DTRAIN_QUEUE_DEVICES=%s, DTRAIN_QUEUE_MEMORY=%s: expected a number above 0 and a size in bytes",
             devices ? devices : "", memory ? memory : "");
    q->memory = (size_t)nbytes;
    return DT_OK;
}

static dt_err open_queue(dt_device *dev, dt_queue_order order, uint64_t seed, int local_rank, int n_threads,
                         bool planning)
{
    queue_state *q = calloc(1, sizeof *q);
    DT_CHECK(q, DT_ERR_MEMORY, "queue device: no memory for its state");
    q->order = order;
    q->draws = dt_mix64(seed * 1024 + (uint64_t)local_rank);
    q->streams[q->n_streams++] = &q->first;
    q->first.eagerness = eagerness_of(q, &q->first);
    q->cpu = (dt_device){.ops = &dt_device_cpu_ops, .ledger = dev->ledger, .local_rank = local_rank};
    q->planning = planning;
    dt_err err = read_sizes(q);
    if (err == DT_OK)
        err = planning ? q->cpu.ops->plan(&q->cpu, n_threads) : q->cpu.ops->open(&q->cpu, local_rank, n_threads);
    if (err != DT_OK)
        free(q);
    else
        dev->impl = q;
    return err;
}

static dt_err queue_open(dt_device *dev, int local_rank, int n_threads)
{
    const char *text = getenv("DTRAIN_QUEUE_SEED");
    const uint64_t seed = text ? strtoull(text, NULL, 10) : 1;
    return open_queue(dev, seed ? DT_QUEUE_ANY : DT_QUEUE_LATE, seed, local_rank, n_threads, false);
}

static dt_err queue_plan(dt_device *dev, int n_threads) { return open_queue(dev, DT_QUEUE_ANY, 1, 0, n_threads, true); }

dt_err dt_queue_open(dt_device *dev, dt_queue_order order, uint64_t seed, dt_ledger *ledger)
{
    *dev = (dt_device){.ops = &dt_device_queue_ops, .ledger = ledger};
    return open_queue(dev, order, seed, 0, 1, false);
}

static void queue_close(dt_device *dev)
{
    queue_state *q = state_of(dev);
    if (!q) return;
    q->cpu.ops->close(&q->cpu);
    free(q->first.entries);
    free(q->pinned);
    free(q);
    dev->impl = NULL;
}

static void queue_describe(const dt_device *dev, char *out, size_t out_size)
{
    char cpu[192];
    state_of(dev)->cpu.ops->describe(&state_of(dev)->cpu, cpu, sizeof cpu);
    snprintf(out, out_size, "queue over %s", cpu);
}

static int queue_n_devices(const dt_device *dev) { return state_of(dev)->n_devices; }

static size_t queue_memory_free(const dt_device *dev)
{
    const queue_state *q = state_of(dev);
    const size_t held = atomic_load(&dev->ledger->on_now[DT_ON_DEVICE]);
    if (q->planning) return SIZE_MAX;
    return q->memory == SIZE_MAX ? dt_host_memory_free() : q->memory > held ? q->memory - held : 0;
}

static size_t queue_overhead(const dt_device *dev) { return dt_device_cpu_ops.overhead(&state_of(dev)->cpu); }

static dt_err note_pinned(queue_state *q, const char *begin, size_t nbytes)
{
    pinned_range *grown = realloc(q->pinned, (size_t)(q->n_pinned + 1) * sizeof *grown);
    DT_CHECK(grown, DT_ERR_MEMORY, "queue device: no memory for a list of %d pinned blocks", q->n_pinned + 1);
    q->pinned = grown;
    q->pinned[q->n_pinned++] = (pinned_range){begin, begin + nbytes};
    return DT_OK;
}

static bool is_pageable(const queue_state *q, const void *p)
{
    int i = 0;
    while (i < q->n_pinned && ((const char *)p < q->pinned[i].begin || (const char *)p >= q->pinned[i].end)) i++;
    return !is_far(p) && i == q->n_pinned;
}

static dt_err queue_alloc(dt_device *dev, dt_place place, size_t nbytes, void **ptr)
{
    queue_state *q = state_of(dev);
    if (place == DT_ON_DEVICE && q->memory < SIZE_MAX && nbytes > queue_memory_free(dev)) return DT_ERR_MEMORY;
    DT_TRY(dt_device_cpu_ops.alloc(&q->cpu, place, nbytes, ptr));
    memset(*ptr, 0xff, nbytes); /* NaN in every type */
    if (place == DT_ON_PINNED) return note_pinned(q, *ptr, nbytes);
    if (place == DT_ON_DEVICE) *ptr = (void *)((uintptr_t)*ptr | FAR_BIT);
    return DT_OK;
}

static _Noreturn void die(const char *why)
{
    fprintf(stderr, "queue device: %s\n", why);
    abort();
}

/* Does an argument of a queued operation point into it? */
static bool is_in_use(const queue_state *q, const char *begin, size_t nbytes)
{
    for (int i = 0; i < q->n_streams; i++)
        for (int k = q->streams[i]->done; k < q->streams[i]->n; k++)
            for (size_t at = 0; at < ARGS_MAX; at += sizeof(void *)) {
                const char *p;
                memcpy(&p, q->streams[i]->entries[k].args + at, sizeof p);
                p = near(p);
                if (p >= begin && p < begin + nbytes) return true;
            }
    return false;
}

static void queue_free(dt_device *dev, dt_place place, void *ptr, size_t nbytes)
{
    queue_state *q = state_of(dev);
    if (is_in_use(q, near(ptr), nbytes)) die("memory is freed while a queued operation works on it");
    for (int i = 0; i < q->n_pinned && place == DT_ON_PINNED; i++)
        if (q->pinned[i].begin == ptr) q->pinned[i] = q->pinned[--q->n_pinned];
    dt_device_cpu_ops.free(&q->cpu, place, near(ptr), nbytes);
}

dt_queue_counts dt_queue_counts_of(const dt_device *dev) { return state_of(dev)->counts; }

/* ---- streams and events ------------------------------------------------------------------------------------------ */

static dt_err queue_stream_create(dt_device *dev, dt_stream **stream)
{
    queue_state *q = state_of(dev);
    DT_CHECK(q->n_streams < N_STREAMS, DT_ERR_FAULT, "queue device: more than %d streams", N_STREAMS);
    *stream = calloc(1, sizeof **stream);
    DT_CHECK(*stream, DT_ERR_MEMORY, "no memory for a stream");
    q->streams[q->n_streams++] = *stream;
    (*stream)->eagerness = eagerness_of(q, *stream);
    return DT_OK;
}

static void queue_stream_destroy(dt_device *dev, dt_stream *stream)
{
    queue_state *q = state_of(dev);
    int i = 0;
    for (int k = stream->done; k < stream->n; k++)
        if (stream->entries[k].kind == RUN) die("a stream is destroyed while operations are queued on it");
    (void)drain(q, stream, NULL); /* events */
    while (q->streams[i] != stream) i++;
    q->streams[i] = q->streams[--q->n_streams];
    free(stream->entries);
    free(stream);
}

static dt_err take_error(queue_state *q)
{
    const dt_err err = q->err;
    q->err = DT_OK;
    return err;
}

static dt_err queue_stream_sync(dt_device *dev, dt_stream *stream)
{
    queue_state *q = state_of(dev);
    q->counts.host_waits++;
    DT_TRY(drain(q, stream_of(dev, stream), NULL));
    return take_error(q);
}

static dt_err queue_event_create(dt_device *dev, dt_event **event)
{
    *event = calloc(1, sizeof **event);
    DT_CHECK(*event, DT_ERR_MEMORY, "no memory for an event");
    return DT_OK;
}

static void queue_event_destroy(dt_device *dev, dt_event *event)
{
    event->destroyed = true;
    event->n_queued++;
    release_event(event);
}

static dt_err queue_event_record(dt_device *dev, dt_event *event, dt_stream *stream)
{
    event->n_queued++;
    event->stream = stream_of(dev, stream);
    event->n_before = event->stream->n_run;
    return append(state_of(dev), event->stream, &(entry){.kind = RECORD, .event = event, .serial = ++event->recorded});
}

static dt_err queue_event_wait(dt_device *dev, dt_event *event, dt_stream *stream)
{
    event->n_queued++;
    return append(state_of(dev), stream_of(dev, stream),
                  &(entry){.kind = WAIT, .event = event, .serial = event->recorded});
}

static dt_err queue_event_sync(dt_device *dev, dt_event *event)
{
    queue_state *q = state_of(dev);
    if (!event->stream) return DT_OK;
    if (event->stream->n_run > event->n_before)
        q->counts.event_waits++;
    else
        q->counts.host_waits++;
    DT_TRY(drain(q, event->stream, event));
    return take_error(q);
}

static dt_err queue_event_query(dt_device *dev, dt_event *event, bool *done)
{
    run_some(state_of(dev)); /* who asks again and again sees it reached some day */
    *done = event->done == event->recorded;
    return DT_OK;
}

static dt_err queue_event_elapsed_ms(dt_device *dev, dt_event *from, dt_event *to, float *ms)
{
    *ms = (float)((to->at_s - from->at_s) * 1e3);
    return DT_OK;
}

/* ---- operations: a struct of arguments, the call when its turn comes, and the entry of the table ----------------- */

#define CALL(op, fields, ...)                                                                                          \
    typedef struct op##_call {                                                                                         \
        fields;                                                                                                        \
    } op##_call;                                                                                                       \
    static dt_err op##_run(dt_device *cpu, const void *args)                                                           \
    {                                                                                                                  \
        const op##_call *x = args;                                                                                     \
        return cpu->ops->op(cpu, __VA_ARGS__, NULL);                                                                   \
    }
#define PUSH(op, ...) push(dev, s, #op, op##_run, &(op##_call){__VA_ARGS__}, sizeof(op##_call))
#define AT(p) device_arg(state_of(dev), p)

CALL(copy, void *dst; const void *src; size_t nbytes, x->dst, x->src, x->nbytes)
static dt_err failing_copy(dt_device *cpu, const void *args)
{
    return dt_fail(DT_ERR_FAULT, "queue device: the copy that was to fail");
}
static dt_err queue_copy(dt_device *dev, void *dst, const void *src, size_t nbytes, dt_stream *s)
{
    queue_state *q = state_of(dev); /* the host's side may be any memory */
    q->counts.pageable_copies += is_pageable(q, dst) || is_pageable(q, src);
    if (q->fail_copy > 0 && --q->fail_copy == 0) return push(dev, s, "copy", failing_copy, "", 0);
    return PUSH(copy, near(dst), near(src), nbytes);
}

void dt_queue_fail_copy(dt_device *dev, int nth) { state_of(dev)->fail_copy = nth; }

dt_err dt_queue_call(dt_device *dev, dt_stream *stream, dt_err (*run)(dt_device *cpu, const void *args),
                     const void *args, size_t nbytes)
{
    return push(dev, stream, "dt_queue_call", run, args, nbytes);
}

void *dt_queue_reach(const void *p) { return near(p); }

CALL(zero, void *dst; size_t nbytes, x->dst, x->nbytes)
static dt_err queue_zero(dt_device *dev, void *dst, size_t nbytes, dt_stream *s) { return PUSH(zero, AT(dst), nbytes); }

CALL(convert, const void *src; dt_dtype src_dt; void *dst; dt_dtype dst_dt;
     int64_t n, x->src, x->src_dt, x->dst, x->dst_dt, x->n)
static dt_err queue_convert(dt_device *dev, const void *src, dt_dtype src_dt, void *dst, dt_dtype dst_dt, int64_t n,
                            dt_stream *s)
{
    return PUSH(convert, AT(src), src_dt, AT(dst), dst_dt, n);
}

CALL(add_into, const void *src; dt_dtype src_dt; void *dst; dt_dtype dst_dt; bool accumulate;
     int64_t n, x->src, x->src_dt, x->dst, x->dst_dt, x->accumulate, x->n)
static dt_err queue_add_into(dt_device *dev, const void *src, dt_dtype src_dt, void *dst, dt_dtype dst_dt,
                             bool accumulate, int64_t n, dt_stream *s)
{
    return PUSH(add_into, AT(src), src_dt, AT(dst), dst_dt, accumulate, n);
}

CALL(add, const void *a; const void *b; void *c; dt_dtype dt; int64_t n, x->a, x->b, x->c, x->dt, x->n)
static dt_err queue_add(dt_device *dev, const void *a, const void *b, void *c, dt_dtype dt, int64_t n, dt_stream *s)
{
    return PUSH(add, AT(a), AT(b), AT(c), dt, n);
}

CALL(gather_rows, const void *src; const int32_t *index; void *dst; int64_t n_rows; int64_t width;
     dt_dtype dt, x->src, x->index, x->dst, x->n_rows, x->width, x->dt)
static dt_err queue_gather_rows(dt_device *dev, const void *src, const int32_t *index, void *dst, int64_t n_rows,
                                int64_t width, dt_dtype dt, dt_stream *s)
{
    return PUSH(gather_rows, AT(src), AT(index), AT(dst), n_rows, width, dt);
}

CALL(scatter_rows, const void *src; const int32_t *index; void *dst; int64_t n_rows; int64_t width;
     dt_dtype dt, x->src, x->index, x->dst, x->n_rows, x->width, x->dt)
static dt_err queue_scatter_rows(dt_device *dev, const void *src, const int32_t *index, void *dst, int64_t n_rows,
                                 int64_t width, dt_dtype dt, dt_stream *s)
{
    return PUSH(scatter_rows, AT(src), AT(index), AT(dst), n_rows, width, dt);
}

/* What a description points to is device memory, too. */
static dt_matmul near_matmul(dt_device *dev, const dt_matmul *mm)
{
    dt_matmul mine = *mm;
    mine.bias = AT(mm->bias);
    mine.addend = AT(mm->addend);
    mine.aux = AT(mm->aux);
    mine.sums = AT(mm->sums);
    mine.a_scaled.scale = AT(mm->a_scaled.scale);
    mine.b_scaled.scale = AT(mm->b_scaled.scale);
    return mine;
}

CALL(matmul, dt_matmul mm; const void *a; const void *b; void *c, &x->mm, x->a, x->b, x->c)
static dt_err queue_matmul(dt_device *dev, const dt_matmul *mm, const void *a, const void *b, void *c, dt_stream *s)
{
    return PUSH(matmul, near_matmul(dev, mm), AT(a), AT(b), AT(c));
}

CALL(bias_backward, const void *dy; int64_t m; int64_t n; int64_t ld; dt_dtype dt; void *dbias; dt_dtype gt;
     bool accumulate, x->dy, x->m, x->n, x->ld, x->dt, x->dbias, x->gt, x->accumulate)
static dt_err queue_bias_backward(dt_device *dev, const void *dy, int64_t m, int64_t n, int64_t ld, dt_dtype dt,
                                  void *dbias, dt_dtype gt, bool accumulate, dt_stream *s)
{
    return PUSH(bias_backward, AT(dy), m, n, ld, dt, AT(dbias), gt, accumulate);
}

CALL(embedding_forward, const int32_t *token; const int32_t *pos; const void *wte; const void *wpe; void *out;
     int64_t n_tok; int64_t width; dt_dtype dt, x->token, x->pos, x->wte, x->wpe, x->out, x->n_tok, x->width, x->dt)
static dt_err queue_embedding_forward(dt_device *dev, const int32_t *token, const int32_t *pos, const void *wte,
                                      const void *wpe, void *out, int64_t n_tok, int64_t width, dt_dtype dt,
                                      dt_stream *s)
{
    return PUSH(embedding_forward, AT(token), AT(pos), AT(wte), AT(wpe), AT(out), n_tok, width, dt);
}

CALL(embedding_backward, const void *dout; const int32_t *id; const int32_t *order; void *grad; int64_t n_tok;
     int64_t width; dt_dtype dt; dt_dtype gt, x->dout, x->id, x->order, x->grad, x->n_tok, x->width, x->dt, x->gt)
static dt_err queue_embedding_backward(dt_device *dev, const void *dout, const int32_t *id, const int32_t *order,
                                       void *table_grad, int64_t n_tok, int64_t width, dt_dtype dt, dt_dtype gt,
                                       dt_stream *s)
{
    return PUSH(embedding_backward, AT(dout), AT(id), AT(order), AT(table_grad), n_tok, width, dt, gt);
}

CALL(rmsnorm_forward, const void *in; const void *weight; void *y; float *rstd; int64_t n_rows; int64_t width;
     int64_t group; int64_t group_ld; int64_t y_group_ld; float eps;
     dt_dtype dt, x->in, x->weight, x->y, x->rstd, x->n_rows, x->width, x->group, x->group_ld, x->y_group_ld, x->eps,
     x->dt)
static dt_err queue_rmsnorm_forward(dt_device *dev, const void *x, const void *weight, void *y, float *rstd,
                                    int64_t n_rows, int64_t width, int64_t group, int64_t group_ld, int64_t y_group_ld,
                                    float eps, dt_dtype dt, dt_stream *s)
{
    return PUSH(rmsnorm_forward, AT(x), AT(weight), AT(y), AT(rstd), n_rows, width, group, group_ld, y_group_ld, eps,
                dt);
}

CALL(rmsnorm_backward, const void *in; const void *weight; const float *rstd; const void *dy; void *dx; bool add_to_dx;
     void *dweight; dt_dtype gt; bool accumulate; int64_t n_rows; int64_t width; int64_t group; int64_t group_ld;
     int64_t y_group_ld; float *scratch;
     dt_dtype dt, x->in, x->weight, x->rstd, x->dy, x->dx, x->add_to_dx, x->dweight, x->gt, x->accumulate, x->n_rows,
     x->width, x->group, x->group_ld, x->y_group_ld, x->scratch, x->dt)
static dt_err queue_rmsnorm_backward(dt_device *dev, const void *x, const void *weight, const float *rstd,
                                     const void *dy, void *dx, bool add_to_dx, void *dweight, dt_dtype gt,
                                     bool accumulate, int64_t n_rows, int64_t width, int64_t group, int64_t group_ld,
                                     int64_t y_group_ld, float *scratch, dt_dtype dt, dt_stream *s)
{
    return PUSH(rmsnorm_backward, AT(x), AT(weight), AT(rstd), AT(dy), AT(dx), add_to_dx, AT(dweight), gt, accumulate,
                n_rows, width, group, group_ld, y_group_ld, AT(scratch), dt);
}

CALL(layernorm_forward, const void *in; const void *weight; const void *bias; void *y; float *mean; float *rstd;
     int64_t n_rows; int64_t width; float eps;
     dt_dtype dt, x->in, x->weight, x->bias, x->y, x->mean, x->rstd, x->n_rows, x->width, x->eps, x->dt)
static dt_err queue_layernorm_forward(dt_device *dev, const void *x, const void *weight, const void *bias, void *y,
                                      float *mean, float *rstd, int64_t n_rows, int64_t width, float eps, dt_dtype dt,
                                      dt_stream *s)
{
    return PUSH(layernorm_forward, AT(x), AT(weight), AT(bias), AT(y), AT(mean), AT(rstd), n_rows, width, eps, dt);
}

CALL(layernorm_backward, const void *in; const void *weight; const float *mean; const float *rstd; const void *dy;
     void *dx; bool add_to_dx; void *dweight; void *dbias; dt_dtype gt; bool accumulate; int64_t n_rows; int64_t width;
     float *scratch; dt_dtype dt, x->in, x->weight, x->mean, x->rstd, x->dy, x->dx, x->add_to_dx, x->dweight, x->dbias,
                     x->gt, x->accumulate, x->n_rows, x->width, x->scratch, x->dt)
static dt_err queue_layernorm_backward(dt_device *dev, const void *x, const void *weight, const float *mean,
                                       const float *rstd, const void *dy, void *dx, bool add_to_dx, void *dweight,
                                       void *dbias, dt_dtype gt, bool accumulate, int64_t n_rows, int64_t width,
                                       float *scratch, dt_dtype dt, dt_stream *s)
{
    return PUSH(layernorm_backward, AT(x), AT(weight), AT(mean), AT(rstd), AT(dy), AT(dx), add_to_dx, AT(dweight),
                AT(dbias), gt, accumulate, n_rows, width, AT(scratch), dt);
}

static int64_t queue_norm_scratch_elems(const dt_device *dev, int64_t width)
{
    return dt_device_cpu_ops.norm_scratch_elems(&state_of(dev)->cpu, width);
}

CALL(rope, void *in; const int32_t *pos; const float *cos_sin; int64_t n_tok; int64_t n_heads; int64_t head_dim;
     int64_t ld; bool inverse;
     dt_dtype dt, x->in, x->pos, x->cos_sin, x->n_tok, x->n_heads, x->head_dim, x->ld, x->inverse, x->dt)
static dt_err queue_rope(dt_device *dev, void *x, const int32_t *pos, const float *cos_sin, int64_t n_tok,
                         int64_t n_heads, int64_t head_dim, int64_t ld, bool inverse, dt_dtype dt, dt_stream *s)
{
    return PUSH(rope, AT(x), AT(pos), AT(cos_sin), n_tok, n_heads, head_dim, ld, inverse, dt);
}

static dt_attention near_attention(dt_device *dev, const dt_attention *at)
{
    dt_attention mine = *at;
    mine.q_start = AT(at->q_start);
    mine.kv_start = AT(at->kv_start);
    mine.kv_len = AT(at->kv_len);
    mine.token_key = AT(at->token_key);
    return mine;
}

CALL(attention_forward, dt_attention at; const void *q; const void *k; const void *v; void *out;
     float *lse, &x->at, x->q, x->k, x->v, x->out, x->lse)
static dt_err queue_attention_forward(dt_device *dev, const dt_attention *at, const void *q, const void *k,
                                      const void *v, void *out, float *lse, dt_stream *s)
{
    return PUSH(attention_forward, near_attention(dev, at), AT(q), AT(k), AT(v), AT(out), AT(lse));
}

CALL(attention_backward, dt_attention at; const void *q; const void *k; const void *v; const void *out;
     const float *lse; const void *dout; void *dq; void *dk; void *dv;
     float *scratch, &x->at, x->q, x->k, x->v, x->out, x->lse, x->dout, x->dq, x->dk, x->dv, x->scratch)
static dt_err queue_attention_backward(dt_device *dev, const dt_attention *at, const void *q, const void *k,
                                       const void *v, const void *out, const float *lse, const void *dout, void *dq,
                                       void *dk, void *dv, float *scratch, dt_stream *s)
{
    return PUSH(attention_backward, near_attention(dev, at), AT(q), AT(k), AT(v), AT(out), AT(lse), AT(dout), AT(dq),
                AT(dk), AT(dv), AT(scratch));
}

static int64_t queue_classifier_rows(const dt_device *dev, int64_t n_vocab, int64_t n_tok)
{
    return dt_device_cpu_ops.classifier_rows(&state_of(dev)->cpu, n_vocab, n_tok);
}

static int64_t queue_attention_scratch_elems(const dt_device *dev, const dt_attention *at)
{
    return dt_device_cpu_ops.attention_scratch_elems(&state_of(dev)->cpu, at);
}

CALL(act_forward, dt_activation act; const void *in; void *y; dt_dtype dt; int64_t n, x->act, x->in, x->y, x->dt, x->n)
static dt_err queue_act_forward(dt_device *dev, dt_activation act, const void *x, void *y, dt_dtype dt, int64_t n,
                                dt_stream *s)
{
    return PUSH(act_forward, act, AT(x), AT(y), dt, n);
}

CALL(act_backward, dt_activation act; const void *in; const void *dy; void *dx; dt_dtype dt;
     int64_t n, x->act, x->in, x->dy, x->dx, x->dt, x->n)
static dt_err queue_act_backward(dt_device *dev, dt_activation act, const void *x, const void *dy, void *dx,
                                 dt_dtype dt, int64_t n, dt_stream *s)
{
    return PUSH(act_backward, act, AT(x), AT(dy), AT(dx), dt, n);
}

CALL(glu_forward, dt_activation act; const void *gate_up; void *y; dt_dtype dt; int64_t n_rows;
     int64_t width, x->act, x->gate_up, x->y, x->dt, x->n_rows, x->width)
static dt_err queue_glu_forward(dt_device *dev, dt_activation act, const void *gate_up, void *y, dt_dtype dt,
                                int64_t n_rows, int64_t width, dt_stream *s)
{
    return PUSH(glu_forward, act, AT(gate_up), AT(y), dt, n_rows, width);
}

CALL(glu_backward, dt_activation act; const void *gate_up; const void *dy; void *dgate_up; dt_dtype dt; int64_t n_rows;
     int64_t width, x->act, x->gate_up, x->dy, x->dgate_up, x->dt, x->n_rows, x->width)
static dt_err queue_glu_backward(dt_device *dev, dt_activation act, const void *gate_up, const void *dy, void *dgate_up,
                                 dt_dtype dt, int64_t n_rows, int64_t width, dt_stream *s)
{
    return PUSH(glu_backward, act, AT(gate_up), AT(dy), AT(dgate_up), dt, n_rows, width);
}

CALL(dropout, const void *in; void *y; float p; uint64_t key; const uint64_t *token_key; int64_t n_tok; int64_t width;
     dt_dtype dt, x->in, x->y, x->p, x->key, x->token_key, x->n_tok, x->width, x->dt)
static dt_err queue_dropout(dt_device *dev, const void *x, void *y, float p, uint64_t key, const uint64_t *token_key,
                            int64_t n_tok, int64_t width, dt_dtype dt, dt_stream *s)
{
    return PUSH(dropout, AT(x), AT(y), p, key, AT(token_key), n_tok, width, dt);
}

static dt_classifier near_classifier(dt_device *dev, const dt_classifier *cl)
{
    dt_classifier mine = *cl;
    mine.target = AT(cl->target);
    mine.weight = AT(cl->weight);
    mine.entropy_weight = AT(cl->entropy_weight);
    mine.kl_weight = AT(cl->kl_weight);
    mine.ref_logits = AT(cl->ref_logits);
    mine.logp = AT(cl->logp);
    mine.hit = AT(cl->hit);
    mine.entropy = AT(cl->entropy);
    mine.kl = AT(cl->kl);
    mine.loss = AT(cl->loss);
    return mine;
}

CALL(classifier, dt_classifier cl; float *logits, &x->cl, x->logits)
static dt_err queue_classifier(dt_device *dev, const dt_classifier *cl, float *logits, dt_stream *s)
{
    return PUSH(classifier, near_classifier(dev, cl), AT(logits));
}

static dt_token_rows near_token_rows(dt_device *dev, const dt_token_rows *rows)
{
    dt_token_rows mine = *rows;
    mine.allowed = AT(rows->allowed);
    return mine;
}

CALL(draw_tokens, dt_token_rows rows; dt_choice how; const float *logits; const double *uniform; int32_t * token;
     void *scratch, &x->rows, &x->how, x->logits, x->uniform, x->token, x->scratch)
static dt_err queue_draw_tokens(dt_device *dev, const dt_token_rows *rows, const dt_choice *how, const float *logits,
                                const double *uniform, int32_t *token, void *scratch, dt_stream *s)
{
    return PUSH(draw_tokens, near_token_rows(dev, rows), *how, AT(logits), AT(uniform), AT(token), AT(scratch));
}

static size_t queue_draw_scratch_nbytes(const dt_device *dev, const dt_token_rows *rows)
{
    return dt_device_cpu_ops.draw_scratch_nbytes(&state_of(dev)->cpu, rows);
}

CALL(top_tokens, dt_token_rows rows; const float *logits; int64_t k; int32_t * token;
     float *logit, &x->rows, x->logits, x->k, x->token, x->logit)
static dt_err queue_top_tokens(dt_device *dev, const dt_token_rows *rows, const float *logits, int64_t k,
                               int32_t *token, float *logit, dt_stream *s)
{
    return PUSH(top_tokens, near_token_rows(dev, rows), AT(logits), k, AT(token), AT(logit));
}

CALL(log_softmax_at, dt_token_rows rows; const float *logits; double inv_temperature; int64_t k; const int32_t *token;
     double *logp, &x->rows, x->logits, x->inv_temperature, x->k, x->token, x->logp)
static dt_err queue_log_softmax_at(dt_device *dev, const dt_token_rows *rows, const float *logits,
                                   double inv_temperature, int64_t k, const int32_t *token, double *logp, dt_stream *s)
{
    return PUSH(log_softmax_at, near_token_rows(dev, rows), AT(logits), inv_temperature, k, AT(token), AT(logp));
}

CALL(adamw_step, dt_adamw opt; const void *grad; dt_dtype gt; float *master; float *m; float *v; void *param;
     dt_dtype param_dt; int64_t n, &x->opt, x->grad, x->gt, x->master, x->m, x->v, x->param, x->param_dt, x->n)
static dt_err queue_adamw_step(dt_device *dev, const dt_adamw *opt, const void *grad, dt_dtype gt, float *master,
                               float *m, float *v, void *param, dt_dtype param_dt, int64_t n, dt_stream *s)
{
    return PUSH(adamw_step, *opt, AT(grad), gt, AT(master), AT(m), AT(v), AT(param), param_dt, n);
}

CALL(sgd_step, dt_sgd opt; const void *grad; dt_dtype gt; float *master; float *momentum; void *param;
     dt_dtype param_dt; int64_t n, &x->opt, x->grad, x->gt, x->master, x->momentum, x->param, x->param_dt, x->n)
static dt_err queue_sgd_step(dt_device *dev, const dt_sgd *opt, const void *grad, dt_dtype gt, float *master,
                             float *momentum, void *param, dt_dtype param_dt, int64_t n, dt_stream *s)
{
    return PUSH(sgd_step, *opt, AT(grad), gt, AT(master), AT(momentum), AT(param), param_dt, n);
}

CALL(sum_squares, const void *in; dt_dtype dt; int64_t n; double *result, x->in, x->dt, x->n, x->result)
static dt_err queue_sum_squares(dt_device *dev, const void *x, dt_dtype dt, int64_t n, double *result, dt_stream *s)
{
    return PUSH(sum_squares, AT(x), dt, n, AT(result));
}

CALL(abs_max, const void *in; dt_dtype dt; int64_t n; float *result, x->in, x->dt, x->n, x->result)
static dt_err queue_abs_max(dt_device *dev, const void *x, dt_dtype dt, int64_t n, float *result, dt_stream *s)
{
    return PUSH(abs_max, AT(x), dt, n, AT(result));
}

CALL(sum_squares_fixed, const void *in; dt_dtype dt; int64_t n; int shift;
     uint64_t * result, x->in, x->dt, x->n, x->shift, x->result)
static dt_err queue_sum_squares_fixed(dt_device *dev, const void *x, dt_dtype dt, int64_t n, int shift,
                                      uint64_t result[2], dt_stream *s)
{
    return PUSH(sum_squares_fixed, AT(x), dt, n, shift, AT(result));
}

const dt_device_ops dt_device_queue_ops = {
    .name = "queue",
    .open = queue_open,
    .plan = queue_plan,
    .close = queue_close,
    .describe = queue_describe,
    .own_memory = true,
    .n_devices = queue_n_devices,
    .memory_free = queue_memory_free,
    .overhead = queue_overhead,
    .alloc = queue_alloc,
    .free = queue_free,
    .host_accessible = false,
    .stream_create = queue_stream_create,
    .stream_destroy = queue_stream_destroy,
    .stream_sync = queue_stream_sync,
    .event_create = queue_event_create,
    .event_destroy = queue_event_destroy,
    .event_record = queue_event_record,
    .event_wait = queue_event_wait,
    .event_sync = queue_event_sync,
    .event_query = queue_event_query,
    .event_elapsed_ms = queue_event_elapsed_ms,
    .copy = queue_copy,
    .zero = queue_zero,
    .convert = queue_convert,
    .add_into = queue_add_into,
    .add = queue_add,
    .gather_rows = queue_gather_rows,
    .scatter_rows = queue_scatter_rows,
    .matmul = queue_matmul,
    .bias_backward = queue_bias_backward,
    .embedding_forward = queue_embedding_forward,
    .embedding_backward = queue_embedding_backward,
    .rmsnorm_forward = queue_rmsnorm_forward,
    .rmsnorm_backward = queue_rmsnorm_backward,
    .layernorm_forward = queue_layernorm_forward,
    .layernorm_backward = queue_layernorm_backward,
    .norm_scratch_elems = queue_norm_scratch_elems,
    .rope = queue_rope,
    .attention_forward = queue_attention_forward,
    .attention_backward = queue_attention_backward,
    .attention_scratch_elems = queue_attention_scratch_elems,
    .classifier_rows = queue_classifier_rows,
    .act_forward = queue_act_forward,
    .act_backward = queue_act_backward,
    .glu_forward = queue_glu_forward,
    .glu_backward = queue_glu_backward,
    .dropout = queue_dropout,
    .classifier = queue_classifier,
    .draw_tokens = queue_draw_tokens,
    .draw_scratch_nbytes = queue_draw_scratch_nbytes,
    .top_tokens = queue_top_tokens,
    .log_softmax_at = queue_log_softmax_at,
    .adamw_step = queue_adamw_step,
    .sgd_step = queue_sgd_step,
    .sum_squares = queue_sum_squares,
    .abs_max = queue_abs_max,
    .sum_squares_fixed = queue_sum_squares_fixed,
};
