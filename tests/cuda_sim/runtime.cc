/* runtime.cc - twins of CUDA's runtime: errors, the devices, and which launches are possible. */
#include "block.h"
#include "faults.h"
#include "thread.h"
#include <atomic>
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- errors ----------------------------------------------------------------------------------------------------- */

static std::atomic<int> last_error;

cudaError_t sim_fail(cudaError_t error)
{
    last_error = error;
    return error;
}

cudaError_t cudaGetLastError(void)
{
    SIM_PASSES("cudaGetLastError");
    return static_cast<cudaError_t>(last_error.exchange(cudaSuccess));
}
cudaError_t cudaPeekAtLastError(void) { return static_cast<cudaError_t>(last_error.load()); }

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "cudaSuccess";
    case cudaErrorInvalidValue:
        return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
        return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidMemcpyDirection:
        return "cudaErrorInvalidMemcpyDirection";
    case cudaErrorInvalidResourceHandle:
        return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
        return "cudaErrorNotReady";
    case cudaErrorECCUncorrectable:
        return "cudaErrorECCUncorrectable";
    case cudaErrorNvlinkUncorrectable:
        return "cudaErrorNvlinkUncorrectable";
    case cudaErrorContained:
        return "cudaErrorContained";
    case cudaErrorUnknown:
        return "cudaErrorUnknown";
    case cudaErrorIllegalAddress:
        return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure:
        return "cudaErrorLaunchFailure";
    case cudaErrorNotSupported:
        return "cudaErrorNotSupported";
    case cudaErrorStreamCaptureUnsupported:
        return "cudaErrorStreamCaptureUnsupported";
    default:
        return "an error that nothing here returns";
    }
}
const char *cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

/* ---- the device ------------------------------------------------------------------------------------------------- */

/* A process has one of its own, or with CUDA_SIM_DEVICES=N sees the N that the machine has, and works on one. */
static int n_gpus()
{
    const char *text = getenv("CUDA_SIM_DEVICES");
    return text ? atoi(text) : 1;
}
static bool is_there(int device) { return device >= 0 && device < n_gpus(); }

static std::atomic<int> of_process{-1}; /* that a thread has chosen */

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = n_gpus();
    return cudaSuccess;
}
cudaError_t cudaInitDevice(int device, unsigned, unsigned)
{
    SIM_PASSES("cudaInitDevice");
    return is_there(device) ? cudaSuccess : sim_fail(cudaErrorInvalidValue);
}
cudaError_t cudaSetDevice(int device)
{
    if (!is_there(device)) return sim_fail(cudaErrorInvalidValue);
    sim_this_thread()->gpu = device;
    of_process = device;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device)
{
    *device = sim_this_thread()->gpu;
    return cudaSuccess;
}

void sim_uses_gpu(const char *call)
{
    const int mine = sim_this_thread()->gpu;
    if (of_process >= 0 && mine != of_process)
        sim_wrong("%s by a thread that has not chosen the GPU: it would be on GPU %d, and the program works on GPU %d",
                  call, mine, of_process.load());
}

/* An H100's limits, and few multiprocessors: kernels that launch some blocks for each should not need minutes. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    SIM_PASSES("cudaGetDeviceProperties");
    if (!is_there(device)) return sim_fail(cudaErrorInvalidValue);
    const char *name = getenv("CUDA_SIM_NAME");
    *p = {};
    snprintf(p->name, sizeof p->name, "%s", name ? name : "simulated GPU");
    const int number = getenv("CUDA_SIM_DEVICES") ? device + 1 : getpid();
    memcpy(p->uuid.bytes, &number, sizeof number);
    p->totalGlobalMem = SIM_DEVICE_NBYTES;
    p->sharedMemPerBlock = SHARED_USUAL;
    p->sharedMemPerBlockOptin = SHARED_MOST;
    p->sharedMemPerMultiprocessor = 228 << 10;
    p->regsPerBlock = 65536;
    p->warpSize = WARP;
    p->maxThreadsPerBlock = MAX_THREADS;
    p->maxThreadsPerMultiProcessor = 2048;
    p->major = 9;
    p->multiProcessorCount = 4;
    p->l2CacheSize = 50 << 20;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    struct cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, device) != cudaSuccess) return cudaErrorInvalidValue;
    switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = SHARED_USUAL;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = SHARED_MOST;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = p.multiProcessorCount;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = p.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = p.minor;
        break;
    }
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *id, int len, int)
{
    snprintf(id, (size_t)len, "0000:00:00.0");
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}
/* None, so that nothing is a new driver, but where a test gives it one. */
cudaError_t cudaDriverGetVersion(int *version)
{
    const char *text = getenv("DTRAIN_SIM_DRIVER");
    *version = text ? atoi(text) : 0;
    return cudaSuccess;
}

/* ---- launches --------------------------------------------------------------------------------------------------- */

static std::mutex allowed_lock;
static std::map<const void *, int> allowed; /* dynamic shared memory that kernels may have */

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    SIM_PASSES("cudaFuncSetAttribute");
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || value > SHARED_MOST) return sim_fail(cudaErrorInvalidValue);
    const std::lock_guard<std::mutex> lock(allowed_lock);
    allowed[kernel] = value;
    return cudaSuccess;
}

cudaError_t sim_check_launch(const sim_launch &l)
{
    const std::lock_guard<std::mutex> lock(allowed_lock);
    const auto asked = allowed.find(l.kernel);
    const int shared = asked == allowed.end() || asked->second < SHARED_USUAL ? (int)SHARED_USUAL : asked->second;
    if (l.grid.x == 0 || l.grid.y == 0 || l.grid.z == 0 || l.grid.x > 0x7fffffffu || l.grid.y > 65535 ||
        l.grid.z > 65535 || l.threads < 1 || l.threads > MAX_THREADS)
        return cudaErrorInvalidConfiguration;
    return l.shared_nbytes <= (size_t)shared ? cudaSuccess : cudaErrorInvalidValue;
}
