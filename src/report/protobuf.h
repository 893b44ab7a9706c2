/* protobuf.h - the part of protocol buffers' wire format that is needed here. A message is a record; nested messages
 * are assembled first. */
#ifndef DTRAIN_REPORT_PROTOBUF_H
#define DTRAIN_REPORT_PROTOBUF_H

#include "record.h"

/** CRC-32C (Castagnoli), which TFRecord then masks. */
uint32_t dt_crc32c(const void *data, size_t nbytes);

void dt_pb_fixed(dt_text *r, uint64_t value, int nbytes); /* little-endian, without a field number */
void dt_pb_varint(dt_text *r, int field, uint64_t value);
void dt_pb_bytes(dt_text *r, int field, const void *data, size_t nbytes);
void dt_pb_text(dt_text *r, int field, const char *text);
void dt_pb_double(dt_text *r, int field, double value);
void dt_pb_float(dt_text *r, int field, float value);
/** inner as field of r; inner is emptied for the next. */
void dt_pb_message(dt_text *r, int field, dt_text *inner);

#endif
