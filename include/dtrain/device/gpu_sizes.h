/* gpu_sizes.h - what the CUDA device and a plan have in common: memory that a GPU holds for operations and for itself,
 * and which products cuBLASLt computes. All of it depends on the call only, so a plan needs neither a GPU nor CUDA. */
#ifndef DTRAIN_GPU_SIZES_H
#define DTRAIN_GPU_SIZES_H

#include "dtrain/device/device.h"

/** Bytes of device memory that each stream has for what an operation needs while it runs: sums of blocks, a library's
 *  workspace. */
enum { DT_GPU_WORKSPACE_NBYTES = 32 << 20 };

/** Blocks, at most, whose sums of the gradients of a norm's weight and bias lie in its scratch: two for each
 *  multiprocessor of the largest GPU, 160. */
enum { DT_GPU_NORM_PARTS = 320 };

/* Entries of dt_device_ops. */
size_t dt_gpu_overhead(const dt_device *dev);
int64_t dt_gpu_norm_scratch_elems(const dt_device *dev, int64_t width);
int64_t dt_gpu_attention_scratch_elems(const dt_device *dev, const dt_attention *at);
int64_t dt_gpu_classifier_rows(const dt_device *dev, int64_t n_vocab, int64_t n_tok);
size_t dt_gpu_draw_scratch_nbytes(const dt_device *dev, const dt_token_rows *rows);

/** Of the scratch of attention's backward, what its library has behind the two floats for each query of each head. All
 *  0: backward is not the library's. */
typedef struct dt_gpu_attention_library {
    int64_t each_nbytes; /* dK of each query head where heads share keys, and dV alike */
    int64_t work_nbytes; /* the library's own */
} dt_gpu_attention_library;
dt_gpu_attention_library dt_gpu_attention_library_scratch(const dt_attention *at);

/** Is cuBLASLt asked for this product in one call? Not if bias or D have another type than C, if the activation is not
 *  GELU by tanh, or if 16-bit rows are no whole chunks of 16 bytes, for which it has only slow kernels. */
bool dt_gpu_library_takes(const dt_matmul *mm, const void *a, const void *b, const void *c);
/** Do rows begin at multiples of 16 bytes? */
bool dt_gpu_whole_row(const void *p, int64_t ld, dt_dtype dt);
/** Is a product, of a form that cuBLASLt does not take, large enough to be cut into products that it takes? */
bool dt_gpu_is_worth_cutting(const dt_matmul *mm);

#endif
