/* prepare.c - preprocessing of a decoded image for a vision tower: pad, resize, crop. Only pixels inside
 * the crop are computed. */
#include "dtrain/image/image.h"
#include "resize.h"
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

dt_err dt_image_prepare(const dt_preprocessor *p, const char *name, const dt_image *image, uint8_t *out)
{
    static const uint8_t BLACK[3] = {0};
    const size_t n_pixels = (size_t)p->out_height * (size_t)p->out_width;
    dt_image padded = {0};
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
