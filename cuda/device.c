/* device.c - the CUDA device: opening a GPU, its memory, streams, events and copies, and the table of operations. */
#include "cuda.h"
#include <stdlib.h>
#include <string.h>

#define MIB(nbytes) ((double)(nbytes) / (1024 * 1024))

dt_err cuda_fail(cudaError_t error, const char *call, const char *file, int line)
{
    const dt_err err = error == cudaErrorMemoryAllocation ? DT_ERR_MEMORY : DT_ERR_FAULT;
    return dt_fail(err, "%s: %s: %s (%s:%d)", call, cudaGetErrorName(error), cudaGetErrorString(error), file, line);
}

/* ---- streams and events ------------------------------------------------------------------------------------------ */

static dt_err open_stream(cuda_state *cuda, dt_stream *s)
{
    DT_CUDA(cudaStreamCreateWithFlags(&s->handle, cudaStreamNonBlocking));
    DT_CUDA(cudaMalloc(&s->workspace, CUDA_WORKSPACE_NBYTES));
    cuda->n_streams++;
    return DT_OK;
}

static void close_stream(cuda_state *cuda, dt_stream *s)
{
    if (s->workspace) {
        cudaFree(s->workspace);
        cuda->n_streams--;
    }
    if (s->handle) cudaStreamDestroy(s->handle);
    *s = (dt_stream){0};
}

static dt_err cuda_stream_create(dt_device *dev, dt_stream **stream)
{
    *stream = calloc(1, sizeof **stream);
    DT_CHECK(*stream, DT_ERR_MEMORY, "no memory for a stream");
    const dt_err err = open_stream(cuda_of(dev), *stream);
    if (err != DT_OK) {
        close_stream(cuda_of(dev), *stream);
        free(*stream);
        *stream = NULL;
    }
    return err;
}

static void cuda_stream_destroy(dt_device *dev, dt_stream *stream)
{
    if (!stream) return;
    close_stream(cuda_of(dev), stream);
    free(stream);
}

/* What fails on the device surfaces at some later call: the operation that was queued last is the nearest to it that is
 * known. CUDA_LAUNCH_BLOCKING=1 makes the place exact. */
static dt_err surfaced(cudaError_t error, const char *what, const char *last)
{
    if (error == cudaSuccess) return DT_OK;
    return dt_fail(DT_ERR_FAULT, "%s: %s: %s; the last operation queued was %s", what, cudaGetErrorName(error),
                   cudaGetErrorString(error), last ? last : "none");
}

static dt_err cuda_stream_sync(dt_device *dev, dt_stream *stream)
{
    const dt_stream *s = stream ? stream : &cuda_of(dev)->first;
    return surfaced(cudaStreamSynchronize(s->handle), "waiting for a stream of the GPU", s->last);
}

static dt_err cuda_event_create(dt_device *dev, dt_event **event)
{
    *event = calloc(1, sizeof **event);
    DT_CHECK(*event, DT_ERR_MEMORY, "no memory for an event");
    const cudaError_t error = cudaEventCreate(&(*event)->handle);
    if (error == cudaSuccess) return DT_OK;
    free(*event);
    *event = NULL;
    return cuda_fail(error, "cudaEventCreate", __FILE__, __LINE__);
}

static void cuda_event_destroy(dt_device *dev, dt_event *event)
{
    if (!event) return;
    cudaEventDestroy(event->handle);
    free(event);
}

static dt_err cuda_event_record(dt_device *dev, dt_event *event, dt_stream *stream)
{
    DT_CUDA(cudaEventRecord(event->handle, cuda_stream(dev, stream, "event_record")->handle));
    event->recorded = true;
    return DT_OK;
}

static dt_err cuda_event_wait(dt_device *dev, dt_event *event, dt_stream *stream)
{
    if (!event->recorded) return DT_OK;
    DT_CUDA(cudaStreamWaitEvent(cuda_stream(dev, stream, "event_wait")->handle, event->handle, 0));
    return DT_OK;
}

static dt_err cuda_event_sync(dt_device *dev, dt_event *event)
{
    if (!event->recorded) return DT_OK;
    return surfaced(cudaEventSynchronize(event->handle), "waiting for an event of the GPU", cuda_of(dev)->first.last);
}

static dt_err cuda_event_query(dt_device *dev, dt_event *event, bool *done)
{
    const cudaError_t state = event->recorded ? cudaEventQuery(event->handle) : cudaSuccess;
    *done = state == cudaSuccess;
    return state == cudaErrorNotReady ? DT_OK : surfaced(state, "asking for an event of the GPU", NULL);
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
    if (!cuda) return;
    cuda_products_close(cuda);
    close_stream(cuda, &cuda->first);
    free(cuda);
    dev->impl = NULL;
}

static bool cuda_is_there(char *why, size_t why_size)
{
    int n = 0;
    const cudaError_t error = cudaGetDeviceCount(&n);
    if (error == cudaSuccess && n > 0) return true;
    snprintf(why, why_size, "no GPU: %s", error == cudaSuccess ? "the driver sees none" : cudaGetErrorString(error));
    return false;
}

static dt_err open_gpu(cuda_state *cuda, int local_rank)
{
    int n = 0;
    char why[256];
    DT_CHECK(cuda_is_there(why, sizeof why), DT_ERR_USAGE, "run.device = cuda: %s", why);
    DT_CUDA(cudaGetDeviceCount(&n));
    cuda->ordinal = local_rank % n;
    DT_CUDA(cudaSetDevice(cuda->ordinal));
    DT_CUDA(cudaGetDeviceProperties(&cuda->properties, cuda->ordinal));
    DT_TRY(open_stream(cuda, &cuda->first));
    return cuda_products_open(cuda);
}

static dt_err cuda_open(dt_device *dev, int local_rank, int n_threads)
{
    cuda_state *cuda = calloc(1, sizeof *cuda);
    DT_CHECK(cuda, DT_ERR_MEMORY, "cuda device: %zu bytes of state", sizeof *cuda);
    dev->impl = cuda;
    const dt_err err = open_gpu(cuda, local_rank);
    if (err != DT_OK) cuda_close(dev);
    return err;
}

/* The GPU that is planned for may not be here: sizes do not depend on it. */
static dt_err cuda_plan(dt_device *dev, int n_threads)
{
    cuda_state *cuda = calloc(1, sizeof *cuda);
    DT_CHECK(cuda, DT_ERR_MEMORY, "cuda device: %zu bytes of state", sizeof *cuda);
    cuda->planning = true;
    cuda->properties.multiProcessorCount = 132;
    dev->impl = cuda;
    return DT_OK;
}

static void cuda_describe(const dt_device *dev, char *out, size_t out_size)
{
    const struct cudaDeviceProp *p = &cuda_of(dev)->properties;
    int runtime = 0, driver = 0;
    cudaRuntimeGetVersion(&runtime);
    cudaDriverGetVersion(&driver);
    snprintf(out, out_size, "%s, sm_%d%d, %.0f MiB, CUDA %d.%d (driver for %d.%d)", p->name, p->major, p->minor,
             MIB(p->totalGlobalMem), runtime / 1000, runtime % 1000 / 10, driver / 1000, driver % 1000 / 10);
}

static int cuda_n_devices(const dt_device *dev)
{
    int n = 0;
    return !cuda_of(dev)->planning && cudaGetDeviceCount(&n) == cudaSuccess && n > 0 ? n : 1;
}

static size_t cuda_memory_free(const dt_device *dev)
{
    size_t left = 0, total = 0;
    return !cuda_of(dev)->planning && cudaMemGetInfo(&left, &total) == cudaSuccess ? left : SIZE_MAX;
}

/* Streams of a run: the default one, compute and communication. What the driver takes for a context with our kernels is
 * not known before it is there. */
static size_t cuda_overhead(const dt_device *dev)
{
    enum { STREAMS = 3 };
    const int n = cuda_of(dev)->planning ? STREAMS : cuda_of(dev)->n_streams;
    return (size_t)n * CUDA_WORKSPACE_NBYTES;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static dt_err cuda_alloc(dt_device *dev, dt_place place, size_t nbytes, void **ptr)
{
    cudaError_t error = cudaSuccess;
    if (place == DT_ON_DEVICE)
        error = cudaMalloc(ptr, nbytes);
    else if (place == DT_ON_PINNED)
        error = cudaHostAlloc(ptr, nbytes, cudaHostAllocDefault);
    else if (posix_memalign(ptr, 64, nbytes) != 0)
        error = cudaErrorMemoryAllocation;
    if (error == cudaSuccess) return DT_OK;
    if (error == cudaErrorMemoryAllocation) (void)cudaGetLastError(); /* not an error of the next operation, too */
    return error == cudaErrorMemoryAllocation ? DT_ERR_MEMORY : cuda_fail(error, "alloc", __FILE__, __LINE__);
}

static void cuda_free(dt_device *dev, dt_place place, void *ptr, size_t nbytes)
{
    if (place == DT_ON_DEVICE)
        cudaFree(ptr);
    else if (place == DT_ON_PINNED)
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

static dt_err cuda_zero(dt_device *dev, void *dst, size_t nbytes, dt_stream *stream)
{
    if (nbytes == 0) return DT_OK;
    DT_CUDA(cudaMemsetAsync(dst, 0, nbytes, cuda_stream(dev, stream, "zero")->handle));
    return DT_OK;
}

/* The one name that the program looks up. */
extern const dt_device_ops dt_device_cuda_ops;
const dt_device_ops dt_device_cuda_ops = {
    .name = "cuda",
    .is_there = cuda_is_there,
    .open = cuda_open,
    .plan = cuda_plan,
    .close = cuda_close,
    .describe = cuda_describe,
    .own_memory = true,
    .n_devices = cuda_n_devices,
    .memory_free = cuda_memory_free,
    .overhead = cuda_overhead,
    .alloc = cuda_alloc,
    .free = cuda_free,
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
    .copy = cuda_copy,
    .zero = cuda_zero,
    .convert = cuda_convert,
    .add_into = cuda_add_into,
    .add = cuda_add,
    .gather_rows = cuda_gather_rows,
    .scatter_rows = cuda_scatter_rows,
    .matmul = cuda_matmul,
    .bias_backward = cuda_bias_backward,
    .embedding_forward = cuda_embedding_forward,
    .embedding_backward = cuda_embedding_backward,
    .rmsnorm_forward = cuda_rmsnorm_forward,
    .rmsnorm_backward = cuda_rmsnorm_backward,
    .layernorm_forward = cuda_layernorm_forward,
    .layernorm_backward = cuda_layernorm_backward,
    .norm_scratch_elems = cuda_norm_scratch_elems,
    .rope = cuda_rope,
    .attention_forward = cuda_attention_forward,
    .attention_backward = cuda_attention_backward,
    .attention_scratch_elems = cuda_attention_scratch_elems,
    .act_forward = cuda_act_forward,
    .act_backward = cuda_act_backward,
    .glu_forward = cuda_glu_forward,
    .glu_backward = cuda_glu_backward,
    .dropout = cuda_dropout,
    .classifier = cuda_classifier,
    .classifier_rows = cuda_classifier_rows,
    .draw_tokens = cuda_draw_tokens,
    .draw_scratch_nbytes = cuda_draw_scratch_nbytes,
    .top_tokens = cuda_top_tokens,
    .log_softmax_at = cuda_log_softmax_at,
    .adamw_step = cuda_adamw_step,
    .sgd_step = cuda_sgd_step,
    .sum_squares = cuda_sum_squares,
    .abs_max = cuda_abs_max,
    .sum_squares_fixed = cuda_sum_squares_fixed,
};
