/* deepseek.c - DeepSeek-V3 and models of its shape (Moonlight, Kimi K2), DeepSeek-V2, and GLM-4.5: MLPs in the first
 * layers, then mixtures of experts with a shared expert. DeepSeek has latent attention.
 *
 * The routers of DeepSeek-V3 and GLM-4.5 have sigmoids, and a vector corrects the choice of experts; it is not trained.
 * That of DeepSeek-V2 is a softmax. Experts may be limited to some groups. */
#include "moe.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { MAX_WIDTH = 1 << 24 };

/* ---- experts ----------------------------------------------------------------------------------------------------- */

/* Values of missing keys. */
struct mixture {
    int64_t n, n_used, width, n_shared, first; /* first: number of the first layer with experts */
    int64_t n_group, topk_group;
    double scale;
};

/* Keys that transformers ignores, with the only values of published models. */
static dt_err check_fixed(const dt_spec *root, const char *function, const char *method)
{
    const char *const words[][2] = {{"scoring_func", function}, {"topk_method", method}};
    int64_t freq = 1;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        const char *word = words[i][1];
        DT_TRY(dt_spec_string(root, words[i][0], &word));
        if (words[i][1] && strcmp(word, words[i][1]) != 0) return dt_spec_bad(root, words[i][0], words[i][1]);
    }
    DT_TRY(dt_spec_int(root, "moe_layer_freq", 1, INT32_MAX, &freq));
    return freq == 1 ? DT_OK : dt_spec_bad(root, "moe_layer_freq", "1");
}

/* null: false, also if the default is true, as in transformers. */
static dt_err read_switch(const dt_spec *root, const char *key, bool *value)
{
    if (json_is_null(json_object_get(root->value, key))) *value = false;
    return dt_spec_bool(root, key, value);
}

static dt_err read_groups(const dt_spec *root, dt_model_config *mc)
{
    DT_TRY(dt_spec_int(root, "n_group", 1, DT_MAX_GROUPS, &mc->n_group));
    DT_TRY(dt_spec_int(root, "topk_group", 1, INT32_MAX, &mc->topk_group));
    const int64_t size = mc->num_experts / mc->n_group;
    DT_CHECK(size * mc->n_group == mc->num_experts && (mc->n_group == 1 || size >= mc->group_best), root->err,
             "%s: n_group: expected a divisor of n_routed_experts=%" PRId64 ", with at least %" PRId64
             " experts in a group, found %" PRId64,
             root->file, mc->num_experts, mc->group_best, mc->n_group);
    DT_CHECK(mc->topk_group <= mc->n_group, root->err,
             "%s: topk_group: expected at most n_group=%" PRId64 ", found %" PRId64, root->file, mc->n_group,
             mc->topk_group);
    DT_CHECK(mc->num_experts_per_tok <= mc->topk_group * size, root->err,
             "%s: num_experts_per_tok: expected at most the %" PRId64 " experts of topk_group=%" PRId64
             " groups, found %" PRId64,
             root->file, mc->topk_group * size, mc->topk_group, mc->num_experts_per_tok);
    return DT_OK;
}

static dt_err read_experts(const dt_spec *root, dt_model_config *mc, struct mixture usual)
{
    mc->num_experts = usual.n, mc->num_experts_per_tok = usual.n_used, mc->moe_intermediate_size = usual.width;
    mc->n_group = usual.n_group, mc->topk_group = usual.topk_group, mc->routed_scaling_factor = usual.scale;
    DT_TRY(dt_spec_int(root, "n_routed_experts", 1, DT_MAX_EXPERTS, &mc->num_experts));
    DT_TRY(dt_spec_int(root, "num_experts_per_tok", 1, mc->num_experts, &mc->num_experts_per_tok));
    DT_CHECK(mc->num_experts_per_tok <= mc->num_experts, root->err,
             "%s: num_experts_per_tok: expected at most n_routed_experts=%" PRId64 ", found %" PRId64, root->file,
             mc->num_experts, mc->num_experts_per_tok);
    DT_TRY(dt_spec_int(root, "moe_intermediate_size", 1, MAX_WIDTH, &mc->moe_intermediate_size));
    DT_TRY(dt_spec_int(root, "n_shared_experts", 1, DT_MAX_EXPERTS, &usual.n_shared));
    DT_TRY(dt_spec_int(root, "first_k_dense_replace", 0, INT32_MAX, &usual.first));
    DT_TRY(dt_spec_real(root, "routed_scaling_factor", 1e-6, 1e6, &mc->routed_scaling_factor));
    mc->shared_expert_intermediate_size = usual.n_shared * mc->moe_intermediate_size;
    for (int64_t i = usual.first; i < mc->num_hidden_layers; i++) mc->layers[i].sparse = true;
    return DT_OK;
}

static dt_err read_sigmoid_router(const dt_spec *root, dt_model_config *mc)
{
    mc->sigmoid_router = mc->norm_topk_prob = true;
    mc->group_best = 2;
    DT_TRY(read_switch(root, "norm_topk_prob", &mc->norm_topk_prob));
    DT_TRY(check_fixed(root, "sigmoid", "noaux_tc"));
    return read_groups(root, mc);
}

static dt_err read_softmax_router(const dt_spec *root, dt_model_config *mc)
{
    const char *method = "greedy";
    bool normalised = false;
    DT_TRY(check_fixed(root, "softmax", NULL));
    DT_TRY(dt_spec_bool(root, "norm_topk_prob", &normalised));
    if (normalised) return dt_spec_bad(root, "norm_topk_prob", "false");
    DT_TRY(dt_spec_string(root, "topk_method", &method));
    mc->group_best = 1;
    if (strcmp(method, "group_limited_greedy") == 0) return read_groups(root, mc);
    return strcmp(method, "greedy") == 0 ? DT_OK : dt_spec_bad(root, "topk_method", "greedy or group_limited_greedy");
}

/* Rows of a block's table, starting at the MLP. */
#define CORRECTED ROW(SLOT_CORRECTION, "mlp.gate.e_score_correction_bias", SIZE_E, NO_SIZE, 0, 0, SPARSE | BARE)
#define MIXTURE MLP_ROWS("mlp", SIZE_F, 0, DENSE), EXPERT_ROWS, SHARED_ROWS("mlp.shared_experts")

#define EXPERT_KEYS                                                                                                    \
    "attention_bias, num_experts, num_experts_per_tok, moe_intermediate_size, n_shared_experts, norm_topk_prob, "      \
    "first_k_dense_replace, n_group, topk_group, routed_scaling_factor, "

/* ---- DeepSeek ---------------------------------------------------------------------------------------------------- */

static dt_err read_latent(const dt_spec *root, dt_model_config *mc)
{
    int64_t plain = 128;
    mc->q_lora_rank = json_is_null(json_object_get(root->value, "q_lora_rank")) ? 0 : 1536;
    mc->kv_lora_rank = 512, mc->qk_rope_head_dim = 64, mc->v_head_dim = 128;
    mc->rope_neighbours = true;
    DT_TRY(dt_spec_int(root, "q_lora_rank", 1, MAX_WIDTH, &mc->q_lora_rank));
    DT_TRY(dt_spec_int(root, "kv_lora_rank", 1, MAX_WIDTH, &mc->kv_lora_rank));
    DT_TRY(dt_spec_int(root, "qk_rope_head_dim", 2, DT_ATTENTION_MAX_HEAD_DIM - 1, &mc->qk_rope_head_dim));
    if (mc->qk_rope_head_dim % 2) return dt_spec_bad(root, "qk_rope_head_dim", "an even number (rotary embedding)");
    DT_TRY(dt_spec_int(root, "qk_nope_head_dim", 1, DT_ATTENTION_MAX_HEAD_DIM - mc->qk_rope_head_dim, &plain));
    DT_TRY(dt_spec_int(root, "v_head_dim", 1, DT_ATTENTION_MAX_HEAD_DIM, &mc->v_head_dim));
    mc->head_dim = plain + mc->qk_rope_head_dim;
    mc->q_compressed = mc->q_lora_rank > 0, mc->q_plain = !mc->q_compressed;
    DT_CHECK(mc->num_key_value_heads == mc->num_attention_heads, root->err,
             "%s: num_key_value_heads: expected num_attention_heads=%" PRId64 " with latent attention, found %" PRId64,
             root->file, mc->num_attention_heads, mc->num_key_value_heads);
    DT_CHECK(mc->num_attention_heads * dt_max_i64(mc->head_dim, mc->v_head_dim) <= MAX_WIDTH, root->err,
             "%s: qk_nope_head_dim, v_head_dim: expected at most %d elements of all heads", root->file, MAX_WIDTH);
    return DT_OK;
}

/* Scores grow with the square of yarn's factor. */
static void scale_scores(dt_model_config *mc)
{
    const double m = mc->rope_factor > 1 ? 0.1 * mc->rope_mscale_all_dim * log(mc->rope_factor) + 1 : 1;
    if (mc->rope_type != DT_ROPE_DEFAULT && mc->rope_mscale_all_dim > 0)
        mc->attention_multiplier = m * m / sqrt((double)mc->head_dim);
}

static dt_err read_attention(const dt_spec *root, dt_model_config *mc)
{
    DT_TRY(read_latent(root, mc));
    DT_TRY(dt_llama_read(root, mc));
    if (mc->qkv_bias && mc->q_plain) return dt_spec_bad(root, "attention_bias", "false without q_lora_rank");
    scale_scores(mc);
    return DT_OK;
}

static dt_err read_v3(const dt_spec *root, dt_model_config *mc)
{
    DT_TRY(read_attention(root, mc));
    DT_TRY(read_switch(root, "rope_interleave", &mc->rope_neighbours));
    DT_TRY(read_experts(root, mc, (struct mixture){256, 8, 2048, 1, 3, 8, 4, 2.5}));
    return read_sigmoid_router(root, mc);
}

static dt_err read_v2(const dt_spec *root, dt_model_config *mc)
{
    bool biased = false;
    DT_TRY(read_attention(root, mc));
    DT_TRY(dt_spec_bool(root, "mlp_bias", &biased));
    if (biased) return dt_spec_bad(root, "mlp_bias", "false");
    DT_TRY(read_experts(root, mc, (struct mixture){64, 6, 1407, 2, 0, 1, 1, 1}));
    return read_softmax_router(root, mc);
}

#define LATENT                                                                                                         \
    NORM_ROW(SLOT_NORM1, "input_layernorm"),                                                                           \
        ROW(SLOT_LATENT_IN, "self_attn.kv_a_proj_with_mqa", SIZE_LKR, SIZE_C, IF(qkv_bias), 0, 0),                     \
        ROW(SLOT_LATENT_IN, "self_attn.q_a_proj", SIZE_LQ, SIZE_C, IF(qkv_bias), IF(q_compressed), 0),                 \
        ROW(SLOT_LATENT_IN, "self_attn.q_proj", SIZE_Q, SIZE_C, 0, IF(q_plain), ADAPT_BY_DEFAULT),                     \
        ROW(SLOT_K_NORM, "self_attn.kv_a_layernorm", SIZE_LK, NO_SIZE, 0, 0, 0),                                       \
        ROW(SLOT_Q_NORM, "self_attn.q_a_layernorm", SIZE_LQ, NO_SIZE, 0, IF(q_compressed), 0),                         \
        ROW(SLOT_LATENT_KV, "self_attn.kv_b_proj", SIZE_LKV, SIZE_LK, 0, 0, ADAPT_BY_DEFAULT),                         \
        ROW(SLOT_LATENT_Q, "self_attn.q_b_proj", SIZE_Q, SIZE_LQ, 0, IF(q_compressed), ADAPT_BY_DEFAULT),              \
        ROW(SLOT_O, "self_attn.o_proj", SIZE_C, SIZE_O, IF(o_bias), 0, 0),                                             \
        NORM_ROW(SLOT_NORM2, "post_attention_layernorm")

static const struct module V3_BLOCK[MAX_MODULES] = {LATENT, MIXTURE, CORRECTED};
static const struct module V2_BLOCK[MAX_MODULES] = {LATENT, MIXTURE};

static const enum step LATENT_STEPS[] = {STEP_NORM1, STEP_LATENT, STEP_ADD, STEP_NORM2, STEP_MLP, STEP_ADD, STEP_END};

#define LATENT_KEYS "q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim"

const dt_family dt_family_deepseek_v3 = {
    .name = {"deepseek_v3", "DeepseekV3ForCausalLM", "DeepseekV3ForSequenceClassification"},
    .peft_names_experts = true,
    .fused = {FUSED_EXPERTS(false)},
    .missing = {7168, 61, 128, 128, 64, 18432, 129280, 4096, 1e-6, 0, 1, -1},
    TABLES(V3_BLOCK, LATENT_STEPS),
    .keys = ROTARY_KEYS EXPERT_KEYS LATENT_KEYS,
    .names = {{"num_experts", "n_routed_experts"}},
    .read = read_v3};

const dt_family dt_family_deepseek_v2 = {
    .name = {"deepseek_v2", "DeepseekV2ForCausalLM", "DeepseekV2ForSequenceClassification"},
    .peft_names_experts = true,
    .fused = {FUSED_EXPERTS(false)},
    .missing = {4096, 32, 32, 0, 64, 11008, 102400, 2048, 1e-6, 1, 2, -1},
    TABLES(V2_BLOCK, LATENT_STEPS),
    .keys = ROTARY_KEYS EXPERT_KEYS LATENT_KEYS,
    .names = {{"num_experts", "n_routed_experts"}},
    .read = read_v2};

/* ---- GLM-4.5 ----------------------------------------------------------------------------------------------------- */

static dt_err read_glm(const dt_spec *root, dt_model_config *mc)
{
    DT_TRY(dt_llama_read(root, mc));
    mc->o_bias = false;
    DT_TRY(dt_spec_bool(root, "use_qk_norm", &mc->qk_norm));
    DT_TRY(read_experts(root, mc, (struct mixture){128, 8, 1408, 1, 1, 1, 1, 1}));
    return read_sigmoid_router(root, mc);
}

static const struct module GLM_BLOCK[MAX_MODULES] = {LLAMA_ROWS(DENSE), EXPERT_ROWS, SHARED_ROWS("mlp.shared_experts"),
                                                     CORRECTED};

const dt_family dt_family_glm4_moe = {
    .name = {"glm4_moe", "Glm4MoeForCausalLM", "Glm4MoeForSequenceClassification"},
    .peft_names_experts = true,
    .fused = {FUSED_EXPERTS(false)},
    .missing = {4096, 46, 96, 8, 128, 10944, 151552, 131072, 1e-5, -1, -1, -1, .partial_rotary_factor = 0.5},
    TABLES(GLM_BLOCK, dt_steps_pre_norm),
    .keys = ROTARY_KEYS EXPERT_KEYS,
    .names = {{"num_experts", "n_routed_experts"}},
    .read = read_glm};
