/* vision.h - the additional parts of a vision-language model: a tower that encodes images, CLIP's or SigLIP's, and a
 * projector from the tower's features to rows of the language model's width. These replace the text's placeholders.
 * Definitions: algorithms.md 7 and 8.6. Part of model.h. Every function is Local. */
#ifndef DTRAIN_VISION_H
#define DTRAIN_VISION_H

#include "dtrain/image/image.h"

struct dt_model_config;

/** Kinds of towers. */
typedef enum dt_tower { DT_TOWER_CLIP, DT_TOWER_SIGLIP, DT_N_TOWERS } dt_tower;

/** Kinds of projectors: layers, each except the last followed by activation, dropout and LayerNorm. */
typedef enum dt_projector_type {
    DT_PROJECTOR_LINEAR,
    DT_PROJECTOR_MLP2X_GELU,    /* two layers without a norm: LLaVA-1.5 */
    DT_PROJECTOR_MLP,           /* two layers */
    DT_PROJECTOR_DEEP_MLP,      /* three layers */
    DT_PROJECTOR_PIXEL_SHUFFLE, /* concatenates f x f patches, then one layer without bias: nanoVLM */
    DT_N_PROJECTORS
} dt_projector_type;
enum { DT_MAX_PROJECTOR_LAYERS = 3 };

/** Sizes of a projector. */
typedef struct dt_projector_config {
    dt_projector_type type;
    int n_layers;
    int64_t n_in, hidden_size, n_out;
    int64_t shuffle; /* f; 1: no shuffle */
    bool bias, norm;
    int act; /* dt_activation */
    double dropout;
} dt_projector_config;

/** A validated llava config.json with its defaults, and preprocessor_config.json. */
typedef struct dt_vision_config {
    dt_tower tower;
    struct dt_model_config *blocks; /* the tower as a model; its vocabulary is the positions of an image */
    int64_t image_size, patch_size;
    int64_t n_side;      /* patches along a side */
    int64_t n_rows;      /* the tower's rows per image: CLIP's class token, then patches */
    int64_t n_blocks;    /* of the tower */
    int64_t n_used;      /* blocks up to the features; later blocks are only stored in files */
    bool feature_norm;   /* features are the output of post_layernorm */
    bool drop_first;     /* the first row is not a feature */
    int64_t n_features;  /* the projector's rows per image */
    int64_t n_tokens;    /* placeholders per image: n_features, or 1 for their mean */
    int32_t image_token; /* the placeholder's id */
    /* preprocessing of images, without json; out_width 0: unknown, with the published values of its kind */
    dt_preprocessor preprocessor;
    float scale[3], shift[3]; /* the tower's input: byte * scale + shift, for red, green and blue */
    dt_projector_config projector;
} dt_vision_config;

/** Bytes of an image's features: [n_features, projector.n_in], row-major, of the activations' type. */
static inline size_t dt_vision_feature_nbytes(const dt_vision_config *v, dt_dtype dtype)
{
    return (size_t)(v->n_features * v->projector.n_in) * dt_dtype_size(dtype);
}

/** Has an image one placeholder, for the mean of the projector's rows? */
static inline bool dt_vision_pools(const dt_vision_config *v) { return v->n_tokens < v->n_features; }

/** "clip", "siglip" */
const char *dt_tower_name(dt_tower tower);
/** model_type in config.json: "clip_vision_model" */
const char *dt_tower_model_type(dt_tower tower);
/** Default patch size. */
int64_t dt_tower_patch_size(dt_tower tower);
/** Find the tower of a config.json's model_type (may be NULL), of a whole model or of a tower: "clip",
 *  "clip_vision_model". False: none. */
bool dt_tower_find(const char *model_type, dt_tower *tower);
/** "mlp2x_gelu", ... */
const char *dt_projector_name(dt_projector_type projector);

#endif
