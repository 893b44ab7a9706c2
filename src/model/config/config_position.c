/* config_position.c - keys of rotary embedding and of the sliding window, in all their spellings (algorithms.md 8.2,
 * 8.5). */
#include "../families/family.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *dt_rope_name(dt_rope_type type)
{
    static const char *const NAMES[DT_N_ROPE] = {
        [DT_ROPE_NONE] = "none",        [DT_ROPE_DEFAULT] = "default", [DT_ROPE_LINEAR] = "linear",
        [DT_ROPE_DYNAMIC] = "dynamic",  [DT_ROPE_LLAMA3] = "llama3",   [DT_ROPE_YARN] = "yarn",
        [DT_ROPE_LONGROPE] = "longrope"};
    return (unsigned)type < DT_N_ROPE ? NAMES[type] : "";
}

/* axes: rope_axes; such models have the rule mrope in old files, which is no scaling rule. */
static dt_err rope_type_of(const dt_spec *rope, int axes, dt_rope_type *type)
{
    dt_spec v;
    *type = DT_ROPE_DEFAULT;
    if (!dt_spec_get(rope, "rope_type", &v) && !dt_spec_get(rope, "type", &v)) return DT_OK;
    for (int t = DT_ROPE_DEFAULT; t < DT_N_ROPE && json_is_string(v.value); t++) {
        if (strcmp(json_string_value(v.value), dt_rope_name((dt_rope_type)t)) == 0) {
            *type = (dt_rope_type)t;
            return DT_OK;
        }
    }
    if (json_is_string(v.value) && strcmp(json_string_value(v.value), "su") == 0) { /* its first name */
        *type = DT_ROPE_LONGROPE;
        return DT_OK;
    }
    if (axes > 0 && json_is_string(v.value) && strcmp(json_string_value(v.value), "mrope") == 0) return DT_OK;
    return dt_spec_bad(&v, NULL, "default, linear, dynamic, llama3, yarn or longrope");
}

static dt_err need(const dt_spec *root, const char *key, const char *inner, bool given)
{
    DT_CHECK(given, root->err, "%s: %s: expected a value for \"%s\" with this rope_type, found none", root->file, key,
             inner);
    return DT_OK;
}

static dt_err read_partial(const dt_spec *at, dt_model_config *mc)
{
    const double usual = mc->family->missing.partial_rotary_factor;
    DT_TRY(dt_spec_real(at, "partial_rotary_factor", 0, 1, &mc->partial_rotary_factor));
    if (usual == 0 && mc->partial_rotary_factor != 1) return dt_spec_bad(at, "partial_rotary_factor", "1");
    return DT_OK;
}

/* Divisors of the frequencies of longrope, one for each rotated pair. */
static dt_err read_divisors(const dt_spec *rope, const dt_model_config *mc, const char *key, double **out)
{
    dt_spec list;
    if (!dt_spec_get(rope, key, &list)) return DT_OK;
    const size_t n = (size_t)dt_model_rotary_dim(mc) / 2;
    char expected[64];
    snprintf(expected, sizeof expected, "a list of %zu numbers above 0", n);
    if (!json_is_array(list.value) || json_array_size(list.value) != n) return dt_spec_bad(&list, NULL, expected);
    free(*out);
    *out = calloc(n, sizeof **out);
    DT_CHECK(*out, DT_ERR_MEMORY, "%s: out of memory for %s", rope->file, key);
    for (size_t i = 0; i < n; i++) {
        (*out)[i] = json_number_value(json_array_get(list.value, i));
        if (!((*out)[i] > 0)) return dt_spec_bad(&list, NULL, expected);
    }
    return DT_OK;
}

static dt_err read_rope_object(const dt_spec *rope, dt_model_config *mc)
{
    const char *inner;
    json_t *v;
    if (!json_is_object(rope->value)) return dt_spec_bad(rope, NULL, "an object");
    json_object_foreach((json_t *)rope->value, inner, v) /* newer files may have one object per layer type */
        if (json_is_object(v)) return dt_spec_bad(rope, NULL, "one set of rotary parameters for all layers");
    DT_TRY(rope_type_of(rope, mc->rope_axes, &mc->rope_type));
    DT_TRY(dt_spec_real(rope, "rope_theta", 1, 1e30, &mc->rope_theta));
    DT_TRY(read_partial(rope, mc));
    DT_TRY(dt_spec_int(rope, "original_max_position_embeddings", 1, INT32_MAX, &mc->rope_original_max_position));
    DT_TRY(dt_spec_real(rope, "factor", 1e-6, 1e9, &mc->rope_factor));
    DT_TRY(dt_spec_real(rope, "low_freq_factor", 0, 1e9, &mc->rope_low_freq_factor));
    DT_TRY(dt_spec_real(rope, "high_freq_factor", 0, 1e9, &mc->rope_high_freq_factor));
    DT_TRY(dt_spec_real(rope, "beta_fast", 1e-6, 1e9, &mc->rope_beta_fast));
    DT_TRY(dt_spec_real(rope, "beta_slow", 1e-6, 1e9, &mc->rope_beta_slow));
    DT_TRY(dt_spec_real(rope, "attention_factor", 0, 1e9, &mc->rope_attention_factor));
    DT_TRY(dt_spec_real(rope, "mscale", 0, 1e9, &mc->rope_mscale));
    DT_TRY(dt_spec_real(rope, "mscale_all_dim", 0, 1e9, &mc->rope_mscale_all_dim));
    DT_TRY(read_divisors(rope, mc, "short_factor", &mc->rope_short));
    DT_TRY(read_divisors(rope, mc, "long_factor", &mc->rope_long));
    return dt_spec_bool(rope, "truncate", &mc->rope_truncate);
}

/* One object for each type of layer. Layers with a window have a base of their own, and no scaling rule. */
static dt_err read_rope_by_layer(const dt_spec *rope, dt_model_config *mc)
{
    dt_spec full, local;
    dt_rope_type type;
    const bool has_full = json_is_object(rope->value) && dt_spec_get(rope, "full_attention", &full),
               has_local = json_is_object(rope->value) && dt_spec_get(rope, "sliding_attention", &local);
    if (!has_full && !has_local) return dt_spec_bad(rope, NULL, "objects full_attention and sliding_attention");
    if (has_full) DT_TRY(read_rope_object(&full, mc));
    if (!has_local) return DT_OK;
    if (!json_is_object(local.value)) return dt_spec_bad(&local, NULL, "an object");
    DT_TRY(rope_type_of(&local, 0, &type));
    if (type != DT_ROPE_DEFAULT) return dt_spec_bad(&local, "rope_type", "default");
    return dt_spec_real(&local, "rope_theta", 1, 1e30, &mc->rope_local_theta);
}

/* The older key overrides the newer one, as in transformers. */
bool dt_model_rope_object(const dt_spec *root, dt_spec *rope)
{
    dt_spec scaling;
    const bool scales = dt_spec_get(root, "rope_scaling", &scaling) &&
                        !(json_is_object(scaling.value) && json_object_size(scaling.value) == 0);
    if (scales) *rope = scaling;
    return scales || dt_spec_get(root, "rope_parameters", rope);
}

static dt_err check_rotary_dim(const dt_spec *root, const dt_model_config *mc)
{
    const int64_t rotary = dt_model_rotary_dim(mc);
    if (mc->partial_rotary_factor == 1) {
        DT_CHECK(rotary % 2 == 0, root->err, "%s: head_dim: expected an even number (rotary embedding), found %" PRId64,
                 root->file, mc->head_dim);
    } else {
        DT_CHECK(
            rotary > 0 && rotary % 2 == 0, root->err,
            "%s: partial_rotary_factor: expected an even number of rotated elements, found %g of head_dim=%" PRId64,
            root->file, mc->partial_rotary_factor, mc->head_dim);
    }
    return DT_OK;
}

dt_err dt_model_read_rope(const dt_spec *root, dt_model_config *mc)
{
    dt_spec rope, used;
    const bool has_rope = dt_spec_get(root, "rope_parameters", &rope), has_any = dt_model_rope_object(root, &used),
               scales = has_any && strcmp(used.where, "rope_scaling") == 0;
    const char *key = scales ? "rope_scaling" : "rope_parameters";
    const double usual = mc->family->missing.partial_rotary_factor;
    int64_t original = mc->family->missing.original_max_position_embeddings;
    const bool first = original > 0; /* the key has priority over that in the object */
    mc->rope_type = DT_ROPE_DEFAULT;
    const double theta = mc->family->missing.rope_theta;
    mc->rope_theta = theta > 0 ? theta : 10000;
    mc->rope_local_theta = mc->family->missing.rope_local_theta;
    mc->rope_factor = mc->rope_low_freq_factor = mc->rope_high_freq_factor = 0;
    mc->rope_beta_fast = 32;
    mc->rope_beta_slow = 1;
    mc->rope_truncate = true;
    mc->rope_original_max_position = mc->max_position_embeddings;
    DT_TRY(dt_spec_real(root, "rope_theta", 1, 1e30, &mc->rope_theta));
    mc->partial_rotary_factor = usual > 0 ? usual : 1;
    DT_TRY(read_partial(root, mc));
    DT_TRY(dt_spec_int(root, "original_max_position_embeddings", 1, INT32_MAX, &original));
    if (original > 0) mc->rope_original_max_position = original;
    const bool local = mc->rope_local_theta > 0;
    if (local) DT_TRY(dt_spec_real(root, "rope_local_base_freq", 1, 1e30, &mc->rope_local_theta));
    if (has_rope && local) DT_TRY(read_rope_by_layer(&rope, mc));
    if (has_rope && !local && !scales) DT_TRY(read_rope_object(&rope, mc));
    if (scales) DT_TRY(read_rope_object(&used, mc));
    if (first) mc->rope_original_max_position = original;
    DT_TRY(check_rotary_dim(root, mc));
    if (local && dt_model_rope_constant_length(mc) < INT64_MAX)
        return dt_spec_bad(root, key,
                           "another rope_type than dynamic and longrope, because layers with a window have a base of "
                           "their own");

    switch (mc->rope_type) {
    case DT_ROPE_LLAMA3:
        DT_TRY(need(root, key, "low_freq_factor", mc->rope_low_freq_factor > 0));
        DT_TRY(need(root, key, "high_freq_factor", mc->rope_high_freq_factor > 0));
        DT_CHECK(mc->rope_high_freq_factor > mc->rope_low_freq_factor, root->err,
                 "%s: %s: expected high_freq_factor above low_freq_factor, found %g and %g", root->file, key,
                 mc->rope_high_freq_factor, mc->rope_low_freq_factor);
        return need(root, key, "factor", mc->rope_factor > 0);
    case DT_ROPE_YARN:
        if (mc->rope_factor <= 0)
            mc->rope_factor = (double)mc->max_position_embeddings / (double)mc->rope_original_max_position;
        DT_CHECK(mc->rope_theta > 1, root->err, "%s: rope_theta: expected more than 1 with yarn, found %g", root->file,
                 mc->rope_theta);
        return DT_OK;
    case DT_ROPE_LINEAR:
        return need(root, key, "factor", mc->rope_factor > 0);
    case DT_ROPE_DYNAMIC:
        DT_CHECK(dt_model_rotary_dim(mc) > 2, root->err,
                 "%s: head_dim: expected more than 2 with dynamic rotary embedding", root->file);
        return need(root, key, "factor", mc->rope_factor >= 1);
    case DT_ROPE_LONGROPE:
        DT_TRY(need(root, key, "short_factor", mc->rope_short != NULL));
        DT_CHECK(mc->rope_original_max_position > 1, root->err,
                 "%s: original_max_position_embeddings: expected more than 1 with longrope, found %" PRId64, root->file,
                 mc->rope_original_max_position);
        return need(root, key, "long_factor", mc->rope_long != NULL);
    default:
        return DT_OK;
    }
}

dt_err dt_model_read_layer_types(const dt_spec *root, dt_model_config *mc, bool linear)
{
    const char *other = linear ? "linear_attention" : "sliding_attention";
    dt_spec list;
    char expected[96];
    if (!dt_spec_get(root, "layer_types", &list)) return DT_OK;
    snprintf(expected, sizeof expected, "a list of %" PRId64 " words, full_attention or %s", mc->num_hidden_layers,
             other);
    if (!json_is_array(list.value) || (int64_t)json_array_size(list.value) != mc->num_hidden_layers)
        return dt_spec_bad(&list, NULL, expected);
    for (int64_t i = 0; i < mc->num_hidden_layers; i++) {
        const char *word = json_string_value(json_array_get(list.value, (size_t)i));
        const bool is = word && strcmp(word, other) == 0;
        if (!is && (!word || strcmp(word, "full_attention") != 0)) return dt_spec_bad(&list, NULL, expected);
        *(linear ? &mc->layers[i].linear : &mc->layers[i].slides) = is;
    }
    return DT_OK;
}

dt_err dt_model_read_window(const dt_spec *root, dt_model_config *mc, bool use)
{
    const bool listed = dt_spec_has(root, "layer_types");
    int64_t window = mc->sliding_window > 0 ? mc->sliding_window : 4096;
    bool any = false;
    if (json_is_null(json_object_get(root->value, "sliding_window"))) use = false;
    if (use) DT_TRY(dt_spec_int(root, "sliding_window", 1, INT32_MAX, &window));
    DT_TRY(dt_model_read_layer_types(root, mc, false));
    for (int64_t i = 0; i < mc->num_hidden_layers; i++) {
        if (!listed && !use) mc->layers[i].slides = false;
        any = any || mc->layers[i].slides;
    }
    if (any && !use)
        return dt_spec_bad(root, "layer_types", "full_attention only, because no sliding window is in use");
    mc->sliding_window = any ? window : 0;
    return DT_OK;
}
