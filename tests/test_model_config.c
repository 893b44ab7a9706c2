/* test_model_config.c - config.json of every family, its spellings and mistakes; unit tables; operation counts.
 * Vision-language models: test_model_vision.c. */

#include "cases.h"
#include "config_fixture.h"

/* ---- defaults and spellings ---- */

/* What is read of a config.json, mc, meets a condition. */
#define READS(json, condition)                                                                                         \
    do {                                                                                                               \
        dt_model_config mc = parsed(json);                                                                             \
        assert_true(condition);                                                                                        \
        dt_model_config_free(&mc);                                                                                     \
    } while (0)

static bool every(const dt_model_config *mc, bool (*is)(int64_t, dt_layer))
{
    bool all = true;
    for (int64_t i = 0; i < mc->num_hidden_layers; i++) all = all && is(i, dt_model_layer(mc, i));
    return all;
}
static bool olmo3(int64_t i, dt_layer l) { return l.slides == (i % 4 != 3); }
static bool smollm3(int64_t i, dt_layer l) { return l.unrotated == (i % 4 == 3) && !l.slides; }
static bool gemma2(int64_t i, dt_layer l) { return l.slides == (i % 2 == 0); }
static bool gemma3(int64_t i, dt_layer l) { return l.slides == (i % 6 != 5); }

TEST(absent_keys_have_the_family_s_defaults)
{
    READS("{'model_type': 'gpt2'}",
          mc.hidden_size == 768 && mc.intermediate_size == 3072 && mc.head_dim == 64 && mc.vocab_size == 50257 &&
              mc.max_position_embeddings == 1024 && mc.conv1d && mc.qkv_bias && mc.o_bias && mc.mlp_bias &&
              mc.tie_word_embeddings && mc.scale_attn_weights && !mc.gated_mlp && !mc.rms_norm &&
              mc.act == DT_ACT_GELU_TANH && mc.rope_type == DT_ROPE_NONE && mc.attn_pdrop == 0.1 &&
              mc.embd_pdrop == 0.1 && mc.resid_pdrop == 0.1 && mc.norm_eps == 1e-5 && mc.bos_token_id == 50256 &&
              mc.n_eos == 1 && mc.eos_token_id[0] == 50256);
    READS("{'model_type': 'llama'}", mc.num_key_value_heads == 32 && mc.intermediate_size == 11008 &&
                                         mc.vocab_size == 32000 && mc.norm_eps == 1e-6 && !mc.qkv_bias && !mc.o_bias &&
                                         !mc.mlp_bias && !mc.tie_word_embeddings && mc.rope_theta == 10000 &&
                                         !mc.layers);
    READS("{'model_type': 'mistral', 'num_hidden_layers': 2}", mc.num_key_value_heads == 8 && mc.layers &&
                                                                   mc.layers[0].slides && mc.layers[1].slides &&
                                                                   mc.sliding_window == 4096);
    READS("{'model_type': 'qwen2', 'sliding_window': 64}",
          mc.qkv_bias && !mc.o_bias && !mc.layers && mc.head_dim == 128 && mc.n_eos == 0 && mc.bos_token_id == -1);
    READS("{'model_type': 'qwen3', 'hidden_size': 1024, 'num_attention_heads': 16, 'num_key_value_heads': 8}",
          mc.qk_norm && mc.head_dim == 128 && !mc.qkv_bias);
    READS("{'model_type': 'olmo2'}",
          mc.qk_norm && mc.qk_norm_whole && mc.norm_eps == 1e-5 && mc.pad_token_id == 1 && mc.vocab_size == 50304);
    READS("{'model_type': 'olmo3'}", mc.qk_norm_whole && mc.rope_theta == 5e5 && mc.rope_local_theta == 5e5 &&
                                         mc.sliding_window == 4096 && every(&mc, olmo3));
    READS("{'model_type': 'seed_oss'}", mc.qkv_bias && !mc.o_bias && !mc.mlp_bias && mc.attn_pdrop == 0.1 &&
                                            mc.resid_pdrop == 0.1 && mc.head_dim == 128 &&
                                            mc.num_attention_heads == 80 && mc.pad_token_id == 1);
    READS("{'model_type': 'phi3'}", mc.num_key_value_heads == 32 && mc.head_dim == 96 && mc.sliding_window == 0 &&
                                        !mc.layers && mc.rope_original_max_position == 4096 &&
                                        dt_model_rotary_dim(&mc) == 96 && !mc.rope_neighbours);
    READS("{'model_type': 'glm4', 'eos_token_id': null}",
          mc.qkv_bias && !mc.o_bias && mc.rope_neighbours && dt_model_rotary_dim(&mc) == 64 && mc.n_eos == 3 &&
              mc.eos_token_id[2] == 151338 && mc.num_key_value_heads == 2);
    READS("{'model_type': 'ministral3'}",
          mc.rope_type == DT_ROPE_YARN && mc.rope_theta == 1e6 && mc.rope_factor == 16 && !mc.layers &&
              mc.rope_original_max_position == 16384 && mc.q_scaling_beta == 0.1 && mc.head_dim == 128);
    /* the text model of a multimodal model, which ties its head outside of text_config */
    READS("{'model_type': 'mistral3', 'text_config': {'model_type': 'ministral3'}}",
          mc.q_scaling_beta == 0.1 && mc.tie_word_embeddings);
    READS("{'model_type': 'mistral3', 'tie_word_embeddings': false, 'text_config': {'hidden_size': 64}}",
          mc.q_scaling_beta == 0 && mc.hidden_size == 64 && !mc.tie_word_embeddings);
    READS("{'model_type': 'internlm3', 'qkv_bias': true, 'bias': false}",
          mc.qkv_bias && !mc.o_bias && !mc.mlp_bias && mc.num_key_value_heads == 2 && mc.head_dim == 128);
    READS("{'model_type': 'internlm2', 'pad_token_id': 2, 'rope_scaling': {'type': 'dynamic', 'factor': 2}}",
          strcmp(dt_family_name(mc.family), "llama") == 0 && mc.vocab_size == 103168 && mc.qkv_bias && mc.o_bias &&
              !mc.mlp_bias && mc.pad_token_id == 2 && mc.rope_type == DT_ROPE_DYNAMIC && !strstr(mc.json, "internlm2"));
    READS("{'model_type': 'internlm2', 'bias': false, 'auto_map': {}}",
          !mc.qkv_bias && !mc.o_bias && mc.pad_token_id == 0 && !strstr(mc.json, "auto_map"));
    READS("{'model_type': 'chatglm', 'multi_query_attention': true, 'add_qkv_bias': true, 'eos_token_id': 2}",
          strcmp(dt_family_name(mc.family), "glm") == 0 && mc.num_hidden_layers == 28 && mc.num_key_value_heads == 1 &&
              mc.head_dim == 128 && mc.intermediate_size == 13696 && mc.vocab_size == 65024 && mc.pad_token_id == -1 &&
              mc.max_position_embeddings == 2048 && mc.norm_eps == 1e-5 && mc.rope_theta == 10000 && mc.qkv_bias &&
              !mc.o_bias && mc.partial_rotary_factor == 0.5 && mc.rope_neighbours && !mc.tie_word_embeddings);
    READS("{'model_type': 'chatglm', 'multi_query_attention': true, 'multi_query_group_num': 2, 'num_layers': 40, "
          "'num_hidden_layers': 7, 'padded_vocab_size': 151552, 'rope_ratio': 500, 'seq_length': 131072}",
          mc.num_hidden_layers == 40 && mc.num_key_value_heads == 2 && !mc.qkv_bias && mc.rope_theta == 5e6 &&
              mc.n_eos == 3 && mc.max_position_embeddings == 131072);
    READS("{'model_type': 'granite', 'logits_scaling': 8}",
          mc.embedding_multiplier == 1 && mc.attention_multiplier == 1 && mc.residual_multiplier == 1 &&
              mc.logits_scaling == 8 && mc.pad_token_id == -1);
    /* torch: the last row */
    READS("{'model_type': 'llama', 'vocab_size': 50, 'pad_token_id': -1}", mc.pad_token_id == 49);
    READS("{'model_type': 'smollm3', 'pad_token_id': null}", mc.tie_word_embeddings && mc.num_key_value_heads == 4 &&
                                                                 mc.pad_token_id == -1 && mc.sliding_window == 0 &&
                                                                 mc.rope_theta == 2e6 && every(&mc, smollm3));
    READS("{'model_type': 'gemma2', 'hidden_act': 'gelu'}",
          mc.norm_plus_one && mc.tie_word_embeddings && mc.act == DT_ACT_GELU_TANH && mc.head_dim == 256 &&
              mc.attn_softcap == 50 && mc.final_softcap == 30 && mc.attention_multiplier == 1.0 / 16 &&
              mc.embedding_multiplier == 48 && mc.embedding_multiplier_rounded && mc.rope_theta == 1e4 &&
              mc.rope_local_theta == 0 && mc.sliding_window == 4096 && mc.pad_token_id == 0 && !mc.qk_norm &&
              every(&mc, gemma2));
    READS("{'model_type': 'gemma2', 'attn_logit_softcapping': null, 'final_logit_softcapping': null}",
          mc.attn_softcap == 0 && mc.final_softcap == 0);
    READS("{'model_type': 'gemma3_text'}",
          mc.norm_plus_one && mc.qk_norm && mc.attn_softcap == 0 && mc.final_softcap == 0 && mc.rope_theta == 1e6 &&
              mc.rope_local_theta == 1e4 && mc.vocab_size == 262208 && every(&mc, gemma3));
}

TEST(spellings_of_one_thing_mean_the_same)
{
    dt_model_config a =
        parsed("{'model_type': 'llama', 'rope_theta': 500000, 'rope_scaling': {'type': 'linear', 'factor': 4}}");
    dt_model_config b = parsed("{'model_type': 'llama', 'rope_scaling': null, 'rope_parameters': {'rope_type': "
                               "'linear', 'factor': 4.0, 'rope_theta': 500000.0}}");
    assert_true(a.rope_type == DT_ROPE_LINEAR && b.rope_type == DT_ROPE_LINEAR && a.rope_factor == 4 &&
                b.rope_factor == 4);
    assert_true(a.rope_theta == 5e5 && b.rope_theta == 5e5);
    dt_model_config_free(&a);
    dt_model_config_free(&b);
    a = parsed("{'model_type': 'qwen3', 'rope_theta': 7, 'rope_parameters': {'rope_type': 'default', 'rope_theta': 9}, "
               "'rope_scaling': {'type': 'linear', 'factor': 4}}");
    b = parsed("{'model_type': 'qwen3', 'rope_theta': 7, 'rope_parameters': {'rope_type': 'default', 'rope_theta': 9}, "
               "'rope_scaling': {}}");
    assert_true(a.rope_type == DT_ROPE_LINEAR && a.rope_factor == 4 && a.rope_theta == 7);
    assert_true(b.rope_type == DT_ROPE_DEFAULT && b.rope_theta == 9);
    dt_model_config_free(&a);
    dt_model_config_free(&b);
    READS("{'model_type': 'gemma3_text', 'rope_parameters': {'full_attention': {'rope_type': 'linear', 'factor': 2, "
          "'rope_theta': 9}, 'sliding_attention': {'rope_theta': 3}}, 'rope_scaling': {'rope_type': 'linear', "
          "'factor': 4}}",
          mc.rope_type == DT_ROPE_LINEAR && mc.rope_factor == 4 && mc.rope_theta == 9 && mc.rope_local_theta == 3);

    /* the default bos, 50256, is outside a vocabulary of 100 */
    READS("{'model_type': 'gpt2', 'hidden_size': 24, 'num_attention_heads': 3, 'num_hidden_layers': 2, "
          "'vocab_size': 100, 'eos_token_id': [3, 5], 'n_inner': null, 'hidden_act': 'gelu'}",
          mc.hidden_size == 24 && mc.intermediate_size == 96 && mc.n_eos == 2 && mc.eos_token_id[1] == 5 &&
              mc.act == DT_ACT_GELU && mc.bos_token_id == -1);

    READS("{'model_type': 'qwen2', 'num_hidden_layers': 4, 'use_sliding_window': true, 'sliding_window': 64, "
          "'max_window_layers': 3}",
          mc.layers && !mc.layers[2].slides && mc.layers[3].slides && mc.sliding_window == 64);
    READS("{'model_type': 'qwen3', 'num_hidden_layers': 2, 'use_sliding_window': true, 'sliding_window': 64, "
          "'layer_types': ['sliding_attention', 'full_attention']}",
          mc.layers && mc.layers[0].slides && !mc.layers[1].slides);
    READS("{'model_type': 'mistral', 'sliding_window': null, 'num_key_value_heads': null}",
          !mc.layers && mc.num_key_value_heads == 32);
    READS("{'model_type': 'deepseek_v3', 'norm_topk_prob': null, 'rope_interleave': null}",
          !mc.norm_topk_prob && !mc.rope_neighbours);
}

TEST(the_text_kept_parses_to_the_same)
{
    dt_model_config a =
        parsed("{'model_type': 'llama', 'hidden_size': 64, 'num_attention_heads': 4, 'unknown': [1, {'x': 2}]}");
    dt_model_config b = parsed(a.json);
    assert_string_equal(a.json, b.json);
    assert_true(a.hidden_size == b.hidden_size && a.head_dim == b.head_dim);
    dt_model_config_free(&a);
    dt_model_config_free(&b);
}

/* ---- mistakes ---- */

TEST(unsupported_values_are_named_with_file_and_key)
{
    static const struct {
        const char *json, *key, *value;
    } BAD[] = {
        {"{'model_type': 'phimoe'}", "model_type", "phimoe"},
        {"{}", "model_type", "nothing"},
        {"{'model_type': 'llama', 'hidden_act': 'relu6'}", "hidden_act", "relu6"},
        {"{'model_type': 'llama', 'hidden_size': '64'}", "hidden_size", "'64'"},
        {"{'model_type': 'llama', 'hidden_size': 64.5}", "hidden_size", "64.5"},
        {"{'model_type': 'llama', 'vocab_size': 0}", "vocab_size", "0"},
        {"{'model_type': 'llama', 'vocab_size': 1e30}", "vocab_size", "1e30"},
        {"{'model_type': 'llama', 'num_key_value_heads': 5}", "num_key_value_heads", "5"},
        {"{'model_type': 'llama', 'hidden_size': 100, 'num_attention_heads': 3}", "hidden_size", "100"},
        {"{'model_type': 'llama', 'head_dim': 7}", "head_dim", "7"},
        {"{'model_type': 'llama', 'hidden_size': 16777216, 'intermediate_size': 16777216}", "intermediate_size",
         "at most 17592186044416"},
        {"{'model_type': 'llama', 'hidden_size': 16777216, 'vocab_size': 1073741824}", "vocab_size",
         "at most 17592186044416"},
        {"{'model_type': 'llama', 'hidden_size': 65536, 'num_hidden_layers': 65536}", "num_hidden_layers",
         "at most 17592186044416"},
        {"{'model_type': 'llama', 'partial_rotary_factor': 0.5}", "partial_rotary_factor", "0.5"},
        {"{'model_type': 'llama', 'quantization_config': {'bits': 4}}", "quantization_config.quant_method",
         "bitsandbytes"},
        {"{'model_type': 'llama', 'num_local_experts': 8}", "num_local_experts", "8"},
        {"{'model_type': 'llama', 'rope_scaling': {'partial_rotary_factor': 0.5}}",
         "rope_scaling.partial_rotary_factor", "0.5"},
        {"{'model_type': 'llama', 'rope_scaling': {'rope_type': 'ntk'}}", "rope_scaling.rope_type", "ntk"},
        {"{'model_type': 'phi3', 'rope_scaling': {'rope_type': 'longrope'}}", "rope_scaling", "short_factor"},
        {"{'model_type': 'phi3', 'head_dim': 4, 'rope_scaling': {'rope_type': 'longrope', 'short_factor': [1, 1]}}",
         "rope_scaling", "long_factor"},
        {"{'model_type': 'phi3', 'head_dim': 4, 'rope_scaling': {'rope_type': 'longrope', 'short_factor': [1]}}",
         "rope_scaling.short_factor", "a list of 2 numbers"},
        {"{'model_type': 'phi3', 'head_dim': 4, 'rope_scaling': {'rope_type': 'longrope', 'long_factor': [1, 0]}}",
         "rope_scaling.long_factor", "a list of 2 numbers above 0"},
        {"{'model_type': 'phi3', 'head_dim': 4, 'original_max_position_embeddings': 1, 'rope_scaling': {'type': 'su', "
         "'short_factor': [1, 1], 'long_factor': [1, 2]}}",
         "original_max_position_embeddings", "more than 1"},
        {"{'model_type': 'phi3', 'rope_scaling': {'rope_type': 'linear', 'factor': 2}}", "rope_scaling",
         "default or longrope"},
        {"{'model_type': 'phi3', 'head_dim': 12, 'partial_rotary_factor': 0.3}", "partial_rotary_factor", "0.3"},
        {"{'model_type': 'glm4', 'partial_rotary_factor': 1.5}", "partial_rotary_factor", "1.5"},
        {"{'model_type': 'mixtral', 'num_local_experts': 5000}", "num_local_experts", "5000"},
        {"{'model_type': 'mixtral', 'num_local_experts': 4, 'num_experts_per_tok': 5}", "num_experts_per_tok", "5"},
        {"{'model_type': 'mixtral', 'sliding_window': 'none'}", "sliding_window", "none"},
        {"{'model_type': 'llama', 'num_experts': '8'}", "num_experts", "8"},
        {"{'model_type': 'llama', 'pad_token_id': '<pad>'}", "pad_token_id", "<pad>"},
        {"{'model_type': 'mixtral', 'router_jitter_noise': 0.1}", "router_jitter_noise", "0.1"},
        {"{'model_type': 'gpt_oss', 'swiglu_alpha': 1.5}", "swiglu_alpha", "1.702"},
        {"{'model_type': 'gpt_oss', 'swiglu_limit': 0}", "swiglu_limit", "0"},
        {"{'model_type': 'gpt_oss', 'hidden_act': 'gelu'}", "hidden_act", "silu"},
        {"{'model_type': 'gpt_oss', 'quantization_config': {'quant_method': 'gptq'}}",
         "quantization_config.quant_method", "expected bitsandbytes, fp8, mxfp4 or compressed-tensors"},
        {"{'model_type': 'qwen3', 'quantization_config': 8}", "quantization_config", "an object"},
        {"{'model_type': 'qwen3', 'quantization_config': {'quant_method': 'compressed-tensors'}}",
         "quantization_config.format", "float-quantized"},
        {"{'model_type': 'qwen3_moe', 'moe_intermediate_size': 0}", "moe_intermediate_size", "0"},
        {"{'model_type': 'qwen3_moe', 'mlp_only_layers': ['1']}", "mlp_only_layers", "a list of layer numbers"},
        {"{'model_type': 'qwen3_moe', 'mlp_only_layers': 1}", "mlp_only_layers", "a list of layer numbers"},
        {"{'model_type': 'qwen3_next', 'mlp_only_layers': [1.5]}", "mlp_only_layers", "a list of layer numbers"},
        {"{'model_type': 'qwen3_next', 'linear_num_key_heads': 3}", "linear_num_key_heads", "found 3"},
        {"{'model_type': 'qwen3_moe', 'router_aux_loss_coef': -1}", "router_aux_loss_coef", "-1"},
        {"{'model_type': 'qwen3_moe', 'num_hidden_layers': 65536, 'num_experts': 4096, 'hidden_size': 65536}",
         "num_experts", "at most 17592186044416"},
        {"{'model_type': 'qwen3_moe', 'num_hidden_layers': 2000, 'num_experts': 200, 'hidden_size': 64}", "num_experts",
         "at most 1048576 matrices of experts, found 1200000"},
        {"{'model_type': 'llama', 'rope_scaling': {'rope_type': 'linear'}}", "rope_scaling", "factor"},
        {"{'model_type': 'llama', 'rope_scaling': {'rope_type': 'llama3', 'factor': 8}}", "rope_scaling",
         "low_freq_factor"},
        {"{'model_type': 'llama', 'rope_scaling': 'linear'}", "rope_scaling", "linear"},
        {"{'model_type': 'llama', 'rope_parameters': {'full_attention': {'rope_type': 'default'}}}", "rope_parameters",
         "full"},
        {"{'model_type': 'llama', 'layer_types': ['sliding_attention'], 'num_hidden_layers': 1}", "layer_types",
         "sliding"},
        {"{'model_type': 'qwen2', 'layer_types': ['full_attention'], 'num_hidden_layers': 2}", "layer_types",
         "2 words"},
        {"{'model_type': 'qwen2', 'layer_types': ['chunked_attention'], 'num_hidden_layers': 1}", "layer_types",
         "chunked"},
        {"{'model_type': 'gpt2', 'add_cross_attention': true}", "add_cross_attention", "true"},
        {"{'model_type': 'gpt2', 'resid_pdrop': 1.5}", "resid_pdrop", "1.5"},
        {"{'model_type': 'gpt2', 'eos_token_id': 'x'}", "eos_token_id", "x"},
        {"{'model_type': 'gpt2', 'scale_attn_weights': 1}", "scale_attn_weights", "1"},
        {"{'model_type': 'granite', 'residual_multiplier': 0}", "residual_multiplier", "0"},
        {"{'model_type': 'smollm3', 'num_hidden_layers': 3, 'no_rope_layers': [1, 0]}", "no_rope_layers",
         "a 0 or 1 for each layer"},
        {"{'model_type': 'smollm3', 'no_rope_layer_interval': 0}", "no_rope_layer_interval", "0"},
        {"{'model_type': 'mistral3', 'text_config': {'model_type': 'llama'}}", "text_config.model_type", "mistral"},
        {"{'model_type': 'mistral3', 'text_config': {}, 'quantization_config': {}}", "quantization_config.quant_method",
         "nothing"},
        {"{'model_type': 'ministral3', 'rope_theta': 7}", "rope_theta", "rope_parameters"},
        {"{'model_type': 'ministral3', 'rope_parameters': {'type': 'dynamic', 'factor': 2, 'llama_4_scaling_beta': 1}}",
         "rope_parameters.rope_type", "does not depend"},
        {"{'model_type': 'gemma2', 'final_logit_softcapping': 0}", "final_logit_softcapping", "0"},
        {"{'model_type': 'gemma2', 'use_bidirectional_attention': true}", "use_bidirectional_attention", "true"},
        {"{'model_type': 'gemma3_text', 'attn_logit_softcapping': 50}", "attn_logit_softcapping", "50"},
        {"{'model_type': 'gemma3_text', 'rope_scaling': {'rope_type': 'dynamic', 'factor': 2}}", "rope_scaling",
         "dynamic"},
        {"{'model_type': 'gemma3_text', 'rope_parameters': {'rope_type': 'default'}}", "rope_parameters",
         "sliding_attention"},
        {"{'model_type': 'gemma3_text', 'rope_parameters': {'sliding_attention': {'rope_type': 'linear', "
         "'factor': 2}}}",
         "rope_parameters.sliding_attention.rope_type", "linear"},
        {"{'model_type': 'qwen3_5_text', 'layer_types': ['sliding_attention'], 'num_hidden_layers': 1}", "layer_types",
         "linear_attention"},
        {"{'model_type': 'qwen3_5_text', 'layer_types': ['full_attention'], 'num_hidden_layers': 2}", "layer_types",
         "2 words"},
        {"{'model_type': 'qwen3_5_text', 'linear_num_key_heads': 5}", "linear_num_key_heads", "a divisor"},
        {"{'model_type': 'qwen3_5_text', 'linear_key_head_dim': 257}", "linear_key_head_dim", "257"},
        {"{'model_type': 'qwen3_5_text', 'linear_conv_kernel_dim': 9}", "linear_conv_kernel_dim", "9"},
        {"{'model_type': 'qwen3_5_text', 'attn_output_gate': false}", "attn_output_gate", "true"},
        {"{'model_type': 'qwen3_5_text', 'hidden_act': 'gelu'}", "hidden_act", "silu"},
        {"{'model_type': 'deepseek_v3', 'n_group': 3}", "n_group", "a divisor"},
        {"{'model_type': 'deepseek_v3', 'n_group': 128, 'n_routed_experts': 128}", "n_group", "128"},
        {"{'model_type': 'deepseek_v3', 'n_routed_experts': 8}", "n_group", "at least 2"},
        {"{'model_type': 'deepseek_v3', 'topk_group': 9}", "topk_group", "9"},
        {"{'model_type': 'deepseek_v3', 'n_group': 2}", "topk_group", "at most n_group=2"},
        {"{'model_type': 'deepseek_v3', 'n_routed_experts': 16, 'num_experts_per_tok': 9}", "num_experts_per_tok",
         "8 experts of topk_group=4"},
        {"{'model_type': 'deepseek_v3', 'n_routed_experts': 6, 'n_group': 1}", "num_experts_per_tok", "8"},
        {"{'model_type': 'deepseek_v3', 'num_key_value_heads': 64}", "num_key_value_heads", "latent attention"},
        {"{'model_type': 'deepseek_v3', 'qk_rope_head_dim': 3}", "qk_rope_head_dim", "even"},
        {"{'model_type': 'deepseek_v3', 'qk_nope_head_dim': 193}", "qk_nope_head_dim", "193"},
        {"{'model_type': 'deepseek_v3', 'v_head_dim': 257}", "v_head_dim", "257"},
        {"{'model_type': 'deepseek_v3', 'q_lora_rank': 0}", "q_lora_rank", "0"},
        {"{'model_type': 'deepseek_v3', 'q_lora_rank': null, 'attention_bias': true}", "attention_bias", "q_lora_rank"},
        {"{'model_type': 'deepseek_v3', 'scoring_func': 'softmax'}", "scoring_func", "sigmoid"},
        {"{'model_type': 'deepseek_v3', 'topk_method': 'greedy'}", "topk_method", "noaux_tc"},
        {"{'model_type': 'deepseek_v3', 'moe_layer_freq': 2}", "moe_layer_freq", "2"},
        {"{'model_type': 'deepseek_v3', 'routed_scaling_factor': 0}", "routed_scaling_factor", "0"},
        {"{'model_type': 'deepseek_v3', 'quantization_config': {'quant_method': 'fp8', 'weight_block_size': [64, "
         "128]}}",
         "quantization_config.weight_block_size", "[128, 128] or null"},
        {"{'model_type': 'deepseek_v3', 'quantization_config': {'quant_method': 'fp8', 'fmt': 'e5m2'}}",
         "quantization_config.fmt", "e4m3"},
        {"{'model_type': 'deepseek_v2', 'norm_topk_prob': true}", "norm_topk_prob", "false"},
        {"{'model_type': 'deepseek_v2', 'topk_method': 'noaux_tc'}", "topk_method", "group_limited_greedy"},
        {"{'model_type': 'deepseek_v2', 'scoring_func': 'sigmoid'}", "scoring_func", "softmax"},
        {"{'model_type': 'deepseek_v2', 'mlp_bias': true}", "mlp_bias", "true"},
        {"{'model_type': 'glm4_moe', 'head_dim': 64, 'n_shared_experts': 0}", "n_shared_experts", "0"},
        {"{'model_type': 'chatglm'}", "multi_query_attention", "true"},
        {"{'model_type': 'chatglm', 'multi_query_attention': true, 'rmsnorm': false}", "rmsnorm", "found false"},
        {"{'model_type': 'chatglm', 'multi_query_attention': true, 'hidden_dropout': 0.1}", "hidden_dropout", "0.1"},
        {"{'model_type': 'chatglm', 'multi_query_attention': true, 'quantization_bit': 4}", "quantization_bit", "4"},
        {"{'model_type': 'chatglm', 'multi_query_attention': true, 'position_encoding_2d': true}",
         "position_encoding_2d", "true"},
        {"{'model_type': 'chatglm', 'multi_query_attention': true, 'multi_query_group_num': 3}",
         "chatglm, read as glm): num_key_value_heads", "found 3"},
        {"{'model_type': 'chatglm', 'multi_query_attention': true, 'rope_ratio': '2'}", "rope_theta", "2"},
        {"{'model_type': 'internlm2', 'rope_scaling': {'type': 'ntk', 'factor': 2}}",
         "internlm2, read as llama): rope_scaling.type", "ntk"},
        {"{'model_type': 'internlm2', 'bias': 1}", "attention_bias", "1"},
        {"{'model_type': 'baichuan'}", "model_type", "internlm2, chatglm or llava"},
        {"{'model_type': 'qwen3_5', 'vision_config': {}}", "text_config", "nothing"},
        {"{'model_type': 'qwen3_5', 'text_config': {'head_dim': 'x'}}", "text_config.head_dim", "x"},
        {"[1]", "config.json", "[1]"},
        {"{'model_type': ", "config.json", "JSON"},
    };
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++) {
        dt_model_config mc;
        dt_error_clear();
        if (dt_model_config_parse(&mc, "config.json", quoted(BAD[i].json)) != DT_ERR_DATA)
            fail_msg("%s is not refused", BAD[i].json);
        const char *text = dt_error_message();
        if (!strstr(text, "config.json") || !strstr(text, BAD[i].key) || !strstr(text, quoted(BAD[i].value)))
            fail_msg("%s\n-> %s", BAD[i].json, text);
        assert_null(mc.json);
        assert_null(mc.layers);
    }
}

/* ---- the [model] section ---- */

static dt_err from_ini(dt_model_config *mc, const char *ini)
{
    dt_config cfg = {0};
    dt_error_clear();
    dt_err err = dt_config_parse(&cfg, "input.ini", quoted(ini), 0, NULL);
    if (err == DT_OK) err = dt_model_config_from_keys(mc, &cfg, DT_MODEL_USUAL);
    dt_config_free(&cfg);
    return err;
}

/* ChatGLM2's code divides positions by rope_ratio, and that of newer models multiplies the base. */
TEST(rope_ratio_of_chatglm2_is_refused)
{
    static const char *const BAD[][2] = {{"a/config.json", "'THUDM/chatglm2-6b-32k'"},
                                         {"/models/ChatGLM2-6B-32K/config.json", "'THUDM/chatglm3-6b-32k'"}};
    char json[256];
    for (int i = 0; i < 2; i++) {
        dt_model_config mc;
        snprintf(json, sizeof json,
                 "{'model_type': 'chatglm', 'multi_query_attention': true, 'rope_ratio': 16, '_name_or_path': %s}",
                 BAD[i][1]);
        dt_error_clear();
        assert_int_equal(dt_model_config_parse(&mc, BAD[i][0], quoted(json)), DT_ERR_DATA);
        assert_non_null(strstr(dt_error_message(), BAD[i][0]));
        assert_non_null(strstr(dt_error_message(), "rope_ratio: expected 1, because this model's code divides"));
    }
    READS("{'model_type': 'chatglm', 'multi_query_attention': true, '_name_or_path': 'THUDM/chatglm2-6b'}",
          mc.rope_theta == 1e4);
    READS("{'model_type': 'chatglm', 'multi_query_attention': true, 'rope_ratio': 50, '_name_or_path': "
          "'THUDM/chatglm3-6b-32k'}",
          mc.rope_theta == 5e5);
}

TEST(inline_keys_make_a_model_alone)
{
    dt_model_config mc;
    const char *ini = "[model]\nmodel_type = llama\nhidden_size = 64\nnum_attention_heads = 4\nnum_hidden_layers = "
                      "2\nintermediate_size = 96\nvocab_size = 256\nrope_scaling = {'rope_type': 'linear', 'factor': "
                      "2}\ntie_word_embeddings = true\n";
    if (from_ini(&mc, ini) != DT_OK) fail_msg("%s", dt_error_message());
    assert_true(mc.hidden_size == 64 && mc.num_hidden_layers == 2 && mc.tie_word_embeddings && mc.rope_factor == 2);
    assert_non_null(strstr(mc.json, "LlamaForCausalLM"));
    dt_model_config again = parsed(mc.json);
    assert_true(again.intermediate_size == 96 && again.vocab_size == 256);
    dt_model_config_free(&again);
    dt_model_config_free(&mc);

    assert_int_equal(from_ini(&mc, "[model]\nmodel_type = gpt2\nhidden_size = 48\nnum_attention_heads = 4\ndropout = "
                                   "0.25\nrms_norm_eps = 1e-6\n"),
                     DT_OK);
    assert_true(mc.hidden_size == 48 && mc.attn_pdrop == 0.25 && mc.embd_pdrop == 0.25 && mc.norm_eps == 1e-6);
    assert_non_null(strstr(mc.json, "n_embd"));
    dt_model_config_free(&mc);
    assert_int_equal(from_ini(&mc, "[model]\nmodel_type = mixtral\nnum_experts = 4\noutput_router_logits = true\n"),
                     DT_OK);
    assert_true(mc.num_experts == 4 && mc.router_aux_loss_coef == 0.001);
    dt_model_config_free(&mc);
}

TEST(inline_keys_override_a_file)
{
    char path[] = "/tmp/dtrain-config-XXXXXX", ini[256];
    const int fd = mkstemp(path);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    assert_non_null(f);
    fputs(
        quoted("{'model_type': 'qwen3', 'hidden_size': 64, 'num_attention_heads': 4, 'num_key_value_heads': 2, "
               "'num_hidden_layers': 2,\n'rope_parameters': {'rope_type': 'yarn', 'factor': 4.0, 'rope_theta': 1000}}"),
        f);
    fclose(f);
    dt_model_config mc;
    snprintf(ini, sizeof ini, "[model]\nconfig = %s\nnum_hidden_layers = 3\nrope_theta = 500\n", path);
    if (from_ini(&mc, ini) != DT_OK) fail_msg("%s", dt_error_message());
    assert_true(mc.num_hidden_layers == 3 && mc.hidden_size == 64 && mc.rope_theta == 500 &&
                mc.rope_type == DT_ROPE_YARN);
    dt_model_config_free(&mc);
    snprintf(ini, sizeof ini, "[model]\nconfig = %s\nrope_scaling = null\n", path);
    assert_int_equal(from_ini(&mc, ini), DT_OK);
    assert_true(mc.rope_theta == 1000 && mc.rope_type == DT_ROPE_DEFAULT);
    dt_model_config_free(&mc);
    remove(path);
}

TEST(an_inline_rule_of_rotation_keeps_base_and_part)
{
    char path[] = "/tmp/dtrain-config-XXXXXX", ini[256];
    const int fd = mkstemp(path);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    dt_model_config mc;
    assert_non_null(f);
    fputs(quoted("{'model_type': 'glm4', 'head_dim': 20, 'rope_parameters': {'rope_theta': 77, "
                 "'partial_rotary_factor': 0.4}}"),
          f);
    fclose(f);
    snprintf(ini, sizeof ini, "[model]\nconfig = %s\nrope_scaling = {'rope_type': 'linear', 'factor': 2}\n", path);
    if (from_ini(&mc, ini) != DT_OK) fail_msg("%s", dt_error_message());
    assert_true(mc.rope_type == DT_ROPE_LINEAR && mc.rope_theta == 77 && dt_model_rotary_dim(&mc) == 8);
    dt_model_config_free(&mc);
    remove(path);
}

TEST(mistakes_in_inline_keys_are_usage_errors_that_name_the_line)
{
    static const struct {
        const char *ini, *say;
    } BAD[] = {
        {"[model]\nmodel_type = llama\nhidden_size = wide\n", "input.ini:3"},
        {"[model]\nmodel_type = llama\ntie_word_embeddings = maybe\n", "true or false"},
        {"[model]\nmodel_type = gpt2\nmlp_bias = false\n", "mlp_bias"},
        {"[model]\nmodel_type = llama\nsliding_window = 64\n", "sliding_window"},
        {"[model]\nmodel_type = qwen2\nsliding_window = 64\n", "use_sliding_window"},
        {"[model]\nmodel_type = bert\n", "model_type"},
        {"[model]\nhidden_size = 64\n", "model_type"},
        {"[model]\nmodel_type = llama\nhidden_size = 65\n", "input.ini:3: [model] hidden_size: expected a multiple"},
        {"[model]\nmodel_type = gpt2\nhidden_size = 65\n", "input.ini:3: [model] hidden_size: expected a multiple"},
        {"[model]\nmodel_type = llama\n\nnum_key_value_heads = 7\n", "input.ini:4: [model] num_key_value_heads"},
        {"[model]\nmodel_type = llama\nnum_attention_heads = 31\n", "input.ini: [model] hidden_size (default)"},
        {"[model]\nmodel_type = llama\nrope_scaling = {'type'\n", "rope_scaling"},
    };
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++) {
        dt_model_config mc;
        const dt_err err = from_ini(&mc, BAD[i].ini);
        if (err != DT_ERR_USAGE || !strstr(dt_error_message(), BAD[i].say))
            fail_msg("%s-> %d %s", BAD[i].ini, err, dt_error_message());
    }
}

/* ---- two models ---- */

/* Ranges of bytes of a configuration that may differ, or that the test below compares separately. */
#define RANGE(member)                                                                                                  \
    {                                                                                                                  \
        offsetof(dt_model_config, member), sizeof(((dt_model_config *)NULL)->member)                                   \
    }
static const size_t SEPARATE[][2] = {RANGE(family), RANGE(act), RANGE(rope_type), RANGE(layers), RANGE(rope_short),
                                     RANGE(rope_long), RANGE(vision), RANGE(json), RANGE(initializer_range),
                                     RANGE(layer_scale), RANGE(router_z_loss_coef), RANGE(bos_token_id),
                                     RANGE(pad_token_id), RANGE(eos_token_id), RANGE(n_eos),
                                     /* of the family, or of another field */
                                     RANGE(learned_positions), RANGE(score_bias), RANGE(headless),
                                     RANGE(linear_grouped), RANGE(rope_axes), RANGE(q_compressed), RANGE(q_plain)};

static bool is_compared(size_t i)
{
    bool compared = true;
    for (size_t k = 0; k < sizeof SEPARATE / sizeof SEPARATE[0]; k++)
        compared = compared && (i < SEPARATE[k][0] || i >= SEPARATE[k][0] + SEPARATE[k][1]);
    return compared;
}

TEST(every_field_that_decides_what_a_model_computes_is_compared)
{
    dt_layer layers[2] = {{0}, {.slides = true}}, other[2] = {{.slides = true}, {.slides = true}},
             unrotated[2] = {{.unrotated = true}, {.slides = true}}, sparse[2] = {{.sparse = true}, {.slides = true}},
             linear[2] = {{.linear = true}, {.slides = true}};
    const dt_model_config a = {.num_hidden_layers = 2, .layers = layers, .rope_theta = 1e4};
    dt_model_config b, members;
    memset(&members, 0, sizeof members);
#if defined __has_builtin && __has_builtin(__builtin_clear_padding)
    memset(&members, 0xff, sizeof members);
    __builtin_clear_padding(&members);
#endif
    for (size_t i = 0; i < sizeof b; i++) {
        if (!((unsigned char *)&members)[i] || !is_compared(i)) continue;
        b = a;
        ((unsigned char *)&b)[i] ^= 1;
        if (n_differences(&a, &b) != 1) fail_msg("byte %zu: %d differences, expected 1", i, n_differences(&a, &b));
    }
#define OTHER(member, value)                                                                                           \
    do {                                                                                                               \
        b = a;                                                                                                         \
        b.member = value;                                                                                              \
        if (n_differences(&a, &b) != 1) fail_msg("%s: %d differences, expected 1", #member, n_differences(&a, &b));    \
    } while (0)
    OTHER(family, dt_family_at(0));
    OTHER(act, DT_ACT_GELU);
    OTHER(rope_type, DT_ROPE_YARN);
    OTHER(layers, other);
    OTHER(layers, NULL);
    OTHER(layers, unrotated);
    OTHER(layers, sparse);
    OTHER(layers, linear);
#undef OTHER
    assert_int_equal(n_differences(&a, &a), 0);
}

TEST(names_are_the_words_that_are_read)
{
    for (int f = 0; dt_family_at(f); f++) {
        char json[64];
        snprintf(json, sizeof json, "{'model_type': '%s'}", dt_family_name(dt_family_at(f)));
        dt_model_config mc = parsed(json);
        assert_ptr_equal(mc.family, dt_family_at(f));
        dt_model_config_free(&mc);
    }
    for (int act = DT_ACT_SILU; act < DT_N_ACT; act++) {
        char json[96];
        snprintf(json, sizeof json, "{'model_type': 'llama', 'hidden_act': '%s'}",
                 dt_activation_name((dt_activation)act));
        dt_model_config mc = parsed(json);
        assert_int_equal(mc.act, act);
        dt_model_config_free(&mc);
    }
    for (int rope = DT_ROPE_DEFAULT; rope < DT_N_ROPE; rope++) {
        char json[256];
        snprintf(json, sizeof json,
                 "{'model_type': 'llama', 'head_dim': 4, 'rope_scaling': {'rope_type': '%s', 'factor': 2, "
                 "'low_freq_factor': 1, 'high_freq_factor': 4, 'short_factor': [1, 1], 'long_factor': [2, 2]}}",
                 dt_rope_name((dt_rope_type)rope));
        dt_model_config mc = parsed(json);
        assert_int_equal(mc.rope_type, rope);
        dt_model_config_free(&mc);
    }
    assert_string_equal(dt_rope_name(DT_ROPE_NONE), "none");
}

/* ---- unit tables ---- */

static const dt_tensor *find(const dt_unit *u, const char *name)
{
    for (int i = 0; i < u->n_tensors; i++)
        if (strcmp(u->tensors[i].name, name) == 0) return &u->tensors[i];
    fail_msg("no tensor %s in %s", name, u->name);
    return NULL;
}

TEST(units_hold_the_tensors_of_the_published_models)
{
    dt_unit *u;
    int n;
    dt_model_config mc = parsed("{'model_type': 'gpt2'}");
    assert_int_equal(dt_model_make_units(&mc, &u, &n), DT_OK);
    assert_int_equal(n, 14);
    assert_int_equal(n_parameters(mc.json), 124439808);
    assert_string_equal(u[0].name, "embed");
    assert_string_equal(u[3].name, "block.2");
    assert_string_equal(u[13].name, "head");
    const dt_tensor *t = find(&u[1], "transformer.h.0.attn.c_attn.weight");
    assert_true(t->n_dims == 2 && t->shape[0] == 768 && t->shape[1] == 2304 && t->decay &&
                fabsf(t->init_std - 0.02f) < 1e-9f);
    assert_true(fabsf(find(&u[12], "transformer.h.11.mlp.c_proj.weight")->init_std - 0.02f / sqrtf(24)) < 1e-9f);
    assert_true(!find(&u[13], "transformer.ln_f.weight")->decay &&
                find(&u[13], "transformer.ln_f.weight")->init_value == 1);
    dt_model_free_units(u, n);
    dt_model_config_free(&mc);
    assert_int_equal(
        n_parameters("{'model_type': 'qwen3', 'hidden_size': 1024, 'intermediate_size': 3072, 'num_hidden_layers': 28, "
                     "'num_attention_heads': 16, 'num_key_value_heads': 8, 'head_dim': 128, 'tie_word_embeddings': "
                     "true}"),
        596049920);
    assert_int_equal(n_parameters("{'model_type': 'llama', 'intermediate_size': 14336, 'num_key_value_heads': 8, "
                                  "'vocab_size': 128256}"),
                     8030261248);
}

TEST(tensors_say_what_they_are)
{
    static const struct {
        const char *config, *name;
        dt_tensor_kind kind;
        dt_adapter_site site;
        bool quantisable, in_first;
        int split;
    } ALL[] = {
        {"gpt2", "transformer.wte.weight", DT_KIND_EMBEDDING, DT_SITE_NAMED, false, false, 0},
        {"gpt2", "transformer.wpe.weight", DT_KIND_EMBEDDING, DT_SITE_NAMED, false, false, -1},
        {"gpt2", "transformer.h.0.ln_1.weight", DT_KIND_NORM, DT_SITE_NONE, false, false, -1},
        {"gpt2", "transformer.h.0.ln_1.bias", DT_KIND_VECTOR, DT_SITE_NONE, false, false, -1},
        {"gpt2", "transformer.h.0.attn.c_attn.weight", DT_KIND_MATRIX, DT_SITE_DEFAULT, true, true, 1},
        {"gpt2", "transformer.h.0.attn.c_attn.bias", DT_KIND_VECTOR, DT_SITE_NONE, false, false, 0},
        {"gpt2", "transformer.h.0.mlp.c_proj.weight", DT_KIND_MATRIX, DT_SITE_LINEAR, true, true, 0},
        {"gpt2", "transformer.h.0.mlp.c_proj.bias", DT_KIND_VECTOR, DT_SITE_NONE, false, false, -1},
        {"llama", "model.embed_tokens.weight", DT_KIND_EMBEDDING, DT_SITE_NAMED, false, false, 0},
        {"llama", "model.layers.0.self_attn.k_proj.weight", DT_KIND_MATRIX, DT_SITE_LINEAR, true, false, 0},
        {"llama", "model.layers.0.self_attn.v_proj.weight", DT_KIND_MATRIX, DT_SITE_DEFAULT, true, false, 0},
        {"llama", "model.layers.0.mlp.down_proj.weight", DT_KIND_MATRIX, DT_SITE_LINEAR, true, false, 1},
        {"llama", "lm_head.weight", DT_KIND_HEAD, DT_SITE_NAMED, false, false, 0},
        {"qwen3", "model.layers.0.self_attn.q_norm.weight", DT_KIND_NORM, DT_SITE_NONE, false, false, -1},
    };
    for (size_t i = 0; i < sizeof ALL / sizeof ALL[0]; i++) {
        char json[128];
        dt_unit *u;
        int n;
        snprintf(json, sizeof json, "{'model_type': '%s', 'num_hidden_layers': 1, 'tie_word_embeddings': false}",
                 ALL[i].config);
        dt_model_config mc = parsed(json);
        assert_int_equal(dt_model_make_units(&mc, &u, &n), DT_OK);
        const dt_tensor *t = NULL;
        for (int k = 0; k < n && !t; k++)
            for (int j = 0; j < u[k].n_tensors; j++)
                if (strcmp(u[k].tensors[j].name, ALL[i].name) == 0) t = &u[k].tensors[j];
        assert_non_null(t);
        if (t->kind != ALL[i].kind || t->site != ALL[i].site || t->quantisable != ALL[i].quantisable ||
            t->in_first != ALL[i].in_first || t->split != ALL[i].split)
            fail_msg("%s of %s", ALL[i].name, ALL[i].config);
        dt_model_free_units(u, n);
        dt_model_config_free(&mc);
    }
}

TEST(matrices_that_one_matmul_serves_are_adjacent)
{
    dt_unit *u;
    int n;
    dt_model_config mc = parsed("{'model_type': 'llama', 'hidden_size': 20, 'num_attention_heads': 10, "
                                "'num_key_value_heads': 5, 'head_dim': 6, 'intermediate_size': 27, "
                                "'num_hidden_layers': 1, 'vocab_size': 61, 'attention_bias': true, 'mlp_bias': true}");
    static const char *const PAIRS[][2] = {
        {"self_attn.q_proj.weight", "self_attn.k_proj.weight"}, {"self_attn.k_proj.weight", "self_attn.v_proj.weight"},
        {"self_attn.q_proj.bias", "self_attn.k_proj.bias"},     {"self_attn.k_proj.bias", "self_attn.v_proj.bias"},
        {"mlp.gate_proj.weight", "mlp.up_proj.weight"},         {"mlp.gate_proj.bias", "mlp.up_proj.bias"}};
    assert_int_equal(dt_model_make_units(&mc, &u, &n), DT_OK);
    for (size_t i = 0; i < sizeof PAIRS / sizeof PAIRS[0]; i++) {
        char a[96], b[96];
        snprintf(a, sizeof a, "model.layers.0.%s", PAIRS[i][0]);
        snprintf(b, sizeof b, "model.layers.0.%s", PAIRS[i][1]);
        const dt_tensor *first = find(&u[1], a), *second = find(&u[1], b);
        assert_int_equal(second->offset, first->offset + first->n_elems);
        assert_int_equal(find(&u[1], "model.layers.0.self_attn.q_proj.weight")->offset % DT_GROUP_ALIGN, 0);
    }
    assert_int_equal(find(&u[1], "model.layers.0.self_attn.o_proj.weight")->shape[1], 60);
    dt_model_free_units(u, n);
    dt_model_config_free(&mc);
}

/* ---- operations ---- */

TEST(operations_of_gpt2_are_six_per_weight_and_token)
{
    dt_model_config mc = parsed("{'model_type': 'gpt2'}");
    /* 12 blocks of 12 C^2, the head V C; two sequences of 100: attention 6 L C (2 * 100^2) */
    const double weights = 12 * 12 * 768.0 * 768 + 50257 * 768.0, expected = 6 * weights * 200 + 6 * 12 * 768.0 * 20000;
    dt_unit *u;
    int n;
    assert_int_equal(dt_model_make_units(&mc, &u, &n), DT_OK);
    assert_true(dt_model_train_flops(&mc, u, n, 200, 20000) == expected);
    /* frozen tensors have no gradient */
    dt_units_choose_trained(&u[1], 1, NULL, NULL);
    assert_true(dt_model_train_flops(&mc, u, n, 200, 20000) == expected - 2 * 12 * 768.0 * 768 * 200);
    dt_model_free_units(u, n);
    /* a reward model's head has two rows instead of V */
    assert_int_equal(dt_model_make_value_units(&mc, 2, &u, &n), DT_OK);
    assert_true(dt_model_train_flops(&mc, u, n, 200, 20000) == expected - 6 * (50257 - 2) * 768.0 * 200);
    dt_model_free_units(u, n);
    dt_model_config_free(&mc);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
