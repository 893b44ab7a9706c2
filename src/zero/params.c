/* params.c - what params_acquire and params_release do.
 *
 * Whole parameters are a pointer, and a wait for the gather that followed the update. Sharded ones are gathered into
 * the unit's place in the ring; release only gives the place free, so a unit that is used again before another took its
 * place is not gathered again. While a unit is in hand the next one comes: the layer loop goes the same way in every
 * step, and which unit follows another is learned from the first (a tied embedding makes "the next number" wrong near
 * the head). A gather is queued behind all work queued so far, which was the last to use the place, and runs beside the
 * work that follows. */
#include "zero_impl.h"

static bool overlap(const zero_layout *l, int a, int b)
{
    const zero_unit_layout *ua = &l->units[a], *ub = &l->units[b];
    return ua->param_place < ub->param_place + ub->shards.padded_len &&
           ub->param_place < ua->param_place + ua->shards.padded_len;
}

/** The unit that is held in a place which unit u needs, or -1. */
static int holder_of_place(const dt_zero *z, int u)
{
    for (int v = 0; v < z->n_units; v++)
        if (v != u && !z->lay.units[v].whole_params && z->state[v].params_held > 0 && overlap(&z->lay, u, v)) return v;
    return -1;
}

/* ---- which unit comes next --------------------------------------------------------------------------------------- */

static void learn(dt_zero *z, int u)
{
    if (z->last_unit >= 0) {
        zero_unit_state *s = &z->state[z->last_unit];
        int k = 0;
        while (k < s->n_seen && s->seen[k].before != z->before_last) k++;
        if (k == ZERO_N_SEEN) k = 0; /* more ways than the table holds: forget one */
        if (k == s->n_seen) s->n_seen++;
        s->seen[k].before = z->before_last;
        s->seen[k].after = u;
    }
    z->before_last = z->last_unit;
    z->last_unit = u;
}

void zero_params_begin_micro(dt_zero *z)
{
    learn(z, -1);
    z->before_last = -1;
}

/** Guess the unit after u, in hand now; -1: no idea. */
static int next_unit(const dt_zero *z, int u)
{
    const zero_unit_state *s = &z->state[u];
    for (int k = 0; k < s->n_seen; k++)
        if (s->seen[k].before == z->before_last) return s->seen[k].after;
    const int guess = z->before_last == u + 1 ? u - 1 : u + 1;
    return guess < z->n_units ? guess : -1;
}

/* ---- the ring ---------------------------------------------------------------------------------------------------- */

static dt_err gather_into_ring(dt_zero *z, int u)
{
    zero_unit_state *s = &z->state[u];
    for (int v = 0; v < z->n_units; v++)
        if (v != u && !z->lay.units[v].whole_params && overlap(&z->lay, u, v)) z->state[v].resident = false;
    const zero_place before = zero_enter(z, "gather", z->units[u].name);
    dt_err err = dt_fault("zero.gather");
    err = zero_first_err(err, zero_comm_after_compute(z));
    void *whole = zero_at(&z->param_ring, z->lay.units[u].param_place, z->lay.param_dtype);
    err = zero_gather_unit(z, u, zero_param_at(z, u, zero_own(z, u)), whole, z->lay.param_dtype, err);
    err = zero_first_err(err, z->dev->ops->event_record(z->dev, s->gathered, z->comm_stream));
    s->resident = err == DT_OK;
    s->gather_pending = true;
    zero_leave(z, before);
    return err;
}

static dt_err prefetch(dt_zero *z, int in_hand)
{
    const int u = next_unit(z, in_hand);
    if (u < 0 || z->lay.units[u].whole_params || z->state[u].resident) return DT_OK;
    if (z->lay.units[u].shards.padded_len > z->opt.prefetch_bucket_size || holder_of_place(z, u) >= 0) return DT_OK;
    return gather_into_ring(z, u);
}

/** Bring a sharded unit into hand. */
static dt_err take(dt_zero *z, int u)
{
    zero_unit_state *s = &z->state[u];
    const int holder = holder_of_place(z, u);
    DT_CHECK(holder < 0, DT_ERR_ARG,
             "unit %s cannot be gathered while unit %s is held: the ring has no room for both%s", z->units[u].name,
             z->units[holder].name, z->opt.untied ? " (dt_zero_options.untied is set)" : "");
    learn(z, u);
    return s->resident ? DT_OK : gather_into_ring(z, u);
}

dt_err zero_params_acquire(void *self, int u, dt_unit_view *view)
{
    dt_zero *z = self;
    DT_CHECK(u >= 0 && u < z->n_units, DT_ERR_ARG, "unit %d of %d", u, z->n_units);
    const zero_unit_layout *ul = &z->lay.units[u];
    zero_unit_state *s = &z->state[u];
    const bool sharded = !ul->whole_params, first = s->params_held == 0;
    if (sharded && first) DT_TRY(take(z, u));
    s->params_held++;
    if (s->gather_pending && z->comm_stream != z->compute)
        DT_TRY(z->dev->ops->event_wait(z->dev, s->gathered, z->compute));
    s->gather_pending = false;
    if (sharded && first && z->lay.prefetch) DT_TRY(prefetch(z, u));
    *view = (dt_unit_view){.data = sharded ? zero_at(&z->param_ring, ul->param_place, z->lay.param_dtype)
                                           : zero_param_at(z, u, 0),
                           .dtype = z->lay.param_dtype};
    return DT_OK;
}

dt_err zero_params_release(void *self, int u)
{
    dt_zero *z = self;
    DT_CHECK(u >= 0 && u < z->n_units && z->state[u].params_held > 0, DT_ERR_ARG,
             "parameters of unit %d released but not held", u);
    z->state[u].params_held--;
    return DT_OK;
}

dt_err zero_gather_params(dt_zero *z, dt_err err)
{
    err = zero_first_err(err, dt_fault("zero.gather"));
    err = zero_first_err(err, zero_comm_after_compute(z));
    for (int u = 0; u < z->n_units && err != DT_ERR_COMM; u++) {
        zero_unit_state *s = &z->state[u];
        s->resident = false;
        if (!z->lay.units[u].whole_params || z->comm->nranks == 1) continue;
        const zero_place before = zero_enter(z, "gather", z->units[u].name);
        err = zero_gather_unit(z, u, zero_param_at(z, u, zero_own(z, u)), zero_param_at(z, u, 0), z->lay.param_dtype,
                               err);
        err = zero_first_err(err, z->dev->ops->event_record(z->dev, s->gathered, z->comm_stream));
        s->gather_pending = true;
        zero_leave(z, before);
    }
    return err;
}
