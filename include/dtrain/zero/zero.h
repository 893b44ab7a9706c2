/* zero.h - model states (parameters, gradients, optimizer states): which rank owns which shard, and how shards are
 * gathered, reduced and updated.
 *
 * Source   Rajbhandari et al., "ZeRO", SC 2020, arXiv:1910.02054: stages in section 5, volume in section 7.
 * Symbols  Psi -> n_param, N_d -> size of the axis sum.
 *
 * Each part of a unit (unit.h) is divided into equal, padded shards, one for each rank of a group. A group is the axis
 * shard of the mesh (comm.h), and the axis replicate connects the groups. A group's rank r owns shard r of every state.
 * The stage determines what is kept whole in addition to the owned shard. Frozen parts, quantised or not, have
 * parameters only: no gradients, no states, and nothing to gather after an update. One function computes the layout for
 * the plan and for the allocation, so they agree by construction.
 *
 * With one group, each shard has one owner. With several groups, each group holds all states, so a shard has an owner
 * in each group. Each owner is in charge of an equal part of the shard: it sums that part's gradients over all ranks,
 * counts it in the norm and writes it into checkpoints. The owners then exchange the sums, and all make the same
 * update.
 *
 * Functions are Local unless marked Collective: over all ranks of the communicator (comm.h). */
#ifndef DTRAIN_ZERO_H
#define DTRAIN_ZERO_H

#include "dtrain/comm/comm.h"
#include "dtrain/optim/optim.h"
#include "dtrain/core/unit.h"

typedef struct dt_zero dt_zero;

/** Memory space of offloaded states: host memory, or a file on a disk of the node. */
typedef enum dt_offload { DT_OFFLOAD_NONE, DT_OFFLOAD_CPU, DT_OFFLOAD_NVME } dt_offload;

/** Options of dt_zero_open and dt_zero_plan_make. Fields that name types or sizes correspond to keys of [zero] and
 *  [precision]. */
typedef struct dt_zero_options {
    int stage; /* 0 .. 3 */
    /* of the units (dt_units_group_experts). A plan groups them; dt_zero_open gets grouped units */
    int64_t expert_group_size;
    int n_groups; /* number of groups, as in the communicator; 0: 1 */
    /* DT_F32: trained parameters are their own master weights. Otherwise, and with any offload, fp32 master weights are
     * kept in addition */
    dt_dtype param_dtype;
    /* type that backward writes: param_dtype, or DT_F32 if micro-steps accumulate (algorithms.md 9.3) */
    dt_dtype grad_dtype;
    /* true: gradients are sent in reduce_dtype; false: in grad_dtype. Sums are always fp32 */
    bool reduce_differs;
    dt_dtype reduce_dtype;
    /* may be NULL for a frozen model, which has neither gradients nor states */
    const dt_optimizer_ops *optimizer;
    /* storage of the optimizer's states: DT_F32; DT_BF16, rounded at random; or DT_I8, blocks of eight bits (block8.h).
     * With DT_I8 units should align groups of their trained part to DT_BLOCK8: states of other tensors remain fp32, as
     * those of small tensors (dt_zero_keeps_fp32) */
    dt_dtype state_dtype;
    uint64_t seed;     /* of that rounding */
    bool reproducible; /* reduce in every micro-step, ordered left fold (algorithms.md 9.3) */
    bool overlap_comm;
    /* unit that is held together with others (a tied embedding) and so has its own gather buffer; -1: none */
    int tied_unit;
    /* maximum number of elements (of all ranks) per collective; 0: no limit */
    int64_t reduce_bucket_size, allgather_bucket_size;
    /* stage 3: maximum size of a unit that is gathered before its use; 0: no prefetch */
    int64_t prefetch_bucket_size;
    int64_t param_persistence_threshold; /* stage 3: parts of units with fewer elements are kept whole */
    int64_t max_live_parameters;         /* stage 3: maximum number of gathered elements at a time; 0: no limit */
    /* stage 3: allocate space for all units, so that a gathered unit stays until its update (a rollout of many
     * passes) */
    bool keep_gathered;

    /* Offload of master weights and optimizer states, which `host` updates. Summed gradients are copied to host memory
     * during backward. Each rank keeps only its shard: stage 0 works like stage 1. */
    dt_offload offload_optimizer;
    dt_offload offload_param; /* stage 3: offload of parameters that are not kept whole; DT_ERR_ARG at lower stages */
    /* an open CPU device, borrowed; dev itself if it is one. NULL: no offload, or only a plan */
    dt_device *host;
    int64_t sub_group_size; /* offload: maximum number of elements of a shard updated at a time; 0: no limit */
    int buffer_count;       /* number of sub-groups in flight, and of parameter reads from a file; 0: 1 */
    bool pin_memory;        /* offloaded gradients and parameters use pinned host memory */
    const char *nvme_path;  /* directory of the files; borrowed until dt_zero_close */
} dt_zero_options;

/** Ownership of a part of a unit. A group's rank r owns elements [r * shard_len, (r + 1) * shard_len), and is in charge
 *  of charge_len of them, starting at group * charge_len. flat_len <= padded_len < flat_len + nranks * align, and
 *  charge_len is a multiple of align. With one group, charge_len = shard_len. */
typedef struct dt_shards {
    int64_t flat_len, charge_len, shard_len, padded_len;
} dt_shards;
enum { DT_SHARD_ALIGN = 16 };
/** Ownership of a part with flat_len elements. align: DT_SHARD_ALIGN, or DT_BLOCK8 for a trained part whose states are
 *  DT_I8. */
dt_shards dt_shards_of(int64_t flat_len, int nranks, int n_groups, int64_t align);

/** Does a trained tensor keep its optimizer states in fp32 although state_dtype is DT_I8? It does if it has fewer than
 *  DT_BLOCK8_SMALLEST elements or row ranges, or does not begin at a multiple of DT_BLOCK8 in its unit. */
bool dt_zero_keeps_fp32(dt_dtype state_dtype, const dt_tensor *t);
/** Bytes of one optimizer state of a trained tensor, and of its scales. */
typedef struct dt_state_nbytes {
    double values, scales;
} dt_state_nbytes;
dt_state_nbytes dt_zero_state_nbytes(dt_dtype state_dtype, const dt_tensor *t);

/** What a rank would hold and send: memory (parameters, gradients, optimizer, staging), the exact n_param of the model,
 *  bytes of model states per parameter, and bytes sent. A step of M micro-steps sends M *
 *  sent_bytes_per_micro_step + sent_bytes_per_step. At stage 3 this is an upper bound: a unit that is still gathered is
 *  not gathered again. With one micro-step, one group and one type it is 2P (N-1)/N elements at stages 0 to 2 and
 *  3P (N-1)/N at stage 3, for P padded parameters. micro_step and step give it by kind (dt_comm_sent).
 *
 *  In reproducible mode every micro-step is reduced, so stages 0 and 1 store gradients like stage 2: fp32 sums of the
 *  owned shards. */
typedef struct dt_zero_plan {
    dt_memory memory;
    int n_streams; /* streams to be opened; their memory is not in `memory` (dt_stream_plan) */
    /* of all units; n_padding: elements of a rank's shards minus n_param / nranks, rounded down */
    int64_t n_param, n_padding;
    /* stage 3: minimum of max_live_parameters, and maximum number of gathered parameters; else 0 */
    int64_t least_live_parameters, live_parameters;
    /* parameters, gradients and optimizer, padding included, divided by n_param. Without padding, with bf16 parameters
     * and gradients and two states, by stage: 16, 4+12/N, 2+14/N, 16/N */
    double state_bytes_per_param;
    size_t saved_nbytes[DT_N_PARTS]; /* as dt_zero_saved_nbytes */
    double sent_bytes_per_micro_step, sent_bytes_per_step;
    dt_traffic micro_step, step;
} dt_zero_plan;
/** Compute the plan of a rank of nranks. plan: out. DT_ERR_ARG, DT_ERR_USAGE: as dt_zero_open; DT_ERR_MEMORY. */
dt_err dt_zero_plan_make(const dt_zero_options *opt, const dt_unit *units, int n_units, int nranks, dt_zero_plan *plan);

/** Allocate all states, zeroed, and staging buffers. Collective, agreed.
 *
 *  z        out  closed with dt_zero_close; NULL on error
 *  units    in   [n_units]; borrowed until dt_zero_close, like comm, dev, compute and phase
 *  compute  the stream that the model uses
 *  phase    may be NULL
 *
 *  DT_ERR_ARG: the communicator has other groups than the options. DT_ERR_USAGE: max_live_parameters is below what the
 *  largest units need at once (names the minimum). DT_ERR_MEMORY, DT_ERR_FAULT; DT_ERR_WRITE: files of an offload. */
dt_err dt_zero_open(dt_zero **z, const dt_zero_options *opt, const dt_unit *units, int n_units, dt_comm *comm,
                    dt_device *dev, dt_stream *compute, dt_phase *phase);
/** Synchronise the streams and free everything. Local. Safe on NULL. */
void dt_zero_close(dt_zero *z);

/** The parameters and gradients of z for a model (unit.h). Valid until dt_zero_close. Its calls are Collective at
 *  stages that gather or reduce. */
dt_param_source dt_zero_source(dt_zero *z);

/** Set the parameters to their initial values (dt_tensor.init_*), the same for any number of ranks and stage.
 *  Collective, agreed. */
dt_err dt_zero_init_random(dt_zero *z, uint64_t seed);
/** As dt_zero_init_random, for tensors for which is_one (NULL: all) is true; the caller loads the others. Collective,
 *  agreed. */
dt_err dt_zero_init_some(dt_zero *z, uint64_t seed, bool (*is_one)(const dt_tensor *t));

/** Begin micro-step `index` of n_micro in this optimizer step. Gradients are reduced in the last micro-step (stages 0
 *  and 1) or in each (stages 2 and 3, reproducible mode). */
void dt_zero_begin_micro(dt_zero *z, int index, int n_micro);

/** Sum of squares of the gradients that this rank is in charge of: exactly one rank counts each element. The square
 *  root of the sum over all ranks is the global norm. Local, synchronous. sum: out. DT_ERR_ARG: a frozen model, or
 *  before the last micro-step. DT_ERR_FAULT. */
dt_err dt_zero_grad_sum_squares(dt_zero *z, double *sum);
/** Sum of squares of all gradients, on rank 0; other ranks receive 0, so that a vote may add the values as above. The
 *  bits depend neither on the number of ranks nor on the order of summation. Collective, synchronous. Errors as above,
 *  and DT_ERR_COMM. */
dt_err dt_zero_grad_sum_squares_reproducible(dt_zero *z, double *sum);

/** The first unit with a non-finite gradient in the order of backward, which is the last such unit of the model; -1:
 *  all are finite. Refers to the last call of one of the two functions above. Local. */
typedef struct dt_nonfinite {
    int own_unit; /* of this rank's gradients before the reduction: set on a single rank, and while they are watched */
    int sum_unit; /* of the sums in this rank's shards */
} dt_nonfinite;
/** See dt_nonfinite. */
dt_nonfinite dt_zero_nonfinite(const dt_zero *z);
/** Check this rank's own gradients before they are summed, from the next step on, or stop doing so. Costs one more pass
 *  over them. */
void dt_zero_watch(dt_zero *z, bool on);

/** Make one optimizer step on the owned shards, then gather what the stage keeps whole. Collective; queues work on the
 *  compute stream. Gradients are empty afterwards: the next write overwrites them.
 *
 *  step      weight_decay applies to tensors with decay; others get 0
 *  group_lr  in  learning rates by dt_tensor.lr_group; NULL: step->lr for all
 *
 *  DT_ERR_COMM, DT_ERR_FAULT. Writes to offload files may be in flight on return: the next update, or the first reader
 *  of these states, returns their error. */
dt_err dt_zero_update(dt_zero *z, const dt_optimizer_step *step, const double *group_lr);
/** Number of matrices that this rank has changed as a matrix optimizer (dt_matrix_optimizer.matrix), in all updates. */
int64_t dt_zero_matrix_calls(const dt_zero *z);
/** Discard this step's gradients (a skipped step). */
void dt_zero_discard(dt_zero *z);

/* ---- states by name, for checkpoints ----------------------------------------------------------------------------- */

/** A state of a parameter: the parameter itself, or DT_STATE_OPTIMIZER + k, the optimizer's state k. In 8 bits these
 *  are codes, and DT_STATE_OPTIMIZER + n_states + k are the scales of state k, one for each block of DT_BLOCK8
 *  elements. */
typedef int dt_state;
enum { DT_STATE_PARAM, DT_STATE_OPTIMIZER };

/** A contiguous range of a tensor: elements first .. first+n-1 in row-major order. Every rank has one slice of each
 *  tensor, in the order of units and tensors. The slices that the ranks are in charge of cover each tensor once. */
typedef struct dt_slice {
    int unit, tensor;
    int64_t first, n; /* n may be 0 */
    int64_t flat;     /* its offset in its part of the unit */
    bool scales;      /* of the scales of the tensor's states: first and n count blocks (dt_zero_slices_of) */
} dt_slice;

/** Number of slices: the number of tensors of all units. */
int dt_zero_n_slices(const dt_zero *z);
/** The slices that this rank is in charge of: [dt_zero_n_slices], borrowed until dt_zero_close. */
const dt_slice *dt_zero_slices(const dt_zero *z);
/** The slices that this rank owns, and so writes when states are loaded: whole shards. With one group they are the
 *  slices of dt_zero_slices; with several, the slices of each group cover every tensor once. */
const dt_slice *dt_zero_owned(const dt_zero *z);
/** The same two tables for a state. Those of scales count blocks, and their tensors are [blocks]. At stage 0 a rank may
 *  own, and so read, whole tensors of the optimizer's states. */
const dt_slice *dt_zero_slices_of(const dt_zero *z, dt_state s);
const dt_slice *dt_zero_owned_of(const dt_zero *z, dt_state s);
/** The tensor of a slice. Borrowed from the units, or from z. */
const dt_tensor *dt_zero_tensor(const dt_zero *z, const dt_slice *p);
/** The unit of a slice. Borrowed. */
const dt_unit *dt_zero_unit(const dt_zero *z, const dt_slice *p);

/** The optimizer; NULL for a frozen model. */
const dt_optimizer_ops *dt_zero_optimizer(const dt_zero *z);
/** dt_zero_options.state_dtype. */
dt_dtype dt_zero_state_type(const dt_zero *z);
/** Number of states: 1 (parameters) plus those of the optimizer, twice in 8 bits. A frozen model has 1. */
int dt_zero_n_states(const dt_zero *z);
/** The optimizer's name of a state, with "_absmax" for its scales; NULL for parameters. Borrowed from z. */
const char *dt_zero_state_name(const dt_zero *z, dt_state s);
/** Does a slice's tensor have this state? Frozen tensors have parameters only. The same on all ranks. */
bool dt_zero_has_state(const dt_zero *z, dt_state s, const dt_slice *p);
/** Type in which a slice's state is stored: DT_F32, except parameters of frozen tensors and those without master
 *  weights, and states of another state_dtype (DT_U8 for codes). */
dt_dtype dt_zero_state_dtype(const dt_zero *z, dt_state s, const dt_slice *p);
/** Address of a slice's state, [n] of dt_zero_state_dtype, readable and writable by the host. NULL: not in memory that
 *  the host can access; use dt_zero_state_read and _write. */
void *dt_zero_state_ptr(dt_zero *z, dt_state s, const dt_slice *p);
/** Copy elements skip .. skip+n-1 of a slice's state to host memory. Synchronous.
 *
 *  host  out  [n] of dt_zero_state_dtype, the caller's
 *
 *  DT_ERR_ARG: no such state or elements. DT_ERR_FAULT; DT_ERR_WRITE: an offload file. */
dt_err dt_zero_state_read(dt_zero *z, dt_state s, const dt_slice *p, int64_t skip, int64_t n, void *host);
/** Copy elements skip .. skip+n-1 of a slice's state from host memory. Otherwise as dt_zero_state_read. Call
 *  dt_zero_state_written afterwards. */
dt_err dt_zero_state_write(dt_zero *z, dt_state s, const dt_slice *p, int64_t skip, int64_t n, const void *host);

/** Source of a matrix that is to be quantised. read: copy the weights first .. first+n-1, in the order of files of
 *  plain weights, to w (host memory); called once for each weight. codes: the tensor of codes. */
typedef struct dt_matrix_source {
    void *self;
    const char *name; /* for messages */
    dt_err (*read)(void *self, const dt_tensor *codes, int64_t first, int64_t n, float *w);
} dt_matrix_source;
/** Quantise a matrix: write its codes, blocks and scales. Collective, agreed. A rank reads whole rows (int8) or blocks
 *  (nf4) of which it owns codes.
 *
 *  slice  index of the codes' slice
 *  own    this rank's error so far
 *
 *  DT_ERR_DATA, naming tensor and row: a weight is not finite. DT_ERR_MEMORY. */
dt_err dt_zero_quantise(dt_zero *z, int slice, const dt_matrix_source *from, dt_err own);
/** Bytes of one part that this rank is in charge of, over all states that dt_zero_state_read returns, padding included:
 *  the same on all ranks. */
size_t dt_zero_saved_nbytes(const dt_zero *z, dt_part part);
/** Queue the copy of a whole slice on a stream. The caller must order the stream after the work queued on the compute
 *  stream so far, and the next update after the copy.
 *
 *  host  out  [n] of dt_zero_state_dtype; pinned if the device has its own memory */
dt_err dt_zero_state_fetch(dt_zero *z, dt_state s, const dt_slice *p, void *host, dt_stream *stream);
/** Zero the optimizer's states. */
dt_err dt_zero_clear_states(dt_zero *z);
/** Rebuild what is derived from the owned shards (rounded and gathered parameters, replicas) after states were written.
 *  Collective. */
dt_err dt_zero_state_written(dt_zero *z);

#endif
