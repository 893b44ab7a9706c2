/* gather.c - params_acquire and params_release: the all-gather of stage 3, and its prefetch.
 *
 * Whole parameters: a pointer, and a wait for the gather after the last update. Sharded parts are gathered into the
 * unit's region of their arena. Release only marks the region as reusable. A unit that is used again before its region
 * is reused is not gathered again; frozen parts stay valid even across an update.
 *
 * The next unit is prefetched while the current one is held. The layer loop has the same order in every step, so the
 * successor of each unit is recorded in the first step. With a tied embedding the successor near the head is not the
 * next index. Units of experts are used in the same order in forward and in the recomputation of backward, but other
 * units follow them. The unit before their block distinguishes the two.
 *
 * A gather is queued after all work queued so far, which includes the last use of its region, and overlaps with later
 * work. A reduction whose result is not needed yet is deferred for it (grads.c).
 *
 * During a rollout all units may stay gathered until the next update. Each rank then runs its own passes, or omits the
 * calls (params_resident). Such passes record nothing: the order of prefetches must be the same on all ranks. */
#include "zero_impl.h"

/** Does a part of unit u occupy an arena while it is held? */
static bool is_sharded(const zero_layout *l, int u, dt_part part)
{
    return !l->units[u].part[part].whole && !zero_is_empty(l, u, part);
}

static bool any_is_sharded(const zero_layout *l, int u)
{
    for (int p = 0; p < DT_N_PARTS; p++)
        if (is_sharded(l, u, (dt_part)p)) return true;
    return false;
}

static bool overlap(const zero_layout *l, int a, int b, dt_part part)
{
    const zero_part_layout *pa = &l->units[a].part[part], *pb = &l->units[b].part[part];
    if (!is_sharded(l, a, part) || !is_sharded(l, b, part)) return false;
    return pa->held_at < pb->held_at + pb->shards.padded_len && pb->held_at < pa->held_at + pa->shards.padded_len;
}

/** The unit that holds an arena region that a part of unit u needs, or -1. */
static int holder_of_region(const dt_zero *z, int u, dt_part part)
{
    if (!is_sharded(&z->lay, u, part)) return -1;
    for (int i = 0; i < z->n_in_arena; i++) {
        const int v = z->in_arena[i];
        if (v != u && z->state[v].params_held > 0 && overlap(&z->lay, u, v, part)) return v;
    }
    return -1;
}

/* ---- which unit comes next --------------------------------------------------------------------------------------- */

void zero_go_to(const dt_zero *z, zero_location *at, int u)
{
    at->before = at->last;
    at->last = u;
    if (u >= 0 && z->lay.units[u].inner) return;
    at->before_outer = at->outer;
    at->outer = u;
}

static bool same_way(const zero_location *a, const zero_location *b)
{
    return a->before == b->before && a->before_outer == b->before_outer;
}

static void record_order(dt_zero *z, int u)
{
    if (z->at.last >= 0) {
        zero_unit_state *s = &z->state[z->at.last];
        int k = 0;
        while (k < s->n_seen && !same_way(&s->seen[k].at, &z->at)) k++;
        if (k == ZERO_N_SEEN) k = 0; /* the table is full: replace an entry */
        if (k == s->n_seen) s->n_seen++;
        s->seen[k].at = z->at;
        s->seen[k].after = u;
    }
    zero_go_to(z, &z->at, u);
}

void zero_params_begin_micro(dt_zero *z)
{
    record_order(z, -1);
    z->at = ZERO_NOWHERE;
}

static const int *seen_after(const dt_zero *z, const zero_location *at)
{
    const zero_unit_state *s = &z->state[at->last];
    for (int k = 0; k < s->n_seen; k++)
        if (same_way(&s->seen[k].at, at)) return &s->seen[k].after;
    return NULL;
}

bool zero_another_follows(const dt_zero *z)
{
    const int *after = z->at.last >= 0 ? seen_after(z, &z->at) : NULL;
    return after && *after >= 0;
}

int zero_next_unit(const dt_zero *z, const zero_location *at)
{
    const int *after = seen_after(z, at);
    if (after) return *after;
    const int guess = at->before == at->last + 1 ? at->last - 1 : at->last + 1;
    return guess < z->n_units ? guess : -1;
}

/* ---- the arenas -------------------------------------------------------------------------------------------------- */

static bool is_away(const dt_zero *z, int u, dt_part part) { return z->lay.units[u].part[part].space != DT_ON_DEVICE; }

/** Source of the owned shard for a gather: its permanent buffer, or its offset in the whole part after a copy to the
 *  device. */
static const void *own_at(const dt_zero *z, int u, dt_part part)
{
    const int64_t own = zero_own(z, u, part);
    if (!is_away(z, u, part)) return zero_param_at(z, u, part, own);
    return (const char *)zero_held_at(z, u, part) + (size_t)own * dt_dtype_size(z->lay.param_dtype[part]);
}

static bool uses_arena(const zero_unit_state *s)
{
    bool uses = s->params_held > 0;
    for (int p = 0; p < DT_N_PARTS; p++) uses = uses || s->part[p].resident;
    return uses;
}

/** A part of unit u gets its region. Other units in it are gathered again when they are used. */
static void take_region(dt_zero *z, int u, dt_part part)
{
    int n = 0;
    if (!z->state[u].in_arena) z->in_arena[z->n_in_arena++] = u;
    for (int i = 0; i < z->n_in_arena; i++) {
        const int v = z->in_arena[i];
        zero_unit_state *s = &z->state[v];
        if (v != u && s->part[part].resident && overlap(&z->lay, u, v, part)) s->part[part].resident = false;
        s->in_arena = v == u || uses_arena(s);
        if (s->in_arena) z->in_arena[n++] = v;
    }
    z->n_in_arena = n;
}

/** Gather a part that is not kept whole into its arena region, which other units may have used. Queued after all work
 *  queued so far; `gathered` marks its completion. */
static dt_err gather_into_arena(dt_zero *z, int u, dt_part part)
{
    zero_part_state *s = &z->state[u].part[part];
    take_region(z, u, part);
    const zero_phase before = zero_enter(z, "gather", z->units[u].name);
    dt_err err = dt_fault("zero.gather");
    err = dt_first_err(err, zero_comm_after_compute(z));
    if (is_away(z, u, part)) err = dt_first_err(err, zero_fetch(z, u, part));
    err = zero_gather(z, zero_shards(&z->lay, u, part), own_at(z, u, part), zero_held_at(z, u, part),
                      z->lay.param_dtype[part], err);
    err = dt_first_err(err, z->dev->ops->event_record(z->dev, s->gathered, z->comm_stream));
    s->resident = err == DT_OK;
    s->gather_pending = z->comm_stream != z->compute;
    s->gather_number = zero_last_collective(z);
    zero_leave(z, before);
    return err;
}

static dt_err prefetch(dt_zero *z)
{
    const int u = zero_next_unit(z, &z->at);
    for (int p = 0; u >= 0 && p < DT_N_PARTS; p++) {
        const dt_part part = (dt_part)p;
        if (!is_sharded(&z->lay, u, part) || z->state[u].part[p].resident) continue;
        if (zero_shards(&z->lay, u, part)->padded_len > z->opt.prefetch_bucket_size) continue;
        if (holder_of_region(z, u, part) < 0) DT_TRY(gather_into_arena(z, u, part));
    }
    return DT_OK;
}

/** Gather the sharded parts of a unit. */
static dt_err gather_unit(dt_zero *z, int u)
{
    for (int p = 0; p < DT_N_PARTS; p++) {
        const int holder = holder_of_region(z, u, (dt_part)p);
        DT_EXPECT(holder < 0);
    }
    record_order(z, u);
    for (int p = 0; p < DT_N_PARTS; p++)
        if (is_sharded(&z->lay, u, (dt_part)p) && !z->state[u].part[p].resident)
            DT_TRY(gather_into_arena(z, u, (dt_part)p));
    return DT_OK;
}

/** The part is gathered in its permanent region, and its use needs no wait. */
static bool is_ready(const dt_zero *z, int u, dt_part part)
{
    const zero_part_state *s = &z->state[u].part[part];
    if (zero_is_empty(&z->lay, u, part)) return true;
    if (s->gather_pending) return false;
    return is_sharded(&z->lay, u, part) ? z->opt.keep_gathered && s->resident : !is_away(z, u, part);
}

static bool all_are_ready(const dt_zero *z)
{
    for (int u = 0; u < z->n_units; u++)
        for (int p = 0; p < DT_N_PARTS; p++)
            if (!is_ready(z, u, (dt_part)p)) return false;
    return true;
}

/* Parameters that an update copies to the host are written to the file when a unit is acquired. */
bool zero_params_resident(void *self)
{
    const dt_zero *z = self;
    for (int i = 0; i < z->fetch.n; i++)
        if (z->fetch.buffer[i].to_write) return false;
    return z->n_deferred == 0 && all_are_ready(z);
}

static void *part_data(const dt_zero *z, int u, dt_part part)
{
    if (zero_is_empty(&z->lay, u, part)) return NULL;
    return is_sharded(&z->lay, u, part) ? zero_held_at(z, u, part) : zero_param_at(z, u, part, 0);
}

dt_err zero_params_acquire(void *self, int u, dt_param_view *view)
{
    dt_zero *z = self;
    DT_EXPECT(u >= 0 && u < z->n_units);
    zero_unit_state *s = &z->state[u];
    const bool sharded = any_is_sharded(&z->lay, u);
    const bool first = s->params_held == 0;
    const bool joint = sharded && first && !(z->opt.keep_gathered && all_are_ready(z)); /* all ranks acquire it now */
    if (joint) DT_TRY(gather_unit(z, u));
    s->params_held++;
    for (int p = 0; p < DT_N_PARTS; p++) {
        if (s->part[p].gather_pending)
            DT_TRY(zero_compute_wait(z, s->part[p].gathered, z->units[u].name, s->part[p].gather_number));
        s->part[p].gather_pending = false;
        view->part[p].data = part_data(z, u, (dt_part)p);
        view->part[p].dtype = z->lay.param_dtype[p];
    }
    dt_err err = sharded && first ? zero_fetch_ahead(z) : DT_OK;
    if (joint && z->lay.prefetch) err = dt_first_err(err, prefetch(z));
    return err == DT_ERR_COMM ? err : dt_first_err(err, zero_reduce_oldest(z));
}

dt_err zero_params_release(void *self, int u)
{
    dt_zero *z = self;
    DT_EXPECT(u >= 0 && u < z->n_units && z->state[u].params_held > 0);
    z->state[u].params_held--;
    return DT_OK;
}

dt_err zero_gather_changed(dt_zero *z, int u, dt_part part, dt_stream *wrote, dt_err err)
{
    zero_part_state *s = &z->state[u].part[part];
    s->resident = false;
    if (zero_is_empty(&z->lay, u, part) || is_sharded(&z->lay, u, part) || err == DT_ERR_COMM) return err;
    if (z->shard->size == 1 && wrote == z->compute) return err;
    const zero_phase before = zero_enter(z, "gather", z->units[u].name);
    err = dt_first_err(err, zero_comm_after(z, wrote));
    if (z->shard->size > 1)
        err = zero_gather(z, zero_shards(&z->lay, u, part), own_at(z, u, part), zero_param_at(z, u, part, 0),
                          z->lay.param_dtype[part], err);
    err = dt_first_err(err, z->dev->ops->event_record(z->dev, s->gathered, z->comm_stream));
    s->gather_pending = z->comm_stream != z->compute;
    s->gather_number = zero_last_collective(z);
    zero_leave(z, before);
    return err;
}
