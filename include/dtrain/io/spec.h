/* spec.h - typed values from a JSON object. Every error message names file, key and value. Every function is Local.
 *
 * A dt_spec borrows the tree that dt_spec_load allocated. Values that functions return are borrowed from it until
 * dt_spec_unload. Their errors have the code root->err, which the caller may set; by default DT_ERR_DATA. */
#ifndef DTRAIN_SPEC_H
#define DTRAIN_SPEC_H

#include "dtrain/io/json.h"

/** A JSON value and its path within the file. */
typedef struct dt_spec {
    const char *file;
    const json_t *value;
    dt_err err;      /* code of errors about values; DT_OK: DT_ERR_DATA */
    char where[128]; /* "pre_tokenizer.pretokenizers[1]", "" for the whole file */
} dt_spec;

/** Read a file of at most max_nbytes as a JSON object.
 *
 *  root    out  freed with dt_spec_unload; file is borrowed
 *  flags   DT_JSON_* of dt_json_parse
 *  text    out  content of the file, malloc'ed, the caller's; may be NULL. NULL on error
 *  nbytes  out  its length; used only if text is not NULL
 *
 *  DT_ERR_DATA: missing, too large, not JSON, a duplicate key, not an object. DT_ERR_FAULT, DT_ERR_MEMORY: as
 *  dt_read_file. */
dt_err dt_spec_load(dt_spec *root, const char *file, size_t max_nbytes, unsigned flags, char **text, size_t *nbytes);
/** Free what dt_spec_load returned. Safe on {0}; leaves {0}. */
void dt_spec_unload(dt_spec *root);

/** Record "FILE: WHERE.KEY: expected EXPECTED, found VALUE". key NULL: the value of s itself. Returns s->err, or
 *  DT_ERR_DATA. */
dt_err dt_spec_bad(const dt_spec *s, const char *key, const char *expected);
#ifdef __clang_analyzer__ /* an error is never DT_OK */
#define dt_spec_bad(...) ((dt_spec_bad)(__VA_ARGS__), DT_ERR_DATA)
#endif

/** Find the value of a key. child: out, unchanged if the result is false. False: absent or null, or s is not an
 *  object. */
bool dt_spec_get(const dt_spec *s, const char *key, dt_spec *child);
/** Is the key present, and not null? */
bool dt_spec_has(const dt_spec *s, const char *key);
/** Element i of an array; i must be below its length. */
dt_spec dt_spec_item(const dt_spec *array, size_t i);

/** Read true or false. */
dt_err dt_spec_bool(const dt_spec *s, const char *key, bool *out);
/** Read a string without U+0000. Borrowed. */
dt_err dt_spec_string(const dt_spec *s, const char *key, const char **out);
/** Read an integer from lo to hi. It may be written as a real with an integral value below 2^53. */
dt_err dt_spec_int(const dt_spec *s, const char *key, int64_t lo, int64_t hi, int64_t *out);
/** Read a number from lo to hi. */
dt_err dt_spec_real(const dt_spec *s, const char *key, double lo, double hi, double *out);
/** Find a required key whose value has this type (object, array or string). child: out. Returns s->err otherwise. */
dt_err dt_spec_need(const dt_spec *s, const char *key, json_type type, dt_spec *child);
/** Read a required string without U+0000. Borrowed. */
dt_err dt_spec_need_string(const dt_spec *s, const char *key, const char **out);
/** Read a required string, which may contain U+0000. Borrowed. */
dt_err dt_spec_need_bytes(const dt_spec *s, const char *key, const char **out, size_t *nbytes);

/** Check that s is an object with no keys other than these (separated by spaces), except keys whose value is null.
 *  Returns s->err otherwise. */
dt_err dt_spec_only(const dt_spec *s, const char *keys);

#endif
