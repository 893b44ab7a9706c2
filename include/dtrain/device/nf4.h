/* nf4.h - weights in four bits: NormalFloat4 with double quantisation, bit-identical to the storage of bitsandbytes.
 *
 * Source   Dettmers et al., "QLoRA", NeurIPS 2023, arXiv:2305.14314, section 3; the 8-bit values of the second
 * quantisation: Dettmers et al., arXiv:2110.02861, section 2.2.
 *
 * The n weights of a tensor, row by row, are divided into blocks of DT_NF4_BLOCK weights. Blocks are divided into
 * groups of DT_NF4_GROUP blocks:
 *
 *     w_i = LEVELS[code_i] s_b,   s_b = MAP[block_b] scale_g + offset_g,   b = i / 64, g = b / 256
 *
 * Each product and sum is rounded to float. In memory:
 *
 *     codes   [ceil(n / 2)]    two to a byte, the first in the upper half
 *     blocks  [dt_nf4_blocks]  one byte each
 *     groups  [dt_nf4_groups]  pairs of floats: scale_g, offset_g
 *
 * In bitsandbytes files the codes are `weight`, the blocks `weight.absmax`, the scales `weight.nested_absmax`. A tensor
 * has one offset there (in `quant_state`); here every group stores the offset. Consecutive tensors of whole groups are
 * therefore one matrix, and a part of a matrix that begins at a group is a matrix. If tensors begin within groups, each
 * group's pair is stored 2^finer times, once for each part (dt_nf4_finer). */
#ifndef DTRAIN_NF4_H
#define DTRAIN_NF4_H

#include "dtrain/core/core.h"

enum { DT_NF4_BLOCK = 64 /* weights */, DT_NF4_GROUP = 256 /* blocks */ };

/** Blocks of a tensor of n weights. */
static inline int64_t dt_nf4_blocks(int64_t n) { return dt_ceil_div(n, DT_NF4_BLOCK); }
/** Groups of a tensor of n weights. */
static inline int64_t dt_nf4_groups(int64_t n) { return dt_ceil_div(n, DT_NF4_BLOCK * DT_NF4_GROUP); }
/** 2^shift blocks share one pair of floats. Returns shift. */
static inline int dt_nf4_shift(int finer) { return 8 - finer; }
/** Pairs of floats of a tensor of n weights. */
static inline int64_t dt_nf4_pairs(int64_t n, int finer)
{
    return dt_ceil_div(dt_nf4_blocks(n), INT64_C(1) << dt_nf4_shift(finer));
}
/** The smallest `finer` for which n_blocks blocks are whole parts of groups; 0: they are whole groups. */
static inline int dt_nf4_finer(int64_t n_blocks)
{
    int finer = 0;
    while (n_blocks & ((INT64_C(1) << dt_nf4_shift(finer)) - 1)) finer++;
    return finer;
}

/** Codes of a block of n weights, the first step of bitsandbytes' quantize_4bit(quant_type="nf4",
 *  compress_statistics=True): the nearest level of w / max|w|, ties to the lower level. codes: out [ceil(n / 2)].
 *  Returns max |w|, NaN if a weight is NaN. If a weight is NaN or Inf, so are dequantised weights. Host memory.
 *  Local. */
float dt_quantise_nf4_block(const float *w, int64_t n, uint8_t *codes);
/** The second step: the maxima of all blocks of a tensor, less their mean, quantised alike by MAP. most: in [n_blocks],
 *  overwritten; n_blocks above 0. blocks, groups: out. Host memory. Local. */
void dt_quantise_nf4_maxima(float *most, int64_t n_blocks, uint8_t *blocks, float *groups);

/** Dequantise the weights first .. first+n-1 of a tensor. codes: starting at the byte that contains the first of them;
 *  groups: each group 2^finer times. All arrays are host memory. */
void dt_dequantise_nf4(const uint8_t *codes, const uint8_t *blocks, const float *groups, int finer, int64_t first,
                       int64_t n, float *w);

/* ---- levels and map ---------------------------------------------------------------------------------------------- */

/** Initialisers of arrays: [16] of nf4 and of bitsandbytes' fp4, and [256], the signed dynamic map. */
#define DT_FP4_LEVELS                                                                                                  \
    0.0f, 0.0052083335f, 0.6666667f, 1.0f, 0.33333334f, 0.5f, 0.16666667f, 0.25f, -0.0f, -0.0052083335f, -0.6666667f,  \
        -1.0f, -0.33333334f, -0.5f, -0.16666667f, -0.25f
#define DT_NF4_LEVELS                                                                                                  \
    -1.0f, -0.6961928f, -0.52507305f, -0.3949175f, -0.28444138f, -0.18477343f, -0.091050036f, 0.0f, 0.0795803f,        \
        0.1609302f, 0.2461123f, 0.33791524f, 0.44070983f, 0.562617f, 0.72295684f, 1.0f
#define DT_NF4_MAP                                                                                                     \
    -0.99296874f, -0.9789063f, -0.96484375f, -0.9507812f, -0.93671876f, -0.92265624f, -0.9085938f, -0.89453125f,       \
        -0.8804687f, -0.86640626f, -0.85234374f, -0.8382813f, -0.82421875f, -0.8101562f, -0.79609376f, -0.78203124f,   \
        -0.7679688f, -0.75390625f, -0.7398437f, -0.72578126f, -0.7117188f, -0.6976563f, -0.68359375f, -0.6695312f,     \
        -0.65546876f, -0.6414063f, -0.6273438f, -0.61328125f, -0.5992187f, -0.58515626f, -0.5710938f, -0.5570313f,     \
        -0.54296875f, -0.5289062f, -0.5148437f, -0.50078124f, -0.4867187f, -0.47265625f, -0.45859373f, -0.44453126f,   \
        -0.43046874f, -0.41640624f, -0.40234375f, -0.38828123f, -0.37421876f, -0.36015624f, -0.34609374f,              \
        -0.33203125f, -0.31796873f, -0.30390626f, -0.28984374f, -0.27578127f, -0.26171875f, -0.24765624f,              \
        -0.23359375f, -0.21953125f, -0.20546874f, -0.19140625f, -0.17734376f, -0.16328125f, -0.14921875f,              \
        -0.13515624f, -0.12109375f, -0.107031256f, -0.09859375f, -0.09578126f, -0.092968754f, -0.09015625f,            \
        -0.08734375f, -0.08453125f, -0.08171876f, -0.07890625f, -0.07609375f, -0.07328125f, -0.070468746f,             \
        -0.067656256f, -0.06484375f, -0.06203125f, -0.059218753f, -0.05640625f, -0.05359375f, -0.05078125f,            \
        -0.04796875f, -0.04515625f, -0.042343747f, -0.03953125f, -0.036718752f, -0.03390625f, -0.03109375f,            \
        -0.028281251f, -0.02546875f, -0.02265625f, -0.019843752f, -0.01703125f, -0.01421875f, -0.01140625f,            \
        -0.00971875f, -0.009156249f, -0.00859375f, -0.00803125f, -0.00746875f, -0.00690625f, -0.00634375f,             \
        -0.00578125f, -0.0052187503f, -0.0046562497f, -0.00409375f, -0.0035312497f, -0.00296875f, -0.00240625f,        \
        -0.00184375f, -0.0012812499f, -0.0009437501f, -0.00083125f, -0.00071875006f, -0.0006062501f, -0.00049375003f,  \
        -0.00038125002f, -0.00026875004f, -0.00015625001f, -8.875e-05f, -6.625e-05f, -4.375e-05f, -2.1249998e-05f,     \
        -7.75e-06f, -3.2500002e-06f, -5.5000004e-07f, 0.0f, 5.5000004e-07f, 3.2500002e-06f, 7.75e-06f, 2.1249998e-05f, \
        4.375e-05f, 6.625e-05f, 8.875e-05f, 0.00015625001f, 0.00026875004f, 0.00038125002f, 0.00049375003f,            \
        0.0006062501f, 0.00071875006f, 0.00083125f, 0.0009437501f, 0.0012812499f, 0.00184375f, 0.00240625f,            \
        0.00296875f, 0.0035312497f, 0.00409375f, 0.0046562497f, 0.0052187503f, 0.00578125f, 0.00634375f, 0.00690625f,  \
        0.00746875f, 0.00803125f, 0.00859375f, 0.009156249f, 0.00971875f, 0.01140625f, 0.01421875f, 0.01703125f,       \
        0.019843752f, 0.02265625f, 0.02546875f, 0.028281251f, 0.03109375f, 0.03390625f, 0.036718752f, 0.03953125f,     \
        0.042343747f, 0.04515625f, 0.04796875f, 0.05078125f, 0.05359375f, 0.05640625f, 0.059218753f, 0.06203125f,      \
        0.06484375f, 0.067656256f, 0.070468746f, 0.07328125f, 0.07609375f, 0.07890625f, 0.08171876f, 0.08453125f,      \
        0.08734375f, 0.09015625f, 0.092968754f, 0.09578126f, 0.09859375f, 0.107031256f, 0.12109375f, 0.13515624f,      \
        0.14921875f, 0.16328125f, 0.17734376f, 0.19140625f, 0.20546874f, 0.21953125f, 0.23359375f, 0.24765624f,        \
        0.26171875f, 0.27578127f, 0.28984374f, 0.30390626f, 0.31796873f, 0.33203125f, 0.34609374f, 0.36015624f,        \
        0.37421876f, 0.38828123f, 0.40234375f, 0.41640624f, 0.43046874f, 0.44453126f, 0.45859373f, 0.47265625f,        \
        0.4867187f, 0.50078124f, 0.5148437f, 0.5289062f, 0.54296875f, 0.5570313f, 0.5710938f, 0.58515626f, 0.5992187f, \
        0.61328125f, 0.6273438f, 0.6414063f, 0.65546876f, 0.6695312f, 0.68359375f, 0.6976563f, 0.7117188f,             \
        0.72578126f, 0.7398437f, 0.75390625f, 0.7679688f, 0.78203124f, 0.79609376f, 0.8101562f, 0.82421875f,           \
        0.8382813f, 0.85234374f, 0.86640626f, 0.8804687f, 0.89453125f, 0.9085938f, 0.92265624f, 0.93671876f,           \
        0.9507812f, 0.96484375f, 0.9789063f, 0.99296874f, 1.0f

#endif
