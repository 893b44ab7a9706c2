/* norm.cu - RMSNorm and LayerNorm over the last axis, forward and backward.
 *
 * With xhat = (x - mean) rstd (mean = 0 in RMSNorm) and g = dy * weight, over a row of C elements:
 *
 *     forward    rstd = 1 / sqrt(mean((x - mean)^2) + eps), y = weight xhat (+ bias)
 *     RMSNorm    dx = rstd (g - xhat mean(g xhat))
 *     LayerNorm  dx = rstd (g - mean(g) - xhat mean(g xhat))
 *     dweight += dy xhat, dbias += dy
 *     RMSNorm that only scales: xhat = x, dx = g
 *
 * Arrays    x, y, dy, dx: rows of width C (norm_rows); weight, bias, dweight, dbias [C]; mean, rstd float [n_rows].
 * Threads   Aligned rows are held in registers and read once. `lanes` threads share a row (part of a warp, a warp, or
 *           several warps), and lane l has the vectors l, l + lanes, ..., at most K of them. Rows that are unaligned or
 *           longer are processed by a block, element by element, and read again from the cache ("any" kernels).
 * Numerics  The split of a row over threads depends only on its width. Its bits therefore do not depend on the other
 *           rows of the call. */
#include "each.cuh"
#include "ptx.cuh"
#include "sums.cuh"

/* Row r of x is at x + (r / group) group_ld + (r % group) width; y likewise with y_group_ld. */
struct norm_rows {
    int64_t n_rows, width, group, group_ld, y_group_ld;
    bool only_scales; /* of RMSNorm */
};

__device__ inline int64_t row_offset(const norm_rows &n, int64_t r, int64_t group_ld)
{
    if (n.group == 1) return r * group_ld;
    const row_place p = place_of(r, (unsigned)n.group);
    return p.row * group_ld + p.in_row * n.width;
}

/** Sum x over the threads of a row; all of them get the result. slot: n floats of shared memory per warp, which no
 *  thread may still read from an earlier sum. Called by all threads of the block. */
template <int n> __device__ inline void row_sums(float (&x)[n], int lanes, float *slot)
{
#pragma unroll
    for (int k = 0; k < n; k++)
        for (int d = (lanes < WARP ? lanes : WARP) / 2; d > 0; d /= 2) x[k] += __shfl_xor_sync(0xffffffffu, x[k], d);
    if (lanes <= WARP) return;
    const int warp = threadIdx.x / WARP, first = threadIdx.x / lanes * (lanes / WARP);
    if (threadIdx.x % WARP == 0)
        for (int k = 0; k < n; k++) slot[warp * n + k] = x[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < n; k++) {
        x[k] = slot[first * n + k];
#pragma unroll 4
        for (int w = 1; w < lanes / WARP; w++) x[k] += slot[(first + w) * n + k];
    }
}

/** The factor of dt_rmsnorm. */
template <bool plus_one, class T> __device__ inline float factor_of(T weight)
{
    return plus_one ? 1.0f + to_float(weight) : to_float(weight);
}

/** xhat factor (+ bias). RMSNorm rounds xhat to T before it multiplies by the weight, except with plus_one, as the
 *  reference implementations do (algorithms.md 8.4). */
template <class T, bool layer, bool plus_one> __device__ inline T scaled(float xhat, T weight, T bias)
{
    const float w = factor_of<plus_one>(weight);
    if (plus_one) return from_float<T>(xhat * w);
    return from_float<T>(layer ? fmaf(xhat, w, to_float(bias)) : to_float(from_float<T>(xhat)) * w);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Maximum threads of a block; maximum vectors of a thread; threads of a block in the "any" kernels. */
enum { FORWARD_THREADS = 512, FORWARD_VECTORS = 4, ANY_THREADS = 256 };

/* Means of R rows, of which a thread has K vectors each. Sums of squares use deviations from the mean, to avoid
 * cancellation. */
template <class T, int K, int R, int V>
__device__ inline void means_of_rows(float (&mu)[R], const vec<T, V> (&v)[R][K], float inv_width, int lanes,
                                     float *slot)
{
#pragma unroll
    for (int q = 0; q < R; q++)
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int j = 0; j < V; j++) mu[q] += to_float(v[q][k].x[j]);
    row_sums(mu, lanes, slot);
#pragma unroll
    for (int q = 0; q < R; q++) mu[q] *= inv_width;
}
template <class T, int K, int R, int V>
__device__ inline void squares_of_rows(float (&squares)[R], const vec<T, V> (&v)[R][K], const float (&mu)[R],
                                       const int (&width)[R], int lanes, float *slot)
{
    const int lane = threadIdx.x % lanes;
#pragma unroll
    for (int q = 0; q < R; q++)
#pragma unroll
        for (int k = 0; k < K; k++)
            if ((k * lanes + lane) * V < width[q]) {
#pragma unroll
                for (int j = 0; j < V; j++) {
                    const float d = to_float(v[q][k].x[j]) - mu[q];
                    squares[q] = fmaf(d, d, squares[q]);
                }
            }
    row_sums(squares, lanes, slot);
}

/* Forward of aligned rows. Block b processes rows b R G, ... with G = blockDim / lanes. A thread has up to K vectors of
 * each of R rows, which are G apart. R is 4 for rows with one vector per thread, such as heads: enough loads are then
 * in flight. mean and rstd may be NULL; y may be x. */
template <class T, bool layer, bool plus_one, int K, int R>
__global__ void __launch_bounds__(R > 1 ? 256 : FORWARD_THREADS, R > 1 ? 3 : 2)
    norm_forward_kernel(const T *x, const T *weight, const T *bias, T *y, float *mean, float *rstd, norm_rows n,
                        float eps, int lanes)
{
    constexpr int V = vector_elems<T>;
    __shared__ float slot[2][R * FORWARD_THREADS / WARP];
    const int lane = threadIdx.x % lanes, n_groups = blockDim.x / lanes;
    const int64_t first = blockIdx.x * (int64_t)(n_groups * R) + threadIdx.x / lanes;
    const float inv_width = 1.0f / (float)n.width;

    vec<T, V> v[R][K];
    int width[R]; /* 0 beyond the last row: such threads only take part in sums */
#pragma unroll
    for (int q = 0; q < R; q++) {
        const int64_t r = first + q * n_groups;
        width[q] = r < n.n_rows ? (int)n.width : 0;
        const T *row = x + (r < n.n_rows ? row_offset(n, r, n.group_ld) : 0);
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int c = (k * lanes + lane) * V;
            v[q][k] = load_vec<V>(row + c, 0, c < width[q]);
        }
    }
    float mu[R] = {}, squares[R] = {};
    if (layer) means_of_rows(mu, v, inv_width, lanes, slot[0]);
    squares_of_rows(squares, v, mu, width, lanes, slot[1]);
#pragma unroll
    for (int q = 0; q < R; q++) {
        const int64_t r = first + q * n_groups;
        if (r >= n.n_rows) continue;
        const float rs = !layer && n.only_scales ? 1.0f : 1.0f / sqrtf(fmaf(squares[q], inv_width, eps));
        if (lane == 0 && mean) mean[r] = mu[q];
        if (lane == 0 && rstd) rstd[r] = rs;
        T *row = y + row_offset(n, r, n.y_group_ld);
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int c = (k * lanes + lane) * V;
            if (c >= width[q]) continue;
            const vec<T, V> w = load_vec<V>(weight + c, V, true);
            vec<T, V> b = {}, out;
            if (layer) b = load_vec<V>(bias + c, V, true);
#pragma unroll
            for (int j = 0; j < V; j++)
                out.x[j] = scaled<T, layer, plus_one>((to_float(v[q][k].x[j]) - mu[q]) * rs, w.x[j], b.x[j]);
            store_vec(row + c, out, V, true);
        }
    }
}

/* Forward of any rows: a block per row. */
template <class T, bool layer, bool plus_one>
__global__ void __launch_bounds__(ANY_THREADS) norm_forward_any_kernel(const T *x, const T *weight, const T *bias, T *y,
                                                                       float *mean, float *rstd, norm_rows n, float eps)
{
    const int64_t r = blockIdx.x;
    x += row_offset(n, r, n.group_ld);
    y += row_offset(n, r, n.y_group_ld);
    float mu = 0.0f, squares = 0.0f;
    if (layer) {
        for (int64_t c = threadIdx.x; c < n.width; c += blockDim.x) mu += to_float(x[c]);
        mu = block_sum(mu) / (float)n.width;
    }
    for (int64_t c = threadIdx.x; c < n.width; c += blockDim.x) {
        const float d = to_float(x[c]) - mu;
        squares = fmaf(d, d, squares);
    }
    squares = block_sum(squares);
    const float rs = !layer && n.only_scales ? 1.0f : 1.0f / sqrtf(squares / (float)n.width + eps);
    if (threadIdx.x == 0) {
        if (mean) mean[r] = mu;
        if (rstd) rstd[r] = rs;
    }
    for (int64_t c = threadIdx.x; c < n.width; c += blockDim.x)
        y[c] = scaled<T, layer, plus_one>((to_float(x[c]) - mu) * rs, weight[c], layer ? bias[c] : weight[c]);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Maximum threads of a block; blocks per multiprocessor. */
enum { BACKWARD_THREADS = 512, BLOCKS_AN_SM = 2 };

/* Each block stores partial sums of dweight (and dbias). */
int64_t cuda_norm_parts(const dt_device *dev)
{
    return dt_min_i64((int64_t)BLOCKS_AN_SM * cuda_of(dev)->properties.multiProcessorCount, DT_GPU_NORM_PARTS);
}

/* Maximum vectors of a thread, whose sums stay in registers. */
enum { BACKWARD_VECTORS = 2 };

/* Rows of a block in flight or in use: 96 KiB of shared memory. */
template <int K, bool wide> constexpr int rows_ahead = 2048 / (K * (wide ? 512 : 256));
template <bool wide> static size_t backward_shared(int threads)
{
    constexpr int K = BACKWARD_VECTORS;
    return (size_t)(rows_ahead<K, wide> * 3 * K * threads) * 16;
}

/* Add the sums of the G groups of a block in order, and store them in part[i][blockIdx], [width]. sums: shared memory,
 * [G][width]. column(k): first column of the thread's vector k. */
template <int N, int K, int V, class Column>
__device__ inline void leave_parts(const float (&of_columns)[N][K][V], Column column, float *sums, float *part,
                                   int width, int group, int n_groups)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        __syncthreads(); /* all threads have used the earlier content */
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int j = 0; j < V; j++)
                if (column(k) < width) sums[group * width + column(k) + j] = of_columns[i][k][j];
        __syncthreads();
        for (int c = threadIdx.x; c < width; c += blockDim.x) {
            float sum = 0.0f;
            for (int q = 0; q < n_groups; q++) sum += sums[q * width + c];
            part[(i * (int64_t)gridDim.x + blockIdx.x) * width + c] = sum;
        }
    }
}

/* Backward of aligned rows. Block b processes rows b G, ..., b G + G - 1 with G = blockDim / lanes, then advances by
 * gridDim G. Each thread copies its elements (x, dy, and dx if it accumulates) asynchronously to its own part of shared
 * memory, several rows ahead. A thread has the same columns of all its rows, so it sums dy xhat (and dy) in registers.
 * At the end the block adds the G sums of each column in shared memory, and stores them in part[0][b] (and part[1][b]),
 * [width]. dx may be dy. */
template <class T, bool layer, bool plus_one, bool wide>
__global__ void __launch_bounds__(wide ? BACKWARD_THREADS : 256, wide ? 1 : 2)
    norm_backward_kernel(const T *x, const T *weight, const float *mean, const float *rstd, const T *dy, T *dx,
                         bool add_to_dx, float *part, norm_rows n, int lanes)
{
    constexpr int V = vector_elems<T>, K = BACKWARD_VECTORS, N = layer ? 2 : 1, AHEAD = rows_ahead<K, wide>;
    enum { X, DY, DX, ARRAYS };
    __shared__ float slot[2][N * BACKWARD_THREADS / WARP];
    typedef vec<T, V> vector;
    DYNAMIC_SHARED(vector, stage); /* [AHEAD][ARRAYS][K][threads]; at the end sums [G][width] */
    const int lane = threadIdx.x % lanes, group = threadIdx.x / lanes, n_groups = blockDim.x / lanes;
    const int width = (int)n.width;
    const float inv_width = 1.0f / (float)width;
    const int64_t step = gridDim.x * (int64_t)n_groups;
    float acc[N][K][V] = {};
    vector w[K];

    auto column = [&](int k) { return (k * lanes + lane) * V; };
    auto place = [&](int s, int array, int k) {
        return stage + ((s * ARRAYS + array) * K + k) * blockDim.x + threadIdx.x;
    };
    auto fetch = [&](int s, int64_t r) { /* zeros beyond the last row */
                                         const bool live = r < n.n_rows;
                                         const int64_t at = live ? row_offset(n, r, n.group_ld) : 0,
                                                       y_at = live ? row_offset(n, r, n.y_group_ld) : 0;
#pragma unroll
                                         for (int k = 0; k < K; k++) {
                                             const bool there = live && column(k) < width;
                                             const int64_t c = there ? column(k) : 0;
                                             copy_async_16(place(s, X, k), x + at + c, there);
                                             copy_async_16(place(s, DY, k), dy + y_at + c, there);
                                             if (add_to_dx) copy_async_16(place(s, DX, k), dx + at + c, there);
                                         }
                                         copy_async_commit();
    };
#pragma unroll
    for (int k = 0; k < K; k++) w[k] = load_vec<V>(weight + column(k), 0, column(k) < width);
    int64_t r = blockIdx.x * (int64_t)n_groups + group;
    float rs_next = r < n.n_rows ? rstd[r] : 0.0f, mu_next = layer && r < n.n_rows ? mean[r] : 0.0f;
#pragma unroll
    for (int s = 0; s < AHEAD - 1; s++) fetch(s, r + s * step);
    for (int turn = 0; r - group < n.n_rows; r += step, turn++) {
        const int s = turn % AHEAD;
        const float rs = rs_next, mu = mu_next;
        fetch((turn + AHEAD - 1) % AHEAD, r + (AHEAD - 1) * step);
        rs_next = r + step < n.n_rows ? rstd[r + step] : 0.0f;
        mu_next = layer && r + step < n.n_rows ? mean[r + step] : 0.0f;
        copy_async_wait<AHEAD - 1>(); /* this row has arrived; a thread only reads its own copies */
        float mean_of[N] = {};        /* means of g xhat, and of g */
#pragma unroll
        for (int k = 0; k < K; k++) {
            const vector xv = *place(s, X, k), dyv = *place(s, DY, k);
#pragma unroll
            for (int j = 0; j < V; j++) {
                const float d = to_float(dyv.x[j]), xhat = (to_float(xv.x[j]) - mu) * rs,
                            g = d * factor_of<plus_one>(w[k].x[j]);
                acc[0][k][j] = fmaf(d, xhat, acc[0][k][j]);
                mean_of[0] = fmaf(g, xhat, mean_of[0]);
                if (layer) acc[N - 1][k][j] += d;
                if (layer) mean_of[N - 1] += g;
            }
        }
        row_sums(mean_of, lanes, slot[turn % 2]); /* a slot is reused only after another barrier */
        const float dot = !layer && n.only_scales ? 0.0f : mean_of[0] * inv_width,
                    sum = layer ? mean_of[N - 1] * inv_width : 0.0f;
        if (r >= n.n_rows) continue;
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (column(k) >= width) continue;
            const vector xv = *place(s, X, k), dyv = *place(s, DY, k);
            vector out, was = {};
            if (add_to_dx) was = *place(s, DX, k);
#pragma unroll
            for (int j = 0; j < V; j++) {
                const float xhat = (to_float(xv.x[j]) - mu) * rs,
                            g = to_float(dyv.x[j]) * factor_of<plus_one>(w[k].x[j]);
                const float grad = rs * fmaf(-xhat, dot, g - sum);
                out.x[j] = from_float<T>(add_to_dx ? to_float(was.x[j]) + grad : grad);
            }
            store_vec(dx + row_offset(n, r, n.group_ld) + column(k), out, V, true);
        }
    }
    copy_async_wait<0>();
    leave_parts(acc, column, reinterpret_cast<float *>(stage), part, width, group, n_groups);
}

/* Backward of any rows. Block b processes rows b, b + gridDim, .... A thread sums the gradients of its columns in
 * part. */
template <class T, bool layer, bool plus_one>
__global__ void __launch_bounds__(ANY_THREADS)
    norm_backward_any_kernel(const T *x, const T *weight, const float *mean, const float *rstd, const T *dy, T *dx,
                             bool add_to_dx, float *part, norm_rows n)
{
    float *of_weight = part + blockIdx.x * n.width, *of_bias = part + (gridDim.x + (int64_t)blockIdx.x) * n.width;
    for (int64_t r = blockIdx.x; r < n.n_rows; r += gridDim.x) {
        const bool begin = r == (int64_t)blockIdx.x;
        const int64_t at = row_offset(n, r, n.group_ld), y_at = row_offset(n, r, n.y_group_ld);
        const float rs = rstd[r], mu = layer ? mean[r] : 0.0f;
        float dot = 0.0f, sum = 0.0f;
        for (int64_t c = threadIdx.x; c < n.width; c += blockDim.x) {
            const float d = to_float(dy[y_at + c]), xhat = (to_float(x[at + c]) - mu) * rs,
                        g = d * factor_of<plus_one>(weight[c]);
            of_weight[c] = fmaf(d, xhat, begin ? 0.0f : of_weight[c]);
            if (layer) of_bias[c] = d + (begin ? 0.0f : of_bias[c]);
            dot = fmaf(g, xhat, dot);
            sum += g;
        }
        dot = block_sum(dot) / (float)n.width;
        if (!layer && n.only_scales) dot = 0.0f;
        sum = layer ? block_sum(sum) / (float)n.width : 0.0f;
        for (int64_t c = threadIdx.x; c < n.width; c += blockDim.x) {
            const float xhat = (to_float(x[at + c]) - mu) * rs,
                        g = to_float(dy[y_at + c]) * factor_of<plus_one>(weight[c]);
            const float grad = rs * fmaf(-xhat, dot, g - sum);
            dx[at + c] = from_float<T>(add_to_dx ? to_float(dx[at + c]) + grad : grad);
        }
    }
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* Threads per row of n_vectors, so that a thread has at most `each` vectors: one thread per vector up to a warp, then
 * whole warps. */
static int lanes_of(int64_t n_vectors, int each)
{
    int lanes = 1;
    while (lanes < WARP && lanes < n_vectors) lanes *= 2;
    return lanes < WARP ? lanes : (int)ceil_div(n_vectors, (int64_t)WARP * each) * WARP;
}

/* Threads of a block for aligned rows: about 256. */
static int block_of(int lanes) { return lanes > 256 ? lanes : 256 / lanes * lanes; }

/* Threads of a block in the "any" kernels. */
static int any_block_of(int64_t width)
{
    return width >= ANY_THREADS ? ANY_THREADS : (int)ceil_div(width, WARP) * WARP;
}

/* Does a row consist of aligned vectors, at most this many? */
template <class T>
static bool rows_fit(const norm_rows &n, int64_t most, const void *x, const void *weight, const void *y,
                     const void *other)
{
    const size_t distances = (size_t)(n.group_ld | n.width | n.y_group_ld);
    return vectors_fit(distances * sizeof(T), x, weight, y, other) && n.width <= most * vector_elems<T>;
}

template <class T, bool layer, bool plus_one>
static dt_err forward(dt_stream *s, const norm_rows &n, const T *x, const T *weight, const T *bias, T *y, float *mean,
                      float *rstd, float eps)
{
    if (n.n_rows == 0) return DT_OK;
    if (rows_fit<T>(n, FORWARD_THREADS * FORWARD_VECTORS, x, weight, y, bias)) {
        const int64_t n_vectors = n.width / vector_elems<T>;
        const int lanes = lanes_of(n_vectors, FORWARD_VECTORS), threads = block_of(lanes),
                  each = n_vectors <= lanes ? 4 : 1;
        launch(s, (unsigned)ceil_div(n.n_rows, each * threads / lanes), threads, 0,
               n_vectors <= lanes ? norm_forward_kernel<T, layer, plus_one, 1, 4>
                                  : norm_forward_kernel<T, layer, plus_one, FORWARD_VECTORS, 1>,
               x, weight, bias, y, mean, rstd, n, eps, lanes);
    } else {
        launch(s, (unsigned)n.n_rows, any_block_of(n.width), 0, norm_forward_any_kernel<T, layer, plus_one>, x, weight,
               bias, y, mean, rstd, n, eps);
    }
    CUDA_LAUNCHED();
    return DT_OK;
}

/* Number of blocks for n_turns units of work. */
static int64_t n_parts_for(const dt_device *dev, int64_t n_turns) { return dt_min_i64(n_turns, cuda_norm_parts(dev)); }

template <class T, bool layer, bool plus_one, bool wide>
static dt_err launch_backward(dt_stream *s, int64_t n_parts, int threads, const T *x, const T *weight,
                              const float *mean, const float *rstd, const T *dy, T *dx, bool add_to_dx, float *scratch,
                              const norm_rows &n, int lanes)
{
    const size_t nbytes = backward_shared<wide>(threads);
    CUDA_ALLOW_SHARED((norm_backward_kernel<T, layer, plus_one, wide>), nbytes);
    launch(s, (unsigned)n_parts, threads, nbytes, norm_backward_kernel<T, layer, plus_one, wide>, x, weight, mean, rstd,
           dy, dx, add_to_dx, scratch, n, lanes);
    return DT_OK;
}

template <class T, bool layer, bool plus_one>
static dt_err backward(dt_device *dev, dt_stream *s, const norm_rows &n, const T *x, const T *weight, const float *mean,
                       const float *rstd, const T *dy, T *dx, bool add_to_dx, void *dweight, void *dbias, dt_dtype gt,
                       bool accumulate, float *scratch)
{
    constexpr int K = BACKWARD_VECTORS;
    int64_t n_parts = n_parts_for(dev, n.n_rows);
    if (n.n_rows == 0) {
        /* no rows */
    } else if (rows_fit<T>(n, BACKWARD_THREADS * K, x, weight, dy, dx)) {
        const int lanes = lanes_of(n.width / vector_elems<T>, K), threads = block_of(lanes);
        n_parts = n_parts_for(dev, ceil_div(n.n_rows, threads / lanes));
        DT_TRY(threads > 256 ? (launch_backward<T, layer, plus_one, true>(s, n_parts, threads, x, weight, mean, rstd,
                                                                          dy, dx, add_to_dx, scratch, n, lanes))
                             : (launch_backward<T, layer, plus_one, false>(s, n_parts, threads, x, weight, mean, rstd,
                                                                           dy, dx, add_to_dx, scratch, n, lanes)));
    } else {
        launch(s, (unsigned)n_parts, any_block_of(n.width), 0, norm_backward_any_kernel<T, layer, plus_one>, x, weight,
               mean, rstd, dy, dx, add_to_dx, scratch, n);
    }
    CUDA_LAUNCHED();
    return cuda_add_parts(s, scratch, n_parts, n.width, dweight, dbias, gt, accumulate);
}

static norm_rows rows_of(const dt_rmsnorm *n)
{
    return {n->n_rows, n->width, n->group, n->group_ld, n->y_group_ld, n->only_scales};
}

dt_err cuda_rmsnorm_forward(dt_device *dev, const dt_rmsnorm *n, const void *x, const void *weight, void *y,
                            float *rstd, dt_stream *stream)
{
    DT_TRY(dt_rmsnorm_check(n));
    dt_stream *s = cuda_stream(dev, stream, "rmsnorm_forward");
    CUDA_BY_DTYPE(n->dt, T, s->last, {
        const auto run = n->plus_one ? forward<T, false, true> : forward<T, false, false>;
        return run(s, rows_of(n), (const T *)x, (const T *)weight, NULL, (T *)y, NULL, rstd, n->eps);
    });
    return DT_OK;
}

dt_err cuda_rmsnorm_backward(dt_device *dev, const dt_rmsnorm *n, const void *x, const void *weight, const float *rstd,
                             const void *dy, void *dx, bool add_to_dx, void *dweight, dt_dtype gt, bool accumulate,
                             float *scratch, dt_stream *stream)
{
    DT_TRY(dt_rmsnorm_check(n));
    dt_stream *s = cuda_stream(dev, stream, "rmsnorm_backward");
    CUDA_BY_DTYPE(n->dt, T, s->last, {
        const auto run = n->plus_one ? backward<T, false, true> : backward<T, false, false>;
        return run(dev, s, rows_of(n), (const T *)x, (const T *)weight, NULL, rstd, (const T *)dy, (T *)dx, add_to_dx,
                   dweight, NULL, gt, accumulate, scratch);
    });
    return DT_OK;
}

dt_err cuda_layernorm_forward(dt_device *dev, const void *x, const void *weight, const void *bias, void *y, float *mean,
                              float *rstd, int64_t n_rows, int64_t width, float eps, dt_dtype dt, dt_stream *stream)
{
    const dt_rmsnorm same = {.n_rows = n_rows, .width = width, .group = 1, .group_ld = width, .y_group_ld = width};
    const norm_rows n = rows_of(&same);
    DT_TRY(dt_rmsnorm_check(&same));
    dt_stream *s = cuda_stream(dev, stream, "layernorm_forward");
    CUDA_BY_DTYPE(dt, T, s->last, {
        return forward<T, true, false>(s, n, (const T *)x, (const T *)weight, (const T *)bias, (T *)y, mean, rstd, eps);
    });
    return DT_OK;
}

dt_err cuda_layernorm_backward(dt_device *dev, const void *x, const void *weight, const float *mean, const float *rstd,
                               const void *dy, void *dx, bool add_to_dx, void *dweight, void *dbias, dt_dtype gt,
                               bool accumulate, int64_t n_rows, int64_t width, float *scratch, dt_dtype dt,
                               dt_stream *stream)
{
    const dt_rmsnorm same = {.n_rows = n_rows, .width = width, .group = 1, .group_ld = width, .y_group_ld = width};
    const norm_rows n = rows_of(&same);
    DT_TRY(dt_rmsnorm_check(&same));
    dt_stream *s = cuda_stream(dev, stream, "layernorm_backward");
    CUDA_BY_DTYPE(dt, T, s->last, {
        return backward<T, true, false>(dev, s, n, (const T *)x, (const T *)weight, mean, rstd, (const T *)dy, (T *)dx,
                                        add_to_dx, dweight, dbias, gt, accumulate, scratch);
    });
    return DT_OK;
}
