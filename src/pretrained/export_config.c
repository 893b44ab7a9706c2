/* export_config.c - the config.json of an exported model: the text it was made from, with what others must know about
 * the files beside it. */
#include "export_config.h"
#include "tokenizer_files.h"
#include "dtrain/json.h"
#include <stdlib.h>
#include <string.h>

/* Newer programs read dtype, older ones torch_dtype. */
static void set_dtype(json_t *root, dt_st_type dtype)
{
    const char *name = dtype == DT_ST_F32 ? "float32" : dtype == DT_ST_F16 ? "float16" : "bfloat16";
    json_object_set_new(root, "dtype", json_string(name));
    json_object_set_new(root, "torch_dtype", json_string(name));
}

/* A model of ours may say nothing of its end, where its family's default would name one of the bytes. */
static void set_ends(json_t *root, const char *tokenizer)
{
    const json_t *vocab = json_object_get(root, "vocab_size");
    if (!tokenizer || strcmp(tokenizer, "bytes") != 0 || json_integer_value(vocab) <= BYTES_EOS) return;
    if (!json_object_get(root, "eos_token_id")) json_object_set_new(root, "eos_token_id", json_integer(BYTES_EOS));
    if (!json_object_get(root, "bos_token_id")) json_object_set_new(root, "bos_token_id", json_integer(BYTES_EOS));
}

/* jansson prints 1e-6 as 9.9999999999999995e-7; 15 digits are nicer where they are the same number. */
static char *dump(const json_t *root)
{
    char *nice = json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(15));
    json_t *back = nice ? json_loads(nice, 0, NULL) : NULL;
    const bool same = back && json_equal(root, back);
    json_decref(back);
    if (same) return nice;
    free(nice);
    return json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS);
}

/* A classifier's labels are listed by name; one that has a single number calls it LABEL_0. */
static void set_labels(json_t *root, int64_t n_labels)
{
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

static char *edit(json_t *root, const dt_model_config *mc, dt_st_type dtype, const char *tokenizer, int64_t n_labels)
{
    const char *architecture =
        n_labels > 0 ? dt_classifier_architecture(mc->family) : dt_model_architecture(mc->family);
    json_object_set_new(root, "architectures", json_pack("[s]", architecture));
    if (n_labels > 0) set_labels(root, n_labels);
    json_object_set_new(root, "tie_word_embeddings", json_boolean(mc->tie_word_embeddings));
    set_dtype(root, dtype);
    set_ends(root, tokenizer);
    return dump(root);
}

dt_err export_config_make(const char *model_config, dt_st_type dtype, const char *tokenizer, int64_t n_labels,
                          char **text)
{
    dt_model_config mc = {0};
    *text = NULL;
    DT_TRY(dt_model_config_parse(&mc, "config.json", model_config));
    json_t *root;
    char *bare = NULL;
    if (dt_json_parse(&root, "config.json", model_config, strlen(model_config), 0) == DT_OK)
        bare = edit(root, &mc, dtype, tokenizer, n_labels);
    if (bare && asprintf(text, "%s\n", bare) < 0) *text = NULL;
    free(bare);
    json_decref(root);
    dt_model_config_free(&mc);
    DT_CHECK(*text, DT_ERR_MEMORY, "no memory for config.json");
    return DT_OK;
}
