/* matmul_arm.c - matmuls of bf16 tiles by an Arm processor's bf16 instructions (FEAT_BF16), and the dot products of
 * matmul_rows.c. BFMMLA multiplies 2 x 4 by 4 x 2 elements, BFDOT pairs lane by lane. Operands are stored as for the
 * other units: A by rows, B in pairs along k. */
#include "rows.h"

#if HAVE_ARM_UNITS

static void nothing(void) {}

/* ---- tiles: 8 x 8 sums, each register a square of 2 x 2 ---------------------------------------------------------- */

enum { SIDE = 8, HALF = SIDE / 2 };

INLINE float32x4_t load_square(const float *c, int64_t ldc) { return vcombine_f32(vld1_f32(c), vld1_f32(c + ldc)); }
INLINE void store_square(float *c, int64_t ldc, float32x4_t x)
{
    vst1_f32(c, vget_low_f32(x));
    vst1_f32(c + ldc, vget_high_f32(x));
}

/* Rows i and i + 1 of A, 4 elements of k each. */
INLINE bfloat16x8_t rows_of_a(const uint16_t *a, int64_t lda)
{
    return vreinterpretq_bf16_u16(vcombine_u16(vld1_u16(a), vld1_u16(a + lda)));
}

/* C [8][8] (+)= A [8][k] B [k][8], k a multiple of 4: A by rows, B in pairs [k/2][ldb]. */
INLINE void square_matmul(int64_t k, const uint16_t *a, int64_t lda, const uint32_t *b, int64_t ldb, float *c,
                          int64_t ldc, bool accumulate)
{
    float32x4_t sum[HALF][HALF];
#pragma GCC unroll 4
    for (int i = 0; i < HALF; i++)
#pragma GCC unroll 4
        for (int j = 0; j < HALF; j++)
            sum[i][j] = accumulate ? load_square(c + 2 * i * ldc + 2 * j, ldc) : vdupq_n_f32(0.0f);
    for (int64_t p = 0; p < k; p += 4) {
        const uint32_t *lower = b + p / 2 * ldb, *upper = lower + ldb;
        bfloat16x8_t y[HALF];
#pragma GCC unroll 2
        for (int j = 0; j < HALF; j += 2) { /* put the two pairs of a column next to each other */
            const uint32x4_t low = vld1q_u32(lower + 2 * j), high = vld1q_u32(upper + 2 * j);
            y[j] = vreinterpretq_bf16_u32(vzip1q_u32(low, high));
            y[j + 1] = vreinterpretq_bf16_u32(vzip2q_u32(low, high));
        }
#pragma GCC unroll 4
        for (int i = 0; i < HALF; i++) {
            const bfloat16x8_t x = rows_of_a(a + 2 * i * lda + p, lda);
#pragma GCC unroll 4
            for (int j = 0; j < HALF; j++) sum[i][j] = vbfmmlaq_f32(sum[i][j], x, y[j]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < HALF; i++)
#pragma GCC unroll 4
        for (int j = 0; j < HALF; j++) store_square(c + 2 * i * ldc + 2 * j, ldc, sum[i][j]);
}

/* C [m][n] (+)= A [m][k] B [k][n] with m and n multiples of 8. */
static void matmul(int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint32_t *b, int64_t ldb,
                   float *c, int64_t ldc, bool accumulate)
{
    for (int64_t i = 0; i < m; i += SIDE)
        for (int64_t j = 0; j < n; j += SIDE)
            square_matmul(k, a + i * lda, lda, b + j, ldb, c + i * ldc + j, ldc, accumulate);
}

const dt_bf16_unit ISA_NAME(dot_unit) = {.name = "bfmmla", .begin = nothing, .end = nothing, .matmul = matmul};

/* ---- rows of A with rows of B (matmul_rows.c): lane l sums pairs 2l, 2l + 1 of every 8 elements ----------------- */

enum { PAIRS = 8, PAIR_CHUNK = 2048 };

INLINE bfloat16x8_t load_pairs(const uint16_t *x) { return vreinterpretq_bf16_u16(vld1q_u16(x)); }

/* A vector of n < PAIRS elements, padded with zeros. */
INLINE bfloat16x8_t load_some_pairs(const uint16_t *x, int64_t n)
{
    uint16_t all[PAIRS] = {0};
    for (int64_t l = 0; l < n; l++) all[l] = x[l];
    return load_pairs(all);
}

/* Add rows x cols dot products of length k to sums[i * cols + j], lane by lane. */
INLINE void pair_sums(int rows, int cols, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b, int64_t ldb,
                      vec *sums)
{
    vec sum[LANES];
#pragma GCC unroll 4
    for (int s = 0; s < rows * cols; s++) sum[s] = sums[s];
    const int64_t whole = k / PAIRS * PAIRS;
    for (int64_t p = 0; p < whole; p += PAIRS) {
        bfloat16x8_t x[4];
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) x[i] = load_pairs(a + i * lda + p);
#pragma GCC unroll 4
        for (int j = 0; j < cols; j++) {
            const bfloat16x8_t y = load_pairs(b + j * ldb + p);
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++) sum[i * cols + j] = vbfdotq_f32(sum[i * cols + j], x[i], y);
        }
    }
    for (int j = 0; whole < k && j < cols; j++)
        for (int i = 0; i < rows; i++)
            sum[i * cols + j] = vbfdotq_f32(sum[i * cols + j], load_some_pairs(a + i * lda + whole, k - whole),
                                            load_some_pairs(b + j * ldb + whole, k - whole));
#pragma GCC unroll 16
    for (int s = 0; s < rows * cols; s++) sums[s] = sum[s];
}

#define PAIR_DOTS(name, rows, cols)                                                                                    \
    static void name(int64_t k, const void *a, int64_t lda, const void *b, int64_t ldb, vec *sums)                     \
    {                                                                                                                  \
        pair_sums(rows, cols, k, a, lda, b, ldb, sums);                                                                \
    }
PAIR_DOTS(pairs_1, 1, LANES)
PAIR_DOTS(pairs_2, 2, LANES / 2)
PAIR_DOTS(pairs_4, 4, LANES / 4)
PAIR_DOTS(pairs_1x1, 1, 1)
const dot_shapes ISA_NAME(pair_dots) = {
    PAIR_CHUNK, ISA_NAME(dequantise_pairs), NULL, {pairs_1, pairs_2, pairs_4}, pairs_1x1};
#endif
