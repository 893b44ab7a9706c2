/* order.h - which samples an optimizer step takes: pure functions of (configuration, step), identical on
 * every rank. */
#ifndef DTRAIN_DATA_ORDER_H
#define DTRAIN_DATA_ORDER_H

#include "dtrain/data/data.h"

enum { DT_MIX_SLOTS = 4096 };

/* Weighted mixing of entries: sample number g of the run (counted over all epochs) uses slot g % DT_MIX_SLOTS. */
typedef struct dt_mix {
    int32_t share[DT_MIX_SLOTS]; /* slots per entry, at least 1; sum DT_MIX_SLOTS */
    uint16_t slot[DT_MIX_SLOTS]; /* entry of each slot */
    uint16_t rank[DT_MIX_SLOTS]; /* number of earlier slots of the same entry */
} dt_mix;

/** Shares by the largest remainder method; slots of an entry are spread evenly. weights > 0. n_entries <=
 *  DT_MIX_SLOTS. */
void dt_mix_init(dt_mix *mix, int n_entries, const double *weight);
/** Entry of sample number g, and which occurrence of that entry it is (from 0). */
void dt_mix_find(const dt_mix *mix, uint64_t g, int *entry, uint64_t *occurrence);

typedef struct dt_order {
    int64_t n;     /* samples of the dataset */
    int64_t n_eff; /* samples used per epoch; with drop_last a multiple of m */
    int64_t G, m;  /* train_batch_size, micro_batch_size */
    int nranks;
    bool shuffle;
    uint64_t seed;
    int64_t steps_per_epoch;
    const dt_mix *mix;          /* NULL: each sample once per epoch */
    const int64_t *entry_first; /* with mix: [n_entries + 1] first sample numbers in the concatenation */
    /* NULL, or [n]: samples in batches of G (grouping.h). The first n_groups batches are permuted each epoch */
    const int64_t *grouped;
    int64_t n_groups;
} dt_order;

/** Compute n_eff and steps_per_epoch from the other fields. n_eff is 0 if drop_last and n < m. */
void dt_order_init(dt_order *o, bool drop_last);

/** Step `step` takes positions first .. first+count-1 of the order of epoch *epoch. DT_EVALUATION takes all, in epoch
 *  DT_EVALUATION, whose order is that of the files. */
void dt_order_step(const dt_order *o, int64_t step, int64_t *epoch, int64_t *first, int64_t *count);
int64_t dt_order_n_micro(const dt_order *o, int64_t step);
/** Positions of micro-batch (micro, rank) of a step; *count is 0 if there is none. */
void dt_order_micro(const dt_order *o, int64_t step, int64_t micro, int rank, int64_t *epoch, int64_t *first,
                    int64_t *count);
/** Number of the sample at position i of an epoch's order. Numbers count through all files, in the given order. */
int64_t dt_order_sample(const dt_order *o, int64_t epoch, int64_t i);

#endif
