/* events.c - the four messages of TensorBoard that we need are encoded by hand; a protobuf library would be the larger part of the program.
 *
 * Frame (TFRecord), little-endian:  uint64 length | uint32 masked CRC of the length | data | uint32 masked CRC of the data.
 * Data (tensorflow/core/util/event.proto, framework/summary.proto), number in front of a field:
 *     Event       1 double wall_time   2 int64 step   3 string file_version   5 Summary summary   7 SessionLog session_log
 *     Summary     1 repeated Value value            Value  1 string tag   2 float simple_value
 *     SessionLog  1 enum status (1: START) */
#include "events.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FILE_PREFIX "events.out.tfevents."

enum { WIRE_VARINT = 0, WIRE_64BIT = 1, WIRE_BYTES = 2, WIRE_32BIT = 5 };
enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_FILE_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION_LOG = 7 };

uint32_t dt_crc32c(const void *data, size_t nbytes)
{
    /* The remainders of the 16 half bytes for the reflected polynomial 0x82f63b78. Records are a few hundred bytes: a larger table gains nothing. */
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

static void put_fixed(dt_record *r, uint64_t value, int nbytes)
{
    uint8_t b[8];
    for (int i = 0; i < nbytes; i++) b[i] = (uint8_t)(value >> (8 * i));
    dt_record_bytes(r, b, (size_t)nbytes);
}

static void put_varint(dt_record *r, uint64_t value)
{
    uint8_t b[10];
    size_t n = 0;
    do {
        b[n++] = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        value >>= 7;
    } while (value > 0);
    dt_record_bytes(r, b, n);
}

static void put_key(dt_record *r, int field, int wire) { put_varint(r, (uint64_t)field << 3 | (uint64_t)wire); }

static void put_bytes(dt_record *r, int field, const void *data, size_t nbytes)
{
    put_key(r, field, WIRE_BYTES);
    put_varint(r, nbytes);
    dt_record_bytes(r, data, nbytes);
}

static size_t varint_len(uint64_t value)
{
    size_t n = 1;
    while (value >>= 7) n++;
    return n;
}

static void begin_event(dt_events *e, int64_t step)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    union {
        double d;
        uint64_t u;
    } wall = {.d = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec};
    e->event.nbytes = 0;
    put_key(&e->event, EVENT_WALL_TIME, WIRE_64BIT);
    put_fixed(&e->event, wall.u, 8);
    put_key(&e->event, EVENT_STEP, WIRE_VARINT);
    put_varint(&e->event, (uint64_t)step);
}

static uint32_t masked_crc(const void *data, size_t nbytes)
{
    const uint32_t crc = dt_crc32c(data, nbytes);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static dt_err write_event(dt_events *e)
{
    dt_record *f = &e->frame;
    f->nbytes = 0;
    put_fixed(f, e->event.nbytes, 8);
    put_fixed(f, masked_crc(f->data, f->nbytes), 4);
    dt_record_bytes(f, e->event.data, e->event.nbytes);
    put_fixed(f, masked_crc(e->event.data, e->event.nbytes), 4);
    f->out_of_memory |= e->event.out_of_memory || e->summary.out_of_memory;
    return dt_record_file_write(&e->file, f);
}

/* TensorBoard reads the files of a directory in the order of their names, which begin with the time in seconds. Go behind what is there, also where
 * this host's clock is behind that of the host before, or the last start was in this very second. */
static long long file_time(const char *dir)
{
    long long t = (long long)time(NULL);
    DIR *d = opendir(dir);
    if (!d) return t;
    for (struct dirent *ent; (ent = readdir(d));) {
        if (strncmp(ent->d_name, FILE_PREFIX, strlen(FILE_PREFIX)) != 0) continue;
        const long long other = strtoll(ent->d_name + strlen(FILE_PREFIX), NULL, 10);
        if (other >= t && other < 9999999999LL) t = other + 1;
    }
    closedir(d);
    return t;
}

dt_err dt_events_open(dt_events *e, const char *dir, int64_t first_step)
{
    *e = (dt_events){.file.fd = -1};
    char host[256] = "", path[PATH_MAX];
    if (gethostname(host, sizeof host - 1) != 0 || !host[0]) snprintf(host, sizeof host, "localhost");
    const int n = snprintf(path, sizeof path, "%s/" FILE_PREFIX "%010lld.%s.%ld", dir, file_time(dir), host, (long)getpid());
    DT_CHECK(n < (int)sizeof path, DT_ERR_WRITE, "%s: the name of its event file is too long", dir);
    DT_TRY(dt_record_file_open(&e->file, path, false));

    static const char version[] = "brain.Event:2";
    begin_event(e, 0);
    put_bytes(&e->event, EVENT_FILE_VERSION, version, sizeof version - 1);
    DT_TRY(write_event(e));

    static const uint8_t session_start[] = {1 << 3 | WIRE_VARINT, 1};
    begin_event(e, first_step);
    put_bytes(&e->event, EVENT_SESSION_LOG, session_start, sizeof session_start);
    return write_event(e);
}

void dt_events_begin(dt_events *e, int64_t step)
{
    e->summary.nbytes = 0;
    e->step = step;
}

void dt_events_add(dt_events *e, const char *tag, double value)
{
    const size_t tag_len = strlen(tag);
    union {
        float f;
        uint32_t u;
    } x = {.f = (float)value};
    put_key(&e->summary, 1, WIRE_BYTES);
    put_varint(&e->summary, 1 + varint_len(tag_len) + tag_len + 1 + 4);
    put_bytes(&e->summary, 1, tag, tag_len);
    put_key(&e->summary, 2, WIRE_32BIT);
    put_fixed(&e->summary, x.u, 4);
}

dt_err dt_events_end(dt_events *e)
{
    begin_event(e, e->step);
    put_bytes(&e->event, EVENT_SUMMARY, e->summary.data, e->summary.nbytes);
    return write_event(e);
}

dt_err dt_events_sync(dt_events *e) { return dt_record_file_sync(&e->file); }

void dt_events_close(dt_events *e)
{
    dt_record_file_close(&e->file);
    dt_record_free(&e->summary);
    dt_record_free(&e->event);
    dt_record_free(&e->frame);
}
