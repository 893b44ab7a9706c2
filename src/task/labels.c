/* labels.c - labels of texts or words. A dataset stores them as in its records, by name or number. Here names become
 * numbers, which depend on all files of a run. */
#include "labels.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LABELS = 1 << 16 };
static const char *const problems[] = {"auto", "single_label", "multi_label", "regression", "tokens"};
enum { N_PROBLEMS = sizeof problems / sizeof problems[0] };
/* problem_type of transformers, whose models for words have none */
static const char *const types[N_PROBLEMS] = {NULL, "single_label_classification", "multi_label_classification",
                                              "regression", NULL};

/* The labels of a record, and whether each belongs to a word. */
static dt_err parse(const char *text, json_t **record, json_t **labels, bool *of_words)
{
    DT_TRY(dt_json_parse(record, "", text, strlen(text), DT_JSON_RECORD));
    *labels = json_object_get(*record, "word_labels");
    *of_words = *labels != NULL;
    if (!*labels) *labels = json_object_get(*record, "labels");
    return DT_OK;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* The position of a name in a sorted list, or where it belongs. */
static int position_of(const dt_label_set *s, const char *name, bool *is)
{
    int low = 0, high = s->n;
    *is = false;
    while (low < high) {
        const int mid = low + (high - low) / 2, order = strcmp(name, s->name[mid]);
        if (order == 0) return *is = true, mid;
        *(order < 0 ? &high : &low) = order < 0 ? mid : mid + 1;
    }
    return low;
}

static dt_err add_name(dt_label_set *s, int at, const char *name)
{
    char *copy;
    DT_CHECK(s->n < MOST_LABELS, DT_ERR_DATA, "expected at most %d labels", MOST_LABELS);
    DT_RESIZE(s->name, s->n + 1, "out of memory for %d labels", s->n + 1);
    copy = strdup(name);
    DT_CHECK(copy, DT_ERR_MEMORY, "out of memory for %d labels", s->n + 1);
    memmove(&s->name[at + 1], &s->name[at], (size_t)(s->n - at) * sizeof *s->name);
    s->name[at] = copy;
    s->n++;
    return DT_OK;
}

static dt_err add_numbers(dt_label_set *s, int64_t n)
{
    char name[32];
    for (int64_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "LABEL_%" PRId64, i);
        DT_TRY(add_name(s, s->n, name));
    }
    return DT_OK;
}

void labels_free(dt_label_set *s)
{
    for (int i = 0; i < s->n; i++) free(s->name[i]);
    free(s->name);
    *s = (dt_label_set){0};
}

/* ---- what the data has ------------------------------------------------------------------------------------------- */

typedef struct survey {
    dt_label_set *names; /* sorted */
    bool words, lists, fractions;
    int64_t most; /* largest number; -1: none */
} survey;

static dt_err see(survey *v, const json_t *label)
{
    bool is;
    const json_int_t number = json_is_boolean(label) ? json_is_true(label) : json_integer_value(label);
    v->fractions |= json_is_real(label);
    if (json_is_string(label)) {
        const int at = position_of(v->names, json_string_value(label), &is);
        return is ? DT_OK : add_name(v->names, at, json_string_value(label));
    }
    if (json_is_real(label)) return DT_OK;
    v->most = dt_max_i64(v->most, number);
    return DT_OK;
}

static dt_err survey_record(void *arg, const char *text)
{
    survey *v = arg;
    json_t *record, *labels, *one;
    bool of_words;
    size_t i;
    DT_TRY(parse(text, &record, &labels, &of_words));
    dt_err err = DT_OK;
    v->words |= of_words;
    v->lists |= json_is_array(labels) && !of_words;
    if (labels && !json_is_array(labels)) err = see(v, labels);
    json_array_foreach(labels, i, one) if (err == DT_OK) err = see(v, one);
    json_decref(record);
    return err;
}

/* By problem_type of a config.json; DT_PROBLEM_AUTO: it has none. */
static dt_label_problem problem_of_config(const json_t *config)
{
    const char *type = json_string_value(json_object_get(config, "problem_type"));
    for (int i = 1; i < N_PROBLEMS; i++)
        if (type && types[i] && strcmp(type, types[i]) == 0) return (dt_label_problem)i;
    return DT_PROBLEM_AUTO;
}

static dt_label_problem problem_of(const dt_config *cfg, const json_t *config, const survey *v)
{
    const dt_label_problem of_config = problem_of_config(config);
    for (int i = 1; i < N_PROBLEMS; i++)
        if (strcmp(problems[i], cfg->classify_problem) == 0) return (dt_label_problem)i;
    if (v->words) return DT_PROBLEM_TOKENS;
    if (of_config) return of_config;
    return v->lists ? DT_PROBLEM_MULTI : v->fractions ? DT_PROBLEM_REGRESSION : DT_PROBLEM_SINGLE;
}

static dt_err take_keys(dt_label_set *s, const dt_config *cfg)
{
    char **items;
    int n;
    DT_TRY(dt_config_split(cfg->classify_labels, &items, &n));
    dt_err err = DT_OK;
    for (int i = 0; i < n && err == DT_OK; i++) err = add_name(s, i, items[i]);
    dt_list_free(items, n);
    for (int i = 0; i < s->n && err == DT_OK; i++)
        for (int k = 0; k < i && err == DT_OK; k++)
            if (strcmp(s->name[i], s->name[k]) == 0)
                err = dt_config_fail(cfg, "classify", "labels", "expected different names, found %s twice", s->name[i]);
    return err;
}

/* The names of a model that is a classifier. */
static dt_err take_config(dt_label_set *s, const json_t *config)
{
    const json_t *names = json_object_get(config, "id2label"), *name;
    char key[24];
    for (int i = 0; snprintf(key, sizeof key, "%d", i), json_is_string(name = json_object_get(names, key)); i++)
        DT_TRY(add_name(s, i, json_string_value(name)));
    return DT_OK;
}

dt_err labels_find(dt_label_set *s, const dt_config *cfg, const json_t *config)
{
    dt_label_set found = {0};
    survey v = {.names = &found, .most = -1};
    *s = (dt_label_set){0};
    const char *files = *cfg->data_train ? cfg->data_train : cfg->data_validation;
    dt_err err = *files ? dt_data_records(files, survey_record, &v) : DT_OK;
    s->problem = problem_of(cfg, config, &v);
    if (err == DT_OK && s->problem == DT_PROBLEM_REGRESSION) err = add_numbers(s, 1);
    if (err == DT_OK && s->n == 0) err = take_keys(s, cfg);
    if (err == DT_OK && s->n == 0) err = take_config(s, config);
    for (int i = 0; i < found.n && err == DT_OK && s->n == i; i++) err = add_name(s, i, found.name[i]);
    if (err == DT_OK && s->n == 0) err = add_numbers(s, v.most >= 0 ? v.most + 1 : 2);
    labels_free(&found);
    DT_TRY(err);
    DT_CONFIG_CHECK(s->n > 1 || s->problem == DT_PROBLEM_REGRESSION || s->problem == DT_PROBLEM_MULTI, cfg, "classify",
                    "labels", "expected at least 2 labels, found %d (%s)", s->n, s->n ? s->name[0] : "none");
    return DT_OK;
}

void labels_describe(const dt_label_set *s, json_t *config)
{
    json_t *names = json_object(), *numbers = json_object();
    char number[24];
    for (int i = 0; i < s->n; i++) {
        snprintf(number, sizeof number, "%d", i);
        json_object_set_new(names, number, json_string(s->name[i]));
        json_object_set_new(numbers, s->name[i], json_integer(i));
    }
    json_object_set_new(config, "id2label", names);
    json_object_set_new(config, "label2id", numbers);
    if (types[s->problem]) json_object_set_new(config, "problem_type", json_string(types[s->problem]));
}

dt_err labels_recall(dt_label_set *s, const dt_model_config *mc)
{
    json_t *config;
    *s = (dt_label_set){0};
    DT_TRY(dt_json_parse(&config, "config.json", mc->json, strlen(mc->json), 0));
    s->problem = mc->score_bias ? DT_PROBLEM_TOKENS : problem_of_config(config);
    const dt_err err = take_config(s, config);
    json_decref(config);
    return err;
}

/* ---- labels of samples ------------------------------------------------------------------------------------------- */

static dt_err number_of(const dt_label_set *s, const json_t *label, float *number)
{
    if (s->problem == DT_PROBLEM_REGRESSION) {
        DT_CHECK(json_is_number(label), DT_ERR_DATA, "expected a number as label, for problem = regression");
        *number = (float)json_number_value(label);
        return DT_OK;
    }
    for (int i = 0; json_is_string(label) && i < s->n; i++)
        if (strcmp(s->name[i], json_string_value(label)) == 0) return *number = (float)i, DT_OK;
    DT_CHECK(!json_is_string(label), DT_ERR_DATA, "label %.80s is not one of the %d labels of this run (%.40s, ...)",
             json_string_value(label), s->n, s->name[0]);
    const json_int_t i = json_is_boolean(label) ? json_is_true(label) : json_integer_value(label);
    DT_CHECK(!json_is_real(label) && i >= 0 && i < s->n, DT_ERR_DATA, "expected a label from 0 to %d, found %g",
             s->n - 1, json_is_real(label) ? json_real_value(label) : (double)i);
    *number = (float)i;
    return DT_OK;
}

/* Numbers of a record's labels: into label if it is not NULL. */
static dt_err numbers_of(const dt_label_set *s, const char *text, float *label, int64_t *n)
{
    json_t *record, *labels, *one;
    bool of_words;
    size_t i;
    float number = 0;
    DT_TRY(parse(text, &record, &labels, &of_words));
    dt_err err = DT_OK;
    const bool list = json_is_array(labels), wanted = s->problem == DT_PROBLEM_MULTI || s->problem == DT_PROBLEM_TOKENS;
    if (!labels || of_words != (s->problem == DT_PROBLEM_TOKENS) || (list && !wanted))
        err = dt_fail(DT_ERR_DATA, "expected %s, for problem = %s",
                      s->problem == DT_PROBLEM_TOKENS ? "words with labels"
                      : wanted                        ? "labels of a text"
                                                      : "one label of a text",
                      problems[s->problem]);
    *n = list ? (int64_t)json_array_size(labels) : 1;
    if (err == DT_OK && !list) err = number_of(s, labels, label ? label : &number);
    json_array_foreach(labels, i, one) if (err == DT_OK) err = number_of(s, one, label ? &label[i] : &number);
    json_decref(record);
    return err;
}

static dt_err each_sample(dt_sample_labels *of, const dt_label_set *s, dt_loader *l)
{
    int64_t at = 0;
    for (int64_t i = 0; i < of->n_samples; i++) {
        char *text;
        int64_t n = 0;
        DT_TRY(dt_loader_record(l, i, &text));
        const dt_err err = numbers_of(s, text, of->label ? &of->label[at] : NULL, &n);
        free(text);
        DT_TRY(dt_error_prefix(err, "%s: sample %" PRId64 ": ", dt_loader_info(l)->path, i));
        DT_CHECK(s->problem != DT_PROBLEM_TOKENS || dt_loader_n_target(l, i) <= n, DT_ERR_DATA,
                 "%s: sample %" PRId64 ": expected a label for each of its words, found %" PRId64,
                 dt_loader_info(l)->path, i, n);
        if (of->first) of->first[i] = at, of->first[i + 1] = at + n;
        at += n;
    }
    of->n_labels = at;
    return DT_OK;
}

dt_err labels_count(dt_sample_labels *of, const dt_label_set *s, dt_loader *l)
{
    *of = (dt_sample_labels){.n_samples = l ? dt_loader_info(l)->n_samples : 0};
    return l ? each_sample(of, s, l) : DT_OK;
}

void labels_lay_out(dt_sample_labels *of, void *block, size_t *used)
{
    if (of->n_samples == 0) return;
    of->first = dt_carve(block, used, of->n_samples + 1, sizeof *of->first);
    of->label = dt_carve(block, used, dt_max_i64(1, of->n_labels), sizeof *of->label);
}

dt_err labels_read(dt_sample_labels *of, const dt_label_set *s, dt_loader *l)
{
    return l ? each_sample(of, s, l) : DT_OK;
}
