/* faults.cc - see faults.h. */
#include "faults.h"
#include "block.h"
#include <atomic>
#include <mutex>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 8 };
struct wanted_fault {
    char call[48], error[16];
    long nth;
    std::atomic<long> n_passed;
};
static wanted_fault wanted[MOST];
static int n_wanted;
static std::atomic<int> failed; /* a cudaError_t: the device has */

/* Of the launchers that tests use. */
static const char *rank_of_process()
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    for (const char *name : names)
        if (getenv(name)) return getenv(name);
    return "0";
}

static void read_environment()
{
    const char *p = getenv("CUDA_SIM_FAIL");
    while (p && *p && n_wanted < MOST) {
        wanted_fault &f = wanted[n_wanted];
        char rank[12];
        if (sscanf(p, "%47[^:,]:%11[^:,]:%ld:%15[a-z]", f.call, rank, &f.nth, f.error) != 4)
            sim_wrong("CUDA_SIM_FAIL: expected CALL:RANK:NTH:ERROR, found %s", p);
        n_wanted += strcmp(rank, "*") == 0 || strcmp(rank, rank_of_process()) == 0;
        p += strcspn(p, ",");
        p += *p == ',';
    }
}

/* The error that is wanted of this call, or NULL. */
static const char *pass(const char *call)
{
    static std::once_flag once;
    std::call_once(once, read_environment);
    const char *error = nullptr;
    for (int i = 0; i < n_wanted; i++)
        if (strcmp(wanted[i].call, call) == 0 && ++wanted[i].n_passed == wanted[i].nth) error = wanted[i].error;
    while (error && strcmp(error, "hang") == 0) pause();
    return error;
}

static const struct {
    const char *word;
    cudaError_t error;
    bool lasts;
} errors[] = {{"memory", cudaErrorMemoryAllocation, false},
              {"value", cudaErrorInvalidValue, false},
              {"handle", cudaErrorInvalidResourceHandle, false},
              {"illegal", cudaErrorIllegalAddress, true},
              {"ecc", cudaErrorECCUncorrectable, true},
              {"launch", cudaErrorLaunchFailure, true},
              {"nvlink", cudaErrorNvlinkUncorrectable, true},
              {"contained", cudaErrorContained, true},
              {"unknown", cudaErrorUnknown, true}};

/* What the device returns for this word, or NULL; from now on, where it has failed. */
static cudaError_t error_of(const char *word)
{
    cudaError_t error = cudaSuccess;
    for (const auto &e : errors) {
        if (!word || strcmp(word, e.word) != 0) continue;
        error = e.error;
        if (e.lasts) failed = error;
    }
    return failed ? static_cast<cudaError_t>(failed.load()) : error;
}

cudaError_t sim_passes(const char *call)
{
    const cudaError_t error = error_of(pass(call));
    return error == cudaSuccess ? error : sim_fail(error);
}

/* A rank that joins others with a failed GPU gets an error. The watchdog may query, and an ending process may abort. */
static void refuse_if_failed(const char *call)
{
    if (failed && strcmp(call, "ncclCommGetAsyncError") != 0) sim_wrong("%s is called for a GPU that has failed", call);
}

int sim_nccl_passes(const char *call)
{
    refuse_if_failed(call);
    const char *word = pass(call);
    if (error_of(word) != cudaSuccess) return ncclUnhandledCudaError;
    if (!word) return ncclSuccess;
    return strcmp(word, "system") == 0 ? ncclSystemError : ncclRemoteError;
}
