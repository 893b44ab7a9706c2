/* self_check.c - compares a device with the CPU: every operation of the table, in the variants that training uses, at
 * odd sizes and on random values. It takes seconds, on machines that have no test suite.
 *
 * The comparison covers the whole arena: memory that an operation must not write must be unchanged. */
#include "self_check.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_NBYTES = 24 << 20, MAX_REPORTED = 16 };

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

void begin(check *c, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(c->what, sizeof c->what, fmt, args);
    va_end(args);
    c->used = c->n_places = 0;
    c->wrong = c->again = false;
    c->matmul = NULL;
    c->n_forms++;
}

/* Arrays begin up to 3 elements after a multiple of 256 bytes, like shards. Kernels for aligned chunks of 16 bytes
 * would then run only by chance, so their cases set `whole`. */
static array place(check *c, dt_dtype dt, size_t elem_size, int64_t n, bool may_change)
{
    const size_t nbytes = (size_t)n * elem_size, from = (c->used + 511) / 256 * 256,
                 drawn = dt_mix64(c->draws++) % 4 ? 0 : (size_t)(1 + dt_mix64(c->draws) % 3) * elem_size,
                 shift = c->whole ? 0 : drawn;
    const array a = {from + shift, dt, elem_size, n};
    if (c->n_places == CHECK_MAX_ARRAYS || a.at + nbytes + 256 > ARENA_NBYTES) {
        if (c->err == DT_OK) c->err = dt_fail(DT_ERR_ARG, "internal: self-check: %s: the arena is full", c->what);
        return (array){0};
    }
    memset(c->before + c->used, 0xff, a.at + nbytes + 256 - c->used);
    c->used = a.at + nbytes + 256;
    c->places[c->n_places++] = (struct place){.at = a.at, .nbytes = nbytes, .may_change = may_change};
    return a;
}

array put_bytes(check *c, const void *data, size_t elem_size, int64_t n)
{
    const array a = place(c, DT_N_DTYPE, elem_size, n, false);
    if (n > 0) memcpy(c->before + a.at, data, (size_t)a.n * elem_size);
    return a;
}

array put(check *c, dt_dtype dt, int64_t n, double scale)
{
    const array a = place(c, dt, dt_dtype_size(dt), n, false);
    for (int64_t i = 0; i < a.n; i++) {
        const float x = (float)(scale * ((double)(dt_mix64(++c->draws) >> 11) * 0x1p-52 - 1));
        dt_set_element(c->before + a.at, dt, i, x);
    }
    return a;
}

array room(check *c, dt_dtype dt, int64_t n) { return place(c, dt, dt_dtype_size(dt), n, true); }
array room_bytes(check *c, size_t elem_size, int64_t n) { return place(c, DT_N_DTYPE, elem_size, n, true); }

array part(array a, int64_t from, int64_t n)
{
    a.at += (size_t)from * a.elem_size;
    a.n = n;
    return a;
}

void *at(const check *c, array a) { return (char *)c->arena[c->side].ptr + a.at; }

/* ---- both devices in turn ---------------------------------------------------------------------------------------- */

static dt_err copy(check *c, void *dst, const void *src)
{
    dt_device *dev = c->dev[c->side];
    DT_TRY(dev->ops->copy(dev, dst, src, c->used, NULL));
    return dev->ops->stream_sync(dev, NULL);
}

bool check_start(check *c)
{
    for (c->side = 1; c->side >= 0 && c->err == DT_OK; c->side--) c->err = copy(c, c->arena[c->side].ptr, c->before);
    c->side = 0;
    return c->err == DT_OK;
}

bool check_next(check *c)
{
    if (c->err == DT_OK) c->err = copy(c, c->after[c->side], c->arena[c->side].ptr);
    return c->err == DT_OK && ++c->side < 2;
}

/* ---- comparison -------------------------------------------------------------------------------------------------- */

/* True if the case is a matmul by a library, which the device then stops using. */
static bool leave_library(check *c, const char *why)
{
    dt_device *dev = c->dev[1];
    if (!c->again && c->matmul && dev->ops->distrust && dev->ops->distrust(dev, c->matmul)) {
        DT_WARN(
            "self-check: the library computes %s incorrectly (%s): dtrain's own kernels replace it for such matmuls, "
            "which is slower",
            c->what, why);
        c->again = true;
        c->n_distrusted++;
    }
    return c->again;
}

static void report(check *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void report(check *c, const char *fmt, ...)
{
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (leave_library(c, text)) return;
    c->n_wrong += !c->wrong;
    c->wrong = true;
    if (c->list.n < MAX_REPORTED) dt_mistakes_add(&c->list, dt_fail(DT_ERR_FAULT, "  %s: %s", c->what, text));
}

static void may_change(check *c, array a)
{
    for (int i = 0; i < c->n_places; i++)
        if (a.at >= c->places[i].at && a.at < c->places[i].at + c->places[i].nbytes) c->places[i].may_change = true;
}

array result(check *c, const char *what, tolerance tol, array a)
{
    if (c->err != DT_OK) return a;
    struct place *p = &c->places[c->n_places - 1];
    p->may_change = true;
    p->what = what, p->result = a, p->tol = tol;
    return a;
}

static double value(const char *image, array a, int64_t i) { return (double)dt_element(image + a.at, a.dt, i); }

static double rms_of(const check *c, array a)
{
    double sum = 0;
    for (int64_t i = 0; i < a.n; i++) {
        const double y = value(c->after[0], a, i);
        if (isfinite(y)) sum += y * y;
    }
    return a.n > 0 ? sqrt(sum / (double)a.n) : 0;
}

static bool same(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

static void compare_bytes(check *c, const char *name, array a)
{
    const char *want = c->after[0] + a.at, *got = c->after[1] + a.at;
    int64_t i = 0;
    while (i < a.n && !memcmp(want + (size_t)i * a.elem_size, got + (size_t)i * a.elem_size, a.elem_size)) i++;
    if (i < a.n) report(c, "%s: element %" PRId64 " of %" PRId64 " differs from the CPU's", name, i, a.n);
}

/* Half a unit in the last place of y. Subnormals of fp16 are 2^-24 apart, large enough to occur. */
static double half_unit(dt_dtype dt, double y) { return fmax(dt_roundoff(dt) * fabs(y), dt == DT_F16 ? 0x1p-25 : 0); }

void compare(check *c, const char *what, array a, tolerance tol)
{
    may_change(c, a);
    if (c->err != DT_OK) return;
    if (a.dt == DT_N_DTYPE) {
        compare_bytes(c, what, a);
        return;
    }
    if (!memcmp(c->after[0] + a.at, c->after[1] + a.at, (size_t)a.n * a.elem_size)) return;
    const double rms = rms_of(c, a);
    int64_t n_off = 0, worst = 0;
    double most = 0, allowed_there = 0;
    for (int64_t i = 0; i < a.n; i++) {
        const double want = value(c->after[0], a, i), got = value(c->after[1], a, i), off = fabs(got - want);
        const double allowed = tol.floats < 0
                                   ? 0
                                   : 2.5 * half_unit(a.dt, want) +
                                         (tol.floats * 0x1p-24 + tol.stored * dt_roundoff(tol.dt)) * (fabs(want) + rms);
        if (same(want, got) || off <= allowed) continue;
        const double times = isfinite(off) ? off / (allowed + 1e-300) : INFINITY;
        if (n_off++ == 0 || times > most) most = times, worst = i, allowed_there = allowed;
    }
    if (n_off)
        report(c,
               "%s: %" PRId64 " of %" PRId64 " values differ; the largest difference is at %" PRId64
               ": %.7g, on the CPU %.7g, allowed difference %.2g",
               what, n_off, a.n, worst, value(c->after[1], a, worst), value(c->after[0], a, worst), allowed_there);
}

void compare_doubles(check *c, const char *what, array a, double relative)
{
    may_change(c, a);
    for (int64_t i = 0; i < a.n && c->err == DT_OK; i++) {
        double want, got;
        memcpy(&want, c->after[0] + a.at + (size_t)i * sizeof want, sizeof want);
        memcpy(&got, c->after[1] + a.at + (size_t)i * sizeof got, sizeof got);
        if (same(want, got) || fabs(got - want) <= relative * fabs(want)) continue;
        report(c, "%s: value %" PRId64 " of %" PRId64 " is %.15g, on the CPU %.15g", what, i, a.n, got, want);
        return;
    }
}

/* Report a case that changed its inputs or the space between arrays. */
static void check_rest(check *c)
{
    size_t from = 0;
    for (int i = 0; i <= c->n_places; i++) {
        const struct place *p = i < c->n_places ? &c->places[i] : NULL;
        if (p && !p->may_change) continue;
        const size_t to = p ? p->at : c->used;
        if (memcmp(c->before + from, c->after[1] + from, to - from) != 0) {
            report(c, "memory outside the results was overwritten");
            return;
        }
        if (p) from = p->at + p->nbytes;
    }
}

/* If a variant is refused or fails, the check continues with the others. A device that has failed permanently also
 * fails at the next variant. */
void end(check *c)
{
    for (int i = 0; i < c->n_places; i++)
        if (c->places[i].what) compare(c, c->places[i].what, c->places[i].result, c->places[i].tol);
    if (c->err == DT_OK) {
        check_rest(c);
        return;
    }
    char why[160];
    snprintf(why, sizeof why, "%s", dt_error_message());
    dt_error_clear();
    report(c, "%s", *why ? why : dt_error_words(c->err));
    c->err = DT_OK;
}

bool end_matmul(check *c)
{
    end(c);
    c->n_forms -= c->again;
    return c->again;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static dt_err open_check(check *c, dt_device *cpu, dt_device *dev)
{
    c->dev[0] = cpu, c->dev[1] = dev;
    for (int s = 0; s < 2; s++) {
        DT_TRY(dt_buf_alloc(&c->arena[s], c->dev[s], DT_ON_DEVICE, ARENA_NBYTES, DT_MEM_OTHER));
        c->after[s] = malloc(ARENA_NBYTES);
    }
    c->before = malloc(ARENA_NBYTES);
    DT_CHECK(c->before && c->after[0] && c->after[1], DT_ERR_MEMORY, "self-check: out of memory for three arenas");
    return DT_OK;
}

static void close_check(check *c)
{
    for (int s = 0; s < 2; s++) {
        dt_buf_free(&c->arena[s]);
        free(c->after[s]);
    }
    free(c->before);
    free(c->list.text);
}

static dt_err verdict(check *c, const char *name)
{
    if (c->n_wrong == 0) return DT_OK;
    char *list = c->list.text;
    return dt_fail(
        DT_ERR_FAULT,
        "the device %s computes other results than the CPU in %d of %d tests, so training on it would be wrong:\n%s%s",
        name, c->n_wrong, c->n_forms, list ? list : "", c->n_wrong > c->list.n ? "\n  ..." : "");
}

dt_err dt_device_self_check(dt_device *dev, int n_threads, int *n_distrusted)
{
    dt_ledger ledger = {0}; /* counts the CPU's arena, which no plan includes */
    dt_device cpu = {.ops = &dt_device_cpu_ops, .ledger = &ledger};
    check c = {0};
    const double begin_s = dt_now_s();
    char name[256];
    dev->ops->describe(dev, name, sizeof name);
    DT_TRY(cpu.ops->open(&cpu, 0, n_threads));
    dt_err err = open_check(&c, &cpu, dev);
    if (err == DT_OK) {
        check_rows_cases(&c);
        check_matrix_cases(&c);
        check_delta_cases(&c);
        check_experts_cases(&c);
        err = verdict(&c, name);
    }
    if (err == DT_OK) DT_INFO("self-check: %d tests agree with the CPU (%.1f s)", c.n_forms, dt_now_s() - begin_s);
    if (n_distrusted) *n_distrusted = c.n_distrusted;
    close_check(&c);
    cpu.ops->close(&cpu);
    return err;
}
