/* product_tile.cuh - what our own product kernels share: the product as a kernel sees it, which tile of C a block
 * computes, and what is done with a sum where it is stored. */
#ifndef DTRAIN_PRODUCT_TILE_CUH
#define DTRAIN_PRODUCT_TILE_CUH

#include "activation.cuh"
#include "product.h"

enum { FEW_ROWS = 64 /* of C, at most: tiles for them read a matrix of weights once */ };

/** C[m,n] = end of (op(A) op(B) + D + bias): see dt_matmul. What there is not is NULL. */
struct product {
    int64_t m, n, k;
    int64_t lda, ldb, ldc, ldd, ld_aux;
    const void *a, *b, *d, *bias;
    void *c, *aux;
    dt_scaled b_scaled;
    bool c_float, d_float; /* else of the type of A and B */
    bool vectors;          /* rows of C, D, aux and bias may be read and written in vectors */
    int64_t piece;         /* terms of a piece, a multiple of every tile's depth; 0: all terms are one chain */
    int n_parts;           /* pieces whose sums are in parts; 0: there are none */
    float *parts;          /* [n_parts][m][ld_parts], in the stream's workspace */
    int64_t ld_parts;
    dt_epilogue epilogue;
    dt_activation act;
};

dt_err cuda_product_mma(dt_device *dev, const product &p, dt_dtype dt, bool trans_a, bool trans_b, dt_stream *s);
/** A B^T of few rows, with a B that is stored with scales, where cuda_stored_fits. */
dt_err cuda_product_stored(dt_device *dev, const product &p, dt_dtype dt, dt_stream *s);
bool cuda_stored_fits(const product &p, bool trans_b);
/** out [rows][cols] of dt, one row after the other: the numbers that are stored at q from (row0, col0) on, rows ld
 *  apart. */
dt_err cuda_dequantise(const void *q, int64_t ld, const dt_scaled *how, int64_t row0, int64_t col0, int64_t rows,
                       int64_t cols, void *out, dt_dtype dt, dt_stream *s);
dt_err cuda_product_fma(dt_device *dev, const product &p, bool trans_a, bool trans_b, dt_stream *s);
/** C = end of (sum of the parts, from the first on, + D + bias). */
dt_err cuda_product_finish(const product &p, dt_dtype dt, dt_stream *s);

/** Elements of a matrix of floats, by row and column as they are stored. */
struct float_matrix {
    const float *p;
    int64_t ld;
    __device__ float at(int64_t row, int64_t col) const { return p[row * ld + col]; }
};

/** Row and column of the block's tile. Blocks that run at the same time lie in a band of 8 tile rows: what they read of
 *  A and B is then shared in the second cache. */
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

/* ---- the end of a product ---------------------------------------------------------------------------------------- */

/** x[i] += from[i], i < n <= N; at once where a vector of N may be read. */
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

/* The epilogue starts from P as it was rounded: it has the bits of the calls that it stands for. */
template <class T, int N>
__device__ inline void apply_epilogue(const product &p, int64_t row, int64_t col, float *x, int n)
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

/** Elements col .. col+n-1 of a row, n <= N, whose sums of products are x: addend, bias, epilogue and one rounding. */
template <class T, int N>
__device__ inline void finish_elements(const product &p, int64_t row, int64_t col, float *x, int n)
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
