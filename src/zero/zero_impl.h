/* zero_impl.h - the inside of dt_zero: buffers, what stands in the rings, streams. Private to src/zero.
 *
 * Local errors and collectives. A local error (an injected fault, a kernel) does not keep a rank from a collective that
 * the others have begun: it joins with whatever it has and then returns its error, so all ranks reach the next vote.
 * Only DT_ERR_COMM leaves at once. */
#ifndef DTRAIN_ZERO_IMPL_H
#define DTRAIN_ZERO_IMPL_H

#include "layout.h"

enum { ZERO_N_SEEN = 4 };

typedef struct zero_unit_state {
    int params_held, grads_held;
    bool resident;       /* its whole parameters stand in the ring and are up to date */
    bool gather_pending; /* the compute stream has not yet waited for the gather that `gathered` marks */
    bool reduce_pending; /* likewise for the reduction that `reduced` marks */
    int64_t micro_done;  /* serial of the micro-step in which its gradients were completed */
    dt_event *gathered, *reduced;
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
    /* stage 0: reduced gradients stay with their owners until the update gathers them. In reproducible mode there is no
     * room for them elsewhere; and where streams run in order nothing is gained by gathering early, and two passes over
     * memory are lost */
    bool sums_stay;
    dt_event *mark; /* orders one stream after the other */
    dt_phase *phase;
    zero_layout lay;
    zero_unit_state *state;
    dt_buf params, grads, master, states[DT_MAX_STATES]; /* model states; those of the optimizer in its order */
    dt_buf param_ring, grad_ring, bucket, results;       /* staging on the device */
    dt_buf host;                                         /* staging on the host, host_bytes */
    dt_piece *pieces;
    int n_pieces;
    int last_unit, before_last; /* the last units whose parameters were gathered into hand; -1: none */
    int64_t micro_serial;       /* micro-steps begun */
    bool in_micro;              /* between dt_zero_begin_micro and the update */
    bool first_micro, last_micro;
};

/** Where the rank stood before zero took over: put back when zero is done, for the watchdog and the trace. */
typedef struct zero_place {
    const char *name, *unit;
} zero_place;

static inline zero_place zero_enter(dt_zero *z, const char *name, const char *unit)
{
    if (!z->phase) return (zero_place){0};
    const zero_place before = {atomic_load_explicit(&z->phase->name, memory_order_relaxed),
                               atomic_load_explicit(&z->phase->unit, memory_order_relaxed)};
    dt_phase_enter(z->phase, name, unit);
    return before;
}
static inline void zero_leave(dt_zero *z, zero_place before)
{
    if (before.name) dt_phase_enter(z->phase, before.name, before.unit);
}

static inline void *zero_at(const dt_buf *b, int64_t elem, dt_dtype t)
{
    return (char *)b->ptr + (size_t)elem * dt_dtype_size(t);
}

/** First element of this rank's shard in the unit's flat buffer. */
static inline int64_t zero_own(const dt_zero *z, int u) { return z->comm->rank * z->lay.units[u].shards.shard_len; }

/** Where element x of a unit's flat buffer is kept; x lies in the own shard unless the kind is kept whole. */
static inline void *zero_param_at(const dt_zero *z, int u, int64_t x)
{
    const zero_unit_layout *ul = &z->lay.units[u];
    return zero_at(&z->params, ul->param_at + x - (ul->whole_params ? 0 : zero_own(z, u)), z->lay.param_dtype);
}
static inline void *zero_grad_at(const dt_zero *z, int u, int64_t x)
{
    return zero_at(&z->grads, z->lay.units[u].grad_at + x - (z->lay.whole_grads ? 0 : zero_own(z, u)),
                   z->lay.grad_kept);
}
/** b: master, or one of the optimizer's states. */
static inline float *zero_opt_at(const dt_zero *z, const dt_buf *b, int u, int64_t x)
{
    return zero_at(b, z->lay.units[u].opt_at + x - (z->lay.whole_opt ? 0 : zero_own(z, u)), DT_F32);
}
static inline float *zero_master_at(const dt_zero *z, int u, int64_t x)
{
    return z->lay.has_master ? zero_opt_at(z, &z->master, u, x) : zero_param_at(z, u, x);
}

/** The first error counts; a failed exchange outranks a local error, for comm is unusable then. */
static inline dt_err zero_first_err(dt_err first, dt_err then)
{
    return first == DT_OK || then == DT_ERR_COMM ? then : first;
}

/* streams (exchange.c): what is queued on one from now on comes after what is queued on the other until now */
dt_err zero_comm_after_compute(dt_zero *z);
dt_err zero_compute_after_comm(dt_zero *z);

/** Sum one unit's gradients over the ranks: send [padded_len], recv [shard_len], in buckets, on the comm stream. Always
 *  joins; err is what went wrong before. recv may be the own place in send. */
dt_err zero_reduce_unit(dt_zero *z, int u, const void *send, dt_dtype send_dt, void *recv, dt_dtype recv_dt,
                        bool accumulate, dt_err err);
/** Gather one unit: send [shard_len] to whole [padded_len], in buckets, on the comm stream. Always joins. send may be
 *  the own place in whole. */
dt_err zero_gather_unit(dt_zero *z, int u, const void *send, void *whole, dt_dtype dt, dt_err err);

/** Gather the whole parameters that the owned shards have outgrown; forget what stands in the ring. */
dt_err zero_gather_params(dt_zero *z, dt_err err);

/** DT_ERR_ARG unless every unit's gradients of the last micro-step are complete. */
dt_err zero_check_complete(const dt_zero *z);

/** A new micro-step: what the last unit of the old one was followed by is not worth fetching ahead. */
void zero_params_begin_micro(dt_zero *z);

dt_err zero_params_acquire(void *self, int unit, dt_unit_view *view);
dt_err zero_params_release(void *self, int unit);
dt_err zero_grads_acquire(void *self, int unit, dt_unit_view *view);
dt_err zero_grads_release(void *self, int unit);

/** Gather columns a .. a+count-1 (at most update_per_rank) of a unit's summed gradients, side by side by rank, on the
 *  comm stream, into the bucket. Always joins. */
dt_err zero_gather_columns(dt_zero *z, int u, int64_t a, int64_t count, dt_err err);

dt_err zero_pieces_make(dt_zero *z);

#endif
