/* calls.c - how a template writes thoughts and tools. What another program's Jinja text does is unknown, so opening a
 * template renders test conversations. The end of an answer's calls is found by a second evaluation in which the last
 * call has one argument more: the common beginning of both texts ends after the arguments. */
#include "chat_private.h"

#include "dtrain/text/space.h"

#include <stdlib.h>
#include <string.h>

static const char tool_name[] = "probe_tool", question[] = "Probe a tool?", answer[] = "probe answered",
                  result[] = "probe result", value[] = "probe value";

static json_t *list_of_one(json_t *one)
{
    json_t *list = one ? json_array() : NULL;
    if (list && json_array_append_new(list, one) == 0) return list;
    json_decref(list);
    return NULL;
}

json_t *dt_chat_test_tools(void)
{
    return list_of_one(json_pack("{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s, s:s}}, s:[s]}}}", "type", "function",
                                 "function", "name", tool_name, "description", "d", "parameters", "type", "object",
                                 "properties", "x", "type", "string", "description", "d", "required", "x"));
}

static json_t *test_calls(bool text)
{
    json_t *arguments = text ? json_sprintf("{\"x\": \"%s\"}", value) : json_pack("{s:s}", "x", value);
    return list_of_one(json_pack("{s:s, s:s, s:{s:s, s:o}}", "type", "function", "id", DT_CHAT_CALL_ID, "function",
                                 "name", tool_name, "arguments", arguments));
}

/* Arguments as JSON text with one more. */
static json_t *longer_text(const char *text)
{
    const char *close = strrchr(text, '}');
    const size_t n = close ? (size_t)(close - text) : strlen(text), words = dt_space_trimmed(text, n);
    const char *comma = words > 0 && text[words - 1] != '{' ? ", " : "";
    return json_sprintf("%.*s%s\"%s\": 1%s", (int)words, text, comma, DT_CHAT_END_MARK, text + words);
}

/* The calls with one argument more in the last one; NULL: no memory. */
static json_t *with_argument(const json_t *calls)
{
    json_t *copy = json_deep_copy(calls),
           *function = json_object_get(json_array_get(copy, json_array_size(copy) - 1), "function"),
           *arguments = json_object_get(function, "arguments");
    const char *text = json_string_value(arguments);
    const int failed = json_is_object(arguments)
                           ? json_object_set_new(arguments, DT_CHAT_END_MARK, json_integer(1))
                           : json_object_set_new(function, "arguments", longer_text(text ? text : ""));
    if (!failed) return copy;
    json_decref(copy);
    return NULL;
}

dt_err dt_chat_find_call(const dt_chat *c, const dt_message *messages, int n, const json_t *tools, int i,
                         const dt_jinja_result *text, size_t *at, bool *found)
{
    dt_message *changed = malloc((size_t)n * sizeof *changed);
    json_t *calls = changed ? with_argument(messages[i].calls) : NULL;
    dt_jinja_result r = {0};
    dt_err err = DT_ERR_MEMORY;
    *at = 0;
    if (calls) {
        memcpy(changed, messages, (size_t)n * sizeof *changed);
        changed[i].calls = calls;
        err = dt_chat_evaluate(c, changed, n, tools, 0, 0, &r);
    } else {
        err = dt_fail(DT_ERR_MEMORY, "out of memory for the calls of a conversation");
    }
    while (err == DT_OK && *at < text->nbytes && *at < r.nbytes && text->text[*at] == r.text[*at]) ++*at;
    const size_t left = text->nbytes - *at;
    *found = err == DT_OK && r.nbytes >= text->nbytes && r.nbytes - left > *at &&
             memcmp(text->text + *at, r.text + r.nbytes - left, left) == 0;
    dt_jinja_result_free(&r);
    json_decref(calls);
    free(changed);
    return err;
}

/* ---- opening a template ------------------------------------------------------------------------------------------ */

/* Evaluate a test conversation, or part of it. False: the template refuses it. */
static dt_err try(const dt_chat *c, const dt_message *talk, int n, const json_t *tools, unsigned flags,
                  dt_jinja_result *r, bool *taken)
{
    const dt_err err = dt_chat_evaluate(c, talk, n, tools, flags, 0, r);
    *taken = err == DT_OK;
    if (err == DT_ERR_DATA) dt_error_clear();
    return err == DT_ERR_DATA ? DT_OK : err;
}

static dt_err look_at_thoughts(dt_chat *c)
{
    static const char thought[] = "probe thought";
    const dt_message talk[] = {{.role = DT_ROLE_USER, .text = question, .nbytes = strlen(question)},
                               {.role = DT_ROLE_ASSISTANT,
                                .text = answer,
                                .nbytes = strlen(answer),
                                .thoughts = thought,
                                .n_thoughts = strlen(thought),
                                .thoughts_key = "reasoning"}};
    dt_jinja_result r;
    bool taken;
    DT_TRY(try(c, talk, 2, NULL, 0, &r, &taken));
    c->writes_thoughts = (taken && strstr(r.text, thought)) || strstr(c->text, "reasoning_content");
    dt_jinja_result_free(&r);
    return DT_OK;
}

/* Some templates write tools only in a system message. */
static dt_err look_at_tools(dt_chat *c, const dt_message *asked, const json_t *tools)
{
    static const char system[] = "probe system";
    const dt_message talk[] = {{.role = DT_ROLE_SYSTEM, .text = system, .nbytes = strlen(system)}, *asked};
    for (int from = 1; from >= 0; from--) {
        dt_jinja_result r;
        bool taken;
        DT_TRY(try(c, talk + from, 2 - from, tools, 0, &r, &taken));
        *(from ? &c->reads_tools : &c->reads_tools_in_system) =
            taken ? strstr(r.text, tool_name) != NULL : c->reads_tools;
        dt_jinja_result_free(&r);
    }
    return DT_OK;
}

/* The content of an answer with calls that the template takes without writing it: a text, null, or none. */
static dt_err look_at_content(dt_chat *c, dt_message *talk, const json_t *tools)
{
    static const dt_content tries[] = {DT_CONTENT_TEXT, DT_CONTENT_NONE, DT_CONTENT_NULL};
    for (size_t k = 0; k < sizeof tries / sizeof tries[0] && !c->writes_calls; k++) {
        dt_jinja_result r;
        bool taken;
        talk[1].content = tries[k];
        DT_TRY(try(c, talk, 2, tools, 0, &r, &taken));
        const char *last = taken ? strstr(r.text, question) : NULL;
        c->writes_calls = last && strstr(last, value) && !strstr(last, "None");
        if (c->writes_calls) c->call_content = tries[k];
        dt_jinja_result_free(&r);
    }
    return DT_OK;
}

static dt_err look_after_call(dt_chat *c, const dt_message *talk, const json_t *tools)
{
    dt_jinja_result r;
    bool found;
    size_t at;
    DT_TRY(dt_chat_evaluate(c, talk, 2, tools, 0, 0, &r));
    const dt_err err = dt_chat_find_call(c, talk, 2, tools, 1, &r, &at, &found);
    if (err == DT_OK && found && !(c->after_call = strdup(r.text + at))) found = false;
    dt_jinja_result_free(&r);
    if (err == DT_ERR_DATA) dt_error_clear();
    return err == DT_ERR_DATA ? DT_OK : err;
}

/* The text between a tool's result and the answer: up to the end of what add_generation_prompt adds, or the text before
 * an answer. */
static dt_err look_after_result(dt_chat *c, const dt_message *talk, const json_t *tools)
{
    dt_jinja_result asked, answered = {0};
    bool taken, both = false;
    DT_TRY(try(c, talk, 3, tools, DT_CHAT_GENERATE, &asked, &taken));
    const dt_err err = taken ? try(c, talk, 4, tools, 0, &answered, &both) : DT_OK;
    const char *from = taken ? strstr(asked.text, result) : NULL, *first = both ? strstr(answered.text, result) : NULL,
               *to = first ? strstr(first, answer) : NULL;
    if (to) {
        const size_t n = (size_t)(to - first) - strlen(result), n_asked = from ? strlen(from + strlen(result)) : 0;
        const bool same = from && n_asked <= n && memcmp(from, first, strlen(result) + n_asked) == 0;
        c->result_header = strndup(first + strlen(result), same && n_asked > 0 ? n_asked : n);
    }
    dt_jinja_result_free(&asked);
    dt_jinja_result_free(&answered);
    return err;
}

/* Without calls if the template writes none. */
static dt_err look_at_results(dt_chat *c, const dt_message *talk, const json_t *tools)
{
    dt_message plain[4];
    dt_jinja_result r;
    bool taken;
    memcpy(plain, talk, sizeof plain);
    if (!c->writes_calls) plain[1] = talk[3];
    DT_TRY(try(c, plain, 4, tools, 0, &r, &taken));
    c->omits_results = taken && !strstr(r.text, result);
    dt_jinja_result_free(&r);
    return DT_OK;
}

dt_err dt_chat_look_at_tools(dt_chat *c)
{
    json_t *tools = dt_chat_test_tools(), *calls = test_calls(false), *texts = test_calls(true);
    dt_message talk[] = {
        {.role = DT_ROLE_USER, .text = question, .nbytes = strlen(question)},
        {.role = DT_ROLE_ASSISTANT, .text = "", .calls = calls},
        {.role = DT_ROLE_TOOL, .text = result, .nbytes = strlen(result), .name = tool_name, .call_id = DT_CHAT_CALL_ID},
        {.role = DT_ROLE_ASSISTANT, .text = answer, .nbytes = strlen(answer)}};
    dt_err err = tools && calls && texts ? look_at_thoughts(c) : dt_fail(DT_ERR_MEMORY, "out of memory for a test");
    if (err == DT_OK) err = look_at_tools(c, talk, tools);
    if (err == DT_OK && !c->reads_tools) json_decref(tools), tools = NULL;
    if (err == DT_OK) err = look_at_content(c, talk, tools);
    if (err == DT_OK && !c->writes_calls) {
        talk[1].calls = texts;
        err = look_at_content(c, talk, tools);
        c->call_text = c->writes_calls;
    }
    if (err == DT_OK && c->writes_calls) {
        talk[1].content = c->call_content;
        err = look_after_call(c, talk, tools);
        if (err == DT_OK) err = look_after_result(c, talk, tools);
    }
    if (err == DT_OK) err = look_at_results(c, talk, tools);
    json_decref(tools);
    json_decref(texts);
    json_decref(calls);
    return err;
}
