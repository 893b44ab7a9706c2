/* quantile.h - a quantile of values that are distributed over the ranks of an axis. Private to src/task. */
#ifndef DTRAIN_TASK_QUANTILE_H
#define DTRAIN_TASK_QUANTILE_H

#include "dtrain/comm/comm.h"

/** The q-quantile of the values of all ranks of an axis, with linear interpolation, as torch.quantile of fp32 values;
 *  NaN if there are none. x [n]: this rank's values, without NaN. The bits do not depend on the distribution over
 *  ranks. q is the same on all ranks. Collective on the axis. axis NULL: a single rank. */
dt_err dt_quantile(const dt_axis *axis, const float *x, int64_t n, float q, float *quantile);

#endif
