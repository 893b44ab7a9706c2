/* attention_mma.cuh - tiles of 16-bit elements in shared memory, and their matmuls on tensor cores.
 *
 * A tile is [rows][W], with W the head's width rounded up. Rows consist of chunks of 16 bytes. The chunk's index is
 * xored with some bits of the row's, so that the same chunk of 8 adjacent rows is in 8 different groups of banks.
 * Matmuls of rows (scores) and of weights with rows (sums) load their fragments from tiles, or use the accumulators of
 * another matmul, which have the layout of a left operand once they are packed. */
#ifndef DTRAIN_CUDA_ATTENTION_MMA_CUH
#define DTRAIN_CUDA_ATTENTION_MMA_CUH

#include "attention.cuh"
#include "ptx.cuh"

template <int W> struct tile_shape {
    static constexpr int CHUNKS = W / 8;
    /* rows after which the banks of chunks repeat */
    static constexpr int PERIOD = W % 64 == 0 ? 1 : W % 32 == 0 ? 2 : 4;
    static_assert(W % 16 == 0, "fragments are 16 wide");
    __device__ static int turn(int row) { return row % 8 / PERIOD; }
    /* offset of the first element of chunk `chunk` of row `row` */
    __device__ static int place(int row, int chunk) { return row * W + (chunk ^ turn(row)) * 8; }
};

/** Load n rows of src, which has d columns, into tile [ROWS][W], padded with zeros. vectors: by asynchronous copies, if
 *  d, ld and the address are aligned; else complete on return. thread: of THREADS. The first n_away rows are `away`
 *  elements after their regular address. */
template <class T, int W, int ROWS, int THREADS>
__device__ inline void load_tile(T *tile, const T *src, int64_t ld, int n, int d, bool vectors,
                                 int thread = threadIdx.x, int n_away = 0, int64_t away = 0)
{
    using shape = tile_shape<W>;
    if (vectors) {
        /* a thread has the same chunk in all rows if a row's chunks divide the threads */
        constexpr bool KEEPS = THREADS % shape::CHUNKS == 0;
        const int first_row = thread / shape::CHUNKS, first_chunk = thread % shape::CHUNKS;
        const T *from = src + first_row * ld + first_chunk * 8, *const first = n_away > 0 ? src + away : src;
#pragma unroll
        for (int i = 0; i < ROWS * shape::CHUNKS; i += THREADS) {
            const int row = KEEPS ? first_row + i / shape::CHUNKS : (i + thread) / shape::CHUNKS,
                      chunk = KEEPS ? first_chunk : (i + thread) % shape::CHUNKS;
            if (ROWS * shape::CHUNKS % THREADS != 0 && row >= ROWS) break;
            if (!KEEPS) from = src + row * ld + chunk * 8;
            const bool valid = row < n && chunk * 8 < d;
            copy_async_16(tile + shape::place(row, chunk), !valid ? first : row < n_away ? from + away : from, valid);
            from += THREADS / shape::CHUNKS * ld;
        }
        return;
    }
#pragma unroll 1
    for (int i = thread; i < ROWS * shape::CHUNKS; i += THREADS) {
        const int row = i / shape::CHUNKS, chunk = i % shape::CHUNKS;
        vec<T, 8> eight;
#pragma unroll
        for (int c = 0; c < 8; c++)
            eight.x[c] = row < n && chunk * 8 + c < d ? src[row * ld + (row < n_away ? away : 0) + chunk * 8 + c]
                                                      : from_float<T>(0.0f);
        *reinterpret_cast<vec<T, 8> *>(tile + shape::place(row, chunk)) = eight;
    }
}

/** Address of a lane's part of fragments: `offset` of its row; chunks are xored with `turn`. */
template <int W> struct lane_place {
    int offset, turn;
    __device__ lane_place(int row, int chunk) : offset(row * W), turn(chunk ^ tile_shape<W>::turn(row)) {}
    /* of the 16 x 16 elements at row `row` (a multiple of 8) and column 16 k */
    __device__ int at(int row, int k) const { return offset + row * W + ((2 * k) ^ turn) * 8; }
};
/** For A [16 rows][16], for B [16][16] whose columns are rows of the tile, and for B [16][16] whose rows are rows of
 *  the tile. */
template <int W> __device__ inline lane_place<W> place_of_a()
{
    const int lane = threadIdx.x % WARP;
    return {lane % 16, lane / 16};
}
template <int W> __device__ inline lane_place<W> place_of_columns()
{
    const int lane = threadIdx.x % WARP;
    return {lane % 8 + lane / 16 * 8, lane / 8 % 2};
}
template <int W> __device__ inline lane_place<W> place_of_rows() { return place_of_a<W>(); }

/** s = A B^T for 16 M rows of A starting at a_row, and 8 N rows of B starting at b_row; tiles [..][W]. */
template <class T, int W, int M, int N>
__device__ inline void multiply_rows(float (&s)[M][N][4], const T *a, int a_row, const T *b, int b_row)
{
    const lane_place<W> in_a = place_of_a<W>(), in_b = place_of_columns<W>();
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[m][n][e] = 0.0f;
#pragma unroll
    for (int k = 0; k < W / 16; k++) {
        uint32_t left[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) ldmatrix_x4(left[m], a + in_a.at(a_row + 16 * m, k));
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t right[4];
            ldmatrix_x4(right, b + in_b.at(b_row + 8 * n, k));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_16816(s[m][n], left[m], right, T());
                mma_16816(s[m][n + 1], left[m], right + 2, T());
            }
        }
    }
}

/** Round weights [16 M][8 N] and pack them as a left operand. */
template <class T, int M, int N>
__device__ inline void pack_weights(uint32_t (&w)[M][N / 2][4], const float (&s)[M][N][4])
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int k = 0; k < N / 2; k++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                w[m][k][i] = pack_pair<T>(s[m][2 * k + i / 2][i % 2 * 2], s[m][2 * k + i / 2][i % 2 * 2 + 1]);
}

/** sum += weights B, for 16 K rows of B starting at b_row, a tile [..][W]. */
template <class T, int W, int M, int K>
__device__ inline void add_weighted_rows(float (&sum)[M][W / 8][4], const uint32_t (&w)[M][K][4], const T *b, int b_row)
{
    const lane_place<W> in_b = place_of_rows<W>();
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int n = 0; n < W / 16; n++) {
            uint32_t right[4];
            ldmatrix_x4_trans(right, b + in_b.at(b_row + 16 * k, n));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_16816(sum[m][2 * n], w[m][k], right, T());
                mma_16816(sum[m][2 * n + 1], w[m][k], right + 2, T());
            }
        }
}

/** dst [d] = row `row` of 16 (a lane has rows g and g + 8) of sums times factor. vectors: pairs are aligned. */
template <class T, int N>
__device__ inline void store_sums(const float (&sum)[N][4], int half, float factor, T *dst, int d, bool vectors)
{
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < N; n++) {
        const int c = 8 * n + column;
        const float x = sum[n][2 * half] * factor, y = sum[n][2 * half + 1] * factor;
        if (vectors) {
            if (c < d) *reinterpret_cast<uint32_t *>(dst + c) = pack_pair<T>(x, y);
        } else {
            if (c < d) dst[c] = from_float<T>(x);
            if (c + 1 < d) dst[c + 1] = from_float<T>(y);
        }
    }
}

/** Sum and maximum over the four lanes that share the rows of an accumulator. */
__device__ inline float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ inline float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* ---- softmax ----------------------------------------------------------------------------------------------------- */

/** Online softmax of 16 M rows with 8 N scores at a time, and the weighted sums of 8 D columns. Lane 4 g + t has the
 *  rows g and g + 8 of each 16. */
template <int M, int N, int D> struct running {
    float max[M][2], sum[M][2]; /* sum: of this lane's columns */
    float o[M][D][4];

    __device__ void clear()
    {
#pragma unroll
        for (int m = 0; m < M; m++) {
            max[m][0] = max[m][1] = -INFINITY, sum[m][0] = sum[m][1] = 0.0f;
#pragma unroll
            for (int n = 0; n < D; n++) o[m][n][0] = o[m][n][1] = o[m][n][2] = o[m][n][3] = 0.0f;
        }
    }

    /* Replace scores by e^(s - max), and rescale sums to the new maximum. */
    __device__ void exponentials(float (&s)[M][N][4], float scale)
    {
#pragma unroll
        for (int m = 0; m < M; m++) {
            float alpha[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float most = max[m][h], part = 0.0f;
#pragma unroll
                for (int n = 0; n < N; n++) most = fmaxf(most, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
                most = quad_max(most);
                const float base = most == -INFINITY ? 0.0f : most, shift = base * scale;
                alpha[h] = exp2_approx((max[m][h] - base) * scale); /* 1 if the maximum is unchanged */
                max[m][h] = most;
#pragma unroll
                for (int n = 0; n < N; n++)
#pragma unroll
                    for (int e = 2 * h; e < 2 * h + 2; e++)
                        part += s[m][n][e] = exp2_approx(fmaf(s[m][n][e], scale, -shift));
                sum[m][h] = fmaf(sum[m][h], alpha[h], part);
            }
            if (!__any_sync(0xffffffffu, alpha[0] != 1.0f || alpha[1] != 1.0f)) continue;
#pragma unroll
            for (int n = 0; n < D; n++)
                o[m][n][0] *= alpha[0], o[m][n][1] *= alpha[0], o[m][n][2] *= alpha[1], o[m][n][3] *= alpha[1];
        }
    }
};

/** Products become soft-capped scores. */
template <int M, int N> __device__ inline void cap_scores(float (&s)[M][N][4], const dt_attention &at)
{
    const score_rule rule = rule_of(at);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[m][n][e] = cap_score(rule, s[m][n][e]).score;
}

/** Set masked scores to -inf: row g + 8 h of part m attends to the keys below to[m][h]. */
template <int M, int N>
__device__ inline void mask_scores(float (&s)[M][N][4], const dt_attention &at, const int (&to)[M][2], int key)
{
    const int column = key + threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int end = to[m][h] - column, begin = seen_from(at, to[m][h]) - column;
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (8 * n + e >= end || 8 * n + e < begin) s[m][n][2 * h + e] = -INFINITY;
        }
}

/* ---- dropout of an accumulator's elements ------------------------------------------------------------------------ */

/** Rows are queries: 0 or `kept` for the elements d[0..3] of an accumulator whose columns are keys starting at `key`.
 *  token_key: of the query in row g, on odd lanes in row g + 8. Two lanes share the random numbers of four keys: the
 *  even one computes row g's, the odd one row g + 8's. */
__device__ inline void dropout_of_keys(float factor[4], const dt_attention &at, uint64_t token_key, int head, int key,
                                       float kept)
{
    const int lane = threadIdx.x % WARP;
    const bool odd = lane % 2;
    const philox_words r = dropout_words(at, token_key, head, (key + lane % 4 * 2) / 4);
    const uint32_t low = __shfl_xor_sync(0xffffffffu, odd ? r.w[0] : r.w[2], 1),
                   high = __shfl_xor_sync(0xffffffffu, odd ? r.w[1] : r.w[3], 1);
    factor[0] = dropout_keeps(at, odd ? low : r.w[0]) ? kept : 0.0f;
    factor[1] = dropout_keeps(at, odd ? high : r.w[1]) ? kept : 0.0f;
    factor[2] = dropout_keeps(at, odd ? r.w[2] : low) ? kept : 0.0f;
    factor[3] = dropout_keeps(at, odd ? r.w[3] : high) ? kept : 0.0f;
}

/** x[i] = y[i ^ r] for r < 4. */
__device__ inline void permute(uint32_t x[4], int r)
{
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const uint32_t even = x[i], odd = x[i + 1];
        x[i] = r & 1 ? odd : even, x[i + 1] = r & 1 ? even : odd;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t low = x[i], high = x[i + 2];
        x[i] = r & 2 ? high : low, x[i + 2] = r & 2 ? low : high;
    }
}

/** Columns are queries: the same for an accumulator whose rows are keys starting at `key`. Four lanes with the same
 *  columns and adjacent rows share the random numbers of four keys; the lane of row r among them computes those of its
 *  query r % 2 and row half r / 2. token_key: of that query. */
__device__ inline void dropout_of_queries(float factor[4], const dt_attention &at, uint64_t token_key, int head,
                                          int key, float kept)
{
    const int lane = threadIdx.x % WARP, r = lane / 4 % 4;
    philox_words words = dropout_words(at, token_key, head, (key + lane / 4 + r / 2 * 8) / 4);
    permute(words.w, r); /* word i: for the lane of row i ^ r */
#pragma unroll
    for (int i = 1; i < 4; i++) words.w[i] = __shfl_xor_sync(0xffffffffu, words.w[i], 4 * i);
    permute(words.w, r); /* word i: of query i % 2, row half i / 2 */
#pragma unroll
    for (int i = 0; i < 4; i++) factor[i] = dropout_keeps(at, words.w[i]) ? kept : 0.0f;
}

/** Multiply the probabilities of 16 M queries starting at `query` and 8 N keys by their dropout factors. */
template <int M, int N>
__device__ inline void drop(float (&s)[M][N][4], const dt_attention &at, const attention_tile &t, int query, int key)
{
    const int lane = threadIdx.x % WARP;
    const float kept = 1.0f / (1.0f - at.dropout_p);
#pragma unroll
    for (int m = 0; m < M; m++) {
        const int mine = query + 16 * m + lane / 4 + lane % 2 * 8;
        const uint64_t token_key = mine < t.n_q ? at.token_key[t.q_row + mine] : 0;
#pragma unroll
        for (int n = 0; n < N; n++) {
            float factor[4];
            dropout_of_keys(factor, at, token_key, t.head, key + 8 * n, kept);
#pragma unroll
            for (int e = 0; e < 4; e++) s[m][n][e] *= factor[e];
        }
    }
}

/* ---- gradients of scores ----------------------------------------------------------------------------------------- */

/** Set masked elements to 0, for keys starting at `key` (rows) and queries starting at `query`. */
template <int N>
__device__ inline void mask_queries(float (&x)[N][4], const dt_attention &at, const attention_tile &t, int query,
                                    int key)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = query + 8 * n + lane % 4 * 2 + e % 2, j = key + lane / 4 + e / 2 * 8, to = seen_to(at, t, i);
            if (i >= t.n_q || j >= to || j < seen_from(at, to)) x[n][e] = 0.0f;
        }
}

/** Replace s by f p and dp by ds, for 16 keys (rows) and 8 N queries with these stats. */
template <int N, bool EXTRAS>
__device__ inline void form_transposed(float (&s)[N][4], float (&dp)[N][4], const float2 *stats, const dt_attention &at,
                                       const attention_tile &t, int head, int query, int key)
{
    const int lane = threadIdx.x % WARP;
    const float scale = at.scale * LOG2_E, kept = EXTRAS ? 1.0f / (1.0f - at.dropout_p) : 1.0f;
    const bool drops = EXTRAS && at.dropout_p > 0, caps = EXTRAS && at.softcap > 0;
    const score_rule rule = caps ? rule_of(at) : score_rule{};
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float4 two = *reinterpret_cast<const float4 *>(stats + 8 * n + lane % 4 * 2); /* queries e % 2 */
        float factor[4] = {1.0f, 1.0f, 1.0f, 1.0f};
        if (drops) {
            const int mine = query + 8 * n + lane % 4 * 2 + lane / 4 % 2;
            const uint64_t token_key = mine < t.n_q ? at.token_key[t.q_row + mine] : 0;
            dropout_of_queries(factor, at, token_key, head, key, kept);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const capped c = caps ? cap_score(rule, s[n][e]) : capped{s[n][e], 1.0f};
            const float p = exp2_approx(fmaf(c.score, scale, -(e % 2 ? two.z : two.x)));
            dp[n][e] = p * (factor[e] * dp[n][e] - (e % 2 ? two.w : two.y));
            if (caps) dp[n][e] *= c.slope;
            s[n][e] = factor[e] * p;
        }
    }
}

/** Replace s by ds, for 16 queries (rows) and 8 N keys; stats of the rows g and g + 8. */
template <int N, bool EXTRAS>
__device__ inline void form(float (&s)[N][4], const float (&dp)[N][4], const float2 (&stats)[2], const dt_attention &at,
                            const attention_tile &t, int query, int key)
{
    const int lane = threadIdx.x % WARP, mine = query + lane / 4 + lane % 2 * 8;
    const float scale = at.scale * LOG2_E, kept = EXTRAS ? 1.0f / (1.0f - at.dropout_p) : 1.0f;
    const bool drops = EXTRAS && at.dropout_p > 0, caps = EXTRAS && at.softcap > 0;
    const score_rule rule = caps ? rule_of(at) : score_rule{};
    const uint64_t token_key = drops && mine < t.n_q ? at.token_key[t.q_row + mine] : 0;
#pragma unroll
    for (int n = 0; n < N; n++) {
        float factor[4] = {1.0f, 1.0f, 1.0f, 1.0f};
        if (drops) dropout_of_keys(factor, at, token_key, t.head, key + 8 * n, kept);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const capped c = caps ? cap_score(rule, s[n][e]) : capped{s[n][e], 1.0f};
            const float p = exp2_approx(fmaf(c.score, scale, -stats[e / 2].x));
            s[n][e] = p * (factor[e] * dp[n][e] - stats[e / 2].y);
            if (caps) s[n][e] *= c.slope;
        }
    }
}

/** Set masked elements to 0, for queries starting at `query` (rows) and keys starting at `key`. */
template <int N>
__device__ inline void mask_keys(float (&ds)[N][4], const dt_attention &at, const attention_tile &t, int query, int key)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int to = seen_to(at, t, query + 8 * h + lane / 4), from = seen_from(at, to);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int j = key + 8 * n + lane % 4 * 2 + e;
                if (j >= to || j < from) ds[n][2 * h + e] = 0.0f;
            }
    }
}

#endif
