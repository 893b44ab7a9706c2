/* nccl_fold.cu - the sum of a reduce-scatter: adds the blocks of all ranks, which are consecutive in memory. */
#include "kernel.cuh"
#include "nccl_fold.h"

/** recv[i] = ((accumulate ? recv[i] : 0) + p_0[i]) + p_1[i] + ... in float, rounded once (nccl_fold.h).
 *
 *  Arrays   p_r: S [n], the own one at own, the others at staged + k stride; recv: D [n].
 *  Threads  grid-stride over groups of N elements, each summed by one thread in rank order, so the grid does not affect
 *           the bits. N loads of every block are in flight. N = 1 serves unaligned addresses. */
template <class S, class D, int N>
__global__ void fold_kernel(const S *own, const S *staged, int64_t stride, int rank, int nranks, D *recv,
                            bool accumulate, int64_t n)
{
    typedef vec<S, N> from;
    typedef vec<D, N> to;
    for (int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * N; i < n;
         i += (int64_t)gridDim.x * blockDim.x * N) {
        float sum[N] = {};
        to *at = reinterpret_cast<to *>(recv + i);
        if (accumulate) {
            const to before = *at;
#pragma unroll
            for (int k = 0; k < N; k++) sum[k] = to_float(before.x[k]);
        }
        for (int r = 0; r < nranks; r++) {
            const S *piece = r == rank && nranks > 1 ? own : staged + (r < rank ? r : r - (nranks > 1)) * stride;
            const from x = *reinterpret_cast<const from *>(piece + i);
#pragma unroll
            for (int k = 0; k < N; k++) sum[k] = r == 0 && !accumulate ? to_float(x.x[k]) : sum[k] + to_float(x.x[k]);
        }
        to y;
#pragma unroll
        for (int k = 0; k < N; k++) y.x[k] = from_float<D>(sum[k]);
        *at = y;
    }
}

template <class S, class D> static void fold_as(dt_stream *s, const nccl_fold *f)
{
    enum { THREADS = 256, MOST_BLOCKS = 1024 };
    constexpr int N = 16 / (sizeof(S) > sizeof(D) ? sizeof(S) : sizeof(D)); /* at most 16 bytes on either side */
    const size_t own = (size_t)f->own | (size_t)f->staged | (size_t)f->stride * sizeof(S);
    const bool fits = ((own & (N * sizeof(S) - 1)) | ((size_t)f->recv & (N * sizeof(D) - 1))) == 0;
    const int64_t n = fits ? f->n / N * N : 0; /* the rest one element at a time */
    const S *first = (const S *)f->own, *staged = (const S *)f->staged;
    if (n > 0) {
        const int64_t blocks = ceil_div(n / N, THREADS);
        launch(s, (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS), THREADS, 0, fold_kernel<S, D, N>, first,
               staged, f->stride, f->rank, f->nranks, (D *)f->recv, f->accumulate, n);
    }
    if (n < f->n) {
        const int64_t blocks = ceil_div(f->n - n, THREADS);
        launch(s, (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS), THREADS, 0, fold_kernel<S, D, 1>, first + n,
               staged + n, f->stride, f->rank, f->nranks, (D *)f->recv + n, f->accumulate, f->n - n);
    }
}

dt_err nccl_fold_blocks(dt_stream *s, const nccl_fold *f)
{
    if (f->n == 0) return DT_OK;
    CUDA_BY_DTYPE(f->send_dt, S, "reduce_scatter",
                  { CUDA_BY_DTYPE(f->recv_dt, D, "reduce_scatter", { fold_as<S, D>(s, f); }); });
    CUDA_LAUNCHED();
    return DT_OK;
}
