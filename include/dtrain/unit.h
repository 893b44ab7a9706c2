/* unit.h - the unit: a piece of a model whose parameters are one flat buffer with a table of named tensors.
 *
 * What ZeRO gathers, reduces and shards, what activation checkpointing recomputes and what a checkpoint names. model
 * makes the tables, zero owns the buffers, and the four calls of dt_param_source are all that passes between them in a
 * step. */
#ifndef DTRAIN_UNIT_H
#define DTRAIN_UNIT_H

#include "dtrain/core.h"

enum { DT_MAX_DIMS = 4, DT_NAME_MAX = 112, DT_GROUP_ALIGN = 64 };

/** A named tensor inside a unit's flat buffer. Shapes are Hugging Face's. */
typedef struct dt_tensor {
    char name[DT_NAME_MAX]; /* Hugging Face name: the key in checkpoints */
    int n_dims;
    int64_t shape[DT_MAX_DIMS];
    int64_t n_elems; /* product of shape */
    int64_t offset;  /* elements from the start of the unit's flat buffer */
    bool decay;      /* does weight decay apply? */
    bool trainable;
    int lr_group;   /* 0: takes the learning rate of all; else one of its own (dt_zero_update) */
    float init_std; /* random start: N(0, init_std^2) when > 0, else the constant init_value */
    float init_value;
} dt_tensor;

/** Tensors follow one another; where a new group begins the offset is rounded up to DT_GROUP_ALIGN elements. Elements
 *  that belong to no tensor are padding: zero for ever in every state. */
typedef struct dt_unit {
    char name[32]; /* "embed", "block.0", "head" */
    dt_tensor *tensors;
    int n_tensors;
    int64_t n_param;  /* sum of n_elems */
    int64_t flat_len; /* elements, padding inside included */
} dt_unit;

/** Append a tensor to a unit that is being built; new_group rounds its offset up, otherwise it follows the last one
 *  directly, so that adjacent matrices can be used as one (q, k, v; gate, up). shape ends at n_dims. Returns DT_ERR_ARG
 *  on overflow, DT_ERR_MEMORY. */
dt_err dt_unit_add(dt_unit *u, const char *name, int n_dims, const int64_t *shape, bool new_group, bool decay,
                   float init_std, float init_value);
void dt_unit_free(dt_unit *u);

/** What the layer loop computes with: a unit's whole parameters, or where its gradients go. */
typedef struct dt_unit_view {
    void *data; /* [flat_len] of dtype, device memory */
    dt_dtype dtype;
    bool accumulate; /* gradients: false = nothing is there yet, the first write of each tensor overwrites */
} dt_unit_view;

/** The four calls that bracket a unit. All ZeRO stages and offload are what these do. Calls are made in the same order
 *  on every rank, also by a rank with an empty micro-batch. Nesting is allowed (a tied embedding is acquired by the
 *  head while it is held): only the last release counts; grads_release of the last holder says that the unit's
 *  gradients of this micro-step are complete, and every trainable tensor of the unit has been written. Queued work on
 *  `stream` orders them. */
typedef struct dt_param_source {
    void *self;
    dt_err (*params_acquire)(void *self, int unit, dt_unit_view *view);
    dt_err (*params_release)(void *self, int unit);
    dt_err (*grads_acquire)(void *self, int unit, dt_unit_view *view);
    dt_err (*grads_release)(void *self, int unit);
} dt_param_source;

#endif
