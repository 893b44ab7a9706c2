/* parse_pair.c - preference records: a prompt and two completions, each texts or messages, in the formats
 * of several projects. If the prompt is missing, it is the common beginning of both sides. A ranking of
 * several completions gives all their pairs. */
#include "record_kinds.h"
#include <ctype.h>
#include <math.h>
#include <string.h>

/* Missing values of a table row are null. */
static bool has_value(const json_t *json, const char *key)
{
    return dt_has(json, key) && !json_is_null(json_object_get(json, key));
}

/* The completions of a ranking; NULL: not a ranking. Unranked answers belong to prompts. */
static const json_t *ranked(const json_t *json)
{
    const json_t *list = json_object_get(json, "responses");
    if (!has_value(json, "responses") && (has_value(json, "ranks") || has_value(json, "scores")))
        list = json_object_get(json, "answers");
    return json_is_array(list) ? list : NULL;
}

bool dt_record_is_pair(const json_t *json)
{
    return (dt_has(json, "chosen") && dt_has(json, "rejected")) ||
           (dt_has(json, "chosen_response") && dt_has(json, "rejected_response")) ||
           (dt_has(json, "response_0") && dt_has(json, "response_1")) || ranked(json);
}

dt_form dt_pair_form(const json_t *json)
{
    return dt_has(json, "chosen") && dt_has(json, "rejected") ? DT_FORM_PAIR
           : dt_has(json, "chosen_response")                  ? DT_FORM_RESPONSES
           : ranked(json)                                     ? DT_FORM_RANKING
                                                              : DT_FORM_PKU;
}

const char *dt_pair_prompt_key(const json_t *json)
{
    static const char *const keys[] = {"prompt", "conversations", "question", "instruction", "input"};
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
        if (has_value(json, keys[k])) return keys[k];
    return NULL;
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

/* Names of the scores of both answers in published datasets. */
static const char *const scores[][DT_N_SIDES] = {
    {"score_chosen", "score_rejected"},           {"chosen_score", "rejected_score"},
    {"chosen-score", "rejected-score"},           {"chosen_rating", "rejected_rating"},
    {"rating_chosen", "rating_rejected"},         {"chosen-rating", "rejected-rating"},
    {"chosen_avg_rating", "rejected_avg_rating"}, {"chosen_reward", "rejected_reward"},
    {"reward_chosen", "reward_rejected"}};
enum { N_SCORES = sizeof scores / sizeof scores[0] };

static bool has_scores(const json_t *json, int i)
{
    return json_is_number(json_object_get(json, scores[i][0])) && json_is_number(json_object_get(json, scores[i][1]));
}

bool dt_is_score_of(const json_t *json, const char *key)
{
    for (int i = 0; i < N_SCORES; i++)
        if (has_scores(json, i) && (strcmp(key, scores[i][0]) == 0 || strcmp(key, scores[i][1]) == 0)) return true;
    return false;
}

/* True if the scores or the margin say that the rejected answer is better. */
static bool is_contradicted(const json_t *json)
{
    for (int i = 0; i < N_SCORES; i++)
        if (has_scores(json, i) && json_number_value(json_object_get(json, scores[i][0])) <
                                       json_number_value(json_object_get(json, scores[i][1])))
            return true;
    return json_number_value(json_object_get(json, "margin")) < 0;
}

static dt_span span_of(const json_t *text)
{
    return (dt_span){.text = json_string_value(text), .nbytes = json_string_length(text)};
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static dt_err add_as_chat(dt_parsed_record *r, const json_t *json, dt_side s, const dt_rules *rules, dt_span prompt,
                          dt_span completion)
{
    dt_messages *m = &r->messages[s];
    DT_TRY(dt_add_history(m, json));
    DT_TRY(dt_messages_add(m, DT_ROLE_USER, prompt.text, prompt.nbytes));
    DT_TRY(dt_begin_with_system(m, json));
    const int n_prompt = m->n;
    DT_TRY(dt_messages_add(m, DT_ROLE_ASSISTANT, completion.text, completion.nbytes));
    dt_learn_completion(m, n_prompt);
    return dt_render_side(r, s, rules, 0);
}

/* join is put between prompt and completion, and belongs to the prompt. */
static dt_err add_texts(dt_parsed_record *r, const json_t *json, const dt_rules *rules, dt_span prompt,
                        const char *join, const dt_span completion[DT_N_SIDES])
{
    if (!rules->opt->as_chat) DT_TRY(dt_check_context(json, false));
    DT_CHECK(rules->opt->as_chat || (!dt_field_is_set(json_object_get(json, "tools")) &&
                                     !dt_field_is_set(json_object_get(json, "functions"))),
             DT_ERR_DATA, "tools: plain text cannot have tools; write the record as a conversation with --as-chat");
    for (int s = 0; s < DT_N_SIDES; s++) {
        dt_text_side *side = &r->side[s];
        if (rules->opt->as_chat) {
            DT_TRY(add_as_chat(r, json, (dt_side)s, rules, prompt, completion[s]));
            continue;
        }
        side->wrap = &rules->wrap;
        side->eos = side->eos_target = true;
        DT_TRY(dt_pieces_text(&side->pieces, prompt.text, prompt.nbytes, false));
        DT_TRY(dt_pieces_text(&side->pieces, join, strlen(join), false));
        DT_TRY(dt_pieces_text(&side->pieces, completion[s].text, completion[s].nbytes, true));
    }
    return DT_OK;
}

/* Longest common prefix without its last white space. The completions keep that. */
static size_t common_prompt(dt_span a, dt_span b)
{
    size_t n = 0;
    while (n < a.nbytes && n < b.nbytes && a.text[n] == b.text[n]) n++;
    while (n > 0 && !isspace((unsigned char)a.text[n - 1])) n--;
    return n > 0 ? n - 1 : 0;
}

static dt_err read_text_pair(dt_parsed_record *r, const json_t *json, const json_t *prompt,
                             const json_t *const completion[DT_N_SIDES], const dt_rules *rules)
{
    dt_span side[DT_N_SIDES] = {span_of(completion[0]), span_of(completion[1])};
    if (prompt) return add_texts(r, json, rules, span_of(prompt), "", side);
    const size_t n = common_prompt(side[0], side[1]);
    const dt_span common = {.text = side[0].text, .nbytes = n};
    for (int s = 0; s < DT_N_SIDES; s++) side[s].text += n, side[s].nbytes -= n;
    return add_texts(r, json, rules, common, "", side);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static dt_err add_list(dt_messages *m, const json_t *list, const char *what)
{
    const bool roles = dt_has(json_array_get(list, 0), "role");
    return dt_messages_parse(m, list, what, roles ? "role" : "from", roles ? "content" : "value");
}

/* Add a chat completion: a list of messages, one message, or a text, which becomes an answer. */
static dt_err add_completion(dt_messages *m, const json_t *completion, const char *what)
{
    if (json_is_string(completion)) return dt_add_turn(m, DT_ROLE_ASSISTANT, completion);
    if (json_is_array(completion)) return add_list(m, completion, what);
    DT_CHECK(json_is_object(completion), DT_ERR_DATA, "%s: expected a text, a message or a list of messages", what);
    json_t *list = json_pack("[O]", completion);
    DT_CHECK(list, DT_ERR_MEMORY, "out of memory for a list of one message");
    const dt_err err = add_list(m, list, what); /* texts belong to the message, which stays valid */
    json_decref(list);
    return err;
}

static bool equal(const dt_message *a, const dt_message *b)
{
    return a->role == b->role && a->nbytes == b->nbytes && memcmp(a->text, b->text, a->nbytes) == 0 &&
           (a->calls == b->calls || json_equal(a->calls, b->calls)) && a->n_thoughts == b->n_thoughts &&
           (a->n_thoughts == 0 || memcmp(a->thoughts, b->thoughts, a->n_thoughts) == 0);
}

/* Number of common leading messages, excluding the last of each. */
static int common_messages(const dt_messages *a, const dt_messages *b)
{
    int n = 0;
    while (n + 1 < a->n && n + 1 < b->n && equal(&a->item[n], &b->item[n])) n++;
    return n;
}

static const char *name_of_role(const dt_message *m)
{
    static const char *const names[DT_N_ROLES] = {"system message", "question", "answer", "tool result"};
    return names[m->role];
}

/* Length of a message's beginning that error messages show, in whole characters. */
static int n_shown(const dt_message *m)
{
    size_t n = m->nbytes < 40 ? m->nbytes : 40;
    while (n > 0 && n < m->nbytes && ((unsigned char)m->text[n] & 0xc0) == 0x80) n--;
    return (int)n;
}

/* Without an explicit prompt, both sides contain it: they must first differ at an answer. */
static dt_err check_same_prompt(const dt_messages *chosen, const dt_messages *rejected, int n_prompt)
{
    const dt_message *a = &chosen->item[n_prompt], *b = &rejected->item[n_prompt];
    if (a->role == DT_ROLE_ASSISTANT && b->role == DT_ROLE_ASSISTANT) return DT_OK;
    return dt_fail(DT_ERR_DATA,
                   "chosen and rejected have different prompts: expected the same messages up to an answer of each, "
                   "found in message %d the %s \"%.*s\" and the %s \"%.*s\"",
                   n_prompt, name_of_role(a), n_shown(a), a->text, name_of_role(b), n_shown(b), b->text);
}

/* n_prompt: messages of the prompt, not counting a system message of the record. Results of tools that both answers
 * contain belong to the prompt, with the messages before them. */
static dt_err render_pair(dt_parsed_record *r, const json_t *json, int n_prompt, const dt_rules *rules)
{
    const int n_common = common_messages(&r->messages[0], &r->messages[1]);
    for (int i = n_prompt; i < n_common; i++)
        if (r->messages[0].item[i].role == DT_ROLE_TOOL) n_prompt = i + 1;
    for (int s = 0; s < DT_N_SIDES; s++) {
        dt_messages *m = &r->messages[s];
        const int n = m->n;
        DT_TRY(dt_check_no_loss(m, n_prompt, "a preference compares whole answers"));
        DT_TRY(dt_check_results(m, n_prompt));
        DT_TRY(dt_begin_with_system(m, json));
        dt_learn_completion(m, n_prompt + m->n - n);
        DT_TRY(dt_render_side(r, (dt_side)s, rules, 0));
    }
    return DT_OK;
}

/* prompt: a list, or a text (which the completions' lists repeat as first question), or NULL. */
static dt_err read_chat_pair(dt_parsed_record *r, const json_t *json, const json_t *prompt, const char *prompt_key,
                             const json_t *const completion[DT_N_SIDES], const dt_rules *rules)
{
    static const char *const names[DT_N_SIDES] = {"chosen", "rejected"};
    int n_prompt = 0;
    DT_TRY(dt_check_context(json, true));
    for (int s = 0; s < DT_N_SIDES; s++) {
        dt_messages *m = &r->messages[s];
        if (json_is_array(prompt)) DT_TRY(add_list(m, prompt, prompt_key));
        n_prompt = m->n;
        DT_TRY(add_completion(m, completion[s], names[s]));
    }
    if (json_is_array(prompt)) return render_pair(r, json, n_prompt, rules);
    if (prompt && r->messages[0].item[0].role == DT_ROLE_ASSISTANT) { /* the text is the question */
        const dt_span w = span_of(prompt);
        for (int s = 0; s < DT_N_SIDES; s++)
            DT_TRY(dt_messages_add_first(&r->messages[s], DT_ROLE_USER, w.text, w.nbytes));
        return render_pair(r, json, 1, rules);
    }
    n_prompt = common_messages(&r->messages[0], &r->messages[1]);
    DT_TRY(check_same_prompt(&r->messages[0], &r->messages[1], n_prompt));
    return render_pair(r, json, n_prompt, rules);
}

/* A question or an instruction is a user's turn; the answers are texts or messages. */
static dt_err read_question_pair(dt_parsed_record *r, const json_t *json, const char *key,
                                 const json_t *const completion[DT_N_SIDES], const dt_rules *rules)
{
    static const char *const names[DT_N_SIDES] = {"chosen", "rejected"};
    const json_t *question;
    int n_prompt = 0;
    for (int s = 0; s < DT_N_SIDES; s++) {
        dt_messages *m = &r->messages[s];
        bool input = false;
        DT_TRY(dt_add_history(m, json));
        if (strcmp(key, "instruction") == 0) {
            DT_TRY(dt_add_instruction(m, json, rules, &input));
        } else {
            DT_TRY(dt_required_text(json, key, &question));
            DT_TRY(dt_add_turn(m, DT_ROLE_USER, question));
        }
        n_prompt = m->n;
        DT_TRY(add_completion(m, completion[s], names[s]));
        DT_CHECK(m->item[n_prompt].role == DT_ROLE_ASSISTANT, DT_ERR_DATA,
                 "%s: expected an answer to %s, found another message", names[s], key);
        const char *system = input && rules->chat ? dt_chat_input_system(rules->chat) : NULL;
        const json_t *own;
        DT_TRY(dt_record_system(json, &own));
        if (system && !own) {
            DT_TRY(dt_messages_add_first(m, DT_ROLE_SYSTEM, system, strlen(system)));
            n_prompt++;
        }
    }
    return render_pair(r, json, n_prompt, rules);
}

/* True for a list of messages that includes the prompt: its first message is not an answer. */
static bool is_whole(const json_t *completion)
{
    const json_t *first = json_array_get(completion, 0), *role = json_object_get(first, "role");
    const char *name = json_string_value(role ? role : json_object_get(first, "from"));
    dt_role known;
    return name && dt_role_parse(name, &known) && known != DT_ROLE_ASSISTANT;
}

/* ---- the forms --------------------------------------------------------------------------------------------------- */

static dt_err read_completions(dt_parsed_record *r, const json_t *json, const json_t *const completion[DT_N_SIDES],
                               const dt_rules *rules)
{
    const char *key = dt_pair_prompt_key(json);
    const json_t *prompt = key ? json_object_get(json, key) : NULL;
    if (key && strcmp(key, "prompt") != 0 && strcmp(key, "conversations") != 0)
        return is_whole(completion[0]) ? read_chat_pair(r, json, NULL, NULL, completion, rules)
                                       : read_question_pair(r, json, key, completion, rules);
    DT_CHECK(!prompt || json_is_string(prompt) || json_is_array(prompt), DT_ERR_DATA,
             "%s: expected a text or a list of messages", key);
    const bool texts = json_is_string(completion[0]) && json_is_string(completion[1]);
    if (texts && (!prompt || json_is_string(prompt))) return read_text_pair(r, json, prompt, completion, rules);
    return read_chat_pair(r, json, prompt, key, completion, rules);
}

static dt_err read_chosen(dt_parsed_record *r, const json_t *json, const dt_rules *rules)
{
    const json_t *tie = json_object_get(json, "tie");
    DT_CHECK(!tie || json_is_null(tie) || json_is_boolean(tie), DT_ERR_DATA, "tie: expected true or false");
    r->pair.tie = json_is_true(tie);
    r->pair.contradicted = !r->pair.tie && is_contradicted(json);
    return read_completions(
        r, json, (const json_t *const[DT_N_SIDES]){json_object_get(json, "chosen"), json_object_get(json, "rejected")},
        rules);
}

/* How much better completion a is than b, by rank (1 is the best) or score; 0 if the record has neither. */
static dt_err compare_by(const json_t *json, bool ranks, size_t n, size_t a, size_t b, double *better)
{
    const json_t *list = json_object_get(json, ranks ? "ranks" : "scores");
    *better = 0;
    if (!list || json_is_null(list)) return DT_OK;
    const json_t *x = json_array_get(list, a), *y = json_array_get(list, b);
    DT_CHECK(json_is_array(list) && json_array_size(list) == n && json_is_number(x) && json_is_number(y), DT_ERR_DATA,
             "%s: expected %zu numbers, one for each response", ranks ? "ranks" : "scores", n);
    *better = (json_number_value(x) - json_number_value(y)) * (ranks ? -1 : 1);
    return DT_OK;
}

/* Compare by ranks, else by scores, else by list position. A contradiction between ranks and scores is recorded. */
static dt_err compare_ranked(const json_t *json, size_t n, size_t a, size_t b, double *better, bool *contradicted)
{
    double by_scores;
    *better = 1;
    DT_TRY(compare_by(json, false, n, a, b, &by_scores));
    if (has_value(json, "scores")) *better = by_scores;
    if (has_value(json, "ranks")) DT_TRY(compare_by(json, true, n, a, b, better));
    *contradicted = *better * by_scores < 0;
    return DT_OK;
}

/* {prompt, responses, ranks? or scores?}: best first without ranks and scores; equal ones are ties. Reads
 * pair `which` of the n (n - 1) / 2 in the order (0, 1), (0, 2), .., (1, 2), .. */
static dt_err read_ranking(dt_parsed_record *r, const json_t *json, const dt_rules *rules, int which)
{
    enum { MAX_RESPONSES = 64 };
    const json_t *list = ranked(json);
    const size_t n = json_array_size(list);
    double better;
    DT_CHECK(n >= 2 && n <= MAX_RESPONSES, DT_ERR_DATA, "responses: expected 2 to %d responses, found %zu",
             MAX_RESPONSES, n);
    r->n_records = (int)(n * (n - 1) / 2);
    size_t a = 0, left = (size_t)which;
    for (; left >= n - 1 - a; a++) left -= n - 1 - a;
    const size_t b = a + 1 + left;
    DT_TRY(compare_ranked(json, n, a, b, &better, &r->pair.contradicted));
    r->pair.tie = better == 0;
    const json_t *one = json_array_get(list, a), *other = json_array_get(list, b);
    const bool as_listed = better >= 0;
    return read_completions(r, json,
                            (const json_t *const[DT_N_SIDES]){as_listed ? one : other, as_listed ? other : one}, rules);
}

/* One safety label: true, false, or a number, safe if positive. */
static dt_err read_safety(const json_t *label, const char *key, dt_safety *safety)
{
    if (!label || json_is_null(label)) return DT_OK;
    DT_CHECK(json_is_boolean(label) || json_is_number(label), DT_ERR_DATA, "%s: expected true, false, 1 or -1", key);
    *safety = json_is_true(label) || (json_is_number(label) && json_number_value(label) > 0) ? DT_SAFETY_SAFE
                                                                                             : DT_SAFETY_UNSAFE;
    return DT_OK;
}

/* mmdpo: {prompt, chosen_response, rejected_response, dimension?, safety_labels?}; labels as [chosen,
 * rejected] or by name. */
static dt_err read_responses(dt_parsed_record *r, const json_t *json, const dt_rules *rules)
{
    const json_t *prompt, *chosen, *rejected, *labels = json_object_get(json, "safety_labels");
    DT_TRY(dt_required_text(json, "prompt", &prompt));
    DT_TRY(dt_required_text(json, "chosen_response", &chosen));
    DT_TRY(dt_required_text(json, "rejected_response", &rejected));
    DT_CHECK(!labels || json_is_null(labels) || json_is_object(labels) ||
                 (json_is_array(labels) && json_array_size(labels) == 2),
             DT_ERR_DATA, "safety_labels: expected [chosen, rejected]");
    const bool list = json_is_array(labels);
    DT_TRY(read_safety(list ? json_array_get(labels, 0) : json_object_get(labels, "chosen"), "safety_labels",
                       &r->pair.safety[0]));
    DT_TRY(read_safety(list ? json_array_get(labels, 1) : json_object_get(labels, "rejected"), "safety_labels",
                       &r->pair.safety[1]));
    r->pair.contradicted = is_contradicted(json);
    return add_texts(r, json, rules, span_of(prompt), "\n",
                     (const dt_span[DT_N_SIDES]){span_of(chosen), span_of(rejected)});
}

/* PKU-SafeRLHF as published: two answers, and the indices of the better and of the safer one. */
static dt_err read_pku(dt_parsed_record *r, const json_t *json, const dt_rules *rules)
{
    const json_t *prompt, *response[2];
    const char *key = rules->opt->prefer == DT_PREFER_SAFER ? "safer_response_id" : "better_response_id";
    const json_t *id = json_object_get(json, key);
    DT_TRY(dt_required_text(json, "prompt", &prompt));
    DT_TRY(dt_required_text(json, "response_0", &response[0]));
    DT_TRY(dt_required_text(json, "response_1", &response[1]));
    DT_CHECK(json_is_integer(id) && (json_integer_value(id) == 0 || json_integer_value(id) == 1), DT_ERR_DATA,
             "%s: expected 0 or 1", key);
    const int chosen = (int)json_integer_value(id);
    for (int s = 0; s < DT_N_SIDES; s++) {
        const char *label = (chosen ^ s) ? "is_response_1_safe" : "is_response_0_safe";
        DT_TRY(read_safety(json_object_get(json, label), label, &r->pair.safety[s]));
    }
    return add_texts(r, json, rules, span_of(prompt), "\n",
                     (const dt_span[DT_N_SIDES]){span_of(response[chosen]), span_of(response[!chosen])});
}

dt_err dt_parse_pair(dt_parsed_record *r, const json_t *json, const dt_rules *rules, int which)
{
    const json_t *margin = json_object_get(json, "margin");
    r->has_second = true;
    if (margin && !json_is_null(margin)) {
        DT_CHECK(json_is_number(margin) && isfinite((float)json_number_value(margin)), DT_ERR_DATA,
                 "margin: expected a number");
        r->pair.margin = (float)json_number_value(margin);
    }
    switch (r->form) {
    case DT_FORM_PAIR:
        return read_chosen(r, json, rules);
    case DT_FORM_RESPONSES:
        return read_responses(r, json, rules);
    case DT_FORM_RANKING:
        return read_ranking(r, json, rules, which);
    default:
        return read_pku(r, json, rules);
    }
}

static bool is_pair(const json_t *json, bool any) { return dt_record_is_pair(json); }

static bool lacks_answer(const dt_sample *s, const uint8_t *mask)
{
    return s->pair.prompt_length[0] >= s->n[0] || s->pair.prompt_length[1] >= s->n[1];
}

const dt_record_kind dt_records_preference = {.description = "of a preference",
                                              .missing = "an answer on both sides",
                                              .lacking = "a completion on both sides",
                                              .advice = "",
                                              .noun = "pairs",
                                              .is = is_pair,
                                              .form = dt_pair_form,
                                              .parse = dt_parse_pair,
                                              .is_empty = lacks_answer,
                                              .truncate = DT_TRUNCATE_DROP,
                                              .answers = true,
                                              .images = true};
