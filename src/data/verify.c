/* verify.c - the full check of a dataset file: every array is read once, in pieces of fixed size, and both its values and its checksum are looked at. */
#include "dataset_file.h"
#include <inttypes.h>
#include <stdlib.h>

enum { PIECE = 1 << 18 }; /* elements */

static dt_err verify_tokens(dt_dataset *d, int64_t first, int64_t n, void *buffer)
{
    return dt_dataset_read_tokens(d, first, n, buffer);
}
static dt_err verify_mask(dt_dataset *d, int64_t first, int64_t n, void *buffer)
{
    return dt_dataset_read_mask(d, first, n, buffer);
}

static dt_err verify_weights(dt_dataset *d, int64_t first, int64_t n, void *buffer)
{
    return dt_dataset_read_weights(d, first, n, buffer);
}

/* One pass: values by check (may be NULL), then the same piece as it is stored for the checksum. */
static dt_err verify_array(dt_dataset *d, const dt_array *a, dt_err (*check)(dt_dataset *, int64_t, int64_t, void *),
                           void *buffer)
{
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
    if (d->info.n_documents >= 0) {
        DT_TRY(dt_dataset_each_block(d, NULL, NULL));
        DT_TRY(verify_array(d, &d->offsets, NULL, buffer));
    }
    DT_TRY(verify_array(d, &d->tokens, verify_tokens, buffer));
    if (d->info.kind == DT_DATASET_SFT) DT_TRY(verify_array(d, &d->loss_mask, verify_mask, buffer));
    if (d->info.has_weights) DT_TRY(verify_array(d, &d->weights, verify_weights, buffer));
    return DT_OK;
}

dt_err dt_dataset_verify(dt_dataset *d)
{
    void *buffer = malloc((size_t)PIECE * sizeof(uint64_t));
    DT_CHECK(buffer, DT_ERR_MEMORY, "%s: no memory to verify the dataset", d->path);
    const dt_err err = verify_all(d, buffer);
    free(buffer);
    return err;
}
