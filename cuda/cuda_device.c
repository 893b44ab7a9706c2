/* cuda_device.c - the CUDA device: opening a GPU, its memory, streams, events and copies, and its operations. */
#include "attention_cudnn.h"
#include <stdlib.h>
#include <string.h>

#define GIB(nbytes) ((double)(nbytes) / (1 << 30))

const char *cuda_last_operation;

/* Errors after which CUDA requires a new process, hardware errors, and unknown errors. Every later call returns the
 * error again, or hangs. */
bool cuda_is_lost(cudaError_t error)
{
    switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorExternalDevice:
    case cudaErrorMpsClientTerminated:
    case cudaErrorUnknown:
        return true;
    default:
        return false;
    }
}

#define FIND_THE_PLACE "set CUDA_LAUNCH_BLOCKING=1 in the environment to locate the operation"

dt_err cuda_fail(cudaError_t error, const char *call, const char *file, int line)
{
    const char *name = cudaGetErrorName(error), *words = cudaGetErrorString(error);
    const char *last = __atomic_load_n(&cuda_last_operation, __ATOMIC_RELAXED);
    if (cuda_is_lost(error))
        return dt_device_fail("the GPU failed in work queued before %s (%s:%d): %s: %s; the last operation queued was "
                              "%s; " FIND_THE_PLACE,
                              call, file, line, name, words, last ? last : "none");
    const dt_err err = error == cudaErrorMemoryAllocation ? DT_ERR_MEMORY : DT_ERR_FAULT;
    return dt_fail(err, "%s: %s: %s (%s:%d)", call, name, words, file, line);
}

/* ---- streams and events ------------------------------------------------------------------------------------------ */

/* The first allocation: it fails here if other processes use all memory. */
static dt_err alloc_workspace(dt_stream *s)
{
    char asked[24], left[24], all[24];
    size_t nbytes_left = 0, nbytes = 0;
    const cudaError_t error = cudaMalloc(&s->workspace, DT_GPU_WORKSPACE_NBYTES);
    if (error == cudaSuccess) return DT_OK;
    if (error != cudaErrorMemoryAllocation || cudaMemGetInfo(&nbytes_left, &nbytes) != cudaSuccess)
        return cuda_fail(error, "cudaMalloc", __FILE__, __LINE__);
    return dt_fail(DT_ERR_MEMORY,
                   "not enough cuda memory for a stream: %s requested, %s of %s free; nvidia-smi lists the processes "
                   "that use the rest",
                   dt_format_bytes(DT_GPU_WORKSPACE_NBYTES, asked), dt_format_bytes((double)nbytes_left, left),
                   dt_format_bytes((double)nbytes, all));
}

static dt_err open_stream(dt_stream *s)
{
    DT_CUDA(cudaStreamCreateWithFlags(&s->handle, cudaStreamNonBlocking));
    return alloc_workspace(s);
}

/* The GPU may hang: the process, which is about to end, releases everything. */
static bool is_lost(void) { return dt_device_failure() != NULL; }

static void close_stream(dt_stream *s)
{
    if (is_lost()) return;
    if (s->workspace) cudaFree(s->workspace);
    if (s->handle) cudaStreamDestroy(s->handle);
    *s = (dt_stream){0};
}

static dt_err cuda_stream_create(dt_device *dev, dt_stream **stream)
{
    *stream = calloc(1, sizeof **stream);
    DT_CHECK(*stream, DT_ERR_MEMORY, "out of memory for a stream");
    const dt_err err = open_stream(*stream);
    if (err != DT_OK) {
        close_stream(*stream);
        free(*stream);
        *stream = NULL;
    }
    return err;
}

static void cuda_stream_destroy(dt_device *dev, dt_stream *stream)
{
    if (!stream) return;
    close_stream(stream);
    free(stream);
}

/* Device errors are returned by a later call: the message names the last queued operation. */
static dt_err surfaced(cudaError_t error, const char *what, const char *last)
{
    char message[512];
    if (error == cudaSuccess) return DT_OK;
    snprintf(message, sizeof message, "%s: %s: %s; the last operation queued there was %s; " FIND_THE_PLACE, what,
             cudaGetErrorName(error), cudaGetErrorString(error), last ? last : "none");
    return cuda_is_lost(error) ? dt_device_fail("%s", message) : dt_fail(DT_ERR_FAULT, "%s", message);
}

/* Checked before waiting for the GPU. */
static dt_err not_lost(void)
{
    const char *failure = dt_device_failure();
    return failure ? dt_fail(DT_ERR_FAULT, "%s", failure) : DT_OK;
}

static dt_err cuda_stream_sync(dt_device *dev, dt_stream *stream)
{
    const dt_stream *s = stream ? stream : &cuda_of(dev)->first;
    DT_TRY(not_lost());
    return surfaced(cudaStreamSynchronize(s->handle), "waiting for a stream of the GPU", s->last);
}

static dt_err cuda_event_create(dt_device *dev, dt_event **event)
{
    *event = calloc(1, sizeof **event);
    DT_CHECK(*event, DT_ERR_MEMORY, "out of memory for an event");
    const cudaError_t error =
        cudaEventCreateWithFlags(&(*event)->handle, cuda_of(dev)->blocking ? cudaEventBlockingSync : cudaEventDefault);
    if (error == cudaSuccess) return DT_OK;
    free(*event);
    *event = NULL;
    return cuda_fail(error, "cudaEventCreate", __FILE__, __LINE__);
}

static void cuda_event_destroy(dt_device *dev, dt_event *event)
{
    if (!event) return;
    if (!is_lost()) cudaEventDestroy(event->handle);
    free(event);
}

static dt_err cuda_event_record(dt_device *dev, dt_event *event, dt_stream *stream)
{
    const dt_stream *s = stream ? stream : &cuda_of(dev)->first;
    DT_CUDA(cudaEventRecord(event->handle, s->handle));
    event->recorded = true;
    event->last = s->last;
    return DT_OK;
}

static dt_err cuda_event_wait(dt_device *dev, dt_event *event, dt_stream *stream)
{
    if (!event->recorded) return DT_OK;
    const dt_stream *s = stream ? stream : &cuda_of(dev)->first;
    DT_CUDA(cudaStreamWaitEvent(s->handle, event->handle, 0));
    return DT_OK;
}

static dt_err cuda_event_sync(dt_device *dev, dt_event *event)
{
    if (!event->recorded) return DT_OK;
    DT_TRY(not_lost());
    return surfaced(cudaEventSynchronize(event->handle), "waiting for an event of the GPU", event->last);
}

static dt_err cuda_event_query(dt_device *dev, dt_event *event, bool *done)
{
    const cudaError_t state = event->recorded ? cudaEventQuery(event->handle) : cudaSuccess;
    *done = state == cudaSuccess;
    if (state == cudaErrorNotReady) (void)cudaGetLastError(); /* not an error of the next launch */
    return state == cudaErrorNotReady ? DT_OK : surfaced(state, "querying an event of the GPU", event->last);
}

static dt_err cuda_event_elapsed_ms(dt_device *dev, dt_event *from, dt_event *to, float *ms)
{
    DT_CUDA(cudaEventElapsedTime(ms, from->handle, to->handle));
    return DT_OK;
}

/* ---- open, close ------------------------------------------------------------------------------------------------- */

static void cuda_close(dt_device *dev)
{
    cuda_state *cuda = cuda_of(dev);
    if (!cuda || is_lost()) return;
    cuda_cudnn_close(cuda);
    cuda_matmuls_close(cuda);
    cuda_clock_close(cuda);
    close_stream(&cuda->first);
    free(cuda);
    dev->impl = NULL;
}

/* The chips with machine code, as nvcc names them, in ascending order: "80 90 100". A newer chip uses the code of an
 * older chip of its family, or else the last chip's PTX. */
#ifndef DT_CUDA_ARCHS
#define DT_CUDA_ARCHS "80"
#endif

static bool is_new_enough(int ordinal, int n, char *why, size_t why_size)
{
    struct cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, ordinal) != cudaSuccess || 10 * p.major + p.minor >= atoi(DT_CUDA_ARCHS))
        return true;
    snprintf(why, why_size, "GPU %d is a %s (sm_%d%d), but this program was built for sm_%d and later%s", ordinal,
             p.name, p.major, p.minor, atoi(DT_CUDA_ARCHS),
             n > 1 ? "; exclude it by listing the others in CUDA_VISIBLE_DEVICES" : "");
    return false;
}

static void say_driver(cudaError_t error, char *why, size_t why_size)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int runtime = 0, driver = 0;
    cudaRuntimeGetVersion(&runtime);
    cudaDriverGetVersion(&driver);
    if (driver == 0)
        snprintf(why, why_size, "this machine has no NVIDIA driver");
    else if (error == cudaErrorInsufficientDriver)
        snprintf(why, why_size, "the driver supports CUDA %d.%d, but this program was built with CUDA %d.%d",
                 driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    else if (error == cudaSuccess || error == cudaErrorNoDevice)
        snprintf(why, why_size, "the driver shows no GPU%s%s", visible ? "; CUDA_VISIBLE_DEVICES=" : "",
                 visible ? visible : "");
    else
        snprintf(why, why_size, "%s: %s", cudaGetErrorName(error), cudaGetErrorString(error));
}

static bool cuda_is_there(char *why, size_t why_size)
{
    int n = 0;
    const cudaError_t error = cudaGetDeviceCount(&n);
    (void)cudaGetLastError();
    if (error != cudaSuccess) n = 0;
    if (n == 0) say_driver(error, why, why_size);
    for (int i = 0; i < n; i++)
        if (!is_new_enough(i, n, why, why_size)) return false;
    return n > 0;
}

/* The ranks of a node are assigned to its GPUs round robin. The runtime only counts visible GPUs, so it respects
 * CUDA_VISIBLE_DEVICES, and launchers that show each rank only its own GPU.
 *
 * A thread that waits for the GPU spins, and notices completion within a microsecond; sleeping takes tens. If the rank
 * has only one core, the thread sleeps, so that the prefetch and watchdog threads can run. */
static dt_err open_gpu(cuda_state *cuda, int local_rank)
{
    int n = 0;
    DT_CUDA(cudaGetDeviceCount(&n));
    cuda->ordinal = local_rank % n;
    DT_CUDA(cudaGetDeviceProperties(&cuda->properties, cuda->ordinal));
    cuda->free_before = cuda_memory_seen(cuda->ordinal);
    DT_CUDA(cudaInitDevice(cuda->ordinal, cuda->blocking ? cudaDeviceScheduleBlockingSync : cudaDeviceScheduleSpin,
                           cudaInitDeviceFlagsAreValid));
    DT_CUDA(cudaSetDevice(cuda->ordinal));
    DT_TRY(open_stream(&cuda->first));
    DT_TRY(cuda_clock_open(cuda));
    return cuda_matmuls_open(cuda);
}

static dt_err cuda_open(dt_device *dev, int local_rank, int n_threads)
{
    cuda_state *cuda = calloc(1, sizeof *cuda);
    DT_CHECK(cuda, DT_ERR_MEMORY, "cuda device: out of memory for %zu bytes of device state", sizeof *cuda);
    cuda->n_threads = n_threads > 0 ? n_threads : 1;
    cuda->blocking = n_threads == 1;
    dev->impl = cuda;
    const dt_err err = open_gpu(cuda, local_rank);
    if (err != DT_OK) cuda_close(dev);
    return err;
}

/* cuDNN can plan for an H100 without a GPU. */
static dt_err cuda_plan(dt_device *dev, int n_threads)
{
    cuda_state *cuda = calloc(1, sizeof *cuda);
    DT_CHECK(cuda, DT_ERR_MEMORY, "cuda device: out of memory for %zu bytes of device state", sizeof *cuda);
    cuda->planning = true;
    cuda->n_threads = n_threads;
    dev->impl = cuda;
    return DT_OK;
}

static void cuda_describe(const dt_device *dev, char *out, size_t out_size)
{
    const struct cudaDeviceProp *p = &cuda_of(dev)->properties;
    int runtime = 0, driver = 0;
    cudaRuntimeGetVersion(&runtime);
    cudaDriverGetVersion(&driver);
    snprintf(out, out_size, "%s (GPU %d, sm_%d%d, %.1f GiB), CUDA %d.%d, driver for %d.%d, %d host thread%s", p->name,
             cuda_of(dev)->ordinal, p->major, p->minor, GIB(p->totalGlobalMem), runtime / 1000, runtime % 1000 / 10,
             driver / 1000, driver % 1000 / 10, cuda_of(dev)->n_threads, cuda_of(dev)->n_threads == 1 ? "" : "s");
}

/* The driver's version, which the runtime does not report: "580.159.04". */
static void driver_version(char *out, size_t out_size)
{
    char line[512], *at = NULL;
    FILE *f = fopen("/proc/driver/nvidia/version", "re");
    *out = '\0';
    if (f && fgets(line, sizeof line, f)) at = strstr(line, "Kernel Module");
    if (f) fclose(f);
    if (at) snprintf(out, out_size, "%.*s", (int)strcspn(at, "\n"), at);
}

static void cuda_versions(const dt_device *dev, char *out, size_t out_size)
{
    const struct cudaDeviceProp *p = &cuda_of(dev)->properties;
    int runtime = 0, driver = 0;
    char module[256];
    cudaRuntimeGetVersion(&runtime);
    cudaDriverGetVersion(&driver);
    driver_version(module, sizeof module);
    *out = '\0';
    if (driver)
        snprintf(out, out_size, "%s, sm_%d%d, driver for CUDA %d %s, CUDA %d, cuBLASLt %zu", p->name, p->major,
                 p->minor, driver, module, runtime, cuda_matmuls_version(cuda_of(dev)));
}

static void cuda_kernels(const dt_device *dev, char *out, size_t out_size)
{
    snprintf(out, out_size, "%s, cuBLASLt %zu", cuda_of(dev)->properties.name, cuda_matmuls_version(cuda_of(dev)));
}

static const char *cuda_chip_name(const dt_device *dev) { return cuda_of(dev)->properties.name; }

static uint64_t cuda_identity(const dt_device *dev)
{
    uint64_t half[2];
    memcpy(half, &cuda_of(dev)->properties.uuid, sizeof half);
    const uint64_t id = dt_mix64(half[0] ^ dt_mix64(half[1]));
    return id ? id : 1;
}

static size_t cuda_memory_free(const dt_device *dev)
{
    size_t left = 0, total = 0;
    return !cuda_of(dev)->planning && cudaMemGetInfo(&left, &total) == cudaSuccess ? left : SIZE_MAX;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static dt_err cuda_alloc(dt_device *dev, dt_memspace space, size_t nbytes, void **ptr)
{
    const size_t most = space == DT_ON_DEVICE ? cuda_of(dev)->properties.totalGlobalMem : dt_host_memory_free();
    cudaError_t error = cudaSuccess;
    if (nbytes > most) return DT_ERR_MEMORY; /* host memory: an error message instead of the OOM killer */
    if (space == DT_ON_DEVICE)
        error = cudaMalloc(ptr, nbytes);
    else if (space == DT_ON_PINNED)
        error = cudaHostAlloc(ptr, nbytes, cudaHostAllocDefault);
    else if (posix_memalign(ptr, 64, nbytes) != 0)
        error = cudaErrorMemoryAllocation;
    if (error == cudaSuccess) return DT_OK;
    if (error == cudaErrorMemoryAllocation) (void)cudaGetLastError(); /* not an error of the next operation */
    return error == cudaErrorMemoryAllocation ? DT_ERR_MEMORY : cuda_fail(error, "alloc", __FILE__, __LINE__);
}

static void cuda_free(dt_device *dev, dt_memspace space, void *ptr, size_t nbytes)
{
    if (space != DT_ON_HOST && is_lost()) return;
    if (space == DT_ON_DEVICE)
        cudaFree(ptr);
    else if (space == DT_ON_PINNED)
        cudaFreeHost(ptr);
    else
        free(ptr);
}

static dt_err cuda_copy(dt_device *dev, void *dst, const void *src, size_t nbytes, dt_stream *stream)
{
    if (nbytes == 0 || dst == src) return DT_OK;
    DT_CUDA(cudaMemcpyAsync(dst, src, nbytes, cudaMemcpyDefault, cuda_stream(dev, stream, "copy")->handle));
    return DT_OK;
}

dt_err cuda_zero(dt_device *dev, void *dst, size_t nbytes, dt_stream *stream)
{
    if (nbytes == 0) return DT_OK;
    DT_CUDA(cudaMemsetAsync(dst, 0, nbytes, cuda_stream(dev, stream, "zero")->handle));
    return DT_OK;
}

/* The only symbol that the program looks up, and the headers it was compiled from. */
DT_OBJECT_INTERFACE(dt_device_cuda_ops);
extern const dt_device_ops dt_device_cuda_ops;
const dt_device_ops dt_device_cuda_ops = {
    .name = "cuda",
    .is_there = cuda_is_there,
    .open = cuda_open,
    .plan = cuda_plan,
    .close = cuda_close,
    .describe = cuda_describe,
    .kernels = cuda_kernels,
    .chip_name = cuda_chip_name,
    .versions = cuda_versions,
    .own_memory = true,
    .identity = cuda_identity,
    .memory_free = cuda_memory_free,
    .overhead = dt_gpu_overhead,
    .memory_taken = cuda_memory_taken,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .stream_nbytes = DT_GPU_WORKSPACE_NBYTES,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_sync = cuda_stream_sync,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_sync = cuda_event_sync,
    .event_query = cuda_event_query,
    .event_elapsed_ms = cuda_event_elapsed_ms,
    .event_time = cuda_event_time,
    .range = cuda_range,
    .graph_begin = cuda_graph_begin,
    .graph_end = cuda_graph_end,
    .graph_launch = cuda_graph_launch,
    .graph_destroy = cuda_graph_destroy,
    .copy = cuda_copy,
    .distrust = cuda_distrust,
    .attention_prepare = cuda_attention_prepare,
#define DT_OP(op, ...) .op = cuda_##op,
#define DT_SIZE(type, name, ...) .name = dt_gpu_##name,
#include "dtrain/device/op_list.h"
};
