/* unit.h - the unit: a piece of a model whose parameters are flat buffers, what is trained and what is frozen, with a
 * table of named tensors.
 *
 * What ZeRO gathers, reduces and shards, what activation checkpointing recomputes and what a checkpoint names. model
 * makes the tables, zero owns the buffers, and the four calls of dt_param_source are all that passes between them in a
 * step. */
#ifndef DTRAIN_UNIT_H
#define DTRAIN_UNIT_H

#include "dtrain/core/core.h"
#include "dtrain/core/int8.h"

enum { DT_MAX_DIMS = 4, DT_NAME_MAX = 112, DT_GROUP_ALIGN = 64 };

/** A unit's flat buffers. Gradients and optimizer states exist for the trained part alone, so that an element's
 *  gradient and states have the offset of its parameter. Each part has a type of its own.
 *
 *  What is frozen may be stored in fewer bits (adapter.h): a matrix as codes, with what they are multiplied by.
 *
 *               DT_CODES                         DT_BLOCKS                   DT_SCALES
 *      int8     [out, in] int8                   -                           [out] float, W_oi = code_oi scale_o
 *      nf4      [out in / 2], two to a byte      [out in / 64] bytes         [n, 2] float: nf4.h */
typedef enum dt_part { DT_TRAINED, DT_FROZEN, DT_CODES, DT_BLOCKS, DT_SCALES, DT_N_PARTS } dt_part;

/** A matrix that is stored as codes: what all tensors that it is made of say of it. */
typedef struct dt_coded {
    dt_dtype type; /* of the codes: DT_I8 or DT_NF4X2 */
    int64_t n_out, n_in;
    bool turned;               /* it is [n_in, n_out] elsewhere, as in GPT-2's files */
    int codes, blocks, scales; /* numbers in the unit's table; blocks: -1 with int8 */
    int finer;                 /* of nf4 (dt_scaled) */
    dt_int8_product int8;      /* of int8: how forward multiplies */
} dt_coded;

/** Rows first .. end-1 of a tensor: places in its first dimension. */
typedef struct dt_row_range {
    int64_t first, end;
} dt_row_range;

/** A named tensor inside one part of a unit. Shapes are Hugging Face's. */
typedef struct dt_tensor {
    char name[DT_NAME_MAX]; /* Hugging Face name: the key in checkpoints */
    int n_dims;
    int64_t shape[DT_MAX_DIMS];
    int64_t n_elems; /* product of shape */
    dt_part part;
    int64_t offset; /* elements from the start of the part */
    bool new_group; /* begins a group: tensors that lie next to one another, so that one product can use them */
    bool trainable; /* is it updated? false in the trained part: a frozen tensor of a group with trained ones */
    /* of a tensor that is updated: only these of its rows are, ascending, with rows between them; borrowed. The others
     * have gradients that nobody uses. n_row_ranges 0: all are */
    const dt_row_range *row_ranges;
    int n_row_ranges;
    bool decay;   /* does weight decay apply? */
    int lr_group; /* 0: takes the learning rate of all; else one of its own (dt_zero_update) */
    /* random start: N(0, init_std^2) when > 0, else U(-init_bound, init_bound) when > 0, else the constant
     * init_value */
    float init_std, init_bound, init_value;
    dt_coded coded;      /* in DT_CODES and behind */
    float adapter_scale; /* it is the A or B of a low-rank adapter (adapter.h): what B A x is added with; else 0 */
} dt_tensor;

/** What a unit does in a model. A batch passes through the embedding, through all that is neither it nor a head in the
 *  order of the list, and through the head. */
typedef enum dt_unit_role {
    DT_UNIT_BLOCK,       /* causal attention and an MLP: one of num_hidden_layers */
    DT_UNIT_ENCODER,     /* the same with attention in both directions; besides those */
    DT_UNIT_OWN,         /* what a caller brings (dt_model_options.own_stage) */
    DT_UNIT_EMBEDDING,   /* tables of tokens and of positions */
    DT_UNIT_HEAD,        /* final norm and vocabulary product */
    DT_UNIT_SCALAR_HEAD, /* final norm and a few numbers for each token */
    DT_UNIT_PATCHES,     /* what a vision tower begins with: behind all units of the language model */
    DT_UNIT_PROJECTOR,   /* from the tower's features to rows of the language model */
    DT_UNIT_CARRIED,     /* in files alone: nothing is computed with it, and it is not trained */
    DT_N_UNIT_ROLES
} dt_unit_role;

/** Weights that one element stands for, and weights that a tensor has: of codes those of the matrix, which what goes
 *  with them has not again. */
static inline int dt_weights_per_elem(const dt_tensor *t)
{
    return t->part == DT_CODES && t->coded.type == DT_NF4X2 ? 2 : 1;
}
static inline int64_t dt_n_weights(const dt_tensor *t)
{
    return t->part < DT_CODES ? t->n_elems : t->part == DT_CODES ? t->coded.n_out * t->coded.n_in : 0;
}
/** Is it a matrix of weights, stored as numbers or as codes? */
static inline bool dt_is_matrix(const dt_tensor *t)
{
    return t->part == DT_CODES || (t->part < DT_CODES && t->n_dims == 2);
}

/** In each part tensors follow one another in the order of the table; where a new group begins the offset is rounded up
 *  to DT_GROUP_ALIGN elements. Elements that belong to no tensor are padding: zero for ever in every state. */
typedef struct dt_unit {
    char name[32]; /* "embed", "block.0", "head" */
    dt_unit_role role;
    dt_tensor *tensors;
    int n_tensors;
    int64_t n_param;              /* weights: sum of dt_n_weights */
    int64_t flat_len[DT_N_PARTS]; /* elements of each part, padding inside included; 0: nothing is in it */
} dt_unit;

/** Append a tensor that is trained to a unit that is being built; new_group rounds its offset up, otherwise it follows
 *  the last one directly, so that adjacent matrices can be used as one (q, k, v; gate, up). shape ends at n_dims.
 *  Returns DT_ERR_ARG on overflow, DT_ERR_MEMORY. */
dt_err dt_unit_add(dt_unit *u, const char *name, int n_dims, const int64_t *shape, bool new_group, bool decay,
                   float init_std, float init_value);
void dt_unit_free(dt_unit *u);

/** Say which tensors of built units are trained, and lay out their parts anew; trained NULL: none is. A group is in one
 *  part: with one trained tensor all of it is in the trained part, where the others have gradients that nobody uses and
 *  are not updated. Before anyone borrows the units. */
typedef bool (*dt_trains)(void *self, const dt_tensor *t);
void dt_units_choose_trained(dt_unit *units, int n_units, dt_trains trained, void *self);
/** Lay out a unit's parts anew, after its tensors' parts were changed. */
void dt_unit_lay_out(dt_unit *u);
/** The first tensor after the group that begins at `first`. */
int dt_unit_end_of_group(const dt_unit *u, int first);
/** The first unit of a role; -1: there is none. */
int dt_units_find(const dt_unit *units, int n_units, dt_unit_role role);
/** Elements that are updated: 0 for a frozen model. */
int64_t dt_units_n_trainable(const dt_unit *units, int n_units);
int64_t dt_tensor_n_trainable(const dt_tensor *t);

/** What the layer loop computes with: a unit's whole parameters. */
typedef struct dt_param_view {
    struct {
        void *data; /* [flat_len] of dtype, device memory; NULL: nothing is in this part */
        dt_dtype dtype;
    } part[DT_N_PARTS];
} dt_param_view;

/** Where the gradients of its trained part go. */
typedef struct dt_grad_view {
    void *data; /* [flat_len[DT_TRAINED]] of dtype, device memory */
    dt_dtype dtype;
    bool accumulate; /* false: nothing is there yet, the first write of each tensor overwrites */
} dt_grad_view;

/** The four calls that bracket a unit. All ZeRO stages and offload are what these do. Calls are made in the same order
 *  on every rank, also by a rank with an empty micro-batch. Nesting is allowed (a tied embedding is acquired by the
 *  head while it is held): only the last release counts; grads_release of the last holder says that the unit's
 *  gradients of this micro-step are complete: every tensor of its trained part has been written. Gradients of a unit
 *  that has no such part are never asked for. Queued work on `stream` orders them. */
typedef struct dt_param_source {
    void *self;
    dt_err (*params_acquire)(void *self, int unit, dt_param_view *view);
    dt_err (*params_release)(void *self, int unit);
    dt_err (*grads_acquire)(void *self, int unit, dt_grad_view *view);
    dt_err (*grads_release)(void *self, int unit);
    /* Are all parameters there, at addresses that they have for good? Until they are next updated the two calls for
     * parameters then queue nothing, and may be left out. Local. NULL: never */
    bool (*params_resident)(void *self);
} dt_param_source;

#endif
