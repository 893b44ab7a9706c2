/* gates.c - gates of linear and full attention: norm(x) silu(z), x sigmoid(gate), and decay and strength of the gated
 * delta rule. */
#include "kernels.h"

/* ---- norm(x) silu(z) ------------------------------------------------------------------------------------------- */

/* The norm's output before the gate, rounded twice: xhat, then its product with the weight. */
INLINE float normed(const void *x, const void *weight, float rstd, int64_t c, dt_dtype T)
{
    return rounded(rounded(load(x, T, c) * rstd, T) * load(weight, T, c), T);
}

INLINE float norm_gate_forward_body(const dt_rmsnorm *n, const void *x, const void *weight, const void *z, void *y,
                                    dt_dtype T)
{
    float ss = 0;
    _Pragma("omp simd reduction(+ : ss)") for (int64_t c = 0; c < n->width; c++)
    {
        const float v = load(x, T, c);
        ss = FMA(v, v, ss);
    }
    const float rstd = 1.0f / sqrtf(ss / (float)n->width + n->eps);
    SIMD_FOR (int64_t c = 0; c < n->width; c++) {
        const float gate = load(z, T, c);
        store(y, T, c, normed(x, weight, rstd, c, T) * (gate * sigmoid_f(gate)));
    }
    return rstd;
}
float ISA_NAME(norm_gate_forward)(const dt_rmsnorm *n, const void *x, const void *weight, const void *z, void *y)
{
    BY_TYPE(n->dt, T, return norm_gate_forward_body(n, x, weight, z, y, T));
}

/* With s = silu(z), xhat = x rstd and e = dy s: the norm's backward of e, and dz = dy norm silu'(z). Each element is
 * read before it is written. */
INLINE void norm_gate_backward_body(const dt_rmsnorm *n, const void *x, const void *weight, const void *z, float rstd,
                                    const void *dy, void *dx, void *dz, float *restrict dweight, dt_dtype T)
{
    float dot = 0;
    _Pragma("omp simd reduction(+ : dot)") for (int64_t c = 0; c < n->width; c++)
    {
        const float gate = load(z, T, c), e = load(dy, T, c) * (gate * sigmoid_f(gate)), xhat = load(x, T, c) * rstd;
        dweight[c] = FMA(e, xhat, dweight[c]);
        dot = FMA(e * load(weight, T, c), xhat, dot);
    }
    dot /= (float)n->width;
    SIMD_FOR (int64_t c = 0; c < n->width; c++) {
        const float gate = load(z, T, c), s = sigmoid_f(gate), d = load(dy, T, c), xhat = load(x, T, c) * rstd;
        const float y = normed(x, weight, rstd, c, T), g = d * (gate * s) * load(weight, T, c);
        store(dz, T, c, d * y * (s * FMA(gate, 1.0f - s, 1.0f)));
        store(dx, T, c, rstd * FMA(-xhat, dot, g));
    }
}
void ISA_NAME(norm_gate_backward)(const dt_rmsnorm *n, const void *x, const void *weight, const void *z, float rstd,
                                  const void *dy, void *dx, void *dz, float *dweight)
{
    BY_TYPE(n->dt, T, norm_gate_backward_body(n, x, weight, z, rstd, dy, dx, dz, dweight, T));
}

/* ---- x sigmoid(gate) --------------------------------------------------------------------------------------------- */

void ISA_NAME(sigmoid_gate_forward)(const void *x, const void *gate, void *out, int64_t n, dt_dtype dt)
{
    BY_TYPE(dt, T, SIMD_FOR (int64_t c = 0; c < n; c++) store(out, T, c, load(x, T, c) * sigmoid_f(load(gate, T, c))));
}

INLINE void sigmoid_gate_backward_body(const void *x, const void *gate, const void *dout, void *dx, void *dgate,
                                       int64_t n, dt_dtype T)
{
    SIMD_FOR (int64_t c = 0; c < n; c++) {
        const float s = sigmoid_f(load(gate, T, c)), d = load(dout, T, c), v = load(x, T, c);
        store(dx, T, c, d * s);
        store(dgate, T, c, d * v * (s * (1.0f - s)));
    }
}
void ISA_NAME(sigmoid_gate_backward)(const void *x, const void *gate, const void *dout, void *dx, void *dgate,
                                     int64_t n, dt_dtype dt)
{
    BY_TYPE(dt, T, sigmoid_gate_backward_body(x, gate, dout, dx, dgate, n, T));
}

/* ---- x sigmoid(gate of its row) ---------------------------------------------------------------------------------- */

INLINE void row_gate_forward_body(const dt_row_gate_forward_args *a, int64_t r, dt_dtype T)
{
    const float s = sigmoid_f(a->gate[r]);
    SIMD_FOR (int64_t i = r * a->width; i < (r + 1) * a->width; i++) store(a->x, T, i, load(a->x, T, i) * s);
}
void ISA_NAME(row_gate_forward)(const dt_row_gate_forward_args *args, int64_t first, int64_t n)
{
    for (int64_t r = first; r < first + n; r++) BY_TYPE(args->dt, T, row_gate_forward_body(args, r, T));
}

INLINE void row_gate_backward_body(const dt_row_gate_backward_args *a, int64_t r, dt_dtype T)
{
    const float s = sigmoid_f(a->gate[r]);
    float dot = 0;
    _Pragma("omp simd reduction(+ : dot)") for (int64_t i = r * a->width; i < (r + 1) * a->width; i++)
    {
        const float d = load(a->dx, T, i);
        dot = FMA(load(a->x, T, i), d, dot);
        store(a->dx, T, i, d * s);
    }
    store(a->dgate, T, r, dot * (s * (1.0f - s)));
}
void ISA_NAME(row_gate_backward)(const dt_row_gate_backward_args *args, int64_t first, int64_t n)
{
    for (int64_t r = first; r < first + n; r++) BY_TYPE(args->dt, T, row_gate_backward_body(args, r, T));
}

/* ---- decay and strength of the delta rule ------------------------------------------------------------------------ */

/* log(1 + e^x) without overflow. log1pf is not vectorised; there is one call per token and head. */
INLINE float softplus(float x) { return x > 20.0f ? x : log1pf(exp_f(x)); }

void ISA_NAME(delta_gates_forward)(const dt_delta_gates_forward_args *args, int64_t first, int64_t n)
{
    const dt_delta_gates *d = &args->d;
    for (int64_t r = first; r < first + n; r++)
        for (int64_t c = 0; c < d->width; c++) {
            const float rate = exp_f(load(args->a_log, d->dt, c)),
                        step = softplus(load(args->a, d->dt, r * d->ld + c) + load(args->dt_bias, d->dt, c));
            args->g[r * d->width + c] = -rate * step;
            args->beta[r * d->width + c] = sigmoid_f(load(args->b, d->dt, r * d->ld + c));
        }
}

/* da = - dg e^a_log sigmoid(a + dt_bias), db = dbeta beta (1 - beta); da_log = sum of dg g, ddt_bias = sum of da. */
void ISA_NAME(delta_gates_backward)(const dt_delta_gates_backward_args *args, int64_t first, int64_t n, float *sums)
{
    const dt_delta_gates *d = &args->d;
    for (int64_t r = first; r < first + n; r++)
        for (int64_t c = 0; c < d->width; c++) {
            const int64_t i = r * d->width + c, at = r * d->ld + c;
            const float rate = exp_f(load(args->a_log, d->dt, c)), dg = args->dg[i], beta = args->beta[i],
                        da = -dg * rate * sigmoid_f(load(args->a, d->dt, at) + load(args->dt_bias, d->dt, c));
            sums[c] = FMA(dg, args->g[i], sums[c]);
            sums[d->width + c] += da;
            store(args->da, d->dt, at, da);
            store(args->db, d->dt, at, args->dbeta[i] * beta * (1.0f - beta));
        }
}
