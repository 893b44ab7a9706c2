/* protobuf.c - https://protobuf.dev/programming-guides/encoding */
#include "protobuf.h"

#include <string.h>

enum { WIRE_VARINT = 0, WIRE_64BIT = 1, WIRE_BYTES = 2, WIRE_32BIT = 5 };

uint32_t dt_crc32c(const void *data, size_t nbytes)
{
    /* The remainders of the 16 half bytes for the reflected polynomial 0x82f63b78. For records of a few hundred bytes a
     * larger table is not faster. */
    static const uint32_t nibble[16] = {0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
                                        0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
                                        0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};
    const uint8_t *p = data;
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < nbytes; i++) {
        crc ^= p[i];
        crc = (crc >> 4) ^ nibble[crc & 15];
        crc = (crc >> 4) ^ nibble[crc & 15];
    }
    return ~crc;
}

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
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(r, field, WIRE_64BIT);
    dt_pb_fixed(r, bits, sizeof bits);
}

void dt_pb_float(dt_text *r, int field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(r, field, WIRE_32BIT);
    dt_pb_fixed(r, bits, sizeof bits);
}

void dt_pb_message(dt_text *r, int field, dt_text *inner)
{
    dt_pb_bytes(r, field, inner->bytes, inner->n);
    r->failed |= inner->failed;
    inner->n = 0;
}
