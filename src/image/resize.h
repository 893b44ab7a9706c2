/* resize.h - resizing as Pillow does it (ImagingResample). */
#ifndef DTRAIN_IMAGE_RESIZE_H
#define DTRAIN_IMAGE_RESIZE_H

#include "dtrain/image/image.h"

/** A part of an image. */
typedef struct window {
    int64_t left, top, width, height;
} window;

/** Resize to [height, width] and write the part `keep` of it, row by row, to out: `stride` bytes from row to row.
 *  keep lies within the resized image. DT_ERR_MEMORY. */
dt_err dt_image_resize(const dt_image *image, int64_t width, int64_t height, dt_resample how, window keep, uint8_t *out,
                       size_t stride);

#endif
