/* sentence.c - a model for sentence-transformers is a list of modules: the transformer, the pooling of its hidden
 * states, and a division by the length. Each has a directory with its options. */
#include "sentence_files.h"
#include "dtrain/pretrained/sentence.h"
#include "dtrain/io/io.h"
#include "dtrain/io/json.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Takes root. */
static dt_err write_json(const char *dir, const char *name, json_t *root)
{
    char path[PATH_MAX];
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    DT_CHECK(text, DT_ERR_MEMORY, "out of memory for %s", name);
    dt_err err = dt_join_path(path, dir, name, "") ? DT_OK : dt_fail(DT_ERR_WRITE, "%s: the path is too long", dir);
    if (err == DT_OK) err = dt_write_file_sync(path, text, strlen(text));
    free(text);
    return err;
}

static dt_err make_folder(const char *dir, const char *name)
{
    char path[PATH_MAX];
    DT_CHECK(dt_join_path(path, dir, name, ""), DT_ERR_WRITE, "%s: the path is too long", dir);
    return dt_make_dirs(path);
}

static void add_module(json_t *all, const char *path, const char *type)
{
    char name[24], class[80];
    const json_int_t i = (json_int_t)json_array_size(all);
    snprintf(name, sizeof name, "%d", (int)i);
    snprintf(class, sizeof class, "sentence_transformers.models.%s", type);
    json_array_append_new(all, json_pack("{s:I, s:s, s:s, s:s}", "idx", i, "name", name, "path", path, "type", class));
}

static json_t *pooling_of(const char *how, const json_t *width)
{
    const bool mean = strcmp(how, "mean") == 0, first = strcmp(how, "cls") == 0;
    return json_pack("{s:O, s:b, s:b, s:b, s:b, s:b, s:b, s:b}", "word_embedding_dimension", width,
                     "pooling_mode_cls_token", first, "pooling_mode_mean_tokens", mean, "pooling_mode_max_tokens", 0,
                     "pooling_mode_mean_sqrt_len_tokens", 0, "pooling_mode_weightedmean_tokens", 0,
                     "pooling_mode_lasttoken", !mean && !first, "include_prompt", 1);
}

static dt_err write_all(const char *dir, const json_t *config, const json_t *of)
{
    const char *pooling = json_string_value(json_object_get(of, "pooling"));
    const bool normalizes = json_is_true(json_object_get(of, "normalize"));
    const json_t *query = json_object_get(of, "query_prompt"), *document = json_object_get(of, "document_prompt");
    json_t *modules = json_array();
    add_module(modules, "", "Transformer");
    add_module(modules, "1_Pooling", "Pooling");
    if (normalizes) add_module(modules, "2_Normalize", "Normalize");
    DT_TRY(write_json(dir, "modules.json", modules));
    DT_TRY(make_folder(dir, "1_Pooling"));
    DT_TRY(write_json(dir, "1_Pooling/config.json",
                      pooling_of(pooling ? pooling : "last", json_object_get(config, "hidden_size"))));
    if (normalizes) DT_TRY(make_folder(dir, "2_Normalize"));
    if (normalizes) DT_TRY(write_json(dir, "2_Normalize/config.json", json_object()));
    DT_TRY(write_json(dir, "sentence_bert_config.json",
                      json_pack("{s:O, s:b}", "max_seq_length", json_object_get(config, "max_position_embeddings"),
                                "do_lower_case", 0)));
    return write_json(dir, "config_sentence_transformers.json",
                      json_pack("{s:{s:O, s:O}, s:n, s:s, s:s}", "prompts", "query", query, "document", document,
                                "default_prompt_name", "model_type", "SentenceTransformer", "similarity_fn_name",
                                "cosine"));
}

dt_err sentence_files_write(const char *dir, const char *model_config)
{
    json_t *config;
    DT_TRY(dt_json_parse(&config, "config.json", model_config, strlen(model_config), 0));
    const json_t *of = json_object_get(config, "sentence_transformers");
    const dt_err err = of ? write_all(dir, config, of) : DT_OK;
    json_decref(config);
    return err;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

dt_pooling dt_pooling_of(const char *name)
{
    return name && !strcmp(name, "mean") ? DT_POOL_MEAN : name && !strcmp(name, "cls") ? DT_POOL_FIRST : DT_POOL_LAST;
}

const char *dt_pooling_name(dt_pooling pooling)
{
    return pooling == DT_POOL_MEAN ? "mean" : pooling == DT_POOL_FIRST ? "cls" : "last";
}

/* DIR/name; NULL: there is none. */
static dt_err read_file(const char *dir, const char *name, json_t **root)
{
    char path[PATH_MAX], *text;
    size_t n;
    *root = NULL;
    if (!dir || !dt_is_in(path, dir, name)) return DT_OK;
    DT_TRY(dt_read_file(path, 1 << 20, &text, &n));
    const dt_err err = dt_json_parse(root, path, text, n, 0);
    free(text);
    return err;
}

/* Newer versions store pooling_mode, older ones a flag for each. */
static dt_pooling pooling_in(const json_t *root)
{
    const char *mode = json_string_value(json_object_get(root, "pooling_mode"));
    if (mode) return dt_pooling_of(mode);
    if (json_is_true(json_object_get(root, "pooling_mode_mean_tokens"))) return DT_POOL_MEAN;
    return json_is_true(json_object_get(root, "pooling_mode_cls_token")) ? DT_POOL_FIRST : DT_POOL_LAST;
}

static dt_err read_files(dt_sentence_options *o, const char *dir)
{
    json_t *modules, *pooling, *module;
    size_t i;
    DT_TRY(read_file(dir, "modules.json", &modules));
    for (o->normalize = !modules, i = 0; i < json_array_size(modules); i++) {
        module = json_array_get(modules, i);
        const char *type = json_string_value(json_object_get(module, "type"));
        o->normalize |= type && strstr(type, "Normalize");
    }
    json_decref(modules);
    DT_TRY(read_file(dir, "1_Pooling/config.json", &pooling));
    if (pooling) o->pooling = pooling_in(pooling);
    json_decref(pooling);
    return DT_OK;
}

dt_err dt_sentence_read(dt_sentence_options *o, const char *dir, const char *model_config)
{
    json_t *config;
    *o = (dt_sentence_options){.pooling = DT_POOL_LAST, .normalize = true};
    DT_TRY(dt_json_parse(&config, "config.json", model_config, strlen(model_config), 0));
    const json_t *of = json_object_get(config, "sentence_transformers");
    if (of)
        *o = (dt_sentence_options){dt_pooling_of(json_string_value(json_object_get(of, "pooling"))),
                                   json_is_true(json_object_get(of, "normalize"))};
    const bool known = of != NULL;
    json_decref(config);
    return known ? DT_OK : read_files(o, dir);
}

void dt_sentence_pool(dt_pooling pooling, const float *hidden, int64_t n, int64_t width, double *x)
{
    const int64_t first = pooling == DT_POOL_LAST ? n - 1 : 0, end = pooling == DT_POOL_FIRST ? 1 : n;
    memset(x, 0, (size_t)width * sizeof *x);
    for (int64_t t = first; t < end; t++)
        for (int64_t d = 0; d < width; d++) x[d] += (double)hidden[t * width + d] / (double)(end - first);
}
