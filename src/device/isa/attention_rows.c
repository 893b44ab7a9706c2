/* attention_rows.c - attention for generation (dt_attention.batch_invariant): the query heads that share a key head, of
 * one token or a few, against the keys in a cache.
 *
 * The sums are those of attention.c, row by row. Tiles of keys begin at multiples of TK in the sequence, the order
 * within a tile is fixed, and masked keys have probability 0. A row's bits therefore do not depend on the other queries
 * of the call. fp32 keys are read in place, except in a tile that is partly shared. */
#include "rows.h"

enum { ROWS_AT_ONCE = 64 };

/* m and l of attention.c for each row. A row is one query head of one token. */
typedef struct run_state {
    float max[ROWS_AT_ONCE], sum[ROWS_AT_ONCE];
    int32_t from[ROWS_AT_ONCE], to[ROWS_AT_ONCE]; /* keys that the row sees */
} run_state;

/* rows x cols dot products of length k, a multiple of LANES: sums[i * cols + j] = a_i . b_j, rows * cols = LANES or
 * cols = 1. Lane l sums the elements l, l + LANES, ...; then the lanes are added in a tree. The order depends
 * only on k. */
INLINE void dots(int rows, int cols, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float *sums)
{
    vec sum[LANES];
#pragma GCC unroll 16
    for (int s = 0; s < LANES; s++) sum[s] = v_set(0.0f);
    for (int64_t p = 0; p < k; p += LANES) {
        vec x[4];
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) x[i] = v_load(a + i * lda + p);
#pragma GCC unroll 16
        for (int j = 0; j < cols; j++) {
            const vec y = v_load(b + j * ldb + p);
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++) sum[i * cols + j] = v_fma(x[i], y, sum[i * cols + j]);
        }
    }
    v_store(sums, add_lanes(sum));
}

/* s[i][j] = q_i . k_j for `rows` rows (1, 2 or 4) and n_keys keys, s [rows][TK]. */
INLINE void score_rows(int rows, int64_t n_keys, int64_t k, const float *q, int64_t ldq, const float *keys, int64_t ldk,
                       float *s)
{
    const int cols = LANES / rows;
    float sums[LANES];
    for (int64_t j = 0; j < n_keys; j += cols) {
        const bool whole = j + cols <= n_keys;
        if (whole) {
            dots(rows, cols, k, q, ldq, keys + j * ldk, ldk, sums);
            for (int i = 0; i < rows; i++)
                for (int c = 0; c < cols; c++) s[i * TK + j + c] = sums[i * cols + c];
            continue;
        }
        for (int64_t c = j; c < n_keys; c++) {
            dots(rows, 1, k, q, ldq, keys + c * ldk, ldk, sums);
            for (int i = 0; i < rows; i++) s[i * TK + c] = sums[i];
        }
    }
}

/* The same for any number of rows. A row's bits do not depend on how rows are grouped. */
static void scores(int64_t rows, int64_t n_keys, int64_t k, const float *q, int64_t ldq, const float *keys, int64_t ldk,
                   float *s)
{
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4) score_rows(4, n_keys, k, q + i * ldq, ldq, keys, ldk, s + i * TK);
    for (; i + 2 <= rows; i += 2) score_rows(2, n_keys, k, q + i * ldq, ldq, keys, ldk, s + i * TK);
    for (; i < rows; i++) score_rows(1, n_keys, k, q + i * ldq, ldq, keys, ldk, s + i * TK);
}

/* Replace the products of one row by exp(s - max). acc and sum are rescaled to the new maximum. */
static void exponentials(float *restrict s, score_rule rule, run_state *r, int64_t i, int32_t key, int32_t n_keys,
                         float *restrict acc, int64_t width)
{
    float max = r->max[i], lane_sum[16] = {0}, sum = 0.0f;
    if (rule.cap > 0.0f)
        SIMD_FOR (int32_t j = 0; j < n_keys; j++) s[j] = cap_score(rule, s[j]).score;
    for (int32_t j = 0; j < TK; j++) {
        const bool seen = j < n_keys && key + j >= r->from[i] && key + j < r->to[i];
        s[j] = seen ? s[j] : -INFINITY;
    }
    for (int32_t j = 0; j < TK; j++) max = s[j] > max ? s[j] : max;
    const float base = max == -INFINITY ? 0.0f : max;
    SIMD_FOR (int32_t j = 0; j < TK; j++) s[j] = exp_below(s[j] - base);
    for (int32_t j = 0; j < TK; j += 16)
        SIMD_FOR (int32_t l = 0; l < 16; l++) lane_sum[l] += s[j + l];
    for (int32_t l = 0; l < 16; l++) sum += lane_sum[l];
    if (max > r->max[i]) {
        const float alpha = exp_below(r->max[i] - base);
        SIMD_FOR (int64_t c = 0; c < width; c++) acc[c] *= alpha;
        r->sum[i] *= alpha;
        r->max[i] = max;
    }
    r->sum[i] += sum;
}

/* Rows of k and v with a tile of n keys: n_shared rows starting at `shared`, the others starting at `own`. */
typedef struct key_rows {
    int32_t n, n_shared;
    int64_t shared, own;
} key_rows;

static key_rows rows_of_keys(const dt_attention *at, int seq, int32_t key, int32_t n)
{
    const int32_t shared = at->shared_len ? at->shared_len[seq] : 0, left = shared > key ? shared - key : 0;
    key_rows r = {.n = n, .n_shared = left < n ? left : n, .own = (int64_t)at->kv_start[seq] + key + left - shared};
    if (left > 0) r.shared = (int64_t)at->shared_start[seq] + key;
    return r;
}

/* A tile of rows as floats, `width` columns starting at col. It is in place if the rows are contiguous floats of whole
 * vectors, else a copy padded with zeros. */
static const float *tile_rows(const dt_attention *at, const void *base, const key_rows *r, int64_t col, int64_t width,
                              float *copy, int64_t dp, int64_t *ld)
{
    const void *own = cpu_at(base, at->dt, r->own * at->kv_ld + col),
               *shared = cpu_at(base, at->dt, r->shared * at->kv_ld + col);
    if (at->dt == DT_F32 && width % LANES == 0 && (r->n_shared == 0 || r->n_shared == r->n)) {
        *ld = at->kv_ld;
        return r->n_shared == 0 ? own : shared;
    }
    load_rows(copy, shared, at->dt, at->kv_ld, r->n_shared, width, dp, 1.0f);
    load_rows(copy + r->n_shared * dp, own, at->dt, at->kv_ld, r->n - r->n_shared, width, dp, 1.0f);
    *ld = dp;
    return copy;
}

/* Row i is query head `head` + i % n_heads of the part's token i / n_heads. */
static void some_heads(const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part, int head,
                       int n_heads)
{
    const widths w = widths_of(at);
    const int64_t d = w.qk, dp = w.padded, width = round_up(w.v, LANES), rows = (int64_t)part->n * n_heads;
    const int32_t n_q = at->q_start[part->seq + 1] - at->q_start[part->seq], len = at->kv_len[part->seq];
    const int64_t token = at->q_start[part->seq] + part->first;
    const tiles t = carve(part->scratch, dp);
    run_state r;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t row = token + i / n_heads, at_head = (head + i % n_heads) * d;
        const key_range seen = keys_seen(at, n_q, len, part->first + (int32_t)(i / n_heads), row);
        r.to[i] = seen.to, r.from[i] = seen.from;
        r.max[i] = -INFINITY, r.sum[i] = 0.0f;
        load_rows(t.q_rows + i * dp, cpu_at(a->q, at->dt, row * at->q_ld + at_head), at->dt, at->q_ld, 1, d, dp,
                  at->scale);
    }
    memset(t.acc, 0, (size_t)(rows * dp) * sizeof(float));
    /* cppcheck-suppress uninitvar ; a part has at least one row */
    const int32_t begin = r.from[0], end = r.to[rows - 1];
    for (int32_t key = begin / TK * TK; key < end; key += TK) {
        const int32_t n_keys = end - key < TK ? end - key : TK;
        const key_rows where = rows_of_keys(at, part->seq, key, n_keys);
        int64_t ldk, ldv;
        const float *keys = tile_rows(at, a->k, &where, part->head * d, d, t.k, dp, &ldk),
                    *values = tile_rows(at, a->v, &where, part->head * w.v, w.v, t.v, dp, &ldv);
        scores(rows, n_keys, round_up(d, LANES), t.q_rows, dp, keys, ldk, t.s);
        for (int64_t i = 0; i < rows; i++)
            exponentials(t.s + i * TK, rule_of(at), &r, i, key, n_keys, t.acc + i * dp, width);
        tile_matmul(false, rows, width, n_keys, t.s, TK, values, ldv, t.acc, dp, true);
    }
    for (int64_t i = 0; i < rows; i++) {
        const float factor = end_row(at, (int)(head + i % n_heads), r.max[i], r.sum[i]).factor;
        void *out = cpu_at_w(a->out_w, at->dt, (token + i / n_heads) * at->o_ld + (head + i % n_heads) * w.v);
        for (int64_t c = 0; c < w.v; c++) store(out, at->dt, c, t.acc[i * dp + c] * factor);
    }
}

/* All query heads of key head part->head, for the part's tokens, which are few. */
void ISA_NAME(attention_rows)(const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part)
{
    const int group = at->n_heads / at->n_kv_heads;
    for (int g = 0; g < group; g += ROWS_AT_ONCE)
        some_heads(at, a, part, part->head * group + g, group - g < ROWS_AT_ONCE ? group - g : ROWS_AT_ONCE);
}
