/* json.c - dt_spec for readers of one flat object. */
#include "json.h"

static dt_spec spec_of(const reader *r, const json_t *value)
{
    return (dt_spec){.file = r->name, .err = r->err, .value = value};
}

dt_err dt_json_bad(const reader *r, const char *key, const json_t *value, const char *expected)
{
    dt_spec s = spec_of(r, value);
    snprintf(s.where, sizeof s.where, "%s", key);
    return dt_spec_bad(&s, NULL, expected);
}

const json_t *dt_json_get(const json_t *obj, const char *key)
{
    const json_t *v = json_object_get(obj, key);
    return v && !json_is_null(v) ? v : NULL;
}

dt_err dt_json_int(const reader *r, const json_t *obj, const char *key, int64_t lo, int64_t hi, int64_t *out)
{
    const dt_spec s = spec_of(r, obj);
    return dt_spec_int(&s, key, lo, hi, out);
}

dt_err dt_json_real(const reader *r, const json_t *obj, const char *key, double lo, double hi, double *out)
{
    const dt_spec s = spec_of(r, obj);
    return dt_spec_real(&s, key, lo, hi, out);
}

dt_err dt_json_bool(const reader *r, const json_t *obj, const char *key, bool *out)
{
    const dt_spec s = spec_of(r, obj);
    return dt_spec_bool(&s, key, out);
}

dt_err dt_json_string(const reader *r, const json_t *obj, const char *key, const char **out)
{
    const dt_spec s = spec_of(r, obj);
    return dt_spec_string(&s, key, out);
}
