/* latent.cu - the heads of latent attention (dt_latent), and their backward.
 *
 * Arrays    those of dt_latent.
 * Threads   A block per token. A thread has both elements of a rotated pair, so q may be in place.
 * Numerics  float, rounded once. dxr is summed over the heads in order. */
#include "kernel.cuh"

namespace
{

enum { THREADS = 256 };

/* Elements and angle of pair i of rope_dim / 2. */
struct turned_pair {
    int a, b;
    float cosine, sine;
};
__device__ inline turned_pair pair_of(const dt_latent &l, const float *row, int i, float sign)
{
    const int half = l.rope_dim / 2;
    return {l.neighbours ? 2 * i : i, l.neighbours ? 2 * i + 1 : half + i, row[i], sign * row[half + i]};
}
__device__ inline const float *angles_of(const dt_latent &l, int64_t t)
{
    return l.cos_sin + (int64_t)l.pos[t] * l.rope_dim;
}

template <class T> __device__ inline void store_pair(T *to, const turned_pair &p, float a, float b)
{
    to[p.a] = from_float<T>(a * p.cosine - b * p.sine);
    to[p.b] = from_float<T>(b * p.cosine + a * p.sine);
}

/* n blocks of width elements, of rows with these distances between blocks. */
template <class T>
__device__ inline void copy_blocks(T *to, int to_block, const T *from, int from_block, int n, int width)
{
    for (int i = threadIdx.x; i < n * width; i += THREADS) {
        const int h = i / width, c = i - h * width;
        to[h * to_block + c] = from[h * from_block + c];
    }
}

/* The last rope_dim elements of n heads of a token, which begin N + R elements apart. shared: all from one. */
template <class T>
__device__ inline void turn_heads(const dt_latent &l, T *to, const T *from, bool shared, const float *angles,
                                  float sign)
{
    const int half = l.rope_dim / 2, D = l.nope_dim + l.rope_dim;
    for (int i = threadIdx.x; i < l.n_heads * half; i += THREADS) {
        const int h = i / half;
        const turned_pair p = pair_of(l, angles, i - h * half, sign);
        const T *x = shared ? from : from + h * D + l.nope_dim;
        store_pair(to + h * D + l.nope_dim, p, to_float(x[p.a]), to_float(x[p.b]));
    }
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    latent_forward_kernel(dt_latent l, const T *xq, const T *xkv, const T *xr, T *q, T *k, T *v)
{
    const int64_t t = blockIdx.x, row = (l.kv_row ? l.kv_row[t] : t) * l.kv_ld;
    const int N = l.nope_dim, D = N + l.rope_dim, V = l.v_dim;
    const float *angles = angles_of(l, t);
    xq += t * l.xq_ld, xkv += t * l.xkv_ld, xr += t * l.xr_ld, q += t * l.q_ld, k += row, v += row;
    if (q != xq) copy_blocks(q, D, xq, D, l.n_heads, N);
    copy_blocks(k, D, xkv, N + V, l.n_heads, N);
    copy_blocks(v, V, xkv + N, N + V, l.n_heads, V);
    turn_heads(l, q, xq, false, angles, 1.0f);
    turn_heads(l, k, xr, true, angles, 1.0f);
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    latent_backward_kernel(dt_latent l, const T *dq, const T *dk, const T *dv, T *dxq, T *dxkv, T *dxr)
{
    const int64_t t = blockIdx.x;
    const int N = l.nope_dim, D = N + l.rope_dim, V = l.v_dim;
    const float *angles = angles_of(l, t);
    dq += t * l.q_ld, dk += t * l.kv_ld, dv += t * l.kv_ld, dxq += t * l.xq_ld, dxkv += t * l.xkv_ld,
        dxr += t * l.xr_ld;
    for (int i = threadIdx.x; i < l.rope_dim / 2; i += THREADS) {
        const turned_pair p = pair_of(l, angles, i, -1.0f);
        float a = 0, b = 0;
        for (int h = 0; h < l.n_heads; h++) a += to_float(dk[h * D + N + p.a]), b += to_float(dk[h * D + N + p.b]);
        store_pair(dxr, p, a, b);
    }
    if (dxq != dq) copy_blocks(dxq, D, dq, D, l.n_heads, N);
    copy_blocks(dxkv, N + V, dk, D, l.n_heads, N);
    copy_blocks(dxkv + N, N + V, dv, V, l.n_heads, V);
    turn_heads(l, dxq, dq, false, angles, -1.0f);
}

} // namespace

dt_err cuda_latent_forward(dt_device *dev, const dt_latent *l, const void *xq, const void *xkv, const void *xr, void *q,
                           void *k, void *v, dt_stream *stream)
{
    DT_TRY(dt_latent_check(l));
    dt_stream *s = cuda_stream(dev, stream, "latent_forward");
    if (l->n_tok == 0) return DT_OK;
    CUDA_BY_DTYPE(l->dt, T, "latent_forward", {
        launch(s, (unsigned)l->n_tok, THREADS, 0, latent_forward_kernel<T>, *l, (const T *)xq, (const T *)xkv,
               (const T *)xr, (T *)q, (T *)k, (T *)v);
    });
    CUDA_LAUNCHED();
    return DT_OK;
}

dt_err cuda_latent_backward(dt_device *dev, const dt_latent *l, const void *dq, const void *dk, const void *dv,
                            void *dxq, void *dxkv, void *dxr, dt_stream *stream)
{
    DT_TRY(dt_latent_check(l));
    dt_stream *s = cuda_stream(dev, stream, "latent_backward");
    if (l->n_tok == 0) return DT_OK;
    CUDA_BY_DTYPE(l->dt, T, "latent_backward", {
        launch(s, (unsigned)l->n_tok, THREADS, 0, latent_backward_kernel<T>, *l, (const T *)dq, (const T *)dk,
               (const T *)dv, (T *)dxq, (T *)dxkv, (T *)dxr);
    });
    CUDA_LAUNCHED();
    return DT_OK;
}
