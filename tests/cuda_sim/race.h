/* race.h - detects races between the threads of a kernel, and accesses of kernels to host memory. Where the kernels
 * are compiled with -fsanitize=thread, the compiler calls this runtime at each access.
 *
 * What orders two accesses of threads a and b: a barrier of their block, or __syncwarp of lanes of their warp.
 * Shuffles, votes and matmuls do not: CUDA promises no order of memory for them. Blocks of a launch are never
 * ordered; launches follow one another here, and whether their streams order them is the matter of streams.h. No
 * thread may access the target of an asynchronous copy until the issuing thread has waited for it; then it counts as
 * that thread's write. */
#ifndef CUDA_SIM_RACE_H
#define CUDA_SIM_RACE_H

#include <stddef.h>
#include <stdint.h>

#ifdef CUDA_SIM_RACES
void race_begin_launch();
void race_begin_block(int n_threads);
void race_barrier();
/** These lanes of a warp have met at __syncwarp. */
void race_syncwarp(int warp, uint32_t lanes);
/** An access of a lane by a function of the simulator that was called from pc. */
void race_read(const void *p, size_t nbytes, int lane, const void *pc);
void race_copy_begins(void *p, size_t nbytes, int lane, const void *pc);
void race_copy_ended(void *p, size_t nbytes, int lane);
/** Memory is gone. */
void race_forget(void *p, size_t nbytes);
#else
static inline void race_begin_launch() {}
static inline void race_begin_block(int) {}
static inline void race_barrier() {}
static inline void race_syncwarp(int, uint32_t) {}
static inline void race_read(const void *, size_t, int, const void *) {}
static inline void race_copy_begins(void *, size_t, int, const void *) {}
static inline void race_copy_ended(void *, size_t, int) {}
static inline void race_forget(void *, size_t) {}
#endif

#endif
