/* cuda_fp16.h - half precision as CUDA's header offers it. */
#ifndef CUDA_SIM_FP16_H
#define CUDA_SIM_FP16_H

#include "sim_elements.h"
#include <math.h>
#include <string.h>

/* Below the smallest normal number, 2^-14, halves are multiples of 2^-24. Above it the float's 23 bits of mantissa are
 * rounded to 10; a carry runs into the exponent as it should. From 65520 on: infinity. */
inline uint16_t sim_half_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    const uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    u &= 0x7fffffff;
    if (u > 0x7f800000) return 0x7fff;
    if (u >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (u < 0x38800000) return (uint16_t)(sign | (uint16_t)(int)rintf(ldexpf(fabsf(x), 24)));
    u -= 112u << 23; /* biases: 127 and 15 */
    return (uint16_t)(sign | (u + 0xfff + (u >> 13 & 1)) >> 13);
}
inline float sim_half_value(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = bits & 0x7fff;
    uint32_t u;
    float x;
    if (rest < 0x400) {
        x = (float)rest * 0x1p-24f;
        memcpy(&u, &x, sizeof u);
    } else {
        u = (rest << 13) + (rest < 0x7c00 ? 112u << 23 : 224u << 23);
    }
    u |= sign;
    memcpy(&x, &u, sizeof x);
    return x;
}
typedef sim_element<sim_half_bits, sim_half_value> __half;

static inline float __half2float(__half x) { return x; }
static inline __half __float2half_rn(float x) { return x; }

#endif
