/* ppo_control.c - small states that are updated once per rollout. */
#include "ppo_control.h"
#include <math.h>

#define LARGEST_ERROR 0.2 /* bound of the relative error of the divergence */

void dt_kl_controller_update(dt_kl_controller *c, double kl, int64_t n)
{
    if (!c->adaptive) return;
    const double error = fmin(fmax(kl / c->target - 1, -LARGEST_ERROR), LARGEST_ERROR);
    c->coef *= 1 + error * (double)n / c->horizon;
}

/* Chan's rule for combining two sets: sums of squares around the common mean. */
void dt_running_update(dt_running *m, const double *x, int64_t n)
{
    double sum = 0, squares = 0;
    if (n == 0) return;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    const double mean = sum / (double)n, delta = mean - m->mean, total = m->n + (double)n;
    for (int64_t i = 0; i < n; i++) squares += (x[i] - mean) * (x[i] - mean);
    squares += m->variance * m->n + delta * delta * m->n * (double)n / total;
    *m = (dt_running){.n = total, .mean = m->mean + delta * (double)n / total, .variance = squares / total};
}

double dt_running_std(const dt_running *m) { return m->n < 2 ? 1 : sqrt(m->variance * m->n / (m->n - 1)); }

void dt_window_add(dt_window *w, double x) { w->last[w->n++ % w->room] = x; }

double dt_window_mean(const dt_window *w)
{
    const int64_t n = w->n < w->room ? w->n : w->room;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += w->last[i];
    return n > 0 ? sum / (double)n : 0;
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

dt_err dt_window_save(const dt_window *w, dt_named_arrays *items)
{
    DT_TRY(dt_named_arrays_add(items, "n_costs", DT_NAMED_I64, 1, &w->n));
    return dt_named_arrays_add(items, "costs", DT_NAMED_F64, w->room, w->last);
}

/* Value i is stored at index i modulo `room`. If the window is larger than the saved one, values are renumbered so that
 * the oldest saved value is number 0. */
dt_err dt_window_load(dt_window *w, const dt_named_arrays *items)
{
    const dt_named_array *costs = dt_named_arrays_find(items, "costs");
    int64_t n;
    DT_TRY(dt_named_arrays_get(items, "n_costs", DT_NAMED_I64, 1, &n));
    DT_CHECK(costs && costs->type == DT_NAMED_F64 && costs->n > 0 && n >= 0, DT_ERR_DATA,
             "the checkpoint contains no valid array `costs` of task ppo");
    const double *const last = costs->data;
    const int64_t n_known = dt_min_i64(n, costs->n), n_kept = dt_min_i64(n_known, w->room),
                  n_gone = n_kept < dt_min_i64(n, w->room) ? n - n_kept : 0;
    for (int64_t i = n - n_kept; i < n; i++) w->last[(i - n_gone) % w->room] = last[i % costs->n];
    w->n = n - n_gone;
    return DT_OK;
}
