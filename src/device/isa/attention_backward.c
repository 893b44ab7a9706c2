/* attention_backward.c - gradients of softmax attention. Probabilities are recomputed from lse (Dao et al.,
 * arXiv:2205.14135, algorithm 4). Per query i and key j, with s = scale q.k, D_i = dout_i . out_i and f the dropout
 * factor:
 *     p = e^(s - lse_i)      dp = f dout_i . v_j      ds = p (dp - D_i)      (times the slope of soft-capping)
 *     dv_j += f p dout_i     dq_i += scale ds k_j     dk_j += ds (scale q_i)
 *
 * One pass over pairs of tiles computes all three gradients. One thread makes this pass for a sequence and key head. If
 * there are more threads, one pass per tile of keys computes dk and dv, and one per tile of queries computes dq. Both
 * recompute p. The sums and their order are the same, so the bits are too. */
#include "tile.h"

/* D_i = sum over c of dout_ic out_ic, for tokens first .. first+n-1 and every head: delta [n_tok][n_heads]. It equals
 * the sum over keys of p_ij dp_ij in the gradient of the softmax, also with dropout, because out contains f p. */
INLINE void delta_body(const dt_attention *at, const void *out, const void *dout, int64_t first, int64_t n,
                       float *delta, dt_dtype T)
{
    for (int64_t t = first; t < first + n; t++)
        for (int64_t h = 0; h < at->n_heads; h++) {
            float sum = 0;
            const int64_t d = dt_attention_v_dim(at), row = t * at->o_ld + h * d;
            _Pragma("omp simd reduction(+ : sum)") for (int64_t c = 0; c < d; c++) sum =
                FMA(load(out, T, row + c), load(dout, T, row + c), sum);
            delta[t * at->n_heads + h] = sum;
        }
}
void ISA_NAME(attention_delta)(const dt_attention *at, const void *out, const void *dout, int64_t first, int64_t n,
                               float *delta)
{
    BY_TYPE(at->dt, T, delta_body(at, out, dout, first, n, delta, T));
}

/* For n heads, starting at first: grad[h] = - sum over tokens, in order, of e^(sink_h - lse) D. The first factor is the
 * probability of the sink, whose dp is 0. */
void ISA_NAME(attention_sinks)(const dt_attention *at, const float *lse, const float *delta, int64_t first, int64_t n,
                               double *grad)
{
    for (int64_t h = first; h < first + n; h++) grad[h - first] = 0;
    for (int64_t t = 0; t < at->n_tok; t++)
        for (int64_t h = first; h < first + n; h++) {
            const float sink = load(at->sinks, at->dt, h), l = lse[t * at->n_heads + h];
            const float p = l == -INFINITY ? 0.0f : exp_f(sink - l); /* a sink of -inf, and no key */
            grad[h - first] -= (double)(p * delta[t * at->n_heads + h]);
        }
}

/* A loaded tile of queries of one head. */
typedef struct query_tile {
    visible vis;
    int head;
    int32_t n, n_padded; /* queries; columns with padding */
    int64_t row;         /* of the first in the batch */
    float lse[TQ], delta[TQ];
} query_tile;

/* Load scale Q and dO as rows into t->q_rows and t->do_rows [TQ][dp], and transposed into t->qt and t->dot [dp][TQ].
 * Columns without a query are zero, so they add nothing to dk and dv. */
static void load_queries(query_tile *qt, const dt_attention *at, const dt_attention_args *a, int seq, int head,
                         int32_t first, int32_t n, const tiles *t, int64_t dp)
{
    const widths w = widths_of(at);
    const int64_t d = w.qk, row = at->q_start[seq] + first;
    qt->head = head, qt->n = n, qt->n_padded = (int32_t)round_up(n, LANES), qt->row = row;
    find_visible(&qt->vis, at, seq, first, n);
    for (int32_t i = 0; i < TQ; i++) {
        qt->lse[i] = i < n ? a->lse[(row + i) * at->n_heads + head] : 0.0f;
        qt->delta[i] = i < n ? a->delta[(row + i) * at->n_heads + head] : 0.0f;
    }
    load_rows(t->q_rows, cpu_at(a->q, at->dt, row * at->q_ld + head * d), at->dt, at->q_ld, n, d, dp, at->scale);
    load_rows(t->do_rows, cpu_at(a->dout, at->dt, row * at->o_ld + head * w.v), at->dt, at->o_ld, n, w.v, dp, 1.0f);
    transpose_in(t->qt, t->q_rows, n, dp);
    transpose_in(t->dot, t->do_rows, n, dp);
}

/* Load rows key .. key+n_keys-1 of K and V into t->k and t->v [TK][dp]. */
static void load_keys(const dt_attention *at, const dt_attention_args *a, int seq, int kv_head, int32_t key,
                      int32_t n_keys, const tiles *t, int64_t dp)
{
    const widths w = widths_of(at);
    const int64_t first = (at->kv_start[seq] + key) * at->kv_ld;
    load_rows(t->k, cpu_at(a->k, at->dt, first + kv_head * w.qk), at->dt, at->kv_ld, n_keys, w.qk, dp, 1.0f);
    load_rows(t->v, cpu_at(a->v, at->dt, first + kv_head * w.v), at->dt, at->kv_ld, n_keys, w.v, dp, 1.0f);
}

/* Replace t->s by f p and t->dp by ds, for the loaded keys. The flags are compile-time constants. */
INLINE void form_as(const query_tile *qt, const dt_attention *at, int32_t key, int32_t n_keys, const tiles *t,
                    bool masked, bool drop, bool is_capped)
{
    const score_rule r = rule_of(at);
    const int32_t n = qt->n_padded;
    for (int32_t j = 0; j < n_keys; j++) {
        float *restrict s = t->s + j * TQ, *restrict ds = t->dp + j * TQ;
        const float *restrict f = t->drop + j * TQ;
        SIMD_FOR (int32_t i = 0; i < n; i++) {
            const capped c = is_capped ? cap_score(r, s[i]) : (capped){s[i], 1.0f};
            const bool seen = !masked || sees(&qt->vis, i, key + j);
            const float e = exp_below(c.score - qt->lse[i]), p = seen ? e : 0.0f, fi = drop ? f[i] : 1.0f,
                        d = p * (fi * ds[i] - qt->delta[i]) * c.slope;
            ds[i] = (drop ? p != 0.0f : seen) ? d : 0.0f; /* masked values may be infinite */
            s[i] = fi * p;
        }
    }
}
/* Not inlined, so that the usual loops stay compact. */
static __attribute__((noinline)) void form_capped(const query_tile *qt, const dt_attention *at, int32_t key,
                                                  int32_t n_keys, const tiles *t)
{
    if (at->dropout_p > 0)
        form_as(qt, at, key, n_keys, t, true, true, true);
    else
        form_as(qt, at, key, n_keys, t, true, false, true);
}

static void form_tile(const query_tile *qt, const dt_attention *at, int32_t key, int32_t n_keys, const tiles *t,
                      int64_t dp)
{
    const int32_t n = qt->n_padded;
    const bool all = all_visible(&qt->vis, key, n_keys), drop = at->dropout_p > 0;
    tile_matmul(false, n_keys, n, at->head_dim, t->k, dp, t->qt, TQ, t->s, TQ, false);
    tile_matmul(false, n_keys, n, dt_attention_v_dim(at), t->v, dp, t->dot, TQ, t->dp, TQ, false);
    if (drop) {
        memset(t->drop, 0, TK * TQ * sizeof(float));
        dropout_factors(t->drop, at, at->token_key + qt->row, qt->head, key, n_keys, qt->n);
    }
    if (at->softcap > 0) {
        form_capped(qt, at, key, n_keys, t);
    } else if (drop) {
        form_as(qt, at, key, n_keys, t, true, true, false);
    } else if (!all) {
        form_as(qt, at, key, n_keys, t, true, false, false);
    } else {
        form_as(qt, at, key, n_keys, t, false, false, false);
    }
}

/* Store the part's rows of dq: dq_i = scale * acc_i. */
static void store_dq(const query_tile *qt, const dt_attention *at, const dt_attention_args *a, const tiles *t)
{
    float factor[TQ];
    for (int32_t i = 0; i < TQ; i++) factor[i] = at->scale;
    store_transposed(cpu_at_w(a->dq, at->dt, qt->row * at->q_ld + qt->head * at->head_dim), at->dt, at->q_ld, t->acc,
                     qt->n, at->head_dim, factor, t->s);
}

/* dq of one head and tile of queries: acc^T = K^T dS^T, summed over tiles of keys in order. */
void ISA_NAME(attention_backward_q)(const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part)
{
    const int64_t d = at->head_dim, dp = widths_of(at).padded;
    const int kv_head = part->head / (at->n_heads / at->n_kv_heads);
    const tiles t = carve(part->scratch, dp);
    query_tile qt;
    load_queries(&qt, at, a, part->seq, part->head, part->first, part->n, &t, dp);
    memset(t.acc, 0, (size_t)(dp * TQ) * sizeof(float));
    for (int32_t key = qt.vis.least_from / TK * TK; key < qt.vis.most_to; key += TK) {
        const int32_t n_keys = qt.vis.most_to - key < TK ? qt.vis.most_to - key : TK;
        load_keys(at, a, part->seq, kv_head, key, n_keys, &t, dp);
        form_tile(&qt, at, key, n_keys, &t, dp);
        tile_matmul(true, d, qt.n_padded, n_keys, t.k, dp, t.dp, TQ, t.acc, TQ, true);
    }
    store_dq(&qt, at, a, &t);
}

/* Add one tile of queries to dk and dv of the part's keys. Computes dq if the part has all keys. */
static void add_queries(const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part, int head,
                        int32_t first, int32_t n, const tiles *t, int64_t dp)
{
    const int64_t d = at->head_dim;
    query_tile qt;
    find_visible(&qt.vis, at, part->seq, first, n);
    const int32_t end = part->first + part->n < qt.vis.most_to ? part->first + part->n : qt.vis.most_to;
    const int32_t begin = qt.vis.least_from / TK * TK > part->first ? qt.vis.least_from / TK * TK : part->first;
    if (begin >= end && !part->with_dq) return;
    load_queries(&qt, at, a, part->seq, head, first, n, t, dp);
    if (part->with_dq) memset(t->acc, 0, (size_t)(dp * TQ) * sizeof(float));
    for (int32_t key = begin; key < end; key += TK) {
        const int32_t n_keys = end - key < TK ? end - key : TK;
        float *dk = part->dkv + (key - part->first) * dp, *dv = dk + round_up(part->n, TK) * dp;
        load_keys(at, a, part->seq, part->head, key, n_keys, t, dp);
        form_tile(&qt, at, key, n_keys, t, dp);
        tile_matmul(false, n_keys, dp, n, t->s, TQ, t->do_rows, dp, dv, dp, true);
        tile_matmul(false, n_keys, dp, n, t->dp, TQ, t->q_rows, dp, dk, dp, true);
        if (part->with_dq) tile_matmul(true, d, qt.n_padded, n_keys, t->k, dp, t->dp, TQ, t->acc, TQ, true);
    }
    if (part->with_dq) store_dq(&qt, at, a, t);
}

/* Convert n rows of d floats, with row distance dp, to rows of dt with row distance ld. */
static void store_rows(void *dst, dt_dtype dt, int64_t ld, const float *src, int64_t n, int64_t d, int64_t dp)
{
    for (int64_t i = 0; i < n; i++)
        ISA_NAME(convert)(&(dt_convert_args){src + i * dp, DT_F32, cpu_at_w(dst, dt, i * ld), dt, d}, 0, d);
}

/* dk and dv of one key head and the part's keys, summed over the query heads that share it and over their tiles of
 * queries. part->dkv: dk, then dv, each [n rounded up to whole tiles][dp]. with_dq: the part has all keys, so a tile of
 * queries completes its dq. */
void ISA_NAME(attention_backward_kv)(const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part)
{
    const widths w = widths_of(at);
    const int64_t dp = w.padded;
    const int group = at->n_heads / at->n_kv_heads;
    const int32_t n_q = at->q_start[part->seq + 1] - at->q_start[part->seq];
    const tiles t = carve(part->scratch, dp);
    memset(part->dkv, 0, (size_t)(2 * round_up(part->n, TK) * dp) * sizeof(float));
    for (int head = part->head * group; head < (part->head + 1) * group; head++)
        for (int32_t first = 0; first < n_q; first += TQ)
            add_queries(at, a, part, head, first, n_q - first < TQ ? n_q - first : TQ, &t, dp);
    const int64_t at_key = (at->kv_start[part->seq] + part->first) * at->kv_ld;
    store_rows(cpu_at_w(a->dk, at->dt, at_key + part->head * w.qk), at->dt, at->kv_ld, part->dkv, part->n, w.qk, dp);
    store_rows(cpu_at_w(a->dv, at->dt, at_key + part->head * w.v), at->dt, at->kv_ld,
               part->dkv + round_up(part->n, TK) * dp, part->n, w.v, dp);
}
