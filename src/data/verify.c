/* verify.c - the full check of a dataset file: every array is read once, in pieces of fixed size, and both its values and its checksum are looked at. */
#include "dataset_file.h"
#include <inttypes.h>
#include <stdlib.h>

enum { PIECE = 1 << 18 }; /* elements */

typedef dt_err check_fn(dt_dataset *d, int64_t first, int64_t n, void *buffer);

static dt_err verify_tokens(dt_dataset *d, int64_t first, int64_t n, void *buffer)
{
    return dt_dataset_read_tokens(d, first, n, buffer);
}
static dt_err verify_other(dt_dataset *d, int64_t first, int64_t n, void *buffer)
{
    return dt_dataset_read_side(d, DT_SIDE_OTHER, first, n, buffer);
}
static dt_err verify_mask(dt_dataset *d, int64_t first, int64_t n, void *buffer)
{
    return dt_dataset_read_mask(d, first, n, buffer);
}
static dt_err verify_weights(dt_dataset *d, int64_t first, int64_t n, void *buffer)
{
    return dt_dataset_read_weights(d, first, n, buffer);
}
/* Prompts, margins and safety in one, with the first array that belongs to pairs. */
static dt_err verify_pairs(dt_dataset *d, int64_t first, int64_t n, void *buffer)
{
    dt_pair pair;
    for (int64_t i = first; i < first + n; i++) DT_TRY(dt_dataset_read_pair(d, i, &pair));
    return DT_OK;
}

/* One pass: values by check (may be NULL), then the same piece as it is stored for the checksum. */
static dt_err verify_array(dt_dataset *d, const dt_array *a, check_fn *check, void *buffer)
{
    if (!a->path) return DT_OK;
    uint64_t sum = 0;
    for (int64_t first = 0; first < a->n_elems; first += PIECE) {
        const int64_t left = a->n_elems - first, n = left < PIECE ? left : PIECE;
        if (check) DT_TRY(check(d, first, n, buffer));
        if (!a->has_checksum) continue;
        DT_TRY(dt_array_read(a, first, n, buffer));
        sum += dt_checksum(buffer, first, n, (size_t)a->elem_size);
    }
    DT_CHECK(!a->has_checksum || sum == a->checksum, DT_ERR_DATA,
             "%s: %s: checksum: expected %016" PRIx64 ", found %016" PRIx64 ": the file was altered", d->path, a->name,
             a->checksum, sum);
    return DT_OK;
}

static dt_err verify_all(dt_dataset *d, void *buffer)
{
    if (d->offsets.path) DT_TRY(dt_dataset_each_block(d, NULL, NULL));
    if (d->other_offsets.path) DT_TRY(dt_dataset_each_side_block(d, DT_SIDE_OTHER, NULL, NULL));
    DT_TRY(verify_array(d, &d->offsets, NULL, buffer));
    DT_TRY(verify_array(d, &d->other_offsets, NULL, buffer));
    DT_TRY(verify_array(d, &d->tokens, verify_tokens, buffer));
    DT_TRY(verify_array(d, &d->other_tokens, verify_other, buffer));
    DT_TRY(verify_array(d, &d->loss_mask, verify_mask, buffer));
    DT_TRY(verify_array(d, &d->weights, verify_weights, buffer));
    DT_TRY(verify_array(d, &d->prompt_length[0], verify_pairs, buffer));
    DT_TRY(verify_array(d, &d->prompt_length[1], NULL, buffer));
    DT_TRY(verify_array(d, &d->margins, NULL, buffer));
    DT_TRY(verify_array(d, &d->safety[0], NULL, buffer));
    return verify_array(d, &d->safety[1], NULL, buffer);
}

dt_err dt_dataset_verify(dt_dataset *d)
{
    void *buffer = malloc((size_t)PIECE * sizeof(uint64_t));
    DT_CHECK(buffer, DT_ERR_MEMORY, "%s: no memory to verify the dataset", d->path);
    const dt_err err = verify_all(d, buffer);
    free(buffer);
    return err;
}
