/* image.h - from an image's file to the pixels that a vision tower takes, bit for bit what Pillow and transformers'
 * image processors give before they rescale and normalise.
 *
 * Nothing here is collective, and nothing keeps state: threads may work side by side. */
#ifndef DTRAIN_IMAGE_H
#define DTRAIN_IMAGE_H

#include "dtrain/io/spec.h"

/** An image that is larger is refused before it is decoded. Pixels: Pillow's own limit, twice the number at which it
 *  warns. Sides: libpng's. */
enum { DT_IMAGE_MAX_PIXELS = 178956970, DT_IMAGE_MAX_FILE_SIDE = 1000000 };

/** A decoded image. {0} to start from; free with dt_image_free. */
typedef struct dt_image {
    int width, height;
    uint8_t *rgb; /* [height, width, 3], malloc'ed */
} dt_image;

void dt_image_free(dt_image *image); /* safe on {0}; leaves {0} behind */

/** Decode JPEG, PNG, WebP (of an animation the first frame), PPM or PGM, told apart by their first bytes, as
 *  transformers' load_image does by Pillow: turned as EXIF's orientation says, then converted to RGB. So alpha is
 *  dropped, grey replicated, palettes looked up, CMYK (inverted, as Adobe writes it) converted, and of 16 bits the
 *  upper ones kept (grey of 16 bits is clipped at 255).
 *
 *  name   what messages call the image
 *  image  the caller's to free
 *
 *  DT_ERR_DATA naming it: none of these formats, damaged, cut short, too large. DT_ERR_MEMORY. */
dt_err dt_image_decode(const char *name, const void *bytes, size_t nbytes, dt_image *image);
/** The same for a file. */
dt_err dt_image_read(const char *path, dt_image *image);
/** The same for a data: URI in base64. called: what messages call it, its beginning. */
enum { DT_IMAGE_CALLED = 48 };
dt_err dt_image_read_data(const char *uri, char called[DT_IMAGE_CALLED], dt_image *image);

/** Filters for resizing, by Pillow's numbers. */
typedef enum dt_resample { DT_NEAREST, DT_LANCZOS, DT_BILINEAR, DT_BICUBIC, DT_BOX, DT_HAMMING } dt_resample;

/** What preprocessor_config.json asks for. The steps are done in this order, those of zero size left out. {0} to start
 *  from; free with dt_preprocessor_free. */
typedef struct dt_preprocessor {
    bool pad;                    /* to a square, the image in the middle */
    uint8_t colour[3];           /* of what is padded: floor(255 mean) */
    int shortest_edge;           /* resize: the shorter side is this, the other keeps the aspect, rounded down */
    int height, width;           /* or resize to this size */
    dt_resample resample;        /* how */
    int crop_height, crop_width; /* cut out of the middle; what is smaller gets a black margin */
    /* (rescale_factor x - mean) / std is the tower's input; 1, 0, 1 where a step is switched off */
    double rescale_factor, mean[3], std[3];
    int out_height, out_width; /* of what dt_image_prepare gives */
    char *json;                /* the object itself, to be recorded and parsed again */
} dt_preprocessor;

/** Read from a directory (processor_config.json's image_processor, else preprocessor_config.json) or a file of either
 *  kind. Keys that are absent have the default of the image_processor_type: CLIPImageProcessor, SiglipImageProcessor or
 *  LlavaImageProcessor.
 *  DT_ERR_DATA by file and key: another type, a step that is not known here, images that would differ in size. */
dt_err dt_preprocessor_read(const char *path, dt_preprocessor *p);
/** The same of a directory that may have neither: p->json is NULL then. */
dt_err dt_preprocessor_find(const char *dir, dt_preprocessor *p);
/** Mean and standard deviation of an image processor ("CLIPImageProcessor") whose file says nothing of them. */
void dt_preprocessor_usual(const char *type, double mean[3], double std[3]);
/** The same from the text of a JSON object; file is what messages call it. */
dt_err dt_preprocessor_parse(const char *file, const char *json, size_t nbytes, dt_preprocessor *p);
/** The same from an object that is parsed. */
dt_err dt_preprocessor_from(const dt_spec *object, dt_preprocessor *p);
/** The first key that two of them differ in, with what it means in each, in words; NULL: they make the same of every
 *  image. Numbers are compared as the tower has them, in 32 bits; how files write them does not count. */
typedef struct dt_preprocessor_words {
    char text[96];
} dt_preprocessor_words;
const char *dt_preprocessor_differs(const dt_preprocessor *a, const dt_preprocessor *b, dt_preprocessor_words *of_a,
                                    dt_preprocessor_words *of_b);
void dt_preprocessor_free(dt_preprocessor *p); /* safe on {0}; leaves {0} behind */

/** The steps on one image.
 *  name  what messages call it
 *  out   [out_height, out_width, 3], the caller's
 *  DT_ERR_DATA: so long and thin that padding would make a square of more than DT_IMAGE_MAX_PIXELS; resizing has no
 *  such limit, as only what the crop keeps is computed. DT_ERR_MEMORY. */
dt_err dt_image_prepare(const dt_preprocessor *p, const char *name, const dt_image *image, uint8_t *out);

/** Write an image as PNG, durably; a file of this name is replaced. DT_ERR_WRITE, DT_ERR_MEMORY. */
dt_err dt_image_write_png(const dt_image *image, const char *path);

#endif
