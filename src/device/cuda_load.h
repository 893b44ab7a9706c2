/* cuda_load.h - the CUDA device, which is a shared object of its own: a binary that is linked against CUDA's libraries
 * does not start where they are missing. */
#ifndef DT_DEVICE_CUDA_LOAD_H
#define DT_DEVICE_CUDA_LOAD_H

#include "dtrain/device.h"

/** The table of the CUDA device, loaded once; NULL, and why, where this program has none or a library of CUDA's is
 *  missing. That there is a GPU is another question (is_there). */
const dt_device_ops *dt_cuda_load(char *why, size_t why_size);
/** For tests: the same sources on a simulator of CUDA that runs on the host (tests/cuda_sim). */
const dt_device_ops *dt_cuda_sim_load(char *why, size_t why_size);

#endif
