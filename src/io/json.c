/* json.c - parsing with jansson, and rewriting of texts that jansson does not accept.
 *
 * A text is rewritten only after jansson has rejected it, so valid texts cost nothing extra. Keys with U+0000 are the
 * exception, because jansson cannot represent them. In texts where they may occur, U+0000 and U+FDD0 are escaped as
 * U+FDD0 "0" and U+FDD0 "1". (U+FDD0 is a noncharacter and hardly ever occurs.) */
#include "dtrain/io/json.h"
#include "dtrain/io/io.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ESCAPE "\xef\xb7\x90" /* U+FDD0 */
enum { ESCAPE_LEN = 3 };

/* ---- rewriting ------------------ */

typedef struct rewriter {
    const char *p, *end;
    unsigned flags;
    char *out;
    size_t n;
    bool changed;
} rewriter;

static void put(rewriter *w, const char *bytes, size_t n)
{
    memcpy(w->out + w->n, bytes, n);
    w->n += n;
}

static void put_instead(rewriter *w, const char *text)
{
    put(w, text, strlen(text));
    w->changed = true;
}

/* Address after the closing quote of the string that opens at p; end if it is not closed. */
static const char *string_end(const char *p, const char *end)
{
    for (p++; p < end && *p != '"'; p++)
        if (*p == '\\') p++;
    return p < end ? p + 1 : end;
}

static bool is_key(const char *after, const char *end)
{
    while (after < end && strchr(" \t\r\n", *after) && *after) after++;
    return after < end && *after == ':';
}

/* The code point of \uHHHH at p; -1 if it is something else. */
static long escaped_code(const char *p, const char *end)
{
    char digits[5] = "";
    if (end - p < 6 || p[0] != '\\' || p[1] != 'u') return -1;
    memcpy(digits, p + 2, 4);
    return strspn(digits, "0123456789abcdefABCDEF") == 4 ? strtol(digits, NULL, 16) : -1;
}

static void put_key(rewriter *w, const char *end)
{
    while (w->p < end) {
        const long code = escaped_code(w->p, end);
        const bool raw = end - w->p >= ESCAPE_LEN && memcmp(w->p, ESCAPE, ESCAPE_LEN) == 0;
        if (code == 0 || code == 0xfdd0 || raw) {
            put_instead(w, code == 0 ? ESCAPE "0" : ESCAPE "1");
            w->p += raw ? ESCAPE_LEN : 6;
        } else {
            const size_t n = *w->p == '\\' && end - w->p > 1 ? 2 : 1;
            put(w, w->p, n);
            w->p += n;
        }
    }
}

static void string(rewriter *w)
{
    const char *end = string_end(w->p, w->end);
    if ((w->flags & DT_JSON_NUL_KEYS) && is_key(end, w->end)) {
        put_key(w, end);
    } else {
        put(w, w->p, (size_t)(end - w->p));
        w->p = end;
    }
}

/* An integer beyond 64 bits is rewritten with an exponent, a number beyond the range of a double as the largest
 * double. */
static void number(rewriter *w)
{
    const size_t n = strspn(w->p, "+-.0123456789eE"); /* the text is null-terminated */
    const char *digits = w->p + (*w->p == '-');
    const bool whole = strspn(digits, "0123456789") == (size_t)(w->p + n - digits) && *digits;
    errno = 0;
    if (whole) (void)strtoll(w->p, NULL, 10);
    const bool too_big = whole && errno == ERANGE, infinite = isinf(strtod(w->p, NULL));
    if (infinite) {
        put_instead(w, *w->p == '-' ? "-1e308" : "1e308");
    } else {
        put(w, w->p, n);
        if (too_big) put_instead(w, "e0");
    }
    w->p += n;
}

/* Python's non-standard words for non-finite numbers. */
static bool word(rewriter *w)
{
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        const size_t n = strlen(words[i]);
        if ((size_t)(w->end - w->p) < n || memcmp(w->p, words[i], n) != 0) continue;
        put(w, "\"", 1);
        put_instead(w, words[i]);
        put(w, "\"", 1);
        w->p += n;
        return true;
    }
    return false;
}

/* `text` is null-terminated. The output is at most twice as long: only "NaN" (to five bytes) and U+FDD0 in a key (from
 * three bytes to four) grow; an oversized integer has at least 19 digits. */
static bool rewrite(rewriter *w, const char *text, size_t nbytes, unsigned flags)
{
    *w = (rewriter){.p = text, .end = text + nbytes, .flags = flags, .out = malloc(2 * nbytes + 16)};
    while (w->out && w->p < w->end) {
        if (*w->p == '"')
            string(w);
        else if (word(w))
            continue;
        else if (*w->p == '-' || (*w->p >= '0' && *w->p <= '9'))
            number(w);
        else
            put(w, w->p++, 1);
    }
    return w->out != NULL;
}

/* ---- parsing ------------------ */

/* NULL: `why` describes the error; it is empty if memory ran out, which jansson may report as a wrong token. */
static json_t *parse(const char *text, size_t nbytes, unsigned flags, json_error_t *why)
{
    const size_t options = (flags & DT_JSON_ANY ? JSON_DECODE_ANY : 0) |
                           (flags & DT_JSON_LAST_KEY ? 0 : JSON_REJECT_DUPLICATES) |
                           (flags & (DT_JSON_NUL | DT_JSON_NUL_KEYS) ? JSON_ALLOW_NUL : 0);
    errno = 0;
    json_t *root = json_loadb(text, nbytes, options, why);
    if (!root && errno == ENOMEM) why->text[0] = '\0';
    return root;
}

static dt_err parse_rewritten(json_t **root, const char *name, const char *text, size_t nbytes, unsigned flags,
                              json_error_t *why)
{
    rewriter w = {0};
    char *ended = malloc(nbytes + 1); /* without bytes after the text, which could be read as part of its last number */
    if (ended) memcpy(ended, text, nbytes), ended[nbytes] = '\0';
    const bool done = ended && rewrite(&w, ended, nbytes, flags);
    if (done && (w.changed || flags & DT_JSON_NUL_KEYS)) *root = parse(w.out, w.n, flags, why);
    free(ended);
    free(w.out);
    DT_CHECK(done, DT_ERR_MEMORY, "%s: no memory to parse %zu bytes of JSON", name, nbytes);
    return DT_OK;
}

/* The hint for a trailing comma, which jansson's message does not mention; else "". */
static const char *trailing_comma(const char *text, size_t nbytes, const json_error_t *why)
{
    size_t n = why->position > 0 ? (size_t)why->position : 0;
    if (n == 0 || n > nbytes || !strchr("]}", text[n - 1])) return "";
    for (n--; n > 0 && strchr(" \t\r\n", text[n - 1]) && text[n - 1];) n--;
    return n > 0 && text[n - 1] == ',' ? ", after a trailing comma" : "";
}

dt_err dt_json_parse(json_t **root, const char *name, const char *text, size_t nbytes, unsigned flags)
{
    json_error_t why = {0};
    *root = NULL;
    if (nbytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) text += 3, nbytes -= 3; /* byte order mark */
    if (!(flags & DT_JSON_NUL_KEYS)) *root = parse(text, nbytes, flags, &why);
    if (!*root) DT_TRY(parse_rewritten(root, name, text, nbytes, flags, &why));
    if (*root) return DT_OK;
    if (!(flags & DT_JSON_RECORD)) DT_TRY(dt_refuse_stand_in(name, text, nbytes));
    DT_CHECK(why.text[0], DT_ERR_MEMORY, "%s: out of memory for %zu bytes of JSON", name, nbytes);
    if (json_error_code(&why) == json_error_null_character) /* jansson names its own flag */
        snprintf(why.text, JSON_ERROR_TEXT_LENGTH - 1, "U+0000 is not allowed in a string");
    const char *comma = trailing_comma(text, nbytes, &why);
    const char *end = strstr(why.text, " near end of file");
    if (flags & DT_JSON_RECORD && json_error_code(&why) == json_error_premature_end_of_input)
        return dt_fail(DT_ERR_DATA, "%s%snot valid JSON: the record ends before it is closed (%.*s)", name,
                       name[0] ? ": " : "", (int)(end ? end - why.text : (ptrdiff_t)strlen(why.text)), why.text);
    if (flags & DT_JSON_RECORD)
        return dt_fail(DT_ERR_DATA, "%s%snot valid JSON: %s%s (line %d, column %d of the record)", name,
                       name[0] ? ": " : "", why.text, comma, why.line, why.column);
    return dt_fail(DT_ERR_DATA, "%s:%d:%d: not valid JSON: %s%s", name, why.line, why.column, why.text, comma);
}

dt_err dt_json_store(char **text, const char *name, const json_t *root)
{
    char *now = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    DT_CHECK(now, DT_ERR_MEMORY, "%s: out of memory for its text", name);
    free(*text);
    *text = now;
    return DT_OK;
}

size_t dt_json_key(const char *key, char *out)
{
    size_t n = 0;
    for (; *key; key++) {
        if (strncmp(key, ESCAPE, ESCAPE_LEN) != 0) {
            out[n++] = *key;
            continue;
        }
        key += ESCAPE_LEN;
        if (*key == '0') {
            out[n++] = '\0';
        } else {
            memcpy(out + n, ESCAPE, ESCAPE_LEN);
            n += ESCAPE_LEN;
        }
    }
    return n;
}
