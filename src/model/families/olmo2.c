/* olmo2.c - OLMo 2 and OLMo 3: as Llama, but the norms follow attention and MLP, and queries and keys are normalised
 * over all heads at once. OLMo 3 has a window in most layers. The rules of rotation apply to its other layers only. */
#include "llama.h"

static dt_err read_olmo2(const dt_spec *root, dt_model_config *mc)
{
    mc->qk_norm = mc->qk_norm_whole = true;
    DT_TRY(dt_llama_read(root, mc));
    return dt_model_read_window(root, mc, false);
}

/* Every 4th layer has no window, unless layer_types says otherwise. */
static dt_err read_olmo3(const dt_spec *root, dt_model_config *mc)
{
    mc->qk_norm = mc->qk_norm_whole = true;
    DT_TRY(dt_llama_read(root, mc));
    for (int64_t i = 0; i < mc->num_hidden_layers; i++) mc->layers[i].slides = (i + 1) % 4 != 0;
    return dt_model_read_window(root, mc, true);
}

static const struct module BLOCK[MAX_MODULES] = {
    QKV_ROWS(SIZE_Q, 0),
    {SLOT_Q_NORM, "self_attn.q_norm", SIZE_Q, NO_SIZE, 0, 0, 0},
    {SLOT_K_NORM, "self_attn.k_norm", SIZE_K, NO_SIZE, 0, 0, 0},
    O_ROW(0),
    NORM_ROW(SLOT_NORM1, "post_attention_layernorm"),
    MLP_ROWS("mlp", SIZE_F, 0, 0),
    NORM_ROW(SLOT_NORM2, "post_feedforward_layernorm"),
};

static const enum step STEPS[] = {STEP_ATTENTION, STEP_NORM1, STEP_ADD, STEP_MLP, STEP_NORM2, STEP_ADD, STEP_END};

const dt_family dt_family_olmo2 = {.name = {"olmo2", "Olmo2ForCausalLM", "Olmo2ForSequenceClassification"},
                                   .missing = {4096, 32, 32, 0, 0, 11008, 50304, 2048, 1e-5, -1, 50279, 1},
                                   .keys = ROTARY_KEYS "attention_bias",
                                   .read = read_olmo2,
                                   TABLES(BLOCK, STEPS)};

const dt_family dt_family_olmo3 = {
    .name = {"olmo3", "Olmo3ForCausalLM", "Olmo3ForSequenceClassification"},
    .missing = {4096, 32, 32, 0, 0, 11008, 50304, 2048, 1e-5, -1, 50279, 1, .rope_theta = 5e5, .rope_local_theta = 5e5},
    .keys = ROTARY_KEYS "attention_bias, sliding_window",
    .read = read_olmo3,
    TABLES(BLOCK, STEPS)};
