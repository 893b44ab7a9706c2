/* prepare.c - preprocessing of a decoded image for a vision tower: pad, resize, crop. Only pixels inside
 * the crop are computed. */
#include "dtrain/image/image.h"
#include "resize.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

void dt_image_free(dt_image *image)
{
    free(image->rgb);
    *image = (dt_image){0};
}

static void fill(uint8_t *rgb, size_t n_pixels, const uint8_t colour[3])
{
    for (size_t i = 0; i < n_pixels; i++) memcpy(rgb + 3 * i, colour, 3);
}

static dt_err pad_to_square(const char *name, const dt_image *in, const uint8_t colour[3], dt_image *out)
{
    const int side = in->width > in->height ? in->width : in->height;
    const size_t n_pixels = (size_t)side * (size_t)side, row = 3 * (size_t)in->width;
    DT_CHECK(n_pixels <= DT_IMAGE_MAX_PIXELS, DT_ERR_DATA,
             "%s: the image is too large: padding %d x %d pixels to a square exceeds the maximum of %d pixels", name,
             in->width, in->height, (int)DT_IMAGE_MAX_PIXELS);
    *out = (dt_image){.width = side, .height = side, .rgb = malloc(3 * n_pixels)};
    DT_CHECK(out->rgb, DT_ERR_MEMORY, "out of memory for an image of %d x %d pixels", side, side);
    fill(out->rgb, n_pixels, colour);
    uint8_t *to = out->rgb + 3 * ((size_t)(side - in->height) / 2 * (size_t)side + (size_t)(side - in->width) / 2);
    for (int y = 0; y < in->height; y++) memcpy(to + (size_t)y * 3 * (size_t)side, in->rgb + (size_t)y * row, row);
    return DT_OK;
}

/* Range of `have` pixels that a crop to `want` keeps (left margin rounded down), and its offset in the
 * output if that is larger (rounded up). */
static void crop(int64_t have, int64_t want, int64_t *from, int64_t *to, int64_t *n)
{
    *from = have > want ? (have - want) / 2 : 0;
    *to = have < want ? (want - have + 1) / 2 : 0;
    *n = dt_min_i64(have, want);
}

/* Python's round: halves to even. */
static int64_t whole_cells(double side, int cell) { return (int64_t)nearbyint(side / cell) * cell; }

/* smart_resize of transformers: multiples of a cell, of about the same aspect ratio, with a number of pixels within the
 * limits. */
static dt_err native_size(const dt_preprocessor *p, const char *name, const dt_image *image, int64_t *height,
                          int64_t *width)
{
    const double h = image->height, w = image->width, cell = p->cell;
    DT_CHECK(fmax(h, w) / fmin(h, w) <= 200, DT_ERR_DATA,
             "%s: the image has %d x %d pixels: expected sides that differ by a factor of at most 200", name,
             image->width, image->height);
    *height = whole_cells(h, p->cell), *width = whole_cells(w, p->cell);
    if (*height * *width > p->max_pixels) {
        const double beta = sqrt(h * w / (double)p->max_pixels);
        *height = dt_max_i64(p->cell, (int64_t)(floor(h / beta / cell) * cell));
        *width = dt_max_i64(p->cell, (int64_t)(floor(w / beta / cell) * cell));
    } else if (*height * *width < p->min_pixels) {
        const double beta = sqrt((double)p->min_pixels / (h * w));
        *height = (int64_t)(ceil(h * beta / cell) * cell);
        *width = (int64_t)(ceil(w * beta / cell) * cell);
    }
    return DT_OK;
}

/* get_optimal_tiled_canvas of transformers: the grid whose aspect ratio differs least from that of the image. Grids of
 * the same difference are visited by their number of tiles, then by columns. A later one replaces the earlier one if
 * the image fills more than half of it. */
static void tiled_size(const dt_preprocessor *p, const dt_image *image, int64_t *height, int64_t *width)
{
    const double ratio = (double)image->width / image->height, area = (double)image->width * image->height;
    double best = INFINITY;
    *height = *width = p->cell;
    for (int64_t n = p->min_tiles; n <= p->max_tiles; n++)
        for (int64_t columns = 1; columns <= n; columns++) {
            const int64_t rows = n / columns;
            if (n % columns != 0) continue;
            const double off = fabs(ratio - (double)columns / (double)rows);
            if (off > best || (off == best && area <= 0.5 * p->cell * p->cell * (double)n)) continue;
            best = off;
            *height = rows * p->cell, *width = columns * p->cell;
        }
}

static dt_err size_of(const dt_preprocessor *p, const char *name, const dt_image *image, int64_t *height,
                      int64_t *width)
{
    if (p->max_tiles == 0) return native_size(p, name, image, height, width);
    tiled_size(p, image, height, width);
    return DT_OK;
}

/* Does a cell with the whole image follow the others? */
static bool adds_whole(const dt_preprocessor *p, int64_t n_cells) { return p->max_tiles > 0 && n_cells > 1; }

dt_err dt_image_grid(const dt_preprocessor *p, const char *name, const dt_image *image, int64_t *rows, int64_t *columns)
{
    int64_t height, width;
    *rows = *columns = 1;
    if (!p->cell) return DT_OK;
    DT_TRY(size_of(p, name, image, &height, &width));
    *rows = height / p->cell, *columns = width / p->cell;
    if (p->max_tiles) *rows *= *columns, *columns = 1;
    *rows += adds_whole(p, *rows);
    DT_CHECK(*rows <= DT_IMAGE_MAX_CELLS && *columns <= DT_IMAGE_MAX_CELLS && *rows * *columns <= DT_IMAGE_MAX_CELLS,
             DT_ERR_DATA, "%s: the image has %lld x %lld cells: expected at most %d cells; lower max_pixels", name,
             (long long)*columns, (long long)*rows, (int)DT_IMAGE_MAX_CELLS);
    return DT_OK;
}

/* Resize, then move each row of pixels to its cells. The whole image follows tiles. */
static dt_err prepare_cells(const dt_preprocessor *p, const char *name, const dt_image *image, uint8_t *out)
{
    int64_t height, width;
    const int64_t row = 3 * (int64_t)p->cell, cell = row * p->cell;
    DT_TRY(size_of(p, name, image, &height, &width));
    const int64_t n = height / p->cell * (width / p->cell);
    uint8_t *all = malloc((size_t)(3 * height * width));
    DT_CHECK(all, DT_ERR_MEMORY, "out of memory for an image of %lld x %lld pixels", (long long)width,
             (long long)height);
    const window whole = {.width = width, .height = height};
    dt_err err = dt_image_resize(image, width, height, p->resample, whole, all, 3 * (size_t)width);
    for (int64_t y = 0; err == DT_OK && y < height; y++)
        for (int64_t x = 0; x < width / p->cell; x++)
            memcpy(out + (y / p->cell * (width / p->cell) + x) * cell + y % p->cell * row,
                   all + y * 3 * width + x * row, (size_t)row);
    if (err == DT_OK && adds_whole(p, n))
        err = dt_image_resize(image, p->cell, p->cell, p->resample, (window){.width = p->cell, .height = p->cell},
                              out + n * cell, (size_t)row);
    free(all);
    return err;
}

dt_err dt_image_prepare(const dt_preprocessor *p, const char *name, const dt_image *image, uint8_t *out)
{
    static const uint8_t BLACK[3] = {0};
    const size_t n_pixels = (size_t)p->out_height * (size_t)p->out_width;
    dt_image padded = {0};
    if (p->cell) return prepare_cells(p, name, image, out);
    if (p->pad && image->width != image->height) {
        DT_TRY(pad_to_square(name, image, p->colour, &padded));
        image = &padded;
    }

    int64_t width = p->width ? p->width : image->width, height = p->height ? p->height : image->height;
    const int64_t edge = p->shortest_edge;
    if (edge && width <= height)
        height = edge * height / width, width = edge;
    else if (edge)
        width = edge * width / height, height = edge;

    window keep;
    int64_t x, y;
    crop(width, p->out_width, &keep.left, &x, &keep.width);
    crop(height, p->out_height, &keep.top, &y, &keep.height);
    if (keep.width < p->out_width || keep.height < p->out_height) fill(out, n_pixels, BLACK);
    uint8_t *at = out + 3 * ((size_t)y * (size_t)p->out_width + (size_t)x);
    const dt_err err = dt_image_resize(image, width, height, p->resample, keep, at, 3 * (size_t)p->out_width);
    dt_image_free(&padded);
    return err;
}
