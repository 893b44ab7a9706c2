/* json.h - reading typed values out of a config.json, with messages that name file, key and value. */
#ifndef DT_MODEL_JSON_H
#define DT_MODEL_JSON_H

#include "dtrain/spec.h"

/** Where values come from and what a bad one counts as. */
typedef struct reader {
    const char *name; /* the file, for messages */
    dt_err err;
} reader;

/** "NAME: KEY: expected WHAT, found VALUE". */
dt_err dt_json_bad(const reader *r, const char *key, const json_t *value, const char *expected);

/* All of these leave *out alone when the key is absent or null. An integer may be written as a float with an integral
 * value. */
dt_err dt_json_int(const reader *r, const json_t *obj, const char *key, int64_t lo, int64_t hi, int64_t *out);
dt_err dt_json_real(const reader *r, const json_t *obj, const char *key, double lo, double hi, double *out);
dt_err dt_json_bool(const reader *r, const json_t *obj, const char *key, bool *out);
dt_err dt_json_string(const reader *r, const json_t *obj, const char *key, const char **out); /* borrowed from obj */

/** The value, or NULL when the key is absent or null. */
const json_t *dt_json_get(const json_t *obj, const char *key);

#endif
