/* python_list.c - parses a list as Python's repr() writes it. Upstream evaluates such texts as code; here
 * they are data.
 *
 * Source   The Python Language Reference, 2.4.1 (string literals and their escapes). */
#include "dtrain/make/rec_files.h"
#include "dtrain/tokenizer/tokenizer.h"
#include "dtrain/text/utf8.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct literal {
    const char *text;
    size_t n, at;
    char *out; /* [n + 1]: the string being read; an escape is never shorter than its value */
    size_t n_out;
} literal;

static int peek(literal *l)
{
    while (l->at < l->n && isspace((unsigned char)l->text[l->at])) l->at++;
    return l->at < l->n ? (unsigned char)l->text[l->at] : EOF;
}

static dt_err expected(const literal *l, const char *what)
{
    const int n = (int)dt_utf8_valid(l->text + l->at, l->n - l->at < 12 ? l->n - l->at : 12);
    return dt_fail(DT_ERR_DATA, "expected %s at byte %zu of a list, found %s%.*s%s", what, l->at + 1, n ? "\"" : "", n,
                   n ? l->text + l->at : "", n ? "\"" : "its end");
}

static void put_character(literal *l, uint32_t c) { l->n_out += dt_utf8_put(c, l->out + l->n_out); }

/* \xHH, \uHHHH, \UHHHHHHHH; at is after the letter. */
static dt_err hexadecimal(literal *l, int n_digits)
{
    char digits[9] = "";
    for (int i = 0; i < n_digits; i++, l->at++) {
        digits[i] = l->at < l->n ? l->text[l->at] : '\0';
        if (!isxdigit((unsigned char)digits[i])) return expected(l, "a hexadecimal digit");
    }
    const uint32_t c = (uint32_t)strtoul(digits, NULL, 16);
    DT_CHECK(c < 0x110000 && (c < 0xd800 || c > 0xdfff), DT_ERR_DATA,
             "expected a character, found the escape U+%04X in a list", (unsigned)c);
    put_character(l, c);
    return DT_OK;
}

static void octal(literal *l)
{
    uint32_t c = 0;
    for (int i = 0; i < 3 && l->at < l->n && l->text[l->at] >= '0' && l->text[l->at] <= '7'; i++)
        c = c << 3 | (uint32_t)(l->text[l->at++] - '0');
    put_character(l, c);
}

/* Parse an escape; at is after the backslash. */
static dt_err escape(literal *l)
{
    static const char letters[] = "abfnrtv\\'\"", stands_for[] = "\a\b\f\n\r\t\v\\'\"";
    if (l->at == l->n) return expected(l, "the rest of an escape");
    const char c = l->text[l->at++], *letter = strchr(letters, c);
    if (c && letter) return put_character(l, (unsigned char)stands_for[letter - letters]), DT_OK;
    if (c >= '0' && c <= '7') return l->at--, octal(l), DT_OK;
    if (c == 'x') return hexadecimal(l, 2);
    if (c == 'u') return hexadecimal(l, 4);
    if (c == 'U') return hexadecimal(l, 8);
    DT_CHECK(c != 'N', DT_ERR_DATA, "character names (\\N) are not supported in a list");
    l->out[l->n_out++] = '\\'; /* as Python: unknown escapes are kept */
    l->out[l->n_out++] = c;
    return DT_OK;
}

static dt_err string(literal *l)
{
    const char quote = l->text[l->at++];
    for (;;) {
        if (l->at == l->n) return expected(l, "a closing quote");
        const char c = l->text[l->at++];
        if (c == quote) return DT_OK;
        if (c == '\\')
            DT_TRY(escape(l));
        else
            l->out[l->n_out++] = c;
    }
}

static bool in_number(int c) { return isalnum(c) || c == '+' || c == '-' || c == '.' || c == '_'; }

static dt_err number(literal *l)
{
    while (l->at < l->n && in_number((unsigned char)l->text[l->at])) l->out[l->n_out++] = l->text[l->at++];
    return DT_OK;
}

static dt_err element(literal *l, json_t *list)
{
    const int c = peek(l);
    const bool is_string = c == '\'' || c == '"';
    if (!is_string && (!in_number(c) || isalpha(c) || c == '_')) return expected(l, "a string or a number");
    l->n_out = 0;
    DT_TRY(is_string ? string(l) : number(l));
    DT_CHECK(!memchr(l->out, '\0', l->n_out), DT_ERR_DATA, "expected text without zero characters in a list");
    json_t *text = json_stringn(l->out, l->n_out);
    DT_CHECK(text && json_array_append_new(list, text) == 0, DT_ERR_MEMORY, "out of memory for a list of %zu bytes",
             l->n);
    return DT_OK;
}

static dt_err elements(literal *l, json_t *list)
{
    if (peek(l) != '[') return expected(l, "[");
    for (l->at++; peek(l) != ']';) {
        DT_TRY(element(l, list));
        if (peek(l) == ',')
            l->at++;
        else if (peek(l) != ']')
            return expected(l, "a comma or ]");
    }
    l->at++;
    return peek(l) == EOF ? DT_OK : expected(l, "the end of the text after ]");
}

dt_err dt_python_list(json_t **list, const char *text, size_t nbytes)
{
    literal l = {.text = text, .n = nbytes, .out = malloc(nbytes + 1)};
    *list = json_array();
    const dt_err err =
        l.out && *list ? elements(&l, *list) : dt_fail(DT_ERR_MEMORY, "out of memory for a list of %zu bytes", nbytes);
    free(l.out);
    if (err != DT_OK) {
        json_decref(*list);
        *list = NULL;
    }
    return err;
}
