/* zero.h - model states (parameters, gradients, optimizer states): who owns which slice, and how slices are gathered,
 * reduced and updated.
 *
 * Source   Rajbhandari et al., "ZeRO", SC 2020, arXiv:1910.02054: stages in section 5, volume in section 7.
 * Symbols  Psi -> n_param, N_d -> comm->nranks.
 *
 * Each part of a unit (unit.h) is cut into equal shards (padded), one for each rank of a group (comm.h); the group's
 * rank r owns shard r of every state. A stage only decides what is kept whole besides the owned shard. What is frozen,
 * as it is or as codes with scales, has parameters alone: no gradients, no states, nothing to gather after an update.
 * One function serves the plan and the allocation, so they agree by construction.
 *
 * With one group of all ranks a shard has one owner. With more each group has all states, so a shard has an owner in
 * each, and each of these is in charge of an equal part of it: it sums that part's gradients over all ranks, counts it
 * in the norm and writes it into checkpoints. The sums are then exchanged among the owners, who all make the same
 * update. */
#ifndef DTRAIN_ZERO_H
#define DTRAIN_ZERO_H

#include "dtrain/comm/comm.h"
#include "dtrain/optim/optim.h"
#include "dtrain/core/unit.h"

typedef struct dt_zero dt_zero;

/** Where states are kept that are not kept on the device: in host memory, or in a file on a disk of the node. */
typedef enum dt_offload { DT_OFFLOAD_NONE, DT_OFFLOAD_CPU, DT_OFFLOAD_NVME } dt_offload;

typedef struct dt_zero_options {
    int stage;    /* 0 .. 3 */
    int n_groups; /* of equally many ranks; 0: 1. That of the communicator */
    /* DT_F32: the trained parameters are the master; else, and where anything is offloaded, fp32 master weights are
     * kept beside them */
    dt_dtype param_dtype;
    /* frozen parameters are in frozen_dtype; else in param_dtype, too */
    bool frozen_differ;
    dt_dtype frozen_dtype;
    /* what backward writes: param_dtype, or DT_F32 where micro-steps accumulate (architecture.md, idea 2) */
    dt_dtype grad_dtype;
    /* ranks send gradients in reduce_dtype; else in grad_dtype. Sums are in fp32 whatever is sent */
    bool reduce_differs;
    dt_dtype reduce_dtype;
    /* may be NULL where nothing is trained: then there are neither gradients nor states */
    const dt_optimizer_ops *optimizer;
    bool reproducible; /* reduce in every micro-step, ordered left fold (algorithms.md 9.3) */
    bool overlap_comm;
    /* the unit that is held together with others, a tied embedding: it has a place of its own. -1: there is none */
    int tied_unit;
    /* elements (of all ranks) that one collective moves, at most; 0: no limit */
    int64_t reduce_bucket_size, allgather_bucket_size;
    /* stage 3: largest unit that is gathered ahead of its use; 0: none is */
    int64_t prefetch_bucket_size;
    int64_t param_persistence_threshold; /* stage 3: parts of units with fewer elements stay whole */
    int64_t max_live_parameters;         /* stage 3: elements gathered at once, at most; 0: no limit */
    /* stage 3: room for all units, so that what was gathered once stays until it is updated (a rollout of many
     * passes) */
    bool keep_gathered;

    /* Master weights and optimizer states, which `host` updates; the summed gradients go to host memory as backward
     * makes them. Each rank keeps its shard alone: stage 0 does as stage 1. */
    dt_offload offload_optimizer;
    dt_offload offload_param; /* stage 3: parameters that are not kept whole; below it DT_ERR_ARG */
    /* a CPU device, open; dev itself where that is one. NULL: nothing is offloaded, or only planned */
    dt_device *host;
    int64_t sub_group_size; /* elements of a shard that are updated at a time where they are offloaded; 0: no limit */
    int buffer_count;       /* sub-groups, and parameters on their way from a file, at a time; 0: 1 */
    bool pin_memory;        /* gradients and parameters in host memory: in such as the device copies by itself */
    const char *nvme_path;  /* directory of the files; borrowed for z's life */
} dt_zero_options;

/** Who owns what in a part of a unit: a group's rank r owns elements [r * shard_len, (r + 1) * shard_len) of it, and is
 *  in charge of charge_len of them, from group * charge_len on. flat_len <= padded_len < flat_len + nranks * align, and
 *  charge_len is a multiple of align. One group: charge_len = shard_len. */
typedef struct dt_shards {
    int64_t flat_len, charge_len, shard_len, padded_len;
} dt_shards;
enum { DT_SHARD_ALIGN = 16 };
dt_shards dt_shards_of(int64_t flat_len, int nranks, int n_groups);

/** What a rank would hold and send: memory (params, grads, optimizer, staging), the exact n_param of the
 *  model, bytes per parameter of model states with padding and without, and elements sent by a rank: a step of M
 *  micro-steps sends M * sent_elems_per_micro_step + sent_elems_per_step, at stage 3 at most so (a unit that is still
 *  there when it is used again is not gathered again). With one micro-step and one group that is 2P (N-1)/N at stages 0
 *  to 2 and 3P (N-1)/N at stage 3 for P padded parameters. By kind it is in micro_step and step (dt_comm_sent).
 *
 *  In reproducible mode every micro-step is reduced, so stages 0 and 1 keep gradients as stage 2 does: fp32 sums of the
 *  owned shards. */
typedef struct dt_zero_plan {
    dt_memory memory;
    int n_streams; /* opened on the device, whose memory is not in `memory`: dt_stream_plan */
    /* over all units; padding: elements of a rank's shards above n_param / nranks (rounded down) */
    int64_t n_param, n_padding;
    /* the smallest max_live_parameters that this stage can do with (stage 3; else 0) */
    int64_t least_live_parameters;
    double state_bytes_per_param;    /* params + grads + optimizer over n_param, padding included */
    size_t saved_nbytes[DT_N_PARTS]; /* as dt_zero_saved_nbytes */
    double formula_bytes_per_param;  /* with two states 16, 4+12/N, 2+14/N, 16/N (or what grad_dtype makes of them) */
    double sent_elems_per_micro_step, sent_elems_per_step;
    double sent_bytes_per_micro_step, sent_bytes_per_step; /* the same in bytes of the types that are sent */
    dt_traffic micro_step, step;
} dt_zero_plan;
dt_err dt_zero_plan_make(const dt_zero_options *opt, const dt_unit *units, int n_units, int nranks, dt_zero_plan *plan);

/** Collective. Allocates all states (zeroed) and staging; units are borrowed for z's life. DT_ERR_ARG when the
 *  communicator has other groups than the options, DT_ERR_USAGE when max_live_parameters is below what the largest
 *  units need at once (names the minimum). compute: the stream on which the model works. phase may be NULL. */
dt_err dt_zero_open(dt_zero **z, const dt_zero_options *opt, const dt_unit *units, int n_units, dt_comm *comm,
                    dt_device *dev, dt_stream *compute, dt_phase *phase);
void dt_zero_close(dt_zero *z); /* local; safe on NULL */

dt_param_source dt_zero_source(dt_zero *z);

/** Fill the master weights with the random start (unit.h: init_std, init_value): the same for any nranks and stage.
 *  Collective (gathers). */
dt_err dt_zero_init_random(dt_zero *z, uint64_t seed);
/** The same of these tensors alone; the others are loaded then. Collective (gathers). */
dt_err dt_zero_init_some(dt_zero *z, uint64_t seed, bool (*is_one)(const dt_tensor *t));

/** Mark the micro-step that follows: index of n_micro in this optimizer step. Gradients reduce in the last (stages 0,
 *  1) or in each (2, 3, reproducible). */
void dt_zero_begin_micro(dt_zero *z, int index, int n_micro);

/** Local: sum of squares of the gradients that this rank is in charge of (each element counted by exactly one),
 *  finished when it returns. After the vote summed it, sqrt is the global norm. In reproducible mode collective and
 *  returns the global value on rank 0 and 0 elsewhere, free of order. */
dt_err dt_zero_grad_sum_squares(dt_zero *z, double *sum);

/** Of the gradients that dt_zero_grad_sum_squares saw last, the unit that was not finite first, in the order in which
 *  backward makes them: the last in the model; -1: all were finite. Local. */
typedef struct dt_nonfinite {
    int own_unit; /* of this rank's own, before they are summed: known on a lone rank, and while they are watched */
    int sum_unit; /* of the sums in its shards */
} dt_nonfinite;
dt_nonfinite dt_zero_nonfinite(const dt_zero *z);
/** From the next step on, look at this rank's own gradients before they are summed, or do not: one more pass over
 *  them. */
void dt_zero_watch(dt_zero *z, bool on);

/** One step of the optimizer on the owned shards; weight_decay applies to tensors with decay, others get 0. group_lr:
 *  the learning rates by dt_tensor.lr_group, or NULL: step->lr for all. Then what the stage keeps whole is gathered.
 *  Collective. Leaves gradients empty (the next write overwrites). What goes to a file may still be on its way when it
 *  returns: an error of that is told by the next update, or by whoever reads these states or parameters first. */
dt_err dt_zero_update(dt_zero *z, const dt_optimizer_step *step, const double *group_lr);
/** Leave this step's gradients unused (a skipped step). Local. */
void dt_zero_discard(dt_zero *z);

/* ---- states by name: what a checkpoint reads and writes ---------------------------------------------------------- */

/** What is kept of each parameter: itself, or DT_STATE_OPTIMIZER + k, the optimizer's k-th state. */
typedef int dt_state;
enum { DT_STATE_PARAM, DT_STATE_OPTIMIZER };

/** A run of elements of one tensor that this rank is in charge of: elements first .. first+n-1 of the tensor, in
 *  row-major order of its shape. Over all ranks the pieces of a tensor cover it once. Pieces come in the order of units
 *  and tensors, the same order on all ranks. */
typedef struct dt_piece {
    int unit, tensor;
    int64_t first, n; /* n may be 0: every rank has one piece for every tensor */
    int64_t flat;     /* where it begins in its part of the unit */
} dt_piece;

int dt_zero_n_pieces(const dt_zero *z); /* = number of tensors of all units */
const dt_piece *dt_zero_pieces(const dt_zero *z);
/** The same of what this rank owns, which is all that is to be written: the whole of a shard. With one group these are
 *  the pieces; with more each group's cover every tensor once. */
const dt_piece *dt_zero_owned(const dt_zero *z);
const dt_tensor *dt_zero_tensor(const dt_zero *z, const dt_piece *p);
const dt_unit *dt_zero_unit(const dt_zero *z, const dt_piece *p);

/** NULL: a frozen model has none. */
const dt_optimizer_ops *dt_zero_optimizer(const dt_zero *z);
/** States are 0 .. n_states-1: parameters and what the optimizer keeps. A frozen model has parameters alone. */
int dt_zero_n_states(const dt_zero *z);
/** The optimizer's name of a state; NULL for parameters. */
const char *dt_zero_state_name(const dt_zero *z, dt_state s);
/** Does a tensor have such a state? Those that are frozen have parameters alone. Same on all ranks. */
bool dt_zero_has_state(const dt_zero *z, dt_state s, const dt_piece *p);
/** Type in which a state is kept: DT_F32, but that of frozen parameters for these. */
dt_dtype dt_zero_state_dtype(const dt_zero *z, dt_state s, const dt_piece *p);
/** The piece in place, readable and writable by the host, [n] of dt_zero_state_dtype; NULL where the host cannot reach
 *  it (then use read and write). */
void *dt_zero_state_ptr(dt_zero *z, dt_state s, const dt_piece *p);
/** Copy elements skip .. skip+n-1 of a piece from or to host memory. Local, synchronous. */
dt_err dt_zero_state_read(dt_zero *z, dt_state s, const dt_piece *p, int64_t skip, int64_t n, void *host);
dt_err dt_zero_state_write(dt_zero *z, dt_state s, const dt_piece *p, int64_t skip, int64_t n, const void *host);

/** Where the weights of a matrix come from that becomes codes. read: weights first .. first+n-1 as they lie in files of
 *  plain weights, to w, in host memory; called once for each. codes: the tensor. Local. */
typedef struct dt_matrix_source {
    void *self;
    const char *name; /* for messages */
    dt_err (*read)(void *self, const dt_tensor *codes, int64_t first, int64_t n, float *w);
} dt_matrix_source;
/** Make codes, and what goes with them, of a matrix; piece: the number of its codes' piece. A rank reads what it has
 *  codes of, in whole rows (int8) or blocks (nf4). own: what happened on this rank until now. Collective, agreed.
 *  DT_ERR_DATA naming the tensor and a row: it has numbers that are not finite. DT_ERR_MEMORY. */
dt_err dt_zero_quantise(dt_zero *z, int piece, const dt_matrix_source *from, dt_err own);
/** Bytes of what this rank is in charge of, of all that dt_zero_state_read gives of one part, padding included: the
 *  same on all ranks. */
size_t dt_zero_saved_nbytes(const dt_zero *z, dt_part part);
/** Queue the copy of a whole piece on a stream, to host memory that must be pinned where the device is apart. What is
 *  read is there once the compute stream has come as far as it is queued now: the caller orders the stream behind it,
 *  and the next update behind the copy. Local. */
dt_err dt_zero_state_fetch(dt_zero *z, dt_state s, const dt_piece *p, void *host, dt_stream *stream);
/** Zero the optimizer's states, as they are when z is opened. Local. */
dt_err dt_zero_clear_states(dt_zero *z);
/** Collective: after states were written, rebuild what is derived from the owned shards (rounded and gathered
 *  parameters, replicas). */
dt_err dt_zero_state_written(dt_zero *z);

#endif
