/* vision_model.c - join a language model, a tower and a projector to one model ([vision] of a configuration). Their
 * config.json files are combined to one of LLaVA; everything after that works as for a LLaVA directory. */
#include "dtrain/pretrained/pretrained.h"
#include "vision_files.h"
#include "dtrain/io/io.h"
#include "dtrain/io/json.h"
#include "dtrain/io/spec.h"
#include "dtrain/tokenizer/tokenizer.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* Keys of [vision] that correspond to keys of a joined model's config.json, with their names there. */
static const struct model_key {
    const char *key, *name;
} MODEL_KEYS[] = {
    {"projector_type", "projector_type"},       {"projector_hidden_size", "projector_hidden_size"},
    {"projector_shuffle", "projector_shuffle"}, {"projector_dropout", "projector_dropout"},
    {"feature_layer", "vision_feature_layer"},  {"feature_select", "vision_feature_select_strategy"},
    {"feature_norm", "vision_feature_norm"},    {"image_tokens", "image_tokens"},
};
enum { N_MODEL_KEYS = sizeof MODEL_KEYS / sizeof MODEL_KEYS[0] };

/* class_row: a class row precedes the patches. */
static json_t *strategy(const char *select, bool class_row)
{
    return json_string(class_row && strcmp(select, "patch") == 0 ? "default" : "full");
}

static const char *text_of(const dt_config *cfg, int i)
{
    const char *const texts[N_MODEL_KEYS] = {cfg->vision_projector_type,    cfg->vision_projector_hidden_size,
                                             cfg->vision_projector_shuffle, cfg->vision_projector_dropout,
                                             cfg->vision_feature_layer,     cfg->vision_feature_select,
                                             cfg->vision_feature_norm,      cfg->vision_image_tokens};
    return texts[i];
}

/* The value of a key that is set; the caller owns it. */
static json_t *value_of(const dt_config *cfg, int i, bool class_row)
{
    const char *text = text_of(cfg, i), *key = MODEL_KEYS[i].key;
    if (strcmp(key, "projector_type") == 0 || strcmp(key, "image_tokens") == 0) return json_string(text);
    if (strcmp(key, "feature_norm") == 0) return json_boolean(strcmp(text, "true") == 0);
    if (strcmp(key, "feature_select") == 0) return strategy(text, class_row);
    return strcmp(key, "projector_dropout") == 0 ? json_real(strtod(text, NULL))
                                                 : json_integer(strtoll(text, NULL, 10));
}

static dt_err check_projector_file(const dt_config *cfg)
{
    const char *path = cfg->vision_projector_path, *ending = strrchr(path, '.');
    const bool pickled = ending && (!strcmp(ending, ".bin") || !strcmp(ending, ".pt") || !strcmp(ending, ".pth"));
    DT_CONFIG_CHECK(!pickled, cfg, "vision", "projector_path",
                    "%s: expected safetensors, found a pickle, which is not read because it may run arbitrary code; if "
                    "you trust the file, convert it in Python with torch and safetensors: save_file(torch.load('%s'), "
                    "'mm_projector.safetensors')",
                    path, path);
    if (*path && access(path, F_OK) != 0)
        return dt_config_lead_to(cfg, "vision", "projector_path",
                                 dt_fail(DT_ERR_DATA, "%s: %s", path, strerror(errno)));
    return DT_OK;
}

/* ---- the placeholder --------------------------------------------------------------------------------------------- */

static dt_err look_up(const dt_config *cfg, const char *tokenizer, int64_t *id)
{
    const char *token = cfg->vision_image_token;
    dt_tokenizer *t;
    DT_CONFIG_CHECK(tokenizer && *tokenizer, cfg, "vision", "image_token",
                    "%s: expected a token id, because no tokenizer is known to look up a token; give the id, or set "
                    "model.tokenizer",
                    token);
    DT_TRY(dt_tokenizer_open(&t, tokenizer));
    *id = dt_tokenizer_find(t, token);
    dt_tokenizer_close(t);
    DT_CONFIG_CHECK(*id >= 0, cfg, "vision", "image_token",
                    "%s is not a token of %s; choose an existing reserved token, or add this one to the model and its "
                    "tokenizer with dtrain-convert --add-tokens",
                    token, tokenizer);
    return DT_OK;
}

/* A number is a token id, anything else the text of a token. */
static dt_err find_token(const dt_config *cfg, const char *tokenizer, int64_t *id)
{
    char *end = NULL;
    const char *token = cfg->vision_image_token;
    *id = strtoll(token, &end, 10);
    DT_CONFIG_CHECK(*token, cfg, "vision", "image_token", "expected a token or its id");
    return *end == '\0' && *id >= 0 && *id <= INT32_MAX ? DT_OK : look_up(cfg, tokenizer, id);
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */

/* Remove keys of a config.json that describe the file, not the model. */
static void forget_file(json_t *part)
{
    static const char *const keys[] = {"architectures", "dtype", "torch_dtype", "transformers_version"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) json_object_del(part, keys[i]);
}

static const dt_tower *tower_of(const json_t *root)
{
    return dt_tower_find(json_string_value(json_object_get(root, "model_type")));
}

static bool has_class_row(const json_t *root) { return tower_of(root) && tower_of(root)->class_row; }

/* The tower's part of its config.json, for vision_config. Files of a whole CLIP or SigLIP contain it as an object. Old
 * files do not repeat the type there. */
static dt_err find_tower(const dt_spec *root, json_t **tower)
{
    dt_spec part;
    const dt_tower *type = tower_of(root->value);
    const bool whole = dt_spec_get(root, "vision_config", &part);
    json_t *own = json_object_get(whole ? part.value : root->value, "model_type");
    DT_CHECK(whole || own, DT_ERR_DATA, "%s: expected the config.json of CLIP or SigLIP, which has a model_type",
             root->file);
    if (!whole && !type)
        return dt_spec_bad(root, "model_type", "clip_vision_model or siglip_vision_model, a vision tower");
    *tower = json_deep_copy(whole ? part.value : root->value);
    DT_CHECK(*tower, DT_ERR_MEMORY, "%s: out of memory for the configuration of a tower", root->file);
    if (!own && (type || dt_model_is_llava(root->value)))
        json_object_set_new(*tower, "model_type", json_string((type ? type : dt_tower_at(0))->model_type));
    forget_file(*tower);
    return DT_OK;
}

static dt_err read_tower(const char *dir, json_t **tower)
{
    char file[PATH_MAX], hint[3 * PATH_MAX];
    dt_spec root;
    DT_CHECK(access(dir, F_OK) == 0, DT_ERR_DATA, "%s: %s%s", dir, strerror(errno),
             dt_missing_model_hint(dir, errno, hint, sizeof hint));
    DT_CHECK(dt_is_in(file, dir, "config.json"), DT_ERR_DATA,
             "%s: expected a directory of CLIP or SigLIP with a config.json", dir);
    DT_TRY(dt_spec_load(&root, file, VISION_MAX_CONFIG, 0, NULL, NULL));
    const dt_err err = find_tower(&root, tower);
    dt_spec_unload(&root);
    return err;
}

/* Takes references to the parts. */
static json_t *make_text(const dt_config *cfg, json_t *language, json_t *tower, json_t *preprocessor, int64_t token)
{
    const bool class_row = has_class_row(tower);
    json_t *root = json_pack("{s:s, s:O, s:o, s:I, s:i, s:o, s:s, s:b, s:s}", "model_type", "llava", "text_config",
                             language, "vision_config", tower, "image_token_index", (json_int_t)token,
                             "vision_feature_layer", -2, "vision_feature_select_strategy", strategy("patch", class_row),
                             "projector_hidden_act", "gelu", "multimodal_projector_bias",
                             strcmp(cfg->vision_projector_type, "pixel_shuffle") != 0, "projector_type", "mlp2x_gelu");
    if (preprocessor) json_object_set_new(root, "preprocessor_config", preprocessor);
    static const char *const of_file[] = {"dtype", "torch_dtype", "tie_word_embeddings"};
    for (size_t i = 0; i < sizeof of_file / sizeof of_file[0]; i++)
        if (json_object_get(language, of_file[i]))
            json_object_set(root, of_file[i], json_object_get(language, of_file[i]));
    forget_file(language);
    for (int i = 0; i < N_MODEL_KEYS; i++)
        if (*text_of(cfg, i)) json_object_set_new(root, MODEL_KEYS[i].name, value_of(cfg, i, class_row));
    return root;
}

static dt_err name_parts(dt_pretrained *p, const dt_config *cfg)
{
    char *name = NULL;
    const bool named = asprintf(&name, "%s, joined with %s", p->config_name, cfg->vision_path) >= 0;
    p->tower = strdup(cfg->vision_path);
    DT_CHECK(named && p->tower, DT_ERR_MEMORY, "out of memory for a name");
    free(p->config_name);
    p->config_name = name;
    p->parts.tower = p->tower;
    p->parts.new_projector = !*cfg->vision_projector_path;
    return DT_OK;
}

static dt_err check_language(const dt_pretrained *p, const dt_config *cfg)
{
    DT_CONFIG_CHECK(
        !p->path || p->kind == DT_PRETRAINED_HF, cfg, "vision", "path",
        "expected a language model directory for the tower, found the checkpoint %s; convert it with dtrain-convert",
        p->path);
    return DT_OK;
}

static dt_err parse(const char *name, const json_t *root)
{
    dt_model_config mc = {0};
    char *text = NULL;
    DT_TRY(dt_json_store(&text, name, root));
    const dt_err err = dt_model_config_parse(&mc, name, text);
    dt_model_config_free(&mc);
    free(text);
    return err;
}

static bool is_model(const json_t *root)
{
    const bool is = parse("", root) == DT_OK;
    dt_error_clear();
    return is;
}

/* The key that the message names. Otherwise the key without which the model would be valid, or the first. Keys that
 * depend on others come after them. */
static const char *key_to_blame(const dt_config *cfg, const json_t *root, const char *message)
{
    const char *first = NULL;
    for (int i = 0; i < N_MODEL_KEYS; i++) {
        const char *at = *text_of(cfg, i) ? strstr(message, MODEL_KEYS[i].name) : NULL;
        if (at && at[strlen(MODEL_KEYS[i].name)] == ':') return MODEL_KEYS[i].key;
    }
    json_t *without = json_copy((json_t *)root);
    json_object_set_new(without, "image_token_index", json_integer(0));
    const bool token = is_model(without);
    json_decref(without);
    if (token) return "image_token";
    for (int i = N_MODEL_KEYS - 1; i >= 0; i--) {
        if (!*text_of(cfg, i)) continue;
        first = MODEL_KEYS[i].key;
        without = json_copy((json_t *)root);
        json_object_del(without, MODEL_KEYS[i].name);
        const bool is = is_model(without);
        json_decref(without);
        if (is) break;
    }
    return first;
}

/* Attribute an error to the language model, to the tower, or to the keys that join them. */
static dt_err check_joined(const dt_pretrained *p, const dt_config *cfg, const json_t *language, const json_t *root)
{
    char file[PATH_MAX];
    DT_TRY(parse(p->config_name, language));
    json_t *bare = json_copy((json_t *)root);
    for (int i = 0; i < N_MODEL_KEYS; i++)
        if (*text_of(cfg, i)) json_object_del(bare, MODEL_KEYS[i].name);
    json_object_set_new(bare, "image_token_index", json_integer(0));
    const dt_err err = parse(dt_is_in(file, cfg->vision_path, "config.json") ? file : cfg->vision_path, bare);
    json_decref(bare);
    DT_TRY(dt_config_lead_to(cfg, "vision", "path", err));
    if (parse(cfg->vision_path, root) == DT_OK) return DT_OK;
    char *message = strdup(dt_error_message());
    dt_error_clear();
    const char *key = message ? key_to_blame(cfg, root, message) : NULL;
    free(message);
    return dt_config_blame(cfg, "vision", key ? key : "path", parse(cfg->vision_path, root));
}

static dt_err join(dt_pretrained *p, const dt_config *cfg, json_t *language)
{
    json_t *tower = NULL, *preprocessor = NULL, *alone = json_deep_copy(language);
    int64_t token = -1;
    const char *tokenizer = *cfg->model_tokenizer ? cfg->model_tokenizer : p->tokenizer;
    dt_err err = check_language(p, cfg);
    if (err == DT_OK) err = dt_config_lead_to(cfg, "vision", "path", read_tower(cfg->vision_path, &tower));
    if (err == DT_OK) err = find_token(cfg, tokenizer, &token);
    if (err == DT_OK) err = vision_read_preprocessor(cfg->vision_path, &preprocessor);
    json_t *root = err == DT_OK ? make_text(cfg, language, tower, preprocessor, token) : NULL;
    if (err != DT_OK) json_decref(tower);
    if (err == DT_OK) err = check_joined(p, cfg, alone, root);
    if (err == DT_OK) err = dt_json_store(&p->model_config, p->config_name, root);
    json_decref(root);
    json_decref(alone);
    return err == DT_OK ? name_parts(p, cfg) : err;
}

/* ---- a model that already has images ----------------------------------------------------------------------------- */

static dt_err differs(const dt_config *cfg, const dt_pretrained *p, const char *key, const json_t *has)
{
    char *found = has ? json_dumps(has, JSON_ENCODE_ANY) : NULL;
    const dt_err err = dt_config_fail(
        cfg, "vision", key,
        "the model of model.path, %s, already defines this as %s, and its weights depend on it; leave this key out",
        p->path, found ? found : "its default");
    free(found);
    return err;
}

static void count_difference(void *self, const char *name, const char *before, const char *now) { ++*(int *)self; }

/* Does config.json have the same meaning with this value? The value may be written there or be the default. */
static bool means_the_same(const dt_pretrained *p, const json_t *root, const char *name, json_t *value)
{
    dt_model_config now = {0}, then = {0};
    int n_differ = 0;
    json_t *with = json_copy((json_t *)root);
    char *as_it_is = json_dumps(root, 0),
         *text = with && json_object_set(with, name, value) == 0 ? json_dumps(with, 0) : NULL;
    const bool parsed = as_it_is && text && dt_model_config_parse(&now, p->config_name, as_it_is) == DT_OK &&
                        dt_model_config_parse(&then, p->config_name, text) == DT_OK;
    if (parsed)
        dt_model_config_compare(&now, &then, count_difference, &n_differ);
    else
        dt_error_clear();
    dt_model_config_free(&now);
    dt_model_config_free(&then);
    json_decref(with);
    free(as_it_is);
    free(text);
    return parsed && n_differ == 0;
}

/* Keys of a complete model may only repeat its values, except for dropout, which the run may choose. */
static dt_err check_keys(dt_pretrained *p, const dt_config *cfg, json_t *root)
{
    const json_t *tower = json_object_get(root, "vision_config");
    const bool class_row = has_class_row(tower) || !json_object_get(tower, "model_type");
    const bool joined = !dt_model_is_llava(root);
    for (int i = 0; i < N_MODEL_KEYS; i++) {
        if (!*text_of(cfg, i)) continue;
        DT_CONFIG_CHECK(!joined, cfg, "vision", MODEL_KEYS[i].key,
                        "the tower, projector and language model of %s (model_type %s) belong together; leave this key "
                        "out",
                        p->path, json_string_value(json_object_get(root, "model_type")));
        json_t *wanted = value_of(cfg, i, class_row), *has = json_object_get(root, MODEL_KEYS[i].name);
        const bool own = strcmp(MODEL_KEYS[i].key, "projector_dropout") == 0,
                   same = json_equal(wanted, has) || means_the_same(p, root, MODEL_KEYS[i].name, wanted);
        if (own) json_object_set(root, MODEL_KEYS[i].name, wanted);
        json_decref(wanted);
        if (!own && !same) return differs(cfg, p, MODEL_KEYS[i].key, has);
    }
    return DT_OK;
}

static dt_err check_token(const dt_pretrained *p, const dt_config *cfg, const json_t *root)
{
    int64_t id;
    const json_t *has = json_object_get(root, "image_token_index");
    if (!has) has = json_object_get(root, "image_token_id");
    if (!dt_config_differs(cfg, "vision", "image_token")) return DT_OK;
    DT_TRY(find_token(cfg, *cfg->model_tokenizer ? cfg->model_tokenizer : p->tokenizer, &id));
    const dt_tower *joined = dt_tower_of_model(json_string_value(json_object_get(root, "model_type")));
    const json_int_t usual = (joined ? joined : dt_tower_at(0))->tokens[0];
    return (has ? json_integer_value(has) : usual) == id ? DT_OK : differs(cfg, p, "image_token", has);
}

static dt_err take_keys(dt_pretrained *p, const dt_config *cfg, json_t *root)
{
    DT_CONFIG_CHECK(
        !*cfg->vision_path, cfg, "vision", "path",
        "the model of model.path, %s, already has a tower; leave this key out, or set model.path to a language model",
        p->path);
    DT_TRY(check_keys(p, cfg, root));
    DT_TRY(check_token(p, cfg, root));
    return dt_json_store(&p->model_config, p->config_name, root);
}

static dt_err check_none(const dt_pretrained *p, const dt_config *cfg)
{
    static const char *const keys[] = {
        "projector_type", "projector_path", "projector_hidden_size", "projector_shuffle", "projector_dropout",
        "feature_layer",  "feature_select", "feature_norm",          "image_tokens",      "train",
        "image_token"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        DT_CONFIG_CHECK(!dt_config_differs(cfg, "vision", keys[i]), cfg, "vision", keys[i], "%s",
                        p->text_alone ? "only the text model of model.path is read; set model.vision = whole to read "
                                        "its tower although no dataset has images"
                                      : "the model has no tower; set vision.path to a directory of CLIP or SigLIP, or "
                                        "model.path to a vision-language model");
    return DT_OK;
}

static dt_err refuse_tower(const dt_pretrained *p, const dt_config *cfg, const char *type)
{
    return dt_config_fail(cfg, "model", "path",
                          "expected a language model, found the vision tower %s (model_type %s); set model.path to the "
                          "language model, and vision.path to the tower",
                          p->path, type);
}

static dt_err take_projector(dt_pretrained *p, const dt_config *cfg, bool joined)
{
    if (!*cfg->vision_projector_path) return DT_OK;
    DT_CONFIG_CHECK(!joined, cfg, "vision", "projector_path",
                    "the projector of %s belongs to its language model; leave this key out", p->path);
    DT_TRY(check_projector_file(cfg));
    DT_CONFIG_CHECK(p->kind == DT_PRETRAINED_HF, cfg, "vision", "projector_path",
                    "the checkpoint %s already has a projector; leave this key out", p->path);
    p->projector = strdup(cfg->vision_projector_path);
    DT_CHECK(p->projector, DT_ERR_MEMORY, "out of memory for a path");
    p->parts.projector = p->projector;
    return DT_OK;
}

dt_err dt_pretrained_take_vision(dt_pretrained *p, const dt_config *cfg)
{
    json_t *root;
    DT_TRY(dt_json_parse(&root, p->config_name, p->model_config, strlen(p->model_config), 0));
    const char *type = json_string_value(json_object_get(root, "model_type"));
    dt_err err = p->path && tower_of(root)   ? refuse_tower(p, cfg, type)
                 : dt_model_has_vision(root) ? take_keys(p, cfg, root)
                 : *cfg->vision_path         ? join(p, cfg, root)
                                             : check_none(p, cfg);
    p->has_vision = dt_model_has_vision(root) || *cfg->vision_path;
    if (err == DT_OK && p->has_vision)
        err = take_projector(p, cfg, dt_model_has_vision(root) && !dt_model_is_llava(root));
    json_decref(root);
    return err;
}
