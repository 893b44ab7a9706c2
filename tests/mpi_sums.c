/* mpi_sums.c - any number of named sums is exchanged in one vote. Ranks with different names get an error before the
 * first.
 * NP: 1 2 3 4 */
#include "mpi_test.h"
#include "dtrain/step/sums.h"

enum { N = 300 };

/* N sums of all kinds, and two metrics of each: the sum, and its quotient by the previous sum. */
static void declare(dt_sums *s, int skip)
{
    for (int i = 0; i < N; i++) {
        char name[DT_SUM_NAME], mean[DT_SUM_NAME], before[DT_SUM_NAME];
        snprintf(name, sizeof name, "sum/%d", i);
        snprintf(mean, sizeof mean, "mean/%d", i);
        snprintf(before, sizeof before, "sum/%d", i - 1);
        if (i == skip) continue;
        dt_sums_declare(s, name, (dt_sum_kind)(i % 5), i % 5 == DT_SUM_UNITS ? 0x1p-10 : 1);
        dt_sums_show(s, DT_SHOW_TRAIN, name, name, NULL, NULL);
        if (i > 0 && i - 1 != skip) dt_sums_show(s, DT_SHOW_TRAIN, mean, name, before, NULL);
    }
}

/* What rank r adds in each of two parts: no rounding in any sum. */
static double part(int i, int r) { return (i + 1) * 0.25 + r; }

static double whole(int i, int nranks)
{
    double all = 0;
    for (int r = 0; r < nranks; r++) all += 2 * part(i, r);
    if (i % 5 == DT_SUM_MAX) return part(i, nranks - 1);
    return i % 5 == DT_SUM_MIN ? part(i, 0) : all;
}

static double shown(const dt_sums *s, const char *kind, int i, bool total)
{
    char name[DT_SUM_NAME];
    snprintf(name, sizeof name, "%s/%d", kind, i);
    const dt_shown *what = dt_sums_find_shown(s, DT_SHOW_TRAIN, name);
    return total ? dt_sums_shown_of_total(s, what) : dt_sums_shown(s, what);
}

TEST(any_number_of_sums_comes_together_in_one_vote)
{
    dt_comm *c = *state;
    dt_sums s = {0};
    bool ok = true;
    declare(&s, -1);
    assert_all(MPI_COMM_WORLD, dt_sums_settle(&s, c) == DT_OK);
    for (int step = 0; step < 3; step++) {
        dt_vote vote = {.stop = step};
        dt_sums_clear(&s);
        for (int twice = 0; twice < 2; twice++)
            for (int i = 0; i < N; i++) dt_sums_add(&s, i, part(i, c->rank));
        const long long before = atomic_load(&c->sequence);
        ok = dt_sums_vote(&s, c, &vote) == DT_OK && atomic_load(&c->sequence) == before + 1 && vote.stop == step && ok;
        for (int i = 0; i < N && ok; i++) {
            ok = dt_sums_value(&s, i) == whole(i, c->nranks) && shown(&s, "sum", i, false) == whole(i, c->nranks);
            if (i) ok = ok && shown(&s, "mean", i, false) == whole(i, c->nranks) / whole(i - 1, c->nranks);
        }
        dt_sums_add_to_total(&s);
    }
    for (int i = 0; i < N && ok; i++) { /* of three steps alike: the mean over steps is that of one */
        ok = shown(&s, "sum", i, true) == whole(i, c->nranks);
        const bool extreme = i % 5 >= DT_SUM_MAX;
        ok = ok && dt_sums_total(&s, i) == whole(i, c->nranks) * (extreme ? 1 : 3);
    }
    assert_all(MPI_COMM_WORLD, ok);
    dt_sums_close(&s);
}

/* More than 2^63 units, as the weights of a large dataset are, and less than nothing: exact, so that neither the number
 * of parts nor that of ranks shows. 3e6 parts of 1e6 * 8.8e6 units would be 2.6e19 of 2^-20. */
TEST(units_do_not_overflow)
{
    dt_comm *c = *state;
    dt_sums s = {0};
    dt_vote vote = {0};
    const int large = dt_sums_declare(&s, "large", DT_SUM_UNITS, 0x1p-20);
    const int small = dt_sums_declare(&s, "small", DT_SUM_UNITS, 1);
    bool ok = dt_sums_settle(&s, c) == DT_OK;
    for (int i = 0; i < 64; i++) dt_sums_count(&s, large, INT64_MAX - 7);
    for (int i = 0; i < 9; i++) dt_sums_count(&s, small, i % 2 ? -(INT64_C(1) << 40) - 3 : (INT64_C(1) << 40) + 1);
    ok = dt_sums_vote(&s, c, &vote) == DT_OK && ok;
    const __int128 whole = (__int128)(INT64_MAX - 7) * 64 * c->nranks;
    ok = ok && dt_sums_value(&s, large) == (double)whole * 0x1p-20;
    ok = ok && dt_sums_value(&s, small) == (double)(c->nranks * ((INT64_C(1) << 40) + 5 - 4 * 3));
    assert_all(MPI_COMM_WORLD, ok);
    dt_sums_close(&s);
}

/* Neither of ranks that know nothing nor of such steps. */
TEST(means_skip_unknown_values)
{
    dt_comm *c = *state;
    dt_sums s = {0};
    const int mean = dt_sums_declare(&s, "mean", DT_SUM_MEAN, 1);
    dt_sums_show(&s, DT_SHOW_TRAIN, "mean", "mean", NULL, NULL);
    bool ok = dt_sums_settle(&s, c) == DT_OK;
    for (int step = 0; step < 3; step++) { /* the last rank knows in step 0, no rank in step 1, every rank in step 2 */
        dt_vote vote = {0};
        dt_sums_clear(&s);
        dt_sums_add(&s, mean, step == 2 || (step == 0 && c->rank == c->nranks - 1) ? 4 + step : NAN);
        ok = dt_sums_vote(&s, c, &vote) == DT_OK && vote.nonfinite == 0 && ok;
        ok = ok && (step == 1 ? isnan(dt_sums_value(&s, mean)) : dt_sums_value(&s, mean) == 4 + step);
        dt_sums_add_to_total(&s);
    }
    const double whole = (4 + 6.0 * c->nranks) / (1 + c->nranks);
    ok = ok && dt_sums_shown_of_total(&s, dt_sums_find_shown(&s, DT_SHOW_TRAIN, "mean")) == whole;
    assert_all(MPI_COMM_WORLD, ok);
    dt_sums_close(&s);
}

/* Non-finite gradients are not attributed to the loss. */
TEST(a_loss_that_one_rank_cannot_count_is_nan_on_all)
{
    dt_comm *c = *state;
    for (int k = 0; k < 2 * c->nranks; k++) {
        const int bad = k / 2, grads = (bad + 1) % c->nranks;
        const bool loss_is_bad = k % 2;
        dt_sums s = {0};
        dt_vote vote = {.nonfinite = c->rank == grads ? DT_NONFINITE_GRADS : 0};
        const int loss = dt_sums_declare(&s, "loss", DT_SUM_LOSS, 1), n = dt_sums_declare(&s, "n", DT_SUM_UNITS, 1);
        dt_sums_show(&s, DT_SHOW_TRAIN, "loss", "loss", "n", NULL);
        bool ok = dt_sums_settle(&s, c) == DT_OK;
        dt_sums_add(&s, loss, c->rank == bad && loss_is_bad ? INFINITY : 1);
        dt_sums_count(&s, n, 1);
        ok = dt_sums_vote(&s, c, &vote) == DT_OK && ok;
        const double mean = dt_sums_shown(&s, &s.shown[DT_SHOW_TRAIN][0]);
        assert_all(MPI_COMM_WORLD, ok && vote.nonfinite && (loss_is_bad ? isnan(mean) : mean == 1));
        dt_sums_close(&s);
    }
}

/* The rank with another set says which metric is the first that differs, and all ranks end together. */
/* Of the values 1 .. 3 n, three on each rank: (m^2 - 1) / 12 for m of them in a row, all of it exact in doubles up
 * to the two divisions. With no values, 0. */
TEST(variance_covers_the_values_of_all_ranks)
{
    dt_comm *c = *state;
    dt_sums s = {0};
    const int n = dt_sums_declare(&s, "n", DT_SUM_UNITS, 1), sum = dt_sums_declare(&s, "sum", DT_SUM_LOSS, 1),
              squares = dt_sums_declare(&s, "squares", DT_SUM_LOSS, 1);
    dt_sums_show_variance(&s, DT_SHOW_TRAIN, "variance", "squares", "sum", "n");
    assert_all(MPI_COMM_WORLD, dt_sums_settle(&s, c) == DT_OK);
    const dt_shown *what = dt_sums_find_shown(&s, DT_SHOW_TRAIN, "variance");
    bool ok = dt_sums_shown(&s, what) == 0;
    for (int i = 1; i <= 3; i++) {
        const double x = 3 * c->rank + i;
        dt_sums_count(&s, n, 1), dt_sums_add(&s, sum, x), dt_sums_add(&s, squares, x * x);
    }
    dt_vote vote = {0};
    ok = ok && dt_sums_vote(&s, c, &vote) == DT_OK;
    dt_sums_add_to_total(&s);
    const double m = 3 * c->nranks, expected = (m * m - 1) / 12;
    ok = ok && fabs(dt_sums_shown(&s, what) - expected) < 1e-13 * m * m;
    ok = ok && dt_sums_shown_of_total(&s, what) == dt_sums_shown(&s, what);
    dt_sums_close(&s);
    assert_all(MPI_COMM_WORLD, ok);
}

TEST(a_rank_that_counts_something_else_is_an_error_at_start)
{
    dt_comm *c = *state;
    for (int bad = 1; bad < c->nranks; bad++)
        for (int kind = 0; kind < 3; kind++) {
            dt_sums s = {0};
            declare(&s, c->rank == bad && kind == 0 ? 7 : -1);
            if (c->rank == bad && kind == 1) dt_sums_declare(&s, "sum/7b", DT_SUM_REAL, 1);
            if (c->rank == bad && kind == 2) dt_sums_show(&s, DT_SHOW_VALIDATION, "extra", "sum/7", NULL, NULL);
            dt_error_clear();
            const dt_err err = dt_sums_settle(&s, c);
            static const char *const words[] = {"metric 8 of this rank is `sum/8`",
                                                "metric 301 of this rank is `sum/7b`", "`extra` in a validation"};
            bool ok = err == DT_ERR_FAULT && dt_comm_failed_together(c);
            if (c->rank == bad) ok = ok && strstr(dt_error_message(), words[kind]) != NULL;
            if (c->rank == bad && kind == 0) ok = ok && strstr(dt_error_message(), "rank 0 has `sum/7`") != NULL;
            if (!ok) print_error("rank %d: %s\n", c->rank, dt_error_message());
            assert_all(MPI_COMM_WORLD, ok);
            dt_sums_close(&s);
        }
}

TEST(errors_in_declarations_are_reported_at_start)
{
    dt_comm *c = *state;
    for (int kind = 0; kind < 4; kind++) {
        dt_sums s = {0};
        dt_sums_declare(&s, "a", DT_SUM_REAL, 1);
        if (kind == 0) dt_sums_declare(&s, "a", DT_SUM_REAL, 1);
        if (kind == 1) dt_sums_show(&s, DT_SHOW_TRAIN, "b", "c", NULL, NULL);
        if (kind == 2) dt_sums_show(&s, DT_SHOW_TRAIN, "b", "a", "c", NULL);
        if (kind == 3)
            dt_sums_declare(&s,
                            "a name of more characters than a name of a metric may have, "
                            "even that of a benchmark with its measure",
                            DT_SUM_REAL, 1);
        assert_all(MPI_COMM_WORLD, dt_sums_settle(&s, c) == DT_ERR_ARG);
        assert_all(MPI_COMM_WORLD, strstr(dt_error_message(), "metric `") != NULL);
        dt_sums_close(&s);
        dt_error_clear();
    }
}

MPI_TEST_MAIN(open_comm_alone, close_comm_alone)
