/* ptx.cuh - instructions that C++ cannot express, each with a host version for the simulator (tests/cuda_sim/):
 * multiplication of small matrices on tensor cores, loads of their fragments from shared memory, and asynchronous
 * copies from global to shared memory.
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

/** 2^x by the special function unit, with a relative error below 2^-22. Results below 2^-126 are 0; exp2f needs three
 *  more instructions to represent them. */
__device__ inline float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/** Pack two floats as elements, rounded to nearest, the first in the lower half. */
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

/** Load four 8x8 matrices of 2-byte elements from shared memory. Lane l passes the address of row l % 8 of matrix l / 8
 *  (16 bytes, aligned). It receives two adjacent elements of each matrix, (row l/4, columns 2 (l%4) and the next), or
 *  with trans of each transpose. */
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

/** Begin to copy 16 bytes from global to shared memory. If valid is false, zero them instead: src is then not read, but
 *  must be a valid address. Complete after a wait. Both addresses are multiples of 16. */
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
/** commit: close a group of this thread's copies. wait: until at most `left` of its groups are in flight. Other threads
 *  see the copies after a barrier. */
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

/* ---- matmuls of a group of four warps (only sm_90a) ------------------------------------------------------------- */

/* Matrices in shared memory have contiguous rows of 64 elements (128 bytes), aligned to 1024 bytes. The 16-byte chunks
 * of row r are permuted by an xor with r % 8 ("128-byte swizzle"). A matmul is 64 x 64 x 16; each warp of the group has
 * 16 rows, in the layouts of mma_16816. Matmuls are asynchronous. Call group_open before the first matmul and after
 * writing its registers, then group_close after a group of matmuls, then group_wait. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAVE_GROUP_MATMULS 1
#endif

#if defined(__CUDACC__) && defined(HAVE_GROUP_MATMULS)

/* PTX ISA, "Matrix Descriptor Format": address, 16 (not used), 1024 bytes from 8 rows to the next 8, the swizzle. */
__device__ inline uint64_t matrix_descriptor(const void *p)
{
    const uint64_t at = (uint64_t)__cvta_generic_to_shared(p);
    return (at & 0x3ffff) >> 4 | (uint64_t)(16 >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}
__device__ inline void group_open() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void group_close() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int left> __device__ inline void group_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}
/** Compiler barrier for the registers of matmuls: the compiler does not know that matmuls write them asynchronously.
 *  Put it before group_open and after group_wait. */
template <int N> __device__ inline void hold(float (&d)[N][4])
{
#pragma unroll
    for (int i = 0; i < 4 * N; i++) asm volatile("" : "+f"(d[i / 4][i % 4])::"memory");
}
template <int N> __device__ inline void hold(uint32_t (&a)[N][4])
{
#pragma unroll
    for (int i = 0; i < 4 * N; i++) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}
/** Make this thread's writes and copies to shared memory visible to matmuls that begin after a barrier. */
__device__ inline void show_to_matmuls() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#define FOUR_(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define ALL_(d) FOUR_(d, 0), FOUR_(d, 1), FOUR_(d, 2), FOUR_(d, 3), FOUR_(d, 4), FOUR_(d, 5), FOUR_(d, 6), FOUR_(d, 7)
#define LIST_                                                                                                          \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"  \
    "%30,%31}"
#define GROUP_MATMULS_(TYPE, NAME)                                                                                     \
    /* D = (add ? D : 0) + A B^T, A and B [64 rows][16] */                                                             \
    __device__ inline void group_multiply(float(&d)[8][4], const TYPE *a, const TYPE *b, bool add)                     \
    {                                                                                                                  \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                                      \
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " " LIST_                             \
                     ", %32, %33, p, 1, 1, 0, 0;\n}\n"                                                                 \
                     : ALL_(d)                                                                                         \
                     : "l"(matrix_descriptor(a)), "l"(matrix_descriptor(b)), "r"((int)add));                           \
    }                                                                                                                  \
    /* D += A B, A [64][16] in registers, B [16 rows][64] */                                                           \
    __device__ inline void group_add(float(&d)[8][4], const uint32_t(&a)[4], const TYPE *b)                            \
    {                                                                                                                  \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                                      \
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " " LIST_                             \
                     ", {%32,%33,%34,%35}, %36, p, 1, 1, 1;\n}\n"                                                      \
                     : ALL_(d)                                                                                         \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(matrix_descriptor(b)), "r"(1));                 \
    }
GROUP_MATMULS_(bf16, "bf16")
GROUP_MATMULS_(__half, "f16")

#endif

#endif
