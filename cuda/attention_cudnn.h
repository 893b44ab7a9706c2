/* attention_cudnn.h - attention by cuDNN, if it was prepared for the shape of a call (device.h, attention_prepare). */
#ifndef DTRAIN_CUDA_ATTENTION_CUDNN_H
#define DTRAIN_CUDA_ATTENTION_CUDNN_H

#include "cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Queue the call if there is a plan for it. taken: out. */
dt_err cuda_cudnn_forward(dt_device *dev, const dt_attention *at, const void *q, const void *k, const void *v,
                          void *out, float *lse, dt_stream *s, bool *taken);
dt_err cuda_cudnn_backward(dt_device *dev, const dt_attention *at, const void *q, const void *k, const void *v,
                           const void *out, const float *lse, const void *dout, void *dq, void *dk, void *dv,
                           float *scratch, dt_stream *s, bool *taken);
void cuda_cudnn_close(cuda_state *cuda);

/* attention_trial.c */
enum { DIRECTION_FORWARD, DIRECTION_BACKWARD, N_DIRECTIONS };
typedef struct attention_verdict {
    char of[N_DIRECTIONS][200]; /* why the library's result is wrong; empty: it is correct */
} attention_verdict;

/** Run the plans for the call's shape twice, and dtrain's own kernels for comparison. Needs three times the memory of
 *  the call's arrays. A plan that cannot run is a verdict; a returned error is the device's. */
dt_err cuda_attention_try(dt_device *dev, const dt_attention *at, attention_verdict *verdict);

/* attention_turn.cu: to = the transposes of n matrices [rows, cols] */
dt_err cuda_turn(const float *from, float *to, int64_t n, int64_t rows, int64_t cols, dt_stream *s);

#ifdef __cplusplus
}
#endif
#endif
