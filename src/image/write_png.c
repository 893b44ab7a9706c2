/* write_png.c - writes an image as PNG with libpng's simplified API. */
#include "decode_image.h"
#include "dtrain/io/io.h"
#ifdef DT_HAVE_LIBPNG
#include <png.h>
#endif
#include <stdlib.h>

#ifndef DT_HAVE_LIBPNG
dt_err dt_image_write_png(const dt_image *image, const char *path)
{
    return dt_image_no_library(path, "PNG", "libpng");
}
#else
dt_err dt_image_write_png(const dt_image *image, const char *path)
{
    png_image png = {.version = PNG_IMAGE_VERSION,
                     .width = (png_uint_32)image->width,
                     .height = (png_uint_32)image->height,
                     .format = PNG_FORMAT_RGB};
    png_alloc_size_t n = PNG_IMAGE_PNG_SIZE_MAX(png);
    void *bytes = malloc(n);
    DT_CHECK(bytes, DT_ERR_MEMORY, "%s: out of memory for an image of %d x %d", path, image->width, image->height);
    const bool made = png_image_write_to_memory(&png, bytes, &n, 0, image->rgb, 0, NULL);
    const dt_err err = made ? dt_write_file_atomic(path, bytes, n) : dt_fail(DT_ERR_FAULT, "%s: %s", path, png.message);
    png_image_free(&png);
    free(bytes);
    return err;
}
#endif
