/* int8.c - products in int8 (dt_int8_product): the numbers of A as int8, sums by a unit, and what C has of them.
 *
 * Numbers are compared as the bits of their absolute values, in which infinity is above all finite ones and NaN above
 * that. */
#include "rows.h"

INLINE uint32_t magnitude(const void *x, dt_dtype dt, int64_t i) { return bits_of(load(x, dt, i)) & 0x7fffffffu; }

/* ---- A as int8 --------------------------------------------------------------------------------------------------- */

INLINE void mark(const dt_int8_rows *p, int64_t col, int64_t n, dt_dtype dt)
{
    const dt_matmul *mm = p->g.mm;
    const uint32_t least = p->least;
    uint8_t *is_outlier = p->is_outlier + col;
    memset(is_outlier, 0, (size_t)n);
    for (int64_t i = 0; i < mm->m; i++) {
        const void *x = element(p->g.a, dt, i * mm->lda + col);
        SIMD_FOR (int64_t c = 0; c < n; c++) is_outlier[c] |= magnitude(x, dt, c) >= least;
    }
}
#define MARK(dt) mark(p, col, n, dt)
void ISA_NAME(int8_mark)(const dt_int8_rows *p, int64_t col, int64_t n) { BY_TYPE(p->g.mm->dt, MARK); }

INLINE uint32_t largest_below(const void *x, dt_dtype dt, int64_t k, uint32_t least)
{
    uint32_t most = 0;
    _Pragma("omp simd reduction(max : most)") for (int64_t c = 0; c < k; c++)
    {
        const uint32_t u = magnitude(x, dt, c), counts = u < least ? u : 0;
        most = most > counts ? most : counts;
    }
    return most;
}

/* Adding 1.5 * 2^23 rounds to even, and leaves the integer in the low bits. NaN becomes any integer: its row's scale,
 * or an outlier, is NaN, too. */
INLINE int8_t code_of(float x, float factor)
{
    float y = x * factor;
    y = y < 127.0f ? y : 127.0f;
    y = y > -127.0f ? y : -127.0f;
    return (int8_t)(bits_of(y + 0x1.8p23f) & 0xffu);
}

/* Of row i of the panel and `count` outlier columns from number `first` on: the numbers of A that are no codes, 0 where
 * they are. */
INLINE void take_beside(const dt_int8_rows *p, int64_t i, int64_t first, int64_t count, float *beside, dt_dtype dt)
{
    const dt_matmul *mm = p->g.mm;
    const void *x = element(p->g.a, dt, (p->first + i) * mm->lda);
    for (int64_t o = 0; o < count; o++) {
        const int64_t c = p->outliers[first + o];
        const bool is_own = !mm->batch_invariant || magnitude(x, dt, c) >= p->least;
        beside[o] = is_own ? load(x, dt, c) : 0;
    }
}

INLINE void quantise(const dt_int8_rows *p, int64_t i, dt_dtype dt)
{
    const dt_matmul *mm = p->g.mm;
    const void *x = element(p->g.a, dt, (p->first + i) * mm->lda);
    const uint32_t least = p->least;
    const float largest = float_of(largest_below(x, dt, mm->k, least));
    const float factor = largest > 0 && largest < INFINITY ? fminf(127.0f / largest, 0x1p127f) : 0;
    int8_t *q = p->q + i * p->ld;
    const uint8_t *is_outlier = p->is_outlier;
    p->scale[i] = largest / 127.0f;
    if (least == UINT32_MAX) {
        SIMD_FOR (int64_t c = 0; c < mm->k; c++) q[c] = code_of(load(x, dt, c), factor);
    } else if (mm->batch_invariant) {
        SIMD_FOR (int64_t c = 0; c < mm->k; c++)
            q[c] = magnitude(x, dt, c) >= least ? 0 : code_of(load(x, dt, c), factor);
    } else {
        SIMD_FOR (int64_t c = 0; c < mm->k; c++) q[c] = is_outlier[c] ? 0 : code_of(load(x, dt, c), factor);
    }
    memset(q + mm->k, 0, (size_t)(p->ld - mm->k));
    take_beside(p, i, 0, dt_min_i64(p->n_outliers, DT_INT8_BESIDE), p->beside + i * DT_INT8_BESIDE, dt);
}
#define QUANTISE(dt) quantise(p, i, dt)
void ISA_NAME(int8_quantise)(const dt_int8_rows *p, int64_t i) { BY_TYPE(p->g.mm->dt, QUANTISE); }

/* ---- C ----------------------------------------------------------------------------------------------------------- */

enum { BLOCK = DT_INT8_BLOCK, AT_ONCE = DT_INT8_BESIDE /* outliers */ };

/* The numbers of B in `count` outlier columns from number `first` on, n rows of it from row `row` on, then zeros. */
INLINE void take_outliers(const dt_int8_rows *p, int64_t first, int64_t count, int64_t row, int64_t n,
                          float (*w)[BLOCK])
{
    const dt_matmul *mm = p->g.mm;
    memset(w, 0, (size_t)count * sizeof w[0]);
    for (int64_t j = 0; j < n; j++) {
        const int8_t *b = (const int8_t *)p->g.b + (row + j) * mm->ldb;
        const float scale = mm->b_scaled.scale[row + j];
        for (int64_t o = 0; o < count; o++) w[o][j] = rounded((float)b[p->outliers[first + o]] * scale, mm->dt);
    }
}

/* total += x w, in the order of the outliers. */
INLINE void add_outliers(const float *x, int64_t count, float (*w)[BLOCK], int64_t m, float (*total)[BLOCK])
{
    for (int64_t r = 0; r < m; r++) {
        float sum[BLOCK];
        memcpy(sum, total[r], sizeof sum);
        for (int64_t o = 0; o < count; o++) {
            const float v = x[r * AT_ONCE + o];
            SIMD_FOR (int c = 0; c < BLOCK; c++) sum[c] = FMA(v, w[o][c], sum[c]);
        }
        memcpy(total[r], sum, sizeof sum);
    }
}

/* Of those behind the first AT_ONCE: what they are multiplied by is taken for these rows alone. */
#define TAKE_BESIDE(dt) take_beside(p, i + r, o, count, x, dt)
INLINE void add_more_outliers(const dt_int8_rows *p, int64_t i, int64_t m, int64_t j, int64_t n, float (*total)[BLOCK])
{
    float x[AT_ONCE], w[AT_ONCE][BLOCK];
    for (int64_t o = AT_ONCE, count; o < p->n_outliers; o += count) {
        count = dt_min_i64(AT_ONCE, p->n_outliers - o);
        take_outliers(p, o, count, j, n, w);
        for (int64_t r = 0; r < m; r++) {
            BY_TYPE(p->g.mm->dt, TAKE_BESIDE);
            add_outliers(x, count, w, 1, total + r);
        }
    }
}

/* Rows i .. i+m-1 of the panel and columns j .. j+n-1. w: the first outliers, as many as there is room for; they are
 * taken with the first rows, when the product has brought B to the caches. */
INLINE void put_block(const dt_int8_rows *p, int64_t i, int64_t m, int64_t j, int64_t n, float (*w)[BLOCK])
{
    const dt_matmul *mm = p->g.mm;
    const int64_t first = dt_min_i64(p->n_outliers, AT_ONCE);
    int32_t sum[BLOCK][BLOCK];
    float total[BLOCK][BLOCK], b_scale[BLOCK] = {0};
    memcpy(b_scale, mm->b_scaled.scale + j, (size_t)n * sizeof *b_scale);
    p->unit->product(m, n, mm->k, p->q + i * p->ld, p->ld, (const int8_t *)p->g.b + j * mm->ldb, mm->ldb, sum);
    for (int64_t r = 0; r < m; r++) {
        const float a_scale = p->scale[i + r];
        SIMD_FOR (int c = 0; c < BLOCK; c++) total[r][c] = (float)sum[r][c] * (a_scale * b_scale[c]);
    }
    if (i == 0) take_outliers(p, 0, first, j, n, w);
    add_outliers(p->beside + i * AT_ONCE, first, w, m, total);
    add_more_outliers(p, i, m, j, n, total);
    store_block(&p->g, p->first + i, j, m, n, &total[0][0], BLOCK);
}

void ISA_NAME(int8_columns)(const dt_int8_rows *p, int64_t col, int64_t n)
{
    float w[AT_ONCE][BLOCK];
    p->unit->begin();
    for (int64_t j = col; j < col + n; j += BLOCK) {
        const int64_t cols = dt_min_i64(BLOCK, col + n - j);
        for (int64_t i = 0; i < p->n; i += BLOCK) put_block(p, i, dt_min_i64(BLOCK, p->n - i), j, cols, w);
    }
    p->unit->end();
}

/* ---- the unit that every processor has --------------------------------------------------------------------------- */

static void nothing(void) {}

static void plain_product(int64_t m, int64_t n, int64_t k, const int8_t *x, int64_t ldx, const int8_t *w, int64_t ldw,
                          int32_t sum[][DT_INT8_BLOCK])
{
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            const int8_t *of_x = x + i * ldx, *of_w = w + j * ldw;
            int32_t s = 0;
            _Pragma("omp simd reduction(+ : s)") for (int64_t p = 0; p < k; p++) s += (int32_t)of_x[p] * of_w[p];
            sum[i][j] = s;
        }
}

const dt_int8_unit ISA_NAME(int8_plain) = {.name = "plain", .begin = nothing, .end = nothing, .product = plain_product};
