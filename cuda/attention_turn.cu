/* attention_turn.cu - transposes one float per query and head between [token, head] and [head, token], the layout that
 * a library needs. A few MB in the cache: one thread per element, in the order of the output. */
#include "attention_cudnn.h"
#include "kernel.cuh"

namespace
{

__global__ void turn_kernel(const float *__restrict__ from, float *__restrict__ to, int64_t n, int64_t rows,
                            int64_t cols)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n * rows * cols) return;
    const int64_t matrix = i / (rows * cols), rest = i % (rows * cols), col = rest / rows, row = rest % rows;
    to[i] = from[(matrix * rows + row) * cols + col];
}

} // namespace

dt_err cuda_turn(const float *from, float *to, int64_t n, int64_t rows, int64_t cols, dt_stream *s)
{
    enum { THREADS = 256 };
    launch(s, (unsigned)ceil_div(n * rows * cols, THREADS), THREADS, 0, turn_kernel, from, to, n, rows, cols);
    CUDA_LAUNCHED();
    return DT_OK;
}
