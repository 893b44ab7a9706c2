/* spec.h - typed values out of JSON that says what to do: every message names file, key and value. */
#ifndef DTRAIN_SPEC_H
#define DTRAIN_SPEC_H

#include "dtrain/io/json.h"

/** A value and where it stands. */
typedef struct dt_spec {
    const char *file;
    const json_t *value;
    dt_err err;      /* what a bad value counts as; DT_OK: DT_ERR_DATA */
    char where[128]; /* "pre_tokenizer.pretokenizers[1]", "" for the whole file */
} dt_spec;

/** Read a file of up to max_nbytes as a JSON object. DT_ERR_DATA: missing, too large, not JSON, a key twice, no object.
 *  root is the caller's (dt_spec_unload); flags are dt_json_parse's; text and nbytes, when not NULL, get the contents
 *  of the file, malloc'ed. An error leaves nothing to free (*text NULL). */
dt_err dt_spec_load(dt_spec *root, const char *file, size_t max_nbytes, unsigned flags, char **text, size_t *nbytes);
void dt_spec_unload(dt_spec *root); /* safe on {0} */

/** root->err "FILE: WHERE.KEY: expected EXPECTED, found VALUE"; key NULL: the value of s itself. */
dt_err dt_spec_bad(const dt_spec *s, const char *key, const char *expected);
#ifdef __clang_analyzer__ /* an error is never DT_OK */
#define dt_spec_bad(...) ((dt_spec_bad)(__VA_ARGS__), DT_ERR_DATA)
#endif

/** The value of a key: false when absent or null, or s is no object. */
bool dt_spec_get(const dt_spec *s, const char *key, dt_spec *child);
bool dt_spec_has(const dt_spec *s, const char *key); /* the same without the value */
/** The i-th value of an array. */
dt_spec dt_spec_item(const dt_spec *array, size_t i);

/* These leave *out alone when the key is absent or null. An integer may be written as a float with an integral
 * value. */
dt_err dt_spec_bool(const dt_spec *s, const char *key, bool *out);
dt_err dt_spec_string(const dt_spec *s, const char *key, const char **out); /* borrowed */
dt_err dt_spec_int(const dt_spec *s, const char *key, int64_t lo, int64_t hi, int64_t *out);
dt_err dt_spec_real(const dt_spec *s, const char *key, double lo, double hi, double *out);
/** The value must be there, and an object or array. */
dt_err dt_spec_need(const dt_spec *s, const char *key, json_type type, dt_spec *child);
dt_err dt_spec_need_string(const dt_spec *s, const char *key, const char **out);                /* without U+0000 */
dt_err dt_spec_need_bytes(const dt_spec *s, const char *key, const char **out, size_t *nbytes); /* any string */

/** That an object has no other keys than these (separated by spaces), but for keys whose value is null. */
dt_err dt_spec_only(const dt_spec *s, const char *keys);

#endif
