/* vision_units.c - named tensors of tower and projector, with the names of transformers. */
#include "vision_private.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* Includes blocks whose output is unused and an unused final norm: they are kept for export. */
static int n_of_tower(const dt_vision_config *v)
{
    return 1 + (int)v->n_blocks + (v->blocks->family->head[0].name != NULL);
}

int dt_vision_n_units(const dt_vision_config *v) { return v ? n_of_tower(v) + 1 + v->n_deepstack : 0; }

int dt_vision_first_unit(const dt_unit *units, int n_units)
{
    const int first = dt_units_find(units, n_units, DT_UNIT_PATCHES);
    return first > 0 ? first : n_units; /* unit 0 starts the tower: a list of the tower only */
}

static bool is_trained(const dt_unit *u) { return u->flat_len[DT_TRAINED] > 0; }

/* Matrices: 2 operations per element and row in forward, 2 for their gradient. Another 2 for the gradient of their
 * input if an earlier unit is trained. A kernel on pixels counts as a matrix; the other one of that unit is the
 * position table. */
static double flops_of_matmuls(const dt_unit *u, double n_rows, bool input_gradient)
{
    const bool of_pixels = u->role == DT_UNIT_PATCHES;
    double sum = 0;
    for (int i = 0; i < u->n_tensors; i++) {
        const dt_tensor *t = &u->tensors[i];
        if (of_pixels ? t->n_dims >= 4 : dt_is_matrix(t))
            sum += (2 + 2 * t->trainable + 2 * input_gradient) * (double)dt_n_weights(t) * n_rows;
        input_gradient = input_gradient || (t->trainable && !of_pixels);
    }
    return sum;
}

/* Keys that a row of a tower's block attends to. The sizes of grids are not known here: without windows an image counts
 * as 1024 patches. */
static double n_keys(const dt_vision_config *v, int64_t block)
{
    enum { USUAL = 1024 };
    const double side = (double)(v->window * v->n_side);
    if (!v->grids) return (double)v->n_rows;
    return dt_model_layer(v->blocks, block).windowed ? fmin(side * side, USUAL) : USUAL;
}

double dt_model_image_flops(const dt_model_config *mc, const dt_unit *units, int n_units, bool features_given)
{
    const dt_vision_config *v = mc->vision;
    if (!v) return 0;
    const double P = (double)v->n_rows, n_patches = (double)(v->n_side * v->n_side);
    double sum = 0;
    bool trained = false; /* an earlier unit is trained */
    int64_t block = 0;
    for (int u = dt_vision_first_unit(units, n_units); u < n_units; u++) {
        const dt_unit *unit = &units[u];
        const double n_rows = unit->role == DT_UNIT_PATCHES     ? n_patches
                              : unit->role == DT_UNIT_PROJECTOR ? (double)v->n_features
                                                                : P;
        if (unit->role == DT_UNIT_CARRIED || (features_given && unit->role != DT_UNIT_PROJECTOR)) continue;
        sum += flops_of_matmuls(unit, n_rows, trained);
        trained = trained || is_trained(unit);
        if (unit->role == DT_UNIT_ENCODER)
            sum += (trained ? 12 : 4) * (double)v->blocks->hidden_size * P * n_keys(v, block++);
    }
    return sum;
}

/* A layer of the tower: its first unit, a block, or the norm after the last one. */
static dt_err build_tower(const dt_vision_config *v, int64_t i, dt_unit *u)
{
    static const char prefix[] = "vision_tower.";
    const dt_family *f = v->blocks->family;
    struct builder b = {
        .mc = v->blocks, .unit = u, .tower = true, .patch_size = v->patch_size, .n_frames = v->grids ? v->n_frames : 0};
    char name[40];
    snprintf(b.prefix, sizeof b.prefix, "%s", prefix);
    if (i == 0) return dt_units_build(&b, DT_UNIT_PATCHES, "vision.embed", f->embed);
    if (i > v->n_blocks)
        return dt_units_build(&b, v->feature_norm ? DT_UNIT_NORM : DT_UNIT_CARRIED, "vision.end", f->head);
    snprintf(name, sizeof name, "vision.block.%" PRId64, i - 1);
    snprintf(b.prefix, sizeof b.prefix, "%s%s%" PRId64 ".", prefix, f->blocks, i - 1);
    return dt_units_build(&b, i - 1 < v->n_used ? DT_UNIT_ENCODER : DT_UNIT_CARRIED, name, f->block);
}

/* A projector that is being built: its names begin with this. */
struct building {
    dt_unit *unit;
    char prefix[48];
    const char *linear;
};

static dt_err add(const struct building *b, const char *name, int i, const char *part, int n_dims, int64_t rows,
                  int64_t cols, double std, float value)
{
    dt_unit *u = b->unit;
    char full[DT_NAME_MAX];
    snprintf(full, sizeof full, "%s%s%d.%s", b->prefix, name, i + 1, part);
    return dt_unit_add(u, full, n_dims, (const int64_t[]){rows, cols}, true, n_dims == 2, (float)std, value);
}

/* Initialisation of new layers. LLaVA's as in PyTorch: U(-1/sqrt(in), 1/sqrt(in)). Others as in AnyLLM: N(0, 0.02^2),
 * the last layer N(0, 0.01^2). Biases are zero. */
static dt_err add_layer(const dt_projector_config *p, const struct building *b, int i)
{
    dt_unit *u = b->unit;
    const bool last = i == p->n_layers - 1,
               uniform = p->type == DT_PROJECTOR_LINEAR || p->type == DT_PROJECTOR_MLP2X_GELU;
    const int64_t n_in = i == 0 ? p->n_in : p->hidden_size, n_out = last ? p->n_out : p->hidden_size;
    DT_TRY(add(b, b->linear, i, "weight", 2, n_out, n_in, uniform ? 0 : last ? 0.01 : 0.02, 0));
    u->tensors[u->n_tensors - 1].site = DT_SITE_LINEAR;
    if (uniform) u->tensors[u->n_tensors - 1].init_bound = (float)(1 / sqrt((double)n_in));
    if (p->bias) DT_TRY(add(b, b->linear, i, "bias", 1, n_out, 0, 0, 0));
    if (!p->norm || last) return DT_OK;
    DT_TRY(add(b, "norm_", i, "weight", 1, p->hidden_size, 0, 0, 1));
    u->tensors[u->n_tensors - 1].kind = DT_KIND_NORM;
    return add(b, "norm_", i, "bias", 1, p->hidden_size, 0, 0, 0);
}

/* The layer of a projector that averages. */
static dt_err add_projection(const dt_projector_config *p, const struct building *b)
{
    char full[DT_NAME_MAX];
    snprintf(full, sizeof full, "%smm_input_projection_weight", b->prefix);
    DT_TRY(dt_unit_add(b->unit, full, 2, (const int64_t[]){p->n_in, p->n_out}, true, true, 0.01f, 0));
    b->unit->tensors[b->unit->n_tensors - 1].in_first = true;
    return DT_OK;
}

static dt_err add_pre_norm(const dt_projector_config *p, const struct building *b)
{
    static const char *const PARTS[] = {"weight", "bias"};
    for (int i = 0; i < (p->average ? 1 : 2) && p->pre_norm; i++) {
        char full[DT_NAME_MAX];
        snprintf(full, sizeof full, "%s%s.%s", b->prefix, p->pre_norm, PARTS[i]);
        DT_TRY(dt_unit_add(b->unit, full, 1, &p->n_in, true, false, 0, i == 0 && !p->average));
        if (i == 0) b->unit->tensors[b->unit->n_tensors - 1].kind = DT_KIND_NORM;
    }
    return DT_OK;
}

/* deep: number of a projector of deepstack; -1: the one after the last block. */
static dt_err build_projector(const dt_vision_config *v, int deep, dt_unit *u)
{
    const dt_projector_config *p = deep < 0 ? &v->projector : &v->deep_projector;
    struct building b = {.unit = u, .prefix = "multi_modal_projector.", .linear = deep < 0 ? "linear_" : "linear_fc"};
    snprintf(u->name, sizeof u->name, "projector");
    if (deep >= 0) {
        snprintf(u->name, sizeof u->name, "projector.deepstack.%d", deep);
        snprintf(b.prefix, sizeof b.prefix, "multi_modal_projector.deepstack.%d.", deep);
    }
    u->role = DT_UNIT_PROJECTOR;
    DT_TRY(add_pre_norm(p, &b));
    if (p->average) return add_projection(p, &b);
    for (int i = 0; i < p->n_layers; i++) DT_TRY(add_layer(p, &b, i));
    return DT_OK;
}

dt_err dt_vision_build_units(const dt_vision_config *v, dt_unit *units)
{
    for (int i = 0; i < dt_vision_n_units(v); i++) {
        const int after = i - n_of_tower(v);
        DT_TRY(after < 0 ? build_tower(v, i, &units[i]) : build_projector(v, after - 1, &units[i]));
        if (units[i].role == DT_UNIT_CARRIED) dt_units_choose_trained(&units[i], 1, NULL, NULL);
    }
    return DT_OK;
}
