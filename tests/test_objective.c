/* test_objective.c - the sums from which every reported loss is computed: exact, independent of order, and safe from
 * overflow in a diverging run. */
#include "cases.h"
#include "dtrain/task/task.h"

enum { N_TOK = 8 };

typedef struct counter {
    dt_sums sums;
    dt_lm_sums lm;
} counter;

/* One micro-batch whose targets have the weights and losses given. */
static void add(counter *c, const float *weight, const float *loss)
{
    static dt_ledger ledger;
    dt_batch b;
    float logp[N_TOK], entropy[N_TOK];
    uint8_t hit[N_TOK] = {0};
    assert_int_equal(dt_batch_alloc(&b, N_TOK, 1, &ledger), DT_OK);
    b.n_tok = b.seq_start[1] = N_TOK, b.n_seq = 1, b.n_samples = 1;
    for (int t = 0; t < N_TOK; t++) {
        b.weight[t] = weight[t], b.target[t] = weight[t] > 0 ? 1 : -1;
    }
    dt_batch_finish(&b);
    for (int64_t i = 0; i < b.n_target; i++) logp[i] = -loss[b.target_row[i]], entropy[i] = (float)b.target_row[i];
    const dt_predictions p = {.logp = logp, .hit = hit, .entropy = entropy};
    dt_lm_collect(&c->lm, &c->sums, &b, &p);
    dt_batch_free(&b, &ledger);
}

static void open_counter(counter *c)
{
    *c = (counter){0};
    dt_sums_declare(&c->sums, "samples", DT_SUM_UNITS, 1);
    dt_lm_declare(&c->lm, &c->sums, NULL);
    assert_int_equal(dt_sums_settle(&c->sums, NULL), DT_OK);
}

static double shown(const dt_sums *s, const char *name)
{
    return dt_sums_shown(s, dt_sums_find_shown(s, DT_SHOW_TRAIN, name));
}
static double mean_loss(const counter *c) { return shown(&c->sums, "loss"); }

TEST(the_mean_is_over_weights)
{
    const float weight[N_TOK] = {1, 0, 2, 0.5f, 1, 0, 0, 1}, loss[N_TOK] = {1, 99, 2.5f, 4, 0.125f, 99, 99, 3};
    counter c;
    open_counter(&c);
    assert_true(mean_loss(&c) == 0); /* nothing seen */
    add(&c, weight, loss);
    add(&c, weight, loss);
    assert_true(mean_loss(&c) == (1 + 5 + 2 + 0.125 + 3) / 5.5);         /* every term is exact */
    assert_true(shown(&c.sums, "entropy") == (0 + 2 + 3 + 4 + 7) / 5.0); /* over targets, whatever their weight */
    dt_sums_close(&c.sums);
}

TEST(losses_of_any_size_add_up)
{
    const float ones[N_TOK] = {1, 1, 1, 1, 1, 1, 1, 1}, heavy[N_TOK] = {1e6f, 1e6f, 1e6f, 1e6f, 1e6f, 1e6f, 1e6f, 1e6f};
    const float sizes[] = {0x1p-20f, 1, 15.5f, 16, 0x1p20f, 0x1p36f, 0x1p46f};
    counter c;
    open_counter(&c);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        float loss[N_TOK];
        for (int t = 0; t < N_TOK; t++) loss[t] = sizes[i];
        dt_sums_clear(&c.sums);
        for (int k = 0; k < 100; k++) add(&c, ones, loss);
        assert_false(c.sums.nonfinite);
        assert_true(mean_loss(&c) == (double)sizes[i]);
        if (sizes[i] > 0x1p20f) continue;
        dt_sums_clear(&c.sums);
        for (int k = 0; k < 10000; k++) add(&c, heavy, loss);
        /* 10^6 x 2^-20 is no multiple of the unit */
        assert_true(fabs(mean_loss(&c) - (double)sizes[i]) <= 1e-9 * (double)sizes[i]);
    }
    dt_sums_close(&c.sums);
}

TEST(a_nan_loss_marks_the_sums)
{
    const float ones[N_TOK] = {1, 1, 1, 1, 1, 1, 1, 1}, bad[] = {NAN, INFINITY, -INFINITY, 0x1p50f, 3e38f};
    counter c;
    open_counter(&c);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        float loss[N_TOK] = {1, 1, 1, bad[i], 1, 1, 1, 1};
        dt_sums_clear(&c.sums);
        add(&c, ones, loss);
        assert_true(c.sums.nonfinite && isnan(mean_loss(&c)));
    }
    dt_sums_close(&c.sums);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
