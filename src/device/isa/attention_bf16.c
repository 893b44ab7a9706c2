/* attention_bf16.c - the algorithms of attention.c and attention_backward.c on a processor's bf16 units. Operands of
 * matmuls are bf16, with A in rows and B in pairs along the summed index:
 *     S^T  = K Q^T      K in rows, Q in pairs of columns     O^T  += V^T P^T    V transposed, P in pairs of keys
 *     dP^T = V dO^T     V in rows, dO in pairs of columns    dQ^T += K^T dS^T   K transposed, dS in pairs of keys
 *     dV  += P^T dO     P in rows, dO in pairs of queries    dK   += dS^T Q     dS in rows, Q in pairs of queries
 * Two adjacent columns of a row are one 32-bit word. Pairs of columns are therefore a transpose of words, and a
 * transpose of elements is a transpose of pairs of rows. P and dS are rounded to bf16. Scores and sums over keys (l,
 * delta) remain float. */
#include "tile.h"

#if HAVE_BF16_UNITS

typedef struct bf16_tiles {
    uint16_t *rows;               /* [64][dp]: queries, then gradients of out */
    uint32_t *q_cols, *do_cols;   /* [dp/2][TQ] pairs of columns */
    uint32_t *q_pairs, *do_pairs; /* [TQ/2][dp] pairs of queries */
    uint16_t *k, *v;              /* [TK][dp] */
    uint16_t *turned;             /* [dp][TK]: V or K transposed */
    uint32_t *pairs;              /* [TK/2][dp]: pairs of rows, for the transpose */
    float *acc;                   /* [dp][TQ]: sum of out or dq */
    float *s, *ds, *drop;         /* [TK][TQ] */
    uint16_t *p_rows, *ds_rows;   /* [TK][TQ] */
    uint32_t *p_pairs;            /* [TK/2][TQ]: P or dS in pairs of keys */
} bf16_tiles;

/* Divide scratch of tiles_elems(dp) floats: 9 * TQ / 2 + TQ of dp are less than its 7 TQ dp, and 3 + 3 / 2 of TK TQ
 * less than its 5. */
static bf16_tiles carve_bf16(float *p, int64_t dp)
{
    bf16_tiles t = {0};
    void **const of_dp[] = {(void **)&t.rows,    (void **)&t.q_cols,   (void **)&t.do_cols,
                            (void **)&t.q_pairs, (void **)&t.do_pairs, (void **)&t.k,
                            (void **)&t.v,       (void **)&t.turned,   (void **)&t.pairs};
    void **const squares[] = {(void **)&t.p_rows, (void **)&t.ds_rows, (void **)&t.p_pairs};
    for (size_t i = 0; i < sizeof of_dp / sizeof of_dp[0]; i++, p += TQ / 2 * dp) *of_dp[i] = p;
    t.acc = p, p += TQ * dp;
    t.s = p, p += TK * TQ;
    t.ds = p, p += TK * TQ;
    t.drop = p, p += TK * TQ;
    for (size_t i = 0; i < 3; i++, p += TK * TQ / 2) *squares[i] = p;
    return t;
}

/* ---- moving tiles ------------------------------------------------------------------------------------------------ */

/* dst [64][dp] = n rows of src, padded with zeros. */
static void copy_rows(uint16_t *restrict dst, const uint16_t *restrict src, int64_t ld, int64_t n, int64_t d,
                      int64_t dp)
{
    for (int64_t i = 0; i < n; i++) {
        for (int64_t c = 0; c < d; c++) dst[i * dp + c] = src[i * ld + c];
        for (int64_t c = d; c < dp; c++) dst[i * dp + c] = 0;
    }
    memset(dst + n * dp, 0, (size_t)((64 - n) * dp) * sizeof *dst);
}

/* dst [n/2][dp]: rows 2i in the lower halves of words, rows 2i + 1 in the upper ones. */
static void pair_rows(uint32_t *restrict dst, const uint16_t *restrict rows, int64_t n, int64_t dp)
{
    for (int64_t i = 0; i < n / 2; i++)
        SIMD_FOR (int64_t c = 0; c < dp; c++)
            dst[i * dp + c] = (uint32_t)rows[2 * i * dp + c] | (uint32_t)rows[(2 * i + 1) * dp + c] << 16;
}

/* turned [dp][TK] = rows [TK][dp] transposed. */
static void turn(const bf16_tiles *t, const uint16_t *rows, int64_t dp)
{
    pair_rows(t->pairs, rows, TK, dp);
    transpose_words((uint32_t *)(void *)t->turned, t->pairs, TK / 2, dp);
}

static void load_keys(const dt_attention *at, const dt_attention_args *a, int seq, int kv_head, int32_t key,
                      int32_t n_keys, const bf16_tiles *t, int64_t dp)
{
    const widths w = widths_of(at);
    const int64_t first = (at->kv_start[seq] + key) * at->kv_ld;
    copy_rows(t->k, (const uint16_t *)a->k + first + kv_head * w.qk, at->kv_ld, n_keys, w.qk, dp);
    copy_rows(t->v, (const uint16_t *)a->v + first + kv_head * w.v, at->kv_ld, n_keys, w.v, dp);
}

/* Two floats as bf16, the first in the lower half. Rounds as dt_bf16_from_float, without its case for NaN: results of
 * arithmetic are quiet NaNs. */
INLINE uint32_t round_up_half(float f)
{
    const uint32_t u = bits_of(f);
    return u + 0x7fffu + ((u >> 16) & 1u);
}
INLINE uint32_t pair_of(float low, float high)
{
    return round_up_half(low) >> 16 | (round_up_half(high) & 0xffff0000u);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* As exponentials() of attention.c. Stores P in pairs of keys, times the dropout factors f (NULL: none). Rows from
 * n_keys up to a multiple of 32 are zero. */
static bool exponentials(const bf16_tiles *t, running *r, int32_t n_keys, int32_t n, float *restrict alpha,
                         const float *restrict f)
{
    float max[TQ], sum[TQ];
    const float *restrict s = t->s;
    uint32_t *restrict pairs = t->p_pairs;
    const bool moved = raise_maxima(r, s, n_keys, n, alpha, max, sum);
    for (int32_t j = 0; j < (int32_t)round_up(n_keys, 32); j += 2) {
        const float *lower = s + j * TQ, *upper = lower + TQ, *fl = f ? f + j * TQ : NULL;
        if (j + 1 < n_keys && !f) {
            SIMD_FOR (int32_t i = 0; i < n; i++) {
                const float e0 = exp_below(lower[i] - max[i]), e1 = exp_below(upper[i] - max[i]);
                sum[i] += e0 + e1;
                pairs[j / 2 * TQ + i] = pair_of(e0, e1);
            }
            continue;
        }
        const float one = j < n_keys ? 1.0f : 0.0f, two = j + 1 < n_keys ? 1.0f : 0.0f;
        for (int32_t i = 0; i < n; i++) {
            const float e0 = one == 0.0f ? 0.0f : exp_below(lower[i] - max[i]),
                        e1 = two == 0.0f ? 0.0f : exp_below(upper[i] - max[i]);
            sum[i] += e0 + e1;
            pairs[j / 2 * TQ + i] =
                f ? pair_of(one == 0.0f ? 0.0f : e0 * fl[i], two == 0.0f ? 0.0f : e1 * fl[TQ + i]) : pair_of(e0, e1);
        }
    }
    SIMD_FOR (int32_t i = 0; i < n; i++) r->sum[i] = FMA(r->sum[i], alpha[i], sum[i]);
    return moved;
}

/* As attention_forward. */
void ISA_NAME(attention_forward_bf16)(const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part)
{
    const widths w = widths_of(at);
    const int64_t d = w.qk, dp = w.padded, row = at->q_start[part->seq] + part->first;
    const int kv_head = part->head / (at->n_heads / at->n_kv_heads);
    const int32_t n = (int32_t)round_up(part->n, 16);
    const bf16_tiles t = carve_bf16(part->scratch, dp);
    visible vis;
    running r;
    float alpha[TQ];
    find_visible(&vis, at, part->seq, part->first, part->n);
    for (int32_t i = 0; i < TQ; i++) r.max[i] = -INFINITY, r.sum[i] = 0.0f;
    copy_rows(t.rows, (const uint16_t *)a->q + row * at->q_ld + part->head * d, at->q_ld, part->n, d, dp);
    transpose_words(t.q_cols, (const uint32_t *)(const void *)t.rows, TQ, dp / 2);
    memset(t.acc, 0, (size_t)(dp * TQ) * sizeof(float));
    for (int32_t key = vis.least_from / TK * TK; key < vis.most_to; key += TK) {
        const int32_t n_keys = vis.most_to - key < TK ? vis.most_to - key : TK;
        load_keys(at, a, part->seq, kv_head, key, n_keys, &t, dp);
        turn(&t, t.v, dp);
        part->unit->matmul(round_up(n_keys, 16), n, dp, t.k, dp, t.q_cols, TQ, t.s, TQ, false);
        modify_scores(t.s, at, at->scale, &vis, key, n_keys, n);
        if (at->dropout_p > 0) {
            memset(t.drop, 0, TK * TQ * sizeof(float));
            dropout_factors(t.drop, at, at->token_key + row, part->head, key, n_keys, part->n);
        }
        if (exponentials(&t, &r, n_keys, n, alpha, at->dropout_p > 0 ? t.drop : NULL)) rescale(t.acc, w.v, n, alpha);
        part->unit->matmul(dp, n, round_up(n_keys, 32), t.turned, TK, t.p_pairs, TQ, t.acc, TQ, true);
    }
    finish(at, DT_BF16, a, part, &r, t.acc, t.s);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* A loaded tile of queries of one head. */
typedef struct query_tile {
    visible vis;
    int head;
    int32_t n, n_padded;
    int64_t row;
    float lse[TQ], delta[TQ];
} query_tile;

/* Load Q and dO in pairs of columns, for scores, and in pairs of queries, for dk and dv. */
static void load_queries(query_tile *qt, const dt_attention *at, const dt_attention_args *a, int seq, int head,
                         int32_t first, int32_t n, const bf16_tiles *t, int64_t dp)
{
    const widths w = widths_of(at);
    const int64_t d = w.qk, row = at->q_start[seq] + first;
    qt->head = head, qt->n = n, qt->n_padded = (int32_t)round_up(n, 32), qt->row = row;
    find_visible(&qt->vis, at, seq, first, n);
    if (n < qt->n_padded) qt->vis.least_to = 0; /* padding up to 32 attends to no key */
    for (int32_t i = 0; i < TQ; i++) {
        qt->lse[i] = i < n ? a->lse[(row + i) * at->n_heads + head] : 0.0f;
        qt->delta[i] = i < n ? a->delta[(row + i) * at->n_heads + head] : 0.0f;
    }
    copy_rows(t->rows, (const uint16_t *)a->q + row * at->q_ld + head * d, at->q_ld, n, d, dp);
    transpose_words(t->q_cols, (const uint32_t *)(const void *)t->rows, TQ, dp / 2);
    pair_rows(t->q_pairs, t->rows, TQ, dp);
    copy_rows(t->rows, (const uint16_t *)a->dout + row * at->o_ld + head * w.v, at->o_ld, n, w.v, dp);
    transpose_words(t->do_cols, (const uint32_t *)(const void *)t->rows, TQ, dp / 2);
    pair_rows(t->do_pairs, t->rows, TQ, dp);
}

/* f p and ds of one key and query; f: the dropout factor. */
typedef struct tile_value {
    float fp, ds;
} tile_value;
INLINE tile_value value_of(float s, float dp, score_rule r, float lse, float delta, float f, bool seen, bool is_capped)
{
    const capped c = is_capped ? cap_score(r, s * r.scale) : (capped){0.0f, 1.0f};
    const float e = exp_below(is_capped ? c.score - lse : FMA(s, r.scale, -lse)), p = seen ? e : 0.0f,
                ds = p * FMA(f, dp, -delta) * c.slope;
    return (tile_value){f * p, seen ? ds : 0.0f}; /* masked values may be infinite */
}

/* Compute P and dS of keys key+j and key+j+1 from their scores t->s and products t->ds: in rows, and dS also in pairs
 * of the two keys. masked: a query may not attend to them. drop: t->drop has factors. The flags are compile-time
 * constants. */
INLINE void form_two_keys(const query_tile *qt, const dt_attention *at, int32_t key, int32_t j, int32_t n_keys,
                          const bf16_tiles *t, bool masked, bool drop, bool is_capped)
{
    const float *restrict s = t->s + j * TQ, *restrict dp = t->ds + j * TQ, *restrict f = t->drop + j * TQ;
    uint16_t *restrict p_rows = t->p_rows + j * TQ, *restrict ds_rows = t->ds_rows + j * TQ;
    uint32_t *restrict pairs = t->p_pairs + j / 2 * TQ;
    const int32_t n = qt->n_padded, low = key + j, high = low + 1;
    const score_rule r = rule_of(at);
    const bool has_low = j < n_keys, has_high = j + 1 < n_keys;
    SIMD_FOR (int32_t i = 0; i < n; i++) {
        const bool see_low = (!masked) | (has_low & sees(&qt->vis, i, low));
        const bool see_high = (!masked) | (has_high & sees(&qt->vis, i, high));
        const tile_value x = value_of(s[i], dp[i], r, qt->lse[i], qt->delta[i], drop ? f[i] : 1.0f, see_low, is_capped);
        const tile_value y =
            value_of(s[TQ + i], dp[TQ + i], r, qt->lse[i], qt->delta[i], drop ? f[TQ + i] : 1.0f, see_high, is_capped);
        const uint32_t p = pair_of(x.fp, y.fp), ds = pair_of(x.ds, y.ds);
        p_rows[i] = (uint16_t)p, p_rows[TQ + i] = (uint16_t)(p >> 16);
        ds_rows[i] = (uint16_t)ds, ds_rows[TQ + i] = (uint16_t)(ds >> 16);
        pairs[i] = ds;
    }
}

/* Compute P and dS of the loaded keys in the layouts of the matmuls. Keys from n_keys up to a multiple of 32 are
 * zero. */
static void form_tile(const query_tile *qt, const dt_attention *at, const dt_bf16_unit *unit, int32_t key,
                      int32_t n_keys, const bf16_tiles *t, int64_t dp)
{
    const bool all = all_visible(&qt->vis, key, n_keys) && n_keys % 32 == 0, drop = at->dropout_p > 0;
    const int32_t rows = (int32_t)round_up(n_keys, 32);
    unit->matmul(rows, qt->n_padded, dp, t->k, dp, t->q_cols, TQ, t->s, TQ, false);
    unit->matmul(rows, qt->n_padded, dp, t->v, dp, t->do_cols, TQ, t->ds, TQ, false);
    if (drop) {
        memset(t->drop, 0, TK * TQ * sizeof(float));
        dropout_factors(t->drop, at, at->token_key + qt->row, qt->head, key, n_keys, qt->n);
    }
    for (int32_t j = 0; j < rows; j += 2) {
        if (at->softcap > 0 && drop) {
            form_two_keys(qt, at, key, j, n_keys, t, true, true, true);
        } else if (at->softcap > 0) {
            form_two_keys(qt, at, key, j, n_keys, t, true, false, true);
        } else if (drop) {
            form_two_keys(qt, at, key, j, n_keys, t, true, true, false);
        } else if (!all) {
            form_two_keys(qt, at, key, j, n_keys, t, true, false, false);
        } else {
            form_two_keys(qt, at, key, j, n_keys, t, false, false, false);
        }
    }
}

/* dq_i = scale * acc_i */
static void store_dq(const query_tile *qt, const dt_attention *at, const dt_attention_args *a, const bf16_tiles *t)
{
    float factor[TQ];
    for (int32_t i = 0; i < TQ; i++) factor[i] = at->scale;
    store_transposed((uint16_t *)a->dq + qt->row * at->q_ld + qt->head * at->head_dim, DT_BF16, at->q_ld, t->acc, qt->n,
                     at->head_dim, factor, t->s);
}

/* dq of one head and tile of queries. */
void ISA_NAME(attention_backward_q_bf16)(const dt_attention *at, const dt_attention_args *a,
                                         const dt_attention_part *part)
{
    const int64_t dp = widths_of(at).padded;
    const int kv_head = part->head / (at->n_heads / at->n_kv_heads);
    const bf16_tiles t = carve_bf16(part->scratch, dp);
    query_tile qt;
    load_queries(&qt, at, a, part->seq, part->head, part->first, part->n, &t, dp);
    memset(t.acc, 0, (size_t)(dp * TQ) * sizeof(float));
    for (int32_t key = qt.vis.least_from / TK * TK; key < qt.vis.most_to; key += TK) {
        const int32_t n_keys = qt.vis.most_to - key < TK ? qt.vis.most_to - key : TK;
        load_keys(at, a, part->seq, kv_head, key, n_keys, &t, dp);
        turn(&t, t.k, dp);
        form_tile(&qt, at, part->unit, key, n_keys, &t, dp);
        part->unit->matmul(dp, qt.n_padded, round_up(n_keys, 32), t.turned, TK, t.p_pairs, TQ, t.acc, TQ, true);
    }
    store_dq(&qt, at, a, &t);
}

/* Add one tile of queries to dk and dv of the part's keys. Computes dq if the part has all keys. */
static void add_queries(const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part, int head,
                        int32_t first, int32_t n, const bf16_tiles *t, int64_t dp)
{
    query_tile qt;
    find_visible(&qt.vis, at, part->seq, first, n);
    const int32_t end = part->first + part->n < qt.vis.most_to ? part->first + part->n : qt.vis.most_to;
    const int32_t begin = qt.vis.least_from / TK * TK > part->first ? qt.vis.least_from / TK * TK : part->first;
    if (begin >= end && !part->with_dq) return;
    load_queries(&qt, at, a, part->seq, head, first, n, t, dp);
    if (part->with_dq) memset(t->acc, 0, (size_t)(dp * TQ) * sizeof(float));
    for (int32_t key = begin; key < end; key += TK) {
        const int32_t n_keys = end - key < TK ? end - key : TK;
        const int64_t rows = round_up(n_keys, 32);
        float *dk = part->dkv + (key - part->first) * dp, *dv = dk + round_up(part->n, TK) * dp;
        load_keys(at, a, part->seq, part->head, key, n_keys, t, dp);
        form_tile(&qt, at, part->unit, key, n_keys, t, dp);
        part->unit->matmul(rows, dp, qt.n_padded, t->p_rows, TQ, t->do_pairs, dp, dv, dp, true);
        part->unit->matmul(rows, dp, qt.n_padded, t->ds_rows, TQ, t->q_pairs, dp, dk, dp, true);
        if (!part->with_dq) continue;
        turn(t, t->k, dp);
        part->unit->matmul(dp, qt.n_padded, rows, t->turned, TK, t->p_pairs, TQ, t->acc, TQ, true);
    }
    if (part->with_dq) store_dq(&qt, at, a, t);
}

/* Convert n rows of d floats, times factor, with row distance dp, to rows of bf16 with row distance ld. */
static void store_rows(uint16_t *dst, int64_t ld, float *src, int64_t n, int64_t d, int64_t dp, float factor)
{
    for (int64_t i = 0; i < n; i++)
        SIMD_FOR (int64_t c = 0; c < d; c++) dst[i * ld + c] = bf16_of(factor * src[i * dp + c]);
}

/* dk and dv of one key head and the part's keys. dk is multiplied by scale at the end, because Q is not scaled. */
void ISA_NAME(attention_backward_kv_bf16)(const dt_attention *at, const dt_attention_args *a,
                                          const dt_attention_part *part)
{
    const widths w = widths_of(at);
    const int64_t dp = w.padded, n_dk = round_up(part->n, TK) * dp;
    const int group = at->n_heads / at->n_kv_heads;
    const int32_t n_q = at->q_start[part->seq + 1] - at->q_start[part->seq];
    const bf16_tiles t = carve_bf16(part->scratch, dp);
    memset(part->dkv, 0, (size_t)(2 * n_dk) * sizeof(float));
    for (int head = part->head * group; head < (part->head + 1) * group; head++)
        for (int32_t first = 0; first < n_q; first += TQ)
            add_queries(at, a, part, head, first, n_q - first < TQ ? n_q - first : TQ, &t, dp);
    const int64_t at_key = (at->kv_start[part->seq] + part->first) * at->kv_ld;
    store_rows((uint16_t *)a->dk + at_key + part->head * w.qk, at->kv_ld, part->dkv, part->n, w.qk, dp, at->scale);
    store_rows((uint16_t *)a->dv + at_key + part->head * w.v, at->kv_ld, part->dkv + n_dk, part->n, w.v, dp, 1.0f);
}
#endif
