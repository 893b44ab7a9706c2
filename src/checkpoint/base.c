/* base.c - tensors that a checkpoint omits, and their location: the attribute `base`, an object
 *
 *     {"path": "/models/llama", "checksums": {"model.embed_tokens.weight": "0123456789abcdef", ...}}
 *
 * A tensor that is read from the base is verified against its checksum, like a tensor of the file. A modified base is
 * rejected. */
#include "file.h"
#include "dtrain/io/json.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void dt_base_free(dt_base *b)
{
    free(b->path);
    free(b->tensors);
    *b = (dt_base){0};
}

dt_err dt_base_add(dt_base *b, const char *name, uint64_t checksum)
{
    DT_GROW(b->tensors, b->n, "out of memory for a list of %d tensors", b->n + 1);
    struct dt_base_tensor *to = &b->tensors[b->n++];
    to->checksum = checksum;
    snprintf(to->name, sizeof to->name, "%s", name);
    return DT_OK;
}

const struct dt_base_tensor *dt_base_find(const dt_base *b, const char *name)
{
    for (int i = 0; i < b->n; i++)
        if (strcmp(b->tensors[i].name, name) == 0) return &b->tensors[i];
    return NULL;
}

const struct dt_base_tensor *ckpt_base_of(const dt_base *b, const dt_stored_slot *s)
{
    dt_tensor tensor;
    const struct dt_base_tensor *own = dt_base_find(b, s->tensor->name);
    return own ? own : dt_base_find(b, dt_stored_plain(s, &tensor).tensor->name);
}

/* Does the list have checksums of codes? A matrix that was quantised when it was read has the checksum of its plain
 * weights, which its scales repeat. */
static bool has_codes(const dt_base *b, const dt_stored_slot *s)
{
    dt_tensor plain;
    char name[DT_NAME_MAX + 8];
    const struct dt_base_tensor *codes = dt_base_find(b, dt_stored_plain(s, &plain).tensor->name);
    snprintf(name, sizeof name, "%s_scale", plain.name);
    const struct dt_base_tensor *scales = dt_base_find(b, name);
    return codes && scales && codes->checksum != scales->checksum;
}

/* ---- the attribute ----------------------------------------------------------------------------------------------- */

dt_err ckpt_base_text(const dt_base *b, char **text)
{
    char hex[20];
    json_t *sums = json_object();
    for (int i = 0; i < b->n; i++) {
        snprintf(hex, sizeof hex, "%016" PRIx64, b->tensors[i].checksum);
        json_object_set_new(sums, b->tensors[i].name, json_string(hex));
    }
    json_t *root = json_pack("{s:s, s:o}", "path", b->path, "checksums", sums);
    *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    DT_CHECK(*text, DT_ERR_WRITE, "%s: expected a path in UTF-8, because the checkpoint stores it", b->path);
    return DT_OK;
}

static dt_err malformed(const char *path)
{
    dt_error_clear(); /* the parser's error gives an offset in the attribute, not in the file */
    return dt_fail(DT_ERR_DATA, "%s: attribute `base`: expected the path of a model and checksums of its tensors",
                   path);
}

static dt_err take_sums(const char *path, json_t *sums, dt_base *b)
{
    const char *name;
    json_t *v;
    json_object_foreach(sums, name, v)
    {
        char *end = NULL;
        const char *hex = json_string_value(v);
        const uint64_t sum = hex ? strtoull(hex, &end, 16) : 0;
        if (!hex || strlen(hex) != 16 || *end || strlen(name) >= DT_NAME_MAX) return malformed(path);
        DT_TRY(dt_base_add(b, name, sum));
    }
    return DT_OK;
}

dt_err ckpt_base_parse(const char *path, const char *text, dt_base *b)
{
    json_t *root;
    if (dt_json_parse(&root, path, text, strlen(text), 0) != DT_OK) return malformed(path);
    const char *from = json_string_value(json_object_get(root, "path"));
    json_t *sums = json_object_get(root, "checksums");
    dt_err err = from && *from && json_is_object(sums) ? take_sums(path, sums, b) : malformed(path);
    if (err == DT_OK) err = dt_copy_text(&b->path, from, "%s: out of memory for a path", path);
    json_decref(root);
    if (err != DT_OK) dt_base_free(b);
    return err;
}

/* ---- tensors of the base ----------------------------------------------------------------------------------------- */

typedef struct base_job {
    const char *path; /* the checkpoint's */
    const dt_base *base;
    dt_saved_model whole; /* the model to look up, without adapters that may have been added */
    dt_stored_slot *slots;
    int *of, n; /* [n] indices of the checkpoint's slots */
    dt_stored_map found;
} base_job;

static dt_err list_slots(base_job *job, const dt_stored_slot *slots, int n_slots)
{
    DT_ALLOC(job->slots, n_slots + 1, "out of memory for a list of %d tensors", n_slots);
    DT_ALLOC(job->of, n_slots + 1, "out of memory for a list of %d tensors", n_slots);
    DT_ALLOC(job->found.locations, n_slots + 1, "out of memory for a list of %d tensors", n_slots);
    for (int i = 0; i < n_slots; i++) {
        if (slots[i].state != DT_STATE_PARAM || slots[i].of->name) continue;
        if (job->n == 0) job->whole = *slots[i].of;
        job->slots[job->n] = slots[i];
        job->of[job->n++] = i;
    }
    job->whole.new_score = job->whole.new_adapters = job->whole.new_head = true;
    for (int k = 0; k < job->n; k++) job->slots[k].of = &job->whole;
    return DT_OK;
}

static dt_err locate(base_job *job, const char *from, int depth)
{
    DT_CHECK(access(from, F_OK) == 0, DT_ERR_BASE,
             "%s contains only trained parameters (checkpoint.save = trainable), and its base model is missing: %s: "
             "%s. Restore that path, for example with a symbolic link",
             job->path, from, strerror(errno));
    const dt_err err = dt_is_directory(from) ? dt_stored_locate_directory(from, job->slots, job->n, &job->found)
                                             : ckpt_locate(from, job->slots, job->n, &job->found, depth + 1);
    return err == DT_ERR_DATA ? DT_ERR_BASE : err;
}

static void move_files(dt_stored_location *l, int by)
{
    l->file += by;
    l->packed.scales_file += by, l->packed.group_file += by, l->packed.map_file += by;
}

static dt_err merge(base_job *job, dt_stored_map *map)
{
    dt_stored_map *found = &job->found;
    const int before = dt_stored_n_files(map);
    const char *name = found->files;
    for (int f = 0; f < dt_stored_n_files(found); f++, name += strlen(name) + 1) DT_TRY(dt_stored_add_file(map, name));
    for (int k = 0; k < job->n; k++) {
        dt_stored_location *to = &map->locations[job->of[k]], *from = &found->locations[k];
        const char *tensor = job->slots[k].tensor->name;
        if (!to->left_out) continue;
        DT_CHECK(!from->kept, DT_ERR_BASE, "%s: tensor `%s` is missing; %s needs it from this base model",
                 job->base->path, tensor, job->path);
        *to = *from;
        move_files(to, before);
        to->left_out = true;
        /* values and codes of one matrix cannot be compared */
        to->has_checksum =
            has_codes(job->base, &job->slots[k]) == (job->slots[k].tensor->part >= DT_CODES && !to->quantise);
        to->checksum = ckpt_base_of(job->base, &job->slots[k])->checksum;
    }
    if (map->embed < 0 || !map->locations[map->embed].left_out || !found->has_head) return DT_OK;
    map->has_head = true, map->head = found->head; /* the base ties it to the embedding */
    move_files(&map->head, before);
    return DT_OK;
}

dt_err ckpt_locate_left_out(const char *path, const dt_base *base, const dt_stored_slot *slots, int n_slots,
                            dt_stored_map *map, int depth)
{
    enum { MAX_DEPTH = 16 };
    base_job job = {.path = path, .base = base};
    dt_err err = list_slots(&job, slots, n_slots);
    const dt_base *given = job.whole.base;
    if (err == DT_OK && depth >= MAX_DEPTH)
        err = dt_fail(DT_ERR_DATA, "%s: expected at most %d nested base models, found more", path, (int)MAX_DEPTH);
    if (err == DT_OK) err = locate(&job, given && given->path && depth == 0 ? given->path : base->path, depth);
    if (err == DT_OK) err = merge(&job, map);
    free(job.slots);
    free(job.of);
    free(job.found.locations);
    free(job.found.files);
    return err;
}
