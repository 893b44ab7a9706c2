/* matmul_any.c - a matmul of any form, size and type. It computes forms that oneDNN lacks or computes incorrectly, and
 * matmuls of one row, column or term.
 *
 * Blocks of A and B are converted to one layout, as floats or for the processor's bf16 unit. Sums are float, over k in
 * order, in blocks that depend only on k. So the bits of an element do not depend on the division of rows and
 * columns. */
#include "rows.h"

enum { BLOCK_M = 64, BLOCK_N = 128, BLOCK_K = 128, PAD = 32 };

/* One block of C and of k. */
typedef struct block {
    int64_t i, rows, j, cols, at, depth;
} block;

/* The first element of the block in A, and in B. */
static const void *a_at(const dt_matmul_call *g, const block *t)
{
    return cpu_at(g->a, g->mm->dt, g->mm->trans_a ? t->at * g->mm->lda + t->i : t->i * g->mm->lda + t->at);
}
static const void *b_at(const dt_matmul_call *g, const block *t)
{
    return cpu_at(g->b, g->mm->dt, g->mm->trans_b ? t->j * g->mm->ldb + t->at : t->at * g->mm->ldb + t->j);
}

/* ---- as floats --------------------------------------------------------------------------------------------------- */

/* b [depth][n]: a block of B. Columns from cols to n, a multiple of 16, are zero. */
static void load_b(const dt_matmul_call *g, const block *t, int64_t n, float *b)
{
    const dt_matmul *mm = g->mm;
    if (!mm->trans_b) {
        load_rows(b, b_at(g, t), mm->dt, mm->ldb, t->depth, t->cols, n, 1.0f);
        return;
    }
    float stored[BLOCK_N * BLOCK_K];
    const int64_t width = round_up(t->depth, 16);
    load_rows(stored, b_at(g, t), mm->dt, mm->ldb, t->cols, t->depth, width, 1.0f);
    memset(stored + t->cols * width, 0, (size_t)((n - t->cols) * width) * sizeof *stored);
    transpose(b, stored, n, width);
}

/* total [BLOCK_M][BLOCK_N] (+)= A_block B_block, in float. The first block of k overwrites total. */
static void add_floats(const dt_matmul_call *g, const block *t, float *total)
{
    const dt_matmul *mm = g->mm;
    float a[BLOCK_M * BLOCK_K], b[BLOCK_K * BLOCK_N];
    const int64_t n = round_up(t->cols, 16);
    load_b(g, t, n, b);
    if (mm->trans_a) {
        load_rows(a, a_at(g, t), mm->dt, mm->lda, t->depth, t->rows, BLOCK_M, 1.0f);
        tile_matmul(true, t->rows, n, t->depth, a, BLOCK_M, b, n, total, BLOCK_N, t->at > 0);
    } else {
        load_rows(a, a_at(g, t), mm->dt, mm->lda, t->rows, t->depth, BLOCK_K, 1.0f);
        tile_matmul(false, t->rows, n, t->depth, a, BLOCK_K, b, n, total, BLOCK_N, t->at > 0);
    }
}

/* ---- on the bf16 unit -------------------------------------------------------------------------------------------- */

/* dst [rows, padded to a multiple of 16][k]: A by rows. */
static void copy_a(const dt_matmul_call *g, const block *t, int64_t k, uint16_t *dst)
{
    const uint16_t *a = a_at(g, t);
    memset(dst, 0, (size_t)(round_up(t->rows, 16) * k) * sizeof *dst);
    if (g->mm->trans_a) {
        for (int64_t p = 0; p < t->depth; p++)
            for (int64_t i = 0; i < t->rows; i++) dst[i * k + p] = a[p * g->mm->lda + i];
    } else {
        for (int64_t i = 0; i < t->rows; i++) memcpy(dst + i * k, a + i * g->mm->lda, (size_t)t->depth * sizeof *dst);
    }
}

/* dst [k/2][n]: row 2p of B in the low halves, row 2p + 1 in the high halves. */
static void pair_b(const dt_matmul_call *g, const block *t, int64_t k, int64_t n, uint32_t *dst)
{
    const uint16_t *b = b_at(g, t);
    const int64_t ldb = g->mm->ldb;
    if (!g->mm->trans_b) {
        memset(dst, 0, (size_t)(k / 2 * n) * sizeof *dst);
        for (int64_t p = 0; p < t->depth; p++) {
            uint32_t *restrict to = dst + p / 2 * n;
            SIMD_FOR (int64_t j = 0; j < t->cols; j++) to[j] |= (uint32_t)b[p * ldb + j] << (16 * (p & 1));
        }
        return;
    }
    uint32_t stored[BLOCK_N * BLOCK_K / 2]; /* a row of B is already a row of pairs */
    memset(stored, 0, (size_t)(n * k / 2) * sizeof *stored);
    for (int64_t j = 0; j < t->cols; j++) memcpy(stored + j * k / 2, b + j * ldb, (size_t)t->depth * sizeof *b);
    transpose_words(dst, stored, n, k / 2);
}

/* As add_floats, on the bf16 unit. Its operands are padded with zeros. */
static void add_pairs(const dt_matmul_call *g, const block *t, const dt_bf16_unit *unit, float *total)
{
    uint16_t a[BLOCK_M * BLOCK_K];
    uint32_t b[BLOCK_K / 2 * BLOCK_N];
    const int64_t k = round_up(t->depth, PAD), n = round_up(t->cols, 16);
    copy_a(g, t, k, a);
    pair_b(g, t, k, n, b);
    unit->matmul(round_up(t->rows, 16), n, k, a, k, b, n, total, BLOCK_N, t->at > 0);
}

/* ---- all blocks -------------------------------------------------------------------------------------------------- */

/* One block of C: adds blocks of k in order, then bias and addend, and rounds once (store_block). */
static void run_block(const dt_matmul_call *g, block *t, const dt_bf16_unit *unit)
{
    float total[BLOCK_M * BLOCK_N];
    if (g->mm->k == 0) memset(total, 0, sizeof total); /* the empty sum */
    for (t->at = 0; t->at < g->mm->k; t->at += BLOCK_K) {
        t->depth = dt_min_i64(BLOCK_K, g->mm->k - t->at);
        if (unit) {
            add_pairs(g, t, unit, total);
        } else {
            add_floats(g, t, total);
        }
    }
    store_block(g, t->i, t->j, t->rows, t->cols, total, BLOCK_N);
}

/* Compute the rows and columns of C in part. Without a unit, bf16 is multiplied as floats. */
void ISA_NAME(matmul)(const dt_matmul_call *g, const dt_matmul_block *part)
{
    const dt_bf16_unit *unit = g->mm->dt == DT_BF16 ? part->unit : NULL;
    if (unit) unit->begin();
    for (int64_t i = part->first_row; i < part->end_row; i += BLOCK_M)
        for (int64_t j = part->first_col; j < part->end_col; j += BLOCK_N) {
            block t = {.i = i,
                       .rows = dt_min_i64(BLOCK_M, part->end_row - i),
                       .j = j,
                       .cols = dt_min_i64(BLOCK_N, part->end_col - j)};
            run_block(g, &t, unit);
        }
    if (unit) unit->end();
}
