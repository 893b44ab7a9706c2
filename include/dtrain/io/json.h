/* json.h - every JSON text that comes from outside is parsed here: configurations, tokenizers, records, prompts,
 * headers, indexes, metrics.
 *
 * jansson parses. What it refuses and published files contain is rewritten first (src/io/json.c): a number that no
 * 64-bit integer or double holds, NaN and Infinity, a byte order mark, and U+0000 in a key. A text that jansson takes
 * as it stands is not touched. */
#ifndef DTRAIN_JSON_H
#define DTRAIN_JSON_H

#include "dtrain/core/core.h"
#include <jansson.h>

enum {
    DT_JSON_ANY = 1,      /* the text may be any value; without it an object or an array */
    DT_JSON_LAST_KEY = 2, /* of two equal keys the last counts, as in Python; without it they are an error */
    DT_JSON_NUL = 4,      /* strings may contain U+0000: the caller uses json_string_length */
    DT_JSON_NUL_KEYS = 8, /* keys may contain it, too: the caller reads keys through dt_json_key */
    DT_JSON_RECORD = 16   /* the text is part of a file: places in messages are counted within the text */
};

/** Parse a text of nbytes bytes.
 *
 *  An integer beyond 64 bits becomes a real: a reader that wants an integer refuses it, all others ignore it. NaN,
 * Infinity and -Infinity become the strings of these names, a real beyond a double the largest one.
 *
 *  name  what messages call the text; "" with DT_JSON_RECORD: the caller says where it is
 *  root  the caller's (json_decref); NULL on error
 *
 *  DT_ERR_DATA: not JSON, nested more than 2048 levels deep, a key twice. DT_ERR_MEMORY. */
dt_err dt_json_parse(json_t **root, const char *name, const char *text, size_t nbytes, unsigned flags);

/** Bytes of a key of a text parsed with DT_JSON_NUL_KEYS, written to out (strlen(key) bytes are enough); returns how
 * many there are. */
size_t dt_json_key(const char *key, char *out);

/** Where in a record the next byte is, as its brackets and quotes tell; {0} at its start. */
enum { DT_JSON_MAX_OPEN = 64 };
typedef struct dt_json_nesting {
    int64_t depth;               /* brackets that are open */
    char open[DT_JSON_MAX_OPEN]; /* the outermost of them */
    char last;                   /* the last byte that is no white space, of a text a quote; 0: none yet */
    bool in_string, escaped;
} dt_json_nesting;
/** Take a byte. Returns NULL, or what is wrong with brackets and quotes: then nothing says where the record ends. */
const char *dt_json_step(dt_json_nesting *at, char c);
/** Does the first line of a text end inside a record, as those of pretty-printed JSON do? */
bool dt_json_is_printed(const char *text, const char *end);

#endif
