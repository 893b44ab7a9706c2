/* parse_unpaired.c - records of a prompt, one answer and a label, {prompt, completion, label}: texts or messages. With
 * --kind unpaired a pair of a chosen and a rejected answer gives two samples. */
#include "record_kinds.h"
#include <stdlib.h>
#include <string.h>

int dt_label_of(const json_t *label)
{
    const double x = json_is_number(label)    ? json_number_value(label)
                     : json_is_boolean(label) ? json_is_true(label)
                                              : -1;
    return x == 1 ? 1 : x == 0 ? 0 : -1;
}

static bool is_one_pair(const json_t *json) { return dt_record_is_pair(json) && dt_pair_form(json) != DT_FORM_RANKING; }

static bool is_unpaired(const json_t *json, bool any)
{
    /* with any label: parse refuses a value that is none, which sft would ignore */
    if (any) return dt_record_is_completion(json) && dt_field_is_set(json_object_get(json, "label"));
    return dt_record_is_completion(json) || is_one_pair(json);
}

static dt_form form(const json_t *json) { return is_one_pair(json) ? dt_pair_form(json) : DT_FORM_COMPLETION; }

/* The chosen answer is sample 0, the rejected one sample 1. */
static dt_err take_side(dt_parsed_record *r, const json_t *json, const dt_rules *rules, int which)
{
    DT_TRY(dt_parse_pair(r, json, rules, 0));
    DT_CHECK(!r->pair.tie, DT_ERR_DATA, "tie: neither answer is better, so they have no labels");
    if (which == DT_SIDE_SECOND) {
        const dt_text_side side = r->side[0];
        const dt_messages messages = r->messages[0];
        r->side[0] = r->side[1], r->side[1] = side;
        r->messages[0] = r->messages[1], r->messages[1] = messages;
    }
    r->has_second = false;
    r->pair = (dt_pair){.good = which == DT_SIDE_FIRST};
    r->n_records = DT_N_SIDES;
    return DT_OK;
}

static dt_err refuse_label(const json_t *label, const dt_rules *rules)
{
    char *found = dt_json_has_bytes(label) ? strdup("binary values")
                  : label                  ? json_dumps(label, JSON_ENCODE_ANY | JSON_COMPACT)
                                           : NULL;
    const dt_err err =
        dt_fail(DT_ERR_DATA, "label: expected true or false (is the completion good?), found %.40s%s",
                found ? found : "none", rules->opt->kind == DT_ANY_KIND ? "; --kind sft ignores other labels" : "");
    free(found);
    return err;
}

static dt_err parse(dt_parsed_record *r, const json_t *json, const dt_rules *rules, int which)
{
    const int label = dt_label_of(json_object_get(json, "label"));
    int n_prompt;
    if (r->form != DT_FORM_COMPLETION) return take_side(r, json, rules, which);
    if (label < 0) return refuse_label(json_object_get(json, "label"), rules);
    r->pair.good = label == 1;
    DT_TRY(dt_read_completion(r, json, rules, &n_prompt));
    if (n_prompt < 0) return DT_OK;
    DT_TRY(dt_check_no_loss(&r->messages[0], n_prompt, "a label judges the whole answer"));
    DT_TRY(dt_check_results(&r->messages[0], n_prompt));
    dt_learn_completion(&r->messages[0], n_prompt);
    return dt_render_side(r, DT_SIDE_FIRST, rules, 0);
}

static bool lacks_answer(const dt_sample *s, const uint8_t *mask) { return s->pair.prompt_length[0] >= s->n[0]; }

const dt_record_kind dt_records_unpaired = {.description = "of an answer with a label",
                                            .missing = "an answer",
                                            .lacking = "a completion",
                                            .advice = "",
                                            .noun = "answers with labels",
                                            .fields = " label ",
                                            .is = is_unpaired,
                                            .form = form,
                                            .parse = parse,
                                            .is_empty = lacks_answer,
                                            .truncate = DT_TRUNCATE_START,
                                            .answers = true,
                                            .images = true};
