/* glm.c - GLM-4: Llama with biases of q, k and v, one tensor for gate and up, and rotation of neighbours in a part of
 * each head. GLM-4-0414 (glm4) also has norms after attention and MLP. */
#include "llama.h"

/* transformers uses these tokens, too, if the key is null. */
static void end_by_default(const dt_spec *root, dt_model_config *mc)
{
    static const int32_t END[] = {151329, 151336, 151338};
    if (dt_spec_has(root, "eos_token_id")) return;
    mc->n_eos = 0;
    for (size_t i = 0; i < sizeof END / sizeof END[0]; i++)
        if (END[i] < mc->vocab_size) mc->eos_token_id[mc->n_eos++] = END[i];
}

static dt_err read(const dt_spec *root, dt_model_config *mc)
{
    mc->qkv_bias = mc->rope_neighbours = true;
    DT_TRY(dt_llama_read(root, mc));
    mc->o_bias = false;
    end_by_default(root, mc);
    return dt_model_read_window(root, mc, false);
}

#define ATTENTION NORM_ROW(SLOT_NORM1, "input_layernorm"), QKV_ROWS(SIZE_Q, 0), O_ROW(0)
#define MLP                                                                                                            \
    ROW(SLOT_UP, "mlp.gate_up_proj", SIZE_U, SIZE_C, 0, 0, 0), ROW(SLOT_DOWN, "mlp.down_proj", SIZE_C, SIZE_F, 0, 0, 0)

static const struct module GLM_BLOCK[MAX_MODULES] = {ATTENTION, NORM_ROW(SLOT_NORM2, "post_attention_layernorm"), MLP};

static const struct module GLM4_BLOCK[MAX_MODULES] = {ATTENTION, NORM_ROW(SLOT_NORM2, "post_self_attn_layernorm"),
                                                      NORM_ROW(SLOT_NORM3, "post_attention_layernorm"), MLP,
                                                      NORM_ROW(SLOT_NORM4, "post_mlp_layernorm")};

#define GLM_MISSING                                                                                                    \
    {                                                                                                                  \
        4096, 40, 32, 2, 128, 13696, 151552, 131072, 1.5625e-7, -1, -1, 151329, .partial_rotary_factor = 0.5           \
    }

const dt_family dt_family_glm = {.name = {"glm", "GlmForCausalLM", "GlmForSequenceClassification"},
                                 .missing = GLM_MISSING,
                                 .keys = ROTARY_KEYS "attention_bias",
                                 .read = read,
                                 TABLES(GLM_BLOCK, dt_steps_pre_norm)};

const dt_family dt_family_glm4 = {.name = {"glm4", "Glm4ForCausalLM", "Glm4ForSequenceClassification"},
                                  .missing = GLM_MISSING,
                                  .keys = ROTARY_KEYS "attention_bias",
                                  .read = read,
                                  TABLES(GLM4_BLOCK, dt_steps_four_norms)};
