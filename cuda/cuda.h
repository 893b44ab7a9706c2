/* cuda.h - shared by the files of the CUDA device: its state, streams, the check of runtime calls, and the operations
 * of the table in cuda_device.c. C and CUDA sources include it.
 *
 * The device is a separate shared object (libdtrain_cuda.so). src/device/device.c opens it when a GPU is requested. It
 * uses the program's errors and log. */
#ifndef DTRAIN_CUDA_H
#define DTRAIN_CUDA_H

#include <cuda_runtime_api.h>
#ifdef __cplusplus
#include <stdarg.h>
#include <stdio.h>
extern "C" {
#endif
#include "dtrain/device/device.h"
#include "dtrain/device/device_check.h"
#include "dtrain/device/gpu_sizes.h"

/* Operations of a stream run one after the other, so they share its workspace. */
struct dt_stream {
    cudaStream_t handle;
    void *workspace;  /* [DT_GPU_WORKSPACE_NBYTES] */
    const char *last; /* name of the last queued operation, for messages */
};

struct dt_event {
    cudaEvent_t handle;
    bool recorded;
    const char *last; /* name of the operation before it */
};

/** An event with a known time on the host's clock, and the event that will replace it (seeing.c). */
typedef struct cuda_clock {
    cudaEvent_t event, next;
    double at_s;
} cuda_clock;

typedef struct cuda_state {
    int ordinal; /* index of the GPU among those visible to the process */
    struct cudaDeviceProp properties;
    bool planning;
    bool blocking;                /* waiting threads sleep instead of spinning */
    int n_threads;                /* host threads, for messages */
    dt_stream first;              /* the default stream, which is not CUDA's legacy stream */
    struct cuda_matmuls *matmuls; /* matmul.cu */
    struct cuda_cudnn *cudnn;     /* attention_cudnn.c; NULL: not requested */
    cuda_clock clock;
    bool in_range;      /* a profiler range is open */
    size_t free_before; /* free bytes of the GPU before this process had a context; SIZE_MAX: unknown */
} cuda_state;

static inline cuda_state *cuda_of(const dt_device *dev) { return (cuda_state *)dev->impl; }

/** The last operation that the process queued, on any stream. */
extern const char *cuda_last_operation;

/** Returns the stream (NULL: the default one), and records op as its last operation. */
static inline dt_stream *cuda_stream(const dt_device *dev, dt_stream *stream, const char *op)
{
    dt_stream *s = stream ? stream : &cuda_of(dev)->first;
    s->last = op;
    __atomic_store_n(&cuda_last_operation, op, __ATOMIC_RELAXED);
    return s;
}

/** Has the GPU failed permanently with this error? */
bool cuda_is_lost(cudaError_t error);
/** Record a runtime error: the call, the error's name and text. Returns DT_ERR_MEMORY for out of memory, else
 *  DT_ERR_FAULT. Any call may return the error of earlier queued work. */
dt_err cuda_fail(cudaError_t error, const char *call, const char *file, int line);

#define DT_CUDA(call)                                                                                                  \
    do {                                                                                                               \
        const cudaError_t dt_c_ = (call);                                                                              \
        if (dt_c_ != cudaSuccess) return cuda_fail(dt_c_, #call, __FILE__, __LINE__);                                  \
    } while (0)

/** After an operation's launches: return an error if a launch failed. */
#define CUDA_LAUNCHED() DT_CUDA(cudaGetLastError())

/* matmul.cu */
dt_err cuda_matmuls_open(cuda_state *cuda);
void cuda_matmuls_close(cuda_state *cuda);
size_t cuda_matmuls_version(const cuda_state *cuda); /* version of the library; 0: none */
bool cuda_distrust(dt_device *dev, const dt_matmul *mm);

/* ---- the table: see dtrain/device/device.h ----------------------------------------------------------------------- */

#define DT_OP(op, ...) dt_err cuda_##op DT_OP_PARAMS(__VA_ARGS__);
#include "dtrain/device/op_list.h"

/* attention_cudnn.c */
dt_err cuda_attention_prepare(dt_device *dev, const dt_attention *at, bool backward, int *ready, char *why,
                              size_t why_size);

/* graph.c */
dt_err cuda_graph_begin(dt_device *dev, dt_stream *stream);
dt_err cuda_graph_end(dt_device *dev, dt_stream *stream, dt_graph **graph);
dt_err cuda_graph_launch(dt_device *dev, dt_graph *graph, dt_stream *stream);
void cuda_graph_destroy(dt_device *dev, dt_graph *graph);

/* seeing.c */
dt_err cuda_clock_open(cuda_state *cuda);
void cuda_clock_close(cuda_state *cuda);
dt_err cuda_event_time(dt_device *dev, dt_event *event, double *at_s);
void cuda_range(dt_device *dev, const char *what, const char *unit);
/** Free bytes of a GPU, without a context; SIZE_MAX: unknown. */
size_t cuda_memory_seen(int ordinal);
size_t cuda_memory_taken(const dt_device *dev);

/** norm.cu: maximum number of blocks with partial sums in a norm's scratch. */
int64_t cuda_norm_parts(const dt_device *dev);

#ifdef __cplusplus
}
#endif
#endif
