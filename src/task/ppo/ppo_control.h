/* ppo_control.h - PPO's state between rollouts: the coefficient of the divergence, the moments of scores, the last
 * costs (algorithms.md 4.2, 4.3, 4.5). Private to src/task.
 *
 * The state is a function of its inputs, so it is equal on all ranks with equal inputs. Every function is local. Only
 * save and load can fail. */
#ifndef DTRAIN_TASK_PPO_CONTROL_H
#define DTRAIN_TASK_PPO_CONTROL_H

#include "dtrain/core/named_arrays.h"

/** The coefficient follows a target of the divergence (Ziegler et al., arXiv:1909.08593, 2.2). kl is the mean over a
 *  rollout of n completions, in nats per completion:
 *
 *     coef <- coef (1 + clip(kl / target - 1, -0.2, 0.2) n / horizon)
 */
typedef struct dt_kl_controller {
    double coef;
    bool adaptive; /* otherwise constant */
    double target, horizon;
} dt_kl_controller;
void dt_kl_controller_update(dt_kl_controller *c, double kl, int64_t n);

/** Mean and variance of all values so far, as in TRL's RunningMoments. Initialise to {.variance = 1}. */
typedef struct dt_running {
    double n, mean, variance; /* biased; stored in checkpoints as three doubles */
} dt_running;
void dt_running_update(dt_running *m, const double *x, int64_t n);
double dt_running_std(const dt_running *m); /* unbiased; 1 for fewer than two values */

/** The mean of the last `room` values. last: [room], borrowed. */
typedef struct dt_window {
    double *last;
    int64_t room, n; /* n: values so far */
} dt_window;
void dt_window_add(dt_window *w, double x);
double dt_window_mean(const dt_window *w); /* 0 if empty */

/** Save to a checkpoint: one count and `room` doubles. DT_ERR_MEMORY. */
dt_err dt_window_save(const dt_window *w, dt_named_arrays *items);
/** Load from a checkpoint. A window of another size keeps the last values that fit. DT_ERR_DATA: an item is missing or
 *  has another type. */
dt_err dt_window_load(dt_window *w, const dt_named_arrays *items);

#endif
