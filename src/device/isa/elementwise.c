/* elementwise.c - conversions, sums, activations, dropout and rotation of the CPU device: one pass over memory each. */
#include "kernels.h"
#include <string.h>

/* dst[i] = src[i] in another type, rounded to nearest even. */
INLINE void convert_body(const void *src, dt_dtype S, void *dst, dt_dtype D, int64_t n)
{
    SIMD_FOR (int64_t i = 0; i < n; i++) store(dst, D, i, load(src, S, i));
}
INLINE void convert_from(const void *src, dt_dtype S, void *dst, dt_dtype dst_dt, int64_t n)
{
    BY_TYPE(dst_dt, D, convert_body(src, S, dst, D, n));
}
void ISA_NAME(convert)(const dt_convert_args *args, int64_t first, int64_t n)
{
    const dt_dtype src_dt = args->src_dt, dst_dt = args->dst_dt;
    const void *src = element(args->src, src_dt, first);
    void *dst = element_w(args->dst, dst_dt, first);
    if (src == dst) return;
    if (src_dt == dst_dt) {
        memmove(dst, src, (size_t)n * dt_dtype_size(dst_dt));
        return;
    }
    BY_TYPE(src_dt, S, convert_from(src, S, dst, dst_dt, n));
}

/* dst[i] = dst[i] + src[i]: added in float, rounded once. */
INLINE void add_into_body(const void *src, dt_dtype S, void *dst, dt_dtype D, int64_t n)
{
    SIMD_FOR (int64_t i = 0; i < n; i++) store(dst, D, i, load(dst, D, i) + load(src, S, i));
}
INLINE void add_from(const void *src, dt_dtype S, void *dst, dt_dtype dst_dt, int64_t n)
{
    BY_TYPE(dst_dt, D, add_into_body(src, S, dst, D, n));
}
void ISA_NAME(add_into)(const dt_add_into_args *args, int64_t first, int64_t n)
{
    const dt_dtype src_dt = args->src_dt, dst_dt = args->dst_dt;
    const void *src = element(args->src, src_dt, first);
    void *dst = element_w(args->dst, dst_dt, first);
    if (!args->accumulate) {
        ISA_NAME(convert)(&(dt_convert_args){src, src_dt, dst, dst_dt, n}, 0, n);
        return;
    }
    BY_TYPE(src_dt, S, add_from(src, S, dst, dst_dt, n));
}

void ISA_NAME(add)(const dt_add_args *args, int64_t first, int64_t n)
{
    const dt_dtype dt = args->dt;
    const void *a = element(args->a, dt, first), *b = element(args->b, dt, first);
    void *c = element_w(args->c, dt, first);
    BY_TYPE(dt, T, SIMD_FOR (int64_t i = 0; i < n; i++) store(c, T, i, load(a, T, i) + load(b, T, i)));
}

void ISA_NAME(scale)(const dt_scale_args *args, int64_t first, int64_t n)
{
    const float factor = args->factor;
    const void *x = element(args->x, args->dt, first);
    void *y = element_w(args->y, args->dt, first);
    BY_TYPE(args->dt, T, SIMD_FOR (int64_t i = 0; i < n; i++) store(y, T, i, factor * load(x, T, i)));
}

/* cap tanh(x / cap). Logits are mostly far below the cap: there a series (to u^9) is as exact as x, and costs no
 * cancellation. */
INLINE void softcap_row(float *x, float cap, int64_t n)
{
    const float inverse = 1.0f / cap;
    SIMD_FOR (int64_t i = 0; i < n; i++) {
        const float u = x[i] * inverse, u2 = u * u;
        float q = FMA(u2, 62.0f / 2835, -17.0f / 315);
        q = FMA(u2, q, 2.0f / 15);
        q = FMA(u2, q, -1.0f / 3);
        const float small = FMA(u * u2, q, u), t = u2 < 0.04f ? small : tanh_f(u);
        x[i] = cap * t;
    }
}
void ISA_NAME(softcap)(const dt_softcap_args *args, int64_t first, int64_t n)
{
    for (int64_t r = first; r < first + n; r++) softcap_row(args->x + r * args->ld, args->cap, args->width);
}

/* sum[i] += row[i]: one row of many, for sums over rows. */
void ISA_NAME(add_rows)(float *sum, const void *row, dt_dtype dt, int64_t n)
{
    BY_TYPE(dt, T, SIMD_FOR (int64_t i = 0; i < n; i++) sum[i] += load(row, T, i));
}

/* Each block of 64 rows is summed separately before it is added to the total: rounding errors grow with sqrt(m), not
 * m. */
INLINE void column_sums_body(const void *x, dt_dtype T, int64_t m, int64_t ld, int64_t n_cols, float *restrict sum)
{
    for (int64_t c = 0; c < n_cols; c++) sum[c] = 0;
    for (int64_t first = 0; first < m; first += 64) {
        float part[DT_CPU_COLS] = {0};
        const int64_t last = first + 64 < m ? first + 64 : m;
        if (n_cols == DT_CPU_COLS) {
            for (int64_t r = first; r < last; r++) {
                SIMD_FOR (int64_t c = 0; c < DT_CPU_COLS; c++) part[c] += load(x, T, r * ld + c);
            }
        } else {
            for (int64_t r = first; r < last; r++)
                for (int64_t c = 0; c < n_cols; c++) part[c] += load(x, T, r * ld + c);
        }
        for (int64_t c = 0; c < n_cols; c++) sum[c] += part[c];
    }
}
void ISA_NAME(column_sums)(const void *x, dt_dtype dt, int64_t m, int64_t ld, int64_t n_cols, float *sum)
{
    BY_TYPE(dt, T, column_sums_body(x, T, m, ld, n_cols, sum));
}

/* Each block of 64 elements is summed separately before it is added to the total, as in column_sums. */
INLINE float row_sum_body(const void *x, dt_dtype T, int64_t n)
{
    float sum = 0;
    for (int64_t first = 0; first < n; first += 64) {
        const int64_t last = first + 64 < n ? first + 64 : n;
        float part = 0;
        _Pragma("omp simd reduction(+ : part)") for (int64_t i = first; i < last; i++) part += load(x, T, i);
        sum += part;
    }
    return sum;
}
float ISA_NAME(row_sum)(const void *x, dt_dtype dt, int64_t n) { BY_TYPE(dt, T, return row_sum_body(x, T, n)); }

/* ---- activations ------------------------------------------------------------------------------------------------- */

#define SQRT_2_OVER_PI 0.797884561f
#define INV_SQRT_2 0.707106781f
#define INV_SQRT_2PI 0.398942280f

/* All activations except relu are x times a smooth step s(x). silu and quick_gelu: s = sigmoid(a x). gelu_tanh: s = (1
 * + tanh u)/2 = sigmoid(2u). gelu: s = Phi(x). slope = d(x s)/dx; that of relu at 0 is 0. */
INLINE float act_f(dt_activation act, float x, float *slope)
{
    float s, ds; /* step and its derivative */
    if (act == DT_ACT_RELU) {
        if (slope) *slope = x > 0.0f ? 1.0f : x <= 0.0f ? 0.0f : x; /* NaN propagates */
        return x < 0.0f ? 0.0f : x;
    }
    if (act == DT_ACT_GELU) {
        s = 0.5f + 0.5f * erf_f(x * INV_SQRT_2);
        ds = slope ? INV_SQRT_2PI * exp_f(-0.5f * x * x) : 0.0f;
    } else if (act == DT_ACT_GELU_TANH) {
        s = sigmoid_f(2.0f * SQRT_2_OVER_PI * x * FMA(0.044715f * x, x, 1.0f));
        ds = s * (1.0f - s) * 2.0f * SQRT_2_OVER_PI * FMA(3.0f * 0.044715f * x, x, 1.0f);
    } else {
        const float a = act == DT_ACT_SILU ? 1.0f : 1.702f;
        s = sigmoid_f(a * x);
        ds = a * s * (1.0f - s);
    }
    if (slope) *slope = FMA(x, ds, s);
    return x * s;
}

/* y = act(x) */
INLINE void act_forward_body(dt_activation act, const void *x, void *y, dt_dtype T, int64_t n)
{
    SIMD_FOR (int64_t i = 0; i < n; i++) store(y, T, i, act_f(act, load(x, T, i), NULL));
}
/* dx = dy act'(x) */
INLINE void act_backward_body(dt_activation act, const void *x, const void *dy, void *dx, dt_dtype T, int64_t n)
{
    SIMD_FOR (int64_t i = 0; i < n; i++) {
        float slope;
        act_f(act, load(x, T, i), &slope);
        store(dx, T, i, slope * load(dy, T, i));
    }
}
/* y = act(gate) up */
INLINE void glu_forward_body(dt_activation act, const void *gate, const void *up, void *y, dt_dtype T, int64_t n)
{
    SIMD_FOR (int64_t i = 0; i < n; i++) store(y, T, i, act_f(act, load(gate, T, i), NULL) * load(up, T, i));
}
/* dgate = dy up act'(gate), dup = dy act(gate) */
INLINE void glu_backward_body(dt_activation act, const void *gate, const void *up, const void *dy, void *dgate,
                              void *dup, dt_dtype T, int64_t n)
{
    SIMD_FOR (int64_t i = 0; i < n; i++) {
        float slope;
        const float a = act_f(act, load(gate, T, i), &slope), u = load(up, T, i), d = load(dy, T, i);
        store(dgate, T, i, d * u * slope);
        store(dup, T, i, d * a);
    }
}

/* Run the statement with A as the activation, a compile-time constant, so that its loop has no branch. */
#define BY_ACT(act, A, ...)                                                                                            \
    switch (act) {                                                                                                     \
        ACT_CASE(case DT_ACT_SILU, DT_ACT_SILU, A, __VA_ARGS__)                                                        \
        ACT_CASE(case DT_ACT_GELU, DT_ACT_GELU, A, __VA_ARGS__)                                                        \
        ACT_CASE(case DT_ACT_GELU_TANH, DT_ACT_GELU_TANH, A, __VA_ARGS__)                                              \
        ACT_CASE(case DT_ACT_QUICK_GELU, DT_ACT_QUICK_GELU, A, __VA_ARGS__)                                            \
        ACT_CASE(default, DT_ACT_RELU, A, __VA_ARGS__)                                                                 \
    }
#define ACT_CASE(label, value, A, ...)                                                                                 \
    label : {                                                                                                          \
        const dt_activation A = value;                                                                                 \
        __VA_ARGS__;                                                                                                   \
    } break;

void ISA_NAME(act_forward)(const dt_act_forward_args *args, int64_t first, int64_t n)
{
    const void *x = element(args->x, args->dt, first);
    void *y = element_w(args->y, args->dt, first);
    BY_ACT(args->act, A, BY_TYPE(args->dt, T, act_forward_body(A, x, y, T, n)));
}
void ISA_NAME(act_backward)(const dt_act_backward_args *args, int64_t first, int64_t n)
{
    const void *x = element(args->x, args->dt, first), *dy = element(args->dy, args->dt, first);
    void *dx = element_w(args->dx, args->dt, first);
    BY_ACT(args->act, A, BY_TYPE(args->dt, T, act_backward_body(A, x, dy, dx, T, n)));
}
void ISA_NAME(glu_forward)(const dt_glu_forward_args *args, int64_t first, int64_t n)
{
    const int64_t width = args->width;
    for (int64_t r = first; r < first + n; r++) {
        const void *gate = element(args->gate_up, args->dt, 2 * width * r), *up = element(gate, args->dt, width);
        void *y = element_w(args->y, args->dt, width * r);
        BY_ACT(args->act, A, BY_TYPE(args->dt, T, glu_forward_body(A, gate, up, y, T, width)));
    }
}
void ISA_NAME(glu_backward)(const dt_glu_backward_args *args, int64_t first, int64_t n)
{
    const int64_t width = args->width;
    for (int64_t r = first; r < first + n; r++) {
        const void *gate = element(args->gate_up, args->dt, 2 * width * r), *up = element(gate, args->dt, width),
                   *dy = element(args->dy, args->dt, width * r);
        void *dgate = element_w(args->dgate_up, args->dt, 2 * width * r), *dup = element_w(dgate, args->dt, width);
        BY_ACT(args->act, A, BY_TYPE(args->dt, T, glu_backward_body(A, gate, up, dy, dgate, dup, T, width)));
    }
}

/* ---- dropout, rotation ------------------------------------------------------------------------------------------- */

/* y_c = (residual_c +) x_c / (1 - p) if u_c >= p, else (residual_c +) 0, with u_c = word c % 4 of philox(key,
 * token_key, c / 4). A mask depends on the token, not on the rank or row that computes it. */
INLINE void dropout_body(const void *x, const void *residual, void *y, float p, uint64_t key, uint64_t token_key,
                         dt_dtype T, int64_t width)
{
    enum { BLOCK = 64 }; /* counters per block */
    uint32_t w[4][BLOCK];
    const float scale = 1.0f / (1.0f - p);
    for (int64_t first = 0; first < width; first += 4 * BLOCK) {
        SIMD_FOR (int i = 0; i < BLOCK; i++) {
            const philox_out r = philox_f(key, token_key, (uint64_t)(first / 4 + i));
            w[0][i] = r.w[0], w[1][i] = r.w[1], w[2][i] = r.w[2], w[3][i] = r.w[3];
        }
        const int64_t last = first + 4 * BLOCK < width ? first + 4 * BLOCK : width;
        for (int64_t c = first; c < last; c++) {
            const float u = unit_of(w[(c - first) % 4][(c - first) / 4]);
            const float kept = u >= p ? load(x, T, c) * scale : 0.0f;
            store(y, T, c, residual ? load(residual, T, c) + kept : kept);
        }
    }
}
void ISA_NAME(dropout)(const dt_dropout_args *args, int64_t first, int64_t n)
{
    const int64_t width = args->width;
    for (int64_t r = first; r < first + n; r++) {
        const void *x = element(args->x, args->dt, r * width),
                   *residual = args->addend ? element(args->addend, args->dt, r * width) : NULL;
        void *y = element_w(args->y, args->dt, r * width);
        BY_TYPE(args->dt, T,
                BY_FLAG(residual, ADD,
                        dropout_body(x, ADD ? residual : NULL, y, args->p, args->key, args->token_key[r], T, width)));
    }
}

/* One head of one token, halves layout: (x_i, x_(half+i)) rotates by the angle of cos_sin, which holds half cosines and
 * then half sines. sign -1: rotates backward, which is the gradient. */
INLINE void rope_body(void *x, const float *restrict cos_sin, int64_t half, float sign, dt_dtype T)
{
    SIMD_FOR (int64_t i = 0; i < half; i++) {
        const float a = load(x, T, i), b = load(x, T, half + i), c = cos_sin[i], s = sign * cos_sin[half + i];
        store(x, T, i, a * c - b * s);
        store(x, T, half + i, b * c + a * s);
    }
}
void ISA_NAME(rope)(void *x, const float *cos_sin, int64_t half, bool inverse, dt_dtype dt)
{
    const float sign = inverse ? -1.0f : 1.0f;
    BY_TYPE(dt, T, rope_body(x, cos_sin, half, sign, T));
}
