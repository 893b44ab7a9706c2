/* read_ini.c - reads INI text line by line through inih.
 *
 * The inih of distributions silently truncates lines over 199 bytes. It takes an indented line as a continuation of the
 * key above, ignores text after a section's bracket, and does not report empty sections. Lines are therefore read and
 * checked here before they are passed to inih. If a line is too long for its buffer, inih receives only the name, and
 * the value is kept here. */
#include "config_private.h"
#include <ctype.h>
#include <ini.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT_LINE = 190 }; /* bytes that fit inih's buffer of 200 in any case */

typedef struct reader {
    const char *file_name, *next; /* next: begin of the next line */
    int line;
    bool any_section;
    bool skipping;    /* in an unknown section */
    char *long_value; /* value of the current line if it is too long for inih, else NULL */
    dt_ini_handler handler;
    void *self;
    dt_mistakes *mistakes;
} reader;

static dt_err judge_section(const reader *r, const char *line, const char *section, size_t n)
{
    char why[DT_KEY_WHY];
    DT_CHECK(line[1 + n] == ']', DT_ERR_USAGE, "%s:%d: expected [section], found '%.60s'", r->file_name, r->line, line);
    const char *rest = line + n + 2;
    while (isspace((unsigned char)*rest)) rest++;
    DT_CHECK(*rest == '\0' || (*rest == ';' && rest > line + n + 2), DT_ERR_USAGE,
             "%s:%d: expected the end of the line after [%s], found '%.60s'", r->file_name, r->line, section, rest);
    if (r->any_section || dt_key_section_exists(section)) return DT_OK;
    dt_key_explain_unknown(section, "", why, sizeof why);
    return dt_fail(DT_ERR_USAGE, "%s:%d: [%s]: %s", r->file_name, r->line, section, why);
}

static dt_err check_section(reader *r, const char *line)
{
    char section[64];
    const size_t n = strcspn(line + 1, "]");
    snprintf(section, sizeof section, "%.*s", (int)(n < 60 ? n : 60), line + 1);
    const dt_err err = judge_section(r, line, section, n);
    r->skipping = err != DT_OK;
    if (r->skipping) r->handler(r->self, r->line, section, NULL, NULL);
    return err;
}

/* Blank lines and comments may be indented. All other lines must begin in the first column. */
static dt_err check_line(reader *r, const char *line)
{
    const char *p = line;
    while (isspace((unsigned char)*p)) p++;
    if (*p == '\0' || *p == ';' || *p == '#') return DT_OK;
    DT_CHECK(p == line, DT_ERR_USAGE,
             "%s:%d: expected a key or a [section] in the first column, found an indented line: '%.60s'", r->file_name,
             r->line, p);
    if (*p == '[') return check_section(r, line);
    DT_CHECK(p[strcspn(p, "=:")] != '\0', DT_ERR_USAGE, "%s:%d: expected 'key = value' or '[section]', found '%.60s'",
             r->file_name, r->line, p);
    return DT_OK;
}

/* Remove a comment. As in inih, it begins at a ';' after a blank. */
static void cut_comment(char *value)
{
    for (char *p = value; *p; p++)
        if (*p == ';' && p > value && isspace((unsigned char)p[-1])) *p-- = '\0';
}

static dt_err keep_long_value(reader *r, char *line)
{
    /* comments, blank lines and sections have no value */
    if (*line == ';' || *line == '#' || isspace((unsigned char)*line) || *line == '[') return DT_OK;
    const size_t name_len = strcspn(line, "=:");
    DT_CHECK(name_len < 64, DT_ERR_USAGE, "%s:%d: expected 'key = value', found '%.60s'", r->file_name, r->line, line);
    DT_COPY_TEXT(r->long_value, line + name_len + 1, "%s:%d: out of memory for a line", r->file_name, r->line);
    cut_comment(r->long_value);
    return DT_OK;
}

/* Find the next line, without checking it; false at the end of the text. */
static bool cut_line(reader *r, const char **begin, size_t *len)
{
    if (*r->next == '\0') return false;
    if (r->line == 0 && strncmp(r->next, "\xef\xbb\xbf", 3) == 0) r->next += 3; /* byte order mark */
    *begin = r->next;
    *len = strcspn(r->next, "\n");
    r->next += *len + (r->next[*len] == '\n');
    r->line++;
    return true;
}

static dt_err take_line(reader *r, size_t len, char *line)
{
    DT_CHECK(line, DT_ERR_MEMORY, "%s:%d: out of memory for a line", r->file_name, r->line);
    DT_CHECK(len <= DT_CONFIG_LINE_MAX, DT_ERR_USAGE, "%s:%d: expected lines of at most %d bytes, found %zu",
             r->file_name, r->line, DT_CONFIG_LINE_MAX, len);
    DT_TRY(check_line(r, line));
    if (r->skipping) {
        *line = '\0';
    } else if (len >= SHORT_LINE) {
        DT_TRY(keep_long_value(r, line));
        line[r->long_value ? strcspn(line, "=:") + 1 : 0] = '\0';
    }
    return DT_OK;
}

/* Replacement of fgets() for inih. It passes an invalid line as an empty one. */
static char *read_line(char *out, int size, void *stream)
{
    reader *r = stream;
    const char *begin;
    size_t len;
    free(r->long_value);
    r->long_value = NULL;
    if (!cut_line(r, &begin, &len)) return NULL;
    char *line = strndup(begin, len);
    dt_err err = take_line(r, len, line);
    if (err == DT_OK && strlen(line) + 2 > (size_t)size)
        err = dt_fail(DT_ERR_USAGE, "%s:%d: the line is too long for the INI library (%d bytes)", r->file_name, r->line,
                      size);
    dt_mistakes_add(r->mistakes, err);
    snprintf(out, (size_t)size, "%s\n", err == DT_OK ? line : "");
    free(line);
    return out;
}

static int take_value(void *user, const char *section, const char *name, const char *value)
{
    reader *r = user;
    dt_mistakes_add(r->mistakes, r->handler(r->self, r->line, section, name, r->long_value ? r->long_value : value));
    return 1;
}

dt_err dt_ini_read(const char *file_name, const char *text, bool any_section, dt_ini_handler handler, void *self,
                   dt_mistakes *mistakes)
{
    reader r = {.file_name = file_name,
                .next = text,
                .any_section = any_section,
                .handler = handler,
                .self = self,
                .mistakes = mistakes};
    const int status = ini_parse_stream(read_line, &r, take_value, &r);
    free(r.long_value);
    DT_CHECK(status != -2, DT_ERR_MEMORY, "%s: no memory to read the file", file_name);
    if (status != 0)
        dt_mistakes_add(mistakes,
                        dt_fail(DT_ERR_USAGE, "%s:%d: expected 'key = value' or '[section]'", file_name, status));
    return DT_OK;
}
