/* config.c - a configuration: the source of each value, its text, and its number in the struct.
 *
 * Strings that were handed out stay valid until dt_config_free, even if the key is set again, because callers keep
 * pointers to them. */
#include "config_private.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FROM_DEFAULT = -1, FROM_COMMAND_LINE = -2 };

typedef struct owned_text {
    struct owned_text *next;
    char *text;
} owned_text;

typedef struct dt_config_private {
    char *file_name;
    bool lenient;                 /* unset environment variables are not errors */
    const char *const *overrides; /* [n_overrides] from the caller, while the file is read */
    int n_overrides;
    owned_text *texts; /* every value ever set */
    struct {
        const char *text; /* canonical text */
        dt_config_source source;
        bool doubted; /* the intended value is unknown */
        char *unset;  /* the unset environment variable that the value needs; else NULL */
    } value[];        /* by row of the table */
} dt_config_private;

static char *head_of(const dt_config *cfg, dt_config_source source, const char *section, const char *key, char *out,
                     size_t size)
{
    if (source.file >= 0)
        snprintf(out, size, "%s:%d: [%s] %s", cfg->priv->file_name, source.line, section, key);
    else if (source.file == FROM_COMMAND_LINE)
        snprintf(out, size, "command line: %s.%s", section, key);
    else
        snprintf(out, size, "%s: [%s] %s (default)", cfg->priv->file_name, section, key);
    return out;
}

static dt_err own(dt_config *cfg, char *text)
{
    owned_text *o = malloc(sizeof *o);
    if (!o) {
        free(text);
        return dt_fail(DT_ERR_MEMORY, "out of memory for the configuration");
    }
    *o = (owned_text){.next = cfg->priv->texts, .text = text};
    cfg->priv->texts = o;
    return DT_OK;
}

static dt_err assign(dt_config *cfg, int row, const char *text, const char *head)
{
    const dt_key *k = &dt_key_table[row];
    dt_key_number n;
    char *canonical;
    DT_TRY(dt_key_read(k, text, head, &n, &canonical));
    DT_TRY(own(cfg, canonical));
    void *field = (char *)cfg + k->offset;
    if (k->maybe || k->kind == DT_KEY_ENUM || k->kind == DT_KEY_TEXT)
        *(const char **)field = canonical;
    else if (k->kind == DT_KEY_INT)
        *(int64_t *)field = n.i;
    else if (k->kind == DT_KEY_REAL)
        *(double *)field = n.r;
    else
        *(bool *)field = n.b;
    cfg->priv->value[row].text = canonical;
    return DT_OK;
}

static dt_err assign_expanded(dt_config *cfg, int row, const char *text, const char *head)
{
    char *expanded;
    DT_TRY(dt_key_expand(&dt_key_table[row], text, head, &expanded));
    const dt_err err = assign(cfg, row, expanded, head);
    free(expanded);
    return err;
}

/* Does the command line also set this key? */
static bool is_overridden(const dt_config *cfg, int row)
{
    char start[128];
    const int n = snprintf(start, sizeof start, "%s.%s=", dt_key_table[row].section, dt_key_table[row].name);
    for (int i = 0; i < cfg->priv->n_overrides; i++)
        if (strncmp(cfg->priv->overrides[i], start, (size_t)n) == 0) return true;
    return false;
}

/* A file's value is not used if the command line sets the key too. Its environment variables may then be unset. */
static dt_err note_unset(dt_config *cfg, int row, const char *text, bool from_file)
{
    char name[256];
    cfg->priv->value[row].unset = NULL;
    const bool may_be_unset = cfg->priv->lenient || (from_file && is_overridden(cfg, row));
    if (!may_be_unset || !dt_key_unset_variable(text, name, sizeof name)) return DT_OK;
    char *copy = strdup(name);
    DT_CHECK(copy, DT_ERR_MEMORY, "out of memory for the configuration");
    cfg->priv->value[row].unset = copy;
    return own(cfg, copy);
}

/* Take a value from a file or the command line. An invalid value leaves the key unchanged and marks it as doubted. */
static dt_err take(dt_config *cfg, int row, const char *text, const char *head, dt_config_source source)
{
    cfg->priv->value[row].source = source;
    dt_err err = note_unset(cfg, row, text, source.file == 0);
    const bool unset = cfg->priv->value[row].unset != NULL;
    if (err == DT_OK && !unset) err = assign_expanded(cfg, row, text, head);
    cfg->priv->value[row].doubted = err != DT_OK || unset;
    return err;
}

static const char *default_of(const dt_key *k, char number[DT_KEY_NUMBER_TEXT])
{
    if (k->kind >= DT_KEY_ENUM || k->maybe) return k->text;
    dt_key_format(k, k->initial, number);
    return number;
}

static dt_err set_defaults(dt_config *cfg)
{
    for (int i = 0; i < dt_n_keys; i++) {
        const dt_key *k = &dt_key_table[i];
        char number[DT_KEY_NUMBER_TEXT], head[160];
        cfg->priv->value[i].source = (dt_config_source){.file = FROM_DEFAULT};
        head_of(cfg, cfg->priv->value[i].source, k->section, k->name, head, sizeof head);
        DT_TRY(assign(cfg, i, default_of(k, number), head));
    }
    return DT_OK;
}

/* *meant: the row that the message suggests. */
static dt_err find_row(const char *section, const char *key, const char *head, int *row, int *meant)
{
    char why[DT_KEY_WHY];
    *row = *meant = dt_key_find(section, key);
    if (*row >= 0) return DT_OK;
    *meant = dt_key_explain_unknown(section, key, why, sizeof why);
    return dt_fail(DT_ERR_USAGE, "%s: %s", head, why);
}

static dt_err take_key(dt_config *cfg, const char *section, const char *key, const char *value, dt_config_source source)
{
    char head[400];
    int row, meant;
    head_of(cfg, source, section, key, head, sizeof head);
    const dt_err err = find_row(section, key, head, &row, &meant);
    if (err != DT_OK) return cfg->priv->value[meant].doubted = true, err;
    DT_CHECK(source.file != 0 || cfg->priv->value[row].source.file < 0, DT_ERR_USAGE, "%s: set twice, first in line %d",
             head, cfg->priv->value[row].source.line);
    return take(cfg, row, value, head, source);
}

static void doubt_section(dt_config *cfg, const char *name)
{
    char why[DT_KEY_WHY];
    const char *section =
        dt_key_section_exists(name) ? name : dt_key_table[dt_key_explain_unknown(name, "", why, sizeof why)].section;
    for (int i = 0; i < dt_n_keys; i++)
        if (strcmp(dt_key_table[i].section, section) == 0) cfg->priv->value[i].doubted = true;
}

/* Keys of earlier versions. A run's config.ini lists every key, so a removed key may occur with an empty value. */
static bool was_removed(const char *section, const char *key)
{
    return !strcmp(section, "lora") && !strcmp(key, "llm_int8_threshold");
}

static dt_err take_from_file(void *self, int line, const char *section, const char *key, const char *value)
{
    dt_config *cfg = self;
    const dt_config_source source = {.file = 0, .line = line};
    if (!key) return doubt_section(cfg, section), DT_OK;
    DT_CHECK(section[0], DT_ERR_USAGE, "%s:%d: %s: expected a [section] line before the first key",
             cfg->priv->file_name, line, key);
    return !*value && was_removed(section, key) ? DT_OK : take_key(cfg, section, key, value, source);
}

/* Report an argument without a section, such as "lr=1e-3". */
static dt_err without_section(dt_config *cfg, const char *argument, const char *equals)
{
    char key[64];
    snprintf(key, sizeof key, "%.*s", (int)(equals && equals - argument < 60 ? equals - argument : 60), argument);
    const int meant = dt_key_without_section(key);
    if (meant < 0) return dt_fail(DT_ERR_USAGE, "command line: expected section.key=value, found '%.200s'", argument);
    cfg->priv->value[meant].doubted = true;
    return dt_fail(DT_ERR_USAGE, "command line: expected section.key=value, found '%.200s'; did you mean %s.%s%.200s?",
                   argument, dt_key_table[meant].section, dt_key_table[meant].name, equals ? equals : "=...");
}

static dt_err take_override(dt_config *cfg, int position, const char *argument)
{
    const dt_config_source source = {.file = FROM_COMMAND_LINE, .line = position};
    const char *equals = strchr(argument, '='),
               *dot = equals ? memchr(argument, '.', (size_t)(equals - argument)) : NULL;
    char section[64], key[64];
    if (!dot || dot == argument || equals == dot + 1) return without_section(cfg, argument, equals);
    snprintf(section, sizeof section, "%.*s", (int)(dot - argument < 60 ? dot - argument : 60), argument);
    snprintf(key, sizeof key, "%.*s", (int)(equals - dot - 1 < 60 ? equals - dot - 1 : 60), dot + 1);
    return take_key(cfg, section, key, equals + 1, source);
}

dt_err dt_config_read(dt_config *cfg, const char *name, const char *text, int n_overrides, const char *const *overrides,
                      dt_config_variables variables, dt_mistakes *mistakes)
{
    *cfg = (dt_config){0};
    cfg->priv = calloc(1, sizeof *cfg->priv + (size_t)dt_n_keys * sizeof cfg->priv->value[0]);
    DT_CHECK(cfg->priv && (cfg->priv->file_name = strdup(name)), DT_ERR_MEMORY,
             "%s: out of memory for the configuration", name);
    cfg->priv->lenient = variables == DT_VARIABLES_MAY_BE_UNSET;
    cfg->priv->overrides = overrides, cfg->priv->n_overrides = n_overrides;
    DT_TRY(set_defaults(cfg));
    DT_TRY(dt_ini_read(name, text, false, take_from_file, cfg, mistakes));
    for (int i = 0; i < n_overrides; i++) dt_mistakes_add(mistakes, take_override(cfg, i, overrides[i]));
    return DT_OK;
}

dt_err dt_config_parse(dt_config *cfg, const char *name, const char *text, int n_overrides,
                       const char *const *overrides)
{
    dt_mistakes mistakes = {0};
    dt_err err = dt_config_read(cfg, name, text, n_overrides, overrides, DT_VARIABLES_MUST_BE_SET, &mistakes);
    dt_mistakes_add(&mistakes, err);
    err = dt_mistakes_end(&mistakes);
    if (err != DT_OK) dt_config_free(cfg);
    return err;
}

dt_err dt_config_read_recorded(dt_config *cfg, const char *name, const char *text)
{
    dt_mistakes unknown = {0};
    const dt_err err = dt_config_read(cfg, name, text ? text : "", 0, NULL, DT_VARIABLES_MAY_BE_UNSET, &unknown);
    free(unknown.text);
    if (err == DT_OK) dt_error_clear();
    return err;
}

bool dt_config_doubted(const dt_config *cfg, const char *section, const char *key)
{
    for (int i = 0; i < dt_n_keys; i++)
        if (cfg->priv->value[i].doubted && !strcmp(dt_key_table[i].section, section) &&
            (key ? !strcmp(dt_key_table[i].name, key) : !cfg->priv->value[i].unset))
            return true;
    return false;
}

dt_err dt_config_require(const dt_config *cfg, const char *section, const char *key)
{
    char head[400];
    for (int i = 0; i < dt_n_keys; i++) {
        const dt_key *k = &dt_key_table[i];
        if (strcmp(k->section, section) != 0 || (key && strcmp(k->name, key) != 0) || !cfg->priv->value[i].unset)
            continue;
        return dt_fail(DT_ERR_USAGE,
                       "%s: the environment variable %s is not set, but this value is required; set the variable",
                       dt_config_where(cfg, section, k->name, head, sizeof head), cfg->priv->value[i].unset);
    }
    return DT_OK;
}

static dt_err read_stream(FILE *in, const char *path, char **text)
{
    enum {
        MAX_NBYTES = 1 << 20
    }; /* bytes; a larger file is not a configuration, but may be a model given by mistake */
    char *all = malloc(MAX_NBYTES + 1);
    DT_CHECK(all, DT_ERR_MEMORY, "%s: no memory to read the file", path);
    const size_t n = fread(all, 1, MAX_NBYTES + 1, in);
    const char *why = ferror(in)          ? strerror(errno)
                      : n > MAX_NBYTES    ? "larger than 1 MiB, so it is not a configuration file"
                      : memchr(all, 0, n) ? "not a text file"
                                          : NULL;
    if (why) {
        free(all);
        return dt_fail(DT_ERR_USAGE, "%s: cannot read the configuration: %s", path, why);
    }
    all[n] = '\0';
    *text = all;
    return DT_OK;
}

dt_err dt_config_read_file(const char *path, char **text)
{
    *text = NULL;
    FILE *in = fopen(path, "rb");
    DT_CHECK_ERRNO(in, DT_ERR_USAGE, path, "cannot read the configuration");
    const dt_err err = read_stream(in, path, text);
    fclose(in);
    return err;
}

void dt_config_free(dt_config *cfg)
{
    if (cfg->priv) {
        for (owned_text *o = cfg->priv->texts, *next; o; o = next) {
            next = o->next;
            free(o->text);
            free(o);
        }
        free(cfg->priv->file_name);
        free(cfg->priv);
    }
    *cfg = (dt_config){0};
}

bool dt_config_given(const dt_config *cfg, const char *section, const char *key)
{
    const int row = dt_key_find(section, key);
    return row >= 0 && cfg->priv->value[row].source.file != FROM_DEFAULT;
}

bool dt_config_differs(const dt_config *cfg, const char *section, const char *key)
{
    const int row = dt_key_find(section, key);
    char number[DT_KEY_NUMBER_TEXT];
    return row >= 0 && strcmp(cfg->priv->value[row].text, default_of(&dt_key_table[row], number)) != 0;
}

char *dt_config_where(const dt_config *cfg, const char *section, const char *key, char *out, size_t out_size)
{
    const int row = dt_key_find(section, key);
    return head_of(cfg, row >= 0 ? cfg->priv->value[row].source : (dt_config_source){.file = FROM_DEFAULT}, section,
                   key, out, out_size);
}

dt_err dt_config_fail(const dt_config *cfg, const char *section, const char *key, const char *fmt, ...)
{
    char where[512], *text = NULL;
    va_list args;
    va_start(args, fmt);
    if (vasprintf(&text, fmt, args) < 0) text = NULL;
    va_end(args);
    dt_config_where(cfg, section, key, where, sizeof where);
    const dt_err err = dt_fail(DT_ERR_USAGE, "%s: %s", where, text ? text : fmt);
    free(text);
    return err;
}

dt_err dt_config_lead_to(const dt_config *cfg, const char *section, const char *key, dt_err err)
{
    char where[512];
    dt_config_where(cfg, section, key, where, sizeof where);
    return dt_error_lead(err, "%s: ", where);
}

dt_err dt_config_blame(const dt_config *cfg, const char *section, const char *key, dt_err err)
{
    /* no value causes these */
    if (err == DT_OK || err == DT_ERR_MEMORY || err == DT_ERR_FAULT || err == DT_ERR_COMM) return err;
    return dt_config_lead_to(cfg, section, key, DT_ERR_USAGE);
}

dt_err dt_config_set(dt_config *cfg, const char *section, const char *key, const char *value)
{
    char head[400];
    int row, meant;
    dt_config_where(cfg, section, key, head, sizeof head);
    DT_TRY(find_row(section, key, head, &row, &meant));
    return assign_expanded(cfg, row, value, head);
}

bool dt_dtype_find(const char *word, dt_dtype *t)
{
    for (int i = DT_F32; i <= DT_F16; i++)
        if (strcmp(dt_dtype_name((dt_dtype)i), word) == 0) {
            *t = (dt_dtype)i;
            return true;
        }
    return false;
}

dt_dtype dt_config_precision(const dt_config *cfg)
{
    dt_dtype t = DT_BF16;
    dt_dtype_find(cfg->precision_dtype, &t);
    return t;
}

/* all: write every key, with absolute paths. Otherwise only keys that were set or differ from the default. */
static char *write_text(const dt_config *cfg, bool all)
{
    bool whole = true;
    size_t size;
    char *text = NULL;
    const char *section = "";
    FILE *out = open_memstream(&text, &size);
    if (!out) return NULL;
    for (int i = 0; i < dt_n_keys; i++) {
        const dt_key *k = &dt_key_table[i];
        if (!all && !dt_config_given(cfg, k->section, k->name) && !dt_config_differs(cfg, k->section, k->name))
            continue;
        if (strcmp(k->section, section) != 0) fprintf(out, "%s[%s]\n", *section ? "\n" : "", k->section);
        section = k->section;
        char *absolute = all ? dt_key_absolute(k, cfg->priv->value[i].text, NULL) : NULL;
        whole = whole && (!all || absolute);
        const char *value = absolute ? absolute : cfg->priv->value[i].text;
        fprintf(out, "%s =%s%s\n", k->name, *value ? " " : "", value);
        free(absolute);
    }
    if (fclose(out) != 0 || !whole) {
        free(text);
        return NULL;
    }
    return text;
}

char *dt_config_text(const dt_config *cfg) { return write_text(cfg, true); }

char *dt_config_given_text(const dt_config *cfg) { return write_text(cfg, false); }

const char *dt_config_relative_path(const dt_config *cfg)
{
    for (int i = 0; i < dt_n_keys; i++) {
        bool stays = false;
        free(dt_key_absolute(&dt_key_table[i], cfg->priv->value[i].text, &stays));
        if (stays) return dt_key_table[i].name;
    }
    return NULL;
}

/* Are two values the same after conversion to absolute paths? */
static bool same_files(const dt_key *k, const char *a, const char *b)
{
    char *x = dt_key_absolute(k, a, NULL), *y = dt_key_absolute(k, b, NULL);
    const bool same = x && y && strcmp(x, y) == 0;
    free(x), free(y);
    return same;
}

void dt_config_compare(const dt_config *before, const dt_config *now, dt_config_visit visit, void *self)
{
    for (int i = 0; i < dt_n_keys; i++) {
        const dt_key *k = &dt_key_table[i];
        const char *a = before->priv->value[i].text, *b = now->priv->value[i].text;
        if (strcmp(a, b) != 0 && !same_files(k, a, b)) visit(self, k->section, k->name, a, b);
    }
}
