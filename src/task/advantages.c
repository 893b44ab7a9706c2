/* advantages.c - every rank holds all rows and sums them in the same order, so all ranks compute the same bits. */
#include "advantages.h"
#include "dtrain/reward/reward.h"
#include <math.h>

const dt_estimator dt_estimators[DT_N_ADVANTAGES] = {
    [DT_ADVANTAGE_GROUP] = {"group", .compares = true},
    [DT_ADVANTAGE_RLOO] = {"rloo", .compares = true, .kl_in_reward = true, .normalizes = true},
    [DT_ADVANTAGE_REINFORCE] = {"reinforce", .kl_in_reward = true, .normalizes = true},
    [DT_ADVANTAGE_REINFORCE_PP] = {"reinforce++", .kl_in_reward = true, .of_tokens = true},
    [DT_ADVANTAGE_REINFORCE_PP_BASELINE] = {"reinforce++-baseline", .compares = true, .of_tokens = true},
};

static const double SMALLEST_VARIANCE = 1e-8;  /* of tokens */
static const double SMALLEST_DEVIATION = 1e-4; /* added to the divisor */
static const double NO_DEVIATION = 1e-8;       /* a deviation below this is only rounding error */

dt_moments dt_moments_of(const double *x, int64_t n, int64_t stride)
{
    dt_moments m = {.deviation = NAN};
    double first = 0, sum = 0, squares = 0; /* differences from the first value, which are exactly 0 for equal values */
    for (int64_t i = 0; i < n; i++) {
        if (isnan(x[i * stride])) continue;
        if (m.n++ == 0) first = x[i * stride];
        sum += x[i * stride] - first;
    }
    m.mean = first + sum / (double)m.n; /* NaN if n is 0 */
    for (int64_t i = 0; i < n; i++)
        if (!isnan(x[i * stride])) squares += (x[i * stride] - m.mean) * (x[i * stride] - m.mean);
    if (m.n > 1) m.deviation = sqrt(squares / (double)(m.n - 1));
    return m;
}

static double zero_if_unknown(double x) { return isnan(x) ? 0 : x; }

static double normalized(double x, const dt_moments *m) { return (x - m->mean) / (m->deviation + SMALLEST_DEVIATION); }

/* Normalises each function within a group and adds the results to sum; rows without any reward stay NaN. */
static void sum_normalized(const dt_advantage_rule *rule, const double *reward, const double *total, double *sum)
{
    const int n = rule->num_generations;
    for (int i = 0; i < n; i++) sum[i] = isnan(total[i]) ? NAN : 0;
    for (int k = 0; k < rule->n_funcs; k++) {
        const dt_moments m = dt_moments_of(reward + k, n, rule->n_funcs);
        for (int i = 0; i < n; i++)
            sum[i] += rule->weight[k] * zero_if_unknown(normalized(reward[i * rule->n_funcs + k], &m));
    }
}

/* Returns the number of rows whose deviation is 0. The mean over all rows is 0, as is the mean of each group and
 * function. The computed mean would only be rounding error, which would give groups of equal rewards an advantage. */
static int64_t normalize_then_sum(const dt_advantage_rule *rule, int64_t n_rows, const double *reward,
                                  const double *total, double *advantage)
{
    for (int64_t i = 0; i < n_rows; i += rule->num_generations)
        sum_normalized(rule, reward + i * rule->n_funcs, total + i, advantage + i);
    const dt_moments all = dt_moments_of(advantage, n_rows, 1);
    for (int64_t i = 0; i < n_rows; i++)
        advantage[i] = zero_if_unknown(advantage[i] / (all.deviation + SMALLEST_DEVIATION));
    return all.deviation <= NO_DEVIATION ? n_rows : 0;
}

/* advantage: in the rewards. Returns the number of rows whose deviation is 0. */
static int64_t subtract_baseline(const dt_advantage_rule *rule, int64_t n_rows, double *advantage)
{
    const int n = rule->num_generations;
    const bool of_group = rule->type == DT_ADVANTAGE_GROUP;
    const dt_moments all = dt_moments_of(advantage, n_rows, 1);
    int64_t n_zero = 0;
    for (int64_t at = 0; at < n_rows; at += n) {
        const dt_moments group = dt_moments_of(advantage + at, n, 1);
        const double deviation = of_group && rule->scale == DT_SCALED_BY_BATCH ? all.deviation : group.deviation;
        const double by = of_group && rule->scale != DT_UNSCALED ? deviation + SMALLEST_DEVIATION : 1;
        double baseline = group.mean, factor = 1;
        if (rule->type == DT_ADVANTAGE_RLOO) /* r - mean of the others = n / (n - 1) (r - m) */
            factor = (double)group.n / (double)(group.n - 1);
        if (rule->type == DT_ADVANTAGE_REINFORCE) baseline = all.mean;
        if (rule->type == DT_ADVANTAGE_REINFORCE_PP) baseline = 0;
        if (deviation <= NO_DEVIATION) n_zero += n;
        for (int64_t i = at; i < at + n; i++) advantage[i] = factor * (advantage[i] - baseline) / by;
    }
    const dt_moments of_advantages = dt_moments_of(advantage, n_rows, 1);
    for (int64_t i = 0; i < n_rows; i++)
        advantage[i] = zero_if_unknown(rule->normalize ? normalized(advantage[i], &of_advantages) : advantage[i]);
    return n_zero;
}

/* The reward of a row that advantages come from. */
static double reward_of(const dt_advantage_rule *rule, double total, double kl)
{
    const double r = rule->clips && !isnan(total) ? fmin(fmax(total, rule->least), rule->most) : total;
    return dt_estimators[rule->type].of_tokens ? r : r - rule->kl_coef * kl;
}

double dt_advantages(const dt_advantage_rule *rule, int64_t n_rows, const double *reward, const double *kl,
                     double *total, double *advantage, bool *flat)
{
    const int n = rule->num_generations;
    const int64_t n_of_set = rule->n_of_set ? rule->n_of_set : n_rows;
    int64_t n_zero = 0;
    for (int64_t i = 0; i < n_rows; i++) {
        total[i] = dt_reward_total(rule->n_funcs, rule->weight, reward + i * rule->n_funcs);
        advantage[i] = reward_of(rule, total[i], kl ? kl[i] : 0);
    }
    for (int64_t g = 0; g < n_rows / n; g++) {
        const double deviation = dt_moments_of(advantage + g * n, n, 1).deviation;
        flat[g] = !(deviation > NO_DEVIATION);
    }
    for (int64_t at = 0; at < n_rows; at += n_of_set) {
        const int64_t n_here = dt_min_i64(n_of_set, n_rows - at);
        n_zero += rule->normalize_then_sum
                      ? normalize_then_sum(rule, n_here, reward + at * rule->n_funcs, total + at, advantage + at)
                      : subtract_baseline(rule, n_here, advantage + at);
    }
    return n_rows > 0 ? (double)n_zero / (double)n_rows : 0;
}

/* ---- advantages of tokens ---------------------------------------------------------------------------------------- */

/* Replace kl_t of a set's rows by returns. Returns the sum; *n_tok: the number of tokens. */
static double find_returns(const dt_advantage_rule *rule, int64_t n_rows, const int32_t *n, const double *total,
                           const double *advantage, int64_t ld, float *token, int64_t *n_tok)
{
    double sum = 0;
    *n_tok = 0;
    for (int64_t i = 0; i < n_rows; i++) {
        double g = advantage[i];
        for (int32_t k = n[i] - 1; k >= 0; k--) {
            float *const x = token + i * ld + k;
            g -= rule->kl_coef * (double)*x;
            *x = (float)(isnan(total[i]) ? 0 : g);
            sum += (double)*x;
        }
        *n_tok += isnan(total[i]) ? 0 : n[i];
    }
    return sum;
}

static void whiten(int64_t n_rows, const int32_t *n, const double *total, int64_t ld, float *token, double *advantage,
                   double mean, double scale)
{
    for (int64_t i = 0; i < n_rows; i++) {
        double sum = 0;
        for (int32_t k = 0; k < n[i] && !isnan(total[i]); k++) {
            float *const x = token + i * ld + k;
            *x = (float)(((double)*x - mean) * scale);
            sum += (double)*x;
        }
        advantage[i] = n[i] > 0 ? sum / n[i] : 0;
    }
}

static void find_of_set(const dt_advantage_rule *rule, int64_t n_rows, const int32_t *n, const double *total,
                        int64_t ld, float *token, double *advantage)
{
    int64_t n_tok;
    double squares = 0;
    const double sum = find_returns(rule, n_rows, n, total, advantage, ld, token, &n_tok),
                 mean = n_tok > 0 ? sum / (double)n_tok : 0;
    for (int64_t i = 0; i < n_rows; i++)
        for (int32_t k = 0; k < n[i] && !isnan(total[i]); k++) {
            const double off = (double)token[i * ld + k] - mean;
            squares += off * off;
        }
    const double variance = n_tok > 0 ? squares / (double)n_tok : 0;
    whiten(n_rows, n, total, ld, token, advantage, mean, 1 / sqrt(fmax(variance, SMALLEST_VARIANCE)));
}

void dt_token_advantages(const dt_advantage_rule *rule, int64_t n_rows, const int32_t *n, const double *total,
                         int64_t ld, float *token, double *advantage)
{
    const int64_t n_of_set = rule->n_of_set ? rule->n_of_set : n_rows;
    for (int64_t at = 0; at < n_rows; at += n_of_set)
        find_of_set(rule, dt_min_i64(n_of_set, n_rows - at), n + at, total + at, ld, token + at * ld, advantage + at);
}

double dt_overlong_penalty(int32_t length, int32_t longest, int32_t cache)
{
    const int32_t over = length - (longest - cache);
    if (over <= 0) return 0;
    return length <= longest ? -(double)over / cache : -1;
}
