/* parse_sft.c - records of one text: kinds tokens and sft. */
#include "record_kinds.h"
#include <string.h>

/* Exclude answers from the loss if a field says so. */
static dt_err apply_no_loss(dt_messages *m, const dt_rules *rules)
{
    const bool whole = rules->opt->mask == DT_MASK_FULL || (rules->opt->kind == DT_DATASET_TOKENS);
    if (whole) return dt_check_no_loss(m, 0, "--mask full and --kind tokens train on the whole text");
    for (int i = 0; i < m->n; i++)
        if (m->item[i].no_loss) m->item[i].learn = 0;
    return DT_OK;
}

/* Render a chat. Targets are all answers, or with mask completion only the last one. */
static dt_err render_chat(dt_parsed_record *r, const dt_rules *rules)
{
    dt_messages *m = &r->messages[0];
    if (rules->opt->images.captions) return dt_render_caption(r, rules);
    int last = m->n - 1;
    while (last >= 0 && m->item[last].role != DT_ROLE_ASSISTANT) last--;
    if (rules->opt->mask == DT_MASK_COMPLETION && last >= 0) m->item[last].learn = DT_LEARN_CONTENT | DT_LEARN_AFTER;
    for (int i = 0; i < m->n && rules->opt->mask != DT_MASK_COMPLETION; i++)
        if (m->item[i].role == DT_ROLE_ASSISTANT) m->item[i].learn = DT_LEARN_CONTENT;
    DT_TRY(apply_no_loss(m, rules));
    return dt_render_side(r, DT_SIDE_FIRST, rules, 0);
}

static dt_err read_chat(dt_parsed_record *r, const json_t *json, const char *key, const dt_rules *rules)
{
    const json_t *list = json_object_get(json, key);
    const bool roles = r->form != DT_FORM_CONVERSATIONS ||
                       dt_has(json_array_get(list, 0), "role"); /* this key accepts both conventions */
    DT_TRY(dt_messages_parse(&r->messages[0], list, key, roles ? "role" : "from", roles ? "content" : "value"));
    DT_TRY(dt_check_context(json, true));
    DT_TRY(dt_begin_with_system(&r->messages[0], json));
    return render_chat(r, rules);
}

static dt_err render_completion(dt_parsed_record *r, int n_prompt, const dt_rules *rules)
{
    dt_messages *m = &r->messages[0];
    dt_learn_completion(m, n_prompt);
    for (int i = n_prompt; i < m->n && rules->opt->mask == DT_MASK_ASSISTANT; i++)
        m->item[i].learn = m->item[i].role == DT_ROLE_ASSISTANT ? DT_LEARN_CONTENT : 0;
    DT_TRY(apply_no_loss(m, rules));
    return dt_render_side(r, DT_SIDE_FIRST, rules, 0);
}

bool dt_record_is_completion(const json_t *json) { return dt_has(json, "prompt") && dt_has(json, "completion"); }

/* The completion's messages are the answer. */
dt_err dt_read_completion(dt_parsed_record *r, const json_t *json, const dt_rules *rules, int *n_prompt)
{
    const json_t *prompt = json_object_get(json, "prompt"), *completion = json_object_get(json, "completion");
    const bool lists = json_is_array(prompt) && json_is_array(completion);
    dt_messages *m = &r->messages[0];
    DT_CHECK(lists || (json_is_string(prompt) && json_is_string(completion)), DT_ERR_DATA,
             "prompt and completion: expected two texts or two lists of messages");
    if (!lists && !rules->opt->as_chat) {
        dt_text_side *s = &r->side[0];
        DT_TRY(dt_check_context(json, false));
        s->wrap = &rules->wrap;
        s->eos = s->eos_target = true;
        *n_prompt = -1;
        DT_TRY(dt_add_json_text(&s->pieces, prompt, false));
        return dt_add_json_text(&s->pieces, completion, true);
    }
    DT_TRY(lists ? dt_check_context(json, true) : dt_add_history(m, json));
    DT_TRY(lists ? dt_messages_parse(m, prompt, "prompt", "role", "content") : dt_add_turn(m, DT_ROLE_USER, prompt));
    DT_TRY(dt_begin_with_system(m, json));
    *n_prompt = m->n;
    return lists ? dt_messages_parse(m, completion, "completion", "role", "content")
                 : dt_add_turn(m, DT_ROLE_ASSISTANT, completion);
}

static dt_err read_completion(dt_parsed_record *r, const json_t *json, const dt_rules *rules)
{
    int n_prompt;
    DT_TRY(dt_read_completion(r, json, rules, &n_prompt));
    return n_prompt < 0 ? DT_OK : render_completion(r, n_prompt, rules);
}

/* {instruction, input, output, system, history}: a user's turn of instruction and input, and an answer.
 * Answers of the history are targets, too, as in LLaMA-Factory, unless only the completion is requested. */
static dt_err read_instruction(dt_parsed_record *r, const json_t *json, const dt_rules *rules)
{
    dt_messages *m = &r->messages[0];
    const json_t *answer = json_object_get(json, "output"), *response = json_object_get(json, "response");
    DT_CHECK(!dt_field_is_set(answer) || !dt_field_is_set(response), DT_ERR_DATA,
             "output and response: expected only one of them");
    if (!dt_field_is_set(answer) && response) answer = response;
    DT_CHECK(json_is_string(answer), DT_ERR_DATA, "output (or response): expected a text");
    DT_TRY(dt_add_history(m, json));
    for (int i = 0; i < m->n && rules->opt->mask != DT_MASK_COMPLETION; i++)
        if (m->item[i].role == DT_ROLE_ASSISTANT) m->item[i].learn = DT_LEARN_CONTENT;
    bool input;
    DT_TRY(dt_add_instruction(m, json, rules, &input));
    DT_TRY(dt_begin_with_system(m, json));
    const char *system = input && rules->chat ? dt_chat_input_system(rules->chat) : NULL;
    if (system && m->item[0].role != DT_ROLE_SYSTEM)
        DT_TRY(dt_messages_add_first(m, DT_ROLE_SYSTEM, system, strlen(system)));
    const int n_prompt = m->n;
    DT_TRY(dt_add_turn(m, DT_ROLE_ASSISTANT, answer));
    return render_completion(r, n_prompt, rules);
}

static dt_err read_text(dt_parsed_record *r, const json_t *json, const dt_rules *rules)
{
    const json_t *text;
    DT_TRY(dt_required_text(json, "text", &text));
    r->side[0].wrap = &rules->wrap;
    r->side[0].eos = r->side[0].eos_target = true;
    return dt_add_json_text(&r->side[0].pieces, text, true);
}

/* ---- kinds ------------------------------------------------------------------------------------------------------- */

static dt_err read_sft(dt_parsed_record *r, const json_t *json, const dt_rules *rules, int which)
{
    switch (r->form) {
    case DT_FORM_MESSAGES:
        return read_chat(r, json, "messages", rules);
    case DT_FORM_CONVERSATIONS:
        return read_chat(r, json, "conversations", rules);
    case DT_FORM_CONVERSATION:
        return read_chat(r, json, "conversation", rules);
    case DT_FORM_COMPLETION:
        return read_completion(r, json, rules);
    case DT_FORM_INSTRUCTION:
        return read_instruction(r, json, rules);
    default:
        return read_text(r, json, rules); /* with images */
    }
}

static dt_form sft_form(const json_t *json)
{
    if (dt_has(json, "messages")) return DT_FORM_MESSAGES;
    if (dt_has(json, "conversations")) return DT_FORM_CONVERSATIONS;
    if (dt_has(json, "conversation")) return DT_FORM_CONVERSATION;
    if (dt_record_is_completion(json)) return DT_FORM_COMPLETION;
    return dt_has(json, "instruction") ? DT_FORM_INSTRUCTION : DT_FORM_TEXT;
}

bool dt_record_is_chat(const json_t *json) { return sft_form(json) != DT_FORM_TEXT; }

static dt_err read_tokens(dt_parsed_record *r, const json_t *json, const dt_rules *rules, int which)
{
    return read_text(r, json, rules);
}

static bool has_no_target(const dt_sample *s, const uint8_t *mask) { return s->n[0] == 0 || !memchr(mask, 1, s->n[0]); }

const dt_record_kind dt_records_tokens = {.description = "of plain text",
                                          .missing = "tokens",
                                          .lacking = "any token",
                                          .advice = "",
                                          .noun = "texts",
                                          .only_form = DT_FORM_TEXT,
                                          .parse = read_tokens,
                                          .truncate = DT_TRUNCATE_START};

const dt_record_kind dt_records_sft = {
    .description = "for sft",
    .missing = "an answer to train on",
    .lacking = "any token to train on",
    .advice = "; add a message of role assistant with text, or use --kind prompts or --kind tokens",
    .noun = "samples",
    .form = sft_form,
    .parse = read_sft,
    .is_empty = has_no_target,
    .truncate = DT_TRUNCATE_START,
    .mask = true,
    .weights = true,
    .images = true};
