/* rng.c - random numbers as pure functions of their position. There is no state to save in a checkpoint, and values
 * depend neither on the number of ranks nor on the partition of work.
 *
 * Source   Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Philox; constants from
 *          section 4.3).
 *          Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002 (cycle walking over a Feistel
 *          network). */
#include "dtrain/core/core.h"
#include <math.h>

void dt_philox4x32(uint64_t key, uint64_t ctr_hi, uint64_t ctr_lo, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)ctr_lo, c1 = (uint32_t)(ctr_lo >> 32), c2 = (uint32_t)ctr_hi, c3 = (uint32_t)(ctr_hi >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

uint64_t dt_rng_key(uint64_t seed, dt_rng_purpose purpose)
{
    return dt_mix64(dt_mix64(seed) ^ ((uint64_t)purpose << 32));
}

/* Elements 4b .. 4b+3 of a tensor. The radius uses u in (0, 1], so that its logarithm is finite. Never inlined: a
 * single compiled form gives the same rounding for any start of a range. */
static __attribute__((noinline)) void normal_block(uint64_t key, uint64_t tensor, uint64_t b, float std, float out[4])
{
    uint32_t w[4];
    dt_philox4x32(key, tensor, b, w);
    for (int i = 0; i < 4; i += 2) {
        const float u = ((float)(w[i] >> 8) + 1.0f) * 0x1p-24f;
        const float angle = 6.2831853071795865f * dt_u32_to_unit(w[i + 1]);
        const float radius = std * sqrtf(-2.0f * logf(u));
        out[i] = radius * cosf(angle);
        out[i + 1] = radius * sinf(angle);
    }
}

static void normals(uint64_t key, uint64_t tensor, int64_t first, int64_t n, float std, float *out)
{
    float block[4];
    for (int64_t i = first; i < first + n;) {
        const int64_t b = i / 4, end = (b + 1) * 4 < first + n ? (b + 1) * 4 : first + n;
        normal_block(key, tensor, (uint64_t)b, std, block);
        for (; i < end; i++) out[i - first] = block[i % 4];
    }
}

void dt_rng_normal(uint64_t key, uint64_t tensor, int64_t first, int64_t n, float std, float *out)
{
    enum { PART = 4096 }; /* about 80 us; with fewer than four parts, starting threads costs more than it saves */
    const bool large = n >= 4 * PART;
#pragma omp parallel for schedule(static) if (large)
    for (int64_t done = 0; done < n; done += PART)
        normals(key, tensor, first + done, n - done < PART ? n - done : PART, std, out + done);
}

void dt_rng_uniform(uint64_t key, uint64_t tensor, int64_t first, int64_t n, float bound, float *out)
{
    uint32_t w[4] = {0};
    for (int64_t i = first; i < first + n; i++) {
        if (i == first || i % 4 == 0) dt_philox4x32(key, tensor, (uint64_t)(i / 4), w);
        out[i - first] = bound * (2 * dt_u32_to_unit(w[i % 4]) - 1);
    }
}

/* One pass of the Feistel network over words of bits_l + bits_r bits. The halves swap sizes in every round; the number
 * of rounds is even. */
static uint64_t feistel(uint64_t key, int bits_l, int bits_r, uint64_t x)
{
    enum { ROUNDS = 8 };
    for (int round = 0; round < ROUNDS; round++) {
        /* present bits of the left and the right half */
        const int a = round % 2 ? bits_r : bits_l, c = round % 2 ? bits_l : bits_r;
        const uint64_t left = x >> c, right = x & (((uint64_t)1 << c) - 1);
        const uint64_t f = dt_mix64(dt_mix64(key + (uint64_t)round) ^ right) & (((uint64_t)1 << a) - 1);
        x = right << a | (left ^ f);
    }
    return x;
}

uint64_t dt_rng_permute(uint64_t key, uint64_t n, uint64_t i)
{
    int bits = 0;
    while (bits < 64 && (n - 1) >> bits) bits++;
    if (bits == 0) return 0;
    const int bits_l = bits / 2, bits_r = bits - bits_l;
    do i = feistel(key, bits_l, bits_r, i);
    while (i >= n); /* the domain is below 2n: two passes on average at most */
    return i;
}
