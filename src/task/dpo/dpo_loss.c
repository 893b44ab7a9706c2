/* dpo_loss.c - each loss is a function of two values, one per side, with its two derivatives. The values are
 * log-ratios, for some losses after the f-divergence and divided by the length of their text. Formulas and papers:
 * algorithms.md 3.2; e is label_smoothing. */
#include "dpo_loss.h"
#include "../pair_loss.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A function of the difference z = beta (x_c - x_r), or of each number; slope by x_c and x_r without beta. */
typedef struct value {
    double loss, slope[DT_N_SIDES];
} value;

static value of_difference(double loss, double slope) { return (value){loss, {slope, -slope}}; }

static double slope_of_sigmoid(double z) { return dt_sigmoid(z) * dt_sigmoid(-z); }

static value cdpo(double z, double e)
{
    return of_difference(-(1 - e) * dt_log_sigmoid(z) - e * dt_log_sigmoid(-z),
                         -(1 - e) * dt_sigmoid(-z) + e * dt_sigmoid(z));
}

static value robust(double z, double e)
{
    const double norm = 1 / (1 - 2 * e);
    return of_difference(norm * (-(1 - e) * dt_log_sigmoid(z) + e * dt_log_sigmoid(-z)),
                         -norm * ((1 - e) * dt_sigmoid(-z) + e * dt_sigmoid(z)));
}

static value exo_pair(double z, double e)
{
    const double q = dt_sigmoid(z), p = dt_sigmoid(-z);
    return of_difference(q * (dt_log_sigmoid(z) - log1p(-e)) + p * (dt_log_sigmoid(-z) - log(e)),
                         q * p * (z - log1p(-e) + log(e)));
}

static value discopop(double z, double tau)
{
    const double w = dt_sigmoid(z / tau), decay = exp(-z);
    return of_difference(-(1 - w) * dt_log_sigmoid(z) + w * decay,
                         -(1 - w) * dt_sigmoid(-z) - w * decay +
                             slope_of_sigmoid(z / tau) / tau * (dt_log_sigmoid(z) + decay));
}

/* Losses of each side separately, or mixed: a = beta x_c, b = beta x_r. */
static value nca_pair(double a, double b)
{
    return (value){-dt_log_sigmoid(a) - 0.5 * dt_log_sigmoid(-a) - 0.5 * dt_log_sigmoid(-b),
                   {-dt_sigmoid(-a) + 0.5 * dt_sigmoid(a), 0.5 * dt_sigmoid(b)}};
}

static value bco_pair(double a, double b)
{
    return (value){-dt_log_sigmoid(a) - dt_log_sigmoid(-b), {-dt_sigmoid(-a), dt_sigmoid(b)}};
}

static value apo_zero(double a, double b)
{
    return (value){1 - dt_sigmoid(a) + dt_sigmoid(b), {-slope_of_sigmoid(a), slope_of_sigmoid(b)}};
}

static value apo_down(double a, double b)
{
    const double z = a - b;
    return (value){dt_sigmoid(a) + 1 - dt_sigmoid(z), {slope_of_sigmoid(a) - slope_of_sigmoid(z), slope_of_sigmoid(z)}};
}

/* A square, of (x_c - x_r) - 1/(2 beta), or of each side; by x itself. */
static value ipo(double difference, double beta)
{
    const double off = difference - 0.5 / beta;
    return (value){off * off, {2 * off / beta, -2 * off / beta}};
}

static value sppo_hard(const double x[DT_N_SIDES], double beta)
{
    const double c = x[0] - 0.5 / beta, r = x[1] + 0.5 / beta;
    return (value){c * c + r * r, {2 * c / beta, 2 * r / beta}};
}

static value aot_unpaired(const dt_dpo_loss *l, double beta, const double x[DT_N_SIDES], const double partner[])
{
    const value chosen = cdpo(beta * (x[0] - partner[DT_AOT_OF_CHOSEN]), l->label_smoothing),
                rejected = cdpo(beta * (partner[DT_AOT_OF_REJECTED] - x[1]), l->label_smoothing);
    return (value){chosen.loss, {chosen.slope[0], rejected.slope[1]}};
}

static value loss_of(const dt_dpo_loss *l, dt_dpo_type type, double beta, const double x[DT_N_SIDES],
                     const dt_dpo_pair *pair)
{
    const double a = beta * x[0], b = beta * x[1], z = a - b;
    switch (type) {
    case DT_DPO_CDPO:
        return cdpo(z, l->label_smoothing);
    case DT_DPO_ROBUST:
        return robust(z, l->label_smoothing);
    case DT_DPO_HINGE:
        return of_difference(fmax(0, 1 - z), z < 1 ? -1 : 0);
    case DT_DPO_IPO:
        return ipo(x[0] - x[1], beta);
    case DT_DPO_EXO_PAIR:
        return exo_pair(z, l->label_smoothing);
    case DT_DPO_DISCOPOP:
        return discopop(z, l->tau);
    case DT_DPO_NCA_PAIR:
        return nca_pair(a, b);
    case DT_DPO_BCO_PAIR:
        return bco_pair(a, b);
    case DT_DPO_SPPO_HARD:
        return sppo_hard(x, beta);
    case DT_DPO_APO_ZERO:
        return apo_zero(a, b);
    case DT_DPO_APO_DOWN:
        return apo_down(a, b);
    case DT_DPO_AOT:
        return cdpo(beta * (pair->difference - pair->partner[DT_AOT_OF_PAIR]), l->label_smoothing);
    case DT_DPO_AOT_UNPAIRED:
        return aot_unpaired(l, beta, x, pair->partner);
    case DT_DPO_SFT:
        return (value){0};
    default:
        return cdpo(z, 0); /* sigmoid, sigmoid_norm */
    }
}

/* f(ratio), with its derivative into slope. The exponent is bounded to avoid overflow. */
static double diverge(const dt_dpo_loss *l, double ratio, double *slope)
{
    enum { MOST = 80 };
    const double k = l->alpha - 1;
    *slope = 1;
    if (l->divergence == DT_FORWARD_KL) {
        *slope = -ratio < MOST ? exp(-ratio) : 0;
        return 1 - exp(fmin(-ratio, MOST));
    }
    if (l->divergence == DT_JS_DIVERGENCE) {
        *slope = dt_sigmoid(-ratio);
        return log(2) + dt_log_sigmoid(ratio);
    }
    if (l->divergence == DT_REVERSE_KL || fabs(k) < 1e-9) return ratio;
    *slope = k * ratio < MOST ? exp(k * ratio) : 0;
    return (exp(fmin(k * ratio, MOST)) - 1) / k;
}

double dt_dpo_loss_of(const dt_dpo_loss *l, double beta, const dt_dpo_pair *pair, double gradient[DT_N_SIDES])
{
    double loss = 0;
    gradient[0] = gradient[1] = 0;
    for (int k = 0; k < l->n_types; k++) {
        const dt_dpo_type type = l->type[k];
        const bool mean = type == DT_DPO_IPO || type == DT_DPO_SIGMOID_NORM;
        double x[DT_N_SIDES], slope[DT_N_SIDES] = {1, 1};
        for (int side = 0; side < DT_N_SIDES; side++) {
            const double ratio = pair->ratio[side], n_tok = (double)pair->n_tok[side];
            x[side] = type <= DT_DPO_DISCOPOP ? diverge(l, ratio, &slope[side]) : ratio;
            if (mean) x[side] /= n_tok, slope[side] /= n_tok;
        }
        const value v = loss_of(l, type, beta, x, pair);
        loss += l->weight[k] * v.loss;
        for (int side = 0; side < DT_N_SIDES; side++)
            gradient[side] += l->weight[k] * beta * v.slope[side] * slope[side];
    }
    return loss;
}

/* ---- from a configuration ---------------------------------------------------------------------------------------- */

static const char *const names[DT_N_DPO_TYPES] = {
    "sigmoid",  "cdpo",     "robust",    "hinge",    "ipo",      "sigmoid_norm", "exo_pair",     "discopop",
    "nca_pair", "bco_pair", "sppo_hard", "apo_zero", "apo_down", "aot",          "aot_unpaired", "sft"};

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

bool dt_dpo_needs_partners(const dt_dpo_loss *l) { return has(l, DT_DPO_AOT) || has(l, DT_DPO_AOT_UNPAIRED); }

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
    DT_CONFIG_CHECK(sum > 0, cfg, "dpo", "loss_weights",
                    "expected at least one number above 0, because all dpo.loss_weights are 0");
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
    const bool used =
        has(l, DT_DPO_CDPO) || has(l, DT_DPO_ROBUST) || has(l, DT_DPO_EXO_PAIR) || dt_dpo_needs_partners(l);
    DT_CONFIG_CHECK(e == 0 || used, cfg, "dpo", "label_smoothing",
                    "expected 0 for this loss_type, found %g (sigmoid with smoothing is loss_type = cdpo)", e);
    DT_CONFIG_CHECK(e > 0 || !has(l, DT_DPO_EXO_PAIR), cfg, "dpo", "label_smoothing",
                    "expected a number above 0 for loss_type = exo_pair (1e-3 is usual), found 0");
    DT_CONFIG_CHECK(e < 0.5 || !has(l, DT_DPO_ROBUST), cfg, "dpo", "label_smoothing",
                    "expected a number below 0.5 for loss_type = robust, found %g", e);
    return DT_OK;
}

dt_err dt_dpo_loss_make(dt_dpo_loss *l, const dt_config *cfg)
{
    static const char *const divergences[] = {"reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"};
    *l = (dt_dpo_loss){.alpha = cfg->dpo_f_alpha_divergence_coef,
                       .label_smoothing = cfg->dpo_label_smoothing,
                       .tau = cfg->dpo_discopop_tau};
    while (strcmp(cfg->dpo_f_divergence, divergences[l->divergence]) != 0) l->divergence++;
    DT_TRY(read_lists(l, cfg));
    return check_smoothing(l, cfg);
}
