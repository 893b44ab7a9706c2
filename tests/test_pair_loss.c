/* test_pair_loss.c - the loss of a pair of rewards: the worked example of algorithms.md 2, and its derivatives
 * against finite differences. */
#include "../src/task/pair_loss.h"
#include "near.h"

static const uint8_t unknown[2] = {DT_SAFETY_UNKNOWN, DT_SAFETY_UNKNOWN};

static double loss_of(const dt_pair_loss *l, const double reward[2], double margin, const uint8_t safety[2],
                      double g[2])
{
    return dt_pair_loss_of(l, reward, &(dt_pair_labels){.margin = margin, .safety = {safety[0], safety[1]}}, g);
}

TEST(the_worked_example)
{
    const double reward[2] = {1.2, 0.4};
    double g[2];
    dt_pair_loss l = {.type = DT_PAIR_SIGMOID};
    assert_near(loss_of(&l, reward, 0, unknown, g), 0.371101, 5e-7); /* they have six digits */
    assert_near(g[0], -0.310026, 5e-7);
    assert_near(g[1], 0.310026, 5e-7);
    l.center = 0.01;
    assert_near(loss_of(&l, reward, 0, unknown, g), 0.371101 + 0.0256, 5e-7);
    assert_near(g[0], -0.310026 + 0.032, 5e-7);
    assert_near(g[1], 0.310026 + 0.032, 5e-7);
    l = (dt_pair_loss){.type = DT_PAIR_HINGE};
    assert_near(loss_of(&l, reward, 1, unknown, g), 0.2, 1e-12);
    assert_true(g[0] == -1 && g[1] == 1);
    assert_true(loss_of(&l, reward, 0.5, unknown, g) == 0 && g[0] == 0 && g[1] == 0);
}

/* With labels alone: a safe answer is pushed above 0, an unsafe one below, whichever was chosen. */
TEST(safety_has_one_sign)
{
    const dt_pair_loss l = {.w_cls = 2};
    const double reward[2] = {0, 0};
    const uint8_t safety[2] = {DT_SAFETY_UNSAFE, DT_SAFETY_SAFE}, half[2] = {DT_SAFETY_SAFE, DT_SAFETY_UNKNOWN};
    double g[2];
    assert_near(loss_of(&l, reward, 0, safety, g), 5 * log(2), 1e-12);
    assert_near(g[0], -0.5 + 1, 1e-12);
    assert_near(g[1], 0.5 - 1, 1e-12);
    assert_near(loss_of(&l, reward, 0, half, g), 3 * log(2), 1e-12);
    assert_near(g[1], 0.5, 1e-12);
}

/* Central differences with step h of a function whose third derivative is below 2 (1 + w): error h^2 / 6 times that,
 * and rounding 1e-16 |L| / h. */
TEST(derivatives_are_differences)
{
    uint64_t seed = 11;
    const double h = 1e-5;
    for (int i = 0; i < 2000; i++) {
        const dt_pair_loss l = {.type = i % 5 ? DT_PAIR_SIGMOID : DT_PAIR_HINGE,
                                .label_smoothing = i % 5 ? 0.4 * uniform(&seed) : 0,
                                .center = i % 2 ? uniform(&seed) : 0,
                                .w_cls = i % 3 ? 2 * uniform(&seed) : 0};
        const double reward[2] = {8 * uniform(&seed) - 4, 8 * uniform(&seed) - 4};
        const double margin = 2 * uniform(&seed) - 1;
        const uint8_t safety[2] = {(uint8_t)(i % 3), (uint8_t)(i / 3 % 3)};
        double g[2], other[2];
        loss_of(&l, reward, margin, safety, g);
        if (l.type == DT_PAIR_HINGE && fabs(reward[0] - reward[1] - margin) < 2 * h) continue; /* its corner */
        for (int side = 0; side < 2; side++) {
            double up[2] = {reward[0], reward[1]}, down[2] = {reward[0], reward[1]};
            up[side] += h, down[side] -= h;
            const double slope =
                (loss_of(&l, up, margin, safety, other) - loss_of(&l, down, margin, safety, other)) / (2 * h);
            assert_near(g[side], slope, 1e-8);
        }
    }
}

/* Whatever the type: no margin, no smoothing, but what holds for each answer alone. */
TEST(a_tie_draws_rewards_together)
{
    const double reward[2] = {1.5, -0.5};
    const dt_pair_labels tie = {.margin = 3, .tie = true}, safe = {.tie = true, .safety = {DT_SAFETY_SAFE}};
    double g[2];
    for (int type = DT_PAIR_SIGMOID; type <= DT_PAIR_HINGE; type++) {
        dt_pair_loss l = {.type = (dt_pair_loss_type)type, .label_smoothing = 0.1, .center = 0.5, .w_tie = 0.25};
        assert_near(dt_pair_loss_of(&l, reward, &tie, g), 0.25 * 4 + 0.5 * 1, 1e-15);
        assert_near(g[0], 2 * 0.25 * 2 + 2 * 0.5 * 1, 1e-15);
        assert_near(g[1], -2 * 0.25 * 2 + 2 * 0.5 * 1, 1e-15);
        l.w_cls = 1;
        assert_near(dt_pair_loss_of(&l, reward, &safe, g), 1.5 + log1p(exp(-1.5)), 1e-15);
    }
}

TEST(large_rewards_do_not_overflow)
{
    const dt_pair_loss l = {.label_smoothing = 0.1, .w_cls = 1};
    const double reward[2] = {-3e4, 3e4};
    const uint8_t safety[2] = {DT_SAFETY_SAFE, DT_SAFETY_UNSAFE};
    double g[2];
    assert_near(loss_of(&l, reward, 0, safety, g), 0.9 * 6e4 + 6e4, 1e-6);
    assert_near(g[0], -0.9 - 1, 1e-12);
    assert_near(g[1], 0.9 + 1, 1e-12);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
