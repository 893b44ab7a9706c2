/* grpo_loss.c - the policy term is a function of the ratio, or (cispo, vespo) a constant weight times the
 * log-probability. In both cases the derivative by a log-probability is one value per token. With a sequence-level
 * ratio, all tokens share an additional term. */
#include "grpo_loss.h"
#include "../pair_loss.h"
#include <math.h>

const char *const dt_grpo_type_names[DT_N_GRPO_TYPES] = {"grpo",  "bnpo", "dr_grpo", "dapo",
                                                         "cispo", "sapo", "luspo",   "vespo"};

double dt_grpo_kappa(const dt_grpo_loss *l, int32_t n, const dt_grpo_counts *counts)
{
    double by = 0;
    switch (l->type) {
    case DT_GRPO:
    case DT_SAPO:
        by = (double)counts->n_completions * n;
        break;
    case DT_BNPO:
        by = (double)counts->n_micro * (double)counts->n_micro_tokens;
        break;
    case DT_DR_GRPO:
        by = (double)counts->n_completions * l->max_completion_length;
        break;
    case DT_LUSPO:
        by = (double)counts->n_completions;
        break;
    default:
        by = (double)counts->n_tokens;
        break;
    }
    return by > 0 ? 1 / by : 0;
}

/* ---- the policy term --------------------------------------------------------------------------------------------- */

/* A function of one ratio: its value, and its derivative by the logarithm of the ratio. */
typedef struct term {
    double value, slope;
} term;

static bool is_low(const dt_grpo_loss *l, double c, double a) { return c < 1 - l->epsilon && a < 0; }
static bool is_high(const dt_grpo_loss *l, double c, double a) { return c > 1 + l->epsilon_high && a > 0; }

static term clipped(const dt_grpo_loss *l, double c, double a)
{
    const double low = 1 - l->epsilon, high = 1 + l->epsilon_high;
    const double free = fmin(c, l->delta) * a, within = fmin(fmax(c, low), high) * a;
    const bool moves = free < within ? c <= l->delta : c >= low && c <= high;
    return (term){-fmin(free, within), moves ? -c * a : 0};
}

static term sapo(const dt_grpo_loss *l, double c, double a)
{
    const double tau = a > 0 ? l->sapo_temperature_pos : l->sapo_temperature_neg;
    const double s = dt_sigmoid(tau * (c - 1));
    return (term){-4 / tau * s * a, -4 * s * (1 - s) * c * a};
}

/* The term with a constant weight instead of the ratio. */
static term weighted(double weight, double a, double logp) { return (term){-weight * a * logp, -weight * a}; }

static term policy_term(const dt_grpo_loss *l, double c, double a, double phi, double logp)
{
    switch (l->type) {
    case DT_CISPO:
        return weighted(fmin(c, l->epsilon_high), a, logp);
    case DT_VESPO:
        return weighted(phi, a, logp);
    case DT_SAPO:
        return sapo(l, c, a);
    default:
        return clipped(l, c, a);
    }
}

static double log_ratio(const dt_grpo_completion *y, int32_t t)
{
    return y->old ? (double)y->logp[t] - (double)y->old[t] : 0;
}

static double mean_log_ratio(const dt_grpo_completion *y)
{
    double sum = 0;
    for (int32_t t = 0; t < y->n; t++) sum += log_ratio(y, t);
    return y->n > 0 ? sum / y->n : 0;
}

/* Bounds of the paper's implementation, for the log-ratio of a token and of the product. */
static double vespo_phi(const dt_grpo_loss *l, const dt_grpo_completion *y)
{
    enum { MAX_LOG_RATIO = 20 };
    const double k = y->advantage >= 0 ? l->vespo_k_pos : l->vespo_k_neg;
    const double lambda = fmax(y->advantage >= 0 ? l->vespo_lambda_pos : l->vespo_lambda_neg, 1e-4);
    double log_w = 0;
    for (int32_t t = 0; t < y->n; t++) log_w += fmin(fmax(log_ratio(y, t), -MAX_LOG_RATIO), MAX_LOG_RATIO);
    log_w = fmin(fmax(log_w, log(1e-8)), MAX_LOG_RATIO);
    const double phi = exp(lambda + k * log_w - lambda * exp(log_w));
    return isfinite(phi) ? phi : 0;
}

static bool is_off_policy(const dt_grpo_loss *l, const dt_grpo_completion *y)
{
    return y->advantage < 0 && -mean_log_ratio(y) > l->off_policy_mask_threshold;
}

static bool takes_part(const dt_grpo_completion *y, int32_t t)
{
    return !y->entropy || y->entropy[t] >= y->entropy_least;
}

/* ---- policy and KL terms ----------------------------------------------------------------------------------------- */

/* beta K_t, or beta c K_t; `by_ratio`: the derivative by the logarithm of c. */
static term kl_term(const dt_grpo_loss *l, const dt_grpo_completion *y, int32_t t, double c, double *by_ratio)
{
    if (!y->ref) return (term){0};
    const double d = (double)y->ref[t] - (double)y->logp[t], k = l->k2 ? dt_k2(d) : dt_k3(d);
    const double weight = l->use_bias_correction_kl ? c : 1;
    *by_ratio = l->use_bias_correction_kl ? c * k : 0;
    return (term){weight * k, weight * (l->k2 ? -d : dt_k3_slope(d))};
}

static bool is_by_ratio(dt_grpo_type type) { return type != DT_CISPO && type != DT_VESPO; }

static void count_clipped(const dt_grpo_loss *l, double c, double a, dt_grpo_result *r)
{
    const bool cispo = l->type == DT_CISPO;
    r->n_ratios++;
    r->n_low += !cispo && is_low(l, fmin(c, l->delta), a);
    r->n_high += cispo ? c > l->epsilon_high && a > 0 : is_high(l, fmin(c, l->delta), a);
}

double dt_grpo_loss_of(const dt_grpo_loss *l, const dt_grpo_completion *y, double kappa, float *u,
                       dt_grpo_result *result)
{
    const bool no_policy = is_off_policy(l, y), of_sequence = l->sequence_level || l->product;
    const double mean = mean_log_ratio(y), of_all = exp(l->product ? mean * y->n : mean);
    double loss = 0, shared = 0;
    *result = (dt_grpo_result){.phi = l->type == DT_VESPO ? vespo_phi(l, y) : 0};
    if (of_sequence) count_clipped(l, of_all, y->advantage, result);
    for (int32_t t = 0; t < y->n; t++) {
        const double c = of_sequence ? of_all : exp(log_ratio(y, t)),
                     a = y->advantages ? (double)y->advantages[t] : y->advantage;
        double kl_by_ratio = 0;
        const term p =
            no_policy || !takes_part(y, t) ? (term){0} : policy_term(l, c, a, result->phi, (double)y->logp[t]);
        const term k = kl_term(l, y, t, c, &kl_by_ratio);
        const double by_ratio = (is_by_ratio(l->type) ? p.slope : 0) + l->beta * kl_by_ratio;
        double own = (is_by_ratio(l->type) ? 0 : p.slope) + l->beta * k.slope;
        if (of_sequence)
            shared += l->product ? by_ratio : by_ratio / y->n;
        else
            own += by_ratio, count_clipped(l, c, a, result);
        loss += p.value + l->beta * k.value;
        result->kl += k.value;
        if (u) u[t] = (float)(-kappa * own);
    }
    for (int32_t t = 0; u && shared != 0 && t < y->n; t++) u[t] = (float)((double)u[t] - kappa * shared);
    return kappa * loss;
}
