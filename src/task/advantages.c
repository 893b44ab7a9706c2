/* advantages.c - every rank holds all rows and sums them in the same order, so all ranks compute the same bits. */
#include "advantages.h"
#include "dtrain/reward/reward.h"
#include <math.h>

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

static int64_t sum_then_normalize(const dt_advantage_rule *rule, int64_t n_rows, const double *total, double *advantage)
{
    const int n = rule->num_generations;
    const dt_moments all = dt_moments_of(total, n_rows, 1);
    int64_t n_zero = 0;
    for (int64_t at = 0; at < n_rows; at += n) {
        const dt_moments group = dt_moments_of(total + at, n, 1);
        const double deviation = rule->scale == DT_SCALED_BY_BATCH ? all.deviation : group.deviation;
        const double by = rule->scale == DT_UNSCALED ? 1 : deviation + SMALLEST_DEVIATION;
        if (deviation <= NO_DEVIATION) n_zero += n;
        for (int64_t i = at; i < at + n; i++) advantage[i] = zero_if_unknown((total[i] - group.mean) / by);
    }
    return n_zero;
}

double dt_advantages(const dt_advantage_rule *rule, int64_t n_rows, const double *reward, double *total,
                     double *advantage, bool *flat)
{
    const int n = rule->num_generations;
    const int64_t n_of_set = rule->n_of_set ? rule->n_of_set : n_rows;
    int64_t n_zero = 0;
    for (int64_t i = 0; i < n_rows; i++)
        total[i] = dt_reward_total(rule->n_funcs, rule->weight, reward + i * rule->n_funcs);
    for (int64_t g = 0; g < n_rows / n; g++) {
        const double deviation = dt_moments_of(total + g * n, n, 1).deviation;
        flat[g] = !(deviation > NO_DEVIATION);
    }
    for (int64_t at = 0; at < n_rows; at += n_of_set) {
        const int64_t n_here = dt_min_i64(n_of_set, n_rows - at);
        n_zero += rule->normalize_then_sum
                      ? normalize_then_sum(rule, n_here, reward + at * rule->n_funcs, total + at, advantage + at)
                      : sum_then_normalize(rule, n_here, total + at, advantage + at);
    }
    return n_rows > 0 ? (double)n_zero / (double)n_rows : 0;
}

double dt_overlong_penalty(int32_t length, int32_t longest, int32_t cache)
{
    const int32_t over = length - (longest - cache);
    if (over <= 0) return 0;
    return length <= longest ? -(double)over / cache : -1;
}
