/* reward_watch.c - see reward_watch.h. A restart begins to count anew. */
#include "reward_watch.h"
#include <inttypes.h>
#include <math.h>

/* The rows that have a reward; *same: all have *value. */
static int64_t look(const double *reward, int64_t n_rows, int stride, double *value, bool *same)
{
    int64_t n = 0;
    *same = true;
    for (int64_t i = 0; i < n_rows; i++) {
        const double x = reward[i * stride];
        if (isnan(x)) continue;
        if (n++ == 0) *value = x;
        *same = *same && x == *value;
    }
    return n;
}

static void watch_one(dt_reward_watch *w, const char *name, const double *reward, int64_t n_rows, int stride, bool loud)
{
    double value = 0;
    bool same;
    const int64_t n = look(reward, n_rows, stride, &value, &same);
    if (n == 0) return;
    if (!same || (w->n_rollouts > 0 && value != w->value)) *w = (dt_reward_watch){0};
    if (!same) return;
    w->value = value, w->n_rollouts++, w->n_rows += n;
    if (w->told || w->n_rollouts < DT_REWARD_PATIENCE) return;
    w->told = true;
    if (loud)
        DT_WARN("reward %s was %g for all %" PRId64 " completions of the last %" PRId64
                " rollouts: the policy learns nothing from it; look at the completions (log.completions) and at what "
                "the function expects",
                name, value, w->n_rows, w->n_rollouts);
}

void dt_reward_watch_rollout(dt_reward_watch *w, int n, const char *const *name, const double *reward, int64_t n_rows,
                             int stride, bool loud)
{
    for (int k = 0; k < n; k++) watch_one(&w[k], name[k], reward + k, n_rows, stride, loud);
}
