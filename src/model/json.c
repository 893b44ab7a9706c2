/* json.c - jansson accepts any value anywhere; here each key says which type and range it takes, so that a wrong one is met where it
 * stands and not as a crash later. */
#include "json.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

char *dt_json_text(const json_t *value, char *out, size_t out_size)
{
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    snprintf(out, out_size, "%s", text ? text : "nothing");
    if (text && strlen(text) >= out_size && out_size > 4) memcpy(out + out_size - 4, "...", 4);
    free(text);
    return out;
}

dt_err dt_json_bad(const reader *r, const char *key, const json_t *value, const char *expected)
{
    char text[120];
    return dt_fail(r->err, "%s: %s: expected %s, found %s", r->name, key, expected, dt_json_text(value, text, sizeof text));
}

const json_t *dt_json_get(const json_t *obj, const char *key)
{
    const json_t *v = json_object_get(obj, key);
    return v && !json_is_null(v) ? v : NULL;
}

dt_err dt_json_int(const reader *r, const json_t *obj, const char *key, int64_t lo, int64_t hi, int64_t *out)
{
    const json_t *v = dt_json_get(obj, key);
    if (!v) return DT_OK;
    char expected[96];
    snprintf(expected, sizeof expected, "an integer from %" PRId64 " to %" PRId64, lo, hi);
    if (!json_is_number(v)) return dt_json_bad(r, key, v, expected);
    const double x = json_number_value(v);
    const bool fits = json_is_integer(v) ? json_integer_value(v) >= lo && json_integer_value(v) <= hi
                                         : x == floor(x) && fabs(x) < 0x1p53 && x >= (double)lo && x <= (double)hi;
    if (!fits) return dt_json_bad(r, key, v, expected);
    *out = json_is_integer(v) ? (int64_t)json_integer_value(v) : (int64_t)x;
    return DT_OK;
}

dt_err dt_json_real(const reader *r, const json_t *obj, const char *key, double lo, double hi, double *out)
{
    const json_t *v = dt_json_get(obj, key);
    if (!v) return DT_OK;
    const double x = json_number_value(v);
    char expected[96];
    snprintf(expected, sizeof expected, "a number from %g to %g", lo, hi);
    if (!json_is_number(v) || !(x >= lo && x <= hi)) return dt_json_bad(r, key, v, expected);
    *out = x;
    return DT_OK;
}

dt_err dt_json_bool(const reader *r, const json_t *obj, const char *key, bool *out)
{
    const json_t *v = dt_json_get(obj, key);
    if (!v) return DT_OK;
    if (!json_is_boolean(v)) return dt_json_bad(r, key, v, "true or false");
    *out = json_is_true(v);
    return DT_OK;
}

dt_err dt_json_string(const reader *r, const json_t *obj, const char *key, const char **out)
{
    const json_t *v = dt_json_get(obj, key);
    if (!v) return DT_OK;
    if (!json_is_string(v)) return dt_json_bad(r, key, v, "a string");
    *out = json_string_value(v);
    return DT_OK;
}
