/* test_data_best_fit.c - packing against a search through all rows, and on a million documents. */
#include "cases.h"
#include "../src/data/samples/best_fit.h"

static uint64_t rng_state = 1;
static uint32_t draw(uint32_t n) { return (uint32_t)(dt_mix64(rng_state++) % n); }

/* row_of by the definition: the longest first (the earlier of equals), the fullest row that fits (the lowest of
 * equals). */
static int64_t pack_naively(const uint32_t *len, int64_t n, uint32_t capacity, int64_t *row_of)
{
    uint32_t *space = calloc((size_t)n + 1, sizeof *space);
    bool *done = calloc((size_t)n + 1, sizeof *done);
    int64_t n_rows = 0;
    for (int64_t turn = 0; turn < n; turn++) {
        int64_t item = -1, row = -1;
        for (int64_t i = 0; i < n; i++)
            if (!done[i] && (item < 0 || len[i] > len[item])) item = i;
        for (int64_t r = 0; r < n_rows; r++)
            if (space[r] >= len[item] && (row < 0 || space[r] < space[row])) row = r;
        if (row < 0) space[row = n_rows++] = capacity;
        space[row] -= len[item];
        done[item] = true;
        row_of[item] = row;
    }
    free(space);
    free(done);
    return n_rows;
}

static void check(const uint32_t *len, int64_t n, uint32_t capacity)
{
    int64_t *want = calloc((size_t)n + 1, sizeof *want);
    const int64_t n_rows = pack_naively(len, n, capacity, want);
    dt_row_list p;
    assert_int_equal(dt_best_fit(&p, len, n, capacity), DT_OK);
    assert_int_equal(p.n_rows, n_rows);
    assert_int_equal(p.row_start[0], 0);
    assert_int_equal(p.row_start[p.n_rows], n);
    for (int64_t r = 0; r < p.n_rows; r++)
        for (int64_t k = p.row_start[r]; k < p.row_start[r + 1]; k++) {
            assert_int_equal(want[p.item[k]], r);
            want[p.item[k]] = -1; /* no piece twice */
            if (k > p.row_start[r])
                assert_true(len[p.item[k - 1]] > len[p.item[k]] ||
                            (len[p.item[k - 1]] == len[p.item[k]] && p.item[k - 1] < p.item[k]));
        }
    dt_row_list_free(&p);
    free(want);
}

TEST(packing_is_best_fit_decreasing)
{
    uint32_t len[300];
    const uint32_t capacities[] = {1, 2, 7, 63, 64, 65, 100, 4096, 4097, 100000};
    for (size_t c = 0; c < sizeof capacities / sizeof capacities[0]; c++)
        for (int64_t n = 0; n <= 300; n = n < 4 ? n + 1 : n * 4 > 300 && n < 300 ? 300 : n * 4)
            for (int kind = 0; kind < 3; kind++) {
                for (int64_t i = 0; i < n; i++) {
                    const uint32_t most = kind == 0 ? capacities[c] : capacities[c] / (kind == 1 ? 3 : 20) + 1;
                    len[i] = 1 + draw(most < capacities[c] ? most : capacities[c]);
                }
                check(len, n, capacities[c]);
            }
}

TEST(a_million_documents_are_packed_quickly)
{
    enum { N = 1000000, T = 2048 };
    uint32_t *len = malloc(N * sizeof *len);
    int64_t total = 0;
    for (int i = 0; i < N; i++) total += len[i] = 1 + draw(1 + draw(T));
    dt_row_list p;
    const double start = dt_now_s();
    assert_int_equal(dt_best_fit(&p, len, N, T), DT_OK);
    const double seconds = dt_now_s() - start;
    print_message("%d documents in %lld rows, %.1f %% full, %.3f s\n", N, (long long)p.n_rows,
                  100.0 * (double)total / ((double)p.n_rows * T), seconds);
    assert_true((double)total > 0.95 * (double)p.n_rows * T);
    assert_true(seconds < 20); /* far from quadratic, even under valgrind */
    dt_row_list_free(&p);
    free(len);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
