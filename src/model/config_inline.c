/* config_inline.c - a model from the [model] section: a config.json, keys written in the INI file under the same names, or both.
 *
 * Inline keys become JSON and go through the same reader as a file, so a model means the same however it was written. A mistake in them is
 * a mistake of usage, not of data, and an inline key that the family does not read is refused: in a file it may concern others, here not. */
#include "config_private.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum kind { INTEGER, NUMBER, BOOLEAN, WORD, OBJECT };
enum readers {
    ALL = 31,
    GPT2 = 1 << DT_GPT2,
    LLAMA = 1 << DT_LLAMA,
    MISTRAL = 1 << DT_MISTRAL,
    QWEN2 = 1 << DT_QWEN2,
    QWEN3 = 1 << DT_QWEN3
};

struct inline_key {
    const char *key, *gpt2_name, *value;
    enum kind kind;
    unsigned read_by; /* families */
};

static dt_err to_json(const dt_config *cfg, const struct inline_key *k, json_t **out)
{
    static const char *const EXPECTED[] = {"an integer", "a number", "true or false", "a word", "a JSON object or null"};
    json_t *v = k->kind == WORD ? json_string(k->value) : json_loads(k->value, JSON_DECODE_ANY, NULL);
    const bool nullable = k->kind == OBJECT || strcmp(k->key, "sliding_window") == 0;
    const bool fits = v && ((json_is_null(v) && nullable) || (k->kind == INTEGER && json_is_number(v)) ||
                            (k->kind == NUMBER && json_is_number(v)) || (k->kind == BOOLEAN && json_is_boolean(v)) ||
                            (k->kind == WORD && json_is_string(v)) || (k->kind == OBJECT && json_is_object(v)));
    if (fits) {
        *out = v;
        return DT_OK;
    }
    char where[256];
    json_decref(v);
    return dt_fail(DT_ERR_USAGE, "%s: expected %s, found %s", dt_config_where(cfg, "model", k->key, where, sizeof where),
                   EXPECTED[k->kind], k->value);
}

static dt_err check_family_reads(const dt_config *cfg, const struct inline_key *k, const json_t *root)
{
    static const char *const TYPES[] = {
        [DT_GPT2] = "gpt2", [DT_LLAMA] = "llama", [DT_MISTRAL] = "mistral", [DT_QWEN2] = "qwen2", [DT_QWEN3] = "qwen3"};
    const char *type = json_string_value(json_object_get(root, "model_type"));
    char where[256];
    for (int f = DT_GPT2; type && f <= DT_QWEN3; f++) {
        DT_CHECK(strcmp(type, TYPES[f]) != 0 || (k->read_by & 1u << f), DT_ERR_USAGE,
                 "%s: expected nothing with model_type %s, which has no such key, found %s",
                 dt_config_where(cfg, "model", k->key, where, sizeof where), type, k->value);
    }
    return DT_OK;
}

static dt_err merge_inline(const dt_config *cfg, json_t *root)
{
    const unsigned rotary = ALL & ~(unsigned)GPT2;
    const struct inline_key keys[] = {
        {"model_type", NULL, cfg->model_model_type, WORD, ALL}, /* first: decides how the others are named */
        {"hidden_size", "n_embd", cfg->model_hidden_size, INTEGER, ALL},
        {"intermediate_size", "n_inner", cfg->model_intermediate_size, INTEGER, ALL},
        {"num_hidden_layers", "n_layer", cfg->model_num_hidden_layers, INTEGER, ALL},
        {"num_attention_heads", "n_head", cfg->model_num_attention_heads, INTEGER, ALL},
        {"num_key_value_heads", NULL, cfg->model_num_key_value_heads, INTEGER, ALL},
        {"head_dim", NULL, cfg->model_head_dim, INTEGER, ALL},
        {"vocab_size", NULL, cfg->model_vocab_size, INTEGER, ALL},
        {"max_position_embeddings", "n_positions", cfg->model_max_position_embeddings, INTEGER, ALL},
        {"rope_theta", NULL, cfg->model_rope_theta, NUMBER, rotary},
        {"rope_scaling", NULL, cfg->model_rope_scaling, OBJECT, rotary},
        {"rms_norm_eps", "layer_norm_epsilon", cfg->model_rms_norm_eps, NUMBER, ALL},
        {"hidden_act", "activation_function", cfg->model_hidden_act, WORD, ALL},
        {"tie_word_embeddings", NULL, cfg->model_tie_word_embeddings, BOOLEAN, ALL},
        {"attention_bias", NULL, cfg->model_attention_bias, BOOLEAN, LLAMA | QWEN3},
        {"mlp_bias", NULL, cfg->model_mlp_bias, BOOLEAN, LLAMA},
        {"sliding_window", NULL, cfg->model_sliding_window, INTEGER, MISTRAL | QWEN2 | QWEN3},
        {"initializer_range", NULL, cfg->model_initializer_range, NUMBER, ALL},
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        json_t *v = NULL;
        if (!keys[i].value || keys[i].value[0] == '\0') continue;
        DT_TRY(to_json(cfg, &keys[i], &v));
        const char *type = json_string_value(json_object_get(root, "model_type"));
        const bool gpt2 = type && strcmp(type, "gpt2") == 0 && keys[i].gpt2_name;
        DT_CHECK(json_object_set_new(root, gpt2 ? keys[i].gpt2_name : keys[i].key, v) == 0, DT_ERR_MEMORY,
                 "no memory for [model] %s", keys[i].key);
        DT_TRY(check_family_reads(cfg, &keys[i], root));
    }
    return DT_OK;
}

/* rope_parameters of a newer file replaces the two older keys; an inline key must win over it. */
static void put_rope_first(const dt_config *cfg, json_t *root)
{
    json_t *parameters = json_object_get(root, "rope_parameters");
    if (!json_is_object(parameters)) return;
    if (cfg->model_rope_scaling[0] != '\0') {
        if (cfg->model_rope_theta[0] == '\0' && json_object_get(parameters, "rope_theta"))
            json_object_set(root, "rope_theta", json_object_get(parameters, "rope_theta"));
        json_object_del(root, "rope_parameters");
    } else if (cfg->model_rope_theta[0] != '\0') {
        json_object_set(parameters, "rope_theta", json_object_get(root, "rope_theta"));
    }
}

static dt_err load_file(const char *path, json_t **root)
{
    json_error_t where;
    char *text = NULL;
    errno = 0;
    DT_CHECK(access(path, R_OK) == 0, DT_ERR_DATA, "%s: cannot read the model's configuration: %s", path, strerror(errno));
    DT_TRY(dt_config_read_file(path, &text));
    *root = json_loads(text, JSON_REJECT_DUPLICATES, &where);
    free(text);
    DT_CHECK(*root, DT_ERR_DATA, "%s:%d:%d: expected JSON: %s", path, where.line, where.column, where.text);
    DT_CHECK(json_is_object(*root), DT_ERR_DATA, "%s: expected one JSON object", path);
    return DT_OK;
}

static dt_err finish(dt_model_config *mc, const dt_config *cfg, const reader *r, json_t *root, bool inline_only)
{
    DT_TRY(merge_inline(cfg, root));
    put_rope_first(cfg, root);
    DT_TRY(dt_model_config_from_json(mc, r, root));
    if (inline_only) { /* what other programs look for in a config.json */
        json_object_set_new(root, "architectures", json_pack("[s]", dt_model_architecture(mc->family)));
        free(mc->json);
        mc->json = json_dumps(root, JSON_INDENT(2));
        DT_CHECK(mc->json, DT_ERR_MEMORY, "no memory for the text of the model's configuration");
    }
    if (cfg->model_dropout >= 0) mc->attn_pdrop = mc->embd_pdrop = mc->resid_pdrop = cfg->model_dropout;
    const bool window = cfg->model_sliding_window[0] != '\0' && strcmp(cfg->model_sliding_window, "null") != 0;
    char where[256];
    DT_CHECK(!window || mc->sliding, DT_ERR_USAGE,
             "%s: no block uses the window (use_sliding_window or layer_types of %s says so)",
             dt_config_where(cfg, "model", "sliding_window", where, sizeof where), r->name);
    return DT_OK;
}

dt_err dt_model_config_from_keys(dt_model_config *mc, const dt_config *cfg)
{
    const bool file = cfg->model_config[0] != '\0';
    bool any_inline = cfg->model_model_type[0] != '\0';
    json_t *root = NULL;
    char where[256];
    *mc = (dt_model_config){0};
    DT_CHECK(file || any_inline, DT_ERR_USAGE, "%s: expected a model: one of path, config or model_type in [model]",
             dt_config_where(cfg, "model", "model_type", where, sizeof where));
    if (file) {
        DT_TRY(load_file(cfg->model_config, &root));
    } else {
        root = json_object();
        DT_CHECK(root, DT_ERR_MEMORY, "no memory for the model's configuration");
    }
    const reader r = {file ? cfg->model_config : "[model]", file ? DT_ERR_DATA : DT_ERR_USAGE};
    const dt_err err = finish(mc, cfg, &r, root, !file);
    json_decref(root);
    if (err != DT_OK) dt_model_config_free(mc);
    return err;
}
