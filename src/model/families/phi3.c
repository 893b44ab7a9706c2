/* phi3.c - Phi-3, Phi-3.5 and Phi-4: Llama with one tensor for q, k and v, and one for gate and up. Phi-4-mini rotates
 * a part of each head. */
#include "llama.h"

/* A missing sliding_window means none. transformers accepts no other rules of rotation. */
static dt_err read(const dt_spec *root, dt_model_config *mc)
{
    DT_TRY(dt_llama_read(root, mc));
    DT_CHECK(mc->rope_type == DT_ROPE_DEFAULT || mc->rope_type == DT_ROPE_LONGROPE, root->err,
             "%s: rope_scaling: expected the rope_type default or longrope of a phi3 model, found %s", root->file,
             dt_rope_name(mc->rope_type));
    DT_TRY(dt_spec_real(root, "resid_pdrop", 0, 0.99, &mc->resid_pdrop));
    for (int64_t i = 0; i < mc->num_hidden_layers; i++) mc->layers[i].slides = true;
    return dt_model_read_window(root, mc, dt_spec_has(root, "sliding_window"));
}

static const struct module BLOCK[MAX_MODULES] = {
    {SLOT_NORM1, "input_layernorm", SIZE_C, NO_SIZE, 0, 0, 0},
    {SLOT_QKV, "self_attn.qkv_proj", SIZE_W, SIZE_C, 0, 0, ADAPT_BY_DEFAULT},
    {SLOT_O, "self_attn.o_proj", SIZE_C, SIZE_Q, 0, 0, 0},
    {SLOT_NORM2, "post_attention_layernorm", SIZE_C, NO_SIZE, 0, 0, 0},
    {SLOT_UP, "mlp.gate_up_proj", SIZE_U, SIZE_C, 0, 0, 0},
    {SLOT_DOWN, "mlp.down_proj", SIZE_C, SIZE_F, 0, 0, 0},
};

const dt_family dt_family_phi3 = {.name = {"phi3", "Phi3ForCausalLM", "Phi3ForSequenceClassification"},
                                  .missing = {3072, 32, 32, 0, 0, 8192, 32064, 4096, 1e-5, 1, 32000, 32000,
                                              .partial_rotary_factor = 1, .original_max_position_embeddings = 4096},
                                  .keys = ROTARY_KEYS "sliding_window",
                                  .read = read,
                                  TABLES(BLOCK, dt_steps_pre_norm)};
