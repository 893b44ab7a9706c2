/* faults.h - injected failures of calls of CUDA's runtime and of NCCL. CUDA_SIM_FAIL=CALL:RANK:NTH:ERROR, several
 * with commas: CALL is a function's name, or launch for kernels; RANK may be *. ERROR: memory, value, handle;
 * illegal, ecc, launch, nvlink, contained and unknown, after which the device has failed: every later call of CUDA
 * returns the same, and one of NCCL ends the program; of NCCL alone system and remote. What CUDA refuses is
 * ncclUnhandledCudaError there. hang: the call never returns. */
#ifndef CUDA_SIM_FAULTS_H
#define CUDA_SIM_FAULTS_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/** At the begin of a call: cudaSuccess, or what it is to return. */
cudaError_t sim_passes(const char *call);
/** The same for a call of NCCL: a ncclResult_t. */
int sim_nccl_passes(const char *call);

#define SIM_PASSES(call)                                                                                               \
    do {                                                                                                               \
        const cudaError_t passes_ = sim_passes(call);                                                                  \
        if (passes_ != cudaSuccess) return passes_;                                                                    \
    } while (0)

#define SIM_NCCL_PASSES(call)                                                                                          \
    do {                                                                                                               \
        const int passes_ = sim_nccl_passes(call);                                                                     \
        if (passes_ != 0) return (ncclResult_t)passes_;                                                                \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
