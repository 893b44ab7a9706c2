/* qwen3_5.c - the text models of Qwen3-Next, Qwen3.5 and Qwen3.6, dense or with mixtures of experts: three of four
 * layers have linear attention with the gated delta rule, the others full attention with a gate, norms of heads and
 * partial rotation. Norms add 1 to their weights, except those of linear attention. A mixture has a shared expert with
 * a gate. Qwen3-Next has other matrices before linear attention: their rows are grouped by key head. */
#include "moe.h"
#include <inttypes.h>

/* Every interval-th layer has full attention, unless layer_types says otherwise. */
static dt_err read_layers(const dt_spec *root, dt_model_config *mc)
{
    int64_t interval = 4;
    DT_TRY(dt_spec_int(root, "full_attention_interval", 1, INT32_MAX, &interval));
    for (int64_t i = 0; i < mc->num_hidden_layers; i++) mc->layers[i].linear = (i + 1) % interval != 0;
    return dt_model_read_layer_types(root, mc, true);
}

static dt_err read_sizes(const dt_spec *root, dt_model_config *mc)
{
    enum { MAX_HEADS = 1 << 16 };
    mc->linear_num_key_heads = 16, mc->linear_num_value_heads = 32;
    mc->linear_key_head_dim = mc->linear_value_head_dim = 128, mc->linear_conv_kernel_dim = 4;
    DT_TRY(dt_spec_int(root, "linear_num_key_heads", 1, MAX_HEADS, &mc->linear_num_key_heads));
    DT_TRY(dt_spec_int(root, "linear_num_value_heads", 1, MAX_HEADS, &mc->linear_num_value_heads));
    DT_TRY(dt_spec_int(root, "linear_key_head_dim", 1, DT_DELTA_MAX_DIM, &mc->linear_key_head_dim));
    DT_TRY(dt_spec_int(root, "linear_value_head_dim", 1, DT_DELTA_MAX_DIM, &mc->linear_value_head_dim));
    DT_TRY(dt_spec_int(root, "linear_conv_kernel_dim", 1, DT_CONV_MAX_KERNEL, &mc->linear_conv_kernel_dim));
    DT_CHECK(mc->linear_num_value_heads % mc->linear_num_key_heads == 0, root->err,
             "%s: linear_num_key_heads: expected a divisor of linear_num_value_heads=%" PRId64 ", found %" PRId64,
             root->file, mc->linear_num_value_heads, mc->linear_num_key_heads);
    return DT_OK;
}

static dt_err read(const dt_spec *root, dt_model_config *mc)
{
    bool gated = true;
    mc->norm_plus_one = mc->qk_norm = mc->attn_output_gate = true;
    DT_TRY(dt_llama_read(root, mc));
    DT_TRY(dt_spec_bool(root, "attn_output_gate", &gated));
    if (!gated) return dt_spec_bad(root, "attn_output_gate", "true");
    /* transformers uses it after the convolution, too, where dtrain has silu */
    if (mc->act != DT_ACT_SILU) return dt_spec_bad(root, "hidden_act", "silu");
    DT_TRY(read_sizes(root, mc));
    return read_layers(root, mc);
}

/* All layers have experts, whose weights always add up to 1. */
static dt_err read_moe(const dt_spec *root, dt_model_config *mc)
{
    DT_TRY(read(root, mc));
    mc->norm_topk_prob = true;
    mc->moe_intermediate_size = mc->shared_expert_intermediate_size = 512;
    DT_TRY(dt_moe_read_experts(root, mc, 256, 8));
    for (int64_t i = 0; i < mc->num_hidden_layers; i++) mc->layers[i].sparse = true;
    return dt_moe_read_shared(root, mc);
}

/* Not all layers need have experts. */
static dt_err read_next(const dt_spec *root, dt_model_config *mc)
{
    DT_TRY(read(root, mc));
    mc->linear_grouped = mc->norm_topk_prob = true;
    mc->moe_intermediate_size = mc->shared_expert_intermediate_size = 512;
    DT_TRY(dt_moe_read_experts(root, mc, 512, 10));
    DT_TRY(dt_spec_bool(root, "norm_topk_prob", &mc->norm_topk_prob));
    DT_TRY(dt_moe_choose_sparse(root, mc));
    return dt_moe_read_shared(root, mc);
}

/* Modules before and after the matrices that linear attention starts with. */
#define FULL_ROWS NORM_ROW(SLOT_NORM1, "input_layernorm"), ATTENTION_ROWS(SIZE_QG, FULL_ATTENTION)
#define LINEAR_ROWS                                                                                                    \
    {SLOT_CONV, "linear_attn.conv1d", SIZE_M, SIZE_KERNEL, 0, 0, LINEAR_ATTENTION},                                    \
        {SLOT_DT_BIAS, "linear_attn.dt_bias", SIZE_H, NO_SIZE, 0, 0, LINEAR_ATTENTION | BARE},                         \
        {SLOT_A_LOG, "linear_attn.A_log", SIZE_H, NO_SIZE, 0, 0, LINEAR_ATTENTION | BARE},                             \
        {SLOT_DELTA_NORM, "linear_attn.norm", SIZE_VALUE, NO_SIZE, 0, 0, LINEAR_ATTENTION},                            \
        {SLOT_DELTA_OUT, "linear_attn.out_proj", SIZE_C, SIZE_Z, 0, 0, LINEAR_ATTENTION},                              \
        NORM_ROW(SLOT_NORM2, "post_attention_layernorm"), MLP_ROWS("mlp", SIZE_F, 0, DENSE), QWEN_MIXTURE

static const struct module BLOCK[MAX_MODULES] = {
    FULL_ROWS,
    {SLOT_DELTA_IN, "linear_attn.in_proj_qkv", SIZE_M, SIZE_C, 0, 0, LINEAR_ATTENTION},
    {SLOT_DELTA_IN, "linear_attn.in_proj_z", SIZE_Z, SIZE_C, 0, 0, LINEAR_ATTENTION},
    {SLOT_DELTA_IN, "linear_attn.in_proj_b", SIZE_H, SIZE_C, 0, 0, LINEAR_ATTENTION},
    {SLOT_DELTA_IN, "linear_attn.in_proj_a", SIZE_H, SIZE_C, 0, 0, LINEAR_ATTENTION},
    LINEAR_ROWS,
};

static const struct module NEXT_BLOCK[MAX_MODULES] = {
    FULL_ROWS,
    {SLOT_DELTA_IN, "linear_attn.in_proj_qkvz", SIZE_MZ, SIZE_C, 0, 0, LINEAR_ATTENTION},
    {SLOT_DELTA_IN, "linear_attn.in_proj_ba", SIZE_HH, SIZE_C, 0, 0, LINEAR_ATTENTION},
    LINEAR_ROWS,
};

#define DELTA_KEYS                                                                                                     \
    ROTARY_KEYS "attention_bias, full_attention_interval, linear_num_key_heads, linear_num_value_heads, "              \
                "linear_key_head_dim, linear_value_head_dim, linear_conv_kernel_dim, "

const dt_family dt_family_qwen3_5_text = {
    .name = {"qwen3_5_text", "Qwen3_5ForCausalLM", "Qwen3_5TextForSequenceClassification", "qwen3_5"},
    .missing = {4096, 32, 16, 4, 256, 12288, 248320, 32768, 1e-6, -1, -1, -1, .partial_rotary_factor = 0.25},
    .keys = DELTA_KEYS,
    .read = read,
    TABLES(BLOCK, dt_steps_pre_norm)};

const dt_family dt_family_qwen3_5_moe_text = {
    .name = {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", "Qwen3_5MoeTextForSequenceClassification", "qwen3_5_moe"},
    .missing = {2048, 40, 16, 2, 256, 512, 248320, 32768, 1e-6, -1, -1, -1, .partial_rotary_factor = 0.25},
    .keys = DELTA_KEYS MIXTURE_KEYS "shared_expert_intermediate_size",
    .read = read_moe,
    TABLES(BLOCK, dt_steps_pre_norm),
    .fused = {FUSED_EXPERTS(true)}};

const dt_family dt_family_qwen3_next = {
    .name = {"qwen3_next", "Qwen3NextForCausalLM", "Qwen3NextForSequenceClassification"},
    .peft_names_experts = true,
    .missing = {2048, 48, 16, 2, 256, 5632, 151936, 32768, 1e-6, -1, -1, -1, .partial_rotary_factor = 0.25},
    .keys = DELTA_KEYS MIXTURE_KEYS "shared_expert_intermediate_size, norm_topk_prob",
    .read = read_next,
    TABLES(NEXT_BLOCK, dt_steps_pre_norm),
    .fused = {FUSED_EXPERTS(false)}};
