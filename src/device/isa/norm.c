/* norm.c - RMSNorm and LayerNorm of one row. The second pass over a row reads it from cache, so two passes cost as much
 * as one.
 *
 * With xhat = (x - mean) rstd and g = dy * weight, over a row of C elements:
 *     RMSNorm    dx = rstd (g - xhat mean(g xhat))                 (mean = 0 in xhat; weight: the factor of dt_rmsnorm)
 *     LayerNorm  dx = rstd (g - mean(g) - xhat mean(g xhat))
 *     dweight += dy xhat, dbias += dy
 *     RMSNorm that only scales: xhat = x, dx = g */
#include "kernels.h"

/* The factor of dt_rmsnorm is this plus the weight. -0 + w has the bits of w. */
INLINE float offset_of(const dt_rmsnorm *n) { return n->plus_one ? 1.0f : -0.0f; }

/* y = factor * x rstd with rstd = 1 / sqrt(mean(x^2) + eps). Returns rstd for backward. */
INLINE float rmsnorm_forward_body(const dt_rmsnorm *n, const void *x, const void *weight, void *y, dt_dtype T)
{
    const int64_t width = n->width;
    const float offset = offset_of(n);
    float ss = 0;
    _Pragma("omp simd reduction(+ : ss)") for (int64_t c = 0; c < width; c++)
    {
        const float v = load(x, T, c);
        ss = FMA(v, v, ss);
    }
    const float rstd = n->only_scales ? 1.0f : 1.0f / sqrtf(ss / (float)width + n->eps);
    /* xhat is rounded to the activation type before it is multiplied by the weight, except with plus_one, as in the
     * reference implementations of the model families (algorithms.md 8.4) */
    SIMD_FOR (int64_t c = 0; c < width; c++) {
        const float xhat = load(x, T, c) * rstd;
        store(y, T, c, (n->plus_one ? xhat : rounded(xhat, T)) * (offset + load(weight, T, c)));
    }
    return rstd;
}
float ISA_NAME(rmsnorm_forward)(const dt_rmsnorm *n, const void *x, const void *weight, void *y)
{
    BY_TYPE(n->dt, T, return rmsnorm_forward_body(n, x, weight, y, T));
}

/* dx (overwritten, or added to) and dweight (added to), as above. dx may be dy: each element is read before it is
 * written. */
INLINE void rmsnorm_backward_body(const dt_rmsnorm *n, const void *x, const void *weight, float rstd, const void *dy,
                                  void *dx, bool add_to_dx, float *restrict dweight, dt_dtype T)
{
    const int64_t width = n->width;
    const float offset = offset_of(n);
    float dot = 0;
    _Pragma("omp simd reduction(+ : dot)") for (int64_t c = 0; c < width; c++)
    {
        const float d = load(dy, T, c), xhat = load(x, T, c) * rstd;
        dweight[c] = FMA(d, xhat, dweight[c]);
        dot = FMA(d * (offset + load(weight, T, c)), xhat, dot);
    }
    dot = n->only_scales ? 0 : dot / (float)width;
    SIMD_FOR (int64_t c = 0; c < width; c++) {
        const float g = load(dy, T, c) * (offset + load(weight, T, c)), xhat = load(x, T, c) * rstd;
        const float grad = rstd * FMA(-xhat, dot, g);
        store(dx, T, c, add_to_dx ? load(dx, T, c) + grad : grad);
    }
}
void ISA_NAME(rmsnorm_backward)(const dt_rmsnorm *n, const void *x, const void *weight, float rstd, const void *dy,
                                void *dx, bool add_to_dx, float *dweight)
{
    BY_TYPE(n->dt, T, BY_FLAG(add_to_dx, ADD, rmsnorm_backward_body(n, x, weight, rstd, dy, dx, ADD, dweight, T)));
}

/* y = weight (x - mean) rstd + bias with rstd = 1 / sqrt(var + eps). A second pass over the row computes the variance,
 * which avoids cancellation. Backward needs mean and rstd. */
INLINE void layernorm_forward_body(const void *x, const void *weight, const void *bias, void *y, float *mean,
                                   float *rstd, int64_t width, float eps, dt_dtype T)
{
    float sum = 0, ss = 0;
    _Pragma("omp simd reduction(+ : sum)") for (int64_t c = 0; c < width; c++) sum += load(x, T, c);
    const float mu = sum / (float)width;
    _Pragma("omp simd reduction(+ : ss)") for (int64_t c = 0; c < width; c++)
    {
        const float v = load(x, T, c) - mu;
        ss = FMA(v, v, ss);
    }
    const float rs = 1.0f / sqrtf(ss / (float)width + eps);
    SIMD_FOR (int64_t c = 0; c < width; c++)
        store(y, T, c, FMA((load(x, T, c) - mu) * rs, load(weight, T, c), load(bias, T, c)));
    *mean = mu;
    *rstd = rs;
}
void ISA_NAME(layernorm_forward)(const dt_layernorm_forward_args *args, int64_t first, int64_t n)
{
    for (int64_t r = first; r < first + n; r++) {
        const void *x = cpu_at(args->x, args->dt, r * args->width);
        void *y = cpu_at_w(args->y, args->dt, r * args->width);
        float mean, rstd;
        BY_TYPE(args->dt, T,
                layernorm_forward_body(x, args->weight, args->bias, y, &mean, &rstd, args->width, args->eps, T));
        if (args->mean) args->mean[r] = mean;
        if (args->rstd) args->rstd[r] = rstd;
    }
}

/* dx (overwritten, or added to), dweight and dbias (added to), as above. */
INLINE void layernorm_backward_body(const void *x, const void *weight, float mean, float rstd, const void *dy, void *dx,
                                    bool add_to_dx, float *restrict dweight, float *restrict dbias, int64_t width,
                                    dt_dtype T)
{
    float dot = 0, sum = 0;
    _Pragma("omp simd reduction(+ : dot, sum)") for (int64_t c = 0; c < width; c++)
    {
        const float d = load(dy, T, c), xhat = (load(x, T, c) - mean) * rstd, g = d * load(weight, T, c);
        dweight[c] = FMA(d, xhat, dweight[c]);
        dbias[c] += d;
        dot = FMA(g, xhat, dot);
        sum += g;
    }
    dot /= (float)width;
    sum /= (float)width;
    SIMD_FOR (int64_t c = 0; c < width; c++) {
        const float g = load(dy, T, c) * load(weight, T, c), xhat = (load(x, T, c) - mean) * rstd;
        const float grad = rstd * FMA(-xhat, dot, g - sum);
        store(dx, T, c, add_to_dx ? load(dx, T, c) + grad : grad);
    }
}
void ISA_NAME(layernorm_backward)(const void *x, const void *weight, float mean, float rstd, const void *dy, void *dx,
                                  bool add_to_dx, float *dweight, float *dbias, int64_t width, dt_dtype dt)
{
    BY_TYPE(
        dt, T,
        BY_FLAG(add_to_dx, ADD, layernorm_backward_body(x, weight, mean, rstd, dy, dx, ADD, dweight, dbias, width, T)));
}
