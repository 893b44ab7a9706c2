/* test_sid.c - parts of dtrain-sid that need no ranks: assignments of given sizes against all there are, plans of
 * Sinkhorn's against the long way round, groups of items that collide, the header of a .npy file. */
#include "cases.h"
#include <float.h>
#include "dtrain/recommend/sid.h"

static void random_costs(uint64_t key, int64_t n, float *cost)
{
    dt_rng_uniform(key, 0, 0, n, 1, cost);
    for (int64_t i = 0; i < n; i++) cost[i] = cost[i] * cost[i] * 4;
}

/* ---- assignment -------------------------------------------------------------------------------------------------- */

/* The least cost of items i .. n-1 with the places that are left. */
static double cheapest(const float *cost, int64_t i, int64_t n, int64_t K, int64_t *left)
{
    double best = i == n ? 0 : INFINITY;
    for (int64_t k = 0; k < K && i < n; k++) {
        if (left[k] == 0) continue;
        left[k]--;
        best = fmin(best, cost[i * K + k] + cheapest(cost, i + 1, n, K, left));
        left[k]++;
    }
    return best;
}

/* Sizes as asked for, and the sum of costs. */
static double check_assignment(const float *cost, int64_t n, int64_t K, const int64_t *size, double precision)
{
    int32_t code[64];
    int64_t count[16] = {0};
    double sum = 0;
    assert_true(n <= 64 && K <= 16);
    assert_int_equal(dt_sid_assign(cost, n, K, size, precision, code), DT_OK);
    for (int64_t i = 0; i < n; i++) {
        count[code[i]]++;
        sum += cost[i * K + code[i]];
    }
    assert_memory_equal(count, size, (size_t)K * sizeof *count);
    return sum;
}

TEST(assignments_are_the_cheapest_of_their_sizes)
{
    static const int64_t sizes[][3] = {{3, 3, 3}, {4, 3, 2}, {9, 0, 0}, {0, 1, 8}, {1, 4, 4}};
    const double precision = 1e-4, largest = 4;
    for (uint64_t t = 0; t < 40; t++) {
        const int64_t n = 9, K = 3, *size = sizes[t % 5];
        float cost[27];
        int64_t left[3];
        random_costs(t, n * K, cost);
        for (int64_t i = 1; i < n && t % 4 == 0; i++) memcpy(cost + i * K, cost, 3 * sizeof *cost); /* equal items */
        const double sum = check_assignment(cost, n, K, size, precision);
        memcpy(left, size, sizeof left);
        assert_true(sum - cheapest(cost, 0, n, K, left) <= fmax(precision * sum, (double)n * 0x1p-30 * largest));
    }
}

/* Nearest codes that cost nothing, and one item too many for them: what a war of bids is about is all of the cost. */
TEST(items_that_lie_on_codes_are_assigned)
{
    static const float one_moves[] = {0, 1, 0, 1, 0, 1, 1, 0}, zeros[8] = {0};
    assert_true(check_assignment(one_moves, 4, 2, (int64_t[]){2, 2}, 1e-3) == 1);
    assert_true(check_assignment(zeros, 4, 2, (int64_t[]){1, 3}, 1e-3) == 0);
}

/* Sixteen codes near four tight clusters of sixteen items. With four codes at each, all items are near; with five and
 * three, four items must go far. */
TEST(tight_clusters_are_assigned)
{
    enum { N = 64, K = 16 };
    int64_t size[K];
    float cost[N * K], near[N * K];
    random_costs(3, N * K, near);
    for (int64_t k = 0; k < K; k++) size[k] = N / K;
    for (int uneven = 0; uneven < 2; uneven++) {
        for (int i = 0; i < N; i++)
            for (int k = 0; k < K; k++) {
                const int cluster = k == 4 ? 1 - uneven : k / 4; /* the fifth code is the first cluster's */
                cost[i * K + k] = (cluster == i / 16 ? 0 : 1) + 1e-8f * near[i * K + k];
            }
        /* 64 items of 4e-8 at most; 1.0 is rounded to 6e-8 */
        assert_true(fabs(check_assignment(cost, N, K, size, 1e-3) - 4 * uneven) <= uneven * 4e-3 + N * 4e-8 + 4 * 6e-8);
    }
}

TEST(assignments_with_other_item_counts_are_refused)
{
    const float cost[6] = {0};
    int32_t code[3];
    assert_int_equal(dt_sid_assign(cost, 3, 2, (int64_t[]){1, 1}, 1, code), DT_ERR_ARG);
    assert_int_equal(dt_sid_assign(cost, 3, 2, (int64_t[]){2, 2}, 1, code), DT_ERR_ARG);
    assert_int_equal(dt_sid_assign((float[]){INFINITY, 1}, 2, 1, (int64_t[]){2}, 1, code), DT_ERR_NONFINITE);
    assert_fails(dt_sid_assign((float[]){1, NAN, 2}, 3, 1, (int64_t[]){3}, 1, code), DT_ERR_NONFINITE, "");
}

/* ---- Sinkhorn ---------------------------------------------------------------------------------------------------- */

/* In logarithms, by which nothing underflows: rows to 1/n, then columns to 1/K. */
static void plan_in_logarithms(const float *cost, int n, int K, double epsilon, int iterations, double *q)
{
    double least = INFINITY, most = -INFINITY;
    for (int i = 0; i < n * K; i++) least = fmin(least, cost[i]), most = fmax(most, cost[i]);
    const double middle = (least + most) / 2, amplitude = most - middle + 1e-5;
    for (int i = 0; i < n * K; i++) q[i] = -(cost[i] - middle) / amplitude / epsilon;
    for (int t = 0; t < 2 * iterations; t++) {
        const int lines = t % 2 == 0 ? n : K, others = t % 2 == 0 ? K : n;
        for (int i = 0; i < lines; i++) {
            double top = -INFINITY, sum = 0;
            for (int j = 0; j < others; j++) top = fmax(top, t % 2 == 0 ? q[i * K + j] : q[j * K + i]);
            for (int j = 0; j < others; j++) sum += exp((t % 2 == 0 ? q[i * K + j] : q[j * K + i]) - top);
            const double off = top + log(sum) + log(lines);
            for (int j = 0; j < others; j++) *(t % 2 == 0 ? &q[i * K + j] : &q[j * K + i]) -= off;
        }
    }
    for (int i = 0; i < n * K; i++) q[i] = exp(q[i]) * n;
}

TEST(plans_are_those_in_logarithms_and_columns_are_even)
{
    enum { N = 6, K = 5 };
    static const double epsilons[] = {1, 0.1, 0.003};
    for (uint64_t t = 0; t < 12; t++) {
        float cost[N * K];
        double q[N * K], expected[N * K];
        random_costs(100 + t, N * K, cost);
        dt_sid_sinkhorn_plan(cost, N, K, epsilons[t % 3], 50, q);
        plan_in_logarithms(cost, N, K, epsilons[t % 3], 50, expected);
        for (int k = 0; k < K; k++) {
            double column = 0;
            for (int i = 0; i < N; i++) {
                column += q[i * K + k];
                /* a hundred divisions each way; exponents up to 667, whose last bits are 1e-13 of a weight */
                assert_true(fabs(q[i * K + k] - expected[i * K + k]) <= 1e-10 * (1 + fabs(expected[i * K + k])));
            }
            assert_true(fabs(column - (double)N / K) <= 1e-12 * N);
        }
    }
}

TEST(a_plan_without_underflow_matches_both_marginals)
{
    enum { N = 8, K = 4 };
    float cost[N * K];
    double q[N * K];
    random_costs(7, N * K, cost);
    dt_sid_sinkhorn_plan(cost, N, K, 0.5, 500, q);
    for (int i = 0; i < N; i++) {
        double row = 0;
        for (int k = 0; k < K; k++) row += q[i * K + k];
        assert_true(fabs(row - 1) <= 1e-10); /* converged: it does so by a factor of 2 or more each time */
    }
}

/* The second column of two equal items is exp(-2/epsilon) of the first, here from 1e-300 down to nothing. Its
 * remainder in denormal numbers grows by a factor of 2 with each pair of divisions, and is even at the end. */
TEST(columns_that_underflow_leave_the_others_even)
{
    static const float cost[] = {0, 1, 0, 1};
    int n_under = 0;
    for (int i = 690; i < 760; i++) {
        double q[4];
        dt_sid_sinkhorn_plan(cost, 2, 2, 2.0 / i, 50, q);
        for (int k = 0; k < 2; k++) {
            const double column = q[k] + q[2 + k];
            const bool under = column < 2 * DBL_MIN;
            n_under += under;
            assert_true((under && k == 1) || fabs(column - 1) <= 1e-12);
        }
    }
    assert_true(n_under > 0 && n_under < 70); /* both were met */
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

TEST(groups_are_the_items_that_share_all_codes)
{
    int32_t a[] = {1, 0, 1, 1, 0, 2, 1}, b[] = {3, 3, 3, 2, 3, 0, 3};
    int32_t *const code[] = {a, b};
    static const int64_t items[] = {1, 4, 0, 2, 6};
    dt_sid_groups g;
    int64_t n_distinct;
    assert_int_equal(dt_sid_group(code, 2, 7, &g, &n_distinct), DT_OK);
    assert_int_equal(n_distinct, 4);
    assert_int_equal(g.n_groups, 2);
    assert_int_equal(g.n_items, 5);
    assert_memory_equal(g.item, items, sizeof items);
    assert_int_equal(g.start[1], 2);
    assert_int_equal(g.start[2], 5);
    dt_sid_groups_free(&g);
}

TEST(perplexity_of_uniform_use_is_the_number_of_codes)
{
    const int32_t even[] = {0, 3, 5, 0, 3, 5}, one[] = {2, 2};
    dt_sid_use use;
    assert_int_equal(dt_sid_count_use(even, 6, 8, &use), DT_OK);
    assert_true(fabs(use.perplexity - 3) < 1e-12 && use.n_used == 3 && use.largest == 2);
    assert_int_equal(dt_sid_count_use(one, 2, 8, &use), DT_OK);
    assert_true(use.perplexity == 1 && use.n_used == 1 && use.largest == 2);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

TEST(a_npy_file_of_ours_is_read_back)
{
    char path[] = "/tmp/dtrain_sid_XXXXXX", header[DT_NPY_HEADER];
    const float rows[6] = {1, -2, 3.5f, 4, 0, 1e-30f};
    float back[4];
    dt_matrix_file r = {0};
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    dt_npy_header(3, 2, header);
    assert_int_equal(write(fd, header, sizeof header), sizeof header);
    assert_int_equal(write(fd, rows, sizeof rows), sizeof rows);
    close(fd);
    assert_int_equal(dt_matrix_file_open(&r, path, NULL), DT_OK);
    assert_int_equal(r.n, 3);
    assert_int_equal(r.width, 2);
    assert_int_equal(dt_matrix_file_read(&r, 1, 2, back), DT_OK);
    assert_memory_equal(back, rows + 2, sizeof back);
    assert_fails(dt_matrix_file_read(&r, 2, 2, back), DT_ERR_ARG, "");
    dt_matrix_file_close(&r);
    unlink(path);
}

TEST(lists_that_python_has_written_are_read_but_in_titles)
{
    static const char file[] =
        "{\"0\": {\"title\": \"[7]\", \"description\": \"['A pipe.', '', \\\"Bob's\\\"]\"},\"1\": {\"title\": \"b\", "
        "\"description\": \"[]\"},\"2\": {\"title\": \"c\", \"description\": [\"d\", \"e\"]},\"3\": {\"title\": \"f\", "
        "\"description\": \"[none] of it\"}}";
    static const char *const texts[] = {"[7] A pipe. Bob's", "b", "c d e", "f [none] of it"};
    char path[] = "/tmp/dtrain_sid_XXXXXX";
    dt_sid_items items = {0};
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, file, sizeof file - 1), sizeof file - 1);
    close(fd);
    if (dt_sid_items_read(&items, path) != DT_OK) fail_msg("%s", dt_error_message());
    for (int64_t i = 0; i < 4; i++) {
        char *text = dt_sid_item_text(&items, i, (const char *const[]){"title", "description"}, 2);
        assert_string_equal(text, texts[i]);
        free(text);
    }
    dt_sid_items_free(&items);
    unlink(path);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
