/* config_table.c - the table of keys as data: lookup, suggestions for unknown keys, and output. */
#include "config_private.h"
#include <ctype.h>
#include <string.h>

#define HEAD(s, k, kind_) .section = #s, .name = #k, .kind = (kind_), .offset = offsetof(dt_config, s##_##k)
#define ROW_INT(s, k, d, lo, hi, unit_, help_)                                                                         \
    {HEAD(s, k, DT_KEY_INT), .initial.i = (d), .min.i = (lo), .max.i = (hi), .unit = unit_, .help = help_},
#define ROW_REAL(s, k, d, lo, hi, unit_, help_)                                                                        \
    {HEAD(s, k, DT_KEY_REAL), .initial.r = (d), .min.r = (lo), .max.r = (hi), .unit = unit_, .help = help_},
#define ROW_BOOL(s, k, d, help_) {HEAD(s, k, DT_KEY_BOOL), .initial.b = (d), .unit = "", .help = help_},
#define ROW_ENUM(s, k, d, words_, help_)                                                                               \
    {HEAD(s, k, DT_KEY_ENUM), .text = (d), .words = words_, .unit = "", .help = help_},
#define ROW_TEXT(s, k, d, help_) {HEAD(s, k, DT_KEY_TEXT), .text = (d), .unit = "", .help = help_},
#define MIN_integer(v) .min.i = (v)
#define MIN_number(v) .min.r = (v)
#define MIN_boolean(v) .min.b = (v)
#define MIN_word(v) .min.i = (v)
#define MAX_integer(v) .max.i = (v)
#define MAX_number(v) .max.r = (v)
#define MAX_boolean(v) .max.b = (v)
#define MAX_word(v) .max.i = (v)
enum { KIND_integer = DT_KEY_INT, KIND_number = DT_KEY_REAL, KIND_boolean = DT_KEY_BOOL, KIND_word = DT_KEY_ENUM };
#define ROW_MAYBE(s, k, type, lo, hi, words_, unit_, help_)                                                            \
    {HEAD(s, k, (dt_key_kind)KIND_##type),                                                                             \
     MIN_##type(lo),                                                                                                   \
     MAX_##type(hi),                                                                                                   \
     .text = "",                                                                                                       \
     .words = words_,                                                                                                  \
     .maybe = true,                                                                                                    \
     .unit = unit_,                                                                                                    \
     .help = help_},

const dt_key dt_key_table[] = {DT_CONFIG_KEYS(ROW_INT, ROW_REAL, ROW_BOOL, ROW_ENUM, ROW_TEXT, ROW_MAYBE)};
const int dt_n_keys = sizeof dt_key_table / sizeof dt_key_table[0];

int dt_key_find(const char *section, const char *name)
{
    for (int i = 0; i < dt_n_keys; i++)
        if (strcmp(dt_key_table[i].section, section) == 0 && strcmp(dt_key_table[i].name, name) == 0) return i;
    return -1;
}

bool dt_key_section_exists(const char *section)
{
    for (int i = 0; i < dt_n_keys; i++)
        if (strcmp(dt_key_table[i].section, section) == 0) return true;
    return false;
}

int dt_edit_distance(const char *a, const char *b)
{
    enum { MAX_LEN = 63 };
    const int na = (int)strnlen(a, MAX_LEN), nb = (int)strnlen(b, MAX_LEN);
    int row[3][MAX_LEN + 1]; /* rows i-2, i-1, i of the table, by i modulo 3 */
    for (int j = 0; j <= nb; j++) row[0][j] = j;
    for (int i = 1; i <= na; i++) {
        int *now = row[i % 3], *above = row[(i + 2) % 3], *above2 = row[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= nb; j++) {
            int d = above[j - 1] + (a[i - 1] != b[j - 1]);
            if (above[j] + 1 < d) d = above[j] + 1;
            if (now[j - 1] + 1 < d) d = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && above2[j - 2] + 1 < d)
                d = above2[j - 2] + 1;
            now[j] = d;
        }
    }
    return row[na % 3][nb];
}

/* True if the text contains the word or its plural, in any case, without a letter or digit before or after it. */
static bool has_word(const char *text, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = text; n && (p = strcasestr(p, word)); p++)
        if ((p == text || !isalnum((unsigned char)p[-1])) && !isalnum((unsigned char)p[n + (p[n] == 's')])) return true;
    return false;
}

/* Edit distance of a name and a key. A word of the key's name counts as one error: steps, logging_steps. */
static int key_distance(const char *name, const char *key)
{
    const int d = dt_edit_distance(name, key);
    return d > 1 && has_word(key, name) ? 1 : d;
}

static const char *nearest_section(const char *section)
{
    int best = 0, best_distance = 1000;
    for (int i = 0; i < dt_n_keys; i++) {
        const int d = dt_edit_distance(section, dt_key_table[i].section);
        if (d < best_distance) best = i, best_distance = d;
    }
    return dt_key_table[best].section;
}

/* The nearest key, in one section (or everywhere: section NULL). */
static int nearest_key(const char *section, const char *name, int *distance)
{
    int best = 0;
    *distance = 1000;
    for (int i = 0; i < dt_n_keys; i++) {
        if (section && strcmp(dt_key_table[i].section, section) != 0) continue;
        const int d = key_distance(name, dt_key_table[i].name);
        if (d < *distance) best = i, *distance = d;
    }
    return best;
}

/* True if a name may be a misspelling: at most half of its letters differ, and at least one is right. */
static bool is_near(const char *name, const char *other)
{
    const int d = key_distance(name, other), len = (int)strlen(name);
    return 2 * d <= len + 1 && d < len;
}

/* List the sections, "zero, comm, ...", each once; or the keys of one section. */
static void list_names(const char *section, char *out, size_t size)
{
    size_t n = 0;
    out[0] = '\0';
    for (int i = 0; i < dt_n_keys && n < size; i++) {
        const dt_key *k = &dt_key_table[i];
        if (section ? strcmp(k->section, section) != 0 : i > 0 && !strcmp(k->section, dt_key_table[i - 1].section))
            continue;
        n += (size_t)snprintf(out + n, size - n, "%s%s", n ? ", " : "", section ? k->name : k->section);
    }
}

/* Explain a key that has another name in dtrain. Returns dtrain's row, or -1. */
static int explain_foreign(const char *unknown, const char *section, const char *name, char *out, size_t size)
{
    const char *note;
    const int row = dt_key_foreign(section, name, &note);
    if (row >= 0)
        snprintf(out, size, "unknown %s; %s is %s in [%s] here%s%s", unknown, name, dt_key_table[row].name,
                 dt_key_table[row].section, *note ? ": " : "", note);
    return row;
}

static int explain_section(const char *section, const char *name, char *out, size_t size)
{
    char names[DT_KEY_WHY - 60];
    const char *foreign = dt_key_foreign_section(section), *near = foreign ? foreign : nearest_section(section);
    list_names(NULL, names, sizeof names);
    const int elsewhere = dt_key_find(near, name) < 0 ? explain_foreign("section", near, name, out, size) : -1;
    if (elsewhere >= 0) return elsewhere;
    if (foreign)
        snprintf(out, size, "unknown section; such settings are in [%s]", near);
    else if (!is_near(section, near))
        snprintf(out, size, "unknown section; expected one of %s", names);
    else
        snprintf(out, size, "unknown section; the nearest is [%s]", near);
    int distance;
    const int row = dt_key_find(near, name);
    return row >= 0 ? row : nearest_key(near, name, &distance);
}

int dt_key_explain_unknown(const char *section, const char *name, char *out, size_t size)
{
    const bool exists = dt_key_section_exists(section);
    const char *why = dt_key_absent(section, exists ? name : section);
    if (!exists) {
        const int row = explain_section(section, name, out, size);
        if (why) snprintf(out, size, "%s", why);
        return row;
    }

    int here, anywhere;
    const int near = nearest_key(section, name, &here), other = nearest_key(NULL, name, &anywhere);
    const char *their_name = dt_key_table[other].name, *their_section = dt_key_table[other].section;
    if (why) {
        snprintf(out, size, "%s", why);
        return near;
    }
    const int foreign = explain_foreign("key", section, name, out, size);
    if (foreign >= 0) return foreign;
    if (anywhere == 0) {
        snprintf(out, size, "unknown key; %s belongs to [%s]", their_name, their_section);
        return other;
    }
    /* prefer a key of this section, unless one of another section fits clearly better */
    if (anywhere + 1 < here && is_near(name, their_name)) {
        snprintf(out, size, "unknown key; the nearest is %s in [%s]", their_name, their_section);
        return other;
    }
    char names[DT_KEY_WHY - 60];
    list_names(section, names, sizeof names);
    if (is_near(name, dt_key_table[near].name))
        snprintf(out, size, "unknown key; the nearest is %s", dt_key_table[near].name);
    else
        snprintf(out, size, "unknown key; [%s] has %s", section, names);
    return near;
}

int dt_key_without_section(const char *name)
{
    int distance;
    const char *note;
    const int row = nearest_key(NULL, name, &distance);
    return distance == 0 ? row : dt_key_foreign("", name, &note);
}

static void default_text(const dt_key *k, char *out, size_t size)
{
    char number[DT_KEY_NUMBER_TEXT];
    const bool is_number = k->kind < DT_KEY_ENUM && !k->maybe;
    if (is_number) dt_key_format(k, k->initial, number);
    snprintf(out, size, "%s", is_number ? number : k->maybe ? "not set" : k->text[0] ? k->text : "empty");
}

/* "integer from 0 to 7, samples" */
static void describe(const dt_key *k, char *out, size_t size)
{
    char expected[320];
    dt_key_expectation(k, expected, sizeof expected);
    const char *what = k->kind == DT_KEY_INT || k->kind == DT_KEY_REAL ? strchr(expected, ' ') + 1 : expected;
    snprintf(out, size, "%s%s%s", what, k->unit[0] ? ", " : "", k->unit);
}

void dt_print_wrapped(FILE *out, const char *text, int column)
{
    enum { WIDTH = 100 };
    for (int at = column; *text;) {
        const int len = (int)strcspn(text, " ");
        if (at > column && at + 1 + len > WIDTH) at = fprintf(out, "\n%*s", column, "") - 1;
        at += fprintf(out, at > column ? " %.*s" : "%.*s", len, text);
        text += len + (text[len] == ' ');
    }
    fputc('\n', out);
}

static bool matches(const dt_key *k, const char *filter)
{
    const size_t n = strlen(k->section);
    return !filter[0] || strcmp(filter, k->name) == 0 ||
           (strncmp(filter, k->section, n) == 0 &&
            (!filter[n] || (filter[n] == '.' && strcmp(filter + n + 1, k->name) == 0)));
}

/* List the keys whose name contains a word or, else, a text, and if they are few, those whose meaning does:
 * "run.threads, ...". False if there is none. */
static bool list_containing(const char *text, bool only_words, char *out, size_t size)
{
    enum { FEW = 4 };
    size_t n = 0;
    int n_keys = 0;
    out[0] = '\0';
    for (int in_help = 0; in_help < 2 && n_keys < FEW; in_help++)
        for (int i = 0; i < dt_n_keys; i++) {
            const dt_key *k = &dt_key_table[i];
            const bool named = only_words ? has_word(k->name, text) : strcasestr(k->name, text) != NULL,
                       meant = only_words ? has_word(k->help, text) : strcasestr(k->help, text) != NULL;
            if (in_help ? named || !meant : !named) continue;
            if (n + strlen(k->section) + strlen(k->name) + sizeof ", ., ..." > size)
                return snprintf(out + n, size - n, ", ..."), true;
            n += (size_t)snprintf(out + n, size - n, "%s%s.%s", n ? ", " : "", k->section, k->name);
            n_keys++;
        }
    return n > 0;
}

/* A name without a section: a misspelt key or section, or a part of a key's name. */
static void explain_name(const char *name, char *why, size_t size)
{
    char keys[DT_KEY_WHY - 60];
    const char *absent = dt_key_absent("", name), *near = nearest_section(name);
    const int section_distance = dt_edit_distance(name, near);
    int distance;
    const dt_key *k = &dt_key_table[nearest_key(NULL, name, &distance)];
    for (int i = 0; i < dt_n_keys && !absent; i++) absent = dt_key_absent(dt_key_table[i].section, name);
    if (absent)
        snprintf(why, size, "%s", absent);
    else if (dt_key_foreign_section(name))
        snprintf(why, size, "unknown section; such settings are in [%s]", dt_key_foreign_section(name));
    else if (strlen(name) > 2 && dt_edit_distance(name, k->name) > 1 &&
             (list_containing(name, true, keys, sizeof keys) ||
              (distance > 2 && section_distance > 1 && list_containing(name, false, keys, sizeof keys))))
        snprintf(why, size, "unknown key; these contain it in their name or meaning: %s", keys);
    else if (is_near(name, near) && section_distance <= distance)
        snprintf(why, size, "unknown section; the nearest is [%s]", near);
    else if (is_near(name, k->name))
        snprintf(why, size, "unknown key; the nearest is %s in [%s]", k->name, k->section);
    else
        snprintf(why, size, "no section or key has this name; --keys without a name lists all");
}

static dt_err no_such_filter(const char *filter)
{
    char section[64], why[DT_KEY_WHY];
    const char *dot = strchr(filter, '.');
    snprintf(section, sizeof section, "%.*s", dot ? (int)(dot - filter) : 60, filter);
    if (dot)
        dt_key_explain_unknown(section, dot + 1, why, sizeof why);
    else
        explain_name(filter, why, sizeof why);
    return dt_fail(DT_ERR_USAGE, "--keys %s: %s", filter, why);
}

static void print_key(FILE *out, const dt_key *k)
{
    char type[360], initial[160], text[560];
    describe(k, type, sizeof type);
    default_text(k, initial, sizeof initial);
    snprintf(text, sizeof text, "%s; default: %s", type, initial);
    dt_print_wrapped(out, text, fprintf(out, "  %-28s ", k->name));
    fputs("      ", out);
    dt_print_wrapped(out, k->help, 6);
}

/* Another program's name of a key: print the key. False if name is none. */
static bool print_foreign(FILE *out, const char *name)
{
    const char *note;
    const int foreign = dt_key_foreign("", name, &note);
    if (foreign < 0) return false;
    const dt_key *k = &dt_key_table[foreign];
    fprintf(out, "%s is %s.%s here%s%s\n\n[%s]\n", name, k->section, k->name, *note ? ": " : "", note, k->section);
    print_key(out, k);
    return true;
}

dt_err dt_config_print_keys(FILE *out, const char *filter)
{
    const char *section = "";
    int n = 0;
    for (int i = 0; i < dt_n_keys; i++) {
        const dt_key *k = &dt_key_table[i];
        if (!matches(k, filter)) continue;
        if (strcmp(section, k->section) != 0) fprintf(out, "%s[%s]\n", n ? "\n" : "", k->section);
        section = k->section;
        print_key(out, k);
        n++;
    }
    return n || print_foreign(out, filter) ? DT_OK : no_such_filter(filter);
}

/* Text of a table cell: a bar is escaped, because it would end the cell. */
static void print_cell(FILE *out, const char *text)
{
    for (; *text; text++) fprintf(out, *text == '|' ? "\\|" : "%c", *text);
}

void dt_config_print_markdown(FILE *out)
{
    char type[360], initial[160];
    const char *section = "";
    fprintf(out, "# Configuration keys\n\n"
                 "This page lists every key of a configuration file with its type, default and meaning. It is for\n"
                 "users who write an INI file or set keys on the command line.\n\n"
                 "`dtrain --keys` prints the same list. `make docs` generates both from\n"
                 "`include/dtrain/config/config_keys.h`.\n\n"
                 "- `section.key=value` on the command line overrides the file.\n"
                 "- `${NAME}` in a value stands for the environment variable NAME, `~/` before a path for HOME.\n"
                 "- Lists are comma separated.\n"
                 "- A comment begins with `;` or `#` at the start of a line, or with ` ;` after a value.\n");
    for (int i = 0; i < dt_n_keys; i++) {
        const dt_key *k = &dt_key_table[i];
        if (strcmp(section, k->section) != 0)
            fprintf(out, "\n## [%s]\n\n| key | value | default | meaning |\n|---|---|---|---|\n", k->section);
        section = k->section;
        describe(k, type, sizeof type);
        default_text(k, initial, sizeof initial);
        fprintf(out, "| `%s` | %s | %s | ", k->name, type, initial);
        print_cell(out, k->help);
        fputs(" |\n", out);
    }
}
