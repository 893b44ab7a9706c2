/* order.h - which samples an optimizer step takes: pure functions of (configuration, step), of the same value on every
 * rank. */
#ifndef DTRAIN_DATA_ORDER_H
#define DTRAIN_DATA_ORDER_H

#include "dtrain/core/core.h"

enum { DT_MIX_SLOTS = 4096 };

/* Weighted mixing of entries: sample number g of the run (counted over all epochs) falls into slot g % DT_MIX_SLOTS. */
typedef struct dt_mix {
    int n_entries;
    int32_t *share;              /* [n_entries]: slots of an entry, at least one, DT_MIX_SLOTS together */
    uint16_t slot[DT_MIX_SLOTS]; /* entry of a slot */
    uint16_t rank[DT_MIX_SLOTS]; /* earlier slots of the same entry */
} dt_mix;

/** Shares by largest remainder, slots spread as evenly as they go. weights > 0. share: [n_entries], the caller's.
 *  n_entries <= DT_MIX_SLOTS. */
void dt_mix_init(dt_mix *mix, int n_entries, const double *weight, int32_t *share);
/** Entry of sample number g, and which occurrence of that entry it is (from 0). */
void dt_mix_find(const dt_mix *mix, uint64_t g, int *entry, uint64_t *occurrence);

typedef struct dt_order {
    int64_t n;     /* samples of the data set */
    int64_t n_eff; /* of them taken in an epoch: with drop_last a multiple of m */
    int64_t G, m;  /* train_batch_size, micro_batch_size */
    int nranks;
    bool shuffle;
    uint64_t seed;
    int64_t steps_per_epoch;
    const dt_mix *mix;          /* NULL: every sample once an epoch */
    const int64_t *entry_first; /* with mix: [n_entries + 1] sample numbers in the concatenation */
    /* NULL, or [n]: the samples in batches of G that belong together; n_groups of them change places each epoch */
    const int64_t *grouped;
    int64_t n_groups;
} dt_order;

/** Fill n_eff and steps_per_epoch from the rest. n_eff may come out 0 (drop_last and fewer than m samples). */
void dt_order_init(dt_order *o, bool drop_last);

/** Step `step` takes the places first .. first+count-1 of the order of epoch *epoch. */
void dt_order_step(const dt_order *o, int64_t step, int64_t *epoch, int64_t *first, int64_t *count);
int64_t dt_order_n_micro(const dt_order *o, int64_t step);
/** The places of micro-batch (micro, rank) of step; *count 0 when there is none. */
void dt_order_micro(const dt_order *o, int64_t step, int64_t micro, int rank, int64_t *epoch, int64_t *first,
                    int64_t *count);
/** The sample (numbered through the files as given) at place i of the order of an epoch. */
int64_t dt_order_sample(const dt_order *o, int64_t epoch, int64_t i);

#endif
