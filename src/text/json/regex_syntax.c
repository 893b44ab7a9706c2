/* regex_syntax.c - Oniguruma's syntax (its own, of Unicode strings) as PCRE2 reads it.
 *
 * Source   Oniguruma's doc/RE, doc/SYNTAX.md; pcre2pattern(3).
 * Different in meaning, and rewritten: \s (PCRE2 counts U+180E), \w (Alphabetic, M, Nd, Pc and six of No), \b and \B (by that \w), \h (a hexadecimal digit), \v, \u,
 * {,n}, (?m: (the dot matches a newline), scripts (\p{Han} is the script alone, without its extensions).
 * Different and refused: possessive and lazy intervals ({n,m}+ and {n}? are something else there), options that hold to the end of a group, [:posix:],
 * sets within sets and &&, names, back references, and every escape not named here.
 * What is a letter or a number depends on the version of Unicode: PCRE2 10.42 has 14.0, so characters added to Unicode since are none to it. */
#include "regex.h"

#include <stdlib.h>
#include <string.h>

#define SPACES "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}" /* its tables have these of Latin-1, too */
#define HEX "0-9A-Fa-f"
#define IS_WORD "[" WORD "]"

typedef struct syntax {
    const char *p, *end, *begin;
    dt_text *out;
} syntax;

static void put(syntax *s, const char *text) { dt_text_append(s->out, text, strlen(text)); }
static void put_char(syntax *s) { dt_text_append(s->out, s->p++, 1); }
static bool next_is(const syntax *s, const char *text)
{
    const size_t n = strlen(text);
    return (size_t)(s->end - s->p) >= n && memcmp(s->p, text, n) == 0;
}

static dt_err refuse(const syntax *s, const char *what)
{
    return dt_fail(DT_ERR_DATA, "%s is not supported (byte %zu of \"%.60s\")", what, (size_t)(s->p - s->begin), s->begin);
}

/* \p{...}, \P{...}, \p{^...}; s->p is at the p. */
static dt_err property(syntax *s)
{
    static const char *const general[][2] = {{"Letter", "L"},
                                             {"Mark", "M"},
                                             {"Number", "N"},
                                             {"Punctuation", "P"},
                                             {"Symbol", "S"},
                                             {"Separator", "Z"},
                                             {"Other", "C"},
                                             {"Uppercase_Letter", "Lu"},
                                             {"Lowercase_Letter", "Ll"},
                                             {"Decimal_Number", "Nd"},
                                             {"Alphabetic", "Alphabetic"},
                                             {"White_Space", "White_Space"},
                                             {"Alpha", "Alphabetic"},
                                             {"Digit", "Nd"}};
    bool negated = *s->p == 'P';
    s->p++;
    if (!next_is(s, "{")) return refuse(s, "a property without braces");
    s->p++;
    if (next_is(s, "^")) negated = !negated, s->p++;
    const char *close = memchr(s->p, '}', (size_t)(s->end - s->p));
    char name[40];
    if (!close || close == s->p || close - s->p >= (int)sizeof name) return refuse(s, "this property");
    const int len = (int)(close - s->p);
    snprintf(name, sizeof name, "%.*s", len, s->p);
    const char *ours = len <= 2 ? name : NULL;
    for (size_t i = 0; i < sizeof general / sizeof general[0]; i++)
        if (strcmp(name, general[i][0]) == 0) ours = general[i][1];
    put(s, negated ? "\\P{" : "\\p{");
    if (!ours) put(s, "sc:");
    put(s, ours ? ours : name);
    put(s, "}");
    s->p = close + 1;
    return DT_OK;
}

/* \xHH, \x{H...}, \uHHHH; s->p is at the x or u. */
static dt_err code_point(syntax *s)
{
    const bool is_u = *s->p++ == 'u', braces = !is_u && next_is(s, "{");
    if (braces) s->p++;
    char digits[9] = "", code[16];
    size_t n = 0;
    const size_t most = braces ? 8 : is_u ? 4 : 2;
    while (n < most && s->p < s->end && strchr("0123456789abcdefABCDEF", *s->p)) digits[n++] = *s->p++;
    if (n == 0 || (is_u && n < 4) || (braces && !next_is(s, "}"))) return refuse(s, "this code point");
    if (braces) s->p++;
    if (!is_u && !braces && strtol(digits, NULL, 16) > 0x7f) return refuse(s, "\\x with a byte that is no character");
    snprintf(code, sizeof code, "\\x{%s}", digits);
    put(s, code);
    return DT_OK;
}

/* A set of characters that is written out: \s, \w, \h and their complements. */
static dt_err set_escape(syntax *s, bool in_class)
{
    const char c = *s->p, *set = c == 's' || c == 'S' ? SPACES : c == 'w' || c == 'W' ? WORD : HEX;
    const bool negated = c == 'S' || c == 'W' || c == 'H';
    if (in_class && negated && c != 'S') return refuse(s, "\\W or \\H in a set");
    s->p++;
    if (in_class && negated) {
        put(s, "\\P{White_Space}");
    } else {
        put(s, in_class ? "" : negated ? "[^" : "[");
        put(s, set);
        put(s, in_class ? "" : "]");
    }
    if (in_class && next_is(s, "-") && !next_is(s, "-]")) return refuse(s, "a range that begins with a set");
    return DT_OK;
}

static dt_err escape(syntax *s, bool in_class)
{
    if (++s->p == s->end) return refuse(s, "a backslash at the end");
    const unsigned char c = (unsigned char)*s->p;
    if (strchr("sSwWhH", c)) return set_escape(s, in_class);
    if (c == 'd' || c == 'D') return put(s, c == 'd' ? "\\p{Nd}" : "\\P{Nd}"), s->p++, DT_OK;
    if (c == 'p' || c == 'P') return property(s);
    if (c == 'x' || c == 'u') return code_point(s);
    if (c == 'v') return put(s, "\\x{b}"), s->p++, DT_OK;
    if (!in_class && c == 'b')
        return put(s, "(?:(?<=" IS_WORD ")(?!" IS_WORD ")|(?<!" IS_WORD ")(?=" IS_WORD "))"), s->p++, DT_OK;
    if (!in_class && c == 'B')
        return put(s, "(?:(?<=" IS_WORD ")(?=" IS_WORD ")|(?<!" IS_WORD ")(?!" IS_WORD "))"), s->p++, DT_OK;
    if (strchr("nrtfae", c) || (!in_class && strchr("AzZ", c)) || (c < 0x80 && strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ", c)))
        return put(s, "\\"), put_char(s), DT_OK;
    if (c >= 0x80) return put_char(s), DT_OK; /* the rest of the character follows as it stands */
    return refuse(s, "this escape");
}

static dt_err set(syntax *s)
{
    put_char(s);
    if (next_is(s, "^")) put_char(s);
    if (next_is(s, "]")) return refuse(s, "] as the first of a set");
    while (s->p < s->end && *s->p != ']') {
        if (*s->p == '[') return refuse(s, "[ within a set");
        if (next_is(s, "&&")) return refuse(s, "&& within a set");
        if (*s->p == '\\')
            DT_TRY(escape(s, true));
        else
            put_char(s);
    }
    if (s->p == s->end) return refuse(s, "a set without an end");
    put_char(s);
    return DT_OK;
}

static dt_err group(syntax *s)
{
    static const char *const same[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};
    const char *open = s->p;
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        if (next_is(s, same[i])) return put(s, same[i]), s->p += strlen(same[i]), DT_OK;
    if (next_is(s, "(*")) return refuse(s, "(*");
    put_char(s);
    if (!next_is(s, "?")) return DT_OK;
    for (put_char(s); s->p < s->end && *s->p != ':' && *s->p != ')'; s->p++) {
        if (*s->p != 'i' && *s->p != '-' && *s->p != 'm') return refuse(s, "this kind of group");
        dt_text_append(s->out, *s->p == 'm' ? "s" : s->p, 1);
    }
    if (next_is(s, ")") && open != s->begin) return refuse(s, "an option that is not at the beginning");
    if (s->p == s->end) return refuse(s, "a group without an end");
    put_char(s);
    return DT_OK;
}

/* {n}, {n,}, {,m}, {n,m}; anything else is the brace itself. */
static dt_err interval(syntax *s)
{
    const char *q = s->p + 1, *low = q;
    while (q < s->end && *q >= '0' && *q <= '9') q++;
    const bool has_low = q > low, comma = q < s->end && *q == ',';
    const char *high = comma ? q + 1 : q;
    if (comma)
        for (q = high; q < s->end && *q >= '0' && *q <= '9';) q++;
    if (q == s->end || *q != '}' || !(has_low || (comma && q > high))) return put(s, "\\"), put_char(s), DT_OK;
    if (q + 1 < s->end && (q[1] == '+' || (q[1] == '?' && !comma))) return refuse(s, "{}+ or {n}?");
    put(s, "{");
    if (!has_low) put(s, "0");
    dt_text_append(s->out, low, (size_t)(q + 1 - low));
    s->p = q + 1;
    return DT_OK;
}

dt_err dt_regex_translate(const char *pattern, size_t n, dt_text *out)
{
    syntax s = {.p = pattern, .begin = pattern, .end = pattern + n, .out = out};
    while (s.p < s.end) {
        if (*s.p == '\\')
            DT_TRY(escape(&s, false));
        else if (*s.p == '[')
            DT_TRY(set(&s));
        else if (*s.p == '(')
            DT_TRY(group(&s));
        else if (*s.p == '{')
            DT_TRY(interval(&s));
        else
            put_char(&s);
    }
    dt_text_append(out, "", 0);
    DT_CHECK(!out->failed, DT_ERR_MEMORY, "no memory for a regular expression");
    return DT_OK;
}
