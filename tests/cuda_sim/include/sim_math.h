/* sim_math.h - functions of CUDA's that C has not: bits, rounding, atomics, loads with hints. */
#ifndef CUDA_SIM_MATH_H
#define CUDA_SIM_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* ---- min and max: CUDA's overloads ------------------------------------------------------------------------------ */

#define SIM_MIN_MAX(R, A, B)                                                                                           \
    static inline R min(A a, B b) { return (R)a < (R)b ? (R)a : (R)b; }                                                \
    static inline R max(A a, B b) { return (R)a > (R)b ? (R)a : (R)b; }
SIM_MIN_MAX(int, int, int)
SIM_MIN_MAX(unsigned, unsigned, unsigned)
SIM_MIN_MAX(unsigned, int, unsigned)
SIM_MIN_MAX(unsigned, unsigned, int)
SIM_MIN_MAX(long, long, long)
SIM_MIN_MAX(unsigned long, unsigned long, unsigned long)
SIM_MIN_MAX(unsigned long, long, unsigned long)
SIM_MIN_MAX(unsigned long, unsigned long, long)
SIM_MIN_MAX(long long, long long, long long)
SIM_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
#undef SIM_MIN_MAX
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

/* ---- bits ------------------------------------------------------------------------------------------------------- */

template <class To, class From> static inline To sim_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "bits of equal size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline int __float_as_int(float x) { return sim_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return sim_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return sim_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return sim_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return sim_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return sim_bits<double>(x); }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x)
{
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (x >> i & 1u) << (31 - i);
    return r;
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((unsigned long long)high << 32 | low) << (shift & 31) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((unsigned long long)high << 32 | low) >> (shift & 31));
}

/* ---- arithmetic ------------------------------------------------------------------------------------------------- */

static inline float rsqrtf(float x) { return (float)(1 / sqrt((double)x)); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }
#define __expf expf /* names that glibc has taken */
#define __logf logf
#define __exp2f exp2f
#define __log2f log2f
#define __sinf sinf
#define __cosf cosf
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }
static inline void sim_sincospif(float x, float *s, float *c)
{
    *s = (float)sin(3.14159265358979323846 * x);
    *c = (float)cos(3.14159265358979323846 * x);
}
#define sincospif sim_sincospif

/* Rounded to nearest: what plain C does, as nothing is contracted here. */
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1 / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

/* A float or double that does not fit becomes the nearest integer that does; NaN becomes 0 (or the smallest long long,
 * where the result has 64 bits). */
template <class I, class F> static inline I sim_to_integer(F x, F rounded)
{
    const bool wide = sizeof(I) == 8;
    const I low = (I)-1 < 0 ? (I)((I)1 << (8 * sizeof(I) - 1)) : (I)0;
    const I high = (I)~low;
    if (x != x) return wide ? (I)((I)1 << (8 * sizeof(I) - 1)) : (I)0;
    if (rounded <= (F)low) return low;
    if (rounded >= (F)high) return high;
    return (I)rounded;
}
static inline int __float2int_rn(float x) { return sim_to_integer<int>(x, rintf(x)); }
static inline int __float2int_rz(float x) { return sim_to_integer<int>(x, truncf(x)); }
static inline int __float2int_rd(float x) { return sim_to_integer<int>(x, floorf(x)); }
static inline unsigned __float2uint_rn(float x) { return sim_to_integer<unsigned>(x, rintf(x)); }
static inline unsigned __float2uint_rz(float x) { return sim_to_integer<unsigned>(x, truncf(x)); }
static inline long long __float2ll_rn(float x) { return sim_to_integer<long long>(x, rintf(x)); }
static inline long long __float2ll_rz(float x) { return sim_to_integer<long long>(x, truncf(x)); }
static inline long long __double2ll_rn(double x) { return sim_to_integer<long long>(x, rint(x)); }
static inline long long __double2ll_rz(double x) { return sim_to_integer<long long>(x, trunc(x)); }
static inline unsigned long long __double2ull_rn(double x) { return sim_to_integer<unsigned long long>(x, rint(x)); }
static inline unsigned long long __double2ull_rz(double x) { return sim_to_integer<unsigned long long>(x, trunc(x)); }
static inline float __double2float_rn(double x) { return (float)x; }
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline double __ll2double_rn(long long x) { return (double)x; }
static inline double __ull2double_rn(unsigned long long x) { return (double)x; }

/* ---- memory ----------------------------------------------------------------------------------------------------- */

template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline T __ldca(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T x) { *p = x; }
template <class T> static inline void __stcg(T *p, T x) { *p = x; }
template <class T> static inline void __stwt(T *p, T x) { *p = x; }
void *sim_shared_address(const void *p);
static inline size_t __cvta_generic_to_shared(const void *p) { return (size_t)sim_shared_address(p); }

/* Integers only: sums of floats by atomics would depend on the order. Lanes run one at a time, so that these are atomic
 * as they stand. */
#ifdef CUDA_SIM_RACES
void sim_race_atomic(void *p, size_t nbytes);
#else
static inline void sim_race_atomic(void *, size_t) {}
#endif
template <class T, class Change> __attribute__((no_sanitize("thread"))) static inline T sim_atomic(T *p, Change change)
{
    static_assert((T)0.5 == (T)0, "atomics of integers only");
    sim_race_atomic(p, sizeof *p);
    const T before = *p;
    *p = change(before);
    return before;
}
#define SIM_ATOMICS(T)                                                                                                 \
    static inline T atomicAdd(T *p, T x)                                                                               \
    {                                                                                                                  \
        return sim_atomic(p, [=](T o) { return (T)(o + x); });                                                         \
    }                                                                                                                  \
    static inline T atomicSub(T *p, T x)                                                                               \
    {                                                                                                                  \
        return sim_atomic(p, [=](T o) { return (T)(o - x); });                                                         \
    }                                                                                                                  \
    static inline T atomicMin(T *p, T x)                                                                               \
    {                                                                                                                  \
        return sim_atomic(p, [=](T o) { return o < x ? o : x; });                                                      \
    }                                                                                                                  \
    static inline T atomicMax(T *p, T x)                                                                               \
    {                                                                                                                  \
        return sim_atomic(p, [=](T o) { return o > x ? o : x; });                                                      \
    }                                                                                                                  \
    static inline T atomicAnd(T *p, T x)                                                                               \
    {                                                                                                                  \
        return sim_atomic(p, [=](T o) { return (T)(o & x); });                                                         \
    }                                                                                                                  \
    static inline T atomicOr(T *p, T x)                                                                                \
    {                                                                                                                  \
        return sim_atomic(p, [=](T o) { return (T)(o | x); });                                                         \
    }                                                                                                                  \
    static inline T atomicXor(T *p, T x)                                                                               \
    {                                                                                                                  \
        return sim_atomic(p, [=](T o) { return (T)(o ^ x); });                                                         \
    }                                                                                                                  \
    static inline T atomicExch(T *p, T x)                                                                              \
    {                                                                                                                  \
        return sim_atomic(p, [=](T) { return x; });                                                                    \
    }                                                                                                                  \
    static inline T atomicCAS(T *p, T was, T x)                                                                        \
    {                                                                                                                  \
        return sim_atomic(p, [=](T o) { return o == was ? x : o; });                                                   \
    }
SIM_ATOMICS(int)
SIM_ATOMICS(unsigned)
SIM_ATOMICS(unsigned long long)
#undef SIM_ATOMICS
static inline unsigned atomicInc(unsigned *p, unsigned top)
{
    return sim_atomic(p, [=](unsigned o) { return o >= top ? 0 : o + 1; });
}
static inline unsigned atomicDec(unsigned *p, unsigned top)
{
    return sim_atomic(p, [=](unsigned o) { return o == 0 || o > top ? top : o - 1; });
}

#endif
