/* strings.c - shared by filters and methods of strings. */
#include "strings.h"

#include "dtrain/text/space.h"
#include "dtrain/text/unicode.h"
#include <ctype.h>

/* Blocks of letters, some without upper case. */
static const struct {
    uint32_t first, last;
    bool cased;
} blocks[] = {{0xc0, 0x17f, true},     {0x370, 0x52f, true},    {0x590, 0x109f, false},   {0x2e80, 0xa4cf, false},
              {0xac00, 0xd7ff, false}, {0xf900, 0xfaff, false}, {0x20000, 0x3ffff, false}};

/* Of a letter in these blocks: the one whose lower case it is, at most 130 away. U+00DF, for example, has none: its
 * upper case is two letters. */
static uint32_t upper_of(dt_jctx *x, uint32_t c)
{
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        if (c < blocks[i].first || c > blocks[i].last) continue;
        if (!blocks[i].cased || dt_unicode_lower(c) != c || c == 0x130) return c;
        for (uint32_t u = c - 80; u < c + 130; u++)
            if (u >= 0xc0 && u < 0x530 && u != c && dt_unicode_lower(u) == c) return u;
    }
    dt_jinja_fail(x, "upper case of U+%04X is not supported", (unsigned)c);
}

static void put_cased(dt_jctx *x, dt_jbuf *b, const char *text, size_t n, bool upper)
{
    const uint32_t code = dt_jinja_code(text, n);
    uint32_t to = code;
    if (!upper && (code == 0x130 || code == 0x3a3))
        dt_jinja_fail(x, "lower case of U+%04X is not supported", (unsigned)code);
    if (n == 1 && code < 0x80)
        to = (uint32_t)(upper ? toupper((int)code) : tolower((int)code));
    else if (n > 1)
        to = !upper ? dt_unicode_lower(code) : dt_unicode_is_letter(code) ? upper_of(x, code) : code;
    if (to == code)
        dt_jbuf_add(x, b, text, n);
    else
        dt_jinja_put_utf8(x, b, to);
}

dt_jv dt_jstring_case(dt_jctx *x, dt_jv s, dt_jcase how)
{
    dt_jbuf b = {0};
    bool begins = true;
    for (size_t i = 0, n; i < s.n; i += n) {
        n = dt_jinja_char(s.u.s + i, s.n - i);
        const bool upper =
            how == DT_JCASE_UPPER || (how == DT_JCASE_CAPITALIZE && i == 0) || (how == DT_JCASE_TITLE && begins);
        put_cased(x, &b, s.u.s + i, n, upper);
        begins = !dt_unicode_is_letter(dt_jinja_code(s.u.s + i, n));
    }
    dt_jv v = dt_jbuf_value(&b);
    v.safe = s.safe;
    return v;
}

static size_t in_set(dt_jctx *x, dt_jv chars, const char *text, size_t n)
{
    if (chars.kind != DT_J_STRING) return dt_space_length(text, n);
    dt_jinja_work(x, chars.n);
    return n > 0 && memmem(chars.u.s, chars.n, text, n) ? n : 0;
}

dt_jv dt_jstring_strip(dt_jctx *x, dt_jv s, dt_jv chars, unsigned sides)
{
    const size_t n_given = s.n;
    if (chars.kind != DT_J_MISSING && chars.kind != DT_J_NONE) dt_jv_need_string(x, chars, "strip");
    while (sides & DT_JSTRIP_LEFT && s.n > 0) {
        const size_t n = dt_jinja_char(s.u.s, s.n);
        if (!in_set(x, chars, s.u.s, n)) break;
        s.u.s += n;
        s.n -= n;
    }
    while (sides & DT_JSTRIP_RIGHT && s.n > 0) {
        size_t n = 1;
        while (n < s.n && n < 4 && ((unsigned char)s.u.s[s.n - n] & 0xc0) == 0x80) n++;
        if (!in_set(x, chars, s.u.s + s.n - n, n)) break;
        s.n -= n;
    }
    dt_jinja_work(x, n_given - s.n);
    return s;
}

dt_jv dt_jstring_replace(dt_jctx *x, dt_jv s, dt_jv from, dt_jv to, int64_t max)
{
    dt_jbuf b = {0};
    size_t at = 0;
    if (s.safe) dt_jinja_fail(x, "replace in a text marked as safe is not supported");
    for (int64_t n = 0; max < 0 || n < max; n++) {
        const char *found = from.n > 0 ? memmem(s.u.s + at, s.n - at, from.u.s, from.n) : s.u.s + at;
        if (!found) break;
        dt_jbuf_add(x, &b, s.u.s + at, (size_t)(found - s.u.s) - at);
        dt_jbuf_add(x, &b, to.u.s, to.n);
        at = (size_t)(found - s.u.s) + from.n;
        if (from.n > 0) continue;
        if (at >= s.n) break;
        const size_t len = dt_jinja_char(s.u.s + at, s.n - at); /* an empty `from` matches between all characters */
        dt_jbuf_add(x, &b, s.u.s + at, len);
        at += len;
    }
    dt_jbuf_add(x, &b, s.u.s + at, s.n - at);
    return dt_jbuf_value(&b);
}

dt_jv dt_jstring_join(dt_jctx *x, dt_jv between, const dt_jlist *parts)
{
    dt_jbuf b = {0};
    for (size_t i = 0; i < parts->n; i++) {
        if (i > 0) dt_jbuf_add(x, &b, between.u.s, between.n);
        dt_jbuf_add(x, &b, parts->item[i].u.s, parts->item[i].n);
    }
    return dt_jbuf_value(&b);
}

static size_t line_end(const char *p, size_t n)
{
    const unsigned char *u = (const unsigned char *)p;
    if (n >= 2 && p[0] == '\r' && p[1] == '\n') return 2;
    if ((u[0] >= 10 && u[0] <= 13) || (u[0] >= 28 && u[0] <= 30)) return 1;
    if (n >= 2 && u[0] == 0xc2 && u[1] == 0x85) return 2;
    return n >= 3 && u[0] == 0xe2 && u[1] == 0x80 && (u[2] == 0xa8 || u[2] == 0xa9) ? 3 : 0;
}

dt_jv dt_jstring_lines(dt_jctx *x, dt_jv s)
{
    dt_jv all = dt_jv_list(x, DT_J_LIST);
    size_t from = 0;
    dt_jinja_work(x, s.n);
    for (size_t i = 0, n; i < s.n; i += n ? n : 1) {
        n = line_end(s.u.s + i, s.n - i);
        if (!n) continue;
        dt_jv_append(x, all, dt_jv_string(s.u.s + from, i - from));
        from = i + n;
    }
    if (from < s.n) dt_jv_append(x, all, dt_jv_string(s.u.s + from, s.n - from));
    return all;
}
