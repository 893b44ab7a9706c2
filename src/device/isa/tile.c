/* tile.c - the functions on tiles that attention and matmuls share (tile.h). */
#include "tile.h"
#include "transpose.h"

/* C [rows][vecs * LANES] (+)= sum over p < k of A(i, p) B[p][..], in order of p. All sums are in registers. A(i, p) =
 * a[i * a_row + p * a_col]. */
INLINE void micro(int rows, int vecs, int64_t k, const float *a, int64_t a_row, int64_t a_col, const float *b,
                  int64_t ldb, float *c, int64_t ldc, bool accumulate)
{
    vec sum[ROWS][PANEL];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++) sum[i][j] = accumulate ? v_load(c + i * ldc + j * LANES) : v_set(0.0f);
    for (int64_t p = 0; p < k; p++) {
        vec bp[PANEL];
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++) bp[j] = v_load(b + p * ldb + j * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const vec x = v_set(a[i * a_row + p * a_col]);
#pragma GCC unroll 4
            for (int j = 0; j < vecs; j++) sum[i][j] = v_fma(x, bp[j], sum[i][j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++) v_store(c + i * ldc + j * LANES, sum[i][j]);
}

/* The same for n columns, a multiple of LANES: panels of PANEL vectors, then single ones. */
INLINE void micro_rows(int rows, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_col, const float *b,
                       int64_t ldb, float *c, int64_t ldc, bool accumulate)
{
    int64_t j = 0;
    for (; j + PANEL * LANES <= n; j += PANEL * LANES)
        micro(rows, PANEL, k, a, a_row, a_col, b + j, ldb, c + j, ldc, accumulate);
    for (; j < n; j += LANES) micro(rows, 1, k, a, a_row, a_col, b + j, ldb, c + j, ldc, accumulate);
}

INLINE void matmul(bool transposed, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
                   int64_t ldb, float *c, int64_t ldc, bool accumulate)
{
    const int64_t a_row = transposed ? 1 : lda, a_col = transposed ? lda : 1;
    int64_t i = 0;
    for (; i + ROWS <= m; i += ROWS)
        micro_rows(ROWS, n, k, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc, accumulate);
    for (; i + 2 <= m; i += 2) micro_rows(2, n, k, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc, accumulate);
    for (; i < m; i++) micro_rows(1, n, k, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc, accumulate);
}

void tile_matmul(bool transposed, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
                 int64_t ldb, float *c, int64_t ldc, bool accumulate)
{
    if (transposed)
        matmul(true, m, n, k, a, lda, b, ldb, c, ldc, accumulate);
    else
        matmul(false, m, n, k, a, lda, b, ldb, c, ldc, accumulate);
}

void load_rows(float *restrict dst, const void *src, dt_dtype dt, int64_t ld, int64_t n, int64_t d, int64_t dp,
               float factor)
{
    for (int64_t i = 0; i < n; i++) {
        const void *row = cpu_at(src, dt, i * ld);
        float *to = dst + i * dp;
        if (dt == DT_F32) {
            SIMD_FOR (int64_t c = 0; c < d; c++) to[c] = factor * load(row, DT_F32, c);
        } else if (dt == DT_BF16) {
            SIMD_FOR (int64_t c = 0; c < d; c++) to[c] = factor * load(row, DT_BF16, c);
        } else { /* compilers do not vectorise fp16 */
            int64_t c = 0;
            for (; c + LANES <= d; c += LANES) v_store(to + c, v_set(factor) * load_lanes(row, DT_F16, c));
            for (; c < d; c++) to[c] = factor * load(row, DT_F16, c);
        }
        for (int64_t c = d; c < dp; c++) to[c] = 0.0f;
    }
}

void transpose_words(uint32_t *restrict dst, const uint32_t *restrict src, int64_t n_rows, int64_t width)
{
#if defined(__AVX512F__)
    for (int64_t i = 0; i < n_rows; i += 16)
        for (int64_t c = 0; c < width; c += 16) {
            __m512i r[16];
#pragma GCC unroll 16
            for (int l = 0; l < 16; l++) r[l] = _mm512_loadu_si512(src + (i + l) * width + c);
            transpose_16x16(r);
#pragma GCC unroll 16
            for (int l = 0; l < 16; l++) _mm512_storeu_si512(dst + (c + l) * n_rows + i, r[l]);
        }
#else
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t c = 0; c < width; c++) dst[c * n_rows + i] = src[i * width + c];
#endif
}

void store_transposed(void *dst, dt_dtype dt, int64_t ld, const float *restrict src, int64_t n, int64_t d,
                      const float *factor, float *restrict scratch)
{
    enum { WIDTH = 32 };
    float *restrict scaled = scratch, *restrict rows = scratch + WIDTH * TQ;
    for (int64_t c = 0; c < d; c += WIDTH) {
        const int64_t width = d - c < WIDTH ? d - c : WIDTH;
        for (int64_t l = 0; l < WIDTH; l++)
            SIMD_FOR (int64_t i = 0; i < TQ; i++) scaled[l * TQ + i] = src[(c + l) * TQ + i] * factor[i];
        transpose(rows, scaled, WIDTH, TQ);
        for (int64_t i = 0; i < n; i++) {
            void *to = cpu_at_w(dst, dt, i * ld + c);
            if (dt == DT_F32) {
                SIMD_FOR (int64_t l = 0; l < width; l++) ((float *)to)[l] = rows[i * WIDTH + l];
            } else if (dt == DT_BF16) {
                SIMD_FOR (int64_t l = 0; l < width; l++) ((uint16_t *)to)[l] = bf16_of(rows[i * WIDTH + l]);
            } else {
                SIMD_FOR (int64_t l = 0; l < width; l++) ((uint16_t *)to)[l] = dt_f16_from_float(rows[i * WIDTH + l]);
            }
        }
    }
}

void dropout_factors(float *restrict factor, const dt_attention *at, const uint64_t *token_key, int head, int32_t key,
                     int32_t n_keys, int32_t n)
{
    const float p = at->dropout_p, kept = 1.0f / (1.0f - p);
    for (int32_t j = key / 4 * 4; j < key + n_keys; j += 4) {
        uint32_t w[4][TQ];
        const uint64_t counter = (uint64_t)(uint32_t)head << 32 | (uint32_t)(j / 4);
        SIMD_FOR (int32_t i = 0; i < n; i++) {
            const philox_out r = philox_f(at->dropout_key, token_key[i], counter);
            w[0][i] = r.w[0], w[1][i] = r.w[1], w[2][i] = r.w[2], w[3][i] = r.w[3];
        }
        for (int32_t l = 0; l < 4; l++) {
            if (j + l < key || j + l >= key + n_keys) continue;
            SIMD_FOR (int32_t i = 0; i < n; i++) factor[(j + l - key) * TQ + i] = unit_of(w[l][i]) >= p ? kept : 0.0f;
        }
    }
}
