/* product.h - what the files of the matrix products share.
 *
 * product.cu      which way a product takes, and the passes around it
 * product_lt.c    cuBLASLt: the forms that it computes with one rounding, and always the same bits
 * product_mma.cu  our own kernels for bf16 and fp16, on tensor cores
 * product_stored.cu few rows of A, and a B that is stored with scales
 * product_fma.cu  our own kernels for fp32
 *
 * Our own kernels take every form. Each element of C is one chain of sums over k or, where rows are to be
 * batch-invariant, a sum of such chains over pieces of k, in an order that depends on k alone: so
 * dt_matmul.batch_invariant holds whatever tile is chosen. */
#ifndef DTRAIN_CUDA_PRODUCT_H
#define DTRAIN_CUDA_PRODUCT_H

#include "cuda.h"

#ifdef __cplusplus
extern "C" {
#endif
/* product_lt.c */
typedef struct cuda_library cuda_library;

/** Open cuBLASLt; *library stays NULL, and the log says why, where it cannot be: then all products are our own. */
dt_err cuda_library_open(cuda_library **library);
void cuda_library_close(cuda_library *library);
size_t cuda_library_version(void);
/** Take no more products of these types and transposes, whatever else is in them. False: none was taken before. */
bool cuda_library_distrust(cuda_library *library, const dt_matmul *mm);
/** Is the product of a form that the library computes in one call? Tries the form when it is new, with all of the
 *  stream's workspace. */
bool cuda_library_takes(cuda_library *library, const dt_matmul *mm, const void *a, const void *b, const void *c,
                        dt_stream *s);
/** Queue the product, without its sums, if the library computes the whole of it in one call, with the first
 *  workspace_nbytes of the stream's workspace: *taken says so. */
dt_err cuda_library_product(cuda_library *library, const dt_matmul *mm, const void *a, const void *b, void *c,
                            size_t workspace_nbytes, dt_stream *s, bool *taken);

#ifdef __cplusplus
}
#endif
#endif
