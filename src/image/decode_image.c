/* decode_image.c - detects the format of an image. */
#include "decode_image.h"
#include "dtrain/chat/chat.h"
#include "dtrain/io/io.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 1 << 30 };

dt_err dt_image_alloc(const char *name, int64_t width, int64_t height, dt_image *image)
{
    DT_CHECK(width > 0 && height > 0, DT_ERR_DATA, "%s: the image has no pixels", name);
    DT_CHECK(width <= DT_IMAGE_MAX_PIXELS / height, DT_ERR_DATA,
             "%s: the image is too large: %lld x %lld pixels, expected at most %d pixels", name, (long long)width,
             (long long)height, (int)DT_IMAGE_MAX_PIXELS);
    DT_CHECK(width <= DT_IMAGE_MAX_FILE_SIDE && height <= DT_IMAGE_MAX_FILE_SIDE, DT_ERR_DATA,
             "%s: the image is too large: %lld x %lld pixels, expected at most %d per side", name, (long long)width,
             (long long)height, (int)DT_IMAGE_MAX_FILE_SIDE);
    *image = (dt_image){.width = (int)width, .height = (int)height, .rgb = malloc(3 * (size_t)(width * height))};
    DT_CHECK(image->rgb, DT_ERR_MEMORY, "%s: out of memory for %d x %d pixels", name, image->width, image->height);
    return DT_OK;
}

dt_err dt_image_no_library(const char *name, const char *format, const char *library)
{
    return dt_fail(DT_ERR_USAGE, "%s: %s images need %s, and this program was built without it: install %s, then make",
                   name, format, library, library);
}

static bool has(const uint8_t *bytes, size_t nbytes, size_t at, const char *text)
{
    const size_t n = strlen(text);
    return nbytes >= at + n && !memcmp(bytes + at, text, n);
}

static dt_err decode(const char *name, const uint8_t *bytes, size_t nbytes, dt_image *image, dt_image_tags *tags)
{
    DT_CHECK(nbytes, DT_ERR_DATA, "%s: the file is empty", name);
    if (has(bytes, nbytes, 0, "\xff\xd8\xff")) return dt_decode_jpeg(name, bytes, nbytes, image, tags);
    if (has(bytes, nbytes, 0, "\x89PNG\r\n\x1a\n")) return dt_decode_png(name, bytes, nbytes, image, tags);
    if (has(bytes, nbytes, 0, "RIFF") && has(bytes, nbytes, 8, "WEBP"))
        return dt_decode_webp(name, bytes, nbytes, image, tags);
    if (nbytes > 2 && bytes[0] == 'P' && (bytes[1] == '2' || bytes[1] == '3' || bytes[1] == '5' || bytes[1] == '6'))
        return dt_decode_netpbm(name, bytes, nbytes, image);
    return dt_fail(DT_ERR_DATA, "%s: expected JPEG, PNG, WebP, PPM or PGM, found another format", name);
}

dt_err dt_image_decode(const char *name, const void *bytes, size_t nbytes, dt_image *image)
{
    dt_image_tags tags = {0};
    *image = (dt_image){0};
    dt_err err = decode(name, bytes, nbytes, image, &tags);
    if (err == DT_OK) err = dt_image_turn(image, dt_image_orientation(&tags));
    dt_image_tags_free(&tags);
    if (err != DT_OK) dt_image_free(image);
    return err;
}

dt_err dt_image_read(const char *path, dt_image *image)
{
    char *bytes;
    size_t nbytes;
    *image = (dt_image){0};
    DT_TRY(dt_fault("image.read"));
    DT_TRY(dt_read_file(path, MAX_FILE, &bytes, &nbytes));
    const dt_err err = dt_image_decode(path, bytes, nbytes, image);
    free(bytes);
    return err;
}

dt_err dt_image_read_data(const char *uri, char called[DT_IMAGE_CALLED], dt_image *image)
{
    uint8_t *bytes;
    size_t nbytes;
    *image = (dt_image){0};
    snprintf(called, DT_IMAGE_CALLED, "%.40s...", uri);
    DT_TRY(dt_error_prefix(dt_image_data(uri, &bytes, &nbytes), "%s: ", called));
    const dt_err err = dt_image_decode(called, bytes, nbytes, image);
    free(bytes);
    return err;
}
