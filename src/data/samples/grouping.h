/* grouping.h - batches of one modality and similar lengths, as LLaVA's group_by_modality_length has them: a step with
 * images has them on every rank, and ranks wait less for each other.
 *
 * Samples with images and those without are put in an order of the seed, each in sets of up to 50 batches, and a set is
 * sorted by length. Its batches of G samples are those of the run's steps; each epoch has them in another order. What
 * is left of the two modalities makes the last batches of each epoch. */
#ifndef DTRAIN_DATA_GROUPING_H
#define DTRAIN_DATA_GROUPING_H

#include "dtrain/core/core.h"

typedef struct dt_group_item {
    int64_t sample, n_tok;
    bool images;
    int64_t rank, set; /* filled in */
} dt_group_item;

/** item: [n], sample, n_tok and images filled in; sorted afterwards. place: out, [n], a permutation of the samples. Its
 *  first G * (what is returned) are batches of one modality. A function of its arguments alone. */
int64_t dt_group(dt_group_item *item, int64_t n, int64_t G, uint64_t seed, int64_t *place);

#endif
