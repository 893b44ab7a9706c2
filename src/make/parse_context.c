/* parse_context.c - fields that accompany a conversation: a system message, tools, Alpaca's
 * history, an instruction and its input. */
#include "parse_record.h"
#include <stdlib.h>
#include <string.h>

dt_err dt_add_turn(dt_messages *m, dt_role role, const json_t *text)
{
    return dt_messages_add(m, role, json_string_value(text), json_string_length(text));
}

/* Concatenate two texts; the messages own the result. */
static dt_err join(dt_messages *m, const char *a, size_t n_a, const char *between, const char *b, size_t n_b,
                   const char **joined, size_t *n)
{
    const size_t n_between = strlen(between);
    char *text = malloc(n_a + n_between + n_b + 1);
    DT_TRY(dt_messages_own(m, text));
    if (n_a) memcpy(text, a, n_a);
    memcpy(text + n_a, between, n_between);
    if (n_b) memcpy(text + n_a + n_between, b, n_b);
    *joined = text;
    *n = n_a + n_between + n_b;
    return DT_OK;
}

dt_err dt_begin_with_system(dt_messages *m, const json_t *record)
{
    const json_t *system;
    const dt_message *own = m->n > 0 && m->item[0].role == DT_ROLE_SYSTEM ? &m->item[0] : NULL;
    DT_TRY(dt_messages_take_tools(m, record));
    DT_TRY(dt_record_system(record, &system));
    if (!system) return DT_OK;
    const char *text = json_string_value(system);
    const size_t n = json_string_length(system);
    DT_CHECK(!own || (own->nbytes == n && memcmp(own->text, text, n) == 0), DT_ERR_DATA,
             "system: the messages already begin with a system message: expected only one");
    return own ? DT_OK : dt_messages_add_first(m, DT_ROLE_SYSTEM, text, n);
}

dt_err dt_add_history(dt_messages *m, const json_t *record)
{
    const json_t *list = json_object_get(record, "history"), *turn;
    size_t i;
    if (!dt_field_is_set(list)) return DT_OK;
    DT_CHECK(json_is_array(list), DT_ERR_DATA, "history: expected [[question, answer], ...]");
    json_array_foreach(list, i, turn)
    {
        const json_t *question = json_array_get(turn, 0), *answer = json_array_get(turn, 1);
        DT_CHECK(json_array_size(turn) == 2 && json_is_string(question) && json_is_string(answer), DT_ERR_DATA,
                 "history: turn %zu: expected [question, answer]", i);
        DT_TRY(dt_add_turn(m, DT_ROLE_USER, question));
        DT_TRY(dt_add_turn(m, DT_ROLE_ASSISTANT, answer));
    }
    return DT_OK;
}

/* Find Alpaca's input, or Dolly's context. */
static dt_err find_input(const json_t *record, const json_t **input)
{
    const json_t *context;
    DT_TRY(dt_optional_text(record, "input", input));
    DT_TRY(dt_optional_text(record, "context", &context));
    DT_CHECK(!*input || !context, DT_ERR_DATA, "input and context: expected only one of them");
    if (!*input) *input = context;
    return DT_OK;
}

dt_err dt_add_instruction(dt_messages *m, const json_t *record, const dt_rules *rules, bool *has_input)
{
    const json_t *question, *input;
    DT_TRY(dt_required_text(record, "instruction", &question));
    DT_TRY(find_input(record, &input));
    *has_input = input != NULL;
    if (!input) return dt_add_turn(m, DT_ROLE_USER, question);
    const char *text = "";
    size_t n = 0;
    DT_TRY(join(m, json_string_value(question), json_string_length(question),
                rules->chat ? dt_chat_input_join(rules->chat) : "\n", json_string_value(input),
                json_string_length(input), &text, &n));
    return dt_messages_add(m, DT_ROLE_USER, text, n);
}

dt_err dt_check_context(const json_t *record, bool lists)
{
    const json_t *system;
    if (lists) return dt_record_check_fields(record, DT_FIELDS_HISTORY);
    DT_CHECK(!dt_field_is_set(json_object_get(record, "history")), DT_ERR_DATA,
             "history: plain text cannot have earlier turns; write the record as a conversation with --as-chat");
    DT_TRY(dt_record_system(record, &system));
    DT_CHECK(!system, DT_ERR_DATA,
             "system: plain text cannot have a system message; write the record as a conversation with --as-chat");
    return DT_OK;
}
