/* int8_units.c - sums of products of int8 (dt_int8_unit) by instructions for them: AVX512_VNNI, AMX, and Arm's dot
 * products. All of them are exact. */
#include "tile.h"

#if HAVE_INT8_DOT
static void nothing(void) {}
enum { BLOCK = DT_INT8_BLOCK, PAD = DT_INT8_PAD };

/* Row r of n; the last one stands in for those that are not there, whose sums nobody keeps. */
INLINE const int8_t *row_of(const int8_t *p, int64_t ld, int64_t r, int64_t n) { return p + (r < n ? r : n - 1) * ld; }
#endif

#if HAVE_X86_UNITS
#include "amx.h"

/* ---- AVX512_VNNI ------------------------------------------------------------------------------------------------- */

/* The instruction multiplies bytes without a sign by bytes with one: w + 128 takes the place of w, and 128 times the
 * sum of x is taken off. Sums wrap around, so it does not matter how large they are on the way. */
#define TARGET __attribute__((target("avx512vnni")))
#define TARGET_INLINE __attribute__((target("avx512vnni"), always_inline)) static inline

/* Lane s of the result is the sum of the lanes of x[s]. */
INLINE __m512i add_lanes_of(const __m512i *x)
{
    __m512i quarter[4];
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
        const __m512i a = x[4 * g], b = x[4 * g + 1], c = x[4 * g + 2], d = x[4 * g + 3];
        const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        quarter[g] = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    }
    const __m512i low = _mm512_add_epi32(_mm512_shuffle_i32x4(quarter[0], quarter[1], 0x88),
                                         _mm512_shuffle_i32x4(quarter[0], quarter[1], 0xdd));
    const __m512i high = _mm512_add_epi32(_mm512_shuffle_i32x4(quarter[2], quarter[3], 0x88),
                                          _mm512_shuffle_i32x4(quarter[2], quarter[3], 0xdd));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(low, high, 0x88), _mm512_shuffle_i32x4(low, high, 0xdd));
}

/* With a single row of x 16 rows of w are read side by side, too many places for the processor to see where they go on:
 * what the next 16, `ahead` from here, begin with is fetched ahead. */
TARGET_INLINE void dot_step(int rows, int cols, int64_t p, __mmask64 there, const int8_t *const *x,
                            const int8_t *const *w, int64_t ahead, __m512i *sum)
{
    const __m512i turn = _mm512_set1_epi8((char)0x80);
    __m512i of_x[4];
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) of_x[i] = _mm512_loadu_si512(x[i] + p);
#pragma GCC unroll 16
    for (int j = 0; j < cols; j++) {
        const __m512i of_w = _mm512_xor_si512(_mm512_maskz_loadu_epi8(there, w[j] + p), turn);
        if (rows == 1) __builtin_prefetch(w[j] + p + ahead, 0, 2);
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) sum[i * cols + j] = _mm512_dpbusd_epi32(sum[i * cols + j], of_w, of_x[i]);
    }
}

/* rows * cols is 16: the sums of a vector. */
TARGET_INLINE void dot_tile(int rows, int cols, int64_t i, int64_t m, int64_t j, int64_t n, int64_t k, const int8_t *x,
                            int64_t ldx, const int8_t *w, int64_t ldw, const int32_t *correction,
                            int32_t all[][DT_INT8_BLOCK])
{
    const int8_t *of_x[4], *of_w[16];
    __m512i sum[16];
    int32_t out[16];
    for (int r = 0; r < rows; r++) of_x[r] = row_of(x, ldx, i + r, m);
    for (int c = 0; c < cols; c++) of_w[c] = row_of(w, ldw, j + c, n);
#pragma GCC unroll 16
    for (int s = 0; s < 16; s++) sum[s] = _mm512_setzero_si512();
    const int64_t whole = k / PAD * PAD;
    for (int64_t p = 0; p < whole; p += PAD) dot_step(rows, cols, p, (__mmask64)-1, of_x, of_w, cols * ldw, sum);
    if (whole < k) dot_step(rows, cols, whole, (__mmask64)((1ull << (k - whole)) - 1), of_x, of_w, cols * ldw, sum);
    _mm512_storeu_si512(out, add_lanes_of(sum));
    for (int r = 0; r < rows && i + r < m; r++)
        for (int c = 0; c < cols && j + c < n; c++)
            all[i + r][j + c] = (int32_t)((uint32_t)out[r * cols + c] - (uint32_t)correction[i + r]);
}

TARGET static int32_t sum_of_row(const int8_t *x, int64_t ld)
{
    __m512i sum = _mm512_setzero_si512();
    for (int64_t p = 0; p < ld; p += PAD)
        sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), _mm512_loadu_si512(x + p));
    return _mm512_reduce_add_epi32(sum);
}

TARGET static void dot_product(int64_t m, int64_t n, int64_t k, const int8_t *x, int64_t ldx, const int8_t *w,
                               int64_t ldw, int32_t sum[][DT_INT8_BLOCK])
{
    int32_t correction[BLOCK];
    for (int64_t i = 0; i < m; i++) correction[i] = 128 * sum_of_row(x + i * ldx, ldx);
    int64_t i = 0;
    for (; i + 1 < m; i += 4)
        for (int64_t j = 0; j < n; j += 4) dot_tile(4, 4, i, m, j, n, k, x, ldx, w, ldw, correction, sum);
    for (; i < m; i++)
        for (int64_t j = 0; j < n; j += 16) dot_tile(1, 16, i, m, j, n, k, x, ldx, w, ldw, correction, sum);
}

const dt_int8_unit ISA_NAME(int8_dot) = {
    .name = "avx512_vnni", .begin = nothing, .end = nothing, .product = dot_product};

/* ---- AMX --------------------------------------------------------------------------------------------------------- */

/* Tiles 4 and 5 are of w, 6 and 7 of x. The unit wants its second operand in quads along k, so that is x, which is made
 * for it, and w is read as it lies: sums are those of w x^T. */

/* Rows j .. j+31 of w, PAD bytes of each from p on, zeros beyond it. */
static void copy_edge(int8_t edge[32][DT_INT8_PAD], const int8_t *w, int64_t ldw, int64_t j, int64_t n, int64_t p,
                      int64_t k)
{
    const int64_t rows = dt_min_i64(32, n - j), cols = dt_min_i64(PAD, k - p);
    memset(edge, 0, 32 * sizeof edge[0]);
    for (int64_t r = 0; r < rows; r++) memcpy(edge[r], w + (j + r) * ldw + p, (size_t)cols);
}

/* sum [32 of w][32 of x] */
__attribute__((target("amx-tile,amx-int8"))) static void amx_32x32(int64_t j, int64_t n, int64_t k, const int8_t *x,
                                                                   int64_t ldx, const int8_t *w, int64_t ldw,
                                                                   int32_t sum[32][32])
{
    int8_t edge[32][PAD];
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t p = 0; p < k; p += PAD) {
        const bool inside = p + PAD <= k && j + 32 <= n;
        const int8_t *from = w + j * ldw + p;
        const int64_t ld = inside ? ldw : PAD;
        if (!inside) copy_edge(edge, w, ldw, j, n, p, k), from = edge[0];
        _tile_loadd(4, from, ld);
        _tile_loadd(6, x + p * 16, 64);
        _tile_dpbssd(0, 4, 6);
        _tile_loadd(7, x + (16 * ldx + p * 16), 64);
        _tile_dpbssd(1, 4, 7);
        _tile_loadd(5, from + 16 * ld, ld);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_stored(0, &sum[0][0], sizeof sum[0]);
    _tile_stored(1, &sum[0][16], sizeof sum[0]);
    _tile_stored(2, &sum[16][0], sizeof sum[0]);
    _tile_stored(3, &sum[16][16], sizeof sum[0]);
}

/* to[c][r] = from[r][c] of 16 x 16, rows 32 and BLOCK apart. */
static void turn(const int32_t *from, int32_t *to)
{
    __m512i a[16], b[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; r++) a[r] = _mm512_loadu_si512(from + 32 * r);
#pragma GCC unroll 8
    for (int r = 0; r < 8; r++) { /* single elements of neighbours, then pairs */
        b[2 * r] = _mm512_unpacklo_epi32(a[2 * r], a[2 * r + 1]);
        b[2 * r + 1] = _mm512_unpackhi_epi32(a[2 * r], a[2 * r + 1]);
    }
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            a[4 * g + 2 * h] = _mm512_unpacklo_epi64(b[4 * g + h], b[4 * g + h + 2]);
            a[4 * g + 2 * h + 1] = _mm512_unpackhi_epi64(b[4 * g + h], b[4 * g + h + 2]);
        }
        /* a[4g + c] has columns c, c + 4, c + 8, c + 12 of rows 4g .. 4g+3 */
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        const __m512i low = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88),
                      high = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xdd),
                      low2 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88),
                      high2 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xdd);
        _mm512_storeu_si512(to + (c + 0) * BLOCK, _mm512_shuffle_i32x4(low, low2, 0x88));
        _mm512_storeu_si512(to + (c + 8) * BLOCK, _mm512_shuffle_i32x4(low, low2, 0xdd));
        _mm512_storeu_si512(to + (c + 4) * BLOCK, _mm512_shuffle_i32x4(high, high2, 0x88));
        _mm512_storeu_si512(to + (c + 12) * BLOCK, _mm512_shuffle_i32x4(high, high2, 0xdd));
    }
}

static void amx_product(int64_t m, int64_t n, int64_t k, const int8_t *x, int64_t ldx, const int8_t *w, int64_t ldw,
                        int32_t sum[][DT_INT8_BLOCK])
{
    int32_t part[32][32];
    for (int64_t i = 0; i < m; i += 32)
        for (int64_t j = 0; j < n; j += 32) {
            amx_32x32(j, n, k, x + i * ldx, ldx, w, ldw, part);
            for (int r = 0; r < 32; r += 16)
                for (int c = 0; c < 32; c += 16) turn(&part[c][r], &sum[i + r][j + c]);
        }
}

const dt_int8_unit ISA_NAME(int8_amx) = {
    .name = "amx_int8", .in_quads = true, .begin = amx_begin, .end = amx_end, .product = amx_product};

#elif HAVE_INT8_DOT

/* ---- Arm's dot products (FEAT_DotProd): lane l of four sums elements 4l .. 4l+3 of every 16 ---------------------- */

/* In sets for later processors it is a feature more. */
#if defined(__ARM_FEATURE_SVE) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define WITH_DOTS "+dotprod"
#else
#define WITH_DOTS "arch=armv8.2-a+dotprod"
#endif
#define TARGET_INLINE __attribute__((target(WITH_DOTS), always_inline)) static inline

/* n < 16 elements, then zeros. */
INLINE int8x16_t load_some_bytes(const int8_t *p, int64_t n)
{
    int8_t all[16] = {0};
    memcpy(all, p, (size_t)n);
    return vld1q_s8(all);
}

TARGET_INLINE void dot_tile(int64_t i, int64_t m, int64_t j, int64_t n, int64_t k, const int8_t *x, int64_t ldx,
                            const int8_t *w, int64_t ldw, int32_t all[][DT_INT8_BLOCK])
{
    int32x4_t sum[4][4];
    const int8_t *of_x[4], *of_w[4];
    const int64_t whole = k / 16 * 16;
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) of_x[r] = row_of(x, ldx, i + r, m), of_w[r] = row_of(w, ldw, j + r, n);
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++)
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) sum[r][c] = vdupq_n_s32(0);
    for (int64_t p = 0; p < k; p += 16) {
        int8x16_t y[4];
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) y[c] = p < whole ? vld1q_s8(of_w[c] + p) : load_some_bytes(of_w[c] + p, k - p);
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) {
            const int8x16_t v = vld1q_s8(of_x[r] + p);
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) sum[r][c] = vdotq_s32(sum[r][c], v, y[c]);
        }
    }
    for (int r = 0; r < 4 && i + r < m; r++)
        for (int c = 0; c < 4 && j + c < n; c++) all[i + r][j + c] = vaddvq_s32(sum[r][c]);
}

__attribute__((target(WITH_DOTS))) static void dot_product(int64_t m, int64_t n, int64_t k, const int8_t *x,
                                                           int64_t ldx, const int8_t *w, int64_t ldw,
                                                           int32_t sum[][DT_INT8_BLOCK])
{
    for (int64_t i = 0; i < m; i += 4)
        for (int64_t j = 0; j < n; j += 4) dot_tile(i, m, j, n, k, x, ldx, w, ldw, sum);
}

const dt_int8_unit ISA_NAME(int8_dot) = {.name = "dotprod", .begin = nothing, .end = nothing, .product = dot_product};
#endif
