/* block8.h - optimizer states in eight bits: blocks of DT_BLOCK8 elements, each with its own scale, as bitsandbytes
 * stores them.
 *
 * Source   Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022, arXiv:2110.02861, sections 2.1
 * and 2.2; bitsandbytes: create_dynamic_map, optimizer_update_8bit_blockwise.
 *
 *     x_i = value[code_i] absmax_b,   b = i / DT_BLOCK8,   absmax_b = max |x_i| of the block
 *
 * The values are bitsandbytes' dynamic map: signed, or from 0 to 1 for states that are never negative. */
#ifndef DTRAIN_BLOCK8_H
#define DTRAIN_BLOCK8_H

#include "dtrain/core/core.h"

enum {
    DT_BLOCK8 = 256,          /* elements per scale */
    DT_BLOCK8_SMALLEST = 4096 /* elements: bitsandbytes keeps the states of smaller tensors in fp32 (min_8bit_size) */
};

/** A dynamic map: ascending values, and the midpoints between neighbours. The code of x is the number of midpoints
 *  below x. */
typedef struct dt_map8 {
    float value[256], between[255];
} dt_map8;

/** The map of signed or of non-negative states. map: out. Local. */
void dt_map8_make(dt_map8 *map, bool positive);

#endif
