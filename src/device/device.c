/* device.c - buffers with their accounting, streams, and permanent failure of a device. */
#include "dtrain/device/device.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- permanent failure of a device ------------------------------------------------------------------------------- */

/* Process-wide, as CUDA's own error state is: every thread and every call receives its errors. */
static struct {
    atomic_bool begun, published;
    char message[2048];
} failure;

dt_err dt_device_fail(const char *fmt, ...)
{
    char message[sizeof failure.message];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    if (!atomic_exchange(&failure.begun, true)) {
        memcpy(failure.message, message, sizeof message);
        atomic_store(&failure.published, true);
    }
    return dt_fail(DT_ERR_FAULT, "%s", message);
}

const char *dt_device_failure(void) { return atomic_load(&failure.published) ? failure.message : NULL; }

void dt_quantise_row(const float *w, int64_t n, int8_t *q, float *scale)
{
    float c = 0;
    for (int64_t i = 0; i < n; i++) {
        const float size = fabsf(w[i]);
        if (size > c || isnan(size)) c = size;
    }
    const bool usual = c > 0 && c < INFINITY;
    for (int64_t i = 0; i < n; i++) q[i] = usual ? (int8_t)nearbyint(127.0 * (double)w[i] / (double)c) : 0;
    *scale = c / 127;
}

void dt_device_close(dt_device *dev)
{
    if (dev->ops) dev->ops->close(dev);
    *dev = (dt_device){0};
}

size_t dt_device_overhead(const dt_device *dev) { return dev->ops->overhead(dev); }

/* ---- streams ----------------------------------------------------------------------------------------------------- */

dt_err dt_stream_open(dt_device *dev, dt_stream **stream, const char *name)
{
    const dt_stream_listener *l = dev->listener;
    DT_TRY(dev->ops->stream_create(dev, stream));
    dt_ledger_add(dev->ledger, DT_MEM_OTHER, DT_ON_DEVICE, dev->ops->stream_nbytes);
    const dt_err err = l ? l->open(l->self, *stream, name) : DT_OK;
    if (err == DT_OK) return DT_OK;
    dt_stream_close(dev, *stream);
    *stream = NULL;
    return err;
}

void dt_stream_close(dt_device *dev, dt_stream *stream)
{
    if (!stream) return;
    if (dev->listener) dev->listener->close(dev->listener->self, stream);
    dt_ledger_sub(dev->ledger, DT_MEM_OTHER, DT_ON_DEVICE, dev->ops->stream_nbytes);
    dev->ops->stream_destroy(dev, stream);
}

void dt_stream_plan(const dt_device *dev, int n, dt_memory *memory)
{
    memory->at[DT_MEM_OTHER][DT_ON_DEVICE] += (size_t)n * dev->ops->stream_nbytes;
    if (dev->listener) memory->at[DT_MEM_OTHER][DT_ON_HOST] += (size_t)n * dev->listener->stream_nbytes;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static size_t memory_free(const dt_device *dev, dt_memspace space)
{
    const bool is_device = space == DT_ON_DEVICE, is_host = !is_device || !dev->ops->own_memory;
    const size_t left = is_device || !dev->ops->own_memory ? dev->ops->memory_free(dev) : dt_host_memory_free(),
                 limit = is_host ? dt_address_space_free() : SIZE_MAX;
    return left < limit ? left : limit;
}

dt_err dt_buf_alloc(dt_buf *b, dt_device *dev, dt_memspace space, size_t nbytes, dt_memcat category)
{
    *b = (dt_buf){0};
    DT_EXPECT(dev && dev->ops && category < DT_N_MEMCAT && space < DT_IN_FILE);
    if (nbytes == 0) {
        *b = (dt_buf){.dev = dev, .category = category, .space = space};
        return DT_OK;
    }
    void *ptr = NULL;
    const dt_err err = dev->ops->alloc(dev, space, nbytes, &ptr);
    if (err == DT_ERR_MEMORY) {
        char asked[24], held[24], left[24];
        return dt_fail(
            err, "not enough %s memory for %s: %s requested, %s in use by this process, %s free%s",
            space == DT_ON_DEVICE ? dev->ops->name : dt_memspace_name(space), dt_memcat_name(category),
            dt_format_bytes((double)nbytes, asked), dt_format_bytes((double)atomic_load(&dev->ledger->total_now), held),
            dt_format_bytes((double)memory_free(dev, space), left),
            dt_address_space_free() < SIZE_MAX ? " (the address space of this process is limited: ulimit -v)" : "");
    }
    if (err != DT_OK) return err;
    dt_ledger_add(dev->ledger, category, space, nbytes);
    *b = (dt_buf){.ptr = ptr, .nbytes = nbytes, .dev = dev, .category = category, .space = space};
    return DT_OK;
}

dt_err dt_buf_alloc_zeroed(dt_buf *b, dt_device *dev, dt_memspace space, size_t nbytes, dt_memcat category)
{
    DT_TRY(dt_buf_alloc(b, dev, space, nbytes, category));
    if (nbytes == 0 || dev->ops->alloc_zeroes) return DT_OK;
    if (space != DT_ON_DEVICE) {
        memset(b->ptr, 0, nbytes);
        return DT_OK;
    }
    dt_err err = dev->ops->zero(dev, b->ptr, nbytes, NULL);
    if (err == DT_OK) err = dev->ops->stream_sync(dev, NULL);
    if (err != DT_OK) dt_buf_free(b);
    return err;
}

void dt_buf_free(dt_buf *b)
{
    if (b->ptr) {
        b->dev->ops->free(b->dev, b->space, b->ptr, b->nbytes);
        dt_ledger_sub(b->dev->ledger, b->category, b->space, b->nbytes);
    }
    *b = (dt_buf){0};
}
