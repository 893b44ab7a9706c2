/* config_grids.c - models whose images have their native resolution (Qwen-VL): sizes of the tower, its windows, table
 * of positions and deepstack, the merger, and the axes of rotary positions. */
#include "model_config.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static dt_err read_list(const dt_spec *s, const char *key, int64_t hi, int max, int64_t *out, int *n)
{
    dt_spec list;
    char expected[96];
    if (!dt_spec_get(s, key, &list)) return DT_OK;
    snprintf(expected, sizeof expected, "a list of at most %d different integers from 0 to %" PRId64, max, hi);
    if (!json_is_array(list.value) || json_array_size(list.value) > (size_t)max)
        return dt_spec_bad(&list, NULL, expected);
    *n = (int)json_array_size(list.value);
    for (int i = 0; i < *n; i++) {
        const json_t *item = json_array_get(list.value, (size_t)i);
        out[i] = json_integer_value(item);
        bool bad = !json_is_integer(item) || out[i] < 0 || out[i] > hi;
        for (int k = 0; k < i; k++) bad = bad || out[k] == out[i];
        if (bad) return dt_spec_bad(&list, NULL, expected);
    }
    return DT_OK;
}

dt_err dt_model_read_axes(const dt_spec *text, const dt_tower *tower, dt_model_config *mc)
{
    const int64_t n_pairs = dt_model_rotary_dim(mc) / 2;
    dt_spec rope, list;
    memcpy(mc->mrope_section, tower->sections, sizeof mc->mrope_section);
    mc->mrope_interleaved = tower->interleaved;
    if (dt_model_rope_constant_length(mc) < INT64_MAX)
        return dt_spec_bad(
            text, dt_spec_has(text, "rope_scaling") ? "rope_scaling" : "rope_parameters",
            "another rope_type than dynamic and longrope, because positions of images have several axes");
    if (dt_model_rope_object(text, &rope) && dt_spec_get(&rope, "mrope_section", &list)) {
        for (int i = 0; i < 3; i++) {
            const json_t *item = json_array_get(list.value, (size_t)i);
            mc->mrope_section[i] = json_is_integer(item) ? json_integer_value(item) : -1;
            if (mc->mrope_section[i] < 0 || mc->mrope_section[i] > n_pairs || json_array_size(list.value) != 3)
                return dt_spec_bad(&list, NULL, "three numbers of rotated pairs: time, row and column");
        }
    }
    const int64_t *n = mc->mrope_section;
    DT_CHECK(n[0] + n[1] + n[2] == n_pairs, text->err,
             "%s: mrope_section: expected three numbers with the sum %" PRId64 ", the rotated pairs of a head, found "
             "%" PRId64 ", %" PRId64 " and %" PRId64,
             text->file, n_pairs, n[0], n[1], n[2]);
    return DT_OK;
}

/* Positions of texts have one axis. Rotary keys of older files, which all versions of transformers read. */
static void put_plain_rope(const dt_spec *text, const dt_model_config *mc, json_t *own)
{
    static const char *const NOT_SCALING[] = {"mrope_section", "mrope_interleaved", "rope_theta", "type"};
    dt_spec rope;
    json_t *scaling = dt_model_rope_object(text, &rope) ? json_copy((json_t *)rope.value) : NULL;
    for (size_t i = 0; i < sizeof NOT_SCALING / sizeof NOT_SCALING[0]; i++) json_object_del(scaling, NOT_SCALING[i]);
    json_object_set_new(scaling, "rope_type", json_string(dt_rope_name(mc->rope_type)));
    json_object_del(own, "rope_parameters");
    json_object_del(own, "rope_scaling");
    if (mc->rope_type != DT_ROPE_DEFAULT) json_object_set(own, "rope_scaling", scaling);
    json_object_set_new(own, "rope_theta", json_real(mc->rope_theta));
    json_decref(scaling);
}

/* Old files have the keys of the language model next to those of images. */
dt_err dt_model_plain_text(const dt_spec *text, const dt_model_config *mc, json_t **own)
{
    static const char *const OF_IMAGES[] = {"vision_config",         "image_token_id",      "video_token_id",
                                            "vision_start_token_id", "vision_end_token_id", "vision_token_id"};
    json_t *to = *own = json_copy((json_t *)text->value),
           *usual =
               json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "hidden_size", (json_int_t)mc->hidden_size,
                         "intermediate_size", (json_int_t)mc->intermediate_size, "num_hidden_layers",
                         (json_int_t)mc->num_hidden_layers, "num_attention_heads", (json_int_t)mc->num_attention_heads,
                         "num_key_value_heads", (json_int_t)mc->num_key_value_heads, "head_dim",
                         (json_int_t)mc->head_dim, "vocab_size", (json_int_t)mc->vocab_size, "max_position_embeddings",
                         (json_int_t)mc->max_position_embeddings, "rms_norm_eps", mc->norm_eps),
           *experts = json_pack("{s:I, s:I, s:I, s:b}", "num_experts", (json_int_t)mc->num_experts,
                                "num_experts_per_tok", (json_int_t)mc->num_experts_per_tok, "moe_intermediate_size",
                                (json_int_t)mc->moe_intermediate_size, "norm_topk_prob", mc->norm_topk_prob);
    for (size_t i = 0; i < sizeof OF_IMAGES / sizeof OF_IMAGES[0]; i++) json_object_del(to, OF_IMAGES[i]);
    const bool all = to && usual && experts && json_object_update_missing(to, usual) == 0;
    if (all && mc->bos_token_id >= 0 && !json_object_get(to, "bos_token_id"))
        json_object_set_new(to, "bos_token_id", json_integer(mc->bos_token_id));
    if (all && mc->n_eos > 0 && !json_object_get(to, "eos_token_id"))
        json_object_set_new(to, "eos_token_id", json_integer(mc->eos_token_id[0]));
    if (all) put_plain_rope(text, mc, to);
    json_object_del(to, "num_local_experts");
    if (mc->num_experts > 0) json_object_update(to, experts);
    json_object_set_new(to, "tie_word_embeddings", json_boolean(mc->tie_word_embeddings));
    json_decref(usual);
    json_decref(experts);
    DT_CHECK(all, DT_ERR_MEMORY, "%s: out of memory for text_config", text->file);
    return DT_OK;
}

/* An image of the tower is a cell of spatial_merge_size x spatial_merge_size patches. */
static dt_err read_native_sizes(const dt_spec *s, dt_vision_config *v)
{
    int64_t channels = 3, merge = 2;
    v->n_frames = 2;
    DT_TRY(dt_spec_int(s, "in_channels", 3, 3, &channels));
    DT_TRY(dt_spec_int(s, "in_chans", 3, 3, &channels));
    DT_TRY(dt_spec_int(s, "patch_size", 1, DT_MAX_IMAGE_SIZE / 8, &v->patch_size));
    DT_TRY(dt_spec_int(s, "spatial_merge_size", 1, 8, &merge));
    DT_TRY(dt_spec_int(s, "temporal_patch_size", 1, 8, &v->n_frames));
    v->n_side = merge;
    v->image_size = merge * v->patch_size;
    v->n_rows = merge * merge;
    return DT_OK;
}

static dt_err read_windows(const dt_spec *s, dt_vision_config *v)
{
    enum { MAX_FULL = 256 };
    int64_t side = v->tower->window_size, full[MAX_FULL];
    int n_full = sizeof v->tower->full_blocks / sizeof v->tower->full_blocks[0];
    if (side == 0) return DT_OK;
    memcpy(full, v->tower->full_blocks, sizeof v->tower->full_blocks);
    DT_TRY(dt_spec_int(s, "window_size", v->image_size, 1 << 20, &side));
    v->window = side / v->n_side / v->patch_size; /* in this order, as in transformers */
    DT_TRY(read_list(s, "fullatt_block_indexes", INT32_MAX, MAX_FULL, full, &n_full));
    v->blocks->layers = calloc((size_t)v->n_blocks, sizeof *v->blocks->layers);
    DT_CHECK(v->blocks->layers, DT_ERR_MEMORY, "%s: out of memory for %" PRId64 " layers", s->file, v->n_blocks);
    for (int64_t i = 0; i < v->n_blocks; i++) v->blocks->layers[i].windowed = true;
    for (int i = 0; i < n_full; i++)
        if (full[i] < v->n_blocks) v->blocks->layers[full[i]].windowed = false;
    return DT_OK;
}

/* The table of positions is a square. */
static dt_err read_table(const dt_spec *s, dt_vision_config *v)
{
    int64_t n = 2304, side = 1;
    v->blocks->vocab_size = 1;
    if (!v->tower->interpolates) return DT_OK;
    DT_TRY(dt_spec_int(s, "num_position_embeddings", 1, 1 << 24, &n));
    while (side * side < n) side++;
    if (side * side != n) return dt_spec_bad(s, "num_position_embeddings", "the square of an integer");
    v->table_side = side;
    v->blocks->vocab_size = n;
    return DT_OK;
}

static dt_err read_deepstack(const dt_spec *s, dt_vision_config *v, const dt_model_config *mc)
{
    const int64_t *usual = v->tower->deepstack;
    if (usual[0] < 0) return DT_OK;
    v->n_deepstack = sizeof v->tower->deepstack / sizeof usual[0];
    memcpy(v->deepstack, usual, sizeof v->tower->deepstack);
    DT_TRY(read_list(s, "deepstack_visual_indexes", v->n_blocks - 1, DT_MAX_DEEPSTACK, v->deepstack, &v->n_deepstack));
    bool fits = v->n_deepstack <= mc->num_hidden_layers;
    for (int k = 0; k < v->n_deepstack; k++)
        fits = fits && v->deepstack[k] < v->n_blocks && (k == 0 || v->deepstack[k - 1] < v->deepstack[k]);
    if (!fits)
        return dt_spec_bad(s, "deepstack_visual_indexes",
                           "ascending numbers of blocks of the tower, at most as many as the language model's layers");
    return DT_OK;
}

/* The merger. Its norm is that after the last block. The norm of a projector of deepstack follows the merging. */
dt_err dt_vision_read_merger(const dt_spec *s, dt_vision_config *v, const dt_model_config *mc)
{
    const int64_t n_out = mc->hidden_size, n_in = v->blocks->hidden_size * v->n_rows;
    int64_t out = n_out;
    DT_TRY(read_deepstack(s, v, mc));
    DT_TRY(dt_spec_int(s, "out_hidden_size", 1, 1 << 24, &out));
    DT_CHECK(out == n_out, s->err,
             "%s: %s.out_hidden_size: expected the language model's hidden_size %" PRId64 ", found %" PRId64, s->file,
             s->where, n_out, out);
    v->projector = (dt_projector_config){.type = DT_PROJECTOR_MLP2X_GELU,
                                         .n_layers = 2,
                                         .n_in = n_in,
                                         .hidden_size = n_in,
                                         .n_out = n_out,
                                         .shuffle = v->n_side,
                                         .bias = true,
                                         .act = DT_ACT_GELU};
    v->deep_projector = v->projector;
    v->deep_projector.pre_norm = "norm";
    v->deep_projector.pre_eps = 1e-6f;
    v->n_features = v->n_tokens = 1;
    v->n_used = v->n_blocks;
    v->feature_norm = true;
    return DT_OK;
}

dt_err dt_vision_read_cells(const dt_spec *s, dt_vision_config *v)
{
    DT_TRY(read_native_sizes(s, v));
    DT_TRY(read_windows(s, v));
    return read_table(s, v);
}
