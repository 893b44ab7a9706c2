/* multiplier.h - the Lagrange multiplier of a cost limit (algorithms.md 3.4): while costs exceed the limit, it rises
 * and gives the cost term more weight. Private to src/task.
 *
 * Its state is a function of the costs, so it is the same on all ranks that have the same costs. */
#ifndef DTRAIN_TASK_MULTIPLIER_H
#define DTRAIN_TASK_MULTIPLIER_H

#include "dtrain/config/config.h"
#include "dtrain/core/named_arrays.h"

typedef struct dt_multiplier {
    double lr;        /* eta */
    double min, max;  /* bounds of lambda */
    double limit;     /* d */
    double log_value; /* of lambda before it is kept between them */
    double ema;       /* of costs; meaningless before the first */
    int64_t n_costs;  /* costs so far */
} dt_multiplier;

/** Are lambda_min, lambda_max and lambda_init of a section in order? DT_ERR_USAGE names the one that is not. Local. */
dt_err dt_multiplier_check(const dt_config *cfg, const char *section, double min, double max, double init);

/** The value in use: exp(log_value) within min .. max. */
double dt_multiplier_value(const dt_multiplier *m);

/** A step for this level of costs: with lambda the value in use and v = level - limit,
 *
 *     log_value <- log(lambda)                     where log_value is beyond max and v < 0, or below min and v > 0
 *     log_value <- log_value + lr lambda v         kept within log 1e-8 .. log 20
 */
void dt_multiplier_step(dt_multiplier *m, double level);
/** Take in a cost, ema <- 0.95 ema + 0.05 cost (the first time: cost), and step with ema as the level. */
void dt_multiplier_update(dt_multiplier *m, double cost);

enum { DT_MULTIPLIER_NBYTES = 4 * 8 }; /* that save leaves */
/** Into a checkpoint, and out of it; one that does not have it leaves m as it is. Local. */
dt_err dt_multiplier_save(const dt_multiplier *m, dt_named_arrays *items);
dt_err dt_multiplier_load(dt_multiplier *m, const dt_named_arrays *items);

#endif
