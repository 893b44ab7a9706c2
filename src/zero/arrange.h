/* arrange.h - which states of each unit a rank keeps at a stage, and where. */
#ifndef DTRAIN_ZERO_ARRANGE_H
#define DTRAIN_ZERO_ARRANGE_H

#include "dtrain/io/swap_file.h"
#include "dtrain/zero/zero.h"

/** Consecutive trainable elements of a unit's trained part that one optimizer call may update. All have the same
 *  learning rate and the same decay setting, and are divided alike. */
typedef struct zero_run {
    int64_t start, len;
    bool decay, plain; /* plain: its states are fp32 for any state_dtype */
    int lr_group;
    int matrix;   /* index of the matrix that it is; -1: none */
    bool divided; /* its tensors are divided on the axis tp; false: all ranks of that axis have the same */
} zero_run;

/** A matrix that an optimizer changes as a whole, and the rank that computes the change. */
typedef struct zero_matrix {
    int unit;
    int64_t start, rows, cols; /* start: in the unit's trained part */
    int owner;                 /* on the axis sum: that rank at stage 0, else its block, shard * n_groups + group */
    int64_t owned_at;          /* elements from the start of its own matrices */
} zero_matrix;
static inline int64_t zero_matrix_len(const zero_matrix *m) { return m->rows * m->cols; }

/** Adjacent trained tensors of a unit with the same arrays. */
typedef struct zero_span {
    int64_t start, len;
    bool plain;
    unsigned states; /* bit k: state k */
} zero_span;

/** An array that the optimizer keeps: the master, or a state. A state in 8 bits has three: codes, scales, and the
 *  states of plain spans. */
typedef struct zero_array {
    dt_dtype dtype;
    int64_t per; /* elements of a trained part per entry: 1; of scales DT_BLOCK8 */
    int state;   /* -1: the master */
    bool packed; /* it stores only the spans that it covers; otherwise all elements */
    bool of_plain;
    dt_memspace space;
    int64_t len;        /* entries of a rank */
    int64_t *packed_at; /* [n_units] offset of each unit's shard, in entries; NULL unless packed */
} zero_array;
enum { ZERO_MASTER, ZERO_MAX_ARRAYS = 1 + 3 * DT_MAX_STATES };

/** One part of a unit, partitioned into equal shards. */
typedef struct zero_part_layout {
    dt_shards shards;  /* all 0: the part is empty, and nothing is stored or sent */
    bool whole;        /* kept whole on every rank; otherwise gathered into the arena while it is held */
    dt_memspace space; /* memory space of the part or its shard; whole parts are on the device */
    int64_t kept_at;   /* offset in the parameter buffer of that memory space, elements */
    int64_t held_at;   /* offset in the arena while it is held, elements */
} zero_part_layout;

typedef struct zero_unit_layout {
    zero_part_layout part[DT_N_PARTS];
    bool inner; /* held while the unit before it is (DT_UNIT_EXPERTS) */
    /* trained part only */
    /* has no frozen tensor, and all are divided or none: only padding lies between the runs */
    bool all_trainable;
    int first_run, n_runs; /* in zero_layout.runs, ascending */
    int first_span, n_spans;
    int first_matrix, n_matrices;
    int64_t grad_at;      /* offset of the part or its shard in the gradients on the device, elements */
    int64_t opt_at;       /* offset of the part or its shard in each optimizer state, elements */
    int64_t grad_held_at; /* offset of its gradients in the gradient arena, elements */
} zero_unit_layout;

enum { ZERO_RESULT_NBYTES = 16 }; /* slot of a reduction's result: a double or a float, aligned */

typedef struct zero_layout {
    int nranks, n_groups, group_nranks, n_units;
    /* With one rank per group a shard is the whole part and all stages are the same: 1. With offload: the stage of the
     * options, but 1 instead of 0. */
    int stage;
    bool has_grads;   /* an optimizer is set, and some tensor is trainable */
    bool whole_grads; /* gradients accumulate in full buffers; otherwise in shards, through the gradient arena */
    bool whole_opt;   /* every rank keeps and updates all optimizer states (stage 0) */
    bool has_master;  /* fp32 master weights are kept because parameters have another type or memory space */
    bool grads_down;  /* gradient sums are kept in host memory; on the device they pass through slots */
    dt_memspace opt_space, host_grad_space; /* memory space of master and states, and of those sums */
    dt_memspace away_space;                 /* memory space of parameters that are not kept whole */
    int n_states;                           /* of the optimizer */
    dt_dtype state_dtype;
    /* the master, the states, and in 8 bits the scales of the states and their plain spans, in this order; without
     * gradients only the (empty) master */
    zero_array array[ZERO_MAX_ARRAYS];
    int n_arrays;
    zero_matrix *matrices;
    int n_matrices;
    /* maximum elements: of the directions of a unit that a rank has; of their blocks for an all-to-all, 0: none is
     * needed; of the matrices that a rank owns */
    int64_t direction_len, blocks_len, owned_len;
    size_t *block_nbytes; /* [3 * group_nranks] sizes of the blocks of a unit (matrices.c) */
    size_t matrix_scratch_bytes;
    int64_t scratch_len; /* elements of each state that an update converts to fp32 at a time; 0: they are fp32 */
    bool prefetch;       /* the parameter arenas have room for prefetching the next unit */
    dt_dtype param_dtype[DT_N_PARTS];
    dt_dtype grad_dtype; /* written by backward */
    dt_dtype grad_sent;  /* sent for the reduction */
    dt_dtype grad_kept;  /* type of the kept sums */
    zero_unit_layout *units;
    zero_run *runs;
    int n_runs;
    zero_span *spans;
    int n_spans;
    /* Lengths in elements. opt_len applies to all arrays that are not packed and to the gradients in host memory, which
     * have the same layout. */
    int64_t params_len[DT_N_PARTS], grads_len, opt_len;
    int64_t away_len[DT_N_PARTS];                        /* parameters that are kept off the device */
    int64_t param_arena_len[DT_N_PARTS], grad_arena_len; /* elements */
    int64_t least_live_len;                              /* minimum length of the parameter arenas, without prefetch */
    /* maximum elements per collective: of the range that a rank is in charge of, and of a shard */
    int64_t reduce_per_rank, gather_per_rank;
    int64_t update_per_rank; /* the same for gathers of gradients in the update (stage 0) */
    size_t param_arena_bytes[DT_N_PARTS], grad_arena_bytes, bucket_bytes, results_bytes, host_bytes;
    size_t watched_bytes; /* result slots for checking the rank's own gradients: one work slot and one per unit */
    int64_t group_len;    /* elements of a shard that the host updates at a time */
    /* elements of each of the ZERO_GRAD_SLOTS device slots through which gradients go to the host */
    int64_t grad_slot_len;
    int n_buffers;      /* per ring of staging buffers: */
    size_t up_bytes;    /* one buffer of updated parameters for the copy to the device */
    size_t swap_bytes;  /* one buffer of a sub-group's master and states, for reads and writes of the file */
    size_t fetch_bytes; /* one buffer of a part's shard of parameters, for reads and writes of the file */
    bool has_file;
    int n_streams; /* opened by zero itself */
    int n_results; /* slots that reductions write on the device */
    int64_t n_param;
} zero_layout;

enum {
    ZERO_STATE_CHUNK = 1 << 18, /* maximum of scratch_len: stays in a cache between load, step and store */
    ZERO_PACKED_ALIGN = 256,    /* elements: aligned vectors, and whole blocks of 8-bit states */
    ZERO_HOST_CHUNK = 65536,    /* floats in the host's scratch */
    ZERO_GRAD_SLOTS = 2,        /* one accumulates while the other is copied to the host */
    ZERO_FILE_DEPTH_MAX = 1024
};

/** Bytes of n buffers of nbytes, including the alignment of the first. */
static inline size_t zero_ring_bytes(int n, size_t nbytes) { return nbytes ? (size_t)n * nbytes + DT_SWAP_ALIGN : 0; }
/** File options; the layout must use a file. */
dt_swap_options zero_file_options(const zero_layout *l, const char *dir, dt_ledger *ledger);

dt_err zero_layout_make(zero_layout *l, const dt_zero_options *opt, const dt_unit *units, int n_units, int nranks);
void zero_layout_free(zero_layout *l);
/** Indices of the arrays of state k: fp32, bf16 or codes; scales; plain spans. */
static inline int zero_state_array(int k) { return 1 + k; }
static inline int zero_scale_array(const zero_layout *l, int k) { return 1 + l->n_states + k; }
static inline int zero_plain_array(const zero_layout *l, int k) { return 1 + 2 * l->n_states + k; }
/** Elements of unit u's trained part before element x that array a stores, with gaps that keep the alignment of
 *  spans. */
int64_t zero_packed(const zero_layout *l, int a, int u, int64_t x);
/** The packed element at which the region of the shard that begins at x begins. */
static inline int64_t zero_packed_base(const zero_layout *l, int a, int u, int64_t x)
{
    return zero_packed(l, a, u, x) / ZERO_PACKED_ALIGN * ZERO_PACKED_ALIGN;
}
/** Bytes of array a per rank. */
static inline size_t zero_array_nbytes(const zero_layout *l, int a)
{
    return (size_t)l->array[a].len * dt_dtype_size(l->array[a].dtype);
}
/** Assign the matrices to ranks and set the sizes that follow (matrices.c). */
dt_err zero_assign_matrices(zero_layout *l, const dt_matrix_optimizer *optimizer);
/** Number of elements of a matrix in the shard of rank r of a group. first: out, the first of them in the unit. */
int64_t zero_matrix_in_shard(const zero_layout *l, const zero_matrix *m, int r, int64_t *first);
/** Bytes of the update's scratch: fp32 copies of scratch_len elements of each state. */
static inline size_t zero_scratch_nbytes(const zero_layout *l)
{
    return (size_t)l->n_states * (size_t)l->scratch_len * sizeof(float);
}
/** Bytes of the arrays before array `end` that are in a memory space. */
size_t zero_arrays_nbytes(const zero_layout *l, dt_memspace space, int end);
/** dt_zero_saved_nbytes (states_plan.c). */
size_t zero_saved_nbytes(const zero_layout *l, dt_part part);

#endif
