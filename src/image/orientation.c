/* orientation.c - a camera's note which way is up, in Exif or else in XMP.
 *
 * Source   Exif 2.3, 4.6.4 (tag 274, Orientation); TIFF 6.0, section 2 (directories). Which of the two counts, and that
 * a damaged directory says nothing: Pillow, Image.getexif, ImageOps.exif_transpose. */
#include "decode.h"
#include <stdlib.h>
#include <string.h>

dt_err dt_image_keep_exif(dt_image_tags *tags, const uint8_t *bytes, size_t nbytes)
{
    uint8_t *both = realloc(tags->exif, tags->exif_nbytes + nbytes + 1);
    DT_CHECK(both, DT_ERR_MEMORY, "no memory for %zu bytes of Exif", nbytes);
    memcpy(both + tags->exif_nbytes, bytes, nbytes);
    tags->exif = both;
    tags->exif_nbytes += nbytes;
    return DT_OK;
}

dt_err dt_image_keep_xmp(dt_image_tags *tags, const void *text, size_t nbytes)
{
    char *copy = malloc(nbytes + 1);
    DT_CHECK(copy, DT_ERR_MEMORY, "no memory for %zu bytes of XMP", nbytes);
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

/* n bytes as a number; 0 beyond the end. */
static uint32_t number(const tiff *t, size_t at, int n)
{
    uint32_t x = 0;
    if (at > t->nbytes || t->nbytes - at < (size_t)n) return 0;
    for (int i = 0; i < n; i++) x = x << 8 | t->bytes[at + (size_t)(t->big_endian ? i : n - 1 - i)];
    return x;
}

static int of_exif(const uint8_t *bytes, size_t nbytes)
{
    enum { ORIENTATION = 274, SHORT = 3, LONG = 4, ENTRY = 12 };
    static const char MARK[] = "Exif\0"; /* with the 0 behind it six bytes, once or twice */
    for (int i = 0; i < 2 && nbytes >= 6 && !memcmp(bytes, MARK, 6); i++) bytes += 6, nbytes -= 6;
    if (nbytes < 8 || (memcmp(bytes, "II*", 4) && memcmp(bytes, "MM\0*", 4))) return 0;
    const tiff t = {bytes, nbytes, bytes[0] == 'M'};
    const size_t directory = number(&t, 4, 4);
    const uint32_t n = number(&t, directory, 2);
    int found = 0;
    for (uint32_t i = 0; i < n; i++) {
        const size_t at = directory + 2 + (size_t)i * ENTRY;
        if (at + ENTRY > nbytes) break;
        const uint32_t type = number(&t, at + 2, 2), count = number(&t, at + 4, 4);
        if (number(&t, at, 2) != ORIENTATION || count < 1 || (type != SHORT && type != LONG)) continue;
        const int n_value = type == SHORT ? 2 : 4; /* the first value; they lie elsewhere where they have no room */
        const size_t values = (uint64_t)count * (unsigned)n_value > 4 ? number(&t, at + 8, 4) : at + 8;
        const uint32_t value = number(&t, values, n_value);
        found = value <= 8 ? (int)value : 1;
    }
    return found;
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
    /* Where the output's first pixel comes from, and whether its rows are the input's columns. */
    static const struct {
        bool from_right, from_bottom, swap;
    } TURNS[9] = {[2] = {1, 0, 0}, [3] = {1, 1, 0}, [4] = {0, 1, 0}, [5] = {0, 0, 1},
                  [6] = {0, 1, 1}, [7] = {1, 1, 1}, [8] = {1, 0, 1}};
    if (orientation <= 1 || orientation > 8) return DT_OK;
    const bool right = TURNS[orientation].from_right, bottom = TURNS[orientation].from_bottom;
    const ptrdiff_t w = image->width, h = image->height, column = right ? -3 : 3, row = bottom ? -3 * w : 3 * w;
    const bool swap = TURNS[orientation].swap;
    dt_image out = {.width = (int)(swap ? h : w), .height = (int)(swap ? w : h), .rgb = malloc(3 * (size_t)(w * h))};
    DT_CHECK(out.rgb, DT_ERR_MEMORY, "no memory to turn an image of %d x %d pixels", image->width, image->height);
    const uint8_t *first = image->rgb + (right ? 3 * (w - 1) : 0) + (bottom ? 3 * w * (h - 1) : 0);
    uint8_t *to = out.rgb;
    for (ptrdiff_t y = 0; y < out.height; y++)
        for (ptrdiff_t x = 0; x < out.width; x++, to += 3)
            memcpy(to, first + y * (swap ? column : row) + x * (swap ? row : column), 3);
    dt_image_free(image);
    *image = out;
    return DT_OK;
}
