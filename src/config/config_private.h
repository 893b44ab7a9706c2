/* config_private.h - shared declarations of the configuration: the table as data, conversion of values to and from
 * text, the INI reader. */
#ifndef DTRAIN_CONFIG_PRIVATE_H
#define DTRAIN_CONFIG_PRIVATE_H

#include "dtrain/config/config.h"

/* Bytes, without the end of the line. A run records the chat template of its model in one value: those of published
 * models have up to some ten thousand bytes. */
enum { DT_CONFIG_LINE_MAX = 1 << 18 };

typedef enum dt_key_kind { DT_KEY_INT, DT_KEY_REAL, DT_KEY_BOOL, DT_KEY_ENUM, DT_KEY_TEXT } dt_key_kind;

typedef union dt_key_number {
    int64_t i;
    double r;
    bool b;
} dt_key_number;

/** A row of the table. */
typedef struct dt_key {
    const char *section, *name;
    dt_key_kind kind;
    size_t offset; /* of the field in dt_config */
    dt_key_number initial, min, max;
    const char *text;  /* ENUM, TEXT: the default */
    const char *words; /* ENUM: "a|b|c"; other kinds with maybe: one more word that is accepted, or "" */
    bool maybe;        /* the value may be absent; the field is then "", and has the value's text for any kind */
    const char *unit, *help;
} dt_key;

/* config_table.c */
extern const dt_key dt_key_table[];
extern const int dt_n_keys;
int dt_key_find(const char *section, const char *name); /* row, or -1 */
bool dt_key_section_exists(const char *section);
enum { DT_KEY_WHY = 600 }; /* bytes */
/** Explain to users why a key does not exist: "unknown section; the nearest is ...", "unknown key; ...". Returns the
 * row of the key that the message names. */
int dt_key_explain_unknown(const char *section, const char *name, char *out, size_t size);
/** The row that a name without a section may refer to: dtrain's key or another program's; -1: none. */
int dt_key_without_section(const char *name);

/* parse_value.c */
enum { DT_KEY_NUMBER_TEXT = 32 };
/* shortest text that parses to the same value */
void dt_key_format(const dt_key *k, dt_key_number n, char out[DT_KEY_NUMBER_TEXT]);
void dt_key_expectation(const dt_key *k, char *out, size_t size); /* "an integer from 0 to 7" */
/** Read a value. For numbers it sets *n and *canonical (shortest text), for words and text only *canonical, which is
 * malloc'ed. The error message begins with head. */
dt_err dt_key_read(const dt_key *k, const char *text, const char *head, dt_key_number *n, char **canonical);
/** Replace ${NAME} by the environment's value. Refuses values that a file cannot contain. *out is malloc'ed. */
dt_err dt_key_expand(const dt_key *k, const char *text, const char *head, char **out);

/* config_path.c */
/** Replace ~ at the beginning of the paths in a value; DT_ERR_USAGE: $NAME in a path. *out is malloc'ed; values that
 *  name no files are copied. */
dt_err dt_key_expand_path(const dt_key *k, const char *value, const char *head, char **out);
/** The value with absolute paths, malloc'ed; NULL: no memory. It is unchanged if a line cannot contain them, because of
 *  characters in the current folder's name, or of their length. stays: out, true in this case; may be NULL. */
char *dt_key_absolute(const dt_key *k, const char *value, bool *stays);

/* parse_value.c */
char *dt_key_trim(char *text);    /* without white space around it; in place */
char *dt_key_unquote(char *text); /* the text between paired quotes; in place */
/** True if a ${NAME} has an unset variable. name receives its name. */
bool dt_key_unset_variable(const char *text, char *name, size_t size);

/* config_foreign.c */
/** The row of the key that corresponds to a key, section or option of another program (learning_rate,
 * zero_optimization, ...), or -1. If several tasks have the key, the one of `section` is chosen. *note: how to write
 * the value if its form differs, or "". */
int dt_key_foreign(const char *section, const char *name, const char **note);
/** Why no key corresponds to this name of another program; NULL if the name is unknown. */
const char *dt_key_absent(const char *section, const char *name);
const char *dt_key_foreign_section(const char *name); /* dtrain's section for another program's, or NULL */

#endif
