/* merge.h - the weights of a model as floats, with its adapters merged. Private to pretrained. */
#ifndef DTRAIN_PRETRAINED_MERGE_H
#define DTRAIN_PRETRAINED_MERGE_H

#include "dtrain/checkpoint/stored.h"

/** A matrix of an adapter, by its name. */
typedef struct merge_part {
    const char *name;
    const dt_slice *slice;
} merge_part;

/** The update of a weight [rows, cols]:  scale L R,  L [rows, rank], R [rank, cols]; rank 0: none. With magnitudes, a
 *  factor for each output follows. For quantised weights also the scales. */
typedef struct merge_delta {
    float *left, *right, scale;
    float *factor;   /* [rows], or [cols] if turned; NULL: no magnitudes */
    bool turned;     /* rows of the weight are inputs */
    bool subtracts;  /* W - s B A */
    float *scales;   /* scales of codes (unit.h), whole; NULL: not quantised */
    uint8_t *blocks; /* likewise; NULL: none */
    int64_t rank, cols;
    /* of all experts of a slot, for the next expert; whole_a: of this slice */
    const dt_slice *whole_of;
    float *whole_a, *whole_b;
    dt_zero *z;        /* that has the adapters: the model itself, or a separate one */
    merge_part *parts; /* [n_parts] of all adapters, sorted */
    int n_parts;
} merge_delta;

/** List the adapters of z. d: out, freed with merge_close. Local. DT_ERR_MEMORY. */
dt_err merge_open(merge_delta *d, dt_zero *z);

/** True if this tensor consists of codes, or if there is an adapter for it. weight: its name, or that of the head tied
 *  to it. Equal on all ranks. */
bool merge_has(const merge_delta *d, const dt_stored_slot *s, const char *weight);
/** Gather the adapter and the scales of a weight from all ranks. own: this rank's error so far, on which the ranks
 *  first agree. Collective, agreed. */
dt_err merge_gather(merge_delta *d, dt_comm *comm, const dt_stored_slot *s, const char *weight, dt_err own);
/** The same without the factors of magnitudes. */
dt_err merge_gather_update(merge_delta *d, dt_comm *comm, const dt_stored_slot *s, const char *weight, dt_err own);
/** w[i] = weight first + i of a tensor of codes. `codes` starts at that weight. Local. */
void merge_codes(const merge_delta *d, const dt_tensor *t, const void *codes, int64_t first, int64_t n, float *w);
/** w[i] += delta of element first + i, i < n, in fp32. Local. DT_ERR_DATA naming the tensor: the sum is not finite. */
dt_err merge_add(const merge_delta *d, const dt_tensor *t, int64_t first, int64_t n, float *w);
/** Transpose the matrix of a tensor; *matrix is replaced. Local. DT_ERR_MEMORY. */
dt_err merge_turn(float **matrix, const dt_tensor *t);
/** Change a weight, or values of its adapter. Collective, agreed. */
typedef dt_err merge_use(merge_delta *d, dt_comm *comm, const dt_stored_slot *s);
/** Call use for each tensor of z, with the adapters in `adapters`. Collective, agreed. */
dt_err merge_each(dt_comm *comm, dt_zero *z, dt_zero *adapters, merge_use *use);
/** Merge the adapters in `adapters` into the weights of z. Collective, agreed. */
dt_err merge_into(dt_comm *comm, dt_zero *z, dt_zero *adapters);
/** The lengths of the rows, or columns if d->turned, of the gathered weight with its update, without factors. They have
 *  the same bits for any division among ranks. own: as merge_gather. length: out, [outputs], malloc'ed. Collective,
 *  agreed. */
dt_err merge_lengths(const merge_delta *d, dt_comm *comm, const dt_stored_slot *s, dt_err own, float **length);
/** The slices of A and B of a linear layer's weight; false: it has no adapter. Local. */
bool merge_of_layer(const merge_delta *d, const dt_stored_slot *s, const dt_slice **a, const dt_slice **b);
/** The slice of the magnitudes of a weight's adapter; NULL: none. */
const dt_slice *merge_magnitude(const merge_delta *d, const char *weight);
void merge_free(merge_delta *d);  /* of one weight; safe on {0} */
void merge_close(merge_delta *d); /* safe on {0} */
/** A whole parameter as floats, on every rank. own: as merge_gather. whole: out, malloc'ed. Collective, agreed. */
dt_err merge_join(dt_comm *comm, dt_zero *z, const dt_slice *p, dt_err own, float **whole);

#endif
