/* contact_sheet.c - thumbnails of a dataset's images in one image, for visual inspection. */
#include "../file/dataset_file.h"
#include "dtrain/image/image.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { GAP = 2, WHITE = 255 };

static void put(const dt_image *sheet, int64_t column, int64_t row, int64_t S, const uint8_t *pixels)
{
    const int64_t x = GAP + column * (S + GAP), y = GAP + row * (S + GAP);
    for (int64_t i = 0; i < S; i++)
        memcpy(sheet->rgb + 3 * ((y + i) * sheet->width + x), pixels + 3 * i * S, 3 * (size_t)S);
}

/* A sheet can show tiles, but not the cells of grids, which are a few patches. */
static dt_err check_cells(const dt_dataset *d)
{
    dt_preprocessor p = {0};
    if (!d->info.images.grids) return DT_OK;
    DT_TRY(dt_image_form_preprocessor(&d->info.images, d->path, &p));
    const bool tiles = p.max_tiles > 0;
    dt_preprocessor_free(&p);
    DT_CHECK(tiles, DT_ERR_USAGE, "%s: a contact sheet cannot show images of different sizes", d->path);
    return DT_OK;
}

dt_err dt_dataset_draw_images(dt_dataset *d, int64_t most, const char *path)
{
    const int64_t S = d->info.images.size, total = d->info.n_images, n = most < total ? most : total;
    DT_CHECK(n > 0, DT_ERR_USAGE, "%s: the dataset has no images", d->path);
    DT_TRY(check_cells(d));
    int64_t n_columns = 1;
    while (n_columns * n_columns < n) n_columns++;
    const int64_t n_rows = dt_ceil_div(n, n_columns), width = GAP + n_columns * (S + GAP),
                  height = GAP + n_rows * (S + GAP);
    DT_CHECK(width * height <= DT_IMAGE_MAX_PIXELS, DT_ERR_USAGE,
             "%s: a contact sheet of %" PRId64 " images of %" PRId64 " pixels per side is too large; request fewer",
             d->path, n, S);
    dt_image sheet = {.width = (int)width, .height = (int)height, .rgb = malloc(3 * (size_t)(width * height))};
    uint8_t *pixels = malloc(dt_image_form_nbytes(&d->info.images));
    dt_err err = sheet.rgb && pixels ? DT_OK : dt_fail(DT_ERR_MEMORY, "%s: out of memory for a contact sheet", path);
    if (err == DT_OK) memset(sheet.rgb, WHITE, 3 * (size_t)(width * height));
    for (int64_t k = 0; k < n && err == DT_OK; k++) {
        err = dt_dataset_read_images(d, k * total / n, 1, pixels);
        if (err == DT_OK) put(&sheet, k % n_columns, k / n_columns, S, pixels);
    }
    if (err == DT_OK) err = dt_image_write_png(&sheet, path);
    dt_image_free(&sheet);
    free(pixels);
    return err;
}
