/* zero_impl.h - the inside of dt_zero: buffers, what stands in the arenas, streams. Private to src/zero.
 *
 * Local errors and collectives. A local error (an injected fault, a kernel) does not keep a rank from a collective that
 * the others have begun: it joins with whatever it has and then returns its error, so all ranks reach the next vote.
 * Only DT_ERR_COMM leaves at once. */
#ifndef DTRAIN_ZERO_IMPL_H
#define DTRAIN_ZERO_IMPL_H

#include "arrange.h"

enum { ZERO_N_SEEN = 4 };

typedef struct zero_part_state {
    bool resident;       /* it stands whole in the arena and is up to date */
    bool gather_pending; /* the compute stream has not yet waited for the gather that `gathered` marks */
    dt_event *gathered;
} zero_part_state;

typedef struct zero_unit_state {
    int params_held, grads_held;
    zero_part_state part[DT_N_PARTS];
    bool reduce_pending; /* the compute stream has not yet waited for the reduction that `reduced` marks */
    int64_t micro_done;  /* serial of the micro-step in which its gradients were completed */
    dt_event *reduced;
    struct {
        int before, after;
    } seen[ZERO_N_SEEN]; /* learned: coming from unit `before`, unit `after` was next */
    int n_seen;
} zero_unit_state;

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
    dt_piece *pieces;
    int n_pieces;
    int last_unit, before_last; /* the last units whose parameters were gathered into hand; -1: none */
    int64_t micro_serial;       /* micro-steps begun */
    bool in_micro;              /* between dt_zero_begin_micro and the update */
    bool first_micro, last_micro;
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
    return z->comm->rank * zero_shards(&z->lay, u, part)->shard_len;
}

/** Where element x of a part is kept; x lies in the own shard unless the kind is kept whole. */
static inline void *zero_param_at(const dt_zero *z, int u, dt_part part, int64_t x)
{
    const zero_part_layout *p = &z->lay.units[u].part[part];
    return zero_at(&z->params[part], p->kept_at + x - (p->whole ? 0 : zero_own(z, u, part)), z->lay.param_dtype[part]);
}
/** Where a part that is not kept whole stands while it is held. */
static inline void *zero_held_at(const dt_zero *z, int u, dt_part part)
{
    return zero_at(&z->param_arena[part], z->lay.units[u].part[part].held_at, z->lay.param_dtype[part]);
}
static inline void *zero_grad_at(const dt_zero *z, int u, int64_t x)
{
    return zero_at(&z->grads, z->lay.units[u].grad_at + x - (z->lay.whole_grads ? 0 : zero_own(z, u, DT_TRAINED)),
                   z->lay.grad_kept);
}
/** b: master, or one of the optimizer's states. */
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

/* streams (exchange.c): what is queued on one from now on comes after what is queued on the other until now */
dt_err zero_comm_after_compute(dt_zero *z);
dt_err zero_compute_after_comm(dt_zero *z);

/** Sum the gradients of one part over the ranks, in buckets, on the comm stream:
 *
 *      recv[i] (+)= sum over ranks r of send_r[rank * shard_len + i],    0 <= i < shard_len
 *
 *  send [padded_len] of send_dt, recv [shard_len] of recv_dt, which may be the own place in send. Always joins the
 *  other ranks; err is what went wrong before. */
dt_err zero_reduce(dt_zero *z, const dt_shards *shards, const void *send, dt_dtype send_dt, void *recv,
                   dt_dtype recv_dt, bool accumulate, dt_err err);
/** Gather one part, in buckets, on the comm stream: whole[r * shard_len + i] = send_r[i], all ranks r, 0 <= i <
 *  shard_len. send [shard_len], which may be the own place in whole [padded_len]. Always joins. */
dt_err zero_gather(dt_zero *z, const dt_shards *shards, const void *send, void *whole, dt_dtype dt, dt_err err);

/** Gather what is kept whole of the first n_parts parts (1: what is trained) from the owned shards, which have changed;
 *  forget what stands in their arenas. */
dt_err zero_gather_params(dt_zero *z, int n_parts, dt_err err);

/** DT_ERR_ARG unless every unit's gradients of the last micro-step are complete. */
dt_err zero_check_complete(const dt_zero *z);

/** A new micro-step: what the last unit of the old one was followed by is not worth fetching ahead. */
void zero_params_begin_micro(dt_zero *z);

dt_err zero_params_acquire(void *self, int unit, dt_param_view *view);
dt_err zero_params_release(void *self, int unit);
dt_err zero_grads_acquire(void *self, int unit, dt_grad_view *view);
dt_err zero_grads_release(void *self, int unit);

/** Gather columns a .. a+count-1 (at most update_per_rank) of a unit's summed gradients, side by side by rank, on the
 *  comm stream, into the bucket. Always joins. */
dt_err zero_gather_columns(dt_zero *z, int u, int64_t a, int64_t count, dt_err err);

dt_err zero_pieces_make(dt_zero *z);

#endif
