/* attention_forward.cu - softmax attention, forward, on tensor cores (Dao, arXiv:2307.08691). For each tile of keys
 *
 *     m' = max(m, max_j s_j),  a = e^(m - m'),  l <- a l + sum_j e^(s_j - m'),  o <- a o + sum_j e^(s_j - m') v_j
 *
 * and at the end out = o / l, lse = m + log l (end_row). A query without visible keys gives out = 0, lse = -inf.
 *
 * Arrays    those of dt_attention; 16-bit elements.
 * Threads   A block has a tile of queries of one head, a warp 16 or 32 of them: scores, probabilities and sums stay in
 *           its registers.
 * Numerics  Probabilities are rounded to the element type for the matmul with v; l is their sum before rounding. Tiles
 *           of keys begin at multiples of their length in the sequence, and a tile that a query does not attend to does
 *           not change its bits. */
#include "attention_cudnn.h"
#include "attention_mma.cuh"

namespace
{

enum { N_WARPS = 4, THREADS = N_WARPS * WARP };

template <int W, int M, int KEYS> struct shape {
    static constexpr int QUERIES = N_WARPS * 16 * M;
    static constexpr size_t NBYTES = (size_t)(QUERIES + 4 * KEYS) * W * 2;
};

/* out and lse of a tile of queries of one head, one tile per block. The next tile of keys is loaded during the
 * computation. */
template <class T, int W, int M, int KEYS, int BLOCKS, bool EXTRAS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    forward_kernel(dt_attention at, attention_cut cut, attention_arrays<T> a, bool vectors)
{
    constexpr int QUERIES = shape<W, M, KEYS>::QUERIES, ROOM = KEYS * W;
    DYNAMIC_SHARED(T, q);
    T *const stages = q + QUERIES * W; /* [2][2][KEYS][W]: K, V of one tile, and of the other */
    attention_tile t;
    if (!find_tile(at, cut, blockIdx.x, &t)) return;
    const int d = at.head_dim, kv_head = t.head / (at.n_heads / at.n_kv_heads), lane = threadIdx.x % WARP;
    const int n = t.n_q - t.first < QUERIES ? t.n_q - t.first : QUERIES, mine = threadIdx.x / WARP * 16 * M;
    const attention_range keys = keys_of(at, t, t.first, n), my_keys = keys_of(at, t, t.first + mine, 16 * M);
    const T *k = a.k + t.kv_row * at.kv_ld + kv_head * d, *v = a.v + t.kv_row * at.kv_ld + kv_head * d;
    const auto load_keys = [&](int key, T *stage) {
        const int n_keys = t.n_kv - key < KEYS ? t.n_kv - key : KEYS;
        load_tile<T, W, KEYS, THREADS>(stage, k + key * at.kv_ld, at.kv_ld, n_keys, d, vectors);
        load_tile<T, W, KEYS, THREADS>(stage + ROOM, v + key * at.kv_ld, at.kv_ld, n_keys, d, vectors);
        copy_async_commit();
    };
    running<M, KEYS / 8, W / 8> r;
    r.clear();
    int key = keys.from / KEYS * KEYS, which = 0;
    if (key < keys.to) {
        load_tile<T, W, QUERIES, THREADS>(q, a.q + (t.q_row + t.first) * at.q_ld + t.head * d, at.q_ld, n, d, vectors);
        load_keys(key, stages);
    }
    for (; key < keys.to; key += KEYS, which ^= 1) {
        const T *stage = stages + which * 2 * ROOM;
        copy_async_wait<0>();
        __syncthreads(); /* the tile is loaded, and no warp reads the other stage */
        if (key + KEYS < keys.to) load_keys(key + KEYS, stages + (which ^ 1) * 2 * ROOM);
        if (key >= my_keys.to || key + KEYS <= my_keys.from) continue;
        float s[M][KEYS / 8][4];
        uint32_t p[M][KEYS / 16][4];
        multiply_rows<T, W>(s, q, mine, stage, 0);
        if (EXTRAS && at.softcap > 0) cap_scores(s, at);
        if (key < my_keys.all_from || key + KEYS > my_keys.all_to) {
            int to[M][2];
            for (int m = 0; m < M; m++)
                for (int h = 0; h < 2; h++) to[m][h] = seen_to(at, t, t.first + mine + 16 * m + 8 * h + lane / 4);
            mask_scores(s, at, to, key);
        }
        r.exponentials(s, at.scale * LOG2_E);
        if (EXTRAS && at.dropout_p > 0) drop(s, at, t, t.first + mine, key);
        pack_weights<T>(p, s);
        add_weighted_rows<T, W>(r.o, p, stage + ROOM, 0);
    }
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int query = t.first + mine + 16 * m + 8 * h + lane / 4;
            const row_end end = end_row(at, t.head, r.max[m][h], quad_sum(r.sum[m][h]));
            if (query >= t.n_q) continue;
            const int64_t row = t.q_row + query;
            store_sums(r.o[m], h, end.factor, a.out_w + row * at.o_ld + t.head * d, d, vectors);
            if (a.lse_w && lane % 4 == 0) a.lse_w[row * at.n_heads + t.head] = end.lse;
        }
}

template <class T, int W, int M, int KEYS, int BLOCKS, bool EXTRAS>
dt_err forward(dt_stream *s, const dt_attention &at, const attention_arrays<T> &a, bool vectors)
{
    using tiles = shape<W, M, KEYS>;
    const attention_cut cut = {false, tiles::QUERIES, at.n_heads, attention_heads_at_once(&at, at.n_heads)};
    const auto kernel = forward_kernel<T, W, M, KEYS, BLOCKS, EXTRAS>;
    CUDA_ALLOW_SHARED(kernel, tiles::NBYTES);
    launch(s, (unsigned)attention_blocks(&at, cut), THREADS, tiles::NBYTES, kernel, at, cut, a, vectors);
    CUDA_LAUNCHED();
    return DT_OK;
}

template <class T, bool EXTRAS>
dt_err forward_by_width(dt_stream *s, const dt_attention &at, const attention_arrays<T> &a, bool vectors)
{
    if (at.head_dim <= 64) return forward<T, 64, 2, 64, 2, EXTRAS>(s, at, a, vectors);
    if (at.head_dim <= 96) return forward<T, 96, 2, 32, 2, EXTRAS>(s, at, a, vectors);
    if (at.head_dim <= 128) return forward<T, 128, 2, 32, 2, EXTRAS>(s, at, a, vectors);
    return forward<T, 256, 1, 32, 2, EXTRAS>(s, at, a, vectors);
}

template <class T> dt_err forward_of(dt_device *dev, dt_stream *s, const dt_attention &at, const attention_arrays<T> &a)
{
    const int64_t lds = at.q_ld | at.kv_ld | at.o_ld | at.head_dim;
    const bool vectors = vectors_fit((size_t)lds * sizeof(T), a.q, a.k, a.v, a.out_w);
    if (cuda_attention_hopper_takes(dev, at, vectors)) return cuda_attention_hopper_forward(s, at, a);
    if (!cuda_attention_is_usual(at)) return cuda_attention_float_forward(s, at, a);
    return cuda_attention_has_extras(at) ? forward_by_width<T, true>(s, at, a, vectors)
                                         : forward_by_width<T, false>(s, at, a, vectors);
}
template <> dt_err forward_of(dt_device *, dt_stream *s, const dt_attention &at, const attention_arrays<float> &a)
{
    return cuda_attention_float_forward(s, at, a);
}

template <class T> dt_err rows_of(dt_device *dev, dt_stream *s, const dt_attention &at, const attention_arrays<T> &a)
{
    return cuda_attention_is_usual(at) ? cuda_attention_rows(dev, s, at, a) : cuda_attention_float_forward(s, at, a);
}
template <> dt_err rows_of(dt_device *, dt_stream *s, const dt_attention &at, const attention_arrays<float> &a)
{
    return cuda_attention_float_forward(s, at, a); /* always batch-invariant */
}

} // namespace

dt_err cuda_attention_check(const dt_attention *at, dt_attention *checked)
{
    DT_TRY(dt_attention_check(at));
    *checked = *at;
    checked->v_head_dim = dt_attention_v_dim(at);
    if (at->window >= at->max_kv_len) checked->window = 0;
    return DT_OK;
}

dt_err cuda_attention_forward(dt_device *dev, const dt_attention *at, const void *q, const void *k, const void *v,
                              void *out, float *lse, dt_stream *stream)
{
    dt_attention checked;
    DT_TRY(cuda_attention_check(at, &checked));
    DT_CHECK(!at->batch_invariant || (!lse && at->dropout_p == 0), DT_ERR_ARG,
             "internal: attention_forward: batch-invariant attention supports neither lse nor dropout");
    if (at->n_tok == 0) return DT_OK;
    dt_stream *s = cuda_stream(dev, stream, "attention_forward");
    bool taken = false;
    DT_TRY(cuda_cudnn_forward(dev, &checked, q, k, v, out, lse, s, &taken));
    if (taken) return DT_OK;
    CUDA_BY_DTYPE(at->dt, T, "attention_forward", {
        attention_arrays<T> a = {};
        a.q = (const T *)q, a.k = (const T *)k, a.v = (const T *)v, a.out_w = (T *)out, a.lse_w = lse;
        if (at->batch_invariant) return rows_of<T>(dev, s, checked, a);
        return forward_of<T>(dev, s, checked, a);
    });
}
