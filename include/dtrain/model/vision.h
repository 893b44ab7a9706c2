/* vision.h - what a vision-language model has besides its language model: a tower that reads images, CLIP's or
 * SigLIP's, and a projector that turns the tower's features into rows of the language model's width. They stand where
 * the text has placeholders. Definitions: algorithms.md 7 and 8.7. Part of model.h. */
#ifndef DTRAIN_VISION_H
#define DTRAIN_VISION_H

#include "dtrain/image/image.h"

struct dt_model_config;

typedef enum dt_tower { DT_TOWER_CLIP, DT_TOWER_SIGLIP, DT_N_TOWERS } dt_tower;

/** Layers, each followed by activation, dropout and a LayerNorm, but for the last, which stands alone. */
typedef enum dt_projector_type {
    DT_PROJECTOR_LINEAR,
    DT_PROJECTOR_MLP2X_GELU,    /* two layers without a norm: LLaVA-1.5 */
    DT_PROJECTOR_MLP,           /* two layers */
    DT_PROJECTOR_DEEP_MLP,      /* three layers */
    DT_PROJECTOR_PIXEL_SHUFFLE, /* squares of f x f patches side by side, then one layer without bias: nanoVLM */
    DT_N_PROJECTORS
} dt_projector_type;
enum { DT_MAX_PROJECTOR_LAYERS = 3 };

typedef struct dt_projector_config {
    dt_projector_type type;
    int n_layers;
    int64_t n_in, hidden_size, n_out;
    int64_t shuffle; /* f; 1: patches stay as they are */
    bool bias, norm;
    int act; /* dt_activation */
    double dropout;
} dt_projector_config;

/** llava's config.json, checked and with its defaults filled in, and what preprocessor_config.json says. */
typedef struct dt_vision_config {
    dt_tower tower;
    struct dt_model_config *blocks; /* the tower as a model of its own; its vocabulary are the positions of an image */
    int64_t image_size, patch_size;
    int64_t n_side;               /* patches along a side */
    int64_t n_rows;               /* what the tower makes of an image: patches, behind CLIP's class token */
    int64_t n_blocks;             /* of the tower */
    int64_t n_used;               /* blocks whose output the features are; those behind are kept in files alone */
    bool feature_norm;            /* features are what post_layernorm makes of it */
    bool drop_first;              /* features without those of the first row */
    int64_t n_features;           /* rows of an image in the projector */
    int64_t n_tokens;             /* placeholders of an image in a text: n_features, or 1, which gets their mean */
    int32_t image_token;          /* the placeholder's id */
    dt_preprocessor preprocessor; /* how its images are made, without json; out_width 0: that is not known, and numbers
                                   * are those that its kind is published with */
    float scale[3], shift[3]; /* an input of the tower is a byte of red, green or blue times the one plus the other */
    dt_projector_config projector;
} dt_vision_config;

/** Bytes of what the projector reads of an image: [n_features, projector.n_in], in row-major order, of the model's
 *  activations' type. */
static inline size_t dt_vision_feature_nbytes(const dt_vision_config *v, dt_dtype dtype)
{
    return (size_t)(v->n_features * v->projector.n_in) * dt_dtype_size(dtype);
}

/** Does an image have one placeholder, for the mean of all rows that the projector makes of it? */
static inline bool dt_vision_pools(const dt_vision_config *v) { return v->n_tokens < v->n_features; }

const char *dt_tower_name(dt_tower tower);       /* "clip", "siglip" */
const char *dt_tower_model_type(dt_tower tower); /* in a config.json: "clip_vision_model" */
int64_t dt_tower_patch_size(dt_tower tower);     /* where a config.json does not say it */
/** The tower that a config.json's model_type (may be NULL) names, of a whole model or of the tower alone: "clip",
 *  "clip_vision_model". false: it names none. */
bool dt_tower_find(const char *model_type, dt_tower *tower);
const char *dt_projector_name(dt_projector_type projector); /* "mlp2x_gelu" */

#endif
