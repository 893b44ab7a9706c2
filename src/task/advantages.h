/* advantages.h - advantages of completions relative to other completions (algorithms.md 5.2, algorithms-2.md 3.3).
 * Private to src/task. */
#ifndef DTRAIN_TASK_ADVANTAGES_H
#define DTRAIN_TASK_ADVANTAGES_H

#include "dtrain/core/core.h"

typedef enum dt_scale_rewards { DT_SCALED_BY_GROUP, DT_SCALED_BY_BATCH, DT_UNSCALED } dt_scale_rewards;

typedef enum dt_advantage_type {
    DT_ADVANTAGE_GROUP,
    DT_ADVANTAGE_RLOO,      /* arXiv 2402.14740 */
    DT_ADVANTAGE_REINFORCE, /* Williams 1992 */
    /* arXiv 2501.03262 */
    DT_ADVANTAGE_REINFORCE_PP,
    DT_ADVANTAGE_REINFORCE_PP_BASELINE,
    DT_N_ADVANTAGES
} dt_advantage_type;

/** A value of grpo.advantage. */
typedef struct dt_estimator {
    const char *name;
    bool compares;     /* completions of a prompt: at least two */
    bool kl_in_reward; /* grpo.kl_in_reward = auto */
    bool of_tokens;    /* each token has an advantage (dt_token_advantages) */
    bool normalizes;   /* normalize_advantages applies */
} dt_estimator;
extern const dt_estimator dt_estimators[DT_N_ADVANTAGES];

typedef struct dt_advantage_rule {
    dt_advantage_type type;
    int num_generations; /* consecutive rows of one prompt */
    int n_funcs;
    const double *weight;    /* [n_funcs] of the functions */
    dt_scale_rewards scale;  /* divisor of r - m; only for sum_then_normalize */
    bool normalize_then_sum; /* multi_objective_aggregation */
    bool normalize;          /* normalize_advantages */
    bool clips;              /* the weighted sum of rewards, to [least, most] (reward_clip_range) */
    double least, most;
    double kl_coef;   /* weight of the divergence in the reward */
    int64_t n_of_set; /* `all` below refers to sets of so many consecutive rows: whole groups; 0: all rows */
} dt_advantage_rule;

/** reward [n_rows, n_funcs], NaN: the function does not apply. kl [n_rows], NULL: 0: log policy - log reference of a
 *  row's tokens. Symbols: r is the weighted sum of a row's rewards, clipped, minus kl_coef kl (not if the estimator is
 *  of_tokens); m the mean and s the unbiased standard deviation of r in its group:
 *
 *      group, by scale: group   (r - m) / (s + 1e-4)
 *                       batch   (r - m) / (s of all rows + 1e-4)
 *                       none    r - m                                                            (arXiv 2503.20783)
 *      rloo                     r - mean of the others in the group
 *      reinforce                r - mean of all rows
 *      reinforce++              r
 *      reinforce++-baseline     r - m
 *
 *  normalize: the advantages A become (A - mean of all) / (s of all + 1e-4).
 *
 *  normalize_then_sum: each function's rewards become (x - m_x) / (s_x + 1e-4) in their group, r is their weighted sum,
 *  and the advantage is (r - mean of all) / (s of all + 1e-4)                      (arXiv 2601.05242)
 *
 *  A row to which no function applies is excluded from means and deviations; its total is NaN and its advantage 0. A
 *  row that has no other row to compare with also has advantage 0. n_rows: whole groups.
 *
 *  total [n_rows]: the weighted sums; advantage [n_rows]; flat [n_rows / num_generations]: groups without a learning
 *  signal, whose r are all equal. Returns the share of rows whose deviation is 0: the deviation that the rule
 *  uses, for `none` and other estimators that of the group. */
double dt_advantages(const dt_advantage_rule *rule, int64_t n_rows, const double *reward, const double *kl,
                     double *total, double *advantage, bool *flat);

/** For an estimator that is of_tokens: with A the advantage of a row, the return of its token t is
 *
 *      G_t = A - kl_coef (kl_t + kl_(t+1) + ... + kl_(n-1))
 *
 *  and the advantage of the token is (G_t - mean) / sqrt(max(variance, 1e-8)), with the mean and the variance (divided
 *  by the number of tokens) of all tokens of the set. 0 for rows without a reward, which are excluded.
 *
 *  n         in     [n_rows] tokens of a row
 *  total     in     [n_rows] of dt_advantages
 *  token     inout  [n_rows, ld] kl_t, then the advantages
 *  advantage inout  [n_rows] of dt_advantages; then the mean over the row's tokens */
void dt_token_advantages(const dt_advantage_rule *rule, int64_t n_rows, const int32_t *n, const double *total,
                         int64_t ld, float *token, double *advantage);

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
