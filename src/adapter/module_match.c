/* module_match.c - match module names by suffix, or by regular expressions that match the whole path, as in Python's
 * re. */
#include "module_match.h"

#include "dtrain/text/pattern.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char ALL_LINEAR[] = "all-linear";

void module_of(const dt_tensor *t, char module[DT_NAME_MAX])
{
    const char *dot = strrchr(t->name, '.');
    snprintf(module, DT_NAME_MAX, "%.*s", dot ? (int)(dot - t->name) : 0, t->name);
}

bool module_is_called(const char *module, const char *name)
{
    const size_t len = strlen(module), n = strlen(name);
    if (n > len || strcmp(module + len - n, name) != 0) return false;
    return n == len || module[len - n - 1] == '.';
}

bool module_is_within(const char *module, const char *letters)
{
    const size_t n = strlen(letters);
    for (const char *end = module; end; end = *end ? end + 1 : NULL) {
        end += strcspn(end, ".");
        if ((size_t)(end - module) >= n && n > 0 && strncmp(end - n, letters, n) == 0) return true;
        if (!*end) return false;
    }
    return false;
}

/* ---- regular expressions ----------------------------------------------------------------------------------------- */

static dt_err compile(const char *pattern, dt_pattern **p)
{
    return dt_pattern_compile(p, pattern, strlen(pattern), DT_PATTERN_WHOLE);
}

dt_err module_check_pattern(const char *pattern)
{
    dt_pattern *p;
    DT_TRY(compile(pattern, &p));
    dt_pattern_free(p);
    return DT_OK;
}

/* Match from byte `from` to the end. */
static bool matches(const char *pattern, const char *text, size_t from)
{
    dt_pattern *p;
    bool is = false;
    if (compile(pattern, &p) == DT_OK && dt_pattern_matches(p, text, from, &is) != DT_OK) is = false;
    dt_pattern_free(p);
    return is;
}

bool module_ends_as(const char *pattern, const char *module)
{
    for (const char *at = module; at; at = strchr(at, '.') ? strchr(at, '.') + 1 : NULL)
        if (matches(pattern, module, (size_t)(at - module))) return true;
    return false;
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

static bool is_list(const char *text)
{
    for (; *text; text++)
        if (!isalnum((unsigned char)*text) && !strchr("_-., \t", *text)) return false;
    return true;
}

static dt_err set_pattern(dt_modules *m, const char *text)
{
    m->pattern = strdup(text);
    return m->pattern ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for a name");
}

dt_err dt_modules_parse(dt_modules *m, const char *text)
{
    *m = (dt_modules){0};
    if (strcasecmp(text, ALL_LINEAR) == 0 || strcmp(text, "all") == 0) return set_pattern(m, ALL_LINEAR);
    if (is_list(text)) return dt_config_split(text, &m->list, &m->n);
    DT_CHECK(!strpbrk(text, "'\""), DT_ERR_DATA,
             "expected names without quotes and brackets, such as q_proj, v_proj, found %.100s", text);
    DT_TRY(module_check_pattern(text));
    return set_pattern(m, text);
}

void module_list_free(dt_modules *m)
{
    free(m->pattern);
    dt_list_free(m->list, m->n);
    *m = (dt_modules){0};
}

bool module_is_all_linear(const dt_modules *m) { return m->pattern && strcmp(m->pattern, ALL_LINEAR) == 0; }

bool module_is_in(const dt_modules *m, const char *module)
{
    if (m->pattern) return !module_is_all_linear(m) && matches(m->pattern, module, 0);
    for (int i = 0; i < m->n; i++)
        if (module_is_called(module, m->list[i])) return true;
    return false;
}
