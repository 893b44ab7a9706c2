/* matmul.h - shared by the files of matmuls.
 *
 * matmul.cu         choice of a kernel, and the passes before and after it
 * matmul_lt.c       cuBLASLt, for forms that it computes with one rounding and reproducibly
 * matmul_mma.cu     dtrain's kernels for bf16 and fp16, on tensor cores
 * matmul_stored.cu  dtrain's kernels for few rows of A and a quantised B
 * matmul_fma.cu     dtrain's kernels for fp32
 *
 * dtrain's kernels support every form. Each element of C is one chain of sums over k. For batch-invariant rows, k is
 * divided into contiguous pieces; each piece is one chain, and the chains are added in order. The order depends only on
 * k, so dt_matmul.batch_invariant holds for every tile shape. */
#ifndef DTRAIN_CUDA_MATMUL_H
#define DTRAIN_CUDA_MATMUL_H

#include "cuda.h"

#ifdef __cplusplus
extern "C" {
#endif
/* matmul_lt.c */
typedef struct cuda_library cuda_library;

/** Open cuBLASLt. If that fails, *library is NULL, the reason is logged, and dtrain's kernels compute all matmuls. */
dt_err cuda_library_open(cuda_library **library);
void cuda_library_close(cuda_library *library);
size_t cuda_library_version(void);
/** Stop using the library for matmuls with these types and transposes. False: it was not used for them. */
bool cuda_library_distrust(cuda_library *library, const dt_matmul *mm);
/** Does the library compute this form of matmul in one call? A new form is verified first, which uses the whole
 *  workspace of the stream. */
bool cuda_library_takes(cuda_library *library, const dt_matmul *mm, const void *a, const void *b, const void *c,
                        dt_stream *s);
/** Queue the matmul, without gradients of biases, if the library computes it in one call with the first
 *  workspace_nbytes of the stream's workspace. *taken: it was queued. */
dt_err cuda_library_matmul(cuda_library *library, const dt_matmul *mm, const void *a, const void *b, void *c,
                           size_t workspace_nbytes, dt_stream *s, bool *taken);

#ifdef __cplusplus
}
#endif
#endif
