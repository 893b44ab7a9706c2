/* matmul_x86.c - matmuls of bf16 tiles by pairwise dot products in vectors (AVX512_BF16) and by the matrix unit (AMX),
 * and the dot products of matmul_rows.c. Both units read A by rows, and B in pairs along k. */
#include "dtrain/device/nf4.h"
#include "rows.h"

#if HAVE_X86_UNITS
#include <string.h>

static void nothing(void) {}

/* ---- dot products ------------------------------------------------------------------------------------------------ */

enum { DOT_ROWS = 4, VECS = 4 }; /* registers: 16 sums, which hide the latency, 4 of B and a broadcast */

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
    .name = "avx512_bf16", .begin = nothing, .end = nothing, .matmul = dot_product};

/* ---- rows of A with rows of B (matmul_rows.c) ------------------------------------------------------------------- */

/* Lane l sums the pairs 2l, 2l + 1 of every 32 elements. 16 sums hide the latency. */

enum { PAIRS = 32, PAIR_CHUNK = 2048 };

/* Add rows x cols dot products of length k to sums[i * cols + j], lane by lane. */
__attribute__((target("avx512bf16"), always_inline)) static inline void
pair_sums(int rows, int cols, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b, int64_t ldb, vec *sums)
{
    vec sum[LANES];
#pragma GCC unroll 16
    for (int s = 0; s < rows * cols; s++) sum[s] = sums[s];
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
#pragma GCC unroll 16
    for (int s = 0; s < rows * cols; s++) sums[s] = sum[s];
}

#define PAIR_DOTS(name, rows, cols)                                                                                    \
    __attribute__((target("avx512bf16"))) static void name(int64_t k, const void *a, int64_t lda, const void *b,       \
                                                           int64_t ldb, vec *sums)                                     \
    {                                                                                                                  \
        pair_sums(rows, cols, k, a, lda, b, ldb, sums);                                                                \
    }
PAIR_DOTS(pairs_1, 1, LANES)
PAIR_DOTS(pairs_2, 2, LANES / 2)
PAIR_DOTS(pairs_4, 4, LANES / 4)
PAIR_DOTS(pairs_1x1, 1, 1)

/* ---- one row of A with a quantised B ----------------------------------------------------------------------------- */

/* B is dequantised in registers. Sixteen rows of B are read at the same time, too many streams for the hardware
 * prefetcher. The kernels therefore prefetch the next sixteen rows.
 *
 * For nf4 the two products of a pair are added one after the other, the odd one first. The pairwise instruction adds in
 * the same order. This needs two instructions instead of three. (The pairwise instruction treats values below 2^-126 as
 * 0.) */

__attribute__((target("avx512bf16"))) static void int8_dots(int64_t k, const uint16_t *a, const dt_stored *b,
                                                            int64_t row, int64_t col, vec *sums)
{
    const int8_t *q = (const int8_t *)b->p + row * b->ld + col;
    vec sum[LANES], scale;
    float scales[LANES];
    for (int j = 0; j < LANES; j++) scales[j] = b->how.scale[b->how.how == DT_SCALE_ROWS ? row + j : 0];
#pragma GCC unroll 16
    for (int j = 0; j < LANES; j++) sum[j] = sums[j];
    for (int64_t p = 0; p < k; p += PAIRS) {
        const __m512i x = _mm512_loadu_si512(a + p);
#pragma GCC unroll 16
        for (int j = 0; j < LANES; j++) {
            const int8_t *at = q + j * b->ld + p;
            const __m512i low = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)at)),
                          high = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(at + 16)));
            __builtin_prefetch(at + LANES * b->ld, 0, 2);
            scale = v_set(scales[j]);
            const __m512bh y = _mm512_cvtne2ps_pbh(_mm512_mul_ps(_mm512_cvtepi32_ps(high), scale),
                                                   _mm512_mul_ps(_mm512_cvtepi32_ps(low), scale));
            sum[j] = _mm512_dpbf16_ps(sum[j], (__m512bh)x, y);
        }
    }
#pragma GCC unroll 16
    for (int j = 0; j < LANES; j++) sums[j] = sum[j];
}

/* scale [n]: the scales of n blocks, starting at `block`. */
static void block_scales(const dt_scaled *how, int64_t block, int64_t n, float *scale)
{
    static const float MAP[256] = {DT_NF4_MAP};
    const int shift = dt_nf4_shift(how->finer);
    for (int64_t i = 0, end; i < n; i = end) {
        const int64_t group = (block + i) >> shift;
        const float factor = how->scale[2 * group], offset = how->scale[2 * group + 1];
        end = dt_min_i64(((group + 1) << shift) - block, n);
        for (int64_t l = i; l < end; l += LANES) {
            const __mmask16 there = end - l < LANES ? (__mmask16)((1u << (end - l)) - 1) : (__mmask16)0xffff;
            const __m512i at = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(there, how->blocks + block + l));
            const vec x = _mm512_mul_ps(_mm512_i32gather_ps(at, MAP, sizeof *MAP), v_set(factor));
            _mm512_mask_storeu_ps(scale + l, there, _mm512_add_ps(x, v_set(offset)));
        }
    }
}

/* Add 32 products of A's elements with weights, looked up in `numbers` by the lowest four bits of each word. */
INLINE vec add_looked_up(vec sum, vec even, vec odd, const uint8_t *codes, vec numbers)
{
    const __m512i second = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)codes)),
                  first = _mm512_srli_epi32(second, 4);
    sum = v_fma(odd, _mm512_permutexvar_ps(second, numbers), sum);
    return v_fma(even, _mm512_permutexvar_ps(first, numbers), sum);
}

INLINE vec odd_of(__m512i pairs)
{
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u)));
}
INLINE vec even_of(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }

/* As int8_dots for nf4, for whole blocks: b->ld and col are multiples of the block size. */
__attribute__((target("avx512bf16"))) static void nf4_dots(int64_t k, const uint16_t *a, const dt_stored *b,
                                                           int64_t row, int64_t col, vec *sums)
{
    static const float LEVELS[LANES] = {DT_NF4_LEVELS};
    const uint8_t *codes = (const uint8_t *)b->p + (row * b->ld + col) / 2;
    const vec levels = v_load(LEVELS);
    vec sum[LANES];
    float scale[LANES][PAIR_CHUNK / DT_NF4_BLOCK];
    for (int j = 0; j < LANES; j++)
        block_scales(&b->how, ((row + j) * b->ld + col) / DT_NF4_BLOCK, k / DT_NF4_BLOCK, scale[j]);
#pragma GCC unroll 16
    for (int j = 0; j < LANES; j++) sum[j] = sums[j];
    for (int64_t p = 0; p < k; p += DT_NF4_BLOCK) {
        const __m512i x = _mm512_loadu_si512(a + p), y = _mm512_loadu_si512(a + p + PAIRS);
        const vec x_even = even_of(x), x_odd = odd_of(x), y_even = even_of(y), y_odd = odd_of(y);
#pragma GCC unroll 16
        for (int j = 0; j < LANES; j++) {
            const uint8_t *at = codes + (j * b->ld + p) / 2;
            const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_mul_ps(levels, v_set(scale[j][p / DT_NF4_BLOCK])));
            const vec numbers = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)rounded), 16));
            __builtin_prefetch(at + LANES * b->ld / 2, 0, 2);
            sum[j] = add_looked_up(sum[j], x_even, x_odd, at, numbers);
            sum[j] = add_looked_up(sum[j], y_even, y_odd, at + 16, numbers);
        }
    }
#pragma GCC unroll 16
    for (int j = 0; j < LANES; j++) sums[j] = sum[j];
}

static int64_t stored_dots(int64_t k, const void *a, const dt_stored *b, int64_t row, int64_t col, vec *sum)
{
    const bool nf4 = b->how.how == DT_SCALE_NF4;
    const int64_t step = nf4 ? DT_NF4_BLOCK : PAIRS, whole = nf4 && b->ld % DT_NF4_BLOCK ? 0 : k / step * step;
    if (nf4)
        nf4_dots(whole, a, b, row, col, sum);
    else
        int8_dots(whole, a, b, row, col, sum);
    return whole;
}

const dot_shapes ISA_NAME(pair_dots) = {
    PAIR_CHUNK, ISA_NAME(dequantise_pairs), stored_dots, {pairs_1, pairs_2, pairs_4}, pairs_1x1};

/* ---- matrix unit ------------------------------------------------------------------------------------------------- */

/* Eight tile registers of 16 rows of 64 bytes: 0 to 3 hold 2 x 2 tiles of sums, 4 and 5 tiles of A, 6 and 7 tiles of
 * B. */

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

__attribute__((target("amx-tile"))) static void amx_begin(void)
{
    /* static: gcc assumes that the instruction reads 8 bytes, and would drop the stores to the rest */
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

/* The same for 16 x 16, with one tile of sums: for borders. */
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
static void amx_matmul(int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint32_t *b, int64_t ldb,
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

const dt_bf16_unit ISA_NAME(amx_unit) = {.name = "amx_bf16", .begin = amx_begin, .end = amx_end, .matmul = amx_matmul};
#endif
