/* export_config.c - config.json of an exported model: the original text, updated to match the exported files. */
#include "export_config.h"
#include "new_rows.h"
#include "tokenizer_files.h"
#include "dtrain/io/json.h"
#include "dtrain/tokenizer/tokenizer.h"
#include <stdlib.h>
#include <string.h>

/* Newer programs read dtype, older ones torch_dtype. */
static void set_dtype(json_t *root, dt_st_type dtype)
{
    const char *name = dtype == DT_ST_F32 ? "float32" : dtype == DT_ST_F16 ? "float16" : "bfloat16";
    json_object_set_new(root, "dtype", json_string(name));
    json_object_set_new(root, "torch_dtype", json_string(name));
}

/* If the config has no end token, the family's default would be the id of a byte. */
static void set_ends(json_t *root, const char *tokenizer)
{
    const json_t *vocab = json_object_get(root, "vocab_size");
    if (!tokenizer || strcmp(tokenizer, "bytes") != 0 || json_integer_value(vocab) <= BYTES_EOS) return;
    if (!json_object_get(root, "eos_token_id")) json_object_set_new(root, "eos_token_id", json_integer(BYTES_EOS));
    if (!json_object_get(root, "bos_token_id")) json_object_set_new(root, "bos_token_id", json_integer(BYTES_EOS));
}

/* jansson prints 1e-6 as 9.9999999999999995e-7. Uses 15 digits if they represent the same value. */
char *export_config_dump(const json_t *root)
{
    char *nice = json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(15));
    json_t *back = nice ? json_loads(nice, 0, NULL) : NULL;
    const bool same = back && json_equal(root, back);
    json_decref(back);
    if (same) return nice;
    free(nice);
    return json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS);
}

/* A classifier lists its labels by name; those without names are called LABEL_0, ... */
static void set_labels(json_t *root, int64_t n_labels)
{
    if ((int64_t)json_object_size(json_object_get(root, "id2label")) == n_labels) return;
    json_t *names = json_object(), *numbers = json_object();
    char number[24], name[32];
    for (int64_t i = 0; i < n_labels; i++) {
        snprintf(number, sizeof number, "%lld", (long long)i);
        snprintf(name, sizeof name, "LABEL_%lld", (long long)i);
        json_object_set_new(names, number, json_string(name));
        json_object_set_new(numbers, name, json_integer(i));
    }
    json_object_set_new(root, "id2label", names);
    json_object_set_new(root, "label2id", numbers);
}

/* Does the token end texts? Taken from the tokenizer, otherwise from the configuration. */
static bool is_end(const json_t *root, const dt_tokenizer_info *tokenizer, json_int_t id)
{
    const json_t *ends = json_object_get(root, "eos_token_id"), *end;
    size_t i;
    if (tokenizer) return id == tokenizer->eos;
    json_array_foreach(ends, i, end) if (json_integer_value(end) == id) return true;
    return json_is_integer(ends) && json_integer_value(ends) == id;
}

/* transformers takes the score at the last token that is not padding. The token that ends texts must therefore not be
 * the padding token: the reward would be that of the token before. Returns -1 if no other token is known. */
static json_int_t choose_pad(const json_t *root, const dt_tokenizer_info *tokenizer, bool bytes)
{
    const json_t *named = json_object_get(root, "pad_token_id");
    const json_int_t vocab = json_integer_value(json_object_get(root, "vocab_size")),
                     of_config = json_is_integer(named) ? json_integer_value(named) : -1,
                     of_tokenizer = tokenizer ? tokenizer->pad : -1;
    const json_int_t choices[] = {of_config, of_tokenizer, bytes ? BYTES_EOS + 1 : -1};
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++)
        if (choices[i] >= 0 && choices[i] < vocab && !is_end(root, tokenizer, choices[i])) return choices[i];
    return -1;
}

/* An unsupported tokenizer provides no information. */
static void set_pad(json_t *root, const char *name)
{
    dt_tokenizer *tokenizer = NULL;
    if (name && *name && dt_tokenizer_open(&tokenizer, name) != DT_OK) dt_error_clear();
    const dt_tokenizer_info *info = tokenizer ? dt_tokenizer_get_info(tokenizer) : NULL;
    const json_int_t pad = choose_pad(root, info, name && strcmp(name, "bytes") == 0);
    json_object_set_new(root, "pad_token_id", pad >= 0 ? json_integer(pad) : json_null());
    if (pad < 0)
        DT_WARN("the exported model has no pad_token_id, because every known special token ends texts; "
                "transformers can score only one text at a time with it");
    dt_tokenizer_close(tokenizer);
}

/* Remove pad_token_id if a new token uses its id: as the padding row, its embedding would receive no gradient. */
static void free_pad(json_t *root, const dt_new_tokens *more)
{
    const json_t *pad = json_object_get(root, "pad_token_id");
    const json_int_t id = json_integer_value(pad), from_new = more ? id - more->first_id : -1;
    if (!json_is_integer(pad) || from_new < 0 || from_new >= more->n_added) return;
    DT_WARN("config.json: pad_token_id = %lld is removed, because a new token uses this id", (long long)id);
    json_object_set_new(root, "pad_token_id", json_null());
}

/* Layers for multi-token prediction are not exported. */
static void drop_prediction(json_t *root)
{
    static const char *const keys[] = {"num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (json_object_get(root, keys[i])) json_object_set_new(root, keys[i], json_integer(0));
}

/* Keys of published files that transformers does not write any more, but other programs (llama.cpp) need. */
static void add_published_keys(json_t *root, const dt_model_config *mc)
{
    json_t *n = json_object_get(root, "n_positions");
    if (n && !json_object_get(root, "n_ctx")) json_object_set(root, "n_ctx", n);
    if (mc->sigmoid_router && !json_object_get(root, "scoring_func"))
        json_object_set_new(root, "scoring_func", json_string("sigmoid"));
}

/* Edit the language model's object: root or its text_config. */
static void edit_language(json_t *root, const dt_model_config *mc, const dt_export_options *opt, int64_t n_labels)
{
    const int64_t n_rows = new_rows_needed(mc->vocab_size, opt->new_tokens);
    if (n_labels > 0) set_labels(root, n_labels);
    free_pad(root, opt->new_tokens);
    drop_prediction(root);
    add_published_keys(root, mc);
    if (n_labels > 0) set_pad(root, opt->tokenizer);
    if (n_rows != mc->vocab_size) json_object_set_new(root, "vocab_size", json_integer(n_rows));
    json_object_set_new(root, "tie_word_embeddings", json_boolean(mc->tie_word_embeddings && !opt->unties));
    set_ends(root, opt->tokenizer);
}

/* llava-hf's projector has two layers, the second as wide as the language model. */
static bool has_llava_projector(const dt_projector_config *p)
{
    return p->type == DT_PROJECTOR_MLP2X_GELU && p->hidden_size == p->n_out;
}

static bool is_of_llava(const dt_vision_config *v)
{
    return has_llava_projector(&v->projector) && !v->feature_norm && !dt_vision_pools(v);
}

static void warn_of_other_programs(const dt_vision_config *v)
{
    if (!has_llava_projector(&v->projector))
        DT_WARN("config.json: transformers has no projector of type %s and hidden_size %lld, so only dtrain can open "
                "the exported model",
                dt_projector_name(v->projector.type), (long long)v->projector.hidden_size);
    if (v->feature_norm)
        DT_WARN("config.json: transformers has no key for features after post_layernorm (vision.feature_norm), so only "
                "dtrain can open the exported model");
    if (dt_vision_pools(v))
        DT_WARN("config.json: transformers has no key for the mean of an image's rows (vision.image_tokens = "
                "mean_pooling), so only dtrain can open the exported model");
}

/* Remove keys that transformers does not have if their values are the defaults of LLaVA; otherwise keep all. */
static void edit_vision(json_t *root, const dt_vision_config *v)
{
    static const char *const own[] = {"projector_type",    "projector_hidden_size", "projector_shuffle",
                                      "projector_dropout", "vision_feature_norm",   "image_tokens"};
    const bool llava = is_of_llava(v);
    for (size_t i = 0; i < sizeof own / sizeof own[0] && llava; i++) json_object_del(root, own[i]);
    json_object_set_new(root, "model_type", json_string(llava ? "llava" : DT_OWN_LLAVA));
    if (!llava) json_object_set_new(root, "architectures", json_pack("[s]", "DtrainLlavaForConditionalGeneration"));
    json_object_del(root, "preprocessor_config"); /* exported as a file */
    json_object_set_new(root, "image_seq_length", json_integer(v->n_tokens));
    if (v->tower->pools) json_object_set_new(json_object_get(root, "vision_config"), "vision_use_head", json_false());
    warn_of_other_programs(v);
}

/* A model with a language model of its own keeps its config.json. */
static void edit_joined(json_t *root) { json_object_del(root, "preprocessor_config"); }

/* The class that transformers has, or would have, for a scalar head on a model with images: of LLaVA
 * "LlavaForSequenceClassification", with the head next to the whole model. */
static void edit_classifier(json_t *root, int64_t n_labels)
{
    const char *whole = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    const char *end = strstr(whole, "ForConditionalGeneration");
    char name[128];
    snprintf(name, sizeof name, "%.*sForSequenceClassification", (int)(end ? end - whole : 0), whole);
    json_object_set_new(root, "architectures", json_pack("[s]", name));
    set_labels(root, n_labels);
}

static char *edit(json_t *root, const dt_model_config *mc, const dt_export_options *opt, int64_t n_labels)
{
    /* config.json says what kind of scalar head the model has, unless it is that of a language model */
    const char *own = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    const bool keeps = n_labels > 0 ? mc->score_bias : n_labels == DT_HIDDEN_STATES && mc->headless;
    char architecture[128];
    snprintf(architecture, sizeof architecture, "%s",
             keeps                         ? own
             : n_labels > 0 && !mc->vision ? dt_classifier_architecture(mc->family)
                                           : dt_model_architecture(mc));
    json_object_del(root, "sentence_transformers"); /* exported as files */
    json_t *text = json_object_get(root, "text_config");
    json_object_del(text, "quantization_config"); /* exported weights are plain */
    json_object_del(root, "quantization_config");
    edit_language(mc->vision && text ? text : root, mc, opt, n_labels);
    json_object_set_new(root, "architectures", json_pack("[s]", architecture));
    json_object_set_new(root, "tie_word_embeddings", json_boolean(mc->tie_word_embeddings && !opt->unties));
    if (mc->vision) mc->vision->tower->architecture ? edit_joined(root) : edit_vision(root, mc->vision);
    if (mc->vision && n_labels > 0) edit_classifier(root, n_labels);
    set_dtype(root, opt->dtype);
    return export_config_dump(root);
}

dt_err export_config_make(const dt_export_options *opt, int64_t n_labels, char **text)
{
    const char *model_config = opt->model_config;
    dt_model_config mc = {0};
    *text = NULL;
    DT_TRY(dt_model_config_parse(&mc, "config.json", model_config));
    json_t *root;
    char *bare = NULL;
    if (dt_json_parse(&root, "config.json", model_config, strlen(model_config), 0) == DT_OK)
        bare = edit(root, &mc, opt, n_labels);
    if (bare && asprintf(text, "%s\n", bare) < 0) *text = NULL;
    free(bare);
    json_decref(root);
    dt_model_config_free(&mc);
    DT_CHECK(*text, DT_ERR_MEMORY, "out of memory for config.json");
    return DT_OK;
}
