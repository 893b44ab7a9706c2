/* queue.h - how tests control the queue device (queue.c), and its counts. Other code uses it as any device. */
#ifndef DT_DEVICE_QUEUE_H
#define DT_DEVICE_QUEUE_H

#include "dtrain/device/device.h"

extern const dt_device_ops dt_device_queue_ops;

/** When queued operations run, as far as events allow. */
typedef enum dt_queue_order {
    DT_QUEUE_ANY,          /* a seed selects: immediately, later, or only when a caller waits */
    DT_QUEUE_AT_ONCE,      /* in the order of the calls: the reference */
    DT_QUEUE_LATE,         /* only when a caller waits */
    DT_QUEUE_LATE_DEFAULT, /* the default stream late, the others immediately */
    DT_QUEUE_LATE_OTHERS,  /* the default stream immediately, the others late */
    DT_QUEUE_N_ORDERS
} dt_queue_order;

/** Open a queue device, whatever DTRAIN_DEVICE is; closed with dt_device_close. */
dt_err dt_queue_open(dt_device *dev, dt_queue_order order, uint64_t seed, dt_ledger *ledger);

/** Queue a function of the test as an operation. It receives a copy of the arguments. */
dt_err dt_queue_call(dt_device *dev, dt_stream *stream, dt_err (*run)(dt_device *below, const void *args),
                     const void *args, size_t nbytes);
/** The host's address of device memory: for such a function, or when nothing is queued. Other addresses are
 *  unchanged. */
void *dt_queue_reach(const void *p);

/** Make the nth copy that is queued after this call fail when it runs, with DT_ERR_FAULT. 0: none. */
void dt_queue_fail_copy(dt_device *dev, int nth);

/** Calls since the device was opened that cost time on a GPU. The counts depend only on the calls, not on the progress
 *  of streams. */
typedef struct dt_queue_counts {
    /* the host waited for the last operation of a stream (stream_sync; event_sync with none queued after the event):
     * the device is idle until the host has queued more */
    int64_t host_waits;
    int64_t event_waits;     /* event_sync with operations queued after the event: they continue meanwhile */
    int64_t pageable_copies; /* a side was host memory that is not pinned: synchronous on a GPU */
    int64_t launches;        /* operations and copies that were queued singly, and graphs */
    int64_t graphs;          /* recorded graphs */
} dt_queue_counts;
dt_queue_counts dt_queue_counts_of(const dt_device *dev);

#endif
