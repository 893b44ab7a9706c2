/* zero_impl.h - internals of dt_zero: buffers, arena contents, streams. Private to src/zero.
 *
 * Local errors and collectives. A rank with a local error (an injected fault, a kernel) still enters the collectives of
 * the others, with undefined data. It then returns its error, so all ranks reach the next vote. Only DT_ERR_COMM
 * returns immediately. A rank whose device has failed returns it, too. */
#ifndef DTRAIN_ZERO_IMPL_H
#define DTRAIN_ZERO_IMPL_H

#include "arrange.h"
#include "dtrain/io/swap_file.h"

enum {
    ZERO_N_SEEN = 4,
    ZERO_N_DEFERRED = 3 /* regions in the gradient arena: two alternating, and one for a tied unit */
};

typedef struct zero_part_state {
    bool resident;       /* whole in the arena and up to date */
    bool gather_pending; /* the compute stream has not yet waited for the gather that `gathered` marks */
    dt_event *gathered;
    int64_t gather_number; /* of its last collective; reduce_number likewise. For monitoring of the streams */
} zero_part_state;

/** The last two units that were acquired, and the last two that do not hold experts; -1: none. */
typedef struct zero_location {
    int before, last;
    int before_outer, outer;
} zero_location;
#define ZERO_NOWHERE ((zero_location){-1, -1, -1, -1})

typedef struct zero_unit_state {
    int params_held, grads_held;
    bool in_arena; /* it is in the list in_arena of dt_zero */
    zero_part_state part[DT_N_PARTS];
    bool reduce_pending; /* the compute stream has not yet waited for the reduction that `reduced` marks */
    int64_t micro_done;  /* serial of the micro-step in which its gradients were completed */
    dt_event *reduced, *down;
    int64_t reduce_number;
    struct {
        zero_location at;
        int after;
    } seen[ZERO_N_SEEN]; /* recorded order: the unit that was acquired after this one, by the units before it */
    int n_seen;
    int first_result; /* index of its first sum of squares in z->host */
} zero_unit_state;

/** A staging buffer in host memory, and the operations that still use it. */
typedef struct zero_buffer {
    char *at;
    bool copying;                               /* the device may still copy from or to it; `copied` marks completion */
    bool to_write;                              /* to be written to the file after the copy */
    dt_event *copied;                           /* NULL: the device does not use it */
    dt_swap_request request[1 + DT_MAX_STATES]; /* reads into it and writes from it */
    int unit;                                   /* whose parameters it holds or will hold; -1: none */
    dt_part part;
    int64_t used; /* serial of the last use, for LRU replacement */
} zero_buffer;

typedef struct zero_ring {
    dt_buf memory;
    zero_buffer *buffer;
    int n; /* 0: no ring */
} zero_ring;

/** A sub-group: elements lo .. lo+n-1 of a unit's trained part, in this rank's shard, which the host updates together.
 *  */
typedef struct zero_group {
    int unit;
    int64_t lo, n;
} zero_group;

/** A unit whose gradients of a micro-step are complete, and whether the micro-step is the first or last of its step. */
typedef struct zero_deferred {
    int unit;
    bool first_micro, last_micro;
} zero_deferred;

struct dt_zero {
    dt_zero_options opt;
    const dt_unit *units;
    int n_units;
    dt_comm *comm;
    const dt_axis *sum, *shard, *replicate; /* of its mesh */
    dt_device *dev;
    dt_stream *compute, *comm_stream; /* comm_stream is compute itself without overlap_comm */
    bool own_stream;
    /* Stage 0: the update gathers the reduced gradients; otherwise backward of the last micro-step does. Reproducible
     * mode has no memory for the earlier gather. Without stream overlap an early gather gains nothing and costs two
     * passes over memory. */
    bool gather_in_update;
    dt_event *mark; /* orders one stream after the other */
    dt_phase *phase;
    zero_layout lay;
    zero_unit_state *state;
    dt_buf params[DT_N_PARTS];
    dt_buf grads, array[ZERO_MAX_ARRAYS]; /* model states; array: of the layout */
    /* directions of a unit and their blocks for an all-to-all; matrices that this rank owns, their scratch and sums of
     * squares; in host memory the own shard of directions, if the host updates */
    dt_buf direction, blocks, owned_matrices, matrix_scratch, matrix_sums, host_direction;
    int64_t n_matrix_calls;
    dt_buf scratch; /* consecutive fp32 states of scratch_len elements each */
    dt_buf param_arena[DT_N_PARTS], grad_arena, bucket, results; /* staging on the device */
    dt_buf host;                                                 /* staging on the host, host_bytes */
    dt_buf watched; /* maximum |g| of own gradients, per unit; slot 0 is the work slot */
    /* offloaded states: offload.c, offload_params.c */
    dt_stream *copy_stream;         /* gradients to host during backward, parameters to device during the update */
    bool own_copy_stream;           /* something is offloaded */
    dt_buf away[DT_N_PARTS];        /* parameters in host memory */
    dt_buf host_grads;              /* gradient sums in host memory, with the layout of the optimizer's states */
    dt_buf grad_slots;              /* device memory: ZERO_GRAD_SLOTS, used in turn */
    int slot_unit[ZERO_GRAD_SLOTS]; /* unit whose sum was last copied from the slot; -1: none yet */
    int next_slot;
    dt_swap_file *file;        /* master and states, then parameters; NULL: no file */
    zero_ring up, swap, fetch; /* to the device; states from and to the file; parameters from and to the file */
    /* sub-groups, numbered unit by unit: the first of each unit, and their total number */
    int64_t *first_group, n_groups;
    int64_t next_read; /* first sub-group whose states are not yet requested, for this update or the next */
    int64_t n_used;    /* serial of the last use of a fetch buffer */
    /* [n_slices] each, one table. state_owned: of the optimizer's states, whole tensors if each rank keeps packed
     * arrays whole; scale_...: of the scales of 8-bit states */
    dt_slice *slices, *owned, *state_owned, *scale_slices, *scale_owned;
    int n_slices;
    dt_tensor **scale_tensors; /* [n_units] the tensors of the scales; in 8 bits */
    char scale_names[DT_MAX_STATES][DT_NAME_MAX];
    zero_location at;
    /* units in the arenas. in_arena: at least those with parameters held or resident. in_grads: those with gradients
     * held, or in a region that no other unit has taken since */
    int *in_arena, n_in_arena, *in_grads, n_in_grads;
    zero_deferred deferred[ZERO_N_DEFERRED]; /* reductions not yet queued, oldest first */
    int n_deferred;
    int n_incomplete;     /* units whose gradients of this micro-step are not complete */
    int64_t micro_serial; /* micro-steps begun */
    bool in_micro;        /* between dt_zero_begin_micro and the update */
    bool first_micro, last_micro;
    bool watching; /* dt_zero_watch */
    dt_nonfinite nonfinite;
};

/** A buffer of z in memory, as the plan counts it and dt_zero_open allocates it. */
typedef struct zero_memory {
    dt_buf *buf;
    dt_memcat category;
    dt_memspace space;
    size_t nbytes;
} zero_memory;
enum { ZERO_MAX_MEMORY = 20 + 3 * DT_N_PARTS + ZERO_MAX_ARRAYS };
/** List the buffers of the layout z->lay; nothing else of z is read. Returns their number (zero.c). */
int zero_list_memory(dt_zero *z, zero_memory list[ZERO_MAX_MEMORY]);

/** The phase before zero's own, restored when zero is done; for the watchdog and the trace. */
typedef struct zero_phase {
    const char *name, *unit;
} zero_phase;

static inline zero_phase zero_enter(dt_zero *z, const char *name, const char *unit)
{
    if (!z->phase) return (zero_phase){0};
    const zero_phase before = {atomic_load_explicit(&z->phase->name, memory_order_relaxed),
                               atomic_load_explicit(&z->phase->unit, memory_order_relaxed)};
    dt_phase_enter(z->phase, name, unit);
    return before;
}
static inline void zero_leave(dt_zero *z, zero_phase before)
{
    if (before.name) dt_phase_enter(z->phase, before.name, before.unit);
}

static inline void *zero_at(const dt_buf *b, int64_t elem, dt_dtype t)
{
    return (char *)b->ptr + (size_t)elem * dt_dtype_size(t);
}

static inline bool zero_offloads(const dt_zero *z) { return z->lay.grads_down || z->lay.away_space != DT_ON_DEVICE; }
/** The allocator of a memory space. The CPU device serves host-only memory, as zero pages that cost nothing until used.
 *  */
static inline dt_device *zero_memory_of(const dt_zero *z, dt_memspace space)
{
    return space == DT_ON_HOST ? z->opt.host : z->dev;
}
static inline const dt_shards *zero_shards(const zero_layout *l, int u, dt_part part)
{
    return &l->units[u].part[part].shards;
}
static inline bool zero_is_empty(const zero_layout *l, int u, dt_part part)
{
    return zero_shards(l, u, part)->flat_len == 0;
}
/** First element of this rank's shard in a part of a unit. */
static inline int64_t zero_own(const dt_zero *z, int u, dt_part part)
{
    return z->shard->rank * zero_shards(&z->lay, u, part)->shard_len;
}
/** First element that this rank is in charge of in a part of a unit. */
static inline int64_t zero_charge(const dt_zero *z, int u, dt_part part)
{
    return dt_axis_block(z->sum) * zero_shards(&z->lay, u, part)->charge_len;
}

/** Address of element x of a part, in device or host memory. x is in the own shard unless the part is kept whole. Not
 *  for parts in the file. */
static inline void *zero_param_at(const dt_zero *z, int u, dt_part part, int64_t x)
{
    const zero_part_layout *p = &z->lay.units[u].part[part];
    return zero_at(p->space == DT_ON_DEVICE ? &z->params[part] : &z->away[part],
                   p->kept_at + x - (p->whole ? 0 : zero_own(z, u, part)), z->lay.param_dtype[part]);
}
/** Arena address of a part that is not kept whole. */
static inline void *zero_held_at(const dt_zero *z, int u, dt_part part)
{
    return zero_at(&z->param_arena[part], z->lay.units[u].part[part].held_at, z->lay.param_dtype[part]);
}
/** Device address: full gradients if they are kept whole, otherwise the own shard's sums. */
static inline void *zero_grad_at(const dt_zero *z, int u, int64_t x)
{
    return zero_at(&z->grads, z->lay.units[u].grad_at + x - (z->lay.whole_grads ? 0 : zero_own(z, u, DT_TRAINED)),
                   z->lay.grad_kept);
}
/** Address of the sum for element x of the own shard, in device or host memory. */
static inline void *zero_sum_at(const dt_zero *z, int u, int64_t x)
{
    if (!z->lay.grads_down) return zero_grad_at(z, u, x);
    return zero_at(&z->host_grads, z->lay.units[u].opt_at + x - zero_own(z, u, DT_TRAINED), z->lay.grad_kept);
}
/** Index of the entry for element x in array a. */
static inline int64_t zero_entry(const dt_zero *z, int a, int u, int64_t x)
{
    const zero_array *array = &z->lay.array[a];
    const int64_t first = z->lay.whole_opt ? 0 : zero_own(z, u, DT_TRAINED);
    if (!array->packed) return (z->lay.units[u].opt_at + x - first) / array->per;
    return array->packed_at[u] + (zero_packed(&z->lay, a, u, x) - zero_packed_base(&z->lay, a, u, first)) / array->per;
}
/** Address of the entry for element x in array a, in device or host memory. */
static inline void *zero_entry_at(const dt_zero *z, int a, int u, int64_t x)
{
    return zero_at(&z->array[a], zero_entry(z, a, u, x), z->lay.array[a].dtype);
}
/** Element x of the trained part in fp32. */
static inline float *zero_master_at(const dt_zero *z, int u, int64_t x)
{
    return z->lay.has_master ? zero_entry_at(z, ZERO_MASTER, u, x) : zero_param_at(z, u, DT_TRAINED, x);
}

/** Make the compute stream wait for the event, which marks collective `number` of a unit. */
dt_err zero_compute_wait(dt_zero *z, dt_event *event, const char *unit, int64_t number);
/** Queue a copy for a unit between device and host memory; way is "up" or "down". */
dt_err zero_copy(dt_zero *z, const char *way, int u, void *dst, const void *src, size_t nbytes, dt_stream *stream);
/** The number of the last queued collective. */
static inline int64_t zero_last_collective(const dt_zero *z)
{
    return atomic_load_explicit(&z->comm->sequence, memory_order_relaxed);
}

/* streams (bucket_collectives.c): later work on one stream waits for the work queued so far on the other */
dt_err zero_comm_after(dt_zero *z, dt_stream *stream);
dt_err zero_comm_after_compute(dt_zero *z);
dt_err zero_compute_after_comm(dt_zero *z);

/** Sum the gradients of one part over the ranks, in buckets, on the comm stream:
 *
 *      recv[i] (+)= sum over ranks r of send_r[charge + i],    0 <= i < charge_len
 *
 *  send [padded_len] of send_dt, sent as type `sent`; recv [charge_len] of recv_dt, which may be the own range in send.
 *  Enters the collectives even after an earlier error err. */
dt_err zero_reduce(dt_zero *z, const dt_shards *shards, const void *send, dt_dtype send_dt, dt_dtype sent, void *recv,
                   dt_dtype recv_dt, bool accumulate, dt_err err);
/** Exchange sums between the owners of a shard [shard_len]: each sends the range that it is in charge of, in buckets,
 *  on the comm stream. Enters the collectives even after an earlier error. */
dt_err zero_replicate(dt_zero *z, const dt_shards *shards, void *shard, dt_dtype dt, dt_err err);
/** Gather one part, in buckets, on the comm stream: whole[r * shard_len + i] = send_r[i], all ranks r of the group, 0
 *  <= i < shard_len. send [shard_len] may be the own range in whole [padded_len]. Enters the collectives even after an
 *  earlier error. */
dt_err zero_gather(dt_zero *z, const dt_shards *shards, const void *send, void *whole, dt_dtype dt, dt_err err);

/** After a change of the owned shards of a part: gather it if it is kept whole, after the work queued on the stream
 *  that wrote them. Invalidates its copy in the arena. Enters the collectives even after an earlier error. */
dt_err zero_gather_changed(dt_zero *z, int u, dt_part part, dt_stream *wrote, dt_err err);
/** The unit that params_acquire will probably request next; -1: unknown. */
int zero_next_unit(const dt_zero *z, const zero_location *at);
/** The location after it has requested unit u; -1: a new micro-step. */
void zero_go_to(const dt_zero *z, zero_location *at, int u);
/** Did params_acquire request another unit after the last two, in earlier steps? Then a reduction may be deferred. */
bool zero_another_follows(const dt_zero *z);
/** Queue deferred reductions: the oldest, or all. Enter the collectives even after an earlier error. */
dt_err zero_reduce_oldest(dt_zero *z);
dt_err zero_reduce_deferred(dt_zero *z);

/** DT_ERR_ARG unless every unit's gradients of the last micro-step are complete. */
dt_err zero_check_complete(const dt_zero *z);

/** Start a micro-step: the recorded successor of the last unit does not apply across micro-steps. */
void zero_params_begin_micro(dt_zero *z);

dt_err zero_params_acquire(void *self, int unit, dt_param_view *view);
dt_err zero_params_release(void *self, int unit);
bool zero_params_resident(void *self);
dt_err zero_grads_acquire(void *self, int unit, dt_grad_view *view);
dt_err zero_grads_release(void *self, int unit);

dt_err zero_slices_make(dt_zero *z);
void zero_slices_free(dt_zero *z);
/** Wait until no operation in flight uses memory that the host writes. Otherwise a gather in buckets could overwrite
 *  new values with old ones. */
dt_err zero_before_write(dt_zero *z);
/** Copy elements of a state between its memory space and host memory [n]. If host is z->host, n is limited to its size.
 *  Call after zero_before_write. */
dt_err zero_move(dt_zero *z, dt_state s, const dt_slice *p, int64_t skip, int64_t n, void *host, bool write);

/* ---- update.c ---------------------------------------------------------------------------------------------------- */

/** The arguments of dt_zero_update. */
typedef struct zero_update {
    const dt_optimizer_step *step;
    const double *group_lr;
    bool applies; /* matrices have their directions; false: compute these, and update all other tensors */
} zero_update;
/** Does an update visit unit u twice, because it has matrices? */
static inline bool zero_is_twice(const dt_zero *z, int u) { return z->lay.units[u].n_matrices > 0; }

/** Addresses of elements lo, lo+1, ... of a unit's trained part during the update; dev can access all of them. */
typedef struct zero_slice {
    dt_device *dev;
    dt_stream *stream;
    const void *grad;
    dt_dtype grad_dtype;
    float *master;
    /* the arrays of the states; NULL: located by their element, because they are packed or not in the file */
    void *array[ZERO_MAX_ARRAYS];
    uint16_t *direction; /* NULL: the unit has no matrices */
    void *param;         /* NULL, or receives the rounded parameters */
    bool fresh;          /* param is uninitialised: gaps between the runs are written too */
} zero_slice;

/** Elements from .. to-1 of a slice, without states. */
static inline dt_update_range zero_range_of(const dt_zero *z, const zero_slice *s, int64_t from, int64_t to)
{
    const dt_dtype dtype = z->lay.param_dtype[DT_TRAINED];
    return (dt_update_range){.grad =
                                 s->grad ? (const char *)s->grad + (size_t)from * dt_dtype_size(s->grad_dtype) : NULL,
                             .grad_dtype = s->grad_dtype,
                             .master = s->master + from,
                             .param = s->param ? (char *)s->param + (size_t)from * dt_dtype_size(dtype) : NULL,
                             .param_dtype = dtype,
                             .direction = s->direction ? s->direction + from : NULL,
                             .n = to - from,
                             .stream = s->stream};
}

/** The optimizer's step on elements lo .. hi-1 of unit u's trained part, run by run:
 *
 *      master[i], states[k][i] <- step(grad[i]);  param[i] = master[i] rounded, if param is set
 *
 *  with i counted from lo. Queued on the slice's stream. Padding and frozen tensors between the runs are not updated.
 *  up NULL: master is unchanged, and all of param is written. */
dt_err zero_step(const dt_zero *z, int u, int64_t lo, int64_t hi, const zero_slice *s, const zero_update *up);
/** Update all units (up NULL: only round the masters) and gather the changes. Enters the collectives even after an
 *  earlier error. */
dt_err zero_update_units(dt_zero *z, const zero_update *up, dt_err err);

/* ---- matrices.c -------------------------------------------------------------------------------------------------- */

/** Send the directions of a unit to the owners of its matrices. Enters the collectives even after an earlier error. */
dt_err zero_gather_matrices(dt_zero *z, int u, dt_err err);
/** Change the matrices that this rank owns. Local. */
dt_err zero_change_matrices(dt_zero *z, const zero_update *up);
/** Send the results of a unit to the owners of its shards. Enters the collectives even after an earlier error. */
dt_err zero_return_matrices(dt_zero *z, int u, dt_err err);

/* ---- stored_states.c --------------------------------------------------------------------------------------------- */

/** Of a tensor's name, for random bits that depend neither on its unit nor on its index. */
uint64_t zero_name_hash(const char *name);
/** The optimizer's step on elements from .. to-1 of a slice that begins at element lo of unit u, all in one run. States
 *  of fewer bits are converted to fp32 and back, scratch_len elements at a time. */
dt_err zero_step_states(const dt_zero *z, int u, int64_t lo, const zero_slice *s, const dt_optimizer_step *one,
                        const zero_run *run, int64_t from, int64_t to);

/* ---- offload.c: master and states in host memory or in the file -------------------------------------------------- */

dt_err zero_offload_open(dt_zero *z);
void zero_offload_close(dt_zero *z);
/** Copy the sum of a unit's shard [shard_len] from the device to host memory, after event `reduced`. `down` marks its
 *  completion. Before the last micro-step only the range that this rank is in charge of is valid. */
dt_err zero_send_down(dt_zero *z, int u, const void *sum, bool last_micro);
/** Elements of a unit's shard that this rank sums, in the last micro-step or before it. */
typedef struct zero_range {
    int64_t lo, n;
} zero_range;
static inline zero_range zero_summed(const dt_zero *z, int u, bool last_micro)
{
    const dt_shards *s = zero_shards(&z->lay, u, DT_TRAINED);
    return last_micro ? (zero_range){zero_own(z, u, DT_TRAINED), s->shard_len}
                      : (zero_range){zero_charge(z, u, DT_TRAINED), s->charge_len};
}
/** Wait until all gradients are in host memory. */
dt_err zero_wait_down(dt_zero *z);
/** Read the states of the first sub-groups for the next update, into buffers that are idle. The host does not wait. */
dt_err zero_offload_ahead(dt_zero *z);
/** Begin an update: wait until the device no longer uses host memory and the rings. */
dt_err zero_offload_begin(dt_zero *z);
/** Update a unit's sub-groups in order on the host, and send the parameters to their memory space. */
dt_err zero_offload_unit(dt_zero *z, int u, const zero_update *up);
/** Wait for all file I/O in flight. */
dt_err zero_drain(dt_zero *z);
/** The same, and discard prefetched data: the file is about to be written by other means. */
dt_err zero_forget(dt_zero *z);
/** Wait until no operation uses the buffer. */
dt_err zero_buffer_wait(dt_zero *z, zero_buffer *b);
/** Byte offset of the entry for element x of array a in the file. */
int64_t zero_entry_in_file(const dt_zero *z, int a, int u, int64_t x);
int64_t zero_param_in_file(const dt_zero *z, int u, dt_part part, int64_t x);

/* ---- offload_params.c: parameters in host memory or in the file -------------------------------------------------- */

/** Copy the owned shard of a part that is kept off the device into its arena region, on the comm stream. Waits for the
 *  file read if it was not prefetched. */
dt_err zero_fetch(dt_zero *z, int u, dt_part part);
/** Prefetch the parts that will probably follow the current unit into idle buffers. Write back what the device has
 *  copied since. The host does not wait. */
dt_err zero_fetch_ahead(dt_zero *z);
/** Take a buffer for a part's parameters in the file and discard its contents. The caller fills it and calls
 *  zero_fetch_write. */
dt_err zero_fetch_take(dt_zero *z, int u, dt_part part, zero_buffer **b);
dt_err zero_fetch_write(dt_zero *z, zero_buffer *b);
/** Copy the owned shard of the trained part to its memory space, after the compute stream has rounded it into its arena
 *  region. */
dt_err zero_send_away(dt_zero *z, int u);

#endif
