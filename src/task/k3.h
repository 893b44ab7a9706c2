/* k3.h - a non-negative estimator of the KL divergence at a token sampled from the policy
 * (http://joschu.net/blog/kl-approx.html). Private to src/task.
 *
 * d = log reference - log policy. */
#ifndef DTRAIN_TASK_K3_H
#define DTRAIN_TASK_K3_H

#include <math.h>

/** e^d - 1 - d. */
static inline double dt_k3(double d) { return expm1(d) - d; }
/** Its derivative by the policy's log-probability: 1 - e^d. */
static inline double dt_k3_slope(double d) { return -expm1(d); }

#endif
