/* elementwise.c - conversions, sums, activations, dropout and rotation of the CPU device: one pass over memory each. */
#include "kernels.h"
#include <string.h>

/* dst[i] = src[i] in another type, rounded to nearest even. */
void ISA_NAME(convert)(const dt_convert_args *args, int64_t first, int64_t n)
{
    const dt_dtype src_dt = args->src_dt, dst_dt = args->dst_dt;
    if (src_dt == dst_dt) {
        const void *src = cpu_at(args->src, src_dt, first);
        void *dst = cpu_at_w(args->dst, dst_dt, first);
        if (dst != src) memmove(dst, src, (size_t)n * dt_dtype_size(dst_dt));
    } else if (dst_dt == DT_F32) {
        load_elements((float *)args->dst + first, args->src, src_dt, first, n);
    } else {
        float x[FLOATS];
        EACH_BLOCK (i, len, first, n)
            store_elements(args->dst, dst_dt, i, as_floats(args->src, src_dt, i, len, x), len);
    }
}

/* dst[i] = dst[i] + src[i]: added in float, rounded once. */
void ISA_NAME(add_into)(const dt_add_into_args *args, int64_t first, int64_t n)
{
    const dt_dtype src_dt = args->src_dt, dst_dt = args->dst_dt;
    float x[FLOATS];
    if (!args->accumulate) {
        ISA_NAME(convert)(&(dt_convert_args){args->src, src_dt, args->dst, dst_dt, n}, first, n);
    } else if (dst_dt == DT_F32) {
        add_elements((float *)args->dst + first, args->src, src_dt, first, n);
    } else {
        EACH_BLOCK (i, len, first, n) {
            load_elements(x, args->dst, dst_dt, i, len);
            add_elements(x, args->src, src_dt, i, len);
            store_elements(args->dst, dst_dt, i, x, len);
        }
    }
}

void ISA_NAME(add)(const dt_add_args *args, int64_t first, int64_t n)
{
    const void *a = args->a, *b = args->b;
    void *c = args->c;
    BY_TYPE(args->dt, T,
            SIMD_FOR (int64_t i = first; i < first + n; i++) store(c, T, i, load(a, T, i) + load(b, T, i)));
}

void ISA_NAME(scale)(const dt_scale_args *args, int64_t first, int64_t n)
{
    const float factor = args->factor;
    const void *x = args->x;
    void *y = args->y;
    BY_TYPE(args->dt, T, SIMD_FOR (int64_t i = first; i < first + n; i++) store(y, T, i, factor * load(x, T, i)));
}

/* cap tanh(x / cap) */
INLINE void softcap_row(float *x, float cap, int64_t n)
{
    const float inverse = 1.0f / cap;
    SIMD_FOR (int64_t i = 0; i < n; i++) x[i] = cap * tanh_f(x[i] * inverse);
}
void ISA_NAME(softcap)(const dt_softcap_args *args, int64_t first, int64_t n)
{
    for (int64_t r = first; r < first + n; r++) softcap_row(args->x + r * args->ld, args->cap, args->width);
}

/* Elements i .. i+len-1 of a row of W, which may be stored as codes or as a column. */
static void weights_of(const dt_magnitude_factors_args *args, int64_t row, int64_t i, int64_t len, float *w)
{
    const dt_row_lengths *d = &args->d;
    const dt_stored stored = {args->w, d->w_ld, d->w_scaled};
    float rounded[FLOATS];
    if (d->w_scaled.how != DT_SCALE_NONE) {
        ISA_NAME(dequantise)(&stored, d->first + row, i, len, rounded, d->dt);
        load_elements(w, rounded, d->dt, 0, len);
    } else if (d->in_first) {
        for (int64_t c = 0; c < len; c++) w[c] = load(args->w, d->dt, (i + c) * d->w_ld + d->first + row);
    } else {
        load_elements(w, args->w, d->dt, (d->first + row) * d->w_ld + i, len);
    }
}

float ISA_NAME(row_length)(const dt_magnitude_factors_args *args, int64_t row)
{
    const dt_row_lengths *d = &args->d;
    float w[FLOATS], a[FLOATS], sum = 0;
    EACH_BLOCK (i, len, 0, d->n_in) {
        weights_of(args, row, i, len, w);
        for (int64_t k = 0; k < d->r; k++) {
            const float b = d->scale * load(args->b, d->dt, row * d->r + k),
                        *of_a = as_floats(args->a, d->dt, k * d->n_in + i, len, a);
            SIMD_FOR (int64_t c = 0; c < len; c++) w[c] = FMA(b, of_a[c], w[c]);
        }
        _Pragma("omp simd reduction(+ : sum)") for (int64_t c = 0; c < len; c++) sum = FMA(w[c], w[c], sum);
    }
    return sqrtf(sum);
}

/* sum[i] += row[i]: one row of many, for sums over rows. */
void ISA_NAME(add_rows)(float *sum, const void *row, dt_dtype dt, int64_t n) { add_elements(sum, row, dt, 0, n); }

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

/* a[i] = act(x[i]), slope[i] = act'(x[i]), which may be NULL. The activation is a compile-time constant in each
 * loop, so that it has no branch. */
INLINE void act_loop(dt_activation act, const float *restrict x, float *restrict a, float *restrict slope, int64_t n)
{
    if (!slope)
        SIMD_FOR (int64_t i = 0; i < n; i++) a[i] = act_f(act, x[i], NULL);
    else
        SIMD_FOR (int64_t i = 0; i < n; i++) a[i] = act_f(act, x[i], &slope[i]);
}
static void activate(dt_activation act, const float *x, float *a, float *slope, int64_t n)
{
    switch (act) {
    case DT_ACT_SILU:
        act_loop(DT_ACT_SILU, x, a, slope, n);
        break;
    case DT_ACT_GELU:
        act_loop(DT_ACT_GELU, x, a, slope, n);
        break;
    case DT_ACT_GELU_TANH:
        act_loop(DT_ACT_GELU_TANH, x, a, slope, n);
        break;
    case DT_ACT_QUICK_GELU:
        act_loop(DT_ACT_QUICK_GELU, x, a, slope, n);
        break;
    default:
        act_loop(DT_ACT_RELU, x, a, slope, n);
    }
}

/* y = act(x) */
void ISA_NAME(act_forward)(const dt_act_forward_args *args, int64_t first, int64_t n)
{
    float room[FLOATS], a[FLOATS];
    EACH_BLOCK (i, len, first, n) {
        activate(args->act, as_floats(args->x, args->dt, i, len, room), a, NULL, len);
        store_elements(args->y, args->dt, i, a, len);
    }
}
/* dx = dy act'(x) */
void ISA_NAME(act_backward)(const dt_act_backward_args *args, int64_t first, int64_t n)
{
    const void *dy = args->dy;
    void *dx = args->dx;
    float room[FLOATS], a[FLOATS], slope[FLOATS];
    EACH_BLOCK (i, len, first, n) {
        activate(args->act, as_floats(args->x, args->dt, i, len, room), a, slope, len);
        BY_TYPE(args->dt, T, SIMD_FOR (int64_t c = 0; c < len; c++) store(dx, T, i + c, slope[c] * load(dy, T, i + c)));
    }
}

/* n alternating elements of gate and up, starting at `at`: the gates up to the limit L, and 1 + the ups between -L and
 * L. inside: 1 where the gradient of gate or up passes its limit, else 0; NULL: not stored. NaN propagates. */
INLINE void clamp_pairs(const void *gate_up, dt_dtype T, int64_t at, int64_t n, float limit, float *restrict gate,
                        float *restrict up, float *restrict gate_inside, float *restrict up_inside)
{
    SIMD_FOR (int64_t c = 0; c < n; c++) {
        const float g = load(gate_up, T, at + 2 * c), u = load(gate_up, T, at + 2 * c + 1);
        gate[c] = g > limit ? limit : g;
        up[c] = 1.0f + (u > limit ? limit : u < -limit ? -limit : u);
        if (gate_inside) gate_inside[c] = g > limit ? 0.0f : 1.0f, up_inside[c] = fabsf(u) > limit ? 0.0f : 1.0f;
    }
}
static void clamped_forward(const dt_glu_forward_args *x, int64_t first, int64_t n)
{
    void *y = x->y;
    float gate[FLOATS], up[FLOATS], a[FLOATS];
    EACH_BLOCK (i, len, first * x->width, n * x->width) {
        BY_TYPE(x->dt, T, clamp_pairs(x->gate_up, T, 2 * i, len, x->limit, gate, up, NULL, NULL));
        activate(x->act, gate, a, NULL, len);
        BY_TYPE(x->dt, T, SIMD_FOR (int64_t c = 0; c < len; c++) store(y, T, i + c, a[c] * up[c]));
    }
}
static void clamped_backward(const dt_glu_backward_args *x, int64_t first, int64_t n)
{
    void *d = x->dgate_up;
    float gate[FLOATS], up[FLOATS], gate_inside[FLOATS], up_inside[FLOATS], a[FLOATS], slope[FLOATS], room[FLOATS];
    EACH_BLOCK (i, len, first * x->width, n * x->width) {
        const float *dy = as_floats(x->dy, x->dt, i, len, room);
        BY_TYPE(x->dt, T, clamp_pairs(x->gate_up, T, 2 * i, len, x->limit, gate, up, gate_inside, up_inside));
        activate(x->act, gate, a, slope, len);
        BY_TYPE(
            x->dt, T, SIMD_FOR (int64_t c = 0; c < len; c++) {
                store(d, T, 2 * (i + c), dy[c] * up[c] * slope[c] * gate_inside[c]);
                store(d, T, 2 * (i + c) + 1, dy[c] * a[c] * up_inside[c]);
            });
    }
}

/* y = act(gate) up */
static void plain_forward(const dt_glu_forward_args *args, int64_t first, int64_t n)
{
    const int64_t width = args->width;
    const void *gate_up = args->gate_up;
    void *y = args->y;
    float room[FLOATS], a[FLOATS];
    for (int64_t r = first; r < first + n; r++)
        EACH_BLOCK (i, len, r * width, width) {
            const int64_t gate = r * width + i, up = gate + width; /* in gate_up */
            activate(args->act, as_floats(gate_up, args->dt, gate, len, room), a, NULL, len);
            BY_TYPE(args->dt, T,
                    SIMD_FOR (int64_t c = 0; c < len; c++) store(y, T, i + c, a[c] * load(gate_up, T, up + c)));
        }
}

/* dgate = dy up act'(gate), dup = dy act(gate), for elements of gate_up that begin at gate and up. */
INLINE void glu_gradients(const float *a, const float *slope, const void *gate_up, const void *dy, void *dgate_up,
                          dt_dtype T, int64_t gate, int64_t up, int64_t i, int64_t n)
{
    SIMD_FOR (int64_t c = 0; c < n; c++) {
        const float u = load(gate_up, T, up + c), d = load(dy, T, i + c);
        store(dgate_up, T, gate + c, d * u * slope[c]);
        store(dgate_up, T, up + c, d * a[c]);
    }
}
static void plain_backward(const dt_glu_backward_args *args, int64_t first, int64_t n)
{
    const int64_t width = args->width;
    float room[FLOATS], a[FLOATS], slope[FLOATS];
    for (int64_t r = first; r < first + n; r++)
        EACH_BLOCK (i, len, r * width, width) {
            const int64_t gate = r * width + i, up = gate + width;
            activate(args->act, as_floats(args->gate_up, args->dt, gate, len, room), a, slope, len);
            BY_TYPE(args->dt, T, glu_gradients(a, slope, args->gate_up, args->dy, args->dgate_up, T, gate, up, i, len));
        }
}

void ISA_NAME(glu_forward)(const dt_glu_forward_args *args, int64_t first, int64_t n)
{
    (args->limit > 0 ? clamped_forward : plain_forward)(args, first, n);
}
void ISA_NAME(glu_backward)(const dt_glu_backward_args *args, int64_t first, int64_t n)
{
    (args->limit > 0 ? clamped_backward : plain_backward)(args, first, n);
}

/* ---- dropout, noise, rotation ------------------------------------------------------------------------------------ */

/* u_c of a block of columns is word c % 4 of philox(key, token_key, c / 4): [c % 4][c / 4], starting at `counter`. It
 * depends on the token, not on the rank or row that computes it. */
enum { COUNTERS = FLOATS / 4 };
INLINE void random_words(uint64_t key, uint64_t token_key, int64_t counter, uint32_t w[4][COUNTERS])
{
    SIMD_FOR (int i = 0; i < COUNTERS; i++) {
        const philox_out u = philox_f(key, token_key, (uint64_t)(counter + i));
        w[0][i] = u.w[0], w[1][i] = u.w[1], w[2][i] = u.w[2], w[3][i] = u.w[3];
    }
}

/* y_c = (addend_c +) x_c / (1 - p) if u_c >= p, else (addend_c +) 0. */
void ISA_NAME(dropout)(const dt_dropout_args *args, int64_t first, int64_t n)
{
    const int64_t width = args->width;
    const float p = args->p, scale = 1.0f / (1.0f - p);
    uint32_t w[4][COUNTERS];
    float room[FLOATS], kept[FLOATS];
    for (int64_t r = first; r < first + n; r++)
        EACH_BLOCK (at, len, r * width, width) {
            random_words(args->key, args->token_key[r], (at - r * width) / 4, w);
            const float *from = as_floats(args->x, args->dt, at, len, room);
            for (int64_t c = 0; c < len; c++) kept[c] = unit_of(w[c % 4][c / 4]) >= p ? from[c] * scale : 0.0f;
            if (args->addend) add_elements(kept, args->addend, args->dt, at, len);
            store_elements(args->y, args->dt, at, kept, len);
        }
}

/* x_c += bound (2 u_c - 1). */
void ISA_NAME(add_noise)(const dt_add_noise_args *args, int64_t first, int64_t n)
{
    const int64_t width = args->width;
    uint32_t w[4][COUNTERS];
    float x[FLOATS];
    for (int64_t r = first; r < first + n; r++)
        EACH_BLOCK (at, len, r * width, width) {
            random_words(args->key, args->token_key[r], (at - r * width) / 4, w);
            load_elements(x, args->x, args->dt, at, len);
            for (int64_t c = 0; c < len; c++) x[c] = FMA(args->bound[r], 2.0f * unit_of(w[c % 4][c / 4]) - 1.0f, x[c]);
            store_elements(args->x, args->dt, at, x, len);
        }
}

/* One head of one token: pair i rotates by the angle of cos_sin, which holds half cosines and then half sines. sign -1:
 * rotates backward, which is the gradient. */
INLINE void rope_body(void *x, const float *restrict cos_sin, int64_t half, float sign, dt_dtype T)
{
    SIMD_FOR (int64_t i = 0; i < half; i++) {
        const float a = load(x, T, i), b = load(x, T, half + i), c = cos_sin[i], s = sign * cos_sin[half + i];
        store(x, T, i, a * c - b * s);
        store(x, T, half + i, b * c + a * s);
    }
}
INLINE void rope_neighbours_body(void *x, const float *restrict cos_sin, int64_t half, float sign, dt_dtype T)
{
    SIMD_FOR (int64_t i = 0; i < half; i++) {
        const float a = load(x, T, 2 * i), b = load(x, T, 2 * i + 1), c = cos_sin[i], s = sign * cos_sin[half + i];
        store(x, T, 2 * i, a * c - b * s);
        store(x, T, 2 * i + 1, b * c + a * s);
    }
}
void ISA_NAME(rope)(void *x, const float *cos_sin, int64_t half, bool inverse, dt_dtype dt)
{
    const float sign = inverse ? -1.0f : 1.0f;
    BY_TYPE(dt, T, rope_body(x, cos_sin, half, sign, T));
}
void ISA_NAME(rope_neighbours)(void *x, const float *cos_sin, int64_t half, bool inverse, dt_dtype dt)
{
    const float sign = inverse ? -1.0f : 1.0f;
    BY_TYPE(dt, T, rope_neighbours_body(x, cos_sin, half, sign, T));
}
