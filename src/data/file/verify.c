/* verify.c - full check of a dataset file: reads every array once, in fixed-size chunks, and checks values
 * and checksum. */
#include "../samples/sample_images.h"
#include <inttypes.h>
#include <stdlib.h>

enum { PIECE = 1 << 18, PIECE_NBYTES = PIECE * 8 }; /* elements of any type; bytes */

typedef struct job {
    dt_dataset *dataset;
    dt_err (*each_piece)(void *arg); /* NULL, or called after each chunk */
    void *arg, *buffer;              /* PIECE_NBYTES, or one image if larger */
} job;

typedef dt_err check_fn(dt_dataset *d, int64_t first, int64_t n, void *buffer);

static dt_err verify_tokens(dt_dataset *d, int64_t first, int64_t n, void *buffer)
{
    return dt_dataset_read_tokens(d, first, n, buffer);
}
static dt_err verify_second(dt_dataset *d, int64_t first, int64_t n, void *buffer)
{
    return dt_dataset_read_side(d, DT_SIDE_SECOND, first, n, buffer);
}
static dt_err verify_mask(dt_dataset *d, int64_t first, int64_t n, void *buffer)
{
    return dt_dataset_read_mask(d, first, n, buffer);
}
static dt_err verify_weights(dt_dataset *d, int64_t first, int64_t n, void *buffer)
{
    return dt_dataset_read_weights(d, first, n, buffer);
}
/* Check prompts, margins, safety and ties together, while reading the first array that belongs to pairs. */
static dt_err verify_pairs(dt_dataset *d, int64_t first, int64_t n, void *buffer)
{
    dt_pair pair;
    for (int64_t i = first; i < first + n; i++) DT_TRY(dt_dataset_read_pair(d, i, &pair));
    return DT_OK;
}

static dt_err show_block(void *arg, int64_t first, int64_t n, const uint64_t *offset)
{
    const job *j = arg;
    return j->each_piece(j->arg);
}

/* One pass over an array: check validates values (may be NULL), then the same elements as stored update
 * the checksum. */
static dt_err verify_array(const job *j, const dt_array *a, check_fn *check)
{
    if (!a->path) return DT_OK;
    dt_dataset *d = j->dataset;
    uint64_t sum = 0;
    const int64_t piece = a->image_size ? dt_max_i64(1, PIECE_NBYTES / a->elem_size) : PIECE;
    for (int64_t first = 0; first < a->n_elems; first += piece) {
        const int64_t left = a->n_elems - first, n = left < piece ? left : piece;
        if (j->each_piece) DT_TRY(j->each_piece(j->arg));
        if (check) DT_TRY(check(d, first, n, j->buffer));
        if (!a->has_checksum) continue;
        DT_TRY(dt_array_read(a, first, n, j->buffer));
        sum += dt_array_checksum(j->buffer, first, n, a->elem_size, a->image_size > 0);
    }
    DT_CHECK(!a->has_checksum || sum == a->checksum, DT_ERR_DATA,
             "%s: %s: the file is damaged: checksum: expected %016" PRIx64 ", found %016" PRIx64, d->path, a->name,
             a->checksum, sum);
    return DT_OK;
}

/* Parse the record of each sample. */
static dt_err verify_records(dt_dataset *d, int64_t first, int64_t n, void *buffer)
{
    for (int64_t i = first; i < first + n && i < d->info.n_documents; i++) {
        char *json;
        DT_TRY(dt_dataset_read_record(d, i, &json));
        free(json);
    }
    return DT_OK;
}

/* Check that each sample has as many placeholders as its images need. The ids were validated before. */
static dt_err verify_images(const job *j)
{
    dt_dataset *d = j->dataset;
    for (int64_t i = 0; i < d->info.n_documents; i++) {
        if (j->each_piece && i % 4096 == 0) DT_TRY(j->each_piece(j->arg));
        DT_TRY(dt_dataset_check_images(d, i));
    }
    return DT_OK;
}

/* Offsets first: the other checks rely on them. */
static dt_err verify_all(const job *j)
{
    dt_dataset *d = j->dataset;
    if (d->offsets.path) DT_TRY(dt_dataset_each_block(d, j->each_piece ? show_block : NULL, (void *)j));
    if (d->second_offsets.path)
        DT_TRY(dt_dataset_each_side_block(d, DT_SIDE_SECOND, j->each_piece ? show_block : NULL, (void *)j));
    if (d->record_offsets.path)
        DT_TRY(dt_dataset_each_side_block(d, DT_RECORDS, j->each_piece ? show_block : NULL, (void *)j));
    if (d->image_offsets.path)
        DT_TRY(dt_dataset_each_side_block(d, DT_IMAGES, j->each_piece ? show_block : NULL, (void *)j));
    DT_TRY(verify_array(j, &d->image_offsets, NULL));
    DT_TRY(verify_array(j, &d->pixels, NULL));
    DT_TRY(verify_array(j, &d->offsets, NULL));
    DT_TRY(verify_array(j, &d->second_offsets, NULL));
    DT_TRY(verify_array(j, &d->record_offsets, verify_records));
    DT_TRY(verify_array(j, &d->records, NULL));
    DT_TRY(verify_array(j, &d->tokens, verify_tokens));
    DT_TRY(verify_array(j, &d->second_tokens, verify_second));
    DT_TRY(verify_array(j, &d->loss_mask, verify_mask));
    DT_TRY(verify_array(j, &d->weights, verify_weights));
    DT_TRY(verify_array(j, &d->prompt_length[0], verify_pairs));
    DT_TRY(verify_array(j, &d->prompt_length[1], NULL));
    DT_TRY(verify_array(j, &d->margins, NULL));
    DT_TRY(verify_array(j, &d->safety[0], NULL));
    DT_TRY(verify_array(j, &d->safety[1], NULL));
    DT_TRY(verify_array(j, &d->ties, NULL));
    return d->info.has_images ? verify_images(j) : DT_OK;
}

dt_err dt_dataset_verify(dt_dataset *d, dt_err (*each_piece)(void *arg), void *arg)
{
    void *buffer = malloc((size_t)dt_max_i64(PIECE_NBYTES, d->pixels.elem_size));
    DT_CHECK(buffer, DT_ERR_MEMORY, "%s: no memory to verify the dataset", d->path);
    const dt_err err = verify_all(&(job){d, each_piece, arg, buffer});
    free(buffer);
    return err;
}
