/* arrange.h - which states of each unit a rank keeps at a stage, and where. The plan and the allocation share this
 * code. */
#ifndef DTRAIN_ZERO_ARRANGE_H
#define DTRAIN_ZERO_ARRANGE_H

#include "dtrain/io/swap_file.h"
#include "dtrain/zero/zero.h"

/** Consecutive trainable elements of a unit's trained part that one optimizer call may update. All have the same
 *  learning rate and the same decay setting, and are divided alike. */
typedef struct zero_run {
    int64_t start, len;
    bool decay;
    int lr_group;
    bool divided; /* its tensors are divided on the axis tp; false: all ranks of that axis have the same */
} zero_run;

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
    /* trained part only */
    /* has no frozen tensor, and all are divided or none: only padding lies between the runs */
    bool all_trainable;
    int first_run, n_runs; /* in zero_layout.runs, ascending */
    int64_t grad_at;       /* offset of the part or its shard in the gradients on the device, elements */
    int64_t opt_at;        /* offset of the part or its shard in each optimizer state, elements */
    int64_t grad_held_at;  /* offset of its gradients in the gradient arena, elements */
} zero_unit_layout;

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
    bool prefetch;                          /* the parameter arenas have room for prefetching the next unit */
    dt_dtype param_dtype[DT_N_PARTS];
    dt_dtype grad_dtype; /* written by backward */
    dt_dtype grad_sent;  /* sent for the reduction */
    dt_dtype grad_kept;  /* type of the kept sums */
    zero_unit_layout *units;
    zero_run *runs;
    int n_runs;
    /* Lengths in elements. opt_len applies to the master, to each optimizer state and to the gradients in host memory,
     * which have the same layout. */
    int64_t params_len[DT_N_PARTS], grads_len, opt_len;
    int64_t away_len[DT_N_PARTS];                        /* parameters that are kept off the device */
    int64_t param_arena_len[DT_N_PARTS], grad_arena_len; /* elements */
    int64_t least_live_len;                              /* minimum length of the parameter arenas, without prefetch */
    /* maximum elements per collective: of the range that a rank is in charge of, and of a shard */
    int64_t reduce_per_rank, gather_per_rank;
    int64_t update_per_rank; /* the same for gathers of gradients in the update (stage 0) */
    size_t param_arena_bytes[DT_N_PARTS], grad_arena_bytes, bucket_bytes, results_bytes, host_bytes;
    size_t watched_bytes; /* 16-byte slots for checking the rank's own gradients: one work slot and one per unit */
    int64_t group_len;    /* elements of a shard that the host updates at a time */
    /* elements of each of the ZERO_GRAD_SLOTS device slots through which gradients go to the host */
    int64_t grad_slot_len;
    int n_buffers;      /* per ring of staging buffers: */
    size_t up_bytes;    /* one buffer of updated parameters for the copy to the device */
    size_t swap_bytes;  /* one buffer of a sub-group's master and states, for reads and writes of the file */
    size_t fetch_bytes; /* one buffer of a part's shard of parameters, for reads and writes of the file */
    bool has_file;
    int n_streams; /* opened by zero itself */
    int n_results; /* 16-byte slots that reductions write on the device */
    dt_memory memory;
    int64_t n_param;
} zero_layout;

enum {
    ZERO_HOST_CHUNK = 65536, /* floats in the host's scratch */
    ZERO_GRAD_SLOTS = 2,     /* one accumulates while the other is copied to the host */
    ZERO_FILE_DEPTH_MAX = 1024
};

/** Bytes of n buffers of nbytes, including the alignment of the first. */
static inline size_t zero_ring_bytes(int n, size_t nbytes) { return nbytes ? (size_t)n * nbytes + DT_SWAP_ALIGN : 0; }
/** File options; the layout must use a file. */
dt_swap_options zero_file_options(const zero_layout *l, const char *dir, dt_ledger *ledger);

dt_err zero_layout_make(zero_layout *l, const dt_zero_options *opt, const dt_unit *units, int n_units, int nranks);
void zero_layout_free(zero_layout *l);
/** dt_zero_saved_nbytes (states_plan.c). */
size_t zero_saved_nbytes(const zero_layout *l, dt_part part);

#endif
