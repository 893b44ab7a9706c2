/* quantile.c - radix selection. Values stay on their ranks; only counts are exchanged. Each round determines 8 more
 * bits of the key at a given index of the sorted order. */
#include "quantile.h"
#include <math.h>
#include <string.h>

enum { BITS = 8, N_DIGITS = 1 << BITS };

/* An integer key with the same order as x. */
static uint32_t key_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits >> 31 ? ~bits : bits | UINT32_C(1) << 31;
}

static float number_of(uint32_t key)
{
    const uint32_t bits = key >> 31 ? key & ~(UINT32_C(1) << 31) : ~key;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static dt_err sum(const dt_axis *axis, int64_t *values, int n)
{
    return axis ? dt_comm_reduce_host_i64(axis, values, n, DT_SUM) : DT_OK;
}

/* The key at index k, from 0, of all sorted keys. */
static dt_err select_key(const dt_axis *axis, const float *x, int64_t n, int64_t k, uint32_t *key)
{
    *key = 0;
    for (int shift = 32 - BITS; shift >= 0; shift -= BITS) {
        int64_t count[N_DIGITS] = {0};
        int digit = 0;
        for (int64_t i = 0; i < n; i++) {
            const uint32_t mine = key_of(x[i]);
            const bool same_so_far = shift == 32 - BITS || mine >> (shift + BITS) == *key >> (shift + BITS);
            if (same_so_far) count[mine >> shift & (N_DIGITS - 1)]++;
        }
        DT_TRY(sum(axis, count, N_DIGITS));
        while (digit < N_DIGITS - 1 && k >= count[digit]) k -= count[digit++];
        *key |= (uint32_t)digit << shift;
    }
    return DT_OK;
}

dt_err dt_quantile(const dt_axis *axis, const float *x, int64_t n, float q, float *quantile)
{
    int64_t n_all = n;
    uint32_t below, above;
    DT_TRY(sum(axis, &n_all, 1));
    *quantile = NAN;
    if (n_all == 0) return DT_OK;
    const float place = q * (float)(n_all - 1); /* fp32 as in torch: it decides for values equal to the quantile */
    const int64_t at = dt_min_i64((int64_t)floorf(place), n_all - 1);
    DT_TRY(select_key(axis, x, n, at, &below));
    DT_TRY(select_key(axis, x, n, dt_min_i64((int64_t)ceilf(place), n_all - 1), &above));
    const float low = number_of(below), high = number_of(above);
    *quantile = low + (high - low) * (place - floorf(place));
    return DT_OK;
}
