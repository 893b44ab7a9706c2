/* test_ppo_loss.c - the losses, advantages and controllers of PPO: the worked example of algorithms.md 4,
 * definitions written out, and finite differences. */
#include "../src/task/dpo/multiplier.h"
#include "../src/task/ppo/ppo_control.h"
#include "../src/task/ppo/ppo_loss.h"
#include "near.h"

/* Values of six digits; a float represents them to 6e-8. */
TEST(the_worked_example)
{
    static const double advantage[] = {0.43675, 0.565, 0.7}, whitened[] = {-0.991344, -0.017092, 1.008436},
                        returns[] = {0.93675, 0.965, 1};
    const float value[] = {0.5f, 0.4f, 0.3f};
    float x[] = {0, 0, 1};
    dt_ppo_advantages(value, 3, 1, 0.95, x);
    for (int k = 0; k < 3; k++) assert_near((double)x[k], advantage[k], 5e-7);
    for (int k = 0; k < 3; k++) assert_near((double)x[k] + (double)value[k], returns[k], 5e-7);
    dt_ppo_whiten((float *[]){x}, (int32_t[]){3}, 1, false);
    for (int k = 0; k < 3; k++) assert_near((double)x[k], whitened[k], 7e-7);
    assert_true(dt_kl_estimate(DT_KL_K3, -1, -1) == 0);
    assert_near(dt_kl_estimate(DT_KL_K3, -1.5, -1), 0.148721, 5e-7);
    assert_near(dt_kl_estimate(DT_KL_K3, -1, -1.5), 0.106531, 5e-7);
    assert_true(dt_kl_estimate(DT_KL_K1, -1, -1.5) == 0.5);
    assert_near(dt_ppo_combined(3, 1, 0.5), 2.5 / 1.5, 1e-15);
}

/* A_k = sum over l of (gamma lam)^l delta_(k+l), for every k anew. */
TEST(advantages_are_sums_of_surprises)
{
    enum { N = 9 };
    uint64_t seed = 3;
    for (int32_t n = 1; n <= N; n++) {
        const double gamma = 0.9 + 0.1 * uniform(&seed), lam = uniform(&seed);
        float value[N], reward[N], found[N];
        for (int k = 0; k < n; k++)
            value[k] = (float)(uniform(&seed) - 0.5), found[k] = reward[k] = (float)(uniform(&seed) - 0.5);
        dt_ppo_advantages(value, n, gamma, lam, found);
        for (int k = 0; k < n; k++) {
            double sum = 0;
            for (int j = k; j < n; j++) {
                const double next = j + 1 < n ? (double)value[j + 1] : 0;
                sum += pow(gamma * lam, j - k) * ((double)reward[j] + gamma * next - (double)value[j]);
            }
            assert_near((double)found[k], sum, 6e-8 * (1 + fabs(sum))); /* a float's rounding */
        }
    }
}

/* With room after its last token a completion has one state more, and that state earns the score. Without room, the
 * last token does. */
TEST(the_score_goes_to_the_last_state)
{
    const float policy[] = {-1, -2, -3}, reference[] = {-1.5f, -2, -2};
    const dt_ppo_penalty p = {.estimator = DT_KL_K1, .kl_coef = 0.5};
    float reward[4] = {9, 9, 9, 9};
    assert_int_equal(dt_ppo_n_states(3, 5), 4);
    assert_int_equal(dt_ppo_n_states(3, 3), 3);
    assert_true(dt_ppo_rewards(&p, policy, reference, 3, 4, 7, reward) == -0.5);
    assert_true(reward[0] == -0.25f && reward[1] == 0 && reward[2] == 0.5f && reward[3] == 7);
    reward[3] = 9;
    dt_ppo_rewards(&p, policy, reference, 3, 3, 7, reward);
    assert_true(reward[0] == -0.25f && reward[1] == 0 && reward[2] == 7.5f && reward[3] == 9);
}

/* All rows are whitened together; elements after a row's length are neither counted nor changed. */
TEST(all_rows_of_a_rollout_are_whitened_together)
{
    float a[] = {1, 5, 100}, b[] = {-2}, c[] = {4, 4, 0, 7}, all[] = {1, 5, -2, 4, 4, 0, 7}, kept[] = {3, 5, 7, 9};
    const double kept_variance = 20 / 3.0;
    dt_ppo_whiten((float *[]){a, b, c}, (int32_t[]){2, 1, 4}, 3, false);
    dt_ppo_whiten((float *[]){all}, (int32_t[]){7}, 1, false);
    assert_true(a[0] == all[0] && a[1] == all[1] && b[0] == all[2] && c[0] == all[3] && c[3] == all[6] && a[2] == 100);
    double sum = 0, squares = 0;
    for (int i = 0; i < 7; i++) sum += (double)all[i], squares += (double)all[i] * (double)all[i];
    assert_near(sum, 0, 7 * 1.2e-7);         /* each of seven floats below 2 is rounded by at most 2^-24 * 2 */
    assert_near(squares / 6, 1, 7 * 2.4e-7); /* unbiased; squares have twice that */
    dt_ppo_whiten((float *[]){kept}, (int32_t[]){4}, 1, true);
    for (int i = 0; i < 4; i++) assert_near((double)kept[i], 6 + (2 * i - 3) / sqrt(kept_variance + 1e-8), 6e-7);
    float one[] = {3};
    dt_ppo_whiten((float *[]){one}, (int32_t[]){1}, 1, true);
    assert_true(one[0] == 3);
    dt_ppo_whiten((float *[]){one}, (int32_t[]){1}, 1, false);
    assert_true(one[0] == 0);
    dt_ppo_whiten(NULL, NULL, 0, false);
}

/* The table of algorithms.md 4.4: u = A r where (A >= 0 and r <= 1 + range) or (A < 0 and r >= 1 - range). */
TEST(the_policy_is_clipped_where_it_gains)
{
    static const struct {
        double ratio, advantage, loss, u;
        bool clipped;
    } cases[] = {{1, 2, -2, 2, false},        {1.1, 2, -2.2, 2.2, false}, {1.5, 2, -2.4, 0, true},
                 {0.5, 2, -1, 1, false},      {0.5, -2, 1.6, 0, true},    {1.5, -2, 3, -3, false},
                 {0.9, -2, 1.8, -1.8, false}, {1.5, 0, 0, 0, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const dt_ppo_term t = dt_ppo_policy_loss(-1 + log(cases[i].ratio), -1, cases[i].advantage, 0.2);
        assert_near(t.loss, cases[i].loss, 1e-14); /* exp(log(ratio)) and a product: some roundings of 2^-53 * 3 */
        assert_near(t.slope, cases[i].u, 1e-14);
        assert_true(t.clipped == cases[i].clipped);
    }
    assert_true(dt_ppo_policy_loss(-3.7, -3.7, 1, 0.2).loss == -1); /* a ratio of exactly 1 */
}

TEST(values_are_clipped_around_the_old_ones)
{
    const dt_ppo_term far = dt_ppo_value_loss(1, 0, 1, 0.2), free = dt_ppo_value_loss(1, 0, 1.5, HUGE_VAL),
                      inside = dt_ppo_value_loss(0.1, 0, 1, 0.2), away = dt_ppo_value_loss(1, 0, -1, 0.2);
    assert_true(far.clipped && far.slope == 0); /* 0.2 is further from 1 than 1 is */
    assert_near(far.loss, 0.32, 1e-15);
    assert_true(!free.clipped && free.slope == -0.5 && free.loss == 0.125);
    assert_true(!inside.clipped && inside.slope == 0.1 - 1);
    assert_true(!away.clipped && away.slope == 2 && away.loss == 2);
}

/* Central differences of smooth pieces: an error of h^2 / 6 times the third derivative, which is the loss for the
 * policy and 0 for values, and rounding, 1e-16 / h times the loss. */
TEST(slopes_are_differences)
{
    const double h = 1e-5;
    uint64_t seed = 8;
    for (int i = 0; i < 2000; i++) {
        const double x = 2 * uniform(&seed) - 2, old = x + uniform(&seed) - 0.5, a = 4 * uniform(&seed) - 2;
        const dt_ppo_term p = dt_ppo_policy_loss(x, old, a, 0.2), v = dt_ppo_value_loss(x, old, a, 0.3);
        const dt_ppo_term p_up = dt_ppo_policy_loss(x + h, old, a, 0.2),
                          p_down = dt_ppo_policy_loss(x - h, old, a, 0.2);
        const dt_ppo_term v_up = dt_ppo_value_loss(x + h, old, a, 0.3), v_down = dt_ppo_value_loss(x - h, old, a, 0.3);
        if (p_up.clipped == p.clipped && p_down.clipped == p.clipped)
            assert_near(-p.slope, (p_up.loss - p_down.loss) / (2 * h), 1e-9);
        if (v_up.clipped == v.clipped && v_down.clipped == v.clipped)
            assert_near(v.slope, (v_up.loss - v_down.loss) / (2 * h), 1e-9);
    }
}

TEST(the_coefficient_follows_its_target)
{
    dt_kl_controller c = {.coef = 0.2, .adaptive = true, .target = 6, .horizon = 10000}, fixed = {.coef = 0.2};
    dt_kl_controller_update(&c, 12, 256); /* an error of 1 counts as 0.2 */
    assert_near(c.coef, 0.2 * (1 + 0.2 * 256 / 10000), 1e-15);
    const double before = c.coef;
    dt_kl_controller_update(&c, 5.4, 100);
    assert_near(c.coef, before * (1 - 0.1 * 0.01), 1e-15);
    dt_kl_controller_update(&c, 6, 100);
    assert_near(c.coef, before * (1 - 0.1 * 0.01), 1e-15);
    dt_kl_controller_update(&fixed, 100, 256);
    assert_true(fixed.coef == 0.2);
}

/* Reported in pieces, or all at once. */
TEST(running_moments_are_those_of_all)
{
    enum { N = 40 };
    uint64_t seed = 2;
    double x[N], sum = 0, squares = 0;
    dt_running m = {.variance = 1};
    assert_true(dt_running_std(&m) == 1);
    for (int i = 0; i < N; i++) x[i] = 5 + uniform(&seed), sum += x[i];
    for (int i = 0; i < N; i++) squares += (x[i] - sum / N) * (x[i] - sum / N);
    for (int at = 0, n = 1; at < N; at += n, n = at + 7 < N ? 7 : N - at) dt_running_update(&m, x + at, n);
    assert_near(m.mean, sum / N, 1e-14); /* some roundings of values below 6, of squares below 36 */
    assert_near(dt_running_std(&m), sqrt(squares / (N - 1)), 1e-13);
}

TEST(a_window_mean_covers_only_the_last_values)
{
    double last[3] = {0};
    dt_window w = {.last = last, .room = 3};
    assert_true(dt_window_mean(&w) == 0);
    dt_window_add(&w, 4);
    assert_true(dt_window_mean(&w) == 4);
    for (int i = 0; i < 5; i++) dt_window_add(&w, i);
    assert_true(dt_window_mean(&w) == 3);
}

/* What PPO-Lagrangian makes of the multiplier: the mean of a window moves it. */
TEST(a_multiplier_rises_with_costs)
{
    dt_multiplier m = {.lr = 0.1, .min = 0.01, .max = 5};
    dt_multiplier_step(&m, 0.3);
    assert_near(dt_multiplier_value(&m), exp(0.03), 1e-15);
    dt_multiplier_step(&m, -1);
    assert_near(dt_multiplier_value(&m), exp(0.03 - 0.1 * exp(0.03)), 1e-15);
}

TEST(checkpoints_hold_the_last_costs)
{
    dt_named_arrays items = {0};
    double last[2] = {1, 2}, other[2] = {0}, large[3], small;
    const dt_window w = {.last = last, .room = 2, .n = 5};
    dt_window w2 = {.last = other, .room = 2}, w3 = {.last = large, .room = 3}, w1 = {.last = &small, .room = 1};
    assert_int_equal(dt_window_save(&w, &items), DT_OK);
    assert_int_equal(dt_window_load(&w2, &items), DT_OK);
    assert_true(w2.n == 5 && other[0] == 1 && other[1] == 2);
    assert_int_equal(dt_window_load(&w3, &items), DT_OK); /* wider: 2, which is the older, 1, and room for one more */
    assert_true(dt_window_mean(&w3) == 1.5);
    dt_window_add(&w3, 6);
    assert_true(dt_window_mean(&w3) == 3);
    dt_window_add(&w3, 8);
    assert_true(dt_window_mean(&w3) == 5);
    assert_int_equal(dt_window_load(&w1, &items), DT_OK);
    assert_true(dt_window_mean(&w1) == 1);
    dt_named_arrays_free(&items);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
