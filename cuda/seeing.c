/* seeing.c - observation of the GPU: times of events on the host's clock, ranges for profilers (NVTX), and memory that
 * the process uses in addition to its allocations. */
#include "cuda.h"
#include <dlfcn.h>
#include <math.h>

/* NVTX is header-only: it looks for a profiler on its first call, and costs a load and a branch if there is none. */
#if defined __has_include
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define HAVE_NVTX
#endif
#endif

/* ---- the clock --------------------------------------------------------------------------------------------------- */

/* The GPU has its own clock, and only reports times between two events, as floats. An event's time on the host's clock
 * is therefore recorded about every second: over a second, a float resolves better than the events do.
 *
 * The host notices an event some microseconds late, so the recorded time is an upper bound. The smallest bound is kept;
 * it may grow as fast as the clocks may drift apart. Errors are on the late side: nothing appears to begin before the
 * host queued it. */
#define RENEW_S 1.0
#define DRIFT 20e-6

static dt_err see_event(cuda_state *cuda, cudaEvent_t event, double *at_s)
{
    DT_CUDA(cudaEventRecord(event, cuda->first.handle));
    DT_CUDA(cudaEventSynchronize(event));
    *at_s = dt_now_s();
    return DT_OK;
}

static dt_err renew_clock(cuda_state *cuda)
{
    cuda_clock *c = &cuda->clock;
    float ms = 0;
    double seen_s;
    DT_TRY(see_event(cuda, c->next, &seen_s));
    DT_CUDA(cudaEventElapsedTime(&ms, c->event, c->next));
    c->at_s = fmin(seen_s, c->at_s + ms * 1e-3 * (1 + DRIFT));
    const cudaEvent_t before = c->event;
    c->event = c->next, c->next = before;
    return DT_OK;
}

dt_err cuda_clock_open(cuda_state *cuda)
{
    DT_CUDA(cudaEventCreateWithFlags(&cuda->clock.event, cudaEventDefault));
    DT_CUDA(cudaEventCreateWithFlags(&cuda->clock.next, cudaEventDefault));
    return see_event(cuda, cuda->clock.event, &cuda->clock.at_s);
}

void cuda_clock_close(cuda_state *cuda)
{
    if (cuda->clock.event) cudaEventDestroy(cuda->clock.event);
    if (cuda->clock.next) cudaEventDestroy(cuda->clock.next);
    cuda->clock = (cuda_clock){0};
}

dt_err cuda_event_time(dt_device *dev, dt_event *event, double *at_s)
{
    cuda_state *cuda = cuda_of(dev);
    float ms = 0;
    if (dt_now_s() - cuda->clock.at_s > RENEW_S) DT_TRY(renew_clock(cuda));
    DT_CUDA(cudaEventElapsedTime(&ms, cuda->clock.event, event->handle));
    *at_s = cuda->clock.at_s + ms * 1e-3;
    return DT_OK;
}

/* ---- profiler ranges --------------------------------------------------------------------------------------------- */

void cuda_range(dt_device *dev, const char *what, const char *unit)
{
#ifdef HAVE_NVTX
    cuda_state *cuda = cuda_of(dev);
    char text[128];
    if (!cuda) return;
    if (cuda->in_range) nvtxRangePop();
    cuda->in_range = what != NULL;
    if (!what) return;
    snprintf(text, sizeof text, "%s%s%s", what, unit && *unit ? " " : "", unit ? unit : "");
    nvtxRangePushA(text);
#endif
}

/* ---- free memory ------------------------------------------------------------------------------------------------- */

/* Without a context only the driver's management library, which is part of the driver, reports free memory. */
#ifndef DT_NVML
#define DT_NVML "libnvidia-ml.so.1"
#endif

typedef struct nvml_memory {
    unsigned long long total, free, used;
} nvml_memory;

typedef struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_bus)(const char *bus, void **device);
    int (*memory)(void *device, nvml_memory *memory);
} nvml;

static bool find_nvml(nvml *n)
{
    void *library = dlopen(DT_NVML, RTLD_LAZY | RTLD_LOCAL); /* stays open for later calls */
    if (!library) return false;
    *(void **)&n->init = dlsym(library, "nvmlInit_v2");
    *(void **)&n->shutdown = dlsym(library, "nvmlShutdown");
    *(void **)&n->by_bus = dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
    *(void **)&n->memory = dlsym(library, "nvmlDeviceGetMemoryInfo");
    return n->init && n->shutdown && n->by_bus && n->memory;
}

size_t cuda_memory_seen(int ordinal)
{
    nvml n;
    nvml_memory memory;
    void *device;
    char bus[32];
    size_t left = SIZE_MAX;
    if (!find_nvml(&n) || cudaDeviceGetPCIBusId(bus, sizeof bus, ordinal) != cudaSuccess || n.init() != 0)
        return SIZE_MAX;
    if (n.by_bus(bus, &device) == 0 && n.memory(device, &memory) == 0) left = (size_t)memory.free;
    n.shutdown();
    return left;
}

size_t cuda_memory_taken(const dt_device *dev)
{
    const cuda_state *cuda = cuda_of(dev);
    const size_t left = cuda->free_before < SIZE_MAX ? cuda_memory_seen(cuda->ordinal) : SIZE_MAX;
    return left < cuda->free_before ? cuda->free_before - left : SIZE_MAX;
}
