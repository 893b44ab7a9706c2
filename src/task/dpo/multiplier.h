/* multiplier.h - the Lagrange multiplier of a cost limit (algorithms.md 3.4). It rises while costs exceed the limit.
 * The weight of the cost term rises with it. Private to src/task.
 *
 * Its state is a function of the costs, so it is equal on all ranks that have the same costs. */
#ifndef DTRAIN_TASK_MULTIPLIER_H
#define DTRAIN_TASK_MULTIPLIER_H

#include "dtrain/step/step.h"

typedef struct dt_multiplier {
    double lr;        /* eta */
    double min, max;  /* bounds of lambda */
    double limit;     /* d */
    double log_value; /* log(lambda) before the bounds are applied */
    double value;     /* dt_multiplier_value, for users of checkpoints */
    double ema;       /* moving average of costs; meaningless before the first */
    int64_t n_costs;  /* costs so far */
} dt_multiplier;

/** Validate lambda_min, lambda_max and lambda_init of a section. DT_ERR_USAGE names the invalid key. Local. */
dt_err dt_multiplier_check(const dt_config *cfg, const char *section, double min, double max, double init);

/** The value in use: exp(log_value) within min .. max. */
double dt_multiplier_value(const dt_multiplier *m);

/** Update for a cost level; with the present lambda and v = level - limit,
 *
 *     log_value <- log(lambda)                     if log_value is beyond max and v < 0, or below min and v > 0
 *     log_value <- log_value + lr lambda v         clipped to log 1e-8 .. log 20
 */
void dt_multiplier_step(dt_multiplier *m, double level);
/** Add a cost: ema <- 0.95 ema + 0.05 cost (first time: cost), then update with ema as the level. */
void dt_multiplier_update(dt_multiplier *m, double cost);

/** In open: store it in checkpoints. Without its items, m is unchanged at a resume. Local. */
void dt_multiplier_store(dt_multiplier *m, dt_task *t);

#endif
