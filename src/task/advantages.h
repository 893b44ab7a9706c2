/* advantages.h - how much better a completion was than the others of its prompt (algorithms.md 5.2). Private to
 * src/task. */
#ifndef DTRAIN_TASK_ADVANTAGES_H
#define DTRAIN_TASK_ADVANTAGES_H

#include "dtrain/core/core.h"

typedef enum dt_scale_rewards { DT_SCALED_BY_GROUP, DT_SCALED_BY_BATCH, DT_UNSCALED } dt_scale_rewards;

typedef struct dt_advantage_rule {
    int num_generations; /* rows of a group: those of one prompt, next to each other */
    int n_funcs;
    const double *weight;    /* [n_funcs] of the functions */
    dt_scale_rewards scale;  /* divisor of r - m; only for sum_then_normalize */
    bool normalize_then_sum; /* multi_objective_aggregation */
    int64_t n_of_set;        /* rows that `all` below means, one set after the other: whole groups; 0: n_rows */
} dt_advantage_rule;

/** reward [n_rows, n_funcs], NaN: the function does not apply. With r the sum of a row's rewards by their weights, m
 *  the mean and s the unbiased standard deviation of r in its group:
 *
 *      group   (r - m) / (s + 1e-4)
 *      batch   (r - m) / (s of all rows + 1e-4)
 *      none    r - m                                                                                 (arXiv 2503.20783)
 *
 *  normalize_then_sum: each function's rewards become (x - m_x) / (s_x + 1e-4) in their group, r is their sum by
 *  weight, and the advantage (r - mean of all) / (s of all + 1e-4)                                   (arXiv 2601.05242)
 *
 *  A row to which nothing applies is in no mean and no deviation, its total is NaN and its advantage 0; so is the
 *  advantage of a row that is alone in what it is compared with. n_rows: whole groups.
 *
 *  total [n_rows]: the weighted sums; advantage [n_rows]; flat [n_rows / num_generations]: groups whose totals say
 *  nothing, for no two of them differ. Returns the share of rows whose deviation, the one that the rule looks at (that
 *  of the group for `none`), is 0. */
double dt_advantages(const dt_advantage_rule *rule, int64_t n_rows, const double *reward, double *total,
                     double *advantage, bool *flat);

/** Of those of x[0], x[stride], ... that are not NaN. deviation: unbiased, NaN for fewer than two. */
typedef struct dt_moments {
    int64_t n;
    double mean, deviation; /* mean NaN for none */
} dt_moments;
dt_moments dt_moments_of(const double *x, int64_t n, int64_t stride);

/** DAPO's soft penalty of a length: 0 up to longest - cache, then falling to -1 at `longest`, and -1 beyond
 *  (arXiv 2503.14476, equation 13). */
double dt_overlong_penalty(int32_t length, int32_t longest, int32_t cache);

#endif
