/* library.h - how the twins of libraries say what they do on a stream (streams.h). */
#ifndef CUDA_SIM_LIBRARY_H
#define CUDA_SIM_LIBRARY_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/** This thread is the device until the call has ended. */
void sim_library_begins(cudaStream_t stream, const char *call);
void sim_library_touches(const void *p, size_t nbytes, bool write);
void sim_library_ends(void);
/** The same without an operation of its own: for what was begun before. */
void sim_library_goes_on(void);
void sim_library_pauses(void);

#ifdef __cplusplus
}
#endif
#endif
