/* memory.cc - twins of CUDA's calls for memory and copies.
 *
 * An allocation is filled with NaNs and ends before an unmapped page. The device's begin at a multiple of 256 bytes
 * and end less than 256 bytes before that page, pinned memory begins with a page; the bytes between its end and the
 * page must keep their value. Addresses are used again only when all have been. */
#include "block.h"
#include "faults.h"
#include "graphs.h"
#include "host.h"
#include "memory.h"
#include "race.h"
#include "streams.h"
#include "thread.h"
#include <atomic>
#include <map>
#include <mutex>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const size_t PAGE = 4096, ALIGN = 256;
static const unsigned char BEHIND = 0xfb; /* a NaN, too */

struct allocation {
    size_t nbytes;
    char *room; /* pages, followed by an unmapped one */
    size_t room_nbytes;
    int number;
};
struct space {
    const char *name;
    size_t n_addresses, align; /* of the begin of an allocation */
    sim_range range;
    char *at; /* where the last search for room ended */
    unsigned n_searches;
    std::map<char *, allocation> all;
};
static space device = {"device", (size_t)1 << 38, ALIGN, {}, nullptr, 0, {}},
             pinned = {"pinned", (size_t)1 << 36, PAGE, {}, nullptr, 0, {}};
static std::mutex memory_lock;
static std::atomic<size_t> n_allocated;
static int n_allocations;

/* ---- addresses -------------------------------------------------------------------------------------------------- */

static sim_range addresses_of(space *s)
{
    if (!s->range.from) {
        void *p = mmap(nullptr, s->n_addresses, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) sim_wrong("no room for the addresses of %s memory", s->name);
        s->at = static_cast<char *>(p);
        s->range = {s->at, s->at + s->n_addresses};
    }
    return s->range;
}
sim_range sim_device_memory() { return addresses_of(&device); }
sim_range sim_pinned_memory() { return addresses_of(&pinned); }

static bool is_of(const space *s, const void *p) { return p >= s->range.from && p < s->range.to; }
bool sim_is_device(const void *p) { return is_of(&device, p); }
bool sim_is_pinned(const void *p) { return is_of(&pinned, p); }

/* The allocation that contains p, or whose following page does; else the end of s->all. */
static std::map<char *, allocation>::iterator find(space *s, const void *p)
{
    auto found = s->all.upper_bound(static_cast<char *>(const_cast<void *>(p)));
    if (found == s->all.begin()) return s->all.end();
    --found;
    return p < found->second.room + found->second.room_nbytes ? found : s->all.end();
}

sim_place_name sim_name_place(const void *p)
{
    sim_place_name name;
    space *s = sim_is_device(p) ? &device : &pinned;
    const std::lock_guard<std::mutex> lock(memory_lock);
    const auto in = find(s, p);
    if (in == s->all.end())
        snprintf(name.text, sizeof name.text, "%p, where no %s memory is allocated", p, s->name);
    else
        snprintf(name.text, sizeof name.text, "byte %zd of allocation %d (%zu bytes of %s memory)",
                 static_cast<const char *>(p) - in->first, in->second.number, in->second.nbytes, s->name);
    return name;
}

/* ---- which processor may access device memory ------------------------------------------------------------------- */

sim_thread *sim_this_thread()
{
    static pthread_key_t key;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, [] { pthread_key_create(&key, free); });
    sim_thread *thread = static_cast<sim_thread *>(pthread_getspecific(key));
    if (thread) return thread;
    thread = static_cast<sim_thread *>(calloc(1, sizeof *thread));
    pthread_setspecific(key, thread);
    return thread;
}

/* -1: this processor has none. Threads that have not been registered may not use it. */
static int device_key()
{
    static const int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    return key;
}
void sim_be_the_device(bool on)
{
    const int depth = sim_this_thread()->device_depth += on ? 1 : -1;
    if (device_key() >= 0) pkey_set(device_key(), depth > 0 ? 0 : PKEY_DISABLE_ACCESS);
}
bool sim_is_the_device() { return sim_this_thread()->device_depth > 0; }

/* ---- allocations ------------------------------------------------------------------------------------------------ */

/* Pages that no allocation has, from where the last search ended; from the beginning now and then, for the kernel
 * counts pieces of memory that were protected apart, and has room for 65530 of them. */
static char *free_pages(space *s, size_t nbytes)
{
    enum { SEARCHES = 4096 };
    const sim_range range = addresses_of(s);
    if (++s->n_searches % SEARCHES == 0) s->at = range.from;
    for (bool again = false;;) {
        if (s->at + nbytes > range.to) {
            if (again) return nullptr;
            again = true;
            s->at = range.from;
        }
        auto next = s->all.lower_bound(s->at); /* the first that may overlap begins here or later, or its pages do */
        if (next == s->all.end() || next->second.room >= s->at + nbytes) break;
        s->at = next->second.room + next->second.room_nbytes;
    }
    char *pages = s->at;
    s->at += nbytes;
    return pages;
}

static void *allocate(space *s, size_t nbytes)
{
    const size_t used = (nbytes + ALIGN - 1) / ALIGN * ALIGN, pages = (used + PAGE - 1) / PAGE * PAGE;
    const std::lock_guard<std::mutex> lock(memory_lock);
    char *room = free_pages(s, pages + PAGE);
    const int key = s == &device ? device_key() : -1;
    if (!room || pkey_mprotect(room, pages, PROT_READ | PROT_WRITE, key)) return nullptr;
    const sim_as_device hands;
    char *at = room + (s->align < PAGE ? pages - used : 0);
    memset(at, 0xff, nbytes);
    memset(at + nbytes, BEHIND, (size_t)(room + pages - at) - nbytes);
    s->all[at] = {nbytes, room, pages + PAGE, ++n_allocations};
    host_watches_faults();
    return at;
}

static cudaError_t release(space *s, void *ptr)
{
    if (!ptr) return cudaSuccess;
    std::unique_lock<std::mutex> lock(memory_lock);
    const auto found = s->all.find(static_cast<char *>(ptr));
    if (found == s->all.end()) return cudaErrorInvalidValue;
    char *const from = found->first;
    const allocation a = found->second;
    lock.unlock(); /* a message names the allocation */
    streams_forget(from, a.nbytes);
    race_forget(from, a.nbytes);
    const sim_as_device hands;
    for (char *p = from + a.nbytes; p < a.room + a.room_nbytes - PAGE; p++)
        if ((unsigned char)*p != BEHIND)
            sim_wrong("byte %zd was written behind an allocation of %zu bytes", p - from - (ssize_t)a.nbytes, a.nbytes);
    madvise(a.room, a.room_nbytes - PAGE, MADV_DONTNEED);
    mprotect(a.room, a.room_nbytes - PAGE, PROT_NONE);
    lock.lock();
    if (s == &device) n_allocated -= a.nbytes;
    s->all.erase(from);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **ptr, size_t nbytes)
{
    SIM_PASSES("cudaMalloc");
    *ptr = nullptr;
    sim_uses_gpu("cudaMalloc");
    if (sim_captures()) return sim_fail(cudaErrorStreamCaptureUnsupported);
    if (nbytes == 0) return cudaSuccess;
    if (nbytes > SIM_DEVICE_NBYTES - n_allocated || !(*ptr = allocate(&device, nbytes)))
        return sim_fail(cudaErrorMemoryAllocation);
    n_allocated += nbytes;
    return cudaSuccess;
}
cudaError_t cudaFree(void *ptr)
{
    SIM_PASSES("cudaFree");
    if (sim_captures()) return sim_fail(cudaErrorStreamCaptureUnsupported);
    const cudaError_t error = release(&device, ptr);
    return error == cudaSuccess ? error : sim_fail(error);
}
cudaError_t cudaHostAlloc(void **ptr, size_t nbytes, unsigned)
{
    SIM_PASSES("cudaHostAlloc");
    sim_uses_gpu("cudaHostAlloc");
    if (sim_captures()) return sim_fail(cudaErrorStreamCaptureUnsupported);
    *ptr = allocate(&pinned, nbytes);
    return *ptr ? cudaSuccess : sim_fail(cudaErrorMemoryAllocation);
}
cudaError_t cudaMallocHost(void **ptr, size_t nbytes) { return cudaHostAlloc(ptr, nbytes, cudaHostAllocDefault); }
cudaError_t cudaFreeHost(void *ptr)
{
    SIM_PASSES("cudaFreeHost");
    const cudaError_t error = release(&pinned, ptr);
    return error == cudaSuccess ? error : sim_fail(error);
}
cudaError_t cudaMemGetInfo(size_t *left, size_t *total)
{
    SIM_PASSES("cudaMemGetInfo");
    sim_uses_gpu("cudaMemGetInfo");
    *total = SIM_DEVICE_NBYTES;
    *left = SIM_DEVICE_NBYTES - n_allocated;
    return cudaSuccess;
}

/* ---- copies ----------------------------------------------------------------------------------------------------- */

/* What a copy or a fill touches of memory that the device knows lies within one allocation. */
static void check_side(const char *what, const void *p, size_t nbytes)
{
    space *s = sim_is_device(p) ? &device : sim_is_pinned(p) ? &pinned : nullptr;
    if (!s) return;
    std::unique_lock<std::mutex> lock(memory_lock);
    const auto in = find(s, p);
    const bool inside = in != s->all.end() && static_cast<const char *>(p) + nbytes <= in->first + in->second.nbytes;
    lock.unlock();
    if (!inside) sim_wrong("%s of %zu bytes at %s: not all of it is allocated", what, nbytes, sim_name_place(p).text);
}

static bool kind_holds(const void *dst, const void *src, enum cudaMemcpyKind kind)
{
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice,
               from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    return kind == cudaMemcpyDefault || (sim_is_device(dst) == to_device && sim_is_device(src) == from_device);
}

/* Memory that is not pinned goes through a buffer of CUDA's: it may be used again when the call returns, and holds what
 * came from the device. */
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t nbytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    SIM_PASSES("cudaMemcpyAsync");
    if (!kind_holds(dst, src, kind)) return sim_fail(cudaErrorInvalidValue);
    if (sim_is_captured(stream) && (!sim_is_device(dst) || !sim_is_device(src)))
        sim_wrong("a copy from or to the host is captured: a graph is of device memory alone");
    if (sim_keep(stream, [=] { cudaMemcpyAsync(dst, src, nbytes, kind, stream); })) return cudaSuccess;
    check_side("a copy", src, nbytes);
    check_side("a copy", dst, nbytes);
    const char *name = sim_is_device(src) ? sim_is_device(dst) ? "copy" : "copy to the host" : "copy to the device";
    const stream_op op = streams_begin(stream, name, nullptr);
    streams_access(op, src, nbytes, false);
    streams_access(op, dst, nbytes, true);
    {
        const sim_as_device hands;
        memmove(dst, src, nbytes);
    }
    streams_end(op);
    return sim_is_device(dst) || sim_is_pinned(dst) ? cudaSuccess : cudaStreamSynchronize(stream);
}
cudaError_t cudaMemcpy(void *dst, const void *src, size_t nbytes, enum cudaMemcpyKind kind)
{
    const cudaError_t error = cudaMemcpyAsync(dst, src, nbytes, kind, nullptr);
    return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}
cudaError_t cudaMemsetAsync(void *dst, int value, size_t nbytes, cudaStream_t stream)
{
    SIM_PASSES("cudaMemsetAsync");
    if (sim_keep(stream, [=] { cudaMemsetAsync(dst, value, nbytes, stream); })) return cudaSuccess;
    check_side("a fill", dst, nbytes);
    const stream_op op = streams_begin(stream, "fill", nullptr);
    streams_access(op, dst, nbytes, true);
    {
        const sim_as_device hands;
        memset(dst, value, nbytes);
    }
    streams_end(op);
    return cudaSuccess;
}
