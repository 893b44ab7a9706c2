/* decode.c - which format it is. */
#include "decode.h"
#include "dtrain/io.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 1 << 30 };

dt_err dt_image_alloc(const char *name, int64_t width, int64_t height, dt_image *image)
{
    DT_CHECK(width > 0 && height > 0, DT_ERR_DATA, "%s: a picture without pixels", name);
    DT_CHECK(width <= DT_IMAGE_MAX_PIXELS / height, DT_ERR_DATA,
             "%s: %lld x %lld pixels, more than the %d that are allowed", name, (long long)width, (long long)height,
             (int)DT_IMAGE_MAX_PIXELS);
    *image = (dt_image){.width = (int)width, .height = (int)height, .rgb = malloc(3 * (size_t)(width * height))};
    DT_CHECK(image->rgb, DT_ERR_MEMORY, "%s: no memory for %d x %d pixels", name, image->width, image->height);
    return DT_OK;
}

static dt_err decode(const char *name, const uint8_t *bytes, size_t nbytes, dt_image *image)
{
    if (nbytes >= 2 && bytes[0] == 'P' && strchr("2356", bytes[1]) && bytes[1])
        return dt_decode_netpbm(name, bytes, nbytes, image);
    return dt_fail(DT_ERR_DATA, "%s: %s", name,
                   nbytes ? "neither a JPEG, PNG, WebP, PPM nor PGM" : "empty, and not a picture");
}

dt_err dt_image_decode(const char *name, const void *bytes, size_t nbytes, dt_image *image)
{
    *image = (dt_image){0};
    const dt_err err = decode(name, bytes, nbytes, image);
    if (err != DT_OK) dt_image_free(image);
    return err;
}

dt_err dt_image_read(const char *path, dt_image *image)
{
    char *bytes;
    size_t nbytes;
    *image = (dt_image){0};
    DT_TRY(dt_read_file(path, MAX_FILE, &bytes, &nbytes));
    const dt_err err = dt_image_decode(path, bytes, nbytes, image);
    free(bytes);
    return err;
}
