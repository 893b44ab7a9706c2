/* weights.c - the tensors of a model in the safetensors files of a directory. */
#include "file.h"
#include <stdlib.h>
#include <string.h>

typedef struct find_job {
    const dt_safetensors *s;
    bool *used; /* [s->n_tensors] */
} find_job;

static dt_err take(find_job *job, const dt_st_tensor *found, const dt_tensor *t, ckpt_place *place)
{
    const char *path = job->s->files[found->file];
    DT_TRY(ckpt_check_shape(path, found->name, t, found->n_dims, found->shape));
    DT_CHECK(found->type != DT_ST_OTHER, DT_ERR_DATA, "%s: tensor `%s`: expected F32, F16 or BF16, found %s", path,
             found->name, found->dtype);
    job->used[found - job->s->tensors] = true;
    place->offset = found->offset;
    place->type = (int32_t)found->type;
    place->file = found->file;
    return DT_OK;
}

static dt_err find_slot(find_job *job, const char *dir, const dt_tensor *t, ckpt_place *place)
{
    const char *bare = ckpt_bare_name(t->name);
    const dt_st_tensor *found = dt_safetensors_find(job->s, t->name);
    *place = (ckpt_place){.bare = !found && bare};
    if (place->bare) found = dt_safetensors_find(job->s, bare);
    DT_CHECK(found, DT_ERR_DATA, "%s: tensor `%s` is missing", job->s->n_files == 1 ? job->s->files[0] : dir, t->name);
    return take(job, found, t, place);
}

static dt_err find_head(find_job *job, const dt_tensor *embed, ckpt_found *found)
{
    const dt_st_tensor *head = dt_safetensors_find(job->s, CKPT_HEAD);
    if (!head) return DT_OK;
    found->has_head = true;
    return take(job, head, embed, &found->head);
}

static dt_err find_all(find_job *job, const char *dir, const ckpt_slot *slots, int n_slots, ckpt_found *found)
{
    const dt_safetensors *s = job->s;
    for (int f = 0; f < s->n_files; f++) DT_TRY(ckpt_add_file(found, s->files[f]));
    for (int i = 0; i < n_slots; i++) DT_TRY(find_slot(job, dir, slots[i].tensor, &found->places[i]));
    found->embed = ckpt_tied_embedding(slots, n_slots);
    if (found->embed >= 0) DT_TRY(find_head(job, slots[found->embed].tensor, found));
    for (int i = 0; i < s->n_tensors; i++)
        DT_CHECK(job->used[i] || ckpt_is_ignored(s->tensors[i].name), DT_ERR_DATA,
                 "%s: tensor `%.200s`: this model has no such tensor", s->files[s->tensors[i].file],
                 s->tensors[i].name);
    return DT_OK;
}

dt_err ckpt_find_in_directory(const char *dir, const ckpt_slot *slots, int n_slots, ckpt_found *found)
{
    dt_safetensors s = {0};
    find_job job = {.s = &s};
    dt_err err = dt_safetensors_open(&s, dir);
    if (err == DT_OK && !(job.used = calloc((size_t)s.n_tensors + 1, sizeof *job.used)))
        err = dt_fail(DT_ERR_MEMORY, "%s: no memory for a list of %d tensors", dir, s.n_tensors);
    if (err == DT_OK) err = find_all(&job, dir, slots, n_slots, found);
    free(job.used);
    dt_safetensors_close(&s);
    return err;
}
