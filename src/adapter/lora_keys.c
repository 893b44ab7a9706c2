/* lora_keys.c - [lora]. Its keys mean nothing without a rank, so they are refused without one. */
#include "module_match.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static dt_err check_alone(const dt_config *cfg)
{
    static const char *const keys[] = {"alpha",          "dropout",       "use_rslora",
                                       "target_modules", "init",          "modules_to_save",
                                       "rank_pattern",   "alpha_pattern", "path"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        DT_CONFIG_CHECK(!dt_config_differs(cfg, "lora", keys[i]), cfg, "lora", keys[i],
                        "without lora.r there are no adapters; lora.r = 8 is usual");
    return DT_OK;
}

static dt_err check_quantization(const dt_config *cfg)
{
    DT_CONFIG_CHECK(!strcmp(cfg->lora_base_quantization, "none"), cfg, "lora", "base_quantization",
                    "%s is not supported yet; expected none", cfg->lora_base_quantization);
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
    DT_CHECK(v->pattern, DT_ERR_MEMORY, "no memory for a name");
    return dt_config_blame(cfg, "lora", key, module_check_pattern(v->pattern));
}

static dt_err read_values(dt_module_value **values, int *n_values, const dt_config *cfg, const char *key, bool whole,
                          const char *text)
{
    char **items;
    int n;
    DT_TRY(dt_config_split(text, &items, &n));
    *values = calloc((size_t)n + 1, sizeof **values);
    dt_err err = *values ? DT_OK : dt_fail(DT_ERR_MEMORY, "no memory for a list of %d names", n);
    for (*n_values = 0; *n_values < n && err == DT_OK; ++*n_values)
        err = read_value(&(*values)[*n_values], cfg, key, whole, items[*n_values]);
    dt_list_free(items, n);
    return err;
}

static dt_err read_keys(dt_lora *l, const dt_config *cfg)
{
    DT_TRY(
        dt_config_blame(cfg, "lora", "target_modules", dt_modules_parse(&l->target_modules, cfg->lora_target_modules)));
    DT_TRY(dt_config_blame(cfg, "lora", "modules_to_save",
                           dt_modules_parse(&l->modules_to_save, cfg->lora_modules_to_save)));
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
    DT_CONFIG_CHECK(!*cfg->lora_path, cfg, "lora", "path", "to go on from an adapter is not supported yet");
    *l = (dt_lora){.r = cfg->lora_r,
                   .alpha = cfg->lora_alpha,
                   .dropout = cfg->lora_dropout,
                   .use_rslora = cfg->lora_use_rslora,
                   .init = strcmp(cfg->lora_init, "gaussian") == 0 ? DT_LORA_GAUSSIAN : DT_LORA_KAIMING};
    const dt_err err = read_keys(l, cfg);
    if (err != DT_OK) dt_lora_free(l);
    return err;
}

static void free_values(dt_module_value *values, int n)
{
    for (int i = 0; i < n; i++) free(values[i].pattern);
    free(values);
}

void dt_lora_free(dt_lora *l)
{
    module_list_free(&l->target_modules);
    module_list_free(&l->modules_to_save);
    free_values(l->rank_pattern, l->n_rank_pattern);
    free_values(l->alpha_pattern, l->n_alpha_pattern);
    *l = (dt_lora){0};
}
