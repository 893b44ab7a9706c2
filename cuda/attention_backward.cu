/* attention_backward.cu - gradients of softmax attention, probabilities being formed anew from lse (Dao et al.,
 * arXiv:2205.14135, algorithm 4). Per query i and key j, with s = scale q.k, D_i = dout_i . out_i and f the dropout
 * factor:
 *     p = e^(s - lse_i)      dp = f dout_i . v_j      ds = p (dp - D_i)
 *     dv_j += f p dout_i     dq_i += scale ds k_j     dk_j += scale ds q_i
 *
 * One kernel makes dk and dv, a tile of keys a block, another dq, a tile of queries a block, each forming p anew: no
 * sum is shared by blocks, so none depends on which runs first. */
#include "attention.cuh"

/* D [n_tok, n_heads], a warp for each. This is the sum over keys of p_ij dp_ij, which the gradient of a softmax takes
 * off (dropout included: out was made with f p). */
template <class T>
__global__ void delta_kernel(const T *out, const T *dout, float *delta, int64_t n, int n_heads, int d, int64_t ld)
{
    const int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / WARP;
    if (i >= n) return;
    const int64_t from = i / n_heads * ld + i % n_heads * d;
    float sum = 0;
    for (int c = threadIdx.x % WARP; c < d; c += WARP)
        sum = fmaf(to_float(out[from + c]), to_float(dout[from + c]), sum);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) delta[i] = sum;
}

int64_t cuda_attention_scratch_elems(const dt_device *dev, const dt_attention *at)
{
    return (int64_t)at->n_tok * at->n_heads;
}

dt_err cuda_attention_backward(dt_device *dev, const dt_attention *at, const void *q, const void *k, const void *v,
                               const void *out, const float *lse, const void *dout, void *dq, void *dk, void *dv,
                               float *scratch, dt_stream *stream)
{
    dt_attention checked;
    DT_TRY(cuda_attention_check(at, &checked));
    dt_stream *s = cuda_stream(dev, stream, "attention_backward");
    const int64_t n = (int64_t)at->n_tok * at->n_heads;
    CUDA_BY_DTYPE(at->dt, T, "attention_backward", {
        if (n > 0)
            launch(s, (unsigned)ceil_div(n, 8), 8 * WARP, 0, delta_kernel<T>, (const T *)out, (const T *)dout, scratch,
                   n, at->n_heads, at->head_dim, at->o_ld);
        attention_arrays<T> a = {};
        a.q = (const T *)q, a.k = (const T *)k, a.v = (const T *)v, a.dout = (const T *)dout, a.lse = lse;
        a.delta = scratch, a.dq = (T *)dq, a.dk = (T *)dk, a.dv = (T *)dv;
        return cuda_attention_float_backward(s, checked, a);
    });
}
