/* space.c - Unicode white space, with and without the separators U+001C to U+001F. */
#include "dtrain/text/space.h"
#include "dtrain/text/unicode.h"

static size_t length(const char *text, size_t n, bool separators)
{
    size_t len;
    if (n == 0 || !dt_utf8_length(text, n)) return 0;
    const uint32_t c = dt_utf8_decode(text, &len);
    return dt_unicode_is_space(c) || (separators && c >= 0x1c && c <= 0x1f) ? len : 0;
}

static size_t before(const char *text, size_t n, bool separators)
{
    size_t at = 0;
    for (size_t len; (len = length(text + at, n - at, separators)) > 0;) at += len;
    return at;
}

/* Scanning backwards, a character must be tried at each possible length. */
static size_t trimmed(const char *text, size_t n, bool separators)
{
    for (size_t len = 1; len <= 3 && len <= n; len++)
        if (length(text + n - len, len, separators) == len) n -= len, len = 0;
    return n;
}

size_t dt_space_length(const char *text, size_t n) { return length(text, n, true); }
size_t dt_space_before(const char *text, size_t n) { return before(text, n, true); }
size_t dt_space_trimmed(const char *text, size_t n) { return trimmed(text, n, true); }
size_t dt_white_before(const char *text, size_t n) { return before(text, n, false); }
size_t dt_white_trimmed(const char *text, size_t n) { return trimmed(text, n, false); }
