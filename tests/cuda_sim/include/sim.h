/* sim.h - a simulator of CUDA on the host, for tests: the language of kernels and their launch.
 *
 * The sources of cuda/ are compiled by the host's C++ compiler. A launch runs its blocks one after the other, in
 * random order. The lanes of a block are fibers: one runs until it meets the others of its warp (a shuffle, a vote,
 * a matmul) or of its block (__syncthreads). Warps run in random bursts, so that they drift as far apart as the
 * barriers allow; lanes of a warp run one after the other, not in lockstep, so that a missing __syncwarp shows.
 * DTRAIN_SIM_SEED seeds the order.
 *
 * Shared memory is what is local to the thread that runs the block: __shared__ is thread_local. It holds NaNs when a
 * launch begins. An error (a deadlock, misuse of a collective, a misaligned or unmapped address) ends the program.
 * Its message names operation, kernel, block and thread. */
#ifndef CUDA_SIM_H
#define CUDA_SIM_H

#include "cuda_runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#define SIM_VECTORS(T, name, nbytes)                                                                                   \
    struct alignas(2 * nbytes) name##2 { T x, y; };                                                                    \
    struct name##3 { T x, y, z; };                                                                                     \
    struct alignas(4 * nbytes > 16 ? 16 : 4 * nbytes) name##4 { T x, y, z, w; };                                       \
    static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                                  \
    static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                          \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SIM_VECTORS(float, float, 4)
SIM_VECTORS(double, double, 8)
SIM_VECTORS(int, int, 4)
SIM_VECTORS(short, short, 2)
SIM_VECTORS(unsigned short, ushort, 2)
SIM_VECTORS(long long, longlong, 8)
SIM_VECTORS(unsigned long long, ulonglong, 8)
#undef SIM_VECTORS
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

/* Of the lane that runs; set at each switch. */
extern __attribute__((visibility("hidden"))) uint3 threadIdx, blockIdx;
extern __attribute__((visibility("hidden"))) dim3 blockDim, gridDim;
static const int warpSize = 32;

/* ---- the block -------------------------------------------------------------------------------------------------- */

void sim_block_barrier();
/** Meet the other threads of the block; the number of those whose predicate is true. */
int sim_block_count(bool predicate);
static inline void __syncthreads() { sim_block_barrier(); }
static inline int __syncthreads_count(int predicate) { return sim_block_count(predicate != 0); }
static inline int __syncthreads_or(int predicate) { return sim_block_count(predicate != 0) != 0; }
static inline int __syncthreads_and(int predicate) { return sim_block_count(predicate == 0) == 0; }
static inline void __threadfence() {}
static inline void __threadfence_block() {}

/** Dynamic shared memory: its end is that of a readable page. */
void *simulated_shared();

/* ---- the launch ------------------------------------------------------------------------------------------------- */

struct sim_launch {
    cudaStream_t stream;
    const char *op; /* the operation, for messages */
    const void *kernel;
    dim3 grid;
    int threads;
    size_t shared_nbytes;
    void (*lane)(void *); /* the kernel with its arguments */
    void *context;
    size_t context_nbytes;
};
void sim_run(const sim_launch &launch);

/** Kernels, calls of libraries, copies and fills that were queued by this process. */
extern "C" long long sim_n_launches(void);

template <class Stream, class Lane>
static inline void simulate(Stream *s, const void *kernel, dim3 grid, int threads, size_t shared_nbytes, Lane lane)
{
    static_assert(__is_trivially_copyable(Lane), "arguments of kernels are copied as bytes");
    sim_run({s->handle, s->last, kernel, grid, threads, shared_nbytes, [](void *of) { (*static_cast<Lane *>(of))(); },
             &lane, sizeof lane});
}

/** End the program: what the lane that runs did wrong. */
[[noreturn]] void sim_wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
