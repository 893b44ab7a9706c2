/* wrong.cu - does the simulator see what is wrong? `wrong NAME` runs the kernel of that name, which must end the
 * program with a line that says what it did; `wrong right` runs one that uses all of it as it should, and must print
 * "right" (tests/e2e_cudasim.sh). */
#include "ptx.cuh"
#include <stdlib.h>

enum { TILE = 64, PITCH = 40, DEPTH = 32 };
enum leave_out { NOTHING, NO_WAIT, NO_BARRIER_AFTER, NO_BARRIER_BEFORE };

/* C [64,64] = A [64,k] B^T, B [64,k]: 4 warps, each for 16 rows; two tiles of each side, one copied while the other is
 * used. */
template <leave_out out> __global__ void tile_kernel(const bf16 *a, const bf16 *b, float *c, int k)
{
    DYNAMIC_SHARED(bf16, tiles);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float sum[TILE / 8][4] = {};
    auto load = [&](int k0) {
        bf16 *to = tiles + k0 / DEPTH % 2 * 2 * TILE * PITCH;
        for (int i = threadIdx.x; i < TILE * DEPTH / 8; i += blockDim.x) {
            const int row = i / (DEPTH / 8), col = i % (DEPTH / 8) * 8;
            copy_async_16(to + row * PITCH + col, a + row * k + k0 + col, true);
            copy_async_16(to + (TILE + row) * PITCH + col, b + row * k + k0 + col, true);
        }
        copy_async_commit();
    };
    load(0);
    for (int k0 = 0; k0 < k; k0 += DEPTH) {
        const bf16 *from = tiles + k0 / DEPTH % 2 * 2 * TILE * PITCH;
        if (k0 + DEPTH < k) load(k0 + DEPTH);
        if (out == NO_WAIT) {
        } else if (k0 + DEPTH < k) {
            copy_async_wait<1>();
        } else {
            copy_async_wait<0>();
        }
        if (out != NO_BARRIER_AFTER) __syncthreads();
        for (int kk = 0; kk < DEPTH; kk += 16) {
            uint32_t x[4], y[4];
            ldmatrix_x4(x, from + (warp * 16 + lane % 16) * PITCH + kk + lane / 16 * 8);
            for (int j = 0; j < TILE / 8; j += 2) {
                ldmatrix_x4(y, from + (TILE + j * 8 + lane / 16 * 8 + lane % 8) * PITCH + kk + lane / 8 % 2 * 8);
                mma_16816(sum[j], x, y, bf16());
                mma_16816(sum[j + 1], x, y + 2, bf16());
            }
        }
        if (out != NO_BARRIER_BEFORE) __syncthreads();
    }
    for (int j = 0; j < TILE / 8; j++)
        for (int i = 0; i < 4; i++)
            c[(warp * 16 + lane / 4 + i / 2 * 8) * TILE + j * 8 + lane % 4 * 2 + i % 2] = sum[j][i];
}

__global__ void sum_kernel(const float *x, float *y, int n)
{
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

/* ---- mistakes: x has 1000 elements ------------------------------------------------------------------------------ */

__global__ void mask_kernel(float *x)
{
    if (threadIdx.x == 5) x[0] = __shfl_xor_sync(0xffff0000u, 1.0f, 1);
}
__global__ void ended_kernel(float *x)
{
    if (threadIdx.x == 7) return;
    const float got = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);
    if (threadIdx.x == 0) x[0] = got;
}
__global__ void deadlock_kernel(float *)
{
    if (threadIdx.x % WARP < 16)
        __syncwarp();
    else
        __syncthreads();
}
__global__ void unaligned_kernel(float *x) { reinterpret_cast<vec<float, 4> *>(x + 1)->x[0] = 1; }
__global__ void beyond_kernel(float *x) { x[1000 + 64 + threadIdx.x] = 1; }
__global__ void index_kernel(float *x)
{
    __shared__ float part[4];
    part[threadIdx.x] = 1;
    x[threadIdx.x] = part[0];
}
__global__ void shared_kernel(float *)
{
    DYNAMIC_SHARED(float, part);
    part[threadIdx.x] = 1;
}
__global__ void behind_kernel(float *x) { x[1000 + threadIdx.x % 8] = 1; }
__global__ void shift_kernel(float *x) { x[threadIdx.x] = (float)(1 << threadIdx.x); }
__global__ void warp_race_kernel(float *x)
{
    __shared__ float part[WARP * 4];
    part[threadIdx.x] = 1;
    const float none = __shfl_xor_sync(0xffffffffu, 0.0f, 1); /* orders no memory */
    x[threadIdx.x] = part[threadIdx.x ^ 1] + none;
}
__global__ void block_race_kernel(float *x) { x[0] = (float)threadIdx.x; }
__global__ void grid_race_kernel(float *x)
{
    if (threadIdx.x == 0) x[blockIdx.x] = x[blockIdx.x ^ 1];
}

/* ---- main ------------------------------------------------------------------------------------------------------- */

static dt_stream *stream()
{
    static dt_stream s;
    s.last = "test";
    return &s;
}

template <class T> static T *device_array(int n)
{
    T *p = nullptr;
    if (cudaMalloc(&p, n * sizeof(T)) != cudaSuccess) exit(70);
    return p;
}

/* Small integers: all sums are exact. */
template <leave_out out> static bool product_is_right()
{
    enum { K = 160 };
    bf16 *a = device_array<bf16>(TILE * K), *b = device_array<bf16>(TILE * K);
    float *c = device_array<float>(TILE * TILE);
    for (int i = 0; i < TILE * K; i++) a[i] = (float)(i * 7 % 11 - 5), b[i] = (float)(i * 5 % 13 - 6);
    launch(stream(), dim3(1), 128, 4 * TILE * PITCH * sizeof(bf16), tile_kernel<out>, (const bf16 *)a, (const bf16 *)b,
           c, (int)K);
    bool right = cudaGetLastError() == cudaSuccess;
    for (int i = 0; i < TILE * TILE; i++) {
        float sum = 0;
        for (int k = 0; k < K; k++) sum += (float)a[i / TILE * K + k] * (float)b[i % TILE * K + k];
        right = right && c[i] == sum;
    }
    return right;
}

static bool sums_are_right(float *x)
{
    float *y = device_array<float>(10);
    for (int i = 0; i < 1000; i++) x[i] = (float)i;
    launch(stream(), dim3(10), 256, 0, sum_kernel, (const float *)x, y, 100);
    bool right = cudaGetLastError() == cudaSuccess;
    for (int i = 0; i < 10; i++) right = right && y[i] == (float)(i * 10000 + 4950);
    return right;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*kernel)(float *);
        size_t shared_nbytes;
    } wrong[] = {
        {"host", block_race_kernel, 0},     {"mask", mask_kernel, 0},           {"ended", ended_kernel, 0},
        {"deadlock", deadlock_kernel, 0},   {"unaligned", unaligned_kernel, 0}, {"beyond", beyond_kernel, 0},
        {"index", index_kernel, 0},         {"shared", shared_kernel, 256},     {"behind", behind_kernel, 0},
        {"shift", shift_kernel, 0},         {"warp_race", warp_race_kernel, 0}, {"block_race", block_race_kernel, 0},
        {"grid_race", grid_race_kernel, 0},
    };
    const char *name = argc > 1 ? argv[1] : "right";
    float *x = device_array<float>(1000), *host = static_cast<float *>(malloc(4000));
    bool right = true;
    for (const auto &w : wrong)
        if (!strcmp(name, w.name))
            launch(stream(), dim3(2), 128, w.shared_nbytes, w.kernel, strcmp(name, "host") ? x : host);
    if (!strcmp(name, "right")) right = sums_are_right(x) && product_is_right<NOTHING>();
    if (!strcmp(name, "no_wait")) right = product_is_right<NO_WAIT>();
    if (!strcmp(name, "no_barrier_after")) right = product_is_right<NO_BARRIER_AFTER>();
    if (!strcmp(name, "no_barrier_before")) right = product_is_right<NO_BARRIER_BEFORE>();
    cudaFree(x);
    free(host);
    puts(right ? "right" : "the numbers are wrong");
    return 0;
}
