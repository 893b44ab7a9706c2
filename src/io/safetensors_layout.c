/* safetensors_layout.c - computes the offset of each tensor of a model to be written. Every process computes the same
 * layout.
 *
 * The header's text equals that of the safetensors library byte for byte: compact JSON, metadata first, tensors sorted
 * by name, padded with spaces to a multiple of 8. A model that dtrain reads and writes without changes is therefore the
 * same file. */
#include "safetensors_private.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t n_elems_of(const dt_st_entry *e)
{
    int64_t n = 1;
    for (int d = 0; d < e->n_dims; d++) n *= e->shape[d];
    return n;
}

static dt_st_type type_of(const dt_st_layout *l, const dt_st_entry *e) { return e->exact ? DT_ST_F32 : l->type; }

static int64_t nbytes_of(const dt_st_layout *l, const dt_st_entry *e)
{
    return n_elems_of(e) * (int64_t)dt_st_type_size(type_of(l, e));
}

/* Assign tensors to files; a full file is closed. */
static void deal_out(dt_st_layout *l, const dt_st_entry *entries, int64_t shard_size)
{
    int64_t filled = 0;
    int in_file = 0;
    l->n_files = 1;
    for (int i = 0; i < l->n_tensors; i++) {
        const int64_t nbytes = nbytes_of(l, &entries[i]);
        if (in_file > 0 && nbytes > shard_size - filled) {
            l->n_files++;
            filled = in_file = 0;
        }
        l->file[i] = l->n_files - 1;
        filled += nbytes;
        in_file++;
    }
}

typedef struct sorted {
    const dt_st_entry *entry;
    int number;
    bool wider; /* than the type of the layout */
} sorted;

/* As the safetensors library: wider types first, then by name. */
static int by_name(const void *a, const void *b)
{
    const int wider = ((const sorted *)b)->wider - ((const sorted *)a)->wider;
    return wider ? wider : strcmp(((const sorted *)a)->entry->name, ((const sorted *)b)->entry->name);
}

static json_t *make_entry(const dt_st_layout *l, const dt_st_entry *e, int64_t begin)
{
    json_t *shape = json_array();
    for (int d = 0; d < e->n_dims; d++) json_array_append_new(shape, json_integer(e->shape[d]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dt_st_type_name(type_of(l, e)), "shape", shape, "data_offsets",
                     (json_int_t)begin, (json_int_t)(begin + nbytes_of(l, e)));
}

/* Build the header of file f, and compute the offsets of its tensors. */
static dt_err make_header(dt_st_layout *l, int f, const sorted *by, int n)
{
    int64_t at = 0;
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    bool whole = root != NULL;
    for (int i = 0; i < n; i++) {
        if (l->file[by[i].number] != f) continue;
        whole &= json_object_set_new(root, by[i].entry->name, make_entry(l, by[i].entry, at)) == 0;
        l->offset[by[i].number] = at;
        at += nbytes_of(l, by[i].entry);
    }
    char *text = whole ? json_dumps(root, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    json_decref(root);
    DT_CHECK(text, DT_ERR_MEMORY, "out of memory for the header of a safetensors file");
    const size_t n_text = strlen(text), len = (8 + n_text + 7) / 8 * 8;
    l->headers[f] = malloc(len);
    if (l->headers[f]) memset(l->headers[f], ' ', len), memcpy(l->headers[f] + 8, text, n_text);
    free(text);
    DT_CHECK(l->headers[f], DT_ERR_MEMORY, "out of memory for the header of a safetensors file");
    for (int i = 0; i < 8; i++) l->headers[f][i] = (char)((len - 8) >> 8 * i & 0xff);
    for (int i = 0; i < n; i++)
        if (l->file[i] == f) l->offset[i] += (int64_t)len;
    l->header_len[f] = len;
    l->size[f] = (int64_t)len + at;
    return DT_OK;
}

static dt_err make_headers(dt_st_layout *l, const dt_st_entry *entries)
{
    sorted *by;
    DT_ALLOC(by, l->n_tensors, "out of memory for a list of %d tensors", l->n_tensors);
    for (int i = 0; i < l->n_tensors; i++) by[i] = (sorted){&entries[i], i, type_of(l, &entries[i]) != l->type};
    qsort(by, (size_t)l->n_tensors, sizeof *by, by_name);
    dt_err err = DT_OK;
    for (int f = 0; f < l->n_files && err == DT_OK; f++) err = make_header(l, f, by, l->n_tensors);
    free(by);
    return err;
}

static dt_err name_files(dt_st_layout *l)
{
    for (int f = 0; f < l->n_files + (l->n_files > 1); f++) {
        const int len = f == l->n_files ? asprintf(&l->names[f], "%s" ST_INDEX_ENDING, l->stem)
                        : l->n_files == 1
                            ? asprintf(&l->names[f], "%s.safetensors", l->stem)
                            : asprintf(&l->names[f], "%s-%05d-of-%05d.safetensors", l->stem, f + 1, l->n_files);
        if (len < 0) l->names[f] = NULL;
        DT_CHECK(len > 0, DT_ERR_MEMORY, "out of memory for the names of %d files", l->n_files);
    }
    return DT_OK;
}

/* Build the index, sorted by tensor name as in transformers. */
static dt_err make_index(dt_st_layout *l, const dt_st_entry *entries)
{
    int64_t total = 0;
    if (l->n_files == 1) return DT_OK;
    json_t *map = json_object();
    for (int i = 0; i < l->n_tensors; i++) {
        total += nbytes_of(l, &entries[i]);
        if (map) json_object_set_new(map, entries[i].name, json_string(l->names[l->file[i]]));
    }
    json_t *root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    l->index = root ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    json_decref(root);
    DT_CHECK(l->index, DT_ERR_MEMORY, "out of memory for the index of %d tensors", l->n_tensors);
    return DT_OK;
}

static dt_err make(dt_st_layout *l, const dt_st_entry *entries, int64_t shard_size)
{
    DT_ALLOC(l->file, l->n_tensors + 1, "out of memory for a list of %d tensors", l->n_tensors);
    DT_ALLOC(l->offset, l->n_tensors + 1, "out of memory for a list of %d tensors", l->n_tensors);
    deal_out(l, entries, shard_size);
    DT_ALLOC(l->names, l->n_files + 1, "out of memory for a list of %d files", l->n_files);
    DT_ALLOC(l->headers, l->n_files, "out of memory for a list of %d files", l->n_files);
    DT_ALLOC(l->header_len, l->n_files, "out of memory for a list of %d files", l->n_files);
    DT_ALLOC(l->size, l->n_files, "out of memory for a list of %d files", l->n_files);
    DT_TRY(name_files(l));
    DT_TRY(make_headers(l, entries));
    return make_index(l, entries);
}

dt_err dt_st_layout_make(dt_st_layout *l, const char *stem, const dt_st_entry *entries, int n_entries, dt_st_type type,
                         int64_t shard_size)
{
    *l = (dt_st_layout){.type = type, .stem = stem, .n_tensors = n_entries};
    DT_EXPECT(type != DT_ST_OTHER && n_entries > 0 && shard_size > 0);
    const dt_err err = make(l, entries, shard_size);
    if (err != DT_OK) dt_st_layout_free(l);
    return err;
}

void dt_st_layout_free(dt_st_layout *l)
{
    for (int f = 0; f < l->n_files; f++) {
        if (l->names) free(l->names[f]);
        if (l->headers) free(l->headers[f]);
    }
    if (l->names) free(l->names[l->n_files]);
    free(l->file);
    free(l->offset);
    free(l->names);
    free(l->headers);
    free(l->header_len);
    free(l->size);
    free(l->index);
    *l = (dt_st_layout){0};
}
