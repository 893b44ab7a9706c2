/* image.h - from an image file to the pixels of a vision tower, bit for bit as Pillow and transformers' image
 * processors compute them before rescaling and normalising.
 *
 * Every function is Local and has no state: threads may call them concurrently. */
#ifndef DTRAIN_IMAGE_H
#define DTRAIN_IMAGE_H

#include "dtrain/io/spec.h"

/** Larger images are refused before decoding. Pixels: Pillow's limit, twice the size at which it warns. Sides: libpng's
 *  limit. */
enum { DT_IMAGE_MAX_PIXELS = 178956970, DT_IMAGE_MAX_FILE_SIDE = 1000000 };

/** A decoded image. {0} to begin; freed with dt_image_free. */
typedef struct dt_image {
    int width, height;
    uint8_t *rgb; /* [height, width, 3], malloc'ed */
} dt_image;

/** Free the pixels. Safe on {0}; leaves {0}. */
void dt_image_free(dt_image *image);

/** Decode JPEG, PNG, WebP (the first frame of an animation), PPM or PGM, by the first bytes, as transformers'
 *  load_image does with Pillow: apply EXIF's orientation, then convert to RGB. Alpha is dropped, grey replicated,
 *  palettes looked up, CMYK (inverted, as Adobe writes it) converted; of 16 bits the upper 8 are used (16-bit grey is
 *  clipped at 255).
 *
 *  name   for messages
 *  bytes  in   [nbytes]
 *  image  out  freed with dt_image_free
 *
 *  DT_ERR_DATA naming it: none of these formats, damaged, truncated, too large. DT_ERR_MEMORY. */
dt_err dt_image_decode(const char *name, const void *bytes, size_t nbytes, dt_image *image);
/** As dt_image_decode, for a file. */
dt_err dt_image_read(const char *path, dt_image *image);
/** As dt_image_decode, for a base64 data: URI. called: out, its beginning, for messages. */
enum { DT_IMAGE_CALLED = 48 };
dt_err dt_image_read_data(const char *uri, char called[DT_IMAGE_CALLED], dt_image *image);

/** Resize filters, with Pillow's values. */
typedef enum dt_resample { DT_NEAREST, DT_LANCZOS, DT_BILINEAR, DT_BICUBIC, DT_BOX, DT_HAMMING } dt_resample;

/** Steps of a preprocessor_config.json, in this order; steps with size 0 are skipped. {0} to begin; freed with
 *  dt_preprocessor_free. */
typedef struct dt_preprocessor {
    bool pad;                    /* to a square, with the image in the centre */
    uint8_t colour[3];           /* of the padding: floor(255 mean) */
    int shortest_edge;           /* resize the shorter side to this; the other keeps the aspect ratio, rounded down */
    int height, width;           /* or resize to this size */
    dt_resample resample;        /* filter */
    int crop_height, crop_width; /* centre crop; a smaller image gets a black margin */
    /* the tower's input is (rescale_factor x - mean) / std; 1, 0, 1 if a step is off */
    double rescale_factor, mean[3], std[3];
    /* instead of the steps before: both sides become multiples of a cell; 0: not. There are two kinds:
     * patch > 0      a cell has merge x merge patches, and the image has min_pixels to max_pixels
     * max_tiles > 0  the grid of min_tiles to max_tiles cells has the most similar aspect ratio. If there are several
     *                cells, another one with the whole image follows */
    int cell, patch, merge;
    int64_t min_pixels, max_pixels, min_tiles, max_tiles;
    int out_height, out_width; /* size of dt_image_prepare's output, or of a cell */
    char *json;                /* text of the object, malloc'ed, for datasets and checkpoints */
} dt_preprocessor;

/** Read a directory (processor_config.json's image_processor, else preprocessor_config.json) or a file of either kind.
 *  Missing keys have the defaults of the image_processor_type: CLIPImageProcessor, SiglipImageProcessor,
 *  LlavaImageProcessor, GotOcr2ImageProcessor (InternVL) or Qwen2VLImageProcessor. p: out. DT_ERR_DATA naming file and
 *  key: another type, an unsupported step, or images of different sizes. */
dt_err dt_preprocessor_read(const char *path, dt_preprocessor *p);
/** As dt_preprocessor_read, for a directory that may have neither file: then p->json is NULL. */
dt_err dt_preprocessor_find(const char *dir, dt_preprocessor *p);
/** Default mean and standard deviation of an image processor ("CLIPImageProcessor"). */
void dt_preprocessor_usual(const char *type, double mean[3], double std[3]);
/** As dt_preprocessor_read, from the text of a JSON object. file: for messages. */
dt_err dt_preprocessor_parse(const char *file, const char *json, size_t nbytes, dt_preprocessor *p);
/** As dt_preprocessor_read, from a parsed object. */
dt_err dt_preprocessor_from(const dt_spec *object, dt_preprocessor *p);
/** The first key in which two of them differ, with a description of both values; NULL: one tower takes the images of
 *  both. Values are compared as floats, as the tower uses them. The limits of the number of pixels or tiles may differ:
 *  users lower them to save memory. */
typedef struct dt_preprocessor_words {
    char text[96];
} dt_preprocessor_words;
const char *dt_preprocessor_differs(const dt_preprocessor *a, const dt_preprocessor *b, dt_preprocessor_words *of_a,
                                    dt_preprocessor_words *of_b);
/** Free the text. Safe on {0}; leaves {0}. */
void dt_preprocessor_free(dt_preprocessor *p);

enum { DT_IMAGE_MAX_CELLS = 0xffff };
/** The cells of an image: rows and columns of the grid that dt_image_prepare makes of it; 1 x 1 without cells. Tiles
 *  are one column.
 *  DT_ERR_DATA: a side is more than 200 times the other, or more cells than DT_IMAGE_MAX_CELLS. */
dt_err dt_image_grid(const dt_preprocessor *p, const char *name, const dt_image *image, int64_t *rows,
                     int64_t *columns);

/** Apply the steps to an image.
 *
 *  name  for messages
 *  out   out  [out_height, out_width, 3], the caller's; of each cell of dt_image_grid, row by row
 *
 *  DT_ERR_DATA: padding would make a square of more than DT_IMAGE_MAX_PIXELS. Resizing has no such limit, because only
 *  the cropped part is computed. DT_ERR_MEMORY. */
dt_err dt_image_prepare(const dt_preprocessor *p, const char *name, const dt_image *image, uint8_t *out);

/** Write an image as PNG, durably; an existing file is replaced. DT_ERR_WRITE, DT_ERR_MEMORY. */
dt_err dt_image_write_png(const dt_image *image, const char *path);

#endif
