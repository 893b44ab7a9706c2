/* peft_read.c - read adapter_config.json of other programs. Settings that would change the meaning of the same tensors
 * are rejected by name. Unknown keys and null values are ignored. */
#include "module_match.h"
#include "dtrain/io/io.h"
#include "dtrain/io/spec.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG = 1 << 24 /* bytes */, MAX_RANK = 65536 };

/* NULL: the key is missing, or its value is null. */
static const json_t *value_of(const dt_spec *f, const char *key)
{
    const json_t *v = json_object_get(f->value, key);
    return json_is_null(v) ? NULL : v;
}

/* Prefix the error with the file and, if known, its key. */
static dt_err blame(const char *file, const char *key, dt_err err)
{
    if (err == DT_OK || err == DT_ERR_MEMORY) return err;
    return dt_error_lead(DT_ERR_DATA, "%s: %s%s", file, key ? key : "", key ? ": " : "");
}

static bool is_empty(const json_t *v)
{
    return !v || json_is_false(v) || (json_is_string(v) && json_string_length(v) == 0) ||
           (json_is_array(v) && json_array_size(v) == 0) || (json_is_object(v) && json_object_size(v) == 0);
}

/* ---- unsupported settings ---------------------------------------------------------------------------------------- */

static dt_err check_kind(const dt_spec *f)
{
    static const char *const others[] = {"lora_bias",
                                         "layer_replication",
                                         "trainable_token_indices",
                                         "use_qalora",
                                         "use_bdlora",
                                         "megatron_config",
                                         "alora_invocation_tokens",
                                         "arrow_config",
                                         "kasa_config",
                                         "monteclora_config",
                                         "velora_config"};
    const char *type = json_string_value(value_of(f, "peft_type")), *bias = json_string_value(value_of(f, "bias"));
    DT_CHECK(type && strcmp(type, "LORA") == 0, DT_ERR_DATA, "%s: peft_type: expected LORA, found %.80s", f->file,
             type ? type : "none");
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        DT_CHECK(is_empty(value_of(f, others[i])), DT_ERR_DATA, "%s: adapters with %s are not supported", f->file,
                 others[i]);
    DT_CHECK(!bias || strcmp(bias, "none") == 0, DT_ERR_DATA,
             "%s: bias: %.80s: adapters that train biases are not supported; expected none", f->file, bias);
    return DT_OK;
}

/* Some initialisations subtract a part from the base model. Their adapters are not valid for the original model. */
static dt_err check_init(const dt_spec *f)
{
    const json_t *v = value_of(f, "init_lora_weights");
    const char *word = json_string_value(v);
    if (word ? dt_has_word("gaussian, eva, orthogonal", word) : !v || json_is_boolean(v)) return DT_OK;
    return dt_spec_bad(f, "init_lora_weights",
                       "an initialisation that keeps the base model unchanged (true, gaussian)");
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* A rank or an alpha. */
static dt_err read_value(const dt_spec *v, bool is_rank, double *out)
{
    const double x = json_number_value(v->value);
    if (is_rank && !(json_is_integer(v->value) && x >= 1 && x <= MAX_RANK))
        return dt_spec_bad(v, NULL, "a rank from 1 to 65536");
    if (!is_rank && !(json_is_number(v->value) && x >= 1e-30 && x <= 1e30))
        return dt_spec_bad(v, NULL, "a positive number");
    *out = x;
    return DT_OK;
}

static dt_err read_key(const dt_spec *f, const char *key, bool is_rank, double *out)
{
    dt_spec v;
    return dt_spec_get(f, key, &v) ? read_value(&v, is_rank, out) : DT_OK;
}

static dt_err read_patterns(const dt_spec *f, const char *key, bool ranks, dt_module_value **values, int *n)
{
    dt_spec all, v;
    const char *pattern;
    json_t *value;
    if (!dt_spec_get(f, key, &all)) return DT_OK;
    if (!json_is_object(all.value)) return dt_spec_bad(&all, NULL, "an object of patterns and values");
    *values = calloc(json_object_size(all.value) + 1, sizeof **values);
    DT_CHECK(*values, DT_ERR_MEMORY, "%s: out of memory for %s", f->file, key);
    json_object_foreach((json_t *)all.value, pattern, value)
    {
        dt_module_value *to = &(*values)[(*n)++];
        if (!dt_spec_get(&all, pattern, &v)) return dt_spec_bad(&all, pattern, "a number");
        DT_TRY(read_value(&v, ranks, &to->value));
        DT_TRY(dt_error_lead(module_check_pattern(pattern), "%s: %s: ", f->file, key));
        DT_CHECK((to->pattern = strdup(pattern)), DT_ERR_MEMORY, "%s: out of memory for %s", f->file, key);
    }
    return DT_OK;
}

/* A list of names, or a text: all-linear, or a regular expression for whole paths. */
static dt_err read_modules(const dt_spec *f, const char *key, dt_modules *m)
{
    const json_t *all = value_of(f, key);
    const char *text = json_string_value(all);
    if (text && strcmp(text, "all-linear") == 0) return dt_modules_parse(m, text);
    if (text) {
        DT_TRY(dt_error_lead(module_check_pattern(text), "%s: %s: ", f->file, key));
        m->pattern = strdup(text);
        return m->pattern ? DT_OK : dt_fail(DT_ERR_MEMORY, "%s: out of memory for %s", f->file, key);
    }
    if (!all) return DT_OK;
    if (!json_is_array(all)) return dt_spec_bad(f, key, "a list of names");
    m->list = calloc(json_array_size(all) + 1, sizeof *m->list);
    DT_CHECK(m->list, DT_ERR_MEMORY, "%s: out of memory for %s", f->file, key);
    for (size_t i = 0; i < json_array_size(all); i++) {
        const char *name = json_string_value(json_array_get(all, i));
        if (!name || !*name) return dt_spec_bad(f, key, "a list of names");
        DT_CHECK((m->list[m->n++] = strdup(name)), DT_ERR_MEMORY, "%s: out of memory for %s", f->file, key);
    }
    return DT_OK;
}

/* ---- excluded targets -------------------------------------------------------------------------------------------- */

/* exclude_modules, layers_to_transform and layers_pattern restrict target_modules. They are converted to one equivalent
 * regular expression, as in PEFT 0.21, tuners_utils.check_target_module_exists. */

/* An alternation of the literal names. */
static void put_names(FILE *out, const dt_modules *m)
{
    for (int i = 0; i < m->n; i++) {
        fputs(i ? "|" : "(?:", out);
        for (const char *c = m->list[i]; *c; c++) fprintf(out, strchr("\\.^$*+?()[]{}|", *c) ? "\\%c" : "%c", *c);
    }
    fputs(")", out);
}

/* A path that is one of the names, or ends with "." and a name; the rest must match `front`. */
static void put_modules(FILE *out, const dt_modules *m, const char *front)
{
    if (m->pattern) {
        fprintf(out, "(?:%s)", m->pattern);
        return;
    }
    fprintf(out, "(?:%s.*\\.)?", front);
    put_names(out, m);
}

/* "(?:0|2)\." */
static dt_err put_indices(FILE *out, const dt_spec *f, const json_t *layers)
{
    const size_t n = json_is_array(layers) ? json_array_size(layers) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *index = json_is_array(layers) ? json_array_get(layers, i) : layers;
        if (!json_is_integer(index))
            return dt_spec_bad(f, "layers_to_transform", "the number of a layer, or a list of them");
        fprintf(out, "%s%lld", i ? "|" : "0*(?:", (long long)json_integer_value(index));
    }
    fputs(")\\.", out);
    return DT_OK;
}

static bool is_plain(const char *name)
{
    return name && *name && !name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.")];
}

/* The layer number follows the first pattern in a path; of several matches the first is used. */
static dt_err put_named_layers(FILE *out, const dt_spec *f, const json_t *layers, const json_t *names)
{
    const size_t n = json_is_array(names) ? json_array_size(names) : 1;
    fputs("(?=", out);
    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_is_array(names) ? json_array_get(names, i) : names);
        if (!is_plain(name)) return dt_spec_bad(f, "layers_pattern", "a name, or a list of names");
        if (i) fputs("|", out);
        for (size_t before = 0; before < i; before++)
            fprintf(out, "(?!(?:.*\\.)?%s\\.\\d+\\.)", json_string_value(json_array_get(names, before)));
        fprintf(out, "(?:(?!%s\\.\\d+\\.)[^.]*\\.)*%s\\.", name, name);
        DT_TRY(put_indices(out, f, layers));
    }
    fputs(")", out);
    return DT_OK;
}

/* Without patterns the layer number is the first numeric component of a path, starting at the third. */
static dt_err put_layers(FILE *out, const dt_spec *f)
{
    const json_t *layers = value_of(f, "layers_to_transform"), *names = value_of(f, "layers_pattern");
    if (is_empty(layers)) return DT_OK;
    if (!is_empty(names)) return put_named_layers(out, f, layers, names);
    fputs("(?=[^.]*\\.[^.]*\\.(?:(?!\\d+\\.)[^.]*\\.)*", out);
    DT_TRY(put_indices(out, f, layers));
    fputs(")", out);
    return DT_OK;
}

static dt_err check_restricted(const dt_spec *f, const dt_modules *targets, const dt_modules *excluded)
{
    const char *digit = targets->pattern && excluded->pattern ? targets->pattern : "";
    while ((digit = strchr(digit, '\\')) && !(digit[1] >= '1' && digit[1] <= '9')) digit += digit[1] ? 2 : 1;
    DT_CHECK(!digit, DT_ERR_DATA, "%s: target_modules: back references together with exclude_modules are not supported",
             f->file);
    if (module_is_all_linear(targets) || (!targets->pattern && targets->n == 0))
        return dt_spec_bad(f, "target_modules", "module names together with exclude_modules or layers_to_transform");
    if (targets->pattern && !is_empty(value_of(f, "layers_to_transform")))
        return dt_spec_bad(f, "target_modules", "a list of names together with layers_to_transform");
    return DT_OK;
}

/* text: malloc'ed, NULL: out of memory. layers: an assertion about the whole path, or "". */
static void compose(const dt_modules *targets, const dt_modules *excluded, const char *layers, char **text)
{
    size_t size = 0;
    FILE *out = open_memstream(text, &size);
    if (!out) return;
    if (excluded->pattern || excluded->n > 0) {
        fputs("(?!", out);
        put_modules(out, excluded, "");
        fputs("\\z)", out);
    }
    put_modules(out, targets, layers);
    if (fclose(out) == 0) return;
    free(*text);
    *text = NULL;
}

static dt_err restrict_to(const dt_spec *f, dt_modules *targets, const dt_modules *excluded)
{
    char *layers = NULL, *text = NULL;
    size_t size = 0;
    DT_TRY(check_restricted(f, targets, excluded));
    FILE *out = open_memstream(&layers, &size);
    dt_err err = out ? put_layers(out, f) : DT_OK;
    if (out && fclose(out) == 0 && err == DT_OK) compose(targets, excluded, layers, &text);
    free(layers);
    if (err == DT_OK && !text) err = dt_fail(DT_ERR_MEMORY, "%s: out of memory for names", f->file);
    if (err == DT_OK) err = dt_error_lead(module_check_pattern(text), "%s: target_modules: ", f->file);
    if (err != DT_OK) {
        free(text);
        return err;
    }
    module_list_free(targets);
    targets->pattern = text;
    return DT_OK;
}

static dt_err read_targets(const dt_spec *f, dt_modules *targets)
{
    dt_modules excluded = {0};
    DT_TRY(read_modules(f, "target_modules", targets));
    const bool some = !is_empty(value_of(f, "layers_to_transform"));
    DT_CHECK(some || is_empty(value_of(f, "layers_pattern")) || value_of(f, "layers_to_transform"), DT_ERR_DATA,
             "%s: layers_pattern needs layers_to_transform", f->file);
    const bool excludes = !is_empty(value_of(f, "exclude_modules"));
    dt_err err = excludes ? read_modules(f, "exclude_modules", &excluded) : DT_OK;
    if (err == DT_OK && (some || excludes)) err = restrict_to(f, targets, &excluded);
    module_list_free(&excluded);
    return err;
}

/* ---- a file ------------------------------------------------------------------------------------------------------ */

static dt_err read_all(dt_lora *l, const dt_spec *f)
{
    double r = 8;
    DT_TRY(check_kind(f));
    DT_TRY(check_init(f));
    DT_TRY(read_key(f, "r", true, &r));
    DT_TRY(read_key(f, "lora_alpha", false, &l->alpha));
    l->r = (int64_t)r;
    DT_TRY(dt_spec_real(f, "lora_dropout", 0, 0.99, &l->dropout));
    DT_TRY(dt_spec_bool(f, "use_rslora", &l->use_rslora));
    DT_TRY(dt_spec_bool(f, "use_dora", &l->use_dora));
    l->ties = json_is_true(value_of(f, "ensure_weight_tying"));
    DT_TRY(read_targets(f, &l->target_modules));
    DT_TRY(read_modules(f, "target_parameters", &l->target_parameters));
    if (l->target_parameters.pattern) return dt_spec_bad(f, "target_parameters", "a list of names");
    DT_TRY(read_modules(f, "modules_to_save", &l->modules_to_save));
    DT_TRY(read_patterns(f, "rank_pattern", true, &l->rank_pattern, &l->n_rank_pattern));
    return read_patterns(f, "alpha_pattern", false, &l->alpha_pattern, &l->n_alpha_pattern);
}

/* A run's directory has its adapter in a subdirectory. */
static dt_err no_adapter(const char *dir)
{
    char folder[PATH_MAX], file[PATH_MAX];
    const bool below = dt_join_path(folder, dir, "adapter", "") && dt_is_in(file, folder, DT_PEFT_CONFIG);
    return dt_fail(DT_ERR_DATA, "%s: expected an adapter: %s is missing%s%s", dir, DT_PEFT_CONFIG,
                   below ? "; there is one in " : "", below ? folder : "");
}

dt_err dt_lora_read(dt_lora *l, const char *dir)
{
    char file[PATH_MAX];
    dt_spec root;
    *l = (dt_lora){.alpha = 8, .lenient = true, .parts = DT_LORA_ALL_PARTS};
    DT_CHECK(dt_is_directory(dir), DT_ERR_DATA, "%s: expected a directory with %s and %s", dir, DT_PEFT_CONFIG,
             DT_PEFT_TENSORS);
    if (!dt_is_in(file, dir, DT_PEFT_CONFIG)) return no_adapter(dir);
    DT_TRY(dt_spec_load(&root, file, MAX_CONFIG, DT_JSON_LAST_KEY, NULL, NULL));
    const dt_err err = read_all(l, &root);
    dt_spec_unload(&root);
    if (err != DT_OK) dt_lora_free(l);
    return err;
}

dt_err dt_lora_attach_read(dt_lora *l, const char *dir, const dt_model_config *mc, dt_unit *units, int n_units)
{
    char file[PATH_MAX];
    DT_TRY(dt_lora_read(l, dir));
    const dt_err err = dt_lora_attach(l, mc, units, n_units);
    if (err == DT_ERR_USAGE && dt_is_in(file, dir, DT_PEFT_CONFIG)) return blame(file, "target_modules", err);
    return err == DT_ERR_DATA ? blame(dir, NULL, err) : err;
}
