/* metrics.h - reading metrics.jsonl back, and curves made from it: what dtrain-plot draws. */
#ifndef DTRAIN_METRICS_H
#define DTRAIN_METRICS_H

#include "dtrain/core.h"

/** A table: a row per line of the file, a column per name that occurs in it; NaN where a line lacks the name or holds
 *  null. Booleans are 0 and 1. */
typedef struct dt_metrics {
    char **names;
    double **columns; /* [n_columns][n_rows] */
    int n_columns;
    int64_t n_rows, cap_rows;
} dt_metrics;

/** A last line that is not a whole record is left out (the run was killed, or is writing it now). DT_ERR_DATA naming
 *  file and line: cannot be read, a bad line elsewhere, no record at all. Free with dt_metrics_free, also after an
 *  error. */
dt_err dt_metrics_read(dt_metrics *m, const char *path);
void dt_metrics_free(dt_metrics *m); /* safe on {0} */
/** Column of a name, or NULL. */
const double *dt_metrics_column(const dt_metrics *m, const char *name);

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
