/* arrange.h - what a rank keeps of each unit at a stage, and where: the arithmetic that the plan and the allocation
 * share. */
#ifndef DTRAIN_ZERO_ARRANGE_H
#define DTRAIN_ZERO_ARRANGE_H

#include "dtrain/io/swap_file.h"
#include "dtrain/zero/zero.h"

/** Consecutive elements of a unit's trained part that one step of the optimizer may take: trainable, of one learning
 *  rate, and all with or all without decay. */
typedef struct zero_run {
    int64_t start, len;
    bool decay;
    int lr_group;
} zero_run;

/** One part of a unit, cut into equal shards. */
typedef struct zero_part_layout {
    dt_shards shards; /* all 0: nothing is in the part, and nothing is kept or sent */
    bool whole;       /* kept whole on every rank, else gathered into the arena while it is held */
    dt_place place;   /* where it (or its shard) is kept: what is kept whole is on the device */
    int64_t kept_at;  /* where it begins in the parameters of all such parts in that place, elements */
    int64_t held_at;  /* where it stands in the arena of all such parts while it is held, elements */
} zero_part_layout;

typedef struct zero_unit_layout {
    zero_part_layout part[DT_N_PARTS];
    /* of the trained part alone */
    bool all_trainable;    /* no frozen tensor is in it: what lies between the runs is padding alone */
    int first_run, n_runs; /* in zero_layout.runs, ascending */
    int64_t grad_at;       /* where it (or its shard) begins in the gradients on the device, elements */
    int64_t opt_at;        /* where it (or its shard) begins in each optimizer state, elements */
    int64_t grad_held_at;  /* where its gradients stand in their arena, elements */
} zero_unit_layout;

typedef struct zero_layout {
    int nranks, n_groups, group_nranks, n_units;
    /* 1 on the lone rank of a group, where a shard is the whole and all stages are the same; with offload that of the
     * options, or 1 for 0 */
    int stage;
    bool has_grads;   /* there is an optimizer, and something to train */
    bool whole_grads; /* gradients gather in full buffers, else in shards by way of their arena */
    bool whole_opt;   /* every rank keeps and updates all optimizer states (stage 0) */
    bool has_master;  /* fp32 weights beside trained parameters of another type, or in another place */
    bool grads_down;  /* the sums of gradients are kept in host memory; on the device they pass through slots */
    dt_place opt_place, host_grad_place; /* of master and states, and of those sums */
    dt_place away_place;                 /* of parameters that are not kept whole */
    int n_states;                        /* of the optimizer */
    bool prefetch;                       /* the parameters' arenas have room for a unit ahead of the one in hand */
    dt_dtype param_dtype[DT_N_PARTS];
    dt_dtype grad_dtype; /* what backward writes */
    dt_dtype grad_sent;  /* what ranks send to be summed */
    dt_dtype grad_kept;  /* what the kept gradients are summed in */
    zero_unit_layout *units;
    zero_run *runs;
    int n_runs;
    /* elements of each buffer; opt_len for the master and for each of the optimizer's states, and for the gradients in
     * host memory, which lie alike */
    int64_t params_len[DT_N_PARTS], grads_len, opt_len;
    int64_t away_len[DT_N_PARTS];                        /* of parameters that are not kept on the device */
    int64_t param_arena_len[DT_N_PARTS], grad_arena_len; /* elements */
    int64_t least_live_len;                              /* of the parameters' arenas, without room to prefetch */
    /* elements in one collective, at most: of what a rank is in charge of, and of a shard */
    int64_t reduce_per_rank, gather_per_rank;
    int64_t update_per_rank; /* likewise where the update gathers gradients (stage 0) */
    size_t param_arena_bytes[DT_N_PARTS], grad_arena_bytes, bucket_bytes, results_bytes, host_bytes;
    size_t watched_bytes;  /* slots of 16 bytes for a look at own gradients: one to work in, one a unit */
    int64_t group_len;     /* elements of a shard that are updated at a time on the host */
    int64_t grad_slot_len; /* elements of each of ZERO_GRAD_SLOTS on the device, through which gradients go down */
    int n_buffers;         /* of each ring of staging buffers: */
    size_t up_bytes;       /* one of updated parameters on their way to the device */
    size_t swap_bytes;     /* one of a sub-group's master and states on their way from the file and back */
    size_t fetch_bytes;    /* one of a part's shard of parameters on its way from the file, or back */
    bool has_file;
    int n_streams; /* of its own */
    int n_results; /* slots of 16 bytes that reductions write on the device */
    dt_memory memory;
    int64_t n_param;
} zero_layout;

enum {
    ZERO_HOST_CHUNK = 65536, /* floats in the host's scratch */
    ZERO_GRAD_SLOTS = 2,     /* one is summed into while the other goes down */
    ZERO_FILE_DEPTH_MAX = 1024
};

/** Bytes of n buffers of nbytes and what aligns the first of them. */
static inline size_t zero_ring_bytes(int n, size_t nbytes) { return nbytes ? (size_t)n * nbytes + DT_SWAP_ALIGN : 0; }
/** The file of a layout that has one. */
dt_swap_options zero_file_options(const zero_layout *l, const char *dir, dt_ledger *ledger);

dt_err zero_layout_make(zero_layout *l, const dt_zero_options *opt, const dt_unit *units, int n_units, int nranks);
void zero_layout_free(zero_layout *l);
/** dt_zero_saved_nbytes (states_plan.c). */
size_t zero_saved_nbytes(const zero_layout *l, dt_part part);

#endif
