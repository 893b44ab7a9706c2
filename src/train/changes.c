/* changes.c - compare a resumed run's configuration with that of the run that wrote its checkpoint.
 *
 * All keys of the two configurations are compared. Most changes are allowed and reported, and some are ignored. Changes
 * that make the checkpoint's contents (moments, data position) unusable are almost certainly mistakes. They are refused
 * unless checkpoint.allow_changes lists them. The model itself is compared by value, not by key, because several
 * configurations can describe the same model. */
#include "run.h"
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

typedef enum change {
    CHANGE_IGNORED,
    CHANGE_REPORTED,
    CHANGE_REFUSED,
    CHANGE_OF_SET /* refused if the list has other items, in any order */
} change;

/* Keys without a row are reported. A section name without a key stands for all its keys. The first matching row counts.
 */
static const struct {
    const char *section, *key;
    change kind;
} CLASSES[] = {
    {"run", "task", CHANGE_REFUSED},
    {"run", "output_dir", CHANGE_IGNORED},
    {"run", "device", CHANGE_IGNORED},
    {"run", "threads", CHANGE_IGNORED},
    {"run", "time_limit", CHANGE_IGNORED},
    {"run", "max_skipped_steps", CHANGE_IGNORED},
    {"optimizer", "type", CHANGE_IGNORED},        /* compared by the optimizer's name, below */
    {"optimizer", "state_dtype", CHANGE_IGNORED}, /* compared with the states in the file, below */
    {"scheduler", "on_extend", CHANGE_IGNORED},
    {"model", "attention", CHANGE_IGNORED},
    {"model", "activation_checkpointing", CHANGE_IGNORED},
    {"model", "tokenizer", CHANGE_REPORTED},     /* of prompts and completions */
    {"model", "chat_template", CHANGE_REPORTED}, /* likewise */
    {"model", "freeze", CHANGE_OF_SET},
    {"model", "router_z_loss_coef", CHANGE_REPORTED},
    {"model", "neftune_noise_alpha", CHANGE_REPORTED},
    {"model", NULL, CHANGE_IGNORED}, /* compared as a model, below */
    {"data", "seq_len", CHANGE_REFUSED},
    {"data", "packing", CHANGE_REFUSED},
    {"data", "document_mask", CHANGE_REFUSED},
    {"data", "prefetch", CHANGE_IGNORED},
    {"data", "verify", CHANGE_IGNORED},
    {"batch", "micro_batch_size", CHANGE_IGNORED},
    {"batch", "gradient_accumulation_steps", CHANGE_IGNORED},
    {"zero", NULL, CHANGE_IGNORED},
    {"comm", NULL, CHANGE_IGNORED},
    {"lora", "dropout", CHANGE_REPORTED},
    {"lora", "lr_ratio", CHANGE_REPORTED},
    {"lora", "init", CHANGE_IGNORED},
    {"lora", "init_iterations", CHANGE_IGNORED},
    {"lora", "path", CHANGE_IGNORED},
    {"lora", "target_modules", CHANGE_OF_SET},
    {"lora", "target_parameters", CHANGE_OF_SET},
    {"lora", "modules_to_save", CHANGE_OF_SET},
    {"lora", "parts", CHANGE_OF_SET},
    {"lora", NULL, CHANGE_REFUSED},
    {"rec", "freeze_llm", CHANGE_REFUSED},
    {"sft", "train_on_inputs", CHANGE_REFUSED}, /* decides which records are samples */
    {"vision", "train", CHANGE_OF_SET},
    {"vision", "projector_dropout", CHANGE_REPORTED},
    {"vision", NULL, CHANGE_IGNORED}, /* compared as a model, below */
    {"eval", NULL, CHANGE_IGNORED},
    {"checkpoint", "metric_for_best_model", CHANGE_REPORTED},
    {"checkpoint", "greater_is_better", CHANGE_REPORTED},
    {"checkpoint", NULL, CHANGE_IGNORED},
    {"log", NULL, CHANGE_IGNORED},
};

static change class_of(const char *section, const char *key)
{
    for (size_t i = 0; i < sizeof CLASSES / sizeof CLASSES[0]; i++)
        if (!strcmp(CLASSES[i].section, section) && (!CLASSES[i].key || !strcmp(CLASSES[i].key, key)))
            return CLASSES[i].kind;
    return CHANGE_REPORTED;
}

/* Two lists as texts, "a.b: x -> y, c.d: ...". */
typedef struct changes {
    const char *allowed; /* checkpoint.allow_changes */
    char reported[1000], refused[1000];
    const char *section, *key; /* the first refused key */
    bool other_adapters;       /* of other layers or ranks: their tensors differ, so no permission helps */
} changes;

static bool is_allowed(const char *list, const char *name)
{
    return dt_config_lists(list, "all") || dt_config_lists(list, name);
}

/* Does `list` have all items of `of`? */
static bool has_items(const char *list, const char *of)
{
    char **items;
    int n;
    bool all = true;
    if (dt_config_split(of, &items, &n) != DT_OK) return false;
    for (int i = 0; i < n; i++) all &= dt_config_lists(list, items[i]);
    dt_list_free(items, n);
    return all;
}

static void append(char *list, size_t size, const char *name, const char *before, const char *now)
{
    const size_t len = strlen(list);
    snprintf(list + len, size - len, "%s%s: %s -> %s", len ? ", " : "", name, *before ? before : "(nothing)",
             *now ? now : "(nothing)");
}

static void add(changes *c, change kind, const char *name, const char *before, const char *now)
{
    if (kind == CHANGE_REFUSED && is_allowed(c->allowed, name)) kind = CHANGE_REPORTED;
    if (kind == CHANGE_REPORTED) append(c->reported, sizeof c->reported, name, before, now);
    if (kind == CHANGE_REFUSED) append(c->refused, sizeof c->refused, name, before, now);
}

static void add_key(changes *c, change kind, const char *section, const char *key, const char *before, const char *now)
{
    char name[120];
    snprintf(name, sizeof name, "%s.%s", section, key);
    const bool first = !c->refused[0];
    add(c, kind, name, before, now);
    if (first && c->refused[0]) c->section = section, c->key = key;
}

static void see_key(void *self, const char *section, const char *key, const char *before, const char *now)
{
    change kind = class_of(section, key);
    if (kind == CHANGE_OF_SET)
        kind = has_items(before, now) && has_items(now, before) ? CHANGE_IGNORED : CHANGE_REFUSED;
    add_key(self, kind, section, key, before, now);
}

/* ---- the model -------------------------------------------------------------------------------------------------- */

static void see_field(void *self, const char *field, const char *before, const char *now)
{
    char name[120];
    snprintf(name, sizeof name, "model.%s", field);
    const bool dropout = strlen(field) > 6 && !strcmp(field + strlen(field) - 6, "_pdrop");
    add(self, dropout ? CHANGE_REPORTED : CHANGE_REFUSED, name, before, now);
}

/* Dropout set in [model] is not part of the model's JSON text. */
static dt_err see_model(changes *c, const dt_run *run, const char *path, const char *json, double dropout)
{
    dt_model_config before = {0};
    if (!json || !*json) return DT_OK; /* written by another program: the tensors are checked instead */
    DT_TRY(dt_model_config_parse(&before, path, json));
    dt_model_config_set_dropout(&before, dropout);
    dt_model_config_compare(&before, &run->mc, see_field, c);
    dt_model_config_free(&before);
    return DT_OK;
}

/* ---- model and keys --------------------------------------------------------------------------------------------- */

static void see_data(changes *c, const dt_run *run, const dt_ckpt_meta *meta)
{
    const uint64_t now = run_data_fingerprint(run);
    if (!meta->data_fingerprint || meta->data_fingerprint == now) return;
    add(c, CHANGE_REFUSED, "data.train", "another dataset", run->cfg.data_train);
}

static void see_optimizer(changes *c, const dt_run *run, const dt_ckpt_meta *meta)
{
    const char *before = meta->states.optimizer, *now = run->optimizer->name;
    if (strcmp(before, now) != 0) add_key(c, CHANGE_REFUSED, "optimizer", "type", before, now);
}

/* fp32 and bf16 are converted into each other. */
static void see_state_dtype(changes *c, const dt_run *run, const dt_ckpt_meta *meta)
{
    const dt_dtype now = run->main.zero_opt.state_dtype;
    const change kind = dt_checkpoint_fits_type(&meta->states, now) ? CHANGE_REPORTED : CHANGE_REFUSED;
    if (run_trains(run) && strcmp(meta->states.dtype, dt_dtype_name(now)) != 0)
        add_key(c, kind, "optimizer", "state_dtype", meta->states.dtype, dt_dtype_name(now));
}

static dt_err see_adapters(changes *c, const dt_run *run, const dt_config *before)
{
    dt_lora was = {0}, is = {0};
    c->other_adapters = before->lora_r != run->cfg.lora_r;
    if (c->other_adapters || run->cfg.lora_r == 0) return DT_OK;
    dt_err err = dt_lora_from_keys(&was, before);
    if (err == DT_OK) err = dt_lora_from_keys(&is, &run->cfg);
    if (err == DT_OK) {
        const dt_lora_alike same = dt_lora_compare(&was, &is, &run->mc, run->units, run->n_units);
        c->other_adapters = !same.layers || !same.ranks;
    }
    dt_lora_free(&was);
    dt_lora_free(&is);
    return err;
}

static dt_err compare(changes *c, const dt_run *run, const char *path, const dt_ckpt_meta *meta)
{
    dt_config before = {0};
    DT_TRY(dt_config_read_recorded(&before, path, meta->config));
    const double dropout = before.model_dropout;
    dt_config_compare(&before, &run->cfg, see_key, c);
    const dt_err err = see_adapters(c, run, &before);
    dt_config_free(&before);
    DT_TRY(err);
    see_optimizer(c, run, meta);
    see_state_dtype(c, run, meta);
    see_data(c, run, meta);
    return see_model(c, run, path, meta->model_config, dropout);
}

dt_err run_same_settings(const dt_run *run, const char *path, const dt_ckpt_meta *meta, bool *same)
{
    changes c = {.allowed = ""};
    DT_TRY(compare(&c, run, path, meta));
    *same = !c.reported[0] && !c.refused[0];
    return DT_OK;
}

static dt_err check_length(const dt_run *run, const char *path, const dt_ckpt_meta *meta)
{
    const int64_t n = run->cfg.run_max_steps;
    if (n == 0 || meta->step <= n) return DT_OK;
    return dt_config_fail(&run->cfg, "run", "max_steps",
                          "%s is of step %" PRId64 ", after the end of the run at step %" PRId64
                          "; give more steps, or set checkpoint.resume to an earlier checkpoint",
                          path, meta->step, n);
}

dt_err run_check_changes(const dt_run *run, const char *path, const dt_ckpt_meta *meta)
{
    char where[512] = "", start[2 * PATH_MAX];
    changes c = {.allowed = run->cfg.checkpoint_allow_changes};
    DT_TRY(compare(&c, run, path, meta));
    const bool unset = c.key && !dt_config_given(&run->cfg, c.section, c.key);
    if (c.key) dt_config_where(&run->cfg, c.section, c.key, where, sizeof where);
    const bool merged = c.other_adapters || (c.key && !strcmp(c.section, "lora"));
    snprintf(start, sizeof start,
             merged ? "its merged model: dtrain-convert %s DIR, then model.path = DIR" : "its weights: model.path = %s",
             path);
    if (c.refused[0] || c.other_adapters)
        return dt_fail(DT_ERR_USAGE,
                       "%s%s%s was written with other settings, and its %s do not fit the new ones (%s%s%s%s%s); start "
                       "a new run with another run.output_dir (to begin with %s)%s",
                       where, c.key ? ": " : "", path,
                       c.other_adapters ? "adapters" : "optimizer state and data position",
                       c.refused[0] ? c.refused : c.reported, unset ? "; the configuration does not set " : "",
                       unset ? c.section : "", unset ? "." : "", unset ? c.key : "", start,
                       c.other_adapters ? "" : ", or list the keys in checkpoint.allow_changes");
    DT_TRY(check_length(run, path, meta));
    if (c.reported[0])
        DT_WARN("%s was written with other settings; the run continues with the new ones: %s", path, c.reported);
    return DT_OK;
}
