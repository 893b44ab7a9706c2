/* waiting.c - how long threads without work look for some before they sleep.
 *
 * An OpenMP library lets them spin for milliseconds (libgomp: 300,000 turns; libomp: 200 ms). Alone that is fast. On a core that
 * something else wants, they use up the time that is due to this process, and each parallel loop then waits for a whole slice of the scheduler.
 * A bounded spin of about what it costs to sleep and be woken loses little in either case: 300 turns are some 10 us. Measured (docs/performance.md).
 *
 * The libraries read their settings when they are loaded, before main, so the program starts itself once more with them in its environment. */
#include "tool.h"

#include <stdlib.h>
#include <unistd.h>

static bool is_set(const char *name) { return getenv(name) != NULL; }

void tool_wait_fairly(char **argv)
{
    char self[4096];
    if (is_set("OMP_WAIT_POLICY") || is_set("GOMP_SPINCOUNT") || is_set("KMP_BLOCKTIME")) return; /* the user's choice, or ours from the first start */
    if (setenv("GOMP_SPINCOUNT", "300", 1) || setenv("KMP_BLOCKTIME", "0", 1)) return;
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1); /* not that name itself: an emulator's would be the emulator */
    if (n <= 0) return;
    self[n] = '\0';
    execv(self, argv); /* where that fails the program goes on as it is */
}
