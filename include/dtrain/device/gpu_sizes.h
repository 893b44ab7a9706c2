/* gpu_sizes.h - sizes of a GPU's workspaces. The CUDA device and plans use the same functions. Sizes depend only on the
 * call, not on the GPU, so a plan is the same with and without a GPU and CUDA. Every function is Local. */
#ifndef DTRAIN_GPU_SIZES_H
#define DTRAIN_GPU_SIZES_H

#include "dtrain/device/device.h"

/** Bytes of a stream's workspace in device memory, for an operation's partial sums and a library's workspace. */
enum { DT_GPU_WORKSPACE_NBYTES = 32 << 20 };

/** Maximum number of blocks whose partial gradients of a norm's weight and bias are in its scratch: two per
 *  multiprocessor of the largest GPU, 160. */
enum { DT_GPU_NORM_PARTS = 320 };

/* Entries of dt_device_ops. */
size_t dt_gpu_overhead(const dt_device *dev);
int64_t dt_gpu_norm_scratch_elems(const dt_device *dev, int64_t width);
int64_t dt_gpu_attention_scratch_elems(const dt_device *dev, const dt_attention *at);
int64_t dt_gpu_classifier_rows(const dt_device *dev, int64_t n_vocab, int64_t n_tok);
size_t dt_gpu_draw_scratch_nbytes(const dt_device *dev, const dt_token_rows *rows);

/** The library's part of the scratch of attention's backward, after the two floats per query and head. All 0: the
 *  library does not compute backward. */
typedef struct dt_gpu_attention_library {
    int64_t each_nbytes; /* dK of each query head if heads share keys; dV likewise */
    int64_t work_nbytes; /* the library's workspace */
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
