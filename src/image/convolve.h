/* convolve.h - one dimension of a resize: each output is a weighted sum of neighbouring inputs. */
#ifndef DTRAIN_IMAGE_CONVOLVE_H
#define DTRAIN_IMAGE_CONVOLVE_H

#include <stddef.h>
#include <stdint.h>

enum { DT_TAPS_PRECISION = 22, DT_TAPS_GROUP = 4 };

/** Output i is the sum over j < count[i] of weight[i][j] * input[first + from[i] + j], times 2^-22,
 *  rounded and clamped to a byte. Weights after count[i] are 0. */
typedef struct dt_taps {
    int64_t n;           /* outputs */
    int64_t first, span; /* range of input pixels that contribute */
    int64_t max_taps;    /* a multiple of DT_TAPS_GROUP */
    int32_t *weight;     /* [n, max_taps]; NULL: no resize in this dimension */
    int16_t *low, *high; /* the same, split: 65536 high + low */
    int *from, *count;   /* [n] */
} dt_taps;

/** Resize n_rows rows of t->span pixels of 3 bytes to rows of t->n pixels. */
void dt_taps_along_rows(const dt_taps *t, const uint8_t *in, size_t in_stride, int64_t n_rows, uint8_t *out,
                        size_t out_stride);
/** Resize t->span rows of nbytes bytes to t->n rows. */
void dt_taps_down_columns(const dt_taps *t, const uint8_t *in, size_t in_stride, int64_t nbytes, uint8_t *out,
                          size_t out_stride);

#endif
