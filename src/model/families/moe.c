/* moe.c - Qwen2-MoE, Qwen3-MoE and Mixtral: as Qwen2, Qwen3 and Mistral, with mixtures of experts instead of MLPs, in
 * all layers or in some. Qwen2-MoE adds a shared expert with a gate. Files name each expert's matrices, or contain
 * those of all experts of a layer as one tensor. */
#include "moe.h"
#include <inttypes.h>

/* Sizes of the mixtures. Files have one of two names for the number of experts. */
dt_err dt_moe_read_experts(const dt_spec *root, dt_model_config *mc, int64_t n, int64_t n_used)
{
    const char *key = dt_spec_has(root, "num_local_experts") ? "num_local_experts" : "num_experts";
    bool balanced = false;
    double coef = 0.001;
    mc->num_experts = n, mc->num_experts_per_tok = n_used;
    DT_TRY(dt_spec_int(root, key, 1, DT_MAX_EXPERTS, &mc->num_experts));
    DT_TRY(dt_spec_int(root, "num_experts_per_tok", 1, mc->num_experts, &mc->num_experts_per_tok));
    DT_CHECK(mc->num_experts_per_tok <= mc->num_experts, root->err,
             "%s: num_experts_per_tok: expected at most %s=%" PRId64 ", found %" PRId64, root->file, key,
             mc->num_experts, mc->num_experts_per_tok);
    DT_TRY(dt_spec_int(root, "moe_intermediate_size", 1, 1 << 24, &mc->moe_intermediate_size));
    DT_TRY(dt_spec_bool(root, "output_router_logits", &balanced));
    DT_TRY(dt_spec_real(root, "router_aux_loss_coef", 0, 1e6, &coef));
    mc->router_aux_loss_coef = balanced ? coef : 0; /* as in transformers */
    return DT_OK;
}

dt_err dt_moe_read_shared(const dt_spec *root, dt_model_config *mc)
{
    return dt_spec_int(root, "shared_expert_intermediate_size", 1, 1 << 24, &mc->shared_expert_intermediate_size);
}

/* ---- Qwen3-MoE --------------------------------------------------------------------------------------------------- */

static const struct module QWEN3_BLOCK[MAX_MODULES] = {LLAMA_ROWS(DENSE), EXPERT_ROWS};

/* Layers with experts: every decoder_sparse_step-th, except those in mlp_only_layers. */
dt_err dt_moe_choose_sparse(const dt_spec *root, dt_model_config *mc)
{
    int64_t step = 1;
    dt_spec list;
    DT_TRY(dt_spec_int(root, "decoder_sparse_step", 1, INT32_MAX, &step));
    for (int64_t i = 0; i < mc->num_hidden_layers; i++) mc->layers[i].sparse = (i + 1) % step == 0;
    if (!dt_spec_get(root, "mlp_only_layers", &list) || json_is_null(list.value)) return DT_OK;
    bool fits = json_is_array(list.value);
    for (size_t i = 0; i < json_array_size(list.value); i++) {
        const json_t *v = json_array_get(list.value, i);
        const int64_t at = json_is_integer(v) ? json_integer_value(v) : -1;
        fits = fits && json_is_integer(v);
        if (at >= 0 && at < mc->num_hidden_layers) mc->layers[at].sparse = false;
    }
    return fits ? DT_OK : dt_spec_bad(&list, NULL, "a list of layer numbers");
}

/* use_sliding_window */
static dt_err read_window(const dt_spec *root, dt_model_config *mc, bool every_other, int64_t end)
{
    bool slides = false;
    DT_TRY(dt_spec_bool(root, "use_sliding_window", &slides));
    for (int64_t i = 0; i < mc->num_hidden_layers && i < end; i++)
        mc->layers[i].slides = slides && !(every_other && i % 2 == 1);
    return dt_model_read_window(root, mc, slides);
}

static dt_err read_qwen3_moe(const dt_spec *root, dt_model_config *mc)
{
    mc->qk_norm = true;
    mc->moe_intermediate_size = 768;
    DT_TRY(dt_llama_read(root, mc));
    DT_TRY(dt_moe_read_experts(root, mc, 128, 8));
    DT_TRY(dt_spec_bool(root, "norm_topk_prob", &mc->norm_topk_prob));
    DT_TRY(dt_moe_choose_sparse(root, mc));
    return read_window(root, mc, false, INT64_MAX);
}

const dt_family dt_family_qwen3_moe = {
    .name = {"qwen3_moe", "Qwen3MoeForCausalLM", "Qwen3MoeForSequenceClassification"},
    .peft_names_experts = true,
    .in_llava = true,
    .missing = {2048, 24, 32, 4, 0, 6144, 151936, 32768, 1e-6, -1, -1, -1},
    TABLES(QWEN3_BLOCK, dt_steps_pre_norm),
    .keys = ROTARY_KEYS "sliding_window, attention_bias, " MIXTURE_KEYS "norm_topk_prob",
    .fused = {{SLOT_EXPERT_UP, "mlp.experts.gate_up_proj", false, true}, /* Qwen3-VL's are transposed */
              {SLOT_EXPERT_DOWN, "mlp.experts.down_proj", false, true}},
    .read = read_qwen3_moe};

/* ---- Qwen2-MoE --------------------------------------------------------------------------------------------------- */

static const struct module QWEN2_BLOCK[MAX_MODULES] = {LLAMA_ROWS(DENSE), QWEN_MIXTURE};

static dt_err read_qwen2_moe(const dt_spec *root, dt_model_config *mc)
{
    int64_t end = 28;
    mc->qkv_bias = true;
    mc->moe_intermediate_size = 1408, mc->shared_expert_intermediate_size = 5632;
    DT_TRY(dt_llama_read(root, mc));
    DT_TRY(dt_spec_bool(root, "qkv_bias", &mc->qkv_bias));
    DT_TRY(dt_moe_read_experts(root, mc, 60, 4));
    DT_TRY(dt_moe_read_shared(root, mc));
    DT_TRY(dt_spec_bool(root, "norm_topk_prob", &mc->norm_topk_prob));
    DT_TRY(dt_moe_choose_sparse(root, mc));
    DT_TRY(dt_spec_int(root, "max_window_layers", 0, INT32_MAX, &end));
    return read_window(root, mc, true, end);
}

const dt_family dt_family_qwen2_moe = {
    .name = {"qwen2_moe", "Qwen2MoeForCausalLM", "Qwen2MoeForSequenceClassification"},
    .missing = {2048, 24, 16, 16, 0, 5632, 151936, 32768, 1e-6, -1, -1, -1},
    TABLES(QWEN2_BLOCK, dt_steps_pre_norm),
    .keys = ROTARY_KEYS "sliding_window, " MIXTURE_KEYS "shared_expert_intermediate_size, norm_topk_prob",
    .fused = {FUSED_EXPERTS(false)},
    .read = read_qwen2_moe};

/* ---- Mixtral ----------------------------------------------------------------------------------------------------- */

static const struct module MIXTRAL_BLOCK[MAX_MODULES] = {
    NORM_ROW(SLOT_NORM1, "input_layernorm"),
    ATTENTION_ROWS(SIZE_Q, 0),
    NORM_ROW(SLOT_NORM2, "post_attention_layernorm"),
    {SLOT_ROUTER, "block_sparse_moe.gate", SIZE_E, SIZE_C, 0, 0, SPARSE},
    {SLOT_EXPERT_UP, "block_sparse_moe.experts.%d.w1", SIZE_X, SIZE_C, 0, 0, SPARSE | PER_EXPERT},
    {SLOT_EXPERT_UP, "block_sparse_moe.experts.%d.w3", SIZE_X, SIZE_C, 0, 0, SPARSE | PER_EXPERT},
    {SLOT_EXPERT_DOWN, "block_sparse_moe.experts.%d.w2", SIZE_C, SIZE_X, 0, 0, SPARSE | PER_EXPERT},
};

static dt_err read_mixtral(const dt_spec *root, dt_model_config *mc)
{
    double noise = 0;
    mc->norm_topk_prob = true;
    DT_TRY(dt_llama_read(root, mc));
    DT_TRY(dt_moe_read_experts(root, mc, 8, 2));
    mc->moe_intermediate_size = mc->intermediate_size;
    DT_TRY(dt_spec_real(root, "router_jitter_noise", 0, 1, &noise));
    if (noise != 0) return dt_spec_bad(root, "router_jitter_noise", "0");
    const bool slides = dt_spec_has(root, "sliding_window");
    for (int64_t i = 0; i < mc->num_hidden_layers; i++) mc->layers[i] = (dt_layer){.sparse = true, .slides = slides};
    return dt_model_read_window(root, mc, slides);
}

const dt_family dt_family_mixtral = {.name = {"mixtral", "MixtralForCausalLM", "MixtralForSequenceClassification"},
                                     .missing = {4096, 32, 32, 8, 0, 14336, 32000, 131072, 1e-5, 1, 2, -1, 1e6},
                                     TABLES(MIXTRAL_BLOCK, dt_steps_pre_norm),
                                     .keys = ROTARY_KEYS "sliding_window, num_experts, num_experts_per_tok, " LOSS_KEYS,
                                     .names = {{"num_experts", "num_local_experts"}},
                                     .fused = {FUSED_EXPERTS(false), {SLOT_ROUTER, "mlp.gate.weight", false}},
                                     .read = read_mixtral};
