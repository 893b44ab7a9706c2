/* config_position.c - the keys of rotary embedding and of the sliding window, which have the most spellings
 * (algorithms.md 8.2, 8.5). */
#include "config_private.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *dt_rope_name(dt_rope_type type)
{
    static const char *const NAMES[DT_N_ROPE] = {
        [DT_ROPE_NONE] = "none",       [DT_ROPE_DEFAULT] = "default", [DT_ROPE_LINEAR] = "linear",
        [DT_ROPE_DYNAMIC] = "dynamic", [DT_ROPE_LLAMA3] = "llama3",   [DT_ROPE_YARN] = "yarn"};
    return (unsigned)type < DT_N_ROPE ? NAMES[type] : "";
}

static dt_err rope_type_of(const reader *r, const char *key, const json_t *rope, dt_rope_type *type)
{
    const json_t *v = dt_json_get(rope, "rope_type");
    if (!v) v = dt_json_get(rope, "type");
    *type = DT_ROPE_DEFAULT;
    if (!v) return DT_OK;
    for (int t = DT_ROPE_DEFAULT; t < DT_N_ROPE && json_is_string(v); t++) {
        if (strcmp(json_string_value(v), dt_rope_name((dt_rope_type)t)) == 0) {
            *type = (dt_rope_type)t;
            return DT_OK;
        }
    }
    char what[64];
    snprintf(what, sizeof what, "%s.rope_type", key);
    return dt_json_bad(r, what, v, "default, linear, dynamic, llama3 or yarn");
}

static dt_err need(const reader *r, const char *key, const char *inner, bool given)
{
    DT_CHECK(given, r->err, "%s: %s: expected a value for \"%s\" with this rope_type, found none", r->name, key, inner);
    return DT_OK;
}

static dt_err read_rope_object(const reader *r, const char *key, const json_t *rope, dt_model_config *mc)
{
    const char *inner;
    json_t *v;
    if (!json_is_object(rope)) return dt_json_bad(r, key, rope, "an object");
    json_object_foreach((json_t *)rope, inner, v) /* newer files may have one object per kind of layer */
        if (json_is_object(v)) return dt_json_bad(r, key, rope, "one set of rotary parameters for all layers");
    DT_TRY(rope_type_of(r, key, rope, &mc->rope_type));
    DT_TRY(dt_json_real(r, rope, "rope_theta", 1, 1e30, &mc->rope_theta));
    double partial = 1;
    DT_TRY(dt_json_real(r, rope, "partial_rotary_factor", 0, 1, &partial));
    if (partial != 1) return dt_json_bad(r, "partial_rotary_factor", dt_json_get(rope, "partial_rotary_factor"), "1");
    DT_TRY(dt_json_int(r, rope, "original_max_position_embeddings", 1, INT32_MAX, &mc->rope_original_max_position));
    DT_TRY(dt_json_real(r, rope, "factor", 1e-6, 1e9, &mc->rope_factor));
    DT_TRY(dt_json_real(r, rope, "low_freq_factor", 0, 1e9, &mc->rope_low_freq_factor));
    DT_TRY(dt_json_real(r, rope, "high_freq_factor", 0, 1e9, &mc->rope_high_freq_factor));
    DT_TRY(dt_json_real(r, rope, "beta_fast", 1e-6, 1e9, &mc->rope_beta_fast));
    DT_TRY(dt_json_real(r, rope, "beta_slow", 1e-6, 1e9, &mc->rope_beta_slow));
    DT_TRY(dt_json_real(r, rope, "attention_factor", 0, 1e9, &mc->rope_attention_factor));
    DT_TRY(dt_json_real(r, rope, "mscale", 0, 1e9, &mc->rope_mscale));
    DT_TRY(dt_json_real(r, rope, "mscale_all_dim", 0, 1e9, &mc->rope_mscale_all_dim));
    return dt_json_bool(r, rope, "truncate", &mc->rope_truncate);
}

dt_err dt_model_read_rope(const reader *r, const json_t *root, dt_model_config *mc)
{
    const char *key = dt_json_get(root, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    const json_t *rope = dt_json_get(root, key);
    mc->rope_type = DT_ROPE_DEFAULT;
    mc->rope_theta = 10000;
    mc->rope_factor = mc->rope_low_freq_factor = mc->rope_high_freq_factor = 0;
    mc->rope_beta_fast = 32;
    mc->rope_beta_slow = 1;
    mc->rope_truncate = true;
    mc->rope_original_max_position = mc->max_position_embeddings;
    DT_TRY(dt_json_real(r, root, "rope_theta", 1, 1e30, &mc->rope_theta));
    DT_TRY(dt_json_int(r, root, "original_max_position_embeddings", 1, INT32_MAX, &mc->rope_original_max_position));
    if (rope) DT_TRY(read_rope_object(r, key, rope, mc));

    switch (mc->rope_type) {
    case DT_ROPE_LLAMA3:
        DT_TRY(need(r, key, "low_freq_factor", mc->rope_low_freq_factor > 0));
        DT_TRY(need(r, key, "high_freq_factor", mc->rope_high_freq_factor > 0));
        DT_CHECK(mc->rope_high_freq_factor > mc->rope_low_freq_factor, r->err,
                 "%s: %s: expected high_freq_factor above low_freq_factor, found %g and %g", r->name, key,
                 mc->rope_high_freq_factor, mc->rope_low_freq_factor);
        return need(r, key, "factor", mc->rope_factor > 0);
    case DT_ROPE_YARN:
        if (mc->rope_factor <= 0)
            mc->rope_factor = (double)mc->max_position_embeddings / (double)mc->rope_original_max_position;
        DT_CHECK(mc->rope_theta > 1, r->err, "%s: rope_theta: expected more than 1 with yarn, found %g", r->name,
                 mc->rope_theta);
        return DT_OK;
    case DT_ROPE_LINEAR:
        return need(r, key, "factor", mc->rope_factor > 0);
    case DT_ROPE_DYNAMIC:
        DT_CHECK(mc->head_dim > 2, r->err, "%s: head_dim: expected more than 2 with dynamic rotary embedding", r->name);
        return need(r, key, "factor", mc->rope_factor >= 1);
    default:
        return DT_OK;
    }
}

static dt_err read_layer_types(const reader *r, const json_t *list, dt_model_config *mc)
{
    char expected[96];
    snprintf(expected, sizeof expected, "a list of %" PRId64 " words, full_attention or sliding_attention",
             mc->num_hidden_layers);
    if (!json_is_array(list) || (int64_t)json_array_size(list) != mc->num_hidden_layers)
        return dt_json_bad(r, "layer_types", list, expected);
    for (int64_t i = 0; i < mc->num_hidden_layers; i++) {
        const char *word = json_string_value(json_array_get(list, (size_t)i));
        const bool slides = word && strcmp(word, "sliding_attention") == 0;
        if (!slides && (!word || strcmp(word, "full_attention") != 0))
            return dt_json_bad(r, "layer_types", list, expected);
        mc->sliding[i] = slides;
    }
    return DT_OK;
}

/* Which blocks use the window: layer_types when given; else all (Mistral), or those from max_window_layers on (Qwen,
 * when use_sliding_window). Llama has none: its files may carry the keys of a relative, but a block that asks to slide
 * is an error. */
static dt_err fill_window(const reader *r, const json_t *root, dt_model_config *mc)
{
    const json_t *list = dt_json_get(root, "layer_types");
    const bool qwen = mc->family == DT_QWEN2 || mc->family == DT_QWEN3;
    bool use = mc->family == DT_MISTRAL;
    int64_t window = 4096, first = qwen ? 28 : 0;
    if (qwen) DT_TRY(dt_json_bool(r, root, "use_sliding_window", &use));
    if (qwen) DT_TRY(dt_json_int(r, root, "max_window_layers", 0, INT32_MAX, &first));
    if (json_is_null(json_object_get(root, "sliding_window"))) use = false;
    if (use) DT_TRY(dt_json_int(r, root, "sliding_window", 1, INT32_MAX, &window));

    bool any = false;
    if (list) DT_TRY(read_layer_types(r, list, mc));
    for (int64_t i = 0; i < mc->num_hidden_layers; i++) {
        if (!list) mc->sliding[i] = use && i >= first;
        any = any || mc->sliding[i];
    }
    if (any && !use)
        return dt_json_bad(r, "layer_types", list, "full_attention only, because no sliding window is in use");
    mc->sliding_window = any ? window : 0;
    return DT_OK;
}

dt_err dt_model_read_window(const reader *r, const json_t *root, dt_model_config *mc)
{
    mc->sliding = calloc((size_t)mc->num_hidden_layers, sizeof *mc->sliding);
    DT_CHECK(mc->sliding, DT_ERR_MEMORY, "%s: no memory for %" PRId64 " layers", r->name, mc->num_hidden_layers);
    const dt_err err = fill_window(r, root, mc);
    if (err == DT_OK && mc->sliding_window > 0) return DT_OK;
    free(mc->sliding);
    mc->sliding = NULL;
    return err;
}
