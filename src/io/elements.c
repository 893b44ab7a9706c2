/* elements.c - numbers of 32 and 16 bits as one another. Every F16 and BF16 is an F32, so all ways lead through
 * that. */
#include "dtrain/safetensors.h"
#include <math.h>
#include <string.h>

const char *dt_st_type_name(dt_st_type t)
{
    static const char *const names[] = {"other", "F32", "F16", "BF16"};
    return names[t];
}

typedef union bits {
    uint32_t u;
    float f;
} bits;

static float half_to_float(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 1023u;
    bits x;
    if (exponent == 0)
        x.f = (float)fraction * 0x1p-24f; /* subnormal in half, exact in float */
    else
        x.u = (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
    x.u |= sign;
    return x.f;
}

/* Rounded to nearest even; from 65520 on to infinity. A NaN keeps its sign and its upper bits. */
static uint16_t half_from_float(float f)
{
    bits x = {.f = f};
    const uint32_t sign = (x.u >> 16) & 0x8000u;
    x.u &= 0x7fffffffu;
    if (x.u > 0x7f800000u)
        return (uint16_t)(sign | 0x7c00u | (x.u >> 13 & 0x3ffu) |
                          (x.u >> 13 & 0x3ffu ? 0 : 0x200u));  /* stays no number, and which */
    if (x.u >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 2^16 or above */
    /* subnormal: a multiple of 2^-24 */
    if (x.u < 0x38800000u) return (uint16_t)(sign | (uint32_t)lrintf(x.f * 0x1p24f));
    return (uint16_t)(sign | ((x.u - 0x38000000u + 0xfffu + (x.u >> 13 & 1u)) >>
                              13)); /* a carry out of the fraction is the next exponent */
}

static float load(const void *from, dt_st_type type, int64_t i)
{
    if (type == DT_ST_F32) return ((const float *)from)[i];
    const uint16_t h = ((const uint16_t *)from)[i];
    return type == DT_ST_F16 ? half_to_float(h) : dt_bf16_to_float(h);
}

/* Returns how many finite numbers became infinite. */
static int64_t to_half(const void *from, dt_st_type type, uint16_t *to, int64_t n)
{
    int64_t n_lost = 0;
    for (int64_t i = 0; i < n; i++) {
        const float f = load(from, type, i);
        to[i] = half_from_float(f);
        n_lost += (to[i] & 0x7fffu) == 0x7c00u && isfinite(f);
    }
    return n_lost;
}

int64_t dt_st_convert(const void *from, dt_st_type from_type, void *to, dt_st_type to_type, int64_t n)
{
    if (from_type == to_type) {
        memcpy(to, from, (size_t)n * dt_st_type_size(to_type));
        return 0;
    }
    if (to_type == DT_ST_F16) return to_half(from, from_type, to, n);
    int64_t n_lost = 0;
    for (int64_t i = 0; i < n; i++) {
        const float f = load(from, from_type, i);
        if (to_type == DT_ST_F32) {
            ((float *)to)[i] = f;
        } else {
            const uint16_t h = ((uint16_t *)to)[i] = dt_bf16_from_float(f);
            n_lost += (h & 0x7fffu) == 0x7f80u && isfinite(f);
        }
    }
    return n_lost;
}
