/* attention_backward.cu - gradients of softmax attention on tensor cores. Probabilities are recomputed from lse (Dao et
 * al., arXiv:2205.14135, algorithm 4).
 *
 * Per query i and key j, with s = scale q.k, delta_i = dout_i . out_i and the dropout factor f:
 *
 *     p = e^(s - lse_i)      dp = f dout_i . v_j      ds = p (dp - delta_i)
 *     dv_j += f p dout_i     dq_i += scale ds k_j     dk_j += scale ds q_i
 *
 * With soft-capping s is cap_score's, and ds is times its slope. The probability of a sink has dp = 0.
 *
 * Arrays    those of dt_attention; 16-bit elements.
 * Threads   One kernel computes dk and dv, with a tile of keys per block; another computes dq, with a tile of queries
 *           per block. Each recomputes p: 7 tile matmuls instead of 5, but no sum is shared between blocks, so results
 *           do not depend on the order of blocks.
 * Numerics  Accumulators of p and ds are used as left operands in their own layout: the first kernel works on
 *           transposed tiles, with keys as rows. p and ds are rounded to the element type there. */
#include "attention_cudnn.h"
#include "attention_mma.cuh"
#include "sums.cuh"

namespace
{

/* ---- delta ------------------------------------------------------------------------------------------------------- */

/* stats [n_heads][n_tok]: lse log2(e), and delta = dout . out, which equals the sum over keys of p_ij dp_ij (with
 * dropout as well, since out contains f p). Threads: `lanes` (a power of 2) per token and head, each reads 16 bytes at
 * a time. */
template <class T>
__global__ void stats_kernel(const T *out, const T *dout, const float *lse, float2 *stats, int64_t n_tok, int n_heads,
                             int d, int64_t ld, int lanes, bool vectors)
{
    constexpr int N = vec16<T>::N;
    const int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / lanes;
    const bool there = i < n_tok * n_heads;
    const int64_t token = i / n_heads, head = i % n_heads, from = token * ld + head * d;
    float sum = 0;
    for (int c = (int)threadIdx.x % lanes * N; there && c < d; c += lanes * N) {
        if (vectors) {
            const vec16<T> x = *reinterpret_cast<const vec16<T> *>(out + from + c),
                           y = *reinterpret_cast<const vec16<T> *>(dout + from + c);
#pragma unroll
            for (int e = 0; e < N; e++) sum = fmaf(to_float(x.x[e]), to_float(y.x[e]), sum);
        } else {
            for (int e = 0; e < N && c + e < d; e++)
                sum = fmaf(to_float(out[from + c + e]), to_float(dout[from + c + e]), sum);
        }
    }
    for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (there && threadIdx.x % lanes == 0) stats[head * n_tok + token] = make_float2(lse[i] * LOG2_E, sum);
}

/* ---- sinks ------------------------------------------------------------------------------------------------------- */

enum { SINK_THREADS = 256 };

/* grad[head] = - sum over tokens of e^(sink - lse) delta. A block per head, so that sums have a fixed order. */
template <class T>
__global__ void __launch_bounds__(SINK_THREADS)
    sinks_kernel(const T *sinks, const float2 *stats, int64_t n_tok, float *grad)
{
    const float sink = to_float(sinks[blockIdx.x]) * LOG2_E;
    float sum = 0;
    for (int64_t t = threadIdx.x; t < n_tok; t += SINK_THREADS) {
        const float2 x = stats[blockIdx.x * n_tok + t];
        const float p = x.x == -INFINITY ? 0.0f : exp2f(sink - x.x); /* a sink of -inf, and no key */
        sum -= p * x.y;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) grad[blockIdx.x] = sum;
}

template <class T> dt_err sinks_backward(dt_stream *s, const dt_attention &at, const float2 *stats)
{
    float *grad = (float *)s->workspace;
    launch(s, (unsigned)at.n_heads, SINK_THREADS, 0, sinks_kernel<T>, (const T *)at.sinks, stats, (int64_t)at.n_tok,
           grad);
    return cuda_add_parts(s, grad, 1, at.n_heads, at.dsinks, NULL, at.dsinks_dtype, at.accumulate_dsinks);
}

/* ---- dk, dv ------------------------------------------------------------------------------------------------------ */

/* Sizes of a pipeline stage (a tile of queries) and of a block. */
template <int W, int M, int N_WARPS, int QUERIES> struct dkv_shape {
    static constexpr int KEYS = 16 * M * N_WARPS, THREADS = N_WARPS * WARP, STAGE = 2 * QUERIES * W;
    static constexpr size_t NBYTES = (size_t)(2 * KEYS * W + 2 * STAGE) * 2 + 2 * QUERIES * sizeof(float2);
};

/* dk and dv of a tile of keys of one key head. A block has one tile, a warp 16 M of its keys. It loops over the query
 * heads that share the key head and their tiles of queries, and loads the next tile while it computes. WITH: 1 computes
 * dv, 2 dk, 3 both; wide heads have no registers for both. */
template <class T, int W, int M, int N_WARPS, int QUERIES, int WITH, int BLOCKS, bool EXTRAS>
__global__ void __launch_bounds__(N_WARPS *WARP, BLOCKS)
    dkv_kernel(dt_attention at, attention_cut cut, attention_arrays<T> a, bool vectors)
{
    using shape = dkv_shape<W, M, N_WARPS, QUERIES>;
    constexpr int KEYS = shape::KEYS, THREADS = shape::THREADS, STAGE = shape::STAGE, ROOM = QUERIES * W;
    DYNAMIC_SHARED(T, k);
    T *const v = k + KEYS * W, *const stages = v + KEYS * W;                    /* [2][2][QUERIES][W]: Q, dO */
    float2 *const stage_stats = reinterpret_cast<float2 *>(stages + 2 * STAGE); /* [2][QUERIES] */
    const int d = at.head_dim, group = at.n_heads / at.n_kv_heads, lane = threadIdx.x % WARP,
              mine = threadIdx.x / WARP * 16 * M;
    attention_tile t;
    for (int64_t index = blockIdx.x; find_tile(at, cut, index, &t); index += gridDim.x) {
        const int n = t.n_kv - t.first < KEYS ? t.n_kv - t.first : KEYS, my_key = t.first + mine;
        const attention_range queries = queries_of(at, t, t.first, n), my_queries = queries_of(at, t, my_key, 16 * M);
        const int first = queries.from / QUERIES * QUERIES,
                  n_tiles = queries.to > first ? (queries.to - first + QUERIES - 1) / QUERIES : 0;
        const int64_t at_key = (t.kv_row + t.first) * at.kv_ld + t.head * d;
        const auto load_queries = [&](int step, int which) {
            const int head = t.head * group + step / n_tiles, query = first + step % n_tiles * QUERIES,
                      n_q = t.n_q - query < QUERIES ? t.n_q - query : QUERIES;
            const int64_t row = t.q_row + query;
            T *stage = stages + which * STAGE;
            load_tile<T, W, QUERIES, THREADS>(stage, a.q + row * at.q_ld + head * d, at.q_ld, n_q, d, vectors);
            load_tile<T, W, QUERIES, THREADS>(stage + ROOM, a.dout + row * at.o_ld + head * d, at.o_ld, n_q, d,
                                              vectors);
            if (threadIdx.x < QUERIES) {
                const bool valid = (int)threadIdx.x < n_q;
                const float2 *from = a.stats + head * (int64_t)at.n_tok + row;
                copy_async_8(stage_stats + which * QUERIES + threadIdx.x, valid ? from + threadIdx.x : from, valid);
            }
            copy_async_commit();
        };
        float dk[M][W / 8][4] = {}, dv[M][W / 8][4] = {};
        if (n_tiles > 0) {
            load_tile<T, W, KEYS, THREADS>(k, a.k + at_key, at.kv_ld, n, d, vectors);
            load_tile<T, W, KEYS, THREADS>(v, a.v + at_key, at.kv_ld, n, d, vectors);
            load_queries(0, 0);
        }
        for (int step = 0; step < n_tiles * group; step++) {
            const int which = step % 2, head = t.head * group + step / n_tiles,
                      query = first + step % n_tiles * QUERIES;
            const T *q = stages + which * STAGE, *dout = q + ROOM;
            copy_async_wait<0>();
            __syncthreads(); /* the tile is loaded, and no warp reads the other stage */
            if (step + 1 < n_tiles * group) load_queries(step + 1, which ^ 1);
            if (query >= my_queries.to || query + QUERIES <= my_queries.from) continue;
            float s[M][QUERIES / 8][4], ds[M][QUERIES / 8][4] = {};
            uint32_t w[M][QUERIES / 16][4];
            multiply_rows<T, W>(s, k, mine, q, 0);
            if (WITH & 2) multiply_rows<T, W>(ds, v, mine, dout, 0);
            const bool all = query >= my_queries.all_from && query + QUERIES <= my_queries.all_to;
#pragma unroll
            for (int m = 0; m < M; m++) {
                const int key = my_key + 16 * m;
                form_transposed<QUERIES / 8, EXTRAS>(s[m], ds[m], stage_stats + which * QUERIES, at, t, head, query,
                                                     key);
                if (all) continue;
                mask_queries(s[m], at, t, query, key);
                mask_queries(ds[m], at, t, query, key);
            }
            if (WITH & 1) {
                pack_weights<T>(w, s);
                add_weighted_rows<T, W>(dv, w, dout, 0);
            }
            if (WITH & 2) {
                pack_weights<T>(w, ds);
                add_weighted_rows<T, W>(dk, w, q, 0);
            }
        }
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int r = mine + 16 * m + 8 * h + lane / 4;
                if (r >= n) continue;
                if (WITH & 1) store_sums(dv[m], h, 1.0f, a.dv + at_key + r * at.kv_ld, d, vectors);
                if (WITH & 2) store_sums(dk[m], h, at.scale, a.dk + at_key + r * at.kv_ld, d, vectors);
            }
        __syncthreads(); /* no warp reads k and v */
    }
}

/* ---- dq ---------------------------------------------------------------------------------------------------------- */

template <int W, int M, int KEYS> struct dq_shape {
    static constexpr int N_WARPS = 4, THREADS = N_WARPS * WARP, QUERIES = N_WARPS * 16 * M;
    static constexpr size_t NBYTES = (size_t)(2 * QUERIES + 4 * KEYS) * W * 2;
};

/* dq of a tile of queries of one head. A block has one tile, a warp 16 M of its queries. */
template <class T, int W, int M, int KEYS, int BLOCKS, bool EXTRAS>
__global__ void __launch_bounds__(dq_shape<W, M, KEYS>::THREADS, BLOCKS)
    dq_kernel(dt_attention at, attention_cut cut, attention_arrays<T> a, bool vectors)
{
    using shape = dq_shape<W, M, KEYS>;
    constexpr int QUERIES = shape::QUERIES, THREADS = shape::THREADS, ROOM = KEYS * W;
    DYNAMIC_SHARED(T, q);
    T *const dout = q + QUERIES * W, *const stages = dout + QUERIES * W; /* [2][2][KEYS][W]: K, V */
    attention_tile t;
    if (!find_tile(at, cut, blockIdx.x, &t)) return;
    const int d = at.head_dim, kv_head = t.head / (at.n_heads / at.n_kv_heads), lane = threadIdx.x % WARP;
    const int n = t.n_q - t.first < QUERIES ? t.n_q - t.first : QUERIES, mine = threadIdx.x / WARP * 16 * M;
    const attention_range keys = keys_of(at, t, t.first, n), my_keys = keys_of(at, t, t.first + mine, 16 * M);
    const int64_t row = t.q_row + t.first;
    const T *k = a.k + t.kv_row * at.kv_ld + kv_head * d, *v = a.v + t.kv_row * at.kv_ld + kv_head * d;
    const auto load_keys = [&](int key, T *stage) {
        const int n_keys = t.n_kv - key < KEYS ? t.n_kv - key : KEYS;
        load_tile<T, W, KEYS, THREADS>(stage, k + key * at.kv_ld, at.kv_ld, n_keys, d, vectors);
        load_tile<T, W, KEYS, THREADS>(stage + ROOM, v + key * at.kv_ld, at.kv_ld, n_keys, d, vectors);
        copy_async_commit();
    };
    float2 stats[M][2];
    float dq[M][W / 8][4] = {};
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = mine + 16 * m + 8 * h + lane / 4;
            stats[m][h] = r < n ? a.stats[t.head * (int64_t)at.n_tok + row + r] : make_float2(0.0f, 0.0f);
        }
    int key = keys.from / KEYS * KEYS, which = 0;
    if (key < keys.to) {
        load_tile<T, W, QUERIES, THREADS>(q, a.q + row * at.q_ld + t.head * d, at.q_ld, n, d, vectors);
        load_tile<T, W, QUERIES, THREADS>(dout, a.dout + row * at.o_ld + t.head * d, at.o_ld, n, d, vectors);
        load_keys(key, stages);
    }
    for (; key < keys.to; key += KEYS, which ^= 1) {
        const T *stage = stages + which * 2 * ROOM;
        copy_async_wait<0>();
        __syncthreads();
        if (key + KEYS < keys.to) load_keys(key + KEYS, stages + (which ^ 1) * 2 * ROOM);
        if (key >= my_keys.to || key + KEYS <= my_keys.from) continue;
        float s[M][KEYS / 8][4], dp[M][KEYS / 8][4];
        uint32_t w[M][KEYS / 16][4];
        multiply_rows<T, W>(s, q, mine, stage, 0);
        multiply_rows<T, W>(dp, dout, mine, stage + ROOM, 0);
        const bool all = key >= my_keys.all_from && key + KEYS <= my_keys.all_to;
#pragma unroll
        for (int m = 0; m < M; m++) {
            const int query = t.first + mine + 16 * m;
            form<KEYS / 8, EXTRAS>(s[m], dp[m], stats[m], at, t, query, key);
            if (!all) mask_keys(s[m], at, t, query, key);
        }
        pack_weights<T>(w, s);
        add_weighted_rows<T, W>(dq, w, stage, 0);
    }
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = mine + 16 * m + 8 * h + lane / 4;
            if (r < n) store_sums(dq[m], h, at.scale, a.dq + (row + r) * at.q_ld + t.head * d, d, vectors);
        }
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

template <class T, int W, int M, int N_WARPS, int QUERIES, int WITH, int BLOCKS, bool EXTRAS>
dt_err make_dkv(dt_stream *s, const dt_attention &at, const attention_arrays<T> &a, bool vectors)
{
    using shape = dkv_shape<W, M, N_WARPS, QUERIES>;
    const attention_cut cut = {true, shape::KEYS, at.n_kv_heads, attention_heads_at_once(&at, at.n_kv_heads)};
    const auto kernel = dkv_kernel<T, W, M, N_WARPS, QUERIES, WITH, BLOCKS, EXTRAS>;
    const int64_t n_blocks = attention_blocks(&at, cut);
    if (n_blocks == 0) return DT_OK;
    CUDA_ALLOW_SHARED(kernel, shape::NBYTES);
    launch(s, (unsigned)n_blocks, shape::THREADS, shape::NBYTES, kernel, at, cut, a, vectors);
    CUDA_LAUNCHED();
    return DT_OK;
}

template <class T, int W, int M, int KEYS, int BLOCKS, bool EXTRAS>
dt_err make_dq(dt_stream *s, const dt_attention &at, const attention_arrays<T> &a, bool vectors)
{
    using shape = dq_shape<W, M, KEYS>;
    const attention_cut cut = {false, shape::QUERIES, at.n_heads, attention_heads_at_once(&at, at.n_heads)};
    const auto kernel = dq_kernel<T, W, M, KEYS, BLOCKS, EXTRAS>;
    const int64_t n_blocks = attention_blocks(&at, cut);
    if (n_blocks == 0) return DT_OK;
    CUDA_ALLOW_SHARED(kernel, shape::NBYTES);
    launch(s, (unsigned)n_blocks, shape::THREADS, shape::NBYTES, kernel, at, cut, a, vectors);
    CUDA_LAUNCHED();
    return DT_OK;
}

/* room: shared memory available to a block. Small chips use smaller tiles, or the float kernels. */
template <class T, bool EXTRAS>
dt_err by_width(dt_stream *s, const dt_attention &at, const attention_arrays<T> &a, bool vectors, size_t room)
{
    if (at.head_dim <= 64) {
        DT_TRY((make_dkv<T, 64, 2, 4, 32, 3, 2, EXTRAS>(s, at, a, vectors)));
        return make_dq<T, 64, 2, 64, 2, EXTRAS>(s, at, a, vectors);
    }
    if constexpr (!EXTRAS) /* a few models; with extras they are too rare for instances of their own */
        if (at.head_dim <= 96) {
            DT_TRY((make_dkv<T, 96, 1, 8, 64, 3, 1, EXTRAS>(s, at, a, vectors)));
            return make_dq<T, 96, 2, 32, 2, EXTRAS>(s, at, a, vectors);
        }
    if (at.head_dim <= 128) {
        /* two blocks of four warps per multiprocessor, or one of eight, or one of four */
        const bool four = 2 * dkv_shape<128, 1, 4, 64>::NBYTES <= room || dkv_shape<128, 1, 8, 64>::NBYTES > room;
        if (four)
            DT_TRY((make_dkv<T, 128, 1, 4, 64, 3, 2, EXTRAS>(s, at, a, vectors)));
        else
            DT_TRY((make_dkv<T, 128, 1, 8, 64, 3, 1, EXTRAS>(s, at, a, vectors)));
        return make_dq<T, 128, 2, 32, 2, EXTRAS>(s, at, a, vectors);
    }
    if (dkv_shape<256, 1, 4, 32>::NBYTES > room) return cuda_attention_float_backward(s, at, a);
    DT_TRY((make_dkv<T, 256, 1, 4, 32, 1, 1, EXTRAS>(s, at, a, vectors)));
    DT_TRY((make_dkv<T, 256, 1, 4, 32, 2, 1, EXTRAS>(s, at, a, vectors)));
    return make_dq<T, 256, 1, 32, 1, EXTRAS>(s, at, a, vectors);
}

template <class T>
dt_err backward_of(dt_device *dev, dt_stream *s, const dt_attention &at, const attention_arrays<T> &a)
{
    const size_t room = cuda_of(dev)->properties.sharedMemPerBlockOptin;
    const int64_t lds = at.q_ld | at.kv_ld | at.o_ld | at.head_dim;
    const bool vectors =
        vectors_fit((size_t)lds * sizeof(T), a.q, a.k, a.v, a.dout) && vectors_fit(16, a.dq, a.dk, a.dv);
    if (cuda_attention_hopper_takes(dev, at, vectors)) return cuda_attention_hopper_backward(s, at, a);
    if (!cuda_attention_is_usual(at)) return cuda_attention_float_backward(s, at, a);
    return cuda_attention_has_extras(at) ? by_width<T, true>(s, at, a, vectors, room)
                                         : by_width<T, false>(s, at, a, vectors, room);
}
template <> dt_err backward_of(dt_device *, dt_stream *s, const dt_attention &at, const attention_arrays<float> &a)
{
    return cuda_attention_float_backward(s, at, a);
}

/* Pairs of floats are aligned to 8 bytes. */
float2 *stats_in(float *scratch) { return reinterpret_cast<float2 *>(((size_t)scratch + 7) / 8 * 8); }

} // namespace

dt_err cuda_attention_backward(dt_device *dev, const dt_attention *at, const void *q, const void *k, const void *v,
                               const void *out, const float *lse, const void *dout, void *dq, void *dk, void *dv,
                               float *scratch, dt_stream *stream)
{
    dt_attention checked;
    DT_TRY(cuda_attention_check(at, &checked));
    dt_stream *s = cuda_stream(dev, stream, "attention_backward");
    bool taken = false;
    DT_TRY(cuda_cudnn_backward(dev, &checked, q, k, v, out, lse, dout, dq, dk, dv, scratch, s, &taken));
    if (taken) return DT_OK;
    const int64_t n = (int64_t)at->n_tok * at->n_heads;
    float2 *stats = stats_in(scratch);
    CUDA_BY_DTYPE(at->dt, T, "attention_backward", {
        const bool vectors = vectors_fit((size_t)(at->o_ld | checked.v_head_dim) * sizeof(T), out, dout);
        int lanes = 1;
        while (lanes < WARP && lanes * vec16<T>::N < checked.v_head_dim) lanes *= 2;
        if (n > 0)
            launch(s, (unsigned)ceil_div(n * lanes, 8 * WARP), 8 * WARP, 0, stats_kernel<T>, (const T *)out,
                   (const T *)dout, lse, stats, (int64_t)at->n_tok, at->n_heads, checked.v_head_dim, at->o_ld, lanes,
                   vectors);
        if (at->dsinks) DT_TRY(sinks_backward<T>(s, checked, stats));
        attention_arrays<T> a = {};
        a.q = (const T *)q, a.k = (const T *)k, a.v = (const T *)v, a.dout = (const T *)dout, a.stats = stats;
        a.dq = (T *)dq, a.dk = (T *)dk, a.dv = (T *)dv;
        return backward_of<T>(dev, s, checked, a);
    });
}
