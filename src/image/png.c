/* png.c - decodes and writes with libpng. Gamma and colour profiles are ignored, alpha is dropped.
 *
 * Pillow does not require IEND. After the pixels it stops at one of three positions: the end of the file (between
 * two chunks), bytes that are not a chunk, or the next frame of an animation. libpng requires IEND, so it receives
 * one there.
 *
 * Two formats are converted here: palettes (an index beyond the palette is black), and 16-bit grey, which Pillow
 * clips at 255 instead of scaling. */
#include "decode_image.h"

#ifndef DT_HAVE_LIBPNG
dt_err dt_decode_png(const char *name, const uint8_t *bytes, size_t nbytes, dt_image *image, dt_image_tags *tags)
{
    return dt_image_no_library(name, "PNG", "libpng");
}

dt_err dt_image_write_png(const dt_image *image, const char *path)
{
    return dt_image_no_library(path, "PNG", "libpng");
}
#else

#include "dtrain/io/io.h"
#include <ctype.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXTS = 64 }; /* each may need 8 MB from a few kilobytes of the file; texts after the limit are ignored */

typedef struct decoder {
    const char *name;
    const uint8_t *at;
    size_t left;
    uint8_t end[16]; /* appended to the file: the checksum of its last chunk, IEND */
    size_t end_nbytes;
    dt_image *image;
    dt_image_tags *tags;
    png_structp png;
    png_infop info;
    png_bytepp rows;
    int sample_nbytes; /* bytes per pixel from libpng: 1 index, 2 grey, 3 RGB */
    bool no_memory;    /* libpng drops some chunks silently if it is out of memory */
    dt_err err;
} decoder;

static png_voidp take_memory(png_structp png, png_alloc_size_t n)
{
    void *p = malloc(n);
    ((decoder *)png_get_mem_ptr(png))->no_memory |= !p;
    return p;
}

static void give_memory(png_structp png, png_voidp p) { free(p); }

static dt_err fail_memory(const decoder *d)
{
    return dt_fail(DT_ERR_MEMORY, "%s: no memory to decode the image", d->name);
}

static void on_error(png_structp png, const char *words)
{
    decoder *d = png_get_error_ptr(png);
    if (d->err == DT_OK)
        d->err = d->no_memory ? fail_memory(d) : dt_fail(DT_ERR_DATA, "%s: not a valid PNG: %s", d->name, words);
    png_longjmp(png, 1);
}

static void say_nothing(png_structp png, const char *words) {}

static void read_bytes(png_structp png, png_bytep out, size_t n)
{
    decoder *d = png_get_io_ptr(png);
    if (!d->left) d->at = d->end, d->left = d->end_nbytes, d->end_nbytes = 0;
    if (n > d->left) {
        d->err = dt_fail(DT_ERR_DATA, "%s: " DT_IMAGE_CUT, d->name);
        png_longjmp(png, 1);
    }
    memcpy(out, d->at, n);
    d->at += n;
    d->left -= n;
}

/* ---- the end of the file ----------------------------------------------------------------------------------------- */

enum { SIGNATURE = 8, HEAD = 8, CHECKSUM = 4 }; /* layout of a chunk: length, type; data; CRC-32 of type and data */

static uint32_t big_endian(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint32_t crc32_of(const uint8_t *bytes, size_t n)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    return ~crc;
}

static bool is_type(const uint8_t *chunk, const char *type) { return !memcmp(chunk + 4, type, 4); }

static bool is_chunk(const uint8_t *head)
{
    for (int i = 4; i < HEAD; i++)
        if (!isalnum(head[i]) && head[i] != '_') return false;
    return true;
}

/* End the file at `at` with IEND. last: a chunk that lacks only its checksum, or NULL. */
static void end_at(decoder *d, size_t at, const uint8_t *last)
{
    static const uint8_t IEND[] = {0, 0, 0, 0, 'I', 'E', 'N', 'D', 0xae, 0x42, 0x60, 0x82};
    const uint32_t crc = last ? crc32_of(last + 4, 4 + (size_t)big_endian(last)) : 0;
    for (int shift = 24; last && shift >= 0; shift -= 8) d->end[d->end_nbytes++] = (uint8_t)(crc >> shift);
    memcpy(d->end + d->end_nbytes, IEND, sizeof IEND);
    d->end_nbytes += sizeof IEND;
    d->left = at;
}

/* Find the position at which decoding ends. DT_ERR_DATA: the file ends inside a chunk. libpng would
 * allocate and clear the size that the chunk declares before it detects this. Other errors are left to
 * libpng. */
static dt_err find_end(decoder *d)
{
    bool pixels = false, animated = false;
    for (size_t at = SIGNATURE;;) {
        const size_t left = d->left - at;
        const uint8_t *chunk = d->at + at;
        if (left < HEAD || !is_chunk(chunk) || is_type(chunk, "IEND") ||
            (animated && pixels && is_type(chunk, "fcTL"))) {
            if (pixels) end_at(d, at, NULL);
            return DT_OK;
        }
        const size_t nbytes = HEAD + (size_t)big_endian(chunk);
        DT_CHECK(left >= nbytes, DT_ERR_DATA, "%s: " DT_IMAGE_CUT, d->name);
        pixels |= is_type(chunk, "IDAT");
        animated |= is_type(chunk, "acTL");
        if (left < nbytes + CHECKSUM) {
            if (pixels) end_at(d, at + nbytes, chunk);
            return DT_OK;
        }
        at += nbytes + CHECKSUM;
    }
}

/* ---- tags -------------------------------------------------------------------------------------------------------- */

/* Text: three lines ("", "exif", the length), then hexadecimal digits. */
static dt_err keep_profile(dt_image_tags *tags, const char *text)
{
    for (int i = 0; i < 3 && text; i++) text = (text = strchr(text, '\n')) ? text + 1 : NULL;
    if (!text || tags->exif) return DT_OK;
    uint8_t *bytes = malloc(strlen(text) / 2 + 1);
    DT_CHECK(bytes, DT_ERR_MEMORY, "out of memory for %zu bytes of Exif data", strlen(text) / 2);
    size_t n = 0;
    static const char DIGITS[] = "0123456789abcdef0123456789ABCDEF";
    for (const char *high = NULL; *text; text++) {
        const char *digit = strchr(DIGITS, *text);
        if (digit && high) bytes[n++] = (uint8_t)((high - DIGITS) % 16 * 16 + (digit - DIGITS) % 16);
        if (digit) high = high ? NULL : digit;
    }
    const dt_err err = dt_image_keep_exif(tags, bytes, n);
    free(bytes);
    return err;
}

static dt_err keep_tags(decoder *d)
{
    png_textp texts;
    int n_texts = 0;
#ifdef PNG_eXIf_SUPPORTED
    png_bytep exif;
    png_uint_32 nbytes;
    if (png_get_eXIf_1(d->png, d->info, &nbytes, &exif)) DT_TRY(dt_image_keep_exif(d->tags, exif, nbytes));
#endif
    png_get_text(d->png, d->info, &texts, &n_texts);
    for (int i = 0; i < n_texts; i++) {
        if (!texts[i].text) continue;
        if (!strcmp(texts[i].key, "Raw profile type exif")) DT_TRY(keep_profile(d->tags, texts[i].text));
        if (!strcmp(texts[i].key, "XML:com.adobe.xmp"))
            DT_TRY(dt_image_keep_xmp(d->tags, texts[i].text, strlen(texts[i].text)));
    }
    return DT_OK;
}

/* ---- pixels ------------------------------------------------------------------------------------------------------ */

/* Each row is read into the end of its slot, so that it can be expanded to RGB in place from the front. */
static dt_err read_header(decoder *d)
{
    png_read_info(d->png, d->info);
    const int64_t width = png_get_image_width(d->png, d->info), height = png_get_image_height(d->png, d->info);
    const int type = png_get_color_type(d->png, d->info), depth = png_get_bit_depth(d->png, d->info);
    const bool palette = type == PNG_COLOR_TYPE_PALETTE, grey16 = type == PNG_COLOR_TYPE_GRAY && depth == 16;
    d->sample_nbytes = palette ? 1 : grey16 ? 2 : 3;
    if (palette) {
        png_set_packing(d->png);
    } else if (!grey16) {
        png_set_strip_16(d->png);
        png_set_strip_alpha(d->png);
        png_set_expand_gray_1_2_4_to_8(d->png);
        png_set_gray_to_rgb(d->png);
    }
    DT_TRY(dt_image_alloc(d->name, width, height, d->image));
    d->rows = malloc(sizeof *d->rows * (size_t)height);
    DT_CHECK(d->rows, DT_ERR_MEMORY, "%s: out of memory for %d rows", d->name, d->image->height);
    for (int64_t y = 0; y < height; y++) d->rows[y] = d->image->rgb + (3 * y + 3 - d->sample_nbytes) * width;
    png_set_interlace_handling(d->png);
    png_read_update_info(d->png, d->info);
    DT_CHECK(png_get_rowbytes(d->png, d->info) == (size_t)(d->sample_nbytes * width), DT_ERR_DATA,
             "%s: libpng returns rows of an unexpected size", d->name);
    return DT_OK;
}

static void spread_row(const decoder *d, const uint8_t palette[256][3], int64_t y)
{
    const uint8_t *from = d->rows[y];
    uint8_t *to = d->image->rgb + 3 * y * d->image->width;
    for (int64_t x = 0; x < d->image->width; x++, from += d->sample_nbytes, to += 3) {
        const uint8_t grey = d->sample_nbytes == 2 && from[0] ? 255 : from[d->sample_nbytes - 1];
        if (d->sample_nbytes == 1)
            memcpy(to, palette[grey], 3);
        else
            to[0] = to[1] = to[2] = grey;
    }
}

static void read_rows(decoder *d)
{
    uint8_t palette[256][3] = {{0}};
    png_colorp colours;
    int n = 0;
    png_read_image(d->png, d->rows);
    if (png_get_PLTE(d->png, d->info, &colours, &n))
        for (int i = 0; i < n && i < 256; i++)
            palette[i][0] = colours[i].red, palette[i][1] = colours[i].green, palette[i][2] = colours[i].blue;
    for (int64_t y = 0; y < d->image->height && d->sample_nbytes < 3; y++) spread_row(d, palette, y);
}

static void decode(decoder *d)
{
    if (setjmp(png_jmpbuf(d->png))) return;
    png_set_read_fn(d->png, d, read_bytes);
    png_set_user_limits(d->png, INT32_MAX, INT32_MAX); /* dt_image_alloc checks sizes */
    png_set_chunk_cache_max(d->png, MAX_TEXTS + 2);    /* libpng counts down to 1 before it stores one */
    png_set_crc_action(d->png, PNG_CRC_NO_CHANGE, PNG_CRC_ERROR_QUIT); /* errors outside the pixels: as in Pillow */
    d->err = read_header(d);
    if (d->err != DT_OK) return;
    read_rows(d);
    png_set_crc_action(d->png, PNG_CRC_NO_CHANGE, PNG_CRC_QUIET_USE);
    png_read_end(d->png, d->info);
    d->err = keep_tags(d);
}

dt_err dt_decode_png(const char *name, const uint8_t *bytes, size_t nbytes, dt_image *image, dt_image_tags *tags)
{
    decoder d = {.name = name, .at = bytes, .left = nbytes, .image = image, .tags = tags};
    DT_TRY(find_end(&d));
    d.png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &d, on_error, say_nothing, &d, take_memory, give_memory);
    d.info = d.png ? png_create_info_struct(d.png) : NULL;
    if (d.info)
        decode(&d);
    else
        d.err = dt_fail(DT_ERR_MEMORY, "%s: libpng has no memory, or its version differs from its header", name);
    if (d.err == DT_OK && d.no_memory) d.err = fail_memory(&d);
    png_destroy_read_struct(&d.png, &d.info, NULL);
    free(d.rows);
    return d.err;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

dt_err dt_image_write_png(const dt_image *image, const char *path)
{
    png_image png = {.version = PNG_IMAGE_VERSION,
                     .width = (png_uint_32)image->width,
                     .height = (png_uint_32)image->height,
                     .format = PNG_FORMAT_RGB};
    png_alloc_size_t n = PNG_IMAGE_PNG_SIZE_MAX(png);
    void *bytes = malloc(n);
    DT_CHECK(bytes, DT_ERR_MEMORY, "%s: out of memory for an image of %d x %d", path, image->width, image->height);
    const bool made = png_image_write_to_memory(&png, bytes, &n, 0, image->rgb, 0, NULL);
    const dt_err err = made ? dt_write_file_atomic(path, bytes, n) : dt_fail(DT_ERR_FAULT, "%s: %s", path, png.message);
    png_image_free(&png);
    free(bytes);
    return err;
}

#endif
