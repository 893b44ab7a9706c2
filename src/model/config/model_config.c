/* model_config.c - parse and validate config.json.
 *
 * Defaults are those of each family (algorithms.md 8.2), because published files omit keys. A key whose value requests
 * an unsupported computation is an error. A key that dtrain does not read is ignored, because files contain keys for
 * other programs. */
#include "dtrain/model/model.h"
#include "model_config.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Limits far above any model, so low that products of two of them fit in 63 bits. check_total limits the total size. */
enum { MAX_WIDTH = 1 << 24, MAX_LAYERS = 1 << 16, MAX_POSITIONS = 1 << 30 };

static const struct family {
    const char *model_type, *architecture, *classifier;
    dt_family family;
    int64_t intermediate_size, num_key_value_heads /* 0: as query heads */, head_dim /* 0: hidden / heads */;
    int64_t vocab_size, max_position_embeddings;
    int32_t bos, eos;
} FAMILIES[] = {
    {"gpt2", "GPT2LMHeadModel", "GPT2ForSequenceClassification", DT_GPT2, 0, 0, 0, 50257, 1024, 50256, 50256},
    {"llama", "LlamaForCausalLM", "LlamaForSequenceClassification", DT_LLAMA, 11008, 0, 0, 32000, 2048, 1, 2},
    {"mistral", "MistralForCausalLM", "MistralForSequenceClassification", DT_MISTRAL, 14336, 8, 0, 32000, 131072, 1, 2},
    {"qwen2", "Qwen2ForCausalLM", "Qwen2ForSequenceClassification", DT_QWEN2, 22016, 32, 0, 151936, 32768, -1, -1},
    {"qwen3", "Qwen3ForCausalLM", "Qwen3ForSequenceClassification", DT_QWEN3, 22016, 32, 128, 151936, 32768, -1, -1},
};
enum { N_FAMILIES = sizeof FAMILIES / sizeof FAMILIES[0] };
_Static_assert(N_FAMILIES == (int)DT_N_FAMILY, "a row for each family");

static const struct family *find_family(const json_t *root)
{
    const char *type = json_string_value(json_object_get(root, "model_type"));
    for (int i = 0; type && i < N_FAMILIES; i++)
        if (strcmp(type, FAMILIES[i].model_type) == 0) return &FAMILIES[i];
    return NULL;
}

const char *dt_model_architecture(const dt_model_config *mc)
{
    if (mc->vision) return "LlavaForConditionalGeneration";
    for (int i = 0; i < N_FAMILIES; i++)
        if (FAMILIES[i].family == mc->family) return FAMILIES[i].architecture;
    return "";
}

const char *dt_classifier_architecture(dt_family family)
{
    for (int i = 0; i < N_FAMILIES; i++)
        if (FAMILIES[i].family == family) return FAMILIES[i].classifier;
    return "";
}

const char *dt_family_name(dt_family family)
{
    for (int i = 0; i < N_FAMILIES; i++)
        if (FAMILIES[i].family == family) return FAMILIES[i].model_type;
    return "";
}

/* The first spelling of each activation is dtrain's own. */
static const struct {
    const char *word;
    dt_activation act;
} ACTIVATIONS[] = {{"silu", DT_ACT_SILU},          {"swish", DT_ACT_SILU},
                   {"gelu", DT_ACT_GELU},          {"gelu_pytorch_tanh", DT_ACT_GELU_TANH},
                   {"gelu_new", DT_ACT_GELU_TANH}, {"quick_gelu", DT_ACT_QUICK_GELU},
                   {"relu", DT_ACT_RELU}};
enum { N_ACTIVATION_WORDS = sizeof ACTIVATIONS / sizeof ACTIVATIONS[0] };

const char *dt_activation_name(dt_activation act)
{
    for (int i = 0; i < N_ACTIVATION_WORDS; i++)
        if (ACTIVATIONS[i].act == act) return ACTIVATIONS[i].word;
    return "";
}

dt_err dt_model_read_activation(const dt_spec *root, const char *key, dt_activation *act)
{
    const char *word = NULL;
    DT_TRY(dt_spec_string(root, key, &word));
    if (!word) return DT_OK;
    for (int i = 0; i < N_ACTIVATION_WORDS; i++) {
        if (strcmp(word, ACTIVATIONS[i].word) == 0) {
            *act = ACTIVATIONS[i].act;
            return DT_OK;
        }
    }
    return dt_spec_bad(root, key, "silu, gelu, gelu_new, gelu_pytorch_tanh, quick_gelu or relu");
}

/* Keys that select an unsupported computation, with their only supported value. */
static dt_err refuse_unsupported(const dt_spec *root)
{
    static const char *const EXPERTS[] = {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"};
    static const char *const SWITCHES[] = {"add_cross_attention", "is_encoder_decoder", "use_bidirectional_attention"};
    dt_spec v;
    if (dt_spec_get(root, "quantization_config", &v))
        return dt_spec_bad(&v, NULL, "null (quantised weights are not read)");
    for (size_t i = 0; i < sizeof EXPERTS / sizeof EXPERTS[0]; i++) {
        if (dt_spec_get(root, EXPERTS[i], &v) && json_number_value(v.value) != 0)
            return dt_spec_bad(&v, NULL, "nothing (mixtures of experts are not supported)");
    }
    for (size_t i = 0; i < sizeof SWITCHES / sizeof SWITCHES[0]; i++) {
        if (dt_spec_get(root, SWITCHES[i], &v) && !json_is_false(v.value)) return dt_spec_bad(&v, NULL, "false");
    }
    double partial = 1;
    DT_TRY(dt_spec_real(root, "partial_rotary_factor", 0, 1, &partial));
    if (partial != 1) return dt_spec_bad(root, "partial_rotary_factor", "1");
    return DT_OK;
}

static dt_err read_token_ids(const dt_spec *root, dt_model_config *mc)
{
    int64_t bos = mc->bos_token_id;
    DT_TRY(dt_spec_int(root, "bos_token_id", 0, INT32_MAX, &bos));
    const json_t *pad = json_object_get(root->value, "pad_token_id");
    mc->pad_token_id = -1;
    if (mc->family != DT_GPT2 && json_is_integer(pad) && json_integer_value(pad) >= 0 &&
        json_integer_value(pad) < mc->vocab_size)
        mc->pad_token_id = (int32_t)json_integer_value(pad);
    const json_t *v = json_object_get(root->value, "eos_token_id");
    if (v && json_is_null(v)) mc->n_eos = 0;
    if (v && !json_is_null(v)) {
        const size_t n = json_is_array(v) ? json_array_size(v) : 1;
        if (n > DT_MAX_EOS) return dt_spec_bad(root, "eos_token_id", "at most 16 token ids");
        for (size_t i = 0; i < n; i++) {
            const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
            if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
                return dt_spec_bad(root, "eos_token_id", "a token id or a list of them");
            mc->eos_token_id[i] = (int32_t)json_integer_value(id);
        }
        mc->n_eos = (int)n;
    }
    /* An id outside the vocabulary cannot occur. The family's default may be outside of a small vocabulary. */
    mc->bos_token_id = bos < mc->vocab_size ? (int32_t)bos : -1;
    int kept = 0;
    for (int i = 0; i < mc->n_eos; i++)
        if (mc->eos_token_id[i] < mc->vocab_size) mc->eos_token_id[kept++] = mc->eos_token_id[i];
    mc->n_eos = kept;
    return DT_OK;
}

/* GPT-2's own key, or the one of the other families. */
static dt_err read_size(const dt_spec *root, const char *own, const char *common, int64_t hi, int64_t *out)
{
    if (own && dt_spec_has(root, own)) return dt_spec_int(root, own, 1, hi, out);
    return dt_spec_int(root, common, 1, hi, out);
}

/* Each size may be plausible while their product is not. Computed in double, which cannot overflow. Norms and biases
 * are negligible. */
static dt_err check_total(const dt_spec *root, const dt_model_config *mc)
{
    const double C = (double)mc->hidden_size, D = (double)mc->head_dim;
    const double attention = 2 * C * D * (double)(mc->num_attention_heads + mc->num_key_value_heads),
                 mlp = 3 * C * (double)mc->intermediate_size;
    const double n =
        (double)mc->num_hidden_layers * (attention + mlp) +
        C * (2 * (double)mc->vocab_size + (mc->family == DT_GPT2 ? (double)mc->max_position_embeddings : 0));
    DT_CHECK(n <= DT_MAX_PARAMETERS, root->err,
             "%s: hidden_size, intermediate_size, vocab_size, num_hidden_layers: expected at most %.0f parameters, "
             "found about %.3g",
             root->file, DT_MAX_PARAMETERS, n);
    return DT_OK;
}

static dt_err read_sizes(const dt_spec *root, const struct family *f, dt_model_config *mc)
{
    const bool gpt2 = f->family == DT_GPT2;
    mc->hidden_size = gpt2 ? 768 : 4096;
    mc->num_hidden_layers = mc->num_attention_heads = gpt2 ? 12 : 32;
    mc->vocab_size = f->vocab_size;
    mc->max_position_embeddings = f->max_position_embeddings;
    DT_TRY(read_size(root, gpt2 ? "n_embd" : NULL, "hidden_size", MAX_WIDTH, &mc->hidden_size));
    DT_TRY(read_size(root, gpt2 ? "n_layer" : NULL, "num_hidden_layers", MAX_LAYERS, &mc->num_hidden_layers));
    DT_TRY(read_size(root, gpt2 ? "n_head" : NULL, "num_attention_heads", MAX_WIDTH, &mc->num_attention_heads));
    DT_TRY(read_size(root, gpt2 ? "n_positions" : NULL, "max_position_embeddings", MAX_POSITIONS,
                     &mc->max_position_embeddings));
    DT_TRY(read_size(root, NULL, "vocab_size", MAX_POSITIONS, &mc->vocab_size));

    mc->intermediate_size = gpt2 ? 4 * mc->hidden_size : f->intermediate_size;
    DT_TRY(read_size(root, gpt2 ? "n_inner" : NULL, "intermediate_size", MAX_WIDTH, &mc->intermediate_size));

    mc->num_key_value_heads = mc->num_attention_heads;
    if (f->num_key_value_heads && !json_object_get(root->value, "num_key_value_heads"))
        mc->num_key_value_heads = f->num_key_value_heads;
    DT_TRY(read_size(root, NULL, "num_key_value_heads", MAX_WIDTH, &mc->num_key_value_heads));

    mc->head_dim = f->head_dim ? f->head_dim : mc->hidden_size / mc->num_attention_heads;
    const bool by_division = !dt_spec_has(root, "head_dim") && !f->head_dim;
    DT_TRY(read_size(root, NULL, "head_dim", MAX_WIDTH, &mc->head_dim));
    DT_CHECK(!by_division || mc->hidden_size % mc->num_attention_heads == 0, root->err,
             "%s: hidden_size: expected a multiple of num_attention_heads=%" PRId64 ", found %" PRId64, root->file,
             mc->num_attention_heads, mc->hidden_size);
    DT_CHECK(mc->num_attention_heads % mc->num_key_value_heads == 0, root->err,
             "%s: num_key_value_heads: expected a divisor of num_attention_heads=%" PRId64 ", found %" PRId64,
             root->file, mc->num_attention_heads, mc->num_key_value_heads);
    DT_CHECK(mc->num_attention_heads * mc->head_dim <= MAX_WIDTH, root->err,
             "%s: head_dim: expected num_attention_heads * head_dim of at most %d, found %" PRId64, root->file,
             MAX_WIDTH, mc->num_attention_heads * mc->head_dim);
    return check_total(root, mc);
}

static dt_err read_gpt2(const dt_spec *root, dt_model_config *mc)
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
    mc->norm_eps = 1e-5;
    mc->attn_pdrop = mc->embd_pdrop = mc->resid_pdrop = 0.1;
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

static dt_err read_llama_like(const dt_spec *root, dt_model_config *mc)
{
    mc->act = DT_ACT_SILU;
    mc->gated_mlp = mc->rms_norm = mc->scale_attn_weights = true;
    mc->norm_eps = 1e-6;
    mc->qk_norm = mc->family == DT_QWEN3;
    mc->qkv_bias = mc->family == DT_QWEN2;
    DT_TRY(dt_model_read_activation(root, "hidden_act", &mc->act));
    DT_TRY(dt_spec_real(root, "rms_norm_eps", 0, 1, &mc->norm_eps));
    DT_TRY(dt_spec_real(root, "attention_dropout", 0, 0.99, &mc->attn_pdrop));
    DT_TRY(dt_spec_bool(root, "tie_word_embeddings", &mc->tie_word_embeddings));
    if (mc->family == DT_LLAMA || mc->family == DT_QWEN3) {
        DT_TRY(dt_spec_bool(root, "attention_bias", &mc->qkv_bias));
        mc->o_bias = mc->qkv_bias;
    }
    if (mc->family == DT_LLAMA) DT_TRY(dt_spec_bool(root, "mlp_bias", &mc->mlp_bias));
    DT_CHECK(mc->head_dim % 2 == 0, root->err,
             "%s: head_dim: expected an even number (rotary embedding), found %" PRId64, root->file, mc->head_dim);
    DT_TRY(dt_model_read_rope(root, mc));
    return dt_model_read_window(root, mc);
}

static dt_err read_language_model(const dt_spec *root, const char *types, dt_model_config *mc)
{
    const struct family *f = find_family(root->value);
    if (!f) return dt_spec_bad(root, "model_type", types);
    *mc =
        (dt_model_config){.family = f->family, .initializer_range = 0.02, .bos_token_id = f->bos, .n_eos = f->eos >= 0};
    mc->eos_token_id[0] = f->eos;
    DT_TRY(refuse_unsupported(root));
    DT_TRY(read_sizes(root, f, mc));
    DT_TRY(dt_spec_real(root, "initializer_range", 0, 100, &mc->initializer_range));
    DT_TRY(read_token_ids(root, mc));
    return f->family == DT_GPT2 ? read_gpt2(root, mc) : read_llama_like(root, mc);
}

/* tie_word_embeddings may be set in either object, as in transformers. */
static dt_err read_llava(const dt_spec *root, dt_model_config *mc)
{
    dt_spec text;
    bool tied = false;
    DT_TRY(dt_spec_need(root, "text_config", JSON_OBJECT, &text));
    DT_TRY(read_language_model(&text, "llama, mistral, qwen2 or qwen3", mc));
    if (mc->family == DT_GPT2) return dt_spec_bad(&text, "model_type", "llama, mistral, qwen2 or qwen3");
    DT_TRY(dt_spec_bool(root, "tie_word_embeddings", &tied));
    mc->tie_word_embeddings |= tied;
    return dt_model_read_vision(root, mc);
}

bool dt_model_is_llava(const json_t *config)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    return type && (strcmp(type, "llava") == 0 || strcmp(type, DT_OWN_LLAVA) == 0);
}

dt_err dt_model_config_from_json(dt_model_config *mc, const dt_spec *root)
{
    *mc = (dt_model_config){0};
    if (!json_is_object(root->value)) {
        dt_spec whole = *root;
        snprintf(whole.where, sizeof whole.where, "the file");
        return dt_spec_bad(&whole, NULL, "one JSON object");
    }
    const dt_err err = dt_model_is_llava(root->value)
                           ? read_llava(root, mc)
                           : read_language_model(root, "gpt2, llama, mistral, qwen2, qwen3 or llava", mc);
    if (err == DT_OK) mc->json = json_dumps(root->value, JSON_INDENT(2));
    if (err == DT_OK && mc->json) return DT_OK;
    dt_model_config_free(mc);
    return err != DT_OK ? err
                        : dt_fail(DT_ERR_MEMORY, "%s: out of memory for the text of the configuration", root->file);
}

dt_err dt_model_config_parse(dt_model_config *mc, const char *name, const char *json_text)
{
    json_t *root;
    *mc = (dt_model_config){0};
    DT_TRY(dt_json_parse(&root, name, json_text, strlen(json_text), 0));
    const dt_err err = dt_model_config_from_json(mc, &(dt_spec){.file = name, .err = DT_ERR_DATA, .value = root});
    json_decref(root);
    return err;
}

void dt_model_config_set_dropout(dt_model_config *mc, double dropout)
{
    if (dropout < 0) return;
    mc->attn_pdrop = mc->embd_pdrop = mc->resid_pdrop = dropout;
    if (mc->vision) mc->vision->blocks->attn_pdrop = mc->vision->projector.dropout = dropout;
}

void dt_model_config_free(dt_model_config *mc)
{
    dt_vision_config_free(mc->vision);
    free(mc->json);
    free(mc->sliding);
    *mc = (dt_model_config){0};
}
