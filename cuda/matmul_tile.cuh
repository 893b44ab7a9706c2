/* matmul_tile.cuh - shared by dtrain's matmul kernels: the arguments of a matmul, the tile of C that a block computes,
 * and the end of a matmul (addend, bias, epilogue, rounding). */
#ifndef DTRAIN_MATMUL_TILE_CUH
#define DTRAIN_MATMUL_TILE_CUH

#include "activation.cuh"
#include "matmul.h"

enum { FEW_ROWS = 64 /* maximum rows of C for tiles that read a weight matrix once */ };

/** C[m,n] = end of (op(A) op(B) + D + bias): see dt_matmul. Missing operands are NULL. */
struct matmul {
    int64_t m, n, k;
    int64_t lda, ldb, ldc, ldd, ld_aux;
    const void *a, *b, *d, *bias;
    void *c, *aux;
    dt_scaled b_scaled;
    bool c_float, d_float; /* false: the type of A and B */
    bool vectors_in;       /* rows of A and B are aligned for vectors */
    bool vectors;          /* rows of C, D, aux and bias are */
    int64_t piece;         /* terms per piece, a multiple of the depth of every tile; 0: k is one chain */
    int n_parts;           /* number of pieces whose sums are in parts; 0: none */
    float *parts;          /* [n_parts][m][ld_parts], in the stream's workspace */
    int64_t ld_parts;
    dt_epilogue epilogue;
    dt_activation act;
    int n_groups; /* of a grouped matmul (dt_matmul); 0: one matmul */
    const int32_t *group_start;
    int64_t group_stride;
};

dt_err cuda_matmul_mma(dt_device *dev, const matmul &p, dt_dtype dt, bool trans_a, bool trans_b, dt_stream *s);
/** A B^T for few rows and a quantised B, if cuda_stored_fits. */
dt_err cuda_matmul_stored(dt_device *dev, const matmul &p, dt_dtype dt, dt_stream *s);
bool cuda_stored_fits(const matmul &p, bool trans_b);
/** out [rows][cols] of dt, contiguous = the dequantised elements of q starting at (row0, col0). ld: row stride of q. */
dt_err cuda_dequantise(const void *q, int64_t ld, const dt_scaled *how, int64_t row0, int64_t col0, int64_t rows,
                       int64_t cols, void *out, dt_dtype dt, dt_stream *s);
dt_err cuda_matmul_fma(dt_device *dev, const matmul &p, bool trans_a, bool trans_b, dt_stream *s);
/** C = end of (sum of the parts in order + D + bias). */
dt_err cuda_matmul_finish(const matmul &p, dt_dtype dt, dt_stream *s);

/** A matrix of floats, with element access by stored row and column. */
struct float_matrix {
    const float *p;
    int64_t ld;
    __device__ float at(int64_t row, int64_t col) const { return p[row * ld + col]; }
};

/** Row and column of the block's tile. Concurrent blocks process a band of 8 tile rows, and so share their reads of A
 *  and B in the L2 cache. */
struct tile_place {
    int64_t row, col;
};
__device__ inline tile_place place_of_tile(int64_t block, int64_t n_tile_rows, int64_t n_tile_cols)
{
    enum { BAND = 8 };
    const int64_t band = block / (BAND * n_tile_cols), in_band = block % (BAND * n_tile_cols), first = band * BAND;
    const int64_t rows = n_tile_rows - first < BAND ? n_tile_rows - first : BAND;
    return {first + in_band % rows, in_band / rows};
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

/** The group to which tile row `slot` belongs, if each group has a tile row per BM of its rows, and *slot in the group.
 *  n_groups: the slot is not used. Each warp sums the groups' tile rows, 32 groups at a time. */
template <int BM> __device__ inline int group_of_slot(const matmul &p, int64_t *slot)
{
    const int lane = threadIdx.x % WARP;
    for (int first = 0; first < p.n_groups; first += WARP) {
        const int g = first + lane, own = g < p.n_groups ? (p.group_start[g + 1] - p.group_start[g] + BM - 1) / BM : 0;
        int end = own; /* sum up to this lane's group */
        for (int d = 1; d < WARP; d *= 2) {
            const int before = __shfl_up_sync(0xffffffffu, end, d);
            if (lane >= d) end += before;
        }
        const uint32_t after = __ballot_sync(0xffffffffu, end > *slot);
        if (after) {
            const int at = __ffs((int)after) - 1;
            *slot -= __shfl_sync(0xffffffffu, end - own, at);
            return first + at;
        }
        *slot -= __shfl_sync(0xffffffffu, end, WARP - 1);
    }
    return p.n_groups;
}

template <class P> __device__ inline P *moved(P *p, int64_t elems, size_t size)
{
    return p ? (P *)((char *)p + elems * (int64_t)size) : nullptr;
}

/** Reduce p to the block's group. TA: group blockIdx.y, tile blockIdx.x of its C; otherwise tile row slot blockIdx.x
 *  and tile column blockIdx.y. False: the block has nothing to compute. */
template <class T, class S, bool TA> __device__ inline bool enter_group(matmul &p, int64_t *row0, int64_t *col0)
{
    const size_t c_size = p.c_float ? sizeof(float) : sizeof(T), d_size = p.d_float ? sizeof(float) : sizeof(T);
    int64_t slot = blockIdx.x;
    const int g = TA ? (int)blockIdx.y : group_of_slot<S::BM>(p, &slot);
    if (g >= p.n_groups) return false;
    const int64_t first = p.group_start[g], n = p.group_start[g + 1] - first, own = g * p.group_stride;
    p.a = moved(p.a, first * p.lda, sizeof(T));
    if (TA) {
        const tile_place tile = place_of_tile(blockIdx.x, (p.m + S::BM - 1) / S::BM, (p.n + S::BN - 1) / S::BN);
        p.k = n;
        p.b = moved(p.b, first * p.ldb, sizeof(T));
        p.c = moved(p.c, own, c_size);
        p.d = moved(p.d, own, d_size); /* C, or none */
        *row0 = tile.row * S::BM, *col0 = tile.col * S::BN;
    } else {
        p.m = n;
        p.b = moved(p.b, own, sizeof(T));
        p.bias = moved(p.bias, g * p.n, sizeof(T));
        p.c = moved(p.c, first * p.ldc, c_size);
        p.d = moved(p.d, first * p.ldd, d_size);
        p.aux = moved(p.aux, first * p.ld_aux, sizeof(T));
        *row0 = slot * S::BM, *col0 = blockIdx.y * (int64_t)S::BN;
    }
    return true;
}

/** The grid for enter_group. */
template <class S> static inline dim3 grid_of_groups(const matmul &p, bool trans_a)
{
    if (trans_a) return dim3((unsigned)(ceil_div(p.m, S::BM) * ceil_div(p.n, S::BN)), (unsigned)p.n_groups);
    return dim3((unsigned)(p.m / S::BM + p.n_groups), (unsigned)ceil_div(p.n, S::BN));
}

/* ---- addend, bias, epilogue ------------------------------------------------------------------------------------- */

/** x[i] += from[i], i < n <= N. If n is N and the vector is aligned, 16 bytes are read at a time. */
template <int N, class S> __device__ inline void add_elements(float *x, const S *from, int n, bool vectors)
{
    if (vectors && n == N) {
        constexpr int V = 16 / sizeof(S) < N ? 16 / sizeof(S) : N;
#pragma unroll
        for (int i = 0; i < N; i += V) {
            const vec<S, V> v = *reinterpret_cast<const vec<S, V> *>(from + i);
#pragma unroll
            for (int j = 0; j < V; j++) x[i + j] += to_float(v.x[j]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (i < n) x[i] += to_float(from[i]);
    }
}

template <int N, class D> __device__ inline void store_elements(D *to, const float *x, int n, bool vectors)
{
    if (vectors && n == N) {
        constexpr int V = 16 / sizeof(D) < N ? 16 / sizeof(D) : N;
#pragma unroll
        for (int i = 0; i < N; i += V) {
            vec<D, V> v;
#pragma unroll
            for (int j = 0; j < V; j++) v.x[j] = from_float<D>(x[i + j]);
            *reinterpret_cast<vec<D, V> *>(to + i) = v;
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (i < n) to[i] = from_float<D>(x[i]);
    }
}

/* The epilogue uses the rounded P, so its result has the bits of separate calls. */
template <class T, int N>
__device__ inline void apply_epilogue(const matmul &p, int64_t row, int64_t col, float *x, int n)
{
    T *aux = static_cast<T *>(p.aux) + row * p.ld_aux + col;
    float input[N] = {};
    if (p.epilogue == DT_EPILOGUE_ACT) {
        if (p.aux) store_elements<N>(aux, x, n, p.vectors);
    } else {
        add_elements<N>(input, aux, n, p.vectors);
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float rounded = to_float(from_float<T>(x[i]));
        x[i] = p.epilogue == DT_EPILOGUE_ACT ? act_value(p.act, rounded) : act_slope(p.act, input[i]) * rounded;
    }
}

/** Finish and store the elements col .. col+n-1 of a row, n <= N, from their sums x: addend, bias, epilogue and one
 *  rounding. */
template <class T, int N>
__device__ inline void finish_elements(const matmul &p, int64_t row, int64_t col, float *x, int n)
{
    if (p.d) {
        if (p.d_float)
            add_elements<N>(x, static_cast<const float *>(p.d) + row * p.ldd + col, n, p.vectors);
        else
            add_elements<N>(x, static_cast<const T *>(p.d) + row * p.ldd + col, n, p.vectors);
    }
    if (p.bias) add_elements<N>(x, static_cast<const T *>(p.bias) + col, n, p.vectors);
    if (p.epilogue != DT_EPILOGUE_NONE) apply_epilogue<T, N>(p, row, col, x, n);
    if (p.c_float)
        store_elements<N>(static_cast<float *>(p.c) + row * p.ldc + col, x, n, p.vectors);
    else
        store_elements<N>(static_cast<T *>(p.c) + row * p.ldc + col, x, n, p.vectors);
}

#endif
