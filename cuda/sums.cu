/* sums.cu - column sums of a matrix: gradients of biases, and the last step of those of norms.
 *
 * Threads   Two steps: blocks store partial sums, and a second kernel adds them in a fixed order.
 * Numerics  float sums; the order depends only on the sizes. */
#include "sums.cuh"
#include "each.cuh"
#include <inttypes.h>

/* ---- adding up partial sums -------------------------------------------------------------------------------------- */

/* Second step, for 32 columns per block. Warp w of W sums the parts w, w + W, .... Then the first warp adds the warps'
 * sums in order. */
template <class T>
__global__ void __launch_bounds__(1024)
    add_parts_kernel(const float *part, int64_t n_parts, int64_t width, T *out0, T *out1, bool accumulate)
{
    __shared__ float sums[32][WARP];
    T *out = blockIdx.y ? out1 : out0;
    if (!out) return;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP;
    const int64_t c = blockIdx.x * (int64_t)WARP + lane;
    part += blockIdx.y * n_parts * width;
    float sum = 0.0f;
    if (c < width) {
#pragma unroll 4
        for (int64_t p = warp; p < n_parts; p += n_warps) sum += part[p * width + c];
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || c >= width) return;
    for (int w = 1; w < n_warps; w++) sum += sums[w][lane];
    out[c] = from_float<T>(accumulate ? to_float(out[c]) + sum : sum);
}

dt_err cuda_add_parts(dt_stream *s, const float *part, int64_t n_parts, int64_t width, void *out0, void *out1,
                      dt_dtype gt, bool accumulate)
{
    if (width == 0 || (!out0 && !out1)) return DT_OK;
    const int n_warps = n_parts < 1 ? 1 : n_parts < 32 ? (int)n_parts : 32;
    const dim3 grid((unsigned)ceil_div(width, WARP), out1 ? 2 : 1);
    CUDA_BY_DTYPE(gt, T, s->last, {
        launch(s, grid, n_warps * WARP, 0, add_parts_kernel<T>, part, n_parts, width, (T *)out0, (T *)out1, accumulate);
    });
    CUDA_LAUNCHED();
    return DT_OK;
}

/* ---- bias_backward ----------------------------------------------------------------------------------------------- */

enum { COLUMN_WARPS = 8, COLUMN_ROWS = 4 }; /* warps of a block; rows that a lane loads together */

/* First step: part[slice][c] = sum over the rows r of the slice of dy[r][c]. dy: [m, n], row distance ld. A block
 * processes a slice of rows and 32 vectors of columns. Each warp processes every COLUMN_WARPS-th row, with a vector per
 * lane. The block then adds the warps' sums in order. */
template <class T>
__global__ void __launch_bounds__(COLUMN_WARPS *WARP)
    column_sums_kernel(const T *dy, int64_t m, int64_t n, int64_t ld, int64_t n_tiles, int64_t n_slices, bool fits,
                       float *part)
{
    constexpr int V = vector_elems<T>, COLUMNS = WARP * V;
    __shared__ float sums[COLUMN_WARPS][COLUMNS];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t slice = blockIdx.x / n_tiles, first_column = blockIdx.x % n_tiles * COLUMNS;
    const int64_t column = first_column + lane * V, last = m * (slice + 1) / n_slices;
    const int count = elems_left(column, n, V);
    const bool whole = fits && count == V;
    float sum[V] = {0.0f};
    for (int64_t r = m * slice / n_slices + warp; r < last; r += COLUMN_WARPS * COLUMN_ROWS) {
        vec<T, V> x[COLUMN_ROWS];
#pragma unroll
        for (int i = 0; i < COLUMN_ROWS; i++) {
            const int64_t row = r + i * COLUMN_WARPS;
            x[i] = load_vec<V>(dy + row * ld + column, row < last ? count : 0, whole && row < last);
        }
#pragma unroll
        for (int j = 0; j < V; j++) {
            float four = 0.0f;
#pragma unroll
            for (int i = 0; i < COLUMN_ROWS; i++) four += to_float(x[i].x[j]);
            sum[j] += four;
        }
    }
#pragma unroll
    for (int j = 0; j < V; j++) sums[warp][lane * V + j] = sum[j];
    __syncthreads();
    for (int c = threadIdx.x; c < COLUMNS && first_column + c < n; c += COLUMN_WARPS * WARP) {
        float total = 0.0f;
        for (int w = 0; w < COLUMN_WARPS; w++) total += sums[w][c];
        part[slice * n + first_column + c] = total;
    }
}

/* Number of slices: enough to fill the GPU. A slice has enough rows that the second step is short, and few enough that
 * rounding errors stay small. The workspace limits the number of slices. */
static int64_t n_row_slices(int64_t m, int64_t n, int64_t n_tiles)
{
    enum { BLOCKS = 1056, MAX_ROWS = 4096, MIN_ROWS = 64 }; /* 1056: twice what an H100 runs at once */
    const int64_t room = (int64_t)(DT_GPU_WORKSPACE_NBYTES / sizeof(float)) / n, most = ceil_div(m, MIN_ROWS);
    int64_t slices = n_tiles < BLOCKS ? BLOCKS / n_tiles : 1;
    if (slices < ceil_div(m, MAX_ROWS)) slices = ceil_div(m, MAX_ROWS);
    if (slices > most) slices = most;
    return slices < room ? slices : room;
}

template <class T>
static dt_err bias_sums(dt_stream *s, const T *dy, int64_t m, int64_t n, int64_t ld, void *dbias, dt_dtype gt,
                        bool accumulate)
{
    const int64_t n_tiles = ceil_div(n, WARP * vector_elems<T>), n_slices = n_row_slices(m, n, n_tiles);
    float *part = (float *)s->workspace;
    if (n_slices > 0)
        launch(s, (unsigned)(n_tiles * n_slices), COLUMN_WARPS * WARP, 0, column_sums_kernel<T>, dy, m, n, ld, n_tiles,
               n_slices, vectors_fit((size_t)ld * sizeof(T), dy), part);
    return cuda_add_parts(s, part, n_slices, n, dbias, NULL, gt, accumulate);
}

dt_err cuda_bias_backward(dt_device *dev, const void *dy, int64_t m, int64_t n, int64_t ld, dt_dtype dt, void *dbias,
                          dt_dtype gt, bool accumulate, dt_stream *stream)
{
    const int64_t most = (int64_t)(DT_GPU_WORKSPACE_NBYTES / sizeof(float));
    DT_CHECK(ld >= n || m <= 1, DT_ERR_ARG,
             "internal: bias_backward: row stride %" PRId64 " is less than %" PRId64 " columns", ld, n);
    DT_CHECK(n <= most, DT_ERR_ARG, "internal: bias_backward: %" PRId64 " columns exceed %" PRId64, n, most);
    if (n == 0) return DT_OK;
    dt_stream *s = cuda_stream(dev, stream, "bias_backward");
    CUDA_BY_DTYPE(dt, T, "bias_backward", { return bias_sums(s, (const T *)dy, m, n, ld, dbias, gt, accumulate); });
    return DT_OK;
}
