/* decode_image.h - image formats: each decoder returns RGB, and rejects images that are too large before it allocates
 * memory. */
#ifndef DTRAIN_IMAGE_DECODE_H
#define DTRAIN_IMAGE_DECODE_H

#include "dtrain/image/image.h"

#define DT_IMAGE_CUT "the image is cut short"

/** Metadata about the orientation of an image. */
typedef struct dt_image_tags {
    uint8_t *exif; /* a TIFF directory; malloc'ed, NULL: none */
    size_t exif_nbytes;
    char *xmp; /* XML; malloc'ed, terminated by 0, NULL: none */
} dt_image_tags;

/** Allocate the pixels of an image. DT_ERR_DATA: the size is zero or too large. */
dt_err dt_image_alloc(const char *name, int64_t width, int64_t height, dt_image *image);

/** Decode an image. After an error the caller frees image and tags. */
dt_err dt_decode_netpbm(const char *name, const uint8_t *bytes, size_t nbytes, dt_image *image);
dt_err dt_decode_jpeg(const char *name, const uint8_t *bytes, size_t nbytes, dt_image *image, dt_image_tags *tags);
dt_err dt_decode_png(const char *name, const uint8_t *bytes, size_t nbytes, dt_image *image, dt_image_tags *tags);
dt_err dt_decode_webp(const char *name, const uint8_t *bytes, size_t nbytes, dt_image *image, dt_image_tags *tags);

/** DT_ERR_USAGE: this program was built without the library of a format. */
dt_err dt_image_no_library(const char *name, const char *format, const char *library);

/** Store a copy. An earlier XMP copy is replaced; Exif data of a second call is appended. DT_ERR_MEMORY. */
dt_err dt_image_keep_exif(dt_image_tags *tags, const uint8_t *bytes, size_t nbytes);
dt_err dt_image_keep_xmp(dt_image_tags *tags, const void *text, size_t nbytes);
void dt_image_tags_free(dt_image_tags *tags);

/** Value 1 to 8 of the tag Orientation, 1 if there is none. */
int dt_image_orientation(const dt_image_tags *tags);
/** Rotate or mirror an image upright. DT_ERR_MEMORY. */
dt_err dt_image_turn(dt_image *image, int orientation);

#endif
