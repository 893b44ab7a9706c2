/* safetensors_set.c - the set of files of a model. Verifies that each tensor is in exactly the file that the index
 * names. */
#include "safetensors_private.h"
#include "dtrain/io/io.h"
#include "dtrain/io/spec.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_INDEX = 100000000 /* bytes */, MAX_FILES = 4096 };

static int by_name(const void *a, const void *b)
{
    return strcmp(((const dt_st_tensor *)a)->name, ((const dt_st_tensor *)b)->name);
}

const dt_st_tensor *dt_safetensors_find(const dt_safetensors *s, const char *name)
{
    const dt_st_tensor key = {.name = (char *)name};
    return s->n_tensors ? bsearch(&key, s->tensors, (size_t)s->n_tensors, sizeof key, by_name) : NULL;
}

static dt_err add_file(dt_safetensors *s, const char *path)
{
    DT_CHECK(s->n_files < MAX_FILES, DT_ERR_DATA, "%s: models of more than %d files are not supported", path,
             (int)MAX_FILES);
    DT_GROW(s->files, s->n_files, "%s: out of memory for the file's name", path);
    DT_COPY_TEXT(s->files[s->n_files], path, "%s: out of memory for the file's name", path);
    s->n_files++;
    return DT_OK;
}

/* Append the tensors of file number f. */
static dt_err add_tensors(dt_safetensors *s, int f)
{
    dt_st_tensor *more = NULL;
    int n = 0;
    dt_err err = dt_st_read_file(s->files[f], &more, &n);
    if (err == DT_OK)
        err = dt_resize(&s->tensors, n <= INT_MAX - s->n_tensors ? s->n_tensors + n : -1, sizeof *more,
                        "%s: out of memory for %d tensors", s->files[f], n);
    for (int i = 0; i < n; i++) {
        more[i].file = f;
        if (err == DT_OK)
            s->tensors[s->n_tensors++] = more[i];
        else
            free(more[i].name);
    }
    free(more);
    return err;
}

/* ---- the index --------------------------------------------------------------------------------------------------- */

/* True for a plain name: an index must not refer to files outside its directory. */
static bool is_plain(const char *name)
{
    return name && name[0] != '\0' && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static int file_of(const dt_safetensors *s, const char *name)
{
    for (int f = 0; f < s->n_files; f++)
        if (strcmp(strrchr(s->files[f], '/') + 1, name) == 0) return f;
    return -1;
}

static dt_err add_files_of_index(dt_safetensors *s, const char *dir, const char *index, const json_t *map)
{
    char path[PATH_MAX];
    const char *tensor;
    json_t *value;
    const char *before = ""; /* adjacent entries are mostly in the same file */
    DT_CHECK(json_is_object(map) && json_object_size(map) > 0, DT_ERR_DATA,
             "%s: weight_map: expected an object that maps tensors to files", index);
    json_object_foreach((json_t *)map, tensor, value)
    {
        const char *name = json_string_value(value);
        DT_CHECK(is_plain(name), DT_ERR_DATA,
                 "%s: tensor `%.200s`: expected the name of a file in the same directory, found %.200s", index, tensor,
                 name ? name : "another value");
        if (strcmp(name, before) == 0 || file_of(s, name) >= 0) continue;
        DT_CHECK(dt_join_path(path, dir, name, ""), DT_ERR_DATA, "%s: the name of file %.200s is too long", index,
                 name);
        DT_TRY(add_file(s, path));
        before = name;
    }
    return DT_OK;
}

/* Each tensor must be in the file that the index names, and in no other. If the number of tensors equals the number of
 * entries, none is missing. */
static dt_err check_index(const dt_safetensors *s, const char *index, const json_t *map)
{
    const char *name;
    json_t *value;
    for (int i = 0; i < s->n_tensors; i++) {
        const dt_st_tensor *t = &s->tensors[i];
        const char *said = json_string_value(json_object_get(map, t->name));
        DT_CHECK(said, DT_ERR_DATA, "%s: tensor `%.200s` is not in %s", s->files[t->file], t->name, index);
        DT_CHECK(strcmp(said, strrchr(s->files[t->file], '/') + 1) == 0, DT_ERR_DATA,
                 "%s: tensor `%.200s` is in this file, but belongs to %.200s according to %s", s->files[t->file],
                 t->name, said, index);
    }
    if ((size_t)s->n_tensors == json_object_size(map)) return DT_OK;
    json_object_foreach((json_t *)map, name, value)
    {
        const int f = file_of(s, json_string_value(value));
        DT_CHECK(dt_safetensors_find(s, name), DT_ERR_DATA,
                 "%s: tensor `%.200s` is missing, but should be in this file according to %s", s->files[f], name,
                 index);
    }
    return DT_OK;
}

static void sort_tensors(dt_safetensors *s)
{
    if (s->n_tensors) qsort(s->tensors, (size_t)s->n_tensors, sizeof *s->tensors, by_name);
}

static dt_err open_index(dt_safetensors *s, const char *dir, const char *index)
{
    dt_spec root;
    DT_TRY(dt_spec_load(&root, index, MAX_INDEX, 0, NULL, NULL));
    const json_t *map = json_object_get(root.value, "weight_map");
    dt_err err = add_files_of_index(s, dir, index, map);
    for (int f = 0; f < s->n_files && err == DT_OK; f++) err = add_tensors(s, f);
    sort_tensors(s);
    if (err == DT_OK) err = check_index(s, index, map);
    dt_spec_unload(&root);
    return err;
}

/* ---- list of files ----------------------------------------------------------------------------------------------- */

static dt_err fail_without_weights(const char *dir)
{
    static const char *const others[] = {"pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5",
                                         "flax_model.msgpack"};
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        DT_CHECK(!dt_is_in(path, dir, others[i]), DT_ERR_DATA,
                 "%s: this weight format is not supported (a pickle may run arbitrary code): expected %s or %s; save "
                 "the model again with save_pretrained(..., safe_serialization=True)",
                 path, ST_SINGLE, ST_INDEX);
    return dt_fail(DT_ERR_DATA, "%s: the weights are missing: expected %s, or several files with %s", dir, ST_SINGLE,
                   ST_INDEX);
}

static dt_err open_one(dt_safetensors *s, const char *path)
{
    DT_TRY(add_file(s, path));
    DT_TRY(add_tensors(s, 0));
    sort_tensors(s);
    return DT_OK;
}

dt_err dt_safetensors_open(dt_safetensors *s, const char *path)
{
    char file[PATH_MAX], index[PATH_MAX];
    if (!dt_is_directory(path)) return open_one(s, path);
    if (dt_is_in(file, path, ST_SINGLE)) {
        if (dt_is_in(index, path, ST_INDEX))
            DT_WARN("%s: found both %s and %s: the weights are read from the first, as in transformers; remove the "
                    "wrong one",
                    path, ST_SINGLE, ST_INDEX);
        return open_one(s, file);
    }
    if (dt_is_in(file, path, ST_INDEX)) return open_index(s, path, file);
    return fail_without_weights(path);
}

void dt_safetensors_close(dt_safetensors *s)
{
    for (int i = 0; i < s->n_tensors; i++) free(s->tensors[i].name);
    for (int f = 0; f < s->n_files; f++) free(s->files[f]);
    free(s->tensors);
    free(s->files);
    *s = (dt_safetensors){0};
}
