/* nvToolsExt.h - the part of NVTX that the CUDA device uses, for the simulator on the host: the tool that is attached
 * writes a line for each call to the file that CUDA_SIM_NVTX names (tools_twin.c). */
#ifndef CUDA_SIM_NVTX_H
#define CUDA_SIM_NVTX_H

int nvtxRangePushA(const char *message);
int nvtxRangePop(void);

#endif
