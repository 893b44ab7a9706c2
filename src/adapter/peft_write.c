/* peft_write.c - write adapter_config.json with the keys that PEFT writes. */
#include "module_match.h"
#include "dtrain/io/json.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

void dt_peft_name(const char *name, char out[DT_PEFT_NAME_MAX])
{
    static const char *const paths[][2] = {{"language_model.lm_head", "lm_head"},
                                           {"language_model.model.", "model.language_model."},
                                           {"multi_modal_projector.", "model.multi_modal_projector."},
                                           {"vision_tower.", "model.vision_tower."}};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        const size_t n = strlen(paths[i][0]);
        if (strncmp(name, paths[i][0], n) != 0) continue;
        snprintf(out, DT_PEFT_NAME_MAX, "%s%s", paths[i][1], name + n);
        return;
    }
    static const char in_files[] = ".block_sparse_moe."; /* transformers: .mlp. in memory */
    const char *at = strstr(name, in_files);
    if (at) snprintf(out, DT_PEFT_NAME_MAX, "%.*s.mlp.%s", (int)(at - name), name, at + strlen(in_files));
    if (!at) snprintf(out, DT_PEFT_NAME_MAX, "%s", name);
}

const char *dt_peft_headless(const char *name)
{
    static const char *const models[] = {"model.", "transformer."};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        if (strncmp(name, models[i], strlen(models[i])) == 0) return name + strlen(models[i]);
    return name;
}

void dt_peft_tensor_name(const dt_tensor *t, char out[DT_PEFT_NAME_MAX])
{
    char name[DT_NAME_MAX];
    const char *part = strstr(t->name, ".lora_");
    if (t->renamings) {
        dt_rename(t->renamings, t->name, out, DT_PEFT_NAME_MAX);
        return;
    }
    dt_peft_name(t->name, out);
    if (t->adapter_experts == 0 || !part) return;
    const char *parameter = memrchr(t->name, '.', (size_t)(part - t->name));
    snprintf(name, sizeof name, "%.*s", parameter ? (int)(parameter - t->name) : 0, t->name);
    dt_peft_name(name, out);
    for (int i = 0; i < t->adapter_depth; i++) strncat(out, ".base_layer", DT_PEFT_NAME_MAX - strlen(out) - 1);
    strncat(out, part, DT_PEFT_NAME_MAX - strlen(out) - 1);
}

dt_tensor dt_peft_shaped(const dt_tensor *t)
{
    dt_tensor shaped = *t;
    if (!dt_peft_alternates(t)) return shaped;
    shaped.shape[0] = t->shape[0] / t->adapter_experts, shaped.shape[1] = t->shape[1] * t->adapter_experts;
    return shaped;
}

static json_t *number(double x) { return x == floor(x) ? json_integer((json_int_t)x) : json_real(x); }

static json_t *list(char *const *names, int n)
{
    json_t *all = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(all, json_string(names[i]));
    return all;
}

/* The first of several values for a pattern is used. In a vision-language model a pattern may match other paths here
 * than in transformers, so the values are written for whole paths. */
static json_t *patterns(const dt_module_value *values, int n, const dt_model_config *mc, const dt_unit *units,
                        int n_units)
{
    json_t *all = json_object();
    for (dt_adapted at = {0}; mc->vision && dt_adapted_next(&at, units, n_units);)
        for (int i = 0; i < n && !json_object_get(all, at.path); i++)
            if (module_ends_as(values[i].pattern, at.module) || module_ends_as(values[i].pattern, at.path))
                json_object_set_new(all, at.path, number(values[i].value));
    for (int i = 0; i < n && !mc->vision; i++)
        if (!json_object_get(all, values[i].pattern))
            json_object_set_new(all, values[i].pattern, number(values[i].value));
    return all;
}

/* Names are written as given. Patterns and defaults are written as whole paths, which every program interprets alike.
 * In a vision-language model names may also match layers of parts without adapters. */
static json_t *targets(const dt_lora *l, const dt_model_config *mc, const dt_unit *units, int n_units, bool headless)
{
    dt_adapted at = {0};
    if (l->target_modules.n > 0 && !mc->vision) return list(l->target_modules.list, l->target_modules.n);
    json_t *all = json_array();
    while (dt_adapted_next(&at, units, n_units))
        if (!at.of_parameter) json_array_append_new(all, json_string(headless ? dt_peft_headless(at.path) : at.path));
    return all;
}

static bool is_scalar(const dt_unit *units, int n_units)
{
    return dt_units_find(units, n_units, DT_UNIT_SCALAR_HEAD) >= 0;
}

static int count_scores(const dt_unit *units, int n_units)
{
    const dt_unit *head = &units[dt_units_find(units, n_units, DT_UNIT_SCALAR_HEAD)];
    int n = 0;
    for (int i = 0; i < head->n_tensors; i++) n += strncmp(head->tensors[i].name, "score.", 6) == 0;
    return n;
}

/* more: an additional module, which may already be listed; NULL: none. */
static json_t *saved(const dt_lora *l, const char *more)
{
    json_t *all = list(l->modules_to_save.list, l->modules_to_save.n);
    for (int i = 0; i < l->modules_to_save.n && more; i++)
        if (strcmp(l->modules_to_save.list[i], more) == 0) more = NULL;
    if (more) json_array_append_new(all, json_string(more));
    if (json_array_size(all) > 0) return all;
    json_decref(all);
    return json_null();
}

/* A list, or null. */
static json_t *parameters(const dt_lora *l)
{
    return l->target_parameters.n > 0 ? list(l->target_parameters.list, l->target_parameters.n) : json_null();
}

/* Features of PEFT that dtrain's adapters do not use. */
static void set_unused(json_t *root)
{
    static const char *const nulls[] = {"alora_invocation_tokens", "auto_mapping",   "exclude_modules",
                                        "layer_replication",       "layers_pattern", "layers_to_transform",
                                        "megatron_config",         "revision",       "trainable_token_indices"};
    static const char *const falses[] = {"lora_bias", "use_qalora"};
    for (size_t i = 0; i < sizeof nulls / sizeof nulls[0]; i++) json_object_set_new(root, nulls[i], json_null());
    for (size_t i = 0; i < sizeof falses / sizeof falses[0]; i++) json_object_set_new(root, falses[i], json_false());
    json_object_set_new(root, "bias", json_string("none"));
    json_object_set_new(root, "loftq_config", json_object());
}

dt_err dt_lora_text(const dt_lora *l, const char *base, const dt_model_config *mc, const dt_unit *units, int n_units,
                    char **text)
{
    const bool scalar = is_scalar(units, n_units);
    const int n_scores = scalar ? count_scores(units, n_units) : 0; /* with a bias if labels are those of words */
    const char *more = n_scores ? "score" : lora_saves_tied(l, mc, units, n_units) ? "lm_head" : NULL;
    json_t *root = json_pack(
        "{s:s, s:s, s:b, s:b, s:b, s:b, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "peft_type", "LORA",
        "task_type",
        n_scores > 1 ? "TOKEN_CLS"
        : n_scores   ? "SEQ_CLS"
        : scalar     ? "FEATURE_EXTRACTION"
                     : "CAUSAL_LM",
        "inference_mode", 1, "fan_in_fan_out", mc->conv1d, "use_rslora", l->use_rslora, "use_dora", l->use_dora, "r",
        (json_int_t)l->r, "lora_alpha", number(l->alpha), "lora_dropout", json_real(l->dropout),
        "base_model_name_or_path", base ? json_string(base) : json_null(), "init_lora_weights",
        l->init == DT_LORA_GAUSSIAN ? json_string("gaussian") : json_true(), "target_modules",
        targets(l, mc, units, n_units, scalar && !n_scores), "modules_to_save", saved(l, more), "rank_pattern",
        patterns(l->rank_pattern, l->n_rank_pattern, mc, units, n_units), "target_parameters", parameters(l),
        "alpha_pattern", patterns(l->alpha_pattern, l->n_alpha_pattern, mc, units, n_units));
    if (root) set_unused(root);
    char *bare = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(root);
    if (!bare || asprintf(text, "%s\n", bare) < 0) *text = NULL;
    free(bare);
    DT_CHECK(*text, DT_ERR_MEMORY, "out of memory for %s", DT_PEFT_CONFIG);
    return DT_OK;
}
