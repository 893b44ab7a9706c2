/* encode_images.c - from the images of a record to pixels in the chunk. */
#include "encode.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* The folder of the file that the record is in, up to its slash. */
static int folder_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (int)(slash - path) + 1 : 0;
}

static dt_err add_image(const dt_recipe *recipe, const char *path, dt_chunk *p)
{
    dt_image image = {0};
    DT_TRY(dt_image_read(path, &image));
    const dt_err err = dt_image_prepare(recipe->preprocessor, path, &image, p->pixels + p->n_pixels);
    dt_image_free(&image);
    if (err == DT_OK) p->n_pixels += dt_image_form_nbytes(recipe->images);
    return err;
}

dt_err dt_encode_images(const dt_recipe *recipe, const dt_parsed_record *record, dt_chunk *p, dt_sample *s)
{
    const size_t nbytes = (size_t)record->n_images * dt_image_form_nbytes(recipe->images), before = p->n_pixels;
    const char *folder = recipe->image_folder, *file = s->item->path;
    DT_TRY(dt_chunk_reserve_pixels(p, nbytes));
    for (int i = 0; i < record->n_images; i++) {
        char path[PATH_MAX];
        const char *name = record->images[i];
        const int n = name[0] == '/' ? snprintf(path, sizeof path, "%s", name)
                      : folder       ? snprintf(path, sizeof path, "%s/%s", folder, name)
                                     : snprintf(path, sizeof path, "%.*s%s", folder_length(file), file, name);
        DT_CHECK(n > 0 && n < (int)sizeof path, DT_ERR_DATA, "%.200s...: the path of an image is too long", name);
        DT_TRY(add_image(recipe, path, p));
    }
    s->n_images = record->n_images;
    /* what begins with one image is in one file, of training or of validation */
    s->hash = dt_hash_bytes(p->pixels + before, dt_image_form_nbytes(recipe->images));
    return DT_OK;
}
