/* batch_images.h - the images of a batch, an extension (token_batch.h). The loader and the decoder fill it, the vision
 * part of the model reads it, and batches of text do not have it. Every function is Local. */
#ifndef DTRAIN_BATCH_IMAGES_H
#define DTRAIN_BATCH_IMAGES_H

#include "dtrain/core/token_batch.h"
#include <string.h>

/** The grid of an image, as one number: the first of its cells has it, the others have 0. */
static inline uint32_t dt_grid_code(int64_t rows, int64_t columns) { return (uint32_t)rows << 16 | (uint32_t)columns; }
static inline int64_t dt_grid_rows(uint32_t code) { return code >> 16; }
static inline int64_t dt_grid_columns(uint32_t code) { return code & 0xffff; }
enum { DT_MAX_GRID_SIDE = 0xffff };

/** Images, each for one or several sequences (both texts of a pair). An image is RGB bytes row by row, or features, if
 *  the model takes them (vision.h). */
typedef struct dt_batch_images {
    int32_t n, max;
    size_t image_nbytes;
    uint8_t *pixels; /* [n, image_nbytes] */
    uint32_t
        *grid; /* [n]: of images that are grids of cells, each of which counts as an image (dt_grid_code); else 0 */
    int32_t *first; /* [n_seq] image of the first run of placeholders; later runs take the images after it */
    int32_t *count; /* [n_seq] images of the sequence, from `first`; other images are never its own */
    bool absent;    /* no rank has images in this pass, so no rank runs the tower */
} dt_batch_images;

/** Add space for at most max images, counted in ledger and freed by dt_batch_free; no operation for max 0.
 *  DT_ERR_ARG, DT_ERR_MEMORY. */
dt_err dt_batch_add_images(dt_batch *b, int32_t max, size_t image_nbytes, dt_ledger *ledger);
/** Bytes that dt_batch_add_images allocates for a batch of at most max_seq sequences. */
size_t dt_batch_images_nbytes(int32_t max, size_t image_nbytes, int32_t max_seq);
/** The images of a batch, maybe 0 of them; NULL: it has no space for images, or they are absent. */
dt_batch_images *dt_images_of(const dt_batch *b);
/** Their number; of grids, not that of the cells. */
int32_t dt_n_images_of(const dt_batch *b);
/** Remove them. */
void dt_images_clear(dt_batch *b);

/** Append n images, those of sequence `seq`. Returns the address of the first. */
static inline uint8_t *dt_images_append(dt_batch_images *i, int32_t seq, int32_t n)
{
    uint8_t *to = i->pixels + (size_t)i->n * i->image_nbytes;
    memset(i->grid + i->n, 0, (size_t)n * sizeof *i->grid);
    i->first[seq] = i->n;
    i->count[seq] = n;
    i->n += n;
    return to;
}

#endif
