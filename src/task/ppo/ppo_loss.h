/* ppo_loss.h - the computations of proximal policy optimisation that need no model: rewards and advantages of
 * completions, and the losses of a token (algorithms.md 4.3 to 4.5). Private to src/task.
 *
 * Source   Schulman et al., arXiv:1707.06347 (losses), arXiv:1506.02438 (advantages); Dai et al., arXiv:2310.12773 (two
 *          advantages). Masks and indices are those of TRL's PPO trainer.
 * Symbols  a completion has n tokens and space for `room` of them. State k is the text before token k. The state after
 *          the last token counts if n < room. */
#ifndef DTRAIN_TASK_PPO_LOSS_H
#define DTRAIN_TASK_PPO_LOSS_H

#include "dtrain/core/core.h"

/** Estimator of the divergence from the reference at a token sampled from the policy: d = log ref - log policy. */
typedef enum dt_kl_estimator {
    DT_KL_K1, /* -d */
    DT_KL_K3, /* e^d - 1 - d */
} dt_kl_estimator;
double dt_kl_estimate(dt_kl_estimator how, double policy_logp, double reference_logp);

/** Number of states of a completion that have a value. */
static inline int32_t dt_ppo_n_states(int32_t n, int32_t room) { return n < room ? n + 1 : n; }

/** Rewards of tokens under the policy that generated them: reward[k] = -kl_coef kl_k for k < n, 0 after that; the score
 *  is added to the last state. Returns the sum of kl_k. policy, reference: [n]; reward [n_states]. */
typedef struct dt_ppo_penalty {
    dt_kl_estimator estimator;
    double kl_coef;
} dt_ppo_penalty;
double dt_ppo_rewards(const dt_ppo_penalty *p, const float *policy, const float *reference, int32_t n, int32_t n_states,
                      double score, float *reward);

/** Generalised advantages; replaces the rewards, from the last state to the first:
 *
 *     delta_k = reward_k + gamma value_(k+1) - value_k        (value 0 after the last state)
 *     A_k = delta_k + gamma lam A_(k+1)
 */
void dt_ppo_advantages(const float *value, int32_t n_states, double gamma, double lam, float *reward);

/** Whiten all values of all rows together: x <- (x - mean) / sqrt(variance + 1e-8), unbiased variance (0 for fewer than
 *  two values). keep_mean: the mean is added again. row [n_rows], with len[i] values each. The bits depend only on the
 *  order of the rows. */
void dt_ppo_whiten(float *const *row, const int32_t *len, int64_t n_rows, bool keep_mean);

/** The policy's loss of a token, with r = exp(logp - old):
 *
 *     max(-A r, -A clip(r, 1 - range, 1 + range)),        u = A r, or 0 if the clipped term is the larger one
 */
typedef struct dt_ppo_term {
    double loss;
    double slope; /* policy: u = -dloss/dlogp; critic: dloss/dvalue */
    bool clipped; /* the clipped term is the larger one */
} dt_ppo_term;
dt_ppo_term dt_ppo_policy_loss(double logp, double old, double advantage, double range);

/** A critic's loss of a state: max((V - target)^2, (clip(V, old - range, old + range) - target)^2) / 2. range HUGE_VAL:
 *  V is not clipped. */
dt_ppo_term dt_ppo_value_loss(double value, double old, double target, double range);

/** PPO-Lagrangian: (A_r - lambda A_c) / (1 + lambda). */
static inline double dt_ppo_combined(double of_reward, double of_cost, double lambda)
{
    return (of_reward - lambda * of_cost) / (1 + lambda);
}

#endif
