/* reward_watch.h - rewards that never vary: the policy can learn nothing from them. */
#ifndef DTRAIN_SRC_TASK_REWARD_WATCH_H
#define DTRAIN_SRC_TASK_REWARD_WATCH_H

#include "dtrain/reward.h"

enum { DT_REWARD_PATIENCE = 10 }; /* rollouts */

/** One reward function: its value, and the rollouts and completions in a row that had no other. */
typedef struct dt_reward_watch {
    double value;
    int64_t n_rollouts, n_rows;
    bool told;
} dt_reward_watch;

/** Look at the rewards of a rollout, [n_rows, stride], of which the first n functions are watched. NaN (the function
 *  does not apply) is skipped. After DT_REWARD_PATIENCE rollouts with one value a warning names the function, once
 *  until its value varies. loud: this rank prints it. */
void dt_reward_watch_rollout(dt_reward_watch *w, int n, const char *const *name, const double *reward, int64_t n_rows,
                             int stride, bool loud);

#endif
