/* magnitude.cu - lengths of the rows of an adapted matrix (dt_row_lengths), and the factors of its magnitudes.
 *
 *     n_j = |W_j + scale (B A)_j|     factor_j = m_j / n_j     inverse_j = 1 / n_j
 *
 * Threads   A block computes ROWS rows. A thread has every THREADS-th column. It loads an element of A once for all
 *           rows; all threads read the same elements of B. The block adds the threads' sums in a fixed order.
 * Numerics  In float. A quantised W is rounded to the type of the activations first, as in matmuls. */
#include "kernel.cuh"
#include "stored.cuh"

enum { ROWS = 4, THREADS = 256 };

/* A matrix of values, or one whose rows are stored as columns. */
template <class T> struct plain_matrix {
    const T *p;
    int64_t row, col; /* distances of rows and of columns */
    __host__ plain_matrix(const void *w, const dt_row_lengths &d)
        : p(static_cast<const T *>(w)), row(d.in_first ? 1 : d.w_ld), col(d.in_first ? d.w_ld : 1)
    {
    }
    __device__ float at(int64_t j, int64_t i) const { return to_float(p[j * row + i * col]); }
};

__device__ static void put(void *to, dt_dtype dt, int64_t j, float x)
{
    if (dt == DT_F32) static_cast<float *>(to)[j] = x;
    if (dt == DT_BF16) static_cast<bf16 *>(to)[j] = from_float<bf16>(x);
    if (dt == DT_F16) static_cast<__half *>(to)[j] = from_float<__half>(x);
}

template <class T, class Q>
__global__ void __launch_bounds__(THREADS)
    magnitude_factors_kernel(dt_row_lengths d, Q w, const T *a, const T *b, const T *magnitude, void *factor,
                             void *inverse, dt_dtype out_dt)
{
    const int64_t first = blockIdx.x * (int64_t)ROWS;
    float sum[ROWS] = {};
    for (int64_t i = threadIdx.x; i < d.n_in; i += THREADS) {
        float v[ROWS];
#pragma unroll
        for (int q = 0; q < ROWS; q++) {
            const int64_t j = first + q < d.n_out ? first + q : first;
            v[q] = to_float(from_float<T>(w.at(d.first + j, i)));
        }
        for (int64_t k = 0; k < d.r; k++) {
            const float of_a = to_float(a[k * d.n_in + i]);
#pragma unroll
            for (int q = 0; q < ROWS; q++) {
                const int64_t j = first + q < d.n_out ? first + q : first;
                v[q] = fmaf(d.scale * to_float(b[j * d.r + k]), of_a, v[q]);
            }
        }
#pragma unroll
        for (int q = 0; q < ROWS; q++) sum[q] = fmaf(v[q], v[q], sum[q]);
    }
    for (int q = 0; q < ROWS; q++) {
        const float found = sqrtf(block_sum(sum[q])), length = found > 0 ? found : 1;
        if (threadIdx.x != 0 || first + q >= d.n_out) continue;
        put(factor, out_dt, first + q, to_float(magnitude[first + q]) / length);
        put(inverse, out_dt, first + q, 1.0f / length);
    }
}

template <class T, class Q>
static dt_err run(dt_stream *s, const dt_row_lengths *d, const Q &w, const void *a, const void *b,
                  const void *magnitude, void *factor, void *inverse, dt_dtype out_dt)
{
    launch(s, (unsigned)ceil_div(d->n_out, ROWS), THREADS, 0, magnitude_factors_kernel<T, Q>, *d, w, (const T *)a,
           (const T *)b, (const T *)magnitude, factor, inverse, out_dt);
    CUDA_LAUNCHED();
    return DT_OK;
}

dt_err cuda_magnitude_factors(dt_device *dev, const dt_row_lengths *d, const void *w, const void *a, const void *b,
                              const void *magnitude, void *factor, void *inverse, dt_dtype out_dt, dt_stream *stream)
{
    DT_TRY(dt_row_lengths_check(d));
    dt_stream *s = cuda_stream(dev, stream, "magnitude_factors");
    if (d->n_out == 0) return DT_OK;
    CUDA_BY_DTYPE(d->dt, T, s->last, {
        if (d->w_scaled.how == dt_scaled::DT_SCALE_NF4)
            return run<T>(s, d, nf4_matrix(w, d->w_ld, d->w_scaled), a, b, magnitude, factor, inverse, out_dt);
        if (d->w_scaled.how != dt_scaled::DT_SCALE_NONE)
            return run<T>(s, d, int8_matrix(w, d->w_ld, d->w_scaled), a, b, magnitude, factor, inverse, out_dt);
        return run<T>(s, d, plain_matrix<T>(w, *d), a, b, magnitude, factor, inverse, out_dt);
    });
    return DT_OK;
}
