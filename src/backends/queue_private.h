/* queue_private.h - streams and memory (queue_streams.c) for the operations of the queue device (queue.c). */
#ifndef DT_DEVICE_QUEUE_PRIVATE_H
#define DT_DEVICE_QUEUE_PRIVATE_H

#include "queue.h"

enum { QUEUE_ARGS_MAX = 320 };

/** Queue run(the device below, a copy of args); addresses in args are what that sees. DT_ERR_ARG, naming the operation,
 *  when one of its arguments was host memory. */
dt_err queue_push(dt_device *dev, dt_stream *stream, const char *name,
                  dt_err (*run)(dt_device *below, const void *args), const void *args, size_t nbytes);
/** What the device below sees of an argument that must be device memory, or NULL; the next queue_push refuses
 *  others. */
void *queue_arg(dt_device *dev, const void *p);
/** The device that does the work. */
const dt_device *queue_below(const dt_device *dev);

/* entries of the table */
dt_err queue_open(dt_device *dev, int local_rank, int n_threads);
dt_err queue_plan(dt_device *dev, int n_threads);
void queue_close(dt_device *dev);
void queue_make_reproducible(dt_device *dev);
void queue_kernels(const dt_device *dev, char *out, size_t out_size);
void queue_describe(const dt_device *dev, char *out, size_t out_size);
const char *queue_chip_name(const dt_device *dev);
void queue_versions(const dt_device *dev, char *out, size_t out_size);
bool queue_distrust(dt_device *dev, const dt_matmul *mm);
uint64_t queue_identity(const dt_device *dev);
size_t queue_memory_free(const dt_device *dev);
size_t queue_overhead(const dt_device *dev);
dt_err queue_alloc(dt_device *dev, dt_place place, size_t nbytes, void **ptr);
void queue_free(dt_device *dev, dt_place place, void *ptr, size_t nbytes);
dt_err queue_stream_create(dt_device *dev, dt_stream **stream);
void queue_stream_destroy(dt_device *dev, dt_stream *stream);
dt_err queue_stream_sync(dt_device *dev, dt_stream *stream);
dt_err queue_event_create(dt_device *dev, dt_event **event);
void queue_event_destroy(dt_device *dev, dt_event *event);
dt_err queue_event_record(dt_device *dev, dt_event *event, dt_stream *stream);
dt_err queue_event_wait(dt_device *dev, dt_event *event, dt_stream *stream);
dt_err queue_event_sync(dt_device *dev, dt_event *event);
dt_err queue_event_query(dt_device *dev, dt_event *event, bool *done);
dt_err queue_event_elapsed_ms(dt_device *dev, dt_event *from, dt_event *to, float *ms);
dt_err queue_event_time(dt_device *dev, dt_event *event, double *at_s);
dt_err queue_graph_begin(dt_device *dev, dt_stream *stream);
dt_err queue_graph_end(dt_device *dev, dt_stream *stream, dt_graph **graph);
dt_err queue_graph_launch(dt_device *dev, dt_graph *graph, dt_stream *stream);
void queue_graph_destroy(dt_device *dev, dt_graph *graph);
dt_err queue_copy(dt_device *dev, void *dst, const void *src, size_t nbytes, dt_stream *s);

#endif
