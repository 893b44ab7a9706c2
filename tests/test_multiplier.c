/* test_multiplier.c - the multiplier of a limit on costs: its worked number, its limits, and how it leaves them. */
#include "../src/task/dpo/multiplier.h"
#include "near.h"

static const dt_multiplier usual = {.lr = 0.01, .min = 0.01, .max = 10};

TEST(the_worked_number)
{
    dt_multiplier m = usual;
    dt_multiplier_update(&m, 0.5);
    assert_near(dt_multiplier_value(&m), 1.005013, 5e-7); /* six digits */
}

/* Both as they are defined, in the plainest words. */
TEST(it_moves_with_an_average_of_costs)
{
    dt_multiplier m = usual;
    m.limit = 0.25;
    double ema = 0, log_value = 0;
    for (int i = 0; i < 50; i++) {
        const double cost = sin(i);
        ema = i == 0 ? cost : 0.95 * ema + 0.05 * cost;
        log_value += 0.01 * exp(log_value) * (ema - 0.25);
        dt_multiplier_update(&m, cost);
        assert_near(m.ema, ema, 1e-15 * 50);             /* one rounding of values below 1 each time */
        assert_near(m.log_value, log_value, 1e-15 * 50); /* likewise */
    }
}

/* At the largest value it continues to log 20 and no further; the first cost below the limit lowers it again. */
TEST(it_does_not_wind_up)
{
    dt_multiplier m = usual;
    for (int i = 0; i < 200; i++) dt_multiplier_step(&m, 5);
    assert_true(dt_multiplier_value(&m) == 10);
    assert_near(m.log_value, log(20), 1e-15);
    dt_multiplier_step(&m, -0.1);
    assert_near(m.log_value, log(10) - 0.01 * 10 * 0.1, 1e-15 * 4);
    for (int i = 0; i < 200000; i++) dt_multiplier_step(&m, -5);
    assert_true(dt_multiplier_value(&m) == 0.01);
    assert_near(m.log_value, log(1e-8), 1e-14);
    dt_multiplier_step(&m, 3);
    assert_near(m.log_value, log(0.01) + 0.01 * 0.01 * 3, 1e-14);
}

TEST(a_checkpoint_restores_the_multiplier_bitwise)
{
    dt_named_arrays items = {0};
    dt_multiplier m = usual, back = usual, without = usual;
    dt_task saved = {0}, resumed = {0}, other = {0};
    dt_multiplier_store(&m, &saved), dt_multiplier_store(&back, &resumed), dt_multiplier_store(&without, &other);
    for (int i = 0; i < 7; i++) dt_multiplier_update(&m, cos(i));
    assert_int_equal(dt_task_load_state(&other, &items), DT_OK);
    assert_true(without.log_value == 0 && without.n_costs == 0);
    assert_int_equal(dt_task_save_state(&saved, &items), DT_OK);
    assert_int_equal(dt_task_load_state(&resumed, &items), DT_OK);
    assert_true(*(double *)dt_named_arrays_find(&items, "lambda")->data == dt_multiplier_value(&m));
    assert_true(back.log_value == m.log_value && back.ema == m.ema && back.n_costs == m.n_costs);
    dt_named_arrays_free(&items);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
