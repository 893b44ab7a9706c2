/* jpeg.c - decodes with libjpeg and its defaults, as Pillow does: precise inverse DCT, smooth upsampling of colour.
 *
 * Damage for which libjpeg only warns is decoded as far as possible. A file that ends before the last row, and one
 * with an error after it, is rejected. */
#include "decode_image.h"

#ifndef DT_HAVE_LIBJPEG
dt_err dt_decode_jpeg(const char *name, const uint8_t *bytes, size_t nbytes, dt_image *image, dt_image_tags *tags)
{
    return dt_image_no_library(name, "JPEG", "libjpeg");
}
#else

#include <jpeglib.h>
#include <jerror.h>
#include <setjmp.h>
#include <string.h>

/* limit: each scan costs a pass over all coefficients but may take only a few bytes of the file */
enum { MAX_SCANS = 500 };

typedef struct decoder {
    struct jpeg_decompress_struct jpeg; /* must be first: the library's callbacks cast its address */
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    const char *name;
    dt_image *image;
    dt_image_tags *tags;
    bool has_rows; /* all rows are decoded, so the file may end */
    dt_err err;
    jmp_buf leave;
} decoder;

static _Noreturn void leave(j_common_ptr jpeg, dt_err err)
{
    decoder *d = (decoder *)jpeg;
    d->err = err;
    longjmp(d->leave, 1);
}

static void on_error(j_common_ptr jpeg)
{
    char words[JMSG_LENGTH_MAX];
    const char *name = ((decoder *)jpeg)->name;
    jpeg->err->format_message(jpeg, words);
    leave(jpeg, jpeg->err->msg_code == JERR_OUT_OF_MEMORY
                    ? dt_fail(DT_ERR_MEMORY, "%s: %s", name, words)
                    : dt_fail(DT_ERR_DATA, "%s: not a valid JPEG: %s", name, words));
}

static void say_nothing(j_common_ptr jpeg) {}

static void watch_scans(j_common_ptr jpeg)
{
    const decoder *d = (decoder *)jpeg;
    if (d->jpeg.input_scan_number > MAX_SCANS)
        leave(jpeg,
              dt_fail(DT_ERR_DATA, "%s: JPEG files of more than %d scans are not supported", d->name, (int)MAX_SCANS));
}

static void do_nothing(j_decompress_ptr jpeg) {}

static boolean at_end(j_decompress_ptr jpeg)
{
    decoder *d = (decoder *)jpeg;
    leave((j_common_ptr)jpeg, d->has_rows ? DT_OK : dt_fail(DT_ERR_DATA, "%s: " DT_IMAGE_CUT, d->name));
}

static void skip(j_decompress_ptr jpeg, long n)
{
    if (n <= 0) return;
    if ((size_t)n > jpeg->src->bytes_in_buffer) at_end(jpeg);
    jpeg->src->next_input_byte += n;
    jpeg->src->bytes_in_buffer -= (size_t)n;
}

static void open_decoder(decoder *d, const uint8_t *bytes, size_t nbytes)
{
    d->jpeg.err = jpeg_std_error(&d->errors);
    d->errors.error_exit = on_error;
    d->errors.output_message = say_nothing;
    jpeg_create_decompress(&d->jpeg);
    d->source = (struct jpeg_source_mgr){.next_input_byte = bytes,
                                         .bytes_in_buffer = nbytes,
                                         .init_source = do_nothing,
                                         .fill_input_buffer = at_end,
                                         .skip_input_data = skip,
                                         .resync_to_restart = jpeg_resync_to_restart,
                                         .term_source = do_nothing};
    d->progress.progress_monitor = watch_scans;
    d->jpeg.src = &d->source;
    d->jpeg.progress = &d->progress;
    jpeg_save_markers(&d->jpeg, JPEG_APP0 + 1, 0xffff);
}

static dt_err keep_tags(const decoder *d)
{
    static const char EXIF[6] = "Exif\0", XMP[] = "http://ns.adobe.com/xap/1.0/";
    for (jpeg_saved_marker_ptr m = d->jpeg.marker_list; m; m = m->next) {
        if (m->data_length >= sizeof EXIF && !memcmp(m->data, EXIF, sizeof EXIF))
            DT_TRY(dt_image_keep_exif(d->tags, m->data + sizeof EXIF, m->data_length - sizeof EXIF));
        if (m->data_length >= sizeof XMP && !memcmp(m->data, XMP, sizeof XMP))
            DT_TRY(dt_image_keep_xmp(d->tags, m->data + sizeof XMP, m->data_length - sizeof XMP));
    }
    return DT_OK;
}

/* Grey and colour are decoded as RGB. Four-component colour is only available as CMYK. */
static dt_err read_header(decoder *d)
{
    jpeg_read_header(&d->jpeg, TRUE);
    const int n = d->jpeg.num_components;
    DT_CHECK(n == 1 || n == 3 || n == 4, DT_ERR_DATA, "%s: JPEG files of %d components are not supported", d->name, n);
    d->jpeg.out_color_space = n == 4 ? JCS_CMYK : JCS_RGB;
    DT_TRY(keep_tags(d));
    return dt_image_alloc(d->name, d->jpeg.image_width, d->jpeg.image_height, d->image);
}

/* a b / 255, rounded, as in Pillow. */
static int times(int a, int b)
{
    const int x = a * b + 128;
    return ((x >> 8) + x) >> 8;
}

/* Inks are stored inverted, as by Adobe: 255 is no ink. */
static void convert_cmyk(const uint8_t *cmyk, uint8_t *rgb, int64_t n)
{
    for (int64_t i = 0; i < n; i++, cmyk += 4, rgb += 3)
        for (int c = 0; c < 3; c++) rgb[c] = (uint8_t)(cmyk[3] - times(255 - cmyk[c], cmyk[3]));
}

static void read_rows(decoder *d)
{
    jpeg_start_decompress(&d->jpeg);
    const size_t stride = 3 * (size_t)d->image->width;
    JSAMPARRAY inks = NULL;
    if (d->jpeg.output_components == 4)
        inks = d->jpeg.mem->alloc_sarray((j_common_ptr)d, JPOOL_IMAGE, 4 * (JDIMENSION)d->image->width, 1);
    while (d->jpeg.output_scanline < d->jpeg.output_height) {
        JSAMPROW row = d->image->rgb + d->jpeg.output_scanline * stride;
        jpeg_read_scanlines(&d->jpeg, inks ? inks : &row, 1);
        if (inks) convert_cmyk(inks[0], row, d->image->width);
    }
    d->has_rows = true;
    jpeg_finish_decompress(&d->jpeg); /* reports errors after the pixels; a missing end of the file is accepted */
}

/* The decoder belongs to the caller: locals that change between setjmp and longjmp are undefined afterwards. */
static void decode(decoder *d, const uint8_t *bytes, size_t nbytes)
{
    if (setjmp(d->leave)) return;
    open_decoder(d, bytes, nbytes);
    d->err = read_header(d);
    if (d->err == DT_OK) read_rows(d);
}

dt_err dt_decode_jpeg(const char *name, const uint8_t *bytes, size_t nbytes, dt_image *image, dt_image_tags *tags)
{
    decoder d = {.name = name, .image = image, .tags = tags};
    decode(&d, bytes, nbytes);
    jpeg_destroy_decompress(&d.jpeg);
    return d.err;
}

#endif
