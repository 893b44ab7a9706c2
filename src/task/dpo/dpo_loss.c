/* dpo_loss.c - one table holds the losses, each with its two derivatives. Papers: algorithms.md 3.2. */
#include "dpo_loss.h"
#include "../pair_loss.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* f-divergences apply; uses label_smoothing; uses the mean over an answer's tokens; compares pairs (aot.h); x is the
 * policy's log-probability, without a reference; alphapo_alpha applies; contains the term sft */
enum { DIVERGES = 1, SMOOTHS = 2, AVERAGES = 4, COMPARES = 8, ALONE = 16, SHAPED = 32, WITH_SFT = 64 };

/* Rows: type, name, traits, loss, and its derivatives by the values x of the chosen and the rejected answer, without
 * beta. The two derivatives of a Z row differ only in sign, so it has only the first. Symbols: formula(). */
#define LOSSES(Z, X)                                                                                                   \
    Z(SIGMOID, sigmoid, DIVERGES, cdpo(z, e), cdpo_slope(z, e))                                                        \
    Z(CDPO, cdpo, DIVERGES | SMOOTHS, cdpo(z, e), cdpo_slope(z, e))                                                    \
    Z(ROBUST, robust, DIVERGES | SMOOTHS, norm * ((1 - e) * cost(z) - e * cost(-z)),                                   \
      -norm * ((1 - e) * sigmoid(-z) + e * sigmoid(z)))                                                                \
    Z(HINGE, hinge, DIVERGES, fmax(0, 1 - z), z < 1 ? -1 : 0)                                                          \
    Z(IPO, ipo, DIVERGES | AVERAGES, (x[0] - x[1] - half) * (x[0] - x[1] - half), 2 * (x[0] - x[1] - half) / beta)     \
    Z(SIGMOID_NORM, sigmoid_norm, DIVERGES | AVERAGES, cdpo(z, e), cdpo_slope(z, e))                                   \
    Z(EXO_PAIR, exo_pair, DIVERGES | SMOOTHS,                                                                          \
      sigmoid(z) * (-cost(z) - log1p(-e)) + sigmoid(-z) * (-cost(-z) - log(e)), slope(z) * (z - log1p(-e) + log(e)))   \
    Z(DISCOPOP, discopop, DIVERGES, (1 - sigmoid(z / tau)) * cost(z) + sigmoid(z / tau) * exp(-z),                     \
      -(1 - sigmoid(z / tau)) * sigmoid(-z) - sigmoid(z / tau) * exp(-z) + slope(z / tau) / tau * (exp(-z) - cost(z))) \
    X(NCA_PAIR, nca_pair, 0, cost(a) + 0.5 * cost(-a) + 0.5 * cost(-b), -sigmoid(-a) + 0.5 * sigmoid(a),               \
      0.5 * sigmoid(b))                                                                                                \
    X(BCO_PAIR, bco_pair, 0, cost(a) + cost(-b), -sigmoid(-a), sigmoid(b))                                             \
    X(SPPO_HARD, sppo_hard, 0, (x[0] - half) * (x[0] - half) + (x[1] + half) * (x[1] + half),                          \
      2 * (x[0] - half) / beta, 2 * (x[1] + half) / beta)                                                              \
    X(APO_ZERO, apo_zero, 0, 1 - sigmoid(a) + sigmoid(b), -slope(a), slope(b))                                         \
    X(APO_DOWN, apo_down, 0, sigmoid(a) + 1 - sigmoid(z), slope(a) - slope(z), slope(z))                               \
    Z(CPO, cpo, ALONE | SHAPED | SMOOTHS | WITH_SFT, cdpo(z, e), cdpo_slope(z, e))                                     \
    Z(CPO_HINGE, cpo_hinge, ALONE | SHAPED | WITH_SFT, fmax(0, 1 - z), z < 1 ? -1 : 0)                                 \
    Z(CPO_IPO, cpo_ipo, ALONE | SHAPED | AVERAGES | WITH_SFT, (x[0] - x[1] - half) * (x[0] - x[1] - half),             \
      2 * (x[0] - x[1] - half) / beta)                                                                                 \
    Z(SIMPO, simpo, ALONE | SHAPED | AVERAGES | SMOOTHS, cdpo(z - l->gamma, e), cdpo_slope(z - l->gamma, e))           \
    X(ORPO, orpo, ALONE | AVERAGES | WITH_SFT, beta * cost(log_odds(x)), sigmoid(-log_odds(x)) / expm1(x[0]),          \
      -sigmoid(-log_odds(x)) / expm1(x[1]))                                                                            \
    Z(AOT, aot, SMOOTHS | COMPARES, cdpo(of_pair, e), cdpo_slope(of_pair, e))                                          \
    X(AOT_UNPAIRED, aot_unpaired, SMOOTHS | COMPARES, cdpo(of_chosen, e), cdpo_slope(of_chosen, e),                    \
      -cdpo_slope(of_rejected, e))                                                                                     \
    X(SFT, sft, 0, 0, 0, 0) /* computed by the task */

#define NAME(TYPE, WORD, ...) [DT_DPO_##TYPE] = #WORD,
#define TRAITS(TYPE, WORD, TRAITS, ...) [DT_DPO_##TYPE] = TRAITS,
static const char *const names[DT_N_DPO_TYPES] = {LOSSES(NAME, NAME)};
static const int traits[DT_N_DPO_TYPES] = {LOSSES(TRAITS, TRAITS)};

typedef struct value {
    double loss, slope[DT_N_SIDES];
} value;

static double sigmoid(double z) { return dt_sigmoid(z); }
static double slope(double z) { return sigmoid(z) * sigmoid(-z); }
static double cost(double z) { return -dt_log_sigmoid(z); }
static double cdpo(double z, double e) { return (1 - e) * cost(z) + e * cost(-z); }
static double cdpo_slope(double z, double e) { return -(1 - e) * sigmoid(-z) + e * sigmoid(z); }

/* Of mean log-probabilities: log(p / (1 - p)) of the chosen answer less that of the rejected one. */
static double log_odds(const double x[DT_N_SIDES]) { return x[0] - log(-expm1(x[0])) - (x[1] - log(-expm1(x[1]))); }

/* x: values of the two answers, of value_of. */
static value formula(const dt_dpo_loss *l, dt_dpo_type type, double beta, const double x[DT_N_SIDES],
                     const dt_dpo_pair *pair)
{
    const double a = beta * x[0], b = beta * x[1], z = a - b, half = 0.5 / beta, tau = l->tau,
                 e = traits[type] & SMOOTHS ? l->label_smoothing : 0, norm = 1 / (1 - 2 * e),
                 of_pair = beta * (pair->logp[0] - pair->logp[1] - pair->partner[DT_AOT_OF_PAIR]),
                 of_chosen = beta * (x[0] - pair->partner[DT_AOT_OF_CHOSEN]),
                 of_rejected = beta * (pair->partner[DT_AOT_OF_REJECTED] - x[1]);
#define CASE(TYPE, WORD, TRAITS, LOSS, BY_C, BY_R)                                                                     \
    case DT_DPO_##TYPE:                                                                                                \
        return (value){LOSS, {BY_C, BY_R}};
#define CASE_Z(TYPE, WORD, TRAITS, LOSS, BY_Z) CASE(TYPE, WORD, TRAITS, LOSS, BY_Z, -(BY_Z))
    switch (type) {
        LOSSES(CASE_Z, CASE)
    default:
        return (value){0};
    }
}

enum { MAX_EXPONENT = 80 }; /* avoids overflow */

/* (e^(k x) - 1) / k, with its derivative; x for k = 0. */
static double power(double k, double x, double *slope)
{
    *slope = 1;
    if (fabs(k) < 1e-9) return x;
    *slope = k * x < MAX_EXPONENT ? exp(k * x) : 0;
    return expm1(fmin(k * x, MAX_EXPONENT)) / k;
}

/* f(ratio), with its derivative into by_ratio. */
static double diverge(const dt_dpo_loss *l, double ratio, double *by_ratio)
{
    *by_ratio = 1;
    if (l->divergence == DT_FORWARD_KL) {
        *by_ratio = -ratio < MAX_EXPONENT ? exp(-ratio) : 0;
        return 1 - exp(fmin(-ratio, MAX_EXPONENT));
    }
    if (l->divergence == DT_JS_DIVERGENCE) {
        *by_ratio = dt_sigmoid(-ratio);
        return log(2) + dt_log_sigmoid(ratio);
    }
    return l->divergence == DT_REVERSE_KL ? ratio : power(l->alpha - 1, ratio, by_ratio);
}

/* The least mean log-probability that is not 0: the odds of a certain answer are infinite. */
static const double CERTAIN = -1e-12;

/* The value x of an answer, with its derivative by the log-probability of the answer. Means are divided before
 * AlphaPO's shape is applied, and after a divergence, as in TRL. */
static double value_of(const dt_dpo_loss *l, int of, const dt_dpo_pair *pair, int side, double *slope)
{
    const double n = of & AVERAGES ? (double)pair->n_tok[side] : 1;
    double x = pair->ratio[side];
    *slope = 1;
    if (of & ALONE) {
        x = of & SHAPED ? power(-l->alphapo, pair->logp[side] / n, slope) : fmin(pair->logp[side] / n, CERTAIN);
        *slope /= n;
        return x;
    }
    if (of & DIVERGES) x = diverge(l, x, slope);
    *slope /= n;
    return x / n;
}

double dt_dpo_loss_of(const dt_dpo_loss *l, double beta, const dt_dpo_pair *pair, double gradient[DT_N_SIDES])
{
    double loss = 0;
    gradient[0] = gradient[1] = 0;
    for (int k = 0; k < l->n_types; k++) {
        const int of = traits[l->type[k]];
        double x[DT_N_SIDES], by_logp[DT_N_SIDES];
        for (int side = 0; side < DT_N_SIDES; side++) x[side] = value_of(l, of, pair, side, &by_logp[side]);
        const value v = formula(l, l->type[k], beta, x, pair);
        loss += l->weight[k] * v.loss;
        for (int side = 0; side < DT_N_SIDES; side++)
            gradient[side] += l->weight[k] * beta * v.slope[side] * by_logp[side];
    }
    return loss;
}

double dt_dpo_value_of(const dt_dpo_loss *l, const dt_dpo_pair *pair, int side)
{
    double slope;
    int k = 0;
    if (dt_dpo_needs_reference(l)) return pair->ratio[side];
    while (!(traits[l->type[k]] & ALONE)) k++; /* skips sft */
    return value_of(l, traits[l->type[k]], pair, side, &slope);
}

double dt_dpo_log_odds(const dt_dpo_pair *pair)
{
    double x[DT_N_SIDES], slope;
    for (int side = 0; side < DT_N_SIDES; side++)
        x[side] = value_of(&(dt_dpo_loss){0}, traits[DT_DPO_ORPO], pair, side, &slope);
    return log_odds(x);
}

/* ---- from a configuration ---------------------------------------------------------------------------------------- */

double dt_dpo_weight(const dt_dpo_loss *l, dt_dpo_type type)
{
    for (int k = 0; k < l->n_types; k++)
        if (l->type[k] == type) return l->weight[k];
    return 0;
}

static bool has(const dt_dpo_loss *l, dt_dpo_type type)
{
    for (int k = 0; k < l->n_types; k++)
        if (l->type[k] == type) return true;
    return false;
}

static bool has_trait(const dt_dpo_loss *l, int trait)
{
    for (int k = 0; k < l->n_types; k++)
        if (traits[l->type[k]] & trait) return true;
    return false;
}

bool dt_dpo_needs_partners(const dt_dpo_loss *l) { return has_trait(l, COMPARES); }

bool dt_dpo_needs_reference(const dt_dpo_loss *l)
{
    for (int k = 0; k < l->n_types; k++)
        if (l->type[k] != DT_DPO_SFT && !(traits[l->type[k]] & ALONE)) return true;
    return !has_trait(l, ALONE); /* sft only: for the metrics */
}

const char *dt_dpo_averages(const dt_dpo_loss *l)
{
    for (int k = 0; k < l->n_types; k++)
        if (traits[l->type[k]] & AVERAGES) return names[l->type[k]];
    return NULL;
}

static dt_err add_type(dt_dpo_loss *l, const dt_config *cfg, const char *word)
{
    int t = 0;
    while (t < DT_N_DPO_TYPES && strcmp(word, names[t]) != 0) t++;
    DT_CONFIG_CHECK(t < DT_N_DPO_TYPES, cfg, "dpo", "loss_type",
                    "expected loss names (dtrain --keys dpo.loss_type lists them), found %s", word);
    DT_CONFIG_CHECK(!has(l, (dt_dpo_type)t), cfg, "dpo", "loss_type", "%s is listed twice", word);
    l->weight[l->n_types] = 1;
    l->type[l->n_types++] = (dt_dpo_type)t;
    return DT_OK;
}

static dt_err set_weight(dt_dpo_loss *l, const dt_config *cfg, int i, const char *word)
{
    char *end;
    const double weight = strtod(word, &end);
    DT_CONFIG_CHECK(end != word && !*end && isfinite(weight) && weight >= 0, cfg, "dpo", "loss_weights",
                    "expected numbers of at least 0, found %s", word);
    l->weight[i] = weight;
    return DT_OK;
}

static dt_err check_weights(const dt_dpo_loss *l, const dt_config *cfg)
{
    double sum = 0;
    for (int i = 0; i < l->n_types; i++) sum += l->weight[i];
    DT_CONFIG_CHECK(sum > 0, cfg, "dpo", "loss_weights", "expected at least one number above 0, found only 0");
    return DT_OK;
}

static dt_err read_lists(dt_dpo_loss *l, const dt_config *cfg)
{
    char **words = NULL;
    int n = 0;
    dt_err err = dt_config_split(cfg->dpo_loss_type, &words, &n);
    for (int i = 0; i < n && err == DT_OK; i++) err = add_type(l, cfg, words[i]);
    dt_list_free(words, n);
    DT_TRY(err);
    DT_CONFIG_CHECK(l->n_types > 0, cfg, "dpo", "loss_type", "expected at least one loss, found none");
    if (!*cfg->dpo_loss_weights) return DT_OK;
    DT_TRY(dt_config_split(cfg->dpo_loss_weights, &words, &n));
    if (n != l->n_types)
        err = dt_config_blame(
            cfg, "dpo", "loss_weights",
            dt_fail(DT_ERR_USAGE, "expected %d numbers, one per loss in loss_type, found %d", l->n_types, n));
    for (int i = 0; i < n && err == DT_OK; i++) err = set_weight(l, cfg, i, words[i]);
    dt_list_free(words, n);
    return err == DT_OK ? check_weights(l, cfg) : err;
}

static dt_err check_smoothing(const dt_dpo_loss *l, const dt_config *cfg)
{
    const double e = l->label_smoothing;
    DT_CONFIG_CHECK(e == 0 || has_trait(l, SMOOTHS), cfg, "dpo", "label_smoothing",
                    "expected 0 for this loss_type, found %g (sigmoid with smoothing is loss_type = cdpo)", e);
    DT_CONFIG_CHECK(e > 0 || !has(l, DT_DPO_EXO_PAIR), cfg, "dpo", "label_smoothing",
                    "expected a number above 0 for loss_type = exo_pair (1e-3 is usual), found 0");
    DT_CONFIG_CHECK(e < 0.5 || !has(l, DT_DPO_ROBUST), cfg, "dpo", "label_smoothing",
                    "expected a number below 0.5 for loss_type = robust, found %g", e);
    return DT_OK;
}

/* The term sft that losses contain, and whether it includes prompts. */
static dt_err add_sft(dt_dpo_loss *l, const dt_config *cfg)
{
    const bool contained = has_trait(l, WITH_SFT), given = *cfg->dpo_cpo_alpha, listed = has(l, DT_DPO_SFT);
    const double weight = given ? strtod(cfg->dpo_cpo_alpha, NULL) : contained;
    DT_CONFIG_CHECK(!listed || (!contained && !given), cfg, "dpo", "loss_type",
                    "expected no sft, because %s; cpo_alpha is the weight of this term",
                    contained ? "another loss contains it" : "cpo_alpha is set");
    DT_CONFIG_CHECK(!given || contained || has(l, DT_DPO_SIMPO), cfg, "dpo", "cpo_alpha",
                    "expected none for this loss_type: only cpo, cpo_hinge, cpo_ipo, orpo and simpo use it");
    if (weight > 0) {
        l->weight[l->n_types] = weight;
        l->type[l->n_types++] = DT_DPO_SFT;
    }
    const bool has_term = dt_dpo_weight(l, DT_DPO_SFT) > 0, says = strcmp(cfg->dpo_sft_on_prompt, "auto") != 0;
    l->sft_on_prompt = has_term && (says ? strcmp(cfg->dpo_sft_on_prompt, "true") == 0 : has(l, DT_DPO_ORPO));
    DT_CONFIG_CHECK(has_term || !says, cfg, "dpo", "sft_on_prompt",
                    "expected auto for this loss_type, which has no term sft, found %s", cfg->dpo_sft_on_prompt);
    return DT_OK;
}

static dt_err check_shape(const dt_dpo_loss *l, const dt_config *cfg)
{
    DT_CONFIG_CHECK(l->alphapo == 0 || has_trait(l, SHAPED), cfg, "dpo", "alphapo_alpha",
                    "expected 0 for this loss_type: only cpo, cpo_hinge, cpo_ipo and simpo use it");
    return DT_OK;
}

dt_err dt_dpo_loss_make(dt_dpo_loss *l, const dt_config *cfg)
{
    static const char *const divergences[] = {"reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"};
    *l = (dt_dpo_loss){.alpha = cfg->dpo_f_alpha_divergence_coef,
                       .label_smoothing = cfg->dpo_label_smoothing,
                       .tau = cfg->dpo_discopop_tau,
                       .gamma = cfg->dpo_simpo_gamma,
                       .alphapo = cfg->dpo_alphapo_alpha};
    while (strcmp(cfg->dpo_f_divergence, divergences[l->divergence]) != 0) l->divergence++;
    DT_TRY(read_lists(l, cfg));
    DT_TRY(add_sft(l, cfg));
    DT_TRY(check_shape(l, cfg));
    return check_smoothing(l, cfg);
}
