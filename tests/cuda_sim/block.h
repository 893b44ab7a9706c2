/* block.h - what the simulator knows of the block that runs: see sim.h for the rules. */
#ifndef CUDA_SIM_BLOCK_H
#define CUDA_SIM_BLOCK_H

#include "fiber.h"
#include "memory.h"
#include <cuda_runtime_api.h>
#include <sim.h>
#include <sim_warp.h>

enum { WARP = 32, MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / WARP };
/* Of an H100: dynamic shared memory that a block gets unasked, and at most. */
static const size_t SIM_DEVICE_NBYTES = (size_t)16 << 30;
enum { SHARED_USUAL = 48 << 10, SHARED_MOST = 227 << 10 };

/* A copy of 16 bytes to shared memory that may not have landed. */
struct pending_copy {
    void *dst;
    const void *src;
    size_t nbytes;
    bool valid, landed;
    int group; /* that it belongs to, counted from the lane's first commit */
};
struct pending_copies {
    pending_copy *all; /* [room], those from first to n have not been waited for */
    int first, n, room, n_groups;
};

struct sim_lane_state {
    fiber at;
    char *stack, *top;
    sim_together *work; /* the collective that the lane waits for, with its name, mask and what it brought */
    const char *name;
    uint32_t mask;
    void *mine;
    const void *pc; /* at which it resumes */
    pending_copies copies;
    bool hides_copies; /* some have landed, and were not shown to matmuls of groups */
};

/* Sets of the lanes of a warp; each lane is in one of them. */
struct sim_warp_state {
    uint32_t running, meeting, at_barrier, ended;
};

struct sim_block_state {
    const sim_launch *launch;
    sim_lane_state lanes[MAX_THREADS];
    sim_warp_state warps[MAX_WARPS];
    int n_warps;
    int current; /* lane; -1 outside of kernels */
    int first;   /* lane of its warp that is run first */
    int burst;   /* meetings until another warp is drawn */
    int votes, count;
    fiber host;
};
extern __attribute__((visibility("hidden"))) sim_block_state block;

/** The next number of the sequence that DTRAIN_SIM_SEED begins. */
uint32_t sim_random();
/** The shared memory that the kernels declare, without the dynamic. */
sim_range sim_static_shared();
sim_range sim_dynamic_shared(); /* all that there is of it, in use or not */
bool sim_is_shared(const void *p, size_t nbytes);
/** Forget the copies of a lane that ended. */
void sim_copies_forget(pending_copies *copies);
/** A lane of the warp has ended: no matmul of its group may be in flight. */
void sim_matmuls_end(int warp);
/** Is this launch possible? Else the error that CUDA gives. */
cudaError_t sim_check_launch(const sim_launch &launch);
/** Note an error for cudaGetLastError, and return it. */
cudaError_t sim_fail(cudaError_t error);
/** The call works on the GPU that its thread has chosen, which must be the program's: cudaSetDevice is for one
 *  thread. */
void sim_uses_gpu(const char *call);
/** Its symbol, where it has one that others see; else NULL. */
const char *sim_kernel_name(const void *kernel);

#endif
