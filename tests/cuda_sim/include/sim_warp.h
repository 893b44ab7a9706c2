/* sim_warp.h - what the lanes of a warp do together. Each lane leaves what it brings (a pointer to something on its
 * stack) and waits; when all that the mask names have come, one function works for all of them. */
#ifndef CUDA_SIM_WARP_H
#define CUDA_SIM_WARP_H

#include <stdint.h>
#include <string.h>

/** What lane l of the warp brought is at brought[l], for each l in lanes (those of the mask that have not ended). */
typedef void sim_together(void *const brought[32], uint32_t lanes);
/** Meet the lanes that mask names; name is that of the collective, for messages. */
void sim_meet(sim_together *work, const char *name, uint32_t mask, void *mine);

struct sim_shuffle {
    const void *value;
    void *result;
    int nbytes;
    int source; /* the lane that is read */
    int caller;
};
sim_together sim_shuffled;
static inline int sim_lane() { return (int)(threadIdx.x % 32); }

template <class T> static inline T sim_shuffle_from(const char *name, uint32_t mask, T value, int source)
{
    static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "CUDA shuffles values of 2, 4 or 8 bytes");
    T result = value;
    sim_shuffle mine = {&value, &result, (int)sizeof(T), source, sim_lane()};
    sim_meet(sim_shuffled, name, mask, &mine);
    return result;
}
template <class T> static inline T __shfl_sync(uint32_t mask, T value, int source, int width = 32)
{
    return sim_shuffle_from("__shfl_sync", mask, value, (sim_lane() & ~(width - 1)) | (source & (width - 1)));
}
template <class T> static inline T __shfl_xor_sync(uint32_t mask, T value, int distance, int width = 32)
{
    const int lane = sim_lane(), source = lane ^ distance;
    const bool outside = (source & ~(width - 1)) > (lane & ~(width - 1));
    return sim_shuffle_from("__shfl_xor_sync", mask, value, outside ? lane : source);
}
template <class T> static inline T __shfl_up_sync(uint32_t mask, T value, unsigned distance, int width = 32)
{
    const int lane = sim_lane(), source = lane - (int)distance;
    return sim_shuffle_from("__shfl_up_sync", mask, value, source < (lane & ~(width - 1)) ? lane : source);
}
template <class T> static inline T __shfl_down_sync(uint32_t mask, T value, unsigned distance, int width = 32)
{
    const int lane = sim_lane(), source = lane + (int)distance;
    return sim_shuffle_from("__shfl_down_sync", mask, value, source > (lane | (width - 1)) ? lane : source);
}

struct sim_vote {
    bool predicate;
    uint32_t ballot; /* out */
};
sim_together sim_voted;
static inline uint32_t __ballot_sync(uint32_t mask, int predicate)
{
    sim_vote mine = {predicate != 0, 0};
    sim_meet(sim_voted, "__ballot_sync", mask, &mine);
    return mine.ballot;
}
static inline int __any_sync(uint32_t mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(uint32_t mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

sim_together sim_nothing;
static inline void __syncwarp(uint32_t mask = 0xffffffffu)
{
    int none;
    sim_meet(sim_nothing, "__syncwarp", mask, &none);
}

template <class Op> static inline unsigned sim_reduce(uint32_t mask, unsigned x, Op op)
{
    unsigned all = x;
    for (int l = 0; l < 32; l++) {
        if (!(mask >> l & 1)) continue;
        const unsigned other = __shfl_sync(mask, x, l);
        if (l != sim_lane()) all = op(all, other);
    }
    return all;
}
static inline unsigned __reduce_add_sync(uint32_t mask, unsigned x)
{
    return sim_reduce(mask, x, [](unsigned a, unsigned b) { return a + b; });
}
static inline unsigned __reduce_max_sync(uint32_t mask, unsigned x)
{
    return sim_reduce(mask, x, [](unsigned a, unsigned b) { return a > b ? a : b; });
}
static inline unsigned __reduce_min_sync(uint32_t mask, unsigned x)
{
    return sim_reduce(mask, x, [](unsigned a, unsigned b) { return a < b ? a : b; });
}
static inline int __reduce_add_sync(uint32_t mask, int x) { return (int)__reduce_add_sync(mask, (unsigned)x); }

#endif
