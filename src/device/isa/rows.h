/* rows.h - shared by general and batch-invariant matmuls: vectors, sums over lanes, blocks of C. */
#ifndef DTRAIN_ISA_ROWS_H
#define DTRAIN_ISA_ROWS_H

#include "tile.h"

/* Dot products of rows of A with rows of B. One vector per dot product: results are added to sum lane by lane. */
typedef void dots_function(int64_t k, const void *a, int64_t lda, const void *b, int64_t ldb, vec sum[LANES]);
typedef void dequantise_function(const dt_stored *b, int64_t row, int64_t col, int64_t n, void *dst, dt_dtype dt);
/* As wide[0] for a quantised B, starting at (row, col). It dequantises in registers and gives the same bits. Returns
 * the number of terms that it added; the caller adds the rest. */
typedef int64_t stored_dots_function(int64_t k, const void *a, const dt_stored *b, int64_t row, int64_t col,
                                     vec sum[LANES]);
typedef struct dot_shapes {
    int64_t chunk; /* terms of k with a separate sum */
    dequantise_function *dequantise;
    stored_dots_function *stored; /* NULL: there is none */
    dots_function *wide[3];       /* 1, 2 or 4 rows of A with enough rows of B for LANES products */
    dots_function *single;        /* one row of A with one of B */
} dot_shapes;

#if HAVE_BF16_UNITS
extern const dot_shapes ISA_NAME(pair_dots); /* matmul_x86.c */
#endif

/* A vector of n < LANES elements, padded with zeros. */
INLINE vec load_some(const void *p, dt_dtype dt, int64_t i, int64_t n)
{
    float x[LANES] = {0};
    for (int64_t l = 0; l < n; l++) x[l] = load(p, dt, i + l);
    return v_load(x);
}

/* Lane s of the result is the sum of the lanes of x[s]. The order is the same for every s: l + (l + 2), neighbours,
 * then halves. */
INLINE vec add_lanes(const vec *x)
{
#if defined(__AVX512F__)
    __m512 quarter[4];
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
        const __m512 a = x[4 * g], b = x[4 * g + 1], c = x[4 * g + 2], d = x[4 * g + 3];
        const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        quarter[g] = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    }
    const __m512 low = _mm512_add_ps(_mm512_shuffle_f32x4(quarter[0], quarter[1], 0x88),
                                     _mm512_shuffle_f32x4(quarter[0], quarter[1], 0xdd));
    const __m512 high = _mm512_add_ps(_mm512_shuffle_f32x4(quarter[2], quarter[3], 0x88),
                                      _mm512_shuffle_f32x4(quarter[2], quarter[3], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
#elif defined(__AVX2__) && defined(__FMA__)
    __m256 half[2];
#pragma GCC unroll 2
    for (int g = 0; g < 2; g++) {
        const __m256 a = x[4 * g], b = x[4 * g + 1], c = x[4 * g + 2], d = x[4 * g + 3];
        const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
        half[g] = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    }
    return _mm256_add_ps(_mm256_permute2f128_ps(half[0], half[1], 0x20),
                         _mm256_permute2f128_ps(half[0], half[1], 0x31));
#else
    float in[4][LANES], out[LANES];
    for (int s = 0; s < LANES; s++) v_store(in[s], x[s]);
    for (int s = 0; s < LANES; s++) out[s] = (in[s][0] + in[s][2]) + (in[s][1] + in[s][3]);
    return v_load(out);
#endif
}

/* Store a block of C: its sums plus bias and addend, rounded once. */
SHARED void store_block(const dt_matmul_call *g, int64_t i, int64_t j, int64_t m, int64_t n, const float *total,
                        int64_t ld)
{
    enum { CHUNK = 64 };
    const dt_matmul *mm = g->mm;
    const addend d = addend_of(g);
    for (int64_t r = 0; r < m; r++)
        for (int64_t c = 0, count; c < n; c += count) {
            float x[CHUNK];
            count = dt_min_i64(CHUNK, n - c);
            memcpy(x, total + r * ld + c, (size_t)count * sizeof *x);
            if (mm->bias) add_elements(x, mm->bias, mm->dt, j + c, count);
            if (d.at) add_elements(x, d.at + (i + r) * d.row_nbytes, d.dt, j + c, count);
            store_elements(g->c, mm->c_dtype, (i + r) * mm->ldc + j + c, x, count);
        }
}

#endif
