/* dequantise.c - dequantises runs of a quantised matrix: int8 times a scale, or levels of nf4.h.
 *
 * For nf4 the 16 possible values of a block are computed and rounded once. The 64 weights of the block are looked up in
 * that vector. */
#include "dtrain/device/nf4.h"
#include "rows.h"

/* ---- nf4 --------------------------------------------------------------------------------------------------------- */

static const float LEVELS[16] = {DT_NF4_LEVELS}, MAP[256] = {DT_NF4_MAP};

INLINE float block_scale(const dt_scaled *how, int64_t block)
{
    const float *group = how->scale + 2 * (block >> dt_nf4_shift(how->finer));
    return MAP[how->blocks[block]] * group[0] + group[1];
}

/* The 16 possible values of a block, indexed by code. */
typedef union numbers {
    float f[16];
    uint16_t h[16];
} numbers;
INLINE numbers numbers_of(float scale, dt_dtype T)
{
    numbers t;
    SIMD_FOR (int i = 0; i < 16; i++) store(&t, T, i, LEVELS[i] * scale);
    return t;
}

/* Store weights from .. to-1 in dst. codes: of weight 0. */
INLINE void look_up_some(const uint8_t *codes, int64_t from, int64_t to, const numbers *t, void *dst, dt_dtype T)
{
    for (int64_t i = from; i < to; i++) {
        const int code = i & 1 ? codes[i / 2] & 15 : codes[i / 2] >> 4;
        if (T == DT_F32) {
            ((float *)dst)[i - from] = t->f[code];
        } else {
            ((uint16_t *)dst)[i - from] = t->h[code];
        }
    }
}

/* Store all weights of a block in dst. */
#if defined(__AVX512F__)
INLINE void look_up(const uint8_t *codes, const numbers *t, void *dst, dt_dtype T)
{
    const __m512 floats = _mm512_loadu_ps(t->f);
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)t->h)),
                  high = _mm512_slli_epi32(low, 16);
    const __m512i front = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
                  back = _mm512_add_epi32(front, _mm512_set1_epi32(8));
#pragma GCC unroll 2
    for (int i = 0; i < DT_NF4_BLOCK; i += 32) {
        /* the permutation uses only the lowest four bits */
        const __m512i second = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(codes + i / 2))),
                      first = _mm512_srli_epi32(second, 4);
        if (T == DT_F32) {
            const __m512 x = _mm512_permutexvar_ps(first, floats), y = _mm512_permutexvar_ps(second, floats);
            _mm512_storeu_ps((float *)dst + i, _mm512_permutex2var_ps(x, front, y));
            _mm512_storeu_ps((float *)dst + i + 16, _mm512_permutex2var_ps(x, back, y));
        } else {
            _mm512_storeu_si512((uint16_t *)dst + i, _mm512_or_si512(_mm512_permutexvar_epi32(first, low),
                                                                     _mm512_permutexvar_epi32(second, high)));
        }
    }
}
#elif defined(__AVX2__)
/* Look up 8 codes, one per byte. Bit 3 of a code, moved to the sign, selects between the lower 8 values (few) and the
 * upper 8 (many). */
INLINE __m256 floats_of(__m128i code, __m256 few, __m256 many)
{
    const __m256i at = _mm256_cvtepu8_epi32(code);
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(few, at), _mm256_permutevar8x32_ps(many, at),
                            _mm256_castsi256_ps(_mm256_slli_epi32(at, 28)));
}
INLINE void look_up(const uint8_t *codes, const numbers *t, void *dst, dt_dtype T)
{
    const __m256 few = _mm256_loadu_ps(t->f), many = _mm256_loadu_ps(t->f + 8);
    const __m128i bytes = _mm_set_epi8(15, 13, 11, 9, 7, 5, 3, 1, 14, 12, 10, 8, 6, 4, 2, 0),
                  x = _mm_shuffle_epi8(_mm_loadu_si128((const void *)t->h), bytes),
                  y = _mm_shuffle_epi8(_mm_loadu_si128((const void *)(t->h + 8)), bytes),
                  low = _mm_unpacklo_epi64(x, y), high = _mm_unpackhi_epi64(x, y), mask = _mm_set1_epi8(15);
    for (int i = 0; i < DT_NF4_BLOCK; i += 32) {
        const __m128i both = _mm_loadu_si128((const void *)(codes + i / 2)),
                      first = _mm_and_si128(_mm_srli_epi16(both, 4), mask), second = _mm_and_si128(both, mask),
                      code[2] = {_mm_unpacklo_epi8(first, second), _mm_unpackhi_epi8(first, second)};
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            if (T == DT_F32) {
                float *to = (float *)dst + i + 16 * j;
                _mm256_storeu_ps(to, floats_of(code[j], few, many));
                _mm256_storeu_ps(to + 8, floats_of(_mm_srli_si128(code[j], 8), few, many));
            } else {
                uint16_t *to = (uint16_t *)dst + i + 16 * j;
                const __m128i l = _mm_shuffle_epi8(low, code[j]), h = _mm_shuffle_epi8(high, code[j]);
                _mm_storeu_si128((void *)to, _mm_unpacklo_epi8(l, h));
                _mm_storeu_si128((void *)(to + 8), _mm_unpackhi_epi8(l, h));
            }
        }
    }
}
#else
INLINE void look_up(const uint8_t *codes, const numbers *t, void *dst, dt_dtype T)
{
    look_up_some(codes, 0, DT_NF4_BLOCK, t, dst, T);
}
#endif

/* Dequantise elements first .. first+n-1 of the matrix. `make` computes the 16 values of a block. */
INLINE void from_nf4(const dt_stored *b, int64_t first, int64_t n, void *dst, dt_dtype T,
                     numbers (*make)(float scale, dt_dtype T))
{
    const uint8_t *codes = b->p;
    for (int64_t i = first, next; i < first + n; i = next) {
        const int64_t block = i / DT_NF4_BLOCK, start = block * DT_NF4_BLOCK;
        const numbers t = make(block_scale(&b->how, block), T);
        void *to = cpu_at_w(dst, T, i - first);
        next = dt_min_i64(start + DT_NF4_BLOCK, first + n);
        if (next - i == DT_NF4_BLOCK) {
            look_up(codes + start / 2, &t, to, T);
        } else {
            look_up_some(codes + start / 2, i - start, next - start, &t, to, T);
        }
    }
}

/* ---- int8 -------------------------------------------------------------------------------------------------------- */

INLINE float row_scale(const dt_stored *b, int64_t row) { return b->how.scale[b->how.how == DT_SCALE_ROWS ? row : 0]; }

INLINE void from_int8(const int8_t *q, float scale, int64_t n, void *dst, dt_dtype T)
{
    SIMD_FOR (int64_t i = 0; i < n; i++) store(dst, T, i, (float)q[i] * scale);
}

void ISA_NAME(dequantise)(const dt_stored *b, int64_t row, int64_t col, int64_t n, void *dst, dt_dtype dt)
{
    const int64_t first = row * b->ld + col;
    if (b->how.how == DT_SCALE_NF4) {
        BY_TYPE(dt, T, from_nf4(b, first, n, dst, T, numbers_of));
    } else {
        BY_TYPE(dt, T, from_int8((const int8_t *)b->p + first, row_scale(b, row), n, dst, T));
    }
}

/* For matmuls by the pairwise instruction. Like it, this conversion treats values below 2^-126 as 0. */
#if HAVE_X86_UNITS
__attribute__((target("avx512bf16"))) static void int8_to_pairs(const int8_t *q, float scale, int64_t n, uint16_t *dst)
{
    const __m512 factor = _mm512_set1_ps(scale);
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const __m512i x = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(q + i))),
                      y = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(q + i + 16)));
        _mm512_storeu_si512(dst + i, (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(_mm512_cvtepi32_ps(y), factor),
                                                                  _mm512_mul_ps(_mm512_cvtepi32_ps(x), factor)));
    }
    from_int8(q + i, scale, n - i, dst + i, DT_BF16);
}
__attribute__((target("avx512bf16"), always_inline)) static inline numbers pairs_of(float scale, dt_dtype T)
{
    numbers t;
    (void)T;
    _mm256_storeu_si256((void *)t.h,
                        (__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(_mm512_loadu_ps(LEVELS), _mm512_set1_ps(scale))));
    return t;
}
__attribute__((target("avx512bf16"))) void ISA_NAME(dequantise_pairs)(const dt_stored *b, int64_t row, int64_t col,
                                                                      int64_t n, void *dst, dt_dtype dt)
{
    const int64_t first = row * b->ld + col;
    (void)dt;
    if (b->how.how == DT_SCALE_NF4)
        from_nf4(b, first, n, dst, DT_BF16, pairs_of);
    else
        int8_to_pairs((const int8_t *)b->p + first, row_scale(b, row), n, dst);
}
#elif HAVE_ARM_UNITS
void ISA_NAME(dequantise_pairs)(const dt_stored *b, int64_t row, int64_t col, int64_t n, void *dst, dt_dtype dt)
{
    ISA_NAME(dequantise)(b, row, col, n, dst, dt);
}
#endif
