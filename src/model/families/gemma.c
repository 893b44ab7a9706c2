/* gemma.c - Gemma 2 and the text models of Gemma 3: as Llama, with norms before and after attention and MLP whose
 * weights are stored minus 1, embeddings scaled by the root of their width, and windows in most layers. Gemma 2 caps
 * scores and logits. Gemma 3 normalises heads, and its layers with a window rotate by a base of their own. */
#include "llama.h"
#include <math.h>

/* null: no cap. */
static dt_err read_softcap(const dt_spec *root, const char *key, double *cap)
{
    if (json_is_null(json_object_get(root->value, key))) *cap = 0;
    return dt_spec_real(root, key, 1e-6, 1e9, cap);
}

/* Every interval-th layer has no window, unless layer_types says otherwise. */
static dt_err read_gemma(const dt_spec *root, dt_model_config *mc, int64_t interval)
{
    double scalar = 256;
    mc->norm_plus_one = mc->tie_word_embeddings = mc->embedding_multiplier_rounded = true;
    mc->embedding_multiplier = sqrt((double)mc->hidden_size);
    DT_TRY(dt_llama_read(root, mc));
    DT_TRY(dt_spec_real(root, "query_pre_attn_scalar", 1e-6, 1e9, &scalar));
    mc->attention_multiplier = 1 / sqrt(scalar);
    DT_TRY(read_softcap(root, "final_logit_softcapping", &mc->final_softcap));
    for (int64_t i = 0; i < mc->num_hidden_layers; i++) mc->layers[i].slides = (i + 1) % interval != 0;
    return dt_model_read_window(root, mc, true);
}

static dt_err read_gemma2(const dt_spec *root, dt_model_config *mc)
{
    mc->attn_softcap = 50;
    mc->final_softcap = 30;
    DT_TRY(read_softcap(root, "attn_logit_softcapping", &mc->attn_softcap));
    return read_gemma(root, mc, 2);
}

/* transformers ignores attn_logit_softcapping here. */
static dt_err read_gemma3(const dt_spec *root, dt_model_config *mc)
{
    int64_t interval = 6;
    mc->qk_norm = true;
    if (dt_spec_has(root, "attn_logit_softcapping")) return dt_spec_bad(root, "attn_logit_softcapping", "null");
    DT_TRY(dt_spec_int(root, "sliding_window_pattern", 1, INT32_MAX, &interval));
    return read_gemma(root, mc, interval);
}

static const struct module BLOCK[MAX_MODULES] = {
    NORM_ROW(SLOT_NORM1, "input_layernorm"),
    ATTENTION_ROWS(SIZE_Q, 0),
    NORM_ROW(SLOT_NORM2, "post_attention_layernorm"),
    NORM_ROW(SLOT_NORM3, "pre_feedforward_layernorm"),
    MLP_ROWS("mlp", SIZE_F, 0, 0),
    NORM_ROW(SLOT_NORM4, "post_feedforward_layernorm"),
};

#define GEMMA_KEYS ROTARY_KEYS "sliding_window, attention_bias"

const dt_family dt_family_gemma2 = {
    .name = {"gemma2", "Gemma2ForCausalLM", "Gemma2ForSequenceClassification", NULL},
    .missing = {2304, 26, 8, 4, 256, 9216, 256000, 8192, 1e-6, 2, 1, 0, 0, 0, DT_ACT_GELU_TANH},
    .keys = GEMMA_KEYS,
    .names = {{"hidden_act", "hidden_activation"}},
    .read = read_gemma2,
    TABLES(BLOCK, dt_steps_four_norms)};

const dt_family dt_family_gemma3_text = {
    .name = {"gemma3_text", "Gemma3ForCausalLM", "Gemma3TextForSequenceClassification", "gemma3"},
    .multimodal_tied = true,
    .missing = {2304, 26, 8, 4, 256, 9216, 262208, 131072, 1e-6, 2, 1, 0, 1e6, 1e4, DT_ACT_GELU_TANH},
    .keys = GEMMA_KEYS,
    .names = {{"hidden_act", "hidden_activation"}},
    .read = read_gemma3,
    TABLES(BLOCK, dt_steps_four_norms)};
