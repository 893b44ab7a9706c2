/* dataset.c - a dataset file is opened with open(2), so that arrays can be read with pread, and with HDF5, which knows where they are. When every array
 * is contiguous HDF5's handle is closed again: an open training run then holds one descriptor a file and no lock of HDF5. */
#include "dataset_file.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FORMAT_VERSION = 1, BLOCK_DOCUMENTS = 1 << 16, HEAD_NBYTES = 1 << 16 };

static const char *const kind_names[DT_N_DATASET_KINDS] = {"tokens", "sft", "preference", "prompts"};
const char *dt_dataset_kind_name(dt_dataset_kind kind) { return kind_names[kind]; }

void dt_dataset_arrays(const dt_dataset *d, const dt_array *all[DT_N_ARRAYS])
{
    const dt_array *list[DT_N_ARRAYS] = {&d->tokens,       &d->offsets,       &d->loss_mask,        &d->weights,
                                         &d->other_tokens, &d->other_offsets, &d->prompt_length[0], &d->prompt_length[1],
                                         &d->margins,      &d->safety[0],     &d->safety[1]};
    memcpy(all, list, sizeof list);
}

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
    int k = 0;
    while (k < DT_N_DATASET_KINDS && strcmp(text, kind_names[k]) != 0) k++;
    dt_err err = DT_OK;
    if (k == DT_N_DATASET_KINDS)
        err =
            dt_fail(DT_ERR_DATA, "%s: attribute kind: expected tokens, sft, preference or prompts, found \"%s\"", d->path, text);
    else
        d->info.kind = (dt_dataset_kind)k;
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

static bool has_array(const dt_dataset *d, const char *name)
{
    const char *slash = strchr(name, '/');
    char group[32];
    if (slash && (snprintf(group, sizeof group, "%.*s", (int)(slash - name), name), H5Lexists(d->file, group, H5P_DEFAULT) <= 0))
        return false;
    return H5Lexists(d->file, name, H5P_DEFAULT) > 0;
}

/* Runs under the lock; says which of the optional arrays are there. */
static dt_err open_head(dt_dataset *d, bool *has_offsets)
{
    dt_dataset_info *i = &d->info;
    DT_TRY(open_hdf5(d));
    DT_TRY(read_attributes(d));
    *has_offsets = has_array(d, "offsets");
    i->has_weights = i->kind == DT_DATASET_SFT && has_array(d, "weights");
    i->has_margins = i->kind == DT_DATASET_PREFERENCE && has_array(d, "margins");
    i->has_safety = i->kind == DT_DATASET_PREFERENCE && (has_array(d, "chosen/safety") || has_array(d, "rejected/safety"));
    i->has_answers = i->kind == DT_DATASET_PROMPTS && (has_array(d, "answers/tokens") || has_array(d, "answers/offsets"));
    return DT_OK;
}

static dt_err open_one(dt_dataset *d, dt_array *a, const char *name, int types)
{
    return dt_array_open(a, d->file, d->fd, d->file_nbytes, d->path, name, types);
}

static dt_err check_offset_ends(const dt_dataset *d, const dt_array *offsets, const dt_array *tokens)
{
    DT_CHECK(offsets->n_elems >= 1, DT_ERR_DATA, "%s: %s: expected at least one element, found none", d->path, offsets->name);
    uint64_t first = 0, last = 0;
    DT_TRY(dt_array_read(offsets, 0, 1, &first));
    DT_TRY(dt_array_read(offsets, offsets->n_elems - 1, 1, &last));
    DT_CHECK(first == 0, DT_ERR_DATA, "%s: %s[0]: expected 0, found %" PRIu64, d->path, offsets->name, first);
    DT_CHECK(last == (uint64_t)tokens->n_elems, DT_ERR_DATA,
             "%s: %s[%" PRId64 "]: expected the number of tokens, %" PRId64 ", found %" PRIu64, d->path, offsets->name,
             offsets->n_elems - 1, tokens->n_elems, last);
    return DT_OK;
}

static dt_err check_length(const dt_dataset *d, const dt_array *a, int64_t n, const char *of)
{
    DT_CHECK(a->n_elems == n, DT_ERR_DATA, "%s: %s: expected one element for each of %" PRId64 " %s, found %" PRId64, d->path,
             a->name, n, of, a->n_elems);
    return DT_OK;
}

/* An array with one element a sample. */
static dt_err open_column(dt_dataset *d, dt_array *a, const char *name, int types)
{
    DT_TRY(open_one(d, a, name, types));
    return check_length(d, a, d->info.n_documents, "samples");
}

static dt_err open_side(dt_dataset *d, const char *tokens_name, const char *offsets_name, dt_array *tokens, dt_array *offsets)
{
    DT_TRY(open_one(d, tokens, tokens_name, DT_ARRAY_U16 | DT_ARRAY_U32));
    DT_TRY(open_one(d, offsets, offsets_name, DT_ARRAY_U64));
    return check_offset_ends(d, offsets, tokens);
}

static dt_err open_pairs(dt_dataset *d)
{
    DT_TRY(open_side(d, "chosen/tokens", "chosen/offsets", &d->tokens, &d->offsets));
    d->info.n_documents = d->offsets.n_elems - 1;
    DT_TRY(open_side(d, "rejected/tokens", "rejected/offsets", &d->other_tokens, &d->other_offsets));
    DT_TRY(check_length(d, &d->other_offsets, d->offsets.n_elems, "chosen/offsets"));
    DT_TRY(open_column(d, &d->prompt_length[0], "chosen/prompt_length", DT_ARRAY_U32));
    DT_TRY(open_column(d, &d->prompt_length[1], "rejected/prompt_length", DT_ARRAY_U32));
    if (d->info.has_margins) DT_TRY(open_column(d, &d->margins, "margins", DT_ARRAY_F32));
    if (!d->info.has_safety) return DT_OK;
    DT_TRY(open_column(d, &d->safety[0], "chosen/safety", DT_ARRAY_U8));
    return open_column(d, &d->safety[1], "rejected/safety", DT_ARRAY_U8);
}

static dt_err open_texts(dt_dataset *d, bool has_offsets)
{
    const dt_dataset_kind kind = d->info.kind;
    DT_TRY(open_one(d, &d->tokens, "tokens", DT_ARRAY_U16 | DT_ARRAY_U32));
    if (has_offsets || kind != DT_DATASET_TOKENS) {
        DT_TRY(open_one(d, &d->offsets, "offsets", DT_ARRAY_U64));
        DT_TRY(check_offset_ends(d, &d->offsets, &d->tokens));
        d->info.n_documents = d->offsets.n_elems - 1;
    }
    if (kind == DT_DATASET_SFT) {
        DT_TRY(open_one(d, &d->loss_mask, "loss_mask", DT_ARRAY_U8));
        DT_TRY(check_length(d, &d->loss_mask, d->tokens.n_elems, "tokens"));
    }
    if (d->info.has_weights) DT_TRY(open_column(d, &d->weights, "weights", DT_ARRAY_F32));
    if (!d->info.has_answers) return DT_OK;
    DT_TRY(open_side(d, "answers/tokens", "answers/offsets", &d->other_tokens, &d->other_offsets));
    return check_length(d, &d->other_offsets, d->offsets.n_elems, "offsets");
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
    bool has_offsets = false;
    dt_h5_lock();
    const dt_err err = open_head(d, &has_offsets);
    dt_h5_unlock();
    DT_TRY(err);
    DT_TRY(d->info.kind == DT_DATASET_PREFERENCE ? open_pairs(d) : open_texts(d, has_offsets));

    const dt_array *arrays[DT_N_ARRAYS];
    dt_dataset_arrays(d, arrays);
    bool needs_hdf5 = false;
    d->info.has_checksums = true;
    for (int i = 0; i < DT_N_ARRAYS; i++) {
        if (!arrays[i]->path) continue;
        needs_hdf5 |= arrays[i]->offset < 0;
        d->info.has_checksums &= arrays[i]->has_checksum;
    }
    if (!needs_hdf5) close_hdf5(d);
    d->info.n_tokens = d->tokens.n_elems;
    d->info.token_nbytes = d->tokens.elem_size;
    d->info.n_other_tokens = d->other_tokens.n_elems;
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
    const dt_array *arrays[DT_N_ARRAYS];
    dt_dataset_arrays(d, arrays);
    for (int i = 0; i < DT_N_ARRAYS; i++) dt_array_close((dt_array *)arrays[i]);
    if (d->file >= 0) close_hdf5(d);
    if (d->fd >= 0) close(d->fd);
    free(d->tokenizer);
    free(d->path);
    free(d);
}

const dt_dataset_info *dt_dataset_get_info(const dt_dataset *d) { return &d->info; }

/* ---- reading ----------------------------------------------------------------------------------------------------------- */

static const dt_array *tokens_of(const dt_dataset *d, dt_side side)
{
    return side == DT_SIDE_MAIN ? &d->tokens : &d->other_tokens;
}
static const dt_array *offsets_of(const dt_dataset *d, dt_side side)
{
    return side == DT_SIDE_MAIN ? &d->offsets : &d->other_offsets;
}

dt_err dt_dataset_side_document(dt_dataset *d, dt_side side, int64_t i, int64_t *first, int64_t *n)
{
    const dt_array *offsets = offsets_of(d, side);
    const int64_t n_tokens = tokens_of(d, side)->n_elems;
    DT_CHECK(d->info.n_documents >= 0, DT_ERR_DATA, "%s: the file has no /offsets: its documents are not marked", d->path);
    DT_CHECK(offsets->path, DT_ERR_ARG, "%s: its samples have one text", d->path);
    DT_CHECK(i >= 0 && i < d->info.n_documents, DT_ERR_USAGE, "%s: expected a number from 0 to %" PRId64 ", found %" PRId64,
             d->path, d->info.n_documents - 1, i);
    uint64_t o[2];
    DT_TRY(dt_array_read(offsets, i, 2, o));
    DT_CHECK(o[0] <= o[1] && o[1] <= (uint64_t)n_tokens, DT_ERR_DATA,
             "%s: %s[%" PRId64 "] = %" PRIu64 " is followed by %" PRIu64 " (of %" PRId64 " tokens): offsets must not decrease",
             d->path, offsets->name, i, o[0], o[1], n_tokens);
    *first = (int64_t)o[0];
    *n = (int64_t)(o[1] - o[0]);
    return DT_OK;
}

dt_err dt_dataset_document(dt_dataset *d, int64_t i, int64_t *first, int64_t *n)
{
    return dt_dataset_side_document(d, DT_SIDE_MAIN, i, first, n);
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

dt_err dt_dataset_read_side(dt_dataset *d, dt_side side, int64_t first, int64_t n, int32_t *ids)
{
    const dt_array *tokens = tokens_of(d, side);
    const bool narrow = tokens->elem_size == 2;
    DT_TRY(dt_array_read(tokens, first, n, narrow ? (void *)((char *)ids + 2 * n) : (void *)ids));
    if (narrow) widen(ids, n);

    uint32_t largest = 0;
    for (int64_t i = 0; i < n; i++) largest = (uint32_t)ids[i] > largest ? (uint32_t)ids[i] : largest;
    if (largest < (uint32_t)d->info.vocab_size) return DT_OK;
    int64_t bad = 0;
    while ((uint32_t)ids[bad] < (uint32_t)d->info.vocab_size) bad++;
    return dt_fail(DT_ERR_DATA, "%s: %s[%" PRId64 "] = %" PRIu32 ", expected a token id below vocab_size = %" PRId64, d->path,
                   tokens->name, first + bad, (uint32_t)ids[bad], d->info.vocab_size);
}

dt_err dt_dataset_read_tokens(dt_dataset *d, int64_t first, int64_t n, int32_t *ids)
{
    return dt_dataset_read_side(d, DT_SIDE_MAIN, first, n, ids);
}

dt_err dt_dataset_read_mask(dt_dataset *d, int64_t first, int64_t n, uint8_t *mask)
{
    DT_CHECK(d->info.kind == DT_DATASET_SFT, DT_ERR_ARG, "%s: a dataset of kind %s has no loss_mask", d->path,
             dt_dataset_kind_name(d->info.kind));
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

dt_err dt_dataset_read_pair(dt_dataset *d, int64_t i, dt_pair *pair)
{
    DT_CHECK(d->info.kind == DT_DATASET_PREFERENCE, DT_ERR_ARG, "%s: a dataset of kind %s has no pairs", d->path,
             dt_dataset_kind_name(d->info.kind));
    *pair = (dt_pair){0};
    for (int s = 0; s < DT_N_SIDES; s++) {
        int64_t first, n;
        uint8_t safety = 0;
        DT_TRY(dt_dataset_side_document(d, (dt_side)s, i, &first, &n));
        DT_TRY(dt_array_read(&d->prompt_length[s], i, 1, &pair->prompt_length[s]));
        DT_CHECK(pair->prompt_length[s] <= n, DT_ERR_DATA,
                 "%s: %s[%" PRId64 "] = %" PRIu32 ", but the sample has %" PRId64 " tokens", d->path, d->prompt_length[s].name, i,
                 pair->prompt_length[s], n);
        if (d->info.has_safety) DT_TRY(dt_array_read(&d->safety[s], i, 1, &safety));
        DT_CHECK(safety < DT_N_SAFETY, DT_ERR_DATA, "%s: %s[%" PRId64 "]: expected 0, 1 or 2, found %u", d->path,
                 d->safety[s].name, i, safety);
        pair->safety[s] = (dt_safety)safety;
    }
    if (d->info.has_margins) DT_TRY(dt_array_read(&d->margins, i, 1, &pair->margin));
    DT_CHECK(isfinite(pair->margin), DT_ERR_DATA, "%s: margins[%" PRId64 "]: expected a number, found %g", d->path, i,
             (double)pair->margin);
    return DT_OK;
}

static dt_err check_block(const dt_dataset *d, dt_side side, int64_t first, int64_t n, const uint64_t *offset)
{
    const uint64_t n_tokens = (uint64_t)tokens_of(d, side)->n_elems;
    uint64_t decreases = offset[n] > n_tokens;
    for (int64_t i = 0; i < n; i++) decreases |= offset[i + 1] < offset[i];
    if (!decreases) return DT_OK;
    int64_t bad = 0;
    while (bad < n && offset[bad + 1] >= offset[bad] && offset[bad + 1] <= n_tokens) bad++;
    return dt_fail(DT_ERR_DATA,
                   "%s: %s[%" PRId64 "] = %" PRIu64 " is followed by %" PRIu64 " (of %" PRIu64
                   " tokens): offsets must not decrease",
                   d->path, offsets_of(d, side)->name, first + bad, offset[bad], offset[bad + 1], n_tokens);
}

dt_err dt_dataset_each_side_block(dt_dataset *d, dt_side side, dt_documents_fn *fn, void *arg)
{
    uint64_t *offset = malloc((BLOCK_DOCUMENTS + 1) * sizeof *offset);
    DT_CHECK(offset, DT_ERR_MEMORY, "%s: no memory to read its offsets", d->path);
    dt_err err = DT_OK;
    for (int64_t first = 0; first < d->info.n_documents && err == DT_OK; first += BLOCK_DOCUMENTS) {
        const int64_t left = d->info.n_documents - first, n = left < BLOCK_DOCUMENTS ? left : BLOCK_DOCUMENTS;
        err = dt_array_read(offsets_of(d, side), first, n + 1, offset);
        if (err == DT_OK) err = check_block(d, side, first, n, offset);
        if (err == DT_OK && fn) err = fn(arg, first, n, offset);
    }
    free(offset);
    return err;
}

dt_err dt_dataset_each_block(dt_dataset *d, dt_documents_fn *fn, void *arg)
{
    return dt_dataset_each_side_block(d, DT_SIDE_MAIN, fn, arg);
}

dt_err dt_dataset_fingerprint(const dt_dataset *d, uint64_t *hash)
{
    char *head = malloc(HEAD_NBYTES);
    DT_CHECK(head, DT_ERR_MEMORY, "%s: no memory to read the head", d->path);
    const ssize_t got = pread(d->fd, head, HEAD_NBYTES, 0);
    uint64_t h = dt_mix64((uint64_t)d->file_nbytes);
    if (got > 0) h = dt_mix64(h ^ dt_checksum(head, 0, got, 1));
    const dt_array *arrays[DT_N_ARRAYS]; /* checksums of the whole, where there are any */
    dt_dataset_arrays(d, arrays);
    for (int i = 0; i < DT_N_ARRAYS; i++) h = dt_mix64(h ^ dt_mix64((uint64_t)arrays[i]->n_elems) ^ arrays[i]->checksum);
    free(head);
    DT_CHECK(got > 0, DT_ERR_DATA, "%s: cannot read the head: %s", d->path, strerror(errno));
    *hash = h;
    return DT_OK;
}
