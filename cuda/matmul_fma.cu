/* matmul_fma.cu - matmuls of fp32 matrices in fp32, for every form, row distance and alignment.
 *
 * Threads   A block computes a tile [BM, BN] of C, and a thread [TM, TN] of its elements in registers. Tiles of A and
 *           B are in shared memory as [BK, BM] and [BK, BN]. While the block multiplies one pair of tiles, its threads
 *           load the next pair to registers.
 * Numerics  An element of C is one chain of fused multiply-adds starting at k = 0, for any tile shape. A row of C
 *           therefore has the same bits for any m and any other rows. */
#include "matmul_tile.cuh"
#include "stored.cuh"

enum { BK = 16, V = 4 /* floats in 16 bytes */ };

template <int BM_, int BN_, int TM_, int TN_> struct tile_shape {
    enum { BM = BM_, BN = BN_, TM = TM_, TN = TN_, THREADS = BM / TM * (BN / TN) };
};
typedef tile_shape<16, 64, 2, 4> few_rows;
typedef tile_shape<64, 64, 4, 4> medium;
typedef tile_shape<128, 128, 8, 8> large;

/* A thread's elements of an operand's tile [BK, BO] (o: rows of A, columns of B), on the way from global to shared
 * memory. Adjacent threads load adjacent elements of a row: along k if the matrix is stored as [o, k], else along o. */
template <int BO, bool K_IN_ROWS, int THREADS> struct carried {
    enum { N = BK * BO / THREADS, LD = BO + V };
    static_assert(BK * BO % THREADS == 0, "every thread carries equally much");
    float x[N];

    __device__ static int outer(int i) { return K_IN_ROWS ? i / BK : i % BO; }
    __device__ static int term(int i) { return K_IN_ROWS ? i % BK : i / BO; }

    template <class Matrix> __device__ void load(const Matrix &src, int64_t o0, int64_t n_o, int64_t k0, int64_t n_k)
    {
#pragma unroll
        for (int e = 0; e < N; e++) {
            const int i = e * THREADS + (int)threadIdx.x;
            const int64_t o = o0 + outer(i), k = k0 + term(i);
            x[e] = o < n_o && k < n_k ? src.at(K_IN_ROWS ? o : k, K_IN_ROWS ? k : o) : 0.0f;
        }
    }
    __device__ void store(float *tile) const
    {
#pragma unroll
        for (int e = 0; e < N; e++) {
            const int i = e * THREADS + (int)threadIdx.x;
            tile[term(i) * LD + outer(i)] = x[e];
        }
    }
};

/* Row (column) i of a thread's part of a tile. A thread has vectors of up to 4 rows, BO / (T / 4) apart, so that
 * adjacent threads read adjacent vectors. */
template <int BO, int T> __device__ inline int place_in_tile(int thread, int i)
{
    constexpr int W = T < V ? T : V;
    return i / W * (BO / (T / W)) + thread * W + i % W;
}

template <int BO, int T> __device__ inline void load_terms(float *x, const float *row, int thread)
{
    constexpr int W = T < V ? T : V;
#pragma unroll
    for (int i = 0; i < T; i += W) {
        const vec<float, W> v = *reinterpret_cast<const vec<float, W> *>(row + place_in_tile<BO, T>(thread, i));
#pragma unroll
        for (int j = 0; j < W; j++) x[i + j] = v.x[j];
    }
}

/* C = end of (op(A) op(B) + D + bias), one tile of C per block. TA: A is stored as [k, m]; TB: B is stored as [n, k];
 * GROUPS: a grouped matmul, whose b is that of p. */
template <class S, class B, bool TA, bool TB, bool GROUPS = false>
__global__ void __launch_bounds__(S::THREADS) matmul_fma_kernel(matmul p, B b)
{
    typedef carried<S::BM, !TA, S::THREADS> carry_a;
    typedef carried<S::BN, TB, S::THREADS> carry_b;
    __shared__ __align__(16) float tile_a[2][BK * carry_a::LD], tile_b[2][BK * carry_b::LD];
    int64_t row0, col0;
    if constexpr (GROUPS) {
        if (!enter_group<float, S, TA>(p, &row0, &col0)) return;
        b = {static_cast<const float *>(p.b), p.ldb};
    } else {
        const tile_place tile = place_of_tile(blockIdx.x, (p.m + S::BM - 1) / S::BM, (p.n + S::BN - 1) / S::BN);
        row0 = tile.row * S::BM, col0 = tile.col * S::BN;
    }
    const float_matrix a = {static_cast<const float *>(p.a), p.lda};
    const int ty = threadIdx.x / (S::BN / S::TN), tx = threadIdx.x % (S::BN / S::TN);
    carry_a next_a;
    carry_b next_b;
    float sum[S::TM][S::TN] = {};
    next_a.load(a, row0, p.m, 0, p.k);
    next_b.load(b, col0, p.n, 0, p.k);
    for (int64_t k0 = 0, at = 0; k0 < p.k; k0 += BK, at ^= 1) {
        next_a.store(tile_a[at]);
        next_b.store(tile_b[at]);
        __syncthreads();
        next_a.load(a, row0, p.m, k0 + BK, p.k);
        next_b.load(b, col0, p.n, k0 + BK, p.k);
#pragma unroll
        for (int k = 0; k < BK; k++) {
            float x[S::TM], y[S::TN];
            load_terms<S::BM, S::TM>(x, tile_a[at] + k * carry_a::LD, ty);
            load_terms<S::BN, S::TN>(y, tile_b[at] + k * carry_b::LD, tx);
#pragma unroll
            for (int i = 0; i < S::TM; i++)
#pragma unroll
                for (int j = 0; j < S::TN; j++) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
        }
    }
    /* The end of a matmul is long code. Large tiles loop over one copy of it, in which the rows of sums move down. */
#pragma unroll(S::TM > 4 ? 1 : S::TM)
    for (int i = 0; i < S::TM; i++) {
        const int64_t row = row0 + place_in_tile<S::BM, S::TM>(ty, i);
#pragma unroll
        for (int j = 0; j < S::TN; j += V) {
            const int64_t col = col0 + place_in_tile<S::BN, S::TN>(tx, j), left = p.n - col;
            if (row < p.m && left > 0) finish_elements<float, V>(p, row, col, &sum[0][j], left < V ? (int)left : V);
        }
#pragma unroll
        for (int r = 0; r + 1 < S::TM; r++)
#pragma unroll
            for (int j = 0; j < S::TN; j++) sum[r][j] = sum[r + 1][j];
    }
}

template <class S> static dt_err run_groups(const matmul &p, bool trans_a, bool trans_b, dt_stream *s)
{
    launch(s, grid_of_groups<S>(p, trans_a), S::THREADS, 0,
           trans_a   ? matmul_fma_kernel<S, float_matrix, true, false, true>
           : trans_b ? matmul_fma_kernel<S, float_matrix, false, true, true>
                     : matmul_fma_kernel<S, float_matrix, false, false, true>,
           p, float_matrix());
    CUDA_LAUNCHED();
    return DT_OK;
}

template <class S> static dt_err run(const matmul &p, bool trans_a, bool trans_b, dt_stream *s)
{
    const unsigned grid = (unsigned)(ceil_div(p.m, S::BM) * ceil_div(p.n, S::BN));
    const float_matrix b = {static_cast<const float *>(p.b), p.ldb};
    typedef float_matrix F;
    launch(s, grid, S::THREADS, 0,
           trans_a   ? matmul_fma_kernel<S, F, true, false>
           : trans_b ? matmul_fma_kernel<S, F, false, true>
                     : matmul_fma_kernel<S, F, false, false>,
           p, b);
    CUDA_LAUNCHED();
    return DT_OK;
}

/* Quantised B; A is not transposed. Two tile shapes suffice, because fp32 with a quantised B is only used for small
 * models and tests. */
template <class S, class Q> static dt_err run_stored(const matmul &p, bool trans_b, dt_stream *s)
{
    const unsigned grid = (unsigned)(ceil_div(p.m, S::BM) * ceil_div(p.n, S::BN));
    launch(s, grid, S::THREADS, 0,
           trans_b ? matmul_fma_kernel<S, Q, false, true> : matmul_fma_kernel<S, Q, false, false>, p,
           Q(p.b, p.ldb, p.b_scaled));
    CUDA_LAUNCHED();
    return DT_OK;
}

template <class Q> static dt_err run_stored(const matmul &p, bool trans_b, dt_stream *s)
{
    return p.m <= few_rows::BM ? run_stored<few_rows, Q>(p, trans_b, s) : run_stored<large, Q>(p, trans_b, s);
}

dt_err cuda_matmul_fma(dt_device *dev, const matmul &p, bool trans_a, bool trans_b, dt_stream *s)
{
    const int64_t n_sm = cuda_of(dev)->properties.multiProcessorCount;
    if (p.n_groups > 0) return run_groups<medium>(p, trans_a, trans_b, s);
    if (p.b_scaled.how == dt_scaled::DT_SCALE_NF4) return run_stored<nf4_matrix>(p, trans_b, s);
    if (p.b_scaled.how != dt_scaled::DT_SCALE_NONE) return run_stored<int8_matrix>(p, trans_b, s);
    if (p.m <= few_rows::BM) return run<few_rows>(p, trans_a, trans_b, s);
    if (ceil_div(p.m, large::BM) * ceil_div(p.n, large::BN) >= n_sm) return run<large>(p, trans_a, trans_b, s);
    return run<medium>(p, trans_a, trans_b, s);
}
