/* tile.h - shared by the passes of attention: matmuls of tiles in a thread's scratch, visibility of keys, softmax.
 *
 * Vectors run along queries: a tile of scores is stored as S^T [key][query]. Maxima and sums over keys are then
 * vertical operations. Only queries are transposed, once per tile. Every matmul has this form, with A broadcast, and B
 * and C in vectors along N:
 *     C[M][N] (+)= sum over p of A(i, p) B[p][N] */
#ifndef DTRAIN_ISA_TILE_H
#define DTRAIN_ISA_TILE_H

#include "kernels.h"
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { TQ = DT_ATTENTION_Q_TILE, TK = DT_ATTENTION_K_TILE };

#if defined(__AVX512F__)
enum { LANES = 16, PANEL = 4, ROWS = 6 }; /* 24 sums, 4 of B, 1 broadcast of 32 registers */
typedef __m512 vec;
INLINE vec v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void v_store(float *p, vec x) { _mm512_storeu_ps(p, x); }
INLINE vec v_set(float x) { return _mm512_set1_ps(x); }
INLINE vec v_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
#elif defined(__AVX2__) && defined(__FMA__)
enum { LANES = 8, PANEL = 2, ROWS = 6 }; /* 12 sums, 2 of B, 1 broadcast of 16 registers */
typedef __m256 vec;
INLINE vec v_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void v_store(float *p, vec x) { _mm256_storeu_ps(p, x); }
INLINE vec v_set(float x) { return _mm256_set1_ps(x); }
INLINE vec v_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
#elif defined(__aarch64__)
/* 24 sums, 4 of B, 1 broadcast of 32 registers. Sets with SVE use these vectors, too, because SVE's have no fixed
 * length */
enum { LANES = 4, PANEL = 4, ROWS = 6 };
typedef float32x4_t vec;
INLINE vec v_load(const float *p) { return vld1q_f32(p); }
INLINE void v_store(float *p, vec x) { vst1q_f32(p, x); }
INLINE vec v_set(float x) { return vdupq_n_f32(x); }
INLINE vec v_fma(vec a, vec b, vec c) { return vfmaq_f32(c, a, b); }
#else
/* any processor with 16 registers of 4 floats: vectors of the compiler */
enum { LANES = 4, PANEL = 2, ROWS = 4 };
typedef float vec __attribute__((vector_size(16)));
INLINE vec v_load(const float *p)
{
    vec x;
    memcpy(&x, p, sizeof x);
    return x;
}
INLINE void v_store(float *p, vec x) { memcpy(p, &x, sizeof x); }
INLINE vec v_set(float x) { return (vec){x, x, x, x}; }
INLINE vec v_fma(vec a, vec b, vec c) { return a * b + c; }
#endif

/* ---- functions of tile.c: compiled once, not at each call ------------------------------------------------------ */

#define tile_matmul ISA_NAME(tile_matmul)
#define load_rows ISA_NAME(load_rows)
#define transpose_words ISA_NAME(transpose_words)
#define store_transposed ISA_NAME(store_transposed)
#define dropout_factors ISA_NAME(dropout_factors)

/* C [m][n] (+)= A [m][k] B [k][n] with row strides lda, ldb, ldc; n is a multiple of LANES. transposed: A is stored
 * [p][i]. Each element is summed over p in order, independent of the blocking of m and n. */
void tile_matmul(bool transposed, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
                 int64_t ldb, float *c, int64_t ldc, bool accumulate);

/* dst [n][dp] = factor * rows of src; elements d to dp are zero. */
void load_rows(float *restrict dst, const void *src, dt_dtype dt, int64_t ld, int64_t n, int64_t d, int64_t dp,
               float factor);

/* dst [width][n_rows] = src [n_rows][width], both multiples of 16. */
void transpose_words(uint32_t *restrict dst, const uint32_t *restrict src, int64_t n_rows, int64_t width);

/* Row i of dst = factor[i] * column i of src [.][TQ]. Transposes 32 rows of src at a time through scratch
 * [2][32][TQ]. */
void store_transposed(void *dst, dt_dtype dt, int64_t ld, const float *restrict src, int64_t n, int64_t d,
                      const float *factor, float *restrict scratch);

/* Dropout of probabilities. factor [n_keys][TQ]: 0 or 1/(1-p). u = word j % 4 of philox(dropout_key, token_key[row],
 * head << 32 | j / 4), as defined by dt_attention. */
void dropout_factors(float *restrict factor, const dt_attention *at, const uint64_t *token_key, int head, int32_t key,
                     int32_t n_keys, int32_t n);

/* ---- rows to tiles and back -------------------------------------------------------------------------------------- */

INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* Elements i .. i+LANES-1 of p as floats. */
INLINE vec load_lanes(const void *p, dt_dtype dt, int64_t i)
{
    if (dt == DT_F32) return v_load((const float *)p + i);
    const uint16_t *from = (const uint16_t *)p + i;
#if defined(__AVX512F__)
    const __m256i halves = _mm256_loadu_si256((const void *)from);
    if (dt == DT_F16) return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
    const __m128i halves = _mm_loadu_si128((const void *)from);
    if (dt == DT_F16) return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
#else
    float x[LANES];
    for (int l = 0; l < LANES; l++) x[l] = load(from, dt, l);
    return v_load(x);
#endif
}

/* Transpose floats, moved as 32-bit words. */
static inline void transpose(float *restrict dst, const float *restrict src, int64_t n_rows, int64_t width)
{
    transpose_words((uint32_t *)(void *)dst, (const uint32_t *)(const void *)src, n_rows, width);
}

/* dst [dp][TQ] = transpose of rows [TQ][dp], of which the first n are valid. Columns from n to the next multiple of
 * LANES are zero. */
static inline void transpose_in(float *restrict dst, float *restrict rows, int64_t n, int64_t dp)
{
    memset(rows + n * dp, 0, (size_t)((round_up(n, LANES) - n) * dp) * sizeof *rows);
    transpose(dst, rows, TQ, dp);
}

/* ---- which keys a query attends to ------------------------------------------------------------------------------- */

/* Queries first .. first+n-1 of a sequence. Query i attends to keys from[i] <= j < to[i]. Columns without a query
 * attend to none. */
typedef struct visible {
    int32_t from[TQ], to[TQ], n_seen[TQ]; /* n_seen = to - from, so that one comparison suffices */
    int32_t least_from, most_to;          /* of the n queries: none attends to keys outside */
    int32_t most_from, least_to;          /* all queries attend to keys from most_from to least_to */
} visible;

/* Keys from .. to-1 that query i of n_q sees, of len, in row `row`: the mask of dt_attention. */
typedef struct key_range {
    int32_t from, to;
} key_range;
INLINE key_range keys_seen(const dt_attention *at, int32_t n_q, int32_t len, int32_t i, int64_t row)
{
    const int32_t pos = len - n_q + i;
    int32_t to = at->bidirectional ? len : pos + 1;
    if (at->block > 1 && pos >= 0) to = (int32_t)dt_min_i64(((int64_t)(pos / at->block) + 1) * at->block, len);
    const int32_t last = to < 0 ? 0 : to;
    if (at->ahead) to = (int32_t)dt_min_i64((int64_t)to + at->ahead[row], len);
    if (to < 0) to = 0;
    return (key_range){at->window > 0 && last > at->window ? last - at->window : 0, to};
}

static inline void find_visible(visible *vis, const dt_attention *at, int seq, int32_t first, int32_t n)
{
    const int32_t n_q = at->q_start[seq + 1] - at->q_start[seq], len = at->kv_len[seq];
    for (int32_t i = 0; i < TQ; i++) {
        const key_range r =
            i < n ? keys_seen(at, n_q, len, first + i, at->q_start[seq] + first + i) : (key_range){0, 0};
        vis->to[i] = r.to, vis->from[i] = r.from;
        vis->n_seen[i] = r.to - r.from;
    }
    vis->least_from = vis->from[0], vis->most_from = vis->from[n - 1];
    vis->least_to = n < round_up(n, LANES) ? 0 : vis->to[0], vis->most_to = vis->to[n - 1];
}

/* Does column i attend to the key? One unsigned comparison checks both ends. */
INLINE bool sees(const visible *vis, int32_t i, int32_t key)
{
    return (uint32_t)(key - vis->from[i]) < (uint32_t)vis->n_seen[i];
}
/* Do all columns attend to keys key .. key+n_keys-1? Then no mask is needed. */
INLINE bool all_visible(const visible *vis, int32_t key, int32_t n_keys)
{
    return vis->most_from <= key && key + n_keys <= vis->least_to;
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

/* The score of x = scale q.k, and its derivative: cap tanh(x / cap) and 1 - tanh^2(x / cap). Every kernel of
 * this platform that supports soft-capping calls this function. */
typedef struct score_rule {
    float scale, cap, inverse; /* 1 / cap */
} score_rule;
typedef struct capped {
    float score, slope;
} capped;
INLINE score_rule rule_of(const dt_attention *at) { return (score_rule){at->scale, at->softcap, 1.0f / at->softcap}; }
INLINE capped cap_score(score_rule r, float x)
{
    const float t = tanh_f(x * r.inverse);
    return (capped){r.cap * t, FMA(-t, t, 1.0f)};
}

/* s [n_keys][TQ], of which n columns count: products times factor become scores. A key that a query does not see has
 * the score -inf, so that its probability is exactly 0. key: number in the sequence of the first row. */
INLINE void modify_as(float *s, score_rule r, float factor, const visible *vis, int32_t key, int32_t n_keys, int32_t n,
                      bool is_capped, bool masked)
{
    for (int32_t j = 0; j < n_keys; j++)
        SIMD_FOR (int32_t i = 0; i < n; i++) {
            const float x = s[j * TQ + i] * factor; /* loaded either way: gcc 12 gives up on loads under a condition */
            const float score = is_capped ? cap_score(r, x).score : x;
            s[j * TQ + i] = !masked || sees(vis, i, key + j) ? score : -INFINITY;
        }
}
INLINE void modify_scores(float *s, const dt_attention *at, float factor, const visible *vis, int32_t key,
                          int32_t n_keys, int32_t n)
{
    const score_rule r = rule_of(at);
    if (at->softcap > 0) {
        modify_as(s, r, factor, vis, key, n_keys, n, true, true);
    } else if (!all_visible(vis, key, n_keys)) {
        modify_as(s, r, factor, vis, key, n_keys, n, false, true);
    } else if (factor != 1.0f) {
        modify_as(s, r, factor, vis, key, n_keys, n, false, false);
    }
}

/* The end of a row's softmax, from its maximum m and sum l of e^(s - m): the factor of its weighted sum of values, and
 * lse. A sink is added to the sum here, because it has no value. */
typedef struct row_end {
    float factor, lse;
} row_end;
INLINE row_end end_row(const dt_attention *at, int head, float m, float l)
{
    if (!at->sinks) return (row_end){l == 0.0f ? 0.0f : 1.0f / l, m + logf(l)}; /* NaN propagates */
    const float sink = load(at->sinks, at->dt, head), most = sink > m ? sink : m,
                base = most == -INFINITY ? 0.0f : most, mine = exp_f(m - base), sum = FMA(l, mine, exp_f(sink - base));
    return (row_end){sum == 0.0f ? 0.0f : mine / sum, base + logf(sum)};
}

/* ---- softmax with running maxima --------------------------------------------------------------------------------- */

/* m and l of each query: the maximum score so far, and the sum of exp(score - m) over all keys so far. */
typedef struct running {
    float max[TQ], sum[TQ];
} running;

/* Update the maxima of r by scores [n_keys][n]. Returns whether a maximum increased. alpha [n]: out, factors of earlier
 * sums. max [n]: out, the new maxima, 0 for -inf. sum [n]: out, zeros. */
INLINE bool raise_maxima(running *r, const float *restrict s, int32_t n_keys, int32_t n, float *restrict alpha,
                         float *restrict max, float *restrict sum)
{
    int moved = 0;
    SIMD_FOR (int32_t i = 0; i < n; i++) max[i] = r->max[i];
    for (int32_t j = 0; j < n_keys; j++)
        SIMD_FOR (int32_t i = 0; i < n; i++) max[i] = s[j * TQ + i] > max[i] ? s[j * TQ + i] : max[i];
    _Pragma("omp simd reduction(| : moved)") for (int32_t i = 0; i < n; i++)
    {
        moved |= max[i] > r->max[i];
        const float base = max[i] == -INFINITY ? 0.0f : max[i];
        alpha[i] = exp_below(r->max[i] - base);
        r->max[i] = max[i];
        max[i] = base;
        sum[i] = 0.0f;
    }
    return moved != 0;
}

/* o <- alpha o for every query: acc [d][TQ], alpha [n]. Not needed if no maximum increased: alpha is then 1. */
static inline void rescale(float *restrict acc, int64_t d, int32_t n, const float *restrict alpha)
{
    for (int64_t c = 0; c < d; c++)
        SIMD_FOR (int32_t i = 0; i < n; i++) acc[c * TQ + i] *= alpha[i];
}

/* out_i = o_i / l_i and lse_i = m_i + log l_i (end_row), for the queries of the part. acc [dp][TQ] is transposed
 * through scratch [TK][TQ]. dt: type of out, a compile-time constant where possible. */
INLINE void finish(const dt_attention *at, dt_dtype dt, const dt_attention_args *a, const dt_attention_part *part,
                   const running *r, const float *acc, float *scratch)
{
    const int64_t d = dt_attention_v_dim(at), row = at->q_start[part->seq] + part->first;
    float factor[TQ] = {0};
    for (int32_t i = 0; i < part->n; i++) {
        const row_end e = end_row(at, part->head, r->max[i], r->sum[i]);
        factor[i] = e.factor;
        if (a->lse_w) a->lse_w[(row + i) * at->n_heads + part->head] = e.lse;
    }
    store_transposed(cpu_at_w(a->out_w, dt, row * at->o_ld + part->head * d), dt, at->o_ld, acc, part->n, d, factor,
                     scratch);
}

/* ---- a thread's scratch ------------------------------------------------------------------------------------------ */

/* Widths of a call's heads: of q and k, of v, and of tiles, which are padded with zeros. */
typedef struct widths {
    int64_t qk, v, padded;
} widths;
INLINE widths widths_of(const dt_attention *at)
{
    const int64_t qk = at->head_dim, v = dt_attention_v_dim(at);
    return (widths){qk, v, round_up(qk > v ? qk : v, DT_ATTENTION_PAD)};
}

typedef struct tiles {
    float *q_rows, *do_rows; /* [TQ][dp], queries times scale */
    float *qt, *dot, *acc;   /* [dp][TQ]: queries, gradients of out, sum of out or of dq */
    float *k, *v;            /* [TK][dp] */
    float *s, *dp, *drop;    /* [TK][TQ]: scores then probabilities, their gradients, dropout factors */
} tiles;

/* Also sufficient for attention_bf16.c, which has more but smaller tiles. */
static inline int64_t tiles_elems(int64_t dp) { return 7 * TQ * dp + 5 * TK * TQ; }
/* Divide scratch at p, of tiles_elems(dp) floats, into tiles. */
static inline tiles carve(float *p, int64_t dp)
{
    tiles t = {0};
    float **const of_dp[] = {&t.q_rows, &t.do_rows, &t.qt, &t.dot, &t.acc, &t.k, &t.v},
                  **const squares[] = {&t.s, &t.dp, &t.drop};
    for (size_t i = 0; i < 7; i++, p += TQ * dp) *of_dp[i] = p;
    for (size_t i = 0; i < 3; i++, p += TK * TQ) *squares[i] = p;
    return t;
}

#endif
