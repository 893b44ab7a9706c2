/* queue.h - how tests control the queue device (queue.c), and its counts. For the rest of the program it is a device
 * like others. */
#ifndef DT_DEVICE_QUEUE_H
#define DT_DEVICE_QUEUE_H

#include "dtrain/device/device.h"

extern const dt_device_ops dt_device_queue_ops;

/** When queued work runs, within what events allow. */
typedef enum dt_queue_order {
    DT_QUEUE_ANY,          /* chosen by a seed: now, later, or only when a caller waits */
    DT_QUEUE_AT_ONCE,      /* in the order of the calls: the reference */
    DT_QUEUE_LATE,         /* only when a caller waits for it */
    DT_QUEUE_LATE_DEFAULT, /* the default stream late, the others immediately */
    DT_QUEUE_LATE_OTHERS,  /* the other way round */
    DT_QUEUE_N_ORDERS
} dt_queue_order;

/** A queue device whatever DTRAIN_DEVICE says. Close by dt_device_close. */
dt_err dt_queue_open(dt_device *dev, dt_queue_order order, uint64_t seed, dt_ledger *ledger);

/** Queue a function of the test like an operation: it gets a copy of the arguments. */
dt_err dt_queue_call(dt_device *dev, dt_stream *stream, dt_err (*run)(dt_device *below, const void *args),
                     const void *args, size_t nbytes);
/** Where the host finds device memory: for such a function, or when nothing is queued. Other addresses stay. */
void *dt_queue_reach(const void *p);

/** Let the nth copy that is queued from now on fail when it runs, with DT_ERR_FAULT. 0: none. */
void dt_queue_fail_copy(dt_device *dev, int nth);

/** Calls to a queue device since it was opened that a GPU would have paid for. The counts follow only from the calls,
 * not from the progress of streams. */
typedef struct dt_queue_counts {
    /* the host waited for the last operation of a stream (stream_sync; event_sync with none queued behind the event):
     * the device stands idle until the host has queued more */
    int64_t host_waits;
    int64_t event_waits;     /* event_sync with operations queued behind the event: the device goes on meanwhile */
    int64_t pageable_copies; /* a side was host memory that is not pinned: synchronous on a GPU */
    int64_t launches;        /* operations and copies that were queued one by one, and graphs */
    int64_t graphs;          /* that were recorded */
} dt_queue_counts;
dt_queue_counts dt_queue_counts_of(const dt_device *dev);

#endif
