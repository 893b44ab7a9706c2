/* space.c - Unicode white space, and the separators U+001C to U+001F. */
#include "dtrain/text/space.h"

size_t dt_space_length(const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text;
    if (n == 0) return 0;
    if ((p[0] >= 9 && p[0] <= 13) || (p[0] >= 28 && p[0] <= 32)) return 1;
    if (n >= 2 && p[0] == 0xc2 && (p[1] == 0x85 || p[1] == 0xa0)) return 2;
    if (n < 3 || (p[0] & 0xf0) != 0xe0 || (p[1] & 0xc0) != 0x80 || (p[2] & 0xc0) != 0x80) return 0;
    const unsigned code = (p[0] & 15u) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u);
    return code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f ||
                   code == 0x205f || code == 0x3000
               ? 3
               : 0;
}

size_t dt_space_before(const char *text, size_t n)
{
    size_t at = 0;
    for (size_t len; (len = dt_space_length(text + at, n - at)) > 0;) at += len;
    return at;
}

/* Scanning backwards, a character must be tried at each possible length. */
size_t dt_space_trimmed(const char *text, size_t n)
{
    for (size_t len = 1; len <= 3 && len <= n; len++)
        if (dt_space_length(text + n - len, len) == len) n -= len, len = 0;
    return n;
}
