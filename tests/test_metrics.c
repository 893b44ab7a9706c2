/* test_metrics.c - metrics.jsonl read back, and curves of it. */
#include "cases.h"
#include "report_fixture.h"
#include "dtrain/plot/curve.h"

TEST_WITH(metrics_read_refuses_bad_lines_but_the_last, setup, teardown)
{
    struct fixture *f = *state;
    dt_metrics m;
    spill(f->jsonl,
          "{\"step\": 1, \"a\": 2, \"skipped\": true}\n{\"step\": 2, \"b\": null}\n{\"step\": 3, \"b\": 0.5, \"a\"");
    assert_int_equal(dt_metrics_read(&m, f->jsonl), DT_OK);
    assert_int_equal(m.n_rows, 2);
    assert_true(dt_metrics_column(&m, "a")[0] == 2 && isnan(dt_metrics_column(&m, "a")[1]));
    assert_true(dt_metrics_column(&m, "skipped")[0] == 1);
    assert_null(dt_metrics_column(&m, "b"));
    dt_metrics_free(&m);

    const struct {
        const char *text, *message;
    } bad[] = {{"{\"step\": 1}\n{\"step\"\n{\"step\": 2}\n", ":2: "},
               {"", "found none"},
               {"{\"ste", "found none"},
               {"3\n{\"step\": 1}\n", ":1: "},
               {"{\"stop\": 1}\n{\"step\": 1}\n", "integer \"step\""}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        dt_error_clear();
        spill(f->jsonl, bad[i].text);
        assert_fails(dt_metrics_read(&m, f->jsonl), DT_ERR_DATA, f->jsonl, bad[i].message);
        dt_metrics_free(&m);
    }
    dt_error_clear();
    assert_int_equal(dt_metrics_read(&m, "/nowhere/metrics.jsonl"), DT_ERR_DATA);
    dt_metrics_free(&m);
}

TEST_WITH(curves_know_steps_tokens_and_time, setup, teardown)
{
    struct fixture *f = *state;
    dt_metrics m;
    spill(f->jsonl,
          "{\"step\": 10, \"loss\": 4, \"tokens\": 100, \"step_time\": 2}\n{\"step\": 10, \"validation_loss\": 5}\n"
          "{\"step\": 20, \"loss\": null, \"tokens\": 200, \"step_time\": 1}\n{\"step\": 25, \"loss\": 3, \"tokens\": "
          "250, \"step_time\": 4}\n");
    assert_int_equal(dt_metrics_read(&m, f->jsonl), DT_OK);
    const double expected[3][2] = {{10, 25}, {100, 250}, {20, 50}}; /* time: 10*2, then + 10*1 + 5*4 */
    for (int axis = 0; axis < 3; axis++) {
        dt_curve c;
        assert_int_equal(dt_curve_extract(&c, &m, "loss", (dt_plot_axis)axis), DT_OK);
        assert_int_equal(c.n, 2);
        for (int i = 0; i < 2; i++) assert_true(c.x[i] == expected[axis][i] && c.y[i] == (i ? 3 : 4));
        dt_curve_free(&c);
    }
    dt_curve v;
    assert_int_equal(dt_curve_extract(&v, &m, "validation_loss", DT_AXIS_TOKENS), DT_OK);
    assert_true(v.n == 1 && v.x[0] == 100 && v.y[0] == 5);
    dt_curve_free(&v);
    assert_int_equal(dt_curve_extract(&v, &m, "nothing", DT_AXIS_STEP), DT_OK);
    assert_int_equal(v.n, 0);
    dt_curve_free(&v);
    dt_metrics_free(&m);
}

TEST(smoothing_is_a_centred_weighted_mean)
{
    double x[] = {1, 2, 3, 4, 5}, y[] = {8, 0, 4, 8, 16};
    const dt_curve c = {x, y, 5};
    dt_curve s;
    /* window 3: weights 1 2 1; the first alone, the last with its left neighbour */
    const double expected[] = {8, (8 + 0 + 4) / 4.0, (0 + 8 + 8) / 4.0, (4 + 16 + 16) / 4.0, (8 + 32) / 3.0};
    assert_int_equal(dt_curve_smooth(&s, &c, 3, 0), DT_OK);
    for (int i = 0; i < 5; i++) assert_true(s.x[i] == x[i] && fabs(s.y[i] - expected[i]) < 1e-12);
    dt_curve_free(&s);
    assert_int_equal(dt_curve_smooth(&s, &c, 1, 2), DT_OK); /* every third point, and the last */
    assert_true(s.n == 3 && s.x[1] == 4 && s.y[1] == 8 && s.x[2] == 5 && s.y[2] == 16);
    dt_curve_free(&s);
}

TEST(thinning_keeps_the_outline)
{
    enum { N = 1001 };
    double x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = i, y[i] = i % 7;
    y[500] = 1e6;
    y[501] = -1e6;
    dt_curve c = {x, y, N};
    dt_curve_thin(&c, 100);
    assert_true(c.n <= 100 && c.n > 80);
    bool high = false, low = false;
    for (int64_t i = 0; i < c.n; i++) {
        high |= c.x[i] == 500 && c.y[i] == 1e6;
        low |= c.x[i] == 501 && c.y[i] == -1e6;
        assert_true(i == 0 || c.x[i] > c.x[i - 1]);
    }
    assert_true(high && low);
}

int main(void) { return run_listed("metrics", NULL, NULL); }
