/* streams.cc - twins of CUDA's streams and events, and what streams.h says of their clocks. */
#include "block.h"
#include "faults.h"
#include "graphs.h"
#include "host.h"
#include "library.h"
#include "memory.h"
#include "streams.h"
#include "thread.h"
#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <mutex>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <vector>

/* A stream may be stuck (sim_stick): no later event is ever reached, and a stream that waits for one is stuck, too. */
struct cudaStreamOfSim {
    unsigned flags, number; /* from 1 on: of all that were ever made */
    int slot;
    std::atomic<bool> stuck;
};
struct cudaEventOfSim {
    struct timespec at;
    bool timed;
    stream_clock clock;
    std::atomic<bool> unreached;
    int questions; /* that are answered with "not ready" yet */
};

static std::mutex streams_lock;

/* ---- clocks ----------------------------------------------------------------------------------------------------- */

enum { LEGACY }; /* slot of the stream that NULL names */
static stream_clock clocks[MAX_STREAMS], host;
static bool in_use[MAX_STREAMS] = {true};
static unsigned n_streams;

static void take_in(stream_clock *into, const stream_clock &from)
{
    for (int i = 0; i < MAX_STREAMS; i++) into->at[i] = std::max(into->at[i], from.at[i]);
}
static bool knows(const stream_clock &clock, const stream_op &op) { return clock.at[op.slot] >= op.time; }
static stream_clock *clock_of(cudaStream_t stream) { return &clocks[stream ? stream->slot : LEGACY]; }

/* ---- what streams did with memory ------------------------------------------------------------------------------- */

/* A stretch of memory; it begins at its key. */
struct span {
    const char *to;
    stream_op written;           /* time 0: not yet */
    std::vector<stream_op> read; /* since then; one for each stream whose read no later one knew */
};
static std::map<const char *, span> spans;
typedef std::map<const char *, span>::iterator span_at;

/* Pinned memory that streams use and the host has not seen them end. */
struct watched_range {
    const char *from;
    size_t nbytes;
    bool fresh; /* the operation has not ended */
};
static std::vector<watched_range> watched;

static void watch(bool all)
{
    const auto done = [all](watched_range &w) {
        if (!all && !w.fresh) return false;
        w.fresh = false;
        return !host_review(w.from, w.nbytes);
    };
    watched.erase(std::remove_if(watched.begin(), watched.end(), done), watched.end());
}

/* What describes an operation to people. */
struct op_name {
    char text[128];
};
static op_name name_of(const stream_op &op)
{
    op_name name;
    const char *kernel = op.kernel ? sim_kernel_name(op.kernel) : nullptr;
    int n = snprintf(name.text, sizeof name.text, "%s%s%s%s on ", op.name, kernel ? " (" : "", kernel ? kernel : "",
                     kernel ? ")" : "");
    if (n >= (int)sizeof name.text) n = sizeof name.text - 1;
    if (op.stream == 0)
        snprintf(name.text + n, sizeof name.text - (size_t)n, "the legacy stream");
    else
        snprintf(name.text + n, sizeof name.text - (size_t)n, "stream %u", op.stream);
    return name;
}

/* The operation may not have read, or written, what the other now touches. */
static void check(const stream_op &before, bool wrote, const stream_op &mine, bool write, const char *from,
                  const char *to)
{
    if (before.time == 0 || knows(clocks[mine.slot], before)) return;
    sim_wrong("a race of streams: %s %s %zd bytes at %s, which %s %s; no event orders the two", name_of(mine).text,
              write ? "writes" : "reads", to - from, sim_name_place(from).text, name_of(before).text,
              wrote ? "writes" : "reads");
}

/* Let a span begin at this address, if one lies there. */
static void split(const char *at)
{
    const span_at above = spans.upper_bound(at);
    if (above == spans.begin()) return;
    const span_at in = std::prev(above);
    if (in->first == at || in->second.to <= at) return;
    spans.emplace_hint(above, at, in->second);
    in->second.to = at;
}

static void note_read(span *s, const stream_op &op)
{
    const auto known = [&op](const stream_op &before) { return knows(clocks[op.slot], before); };
    s->read.erase(std::remove_if(s->read.begin(), s->read.end(), known), s->read.end());
    s->read.push_back(op);
}

static void access(const stream_op &op, const char *from, const char *to, bool write)
{
    split(from);
    split(to);
    const char *at = from; /* up to which spans were looked at */
    for (span_at s = spans.lower_bound(from); s != spans.end() && s->first < to; s++) {
        check(s->second.written, true, op, write, s->first, s->second.to);
        for (size_t i = 0; write && i < s->second.read.size(); i++)
            check(s->second.read[i], false, op, write, s->first, s->second.to);
        if (write) continue;
        if (at < s->first) spans.emplace_hint(s, at, span{s->first, {}, {op}});
        at = s->second.to;
        note_read(&s->second, op);
    }
    if (write) {
        spans.erase(spans.lower_bound(from), spans.lower_bound(to));
        spans[from] = span{to, op, {}};
    } else if (at < to) {
        spans[at] = span{to, {}, {op}};
    }
    if (!sim_is_pinned(from)) return;
    host_opens(from, (size_t)(to - from));
    watched.push_back({from, (size_t)(to - from), true});
}

stream_use streams_use(const char *from, const char *to)
{
    stream_use use = UNUSED;
    span_at s = spans.upper_bound(from);
    if (s != spans.begin() && std::prev(s)->second.to > from) s--;
    for (; s != spans.end() && s->first < to; s++) {
        if (!knows(host, s->second.written)) return WRITTEN_BY_STREAMS;
        for (const stream_op &op : s->second.read)
            if (!knows(host, op)) use = READ_BY_STREAMS;
    }
    return use;
}

void streams_host_touches(const char *p, bool write)
{
    const std::lock_guard<std::mutex> lock(streams_lock);
    const span_at above = spans.upper_bound(p);
    if (above == spans.begin() || std::prev(above)->second.to <= p) return;
    const span &s = std::prev(above)->second;
    const char *what = write ? "writes" : "reads";
    if (!knows(host, s.written))
        sim_wrong("the host %s %s, which %s writes; nobody has waited for that", what, sim_name_place(p).text,
                  name_of(s.written).text);
    for (const stream_op &op : s.read)
        if (write && !knows(host, op))
            sim_wrong("the host writes %s, which %s reads; nobody has waited for that", sim_name_place(p).text,
                      name_of(op).text);
}

void streams_forget(const void *p, size_t nbytes)
{
    const std::lock_guard<std::mutex> lock(streams_lock);
    const char *from = static_cast<const char *>(p), *to = from + nbytes;
    for (span_at s = spans.lower_bound(from); s != spans.end() && s->first < to; s++) {
        std::vector<stream_op> ops = s->second.read;
        ops.push_back(s->second.written);
        for (const stream_op &op : ops)
            if (!knows(host, op))
                sim_wrong("%s is freed while %s may be at work there; nobody has waited for that",
                          sim_name_place(s->first).text, name_of(op).text);
    }
    spans.erase(spans.lower_bound(from), spans.lower_bound(to));
    if (sim_is_pinned(p)) host_opens(p, nbytes);
}

/* ---- operations ------------------------------------------------------------------------------------------------- */

static long long n_launches;
long long sim_n_launches(void)
{
    const std::lock_guard<std::mutex> lock(streams_lock);
    return n_launches;
}

stream_op streams_begin(cudaStream_t stream, const char *name, const void *kernel)
{
    const std::lock_guard<std::mutex> lock(streams_lock);
    const int slot = stream ? stream->slot : LEGACY;
    take_in(&clocks[slot], host);
    n_launches++;
    return {slot, ++clocks[slot].at[slot], stream ? stream->number : 0, name, kernel};
}

void streams_access(const stream_op &op, const void *p, size_t nbytes, bool write)
{
    if (nbytes == 0 || (!sim_is_device(p) && !sim_is_pinned(p))) return;
    const std::lock_guard<std::mutex> lock(streams_lock);
    access(op, static_cast<const char *>(p), static_cast<const char *>(p) + nbytes, write);
}

/* What the kernel that runs touches: a bit for each byte of the pages that it came to. Pages stay for the next ones. */
static const size_t PAGE = 4096;
struct touched_page {
    const char *begin;
    bool listed;
    uint64_t bits[2][PAGE / 64]; /* reads, writes */
};
static std::vector<touched_page *> touched;

static touched_page *page_of(const char *p)
{
    static touched_page **tables[2]; /* of device and pinned memory */
    const bool is_pinned = sim_is_pinned(p);
    const sim_range range = is_pinned ? sim_pinned_memory() : sim_device_memory();
    touched_page **&table = tables[is_pinned];
    if (!table)
        table = static_cast<touched_page **>(mmap(nullptr, (size_t)(range.to - range.from) / PAGE * sizeof *table,
                                                  PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                                  -1, 0));
    touched_page *&page = table[(size_t)(p - range.from) / PAGE];
    if (!page) page = new touched_page{p - (size_t)(p - range.from) % PAGE, false, {}};
    if (!page->listed) touched.push_back(page);
    page->listed = true;
    return page;
}

void streams_touch(const void *p, size_t nbytes, bool write)
{
    const char *at = static_cast<const char *>(p);
    if (!sim_is_device(at) && !sim_is_pinned(at)) return;
    for (const char *end = at + nbytes; at < end;) {
        touched_page *page = page_of(at);
        const size_t offset = (size_t)(at - page->begin), room = 64 - offset % 64,
                     n = std::min((size_t)(end - at), room);
        page->bits[write][offset / 64] |= (n == 64 ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1) << offset % 64;
        at += n;
    }
}

/* Calls found(from, to) for each run of bytes that were touched. */
template <class Found> static void each_run(bool write, Found found)
{
    const char *from = nullptr, *to = nullptr;
    for (const touched_page *page : touched)
        for (size_t w = 0; w < PAGE / 64; w++)
            for (uint64_t left = page->bits[write][w]; left;) {
                const int first = __builtin_ctzll(left), n = ~(left >> first) ? __builtin_ctzll(~(left >> first)) : 64;
                const char *at = page->begin + w * 64 + first;
                if (at != to) {
                    if (from) found(from, to);
                    from = at;
                }
                to = at + n;
                left &= n == 64 ? 0 : ~((((uint64_t)1 << n) - 1) << first);
            }
    if (from) found(from, to);
}

void streams_end(const stream_op &op)
{
    const std::lock_guard<std::mutex> lock(streams_lock);
    if (op.kernel) {
        std::sort(touched.begin(), touched.end(),
                  [](const touched_page *a, const touched_page *b) { return a->begin < b->begin; });
        for (int write = 0; write < 2; write++)
            each_run(write, [&op, write](const char *from, const char *to) { access(op, from, to, write); });
        for (touched_page *page : touched) {
            page->listed = false;
            memset(page->bits, 0, sizeof page->bits);
        }
        touched.clear();
    }
    watch(false);
}

void sim_library_begins(cudaStream_t stream, const char *call)
{
    sim_be_the_device(true);
    sim_this_thread()->call = streams_begin(stream, call, nullptr);
}
void sim_library_touches(const void *p, size_t nbytes, bool write)
{
    streams_access(sim_this_thread()->call, p, nbytes, write);
}
void sim_library_ends(void)
{
    streams_end(sim_this_thread()->call);
    sim_be_the_device(false);
}
void sim_library_goes_on(void) { sim_be_the_device(true); }
void sim_library_pauses(void) { sim_be_the_device(false); }

/* ---- streams ---------------------------------------------------------------------------------------------------- */

/* A wait that fails (faults.h) has waited all the same: a device that has failed works on nothing any more. */

static bool host_knows(const stream_clock &clock)
{
    for (int i = 0; i < MAX_STREAMS; i++)
        if (host.at[i] < clock.at[i]) return false;
    return true;
}
static void host_learns(const stream_clock &clock)
{
    take_in(&host, clock);
    watch(true);
}

void sim_stick(cudaStream_t stream) { stream->stuck = true; }

static void wait_while(const std::atomic<bool> &stuck)
{
    while (stuck) usleep(1000);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    SIM_PASSES("cudaStreamCreateWithFlags");
    sim_uses_gpu("cudaStreamCreate");
    const std::lock_guard<std::mutex> lock(streams_lock);
    int slot = 0;
    while (slot < MAX_STREAMS && in_use[slot]) slot++;
    if (slot == MAX_STREAMS) sim_wrong("more than %d streams", MAX_STREAMS - 1);
    in_use[slot] = true;
    *stream = new cudaStreamOfSim{flags, ++n_streams, slot, {false}};
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int)
{
    return cudaStreamCreateWithFlags(stream, flags);
}
/* Its slot is free for another one where the host has seen the end of all that it did. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    SIM_PASSES("cudaStreamDestroy");
    const std::lock_guard<std::mutex> lock(streams_lock);
    const int slot = stream->slot;
    in_use[slot] = host.at[slot] < clocks[slot].at[slot];
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    if (stream) wait_while(stream->stuck);
    if (sim_is_captured(stream)) return sim_fail(cudaErrorStreamCaptureUnsupported);
    const std::lock_guard<std::mutex> lock(streams_lock);
    host_learns(*clock_of(stream));
    return sim_passes("cudaStreamSynchronize");
}
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    SIM_PASSES("cudaStreamQuery");
    return stream && stream->stuck ? cudaErrorNotReady : cudaStreamSynchronize(stream);
}
cudaError_t cudaDeviceSynchronize(void)
{
    if (sim_captures()) return sim_fail(cudaErrorStreamCaptureUnsupported);
    const std::lock_guard<std::mutex> lock(streams_lock);
    for (int i = 0; i < MAX_STREAMS; i++) take_in(&host, clocks[i]);
    watch(true);
    return sim_passes("cudaDeviceSynchronize");
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    SIM_PASSES("cudaStreamWaitEvent");
    if (!event) return sim_fail(cudaErrorInvalidResourceHandle);
    if (sim_is_captured(stream)) return sim_fail(cudaErrorStreamCaptureUnsupported);
    const std::lock_guard<std::mutex> lock(streams_lock);
    take_in(clock_of(stream), event->clock);
    if (stream && event->unreached) stream->stuck = true;
    return cudaSuccess;
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    SIM_PASSES("cudaEventCreateWithFlags");
    sim_uses_gpu("cudaEventCreate");
    *event = new cudaEventOfSim{{}, !(flags & cudaEventDisableTiming), {}, {false}, 0};
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    SIM_PASSES("cudaEventDestroy");
    delete event;
    return cudaSuccess;
}
static unsigned n_records;
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    SIM_PASSES("cudaEventRecord");
    if (sim_is_captured(stream)) return sim_fail(cudaErrorStreamCaptureUnsupported);
    const std::lock_guard<std::mutex> lock(streams_lock);
    clock_gettime(CLOCK_MONOTONIC, &event->at);
    event->clock = host;
    take_in(&event->clock, *clock_of(stream));
    event->unreached = stream && stream->stuck;
    event->questions = (int)((++n_records * 2654435761u >> 28) % 3);
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (sim_captures()) return sim_fail(cudaErrorStreamCaptureUnsupported);
    wait_while(event->unreached);
    const std::lock_guard<std::mutex> lock(streams_lock);
    host_learns(event->clock);
    return sim_passes("cudaEventSynchronize");
}
/* Work that the host has not waited for may be in flight: the first queries say so. */
static bool is_late(cudaEvent_t event)
{
    const std::lock_guard<std::mutex> lock(streams_lock);
    return event->unreached || (!host_knows(event->clock) && event->questions-- > 0);
}
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    SIM_PASSES("cudaEventQuery");
    return !sim_captures() && is_late(event) ? cudaErrorNotReady : cudaEventSynchronize(event);
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    SIM_PASSES("cudaEventElapsedTime");
    if (!from->timed || !to->timed) return sim_fail(cudaErrorInvalidResourceHandle);
    *ms = (float)(to->at.tv_sec - from->at.tv_sec) * 1e3f + (float)(to->at.tv_nsec - from->at.tv_nsec) * 1e-6f;
    return cudaSuccess;
}
