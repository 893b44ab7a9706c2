/* test_grpo_loss.c - the losses of group-relative policy optimisation: the worked example of algorithms.md 5.3,
 * values of plain loops over their formulas, and the derivatives of each, with every option, against finite
 * differences. */
#include "../src/task/grpo/grpo_loss.h"
#include "near.h"

enum { MOST = 9 };

static dt_grpo_loss usual(dt_grpo_type type)
{
    return (dt_grpo_loss){.type = type,
                          .epsilon = 0.2,
                          .epsilon_high = type == DT_CISPO ? 1.1 : 0.28,
                          .delta = INFINITY,
                          .sapo_temperature_pos = 1,
                          .sapo_temperature_neg = 1.05,
                          .vespo_k_pos = 2,
                          .vespo_lambda_pos = 3,
                          .vespo_k_neg = 3,
                          .vespo_lambda_neg = 2,
                          .off_policy_mask_threshold = INFINITY,
                          .max_completion_length = 8};
}

/* ---- normalisers ------------------------------------------------------------------------------------------------- */

TEST(the_worked_example)
{
    static const struct {
        dt_grpo_type type;
        double loss;
    } cases[] = {{DT_GRPO, 0.875},     {DT_SAPO, 0.875}, {DT_DAPO, 0.833333},  {DT_CISPO, 0.833333},
                 {DT_VESPO, 0.833333}, {DT_BNPO, 0.625}, {DT_DR_GRPO, 0.3125}, {DT_LUSPO, 2.5}};
    const dt_grpo_counts counts = {.n_completions = 2, .n_tokens = 6, .n_micro = 2, .n_micro_tokens = 4};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const dt_grpo_loss l = usual(cases[i].type);
        /* token losses (1, 1) and (0, 0, 0, 3); bnpo: as if both were in micro-batches of four tokens */
        const double loss = 2 * dt_grpo_kappa(&l, 2, &counts) + 3 * dt_grpo_kappa(&l, 4, &counts);
        assert_near(loss, cases[i].loss, 5e-7);
    }
}

TEST(masked_completions_have_zero_weight)
{
    const dt_grpo_counts none = {.n_completions = 2};
    for (int type = 0; type < DT_N_GRPO_TYPES; type++) {
        dt_grpo_loss l = usual((dt_grpo_type)type);
        for (int level = 0; level < 2; level++) {
            const dt_grpo_completion y = {.n = 0, .advantage = 1};
            dt_grpo_result r;
            l.sequence_level = level;
            const double kappa = dt_grpo_kappa(&l, 0, &none);
            assert_true(isfinite(kappa));
            assert_true(dt_grpo_loss_of(&l, &y, kappa, NULL, &r) == 0);
            assert_true(r.n_ratios == level && r.n_low == 0 && r.n_high == 0 && r.kl == 0);
        }
    }
}

TEST(k3_of_the_worked_example)
{
    const float logp[] = {-1, -1, -1}, ref[] = {-1, -0.5f, -1.5f};
    const double k3[] = {0, 0.148721, 0.106531};
    dt_grpo_loss l = usual(DT_DAPO);
    l.beta = 1;
    for (int i = 0; i < 3; i++) {
        const dt_grpo_completion y = {.n = 1, .logp = logp + i, .ref = ref + i};
        dt_grpo_result r;
        assert_near(dt_grpo_loss_of(&l, &y, 1, NULL, &r), k3[i], 5e-7);
        assert_near(r.kl, k3[i], 5e-7);
    }
}

/* ---- plain loops ------------------------------------------------------------------------------------------------- */

/* A completion in double precision; `still` is what a stop-gradient sees. */
typedef struct plain {
    const dt_grpo_loss *l;
    int n;
    double advantage, logp[MOST], still[MOST], old[MOST], ref[MOST], entropy[MOST];
    double entropy_least;
    float advantages[MOST];
    bool of_tokens;
} plain;

static double ratio_at(const plain *p, const double *logp, int t)
{
    double mean = 0;
    if (!p->l->sequence_level && !p->l->product) return exp(logp[t] - p->old[t]);
    for (int i = 0; i < p->n; i++) mean += (logp[i] - p->old[i]) / p->n;
    return exp(p->l->product ? p->n * mean : mean);
}

static double phi_of(const plain *p)
{
    const dt_grpo_loss *l = p->l;
    const bool pos = p->advantage >= 0;
    const double k = pos ? l->vespo_k_pos : l->vespo_k_neg, lambda = pos ? l->vespo_lambda_pos : l->vespo_lambda_neg;
    double w = 1;
    for (int i = 0; i < p->n; i++) w *= exp(p->still[i] - p->old[i]);
    return exp(lambda) * pow(w, k) * exp(-lambda * w);
}

static double policy_at(const plain *p, int t)
{
    const dt_grpo_loss *l = p->l;
    const double a = p->of_tokens ? (double)p->advantages[t] : p->advantage, c = ratio_at(p, p->logp, t),
                 still = ratio_at(p, p->still, t);
    if (l->type == DT_CISPO) return -(still < l->epsilon_high ? still : l->epsilon_high) * a * p->logp[t];
    if (l->type == DT_VESPO) return -phi_of(p) * a * p->logp[t];
    if (l->type == DT_SAPO) {
        const double tau = a > 0 ? l->sapo_temperature_pos : l->sapo_temperature_neg;
        return -4 / tau / (1 + exp(-tau * (c - 1))) * a;
    }
    const double bounded = c < l->delta ? c : l->delta;
    const double within = c < 1 - l->epsilon ? 1 - l->epsilon : c > 1 + l->epsilon_high ? 1 + l->epsilon_high : c;
    return bounded * a < within * a ? -bounded * a : -within * a;
}

static double kl_at(const plain *p, int t)
{
    const double d = p->ref[t] - p->logp[t], k = p->l->k2 ? d * d / 2 : exp(d) - 1 - d;
    return p->l->use_bias_correction_kl ? k * ratio_at(p, p->logp, t) : k;
}

static bool is_left_out(const plain *p)
{
    double mean = 0;
    for (int i = 0; i < p->n; i++) mean += (p->old[i] - p->still[i]) / p->n;
    return p->advantage < 0 && mean > p->l->off_policy_mask_threshold;
}

static double loss_of(const plain *p)
{
    double loss = 0;
    for (int t = 0; t < p->n; t++) {
        if (p->entropy[t] >= p->entropy_least && !is_left_out(p)) loss += policy_at(p, t);
        loss += p->l->beta * kl_at(p, t);
    }
    return loss;
}

/* Ratios from 0.45 to 2.2, some of them in each of the ranges; none is at a bound. */
static void draw(plain *p, uint64_t *seed)
{
    p->n = 1 + (int)(uniform(seed) * MOST);
    p->advantage = 4 * uniform(seed) - 2;
    for (int i = 0; i < p->n; i++) {
        p->logp[i] = p->still[i] = (float)(-3 * uniform(seed) - 0.01);
        p->old[i] = (float)(p->logp[i] + 1.6 * uniform(seed) - 0.8);
        p->ref[i] = (float)(p->logp[i] + 2 * uniform(seed) - 1);
        p->entropy[i] = (float)(3 * uniform(seed));
        p->advantages[i] = (float)(4 * uniform(seed) - 2);
    }
}

static double slope(plain *p, int t)
{
    const double h = 1e-5, at = p->logp[t];
    p->logp[t] = at + h;
    const double above = loss_of(p);
    p->logp[t] = at - h;
    const double below = loss_of(p);
    p->logp[t] = at;
    return (above - below) / (2 * h);
}

/* 0 is a bound of ratios that the differences would step over. */
static bool is_at_a_bound(const plain *p)
{
    const double bound[] = {1 - p->l->epsilon, 1 + p->l->epsilon_high, p->l->delta, p->l->epsilon_high};
    for (int t = 0; t < p->n; t++)
        for (int i = 0; i < 4; i++)
            if (fabs(ratio_at(p, p->logp, t) - bound[i]) < 1e-4) return true;
    return false;
}

static void compare(plain *p)
{
    enum { KAPPA_INVERSE = 7 };
    float logp[MOST], old[MOST], ref[MOST], entropy[MOST], u[MOST];
    for (int i = 0; i < p->n; i++) {
        logp[i] = (float)p->logp[i], old[i] = (float)p->old[i];
        ref[i] = (float)p->ref[i], entropy[i] = (float)p->entropy[i];
    }
    const dt_grpo_completion y = {.n = p->n,
                                  .advantage = p->advantage,
                                  .advantages = p->of_tokens ? p->advantages : NULL,
                                  .logp = logp,
                                  .old = old,
                                  .ref = p->l->beta > 0 ? ref : NULL,
                                  .entropy = entropy,
                                  .entropy_least = (float)p->entropy_least};
    dt_grpo_result r;
    const double loss = dt_grpo_loss_of(p->l, &y, 1.0 / KAPPA_INVERSE, u, &r);
    assert_near(loss, loss_of(p) / KAPPA_INVERSE, 1e-12 * (1 + fabs(loss)));
    if (is_at_a_bound(p)) return;
    /* differences: rounding 2e-16 / 1e-5 of a loss, and a third derivative below 1000 (or 20 c) times 1e-10 / 6; u is
     * fp32 */
    for (int t = 0; t < p->n; t++) {
        const double expected = -slope(p, t) / KAPPA_INVERSE;
        assert_near((double)u[t], expected, 2e-8 * (1 + fabs(loss)) + 2e-7 * fabs(expected));
    }
}

TEST(every_loss_and_option)
{
    uint64_t seed = 1;
    for (int type = 0; type < DT_N_GRPO_TYPES; type++)
        for (int option = 0; option < 256; option++) {
            dt_grpo_loss l = usual((dt_grpo_type)type);
            plain p = {.l = &l, .entropy_least = option & 16 ? 1 : 0};
            l.sequence_level = option & 1 && !(option & 64);
            l.product = option & 1 && option & 64;
            l.k2 = p.of_tokens = option & 128;
            l.beta = option & 2 ? 0.3 : 0;
            l.use_bias_correction_kl = option & 4;
            if (option & 8) l.delta = option & 1 ? 1.2 : 1.5; /* below and above the other bound */
            if (option & 32) l.off_policy_mask_threshold = 0.1;
            for (int i = 0; i < 20; i++) {
                draw(&p, &seed);
                compare(&p);
            }
        }
}

/* ---- counters
 * ------------------------------------------------------------------------------------------------------- */

TEST(clipped_ratios_are_counted)
{
    const float logp[] = {-1, -1, -1, -1}, old[] = {-1, -1.4f, -0.6f, -1.2f}; /* ratios 1, 1.49, 0.67, 1.22 */
    dt_grpo_completion y = {.n = 4, .advantage = 1, .logp = logp, .old = old};
    dt_grpo_loss l = usual(DT_DAPO);
    dt_grpo_result r;
    dt_grpo_loss_of(&l, &y, 1, NULL, &r);
    assert_true(r.n_ratios == 4 && r.n_high == 1 && r.n_low == 0);
    y.advantage = -1;
    dt_grpo_loss_of(&l, &y, 1, NULL, &r);
    assert_true(r.n_high == 0 && r.n_low == 1);
    l.sequence_level = true; /* one ratio, e^0.05 */
    dt_grpo_loss_of(&l, &y, 1, NULL, &r);
    assert_true(r.n_ratios == 1 && r.n_low == 0);
    l = usual(DT_CISPO);
    y.advantage = 1;
    dt_grpo_loss_of(&l, &y, 1, NULL, &r);
    assert_true(r.n_ratios == 4 && r.n_high == 2 && r.n_low == 0);
}

TEST(without_old_probabilities_the_ratio_is_1)
{
    const float logp[] = {-1.5f, -0.25f, -3};
    for (int type = 0; type < DT_N_GRPO_TYPES; type++)
        for (int level = 0; level < 2; level++) {
            dt_grpo_loss l = usual((dt_grpo_type)type);
            dt_grpo_completion y = {.n = 3, .advantage = -0.7, .logp = logp}, same = y;
            float u[3], expected[3];
            dt_grpo_result r;
            l.sequence_level = level;
            same.old = logp;
            const double loss = dt_grpo_loss_of(&l, &y, 1, u, &r);
            assert_true(loss == dt_grpo_loss_of(&l, &same, 1, expected, &r));
            for (int t = 0; t < 3; t++) {
                assert_true(u[t] == expected[t]);
                /* every loss of them has the gradient of the plain policy gradient there */
                assert_near((double)u[t], -0.7, 1e-7);
            }
        }
}

int main(void) { return run_listed(NULL, NULL, NULL); }
