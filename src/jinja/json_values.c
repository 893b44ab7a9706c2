/* json_values.c - converts JSON to values, and values to text: as Python's json.dumps and str. */
#include "jinja_private.h"

#include "dtrain/text/unicode.h"
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

/* ---- numbers and strings ----------------------------------------------------------------------------------------- */

/* Shortest digits that round-trip, formatted as Python's repr. */
static void put_float(dt_jctx *x, dt_jbuf *b, double f, bool python)
{
    char text[64], *e;
    if (!isfinite(f)) {
        const char *infinite = f > 0 ? (python ? "inf" : "Infinity") : (python ? "-inf" : "-Infinity");
        dt_jbuf_say(x, b, !isnan(f) ? infinite : python ? "nan" : "NaN");
        return;
    }
    int digits = 1;
    do snprintf(text, sizeof text, "%.*e", digits - 1, f);
    while (strtod(text, NULL) != f && digits++ < 17);
    const int exponent = (e = strchr(text, 'e')) ? (int)strtol(e + 1, NULL, 10) : 0;
    if (exponent < -4 || exponent >= 16) {
        snprintf(e, 16, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else {
        const int after = digits - 1 - exponent;
        snprintf(text, sizeof text, "%.*f", after > 0 ? after : 1, f);
    }
    dt_jbuf_say(x, b, text);
}

/* As str.isprintable: excludes separators except the space, control, format and unassigned characters. */
static bool is_printable(uint32_t c) { return c == ' ' || dt_unicode_category(c) < DT_CAT_ZS; }

/* As repr of a string: single quotes, unless it contains single and no double quotes. */
static void put_quoted(dt_jctx *x, dt_jbuf *b, dt_jv v)
{
    const char quote = v.n > 0 && memchr(v.u.s, '\'', v.n) && !memchr(v.u.s, '"', v.n) ? '"' : '\'';
    char text[16];
    dt_jbuf_add(x, b, &quote, 1);
    for (size_t i = 0, n; i < v.n; i += n) {
        n = dt_jinja_char(v.u.s + i, v.n - i);
        const uint32_t c = dt_jinja_code(v.u.s + i, n);
        if (c == (unsigned char)quote || c == '\\')
            snprintf(text, sizeof text, "\\%c", (int)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            snprintf(text, sizeof text, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (!is_printable(c))
            snprintf(text, sizeof text, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
        else
            snprintf(text, sizeof text, "%.*s", (int)n, v.u.s + i);
        dt_jbuf_say(x, b, text);
    }
    dt_jbuf_add(x, b, &quote, 1);
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

/* ---- values ------------------------------------------------------------------------------------------------------ */

typedef struct dumper {
    dt_jctx *x;
    const dt_jdump *how;
    dt_jbuf *b;
    int level;
} dumper;

static void dump(dumper *d, dt_jv v);

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

static void dump_list(dumper *d, dt_jv v)
{
    const dt_jlist *l = v.u.list;
    const bool tuple = d->how->python && v.kind == DT_J_TUPLE;
    dt_jbuf_say(d->x, d->b, tuple ? "(" : "[");
    d->level++;
    for (size_t i = 0; i < l->n; i++) {
        dump_between(d, i);
        dump(d, l->item[i]);
    }
    dump_end(d, l->n > 0, !tuple ? "]" : l->n == 1 ? ",)" : ")");
}

/* In JSON, keys that are not strings are converted to strings. */
static void dump_key(dumper *d, dt_jv key)
{
    dt_jbuf text = {0};
    dumper inner = {d->x, d->how, &text, 0};
    if (key.kind == DT_J_STRING || d->how->python) {
        dump(d, key);
        return;
    }
    dump(&inner, key);
    dump_string(d->x, d->b, dt_jbuf_value(&text), d->how->ascii);
}

static void dump_dict(dumper *d, dt_jv v)
{
    const dt_jdict *all = v.u.dict;
    const dt_jv *key = all->key;
    if (d->how->sort) {
        dt_jv exact = dt_jv_bool(true);
        const char *name = "case_sensitive";
        const dt_jargs args = {.value = &exact, .key = &name, .n = 1};
        key = dt_jv_items(d->x, dt_jinja_apply(d->x, dt_jfunction_find(dt_jfilters, "sort"), v, &args))->item;
    }
    dt_jbuf_say(d->x, d->b, "{");
    d->level++;
    for (size_t i = 0; i < all->n; i++) {
        dump_between(d, i);
        dump_key(d, key[i]);
        dt_jbuf_say(d->x, d->b, d->how->pair ? d->how->pair : ": ");
        dump(d, d->how->sort ? *dt_jv_get(d->x, v, key[i]) : all->value[i]);
    }
    dump_end(d, all->n > 0, "}");
}

static void dump_value(dumper *d, dt_jv v)
{
    const bool python = d->how->python;
    char text[32];
    switch (v.kind) {
    case DT_J_NONE:
        dt_jbuf_say(d->x, d->b, python ? "None" : "null");
        return;
    case DT_J_BOOL:
        dt_jbuf_say(d->x, d->b, python ? (v.u.b ? "True" : "False") : v.u.b ? "true" : "false");
        return;
    case DT_J_INT:
        snprintf(text, sizeof text, "%lld", (long long)v.u.i);
        dt_jbuf_say(d->x, d->b, text);
        return;
    case DT_J_FLOAT:
        put_float(d->x, d->b, v.u.f, python);
        return;
    case DT_J_STRING:
        if (python)
            put_quoted(d->x, d->b, v);
        else
            dump_string(d->x, d->b, v, d->how->ascii);
        return;
    case DT_J_LIST:
    case DT_J_TUPLE:
        dump_list(d, v);
        return;
    case DT_J_DICT:
        dump_dict(d, v);
        return;
    default:
        if (python && v.kind == DT_J_UNDEFINED && !d->x->strict) {
            dt_jbuf_say(d->x, d->b, "Undefined");
            return;
        }
        if (python && v.kind == DT_J_UNDEFINED) dt_jinja_undefined(d->x, v, "it has no text");
        dt_jinja_fail(d->x,
                      python ? "values of type %s cannot be converted to text"
                             : "tojson: a value of type %s cannot be written as JSON",
                      dt_jv_type(v));
    }
}

static void dump(dumper *d, dt_jv v)
{
    dt_jinja_enter(d->x);
    dump_value(d, v);
    dt_jinja_leave(d->x);
}

dt_jv dt_jv_to_json(dt_jctx *x, dt_jv v, const dt_jdump *how)
{
    dt_jbuf b = {0};
    dumper d = {x, how, &b, 0};
    dump(&d, v);
    return dt_jbuf_value(&b);
}

dt_jv dt_jv_str(dt_jctx *x, dt_jv v)
{
    const dt_jdump how = {.indent = dt_jv_none(), .python = true};
    if (v.kind == DT_J_STRING) return v;
    if (v.kind == DT_J_UNDEFINED && !x->strict) return dt_jv_string("", 0);
    return dt_jv_to_json(x, v, &how);
}
