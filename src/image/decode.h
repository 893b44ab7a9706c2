/* decode.h - the formats of pictures: each gives RGB, and refuses what is too large before it takes memory for it. */
#ifndef DTRAIN_IMAGE_DECODE_H
#define DTRAIN_IMAGE_DECODE_H

#include "dtrain/image.h"

#define DT_IMAGE_CUT "the picture is cut short"

/** Room for so many pixels. DT_ERR_DATA: none, or more than DT_IMAGE_MAX_PIXELS. */
dt_err dt_image_alloc(const char *name, int64_t width, int64_t height, dt_image *image);

/** After an error the caller frees the image. */
dt_err dt_decode_netpbm(const char *name, const uint8_t *bytes, size_t nbytes, dt_image *image);

#endif
