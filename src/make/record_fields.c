/* record_fields.c - checks the fields of a record by its form. Fields that would change the training are refused;
 * other unknown fields are counted. */
#include "record_kinds.h"
#include <inttypes.h>
#include <string.h>

/* Fields that each form reads, separated by blanks, without images and the weight. Prompt records keep all fields. */
static const char *const read_by_form[] = {
    [DT_FORM_TEXT] = " text ",
    [DT_FORM_MESSAGES] = " messages system system_prompt ",
    [DT_FORM_CONVERSATION] = " conversation system system_prompt ",
    [DT_FORM_CONVERSATIONS] = " conversations system system_prompt ",
    [DT_FORM_COMPLETION] = " prompt completion system system_prompt history ",
    [DT_FORM_INSTRUCTION] = " instruction input context output response system system_prompt history ",
    [DT_FORM_PAIR] = " chosen rejected margin tie system system_prompt history ",
    [DT_FORM_RESPONSES] = " prompt chosen_response rejected_response safety_labels margin system system_prompt "
                          "history ",
    [DT_FORM_PKU] = " prompt response_0 response_1 better_response_id safer_response_id is_response_0_safe "
                    "is_response_1_safe margin system system_prompt history ",
    [DT_FORM_RANKING] = " responses answers ranks scores margin system system_prompt ",
    [DT_FORM_REC] = " ",
    [DT_FORM_LABELS] = " text text_a text_b sentence sentence1 sentence2 tokens words label labels tags ner_tags ",
    [DT_FORM_TEXTS] = " query anchor instruction prompt positive pos negative negatives neg negative_1 negative_2 "
                      "negative_3 negative_4 negative_5 "};

static bool is_listed(const char *list, const char *key)
{
    const size_t n = strlen(key);
    for (const char *at = list; n > 0 && (at = strstr(at, key)); at++)
        if (at[-1] == ' ' && at[n] == ' ') return true;
    return false;
}

/* ---- refused fields ---------------------------------------------------------------------------------------------- */

static bool is_sft(dt_form form) { return form >= DT_FORM_MESSAGES && form <= DT_FORM_INSTRUCTION; }

/* KTO's label: whether the completion is good. The numbers 0 and 1 are labels only in {prompt, completion}. */
static dt_err check_label(const dt_parsed_record *r, const json_t *json, const dt_rules *rules)
{
    static const char *const keys[] = {"label", "kto_tag"};
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        const json_t *label = json_object_get(json, keys[k]);
        const bool number = k == 0 && r->form == DT_FORM_COMPLETION && json_is_number(label);
        if ((!json_is_boolean(label) && !number) || dt_label_of(label) < 0) continue;
        DT_CHECK(dt_label_of(label) == 1, DT_ERR_DATA,
                 "%s: the record labels its answer as bad (KTO), but sft would train on it: drop such records "
                 "(--skip-bad), or train on labels with run.task = kto (--kind unpaired, {prompt, completion, label})",
                 keys[k]);
        DT_CHECK(rules->opt->kind != DT_ANY_KIND, DT_ERR_DATA,
                 "%s: the record has a KTO label: train only on good answers with --kind sft --skip-bad, "
                 "or on both with --kind unpaired, which reads {prompt, completion, label}",
                 keys[k]);
    }
    return DT_OK;
}

/* Without this check, sft would train on half of a preference if the other half has an unknown key. */
static dt_err check_preference(const json_t *json, const dt_rules *rules)
{
    static const char *const keys[] = {
        "chosen", "rejected", "chosen_response", "rejected_response", "rejected_messages", "chosen_messages"};
    for (size_t k = 0; k < sizeof keys / sizeof keys[0] && rules->opt->kind == DT_ANY_KIND; k++)
        DT_CHECK(!dt_field_is_set(json_object_get(json, keys[k])), DT_ERR_DATA,
                 "%s: found one answer of a preference: a pair needs chosen and rejected; --kind sft trains on the "
                 "rest of the record",
                 keys[k]);
    return DT_OK;
}

static dt_err check_weight(const dt_parsed_record *r, const json_t *json, const dt_rules *rules)
{
    static const char *const keys[] = {"weight", "sample_weight", "loss_weight"};
    for (size_t k = 0; k < sizeof keys / sizeof keys[0] && !rules->opt->weight_key; k++) {
        const json_t *weight = json_object_get(json, keys[k]);
        if (!json_is_number(weight) || json_number_value(weight) == 1) continue;
        DT_CHECK(
            dt_record_kind_of(r->kind)->answers, DT_ERR_DATA,
            "%s: the record has a weight; use it with --weight-key %s, or rename the field if it means something else",
            keys[k], keys[k]);
        return dt_fail(DT_ERR_DATA, "%s: %s have no weights; remove the field, or rename it if it means something else",
                       keys[k], dt_record_kind_of(r->kind)->noun);
    }
    return DT_OK;
}

/* True if the record is rendered by a template. */
static bool is_conversation(const dt_parsed_record *r, const json_t *json, const dt_rules *rules)
{
    const json_t *prompt = json_object_get(json, "prompt");
    const bool texts = json_is_string(prompt) &&
                       (r->form == DT_FORM_PROMPT ||
                        (r->form == DT_FORM_COMPLETION && json_is_string(json_object_get(json, "completion"))));
    return !texts || rules->opt->as_chat;
}

dt_err dt_check_fields(const dt_parsed_record *r, const json_t *json, const dt_rules *rules)
{
    unsigned which = DT_FIELDS_MEDIA;
    if (r->form == DT_FORM_TEXT || r->form == DT_FORM_LABELS || r->form == DT_FORM_TEXTS) return DT_OK;
    if (r->form != DT_FORM_PROMPT) which |= DT_FIELDS_TARGETS | DT_FIELDS_THOUGHTS;
    if (is_conversation(r, json, rules)) which |= DT_FIELDS_CHAT;
    DT_TRY(dt_record_check_fields(json, which));
    if (is_sft(r->form) && !dt_record_kind_of(r->kind)->answers) {
        DT_TRY(check_label(r, json, rules));
        DT_TRY(check_preference(json, rules));
    }
    return r->form == DT_FORM_PROMPT ? DT_OK : check_weight(r, json, rules);
}

/* ---- counted fields ---------------------------------------------------------------------------------------------- */

static bool is_read(const dt_parsed_record *r, const json_t *json, const dt_rules *rules, const char *key)
{
    static const char *const images[] = {"image", "images", "image_bytes"};
    const char *of_kind = dt_record_kind_of(r->kind)->fields;
    if (is_listed(read_by_form[r->form], key) || (of_kind && is_listed(of_kind, key))) return true;
    if (is_conversation(r, json, rules) && is_listed(" tools functions ", key)) return true;
    if (rules->opt->weight_key && strcmp(key, rules->opt->weight_key) == 0) return true;
    if (r->form == DT_FORM_COMPLETION && strcmp(key, "label") == 0) return dt_label_of(json_object_get(json, key)) >= 0;
    for (size_t k = 0; k < sizeof images / sizeof images[0] && rules->image_text; k++)
        if (strcmp(key, images[k]) == 0) return true;
    if (r->form != DT_FORM_PAIR && r->form != DT_FORM_RANKING && r->form != DT_FORM_RESPONSES) return false;
    const char *prompt = dt_pair_prompt_key(json);
    const bool with_input = prompt && strcmp(prompt, "instruction") == 0 && is_listed(" input context ", key);
    return (prompt && strcmp(key, prompt) == 0) || with_input || dt_is_score_of(json, key);
}

static void add_count(dt_field_counts *c, const char *before, const char *key, int64_t n)
{
    char name[DT_FIELD_NAME_SIZE];
    snprintf(name, sizeof name, "%s%s", before, key);
    for (char *p = name; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127) *p = '?';
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->field[i].name, name) == 0) {
            c->field[i].n += n;
            return;
        }
    if (c->n == DT_MAX_FIELDS) {
        c->n_others += n;
        return;
    }
    snprintf(c->field[c->n].name, sizeof c->field[0].name, "%s", name);
    c->field[c->n++].n = n;
}

void dt_add_ignored(dt_field_counts *to, const dt_field_counts *from)
{
    for (int i = 0; i < from->n; i++) add_count(to, "", from->field[i].name, from->field[i].n);
    to->n_others += from->n_others;
    to->n_calls += from->n_calls;
    to->n_tools += from->n_tools;
    to->n_left_out += from->n_left_out;
    if (to->n_in_row + to->n_without_user == 0) snprintf(to->first_odd, sizeof to->first_odd, "%s", from->first_odd);
    to->n_in_row += from->n_in_row;
    to->n_without_user += from->n_without_user;
}

void dt_count_turns(dt_field_counts *c, const dt_parsed_record *r, const char *path, int64_t line)
{
    const dt_messages *m = &r->messages[DT_SIDE_FIRST];
    bool in_row = false, answers = false, asked = false;
    if (r->form != DT_FORM_MESSAGES && r->form != DT_FORM_CONVERSATION && r->form != DT_FORM_CONVERSATIONS) return;
    for (int i = 0; i < m->n; i++) {
        const bool answer = m->item[i].role == DT_ROLE_ASSISTANT;
        in_row |= answer && i > 0 && m->item[i - 1].role == DT_ROLE_ASSISTANT;
        answers |= answer;
        asked |= m->item[i].role == DT_ROLE_USER;
    }
    if (!in_row && (asked || !answers)) return;
    if (c->n_in_row + c->n_without_user == 0) snprintf(c->first_odd, sizeof c->first_odd, "%s:%" PRId64, path, line);
    c->n_in_row += in_row;
    c->n_without_user += answers && !asked;
}

static void count_of_message(dt_field_counts *c, const json_t *message)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)message, key, value) if (dt_field_is_set(value) && !dt_message_field_is_known(key))
        add_count(c, "messages[].", key, 1);
}

/* Count the fields of a message, or of a list of messages. */
static void count_of_messages(dt_field_counts *c, const json_t *value)
{
    const json_t *one;
    size_t i;
    if (dt_has(value, "role") || dt_has(value, "from")) count_of_message(c, value);
    json_array_foreach(value, i, one) count_of_messages(c, one);
}

void dt_count_ignored(dt_field_counts *c, const dt_parsed_record *r, const json_t *json, const dt_rules *rules)
{
    static const char messages[] = " messages conversation conversations prompt completion chosen rejected responses "
                                   "answers ";
    const char *key;
    json_t *value;
    for (int i = 0; i < r->messages[0].n; i++) {
        c->n_calls += r->messages[0].item[i].call_is_text;
        c->n_left_out += r->messages[0].item[i].left_out;
    }
    c->n_tools += r->messages[0].tools_are_text;
    json_object_foreach((json_t *)json, key, value)
    {
        const bool kept = r->form == DT_FORM_PROMPT || is_read(r, json, rules, key);
        if (!kept && dt_field_is_set(value)) add_count(c, "", key, 1);
        if (kept && r->form != DT_FORM_TEXT && is_listed(messages, key)) count_of_messages(c, value);
    }
}
