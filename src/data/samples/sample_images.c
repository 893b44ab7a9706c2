/* sample_images.c - the images of samples. In a text, an image is a sequence of placeholders. Sequences and images must
 * match. */
#include "sample_images.h"
#include "../kinds/kinds.h"
#include "samples.h"
#include "dtrain/core/plural.h"
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 4096 };

dt_err dt_image_form_preprocessor(const dt_image_form *f, const char *path, dt_preprocessor *p)
{
    char attribute[PATH_MAX + 64];
    snprintf(attribute, sizeof attribute, "%s: attribute preprocessor", path);
    return dt_preprocessor_parse(attribute, f->preprocessor, strlen(f->preprocessor), p);
}

dt_err dt_image_form_check(const dt_image_form *f, const char *path, const dt_preprocessor *wanted, const char *name,
                           const char *expected)
{
    dt_preprocessor own;
    dt_preprocessor_words of_own, of_wanted;
    DT_TRY(dt_image_form_preprocessor(f, path, &own));
    const char *key = dt_preprocessor_differs(&own, wanted, &of_own, &of_wanted);
    dt_preprocessor_free(&own);
    DT_CHECK(!key, DT_ERR_DATA,
             "%s: attribute preprocessor: %s: the images were prepared with %s, but %s has %s: expected %s", path, key,
             of_own.text, name, of_wanted.text, expected);
    return DT_OK;
}

dt_err dt_dataset_images_of(dt_dataset *d, int64_t i, int64_t *first, int64_t *n)
{
    *first = *n = 0;
    return d->info.has_images ? dt_dataset_part(d, DT_IMAGES, i, first, n) : DT_OK;
}

dt_err dt_dataset_read_images(dt_dataset *d, int64_t first, int64_t n, uint8_t *pixels)
{
    return n ? dt_array_read(&d->column[DT_COL_PIXELS], first, n, pixels) : DT_OK;
}

/* Zeros if images are not grids. */
dt_err dt_dataset_read_grids(dt_dataset *d, int64_t first, int64_t n, uint32_t *grid)
{
    memset(grid, 0, (size_t)n * sizeof *grid);
    if (!d->info.images.grids || n == 0) return DT_OK;
    DT_TRY(dt_array_read(&d->column[DT_COL_GRIDS], first, n, grid));
    for (int64_t i = 0; i < n;) {
        const int64_t cells = dt_grid_rows(grid[i]) * dt_grid_columns(grid[i]);
        bool whole = cells > 0 && cells <= n - i;
        for (int64_t k = 1; whole && k < cells; k++) whole = grid[i + k] == 0;
        DT_CHECK(whole, DT_ERR_DATA,
                 "%s: images/grids[%" PRId64 "]: expected an image of whole cells, found %" PRId64 " x %" PRId64,
                 d->path, first + i, dt_grid_rows(grid[i]), dt_grid_columns(grid[i]));
        i += cells;
    }
    return DT_OK;
}

dt_err dt_dataset_count_placeholders(dt_dataset *d, dt_side side, int64_t first, int64_t n, int64_t *count)
{
    int32_t ids[CHUNK];
    *count = 0;
    for (int64_t at = 0; at < n && d->info.has_images; at += CHUNK) {
        const int64_t k = dt_min_i64(n - at, CHUNK);
        DT_TRY(dt_dataset_read_side(d, side, first + at, k, ids));
        for (int64_t t = 0; t < k; t++) *count += ids[t] == d->info.images.token;
    }
    return DT_OK;
}

/* Check that a text has the placeholders of n_images, all of them among its first n_prompt tokens. */
static dt_err check_text(dt_dataset *d, int64_t i, dt_side side, int64_t n_images, int64_t n_prompt)
{
    const char *name = d->kind->side[side], *of = !*name ? "" : d->kind->answers ? " " : " of ";
    int64_t first, n, found, in_completion = 0;
    DT_TRY(dt_dataset_part(d, side, i, &first, &n));
    DT_TRY(dt_dataset_count_placeholders(d, side, first, n, &found));
    DT_CHECK(found == n_images * d->info.images.n_tokens, DT_ERR_DATA,
             "%s: %s%ssample %" PRId64 ": found %" PRId64 " placeholder%s for %" PRId64 " image%s: expected %" PRId64
             " for each image",
             d->path, name, of, i, found, dt_plural(found), n_images, dt_plural(n_images), d->info.images.n_tokens);
    if (found && n_prompt < n)
        DT_TRY(dt_dataset_count_placeholders(d, side, first + n_prompt, n - n_prompt, &in_completion));
    DT_CHECK(in_completion == 0, DT_ERR_DATA, "%s: %s%ssample %" PRId64 ": a completion contains image placeholders",
             d->path, name, of, i);
    return DT_OK;
}

/* Check that no placeholder is a target. */
static dt_err check_mask(dt_dataset *d, int64_t i)
{
    int64_t first, n;
    int32_t ids[CHUNK];
    uint8_t mask[CHUNK];
    DT_TRY(dt_dataset_document(d, i, &first, &n));
    for (int64_t at = first; at < first + n; at += CHUNK) {
        const int64_t k = dt_min_i64(first + n - at, CHUNK);
        DT_TRY(dt_dataset_read_tokens(d, at, k, ids));
        DT_TRY(dt_dataset_read_mask(d, at, k, mask));
        for (int64_t t = 0; t < k; t++)
            DT_CHECK(!(mask[t] && ids[t] == d->info.images.token), DT_ERR_DATA,
                     "%s: sample %" PRId64 ": loss_mask[%" PRId64 "]: an image placeholder must not be a target",
                     d->path, i, at + t);
    }
    return DT_OK;
}

static dt_err check_grids(dt_dataset *d, int64_t first, int64_t n)
{
    uint32_t *grid;
    if (!d->info.images.grids || n == 0) return DT_OK;
    DT_ALLOC(grid, n, "%s: out of memory for the grids of %" PRId64 " cells", d->path, n);
    const dt_err err = dt_dataset_read_grids(d, first, n, grid);
    free(grid);
    return err;
}

dt_err dt_dataset_check_images(dt_dataset *d, int64_t i)
{
    int64_t first, n;
    dt_pair pair = {.prompt_length = {UINT32_MAX, UINT32_MAX}};
    const bool answers = d->kind->answers;
    DT_TRY(dt_dataset_images_of(d, i, &first, &n));
    if (answers) DT_TRY(dt_dataset_read_pair(d, i, &pair));
    DT_TRY(check_text(d, i, DT_SIDE_FIRST, n, pair.prompt_length[0]));
    if (d->column[DT_COL_SECOND_TOKENS].path)
        DT_TRY(check_text(d, i, DT_SIDE_SECOND, answers ? n : 0, pair.prompt_length[1]));
    DT_TRY(check_grids(d, first, n));
    return d->column[DT_COL_MASK].path && n > 0 ? check_mask(d, i) : DT_OK;
}

dt_err dt_dataset_read_for_batch(dt_dataset *d, int64_t first, int64_t n, uint8_t *to, size_t image_nbytes)
{
    if (!d->features) return dt_dataset_read_images(d, first, n, to);
    for (int64_t i = 0; i < n; i++)
        DT_TRY(dt_features_read(d->features, &d->feature_slots[first + i], to + (size_t)i * image_nbytes));
    return DT_OK;
}

/* Find the images of a record whose text starts at token `from` of the batch. */
static dt_err find_images(dt_dataset *d, int64_t number, int32_t from, const dt_batch *b, int64_t *first, int64_t *n)
{
    const dt_image_form *form = &d->info.images;
    int64_t found = 0;
    DT_TRY(dt_dataset_images_of(d, number, first, n));
    if (!d->info.has_images) return DT_OK;
    for (int32_t t = from; t < b->n_tok; t++) {
        found += b->token[t] == form->token;
        DT_CHECK(b->target[t] != form->token, DT_ERR_DATA,
                 "%s: sample %" PRId64 ": an image placeholder must not be a target", d->path, number);
    }
    DT_CHECK(found == *n * form->n_tokens, DT_ERR_DATA,
             "%s: sample %" PRId64 ": found %" PRId64 " placeholder%s for %" PRId64 " image%s: expected %" PRId64
             " for each image",
             d->path, number, found, dt_plural(found), *n, dt_plural(*n), form->n_tokens);
    return DT_OK;
}

dt_err dt_fill_images(const dt_samples *set, int64_t number, int32_t from, dt_batch *b)
{
    dt_batch_images *to = dt_images_of(b);
    const int32_t room = to ? to->max - to->n : 0;
    int64_t first, n;
    DT_TRY(find_images(set->dataset, number, from, b, &first, &n));
    DT_CHECK(n <= room, DT_ERR_DATA, "%s: sample %" PRId64 ": %" PRId64 " images exceed the capacity of %d",
             set->dataset->path, number, n, room);
    if (!to) return DT_OK;
    const int32_t at = to->n;
    uint8_t *pixels = dt_images_append(to, b->n_seq - 1, (int32_t)n);
    DT_TRY(dt_dataset_read_grids(set->dataset, first, n, to->grid + at));
    return dt_dataset_read_for_batch(set->dataset, first, n, pixels, to->image_nbytes);
}

dt_err dt_fill_same_images(const dt_samples *set, int64_t number, int32_t from, dt_batch *b)
{
    const dt_batch_images *to = dt_images_of(b);
    const int32_t s = b->n_seq - 1;
    int64_t first, n;
    if (to) to->first[s] = to->first[s - 1], to->count[s] = to->count[s - 1];
    return find_images(set->dataset, number, from, b, &first, &n);
}
