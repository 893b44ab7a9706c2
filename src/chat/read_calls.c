/* read_calls.c - tool calls in the text of an answer. Their form is that of a call which the template has written: a
 * JSON value, a name before a JSON object, or a name before keys and values. White space may differ. */
#include "chat_private.h"
#include "dtrain/text/space.h"
#include <stdlib.h>
#include <string.h>

static const char tag[] = "<tool_call>", end_of_thoughts[] = "</think>", python[] = "<|python_tag|>";

static const char *without_space(const char *text) { return text + dt_space_before(text, strlen(text)); }

/* The JSON object or list at the start of a text, and its end. NULL: none. */
static json_t *json_at(const char *text, const char **end)
{
    json_error_t e;
    json_t *value = json_loadb(text, strlen(text), JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, &e);
    *end = value ? text + e.position : text;
    return value;
}

/* ---- the form ---------------------------------------------------------------------------------------------------- */

/* A new text of n bytes without white space around it. */
static char *trimmed(const char *text, size_t n)
{
    const size_t before = dt_space_before(text, n);
    return strndup(text + before, dt_space_trimmed(text + before, n - before));
}

/* The mark that ends a text of n bytes: what follows the last white space, from the last bracket on if it has one.
 * Empty after the header of an answer. */
static char *mark_before(const char *text, size_t n, const char *header)
{
    const size_t all = dt_space_trimmed(text, n), n_header = dt_space_trimmed(header, strlen(header));
    if (n_header > 0 && n_header <= all && memcmp(text + all - n_header, header, n_header) == 0) return strdup("");
    size_t from = all, bracket = all;
    while (from > 0 && !strchr(" \n\t\r", text[from - 1])) {
        from--;
        if (bracket == all && strchr("<[", text[from])) bracket = from;
    }
    if (bracket < all) from = bracket;
    return strndup(text + from, all - from);
}

/* The begin of the JSON value that contains a word; NULL: none. */
static const char *value_around(const char *text, const char *word)
{
    for (const char *at = text; at < word; at++) {
        const char *end;
        if (*at != '{' && *at != '[') continue;
        json_t *value = json_at(at, &end);
        json_decref(value);
        if (value && end > word) return at;
    }
    return NULL;
}

dt_err dt_call_form_find(dt_call_form *f, const char *text, const char *header, const char *name, const char *key,
                         const char *value)
{
    const char *at = strstr(text, name), *of_value = at ? strstr(at, value) : NULL,
               *of_key = of_value ? strstr(at, key) : NULL, *end = of_value ? of_value + strlen(value) : NULL;
    if (!of_key) return DT_OK;
    const char *json = value_around(text, at);
    f->kind = json ? DT_CALL_JSON : value_around(at, of_value) ? DT_CALL_NAMED : DT_CALL_PARTS;
    f->open = mark_before(text, (size_t)((json ? json : at) - text), header);
    DT_CHECK(f->open, DT_ERR_MEMORY, "out of memory for a chat template");
    if (f->kind != DT_CALL_PARTS) return DT_OK;
    const char *close = strchr(end, '>');
    at += strlen(name);
    f->key_open = mark_before(at, (size_t)(of_key - at), "");
    f->between = trimmed(of_key + strlen(key), (size_t)(of_value - of_key) - strlen(key));
    f->close = trimmed(end, close ? (size_t)(close + 1 - end) : 0);
    DT_CHECK(f->key_open && f->between && f->close, DT_ERR_MEMORY, "out of memory for a chat template");
    return DT_OK;
}

void dt_call_form_free(dt_call_form *f)
{
    free(f->open);
    free(f->key_open);
    free(f->between);
    free(f->close);
    *f = (dt_call_form){0};
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Some templates call the arguments parameters. */
static void rename_parameters(json_t *call)
{
    json_t *inner = json_object_get(call, "function"), *of = json_is_object(inner) ? inner : call,
           *parameters = json_object_get(of, "parameters");
    if (!parameters || json_object_get(of, "arguments")) return;
    json_object_set(of, "arguments", parameters);
    json_object_del(of, "parameters");
}

/* Calls from a JSON value, appended to a list. Takes the reference. False: it has none. */
static bool take(json_t *list, json_t *value)
{
    json_t *one, *calls;
    size_t i;
    if (json_is_object(value)) rename_parameters(value);
    json_array_foreach(value, i, one) rename_parameters(one);
    calls = value ? dt_calls_of(value) : NULL;
    bool valid = json_array_size(calls) > 0;
    json_array_foreach(calls, i, one) valid &=
        json_is_object(json_object_get(json_object_get(one, "function"), "arguments"));
    if (valid) json_array_extend(list, calls);
    json_decref(calls);
    json_decref(value);
    return valid;
}

static size_t name_length(const char *text)
{
    return strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-");
}

static json_t *call_of(const char *name, size_t n, json_t *arguments)
{
    return json_pack("{s:s%, s:o}", "name", name, n, "arguments", arguments ? arguments : json_object());
}

/* A value as text: a number, a list and so on if it is JSON, else the text. */
static json_t *value_of(const char *text, size_t n)
{
    json_t *value = json_loadb(text, n, JSON_DECODE_ANY, NULL);
    return value ? value : json_stringn(text, n);
}

/* Do the tools describe an argument as a text? */
static bool is_text(const json_t *tools, const char *name, size_t n, const char *key)
{
    const json_t *tool;
    size_t i;
    json_array_foreach(tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function"), *called = json_object_get(function, "name"),
                     *known = json_object_get(json_object_get(function, "parameters"), "properties"),
                     *type = json_object_get(json_object_get(known, key), "type");
        if (json_string_length(called) == n && memcmp(json_string_value(called), name, n) == 0)
            return json_is_string(type) && !strcmp(json_string_value(type), "string");
    }
    return false;
}

/* Arguments as keys and values, from the end of the call's name up to `limit`. */
static json_t *parts_of(const dt_call_form *f, const json_t *tools, const char *called, size_t n_called,
                        const char *limit, const char **end)
{
    const char *text = called + n_called;
    json_t *arguments = json_object();
    for (const char *at = text, *to; (at = strstr(at, f->key_open)) && at < limit; at = *end = to + strlen(f->close)) {
        const char *key = at + strlen(f->key_open), *between = strstr(key, f->between),
                   *value = between ? without_space(between + strlen(f->between)) : NULL;
        to = value ? strstr(value, f->close) : NULL;
        if (!to || to >= limit) break;
        char *name = trimmed(key, (size_t)(between - key));
        const size_t n = dt_space_trimmed(value, (size_t)(to - value));
        const bool plain = name && is_text(tools, called, n_called, name);
        if (name) json_object_set_new(arguments, name, plain ? json_stringn(value, n) : value_of(value, n));
        free(name);
    }
    return arguments;
}

/* The call after its mark. *end: out, where reading continues. */
static bool read_one(const dt_call_form *f, const json_t *tools, const char *text, json_t *list, const char **end)
{
    const char *name = without_space(text), *limit = *f->open ? strstr(name, f->open) : NULL;
    const size_t n = name_length(name);
    *end = text;
    if (!limit) limit = name + strlen(name);
    if (f->kind == DT_CALL_JSON) return take(list, json_at(name, end));
    if (n == 0) return false;
    *end = name + n;
    if (f->kind == DT_CALL_PARTS) return take(list, call_of(name, n, parts_of(f, tools, name, n, limit, end)));
    const char *brace = strchr(name + n, '{');
    json_t *arguments = brace && brace < limit ? json_at(brace, end) : NULL;
    return arguments && take(list, call_of(name, n, arguments));
}

/* Calls without a mark begin lines. */
static void read_lines(const char *text, json_t *list)
{
    const dt_call_form f = {.kind = DT_CALL_JSON, .open = (char *)""};
    while (*text) {
        const char *end, *at = without_space(text);
        if (strncmp(at, python, strlen(python)) == 0) at = without_space(at + strlen(python));
        if (strncmp(at, tag, strlen(tag)) == 0) at = without_space(at + strlen(tag));
        read_one(&f, NULL, at, list, &end);
        text = end + strcspn(end, "\n");
    }
}

bool dt_chat_knows_calls(const dt_chat *c)
{
    if (c->with_tools) c = c->with_tools;
    return !c->writes_calls || c->calls.kind != DT_CALL_UNKNOWN;
}

dt_err dt_chat_read_calls(const dt_chat *c, const json_t *tools, const char *text, json_t **calls, int *n_bad)
{
    if (c->with_tools) c = c->with_tools;
    const dt_call_form *f = &c->calls;
    *n_bad = 0;
    *calls = json_array();
    DT_CHECK(*calls, DT_ERR_MEMORY, "out of memory for tool calls");
    for (const char *end; (end = strstr(text, end_of_thoughts)); text = end + strlen(end_of_thoughts)) continue;
    if (!c->writes_calls || (f->kind != DT_CALL_UNKNOWN && !*f->open)) read_lines(text, *calls);
    if (f->kind == DT_CALL_UNKNOWN || !*f->open) return DT_OK;
    while ((text = strstr(text, f->open))) *n_bad += !read_one(f, tools, text + strlen(f->open), *calls, &text);
    return DT_OK;
}
