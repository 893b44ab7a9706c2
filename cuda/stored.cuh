/* stored.cuh - kernels' access to quantised matrices (dt_scaled): int8_matrix and nf4_matrix.
 *
 *     Q(q, ld, how, row, col)       the matrix at q, starting at element (row, col)
 *     move(n_rows, n_cols)          advance the start by this many rows and columns
 *     at(row, col)                  the dequantised element
 *     chunk<N>                      N quantised elements of a row, and their scale
 *     load(chunk, row, col, count)  load the first `count` elements starting at col; the rest of the chunk is 0
 *     chunk.number(e)               dequantised element e of a chunk
 *
 * A chunk lies in one quantisation block: col and all offsets passed to move are multiples of N, and in nf4 also ld.
 *
 * A kernel may also copy quantised elements of BITS bits to shared memory, and dequantise them from there:
 *
 *     bytes(row, col)               address of an element
 *     scale_at(row, col).value()    the scale of BLOCK elements of a row; scale_at loads, value() computes
 *     codes.read(x, at, t)          elements 2t, 2t + 1, 2t + 8 and 2t + 9 of the 16 at `at`, without their scale
 *
 * All threads of the block construct `codes`, and then pass a barrier before the first read.
 *
 * An nf4 value is the product of a level and the block's scale, rounded as on the host, without contraction. The table
 * of levels is one line of the L1 cache, which all threads of a warp read together. */
#ifndef DTRAIN_STORED_CUH
#define DTRAIN_STORED_CUH

#include "each.cuh"
#include "dtrain/device/nf4.h"

struct int8_matrix {
    enum { BITS = 8, BLOCK = 1 << 20 /* a row of any length has one scale */ };
    const int8_t *p;
    int64_t ld;
    const float *scale;
    bool rows, fits; /* rows: a scale per row; fits: rows are aligned to 8 bytes */

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

    struct stored_scale {
        float x;
        __device__ float value() const { return x; }
    };
    __device__ const void *bytes(int64_t row, int64_t col) const { return p + row * ld + col; }
    __device__ stored_scale scale_at(int64_t row, int64_t) const { return {scale_of(row)}; }
    struct codes {
        __device__ void read(float x[4], const void *at, int t) const
        {
            const uint16_t *pair = static_cast<const uint16_t *>(at) + t;
            const unsigned low = pair[0] ^ 0x8080u, high = pair[4] ^ 0x8080u;
            x[0] = number(low & 0xff), x[1] = number(low >> 8), x[2] = number(high & 0xff), x[3] = number(high >> 8);
        }
        /* q is q + 128 on entry. OR it into the low bits of 2^23: a subtraction is cheaper than a conversion. */
        static __device__ float number(unsigned q) { return __uint_as_float(0x4b000000u | q) - (0x1p23f + 128); }
    };
};

/* Static: every source file with matmuls has its own copy of this 1 KB. */
static __device__ const float nf4_levels[16] = {DT_NF4_LEVELS}, nf4_map[256] = {DT_NF4_MAP};

struct nf4_matrix {
    enum { BITS = 4, BLOCK = DT_NF4_BLOCK };
    const uint8_t *p;
    int64_t ld;
    const uint8_t *blocks;
    const float *groups;
    int shift;    /* 2^shift blocks share a pair of floats */
    int64_t from; /* linear index of the matrix's first element in the stored tensor */

    __host__ nf4_matrix(const void *q, int64_t ld_, const dt_scaled &how, int64_t row = 0, int64_t col = 0)
        : p(static_cast<const uint8_t *>(q)), ld(ld_), blocks(how.blocks), groups(how.scale),
          shift(dt_nf4_shift(how.finer)), from(row * ld + col)
    {
    }
    __host__ __device__ void move(int64_t n_rows, int64_t n_cols) { from += n_rows * ld + n_cols; }
    struct stored_scale {
        uint8_t block;
        const float *group;
        __device__ float value() const { return __fadd_rn(__fmul_rn(nf4_map[block], group[0]), group[1]); }
    };
    __device__ stored_scale scale_from(int64_t i) const
    {
        const int64_t block = i / DT_NF4_BLOCK;
        return {blocks[block], groups + 2 * (block >> shift)};
    }
    __device__ float scale_of(int64_t i) const { return scale_from(i).value(); }
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
            /* only the upper half of the last byte belongs to the matrix */
            if (count > 0 && count < N && (count & 1)) c.q.x[count / 2] = (uint8_t)((c.q.x[count / 2] & 0xf0) | 7);
        }
    }
    enum { ZEROS = 0x77 };

    __device__ const void *bytes(int64_t row, int64_t col) const { return p + ((from + row * ld + col) >> 1); }
    __device__ stored_scale scale_at(int64_t row, int64_t col) const { return scale_from(from + row * ld + col); }
    /* The levels are copied to shared memory, each in its own bank. */
    struct codes {
        const float *levels;
        __device__ codes()
        {
            __shared__ float near[16];
            if (threadIdx.x < 16) near[threadIdx.x] = nf4_levels[threadIdx.x];
            levels = near;
        }
        __device__ void read(float x[4], const void *at, int t) const
        {
            const vec<uint32_t, 2> q = *static_cast<const vec<uint32_t, 2> *>(at);
            const uint32_t low = q.x[0] >> 8 * t, high = q.x[1] >> 8 * t;
            x[0] = levels[low >> 4 & 15], x[1] = levels[low & 15], x[2] = levels[high >> 4 & 15];
            x[3] = levels[high & 15];
        }
    };
};

#endif
