/* safetensors_locate.c - where the tensors of a model lie in the safetensors files of a directory, or of several that
 * have its parts. */
#include "dtrain/stored.h"
#include <stdlib.h>
#include <string.h>

/* A directory or a file, and which sections of the model come from it. */
typedef struct locate_job {
    const char *path;
    bool has[DT_STORED_PROJECTOR + 1];
    bool of_tower; /* a directory of a tower: whatever is there belongs to it, or goes with it */
    dt_safetensors s;
    bool *used;     /* [s->n_tensors] */
    int first_file; /* of the map: where the files of this one begin */
} locate_job;

/* found is what the slot asks for: with the right shape and type, and not to be reported as left over. */
static dt_err take(locate_job *job, const dt_st_tensor *found, const dt_tensor *t, dt_stored_location *location)
{
    const char *path = job->s.files[found->file];
    DT_TRY(dt_stored_check_shape(path, found->name, t, found->n_dims, found->shape));
    DT_CHECK(found->type != DT_ST_OTHER, DT_ERR_DATA, "%s: tensor `%s`: expected F32, F16 or BF16, found %s", path,
             found->name, found->dtype);
    job->used[found - job->s.tensors] = true;
    location->offset = found->offset;
    location->type = (int32_t)found->type;
    location->file = job->first_file + found->file;
    return DT_OK;
}

/* What a tensor that is missing or too many may mean. */
static const char *hint(const locate_job *job, const char *name)
{
    if (dt_stored_section_of(name) == DT_STORED_PROJECTOR && !job->has[DT_STORED_LANGUAGE])
        return ": it has a projector of another type than vision.projector_type says";
    return dt_stored_head_hint(name, dt_safetensors_find(&job->s, DT_STORED_SCORE));
}

static dt_err locate_slot(locate_job *job, const dt_stored_slot *slot, dt_stored_location *location)
{
    dt_tensor plain;
    const dt_tensor *t = dt_stored_plain(slot, &plain).tensor;
    const dt_st_tensor *found = dt_stored_find(&job->s, t->name);
    *location = (dt_stored_location){.quantise = slot->tensor->part >= DT_CODES};
    location->kept = !found && dt_stored_may_stay(slot);
    if (location->kept) return DT_OK;
    DT_CHECK(found, DT_ERR_DATA, "%s: tensor `%s` is missing%s", job->s.n_files == 1 ? job->s.files[0] : job->path,
             t->name, hint(job, t->name));
    return take(job, found, t, location);
}

static dt_err locate_head(locate_job *job, const dt_tensor *embed, dt_stored_map *map)
{
    char name[DT_NAME_MAX];
    dt_stored_name_head(embed, name);
    const dt_st_tensor *head = dt_stored_find(&job->s, name);
    if (!head) return DT_OK;
    map->has_head = true;
    return take(job, head, embed, &map->head);
}

static bool may_be_left(const locate_job *job, const char *name, const dt_stored_slot *slots, int n_slots)
{
    if (job->of_tower) return dt_stored_is_beside_tower(name);
    return !job->has[dt_stored_section_of(name)] || dt_stored_is_ignored(name) ||
           dt_stored_is_replaced(slots, n_slots, name);
}

static dt_err locate_all(locate_job *job, const dt_stored_slot *slots, int n_slots, dt_stored_map *map)
{
    const dt_safetensors *s = &job->s;
    for (int f = 0; f < s->n_files; f++) DT_TRY(dt_stored_add_file(map, s->files[f]));
    for (int i = 0; i < n_slots; i++)
        if (job->has[dt_stored_section_of(slots[i].tensor->name)])
            DT_TRY(locate_slot(job, &slots[i], &map->locations[i]));
    if (map->embed >= 0 && job->has[DT_STORED_LANGUAGE]) DT_TRY(locate_head(job, slots[map->embed].tensor, map));
    for (int i = 0; i < s->n_tensors; i++)
        DT_CHECK(job->used[i] || may_be_left(job, s->tensors[i].name, slots, n_slots), DT_ERR_DATA,
                 "%s: tensor `%.200s`: this model has no such tensor%s", s->files[s->tensors[i].file],
                 s->tensors[i].name, hint(job, s->tensors[i].name));
    return DT_OK;
}

/* Those of one path; *n_files counts the files of all. */
static dt_err locate_in(locate_job *job, const dt_stored_slot *slots, int n_slots, dt_stored_map *map, int *n_files)
{
    job->first_file = *n_files;
    dt_err err = dt_safetensors_open(&job->s, job->path);
    if (err == DT_OK && !(job->used = calloc((size_t)job->s.n_tensors + 1, sizeof *job->used)))
        err = dt_fail(DT_ERR_MEMORY, "%s: no memory for a list of %d tensors", job->path, job->s.n_tensors);
    if (err == DT_OK) err = locate_all(job, slots, n_slots, map);
    *n_files += job->s.n_files;
    free(job->used);
    dt_safetensors_close(&job->s);
    return err;
}

dt_err dt_stored_locate_directory(const char *dir, const dt_stored_slot *slots, int n_slots, dt_stored_map *map)
{
    const dt_stored_parts one = {0}, *parts = n_slots > 0 && slots[0].of->parts ? slots[0].of->parts : &one;
    locate_job whole = {.path = dir, .has = {true, !parts->tower, !parts->projector}},
               tower = {.path = parts->tower, .has = {[DT_STORED_TOWER] = true}, .of_tower = true},
               projector = {.path = parts->projector, .has = {[DT_STORED_PROJECTOR] = true}};
    int n_files = 0;
    map->embed = dt_stored_tied_embedding(slots, n_slots);
    DT_TRY(locate_in(&whole, slots, n_slots, map, &n_files));
    if (parts->tower) DT_TRY(locate_in(&tower, slots, n_slots, map, &n_files));
    return parts->projector ? locate_in(&projector, slots, n_slots, map, &n_files) : DT_OK;
}
