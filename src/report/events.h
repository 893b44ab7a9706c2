/* events.h - the checksum of TensorBoard's event files. */
#ifndef DTRAIN_REPORT_EVENTS_H
#define DTRAIN_REPORT_EVENTS_H

#include <stddef.h>
#include <stdint.h>

/** CRC-32C (Castagnoli), which TFRecord then masks. */
uint32_t dt_crc32c(const void *data, size_t nbytes);

#endif
