/* backend.h - devices by name, for a device that works through another. */
#ifndef DT_DEVICE_BACKEND_H
#define DT_DEVICE_BACKEND_H

#include "dtrain/device.h"

/** The table of a device, or NULL and why not, *stale as dt_object_symbol has it; DTRAIN_DEVICE changes nothing
 *  here. */
const dt_device_ops *dt_device_backend(const char *name, bool *stale, char *why, size_t why_size);

#endif
