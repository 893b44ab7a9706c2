/* queue_streams.c - streams and memory of the queue device: when operations run, and which memory the host can access.
 * queue.c describes the behaviour. */
#include "queue_private.h"
#include "backend.h"
#include <stdlib.h>
#include <string.h>

#define FAR_BIT ((uintptr_t)1 << 54) /* above the addresses that Linux assigns on x86-64 and aarch64 */
enum { N_STREAMS = 32, TURN = 32 };

typedef struct entry {
    enum { RUN, RECORD, WAIT } kind;
    dt_err (*run)(dt_device *below, const void *args);
    dt_event *event; /* of RECORD and WAIT */
    int64_t serial;  /* of the record that RECORD makes or WAIT waits for */
    _Alignas(16) char args[QUEUE_ARGS_MAX];
} entry;

struct dt_graph {
    entry *entries;
    int n, n_max;
    int64_t stream; /* number of the stream that it was recorded on */
};

struct dt_stream {
    entry *entries;
    int n, n_max, done;
    dt_graph *records;  /* NULL: operations are queued */
    int64_t number;     /* from 1, over all streams of the device, destroyed ones included */
    int64_t n_run;      /* operations queued since the stream was created */
    unsigned eagerness; /* probability, in eighths, that an entry runs before a caller waits */
};

struct dt_event {
    int64_t recorded; /* serial of the last record in a queue */
    int64_t *pending; /* [n_pending] serials of records not reached yet, in any order */
    int n_pending;
    int64_t stream;   /* number of the last record's stream; 0: never recorded */
    int64_t n_before; /* n_run of that stream at the last record */
    int n_queued;     /* entries that refer to the event */
    bool destroyed;
    double at_s;
};

/* Host memory that was allocated as pinned. */
typedef struct pinned_range {
    const char *begin, *end;
} pinned_range;

typedef struct queue_state {
    dt_device below;
    bool planning;
    int n_devices;
    size_t memory;   /* bytes of a device, SIZE_MAX: as much as the host has */
    dt_stream first; /* the default stream */
    dt_stream *streams[N_STREAMS];
    int n_streams;
    int64_t n_made; /* streams created so far, destroyed ones included */
    dt_queue_order order;
    uint64_t draws;
    int64_t n_pushed;
    bool host_argument; /* an argument of the operation being queued is host memory */
    dt_err err;         /* of the first entry that failed since the last synchronisation */
    pinned_range *pinned;
    int n_pinned;
    int fail_copy; /* which of the following copies fails, from 1; 0: none */
    dt_queue_counts counts;
} queue_state;

static queue_state *state_of(const dt_device *dev) { return dev->impl; }
static dt_stream *stream_of(const dt_device *dev, dt_stream *s) { return s ? s : &state_of(dev)->first; }
static unsigned draw(queue_state *q, unsigned n) { return (unsigned)(dt_mix64(q->draws++) % n); }

static bool is_far(const void *p) { return ((uintptr_t)p & FAR_BIT) != 0; }
static void *near(const void *p) { return (void *)((uintptr_t)p & ~FAR_BIT); }

void *queue_arg(dt_device *dev, const void *p)
{
    if (p && !is_far(p)) state_of(dev)->host_argument = true;
    return near(p);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static bool is_reached(const dt_event *e, int64_t serial)
{
    int i = 0;
    while (i < e->n_pending && e->pending[i] != serial) i++;
    return i == e->n_pending;
}

static void reach(dt_event *e, int64_t serial)
{
    int i = 0;
    while (e->pending[i] != serial) i++;
    e->pending[i] = e->pending[--e->n_pending];
    e->at_s = dt_now_s();
}

static bool ready(const dt_stream *s)
{
    if (s->done == s->n) return false;
    const entry *e = &s->entries[s->done];
    return e->kind != WAIT || is_reached(e->event, e->serial);
}

static void release_event(dt_event *e)
{
    if (--e->n_queued > 0 || !e->destroyed) return;
    free(e->pending);
    free(e);
}

static void run_one(queue_state *q, dt_stream *s)
{
    const entry *e = &s->entries[s->done++];
    if (e->kind == RUN) {
        dt_err err = e->run(&q->below, e->args);
        if (err == DT_OK) err = q->below.ops->stream_sync(&q->below, NULL); /* complete, for all streams */
        if (q->err == DT_OK) q->err = err;
    } else {
        if (e->kind == RECORD) reach(e->event, e->serial);
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

/* Run operations that a real device might have completed by now, without a wait. */
static void run_some(queue_state *q)
{
    if (q->n_pushed++ % TURN == 0)
        for (int i = 0; i < q->n_streams; i++) q->streams[i]->eagerness = eagerness_of(q, q->streams[i]);
    for (int i = 0; i < q->n_streams; i++)
        while (ready(q->streams[i]) && draw(q, 8) < q->streams[i]->eagerness) run_one(q, q->streams[i]);
}

/* Run s until an event is reached (NULL: to its end). Other streams run as far as s waits for them, and at random
 * further. */
static dt_err drain(queue_state *q, dt_stream *s, const dt_event *until)
{
    while (until ? !is_reached(until, until->recorded) : s->done < s->n) {
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

static dt_err put(entry **entries, int *n, int *n_max, const entry *e)
{
    if (*n == *n_max) {
        const int grown_to = *n_max ? 2 * *n_max : 256;
        entry *grown = realloc(*entries, (size_t)grown_to * sizeof *grown);
        DT_CHECK(grown, DT_ERR_MEMORY, "queue device: out of memory for %d queued operations", grown_to);
        *entries = grown, *n_max = grown_to;
    }
    (*entries)[(*n)++] = *e;
    return DT_OK;
}

static dt_err append(queue_state *q, dt_stream *s, const entry *e)
{
    DT_CHECK(!s->records, DT_ERR_ARG, "internal: queue device: events and waits are not supported in a graph");
    DT_TRY(put(&s->entries, &s->n, &s->n_max, e));
    run_some(q);
    return DT_OK;
}

dt_err queue_push(dt_device *dev, dt_stream *stream, const char *name, dt_err (*run)(dt_device *, const void *),
                  const void *args, size_t nbytes)
{
    queue_state *q = state_of(dev);
    entry e = {.kind = RUN, .run = run};
    const bool host_argument = q->host_argument;
    q->host_argument = false;
    DT_CHECK(!host_argument, DT_ERR_ARG, "internal: %s: an array is in host memory: expected device memory", name);
    DT_CHECK(nbytes <= sizeof e.args, DT_ERR_ARG, "internal: %s: %zu bytes of arguments are too many", name, nbytes);
    memcpy(e.args, args, nbytes);
    dt_stream *s = stream_of(dev, stream);
    if (s->records) return put(&s->records->entries, &s->records->n, &s->records->n_max, &e);
    q->counts.launches++;
    s->n_run++;
    return append(q, s, &e);
}

/* ---- open, close, memory ----------------------------------------------------------------------------------------- */

static dt_err read_sizes(queue_state *q)
{
    const char *devices = getenv("DTRAIN_QUEUE_DEVICES"), *memory = getenv("DTRAIN_QUEUE_MEMORY");
    uint64_t nbytes = SIZE_MAX;
    q->n_devices = devices ? atoi(devices) : 1;
    DT_CHECK(q->n_devices > 0 && (!memory || dt_parse_bytes(memory, &nbytes)), DT_ERR_USAGE,
             "DTRAIN_QUEUE_DEVICES=%s, DTRAIN_QUEUE_MEMORY=%s: expected a count above 0 and a size in bytes",
             devices ? devices : "", memory ? memory : "");
    q->memory = (size_t)nbytes;
    return DT_OK;
}

static dt_err open_below(queue_state *q, int n_threads)
{
    const char *wanted = getenv("DTRAIN_QUEUE_BELOW"), *name = wanted && *wanted ? wanted : "cpu";
    char why[512];
    bool stale;
    if (q->planning) return dt_device_plan(&q->below, name, n_threads, q->below.ledger);
    q->below.ops = dt_device_backend(name, &stale, why, sizeof why);
    DT_CHECK(q->below.ops, DT_ERR_USAGE, "DTRAIN_QUEUE_BELOW=%s: %s", name, why);
    return q->below.ops->open(&q->below, q->below.local_rank, n_threads);
}

static dt_err open_queue(dt_device *dev, dt_queue_order order, uint64_t seed, int local_rank, int n_threads,
                         bool planning)
{
    queue_state *q = calloc(1, sizeof *q);
    DT_CHECK(q, DT_ERR_MEMORY, "queue device: out of memory for its state");
    q->order = order;
    q->draws = dt_mix64(seed * 1024 + (uint64_t)local_rank);
    q->streams[q->n_streams++] = &q->first;
    q->first.number = ++q->n_made;
    q->first.eagerness = eagerness_of(q, &q->first);
    q->below = (dt_device){.ledger = dev->ledger, .local_rank = local_rank};
    q->planning = planning;
    dt_err err = read_sizes(q);
    if (err == DT_OK) err = open_below(q, n_threads);
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
    q->below.ops->close(&q->below);
    free(q->first.entries);
    free(q->pinned);
    free(q);
    dev->impl = NULL;
}

static void queue_make_reproducible(dt_device *dev)
{
    dt_device *below = &state_of(dev)->below;
    if (below->ops->make_reproducible) below->ops->make_reproducible(below);
}

static void queue_describe(const dt_device *dev, char *out, size_t out_size)
{
    char below[192];
    state_of(dev)->below.ops->describe(&state_of(dev)->below, below, sizeof below);
    snprintf(out, out_size, "queue over %s", below);
}

static void queue_kernels(const dt_device *dev, char *out, size_t out_size)
{
    const dt_device *below = &state_of(dev)->below;
    below->ops->kernels(below, out, out_size);
}

static const char *queue_chip_name(const dt_device *dev)
{
    const dt_device *below = &state_of(dev)->below;
    return below->ops->chip_name ? below->ops->chip_name(below) : NULL;
}

static void queue_versions(const dt_device *dev, char *out, size_t out_size)
{
    const dt_device *below = &state_of(dev)->below;
    *out = '\0';
    if (below->ops->versions) below->ops->versions(below, out, out_size);
}

static bool queue_distrust(dt_device *dev, const dt_matmul *mm)
{
    dt_device *below = &state_of(dev)->below;
    return below->ops->distrust && below->ops->distrust(below, mm);
}

/* Tests run on one node. */
static uint64_t queue_identity(const dt_device *dev)
{
    return 1 + (uint64_t)(dev->local_rank % state_of(dev)->n_devices);
}

static size_t queue_memory_free(const dt_device *dev)
{
    const queue_state *q = state_of(dev);
    const size_t held = atomic_load(&dev->ledger->on_now[DT_ON_DEVICE]);
    if (q->planning) return SIZE_MAX;
    return q->memory == SIZE_MAX ? dt_host_memory_free() : q->memory > held ? q->memory - held : 0;
}

static size_t queue_overhead(const dt_device *dev) { return queue_below(dev)->ops->overhead(queue_below(dev)); }

static dt_err note_pinned(queue_state *q, const char *begin, size_t nbytes)
{
    pinned_range *grown = realloc(q->pinned, (size_t)(q->n_pinned + 1) * sizeof *grown);
    DT_CHECK(grown, DT_ERR_MEMORY, "queue device: out of memory for a list of %d pinned blocks", q->n_pinned + 1);
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

static dt_err queue_alloc(dt_device *dev, dt_memspace space, size_t nbytes, void **ptr)
{
    queue_state *q = state_of(dev);
    if (space == DT_ON_DEVICE && q->memory < SIZE_MAX && nbytes > queue_memory_free(dev)) return DT_ERR_MEMORY;
    DT_TRY(q->below.ops->alloc(&q->below, space, nbytes, ptr));
    /* NaN in every type. If the host cannot access the memory of the device below (simulator), that device fills it
     * itself. */
    if (space != DT_ON_DEVICE || q->below.ops->host_accessible) memset(*ptr, 0xff, nbytes);
    const dt_err err = space == DT_ON_PINNED ? note_pinned(q, *ptr, nbytes) : DT_OK;
    if (err != DT_OK) q->below.ops->free(&q->below, space, *ptr, nbytes);
    DT_TRY(err);
    if (space == DT_ON_DEVICE) *ptr = (void *)((uintptr_t)*ptr | FAR_BIT);
    return DT_OK;
}

static _Noreturn void die(const char *why)
{
    fprintf(stderr, "queue device: %s\n", why);
    abort();
}

/* True if an argument of a queued operation is an address within the block. */
static bool is_in_use(const queue_state *q, const char *begin, size_t nbytes)
{
    for (int i = 0; i < q->n_streams; i++)
        for (int k = q->streams[i]->done; k < q->streams[i]->n; k++)
            for (size_t at = 0; at < QUEUE_ARGS_MAX; at += sizeof(void *)) {
                const char *p;
                memcpy(&p, q->streams[i]->entries[k].args + at, sizeof p);
                p = near(p);
                if (p >= begin && p < begin + nbytes) return true;
            }
    return false;
}

static void queue_free(dt_device *dev, dt_memspace space, void *ptr, size_t nbytes)
{
    queue_state *q = state_of(dev);
    if (is_in_use(q, near(ptr), nbytes)) die("memory is freed while a queued operation uses it");
    for (int i = 0; i < q->n_pinned && space == DT_ON_PINNED; i++)
        if (q->pinned[i].begin == ptr) q->pinned[i] = q->pinned[--q->n_pinned];
    q->below.ops->free(&q->below, space, near(ptr), nbytes);
}

dt_queue_counts dt_queue_counts_of(const dt_device *dev) { return state_of(dev)->counts; }

/* ---- streams and events ------------------------------------------------------------------------------------------ */

static dt_err queue_stream_create(dt_device *dev, dt_stream **stream)
{
    queue_state *q = state_of(dev);
    DT_CHECK(q->n_streams < N_STREAMS, DT_ERR_FAULT, "queue device: more than %d streams", N_STREAMS);
    *stream = calloc(1, sizeof **stream);
    DT_CHECK(*stream, DT_ERR_MEMORY, "out of memory for a stream");
    q->streams[q->n_streams++] = *stream;
    (*stream)->number = ++q->n_made;
    (*stream)->eagerness = eagerness_of(q, *stream);
    return DT_OK;
}

static void queue_stream_destroy(dt_device *dev, dt_stream *stream)
{
    queue_state *q = state_of(dev);
    int i = 0;
    for (int k = stream->done; k < stream->n; k++)
        if (stream->entries[k].kind == RUN) die("a stream is destroyed while operations are queued on it");
    (void)drain(q, stream, NULL); /* only records and waits */
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
    DT_EXPECT(!stream_of(dev, stream)->records);
    q->counts.host_waits++;
    DT_TRY(drain(q, stream_of(dev, stream), NULL));
    return take_error(q);
}

static dt_err queue_event_create(dt_device *dev, dt_event **event)
{
    *event = calloc(1, sizeof **event);
    DT_CHECK(*event, DT_ERR_MEMORY, "out of memory for an event");
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
    int64_t *grown = realloc(event->pending, (size_t)(event->n_pending + 1) * sizeof *grown);
    DT_CHECK(grown, DT_ERR_MEMORY, "queue device: out of memory for %d records of an event", event->n_pending + 1);
    event->pending = grown;
    event->pending[event->n_pending++] = event->recorded + 1;
    event->n_queued++;
    dt_stream *s = stream_of(dev, stream);
    event->stream = s->number;
    event->n_before = s->n_run;
    return append(state_of(dev), s, &(entry){.kind = RECORD, .event = event, .serial = ++event->recorded});
}

static dt_err queue_event_wait(dt_device *dev, dt_event *event, dt_stream *stream)
{
    event->n_queued++;
    return append(state_of(dev), stream_of(dev, stream),
                  &(entry){.kind = WAIT, .event = event, .serial = event->recorded});
}

/* The stream of the event's last record. NULL: never recorded, or the stream is destroyed, so all its operations have
 * run. */
static dt_stream *recorded_on(const queue_state *q, const dt_event *event)
{
    for (int i = 0; i < q->n_streams; i++)
        if (q->streams[i]->number == event->stream) return q->streams[i];
    return NULL;
}

static dt_err queue_event_sync(dt_device *dev, dt_event *event)
{
    queue_state *q = state_of(dev);
    dt_stream *stream = recorded_on(q, event);
    if (!stream) return DT_OK;
    if (stream->n_run > event->n_before)
        q->counts.event_waits++;
    else
        q->counts.host_waits++;
    DT_TRY(drain(q, stream, event));
    return take_error(q);
}

static dt_err queue_event_query(dt_device *dev, dt_event *event, bool *done)
{
    run_some(state_of(dev)); /* repeated queries reach the event eventually */
    *done = is_reached(event, event->recorded);
    return DT_OK;
}

static dt_err queue_event_elapsed_ms(dt_device *dev, dt_event *from, dt_event *to, float *ms)
{
    *ms = (float)((to->at_s - from->at_s) * 1e3);
    return DT_OK;
}

static dt_err queue_event_time(dt_device *dev, dt_event *event, double *at_s)
{
    DT_EXPECT(event->recorded > 0 && is_reached(event, event->recorded));
    *at_s = event->at_s;
    return DT_OK;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

static void queue_graph_destroy(dt_device *dev, dt_graph *graph)
{
    if (!graph) return;
    free(graph->entries);
    free(graph);
}

static dt_err queue_graph_begin(dt_device *dev, dt_stream *stream)
{
    dt_stream *s = stream_of(dev, stream);
    DT_CHECK(!s->records, DT_ERR_ARG, "internal: queue_graph_begin: the stream is already recording a graph");
    s->records = calloc(1, sizeof *s->records);
    DT_CHECK(s->records, DT_ERR_MEMORY, "queue device: out of memory for a graph");
    s->records->stream = s->number;
    return DT_OK;
}

static dt_err queue_graph_end(dt_device *dev, dt_stream *stream, dt_graph **graph)
{
    dt_stream *s = stream_of(dev, stream);
    DT_CHECK(s->records, DT_ERR_ARG, "internal: queue_graph_end: the stream is not recording a graph");
    state_of(dev)->counts.graphs += graph != NULL;
    if (graph)
        *graph = s->records;
    else
        queue_graph_destroy(dev, s->records);
    s->records = NULL;
    return DT_OK;
}

static dt_err queue_graph_launch(dt_device *dev, dt_graph *graph, dt_stream *stream)
{
    queue_state *q = state_of(dev);
    dt_stream *s = stream_of(dev, stream);
    DT_EXPECT(s->number == graph->stream);
    q->counts.launches++;
    s->n_run++;
    for (int i = 0; i < graph->n; i++) DT_TRY(append(q, s, &graph->entries[i]));
    return DT_OK;
}

/* ---- copies, and functions that tests queue ---------------------------------------------------------------------- */

typedef struct copy_call {
    void *dst;
    const void *src;
    size_t nbytes;
} copy_call;

static dt_err run_copy(dt_device *below, const void *args)
{
    const copy_call *x = args;
    return below->ops->copy(below, x->dst, x->src, x->nbytes, NULL);
}

static dt_err failing_copy(dt_device *below, const void *args)
{
    return dt_fail(DT_ERR_FAULT, "queue device: copy failed (injected)");
}

static dt_err queue_copy(dt_device *dev, void *dst, const void *src, size_t nbytes, dt_stream *s)
{
    queue_state *q = state_of(dev); /* host memory may be pinned or not */
    const copy_call args = {near(dst), near(src), nbytes};
    DT_CHECK(!stream_of(dev, s)->records || (is_far(dst) && is_far(src)), DT_ERR_ARG,
             "internal: queue_copy: a graph cannot copy from or to host memory");
    const bool fails = q->fail_copy > 0 && --q->fail_copy == 0;
    q->counts.pageable_copies += is_pageable(q, dst) || is_pageable(q, src);
    return queue_push(dev, s, "copy", fails ? failing_copy : run_copy, &args, sizeof args);
}

void dt_queue_fail_copy(dt_device *dev, int nth) { state_of(dev)->fail_copy = nth; }

dt_err dt_queue_call(dt_device *dev, dt_stream *stream, dt_err (*run)(dt_device *below, const void *args),
                     const void *args, size_t nbytes)
{
    return queue_push(dev, stream, "dt_queue_call", run, args, nbytes);
}

void *dt_queue_reach(const void *p) { return near(p); }

const dt_device *queue_below(const dt_device *dev) { return &state_of(dev)->below; }

const dt_device_ops dt_device_queue_ops = {
    .name = "queue",
    .open = queue_open,
    .plan = queue_plan,
    .close = queue_close,
    .make_reproducible = queue_make_reproducible,
    .describe = queue_describe,
    .kernels = queue_kernels,
    .chip_name = queue_chip_name,
    .versions = queue_versions,
    .distrust = queue_distrust,
    .own_memory = true,
    .identity = queue_identity,
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
    .event_time = queue_event_time,
    .graph_begin = queue_graph_begin,
    .graph_end = queue_graph_end,
    .graph_launch = queue_graph_launch,
    .graph_destroy = queue_graph_destroy,
    .copy = queue_copy,
#define DT_OP(op, ...) .op = queue_##op,
#define DT_SIZE(type, name, ...) .name = queue_##name,
#include "dtrain/device/op_list.h"
};
