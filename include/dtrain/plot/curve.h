/* curve.h - curves made from metrics: what dtrain-plot draws. */
#ifndef DTRAIN_CURVE_H
#define DTRAIN_CURVE_H

#include "dtrain/report/metrics.h"

/** Points in the order of the file; y is finite. */
typedef struct dt_curve {
    double *x, *y;
    int64_t n;
} dt_curve;

/** Steps; tokens seen; seconds of training (step times added up: pauses between a run's starts do not count). */
typedef enum dt_axis { DT_AXIS_STEP, DT_AXIS_TOKENS, DT_AXIS_TIME } dt_axis;

/** The points of a name; none (n 0) when the run has no such name. A line without tokens (validation) stands where the
 *  one before it does. */
dt_err dt_curve_extract(dt_curve *c, const dt_metrics *m, const char *name, dt_axis axis);
/** Mean of the up to `window` points around a point, with weights that fall linearly from it; the window is shorter,
 *  and still centred, at the start, and one-sided at the end. At every point, or at about max_points of them, evenly
 *  spread and with the last, when that is > 0. */
dt_err dt_curve_smooth(dt_curve *out, const dt_curve *c, int64_t window, int64_t max_points);
/** Leave at most about max_points: of each run of points the lowest and the highest, so that the outline stays. */
void dt_curve_thin(dt_curve *c, int64_t max_points);
void dt_curve_free(dt_curve *c);

#endif
