/* attention_hopper.cu - attention by warp-group matmuls (sm_90a): without dropout, for heads of at most 128 and rows
 * aligned to 16 bytes. Equations, tiles and order of sums are those of attention_forward.cu and attention_backward.cu.
 * So is the processing of accumulators, which have the same layout: 16 rows per warp.
 *
 * A tile is [W / 64][rows][64]: panels of 64 columns, as the matmuls need them. */
#include "attention_mma.cuh"

namespace
{

enum { PANEL = 64, KEYS = 64, QUERIES = 64, GROUP_ROWS = 64, GROUP_THREADS = 4 * WARP, ALIGN = 1024 };

/* Load n rows of src, which has d columns, into tile [W / 64][ROWS][64], padded with zeros. */
template <class T, int W, int ROWS, int THREADS>
__device__ void load_panels(T *tile, const T *src, int64_t ld, int n, int d)
{
    constexpr int CHUNKS = W / 8, STEP = THREADS / CHUNKS;
    static_assert(THREADS % CHUNKS == 0, "a thread keeps its chunk");
    const int chunk = (int)threadIdx.x % CHUNKS, first = (int)threadIdx.x / CHUNKS;
    const bool inside = chunk * 8 < d;
    const T *from = src + first * ld + chunk * 8;
    T *const to = tile + chunk / 8 * (ROWS * PANEL);
#pragma unroll
    for (int i = 0; i < (ROWS + STEP - 1) / STEP; i++) {
        const int row = first + i * STEP;
        if (ROWS % STEP != 0 && row >= ROWS) break;
        const bool valid = inside && row < n;
        copy_async_16(to + row * PANEL + ((chunk % 8) ^ (row % 8)) * 8, valid ? from : src, valid);
        from += STEP * ld;
    }
}

#ifdef HAVE_GROUP_MATMULS
/* The first multiple of ALIGN bytes in shared memory. */
__device__ unsigned char *panels_in(unsigned char *shared)
{
    return shared + (ALIGN - (uint32_t)__cvta_generic_to_shared(shared) % ALIGN) % ALIGN;
}

/* Begin s [64][64] = A B^T, for 64 rows of a tile starting at `row`, and the 64 rows of another tile. */
template <class T, int W, int A_ROWS> __device__ void begin_scores(float (&s)[8][4], const T *a, int row, const T *b)
{
#pragma unroll
    for (int k = 0; k < W / 16; k++)
        group_multiply(s, a + k / 4 * (A_ROWS * PANEL) + row * PANEL + k % 4 * 16,
                       b + k / 4 * (64 * PANEL) + k % 4 * 16, k > 0);
}
/* Begin sum [64][W] += weights B, for a tile of 64 rows. */
template <class T, int W> __device__ void begin_sums(float (&sum)[W / 8][4], const uint32_t (&w)[4][4], const T *b)
{
#pragma unroll
    for (int p = 0; p < W / 64; p++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            group_add(reinterpret_cast<float(&)[8][4]>(sum[8 * p]), w[k], b + p * (64 * PANEL) + k * 16 * PANEL);
}
#endif

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* out and lse of a tile of queries of one head. A block has one tile, a group of four warps 64 of its queries. */
template <class T, int W, int GROUPS, int BLOCKS, bool CAPPED>
__global__ void __launch_bounds__(GROUPS *GROUP_THREADS, BLOCKS)
    hopper_forward_kernel(dt_attention at, attention_cut cut, attention_arrays<T> a)
{
#ifdef HAVE_GROUP_MATMULS
    constexpr int ROWS = GROUPS * GROUP_ROWS, THREADS = GROUPS * GROUP_THREADS, ROOM = KEYS * W;
    DYNAMIC_SHARED(unsigned char, shared);
    T *const q = reinterpret_cast<T *>(panels_in(shared)), *const stages = q + ROWS * W; /* [2][2]: K, V */
    attention_tile t;
    if (!find_tile(at, cut, blockIdx.x, &t)) return;
    const int d = at.head_dim, kv_head = t.head / (at.n_heads / at.n_kv_heads), lane = threadIdx.x % WARP;
    const int n = t.n_q - t.first < ROWS ? t.n_q - t.first : ROWS, group = threadIdx.x / GROUP_THREADS * GROUP_ROWS,
              mine = threadIdx.x / WARP * 16;
    const attention_range keys = keys_of(at, t, t.first, n), group_keys = keys_of(at, t, t.first + group, GROUP_ROWS),
                          my_keys = keys_of(at, t, t.first + mine, 16);
    const T *k = a.k + t.kv_row * at.kv_ld + kv_head * d, *v = a.v + t.kv_row * at.kv_ld + kv_head * d;
    const auto load_keys = [&](int key, T *stage) {
        const int n_keys = t.n_kv - key < KEYS ? t.n_kv - key : KEYS;
        load_panels<T, W, KEYS, THREADS>(stage, k + key * at.kv_ld, at.kv_ld, n_keys, d);
        load_panels<T, W, KEYS, THREADS>(stage + ROOM, v + key * at.kv_ld, at.kv_ld, n_keys, d);
        copy_async_commit();
    };
    running<1, KEYS / 8, W / 8> r;
    r.clear();
    int key = keys.from / KEYS * KEYS, which = 0;
    if (key < keys.to) {
        load_panels<T, W, ROWS, THREADS>(q, a.q + (t.q_row + t.first) * at.q_ld + t.head * d, at.q_ld, n, d);
        load_keys(key, stages);
    }
    for (; key < keys.to; key += KEYS, which ^= 1) {
        const T *stage = stages + which * 2 * ROOM;
        copy_async_wait<0>();
        show_to_matmuls();
        __syncthreads(); /* the tile is loaded, and no warp reads the other stage */
        if (key + KEYS < keys.to) load_keys(key + KEYS, stages + (which ^ 1) * 2 * ROOM);
        if (key >= group_keys.to || key + KEYS <= group_keys.from) continue;
        float s[1][KEYS / 8][4];
        uint32_t p[1][KEYS / 16][4];
        group_open();
        begin_scores<T, W, ROWS>(s[0], q, group, stage);
        group_close();
        group_wait<0>();
        hold(s[0]);
        if (CAPPED) cap_scores(s, at);
        if (key < my_keys.all_from || key + KEYS > my_keys.all_to) {
            int to[1][2];
            for (int h = 0; h < 2; h++) to[0][h] = seen_to(at, t, t.first + mine + 8 * h + lane / 4);
            mask_scores(s, at, to, key);
        }
        r.exponentials(s, at.scale * LOG2_E);
        pack_weights<T>(p, s);
        hold(r.o[0]), hold(p[0]);
        group_open();
        begin_sums<T, W>(r.o[0], p[0], stage + ROOM);
        group_close();
        group_wait<0>();
        hold(r.o[0]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int query = t.first + mine + 8 * h + lane / 4;
        const row_end end = end_row(at, t.head, r.max[0][h], quad_sum(r.sum[0][h]));
        if (query >= t.n_q) continue;
        const int64_t row = t.q_row + query;
        store_sums(r.o[0], h, end.factor, a.out_w + row * at.o_ld + t.head * d, d, true);
        if (a.lse_w && lane % 4 == 0) a.lse_w[row * at.n_heads + t.head] = end.lse;
    }
#endif
}

#ifdef HAVE_GROUP_MATMULS
/* Replace the product s by its probability; with a soft-cap, also dp by (dp - delta) slope, since the slope needs s. */
template <bool CAPPED>
__device__ void form_score(float &s, float &dp, const score_rule &rule, float scale, const float2 &stats)
{
    const capped c = CAPPED ? cap_score(rule, s) : capped{s, 1.0f};
    s = exp2_approx(fmaf(c.score, scale, -stats.x));
    if (CAPPED) dp = (dp - stats.y) * c.slope;
}
#endif

/* ---- dk, dv ------------------------------------------------------------------------------------------------------ */

/* dk and dv of a tile of keys of one key head. A block has one tile, a group of four warps 64 of its keys. It loops
 * over the query heads that share the key head and their tiles of queries. */
template <class T, int W, int GROUPS, int BLOCKS, bool CAPPED>
__global__ void __launch_bounds__(GROUPS *GROUP_THREADS, BLOCKS)
    hopper_dkv_kernel(dt_attention at, attention_cut cut, attention_arrays<T> a)
{
#ifdef HAVE_GROUP_MATMULS
    constexpr int ROWS = GROUPS * GROUP_ROWS, THREADS = GROUPS * GROUP_THREADS, ROOM = QUERIES * W;
    DYNAMIC_SHARED(unsigned char, shared);
    T *const k = reinterpret_cast<T *>(panels_in(shared)), *const v = k + ROWS * W,
             *const stages = v + ROWS * W;                                     /* [2][2]: Q, dO */
    float2 *const stage_stats = reinterpret_cast<float2 *>(stages + 4 * ROOM); /* [2][QUERIES] */
    const int d = at.head_dim, heads = at.n_heads / at.n_kv_heads, lane = threadIdx.x % WARP,
              group = threadIdx.x / GROUP_THREADS * GROUP_ROWS, mine = threadIdx.x / WARP * 16;
    const float scale = at.scale * LOG2_E;
    const score_rule rule = CAPPED ? rule_of(at) : score_rule{};
    attention_tile t;
    for (int64_t index = blockIdx.x; find_tile(at, cut, index, &t); index += gridDim.x) {
        const int n = t.n_kv - t.first < ROWS ? t.n_kv - t.first : ROWS, my_key = t.first + mine;
        const attention_range queries = queries_of(at, t, t.first, n),
                              group_queries = queries_of(at, t, t.first + group, GROUP_ROWS),
                              my_queries = queries_of(at, t, my_key, 16);
        const int first = queries.from / QUERIES * QUERIES,
                  n_tiles = queries.to > first ? (queries.to - first + QUERIES - 1) / QUERIES : 0;
        const int64_t at_key = (t.kv_row + t.first) * at.kv_ld + t.head * d;
        const auto load_queries = [&](int step, int which) {
            const int head = t.head * heads + step / n_tiles, query = first + step % n_tiles * QUERIES,
                      n_q = t.n_q - query < QUERIES ? t.n_q - query : QUERIES;
            const int64_t row = t.q_row + query;
            T *stage = stages + which * 2 * ROOM;
            load_panels<T, W, QUERIES, THREADS>(stage, a.q + row * at.q_ld + head * d, at.q_ld, n_q, d);
            load_panels<T, W, QUERIES, THREADS>(stage + ROOM, a.dout + row * at.o_ld + head * d, at.o_ld, n_q, d);
            if (threadIdx.x < QUERIES) {
                const bool valid = (int)threadIdx.x < n_q;
                const float2 *from = a.stats + head * (int64_t)at.n_tok + row;
                copy_async_8(stage_stats + which * QUERIES + threadIdx.x, valid ? from + threadIdx.x : from, valid);
            }
            copy_async_commit();
        };
        float dk[W / 8][4] = {}, dv[W / 8][4] = {};
        if (n_tiles > 0) {
            load_panels<T, W, ROWS, THREADS>(k, a.k + at_key, at.kv_ld, n, d);
            load_panels<T, W, ROWS, THREADS>(v, a.v + at_key, at.kv_ld, n, d);
            load_queries(0, 0);
        }
        for (int step = 0; step < n_tiles * heads; step++) {
            const int which = step % 2, query = first + step % n_tiles * QUERIES;
            const T *q = stages + which * 2 * ROOM, *dout = q + ROOM;
            copy_async_wait<0>();
            show_to_matmuls();
            __syncthreads(); /* the tile is loaded, and no warp reads the other stage */
            if (step + 1 < n_tiles * heads) load_queries(step + 1, which ^ 1);
            if (query >= group_queries.to || query + QUERIES <= group_queries.from) continue;
            float s[1][QUERIES / 8][4], ds[1][QUERIES / 8][4];
            uint32_t p[1][QUERIES / 16][4], w[1][QUERIES / 16][4];
            const bool all = query >= my_queries.all_from && query + QUERIES <= my_queries.all_to;
            const float2 *stats = stage_stats + which * QUERIES + lane % 4 * 2;
            group_open();
            begin_scores<T, W, ROWS>(s[0], k, group, q);
            group_close();
            begin_scores<T, W, ROWS>(ds[0], v, group, dout);
            group_close();
            group_wait<CAPPED ? 0 : 1>(); /* compute p while dp is in flight */
            hold(s[0]);
            if (CAPPED) hold(ds[0]);
#pragma unroll
            for (int i = 0; i < QUERIES / 8; i++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    form_score<CAPPED>(s[0][i][e], ds[0][i][e], rule, scale, stats[8 * i + e % 2]);
            if (!all) mask_queries(s[0], at, t, query, my_key);
            pack_weights<T>(p, s);
            hold(dv), hold(p[0]);
            group_open();
            begin_sums<T, W>(dv, p[0], dout);
            group_close();
            group_wait<1>(); /* compute ds while dv is in flight */
            hold(ds[0]);
#pragma unroll
            for (int i = 0; i < QUERIES / 8; i++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    ds[0][i][e] = s[0][i][e] * (CAPPED ? ds[0][i][e] : ds[0][i][e] - stats[8 * i + e % 2].y);
            if (!all) mask_queries(ds[0], at, t, query, my_key);
            pack_weights<T>(w, ds);
            hold(dk), hold(w[0]);
            group_open();
            begin_sums<T, W>(dk, w[0], q);
            group_close();
            group_wait<0>();
            hold(dv), hold(dk);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = mine + 8 * h + lane / 4;
            if (r >= n) continue;
            store_sums(dv, h, 1.0f, a.dv + at_key + r * at.kv_ld, d, true);
            store_sums(dk, h, at.scale, a.dk + at_key + r * at.kv_ld, d, true);
        }
        __syncthreads(); /* no warp reads k and v */
    }
#endif
}

/* ---- dq ---------------------------------------------------------------------------------------------------------- */

/* dq of a tile of queries of one head. A block has one tile, a group of four warps 64 of its queries. */
template <class T, int W, int GROUPS, int BLOCKS, bool CAPPED>
__global__ void __launch_bounds__(GROUPS *GROUP_THREADS, BLOCKS)
    hopper_dq_kernel(dt_attention at, attention_cut cut, attention_arrays<T> a)
{
#ifdef HAVE_GROUP_MATMULS
    constexpr int ROWS = GROUPS * GROUP_ROWS, THREADS = GROUPS * GROUP_THREADS, ROOM = KEYS * W;
    DYNAMIC_SHARED(unsigned char, shared);
    T *const q = reinterpret_cast<T *>(panels_in(shared)), *const dout = q + ROWS * W,
             *const stages = dout + ROWS * W; /* [2][2]: K, V */
    attention_tile t;
    if (!find_tile(at, cut, blockIdx.x, &t)) return;
    const int d = at.head_dim, kv_head = t.head / (at.n_heads / at.n_kv_heads), lane = threadIdx.x % WARP;
    const int n = t.n_q - t.first < ROWS ? t.n_q - t.first : ROWS, group = threadIdx.x / GROUP_THREADS * GROUP_ROWS,
              mine = threadIdx.x / WARP * 16;
    const attention_range keys = keys_of(at, t, t.first, n), group_keys = keys_of(at, t, t.first + group, GROUP_ROWS),
                          my_keys = keys_of(at, t, t.first + mine, 16);
    const int64_t row = t.q_row + t.first;
    const T *k = a.k + t.kv_row * at.kv_ld + kv_head * d, *v = a.v + t.kv_row * at.kv_ld + kv_head * d;
    const auto load_keys = [&](int key, T *stage) {
        const int n_keys = t.n_kv - key < KEYS ? t.n_kv - key : KEYS;
        load_panels<T, W, KEYS, THREADS>(stage, k + key * at.kv_ld, at.kv_ld, n_keys, d);
        load_panels<T, W, KEYS, THREADS>(stage + ROOM, v + key * at.kv_ld, at.kv_ld, n_keys, d);
        copy_async_commit();
    };
    const float scale = at.scale * LOG2_E;
    const score_rule rule = CAPPED ? rule_of(at) : score_rule{};
    float2 stats[2];
    float dq[W / 8][4] = {};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = mine + 8 * h + lane / 4;
        stats[h] = r < n ? a.stats[t.head * (int64_t)at.n_tok + row + r] : make_float2(0.0f, 0.0f);
    }
    int key = keys.from / KEYS * KEYS, which = 0;
    if (key < keys.to) {
        load_panels<T, W, ROWS, THREADS>(q, a.q + row * at.q_ld + t.head * d, at.q_ld, n, d);
        load_panels<T, W, ROWS, THREADS>(dout, a.dout + row * at.o_ld + t.head * d, at.o_ld, n, d);
        load_keys(key, stages);
    }
    for (; key < keys.to; key += KEYS, which ^= 1) {
        const T *stage = stages + which * 2 * ROOM;
        copy_async_wait<0>();
        show_to_matmuls();
        __syncthreads(); /* the tile is loaded, and no warp reads the other stage */
        if (key + KEYS < keys.to) load_keys(key + KEYS, stages + (which ^ 1) * 2 * ROOM);
        if (key >= group_keys.to || key + KEYS <= group_keys.from) continue;
        float s[1][KEYS / 8][4], dp[1][KEYS / 8][4];
        uint32_t w[1][KEYS / 16][4];
        const int query = t.first + mine;
        group_open();
        begin_scores<T, W, ROWS>(s[0], q, group, stage);
        group_close();
        begin_scores<T, W, ROWS>(dp[0], dout, group, stage + ROOM);
        group_close();
        group_wait<CAPPED ? 0 : 1>(); /* compute p while dp is in flight */
        hold(s[0]);
        if (CAPPED) hold(dp[0]);
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) form_score<CAPPED>(s[0][i][e], dp[0][i][e], rule, scale, stats[e / 2]);
        group_wait<0>();
        hold(dp[0]);
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[0][i][e] *= CAPPED ? dp[0][i][e] : dp[0][i][e] - stats[e / 2].y;
        if (key < my_keys.all_from || key + KEYS > my_keys.all_to) mask_keys(s[0], at, t, query, key);
        pack_weights<T>(w, s);
        hold(dq), hold(w[0]);
        group_open();
        begin_sums<T, W>(dq, w[0], stage);
        group_close();
        group_wait<0>();
        hold(dq);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = mine + 8 * h + lane / 4;
        if (r < n) store_sums(dq, h, at.scale, a.dq + (row + r) * at.q_ld + t.head * d, d, true);
    }
#endif
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* Bytes of shared memory for the rows of the block's own tiles and of the stages. */
size_t panel_nbytes(int own, int staged, int width) { return (size_t)(own + staged) * width * 2 + ALIGN; }

template <class T, int W, int GROUPS, int BLOCKS, bool CAPPED>
dt_err hopper_forward(dt_stream *s, const dt_attention &at, const attention_arrays<T> &a)
{
    const attention_cut cut = {false, GROUPS * GROUP_ROWS, at.n_heads, attention_heads_at_once(&at, at.n_heads)};
    const size_t nbytes = panel_nbytes(cut.len, 4 * KEYS, W);
    const auto kernel = hopper_forward_kernel<T, W, GROUPS, BLOCKS, CAPPED>;
    CUDA_ALLOW_SHARED(kernel, nbytes);
    launch(s, (unsigned)attention_blocks(&at, cut), GROUPS * GROUP_THREADS, nbytes, kernel, at, cut, a);
    CUDA_LAUNCHED();
    return DT_OK;
}

template <class T, int W, int GROUPS, int BLOCKS, bool CAPPED>
dt_err hopper_dkv(dt_stream *s, const dt_attention &at, const attention_arrays<T> &a)
{
    const attention_cut cut = {true, GROUPS * GROUP_ROWS, at.n_kv_heads, attention_heads_at_once(&at, at.n_kv_heads)};
    const size_t nbytes = panel_nbytes(2 * cut.len, 4 * QUERIES, W) + 2 * QUERIES * sizeof(float2);
    const auto kernel = hopper_dkv_kernel<T, W, GROUPS, BLOCKS, CAPPED>;
    const int64_t n_blocks = attention_blocks(&at, cut);
    if (n_blocks == 0) return DT_OK;
    CUDA_ALLOW_SHARED(kernel, nbytes);
    launch(s, (unsigned)n_blocks, GROUPS * GROUP_THREADS, nbytes, kernel, at, cut, a);
    CUDA_LAUNCHED();
    return DT_OK;
}

template <class T, int W, int GROUPS, int BLOCKS, bool CAPPED>
dt_err hopper_dq(dt_stream *s, const dt_attention &at, const attention_arrays<T> &a)
{
    const attention_cut cut = {false, GROUPS * GROUP_ROWS, at.n_heads, attention_heads_at_once(&at, at.n_heads)};
    const size_t nbytes = panel_nbytes(2 * cut.len, 4 * KEYS, W);
    const auto kernel = hopper_dq_kernel<T, W, GROUPS, BLOCKS, CAPPED>;
    const int64_t n_blocks = attention_blocks(&at, cut);
    if (n_blocks == 0) return DT_OK;
    CUDA_ALLOW_SHARED(kernel, nbytes);
    launch(s, (unsigned)n_blocks, GROUPS * GROUP_THREADS, nbytes, kernel, at, cut, a);
    CUDA_LAUNCHED();
    return DT_OK;
}

} // namespace

bool cuda_attention_hopper_takes(dt_device *dev, const dt_attention &at, bool vectors)
{
#if !defined(__CUDACC__) || defined(DT_SM_90A) /* this object contains code for sm_90a */
    return cuda_of(dev)->properties.major == 9 && vectors && at.dropout_p == 0 && at.head_dim <= 128 &&
           cuda_attention_is_usual(at);
#else
    return false;
#endif
}

namespace
{

template <class T, bool CAPPED>
dt_err forward_by_width(dt_stream *s, const dt_attention &at, const attention_arrays<T> &a)
{
    if (at.head_dim <= 64) return hopper_forward<T, 64, 1, 4, CAPPED>(s, at, a);
    if (at.max_q_len < 2048) return hopper_forward<T, 128, 2, 1, CAPPED>(s, at, a);
    return hopper_forward<T, 128, 3, 1, CAPPED>(s, at, a);
}

template <class T, bool CAPPED>
dt_err backward_by_width(dt_stream *s, const dt_attention &at, const attention_arrays<T> &a)
{
    if (at.head_dim <= 64) {
        DT_TRY((hopper_dkv<T, 64, 1, 2, CAPPED>(s, at, a)));
        return hopper_dq<T, 64, 1, 3, CAPPED>(s, at, a);
    }
    DT_TRY((hopper_dkv<T, 128, 1, 2, CAPPED>(s, at, a)));
    return hopper_dq<T, 128, 1, 2, CAPPED>(s, at, a);
}

} // namespace

template <class T>
dt_err cuda_attention_hopper_forward(dt_stream *s, const dt_attention &at, const attention_arrays<T> &a)
{
    return at.softcap > 0 ? forward_by_width<T, true>(s, at, a) : forward_by_width<T, false>(s, at, a);
}

template <class T>
dt_err cuda_attention_hopper_backward(dt_stream *s, const dt_attention &at, const attention_arrays<T> &a)
{
    return at.softcap > 0 ? backward_by_width<T, true>(s, at, a) : backward_by_width<T, false>(s, at, a);
}

#define INSTANCES(T)                                                                                                   \
    template dt_err cuda_attention_hopper_forward(dt_stream *, const dt_attention &, const attention_arrays<T> &);     \
    template dt_err cuda_attention_hopper_backward(dt_stream *, const dt_attention &, const attention_arrays<T> &)
INSTANCES(bf16);
INSTANCES(__half);
