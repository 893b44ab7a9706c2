/* zero_impl.h - the inside of dt_zero: buffers, what stands in the arenas, streams. Private to src/zero.
 *
 * Local errors and collectives. A local error (an injected fault, a kernel) does not keep a rank from a collective that
 * the others have begun: it joins with whatever it has and then returns its error, so all ranks reach the next vote.
 * Only DT_ERR_COMM leaves at once; it is also what a rank gets whose device has failed. */
#ifndef DTRAIN_ZERO_IMPL_H
#define DTRAIN_ZERO_IMPL_H

#include "arrange.h"
#include "dtrain/io/swap_file.h"

enum {
    ZERO_N_SEEN = 4,
    ZERO_N_DEFERRED = 3 /* places in the gradients' arena: two by turns, and a tied unit's */
};

typedef struct zero_part_state {
    bool resident;       /* it stands whole in the arena and is up to date */
    bool gather_pending; /* the compute stream has not yet waited for the gather that `gathered` marks */
    dt_event *gathered;
    int64_t gather_number; /* of its last collective, as the reduction's below: for whoever watches the streams */
} zero_part_state;

typedef struct zero_unit_state {
    int params_held, grads_held;
    zero_part_state part[DT_N_PARTS];
    bool reduce_pending; /* the compute stream has not yet waited for the reduction that `reduced` marks */
    int64_t micro_done;  /* serial of the micro-step in which its gradients were completed */
    dt_event *reduced, *down;
    int64_t reduce_number;
    struct {
        int before, after;
    } seen[ZERO_N_SEEN]; /* learned: coming from unit `before`, unit `after` was next */
    int n_seen;
    int first_result; /* of its sums of squares, in z->host */
} zero_unit_state;

/** A staging buffer in host memory, and who still works on it. */
typedef struct zero_buffer {
    char *at;
    bool copying;                               /* the device may still copy from or to it: `copied` marks the end */
    bool to_write;                              /* what it copies here goes on to the file */
    dt_event *copied;                           /* NULL: the device has nothing to do with it */
    dt_swap_request request[1 + DT_MAX_STATES]; /* reads into it and writes from it */
    int unit;                                   /* whose parameters stand in it, or are coming; -1: none */
    dt_part part;
    int64_t used; /* serial: the lowest was used longest ago */
} zero_buffer;

typedef struct zero_ring {
    dt_buf memory;
    zero_buffer *buffer;
    int n; /* 0: there is none */
} zero_ring;

/** Elements lo .. lo+n-1 of a unit's trained part, in this rank's shard: updated at a time on the host. */
typedef struct zero_group {
    int unit;
    int64_t lo, n;
} zero_group;

/** A unit whose gradients of a micro-step are complete; is that the first of its step, or the last? */
typedef struct zero_deferred {
    int unit;
    bool first_micro, last_micro;
} zero_deferred;

struct dt_zero {
    dt_zero_options opt;
    const dt_unit *units;
    int n_units;
    dt_comm *comm;
    dt_device *dev;
    dt_stream *compute, *comm_stream; /* comm_stream is compute itself without overlap_comm */
    bool own_stream;
    /* stage 0: the update gathers the reduced gradients; else the last micro-step's backward does. In reproducible mode
     * there is no room for them before; and where streams run in order nothing is gained by gathering early, and two
     * passes over memory are lost */
    bool gather_in_update;
    dt_event *mark; /* orders one stream after the other */
    dt_phase *phase;
    zero_layout lay;
    zero_unit_state *state;
    dt_buf params[DT_N_PARTS];
    dt_buf grads, master, states[DT_MAX_STATES];                 /* model states; those of the optimizer in its order */
    dt_buf param_arena[DT_N_PARTS], grad_arena, bucket, results; /* staging on the device */
    dt_buf host;                                                 /* staging on the host, host_bytes */
    dt_buf watched;                                              /* largest own gradient, by unit; in slot 0 of one */
    /* what is offloaded: offload.c, offload_params.c */
    dt_stream *copy_stream;         /* gradients down beside backward, parameters up beside the update */
    bool own_copy_stream;           /* anything is offloaded */
    dt_buf away[DT_N_PARTS];        /* parameters in host memory */
    dt_buf host_grads;              /* sums of gradients in host memory, where the optimizer's states lie likewise */
    dt_buf grad_slots;              /* on the device: ZERO_GRAD_SLOTS, by turns */
    int slot_unit[ZERO_GRAD_SLOTS]; /* whose sum goes down from it, or went; -1: none yet */
    int next_slot;
    dt_swap_file *file;        /* master and states, then parameters; NULL: none */
    zero_ring up, swap, fetch; /* to the device; states from and to the file; parameters likewise */
    /* sub-groups, numbered unit after unit: the first of each unit, and how many there are */
    int64_t *first_group, n_groups;
    int64_t next_read;        /* the first whose states were not asked for, for this update or the next */
    int64_t n_used;           /* of buffers of fetch */
    dt_piece *pieces, *owned; /* [n_pieces] each, one table */
    int n_pieces;
    int last_unit, before_last;              /* the last units whose parameters were gathered into hand; -1: none */
    zero_deferred deferred[ZERO_N_DEFERRED]; /* reductions that are not yet queued, the oldest first */
    int n_deferred;
    int64_t micro_serial; /* micro-steps begun */
    bool in_micro;        /* between dt_zero_begin_micro and the update */
    bool first_micro, last_micro;
    bool watching; /* dt_zero_watch */
    dt_nonfinite nonfinite;
};

/** Where the rank stood before zero took over: put back when zero is done, for the watchdog and the trace. */
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

static inline bool zero_offloads(const dt_zero *z) { return z->lay.grads_down || z->lay.away_place != DT_ON_DEVICE; }
/** Who hands out memory: the processor for what is its alone, in zero pages that cost nothing before they are used. */
static inline dt_device *zero_memory_of(const dt_zero *z, dt_place place)
{
    return place == DT_ON_HOST ? z->opt.host : z->dev;
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
    return z->comm->group_rank * zero_shards(&z->lay, u, part)->shard_len;
}
/** First element of it that this rank is in charge of. */
static inline int64_t zero_charge(const dt_zero *z, int u, dt_part part)
{
    return dt_comm_piece(z->comm) * zero_shards(&z->lay, u, part)->charge_len;
}

/** Where element x of a part is kept, in device or in host memory; x lies in the own shard unless the kind is kept
 *  whole. Not for what is in the file. */
static inline void *zero_param_at(const dt_zero *z, int u, dt_part part, int64_t x)
{
    const zero_part_layout *p = &z->lay.units[u].part[part];
    return zero_at(p->place == DT_ON_DEVICE ? &z->params[part] : &z->away[part],
                   p->kept_at + x - (p->whole ? 0 : zero_own(z, u, part)), z->lay.param_dtype[part]);
}
/** Where a part that is not kept whole stands while it is held. */
static inline void *zero_held_at(const dt_zero *z, int u, dt_part part)
{
    return zero_at(&z->param_arena[part], z->lay.units[u].part[part].held_at, z->lay.param_dtype[part]);
}
/** On the device: all gradients where they are kept whole, else the own shard's sums. */
static inline void *zero_grad_at(const dt_zero *z, int u, int64_t x)
{
    return zero_at(&z->grads, z->lay.units[u].grad_at + x - (z->lay.whole_grads ? 0 : zero_own(z, u, DT_TRAINED)),
                   z->lay.grad_kept);
}
/** Where the sum for element x of the own shard ends: on the device, or in host memory. */
static inline void *zero_sum_at(const dt_zero *z, int u, int64_t x)
{
    if (!z->lay.grads_down) return zero_grad_at(z, u, x);
    return zero_at(&z->host_grads, z->lay.units[u].opt_at + x - zero_own(z, u, DT_TRAINED), z->lay.grad_kept);
}
/** b: master, or one of the optimizer's states, in device or in host memory. */
static inline float *zero_opt_at(const dt_zero *z, const dt_buf *b, int u, int64_t x)
{
    return zero_at(b, z->lay.units[u].opt_at + x - (z->lay.whole_opt ? 0 : zero_own(z, u, DT_TRAINED)), DT_F32);
}
/** Element x of the trained part in fp32. */
static inline float *zero_master_at(const dt_zero *z, int u, int64_t x)
{
    return z->lay.has_master ? zero_opt_at(z, &z->master, u, x) : zero_param_at(z, u, DT_TRAINED, x);
}

/** The first error counts; a failed exchange outranks a local error, for comm is unusable then. */
static inline dt_err zero_first_err(dt_err first, dt_err then)
{
    return first == DT_OK || then == DT_ERR_COMM ? then : first;
}

/** The compute stream waits for what the event marks: collective `number` for a unit. */
dt_err zero_compute_wait(dt_zero *z, dt_event *event, const char *unit, int64_t number);
/** A copy for a unit between device and host memory, "up" or "down". */
dt_err zero_copy(dt_zero *z, const char *way, int u, void *dst, const void *src, size_t nbytes, dt_stream *stream);
/** The number of the collective that was queued last. */
static inline int64_t zero_last_collective(const dt_zero *z)
{
    return atomic_load_explicit(&z->comm->sequence, memory_order_relaxed);
}

/* streams (bucket_collectives.c): what is queued on one from now on comes after what is queued on the other until now
 * */
dt_err zero_comm_after(dt_zero *z, dt_stream *stream);
dt_err zero_comm_after_compute(dt_zero *z);
dt_err zero_compute_after_comm(dt_zero *z);

/** Sum the gradients of one part over the ranks, in buckets, on the comm stream:
 *
 *      recv[i] (+)= sum over ranks r of send_r[charge + i],    0 <= i < charge_len
 *
 *  send [padded_len] of send_dt, recv [charge_len] of recv_dt, which may be the own place in send. Always joins the
 *  other ranks; err is what went wrong before. */
dt_err zero_reduce(dt_zero *z, const dt_shards *shards, const void *send, dt_dtype send_dt, void *recv,
                   dt_dtype recv_dt, bool accumulate, dt_err err);
/** The owners of a shard [shard_len] give each other what each is in charge of, in buckets, on the comm stream. Always
 *  joins. */
dt_err zero_replicate(dt_zero *z, const dt_shards *shards, void *shard, dt_dtype dt, dt_err err);
/** Gather one part, in buckets, on the comm stream: whole[r * shard_len + i] = send_r[i], all ranks r of the group,
 *  0 <= i < shard_len. send [shard_len], which may be the own place in whole [padded_len]. Always joins. */
dt_err zero_gather(dt_zero *z, const dt_shards *shards, const void *send, void *whole, dt_dtype dt, dt_err err);

/** The owned shards of a part have changed: gather it where it is kept whole, behind what is queued on the stream that
 *  wrote them, and forget what stands in its arena. Always joins. */
dt_err zero_gather_changed(dt_zero *z, int u, dt_part part, dt_stream *wrote, dt_err err);
/** The unit that params_acquire is likely to ask for after `last`, which came after `before` (-1: a micro-step began);
 *  -1: no idea. */
int zero_next_unit(const dt_zero *z, int before, int last);
/** Has params_acquire always been asked for another unit after the last two? Then a reduction may stand back for that
 *  one's gathers. */
bool zero_another_follows(const dt_zero *z);
/** Queue the reductions that stood back: the oldest, or all. Always join. */
dt_err zero_reduce_oldest(dt_zero *z);
dt_err zero_reduce_deferred(dt_zero *z);

/** DT_ERR_ARG unless every unit's gradients of the last micro-step are complete. */
dt_err zero_check_complete(const dt_zero *z);

/** A new micro-step: what the last unit of the old one was followed by is not worth fetching ahead. */
void zero_params_begin_micro(dt_zero *z);

dt_err zero_params_acquire(void *self, int unit, dt_param_view *view);
dt_err zero_params_release(void *self, int unit);
bool zero_params_resident(void *self);
dt_err zero_grads_acquire(void *self, int unit, dt_grad_view *view);
dt_err zero_grads_release(void *self, int unit);

/** Gather columns a .. a+count-1 (at most update_per_rank) of a unit's summed gradients, side by side by rank, on the
 *  comm stream, into the bucket. Always joins. */
dt_err zero_gather_columns(dt_zero *z, int u, int64_t a, int64_t count, dt_err err);

dt_err zero_pieces_make(dt_zero *z);
/** Nothing that is under way uses what the host writes: a gather in buckets would write the old values over the new
 *  ones. */
dt_err zero_before_write(dt_zero *z);
/** Copy elements of a state between where it is kept and host memory: [n], or, where it is z->host, at most what fits
 *  there. Behind zero_before_write. */
dt_err zero_move(dt_zero *z, dt_state s, const dt_piece *p, int64_t skip, int64_t n, void *host, bool write);

/* ---- update.c ---------------------------------------------------------------------------------------------------- */

/** The arguments of dt_zero_update. */
typedef struct zero_update {
    const dt_optimizer_step *step;
    const double *group_lr;
} zero_update;

/** Where elements lo, lo+1, ... of a unit's trained part stand while they are updated; dev reaches all of it. */
typedef struct zero_slice {
    dt_device *dev;
    dt_stream *stream;
    const void *grad;
    dt_dtype grad_dtype;
    float *master, *states[DT_MAX_STATES];
    void *param; /* NULL, or receives them rounded */
    bool fresh;  /* nothing stands there yet: what lies between the runs is written, too */
} zero_slice;

/** The optimizer's step on elements lo .. hi-1 of unit u's trained part, run by run:
 *
 *      master[i], states[k][i] <- step(grad[i]);  param[i] = master[i] rounded, where it is wanted
 *
 *  with i counted from lo. Queues on the slice's stream; padding and frozen tensors between the runs are not updated.
 *  up NULL: master is not touched, and all of param is written. */
dt_err zero_step(const dt_zero *z, int u, int64_t lo, int64_t hi, const zero_slice *s, const zero_update *up);
/** Update all units (up NULL: round the masters alone) and gather what changed. Always joins. */
dt_err zero_update_units(dt_zero *z, const zero_update *up, dt_err err);

/* ---- offload.c: master and states in host memory or in the file -------------------------------------------------- */

dt_err zero_offload_open(dt_zero *z);
void zero_offload_close(dt_zero *z);
/** The sum for a unit's shard [shard_len], on the device, goes down to host memory, behind `reduced` and beside what
 *  follows; `down` marks its end. Before the last micro-step only what this rank is in charge of is a sum. */
dt_err zero_send_down(dt_zero *z, int u, const void *sum, bool last_micro);
/** Elements of a unit's shard that are summed here, in the last micro-step or before it. */
typedef struct zero_range {
    int64_t lo, n;
} zero_range;
static inline zero_range zero_summed(const dt_zero *z, int u, bool last_micro)
{
    const dt_shards *s = zero_shards(&z->lay, u, DT_TRAINED);
    return last_micro ? (zero_range){zero_own(z, u, DT_TRAINED), s->shard_len}
                      : (zero_range){zero_charge(z, u, DT_TRAINED), s->charge_len};
}
/** All gradients are in host memory when it returns. */
dt_err zero_wait_down(dt_zero *z);
/** Read the states of the first sub-groups for the update to come, as far as their buffers are at rest; the host waits
 *  for nothing. */
dt_err zero_offload_ahead(dt_zero *z);
/** Begin an update: the device works on host memory and the rings no more. */
dt_err zero_offload_begin(dt_zero *z);
/** A unit's groups, one after the other, on the host; parameters go where they are kept. */
dt_err zero_offload_unit(dt_zero *z, int u, const zero_update *up);
/** Wait for all that is on its way to or from the file. */
dt_err zero_drain(dt_zero *z);
/** The same, and forget what was read, ahead of an update or of a unit's turn: the file is written by other ways. */
dt_err zero_forget(dt_zero *z);
/** No one works on the buffer any more. */
dt_err zero_buffer_wait(dt_zero *z, zero_buffer *b);
/** Byte where element x of a state begins in the file; k: 0 the master, 1 + i the optimizer's i-th. */
int64_t zero_state_in_file(const dt_zero *z, int k, int u, int64_t x);
int64_t zero_param_in_file(const dt_zero *z, int u, dt_part part, int64_t x);

/* ---- offload_params.c: parameters in host memory or in the file -------------------------------------------------- */

/** Bring the owned shard of a part, which is kept off the device, to its place in the arena; queued on the comm
 *  stream. Waits for the file where that was not read ahead. */
dt_err zero_fetch(dt_zero *z, int u, dt_part part);
/** Read what is likely to be wanted after the unit in hand into buffers that nobody works on, and write what has come
 *  down since; the host waits for nothing. */
dt_err zero_fetch_ahead(dt_zero *z);
/** A buffer for the parameters of a part in the file, whatever stood there; the caller fills it and calls
 *  zero_fetch_write. */
dt_err zero_fetch_take(dt_zero *z, int u, dt_part part, zero_buffer **b);
dt_err zero_fetch_write(dt_zero *z, zero_buffer *b);
/** The owned shard of the trained part, rounded into its place in the arena by the compute stream, goes to where it is
 *  kept. */
dt_err zero_send_away(dt_zero *z, int u);

#endif
