/* config_inline.c - a model from the [model] section: a config.json, keys of the INI file with the same names, or both.
 *
 * Inline keys are converted to JSON and read by the same parser as a file, so both forms mean the same. Errors in
 * inline keys are usage errors, not data errors. An inline key that the family does not read is rejected. In a file
 * such a key is ignored, because it may be meant for other programs. */
#include "../families/family.h"
#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A key of [model] that is one of config.json: the optional ones, and rope_scaling. */
typedef struct inline_key {
    const char *section, *key, *type; /* type "": text */
    size_t value;                     /* offset in dt_config */
} inline_key;

#define NO_ROW(...)
#define TEXT_ROW(section, key, ...) {#section, #key, "", offsetof(dt_config, section##_##key)},
#define MAYBE_ROW(section, key, type, ...) {#section, #key, #type, offsetof(dt_config, section##_##key)},
/* With those of other sections. model_type is the first of [model]: it determines the names of the others. */
static const inline_key KEYS[] = {DT_CONFIG_KEYS(NO_ROW, NO_ROW, NO_ROW, NO_ROW, TEXT_ROW, MAYBE_ROW)};
enum { N_KEYS = sizeof KEYS / sizeof KEYS[0] };

/* Those that all families read. The others are listed by the families that read them. */
static const char COMMON[] =
    "model_type, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, "
    "head_dim, vocab_size, max_position_embeddings, rms_norm_eps, hidden_act, tie_word_embeddings, "
    "initializer_range";

static bool is_inline(const inline_key *k)
{
    return strcmp(k->section, "model") == 0 && (*k->type || strcmp(k->key, "rope_scaling") == 0);
}

/* The value of a key; "": not set, or no key of config.json. */
static const char *value_of(const dt_config *cfg, const inline_key *k)
{
    const char *value;
    memcpy(&value, (const char *)cfg + k->value, sizeof value);
    return is_inline(k) ? value : "";
}

/* The configuration's parser has checked the value, and written numbers and booleans as JSON does. */
static dt_err to_json(const dt_config *cfg, const inline_key *k, json_t **out)
{
    const char *value = value_of(cfg, k);
    if (strcmp(k->type, "word") == 0) {
        *out = json_string(value);
        return DT_OK;
    }
    if (dt_json_parse(out, k->key, value, strlen(value), DT_JSON_ANY) != DT_OK) dt_error_clear();
    if (*out && (*k->type || json_is_null(*out) || json_is_object(*out))) return DT_OK;
    json_decref(*out);
    return dt_config_fail(cfg, "model", k->key, "expected a JSON object or null, found %s", value);
}

/* The keys of a list, or all. */
static dt_err merge_inline(const dt_config *cfg, const char *list, json_t *root)
{
    for (int i = 0; i < N_KEYS; i++) {
        const inline_key *k = &KEYS[i];
        json_t *v = NULL;
        if (value_of(cfg, k)[0] == '\0' || (list && !dt_has_word(list, k->key))) continue;
        DT_TRY(to_json(cfg, k, &v));
        const dt_family *f = dt_family_find_type(root);
        DT_CHECK(json_object_set_new(root, f ? dt_family_key_name(f, k->key) : k->key, v) == 0, DT_ERR_MEMORY,
                 "out of memory for [model] %s", k->key);
        DT_CONFIG_CHECK(!f || dt_has_word(COMMON, k->key) || dt_family_reads(f, k->key), cfg, "model", k->key,
                        "a model of type %s has no such key; remove it (its value is %s)", dt_family_name(f),
                        value_of(cfg, k));
    }
    return DT_OK;
}

/* rope_parameters of newer files replaces the two older keys, but an inline key must override it. */
static void put_rope_first(const dt_config *cfg, json_t *root)
{
    json_t *parameters = json_object_get(root, "rope_parameters"), *full, *local;
    if (!json_is_object(parameters)) return;
    local = json_object_get(json_object_get(parameters, "sliding_attention"), "rope_theta");
    if (local && cfg->model_rope_scaling[0] != '\0') json_object_set(root, "rope_local_base_freq", local);
    full = json_object_get(parameters, "full_attention"); /* the keys are for these layers */
    if (json_is_object(full)) parameters = full;
    if (cfg->model_rope_scaling[0] != '\0') {
        if (cfg->model_rope_theta[0] == '\0' && json_object_get(parameters, "rope_theta"))
            json_object_set(root, "rope_theta", json_object_get(parameters, "rope_theta"));
        if (json_object_get(parameters, "partial_rotary_factor"))
            json_object_set(root, "partial_rotary_factor", json_object_get(parameters, "partial_rotary_factor"));
        json_object_del(root, "rope_parameters");
    } else if (cfg->model_rope_theta[0] != '\0') {
        json_object_set(parameters, "rope_theta", json_object_get(root, "rope_theta"));
    }
}

static dt_err load_file(const char *path, json_t **root)
{
    char *text = NULL;
    errno = 0;
    DT_CHECK_ERRNO(access(path, R_OK) == 0, DT_ERR_DATA, path, "cannot read the model's configuration");
    DT_TRY(dt_config_read_file(path, &text));
    const dt_err err = dt_json_parse(root, path, text, strlen(text), 0);
    free(text);
    DT_TRY(err);
    DT_CHECK(json_is_object(*root), DT_ERR_DATA, "%s: expected one JSON object", path);
    return DT_OK;
}

/* Is `name` the key, or a family's name for it? */
static bool is_called(const inline_key *k, const char *name)
{
    bool is = strcmp(name, k->key) == 0;
    for (int i = 0; dt_family_at(i) && !is; i++) is = strcmp(name, dt_family_key_name(dt_family_at(i), k->key)) == 0;
    return is;
}

/* Report an error in the whole model as "[model]: KEY: message", with the line that set KEY. */
static dt_err at_its_line(const dt_config *cfg, dt_err err)
{
    char key[64], where[512], what[1024];
    if (sscanf(dt_error_message(), "[model]: %63[a-z0-9_]%1023[^\n]", key, what) != 2) return err;
    for (int i = 0; i < N_KEYS; i++) {
        const inline_key *k = &KEYS[i];
        if (!is_inline(k) || !is_called(k, key)) continue;
        dt_config_where(cfg, "model", k->key, where, sizeof where);
        dt_error_clear();
        return dt_fail(err, "%s%s", where, what);
    }
    return err;
}

/* root: the JSON of the model; source: the same, with its name. */
static dt_err finish(dt_model_config *mc, const dt_config *cfg, const dt_spec *source, json_t *root, bool inline_only)
{
    DT_TRY(merge_inline(cfg, NULL, root));
    put_rope_first(cfg, root);
    DT_TRY(dt_model_config_from_json(mc, source));
    if (inline_only) { /* required by other programs that read config.json */
        json_object_set_new(root, "architectures", json_pack("[s]", dt_model_architecture(mc)));
        DT_TRY(dt_json_store(&mc->json, source->file, root));
    }
    dt_model_config_set_dropout(mc, cfg->model_dropout);
    const bool window = cfg->model_sliding_window[0] != '\0' && strcmp(cfg->model_sliding_window, "null") != 0;
    DT_CONFIG_CHECK(!window || mc->sliding_window > 0, cfg, "model", "sliding_window",
                    "no block uses the window, because of use_sliding_window or layer_types in %s; leave this key out",
                    source->file);
    DT_CONFIG_CHECK(strtod(cfg->model_router_aux_loss_coef, NULL) <= 0 || mc->router_aux_loss_coef > 0, cfg, "model",
                    "router_aux_loss_coef",
                    "has no effect without the load-balancing loss; set model.output_router_logits = true as well");
    return DT_OK;
}

/* As in a model directory, preprocessor_config.json next to model.config defines the image preprocessing. */
static dt_err read_preprocessor_file(dt_model_config *mc, const char *file)
{
    char dir[PATH_MAX] = ".";
    const char *slash = strrchr(file, '/');
    dt_preprocessor p;
    if (!mc->vision || mc->vision->preprocessor.out_width) return DT_OK;
    if (slash) snprintf(dir, sizeof dir, "%.*s", (int)(slash - file) + 1, file);
    DT_TRY(dt_preprocessor_find(dir, &p));
    const dt_err err = p.json ? dt_model_config_set_preprocessor(mc, dir, p.json) : DT_OK;
    dt_preprocessor_free(&p);
    return err;
}

dt_err dt_model_config_from_keys(dt_model_config *mc, const dt_config *cfg, dt_model_part part)
{
    const bool file = cfg->model_config[0] != '\0';
    bool any_inline = cfg->model_model_type[0] != '\0', chosen, changed;
    json_t *root = NULL;
    *mc = (dt_model_config){0};
    DT_CONFIG_CHECK(file || any_inline, cfg, "model", "model_type",
                    "expected a model, found none; set one of path, config or model_type in [model]");
    if (file) {
        DT_TRY(load_file(cfg->model_config, &root));
        const dt_err err = dt_model_choose_part(part, cfg->model_config, &root, &chosen, &changed);
        if (err != DT_OK) return json_decref(root), err;
    } else {
        root = json_object();
        DT_CHECK(root, DT_ERR_MEMORY, "out of memory for the model's configuration");
    }
    const dt_spec source = {
        .file = file ? cfg->model_config : "[model]", .err = file ? DT_ERR_DATA : DT_ERR_USAGE, .value = root};
    dt_err err = finish(mc, cfg, &source, root, !file);
    if (err == DT_OK && file) err = read_preprocessor_file(mc, cfg->model_config);
    json_decref(root);
    if (err == DT_OK) return DT_OK;
    dt_model_config_free(mc);
    return file ? err : at_its_line(cfg, err);
}

dt_err dt_model_config_set_losses(const dt_config *cfg, const char *name, char **json_text)
{
    json_t *root;
    if (!*cfg->model_output_router_logits && !*cfg->model_router_aux_loss_coef) return DT_OK;
    DT_TRY(dt_json_parse(&root, name, *json_text, strlen(*json_text), 0));
    json_t *inner = json_object_get(root, "text_config");
    dt_err err = merge_inline(cfg, "output_router_logits, router_aux_loss_coef", json_is_object(inner) ? inner : root);
    if (err == DT_OK) err = dt_json_store(json_text, name, root);
    json_decref(root);
    return err;
}

/* ---- keys next to a model of `path` ------------------------------------------------------------------------------ */

/* The differences that a key makes. */
typedef struct of_key {
    const char *only; /* count fields whose names begin with it; "": all */
    const char *key;
    int n;
    char has[64]; /* the model's value of the field of this name; "": the key is not the name of a field */
} of_key;

static void see_difference(void *self, const char *name, const char *before, const char *now)
{
    of_key *d = self;
    if (strncmp(name, d->only, strlen(d->only)) != 0) return;
    d->n++;
    if (strcmp(name, d->key) == 0) snprintf(d->has, sizeof d->has, "%s", before);
}

/* Does the model differ from found with the keys of a list set? A value that does not fit differs, too. */
static dt_err compare_with(const dt_config *cfg, const char *list, const dt_model_config *found, of_key *d)
{
    dt_model_config stated = {0};
    json_t *root;
    DT_TRY(dt_json_parse(&root, "[model]", found->json, strlen(found->json), 0));
    json_t *text = json_object_get(root, "text_config"), *inner = json_is_object(text) ? text : root;
    dt_err err = merge_inline(cfg, list, inner);
    if (err == DT_OK && *d->only) put_rope_first(cfg, inner);
    if (err == DT_OK)
        err = dt_model_config_from_json(&stated, &(dt_spec){.file = "[model]", .err = DT_ERR_USAGE, .value = root});
    if (err == DT_OK)
        dt_model_config_compare(found, &stated, see_difference, d);
    else if (err != DT_ERR_MEMORY)
        d->n = 1;
    dt_model_config_free(&stated);
    json_decref(root);
    if (err == DT_ERR_MEMORY) return err;
    dt_error_clear();
    return DT_OK;
}

dt_err dt_model_config_compare_keys(const dt_config *cfg, const dt_model_config *found, dt_model_visit visit,
                                    void *self)
{
    const char *type = cfg->model_model_type, *has = dt_family_name(found->family);
    if (*type && strcmp(type, has) != 0) visit(self, "model_type", has, type);
    for (int i = 0; i < N_KEYS; i++) {
        const inline_key *k = &KEYS[i];
        const bool rope = strncmp(k->key, "rope_", 5) == 0;
        of_key d = {.only = rope ? k->key : "", .key = k->key};
        if (value_of(cfg, k)[0] == '\0' || strcmp(k->key, "model_type") == 0) continue;
        DT_TRY(compare_with(cfg, rope ? "rope_theta, rope_scaling" : k->key, found, &d));
        if (d.n > 0) visit(self, k->key, d.has, value_of(cfg, k));
    }
    return DT_OK;
}
