/* merge.h - the weights of a model as numbers, with its adapters in them. Private to pretrained. */
#ifndef DTRAIN_PRETRAINED_MERGE_H
#define DTRAIN_PRETRAINED_MERGE_H

#include "dtrain/checkpoint/stored.h"

/** What is added to a weight [rows, cols]:  scale L R,  L [rows, rank], R [rank, cols]; rank 0: nothing. And what its
 *  codes are multiplied by, where it is stored so. */
typedef struct merge_delta {
    float *left, *right, scale;
    float *scales;   /* of codes (unit.h), whole; NULL: it is stored as floats */
    uint8_t *blocks; /* likewise; NULL: it has none */
    int64_t rank, cols;
} merge_delta;

/** Is this tensor codes, or has it an adapter among the tensors of z, its own model's or another? weight: its name, or
 *  that of the head that is tied to it. The same on all ranks. */
bool merge_has(dt_zero *z, const dt_stored_slot *s, const char *weight);
/** Fetch the whole adapter and the scales of a weight from the ranks that have parts of them. conv1d: the weights of
 *  blocks are stored [in, out]. own: what happened on this rank until now; the first thing is that all agree on it.
 *  Collective, agreed. */
dt_err merge_gather(merge_delta *d, dt_comm *comm, dt_zero *z, const dt_stored_slot *s, const char *weight, bool conv1d,
                    dt_err own);
/** w[i] = weight first + i of a tensor of codes, which begin with that one's. Local. */
void merge_codes(const merge_delta *d, const dt_tensor *t, const void *codes, int64_t first, int64_t n, float *w);
/** w[i] += delta of element first + i, i < n. In fp32. Local. DT_ERR_DATA naming the tensor: the sum is not finite. */
dt_err merge_add(const merge_delta *d, const dt_tensor *t, int64_t first, int64_t n, float *w);
/** Add to the weights of z the adapters that are in another. Collective, agreed. */
dt_err merge_into(dt_comm *comm, dt_zero *z, dt_zero *adapters, bool conv1d);
void merge_free(merge_delta *d); /* safe on {0} */

#endif
