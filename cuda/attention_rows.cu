/* attention_rows.cu - attention for generation (dt_attention.batch_invariant): the query heads that share a key head,
 * of one token or a few, against the keys in a cache. A row is one query head of one token; a warp has 16 rows.
 *
 * The keys of a sequence are cut into splits of fixed length. Within a split a row's softmax runs as in
 * attention_forward.cu; the splits' maxima m, sums l and weighted values o are then folded in order:
 *     M' = max(M, m),  L <- e^(M-M') L + e^(m-M') l,  O <- e^(M-M') O + e^(m-M') o
 * Either one warp does all splits of its rows, or each split has a warp and a second kernel folds what they leave in
 * the stream's workspace: which one depends on how many warps there are, its result does not. So a row has the same
 * bits whichever queries are in the call. Probabilities keep 16 bits and more, as a pair of elements: what is fast here
 * is reading the cache, not multiplying. */
#include "attention_mma.cuh"

namespace
{

enum { ROWS = 16, SPLIT = 256, KEYS = 32 };

/* What the splits of a row amount to so far. base: of a maximum that may be -inf. */
__device__ float base_of(float max) { return max == -INFINITY ? 0.0f : max; }
struct fold_factors {
    float max, old, part;
};
__device__ fold_factors fold(float max, float part_max, float scale)
{
    const float most = fmaxf(max, part_max), base = base_of(most);
    return {most, exp2_approx((max - base) * scale), exp2_approx((part_max - base) * scale)};
}
__device__ float folded(const fold_factors &f, float sum, float part)
{
    return fmaf(sum, f.old, __fmul_rn(part, f.part));
}

/* Where splits leave what they found: [tiles][n_splits][n_rows][2 + W] floats: m, l, o. NULL: one warp does all. */
struct row_parts {
    float *at;
    int n_splits, n_rows; /* most of any sequence and tile */
};
__device__ float *part_of(const row_parts &parts, int width, int64_t tile, int split, int row)
{
    return parts.at + ((tile * parts.n_splits + split) * parts.n_rows + row) * (2 + width);
}

template <int W> struct row_shape {
    static constexpr int STAGE = 2 * KEYS * W, SUMS = W / 8 * 4;
    static constexpr size_t NBYTES = (size_t)(ROWS * W + 2 * STAGE) * 2 + SUMS * WARP * sizeof(float);
};

/* The tile's queries, and keys that any of its rows sees. Row r is head r % group of query r / group. */
__device__ attention_range keys_of_rows(const dt_attention &at, const attention_tile &t, int group)
{
    const int n_rows = t.n_q * group, last = t.first + ROWS < n_rows ? t.first + ROWS - 1 : n_rows - 1;
    return keys_of(at, t, t.first / group, last / group - t.first / group + 1);
}

/* Weights in two parts: what the element type keeps of them, and what it keeps of the rest. */
template <class T, int N> __device__ void split_weights(float (&s)[1][N][4], float (&rest)[1][N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) rest[0][n][e] = s[0][n][e] - to_float(from_float<T>(s[0][n][e]));
}

/* The tile's rows of q, [ROWS][W] as load_tile has it; zeros beside and below. */
template <class T, int W>
__device__ void load_query_rows(T *q, const dt_attention &at, const attention_arrays<T> &a, const attention_tile &t,
                                int group)
{
    const int lane = threadIdx.x, n_rows = t.n_q * group - t.first;
    for (int i = 0; i < ROWS; i++) {
        const int row = t.first + i < t.n_q * group ? t.first + i : t.first;
        const T *from = a.q + (t.q_row + row / group) * at.q_ld + (t.head * group + row % group) * at.head_dim;
        for (int c = lane; c < W; c += WARP)
            q[tile_shape<W>::place(i, c / 8) + c % 8] = i < n_rows && c < at.head_dim ? from[c] : from_float<T>(0.0f);
    }
}

template <int W> using split_sums = running<1, KEYS / 8, W / 8>;

/* What the splits of a lane's two rows, g and g + 8, amount to so far. */
template <int W> struct folded_rows {
    float max[2], sum[2];
    float *o; /* [SUMS][WARP] in shared memory, from this lane's column on */

    __device__ folded_rows(float *o_) : max{-INFINITY, -INFINITY}, sum{0.0f, 0.0f}, o(o_)
    {
        for (int i = 0; i < row_shape<W>::SUMS; i++) o[i * WARP] = 0.0f;
    }
    __device__ void add(const split_sums<W> &split, float scale)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const fold_factors f = fold(max[h], split.max[0][h], scale);
            max[h] = f.max, sum[h] = folded(f, sum[h], split.sum[0][h]);
#pragma unroll
            for (int n = 0; n < W / 8; n++)
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; e++)
                    o[(4 * n + e) * WARP] = folded(f, o[(4 * n + e) * WARP], split.o[0][n][e]);
        }
    }
    /* Row g + 8 h to out [d]. */
    template <class T> __device__ void store(int h, T *out, int d) const
    {
        const float inverse = sum[h] == 0.0f ? 0.0f : 1.0f / sum[h]; /* a NaN goes on */
#pragma unroll
        for (int n = 0; n < W / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int c = 8 * n + (int)threadIdx.x % 4 * 2 + e;
                if (c < d) out[c] = from_float<T>(o[(4 * n + 2 * h + e) * WARP] * inverse);
            }
    }
};

/* Row g + 8 h of a split to part [2 + W]. */
template <int W> __device__ void store_part(const split_sums<W> &split, int h, float *part)
{
    const int column = threadIdx.x % 4 * 2;
    if (column == 0) part[0] = split.max[0][h], part[1] = split.sum[0][h];
#pragma unroll
    for (int n = 0; n < W / 8; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) part[2 + 8 * n + column + e] = split.o[0][n][2 * h + e];
}

/* What a tile of keys adds to a split. to: of the lane's two rows. */
template <class T, int W>
__device__ void add_keys(split_sums<W> &split, const T *q, const T *k, const T *v, const dt_attention &at,
                         const int (&to)[1][2], int key, bool all)
{
    float s[1][KEYS / 8][4], rest[1][KEYS / 8][4];
    uint32_t w[1][KEYS / 16][4];
    multiply_rows<T, W>(s, q, 0, k, 0);
    if (!all) mask_scores(s, at, to, key);
    split.exponentials(s, at.scale * LOG2_E);
    split_weights<T>(s, rest);
    pack_weights<T>(w, s);
    add_weighted_rows<T, W>(split.o, w, v, 0);
    pack_weights<T>(w, rest);
    add_weighted_rows<T, W>(split.o, w, v, 0);
}

/* A block is a warp with 16 rows; blockIdx.y is a split where parts are left, else the warp does all. */
template <class T, int W>
__global__ void __launch_bounds__(WARP, 1)
    rows_kernel(dt_attention at, attention_cut cut, attention_arrays<T> a, row_parts parts, bool vectors)
{
    using shape = row_shape<W>;
    DYNAMIC_SHARED(T, q);
    T *const stages = q + ROWS * W; /* [2][2][KEYS][W]: K, V */
    attention_tile t;
    if (!find_tile(at, cut, blockIdx.x, &t)) return;
    const int d = at.head_dim, group = cut.each, lane = threadIdx.x;
    const attention_range keys = keys_of_rows(at, t, group);
    /* from the split's first tile that any row sees */
    const int seen = keys.from / KEYS * KEYS, first = parts.at ? blockIdx.y * SPLIT : seen,
              begin = first < seen ? seen : first, end = parts.at && first + SPLIT < keys.to ? first + SPLIT : keys.to;
    if (begin >= end && parts.at) return;
    const T *k = a.k + t.kv_row * at.kv_ld + t.head * d, *v = a.v + t.kv_row * at.kv_ld + t.head * d;
    const auto load_keys = [&](int key, int which) {
        const int n_keys = t.n_kv - key < KEYS ? t.n_kv - key : KEYS;
        T *stage = stages + which * shape::STAGE;
        load_tile<T, W, KEYS, WARP>(stage, k + key * at.kv_ld, at.kv_ld, n_keys, d, vectors);
        load_tile<T, W, KEYS, WARP>(stage + KEYS * W, v + key * at.kv_ld, at.kv_ld, n_keys, d, vectors);
        copy_async_commit();
    };
    folded_rows<W> all(reinterpret_cast<float *>(stages + 2 * shape::STAGE) + lane);
    split_sums<W> split;
    int to[1][2];
    for (int h = 0; h < 2; h++) to[0][h] = seen_to(at, t, (t.first + lane / 4 + 8 * h) / group);
    split.clear();
    load_query_rows<T, W>(q, at, a, t, group);
    if (begin < end) load_keys(begin, 0);
    for (int key = begin, which = 0; key < end; key += KEYS, which ^= 1) {
        const T *stage = stages + which * shape::STAGE;
        __syncwarp(); /* nobody reads the other stage any more */
        if (key + KEYS < end) {
            load_keys(key + KEYS, which ^ 1);
            copy_async_wait<1>();
        } else {
            copy_async_wait<0>();
        }
        __syncwarp();
        add_keys<T, W>(split, q, stage, stage + KEYS * W, at, to, key,
                       key >= keys.all_from && key + KEYS <= keys.all_to);
        if ((key + KEYS) % SPLIT != 0 && key + KEYS < end) continue;
        split.sum[0][0] = quad_sum(split.sum[0][0]), split.sum[0][1] = quad_sum(split.sum[0][1]);
        if (parts.at) break;
        all.add(split, at.scale * LOG2_E);
        split.clear();
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = lane / 4 + 8 * h, r = t.first + row;
        if (r >= t.n_q * group) continue;
        if (parts.at)
            store_part<W>(split, h, part_of(parts, W, blockIdx.x, blockIdx.y, row));
        else
            all.store(h, a.out_w + (t.q_row + r / group) * at.o_ld + (t.head * group + r % group) * d, d);
    }
}

/* The splits of one row, a warp for each, a lane for every 32nd column. */
template <class T, int W>
__global__ void fold_kernel(dt_attention at, attention_cut cut, attention_arrays<T> a, row_parts parts)
{
    const int64_t tile = blockIdx.x / parts.n_rows;
    const int row = blockIdx.x % parts.n_rows, lane = threadIdx.x, group = cut.each;
    attention_tile t;
    if (!find_tile(at, cut, tile, &t) || t.first + row >= t.n_q * group) return;
    const float scale = at.scale * LOG2_E;
    const attention_range keys = keys_of_rows(at, t, group);
    float max = -INFINITY, sum = 0.0f, o[W / WARP] = {};
    for (int split = keys.from / SPLIT; split * SPLIT < keys.to; split++) {
        const float *part = part_of(parts, W, tile, split, row);
        const fold_factors f = fold(max, part[0], scale);
        max = f.max, sum = folded(f, sum, part[1]);
#pragma unroll
        for (int i = 0; i < W / WARP; i++) o[i] = folded(f, o[i], part[2 + lane + WARP * i]);
    }
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    const int r = t.first + row;
    T *out = a.out_w + (t.q_row + r / group) * at.o_ld + (t.head * group + r % group) * at.head_dim;
#pragma unroll
    for (int i = 0; i < W / WARP; i++)
        if (lane + WARP * i < at.head_dim) out[lane + WARP * i] = from_float<T>(o[i] * inverse);
}

template <class T, int W>
dt_err rows(dt_device *dev, dt_stream *s, const dt_attention &at, const attention_arrays<T> &a)
{
    const int group = at.n_heads / at.n_kv_heads;
    attention_cut cut = {false, ROWS, at.n_kv_heads, attention_heads_at_once(&at, at.n_kv_heads)};
    cut.each = group;
    const int64_t n_tiles = attention_blocks(&at, cut), n_splits = ceil_div(at.max_kv_len, SPLIT),
                  longest = (int64_t)at.max_q_len * group, n_rows = longest < ROWS ? longest : ROWS,
                  nbytes = n_tiles * n_splits * n_rows * (2 + W) * (int64_t)sizeof(float);
    const bool vectors = vectors_fit((size_t)(at.kv_ld | at.head_dim) * sizeof(T), a.k, a.v);
    const int enough = 4 * cuda_of(dev)->properties.multiProcessorCount; /* warps that read at full speed */
    row_parts parts = {nullptr, (int)n_splits, (int)n_rows};
    if (n_splits > 1 && n_splits < 65536 && n_tiles < enough && nbytes <= CUDA_WORKSPACE_NBYTES)
        parts.at = (float *)s->workspace;
    const dim3 grid((unsigned)n_tiles, parts.at ? (unsigned)n_splits : 1);
    CUDA_ALLOW_SHARED((rows_kernel<T, W>), row_shape<W>::NBYTES);
    launch(s, grid, WARP, row_shape<W>::NBYTES, rows_kernel<T, W>, at, cut, a, parts, vectors);
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
