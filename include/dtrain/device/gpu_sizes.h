/* gpu_sizes.h - sizes of a GPU's workspaces, and the matmuls that cuBLASLt computes. The CUDA device and plans use the
 * same functions. Results depend only on the call, not on the GPU, so a plan is the same with and without a GPU and
 * CUDA. Every function is Local. */
#ifndef DTRAIN_GPU_SIZES_H
#define DTRAIN_GPU_SIZES_H

#include "dtrain/device/device.h"

/** Bytes of a stream's workspace in device memory, for an operation's partial sums and a library's workspace. */
enum { DT_GPU_WORKSPACE_NBYTES = 32 << 20 };

/** Maximum number of partial gradients of a norm's weight and bias in its scratch: two per multiprocessor, for up to
 *  160 multiprocessors. */
enum { DT_GPU_NORM_PARTS = 320 };

/** Partial gradients of a convolution's weight. */
enum { DT_GPU_CONV_PARTS = 64 };

/** Blocks of the delta rule's kernels, each for some sequences and value heads in turn; floats of scratch of each. */
int64_t dt_gpu_delta_blocks(const dt_delta *d);
int64_t dt_gpu_delta_work_elems(const dt_delta *d, bool backward);

/* Entries of dt_device_ops. */
size_t dt_gpu_overhead(const dt_device *dev);
#define DT_SIZE(type, name, ...) type dt_gpu_##name DT_SIZE_PARAMS(__VA_ARGS__);
#include "dtrain/device/op_list.h"

/** The library's part of the scratch of attention's backward, after the two floats per query and head. All 0: the
 *  library does not compute backward. */
typedef struct dt_gpu_attention_library {
    int64_t each_nbytes; /* dK of each query head if heads share keys; dV likewise */
    int64_t work_nbytes; /* the library's workspace */
} dt_gpu_attention_library;
dt_gpu_attention_library dt_gpu_attention_library_scratch(const dt_attention *at);

/** Can cuBLASLt compute this matmul in one call? It needs bias and D of C's type, and no activation but GELU by tanh.
 *  Rows of 16-bit types must be multiples of 16 bytes: for others cuBLASLt has only slow kernels. */
bool dt_gpu_library_takes(const dt_matmul *mm, const void *a, const void *b, const void *c);
/** Do rows begin at multiples of 16 bytes? */
bool dt_gpu_whole_row(const void *p, int64_t ld, dt_dtype dt);
/** Is a matmul that cuBLASLt does not compute in one call large enough to be split into several that it does? */
bool dt_gpu_is_worth_cutting(const dt_matmul *mm);

#endif
