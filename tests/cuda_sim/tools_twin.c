/* tools_twin.c - NVTX and the driver's management library, for the simulator of CUDA. */
#include <nvtx3/nvToolsExt.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

static FILE *tool(void)
{
    static FILE *f;
    const char *path = getenv("CUDA_SIM_NVTX");
    if (!f && path && (f = fopen(path, "w"))) setvbuf(f, NULL, _IOLBF, 0);
    return f;
}

int nvtxRangePushA(const char *message)
{
    if (tool()) fprintf(tool(), "push %s\n", message);
    return 0;
}
int nvtxRangePop(void)
{
    if (tool()) fprintf(tool(), "pop\n");
    return 0;
}

/* The driver's token of a context: an odd number that does not occur by chance. */
enum { CONTEXT_NBYTES = 123 << 20 };

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device);
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *total_free_used);

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device)
{
    *device = NULL;
    return 0;
}
/* The first question is asked before there is a context. */
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *total_free_used)
{
    static int n_asked;
    size_t left, total;
    cudaMemGetInfo(&left, &total);
    if (n_asked++ > 0) left -= CONTEXT_NBYTES;
    total_free_used[0] = total, total_free_used[1] = left, total_free_used[2] = total - left;
    return 0;
}
