/* config.h - the configuration. Every key is defined once, in config_keys.h; the struct below, the parser, range
 * checks, --keys and the text in logs and checkpoints are generated from that table. Every function is Local.
 *
 * section and key name a row of the table. An unknown name is treated as a key that was not given. */
#ifndef DTRAIN_CONFIG_H
#define DTRAIN_CONFIG_H

#include "dtrain/core/core.h"

/* The table: DT_CONFIG_KEYS(INT, REAL, BOOL, ENUM, TEXT, MAYBE), rows in the order of --keys. */
#include "dtrain/config/config_keys.h"

#define DT_FIELD_INT(section, key, ...) int64_t section##_##key;
#define DT_FIELD_REAL(section, key, ...) double section##_##key;
#define DT_FIELD_BOOL(section, key, ...) bool section##_##key;
#define DT_FIELD_ENUM(section, key, ...) const char *section##_##key;
#define DT_FIELD_TEXT(section, key, ...) const char *section##_##key; /* owned by the configuration; "" if not given */
/* the value's text, validated; "" if not given */
#define DT_FIELD_MAYBE(section, key, ...) const char *section##_##key;

/** Origin of a key's value. */
typedef struct dt_config_source {
    int file; /* 0: the file; -1: the default; -2: the command line */
    int line; /* line in the file, or position of the argument */
} dt_config_source;

/** A parsed configuration: cfg.SECTION_KEY is the value of [SECTION] KEY. Freed with dt_config_free. */
typedef struct dt_config {
    DT_CONFIG_KEYS(DT_FIELD_INT, DT_FIELD_REAL, DT_FIELD_BOOL, DT_FIELD_ENUM, DT_FIELD_TEXT, DT_FIELD_MAYBE)
    struct dt_config_private *priv;
} dt_config;

/** Parse INI text, then "section.key=value" overrides in order; later values win. All mistakes are reported together,
 *  one per line.
 *
 *  cfg        out  freed with dt_config_free; {0} on error
 *  name       name of the text in messages: the file's path
 *  overrides  in  [n_overrides]; borrowed until cfg is freed
 *
 *  DT_ERR_USAGE, "FILE:LINE: [section] key: expected ..., found ...": unknown section or key (with the nearest one),
 *  key given twice in the file, wrong type, out of range, unknown word, unset ${NAME}, line over 256 KiB, indented
 *  line. DT_ERR_MEMORY. */
dt_err dt_config_parse(dt_config *cfg, const char *name, const char *text, int n_overrides,
                       const char *const *overrides);

/** Treatment of ${NAME} if the variable is not set: a mistake, or a key whose value is unknown (dt_config_doubted). */
typedef enum dt_config_variables { DT_VARIABLES_MUST_BE_SET, DT_VARIABLES_MAY_BE_UNSET } dt_config_variables;

/** As dt_config_parse, but mistakes are added to the list, and parsing continues. Keys with mistakes keep their
 *  defaults and are doubted. Returns DT_OK or DT_ERR_MEMORY; free cfg in either case. */
dt_err dt_config_read(dt_config *cfg, const char *name, const char *text, int n_overrides, const char *const *overrides,
                      dt_config_variables variables, dt_mistakes *mistakes);

/** Parse a configuration that a run recorded in a checkpoint or in its config.ini. Keys of another version and
 *  variables that are not set are ignored: these keys keep their defaults.
 *
 *  cfg   out  must be freed with dt_config_free in any case
 *  text  may be NULL: all defaults
 *
 *  DT_ERR_MEMORY. */
dt_err dt_config_read_recorded(dt_config *cfg, const char *name, const char *text);

/** Is the key's value uncertain, so that nothing should be concluded from it? True if the value or a similar name has a
 *  mistake, or if its variable is not set. key NULL: does any key of the section have a mistake? */
bool dt_config_doubted(const dt_config *cfg, const char *section, const char *key);

/** Called for a key whose value differs. */
typedef void (*dt_config_visit)(void *self, const char *section, const char *key, const char *before, const char *now);
/** Call visit for every key whose value differs between two configurations, in table order. Different spellings of the
 *  same path are equal. */
void dt_config_compare(const dt_config *before, const dt_config *now, dt_config_visit visit, void *self);

/** DT_ERR_USAGE, naming the variable, if the key's value needs one that is not set (DT_VARIABLES_MAY_BE_UNSET). key
 *  NULL: any key of the section. */
dt_err dt_config_require(const dt_config *cfg, const char *section, const char *key);

/** Read a whole configuration file. text: out, malloc'ed, the caller's; NULL on error. DT_ERR_USAGE: it cannot be read,
 *  is larger than 1 MiB or is not text. DT_ERR_MEMORY. */
dt_err dt_config_read_file(const char *path, char **text);

/** Free the configuration and all its texts. Safe on {0}; leaves {0}. */
void dt_config_free(dt_config *cfg);

/** Was the key given, in the file or on the command line? dt_config_set does not count. */
bool dt_config_given(const dt_config *cfg, const char *section, const char *key);
/** Does the key's value differ from its default? Use it for a text that dt_config_text wrote (config.ini of a run,
 *  checkpoints), in which every key is given. */
bool dt_config_differs(const dt_config *cfg, const char *section, const char *key);

/** Location of a key's value, to begin messages with: "FILE:LINE: [section] key", "command line: section.key" or
 *  "[section] key (default)". out: out [out_size]. Returns out. */
char *dt_config_where(const dt_config *cfg, const char *section, const char *key, char *out, size_t out_size);

/** Record the message "LOCATION: MESSAGE", with the location of dt_config_where. fmt: as printf. Returns
 *  DT_ERR_USAGE. */
dt_err dt_config_fail(const dt_config *cfg, const char *section, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/** Unless cond holds, return dt_config_fail from the calling function. */
#define DT_CONFIG_CHECK(cond, ...)                                                                                     \
    do {                                                                                                               \
        if (!(cond)) return dt_config_fail(__VA_ARGS__);                                                               \
    } while (0)
/** Attribute an error to a key: prepend the location of its value (dt_config_where) to the recorded message. For errors
 *  of functions that do not know the configuration. Returns DT_ERR_USAGE; DT_OK and the errors that no value
 *  causes (DT_ERR_MEMORY, DT_ERR_FAULT, DT_ERR_COMM) are returned unchanged. */
dt_err dt_config_blame(const dt_config *cfg, const char *section, const char *key, dt_err err);
/** As dt_config_blame, but returns err unchanged: for an invalid file that the key names. */
dt_err dt_config_lead_to(const dt_config *cfg, const char *section, const char *key, dt_err err);

/** Set a key as the command line would, for example to the resolved value of "auto". The text appears in
 *  dt_config_text. DT_ERR_USAGE: unknown key or invalid value. DT_ERR_MEMORY. */
dt_err dt_config_set(dt_config *cfg, const char *section, const char *key, const char *value);

/** Parse "fp32", "bf16" or "fp16". False, and *t unchanged: another word. */
bool dt_dtype_find(const char *word, dt_dtype *t);
/** The type of precision.dtype. "auto" is bf16, which every device supports. */
dt_dtype dt_config_precision(const dt_config *cfg);

/** The resolved configuration as INI text: every key with its value, in table order, with absolute paths. Parsing it
 *  gives the same configuration. malloc'ed, the caller's; NULL: no memory. */
char *dt_config_text(const dt_config *cfg);

/** The name of a key whose path stays relative in dt_config_text, because of characters in the current directory's
 *  name; NULL: none. */
const char *dt_config_relative_path(const dt_config *cfg);
/** As dt_config_text, but only the keys that were given or differ from their defaults, with paths as given: for other
 *  ranks of the same program. */
char *dt_config_given_text(const dt_config *cfg);

/** Print the table (--keys): type, default, range, unit, help. filter: "", "section", "section.key" or "key".
 *  DT_ERR_USAGE, with the nearest name: the filter matches nothing. */
dt_err dt_config_print_keys(FILE *out, const char *filter);

/** Print the table as Markdown, for docs/keys.md. */
void dt_config_print_markdown(FILE *out);

/** Optimal string alignment distance of two words: letters to insert, remove, replace or swap. Only the first 63
 *  letters of long words are compared. */
int dt_edit_distance(const char *a, const char *b);

/** Prints a text in lines of at most 100 columns. column: of all lines, where the cursor already is. */
void dt_print_wrapped(FILE *out, const char *text, int column);

/** Replace ~ at the beginning of a path by HOME. out: out, malloc'ed, the caller's. DT_ERR_USAGE, beginning with head:
 *  HOME is not set. DT_ERR_MEMORY. */
dt_err dt_path_expand(const char *path, const char *head, char **out);

/** Split a comma-separated list: "a, b ,c". White space around items and empty items are dropped, and quotes removed.
 *
 *  items  out  [n_items] malloc'ed strings; freed with dt_list_free, also if n_items is 0; NULL on error
 *
 *  DT_ERR_MEMORY. */
dt_err dt_config_split(const char *text, char ***items, int *n_items);
/** Does a comma-separated list have this item? False also without memory. */
bool dt_config_lists(const char *text, const char *item);

/* ---- other INI files --------------------------------------------------------------------------------------------- */

typedef dt_err (*dt_ini_handler)(void *self, int line, const char *section, const char *name, const char *value);
/** Pass each "name = value" of an INI text to the handler, in order. Errors in a line, or from the handler, are added
 *  to mistakes, and reading continues.
 *
 *  any_section  false: sections are those of the table of keys. The keys of another section are skipped, and the
 *               handler receives its name with name NULL
 *
 *  DT_ERR_MEMORY. */
dt_err dt_ini_read(const char *file_name, const char *text, bool any_section, dt_ini_handler handler, void *self,
                   dt_mistakes *mistakes);

#endif
