/* encode_images.c - converts the images of a record to pixels in the chunk. */
#include "encode_records.h"
#include "dtrain/io/io.h"
#include "parquet.h"
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

static const char OF_ROW[] = "image bytes";

/* Read an image from its file, from the record, or from the bytes of its row. */
static dt_err read_image(const dt_recipe *recipe, const dt_chunk *p, const dt_chunk_item *item, const char *name,
                         char called[PATH_MAX], dt_image *image)
{
    size_t first, nbytes;
    if (dt_row_bytes(name, item->n_binary, &first, &nbytes)) {
        snprintf(called, PATH_MAX, "%s", OF_ROW);
        return dt_image_decode(called, p->text.bytes + item->first + item->nbytes + first, nbytes, image);
    }
    if (dt_image_is_data(name)) return dt_image_read_data(name, called, image);
    DT_TRY(dt_image_path(recipe->image_folder, item->path, name, called));
    DT_CHECK(recipe->image_folder || *name == '/' || access(called, F_OK) == 0 || errno != ENOENT, DT_ERR_DATA,
             "%s: cannot be opened: %s; set the directory for relative image paths with --image-folder", called,
             strerror(errno));
    for (int i = 0; i < 2; i++)
        if (recipe->output[i]) DT_TRY(dt_check_output(recipe->output[i], true, (const char *const[]){called}, 1));
    DT_TRY(dt_shard_names_check(&recipe->shards, called));
    return dt_image_read(called, image);
}

static dt_err add_image(const dt_recipe *recipe, const char *name, dt_chunk *p, dt_sample *s)
{
    char called[PATH_MAX] = "";
    dt_image image = {0};
    dt_err err = read_image(recipe, p, s->item, name, called, &image);
    if (err == DT_OK)
        err = dt_image_prepare(recipe->preprocessor, called, &image, (uint8_t *)p->pixels.bytes + p->pixels.n);
    dt_image_free(&image);
    if (err == DT_OK) p->pixels.n += dt_image_form_nbytes(recipe->images);
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
        if (before[-1].n_images == s->n_images && before[-1].image_names == s->image_names) return before - 1;
    return NULL;
}

dt_err dt_encode_images(const dt_recipe *recipe, const dt_parsed_record *record, dt_chunk *p, dt_sample *s)
{
    const size_t nbytes = (size_t)record->images.n * dt_image_form_nbytes(recipe->images);
    dt_text_reserve(&p->pixels, nbytes);
    DT_CHECK(!p->pixels.failed, DT_ERR_MEMORY, "out of memory for images of %zu bytes", nbytes);
    s->first_pixel = p->pixels.n;
    s->n_images = record->images.n;
    for (int i = 0; i < s->n_images; i++)
        s->image_names =
            dt_mix64(s->image_names) ^ dt_hash_bytes(record->images.path[i], strlen(record->images.path[i]));
    const dt_sample *same = find_same(p, s);
    if (same) {
        memcpy(p->pixels.bytes + p->pixels.n, p->pixels.bytes + same->first_pixel, nbytes);
        p->pixels.n += nbytes;
    } else {
        DT_TRY(read_images(recipe, record, p, s));
    }
    /* records with the same first image go to the same file, training or validation */
    s->hash = dt_hash_bytes(p->pixels.bytes + s->first_pixel, dt_image_form_nbytes(recipe->images));
    return DT_OK;
}
