/* product_rows.c - matrix products in which a row of C has the same bits whatever other rows are computed with it
 * (dt_matmul.batch_invariant).
 *
 * Each element is one sum in one order, fixed by k and by the form of B alone; rows and columns are blocked around it:
 *     B stored [n,k]   k in pieces of CHUNK; in a piece lane l sums the products p = l, l + LANES, ..., then the lanes
 *     are added in a tree; pieces in order
 *     B stored [k,n]   p = 0, 1, ..., k - 1
 * then bias and addend, rounded once. With few rows B is read once, at the speed of memory; with many, blocks of
 * it stay in cache. */
#include "rows.h"

enum { BLOCK_M = 64, BLOCK_N = 64, CHUNK = 1024 };

/* ---- B stored [n,k]: dot products -------------------------------------------------------------------------------- */

/* rows x cols dot products of length k; slot i * cols + j of sums. */
INLINE void dots(int rows, int cols, dt_dtype dt, int64_t k, const void *a, int64_t lda, const void *b, int64_t ldb,
                 float *sums)
{
    vec sum[LANES];
#pragma GCC unroll 16
    for (int s = 0; s < LANES; s++) sum[s] = v_set(0.0f);
    const int64_t whole = k / LANES * LANES;
    for (int64_t p = 0; p < whole; p += LANES) {
        vec x[4];
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) x[i] = load_lanes(a, dt, i * lda + p);
#pragma GCC unroll 16
        for (int j = 0; j < cols; j++) {
            const vec y = load_lanes(b, dt, j * ldb + p);
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++) sum[i * cols + j] = v_fma(x[i], y, sum[i * cols + j]);
        }
    }
    for (int j = 0; whole < k && j < cols; j++)
        for (int i = 0; i < rows; i++)
            sum[i * cols + j] = v_fma(load_some(a, dt, i * lda + whole, k - whole),
                                      load_some(b, dt, j * ldb + whole, k - whole), sum[i * cols + j]);
    v_store(sums, add_lanes(sum));
}

#define DOTS(name, rows, cols, dt)                                                                                     \
    static void name(int64_t k, const void *a, int64_t lda, const void *b, int64_t ldb, float *sums)                   \
    {                                                                                                                  \
        dots(rows, cols, dt, k, a, lda, b, ldb, sums);                                                                 \
    }
DOTS(float_1, 1, LANES, DT_F32)
DOTS(float_2, 2, LANES / 2, DT_F32)
DOTS(float_4, 4, LANES / 4, DT_F32)
DOTS(float_1x1, 1, 1, DT_F32)
DOTS(float_2x1, 2, 1, DT_F32)
DOTS(float_4x1, 4, 1, DT_F32)
DOTS(bf16_1, 1, LANES, DT_BF16)
DOTS(bf16_2, 2, LANES / 2, DT_BF16)
DOTS(bf16_4, 4, LANES / 4, DT_BF16)
DOTS(bf16_1x1, 1, 1, DT_BF16)
DOTS(bf16_2x1, 2, 1, DT_BF16)
DOTS(bf16_4x1, 4, 1, DT_BF16)
DOTS(f16_1, 1, LANES, DT_F16)
DOTS(f16_2, 2, LANES / 2, DT_F16)
DOTS(f16_4, 4, LANES / 4, DT_F16)
DOTS(f16_1x1, 1, 1, DT_F16)
DOTS(f16_2x1, 2, 1, DT_F16)
DOTS(f16_4x1, 4, 1, DT_F16)
static const dot_shapes float_dots = {CHUNK, {float_1, float_2, float_4}, {float_1x1, float_2x1, float_4x1}};
static const dot_shapes bf16_dots = {CHUNK, {bf16_1, bf16_2, bf16_4}, {bf16_1x1, bf16_2x1, bf16_4x1}};
static const dot_shapes f16_dots = {CHUNK, {f16_1, f16_2, f16_4}, {f16_1x1, f16_2x1, f16_4x1}};

/* sums [rows][cols] into total from (i, j) on: written, or added to for later pieces of k. */
INLINE void put_sums(float (*total)[BLOCK_N], int64_t i, int64_t j, int rows, int cols, const float *sums, bool add)
{
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++) total[i + r][j + c] = (add ? total[i + r][j + c] : 0.0f) + sums[r * cols + c];
}

/* One piece of k for m x n elements: down the rows first, so that the columns of B in use stay in the nearest cache. */
static void add_piece(const dot_shapes *shapes, dt_dtype dt, int64_t m, int64_t n, int64_t k, const void *a,
                      int64_t lda, const void *b, int64_t ldb, float (*total)[BLOCK_N], bool add)
{
    float sums[LANES];
    for (int64_t i = 0, rows; i < m; i += rows) { /* shapes of one kind side by side */
        const int shape = m - i >= 4 ? 2 : m - i >= 2 ? 1 : 0;
        const int64_t cols = LANES >> shape, end = shape == 2 ? i + (m - i) / 4 * 4 : i + (1 << shape);
        rows = end - i;
        for (int64_t j = 0, step; j < n; j += step) {
            const bool wide = n - j >= cols;
            step = wide ? cols : 1;
            dots_function *run = wide ? shapes->wide[shape] : shapes->narrow[shape];
            for (int64_t r = i; r < end; r += 1 << shape) {
                run(k, element(a, dt, r * lda), lda, element(b, dt, j * ldb), ldb, sums);
                put_sums(total, r, j, 1 << shape, (int)step, sums, add);
            }
        }
    }
}

/* Columns first .. first+n-1 of C, B stored [n,k]. */
static void dot_columns(const dt_rows_product *p, const dot_shapes *shapes, int64_t first, int64_t n)
{
    const dt_matmul *mm = p->g.mm;
    float total[BLOCK_M][BLOCK_N];
    for (int64_t j = first; j < first + n; j += BLOCK_N)
        for (int64_t i = 0; i < mm->m; i += BLOCK_M) {
            const int64_t rows = dt_min_i64(BLOCK_M, mm->m - i), cols = dt_min_i64(BLOCK_N, first + n - j);
            for (int64_t at = 0; at < mm->k; at += shapes->chunk)
                add_piece(shapes, mm->dt, rows, cols, dt_min_i64(shapes->chunk, mm->k - at),
                          element(p->g.a, mm->dt, i * mm->lda + at), mm->lda, element(p->g.b, mm->dt, j * mm->ldb + at),
                          mm->ldb, total, at > 0);
            store_block(&p->g, i, j, rows, cols, &total[0][0], BLOCK_N);
        }
}

/* ---- B stored [k,n]: columns in lanes ---------------------------------------------------------------------------- */

enum { FEW = 8, FEW_N = 512, AT_ONCE = 8, PACK_K = 128, PACK_N = 128 };

/* total[i][..] += sum over `rows of B` q < depth of a[i][q] B[q][..], in order. Of the rows of A m are there; the last
 * stands in for the others. */
INLINE void add_rows_of_b(int rows, int64_t m, int depth, dt_dtype dt, const void *a, int64_t lda, const void *b,
                          int64_t ldb, int64_t n, float (*total)[FEW_N])
{
    float x[FEW][AT_ONCE];
    for (int i = 0; i < rows; i++)
        for (int q = 0; q < depth; q++) x[i][q] = load(a, dt, dt_min_i64(i, m - 1) * lda + q);
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) {
        vec sum[FEW];
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) sum[i] = v_load(&total[i][j]);
#pragma GCC unroll 8
        for (int q = 0; q < depth; q++) {
            /* the runs are too short for the processor to see where they go on */
            __builtin_prefetch(element(b, dt, (q + depth) * ldb + j));
            const vec y = load_lanes(b, dt, q * ldb + j);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) sum[i] = v_fma(v_set(x[i][q]), y, sum[i]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) v_store(&total[i][j], sum[i]);
    }
    for (; j < n; j++)
        for (int i = 0; i < rows; i++)
            for (int q = 0; q < depth; q++) total[i][j] = FMA(x[i][q], load(b, dt, q * ldb + j), total[i][j]);
}

/* Columns first .. first+n-1 of C for up to `rows` rows, B stored [k,n]: sums of FEW_N columns stay in cache while B's
 * rows stream by. */
INLINE void few_rows(int rows, dt_dtype dt, const dt_rows_product *p, int64_t first, int64_t n)
{
    const dt_matmul *mm = p->g.mm;
    float total[FEW][FEW_N];
    for (int64_t j = first; j < first + n; j += FEW_N) {
        const int64_t cols = dt_min_i64(FEW_N, first + n - j);
        memset(total, 0, (size_t)rows * sizeof total[0]);
        int64_t q = 0;
        for (; q + AT_ONCE <= mm->k; q += AT_ONCE)
            add_rows_of_b(rows, mm->m, AT_ONCE, dt, element(p->g.a, dt, q), mm->lda,
                          element(p->g.b, dt, q * mm->ldb + j), mm->ldb, cols, total);
        for (; q < mm->k; q++)
            add_rows_of_b(rows, mm->m, 1, dt, element(p->g.a, dt, q), mm->lda, element(p->g.b, dt, q * mm->ldb + j),
                          mm->ldb, cols, total);
        store_block(&p->g, 0, j, mm->m, cols, &total[0][0], FEW_N);
    }
}

/* Blocks of A and B as floats, B's columns from n to a multiple of LANES zero. */
static void many_rows(const dt_rows_product *p, int64_t first, int64_t n)
{
    const dt_matmul *mm = p->g.mm;
    float total[BLOCK_M][PACK_N], rows_a[BLOCK_M][PACK_K], rows_b[PACK_K][PACK_N];
    for (int64_t j = first; j < first + n; j += PACK_N)
        for (int64_t i = 0; i < mm->m; i += BLOCK_M) {
            const int64_t rows = dt_min_i64(BLOCK_M, mm->m - i), cols = dt_min_i64(PACK_N, first + n - j),
                          padded = round_up(cols, LANES);
            for (int64_t at = 0; at < mm->k; at += PACK_K) {
                const int64_t depth = dt_min_i64(PACK_K, mm->k - at);
                load_rows(&rows_a[0][0], element(p->g.a, mm->dt, i * mm->lda + at), mm->dt, mm->lda, rows, depth,
                          PACK_K, 1.0f);
                load_rows(&rows_b[0][0], element(p->g.b, mm->dt, at * mm->ldb + j), mm->dt, mm->ldb, depth, cols,
                          PACK_N, 1.0f);
                tile_product(false, rows, padded, depth, &rows_a[0][0], PACK_K, &rows_b[0][0], PACK_N, &total[0][0],
                             PACK_N, at > 0);
            }
            store_block(&p->g, i, j, rows, cols, &total[0][0], PACK_N);
        }
}

/* One pass over B for up to FEW rows. */
#define FEW_ROWS(dt)                                                                                                   \
    do {                                                                                                               \
        if (p->g.mm->m == 1) {                                                                                         \
            few_rows(1, dt, p, first, n);                                                                              \
        } else if (p->g.mm->m == 2) {                                                                                  \
            few_rows(2, dt, p, first, n);                                                                              \
        } else if (p->g.mm->m <= 4) {                                                                                  \
            few_rows(4, dt, p, first, n);                                                                              \
        } else {                                                                                                       \
            few_rows(FEW, dt, p, first, n);                                                                            \
        }                                                                                                              \
    } while (0)

static const dot_shapes *dots_of(const dt_rows_product *p)
{
    const dt_dtype dt = p->g.mm->dt;
#if HAVE_BF16_UNITS
    if (dt == DT_BF16 && p->pairs) return &ISA_NAME(pair_dots);
#endif
    return dt == DT_F32 ? &float_dots : dt == DT_BF16 ? &bf16_dots : &f16_dots;
}

/* Columns first .. first+n-1 of all rows of C. */
void ISA_NAME(product_rows)(const dt_rows_product *p, int64_t first, int64_t n)
{
    if (p->g.mm->trans_b) {
        dot_columns(p, dots_of(p), first, n);
    } else if (p->g.mm->m > FEW) {
        many_rows(p, first, n);
    } else {
        BY_TYPE(p->g.mm->dt, FEW_ROWS);
    }
}
