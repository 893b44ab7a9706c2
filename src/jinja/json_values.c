/* json_values.c - converts JSON to values, and values to JSON as Python's json.dumps. */
#include "jinja_private.h"

#include <math.h>

dt_jv dt_jv_from_json(dt_jctx *x, const json_t *json)
{
    dt_jv v = dt_jv_none();
    const char *key;
    json_t *value;
    size_t i;
    dt_jinja_enter(x);
    if (json_is_boolean(json)) v = dt_jv_bool(json_is_true(json));
    if (json_is_integer(json)) v = dt_jv_int(json_integer_value(json));
    if (json_is_real(json)) v = dt_jv_float(json_real_value(json));
    if (json_is_string(json)) v = dt_jv_string(json_string_value(json), json_string_length(json));
    if (json_is_array(json)) v = dt_jv_list(x, DT_J_LIST);
    if (json_is_object(json)) v = dt_jv_dict(x);
    json_array_foreach(json, i, value) dt_jv_append(x, v, dt_jv_from_json(x, value));
    json_object_foreach((json_t *)json, key, value)
        dt_jv_put(x, v, dt_jv_string(key, strlen(key)), dt_jv_from_json(x, value));
    dt_jinja_leave(x);
    return v;
}

/* \uXXXX, or two of them for a code point above U+FFFF. */
static void escape_beyond_ascii(char text[16], uint32_t code)
{
    const unsigned high = 0xd800 + ((code - 0x10000) >> 10 & 0x3ff), low = 0xdc00 + (code & 0x3ff);
    if (code < 0x10000)
        snprintf(text, 16, "\\u%04x", (unsigned)code);
    else
        snprintf(text, 16, "\\u%04x\\u%04x", high, low);
}

static void dump_string(dt_jctx *x, dt_jbuf *b, dt_jv v, bool ascii)
{
    static const char letters[] = "\"\\\n\r\t\f\b", names[] = "\"\\nrtfb";
    char text[16];
    dt_jbuf_say(x, b, "\"");
    for (size_t i = 0, n = 1; i < v.n; i += n) {
        const unsigned char c = (unsigned char)v.u.s[i];
        const char *found = c ? strchr(letters, c) : NULL;
        if (found)
            snprintf(text, sizeof text, "\\%c", names[found - letters]);
        else if (c < 0x20)
            snprintf(text, sizeof text, "\\u%04x", c);
        else if (c >= 0x80 && ascii)
            escape_beyond_ascii(text, dt_jinja_code(v.u.s + i, dt_jinja_char(v.u.s + i, v.n - i)));
        else
            snprintf(text, sizeof text, "%c", c);
        n = c >= 0x80 && ascii ? dt_jinja_char(v.u.s + i, v.n - i) : 1;
        dt_jbuf_say(x, b, text);
    }
    dt_jbuf_say(x, b, "\"");
}

typedef struct dumper {
    dt_jctx *x;
    const dt_jdump *how;
    dt_jbuf *b;
    int level;
} dumper;

static void dump(dumper *d, dt_jv v);
static void put_string(dumper *d, dt_jv s) { dt_jbuf_add(d->x, d->b, s.u.s, s.n); }

/* Start a new line if indenting. */
static void dump_line(dumper *d)
{
    const dt_jv indent = d->how->indent;
    if (indent.kind == DT_J_NONE) return;
    const int64_t n = indent.kind == DT_J_STRING ? 0 : dt_jv_to_int(d->x, indent, "tojson: indent");
    dt_jbuf_say(d->x, d->b, "\n");
    for (int level = 0; level < d->level; level++) {
        if (indent.kind == DT_J_STRING) dt_jbuf_add(d->x, d->b, indent.u.s, indent.n);
        for (int64_t i = 0; i < n; i++) dt_jbuf_say(d->x, d->b, " ");
    }
}

static void dump_between(dumper *d, size_t i)
{
    const bool lines = d->how->indent.kind != DT_J_NONE;
    if (i > 0) dt_jbuf_say(d->x, d->b, d->how->item ? d->how->item : lines ? "," : ", ");
    dump_line(d);
}

static void dump_end(dumper *d, bool any, const char *close)
{
    d->level--;
    if (any) dump_line(d);
    dt_jbuf_say(d->x, d->b, close);
}

static void dump_list(dumper *d, const dt_jlist *l)
{
    dt_jbuf_say(d->x, d->b, "[");
    d->level++;
    for (size_t i = 0; i < l->n; i++) {
        dump_between(d, i);
        dump(d, l->item[i]);
    }
    dump_end(d, l->n > 0, "]");
}

/* Keys that are not strings are converted to strings. */
static void dump_key(dumper *d, dt_jv key)
{
    dt_jbuf text = {0};
    dumper inner = {d->x, d->how, &text, 0};
    if (key.kind == DT_J_STRING) {
        dump_string(d->x, d->b, key, d->how->ascii);
        return;
    }
    dump(&inner, key);
    dump_string(d->x, d->b, dt_jbuf_value(&text), d->how->ascii);
}

static void dump_dict(dumper *d, dt_jv v)
{
    const dt_jlist *keys = dt_jv_items(d->x, v);
    if (d->how->sort) {
        dt_jv exact = dt_jv_bool(true);
        const char *name = "case_sensitive";
        const dt_jargs args = {.value = &exact, .key = &name, .n = 1};
        key = dt_jv_items(d->x, dt_jinja_apply(d->x, dt_jfunction_find(dt_jfilters, "sort"), v, &args))->item;
    }
    dt_jbuf_say(d->x, d->b, "{");
    d->level++;
    for (size_t i = 0; i < keys->n; i++) {
        dump_between(d, i);
        dump_key(d, keys->item[i]);
        dt_jbuf_say(d->x, d->b, d->how->pair ? d->how->pair : ": ");
        dump(d, *dt_jv_get(d->x, v, keys->item[i]));
    }
    dump_end(d, keys->n > 0, "}");
}

static void dump(dumper *d, dt_jv v)
{
    dt_jinja_enter(d->x);
    if (v.kind == DT_J_NONE)
        dt_jbuf_say(d->x, d->b, "null");
    else if (v.kind == DT_J_BOOL)
        dt_jbuf_say(d->x, d->b, v.u.b ? "true" : "false");
    else if (v.kind == DT_J_STRING)
        dump_string(d->x, d->b, v, d->how->ascii);
    else if (v.kind == DT_J_LIST || v.kind == DT_J_TUPLE)
        dump_list(d, v.u.list);
    else if (v.kind == DT_J_DICT)
        dump_dict(d, v);
    else if (v.kind == DT_J_FLOAT && !isfinite(v.u.f))
        dt_jbuf_say(d->x, d->b, isnan(v.u.f) ? "NaN" : v.u.f > 0 ? "Infinity" : "-Infinity");
    else if (dt_jv_is_number(v))
        put_string(d, dt_jv_str(d->x, v));
    else
        dt_jinja_fail(d->x, "tojson: a value of type %s cannot be written as JSON", dt_jv_type(v));
    dt_jinja_leave(d->x);
}

dt_jv dt_jv_to_json(dt_jctx *x, dt_jv v, const dt_jdump *how)
{
    dt_jbuf b = {0};
    dumper d = {x, how, &b, 0};
    dump(&d, v);
    return dt_jbuf_value(&b);
}
