/* config_vision.c - the config.json of models with images: the tower in vision_config, and the projector; algorithms.md
 * 7.1 and 8.6. Images have one size, or are tiles of one size. config_grids.c: images of native resolution. */
#include "model_config.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct projector {
    const char *name;
    int n_layers;
    bool bias, norm;
    int64_t hidden_size, shuffle; /* hidden_size 0: the width of the language model */
    double dropout;
} PROJECTORS[DT_N_PROJECTORS] = {
    [DT_PROJECTOR_LINEAR] = {"linear", 1, true, false, 0, 1, 0},
    [DT_PROJECTOR_MLP2X_GELU] = {"mlp2x_gelu", 2, true, false, 0, 1, 0},
    [DT_PROJECTOR_MLP] = {"mlp", 2, true, true, 0, 1, 0.1},
    [DT_PROJECTOR_DEEP_MLP] = {"deep_mlp", 3, true, true, 3072, 1, 0.1},
    [DT_PROJECTOR_PIXEL_SHUFFLE] = {"pixel_shuffle", 1, false, false, 0, 4, 0},
    [DT_PROJECTOR_SHUFFLE_MLP] = {"shuffle_mlp", 2, true, false, 0, 2, 0},
    [DT_PROJECTOR_AVERAGE] = {"average", 1, false, false, 0, 1, 0},
};

const char *dt_projector_name(dt_projector_type projector) { return PROJECTORS[projector].name; }

/* tower: of a model of its own; NULL: LLaVA, whose old files omit model_type. */
static dt_err read_tower_type(const dt_spec *s, const dt_tower *tower, dt_vision_config *v)
{
    const char *word = (tower ? tower : dt_tower_at(0))->model_type;
    DT_TRY(dt_spec_string(s, "model_type", &word));
    v->tower = tower ? tower : dt_tower_find(word);
    v->tiles = tower && tower->tiles;
    v->grids = tower && !tower->tiles && !tower->averages;
    v->around[0] = v->around[1] = -1;
    if (v->grids || (v->tower && strcmp(word, v->tower->model_type) == 0)) return DT_OK;
    return dt_spec_bad(s, "model_type", tower ? tower->model_type : "clip_vision_model or siglip_vision_model");
}

/* Patches of grids have rotary positions of row and column. */
static dt_err read_axial(const dt_spec *s, dt_model_config *mc)
{
    const char *type = "axial";
    dt_spec rope;
    mc->rope_type = DT_ROPE_DEFAULT;
    mc->rope_theta = 10000;
    mc->partial_rotary_factor = 1;
    mc->rope_axes = 2;
    mc->max_position_embeddings = INT32_MAX;
    if (!dt_spec_get(s, "rope_parameters", &rope)) return DT_OK;
    DT_TRY(dt_spec_string(&rope, "rope_type", &type));
    if (strcmp(type, "axial") != 0) return dt_spec_bad(&rope, "rope_type", "axial");
    return dt_spec_real(&rope, "rope_theta", 1, 1e30, &mc->rope_theta);
}

/* The tower's blocks; none is causal. Their vocabulary is the set of patch positions, which index a learned table. */
static dt_err read_blocks(const dt_spec *s, dt_vision_config *v)
{
    const dt_tower *t = v->tower;
    dt_model_config *mc = v->blocks;
    const char *depth = v->grids && !dt_spec_has(s, "num_hidden_layers") ? "depth" : "num_hidden_layers",
               *heads = v->grids && !dt_spec_has(s, "num_attention_heads") ? "num_heads" : "num_attention_heads";
    v->n_blocks = t->n_blocks;
    *mc = (dt_model_config){.family = t->family,
                            .embedding_multiplier = 1,
                            .residual_multiplier = 1,
                            .logits_scaling = 1,
                            .hidden_size = t->hidden_size,
                            .intermediate_size = t->intermediate_size,
                            .num_attention_heads = t->n_heads,
                            .norm_eps = t->norm_eps,
                            .norm_bias = true,
                            .layer_scale = 0.1,
                            .act = (dt_activation)t->act,
                            .initializer_range = 0.02,
                            .qkv_bias = true,
                            .o_bias = true,
                            .mlp_bias = true,
                            .rms_norm = t->gated,
                            .gated_mlp = t->gated,
                            .scale_attn_weights = true,
                            .bos_token_id = -1,
                            .pad_token_id = -1,
                            .rope_type = DT_ROPE_NONE};
    DT_TRY(dt_spec_int(s, depth, 1, 1 << 12, &v->n_blocks));
    DT_TRY(dt_spec_int(s, "hidden_size", 1, 1 << 20, &mc->hidden_size));
    DT_TRY(dt_spec_int(s, "intermediate_size", 1, 1 << 22, &mc->intermediate_size));
    DT_TRY(dt_spec_int(s, heads, 1, 1 << 16, &mc->num_attention_heads));
    DT_TRY(dt_spec_real(s, "initializer_range", 0, 100, &mc->initializer_range));
    DT_TRY(dt_model_read_activation(s, "hidden_act", &mc->act));
    if (v->grids) DT_TRY(read_axial(s, mc));
    if (!v->grids) DT_TRY(dt_spec_real(s, "layer_norm_eps", 0, 1, &mc->norm_eps));
    if (!v->grids) DT_TRY(dt_spec_real(s, "attention_dropout", 0, 0.99, &mc->attn_pdrop));
    DT_CHECK(mc->hidden_size % (mc->num_attention_heads * (v->grids ? 4 : 1)) == 0, s->err,
             "%s: %s.hidden_size: expected %s%s = %" PRId64 ", found %" PRId64, s->file, s->where,
             v->grids ? "heads of a multiple of 4 elements, with " : "a multiple of ", heads, mc->num_attention_heads,
             mc->hidden_size);
    mc->num_key_value_heads = mc->num_attention_heads;
    mc->head_dim = mc->hidden_size / mc->num_attention_heads;
    return DT_OK;
}

/* The patches of an image, after a class token. */
static dt_err count_rows(const dt_spec *s, dt_vision_config *v)
{
    if (v->patch_size > v->image_size) return dt_spec_bad(s, "patch_size", "at most image_size");
    v->n_side = v->image_size / v->patch_size;
    v->n_rows = v->n_side * v->n_side + v->tower->class_row;
    v->blocks->vocab_size = v->blocks->max_position_embeddings = v->n_rows;
    return DT_OK;
}

static dt_err read_image_size(const dt_spec *s, dt_vision_config *v)
{
    DT_TRY(dt_spec_int(s, "image_size", 1, DT_MAX_IMAGE_SIZE, &v->image_size));
    DT_TRY(dt_spec_int(s, "patch_size", 1, v->image_size, &v->patch_size));
    return count_rows(s, v);
}

/* Each size may be plausible while their product is not, as for a language model. Computed in double, which cannot
 * overflow. */
static dt_err check_tower(const dt_spec *s, const dt_vision_config *v)
{
    const double C = (double)v->blocks->hidden_size, F = (double)v->blocks->intermediate_size,
                 P = (double)v->patch_size, n_rows = (double)v->n_rows;
    const double n = (double)v->n_blocks * (4 * C * C + 2 * C * F) + C * (3 * P * P + n_rows);
    DT_CHECK(n <= DT_MAX_PARAMETERS, s->err,
             "%s: %s.hidden_size, intermediate_size, num_hidden_layers, image_size, patch_size: expected at most %.0f "
             "parameters, found about %.3g",
             s->file, s->where, DT_MAX_PARAMETERS, n);
    return DT_OK;
}

static dt_err check_projector(const dt_spec *root, const dt_projector_config *p)
{
    const double in = (double)p->n_in, H = (double)p->hidden_size, out = (double)p->n_out;
    const double n = p->n_layers == 1 ? in * out : in * H + (p->n_layers - 2) * H * H + H * out;
    DT_CHECK(
        n <= DT_MAX_PARAMETERS, root->err,
        "%s: projector_hidden_size, projector_shuffle: expected a projector of at most %.0f parameters, found about "
        "%.3g; the tower's hidden_size is %" PRId64 ", the language model's %" PRId64,
        root->file, DT_MAX_PARAMETERS, n, p->n_in / (p->shuffle * p->shuffle), p->n_out);
    return DT_OK;
}

/* CLIP in transformers has no norm of patch features: its post_layernorm is trained on the class token only. */
static dt_err read_feature_norm(const dt_spec *root, dt_vision_config *v)
{
    DT_TRY(dt_spec_bool(root, "vision_feature_norm", &v->feature_norm));
    DT_CHECK(!v->feature_norm || v->tower->pools, root->err,
             "%s: vision_feature_norm: expected false for CLIP, because only SigLIP has a norm for features "
             "(post_layernorm)",
             root->file);
    DT_CHECK(!v->feature_norm || v->n_used == v->n_blocks, root->err,
             "%s: vision_feature_norm: expected vision_feature_layer -1, because the norm follows the last block, "
             "found hidden state %" PRId64 " of %" PRId64,
             root->file, v->n_used, v->n_blocks);
    return DT_OK;
}

/* A list of layers would mean concatenated features, which are not supported. */
static dt_err read_layer(const dt_spec *root, int64_t L, int64_t *layer)
{
    dt_spec list;
    if (!dt_spec_get(root, "vision_feature_layer", &list) || !json_is_array(list.value))
        return dt_spec_int(root, "vision_feature_layer", -L - 1, L, layer);
    if (json_array_size(list.value) != 1) return dt_spec_bad(&list, NULL, "one hidden state");
    json_t *one = json_pack("{s:O}", "vision_feature_layer", json_array_get(list.value, 0));
    DT_CHECK(one, DT_ERR_MEMORY, "%s: out of memory for vision_feature_layer", root->file);
    const dt_err err = dt_spec_int(&(dt_spec){.file = root->file, .err = root->err, .value = one},
                                   "vision_feature_layer", -L - 1, L, layer);
    json_decref(one);
    return err;
}

/* A tower of L blocks has L + 1 hidden states: the input of the first block and the output of each block. */
static dt_err read_features(const dt_spec *root, dt_vision_config *v, int64_t layer)
{
    const int64_t L = v->n_blocks;
    const char *select = "default";
    DT_TRY(read_layer(root, L, &layer));
    DT_TRY(dt_spec_string(root, "vision_feature_select_strategy", &select));
    if (strcmp(select, "default") != 0 && strcmp(select, "full") != 0)
        return dt_spec_bad(root, "vision_feature_select_strategy", "default or full");
    v->n_used = layer < 0 ? L + 1 + layer : layer;
    v->drop_first = strcmp(select, "default") == 0;
    return read_feature_norm(root, v);
}

static dt_err read_projector_type(const dt_spec *root, dt_projector_type *type)
{
    const char *word = PROJECTORS[DT_PROJECTOR_MLP2X_GELU].name;
    DT_TRY(dt_spec_string(root, "projector_type", &word));
    for (int i = 0; i < DT_PROJECTOR_SHUFFLE_MLP; i++)
        if (strcmp(word, PROJECTORS[i].name) == 0) return *type = (dt_projector_type)i, DT_OK;
    return dt_spec_bad(root, "projector_type", "linear, mlp2x_gelu, mlp, deep_mlp or pixel_shuffle");
}

static dt_err read_image_tokens(const dt_spec *root, dt_vision_config *v)
{
    const char *word = "patch_insert";
    DT_TRY(dt_spec_string(root, "image_tokens", &word));
    if (strcmp(word, "patch_insert") != 0 && strcmp(word, "mean_pooling") != 0)
        return dt_spec_bad(root, "image_tokens", "patch_insert or mean_pooling");
    v->n_tokens = strcmp(word, "mean_pooling") == 0 ? 1 : v->n_features;
    return DT_OK;
}

static dt_err read_projector(const dt_spec *root, dt_vision_config *v, int64_t n_out)
{
    dt_projector_config *p = &v->projector;
    dt_activation act = DT_ACT_GELU;
    DT_TRY(read_features(root, v, -2));
    DT_TRY(read_projector_type(root, &p->type));
    const struct projector *of = &PROJECTORS[p->type];
    *p = (dt_projector_config){.type = p->type,
                               .n_layers = of->n_layers,
                               .n_out = n_out,
                               .hidden_size = of->hidden_size ? of->hidden_size : n_out,
                               .shuffle = of->shuffle,
                               .bias = of->bias,
                               .norm = of->norm,
                               .dropout = of->dropout};
    DT_TRY(dt_spec_int(root, "projector_hidden_size", 1, 1 << 22, &p->hidden_size));
    DT_TRY(dt_spec_real(root, "projector_dropout", 0, 0.99, &p->dropout));
    DT_TRY(dt_spec_bool(root, "multimodal_projector_bias", &p->bias));
    DT_TRY(dt_model_read_activation(root, "projector_hidden_act", &act));
    if (p->type == DT_PROJECTOR_PIXEL_SHUFFLE) {
        DT_TRY(dt_spec_int(root, "projector_shuffle", 1, v->n_side, &p->shuffle));
        DT_CHECK(v->n_side % p->shuffle == 0, root->err,
                 "%s: projector_shuffle: expected a divisor of the %" PRId64 " patches of a side, found %" PRId64,
                 root->file, v->n_side, p->shuffle);
    }
    p->act = act;
    p->n_in = v->blocks->hidden_size * p->shuffle * p->shuffle;
    const int64_t n_rows = v->n_rows - v->drop_first;
    DT_CHECK(p->shuffle == 1 || n_rows == v->n_side * v->n_side, root->err,
             "%s: projector_type: pixel_shuffle needs exactly the features of all patches, but "
             "vision_feature_select_strategy selects %" PRId64 " of %" PRId64 " x %" PRId64,
             root->file, n_rows, v->n_side, v->n_side);
    v->n_features = n_rows / (p->shuffle * p->shuffle);
    DT_CHECK(
        v->n_features > 0, root->err,
        "%s: vision_feature_select_strategy: default selects no features of an image with one patch; expected full",
        root->file);
    return read_image_tokens(root, v);
}

/* p's JSON text is freed; the configuration contains it. */
static void set_preprocessor(dt_vision_config *v, dt_preprocessor *p)
{
    free(p->json);
    p->json = NULL;
    v->preprocessor = *p;
    for (int c = 0; c < 3; c++) {
        v->scale[c] = (float)(p->rescale_factor / p->std[c]);
        v->shift[c] = (float)(-p->mean[c] / p->std[c]);
    }
}

/* The cells of the preprocessor must be those of the tower. */
static dt_err check_cells(const char *name, const dt_vision_config *v, const dt_preprocessor *p)
{
    DT_CHECK(!p->out_width || ((p->patch > 0) == v->grids && (p->max_tiles > 0) == v->tiles), DT_ERR_DATA,
             "%s: image_processor_type: expected %s for the tower %s", name, v->tower->processor, v->tower->name);
    DT_CHECK(!p->patch || (p->patch == v->patch_size && p->merge == v->n_side), DT_ERR_DATA,
             "%s: patch_size, merge_size: expected %" PRId64 " and %" PRId64 " as in vision_config, found %d and %d",
             name, v->patch_size, v->n_side, p->patch, p->merge);
    return DT_OK;
}

static dt_err read_preprocessor(const dt_spec *root, dt_vision_config *v)
{
    dt_preprocessor p = {.rescale_factor = 1 / 255.0};
    dt_spec s;
    dt_preprocessor_usual(v->tower->processor, p.mean, p.std);
    if (dt_spec_get(root, "preprocessor_config", &s)) DT_TRY(dt_preprocessor_from(&s, &p));
    const dt_err err = check_cells(root->file, v, &p);
    set_preprocessor(v, &p);
    return err;
}

dt_err dt_model_config_set_preprocessor(dt_model_config *mc, const char *name, const char *json_text)
{
    dt_preprocessor p = {0};
    json_t *object, *root = NULL;
    DT_TRY(dt_json_parse(&object, name, json_text, strlen(json_text), 0));
    dt_err err = dt_preprocessor_from(&(dt_spec){.file = name, .value = object}, &p);
    if (err == DT_OK) err = check_cells(name, mc->vision, &p);
    if (err == DT_OK) root = json_loads(mc->json, 0, NULL);
    if (root) json_object_set(root, "preprocessor_config", object);
    if (err == DT_OK) err = dt_json_store(&mc->json, name, root);
    if (err == DT_OK) set_preprocessor(mc->vision, &p);
    dt_preprocessor_free(&p);
    json_decref(object);
    json_decref(root);
    return err;
}

static dt_err read_image_token(const dt_spec *root, const dt_model_config *mc, dt_vision_config *v)
{
    const char *key = dt_spec_has(root, "image_token_id") ? "image_token_id" : "image_token_index";
    int64_t id = v->tower->tokens[0];
    DT_TRY(dt_spec_int(root, key, 0, INT32_MAX, &id));
    DT_CHECK(id < mc->vocab_size, root->err, "%s: %s: expected an id below vocab_size = %" PRId64 ", found %" PRId64,
             root->file, key, mc->vocab_size, id);
    v->image_token = (int32_t)id;
    return DT_OK;
}

static dt_err read_around(const dt_spec *root, const dt_model_config *mc, dt_vision_config *v)
{
    static const char *const GRIDS[] = {"vision_start_token_id", "vision_end_token_id"},
                             *const WRAPPED[][2] = {{"boi_token_index", "eoi_token_index"},
                                                    {"boi_token_id", "eoi_token_id"}};
    int64_t ids[] = {v->tower->tokens[1], v->tower->tokens[2]};
    for (int i = 0; i < 2; i++) {
        const char *key = v->wrapped ? WRAPPED[dt_spec_has(root, WRAPPED[1][i])][i] : GRIDS[i];
        DT_TRY(dt_spec_int(root, key, 0, INT32_MAX, &ids[i]));
        DT_CHECK(ids[i] < mc->vocab_size, root->err,
                 "%s: %s: expected an id below vocab_size = %" PRId64 ", found %" PRId64, root->file, key,
                 mc->vocab_size, ids[i]);
        v->around[i] = (int32_t)ids[i];
    }
    return DT_OK;
}

/* The mean of squares of patches, and a norm and a linear layer (Gemma 3). transformers ignores the cap of logits here.
 */
static dt_err read_average(const dt_spec *root, dt_vision_config *v, const dt_model_config *mc)
{
    const int64_t n_out = mc->hidden_size;
    int64_t n = 256, side = 1;
    dt_spec text;
    if (mc->final_softcap > 0 && dt_spec_get(root, "text_config", &text))
        return dt_spec_bad(&text, "final_logit_softcapping", "null");
    DT_TRY(dt_spec_int(root, "mm_tokens_per_image", 1, 1 << 24, &n));
    while (side * side < n) side++;
    DT_CHECK(side * side == n && v->n_side % side == 0, root->err,
             "%s: mm_tokens_per_image: expected the square of a divisor of %" PRId64
             ", the patches along a side of an image, found %" PRId64,
             root->file, v->n_side, n);
    v->projector = (dt_projector_config){.type = DT_PROJECTOR_AVERAGE,
                                         .n_layers = 1,
                                         .n_in = v->blocks->hidden_size,
                                         .hidden_size = n_out,
                                         .n_out = n_out,
                                         .shuffle = 1,
                                         .average = v->n_side / side,
                                         .pre_norm = "mm_soft_emb_norm",
                                         .pre_eps = (float)v->blocks->norm_eps};
    v->n_features = v->n_tokens = n;
    v->n_used = v->n_blocks;
    v->feature_norm = v->both_ways = v->wrapped = true;
    return DT_OK;
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* A side in pixels: an integer, or a list of two equal ones. */
static dt_err read_square(const dt_spec *s, const char *key, int64_t *side)
{
    dt_spec list;
    char expected[64];
    if (!dt_spec_get(s, key, &list) || !json_is_array(list.value))
        return dt_spec_int(s, key, 1, DT_MAX_IMAGE_SIZE, side);
    const json_t *a = json_array_get(list.value, 0), *b = json_array_get(list.value, 1);
    snprintf(expected, sizeof expected, "two equal integers from 1 to %d", DT_MAX_IMAGE_SIZE);
    *side = json_integer_value(a);
    const bool good = json_array_size(list.value) == 2 && json_is_integer(a) && json_is_integer(b) && *side >= 1 &&
                      *side <= DT_MAX_IMAGE_SIZE && json_integer_value(b) == *side;
    return good ? DT_OK : dt_spec_bad(&list, NULL, expected);
}

/* Keys whose other values select an unsupported computation. */
static dt_err refuse_variants(const dt_spec *s)
{
    static const struct {
        const char *key;
        bool value;
    } SWITCHES[] = {{"use_mask_token", false}, {"use_absolute_position_embeddings", true}, {"use_mean_pooling", true}};
    static const char *const DROPOUT[] = {"hidden_dropout_prob", "projection_dropout"};
    for (size_t i = 0; i < sizeof SWITCHES / sizeof SWITCHES[0]; i++) {
        bool is = SWITCHES[i].value;
        DT_TRY(dt_spec_bool(s, SWITCHES[i].key, &is));
        if (is != SWITCHES[i].value) return dt_spec_bad(s, SWITCHES[i].key, SWITCHES[i].value ? "true" : "false");
    }
    for (size_t i = 0; i < sizeof DROPOUT / sizeof DROPOUT[0]; i++) {
        double p = 0;
        DT_TRY(dt_spec_real(s, DROPOUT[i], 0, 1, &p));
        if (p != 0) return dt_spec_bad(s, DROPOUT[i], "0");
    }
    return DT_OK;
}

/* Norms of queries and keys have a fixed eps in transformers. */
static dt_err read_norms(const dt_spec *s, dt_model_config *mc)
{
    const char *type = "layer_norm";
    mc->qkv_bias = false;
    DT_TRY(dt_spec_string(s, "norm_type", &type));
    DT_TRY(dt_spec_bool(s, "attention_bias", &mc->qkv_bias));
    DT_TRY(dt_spec_bool(s, "use_qk_norm", &mc->qk_norm));
    DT_TRY(dt_spec_real(s, "layer_scale_init_value", -1e6, 1e6, &mc->layer_scale));
    mc->rms_norm = strcmp(type, "rms_norm") == 0;
    mc->norm_bias = !mc->rms_norm;
    mc->qk_norm_whole = mc->qk_norm;
    if (!mc->rms_norm && strcmp(type, "layer_norm") != 0) return dt_spec_bad(s, "norm_type", "layer_norm or rms_norm");
    if (mc->qk_norm && mc->norm_eps != 1e-6)
        return dt_spec_bad(s, "layer_norm_eps", "1e-6, as in the norms of queries and keys (use_qk_norm)");
    return refuse_variants(s);
}

/* LayerNorm of f x f concatenated patches, and two layers. */
static dt_err read_shuffle(const dt_spec *root, dt_vision_config *v, int64_t n_out)
{
    double ratio = 0.5;
    dt_activation act = DT_ACT_GELU;
    DT_TRY(read_features(root, v, -1));
    DT_TRY(dt_spec_real(root, "downsample_ratio", 1e-3, 1, &ratio));
    DT_TRY(dt_model_read_activation(root, "projector_hidden_act", &act));
    const int64_t f = (int64_t)(1 / ratio);
    if ((double)f * ratio != 1 || v->n_side % f != 0)
        return dt_spec_bad(root, "downsample_ratio", "1, 0.5 or 0.25, whose inverse divides the patches along a side");
    if (!v->drop_first)
        return dt_spec_bad(root, "vision_feature_select_strategy", "default, because squares have no class token");
    const int64_t n_in = v->blocks->hidden_size * f * f;
    v->projector = (dt_projector_config){.type = DT_PROJECTOR_SHUFFLE_MLP,
                                         .n_layers = PROJECTORS[DT_PROJECTOR_SHUFFLE_MLP].n_layers,
                                         .n_in = n_in,
                                         .hidden_size = n_out,
                                         .n_out = n_out,
                                         .shuffle = f,
                                         .bias = true,
                                         .act = act,
                                         .pre_norm = "layer_norm",
                                         .pre_eps = 1e-5f};
    v->n_features = v->n_tokens = v->n_side / f * (v->n_side / f);
    return DT_OK;
}

static dt_err read_tile_size(const dt_spec *s, dt_vision_config *v)
{
    DT_TRY(read_norms(s, v->blocks));
    DT_TRY(read_square(s, "image_size", &v->image_size));
    DT_TRY(read_square(s, "patch_size", &v->patch_size));
    return count_rows(s, v);
}

/* ---- any kind ---------------------------------------------------------------------------------------------------- */

static dt_err read_sizes(const dt_spec *s, dt_vision_config *v)
{
    int64_t channels = 3;
    v->image_size = v->tower->image_size;
    v->patch_size = v->tower->patch_size;
    if (v->grids) return dt_vision_read_cells(s, v);
    DT_TRY(dt_spec_int(s, "num_channels", 3, 3, &channels));
    return v->tiles ? read_tile_size(s, v) : read_image_size(s, v);
}

static dt_err alloc_vision(dt_model_config *mc)
{
    mc->vision = calloc(1, sizeof *mc->vision);
    DT_CHECK(mc->vision, DT_ERR_MEMORY, "out of memory for the configuration of a tower");
    mc->vision->blocks = calloc(1, sizeof *mc->vision->blocks);
    DT_CHECK(mc->vision->blocks, DT_ERR_MEMORY, "out of memory for the configuration of a tower");
    return DT_OK;
}

dt_err dt_model_read_vision(const dt_spec *root, const dt_tower *tower, dt_model_config *mc)
{
    dt_spec s;
    DT_TRY(alloc_vision(mc));
    dt_vision_config *v = mc->vision;
    DT_TRY(dt_spec_need(root, "vision_config", JSON_OBJECT, &s));
    DT_TRY(read_tower_type(&s, tower, v));
    DT_TRY(read_blocks(&s, v));
    DT_TRY(read_sizes(&s, v));
    DT_TRY(check_tower(&s, v));
    DT_TRY(v->grids             ? dt_vision_read_merger(&s, v, mc)
           : v->tiles           ? read_shuffle(root, v, mc->hidden_size)
           : v->tower->averages ? read_average(root, v, mc)
                                : read_projector(root, v, mc->hidden_size));
    DT_TRY(check_projector(root, &v->projector));
    DT_TRY(read_preprocessor(root, v));
    if (v->grids || v->wrapped) DT_TRY(read_around(root, mc, v));
    return read_image_token(root, mc, v);
}

void dt_vision_config_free(dt_vision_config *v)
{
    if (v && v->blocks) free(v->blocks->layers);
    if (v) free(v->blocks);
    free(v);
}
