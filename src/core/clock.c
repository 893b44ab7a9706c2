/* clock.c - one monotonic clock: wall-clock time jumps when a node's clock is set. */
#include "dtrain/core.h"
#include <time.h>

double dt_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

dt_err dt_phase_poll(const dt_phase *p)
{
    if (!p || !p->stop_asked || !p->stop_asked()) return DT_OK;
    const char *name = atomic_load(&p->name), *unit = atomic_load(&p->unit);
    return dt_fail(DT_ERR_STOP, "stopped by a signal in the phase %s%s%s", name ? name : "start",
                   unit && *unit ? " of " : "", unit ? unit : "");
}
