/* grouping.h - batches of one modality and similar lengths, as LLaVA's group_by_modality_length. All ranks
 * have images in the same steps, which reduces waiting.
 *
 * Samples with and without images are shuffled separately and cut into sets of at most 50 batches. Each
 * set is sorted by length and cut into batches of G samples, one per optimizer step. Each epoch visits
 * these batches in another order. The remainders of both modalities form the last batches of each epoch. */
#ifndef DTRAIN_DATA_GROUPING_H
#define DTRAIN_DATA_GROUPING_H

#include "dtrain/core/core.h"

typedef struct dt_group_item {
    int64_t sample, n_tok;
    bool images;
    int64_t rank, set; /* scratch */
} dt_group_item;

/** item: [n]; sample, n_tok and images are inputs; sorted on return. order: output [n], a permutation of
 *  the samples. Its first G * (return value) samples form batches of one modality. Pure function of its
 *  arguments. */
int64_t dt_group(dt_group_item *item, int64_t n, int64_t G, uint64_t seed, int64_t *order);

#endif
