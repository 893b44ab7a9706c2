/* logits.h - sums of exponentials over a vocabulary, fast and with the same bits on every machine. */
#ifndef DTRAIN_GENERATE_LOGITS_H
#define DTRAIN_GENERATE_LOGITS_H

#include "dtrain/core.h"

/** out[i] = e^(scale * (x[i] - top)) for x[i] <= top, scale > 0; relative error below 4e-16, 0 where the result would
 *  be below 2^-1022. */
void dt_logits_exp(const float *x, int64_t n, double top, double scale, double *out);

/** The largest of n logits and the lowest index that has it. DT_ERR_NONFINITE when one is NaN or +inf, or all are
 *  -inf. */
dt_err dt_logits_best(const float *x, int64_t n, int32_t *best);

#endif
