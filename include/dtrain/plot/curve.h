/* curve.h - curves computed from metrics, for dtrain-plot. Every function is Local. */
#ifndef DTRAIN_CURVE_H
#define DTRAIN_CURVE_H

#include "dtrain/report/metrics.h"

/** Points in file order; y is finite. Freed with dt_curve_free. */
typedef struct dt_curve {
    double *x, *y;
    int64_t n;
} dt_curve;

/** The x axis: steps, tokens so far, or seconds of training (the sum of step times, without pauses between starts of a
 *  run). */
typedef enum dt_plot_axis { DT_AXIS_STEP, DT_AXIS_TOKENS, DT_AXIS_TIME } dt_plot_axis;

/** Extract the points of a metric; n 0 if the run has no such metric. A line without tokens (validation) takes the x of
 *  the line before it. c: out. DT_ERR_MEMORY. */
dt_err dt_curve_extract(dt_curve *c, const dt_metrics *m, const char *name, dt_plot_axis axis);
/** Smooth a curve: the mean of up to `window` points around each point, with linearly decreasing weights. The window is
 *  shorter, but centred, at the start, and one-sided at the end. max_points > 0: only about this many points, evenly
 *  spaced and including the last. out: out. DT_ERR_MEMORY. */
dt_err dt_curve_smooth(dt_curve *out, const dt_curve *c, int64_t window, int64_t max_points);
/** Reduce a curve to about max_points: the minimum and maximum of each range of points, so that the outline is kept. */
void dt_curve_thin(dt_curve *c, int64_t max_points);
/** Free the points. Safe on {0}. */
void dt_curve_free(dt_curve *c);

#endif
