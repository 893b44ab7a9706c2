/* ref_zero.c - see ref_zero.h. Slow and plain: one element at a time. */
#include "ref_zero.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dt_err add(dt_unit *u, const char *suffix, int64_t rows, int64_t cols, bool new_group, bool decay, float std,
                  float value)
{
    char name[DT_NAME_MAX];
    const int64_t shape[] = {rows, cols};
    snprintf(name, sizeof name, "%s.%s", u->name, suffix);
    return dt_unit_add(u, name, cols > 0 ? 2 : 1, shape, new_group, decay, std, value);
}

/** Frozen: one between two trained ones of its group, all of a unit, and groups of units that have others. */
static bool is_trained(void *self, const dt_tensor *t)
{
    return strcmp(t->name, "embed.wpe") != 0 && strcmp(t->name, "block.0.k") != 0 &&
           strncmp(t->name, "block.1.", 8) != 0 && strcmp(t->name, "block.2.mlp") != 0;
}

/** Of the tied tensor, of the first rows of another, and of the last of a third that touches a trained one. */
static void choose_rows(dt_unit *units)
{
    static const dt_row_range wte[] = {{3, 4}, {700, 1411}, {4000, 4099}}, q[] = {{0, 3}, {4, 7}}, mlp[] = {{210, 211}};
    units[0].tensors[0].row_ranges = wte, units[0].tensors[0].n_row_ranges = 3;
    units[3].tensors[1].row_ranges = q, units[3].tensors[1].n_row_ranges = 2;
    units[1].tensors[4].row_ranges = mlp, units[1].tensors[4].n_row_ranges = 1;
}

/** Is element i of it updated? */
static bool is_updated(const dt_tensor *t, int64_t i)
{
    const int64_t row = i / (t->n_elems / t->shape[0]);
    bool is = t->n_row_ranges == 0;
    for (int k = 0; k < t->n_row_ranges; k++) is |= row >= t->row_ranges[k].first && row < t->row_ranges[k].end;
    return is && t->trainable;
}

dt_err ref_zero_make_units(dt_unit *units, bool with_frozen)
{
    static const char *const names[REF_ZERO_UNITS] = {"embed", "block.0", "block.1", "block.2", "head"};
    memset(units, 0, REF_ZERO_UNITS * sizeof *units);
    for (int u = 0; u < REF_ZERO_UNITS; u++) snprintf(units[u].name, sizeof units[u].name, "%s", names[u]);
    DT_TRY(add(&units[0], "wte", 4099, 0, true, true, 0.02f, 0));
    DT_TRY(add(&units[0], "wpe", 5, 3, true, true, 0.01f, 0));
    for (int u = 1; u <= 3; u++) {
        DT_TRY(add(&units[u], "norm", 5, 0, true, false, 0, 1));
        DT_TRY(add(&units[u], "q", 8, 8, true, true, 0.02f, 0));
        DT_TRY(add(&units[u], "k", 3, 8, false, true, 0.02f, 0));
        DT_TRY(add(&units[u], "bias", 1, 0, false, false, 0, 0));
        DT_TRY(add(&units[u], "mlp", u == 2 ? 331 : 211, 7, true, true, 0.03f, 0));
    }
    DT_TRY(add(&units[4], "scale", 1, 0, true, false, 0, 1));
    units[3].tensors[2].lr_group = 1; /* k, which would be of one run with q */
    units[1].tensors[4].lr_group = units[4].tensors[0].lr_group = 1;
    if (with_frozen) dt_units_choose_trained(units, REF_ZERO_UNITS, is_trained, NULL);
    if (with_frozen) choose_rows(units);
    return DT_OK;
}

void ref_zero_free_units(dt_unit *units)
{
    for (int u = 0; u < REF_ZERO_UNITS; u++) dt_unit_free(&units[u]);
}

int64_t ref_zero_total(const dt_unit *units)
{
    int64_t n = 0;
    for (int u = 0; u < REF_ZERO_UNITS; u++) n += units[u].flat_len[DT_TRAINED] + units[u].flat_len[DT_FROZEN];
    return n;
}

int64_t ref_zero_begin(const dt_unit *units, int unit, int tensor)
{
    const dt_tensor *t = &units[unit].tensors[tensor];
    int64_t n = t->part == DT_FROZEN ? units[unit].flat_len[DT_TRAINED] : 0;
    for (int u = 0; u < unit; u++) n += units[u].flat_len[DT_TRAINED] + units[u].flat_len[DT_FROZEN];
    return n + t->offset;
}

float ref_zero_grad(bool exact, int64_t step, int64_t j, int unit, int64_t i, int half)
{
    if (j < 0) return 0;
    const uint64_t h = dt_mix64(dt_mix64((uint64_t)(step * 1000 + j)) ^ dt_mix64((uint64_t)(i * 16 + unit * 2 + half)));
    if (exact) return (float)((int)(h % 9) - 4) / 64;
    const float x = ldexpf((float)(h & 0xffffff) * 0x1p-24f + 0.5f, (int)(h >> 24 & 7) - 6);
    return h >> 40 & 1 ? -x : x;
}

/* ---- one micro-step of the model --------------------------------------------------------------------------------- */

static float get(const void *data, dt_dtype t, int64_t i) { return dt_element(data, t, i); }

static void put(void *data, dt_dtype t, int64_t i, bool accumulate, float x)
{
    if (accumulate) x += get(data, t, i);
    dt_set_element(data, t, i, x);
}

void *ref_zero_read(dt_device *dev, const void *data, int64_t n, dt_dtype t)
{
    const size_t nbytes = (size_t)n * dt_dtype_size(t);
    void *host = malloc(nbytes + 1);
    if (host && dev->ops->copy(dev, host, data, nbytes, NULL) == DT_OK && dev->ops->stream_sync(dev, NULL) == DT_OK)
        return host;
    free(host);
    return NULL;
}

dt_err ref_zero_write(dt_device *dev, void *data, int64_t n, dt_dtype t, const void *host)
{
    return dev->ops->copy(dev, data, host, (size_t)n * dt_dtype_size(t), NULL);
}

static bool is_wrong(const ref_zero_model *m, float x, float want, dt_dtype t)
{
    if (t == DT_F32) return memcmp(&x, &want, sizeof x) != 0;
    const float subnormal = t == DT_F16 ? 0x1p-25f : 0; /* numbers of fp16 below 2^-14 are 2^-24 apart */
    return !(fabsf(x - want) <= m->slack * fabsf(want) + subnormal);
}

static void look_at_part(ref_zero_model *m, int unit, dt_part part, const dt_param_view *view)
{
    const dt_unit *u = &m->units[unit];
    const dt_dtype dtype = view->part[part].dtype;
    if (u->flat_len[part] == 0) {
        m->n_wrong += view->part[part].data != NULL;
        return;
    }
    void *data = ref_zero_read(m->dev, view->part[part].data, u->flat_len[part], dtype);
    if (!data) {
        m->n_wrong++;
        return;
    }
    int64_t at = 0;
    for (int k = 0; k <= u->n_tensors; k++) {
        if (k < u->n_tensors && u->tensors[k].part != part) continue;
        const int64_t begin = k < u->n_tensors ? u->tensors[k].offset : u->flat_len[part];
        for (; at < begin; at++) m->n_wrong += get(data, dtype, at) != 0; /* padding */
        if (k == u->n_tensors) break;
        const float *want = m->expect ? m->expect + ref_zero_begin(m->units, unit, k) : NULL;
        for (; at < begin + u->tensors[k].n_elems; at++)
            if (want) m->n_wrong += is_wrong(m, get(data, dtype, at), want[at - begin], dtype);
    }
    free(data);
}

static void look_at(ref_zero_model *m, int unit, const dt_param_view *view)
{
    look_at_part(m, unit, DT_TRAINED, view);
    look_at_part(m, unit, DT_FROZEN, view);
}

static dt_err keep(dt_err first, dt_err then) { return first == DT_OK ? then : first; }

static dt_err with_params(ref_zero_model *m, int unit)
{
    dt_param_view view;
    const dt_err err = m->source.params_acquire(m->source.self, unit, &view);
    if (err == DT_OK) look_at(m, unit, &view);
    return err;
}

static dt_err release_params(ref_zero_model *m, int unit) { return m->source.params_release(m->source.self, unit); }

/** Adds one part of a tensor's gradients, or writes it. Frozen parts next to trained ones get garbage. */
static void write_tensor(const ref_zero_model *m, void *data, dt_dtype dtype, int unit, int k, int64_t step, int64_t j,
                         int half, bool add)
{
    const dt_tensor *t = &m->units[unit].tensors[k];
    for (int64_t i = t->offset; i < t->offset + t->n_elems; i++)
        put(data, dtype, i, add, is_updated(t, i - t->offset) ? ref_zero_grad(m->exact, step, j, unit, i, half) : NAN);
}

/* What the device holds, changed on the host by tensors first .. last, and sent back without waiting. */
static dt_err change_grads(ref_zero_model *m, const dt_grad_view *view, int unit, int first, int last, int64_t step,
                           int64_t j)
{
    const int64_t len = m->units[unit].flat_len[DT_TRAINED];
    void *data = ref_zero_read(m->dev, view->data, len, view->dtype);
    if (!data) return DT_ERR_FAULT;
    m->lent[m->n_lent++] = data;
    for (int k = first; k <= last; k++) {
        if (m->units[unit].tensors[k].part == DT_FROZEN) continue;
        const bool second = first != last && unit == m->tied_unit && k == 0; /* the head has written its part of wte */
        write_tensor(m, data, view->dtype, unit, k, step, j, second, view->accumulate || second);
    }
    return ref_zero_write(m->dev, view->data, len, view->dtype, data);
}

static dt_err backward_unit(ref_zero_model *m, int unit, int64_t step, int64_t j)
{
    dt_grad_view view;
    if (m->units[unit].flat_len[DT_TRAINED] == 0) return DT_OK;
    dt_err err = m->source.grads_acquire(m->source.self, unit, &view);
    if (err != DT_OK) return err;
    err = change_grads(m, &view, unit, 0, m->units[unit].n_tensors - 1, step, j);
    return keep(err, m->source.grads_release(m->source.self, unit));
}

/** The tied embedding: acquired for the whole backward pass, and once more, nested, by the head. */
static dt_err head_of_tied(ref_zero_model *m, int64_t step, int64_t j)
{
    dt_grad_view view;
    const int u = m->tied_unit;
    dt_err err = m->source.grads_acquire(m->source.self, u, &view);
    if (err != DT_OK) return err;
    err = with_params(m, u);
    err = keep(err, m->source.grads_acquire(m->source.self, u, &view));
    if (err == DT_OK) err = change_grads(m, &view, u, 0, 0, step, j);
    err = keep(err, m->source.grads_release(m->source.self, u));
    return keep(err, release_params(m, u));
}

dt_err ref_zero_micro_step(ref_zero_model *m, int64_t step, int64_t j)
{
    const int last = REF_ZERO_UNITS - 1;
    dt_err err = DT_OK;
    for (int u = 0; u < last; u++) {
        err = keep(err, with_params(m, u));
        err = keep(err, release_params(m, u));
    }
    for (int u = last; u >= 0; u--) {
        err = keep(err, with_params(m, u));
        if (u == last && m->tied_unit >= 0) err = keep(err, head_of_tied(m, step, j));
        err = keep(err, backward_unit(m, u, step, j));
        if (u == m->tied_unit) err = keep(err, m->source.grads_release(m->source.self, u));
        err = keep(err, release_params(m, u));
    }
    err = keep(err, m->dev->ops->stream_sync(m->dev, NULL));
    while (m->n_lent > 0) free(m->lent[--m->n_lent]);
    return err;
}

/* ---- one rank, fp32, plain loops --------------------------------------------------------------------------------- */

static float rounded(float x, dt_dtype t)
{
    float room[1];
    dt_set_element(room, t, 0, x);
    return dt_element(room, t, 0);
}

void ref_zero_sum_grads(const dt_unit *units, bool exact, int tied_unit, dt_dtype micro_dtype, int64_t step,
                        int64_t n_micro, float *grad)
{
    for (int u = 0; u < REF_ZERO_UNITS; u++)
        for (int k = 0; k < units[u].n_tensors; k++) {
            const dt_tensor *t = &units[u].tensors[k];
            float *sum = grad + ref_zero_begin(units, u, k) - t->offset;
            for (int64_t i = t->offset; i < t->offset + t->n_elems; i++) {
                sum[i] = 0;
                for (int64_t j = 0; j < n_micro && is_updated(t, i - t->offset); j++) {
                    float g = rounded(ref_zero_grad(exact, step, j, u, i, 0), micro_dtype);
                    if (u == tied_unit && k == 0) g = rounded(g + ref_zero_grad(exact, step, j, u, i, 1), micro_dtype);
                    sum[i] += g;
                }
            }
        }
}

void ref_zero_adamw(const dt_unit *units, const dt_adamw *opt, const double *group_lr, const float *grad, float *param,
                    float *m, float *v)
{
    for (int u = 0; u < REF_ZERO_UNITS; u++)
        for (int k = 0; k < units[u].n_tensors; k++) {
            const dt_tensor *t = &units[u].tensors[k];
            const float wd = t->decay ? opt->weight_decay : 0, lr = (float)group_lr[t->lr_group];
            const int64_t at = ref_zero_begin(units, u, k);
            for (int64_t i = at; i < at + t->n_elems; i++) {
                if (!is_updated(t, i - at)) continue;
                const float g = opt->grad_scale * grad[i];
                m[i] = opt->beta1 * m[i] + (1 - opt->beta1) * g;
                v[i] = opt->beta2 * v[i] + (1 - opt->beta2) * g * g;
                param[i] = param[i] * (1 - lr * wd) - lr * (m[i] / opt->fix1) / (sqrtf(v[i] / opt->fix2) + opt->eps);
            }
        }
}
