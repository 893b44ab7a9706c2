/* clock.c - monotonic clock. Wall-clock time jumps when a node's clock is set. */
#include "dtrain/core/core.h"
#include <time.h>

double dt_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

dt_err dt_phase_poll(const dt_phase *p)
{
    const bool asked = p && p->stop_asked && p->stop_asked(), late = p && p->stop_at_s > 0 && dt_now_s() > p->stop_at_s;
    if (!asked && !late) return DT_OK;
    const char *name = atomic_load(&p->name), *unit = atomic_load(&p->unit);
    return dt_fail(DT_ERR_STOP, "stopped by %s in the phase %s%s%s", asked ? "a signal" : "the time limit",
                   name ? name : "start", unit && *unit ? " of " : "", unit ? unit : "");
}
