/* backend.h - looks up devices by name, for a device that wraps another (queue). */
#ifndef DT_DEVICE_BACKEND_H
#define DT_DEVICE_BACKEND_H

#include "dtrain/device/device.h"

/** The table of a device, or NULL with the reason in why. *stale: see dt_object_symbol. Ignores DTRAIN_DEVICE. */
const dt_device_ops *dt_device_backend(const char *name, bool *stale, char *why, size_t why_size);

/** As dt_device_open_to_plan, but ignores DTRAIN_DEVICE. */
dt_err dt_device_plan(dt_device *dev, const char *name, int n_threads, dt_ledger *ledger);

#endif
