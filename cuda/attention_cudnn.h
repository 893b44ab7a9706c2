/* attention_cudnn.h - attention by cuDNN, where it was made ready for the shape of a call (device.h,
 * attention_prepare). */
#ifndef DTRAIN_CUDA_ATTENTION_CUDNN_H
#define DTRAIN_CUDA_ATTENTION_CUDNN_H

#include "cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Queue the call if there is a plan for it: *taken says so. */
dt_err cuda_cudnn_forward(dt_device *dev, const dt_attention *at, const void *q, const void *k, const void *v,
                          void *out, float *lse, dt_stream *s, bool *taken);
dt_err cuda_cudnn_backward(dt_device *dev, const dt_attention *at, const void *q, const void *k, const void *v,
                           const void *out, const float *lse, const void *dout, void *dq, void *dk, void *dv,
                           float *scratch, dt_stream *s, bool *taken);
void cuda_cudnn_close(cuda_state *cuda);

/* attention_trial.c */
enum { DIRECTION_FORWARD, DIRECTION_BACKWARD, N_DIRECTIONS };
typedef struct attention_verdict {
    char of[N_DIRECTIONS][200]; /* what is wrong with the library's; empty: nothing */
} attention_verdict;

/** Run the plans that there are for the call's shape, twice, and our own kernels beside them. Takes memory as the
 *  arrays of a call three times. A plan that cannot be run is a verdict; an error is one of the device. */
dt_err cuda_attention_try(dt_device *dev, const dt_attention *at, attention_verdict *verdict);

/* attention_turn.cu: to = the transposes of n matrices [rows, cols] */
dt_err cuda_turn(const float *from, float *to, int64_t n, int64_t rows, int64_t cols, dt_stream *s);

#ifdef __cplusplus
}
#endif
#endif
