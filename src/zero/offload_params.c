/* offload_params.c - parameters that are kept off the device (stage 3). From host memory they are copied directly into
 * the arena. From the file they pass through a staging buffer that is read ahead.
 *
 * A buffer stays associated with its part until it is assigned to another part. A part that is needed again soon is
 * therefore not read again. Data that is still being written is never read from the file: the copy to the device uses
 * the buffer during the write. */
#include "zero_impl.h"

int64_t zero_param_in_file(const dt_zero *z, int u, dt_part part, int64_t x)
{
    const zero_layout *l = &z->lay;
    int64_t nbytes = (int64_t)zero_arrays_nbytes(l, DT_IN_FILE, l->n_arrays);
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

/** Has the device completed its copy? */
static dt_err is_copied(dt_zero *z, const zero_buffer *b, bool *copied)
{
    *copied = true;
    return b->copying ? z->dev->ops->event_query(z->dev, b->copied, copied) : DT_OK;
}

/** Is a copy or a request still using the buffer? */
static dt_err is_busy(dt_zero *z, const zero_buffer *b, bool *busy)
{
    bool copied;
    DT_TRY(is_copied(z, b, &copied));
    *busy = !copied || b->to_write || !dt_swap_done(z->file, &b->request[0]);
    return DT_OK;
}

/** Assign an idle buffer to a part. */
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
    b->to_write = false;
    return dt_swap_write(z->file, zero_param_in_file(z, b->unit, b->part, zero_own(z, b->unit, b->part)), b->at,
                         dt_swap_round_up(shard_nbytes(z, b->unit, b->part)), &b->request[0]);
}

/** Write the parameters that have arrived from the device to the file. Waits for copies that were requested at
 *  serial `late` or earlier. */
static dt_err write_arrived(dt_zero *z, int64_t late)
{
    for (int i = 0; i < z->fetch.n; i++) {
        zero_buffer *b = &z->fetch.buffer[i];
        bool copied;
        if (!b->to_write) continue;
        if (b->used <= late) DT_TRY(z->dev->ops->event_sync(z->dev, b->copied));
        DT_TRY(is_copied(z, b, &copied));
        if (copied) DT_TRY(zero_fetch_write(z, b));
    }
    return DT_OK;
}

/* ---- to the device ----------------------------------------------------------------------------------------------- */

/** Start reading a part that is likely to be needed, unless it is already in a buffer or no buffer is idle. full: every
 *  buffer is busy or was taken since serial `began` for another such part. */
static dt_err read_part(dt_zero *z, int u, dt_part part, int64_t began, bool *full)
{
    zero_buffer *b = find(z, u, part);
    if (z->lay.units[u].part[part].space != DT_IN_FILE || zero_is_empty(&z->lay, u, part)) return DT_OK;
    if (z->state[u].part[part].resident) return DT_OK;
    if (b) return b->used = ++z->n_used, DT_OK; /* becomes the most recently used */
    b = used_longest_ago(z);
    DT_TRY(is_busy(z, b, full));
    *full = *full || b->used > began;
    return *full ? DT_OK : begin_read(z, b, u, part);
}

dt_err zero_fetch_ahead(dt_zero *z)
{
    const int64_t began = z->n_used;
    zero_location at = z->at;
    bool full = z->fetch.n == 0;
    DT_TRY(write_arrived(z, 0));
    for (int k = 0; k <= z->fetch.n && at.last >= 0 && !full; k++) {
        const int next = zero_next_unit(z, &at);
        if (next < 0) return DT_OK;
        for (int p = 0; p < DT_N_PARTS && !full; p++) DT_TRY(read_part(z, next, (dt_part)p, began, &full));
        zero_go_to(z, &at, next);
    }
    return DT_OK;
}

static dt_err copy_up(dt_zero *z, int u, dt_part part, const void *from)
{
    void *own =
        (char *)zero_held_at(z, u, part) + (size_t)zero_own(z, u, part) * dt_dtype_size(z->lay.param_dtype[part]);
    return zero_copy(z, "up", u, own, from, shard_nbytes(z, u, part), z->comm_stream);
}

static dt_err fetch_from_file(dt_zero *z, int u, dt_part part)
{
    zero_buffer *b = find(z, u, part);
    if (!b) DT_TRY(begin_read(z, b = used_longest_ago(z), u, part));
    DT_TRY(dt_fault("zero.read"));
    b->used = ++z->n_used;
    const dt_err err = b->request[0].write ? DT_OK : dt_swap_wait(z->file, &b->request[0]);
    if (err != DT_OK) b->unit = -1; /* the contents are undefined */
    DT_TRY(err);
    DT_TRY(copy_up(z, u, part, b->at));
    b->copying = true;
    return z->dev->ops->event_record(z->dev, b->copied, z->comm_stream);
}

dt_err zero_fetch(dt_zero *z, int u, dt_part part)
{
    if (z->lay.units[u].part[part].space == DT_IN_FILE) return fetch_from_file(z, u, part);
    return copy_up(z, u, part, zero_param_at(z, u, part, zero_own(z, u, part)));
}

/* ---- from the device --------------------------------------------------------------------------------------------- */

dt_err zero_send_away(dt_zero *z, int u)
{
    const int64_t own = zero_own(z, u, DT_TRAINED);
    const size_t nbytes = shard_nbytes(z, u, DT_TRAINED);
    const char *from =
        (const char *)zero_held_at(z, u, DT_TRAINED) + (size_t)own * dt_dtype_size(z->lay.param_dtype[DT_TRAINED]);
    if (z->lay.units[u].part[DT_TRAINED].space != DT_IN_FILE)
        return zero_copy(z, "down", u, zero_param_at(z, u, DT_TRAINED, own), from, nbytes, z->compute);
    zero_buffer *b;
    DT_TRY(zero_fetch_take(z, u, DT_TRAINED, &b));
    DT_TRY(zero_copy(z, "down", u, b->at, from, nbytes, z->compute));
    DT_TRY(z->dev->ops->event_record(z->dev, b->copied, z->compute));
    b->copying = b->to_write = true;
    /* half of the buffers receive copies while the others are written */
    return write_arrived(z, z->n_used - z->fetch.n / 2);
}
