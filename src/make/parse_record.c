/* parse_record.c - records for pre-training and fine-tuning (algorithms.md A.1). Records of two texts are
 * in parse_pair.c and parse_prompt.c. The keys determine the form. Every value's type is checked, because
 * a partly read record would train on wrong data. */
#include "record_kinds.h"
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

dt_err dt_check_no_loss(const dt_messages *m, int first, const char *why)
{
    for (int i = first; i < m->n; i++)
        DT_CHECK(!m->item[i].no_loss, DT_ERR_DATA, "message %d: %s excludes the answer from the loss, but %s", i,
                 m->item[i].no_loss, why);
    return DT_OK;
}

/* The end of text follows an answer whose template has no end token of its own. */
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

/* ---- fine-tuning ------------------------------------------------------------------------------------------------- */

/* Exclude answers from the loss if a field says so. */
static dt_err apply_no_loss(dt_messages *m, const dt_rules *rules)
{
    const bool whole = rules->mask == DT_MASK_FULL || (!rules->any_kind && rules->kind == DT_DATASET_TOKENS);
    if (whole) return dt_check_no_loss(m, 0, "--mask full and --kind tokens train on the whole text");
    for (int i = 0; i < m->n; i++)
        if (m->item[i].no_loss) m->item[i].learn = 0;
    return DT_OK;
}

/* Render a chat. Targets are all answers, or with mask completion only the last one. */
static dt_err render_chat(dt_parsed_record *r, const dt_rules *rules)
{
    dt_messages *m = &r->messages[0];
    if (rules->captions) return dt_render_caption(r, rules);
    int last = m->n - 1;
    while (last >= 0 && m->item[last].role != DT_ROLE_ASSISTANT) last--;
    if (rules->mask == DT_MASK_COMPLETION && last >= 0) m->item[last].learn = DT_LEARN_CONTENT | DT_LEARN_AFTER;
    for (int i = 0; i < m->n && rules->mask != DT_MASK_COMPLETION; i++)
        if (m->item[i].role == DT_ROLE_ASSISTANT) m->item[i].learn = DT_LEARN_CONTENT;
    DT_TRY(apply_no_loss(m, rules));
    return dt_render_side(r, DT_SIDE_FIRST, rules, 0);
}

static dt_err read_chat(dt_parsed_record *r, const json_t *json, const char *key, const dt_rules *rules)
{
    const json_t *list = json_object_get(json, key);
    const bool sharegpt = r->form == DT_FORM_CONVERSATIONS,
               roles = !sharegpt || dt_has(json_array_get(list, 0), "role"); /* this key accepts both conventions */
    DT_TRY(dt_messages_parse(&r->messages[0], list, key, roles ? "role" : "from", roles ? "content" : "value"));
    DT_TRY(dt_check_context(json, true));
    DT_TRY(dt_begin_with_system(&r->messages[0], json, sharegpt));
    return render_chat(r, rules);
}

static dt_err render_completion(dt_parsed_record *r, int n_prompt, const dt_rules *rules)
{
    dt_messages *m = &r->messages[0];
    dt_learn_completion(m, n_prompt);
    for (int i = n_prompt; i < m->n && rules->mask == DT_MASK_ASSISTANT; i++)
        m->item[i].learn = m->item[i].role == DT_ROLE_ASSISTANT ? DT_LEARN_CONTENT : 0;
    DT_TRY(apply_no_loss(m, rules));
    return dt_render_side(r, DT_SIDE_FIRST, rules, 0);
}

static dt_err add_turn(dt_messages *m, dt_role role, const json_t *text)
{
    return dt_messages_add(m, role, json_string_value(text), json_string_length(text));
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
    if (!lists && !rules->as_chat) {
        dt_text_side *s = &r->side[0];
        DT_TRY(dt_check_context(json, false));
        s->wrap = &rules->wrap;
        s->eos = s->eos_target = true;
        *n_prompt = -1;
        DT_TRY(dt_add_json_text(&s->pieces, prompt, false));
        return dt_add_json_text(&s->pieces, completion, true);
    }
    DT_TRY(lists ? dt_check_context(json, true) : dt_add_history(m, json));
    DT_TRY(lists ? dt_messages_parse(m, prompt, "prompt", "role", "content") : add_turn(m, DT_ROLE_USER, prompt));
    DT_TRY(dt_begin_with_system(m, json, false));
    *n_prompt = m->n;
    return lists ? dt_messages_parse(m, completion, "completion", "role", "content")
                 : add_turn(m, DT_ROLE_ASSISTANT, completion);
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
    for (int i = 0; i < m->n && rules->mask != DT_MASK_COMPLETION; i++)
        if (m->item[i].role == DT_ROLE_ASSISTANT) m->item[i].learn = DT_LEARN_CONTENT;
    bool input;
    DT_TRY(dt_add_instruction(m, json, rules, &input));
    DT_TRY(dt_begin_with_system(m, json, false));
    const char *system = input && rules->chat ? dt_chat_input_system(rules->chat) : NULL;
    if (system && m->item[0].role != DT_ROLE_SYSTEM)
        DT_TRY(dt_messages_add_first(m, DT_ROLE_SYSTEM, system, strlen(system)));
    const int n_prompt = m->n;
    DT_TRY(add_turn(m, DT_ROLE_ASSISTANT, answer));
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
        DT_CHECK(json_object_set_new(record, keys[k], list) == 0, DT_ERR_MEMORY, "out of memory for %s", keys[k]);
    }
    return DT_OK;
}

/* ---- detecting the form ------------------------------------------------------------------------------------------ */

/* Advice on keys of other conventions, most specific first. */
static const char *advice(const json_t *record)
{
    static const struct {
        const char *key, *with, *text;
    } NEAR[] = {
        {"query", "response", "; rename query to prompt and response to completion"},
        {"query", "answer", "; rename query to question"},
        {"question", "response", "; rename response to answer"},
        {"input", "output", "; rename input to prompt and output to completion"},
        {"input", "response", "; rename input to prompt and response to completion"},
        {"chosen_response", "prompt", "; a pair needs rejected_response as well"},
        {"rejected_response", "prompt", "; a pair needs chosen_response as well"},
        {"chosen_response", NULL, "; a pair of chosen_response and rejected_response needs prompt as well"},
        {"rejected_response", NULL, "; a pair of chosen_response and rejected_response needs prompt as well"},
        {"responses", NULL, "; responses needs ranks or scores, and a prompt; a single text is named completion"},
        {"response", NULL, "; rename response to completion, and the key of the question to prompt"},
        {"message", NULL, "; rename message to messages"},
        {"dialogue", NULL, "; rename dialogue to messages"},
        {"dialog", NULL, "; rename dialog to messages"},
        {"query", NULL, "; rename query to prompt"},
        {"content", NULL, "; rename content to text"},
    };
    for (size_t i = 0; i < sizeof NEAR / sizeof NEAR[0]; i++)
        if (dt_has(record, NEAR[i].key) && (!NEAR[i].with || dt_has(record, NEAR[i].with))) return NEAR[i].text;
    return "";
}

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
        "output, chosen and rejected, prompt, or question and answer; found the keys: %s%s",
        keys[0] ? keys : "(none)", advice(record));
}

static bool is_chat_record(const json_t *json)
{
    return dt_has(json, "messages") || dt_has(json, "conversations") || dt_has(json, "conversation") ||
           dt_record_is_completion(json) || dt_has(json, "instruction");
}

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

static dt_form text_form(const json_t *json) { return DT_FORM_TEXT; }

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
                                          .form = text_form,
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
    .weights = true,
    .images = true};

#define RECORD_KIND(upper, lower) [DT_DATASET_##upper] = &dt_records_##lower,
static const dt_record_kind *const kinds[DT_N_DATASET_KINDS] = {DT_KIND_LIST(RECORD_KIND)};
const dt_record_kind *dt_record_kind_of(dt_dataset_kind kind) { return kinds[kind]; }

/* Such a record is more often an error in the data than a prompt with a field of that name. */
static dt_err check_both_sides(const json_t *json)
{
    const bool chosen = dt_has(json, "chosen");
    DT_CHECK(chosen == dt_has(json, "rejected"), DT_ERR_DATA,
             "found %s, but not %s: a pair of answers needs both (--kind prompts uses only the prompt)",
             chosen ? "chosen" : "rejected", chosen ? "rejected" : "chosen");
    DT_CHECK(!dt_has(json, "chosen_response") && !dt_has(json, "rejected_response"), DT_ERR_DATA,
             "found one of chosen_response and rejected_response: a pair of answers needs both (--kind prompts uses "
             "only the prompt)");
    DT_CHECK(!dt_has(json, "prompt") || !json_is_string(json_object_get(json, "response")), DT_ERR_DATA,
             "found prompt and response: rename response to completion to train on it (--kind prompts uses only the "
             "prompt)");
    DT_CHECK(!json_is_string(json_object_get(json, "responses")), DT_ERR_DATA,
             "responses: expected a list; rename it to completion if it is one text (--kind prompts uses only the "
             "prompt)");
    return DT_OK;
}

/* Determine the kind from the keys, trying forms of the requested kind first. */
static dt_err find_kind(const json_t *json, const dt_rules *rules, dt_dataset_kind *kind)
{
    const bool any = rules->any_kind;
    for (int k = 0; k < DT_N_DATASET_KINDS; k++) {
        *kind = (dt_dataset_kind)k;
        if ((any || rules->kind == *kind) && kinds[k]->is && kinds[k]->is(json, any)) return DT_OK;
    }
    *kind = is_chat_record(json) || (rules->image_text && dt_has(json, "text")) ? DT_DATASET_SFT : DT_DATASET_TOKENS;
    if (*kind == DT_DATASET_SFT || dt_has(json, "text")) return DT_OK;
    *kind = dt_record_is_pair(json) ? DT_DATASET_PREFERENCE : DT_DATASET_PROMPTS;
    if (any) DT_TRY(check_both_sides(json));
    return kinds[*kind]->is(json, false) ? DT_OK : unknown_record(json);
}

static dt_err check_kind(const dt_rules *rules, dt_dataset_kind *kind)
{
    if (rules->any_kind || *kind == rules->kind) return DT_OK;
    /* either kind can be built from the other's records */
    const bool texts = *kind <= DT_DATASET_SFT && rules->kind <= DT_DATASET_SFT;
    DT_CHECK(texts, DT_ERR_DATA, "found a record %s, but the dataset is of kind %s", kinds[*kind]->description,
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
             "%s: expected a weight of 0, or from 0.001 to 1e6 (only proportions matter)", rules->weight_key);
    r->weight = (float)weight;
    return DT_OK;
}

static void reset(dt_parsed_record *r, const dt_rules *rules)
{
    for (int s = 0; s < DT_N_SIDES; s++) {
        dt_messages_clear(&r->messages[s]);
        r->messages[s].image_text = rules->image_text;
        dt_pieces_clear(&r->side[s].pieces);
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
    r->form = DT_FORM_REC;
    if (rules->rec) return dt_parse_rec(r, json, rules, which);
    DT_TRY(find_kind(json, rules, &r->kind));
    r->form = kinds[r->kind]->form(json);
    DT_TRY(dt_check_fields(r, json, rules));
    DT_TRY(dt_list_images(r, json, rules));
    DT_TRY(kinds[r->kind]->parse(r, json, rules, which));
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
