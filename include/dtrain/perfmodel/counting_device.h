/* counting_device.h - a device that computes nothing: it tells of every launch that a CUDA device would be given, how
 * much it computes and moves, and keeps time.
 *
 * What works on a device runs on it as it is (zero, optimizers, models), so what is counted is what a step does.
 * Device memory is addresses alone, and costs nothing: a model of any size is counted on any machine.
 *
 * Time    A stream has a clock. A launch begins when those before it on its stream are done, and no sooner than the
 *         host asked for it; events and waits order clocks as they order work. So what runs beside each other is as
 *         long as the longest, and what waits, waits. Nothing slows down what runs beside it, and to queue is free. */
#ifndef DTRAIN_COUNT_H
#define DTRAIN_COUNT_H

#include "dtrain/device/device.h"

/** One kernel, copy or exchange. Bytes are those that must be moved once: each array of the operation. */
typedef struct dt_launch {
    const char *op;   /* its entry in dt_device_ops, or dt_comm_ops */
    double flops;     /* of products, in dt; what else a kernel computes is hidden behind its bytes */
    dt_dtype dt;      /* of what is multiplied */
    double memory;    /* bytes read and written in device memory */
    double host;      /* bytes to or from the host */
    double node, net; /* bytes sent to each other rank of the node, together, and to ranks of other nodes */
} dt_launch;

/** Several clocks run at once: the same launches at different rates. */
enum { DT_COUNT_CLOCKS = 2 };
typedef struct dt_count_sink {
    /** Take note of a launch, and say how long it takes by each clock, in seconds. */
    void (*take)(void *self, const dt_launch *launch, double seconds[DT_COUNT_CLOCKS]);
    void *self;
} dt_count_sink;

/** sink: borrowed for dev's life. NULL: the device is asked for sizes, which are a GPU's, and for nothing else. */
dt_err dt_count_open(dt_device *dev, const dt_count_sink *sink, dt_ledger *ledger);
/** When all that is queued by now is done, on every stream. */
void dt_count_now(const dt_device *dev, double seconds[DT_COUNT_CLOCKS]);
/** For a transport: queue a launch that is not an operation of the table. */
void dt_count_queue(dt_device *dev, dt_stream *stream, const dt_launch *launch);

extern const dt_device_ops dt_device_count_ops;

#endif
