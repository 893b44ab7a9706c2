/* test_dpo_loss.c - the losses of preference optimisation: the worked example of algorithms.md 3, and the
 * derivatives of each with each f-divergence against finite differences. */
#include "../src/task/dpo/aot.h"
#include "near.h"

static double loss_of(const dt_dpo_loss *l, double beta, const double ratio[2], const int64_t n_tok[2], double g[2])
{
    /* log-probabilities below 0 */
    const dt_dpo_pair pair = {
        .ratio = {ratio[0], ratio[1]}, .logp = {ratio[0] - 3, ratio[1] - 3}, .n_tok = {n_tok[0], n_tok[1]}};
    return dt_dpo_loss_of(l, beta, &pair, g);
}

static dt_dpo_loss one(dt_dpo_type type, double smoothing)
{
    return (dt_dpo_loss){
        .n_types = 1, .type = {type}, .weight = {1}, .alpha = 0.5, .label_smoothing = smoothing, .tau = 0.05};
}

TEST(the_worked_example)
{
    static const struct {
        dt_dpo_type type;
        double smoothing, loss;
    } cases[] = {{DT_DPO_SIGMOID, 0, 0.554355},   {DT_DPO_HINGE, 0, 0.7},    {DT_DPO_CDPO, 0.1, 0.584355},
                 {DT_DPO_ROBUST, 0.1, 0.516855},  {DT_DPO_IPO, 0, 18.49},    {DT_DPO_NCA_PAIR, 0, 1.319407},
                 {DT_DPO_BCO_PAIR, 0, 1.242536},  {DT_DPO_SPPO_HARD, 0, 25}, {DT_DPO_APO_ZERO, 0, 0.925187},
                 {DT_DPO_EXO_PAIR, 0.1, 0.358383}};
    const double ratio[2] = {2, -1};
    const int64_t n_tok[2] = {4, 5};
    double g[2];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const dt_dpo_loss l = one(cases[i].type, cases[i].smoothing);
        assert_near(loss_of(&l, 0.1, ratio, n_tok, g), cases[i].loss, 5e-7); /* they have six digits */
    }
    const dt_dpo_loss l = one(DT_DPO_SIGMOID, 0);
    loss_of(&l, 0.1, ratio, n_tok, g);
    assert_near(g[0], -0.0425557, 5e-8);
    assert_near(g[1], 0.0425557, 5e-8);
}

/* Sums of -6 over 4 tokens and of -10 over 5; the values from the papers' formulas have six digits. */
TEST(losses_without_a_reference)
{
    static const struct {
        dt_dpo_type type;
        double alphapo, loss;
    } cases[] = {{DT_DPO_CPO, 0, 0.126928},   {DT_DPO_CPO_HINGE, 0, 0},   {DT_DPO_CPO_IPO, 0, 0.25},
                 {DT_DPO_SIMPO, 0, 0.718460}, {DT_DPO_ORPO, 0, 0.217494}, {DT_DPO_SIMPO, 0.25, 0.650373}};
    const double ratio[2] = {-3, -7};
    const int64_t n_tok[2] = {4, 5};
    double g[2];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_dpo_loss l = one(cases[i].type, 0);
        l.gamma = 0.3, l.alphapo = cases[i].alphapo;
        assert_near(loss_of(&l, 0.5, ratio, n_tok, g), cases[i].loss, 5e-7);
        assert_true(!dt_dpo_needs_reference(&l));
        const dt_dpo_pair pair = {.ratio = {1, 2}, .logp = {-6, -10}, .n_tok = {4, 5}};
        const bool sums = l.type[0] == DT_DPO_CPO || l.type[0] == DT_DPO_CPO_HINGE;
        if (l.alphapo == 0) assert_near(dt_dpo_value_of(&l, &pair, 1), sums ? -10 : -2, 1e-15);
    }
    const dt_dpo_loss sft = one(DT_DPO_SFT, 0);
    assert_true(dt_dpo_needs_reference(&sft)); /* for the rewards among the metrics */
}

TEST(a_loss_of_equals_is_log_two)
{
    const double ratio[2] = {0, 0};
    const int64_t n_tok[2] = {3, 9};
    double g[2];
    const dt_dpo_loss l = one(DT_DPO_SIGMOID, 0);
    assert_true(loss_of(&l, 0.1, ratio, n_tok, g) == log(2));
    assert_near(g[0], -0.05, 1e-15);
}

static void derivatives_of(dt_dpo_loss l, uint64_t *seed)
{
    const double h = 1e-5, beta = 0.05 + uniform(seed);
    const double ratio[2] = {4 * uniform(seed) - 2, 4 * uniform(seed) - 2};
    const int64_t n_tok[2] = {1 + (int64_t)(6 * uniform(seed)), 1 + (int64_t)(6 * uniform(seed))};
    double g[2], other[2];
    const double loss = loss_of(&l, beta, ratio, n_tok, g);
    for (int side = 0; side < 2; side++) {
        double up[2] = {ratio[0], ratio[1]}, down[2] = {ratio[0], ratio[1]};
        up[side] += h, down[side] -= h;
        const double above = loss_of(&l, beta, up, n_tok, other), below = loss_of(&l, beta, down, n_tok, other),
                     slope = (above - below) / (2 * h);
        if ((l.type[0] == DT_DPO_HINGE || l.type[0] == DT_DPO_CPO_HINGE) && fabs(above + below - 2 * loss) > 1e-9)
            return; /* its corner */
        /* h^2 / 6 times the third derivative, which is largest for discopop, (beta / tau)^3 / 8 times the loss; and
         * rounding, 1e-16 / h times the loss */
        const double third = l.type[0] == DT_DPO_DISCOPOP ? pow(beta / l.tau, 3) : 100;
        assert_near(g[side], slope, 1e-10 * (1 + third) * (1 + fabs(loss)));
    }
}

TEST(derivatives_are_differences)
{
    uint64_t seed = 5;
    for (int type = 0; type < DT_DPO_AOT; type++)
        for (int divergence = DT_REVERSE_KL; divergence <= DT_ALPHA_DIVERGENCE; divergence++)
            for (int i = 0; i < 200; i++) {
                dt_dpo_loss l = one((dt_dpo_type)type, 0.05 + 0.3 * uniform(&seed));
                l.alphapo = i % 2 ? uniform(&seed) - 0.5 : 0;
                l.gamma = uniform(&seed);
                l.divergence = (dt_divergence)divergence;
                derivatives_of(l, &seed);
            }
}

enum { N = 7 };

static int by_size(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* The loss of a set of pairs as it is defined: both lists in order, and the loss of their differences. */
static double loss_of_set(const dt_dpo_loss *l, double beta, double policy[N][2], double reference[N][2])
{
    const bool unpaired = l->type[0] == DT_DPO_AOT_UNPAIRED;
    double a[N], b[N], loss = 0;
    for (int k = 0; k < N; k++) {
        a[k] = policy[k][0] - (unpaired ? reference[k][0] : policy[k][1]);
        b[k] = (unpaired ? policy[k][1] : reference[k][0]) - reference[k][1];
    }
    qsort(a, N, sizeof *a, by_size);
    qsort(b, N, sizeof *b, by_size);
    for (int k = 0; k < N; k++) {
        const double z = beta * (a[k] - b[k]), e = l->label_smoothing;
        loss += (1 - e) * log1p(exp(-z)) + e * log1p(exp(z));
    }
    return loss;
}

static dt_dpo_pair pair_of(const dt_aot *aot, int k)
{
    const double *x = aot->number + k * DT_AOT_NUMBERS, *partner = aot->partner[k];
    return (dt_dpo_pair){.ratio = {x[0] - x[2], x[1] - x[3]},
                         .n_tok = {1, 1},
                         .logp = {x[0], x[1]},
                         .partner = {partner[0], partner[1], partner[2]}};
}

/* Central differences of sums of N smooth terms of size 1 by h = 1e-5: h^2 / 6, and 1e-16 N / h of rounding. Values
 * so close that h changes their order do not occur for this seed. */
TEST(pairs_are_compared_in_their_order)
{
    const double beta = 0.4, h = 1e-5;
    uint64_t seed = 3;
    double block[16 * (N + 2)];
    for (int type = DT_DPO_AOT; type <= DT_DPO_AOT_UNPAIRED; type++) {
        const dt_dpo_loss l = one((dt_dpo_type)type, 0.1);
        double policy[N][2], reference[N][2], loss = 0;
        dt_aot aot;
        size_t nbytes = 0;
        memset(block, 0, sizeof block);
        dt_aot_lay_out(&aot, N + 2, block, &nbytes);
        assert_true(nbytes <= sizeof block);
        for (int k = 0; k < N; k++)
            for (int side = 0; side < 2; side++) {
                policy[k][side] = aot.number[k * DT_AOT_NUMBERS + side] = -5 * uniform(&seed);
                reference[k][side] = aot.number[k * DT_AOT_NUMBERS + 2 + side] = -5 * uniform(&seed);
            }
        dt_aot_match(&aot, N + 2, N); /* a second set, of two equal pairs, does not matter to the first */
        for (int k = 0; k < N; k++) {
            double g[2];
            const dt_dpo_pair pair = pair_of(&aot, k);
            loss += dt_dpo_loss_of(&l, beta, &pair, g);
            for (int side = 0; side < 2; side++) {
                const double here = policy[k][side];
                policy[k][side] = here + h;
                const double above = loss_of_set(&l, beta, policy, reference);
                policy[k][side] = here - h;
                const double slope = (above - loss_of_set(&l, beta, policy, reference)) / (2 * h);
                policy[k][side] = here;
                assert_near(g[side], slope, 1e-9);
            }
        }
        assert_near(loss, loss_of_set(&l, beta, policy, reference), 1e-14);
        assert_true(aot.partner[N][0] == 0 && aot.partner[N + 1][1] == 0);
    }
}

TEST(losses_are_added_with_their_weights)
{
    const double ratio[2] = {0.7, -0.3};
    const int64_t n_tok[2] = {4, 5};
    double a[2], b[2], both[2];
    const dt_dpo_loss first = one(DT_DPO_SIGMOID, 0), second = one(DT_DPO_BCO_PAIR, 0);
    const dt_dpo_loss l = {
        .n_types = 3, .type = {DT_DPO_SIGMOID, DT_DPO_BCO_PAIR, DT_DPO_SFT}, .weight = {0.8, 0.2, 1}, .tau = 0.05};
    const double expected = 0.8 * loss_of(&first, 0.1, ratio, n_tok, a) + 0.2 * loss_of(&second, 0.1, ratio, n_tok, b);
    assert_near(loss_of(&l, 0.1, ratio, n_tok, both), expected, 1e-15);
    for (int side = 0; side < 2; side++) assert_near(both[side], 0.8 * a[side] + 0.2 * b[side], 1e-15);
    assert_true(dt_dpo_weight(&l, DT_DPO_SFT) == 1 && dt_dpo_weight(&l, DT_DPO_IPO) == 0);
}

/* tau = 0.5: the two parts of the loss have the shares 1 - sigmoid(z / tau) and sigmoid(z / tau). */
TEST(the_temperature_of_discopop_is_a_key)
{
    const dt_config cfg = {.dpo_loss_type = (char *)"discopop",
                           .dpo_loss_weights = (char *)"",
                           .dpo_f_divergence = (char *)"reverse_kl",
                           .dpo_cpo_alpha = (char *)"",
                           .dpo_sft_on_prompt = (char *)"auto",
                           .dpo_discopop_tau = 0.5};
    const double ratio[2] = {0.7, -0.3}, z = 0.1 * (ratio[0] - ratio[1]), share = 1 / (1 + exp(-z / 0.5));
    const int64_t n_tok[2] = {4, 5};
    double g[2];
    dt_dpo_loss l;
    assert_int_equal(dt_dpo_loss_make(&l, &cfg), DT_OK);
    assert_near(loss_of(&l, 0.1, ratio, n_tok, g), (1 - share) * log1p(exp(-z)) + share * exp(-z), 1e-15);
}

TEST(large_ratios_do_not_overflow)
{
    const double ratio[2] = {-3e4, 3e4};
    const int64_t n_tok[2] = {4, 5};
    double g[2];
    for (int type = 0; type < DT_DPO_SFT; type++) {
        if (type == DT_DPO_DISCOPOP) continue; /* e^-z by its definition */
        dt_dpo_loss l = one((dt_dpo_type)type, 0.1);
        assert_true(isfinite(loss_of(&l, 0.1, ratio, n_tok, g)) && isfinite(g[0]) && isfinite(g[1]));
    }
}

int main(void) { return run_listed(NULL, NULL, NULL); }
