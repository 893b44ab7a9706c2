/* vision_units.c - named tensors of tower and projector, with the names of transformers. */
#include "vision_private.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* Includes blocks whose output is unused and an unused final norm: they are kept for export. */
int dt_vision_n_units(const dt_vision_config *v) { return v ? 1 + (int)v->n_blocks + 1 + 1 : 0; }

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
        if (of_pixels ? t->n_dims == 4 : dt_is_matrix(t))
            sum += (2 + 2 * t->trainable + 2 * input_gradient) * (double)dt_n_weights(t) * n_rows;
        input_gradient = input_gradient || (t->trainable && !of_pixels);
    }
    return sum;
}

double dt_model_image_flops(const dt_model_config *mc, const dt_unit *units, int n_units, bool features_given)
{
    const dt_vision_config *v = mc->vision;
    if (!v) return 0;
    const double P = (double)v->n_rows, n_patches = (double)(v->n_side * v->n_side);
    double sum = 0;
    bool trained = false; /* an earlier unit is trained */
    for (int u = dt_vision_first_unit(units, n_units); u < n_units; u++) {
        const dt_unit *unit = &units[u];
        const double n_rows = unit->role == DT_UNIT_PATCHES     ? n_patches
                              : unit->role == DT_UNIT_PROJECTOR ? (double)v->n_features
                                                                : P;
        if (unit->role == DT_UNIT_CARRIED || (features_given && unit->role != DT_UNIT_PROJECTOR)) continue;
        sum += flops_of_matmuls(unit, n_rows, trained);
        trained = trained || is_trained(unit);
        if (unit->role == DT_UNIT_ENCODER) sum += (trained ? 12 : 4) * (double)v->blocks->hidden_size * P * P;
    }
    return sum;
}

enum start { WEIGHT_OF_NORM, BIAS, MATRIX };

static dt_err add(dt_unit *u, const char *prefix, const char *name, bool new_group, enum start start, double std,
                  int64_t rows, int64_t cols)
{
    char full[DT_NAME_MAX];
    const int64_t shape[2] = {rows, cols};
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return dt_unit_add(u, full, start == MATRIX ? 2 : 1, shape, new_group, start == MATRIX,
                       start == MATRIX ? (float)std : 0, start == WEIGHT_OF_NORM ? 1 : 0);
}

static dt_err add_norm(dt_unit *u, const char *prefix, const char *name, int64_t n)
{
    char weight[64], bias[64];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    DT_TRY(add(u, prefix, weight, true, WEIGHT_OF_NORM, 0, n, 0));
    return add(u, prefix, bias, true, BIAS, 0, n, 0);
}

static dt_err add_linear(dt_unit *u, const char *prefix, const char *name, bool bias, double std, int64_t n_out,
                         int64_t n_in)
{
    char text[64];
    snprintf(text, sizeof text, "%s.weight", name);
    DT_TRY(add(u, prefix, text, true, MATRIX, std, n_out, n_in));
    snprintf(text, sizeof text, "%s.bias", name);
    return bias ? add(u, prefix, text, true, BIAS, 0, n_out, 0) : DT_OK;
}

static dt_err build_patches(const dt_vision_config *v, dt_unit *u)
{
    static const char *const prefix = "vision_tower.embeddings.";
    const int64_t C = v->blocks->hidden_size, p = v->patch_size, conv[] = {C, 3, p, p};
    const double std = v->blocks->initializer_range;
    snprintf(u->name, sizeof u->name, "vision.embed");
    u->role = DT_UNIT_PATCHES;
    if (v->tower == DT_TOWER_CLIP)
        DT_TRY(dt_unit_add(u, "vision_tower.embeddings.class_embedding", 1, &C, true, true, (float)std, 0));
    DT_TRY(dt_unit_add(u, "vision_tower.embeddings.patch_embedding.weight", 4, conv, true, true, (float)std, 0));
    if (v->tower == DT_TOWER_SIGLIP) DT_TRY(add(u, prefix, "patch_embedding.bias", true, BIAS, 0, C, 0));
    DT_TRY(add(u, prefix, "position_embedding.weight", true, MATRIX, std, v->n_rows, C));
    return v->tower == DT_TOWER_CLIP ? add_norm(u, "vision_tower.", "pre_layrnorm", C) : DT_OK;
}

static dt_err build_block(const dt_vision_config *v, int64_t layer, dt_unit *u)
{
    const dt_model_config *mc = v->blocks;
    const int64_t C = mc->hidden_size, F = mc->intermediate_size;
    const double std = mc->initializer_range;
    char prefix[64];
    snprintf(u->name, sizeof u->name, "vision.block.%" PRId64, layer);
    snprintf(prefix, sizeof prefix, "vision_tower.encoder.layers.%" PRId64 ".", layer);
    u->role = layer < v->n_used ? DT_UNIT_ENCODER : DT_UNIT_CARRIED;
    DT_TRY(add_norm(u, prefix, "layer_norm1", C));
    DT_TRY(add(u, prefix, "self_attn.q_proj.weight", true, MATRIX, std, C, C));
    DT_TRY(add(u, prefix, "self_attn.k_proj.weight", false, MATRIX, std, C, C));
    DT_TRY(add(u, prefix, "self_attn.v_proj.weight", false, MATRIX, std, C, C));
    DT_TRY(add(u, prefix, "self_attn.q_proj.bias", true, BIAS, 0, C, 0));
    DT_TRY(add(u, prefix, "self_attn.k_proj.bias", false, BIAS, 0, C, 0));
    DT_TRY(add(u, prefix, "self_attn.v_proj.bias", false, BIAS, 0, C, 0));
    DT_TRY(add_linear(u, prefix, "self_attn.out_proj", true, std, C, C));
    DT_TRY(add_norm(u, prefix, "layer_norm2", C));
    DT_TRY(add_linear(u, prefix, "mlp.fc1", true, std, F, C));
    return add_linear(u, prefix, "mlp.fc2", true, std, C, F);
}

static dt_err build_end(const dt_vision_config *v, dt_unit *u)
{
    snprintf(u->name, sizeof u->name, "vision.end");
    u->role = v->feature_norm ? DT_UNIT_OWN : DT_UNIT_CARRIED;
    return add_norm(u, "vision_tower.", "post_layernorm", v->blocks->hidden_size);
}

/* Initialisation of new layers. LLaVA's as in PyTorch: U(-1/sqrt(in), 1/sqrt(in)). Others as in AnyLLM: N(0, 0.02^2),
 * the last layer N(0, 0.01^2). Biases are zero. */
static dt_err add_layer(const dt_projector_config *p, dt_unit *u, const char *prefix, int i)
{
    const bool last = i == p->n_layers - 1,
               uniform = p->type == DT_PROJECTOR_LINEAR || p->type == DT_PROJECTOR_MLP2X_GELU;
    const int64_t n_in = i == 0 ? p->n_in : p->hidden_size, n_out = last ? p->n_out : p->hidden_size;
    const int weight = u->n_tensors;
    char name[24];
    snprintf(name, sizeof name, "linear_%d", i + 1);
    DT_TRY(add_linear(u, prefix, name, p->bias, uniform ? 0 : last ? 0.01 : 0.02, n_out, n_in));
    if (uniform) u->tensors[weight].init_bound = (float)(1 / sqrt((double)n_in));
    return DT_OK;
}

static dt_err build_projector(const dt_vision_config *v, dt_unit *u)
{
    static const char *const prefix = "multi_modal_projector.";
    const dt_projector_config *p = &v->projector;
    snprintf(u->name, sizeof u->name, "projector");
    u->role = DT_UNIT_PROJECTOR;
    for (int i = 0; i < p->n_layers; i++) {
        char norm[24];
        snprintf(norm, sizeof norm, "norm_%d", i + 1);
        DT_TRY(add_layer(p, u, prefix, i));
        if (p->norm && i < p->n_layers - 1) DT_TRY(add_norm(u, prefix, norm, p->hidden_size));
    }
    return DT_OK;
}

static dt_err build(const dt_vision_config *v, int i, dt_unit *u)
{
    const int L = (int)v->n_blocks;
    return i == 0       ? build_patches(v, u)
           : i <= L     ? build_block(v, i - 1, u)
           : i == L + 1 ? build_end(v, u)
                        : build_projector(v, u);
}

dt_err dt_vision_build_units(const dt_vision_config *v, dt_unit *units)
{
    for (int i = 0; i < dt_vision_n_units(v); i++) {
        DT_TRY(build(v, i, &units[i]));
        if (units[i].role == DT_UNIT_CARRIED) dt_units_choose_trained(&units[i], 1, NULL, NULL);
    }
    return DT_OK;
}
