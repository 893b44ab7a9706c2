/* space.c - Unicode white space, and the separators U+001C to U+001F. */
#include "dtrain/text/space.h"
#include "dtrain/text/unicode.h"

size_t dt_space_length(const char *text, size_t n)
{
    size_t len;
    if (n == 0 || !dt_utf8_length(text, n)) return 0;
    const uint32_t c = dt_utf8_decode(text, &len);
    return dt_unicode_is_space(c) || (c >= 0x1c && c <= 0x1f) ? len : 0;
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
