/* group_experts.c - move the experts of blocks into units of their own, after tensors have been chosen for training and
 * quantised, and before the units are borrowed. Names, values and settings of tensors stay, so files and results do not
 * depend on the groups. */
#include "dtrain/core/unit.h"
#include <stdlib.h>
#include <string.h>

enum { N_LAYERS = 2 }; /* of an expert: its first matrices (gate and up), and its last */

/* Biases and adapters stay in the block's unit. */
static bool moves(const dt_tensor *t)
{
    return t->of_expert && t->adapter_scale == 0 && (t->part >= DT_CODES || t->n_dims == 2);
}

static bool is_scale(const dt_tensor *t) { return t->part == DT_BLOCKS || t->part == DT_SCALES; }

static int64_t n_experts(const dt_unit *u)
{
    int64_t n = 0;
    for (int i = 0; i < u->n_tensors && u->role == DT_UNIT_BLOCK; i++)
        if (moves(&u->tensors[i])) n = dt_max_i64(n, u->tensors[i].expert + 1);
    return n;
}

/* Groups of each layer of a block's experts; 0: they stay. */
static int64_t n_groups(const dt_unit *u, int64_t size)
{
    const int64_t n = n_experts(u);
    return size > 0 && n > size ? dt_ceil_div(n, size) : 0;
}

/* A block that is being divided: its unit and those of its groups follow one another. */
typedef struct division {
    const dt_unit *from;
    dt_unit *to;
    int64_t n, size; /* groups, experts of each */
    int *unit, *now; /* [from->n_tensors]: unit of each tensor, and its index there */
} division;

/* Scales follow their codes, which come before them. */
static void choose_units(const division *d)
{
    const dt_unit *u = d->from;
    for (int first = 0, end, layer = -1; first < u->n_tensors; first = end) {
        end = dt_unit_end_of_group(u, first);
        layer += moves(&u->tensors[first]) && !is_scale(&u->tensors[first]);
        for (int i = first; i < end; i++) {
            const dt_tensor *t = &u->tensors[i];
            d->unit[i] = !moves(t)     ? 0
                         : is_scale(t) ? d->unit[t->coded.codes]
                                       : (int)(1 + layer * d->n + t->expert / d->size);
        }
    }
}

static dt_err move(const division *d)
{
    const dt_unit *u = d->from;
    for (int i = 0; i < u->n_tensors; i++) d->now[i] = d->to[d->unit[i]].n_tensors++;
    for (int64_t k = 0; k <= N_LAYERS * d->n; k++) {
        d->to[k].tensors = calloc((size_t)dt_max_i64(1, d->to[k].n_tensors), sizeof(dt_tensor));
        DT_CHECK(d->to[k].tensors, DT_ERR_MEMORY, "unit %s: out of memory for a table of tensors", u->name);
    }
    for (int i = 0; i < u->n_tensors; i++) {
        dt_tensor *t = &d->to[d->unit[i]].tensors[d->now[i]];
        *t = u->tensors[i];
        t->new_group = t->new_group || (i > 0 && d->unit[i] != d->unit[i - 1]);
        if (t->part < DT_CODES) continue;
        t->coded.codes = d->now[t->coded.codes], t->coded.scales = d->now[t->coded.scales];
        if (t->coded.blocks >= 0) t->coded.blocks = d->now[t->coded.blocks];
    }
    return DT_OK;
}

/* A group of tensors may have been in the trained part because of tensors of other experts. */
static void settle(dt_unit *u)
{
    for (int first = 0, end; first < u->n_tensors; first = end) {
        bool trained = false;
        end = dt_unit_end_of_group(u, first);
        for (int i = first; i < end; i++) trained = trained || u->tensors[i].trainable;
        for (int i = first; i < end && !trained; i++)
            if (u->tensors[i].part == DT_TRAINED) u->tensors[i].part = DT_FROZEN;
    }
    u->n_param = 0;
    for (int i = 0; i < u->n_tensors; i++) u->n_param += dt_n_weights(&u->tensors[i]);
    dt_unit_lay_out(u);
}

static void name_groups(const division *d)
{
    for (int64_t k = 1; k <= N_LAYERS * d->n; k++) {
        char name[80];
        snprintf(name, sizeof name, "%s.%s.%d", d->from->name, k <= d->n ? "up" : "down", (int)((k - 1) % d->n));
        snprintf(d->to[k].name, sizeof d->to[k].name, "%.*s", (int)sizeof d->to[k].name - 1, name);
        d->to[k].role = DT_UNIT_EXPERTS;
        d->to[k].trained_align = d->from->trained_align;
    }
}

/* `to` has zeros. */
static dt_err divide(const dt_unit *from, int64_t size, dt_unit *to)
{
    division d = {.from = from, .to = to, .n = n_groups(from, size), .size = size};
    *to = *from;
    to->tensors = NULL, to->n_tensors = 0;
    d.unit = calloc(2 * (size_t)from->n_tensors + 1, sizeof *d.unit);
    DT_CHECK(d.unit, DT_ERR_MEMORY, "unit %s: out of memory for a table of tensors", from->name);
    d.now = d.unit + from->n_tensors;
    if (d.n > 0) choose_units(&d);
    name_groups(&d);
    const dt_err err = move(&d);
    for (int64_t k = 0; k <= N_LAYERS * d.n && err == DT_OK && d.n > 0; k++) settle(&to[k]);
    free(d.unit);
    return err;
}

dt_err dt_units_group_experts(const dt_unit *units, int n_units, int64_t size, dt_unit **grouped, int *n_grouped)
{
    int n = n_units;
    *grouped = NULL, *n_grouped = 0;
    for (int u = 0; u < n_units; u++) n += (int)(N_LAYERS * n_groups(&units[u], size));
    DT_EXPECT(n > 0);
    dt_unit *all = calloc((size_t)n, sizeof *all);
    DT_CHECK(all, DT_ERR_MEMORY, "out of memory for the tables of %d units", n);
    for (int u = 0, at = 0; u < n_units; u++) {
        const dt_err err = divide(&units[u], size, &all[at]);
        if (err != DT_OK) return dt_units_free(all, n), err;
        at += (int)(1 + N_LAYERS * n_groups(&units[u], size));
    }
    *grouped = all, *n_grouped = n;
    return DT_OK;
}

dt_err dt_units_take_groups(dt_unit **units, int *n_units, int64_t size)
{
    dt_unit *grouped;
    int n;
    if (size == 0) return DT_OK;
    DT_TRY(dt_units_group_experts(*units, *n_units, size, &grouped, &n));
    dt_units_free(*units, *n_units);
    *units = grouped, *n_units = n;
    return DT_OK;
}

int64_t dt_units_n_experts(const dt_unit *units, int n_units)
{
    int64_t n = 0;
    for (int u = 0; u < n_units; u++) n = dt_max_i64(n, n_experts(&units[u]));
    return n;
}
