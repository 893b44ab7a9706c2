/* model_configs.h - a small model of each family: LayerNorm, dropout and a tied table (GPT-2), norms of heads (Qwen3),
 * an untied table (Llama), a window (Mistral), norms of outputs (OLMo 2), multipliers (Granite), layers without
 * positions (SmolLM3), weights of norms minus 1 and soft-capping (Gemma 2), two rotary tables (Gemma 3), rules of their
 * own for layers without a window (OLMo 3), whole tensors and longrope (Phi-3), neighbours and four norms (GLM-4),
 * queries that grow (Ministral 3), latent attention (DeepSeek-V3). */
#ifndef DTRAIN_TESTS_MODEL_CONFIGS_H
#define DTRAIN_TESTS_MODEL_CONFIGS_H

static const char GPT2[] = "{\"model_type\": \"gpt2\", \"n_embd\": 24, \"n_layer\": 3, \"n_head\": 3, \"vocab_size\": "
                           "61, \"n_positions\": 128, \"attn_pdrop\": 0.2, \"embd_pdrop\": 0.1, \"resid_pdrop\": 0.3}";
static const char QWEN3[] = "{\"model_type\": \"qwen3\", \"hidden_size\": 20, \"intermediate_size\": 28, "
                            "\"num_hidden_layers\": 3, \"vocab_size\": 61, \"num_attention_heads\": 4, "
                            "\"num_key_value_heads\": 2, \"head_dim\": 8, \"max_position_embeddings\": 256}";
static const char LLAMA[] =
    "{\"model_type\": \"llama\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 2, "
    "\"vocab_size\": 61, \"num_attention_heads\": 5, \"max_position_embeddings\": 256}";
static const char MISTRAL[] =
    "{\"model_type\": \"mistral\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 2, "
    "\"vocab_size\": 61, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, \"sliding_window\": "
    "4, \"tie_word_embeddings\": true}";
static const char OLMO2[] =
    "{\"model_type\": \"olmo2\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 2, "
    "\"vocab_size\": 61, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8}";
static const char GRANITE[] =
    "{\"model_type\": \"granite\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 2, "
    "\"vocab_size\": 61, \"num_attention_heads\": 5, \"embedding_multiplier\": 3, \"attention_multiplier\": 0.3, "
    "\"residual_multiplier\": 0.4, \"logits_scaling\": 1.5, \"tie_word_embeddings\": true}";
static const char SMOLLM3[] =
    "{\"model_type\": \"smollm3\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 3, "
    "\"vocab_size\": 61, \"num_attention_heads\": 10, \"num_key_value_heads\": 2, \"no_rope_layers\": [1, 0, 1]}";
static const char GEMMA2[] =
    "{\"model_type\": \"gemma2\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 2, "
    "\"vocab_size\": 61, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, \"rms_norm_eps\": 1, "
    "\"query_pre_attn_scalar\": 5, \"sliding_window\": 4, \"attn_logit_softcapping\": 2, \"final_logit_softcapping\": "
    "3}";
static const char GEMMA3[] =
    "{\"model_type\": \"gemma3_text\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 3, "
    "\"vocab_size\": 61, \"num_attention_heads\": 4, \"num_key_value_heads\": 1, \"head_dim\": 8, "
    "\"rms_norm_eps\": 1, \"query_pre_attn_scalar\": 12, \"sliding_window\": 4, \"sliding_window_pattern\": 2, "
    "\"rope_local_base_freq\": 500}";
static const char OLMO3[] =
    "{\"model_type\": \"olmo3\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 4, "
    "\"vocab_size\": 61, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, "
    "\"sliding_window\": 4, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, "
    "\"original_max_position_embeddings\": 16}}";
static const char PHI3[] =
    "{\"model_type\": \"phi3\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 2, "
    "\"vocab_size\": 61, \"num_attention_heads\": 5, \"pad_token_id\": null, \"resid_pdrop\": 0.2, "
    "\"original_max_position_embeddings\": 12, \"rope_scaling\": {\"rope_type\": \"longrope\", "
    "\"short_factor\": [1, 1.5], \"long_factor\": [2, 4]}}";
static const char GLM4[] =
    "{\"model_type\": \"glm4\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 2, "
    "\"vocab_size\": 61, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 12}";
static const char MINISTRAL3[] =
    "{\"model_type\": \"ministral3\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 2, "
    "\"vocab_size\": 61, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, "
    "\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 5, "
    "\"llama_4_scaling_beta\": 0.5}}";
/* every token uses every expert */
static const char DEEPSEEK[] =
    "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 2, "
    "\"vocab_size\": 61, \"num_attention_heads\": 3, \"num_key_value_heads\": 3, \"q_lora_rank\": 9, "
    "\"kv_lora_rank\": 7, \"qk_nope_head_dim\": 5, \"qk_rope_head_dim\": 4, \"v_head_dim\": 6, "
    "\"first_k_dense_replace\": 1, \"n_routed_experts\": 4, \"num_experts_per_tok\": 4, \"n_group\": 2, "
    "\"topk_group\": 2, \"moe_intermediate_size\": 10, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, "
    "\"original_max_position_embeddings\": 16, \"mscale\": 1, \"mscale_all_dim\": 1}}";

#endif
