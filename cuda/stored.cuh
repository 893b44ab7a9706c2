/* stored.cuh - matrices that are stored with scales (dt_scaled), as kernels read them: int8_matrix and nf4_matrix.
 *
 *     Q(q, ld, how, row, col)       the matrix that is stored at q, from (row, col) on
 *     move(n_rows, n_cols)          the same matrix from an element on
 *     at(row, col)                  an element
 *     chunk<N>                      N elements of a row, as they are stored, with their scale
 *     load(chunk, row, col, count)  those from col on, of which count are there; the others are 0. col and what was
 *                                   moved by are multiples of N, and in nf4 ld, too: a chunk lies in one block
 *     chunk.number(e)               element e of them
 *
 * A number of nf4 is a product of a level, which is looked up in memory (a line of the nearest cache, that all threads
 * of a warp read at once), and the block's scale: rounded as on the host, without contraction. */
#ifndef DTRAIN_STORED_CUH
#define DTRAIN_STORED_CUH

#include "each.cuh"
#include "dtrain/nf4.h"

struct int8_matrix {
    const int8_t *p;
    int64_t ld;
    const float *scale;
    bool rows, fits; /* rows: a scale for each; fits: rows begin at multiples of 8 bytes */

    __host__ int8_matrix(const void *q, int64_t ld_, const dt_scaled &how, int64_t row = 0, int64_t col = 0)
        : p(static_cast<const int8_t *>(q)), ld(ld_), scale(how.scale), rows(how.how == dt_scaled::DT_SCALE_ROWS)
    {
        move(row, col);
        fits = (((size_t)p | (size_t)ld) & 7) == 0;
    }
    __host__ __device__ void move(int64_t n_rows, int64_t n_cols)
    {
        p += n_rows * ld + n_cols;
        scale += rows ? n_rows : 0;
    }
    template <class I> __device__ float scale_of(I row) const { return scale[rows ? row : 0]; }
    __device__ float at(int64_t row, int64_t col) const { return (float)p[row * ld + col] * scale_of(row); }

    template <int N> struct chunk {
        vec<int8_t, N> q;
        float scale;
        __device__ float number(int e) const { return (float)q.x[e] * scale; }
    };
    template <int N, class I> __device__ void load(chunk<N> &c, I row, I col, int count) const
    {
        const int8_t *from = p + row * ld + col;
        c.scale = count > 0 ? scale_of(row) : 0.0f;
        if (fits && count == N) {
            c.q = *reinterpret_cast<const vec<int8_t, N> *>(from);
        } else {
#pragma unroll
            for (int e = 0; e < N; e++) c.q.x[e] = e < count ? from[e] : (int8_t)0;
        }
    }
};

/* Static: each source that multiplies has its own 1 KB. */
static __device__ const float nf4_levels[16] = {DT_NF4_LEVELS}, nf4_map[256] = {DT_NF4_MAP};

struct nf4_matrix {
    const uint8_t *p;
    int64_t ld;
    const uint8_t *blocks;
    const float *groups;
    int shift;    /* 2^shift blocks have one pair of floats */
    int64_t from; /* of all elements */

    __host__ nf4_matrix(const void *q, int64_t ld_, const dt_scaled &how, int64_t row = 0, int64_t col = 0)
        : p(static_cast<const uint8_t *>(q)), ld(ld_), blocks(how.blocks), groups(how.scale),
          shift(dt_nf4_shift(how.finer)), from(row * ld + col)
    {
    }
    __host__ __device__ void move(int64_t n_rows, int64_t n_cols) { from += n_rows * ld + n_cols; }
    __device__ float scale_of(int64_t i) const
    {
        const int64_t block = i / DT_NF4_BLOCK, group = block >> shift;
        return __fadd_rn(__fmul_rn(nf4_map[blocks[block]], groups[2 * group]), groups[2 * group + 1]);
    }
    __device__ float at(int64_t row, int64_t col) const
    {
        const int64_t i = from + row * ld + col;
        return __fmul_rn(nf4_levels[p[i / 2] >> (i & 1 ? 0 : 4) & 15], scale_of(i));
    }

    template <int N> struct chunk {
        vec<uint8_t, N / 2> q;
        float scale;
        __device__ float number(int e) const
        {
            return __fmul_rn(nf4_levels[q.x[e / 2] >> (e & 1 ? 0 : 4) & 15], scale);
        }
    };
    template <int N, class I> __device__ void load(chunk<N> &c, I row, I col, int count) const
    {
        const int64_t i = from + row * ld + col;
        const uint8_t *at = p + i / 2;
        c.scale = count > 0 ? scale_of(i) : 0.0f;
        if (count == N && ((size_t)at & (N / 2 - 1)) == 0) {
            c.q = *reinterpret_cast<const vec<uint8_t, N / 2> *>(at);
        } else {
#pragma unroll
            for (int e = 0; e < N / 2; e++) c.q.x[e] = 2 * e < count ? at[e] : (uint8_t)ZEROS;
            /* the upper half of the last byte alone is the matrix's */
            if (count > 0 && count < N && (count & 1)) c.q.x[count / 2] = (uint8_t)((c.q.x[count / 2] & 0xf0) | 7);
        }
    }
    enum { ZEROS = 0x77 };
};

#endif
