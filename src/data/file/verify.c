/* verify.c - full check of a dataset file: reads every array once, in fixed-size chunks, and checks values
 * and checksum. */
#include "../samples/sample_images.h"
#include "store.h"
#include <inttypes.h>
#include <stdlib.h>

enum { CHUNK = 1 << 18, CHUNK_NBYTES = CHUNK * 8 }; /* elements of any type; bytes */

typedef struct job {
    dt_dataset *dataset;
    dt_err (*poll)(void *arg); /* NULL, or called after each chunk */
    void *arg, *buffer;        /* CHUNK_NBYTES, or one image if larger */
} job;

static dt_err poll_block(void *arg, int64_t first, int64_t n, const uint64_t *offset)
{
    const job *j = arg;
    return j->poll(j->arg);
}

/* Check elements first .. first+n-1 of a column. */
static dt_err check_values(dt_dataset *d, int c, int64_t first, int64_t n, void *buffer)
{
    const bool records = c == DT_COL_RECORD_OFFSETS;
    char *json;
    dt_pair pair;
    switch (c) {
    case DT_COL_TOKENS:
    case DT_COL_SECOND_TOKENS:
        return dt_dataset_read_side(d, (dt_side)dt_columns[c].part, first, n, buffer);
    case DT_COL_MASK:
        return dt_dataset_read_mask(d, first, n, buffer);
    case DT_COL_WEIGHTS:
        return dt_dataset_read_weights(d, first, n, buffer);
    case DT_COL_PROMPT: /* together with margins, safety and ties */
    case DT_COL_RECORD_OFFSETS:
        for (int64_t i = first; i < first + n && i < d->info.n_documents; i++) {
            DT_TRY(records ? dt_dataset_read_record(d, i, &json) : dt_dataset_read_pair(d, i, &pair));
            if (records) free(json);
        }
        return DT_OK;
    default:
        return DT_OK;
    }
}

/* One pass over an array: validate its values; the same elements as stored update the checksum. */
static dt_err verify_array(const job *j, int c)
{
    dt_dataset *d = j->dataset;
    const dt_array *a = &d->column[c];
    uint64_t sum = 0;
    const int64_t chunk = a->image_size ? dt_max_i64(1, CHUNK_NBYTES / a->elem_size) : CHUNK;
    for (int64_t first = 0; a->path && first < a->n_elems; first += chunk) {
        const int64_t left = a->n_elems - first, n = left < chunk ? left : chunk;
        if (j->poll) DT_TRY(j->poll(j->arg));
        DT_TRY(check_values(d, c, first, n, j->buffer));
        if (!a->has_checksum) continue;
        DT_TRY(dt_array_read(a, first, n, j->buffer));
        sum += dt_array_checksum(j->buffer, first, n, a->elem_size, a->image_size > 0);
    }
    DT_CHECK(!a->has_checksum || sum == a->checksum, DT_ERR_DATA,
             "%s: %s: the file is damaged: checksum: expected %016" PRIx64 ", found %016" PRIx64, d->path, a->name,
             a->checksum, sum);
    return DT_OK;
}

/* Check that each sample has as many placeholders as its images need. The ids were validated before. */
static dt_err verify_images(const job *j)
{
    dt_dataset *d = j->dataset;
    for (int64_t i = 0; i < d->info.n_documents; i++) {
        if (j->poll && i % 4096 == 0) DT_TRY(j->poll(j->arg));
        DT_TRY(dt_dataset_check_images(d, i));
    }
    return DT_OK;
}

/* Offsets first: the other checks rely on them. */
static dt_err verify_all(const job *j)
{
    dt_dataset *d = j->dataset;
    if (d->store->verify) DT_TRY(d->store->verify(d, j->poll, j->arg));
    for (int part = 0; part < DT_N_DATA_PARTS; part++)
        if (d->column[dt_part_offsets(part)].path)
            DT_TRY(dt_dataset_each_block(d, part, j->poll ? poll_block : NULL, (void *)j));
    for (int part = 0; part < DT_N_DATA_PARTS; part++) DT_TRY(verify_array(j, (int)dt_part_offsets(part)));
    for (int c = 0; c < DT_N_ARRAYS; c++)
        if (dt_columns[c].per != DT_PER_OFFSET) DT_TRY(verify_array(j, c));
    return d->info.has_images ? verify_images(j) : DT_OK;
}

dt_err dt_dataset_verify(dt_dataset *d, dt_err (*poll)(void *arg), void *arg)
{
    void *buffer = malloc((size_t)dt_max_i64(CHUNK_NBYTES, d->column[DT_COL_PIXELS].elem_size));
    DT_CHECK(buffer, DT_ERR_MEMORY, "%s: no memory to verify the dataset", d->path);
    const dt_err err = verify_all(&(job){d, poll, arg, buffer});
    free(buffer);
    return err;
}
