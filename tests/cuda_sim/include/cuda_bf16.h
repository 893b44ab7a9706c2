/* cuda_bf16.h - bf16 as CUDA's header offers it. */
#ifndef CUDA_SIM_BF16_H
#define CUDA_SIM_BF16_H

#include "sim_elements.h"
#include <string.h>

inline uint16_t sim_bf16_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if (x != x) return 0x7fff;
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
inline float sim_bf16_value(uint16_t bits)
{
    const uint32_t u = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}
typedef sim_element<sim_bf16_bits, sim_bf16_value> __nv_bfloat16;

static inline float __bfloat162float(__nv_bfloat16 x) { return x; }
static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }

#endif
