/* isa.h - shared by all kernels: names per instruction set, loads and stores by type, and elementary functions.
 *
 * Files here are compiled once per instruction set, with DT_ISA set to its name. Every external symbol of a file
 * carries this name. No header may define a symbol with external linkage: the linker would keep one of the copies,
 * perhaps one that this processor cannot run. Loops are written for the compiler's vectoriser: types are compile-time
 * constants after inlining, and loops have no branches. `omp simd` marks loops whose iterations the compiler cannot
 * prove independent. */
#ifndef DTRAIN_ISA_H
#define DTRAIN_ISA_H

#include "../cpu/cpu_kernels.h"
#include <math.h>

#ifndef DT_ISA
#define DT_ISA base
#endif
#define DT_JOIN2(a, b) a##_##b
#define DT_JOIN(a, b) DT_JOIN2(a, b)
#define ISA_NAME(name) DT_JOIN(dt_cpu_##name, DT_ISA) /* convert -> dt_cpu_convert_v4 */

#define INLINE static inline __attribute__((always_inline))
#define SHARED static __attribute__((noinline, unused)) /* compiled once per file */
#define SIMD_FOR(...) _Pragma("omp simd") for (__VA_ARGS__)

/* Fused multiply-adds are explicit, and the compiler does not contract expressions (-ffp-contract=off). They must be
 * the same in every build, and here and in v_fma of tile.h. Otherwise an element's bits would depend on whether a
 * vector or a scalar rest computes it. */
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define FMA(a, b, c) __builtin_fmaf((a), (b), (c))
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#endif

/* Run the statement with T as the type, a compile-time constant: three loops without branches instead of one with
 * branches. */
#define BY_TYPE(dt, T, ...)                                                                                            \
    do {                                                                                                               \
        if ((dt) == DT_F32) {                                                                                          \
            const dt_dtype T = DT_F32;                                                                                 \
            __VA_ARGS__;                                                                                               \
        } else if ((dt) == DT_BF16) {                                                                                  \
            const dt_dtype T = DT_BF16;                                                                                \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            const dt_dtype T = DT_F16;                                                                                 \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

/* The same for a flag. */
#define BY_FLAG(flag, F, ...)                                                                                          \
    do {                                                                                                               \
        if (flag) {                                                                                                    \
            const bool F = true;                                                                                       \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            const bool F = false;                                                                                      \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

INLINE uint32_t bits_of(float f)
{
    union {
        float f;
        uint32_t u;
    } x = {.f = f};
    return x.u;
}
INLINE float float_of(uint32_t u)
{
    union {
        uint32_t u;
        float f;
    } x = {.u = u};
    return x.f;
}

/* Element i of an array of any type, as a float. */
INLINE float load(const void *p, dt_dtype dt, int64_t i)
{
    if (dt == DT_F32) return ((const float *)p)[i];
    const uint16_t h = ((const uint16_t *)p)[i];
    return dt == DT_F16 ? dt_f16_to_float(h) : float_of((uint32_t)h << 16);
}

/* Rounds as dt_bf16_from_float, with a select instead of a branch. */
INLINE uint16_t bf16_of(float f)
{
    const uint32_t u = bits_of(f), round = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (uint16_t)(f != f ? (u >> 16) | 0x40u : round);
}
/* Store f as element i of an array of any type, rounded to nearest even. */
INLINE void store(void *p, dt_dtype dt, int64_t i, float f)
{
    if (dt == DT_F32) {
        ((float *)p)[i] = f;
    } else {
        ((uint16_t *)p)[i] = dt == DT_F16 ? dt_f16_from_float(f) : bf16_of(f);
    }
}

/* Arrays of any type as blocks of floats. A kernel that computes on such blocks is compiled once, not for each
 * combination of types. This pays if its arithmetic costs more than a pass over the first-level cache. */
enum { FLOATS = 256 }; /* maximum length of a block */
SHARED void load_elements(float *x, const void *from, dt_dtype dt, int64_t first, int64_t n)
{
    BY_TYPE(dt, T, SIMD_FOR (int64_t i = 0; i < n; i++) x[i] = load(from, T, first + i));
}
SHARED void add_elements(float *x, const void *from, dt_dtype dt, int64_t first, int64_t n)
{
    BY_TYPE(dt, T, SIMD_FOR (int64_t i = 0; i < n; i++) x[i] += load(from, T, first + i));
}
SHARED void store_elements(void *to, dt_dtype dt, int64_t first, const float *x, int64_t n)
{
    BY_TYPE(dt, T, SIMD_FOR (int64_t i = 0; i < n; i++) store(to, T, first + i, x[i]));
}
/* The elements themselves if they are floats, else `room` with a copy. n <= FLOATS. */
SHARED const float *as_floats(const void *from, dt_dtype dt, int64_t first, int64_t n, float *room)
{
    if (dt == DT_F32) return (const float *)from + first;
    load_elements(room, from, dt, first, n);
    return room;
}
/* Loop over the blocks of n elements, starting at `first`. i: the first element of a block; len: its length. */
#define EACH_BLOCK(i, len, first, n)                                                                                   \
    for (int64_t i = (first), end_ = i + (n), len; len = dt_min_i64(FLOATS, end_ - i), i < end_; i += FLOATS)

/* The addend of a matmul: its first row, row stride in bytes, and type. at NULL: no addend. */
typedef struct addend {
    const char *at;
    int64_t row_nbytes;
    dt_dtype dt;
} addend;
INLINE addend addend_in(const void *d, int64_t ld, dt_dtype dt)
{
    return (addend){d, ld * (int64_t)dt_dtype_size(dt), dt};
}
INLINE addend addend_of(const dt_matmul_call *g)
{
    const dt_matmul *mm = g->mm;
    return mm->accumulate ? addend_in(g->c, mm->ldc, mm->c_dtype) : addend_in(mm->addend, mm->ldd, mm->addend_dtype);
}

/* The value that a store and a load would give. */
INLINE float rounded(float f, dt_dtype dt)
{
    if (dt == DT_F32) return f;
    return dt == DT_F16 ? dt_f16_to_float(dt_f16_from_float(f)) : float_of((uint32_t)bf16_of(f) << 16);
}

/* e^x = 2^k e^r with r in [-ln2/2, ln2/2]. Adding 1.5*2^23 leaves k in the low bits. ln2 is split into two parts (Cody
 * and Waite). e^r = 1 + r + r^2 q(r), q a minimax polynomial of degree 4 (relative error 3e-9). Results below 2^-126
 * are 0. */
INLINE float exp_reduced(float x, float *magic) /* e^r, with k in the low bits of *magic; -87.33654 <= x < 88.7228 */
{
    const float t = FMA(x, 1.44269504f, 0x1.8p23f), k = t - 0x1.8p23f;
    float r = FMA(k, -0x1.62e4p-1f, x); /* 15 bits: its product with k is exact */
    r = FMA(k, -0x1.7f7d1cp-20f, r);
    float q = 0.0013814558f;
    q = FMA(q, r, 0.00836873613f);
    q = FMA(q, r, 0.041668389f);
    q = FMA(q, r, 0.166665211f);
    q = FMA(q, r, 0.49999994f);
    *magic = t;
    return FMA(r * r, q, r) + 1.0f;
}
INLINE float exp_f(float x)
{
    float t, e = exp_reduced(x, &t), y = float_of(bits_of(e) + (bits_of(t) << 23));
    y = x < -87.33654f ? 0.0f : y;
    y = x > 88.7228f ? INFINITY : y;
    return x != x ? x : y;
}

/* For x below 88, as score - maximum is: 2^k is then a float. A multiplication by 2^k propagates every NaN, whatever
 * its low bits. */
INLINE float exp_below(float x)
{
    float t;
    const float e = exp_reduced(x, &t), y = e * float_of((bits_of(t) << 23) + 0x3f800000u);
    return x < -87.33654f ? 0.0f : y;
}

/* log x = log u + k log 2 with u in [sqrt(1/2), sqrt(2)), for x from 2^-126 to the largest float; 0 for x = 1 (Cephes).
 * log 2 is split into two parts. */
INLINE float log_f(float x)
{
    const int32_t i = (int32_t)(bits_of(x) - 0x3f3504f3u), k = i >> 23;
    const float y = float_of(((uint32_t)i & 0x007fffffu) + 0x3f3504f3u) - 1.0f, s = y * y, n = (float)k;
    float p = 0.070376836f;
    p = FMA(p, y, -0.11514610f);
    p = FMA(p, y, 0.11676999f);
    p = FMA(p, y, -0.12420141f);
    p = FMA(p, y, 0.14249323f);
    p = FMA(p, y, -0.16668058f);
    p = FMA(p, y, 0.20000715f);
    p = FMA(p, y, -0.24999994f);
    p = FMA(p, y, 0.33333331f);
    p = FMA(n, -0.000212194440f, p * y * s);
    const float log_x = FMA(n, 0.693359375f, y + FMA(-0.5f, s, p));
    return x != x ? x : log_x;
}

/* erf: x P(x^2) for |x| < 1, else 1 - exp(-x Q(x)), with Q fitted to -log(erfc(x))/x (relative error 3e-9). 1 for |x|
 * >= 4.1. */
INLINE float erf_f(float x)
{
    const float a = fabsf(x), s = x * x;
    float p = 7.85400844e-05f;
    p = FMA(p, s, -0.000801024202f);
    p = FMA(p, s, 0.0051883338f);
    p = FMA(p, s, -0.0268538147f);
    p = FMA(p, s, 0.112835854f);
    p = FMA(p, s, -0.37612626f);
    p = FMA(p, s, 0.128379167f);
    const float small = FMA(p, x, x);
    const float b = a < 4.1f ? a : 4.1f;
    float q = -0.000210643528f;
    q = FMA(q, b, 0.00318694906f);
    q = FMA(q, b, -0.0227984712f);
    q = FMA(q, b, 0.105116151f);
    q = FMA(q, b, 0.635831475f);
    q = FMA(q, b, 1.12848008f);
    const float big = copysignf(1.0f - exp_f(-b * q), x);
    return a < 1.0f || x != x ? small : big;
}

/* 1 / (1 + e^-x): 0 and 1 where e^-x overflows or vanishes. */
INLINE float sigmoid_f(float x) { return 1.0f / (1.0f + exp_f(-x)); }
/* tanh with a relative error below 3e-7, also near 0, where a soft-cap multiplies it by a large number: x + x^3 q(x^2)
 * for |x| < 0.625 (Cephes). */
INLINE float tanh_f(float x)
{
    const float s = x * x;
    float q = -0.00570498873f;
    q = FMA(q, s, 0.0206390888f);
    q = FMA(q, s, -0.0537397155f);
    q = FMA(q, s, 0.133314422f);
    q = FMA(q, s, -0.333332819f);
    const float small = FMA(x * s, q, x), big = FMA(2.0f, sigmoid_f(2.0f * x), -1.0f);
    return s < 0.390625f ? small : big;
}

/* dt_philox4x32 as an inline function, so that a loop over counters vectorises. */
typedef struct philox_out {
    uint32_t w[4];
} philox_out;
INLINE philox_out philox_f(uint64_t key, uint64_t ctr_hi, uint64_t ctr_lo)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)ctr_lo, c1 = (uint32_t)(ctr_lo >> 32), c2 = (uint32_t)ctr_hi, c3 = (uint32_t)(ctr_hi >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1, c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return (philox_out){{c0, c1, c2, c3}};
}
INLINE float unit_of(uint32_t u) { return (float)(int32_t)(u >> 8) * 0x1p-24f; } /* as dt_u32_to_unit */

#endif
