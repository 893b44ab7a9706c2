/* matmul_rows.c - batch-invariant matmuls (dt_matmul.batch_invariant): the bits of a row of C do not depend on the
 * other rows of the call.
 *
 * Each element is one sum in one order, which depends only on k and on the layout of B. Blocking of rows and columns
 * does not change it:
 *     B stored [n,k]   k in chunks. Within a chunk lane l sums the products p = l, l + LANES, ..., then the lanes are
 *                      added in a tree. Chunks are added in order.
 *     B stored [k,n]   p = 0, 1, ..., k - 1
 * Then bias and addend are added, and the result is rounded once. With few rows B is read once, at memory bandwidth.
 * With many rows blocks of B stay in cache. */
#include "rows.h"

enum { BLOCK_M = DT_ROWS_BLOCK, BLOCK_N = 64, CHUNK = 1024, STRIP_NBYTES = 1024 /* bytes of a row of B */ };

/* A block of B in the matmul's type: B itself, or `room` with a dequantised copy. */
typedef struct part {
    const void *p;
    int64_t ld;
} part;
SHARED part part_of_b(const dt_rows_matmul *p, dequantise_function *dequantise, int64_t row, int64_t rows, int64_t col,
                      int64_t cols, void *room)
{
    const dt_matmul *mm = p->g.mm;
    if (mm->b_scaled.how == DT_SCALE_NONE) return (part){cpu_at(p->g.b, mm->dt, row * mm->ldb + col), mm->ldb};
    const dt_stored b = {p->g.b, mm->ldb, mm->b_scaled};
    for (int64_t r = 0; r < rows; r++) dequantise(&b, row + r, col, cols, cpu_at_w(room, mm->dt, r * cols), mm->dt);
    return (part){room, cols};
}

/* ---- B stored [n,k]: dot products -------------------------------------------------------------------------------- */

/* The last n < LANES terms of dots. */
static void add_rest(int rows, int cols, dt_dtype dt, int64_t n, const void *a, int64_t lda, const void *b, int64_t ldb,
                     vec *sums)
{
    for (int j = 0; j < cols; j++)
        for (int i = 0; i < rows; i++)
            sums[i * cols + j] = v_fma(load_some(a, dt, i * lda, n), load_some(b, dt, j * ldb, n), sums[i * cols + j]);
}

/* Add rows x cols dot products of length k to sums[i * cols + j], lane by lane. */
INLINE void dots(int rows, int cols, dt_dtype dt, int64_t k, const void *a, int64_t lda, const void *b, int64_t ldb,
                 vec *sums)
{
    vec sum[LANES];
#pragma GCC unroll 16
    for (int s = 0; s < rows * cols; s++) sum[s] = sums[s];
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
#pragma GCC unroll 16
    for (int s = 0; s < rows * cols; s++) sums[s] = sum[s];
    if (whole < k) add_rest(rows, cols, dt, k - whole, cpu_at(a, dt, whole), lda, cpu_at(b, dt, whole), ldb, sums);
}

#define DOTS(name, rows, cols, dt)                                                                                     \
    static void name(int64_t k, const void *a, int64_t lda, const void *b, int64_t ldb, vec *sums)                     \
    {                                                                                                                  \
        dots(rows, cols, dt, k, a, lda, b, ldb, sums);                                                                 \
    }
#define DOTS_OF(name, dt)                                                                                              \
    DOTS(name##_1, 1, LANES, dt)                                                                                       \
    DOTS(name##_2, 2, LANES / 2, dt)                                                                                   \
    DOTS(name##_4, 4, LANES / 4, dt)                                                                                   \
    DOTS(name##_1x1, 1, 1, dt)                                                                                         \
    static const dot_shapes name##_dots = {                                                                            \
        CHUNK, ISA_NAME(dequantise), NULL, {name##_1, name##_2, name##_4}, name##_1x1};
DOTS_OF(float, DT_F32)
DOTS_OF(bf16, DT_BF16)
DOTS_OF(f16, DT_F16)

/* Store sums [rows][cols] in total at (i, j). add: add them, for chunks of k after the first. */
INLINE void put_sums(float (*total)[BLOCK_N], int64_t i, int64_t j, int rows, int cols, const float *sums, bool add)
{
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++) total[i + r][j + c] = (add ? total[i + r][j + c] : 0.0f) + sums[r * cols + c];
}

/* A chunk of k, for a block of rows and columns of C. */
typedef struct piece {
    int64_t i, m, j, n, at, k;
} piece;

/* For a single row of A and a quantised B, use the kernel that dequantises in registers, if there is one. Returns the
 * number of terms added. */
static int64_t add_stored(const dt_rows_matmul *p, const dot_shapes *shapes, const piece *t, int64_t first, int64_t end,
                          int64_t j, int cols, vec *sum)
{
    const dt_matmul *mm = p->g.mm;
    const dt_stored b = {p->g.b, mm->ldb, mm->b_scaled};
    if (!shapes->stored || mm->b_scaled.how == DT_SCALE_NONE || end - first != 1 || cols != LANES) return 0;
    return shapes->stored(t->k, cpu_at(p->g.a, mm->dt, (t->i + first) * mm->lda + t->at), &b, t->j + j, t->at, sum);
}

/* Add the chunk to rows first .. end-1 of `cols` columns, 1 << shape rows at a time. B is read or dequantised in
 * strips. All rows use a strip before the next one. */
static void add_columns(const dt_rows_matmul *p, const dot_shapes *shapes, const piece *t, int shape, int64_t first,
                        int64_t end, int64_t j, int cols, float (*total)[BLOCK_N])
{
    const dt_matmul *mm = p->g.mm;
    const int64_t strip = mm->b_scaled.how == DT_SCALE_NONE ? t->k : STRIP_NBYTES / (int64_t)dt_dtype_size(mm->dt);
    dots_function *run = cols > 1 ? shapes->wide[shape] : shapes->single;
    const int at_once = cols > 1 ? 1 << shape : 1;
    vec sum[BLOCK_M][LANES];
    char room[LANES * STRIP_NBYTES] __attribute__((aligned(64)));
    memset(sum, 0, (size_t)((end - first) >> shape) * sizeof sum[0]);
    for (int64_t q = add_stored(p, shapes, t, first, end, j, cols, sum[0]), depth; q < t->k; q += depth) {
        depth = dt_min_i64(strip, t->k - q);
        const part b = part_of_b(p, shapes->dequantise, t->j + j, cols, t->at + q, depth, room);
        for (int64_t r = first; r < end; r += at_once) {
            const int64_t group = (r - first) >> shape, in_group = (r - first) & ((1 << shape) - 1);
            run(depth, cpu_at(p->g.a, mm->dt, (t->i + r) * mm->lda + t->at + q), mm->lda, b.p, b.ld,
                &sum[group][in_group]);
        }
    }
    for (int64_t r = first, g = 0; r < end; r += 1 << shape, g++) {
        float sums[LANES];
        v_store(sums, add_lanes(sum[g]));
        put_sums(total, r, j, 1 << shape, cols, sums, t->at > 0);
    }
}

/* The inner loop runs over rows, so that the columns of B in use stay in the first-level cache. */
static void add_piece(const dt_rows_matmul *p, const dot_shapes *shapes, const piece *t, float (*total)[BLOCK_N])
{
    for (int64_t i = 0, end; i < t->m; i = end) { /* rows with the same shape together */
        const int shape = t->m - i >= 4 ? 2 : t->m - i >= 2 ? 1 : 0, cols = LANES >> shape;
        end = shape == 2 ? i + (t->m - i) / 4 * 4 : i + (1 << shape);
        for (int64_t j = 0, step; j < t->n; j += step) {
            step = t->n - j >= cols ? cols : 1;
            add_columns(p, shapes, t, shape, i, end, j, (int)step, total);
        }
    }
}

/* Columns first .. first+n-1 of C, B stored [n,k]. */
static void dot_columns(const dt_rows_matmul *p, const dot_shapes *shapes, int64_t first, int64_t n)
{
    const dt_matmul *mm = p->g.mm;
    float total[BLOCK_M][BLOCK_N];
    for (int64_t j = first; j < first + n; j += BLOCK_N)
        for (int64_t i = 0; i < mm->m; i += BLOCK_M) {
            piece t = {.i = i, .m = dt_min_i64(BLOCK_M, mm->m - i), .j = j, .n = dt_min_i64(BLOCK_N, first + n - j)};
            for (; t.at < mm->k; t.at += shapes->chunk) {
                t.k = dt_min_i64(shapes->chunk, mm->k - t.at);
                add_piece(p, shapes, &t, total);
            }
            store_block(&p->g, i, j, t.m, t.n, &total[0][0], BLOCK_N);
        }
}

/* ---- B stored [k,n]: columns in lanes ---------------------------------------------------------------------------- */

enum { FEW = 8, FEW_N = 512, AT_ONCE = 8, PACK_K = 128, PACK_N = 128 };

/* As add_rows_of_b, for columns j .. n-1 and `depth` terms. */
SHARED void add_rest_of_b(int64_t m, int64_t j, int64_t depth, dt_dtype dt, const void *a, int64_t lda, const void *b,
                          int64_t ldb, int64_t n, float (*total)[FEW_N])
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t q = 0; q < depth; q++) {
            const float x = load(a, dt, i * lda + q);
            for (int64_t c = j; c < n; c++) total[i][c] = FMA(x, load(b, dt, q * ldb + c), total[i][c]);
        }
}

/* total[i][..] += sum over q < AT_ONCE of a[i][q] B[q][..], in order. A has m rows; the last one is repeated up to
 * `rows`. */
INLINE void add_rows_of_b(int rows, int64_t m, dt_dtype dt, const void *a, int64_t lda, const void *b, int64_t ldb,
                          int64_t n, float (*total)[FEW_N])
{
    float x[FEW][AT_ONCE];
    for (int i = 0; i < rows; i++) load_elements(x[i], a, dt, dt_min_i64(i, m - 1) * lda, AT_ONCE);
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) {
        vec sum[FEW];
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) sum[i] = v_load(&total[i][j]);
#pragma GCC unroll 2
        for (int q = 0; q < AT_ONCE; q++) {
            /* the runs are too short for the hardware prefetcher */
            __builtin_prefetch(cpu_at(b, dt, (q + AT_ONCE) * ldb + j));
            const vec y = load_lanes(b, dt, q * ldb + j);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) sum[i] = v_fma(v_set(x[i][q]), y, sum[i]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) v_store(&total[i][j], sum[i]);
    }
    if (j < n) add_rest_of_b(m, j, AT_ONCE, dt, a, lda, b, ldb, n, total);
}

typedef void few_function(int64_t m, const void *a, int64_t lda, const void *b, int64_t ldb, int64_t n,
                          float (*total)[FEW_N]);
#define ADD_ROWS(name, rows, dt)                                                                                       \
    static void name(int64_t m, const void *a, int64_t lda, const void *b, int64_t ldb, int64_t n,                     \
                     float(*total)[FEW_N])                                                                             \
    {                                                                                                                  \
        add_rows_of_b(rows, m, dt, a, lda, b, ldb, n, total);                                                          \
    }
#define ADD_ROWS_OF(name, dt)                                                                                          \
    ADD_ROWS(name##_add_1, 1, dt)                                                                                      \
    ADD_ROWS(name##_add_2, 2, dt)                                                                                      \
    ADD_ROWS(name##_add_4, 4, dt)                                                                                      \
    ADD_ROWS(name##_add_8, FEW, dt)                                                                                    \
    static few_function *const name##_few[] = {name##_add_1, name##_add_2, name##_add_4, name##_add_8};
ADD_ROWS_OF(float, DT_F32)
ADD_ROWS_OF(bf16, DT_BF16)
ADD_ROWS_OF(f16, DT_F16)

/* Columns first .. first+n-1 of C for up to FEW rows, B stored [k,n], which is read once. The sums of FEW_N columns
 * stay in cache while the rows of B are streamed. */
static void few_rows(const dt_rows_matmul *p, int64_t first, int64_t n)
{
    const dt_matmul *mm = p->g.mm;
    const int64_t m = mm->m;
    const dt_dtype dt = mm->dt;
    const int rows_log2 = m == 1 ? 0 : m == 2 ? 1 : m <= 4 ? 2 : 3;
    few_function *add = (dt == DT_F32 ? float_few : dt == DT_BF16 ? bf16_few : f16_few)[rows_log2];
    float total[FEW][FEW_N], room[AT_ONCE * FEW_N];
    for (int64_t j = first; j < first + n; j += FEW_N) {
        const int64_t cols = dt_min_i64(FEW_N, first + n - j);
        memset(total, 0, sizeof total[0] << rows_log2);
        for (int64_t q = 0, depth; q < mm->k; q += depth) {
            depth = dt_min_i64(AT_ONCE, mm->k - q);
            const part b = part_of_b(p, ISA_NAME(dequantise), q, depth, j, cols, room);
            const void *a = cpu_at(p->g.a, dt, q);
            if (depth == AT_ONCE)
                add(m, a, mm->lda, b.p, b.ld, cols, total);
            else
                add_rest_of_b(m, 0, depth, dt, a, mm->lda, b.p, b.ld, cols, total);
        }
        store_block(&p->g, 0, j, m, cols, &total[0][0], FEW_N);
    }
}

/* Blocks of A and B are converted to floats. Columns of B from n to a multiple of LANES are zero. */
static void many_rows(const dt_rows_matmul *p, int64_t first, int64_t n)
{
    const dt_matmul *mm = p->g.mm;
    float total[BLOCK_M][PACK_N], rows_a[BLOCK_M][PACK_K], rows_b[PACK_K][PACK_N], room[PACK_K * PACK_N];
    for (int64_t j = first; j < first + n; j += PACK_N)
        for (int64_t i = 0; i < mm->m; i += BLOCK_M) {
            const int64_t rows = dt_min_i64(BLOCK_M, mm->m - i), cols = dt_min_i64(PACK_N, first + n - j),
                          padded = round_up(cols, LANES);
            for (int64_t at = 0; at < mm->k; at += PACK_K) {
                const int64_t depth = dt_min_i64(PACK_K, mm->k - at);
                load_rows(&rows_a[0][0], cpu_at(p->g.a, mm->dt, i * mm->lda + at), mm->dt, mm->lda, rows, depth, PACK_K,
                          1.0f);
                const part b = part_of_b(p, ISA_NAME(dequantise), at, depth, j, cols, room);
                load_rows(&rows_b[0][0], b.p, mm->dt, b.ld, depth, cols, PACK_N, 1.0f);
                tile_matmul(false, rows, padded, depth, &rows_a[0][0], PACK_K, &rows_b[0][0], PACK_N, &total[0][0],
                            PACK_N, at > 0);
            }
            store_block(&p->g, i, j, rows, cols, &total[0][0], PACK_N);
        }
}

static const dot_shapes *dots_of(const dt_rows_matmul *p)
{
    const dt_dtype dt = p->g.mm->dt;
#if HAVE_BF16_UNITS
    if (dt == DT_BF16 && p->pairs) return &ISA_NAME(pair_dots);
#endif
    return dt == DT_F32 ? &float_dots : dt == DT_BF16 ? &bf16_dots : &f16_dots;
}

/* Columns first .. first+n-1 of all rows of C. */
void ISA_NAME(matmul_rows)(const dt_rows_matmul *p, int64_t first, int64_t n)
{
    if (p->g.mm->trans_b) {
        dot_columns(p, dots_of(p), first, n);
    } else if (p->g.mm->m > FEW) {
        many_rows(p, first, n);
    } else {
        few_rows(p, first, n);
    }
}
