/* reward_watch.h - detects rewards that never vary and so give the policy no learning signal. */
#ifndef DTRAIN_SRC_TASK_REWARD_WATCH_H
#define DTRAIN_SRC_TASK_REWARD_WATCH_H

#include "dtrain/reward/reward.h"

enum { DT_REWARD_PATIENCE = 10 }; /* rollouts */

/** State of one reward function: consecutive rollouts and completions in which it did not vary within any group. */
typedef struct dt_reward_watch {
    double value; /* common value of the last groups; NaN: they differed */
    int64_t n_rollouts, n_rows, n_ended;
    bool warned;
} dt_reward_watch;

/** The rewards of a rollout; every rank passes all of them. */
typedef struct dt_watched_rewards {
    const double *reward;    /* [n_rows, stride]; NaN: the function does not apply */
    int64_t n_rows, n_ended; /* completions, and those that ended before their limit */
    int64_t group_len;       /* consecutive rows that are compared with each other; divides n_rows */
    int stride;
} dt_watched_rewards;

/** Check the first n functions of a rollout. After DT_REWARD_PATIENCE rollouts without variation within a group, a
 *  warning names the function, once until it varies. loud: this rank prints it. Local. */
void dt_reward_watch_rollout(dt_reward_watch *w, int n, const char *const *name, const dt_watched_rewards *r,
                             bool loud);

#endif
