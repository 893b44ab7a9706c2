/* hdf5_store.c - dtrain's own datasets. HDF5 locates the arrays, which are then read with pread. If every array is
 * contiguous, the HDF5 handle is closed again. A training run then holds one descriptor per file and never takes HDF5's
 * lock. */
#include "store.h"
#include "../kinds/kinds.h"
#include "blocks.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT_VERSION = 1 };

/* Open while an array needs HDF5. */
static hid_t file_of(const dt_dataset *d) { return *(hid_t *)d->store_self; }

/* Text and JSON have no zero byte at the beginning; an HDF5 file has one within nine bytes. */
static bool is_hdf5(const char *path, const char *head, size_t n_head)
{
    return n_head == 0 || memchr(head, 0, n_head);
}

static dt_err read_kind(dt_dataset *d)
{
    char *text = NULL;
    DT_TRY(dt_h5_read_text(file_of(d), d->path, "kind", &text));
    char names[DT_KIND_NAMES_SIZE];
    int k = 0;
    while (k < DT_N_DATASET_KINDS && strcmp(text, dt_dataset_kind_name((dt_dataset_kind)k)) != 0) k++;
    d->info.kind = (dt_dataset_kind)k;
    d->kind = k < DT_N_DATASET_KINDS ? dt_kind_of(d->info.kind) : NULL;
    const dt_err err = d->kind ? DT_OK
                               : dt_fail(DT_ERR_DATA, "%s: attribute kind: expected %s, found \"%s\"", d->path,
                                         dt_kind_names(names), text);
    free(text);
    return err;
}

static dt_err read_attributes(dt_dataset *d)
{
    char *format = NULL;
    DT_CHECK(dt_h5_has(file_of(d), "format"), DT_ERR_DATA,
             "%s: attribute format is missing, so this is not a dataset of dtrain; create one with dtrain-data",
             d->path);
    DT_TRY(dt_h5_read_text(file_of(d), d->path, "format", &format));
    dt_err err = DT_OK;
    if (strcmp(format, "dtrain-dataset") != 0)
        err = dt_fail(DT_ERR_DATA, "%s: attribute format: expected \"dtrain-dataset\", found \"%s\"", d->path, format);
    free(format);
    if (err != DT_OK) return err;

    int64_t version = 0;
    DT_TRY(dt_h5_read_i64(file_of(d), d->path, "version", &version));
    DT_CHECK(version == FORMAT_VERSION, DT_ERR_DATA, "%s: attribute version: expected %d, found %" PRId64 "%s", d->path,
             FORMAT_VERSION, version, version > FORMAT_VERSION ? " (written by a later dtrain)" : "");
    DT_TRY(read_kind(d));
    DT_TRY(dt_h5_read_i64(file_of(d), d->path, "vocab_size", &d->info.vocab_size));
    DT_CHECK(d->info.vocab_size >= 1 && d->info.vocab_size <= INT32_MAX, DT_ERR_DATA,
             "%s: attribute vocab_size: expected 1 to %d, found %" PRId64, d->path, INT32_MAX, d->info.vocab_size);
    if (dt_h5_has(file_of(d), "tokenizer")) DT_TRY(dt_h5_read_text(file_of(d), d->path, "tokenizer", &d->tokenizer));
    if (dt_h5_has(file_of(d), "chat_template"))
        DT_TRY(dt_h5_read_text(file_of(d), d->path, "chat_template", &d->chat_template));
    return DT_OK;
}

static dt_err read_image_attributes(dt_dataset *d)
{
    dt_image_form *form = &d->info.images;
    int64_t token = -1;
    DT_TRY(dt_h5_read_i64(file_of(d), d->path, "image_token", &token));
    DT_CHECK(token >= 0 && token < d->info.vocab_size, DT_ERR_DATA,
             "%s: attribute image_token: expected a token id below vocab_size = %" PRId64 ", found %" PRId64, d->path,
             d->info.vocab_size, token);
    form->token = (int32_t)token;
    DT_TRY(dt_h5_read_i64(file_of(d), d->path, "image_tokens", &form->n_tokens));
    DT_CHECK(form->n_tokens >= 1 && form->n_tokens <= DT_MAX_IMAGE_TOKENS, DT_ERR_DATA,
             "%s: attribute image_tokens: expected 1 to %d, found %" PRId64, d->path, DT_MAX_IMAGE_TOKENS,
             form->n_tokens);
    if (dt_h5_has(file_of(d), "preprocessor"))
        DT_TRY(dt_h5_read_text(file_of(d), d->path, "preprocessor", &d->preprocessor));
    return DT_OK;
}

static bool has_array(const dt_dataset *d, const char *name)
{
    const char *slash = strchr(name, '/');
    char group[32];
    if (slash && (snprintf(group, sizeof group, "%.*s", (int)(slash - name), name),
                  H5Lexists(file_of(d), group, H5P_DEFAULT) <= 0))
        return false;
    return H5Lexists(file_of(d), name, H5P_DEFAULT) > 0;
}

/* Find the arrays of the file that its kind uses. Of two arrays that belong together, either one requires both. */
static void find_columns(dt_dataset *d, bool has[DT_N_ARRAYS])
{
    static const dt_column together[][2] = {{DT_COL_SECOND_TOKENS, DT_COL_SECOND_OFFSETS},
                                            {DT_COL_SAFETY, DT_COL_SECOND_SAFETY},
                                            {DT_COL_RECORDS, DT_COL_RECORD_OFFSETS},
                                            {DT_COL_PIXELS, DT_COL_IMAGE_OFFSETS}};
    dt_dataset_info *i = &d->info;
    for (int c = 0; c < DT_N_ARRAYS; c++) {
        const struct dt_kind_column *of = &d->kind->column[c];
        has[c] = of->name && (!of->optional || has_array(d, of->name));
    }
    for (size_t k = 0; k < sizeof together / sizeof together[0]; k++)
        has[together[k][0]] = has[together[k][1]] = has[together[k][0]] || has[together[k][1]];
    i->has_weights = has[DT_COL_WEIGHTS];
    i->has_margins = has[DT_COL_MARGINS];
    i->has_safety = has[DT_COL_SAFETY];
    i->has_flags = has[DT_COL_FLAGS];
    i->has_answers = !d->kind->answers && has[DT_COL_SECOND_TOKENS];
    i->has_records = has[DT_COL_RECORDS];
    i->has_images = has[DT_COL_PIXELS];
    i->images.grids = has[DT_COL_GRIDS];
}

/* Must be called with the HDF5 lock held. */
static dt_err open_head(dt_dataset *d, bool has[DT_N_ARRAYS])
{
    DT_TRY(dt_h5_open(d->path, d->store_self, &d->info.sealed));
    DT_TRY(read_attributes(d));
    if (d->kind->read_head) DT_TRY(d->kind->read_head(d, file_of(d)));
    find_columns(d, has);
    return d->info.has_images ? read_image_attributes(d) : DT_OK;
}

static dt_err open_one(dt_dataset *d, dt_array *a, const char *name, int types)
{
    return dt_array_open(a, file_of(d), d->fd, d->path, name, types);
}

static dt_err check_offset_ends(const dt_dataset *d, int part)
{
    const dt_array *offsets = &d->column[dt_part_offsets(part)], *elements = &d->column[dt_part_elements(part)];
    DT_CHECK(offsets->n_elems >= 1, DT_ERR_DATA, "%s: %s: expected at least one element, found none", d->path,
             offsets->name);
    uint64_t first = 0, last = 0;
    DT_TRY(dt_array_read(offsets, 0, 1, &first));
    DT_TRY(dt_array_read(offsets, offsets->n_elems - 1, 1, &last));
    DT_CHECK(first == 0, DT_ERR_DATA, "%s: %s[0]: expected 0, found %" PRIu64, d->path, offsets->name, first);
    DT_CHECK(last == (uint64_t)elements->n_elems, DT_ERR_DATA,
             "%s: %s[%" PRId64 "]: expected the number of %s, %" PRId64 ", found %" PRIu64, d->path, offsets->name,
             offsets->n_elems - 1, dt_part_words(part), elements->n_elems, last);
    return DT_OK;
}

static dt_err check_length(const dt_dataset *d, const dt_array *a, int64_t n, const char *of)
{
    DT_CHECK(a->n_elems == n, DT_ERR_DATA, "%s: %s: expected one element for each of %" PRId64 " %s, found %" PRId64,
             d->path, a->name, n, of, a->n_elems);
    return DT_OK;
}

/* Columns are opened in their order: the number of samples is known after the first offsets. */
static dt_err open_column(dt_dataset *d, int c)
{
    const dt_column_form *f = &dt_columns[c];
    dt_array *a = &d->column[c];
    DT_TRY(open_one(d, a, d->kind->column[c].name, f->types));
    if (f->per == DT_PER_SAMPLE) return check_length(d, a, d->info.n_documents, "samples");
    if (c == DT_COL_MASK) return check_length(d, a, d->column[DT_COL_TOKENS].n_elems, "tokens");
    if (f->per == DT_PER_TOKEN) return DT_OK;
    DT_TRY(check_offset_ends(d, f->part));
    if (c == DT_COL_OFFSETS) d->info.n_documents = a->n_elems - 1;
    return check_length(d, a, d->info.n_documents + 1, d->kind->column[DT_COL_OFFSETS].name);
}

/* If the file has block checksums, every array is verified as it is read. */
static dt_err attach_blocks(dt_dataset *d)
{
    dt_h5_lock();
    d->info.has_block_checksums = has_array(d, "block_checksums");
    dt_h5_unlock();
    if (!d->info.has_block_checksums) return DT_OK;
    dt_array sums;
    dt_err err = open_one(d, &sums, "block_checksums", DT_ARRAY_U64);
    for (dt_array *a = d->column; a < d->column + DT_N_ARRAYS && err == DT_OK; a++) {
        if (!a->path) continue;
        err = dt_blocks_attach(a, &sums);
        d->info.has_block_checksums &= a->verified || a->n_elems == 0;
    }
    dt_array_close(&sums);
    return err;
}

static void hdf5_close(dt_dataset *d)
{
    if (!d->store_self) return;
    dt_h5_lock();
    if (file_of(d) >= 0) H5Fclose(file_of(d));
    dt_h5_unlock();
    free(d->store_self);
    d->store_self = NULL;
}

static dt_err hdf5_open(dt_dataset *d)
{
    hid_t *file = malloc(sizeof *file);
    DT_CHECK(file, DT_ERR_MEMORY, "%s: no memory to open the dataset", d->path);
    *file = H5I_INVALID_HID;
    d->store_self = file;
    bool has[DT_N_ARRAYS];
    dt_h5_lock();
    const dt_err err = open_head(d, has);
    dt_h5_unlock();
    DT_TRY(err);
    for (int c = 0; c < DT_N_ARRAYS; c++)
        if (has[c]) DT_TRY(open_column(d, c));
    DT_TRY(attach_blocks(d));
    bool needs_hdf5 = false;
    d->info.has_checksums = true;
    for (const dt_array *a = d->column; a < d->column + DT_N_ARRAYS; a++) {
        if (!a->path) continue;
        needs_hdf5 |= a->offset < 0;
        d->info.has_checksums &= a->has_checksum;
    }
    d->info.token_type = d->column[DT_COL_TOKENS].elem_size == 2 ? "uint16" : "uint32";
    if (!needs_hdf5) hdf5_close(d);
    return DT_OK;
}

const dt_store dt_store_hdf5 = {.is = is_hdf5, .open = hdf5_open, .close = hdf5_close};
