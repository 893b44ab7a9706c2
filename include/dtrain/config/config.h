/* config.h - the configuration: every key stands once, in src/core/config_keys.h, and all else is made from that table
 * (the struct below, the parser, range checks, --keys, the resolved text in logs and checkpoints). */
#ifndef DTRAIN_CONFIG_H
#define DTRAIN_CONFIG_H

#include "dtrain/core/core.h"

/* The table: DT_CONFIG_KEYS(INT, REAL, BOOL, ENUM, TEXT, MAYBE), rows in the order of --keys. */
#include "dtrain/config/config_keys.h"

#define DT_FIELD_INT(section, key, ...) int64_t section##_##key;
#define DT_FIELD_REAL(section, key, ...) double section##_##key;
#define DT_FIELD_BOOL(section, key, ...) bool section##_##key;
#define DT_FIELD_ENUM(section, key, ...) const char *section##_##key; /* one of the allowed words, interned */
#define DT_FIELD_TEXT(section, key, ...) const char *section##_##key; /* owned by the config; "" when not given */
/* the value's text, checked; "" when not given */
#define DT_FIELD_MAYBE(section, key, ...) const char *section##_##key;

/** Where a key's value came from. */
typedef struct dt_config_source {
    int file; /* index into files: -1 default, -2 command line */
    int line; /* line in the file, or position of the argument */
} dt_config_source;

/** A parsed configuration; cfg.SECTION_KEY is the value of [SECTION] KEY. Free with dt_config_free. */
typedef struct dt_config {
    DT_CONFIG_KEYS(DT_FIELD_INT, DT_FIELD_REAL, DT_FIELD_BOOL, DT_FIELD_ENUM, DT_FIELD_TEXT, DT_FIELD_MAYBE)
    struct dt_config_private *priv;
} dt_config;

/** Parse INI text, then "section.key=value" overrides, in order; later ones win, except that a key twice in one file is
 *  an error. name is what messages call the text (the file's path). Local; the text is what rank 0 read and broadcast.
 *
 *  Errors (DT_ERR_USAGE; message "FILE:LINE: [section] key: expected ..., found ..."): unknown section or key (with the
 *  nearest known one), key twice, wrong type, out of range, not one of the words, unset ${NAME}, line over 4000 bytes,
 *  indented line. All mistakes are reported, a line each. */
dt_err dt_config_parse(dt_config *cfg, const char *name, const char *text, int n_overrides,
                       const char *const *overrides);

/** What a ${NAME} whose variable is not set is: a mistake, or the end of what is known of its key (which is doubted
 *  then). */
typedef enum dt_config_variables { DT_VARIABLES_MUST_BE_SET, DT_VARIABLES_MAY_BE_UNSET } dt_config_variables;

/** As dt_config_parse, but every mistake joins the list and the rest is read all the same: keys with mistakes keep
 *  their defaults and are doubted. Returns DT_OK or DT_ERR_MEMORY; cfg must be freed in any case. */
dt_err dt_config_read(dt_config *cfg, const char *name, const char *text, int n_overrides, const char *const *overrides,
                      dt_config_variables variables, dt_mistakes *mistakes);

/** Is the key's value not what its writer meant (a mistake in it or in a name that is near to it, a variable that is
 *  not set)? Then nothing follows from it. key NULL: is there a mistake in any key of the section? */
bool dt_config_doubted(const dt_config *cfg, const char *section, const char *key);

/** Tell of every key whose value differs between two configurations, in the order of the table. */
typedef void (*dt_config_visit)(void *self, const char *section, const char *key, const char *before, const char *now);
void dt_config_compare(const dt_config *before, const dt_config *now, dt_config_visit visit, void *self);

/** DT_ERR_USAGE, naming the variable, when the key's value needs one that is not set (DT_VARIABLES_MAY_BE_UNSET). key
 *  NULL: any of the section. */
dt_err dt_config_require(const dt_config *cfg, const char *section, const char *key);

/** Read a whole file into a malloc'ed string. DT_ERR_USAGE with the reason when it cannot be read or is not text. */
dt_err dt_config_read_file(const char *path, char **text);

void dt_config_free(dt_config *cfg); /* safe on {0} */

/** Was the key given (in the file or on the command line)? */
bool dt_config_given(const dt_config *cfg, const char *section, const char *key);
/** Has it another value than its default? The same of what dt_config_text wrote, where every key is given: of a run's
 *  own config.ini, and in its checkpoints. */
bool dt_config_differs(const dt_config *cfg, const char *section, const char *key);

/** "FILE:LINE: [section] key" or "command line: section.key" or "[section] key (default)": the head of a message about
 *  a value that parsed but does not fit the rest. Returns out. */
char *dt_config_where(const dt_config *cfg, const char *section, const char *key, char *out, size_t out_size);

/** DT_ERR_USAGE with that head in front of a message. */
dt_err dt_config_fail(const dt_config *cfg, const char *section, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/** Return dt_config_fail unless a condition holds. */
#define DT_CONFIG_CHECK(cond, ...)                                                                                     \
    do {                                                                                                               \
        if (!(cond)) return dt_config_fail(__VA_ARGS__);                                                               \
    } while (0)
/** What a part of the program that knows no configuration refused, said again with that head. err is returned as
 *  DT_ERR_USAGE; DT_OK stays DT_OK. */
dt_err dt_config_blame(const dt_config *cfg, const char *section, const char *key, dt_err err);
/** The same, and err stays what it is: a file that a key names is bad. */
dt_err dt_config_lead_to(const dt_config *cfg, const char *section, const char *key, dt_err err);

/** Set a key as the command line would (the resolved value of an "auto"); the text appears in dt_config_text. */
dt_err dt_config_set(dt_config *cfg, const char *section, const char *key, const char *value);

/** "fp32", "bf16" or "fp16"; false: another word, and t as it was. */
bool dt_dtype_find(const char *word, dt_dtype *t);
/** precision.dtype. auto is bf16: every device of this program computes in it. */
dt_dtype dt_config_precision(const dt_config *cfg);

/** The resolved configuration as INI text, every key with its value, in table order; malloc'ed. Parses back to the
 *  same. Paths are full, so that it means the same files from every folder. */
char *dt_config_text(const dt_config *cfg);

/** The name of a key whose path is relative there all the same, because of what the current folder's name contains;
 *  NULL: there is none. */
const char *dt_config_relative_path(const dt_config *cfg);
/** The same without the keys that were not given and have their defaults: of what it parses to, the other keys are
 *  given, and no more. For other ranks of the same program. */
char *dt_config_given_text(const dt_config *cfg);

/** Print the table (--keys): type, default, range, unit, help; filter is "", "section", "section.key" or "key".
 *  DT_ERR_USAGE naming the nearest one when the filter matches nothing. */
dt_err dt_config_print_keys(FILE *out, const char *filter);

/** The same as Markdown, for the reference page docs/keys.md. */
void dt_config_print_markdown(FILE *out);

/** Letters to insert, remove, replace or swap between two words (optimal string alignment), for naming the nearest one;
 *  of long words the first 63 letters only. */
int dt_edit_distance(const char *a, const char *b);

/** Prints a text in lines of at most 100 columns. column: of all lines, where the cursor already is. */
void dt_print_wrapped(FILE *out, const char *text, int column);

/** Replace ~ at the beginning of a path by HOME. DT_ERR_USAGE, with head in front: HOME is not set. *out is
 *  malloc'ed. */
dt_err dt_path_expand(const char *path, const char *head, char **out);

/** Split "a, b ,c" into malloc'ed strings (empty items dropped); free with dt_list_free. */
dt_err dt_config_split(const char *text, char ***items, int *n_items);

#endif
