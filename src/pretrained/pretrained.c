/* pretrained.c - open a model from a Hugging Face directory or a checkpoint. The kind is detected once. Everything but
 * the tensors is small and is read here. */
#include "dtrain/pretrained/pretrained.h"
#include "dtrain/config/config.h"
#include "merge.h"
#include "peft_locate.h"
#include "generation_config.h"
#include "tokenizer_files.h"
#include "vision_files.h"
#include "dtrain/io/io.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_CONFIG = 1 << 26 }; /* bytes */

static dt_err copy_text(char **to, const char *from)
{
    *to = strdup(from);
    DT_CHECK(*to, DT_ERR_MEMORY, "out of memory for a text of %zu bytes", strlen(from));
    return DT_OK;
}

/* ---- a Hugging Face directory ------------------------------------------------------------------------------------ */

static dt_err describe_directory(dt_pretrained *p, const char *dir, const char *config, dt_model_part part)
{
    size_t nbytes;
    p->kind = DT_PRETRAINED_HF;
    DT_TRY(copy_text(&p->path, dir));
    DT_TRY(copy_text(&p->config_name, config));
    DT_TRY(dt_read_file(config, MAX_CONFIG, &p->model_config, &nbytes));
    DT_CHECK(strlen(p->model_config) == nbytes, DT_ERR_DATA, "%s: expected JSON, found a zero byte", config);
    DT_TRY(vision_complete_config(&p->model_config, config, dir, part, &p->text_alone));
    DT_TRY(generation_config_read(&p->generation, dir));
    return tokenizer_dir_has_files(dir) ? copy_text(&p->tokenizer, dir) : DT_OK;
}

/* ---- a checkpoint ------------------------------------------------------------------------------------------------ */

/* Find the tokenizer and the template of the run that wrote the checkpoint. */
static dt_err find_tokenizer_of(dt_pretrained *p)
{
    dt_config cfg = {0};
    dt_err err = dt_config_read_recorded(&cfg, p->path, p->meta.config);
    if (err == DT_OK && *cfg.model_tokenizer) err = copy_text(&p->tokenizer, cfg.model_tokenizer);
    if (err == DT_OK && *cfg.model_chat_template) err = copy_text(&p->chat_template, cfg.model_chat_template);
    dt_config_free(&cfg);
    DT_TRY(err);
    /* the directory may be missing or on another machine; its users report that */
    return p->tokenizer && dt_is_directory(p->tokenizer) ? generation_config_read(&p->generation, p->tokenizer) : DT_OK;
}

static dt_err describe_checkpoint(dt_pretrained *p, const char *path)
{
    p->kind = DT_PRETRAINED_CHECKPOINT;
    DT_TRY(dt_checkpoint_find(path, &p->path));
    DT_TRY(copy_text(&p->config_name, p->path));
    DT_TRY(dt_checkpoint_read_meta(p->path, &p->meta));
    DT_CHECK(p->meta.model_config && p->meta.model_config[0], DT_ERR_DATA, "%s: attribute model_config is empty",
             p->path);
    DT_TRY(copy_text(&p->model_config, p->meta.model_config));
    return find_tokenizer_of(p);
}

/* ---- both kinds -------------------------------------------------------------------------------------------------- */

static dt_err fail_missing(const char *path, int why)
{
    char hint[3 * PATH_MAX];
    const char *what = dt_missing_model_hint(path, why, hint, sizeof hint);
    if (!*what && why == ENOENT)
        what = "; expected a directory with config.json and model.safetensors, or a checkpoint";
    return dt_fail(DT_ERR_DATA, "%s: %s%s", path, strerror(why), what);
}

/* path: a directory without config.json. */
static dt_err check_has_checkpoints(const char *path)
{
    char file[PATH_MAX], **paths;
    int n;
    if (dt_is_in(file, path, "checkpoints") || dt_is_in(file, path, "latest")) return DT_OK;
    DT_TRY(dt_checkpoint_list(path, &paths, &n));
    dt_list_free(paths, n);
    DT_CHECK(n > 0, DT_ERR_DATA,
             "%s: expected a model (config.json and model.safetensors) or checkpoints, found neither", path);
    return DT_OK;
}

/* A directory with config.json is a model. A directory with only weights or adapters is rejected with what is missing.
 * Anything else is treated as a checkpoint. */
static dt_err describe(dt_pretrained *p, const char *path, dt_model_part part)
{
    static const char *const signs[] = {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                                        "pytorch_model.bin.index.json"};
    char file[PATH_MAX];
    if (access(path, F_OK) != 0) return fail_missing(path, errno);
    const char *ending = strrchr(path, '.');
    DT_CHECK(dt_is_directory(path) || !ending || (strcmp(ending, ".safetensors") && strcmp(ending, ".json")),
             DT_ERR_DATA, "%s: expected the directory that contains this file, with config.json and model.safetensors",
             path);
    if (!dt_is_directory(path)) return describe_checkpoint(p, path);
    if (dt_is_in(file, path, "config.json")) return describe_directory(p, path, file, part);
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++)
        DT_CHECK(!dt_is_in(file, path, signs[i]), DT_ERR_DATA,
                 "%s: expected the model's config.json next to %s, found none", path, signs[i]);
    DT_CHECK(!dt_is_in(file, path, DT_PEFT_CONFIG), DT_ERR_DATA,
             "%s: expected a model, found only adapters; give their base model, and this directory as lora.path or "
             "--adapter, or merge the two with dtrain-convert --adapter",
             path);
    DT_TRY(check_has_checkpoints(path));
    return describe_checkpoint(p, path);
}

dt_err dt_pretrained_describe(dt_pretrained *p, const char *path, dt_model_part part)
{
    *p = (dt_pretrained){.generation = generation_config_none()};
    const dt_err err = describe(p, path, part);
    if (err != DT_OK) dt_pretrained_free(p);
    return err;
}

void dt_pretrained_free(dt_pretrained *p)
{
    dt_ckpt_meta_free(&p->meta);
    free(p->adapter);
    free(p->path);
    free(p->config_name);
    free(p->model_config);
    free(p->chat_template);
    free(p->tower);
    free(p->projector);
    free(p->tokenizer);
    generation_config_free(&p->generation);
    *p = (dt_pretrained){0};
}

/* ---- adapters ---------------------------------------------------------------------------------------------------- */

dt_err dt_pretrained_recorded(const dt_pretrained *p, dt_lora *lora)
{
    dt_config cfg = {0};
    *lora = (dt_lora){0};
    if (!p->meta.config) return DT_OK;
    dt_err err = dt_config_read_recorded(&cfg, p->path, p->meta.config);
    if (err == DT_OK) err = dt_lora_from_keys(lora, &cfg);
    lora->lenient = true; /* the original run validated the names */
    dt_config_free(&cfg);
    return err;
}

/* Labels of a score in safetensors files, whose names may begin with those of other programs. */
static int64_t labels_in(const dt_safetensors *s)
{
    for (int i = 0; i < s->n_tensors; i++)
        if (dt_has_ending(s->tensors[i].name, DT_STORED_SCORE) && s->tensors[i].n_dims == 2)
            return s->tensors[i].shape[0];
    return 0;
}

static dt_err labels_of_adapter(const char *dir, int64_t *n)
{
    char path[PATH_MAX];
    dt_lora l;
    dt_safetensors s = {0};
    bool is = false;
    DT_TRY(dt_lora_read(&l, dir));
    for (int i = 0; i < l.modules_to_save.n; i++) is |= strcmp(l.modules_to_save.list[i], "score") == 0;
    dt_lora_free(&l);
    if (!is || !dt_is_in(path, dir, DT_PEFT_TENSORS)) return DT_OK;
    DT_TRY(dt_safetensors_open(&s, path));
    *n = labels_in(&s);
    dt_safetensors_close(&s);
    return DT_OK;
}

dt_err dt_pretrained_n_labels(const dt_pretrained *p, const char *adapter, int64_t *n)
{
    dt_safetensors s = {0};
    *n = 0;
    if (adapter) DT_TRY(labels_of_adapter(adapter, n));
    if (*n) return DT_OK;
    if (p->kind == DT_PRETRAINED_CHECKPOINT) return dt_checkpoint_n_labels(p->path, n);
    dt_err err = dt_safetensors_open(&s, p->path);
    if (err == DT_OK && p->parts.prefix) err = dt_stored_strip(&s, p->parts.prefix);
    const dt_st_tensor *score = err == DT_OK ? dt_safetensors_find(&s, DT_STORED_SCORE) : NULL;
    if (score) *n = score->shape[0];
    dt_safetensors_close(&s);
    return err;
}

dt_err dt_pretrained_adapt(dt_pretrained *p, const char *dir, dt_lora *lora, const dt_model_config *mc, dt_unit *units,
                           int n_units)
{
    DT_TRY(dt_lora_attach_read(lora, dir, mc, units, n_units));
    DT_TRY(copy_text(&p->adapter, dir));
    p->new_adapters = true;
    for (int u = 0; u < n_units; u++)
        for (int i = 0; i < units[u].n_tensors; i++)
            p->new_score |= dt_stored_is_score(units[u].tensors[i].name) && dt_lora_saves(lora, &units[u].tensors[i]);
    return DT_OK;
}

static dt_stored_locator locator_of(const dt_pretrained *p)
{
    return p->kind == DT_PRETRAINED_HF ? dt_stored_locate_directory : dt_checkpoint_locate;
}

static const dt_stored_parts *parts_of(const dt_pretrained *p)
{
    return p->parts.tower || p->parts.projector || p->parts.prefix ? &p->parts : NULL;
}

dt_err dt_pretrained_load(dt_comm *comm, dt_zero *z, const dt_pretrained *p, dt_phase *phase)
{
    dt_saved_model one = {.zero = z,
                          .new_score = p->new_score,
                          .new_adapters = p->new_adapters,
                          .new_head = p->unties,
                          .adapters_follow = p->adapter != NULL,
                          .base = p->base,
                          .keeps_nonfinite = p->keeps_nonfinite,
                          .parts = parts_of(p)};
    DT_TRY(dt_stored_load(comm, &one, 1, p->path, locator_of(p), phase));
    if (!p->adapter) return DT_OK;
    one.adapters_follow = one.new_head = false; /* the adapter's own head, if it has one */
    one.parts = NULL;
    /* an adapter that continues training is saved relative to that base */
    one.keeps_frozen = p->base ? "merge adapter and model first (dtrain-convert --adapter)" : NULL;
    one.base = NULL;
    return dt_stored_load(comm, &one, 1, p->adapter, peft_locate, phase);
}

/* The adapters of a model with a scalar head, in a separate unit. */
static dt_err make_adapters(dt_unit *adapters, const dt_lora *lora, const dt_model_config *mc)
{
    dt_unit *units;
    int n_units;
    DT_TRY(dt_model_make_value_units(mc, 1, &units, &n_units));
    dt_err err = dt_lora_attach(lora, mc, units, n_units);
    snprintf(adapters->name, sizeof adapters->name, "adapters");
    for (int u = 0; u < n_units; u++)
        for (int i = 0; i < units[u].n_tensors && err == DT_OK; i++) {
            const dt_tensor *t = &units[u].tensors[i];
            if (t->adapter_scale == 0) continue;
            err = dt_unit_add(adapters, t->name, t->n_dims, t->shape, true, true, 0, 0);
            if (err != DT_OK) continue;
            dt_tensor *added = &adapters->tensors[adapters->n_tensors - 1];
            added->adapter_scale = t->adapter_scale;
            added->of_expert = t->of_expert;
            added->adapter_experts = t->adapter_experts;
            added->adapter_depth = t->adapter_depth;
        }
    dt_model_free_units(units, n_units);
    dt_units_choose_trained(adapters, 1, NULL, NULL);
    return err;
}

dt_err dt_pretrained_load_merged(dt_comm *comm, dt_zero *z, const dt_pretrained *p, const dt_lora *lora,
                                 const dt_model_config *mc, const dt_zero_options *like, dt_device *dev,
                                 dt_stream *compute, dt_phase *phase)
{
    dt_unit adapters = {.role = DT_UNIT_CARRIED};
    const dt_zero_options opt = {
        .n_groups = like->n_groups, .param_dtype = DT_F32, .grad_dtype = DT_F32, .tied_unit = -1, .host = like->host};
    dt_saved_model models[2] = {{.zero = z, .new_score = p->new_score, .parts = parts_of(p)},
                                {.new_score = p->new_score}};
    dt_err err = dt_comm_agree(comm, make_adapters(&adapters, lora, mc));
    if (err == DT_OK) err = dt_zero_open(&models[1].zero, &opt, &adapters, 1, comm, dev, compute, phase);
    if (err == DT_OK) err = dt_stored_load(comm, models, 2, p->path, locator_of(p), phase);
    if (err == DT_OK) err = merge_into(comm, z, models[1].zero);
    dt_zero_close(models[1].zero);
    dt_unit_free(&adapters);
    return err;
}

dt_err dt_pretrained_type(const dt_pretrained *p, dt_st_type *type)
{
    dt_safetensors s = {0};
    bool any = false;
    *type = DT_ST_OTHER;
    if (p->kind != DT_PRETRAINED_HF) return DT_OK;
    const dt_err err = dt_safetensors_open(&s, p->path);
    for (int i = 0; i < s.n_tensors; i++) {
        if (dt_stored_is_ignored(s.tensors[i].name) || dt_stored_is_exact(s.tensors[i].name)) continue;
        if (dt_stored_is_scale(&s, s.tensors[i].name) || dt_stored_is_bitsandbytes(&s, s.tensors[i].name)) continue;
        const bool packed = dt_stored_is_fp8(&s.tensors[i]) || strcmp(s.tensors[i].dtype, "U8") == 0;
        const dt_st_type own = packed ? DT_ST_BF16 : s.tensors[i].type;
        *type = !any || *type == own ? own : DT_ST_OTHER;
        any = true;
    }
    dt_safetensors_close(&s);
    return err;
}

/* ---- checks without loading -------------------------------------------------------------------------------------- */

dt_err dt_pretrained_verify(const dt_pretrained *p, const dt_unit *units, int n_units, dt_phase *phase)
{
    dt_stored_slot *slots;
    int n_slots;
    const dt_saved_model one = {.units = units,
                                .n_units = n_units,
                                .new_score = p->new_score,
                                .new_adapters = p->new_adapters,
                                .new_head = p->unties,
                                .parts = parts_of(p)};
    DT_TRY(dt_stored_slots(&one, 1, &slots, &n_slots));
    dt_err err = dt_stored_verify(p->path, locator_of(p), slots, n_slots, phase);
    if (err == DT_OK && p->adapter) err = dt_stored_verify(p->adapter, peft_locate, slots, n_slots, phase);
    if (err == DT_OK && p->kind == DT_PRETRAINED_CHECKPOINT) err = dt_checkpoint_verify(p->path, NULL);
    free(slots);
    return err;
}
