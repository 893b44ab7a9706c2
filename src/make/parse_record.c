/* parse_record.c - determines the kind of a record by its keys, and parses it as that kind does (algorithms.md A.1).
 * The type of every value is checked, because a partly read record would train on wrong data. */
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

#define RECORD_KIND(upper, lower, help) [DT_DATASET_##upper] = &dt_records_##lower,
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
    *kind = dt_record_is_chat(json) || (rules->image_text && dt_has(json, "text")) ? DT_DATASET_SFT : DT_DATASET_TOKENS;
    if (*kind == DT_DATASET_SFT || dt_has(json, "text")) return DT_OK;
    *kind = dt_record_is_pair(json) ? DT_DATASET_PREFERENCE : DT_DATASET_PROMPTS;
    if (any) DT_TRY(check_both_sides(json));
    return kinds[*kind]->is(json, false) ? DT_OK : unknown_record(json);
}

static dt_err check_kind(const dt_rules *rules, dt_dataset_kind *kind)
{
    if (rules->any_kind || *kind == rules->kind) return DT_OK;
    /* either kind can be built from the other's records */
    const bool texts = dt_record_is_text(*kind) && dt_record_is_text(rules->kind);
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
