/* bench.h - what benchmarks of a device's operations share: the device with its buffers, and the time of calls by the
 * device's own clock. */
#ifndef DTRAIN_TESTS_BENCH_H
#define DTRAIN_TESTS_BENCH_H

#include "forms.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench {
    dt_device dev;
    const dt_device_ops *ops;
    dt_ledger ledger;
    dt_event *from, *to;
    dt_buf buf[32]; /* until bench_drop */
    int n_buf;
} bench;

typedef dt_err (*bench_call)(bench *b, const void *what);

#define TRY_OR_END(call)                                                                                               \
    do {                                                                                                               \
        if ((call) != DT_OK) {                                                                                         \
            fprintf(stderr, "%s: %s\n", program_invocation_short_name, dt_error_message());                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static inline void bench_open(bench *b, const char *device)
{
    *b = (bench){0};
    TRY_OR_END(dt_device_open(&b->dev, device, 0, 0, &b->ledger));
    b->ops = b->dev.ops;
    TRY_OR_END(b->ops->event_create(&b->dev, &b->from));
    TRY_OR_END(b->ops->event_create(&b->dev, &b->to));
}

static inline void bench_describe(const bench *b)
{
    char text[300];
    b->ops->describe(&b->dev, text, sizeof text);
    printf("%s\n", text);
}

static inline void bench_drop(bench *b)
{
    while (b->n_buf > 0) dt_buf_free(&b->buf[--b->n_buf]);
}

static inline void bench_close(bench *b)
{
    bench_drop(b);
    b->ops->event_destroy(&b->dev, b->from);
    b->ops->event_destroy(&b->dev, b->to);
    dt_device_close(&b->dev);
}

static inline char *bench_room(bench *b, size_t nbytes)
{
    dt_buf *buf = &b->buf[b->n_buf];
    TRY_OR_END(dt_buf_alloc_zeroed(buf, &b->dev, DT_ON_DEVICE, nbytes, DT_MEM_OTHER));
    b->n_buf++;
    return buf->ptr;
}

/* A copy of `period` bytes of the host, repeated until nbytes are full. */
static inline void *bench_repeated(bench *b, const void *host, size_t nbytes, size_t period)
{
    char *at = bench_room(b, nbytes);
    for (size_t i = 0; i < nbytes; i += period)
        TRY_OR_END(b->ops->copy(&b->dev, at + i, host, nbytes - i < period ? nbytes - i : period, NULL));
    TRY_OR_END(b->ops->stream_sync(&b->dev, NULL));
    return at;
}

static inline void *bench_given(bench *b, const void *host, size_t nbytes)
{
    return bench_repeated(b, host, nbytes, nbytes);
}

/* Random values between -scale and scale: a GPU's clock falls with the number of bits that change, so zeros would be
 * too fast. Bytes where dt is not a floating-point type. */
static inline void *bench_values(bench *b, int64_t n, dt_dtype dt, float scale)
{
    const int64_t period = n < 1 << 20 ? n : 1 << 20;
    const size_t e = dt_dtype_size(dt);
    char *host = malloc((size_t)period * e);
    if (!host) exit(1);
    for (int64_t i = 0; i < period; i++) {
        const uint64_t bits = dt_mix64((uint64_t)i);
        if (dt_is_float(dt))
            dt_set_element(host, dt, i, scale * (float)(int32_t)(uint32_t)bits * 0x1p-31f);
        else
            host[i] = (char)bits;
    }
    void *values = bench_repeated(b, host, (size_t)n * e, (size_t)period * e);
    free(host);
    return values;
}

/* Microseconds of each of n calls in a row. */
static inline dt_err bench_time(bench *b, bench_call run, const void *what, int n, double *us)
{
    float ms;
    DT_TRY(b->ops->event_record(&b->dev, b->from, NULL));
    for (int i = 0; i < n; i++) DT_TRY(run(b, what));
    DT_TRY(b->ops->event_record(&b->dev, b->to, NULL));
    DT_TRY(b->ops->event_sync(&b->dev, b->to));
    DT_TRY(b->ops->event_elapsed_ms(&b->dev, b->from, b->to, &ms));
    *us = 1000.0 * (double)ms / n;
    return DT_OK;
}

/* The minimum over `turns` rows of as many calls as take some milliseconds. */
static inline dt_err bench_best(bench *b, bench_call run, const void *what, int turns, double *best)
{
    double us = 0;
    *best = INFINITY;
    DT_TRY(bench_time(b, run, what, 1, &us)); /* the first may choose and compile */
    DT_TRY(bench_time(b, run, what, 1, &us));
    const int n = us > 5000 ? 1 : (int)(5000 / (us + 1)) + 1;
    for (int r = 0; r < turns; r++) {
        DT_TRY(bench_time(b, run, what, n, &us));
        *best = fmin(*best, us);
    }
    return DT_OK;
}

#endif
