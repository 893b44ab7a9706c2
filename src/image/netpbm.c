/* netpbm.c - PPM and PGM: a header of words and comments, then binary (P5, P6) or decimal (P2, P3) samples. */
#include "decode_image.h"
#include <math.h>

typedef struct reader {
    const char *name;
    const uint8_t *at, *end;
} reader;

static bool is_space(uint8_t c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static void skip_space(reader *r)
{
    while (r->at < r->end && (is_space(*r->at) || *r->at == '#')) {
        if (*r->at == '#')
            while (r->at < r->end && *r->at != '\n' && *r->at != '\r') r->at++;
        else
            r->at++;
    }
}

/* Must be followed by white space or the end: "1x" is not a number. */
static dt_err number(reader *r, int hi, int *out)
{
    int64_t value = 0;
    skip_space(r);
    const uint8_t *start = r->at;
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9' && value <= hi; r->at++) value = 10 * value + *r->at - '0';
    DT_CHECK(start < r->end, DT_ERR_DATA, "%s: " DT_IMAGE_CUT, r->name);
    DT_CHECK(r->at > start && value <= hi && (r->at == r->end || is_space(*r->at)), DT_ERR_DATA,
             "%s: expected a number from 0 to %d in this PPM or PGM", r->name, hi);
    *out = (int)value;
    return DT_OK;
}

/* One sample, scaled to 255 (rounded as in Python); 16-bit grey is scaled to 65535 and clipped. */
static dt_err sample(reader *r, bool plain, int max, double top, uint8_t *out)
{
    int x;
    if (plain) {
        DT_TRY(number(r, max, &x));
    } else {
        const int nbytes = max > 255 ? 2 : 1;
        DT_CHECK(r->end - r->at >= nbytes, DT_ERR_DATA, "%s: " DT_IMAGE_CUT, r->name);
        x = nbytes == 2 ? r->at[0] << 8 | r->at[1] : r->at[0];
        r->at += nbytes;
    }
    *out = (uint8_t)fmin(rint((double)x / max * top), 255);
    return DT_OK;
}

dt_err dt_decode_netpbm(const char *name, const uint8_t *bytes, size_t nbytes, dt_image *image)
{
    reader r = {name, bytes + 2, bytes + nbytes};
    const bool plain = bytes[1] < '4', grey = bytes[1] == '2' || bytes[1] == '5';
    int width, height, max;
    DT_CHECK(r.at == r.end || is_space(*r.at), DT_ERR_DATA,
             "%s: not a valid PPM or PGM: expected white space after P%c", name, bytes[1]);
    DT_TRY(number(&r, 1 << 30, &width));
    DT_TRY(number(&r, 1 << 30, &height));
    DT_TRY(number(&r, 65535, &max));
    DT_CHECK(max > 0, DT_ERR_DATA, "%s: not a valid PPM or PGM: expected a maximum sample from 1 to 65535, found 0",
             name);
    if (!plain) {
        DT_CHECK(r.at < r.end, DT_ERR_DATA, "%s: " DT_IMAGE_CUT, name);
        r.at++;
    }
    DT_TRY(dt_image_alloc(name, width, height, image));
    const size_t n = (size_t)width * (size_t)height;
    const double top = grey && max > 255 ? 65535 : 255;
    for (size_t i = 0; i < n; i++) {
        uint8_t *rgb = image->rgb + 3 * i;
        for (int c = 0; c < (grey ? 1 : 3); c++) DT_TRY(sample(&r, plain, max, top, &rgb[c]));
        if (grey) rgb[1] = rgb[2] = rgb[0];
    }
    return DT_OK;
}
