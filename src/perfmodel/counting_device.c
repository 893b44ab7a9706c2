/* counting_device.c - clocks and memory of the counting device (counting_device.h). count_ops.c counts its operations.
 *
 * Device memory begins at addresses that no system maps, so access to it ends the program. Host memory is real,
 * because the host writes to it, but not reserved: only touched pages cost memory. */
#include "count_private.h"
#include "dtrain/device/gpu_sizes.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define FIRST_ADDRESS ((uintptr_t)1 << 58)
enum { ALIGN = 256 }; /* as cudaMalloc's */

typedef double clock_s[DT_COUNT_CLOCKS];

struct dt_stream {
    clock_s done_s; /* end of the last queued operation */
    dt_stream *next;
};

struct dt_event {
    clock_s at_s;
};

typedef struct count_state {
    const dt_count_sink *sink;
    uintptr_t next; /* next free address */
    clock_s host_s; /* current time of the host */
    clock_s gone_s; /* latest end of a destroyed stream */
    dt_stream first, *streams;
} count_state;

static count_state *state_of(const dt_device *dev) { return dev->impl; }
static dt_stream *stream_of(const dt_device *dev, dt_stream *s) { return s ? s : &state_of(dev)->first; }

/* a waits for b. */
static void wait_for(clock_s a, const clock_s b)
{
    for (int i = 0; i < DT_COUNT_CLOCKS; i++)
        if (a[i] < b[i]) a[i] = b[i];
}

void dt_count_queue(dt_device *dev, dt_stream *stream, const dt_launch *launch)
{
    count_state *c = state_of(dev);
    dt_stream *s = stream_of(dev, stream);
    clock_s took = {0};
    c->sink->take(c->sink->self, launch, took);
    wait_for(s->done_s, c->host_s);
    for (int i = 0; i < DT_COUNT_CLOCKS; i++) s->done_s[i] += took[i];
}

void count_moves(dt_device *dev, dt_stream *s, const char *op, double bytes)
{
    if (bytes > 0) dt_count_queue(dev, s, &(dt_launch){.op = op, .memory = bytes});
}

void dt_count_now(const dt_device *dev, double seconds[DT_COUNT_CLOCKS])
{
    const count_state *c = state_of(dev);
    memcpy(seconds, c->host_s, sizeof c->host_s);
    wait_for(seconds, c->gone_s);
    wait_for(seconds, c->first.done_s);
    for (const dt_stream *s = c->streams; s; s = s->next) wait_for(seconds, s->done_s);
}

/* ---- open, close, memory ----------------------------------------------------------------------------------------- */

dt_err dt_count_open(dt_device *dev, const dt_count_sink *sink, dt_ledger *ledger)
{
    count_state *c = calloc(1, sizeof *c);
    DT_CHECK(c, DT_ERR_MEMORY, "out of memory for the counting device");
    *c = (count_state){.sink = sink, .next = FIRST_ADDRESS};
    *dev = (dt_device){.ops = &dt_device_count_ops, .impl = c, .ledger = ledger};
    return DT_OK;
}

static void count_close(dt_device *dev)
{
    free(dev->impl);
    dev->impl = NULL;
}

static void count_describe(const dt_device *dev, char *out, size_t out_size)
{
    snprintf(out, out_size, "counting device (computes nothing)");
}
static void count_kernels(const dt_device *dev, char *out, size_t out_size) { snprintf(out, out_size, "none"); }
static size_t count_unknown(const dt_device *dev) { return SIZE_MAX; }
static bool is_on_device(const void *p) { return (uintptr_t)p >= FIRST_ADDRESS; }

static dt_err count_alloc(dt_device *dev, dt_memspace space, size_t nbytes, void **ptr)
{
    count_state *c = state_of(dev);
    if (space == DT_ON_DEVICE) {
        *ptr = (void *)c->next; /* NOLINT(performance-no-int-to-ptr): an address that is never touched */
        c->next += (nbytes + ALIGN - 1) / ALIGN * ALIGN;
        return DT_OK;
    }
    *ptr = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return *ptr == MAP_FAILED ? DT_ERR_MEMORY : DT_OK;
}

static void count_free(dt_device *dev, dt_memspace space, void *ptr, size_t nbytes)
{
    if (space != DT_ON_DEVICE) munmap(ptr, nbytes);
}

/* ---- streams and events ------------------------------------------------------------------------------------------ */

static dt_err count_stream_create(dt_device *dev, dt_stream **stream)
{
    count_state *c = state_of(dev);
    *stream = calloc(1, sizeof **stream);
    DT_CHECK(*stream, DT_ERR_MEMORY, "out of memory for a stream");
    (*stream)->next = c->streams;
    c->streams = *stream;
    return DT_OK;
}

static void count_stream_destroy(dt_device *dev, dt_stream *stream)
{
    count_state *c = state_of(dev);
    dt_stream **at = &c->streams;
    while (*at != stream) at = &(*at)->next;
    *at = stream->next;
    wait_for(c->gone_s, stream->done_s);
    free(stream);
}

static dt_err count_stream_sync(dt_device *dev, dt_stream *stream)
{
    wait_for(state_of(dev)->host_s, stream_of(dev, stream)->done_s);
    return DT_OK;
}

static dt_err count_event_create(dt_device *dev, dt_event **event)
{
    *event = calloc(1, sizeof **event);
    DT_CHECK(*event, DT_ERR_MEMORY, "out of memory for an event");
    return DT_OK;
}

static void count_event_destroy(dt_device *dev, dt_event *event) { free(event); }

static dt_err count_event_record(dt_device *dev, dt_event *event, dt_stream *stream)
{
    memcpy(event->at_s, stream_of(dev, stream)->done_s, sizeof event->at_s);
    return DT_OK;
}

static dt_err count_event_wait(dt_device *dev, dt_event *event, dt_stream *stream)
{
    wait_for(stream_of(dev, stream)->done_s, event->at_s);
    return DT_OK;
}

static dt_err count_event_sync(dt_device *dev, dt_event *event)
{
    wait_for(state_of(dev)->host_s, event->at_s);
    return DT_OK;
}

static dt_err count_event_query(dt_device *dev, dt_event *event, bool *done)
{
    *done = true;
    return count_event_sync(dev, event);
}

static dt_err count_event_elapsed_ms(dt_device *dev, dt_event *from, dt_event *to, float *ms)
{
    *ms = (float)((to->at_s[0] - from->at_s[0]) * 1e3);
    return DT_OK;
}

static dt_err count_event_time(dt_device *dev, dt_event *event, double *at_s)
{
    *at_s = event->at_s[0];
    return DT_OK;
}

/* ---- copies, and the table --------------------------------------------------------------------------------------- */

/* Copies to the host yield values above 0 in every type, so the host continues as in a real step. */
static dt_err count_copy(dt_device *dev, void *dst, const void *src, size_t nbytes, dt_stream *s)
{
    const bool inside = is_on_device(dst) && is_on_device(src);
    if (nbytes == 0 || dst == src) return DT_OK;
    if (!is_on_device(dst)) memset(dst, 0x3f, nbytes);
    dt_count_queue(
        dev, s,
        &(dt_launch){.op = "copy", .memory = (inside ? 2 : 1) * (double)nbytes, .host = inside ? 0 : (double)nbytes});
    return DT_OK;
}

/* Every library kernel is assumed to be available. */
static dt_err count_attention_prepare(dt_device *dev, const dt_attention *at, bool backward, int *ready, char *why,
                                      size_t why_size)
{
    *ready = DT_READY_FORWARD | DT_READY_BACKWARD;
    *why = '\0';
    return DT_OK;
}

/* The device is opened by dt_count_open. */
const dt_device_ops dt_device_count_ops = {
    .name = "cuda",
    .close = count_close,
    .describe = count_describe,
    .kernels = count_kernels,
    .own_memory = true,
    .memory_free = count_unknown,
    .overhead = dt_gpu_overhead,
    .memory_taken = count_unknown,
    .alloc = count_alloc,
    .free = count_free,
    .alloc_zeroes = true,
    .stream_nbytes = DT_GPU_WORKSPACE_NBYTES,
    .stream_create = count_stream_create,
    .stream_destroy = count_stream_destroy,
    .stream_sync = count_stream_sync,
    .event_create = count_event_create,
    .event_destroy = count_event_destroy,
    .event_record = count_event_record,
    .event_wait = count_event_wait,
    .event_sync = count_event_sync,
    .event_query = count_event_query,
    .event_elapsed_ms = count_event_elapsed_ms,
    .event_time = count_event_time,
    .copy = count_copy,
    .attention_prepare = count_attention_prepare,
#define DT_OP(op, ...) .op = counting_##op,
#define DT_SIZE(type, name, ...) .name = dt_gpu_##name,
#include "dtrain/device/op_list.h"
};
