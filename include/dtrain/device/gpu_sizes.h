/* gpu_sizes.h - what a GPU holds for operations and for itself. The CUDA device has its sizes from here, and so has a
 * plan: they depend on the call alone, not on the GPU, so a plan is the same with and without one, and with and without
 * CUDA. */
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

/** Where a product in int8 of depth k, at most DT_INT8_MOST_K, keeps what in the workspace, in bytes from its start. */
enum { DT_GPU_INT8_SPLITS = 16 /* of the rows of A, for marks */, DT_GPU_INT8_CHUNK = 16 /* codes */ };
typedef struct dt_gpu_int8_places {
    size_t marks;      /* uint8_t [DT_GPU_INT8_SPLITS][k] */
    size_t n_outliers; /* int [1] */
    size_t outliers;   /* int [k] */
    size_t scale;      /* float [rows] */
    size_t codes;      /* int8_t [rows][ld] */
    int64_t ld;        /* a multiple of DT_GPU_INT8_CHUNK */
    int64_t rows;      /* of A that are there at a time: above 0 */
} dt_gpu_int8_places;
dt_gpu_int8_places dt_gpu_int8_workspace(int64_t k);

#endif
