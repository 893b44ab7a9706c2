/* cuda.h - what the files of the CUDA device share: its state, streams, the check around calls of the runtime, and the
 * operations behind the table in cuda_device.c. Read by C and by CUDA sources.
 *
 * The device is a shared object of its own (libdtrain_cuda.so), opened by src/device/device.c where a GPU is asked for;
 * errors and log are the program's. */
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

/* Operations of one stream follow each other, so they share its workspace. */
struct dt_stream {
    cudaStream_t handle;
    void *workspace;  /* [DT_GPU_WORKSPACE_NBYTES] */
    const char *last; /* name of the operation that was queued last: for the message of a fault */
};

struct dt_event {
    cudaEvent_t handle;
    bool recorded;
    const char *last; /* name of the operation in front of it */
};

/** An event whose time by the host's clock is known, and one to take its place (seeing.c). */
typedef struct cuda_clock {
    cudaEvent_t event, next;
    double at_s;
} cuda_clock;

typedef struct cuda_state {
    int ordinal; /* of the device, among those that the process sees */
    struct cudaDeviceProp properties;
    bool planning;
    bool blocking;                  /* a thread that waits sleeps, and does not spin */
    int n_threads;                  /* of the host, for people */
    dt_stream first;                /* the default stream: one of our own, never CUDA's legacy stream */
    struct cuda_products *products; /* product.cu */
    struct cuda_cudnn *cudnn;       /* attention_cudnn.c; NULL: nobody has asked for it */
    cuda_clock clock;
    bool in_range;      /* of a profiler */
    size_t free_before; /* bytes of the GPU, before this process had a context; SIZE_MAX: not known */
} cuda_state;

static inline cuda_state *cuda_of(const dt_device *dev) { return (cuda_state *)dev->impl; }

/** The operation that the process has queued last, on whichever stream. */
extern const char *cuda_last_operation;

/** The stream of an operation, which is noted as its last. */
static inline dt_stream *cuda_stream(const dt_device *dev, dt_stream *stream, const char *op)
{
    dt_stream *s = stream ? stream : &cuda_of(dev)->first;
    s->last = op;
    __atomic_store_n(&cuda_last_operation, op, __ATOMIC_RELAXED);
    return s;
}

/** Has the GPU failed for good with this error? */
bool cuda_is_lost(cudaError_t error);
/** Record an error of the runtime: what was called, its name and words. DT_ERR_MEMORY for want of memory, else
 *  DT_ERR_FAULT. An error of work that was queued before may be returned by any call. */
dt_err cuda_fail(cudaError_t error, const char *call, const char *file, int line);

#define DT_CUDA(call)                                                                                                  \
    do {                                                                                                               \
        const cudaError_t dt_c_ = (call);                                                                              \
        if (dt_c_ != cudaSuccess) return cuda_fail(dt_c_, #call, __FILE__, __LINE__);                                  \
    } while (0)

/** After the launches of an operation: was each of them possible? */
#define CUDA_LAUNCHED() DT_CUDA(cudaGetLastError())

/* product.cu */
dt_err cuda_products_open(cuda_state *cuda);
void cuda_products_close(cuda_state *cuda);
size_t cuda_products_version(const cuda_state *cuda); /* of the library; 0: there is none */
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
/** Bytes of a GPU that are free, which needs no context; SIZE_MAX: nobody tells. */
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
/** Blocks, at most, whose sums go into the scratch of a norm. */
int64_t cuda_norm_parts(const dt_device *dev);

/* product.cu */
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
