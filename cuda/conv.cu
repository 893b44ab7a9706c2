/* conv.cu - causal depthwise convolution over the tokens of each sequence and SiLU (dt_conv), forward and backward.
 *
 * Arrays    those of dt_conv.
 * Threads   A thread processes one column of a range of rows, in order, with the last K rows in registers. Blocks are
 *           (128 columns) x (ranges of rows). Backward has DT_GPU_CONV_PARTS ranges, and stores their sums for dweight.
 * Numerics  float, sums in a fixed order. */
#include "sums.cuh"

namespace
{

enum { THREADS = 128, ROWS = 64, MAX_K = DT_CONV_MAX_KERNEL };

/* Sequence of row t. */
__device__ int seq_at(const dt_conv &c, int t)
{
    int low = 0, high = c.n_seq;
    while (high - low > 1) {
        const int mid = (low + high) / 2;
        if (c.q_start[mid] <= t)
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* The last K rows of a column: x[K-1] is the newest. */
struct window {
    float x[MAX_K];
    __device__ void push(int K, float v)
    {
#pragma unroll
        for (int j = 0; j + 1 < MAX_K; j++)
            if (j + 1 < K) x[j] = x[j + 1];
#pragma unroll
        for (int j = 0; j < MAX_K; j++)
            if (j == K - 1) x[j] = v;
    }
    __device__ float times(int K, const float (&w)[MAX_K]) const
    {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < MAX_K; j++)
            if (j < K) sum = fmaf(w[j], x[j], sum);
        return sum;
    }
};

/* Column col of row t of a sequence that begins at start; a row before 0 is the state's, or 0. */
template <class T>
__device__ float row_at(const dt_conv &c, const T *x, const T *state, int seq, int start, int t, int64_t col)
{
    if (t >= 0) return to_float(x[(int64_t)(start + t) * c.x_ld + col]);
    if (!state) return 0.0f;
    const int64_t kept = c.kernel - 1, row = c.state_row ? c.state_row[seq] : seq;
    return to_float(state[(row * kept + kept + t) * c.width + col]);
}

template <class T> __device__ void load_weight(float (&w)[MAX_K], const dt_conv &c, const T *weight, int64_t col)
{
#pragma unroll
    for (int j = 0; j < MAX_K; j++) w[j] = j < c.kernel ? to_float(weight[col * c.kernel + j]) : 0.0f;
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    conv_forward_kernel(dt_conv c, const T *x, const T *weight, const T *state, T *y)
{
    const int64_t col = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    if (col >= c.width) return;
    const int first = blockIdx.y * ROWS, end = first + ROWS < c.n_tok ? first + ROWS : c.n_tok;
    float w[MAX_K];
    load_weight(w, c, weight, col);
    for (int t = first, seq = seq_at(c, first); t < end; seq++) {
        const int start = c.q_start[seq], last = c.q_start[seq + 1] < end ? c.q_start[seq + 1] : end;
        window rows = {};
        for (int j = 1; j < c.kernel; j++)
            rows.push(c.kernel, row_at(c, x, state, seq, start, t - start - c.kernel + j, col));
        for (; t < last; t++) {
            rows.push(c.kernel, to_float(x[t * c.x_ld + col]));
            const float p = rows.times(c.kernel, w);
            y[t * c.y_ld + col] = from_float<T>(p / (1.0f + expf(-p)));
        }
    }
}

/* The last K-1 rows of old state and sequence, in order: rows move to lower numbers. */
template <class T> __global__ void __launch_bounds__(THREADS) conv_state_kernel(dt_conv c, const T *x, T *state)
{
    const int64_t col = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    const int seq = blockIdx.y, start = c.q_start[seq], len = c.q_start[seq + 1] - start, kept = c.kernel - 1;
    if (col >= c.width || len == 0) return;
    T *mine = state + (int64_t)(c.state_row ? c.state_row[seq] : seq) * kept * c.width + col;
    for (int r = 0; r < kept; r++)
        mine[r * c.width] =
            len + r < kept ? mine[(len + r) * c.width] : x[(int64_t)(start + len + r - kept) * c.x_ld + col];
}

/* Part p: the rows n_tok p / PARTS to n_tok (p+1) / PARTS. part [PARTS][width * kernel]. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    conv_backward_kernel(dt_conv c, const T *x, const T *weight, const T *dy, T *dx, float *part)
{
    const int64_t col = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    if (col >= c.width) return;
    const int K = c.kernel, first = (int)((int64_t)c.n_tok * blockIdx.y / DT_GPU_CONV_PARTS),
              end = (int)((int64_t)c.n_tok * (blockIdx.y + 1) / DT_GPU_CONV_PARTS);
    float w[MAX_K], dw[MAX_K] = {}, turned[MAX_K] = {};
    load_weight(w, c, weight, col);
#pragma unroll
    for (int j = 0; j < MAX_K; j++)
#pragma unroll
        for (int i = 0; i < MAX_K; i++)
            if (i == K - 1 - j) turned[j] = w[i]; /* dp's oldest row meets the last weight */
    for (int at = first, seq = seq_at(c, first); at < end; seq++) {
        const int start = c.q_start[seq], stop = c.q_start[seq + 1], last = stop < end ? stop : end;
        window rows = {}, dp = {};
        if (stop <= at) continue;
        for (int j = 1; j < K; j++) rows.push(K, row_at(c, x, (const T *)nullptr, seq, start, at - start - K + j, col));
        for (int t = at; t < last + K - 1; t++) {
            float d = 0.0f;
            if (t < stop) {
                rows.push(K, to_float(x[t * c.x_ld + col]));
                const float p = rows.times(K, w), s = 1.0f / (1.0f + expf(-p));
                d = to_float(dy[t * c.y_ld + col]) * s * fmaf(p, 1.0f - s, 1.0f);
            }
            dp.push(K, d);
            if (t < last)
#pragma unroll
                for (int j = 0; j < MAX_K; j++) dw[j] = j < K ? fmaf(d, rows.x[j], dw[j]) : 0.0f;
            if (t - K + 1 >= at) dx[(t - K + 1) * c.x_ld + col] = from_float<T>(dp.times(K, turned));
        }
        at = last;
    }
    for (int j = 0; j < K; j++) part[(blockIdx.y * c.width + col) * K + j] = dw[j];
}

} // namespace

dt_err cuda_conv_forward(dt_device *dev, const dt_conv *c, const void *x, const void *weight, void *y, void *state,
                         dt_stream *stream)
{
    DT_TRY(dt_conv_check(c));
    dt_stream *s = cuda_stream(dev, stream, "conv_forward");
    const unsigned columns = (unsigned)ceil_div(c->width, THREADS);
    if (c->n_tok == 0) return DT_OK;
    CUDA_BY_DTYPE(c->dt, T, "conv_forward", {
        launch(s, dim3(columns, (unsigned)ceil_div(c->n_tok, ROWS)), THREADS, 0, conv_forward_kernel<T>, *c,
               (const T *)x, (const T *)weight, (const T *)state, (T *)y);
        if (state && c->kernel > 1)
            launch(s, dim3(columns, (unsigned)c->n_seq), THREADS, 0, conv_state_kernel<T>, *c, (const T *)x,
                   (T *)state);
    });
    CUDA_LAUNCHED();
    return DT_OK;
}

dt_err cuda_conv_backward(dt_device *dev, const dt_conv *c, const void *x, const void *weight, const void *dy, void *dx,
                          void *dweight, dt_dtype gt, bool accumulate, float *scratch, dt_stream *stream)
{
    DT_TRY(dt_conv_check(c));
    dt_stream *s = cuda_stream(dev, stream, "conv_backward");
    const int64_t parts = c->n_tok > 0 ? DT_GPU_CONV_PARTS : 0;
    CUDA_BY_DTYPE(c->dt, T, "conv_backward", {
        if (parts > 0)
            launch(s, dim3((unsigned)ceil_div(c->width, THREADS), (unsigned)parts), THREADS, 0, conv_backward_kernel<T>,
                   *c, (const T *)x, (const T *)weight, (const T *)dy, (T *)dx, scratch);
    });
    CUDA_LAUNCHED();
    if (!dweight) return DT_OK;
    return cuda_add_parts(s, scratch, parts, c->width * c->kernel, dweight, NULL, gt, accumulate);
}
