/* gates.cu - gates of linear and full attention: norm(x) silu(z), x sigmoid(gate), decay and strength of the delta
 * rule, and copies of blocks.
 *
 * Arrays    those of dt_rmsnorm, dt_blocks and dt_delta_gates.
 * Threads   A warp per row of a norm; otherwise a thread per element. Backward of weights: PARTS blocks store their
 *           sums, which cuda_add_parts adds in order.
 * Numerics  float, rounded once, except the norm, which is rounded to T as rmsnorm_forward rounds it. */
#include "sums.cuh"

namespace
{

enum { THREADS = 256, N_WARPS = THREADS / WARP, PARTS = 128 };

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/* ---- norm(x) silu(z) --------------------------------------------------------------------------------------------- */

template <class T> struct norm_gate {
    int64_t n_rows, group, x_ld, y_ld, z_ld;
    int width;
    float eps;
    const T *x, *weight, *z;

    __device__ int64_t at(int64_t r, int64_t ld) const { return r / group * ld + r % group * width; }
};

template <class T> __device__ inline float normed(T x, T weight, float rstd)
{
    const float xhat = to_float(from_float<T>(to_float(x) * rstd));
    return to_float(from_float<T>(xhat * to_float(weight)));
}

template <class T>
__global__ void __launch_bounds__(THREADS) norm_gate_forward_kernel(norm_gate<T> n, T *y, float *rstd)
{
    const int64_t r = blockIdx.x * (int64_t)N_WARPS + threadIdx.x / WARP;
    const int lane = threadIdx.x % WARP;
    if (r >= n.n_rows) return;
    const T *x = n.x + n.at(r, n.x_ld), *z = n.z + n.at(r, n.z_ld);
    y += n.at(r, n.y_ld);
    float ss = 0.0f;
    for (int c = lane; c < n.width; c += WARP) ss = fmaf(to_float(x[c]), to_float(x[c]), ss);
    const float rs = 1.0f / sqrtf(warp_sum(ss) / (float)n.width + n.eps);
    if (lane == 0 && rstd) rstd[r] = rs;
    for (int c = lane; c < n.width; c += WARP) {
        const float gate = to_float(z[c]);
        y[c] = from_float<T>(normed(x[c], n.weight[c], rs) * (gate * sigmoid(gate)));
    }
}

/* Block b has the rows b N_WARPS + w, + PARTS N_WARPS, ... of warp w. sums: shared memory, [N_WARPS][width]; a thread
 * adds only to its own columns. part [gridDim][width]. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    norm_gate_backward_kernel(norm_gate<T> n, const float *rstd, const T *dy, T *dx, T *dz, float *part)
{
    DYNAMIC_SHARED(float, sums);
    const int lane = threadIdx.x % WARP;
    float *mine = sums + threadIdx.x / WARP * n.width;
    for (int c = lane; c < n.width; c += WARP) mine[c] = 0.0f;
    for (int64_t r = blockIdx.x * (int64_t)N_WARPS + threadIdx.x / WARP; r < n.n_rows; r += gridDim.x * N_WARPS) {
        const T *x = n.x + n.at(r, n.x_ld), *z = n.z + n.at(r, n.z_ld), *d = dy + n.at(r, n.y_ld);
        const float rs = rstd[r];
        float along = 0.0f;
        for (int c = lane; c < n.width; c += WARP) {
            const float gate = to_float(z[c]), e = to_float(d[c]) * (gate * sigmoid(gate)), xhat = to_float(x[c]) * rs;
            mine[c] = fmaf(e, xhat, mine[c]);
            along = fmaf(e * to_float(n.weight[c]), xhat, along);
        }
        along = warp_sum(along) / (float)n.width;
        for (int c = lane; c < n.width; c += WARP) {
            const float gate = to_float(z[c]), s = sigmoid(gate), e = to_float(d[c]), xhat = to_float(x[c]) * rs,
                        y = normed(x[c], n.weight[c], rs), g = e * (gate * s) * to_float(n.weight[c]);
            dz[n.at(r, n.z_ld) + c] = from_float<T>(e * y * (s * fmaf(gate, 1.0f - s, 1.0f)));
            dx[n.at(r, n.x_ld) + c] = from_float<T>(rs * fmaf(-xhat, along, g));
        }
    }
    __syncthreads();
    for (int c = threadIdx.x; c < n.width; c += THREADS) {
        float sum = 0.0f;
        for (int w = 0; w < N_WARPS; w++) sum += sums[w * n.width + c];
        part[(int64_t)blockIdx.x * n.width + c] = sum;
    }
}

template <class T>
norm_gate<T> norm_gate_of(const dt_rmsnorm *n, const void *x, const void *weight, const void *z, int64_t z_group_ld)
{
    return {n->n_rows,     n->group, n->group_ld,  n->y_group_ld,     z_group_ld,
            (int)n->width, n->eps,   (const T *)x, (const T *)weight, (const T *)z};
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

enum { COPY, GATE, GATE_BACKWARD };
template <class T, int what>
__global__ void __launch_bounds__(THREADS)
    blocks_kernel(dt_blocks b, const T *x, const T *gate, const T *dout, T *out, T *dgate)
{
    const int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x, per_row = b.n_blocks * b.width;
    if (i >= b.n_rows * per_row) return;
    const int64_t r = i / per_row, block = i % per_row / b.width, c = i % b.width,
                  at_x = r * b.x_ld + block * b.x_block + c, at_y = r * b.y_ld + block * b.y_block + c;
    if (what == COPY) {
        out[at_y] = x[at_x];
        return;
    }
    const float s = sigmoid(to_float(gate[at_y])), v = to_float(x[at_x]);
    if (what == GATE) {
        out[at_x] = from_float<T>(v * s);
        return;
    }
    const float d = to_float(dout[at_x]);
    out[at_x] = from_float<T>(d * s);
    dgate[at_y] = from_float<T>(d * v * (s * (1.0f - s)));
}

template <int what>
dt_err run_blocks(dt_device *dev, dt_stream *stream, const char *op, const dt_blocks *b, const void *x,
                  const void *gate, const void *dout, void *out, void *dgate)
{
    DT_TRY(dt_blocks_check(b));
    dt_stream *s = cuda_stream(dev, stream, op);
    const int64_t n = b->n_rows * b->n_blocks * b->width;
    if (n == 0) return DT_OK;
    CUDA_BY_DTYPE(b->dt, T, op, {
        launch(s, (unsigned)ceil_div(n, THREADS), THREADS, 0, blocks_kernel<T, what>, *b, (const T *)x, (const T *)gate,
               (const T *)dout, (T *)out, (T *)dgate);
    });
    CUDA_LAUNCHED();
    return DT_OK;
}

/* ---- decay and strength of the delta rule ------------------------------------------------------------------------ */

__device__ inline float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

template <class T>
__global__ void __launch_bounds__(THREADS) delta_gates_kernel(dt_delta_gates d, const T *a, const T *b, const T *a_log,
                                                              const T *dt_bias, float *g, float *beta)
{
    const int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    if (i >= d.n_rows * d.width) return;
    const int64_t c = i % d.width, at = i / d.width * d.ld + c;
    g[i] = -expf(to_float(a_log[c])) * softplus(to_float(a[at]) + to_float(dt_bias[c]));
    beta[i] = sigmoid(to_float(b[at]));
}

/* A thread per column, of the rows n_rows p / PARTS to n_rows (p+1) / PARTS. part [2][PARTS][width]. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    delta_gates_backward_kernel(dt_delta_gates d, const T *a, const float *g, const float *beta, const T *a_log,
                                const T *dt_bias, const float *dg, const float *dbeta, T *da, T *db, float *part)
{
    const int64_t p = blockIdx.x, first = d.n_rows * p / PARTS, end = d.n_rows * (p + 1) / PARTS;
    for (int64_t c = threadIdx.x; c < d.width; c += THREADS) {
        const float rate = expf(to_float(a_log[c])), bias = to_float(dt_bias[c]);
        float of_log = 0.0f, of_bias = 0.0f;
        for (int64_t r = first; r < end; r++) {
            const int64_t i = r * d.width + c, at = r * d.ld + c;
            const float x = -dg[i] * rate * sigmoid(to_float(a[at]) + bias);
            of_log = fmaf(dg[i], g[i], of_log);
            of_bias += x;
            da[at] = from_float<T>(x);
            db[at] = from_float<T>(dbeta[i] * beta[i] * (1.0f - beta[i]));
        }
        part[p * d.width + c] = of_log;
        part[(PARTS + p) * d.width + c] = of_bias;
    }
}

} // namespace

/* ---- entries of the table ---------------------------------------------------------------------------------------- */

dt_err cuda_norm_gate_forward(dt_device *dev, const dt_rmsnorm *n, const void *x, const void *weight, const void *z,
                              int64_t z_group_ld, void *y, float *rstd, dt_stream *stream)
{
    DT_TRY(dt_norm_gate_check(n, z_group_ld));
    dt_stream *s = cuda_stream(dev, stream, "norm_gate_forward");
    if (n->n_rows == 0) return DT_OK;
    CUDA_BY_DTYPE(n->dt, T, "norm_gate_forward", {
        launch(s, (unsigned)ceil_div(n->n_rows, N_WARPS), THREADS, 0, norm_gate_forward_kernel<T>,
               norm_gate_of<T>(n, x, weight, z, z_group_ld), (T *)y, rstd);
    });
    CUDA_LAUNCHED();
    return DT_OK;
}

dt_err cuda_norm_gate_backward(dt_device *dev, const dt_rmsnorm *n, const void *x, const void *weight, const void *z,
                               int64_t z_group_ld, const float *rstd, const void *dy, void *dx, void *dz, void *dweight,
                               dt_dtype gt, bool accumulate, float *scratch, dt_stream *stream)
{
    DT_TRY(dt_norm_gate_check(n, z_group_ld));
    dt_stream *s = cuda_stream(dev, stream, "norm_gate_backward");
    const int64_t parts = dt_min_i64(ceil_div(n->n_rows, N_WARPS), PARTS);
    CUDA_BY_DTYPE(n->dt, T, "norm_gate_backward", {
        if (parts > 0)
            launch(s, (unsigned)parts, THREADS, (size_t)(N_WARPS * n->width) * sizeof(float),
                   norm_gate_backward_kernel<T>, norm_gate_of<T>(n, x, weight, z, z_group_ld), rstd, (const T *)dy,
                   (T *)dx, (T *)dz, scratch);
    });
    CUDA_LAUNCHED();
    if (!dweight) return DT_OK;
    return cuda_add_parts(s, scratch, parts, n->width, dweight, NULL, gt, accumulate);
}

dt_err cuda_copy_blocks(dt_device *dev, const dt_blocks *b, const void *x, void *y, dt_stream *stream)
{
    return run_blocks<COPY>(dev, stream, "copy_blocks", b, x, NULL, NULL, y, NULL);
}

dt_err cuda_sigmoid_gate_forward(dt_device *dev, const dt_blocks *b, const void *x, const void *gate, void *out,
                                 dt_stream *stream)
{
    return run_blocks<GATE>(dev, stream, "sigmoid_gate_forward", b, x, gate, NULL, out, NULL);
}

dt_err cuda_sigmoid_gate_backward(dt_device *dev, const dt_blocks *b, const void *x, const void *gate, const void *dout,
                                  void *dx, void *dgate, dt_stream *stream)
{
    return run_blocks<GATE_BACKWARD>(dev, stream, "sigmoid_gate_backward", b, x, gate, dout, dx, dgate);
}

dt_err cuda_delta_gates_forward(dt_device *dev, const dt_delta_gates *d, const void *a, const void *b,
                                const void *a_log, const void *dt_bias, float *g, float *beta, dt_stream *stream)
{
    DT_TRY(dt_delta_gates_check(d));
    dt_stream *s = cuda_stream(dev, stream, "delta_gates_forward");
    const int64_t n = d->n_rows * d->width;
    if (n == 0) return DT_OK;
    CUDA_BY_DTYPE(d->dt, T, "delta_gates_forward", {
        launch(s, (unsigned)ceil_div(n, THREADS), THREADS, 0, delta_gates_kernel<T>, *d, (const T *)a, (const T *)b,
               (const T *)a_log, (const T *)dt_bias, g, beta);
    });
    CUDA_LAUNCHED();
    return DT_OK;
}

dt_err cuda_delta_gates_backward(dt_device *dev, const dt_delta_gates *d, const void *a, const float *g,
                                 const float *beta, const void *a_log, const void *dt_bias, const float *dg,
                                 const float *dbeta, void *da, void *db, void *da_log, void *ddt_bias, dt_dtype gt,
                                 bool accumulate, float *scratch, dt_stream *stream)
{
    DT_TRY(dt_delta_gates_check(d));
    dt_stream *s = cuda_stream(dev, stream, "delta_gates_backward");
    const int64_t parts = d->n_rows > 0 ? PARTS : 0;
    CUDA_BY_DTYPE(d->dt, T, "delta_gates_backward", {
        if (parts > 0)
            launch(s, (unsigned)parts, THREADS, 0, delta_gates_backward_kernel<T>, *d, (const T *)a, g, beta,
                   (const T *)a_log, (const T *)dt_bias, dg, dbeta, (T *)da, (T *)db, scratch);
    });
    CUDA_LAUNCHED();
    if (!da_log && !ddt_bias) return DT_OK;
    return cuda_add_parts(s, scratch, parts, d->width, da_log, ddt_bias, gt, accumulate);
}
