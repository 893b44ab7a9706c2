/* product_mma.cuh - tiles of 16-bit matrices on tensor cores: how they lie in shared memory, come there, and are
 * multiplied. Shared by product_mma.cu and product_int8.cu; what is computed is in product_mma.cu. */
#ifndef DTRAIN_PRODUCT_MMA_CUH
#define DTRAIN_PRODUCT_MMA_CUH

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
/* The same where such tiles are too few for the GPU's processors: 32 or 16 columns, and more of k on its way. */
typedef tile_shape<16, 32, 16, 16, 64, 8, 2> narrow_16;
typedef tile_shape<32, 32, 16, 16, 128, 4, 2> narrow_32;
typedef tile_shape<64, 32, 32, 16, 128, 4, 2> narrow_64;
typedef tile_shape<64, 16, 16, 16, 128, 5, 2> slim_64;
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

/* ---- products -------------------------------------------------------------------------------------------------- */

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

#endif
