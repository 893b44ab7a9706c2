/* runtime.cc - twins of CUDA's runtime: one device, memory that is full of NaNs and ends at a page that is not there,
 * streams that do at once what they are given. */
#include "block.h"
#include "race.h"
#include <atomic>
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* ---- errors ----------------------------------------------------------------------------------------------------- */

static std::atomic<int> last_error;

void sim_set_error(cudaError_t error) { last_error = error; }

static cudaError_t fail(cudaError_t error)
{
    sim_set_error(error);
    return error;
}

cudaError_t cudaGetLastError(void) { return static_cast<cudaError_t>(last_error.exchange(cudaSuccess)); }
cudaError_t cudaPeekAtLastError(void) { return static_cast<cudaError_t>(last_error.load()); }

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "cudaSuccess";
    case cudaErrorInvalidValue:
        return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
        return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidMemcpyDirection:
        return "cudaErrorInvalidMemcpyDirection";
    case cudaErrorInvalidResourceHandle:
        return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
        return "cudaErrorNotReady";
    case cudaErrorLaunchFailure:
        return "cudaErrorLaunchFailure";
    case cudaErrorNotSupported:
        return "cudaErrorNotSupported";
    default:
        return "an error that nothing here returns";
    }
}
const char *cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

/* ---- the device ------------------------------------------------------------------------------------------------- */

static const size_t DEVICE_NBYTES = (size_t)16 << 30;
static std::atomic<size_t> n_allocated;

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaInitDevice(int device, unsigned, unsigned) { return cudaSetDevice(device); }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : fail(cudaErrorInvalidValue); }
cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

/* An H100's limits, and few multiprocessors: kernels that launch some blocks for each should not need minutes. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    if (device != 0) return fail(cudaErrorInvalidValue);
    *p = {};
    snprintf(p->name, sizeof p->name, "simulated GPU");
    const int pid = getpid(); /* each process has one of its own */
    memcpy(p->uuid.bytes, &pid, sizeof pid);
    p->totalGlobalMem = DEVICE_NBYTES;
    p->sharedMemPerBlock = SHARED_USUAL;
    p->sharedMemPerBlockOptin = SHARED_MOST;
    p->sharedMemPerMultiprocessor = 228 << 10;
    p->regsPerBlock = 65536;
    p->warpSize = WARP;
    p->maxThreadsPerBlock = MAX_THREADS;
    p->maxThreadsPerMultiProcessor = 2048;
    p->major = 9;
    p->multiProcessorCount = 4;
    p->l2CacheSize = 50 << 20;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    struct cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, device) != cudaSuccess) return cudaErrorInvalidValue;
    switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = SHARED_USUAL;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = SHARED_MOST;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = p.multiProcessorCount;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = p.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = p.minor;
        break;
    }
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *id, int len, int)
{
    snprintf(id, (size_t)len, "0000:00:00.0");
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) { return cudaRuntimeGetVersion(version); }
cudaError_t cudaMemGetInfo(size_t *left, size_t *total)
{
    *total = DEVICE_NBYTES;
    *left = DEVICE_NBYTES - n_allocated;
    return cudaSuccess;
}

/* ---- launches --------------------------------------------------------------------------------------------------- */

static std::mutex allowed_lock;
static std::map<const void *, int> allowed; /* dynamic shared memory that kernels may have */

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || value > SHARED_MOST) return fail(cudaErrorInvalidValue);
    const std::lock_guard<std::mutex> lock(allowed_lock);
    allowed[kernel] = value;
    return cudaSuccess;
}

cudaError_t sim_check_launch(const sim_launch &l)
{
    const std::lock_guard<std::mutex> lock(allowed_lock);
    const auto asked = allowed.find(l.kernel);
    const int shared = asked == allowed.end() || asked->second < SHARED_USUAL ? (int)SHARED_USUAL : asked->second;
    if (l.grid.x == 0 || l.grid.y == 0 || l.grid.z == 0 || l.grid.x > 0x7fffffffu || l.grid.y > 65535 ||
        l.grid.z > 65535 || l.threads < 1 || l.threads > MAX_THREADS)
        return cudaErrorInvalidConfiguration;
    return l.shared_nbytes <= (size_t)shared ? cudaSuccess : cudaErrorInvalidValue;
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

/* Device memory is a range of addresses. An allocation is filled with NaNs, begins at a multiple of 256 bytes, and ends
 * less than 256 bytes before a page that is not there; those bytes must keep their value. Addresses are used again only
 * when all have been. */
struct allocation {
    size_t nbytes;
    char *room; /* pages, with one behind that is not there */
    size_t room_nbytes;
};
static std::mutex memory_lock;
static std::map<char *, allocation> memory;
static const size_t PAGE = 4096, ALIGN = 256, ADDRESSES = (size_t)1 << 38;
static const unsigned char BEHIND = 0xfb; /* a NaN, too */

sim_range sim_device_memory()
{
    static char *from;
    if (!from) {
        void *p = mmap(nullptr, ADDRESSES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) sim_wrong("no room for the addresses of device memory");
        from = static_cast<char *>(p);
    }
    return {from, from + ADDRESSES};
}

/* Pages that no allocation has, from where the last search ended. */
static char *free_pages(size_t nbytes)
{
    static char *at;
    const sim_range range = sim_device_memory();
    if (!at) at = range.from;
    for (bool again = false;;) {
        if (at + nbytes > range.to) {
            if (again) return nullptr;
            again = true;
            at = range.from;
        }
        auto next = memory.upper_bound(at); /* the first that may lie in the way begins behind at, or its room does */
        if (next == memory.end() || next->second.room >= at + nbytes) break;
        at = next->second.room + next->second.room_nbytes;
    }
    char *pages = at;
    at += nbytes;
    return pages;
}

cudaError_t cudaMalloc(void **ptr, size_t nbytes)
{
    *ptr = nullptr;
    if (nbytes == 0) return cudaSuccess;
    if (nbytes > DEVICE_NBYTES - n_allocated) return fail(cudaErrorMemoryAllocation);
    const size_t used = (nbytes + ALIGN - 1) / ALIGN * ALIGN, pages = (used + PAGE - 1) / PAGE * PAGE;
    const std::lock_guard<std::mutex> lock(memory_lock);
    char *room = free_pages(pages + PAGE);
    if (!room || mprotect(room, pages, PROT_READ | PROT_WRITE)) return fail(cudaErrorMemoryAllocation);
    char *at = room + pages - used;
    memset(at, 0xff, nbytes);
    memset(at + nbytes, BEHIND, used - nbytes);
    n_allocated += nbytes;
    memory[at] = {nbytes, room, pages + PAGE};
    *ptr = at;
    return cudaSuccess;
}

cudaError_t cudaFree(void *ptr)
{
    if (!ptr) return cudaSuccess;
    const std::lock_guard<std::mutex> lock(memory_lock);
    const auto found = memory.find(static_cast<char *>(ptr));
    if (found == memory.end()) return fail(cudaErrorInvalidValue);
    const allocation a = found->second;
    const size_t used = (a.nbytes + ALIGN - 1) / ALIGN * ALIGN;
    for (size_t i = a.nbytes; i < used; i++)
        if ((unsigned char)found->first[i] != BEHIND)
            sim_wrong("byte %zu was written behind an allocation of %zu bytes", i - a.nbytes, a.nbytes);
    race_forget(found->first, a.nbytes);
    madvise(a.room, a.room_nbytes - PAGE, MADV_DONTNEED);
    mprotect(a.room, a.room_nbytes - PAGE, PROT_NONE);
    n_allocated -= a.nbytes;
    memory.erase(found);
    return cudaSuccess;
}

static std::map<char *, size_t> pinned;

bool sim_is_pinned(const void *p)
{
    const std::lock_guard<std::mutex> lock(memory_lock);
    auto above = pinned.upper_bound(const_cast<char *>(static_cast<const char *>(p)));
    return above != pinned.begin() && static_cast<const char *>(p) < (--above)->first + above->second;
}

cudaError_t cudaHostAlloc(void **ptr, size_t nbytes, unsigned)
{
    if (posix_memalign(ptr, PAGE, nbytes ? nbytes : 1) != 0) return fail(cudaErrorMemoryAllocation);
    memset(*ptr, 0xff, nbytes);
    const std::lock_guard<std::mutex> lock(memory_lock);
    pinned[static_cast<char *>(*ptr)] = nbytes;
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **ptr, size_t nbytes) { return cudaHostAlloc(ptr, nbytes, cudaHostAllocDefault); }
cudaError_t cudaFreeHost(void *ptr)
{
    const std::lock_guard<std::mutex> lock(memory_lock);
    pinned.erase(static_cast<char *>(ptr));
    free(ptr);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr)
{
    const std::lock_guard<std::mutex> lock(memory_lock);
    auto above = memory.upper_bound(const_cast<char *>(static_cast<const char *>(ptr)));
    *attributes = {};
    if (above == memory.begin()) return cudaSuccess;
    --above;
    if (static_cast<const char *>(ptr) < above->first + above->second.nbytes) {
        attributes->type = cudaMemoryTypeDevice;
        attributes->devicePointer = const_cast<void *>(ptr);
    }
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t nbytes, enum cudaMemcpyKind)
{
    memmove(dst, src, nbytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t nbytes, enum cudaMemcpyKind kind, cudaStream_t)
{
    return cudaMemcpy(dst, src, nbytes, kind);
}
cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t)
{
    if (width > dst_pitch || width > src_pitch) return fail(cudaErrorInvalidValue);
    for (size_t i = 0; i < height; i++)
        cudaMemcpy(static_cast<char *>(dst) + i * dst_pitch, static_cast<const char *>(src) + i * src_pitch, width,
                   kind);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *dst, int value, size_t nbytes, cudaStream_t)
{
    memset(dst, value, nbytes);
    return cudaSuccess;
}

/* ---- streams and events ----------------------------------------------------------------------------------------- */

struct cudaStreamOfSim {
    unsigned flags;
};
struct cudaEventOfSim {
    struct timespec at;
    bool timed;
};

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    *stream = new cudaStreamOfSim{flags};
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int)
{
    return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t event, unsigned)
{
    return event ? cudaSuccess : fail(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    *event = new cudaEventOfSim{{}, !(flags & cudaEventDisableTiming)};
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t)
{
    clock_gettime(CLOCK_MONOTONIC, &event->at);
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    if (!from->timed || !to->timed) return fail(cudaErrorInvalidResourceHandle);
    *ms = (float)(to->at.tv_sec - from->at.tv_sec) * 1e3f + (float)(to->at.tv_nsec - from->at.tv_nsec) * 1e-6f;
    return cudaSuccess;
}
