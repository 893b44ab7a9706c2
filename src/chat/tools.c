/* tools.c - descriptions of tools and tool calls, in the forms of OpenAI and ShareGPT. Templates receive OpenAI's form
 * with arguments as objects. A template that does not write tools or calls receives them as text. */
#include "chat_private.h"
#include "dtrain/text/utf8.h"

#include <stdlib.h>
#include <string.h>

static dt_err no_memory(void) { return dt_fail(DT_ERR_MEMORY, "out of memory for the tools of a conversation"); }

/* Parse a text that may be JSON. NULL: it is not. */
static json_t *parse(const char *text, size_t nbytes)
{
    json_t *value = NULL;
    if (dt_json_parse(&value, "", text, nbytes, DT_JSON_NUL | DT_JSON_LAST_KEY | DT_JSON_RECORD) != DT_OK)
        dt_error_clear();
    return value;
}

/* The messages own a value. Takes the reference, also on failure. */
static dt_err own(dt_messages *m, json_t *value)
{
    if (!m->values) m->values = json_array();
    return value && json_array_append_new(m->values, value) == 0 ? DT_OK : no_memory();
}

/* What `read` returns for each item of a list, or for one value: a new reference. NULL: for one it returns NULL, the
 * list is empty, or no memory. */
static json_t *list_of(const json_t *value, json_t *(*read)(const json_t *one))
{
    json_t *list = json_array();
    const size_t n = json_is_array(value) ? json_array_size(value) : 1;
    bool ok = list && n > 0;
    for (size_t i = 0; i < n && ok; i++) {
        json_t *one = read(json_is_array(value) ? json_array_get(value, i) : value);
        ok = one && json_array_append_new(list, one) == 0;
    }
    if (ok) return list;
    json_decref(list);
    return NULL;
}

static dt_err check_texts(const json_t *value, const char *key)
{
    DT_CHECK(!dt_json_has_bytes(value), DT_ERR_DATA,
             "%s: expected texts, found binary values; store them in the Parquet file as strings", key);
    return DT_OK;
}

/* ---- descriptions ------------------------------------------------------------------------------------------------ */

static bool is_function(const json_t *value) { return json_is_string(json_object_get(value, "name")); }

/* A tool with {name, ...} as {type: function, function: {name, ...}}. */
static json_t *read_tool(const json_t *tool)
{
    const bool bare = is_function(tool) && !json_object_get(tool, "function");
    if (!json_is_object(tool)) return NULL;
    return bare ? json_pack("{s:s, s:O}", "type", "function", "function", tool) : json_incref((json_t *)tool);
}

dt_err dt_messages_take_tools(dt_messages *m, const json_t *record)
{
    static const char *const keys[] = {"tools", "functions"};
    const char *found = NULL;
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        json_t *tools = json_object_get(record, keys[k]), *parsed = NULL;
        if (!dt_field_is_set(tools)) continue;
        DT_CHECK(!found, DT_ERR_DATA, "tools and functions: expected only one of them");
        found = keys[k];
        DT_TRY(check_texts(tools, keys[k]));
        json_decref(m->tools);
        if (json_is_string(tools)) {
            m->tools_text = json_string_value(tools);
            parsed = parse(m->tools_text, json_string_length(tools));
            m->tools = parsed ? list_of(parsed, read_tool) : NULL;
            json_decref(parsed);
            continue;
        }
        m->tools = list_of(tools, read_tool);
        DT_CHECK(m->tools, DT_ERR_DATA, "%s: expected a list of {\"name\": ..., \"parameters\": ...}, or its JSON text",
                 keys[k]);
        char *text = json_dumps(tools, JSON_PRESERVE_ORDER);
        DT_TRY(dt_messages_own(m, text));
        m->tools_text = text;
    }
    return DT_OK;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* The function of a call as a copy with its arguments as an object, if they are a text of one. Other text is kept.
 * NULL: not a call. */
static json_t *function_of(const json_t *call)
{
    const json_t *inner = json_object_get(call, "function"), *from = json_is_object(inner) ? inner : call;
    json_t *function = is_function(from) ? json_copy((json_t *)from) : NULL;
    const json_t *given = json_object_get(function, "arguments");
    const bool empty = !given || json_is_null(given) || (json_is_string(given) && json_string_length(given) == 0);
    json_t *arguments = empty                   ? json_object()
                        : json_is_string(given) ? parse(json_string_value(given), json_string_length(given))
                                                : NULL;
    const bool fits = empty || json_is_string(given) || json_is_object(given);
    if (function && json_is_object(arguments)) json_object_set(function, "arguments", arguments);
    json_decref(arguments);
    if (fits) return function;
    json_decref(function);
    return NULL;
}

/* A call as {id?, type: function, function: {name, arguments}}. NULL: not a call, or no memory. */
static json_t *read_call(const json_t *call)
{
    json_t *function = function_of(call);
    const bool whole = function && json_object_get(call, "function");
    json_t *copy = !function ? NULL : whole ? json_copy((json_t *)call) : json_pack("{s:s}", "type", "function");
    const json_t *id = whole ? NULL : json_object_get(call, "id");
    bool ok = copy && json_object_set(copy, "function", function) == 0;
    if (ok && id) ok = json_object_set(copy, "id", (json_t *)id) == 0 && json_object_del(function, "id") == 0;
    json_decref(function);
    if (ok) return copy;
    json_decref(copy);
    return NULL;
}

json_t *dt_calls_of(const json_t *value) { return list_of(value, read_call); }

dt_err dt_message_read_calls(dt_messages *m, const json_t *message, size_t turn, dt_role role, const json_t **calls,
                             const json_t **given)
{
    static const char *const keys[] = {"tool_calls", "function_call"};
    *calls = *given = NULL;
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        const json_t *value = json_object_get(message, keys[k]);
        if (!dt_field_is_set(value)) continue;
        DT_CHECK(role == DT_ROLE_ASSISTANT, DT_ERR_DATA, "message %zu: %s: only answers can have tool calls", turn,
                 keys[k]);
        DT_CHECK(!*calls, DT_ERR_DATA, "message %zu: tool_calls and function_call: expected only one of them", turn);
        DT_TRY(dt_error_prefix(check_texts(value, keys[k]), "message %zu: ", turn));
        json_t *parsed = json_is_string(value) ? parse(json_string_value(value), json_string_length(value)) : NULL,
               *list = dt_calls_of(parsed ? parsed : value);
        if (parsed) DT_TRY(own(m, parsed));
        *given = parsed ? parsed : value;
        DT_CHECK(list, DT_ERR_DATA,
                 "message %zu: %s: expected {\"function\": {\"name\": TEXT, \"arguments\": {...}}}%s", turn, keys[k],
                 k == 0 ? " in a list" : ", or the inner object");
        DT_TRY(own(m, list));
        *calls = list;
    }
    return DT_OK;
}

/* ---- ShareGPT: calls without ids, as the text of a message ------------------------------------------------------- */

static const char think[] = "<think>", end_of_thoughts[] = "</think>";

/* Templates of some models require ids of nine letters and digits. */
static json_t *id_of(int number) { return json_sprintf("call%05d", number); }

/* Text of a message of role function_call: the calls, after thoughts if there are any. Other text remains an answer. */
dt_err dt_message_read_call_text(dt_messages *m, dt_message *out)
{
    const char *text = out->text, *end = text + out->nbytes, *calls = text;
    const bool thinks = out->nbytes >= sizeof think && strncmp(text, think, sizeof think - 1) == 0;
    const char *close = thinks ? memmem(text, out->nbytes, end_of_thoughts, sizeof end_of_thoughts - 1) : NULL;
    if (close) calls = close + sizeof end_of_thoughts - 1;
    json_t *value = parse(calls, (size_t)(end - calls)), *list = value ? dt_calls_of(value) : NULL, *call;
    bool failed = false;
    size_t i;
    if (value) DT_TRY(own(m, value));
    out->given_calls = value;
    out->call_is_text = !list;
    if (!list) return DT_OK;
    json_array_foreach(list, i, call)
    {
        m->n_calls++;
        failed |= !json_object_get(call, "id") && json_object_set_new(call, "id", id_of(m->n_calls)) != 0;
    }
    DT_TRY(own(m, list));
    if (failed) return no_memory();
    out->calls = list;
    out->content = DT_CONTENT_ANY;
    if (!close) return DT_OK;
    out->thoughts = text + sizeof think - 1;
    out->thoughts_key = "reasoning_content";
    out->n_thoughts = (size_t)(close - out->thoughts);
    while (out->n_thoughts > 0 && *out->thoughts == '\n') out->thoughts++, out->n_thoughts--;
    while (out->n_thoughts > 0 && out->thoughts[out->n_thoughts - 1] == '\n') out->n_thoughts--;
    return DT_OK;
}

/* A result without an id belongs to the first call without a result. */
dt_err dt_message_find_call(dt_messages *m, dt_message *out)
{
    int number = 0;
    if (out->call_id || m->n_results >= m->n_calls) return DT_OK;
    m->n_results++;
    for (int k = 0; k < m->n; k++) {
        const json_t *call;
        size_t i;
        if (!m->item[k].calls || m->item[k].content != DT_CONTENT_ANY) continue;
        json_array_foreach(m->item[k].calls, i, call)
        {
            if (++number != m->n_results) continue;
            out->call_id = json_string_value(json_object_get(call, "id"));
            if (!out->name) out->name = json_string_value(json_object_get(json_object_get(call, "function"), "name"));
        }
    }
    return DT_OK;
}

/* ---- templates without tools ------------------------------------------------------------------------------------- */

/* Join two texts with a separator. The messages own the result. */
static dt_err join(dt_messages *m, dt_message *to, const char *between, const char *text)
{
    dt_text both = {0};
    dt_text_append(&both, to->text, to->nbytes);
    if (to->nbytes > 0) dt_text_append(&both, between, strlen(between));
    dt_text_append(&both, text, strlen(text));
    char *whole = dt_text_finish(&both, &to->nbytes);
    DT_TRY(dt_messages_own(m, whole));
    to->text = whole;
    to->parts = NULL;
    return DT_OK;
}

/* Write calls as lines of JSON. Texts of ShareGPT are used as they are. */
static dt_err write_calls(dt_messages *m, dt_message *to)
{
    const json_t *call;
    size_t i;
    const json_t *calls = to->calls;
    to->calls = NULL;
    to->call_is_text = true;
    if (to->content == DT_CONTENT_ANY) to->thoughts = NULL, to->n_thoughts = 0;
    const bool written = to->content == DT_CONTENT_ANY;
    to->content = DT_CONTENT_TEXT;
    json_array_foreach(calls, i, call)
    {
        char *text = written ? NULL : json_dumps(json_object_get(call, "function"), JSON_PRESERVE_ORDER);
        if (written) break;
        DT_TRY(dt_messages_own(m, text));
        DT_TRY(join(m, to, "\n", text));
    }
    return DT_OK;
}

/* Pass arguments as JSON text: as it is in the record, or written as json.dumps does. */
static dt_err write_arguments(dt_messages *m, dt_message *to)
{
    json_t *copy = json_deep_copy(to->calls), *call;
    bool failed = false;
    size_t i;
    json_array_foreach(copy, i, call)
    {
        const json_t *one = json_is_array(to->given_calls) ? json_array_get(to->given_calls, i) : to->given_calls,
                     *inner = json_object_get(one, "function"),
                     *given = json_object_get(json_is_object(inner) ? inner : one, "arguments");
        json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
        if (json_is_string(arguments)) continue;
        char *text = json_is_string(given) && json_string_length(given) > 0 ? NULL : json_dumps(arguments, 0);
        failed |=
            json_object_set_new(function, "arguments", text ? json_string(text) : json_copy((json_t *)given)) != 0;
        free(text);
    }
    to->calls = copy;
    DT_TRY(own(m, copy));
    return failed ? no_memory() : DT_OK;
}

dt_err dt_messages_fit(dt_messages *m, const dt_chat *c)
{
    c = dt_chat_for(c, m->tools);
    const bool system = m->n > 0 && m->item[0].role == DT_ROLE_SYSTEM;
    if (m->tools && dt_chat_reads_tools(c, system)) m->tools_text = NULL;
    if (m->tools_text) {
        if (!system) DT_TRY(dt_messages_add_first(m, DT_ROLE_SYSTEM, "", 0));
        DT_TRY(join(m, &m->item[0], "\n\n", m->tools_text));
        m->tools_are_text = true;
        json_decref(m->tools);
        m->tools = NULL;
        m->tools_text = NULL;
    }
    for (int i = 0; i < m->n; i++) m->item[i].left_out = c->omits_results && m->item[i].role == DT_ROLE_TOOL;
    for (int i = 0; i < m->n; i++)
        if (m->item[i].calls)
            DT_TRY(!dt_chat_writes_calls(c) ? write_calls(m, &m->item[i])
                   : c->call_text           ? write_arguments(m, &m->item[i])
                                            : DT_OK);
    return DT_OK;
}
