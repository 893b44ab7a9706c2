/* quantile.h - a quantile of numbers that all ranks have a part of. Private to src/task. */
#ifndef DTRAIN_TASK_QUANTILE_H
#define DTRAIN_TASK_QUANTILE_H

#include "dtrain/comm/comm.h"

/** The number that a share q of all ranks' numbers lies below, with linear interpolation between its neighbours, as
 *  torch.quantile takes it of fp32 numbers; NaN of no numbers. x [n] is this rank's part, without NaN. The same bits
 *  whichever rank has which part. q is the same on all ranks. Collective. comm NULL: this rank is alone. */
dt_err dt_quantile(dt_comm *comm, const float *x, int64_t n, float q, float *quantile);

#endif
