/* order.c - random access instead of iteration: a position in the order is computed in constant time and memory.
 * Resuming needs only a step number, and the number of ranks does not affect which samples a step takes.
 *
 * Mixing: a fixed pattern of 4096 slots represents the shares. Two table look-ups give the entry and the occurrence of
 * a sample number. Occurrences of an entry are counted across epochs. A run therefore reads all samples of an entry
 * before it repeats any, even if the entry is large and its share small. */
#include "order.h"
#include <math.h>

/* ---- mixing ------------------------------------------------------------------------------------------------------ */

/* Largest remainder method; every entry gets at least one slot. */
static void share_slots(int n, const double *weight, int32_t *share)
{
    double total = 0;
    for (int e = 0; e < n; e++) total += weight[e];
    int64_t left = DT_MIX_SLOTS;
    for (int e = 0; e < n; e++) {
        share[e] = (int32_t)fmax(1, floor(weight[e] / total * DT_MIX_SLOTS));
        left -= share[e];
    }
    while (left != 0) { /* at most one iteration per entry */
        const int change = left > 0 ? 1 : -1;
        int best = -1;
        double best_lack = 0;
        for (int e = 0; e < n; e++) {
            const double lack = change * (weight[e] / total * DT_MIX_SLOTS - share[e]);
            if (change < 0 && share[e] == 1) continue;
            if (best < 0 || lack > best_lack) best = e, best_lack = lack;
        }
        share[best] += change;
        left -= change;
    }
}

void dt_mix_init(dt_mix *mix, int n_entries, const double *weight)
{
    share_slots(n_entries, weight, mix->share);
    /* Each slot goes to the entry with the largest lag: share * (s + 1) / SLOTS minus the slots it has. The lags, times
     * SLOTS, sum to SLOTS, so the largest is positive. The lag of an entry with all its slots is not positive. Every
     * entry therefore gets exactly its share. */
    int32_t used[DT_MIX_SLOTS] = {0};
    for (int s = 0; s < DT_MIX_SLOTS; s++) {
        int best = 0;
        int64_t best_lag = INT64_MIN;
        for (int e = 0; e < n_entries; e++) {
            const int64_t lag = (int64_t)mix->share[e] * (s + 1) - (int64_t)used[e] * DT_MIX_SLOTS;
            if (lag > best_lag) best = e, best_lag = lag;
        }
        mix->slot[s] = (uint16_t)best;
        mix->rank[s] = (uint16_t)used[best]++;
    }
}

void dt_mix_find(const dt_mix *mix, uint64_t g, int *entry, uint64_t *occurrence)
{
    const uint64_t s = g % DT_MIX_SLOTS;
    *entry = mix->slot[s];
    *occurrence = g / DT_MIX_SLOTS * (uint64_t)mix->share[*entry] + mix->rank[s];
}

/* An exhausted entry starts over, in another order if shuffled. */
static int64_t mixed_sample(const dt_order *o, uint64_t g)
{
    int e;
    uint64_t occurrence;
    dt_mix_find(o->mix, g, &e, &occurrence);
    const uint64_t n = (uint64_t)(o->entry_first[e + 1] - o->entry_first[e]), pass = occurrence / n;
    uint64_t i = occurrence % n;
    if (o->shuffle) i = dt_rng_permute(dt_mix64(dt_mix64(dt_rng_key(o->seed, DT_RNG_MIX) + (uint64_t)e) + pass), n, i);
    return o->entry_first[e] + (int64_t)i;
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

void dt_order_init(dt_order *o, bool drop_last)
{
    o->n_eff = drop_last ? o->n - o->n % o->m : o->n;
    o->steps_per_epoch = dt_ceil_div(o->n_eff, o->G);
}

void dt_order_step(const dt_order *o, int64_t step, int64_t *epoch, int64_t *first, int64_t *count)
{
    if (step == DT_EVALUATION) {
        *epoch = DT_EVALUATION, *first = 0, *count = o->n;
        return;
    }
    *epoch = step / o->steps_per_epoch;
    *first = step % o->steps_per_epoch * o->G;
    *count = o->n_eff - *first < o->G ? o->n_eff - *first : o->G;
}

int64_t dt_order_n_micro(const dt_order *o, int64_t step)
{
    int64_t epoch, first, count;
    dt_order_step(o, step, &epoch, &first, &count);
    return dt_ceil_div(dt_ceil_div(count, o->m), o->nranks);
}

void dt_order_micro(const dt_order *o, int64_t step, int64_t micro, int rank, int64_t *epoch, int64_t *first,
                    int64_t *count)
{
    int64_t step_first, step_count;
    dt_order_step(o, step, epoch, &step_first, &step_count);
    const int64_t at = (micro * o->nranks + rank) * o->m, left = step_count - at;
    *first = step_first + at;
    *count = left < 0 ? 0 : left < o->m ? left : o->m;
}

int64_t dt_order_sample(const dt_order *o, int64_t epoch, int64_t i)
{
    if (epoch == DT_EVALUATION) return i;
    if (o->mix) return mixed_sample(o, (uint64_t)epoch * (uint64_t)o->n + (uint64_t)i);
    if (!o->shuffle) return i;
    const uint64_t key = dt_mix64(dt_rng_key(o->seed, DT_RNG_SHUFFLE) + (uint64_t)epoch);
    if (!o->grouped) return (int64_t)dt_rng_permute(key, (uint64_t)o->n, (uint64_t)i);
    const int64_t batch = i / o->G;
    if (batch >= o->n_groups) return o->grouped[i];
    return o->grouped[(int64_t)dt_rng_permute(key, (uint64_t)o->n_groups, (uint64_t)batch) * o->G + i % o->G];
}
