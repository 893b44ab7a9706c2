/* counting_device.h - a device that computes nothing: it reports every launch that a CUDA device would get, with its
 * operations and bytes, and simulates time. Every function is Local.
 *
 * Code that uses a device runs on it unchanged (zero, optimizers, models), so the counts are those of a real step.
 * Device memory is only addresses: a model of any size can be counted on any machine.
 *
 * Time    Each stream has a clock. A launch begins when earlier launches on its stream are complete, and not before the
 *         host queued it. Events and waits order clocks as they order work, so concurrent work takes as long as the
 *         longest, and waiting takes time. Concurrent work does not slow down other work, and queueing is free. */
#ifndef DTRAIN_COUNT_H
#define DTRAIN_COUNT_H

#include "dtrain/device/device.h"
#include "dtrain/perfmodel/links.h"

/** A kernel, copy or exchange. Bytes count each array of the operation once. */
typedef struct dt_launch {
    const char *op;       /* its name in dt_device_ops or dt_comm_ops */
    double flops;         /* of matmuls, in dt; other arithmetic is assumed to overlap with the bytes moved */
    dt_dtype dt;          /* type of the matmuls */
    double memory;        /* bytes read and written in device memory */
    double host;          /* bytes to or from the host */
    double node, net;     /* bytes sent to the other ranks of the node, and to ranks of other nodes */
    dt_exchange exchange; /* how they are sent */
} dt_launch;

/** Number of clocks: the same launches at different rates. */
enum { DT_COUNT_CLOCKS = 2 };
typedef struct dt_count_sink {
    /** Record a launch. seconds: out, its duration by each clock. */
    void (*take)(void *self, const dt_launch *launch, double seconds[DT_COUNT_CLOCKS]);
    void *self;
} dt_count_sink;

/** Open a counting device. sink: borrowed until dt_device_close; NULL: only size queries, with a GPU's sizes. */
dt_err dt_count_open(dt_device *dev, const dt_count_sink *sink, dt_ledger *ledger);
/** Time at which all queued work of all streams is complete. */
void dt_count_now(const dt_device *dev, double seconds[DT_COUNT_CLOCKS]);
/** For a transport: queue a launch that is not an operation of the table. */
void dt_count_queue(dt_device *dev, dt_stream *stream, const dt_launch *launch);

/** Its table. */
extern const dt_device_ops dt_device_count_ops;

#endif
