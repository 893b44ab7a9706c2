/* sums.cuh - sums over rows in two steps: blocks store partial sums, and a second kernel adds them in a fixed order. */
#ifndef DTRAIN_SUMS_CUH
#define DTRAIN_SUMS_CUH

#include "kernel.cuh"

/** out[i][c] = (accumulate ? out[i][c] : 0) + sum over p of part[i][p][c] for c < width, p < n_parts, and each i < 2
 *  whose out[i] is not NULL; out of type gt. */
dt_err cuda_add_parts(dt_stream *s, const float *part, int64_t n_parts, int64_t width, void *out0, void *out1,
                      dt_dtype gt, bool accumulate);

#endif
