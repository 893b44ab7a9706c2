/* cuda.h - shared by the files of the CUDA device: its state, streams, the check of runtime calls, and the operations
 * of the table in cuda_device.c. Read by C and CUDA sources.
 *
 * The device is a separate shared object (libdtrain_cuda.so), which src/device/device.c opens when a GPU is requested.
 * It uses the program's errors and log. */
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

/** An event whose time on the host's clock is known, and its successor (seeing.c). */
typedef struct cuda_clock {
    cudaEvent_t event, next;
    double at_s;
} cuda_clock;

typedef struct cuda_state {
    int ordinal; /* of the device, among those visible to the process */
    struct cudaDeviceProp properties;
    bool planning;
    bool blocking;                /* waiting threads sleep instead of spinning */
    int n_threads;                /* of the host, for messages */
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

/** The stream of an operation, which is recorded as its last. */
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

/** After the launches of an operation: return an error if one was not possible. */
#define CUDA_LAUNCHED() DT_CUDA(cudaGetLastError())

/* matmul.cu */
dt_err cuda_matmuls_open(cuda_state *cuda);
void cuda_matmuls_close(cuda_state *cuda);
size_t cuda_matmuls_version(const cuda_state *cuda); /* version of the library; 0: none */
bool cuda_distrust(dt_device *dev, const dt_matmul *mm);

/* ---- the table: see dtrain/device/device.h ----------------------------------------------------------------------- */

/* graph.c */
dt_err cuda_graph_begin(dt_device *dev, dt_stream *stream);
dt_err cuda_graph_end(dt_device *dev, dt_stream *stream, dt_graph **graph);
dt_err cuda_graph_launch(dt_device *dev, dt_graph *graph, dt_stream *stream);
void cuda_graph_destroy(dt_device *dev, dt_graph *graph);

/* elementwise.cu */
dt_err cuda_convert(dt_device *dev, const void *src, dt_dtype src_dt, void *dst, dt_dtype dst_dt, int64_t n,
                    dt_stream *stream);
dt_err cuda_add_into(dt_device *dev, const void *src, dt_dtype src_dt, void *dst, dt_dtype dst_dt, bool accumulate,
                     int64_t n, dt_stream *stream);
dt_err cuda_add(dt_device *dev, const void *a, const void *b, void *c, dt_dtype dt, int64_t n, dt_stream *stream);
dt_err cuda_scale(dt_device *dev, const void *x, float factor, void *y, dt_dtype dt, int64_t n, dt_stream *stream);
dt_err cuda_gather_rows(dt_device *dev, const void *src, const int32_t *index, void *dst, int64_t n_rows, int64_t width,
                        dt_dtype dt, dt_stream *stream);
dt_err cuda_scatter_rows(dt_device *dev, const void *src, const int32_t *index, void *dst, int64_t n_rows,
                         int64_t width, dt_dtype dt, dt_stream *stream);
dt_err cuda_act_forward(dt_device *dev, dt_activation act, const void *x, void *y, dt_dtype dt, int64_t n,
                        dt_stream *stream);
dt_err cuda_act_backward(dt_device *dev, dt_activation act, const void *x, const void *dy, void *dx, dt_dtype dt,
                         int64_t n, dt_stream *stream);
dt_err cuda_glu_forward(dt_device *dev, dt_activation act, const void *gate_up, void *y, dt_dtype dt, int64_t n_rows,
                        int64_t width, dt_stream *stream);
dt_err cuda_glu_backward(dt_device *dev, dt_activation act, const void *gate_up, const void *dy, void *dgate_up,
                         dt_dtype dt, int64_t n_rows, int64_t width, dt_stream *stream);
dt_err cuda_dropout(dt_device *dev, const void *x, const void *addend, void *y, float p, uint64_t key,
                    const uint64_t *token_key, int64_t n_tok, int64_t width, dt_dtype dt, dt_stream *stream);
dt_err cuda_bias_backward(dt_device *dev, const void *dy, int64_t m, int64_t n, int64_t ld, dt_dtype dt, void *dbias,
                          dt_dtype gt, bool accumulate, dt_stream *stream);

/* seeing.c */
dt_err cuda_clock_open(cuda_state *cuda);
void cuda_clock_close(cuda_state *cuda);
dt_err cuda_event_time(dt_device *dev, dt_event *event, double *at_s);
void cuda_range(dt_device *dev, const char *what, const char *unit);
/** Free bytes of a GPU, without a context; SIZE_MAX: unknown. */
size_t cuda_memory_seen(int ordinal);
size_t cuda_memory_taken(const dt_device *dev);

/* heads.cu */
dt_err cuda_heads_forward(dt_device *dev, const dt_heads *h, const void *x, void *q, void *k, void *v, float *rstd_q,
                          float *rstd_k, dt_stream *stream);
dt_err cuda_heads_backward(dt_device *dev, const dt_heads *h, const void *x, const float *rstd_q, const float *rstd_k,
                           void *dq, void *dk, void *dq_norm, void *dk_norm, dt_dtype gt, bool accumulate,
                           float *scratch, dt_stream *stream);

/* patches.cu */
dt_err cuda_patches(dt_device *dev, const dt_patches *p, const uint8_t *pixels, void *out, dt_stream *stream);

/* embedding.cu */
dt_err cuda_embedding_forward(dt_device *dev, const int32_t *token, const int32_t *pos, const void *wte,
                              const void *wpe, void *out, int64_t n_tok, int64_t width, dt_dtype dt, dt_stream *stream);
dt_err cuda_embedding_backward(dt_device *dev, const void *dout, const int32_t *id, const int32_t *order,
                               void *table_grad, int64_t n_tok, int64_t width, dt_dtype dt, dt_dtype gt,
                               dt_stream *stream);

/* norm.cu */
dt_err cuda_rmsnorm_forward(dt_device *dev, const void *x, const void *weight, void *y, float *rstd, int64_t n_rows,
                            int64_t width, int64_t group, int64_t group_ld, int64_t y_group_ld, float eps, dt_dtype dt,
                            dt_stream *stream);
dt_err cuda_rmsnorm_backward(dt_device *dev, const void *x, const void *weight, const float *rstd, const void *dy,
                             void *dx, bool add_to_dx, void *dweight, dt_dtype gt, bool accumulate, int64_t n_rows,
                             int64_t width, int64_t group, int64_t group_ld, int64_t y_group_ld, float *scratch,
                             dt_dtype dt, dt_stream *stream);
dt_err cuda_layernorm_forward(dt_device *dev, const void *x, const void *weight, const void *bias, void *y, float *mean,
                              float *rstd, int64_t n_rows, int64_t width, float eps, dt_dtype dt, dt_stream *stream);
dt_err cuda_layernorm_backward(dt_device *dev, const void *x, const void *weight, const float *mean, const float *rstd,
                               const void *dy, void *dx, bool add_to_dx, void *dweight, void *dbias, dt_dtype gt,
                               bool accumulate, int64_t n_rows, int64_t width, float *scratch, dt_dtype dt,
                               dt_stream *stream);
/** Maximum number of blocks with partial sums in a norm's scratch. */
int64_t cuda_norm_parts(const dt_device *dev);

/* matmul.cu */
dt_err cuda_matmul(dt_device *dev, const dt_matmul *mm, const void *a, const void *b, void *c, dt_stream *stream);

/* attention.cu */
dt_err cuda_attention_forward(dt_device *dev, const dt_attention *at, const void *q, const void *k, const void *v,
                              void *out, float *lse, dt_stream *stream);
dt_err cuda_attention_backward(dt_device *dev, const dt_attention *at, const void *q, const void *k, const void *v,
                               const void *out, const float *lse, const void *dout, void *dq, void *dk, void *dv,
                               float *scratch, dt_stream *stream);
dt_err cuda_attention_prepare(dt_device *dev, const dt_attention *at, bool backward, int *ready, char *why,
                              size_t why_size);

/* classifier.cu, tokens.cu */
dt_err cuda_classifier(dt_device *dev, const dt_classifier *cl, float *logits, dt_stream *stream);
dt_err cuda_draw_tokens(dt_device *dev, const dt_token_rows *rows, const dt_choice *how, const float *logits,
                        const double *uniform, int32_t *token, void *scratch, dt_stream *stream);
dt_err cuda_top_tokens(dt_device *dev, const dt_token_rows *rows, const float *logits, int64_t k, int32_t *token,
                       float *logit, dt_stream *stream);
dt_err cuda_log_softmax_at(dt_device *dev, const dt_token_rows *rows, const float *logits, double inv_temperature,
                           int64_t k, const int32_t *token, double *logp, dt_stream *stream);

/* optimizer.cu */
dt_err cuda_adamw_step(dt_device *dev, const dt_adamw *opt, const void *grad, dt_dtype gt, float *master, float *m,
                       float *v, void *param, dt_dtype param_dt, int64_t n, dt_stream *stream);
dt_err cuda_sgd_step(dt_device *dev, const dt_sgd *opt, const void *grad, dt_dtype gt, float *master, float *momentum,
                     void *param, dt_dtype param_dt, int64_t n, dt_stream *stream);
dt_err cuda_sum_squares(dt_device *dev, const void *x, dt_dtype dt, int64_t n, double *result, dt_stream *stream);
dt_err cuda_abs_max(dt_device *dev, const void *x, dt_dtype dt, int64_t n, float *result, dt_stream *stream);
dt_err cuda_sum_squares_fixed(dt_device *dev, const void *x, dt_dtype dt, int64_t n, int shift, uint64_t result[2],
                              dt_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
