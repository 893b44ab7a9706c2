/* aot.h - preference optimisation by optimal transport (arXiv 2406.05882). The chosen answers of a set are compared
 * with its rejected answers at the same index in sorted order, not pair by pair. Private to src/task.
 *
 * A set is a step's pairs, over all ranks and micro-steps. In a validation, sets have the same size and follow the
 * order of the data. */
#ifndef DTRAIN_TASK_AOT_H
#define DTRAIN_TASK_AOT_H

#include "../pair_loss.h"
#include "dpo_loss.h"

/** Values of a pair: summed log-probabilities of its answers. */
enum { DT_AOT_POLICY, DT_AOT_REFERENCE = DT_N_SIDES, DT_AOT_NUMBERS = 2 * DT_N_SIDES };

/** Initialise to {0}. */
typedef struct dt_aot {
    int64_t n_alloc;                    /* pairs */
    double *number;                     /* [n_alloc, DT_AOT_NUMBERS]: of each pair, by side; NULL: not in use */
    double (*partner)[DT_AOT_PARTNERS]; /* [n_alloc]: result of dt_aot_match */
    dt_pair_key *key[2];                /* [n_alloc] each */
} dt_aot;

/** Carve the arrays of n pairs (dt_carve). */
void dt_aot_lay_out(dt_aot *a, int64_t n, void *block, size_t *used);
void dt_aot_match(dt_aot *a, int64_t n_pairs, int64_t n_of_set); /* the last set may be smaller */

#endif
