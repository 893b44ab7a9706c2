/* product_bf16.c - products of bf16 tiles on the processor's units for them: pairwise dot products in vectors
 * (AVX512_BF16), or the matrix unit (AMX). Both take A by rows and B in pairs along k. And the dot products of
 * product_rows.c. */
#include "rows.h"

#if HAVE_X86_UNITS
#include <immintrin.h>
#include <string.h>

static void nothing(void) {}

/* ---- dot products ------------------------------------------------------------------------------------------------ */

enum { DOT_ROWS = 4, VECS = 4 }; /* 16 sums hide the latency; 4 of B and a broadcast */

/* C [4][16 vecs] (+)= A [4][k] B [k][16 vecs]: A by rows, B in pairs [k/2][ldb]. */
__attribute__((target("avx512bf16"), always_inline)) static inline void
dot_block(int vecs, int64_t k, const uint16_t *a, int64_t lda, const uint32_t *b, int64_t ldb, float *c, int64_t ldc,
          bool accumulate)
{
    __m512 sum[DOT_ROWS][VECS];
#pragma GCC unroll 4
    for (int i = 0; i < DOT_ROWS; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++)
            sum[i][j] = accumulate ? _mm512_loadu_ps(c + i * ldc + 16 * j) : _mm512_setzero_ps();
    for (int64_t p = 0; p < k / 2; p++) {
        __m512i bp[VECS];
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++) bp[j] = _mm512_loadu_si512(b + p * ldb + 16 * j);
#pragma GCC unroll 4
        for (int i = 0; i < DOT_ROWS; i++) {
            int32_t pair;
            memcpy(&pair, a + i * lda + 2 * p, sizeof pair);
            const __m512i x = _mm512_set1_epi32(pair);
#pragma GCC unroll 4
            for (int j = 0; j < vecs; j++) sum[i][j] = _mm512_dpbf16_ps(sum[i][j], (__m512bh)x, (__m512bh)bp[j]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < DOT_ROWS; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++) _mm512_storeu_ps(c + i * ldc + 16 * j, sum[i][j]);
}

/* C [m][n] (+)= A [m][k] B [k][n]: m a multiple of 4, n of 16, k of 2. */
__attribute__((target("avx512bf16"))) static void dot_product(int64_t m, int64_t n, int64_t k, const uint16_t *a,
                                                              int64_t lda, const uint32_t *b, int64_t ldb, float *c,
                                                              int64_t ldc, bool accumulate)
{
    for (int64_t i = 0; i < m; i += DOT_ROWS) {
        int64_t j = 0;
        for (; j + 16 * VECS <= n; j += 16 * VECS)
            dot_block(VECS, k, a + i * lda, lda, b + j, ldb, c + i * ldc + j, ldc, accumulate);
        for (; j < n; j += 16) dot_block(1, k, a + i * lda, lda, b + j, ldb, c + i * ldc + j, ldc, accumulate);
    }
}

const dt_bf16_unit ISA_NAME(dot_unit) = {
    .name = "avx512_bf16", .begin = nothing, .end = nothing, .product = dot_product};

/* ---- rows of A with rows of B (product_rows.c) ------------------------------------------------------------------- */

/* Lane l sums pairs 2l, 2l + 1 of every 32 elements; 16 sums hide the latency. */

enum { PAIRS = 32, PAIR_CHUNK = 2048 };

/* rows x cols dot products of length k into sums[i * cols + j]. */
__attribute__((target("avx512bf16"), always_inline)) static inline void
pair_sums(int rows, int cols, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b, int64_t ldb, float *sums)
{
    vec sum[LANES];
#pragma GCC unroll 16
    for (int s = 0; s < LANES; s++) sum[s] = v_set(0.0f);
    const int64_t whole = k / PAIRS * PAIRS;
    for (int64_t p = 0; p < whole; p += PAIRS) {
        __m512i x[4];
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) x[i] = _mm512_loadu_si512(a + i * lda + p);
#pragma GCC unroll 16
        for (int j = 0; j < cols; j++) {
            const __m512i y = _mm512_loadu_si512(b + j * ldb + p);
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++)
                sum[i * cols + j] = _mm512_dpbf16_ps(sum[i * cols + j], (__m512bh)x[i], (__m512bh)y);
        }
    }
    const __mmask32 rest = (__mmask32)((1u << (k - whole)) - 1);
    for (int j = 0; whole < k && j < cols; j++)
        for (int i = 0; i < rows; i++)
            sum[i * cols + j] =
                _mm512_dpbf16_ps(sum[i * cols + j], (__m512bh)_mm512_maskz_loadu_epi16(rest, a + i * lda + whole),
                                 (__m512bh)_mm512_maskz_loadu_epi16(rest, b + j * ldb + whole));
    v_store(sums, add_lanes(sum));
}

#define PAIR_DOTS(name, rows, cols)                                                                                    \
    __attribute__((target("avx512bf16"))) static void name(int64_t k, const void *a, int64_t lda, const void *b,       \
                                                           int64_t ldb, float *sums)                                   \
    {                                                                                                                  \
        pair_sums(rows, cols, k, a, lda, b, ldb, sums);                                                                \
    }
PAIR_DOTS(pairs_1, 1, LANES)
PAIR_DOTS(pairs_2, 2, LANES / 2)
PAIR_DOTS(pairs_4, 4, LANES / 4)
PAIR_DOTS(pairs_1x1, 1, 1)
PAIR_DOTS(pairs_2x1, 2, 1)
PAIR_DOTS(pairs_4x1, 4, 1)
const dot_shapes ISA_NAME(pair_dots) = {PAIR_CHUNK, {pairs_1, pairs_2, pairs_4}, {pairs_1x1, pairs_2x1, pairs_4x1}};

/* ---- matrix unit ------------------------------------------------------------------------------------------------- */

/* Tiles of 16 rows of 64 bytes: 0 to 3 sums (two by two), 4 and 5 of A, 6 and 7 of B. */

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

__attribute__((target("amx-tile"))) static void amx_begin(void)
{
    /* static: gcc takes the instruction to read 8 bytes, and would drop the stores to the rest */
    static const tile_config config = {
        .palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&config);
}
__attribute__((target("amx-tile"))) static void amx_end(void) { _tile_release(); }

#define LOAD_SUM(t, p)                                                                                                 \
    if (accumulate)                                                                                                    \
        _tile_loadd(t, p, ldc * 4);                                                                                    \
    else                                                                                                               \
        _tile_zero(t)

/* C [32][32] (+)= A [32][k] B [k][32], k a multiple of 32, in four tiles of sums. */
__attribute__((target("amx-tile,amx-bf16"))) static void amx_32x32(int64_t k, const uint16_t *a, int64_t lda,
                                                                   const uint32_t *b, int64_t ldb, float *c,
                                                                   int64_t ldc, bool accumulate)
{
    LOAD_SUM(0, c);
    LOAD_SUM(1, c + 16);
    LOAD_SUM(2, c + 16 * ldc);
    LOAD_SUM(3, c + 16 * ldc + 16);
    for (int64_t p = 0; p < k; p += 32) {
        _tile_loadd(4, a + p, lda * 2);
        _tile_loadd(6, b + p / 2 * ldb, ldb * 4);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + p / 2 * ldb + 16, ldb * 4);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + 16 * lda + p, lda * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, ldc * 4);
    _tile_stored(1, c + 16, ldc * 4);
    _tile_stored(2, c + 16 * ldc, ldc * 4);
    _tile_stored(3, c + 16 * ldc + 16, ldc * 4);
}

/* The same for 16 x 16: one tile of sums, for borders. */
__attribute__((target("amx-tile,amx-bf16"))) static void amx_16x16(int64_t k, const uint16_t *a, int64_t lda,
                                                                   const uint32_t *b, int64_t ldb, float *c,
                                                                   int64_t ldc, bool accumulate)
{
    LOAD_SUM(0, c);
    for (int64_t p = 0; p < k; p += 32) {
        _tile_loadd(4, a + p, lda * 2);
        _tile_loadd(6, b + p / 2 * ldb, ldb * 4);
        _tile_dpbf16ps(0, 4, 6);
    }
    _tile_stored(0, c, ldc * 4);
}

/* C [m][n] (+)= A [m][k] B [k][n]: m and n multiples of 16, k of 32. */
static void amx_product(int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint32_t *b, int64_t ldb,
                        float *c, int64_t ldc, bool accumulate)
{
    int64_t i = 0;
    for (; i + 32 <= m; i += 32) {
        int64_t j = 0;
        for (; j + 32 <= n; j += 32) amx_32x32(k, a + i * lda, lda, b + j, ldb, c + i * ldc + j, ldc, accumulate);
        for (; j < n; j += 16)
            for (int half = 0; half < 2; half++)
                amx_16x16(k, a + (i + 16 * half) * lda, lda, b + j, ldb, c + (i + 16 * half) * ldc + j, ldc,
                          accumulate);
    }
    for (; i < m; i += 16)
        for (int64_t j = 0; j < n; j += 16)
            amx_16x16(k, a + i * lda, lda, b + j, ldb, c + i * ldc + j, ldc, accumulate);
}

const dt_bf16_unit ISA_NAME(amx_unit) = {
    .name = "amx_bf16", .begin = amx_begin, .end = amx_end, .product = amx_product};
#endif
