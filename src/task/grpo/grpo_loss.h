/* grpo_loss.h - losses of group-relative policy optimisation (algorithms.md 5.3), for one completion. Private to
 * src/task. */
#ifndef DTRAIN_TASK_GRPO_LOSS_H
#define DTRAIN_TASK_GRPO_LOSS_H

#include "dtrain/core/core.h"

typedef enum dt_grpo_type {
    DT_GRPO,    /* arXiv 2402.03300 */
    DT_BNPO,    /* arXiv 2505.23585 */
    DT_DR_GRPO, /* arXiv 2503.20783 */
    DT_DAPO,    /* arXiv 2503.14476 */
    DT_CISPO,   /* arXiv 2506.13585 */
    DT_SAPO,    /* arXiv 2511.20347 */
    DT_LUSPO,   /* arXiv 2602.05261 */
    DT_VESPO,   /* arXiv 2602.10693 */
    DT_N_GRPO_TYPES
} dt_grpo_type;
extern const char *const dt_grpo_type_names[DT_N_GRPO_TYPES]; /* values of grpo.loss_type */

typedef struct dt_grpo_loss {
    dt_grpo_type type;
    bool sequence_level; /* one ratio per completion, exp(mean of log-ratios): GSPO, arXiv 2507.18071 */
    bool product;        /* likewise, but exp(sum of log-ratios): RLOO, arXiv 2402.14740 */
    double epsilon, epsilon_high;
    double delta;                /* bound of the unclipped ratio (arXiv 2505.07291); INFINITY: none */
    double beta;                 /* of the KL term; 0: none */
    bool k2;                     /* its estimator is d^2 / 2 */
    bool use_bias_correction_kl; /* the KL term is multiplied by the ratio (arXiv 2512.02556) */
    double sapo_temperature_pos, sapo_temperature_neg;
    double vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg;
    /* completions with a negative advantage and a mean of old - new above this are excluded from the policy term (arXiv
     * 2512.02556, equation 9); INFINITY: none */
    double off_policy_mask_threshold;
    int32_t max_completion_length; /* L of dr_grpo */
} dt_grpo_loss;

/** Input of the loss for one completion. Contains only the tokens that count; none if it is masked. */
typedef struct dt_grpo_completion {
    int32_t n;
    double advantage;
    const float *advantages; /* [n] of each token; NULL: all are `advantage`, else it is their mean */
    const float *logp;       /* [n] by the policy */
    const float *old;        /* [n] by the policy that generated the completion; NULL: equal to logp, ratio 1 */
    const float *ref;        /* [n] by the reference; NULL if beta is 0 */
    const float *entropy;    /* NULL, or [n]: tokens below entropy_least are excluded from the policy term */
    float entropy_least;
} dt_grpo_completion;

/** Normalisation of a step; known before the first backward. */
typedef struct dt_grpo_counts {
    int64_t n_completions, n_tokens; /* of the optimizer step, over all ranks: all completions; tokens that count */
    int64_t n_micro, n_micro_tokens; /* bnpo: micro-batches of all ranks, tokens of the current one */
} dt_grpo_counts;

/** The weight of each token of a completion in the loss:
 *
 *      grpo, sapo           1 / (completions * n)
 *      bnpo                 1 / (micro-batches * tokens of the micro-batch)
 *      dr_grpo              1 / (completions * max_completion_length)
 *      dapo, cispo, vespo   1 / tokens
 *      luspo                1 / completions */
double dt_grpo_kappa(const dt_grpo_loss *l, int32_t n, const dt_grpo_counts *counts);

/** Metrics of a completion. Clipped tokens: for a sequence-level ratio 0 or 1, and n_ratios is 1. */
typedef struct dt_grpo_result {
    double kl;             /* sum over tokens of the term that beta multiplies */
    int64_t n_ratios;      /* n, or 1 */
    int64_t n_low, n_high; /* ratios that are clipped from below, from above */
    double phi;            /* vespo's weight */
} dt_grpo_result;

/** Symbols: c_t = exp(logp_t - old_t), or with a sequence-level ratio exp of the mean or sum; A the advantage; m_t 1 if
 *  the token takes part in the policy term, otherwise 0. Returns the sum over tokens of kappa (m_t l_t + beta K_t):
 *
 *      grpo, bnpo, dr_grpo, dapo, luspo   l = -min(min(c, delta) A, clip(c, 1 - epsilon, 1 + epsilon_high) A)
 *      cispo                              l = -sg[min(c, epsilon_high)] A logp
 *      sapo                               l = -4/tau sigmoid(tau (c - 1)) A,  tau by the sign of A
 *      vespo                              l = -sg[phi] A logp,  phi = e^lambda w^k e^(-lambda w), w = product of c_t
 *      K = e^d - 1 - d, or with k2 d^2 / 2,  d = ref - logp;  with use_bias_correction_kl c K
 *
 *  u: NULL, or out [n]: minus the derivatives by logp. */
double dt_grpo_loss_of(const dt_grpo_loss *l, const dt_grpo_completion *y, double kappa, float *u,
                       dt_grpo_result *result);

#endif
