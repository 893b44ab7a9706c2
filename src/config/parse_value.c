/* parse_value.c - one value: text to number and back, environment variables.
 *
 * Every accepted value can be written to a file and read again with the same result, because the resolved configuration
 * is stored in a run's directory and in its checkpoints. Values that an INI line cannot contain are therefore refused,
 * from any source. */
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
    const size_t n = strlen(out);
    if (k->maybe && k->kind != DT_KEY_ENUM && k->words[0]) snprintf(out + n, size - n, ", or %s", k->words);
}

/* Accept only decimal numbers: strtod would also accept hexadecimal ones, "inf" and "nan". */
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

/* Copy a number without underscores between digits: 1_000_000. Other underscores are kept. */
static void drop_underscores(const char *text, char out[64])
{
    size_t n = 0;
    for (const char *p = text; *p && n < 63; p++)
        if (*p != '_' || p == text || !isdigit((unsigned char)p[-1]) || !isdigit((unsigned char)p[1])) out[n++] = *p;
    out[n] = '\0';
}

/* Durations: 90s, 30m, 2h, 1d, or Slurm's minutes:seconds, hours:minutes:seconds, days-hours:minutes:seconds. */
static bool read_seconds(const char *text, double *v)
{
    static const char units[] = "smhd";
    static const double seconds[] = {1, 60, 3600, 86400};
    char unit, rest;
    unsigned days = 0, a, b, c;
    if (sscanf(text, "%lf%c%c", v, &unit, &rest) == 2 && strchr(units, unit) && isdigit((unsigned char)text[0]))
        return *v *= seconds[strchr(units, unit) - units], true;
    const char *dash = strchr(text, '-'), *time = dash ? dash + 1 : text;
    if (dash && sscanf(text, "%u-%c", &days, &rest) != 2) return false;
    if (text[strspn(text, "0123456789:-")] != '\0') return false;
    const int n = sscanf(time, "%u:%u:%u%c", &a, &b, &c, &rest);
    if (n == 3) return *v = days * 86400.0 + a * 3600.0 + b * 60.0 + c, b < 60 && c < 60;
    if (n == 2 && !dash) return *v = a * 60.0 + b, b < 60;
    return false;
}

static bool read_bool(const char *text, bool *v)
{
    static const char *const words[2][4] = {{"false", "no", "off", "0"}, {"true", "yes", "on", "1"}};
    for (int i = 0; i < 8; i++)
        if (strcasecmp(text, words[i / 4][i % 4]) == 0) return *v = i / 4, true;
    return false;
}

/* Find a word in the list "a|b|c", ignoring case; NULL: not found. */
static const char *find_word(const char *words, const char *text)
{
    const size_t n = strlen(text);
    if (n == 0 || strchr(text, '|')) return NULL;
    for (const char *p = words; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
        if (strncasecmp(p, text, n) == 0 && (p[n] == '|' || p[n] == '\0')) return p;
    return NULL;
}

/* dtrain's word for a word of another program. */
static const char *usual_word(const char *text)
{
    static const char *const names[][2] = {
        {"bfloat16", "bf16"},
        {"torch.bfloat16", "bf16"},
        {"float32", "fp32"},
        {"torch.float32", "fp32"},
        {"float", "fp32"},
        {"float16", "fp16"},
        {"half", "fp16"},
        {"torch.float16", "fp16"},
        {"constant_with_warmup", "constant"},
        {"adamw_torch", "adamw"},
        {"adamw_torch_fused", "adamw"},
        {"adamw_hf", "adamw"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcasecmp(text, names[i][0]) == 0) return names[i][1];
    return text;
}

/* Parse a number to *n, or a word to *word, which ends at a bar or at the end of the text. */
static bool read_value(const dt_key *k, const char *text, dt_key_number *n, const char **word)
{
    char plain[64];
    *word = NULL;
    if (k->maybe && (*word = k->kind == DT_KEY_ENUM ? NULL : find_word(k->words, text))) return true;
    drop_underscores(text, plain);
    switch (k->kind) {
    case DT_KEY_INT:
        return read_int(plain, &n->i) && n->i >= k->min.i && n->i <= k->max.i;
    case DT_KEY_REAL:
        if (!read_real(plain, &n->r) && (strcmp(k->unit, "seconds") != 0 || !read_seconds(text, &n->r))) return false;
        return n->r >= k->min.r && n->r <= k->max.r;
    case DT_KEY_BOOL:
        return read_bool(text, &n->b);
    case DT_KEY_ENUM:
        *word = find_word(k->words, text);
        if (!*word) *word = find_word(k->words, usual_word(text));
        return *word != NULL;
    case DT_KEY_TEXT:
        *word = text;
        return true;
    }
    return false;
}

/* Explain apex's fp16_opt_level as a value of precision.dtype. */
static void hint_of_apex(const char *text, char *out, size_t size)
{
    static const char *const levels[] = {
        "fp32", "bf16 or fp16 with fp32 master weights", "fp16",
        "not supported, because small updates would be lost without master weights; use fp16"};
    if ((text[0] == 'O' || text[0] == 'o') && text[1] >= '0' && text[1] <= '3' && !text[2])
        snprintf(out, size, " (%s of apex is %s)", text, levels[text[1] - '0']);
}

/* Suggest the intended value: " (...)", or "". */
static const char *hint(const dt_key *k, const char *text, char *out, size_t size)
{
    static const char letters[] = "kmgKMG";
    char *unit;
    const double v = strtod(text, &unit);
    out[0] = '\0';
    if (strchr(text, '#')) snprintf(out, size, " (a comment after a value begins with ' ;')");
    if (k->kind == DT_KEY_ENUM) hint_of_apex(text, out, size);
    const bool number = k->kind == DT_KEY_INT || k->kind == DT_KEY_REAL;
    if (number && strcasecmp(text, "auto") == 0) snprintf(out, size, " (remove the key to get its default)");
    if (number && strcmp(k->unit, "seconds") == 0 && unit != text && *unit)
        snprintf(out, size, " (durations are written as 90s, 30m, 2h, 1d or 2:00:00)");
    if (number && strncmp(text, "0,", 2) == 0 && unit[1] && !unit[1 + strspn(unit + 1, "0123456789")])
        snprintf(out, size, " (write a decimal point: %.*s.%s)", (int)(unit - text), text, unit + 1);
    if (!number || unit == text || strlen(unit) != 1) return out;
    const char *at = strchr(letters, *unit);
    const double thousands[] = {1e3, 1e6, 1e9}, powers[] = {1024, 1048576, 1073741824};
    if (at && *unit) {
        const long i = (at - letters) % 3;
        snprintf(out, size, " (write the number without a suffix: %.0f or %.0f)", v * thousands[i], v * powers[i]);
    }
    if (*unit == '%') snprintf(out, size, " (write a fraction as a number: %g)", v / 100);
    return out;
}

dt_err dt_key_read(const dt_key *k, const char *text, const char *head, dt_key_number *n, char **canonical)
{
    char expected[320], number[DT_KEY_NUMBER_TEXT], meant[120];
    const char *word = "";
    const bool absent = k->maybe && !*text;
    bool on;
    DT_CHECK(strcmp(k->name, "resume") != 0 || !read_bool(text, &on), DT_ERR_USAGE,
             "%s: expected auto, none or the path of a checkpoint, found '%s'", head, text);
    if (!absent && !read_value(k, text, n, &word)) {
        dt_key_expectation(k, expected, sizeof expected);
        return dt_fail(DT_ERR_USAGE, "%s: expected %s, found '%.200s'%s", head, expected, text,
                       hint(k, text, meant, sizeof meant));
    }
    if (!word) dt_key_format(k, *n, number);
    *canonical = !word ? strdup(number) : strndup(word, k->kind == DT_KEY_TEXT ? strlen(word) : strcspn(word, "|"));
    DT_CHECK(*canonical, DT_ERR_MEMORY, "%s: out of memory for its value", head);
    return DT_OK;
}

/* Refuse values that an INI line would not preserve. */
static dt_err check_writable(const dt_key *k, const char *value, const char *head)
{
    const size_t most = DT_CONFIG_LINE_MAX - strlen(k->name) - strlen(" = ");
    DT_CHECK(strlen(value) <= most, DT_ERR_USAGE, "%s: the value is too long: expected at most %zu bytes, found %zu",
             head, most, strlen(value));
    DT_CHECK(!strstr(value, "${"), DT_ERR_USAGE,
             "%s: '${' remains in the value after environment variables were expanded", head);
    for (const char *p = value; *p; p++) {
        DT_CHECK(!iscntrl((unsigned char)*p) || *p == '\t', DT_ERR_USAGE,
                 "%s: a control character (byte 0x%02x) in the value", head, (unsigned)(unsigned char)*p);
        DT_CHECK(*p != ';' || (p > value && !isspace((unsigned char)p[-1])), DT_ERR_USAGE,
                 "%s: ';' at the start of a value or after a blank starts a comment and cannot be part of the value",
                 head);
    }
    return DT_OK;
}

/* Append the value of the variable whose name starts at *p (after "${") and move *p after the "}". */
static dt_err expand_one(const char **p, const char *head, FILE *to)
{
    const char *close = strchr(*p, '}');
    DT_CHECK(close, DT_ERR_USAGE, "%s: expected '}' after '${', found none", head);
    char name[256];
    const size_t n = (size_t)(close - *p);
    DT_CHECK(n > 0 && n < sizeof name, DT_ERR_USAGE,
             "%s: expected the name of an environment variable in ${...}, found '%.*s'", head, (int)(n < 100 ? n : 100),
             *p);
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

char *dt_key_trim(char *text)
{
    char *begin = text, *end = text + strlen(text);
    while (isspace((unsigned char)*begin)) begin++;
    while (end > begin && isspace((unsigned char)end[-1])) end--;
    *end = '\0';
    return begin;
}

/* Remove all surrounding quotes in place, so that a written value reads back unchanged. */
char *dt_key_unquote(char *text)
{
    for (size_t n; (n = strlen(text)) >= 2; text = dt_key_trim(text)) {
        const char quote = text[0];
        if ((quote != '"' && quote != '\'') || strchr(text + 1, quote) != text + n - 1) break;
        text[n - 1] = '\0';
        text++;
    }
    return text;
}

bool dt_key_unset_variable(const char *text, char *name, size_t size)
{
    for (const char *p = text; (p = strstr(p, "${")); p += 2) {
        snprintf(name, size, "%.*s", (int)strcspn(p + 2, "}"), p + 2);
        if (*name && !getenv(name)) return true;
    }
    return false;
}

dt_err dt_key_expand(const dt_key *k, const char *text, const char *head, char **out)
{
    size_t size;
    char *expanded = NULL;
    *out = NULL;
    FILE *to = open_memstream(&expanded, &size);
    DT_CHECK(to, DT_ERR_MEMORY, "%s: out of memory for its value", head);
    dt_err err = expand_into(text, head, to);
    if (fclose(to) != 0 && err == DT_OK) err = dt_fail(DT_ERR_MEMORY, "%s: out of memory for its value", head);
    if (err == DT_OK) {
        err = dt_key_expand_path(k, dt_key_unquote(dt_key_trim(expanded)), head, out);
        if (err == DT_OK) err = check_writable(k, *out, head);
        if (err != DT_OK) free(*out), *out = NULL;
    }
    free(expanded);
    return err;
}
