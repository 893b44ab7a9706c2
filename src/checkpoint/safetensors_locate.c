/* safetensors_locate.c - locate a model's tensors in the safetensors files of one directory, or of several that hold
 * its components. */
#include "locate.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

dt_err locate_check_shape(const locate_job *job, const dt_st_tensor *found, int n_dims, const int64_t *shape)
{
    dt_tensor expected = {.n_dims = n_dims};
    memcpy(expected.shape, shape, (size_t)n_dims * sizeof *shape);
    return dt_stored_check_shape(job->s.files[found->file], found->name, &expected, found->n_dims, found->shape);
}

void locate_mark(locate_job *job, const dt_st_tensor *found, const dt_st_tensor *scales, dt_stored_location *location)
{
    job->used[found - job->s.tensors] = true;
    location->offset = found->offset;
    location->file = job->first_file + found->file;
    if (!scales) return;
    job->used[scales - job->s.tensors] = true;
    location->packed.scales = scales->offset;
    location->packed.scales_file = job->first_file + scales->file;
}

/* Sizes of blocks, by the shape of their scales: one for each row, for each matrix, or for 128 x 128 values. */
static dt_err measure_blocks(const locate_job *job, const dt_st_tensor *scales, const dt_tensor *t, dt_packed *p)
{
    const int64_t sizes[][2] = {{1, p->n_cols}, {p->n_rows, p->n_cols}, {128, 128}};
    const bool single = t->n_dims == 2 && scales->n_elems == 1 && scales->n_dims < 2;
    for (int i = single; i < 3; i++) {
        dt_tensor expected = {.n_dims = t->n_dims};
        memcpy(expected.shape, t->shape, sizeof expected.shape);
        for (int d = 0; d < 2; d++)
            expected.shape[t->n_dims - 2 + d] = dt_ceil_div(t->shape[t->n_dims - 2 + d], sizes[i][d]);
        p->block_rows = sizes[i][0], p->block_cols = sizes[i][1];
        if (i == 2) return locate_check_shape(job, scales, expected.n_dims, expected.shape);
        if (single || (scales->n_dims == t->n_dims &&
                       memcmp(scales->shape, expected.shape, (size_t)t->n_dims * sizeof *scales->shape) == 0))
            break;
    }
    return DT_OK;
}

/* Locate a tensor in FP8 with its scales. */
static dt_err take_fp8(locate_job *job, const dt_st_tensor *found, const dt_tensor *t, dt_stored_location *location)
{
    const char *path = job->s.files[found->file];
    const dt_st_tensor *scales = dt_stored_find_scales(&job->s, found);
    dt_packed *p = &location->packed;
    DT_CHECK(t->n_dims >= 2, DT_ERR_DATA, "%s: tensor `%s`: expected F32, F16 or BF16 for a vector, found %s", path,
             found->name, found->dtype);
    DT_CHECK(scales, DT_ERR_DATA, "%s: tensor `%s_scale_inv` is missing: the scales of this tensor in %s", path,
             found->name, found->dtype);
    DT_CHECK(scales->type != DT_ST_OTHER, DT_ERR_DATA, "%s: tensor `%s`: expected F32, F16 or BF16, found %s",
             job->s.files[scales->file], scales->name, scales->dtype);
    *p = (dt_packed){.form = DT_PACKED_FP8,
                     .bits = 8,
                     .n_rows = t->shape[t->n_dims - 2],
                     .n_cols = t->shape[t->n_dims - 1],
                     .scales_type = (int32_t)scales->type};
    DT_TRY(measure_blocks(job, scales, t, p));
    location->type = DT_ST_F32;
    locate_mark(job, found, scales, location);
    return DT_OK;
}

/* The shape of t in the file, which may have the transpose of each matrix. Returns whether it has; of a square matrix
 * it does not. */
static bool turn(const dt_st_tensor *found, dt_tensor *t)
{
    const int64_t cols = t->shape[1], rows = t->shape[2];
    const bool turned = t->fused.either && t->n_dims == 3 && found->n_dims == 3 && rows != cols &&
                        found->shape[1] == rows && found->shape[2] == cols;
    if (turned) t->shape[1] = rows, t->shape[2] = cols;
    return turned;
}

/* Check shape and type of `found` for tensor t, and mark it as used. */
static dt_err take(locate_job *job, const dt_st_tensor *found, const dt_tensor *t, dt_stored_location *location)
{
    const char *path = job->s.files[found->file];
    dt_tensor of = *t;
    bool done;
    DT_TRY(locate_bitsandbytes(job, found, t, location, &done));
    if (done) return DT_OK;
    const bool turned = turn(found, &of);
    DT_TRY(dt_stored_check_shape(path, found->name, &of, found->n_dims, found->shape));
    if (dt_stored_is_fp8(found))
        DT_TRY(take_fp8(job, found, &of, location));
    else {
        DT_CHECK(found->type != DT_ST_OTHER, DT_ERR_DATA,
                 "%s: tensor `%s`: expected F32, F16, BF16 or F8_E4M3, found %s", path, found->name, found->dtype);
        location->type = (int32_t)found->type;
        if (turned)
            location->packed = (dt_packed){.form = DT_PACKED_PLAIN,
                                           .bits = 8 * (int32_t)dt_st_type_size(found->type),
                                           .n_rows = of.shape[1],
                                           .n_cols = of.shape[2]};
        locate_mark(job, found, NULL, location);
    }
    location->packed.turned = turned;
    return DT_OK;
}

/* Locate a matrix of an expert in a fused tensor in MXFP4: codes NAME_blocks [experts, out, in / 32, 16] and scales
 * NAME_scales [experts, out, in / 32]. *is_there: the file has it. */
static dt_err take_mxfp4(locate_job *job, const dt_tensor *t, const char *fused, dt_stored_location *location,
                         bool *is_there)
{
    char name[2][DT_NAME_MAX + 8];
    const dt_st_tensor *found[2];
    snprintf(name[0], sizeof name[0], "%s_blocks", fused);
    snprintf(name[1], sizeof name[1], "%s_scales", fused);
    for (int i = 0; i < 2; i++) found[i] = dt_stored_find(&job->s, name[i]);
    *is_there = t->fused.name && t->n_dims == 2 && (found[0] || found[1]);
    if (!*is_there) return DT_OK;
    for (int i = 0; i < 2; i++) DT_CHECK(found[i], DT_ERR_DATA, "%s: tensor `%s` is missing", job->path, name[i]);
    const int64_t n_in = t->fused.shape[t->in_first ? 1 : 2], n_out = t->fused.shape[t->in_first ? 2 : 1],
                  shape[] = {t->fused.shape[0], n_out, n_in / 32, 16};
    DT_CHECK(n_in % 32 == 0, DT_ERR_DATA,
             "%s: tensor `%s`: expected a multiple of 32 inputs of each expert, found %lld",
             job->s.files[found[0]->file], name[0], (long long)n_in);
    for (int i = 0; i < 2; i++) {
        DT_TRY(locate_check_shape(job, found[i], 4 - i, shape));
        DT_CHECK(strcmp(found[i]->dtype, "U8") == 0, DT_ERR_DATA, "%s: tensor `%s`: expected U8, found %s",
                 job->s.files[found[i]->file], found[i]->name, found[i]->dtype);
    }
    location->type = DT_ST_BF16;
    location->packed = (dt_packed){.form = DT_PACKED_MXFP4,
                                   .bits = 4,
                                   .first = t->fused.first,
                                   .n_rows = n_out,
                                   .n_cols = n_in,
                                   .block_rows = 1,
                                   .block_cols = 32,
                                   .scales_type = DT_ST_U8,
                                   .turned = t->in_first};
    locate_mark(job, found[0], found[1], location);
    return DT_OK;
}

/* Explains a missing or an unexpected tensor. */
static const char *hint(const locate_job *job, const char *name)
{
    if (dt_stored_section_of(name) == DT_STORED_PROJECTOR && !job->has[DT_STORED_LANGUAGE])
        return "; the projector's type differs from vision.projector_type";
    return dt_stored_head_hint(name, dt_safetensors_find(&job->s, DT_STORED_SCORE));
}

/* The tensor that contains t; *of: t, or the fused tensor. NULL: none. */
static const dt_st_tensor *find(const locate_job *job, const dt_tensor *t, dt_tensor *of)
{
    const dt_st_tensor *found = dt_stored_find(&job->s, t->name);
    *of = *t;
    if (found || !t->fused.name) return found;
    *of = dt_tensor_fused(t);
    return dt_stored_find(&job->s, of->name);
}

/* The first element of t in a fused tensor whose matrices are transposed: its rows are columns there. */
static int64_t turned_first(const dt_tensor *t)
{
    const int64_t matrix = t->fused.shape[1] * t->fused.shape[2], within = t->fused.first % matrix;
    return t->fused.first - within + within / t->fused.shape[2];
}

static dt_err locate_plain(locate_job *job, const dt_stored_slot *slot, dt_stored_location *location)
{
    dt_tensor plain, of;
    bool packed = false;
    const dt_tensor *t = dt_stored_plain(slot, &plain).tensor;
    const dt_st_tensor *found = find(job, t, &of);
    *location = (dt_stored_location){.quantise = slot->tensor->part >= DT_CODES};
    if (!found) DT_TRY(take_mxfp4(job, t, of.name, location, &packed));
    if (packed) return DT_OK;
    location->kept = !found && dt_stored_may_stay(slot);
    if (location->kept) return DT_OK;
    DT_CHECK(found, DT_ERR_DATA, "%s: tensor `%s` is missing%s", job->s.n_files == 1 ? job->s.files[0] : job->path,
             t->fused.saved || job->own_code ? of.name : t->name, hint(job, t->name));
    DT_TRY(take(job, found, &of, location));
    job->own_code = job->own_code || (t->fused.own_code && strcmp(of.name, t->name) != 0);
    if (of.n_elems == t->n_elems) return DT_OK;
    location->run = t->fused.run, location->stride = t->fused.stride;
    if (location->packed.turned)
        location->packed.first = turned_first(t);
    else if (location->packed.form != DT_PACKED_NOT)
        location->packed.first = t->fused.first;
    else
        location->offset += t->fused.first * (int64_t)dt_st_type_size(found->type);
    return DT_OK;
}

static dt_err locate_slot(locate_job *job, const dt_stored_slot *slot, dt_stored_location *location)
{
    DT_TRY(locate_plain(job, slot, location));
    locate_as_stored(job, slot, location);
    return DT_OK;
}

static dt_err locate_head(locate_job *job, const dt_tensor *embed, dt_stored_map *map)
{
    char name[DT_NAME_MAX];
    dt_stored_name_head(embed, name);
    const dt_st_tensor *head = dt_stored_find(&job->s, name);
    if (!head && embed->fused.head) {
        snprintf(name, sizeof name, "%s.weight", embed->fused.head);
        head = dt_stored_find(&job->s, name);
    }
    if (!head) return DT_OK;
    map->has_head = true;
    return take(job, head, embed, &map->head);
}

/* Is it a tensor of a layer for multi-token prediction, which follows the blocks and is numbered like them? */
static bool is_of_prediction(const locate_job *job, const char *name)
{
    char other[2 * DT_NAME_MAX];
    int64_t layer;
    int end = 0;
    if (sscanf(name, "model.layers.%" SCNd64 ".%n", &layer, &end) < 1 || end == 0) return false;
    snprintf(other, sizeof other, "model.layers.%" PRId64 ".eh_proj.weight", layer);
    return dt_safetensors_find(&job->s, other) != NULL;
}

/* A part of a multimodal model whose text model is read alone, or of multi-token prediction. */
static bool is_not_text(const locate_job *job, const char *name)
{
    return dt_stored_is_not_text(name) || is_of_prediction(job, name) ||
           (job->text && dt_stored_section_of(name) != DT_STORED_LANGUAGE);
}

static bool may_be_left(const locate_job *job, const char *name, const dt_stored_slot *slots, int n_slots)
{
    if (job->of_tower) return dt_stored_is_outside_tower(name);
    if (!job->text && strstr(name, "visual.")) return false;
    return !job->has[dt_stored_section_of(name)] || dt_stored_is_ignored(name) || is_not_text(job, name) ||
           dt_stored_is_replaced(slots, n_slots, name);
}

/* ---- names with a wrapper's prefix ------------------------------------------------------------------------------- */

/* Does the directory have all names? A missing head of a reward model is accepted here, because it has its own
 * message. */
static bool has_all(const locate_job *job, const dt_stored_slot *slots, int n_slots)
{
    const bool scored = dt_safetensors_find(&job->s, DT_STORED_SCORE);
    for (int i = 0; i < n_slots; i++) {
        char packed[DT_NAME_MAX + 8];
        dt_tensor plain, of;
        const dt_tensor *t = dt_stored_plain(&slots[i], &plain).tensor;
        const char *name = t->name;
        if (!job->has[dt_stored_section_of(name)] || dt_stored_may_stay(&slots[i])) continue;
        if (find(job, t, &of)) continue;
        snprintf(packed, sizeof packed, "%s_blocks", of.name);
        if (!dt_stored_find(&job->s, packed) && !(scored && strcmp(name, DT_STORED_HEAD) == 0)) return false;
    }
    return true;
}

/* Length of the prefix before `name` in `found`; 0: another name. */
static size_t prefix_len(const char *found, const char *name)
{
    const size_t n = strlen(found), m = strlen(name);
    return n > m && found[n - m - 1] == '.' && strcmp(found + n - m, name) == 0 ? n - m : 0;
}

/* The part of a module path that a wrapper has added to a name; NULL: none. */
static const char *wrapper_in(const char *name)
{
    static const char *const parts[] = {"_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strstr(name, parts[i])) return parts[i];
    return NULL;
}

/* Guess the common prefix of the file's names from one expected name; "": none is known. */
static void guess_prefix(const locate_job *job, const char *name, char prefix[DT_NAME_MAX])
{
    const char *bare = strchr(name, '.') ? strchr(name, '.') + 1 : name;
    size_t n = 0;
    *prefix = '\0';
    for (int v = dt_stored_find(&job->s, name) ? 2 : 0; v < 2 && n == 0; v++)
        for (int i = 0; i < job->s.n_tensors && n == 0; i++) {
            n = prefix_len(job->s.tensors[i].name, v ? bare : name);
            if (n > 0) snprintf(prefix, DT_NAME_MAX, "%.*s", (int)n, job->s.tensors[i].name);
        }
    for (int i = 0; i < job->s.n_tensors && n == 0; i++) {
        const char *part = wrapper_in(job->s.tensors[i].name);
        if (part) n = (size_t)snprintf(prefix, DT_NAME_MAX, "%s", part);
    }
}

/* Reject names with a common prefix and explain how to remove it. */
static dt_err check_prefix(locate_job *job, const dt_stored_slot *slots, int n_slots)
{
    char prefix[DT_NAME_MAX], example[DT_NAME_MAX];
    if (has_all(job, slots, n_slots) || n_slots == 0) return DT_OK;
    for (int i = 0; i < job->s.n_tensors; i++)
        DT_CHECK(!dt_stored_is_unmerged(job->s.tensors[i].name), DT_ERR_DATA,
                 "%s: tensor `%.200s`: the weights were saved with unmerged PEFT adapters; merge them with PEFT "
                 "(merge_and_unload) and save the model again, or save the adapters separately and give both "
                 "(lora.path, --adapter)",
                 job->s.files[job->s.tensors[i].file], job->s.tensors[i].name);
    guess_prefix(job, slots[0].tensor->name, prefix);
    if (!*prefix) return DT_OK; /* the names have another problem, which is reported later */
    snprintf(example, sizeof example, "%s", job->s.tensors[0].name);
    for (int i = 0; i < job->s.n_tensors; i++)
        if (strstr(job->s.tensors[i].name, prefix))
            snprintf(example, sizeof example, "%s", job->s.tensors[i].name), i = job->s.n_tensors;
    if (dt_stored_strip(&job->s, prefix) != DT_OK || !has_all(job, slots, n_slots)) {
        dt_error_clear();
        return DT_OK;
    }
    return dt_fail(DT_ERR_DATA,
                   "%s: tensor `%s`: names contain the prefix `%s`, because the weights were saved from inside a "
                   "wrapper; `dtrain-convert --to hf --strip-prefix %s %s TO` writes the model without it",
                   job->path, example, prefix, prefix, job->path);
}

static void report_not_text(const locate_job *job)
{
    int n = 0;
    for (int i = 0; i < job->s.n_tensors; i++) n += !job->used[i] && is_not_text(job, job->s.tensors[i].name);
    if (n > 0)
        DT_INFO("%s: reads the text model only, without %d tensors of the vision tower, its projector or multi-token "
                "prediction",
                job->path, n);
}

static dt_err locate_all(locate_job *job, const dt_stored_slot *slots, int n_slots, dt_stored_map *map)
{
    const dt_safetensors *s = &job->s;
    job->text = true;
    for (int i = 0; i < n_slots && job->text; i++)
        job->text = dt_stored_section_of(slots[i].tensor->name) == DT_STORED_LANGUAGE;
    for (int f = 0; f < s->n_files; f++) DT_TRY(dt_stored_add_file(map, s->files[f]));
    if (!job->of_tower) DT_TRY(check_prefix(job, slots, n_slots));
    for (int i = 0; i < n_slots; i++)
        if (job->has[dt_stored_section_of(slots[i].tensor->name)])
            DT_TRY(locate_slot(job, &slots[i], &map->locations[i]));
    if (map->embed >= 0 && job->has[DT_STORED_LANGUAGE]) DT_TRY(locate_head(job, slots[map->embed].tensor, map));
    for (int i = 0; i < s->n_tensors; i++)
        DT_CHECK(job->used[i] || may_be_left(job, s->tensors[i].name, slots, n_slots), DT_ERR_DATA,
                 "%s: tensor `%.200s`: this model has no such tensor%s", s->files[s->tensors[i].file],
                 s->tensors[i].name, hint(job, s->tensors[i].name));
    report_not_text(job);
    locate_report_kept(job);
    return DT_OK;
}

/* Locate the slots in one directory; *n_files counts files of all directories. */
static dt_err locate_in(locate_job *job, const dt_stored_slot *slots, int n_slots, dt_stored_map *map, int *n_files)
{
    job->first_file = *n_files;
    dt_err err = dt_safetensors_open(&job->s, job->path);
    if (err == DT_OK && job->prefix) err = dt_stored_strip(&job->s, job->prefix);
    if (err == DT_OK && !(job->used = calloc((size_t)job->s.n_tensors + 1, sizeof *job->used)))
        err = dt_fail(DT_ERR_MEMORY, "%s: out of memory for a list of %d tensors", job->path, job->s.n_tensors);
    if (err == DT_OK) err = locate_all(job, slots, n_slots, map);
    *n_files += job->s.n_files;
    free(job->used);
    dt_safetensors_close(&job->s);
    return err;
}

dt_err dt_stored_locate_directory(const char *dir, const dt_stored_slot *slots, int n_slots, dt_stored_map *map)
{
    const dt_stored_parts one = {0}, *parts = n_slots > 0 && slots[0].of->parts ? slots[0].of->parts : &one;
    locate_job whole = {.path = dir, .prefix = parts->prefix, .has = {true, !parts->tower, !parts->projector}},
               tower = {.path = parts->tower, .has = {[DT_STORED_TOWER] = true}, .of_tower = true},
               projector = {.path = parts->projector, .has = {[DT_STORED_PROJECTOR] = true}};
    int n_files = 0;
    map->embed = dt_stored_tied_embedding(slots, n_slots);
    DT_TRY(locate_in(&whole, slots, n_slots, map, &n_files));
    if (parts->tower) DT_TRY(locate_in(&tower, slots, n_slots, map, &n_files));
    return parts->projector ? locate_in(&projector, slots, n_slots, map, &n_files) : DT_OK;
}
