/* cuda_runtime.h - what nvcc gives every source without being asked: included first in each .cu that the simulator
 * compiles. */
#ifndef CUDA_SIM_RUNTIME_H
#define CUDA_SIM_RUNTIME_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cuda_runtime_api.h"
#include "sim.h"
#include "sim_math.h"
#include "sim_warp.h"

#endif
