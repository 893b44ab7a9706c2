/* transpose.h - a transpose in registers, for packing and tiles. */
#ifndef DTRAIN_ISA_TRANSPOSE_H
#define DTRAIN_ISA_TRANSPOSE_H

#include "isa.h"

#if defined(__AVX512F__)
#include <immintrin.h>

/* Transpose 16 x 16 words in registers, in four rounds of exchanges at distances 1, 2, 4 and 8. */
INLINE void transpose_16x16(__m512i r[16])
{
    __m512i s[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        s[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        s[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) { /* r[i + c], lane l: rows i .. i+3 of column 4 l + c */
        r[i] = _mm512_unpacklo_epi64(s[i], s[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(s[i], s[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(s[i + 1], s[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(s[i + 1], s[i + 3]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        s[c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
        s[4 + c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd);
        s[8 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
        s[12 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        r[c] = _mm512_shuffle_i32x4(s[c], s[8 + c], 0x88);
        r[4 + c] = _mm512_shuffle_i32x4(s[4 + c], s[12 + c], 0x88);
        r[8 + c] = _mm512_shuffle_i32x4(s[c], s[8 + c], 0xdd);
        r[12 + c] = _mm512_shuffle_i32x4(s[4 + c], s[12 + c], 0xdd);
    }
}

#endif
#endif
