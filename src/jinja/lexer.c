/* lexer.c - splits a template into tokens, removing white space as trim_blocks, lstrip_blocks and the
 * signs - and + require.
 *
 * Rules of Jinja2 3.1 (lexer.py): one newline at the template's end is dropped. `-` strips all white space
 * on its side. Blanks before a block or comment that starts a line are stripped, unless `+` keeps them.
 * The newline after a block or comment is stripped, unless `+` keeps it. A strict template keeps all white space. */
#include "jinja_private.h"

#include "dtrain/text/space.h"
#include <errno.h>

typedef struct lexer {
    dt_jctx *x;
    const char *text, *end, *at;
    dt_jtoken *token;
    size_t n;
    int line;
    bool line_starts; /* the last tag ended with a newline, or there was none */
} lexer;

static dt_jtoken *add(lexer *l, dt_jtoken_kind kind)
{
    l->token = dt_jinja_grow(l->x, l->token, l->n, sizeof *l->token);
    dt_jtoken *t = &l->token[l->n++];
    *t = (dt_jtoken){.kind = kind, .line = l->line, .text = ""};
    return t;
}

static void set_text(lexer *l, dt_jtoken *t, const char *text, size_t n)
{
    char *copy = dt_jinja_alloc(l->x, n + 1);
    memcpy(copy, text, n);
    t->text = copy;
    t->n = n;
}

/* Advance, counting lines. */
static void advance(lexer *l, size_t n)
{
    for (const char *stop = l->at + n; l->at < stop; l->at++) l->line += *l->at == '\n';
    l->x->line = l->line;
}

static bool begins(const lexer *l, const char *word)
{
    const size_t n = strlen(word);
    return (size_t)(l->end - l->at) >= n && memcmp(l->at, word, n) == 0;
}

/* ---- text between tags ------------------------------------------------------------------------------------------- */

/* Strip the last line of the text if it is blank. */
static size_t without_indent(const lexer *l, const char *text, size_t n)
{
    size_t line = n;
    while (line > 0 && text[line - 1] != '\n') line--;
    if (line == 0 && !l->line_starts) return n;
    return line + dt_space_before(text + line, n - line) == n ? line : n;
}

static void add_text(lexer *l, const char *text, size_t n, char tag, char sign)
{
    if (sign == '-')
        n = dt_space_trimmed(text, n);
    else if (!l->x->strict && sign != '+' && tag != '{')
        n = without_indent(l, text, n);
    if (n > 0) set_text(l, add(l, DT_JT_TEXT), text, n);
}

/* After a tag's end: strip what the sign or trim_blocks requires. */
static void after_tag(lexer *l, char sign, bool trims)
{
    const char *begin = l->at;
    if (sign == '-')
        advance(l, dt_space_before(l->at, (size_t)(l->end - l->at)));
    else if (!l->x->strict && trims && sign != '+' && begins(l, "\n"))
        advance(l, 1);
    l->line_starts = l->at > begin && l->at[-1] == '\n';
}

/* Parse the sign before a tag's end, and the end itself. */
static bool skip_end(lexer *l, const char *word, char *sign)
{
    const bool signs = l->at < l->end && (*l->at == '-' || (*l->at == '+' && *word != '}'));
    const size_t n = strlen(word) + signs;
    if ((size_t)(l->end - l->at) < n || memcmp(l->at + signs, word, n - signs) != 0) return false;
    *sign = signs ? *l->at : '\0';
    advance(l, n);
    return true;
}

/* ---- tokens in tags ---------------------------------------------------------------------------------------------- */

static uint32_t hex(lexer *l, const char *p, const char *end, int digits)
{
    uint32_t code = 0;
    if (end - p < digits) dt_jinja_fail(l->x, "expected %d hexadecimal digits in a string", digits);
    for (int i = 0; i < digits; i++) {
        const char *all = "0123456789abcdef0123456789ABCDEF", *found = p[i] ? strchr(all, p[i]) : NULL;
        if (!found) dt_jinja_fail(l->x, "expected %d hexadecimal digits in a string", digits);
        code = code * 16 + (uint32_t)((found - all) % 16);
    }
    return code;
}

/* Decode a backslash escape as Python's unicode-escape. Returns the position after it. */
static const char *escape(lexer *l, dt_jbuf *b, const char *p, const char *end)
{
    static const char letters[] = "abfnrtv\\'\"", values[] = "\a\b\f\n\r\t\v\\'\"";
    const char *found = *p ? strchr(letters, *p) : NULL;
    if (found) return dt_jbuf_add(l->x, b, &values[found - letters], 1), p + 1;
    if (*p == '\n') return p + 1;
    const int digits = *p == 'x' ? 2 : *p == 'u' ? 4 : *p == 'U' ? 8 : 0;
    if (digits) return dt_jinja_put_utf8(l->x, b, hex(l, p + 1, end, digits)), p + 1 + digits;
    if (*p == 'N') dt_jinja_fail(l->x, "\\N{...} in strings is not supported");
    if (*p >= '0' && *p <= '7') {
        uint32_t code = 0;
        for (int i = 0; i < 3 && p < end && *p >= '0' && *p <= '7'; i++) code = code * 8 + (uint32_t)(*p++ - '0');
        return dt_jinja_put_utf8(l->x, b, code), p;
    }
    return dt_jbuf_add(l->x, b, "\\", 1), p;
}

static void string(lexer *l)
{
    const char quote = *l->at, *p = l->at + 1;
    dt_jbuf b = {0};
    for (; p < l->end && *p != quote;) {
        if (*p == '\\' && p + 1 < l->end) {
            p = escape(l, &b, p + 1, l->end);
        } else {
            dt_jbuf_add(l->x, &b, p++, 1);
        }
    }
    if (p >= l->end) dt_jinja_fail(l->x, "a string is not closed");
    set_text(l, add(l, DT_JT_STRING), b.text ? b.text : "", b.n);
    advance(l, (size_t)(p + 1 - l->at));
}

static bool is_name(char c, bool first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) ||
           (!first && c >= '0' && c <= '9');
}

/* Digits with underscores between them; a point or exponent makes it a float. */
static void number(lexer *l)
{
    char digits[64];
    size_t n = 0;
    const char *p = l->at;
    bool real = false;
    for (; p < l->end; p++) {
        const char next = p + 1 < l->end ? p[1] : '\0';
        const bool digit = *p >= '0' && *p <= '9';
        if (*p == '_' && next >= '0' && next <= '9') continue;
        const bool point = *p == '.' && !real && next >= '0' && next <= '9';
        const bool exponent = (*p == 'e' || *p == 'E') &&
                              ((next >= '0' && next <= '9') ||
                               ((next == '-' || next == '+') && p + 2 < l->end && p[2] >= '0' && p[2] <= '9'));
        const bool sign = (*p == '-' || *p == '+') && n > 0 && (digits[n - 1] == 'e' || digits[n - 1] == 'E');
        if (!digit && !point && !exponent && !sign) break;
        real = real || point || exponent;
        if (n + 1 >= sizeof digits) dt_jinja_fail(l->x, "numbers of more than 62 digits are not supported");
        digits[n++] = *p;
    }
    digits[n] = '\0';
    if (p < l->end && is_name(*p, true)) dt_jinja_fail(l->x, "expected a number, found %s%c...", digits, *p);
    dt_jtoken *t = add(l, real ? DT_JT_FLOAT : DT_JT_INT);
    set_text(l, t, digits, n);
    errno = 0;
    if (real)
        t->f = strtod(digits, NULL);
    else
        t->i = strtoll(digits, NULL, 10);
    if (errno != 0) dt_jinja_fail(l->x, "the number %s is out of range", digits);
    advance(l, (size_t)(p - l->at));
}

static void operator(lexer *l)
{
    static const char *const all[] = {"==", "!=", ">=", "<=", "//", "**", "+", "-", "/", "*", "%", "~", "[",
                                      "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!begins(l, all[i])) continue;
        dt_jtoken *t = add(l, DT_JT_OPERATOR);
        t->text = all[i];
        advance(l, strlen(all[i]));
        return;
    }
    dt_jinja_fail(l->x, "unexpected character %.*s", (int)dt_jinja_char(l->at, (size_t)(l->end - l->at)), l->at);
}

/* Tokens between the start and the end of a tag. Inside braces, }} closes nested dicts. */
static void inside(lexer *l, bool block)
{
    int depth = 0;
    char sign;
    for (;;) {
        advance(l, dt_space_before(l->at, (size_t)(l->end - l->at)));
        if (l->at >= l->end) dt_jinja_fail(l->x, "a tag is not closed: expected %s", block ? "%}" : "}}");
        const int line = l->line;
        if (depth == 0 && skip_end(l, block ? "%}" : "}}", &sign)) {
            add(l, block ? DT_JT_BLOCK_END : DT_JT_PRINT_END)->line = line;
            after_tag(l, sign, block);
            return;
        }
        if (*l->at == '\'' || *l->at == '"') {
            string(l);
        } else if (*l->at >= '0' && *l->at <= '9') {
            number(l);
        } else if (is_name(*l->at, true)) {
            const char *p = l->at;
            while (p < l->end && is_name(*p, false)) p++;
            set_text(l, add(l, DT_JT_NAME), l->at, (size_t)(p - l->at));
            advance(l, (size_t)(p - l->at));
        } else {
            depth += *l->at == '{' || *l->at == '(' || *l->at == '[';
            depth -= *l->at == '}' || *l->at == ')' || *l->at == ']';
            operator(l);
        }
    }
}

/* ---- tags -------------------------------------------------------------------------------------------------------- */

/* Match a block that consists of one word, such as {% raw %} and its end. */
static bool at_word(lexer *l, const char *word, const char **after, char *open, char *close)
{
    lexer probe = *l;
    if (!begins(&probe, "{%")) return false;
    probe.at += 2;
    *open = probe.at < l->end && (*probe.at == '-' || *probe.at == '+') ? *probe.at++ : '\0';
    probe.at += dt_space_before(probe.at, (size_t)(l->end - probe.at));
    if (!begins(&probe, word)) return false;
    probe.at += strlen(word);
    probe.at += dt_space_before(probe.at, (size_t)(l->end - probe.at));
    *close = probe.at < l->end && (*probe.at == '-' || *probe.at == '+') ? *probe.at++ : '\0';
    *after = begins(&probe, "%}") ? probe.at + 2 : NULL;
    return *after != NULL;
}

static void raw(lexer *l, const char *after, char close)
{
    char open, end_close;
    advance(l, (size_t)(after - l->at));
    after_tag(l, close, false);
    const char *begin = l->at;
    for (; l->at < l->end; advance(l, 1)) {
        if (!at_word(l, "endraw", &after, &open, &end_close)) continue;
        add_text(l, begin, (size_t)(l->at - begin), '%', open);
        advance(l, (size_t)(after - l->at));
        after_tag(l, end_close, true);
        return;
    }
    dt_jinja_fail(l->x, "raw is not closed: expected {%% endraw %%}");
}

static void comment(lexer *l)
{
    const char *close = memmem(l->at + 2, (size_t)(l->end - l->at) - 2, "#}", 2);
    if (!close) dt_jinja_fail(l->x, "a comment is not closed: expected #}");
    const char sign = close - l->at >= 3 && (close[-1] == '-' || close[-1] == '+') ? close[-1] : '\0';
    advance(l, (size_t)(close + 2 - l->at));
    after_tag(l, sign, true);
}

static void tag(lexer *l, const char *text)
{
    const char kind = l->at[1], sign = l->at + 2 < l->end ? l->at[2] : '\0', *after;
    char open, close;
    add_text(l, text, (size_t)(l->at - text), kind, sign);
    if (kind == '#') {
        comment(l);
    } else if (kind == '%' && at_word(l, "raw", &after, &open, &close)) {
        raw(l, after, close);
    } else {
        add(l, kind == '%' ? DT_JT_BLOCK_BEGIN : DT_JT_PRINT_BEGIN);
        advance(l, sign == '-' || sign == '+' ? 3 : 2);
        inside(l, kind == '%');
    }
}

/* Convert all line ends to \n, and drop one at the end, unless the template is strict. */
static char *normal_lines(dt_jctx *x, const char *text, size_t *n)
{
    char *copy = dt_jinja_alloc(x, *n + 1), *to = copy;
    for (size_t i = 0; i < *n; i++) {
        if (text[i] == '\r' && i + 1 < *n && text[i + 1] == '\n') continue;
        *to++ = (char)(text[i] == '\r' ? '\n' : text[i]);
    }
    if (!x->strict && to > copy && to[-1] == '\n') to--;
    *n = (size_t)(to - copy);
    return copy;
}

const dt_jtoken *dt_jinja_lex(dt_jctx *x, const char *text, size_t n)
{
    lexer l = {.x = x, .line = 1, .line_starts = true};
    l.text = l.at = normal_lines(x, text, &n);
    l.end = l.text + n;
    const char *from = l.at;
    while (l.at < l.end) {
        if (begins(&l, "{{") || begins(&l, "{%") || begins(&l, "{#")) {
            tag(&l, from);
            from = l.at;
        } else {
            advance(&l, 1);
        }
    }
    if (l.end > from) set_text(&l, add(&l, DT_JT_TEXT), from, (size_t)(l.end - from));
    add(&l, DT_JT_END);
    return l.token;
}
