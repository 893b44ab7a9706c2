/* advantages.h - advantages of completions relative to the other completions of their prompt (algorithms.md 5.2).
 * Private to src/task. */
#ifndef DTRAIN_TASK_ADVANTAGES_H
#define DTRAIN_TASK_ADVANTAGES_H

#include "dtrain/core/core.h"

typedef enum dt_scale_rewards { DT_SCALED_BY_GROUP, DT_SCALED_BY_BATCH, DT_UNSCALED } dt_scale_rewards;

typedef struct dt_advantage_rule {
    int num_generations; /* consecutive rows of one prompt */
    int n_funcs;
    const double *weight;    /* [n_funcs] of the functions */
    dt_scale_rewards scale;  /* divisor of r - m; only for sum_then_normalize */
    bool normalize_then_sum; /* multi_objective_aggregation */
    int64_t n_of_set;        /* `all` below refers to sets of so many consecutive rows: whole groups; 0: all rows */
} dt_advantage_rule;

/** reward [n_rows, n_funcs], NaN: the function does not apply. Symbols: r is the weighted sum of a row's rewards, m the
 *  mean and s the unbiased standard deviation of r in its group:
 *
 *      group   (r - m) / (s + 1e-4)
 *      batch   (r - m) / (s of all rows + 1e-4)
 *      none    r - m                                                                                 (arXiv 2503.20783)
 *
 *  normalize_then_sum: each function's rewards become (x - m_x) / (s_x + 1e-4) in their group, r is their weighted sum,
 *  and the advantage is (r - mean of all) / (s of all + 1e-4)                      (arXiv 2601.05242)
 *
 *  A row to which no function applies is excluded from means and deviations; its total is NaN and its advantage 0. A
 *  row that has no other row to compare with also has advantage 0. n_rows: whole groups.
 *
 *  total [n_rows]: the weighted sums; advantage [n_rows]; flat [n_rows / num_generations]: groups without a learning
 *  signal, whose totals are all equal. Returns the share of rows whose deviation is 0: the deviation that the rule
 *  uses, for `none` that of the group. */
double dt_advantages(const dt_advantage_rule *rule, int64_t n_rows, const double *reward, double *total,
                     double *advantage, bool *flat);

/** Moments of those of x[0], x[stride], ... that are not NaN. deviation: unbiased, NaN for fewer than two. */
typedef struct dt_moments {
    int64_t n;
    double mean, deviation; /* mean NaN if n is 0 */
} dt_moments;
dt_moments dt_moments_of(const double *x, int64_t n, int64_t stride);

/** DAPO's soft length penalty: 0 up to longest - cache, then linear to -1 at `longest`, and -1 beyond (arXiv
 *  2503.14476, equation 13). */
double dt_overlong_penalty(int32_t length, int32_t longest, int32_t cache);

#endif
