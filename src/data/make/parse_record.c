/* parse_record.c - the records of algorithms.md A.1 for pre-training and fine-tuning; those of two texts are in
 * parse_pair.c and parse_prompt.c. What a record is shows in its keys; every value is checked to be what it should be,
 * because a record that is silently half read trains on the wrong thing. */
#include "parse_record.h"
#include <stdlib.h>
#include <string.h>

/* ---- shared ------------------------------------------------------------------------------------------------------ */

bool dt_has(const json_t *record, const char *key) { return json_object_get(record, key) != NULL; }

dt_err dt_optional_text(const json_t *record, const char *key, const json_t **text)
{
    *text = json_object_get(record, key);
    if (json_is_null(*text)) *text = NULL;
    DT_CHECK(!*text || json_is_string(*text), DT_ERR_DATA, "%s: expected a text", key);
    if (*text && json_string_length(*text) == 0) *text = NULL;
    return DT_OK;
}

dt_err dt_required_text(const json_t *record, const char *key, const json_t **text)
{
    *text = json_object_get(record, key);
    DT_CHECK(json_is_string(*text), DT_ERR_DATA, "%s: expected a text", key);
    return DT_OK;
}

dt_err dt_add_json_text(dt_pieces *p, const json_t *text, bool target)
{
    return dt_pieces_text(p, json_string_value(text), json_string_length(text), target);
}

void dt_learn_completion(dt_messages *m, int first)
{
    for (int i = first; i < m->n; i++)
        m->item[i].learn = DT_LEARN_CONTENT | DT_LEARN_AFTER |
                           (i > first || m->item[i].role != DT_ROLE_ASSISTANT ? (unsigned)DT_LEARN_HEADER : 0);
}

/* The end of text stands behind an answer whose template ends it with no token of its own. */
dt_err dt_render_side(dt_parsed_record *r, dt_side side, const dt_rules *rules, unsigned flags)
{
    DT_CHECK(rules->chat, DT_ERR_USAGE, "%s", rules->why_no_chat);
    DT_TRY(dt_messages_place_images(&r->messages[side], r->images.n));
    const dt_messages *m = &r->messages[side];
    dt_text_side *s = &r->side[side];
    const dt_message *last = m->n > 0 ? &m->item[m->n - 1] : NULL;
    r->is_chat = true;
    s->wrap = dt_chat_wrap(rules->chat);
    s->eos =
        !(flags & DT_CHAT_GENERATE) && last && last->role == DT_ROLE_ASSISTANT && dt_chat_end_token(rules->chat) < 0;
    s->eos_target = s->eos && last->learn & DT_LEARN_CONTENT;
    return dt_chat_render(rules->chat, m->item, m->n, flags, &s->pieces);
}

static dt_err write_json(dt_parsed_record *r, const json_t *value, size_t *nbytes)
{
    free(r->owned);
    r->owned = json_dumps(value, JSON_ENCODE_ANY | JSON_PRESERVE_ORDER);
    DT_CHECK(r->owned, DT_ERR_MEMORY, "no memory for a value written as JSON");
    *nbytes = strlen(r->owned);
    return DT_OK;
}

/* ---- fine-tuning ------------------------------------------------------------------------------------------------- */

/* Which turns of a chat are trained on: all answers, or with mask completion the last one. */
static dt_err render_chat(dt_parsed_record *r, const dt_rules *rules)
{
    dt_messages *m = &r->messages[0];
    if (rules->captions) return dt_render_caption(r, rules);
    int last = m->n - 1;
    while (last >= 0 && m->item[last].role != DT_ROLE_ASSISTANT) last--;
    if (rules->mask == DT_MASK_COMPLETION && last >= 0) m->item[last].learn = DT_LEARN_CONTENT | DT_LEARN_AFTER;
    for (int i = 0; i < m->n && rules->mask != DT_MASK_COMPLETION; i++)
        if (m->item[i].role == DT_ROLE_ASSISTANT) m->item[i].learn = DT_LEARN_CONTENT;
    return dt_render_side(r, DT_SIDE_FIRST, rules, 0);
}

static dt_err read_chat(dt_parsed_record *r, const json_t *json, const char *key, const dt_rules *rules)
{
    DT_TRY(dt_messages_parse(&r->messages[0], json_object_get(json, key), key, "role", "content"));
    return render_chat(r, rules);
}

/* ShareGPT: tools stand in the system message, as text or as JSON. */
static dt_err add_system(dt_parsed_record *r, const json_t *json)
{
    const json_t *system, *tools = json_object_get(json, "tools");
    DT_TRY(dt_optional_text(json, "system", &system));
    size_t n_tools = 0;
    const char *tools_text = NULL;
    if (json_is_array(tools) || json_is_object(tools)) {
        DT_TRY(write_json(r, tools, &n_tools));
        tools_text = r->owned;
    } else {
        DT_TRY(dt_optional_text(json, "tools", &tools));
        if (tools) tools_text = json_string_value(tools), n_tools = json_string_length(tools);
    }
    if (!system && !tools_text) return DT_OK;
    if (!tools_text)
        return dt_messages_add(&r->messages[0], DT_ROLE_SYSTEM, json_string_value(system), json_string_length(system));
    const size_t n_system = system ? json_string_length(system) : 0, gap = system ? 2 : 0;
    char *joined = malloc(n_system + gap + n_tools + 1);
    DT_CHECK(joined, DT_ERR_MEMORY, "no memory for a system message");
    if (system) memcpy(joined, json_string_value(system), n_system);
    memcpy(joined + n_system, "\n\n", gap);
    memcpy(joined + n_system + gap, tools_text, n_tools);
    free(r->owned);
    r->owned = joined;
    return dt_messages_add(&r->messages[0], DT_ROLE_SYSTEM, joined, n_system + gap + n_tools);
}

static dt_err read_sharegpt(dt_parsed_record *r, const json_t *json, const dt_rules *rules)
{
    DT_TRY(add_system(r, json));
    const json_t *list = json_object_get(json, "conversations");
    const bool roles = dt_has(json_array_get(list, 0), "role"); /* both spellings are met under this key */
    DT_TRY(dt_messages_parse(&r->messages[0], list, "conversations", roles ? "role" : "from",
                             roles ? "content" : "value"));
    return render_chat(r, rules);
}

static dt_err render_completion(dt_parsed_record *r, int n_prompt, const dt_rules *rules)
{
    dt_messages *m = &r->messages[0];
    dt_learn_completion(m, n_prompt);
    for (int i = n_prompt; i < m->n && rules->mask == DT_MASK_ASSISTANT; i++)
        m->item[i].learn = m->item[i].role == DT_ROLE_ASSISTANT ? DT_LEARN_CONTENT : 0;
    return dt_render_side(r, DT_SIDE_FIRST, rules, 0);
}

static dt_err add_turn(dt_parsed_record *r, dt_role role, const json_t *text)
{
    return dt_messages_add(&r->messages[0], role, json_string_value(text), json_string_length(text));
}

/* {prompt, completion}: texts, or messages of which the completion's are the answer. */
static dt_err read_completion(dt_parsed_record *r, const json_t *json, const dt_rules *rules)
{
    const json_t *prompt = json_object_get(json, "prompt"), *completion = json_object_get(json, "completion");
    if (json_is_array(prompt) && json_is_array(completion)) {
        DT_TRY(dt_messages_parse(&r->messages[0], prompt, "prompt", "role", "content"));
        const int n_prompt = r->messages[0].n;
        DT_TRY(dt_messages_parse(&r->messages[0], completion, "completion", "role", "content"));
        return render_completion(r, n_prompt, rules);
    }
    DT_CHECK(json_is_string(prompt) && json_is_string(completion), DT_ERR_DATA,
             "prompt and completion: expected two texts or two lists of messages");
    if (rules->as_chat) {
        DT_TRY(add_turn(r, DT_ROLE_USER, prompt));
        DT_TRY(add_turn(r, DT_ROLE_ASSISTANT, completion));
        return render_completion(r, 1, rules);
    }
    dt_text_side *s = &r->side[0];
    s->wrap = &rules->wrap;
    s->eos = s->eos_target = true;
    DT_TRY(dt_add_json_text(&s->pieces, prompt, false));
    return dt_add_json_text(&s->pieces, completion, true);
}

/* {instruction, input, output}: a user's turn of instruction and input, joined as the template has it, and an
 * answer. */
static dt_err read_instruction(dt_parsed_record *r, const json_t *json, const dt_rules *rules)
{
    const json_t *question, *input, *answer = json_object_get(json, "output");
    if (!answer) answer = json_object_get(json, "response");
    DT_TRY(dt_required_text(json, "instruction", &question));
    DT_CHECK(json_is_string(answer), DT_ERR_DATA, "output (or response): expected a text");
    DT_TRY(dt_optional_text(json, "input", &input));
    const char *join = input && rules->chat ? dt_chat_input_join(rules->chat) : "\n";
    const size_t n_question = json_string_length(question), n_join = input ? strlen(join) : 0,
                 n_input = input ? json_string_length(input) : 0;
    free(r->owned);
    r->owned = malloc(n_question + n_join + n_input + 1);
    DT_CHECK(r->owned, DT_ERR_MEMORY, "no memory for an instruction of %zu bytes", n_question + n_input);
    memcpy(r->owned, json_string_value(question), n_question);
    memcpy(r->owned + n_question, join, n_join);
    if (input) memcpy(r->owned + n_question + n_join, json_string_value(input), n_input);
    const char *system = input && rules->chat ? dt_chat_input_system(rules->chat) : NULL;
    if (system) DT_TRY(dt_messages_add(&r->messages[0], DT_ROLE_SYSTEM, system, strlen(system)));
    DT_TRY(dt_messages_add(&r->messages[0], DT_ROLE_USER, r->owned, n_question + n_join + n_input));
    DT_TRY(add_turn(r, DT_ROLE_ASSISTANT, answer));
    return render_completion(r, system ? 2 : 1, rules);
}

static dt_err read_text(dt_parsed_record *r, const json_t *json, const dt_rules *rules)
{
    const json_t *text;
    DT_TRY(dt_required_text(json, "text", &text));
    r->side[0].wrap = &rules->wrap;
    r->side[0].eos = r->side[0].eos_target = true;
    return dt_add_json_text(&r->side[0].pieces, text, true);
}

dt_err dt_open_messages(json_t *record)
{
    static const char *const keys[] = {"messages", "conversations", "conversation"};
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        const json_t *text = json_object_get(record, keys[k]);
        const char *from = json_string_value(text);
        json_t *list;
        if (!from || from[strspn(from, " \t\r\n")] != '[') continue;
        DT_TRY(dt_error_prefix(
            dt_json_parse(&list, "", from, json_string_length(text), DT_JSON_NUL | DT_JSON_LAST_KEY | DT_JSON_RECORD),
            "%s: ", keys[k]));
        DT_CHECK(json_object_set_new(record, keys[k], list) == 0, DT_ERR_MEMORY, "no memory for %s", keys[k]);
    }
    return DT_OK;
}

/* ---- which form it is -------------------------------------------------------------------------------------------- */

static dt_err unknown_record(const json_t *record)
{
    char keys[200] = "";
    size_t n = 0;
    for (void *it = json_object_iter((json_t *)record); it && n < sizeof keys;
         it = json_object_iter_next((json_t *)record, it))
        n += (size_t)snprintf(keys + n, sizeof keys - n, "%s%s", n ? ", " : "", json_object_iter_key(it));
    return dt_fail(
        DT_ERR_DATA,
        "expected a record with text, messages, conversations, conversation, prompt and completion, instruction and "
        "output, chosen and rejected, prompt, or question and answer; found the keys: %s",
        keys[0] ? keys : "(none)");
}

static bool is_chat_record(const json_t *json)
{
    return dt_has(json, "messages") || dt_has(json, "conversations") || dt_has(json, "conversation") ||
           (dt_has(json, "prompt") && dt_has(json, "completion")) || dt_has(json, "instruction");
}

/* Which of the known records it is shows in its keys. */
static dt_err read_sft(dt_parsed_record *r, const json_t *json, const dt_rules *rules)
{
    if (dt_has(json, "messages")) return read_chat(r, json, "messages", rules);
    if (dt_has(json, "conversations")) return read_sharegpt(r, json, rules);
    if (dt_has(json, "conversation")) return read_chat(r, json, "conversation", rules);
    if (dt_has(json, "prompt") && dt_has(json, "completion")) return read_completion(r, json, rules);
    if (!dt_has(json, "instruction")) return read_text(r, json, rules); /* with images */
    return read_instruction(r, json, rules);
}

static const char *description(dt_dataset_kind kind)
{
    return kind == DT_DATASET_TOKENS       ? "of plain text"
           : kind == DT_DATASET_SFT        ? "for sft"
           : kind == DT_DATASET_PREFERENCE ? "of a preference"
                                           : "of a prompt";
}

/* A mistake in the data more often than a prompt with a field of that name. */
static dt_err check_both_sides(const json_t *json)
{
    const bool chosen = dt_has(json, "chosen");
    DT_CHECK(chosen == dt_has(json, "rejected"), DT_ERR_DATA,
             "found %s, but not %s: a pair of answers has both (--kind prompts takes the prompt alone)",
             chosen ? "chosen" : "rejected", chosen ? "rejected" : "chosen");
    return DT_OK;
}

/* By its keys, those first that belong to the kind that was asked for. */
static dt_err find_kind(const json_t *json, const dt_rules *rules, dt_dataset_kind *kind)
{
    const bool any = rules->any_kind;
    *kind = DT_DATASET_PREFERENCE;
    if ((any || rules->kind == DT_DATASET_PREFERENCE) && dt_record_is_pair(json)) return DT_OK;
    *kind = DT_DATASET_PROMPTS;
    if (!any && rules->kind == DT_DATASET_PROMPTS && dt_record_is_prompt(json)) return DT_OK;
    *kind = is_chat_record(json) || (rules->image_text && dt_has(json, "text")) ? DT_DATASET_SFT : DT_DATASET_TOKENS;
    if (*kind == DT_DATASET_SFT || dt_has(json, "text")) return DT_OK;
    *kind = dt_record_is_pair(json) ? DT_DATASET_PREFERENCE : DT_DATASET_PROMPTS;
    if (any) DT_TRY(check_both_sides(json));
    return *kind == DT_DATASET_PREFERENCE || dt_record_is_prompt(json) ? DT_OK : unknown_record(json);
}

static dt_err check_kind(const dt_rules *rules, dt_dataset_kind *kind)
{
    if (rules->any_kind || *kind == rules->kind) return DT_OK;
    const bool texts = *kind <= DT_DATASET_SFT && rules->kind <= DT_DATASET_SFT; /* either can be made of the other */
    DT_CHECK(texts, DT_ERR_DATA, "found a record %s, but the dataset is of kind %s", description(*kind),
             dt_dataset_kind_name(rules->kind));
    *kind = rules->kind;
    return DT_OK;
}

static dt_err read_weight(dt_parsed_record *r, const json_t *json, const dt_rules *rules)
{
    const json_t *w = rules->weight_key ? json_object_get(json, rules->weight_key) : NULL;
    if (!w) return DT_OK;
    const double weight = json_is_number(w) ? json_number_value(w) : -1;
    DT_CHECK(weight == 0 || (weight >= 1e-3 && weight <= 1e6), DT_ERR_DATA,
             "%s: expected a weight of 0, or from 0.001 to 1e6 (only their proportions count)", rules->weight_key);
    r->weight = (float)weight;
    return DT_OK;
}

static void reset(dt_parsed_record *r, const dt_rules *rules)
{
    for (int s = 0; s < DT_N_SIDES; s++) {
        dt_messages_clear(&r->messages[s]);
        r->messages[s].image_text = rules->image_text;
        r->side[s].pieces.n = 0;
        r->side[s] = (dt_text_side){.pieces = r->side[s].pieces};
    }
    free(r->fields);
    r->fields = NULL;
    r->has_second = r->is_chat = false;
    r->weight = 1;
    r->n_records = 1;
    r->pair = (dt_pair){0};
}

dt_err dt_parse_record(dt_parsed_record *r, const json_t *json, const dt_rules *rules, int which)
{
    reset(r, rules);
    DT_CHECK(json_is_object(json), DT_ERR_DATA, "expected a JSON object");
    if (rules->rec) return dt_parse_rec(r, json, rules, which);
    DT_TRY(find_kind(json, rules, &r->kind));
    DT_TRY(dt_list_images(r, json, rules));
    switch (r->kind) {
    case DT_DATASET_PREFERENCE:
        DT_TRY(dt_parse_pair(r, json, rules, which));
        break;
    case DT_DATASET_PROMPTS:
        DT_TRY(dt_parse_prompt(r, json, rules));
        break;
    case DT_DATASET_SFT:
        DT_TRY(read_sft(r, json, rules));
        break;
    default:
        DT_TRY(read_text(r, json, rules));
    }
    DT_TRY(dt_image_names_take(&r->images, &r->messages[0]));
    DT_TRY(check_kind(rules, &r->kind));
    return read_weight(r, json, rules);
}

void dt_parsed_record_free(dt_parsed_record *r)
{
    for (int s = 0; s < DT_N_SIDES; s++) {
        dt_messages_free(&r->messages[s]);
        dt_pieces_free(&r->side[s].pieces);
    }
    dt_image_names_free(&r->images);
    free(r->owned);
    free(r->fields);
    *r = (dt_parsed_record){0};
}
