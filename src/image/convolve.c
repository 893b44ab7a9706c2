/* convolve.c - sums are accumulated modulo 2^32. Intermediate overflow is harmless, because the final sum
 * fits.
 *
 * AVX2 multiplies and adds pairs of 16-bit values in one instruction, twice as fast as it multiplies
 * 32-bit values. Weights have 24 bits, so each is split in two; sums of the upper and the lower halves are
 * combined at the end. The result equals that of the scalar loops, which other processors use. */
#include "convolve.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { PRECISION = DT_TAPS_PRECISION, GROUP = DT_TAPS_GROUP, HALF = 1 << (PRECISION - 1) };

static uint8_t byte_of(int32_t sum)
{
    const int32_t x = sum >> PRECISION;
    return (uint8_t)(x < 0 ? 0 : x > 255 ? 255 : x);
}

/* ---- scalar ------------------------------------------------------------------------------------------------------ */

static void pixel_of_row(const dt_taps *t, int64_t i, const uint8_t *in, uint8_t *out)
{
    const int32_t *w = t->weight + i * t->max_taps;
    const uint8_t *x = in + 3 * (size_t)t->from[i];
    int32_t r = HALF, g = HALF, b = HALF;
    for (int j = 0; j < t->count[i]; j++) r += w[j] * x[3 * j], g += w[j] * x[3 * j + 1], b += w[j] * x[3 * j + 2];
    out[0] = byte_of(r), out[1] = byte_of(g), out[2] = byte_of(b);
}

/* Compute bytes from .. to-1 of output row i. */
static void part_of_column(const dt_taps *t, int64_t i, const uint8_t *in, size_t stride, int64_t from, int64_t to,
                           uint8_t *out)
{
    enum { PART = 64 };
    const int32_t *w = t->weight + i * t->max_taps;
    const uint8_t *x = in + (size_t)t->from[i] * stride;
    for (int64_t k = from; k < to; k += PART) {
        const int n = to - k < PART ? (int)(to - k) : PART;
        int32_t sum[PART];
        for (int m = 0; m < n; m++) sum[m] = HALF;
        for (int j = 0; j < t->count[i]; j++) {
            const uint8_t *row = x + (size_t)j * stride + (size_t)k;
            _Pragma("omp simd") for (int m = 0; m < n; m++) sum[m] += w[j] * row[m];
        }
        for (int m = 0; m < n; m++) out[k + m] = byte_of(sum[m]);
    }
}

/* ---- AVX2 -------------------------------------------------------------------------------------------------------- */

#ifdef __x86_64__
#include <immintrin.h>

enum { ROWS = 4, WIDE = 32 };
#define AVX2 __attribute__((target("avx2")))

/* As for the CPU device, DTRAIN_ISA=v2 disables AVX2. */
static bool has_avx2(void)
{
    const char *wanted = getenv("DTRAIN_ISA");
    return __builtin_cpu_supports("avx2") && (!wanted || strcmp(wanted, "v2") != 0);
}

AVX2 static inline __m256i joined(__m256i high, __m256i low)
{
    return _mm256_add_epi32(_mm256_slli_epi32(high, 16), low);
}

/* Two pairs of weights, each broadcast over its half of the register. */
AVX2 static inline __m256i two_pairs(const int16_t *w)
{
    const __m256i where = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    return _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(_mm_loadl_epi64((const __m128i *)w)), where);
}

/* Output i of four rows. The last group of taps may read up to 16 bytes. */
AVX2 static inline void four_pixels(const dt_taps *t, int64_t i, const uint8_t *const in[ROWS], __m128i sum[ROWS])
{
    const int16_t *low = t->low + i * t->max_taps, *high = t->high + i * t->max_taps;
    /* shuffles pixels 0 1 2 3 to words: r0 r1 g0 g1 b0 b1 0 0, r2 r3 g2 g3 b2 b3 0 0 */
    const __m256i pairs = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, 6, -1, 9, -1, 7,
                                           -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    const size_t begin = 3 * (size_t)t->from[i];
    __m256i lows[ROWS], highs[ROWS];
    for (int r = 0; r < ROWS; r++) lows[r] = highs[r] = _mm256_setzero_si256();
    for (int j = 0; j < t->count[i]; j += GROUP) {
        const __m256i w_low = two_pairs(low + j), w_high = two_pairs(high + j);
        for (int r = 0; r < ROWS; r++) {
            const __m128i bytes = _mm_loadu_si128((const __m128i *)(in[r] + begin + 3 * (size_t)j));
            const __m256i x = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), pairs);
            lows[r] = _mm256_add_epi32(lows[r], _mm256_madd_epi16(x, w_low));
            highs[r] = _mm256_add_epi32(highs[r], _mm256_madd_epi16(x, w_high));
        }
    }
    for (int r = 0; r < ROWS; r++) {
        const __m256i both = joined(highs[r], lows[r]);
        const __m128i all = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
        sum[r] = _mm_srai_epi32(_mm_add_epi32(all, _mm_set1_epi32(HALF)), PRECISION);
    }
}

AVX2 static void four_rows(const dt_taps *t, const uint8_t *const in[ROWS], uint8_t *const out[ROWS])
{
    for (int64_t i = 0; i < t->n; i++) {
        const int groups = (t->count[i] + GROUP - 1) / GROUP;
        if (3 * (t->from[i] + (int64_t)GROUP * groups) + 4 > 3 * t->span) {
            for (int r = 0; r < ROWS; r++) pixel_of_row(t, i, in[r], out[r] + 3 * i);
            continue;
        }
        __m128i sum[ROWS];
        four_pixels(t, i, in, sum);
        for (int r = 0; r < ROWS; r++) {
            const __m128i words = _mm_packs_epi32(sum[r], sum[r]);
            const int pixel = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
            memcpy(out[r] + 3 * i, &pixel, 3);
        }
    }
}

/* WIDE bytes of output row i, starting at byte k. */
AVX2 static inline void wide_column(const dt_taps *t, int64_t i, const uint8_t *x, size_t stride, uint8_t *out)
{
    const int16_t *low = t->low + i * t->max_taps, *high = t->high + i * t->max_taps;
    __m256i lows[4], highs[4];
    for (int q = 0; q < 4; q++) lows[q] = highs[q] = _mm256_setzero_si256();
    for (int j = 0; j < t->count[i]; j += 2) {
        int32_t low_pair, high_pair;
        memcpy(&low_pair, low + j, sizeof low_pair);
        memcpy(&high_pair, high + j, sizeof high_pair);
        const __m256i w_low = _mm256_set1_epi32(low_pair), w_high = _mm256_set1_epi32(high_pair);
        const uint8_t *row = x + (size_t)j * stride, *next = j + 1 < t->count[i] ? row + stride : row;
        for (int h = 0; h < 2; h++) {
            const __m128i a = _mm_loadu_si128((const __m128i *)row + h), b = _mm_loadu_si128((const __m128i *)next + h);
            const __m256i first = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b)),
                          second = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b));
            lows[2 * h] = _mm256_add_epi32(lows[2 * h], _mm256_madd_epi16(first, w_low));
            lows[2 * h + 1] = _mm256_add_epi32(lows[2 * h + 1], _mm256_madd_epi16(second, w_low));
            highs[2 * h] = _mm256_add_epi32(highs[2 * h], _mm256_madd_epi16(first, w_high));
            highs[2 * h + 1] = _mm256_add_epi32(highs[2 * h + 1], _mm256_madd_epi16(second, w_high));
        }
    }
    for (int q = 0; q < 4; q++) {
        const __m256i sum = _mm256_add_epi32(joined(highs[q], lows[q]), _mm256_set1_epi32(HALF));
        lows[q] = _mm256_srai_epi32(sum, PRECISION);
    }
    /* packs work on halves of a register: groups of eight are in the order 0 2 4 6, 1 3 5 7 until permuted */
    const __m256i words0 = _mm256_packs_epi32(lows[0], lows[1]), words1 = _mm256_packs_epi32(lows[2], lows[3]);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(words0, words1), order);
    _mm256_storeu_si256((__m256i *)out, bytes);
}

static void rows_by_four(const dt_taps *t, const uint8_t *in, size_t in_stride, int64_t n_rows, uint8_t *out,
                         size_t out_stride)
{
    for (int64_t y = 0; y < n_rows; y += ROWS) {
        const uint8_t *from[ROWS];
        uint8_t *to[ROWS];
        for (int64_t r = 0; r < ROWS; r++) {
            const size_t row = (size_t)(y + r < n_rows ? y + r : n_rows - 1); /* the last row is recomputed */
            from[r] = in + row * in_stride;
            to[r] = out + row * out_stride;
        }
        four_rows(t, from, to);
    }
}

AVX2 static int64_t wide_columns(const dt_taps *t, int64_t i, const uint8_t *in, size_t stride, int64_t nbytes,
                                 uint8_t *out)
{
    const uint8_t *x = in + (size_t)t->from[i] * stride;
    int64_t k = 0;
    for (; k + WIDE <= nbytes; k += WIDE) wide_column(t, i, x + k, stride, out + k);
    return k;
}
#else
static bool has_avx2(void) { return false; }
static void rows_by_four(const dt_taps *t, const uint8_t *in, size_t in_stride, int64_t n_rows, uint8_t *out,
                         size_t out_stride)
{
}
static int64_t wide_columns(const dt_taps *t, int64_t i, const uint8_t *in, size_t stride, int64_t nbytes, uint8_t *out)
{
    return 0;
}
#endif

void dt_taps_along_rows(const dt_taps *t, const uint8_t *in, size_t in_stride, int64_t n_rows, uint8_t *out,
                        size_t out_stride)
{
    if (t->weight && has_avx2()) {
        rows_by_four(t, in, in_stride, n_rows, out, out_stride);
        return;
    }
    for (int64_t y = 0; y < n_rows; y++, in += in_stride, out += out_stride) {
        for (int64_t i = 0; i < t->n && t->weight; i++) pixel_of_row(t, i, in, out + 3 * i);
        if (!t->weight) memcpy(out, in, 3 * (size_t)t->n);
    }
}

void dt_taps_down_columns(const dt_taps *t, const uint8_t *in, size_t in_stride, int64_t nbytes, uint8_t *out,
                          size_t out_stride)
{
    const bool wide = has_avx2();
    for (int64_t i = 0; i < t->n; i++, out += out_stride) {
        const int64_t done = wide ? wide_columns(t, i, in, in_stride, nbytes, out) : 0;
        part_of_column(t, i, in, in_stride, done, nbytes, out);
    }
}
