/* batch_beta.c - samples pairs without replacement: adds Gumbel noise to the logarithms of their weights and keeps the
 * pairs with the largest sums (Kool et al., ICML 2019, arXiv:1903.06059). The key of a pair's random number is its
 * number in the training. The sample therefore depends neither on ranks nor on the order of scoring. */
#include "batch_beta.h"
#include "../advantages.h"
#include <math.h>

#define MIN_BETA 1e-3 /* minimum of beta, as in the authors' code */

void dt_batch_beta_lay_out(dt_batch_beta *b, int64_t n, void *block, size_t *used)
{
    b->gap = dt_carve(block, used, n, sizeof *b->gap);
    b->part = dt_carve(block, used, n, sizeof *b->part);
    b->key = dt_carve(block, used, n, sizeof *b->key);
    b->n_alloc = n;
}

/* In (0, 1). */
static double uniform(const dt_batch_beta *b, int64_t sample)
{
    const uint64_t bits = dt_mix64(dt_rng_key(b->seed, DT_RNG_FILTER) + (uint64_t)sample);
    return ((double)(bits >> 12) + 0.5) * 0x1p-52;
}

static double log_weight(const dt_gap_state *s, double gap)
{
    const double off = s->deviation > 0 ? (gap - s->mean) / s->deviation : 0;
    return -0.5 * off * off;
}

/* Marks the kept pairs and returns the mean of their gaps. */
static double sample_pairs(dt_batch_beta *b, int64_t n, int64_t first_sample)
{
    const int64_t whole = (int64_t)floor(b->keep * (double)n + 1e-9), n_kept = dt_max_i64(1, whole);
    double sum = 0;
    for (int64_t k = 0; k < n; k++) {
        const double noise = -log(-log(uniform(b, first_sample + k)));
        b->key[k] = (dt_pair_key){-(log_weight(&b->next, b->gap[k]) + noise), k}; /* the largest sums come first */
        b->part[k] = 0;
    }
    dt_pair_keys_sort(b->key, n);
    for (int64_t k = 0; k < n_kept; k++) {
        b->part[b->key[k].pair] = (double)n / (double)n_kept;
        sum += b->gap[b->key[k].pair];
    }
    b->share_kept = (double)n_kept / (double)n;
    return sum / (double)n_kept;
}

static void keep_all(dt_batch_beta *b, int64_t n)
{
    b->value = b->beta;
    b->share_kept = 1;
    for (int64_t k = 0; k < n; k++) b->part[k] = 1;
}

void dt_batch_beta_find(dt_batch_beta *b, int64_t n_pairs, int64_t first_sample)
{
    const dt_moments m = dt_moments_of(b->gap, n_pairs, 1);
    const double old = b->state.n_steps > 0 ? b->momentum : 0, deviation = n_pairs > 1 ? m.deviation : 0;
    b->next = b->state;
    if (m.n < n_pairs || !isfinite(m.mean) || !isfinite(deviation)) {
        keep_all(b, n_pairs);
        return;
    }
    b->next = (dt_gap_state){.mean = old * b->state.mean + (1 - old) * m.mean,
                             .deviation = old * b->state.deviation + (1 - old) * deviation,
                             .n_steps = b->state.n_steps + 1};
    const double kept = sample_pairs(b, n_pairs, first_sample);
    b->value = fmax(b->beta * (1 + b->w * (kept - b->next.mean)), fmin(MIN_BETA, b->beta));
}

void dt_batch_beta_keep(dt_batch_beta *b) { b->state = b->next; }

void dt_batch_beta_store(dt_batch_beta *b, dt_task *t)
{
    dt_task_state(t, "gap_mean", DT_NAMED_F64, 1, &b->state.mean, true);
    dt_task_state(t, "gap_std", DT_NAMED_F64, 1, &b->state.deviation, true);
    dt_task_state(t, "gap_steps", DT_NAMED_I64, 1, &b->state.n_steps, true);
}
