/* peft_locate.c - locate an adapter's tensors in PEFT's file: names are dtrain's with a prefix. */
#include "peft_locate.h"
#include "dtrain/io/io.h"
#include "dtrain/model/model.h"
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

typedef struct locate_job {
    const dt_lora *lora;
    const dt_safetensors *s;
    const char *file;
    bool *used; /* [s->n_tensors] */
} locate_job;

/* Required tensors of a model with adapters: the adapters, and modules that the configuration lists as saved. */
static bool is_needed(const dt_lora *l, const dt_tensor *t) { return t->adapter_scale != 0 || dt_lora_saves(l, t); }

static dt_err take(locate_job *job, const dt_st_tensor *found, const dt_tensor *t, dt_stored_location *location)
{
    DT_CHECK(!dt_model_is_vocabulary(t) || found->n_dims != 2 || found->shape[0] <= t->shape[0], DT_ERR_DATA,
             "%s: tensor `%s`: the adapter has a vocabulary of %" PRId64 " tokens, but the model has %" PRId64
             "; add the tokens to the model first (dtrain-convert --add-tokens)",
             job->file, found->name, found->shape[0], t->shape[0]);
    const dt_tensor shaped = dt_peft_shaped(t);
    DT_TRY(dt_stored_check_shape(job->file, found->name, &shaped, found->n_dims, found->shape));
    DT_CHECK(found->type != DT_ST_OTHER, DT_ERR_DATA, "%s: tensor `%s`: expected F32, F16 or BF16, found %s", job->file,
             found->name, found->dtype);
    job->used[found - job->s->tensors] = true;
    location->offset = found->offset;
    location->type = (int32_t)found->type;
    location->n_alternating = dt_peft_alternates(t) ? (int32_t)t->adapter_experts : 0;
    return DT_OK;
}

static const dt_st_tensor *find(const locate_job *job, const char *path)
{
    char name[sizeof DT_PEFT_PREFIX + DT_PEFT_NAME_MAX];
    snprintf(name, sizeof name, "%s%s", DT_PEFT_PREFIX, path);
    return dt_safetensors_find(job->s, name);
}

static dt_err locate_slot(locate_job *job, const dt_stored_slot *slot, dt_stored_location *location)
{
    char path[DT_PEFT_NAME_MAX];
    const dt_tensor *t = slot->tensor;
    dt_peft_tensor_name(t, path);
    const dt_st_tensor *found = find(job, path);
    if (!found) found = find(job, dt_peft_headless(path)); /* of a model without a head */
    *location = (dt_stored_location){.elsewhere = !found};
    DT_CHECK(found || !is_needed(job->lora, t), DT_ERR_DATA, "%s: tensor `%s%s` is missing", job->file, DT_PEFT_PREFIX,
             path);
    return found ? take(job, found, t, location) : DT_OK;
}

/* PEFT unties an embedding and its head: the file then has both, and they must still be equal. PEFT keeps them tied if
 * configured to, and recognises the embedding by its name. */
static dt_err locate_tied(locate_job *job, const dt_stored_slot *slots, int n_slots, dt_stored_map *map)
{
    map->embed = dt_stored_tied_embedding(slots, n_slots);
    if (map->embed < 0 || map->locations[map->embed].elsewhere) return DT_OK;
    const dt_tensor *embed = slots[map->embed].tensor;
    char of_model[DT_NAME_MAX], path[DT_PEFT_NAME_MAX];
    dt_stored_name_head(embed, of_model);
    dt_peft_name(of_model, path);
    const dt_st_tensor *head = find(job, path);
    DT_CHECK(
        head || (job->lora->ties && strstr(embed->name, "embed_tokens")), DT_ERR_DATA,
        "%s: tensor `%s%s` was trained separately, but this model ties its head to it; such adapters are not supported",
        job->file, DT_PEFT_PREFIX, embed->name);
    map->has_head = head != NULL;
    return head ? take(job, head, embed, &map->head) : DT_OK;
}

/* Additional tensors of PEFT: the base weight next to an embedding's adapter. For a vocabulary that has grown and is
 * trained, also the base weight and a second copy of the trained weight. */
static bool is_copy(const char *name)
{
    static const char *const parts[] = {".base_layer.", ".original_module.", ".modules_to_save."};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strstr(name, parts[i])) return !strstr(name, ".lora_");
    return false;
}

/* An adapter that changes no result: of a block after the features, or of SigLIP's pooling. */
static bool is_idle(const char *name, const dt_stored_slot *slots, int n_slots)
{
    char path[DT_PEFT_NAME_MAX];
    const size_t n = strlen(DT_PEFT_PREFIX);
    const char *of = strncmp(name, DT_PEFT_PREFIX, n) == 0 ? name + n : name, *part = strstr(of, ".lora_");
    bool is = part && dt_stored_is_pooling(of);
    for (int i = 0; i < n_slots && part && !is; i++) {
        if (slots[i].tensor->site != DT_SITE_IDLE) continue;
        dt_peft_tensor_name(slots[i].tensor, path);
        *strrchr(path, '.') = '\0';
        is = strlen(path) == (size_t)(part - of) && strncmp(path, of, strlen(path)) == 0;
    }
    return is;
}

static dt_err locate_all(locate_job *job, const dt_stored_slot *slots, int n_slots, dt_stored_map *map)
{
    const dt_safetensors *s = job->s;
    DT_TRY(dt_stored_add_file(map, job->file));
    for (int i = 0; i < n_slots; i++) DT_TRY(locate_slot(job, &slots[i], &map->locations[i]));
    DT_TRY(locate_tied(job, slots, n_slots, map));
    for (int i = 0; i < s->n_tensors; i++) {
        const char *name = s->tensors[i].name;
        if (job->used[i] || is_copy(name) || is_idle(name, slots, n_slots)) continue;
        return dt_fail(DT_ERR_DATA, "%s: tensor `%.200s`: this model has no such tensor, or %s lists no adapter for it",
                       job->file, name, DT_PEFT_CONFIG);
    }
    return DT_OK;
}

dt_err peft_open(dt_safetensors *s, const char *dir, char path[PATH_MAX])
{
    char pickled[PATH_MAX];
    if (dt_is_in(path, dir, DT_PEFT_TENSORS)) return dt_safetensors_open(s, path);
    DT_CHECK(!dt_is_in(pickled, dir, "adapter_model.bin"), DT_ERR_DATA,
             "%s: expected %s, found a pickle, which is not read because it may run arbitrary code; save the adapter "
             "again with a newer PEFT",
             pickled, DT_PEFT_TENSORS);
    return dt_fail(DT_ERR_DATA, "%s: expected the adapter's tensors in %s, which does not exist", dir, DT_PEFT_TENSORS);
}

dt_err peft_locate(const char *dir, const dt_stored_slot *slots, int n_slots, dt_stored_map *map)
{
    char path[PATH_MAX];
    dt_safetensors s = {0};
    dt_lora lora = {0};
    DT_TRY(dt_lora_read(&lora, dir));
    locate_job job = {.lora = &lora, .s = &s, .file = path};
    dt_err err = peft_open(&s, dir, path);
    if (err == DT_OK && !(job.used = calloc((size_t)s.n_tensors + 1, sizeof *job.used)))
        err = dt_fail(DT_ERR_MEMORY, "%s: out of memory for a list of %d tensors", dir, s.n_tensors);
    if (err == DT_OK) err = locate_all(&job, slots, n_slots, map);
    free(job.used);
    dt_safetensors_close(&s);
    dt_lora_free(&lora);
    return err;
}
