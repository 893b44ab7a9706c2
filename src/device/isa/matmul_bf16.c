/* matmul_bf16.c - large matmuls of bf16 matrices by pairwise dot products in vectors (AVX512_BF16).
 *
 * A tile of C is 8 rows by 48 columns: 24 vectors of sums, three of B and a broadcast pair of A. So 11 loads feed 24
 * multiply-adds. B is packed in panels of 48 columns, with pairs along k adjacent. All rows of a block use the same
 * panel. A is read in place unless it is transposed. A block of A and two panels of B stay in the second-level cache.
 *
 * With 128 to 256 rows memory bandwidth is the limit: each weight is read once and used for little work. Four measures
 * hide latency. The next panel is packed slice by slice between the tiles of the current one. Each tile prefetches the
 * slice that is packed after it, one cache line per two pairs. Lines of C are prefetched before they are needed. A
 * large C that is only written, such as a weight gradient, is stored with non-temporal stores. Measured in one thread
 * (Zen 5, 256 x 3072 x 768): 398 GFLOP/s without prefetching, 484 with it, 502 without packing.
 *
 * An element of C is the same sum in the same order for any division into blocks and threads: pairs in order within a
 * block of k, and blocks in order. */
#include "kernels.h"

#if HAVE_X86_UNITS
#include "transpose.h"
#include <string.h>

enum {
    ROWS = DT_TILE_ROWS,
    COLS = DT_TILE_COLS,
    LANES = 16,
    VECS = COLS / LANES,
    SLICE = 2 * LANES, /* of k, packed in one step */
    BLOCK_M = 256,
    BLOCK_N = 384, /* a block of C */
    MOST_K = 1024,
    BLOCK_K = 768,       /* k up to MOST_K is one block */
    PACKED_A = 256 * 768 /* elements of a block of a transposed A */
};

#define TARGET __attribute__((target("avx512bf16")))
#define TARGET_INLINE __attribute__((target("avx512bf16"), always_inline)) static inline

typedef struct scratch {
    float sums[BLOCK_N / COLS][BLOCK_M * COLS]; /* of tiles that are not summed in C itself */
    uint32_t b[2][MOST_K / 2 * COLS];
    uint32_t a[BLOCK_M * MOST_K / 2]; /* tiles of ROWS: [pair][ROWS] */
} scratch;

static int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

/* ---- prefetching ------------------------------------------------------------------------------------------------- */

/* Cache lines to prefetch, row by row. */
typedef struct ahead {
    const char *at;
    int64_t n_lines, line, n_rows, row_nbytes; /* n_lines per row; row_nbytes: row stride */
} ahead;

TARGET_INLINE void fetch_line(ahead *f)
{
    if (f->n_rows == 0) return;
    _mm_prefetch(f->at + f->line * 64, _MM_HINT_T1);
    if (++f->line < f->n_lines) return;
    f->line = 0;
    f->at += f->row_nbytes;
    f->n_rows--;
}

/* ---- a tile ------------------------------------------------------------------------------------------------------ */

/* Where a tile's sums are stored, and which lines are prefetched meanwhile. */
typedef struct tile_work {
    float *c;
    int64_t ldc;
    bool add;      /* add to c */
    bool around;   /* store c with non-temporal stores */
    ahead c_lines; /* of C: of this tile; of the next one if tiles are summed in C itself */
    ahead d_lines; /* of an addend that is not C */
    ahead *next;   /* of B: the slices that are packed after this tile */
} tile_work;

/* Pair p of row i of A is at a + i * row + p * step. */
TARGET_INLINE void add_pair(int vecs, const uint16_t *a, int64_t row, const uint32_t *b, __m512 sum[ROWS][VECS])
{
    __m512i y[VECS];
#pragma GCC unroll 3
    for (int j = 0; j < vecs; j++) y[j] = _mm512_load_si512(b + LANES * j);
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++) {
        int32_t pair;
        memcpy(&pair, a + i * row, sizeof pair);
        const __m512i x = _mm512_set1_epi32(pair);
#pragma GCC unroll 3
        for (int j = 0; j < vecs; j++) sum[i][j] = _mm512_dpbf16_ps(sum[i][j], (__m512bh)x, (__m512bh)y[j]);
    }
}

/* Sums of ROWS x 16 vecs elements over n_pairs. */
TARGET_INLINE void tile_sums(int vecs, int64_t n_pairs, const uint16_t *a, int64_t row, int64_t step, const uint32_t *b,
                             const tile_work *t)
{
    enum { TURN = 4 };
    __m512 sum[ROWS][VECS];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 3
        for (int j = 0; j < vecs; j++) sum[i][j] = _mm512_setzero_ps();
    for (const char *line = t->c_lines.at, *last = line + t->c_lines.n_rows * t->c_lines.row_nbytes; line < last;
         line += t->c_lines.row_nbytes)
        for (int64_t l = 0; l < t->c_lines.n_lines; l++) __builtin_prefetch(line + 64 * l, 1);
    for (const char *line = t->d_lines.at, *last = line + t->d_lines.n_rows * t->d_lines.row_nbytes; line < last;
         line += t->d_lines.row_nbytes)
        for (int64_t l = 0; l < t->d_lines.n_lines; l++) __builtin_prefetch(line + 64 * l);
    const uint32_t *const end = b + n_pairs * COLS, *const whole = b + n_pairs / TURN * TURN * COLS;
    for (; b < whole; a += TURN * step, b += TURN * COLS) {
        fetch_line(t->next);
#pragma GCC unroll 4
        for (int u = 0; u < TURN; u++) add_pair(vecs, a + u * step, row, b + u * COLS, sum);
        fetch_line(t->next);
    }
    for (; b < end; a += step, b += COLS) add_pair(vecs, a, row, b, sum);
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 3
        for (int j = 0; j < vecs; j++) {
            float *to = t->c + i * t->ldc + LANES * j;
            if (t->around) {
                _mm512_stream_ps(to, sum[i][j]);
            } else {
                _mm512_storeu_ps(to, t->add ? _mm512_add_ps(sum[i][j], _mm512_loadu_ps(to)) : sum[i][j]);
            }
        }
}

#define TILE(name, vecs, row, step)                                                                                    \
    TARGET __attribute__((noinline)) static void name(int64_t n_pairs, const uint16_t *a, int64_t lda,                 \
                                                      const uint32_t *b, const tile_work *t)                           \
    {                                                                                                                  \
        tile_sums(vecs, n_pairs, a, row, step, b, t);                                                                  \
    }
TILE(plain_1, 1, lda, 2)
TILE(plain_2, 2, lda, 2)
TILE(plain_3, 3, lda, 2)
TILE(packed_1, 1, 2, 2 * ROWS)
TILE(packed_2, 2, 2, 2 * ROWS)
TILE(packed_3, 3, 2, 2 * ROWS)

typedef void tile_function(int64_t n_pairs, const uint16_t *a, int64_t lda, const uint32_t *b, const tile_work *t);
static tile_function *const tiles[2][VECS] = {{plain_1, plain_2, plain_3}, {packed_1, packed_2, packed_3}};

/* 16 elements of an addend's row, starting at i, as floats. */
TARGET_INLINE __m512 load_addend(const addend *d, __mmask16 mask, int64_t row, int64_t i)
{
    const char *at = d->at + row * d->row_nbytes;
    if (d->dt == DT_F32) return _mm512_maskz_loadu_ps(mask, (const float *)(const void *)at + i);
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, (const uint16_t *)(const void *)at + i)), 16));
}

/* Store a tile's sums in C, with the steps that the tile kernels omit: partial tiles, bias, addend, rounding. */
TARGET static void finish_tile(const dt_matmul_call *g, const float *sums, int64_t i0, int64_t rows, int64_t j0,
                               int64_t cols, addend d)
{
    const dt_matmul *mm = g->mm;
    for (int64_t j = 0; j < cols; j += LANES) {
        const __mmask16 mask = (__mmask16)((1u << dt_min_i64(LANES, cols - j)) - 1);
        __m512 bias = _mm512_setzero_ps();
        if (mm->bias)
            bias = _mm512_castsi512_ps(_mm512_slli_epi32(
                _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, (const uint16_t *)mm->bias + j0 + j)), 16));
        for (int64_t i = 0; i < rows; i++) {
            const int64_t at = (i0 + i) * mm->ldc + j0 + j;
            __m512 x = _mm512_add_ps(_mm512_load_ps(sums + i * COLS + j), bias);
            if (d.at) x = _mm512_add_ps(x, load_addend(&d, mask, i0 + i, j0 + j));
            if (mm->c_dtype == DT_F32)
                _mm512_mask_storeu_ps((float *)g->c + at, mask, x);
            else
                _mm256_mask_storeu_epi16((uint16_t *)g->c + at, mask, (__m256i)_mm512_cvtneps_pbh(x));
        }
    }
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */

/* Interleave two rows x and y of 32 elements: pairs of elements 0..15 (low) and 16..31 (high). */
TARGET_INLINE __m512i pairs_low(__m512i x, __m512i y)
{
    const __m512i i = _mm512_setr_epi32(0x200000, 0x210001, 0x220002, 0x230003, 0x240004, 0x250005, 0x260006, 0x270007,
                                        0x280008, 0x290009, 0x2a000a, 0x2b000b, 0x2c000c, 0x2d000d, 0x2e000e, 0x2f000f);
    return _mm512_permutex2var_epi16(x, i, y);
}
TARGET_INLINE __m512i pairs_high(__m512i x, __m512i y)
{
    const __m512i i = _mm512_setr_epi32(0x300010, 0x310011, 0x320012, 0x330013, 0x340014, 0x350015, 0x360016, 0x370017,
                                        0x380018, 0x390019, 0x3a001a, 0x3b001b, 0x3c001c, 0x3d001d, 0x3e001e, 0x3f001f);
    return _mm512_permutex2var_epi16(x, i, y);
}
static __mmask32 first_of_32(int64_t n) { return n >= 32 ? ~(__mmask32)0 : n <= 0 ? 0 : ((__mmask32)1 << n) - 1; }

/* Load 16 elements into the low half of a vector. A masked load of a whole vector would wait for the next cache
 * line. */
TARGET_INLINE __m512i load_half(__mmask16 mask, const uint16_t *x)
{
    return _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(mask, x));
}

/* Pack B stored [k][n]: two rows are interleaved to pairs. */
TARGET static void pack_plain(const uint16_t *b, int64_t ldb, int64_t k, int64_t cols, uint32_t *out)
{
    const __mmask32 first = first_of_32(cols);
    const __mmask16 second = (__mmask16)first_of_32(cols - 32);
    for (int64_t p = 0; p < k; p += 2, b += 2 * ldb, out += COLS) {
        const bool pair = p + 1 < k;
        const uint16_t *b1 = pair ? b + ldb : b;
        const __m512i x = _mm512_maskz_loadu_epi16(first, b), y = _mm512_maskz_loadu_epi16(pair ? first : 0, b1);
        _mm512_store_si512(out, pairs_low(x, y));
        _mm512_store_si512(out + 16, pairs_high(x, y));
        if (second)
            _mm512_store_si512(out + 32, pairs_low(load_half(second, b + 32), load_half(pair ? second : 0, b1 + 32)));
    }
}

/* Pack B stored [n][k], whose rows contain pairs. k: at most a slice. */
TARGET static void pack_transposed(const uint16_t *b, int64_t ldb, int64_t k, int64_t cols, uint32_t *out)
{
    const __mmask32 mask = first_of_32(k);
    const int64_t n = (k + 1) / 2;
    for (int64_t j = 0; j < cols; j += LANES) {
        __m512i r[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            r[i] = _mm512_maskz_loadu_epi16(j + i < cols ? mask : 0, b + dt_min_i64(j + i, cols - 1) * ldb);
        transpose_16x16(r);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            if (i < n) _mm512_store_si512(out + i * COLS + j, r[i]);
    }
}

/* Pack tiles of A stored [k][m]. */
TARGET static void pack_a_transposed(const uint16_t *a, int64_t lda, int64_t k, int64_t rows, uint32_t *out)
{
    enum { FAR = 8 }; /* pairs */
    const int64_t n_pairs = (k + 1) / 2, tile = n_pairs * ROWS;
    for (int64_t i = 0; i < rows; i += 32) {
        const __mmask32 mask = first_of_32(rows - i);
        const int64_t n_tiles = dt_min_i64(4, ceil_div(rows - i, ROWS));
        for (int64_t p = 0; p < n_pairs; p++) {
            const uint16_t *from = a + 2 * p * lda + i;
            const bool pair = 2 * p + 1 < k;
            /* prefetch rows ahead while at the first columns, else the next columns */
            const uint16_t *soon = i == 0 && p + FAR < k / 2 ? from + 2 * FAR * lda : from + 32;
            _mm_prefetch(soon, _MM_HINT_T1);
            _mm_prefetch(soon + lda, _MM_HINT_T1);
            const __m512i x = _mm512_maskz_loadu_epi16(mask, from),
                          y = _mm512_maskz_loadu_epi16(pair ? mask : 0, pair ? from + lda : from);
            const __m512i low = pairs_low(x, y), high = pairs_high(x, y);
            uint32_t *to = out + i / ROWS * tile + p * ROWS;
            _mm256_store_si256((__m256i *)to, _mm512_castsi512_si256(low));
            if (n_tiles > 1) _mm256_store_si256((__m256i *)(to + tile), _mm512_extracti64x4_epi64(low, 1));
            if (n_tiles > 2) _mm256_store_si256((__m256i *)(to + 2 * tile), _mm512_castsi512_si256(high));
            if (n_tiles > 3) _mm256_store_si256((__m256i *)(to + 3 * tile), _mm512_extracti64x4_epi64(high, 1));
        }
    }
}

/* Pack tiles of A stored [m][k] that cannot be read in place: fewer rows than a tile, or an odd k. */
static void pack_a_plain(const uint16_t *a, int64_t lda, int64_t k, int64_t rows, uint32_t *out)
{
    const int64_t n_pairs = (k + 1) / 2, tile = n_pairs * ROWS;
    for (int64_t i = 0; i < ceil_div(rows, ROWS) * ROWS; i++) {
        uint32_t *to = out + i / ROWS * tile + i % ROWS;
        for (int64_t p = 0; p < n_pairs; p++) {
            uint32_t pair = 0;
            if (i < rows) memcpy(&pair, a + i * lda + 2 * p, 2 * p + 1 < k ? 4 : 2);
            to[p * ROWS] = pair;
        }
    }
}

/* ---- panels of B ------------------------------------------------------------------------------------------------- */

/* A panel in the order in which a thread computes its part of C. The loops, from outer to inner: rows, columns, blocks
 * of k, panels within a block. */
typedef struct panel {
    int64_t i0, m, j0, n, k0, k; /* a block: m rows starting at i0, n columns at j0, k terms at k0 */
    int64_t j;                   /* the panel begins at column j0 + j */
    bool end;
} panel;

typedef struct walk {
    const dt_matmul_call *g;
    const dt_matmul_block *part;
    scratch *s;
    int64_t block_m, block_k;
    bool in_c; /* whole tiles are summed in C itself */
    bool around;
} walk;

/* The first panel of the block that begins at row i0, column j0 and term k0. */
static panel at_block(const walk *w, int64_t i0, int64_t j0, int64_t k0)
{
    return (panel){.i0 = i0,
                   .m = dt_min_i64(w->block_m, w->part->end_row - i0),
                   .j0 = j0,
                   .n = dt_min_i64(BLOCK_N, w->part->end_col - j0),
                   .k0 = k0,
                   .k = dt_min_i64(w->block_k, w->g->mm->k - k0)};
}

/* The panel after p: in the same block, else of the next block of k, of columns, or of rows. */
static panel next_panel(const walk *w, panel p)
{
    p.j += COLS;
    if (p.j < p.n) return p;
    if (p.k0 + p.k < w->g->mm->k) return at_block(w, p.i0, p.j0, p.k0 + p.k);
    if (p.j0 + p.n < w->part->end_col) return at_block(w, p.i0, p.j0 + p.n, 0);
    if (p.i0 + p.m < w->part->end_row) return at_block(w, p.i0 + p.m, w->part->first_col, 0);
    return (panel){.end = true};
}

static int64_t panel_cols(const panel *p) { return dt_min_i64(COLS, p->n - p->j); }
static int64_t n_slices(const panel *p) { return ceil_div(p->k, SLICE); }

/* Address of term k of the panel's first column in B. */
static const uint16_t *b_at(const walk *w, const panel *p, int64_t k)
{
    const dt_matmul *mm = w->g->mm;
    return (const uint16_t *)w->g->b +
           (mm->trans_b ? (p->j0 + p->j) * mm->ldb + p->k0 + k : (p->k0 + k) * mm->ldb + p->j0 + p->j);
}

/* Pack slices from .. to-1 of a panel. */
static void pack_slices(const walk *w, const panel *p, int64_t from, int64_t to, uint32_t *out)
{
    const dt_matmul *mm = w->g->mm;
    const int64_t end = dt_min_i64(to * SLICE, p->k);
    for (int64_t k = from * SLICE; k < end; k += SLICE) {
        const int64_t n = dt_min_i64(SLICE, end - k);
        if (mm->trans_b)
            pack_transposed(b_at(w, p, k), mm->ldb, n, panel_cols(p), out + k / 2 * COLS);
        else
            pack_plain(b_at(w, p, k), mm->ldb, n, panel_cols(p), out + k / 2 * COLS);
    }
}

/* The cache lines of n_rows rows of nbytes each, ld_nbytes apart. */
static ahead rows_ahead(const void *at, int64_t nbytes, int64_t n_rows, int64_t ld_nbytes)
{
    const int64_t skew = (int64_t)((uintptr_t)at % 64);
    return (ahead){
        .at = (const char *)at - skew, .n_lines = (skew + nbytes + 63) / 64, .n_rows = n_rows, .row_nbytes = ld_nbytes};
}

/* The cache lines of B from which slices from .. to-1 of a panel are packed. */
static ahead slices_ahead(const walk *w, const panel *p, int64_t from, int64_t to)
{
    const dt_matmul *mm = w->g->mm;
    const int64_t k = from * SLICE, n = dt_min_i64(to * SLICE, p->k) - k, cols = panel_cols(p);
    if (n <= 0) return (ahead){0};
    return rows_ahead(b_at(w, p, k), 2 * (mm->trans_b ? n : cols), mm->trans_b ? cols : n, 2 * mm->ldb);
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* Address of row i of the block in A, at the block's first term. */
static const uint16_t *a_at(const walk *w, const panel *p, int64_t i)
{
    const dt_matmul *mm = w->g->mm;
    return (const uint16_t *)w->g->a + (mm->trans_a ? p->k0 * mm->lda + p->i0 + i : (p->i0 + i) * mm->lda + p->k0);
}

/* The first row of a block of A that is packed. All rows are packed if A is transposed or k is odd; else only those
 * that do not fill a tile. */
static int64_t first_packed(const walk *w, const panel *p)
{
    return w->g->mm->trans_a || p->k % 2 ? 0 : p->m / ROWS * ROWS;
}

/* Pack the rows of a block of A that cannot be read in place, into w->s->a. */
static void pack_a(const walk *w, const panel *p)
{
    const dt_matmul *mm = w->g->mm;
    const int64_t first = first_packed(w, p);
    if (mm->trans_a)
        pack_a_transposed(a_at(w, p, 0), mm->lda, p->k, p->m, w->s->a);
    else if (first < p->m)
        pack_a_plain(a_at(w, p, first), mm->lda, p->k, p->m - first, w->s->a);
}

/* Compute one tile of C: rows i .. i+ROWS-1 of the block by the panel's columns. b: the packed panel. The sums go to C
 * itself if C is float, the tile is whole and no bias or addend follows. Otherwise they go to scratch, and finish_tile
 * stores them in C. */
static void run_tile(const walk *w, const panel *p, int64_t i, const uint32_t *b, ahead *next)
{
    const dt_matmul *mm = w->g->mm;
    const int64_t rows = dt_min_i64(ROWS, p->m - i), cols = panel_cols(p), n_pairs = (p->k + 1) / 2,
                  first = first_packed(w, p);
    const bool whole = rows == ROWS && cols % LANES == 0, last = p->k0 + p->k == mm->k,
               more = mm->accumulate || p->k0 > 0, packed = i >= first;
    tile_work t = {.c = p->k < mm->k ? w->s->sums[p->j / COLS] + i * COLS : w->s->sums[0],
                   .ldc = COLS,
                   .add = p->k0 > 0 && !w->in_c,
                   .next = next};
    if (w->in_c && whole) {
        t.c = (float *)w->g->c + (p->i0 + i) * mm->ldc + p->j0 + p->j;
        t.ldc = mm->ldc;
        t.add = more;
        t.around = w->around;
        if (!w->around && i + ROWS < p->m)
            t.c_lines = rows_ahead(t.c + ROWS * mm->ldc, cols * 4, dt_min_i64(ROWS, p->m - i - ROWS), 4 * mm->ldc);
    } else if (last) {
        const int64_t size = (int64_t)dt_dtype_size(mm->c_dtype);
        t.c_lines = rows_ahead((const char *)w->g->c + ((p->i0 + i) * mm->ldc + p->j0 + p->j) * size, cols * size, rows,
                               mm->ldc * size);
        if (mm->addend) {
            const addend d = addend_of(w->g);
            const int64_t d_size = (int64_t)dt_dtype_size(d.dt);
            t.d_lines = rows_ahead(d.at + (p->i0 + i) * d.row_nbytes + (p->j0 + p->j) * d_size, cols * d_size, rows,
                                   d.row_nbytes);
        }
    }
    const uint16_t *a = packed ? (const uint16_t *)(w->s->a + (i - first) * n_pairs) : a_at(w, p, i);
    tiles[packed][ceil_div(cols, LANES) - 1](n_pairs, a, mm->lda, b, &t);
    if (w->in_c ? !whole : last)
        finish_tile(w->g, t.c, p->i0 + i, rows, p->j0 + p->j, cols,
                    w->in_c ? addend_in(more ? w->g->c : NULL, mm->ldc, DT_F32) : addend_of(w->g));
}

/* Compute all tiles of a panel, and pack the next panel meanwhile. */
static void run_panel(const walk *w, const panel *p, const uint32_t *b, const panel *next, uint32_t *next_b)
{
    const int64_t n_tiles = ceil_div(p->m, ROWS), todo = next->end ? 0 : n_slices(next);
    int64_t done = 0;
    for (int64_t t = 0, share = 0; t < n_tiles; t++) {
        const int64_t from = done;
        for (share += todo; share >= n_tiles; share -= n_tiles) done++;
        ahead lines = slices_ahead(w, next, from, done);
        run_tile(w, p, t * ROWS, b, &lines);
        pack_slices(w, next, from, done, next_b);
    }
}

/* Non-temporal stores are faster for a C that is large, not read, and made of whole cache lines. */
static bool goes_around(const dt_matmul_call *g, int64_t block_k)
{
    enum { LARGE = 1 << 18 };
    const dt_matmul *mm = g->mm;
    return mm->trans_a && !mm->accumulate && mm->k <= block_k && mm->m * mm->n >= LARGE && mm->ldc % LANES == 0 &&
           (uintptr_t)g->c % 64 == 0;
}

size_t ISA_NAME(matmul_scratch)(void) { return sizeof(scratch); }

/* Compute rows first_row .. end_row-1 and columns first_col .. end_col-1 of C. Panels alternate between two buffers, so
 * that the next one is packed while the current one is used. */
TARGET void ISA_NAME(matmul_bf16)(const dt_matmul_call *g, const dt_matmul_block *part)
{
    const dt_matmul *mm = g->mm;
    walk w = {.g = g,
              .part = part,
              .s = part->scratch,
              .block_m = BLOCK_M,
              .block_k = mm->k,
              .in_c = mm->c_dtype == DT_F32 && !mm->bias && !mm->addend};
    if (mm->k > MOST_K) w.block_k = ceil_div(mm->k, ceil_div(mm->k, BLOCK_K) * SLICE) * SLICE;
    if (mm->trans_a) w.block_m = dt_min_i64(BLOCK_M, PACKED_A / ((w.block_k + 1) / 2 * 2) / ROWS * ROWS);
    w.around = w.in_c && goes_around(g, w.block_k);
    panel p = at_block(&w, part->first_row, part->first_col, 0);
    int turn = 0;
    pack_slices(&w, &p, 0, n_slices(&p), w.s->b[0]);
    while (!p.end) {
        const panel next = next_panel(&w, p);
        if (p.j == 0) pack_a(&w, &p);
        run_panel(&w, &p, w.s->b[turn], &next, w.s->b[!turn]);
        turn = !turn;
        p = next;
    }
    if (w.around) _mm_sfence();
}
#endif
