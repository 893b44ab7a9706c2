/* optimizer_kernels.c - Adam, gradient descent and the sums of an optimizer step. They are bound by memory bandwidth,
 * so each is one pass. */
#include "kernels.h"

/* g: gradients. L2: the gradient includes decay. sqrt(v/fix2) = sqrt(v) / sqrt(fix2). */
INLINE void adamw_block(const dt_adamw *o, const float *restrict g, float *restrict p, float *restrict m,
                        float *restrict v, bool L2, int64_t n)
{
    const float b1 = o->beta1, b2 = o->beta2, c1 = 1.0f - b1, c2 = 1.0f - b2, gs = o->grad_scale, eps = o->eps,
                l2 = o->l2;
    const float keep = 1.0f - o->lr * o->weight_decay, step = o->lr / o->fix1, root = 1.0f / sqrtf(o->fix2);
    SIMD_FOR (int64_t i = 0; i < n; i++) {
        const float own = g[i] * gs, gi = L2 ? FMA(l2, p[i], own) : own;
        const float mi = FMA(b1, m[i], c1 * gi), vi = FMA(b2, v[i], c2 * gi * gi);
        p[i] = FMA(keep, p[i], -step * (mi / FMA(sqrtf(vi), root, eps)));
        m[i] = mi;
        v[i] = vi;
    }
}
void ISA_NAME(adamw_step)(const dt_adamw_step_args *args, int64_t first, int64_t n)
{
    float room[FLOATS];
    EACH_BLOCK (i, len, first, n) {
        const float *g = as_floats(args->grad, args->gt, i, len, room);
        BY_FLAG(args->opt.l2 != 0, L2, adamw_block(&args->opt, g, args->master + i, args->m + i, args->v + i, L2, len));
        if (args->param) store_elements(args->param, args->param_dt, i, args->master + i, len);
    }
}

/* b NULL: without momentum. */
INLINE void sgd_block(const dt_sgd *o, const float *restrict g, float *restrict p, float *restrict b, int64_t n)
{
    const float lr = o->lr, momentum = o->momentum, l2 = o->l2, gs = o->grad_scale;
    if (b) {
        SIMD_FOR (int64_t i = 0; i < n; i++) {
            b[i] = FMA(momentum, b[i], FMA(l2, p[i], g[i] * gs));
            p[i] = FMA(-lr, b[i], p[i]);
        }
    } else {
        SIMD_FOR (int64_t i = 0; i < n; i++) p[i] = FMA(-lr, FMA(l2, p[i], g[i] * gs), p[i]);
    }
}
void ISA_NAME(sgd_step)(const dt_sgd_step_args *args, int64_t first, int64_t n)
{
    float room[FLOATS];
    EACH_BLOCK (i, len, first, n) {
        float *momentum = args->momentum ? args->momentum + i : NULL;
        sgd_block(&args->opt, as_floats(args->grad, args->gt, i, len, room), args->master + i, momentum, len);
        if (args->param) store_elements(args->param, args->param_dt, i, args->master + i, len);
    }
}

void ISA_NAME(add_scaled)(const dt_add_scaled_args *args, int64_t first, int64_t n)
{
    const float a = args->a, b = args->b;
    float room[2][FLOATS], sum[FLOATS];
    EACH_BLOCK (i, len, first, n) {
        const float *x = as_floats(args->x, args->x_dt, i, len, room[0]),
                    *y = as_floats(args->y, args->y_dt, i, len, room[1]);
        SIMD_FOR (int64_t c = 0; c < len; c++) sum[c] = FMA(a, x[c], b * y[c]);
        store_elements(args->out, args->out_dt, i, sum, len);
    }
}

/* A finite x with these random bits added below the 16 that are kept. */
INLINE uint16_t bf16_at_random(float x, uint32_t random)
{
    const uint32_t u = bits_of(x), finite = (u + (random & 0xffffu)) >> 16;
    return (u & 0x7f800000u) == 0x7f800000u ? bf16_of(x) : (uint16_t)finite;
}

/* Elements begin .. end-1, each with its own counter. */
INLINE void round_each(const float *x, uint16_t *y, uint64_t key, uint64_t counter, uint64_t first, int64_t begin,
                       int64_t end)
{
    for (int64_t i = begin; i < end; i++) {
        const uint64_t e = first + (uint64_t)i;
        y[i] = bf16_at_random(x[i], philox_f(key, counter, e / 4).w[e % 4]);
    }
}
/* Four elements of one counter at a time; the first and the last counter may have fewer. */
void ISA_NAME(round_stochastic)(const dt_round_stochastic_args *args, int64_t first, int64_t n)
{
    const uint64_t key = args->key, counter = args->counter, at = args->first + (uint64_t)first;
    const float *x = args->x + first;
    uint16_t *y = (uint16_t *)args->y + first;
    const int64_t head = dt_min_i64(n, (int64_t)(-at & 3)), whole = (n - head) / 4;
    round_each(x, y, key, counter, at, 0, head);
    SIMD_FOR (int64_t q = 0; q < whole; q++) {
        const int64_t i = head + 4 * q;
        const philox_out r = philox_f(key, counter, (at + (uint64_t)i) / 4);
        for (int k = 0; k < 4; k++) y[i + k] = bf16_at_random(x[i + k], r.w[k]);
    }
    round_each(x, y, key, counter, at, head + 4 * whole, n);
}

/* Floats without their sign order like integers, NaN above Inf. Moving a code by one gives it x's sign, because 0 is
 * the only value between the two signs. */
float ISA_NAME(quantise_block)(const dt_map8 *map, bool positive, const float *x, uint8_t *codes, int64_t n)
{
    uint32_t max = 0;
    _Pragma("omp simd reduction(max : max)") for (int64_t i = 0; i < n; i++)
    {
        const uint32_t u = bits_of(x[i]) & 0x7fffffffu;
        max = u > max ? u : max;
    }
    const float absmax = float_of(max), by = max ? absmax : 1;
    SIMD_FOR (int64_t i = 0; i < n; i++) {
        const float y = x[i] / by;
        int32_t code = 0;
        for (int32_t step = 128; step; step >>= 1) code += y > map->between[code + step - 1] ? step : 0;
        const bool is_negative = map->value[code] < 0, want_negative = x[i] < 0;
        code += positive || is_negative == want_negative ? 0 : want_negative ? -1 : 1;
        codes[i] = (uint8_t)code;
    }
    return absmax;
}
void ISA_NAME(dequantise_block)(const dt_map8 *map, const uint8_t *codes, float absmax, float *x, int64_t n)
{
    SIMD_FOR (int64_t i = 0; i < n; i++) x[i] = map->value[codes[i]] * absmax;
}

/* 32 independent sums hide the latency of additions. Prefetching well ahead hides the latency of memory. */
INLINE double sum_squares_body(const void *x, dt_dtype T, int64_t n)
{
    enum { SUMS = 32, AHEAD = 1024 };
    double part[SUMS] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + SUMS <= n; i += SUMS) {
        __builtin_prefetch((const char *)x + (i + AHEAD) * (int64_t)dt_dtype_size(T));
        if (T == DT_F32) __builtin_prefetch((const char *)x + (i + AHEAD + 16) * (int64_t)dt_dtype_size(T));
        SIMD_FOR (int l = 0; l < SUMS; l++) {
            const double d = (double)load(x, T, i + l);
            part[l] += d * d;
        }
    }
    for (; i < n; i++) sum += (double)load(x, T, i) * (double)load(x, T, i);
    for (int l = 0; l < SUMS; l++) sum += part[l];
    return sum;
}
double ISA_NAME(sum_squares)(const void *x, dt_dtype dt, int64_t n)
{
    BY_TYPE(dt, T, return sum_squares_body(x, T, n));
}

/* Without the sign bit, floats have the order of their bits as integers, with NaN above Inf. */
INLINE uint32_t abs_max_body(const void *x, dt_dtype T, int64_t n)
{
    uint32_t max = 0;
    _Pragma("omp simd reduction(max : max)") for (int64_t i = 0; i < n; i++)
    {
        const uint32_t u = bits_of(load(x, T, i)) & 0x7fffffffu;
        max = u > max ? u : max;
    }
    return max;
}
float ISA_NAME(abs_max)(const void *x, dt_dtype dt, int64_t n)
{
    uint32_t max;
    BY_TYPE(dt, T, max = abs_max_body(x, T, n));
    return float_of(max > 0x7f800000u ? 0x7f800000u : max);
}

/* x^2 and its product with 2^shift are exact in double. Adding 2^52 rounds a value in [0, 2^52) to an integer, ties to
 * even, in the low bits. 2^11 terms below 2^52 stay below 2^63. */
INLINE uint64_t fixed_body(const void *x, dt_dtype T, int64_t n, double scale)
{
    uint64_t sum = 0;
    _Pragma("omp simd reduction(+ : sum)") for (int64_t i = 0; i < n; i++)
    {
        const double d = (double)load(x, T, i);
        union {
            double d;
            uint64_t u;
        } y = {.d = d * d * scale + 0x1p52};
        sum += y.u - 0x4330000000000000u;
    }
    return sum;
}
void ISA_NAME(sum_squares_fixed)(const void *x, dt_dtype dt, int64_t n, int shift, uint64_t sum[2])
{
    const double scale = ldexp(1.0, shift);
    uint64_t s;
    BY_TYPE(dt, T, s = fixed_body(x, T, n, scale));
    sum[0] += s;
    sum[1] += sum[0] < s;
}
