/* attention_float.cu - attention in float, of every description: for float elements, which tensor cores would round;
 * for descriptions that no other kernel supports; and for backward of wide heads on GPUs whose shared memory is too
 * small for attention_backward.cu.
 *
 * Arrays    those of dt_attention, of any element type.
 * Threads   A block of 16 x 16 threads multiplies tiles in shared memory. Thread (y, x) computes rows y, y+16, ... and
 *           columns x, x+16, ... of a matmul of rows, and columns 4x .. 4x+3 of every 64 of a head's width.
 * Numerics  float throughout, in a fixed order.
 * Instances PLAIN: float elements, without soft-capping and block masks, values as wide as keys. They need fewer
 *           registers. For 16-bit elements, other kernels compute nearly all such calls. */
#include "attention.cuh"

namespace
{

enum { SIDE = 16, THREADS = SIDE * SIDE };

/* Row distance of a tile [TILE][ld] of floats: the head's width rounded up to 8, plus 4, so that 16 bytes of adjacent
 * rows are in different banks. */
__host__ __device__ constexpr int padded(int d) { return (d + 7) / 8 * 8; }
__host__ __device__ constexpr int tile_ld(int d) { return padded(d) + 4; }

/* The arrays of an instance. */
struct any_arrays {
    elements q, k, v, dout;
    const float2 *stats;
    elements out_w, dq, dk, dv;
    float *lse_w;
};
template <bool PLAIN> struct arrays_of {
    typedef attention_arrays<float> type;
};
template <> struct arrays_of<false> {
    typedef any_arrays type;
};
template <bool PLAIN> using arrays = typename arrays_of<PLAIN>::type;

__device__ void put(float *to, int64_t i, float x) { to[i] = x; }
__device__ void put(elements to, int64_t i, float x) { to.set(i, x); }

/* Load n rows of src into dst [tile][tile_ld(d)], padded with zeros. The first n_away rows are `away` elements after
 * their regular address. */
template <class Array>
__device__ void load_rows(float *dst, Array src, int64_t ld, int n, int tile, int d, int n_away = 0, int64_t away = 0)
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, n_warps = THREADS / WARP;
    for (int r = warp; r < tile; r += n_warps)
        for (int c = lane; c < padded(d); c += WARP)
            dst[r * tile_ld(d) + c] = r < n && c < d ? src[r * ld + (r < n_away ? away : 0) + c] : 0.0f;
}

__device__ float4 load4(const float *p) { return *reinterpret_cast<const float4 *>(p); }

/* s[i][j] = a_(y+16i) . b_(x+16j) */
template <int R> __device__ void dots(float s[R][R], const float *a, const float *b, int d)
{
    const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE, ld = tile_ld(d);
    float4 u[R], w[R];
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < R; j++) s[i][j] = 0;
    for (int c = 0; c < padded(d); c += 4) {
#pragma unroll
        for (int i = 0; i < R; i++) {
            u[i] = load4(a + (y + SIDE * i) * ld + c);
            w[i] = load4(b + (x + SIDE * i) * ld + c);
        }
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < R; j++) {
                s[i][j] = fmaf(u[i].x, w[j].x, s[i][j]);
                s[i][j] = fmaf(u[i].y, w[j].y, s[i][j]);
                s[i][j] = fmaf(u[i].z, w[j].z, s[i][j]);
                s[i][j] = fmaf(u[i].w, w[j].w, s[i][j]);
            }
    }
}

/* A square of weights [16R][16R + 4], of which each thread has its elements. */
template <int R> __host__ __device__ constexpr int weights_ld() { return SIDE * R + 4; }
template <int R> __device__ void put_weights(float *p, const float s[R][R])
{
    const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < R; j++) p[(y + SIDE * i) * weights_ld<R>() + x + SIDE * j] = s[i][j];
}

/* Accumulators of a thread for a tile [16R][d]: J groups of 4 columns for each of its R rows. */
template <int R, int J> struct sums {
    float4 of[R][J];
    __device__ void clear()
    {
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < J; j++) of[i][j] = make_float4(0, 0, 0, 0);
    }
    __device__ void multiply(int i, float f)
    {
#pragma unroll
        for (int j = 0; j < J; j++) of[i][j].x *= f, of[i][j].y *= f, of[i][j].z *= f, of[i][j].w *= f;
    }
    /* += P B, B [16R][d] */
    __device__ void add_matmul(const float *p, const float *b, int d)
    {
        const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
        for (int k = 0; k < SIDE * R; k += 4) {
            float w[R][4];
#pragma unroll
            for (int i = 0; i < R; i++) {
                const float4 four = load4(p + (y + SIDE * i) * weights_ld<R>() + k);
                w[i][0] = four.x, w[i][1] = four.y, w[i][2] = four.z, w[i][3] = four.w;
            }
#pragma unroll
            for (int l = 0; l < 4; l++)
#pragma unroll
                for (int j = 0; j < J; j++) {
                    if (4 * x + 64 * j >= padded(d)) continue;
                    const float4 row = load4(b + (k + l) * tile_ld(d) + 4 * x + 64 * j);
#pragma unroll
                    for (int i = 0; i < R; i++) {
                        of[i][j].x = fmaf(w[i][l], row.x, of[i][j].x);
                        of[i][j].y = fmaf(w[i][l], row.y, of[i][j].y);
                        of[i][j].z = fmaf(w[i][l], row.z, of[i][j].z);
                        of[i][j].w = fmaf(w[i][l], row.w, of[i][j].w);
                    }
                }
        }
    }
    /* dst [d] = row i times factor. */
    template <class Array> __device__ void store_row(int i, float factor, Array dst, int d) const
    {
#pragma unroll
        for (int j = 0; j < J; j++) {
            const int c = 4 * (threadIdx.x % SIDE) + 64 * j;
            if (c < d) put(dst, c, of[i][j].x * factor);
            if (c + 1 < d) put(dst, c + 1, of[i][j].y * factor);
            if (c + 2 < d) put(dst, c + 2, of[i][j].z * factor);
            if (c + 3 < d) put(dst, c + 3, of[i][j].w * factor);
        }
    }
};

template <class Op> __device__ float half_warp_reduce(float v, Op op)
{
#pragma unroll
    for (int d = SIDE / 2; d > 0; d /= 2) v = op(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}
struct larger_number {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/* 0 or 1 / (1 - p), for a query (row of the batch) and a key. */
__device__ float dropout_factor(const dt_attention &at, int64_t row, int head, int key)
{
    const philox_words r = dropout_words(at, at.token_key[row], head, key / 4);
    const uint32_t word = key % 4 == 0 ? r.w[0] : key % 4 == 1 ? r.w[1] : key % 4 == 2 ? r.w[2] : r.w[3];
    return dropout_keeps(at, word) ? 1.0f / (1.0f - at.dropout_p) : 0.0f;
}

__host__ __device__ int widest(const dt_attention &at)
{
    return at.head_dim > at.v_head_dim ? at.head_dim : at.v_head_dim;
}

template <bool PLAIN> __device__ bool sees(const dt_attention &at, const attention_tile &t, int query, int key)
{
    const int to = seen_to<!PLAIN>(at, t, query);
    return query < t.n_q && key < to && key >= seen_from<!PLAIN>(at, t, query, to);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* out = softmax(scale q k^T + mask) v and lse of a tile of queries, one tile per block. Tiles of keys begin at
 * multiples of the tile's length in the sequence; each updates
 *     m' = max(m, max_j s_j),  a = e^(m - m'),  l <- a l + sum_j e^(s_j - m'),  o <- a o + sum_j e^(s_j - m') v_j
 * The order of a query's sums does not depend on the other queries of the call. */
template <int R, int J, bool PLAIN>
__global__ void __launch_bounds__(THREADS, 1) forward_kernel(dt_attention at, attention_cut cut, arrays<PLAIN> a)
{
    constexpr int TILE = SIDE * R;
    DYNAMIC_SHARED(float, shared);
    const int d = at.head_dim, dv = PLAIN ? d : at.v_head_dim, y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    float *q = shared, *kv = q + TILE * tile_ld(d), *weights = kv + TILE * tile_ld(PLAIN ? d : widest(at));
    attention_tile t;
    if (!find_tile(at, cut, blockIdx.x, &t)) return;
    const int n = t.n_q - t.first < TILE ? t.n_q - t.first : TILE;
    const attention_range keys = keys_of<!PLAIN>(at, t, t.first, n);
    const int64_t row = t.q_row + t.first, away = way_to_shared(t) * at.kv_ld;
    const int kv_head = t.head / (at.n_heads / at.n_kv_heads);
    const float scale = at.scale * LOG2_E;
    float s[R][R], max[R], sum[R];
    sums<R, J> o;
    o.clear();
    for (int i = 0; i < R; i++) max[i] = -INFINITY, sum[i] = 0;
    load_rows(q, a.q + row * at.q_ld + t.head * d, at.q_ld, n, TILE, d);
    for (int key = keys.from / TILE * TILE; key < keys.to; key += TILE) {
        const int n_keys = t.n_kv - key < TILE ? t.n_kv - key : TILE, n_away = t.n_shared - key;
        const int64_t at_key = (first_key_row(t) + key) * at.kv_ld;
        __syncthreads();
        load_rows(kv, a.k + at_key + kv_head * d, at.kv_ld, n_keys, TILE, d, n_away, away);
        __syncthreads();
        dots<R>(s, q, kv, d);
#pragma unroll
        for (int i = 0; i < R; i++) {
            const int query = t.first + y + SIDE * i;
            float most = max[i], part = 0;
#pragma unroll
            for (int j = 0; j < R; j++) {
                if (!PLAIN && at.softcap > 0) s[i][j] = cap_score(rule_of(at), s[i][j]).score;
                if (!sees<PLAIN>(at, t, query, key + x + SIDE * j)) s[i][j] = -INFINITY;
                most = fmaxf(most, s[i][j]);
            }
            most = half_warp_reduce(most, larger_number());
            const float base = most == -INFINITY ? 0.0f : most;
#pragma unroll
            for (int j = 0; j < R; j++) part += s[i][j] = exp2f(fmaf(s[i][j], scale, -base * scale));
            const float alpha = exp2f((max[i] - base) * scale); /* 1 if the maximum is unchanged */
            sum[i] = fmaf(sum[i], alpha, half_warp_reduce(part, plus()));
            max[i] = most;
            o.multiply(i, alpha);
            if (at.dropout_p > 0 && query < t.n_q)
                for (int j = 0; j < R; j++) s[i][j] *= dropout_factor(at, t.q_row + query, t.head, key + x + SIDE * j);
        }
        put_weights<R>(weights, s);
        __syncthreads();
        load_rows(kv, a.v + at_key + kv_head * dv, at.kv_ld, n_keys, TILE, dv, n_away, away);
        __syncthreads();
        o.add_matmul(weights, kv, dv);
    }
#pragma unroll
    for (int i = 0; i < R; i++) {
        const int r = y + SIDE * i;
        if (r >= n) continue;
        const row_end end = end_row(at, t.head, max[i], sum[i]);
        o.store_row(i, end.factor, a.out_w + (row + r) * at.o_ld + t.head * dv, dv);
        if (a.lse_w && x == 0) a.lse_w[(row + r) * at.n_heads + t.head] = end.lse;
    }
}

template <int R, int J, bool PLAIN> dt_err forward(dt_stream *s, const dt_attention &at, const arrays<PLAIN> &a)
{
    const attention_cut cut = {false, SIDE * R, at.n_heads, attention_heads_at_once(&at, at.n_heads)};
    const int rooms = tile_ld(at.head_dim) + tile_ld(widest(at));
    const size_t nbytes = sizeof(float) * SIDE * R * (size_t)(rooms + weights_ld<R>());
    CUDA_ALLOW_SHARED((forward_kernel<R, J, PLAIN>), nbytes);
    launch(s, (unsigned)attention_blocks(&at, cut), THREADS, nbytes, forward_kernel<R, J, PLAIN>, at, cut, a);
    CUDA_LAUNCHED();
    return DT_OK;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* In: s, and ds = dp. Out: s = f p, ds = p (f dp - delta) slope, for row i and column j of a thread. */
template <bool PLAIN>
__device__ void gradient_of_score(const dt_attention &at, const attention_tile &t, const arrays<PLAIN> &a, int head,
                                  int query, int key, float *s, float *ds)
{
    const capped c = !PLAIN && at.softcap > 0 ? cap_score(rule_of(at), *s) : capped{*s, 1.0f};
    float p = 0, f = 1, delta = 0;
    if (sees<PLAIN>(at, t, query, key)) {
        const int64_t row = t.q_row + query;
        const float2 stats = a.stats[(int64_t)head * at.n_tok + row];
        p = exp2f(fmaf(c.score, at.scale * LOG2_E, -stats.x));
        delta = stats.y;
        if (at.dropout_p > 0) f = dropout_factor(at, row, head, key);
    }
    *s = p == 0.0f ? 0.0f : f * p;
    *ds = p == 0.0f ? 0.0f : p * (f * *ds - delta) * c.slope; /* masked values may be infinite */
}

/* dq = scale sum_j ds_j k_j of a tile of queries, one tile per block. */
template <int R, int J, bool PLAIN>
__global__ void __launch_bounds__(THREADS, 1) dq_kernel(dt_attention at, attention_cut cut, arrays<PLAIN> a)
{
    constexpr int TILE = SIDE * R;
    DYNAMIC_SHARED(float, shared);
    const int d = at.head_dim, dv = PLAIN ? d : at.v_head_dim, y = threadIdx.x / SIDE, x = threadIdx.x % SIDE,
              room = TILE * tile_ld(d), v_room = TILE * tile_ld(dv);
    float *q = shared, *dout = q + room, *k = dout + v_room, *v = k + room, *weights = v + v_room;
    attention_tile t;
    if (!find_tile(at, cut, blockIdx.x, &t)) return;
    const int n = t.n_q - t.first < TILE ? t.n_q - t.first : TILE;
    const attention_range keys = keys_of<!PLAIN>(at, t, t.first, n);
    const int64_t row = t.q_row + t.first;
    const int kv_head = t.head / (at.n_heads / at.n_kv_heads);
    float s[R][R], ds[R][R];
    sums<R, J> dq;
    dq.clear();
    load_rows(q, a.q + row * at.q_ld + t.head * d, at.q_ld, n, TILE, d);
    load_rows(dout, a.dout + row * at.o_ld + t.head * dv, at.o_ld, n, TILE, dv);
    for (int key = keys.from / TILE * TILE; key < keys.to; key += TILE) {
        const int n_keys = t.n_kv - key < TILE ? t.n_kv - key : TILE;
        const int64_t at_key = (t.kv_row + key) * at.kv_ld, in_k = at_key + kv_head * d, in_v = at_key + kv_head * dv;
        __syncthreads();
        load_rows(k, a.k + in_k, at.kv_ld, n_keys, TILE, d);
        load_rows(v, a.v + in_v, at.kv_ld, n_keys, TILE, dv);
        __syncthreads();
        dots<R>(s, q, k, d);
        dots<R>(ds, dout, v, dv);
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < R; j++)
                gradient_of_score<PLAIN>(at, t, a, t.head, t.first + y + SIDE * i, key + x + SIDE * j, &s[i][j],
                                         &ds[i][j]);
        put_weights<R>(weights, ds);
        __syncthreads();
        dq.add_matmul(weights, k, d);
    }
#pragma unroll
    for (int i = 0; i < R; i++)
        if (y + SIDE * i < n) dq.store_row(i, at.scale, a.dq + (row + y + SIDE * i) * at.q_ld + t.head * d, d);
}

/* dv = sum_i f p_i dout_i and dk = scale sum_i ds_i q_i of a tile of keys, over the query heads that share them; one
 * tile per block. */
template <int R, int J, bool PLAIN>
__global__ void __launch_bounds__(THREADS, 1) dkv_kernel(dt_attention at, attention_cut cut, arrays<PLAIN> a)
{
    constexpr int TILE = SIDE * R;
    DYNAMIC_SHARED(float, shared);
    const int d = at.head_dim, v_dim = PLAIN ? d : at.v_head_dim, y = threadIdx.x / SIDE, x = threadIdx.x % SIDE,
              room = TILE * tile_ld(d), v_room = TILE * tile_ld(v_dim), group = at.n_heads / at.n_kv_heads;
    float *q = shared, *dout = q + room, *k = dout + v_room, *v = k + room, *weights = v + v_room;
    float s[R][R], ds[R][R];
    sums<R, J> dk, dv;
    attention_tile t;
    for (int64_t index = blockIdx.x; find_tile(at, cut, index, &t); index += gridDim.x) {
        const int n = t.n_kv - t.first < TILE ? t.n_kv - t.first : TILE;
        const attention_range queries = queries_of<!PLAIN>(at, t, t.first, n);
        const int64_t at_key = (t.kv_row + t.first) * at.kv_ld, in_k = at_key + t.head * d,
                      in_v = at_key + t.head * v_dim;
        dk.clear(), dv.clear();
        /* no barrier is needed: at the last barrier below, all threads had read the k and v of the tile before */
        load_rows(k, a.k + in_k, at.kv_ld, n, TILE, d);
        load_rows(v, a.v + in_v, at.kv_ld, n, TILE, v_dim);
        for (int head = t.head * group; head < (t.head + 1) * group; head++)
            for (int query = queries.from / TILE * TILE; query < queries.to; query += TILE) {
                const int64_t row = t.q_row + query;
                const int n_q = t.n_q - query < TILE ? t.n_q - query : TILE;
                __syncthreads();
                load_rows(q, a.q + row * at.q_ld + head * d, at.q_ld, n_q, TILE, d);
                load_rows(dout, a.dout + row * at.o_ld + head * v_dim, at.o_ld, n_q, TILE, v_dim);
                __syncthreads();
                dots<R>(s, k, q, d);
                dots<R>(ds, v, dout, v_dim);
#pragma unroll
                for (int i = 0; i < R; i++)
#pragma unroll
                    for (int j = 0; j < R; j++)
                        gradient_of_score<PLAIN>(at, t, a, head, query + x + SIDE * j, t.first + y + SIDE * i, &s[i][j],
                                                 &ds[i][j]);
                put_weights<R>(weights, s);
                __syncthreads();
                dv.add_matmul(weights, dout, v_dim);
                __syncthreads();
                put_weights<R>(weights, ds);
                __syncthreads();
                dk.add_matmul(weights, q, d);
            }
#pragma unroll
        for (int i = 0; i < R; i++) {
            if (y + SIDE * i >= n) continue;
            dk.store_row(i, at.scale, a.dk + in_k + (y + SIDE * i) * at.kv_ld, d);
            dv.store_row(i, 1.0f, a.dv + in_v + (y + SIDE * i) * at.kv_ld, v_dim);
        }
    }
}

template <int R, int J, bool PLAIN> dt_err backward(dt_stream *s, const dt_attention &at, const arrays<PLAIN> &a)
{
    const attention_cut queries = {false, SIDE * R, at.n_heads, attention_heads_at_once(&at, at.n_heads)},
                        keys = {true, SIDE * R, at.n_kv_heads, attention_heads_at_once(&at, at.n_kv_heads)};
    const int rooms = 2 * (tile_ld(at.head_dim) + tile_ld(at.v_head_dim));
    const size_t nbytes = sizeof(float) * SIDE * R * (size_t)(rooms + weights_ld<R>());
    const int64_t q_blocks = attention_blocks(&at, queries), k_blocks = attention_blocks(&at, keys);
    CUDA_ALLOW_SHARED((dq_kernel<R, J, PLAIN>), nbytes);
    CUDA_ALLOW_SHARED((dkv_kernel<R, J, PLAIN>), nbytes);
    if (k_blocks > 0) launch(s, (unsigned)k_blocks, THREADS, nbytes, dkv_kernel<R, J, PLAIN>, at, keys, a);
    if (q_blocks > 0) launch(s, (unsigned)q_blocks, THREADS, nbytes, dq_kernel<R, J, PLAIN>, at, queries, a);
    CUDA_LAUNCHED();
    return DT_OK;
}

bool is_plain(const dt_attention &at) { return cuda_attention_is_usual(at) && at.softcap == 0; }

/* Choose the largest tiles that shared memory and registers allow. */
template <bool PLAIN> dt_err forward_by_width(dt_stream *s, const dt_attention &at, const arrays<PLAIN> &a)
{
    if (widest(at) <= 64) return forward<4, 1, PLAIN>(s, at, a);
    if (widest(at) <= 128) return forward<4, 2, PLAIN>(s, at, a);
    return forward<2, 4, PLAIN>(s, at, a);
}
template <bool PLAIN> dt_err backward_by_width(dt_stream *s, const dt_attention &at, const arrays<PLAIN> &a)
{
    if (widest(at) <= 64) return backward<4, 1, PLAIN>(s, at, a);
    if (widest(at) <= 128) return backward<2, 2, PLAIN>(s, at, a);
    return backward<1, 4, PLAIN>(s, at, a);
}

template <class T> any_arrays of_any_type(const attention_arrays<T> &a, dt_dtype dt)
{
    return {elements(a.q, dt),     elements(a.k, dt),  elements(a.v, dt),  elements(a.dout, dt), a.stats,
            elements(a.out_w, dt), elements(a.dq, dt), elements(a.dk, dt), elements(a.dv, dt),   a.lse_w};
}

} // namespace

template <class T>
dt_err cuda_attention_float_forward(dt_stream *s, const dt_attention &at, const attention_arrays<T> &a)
{
    if constexpr (sizeof(T) == sizeof(float))
        if (is_plain(at)) return forward_by_width<true>(s, at, a);
    return forward_by_width<false>(s, at, of_any_type(a, at.dt));
}
template <class T>
dt_err cuda_attention_float_backward(dt_stream *s, const dt_attention &at, const attention_arrays<T> &a)
{
    if constexpr (sizeof(T) == sizeof(float))
        if (is_plain(at)) return backward_by_width<true>(s, at, a);
    return backward_by_width<false>(s, at, of_any_type(a, at.dt));
}
#define INSTANCES(T)                                                                                                   \
    template dt_err cuda_attention_float_forward(dt_stream *, const dt_attention &, const attention_arrays<T> &);      \
    template dt_err cuda_attention_float_backward(dt_stream *, const dt_attention &, const attention_arrays<T> &)
INSTANCES(float);
INSTANCES(bf16);
INSTANCES(__half);
