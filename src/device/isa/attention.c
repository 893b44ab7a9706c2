/* attention.c - softmax attention forward, a tile of queries at a time, with running maximum and sum (Milakov and
 * Gimelshein, arXiv:1805.02867; Dao et al., arXiv:2205.14135, algorithm 1). For each tile of keys, per query (a lane of
 * every vector):
 *     m' = max(m, max_j s_j),  a = e^(m - m'),  l <- a l + sum_j e^(s_j - m'),  o <- a o + sum_j e^(s_j - m') v_j
 * and at the end out = o / l, lse = m + log l. A query that sees no key gives out = 0, lse = -inf. */
#include "tile.h"

int64_t ISA_NAME(attention_scratch)(int head_dim) { return tiles_elems(round_up(head_dim, DT_ATTENTION_PAD)); }

/* Replace scores [n_keys][n] by exp(s - max). Returns whether a maximum increased. alpha [n]: out, the factors of
 * earlier sums. */
static bool exponentials(float *restrict s, running *r, int32_t n_keys, int32_t n, float *restrict alpha)
{
    float max[TQ], sum[TQ];
    const bool moved = raise_maxima(r, s, n_keys, n, alpha, max, sum);
    for (int32_t j = 0; j < n_keys; j++)
        SIMD_FOR (int32_t i = 0; i < n; i++) {
            const float e = exp_below(s[j * TQ + i] - max[i]);
            s[j * TQ + i] = e;
            sum[i] += e;
        }
    SIMD_FOR (int32_t i = 0; i < n; i++) r->sum[i] = FMA(r->sum[i], alpha[i], sum[i]);
    return moved;
}

/* One head, queries first .. first+n-1 of a sequence, n <= TQ. Tiles of keys begin at multiples of TK in the sequence,
 * also with a window. The order of a query's sums therefore does not depend on its part. */
void ISA_NAME(attention_forward)(const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part)
{
    const widths w = widths_of(at);
    const int64_t d = w.qk, dp = w.padded, row = at->q_start[part->seq] + part->first,
                  kv_head = part->head / (at->n_heads / at->n_kv_heads), kv_row = at->kv_start[part->seq];
    const int32_t n = (int32_t)round_up(part->n, LANES);
    const tiles t = carve(part->scratch, dp);
    visible vis;
    running r;
    float alpha[TQ];
    find_visible(&vis, at, part->seq, part->first, part->n);
    for (int32_t i = 0; i < TQ; i++) r.max[i] = -INFINITY, r.sum[i] = 0.0f;
    load_rows(t.q_rows, cpu_at(a->q, at->dt, row * at->q_ld + part->head * d), at->dt, at->q_ld, part->n, d, dp,
              at->scale);
    transpose_in(t.qt, t.q_rows, part->n, dp);
    memset(t.acc, 0, (size_t)(dp * TQ) * sizeof(float));
    for (int32_t key = vis.least_from / TK * TK; key < vis.most_to; key += TK) {
        const int32_t n_keys = vis.most_to - key < TK ? vis.most_to - key : TK;
        const int64_t at_key = (kv_row + key) * at->kv_ld;
        load_rows(t.k, cpu_at(a->k, at->dt, at_key + kv_head * d), at->dt, at->kv_ld, n_keys, d, dp, 1.0f);
        load_rows(t.v, cpu_at(a->v, at->dt, at_key + kv_head * w.v), at->dt, at->kv_ld, n_keys, w.v, dp, 1.0f);
        tile_matmul(false, n_keys, n, d, t.k, dp, t.qt, TQ, t.s, TQ, false);
        modify_scores(t.s, at, 1.0f, &vis, key, n_keys, n);
        if (exponentials(t.s, &r, n_keys, n, alpha)) rescale(t.acc, w.v, n, alpha);
        if (at->dropout_p > 0) {
            dropout_factors(t.drop, at, at->token_key + row, part->head, key, n_keys, part->n);
            for (int32_t j = 0; j < n_keys; j++)
                SIMD_FOR (int32_t i = 0; i < part->n; i++) t.s[j * TQ + i] *= t.drop[j * TQ + i];
        }
        tile_matmul(true, w.v, n, n_keys, t.v, dp, t.s, TQ, t.acc, TQ, true);
    }
    finish(at, at->dt, a, part, &r, t.acc, t.s);
}
