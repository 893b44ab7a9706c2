/* dpo.h - shared declarations of task dpo: dpo.c is its table, dpo_pairs.c evaluates the pairs of a batch, dpo_sums.c
 * counts metrics, dpo_partners.c runs the passes of losses that compare pairs with others. Private to src/task. */
#ifndef DTRAIN_TASK_DPO_H
#define DTRAIN_TASK_DPO_H

#include "aot.h"
#include "batch_beta.h"
#include "dtrain/step/judge.h"
#include "multiplier.h"
#include "precomputed.h"
#include "../reference.h"

/** The two goals that pairs are judged by, each with a beta of its own (algorithms.md 3.4). */
enum { DPO_HELPFUL, DPO_HARMLESS, DPO_GOALS };

/** What beta depends on (dpo.dynamic_beta): a pair's margin, bounded or not, or all pairs of a step. */
typedef enum dpo_beta_rule { DPO_BETA_OF_MARGIN, DPO_BETA_OF_FACTOR, DPO_BETA_OF_BATCH } dpo_beta_rule;

typedef struct dpo_sums {
    int loss, n_pairs, correct, n_chosen, hit, entropy, n_target;
    int reward[DT_N_SIDES], margin, logp[DT_N_SIDES], logit[DT_N_SIDES], n_rejected, kl;
    int goal_loss[DPO_GOALS], delta[DPO_GOALS], beta[DPO_GOALS];
    int cost, cost_ema, lambda, nll, n_text, log_odds, log_odds_ratio;
    int gap_mean, gap_std, share_kept;
} dpo_sums;

typedef struct dpo {
    dt_dpo_loss loss_of;
    dpo_beta_rule beta_rule;
    double beta_w, kl_coef;
    bool alone;   /* no loss needs a reference: there is none */
    bool full_kl; /* the divergence is over the whole vocabulary, from the head; else k3 of the answer's tokens */
    bool has_judge[DPO_GOALS];
    dt_reference reference;
    dt_precomputed precomputed; /* replaces the reference: dpo.precompute_reference */
    dt_judge judge[DPO_GOALS];
    dt_multiplier multiplier;
    dt_aot aot;
    dt_batch_beta batch_beta; /* for DPO_BETA_OF_BATCH */
    dt_precomputed_part part;
    double inv_chosen; /* 1 / (number of tokens of the step's chosen answers) */
    /* factor that converts a mean over the tokens of chosen answers into a term of a sum over pairs: for the step, and
     * for the whole validation */
    double pairs_per_token[2];
    dpo_sums sums;
} dpo;

/** Results of the policy, the reference and the judges for a pair. */
typedef struct dpo_answers {
    dt_dpo_pair pair;
    int64_t shorter;             /* tokens of the shorter answer */
    double sum_logp[DT_N_SIDES]; /* over all tokens */
    double nll;                  /* of the chosen text: of its answer, or with sft_on_prompt also of its prompt */
    double kl;                   /* over the chosen answer; with full_kl only in dpo_collect */
    double weight;               /* of WPO; else 1 */
    double part;                 /* factor of the losses of ratios (DPO_BETA_OF_BATCH); else 1 */
    double delta[DPO_GOALS];     /* score of the chosen answer minus that of the rejected one */
    double beta[DPO_GOALS];
    double cost; /* expected cost of the policy if it chose between the two answers */
} dpo_answers;

/** Evaluate pair k of a batch that reference and judges have scored; p: [n_tok] of the batch. Local. */
dpo_answers dpo_pair_of(const dt_task *t, const dt_batch *b, int64_t k, const dt_predictions *p);
/** The loss of a pair without the terms of dpo_token_loss. slope: out, its derivatives by the two ratios; by_goal: out,
 *  the loss with the beta of each goal only. Local. */
double dpo_loss_of(const dpo *d, const dpo_answers *a, double by_goal[DPO_GOALS], double slope[DT_N_SIDES]);
/** The pair's contribution to the terms that are means over tokens of chosen answers: sft and the divergence. Local. */
double dpo_token_loss(const dpo *d, const dpo_answers *a);
/** Write the derivatives for the tokens of pair k into w. inv_norm: 1 / the step's pairs. Local. */
void dpo_weigh(const dt_task *t, const dt_batch *b, int64_t k, const dpo_answers *a, const dt_predictions *p,
               double inv_norm, const dt_weights *w);

void dpo_declare(const dt_task *t, dpo *d);
void dpo_collect(dt_task *t, const dt_micro *m, const dt_predictions *p);

/** For losses that compare pairs (aot) and for a beta of the batch: run a forward over all n_pairs of a step, or of
 *  DT_EVALUATION. Then find the partners or the step's beta. Collective; a local error ends the job. */
dt_err dpo_match(dt_task *t, dt_loader *l, int64_t step, int64_t n_pairs);
/** The targets of sequence s that are its answer: first .. end-1. With sft_on_prompt the targets of a chosen text begin
 *  with its prompt. Local. */
typedef struct dpo_targets {
    int32_t first, end;
} dpo_targets;
dpo_targets dpo_targets_of(const dt_batch *b, int64_t s);
/** Compute the reference's log-probabilities of a batch of d->part. Collective; a local error ends the job. */
dt_err dpo_score_reference(dt_task *t, const dt_batch *b);
/** The reference's log-probabilities of the last batch: [n_tok], borrowed; NULL: no reference. */
const float *dpo_reference_logp(const dpo *d);
/** The maximum n_pairs of dpo_match. */
int64_t dpo_max_pairs(const dt_task *t);

#endif
