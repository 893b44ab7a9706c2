/* vision_towers.c - the towers of CLIP and SigLIP: patches and learned positions, then blocks with LayerNorm and a
 * plain MLP. CLIP has a class token before the patches and a norm before the blocks. SigLIP's patches have a bias.
 *
 * The models Qwen2.5-VL and Qwen3-VL have towers and language models of their own. Images have their native resolution,
 * and patches have rotary positions of row and column. A norm and a projector of two layers (the merger) follow the
 * last block. Qwen2.5-VL has RMSNorm, a gated MLP and attention in windows. Qwen3-VL has LayerNorm, a plain MLP and a
 * table of positions that is interpolated. Qwen3.5's tower is that of Qwen3-VL without deepstack.
 *
 * InternVL divides an image into tiles of one size, each of which is an image for the tower. Its blocks multiply each
 * element of a branch by a factor (layer scale). The projector concatenates squares of patches. */
#include "moe.h"
#include <stdio.h>
#include <string.h>

#define POSITIONS                                                                                                      \
    {                                                                                                                  \
        SLOT_TOKENS, "embeddings.position_embedding", SIZE_V, SIZE_C, 0, 0, 0                                          \
    }

static const struct module CLIP_EMBED[MAX_MODULES] = {
    {SLOT_CLASS, "embeddings.class_embedding", SIZE_C, NO_SIZE, 0, 0, BARE},
    {SLOT_PATCHES, "embeddings.patch_embedding", SIZE_C, NO_SIZE, 0, 0, 0},
    POSITIONS,
    {SLOT_PRE_NORM, "pre_layrnorm", SIZE_C, NO_SIZE, UNCONDITIONAL, 0, 0},
};

static const struct module SIGLIP_EMBED[MAX_MODULES] = {
    {SLOT_PATCHES, "embeddings.patch_embedding", SIZE_C, NO_SIZE, UNCONDITIONAL, 0, 0},
    POSITIONS,
};

static const struct module BLOCK[MAX_MODULES] = {
    {SLOT_NORM1, "layer_norm1", SIZE_C, NO_SIZE, UNCONDITIONAL, 0, 0},
    {SLOT_QKV, "self_attn.q_proj", SIZE_C, SIZE_C, UNCONDITIONAL, 0, 0},
    {SLOT_QKV, "self_attn.k_proj", SIZE_C, SIZE_C, UNCONDITIONAL, 0, 0},
    {SLOT_QKV, "self_attn.v_proj", SIZE_C, SIZE_C, UNCONDITIONAL, 0, 0},
    {SLOT_O, "self_attn.out_proj", SIZE_C, SIZE_C, UNCONDITIONAL, 0, 0},
    {SLOT_NORM2, "layer_norm2", SIZE_C, NO_SIZE, UNCONDITIONAL, 0, 0},
    {SLOT_UP, "mlp.fc1", SIZE_F, SIZE_C, UNCONDITIONAL, 0, 0},
    {SLOT_DOWN, "mlp.fc2", SIZE_C, SIZE_F, UNCONDITIONAL, 0, 0},
};

static const struct module END[MAX_MODULES] = {
    {SLOT_FINAL_NORM, "post_layernorm", SIZE_C, NO_SIZE, UNCONDITIONAL, 0, 0}};

/* The tower's norms are LayerNorm or RMSNorm. Queries and keys may have RMSNorm over all heads. */
static const struct module INTERN_EMBED[MAX_MODULES] = {
    {SLOT_CLASS, "embeddings.cls_token", SIZE_C, NO_SIZE, 0, 0, BARE | BATCHED},
    {SLOT_PATCHES, "embeddings.patch_embeddings.projection", SIZE_C, NO_SIZE, UNCONDITIONAL, 0, 0},
    {SLOT_TOKENS, "embeddings.position_embeddings", SIZE_V, SIZE_C, 0, 0, BARE | BATCHED},
};

static const struct module INTERN_BLOCK[MAX_MODULES] = {
    {SLOT_NORM1, "layernorm_before", SIZE_C, NO_SIZE, IF(norm_bias), 0, 0},
    {SLOT_QKV, "attention.q_proj", SIZE_C, SIZE_C, IF(qkv_bias), 0, 0},
    {SLOT_QKV, "attention.k_proj", SIZE_C, SIZE_C, IF(qkv_bias), 0, 0},
    {SLOT_QKV, "attention.v_proj", SIZE_C, SIZE_C, IF(qkv_bias), 0, 0},
    {SLOT_Q_NORM, "attention.q_norm", SIZE_C, NO_SIZE, 0, IF(qk_norm), 0},
    {SLOT_K_NORM, "attention.k_norm", SIZE_C, NO_SIZE, 0, IF(qk_norm), 0},
    {SLOT_O, "attention.projection_layer", SIZE_C, SIZE_C, UNCONDITIONAL, 0, 0},
    {SLOT_SCALE1, "lambda_1", SIZE_C, NO_SIZE, 0, 0, BARE},
    {SLOT_NORM2, "layernorm_after", SIZE_C, NO_SIZE, IF(norm_bias), 0, 0},
    {SLOT_UP, "mlp.fc1", SIZE_F, SIZE_C, UNCONDITIONAL, 0, 0},
    {SLOT_DOWN, "mlp.fc2", SIZE_C, SIZE_F, UNCONDITIONAL, 0, 0},
    {SLOT_SCALE2, "lambda_2", SIZE_C, NO_SIZE, 0, 0, BARE},
};

static const struct module NOTHING[MAX_MODULES] = {{0}};

static const enum step SCALED_STEPS[] = {STEP_NORM1, STEP_ATTENTION, STEP_SCALE1, STEP_ADD, STEP_NORM2,
                                         STEP_MLP,   STEP_SCALE2,    STEP_ADD,    STEP_END};

static const struct module QWEN2_5_EMBED[MAX_MODULES] = {
    {SLOT_PATCHES, "patch_embed.proj", SIZE_C, NO_SIZE, 0, 0, 0},
};

static const struct module QWEN2_5_BLOCK[MAX_MODULES] = {
    {SLOT_NORM1, "norm1", SIZE_C, NO_SIZE, 0, 0, 0},
    {SLOT_QKV, "attn.qkv", SIZE_W, SIZE_C, UNCONDITIONAL, 0, 0},
    {SLOT_O, "attn.proj", SIZE_C, SIZE_C, UNCONDITIONAL, 0, 0},
    {SLOT_NORM2, "norm2", SIZE_C, NO_SIZE, 0, 0, 0},
    {SLOT_UP, "mlp.gate_proj", SIZE_F, SIZE_C, UNCONDITIONAL, 0, 0},
    {SLOT_UP, "mlp.up_proj", SIZE_F, SIZE_C, UNCONDITIONAL, 0, 0},
    {SLOT_DOWN, "mlp.down_proj", SIZE_C, SIZE_F, UNCONDITIONAL, 0, 0},
};

static const struct module QWEN2_5_END[MAX_MODULES] = {{SLOT_FINAL_NORM, "merger.ln_q", SIZE_C, NO_SIZE, 0, 0, 0}};

static const struct module QWEN3_EMBED[MAX_MODULES] = {
    {SLOT_PATCHES, "patch_embed.proj", SIZE_C, NO_SIZE, UNCONDITIONAL, 0, 0},
    {SLOT_TOKENS, "pos_embed", SIZE_V, SIZE_C, 0, 0, 0},
};

static const struct module QWEN3_BLOCK[MAX_MODULES] = {
    {SLOT_NORM1, "norm1", SIZE_C, NO_SIZE, UNCONDITIONAL, 0, 0},
    {SLOT_QKV, "attn.qkv", SIZE_W, SIZE_C, UNCONDITIONAL, 0, 0},
    {SLOT_O, "attn.proj", SIZE_C, SIZE_C, UNCONDITIONAL, 0, 0},
    {SLOT_NORM2, "norm2", SIZE_C, NO_SIZE, UNCONDITIONAL, 0, 0},
    {SLOT_UP, "mlp.linear_fc1", SIZE_F, SIZE_C, UNCONDITIONAL, 0, 0},
    {SLOT_DOWN, "mlp.linear_fc2", SIZE_C, SIZE_F, UNCONDITIONAL, 0, 0},
};

static const struct module QWEN3_END[MAX_MODULES] = {
    {SLOT_FINAL_NORM, "merger.norm", SIZE_C, NO_SIZE, UNCONDITIONAL, 0, 0}};

static const dt_family QWEN2_5_TOWER = {.blocks = "blocks.",
                                        .embed = QWEN2_5_EMBED,
                                        .block = QWEN2_5_BLOCK,
                                        .head = QWEN2_5_END,
                                        .steps = dt_steps_pre_norm},
                       QWEN3_TOWER = {.blocks = "blocks.",
                                      .embed = QWEN3_EMBED,
                                      .block = QWEN3_BLOCK,
                                      .head = QWEN3_END,
                                      .steps = dt_steps_pre_norm};

extern const dt_family dt_family_gemma3_text, dt_family_qwen3_5_text, dt_family_qwen3_5_moe_text, dt_family_qwen2,
    dt_family_qwen3, dt_family_qwen3_moe;

/* The language models, which differ from Qwen2 and Qwen3 in positions of images only. */
static dt_err read_qwen2_5(const dt_spec *root, dt_model_config *mc)
{
    bool slides = false;
    mc->qkv_bias = true;
    DT_TRY(dt_llama_read(root, mc));
    DT_TRY(dt_spec_bool(root, "use_sliding_window", &slides));
    if (slides) return dt_spec_bad(root, "use_sliding_window", "false");
    return DT_OK;
}

static dt_err read_qwen3(const dt_spec *root, dt_model_config *mc)
{
    mc->qk_norm = true;
    return dt_llama_read(root, mc);
}

/* Files have an expert's matrices as [in, out], or, saved by newer versions of transformers, as [out, in], gate and up
 * in one. The weights of a token's experts add up to 1. */
static const struct module QWEN3_MOE_BLOCK[MAX_MODULES] = {
    LLAMA_ROWS(DENSE),
    ROW(SLOT_ROUTER, "mlp.gate", SIZE_E, SIZE_C, 0, 0, SPARSE),
    {SLOT_EXPERT_UP, "mlp.experts.%d.gate_up_proj", SIZE_XX, SIZE_C, 0, 0, SPARSE | PER_EXPERT | IN_FIRST},
    {SLOT_EXPERT_DOWN, "mlp.experts.%d.down_proj", SIZE_C, SIZE_X, 0, 0, SPARSE | PER_EXPERT | IN_FIRST},
};

static dt_err read_qwen3_moe(const dt_spec *root, dt_model_config *mc)
{
    mc->norm_topk_prob = true;
    mc->moe_intermediate_size = 1408;
    DT_TRY(read_qwen3(root, mc));
    DT_TRY(dt_moe_read_experts(root, mc, 60, 4));
    if (mc->moe_intermediate_size == mc->hidden_size || 2 * mc->moe_intermediate_size == mc->hidden_size)
        return dt_spec_bad(
            root, "moe_intermediate_size",
            "a size other than hidden_size and its half, with which the layout of expert matrices is ambiguous");
    return dt_moe_choose_sparse(root, mc);
}

static const dt_family QWEN2_5_TEXT = {.name = {"qwen2_5_vl_text", "Qwen2_5_VLForConditionalGeneration", ""},
                                       .plain = &dt_family_qwen2,
                                       .missing = {8192, 80, 64, 8, 0, 29568, 152064, 32768, 1e-5, 151643, 151645, -1,
                                                   .rope_theta = 1e6},
                                       LLAMA_TABLES,
                                       .keys = ROTARY_KEYS,
                                       .read = read_qwen2_5},
                       QWEN3_TEXT = {.name = {"qwen3_vl_text", "Qwen3VLForConditionalGeneration", ""},
                                     .plain = &dt_family_qwen3,
                                     .missing = {4096, 32, 32, 32, 128, 22016, 151936, 128000, 1e-6, -1, -1, -1,
                                                 .rope_theta = 5e5},
                                     LLAMA_TABLES,
                                     .keys = ROTARY_KEYS "attention_bias",
                                     .read = read_qwen3},
                       QWEN3_MOE_TEXT = {
                           .name = {"qwen3_vl_moe_text", "Qwen3VLMoeForConditionalGeneration", ""},
                           .plain = &dt_family_qwen3_moe,
                           .missing = {2048, 24, 16, 16, 0, 5632, 151936, 128000, 1e-6, -1, -1, -1, .rope_theta = 5e5},
                           TABLES(QWEN3_MOE_BLOCK, dt_steps_pre_norm),
                           .fused = {{SLOT_EXPERT_UP, "mlp.experts.gate_up_proj", true, true},
                                     {SLOT_EXPERT_DOWN, "mlp.experts.down_proj", true, true}},
                           .keys = ROTARY_KEYS "attention_bias, " MIXTURE_KEYS,
                           .read = read_qwen3_moe};

#define QWEN_NAMES                                                                                                     \
    {"language_model.model.", "model.language_model."}, {"language_model.", ""}, { "vision_tower.", "model.visual." }
static const dt_tower_name QWEN2_5_NAMES[] = {{"multi_modal_projector.linear_1.", "model.visual.merger.mlp.0."},
                                              {"multi_modal_projector.linear_2.", "model.visual.merger.mlp.2."},
                                              QWEN_NAMES,
                                              {NULL, NULL}};
static const dt_tower_name QWEN3_NAMES[] = {{"multi_modal_projector.linear_", "model.visual.merger.linear_fc"},
                                            {"multi_modal_projector.deepstack.", "model.visual.deepstack_merger_list."},
                                            QWEN_NAMES,
                                            {NULL, NULL}};

static const dt_family
    CLIP = {.blocks = "encoder.layers.", .embed = CLIP_EMBED, .block = BLOCK, .head = END, .steps = dt_steps_pre_norm},
    SIGLIP = {
        .blocks = "encoder.layers.", .embed = SIGLIP_EMBED, .block = BLOCK, .head = END, .steps = dt_steps_pre_norm};

static const dt_family INTERN = {
    .blocks = "encoder.layer.", .embed = INTERN_EMBED, .block = INTERN_BLOCK, .head = NOTHING, .steps = SCALED_STEPS};

#define SIZES(depth, width, hidden, heads)                                                                             \
    .n_blocks = depth, .hidden_size = width, .intermediate_size = hidden, .n_heads = heads

/* Towers of one form; what follows are tokens of images and what differs. */
#define QWEN3_FORM(type, language, class, ...)                                                                         \
    {                                                                                                                  \
        type, type "_vision", &QWEN3_TOWER, "Qwen2VLImageProcessor", 16, 1e-6, DT_ACT_GELU_TANH, __VA_ARGS__,          \
            .text = &language, .architecture = class, .names = QWEN3_NAMES, .interpolates = true, .interleaved = true, \
            SIZES(27, 1152, 4304, 16)                                                                                  \
    }
#define QWEN3_VL(type, language, class)                                                                                \
    QWEN3_FORM(type, language, class, QWEN_VL, .sections = {24, 20, 20}, .deepstack = {8, 16, 24})
#define QWEN3_5(type, language, class)                                                                                 \
    QWEN3_FORM(type, language, class, QWEN35, .text_alone = true, .sections = {11, 11, 10}, .deepstack = {-1})

/* The placeholder of an image, and the tokens before and after it. */
static const int32_t LLAVA[] = {32000, -1, -1}, QWEN_VL[] = {151655, 151652, 151653},
                     QWEN35[] = {248056, 248053, 248054}, GEMMA[] = {262144, 255999, 256000},
                     INTERNVL[] = {151667, -1, -1};

#define BASE_SIZES .image_size = 224, SIZES(12, 768, 3072, 12)

static const dt_tower TOWERS[] = {
    {"clip", "clip_vision_model", &CLIP, "CLIPImageProcessor", 32, 1e-5, DT_ACT_QUICK_GELU, LLAVA, BASE_SIZES,
     .crops = true, .class_row = true},
    {"siglip", "siglip_vision_model", &SIGLIP, "SiglipImageProcessor", 16, 1e-6, DT_ACT_GELU_TANH, LLAVA, BASE_SIZES,
     .pools = true},
    {"qwen2_5_vl", "qwen2_5_vl_vision", &QWEN2_5_TOWER, "Qwen2VLImageProcessor", 14, 1e-6, DT_ACT_SILU, QWEN_VL,
     .text = &QWEN2_5_TEXT, .architecture = "Qwen2_5_VLForConditionalGeneration", .names = QWEN2_5_NAMES, .gated = true,
     SIZES(32, 3584, 3420, 16), .window_size = 112, .full_blocks = {7, 15, 23, 31}, .sections = {16, 24, 24},
     .deepstack = {-1}},
    QWEN3_VL("qwen3_vl", QWEN3_TEXT, "Qwen3VLForConditionalGeneration"),
    QWEN3_VL("qwen3_vl_moe", QWEN3_MOE_TEXT, "Qwen3VLMoeForConditionalGeneration"),
    {"gemma3", "siglip_vision_model", &SIGLIP, "Gemma3ImageProcessor", 16, 1e-6, DT_ACT_GELU_TANH, GEMMA, BASE_SIZES,
     .pools = true, .text = &dt_family_gemma3_text, .architecture = "Gemma3ForConditionalGeneration", .averages = true},
    QWEN3_5("qwen3_5", dt_family_qwen3_5_text, "Qwen3_5ForConditionalGeneration"),
    QWEN3_5("qwen3_5_moe", dt_family_qwen3_5_moe_text, "Qwen3_5MoeForConditionalGeneration"),
    {"internvl", "internvl_vision", &INTERN, "GotOcr2ImageProcessor", 14, 1e-6, DT_ACT_GELU, INTERNVL,
     .class_row = true, .architecture = "InternVLForConditionalGeneration", .around = {"<img>", "</img>"},
     .tiles = true, .image_size = 448, SIZES(24, 1024, 4096, 16)},
};
enum { N_TOWERS = sizeof TOWERS / sizeof TOWERS[0] };

const dt_tower *dt_tower_at(int i) { return i >= 0 && i < N_TOWERS ? &TOWERS[i] : NULL; }

const dt_tower *dt_tower_find(const char *model_type)
{
    for (int i = 0; model_type && i < N_TOWERS; i++)
        if (!TOWERS[i].architecture &&
            (strcmp(model_type, TOWERS[i].name) == 0 || strcmp(model_type, TOWERS[i].model_type) == 0))
            return &TOWERS[i];
    return NULL;
}

const dt_tower *dt_tower_of_model(const char *model_type)
{
    for (int i = 0; model_type && i < N_TOWERS; i++)
        if (TOWERS[i].architecture && strcmp(model_type, TOWERS[i].name) == 0) return &TOWERS[i];
    return NULL;
}
