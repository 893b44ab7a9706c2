/* waiting.c - how long idle OpenMP threads spin before they sleep.
 *
 * OpenMP libraries let idle threads spin for milliseconds (libgomp: 300,000 iterations; libomp: 200 ms).
 * On a free core that is fast. On a shared core, spinning uses up this process's time slice, and each
 * parallel loop then waits for a whole slice of the scheduler. A spin of about the cost of a sleep and
 * wake-up loses little in either case. 3000 iterations take 40 us on processors with a pause of 40 cycles,
 * and 150 us with 140 cycles. Measured: docs/data/epyc-waiting.csv, xeon-waiting.csv.
 *
 * The libraries read their settings when they are loaded, before main. The program therefore executes
 * itself again with the settings in its environment. */
#include "tool.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_set(const char *name) { return getenv(name) != NULL; }

/* True if the running code comes from this file. If the program was started through the loader
 * (ld-linux.so ./dtrain), the executable is the loader, and executing that with our arguments would fail. */
static bool is_this_program(const char *exe)
{
    char line[PATH_MAX + 128];
    bool same = false;
    FILE *f = fopen("/proc/self/maps", "re");
    while (f && fgets(line, sizeof line, f)) {
        unsigned long long low, high;
        const uintptr_t here = (uintptr_t)is_this_program;
        int path = 0;
        line[strcspn(line, "\n")] = '\0';
        if (sscanf(line, "%llx-%llx %*s %*s %*s %*s %n", &low, &high, &path) != 2 || here < low || here >= high)
            continue;
        same = path > 0 && strcmp(line + path, exe) == 0;
        break;
    }
    if (f) fclose(f);
    return same;
}

void tool_wait_fairly(char **argv)
{
    char self[PATH_MAX];
    /* set by the user, or by our first start */
    if (is_set("OMP_WAIT_POLICY") || is_set("GOMP_SPINCOUNT") || is_set("KMP_BLOCKTIME")) return;
    /* resolve the link: executing /proc/self/exe itself would start an emulator instead */
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return;
    self[n] = '\0';
    if (!is_this_program(self)) return;
    if (setenv("GOMP_SPINCOUNT", "3000", 1) || setenv("KMP_BLOCKTIME", "0", 1)) return;
    execv(self, argv); /* on failure the program continues unchanged */
}
