/* ptx.cuh - the instructions that C++ has no words for, each with a twin on the host where a simulator compiles the
 * kernels (tests/cuda_sim/): products of small matrices on tensor cores, loads of their fragments
 * from shared memory, and copies from global to shared memory that run behind the thread's back.
 *
 * Fragments of mma_16816, for the lane l = 4 g + t of a warp (PTX ISA, "Matrix Fragments for mma.m16n8k16"):
 *   a[0..3]  A [16,16] row by row: pairs (g, 2t), (g+8, 2t), (g, 2t+8), (g+8, 2t+8), the element of lower column below
 *   b[0..1]  B [16,8]: pairs (2t, g), (2t+8, g) of rows 2t and 2t+1
 *   d[0..3]  D [16,8]: (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1) */
#ifndef DTRAIN_PTX_CUH
#define DTRAIN_PTX_CUH

#include "kernel.cuh"

#ifdef __CUDACC__

/** D += A B on a warp, sums in float. */
__device__ inline void mma_16816(float d[4], const uint32_t a[4], const uint32_t b[2], bf16)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline void mma_16816(float d[4], const uint32_t a[4], const uint32_t b[2], __half)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/** 2^x as the special function unit gives it: relative error below 2^-22, results below 2^-126 are 0. exp2f takes three
 *  instructions more for those. */
__device__ inline float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/** Two floats as a pair of elements, the first in the lower half, rounded to nearest. */
template <class T> __device__ uint32_t pack_pair(float low, float high);
template <> __device__ inline uint32_t pack_pair<bf16>(float low, float high)
{
    uint32_t u;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(high), "f"(low));
    return u;
}
template <> __device__ inline uint32_t pack_pair<__half>(float low, float high)
{
    uint32_t u;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(high), "f"(low));
    return u;
}

/** Four matrices of 8x8 elements of 2 bytes from shared memory: lane l gives the address of row l % 8 of matrix l / 8
 *  (16 bytes, aligned), and gets the pair (row l/4, columns 2 (l%4) and the next) of each; trans: of each transposed. */
__device__ inline void ldmatrix_x4(uint32_t r[4], const void *row)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
__device__ inline void ldmatrix_x4_trans(uint32_t r[4], const void *row)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/** Copy 16 bytes from global to shared memory, or fill them with zeros where valid is false (src is then not read, but
 *  must be an address that exists). Done when a wait says so; both addresses are multiples of 16. */
__device__ inline void copy_async_16(void *shared, const void *src, bool valid)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    const int nbytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(src), "r"(nbytes) : "memory");
}
/** The same for 8 bytes; both addresses are multiples of 8. */
__device__ inline void copy_async_8(void *shared, const void *src, bool valid)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    const int nbytes = valid ? 8 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(at), "l"(src), "r"(nbytes) : "memory");
}
/** Close a group of this thread's copies; wait until at most `left` of its groups are still under way. Other threads see
 *  what was copied after a barrier. */
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int left> __device__ inline void copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

#else
#include "sim_ptx.h"
static inline float exp2_approx(float x) { return exp2f(x); }
template <class T> static inline uint32_t pack_pair(float low, float high)
{
    const T pair[2] = {from_float<T>(low), from_float<T>(high)};
    uint32_t u;
    memcpy(&u, pair, sizeof u);
    return u;
}
#endif

#endif
