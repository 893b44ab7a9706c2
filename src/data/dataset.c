/* dataset.c - a dataset file is opened with open(2), so that arrays can be read with pread, and with HDF5, which knows where they are. When every array
 * is contiguous HDF5's handle is closed again: an open training run then holds one descriptor a file and no lock of HDF5. */
#include "dataset_file.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FORMAT_VERSION = 1, BLOCK_DOCUMENTS = 1 << 16, HEAD_NBYTES = 1 << 16 };

const char *dt_dataset_kind_name(dt_dataset_kind kind) { return kind == DT_DATASET_SFT ? "sft" : "tokens"; }

/* ---- opening ----------------------------------------------------------------------------------------------------------- */

static dt_err open_plain(dt_dataset *d)
{
    d->fd = open(d->path, O_RDONLY | O_CLOEXEC);
    DT_CHECK(d->fd >= 0, DT_ERR_DATA, "%s: cannot open dataset: %s", d->path, strerror(errno));
    struct stat st;
    DT_CHECK(fstat(d->fd, &st) == 0, DT_ERR_DATA, "%s: %s", d->path, strerror(errno));
    DT_CHECK(S_ISREG(st.st_mode), DT_ERR_DATA, "%s: expected a dataset file, found a %s", d->path,
             S_ISDIR(st.st_mode) ? "folder" : "special file");
    DT_CHECK(st.st_size > 0, DT_ERR_DATA, "%s: the file is empty", d->path);
    d->file_nbytes = (int64_t)st.st_size;
    return DT_OK;
}

/* File locks are left out where the file system has none (some parallel ones): reading needs none. */
static dt_err open_hdf5(dt_dataset *d)
{
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (access < 0) return dt_h5_fail(DT_ERR_FAULT, d->path, "open");
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
#if H5_VERSION_GE(1, 10, 7)
    H5Pset_file_locking(access, true, true);
#endif
    d->file = H5Fopen(d->path, H5F_ACC_RDONLY, access);
    const dt_err err = d->file < 0 ? dt_h5_fail(DT_ERR_DATA, d->path, "not a readable HDF5 file") : DT_OK;
    H5Pclose(access);
    return err;
}

static dt_err read_kind(dt_dataset *d)
{
    char *text = NULL;
    DT_TRY(dt_h5_read_text(d->file, d->path, "kind", &text));
    const bool tokens = strcmp(text, "tokens") == 0, sft = strcmp(text, "sft") == 0;
    dt_err err = DT_OK;
    if (!tokens && !sft) err = dt_fail(DT_ERR_DATA, "%s: attribute kind: expected tokens or sft, found \"%s\"", d->path, text);
    d->info.kind = sft ? DT_DATASET_SFT : DT_DATASET_TOKENS;
    free(text);
    return err;
}

static dt_err read_attributes(dt_dataset *d)
{
    char *format = NULL;
    DT_CHECK(dt_h5_has(d->file, "format"), DT_ERR_DATA,
             "%s: no attribute format: not a dataset file of dtrain (dtrain-data makes one)", d->path);
    DT_TRY(dt_h5_read_text(d->file, d->path, "format", &format));
    dt_err err = DT_OK;
    if (strcmp(format, "dtrain-dataset") != 0)
        err = dt_fail(DT_ERR_DATA, "%s: attribute format: expected \"dtrain-dataset\", found \"%s\"", d->path, format);
    free(format);
    if (err != DT_OK) return err;

    int64_t version = 0;
    DT_TRY(dt_h5_read_i64(d->file, d->path, "version", &version));
    DT_CHECK(version == FORMAT_VERSION, DT_ERR_DATA, "%s: attribute version: expected %d, found %" PRId64 "%s", d->path,
             FORMAT_VERSION, version, version > FORMAT_VERSION ? " (made by a later dtrain)" : "");
    DT_TRY(read_kind(d));
    DT_TRY(dt_h5_read_i64(d->file, d->path, "vocab_size", &d->info.vocab_size));
    DT_CHECK(d->info.vocab_size >= 1 && d->info.vocab_size <= INT32_MAX, DT_ERR_DATA,
             "%s: attribute vocab_size: expected 1 to %d, found %" PRId64, d->path, INT32_MAX, d->info.vocab_size);
    if (dt_h5_has(d->file, "tokenizer")) DT_TRY(dt_h5_read_text(d->file, d->path, "tokenizer", &d->tokenizer));
    return DT_OK;
}

/* Runs under the lock; says which of the optional arrays are there. */
static dt_err open_head(dt_dataset *d, bool *has_offsets, bool *has_weights)
{
    DT_TRY(open_hdf5(d));
    DT_TRY(read_attributes(d));
    *has_offsets = H5Lexists(d->file, "offsets", H5P_DEFAULT) > 0;
    *has_weights = d->info.kind == DT_DATASET_SFT && H5Lexists(d->file, "weights", H5P_DEFAULT) > 0;
    return DT_OK;
}

static dt_err open_one(dt_dataset *d, dt_array *a, const char *name, int types)
{
    return dt_array_open(a, d->file, d->fd, d->file_nbytes, d->path, name, types);
}

static dt_err check_offset_ends(dt_dataset *d)
{
    DT_CHECK(d->offsets.n_elems >= 1, DT_ERR_DATA, "%s: offsets: expected at least one element, found none", d->path);
    uint64_t first = 0, last = 0;
    DT_TRY(dt_array_read(&d->offsets, 0, 1, &first));
    DT_TRY(dt_array_read(&d->offsets, d->offsets.n_elems - 1, 1, &last));
    DT_CHECK(first == 0, DT_ERR_DATA, "%s: offsets[0]: expected 0, found %" PRIu64, d->path, first);
    DT_CHECK(last == (uint64_t)d->tokens.n_elems, DT_ERR_DATA,
             "%s: offsets[%" PRId64 "]: expected the number of tokens, %" PRId64 ", found %" PRIu64, d->path,
             d->offsets.n_elems - 1, d->tokens.n_elems, last);
    d->info.n_documents = d->offsets.n_elems - 1;
    return DT_OK;
}

static dt_err open_arrays(dt_dataset *d, bool has_offsets, bool has_weights)
{
    const bool sft = d->info.kind == DT_DATASET_SFT;
    DT_TRY(open_one(d, &d->tokens, "tokens", DT_ARRAY_U16 | DT_ARRAY_U32));
    if (has_offsets || sft) {
        DT_TRY(open_one(d, &d->offsets, "offsets", DT_ARRAY_U64));
        DT_TRY(check_offset_ends(d));
    }
    if (sft) {
        DT_TRY(open_one(d, &d->loss_mask, "loss_mask", DT_ARRAY_U8));
        DT_CHECK(d->loss_mask.n_elems == d->tokens.n_elems, DT_ERR_DATA,
                 "%s: loss_mask: expected one element for each of %" PRId64 " tokens, found %" PRId64, d->path, d->tokens.n_elems,
                 d->loss_mask.n_elems);
    }
    if (has_weights) {
        DT_TRY(open_one(d, &d->weights, "weights", DT_ARRAY_F32));
        DT_CHECK(d->weights.n_elems == d->info.n_documents, DT_ERR_DATA,
                 "%s: weights: expected one element for each of %" PRId64 " samples, found %" PRId64, d->path,
                 d->info.n_documents, d->weights.n_elems);
    }
    return DT_OK;
}

static void close_hdf5(dt_dataset *d)
{
    dt_h5_lock();
    if (d->file >= 0) H5Fclose(d->file);
    dt_h5_unlock();
    d->file = H5I_INVALID_HID;
}

static dt_err open_all(dt_dataset *d)
{
    DT_TRY(open_plain(d));
    bool has_offsets = false, has_weights = false;
    dt_h5_lock();
    const dt_err err = open_head(d, &has_offsets, &has_weights);
    dt_h5_unlock();
    DT_TRY(err);
    DT_TRY(open_arrays(d, has_offsets, has_weights));

    const dt_array *arrays[] = {&d->tokens, &d->offsets, &d->loss_mask, &d->weights};
    bool needs_hdf5 = false;
    d->info.has_checksums = true;
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        if (!arrays[i]->path) continue;
        needs_hdf5 |= arrays[i]->offset < 0;
        d->info.has_checksums &= arrays[i]->has_checksum;
    }
    if (!needs_hdf5) close_hdf5(d);
    d->info.n_tokens = d->tokens.n_elems;
    d->info.token_nbytes = d->tokens.elem_size;
    d->info.has_weights = has_weights;
    d->info.path = d->path;
    d->info.tokenizer = d->tokenizer ? d->tokenizer : "";
    return DT_OK;
}

dt_err dt_dataset_open(dt_dataset **out, const char *path)
{
    *out = NULL;
    dt_dataset *d = calloc(1, sizeof *d);
    char *copy = strdup(path);
    if (!d || !copy) {
        free(d);
        free(copy);
        return dt_fail(DT_ERR_MEMORY, "%s: no memory to open the dataset", path);
    }
    d->path = copy;
    d->fd = -1;
    d->file = H5I_INVALID_HID;
    d->info.n_documents = -1;
    const dt_err err = open_all(d);
    if (err != DT_OK) {
        dt_dataset_close(d);
        return dt_trace(err, __FILE__, __LINE__, "open_all");
    }
    *out = d;
    return DT_OK;
}

void dt_dataset_close(dt_dataset *d)
{
    if (!d) return;
    dt_array_close(&d->tokens);
    dt_array_close(&d->offsets);
    dt_array_close(&d->loss_mask);
    dt_array_close(&d->weights);
    if (d->file >= 0) close_hdf5(d);
    if (d->fd >= 0) close(d->fd);
    free(d->tokenizer);
    free(d->path);
    free(d);
}

const dt_dataset_info *dt_dataset_get_info(const dt_dataset *d) { return &d->info; }

/* ---- reading ----------------------------------------------------------------------------------------------------------- */

dt_err dt_dataset_document(dt_dataset *d, int64_t i, int64_t *first, int64_t *n)
{
    DT_CHECK(d->info.n_documents >= 0, DT_ERR_DATA, "%s: the file has no /offsets: its documents are not marked", d->path);
    DT_CHECK(i >= 0 && i < d->info.n_documents, DT_ERR_USAGE, "%s: expected a number from 0 to %" PRId64 ", found %" PRId64,
             d->path, d->info.n_documents - 1, i);
    uint64_t o[2];
    DT_TRY(dt_array_read(&d->offsets, i, 2, o));
    DT_CHECK(o[0] <= o[1] && o[1] <= (uint64_t)d->tokens.n_elems, DT_ERR_DATA,
             "%s: offsets[%" PRId64 "] = %" PRIu64 " is followed by %" PRIu64 " (of %" PRId64
             " tokens): offsets must not decrease",
             d->path, i, o[0], o[1], d->tokens.n_elems);
    *first = (int64_t)o[0];
    *n = (int64_t)(o[1] - o[0]);
    return DT_OK;
}

/* uint16 in the upper half of the buffer become int32 in place: element i is written at byte 4i after the last element at or before it was read. */
static void widen(int32_t *ids, int64_t n)
{
    const char *from = (const char *)ids + 2 * n;
    for (int64_t i = 0; i < n; i++) {
        uint16_t id;
        memcpy(&id, from + 2 * i, sizeof id);
        ids[i] = id;
    }
}

dt_err dt_dataset_read_tokens(dt_dataset *d, int64_t first, int64_t n, int32_t *ids)
{
    const bool narrow = d->tokens.elem_size == 2;
    DT_TRY(dt_array_read(&d->tokens, first, n, narrow ? (void *)((char *)ids + 2 * n) : (void *)ids));
    if (narrow) widen(ids, n);

    uint32_t largest = 0;
    for (int64_t i = 0; i < n; i++) largest = (uint32_t)ids[i] > largest ? (uint32_t)ids[i] : largest;
    if (largest < (uint32_t)d->info.vocab_size) return DT_OK;
    int64_t bad = 0;
    while ((uint32_t)ids[bad] < (uint32_t)d->info.vocab_size) bad++;
    return dt_fail(DT_ERR_DATA, "%s: tokens[%" PRId64 "] = %" PRIu32 ", expected a token id below vocab_size = %" PRId64, d->path,
                   first + bad, (uint32_t)ids[bad], d->info.vocab_size);
}

dt_err dt_dataset_read_mask(dt_dataset *d, int64_t first, int64_t n, uint8_t *mask)
{
    DT_CHECK(d->info.kind == DT_DATASET_SFT, DT_ERR_ARG, "%s: a dataset of kind tokens has no loss_mask", d->path);
    DT_TRY(dt_array_read(&d->loss_mask, first, n, mask));
    uint8_t all = 0;
    for (int64_t i = 0; i < n; i++) all |= mask[i];
    if (all <= 1) return DT_OK;
    int64_t bad = 0;
    while (mask[bad] <= 1) bad++;
    return dt_fail(DT_ERR_DATA, "%s: loss_mask[%" PRId64 "]: expected 0 or 1, found %u", d->path, first + bad, mask[bad]);
}

dt_err dt_dataset_read_weights(dt_dataset *d, int64_t first, int64_t n, float *weight)
{
    DT_TRY(dt_array_read(&d->weights, first, n, weight));
    for (int64_t i = 0; i < n; i++) /* false for NaN */
        DT_CHECK(weight[i] >= 0 && weight[i] <= 1e6f, DT_ERR_DATA, "%s: weights[%" PRId64 "]: expected 0 to 1e6, found %g",
                 d->path, first + i, (double)weight[i]);
    return DT_OK;
}

dt_err dt_dataset_read_weight(dt_dataset *d, int64_t i, float *weight)
{
    *weight = 1;
    return d->info.has_weights ? dt_dataset_read_weights(d, i, 1, weight) : DT_OK;
}

static dt_err check_block(const dt_dataset *d, int64_t first, int64_t n, const uint64_t *offset)
{
    uint64_t decreases = offset[n] > (uint64_t)d->tokens.n_elems;
    for (int64_t i = 0; i < n; i++) decreases |= offset[i + 1] < offset[i];
    if (!decreases) return DT_OK;
    int64_t bad = 0;
    while (bad < n && offset[bad + 1] >= offset[bad] && offset[bad + 1] <= (uint64_t)d->tokens.n_elems) bad++;
    return dt_fail(DT_ERR_DATA,
                   "%s: offsets[%" PRId64 "] = %" PRIu64 " is followed by %" PRIu64 " (of %" PRId64
                   " tokens): offsets must not decrease",
                   d->path, first + bad, offset[bad], offset[bad + 1], d->tokens.n_elems);
}

dt_err dt_dataset_each_block(dt_dataset *d, dt_documents_fn *fn, void *arg)
{
    uint64_t *offset = malloc((BLOCK_DOCUMENTS + 1) * sizeof *offset);
    DT_CHECK(offset, DT_ERR_MEMORY, "%s: no memory to read /offsets", d->path);
    dt_err err = DT_OK;
    for (int64_t first = 0; first < d->info.n_documents && err == DT_OK; first += BLOCK_DOCUMENTS) {
        const int64_t left = d->info.n_documents - first, n = left < BLOCK_DOCUMENTS ? left : BLOCK_DOCUMENTS;
        err = dt_array_read(&d->offsets, first, n + 1, offset);
        if (err == DT_OK) err = check_block(d, first, n, offset);
        if (err == DT_OK && fn) err = fn(arg, first, n, offset);
    }
    free(offset);
    return err;
}

dt_err dt_dataset_fingerprint(const dt_dataset *d, uint64_t *hash)
{
    char *head = malloc(HEAD_NBYTES);
    DT_CHECK(head, DT_ERR_MEMORY, "%s: no memory to read the head", d->path);
    const ssize_t got = pread(d->fd, head, HEAD_NBYTES, 0);
    uint64_t h = dt_mix64((uint64_t)d->file_nbytes);
    if (got > 0) h = dt_mix64(h ^ dt_checksum(head, 0, got, 1));
    const dt_array *arrays[] = {&d->tokens, &d->offsets, &d->loss_mask,
                                &d->weights}; /* checksums of the whole, where there are any */
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        h = dt_mix64(h ^ dt_mix64((uint64_t)arrays[i]->n_elems) ^ arrays[i]->checksum);
    free(head);
    DT_CHECK(got > 0, DT_ERR_DATA, "%s: cannot read the head: %s", d->path, strerror(errno));
    *hash = h;
    return DT_OK;
}
