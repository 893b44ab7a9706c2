/* product_int8.cu - products in int8 (dt_int8_product), on tensor cores.
 *
 * Outlier columns are looked for first, in all rows of A, and listed. Then panels of rows, as many as the stream's
 * workspace holds, become int8 and are multiplied: a block sums a tile of C in int32, which is exact, makes floats of
 * it, adds the outliers one after the other, and goes on as other products do. No decision is the host's, so a call is
 * the same launches whatever its numbers are. */
#include "each.cuh"
#include "product_mma.cuh"
#include <string.h>

/* Absolute values are compared as bits: infinity is above all finite numbers, and NaN above that. */
template <class T> __device__ inline unsigned magnitude(T x) { return __float_as_uint(to_float(x)) & 0x7fffffffu; }

struct more {
    __device__ unsigned operator()(unsigned a, unsigned b) const { return a > b ? a : b; }
};

/** A product in int8, and what of it lies in the workspace. */
struct int8_call {
    product p;
    unsigned least;  /* bits of the least outlier; ~0: there is none */
    bool own_alone;  /* of a row its own outliers count */
    int n_splits;    /* of the rows, for marks */
    uint8_t *marks;  /* [n_splits][k] */
    int *n_outliers; /* one */
    int *outliers;   /* [k], ascending */
    int64_t room;    /* rows of a panel */
    float *scale;    /* [room] */
    int8_t *q;       /* [room][ldq] */
    int64_t ldq;
};

enum { ROW_THREADS = 256, LIST_THREADS = 1024 };
static_assert(DT_GPU_INT8_CHUNK == 2 * CHUNK, "rows of codes are whole chunks");

/* ---- A as int8 --------------------------------------------------------------------------------------------------- */

/* A block for 32 columns and one part of the rows; its warps take rows in turn. */
template <class T> __global__ void mark_kernel(int8_call c)
{
    __shared__ unsigned any[ROW_THREADS / WARP][WARP];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int64_t col = blockIdx.x * (int64_t)WARP + lane, share = (c.p.m + c.n_splits - 1) / c.n_splits,
                  first = blockIdx.y * share, end = first + share < c.p.m ? first + share : c.p.m;
    const T *a = static_cast<const T *>(c.p.a) + col;
    unsigned found = 0;
#pragma unroll 4
    for (int64_t i = first + warp; i < end; i += ROW_THREADS / WARP)
        found |= col < c.p.k && magnitude(a[i * c.p.lda]) >= c.least;
    any[warp][lane] = found;
    __syncthreads();
    if (warp > 0 || col >= c.p.k) return;
    for (int w = 1; w < ROW_THREADS / WARP; w++) found |= any[w][lane];
    c.marks[blockIdx.y * c.p.k + col] = (uint8_t)found;
}

/* One block: the marks of all parts into those of the first, and the list of marked columns. */
__global__ void list_kernel(int8_call c)
{
    __shared__ int before[LIST_THREADS / WARP];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int n = 0;
    for (int64_t first = 0; first < c.p.k; first += LIST_THREADS) {
        const int64_t col = first + threadIdx.x;
        bool found = false;
        for (int s = 0; s < c.n_splits && col < c.p.k; s++) found |= c.marks[s * c.p.k + col] != 0;
        const unsigned ballot = __ballot_sync(0xffffffffu, found);
        if (lane == 0) before[warp] = __popc(ballot);
        __syncthreads();
        int at = n;
        for (int w = 0; w < LIST_THREADS / WARP; w++) at += w < warp ? before[w] : 0, n += before[w];
        at += __popc(ballot & ((1u << lane) - 1));
        if (found) c.outliers[at] = (int)col;
        if (col < c.p.k) c.marks[col] = found;
        __syncthreads(); /* before is used again */
    }
    if (threadIdx.x == 0) *c.n_outliers = n;
}

/* A block for each row of the panel. */
template <class T> __global__ void quantise_kernel(int8_call c)
{
    const T *a = static_cast<const T *>(c.p.a) + blockIdx.x * c.p.lda;
    int8_t *q = c.q + blockIdx.x * c.ldq;
    unsigned most = 0;
    for (int64_t k = threadIdx.x; k < c.p.k; k += ROW_THREADS) {
        const unsigned u = magnitude(a[k]);
        most = u < c.least && u > most ? u : most;
    }
    const float largest = __uint_as_float(block_reduce(most, more()));
    const bool finite = largest < __uint_as_float(0x7f800000u);
    const float factor = largest > 0 && finite ? fminf(__fdiv_rn(127.0f, largest), 0x1p127f) : 0.0f;
    if (threadIdx.x == 0) c.scale[blockIdx.x] = __fdiv_rn(largest, 127.0f);
    for (int64_t k = threadIdx.x; k < c.ldq; k += ROW_THREADS) {
        const bool there = k < c.p.k && !(c.least != ~0u && (c.own_alone ? magnitude(a[k]) >= c.least : c.marks[k]));
        const float x = there && finite ? fminf(fmaxf(__fmul_rn(to_float(a[k]), factor), -127.0f), 127.0f) : 0.0f;
        q[k] = (int8_t)__float2int_rn(x);
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Tiles hold pairs of int8 as elements of 16 bits: a row of BK elements is 2 BK terms, and a fragment of 16 elements of
 * 16 bits along k is one of 32 of int8 (PTX ISA, "Matrix Fragments for mma.m16n8k32"). */
typedef uint16_t two;
typedef tile_shape<16, 64, 16, 16, 64, 4, 2> few_int8_rows;

/* Rows of B from col0 on, BK elements of two from term k on, zeros beyond. VECTORS: rows begin at multiples of 16
 * bytes. */
template <class S, bool VECTORS> __device__ inline void load_b(two *tile, const int8_call &c, int64_t col0, int64_t k)
{
    constexpr int CHUNKS = S::BK / CHUNK, N = 2 * CHUNK;
    for (int i = threadIdx.x; i < S::BN * CHUNKS; i += S::THREADS) {
        const int row = i / CHUNKS, q = i % CHUNKS;
        const int64_t at = k + q * N, left = col0 + row < c.p.n ? c.p.k - at : 0;
        const int8_t *from = static_cast<const int8_t *>(c.p.b) + (col0 + row) * c.p.ldb + at;
        two *to = tile + chunk_place<CHUNKS>(row, q) * CHUNK;
        if (VECTORS && (left >= N || left <= 0)) {
            copy_async_16(to, left > 0 ? from : c.p.b, left > 0);
        } else {
            vec<int8_t, N> v;
#pragma unroll
            for (int e = 0; e < N; e++) v.x[e] = e < left ? from[e] : (int8_t)0;
            *reinterpret_cast<vec<int8_t, N> *>(to) = v;
        }
    }
}

/* Rows of the panel from row0 on; all of them are there up to a whole chunk. */
template <class S> __device__ inline void load_a(two *tile, const int8_call &c, int64_t row0, int64_t k)
{
    constexpr int CHUNKS = S::BK / CHUNK, N = 2 * CHUNK;
    for (int i = threadIdx.x; i < S::BM * CHUNKS; i += S::THREADS) {
        const int row = i / CHUNKS, q = i % CHUNKS;
        const bool there = row0 + row < c.p.m && k + q * N < c.ldq;
        copy_async_16(tile + chunk_place<CHUNKS>(row, q) * CHUNK, there ? c.q + (row0 + row) * c.ldq + k + q * N : c.q,
                      there);
    }
}

template <class S> using int_sums = int[S::WM / 16][S::WN / 8][4];

template <class S> __device__ inline void multiply_int8(int_sums<S> &sum, const two *tile_a, const two *tile_b)
{
#pragma unroll
    for (int k = 0; k < S::BK; k += 16) {
        fragments<S> f;
        load_fragments<two, S, false, true>(f, tile_a, tile_b, k);
#pragma unroll
        for (int i = 0; i < S::WM / 16; i++)
#pragma unroll
            for (int j = 0; j < S::WN / 8; j++) {
                const uint32_t b[2] = {f.b[j / 2][j % 2], f.b[j / 2][j % 2 + 2]};
                mma_16832(sum[i][j], f.a[i], b);
            }
    }
}

/* Which row and column of the block's tile sum [i][j][e] is. */
template <class S> struct place_of_sum {
    int row, col;
    __device__ place_of_sum()
    {
        const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
        row = warp / (S::BN / S::WN) * S::WM + lane / 4;
        col = warp % (S::BN / S::WN) * S::WN + lane % 4 * 2;
    }
    __device__ int row_of(int i, int e) const { return row + 16 * i + e / 2 * 8; }
    __device__ int col_of(int j, int e) const { return col + 8 * j + e % 2; }
};

template <class S>
__device__ inline void scale_sums(tile_sums<S, false> &to, const int_sums<S> &sum, const int8_call &c, int64_t row0,
                                  int64_t col0)
{
    const place_of_sum<S> at;
#pragma unroll
    for (int i = 0; i < S::WM / 16; i++)
#pragma unroll
        for (int j = 0; j < S::WN / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int64_t row = row0 + at.row_of(i, e), col = col0 + at.col_of(j, e);
                const float a = row < c.p.m ? c.scale[row] : 0.0f, b = col < c.p.n ? c.p.b_scaled.scale[col] : 0.0f;
                to.chain[i][j][e] = __fmul_rn((float)sum[i][j][e], __fmul_rn(a, b));
            }
}

/* Outliers come to shared memory a few columns at a time: of A [AT_ONCE][BM], of B [AT_ONCE][BN], rounded to T. */
template <class T, class S>
__device__ inline void add_outliers(tile_sums<S, false> &sum, float *shared, const int8_call &c, int64_t row0,
                                    int64_t col0)
{
    enum { AT_ONCE = 16 };
    float *x = shared, *w = shared + AT_ONCE * S::BM;
    const place_of_sum<S> at;
    const int n = c.least == ~0u ? 0 : *c.n_outliers;
    for (int first = 0; first < n; first += AT_ONCE) {
        const int count = n - first < AT_ONCE ? n - first : AT_ONCE;
        for (int i = threadIdx.x; i < count * S::BM; i += S::THREADS) {
            const int64_t row = row0 + i % S::BM;
            const int64_t k = c.outliers[first + i / S::BM];
            const T v = row < c.p.m ? static_cast<const T *>(c.p.a)[row * c.p.lda + k] : from_float<T>(0.0f);
            x[i] = c.own_alone && magnitude(v) < c.least ? 0.0f : to_float(v);
        }
        for (int i = threadIdx.x; i < count * S::BN; i += S::THREADS) {
            const int64_t col = col0 + i % S::BN;
            const int64_t k = c.outliers[first + i / S::BN];
            const float v = col < c.p.n
                                ? (float)static_cast<const int8_t *>(c.p.b)[col * c.p.ldb + k] * c.p.b_scaled.scale[col]
                                : 0.0f;
            w[i] = to_float(from_float<T>(v));
        }
        __syncthreads();
        for (int o = 0; o < count; o++)
#pragma unroll
            for (int i = 0; i < S::WM / 16; i++)
#pragma unroll
                for (int j = 0; j < S::WN / 8; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        sum.chain[i][j][e] =
                            fmaf(x[o * S::BM + at.row_of(i, e)], w[o * S::BN + at.col_of(j, e)], sum.chain[i][j][e]);
        __syncthreads(); /* the places are used again */
    }
}

/* Rows of a panel: p.m, p.a, p.c and what goes with them are the panel's. */
template <class T, class S, bool VECTORS>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) product_int8_kernel(int8_call c)
{
    DYNAMIC_SHARED(two, shared);
    constexpr int A_ELEMS = S::BM * S::BK, STAGE = A_ELEMS + S::BN * S::BK;
    const tile_place tile = place_of_tile(blockIdx.x, (c.p.m + S::BM - 1) / S::BM, (c.p.n + S::BN - 1) / S::BN);
    const int64_t row0 = tile.row * S::BM, col0 = tile.col * S::BN, n_steps = (c.p.k + 2 * S::BK - 1) / (2 * S::BK);
    int_sums<S> sum = {};
    const auto load = [&](int64_t step) {
        two *to = shared + step % S::STAGES * STAGE;
        if (step < n_steps) {
            load_a<S>(to, c, row0, step * 2 * S::BK);
            load_b<S, VECTORS>(to + A_ELEMS, c, col0, step * 2 * S::BK);
        }
        copy_async_commit(); /* empty ones at the end, so that the wait counts right */
    };
    for (int stage = 0; stage < S::STAGES - 1; stage++) load(stage);
    for (int64_t step = 0; step < n_steps; step++) {
        const two *at = shared + step % S::STAGES * STAGE;
        copy_async_wait<S::STAGES - 2>();
        __syncthreads(); /* the step's tiles are there, and those of the step before are no longer read */
        load(step + S::STAGES - 1);
        multiply_int8<S>(sum, at, at + A_ELEMS);
    }
    tile_sums<S, false> total(c.p);
    scale_sums<S>(total, sum, c, row0, col0);
    __syncthreads(); /* the ring becomes places of outliers, and the tile of C */
    add_outliers<T, S>(total, reinterpret_cast<float *>(shared), c, row0, col0);
    finish_tile<T, S, false>(c.p, reinterpret_cast<float *>(shared), total, row0, col0);
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

template <class T, class S> static dt_err multiply(const int8_call &c, dt_stream *s)
{
    static bool allowed;
    static_assert(S::shared_nbytes >= 16 * sizeof(float) * (S::BM + S::BN), "outliers fit where the ring was");
    if (!allowed) {
        CUDA_ALLOW_SHARED((product_int8_kernel<T, S, true>), S::shared_nbytes);
        CUDA_ALLOW_SHARED((product_int8_kernel<T, S, false>), S::shared_nbytes);
    }
    allowed = true;
    const bool vectors = vectors_fit((size_t)c.p.ldb, c.p.b);
    const unsigned grid = (unsigned)(ceil_div(c.p.m, S::BM) * ceil_div(c.p.n, S::BN));
    launch(s, grid, S::THREADS, S::shared_nbytes,
           vectors ? product_int8_kernel<T, S, true> : product_int8_kernel<T, S, false>, c);
    CUDA_LAUNCHED();
    return DT_OK;
}

template <class T> static void *moved(const void *p, int64_t n)
{
    return p ? const_cast<T *>(static_cast<const T *>(p)) + n : nullptr;
}

/* The call for n rows from row on. */
template <class T> static int8_call rows_of(const int8_call &all, int64_t row, int64_t n)
{
    int8_call c = all;
    product &p = c.p;
    p.m = n;
    p.a = moved<T>(p.a, row * p.lda);
    p.c = p.c_float ? moved<float>(p.c, row * p.ldc) : moved<T>(p.c, row * p.ldc);
    p.d = p.d_float ? moved<float>(p.d, row * p.ldd) : moved<T>(p.d, row * p.ldd);
    p.aux = moved<T>(p.aux, row * p.ld_aux);
    return c;
}

template <class T> static dt_err run(const int8_call &call, dt_stream *s)
{
    if (call.least != ~0u) {
        launch(s, dim3((unsigned)ceil_div(call.p.k, WARP), (unsigned)call.n_splits), ROW_THREADS, 0, mark_kernel<T>,
               call);
        CUDA_LAUNCHED();
        launch(s, 1, LIST_THREADS, 0, list_kernel, call);
        CUDA_LAUNCHED();
    }
    for (int64_t row = 0; row < call.p.m; row += call.room) {
        const int8_call c = rows_of<T>(call, row, call.p.m - row < call.room ? call.p.m - row : call.room);
        launch(s, (unsigned)c.p.m, ROW_THREADS, 0, quantise_kernel<T>, c);
        CUDA_LAUNCHED();
        const bool few = c.p.m <= few_int8_rows::BM;
        DT_TRY((few ? multiply<T, few_int8_rows>(c, s) : multiply<T, medium>(c, s)));
    }
    return DT_OK;
}

dt_err cuda_product_int8(const product &p, const dt_matmul *mm, dt_stream *s)
{
    const float threshold = mm->int8.threshold;
    const dt_gpu_int8_places place = dt_gpu_int8_workspace(p.k);
    char *at = (char *)s->workspace;
    int8_call c = {};
    c.p = p;
    memcpy(&c.least, &threshold, sizeof threshold);
    if (threshold == 0) c.least = ~0u;
    c.own_alone = mm->batch_invariant;
    c.n_splits = (int)(p.m < 256 * DT_GPU_INT8_SPLITS ? ceil_div(p.m, 256) : DT_GPU_INT8_SPLITS);
    c.marks = (uint8_t *)(at + place.marks);
    c.n_outliers = (int *)(at + place.n_outliers);
    c.outliers = (int *)(at + place.outliers);
    c.scale = (float *)(at + place.scale);
    c.q = (int8_t *)(at + place.codes);
    c.ldq = place.ld, c.room = place.rows;
    CUDA_BY_DTYPE(mm->dt, T, "matmul", { return run<T>(c, s); });
    return DT_OK;
}
