/* tower.c - the towers of CLIP and SigLIP: patches and learned positions, then blocks with LayerNorm and a plain MLP. CLIP
 * has a class token before the patches and a norm before the blocks; SigLIP has a bias of the patches. */
#include "tower.h"

#define POSITIONS                                                                                                      \
    {                                                                                                                  \
        SLOT_TOKENS, "embeddings.position_embedding", SIZE_V, SIZE_C, 0, 0, 0                                          \
    }

static const struct module CLIP[MAX_MODULES] = {
    {SLOT_CLASS, "embeddings.class_embedding", SIZE_C, NO_SIZE, 0, 0, 0},
    {SLOT_PATCHES, "embeddings.patch_embedding", SIZE_C, NO_SIZE, 0, 0, 0},
    POSITIONS,
    {SLOT_PRE_NORM, "pre_layrnorm", SIZE_C, NO_SIZE, UNCONDITIONAL, 0, 0},
};

static const struct module SIGLIP[MAX_MODULES] = {
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

const dt_family dt_family_clip = {.model_type = "clip_vision_model",
                                  .blocks = "encoder.layers.",
                                  .embed = CLIP,
                                  .block = BLOCK,
                                  .head = END,
                                  .steps = dt_steps_pre_norm};
const dt_family dt_family_siglip = {.model_type = "siglip_vision_model",
                                    .blocks = "encoder.layers.",
                                    .embed = SIGLIP,
                                    .block = BLOCK,
                                    .head = END,
                                    .steps = dt_steps_pre_norm};
