/* vision.h - the additional parts of a vision-language model: a tower that encodes images, CLIP's or SigLIP's, and a
 * projector from the tower's features to rows of the language model's width. These replace the text's placeholders.
 * Definitions: algorithms.md 7 and 8.6. Part of model.h. Every function is Local. */
#ifndef DTRAIN_VISION_H
#define DTRAIN_VISION_H

#include "dtrain/image/image.h"

struct dt_model_config;

/** Names of tensors: the beginning of dtrain's name, and of that in exported files. */
typedef dt_renaming dt_tower_name;

/** A kind of tower, as files of transformers have it (src/model/families/vision_towers.c). A tower of LLaVA is used
 *  with any of its language models. Another one belongs to a model of its own, with one language model (`text`) or any
 *  of those of LLaVA. Its images may be grids of cells. */
typedef struct dt_tower {
    const char *name, *model_type; /* model_type in config.json, of a whole model and of a tower: "clip_vision_model" */
    const struct dt_family *family;
    const char *processor; /* its image processor */
    /* values of missing keys; act: dt_activation */
    int64_t patch_size;
    double norm_eps;
    int act;
    const int32_t *tokens; /* [3]: image_token and around, as in dt_vision_config */
    bool crops;            /* its image processor crops */
    bool class_row;        /* a class token precedes the patches */
    bool pools;            /* its files have a pooling head, which is not read, and its features may have a norm */
    /* of a model of its own; architecture NULL: LLaVA's */
    const struct dt_family *text; /* NULL: any language model of LLaVA */
    const char *architecture;
    const char *around[2];      /* tokens around the placeholders of an image; NULL: known by their ids */
    const dt_tower_name *names; /* up to {NULL} */
    bool gated;                 /* blocks have RMSNorm and a gated MLP, else LayerNorm and a plain MLP */
    bool tiles;                 /* images are divided into tiles, each an image for the tower */
    bool averages;              /* images have one size, and the projector averages (Gemma 3) */
    bool interpolates;          /* has a square table of positions, which is interpolated */
    bool interleaved;           /* mrope_interleaved */
    bool text_alone;            /* without images, the text model of files is used (DT_MODEL_USUAL) */
    /* values of missing keys: image_size (unless images are grids), num_hidden_layers or depth, hidden_size,
     * intermediate_size, num_attention_heads or num_heads, window_size in pixels (0: no windows),
     * fullatt_block_indexes, mrope_section, deepstack_visual_indexes (-1: the tower has none) */
    int64_t image_size, n_blocks, hidden_size, intermediate_size, n_heads;
    int64_t window_size, full_blocks[4], sections[3], deepstack[3];
} dt_tower;

/** Kinds of projectors: layers, each except the last followed by activation, dropout and LayerNorm. */
typedef enum dt_projector_type {
    DT_PROJECTOR_LINEAR,
    DT_PROJECTOR_MLP2X_GELU,    /* two layers without a norm: LLaVA-1.5 */
    DT_PROJECTOR_MLP,           /* two layers */
    DT_PROJECTOR_DEEP_MLP,      /* three layers */
    DT_PROJECTOR_PIXEL_SHUFFLE, /* concatenates f x f patches, then one layer without bias: nanoVLM */
    DT_PROJECTOR_SHUFFLE_MLP,   /* LayerNorm of f x f concatenated patches, then two layers: InternVL */
    DT_PROJECTOR_AVERAGE,       /* the mean of f x f patches, RMSNorm, then one layer [in, out] without bias: Gemma 3 */
    DT_N_PROJECTORS
} dt_projector_type;
enum { DT_MAX_PROJECTOR_LAYERS = 3, DT_MAX_DEEPSTACK = 8 };

/** Sizes of a projector. */
typedef struct dt_projector_config {
    dt_projector_type type;
    int n_layers;
    int64_t n_in, hidden_size, n_out;
    int64_t shuffle; /* f; 1: no shuffle */
    int64_t average; /* f of a projector that averages; 0 for others */
    bool bias, norm;
    /* name of the norm of its input: LayerNorm; if it averages, RMSNorm whose weights are stored minus 1. NULL: none */
    const char *pre_norm;
    float pre_eps;
    int act; /* dt_activation */
    double dropout;
} dt_projector_config;

/** A validated config.json of a vision-language model with its defaults, and preprocessor_config.json.
 *
 *  The images of a tower of LLaVA have one size. Otherwise an image is a grid of square cells of one size, and what is
 *  said of an image here holds for a cell: image_size is its side. Only positions and attention depend on the grid. */
typedef struct dt_vision_config {
    const dt_tower *tower;
    struct dt_model_config *blocks; /* the tower as a model; its vocabulary is the positions of an image */
    bool grids;                     /* images are grids of cells */
    bool tiles;                     /* images are tiles: cells, each an image for the tower */
    int64_t image_size, patch_size;
    int64_t n_frames;   /* the patch embedding reads an image n_frames times */
    int64_t window;     /* cells along a side of an attention window, in blocks that are `windowed`; 0: none */
    int64_t table_side; /* of the square table of positions, which is interpolated; 0: not interpolated */
    /* Blocks whose outputs have projectors of their own. Rows of the k-th are added to the placeholders after block k
     * of the language model */
    int64_t deepstack[DT_MAX_DEEPSTACK];
    int n_deepstack;
    int64_t n_side;      /* patches along a side */
    int64_t n_rows;      /* the tower's rows per image: CLIP's class token, then patches */
    int64_t n_blocks;    /* of the tower */
    int64_t n_used;      /* blocks up to the features; later blocks are only stored in files */
    bool feature_norm;   /* features are the output of post_layernorm */
    bool drop_first;     /* the first row is not a feature */
    int64_t n_features;  /* the projector's rows per image */
    int64_t n_tokens;    /* placeholders per image: n_features, or 1 for their mean */
    int32_t image_token; /* the placeholder's id */
    bool both_ways;      /* consecutive placeholders attend to each other in the language model */
    int32_t around[2];   /* tokens before and after an image's placeholders, of grids or if it is wrapped; else -1 */
    bool wrapped;        /* texts have the token around[0] for an image, which is replaced (dt_vision_wrap) */
    /* preprocessing of images, without json; out_width 0: unknown, with the published values of its kind */
    dt_preprocessor preprocessor;
    float scale[3], shift[3]; /* the tower's input: byte * scale + shift, for red, green and blue */
    dt_projector_config projector, deep_projector; /* deep_projector: each of deepstack */
} dt_vision_config;

/** Elements of an image's features: [n_features, projector.n_in], row-major, then likewise for each projector of
 *  deepstack. */
static inline int64_t dt_vision_feature_elems(const dt_vision_config *v)
{
    return v->n_features * v->projector.n_in * (1 + v->n_deepstack);
}
/** Their bytes, of the activations' type. */
static inline size_t dt_vision_feature_nbytes(const dt_vision_config *v, dt_dtype dtype)
{
    return (size_t)dt_vision_feature_elems(v) * dt_dtype_size(dtype);
}

/** Patches along a side of the square that becomes a row of the projector's input. */
static inline int64_t dt_projector_square(const dt_projector_config *p)
{
    return p->average > 1 ? p->average : p->shuffle;
}

/** The token that stands for an image in texts. */
static inline int32_t dt_vision_text_token(const dt_vision_config *v)
{
    return v->wrapped ? v->around[0] : v->image_token;
}

/** Does an image consist of cells, which datasets store? */
static inline bool dt_vision_has_cells(const dt_vision_config *v) { return v->grids || v->tiles; }

/** Does an image have one placeholder, for the mean of the projector's rows? */
static inline bool dt_vision_pools(const dt_vision_config *v) { return v->n_tokens < v->n_features; }

/** Kind number i; NULL after the last. Files without a model_type have the first kind. */
const dt_tower *dt_tower_at(int i);
/** Find the kind of a config.json's model_type (may be NULL), of a whole model or of a tower, among those of LLaVA.
 *  NULL: none. */
const dt_tower *dt_tower_find(const char *model_type);
/** Find the kind with this model_type of the whole model (may be NULL), which has its own language model. NULL:
 *  none. */
const dt_tower *dt_tower_of_model(const char *model_type);
/** "mlp2x_gelu", ... */
const char *dt_projector_name(dt_projector_type projector);

#endif
