/* safetensors_locate.c - where the tensors of a model lie in the safetensors files of a directory. */
#include "dtrain/stored.h"
#include <stdlib.h>
#include <string.h>

typedef struct locate_job {
    const dt_safetensors *s;
    bool *used; /* [s->n_tensors] */
} locate_job;

/* found is what the slot asks for: with the right shape and type, and not to be reported as left over. */
static dt_err take(locate_job *job, const dt_st_tensor *found, const dt_tensor *t, dt_stored_location *location)
{
    const char *path = job->s->files[found->file];
    DT_TRY(dt_stored_check_shape(path, found->name, t, found->n_dims, found->shape));
    DT_CHECK(found->type != DT_ST_OTHER, DT_ERR_DATA, "%s: tensor `%s`: expected F32, F16 or BF16, found %s", path,
             found->name, found->dtype);
    job->used[found - job->s->tensors] = true;
    location->offset = found->offset;
    location->type = (int32_t)found->type;
    location->file = found->file;
    return DT_OK;
}

static dt_err locate_slot(locate_job *job, const char *dir, const dt_stored_slot *slot, dt_stored_location *location)
{
    dt_tensor plain;
    const dt_tensor *t = dt_stored_plain(slot, &plain).tensor;
    const char *bare = dt_stored_bare_name(t->name);
    const dt_st_tensor *found = dt_safetensors_find(job->s, t->name);
    *location = (dt_stored_location){.bare = !found && bare, .quantise = slot->tensor->part >= DT_CODES};
    if (location->bare) found = dt_safetensors_find(job->s, bare);
    location->kept = !found && dt_stored_may_stay(slot);
    if (location->kept) return DT_OK;
    DT_CHECK(found, DT_ERR_DATA, "%s: tensor `%s` is missing%s", job->s->n_files == 1 ? job->s->files[0] : dir, t->name,
             dt_stored_head_hint(t->name, dt_safetensors_find(job->s, DT_STORED_SCORE)));
    return take(job, found, t, location);
}

static dt_err locate_head(locate_job *job, const dt_tensor *embed, dt_stored_map *map)
{
    const dt_st_tensor *head = dt_safetensors_find(job->s, DT_STORED_HEAD);
    if (!head) return DT_OK;
    map->has_head = true;
    return take(job, head, embed, &map->head);
}

static dt_err locate_all(locate_job *job, const char *dir, const dt_stored_slot *slots, int n_slots, dt_stored_map *map)
{
    const dt_safetensors *s = job->s;
    for (int f = 0; f < s->n_files; f++) DT_TRY(dt_stored_add_file(map, s->files[f]));
    for (int i = 0; i < n_slots; i++) DT_TRY(locate_slot(job, dir, &slots[i], &map->locations[i]));
    map->embed = dt_stored_tied_embedding(slots, n_slots);
    if (map->embed >= 0) DT_TRY(locate_head(job, slots[map->embed].tensor, map));
    for (int i = 0; i < s->n_tensors; i++)
        DT_CHECK(job->used[i] || dt_stored_is_ignored(s->tensors[i].name) ||
                     dt_stored_is_replaced(slots, n_slots, s->tensors[i].name),
                 DT_ERR_DATA, "%s: tensor `%.200s`: this model has no such tensor%s", s->files[s->tensors[i].file],
                 s->tensors[i].name, dt_stored_head_hint(s->tensors[i].name, dt_safetensors_find(s, DT_STORED_SCORE)));
    return DT_OK;
}

dt_err dt_stored_locate_directory(const char *dir, const dt_stored_slot *slots, int n_slots, dt_stored_map *map)
{
    dt_safetensors s = {0};
    locate_job job = {.s = &s};
    dt_err err = dt_safetensors_open(&s, dir);
    if (err == DT_OK && !(job.used = calloc((size_t)s.n_tensors + 1, sizeof *job.used)))
        err = dt_fail(DT_ERR_MEMORY, "%s: no memory for a list of %d tensors", dir, s.n_tensors);
    if (err == DT_OK) err = locate_all(&job, dir, slots, n_slots, map);
    free(job.used);
    dt_safetensors_close(&s);
    return err;
}
