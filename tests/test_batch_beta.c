/* test_batch_beta.c - the beta of a step: which pairs are drawn, what moves the usual margin, and what does not. (A
 * plain loop of whole runs is in tests/data/dpo/batch.txt.) */
#include "cases.h"
#include "../src/task/dpo/batch_beta.h"

static const dt_batch_beta usual = {.beta = 0.1, .w = 0.6, .keep = 0.5, .momentum = 0.9, .seed = 7};

enum { BLOCK = 256 };

static dt_batch_beta open_beta(int64_t n_pairs, const double *gap, void *block)
{
    dt_batch_beta b = usual;
    size_t nbytes = 0;
    dt_batch_beta_lay_out(&b, n_pairs, block, &nbytes);
    assert_true(nbytes <= BLOCK);
    for (int64_t k = 0; k < n_pairs; k++) b.gap[k] = gap[k];
    return b;
}

/* Of two pairs one is kept, the first with probability w_0 / (w_0 + w_1). N draws: within five standard deviations. */
TEST(pairs_are_drawn_by_their_weights)
{
    enum { N = 20000 };
    const double gap[2] = {0, 1.5};
    double block[BLOCK / sizeof(double)];
    dt_batch_beta b = open_beta(2, gap, block);
    int n_first = 0;
    b.momentum = 1;
    b.state = (dt_gap_state){.mean = 0.2, .deviation = 0.8, .n_steps = 1};
    for (int i = 0; i < N; i++) {
        dt_batch_beta_find(&b, 2, 2 * i);
        assert_true(b.part[0] + b.part[1] == 2 && b.part[0] * b.part[1] == 0 && b.share_kept == 0.5);
        n_first += b.part[0] > 0;
        const double kept = b.part[0] > 0 ? gap[0] : gap[1];
        assert_true(b.value == fmax(0.1 * (1 + 0.6 * (kept - 0.2)), 1e-3));
    }
    const double w0 = exp(-0.5 * pow(0.2 / 0.8, 2)), w1 = exp(-0.5 * pow(1.3 / 0.8, 2)), p = w0 / (w0 + w1);
    assert_true(fabs(n_first - N * p) < 5 * sqrt(N * p * (1 - p)));
}

TEST(a_step_that_is_left_out_changes_nothing)
{
    const double gap[4] = {1, 2, 3, 6};
    double block[BLOCK / sizeof(double)];
    dt_batch_beta b = open_beta(4, gap, block);
    dt_batch_beta_find(&b, 4, 0);
    assert_true(b.state.n_steps == 0 && b.next.mean == 3);
    assert_true(fabs(b.next.deviation - sqrt(14.0 / 3)) < 1e-15 * 8); /* a few roundings */
    dt_batch_beta_keep(&b);
    b.gap[3] = 10;
    dt_batch_beta_find(&b, 4, 4);
    assert_true(b.state.mean == 3 && fabs(b.next.mean - (0.9 * 3 + 0.1 * 4)) < 1e-15 * 8);
}

TEST(non_finite_values_change_no_state)
{
    const double gap[3] = {1, INFINITY, 2};
    double block[BLOCK / sizeof(double)];
    dt_batch_beta b = open_beta(3, gap, block);
    b.state = (dt_gap_state){.mean = 0.5, .deviation = 2, .n_steps = 3};
    dt_batch_beta_find(&b, 3, 0);
    dt_batch_beta_keep(&b);
    assert_true(b.value == 0.1 && b.part[0] == 1 && b.part[1] == 1 && b.part[2] == 1);
    assert_true(b.state.mean == 0.5 && b.state.deviation == 2 && b.state.n_steps == 3);
}

/* The last step of an epoch may have but one pair. */
TEST(a_single_pair_is_kept)
{
    const double gap[1] = {4};
    double block[BLOCK / sizeof(double)];
    dt_batch_beta b = open_beta(1, gap, block);
    dt_batch_beta_find(&b, 1, 0);
    assert_true(b.part[0] == 1 && b.value == 0.1 && b.next.mean == 4 && b.next.deviation == 0);
}

TEST(a_checkpoint_has_the_usual_margin_to_the_bit)
{
    dt_named_arrays items = {0};
    dt_batch_beta b = usual, back = usual, without = usual;
    dt_task saved = {0}, resumed = {0}, other = {0};
    dt_batch_beta_store(&b, &saved), dt_batch_beta_store(&back, &resumed), dt_batch_beta_store(&without, &other);
    b.state = (dt_gap_state){.mean = 1.0 / 3, .deviation = 2.0 / 7, .n_steps = 11};
    assert_int_equal(dt_task_load_state(&other, &items), DT_OK);
    assert_int_equal(dt_task_save_state(&saved, &items), DT_OK);
    assert_int_equal(dt_task_load_state(&resumed, &items), DT_OK);
    assert_true(without.state.n_steps == 0);
    assert_true(back.state.mean == b.state.mean && back.state.deviation == b.state.deviation &&
                back.state.n_steps == 11);
    dt_named_arrays_free(&items);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
