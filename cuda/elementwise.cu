/* elementwise.cu - operations on single elements and on rows of them: conversions, sums, activations, dropout, rotary
 * embedding, rows by index, and the sums of columns. */
#include "kernel.cuh"

template <class S, class D> __global__ void convert_kernel(const S *src, D *dst, int64_t n)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        dst[i] = from_float<D>(to_float(src[i]));
}

dt_err cuda_convert(dt_device *dev, const void *src, dt_dtype src_dt, void *dst, dt_dtype dst_dt, int64_t n,
                    dt_stream *stream)
{
    DT_CHECK(src != dst || src_dt == dst_dt || n == 0, DT_ERR_ARG, "convert in place from %s to %s",
             dt_dtype_name(src_dt), dt_dtype_name(dst_dt));
    if (n == 0 || src == dst) return DT_OK;
    dt_stream *s = cuda_stream(dev, stream, "convert");
    CUDA_BY_DTYPE(src_dt, S, "convert", {
        CUDA_BY_DTYPE(dst_dt, D, "convert", {
            launch(s, (unsigned)ceil_div(n, 256), 256, 0, convert_kernel<S, D>, (const S *)src, (D *)dst, n);
        });
    });
    CUDA_LAUNCHED();
    return DT_OK;
}
