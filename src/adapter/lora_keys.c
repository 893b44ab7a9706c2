/* lora_keys.c - the keys of [lora]. Without lora.r they have no effect and are rejected. */
#include "module_match.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static dt_err check_alone(const dt_config *cfg)
{
    static const char *const keys[] = {"alpha",    "dropout",           "use_rslora",   "target_modules",
                                       "init",     "modules_to_save",   "rank_pattern", "alpha_pattern",
                                       "path",     "target_parameters", "parts",        "lr_ratio",
                                       "use_dora", "init_iterations"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        DT_CONFIG_CHECK(!dt_config_differs(cfg, "lora", keys[i]), cfg, "lora", keys[i],
                        "needs lora.r, because without it there are no adapters; lora.r = 8 is usual");
    return DT_OK;
}

static dt_dtype base_of(const dt_config *cfg)
{
    const char *word = cfg->lora_base_quantization;
    return !strcmp(word, "int8") ? DT_I8 : !strcmp(word, "nf4") ? DT_NF4X2 : DT_F32;
}

static dt_lora_init init_of(const char *word)
{
    return !strcmp(word, "gaussian") ? DT_LORA_GAUSSIAN
           : !strcmp(word, "pissa")  ? DT_LORA_PISSA
           : !strcmp(word, "olora")  ? DT_LORA_OLORA
                                     : DT_LORA_KAIMING;
}

static dt_err check_quantization(const dt_config *cfg)
{
    DT_CONFIG_CHECK(cfg->lora_r > 0 || base_of(cfg) == DT_F32, cfg, "lora", "base_quantization",
                    "%s needs lora.r, because it stores frozen weights, and without adapters all weights are trained; "
                    "lora.r = 8 is usual",
                    cfg->lora_base_quantization);
    return DT_OK;
}

/* "pattern:value" */
static dt_err read_value(dt_module_value *v, const dt_config *cfg, const char *key, bool whole, const char *item)
{
    const char *colon = strrchr(item, ':');
    char *end = NULL;
    v->value = colon ? strtod(colon + 1, &end) : 0;
    DT_CONFIG_CHECK(colon && colon > item && end > colon + 1 && *end == '\0' && isfinite(v->value) && v->value > 0 &&
                        v->value <= 65536 && (!whole || v->value == floor(v->value)),
                    cfg, "lora", key, "expected module:%s, such as q_proj:16, found '%s'", whole ? "rank" : "alpha",
                    item);
    while (colon > item + 1 && colon[-1] == ' ') colon--;
    v->pattern = strndup(item, (size_t)(colon - item));
    DT_CHECK(v->pattern, DT_ERR_MEMORY, "out of memory for a name");
    return dt_config_blame(cfg, "lora", key, module_check_pattern(v->pattern));
}

static dt_err read_values(dt_module_value **values, int *n_values, const dt_config *cfg, const char *key, bool whole,
                          const char *text)
{
    char **items;
    int n;
    DT_TRY(dt_config_split(text, &items, &n));
    *values = calloc((size_t)n + 1, sizeof **values);
    dt_err err = *values ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for a list of %d names", n);
    for (*n_values = 0; *n_values < n && err == DT_OK; ++*n_values)
        err = read_value(&(*values)[*n_values], cfg, key, whole, items[*n_values]);
    dt_list_free(items, n);
    return err;
}

static dt_err read_modules(dt_modules *m, const dt_config *cfg, const char *key, const char *text)
{
    DT_TRY(dt_config_blame(cfg, "lora", key, dt_modules_parse(m, text)));
    DT_CONFIG_CHECK(m->pattern || m->n > 0 || !*text, cfg, "lora", key, "expected names of modules, found '%s'", text);
    return DT_OK;
}

static dt_err read_parts(dt_lora *l, const dt_config *cfg)
{
    char **words;
    int n;
    unsigned part = 0;
    dt_err err = DT_OK;
    l->parts = 0;
    DT_TRY(dt_config_split(cfg->lora_parts, &words, &n));
    for (int i = 0; i < n && err == DT_OK; i++, l->parts |= part)
        if (!dt_lora_has_part(words[i], &part))
            err = dt_config_fail(cfg, "lora", "parts", "expected a list of tower, projector and llm, found %.100s",
                                 words[i]);
    dt_list_free(words, n);
    DT_TRY(err);
    DT_CONFIG_CHECK(n > 0, cfg, "lora", "parts", "expected at least one of tower, projector and llm, found none");
    return DT_OK;
}

static dt_err read_keys(dt_lora *l, const dt_config *cfg)
{
    DT_TRY(read_parts(l, cfg));
    DT_TRY(read_modules(&l->target_modules, cfg, "target_modules", cfg->lora_target_modules));
    DT_TRY(read_modules(&l->target_parameters, cfg, "target_parameters", cfg->lora_target_parameters));
    DT_CONFIG_CHECK(!l->target_parameters.pattern, cfg, "lora", "target_parameters",
                    "expected names of parameters, such as mlp.experts.down_proj, found '%s'",
                    cfg->lora_target_parameters);
    DT_CONFIG_CHECK(l->target_parameters.n == 0 || l->dropout == 0, cfg, "lora", "dropout",
                    "adapters of experts (target_parameters) have no dropout, as in PEFT: expected 0, found %g",
                    l->dropout);
    DT_CONFIG_CHECK(!l->use_dora || l->target_parameters.n == 0, cfg, "lora", "use_dora",
                    "adapters of experts and routers (target_parameters) have no magnitudes, as in PEFT: expected "
                    "false, found true");
    DT_CONFIG_CHECK(!l->use_dora || l->dropout == 0, cfg, "lora", "dropout",
                    "adapters with magnitudes (use_dora) have no dropout: expected 0, found %g", l->dropout);
    DT_TRY(read_modules(&l->modules_to_save, cfg, "modules_to_save", cfg->lora_modules_to_save));
    DT_CONFIG_CHECK(!l->modules_to_save.pattern, cfg, "lora", "modules_to_save",
                    "expected names of modules, such as embed_tokens, lm_head, found '%s'", cfg->lora_modules_to_save);
    DT_TRY(read_values(&l->rank_pattern, &l->n_rank_pattern, cfg, "rank_pattern", true, cfg->lora_rank_pattern));
    return read_values(&l->alpha_pattern, &l->n_alpha_pattern, cfg, "alpha_pattern", false, cfg->lora_alpha_pattern);
}

dt_err dt_lora_from_keys(dt_lora *l, const dt_config *cfg)
{
    *l = (dt_lora){0};
    DT_TRY(check_quantization(cfg));
    if (cfg->lora_r == 0) return check_alone(cfg);
    *l = (dt_lora){.r = cfg->lora_r,
                   .alpha = cfg->lora_alpha,
                   .dropout = cfg->lora_dropout,
                   .use_rslora = cfg->lora_use_rslora,
                   .use_dora = cfg->lora_use_dora,
                   .base = base_of(cfg),
                   .init = init_of(cfg->lora_init),
                   .init_iterations = (int)cfg->lora_init_iterations};
    const dt_err err = read_keys(l, cfg);
    if (err != DT_OK) dt_lora_free(l);
    return err;
}

/* ---- continued training of adapters ------------------------------------------------------------------------------ */

/* malloc'ed; NULL: no memory. */
static char *join_names(const dt_modules *m)
{
    size_t size = 1;
    for (int i = 0; i < m->n; i++) size += strlen(m->list[i]) + 2;
    char *text = m->pattern ? strdup(m->pattern) : calloc(1, size);
    for (int i = 0; i < m->n && text; i++) strcat(strcat(text, i ? ", " : ""), m->list[i]);
    return text;
}

static char *join_values(const dt_module_value *values, int n)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out) return NULL;
    for (int i = 0; i < n; i++) fprintf(out, "%s%s:%.17g", i ? ", " : "", values[i].pattern, values[i].value);
    return fclose(out) == 0 ? text : NULL;
}

static char *real_text(double x)
{
    char *text;
    return asprintf(&text, "%.17g", x) < 0 ? NULL : text;
}

/* The config.ini of a run without adapters contains every key, including r = 0. Such keys count as defaults. */
static bool is_given(const dt_config *cfg, const char *key)
{
    const bool off = cfg->lora_r == 0 && dt_config_given(cfg, "lora", "r");
    return off ? dt_config_differs(cfg, "lora", key) : dt_config_given(cfg, "lora", key);
}

/* text: malloc'ed, freed here. same: the key already has this value. */
static dt_err settle(dt_config *cfg, const char *of, const char *key, bool same, char *text)
{
    dt_err err = text ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for lora.%s", key);
    if (err == DT_OK && !same && is_given(cfg, key))
        err = dt_config_fail(cfg, "lora", key, "the adapter of %s has %.120s%s; leave the key out", of,
                             *text ? text : "none", strlen(text) > 120 ? "..." : "");
    if (err == DT_OK && !same) err = dt_config_set(cfg, "lora", key, text);
    free(text);
    return err;
}

static dt_err settle_base(dt_config *cfg, const dt_lora *l, const char *of)
{
    const bool same = base_of(cfg) == l->base;
    DT_CONFIG_CHECK(same || !is_given(cfg, "base_quantization"), cfg, "lora", "base_quantization",
                    "the base of %s is stored as %s; leave the key out", of, dt_dtype_name(l->base));
    return settle(cfg, of, "base_quantization", same, strdup(dt_dtype_name(l->base)));
}

/* Can the name be an item of a list key? Other names are rejected where they are set. */
static bool is_one_name(const char *name) { return *name && !name[strcspn(name, ", \t\r\n\"")]; }

/* Lists and patterns become values of keys, which checkpoints store as text. */
static dt_err check_can_be_keys(const dt_lora *l, const char *of)
{
    const dt_modules *const lists[] = {&l->target_modules, &l->target_parameters, &l->modules_to_save};
    const char *bad = NULL;
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < lists[k]->n; i++)
            if (!is_one_name(lists[k]->list[i])) bad = lists[k]->list[i];
    for (int i = 0; i < l->n_rank_pattern; i++)
        if (!is_one_name(l->rank_pattern[i].pattern)) bad = l->rank_pattern[i].pattern;
    for (int i = 0; i < l->n_alpha_pattern; i++)
        if (!is_one_name(l->alpha_pattern[i].pattern)) bad = l->alpha_pattern[i].pattern;
    DT_CHECK(!bad, DT_ERR_DATA,
             "the adapter of %s: '%.100s' cannot be the value of a configuration key, so this adapter cannot be "
             "trained further",
             of, bad);
    return DT_OK;
}

/* Files of other programs may have any value. */
static dt_err check_alphas(const dt_lora *l, const char *of)
{
    double bad = l->alpha >= 1e-6 && l->alpha <= 65536 ? 0 : l->alpha;
    for (int i = 0; i < l->n_alpha_pattern; i++)
        if (l->alpha_pattern[i].value > 65536) bad = l->alpha_pattern[i].value;
    DT_CHECK(bad == 0, DT_ERR_DATA, "the adapter of %s: alpha: expected 1e-06 to 65536 for training, found %g", of,
             bad);
    return DT_OK;
}

/* A key that is given in an equivalent form keeps it. */
static dt_err settle_lists(dt_config *cfg, const dt_lora *l, const char *of, dt_lora_alike same)
{
    DT_TRY(settle(cfg, of, "target_modules", same.layers && is_given(cfg, "target_modules"),
                  join_names(&l->target_modules)));
    DT_TRY(settle(cfg, of, "target_parameters", same.layers && is_given(cfg, "target_parameters"),
                  join_names(&l->target_parameters)));
    DT_TRY(settle(cfg, of, "modules_to_save", same.saved && is_given(cfg, "modules_to_save"),
                  join_names(&l->modules_to_save)));
    DT_TRY(settle(cfg, of, "rank_pattern", same.ranks && is_given(cfg, "rank_pattern"),
                  join_values(l->rank_pattern, l->n_rank_pattern)));
    return settle(cfg, of, "alpha_pattern", same.alphas && is_given(cfg, "alpha_pattern"),
                  join_values(l->alpha_pattern, l->n_alpha_pattern));
}

/* Shared weights have one gradient and one optimizer state. Here the two would diverge in the first step. */
static dt_err check_shared(const dt_lora *l, const char *of)
{
    for (int i = 0; dt_vocabulary_module(i) && l->ties; i++)
        DT_CHECK(!module_is_in(&l->target_modules, dt_vocabulary_module(i)), DT_ERR_DATA,
                 "the adapter of %s: ensure_weight_tying: a shared adapter of %s and its tied weights can be used and "
                 "merged, but not trained",
                 of, dt_vocabulary_module(i));
    return DT_OK;
}

dt_err dt_lora_settle_keys(dt_config *cfg, const dt_lora *l, const char *of, const dt_model_config *mc,
                           const dt_unit *units, int n_units)
{
    dt_lora now = {0};
    char parts[DT_LORA_PARTS_MAX];
    const unsigned has = dt_lora_parts_of(l, mc, units, n_units);
    DT_TRY(check_shared(l, of));
    DT_TRY(check_can_be_keys(l, of));
    DT_TRY(check_alphas(l, of));
    DT_TRY(settle(cfg, of, "alpha", cfg->lora_alpha == l->alpha, real_text(l->alpha)));
    if (!is_given(cfg, "dropout")) DT_TRY(settle(cfg, of, "dropout", false, real_text(l->dropout)));
    DT_TRY(
        settle(cfg, of, "use_rslora", cfg->lora_use_rslora == l->use_rslora, strdup(l->use_rslora ? "true" : "false")));
    DT_TRY(settle(cfg, of, "use_dora", cfg->lora_use_dora == l->use_dora, strdup(l->use_dora ? "true" : "false")));
    if (l->base != DT_F32) DT_TRY(settle_base(cfg, l, of));
    dt_err err = read_keys(&now, cfg);
    dt_lora in_parts = *l; /* borrows */
    in_parts.parts = now.parts;
    const bool same_parts = has == 0 || has == dt_lora_parts_of(&in_parts, mc, units, n_units);
    if (err == DT_OK) err = settle(cfg, of, "parts", same_parts, strdup(dt_lora_parts_text(has, parts)));
    if (!same_parts) now.parts = has;
    if (err == DT_OK) err = settle_lists(cfg, l, of, dt_lora_compare(&now, l, mc, units, n_units));
    dt_lora_free(&now);
    if (err != DT_OK) return err;
    return settle(cfg, of, "r", cfg->lora_r == l->r, real_text((double)l->r)); /* last: is_given depends on r = 0 */
}

static void free_values(dt_module_value *values, int n)
{
    for (int i = 0; i < n; i++) free(values[i].pattern);
    free(values);
}

void dt_lora_free(dt_lora *l)
{
    module_list_free(&l->target_modules);
    module_list_free(&l->target_parameters);
    module_list_free(&l->modules_to_save);
    free_values(l->rank_pattern, l->n_rank_pattern);
    free_values(l->alpha_pattern, l->n_alpha_pattern);
    *l = (dt_lora){0};
}
