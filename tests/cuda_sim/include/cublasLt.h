/* cublasLt.h - there is no cuBLASLt in the simulator: opening it fails, as without a driver, and the device's own
 * products compute everything. */
#ifndef CUDA_SIM_CUBLASLT_H
#define CUDA_SIM_CUBLASLT_H
#endif
