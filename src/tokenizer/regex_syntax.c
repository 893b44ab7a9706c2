/* regex_syntax.c - translates Oniguruma's syntax for Unicode strings to PCRE2's, over bytes that represent
 * characters.
 *
 * Source   Oniguruma's doc/RE, doc/SYNTAX.md; pcre2pattern(3).
 *
 * PCRE2 sees one byte for each character: an ASCII character as itself, any other as the number of its class. A
 * class holds the characters that no set of the expression distinguishes. The tables of unicode.h therefore define
 * letters, not those of PCRE2, and sets are bit maps. The expression is read twice: first to collect the sets, then,
 * with known classes, to write it.
 *
 * Rewritten, because the meaning differs: \w (Alphabetic, M, Nd, Pc and, outside of sets, six of No), \b and \B (by
 * that \w), \h (a hexadecimal digit), \v, \u, {,n}, (?m: (the dot matches a newline), (?i: (s is also U+017F, k
 * U+212A).
 *
 * Refused: possessive and lazy intervals ({n,m}+ and {n}? have another meaning in PCRE2), options that apply to the
 * rest of a group, [:posix:], sets within sets and &&, names, back references, and every escape not named here. If
 * case is ignored, letters beyond ASCII are also refused, and so are pairs of letters that match one character (ss and
 * U+00DF). */
#include "regex.h"
#include "dtrain/text/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_SETS = 64, MAX_CLASSES = 128, MAX_DEPTH = 64 };

typedef struct syntax {
    const char *p, *end, *begin;
    bool ours;    /* \p{numeric} and \p{punct} are allowed */
    bool writing; /* second pass */
    bool fold;    /* case is ignored at this position */
    bool folds[MAX_DEPTH];
    int depth;
    char last; /* the previous character, if it is a letter whose case is ignored; else 0 */
    dt_code_ranges set[MAX_SETS];
    int n_sets;
    uint64_t class_sets[MAX_CLASSES]; /* bit k: set k contains the class */
    int n_classes;
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
    return dt_fail(DT_ERR_DATA, "%s is not supported (byte %zu of \"%.60s\")", what, (size_t)(s->p - s->begin),
                   s->begin);
}

/* ---- sets in PCRE2's syntax ------------------ */

static bool holds(const dt_code_ranges *r, uint32_t c)
{
    for (size_t i = 0; i < r->n && r->item[i].first <= c; i++)
        if (c <= r->item[i].last) return true;
    return false;
}

static int find_set(const syntax *s, const dt_code_ranges *r)
{
    for (int k = 0; k < s->n_sets; k++)
        if (s->set[k].n == r->n && memcmp(s->set[k].item, r->item, r->n * sizeof *r->item) == 0) return k;
    return -1;
}

static void write_set(syntax *s, int k)
{
    char byte[16];
    put(s, "[");
    for (unsigned c = 0; c < 128u + (unsigned)s->n_classes; c++) {
        const bool in = c < 128 ? holds(&s->set[k], c) : s->class_sets[c - 128] >> k & 1;
        if (!in) continue;
        snprintf(byte, sizeof byte, "\\x%02x", c);
        put(s, byte);
    }
    put(s, "]");
}

/* Write one character of a settled set. Takes ownership of r. */
static dt_err put_set(syntax *s, dt_code_ranges *r)
{
    const int k = r->n ? find_set(s, r) : -1;
    dt_err err = DT_OK;
    if (r->failed)
        err = dt_fail(DT_ERR_MEMORY, "out of memory for a regular expression");
    else if (r->n == 0)
        put(s, "[^\\x00-\\xff]");
    else if (s->writing)
        write_set(s, k);
    else if (k < 0 && s->n_sets == MAX_SETS)
        err = refuse(s, "an expression with this many character sets");
    else if (k < 0)
        s->set[s->n_sets++] = *r, *r = (dt_code_ranges){0};
    free(r->item);
    *r = (dt_code_ranges){0};
    s->last = 0;
    return err;
}

/* Add \w. Oniguruma's tables contain six numbers of Latin-1, but not within [...]. */
static void add_word(dt_code_ranges *r, bool in_set)
{
    static const char *const parts[] = {"Alphabetic", "M", "Nd", "Pc"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) dt_code_ranges_add_property(r, parts[i]);
    if (in_set) return;
    dt_code_ranges_add(r, 0xb2, 0xb3);
    dt_code_ranges_add(r, 0xb9, 0xb9);
    dt_code_ranges_add(r, 0xbc, 0xbe);
}

static dt_err put_word(syntax *s)
{
    dt_code_ranges r = {0};
    add_word(&r, false);
    dt_code_ranges_settle(&r);
    return put_set(s, &r);
}

/* \b: (?:(?<=w)(?!w)|(?<!w)(?=w)); \B (is false) with the lookaheads exchanged. */
static dt_err put_boundary(syntax *s, bool is)
{
    put(s, "(?:(?<=");
    DT_TRY(put_word(s));
    put(s, is ? ")(?!" : ")(?=");
    DT_TRY(put_word(s));
    put(s, ")|(?<!");
    DT_TRY(put_word(s));
    put(s, is ? ")(?=" : ")(?!");
    DT_TRY(put_word(s));
    put(s, "))");
    return DT_OK;
}

/* ---- case-insensitive matching ------ */

static bool is_ascii_letter(uint32_t c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }

/* May a character of this range beyond ASCII have another case? */
static bool has_case(const dt_code_range *range)
{
    static const uint32_t cased = 1u << DT_CAT_LU | 1u << DT_CAT_LL | 1u << DT_CAT_LT | 1u << DT_CAT_NL |
                                  1u << DT_CAT_SO | 1u << DT_CAT_MN | 1u << DT_CAT_LM;
    uint32_t c = range->first < 128 ? 128 : range->first;
    while (c <= range->last && !(cased >> dt_unicode_category(c) & 1)) c++;
    return c <= range->last;
}

static dt_err fold(syntax *s, dt_code_ranges *r)
{
    const size_t n = r->n;
    for (size_t i = 0; i < n; i++) {
        const dt_code_range range = r->item[i];
        if (range.last >= 128 && has_case(&range))
            return refuse(s, "a letter beyond ASCII in case-insensitive matching");
        for (uint32_t c = range.first; c <= range.last && c < 128; c++) {
            if (!is_ascii_letter(c)) continue;
            dt_code_ranges_add(r, c ^ 32, c ^ 32);
            if ((c | 32) == 's') dt_code_ranges_add(r, 0x17f, 0x17f);
            if ((c | 32) == 'k') dt_code_ranges_add(r, 0x212a, 0x212a);
        }
    }
    dt_code_ranges_settle(r);
    return DT_OK;
}

/* If case is ignored, Oniguruma lets two letters match one character (U+00DF, U+FB00 to U+FB06). PCRE2 does not. c is
 * the letter that was just read. */
static dt_err check_pair(syntax *s, uint32_t c)
{
    static const char *const pairs[] = {"ss", "st", "ff", "fi", "fl"};
    const char low = (char)(c | 32);
    const bool repeats = s->p < s->end && strchr("+*{", *s->p);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        const bool doubled = repeats && pairs[i][0] == pairs[i][1] && low == pairs[i][0];
        if (doubled || (s->last == pairs[i][0] && low == pairs[i][1]))
            return refuse(s, "case-insensitive matching of ss, st, ff, fi or fl");
    }
    return DT_OK;
}

/* Write a literal character. s->p is after it. */
static dt_err put_code(syntax *s, uint32_t c)
{
    char escaped[16];
    dt_code_ranges r = {0};
    if (c < 128 && !(s->fold && is_ascii_letter(c))) {
        snprintf(escaped, sizeof escaped, "\\x%02x", c);
        s->last = 0;
        return put(s, escaped), DT_OK;
    }
    if (s->fold && c < 128) DT_TRY(check_pair(s, c));
    dt_code_ranges_add(&r, c, c);
    dt_err err = s->fold ? fold(s, &r) : DT_OK;
    if (err == DT_OK) err = put_set(s, &r);
    free(r.item);
    s->last = s->fold && c < 128 ? (char)(c | 32) : 0;
    return err;
}

static uint32_t take_char(syntax *s)
{
    size_t n;
    const uint32_t c = dt_utf8_decode(s->p, &n);
    s->p += n;
    return c;
}

/* ---- escapes ------------------ */

/* \p{...}, \P{...}, \p{^...}; s->p is at the p. */
static dt_err property(syntax *s, dt_code_ranges *r, bool *negated)
{
    *negated = *s->p++ == 'P';
    if (!next_is(s, "{")) return refuse(s, "a property without braces");
    s->p++;
    if (next_is(s, "^")) *negated = !*negated, s->p++;
    const char *close = memchr(s->p, '}', (size_t)(s->end - s->p));
    char name[40];
    if (!close || close == s->p || close - s->p >= (int)sizeof name) return refuse(s, "this property");
    snprintf(name, sizeof name, "%.*s", (int)(close - s->p), s->p);
    const uint8_t flag = !s->ours                       ? 0
                         : strcmp(name, "numeric") == 0 ? DT_GENERAL_NUMERIC
                         : strcmp(name, "punct") == 0   ? DT_GENERAL_PUNCTUATION
                                                        : 0;
    if (flag)
        dt_code_ranges_add_flag(r, flag);
    else if (!dt_code_ranges_add_property(r, name))
        return refuse(s, "this property");
    s->p = close + 1;
    return DT_OK;
}

/* \xHH, \x{H...}, \uHHHH; s->p is at the x or u. */
static dt_err code_point(syntax *s, uint32_t *c)
{
    const bool is_u = *s->p++ == 'u', braces = !is_u && next_is(s, "{");
    if (braces) s->p++;
    char digits[9] = "";
    size_t n = 0;
    const size_t most = braces ? 8 : is_u ? 4 : 2;
    while (n < most && s->p < s->end && *s->p && strchr("0123456789abcdefABCDEF", *s->p)) digits[n++] = *s->p++;
    if (n == 0 || (is_u && n < 4) || (braces && !next_is(s, "}"))) return refuse(s, "this code point");
    if (braces) s->p++;
    *c = (uint32_t)strtoul(digits, NULL, 16);
    if (!is_u && !braces && *c > 0x7f) return refuse(s, "\\x with a byte that is not a character");
    if (*c > 0x10ffff) return refuse(s, "this code point");
    return DT_OK;
}

/* Add \s, \w, \d, \h, \p or a complement to r. s->p is at the letter. *is: the escape is one of these. */
static dt_err set_escape(syntax *s, dt_code_ranges *r, bool in_set, bool *is)
{
    const char c = *s->p, low = (char)(c | 32);
    dt_code_ranges one = {0};
    bool negated = c != low;
    dt_err err = DT_OK;
    *is = c && strchr("sSwWdDhHpP", c);
    if (!*is) return DT_OK;
    if (low == 'p') {
        err = property(s, &one, &negated);
    } else {
        s->p++;
        if (low == 's') dt_code_ranges_add_spaces(&one);
        if (low == 'w') add_word(&one, in_set);
        if (low == 'd') dt_code_ranges_add_property(&one, "Nd");
        if (low == 'h')
            dt_code_ranges_add(&one, '0', '9'), dt_code_ranges_add(&one, 'A', 'F'), dt_code_ranges_add(&one, 'a', 'f');
    }
    dt_code_ranges_settle(&one);
    if (negated) dt_code_ranges_negate(&one);
    dt_code_ranges_add_all(r, &one);
    free(one.item);
    return err;
}

/* Read the character after a backslash: \n, \x41, \. ... */
static dt_err char_escape(syntax *s, uint32_t *c)
{
    static const char names[] = "nrtfaev", codes[] = "\n\r\t\f\a\x1b\v";
    const char *name = *s->p ? strchr(names, *s->p) : NULL;
    if (*s->p == 'x' || *s->p == 'u') return code_point(s, c);
    if (name) return *c = (uint32_t)(unsigned char)codes[name - names], s->p++, DT_OK;
    const bool plain = (unsigned char)*s->p >= 0x80 || (*s->p && strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ", *s->p));
    if (!plain) return refuse(s, "this escape");
    *c = take_char(s);
    return DT_OK;
}

static dt_err escape(syntax *s)
{
    if (++s->p == s->end) return refuse(s, "a backslash at the end");
    dt_code_ranges r = {0};
    bool is;
    uint32_t c = 0;
    dt_err err = set_escape(s, &r, false, &is);
    if (is) {
        dt_code_ranges_settle(&r);
        if (err == DT_OK) err = put_set(s, &r);
        free(r.item);
        return err;
    }
    if (*s->p == 'b' || *s->p == 'B') return put_boundary(s, *s->p++ == 'b');
    if (*s->p && strchr("AzZ", *s->p)) return put(s, "\\"), put_char(s), DT_OK;
    DT_TRY(char_escape(s, &c));
    return put_code(s, c);
}

/* ---- sets: [...] ------------------ */

/* Read an item of a set: a character, or if *is_set a class such as \s, which is added to r. */
static dt_err item(syntax *s, dt_code_ranges *r, bool *is_set, uint32_t *c)
{
    *is_set = false;
    if (*s->p == '[') return refuse(s, "[ within a set");
    if (next_is(s, "&&")) return refuse(s, "&& within a set");
    if (*s->p != '\\') return *c = take_char(s), DT_OK;
    if (++s->p == s->end) return refuse(s, "a backslash at the end");
    DT_TRY(set_escape(s, r, true, is_set));
    return *is_set ? DT_OK : char_escape(s, c);
}

static dt_err items(syntax *s, dt_code_ranges *r)
{
    while (s->p < s->end && *s->p != ']') {
        bool is_set, ends_in_set = false;
        uint32_t first = 0, last;
        DT_TRY(item(s, r, &is_set, &first));
        const bool range = next_is(s, "-") && !next_is(s, "-]");
        if (is_set && range) return refuse(s, "a range that begins with a set");
        if (is_set) continue;
        last = first;
        if (range) s->p++;
        if (range && s->p < s->end) DT_TRY(item(s, r, &ends_in_set, &last));
        if (ends_in_set) return refuse(s, "a range that ends with a set");
        if (last < first) return refuse(s, "a range in descending order");
        dt_code_ranges_add(r, first, last);
    }
    return s->p < s->end ? DT_OK : refuse(s, "an unclosed set");
}

static dt_err set(syntax *s)
{
    dt_code_ranges r = {0};
    s->p++;
    const bool negated = next_is(s, "^");
    if (negated) s->p++;
    if (next_is(s, "]")) return refuse(s, "] as the first of a set");
    dt_err err = items(s, &r);
    dt_code_ranges_settle(&r);
    if (err == DT_OK && s->fold) err = fold(s, &r);
    if (negated) dt_code_ranges_negate(&r);
    s->p++;
    if (err == DT_OK) err = put_set(s, &r);
    free(r.item);
    return err;
}

/* ---- groups and intervals ------ */

static dt_err open_group(syntax *s)
{
    if (s->depth == MAX_DEPTH) return refuse(s, "such deep nesting of groups");
    s->folds[s->depth++] = s->fold;
    return DT_OK;
}

static dt_err close_group(syntax *s)
{
    if (s->depth == 0) return refuse(s, "an unmatched )");
    s->fold = s->folds[--s->depth];
    put_char(s);
    return DT_OK;
}

/* (?im-i: and, at the beginning, (?im); s->p is after the question mark. */
static dt_err options(syntax *s, const char *open)
{
    bool on = true, fold = s->fold, dot[2] = {false, false};
    for (; s->p < s->end && *s->p != ':' && *s->p != ')'; s->p++) {
        if (*s->p == '-')
            on = false;
        else if (*s->p == 'i')
            fold = on;
        else if (*s->p == 'm')
            dot[on] = true;
        else
            return refuse(s, "this kind of group");
    }
    if (s->p == s->end) return refuse(s, "an unclosed group");
    if (*s->p == ')' && open != s->begin) return refuse(s, "an option that is not at the start");
    const bool whole = *s->p++ == ')';
    if (!whole) DT_TRY(open_group(s));
    s->fold = fold;
    put(s, dot[1] ? "(?s" : dot[0] ? "(?-s" : whole ? "(?:" : "(?");
    put(s, whole ? ")" : ":");
    return DT_OK;
}

static dt_err group(syntax *s)
{
    static const char *const same[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};
    const char *open = s->p;
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        if (next_is(s, same[i])) return put(s, same[i]), s->p += strlen(same[i]), open_group(s);
    if (next_is(s, "(*")) return refuse(s, "(*");
    if (next_is(s, "(?")) return s->p += 2, options(s, open);
    DT_TRY(open_group(s));
    put_char(s);
    return DT_OK;
}

/* {n}, {n,}, {,m}, {n,m}; any other brace is a literal. */
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

static dt_err one(syntax *s)
{
    switch (*s->p) {
    case '\\':
        return escape(s);
    case '[':
        return set(s);
    case '(':
        s->last = 0;
        return group(s);
    case ')':
        s->last = 0;
        return close_group(s);
    case '{':
        return interval(s);
    case '^':
    case '$':
    case '.':
    case '|':
    case '?':
    case '*':
    case '+':
        s->last = 0;
        return put_char(s), DT_OK;
    default:
        return put_code(s, take_char(s));
    }
}

static dt_err pass(syntax *s, bool writing)
{
    s->writing = writing;
    s->p = s->begin;
    s->out->n = 0;
    s->fold = false;
    s->depth = 0;
    s->last = 0;
    while (s->p < s->end) DT_TRY(one(s));
    return s->depth == 0 ? DT_OK : refuse(s, "an unclosed group");
}

/* ---- classes ------------------ */

static dt_err class_of(syntax *s, uint64_t sets, uint8_t *value)
{
    int k = 0;
    while (k < s->n_classes && s->class_sets[k] != sets) k++;
    if (k == MAX_CLASSES) return refuse(s, "an expression with this many character classes");
    if (k == s->n_classes) s->class_sets[s->n_classes++] = sets;
    *value = (uint8_t)(128 + k);
    return DT_OK;
}

/* Divide all characters at the bounds of all sets: the characters of a range are in the same sets. Each ASCII character
 * is its own class. */
static dt_err make_classes(syntax *s, dt_char_table *table)
{
    size_t n_runs = 0, n_most = 129, at[MAX_SETS] = {0};
    for (int k = 0; k < s->n_sets; k++) n_most += 2 * s->set[k].n;
    uint32_t *run = malloc(n_most * sizeof *run);
    DT_CHECK(run, DT_ERR_MEMORY, "out of memory for a regular expression");
    dt_err err = DT_OK;
    for (uint32_t c = 0, next; c <= 0x10ffff && err == DT_OK; c = next) {
        uint64_t sets = 0;
        uint8_t value = (uint8_t)c;
        next = c < 128 ? c + 1 : 0x110000;
        for (int k = 0; k < s->n_sets; k++) {
            while (at[k] < s->set[k].n && s->set[k].item[at[k]].last < c) at[k]++;
            if (at[k] == s->set[k].n) continue;
            const dt_code_range *r = &s->set[k].item[at[k]];
            const uint32_t border = r->first <= c ? r->last + 1 : r->first;
            if (r->first <= c) sets |= (uint64_t)1 << k;
            if (border < next) next = border;
        }
        if (c >= 128) err = class_of(s, sets, &value);
        run[n_runs++] = c << 8 | value;
    }
    if (err == DT_OK) err = dt_char_table_make(table, run, n_runs);
    free(run);
    return err;
}

dt_err dt_regex_translate(const char *pattern, size_t n, bool ours, dt_text *out, dt_char_table *table)
{
    syntax *s = calloc(1, sizeof *s);
    DT_CHECK(s, DT_ERR_MEMORY, "out of memory for a regular expression");
    *s = (syntax){.begin = pattern, .end = pattern + n, .ours = ours, .out = out};
    dt_err err = pass(s, false);
    if (err == DT_OK) err = make_classes(s, table);
    if (err == DT_OK) err = pass(s, true);
    for (int k = 0; k < s->n_sets; k++) free(s->set[k].item);
    free(s);
    dt_text_append(out, "", 0);
    DT_CHECK(err != DT_OK || !out->failed, DT_ERR_MEMORY, "out of memory for a regular expression");
    return err;
}
