/* utf8.c - validation and encoding of UTF-8. */
#include "dtrain/text/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dt_text_reserve(dt_text *t, size_t n)
{
    if (t->failed || t->n_alloc - t->n > n) return; /* one byte more, for the terminating 0 */
    const size_t n_alloc = 2 * (t->n + n) + 64;
    char *grown = realloc(t->bytes, n_alloc);
    if (!grown) {
        t->failed = true;
        return;
    }
    t->bytes = grown;
    t->n_alloc = n_alloc;
}

void dt_text_append(dt_text *t, const void *bytes, size_t n)
{
    dt_text_reserve(t, n);
    if (t->failed) return;
    if (n > 0) memcpy(t->bytes + t->n, bytes, n);
    t->n += n;
    t->bytes[t->n] = 0;
}

void dt_text_printf(dt_text *t, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    dt_text_reserve(t, (size_t)n);
    if (t->failed) return;
    va_start(args, fmt);
    t->n += (size_t)vsnprintf(t->bytes + t->n, (size_t)n + 1, fmt, args);
    va_end(args);
}

void dt_text_free(dt_text *t)
{
    free(t->bytes);
    *t = (dt_text){0};
}

char *dt_text_finish(dt_text *t, size_t *nbytes)
{
    dt_text_append(t, "", 0);
    *nbytes = t->n;
    if (!t->failed) return t->bytes;
    free(t->bytes);
    return NULL;
}

/* Length of a character by its first byte a (0: invalid), and whether b is a valid second byte. */
static size_t length_by_lead(unsigned char a)
{
    return a < 0x80 ? 1 : a >= 0xc2 && a < 0xe0 ? 2 : a >= 0xe0 && a < 0xf0 ? 3 : a >= 0xf0 && a < 0xf5 ? 4 : 0;
}

static bool may_follow(unsigned char a, unsigned char b)
{
    if ((b & 0xc0) != 0x80) return false;
    return !((a == 0xe0 && b < 0xa0) || (a == 0xed && b > 0x9f) || (a == 0xf0 && b < 0x90) || (a == 0xf4 && b > 0x8f));
}

/* Bytes of the longest valid prefix of a character at p, and whether the character is complete. */
static size_t subpart(const unsigned char *p, size_t n, bool *whole)
{
    const size_t len = length_by_lead(p[0]);
    size_t i = 1;
    while (i < len && i < n && (i == 1 ? may_follow(p[0], p[1]) : (p[i] & 0xc0) == 0x80)) i++;
    *whole = len > 0 && i == len;
    return i;
}

size_t dt_utf8_length(const char *text, size_t n)
{
    bool whole;
    const size_t len = subpart((const unsigned char *)text, n, &whole);
    return whole ? len : 0;
}

size_t dt_utf8_bad(const char *text, size_t n)
{
    bool whole;
    return subpart((const unsigned char *)text, n, &whole);
}

size_t dt_utf8_valid(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t word;
        if (n - i >= sizeof word) {
            memcpy(&word, text + i, sizeof word);
            if (!(word & 0x8080808080808080u)) {
                i += sizeof word;
                continue;
            }
        }
        const size_t len = dt_utf8_length(text + i, n - i);
        if (!len) break;
        i += len;
    }
    return i;
}

uint32_t dt_utf8_next(const char **text)
{
    const unsigned char *p = (const unsigned char *)*text;
    const size_t len = p[0] < 0x80 ? 1 : length_by_lead(p[0]);
    *text += len ? len : 1;
    switch (len) {
    case 2:
        return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
    case 3:
        return (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    case 4:
        return (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
    default:
        return p[0];
    }
}

size_t dt_utf8_put(uint32_t c, char out[4])
{
    if (c < 0x80) return out[0] = (char)c, 1;
    if (c < 0x800) return out[0] = (char)(0xc0 | c >> 6), out[1] = (char)(0x80 | (c & 0x3f)), 2;
    out[0] = (char)(c < 0x10000 ? 0xe0 | c >> 12 : 0xf0 | c >> 18);
    const int n = c < 0x10000 ? 3 : 4;
    for (int i = 1; i < n; i++) out[i] = (char)(0x80 | (c >> 6 * (n - 1 - i) & 0x3f));
    return (size_t)n;
}

char *dt_utf8_repair(const char *bytes, size_t nbytes, size_t *repaired_nbytes)
{
    dt_text t = {0};
    for (size_t i = 0; i < nbytes;) {
        bool whole;
        const size_t len = subpart((const unsigned char *)bytes + i, nbytes - i, &whole);
        if (whole)
            dt_text_append(&t, bytes + i, len);
        else
            dt_text_append(&t, "\xef\xbf\xbd", 3);
        i += len;
    }
    return dt_text_finish(&t, repaired_nbytes);
}

bool dt_text_replace(const char *text, size_t *nbytes, const char *what, const char *by, char **copy)
{
    dt_text out = {0};
    const size_t n_what = strlen(what), n_by = strlen(by);
    const char *from = text, *end = text + *nbytes;
    *copy = NULL;
    for (const char *at; (at = memmem(from, (size_t)(end - from), what, n_what)); from = at + n_what) {
        dt_text_append(&out, from, (size_t)(at - from));
        dt_text_append(&out, by, n_by);
    }
    if (from == text) return true;
    dt_text_append(&out, from, (size_t)(end - from));
    *copy = dt_text_finish(&out, nbytes);
    return *copy != NULL;
}

char *dt_text_repaired(dt_text *t, size_t *nbytes)
{
    size_t n;
    char *raw = dt_text_finish(t, &n), *good = raw ? dt_utf8_repair(raw, n, nbytes) : NULL;
    free(raw);
    return good;
}
