/* protobuf.c - https://protobuf.dev/programming-guides/encoding */
#include "protobuf.h"

#include <string.h>

enum { WIRE_VARINT = 0, WIRE_64BIT = 1, WIRE_BYTES = 2, WIRE_32BIT = 5 };

static void put_varint(dt_text *r, uint64_t value)
{
    uint8_t b[10];
    size_t n = 0;
    do {
        b[n++] = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        value >>= 7;
    } while (value > 0);
    dt_text_append(r, b, n);
}

static void put_key(dt_text *r, int field, int wire) { put_varint(r, (uint64_t)field << 3 | (uint64_t)wire); }

void dt_pb_fixed(dt_text *r, uint64_t value, int nbytes)
{
    uint8_t b[8];
    for (int i = 0; i < nbytes; i++) b[i] = (uint8_t)(value >> (8 * i));
    dt_text_append(r, b, (size_t)nbytes);
}

void dt_pb_varint(dt_text *r, int field, uint64_t value)
{
    put_key(r, field, WIRE_VARINT);
    put_varint(r, value);
}

void dt_pb_bytes(dt_text *r, int field, const void *data, size_t nbytes)
{
    put_key(r, field, WIRE_BYTES);
    put_varint(r, nbytes);
    dt_text_append(r, data, nbytes);
}

void dt_pb_text(dt_text *r, int field, const char *text) { dt_pb_bytes(r, field, text, strlen(text)); }

void dt_pb_double(dt_text *r, int field, double value)
{
    const union {
        double d;
        uint64_t u;
    } x = {.d = value};
    put_key(r, field, WIRE_64BIT);
    dt_pb_fixed(r, x.u, 8);
}

void dt_pb_float(dt_text *r, int field, float value)
{
    const union {
        float f;
        uint32_t u;
    } x = {.f = value};
    put_key(r, field, WIRE_32BIT);
    dt_pb_fixed(r, x.u, 4);
}

void dt_pb_message(dt_text *r, int field, dt_text *inner)
{
    dt_pb_bytes(r, field, inner->bytes, inner->n);
    r->failed |= inner->failed;
    inner->n = 0;
}
