/* config_value.c - one value: text to number and back, environment variables.
 *
 * Whatever is accepted can be written to a file and read again with the same result: the resolved configuration in a run's directory
 * and in its checkpoints is a configuration. So values that an INI line cannot carry are refused, wherever they come from. */
#include "config_private.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void format_real(double v, char out[DT_KEY_NUMBER_TEXT])
{
    if (v == floor(v) && fabs(v) < 1e6) { /* 10, not 1e+01 */
        snprintf(out, DT_KEY_NUMBER_TEXT, "%.0f", v);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, DT_KEY_NUMBER_TEXT, "%.*g", digits, v);
        if (strtod(out, NULL) == v) return;
    }
}

void dt_key_format(const dt_key *k, dt_key_number n, char out[DT_KEY_NUMBER_TEXT])
{
    if (k->kind == DT_KEY_INT) snprintf(out, DT_KEY_NUMBER_TEXT, "%" PRId64, n.i);
    if (k->kind == DT_KEY_REAL) format_real(n.r, out);
    if (k->kind == DT_KEY_BOOL) snprintf(out, DT_KEY_NUMBER_TEXT, "%s", n.b ? "true" : "false");
}

void dt_key_expectation(const dt_key *k, char *out, size_t size)
{
    char lo[DT_KEY_NUMBER_TEXT], hi[DT_KEY_NUMBER_TEXT];
    const char *what = k->kind == DT_KEY_INT ? "an integer" : "a number";
    dt_key_format(k, k->min, lo);
    dt_key_format(k, k->max, hi);
    switch (k->kind) {
    case DT_KEY_INT:
    case DT_KEY_REAL:
        if (k->kind == DT_KEY_INT && k->max.i == INT64_MAX)
            snprintf(out, size, "%s from %s", what, lo);
        else
            snprintf(out, size, "%s from %s to %s", what, lo, hi);
        break;
    case DT_KEY_BOOL:
        snprintf(out, size, "true or false");
        break;
    case DT_KEY_ENUM: {
        size_t n = (size_t)snprintf(out, size, "one of ");
        for (const char *p = k->words; *p && n + 3 < size; p++) {
            if (*p == '|') out[n++] = ',';
            out[n++] = *p == '|' ? ' ' : *p;
        }
        out[n] = '\0';
        break;
    }
    case DT_KEY_TEXT:
        snprintf(out, size, "text");
        break;
    }
}

/* Decimal only: strtod would take hexadecimal, "inf" and "nan", too. */
static bool looks_decimal(const char *text) { return text[0] && text[strspn(text, "0123456789+-.eE")] == '\0'; }

static bool read_real(const char *text, double *v)
{
    char *end;
    if (!looks_decimal(text)) return false;
    *v = strtod(text, &end);
    return *end == '\0' && isfinite(*v);
}

static bool read_int(const char *text, int64_t *v)
{
    char *end;
    double real;
    errno = 0;
    *v = strtoll(text, &end, 10);
    if (end != text && *end == '\0' && looks_decimal(text)) return errno == 0;
    if (!read_real(text, &real) || real != floor(real) || fabs(real) >= 0x1p63) return false; /* 5e8, 1.5e3 */
    *v = (int64_t)real;
    return true;
}

static bool read_bool(const char *text, bool *v)
{
    static const char *const words[2][4] = {{"false", "no", "off", "0"}, {"true", "yes", "on", "1"}};
    for (int i = 0; i < 8; i++)
        if (strcasecmp(text, words[i / 4][i % 4]) == 0) return *v = i / 4, true;
    return false;
}

static bool is_one_of(const char *text, const char *words)
{
    const size_t n = strlen(text);
    for (const char *p = words; n && p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
        if (strncmp(p, text, n) == 0 && (p[n] == '|' || p[n] == '\0')) return strchr(text, '|') == NULL;
    return false;
}

static bool read_number(const dt_key *k, const char *text, dt_key_number *n)
{
    switch (k->kind) {
    case DT_KEY_INT:
        return read_int(text, &n->i) && n->i >= k->min.i && n->i <= k->max.i;
    case DT_KEY_REAL:
        return read_real(text, &n->r) && n->r >= k->min.r && n->r <= k->max.r;
    case DT_KEY_BOOL:
        return read_bool(text, &n->b);
    case DT_KEY_ENUM:
        return is_one_of(text, k->words);
    case DT_KEY_TEXT:
        return true;
    }
    return false;
}

dt_err dt_key_read(const dt_key *k, const char *text, const char *head, dt_key_number *n, char **canonical)
{
    char expected[200], number[DT_KEY_NUMBER_TEXT];
    if (!read_number(k, text, n)) {
        dt_key_expectation(k, expected, sizeof expected);
        return dt_fail(DT_ERR_USAGE, "%s: expected %s, found '%.200s'", head, expected, text);
    }
    if (k->kind < DT_KEY_ENUM) dt_key_format(k, *n, number);
    *canonical = strdup(k->kind < DT_KEY_ENUM ? number : text);
    DT_CHECK(*canonical, DT_ERR_MEMORY, "%s: no memory for its value", head);
    return DT_OK;
}

/* What an INI line cannot carry: it would be read back as something else. */
static dt_err check_writable(const dt_key *k, const char *value, const char *head)
{
    const size_t most = DT_CONFIG_LINE_MAX - strlen(k->name) - strlen(" = ");
    DT_CHECK(strlen(value) <= most, DT_ERR_USAGE, "%s: the value has %zu bytes, the limit is %zu", head, strlen(value), most);
    DT_CHECK(!strstr(value, "${"), DT_ERR_USAGE, "%s: '${' remains in the value after environment variables were replaced", head);
    for (const char *p = value; *p; p++) {
        DT_CHECK(!iscntrl((unsigned char)*p) || *p == '\t', DT_ERR_USAGE, "%s: a control character (byte 0x%02x) in the value",
                 head, (unsigned)(unsigned char)*p);
        DT_CHECK(*p != ';' || (p > value && !isspace((unsigned char)p[-1])), DT_ERR_USAGE,
                 "%s: ';' at the beginning of a value or after a blank starts a comment and cannot be part of the value", head);
    }
    return DT_OK;
}

/* Append the value of the variable whose name starts at *p (behind "${") and move *p behind the "}". */
static dt_err expand_one(const char **p, const char *head, FILE *to)
{
    const char *close = strchr(*p, '}');
    DT_CHECK(close, DT_ERR_USAGE, "%s: '${' without '}'", head);
    char name[256];
    const size_t n = (size_t)(close - *p);
    DT_CHECK(n > 0 && n < sizeof name, DT_ERR_USAGE, "%s: expected the name of an environment variable in ${...}, found '%.*s'",
             head, (int)(n < 100 ? n : 100), *p);
    memcpy(name, *p, n);
    name[n] = '\0';
    const char *value = getenv(name);
    DT_CHECK(value, DT_ERR_USAGE, "%s: the environment variable %s is not set", head, name);
    fputs(value, to);
    *p = close + 1;
    return DT_OK;
}

static dt_err expand_into(const char *text, const char *head, FILE *to)
{
    while (*text) {
        if (text[0] == '$' && text[1] == '{') {
            text += 2;
            DT_TRY(expand_one(&text, head, to));
        } else {
            fputc(*text++, to);
        }
    }
    return DT_OK;
}

static char *trimmed(char *text)
{
    char *begin = text, *end = text + strlen(text);
    while (isspace((unsigned char)*begin)) begin++;
    while (end > begin && isspace((unsigned char)end[-1])) end--;
    *end = '\0';
    return begin;
}

dt_err dt_key_expand(const dt_key *k, const char *text, const char *head, char **out)
{
    size_t size;
    char *expanded = NULL;
    *out = NULL;
    FILE *to = open_memstream(&expanded, &size);
    DT_CHECK(to, DT_ERR_MEMORY, "%s: no memory for its value", head);
    dt_err err = expand_into(text, head, to);
    if (fclose(to) != 0 && err == DT_OK) err = dt_fail(DT_ERR_MEMORY, "%s: no memory for its value", head);
    if (err == DT_OK) {
        const char *value = trimmed(expanded);
        err = check_writable(k, value, head);
        if (err == DT_OK && !(*out = strdup(value))) err = dt_fail(DT_ERR_MEMORY, "%s: no memory for its value", head);
    }
    free(expanded);
    return err;
}
