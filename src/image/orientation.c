/* orientation.c - the orientation stored by cameras, in Exif or else in XMP.
 *
 * Source   Exif 2.3, 4.6.4 (tag 274, Orientation); TIFF 6.0, section 2 (directories). Precedence, and
 * ignoring corrupt directories, as in Pillow, Image.getexif, ImageOps.exif_transpose. */
#include "decode_image.h"
#include <stdlib.h>
#include <string.h>

dt_err dt_image_keep_exif(dt_image_tags *tags, const uint8_t *bytes, size_t nbytes)
{
    DT_RESIZE(tags->exif, tags->exif_nbytes + nbytes, "out of memory for %zu bytes of Exif data", nbytes);
    memcpy(tags->exif + tags->exif_nbytes, bytes, nbytes);
    tags->exif_nbytes += nbytes;
    return DT_OK;
}

dt_err dt_image_keep_xmp(dt_image_tags *tags, const void *text, size_t nbytes)
{
    char *copy = malloc(nbytes + 1);
    DT_CHECK(copy, DT_ERR_MEMORY, "out of memory for %zu bytes of XMP data", nbytes);
    memcpy(copy, text, nbytes);
    copy[nbytes] = 0;
    free(tags->xmp);
    tags->xmp = copy;
    return DT_OK;
}

void dt_image_tags_free(dt_image_tags *tags)
{
    free(tags->exif);
    free(tags->xmp);
    *tags = (dt_image_tags){0};
}

typedef struct tiff {
    const uint8_t *bytes;
    size_t nbytes;
    bool big_endian;
} tiff;

/* Integer of n bytes; 0 beyond the end. */
static uint64_t number(const tiff *t, uint64_t at, int n)
{
    uint64_t x = 0;
    if (at > t->nbytes || t->nbytes - at < (size_t)n) return 0;
    for (int i = 0; i < n; i++) x = x << 8 | t->bytes[at + (size_t)(t->big_endian ? i : n - 1 - i)];
    return x;
}

/* TIFF 6.0; IFD and later from its supplements. */
enum { BYTE = 1, ASCII, SHORT, LONG, RATIONAL, SBYTE, UNDEFINED, SSHORT, SLONG, SRATIONAL, FLOAT, DOUBLE, IFD };
enum { LONG8 = 16, N_TYPES };

/* Bytes per value. Entries of other types are skipped. */
static const uint8_t SIZE[N_TYPES] = {
    [BYTE] = 1,   [ASCII] = 1, [SHORT] = 2,     [LONG] = 4,  [RATIONAL] = 8, [SBYTE] = 1, [UNDEFINED] = 1,
    [SSHORT] = 2, [SLONG] = 4, [SRATIONAL] = 8, [FLOAT] = 4, [DOUBLE] = 8,   [IFD] = 4,   [LONG8] = 8};

/* The first value if it is 2 to 8; else 1. A BYTE always gives 1, because Pillow reads it as text. */
static int orientation_at(const tiff *t, uint64_t at, uint64_t type)
{
    const uint64_t bits = number(t, at, SIZE[type]); /* negative values become large ones */
    const uint32_t half[2] = {(uint32_t)number(t, at, 4), (uint32_t)number(t, at + 4, 4)}, low = (uint32_t)bits;
    double x = (double)bits;
    float f;
    if (type == BYTE || type == ASCII || type == UNDEFINED) return 1;
    if (type == RATIONAL) x = (double)half[0] / half[1]; /* division by 0 gives inf or NaN */
    if (type == SRATIONAL) x = (double)(int32_t)half[0] / (int32_t)half[1];
    if (type == FLOAT) memcpy(&f, &low, sizeof f), x = f;
    if (type == DOUBLE) memcpy(&x, &bits, sizeof x);
    for (int k = 2; k <= 8; k++)
        if (x == k) return k;
    return 1;
}

static bool open_tiff(tiff *t, const uint8_t *bytes, size_t nbytes)
{
    static const char MARK[] = "Exif\0"; /* with the terminating 0 six bytes, once or twice */
    static const char *const HEADS[] = {"II*\0", "MM\0*", "II\0*", "MM*\0",
                                        "MM\0+"}; /* the last three are accepted by Pillow, too */
    for (int i = 0; i < 2 && nbytes >= 6 && !memcmp(bytes, MARK, 6); i++) bytes += 6, nbytes -= 6;
    *t = (tiff){bytes, nbytes, nbytes > 0 && bytes[0] == 'M'};
    for (size_t i = 0; nbytes >= 8 && i < sizeof HEADS / sizeof HEADS[0]; i++)
        if (!memcmp(bytes, HEADS[i], 4)) return true;
    return false;
}

/* 1 to 8, from the first complete entry of this tag; 0: none. An entry is skipped if its values and
 * those before it exceed the file size in total. The search ends at an entry whose values extend beyond
 * the file. */
static int of_exif(const uint8_t *bytes, size_t nbytes)
{
    enum { ORIENTATION = 274, ENTRY = 12 };
    tiff t;
    if (!open_tiff(&t, bytes, nbytes)) return 0;
    const uint64_t directory = number(&t, 4, 4), n = number(&t, directory, 2);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t at = directory + 2 + i * ENTRY, type = number(&t, at + 2, 2), count = number(&t, at + 4, 4);
        if (at + ENTRY > t.nbytes) return 0;
        const uint64_t size = type < N_TYPES ? count * SIZE[type] : 0; /* values that do not fit are stored elsewhere */
        const uint64_t values = size > 4 ? number(&t, at + 8, 4) : at + 8;
        if (size > 4 && (sum += size) > t.nbytes) continue;
        if (size && values + size > t.nbytes) return 0;
        if (size && number(&t, at, 2) == ORIENTATION) return orientation_at(&t, values, type);
    }
    return 0;
}

static int of_xmp(const char *xmp)
{
    static const char NAME[] = "tiff:Orientation";
    for (const char *p = xmp; (p = strstr(p, NAME));) {
        p += sizeof NAME - 1;
        const char *value = *p == '>' ? p + 1 : !strncmp(p, "=\"", 2) ? p + 2 : "";
        if (*value >= '0' && *value <= '9') return *value - '0';
    }
    return 0;
}

int dt_image_orientation(const dt_image_tags *tags)
{
    int found = tags->exif ? of_exif(tags->exif, tags->exif_nbytes) : 0;
    if (!found && tags->xmp) found = of_xmp(tags->xmp);
    return found >= 1 && found <= 8 ? found : 1;
}

dt_err dt_image_turn(dt_image *image, int orientation)
{
    /* Source of the output's first pixel, and whether output rows are input columns. */
    static const struct {
        bool from_right, from_bottom, swap;
    } TURNS[9] = {[2] = {1, 0, 0}, [3] = {1, 1, 0}, [4] = {0, 1, 0}, [5] = {0, 0, 1},
                  [6] = {0, 1, 1}, [7] = {1, 1, 1}, [8] = {1, 0, 1}};
    if (orientation <= 1 || orientation > 8) return DT_OK;
    const bool right = TURNS[orientation].from_right, bottom = TURNS[orientation].from_bottom;
    const ptrdiff_t w = image->width, h = image->height, column = right ? -3 : 3, row = bottom ? -3 * w : 3 * w;
    const bool swap = TURNS[orientation].swap;
    dt_image out = {.width = (int)(swap ? h : w), .height = (int)(swap ? w : h), .rgb = malloc(3 * (size_t)(w * h))};
    DT_CHECK(out.rgb, DT_ERR_MEMORY, "no memory to rotate an image of %d x %d pixels", image->width, image->height);
    const uint8_t *first = image->rgb + (right ? 3 * (w - 1) : 0) + (bottom ? 3 * w * (h - 1) : 0);
    uint8_t *to = out.rgb;
    for (ptrdiff_t y = 0; y < out.height; y++)
        for (ptrdiff_t x = 0; x < out.width; x++, to += 3)
            memcpy(to, first + y * (swap ? column : row) + x * (swap ? row : column), 3);
    dt_image_free(image);
    *image = out;
    return DT_OK;
}
