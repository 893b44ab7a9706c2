/* spec.c - typed access to JSON values. jansson accepts any value anywhere. Each key is therefore read with its type
 * and range, so that an invalid value is reported with its location. */
#include "dtrain/io/spec.h"
#include "dtrain/io/io.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

dt_err dt_spec_load(dt_spec *root, const char *file, size_t max_nbytes, unsigned flags, char **text, size_t *nbytes)
{
    char *bytes;
    size_t n;
    json_t *value;
    *root = (dt_spec){.file = file};
    if (text) *text = NULL;
    DT_TRY(dt_read_file(file, max_nbytes, &bytes, &n));
    dt_err err = dt_json_parse(&value, file, bytes, n, flags);
    root->value = value;
    if (err == DT_OK && !json_is_object(value)) err = dt_spec_bad(root, NULL, "an object");
    if (err != DT_OK) dt_spec_unload(root);
    if (err == DT_OK && text) {
        *text = bytes;
        *nbytes = n;
    } else {
        free(bytes);
    }
    return err;
}

void dt_spec_unload(dt_spec *root)
{
    json_decref((json_t *)root->value);
    *root = (dt_spec){0};
}

dt_err(dt_spec_bad)(const dt_spec *s, const char *key, const char *expected)
{
    const json_t *value = key ? json_object_get(s->value, key) : s->value;
    char *text = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    const dt_err err = dt_fail(s->err ? s->err : DT_ERR_DATA, "%s%s%s%s%s: expected %s, found %.80s%s", s->file,
                               s->where[0] || key ? ": " : "", s->where, key && s->where[0] ? "." : "", key ? key : "",
                               expected, text ? text : "nothing", text && strlen(text) > 80 ? "..." : "");
    free(text);
    return err;
}

bool dt_spec_get(const dt_spec *s, const char *key, dt_spec *child)
{
    const json_t *value = json_object_get(s->value, key);
    if (!value || json_is_null(value)) return false;
    dt_spec found = {.file = s->file, .err = s->err, .value = value};
    snprintf(found.where, sizeof found.where, "%.60s%s%.60s", s->where, s->where[0] ? "." : "", key);
    *child = found;
    return true;
}

bool dt_spec_has(const dt_spec *s, const char *key) { return dt_spec_get(s, key, &(dt_spec){0}); }

dt_spec dt_spec_item(const dt_spec *array, size_t i)
{
    dt_spec item = {.file = array->file, .err = array->err, .value = json_array_get(array->value, i)};
    snprintf(item.where, sizeof item.where, "%.100s[%zu]", array->where, i);
    return item;
}

dt_err dt_spec_bool(const dt_spec *s, const char *key, bool *out)
{
    dt_spec v;
    if (!dt_spec_get(s, key, &v)) return DT_OK;
    if (!json_is_boolean(v.value)) return dt_spec_bad(&v, NULL, "true or false");
    *out = json_is_true(v.value);
    return DT_OK;
}

/* U+0000 would end the C string. */
static dt_err text_of(const dt_spec *v, const char **out)
{
    *out = json_string_value(v->value);
    return strlen(*out) == json_string_length(v->value) ? DT_OK : dt_spec_bad(v, NULL, "a string without U+0000");
}

dt_err dt_spec_string(const dt_spec *s, const char *key, const char **out)
{
    dt_spec v;
    if (!dt_spec_get(s, key, &v)) return DT_OK;
    if (!json_is_string(v.value)) return dt_spec_bad(&v, NULL, "a string");
    return text_of(&v, out);
}

dt_err dt_spec_int(const dt_spec *s, const char *key, int64_t lo, int64_t hi, int64_t *out)
{
    dt_spec v;
    char expected[96];
    if (!dt_spec_get(s, key, &v)) return DT_OK;
    snprintf(expected, sizeof expected, "an integer from %" PRId64 " to %" PRId64, lo, hi);
    const bool is_integer = json_is_integer(v.value);
    const double x = json_number_value(v.value);
    const bool fits =
        is_integer ? json_integer_value(v.value) >= lo && json_integer_value(v.value) <= hi
                   : json_is_real(v.value) && x == floor(x) && fabs(x) < 0x1p53 && x >= (double)lo && x <= (double)hi;
    if (!fits) return dt_spec_bad(&v, NULL, expected);
    *out = is_integer ? (int64_t)json_integer_value(v.value) : (int64_t)x;
    return DT_OK;
}

dt_err dt_spec_real(const dt_spec *s, const char *key, double lo, double hi, double *out)
{
    dt_spec v;
    char expected[96];
    if (!dt_spec_get(s, key, &v)) return DT_OK;
    const double x = json_number_value(v.value);
    snprintf(expected, sizeof expected, "a number from %g to %g", lo, hi);
    if (!json_is_number(v.value) || !(x >= lo && x <= hi)) return dt_spec_bad(&v, NULL, expected);
    *out = x;
    return DT_OK;
}

dt_err dt_spec_need(const dt_spec *s, const char *key, json_type type, dt_spec *child)
{
    const char *expected = type == JSON_OBJECT ? "an object" : type == JSON_ARRAY ? "an array" : "a string";
    if (!dt_spec_get(s, key, child) || json_typeof(child->value) != type) return dt_spec_bad(s, key, expected);
    return DT_OK;
}

dt_err dt_spec_need_string(const dt_spec *s, const char *key, const char **out)
{
    dt_spec v;
    DT_TRY(dt_spec_need(s, key, JSON_STRING, &v));
    return text_of(&v, out);
}

dt_err dt_spec_need_bytes(const dt_spec *s, const char *key, const char **out, size_t *nbytes)
{
    dt_spec v;
    DT_TRY(dt_spec_need(s, key, JSON_STRING, &v));
    *out = json_string_value(v.value);
    *nbytes = json_string_length(v.value);
    return DT_OK;
}

static bool listed(const char *keys, const char *key)
{
    const size_t len = strlen(key);
    if (len == 0 || strchr(key, ' ')) return false;
    for (const char *k = keys; (k = strstr(k, key)); k += len)
        if ((k == keys || k[-1] == ' ') && (k[len] == ' ' || !k[len])) return true;
    return false;
}

dt_err dt_spec_only(const dt_spec *s, const char *keys)
{
    if (!json_is_object(s->value)) return dt_spec_bad(s, NULL, "an object");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)s->value, key, value) if (!json_is_null(value) && !listed(keys, key))
    {
        char expected[256];
        snprintf(expected, sizeof expected, "a known key (one of %s)", keys);
        return dt_spec_bad(s, key, expected);
    }
    return DT_OK;
}
