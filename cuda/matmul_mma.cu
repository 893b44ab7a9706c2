/* matmul_mma.cu - matmuls of bf16 and fp16 matrices on tensor cores, for every form, row distance and alignment.
 *
 * Threads   A block computes a tile [BM, BN] of C, and each warp a tile [WM, WN] of the block's tile. Tiles of A and B,
 *           BK deep, pass through a ring of STAGES buffers in shared memory. While the block multiplies one pair, the
 *           next ones are in flight (cp.async). A buffer stores a tile in its matrix's order, with k along the rows
 *           or across them; ldmatrix transposes if needed. 16-byte chunks are swizzled over the banks, so that ldmatrix
 *           reads the 8 rows of a matrix from 8 different groups of banks.
 * Numerics  An element of C is one chain of mma instructions over k, 16 terms at a time starting at k = 0, for any tile
 *           shape. For batch-invariant rows the chain is divided into pieces, whose lengths depend only on k. Sums of
 *           pieces are added in order. One block computes all pieces of a tile, or each piece has its own block and a
 *           second pass adds the sums. A batch-invariant row of C therefore has the same bits for any m and any other
 *           rows.
 *
 * Generation multiplies few rows by a whole weight matrix, and is limited by memory. Then each piece has its own block:
 * all multiprocessors read B, with many copies in flight. */
#include "matmul_mma.cuh"

/* C = end of (op(A) op(B) + D + bias), one tile of C per block. TA: A is stored as [k, m]; TB: B is stored as [n, k];
 * PIECES: k is divided into pieces, see tile_sums; GROUPS: a grouped matmul. */
template <class T, class S, bool TA, bool TB, bool PIECES, bool GROUPS = false>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) matmul_mma_kernel(matmul p)
{
    DYNAMIC_SHARED(T, shared);
    constexpr int A_ELEMS = S::BM * S::BK, B_ELEMS = S::BN * S::BK, STAGE = A_ELEMS + B_ELEMS;
    int64_t row0, col0;
    if constexpr (GROUPS) {
        if (!enter_group<T, S, TA>(p, &row0, &col0)) return;
    } else {
        const tile_place tile = place_of_tile(blockIdx.x, (p.m + S::BM - 1) / S::BM, (p.n + S::BN - 1) / S::BN);
        row0 = tile.row * S::BM, col0 = tile.col * S::BN;
    }
    const terms mine(p);
    const int64_t n_steps = (mine.n + S::BK - 1) / S::BK;
    operand<T, S::BM, S::BK, !TA> a(p.a, p.lda, row0, p.m, mine);
    operand<T, S::BN, S::BK, TB> b(p.b, p.ldb, col0, p.n, mine);
    int filled = 0, read = 0; /* indices in the ring */
    const auto load = [&]() {
        if (a.k_left > 0) {
            a.template load<S::THREADS>(shared + filled * STAGE, p.vectors_in);
            b.template load<S::THREADS>(shared + filled * STAGE + A_ELEMS, p.vectors_in);
        }
        filled = filled + 1 < S::STAGES ? filled + 1 : 0;
        copy_async_commit(); /* empty groups at the end keep the wait count correct */
    };
    tile_sums<S, PIECES> sum(p);
    for (int stage = 0; stage < S::STAGES - 1; stage++) load();
    for (int64_t step = 0; step < n_steps; step++) {
        copy_async_wait<S::STAGES - 2>();
        __syncthreads(); /* this step's tiles have arrived, and all warps have read the previous step's */
        load();
        multiply_tiles<T, S, TA, TB>(sum.chain, shared + read * STAGE, shared + read * STAGE + A_ELEMS);
        sum.end_step(p, step + 1 == n_steps);
        read = read + 1 < S::STAGES ? read + 1 : 0;
    }
    __syncthreads(); /* the tile of C replaces the ring */
    finish_tile<T, S, PIECES>(p, reinterpret_cast<float *>(shared), sum, row0, col0);
}

/* ---- the choice of a kernel -------------------------------------------------------------------------------------- */

template <class T, class S, bool TA, bool TB, bool PIECES>
static dt_err run(dt_device *dev, const matmul &p, dt_stream *s)
{
    static bool allowed;
    if (!allowed) CUDA_ALLOW_SHARED((matmul_mma_kernel<T, S, TA, TB, PIECES>), S::shared_nbytes);
    allowed = true;
    return launch_tiles<T, S, PIECES>(dev, p, s, matmul_mma_kernel<T, S, TA, TB, PIECES>);
}

/* k as one chain. */
template <class T, class S>
static dt_err run_chains(dt_device *dev, const matmul &p, bool trans_a, bool trans_b, dt_stream *s)
{
    if (trans_a) return run<T, S, true, false, false>(dev, p, s);
    return trans_b ? run<T, S, false, true, false>(dev, p, s) : run<T, S, false, false, false>(dev, p, s);
}

/* k in pieces; A is not transposed. */
template <class T, class S> static dt_err run_pieces(dt_device *dev, const matmul &p, bool trans_b, dt_stream *s)
{
    return trans_b ? run<T, S, false, true, true>(dev, p, s) : run<T, S, false, false, true>(dev, p, s);
}

template <class T, int BM, int STAGES>
static dt_err run_few_rows(dt_device *dev, const matmul &p, bool trans_b, dt_stream *s)
{
    const int64_t n_sm = cuda_of(dev)->properties.multiProcessorCount;
    if (ceil_div(p.n, few_wide_rows<BM>::BN) >= 2 * n_sm) return run_pieces<T, few_wide_rows<BM>>(dev, p, trans_b, s);
    return run_pieces<T, few_rows<BM, STAGES>>(dev, p, trans_b, s);
}

template <class T, bool TA, bool TB, bool PIECES> static dt_err run_medium_groups(const matmul &p, dt_stream *s)
{
    static bool allowed;
    if (!allowed) CUDA_ALLOW_SHARED((matmul_mma_kernel<T, medium, TA, TB, PIECES, true>), medium::shared_nbytes);
    allowed = true;
    launch(s, grid_of_groups<medium>(p, TA), medium::THREADS, medium::shared_nbytes,
           matmul_mma_kernel<T, medium, TA, TB, PIECES, true>, p);
    CUDA_LAUNCHED();
    return DT_OK;
}

/* A grouped matmul. The host does not know how many rows a group has, and chooses medium tiles. */
template <class T> static dt_err run_groups(const matmul &p, bool trans_a, bool trans_b, dt_stream *s)
{
    if (trans_a) return run_medium_groups<T, true, false, false>(p, s);
    if (p.piece > 0)
        return trans_b ? run_medium_groups<T, false, true, true>(p, s) : run_medium_groups<T, false, false, true>(p, s);
    return trans_b ? run_medium_groups<T, false, true, false>(p, s) : run_medium_groups<T, false, false, false>(p, s);
}

/* Large tiles read A and B least often. They are used if there are enough of them to fill the GPU. */
template <class T> static dt_err run_tiles(dt_device *dev, const matmul &p, bool trans_a, bool trans_b, dt_stream *s)
{
    const int64_t n_sm = cuda_of(dev)->properties.multiProcessorCount;
    if (p.piece > 0) {
        if (!p.vectors_in || p.m > FEW_ROWS) return run_pieces<T, medium>(dev, p, trans_b, s);
        if (p.m <= 16) return run_few_rows<T, 16, 4>(dev, p, trans_b, s);
        if (p.m <= 32) return run_few_rows<T, 32, 4>(dev, p, trans_b, s);
        return run_few_rows<T, FEW_ROWS, 3>(dev, p, trans_b, s);
    }
    if (p.vectors_in && ceil_div(p.m, large::BM) * ceil_div(p.n, large::BN) >= n_sm)
        return run_chains<T, large>(dev, p, trans_a, trans_b, s);
    return run_chains<T, medium>(dev, p, trans_a, trans_b, s);
}

dt_err cuda_matmul_mma(dt_device *dev, const matmul &args, dt_dtype dt, bool trans_a, bool trans_b, dt_stream *s)
{
    matmul p = args;
    p.vectors_in = vectors_fit((size_t)(p.lda | p.ldb | (trans_a ? 0 : p.group_stride)) * 2, p.a, p.b);
    if (p.n_groups > 0)
        return dt == DT_BF16 ? run_groups<bf16>(p, trans_a, trans_b, s) : run_groups<__half>(p, trans_a, trans_b, s);
    return dt == DT_BF16 ? run_tiles<bf16>(dev, p, trans_a, trans_b, s)
                         : run_tiles<__half>(dev, p, trans_a, trans_b, s);
}
