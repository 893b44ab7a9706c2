/* encode_images.c - converts the images of a record to pixels in the chunk. */
#include "encode_records.h"
#include "dtrain/io/io.h"
#include "parquet.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char OF_ROW[] = "image bytes";

/* DT_ERR_USAGE: a shard would replace the image. The number of shards is known only at the end. No image may therefore
 * have the name of any shard. */
static dt_err check_shard(const char *output, const char *image)
{
    char path[PATH_MAX];
    if (!realpath(image, path)) return DT_OK; /* reported when it is read */
    if (dt_has_ending(path, ".part")) path[strlen(path) - 5] = '\0';
    return dt_is_shard_of(path, output) ? dt_check_output(path, true, &image, 1) : DT_OK;
}

/* Read an image from its file, from the record, or from the bytes of its row. */
static dt_err read_image(const dt_recipe *recipe, const dt_chunk *p, const dt_chunk_item *item, const char *name,
                         char called[PATH_MAX], dt_image *image)
{
    const dt_make_options *opt = recipe->rules.opt;
    const char *const folder = opt->images.folder, *const output[] = {opt->output, opt->validation};
    size_t first, nbytes;
    if (dt_row_bytes(name, item->n_binary, &first, &nbytes)) {
        snprintf(called, PATH_MAX, "%s", OF_ROW);
        return dt_image_decode(called, p->text.bytes + item->first + item->nbytes + first, nbytes, image);
    }
    if (dt_image_is_data(name)) return dt_image_read_data(name, called, image);
    DT_TRY(dt_image_path(folder, item->path, name, called));
    DT_CHECK(folder || *name == '/' || access(called, F_OK) == 0 || errno != ENOENT, DT_ERR_DATA,
             "%s: cannot be opened: %s; set the directory for relative image paths with --image-folder", called,
             strerror(errno));
    for (int i = 0; i < 2; i++)
        if (output[i]) DT_TRY(dt_check_output(output[i], true, (const char *const[]){called}, 1));
    if (opt->n_shards || opt->shard_nbytes) DT_TRY(check_shard(opt->output, called));
    return dt_image_read(called, image);
}

/* Prepare an image, or all cells of its grid. */
static dt_err prepare(const dt_recipe *recipe, const char *called, const dt_image *image, dt_chunk *p, dt_sample *s)
{
    int64_t rows, columns;
    DT_TRY(dt_image_grid(recipe->preprocessor, called, image, &rows, &columns));
    const int64_t n = rows * columns;
    const size_t nbytes = (size_t)n * dt_image_form_nbytes(recipe->images);
    dt_text_reserve(&p->pixels, nbytes);
    DT_CHECK(!p->pixels.failed, DT_ERR_MEMORY, "out of memory for images of %zu bytes", nbytes);
    DT_TRY(dt_image_prepare(recipe->preprocessor, called, image, (uint8_t *)p->pixels.bytes + p->pixels.n));
    p->pixels.n += nbytes;
    for (int64_t i = 0; recipe->images->grids && i < n; i++) {
        const uint32_t code = i == 0 ? dt_grid_code(rows, columns) : 0;
        dt_text_append(&p->grids, (const char *)&code, sizeof code);
    }
    DT_CHECK(!p->grids.failed, DT_ERR_MEMORY, "out of memory for the grids of %lld cells", (long long)n);
    s->n_images += (int)n;
    return DT_OK;
}

static dt_err add_image(const dt_recipe *recipe, const char *name, dt_chunk *p, dt_sample *s)
{
    char called[PATH_MAX] = "";
    dt_image image = {0};
    dt_err err = read_image(recipe, p, s->item, name, called, &image);
    if (err == DT_OK) err = prepare(recipe, called, &image, p, s);
    dt_image_free(&image);
    const size_t n = strlen(called);
    if (err != DT_OK && n && strcmp(called, OF_ROW) != 0 && !strncmp(dt_error_message(), called, n)) s->n_named = n;
    return err;
}

static dt_err read_images(const dt_recipe *recipe, const dt_parsed_record *record, dt_chunk *p, dt_sample *s)
{
    for (int i = 0; i < record->images.n; i++) DT_TRY(add_image(recipe, record->images.path[i], p, s));
    return DT_OK;
}

/* Find an earlier sample of the same item with the same images, such as another pair of a ranking. NULL: none. */
static const dt_sample *find_same(const dt_chunk *p, const dt_sample *s)
{
    for (const dt_sample *before = s; before > p->samples && before[-1].item == s->item; before--)
        if (before[-1].n_whole_images == s->n_whole_images && before[-1].image_names == s->image_names)
            return before - 1;
    return NULL;
}

static int64_t cells_of_first(const dt_recipe *recipe, const dt_chunk *p, const dt_sample *s)
{
    uint32_t code;
    if (!recipe->images->grids) return 1;
    memcpy(&code, p->grids.bytes + s->first_grid, sizeof code);
    return dt_grid_rows(code) * dt_grid_columns(code);
}

dt_err dt_count_cells(const dt_recipe *recipe, const dt_chunk *p, const dt_sample *s, int32_t **n_cells)
{
    int n = 0;
    *n_cells = NULL;
    if (!recipe->images->grids || s->n_images == 0) return DT_OK;
    DT_ALLOC(*n_cells, s->n_whole_images, "out of memory for %d images", s->n_whole_images);
    for (int i = 0; i < s->n_images; i++) {
        uint32_t code;
        memcpy(&code, p->grids.bytes + s->first_grid + (size_t)i * sizeof code, sizeof code);
        if (code > 0) (*n_cells)[n++] = (int32_t)(dt_grid_rows(code) * dt_grid_columns(code));
    }
    return DT_OK;
}

dt_err dt_encode_images(const dt_recipe *recipe, const dt_parsed_record *record, dt_chunk *p, dt_sample *s)
{
    const size_t each = dt_image_form_nbytes(recipe->images);
    s->first_pixel = p->pixels.n;
    s->first_grid = p->grids.n;
    s->n_images = 0;
    s->n_whole_images = record->images.n;
    for (int i = 0; i < s->n_whole_images; i++)
        s->image_names =
            dt_mix64(s->image_names) ^ dt_hash_bytes(record->images.path[i], strlen(record->images.path[i]));
    const dt_sample *same = find_same(p, s);
    /* images of native resolution have a size of their own, which prepare() reserves */
    const size_t nbytes = same                     ? (size_t)same->n_images * each
                          : !recipe->images->grids ? (size_t)s->n_whole_images * each
                                                   : 0;
    dt_text_reserve(&p->pixels, nbytes);
    DT_CHECK(!p->pixels.failed, DT_ERR_MEMORY, "out of memory for images of %zu bytes", nbytes);
    if (same) {
        memcpy(p->pixels.bytes + p->pixels.n, p->pixels.bytes + same->first_pixel, nbytes);
        p->pixels.n += nbytes;
        s->n_images = same->n_images;
        for (int i = 0; recipe->images->grids && i < s->n_images; i++) {
            uint32_t code;
            memcpy(&code, p->grids.bytes + same->first_grid + (size_t)i * sizeof code, sizeof code);
            dt_text_append(&p->grids, (const char *)&code, sizeof code);
        }
    } else {
        DT_TRY(read_images(recipe, record, p, s));
    }
    /* records with the same first image go to the same file, training or validation */
    s->hash = dt_hash_bytes(p->pixels.bytes + s->first_pixel, each * (size_t)cells_of_first(recipe, p, s));
    return DT_OK;
}
