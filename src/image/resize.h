/* resize.h - resizing, bit-identical to Pillow (ImagingResample). */
#ifndef DTRAIN_IMAGE_RESIZE_H
#define DTRAIN_IMAGE_RESIZE_H

#include "dtrain/image/image.h"

/** A rectangle of an image. */
typedef struct window {
    int64_t left, top, width, height;
} window;

/** Resize to [height, width] and write the window keep of the result to out, with `stride` bytes between
 *  rows. keep must lie inside the resized image. DT_ERR_MEMORY. */
dt_err dt_image_resize(const dt_image *image, int64_t width, int64_t height, dt_resample how, window keep, uint8_t *out,
                       size_t stride);

#endif
