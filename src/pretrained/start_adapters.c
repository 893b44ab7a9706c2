/* start_adapters.c - initial values of new adapters that depend on the weights of the model. */
#include "dtrain/pretrained/pretrained.h"
#include "factors.h"
#include "merge.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Write what this rank owns of a whole tensor: the slice at the same index of the owned ones. */
static dt_err write_owned(dt_zero *z, const dt_slice *charged, const float *whole)
{
    const dt_slice *p = dt_zero_owned(z) + (charged - dt_zero_slices(z));
    const dt_st_type type = dt_st_type_of(dt_zero_state_dtype(z, DT_STATE_PARAM, p));
    void *kept = malloc((size_t)p->n * sizeof(float) + 1);
    DT_CHECK(kept, DT_ERR_MEMORY, "out of memory for adapters");
    dt_st_convert(whole + p->first, DT_ST_F32, kept, type, p->n);
    const dt_err err = dt_zero_state_write(z, DT_STATE_PARAM, p, 0, p->n, kept);
    free(kept);
    return err;
}

static dt_err start_magnitudes(merge_delta *d, dt_comm *comm, const dt_stored_slot *s)
{
    const dt_slice *magnitude = merge_magnitude(d, s->tensor->name);
    float *length = NULL;
    if (!magnitude) return DT_OK;
    DT_TRY(merge_gather_update(d, comm, s, s->tensor->name, DT_OK));
    dt_err err = merge_lengths(d, comm, s, DT_OK, &length);
    if (err == DT_OK) err = dt_comm_agree(comm, write_owned(d->z, magnitude, length));
    free(length);
    return err;
}

dt_err dt_adapters_start(dt_comm *comm, dt_zero *z) { return merge_each(comm, z, z, start_magnitudes); }

/* ---- factors of the weights -------------------------------------------------------------------------------------- */

/* A linear layer: its weight, whole on one rank, and its factors. */
typedef struct layer {
    const dt_stored_slot *slot;
    const dt_slice *a, *b;
    float *w, *of_a, *of_b;
} layer;

static dt_err check_layer(dt_zero *z, const layer *l)
{
    const dt_tensor *t = l->slot->tensor;
    const int64_t r = dt_zero_tensor(z, l->a)->shape[0], most = dt_min_i64(t->shape[0], t->shape[1]);
    DT_CHECK(r <= most, DT_ERR_USAGE, "%s has a rank of at most %" PRId64 ", but its adapter has %" PRId64, t->name,
             most, r);
    return DT_OK;
}

static dt_err factorise(dt_zero *z, layer *l, const dt_lora *lora)
{
    const dt_tensor *a = dt_zero_tensor(z, l->a), *b = dt_zero_tensor(z, l->b);
    if (l->slot->tensor->in_first) DT_TRY(merge_turn(&l->w, l->slot->tensor));
    const factor_task t = {.w = l->w,
                           .n_out = b->shape[0],
                           .n_in = a->shape[1],
                           .rank = a->shape[0],
                           .scale = (double)a->adapter_scale,
                           .iterations = lora->init_iterations};
    return (lora->init == DT_LORA_PISSA ? factors_principal : factors_orthogonal)(&t, l->of_a, l->of_b);
}

/* Allocate both factors, zero where another rank computes them. */
static dt_err make_room(dt_zero *z, layer *l)
{
    l->of_a = calloc((size_t)dt_zero_tensor(z, l->a)->n_elems + 1, sizeof *l->of_a);
    l->of_b = calloc((size_t)dt_zero_tensor(z, l->b)->n_elems + 1, sizeof *l->of_b);
    DT_CHECK(l->of_a && l->of_b, DT_ERR_MEMORY, "out of memory for the factors of %s", l->slot->tensor->name);
    return DT_OK;
}

static dt_err join_factor(dt_comm *comm, dt_zero *z, const dt_slice *p, float *factor)
{
    const size_t nbytes = ((size_t)dt_zero_tensor(z, p)->n_elems * sizeof *factor + 7) / 8 * 8;
    DT_TRY(dt_comm_join_host(dt_comm_all(comm), factor, nbytes));
    return dt_comm_agree(comm, write_owned(z, p, factor));
}

/* Up to one layer for each rank, which computes its factors. Collective, agreed. */
static dt_err split_layers(dt_comm *comm, dt_zero *z, layer *layers, int n, const dt_lora *lora)
{
    const dt_axis *all = dt_comm_all(comm);
    dt_err err = DT_OK, own = DT_OK;
    for (int k = 0; k < n && err == DT_OK; k++) {
        err = merge_join(comm, z, layers[k].slot->slice, DT_OK, &layers[k].w);
        if (k != all->rank) free(layers[k].w), layers[k].w = NULL;
    }
    for (int k = 0; k < n && own == DT_OK; k++) own = make_room(z, &layers[k]);
    if (err == DT_OK && own == DT_OK && all->rank < n) own = factorise(z, &layers[all->rank], lora);
    if (err == DT_OK) err = dt_comm_agree(comm, own);
    for (int k = 0; k < n && err == DT_OK; k++) {
        err = join_factor(comm, z, layers[k].a, layers[k].of_a);
        if (err == DT_OK) err = join_factor(comm, z, layers[k].b, layers[k].of_b);
    }
    for (int k = 0; k < n; k++) free(layers[k].w), free(layers[k].of_a), free(layers[k].of_b);
    return err;
}

/* Every adapter is of a layer. */
static dt_err check_all(const merge_delta *d, const layer *layers, int n)
{
    for (int i = 0; i < d->n_parts; i++) {
        const dt_slice *part = d->parts[i].slice;
        bool found = false;
        for (int k = 0; k < n; k++) found = found || layers[k].a == part || layers[k].b == part;
        DT_CHECK(found, DT_ERR_USAGE, "%s: only adapters of linear layers can be factors of their weights",
                 d->parts[i].name);
    }
    return DT_OK;
}

static dt_err list_layers(dt_zero *z, const merge_delta *d, const dt_stored_slot *slots, int n, layer *layers,
                          int *n_layers)
{
    for (int i = 0; i < n; i++) {
        layer l = {.slot = &slots[i]};
        if (!merge_of_layer(d, &slots[i], &l.a, &l.b)) continue;
        DT_TRY(check_layer(z, &l));
        layers[(*n_layers)++] = l;
    }
    return check_all(d, layers, *n_layers);
}

dt_err dt_adapters_split(dt_comm *comm, dt_zero *z, const dt_lora *lora)
{
    const dt_saved_model of = {.zero = z};
    dt_stored_slot *slots = NULL;
    int n = 0, n_layers = 0;
    merge_delta d = {0};
    layer *layers = NULL;
    dt_err err = dt_stored_slots(&of, 1, &slots, &n);
    if (err == DT_OK) err = merge_open(&d, z);
    if (err == DT_OK && !(layers = calloc((size_t)n + 1, sizeof *layers)))
        err = dt_fail(DT_ERR_MEMORY, "out of memory for a list of %d layers", n);
    if (err == DT_OK) err = list_layers(z, &d, slots, n, layers, &n_layers);
    err = dt_comm_agree(comm, err);
    const dt_axis *all = dt_comm_all(comm);
    const int n_ranks = all->size;
    for (int i = 0; i < n_layers && err == DT_OK; i += n_ranks)
        err = split_layers(comm, z, layers + i, n_layers - i < n_ranks ? n_layers - i : n_ranks, lora);
    merge_close(&d);
    free(layers);
    free(slots);
    return err == DT_OK ? dt_comm_agree(comm, dt_zero_state_written(z)) : err;
}
