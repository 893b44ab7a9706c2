/* fetch.c - parameters that are kept off the device (stage 3): from host memory they go straight to their place in the
 * arena; from the file by way of a staging buffer, which is read ahead of the unit's turn.
 *
 * A buffer keeps the name of what stands in it until it is taken for another part, so a part that comes again soon is
 * not read again, and nobody reads from the file what is still being written: it is in a buffer then. */
#include "zero_impl.h"

int64_t zero_param_in_file(const dt_zero *z, int u, dt_part part, int64_t x)
{
    const zero_layout *l = &z->lay;
    int64_t nbytes = 0;
    if (l->opt_place == DT_IN_FILE) nbytes = (1 + l->n_states) * l->opt_len * (int64_t)sizeof(float);
    for (int p = 0; p < (int)part; p++) nbytes += l->away_len[p] * (int64_t)dt_dtype_size(l->param_dtype[p]);
    const int64_t elem = l->units[u].part[part].kept_at + x - zero_own(z, u, part);
    return nbytes + elem * (int64_t)dt_dtype_size(l->param_dtype[part]);
}

static size_t shard_nbytes(const dt_zero *z, int u, dt_part part)
{
    return (size_t)zero_shards(&z->lay, u, part)->shard_len * dt_dtype_size(z->lay.param_dtype[part]);
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static zero_buffer *find(const dt_zero *z, int u, dt_part part)
{
    for (int i = 0; i < z->fetch.n; i++)
        if (z->fetch.buffer[i].unit == u && z->fetch.buffer[i].part == part) return &z->fetch.buffer[i];
    return NULL;
}

static zero_buffer *used_longest_ago(const dt_zero *z)
{
    zero_buffer *b = &z->fetch.buffer[0];
    for (int i = 1; i < z->fetch.n; i++)
        if (z->fetch.buffer[i].used < b->used) b = &z->fetch.buffer[i];
    return b;
}

/** Does anyone still work on it? */
static dt_err is_busy(dt_zero *z, const zero_buffer *b, bool *busy)
{
    bool copied = true;
    if (b->copying) DT_TRY(z->dev->ops->event_query(z->dev, b->copied, &copied));
    *busy = !copied || !dt_swap_done(z->file, &b->request[0]);
    return DT_OK;
}

/** Give a buffer that nobody works on to a part. */
static void name_buffer(dt_zero *z, zero_buffer *b, int u, dt_part part)
{
    b->unit = u, b->part = part;
    b->used = ++z->n_used;
}

static dt_err begin_read(dt_zero *z, zero_buffer *b, int u, dt_part part)
{
    DT_TRY(zero_buffer_wait(z, b));
    name_buffer(z, b, u, part);
    return dt_swap_read(z->file, zero_param_in_file(z, u, part, zero_own(z, u, part)), b->at,
                        dt_swap_round_up(shard_nbytes(z, u, part)), &b->request[0]);
}

dt_err zero_fetch_take(dt_zero *z, int u, dt_part part, zero_buffer **b)
{
    *b = find(z, u, part);
    if (!*b) *b = used_longest_ago(z);
    DT_TRY(zero_buffer_wait(z, *b));
    name_buffer(z, *b, u, part);
    return DT_OK;
}

dt_err zero_fetch_write(dt_zero *z, zero_buffer *b)
{
    DT_TRY(dt_fault("zero.write"));
    return dt_swap_write(z->file, zero_param_in_file(z, b->unit, b->part, zero_own(z, b->unit, b->part)), b->at,
                         dt_swap_round_up(shard_nbytes(z, b->unit, b->part)), &b->request[0]);
}

void zero_fetch_forget(dt_zero *z)
{
    for (int i = 0; i < z->fetch.n; i++) z->fetch.buffer[i].unit = -1;
}

/* ---- to the device ----------------------------------------------------------------------------------------------- */

/** Read what is likely to be wanted after unit u, which is in hand or gathered ahead of its turn, into buffers that
 *  nobody works on; the host waits for nothing. */
static dt_err read_ahead(dt_zero *z, int u)
{
    int before = u == z->last_unit ? z->before_last : z->last_unit, last = u;
    for (int k = 1; k < z->fetch.n; k++) {
        const int next = zero_next_unit(z, before, last);
        if (next < 0) return DT_OK;
        for (int p = 0; p < DT_N_PARTS; p++) {
            const dt_part part = (dt_part)p;
            zero_buffer *b = find(z, next, part);
            if (z->lay.units[next].part[p].place != DT_IN_FILE || zero_is_empty(&z->lay, next, part)) continue;
            if (b) b->used = ++z->n_used; /* others go first */
            if (b || z->state[next].part[p].resident) continue;
            bool busy = true;
            b = used_longest_ago(z);
            DT_TRY(is_busy(z, b, &busy));
            if (busy) return DT_OK;
            DT_TRY(begin_read(z, b, next, part));
        }
        before = last, last = next;
    }
    return DT_OK;
}

static dt_err copy_up(dt_zero *z, int u, dt_part part, const void *from)
{
    void *own =
        (char *)zero_held_at(z, u, part) + (size_t)zero_own(z, u, part) * dt_dtype_size(z->lay.param_dtype[part]);
    return zero_copy(z, "up", u, own, from, shard_nbytes(z, u, part), z->comm_stream);
}

/** Does another part of the unit come from the file? Its buffer is not to be taken for what is wanted later. */
static bool is_followed(const dt_zero *z, int u, dt_part part)
{
    for (int p = (int)part + 1; p < DT_N_PARTS; p++)
        if (z->lay.units[u].part[p].place == DT_IN_FILE && !zero_is_empty(&z->lay, u, (dt_part)p) &&
            !z->state[u].part[p].resident)
            return true;
    return false;
}

static dt_err fetch_from_file(dt_zero *z, int u, dt_part part)
{
    zero_buffer *b = find(z, u, part);
    if (!b) DT_TRY(begin_read(z, b = used_longest_ago(z), u, part));
    DT_TRY(dt_fault("zero.read"));
    b->used = ++z->n_used;
    const dt_err err = dt_swap_wait(z->file, &b->request[0]);
    if (err != DT_OK) b->unit = -1; /* what stands in it is undefined */
    DT_TRY(err);
    DT_TRY(copy_up(z, u, part, b->at));
    b->copying = true;
    DT_TRY(z->dev->ops->event_record(z->dev, b->copied, z->comm_stream));
    return is_followed(z, u, part) ? DT_OK : read_ahead(z, u);
}

dt_err zero_fetch(dt_zero *z, int u, dt_part part)
{
    if (z->lay.units[u].part[part].place == DT_IN_FILE) return fetch_from_file(z, u, part);
    return copy_up(z, u, part, zero_param_at(z, u, part, zero_own(z, u, part)));
}

/* ---- from the device --------------------------------------------------------------------------------------------- */

dt_err zero_send_away(dt_zero *z, int u)
{
    const int64_t own = zero_own(z, u, DT_TRAINED);
    const size_t nbytes = shard_nbytes(z, u, DT_TRAINED);
    const char *from =
        (const char *)zero_held_at(z, u, DT_TRAINED) + (size_t)own * dt_dtype_size(z->lay.param_dtype[DT_TRAINED]);
    if (z->lay.units[u].part[DT_TRAINED].place != DT_IN_FILE)
        return zero_copy(z, "down", u, zero_param_at(z, u, DT_TRAINED, own), from, nbytes, z->compute);
    zero_buffer *b;
    DT_TRY(zero_fetch_take(z, u, DT_TRAINED, &b));
    DT_TRY(zero_copy(z, "down", u, b->at, from, nbytes, z->compute));
    DT_TRY(z->dev->ops->stream_sync(z->dev, z->compute));
    return zero_fetch_write(z, b);
}
