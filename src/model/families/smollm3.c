/* smollm3.c - SmolLM3: Llama with layers whose queries and keys are not rotated. A sliding window applies to these
 * layers only. */
#include "llama.h"
#include <inttypes.h>

/* no_rope_layers has a 0 for each such layer. By default every no_rope_layer_interval-th layer is one. */
static dt_err read_rotation(const dt_spec *root, dt_model_config *mc)
{
    dt_spec list;
    int64_t interval = 4;
    const int64_t L = mc->num_hidden_layers;
    const bool listed = dt_spec_get(root, "no_rope_layers", &list);
    DT_TRY(dt_spec_int(root, "no_rope_layer_interval", 1, INT32_MAX, &interval));
    if (listed && (!json_is_array(list.value) || (int64_t)json_array_size(list.value) < L))
        return dt_spec_bad(&list, NULL, "a list with a 0 or 1 for each layer");
    for (int64_t i = 0; i < L; i++) {
        const json_t *v = listed ? json_array_get(list.value, (size_t)i) : NULL;
        if (listed && !json_is_integer(v)) return dt_spec_bad(&list, NULL, "a list with a 0 or 1 for each layer");
        mc->layers[i].unrotated = listed ? json_integer_value(v) == 0 : (i + 1) % interval == 0;
    }
    return DT_OK;
}

static dt_err read(const dt_spec *root, dt_model_config *mc)
{
    bool slides = false;
    mc->tie_word_embeddings = true;
    DT_TRY(dt_llama_read(root, mc));
    DT_TRY(read_rotation(root, mc));
    DT_TRY(dt_spec_bool(root, "use_sliding_window", &slides));
    slides = slides && dt_spec_has(root, "sliding_window");
    for (int64_t i = 0; i < mc->num_hidden_layers; i++) mc->layers[i].slides = mc->layers[i].unrotated;
    return dt_model_read_window(root, mc, slides);
}

const dt_family dt_family_smollm3 = {
    .name = {"smollm3", "SmolLM3ForCausalLM", "SmolLM3ForSequenceClassification"},
    .missing = {2048, 36, 16, 4, 0, 11008, 128256, 32768, 1e-6, 128000, 128001, 128004, .rope_theta = 2000000},
    LLAMA_TABLES,
    .keys = ROTARY_KEYS "sliding_window, attention_bias, mlp_bias",
    .read = read};
