/* calls.c - how a template writes thoughts and tools. What another program's Jinja text does is unknown, so opening a
 * template renders test conversations. The end of an answer's calls is found by a second evaluation in which the last
 * call has one argument more: the common beginning of both texts ends after the arguments. All answers share a few
 * evaluations, so the time is linear in the length of the conversation. */
#include "chat_private.h"

#include "dtrain/text/space.h"

#include <stdlib.h>
#include <string.h>

static const char tool_name[] = "probe_tool", question[] = "Probe a tool?", answer[] = "probe answered",
                  result[] = "probe result", value[] = "probe value", key[] = "probe_key";

json_t *dt_chat_test_tools(void)
{
    return json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s, s:s}}, s:[s]}}}]", "type", "function", "function", "name",
                     tool_name, "description", "d", "parameters", "type", "object", "properties", "x", "type", "string",
                     "description", "d", "required", "x");
}

static json_t *test_calls(bool text)
{
    json_t *arguments = text ? json_sprintf("{\"x\": \"%s\"}", value) : json_pack("{s:s}", "x", value);
    return json_pack("[{s:s, s:s, s:{s:s, s:o}}]", "type", "function", "id", DT_CHAT_CALL_ID, "function", "name",
                     tool_name, "arguments", arguments);
}

static bool has_items(const char *text, size_t n) { return n > 0 && text[n - 1] != '{'; }

/* Arguments as JSON text without the brace at the end, and without white space before it. */
static size_t without_end(const char *text)
{
    const char *close = strrchr(text, '}');
    return dt_space_trimmed(text, close ? (size_t)(close - text) : strlen(text));
}

static json_t *longer_text(const char *text)
{
    const size_t n = without_end(text);
    return json_sprintf("%.*s%s\"%s\": 1%s", (int)n, text, has_items(text, n) ? ", " : "", DT_CHAT_END_MARK, text + n);
}

/* Does the last call have arguments? */
static bool has_arguments(const json_t *calls)
{
    const json_t *last = json_array_get(calls, json_array_size(calls) - 1),
                 *arguments = json_object_get(json_object_get(last, "function"), "arguments");
    const char *text = json_string_value(arguments);
    return text ? has_items(text, without_end(text)) : json_object_size(arguments) > 0;
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

/* Evaluate with one argument more in the last call of answer `only`, or of all answers with calls (-1). */
static dt_err evaluate_longer(const dt_chat *c, const dt_message *messages, int n, const json_t *tools, int only,
                              dt_jinja_result *r)
{
    dt_message *changed = malloc((size_t)n * sizeof *changed);
    bool failed = !changed;
    *r = (dt_jinja_result){0};
    if (changed) memcpy(changed, messages, (size_t)n * sizeof *changed);
    for (int i = 0; i < n && changed; i++)
        if (messages[i].calls && (only < 0 || only == i))
            failed |= !(changed[i].calls = with_argument(messages[i].calls));
    const dt_err err = failed ? dt_fail(DT_ERR_MEMORY, "out of memory for the calls of a conversation")
                              : dt_chat_evaluate(c, changed, n, tools, 0, 0, r);
    for (int i = 0; i < n && changed; i++)
        if (changed[i].calls != messages[i].calls) json_decref((json_t *)changed[i].calls);
    free(changed);
    return err;
}

/* Find the end of answer i's arguments, and the length of one argument more. *found false: the template leaves out or
 * changes the calls. */
static dt_err measure(const dt_chat *c, const dt_message *messages, int n, const json_t *tools, int i,
                      const dt_jinja_result *text, size_t *end, size_t *more, bool *found)
{
    dt_jinja_result r;
    size_t at = 0;
    const dt_err err = evaluate_longer(c, messages, n, tools, i, &r);
    while (err == DT_OK && at < text->nbytes && at < r.nbytes && text->text[at] == r.text[at]) at++;
    const size_t left = text->nbytes - at;
    *end = at;
    *found = err == DT_OK && r.nbytes > text->nbytes && memcmp(text->text + at, r.text + r.nbytes - left, left) == 0;
    *more = *found ? r.nbytes - text->nbytes : 0;
    dt_jinja_result_free(&r);
    return err;
}

/* Find the ends of all answers' arguments in r, in which each has one argument more. False: lengths do not fit. */
static bool walk(const dt_message *messages, int n, const dt_jinja_result *text, const dt_jinja_result *r,
                 const size_t more[2], dt_jinja_part *gap)
{
    size_t at = 0, in_r = 0;
    for (int i = 0; i < n; i++) {
        if (!messages[i].calls) continue;
        while (at < text->nbytes && in_r < r->nbytes && text->text[at] == r->text[in_r]) at++, in_r++;
        gap[i].to = at;
        in_r += more[has_arguments(messages[i].calls)];
    }
    return in_r <= r->nbytes && text->nbytes - at == r->nbytes - in_r &&
           memcmp(text->text + at, r->text + in_r, text->nbytes - at) == 0;
}

/* One argument more has the same length in all calls that have arguments, and in all others. Each of the two lengths is
 * therefore measured once, and all ends are found in one evaluation. If a template writes other lengths, every answer
 * is measured. */
dt_err dt_chat_find_calls(const dt_chat *c, const dt_message *messages, int n, const json_t *tools,
                          const dt_jinja_result *text, dt_jinja_part *gap, int *lost)
{
    size_t more[2] = {0};
    int n_left = 0;
    *lost = -1;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < n; i++) {
            size_t *const of = messages[i].calls ? &more[has_arguments(messages[i].calls)] : NULL;
            bool found;
            if (pass == 0 && of && *of > 0) n_left++;
            if (!of || (pass == 0 && *of > 0)) continue;
            DT_TRY(measure(c, messages, n, tools, i, text, &gap[i].to, of, &found));
            if (!found) return *lost = i, DT_OK;
        }
        if (n_left == 0 || pass == 1) return DT_OK;
        dt_jinja_result r;
        const dt_err err = evaluate_longer(c, messages, n, tools, -1, &r);
        const bool fits = err == DT_OK && walk(messages, n, text, &r, more, gap);
        dt_jinja_result_free(&r);
        if (fits || err == DT_ERR_MEMORY) return err;
        if (err != DT_OK) dt_error_clear();
    }
    return DT_OK;
}

/* ---- opening a template ------------------------------------------------------------------------------------------ */

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
    DT_TRY(dt_chat_try(c, talk, 2, NULL, 0, 0, &r));
    c->writes_thoughts = (r.text && strstr(r.text, thought)) || strstr(c->text, "reasoning_content");
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
        DT_TRY(dt_chat_try(c, talk + from, 2 - from, tools, 0, 0, &r));
        *(from ? &c->reads_tools : &c->reads_tools_in_system) =
            r.text ? strstr(r.text, tool_name) != NULL : c->reads_tools;
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
        talk[1].content = tries[k];
        DT_TRY(dt_chat_try(c, talk, 2, tools, 0, 0, &r));
        const char *last = r.text ? strstr(r.text, question) : NULL;
        c->writes_calls = last && strstr(last, value) && !strstr(last, "None");
        if (c->writes_calls) c->call_content = tries[k];
        dt_jinja_result_free(&r);
    }
    return DT_OK;
}

static dt_err look_after_call(dt_chat *c, const dt_message *talk, const json_t *tools)
{
    dt_jinja_result r;
    dt_jinja_part gap[2];
    int lost;
    DT_TRY(dt_chat_evaluate(c, talk, 2, tools, 0, 0, &r));
    const dt_err err = dt_chat_find_calls(c, talk, 2, tools, &r, gap, &lost);
    if (err == DT_OK && lost < 0) c->after_call = strdup(r.text + gap[1].to);
    dt_jinja_result_free(&r);
    return dt_chat_unless_refused(err);
}

/* Calls in texts that the model generates have the form of those that the template writes. It is known if a call can be
 * read back. */
static dt_err look_at_form(dt_chat *c, const dt_message *talk, const json_t *tools)
{
    dt_message named[] = {talk[0], talk[1]};
    dt_jinja_result r = {0};
    int n_bad;
    json_t *calls = json_deep_copy(talk[1].calls), *function = json_object_get(json_array_get(calls, 0), "function"),
           *arguments = json_pack("{s:s, s:i}", key, value, "n", 7), *read = NULL;
    char *text = c->call_text && arguments ? json_dumps(arguments, 0) : NULL;
    const bool made =
        json_object_set_new(function, "arguments", text ? json_string(text) : json_incref(arguments)) == 0;
    named[1].calls = calls;
    dt_err err = made ? dt_chat_try(c, named, 2, tools, 0, 0, &r) : dt_fail(DT_ERR_MEMORY, "out of memory for a test");
    const char *asked = r.text ? strstr(r.text, question) : NULL, *written = asked ? asked + strlen(question) : "";
    if (err == DT_OK) err = dt_call_form_find(&c->calls, written, c->header, tool_name, key, value);
    if (err == DT_OK) err = dt_chat_read_calls(c, NULL, written, &read, &n_bad);
    function = json_object_get(json_array_get(read, 0), "function");
    if (json_array_size(read) != 1 || !json_equal(json_object_get(function, "arguments"), arguments))
        dt_call_form_free(&c->calls);
    dt_jinja_result_free(&r);
    free(text);
    json_decref(read);
    json_decref(arguments);
    json_decref(calls);
    return err;
}

/* The text between a tool's result and the answer: up to the end of what add_generation_prompt adds, or the text before
 * an answer. */
static dt_err look_after_result(dt_chat *c, const dt_message *talk, const json_t *tools)
{
    dt_jinja_result asked, answered = {0};
    DT_TRY(dt_chat_try(c, talk, 3, tools, DT_CHAT_GENERATE, 0, &asked));
    const dt_err err = asked.text ? dt_chat_try(c, talk, 4, tools, 0, 0, &answered) : DT_OK;
    const char *from = asked.text ? strstr(asked.text, result) : NULL,
               *first = answered.text ? strstr(answered.text, result) : NULL,
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
    memcpy(plain, talk, sizeof plain);
    if (!c->writes_calls) plain[1] = talk[3];
    DT_TRY(dt_chat_try(c, plain, 4, tools, 0, 0, &r));
    c->omits_results = r.text && !strstr(r.text, result);
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
        err = look_at_form(c, talk, tools);
        if (err == DT_OK) err = look_after_call(c, talk, tools);
        if (err == DT_OK) err = look_after_result(c, talk, tools);
    }
    if (err == DT_OK) err = look_at_results(c, talk, tools);
    json_decref(tools);
    json_decref(texts);
    json_decref(calls);
    return err;
}
