/* parse_units.c - records of kinds labels and texts. A sample is a list of units (dt_text_side.units): a text or two
 * with labels, words with a label each, or a group of texts: a query, what fits it, and what does not. */
#include "record_kinds.h"
#include <stdlib.h>
#include <string.h>

/* The value of the first key that the record has; NULL: none. keys ends with NULL. */
static const json_t *first_of(const json_t *json, const char *const *keys)
{
    for (; *keys; keys++)
        if (dt_field_is_set(json_object_get(json, *keys))) return json_object_get(json, *keys);
    return NULL;
}

static dt_err add_text(dt_pieces *p, const json_t *text, const char *what, bool begins)
{
    DT_CHECK(json_is_string(text) && json_string_length(text) > 0, DT_ERR_DATA, "%s: expected a text", what);
    return dt_add_json_text(p, text, begins);
}

/* ---- labels ------------------------------------------------------------------------------------------------------ */

/* An empty list of labels is a value. */
static const json_t *label_of(const json_t *json)
{
    const json_t *label = json_object_get(json, "label");
    if (!label || json_is_null(label)) label = json_object_get(json, "labels");
    return json_is_null(label) ? NULL : label;
}

static const char *const words_keys[] = {"tokens", "words", NULL};
static const char *const tags_keys[] = {"labels", "tags", "ner_tags", NULL};
static const char *const text_keys[] = {"text", "text_a", "sentence", "sentence1", NULL};
static const char *const second_keys[] = {"text_b", "sentence2", NULL};

static bool has_words(const json_t *json)
{
    return json_is_array(first_of(json, words_keys)) && json_is_array(first_of(json, tags_keys));
}

static bool is_labelled(const json_t *json, bool any)
{
    return has_words(json) || (!any && first_of(json, text_keys) && label_of(json));
}

/* A name or a number. reals: also a real number. */
static bool is_label(const json_t *label, bool reals)
{
    return (json_is_string(label) && json_string_length(label) > 0) || json_is_integer(label) ||
           json_is_boolean(label) || (reals && json_is_real(label));
}

static dt_err check_labels(const json_t *labels, bool list)
{
    const json_t *one;
    size_t i;
    DT_CHECK(list || is_label(labels, true) || json_is_array(labels), DT_ERR_DATA,
             "label: expected a name, a number or a list of them");
    json_array_foreach(labels, i, one)
        DT_CHECK(is_label(one, false), DT_ERR_DATA, "label %zu: expected a name or a whole number", i);
    return DT_OK;
}

static dt_err keep_labels(dt_parsed_record *r, const char *key, const json_t *labels)
{
    json_t *fields = json_pack("{s:O}", key, labels);
    r->fields = fields ? json_dumps(fields, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(fields);
    DT_CHECK(r->fields, DT_ERR_MEMORY, "out of memory for labels");
    return DT_OK;
}

static dt_err parse_words(dt_parsed_record *r, const json_t *words, const json_t *labels)
{
    const json_t *word;
    size_t i;
    DT_CHECK(json_array_size(words) == json_array_size(labels) && json_array_size(words) > 0, DT_ERR_DATA,
             "labels: expected one for each of %zu words, found %zu", json_array_size(words), json_array_size(labels));
    r->side[0].apart = true;
    json_array_foreach(words, i, word) DT_TRY(add_text(&r->side[0].pieces, word, "word", true));
    DT_TRY(check_labels(labels, true));
    return keep_labels(r, "word_labels", labels);
}

static dt_err parse_labels(dt_parsed_record *r, const json_t *json, const dt_rules *rules, int which)
{
    const json_t *labels = label_of(json), *second = first_of(json, second_keys);
    r->side[0].units = true;
    if (has_words(json)) return parse_words(r, first_of(json, words_keys), first_of(json, tags_keys));
    DT_CHECK(labels, DT_ERR_DATA, "expected a label, found none");
    DT_TRY(add_text(&r->side[0].pieces, first_of(json, text_keys), "text", true));
    if (second) DT_TRY(add_text(&r->side[0].pieces, second, "second text", true));
    DT_TRY(check_labels(labels, false));
    return keep_labels(r, "labels", labels);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static const char *const query_keys[] = {"query", "anchor", NULL};
static const char *const positive_keys[] = {"positive", "pos", NULL};
static const char *const negative_keys[] = {"negative", "negatives", "neg", NULL};
static const char *const instruction_keys[] = {"instruction", "prompt", NULL};

static bool is_group(const json_t *json, bool any)
{
    return first_of(json, query_keys) && first_of(json, positive_keys);
}

/* A text, or a list of texts. */
static dt_err add_texts(dt_pieces *p, const json_t *value, const char *what)
{
    const json_t *one;
    size_t i;
    if (!value) return DT_OK;
    if (!json_is_array(value)) return add_text(p, value, what, true);
    json_array_foreach(value, i, one) DT_TRY(add_text(p, one, what, true));
    return DT_OK;
}

/* sentence-transformers names several negatives negative_1, negative_2, ... */
static dt_err add_numbered(dt_pieces *p, const json_t *json)
{
    char key[24];
    const json_t *one;
    for (int i = 1; snprintf(key, sizeof key, "negative_%d", i), (one = json_object_get(json, key)); i++)
        DT_TRY(add_text(p, one, key, true));
    return DT_OK;
}

/* One sample for each positive. */
static dt_err parse_texts(dt_parsed_record *r, const json_t *json, const dt_rules *rules, int which)
{
    const json_t *instruction = first_of(json, instruction_keys), *positive = first_of(json, positive_keys);
    dt_pieces *p = &r->side[0].pieces;
    r->side[0].units = true;
    if (instruction) DT_TRY(add_text(p, instruction, "instruction", true));
    DT_TRY(add_text(p, first_of(json, query_keys), "query", !instruction));
    r->n_records = json_is_array(positive) ? (int)json_array_size(positive) : 1;
    DT_CHECK(r->n_records > 0, DT_ERR_DATA, "positive: expected a text, found an empty list");
    DT_TRY(add_text(p, json_is_array(positive) ? json_array_get(positive, (size_t)which) : positive, "positive", true));
    DT_TRY(add_texts(p, first_of(json, negative_keys), "negative"));
    return add_numbered(p, json);
}

static bool has_no_token(const dt_sample *s, const uint8_t *mask) { return s->n[0] == 0; }

const dt_record_kind dt_records_labels = {.description = "of a text with a label",
                                          .missing = "tokens",
                                          .lacking = "any token",
                                          .advice = "",
                                          .noun = "texts with labels",
                                          .is = is_labelled,
                                          .only_form = DT_FORM_LABELS,
                                          .parse = parse_labels,
                                          .is_empty = has_no_token,
                                          .truncate = DT_TRUNCATE_START,
                                          .mask = true};

const dt_record_kind dt_records_texts = {.description = "of a query and what fits it",
                                         .missing = "tokens",
                                         .lacking = "any token",
                                         .advice = "",
                                         .noun = "groups of texts",
                                         .is = is_group,
                                         .only_form = DT_FORM_TEXTS,
                                         .parse = parse_texts,
                                         .is_empty = has_no_token,
                                         .truncate = DT_TRUNCATE_START,
                                         .mask = true};
