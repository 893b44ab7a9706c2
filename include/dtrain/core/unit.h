/* unit.h - units: parts of a model whose parameters are flat buffers, trained and frozen, with a table of named
 * tensors.
 *
 * ZeRO gathers, reduces and shards units, activation checkpointing recomputes them, and checkpoints name their tensors.
 * The model builds the tables, and ZeRO owns the buffers. In a step they interact only through dt_param_source. Every
 * function is Local. */
#ifndef DTRAIN_UNIT_H
#define DTRAIN_UNIT_H

#include "dtrain/core/core.h"

enum { DT_MAX_DIMS = 5, DT_NAME_MAX = 112, DT_GROUP_ALIGN = 64 };

/** The flat buffers of a unit, each with its own type. Only the trained part has gradients and optimizer states, at the
 *  same offsets as the parameters. DT_EXACT has frozen values that are float in every run, and are never trained.
 *
 *  A frozen matrix may be quantised (adapter.h): stored as codes, with scales.
 *
 *               DT_CODES                         DT_BLOCKS                   DT_SCALES
 *      int8     [out, in] int8                   -                           [out] float, W_oi = code_oi scale_o
 *      nf4      [out in / 2], two to a byte      [out in / 64] bytes         [n, 2] float: nf4.h */
typedef enum dt_part { DT_TRAINED, DT_FROZEN, DT_EXACT, DT_CODES, DT_BLOCKS, DT_SCALES, DT_N_PARTS } dt_part;

/** A matrix stored as codes: the same description in all tensors that store it. */
typedef struct dt_coded {
    dt_dtype type; /* of the codes: DT_I8 or DT_NF4X2 */
    int64_t n_out, n_in;
    bool turned;               /* files store it as [n_in, n_out], as GPT-2's */
    int codes, blocks, scales; /* indices of its tensors in the unit's table; blocks: -1 with int8 */
    int finer;                 /* of nf4 (dt_scaled) */
} dt_coded;

/** What a tensor is in its model. */
typedef enum dt_tensor_kind {
    DT_KIND_VECTOR,    /* biases and others */
    DT_KIND_NORM,      /* weights of norms */
    DT_KIND_MATRIX,    /* of linear layers inside of the model, and of adapters */
    DT_KIND_EMBEDDING, /* tables of tokens and of positions */
    DT_KIND_HEAD,      /* from hidden states to logits, or to scores */
    DT_KIND_PATCHES,   /* the kernel of a vision tower's first layer */
} dt_tensor_kind;

/** Which settings of adapters include a matrix. */
typedef enum dt_adapter_site {
    DT_SITE_NONE,
    DT_SITE_IDLE,      /* never, because nothing is computed with it; PEFT's adapters of it are ignored */
    DT_SITE_PARAMETER, /* only as a parameter: transformers has it, but not as a layer */
    DT_SITE_NAMED,     /* only if its module is named */
    DT_SITE_LINEAR,    /* also as one of all linear layers */
    DT_SITE_DEFAULT,   /* also by default */
} dt_adapter_site;

/** Rows first .. end-1 of a tensor: indices of its first dimension. */
typedef struct dt_row_range {
    int64_t first, end;
} dt_row_range;

/** Files may store the tensors of a group as one, or a tensor with another name. The tensor's elements are one or more
 *  runs of elements of the stored one. */
typedef struct dt_fused {
    /* static: replaces the tensor's name after its first n_prefix characters; %d in it is the number of the tensor's
     * block; NULL: none */
    const char *name;
    int n_prefix;
    const char *suffix;  /* static: follows the name; NULL: nothing */
    int64_t first;       /* the first element */
    int64_t run, stride; /* elements of a run, and from one run to the next; run 0: there is one */
    int n_dims;          /* of the stored tensor */
    int64_t shape[3];
    bool saved;       /* exported directories have it, instead of the tensor */
    bool either;      /* files may have the transpose of each matrix */
    bool own_code;    /* it is of a model with its own code: all tensors of such files have other names */
    const char *head; /* static: the module of such files' head, which a tied or a reward model lacks; NULL: none */
} dt_fused;

/** Beginnings of names: here, and of the same tensors' modules in transformers. A list ends with {NULL}. */
typedef struct dt_renaming {
    const char *here, *there;
} dt_renaming;
/** The name there, by the first entry that applies; r may be NULL: the same name. */
void dt_rename(const dt_renaming *r, const char *name, char *out, size_t size);

/** A named tensor in one part of a unit. Names and shapes are Hugging Face's. */
typedef struct dt_tensor {
    char name[DT_NAME_MAX]; /* the key in checkpoints */
    int n_dims;
    int64_t shape[DT_MAX_DIMS];
    int64_t n_elems; /* product of shape */
    dt_part part;
    int64_t offset; /* elements from the start of the part */
    bool new_group; /* begins a group: adjacent tensors that one matmul can use */
    bool trainable; /* it is updated; false in the trained part: a frozen tensor in a group with trained ones */
    /* [n_row_ranges] only these rows of an updated tensor are updated: ascending, with gaps; borrowed. Gradients of the
     * other rows are not used. n_row_ranges 0: all rows are updated */
    const dt_row_range *row_ranges;
    int n_row_ranges;
    bool decay;   /* weight decay applies */
    int lr_group; /* index of its learning rate (dt_zero_update); 0: the common one */
    /* initial values: N(0, init_std^2) if init_std > 0, else U(-init_bound, init_bound) if init_bound > 0, else the
     * constant init_value */
    float init_std, init_bound, init_value;
    dt_coded coded; /* in DT_CODES, DT_BLOCKS and DT_SCALES */
    /* of the A [n r, in] or B [n out, r] of the adapters of all n experts of a slot, one after the other; 1: of a
     * router; 0: of a layer */
    int64_t adapter_experts;
    int adapter_depth;   /* in PEFT: number of later parameters of the same module with adapters */
    float adapter_scale; /* factor s of s B A x, if it is the A or B of a low-rank adapter (adapter.h); else 0 */
    /* set by the model */
    dt_tensor_kind kind; /* dt_unit_add: MATRIX with two dimensions, else VECTOR */
    dt_adapter_site site;
    bool quantisable; /* may be stored as codes */
    bool in_first;    /* a matrix is [in, out] instead of [out, in] */
    bool of_expert;   /* of one expert of a mixture: only some tokens use it */
    int64_t expert;   /* its number */
    int split;        /* dimension that tensor parallelism divides; -1: none, every rank has the whole tensor */
    /* the tensor is divided in dimension split: this rank's part begins at index split_first of split_whole, and shape
     * and n_elems are those of the part. split_whole 0: not divided, and alike on all ranks of the axis tp */
    int64_t split_first, split_whole;
    dt_fused fused;
    const dt_renaming *renamings; /* of its name; NULL: none */
} dt_tensor;
/** The tensor that files may store instead, with its name, n_dims and shape; other fields as in t. t->fused.name is not
 *  NULL. */
dt_tensor dt_tensor_fused(const dt_tensor *t);

/** Consecutive elements of a tensor's part that are also consecutive in the whole tensor: n elements, the first of them
 *  element `whole` there. */
typedef struct dt_tensor_run {
    int64_t whole, n;
} dt_tensor_run;
/** The longest run that begins at element `first` of the part, of at most n elements. */
dt_tensor_run dt_tensor_run_of(const dt_tensor *t, int64_t first, int64_t n);
/** The whole tensor, as files store it. */
dt_tensor dt_tensor_whole(const dt_tensor *t);

/** Role of a unit in a model. A batch passes through the embedding, then all units that are neither embedding nor head
 *  in the order of the list, then the head. */
typedef enum dt_unit_role {
    DT_UNIT_BLOCK,       /* causal attention and an MLP: one of num_hidden_layers */
    DT_UNIT_ENCODER,     /* the same with bidirectional attention; not among num_hidden_layers */
    DT_UNIT_EXPERTS,     /* matrices of some experts of the block before it: held while that block is */
    DT_UNIT_NORM,        /* a norm, such as the one after the last block of a vision tower */
    DT_UNIT_EMBEDDING,   /* tables of tokens and of positions */
    DT_UNIT_HEAD,        /* final norm and vocabulary matmul */
    DT_UNIT_SCALAR_HEAD, /* final norm and a few values for each token */
    DT_UNIT_PATCHES,     /* first unit of a vision tower; after all units of the language model */
    DT_UNIT_PROJECTOR,   /* from the tower's features to rows of the language model */
    DT_UNIT_CARRIED,     /* only stored in files: not computed with and not trained */
    DT_N_UNIT_ROLES
} dt_unit_role;

/** Weights per element, and weights of a tensor. Codes count as the weights of their matrix; its blocks and scales
 *  count as none. */
static inline int dt_weights_per_elem(const dt_tensor *t)
{
    return t->part == DT_CODES && t->coded.type == DT_NF4X2 ? 2 : 1;
}
static inline int64_t dt_n_weights(const dt_tensor *t)
{
    return t->part < DT_CODES ? t->n_elems : t->part == DT_CODES ? t->coded.n_out * t->coded.n_in : 0;
}
/** The same of the whole tensor, if this is a part of it. */
static inline int64_t dt_n_weights_of_whole(const dt_tensor *t)
{
    return t->split_whole > 0 ? dt_n_weights(t) / t->shape[t->split] * t->split_whole : dt_n_weights(t);
}
/** Is it a matrix of weights, stored as values or as codes? */
static inline bool dt_is_matrix(const dt_tensor *t)
{
    return t->part == DT_CODES || (t->part < DT_CODES && t->n_dims == 2);
}

/** A unit. In each part, tensors follow one another in the order of the table; a new group begins at a multiple of
 *  DT_GROUP_ALIGN elements, in the trained part of trained_align. Elements that belong to no tensor are padding: always
 *  zero, in every state. */
typedef struct dt_unit {
    char name[32]; /* "embed", "block.0", "head" */
    dt_unit_role role;
    dt_tensor *tensors;
    int n_tensors;
    int64_t n_param;              /* weights: sum of dt_n_weights */
    int64_t flat_len[DT_N_PARTS]; /* elements of each part, with inner padding; 0: an empty part */
    int64_t trained_align;        /* groups of the trained part begin at its multiples; 0: DT_GROUP_ALIGN */
} dt_unit;

/** Append a trained tensor to a unit that is being built.
 *
 *  name        copied; below DT_NAME_MAX bytes
 *  shape       in  [n_dims]
 *  new_group   begin a group at an aligned offset; false: directly after the last tensor, so that one matmul
 *              can use both (q, k, v; gate, up)
 *  decay, init_std, init_value  of dt_tensor
 *
 *  DT_ERR_ARG: n_dims, name or too many elements. DT_ERR_MEMORY. */
dt_err dt_unit_add(dt_unit *u, const char *name, int n_dims, const int64_t *shape, bool new_group, bool decay,
                   float init_std, float init_value);
/** Free the table. Leaves {0}. */
void dt_unit_free(dt_unit *u);
/** Free units and their tables. Safe on NULL. */
void dt_units_free(dt_unit *units, int n_units);

/** Is this tensor to be trained? */
typedef bool (*dt_trains)(void *self, const dt_tensor *t);
/** Choose the trained tensors, and lay out all parts again. Before the units are borrowed.
 *
 *  A group is in one part; DT_EXACT stays. With one trained tensor, the whole group is in the trained part; gradients
 *  of its other tensors are not used, and these are not updated. trained NULL: all tensors are frozen. */
void dt_units_choose_trained(dt_unit *units, int n_units, dt_trains trained, void *self);
/** Assign offsets again, after the parts of tensors have changed. */
void dt_unit_lay_out(dt_unit *u);
/** Index of the first tensor after the group that begins at `first`. */
int dt_unit_end_of_group(const dt_unit *u, int first);
/** Index of the first unit with this role; -1: none. */
int dt_units_find(const dt_unit *units, int n_units, dt_unit_role role);
/** Number of weights of a model, whose tensors count as a whole. */
int64_t dt_units_n_weights(const dt_unit *units, int n_units);
/** Number of elements that are updated, with row ranges applied, of whole tensors; 0 for a frozen model. */
int64_t dt_units_n_trainable(const dt_unit *units, int n_units);
/** The same of one tensor. */
int64_t dt_tensor_n_trainable(const dt_tensor *t);

/** Copy units. The matrices of experts get units of their own (DT_UNIT_EXPERTS), of `size` experts each, if the block
 *  has more experts. After the block's unit follow those of first matrices, then those of last matrices. size 0: none.
 *  Units that are grouped already stay so. Called after the choice of trained tensors and quantisation.
 *
 *  grouped  out  [n_grouped], freed with dt_units_free; NULL on error
 *
 *  DT_ERR_MEMORY. */
dt_err dt_units_group_experts(const dt_unit *units, int n_units, int64_t size, dt_unit **grouped, int *n_grouped);
/** The same in place of the units, which are freed. */
dt_err dt_units_take_groups(dt_unit **units, int *n_units, int64_t size);
/** Maximum number of experts of a block's unit; 0: no experts, or all blocks are grouped. */
int64_t dt_units_n_experts(const dt_unit *units, int n_units);

/** A unit's whole parameters. */
typedef struct dt_param_view {
    struct {
        void *data; /* [flat_len] of dtype, device memory; NULL: an empty part */
        dt_dtype dtype;
    } part[DT_N_PARTS];
} dt_param_view;

/** Destination of the gradients of a unit's trained part. */
typedef struct dt_grad_view {
    void *data; /* [flat_len[DT_TRAINED]] of dtype, device memory */
    dt_dtype dtype;
    bool accumulate; /* false: the content is undefined; the first write of each tensor overwrites it */
} dt_grad_view;

/** Access to the parameters and gradients of units: four calls that bracket each use of a unit. ZeRO stages and offload
 *  are implemented by them. Collective: every rank makes the calls in the same order, also with an empty micro-batch.
 *  The calls may queue work, which is ordered by the model's stream.
 *
 *  Calls may be nested (the head acquires a tied embedding that is held already): only the last release counts. The
 *  last grads_release means that the unit's gradients of this micro-step are complete: every tensor of the trained part
 *  was written. Gradients of a unit without a trained part are never acquired. */
typedef struct dt_param_source {
    void *self;
    dt_err (*params_acquire)(void *self, int unit, dt_param_view *view);
    dt_err (*params_release)(void *self, int unit);
    dt_err (*grads_acquire)(void *self, int unit, dt_grad_view *view);
    dt_err (*grads_release)(void *self, int unit);
    /* Are all parameters in memory, at permanent addresses? Then params_acquire and params_release queue nothing until
     * the next update, and may be omitted. Local. NULL: never */
    bool (*params_resident)(void *self);
} dt_param_source;

#endif
