/* attention.cuh - shared by the attention kernels: the tile of a block, the keys that a query attends to, and dropout
 * of probabilities. The equations are at the kernels; the contract is dt_attention's.
 *
 * Work is divided into tiles of queries (or keys) of one head of one sequence. No list of tiles is stored: a block
 * searches the sequence lengths, 32 at a time, for the tile with its index. */
#ifndef DTRAIN_CUDA_ATTENTION_CUH
#define DTRAIN_CUDA_ATTENTION_CUH

#include "philox.cuh"

#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f

/** Arrays of a call, in the layouts of dt_attention. Backward needs two values per query and head: stats
 *  [n_heads][n_tok], x = lse log2(e), y = delta = sum over c of dout_c out_c. */
template <class T> struct attention_arrays {
    const T *q, *k, *v, *dout;
    const float2 *stats;
    T *out_w, *dq, *dk, *dv;
    float *lse_w;
};

/* The first of these kernels that supports a call computes it: cuDNN's (dt_attention_obstacle), Hopper's, those for
 * tensor cores, and those in float, which support every description. Batch-invariant calls have attention_rows.cu, or
 * the kernels in float. */

/* attention_float.cu: forward and backward in float for all element types, without tensor cores. */
template <class T>
dt_err cuda_attention_float_forward(dt_stream *s, const dt_attention &at, const attention_arrays<T> &a);
template <class T>
dt_err cuda_attention_float_backward(dt_stream *s, const dt_attention &at, const attention_arrays<T> &a);

/* attention_rows.cu: batch-invariant, for 16-bit elements. */
template <class T>
dt_err cuda_attention_rows(dt_device *dev, dt_stream *s, const dt_attention &at, const attention_arrays<T> &a);

/** Do all kernels but float's support the shape of heads and the mask? */
static inline bool cuda_attention_is_usual(const dt_attention &at)
{
    return at.v_head_dim == at.head_dim && at.block <= 1 && !at.ahead;
}
/** Instances of attention_forward.cu and attention_backward.cu with EXTRAS compute these, with a few more registers. */
static inline bool cuda_attention_has_extras(const dt_attention &at) { return at.softcap > 0 || at.dropout_p > 0; }

/* attention_hopper.cu: on sm_90. takes: does it support the call? vectors: all rows are aligned to 16 bytes. */
bool cuda_attention_hopper_takes(dt_device *dev, const dt_attention &at, bool vectors);
template <class T>
dt_err cuda_attention_hopper_forward(dt_stream *s, const dt_attention &at, const attention_arrays<T> &a);
template <class T>
dt_err cuda_attention_hopper_backward(dt_stream *s, const dt_attention &at, const attention_arrays<T> &a);

/** Check the description of a call. checked: a copy with v_head_dim set, and without a window that has no effect. */
dt_err cuda_attention_check(const dt_attention *at, dt_attention *checked);

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/** Division of a call into tiles of len rows (queries or keys), for each of n_heads heads. */
struct attention_cut {
    bool by_keys;
    int len, n_heads;
    int heads_at_once; /* heads whose keys and values fit into the cache together; their tiles are adjacent */
    int each = 1;      /* rows per query: 1, or the number of query heads that share a key head */
};

struct attention_tile {
    int head;              /* query head, or key head for tiles of keys */
    int first;             /* first row of the tile in its sequence */
    int n_q, n_kv;         /* of the sequence */
    int64_t q_row, kv_row; /* first rows of the sequence */
    int n_shared;          /* number of first keys that start at shared_row instead of kv_row */
    int64_t shared_row;
};

/** Number of blocks: at least one, and enough for all tiles if there are no more keys than queries (training). */
static inline int64_t attention_blocks(const dt_attention *at, const attention_cut &cut)
{
    const int64_t longest = (int64_t)cut.each * (cut.by_keys ? at->max_kv_len : at->max_q_len),
                  n_rows = (int64_t)cut.each * at->n_tok, alike = at->n_seq * ceil_div(longest, cut.len),
                  packed = n_rows / cut.len + at->n_seq;
    return (alike < packed ? alike : packed) * cut.n_heads;
}

/** Number of key heads whose K and V of the longest sequence need at most 16 MiB, times the query heads that share
 *  them. */
static inline int attention_heads_at_once(const dt_attention *at, int n_heads)
{
    const int64_t nbytes = (int64_t)at->max_kv_len * at->head_dim * 2 * (int64_t)dt_dtype_size(at->dt);
    const int64_t kv_heads = nbytes > 0 ? (16 << 20) / nbytes : n_heads, share = n_heads / at->n_kv_heads,
                  heads = (kv_heads > 1 ? kv_heads : 1) * share;
    return heads < n_heads ? (int)heads : n_heads;
}

/** Set the key rows of sequence s. */
__device__ inline void find_keys(const dt_attention &at, int s, attention_tile *t)
{
    t->kv_row = at.kv_start[s];
    t->n_shared = at.shared_len ? at.shared_len[s] : 0;
    t->shared_row = t->n_shared > 0 ? at.shared_start[s] : 0;
}
/** The row of key 0 if the shared keys directly preceded the others, and the distance in rows from there to the shared
 *  keys. */
__device__ inline int64_t first_key_row(const attention_tile &t) { return t.kv_row - t.n_shared; }
__device__ inline int64_t way_to_shared(const attention_tile &t) { return t.shared_row - first_key_row(t); }

/** Find tile `index`; false after the last. Called by all lanes of a warp, which get the same result. Within a sequence
 *  the tiles with the most work come first: late queries attend to the most keys, early keys are attended by the most
 *  queries. */
__device__ inline bool find_tile(const dt_attention &at, const attention_cut &cut, int64_t index, attention_tile *t)
{
    const int lane = threadIdx.x % WARP;
    for (int begin = 0; begin < at.n_seq; begin += WARP) {
        const int s = begin + lane;
        int n_q = 0, n_kv = 0;
        if (s < at.n_seq) n_q = at.q_start[s + 1] - at.q_start[s], n_kv = at.kv_len[s];
        const int n_tiles = ((cut.by_keys ? n_kv : n_q) * cut.each + cut.len - 1) / cut.len;
        int sum = n_tiles;
#pragma unroll
        for (int d = 1; d < WARP; d *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, sum, d);
            if (lane >= d) sum += other;
        }
        const int64_t end = (int64_t)sum * cut.n_heads;
        const unsigned there = __ballot_sync(0xffffffffu, index < end);
        if (there == 0) {
            index -= __shfl_sync(0xffffffffu, end, WARP - 1);
            continue;
        }
        const int found = __ffs((int)there) - 1;
        const int tiles = __shfl_sync(0xffffffffu, n_tiles, found);
        const int here = (int)(index - __shfl_sync(0xffffffffu, end, found) + (int64_t)tiles * cut.n_heads);
        const int section = here / (tiles * cut.heads_at_once), head = section * cut.heads_at_once;
        const int heads = cut.n_heads - head < cut.heads_at_once ? cut.n_heads - head : cut.heads_at_once;
        const int place = here - head * tiles, tile = place / heads;
        t->head = head + place % heads;
        t->first = (cut.by_keys ? tile : tiles - 1 - tile) * cut.len;
        t->n_q = __shfl_sync(0xffffffffu, n_q, found);
        t->n_kv = __shfl_sync(0xffffffffu, n_kv, found);
        t->q_row = at.q_start[begin + found];
        find_keys(at, begin + found, t);
        return true;
    }
    return false;
}

/* ---- visible keys ------------------------------------------------------------------------------------------------ */

/** Query i attends to the keys seen_from(seen_to(i)) .. seen_to(i) - 1; both may be negative. BLOCKS: the mask may be
 *  block-causal or have keys ahead. */
template <bool BLOCKS = false> __device__ inline int seen_to(const dt_attention &at, const attention_tile &t, int query)
{
    const int pos = t.n_kv - t.n_q + query;
    if (BLOCKS && at.block > 1 && pos >= 0) {
        const int left = at.block - pos % at.block; /* of its block, itself included */
        return left < t.n_kv - pos ? pos + left : t.n_kv;
    }
    if (BLOCKS && at.ahead && query < t.n_q) {
        const int more = at.ahead[t.q_row + query];
        return more < t.n_kv - pos - 1 ? pos + 1 + more : t.n_kv;
    }
    return at.bidirectional ? t.n_kv : pos + 1;
}
__device__ inline int seen_from(const dt_attention &at, int to) { return at.window > 0 ? to - at.window : 0; }
/** As seen_from(seen_to(query)): the window does not depend on the keys ahead. */
template <bool BLOCKS>
__device__ inline int seen_from(const dt_attention &at, const attention_tile &t, int query, int to)
{
    return seen_from(at, BLOCKS && at.ahead ? t.n_kv - t.n_q + query + 1 : to);
}

/** Rows from .. to-1 are needed; pairs with the rows all_from .. all_to-1 need no mask. */
struct attention_range {
    int from, to, all_from, all_to;
};

/** Keys for the queries first .. first + n - 1, n > 0. */
template <bool BLOCKS = false>
__device__ inline attention_range keys_of(const dt_attention &at, const attention_tile &t, int first, int n)
{
    const int last = first + n - 1, to = seen_to<BLOCKS>(at, t, first), last_to = seen_to<BLOCKS>(at, t, last);
    const int from = seen_from<BLOCKS>(at, t, first, to);
    return {from > 0 ? from : 0, last_to, seen_from<BLOCKS>(at, t, last, last_to), to};
}

/** Queries for the keys first .. first + n - 1: query i attends to a key below first + n unless its window begins
 *  later. */
template <bool BLOCKS = false>
__device__ inline attention_range queries_of(const dt_attention &at, const attention_tile &t, int first, int n)
{
    if (at.bidirectional) return {0, t.n_q, 0, t.n_q};
    const int shift = t.n_kv - t.n_q; /* query i attends to keys up to i + shift */
    if (BLOCKS && at.block > 1) {     /* or to the end of that key's block */
        const int last = first + n - 1, from = first - first % at.block - shift;
        return {from > 0 ? from : 0, t.n_q, last - last % at.block - shift, t.n_q};
    }
    const int from = first - shift - (BLOCKS && at.ahead ? at.max_ahead : 0), window = at.window;
    const int to = window > 0 && first + n - 1 + window - shift < t.n_q ? first + n - 1 + window - shift : t.n_q;
    return {from > 0 ? from : 0, to, first + n - 1 - shift,
            window > 0 && first + window - shift < t.n_q ? first + window - shift : t.n_q};
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

/** The score of a product x = q.k, divided by at.scale, and d(score) / dx. With t = tanh(scale x / cap) these are
 *  cap / scale t and 1 - t^2. Every kernel of this platform that supports soft-capping calls this function. */
struct score_rule {
    float in, out;
};
struct capped {
    float score, slope;
};
__device__ inline score_rule rule_of(const dt_attention &at) { return {at.scale / at.softcap, at.softcap / at.scale}; }
__device__ inline capped cap_score(const score_rule &rule, float x)
{
    const float u = x * rule.in, s = u * u; /* near 0, a polynomial (Cephes): 1 - 2 / (1 + e) cancels there */
    float q = fmaf(-0.00570498873f, s, 0.0206390888f);
    q = fmaf(q, s, -0.0537397155f);
    q = fmaf(q, s, 0.133314422f);
    q = fmaf(q, s, -0.333332819f);
    const float e = exp2f(u * (2.0f * LOG2_E)), big = 1.0f - __fdividef(2.0f, 1.0f + e),
                t = s < 0.390625f ? fmaf(u * s, q, u) : big;
    return {rule.out * t, fmaf(-t, t, 1.0f)};
}

/** The end of a row's softmax, from its maximum m of products and sum l of e^(scale (x - m)): what its weighted sum of
 *  values is times, and lse. A sink joins the sum here, since it has no value. */
struct row_end {
    float factor, lse;
};
__device__ inline row_end end_row(const dt_attention &at, int head, float m, float l)
{
    if (!at.sinks) return {l == 0.0f ? 0.0f : 1.0f / l, m * at.scale + logf(l)}; /* NaN is kept */
    const float sink = elements(at.sinks, at.dt)[head], score = m * at.scale, most = sink > score ? sink : score,
                base = most == -INFINITY ? 0.0f : most, mine = exp2f((score - base) * LOG2_E),
                sum = fmaf(l, mine, exp2f((sink - base) * LOG2_E));
    return {sum == 0.0f ? 0.0f : mine / sum, base + logf(sum)};
}

/* ---- dropout ----------------------------------------------------------------------------------------------------- */

/** Random words for the keys 4 group .. 4 group + 3 of a query. */
__device__ inline philox_words dropout_words(const dt_attention &at, uint64_t token_key, int head, int group)
{
    return philox(at.dropout_key, token_key, (uint64_t)(uint32_t)head << 32 | (uint32_t)group);
}
__device__ inline bool dropout_keeps(const dt_attention &at, uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f >= at.dropout_p;
}

#endif
