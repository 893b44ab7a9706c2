/* clock.c - one monotonic clock: wall-clock time jumps when a node's clock is set. */
#include "dtrain/core.h"
#include <time.h>

double dt_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
