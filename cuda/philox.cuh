/* philox.cuh - random words for dropout and noise: dt_philox4x32 of core.h on the GPU. */
#ifndef DTRAIN_CUDA_PHILOX_CUH
#define DTRAIN_CUDA_PHILOX_CUH

#include "kernel.cuh"

struct philox_words {
    uint32_t w[4];
};
__device__ inline philox_words philox(uint64_t key, uint64_t ctr_hi, uint64_t ctr_lo)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)ctr_lo, c1 = (uint32_t)(ctr_lo >> 32), c2 = (uint32_t)ctr_hi, c3 = (uint32_t)(ctr_hi >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1, c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

#endif
