/* ministral3.c - Ministral 3: Mistral whose queries grow with their position. */
#include "llama.h"

/* The rule if config.json has none. transformers then ignores rope_theta. */
static dt_err usual_rule(const dt_spec *root, dt_model_config *mc)
{
    if (dt_spec_has(root, "rope_theta"))
        return dt_spec_bad(root, "rope_theta", "rope_scaling or rope_parameters next to it, or none of them");
    mc->rope_type = DT_ROPE_YARN;
    mc->rope_theta = 1e6;
    mc->rope_factor = 16;
    mc->rope_original_max_position = 16384;
    mc->rope_mscale = mc->rope_mscale_all_dim = 1;
    mc->q_scaling_beta = 0.1;
    return DT_OK;
}

/* The table of queries has one row per position, so the rule may not depend on the length. */
static dt_err read(const dt_spec *root, dt_model_config *mc)
{
    dt_spec rope;
    DT_TRY(dt_llama_read(root, mc));
    if (dt_model_rope_object(root, &rope)) {
        DT_TRY(dt_spec_real(&rope, "llama_4_scaling_beta", 0, 1e9, &mc->q_scaling_beta));
        if (mc->q_scaling_beta > 0 && dt_model_rope_constant_length(mc) < INT64_MAX)
            return dt_spec_bad(&rope, "rope_type", "a rule that does not depend on the length");
    } else {
        DT_TRY(usual_rule(root, mc));
    }
    for (int64_t i = 0; i < mc->num_hidden_layers; i++) mc->layers[i].slides = true;
    return dt_model_read_window(root, mc, dt_spec_has(root, "sliding_window"));
}

const dt_family dt_family_ministral3 = {
    .name = {"ministral3", "Ministral3ForCausalLM", "Ministral3ForSequenceClassification", "mistral3"},
    .missing = {4096, 34, 32, 8, 128, 14336, 131072, 262144, 1e-5, 1, 2, 11},
    .multimodal_tied = true,
    LLAMA_TABLES,
    .keys = ROTARY_KEYS "sliding_window",
    .read = read};
