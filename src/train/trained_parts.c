/* trained_parts.c - vision.train: the trained parts of a vision-language model, and the cache of a frozen tower's
 * features; model.freeze. */
#include "run.h"
#include "dtrain/checkpoint/stored.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static dt_err read_word(dt_run *run, const char *word)
{
    struct run_parts *p = &run->parts;
    char *end = NULL;
    const int64_t L = run->mc.num_hidden_layers;
    bool *flag = !strcmp(word, "tower")       ? &p->tower
                 : !strcmp(word, "projector") ? &p->projector
                 : !strcmp(word, "llm")       ? &p->llm
                 : !strcmp(word, "embed")     ? &p->embed
                 : !strcmp(word, "head")      ? &p->head
                                              : NULL;
    if (flag) return *flag = true, DT_OK;
    const bool last = strncmp(word, "llm:", 4) == 0;
    if (last) p->n_last = strtoll(word + 4, &end, 10);
    DT_CONFIG_CHECK(last && end > word + 4 && *end == '\0', &run->cfg, "vision", "train",
                    "expected a list of tower, projector, llm, llm:N, embed and head, found %.100s", word);
    DT_CONFIG_CHECK(p->n_last >= 1 && p->n_last <= L, &run->cfg, "vision", "train",
                    "%s: expected the number of blocks, from 1 to %" PRId64, word, L);
    return DT_OK;
}

/* With adapters, these modules are fully trained, and the adapter files list them. */
static dt_err save_module(dt_run *run, bool trained, const char *module)
{
    const char *before = run->cfg.lora_modules_to_save;
    char *all = NULL;
    if (!trained || dt_config_lists(before, module)) return DT_OK;
    DT_CHECK(asprintf(&all, "%s%s%s", before, *before ? ", " : "", module) >= 0, DT_ERR_MEMORY,
             "out of memory for a list of modules");
    const dt_err err = dt_config_set(&run->cfg, "lora", "modules_to_save", all);
    free(all);
    return err;
}

/* SigLIP's pooling head is not stored. Listing the whole tower would include it, and PEFT rejects a file that lacks a
 * listed part. */
static dt_err save_tower(dt_run *run)
{
    const bool whole = !run->mc.vision->tower->pools;
    DT_TRY(save_module(run, whole, "vision_tower"));
    DT_TRY(save_module(run, !whole, "vision_tower.embeddings"));
    DT_TRY(save_module(run, !whole, "vision_tower.encoder"));
    return save_module(run, !whole, "vision_tower.post_layernorm");
}

/* Towers with names of their own: the paths of modules in transformers. PEFT saves no list of blocks as a whole, but
 * each block. */
static dt_err save_paths(dt_run *run)
{
    char path[DT_PEFT_NAME_MAX];
    for (int u = 0; u < run->n_units; u++)
        for (int i = 0; i < run->units[u].n_tensors; i++) {
            const dt_tensor *t = &run->units[u].tensors[i];
            if (dt_stored_section_of(t->name) == DT_STORED_LANGUAGE || !run_trains_part(run, t)) continue;
            dt_peft_tensor_name(t, path);
            const bool is_block = run->units[u].role == DT_UNIT_ENCODER;
            *(is_block ? strchr(strpbrk(path, "0123456789"), '.') : strrchr(path, '.')) = '\0';
            DT_TRY(save_module(run, true, path));
        }
    return DT_OK;
}

/* The default of vision.train with adapters: the language model if it has some; of a model from parts the projector,
 * unless it has some. */
static dt_err choose_whole(dt_run *run, unsigned adapted)
{
    struct run_parts *p = &run->parts;
    if (dt_config_given(&run->cfg, "vision", "train")) return DT_OK;
    p->llm = adapted & DT_LORA_LANGUAGE;
    p->projector = !run->mc.vision->grids && !(adapted & DT_LORA_PROJECTOR);
    return dt_config_set(&run->cfg, "vision", "train",
                         p->llm && p->projector ? "projector, llm"
                         : p->llm               ? "llm"
                         : p->projector         ? "projector"
                                                : "");
}

/* A part has adapters, or is trained as a whole. */
static dt_err check_adapted(dt_run *run)
{
    struct run_parts *p = &run->parts;
    const dt_config *cfg = &run->cfg;
    dt_lora l = {0};
    DT_TRY(dt_lora_from_keys(&l, cfg));
    const unsigned adapted = l.parts, others = adapted & ~(unsigned)DT_LORA_LANGUAGE;
    const bool by_default = !l.target_modules.pattern && l.target_modules.n == 0;
    dt_lora_free(&l);
    DT_CONFIG_CHECK(!others || !by_default, cfg, "lora", "parts",
                    "tower and projector have no layers with adapters by default; set lora.target_modules, such as "
                    "all-linear");
    DT_TRY(choose_whole(run, adapted));
    DT_CONFIG_CHECK(!(p->tower && adapted & DT_LORA_TOWER) && !(p->projector && adapted & DT_LORA_PROJECTOR), cfg,
                    "lora", "parts",
                    "%s has a part that vision.train = %s trains as a whole; leave it out of one of the two keys",
                    cfg->lora_parts, cfg->vision_train);
    DT_CONFIG_CHECK(p->llm || !(adapted & DT_LORA_LANGUAGE), cfg, "vision", "train",
                    "expected llm in the list, because lora.r above 0 trains adapters of the language model "
                    "(lora.parts = %s)",
                    cfg->lora_parts);
    DT_CONFIG_CHECK(adapted & DT_LORA_LANGUAGE || !(p->llm || p->n_last > 0), cfg, "vision", "train",
                    "with lora.r above 0 llm stands for adapters of the language model, but lora.parts = %s has none; "
                    "remove llm here, or add it to lora.parts",
                    cfg->lora_parts);
    return DT_OK;
}

dt_err run_save_parts(dt_run *run)
{
    struct run_parts *p = &run->parts;
    const bool any = p->tower || p->projector || p->llm || p->n_last > 0 || p->embed || p->head;
    if (!run->mc.vision || !run_trains(run)) return DT_OK;
    DT_CONFIG_CHECK(any || run->cfg.lora_r > 0, &run->cfg, "vision", "train",
                    "expected at least one part to train, found none");
    if (run->cfg.lora_r == 0) return DT_OK;
    DT_TRY(check_adapted(run));
    if (run->mc.vision->grids) {
        DT_TRY(save_paths(run));
    } else {
        if (p->tower) DT_TRY(save_tower(run));
        DT_TRY(save_module(run, p->projector, "multi_modal_projector"));
    }
    DT_TRY(save_module(run, p->embed || (p->head && run->mc.tie_word_embeddings), "embed_tokens"));
    return save_module(run, p->head && !run->mc.tie_word_embeddings, "lm_head");
}

/* Warns about settings without effect. */
static void warn_of_projector(const dt_run *run)
{
    const dt_projector_config *p = &run->mc.vision->projector;
    const struct {
        const char *key;
        bool used;
    } keys[] = {{"projector_hidden_size", p->n_layers > 1},
                {"projector_shuffle", p->type == DT_PROJECTOR_PIXEL_SHUFFLE},
                {"projector_dropout", p->norm}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && run_reports(run); i++)
        if (!keys[i].used && dt_config_differs(&run->cfg, "vision", keys[i].key))
            DT_WARN("vision.%s is ignored, because a projector of type %s has no such setting", keys[i].key,
                    dt_projector_name(p->type));
}

dt_err run_choose_parts(dt_run *run)
{
    char **words;
    int n;
    dt_err err = DT_OK;
    run->parts = (struct run_parts){0};
    DT_CONFIG_CHECK(run->mc.vision || !dt_config_differs(&run->cfg, "vision", "train"), &run->cfg, "vision", "train",
                    "the model has no tower; leave this key out");
    DT_CONFIG_CHECK(run->mc.vision || !dt_config_differs(&run->cfg, "lora", "parts"), &run->cfg, "lora", "parts",
                    "the model has no tower; leave this key out (to train a model with images on texts, keep its tower "
                    "by model.vision = whole)");
    if (!run->mc.vision) return DT_OK;
    if (!run->mc.vision->grids) warn_of_projector(run);
    DT_TRY(dt_config_split(run->cfg.vision_train, &words, &n));
    for (int i = 0; i < n && err == DT_OK; i++) err = read_word(run, words[i]);
    dt_list_free(words, n);
    DT_TRY(err);
    return DT_OK;
}

bool run_trains_part(const dt_run *run, const dt_tensor *tensor)
{
    const struct run_parts *p = &run->parts;
    const int64_t layer = dt_model_layer_of(&run->mc, dt_stored_of_language(tensor->name));
    const dt_stored_section section = dt_stored_section_of(tensor->name);
    if (!run->mc.vision || strcmp(tensor->name, DT_STORED_SCORE) == 0) return true;
    if (section == DT_STORED_TOWER) return p->tower;
    if (section == DT_STORED_PROJECTOR) return p->projector;
    if (p->llm || (layer >= 0 && layer >= run->mc.num_hidden_layers - p->n_last)) return true;
    if (!dt_model_is_vocabulary(tensor)) return false;
    return tensor->kind == DT_KIND_HEAD ? p->head : p->embed || (p->head && run->mc.tie_word_embeddings);
}

/* ---- model.freeze ------------------------------------------------------------------------------------------------ */

dt_err run_read_freeze(dt_run *run)
{
    dt_list_free(run->frozen, run->n_frozen);
    return dt_config_split(run->cfg.model_freeze, &run->frozen, &run->n_frozen);
}

bool run_freezes(const dt_run *run, const dt_tensor *tensor)
{
    for (int i = 0; i < run->n_frozen; i++)
        if (dt_lr_pattern_matches(run->frozen[i], tensor->name)) return true;
    return false;
}

static bool matches_any(const dt_run *run, const char *pattern)
{
    for (int u = 0; u < run->n_units; u++)
        for (int i = 0; i < run->units[u].n_tensors; i++)
            if (dt_lr_pattern_matches(pattern, run->units[u].tensors[i].name)) return true;
    return false;
}

dt_err run_check_freeze(const dt_run *run)
{
    char names[DT_LR_SUGGESTION];
    for (int i = 0; i < run->n_frozen; i++) {
        if (matches_any(run, run->frozen[i])) continue;
        dt_lr_suggest(run->frozen[i], run->units, run->n_units, false, names, sizeof names);
        return dt_config_fail(&run->cfg, "model", "freeze", "'%s' matches no tensor of this model; %s", run->frozen[i],
                              names);
    }
    DT_CONFIG_CHECK(run->n_frozen == 0 || !run->task.ops->trains || dt_units_n_trainable(run->units, run->n_units) > 0,
                    &run->cfg, "model", "freeze", "%s leaves no tensor to train", run->cfg.model_freeze);
    return DT_OK;
}

/* ---- features ---------------------------------------------------------------------------------------------------- */

dt_err run_check_features(dt_run *run)
{
    const dt_config *cfg = &run->cfg;
    if (!*cfg->vision_feature_cache) return DT_OK;
    DT_CONFIG_CHECK(run->mc.vision, cfg, "vision", "feature_cache",
                    "the model has no vision tower; leave this key out");
    for (int u = 0; u < run->n_units; u++)
        for (int i = 0; i < run->units[u].n_tensors; i++) {
            const dt_tensor *t = &run->units[u].tensors[i];
            const bool adapted = t->adapter_scale != 0, saved = cfg->lora_r > 0 && !run->parts.tower;
            DT_CONFIG_CHECK(!t->trainable || dt_stored_section_of(t->name) != DT_STORED_TOWER, cfg, "vision",
                            "feature_cache",
                            "features can only be cached for a frozen tower, but %s = %s trains %s; leave one of the "
                            "two keys out",
                            adapted ? "lora.parts"
                            : saved ? "lora.modules_to_save"
                                    : "vision.train",
                            adapted ? cfg->lora_parts
                            : saved ? cfg->lora_modules_to_save
                                    : cfg->vision_train,
                            adapted ? "its adapters" : "it");
        }
    return DT_OK;
}
