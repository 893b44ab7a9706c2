/* backend.h - devices by name, for a device that works through another. */
#ifndef DT_DEVICE_BACKEND_H
#define DT_DEVICE_BACKEND_H

#include "dtrain/device/device.h"

/** The table of a device, or NULL and why not, *stale as dt_object_symbol has it; DTRAIN_DEVICE changes nothing
 *  here. */
const dt_device_ops *dt_device_backend(const char *name, bool *stale, char *why, size_t why_size);

/** dt_device_open_to_plan, likewise. */
dt_err dt_device_plan(dt_device *dev, const char *name, int n_threads, dt_ledger *ledger);

#endif
