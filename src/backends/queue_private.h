/* queue_private.h - streams and memory (queue_streams.c) for the operations of the queue device (queue.c). */
#ifndef DT_DEVICE_QUEUE_PRIVATE_H
#define DT_DEVICE_QUEUE_PRIVATE_H

#include "queue.h"

enum { QUEUE_ARGS_MAX = 320 };

/** Queue run(the device below, a copy of args). Addresses in args are those of the device below. DT_ERR_ARG, naming the
 *  operation, if one of its arguments was host memory. */
dt_err queue_push(dt_device *dev, dt_stream *stream, const char *name,
                  dt_err (*run)(dt_device *below, const void *args), const void *args, size_t nbytes);
/** The device below's address of an argument that must be device memory, or NULL. If it is host memory, the next
 *  queue_push refuses the operation. */
void *queue_arg(dt_device *dev, const void *p);
/** The device below, which computes the operations. */
const dt_device *queue_below(const dt_device *dev);

/* entries of the table: the operations */
#define DT_OP(op, ...) dt_err queue_##op DT_OP_PARAMS(__VA_ARGS__);
#define DT_SIZE(type, name, ...) type queue_##name DT_SIZE_PARAMS(__VA_ARGS__);
#include "dtrain/device/op_list.h"

#endif
