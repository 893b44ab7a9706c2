/* elements.c - conversions between 32-bit and 16-bit floats. F32 represents every F16 and BF16 exactly, so all
 * conversions go through F32. */
#include "dtrain/io/safetensors.h"
#include <math.h>
#include <string.h>

const char *dt_st_type_name(dt_st_type t)
{
    static const char *const names[] = {"other", "F32", "F16", "BF16", "I8", "U8"};
    return names[t];
}

static float load(const void *from, dt_st_type type, int64_t i)
{
    if (type == DT_ST_F32) return ((const float *)from)[i];
    const uint16_t h = ((const uint16_t *)from)[i];
    return type == DT_ST_F16 ? dt_f16_to_float(h) : dt_bf16_to_float(h);
}

/* Returns the number of finite values that became infinite. */
static int64_t to_half(const void *from, dt_st_type type, uint16_t *to, int64_t n)
{
    int64_t n_lost = 0;
    for (int64_t i = 0; i < n; i++) {
        const float f = load(from, type, i);
        to[i] = dt_f16_from_float(f);
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

/* ---- non-finite values ------------------------------------------------------------------------------------------- */

/* Exponent bits of each element in a 64-bit word. Inf and NaN have all of them set, so adding the lowest exponent bit
 * carries into the sign bit, which is masked out first. No element carries into the next. */
static uint64_t exponents_of(dt_st_type type)
{
    return type == DT_ST_F32 ? 0x7f8000007f800000u : type == DT_ST_F16 ? 0x7c007c007c007c00u : 0x7f807f807f807f80u;
}

static bool any_nonfinite(const char *x, size_t nbytes, dt_st_type type)
{
    const uint64_t exponents = exponents_of(type),
                   signs = type == DT_ST_F32 ? 0x8000000080000000u : 0x8000800080008000u,
                   lowest = exponents & ~(exponents << 1);
    uint64_t carries = 0, word;
    for (; nbytes >= sizeof word; x += sizeof word, nbytes -= sizeof word) {
        memcpy(&word, x, sizeof word);
        carries |= (word & exponents) + lowest;
    }
    word = 0;
    memcpy(&word, x, nbytes);
    return (carries | ((word & exponents) + lowest)) & signs;
}

int64_t dt_st_first_nonfinite(const void *x, dt_st_type type, int64_t n)
{
    enum { BLOCK = 4096 };
    if (type < DT_ST_F32 || type > DT_ST_BF16) return -1; /* quantised types are not converted */
    const size_t size = dt_st_type_size(type);
    for (int64_t at = 0; at < n; at += BLOCK) {
        const int64_t some = n - at < BLOCK ? n - at : BLOCK;
        if (!any_nonfinite((const char *)x + (size_t)at * size, (size_t)some * size, type)) continue;
        while (!any_nonfinite((const char *)x + (size_t)at * size, size, type)) at++;
        return at;
    }
    return -1;
}

bool dt_st_is_nan(const void *x, dt_st_type type, int64_t i) { return isnan(load(x, type, i)); }
