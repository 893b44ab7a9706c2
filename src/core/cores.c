/* cores.c - number of cores that this process may use. */
#include "dtrain/core/core.h"
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

void dt_cores_of(int pid, dt_cores *set)
{
    enum { MAX_CORES = DT_CORE_WORDS * 64 };
    *set = (dt_cores){0};
    cpu_set_t *mask = CPU_ALLOC(MAX_CORES);
    const size_t nbytes = CPU_ALLOC_SIZE(MAX_CORES);
    if (mask) CPU_ZERO_S(nbytes, mask);
    if (mask && sched_getaffinity(pid, nbytes, mask) == 0)
        for (int c = 0; c < MAX_CORES; c++)
            if (CPU_ISSET_S((size_t)c, nbytes, mask)) set->word[c / 64] |= 1ull << (c % 64);
    CPU_FREE(mask);
}

int dt_cores_count(const dt_cores *set)
{
    int n = 0;
    for (int w = 0; w < DT_CORE_WORDS; w++) n += __builtin_popcountll(set->word[w]);
    return n;
}

int dt_cores_online(void)
{
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

/* A positive number from the environment, otherwise 0. */
static int given(const char *name)
{
    const char *text = getenv(name);
    const long n = text ? strtol(text, NULL, 10) : 0;
    return n > 0 && n < 1 << 20 ? (int)n : 0;
}

int dt_cores_per_task(void) { return given("SLURM_CPUS_PER_TASK"); }

int dt_cores_own(void)
{
    dt_cores own;
    dt_cores_of(0, &own);
    const int n = dt_cores_count(&own), task = dt_cores_per_task();
    return n == 0 ? 1 : task > 0 && task < n ? task : n;
}

int dt_cores_of_job(void)
{
    dt_cores launcher;
    const int slurm = given("SLURM_CPUS_ON_NODE");
    dt_cores_of(getppid(), &launcher);
    const int n = dt_cores_count(&launcher);
    return slurm > 0 ? slurm : n > 0 ? n : dt_cores_online();
}
