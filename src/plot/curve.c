/* curve.c - smoothing and thinning of curves. gnuplot's filters offer neither a centred mean with
 * shortened ends nor a min/max envelope. */
#include "dtrain/plot/curve.h"

#include <math.h>
#include <stdlib.h>

static dt_err curve_alloc(dt_curve *c, int64_t n)
{
    *c = (dt_curve){.x = malloc((size_t)(n + 1) * sizeof *c->x), .y = malloc((size_t)(n + 1) * sizeof *c->y)};
    if (c->x && c->y) return DT_OK;
    dt_curve_free(c);
    return dt_fail(DT_ERR_MEMORY, "out of memory for a curve of %lld points", (long long)n);
}

void dt_curve_free(dt_curve *c)
{
    free(c->x);
    free(c->y);
    *c = (dt_curve){0};
}

dt_err dt_curve_extract(dt_curve *c, const dt_metrics *m, const char *name, dt_plot_axis axis)
{
    DT_TRY(curve_alloc(c, m->n_rows));
    const double *y = dt_metrics_column(m, name), *step = dt_metrics_column(m, "step");
    const double *tokens = dt_metrics_column(m, "tokens"), *step_time = dt_metrics_column(m, "step_time");
    if (!y || !step) return DT_OK;

    double seen = 0, seconds = 0, last_step = 0;
    for (int64_t i = 0; i < m->n_rows; i++) {
        if (tokens && isfinite(tokens[i])) seen = tokens[i];
        if (step_time && isfinite(step_time[i])) {
            /* A record has the time of its own step only: use it for all steps since the previous record. */
            seconds += step_time[i] * fmax(step[i] - last_step, 0);
            last_step = step[i];
        }
        if (!isfinite(y[i])) continue;
        c->x[c->n] = axis == DT_AXIS_STEP ? step[i] : axis == DT_AXIS_TOKENS ? seen : seconds;
        c->y[c->n++] = y[i];
    }
    return DT_OK;
}

/* Triangular weights 1, 2 .. half+1 .. 2, 1: a box filter would make steps where an outlier enters and
 * leaves. Each mean is summed separately, because a running sum would carry the rounding error of one huge
 * gradient norm. */
static void add_mean(dt_curve *out, const dt_curve *c, int64_t i, int64_t half)
{
    const int64_t k = i < half ? i : half, end = i + k + 1 < c->n ? i + k + 1 : c->n;
    double sum = 0, weights = 0;
    for (int64_t j = i - k; j < end; j++) {
        const double weight = (double)(k + 1 - (j < i ? i - j : j - i));
        sum += weight * c->y[j];
        weights += weight;
    }
    out->x[out->n] = c->x[i];
    out->y[out->n++] = sum / weights;
}

dt_err dt_curve_smooth(dt_curve *out, const dt_curve *c, int64_t window, int64_t max_points)
{
    DT_TRY(curve_alloc(out, c->n));
    const int64_t half = window > 1 ? window / 2 : 0,
                  stride = max_points > 0 && c->n > max_points ? (c->n + max_points - 1) / max_points : 1;
    for (int64_t i = 0; i < c->n; i += stride) add_mean(out, c, i, half);
    if (c->n > 0 && (c->n - 1) % stride != 0) add_mean(out, c, c->n - 1, half);
    return DT_OK;
}

void dt_curve_thin(dt_curve *c, int64_t max_points)
{
    if (c->n <= max_points || max_points < 2) return;
    const int64_t n_bins = max_points / 2;
    int64_t kept = 0;
    for (int64_t b = 0; b < n_bins; b++) {
        const int64_t first = (int64_t)((double)c->n * (double)b / (double)n_bins);
        const int64_t end = b + 1 < n_bins ? (int64_t)((double)c->n * (double)(b + 1) / (double)n_bins) : c->n;
        int64_t low = first, high = first;
        for (int64_t i = first; i < end; i++) {
            if (c->y[i] < c->y[low]) low = i;
            if (c->y[i] > c->y[high]) high = i;
        }
        /* Never overtakes unread points: kept <= 2 b <= first, since a bin holds at least two points. */
        const int64_t pair[2] = {low < high ? low : high, low < high ? high : low};
        const double x[2] = {c->x[pair[0]], c->x[pair[1]]}, y[2] = {c->y[pair[0]], c->y[pair[1]]};
        for (int k = 0; k < (low == high ? 1 : 2); k++) {
            c->x[kept] = x[k];
            c->y[kept++] = y[k];
        }
    }
    c->n = kept;
}
