/* kernel.cuh - building blocks of all kernels: element types, 16-byte vectors, sums over warps and blocks in a fixed
 * order, and the launch.
 *
 * Kernels are templates over their element type, compute in float, and round once when they store. No sum depends on
 * the order in which blocks run: there are no atomic additions of floats. */
#ifndef DTRAIN_KERNEL_CUH
#define DTRAIN_KERNEL_CUH

#include "cuda.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef __nv_bfloat16 bf16;
enum { WARP = 32 };

/* ---- elements ---------------------------------------------------------------------------------------------------- */

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }
template <class T> __device__ inline T from_float(float x);
template <> __device__ inline float from_float<float>(float x) { return x; }
template <> __device__ inline bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }
template <> __device__ inline __half from_float<__half>(float x) { return __float2half_rn(x); }

/** An array whose element type is an argument of the kernel, not of a template: one instance serves all types. For
 *  kernels that spend little of their time on loads and stores. */
struct elements {
    char *p;
    dt_dtype dt;
    elements() = default;
    __host__ __device__ elements(const void *array, dt_dtype type) : p((char *)array), dt(type) {}
    __device__ elements operator+(int64_t n) const { return {p + n * (dt == DT_F32 ? 4 : 2), dt}; }
    __device__ float operator[](int64_t i) const
    {
        if (dt == DT_F32) return ((const float *)p)[i];
        return dt == DT_BF16 ? to_float(((const bf16 *)p)[i]) : to_float(((const __half *)p)[i]);
    }
    __device__ void set(int64_t i, float x) const
    {
        if (dt == DT_F32)
            ((float *)p)[i] = x;
        else if (dt == DT_BF16)
            ((bf16 *)p)[i] = from_float<bf16>(x);
        else
            ((__half *)p)[i] = from_float<__half>(x);
    }
};

/** n elements that one instruction loads or stores; the address must be a multiple of its size. */
template <class T, int n> struct alignas(sizeof(T) * n) vec {
    T x[n];
};
template <class T> struct vec16 : vec<T, 16 / sizeof(T)> {
    static constexpr int N = 16 / sizeof(T);
};

/** Can arrays at these addresses, with this row distance in bytes, be read in vectors of 16 bytes? */
static inline bool vectors_fit(size_t row_nbytes, const void *a, const void *b = nullptr, const void *c = nullptr,
                               const void *d = nullptr)
{
    return (((size_t)a | (size_t)b | (size_t)c | (size_t)d | row_nbytes) & 15) == 0;
}

/** Run the statements with T as the element type of dt, or return DT_ERR_ARG from the operation. */
#define CUDA_BY_DTYPE(dt, T, op, ...)                                                                                  \
    do {                                                                                                               \
        switch (dt) {                                                                                                  \
            CUDA_DTYPE_CASE(DT_F32, float, T, __VA_ARGS__)                                                             \
            CUDA_DTYPE_CASE(DT_BF16, bf16, T, __VA_ARGS__)                                                             \
            CUDA_DTYPE_CASE(DT_F16, __half, T, __VA_ARGS__)                                                            \
        default:                                                                                                       \
            return dt_fail(DT_ERR_ARG, "internal: %s: element type %s is not supported", op, dt_dtype_name(dt));       \
        }                                                                                                              \
    } while (0)
#define CUDA_DTYPE_CASE(value, type, T, ...)                                                                           \
    case value: {                                                                                                      \
        using T = type;                                                                                                \
        __VA_ARGS__                                                                                                    \
    } break;

/* ---- sums over a warp and a block: every lane gets the same result ----------------------------------------------- */

struct plus {
    template <class T> __device__ T operator()(T a, T b) const { return a + b; }
};
struct larger { /* NaN if either is NaN */
    __device__ float operator()(float a, float b) const { return a != a ? a : b != b ? b : a > b ? a : b; }
};

template <class T, class Op> __device__ inline T warp_reduce(T x, Op op)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2) x = op(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}
template <class T> __device__ inline T warp_sum(T x) { return warp_reduce(x, plus()); }

/** Called by all threads of the block; their number is a multiple of 32. */
template <class T, class Op> __device__ inline T block_reduce(T x, Op op)
{
    __shared__ T part[32];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, n_warps = blockDim.x / WARP;
    x = warp_reduce(x, op);
    if (lane == 0) part[warp] = x;
    __syncthreads();
    T sum = part[0];
    for (int w = 1; w < n_warps; w++) sum = op(sum, part[w]);
    __syncthreads(); /* part may be reused */
    return sum;
}
template <class T> __device__ inline T block_sum(T x) { return block_reduce(x, plus()); }

/* ---- launch ------------------------------------------------------------------------------------------------------ */

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/** Queue kernel(args...) on a grid of blocks; CUDA_LAUNCHED() follows. A single function, so that the host simulator
 *  can replace it. */
template <class... Params, class... Args>
static inline void launch(dt_stream *s, dim3 grid, int threads, size_t shared_nbytes, void (*kernel)(Params...),
                          Args... args)
{
#ifdef __CUDACC__
    kernel<<<grid, threads, shared_nbytes, s->handle>>>(args...);
#else
    simulate(s, reinterpret_cast<const void *>(kernel), grid, threads, shared_nbytes, [=] { kernel(args...); });
#endif
}

/** Dynamic shared memory of a kernel, as an array of T. */
#ifdef __CUDACC__
#define DYNAMIC_SHARED(T, name)                                                                                        \
    extern __shared__ __align__(16) unsigned char dynamic_shared_[];                                                   \
    T *name = reinterpret_cast<T *>(dynamic_shared_)
#else
#define DYNAMIC_SHARED(T, name) T *name = reinterpret_cast<T *>(simulated_shared())
#endif

/** Allow a kernel more than 48 KiB of dynamic shared memory; once per kernel, before its first launch. */
#define CUDA_ALLOW_SHARED(kernel, nbytes)                                                                              \
    DT_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,  \
                                 (int)(nbytes)))

#endif
