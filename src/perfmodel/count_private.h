/* count_private.h - clocks and memory (counting_device.c) for the operations of the counting device (count_ops.c). */
#ifndef DT_DEVICE_COUNT_PRIVATE_H
#define DT_DEVICE_COUNT_PRIVATE_H

#include "dtrain/perfmodel/counting_device.h"

bool count_on_device(const void *p); /* an address of device memory? */

/** A launch that only moves bytes in device memory; none if there are none. */
void count_moves(dt_device *dev, dt_stream *s, const char *op, double bytes);

/* entries of the table */
void count_close(dt_device *dev);
void count_kernels(const dt_device *dev, char *out, size_t out_size);
void count_describe(const dt_device *dev, char *out, size_t out_size);
size_t count_memory_free(const dt_device *dev);
size_t count_memory_taken(const dt_device *dev);
dt_err count_alloc(dt_device *dev, dt_place place, size_t nbytes, void **ptr);
void count_free(dt_device *dev, dt_place place, void *ptr, size_t nbytes);
dt_err count_stream_create(dt_device *dev, dt_stream **stream);
void count_stream_destroy(dt_device *dev, dt_stream *stream);
dt_err count_stream_sync(dt_device *dev, dt_stream *stream);
dt_err count_event_create(dt_device *dev, dt_event **event);
void count_event_destroy(dt_device *dev, dt_event *event);
dt_err count_event_record(dt_device *dev, dt_event *event, dt_stream *stream);
dt_err count_event_wait(dt_device *dev, dt_event *event, dt_stream *stream);
dt_err count_event_sync(dt_device *dev, dt_event *event);
dt_err count_event_query(dt_device *dev, dt_event *event, bool *done);
dt_err count_event_elapsed_ms(dt_device *dev, dt_event *from, dt_event *to, float *ms);
dt_err count_event_time(dt_device *dev, dt_event *event, double *at_s);

/* count_matmul.c */
void count_matmul(dt_device *dev, const dt_matmul_args *x, dt_stream *s);
void count_bias_backward(dt_device *dev, const dt_bias_backward_args *x, dt_stream *s);

#endif
