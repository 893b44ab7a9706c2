/* own_code.c - published models with their own code (auto_map) that compute what a family of transformers does. Their
 * configuration is translated once; runs, checkpoints, adapters and exports have the family's form. Their tensors are
 * found by the other names, as a whole or as rows of a fused tensor. */
#include "family.h"
#include "own_code.h"
#include <stdlib.h>
#include <string.h>

extern const dt_family dt_family_llama, dt_family_glm;

/** A key of config.json. Texts are JSON. */
struct own_key {
    const char *name, *key; /* there and in the family's config.json; key NULL: dropped */
    const char *missing;    /* its value if the key is missing; NULL: the family's default is the same */
    const char *only;       /* the only supported value; NULL: any */
    double times;           /* the family's value is this multiple; 0: the same value */
};

/** Rows of the tensor of q, k and v: all queries, keys and values, or those of one group of queries after the other. */
enum rows { WHOLE, Q, K, V, Q_OF_GROUP, K_OF_GROUP, V_OF_GROUP };

/** The name of a module. */
struct own_name {
    const char *here;  /* the family's; in a block after its prefix */
    const char *there; /* %d: the block's number */
    enum rows rows;
};
enum { MAX_KEYS = 24, MAX_NAMES = 16 };

struct own_code {
    const char *model_type;
    const dt_family *family;
    struct own_key keys[MAX_KEYS];    /* unused ones have no name */
    struct own_name names[MAX_NAMES]; /* those that differ */
    /* a word in the names of models whose code divides positions by rope_ratio. Their other keys are the same. */
    const char *divides;
};

#define INTERNLM2 "model.layers.%d."
#define CHATGLM "transformer.encoder.layers.%d."

static const struct own_code OWN[] = {
    {.model_type = "internlm2",
     .family = &dt_family_llama,
     .keys = {{"vocab_size", "vocab_size", "103168", NULL, 0},
              {"pad_token_id", "pad_token_id", "0", NULL, 0},
              {"bias", "attention_bias", "true", NULL, 0}},
     .names = {{"model.embed_tokens", "model.tok_embeddings", WHOLE},
               {"input_layernorm", INTERNLM2 "attention_norm", WHOLE},
               {"self_attn.q_proj", INTERNLM2 "attention.wqkv", Q_OF_GROUP},
               {"self_attn.k_proj", INTERNLM2 "attention.wqkv", K_OF_GROUP},
               {"self_attn.v_proj", INTERNLM2 "attention.wqkv", V_OF_GROUP},
               {"self_attn.o_proj", INTERNLM2 "attention.wo", WHOLE},
               {"post_attention_layernorm", INTERNLM2 "ffn_norm", WHOLE},
               {"mlp.gate_proj", INTERNLM2 "feed_forward.w1", WHOLE},
               {"mlp.up_proj", INTERNLM2 "feed_forward.w3", WHOLE},
               {"mlp.down_proj", INTERNLM2 "feed_forward.w2", WHOLE},
               {"lm_head", "output", WHOLE}}},
    {.model_type = "chatglm",
     .family = &dt_family_glm,
     .keys = {{"num_layers", "num_hidden_layers", "28", NULL, 0},
              {"padded_vocab_size", "vocab_size", "65024", NULL, 0},
              {"ffn_hidden_size", "intermediate_size", "13696", NULL, 0},
              {"kv_channels", "head_dim", "128", NULL, 0},
              {"multi_query_group_num", "num_key_value_heads", "1", NULL, 0},
              {"seq_length", "max_position_embeddings", "2048", NULL, 0},
              {"layernorm_epsilon", "rms_norm_eps", "1e-5", NULL, 0},
              {"add_qkv_bias", "attention_bias", "false", NULL, 0},
              {"rope_ratio", "rope_theta", "1", NULL, 10000},
              {"pad_token_id", "pad_token_id", "null", NULL, 0},
              {"multi_query_attention", NULL, "false", "true", 0},
              {"interleaved_qkv", NULL, NULL, "false", 0},
              {"original_rope", NULL, NULL, "true", 0},
              {"rmsnorm", NULL, NULL, "true", 0},
              {"post_layer_norm", NULL, NULL, "true", 0},
              {"apply_residual_connection_post_layernorm", NULL, NULL, "false", 0},
              {"add_bias_linear", NULL, NULL, "false", 0},
              {"hidden_dropout", NULL, NULL, "0", 0},
              {"quantization_bit", NULL, NULL, "0", 0},
              {"pre_seq_len", NULL, NULL, "null", 0},
              {"position_encoding_2d", NULL, NULL, "false", 0}, /* of the first ChatGLM, another architecture */
              {"vision_config", NULL, NULL, "null", 0}},
     .divides = "chatglm2",
     .names = {{"model.embed_tokens", "transformer.embedding.word_embeddings", WHOLE},
               {"input_layernorm", CHATGLM "input_layernorm", WHOLE},
               {"self_attn.q_proj", CHATGLM "self_attention.query_key_value", Q},
               {"self_attn.k_proj", CHATGLM "self_attention.query_key_value", K},
               {"self_attn.v_proj", CHATGLM "self_attention.query_key_value", V},
               {"self_attn.o_proj", CHATGLM "self_attention.dense", WHOLE},
               {"post_attention_layernorm", CHATGLM "post_attention_layernorm", WHOLE},
               {"mlp.gate_up_proj", CHATGLM "mlp.dense_h_to_4h", WHOLE},
               {"mlp.down_proj", CHATGLM "mlp.dense_4h_to_h", WHOLE},
               {"model.norm", "transformer.encoder.final_layernorm", WHOLE},
               {"lm_head", "transformer.output_layer", WHOLE}}}};
enum { N_OWN = sizeof OWN / sizeof OWN[0] };

/* ---- config.json ------------------------------------------------------------------------------------------------- */

const char *dt_own_code_type(int i) { return i >= 0 && i < N_OWN ? OWN[i].model_type : NULL; }

static const struct own_code *find_type(const json_t *root)
{
    const char *type = json_string_value(json_object_get(root, "model_type"));
    for (int i = 0; type && i < N_OWN; i++)
        if (strcmp(type, OWN[i].model_type) == 0) return &OWN[i];
    return NULL;
}

static json_t *parse(const char *text) { return text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL; }

static bool equal(const json_t *a, const json_t *b)
{
    const bool numbers = json_is_number(a) && json_is_number(b);
    return numbers ? json_number_value(a) == json_number_value(b) : json_equal(a, b);
}

static dt_err translate_key(const dt_spec *root, const struct own_key *k, json_t *own)
{
    json_t *v = json_incref(json_object_get(root->value, k->name)), *only = parse(k->only);
    if (!v) v = parse(k->missing);
    const bool fits = !v || !only || equal(v, only);
    json_decref(only);
    if (k->key == NULL || strcmp(k->key, k->name) != 0) json_object_del(own, k->name);
    if (v && k->times > 0 && json_is_number(v)) {
        const double value = k->times * json_number_value(v);
        json_decref(v);
        v = json_real(value);
    }
    if (v && k->key && fits) json_object_set(own, k->key, v);
    json_decref(v);
    return fits ? DT_OK : dt_spec_bad(root, k->name, k->only);
}

static bool has_word(const char *text, const char *word) { return text && word && strcasestr(text, word); }

/* Is it such a model, by its name or its directory? */
static bool divides(const dt_spec *root, const struct own_code *c)
{
    const char *name = json_string_value(json_object_get(root->value, "_name_or_path"));
    const json_t *ratio = json_object_get(root->value, "rope_ratio");
    return ratio && json_number_value(ratio) != 1 && (has_word(name, c->divides) || has_word(root->file, c->divides));
}

dt_err dt_own_code_translate(const dt_spec *root, json_t **own)
{
    const struct own_code *c = find_type(root->value);
    *own = NULL;
    if (!c) return DT_OK;
    if (divides(root, c))
        return dt_spec_bad(root, "rope_ratio", "1, because this model's code divides positions by it");
    json_t *to = json_copy((json_t *)root->value);
    DT_CHECK(to, DT_ERR_MEMORY, "%s: out of memory for its text", root->file);
    json_object_del(to, "auto_map");
    json_object_set_new(to, "model_type", json_string(c->family->name.model_type));
    json_object_set_new(to, "architectures", json_pack("[s]", c->family->name.architecture));
    dt_err err = DT_OK;
    for (int i = 0; i < MAX_KEYS && c->keys[i].name && err == DT_OK; i++) err = translate_key(root, &c->keys[i], to);
    if (err == DT_OK)
        *own = to;
    else
        json_decref(to);
    return err;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static const struct own_name *find_name(const struct own_code *c, const char *module, size_t len)
{
    for (int i = 0; i < MAX_NAMES && c->names[i].here; i++)
        if (strlen(c->names[i].here) == len && strncmp(c->names[i].here, module, len) == 0) return &c->names[i];
    return NULL;
}

/* Choose the rows of the fused tensor. */
static void choose_rows(const dt_model_config *mc, enum rows rows, int64_t width, dt_fused *f)
{
    const int64_t D = mc->head_dim * width, n_kv = mc->num_key_value_heads, n_q = mc->num_attention_heads,
                  per = n_q / n_kv;
    if (rows == WHOLE) return;
    f->shape[0] = (n_q + 2 * n_kv) * mc->head_dim;
    if (rows <= V) {
        f->first = rows == Q ? 0 : (n_q + (rows == V ? n_kv : 0)) * D;
        return;
    }
    f->first = rows == Q_OF_GROUP ? 0 : (per + (rows == V_OF_GROUP ? 1 : 0)) * D;
    f->run = (rows == Q_OF_GROUP ? per : 1) * D;
    f->stride = (per + 2) * D;
}

static void note(const dt_model_config *mc, const struct own_code *c, dt_tensor *t)
{
    const char *name = dt_model_of_language(t->name), *module = name, *end = strrchr(name, '.');
    if (dt_model_layer_of(mc, name) >= 0) module = strchr(name + strlen(mc->family->blocks), '.') + 1;
    const struct own_name *is = end && end > module ? find_name(c, module, (size_t)(end - module)) : NULL;
    t->fused.head = find_name(c, "lm_head", strlen("lm_head"))->there;
    if (!is || t->fused.name) return;
    t->fused.name = is->there;
    t->fused.suffix = strcmp(end, ".bias") == 0 ? ".bias" : ".weight";
    t->fused.own_code = true;
    t->fused.n_dims = t->n_dims;
    for (int d = 0; d < t->n_dims; d++) t->fused.shape[d] = t->shape[d];
    choose_rows(mc, is->rows, t->n_dims > 1 ? t->shape[1] : 1, &t->fused);
}

void dt_own_code_note(const dt_model_config *mc, dt_unit *u)
{
    const struct own_code *c = NULL;
    for (int i = 0; i < N_OWN && !c; i++)
        if (OWN[i].family == mc->family) c = &OWN[i];
    for (int i = 0; c && i < u->n_tensors; i++) note(mc, c, &u->tensors[i]);
}
