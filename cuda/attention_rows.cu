/* attention_rows.cu - attention for generation (dt_attention.batch_invariant): one or a few tokens per sequence against
 * the keys in a cache. Equations as in attention_forward.cu.
 *
 * Arrays    those of dt_attention; 16-bit elements.
 * Threads   A row is one query head of one token. A block has 16 rows of query heads that share a key head, so they
 *           share the reads of the cache. The keys of a sequence are divided into splits of 256, and these into tiles
 *           of 32; tile i belongs to warp i mod WARPS, so the reads of a whole split are in flight at once. Within its
 *           tiles a warp computes an online softmax. The warps' maxima m, sums l and weighted values o are then
 *           combined in order, and so are the splits':
 *
 *     M' = max(M, m),  L <- e^(M-M') L + e^(m-M') l,  O <- e^(M-M') O + e^(m-M') o
 *
 * Either one block computes all splits of its rows, or each split has a block and a second kernel combines the partial
 * results in the stream's workspace. The number of blocks decides which; both give the same result. The division
 * depends only on the positions of the keys, so a row has the same bits whatever the other queries of the call are.
 *
 * Numerics  Probabilities keep at least 16 bits, as a pair of elements, because reading the cache takes longer than
 *           multiplying.
 *
 * Source   Dao et al., "Flash-Decoding for long-context inference", 2023. */
#include "attention_mma.cuh"

namespace
{

enum { ROWS = 16, SPLIT = 256, KEYS = 32 };

/* Shared memory: queries [ROWS][W], a tile of K and V [2][KEYS][W] per warp, and sums of rows [ROWS][PART]. A warp's
 * result of a split overwrites its tile. */
template <int W> struct row_shape {
    static constexpr int WARPS = W <= 64 ? 8 : W <= 128 ? 4 : 2, THREADS = WARPS * WARP, STAGE = 2 * KEYS * W;
    static constexpr int PART = W + 8; /* o [W], m, l; rows 8 banks apart */
    static constexpr size_t NBYTES = (size_t)(ROWS * W + WARPS * STAGE) * 2 + ROWS * PART * sizeof(float);
    static_assert(ROWS * PART * sizeof(float) <= STAGE * 2, "sums fit into a stage");
};

/* Partial softmax of a row over some of its keys; a lane has every 32nd column. */
template <int W> struct row_sums {
    float max, sum, o[W / WARP];

    __device__ row_sums() : max(-INFINITY), sum(0.0f), o{} {}
    __device__ explicit row_sums(const float *part) : max(part[W]), sum(part[W + 1])
    {
#pragma unroll
        for (int i = 0; i < W / WARP; i++) o[i] = part[threadIdx.x % WARP + WARP * i];
    }
    __device__ void keep(float *part) const
    {
        const int lane = threadIdx.x % WARP;
        if (lane == 0) part[W] = max, part[W + 1] = sum;
#pragma unroll
        for (int i = 0; i < W / WARP; i++) part[lane + WARP * i] = o[i];
    }
    /* Add the result of later keys. If neither has a visible key, the maximum is -inf. */
    __device__ void add(const row_sums &next, float scale)
    {
        const float most = fmaxf(max, next.max), base = most == -INFINITY ? 0.0f : most,
                    mine = exp2_approx((max - base) * scale), theirs = exp2_approx((next.max - base) * scale);
        max = most, sum = fmaf(sum, mine, __fmul_rn(next.sum, theirs));
#pragma unroll
        for (int i = 0; i < W / WARP; i++) o[i] = fmaf(o[i], mine, __fmul_rn(next.o[i], theirs));
    }
    template <class T> __device__ void store(T *out, const dt_attention &at, int head) const
    {
        const float factor = end_row(at, head, max, sum).factor;
        const int d = at.head_dim, lane = threadIdx.x % WARP;
#pragma unroll
        for (int i = 0; i < W / WARP; i++)
            if (lane + WARP * i < d) out[lane + WARP * i] = from_float<T>(o[i] * factor);
    }
};

/* Partial results of blocks: [tiles][n_splits][n_rows][PART] floats. NULL: one block computes all splits. */
struct row_parts {
    float *at;
    int n_splits, n_rows; /* maximum over sequences and tiles */
};
template <int W> __device__ float *part_of(const row_parts &parts, int64_t tile, int split, int row)
{
    return parts.at + ((tile * parts.n_splits + split) * parts.n_rows + row) * row_shape<W>::PART;
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* As find_tile, without a search if each sequence has one token. */
__device__ bool find_rows(const dt_attention &at, const attention_cut &cut, int64_t index, attention_tile *t)
{
    if (at.max_q_len > 1 || at.n_tok != at.n_seq || cut.each > ROWS) return find_tile(at, cut, index, t);
    const int s = (int)index / cut.n_heads;
    t->head = (int)index % cut.n_heads, t->first = 0, t->n_q = 1, t->n_kv = at.kv_len[s], t->q_row = s;
    find_keys(at, s, t);
    return true;
}

/* The tile's queries, and the keys that any of its rows attends to. Row r is head r % group of query r / group. */
__device__ int n_rows_of(const attention_tile &t, int group)
{
    return t.n_q * group - t.first < ROWS ? t.n_q * group - t.first : ROWS;
}
__device__ attention_range keys_of_rows(const dt_attention &at, const attention_tile &t, int group)
{
    const int last = t.first + n_rows_of(t, group) - 1;
    return keys_of(at, t, t.first / group, last / group - t.first / group + 1);
}

/* Query head of the tile's row. */
__device__ int head_of_row(const attention_tile &t, int group, int row)
{
    return t.head * group + (t.first + row) % group;
}

/* Offset of the tile's row in q or out, with row distance ld. */
__device__ int64_t place_of_row(const dt_attention &at, const attention_tile &t, int group, int row, int64_t ld)
{
    const int r = t.first + row;
    return (t.q_row + r / group) * ld + head_of_row(t, group, row) * at.head_dim;
}

/* Load the tile's rows of q into [ROWS][W] in load_tile's layout, padded with zeros. */
template <class T, int W>
__device__ void load_query_rows(T *q, const dt_attention &at, const attention_arrays<T> &a, const attention_tile &t,
                                int group)
{
    const int lane = threadIdx.x % WARP, n_rows = n_rows_of(t, group);
    for (int i = threadIdx.x / WARP; i < ROWS; i += row_shape<W>::WARPS) {
        const T *from = a.q + place_of_row(at, t, group, i < n_rows ? i : 0, at.q_ld);
        for (int c = lane; c < W; c += WARP)
            q[tile_shape<W>::place(i, c / 8) + c % 8] = i < n_rows && c < at.head_dim ? from[c] : from_float<T>(0.0f);
    }
}

/* ---- a warp's part of a split ------------------------------------------------------------------------------------ */

template <int W> using split_sums = running<1, KEYS / 8, W / 8>;

/* Split weights into a rounded part and the rounded remainder. */
template <class T, int N> __device__ void split_weights(float (&s)[1][N][4], float (&rest)[1][N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) rest[0][n][e] = s[0][n][e] - to_float(from_float<T>(s[0][n][e]));
}

/* Add a tile of keys. to: end of the visible keys, for the lane's two rows. */
template <class T, int W>
__device__ void add_keys(split_sums<W> &split, const T *q, const T *k, const T *v, const dt_attention &at,
                         const int (&to)[1][2], int key, bool all)
{
    float s[1][KEYS / 8][4], rest[1][KEYS / 8][4];
    uint32_t w[1][KEYS / 16][4];
    multiply_rows<T, W>(s, q, 0, k, 0);
    if (at.softcap > 0) cap_scores(s, at);
    if (!all) mask_scores(s, at, to, key);
    split.exponentials(s, at.scale * LOG2_E);
    split_weights<T>(s, rest);
    pack_weights<T>(w, s);
    add_weighted_rows<T, W>(split.o, w, v, 0);
    pack_weights<T>(w, rest);
    add_weighted_rows<T, W>(split.o, w, v, 0);
}

/* Store the warp's result in part [ROWS][PART]. */
template <int W> __device__ void keep_split(const split_sums<W> &split, float *part)
{
    const int lane = threadIdx.x % WARP, column = lane % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *row = part + (lane / 4 + 8 * h) * row_shape<W>::PART;
        const float sum = quad_sum(split.sum[0][h]);
        if (column == 0) row[W] = split.max[0][h], row[W + 1] = sum;
#pragma unroll
        for (int n = 0; n < W / 8; n++)
            *reinterpret_cast<float2 *>(row + 8 * n + column) =
                make_float2(split.o[0][n][2 * h], split.o[0][n][2 * h + 1]);
    }
}

/* Combine the warps' results of a row in order; they are a stage apart. */
template <int W> __device__ row_sums<W> fold_warps(const float *part, int row, float scale)
{
    using shape = row_shape<W>;
    row_sums<W> sums;
#pragma unroll
    for (int w = 0; w < shape::WARPS; w++)
        sums.add(row_sums<W>(part + w * (shape::STAGE / 2) + row * shape::PART), scale);
    return sums;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Attention of 16 rows per block; blockIdx.y is the split if there are parts, else the block computes all splits. */
template <class T, int W>
__global__ void __launch_bounds__(row_shape<W>::THREADS, 1)
    rows_kernel(dt_attention at, attention_cut cut, attention_arrays<T> a, row_parts parts, bool vectors)
{
    using shape = row_shape<W>;
    DYNAMIC_SHARED(T, q);
    T *const stages = q + ROWS * W;
    float *const sums = reinterpret_cast<float *>(stages + shape::WARPS * shape::STAGE);
    attention_tile t;
    if (!find_rows(at, cut, blockIdx.x, &t)) return;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, d = at.head_dim, group = cut.each;
    const float scale = at.scale * LOG2_E;
    const attention_range keys = keys_of_rows(at, t, group);
    const int first = parts.at ? blockIdx.y * SPLIT : 0, begin = first < keys.from ? keys.from : first,
              end = parts.at && first + SPLIT < keys.to ? first + SPLIT : keys.to;
    if (begin >= end && parts.at) return;

    const int64_t row = first_key_row(t), away = way_to_shared(t) * at.kv_ld;
    const T *k = a.k + row * at.kv_ld + t.head * d, *v = a.v + row * at.kv_ld + t.head * d;
    T *const stage = stages + warp * shape::STAGE;
    const int tile = begin / KEYS, mine = tile + (warp + shape::WARPS - tile % shape::WARPS) % shape::WARPS;
    int key = mine * KEYS, split = begin / SPLIT; /* key: first key of the warp's next tile */
    const auto in_split = [&]() { return key < end && key < (split + 1) * SPLIT; };
    const auto load_keys = [&]() {
        const int n_keys = t.n_kv - key < KEYS ? t.n_kv - key : KEYS, n_away = t.n_shared - key;
        const int64_t from = key * at.kv_ld;
        load_tile<T, W, KEYS, WARP>(stage, k + from, at.kv_ld, n_keys, d, vectors, lane, n_away, away);
        load_tile<T, W, KEYS, WARP>(stage + KEYS * W, v + from, at.kv_ld, n_keys, d, vectors, lane, n_away, away);
        copy_async_commit();
    };
    if (in_split()) load_keys();
    load_query_rows<T, W>(q, at, a, t, group);
    __syncthreads();
    int to[1][2];
    for (int h = 0; h < 2; h++) to[0][h] = seen_to(at, t, (t.first + lane / 4 + 8 * h) / group);
    for (bool more = true; more;) {
        split_sums<W> found;
        found.clear();
        while (in_split()) {
            copy_async_wait<0>();
            __syncwarp();
            add_keys<T, W>(found, q, stage, stage + KEYS * W, at, to, key,
                           key >= keys.all_from && key + KEYS <= keys.all_to);
            __syncwarp(); /* all lanes have read the tile */
            key += shape::WARPS * KEYS;
            if (in_split()) load_keys();
        }
        keep_split<W>(found, reinterpret_cast<float *>(stage));
        __syncthreads();
        more = (split + 1) * SPLIT < end;
        for (int row = warp; row < n_rows_of(t, group); row += shape::WARPS) {
            const row_sums<W> found = fold_warps<W>(reinterpret_cast<const float *>(stages), row, scale);
            if (parts.at) {
                found.keep(part_of<W>(parts, blockIdx.x, split, row));
                continue;
            }
            row_sums<W> all;
            if (split > begin / SPLIT) all = row_sums<W>(sums + row * shape::PART);
            all.add(found, scale);
            __syncwarp(); /* all lanes have read the row's maximum and sum */
            if (more)
                all.keep(sums + row * shape::PART);
            else
                all.store(a.out_w + place_of_row(at, t, group, row, at.o_ld), at, head_of_row(t, group, row));
        }
        __syncthreads(); /* the warps' results have been read */
        split++;
        if (in_split()) load_keys();
    }
}

/* Combine the splits of a row, in order; a warp per row. */
template <class T, int W>
__global__ void fold_kernel(dt_attention at, attention_cut cut, attention_arrays<T> a, row_parts parts)
{
    const int64_t tile = blockIdx.x / parts.n_rows;
    const int row = blockIdx.x % parts.n_rows;
    attention_tile t;
    if (!find_rows(at, cut, tile, &t) || row >= n_rows_of(t, cut.each)) return;
    const attention_range keys = keys_of_rows(at, t, cut.each);
    row_sums<W> all;
#pragma unroll 4
    for (int split = keys.from / SPLIT; split * SPLIT < keys.to; split++)
        all.add(row_sums<W>(part_of<W>(parts, tile, split, row)), at.scale * LOG2_E);
    all.store(a.out_w + place_of_row(at, t, cut.each, row, at.o_ld), at, head_of_row(t, cut.each, row));
}

template <class T, int W>
dt_err rows(dt_device *dev, dt_stream *s, const dt_attention &at, const attention_arrays<T> &a)
{
    using shape = row_shape<W>;
    const int group = at.n_heads / at.n_kv_heads;
    attention_cut cut = {false, ROWS, at.n_kv_heads, attention_heads_at_once(&at, at.n_kv_heads)};
    cut.each = group;
    const int64_t n_tiles = attention_blocks(&at, cut), n_splits = ceil_div(at.max_kv_len, SPLIT),
                  longest = (int64_t)at.max_q_len * group, n_rows = longest < ROWS ? longest : ROWS,
                  nbytes = n_tiles * n_splits * n_rows * shape::PART * (int64_t)sizeof(float);
    const bool vectors = vectors_fit((size_t)(at.kv_ld | at.head_dim) * sizeof(T), a.k, a.v);
    /* a block on every second multiprocessor almost reaches the memory bandwidth */
    const bool few = 2 * n_tiles <= cuda_of(dev)->properties.multiProcessorCount;
    row_parts parts = {nullptr, (int)n_splits, (int)n_rows};
    if (few && n_splits > 1 && n_splits < 65536 && nbytes <= DT_GPU_WORKSPACE_NBYTES) parts.at = (float *)s->workspace;
    const dim3 grid((unsigned)n_tiles, parts.at ? (unsigned)n_splits : 1);
    CUDA_ALLOW_SHARED((rows_kernel<T, W>), shape::NBYTES);
    launch(s, grid, shape::THREADS, shape::NBYTES, rows_kernel<T, W>, at, cut, a, parts, vectors);
    if (parts.at) launch(s, (unsigned)(n_tiles * n_rows), WARP, 0, fold_kernel<T, W>, at, cut, a, parts);
    CUDA_LAUNCHED();
    return DT_OK;
}

} // namespace

template <class T>
dt_err cuda_attention_rows(dt_device *dev, dt_stream *s, const dt_attention &at, const attention_arrays<T> &a)
{
    if (at.head_dim <= 64) return rows<T, 64>(dev, s, at, a);
    if (at.head_dim <= 96) return rows<T, 96>(dev, s, at, a);
    if (at.head_dim <= 128) return rows<T, 128>(dev, s, at, a);
    return rows<T, 256>(dev, s, at, a);
}
template dt_err cuda_attention_rows(dt_device *, dt_stream *, const dt_attention &, const attention_arrays<bf16> &);
template dt_err cuda_attention_rows(dt_device *, dt_stream *, const dt_attention &, const attention_arrays<__half> &);
