/* changes.c - what a resumed run would do differently from the run that wrote its checkpoint.
 *
 * All keys of the two configurations are compared. Most changes are possible and only said; some are nobody's
 * business; and some cannot be meant, because what the checkpoint holds (moments, the place in the data) says
 * nothing about the run that is asked for: they are refused unless checkpoint.allow_changes names them. The model
 * itself is compared as numbers, not as keys, for it may be described in several ways. */
#include "run.h"
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef enum change { CHANGE_FREE, CHANGE_SAID, CHANGE_REFUSED } change;

/* What is not here is said. A section's name alone stands for all its keys; the first row that fits counts. */
static const struct {
    const char *section, *key;
    change kind;
} CLASSES[] = {
    {"run", "task", CHANGE_REFUSED},
    {"run", "output_dir", CHANGE_FREE},
    {"run", "device", CHANGE_FREE},
    {"run", "threads", CHANGE_FREE},
    {"run", "time_limit", CHANGE_FREE},
    {"run", "max_skipped_steps", CHANGE_FREE},
    {"model", "attention", CHANGE_FREE},
    {"model", "activation_checkpointing", CHANGE_FREE},
    {"model", "dropout", CHANGE_SAID},
    {"model", NULL, CHANGE_FREE}, /* compared as a model, below */
    {"data", "seq_len", CHANGE_REFUSED},
    {"data", "packing", CHANGE_REFUSED},
    {"data", "document_mask", CHANGE_REFUSED},
    {"data", "prefetch", CHANGE_FREE},
    {"data", "verify", CHANGE_FREE},
    {"batch", "micro_batch_size", CHANGE_FREE},
    {"batch", "gradient_accumulation_steps", CHANGE_FREE},
    {"zero", NULL, CHANGE_FREE},
    {"comm", NULL, CHANGE_FREE},
    {"checkpoint", "metric_for_best_model", CHANGE_SAID},
    {"checkpoint", "greater_is_better", CHANGE_SAID},
    {"checkpoint", NULL, CHANGE_FREE},
    {"log", NULL, CHANGE_FREE},
};

static change class_of(const char *section, const char *key)
{
    for (size_t i = 0; i < sizeof CLASSES / sizeof CLASSES[0]; i++)
        if (!strcmp(CLASSES[i].section, section) && (!CLASSES[i].key || !strcmp(CLASSES[i].key, key)))
            return CLASSES[i].kind;
    return CHANGE_SAID;
}

/* Two lists as texts, "a.b: x -> y, c.d: ...". */
typedef struct changes {
    const char *allowed; /* checkpoint.allow_changes */
    char said[1000], refused[1000];
    const char *section, *key; /* the first that is refused and is a key */
    int n_free;
} changes;

static bool is_allowed(const char *list, const char *name)
{
    char **items;
    int n;
    bool found = false;
    if (dt_config_split(list, &items, &n) != DT_OK) return false;
    for (int i = 0; i < n; i++) found |= !strcmp(items[i], "all") || !strcmp(items[i], name);
    dt_list_free(items, n);
    return found;
}

static void append(char *list, size_t size, const char *name, const char *before, const char *now)
{
    const size_t len = strlen(list);
    snprintf(list + len, size - len, "%s%s: %s -> %s", len ? ", " : "", name, *before ? before : "(nothing)",
             *now ? now : "(nothing)");
}

static void add(changes *c, change kind, const char *name, const char *before, const char *now)
{
    if (kind == CHANGE_REFUSED && is_allowed(c->allowed, name)) kind = CHANGE_SAID;
    if (kind == CHANGE_FREE) c->n_free++;
    if (kind == CHANGE_SAID) append(c->said, sizeof c->said, name, before, now);
    if (kind == CHANGE_REFUSED) append(c->refused, sizeof c->refused, name, before, now);
}

static void see_key(void *self, const char *section, const char *key, const char *before, const char *now)
{
    changes *c = self;
    char name[120];
    snprintf(name, sizeof name, "%s.%s", section, key);
    const bool first = !c->refused[0];
    add(c, class_of(section, key), name, before, now);
    if (first && c->refused[0]) c->section = section, c->key = key;
}

/* ---- the model
 * --------------------------------------------------------------------------------------------------------- */

typedef enum field_kind { FIELD_INT, FIELD_REAL, FIELD_BOOL, FIELD_FAMILY, FIELD_ACT, FIELD_ROPE } field_kind;

#define FIELD(name_, member, kind_)                                                                                    \
    {                                                                                                                  \
        name_, offsetof(dt_model_config, member), kind_                                                                \
    }
static const struct {
    const char *name;
    size_t offset;
    field_kind kind;
} FIELDS[] = {
    FIELD("model_type", family, FIELD_FAMILY),
    FIELD("hidden_size", hidden_size, FIELD_INT),
    FIELD("intermediate_size", intermediate_size, FIELD_INT),
    FIELD("num_hidden_layers", num_hidden_layers, FIELD_INT),
    FIELD("num_attention_heads", num_attention_heads, FIELD_INT),
    FIELD("num_key_value_heads", num_key_value_heads, FIELD_INT),
    FIELD("head_dim", head_dim, FIELD_INT),
    FIELD("vocab_size", vocab_size, FIELD_INT),
    FIELD("max_position_embeddings", max_position_embeddings, FIELD_INT),
    FIELD("rms_norm_eps", norm_eps, FIELD_REAL),
    FIELD("hidden_act", act, FIELD_ACT),
    FIELD("attention_bias", qkv_bias, FIELD_BOOL),
    FIELD("mlp_bias", mlp_bias, FIELD_BOOL),
    FIELD("tie_word_embeddings", tie_word_embeddings, FIELD_BOOL),
    FIELD("sliding_window", sliding_window, FIELD_INT),
    FIELD("rope_scaling", rope_type, FIELD_ROPE),
    FIELD("rope_scaling.factor", rope_factor, FIELD_REAL),
    FIELD("rope_theta", rope_theta, FIELD_REAL),
};
#undef FIELD

static void value_text(const dt_model_config *mc, size_t offset, field_kind kind, char out[32])
{
    static const char *const families[] = {"gpt2", "llama", "mistral", "qwen2", "qwen3"};
    static const char *const acts[] = {"silu", "gelu", "gelu_pytorch_tanh", "quick_gelu"};
    static const char *const ropes[] = {"none", "default", "linear", "dynamic", "llama3", "yarn"};
    static const size_t sizes[] = {sizeof(int64_t),   sizeof(double),        sizeof(bool),
                                   sizeof(dt_family), sizeof(dt_activation), sizeof(dt_rope_type)};
    union {
        int64_t i;
        double r;
        bool b;
        dt_family family;
        dt_activation act;
        dt_rope_type rope;
    } v = {0};
    memcpy(&v, (const char *)mc + offset, sizes[kind]);
    switch (kind) {
    case FIELD_INT:
        snprintf(out, 32, "%" PRId64, v.i);
        break;
    case FIELD_REAL:
        snprintf(out, 32, "%.12g", v.r);
        break;
    case FIELD_BOOL:
        snprintf(out, 32, "%s", v.b ? "true" : "false");
        break;
    case FIELD_FAMILY:
        snprintf(out, 32, "%s", families[v.family]);
        break;
    case FIELD_ACT:
        snprintf(out, 32, "%s", acts[v.act]);
        break;
    case FIELD_ROPE:
        snprintf(out, 32, "%s", ropes[v.rope]);
        break;
    }
}

static void compare_models(changes *c, const dt_model_config *before, const dt_model_config *now)
{
    for (size_t i = 0; i < sizeof FIELDS / sizeof FIELDS[0]; i++) {
        char name[64], a[32], b[32];
        value_text(before, FIELDS[i].offset, FIELDS[i].kind, a);
        value_text(now, FIELDS[i].offset, FIELDS[i].kind, b);
        snprintf(name, sizeof name, "model.%s", FIELDS[i].name);
        if (strcmp(a, b) != 0) add(c, CHANGE_REFUSED, name, a, b);
    }
}

static dt_err see_model(changes *c, const dt_run *run, const char *path, const char *json)
{
    dt_model_config before = {0};
    if (!json || !*json) return DT_OK; /* another writer's: the tensors tell */
    DT_TRY(dt_model_config_parse(&before, path, json));
    compare_models(c, &before, &run->mc);
    dt_model_config_free(&before);
    return DT_OK;
}

/* ---- both
 * -------------------------------------------------------------------------------------------------------------- */

static void see_data(changes *c, const dt_run *run, const dt_ckpt_meta *meta)
{
    const uint64_t now = dt_loader_fingerprint(run->train);
    if (!meta->data_fingerprint || meta->data_fingerprint == now) return;
    add(c, CHANGE_REFUSED, "data.train", "another dataset", run->cfg.data_train);
}

static dt_err compare(changes *c, const dt_run *run, const char *path, const dt_ckpt_meta *meta)
{
    dt_config before = {0};
    dt_mistakes unknown = {0}; /* keys of other versions */
    DT_TRY(
        dt_config_read(&before, path, meta->config ? meta->config : "", 0, NULL, DT_VARIABLES_MAY_BE_UNSET, &unknown));
    free(unknown.text);
    dt_error_clear();
    dt_config_compare(&before, &run->cfg, see_key, c);
    dt_config_free(&before);
    see_data(c, run, meta);
    return see_model(c, run, path, meta->model_config);
}

dt_err run_same_settings(const dt_run *run, const char *path, const dt_ckpt_meta *meta, bool *same)
{
    changes c = {.allowed = ""};
    DT_TRY(compare(&c, run, path, meta));
    *same = !c.said[0] && !c.refused[0];
    return DT_OK;
}

static dt_err check_length(const dt_run *run, const char *path, const dt_ckpt_meta *meta)
{
    char where[512];
    const int64_t n = run->cfg.run_max_steps;
    if (n == 0 || meta->step <= n) return DT_OK;
    return dt_fail(DT_ERR_USAGE,
                   "%s: %s is of step %" PRId64 ", beyond the end at step %" PRId64
                   ": give more steps, or an earlier checkpoint as "
                   "checkpoint.resume",
                   dt_config_where(&run->cfg, "run", "max_steps", where, sizeof where), path, meta->step, n);
}

dt_err run_check_changes(const dt_run *run, const char *path, const dt_ckpt_meta *meta)
{
    char where[512] = "";
    changes c = {.allowed = run->cfg.checkpoint_allow_changes};
    DT_TRY(compare(&c, run, path, meta));
    if (c.key) dt_config_where(&run->cfg, c.section, c.key, where, sizeof where);
    if (c.refused[0])
        return dt_fail(
            DT_ERR_USAGE,
            "%s%s%s was made with other settings, which do not fit its optimizer state and its position in the data (%s): "
            "begin "
            "from its weights with model.path and another run.output_dir, or name the keys in checkpoint.allow_changes",
            where, c.key ? ": " : "", path, c.refused);
    DT_TRY(check_length(run, path, meta));
    if (c.said[0]) DT_WARN("%s was made with other settings; from here on these are used: %s", path, c.said);
    return DT_OK;
}
