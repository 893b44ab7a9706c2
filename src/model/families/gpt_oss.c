/* gpt_oss.c - gpt-oss: attention with a learned sink for each head, windows in every other layer, and a mixture of
 * experts in each. A router with a bias chooses the experts by its logits and normalises their weights; matrices of
 * experts have biases; gate and up alternate in one matrix and are clamped. */
#include "moe.h"

enum { EXPERTS = SPARSE | PER_EXPERT | IN_FIRST };

static const struct module BLOCK[MAX_MODULES] = {
    NORM_ROW(SLOT_NORM1, "input_layernorm"),
    QKV_ROWS(SIZE_Q, 0),
    {SLOT_SINKS, "self_attn.sinks", SIZE_HEADS, NO_SIZE, 0, 0, BARE},
    O_ROW(0),
    NORM_ROW(SLOT_NORM2, "post_attention_layernorm"),
    {SLOT_ROUTER, "mlp.router", SIZE_E, SIZE_C, UNCONDITIONAL, 0, SPARSE},
    {SLOT_EXPERT_UP, "mlp.experts.%d.gate_up_proj", SIZE_XX, SIZE_C, UNCONDITIONAL, 0, EXPERTS},
    {SLOT_EXPERT_DOWN, "mlp.experts.%d.down_proj", SIZE_C, SIZE_X, UNCONDITIONAL, 0, EXPERTS},
};

/* transformers' values if the file has no rotary parameters. */
static void set_usual_rope(dt_model_config *mc)
{
    mc->rope_type = DT_ROPE_YARN;
    mc->rope_factor = 32;
    mc->rope_original_max_position = 4096;
    mc->rope_truncate = false;
}

static dt_err read_activation(const dt_spec *root, dt_model_config *mc)
{
    double alpha = 1.702; /* of QUICK_GELU */
    mc->swiglu_limit = 7;
    DT_TRY(dt_spec_real(root, "swiglu_limit", 1e-6, 1e6, &mc->swiglu_limit));
    DT_TRY(dt_spec_real(root, "swiglu_alpha", 0, 1e6, &alpha));
    if (alpha != 1.702) return dt_spec_bad(root, "swiglu_alpha", "1.702");
    if (mc->act != DT_ACT_SILU) return dt_spec_bad(root, "hidden_act", "silu");
    mc->act = DT_ACT_QUICK_GELU;
    return DT_OK;
}

/* The softmax of the chosen logits is that of all logits, normalised among the chosen ones. */
static dt_err read(const dt_spec *root, dt_model_config *mc)
{
    dt_spec rope;
    mc->qkv_bias = mc->norm_topk_prob = true;
    mc->sliding_window = 128;
    DT_TRY(dt_llama_read(root, mc));
    if (!dt_model_rope_object(root, &rope)) set_usual_rope(mc);
    DT_TRY(read_activation(root, mc));
    DT_TRY(dt_moe_read_experts(root, mc, 128, 4));
    mc->moe_intermediate_size = mc->intermediate_size;
    for (int64_t i = 0; i < mc->num_hidden_layers; i++)
        mc->layers[i] = (dt_layer){.sparse = true, .slides = i % 2 == 0};
    return dt_model_read_window(root, mc, true);
}

const dt_family dt_family_gpt_oss = {.name = {"gpt_oss", "GptOssForCausalLM", "GptOssForSequenceClassification"},
                                     .in_llava = true,
                                     .missing = {2880, 36, 64, 8, 64, 2880, 201088, 131072, 1e-5, -1, -1, -1, 150000},
                                     TABLES(BLOCK, dt_steps_pre_norm),
                                     .fused = {FUSED_EXPERTS(true)},
                                     .keys = ROTARY_KEYS
                                     "sliding_window, attention_bias, num_experts, num_experts_per_tok, " LOSS_KEYS,
                                     .names = {{"num_experts", "num_local_experts"}},
                                     .read = read};
