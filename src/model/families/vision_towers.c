/* vision_towers.c - the towers of CLIP and SigLIP: patches and learned positions, then blocks with LayerNorm and a
 * plain MLP. CLIP has a class token before the patches and a norm before the blocks. SigLIP's patches have a bias. */
#include "family.h"
#include <string.h>

#define POSITIONS                                                                                                      \
    {                                                                                                                  \
        SLOT_TOKENS, "embeddings.position_embedding", SIZE_V, SIZE_C, 0, 0, 0                                          \
    }

static const struct module CLIP_EMBED[MAX_MODULES] = {
    {SLOT_CLASS, "embeddings.class_embedding", SIZE_C, NO_SIZE, 0, 0, 0},
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

static const dt_family
    CLIP = {.blocks = "encoder.layers.", .embed = CLIP_EMBED, .block = BLOCK, .head = END, .steps = dt_steps_pre_norm},
    SIGLIP = {
        .blocks = "encoder.layers.", .embed = SIGLIP_EMBED, .block = BLOCK, .head = END, .steps = dt_steps_pre_norm};

static const dt_tower TOWERS[] = {
    {"clip", "clip_vision_model", &CLIP, "CLIPImageProcessor", 32, 1e-5, DT_ACT_QUICK_GELU, true, true, false},
    {"siglip", "siglip_vision_model", &SIGLIP, "SiglipImageProcessor", 16, 1e-6, DT_ACT_GELU_TANH, false, false, true},
};
enum { N_TOWERS = sizeof TOWERS / sizeof TOWERS[0] };

const dt_tower *dt_tower_at(int i) { return i >= 0 && i < N_TOWERS ? &TOWERS[i] : NULL; }

const dt_tower *dt_tower_find(const char *model_type)
{
    for (int i = 0; model_type && i < N_TOWERS; i++)
        if (strcmp(model_type, TOWERS[i].name) == 0 || strcmp(model_type, TOWERS[i].model_type) == 0) return &TOWERS[i];
    return NULL;
}
