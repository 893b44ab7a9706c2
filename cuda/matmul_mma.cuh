/* matmul_mma.cuh - tiles of 16-bit matrices on tensor cores: layout in shared memory, loads, and multiplication.
 * Shared by matmul_mma.cu and matmul_stored.cu; the algorithm is described in matmul_mma.cu. */
#ifndef DTRAIN_MATMUL_MMA_CUH
#define DTRAIN_MATMUL_MMA_CUH

#include "matmul_tile.cuh"
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
        BLOCKS = BLOCKS_, /* minimum blocks per multiprocessor, for register allocation */
        THREADS = BM / WM * (BN / WN) * WARP,
        ENOUGH = 3, /* tiles per four multiprocessors; with fewer tiles, each piece of k has its own block */
        /* row stride of the tile of C in shared memory: fragments are written without bank conflicts */
        C_LD = BN + 8,
    };
    static constexpr size_t ring_nbytes = (size_t)STAGES * (BM + BN) * BK * 2, c_nbytes = sizeof(float) * BM * C_LD;
    static constexpr size_t shared_nbytes = ring_nbytes > c_nbytes ? ring_nbytes : c_nbytes;
};
/* For few rows, m <= BM: each block streams a panel of the weight matrix, 256 bytes of a row at a time. */
template <int BM, int STAGES> using few_rows = tile_shape<BM, 64, BM, 16, 128, STAGES, 2>;
/* The same for a wide matrix, such as a vocabulary, whose tiles occupy all multiprocessors: tiles are wider, because
 * each block also reads A. */
template <int BM> using few_wide_rows = tile_shape<BM, 128, BM, 32, 64, 4, 2>;
typedef tile_shape<64, 64, 32, 32, 64, 4, 3> medium;
typedef tile_shape<128, 128, 64, 64, 64, 3, 2> large;

/* ---- tiles in shared memory -------------------------------------------------------------------------------------- */

/* Position of chunk q of row r in a tile with CHUNKS (a power of 2) chunks per row; 8 chunks cover all banks. */
template <int CHUNKS> __device__ inline int chunk_place(int r, int q)
{
    constexpr int ROWS = CHUNKS < 8 ? 8 / CHUNKS : 1; /* rows that cover all banks */
    constexpr int TURNS = CHUNKS < 8 ? CHUNKS : 8;
    return r * CHUNKS + (q ^ (r / ROWS % TURNS));
}

/* Load the elements [rows, cols] at src into a tile [ROWS, COLS], padded with zeros. vectors: rows are aligned to 16
 * bytes. All chunks of a thread are in one column of chunks, and in the same banks. */
template <class T, int ROWS, int COLS, int THREADS>
__device__ inline void load_tile(T *tile, const T *src, int64_t ld, int rows, int cols, bool vectors)
{
    constexpr int CHUNKS = COLS / CHUNK, STEP = THREADS / CHUNKS /* rows between a thread's chunks */;
    static_assert(THREADS % CHUNKS == 0 && ROWS % STEP == 0 && STEP % 8 == 0, "threads fill a tile in equal turns");
    const int first = threadIdx.x / CHUNKS, q = threadIdx.x % CHUNKS, left = cols - q * CHUNK;
    const T *from = src + first * ld + q * CHUNK;
    T *to = tile + chunk_place<CHUNKS>(first, q) * CHUNK;
    if (vectors && (left >= CHUNK || left <= 0)) {
#pragma unroll
        for (int turn = 0; turn < ROWS / STEP; turn++, from += STEP * ld, to += STEP * COLS) {
            const bool there = first + turn * STEP < rows && left > 0;
            copy_async_16(to, there ? from : src, there);
        }
        return;
    }
#pragma unroll 1
    for (int turn = 0; turn < ROWS / STEP; turn++, from += STEP * ld, to += STEP * COLS) {
        vec16<T> v;
#pragma unroll
        for (int e = 0; e < CHUNK; e++) v.x[e] = first + turn * STEP < rows && e < left ? from[e] : from_float<T>(0.0f);
        *reinterpret_cast<vec16<T> *>(to) = v;
    }
}

/* The range of k that a block sums: all of k, or one piece. */
struct terms {
    int64_t first, n;
    __device__ explicit terms(const matmul &p) : first(0), n(p.k)
    {
        if (p.n_parts == 0) return;
        first = blockIdx.y * p.piece;
        n = p.k - first < p.piece ? p.k - first : p.piece;
    }
};

/* Loads consecutive tiles of a matrix along k, for BO values of the outer index o starting at o0. o counts rows of A or
 * columns of B. The matrix is stored as [o, k] if K_IN_ROWS, else as [k, o]. */
template <class T, int BO, int BK, bool K_IN_ROWS> struct operand {
    const T *next;
    int64_t ld, k_left;
    int o_left;

    __device__ operand(const void *src, int64_t ld_, int64_t o0, int64_t n_o, const terms &k)
        : next(static_cast<const T *>(src) + (K_IN_ROWS ? o0 * ld_ + k.first : k.first * ld_ + o0)), ld(ld_),
          k_left(k.n), o_left(n_o - o0 < BO ? (int)(n_o - o0) : BO)
    {
    }
    template <int THREADS> __device__ void load(T *tile, bool vectors)
    {
        const int depth = k_left < BK ? (int)k_left : BK;
        if (K_IN_ROWS)
            load_tile<T, BO, BK, THREADS>(tile, next, ld, o_left, depth, vectors);
        else
            load_tile<T, BK, BO, THREADS>(tile, next, ld, depth, o_left, vectors);
        next += K_IN_ROWS ? BK : BK * ld;
        k_left -= BK;
    }
};

/* Load the 16 x 16 elements at (o, k) as 8 x 8 matrices (o, k), (o+8, k), (o, k+8), (o+8, k+8), with rows along o. This
 * is a fragment of A, or two of B: {0, 2} for the columns o.. and {1, 3} for o+8.. */
template <class T, int BO, int BK, bool K_IN_ROWS>
__device__ inline void load_fragment(uint32_t r[4], const T *tile, int o, int k)
{
    const int lane = threadIdx.x % WARP, j = lane % 8, o8 = lane / 8 % 2, k8 = lane / 16;
    if (K_IN_ROWS)
        ldmatrix_x4(r, tile + chunk_place<BK / CHUNK>(o + o8 * 8 + j, k / CHUNK + k8) * CHUNK);
    else
        ldmatrix_x4_trans(r, tile + chunk_place<BO / CHUNK>(k + k8 * 8 + j, o / CHUNK + o8) * CHUNK);
}

/* ---- matmuls -------------------------------------------------------------------------------------------------- */

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

/* Multiply a pair of tiles: the fragments of the next 16 terms are loaded while the current ones are multiplied. */
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

/* A thread's sums of a tile of C. chain: sum of the current piece. total, with PIECES: sum of the completed pieces, in
 * order. */
template <class S, bool PIECES> struct tile_sums {
    float chain[S::WM / 16][S::WN / 8][4], total[PIECES ? S::WM / 16 : 1][PIECES ? S::WN / 8 : 1][4];
    int64_t steps_left; /* steps until the current piece ends */

    __device__ explicit tile_sums(const matmul &p) : chain(), total(), steps_left(p.piece / S::BK) {}
    /* Called after each step. last: the final step. */
    __device__ void end_step(const matmul &p, bool last)
    {
        if (!PIECES || (--steps_left > 0 && !last)) return;
        steps_left = p.piece / S::BK;
#pragma unroll
        for (int i = 0; i < S::WM / 16; i++)
#pragma unroll
            for (int j = 0; j < S::WN / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) total[i][j][e] += chain[i][j][e], chain[i][j][e] = 0.0f;
    }
    __device__ float at(int i, int j, int e) const { return PIECES ? total[i][j][e] : chain[i][j][e]; }
};

/* Store n elements of a row from their sums x: finished in C, or, if each piece has its own block, as sums in parts. */
template <class T, int N, bool PIECES>
__device__ inline void leave_elements(const matmul &p, int64_t row, int64_t col, float *x, int n)
{
    if (!PIECES || p.n_parts == 0)
        finish_elements<T, N>(p, row, col, x, n);
    else
        store_elements<N>(p.parts + (blockIdx.y * p.m + row) * p.ld_parts + col, x, N, true);
}

/* Store the warps' sums through shared memory, 8 elements of a row at a time. */
template <class T, class S, bool PIECES>
__device__ inline void finish_tile(const matmul &p, float *tile_c, const tile_sums<S, PIECES> &sum, int64_t row0,
                                   int64_t col0)
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
                to[0] = sum.at(i, j, 2 * half);
                to[1] = sum.at(i, j, 2 * half + 1);
            }
    __syncthreads();
    for (int i = threadIdx.x; i < S::BM * S::BN / CHUNK; i += S::THREADS) {
        const int r = i / (S::BN / CHUNK), c = i % (S::BN / CHUNK) * CHUNK;
        const int64_t row = row0 + r, col = col0 + c, left = p.n - col;
        if (row >= p.m || left <= 0) continue;
        float x[CHUNK];
#pragma unroll
        for (int e = 0; e < CHUNK; e++) x[e] = tile_c[r * S::C_LD + c + e];
        leave_elements<T, CHUNK, PIECES>(p, row, col, x, left < CHUNK ? (int)left : CHUNK);
    }
}

/* ---- launch ------------------------------------------------------------------------------------------------------ */

template <class T> constexpr dt_dtype DTYPE_OF = DT_BF16;
template <> constexpr dt_dtype DTYPE_OF<__half> = DT_F16;

/* Launch a block per tile of C. If the tiles alone would not occupy the multiprocessors, each piece of a tile has its
 * own block. The sums of the pieces are added in the same order, by one block or by the pass over the parts. */
template <class T, class S, bool PIECES, class... B>
static dt_err launch_tiles(dt_device *dev, const matmul &whole, dt_stream *s, void (*kernel)(matmul, B...), B... b)
{
    matmul p = whole;
    const int64_t n_sm = cuda_of(dev)->properties.multiProcessorCount,
                  n_tiles = ceil_div(p.m, S::BM) * ceil_div(p.n, S::BN), n_pieces = PIECES ? ceil_div(p.k, p.piece) : 1,
                  ld = ceil_div(p.n, 8) * 8;
    if (n_pieces > 1 && 4 * n_tiles < S::ENOUGH * n_sm &&
        n_pieces * p.m * ld <= (int64_t)(DT_GPU_WORKSPACE_NBYTES / 2 / sizeof(float))) /* B may use the other half */
        p.n_parts = (int)n_pieces, p.parts = (float *)s->workspace, p.ld_parts = ld;
    launch(s, dim3((unsigned)n_tiles, p.n_parts > 0 ? (unsigned)p.n_parts : 1), S::THREADS, S::shared_nbytes, kernel, p,
           b...);
    CUDA_LAUNCHED();
    return p.n_parts > 0 ? cuda_matmul_finish(p, DTYPE_OF<T>, s) : DT_OK;
}

#endif
