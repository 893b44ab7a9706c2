/* product_mma.cu - products of bf16 and fp16 matrices on tensor cores, for every form, row distance and alignment.
 *
 * A block computes a tile [BM, BN] of C, its warps tiles [WM, WN] of that. Tiles of A and B, BK deep, pass through a
 * ring of STAGES buffers in shared memory: while one is multiplied the next ones are on their way (cp.async). A buffer
 * holds a tile as the matrix is stored, k along its rows or across them; ldmatrix turns what has to be turned. Chunks
 * of 16 bytes are swizzled over the banks, so that the 8 rows of a small matrix lie in 8 different groups of banks.
 *
 * An element of C is one chain of mma instructions over k, 16 terms at a time from k = 0 on, whatever the tile: a row
 * of C has the same bits whatever m and the other rows are.
 *
 * Generation multiplies few rows by a whole matrix of weights, which is a matter of memory alone: there the tile is
 * narrow, so that all of the GPU's processors read, each with many copies under way. */
#include "product_tile.cuh"
#include "ptx.cuh"

enum { CHUNK = 8 /* elements in 16 bytes */ };

template <int BM_, int BN_, int WM_, int WN_, int BK_, int STAGES_, int BLOCKS_> struct tile_shape {
    enum {
        BM = BM_,
        BN = BN_,
        BK = BK_,
        WM = WM_,
        WN = WN_,
        STAGES = STAGES_,
        BLOCKS = BLOCKS_, /* at least, on a processor: for the choice of registers */
        THREADS = BM / WM * (BN / WN) * WARP,
        C_LD = BN + 8, /* of the tile of C in shared memory: writes of fragments hit each bank once */
    };
    static constexpr size_t ring_nbytes = (size_t)STAGES * (BM + BN) * BK * 2, c_nbytes = sizeof(float) * BM * C_LD;
    static constexpr size_t shared_nbytes = ring_nbytes > c_nbytes ? ring_nbytes : c_nbytes;
};
/* Of few rows, m <= BM: a matrix of weights streams through, 256 bytes of a row at a time. */
template <int BM, int STAGES> using few_rows = tile_shape<BM, 64, BM, 16, 128, STAGES, 2>;
typedef tile_shape<64, 64, 32, 32, 64, 4, 3> medium;
typedef tile_shape<128, 128, 64, 64, 64, 3, 2> large;

/* ---- tiles in shared memory -------------------------------------------------------------------------------------- */

/* Where chunk q of row r lies, in a tile with CHUNKS (a power of 2) of them in a row: 8 chunks are all banks. */
template <int CHUNKS> __device__ inline int chunk_place(int r, int q)
{
    constexpr int ROWS = CHUNKS < 8 ? 8 / CHUNKS : 1; /* that lie in all banks together */
    constexpr int TURNS = CHUNKS < 8 ? CHUNKS : 8;
    return r * CHUNKS + (q ^ (r / ROWS % TURNS));
}

/* The elements [rows, cols] at src to a tile [ROWS, COLS], zeros beyond them. A thread's chunks lie in one column of
 * chunks, at one place among the banks. */
template <class T, int ROWS, int COLS, int THREADS, bool VECTORS>
__device__ inline void load_tile(T *tile, const T *src, int64_t ld, int rows, int cols)
{
    constexpr int CHUNKS = COLS / CHUNK, STEP = THREADS / CHUNKS /* rows between a thread's chunks */;
    static_assert(THREADS % CHUNKS == 0 && ROWS % STEP == 0 && STEP % 8 == 0, "threads fill a tile in equal turns");
    const int first = threadIdx.x / CHUNKS, q = threadIdx.x % CHUNKS, left = cols - q * CHUNK;
    const T *from = src + first * ld + q * CHUNK;
    T *to = tile + chunk_place<CHUNKS>(first, q) * CHUNK;
#pragma unroll
    for (int turn = 0; turn < ROWS / STEP; turn++, from += STEP * ld, to += STEP * COLS) {
        const bool there = first + turn * STEP < rows && left > 0;
        if (VECTORS && (left >= CHUNK || !there)) {
            copy_async_16(to, there ? from : src, there);
        } else {
            vec16<T> v;
#pragma unroll
            for (int e = 0; e < CHUNK; e++) v.x[e] = there && e < left ? from[e] : from_float<T>(0.0f);
            *reinterpret_cast<vec16<T> *>(to) = v;
        }
    }
}

/* A matrix with the outer index o (rows of A, columns of B), stored [o, k] where K_IN_ROWS, else [k, o]: its tiles for
 * the BO places of o from o0 on, one after the other along k. */
template <class T, int BO, int BK, bool K_IN_ROWS> struct operand {
    const T *next;
    int64_t ld, k_left;
    int o_left;

    __device__ operand(const void *src, int64_t ld_, int64_t o0, int64_t n_o, int64_t k)
        : next(static_cast<const T *>(src) + (K_IN_ROWS ? o0 * ld_ : o0)), ld(ld_), k_left(k),
          o_left(n_o - o0 < BO ? (int)(n_o - o0) : BO)
    {
    }
    template <int THREADS, bool VECTORS> __device__ void load(T *tile)
    {
        const int depth = k_left < BK ? (int)k_left : BK;
        if (K_IN_ROWS)
            load_tile<T, BO, BK, THREADS, VECTORS>(tile, next, ld, o_left, depth);
        else
            load_tile<T, BK, BO, THREADS, VECTORS>(tile, next, ld, depth, o_left);
        next += K_IN_ROWS ? BK : BK * ld;
        k_left -= BK;
    }
};

/* The 16 x 16 elements from (o, k) on as matrices of 8 x 8: (o, k), (o+8, k), (o, k+8), (o+8, k+8), rows along o. That
 * is a fragment of A; of B it is two, {0, 2} for the columns o.. and {1, 3} for o+8.. */
template <class T, int BO, int BK, bool K_IN_ROWS>
__device__ inline void load_fragment(uint32_t r[4], const T *tile, int o, int k)
{
    const int lane = threadIdx.x % WARP, j = lane % 8, o8 = lane / 8 % 2, k8 = lane / 16;
    if (K_IN_ROWS)
        ldmatrix_x4(r, tile + chunk_place<BK / CHUNK>(o + o8 * 8 + j, k / CHUNK + k8) * CHUNK);
    else
        ldmatrix_x4_trans(r, tile + chunk_place<BO / CHUNK>(k + k8 * 8 + j, o / CHUNK + o8) * CHUNK);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

template <class S> struct fragments {
    uint32_t a[S::WM / 16][4], b[S::WN / 16][4];
};

template <class T, class S, bool TA, bool TB>
__device__ inline void load_fragments(fragments<S> &f, const T *tile_a, const T *tile_b, int k)
{
    const int warp = threadIdx.x / WARP, row = warp / (S::BN / S::WN) * S::WM, col = warp % (S::BN / S::WN) * S::WN;
#pragma unroll
    for (int i = 0; i < S::WM / 16; i++) load_fragment<T, S::BM, S::BK, !TA>(f.a[i], tile_a, row + 16 * i, k);
#pragma unroll
    for (int j = 0; j < S::WN / 16; j++) load_fragment<T, S::BN, S::BK, TB>(f.b[j], tile_b, col + 16 * j, k);
}

template <class T, class S>
__device__ inline void multiply_fragments(float (&sum)[S::WM / 16][S::WN / 8][4], const fragments<S> &f)
{
#pragma unroll
    for (int i = 0; i < S::WM / 16; i++)
#pragma unroll
        for (int j = 0; j < S::WN / 8; j++) {
            const uint32_t b[2] = {f.b[j / 2][j % 2], f.b[j / 2][j % 2 + 2]};
            mma_16816(sum[i][j], f.a[i], b, T());
        }
}

/* One pair of tiles: fragments of the next 16 terms are loaded while those at hand are multiplied. */
template <class T, class S, bool TA, bool TB>
__device__ inline void multiply_tiles(float (&sum)[S::WM / 16][S::WN / 8][4], const T *tile_a, const T *tile_b)
{
    fragments<S> f[2];
    load_fragments<T, S, TA, TB>(f[0], tile_a, tile_b, 0);
#pragma unroll
    for (int k = 0; k < S::BK; k += 16) {
        if (k + 16 < S::BK) load_fragments<T, S, TA, TB>(f[(k / 16 + 1) % 2], tile_a, tile_b, k + 16);
        multiply_fragments<T, S>(sum, f[k / 16 % 2]);
    }
}

/* Sums of the warps through shared memory to C, 8 elements of a row at a time. */
template <class T, class S>
__device__ inline void finish_tile(const product &p, float *tile_c, const float (&sum)[S::WM / 16][S::WN / 8][4],
                                   int64_t row0, int64_t col0)
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float *mine =
        tile_c + (warp / (S::BN / S::WN) * S::WM + lane / 4) * S::C_LD + warp % (S::BN / S::WN) * S::WN + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < S::WM / 16; i++)
#pragma unroll
        for (int j = 0; j < S::WN / 8; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float *to = mine + (16 * i + 8 * half) * S::C_LD + 8 * j;
                to[0] = sum[i][j][2 * half];
                to[1] = sum[i][j][2 * half + 1];
            }
    __syncthreads();
    for (int i = threadIdx.x; i < S::BM * S::BN / CHUNK; i += S::THREADS) {
        const int r = i / (S::BN / CHUNK), c = i % (S::BN / CHUNK) * CHUNK;
        const int64_t row = row0 + r, col = col0 + c, left = p.n - col;
        if (row >= p.m || left <= 0) continue;
        float x[CHUNK];
#pragma unroll
        for (int e = 0; e < CHUNK; e++) x[e] = tile_c[r * S::C_LD + c + e];
        finish_elements<T, CHUNK>(p, row, col, x, left < CHUNK ? (int)left : CHUNK);
    }
}

/* C = end of (op(A) op(B) + D + bias), one tile of C for each block; TA: A is stored [k, m]; TB: B is stored [n, k];
 * VECTORS: rows of A and B begin at multiples of 16 bytes. */
template <class T, class S, bool TA, bool TB, bool VECTORS>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) product_mma_kernel(product p)
{
    DYNAMIC_SHARED(T, shared);
    constexpr int A_ELEMS = S::BM * S::BK, B_ELEMS = S::BN * S::BK, STAGE = A_ELEMS + B_ELEMS;
    const tile_place tile = place_of_tile(blockIdx.x, (p.m + S::BM - 1) / S::BM, (p.n + S::BN - 1) / S::BN);
    const int64_t row0 = tile.row * S::BM, col0 = tile.col * S::BN, n_steps = (p.k + S::BK - 1) / S::BK;
    operand<T, S::BM, S::BK, !TA> a(p.a, p.lda, row0, p.m, p.k);
    operand<T, S::BN, S::BK, TB> b(p.b, p.ldb, col0, p.n, p.k);
    int filled = 0, read = 0; /* places in the ring */
    const auto load = [&]() {
        if (a.k_left > 0) {
            a.template load<S::THREADS, VECTORS>(shared + filled * STAGE);
            b.template load<S::THREADS, VECTORS>(shared + filled * STAGE + A_ELEMS);
        }
        filled = filled + 1 < S::STAGES ? filled + 1 : 0;
        copy_async_commit(); /* empty ones at the end, so that the wait counts right */
    };
    float sum[S::WM / 16][S::WN / 8][4] = {};
    for (int stage = 0; stage < S::STAGES - 1; stage++) load();
    for (int64_t step = 0; step < n_steps; step++) {
        copy_async_wait<S::STAGES - 2>();
        __syncthreads(); /* the step's tiles are there, and those of the step before are no longer read */
        load();
        multiply_tiles<T, S, TA, TB>(sum, shared + read * STAGE, shared + read * STAGE + A_ELEMS);
        read = read + 1 < S::STAGES ? read + 1 : 0;
    }
    __syncthreads(); /* the ring becomes the tile of C */
    finish_tile<T, S>(p, reinterpret_cast<float *>(shared), sum, row0, col0);
}

/* ---- the choice of a kernel -------------------------------------------------------------------------------------- */

template <class T, class S, bool TA, bool TB, bool VECTORS> static dt_err run(const product &p, dt_stream *s)
{
    static bool allowed;
    if (!allowed) CUDA_ALLOW_SHARED((product_mma_kernel<T, S, TA, TB, VECTORS>), S::shared_nbytes);
    allowed = true;
    launch(s, (unsigned)(ceil_div(p.m, S::BM) * ceil_div(p.n, S::BN)), S::THREADS, S::shared_nbytes,
           product_mma_kernel<T, S, TA, TB, VECTORS>, p);
    CUDA_LAUNCHED();
    return DT_OK;
}

template <class T, class S, bool VECTORS>
static dt_err run_form(const product &p, bool trans_a, bool trans_b, dt_stream *s)
{
    if (trans_a) return trans_b ? run<T, S, true, true, VECTORS>(p, s) : run<T, S, true, false, VECTORS>(p, s);
    return trans_b ? run<T, S, false, true, VECTORS>(p, s) : run<T, S, false, false, VECTORS>(p, s);
}

/* A is not transposed. */
template <class T, class S> static dt_err run_rows(const product &p, bool trans_b, dt_stream *s)
{
    return trans_b ? run<T, S, false, true, true>(p, s) : run<T, S, false, false, true>(p, s);
}

/* Large tiles where they fill the GPU: they read least. */
template <class T> static dt_err run_tiles(dt_device *dev, const product &p, bool trans_a, bool trans_b, dt_stream *s)
{
    const int64_t n_sm = cuda_of(dev)->properties.multiProcessorCount;
    const size_t rows_nbytes = (size_t)(p.lda | p.ldb) * sizeof(T);
    if (!vectors_fit(rows_nbytes, p.a, p.b)) return run_form<T, medium, false>(p, trans_a, trans_b, s);
    if (p.m <= 16 && !trans_a) return run_rows<T, few_rows<16, 4>>(p, trans_b, s);
    if (p.m <= 32 && !trans_a) return run_rows<T, few_rows<32, 4>>(p, trans_b, s);
    if (p.m <= 64 && !trans_a) return run_rows<T, few_rows<64, 3>>(p, trans_b, s);
    if (ceil_div(p.m, large::BM) * ceil_div(p.n, large::BN) >= n_sm)
        return run_form<T, large, true>(p, trans_a, trans_b, s);
    return run_form<T, medium, true>(p, trans_a, trans_b, s);
}

dt_err cuda_product_mma(dt_device *dev, const product &p, dt_dtype dt, bool trans_a, bool trans_b, dt_stream *s)
{
    return dt == DT_BF16 ? run_tiles<bf16>(dev, p, trans_a, trans_b, s)
                         : run_tiles<__half>(dev, p, trans_a, trans_b, s);
}
