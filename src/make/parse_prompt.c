/* parse_prompt.c - prompt records: {prompt}, a text or messages, or {question, answer}. A question is a
 * user's turn. The answer is kept as plain text for the reward, and all other fields as JSON. */
#include "record_kinds.h"
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Other kinds have prompts, too, so that this one must be requested, or no other form match. */
static bool is_prompt(const json_t *json, bool any)
{
    return !any && (dt_has(json, "prompt") || (dt_has(json, "question") && dt_has(json, "answer")));
}

static dt_err add_answer(dt_parsed_record *r, const json_t *answer)
{
    if (!answer || json_is_null(answer)) return DT_OK;
    r->has_second = true;
    if (json_is_string(answer)) return dt_add_json_text(&r->side[DT_SIDE_SECOND].pieces, answer, true);
    DT_CHECK(json_is_number(answer) || json_is_boolean(answer), DT_ERR_DATA, "answer: expected a text or a number");
    free(r->owned);
    r->owned = json_dumps(answer, JSON_ENCODE_ANY);
    DT_CHECK(r->owned, DT_ERR_MEMORY, "out of memory for an answer");
    return dt_pieces_text(&r->side[DT_SIDE_SECOND].pieces, r->owned, strlen(r->owned), true);
}

/* Copy a value with image bytes (of a row or a data: URI) replaced by null. NULL: no memory. */
static json_t *without_bytes(json_t *value)
{
    const bool object = json_is_object(value), list = json_is_array(value);
    if (json_object_get(value, DT_IMAGE_OF_ROW)) return json_null();
    if (json_is_string(value) && strncasecmp(json_string_value(value), "data:image/", 11) == 0) return json_null();
    if (!object && !list) return json_incref(value);
    json_t *copy = object ? json_object() : json_array(), *one;
    const char *key;
    size_t i;
    bool ok = copy != NULL;
    if (object)
        json_object_foreach(value, key, one) ok = ok && json_object_set_new(copy, key, without_bytes(one)) == 0;
    else
        json_array_foreach(value, i, one) ok = ok && json_array_append_new(copy, without_bytes(one)) == 0;
    if (ok) return copy;
    json_decref(copy);
    return NULL;
}

/* Keep all fields except those that a reward function receives anyway. */
static dt_err keep_fields(dt_parsed_record *r, const json_t *json)
{
    static const char *const others[] = {"prompt", "prompt_ids", "completion", "completion_ids"};
    json_t *copy = without_bytes((json_t *)json);
    DT_CHECK(copy, DT_ERR_MEMORY, "out of memory for the fields of a record");
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) json_object_del(copy, others[i]);
    const bool any = json_object_size(copy) > 0;
    if (any) r->fields = json_dumps(copy, JSON_COMPACT);
    json_decref(copy);
    DT_CHECK(!any || r->fields, DT_ERR_MEMORY, "out of memory for the fields of a record");
    return DT_OK;
}

/* Render the messages, after the system message of the record. */
static dt_err render(dt_parsed_record *r, const json_t *json, const dt_rules *rules)
{
    DT_TRY(dt_begin_with_system(&r->messages[0], json));
    return dt_render_side(r, DT_SIDE_FIRST, rules, DT_CHAT_GENERATE | (rules->opt->no_think ? DT_CHAT_NO_THINK : 0));
}

static dt_err add_question(dt_parsed_record *r, const json_t *json, const json_t *text, const dt_rules *rules)
{
    dt_messages *m = &r->messages[0];
    DT_TRY(dt_add_history(m, json));
    DT_TRY(dt_add_turn(m, DT_ROLE_USER, text));
    return render(r, json, rules);
}

static dt_err parse_prompt(dt_parsed_record *r, const json_t *json, const dt_rules *rules, int which)
{
    const json_t *prompt = json_object_get(json, "prompt"), *question;
    DT_TRY(keep_fields(r, json));
    DT_TRY(add_answer(r, json_object_get(json, "answer")));
    if (!prompt) {
        DT_TRY(dt_required_text(json, "question", &question));
        return add_question(r, json, question, rules);
    }
    if (json_is_array(prompt)) {
        DT_TRY(dt_messages_parse(&r->messages[0], prompt, "prompt", "role", "content"));
        DT_CHECK(r->messages[0].item[r->messages[0].n - 1].role != DT_ROLE_ASSISTANT, DT_ERR_DATA,
                 "prompt: expected a question at the end, found an answer");
        DT_TRY(dt_check_context(json, true));
        return render(r, json, rules);
    }
    DT_CHECK(json_is_string(prompt), DT_ERR_DATA, "prompt: expected a text or a list of messages");
    if (rules->opt->as_chat) return add_question(r, json, prompt, rules);
    DT_TRY(dt_check_context(json, false));
    r->side[0].wrap = &rules->wrap;
    return dt_add_json_text(&r->side[0].pieces, prompt, true);
}

static bool is_empty(const dt_sample *s, const uint8_t *mask) { return s->n[0] == 0; }

const dt_record_kind dt_records_prompts = {.description = "of a prompt",
                                           .missing = "a prompt",
                                           .lacking = "a prompt",
                                           .advice = "",
                                           .noun = "prompts",
                                           .is = is_prompt,
                                           .only_form = DT_FORM_PROMPT,
                                           .parse = parse_prompt,
                                           .is_empty = is_empty,
                                           .truncate = DT_TRUNCATE_END,
                                           .images = true};
