/* lazy_device.h - a device whose streams are really asynchronous: queued work runs as late, or as early, as the events
 * allow.
 *
 * On the CPU device everything is done when a call returns, so a missing event would never show. Here work waits in its
 * stream's queue:
 *   LAZY          nothing runs before somebody waits for it: who forgot to wait reads what is not there yet
 *   LAZY_COMPUTE  the default stream waits, others run at once: who did not make them wait reads, or overwrites, too
 *   early
 *   LAZY_OTHERS   the other way round
 *   AT_ONCE       the order of the calls: the definition of what is right
 * Operations are plain loops. Its memory counts as out of the host's reach, so host access goes through staging. */
#ifndef DTRAIN_LAZY_DEVICE_H
#define DTRAIN_LAZY_DEVICE_H

#include "dtrain/device.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum lazy_mode { AT_ONCE, LAZY, LAZY_COMPUTE, LAZY_OTHERS, N_LAZY_MODES } lazy_mode;
enum { LAZY_ARGS = 128 };

typedef struct lazy_op {
    void (*run)(dt_device *dev, void *args);
    _Alignas(16) char args[LAZY_ARGS];
} lazy_op;

struct dt_stream {
    lazy_op *ops;
    int n, n_max, done;
};

struct dt_event {
    dt_stream *stream; /* NULL: never recorded */
    int upto;
};

typedef struct lazy_device {
    lazy_mode mode;
    dt_stream compute; /* the default stream */
} lazy_device;

static inline dt_stream *lazy_stream(dt_device *dev, dt_stream *s)
{
    return s ? s : &((lazy_device *)dev->impl)->compute;
}

static inline void lazy_run(dt_device *dev, dt_stream *s, int upto)
{
    while (s->done < upto) {
        lazy_op op = s->ops[s->done++]; /* a copy: the queue may grow meanwhile */
        op.run(dev, op.args);
    }
}

static inline dt_err lazy_queue(dt_device *dev, dt_stream *stream, void (*run)(dt_device *, void *), const void *args,
                                size_t size)
{
    const lazy_device *lazy = dev->impl;
    dt_stream *s = lazy_stream(dev, stream);
    if (s->n == s->n_max) {
        s->n_max = s->n_max ? 2 * s->n_max : 1024;
        s->ops = realloc(s->ops, (size_t)s->n_max * sizeof *s->ops);
        if (!s->ops) return DT_ERR_MEMORY;
    }
    lazy_op *op = &s->ops[s->n++];
    op->run = run;
    memcpy(op->args, args, size);
    const bool waits = lazy->mode == LAZY || (lazy->mode == LAZY_COMPUTE) == (s == &lazy->compute);
    if (lazy->mode == AT_ONCE || !waits) lazy_run(dev, s, s->n);
    return DT_OK;
}

/* ---- memory, streams, events ------------------------------------------------------------------------------------- */

static inline dt_err lazy_alloc(dt_device *dev, dt_place place, size_t nbytes, void **ptr)
{
    (void)dev, (void)place;
    *ptr = aligned_alloc(64, (nbytes + 63) / 64 * 64);
    if (!*ptr) return dt_fail(DT_ERR_MEMORY, "lazy device: %zu bytes", nbytes);
    memset(*ptr, 0xff, nbytes); /* NaN */
    return DT_OK;
}

static inline void lazy_free(dt_device *dev, dt_place place, void *ptr, size_t nbytes)
{
    (void)dev, (void)place, (void)nbytes;
    free(ptr);
}

static inline dt_err lazy_stream_create(dt_device *dev, dt_stream **s)
{
    (void)dev;
    *s = calloc(1, sizeof **s);
    return *s ? DT_OK : DT_ERR_MEMORY;
}

static inline void lazy_stream_destroy(dt_device *dev, dt_stream *s)
{
    (void)dev;
    free(s->ops);
    free(s);
}

static inline dt_err lazy_stream_sync(dt_device *dev, dt_stream *stream)
{
    dt_stream *s = lazy_stream(dev, stream);
    lazy_run(dev, s, s->n);
    return DT_OK;
}

static inline dt_err lazy_event_create(dt_device *dev, dt_event **e)
{
    (void)dev;
    *e = calloc(1, sizeof **e);
    return *e ? DT_OK : DT_ERR_MEMORY;
}

static inline void lazy_event_destroy(dt_device *dev, dt_event *e)
{
    (void)dev;
    free(e);
}

static inline dt_err lazy_event_record(dt_device *dev, dt_event *e, dt_stream *stream)
{
    e->stream = lazy_stream(dev, stream);
    e->upto = e->stream->n;
    return DT_OK;
}

static inline void lazy_do_wait(dt_device *dev, void *args)
{
    const dt_event *e = args;
    lazy_run(dev, e->stream, e->upto);
}

static inline dt_err lazy_event_wait(dt_device *dev, dt_event *e, dt_stream *stream)
{
    return e->stream ? lazy_queue(dev, stream, lazy_do_wait, e, sizeof *e) : DT_OK;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static inline float lazy_get(const void *x, dt_dtype t, int64_t i)
{
    return t == DT_F32 ? ((const float *)x)[i] : dt_bf16_to_float(((const uint16_t *)x)[i]);
}

static inline void lazy_put(void *x, dt_dtype t, int64_t i, float value)
{
    if (t == DT_F32)
        ((float *)x)[i] = value;
    else
        ((uint16_t *)x)[i] = dt_bf16_from_float(value);
}

typedef struct lazy_move {
    void *dst;
    const void *src;
    size_t nbytes;
    dt_dtype src_dt, dst_dt;
    int64_t n;
} lazy_move;

static inline void lazy_do_copy(dt_device *dev, void *args)
{
    (void)dev;
    const lazy_move *a = args;
    memmove(a->dst, a->src, a->nbytes);
}
static inline dt_err lazy_copy(dt_device *dev, void *dst, const void *src, size_t nbytes, dt_stream *s)
{
    const lazy_move a = {.dst = dst, .src = src, .nbytes = nbytes};
    return lazy_queue(dev, s, lazy_do_copy, &a, sizeof a);
}

static inline void lazy_do_zero(dt_device *dev, void *args)
{
    (void)dev;
    const lazy_move *a = args;
    memset(a->dst, 0, a->nbytes);
}
static inline dt_err lazy_zero(dt_device *dev, void *dst, size_t nbytes, dt_stream *s)
{
    const lazy_move a = {.dst = dst, .nbytes = nbytes};
    return lazy_queue(dev, s, lazy_do_zero, &a, sizeof a);
}

static inline void lazy_do_convert(dt_device *dev, void *args)
{
    (void)dev;
    const lazy_move *a = args;
    for (int64_t i = 0; i < a->n; i++) lazy_put(a->dst, a->dst_dt, i, lazy_get(a->src, a->src_dt, i));
}
static inline dt_err lazy_convert(dt_device *dev, const void *src, dt_dtype src_dt, void *dst, dt_dtype dst_dt,
                                  int64_t n, dt_stream *s)
{
    const lazy_move a = {.dst = dst, .src = src, .src_dt = src_dt, .dst_dt = dst_dt, .n = n};
    return lazy_queue(dev, s, lazy_do_convert, &a, sizeof a);
}

typedef struct lazy_adamw {
    dt_adamw opt;
    const void *grad;
    dt_dtype gt, param_dt;
    float *master, *m, *v;
    void *param;
    int64_t n;
} lazy_adamw;

static inline void lazy_do_adamw(dt_device *dev, void *args)
{
    (void)dev;
    const lazy_adamw *a = args;
    const dt_adamw *o = &a->opt;
    for (int64_t i = 0; i < a->n; i++) {
        const float g = o->grad_scale * lazy_get(a->grad, a->gt, i);
        a->m[i] = o->beta1 * a->m[i] + (1 - o->beta1) * g;
        a->v[i] = o->beta2 * a->v[i] + (1 - o->beta2) * g * g;
        a->master[i] = a->master[i] * (1 - o->lr * o->weight_decay) -
                       o->lr * (a->m[i] / o->fix1) / (sqrtf(a->v[i] / o->fix2) + o->eps);
        if (a->param) lazy_put(a->param, a->param_dt, i, a->master[i]);
    }
}
static inline dt_err lazy_adamw_step(dt_device *dev, const dt_adamw *opt, const void *grad, dt_dtype gt, float *master,
                                     float *m, float *v, void *param, dt_dtype param_dt, int64_t n, dt_stream *s)
{
    const lazy_adamw a = {*opt, grad, gt, param_dt, master, m, v, param, n};
    return lazy_queue(dev, s, lazy_do_adamw, &a, sizeof a);
}

typedef struct lazy_reduce {
    const void *x;
    dt_dtype dt;
    int64_t n;
    int shift;
    void *result;
} lazy_reduce;

static inline void lazy_do_sum_squares(dt_device *dev, void *args)
{
    (void)dev;
    const lazy_reduce *a = args;
    double sum = 0;
    for (int64_t i = 0; i < a->n; i++) sum += (double)lazy_get(a->x, a->dt, i) * lazy_get(a->x, a->dt, i);
    *(double *)a->result = sum;
}
static inline dt_err lazy_sum_squares(dt_device *dev, const void *x, dt_dtype dt, int64_t n, double *result,
                                      dt_stream *s)
{
    const lazy_reduce a = {x, dt, n, 0, result};
    return lazy_queue(dev, s, lazy_do_sum_squares, &a, sizeof a);
}

static inline void lazy_do_abs_max(dt_device *dev, void *args)
{
    (void)dev;
    const lazy_reduce *a = args;
    float most = 0;
    for (int64_t i = 0; i < a->n; i++) {
        const float x = fabsf(lazy_get(a->x, a->dt, i));
        if (!(x <= most)) most = isnan(x) ? INFINITY : x;
    }
    *(float *)a->result = most;
}
static inline dt_err lazy_abs_max(dt_device *dev, const void *x, dt_dtype dt, int64_t n, float *result, dt_stream *s)
{
    const lazy_reduce a = {x, dt, n, 0, result};
    return lazy_queue(dev, s, lazy_do_abs_max, &a, sizeof a);
}

static inline void lazy_do_fixed(dt_device *dev, void *args)
{
    (void)dev;
    const lazy_reduce *a = args;
    unsigned __int128 sum = 0;
    for (int64_t i = 0; i < a->n; i++) {
        const double x = lazy_get(a->x, a->dt, i);
        sum += (unsigned __int128)(int64_t)rint(ldexp(x * x, a->shift));
    }
    const uint64_t word[2] = {(uint64_t)sum, (uint64_t)(sum >> 64)};
    memcpy(a->result, word, sizeof word);
}
static inline dt_err lazy_sum_squares_fixed(dt_device *dev, const void *x, dt_dtype dt, int64_t n, int shift,
                                            uint64_t result[2], dt_stream *s)
{
    const lazy_reduce a = {x, dt, n, shift, result};
    return lazy_queue(dev, s, lazy_do_fixed, &a, sizeof a);
}

static const dt_device_ops lazy_ops = {.name = "lazy",
                                       .alloc = lazy_alloc,
                                       .free = lazy_free,
                                       .stream_create = lazy_stream_create,
                                       .stream_destroy = lazy_stream_destroy,
                                       .stream_sync = lazy_stream_sync,
                                       .event_create = lazy_event_create,
                                       .event_destroy = lazy_event_destroy,
                                       .event_record = lazy_event_record,
                                       .event_wait = lazy_event_wait,
                                       .copy = lazy_copy,
                                       .zero = lazy_zero,
                                       .convert = lazy_convert,
                                       .adamw_step = lazy_adamw_step,
                                       .sum_squares = lazy_sum_squares,
                                       .abs_max = lazy_abs_max,
                                       .sum_squares_fixed = lazy_sum_squares_fixed};

static inline void lazy_open(dt_device *dev, lazy_device *lazy, lazy_mode mode, dt_ledger *ledger)
{
    *lazy = (lazy_device){.mode = mode};
    *dev = (dt_device){.ops = &lazy_ops, .impl = lazy, .ledger = ledger};
}

static inline void lazy_close(dt_device *dev) { free(((lazy_device *)dev->impl)->compute.ops); }

#endif
