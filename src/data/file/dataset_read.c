/* dataset_read.c - reads an open dataset file and validates every value it returns. */
#include "store.h"
#include "../kinds/kinds.h"
#include "dtrain/io/json.h"
#include "dtrain/core/plural.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STRAY_PLACEHOLDER                                                                                              \
    "token %" PRId32 " stands for an image in this model, but the dataset has no images: expected a dataset made "     \
    "with dtrain-data --images, or texts without this token"

enum { BLOCK_DOCUMENTS = 1 << 16, HEAD_NBYTES = 1 << 16, N_CHUNKS = 64, CHUNK = 1024 };

static const dt_array *tokens_of(const dt_dataset *d, int side) { return &d->column[dt_part_elements(side)]; }
static const dt_array *offsets_of(const dt_dataset *d, int side) { return &d->column[dt_part_offsets(side)]; }

dt_err dt_dataset_part(dt_dataset *d, int side, int64_t i, int64_t *first, int64_t *n)
{
    const dt_array *offsets = offsets_of(d, side);
    const int64_t n_tokens = tokens_of(d, side)->n_elems;
    DT_CHECK(d->info.n_documents >= 0, DT_ERR_DATA, "%s: the file has no /offsets, so documents cannot be separated",
             d->path);
    DT_CHECK(offsets->path, DT_ERR_ARG, "internal: dt_dataset_part: %s: samples of this dataset have only one side",
             d->path);
    DT_CHECK(i >= 0 && i < d->info.n_documents, DT_ERR_USAGE,
             "%s: expected an index from 0 to %" PRId64 ", found %" PRId64, d->path, d->info.n_documents - 1, i);
    uint64_t o[2];
    DT_TRY(dt_array_read(offsets, i, 2, o));
    DT_CHECK(o[0] <= o[1] && o[1] <= (uint64_t)n_tokens, DT_ERR_DATA,
             "%s: %s[%" PRId64 "] = %" PRIu64 " is followed by %" PRIu64 " (of %" PRId64
             " %s): offsets must not decrease",
             d->path, offsets->name, i, o[0], o[1], n_tokens, dt_part_words(side));
    *first = (int64_t)o[0];
    *n = (int64_t)(o[1] - o[0]);
    return DT_OK;
}

dt_err dt_dataset_document(dt_dataset *d, int64_t i, int64_t *first, int64_t *n)
{
    return dt_dataset_part(d, DT_SIDE_FIRST, i, first, n);
}

/* Widen uint16 in the upper half of the buffer to int32 in place. Element i is written at byte 4i, after
 * all elements stored up to there were read. */
static void widen(int32_t *ids, int64_t n)
{
    const char *from = (const char *)ids + 2 * n;
    for (int64_t i = 0; i < n; i++) {
        uint16_t id;
        memcpy(&id, from + 2 * i, sizeof id);
        ids[i] = id;
    }
}

/* The sample that contains token `at`: the last one that begins at or before it. */
static dt_err sample_of(dt_dataset *d, int side, int64_t at, int64_t *sample)
{
    int64_t low = 0, high = d->info.n_documents;
    while (high - low > 1) {
        const int64_t mid = low + (high - low) / 2;
        uint64_t first;
        DT_TRY(dt_array_read(offsets_of(d, side), mid, 1, &first));
        *(first <= (uint64_t)at ? &low : &high) = mid;
    }
    *sample = low;
    return DT_OK;
}

/* A model with images would interpret these tokens as placeholders. */
static dt_err check_placeholders(dt_dataset *d, int side, int64_t first, int64_t n, const int32_t *ids)
{
    int64_t i = 0, sample = 0;
    if (d->placeholder < 0) return DT_OK;
    while (i < n && ids[i] != d->placeholder) i++;
    if (i == n) return DT_OK;
    DT_CHECK(d->info.n_documents >= 0, DT_ERR_DATA, "%s: %s[%" PRId64 "]: " STRAY_PLACEHOLDER, d->path,
             tokens_of(d, side)->name, first + i, d->placeholder);
    DT_TRY(sample_of(d, side, first + i, &sample));
    return dt_fail(DT_ERR_DATA, "%s: sample %" PRId64 ": " STRAY_PLACEHOLDER, d->path, sample, d->placeholder);
}

dt_err dt_dataset_read_side(dt_dataset *d, dt_side side, int64_t first, int64_t n, int32_t *ids)
{
    const dt_array *tokens = tokens_of(d, side);
    const bool narrow = tokens->elem_size == 2;
    DT_TRY(dt_array_read(tokens, first, n, narrow ? (void *)((char *)ids + 2 * n) : (void *)ids));
    if (narrow) widen(ids, n);

    uint32_t largest = 0;
    for (int64_t i = 0; i < n; i++) largest = (uint32_t)ids[i] > largest ? (uint32_t)ids[i] : largest;
    const uint32_t limit = d->info.vocab_size ? (uint32_t)d->info.vocab_size : (uint32_t)INT32_MAX + 1;
    if (largest < limit) return check_placeholders(d, side, first, n, ids);
    int64_t bad = 0;
    while ((uint32_t)ids[bad] < limit) bad++;
    return dt_fail(DT_ERR_DATA, "%s: %s[%" PRId64 "] = %" PRIu32 ", expected a token id below vocab_size = %" PRId64,
                   d->path, tokens->name, first + bad, (uint32_t)ids[bad], (int64_t)limit);
}

dt_err dt_dataset_read_tokens(dt_dataset *d, int64_t first, int64_t n, int32_t *ids)
{
    return dt_dataset_read_side(d, DT_SIDE_FIRST, first, n, ids);
}

static dt_err mask_all(dt_dataset *d, int64_t first, int64_t n, uint8_t *mask)
{
    int32_t ids[1024];
    memset(mask, 1, (size_t)n);
    for (int64_t at = 0; at < n && d->info.has_images; at += (int64_t)(sizeof ids / sizeof *ids)) {
        const int64_t k = dt_min_i64(n - at, (int64_t)(sizeof ids / sizeof *ids));
        DT_TRY(dt_dataset_read_tokens(d, first + at, k, ids));
        for (int64_t i = 0; i < k; i++) mask[at + i] = ids[i] != d->info.images.token;
    }
    return DT_OK;
}

dt_err dt_dataset_read_mask(dt_dataset *d, int64_t first, int64_t n, uint8_t *mask)
{
    DT_CHECK(d->column[DT_COL_MASK].path, DT_ERR_ARG,
             "internal: dt_dataset_read_mask: %s: a dataset of kind %s has no loss_mask", d->path,
             dt_dataset_kind_name(d->info.kind));
    DT_TRY(dt_array_read(&d->column[DT_COL_MASK], first, n, mask));
    uint8_t all = 0;
    for (int64_t i = 0; i < n; i++) all |= mask[i];
    if (all <= 1) return d->prompt_targets ? mask_all(d, first, n, mask) : DT_OK;
    int64_t bad = 0;
    while (mask[bad] <= 1) bad++;
    return dt_fail(DT_ERR_DATA, "%s: loss_mask[%" PRId64 "]: expected 0 or 1, found %u", d->path, first + bad,
                   mask[bad]);
}

dt_err dt_dataset_read_weights(dt_dataset *d, int64_t first, int64_t n, float *weight)
{
    DT_TRY(dt_array_read(&d->column[DT_COL_WEIGHTS], first, n, weight));
    for (int64_t i = 0; i < n; i++) /* false for NaN */
        DT_CHECK(weight[i] == 0 || (weight[i] >= 1e-3f && weight[i] <= 1e6f), DT_ERR_DATA,
                 "%s: weights[%" PRId64 "]: expected 0, or 0.001 to 1e6 (only proportions matter), found %g", d->path,
                 first + i, dt_unsigned_nan((double)weight[i]));
    return DT_OK;
}

dt_err dt_dataset_read_pair(dt_dataset *d, int64_t i, dt_pair *pair)
{
    DT_CHECK(d->kind->answers, DT_ERR_ARG, "internal: dt_dataset_read_pair: %s: a dataset of kind %s has no pairs",
             d->path, dt_dataset_kind_name(d->info.kind));
    *pair = (dt_pair){0};
    for (int s = 0; s < d->kind->n_sequences; s++) {
        int64_t first, n;
        uint8_t safety = 0;
        DT_TRY(dt_dataset_part(d, s, i, &first, &n));
        DT_TRY(dt_array_read(&d->column[DT_COL_PROMPT + s], i, 1, &pair->prompt_length[s]));
        DT_CHECK(pair->prompt_length[s] <= n, DT_ERR_DATA,
                 "%s: %s[%" PRId64 "] = %" PRIu32 ", but the sample has %" PRId64 " token%s", d->path,
                 d->column[DT_COL_PROMPT + s].name, i, pair->prompt_length[s], n, dt_plural(n));
        if (d->info.has_safety) DT_TRY(dt_array_read(&d->column[DT_COL_SAFETY + s], i, 1, &safety));
        DT_CHECK(safety < DT_N_SAFETY, DT_ERR_DATA, "%s: %s[%" PRId64 "]: expected 0, 1 or 2, found %u", d->path,
                 d->column[DT_COL_SAFETY + s].name, i, safety);
        pair->safety[s] = (dt_safety)safety;
    }
    uint8_t flag = 0;
    if (d->info.has_flags) DT_TRY(dt_array_read(&d->column[DT_COL_FLAGS], i, 1, &flag));
    DT_CHECK(flag <= 1, DT_ERR_DATA, "%s: %s[%" PRId64 "]: expected 0 or 1, found %u", d->path,
             d->column[DT_COL_FLAGS].name, i, flag);
    pair->flag = flag;
    if (d->info.has_margins) DT_TRY(dt_array_read(&d->column[DT_COL_MARGINS], i, 1, &pair->margin));
    DT_CHECK(isfinite(pair->margin), DT_ERR_DATA, "%s: margins[%" PRId64 "]: expected a number, found %g", d->path, i,
             dt_unsigned_nan((double)pair->margin));
    return DT_OK;
}

/* Check that the whole record is valid JSON, because the user's reward programs receive it. */
static dt_err check_record(const dt_dataset *d, int64_t i, const char *text, int64_t n)
{
    json_t *json;
    dt_err err = dt_json_parse(&json, "", text, (size_t)n, DT_JSON_NUL | DT_JSON_LAST_KEY | DT_JSON_RECORD);
    if (err == DT_OK && !json_is_object(json)) err = dt_fail(DT_ERR_DATA, "found another value");
    json_decref(json);
    return dt_error_prefix(err, "%s: record %" PRId64 " in %s: expected a JSON object: ", d->path, i,
                           d->column[DT_COL_RECORDS].name);
}

dt_err dt_dataset_read_record(dt_dataset *d, int64_t i, char **json)
{
    int64_t first = 0, n = 0;
    *json = NULL;
    DT_CHECK(d->kind->column[DT_COL_RECORDS].name, DT_ERR_ARG,
             "internal: dt_dataset_read_record: %s: a dataset of kind %s has no records", d->path,
             dt_dataset_kind_name(d->info.kind));
    if (d->info.has_records) DT_TRY(dt_dataset_part(d, DT_RECORDS, i, &first, &n));
    char *text = malloc((size_t)n + sizeof "{}");
    DT_CHECK(text, DT_ERR_MEMORY, "%s: out of memory for a record of %" PRId64 " bytes", d->path, n);
    strcpy(text, "{}");
    dt_err err = n ? dt_array_read(&d->column[DT_COL_RECORDS], first, n, text) : DT_OK;
    if (n) text[n] = '\0';
    if (err == DT_OK && n) err = check_record(d, i, text, n);
    if (err == DT_OK)
        *json = text;
    else
        free(text);
    return err;
}

static dt_err check_block(const dt_dataset *d, int side, int64_t first, int64_t n, const uint64_t *offset)
{
    const uint64_t n_tokens = (uint64_t)tokens_of(d, side)->n_elems;
    uint64_t decreases = offset[n] > n_tokens;
    for (int64_t i = 0; i < n; i++) decreases |= offset[i + 1] < offset[i];
    if (!decreases) return DT_OK;
    int64_t bad = 0;
    while (bad < n && offset[bad + 1] >= offset[bad] && offset[bad + 1] <= n_tokens) bad++;
    return dt_fail(
        DT_ERR_DATA,
        "%s: %s[%" PRId64 "] = %" PRIu64 " is followed by %" PRIu64 " (of %" PRIu64 " %s): offsets must not decrease",
        d->path, offsets_of(d, side)->name, first + bad, offset[bad], offset[bad + 1], n_tokens, dt_part_words(side));
}

dt_err dt_dataset_each_block(dt_dataset *d, int side, dt_documents_fn *fn, void *arg)
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

static dt_err hash_head(const dt_dataset *d, uint64_t *hash)
{
    char *head = malloc(HEAD_NBYTES);
    DT_CHECK(head, DT_ERR_MEMORY, "%s: no memory to read its beginning", d->path);
    const ssize_t got = pread(d->fd, head, HEAD_NBYTES, 0);
    *hash = dt_mix64((uint64_t)d->file_nbytes);
    if (got > 0) *hash = dt_mix64(*hash ^ dt_checksum(head, 0, got, 1));
    free(head);
    DT_CHECK_ERRNO(got > 0, DT_ERR_DATA, d->path, "cannot read its first bytes");
    return DT_OK;
}

static dt_err hash_offsets(void *hash, int64_t first, int64_t n, const uint64_t *offset)
{
    uint64_t *h = hash;
    *h = dt_mix64(*h ^ dt_checksum(offset, first, n + 1, sizeof *offset));
    return DT_OK;
}

/* Hash all offsets, and the tokens at evenly spaced positions: datasets of other programs have no checksums, and the
 * named file may be only a part of them. */
static dt_err hash_documents(dt_dataset *d, uint64_t *hash)
{
    const dt_array *tokens = tokens_of(d, DT_SIDE_FIRST);
    uint32_t ids[CHUNK];
    const int64_t n = dt_min_i64(tokens->n_elems, CHUNK);
    DT_TRY(dt_dataset_each_block(d, DT_SIDE_FIRST, hash_offsets, hash));
    for (int64_t i = 0; i < N_CHUNKS && n > 0; i++) {
        const int64_t first = (tokens->n_elems - n) * i / (N_CHUNKS - 1);
        DT_TRY(dt_array_read(tokens, first, n, ids));
        *hash = dt_mix64(*hash ^ dt_checksum(ids, first, n, sizeof *ids));
    }
    return DT_OK;
}

dt_err dt_dataset_fingerprint(dt_dataset *d, uint64_t *hash)
{
    uint64_t h = 0;
    DT_TRY(d->store->foreign ? hash_documents(d, &h) : hash_head(d, &h));
    for (int c = 0; c < DT_N_ARRAYS; c++)
        h = dt_mix64(h ^ dt_mix64((uint64_t)d->column[c].n_elems) ^ d->column[c].checksum);
    *hash = h;
    return DT_OK;
}
