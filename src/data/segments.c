/* segments.c - the records of algorithms.md A.1. What a record is shows in its keys; every value is checked to be what it should be, because a record
 * that is silently half read trains on the wrong thing. */
#include "segments.h"
#include <stdlib.h>
#include <string.h>

dt_err dt_segments_add(dt_segments *s, const char *text, size_t nbytes, bool target, bool eos)
{
    if (nbytes == 0 && !eos) return DT_OK;
    if (s->n == s->n_alloc) {
        const int n = s->n_alloc ? 2 * s->n_alloc : 32;
        dt_segment *more = realloc(s->items, (size_t)n * sizeof *more);
        DT_CHECK(more, DT_ERR_MEMORY, "no memory for a record of %d pieces", n);
        s->items = more;
        s->n_alloc = n;
    }
    s->items[s->n++] = (dt_segment){text, nbytes, target, eos};
    return DT_OK;
}

void dt_segments_free(dt_segments *s)
{
    free(s->items);
    *s = (dt_segments){0};
}

/* ---- turns ----------------------------------------------------------------------------------------------------------------- */

typedef struct builder {
    const dt_chat_template *form;
    bool append_eos;
    bool learn; /* assistant turns are targets */
    dt_segments *out;
    dt_role last_role;
} builder;

static dt_err add_json(builder *b, const json_t *text, bool target)
{
    return dt_segments_add(b->out, json_string_value(text), json_string_length(text), target, false);
}

static dt_err add_constant(builder *b, const char *text, bool target)
{
    return dt_segments_add(b->out, text, strlen(text), target, false);
}

static dt_err begin_turn(builder *b, dt_role role)
{
    b->last_role = role;
    return add_constant(b, b->form->turns[role].prefix, false);
}

static dt_err end_turn(builder *b, dt_role role)
{
    const dt_turn_form *t = &b->form->turns[role];
    const bool target = role == DT_ROLE_ASSISTANT && b->learn;
    if (role == DT_ROLE_ASSISTANT && b->form->eos_ends_turn && b->append_eos)
        DT_TRY(dt_segments_add(b->out, "", 0, target, true));
    else
        DT_TRY(add_constant(b, t->end, target));
    return add_constant(b, t->after, false);
}

static dt_err end_chat(builder *b)
{
    if (!b->append_eos || b->form->eos_ends_turn) return DT_OK;
    return dt_segments_add(b->out, "", 0, b->last_role == DT_ROLE_ASSISTANT && b->learn, true);
}

/* A text, or a list of parts of type text. */
static dt_err add_content(builder *b, const json_t *content, bool target, size_t turn)
{
    if (json_is_string(content)) return add_json(b, content, target);
    DT_CHECK(json_is_array(content), DT_ERR_DATA, "message %zu: content: expected a text", turn);
    size_t i;
    const json_t *part;
    json_array_foreach(content, i, part)
    {
        const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
        DT_CHECK(json_is_string(text) && (!type || (json_is_string(type) && strcmp(json_string_value(type), "text") == 0)),
                 DT_ERR_DATA, "message %zu: part %zu of its content: expected {\"type\": \"text\", \"text\": ...}", turn, i);
        DT_TRY(add_json(b, text, target));
    }
    return DT_OK;
}

static dt_err find_role(const char *name, size_t turn, dt_role *role)
{
    static const struct {
        const char *name;
        dt_role role;
    } roles[] = {{"system", DT_ROLE_SYSTEM},
                 {"developer", DT_ROLE_SYSTEM},
                 {"user", DT_ROLE_USER},
                 {"human", DT_ROLE_USER},
                 {"assistant", DT_ROLE_ASSISTANT},
                 {"gpt", DT_ROLE_ASSISTANT},
                 {"function_call", DT_ROLE_ASSISTANT},
                 {"tool", DT_ROLE_TOOL},
                 {"function", DT_ROLE_TOOL},
                 {"observation", DT_ROLE_TOOL}};
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
        if (strcmp(roles[i].name, name) == 0) return *role = roles[i].role, DT_OK;
    return dt_fail(
        DT_ERR_DATA,
        "message %zu: unknown role \"%s\": expected system, user, assistant or tool (human, gpt, observation, function_call)",
        turn, name);
}

static dt_err add_turn(builder *b, const json_t *message, const char *role_key, const char *text_key, size_t turn)
{
    const json_t *name = json_object_get(message, role_key), *content = json_object_get(message, text_key);
    DT_CHECK(json_is_string(name) && content, DT_ERR_DATA, "message %zu: expected {\"%s\": ..., \"%s\": ...}", turn, role_key,
             text_key);
    dt_role role = DT_ROLE_USER;
    DT_TRY(find_role(json_string_value(name), turn, &role));
    DT_TRY(begin_turn(b, role));
    DT_TRY(add_content(b, content, role == DT_ROLE_ASSISTANT && b->learn, turn));
    return end_turn(b, role);
}

static dt_err add_turns(builder *b, const json_t *messages, const char *what, const char *role_key, const char *text_key)
{
    DT_CHECK(json_is_array(messages) && json_array_size(messages) > 0, DT_ERR_DATA, "%s: expected a list of messages", what);
    size_t i;
    const json_t *message;
    json_array_foreach(messages, i, message) DT_TRY(add_turn(b, message, role_key, text_key, i));
    return DT_OK;
}

/* ---- kinds of records --------------------------------------------------------------------------------------------------------- */

static dt_err optional_text(const json_t *record, const char *key, const json_t **text)
{
    *text = json_object_get(record, key);
    if (json_is_null(*text)) *text = NULL;
    DT_CHECK(!*text || json_is_string(*text), DT_ERR_DATA, "%s: expected a text", key);
    if (*text && json_string_length(*text) == 0) *text = NULL;
    return DT_OK;
}

static dt_err sharegpt(builder *b, const json_t *record)
{
    const json_t *system, *tools;
    DT_TRY(optional_text(record, "system", &system));
    DT_TRY(optional_text(record, "tools", &tools));
    if (system || tools) {
        DT_TRY(begin_turn(b, DT_ROLE_SYSTEM));
        if (system) DT_TRY(add_json(b, system, false));
        if (system && tools) DT_TRY(add_constant(b, "\n\n", false));
        if (tools) DT_TRY(add_json(b, tools, false));
        DT_TRY(end_turn(b, DT_ROLE_SYSTEM));
    }
    DT_TRY(add_turns(b, json_object_get(record, "conversations"), "conversations", "from", "value"));
    return end_chat(b);
}

static dt_err chat(builder *b, const json_t *record, const char *key)
{
    DT_TRY(add_turns(b, json_object_get(record, key), key, "role", "content"));
    return end_chat(b);
}

static dt_err prompt_completion(builder *b, const json_t *prompt, const json_t *completion)
{
    if (json_is_array(prompt) && json_is_array(completion)) {
        b->learn = false;
        DT_TRY(add_turns(b, prompt, "prompt", "role", "content"));
        b->learn = true;
        DT_TRY(add_turns(b, completion, "completion", "role", "content"));
        return end_chat(b);
    }
    DT_CHECK(json_is_string(prompt) && json_is_string(completion), DT_ERR_DATA,
             "prompt and completion: expected two texts or two lists of messages");
    DT_TRY(add_json(b, prompt, false));
    DT_TRY(add_json(b, completion, true));
    return b->append_eos ? dt_segments_add(b->out, "", 0, true, true) : DT_OK;
}

static dt_err instruction(builder *b, const json_t *record)
{
    const json_t *question = json_object_get(record, "instruction"), *input, *answer = json_object_get(record, "output");
    if (!answer) answer = json_object_get(record, "response");
    DT_CHECK(json_is_string(question), DT_ERR_DATA, "instruction: expected a text");
    DT_CHECK(json_is_string(answer), DT_ERR_DATA, "output (or response): expected a text");
    DT_TRY(optional_text(record, "input", &input));
    DT_TRY(begin_turn(b, DT_ROLE_USER));
    DT_TRY(add_json(b, question, false));
    if (input) DT_TRY(add_constant(b, "\n", false));
    if (input) DT_TRY(add_json(b, input, false));
    DT_TRY(end_turn(b, DT_ROLE_USER));
    DT_TRY(begin_turn(b, DT_ROLE_ASSISTANT));
    DT_TRY(add_json(b, answer, true));
    DT_TRY(end_turn(b, DT_ROLE_ASSISTANT));
    return end_chat(b);
}

static dt_err plain_text(builder *b, const json_t *record)
{
    const json_t *text = json_object_get(record, "text");
    DT_CHECK(json_is_string(text), DT_ERR_DATA, "text: expected a text");
    DT_TRY(add_json(b, text, true));
    return b->append_eos ? dt_segments_add(b->out, "", 0, true, true) : DT_OK;
}

static bool has(const json_t *record, const char *key) { return json_object_get(record, key) != NULL; }

static dt_err unknown_record(const json_t *record)
{
    char keys[200] = "";
    size_t n = 0;
    for (void *it = json_object_iter((json_t *)record); it && n < sizeof keys; it = json_object_iter_next((json_t *)record, it))
        n += (size_t)snprintf(keys + n, sizeof keys - n, "%s%s", n ? ", " : "", json_object_iter_key(it));
    return dt_fail(
        DT_ERR_DATA,
        "expected a record with text, messages, conversations, conversation, prompt and completion, or instruction and output; "
        "found the keys: %s",
        keys[0] ? keys : "(none)");
}

bool dt_record_is_text(const json_t *r)
{
    return has(r, "text") && !has(r, "messages") && !has(r, "conversations") && !has(r, "conversation") &&
           !has(r, "completion") && !has(r, "instruction");
}

dt_err dt_record_segments(const json_t *record, const dt_chat_template *form, bool append_eos, dt_segments *out)
{
    builder b = {.form = form, .append_eos = append_eos, .learn = true, .out = out};
    out->n = 0;
    DT_CHECK(json_is_object(record), DT_ERR_DATA, "expected a JSON object");
    if (has(record, "messages")) return chat(&b, record, "messages");
    if (has(record, "conversations")) return sharegpt(&b, record);
    if (has(record, "conversation")) return chat(&b, record, "conversation");
    if (has(record, "prompt") && has(record, "completion"))
        return prompt_completion(&b, json_object_get(record, "prompt"), json_object_get(record, "completion"));
    if (has(record, "instruction")) return instruction(&b, record);
    if (has(record, "text")) return plain_text(&b, record);
    return unknown_record(record);
}
