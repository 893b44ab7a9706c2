/* reward_watch.c - checkpoints do not contain the counts, so they restart with the process. */
#include "reward_watch.h"
#include <inttypes.h>
#include <math.h>

/* Returns the number of rows with a reward of function k, or -1 if two rows of a group differ. *value: the common value
 * of all rows, NaN if groups differ. */
static int64_t look(const dt_watched_rewards *r, int k, double *value)
{
    int64_t n = 0;
    double of_group = NAN;
    for (int64_t i = 0; i < r->n_rows; i++) {
        const double x = r->reward[i * r->stride + k];
        if (i % r->group_len == 0) of_group = NAN;
        if (isnan(x)) continue;
        if (!isnan(of_group) && x != of_group) return -1;
        of_group = x;
        if (n++ == 0) *value = x;
        if (x != *value) *value = NAN;
    }
    return n;
}

static void warn(const dt_reward_watch *w, const char *name)
{
    char value[48] = "the same within every group", cut[80] = "";
    const int64_t n_cut = w->n_rows - w->n_ended;
    if (!isnan(w->value)) snprintf(value, sizeof value, "%g", w->value);
    if (n_cut * 10 >= w->n_rows * 9) /* most completions were truncated before an answer */
        snprintf(cut, sizeof cut, "; %" PRId64 " of them reached the maximum length", n_cut);
    DT_WARN("reward %s was %s for all %" PRId64 " completions of the last %" PRId64
            " rollouts%s, so the policy gets no signal from it; compare the completions (log.completions) with what "
            "the function expects",
            name, value, w->n_rows, w->n_rollouts, cut);
}

static void watch_one(dt_reward_watch *w, const char *name, const dt_watched_rewards *r, int k, bool loud)
{
    double value = NAN;
    const int64_t n = look(r, k, &value);
    if (n == 0) return;
    if (n < 0) {
        *w = (dt_reward_watch){0};
        return;
    }
    w->value = w->n_rollouts == 0 || w->value == value ? value : NAN;
    w->n_rollouts++, w->n_rows += n, w->n_ended += r->n_ended;
    if (w->warned || w->n_rollouts < DT_REWARD_PATIENCE) return;
    w->warned = true;
    if (loud) warn(w, name);
}

void dt_reward_watch_rollout(dt_reward_watch *w, int n, const char *const *name, const dt_watched_rewards *r, bool loud)
{
    for (int k = 0; k < n; k++) watch_one(&w[k], name[k], r, k, loud);
}
