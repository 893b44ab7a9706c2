/* test_advantages.c - advantages of completions within their group: the worked example of algorithms.md 5.2, plain
 * loops, functions that do not apply, and groups without information. */
#include "../src/task/advantages.h"
#include "near.h"

enum { G = 4, N_GROUPS = 5, N_FUNCS = 3, N = G * N_GROUPS };

/* Sums of a few doubles near 1: ten roundings. */
static const double ROUNDING = 1e-14;

typedef struct results {
    double total[N], advantage[N], share;
    bool flat[N_GROUPS];
} results;

static const double one[N_FUNCS] = {1}, weights[N_FUNCS] = {1, 0.5, 2};

static results of(dt_advantage_rule rule, int64_t n_rows, const double *reward)
{
    results r;
    r.share = dt_advantages(&rule, n_rows, reward, NULL, r.total, r.advantage, r.flat);
    return r;
}

TEST(the_worked_example)
{
    const double reward[G] = {1, 0, 0, 1};
    const dt_advantage_rule group = {.num_generations = G, .n_funcs = 1, .weight = one};
    dt_advantage_rule none = group;
    none.scale = DT_UNSCALED;
    const results r = of(group, G, reward), plain = of(none, G, reward);
    for (int i = 0; i < G; i++) {
        assert_near(r.advantage[i], reward[i] > 0 ? 0.865875 : -0.865875, 5e-7); /* it has six digits */
        assert_near(plain.advantage[i], reward[i] - 0.5, 0);
    }
    assert_true(!r.flat[0] && r.share == 0);
}

static void fill(double *reward, uint64_t seed)
{
    for (int i = 0; i < N * N_FUNCS; i++) reward[i] = floor(3 * uniform(&seed));
    for (int i = 0; i < N; i++)
        for (int k = 0; k < N_FUNCS; k++)
            if (uniform(&seed) < 0.2) reward[i * N_FUNCS + k] = NAN;
}

static double mean_of(const double *x, int n)
{
    double sum = 0;
    int known = 0;
    for (int i = 0; i < n; i++)
        if (!isnan(x[i])) sum += x[i], known++;
    return sum / known;
}

static double deviation_of(const double *x, int n)
{
    double sum = 0;
    int known = 0;
    for (int i = 0; i < n; i++)
        if (!isnan(x[i])) sum += pow(x[i] - mean_of(x, n), 2), known++;
    return sqrt(sum / (known - 1));
}

static double sum_of(const double *reward)
{
    double sum = 0;
    int known = 0;
    for (int k = 0; k < N_FUNCS; k++)
        if (!isnan(reward[k])) sum += weights[k] * reward[k], known++;
    return known ? sum : NAN;
}

static void expect_of_sums(const double *reward, dt_scale_rewards scale, double *expected)
{
    double total[N];
    for (int i = 0; i < N; i++) total[i] = sum_of(reward + i * N_FUNCS);
    for (int i = 0; i < N; i++) {
        const double *group = total + i / G * G;
        const double by = scale == DT_SCALED_BY_GROUP   ? deviation_of(group, G) + 1e-4
                          : scale == DT_SCALED_BY_BATCH ? deviation_of(total, N) + 1e-4
                                                        : 1;
        const double a = (total[i] - mean_of(group, G)) / by;
        expected[i] = isnan(a) ? 0 : a;
    }
}

static void expect_of_normalized(const double *reward, double *expected)
{
    double sum[N];
    for (int i = 0; i < N; i++) {
        sum[i] = isnan(sum_of(reward + i * N_FUNCS)) ? NAN : 0;
        for (int k = 0; k < N_FUNCS; k++) {
            double x[G];
            for (int j = 0; j < G; j++) x[j] = reward[(i / G * G + j) * N_FUNCS + k];
            const double a = (x[i % G] - mean_of(x, G)) / (deviation_of(x, G) + 1e-4);
            if (!isnan(a)) sum[i] += weights[k] * a;
        }
    }
    for (int i = 0; i < N; i++) {
        const double a = (sum[i] - mean_of(sum, N)) / (deviation_of(sum, N) + 1e-4);
        expected[i] = isnan(a) ? 0 : a;
    }
}

TEST(they_are_those_of_plain_loops)
{
    for (uint64_t seed = 0; seed < 200; seed++) {
        double reward[N * N_FUNCS], expected[N];
        fill(reward, seed * 1000);
        for (int scale = DT_SCALED_BY_GROUP; scale <= DT_UNSCALED; scale++)
            for (int first = 0; first < 2; first++) {
                const dt_advantage_rule rule = {.num_generations = G,
                                                .n_funcs = N_FUNCS,
                                                .weight = weights,
                                                .scale = (dt_scale_rewards)scale,
                                                .normalize_then_sum = first};
                const results r = of(rule, N, reward);
                if (first)
                    expect_of_normalized(reward, expected);
                else
                    expect_of_sums(reward, rule.scale, expected);
                /* a deviation that is rounding alone is divided by 1e-4 */
                for (int i = 0; i < N; i++) assert_near(r.advantage[i], expected[i], 1e4 * ROUNDING);
            }
    }
}

TEST(inapplicable_rewards_do_not_count)
{
    const double reward[2 * G] = {1, NAN, 0, 0.5, NAN, NAN, 3, NAN};
    const dt_advantage_rule rule = {.num_generations = G, .n_funcs = 1, .weight = one};
    const results r = of(rule, 2 * G, reward);
    assert_near(r.advantage[0], 0.5 / (0.5 + 1e-4), ROUNDING);
    assert_near(r.advantage[1], 0, 0);
    assert_near(r.advantage[2], -0.5 / (0.5 + 1e-4), ROUNDING);
    assert_true(isnan(r.total[1]) && r.total[3] == 0.5);
    for (int i = G; i < 2 * G; i++) assert_near(r.advantage[i], 0, 0); /* the one of its group is alone */
    assert_true(!r.flat[0] && r.flat[1]);
    assert_near(r.share, 0, 0); /* a deviation that is not known is not 0 */
}

TEST(a_group_of_equal_rewards_is_flat)
{
    const double reward[] = {0.1, 0.1, 0.1, 0, 1, 0}; /* of three, for (0.1 + 0.1 + 0.1) / 3 is not 0.1 */
    dt_advantage_rule rule = {.num_generations = 3, .n_funcs = 1, .weight = one};
    results r = of(rule, 6, reward);
    assert_true(r.flat[0] && !r.flat[1]);
    assert_near(r.share, 0.5, 0);
    for (int i = 0; i < 3; i++) assert_near(r.advantage[i], 0, 0); /* without a sign, which ratios are counted by */
    rule.scale = DT_SCALED_BY_BATCH;
    r = of(rule, 6, reward);
    assert_true(r.flat[0] && r.share == 0); /* the deviation that is looked at is that of all */
    const double others[] = {0.1, 0.1, 0.1, 0.1, 0.2, 0.7, 0.3, 0.4, 0.9}; /* whose sum is rounding when normalized */
    rule.normalize_then_sum = true;
    r = of(rule, 9, others);
    for (int i = 0; i < 3; i++) assert_near(r.advantage[i], 0, 0);
}

static dt_advantage_rule estimator(dt_advantage_type type)
{
    return (dt_advantage_rule){.type = type, .num_generations = G, .n_funcs = 1, .weight = one};
}

TEST(estimators_subtract_their_baselines)
{
    const double reward[2 * G] = {1, 0, 0.5, 2.5, NAN, 3, NAN, NAN},
                            rloo[2 * G] = {0, -4.0 / 3, -2.0 / 3, 2,
                                           0, 0,        0,        0}, /* the known one of the second group is alone */
        reinforce[2 * G] = {-0.4, -1.4, -0.9, 1.1, 0, 1.6, 0, 0}, baseline[2 * G] = {0, -1, -0.5, 1.5, 0, 0, 0, 0};
    const double *const expected[DT_N_ADVANTAGES] = {[DT_ADVANTAGE_RLOO] = rloo,
                                                     [DT_ADVANTAGE_REINFORCE] = reinforce,
                                                     [DT_ADVANTAGE_REINFORCE_PP_BASELINE] = baseline};
    for (int type = 0; type < DT_N_ADVANTAGES; type++) {
        const results r = of(estimator((dt_advantage_type)type), 2 * G, reward);
        for (int i = 0; expected[type] && i < 2 * G; i++) assert_near(r.advantage[i], expected[type][i], ROUNDING);
    }
    const double equal[G] = {0.1, 0.1, 0.1, 0.1};
    const results flat = of(estimator(DT_ADVANTAGE_RLOO), G, equal);
    for (int i = 0; i < G; i++) assert_near(flat.advantage[i], 0, 0);
    assert_near(flat.share, 1, 0);
}

TEST(rewards_are_clipped_before_the_divergence)
{
    const double reward[G] = {-2, 0, 1, 5}, kl[G] = {0.5, -1, 0, 2};
    dt_advantage_rule rule = estimator(DT_ADVANTAGE_RLOO);
    rule.clips = true, rule.least = -1, rule.most = 2, rule.kl_coef = 0.1;
    const double x[G] = {-1.05, 0.1, 1, 1.8};
    double total[G], advantage[G];
    bool flat[1];
    dt_advantages(&rule, G, reward, kl, total, advantage, flat);
    for (int i = 0; i < G; i++) {
        assert_near(advantage[i], x[i] - (x[0] + x[1] + x[2] + x[3] - x[i]) / 3, ROUNDING);
        assert_near(total[i], reward[i], 0); /* metrics have the reward itself */
    }
    assert_true(!flat[0]);
    const double outside[G] = {2, 3, 4, 5}; /* without a learning signal once clipped */
    dt_advantages(&rule, G, outside, NULL, total, advantage, flat);
    assert_true(flat[0]);
    rule.normalize = true;
    dt_advantages(&rule, G, reward, kl, total, advantage, flat);
    assert_near(mean_of(advantage, G), 0, ROUNDING);
    assert_near(deviation_of(advantage, G), 1, 1e-4);
}

/* Tokens' values are fp32. */
TEST(tokens_have_whitened_returns)
{
    enum { LD = 3 };
    const double reward[G] = {1, NAN, 0, 2}, kl[G][LD] = {{0.5, -0.25}, {1}, {0.125, 0, 1}, {-1}};
    const int32_t n[G] = {2, 1, 3, 1};
    const dt_advantage_rule rule = {
        .type = DT_ADVANTAGE_REINFORCE_PP, .num_generations = 1, .n_funcs = 1, .weight = one, .kl_coef = 0.2};
    /* 1 - 0.2 * 0.25, 1 + 0.2 * 0.25; -0.2 * 1.125, -0.2, -0.2; 2 + 0.2 */
    const double returns[G][LD] = {{0.95, 1.05}, {0}, {-0.225, -0.2, -0.2}, {2.2}};
    float token[G * LD];
    double total[G], advantage[G], mean = 0, squares = 0;
    bool flat[G];
    for (int i = 0; i < G * LD; i++) token[i] = (float)kl[i / LD][i % LD];
    dt_advantages(&rule, G, reward, NULL, total, advantage, flat);
    dt_token_advantages(&rule, G, n, total, LD, token, advantage);
    for (int i = 0; i < G; i++)
        for (int k = 0; i != 1 && k < n[i]; k++) mean += returns[i][k] / 6;
    for (int i = 0; i < G; i++)
        for (int k = 0; i != 1 && k < n[i]; k++) squares += pow(returns[i][k] - mean, 2) / 6;
    for (int i = 0; i < G; i++) {
        double sum = 0;
        for (int k = 0; k < n[i]; k++) {
            const double a = i == 1 ? 0 : (returns[i][k] - mean) / sqrt(squares);
            assert_near(token[i * LD + k], a, 1e-6);
            sum += a / n[i];
        }
        assert_near(advantage[i], sum, 1e-6);
    }
}

TEST(moments_skip_unknown_values)
{
    const double x[] = {1, 9, NAN, 9, 3, 9};
    const dt_moments m = dt_moments_of(x, 3, 2), none = dt_moments_of(x + 2, 1, 1), alone = dt_moments_of(x, 1, 1);
    assert_true(m.n == 2 && m.mean == 2);
    assert_near(m.deviation, sqrt(2), ROUNDING);
    assert_true(none.n == 0 && isnan(none.mean) && isnan(none.deviation));
    assert_true(alone.mean == 1 && isnan(alone.deviation));
}

TEST(long_completions_are_penalized)
{
    const int32_t length[] = {1, 80, 81, 90, 100, 101};
    const double expected[] = {0, 0, -0.05, -0.5, -1, -1};
    for (int i = 0; i < 6; i++) assert_near(dt_overlong_penalty(length[i], 100, 20), expected[i], ROUNDING);
    assert_near(dt_overlong_penalty(100, 100, 0), 0, 0);
    assert_near(dt_overlong_penalty(101, 100, 0), -1, 0);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
