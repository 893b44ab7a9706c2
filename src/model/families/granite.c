/* granite.c - Granite: Llama with multipliers of embeddings, scores, residual branches and logits. */
#include "llama.h"

static dt_err read(const dt_spec *root, dt_model_config *mc)
{
    static const double MIN_MULTIPLIER = 1e-9, MAX_MULTIPLIER = 1e9;
    mc->attention_multiplier = 1;
    DT_TRY(dt_llama_read(root, mc));
    DT_TRY(dt_spec_real(root, "embedding_multiplier", MIN_MULTIPLIER, MAX_MULTIPLIER, &mc->embedding_multiplier));
    DT_TRY(dt_spec_real(root, "attention_multiplier", MIN_MULTIPLIER, MAX_MULTIPLIER, &mc->attention_multiplier));
    DT_TRY(dt_spec_real(root, "residual_multiplier", MIN_MULTIPLIER, MAX_MULTIPLIER, &mc->residual_multiplier));
    DT_TRY(dt_spec_real(root, "logits_scaling", MIN_MULTIPLIER, MAX_MULTIPLIER, &mc->logits_scaling));
    return dt_model_read_window(root, mc, false);
}

const dt_family dt_family_granite = {.name = {"granite", "GraniteForCausalLM", "GraniteForSequenceClassification"},
                                     .missing = {4096, 32, 32, 0, 0, 11008, 32000, 2048, 1e-6, 1, 2, -1},
                                     LLAMA_TABLES,
                                     .keys = ROTARY_KEYS "attention_bias, mlp_bias",
                                     .read = read};
