/* llama.c - Llama 2 and 3, Mistral, Qwen2, Qwen3, Seed-OSS and InternLM3: RMSNorm, rotary positions, grouped queries
 * and a gated MLP. They have the same modules, and differ in biases, norms of heads, windows, dropout and defaults. */
#include "llama.h"

const struct module dt_llama_embed[MAX_MODULES] = {
    {SLOT_TOKENS, "model.embed_tokens", SIZE_V, SIZE_C, 0, 0, 0},
};

const struct module dt_llama_block[MAX_MODULES] = {LLAMA_ROWS(0)};

const struct module dt_llama_head[MAX_MODULES] = {
    {SLOT_FINAL_NORM, "model.norm", SIZE_C, NO_SIZE, 0, 0, 0},
    {SLOT_HEAD, "lm_head", SIZE_V, SIZE_C, 0, 0, 0},
    {SLOT_SCORE, "score", SIZE_LABELS, SIZE_C, IF(score_bias), 0, 0},
};

dt_err dt_llama_read(const dt_spec *root, dt_model_config *mc)
{
    mc->act = mc->family->missing.act;
    mc->gated_mlp = mc->rms_norm = mc->scale_attn_weights = true;
    DT_TRY(dt_model_read_activation(root, dt_family_key_name(mc->family, "hidden_act"), &mc->act));
    DT_TRY(dt_spec_real(root, "rms_norm_eps", 0, 1, &mc->norm_eps));
    DT_TRY(dt_spec_real(root, "attention_dropout", 0, 0.99, &mc->attn_pdrop));
    DT_TRY(dt_spec_bool(root, "tie_word_embeddings", &mc->tie_word_embeddings));
    if (dt_family_reads(mc->family, "attention_bias")) {
        DT_TRY(dt_spec_bool(root, "attention_bias", &mc->qkv_bias));
        mc->o_bias = mc->qkv_bias;
    }
    if (dt_family_reads(mc->family, "mlp_bias")) DT_TRY(dt_spec_bool(root, "mlp_bias", &mc->mlp_bias));
    return dt_model_read_rope(root, mc);
}

/* Layers starting at number `first` have a window, unless layer_types says otherwise. */
static dt_err read_window(const dt_spec *root, dt_model_config *mc, bool use, int64_t first)
{
    for (int64_t i = first; i < mc->num_hidden_layers; i++) mc->layers[i].slides = true;
    return dt_model_read_window(root, mc, use);
}

/* The files may contain keys of windows, but a block of type sliding_attention is an error. */
static dt_err read_llama(const dt_spec *root, dt_model_config *mc)
{
    DT_TRY(dt_llama_read(root, mc));
    return dt_model_read_window(root, mc, false);
}

static dt_err read_mistral(const dt_spec *root, dt_model_config *mc)
{
    DT_TRY(dt_llama_read(root, mc));
    return read_window(root, mc, true, 0);
}

static dt_err read_qwen(const dt_spec *root, dt_model_config *mc)
{
    bool slides = false;
    int64_t first = 28;
    DT_TRY(dt_llama_read(root, mc));
    DT_TRY(dt_spec_bool(root, "use_sliding_window", &slides));
    DT_TRY(dt_spec_int(root, "max_window_layers", 0, INT32_MAX, &first));
    return read_window(root, mc, slides, first);
}

static dt_err read_qwen2(const dt_spec *root, dt_model_config *mc)
{
    mc->qkv_bias = true;
    return read_qwen(root, mc);
}

static dt_err read_qwen3(const dt_spec *root, dt_model_config *mc)
{
    mc->qk_norm = true;
    return read_qwen(root, mc);
}

static dt_err read_seed_oss(const dt_spec *root, dt_model_config *mc)
{
    mc->qkv_bias = true;
    mc->attn_pdrop = mc->resid_pdrop = 0.1;
    DT_TRY(dt_llama_read(root, mc));
    mc->o_bias = false;
    DT_TRY(dt_spec_bool(root, "attention_out_bias", &mc->o_bias));
    DT_TRY(dt_spec_real(root, "residual_dropout", 0, 0.99, &mc->resid_pdrop));
    return dt_model_read_window(root, mc, false);
}

/* Other names of attention_bias and mlp_bias are qkv_bias and bias. That of o belongs to the latter. */
static dt_err read_internlm3(const dt_spec *root, dt_model_config *mc)
{
    DT_TRY(dt_llama_read(root, mc));
    DT_TRY(dt_spec_bool(root, "qkv_bias", &mc->qkv_bias));
    DT_TRY(dt_spec_bool(root, "bias", &mc->mlp_bias));
    mc->o_bias = mc->mlp_bias;
    return dt_model_read_window(root, mc, false);
}

const dt_family dt_family_llama = {.name = {"llama", "LlamaForCausalLM", "LlamaForSequenceClassification"},
                                   .missing = {4096, 32, 32, 0, 0, 11008, 32000, 2048, 1e-6, 1, 2, -1},
                                   LLAMA_TABLES,
                                   .in_llava = true,
                                   .keys = ROTARY_KEYS "attention_bias, mlp_bias",
                                   .read = read_llama};

const dt_family dt_family_mistral = {
    .name = {"mistral", "MistralForCausalLM", "MistralForSequenceClassification", "mistral3"},
    .multimodal_tied = true,
    .missing = {4096, 32, 32, 8, 0, 14336, 32000, 131072, 1e-6, 1, 2, -1},
    LLAMA_TABLES,
    .in_llava = true,
    .keys = ROTARY_KEYS "sliding_window",
    .read = read_mistral};

const dt_family dt_family_qwen2 = {.name = {"qwen2", "Qwen2ForCausalLM", "Qwen2ForSequenceClassification"},
                                   .missing = {4096, 32, 32, 32, 0, 22016, 151936, 32768, 1e-6, -1, -1, -1},
                                   LLAMA_TABLES,
                                   .in_llava = true,
                                   .keys = ROTARY_KEYS "sliding_window",
                                   .read = read_qwen2};

const dt_family dt_family_qwen3 = {.name = {"qwen3", "Qwen3ForCausalLM", "Qwen3ForSequenceClassification"},
                                   .missing = {4096, 32, 32, 32, 128, 22016, 151936, 32768, 1e-6, -1, -1, -1},
                                   LLAMA_TABLES,
                                   .in_llava = true,
                                   .keys = ROTARY_KEYS "sliding_window, attention_bias",
                                   .read = read_qwen3};

const dt_family dt_family_seed_oss = {.name = {"seed_oss", "SeedOssForCausalLM", "SeedOssForSequenceClassification"},
                                      .missing = {4096, 64, 80, 8, 128, 27648, 155136, 524288, 1e-6, 0, 2, 1},
                                      LLAMA_TABLES,
                                      .keys = ROTARY_KEYS "attention_bias, mlp_bias",
                                      .read = read_seed_oss};

/* transformers and the published files have the classes of Llama. */
const dt_family dt_family_internlm3 = {.name = {"internlm3", "InternLM3ForCausalLM", "LlamaForSequenceClassification"},
                                       .missing = {4096, 48, 32, 2, 128, 10240, 128512, 32768, 1e-5, 1, 2, 2},
                                       LLAMA_TABLES,
                                       .keys = ROTARY_KEYS "attention_bias, mlp_bias",
                                       .names = {{"attention_bias", "qkv_bias"}, {"mlp_bias", "bias"}},
                                       .read = read_internlm3};
