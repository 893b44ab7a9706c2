/* gpt2.c - GPT-2: learned positions, LayerNorm, a plain MLP, dropout, matrices stored as [in, out] with biases, and
 * keys of config.json with names of their own. */
#include "family.h"
#include <inttypes.h>

static dt_err read(const dt_spec *root, dt_model_config *mc)
{
    DT_CHECK(mc->num_key_value_heads == mc->num_attention_heads, root->err,
             "%s: num_key_value_heads: expected %" PRId64
             " as n_head (GPT-2 has a key head for each query head), found %" PRId64,
             root->file, mc->num_attention_heads, mc->num_key_value_heads);
    DT_CHECK(mc->head_dim * mc->num_attention_heads == mc->hidden_size, root->err,
             "%s: head_dim: expected n_embd / n_head = %" PRId64 ", found %" PRId64, root->file,
             mc->hidden_size / mc->num_attention_heads, mc->head_dim);
    mc->act = DT_ACT_GELU_TANH;
    mc->qkv_bias = mc->o_bias = mc->mlp_bias = mc->conv1d = mc->tie_word_embeddings = mc->scale_attn_weights = true;
    mc->learned_positions = true;
    mc->attn_pdrop = mc->embd_pdrop = mc->resid_pdrop = 0.1;
    mc->pad_token_id = -1; /* trained like any other */
    DT_TRY(dt_model_read_activation(
        root, dt_spec_has(root, "activation_function") ? "activation_function" : "hidden_act", &mc->act));
    DT_TRY(dt_spec_real(root, dt_spec_has(root, "layer_norm_epsilon") ? "layer_norm_epsilon" : "rms_norm_eps", 0, 1,
                        &mc->norm_eps));
    DT_TRY(dt_spec_real(root, "attn_pdrop", 0, 0.99, &mc->attn_pdrop));
    DT_TRY(dt_spec_real(root, "embd_pdrop", 0, 0.99, &mc->embd_pdrop));
    DT_TRY(dt_spec_real(root, "resid_pdrop", 0, 0.99, &mc->resid_pdrop));
    DT_TRY(dt_spec_bool(root, "scale_attn_weights", &mc->scale_attn_weights));
    DT_TRY(dt_spec_bool(root, "scale_attn_by_inverse_layer_idx", &mc->scale_attn_by_inverse_layer_idx));
    return dt_spec_bool(root, "tie_word_embeddings", &mc->tie_word_embeddings);
}

static const struct module EMBED[MAX_MODULES] = {
    {SLOT_TOKENS, "transformer.wte", SIZE_V, SIZE_C, 0, 0, 0},
    {SLOT_POSITIONS, "transformer.wpe", SIZE_POSITIONS, SIZE_C, 0, 0, 0},
};

/* The initial weights of residual projections are scaled by depth: Radford et al. 2019, section 2.3. */
static const struct module BLOCK[MAX_MODULES] = {
    {SLOT_NORM1, "ln_1", SIZE_C, NO_SIZE, UNCONDITIONAL, 0, 0},
    {SLOT_QKV, "attn.c_attn", SIZE_W, SIZE_C, UNCONDITIONAL, 0, IN_FIRST | ADAPT_BY_DEFAULT},
    {SLOT_O, "attn.c_proj", SIZE_C, SIZE_Q, UNCONDITIONAL, 0, IN_FIRST | DEPTH_SCALED},
    {SLOT_NORM2, "ln_2", SIZE_C, NO_SIZE, UNCONDITIONAL, 0, 0},
    {SLOT_UP, "mlp.c_fc", SIZE_F, SIZE_C, UNCONDITIONAL, 0, IN_FIRST},
    {SLOT_DOWN, "mlp.c_proj", SIZE_C, SIZE_F, UNCONDITIONAL, 0, IN_FIRST | DEPTH_SCALED},
};

static const struct module HEAD[MAX_MODULES] = {
    {SLOT_FINAL_NORM, "transformer.ln_f", SIZE_C, NO_SIZE, UNCONDITIONAL, 0, 0},
    {SLOT_HEAD, "lm_head", SIZE_V, SIZE_C, 0, 0, 0},
    {SLOT_SCORE, "score", SIZE_LABELS, SIZE_C, 0, 0, 0},
};

const dt_family dt_family_gpt2 = {.name = {"gpt2", "GPT2LMHeadModel", "GPT2ForSequenceClassification"},
                                  .missing = {768, 12, 12, 0, 0, 0, 50257, 1024, 1e-5, 50256, 50256, -1},
                                  .names = {{"hidden_size", "n_embd"},
                                            {"intermediate_size", "n_inner"},
                                            {"num_hidden_layers", "n_layer"},
                                            {"num_attention_heads", "n_head"},
                                            {"max_position_embeddings", "n_positions"},
                                            {"rms_norm_eps", "layer_norm_epsilon"},
                                            {"hidden_act", "activation_function"}},
                                  .read = read,
                                  .blocks = "transformer.h.",
                                  .embed = EMBED,
                                  .block = BLOCK,
                                  .head = HEAD,
                                  .steps = dt_steps_pre_norm};
