/* json.h - parses every JSON text from outside: configurations, tokenizers, records, prompts, headers, indexes,
 * metrics. Every function is Local.
 *
 * jansson parses. Published files contain forms that jansson refuses; these are rewritten first (src/io/json.c): a
 * number beyond a 64-bit integer or a double, NaN and Infinity, a byte order mark, and U+0000 in a key. A text that
 * jansson accepts is not rewritten. */
#ifndef DTRAIN_JSON_H
#define DTRAIN_JSON_H

#include "dtrain/core/core.h"
#include <jansson.h>

enum {
    DT_JSON_ANY = 1,      /* the text may be any value; default: an object or an array */
    DT_JSON_LAST_KEY = 2, /* the last of duplicate keys is used, as in Python; default: an error */
    DT_JSON_NUL = 4,      /* strings may contain U+0000: the caller uses json_string_length */
    DT_JSON_NUL_KEYS = 8, /* keys may contain U+0000: the caller reads keys through dt_json_key */
    DT_JSON_RECORD = 16   /* the text is part of a file: messages count lines within the text */
};

/** Parse a JSON text. An integer beyond 64 bits becomes a real. NaN, Infinity and -Infinity become the strings of these
 *  names. A real beyond the range of double becomes the largest double.
 *
 *  root   out  freed by the caller with json_decref; NULL on error
 *  name   name of the text in messages; "" with DT_JSON_RECORD: the caller prepends the location
 *  text   in  [nbytes], UTF-8, not 0-terminated; may begin with a byte order mark
 *  flags  sum of DT_JSON_*
 *
 *  DT_ERR_DATA: not JSON, nested more than 2048 levels deep, a duplicate key. DT_ERR_MEMORY. */
dt_err dt_json_parse(json_t **root, const char *name, const char *text, size_t nbytes, unsigned flags);

/** Replace *text by the text of root, indented, and free the old one. name: of the text in messages. DT_ERR_MEMORY:
 *  *text is unchanged. */
dt_err dt_json_store(char **text, const char *name, const json_t *root);

/** Decode a key of a text parsed with DT_JSON_NUL_KEYS. out: out, at least strlen(key) bytes. Returns the number of
 *  bytes written. */
size_t dt_json_key(const char *key, char *out);

/** State of a scan for the end of a record: its open brackets and quotes. {0} at the start of a record. */
enum { DT_JSON_MAX_OPEN = 64 };
typedef struct dt_json_nesting {
    int64_t depth;               /* number of open brackets */
    char open[DT_JSON_MAX_OPEN]; /* the outermost of them */
    char last;                   /* last byte that is not white space; a quote after a string; 0: none yet */
    bool in_string, escaped;
} dt_json_nesting;
/** Scan the next byte. Returns NULL, or what is wrong with brackets and quotes; the end of the record is then
 *  unknown. */
const char *dt_json_step(dt_json_nesting *at, char c);
/** Does the first line of a text end inside a record, as in pretty-printed JSON? */
bool dt_json_is_printed(const char *text, const char *end);

#endif
