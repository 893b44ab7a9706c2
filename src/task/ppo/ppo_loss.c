/* ppo_loss.c - sums are in the order of rows, in double. Every rank holds the full rollout, so every rank computes the
 * same bits. */
#include "ppo_loss.h"
#include "../pair_loss.h"
#include <math.h>

#define SMALL 1e-8 /* added to a variance */

double dt_kl_estimate(dt_kl_estimator how, double policy_logp, double reference_logp)
{
    const double d = reference_logp - policy_logp;
    return how == DT_KL_K1 ? -d : dt_k3(d);
}

double dt_ppo_rewards(const dt_ppo_penalty *p, const float *policy, const float *reference, int32_t n, int32_t n_states,
                      double score, float *reward)
{
    double sum = 0;
    for (int32_t k = 0; k < n; k++) {
        const double kl = dt_kl_estimate(p->estimator, (double)policy[k], (double)reference[k]);
        const double last = k == n_states - 1 ? score : 0;
        reward[k] = (float)(last - p->kl_coef * kl);
        sum += kl;
    }
    if (n_states > n) reward[n] = (float)score;
    return sum;
}

void dt_ppo_advantages(const float *value, int32_t n_states, double gamma, double lam, float *reward)
{
    double next_value = 0, advantage = 0;
    for (int32_t k = n_states - 1; k >= 0; k--) {
        const double delta = (double)reward[k] + gamma * next_value - (double)value[k];
        advantage = delta + gamma * lam * advantage;
        next_value = (double)value[k];
        reward[k] = (float)advantage;
    }
}

void dt_ppo_whiten(float *const *row, const int32_t *len, int64_t n_rows, bool keep_mean)
{
    double sum = 0, squares = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < n_rows; i++) {
        for (int32_t k = 0; k < len[i]; k++) sum += (double)row[i][k];
        n += len[i];
    }
    const double mean = n > 0 ? sum / (double)n : 0;
    for (int64_t i = 0; i < n_rows; i++)
        for (int32_t k = 0; k < len[i]; k++) squares += ((double)row[i][k] - mean) * ((double)row[i][k] - mean);
    const double scale = 1 / sqrt((n > 1 ? squares / (double)(n - 1) : 0) + SMALL), shift = keep_mean ? mean : 0;
    for (int64_t i = 0; i < n_rows; i++)
        for (int32_t k = 0; k < len[i]; k++) row[i][k] = (float)(((double)row[i][k] - mean) * scale + shift);
}

static double clip(double x, double least, double largest) { return fmin(fmax(x, least), largest); }

dt_ppo_term dt_ppo_policy_loss(double logp, double old, double advantage, double range)
{
    const double ratio = exp(logp - old);
    const double free = -advantage * ratio, clipped = -advantage * clip(ratio, 1 - range, 1 + range);
    return (dt_ppo_term){
        .loss = fmax(free, clipped), .slope = clipped > free ? 0 : advantage * ratio, .clipped = clipped > free};
}

dt_ppo_term dt_ppo_value_loss(double value, double old, double target, double range)
{
    const double off = value - target, clipped_off = clip(value, old - range, old + range) - target;
    const bool clipped = clipped_off * clipped_off > off * off;
    return (dt_ppo_term){.loss = 0.5 * (clipped ? clipped_off * clipped_off : off * off),
                         .slope = clipped ? 0 : off,
                         .clipped = clipped};
}
