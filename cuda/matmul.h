/* matmul.h - shared by the files of matmuls.
 *
 * matmul.cu      which way a matmul takes, and the passes around it
 * matmul_lt.c    cuBLASLt: the forms that it computes with one rounding, and always the same bits
 * matmul_mma.cu  our own kernels for bf16 and fp16, on tensor cores
 * matmul_stored.cu few rows of A, and a B that is stored with scales
 * matmul_fma.cu  our own kernels for fp32
 *
 * Own kernels support every form. Each element of C is one chain of sums over k or, for batch-invariant rows, a sum of
 * such chains over pieces of k. The order depends only on k, so dt_matmul.batch_invariant holds for every tile
 * shape. */
#ifndef DTRAIN_CUDA_MATMUL_H
#define DTRAIN_CUDA_MATMUL_H

#include "cuda.h"

#ifdef __cplusplus
extern "C" {
#endif
/* matmul_lt.c */
typedef struct cuda_library cuda_library;

/** Open cuBLASLt. If that fails, *library is NULL, the reason is logged, and own kernels compute all matmuls. */
dt_err cuda_library_open(cuda_library **library);
void cuda_library_close(cuda_library *library);
size_t cuda_library_version(void);
/** Use the library no more for matmuls with these types and transposes. False: it was not used for them. */
bool cuda_library_distrust(cuda_library *library, const dt_matmul *mm);
/** Does the library compute this form of matmul in one call? Verifies a new form, with the whole workspace of the
 *  stream. */
bool cuda_library_takes(cuda_library *library, const dt_matmul *mm, const void *a, const void *b, const void *c,
                        dt_stream *s);
/** Queue the matmul, without its sums, if the library computes all of it in one call with the first workspace_nbytes
 *  of the stream's workspace. taken: out. */
dt_err cuda_library_matmul(cuda_library *library, const dt_matmul *mm, const void *a, const void *b, void *c,
                           size_t workspace_nbytes, dt_stream *s, bool *taken);

#ifdef __cplusplus
}
#endif
#endif
