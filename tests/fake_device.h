/* fake_device.h - two devices for tests of comm: one in host memory, and one whose memory the host cannot touch.
 *
 * The far device hands out addresses that no processor maps, so touching one ends the test, and its copies happen only
 * when the stream is synced, so a missing sync shows as wrong numbers. Serves one stream. */
#ifndef DTRAIN_FAKE_DEVICE_H
#define DTRAIN_FAKE_DEVICE_H

#include "dtrain/device.h"
#include <stdlib.h>
#include <string.h>

#define FAR_OFFSET ((uintptr_t)1 << 60)
enum { FAR_QUEUE = 1024 };

typedef struct far_copy {
    void *dst;
    const void *src;
    size_t nbytes;
} far_copy;
typedef struct far_queue {
    far_copy copies[FAR_QUEUE];
    int n;
    int fail_at; /* the copy that fails from now, 0: none */
} far_queue;

static inline void *far_to_host(const void *p) { return (void *)((uintptr_t)p & ~FAR_OFFSET); }

static inline dt_err fake_alloc(dt_device *dev, dt_place place, size_t nbytes, void **ptr)
{
    char *p = NULL;
    if (posix_memalign((void **)&p, 64, nbytes ? nbytes : 1) != 0)
        return dt_fail(DT_ERR_MEMORY, "fake device: %zu bytes", nbytes);
    memset(p, 0, nbytes);
    *ptr = !dev->ops->host_accessible && place == DT_ON_DEVICE ? (void *)((uintptr_t)p | FAR_OFFSET) : p;
    return DT_OK;
}

static inline void fake_free(dt_device *dev, dt_place place, void *ptr, size_t nbytes)
{
    (void)dev, (void)place, (void)nbytes;
    free(far_to_host(ptr));
}

static inline dt_err near_sync(dt_device *dev, dt_stream *stream)
{
    (void)dev, (void)stream;
    return DT_OK;
}

static inline dt_err near_copy(dt_device *dev, void *dst, const void *src, size_t nbytes, dt_stream *stream)
{
    (void)dev, (void)stream;
    memmove(dst, src, nbytes);
    return DT_OK;
}

static inline dt_err fake_zero(dt_device *dev, void *dst, size_t nbytes, dt_stream *stream)
{
    (void)dev, (void)stream;
    memset(far_to_host(dst), 0, nbytes);
    return DT_OK;
}

static inline dt_err far_sync(dt_device *dev, dt_stream *stream)
{
    (void)stream;
    far_queue *q = dev->impl;
    for (int i = 0; i < q->n; i++)
        memmove(far_to_host(q->copies[i].dst), far_to_host(q->copies[i].src), q->copies[i].nbytes);
    q->n = 0;
    return DT_OK;
}

static inline dt_err far_copy_later(dt_device *dev, void *dst, const void *src, size_t nbytes, dt_stream *stream)
{
    far_queue *q = dev->impl;
    if (q->fail_at > 0 && --q->fail_at == 0) return dt_fail(DT_ERR_FAULT, "far device: a copy failed");
    if (q->n == FAR_QUEUE) far_sync(dev, stream);
    q->copies[q->n++] = (far_copy){dst, src, nbytes};
    return DT_OK;
}

static const dt_device_ops near_device_ops = {.name = "near",
                                              .alloc = fake_alloc,
                                              .free = fake_free,
                                              .host_accessible = true,
                                              .stream_sync = near_sync,
                                              .copy = near_copy,
                                              .zero = fake_zero};
static const dt_device_ops far_device_ops = {.name = "far",
                                             .alloc = fake_alloc,
                                             .free = fake_free,
                                             .host_accessible = false,
                                             .stream_sync = far_sync,
                                             .copy = far_copy_later,
                                             .zero = fake_zero};

#endif
