/* attention_turn.cu - one float for each query and head, from the order of tokens to the order of heads and back: a
 * library wants a head's side by side. A few MB that are in the cache: one thread for each, which writes in order. */
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
