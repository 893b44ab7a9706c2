/* waiting.c - how long threads without work look for some before they sleep.
 *
 * An OpenMP library lets them spin for milliseconds (libgomp: 300,000 turns; libomp: 200 ms). Alone that is fast. On a
 * core that something else wants, they use up the time that is due to this process, and each parallel loop then waits
 * for a whole slice of the scheduler. A bounded spin of about what it costs to sleep and be woken loses little in
 * either case: 3000 turns are 40 us on processors that pause for 40 cycles at each, 150 us on those that pause for 140.
 * Measured: docs/data/epyc-waiting.csv, xeon-waiting.csv.
 *
 * The libraries read their settings when they are loaded, before main, so the program starts itself once more with them
 * in its environment. */
#include "tool.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_set(const char *name) { return getenv(name) != NULL; }

/* Does the code that runs here come from this file? When the program was started by naming the loader (ld-linux.so
 * ./dtrain), the process's executable is the loader, and starting that with our arguments would fail. */
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
    /* the user's choice, or ours from the first start */
    if (is_set("OMP_WAIT_POLICY") || is_set("GOMP_SPINCOUNT") || is_set("KMP_BLOCKTIME")) return;
    /* not that name itself: an emulator's would be the emulator */
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return;
    self[n] = '\0';
    if (!is_this_program(self)) return;
    if (setenv("GOMP_SPINCOUNT", "3000", 1) || setenv("KMP_BLOCKTIME", "0", 1)) return;
    execv(self, argv); /* on failure the program continues unchanged */
}
