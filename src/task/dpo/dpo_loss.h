/* dpo_loss.h - the losses of preference optimisation for one pair (algorithms.md 3.2). Private to src/task. */
#ifndef DTRAIN_TASK_DPO_LOSS_H
#define DTRAIN_TASK_DPO_LOSS_H

#include "dtrain/config/config.h"
#include "dtrain/data/dataset.h"

typedef enum dt_dpo_type {
    DT_DPO_SIGMOID,
    DT_DPO_CDPO,
    DT_DPO_ROBUST,
    DT_DPO_HINGE,
    DT_DPO_IPO,
    DT_DPO_SIGMOID_NORM,
    DT_DPO_EXO_PAIR,
    DT_DPO_DISCOPOP,
    DT_DPO_NCA_PAIR,
    DT_DPO_BCO_PAIR,
    DT_DPO_SPPO_HARD,
    DT_DPO_APO_ZERO,
    DT_DPO_APO_DOWN,
    DT_DPO_CPO,
    DT_DPO_CPO_HINGE,
    DT_DPO_CPO_IPO,
    DT_DPO_SIMPO,
    DT_DPO_ORPO,
    DT_DPO_AOT,
    DT_DPO_AOT_UNPAIRED,
    DT_DPO_SFT, /* of the tokens of the chosen text; computed by the task */
    DT_N_DPO_TYPES
} dt_dpo_type;

typedef enum dt_divergence { DT_REVERSE_KL, DT_FORWARD_KL, DT_JS_DIVERGENCE, DT_ALPHA_DIVERGENCE } dt_divergence;

/** Values of a pair's partners in sorted order (aot.h). OF_PAIR: the reference's difference of log-probabilities at the
 *  index of the policy's difference. OF_CHOSEN: the ratio of the rejected answer at the index of the chosen answer.
 *  OF_REJECTED: the reverse. */
enum { DT_AOT_OF_PAIR, DT_AOT_OF_CHOSEN, DT_AOT_OF_REJECTED, DT_AOT_PARTNERS };

/** Input of a loss for a pair. */
typedef struct dt_dpo_pair {
    double
        ratio[DT_N_SIDES];   /* of the chosen and the rejected answer: log pi - log reference, sums over n_tok tokens */
    double logp[DT_N_SIDES]; /* log pi, likewise */
    int64_t n_tok[DT_N_SIDES];
    double partner[DT_AOT_PARTNERS]; /* for DT_DPO_AOT and DT_DPO_AOT_UNPAIRED */
} dt_dpo_pair;

/** The loss of a pair: the sum of weight[k] times the loss type[k]. */
typedef struct dt_dpo_loss {
    int n_types;
    dt_dpo_type type[DT_N_DPO_TYPES];
    double weight[DT_N_DPO_TYPES];
    dt_divergence divergence;
    double alpha, label_smoothing, tau, gamma;
    double alphapo; /* shape of the reward of losses without a reference; 0: the log-probability itself */
    /* the mean of the term sft includes the prompts of chosen texts */
    bool sft_on_prompt;
} dt_dpo_loss;

/** Read [dpo]. Losses that contain the term sft add it. DT_ERR_USAGE naming the key: an unknown or repeated loss, the
 *  wrong number of weights, or a key that the losses do not use or whose value they do not accept. */
dt_err dt_dpo_loss_make(dt_dpo_loss *l, const dt_config *cfg);
/** The weight of a type; 0 if it is not in use. */
double dt_dpo_weight(const dt_dpo_loss *l, dt_dpo_type type);

/** True if a loss compares pairs with other pairs. */
bool dt_dpo_needs_partners(const dt_dpo_loss *l);
/** True if a loss needs the reference's log-probabilities. */
bool dt_dpo_needs_reference(const dt_dpo_loss *l);
/** The name of a loss that divides by the lengths of answers; NULL: none. */
const char *dt_dpo_averages(const dt_dpo_loss *l);

/** The value of an answer whose product with beta is its reward: the ratio to the reference; without a reference, the
 *  policy's log-probability as the first loss takes it. */
double dt_dpo_value_of(const dt_dpo_loss *l, const dt_dpo_pair *pair, int side);
/** orpo: the logarithm of the odds of the chosen answer less that of the rejected one. */
double dt_dpo_log_odds(const dt_dpo_pair *pair);

/** Returns the loss of a pair without DT_DPO_SFT. gradient [2]: derivatives of the loss of all pairs by this pair's
 *  ratios. With DT_DPO_AOT_UNPAIRED two terms depend on them: that of this pair's chosen answer, and that of the
 *  pair with this rejected answer as its partner. */
double dt_dpo_loss_of(const dt_dpo_loss *l, double beta, const dt_dpo_pair *pair, double gradient[DT_N_SIDES]);

#endif
