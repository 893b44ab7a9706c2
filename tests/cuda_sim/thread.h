/* thread.h - what the simulator keeps for a thread of the host. (What is thread_local is shared memory here: sim.h.) */
#ifndef CUDA_SIM_THREAD_H
#define CUDA_SIM_THREAD_H

#include "streams.h"

struct sim_thread {
    int gpu;            /* that cudaSetDevice chose for it */
    int device_depth;   /* calls of sim_be_the_device that are open (memory.h) */
    stream_op call;     /* of a library (library.h) */
    size_t stepping[8]; /* pages that are open for one instruction (host.cc) */
    int n_stepping;
};
sim_thread *sim_this_thread();

#endif
