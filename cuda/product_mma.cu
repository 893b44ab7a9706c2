/* product_mma.cu - products of bf16 and fp16 matrices on tensor cores, for every form, row distance and alignment.
 *
 * A block computes a tile [BM, BN] of C, its warps tiles [WM, WN] of that. Tiles of A and B, BK deep, pass through a
 * ring of STAGES buffers in shared memory: while one is multiplied the next ones are on their way (cp.async). A buffer
 * holds a tile as the matrix is stored, k along its rows or across them; ldmatrix turns what has to be turned. Chunks
 * of 16 bytes are swizzled over the banks, so that the 8 rows of a small matrix lie in 8 different groups of banks.
 *
 * An element of C is one chain of mma instructions over k, 16 terms at a time from k = 0 on, whatever the tile. Where
 * rows are to be batch-invariant the chain is cut into pieces whose lengths depend on k alone, and their
 * sums are added from the first on, whether one block computes all pieces of a tile or each another: a batch-invariant
 * row of C has the same bits whatever m and the other rows are.
 *
 * Generation multiplies few rows by a whole matrix of weights, which is a matter of memory alone: then pieces go to
 * blocks of their own, so that all of the GPU's processors read, each with many copies under way. */
#include "product_mma.cuh"

/* C = end of (op(A) op(B) + D + bias), one tile of C for each block; TA: A is stored [k, m]; TB: B is stored [n, k];
 * VECTORS: rows of A and B begin at multiples of 16 bytes; PIECES: of terms, see tile_sums. */
template <class T, class S, bool TA, bool TB, bool VECTORS, bool PIECES>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) product_mma_kernel(product p)
{
    DYNAMIC_SHARED(T, shared);
    constexpr int A_ELEMS = S::BM * S::BK, B_ELEMS = S::BN * S::BK, STAGE = A_ELEMS + B_ELEMS;
    const tile_place tile = place_of_tile(blockIdx.x, (p.m + S::BM - 1) / S::BM, (p.n + S::BN - 1) / S::BN);
    const terms mine(p);
    const int64_t row0 = tile.row * S::BM, col0 = tile.col * S::BN, n_steps = (mine.n + S::BK - 1) / S::BK;
    operand<T, S::BM, S::BK, !TA> a(p.a, p.lda, row0, p.m, mine);
    operand<T, S::BN, S::BK, TB> b(p.b, p.ldb, col0, p.n, mine);
    int filled = 0, read = 0; /* places in the ring */
    const auto load = [&]() {
        if (a.k_left > 0) {
            a.template load<S::THREADS, VECTORS>(shared + filled * STAGE);
            b.template load<S::THREADS, VECTORS>(shared + filled * STAGE + A_ELEMS);
        }
        filled = filled + 1 < S::STAGES ? filled + 1 : 0;
        copy_async_commit(); /* empty ones at the end, so that the wait counts right */
    };
    tile_sums<S, PIECES> sum(p);
    for (int stage = 0; stage < S::STAGES - 1; stage++) load();
    for (int64_t step = 0; step < n_steps; step++) {
        copy_async_wait<S::STAGES - 2>();
        __syncthreads(); /* the step's tiles are there, and those of the step before are no longer read */
        load();
        multiply_tiles<T, S, TA, TB>(sum.chain, shared + read * STAGE, shared + read * STAGE + A_ELEMS);
        sum.end_step(p, step + 1 == n_steps);
        read = read + 1 < S::STAGES ? read + 1 : 0;
    }
    __syncthreads(); /* the ring becomes the tile of C */
    finish_tile<T, S, PIECES>(p, reinterpret_cast<float *>(shared), sum, row0, col0);
}

/* ---- the choice of a kernel -------------------------------------------------------------------------------------- */

template <class T, class S, bool TA, bool TB, bool VECTORS, bool PIECES>
static dt_err run(dt_device *dev, const product &p, dt_stream *s)
{
    static bool allowed;
    if (!allowed) CUDA_ALLOW_SHARED((product_mma_kernel<T, S, TA, TB, VECTORS, PIECES>), S::shared_nbytes);
    allowed = true;
    return launch_tiles<T, S, PIECES>(dev, p, s, product_mma_kernel<T, S, TA, TB, VECTORS, PIECES>);
}

template <class T, class S, bool VECTORS>
static dt_err run_form(dt_device *dev, const product &p, bool trans_a, bool trans_b, dt_stream *s)
{
    if (trans_a)
        return trans_b ? run<T, S, true, true, VECTORS, false>(dev, p, s)
                       : run<T, S, true, false, VECTORS, false>(dev, p, s);
    return trans_b ? run<T, S, false, true, VECTORS, false>(dev, p, s)
                   : run<T, S, false, false, VECTORS, false>(dev, p, s);
}

/* A is not transposed. */
template <class T, class S, bool VECTORS>
static dt_err run_pieces(dt_device *dev, const product &p, bool trans_b, dt_stream *s)
{
    return trans_b ? run<T, S, false, true, VECTORS, true>(dev, p, s)
                   : run<T, S, false, false, VECTORS, true>(dev, p, s);
}

template <class T, int BM, int STAGES>
static dt_err run_few_rows(dt_device *dev, const product &p, bool trans_b, dt_stream *s)
{
    const int64_t n_sm = cuda_of(dev)->properties.multiProcessorCount;
    if (ceil_div(p.n, few_wide_rows<BM>::BN) >= 2 * n_sm)
        return run_pieces<T, few_wide_rows<BM>, true>(dev, p, trans_b, s);
    return run_pieces<T, few_rows<BM, STAGES>, true>(dev, p, trans_b, s);
}

/* Large tiles where they fill the GPU: they read least. */
template <class T> static dt_err run_tiles(dt_device *dev, const product &p, bool trans_a, bool trans_b, dt_stream *s)
{
    const int64_t n_sm = cuda_of(dev)->properties.multiProcessorCount;
    const bool vectors = vectors_fit((size_t)(p.lda | p.ldb) * sizeof(T), p.a, p.b);
    if (p.piece > 0) {
        if (!vectors) return run_pieces<T, medium, false>(dev, p, trans_b, s);
        if (p.m <= 16) return run_few_rows<T, 16, 4>(dev, p, trans_b, s);
        if (p.m <= 32) return run_few_rows<T, 32, 4>(dev, p, trans_b, s);
        if (p.m <= FEW_ROWS) return run_few_rows<T, FEW_ROWS, 3>(dev, p, trans_b, s);
        return run_pieces<T, medium, true>(dev, p, trans_b, s);
    }
    if (!vectors) return run_form<T, medium, false>(dev, p, trans_a, trans_b, s);
    if (ceil_div(p.m, large::BM) * ceil_div(p.n, large::BN) >= n_sm)
        return run_form<T, large, true>(dev, p, trans_a, trans_b, s);
    return run_form<T, medium, true>(dev, p, trans_a, trans_b, s);
}

dt_err cuda_product_mma(dt_device *dev, const product &p, dt_dtype dt, bool trans_a, bool trans_b, dt_stream *s)
{
    return dt == DT_BF16 ? run_tiles<bf16>(dev, p, trans_a, trans_b, s)
                         : run_tiles<__half>(dev, p, trans_a, trans_b, s);
}
