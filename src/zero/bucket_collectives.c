/* bucket_collectives.c - reduce-scatter and all-gather of a part, in buckets, and the ordering of the two streams.
 *
 * A bucket bounds what one collective moves. This keeps a transport's staging small, and a small collective does not
 * wait long for a large one. A part that fits in the bucket is sent directly from its buffer.
 *
 * A larger part is split by columns a .. a+count-1 of each rank's range. These columns are strided and collectives need
 * them contiguous, so they are packed into the bucket. This costs one more copy, and only if a limit is set. Gradients
 * that are sent in another type are also converted in the bucket. */
#include "zero_impl.h"

dt_err zero_comm_after(dt_zero *z, dt_stream *stream)
{
    if (z->comm_stream == stream) return DT_OK;
    DT_TRY(z->dev->ops->event_record(z->dev, z->mark, stream));
    return z->dev->ops->event_wait(z->dev, z->mark, z->comm_stream);
}

dt_err zero_comm_after_compute(dt_zero *z) { return zero_comm_after(z, z->compute); }

dt_err zero_compute_after_comm(dt_zero *z)
{
    if (z->comm_stream == z->compute) return DT_OK;
    DT_TRY(z->dev->ops->event_record(z->dev, z->mark, z->comm_stream));
    return zero_compute_wait(z, z->mark, "", zero_last_collective(z));
}

dt_err zero_compute_wait(dt_zero *z, dt_event *event, const char *unit, int64_t number)
{
    dt_stream_begin(z->dev, z->compute, "wait", unit, number);
    const dt_err err = z->dev->ops->event_wait(z->dev, event, z->compute);
    dt_stream_end(z->dev, z->compute);
    return err;
}

dt_err zero_copy(dt_zero *z, const char *way, int u, void *dst, const void *src, size_t nbytes, dt_stream *stream)
{
    dt_stream_begin(z->dev, stream, way, z->units[u].name, 0);
    const dt_err err = z->dev->ops->copy(z->dev, dst, src, nbytes, stream);
    dt_stream_end(z->dev, stream);
    return err;
}

/** Pack columns of gradients into the bucket, converted to the type that is sent. */
static dt_err pack_columns(dt_zero *z, const void *whole, dt_dtype dt, dt_dtype sent, int64_t charge_len, int64_t a,
                           int64_t count)
{
    for (int k = 0; k < z->sum->size; k++) {
        const char *from = (const char *)whole + (size_t)(k * charge_len + a) * dt_dtype_size(dt);
        void *to = zero_at(&z->bucket, k * count, sent);
        DT_TRY(dt == sent ? z->dev->ops->copy(z->dev, to, from, (size_t)count * dt_dtype_size(dt), z->comm_stream)
                          : z->dev->ops->convert(z->dev, from, dt, to, sent, count, z->comm_stream));
    }
    return DT_OK;
}

dt_err zero_reduce(dt_zero *z, const dt_shards *shards, const void *send, dt_dtype send_dt, dt_dtype sent, void *recv,
                   dt_dtype recv_dt, bool accumulate, dt_err err)
{
    const int64_t charge_len = shards->charge_len, most = z->lay.reduce_per_rank;
    const bool ordered = z->opt.reproducible;
    if ((charge_len <= most && send_dt == sent) || z->sum->size == 1)
        return dt_first_err(err, dt_comm_reduce_scatter(z->sum, send, send_dt, recv, recv_dt, charge_len, accumulate,
                                                        ordered, z->comm_stream));

    for (int64_t a = 0; a < charge_len && err != DT_ERR_COMM; a += most) {
        const int64_t count = charge_len - a < most ? charge_len - a : most;
        char *to = (char *)recv + (size_t)a * dt_dtype_size(recv_dt);
        err = dt_first_err(err, pack_columns(z, send, send_dt, sent, charge_len, a, count));
        err = dt_first_err(err, dt_comm_reduce_scatter(z->sum, z->bucket.ptr, sent, to, recv_dt, count, accumulate,
                                                       ordered, z->comm_stream));
    }
    return err;
}

dt_err zero_replicate(dt_zero *z, const dt_shards *shards, void *shard, dt_dtype dt, dt_err err)
{
    const int64_t charge_len = shards->charge_len, most = z->lay.reduce_per_rank;
    const size_t elem_size = dt_dtype_size(dt);
    for (int64_t a = 0; a < charge_len && z->lay.n_groups > 1 && err != DT_ERR_COMM; a += most) {
        const int64_t count = charge_len - a < most ? charge_len - a : most;
        err = dt_first_err(err, dt_comm_replicate(z->replicate, (char *)shard + (size_t)a * elem_size,
                                                  (size_t)charge_len * elem_size, (size_t)count * elem_size,
                                                  z->comm_stream));
    }
    return err;
}

/** Unpack columns from the bucket. */
static dt_err unpack_columns(dt_zero *z, void *whole, size_t elem_size, int64_t shard_len, int64_t a, int64_t count)
{
    for (int r = 0; r < z->shard->size; r++)
        DT_TRY(z->dev->ops->copy(z->dev, (char *)whole + (size_t)(r * shard_len + a) * elem_size,
                                 (const char *)z->bucket.ptr + (size_t)(r * count) * elem_size,
                                 (size_t)count * elem_size, z->comm_stream));
    return DT_OK;
}

dt_err zero_gather(dt_zero *z, const dt_shards *shards, const void *send, void *whole, dt_dtype dt, dt_err err)
{
    const int64_t shard_len = shards->shard_len, most = z->lay.gather_per_rank;
    const size_t elem_size = dt_dtype_size(dt);
    if (shard_len <= most || z->shard->size == 1)
        return dt_first_err(err,
                            dt_comm_all_gather(z->shard, send, whole, (size_t)shard_len * elem_size, z->comm_stream));

    for (int64_t a = 0; a < shard_len && err != DT_ERR_COMM; a += most) {
        const int64_t count = shard_len - a < most ? shard_len - a : most;
        const char *from = (const char *)send + (size_t)a * elem_size;
        err = dt_first_err(
            err, dt_comm_all_gather(z->shard, from, z->bucket.ptr, (size_t)count * elem_size, z->comm_stream));
        if (err != DT_ERR_COMM) err = dt_first_err(err, unpack_columns(z, whole, elem_size, shard_len, a, count));
    }
    return err;
}
