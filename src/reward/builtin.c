/* builtin.c - built-in reward functions: each has a name, a parser of its parameters and a scoring function.
 * docs/rewards.md describes them.
 *
 * Missing parameters come from the record, so length and keywords may differ between prompts. */
#include "builtin.h"
#include "answer.h"
#include "dtrain/recommend/catalogue.h"
#include "dtrain/text/pattern.h"
#include "dtrain/text/unicode.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct dt_builtin {
    const dt_builtin_kind *what;
    double least, most;  /* length, in tokens; most 0: taken from the record */
    char *words;         /* keywords, separated by |; NULL: taken from the record */
    dt_pattern *pattern; /* format */
};

/* ---- accuracy ---------------------------------------------------------------------------------------------------- */

/* The answer in a record, as text: malloc'ed; *text NULL: none. */
static dt_err answer_of_record(const json_t *record, char **text)
{
    const json_t *answer = json_object_get(record, "answer");
    if (!answer || json_is_null(answer)) answer = json_object_get(record, "solution");
    *text = NULL;
    if (!answer || json_is_null(answer)) return DT_OK;
    *text = json_is_string(answer) ? strdup(json_string_value(answer)) : json_dumps(answer, JSON_ENCODE_ANY);
    DT_CHECK(*text, DT_ERR_MEMORY, "out of memory for the answer of a record");
    return DT_OK;
}

static dt_err accuracy(const dt_builtin *b, const dt_reward_sample *s, const json_t *record, double *reward)
{
    char *text;
    bool equal = false;
    DT_TRY(answer_of_record(record, &text));
    const dt_answer want = text ? dt_answer_in(text) : (dt_answer){0}, found = dt_answer_in(s->completion);
    dt_err err = DT_OK;
    if (want.n == 0)
        *reward = (double)NAN;
    else if ((err = dt_answers_equal(found, want, &equal)) == DT_OK)
        *reward = equal;
    free(text);
    return err;
}

/* ---- format ------------------------------------------------------------------------------------------------------ */

#define NO_TAG "(?:(?!</?think>|</?answer>).)*+"
#define THINK_ANSWER "\\s*<think>" NO_TAG "</think>\\s*<answer>" NO_TAG "</answer>\\s*"

static dt_err read_format(dt_builtin *b, const char *parameters)
{
    const char *pattern = parameters ? parameters : THINK_ANSWER;
    const dt_err err = dt_pattern_compile(&b->pattern, pattern, strlen(pattern), DT_PATTERN_WHOLE_UTF8);
    return dt_error_lead(err == DT_ERR_DATA ? DT_ERR_USAGE : err, "format%s%s: ", parameters ? ":" : "",
                         parameters ? parameters : "");
}

static dt_err format(const dt_builtin *b, const dt_reward_sample *s, const json_t *record, double *reward)
{
    bool matches;
    DT_TRY(dt_pattern_matches(b->pattern, s->completion, 0, &matches));
    *reward = matches;
    return DT_OK;
}

/* ---- length ------------------------------------------------------------------------------------------------------ */

static bool is_length(double x) { return x >= 1 && x <= INT32_MAX && x == floor(x); }

static dt_err read_length(dt_builtin *b, const char *parameters)
{
    if (!parameters) return DT_OK;
    char *end;
    b->least = b->most = strtod(parameters, &end);
    if (*end == ':') b->most = strtod(end + 1, &end);
    DT_CHECK(
        !*end && is_length(b->least) && is_length(b->most) && b->least <= b->most, DT_ERR_USAGE,
        "length:%s: expected length:TARGET or length:MIN:MAX in tokens, with values of at least 1 and MIN at most MAX",
        parameters);
    return DT_OK;
}

/* The record's length: a number, or a list of the minimum and the maximum. */
static dt_err length_of_record(const json_t *record, double *least, double *most)
{
    const json_t *length = json_object_get(record, "length");
    const bool range = json_is_array(length) && json_array_size(length) == 2;
    if (!length || json_is_null(length)) return DT_OK;
    *least = json_number_value(range ? json_array_get(length, 0) : length);
    *most = json_number_value(range ? json_array_get(length, 1) : length);
    DT_CHECK(is_length(*least) && is_length(*most) && *least <= *most, DT_ERR_DATA,
             "field length of a record: expected a number of tokens, or a list of the minimum and the maximum");
    return DT_OK;
}

/* 1 within the range; falls linearly to 0 at 0 tokens and at twice the maximum. */
static dt_err length(const dt_builtin *b, const dt_reward_sample *s, const json_t *record, double *reward)
{
    double least = b->least, most = b->most;
    const double n = s->n_completion;
    if (most == 0) DT_TRY(length_of_record(record, &least, &most));
    *reward = most == 0 ? (double)NAN : n < least ? n / least : n > most ? fmax(0, 2 - n / most) : 1;
    return DT_OK;
}

/* ---- keywords ---------------------------------------------------------------------------------------------------- */

static dt_err read_keywords(dt_builtin *b, const char *parameters)
{
    if (!parameters) return DT_OK;
    DT_CHECK(parameters[strspn(parameters, "| ")], DT_ERR_USAGE, "keywords:%s: expected words, such as keywords:yes|no",
             parameters);
    b->words = strdup(parameters);
    DT_CHECK(b->words, DT_ERR_MEMORY, "out of memory for keywords");
    return DT_OK;
}

static dt_err look_for(const char *text, const char *word, size_t n, int *n_words, int *n_found)
{
    while (n > 0 && *word == ' ') word++, n--;
    while (n > 0 && word[n - 1] == ' ') n--;
    if (n == 0) return DT_OK;
    char *copy = strndup(word, n);
    DT_CHECK(copy, DT_ERR_MEMORY, "out of memory for a keyword");
    ++*n_words;
    *n_found += strcasestr(text, copy) != NULL;
    free(copy);
    return DT_OK;
}

static dt_err look_for_all(const char *text, const char *words, int *n_words, int *n_found)
{
    for (const char *p = words; *p; p += *p == '|') {
        const size_t n = strcspn(p, "|");
        DT_TRY(look_for(text, p, n, n_words, n_found));
        p += n;
    }
    return DT_OK;
}

/* The record's keywords: a text as in the parameters, or a list of texts. */
static dt_err look_for_records(const char *text, const json_t *record, int *n_words, int *n_found)
{
    const json_t *words = json_object_get(record, "keywords"), *word;
    size_t i;
    if (!words || json_is_null(words)) return DT_OK;
    if (json_is_string(words)) return look_for_all(text, json_string_value(words), n_words, n_found);
    DT_CHECK(json_is_array(words), DT_ERR_DATA, "field keywords of a record: expected a text or a list of texts");
    json_array_foreach(words, i, word)
    {
        DT_CHECK(json_is_string(word), DT_ERR_DATA, "field keywords of a record: expected a list of texts");
        DT_TRY(look_for(text, json_string_value(word), json_string_length(word), n_words, n_found));
    }
    return DT_OK;
}

static dt_err keywords(const dt_builtin *b, const dt_reward_sample *s, const json_t *record, double *reward)
{
    int n_words = 0, n_found = 0;
    DT_TRY(b->words ? look_for_all(s->completion, b->words, &n_words, &n_found)
                    : look_for_records(s->completion, record, &n_words, &n_found));
    *reward = n_words ? (double)n_found / n_words : (double)NAN;
    return DT_OK;
}

/* ---- recommendation: rewards of MiniOneRec (arXiv:2510.24431) ---------------------------------------------------- */

static dt_err hit(const dt_builtin *b, const dt_reward_sample *s, const json_t *record, double *reward)
{
    char *text;
    DT_TRY(answer_of_record(record, &text));
    *reward = (double)NAN;
    if (text) {
        size_t n_want, n_found;
        const char *want = dt_sid_in(text, &n_want), *found = dt_sid_in(s->completion, &n_found);
        *reward = n_want == n_found && memcmp(want, found, n_want) == 0;
    }
    free(text);
    return DT_OK;
}

/* A text that is not an item has no similarity to any item. */
static dt_err semantic(const dt_builtin *b, const dt_reward_sample *s, const json_t *record, double *reward)
{
    const dt_catalogue *c = dt_item_vectors_catalogue(s->items);
    char *text;
    DT_TRY(answer_of_record(record, &text));
    *reward = (double)NAN;
    if (text) {
        size_t n_want, n_found;
        const char *want = dt_sid_in(text, &n_want), *found = dt_sid_in(s->completion, &n_found);
        const int32_t target = dt_catalogue_find(c, want, n_want), item = dt_catalogue_find(c, found, n_found);
        if (target >= 0) *reward = item < 0 ? 0 : dt_item_cosine(s->items, item, target);
    }
    free(text);
    return DT_OK;
}

/* In a group with a hit, a miss costs more the higher it ranks; n ranks together cost 1. */
static void punish_misses(double *reward, int n, int stride)
{
    double sum = 0, hits = 0;
    for (int i = 0; i < n; i++) {
        sum += 1 / log2(i + 2);
        hits += reward[i * stride];
    }
    for (int i = 0; i < n && hits > 0; i++)
        if (reward[i * stride] == 0) reward[i * stride] = -1 / log2(i + 2) / sum;
}

static void punish_alone(double *reward, int n, int stride)
{
    punish_misses(reward, n, stride);
    for (int i = 0; i < n; i++)
        if (reward[i * stride] > 0) reward[i * stride] = 0;
}

/* ---- list of functions ------------------------------------------------------------------------------------------- */

const dt_builtin_kind dt_builtins[] = {{.name = "accuracy", .score = accuracy},
                                       {.name = "format", .read = read_format, .score = format},
                                       {.name = "length", .read = read_length, .score = length},
                                       {.name = "keywords", .read = read_keywords, .score = keywords},
                                       {.name = "rec", .score = hit, .of_group = punish_misses},
                                       {.name = "rec_rule", .score = hit},
                                       {.name = "rec_rank", .score = hit, .of_group = punish_alone},
                                       {.name = "rec_semantic", .score = semantic, .of_items = true},
                                       {.name = NULL}};

static dt_err read(dt_builtin *b, const char *parameters)
{
    if (b->what->read) return b->what->read(b, parameters);
    DT_CHECK(!parameters, DT_ERR_USAGE, "%s:%s: %s has no parameters", b->what->name, parameters, b->what->name);
    return DT_OK;
}

dt_err dt_builtin_open(dt_builtin **out, const char *text)
{
    const size_t n = strcspn(text, ":");
    const dt_builtin_kind *what = dt_builtins;
    while (what->name && (strlen(what->name) != n || strncmp(text, what->name, n) != 0)) what++;
    *out = NULL;
    if (!what->name) return DT_OK;
    dt_builtin *b = calloc(1, sizeof *b);
    DT_CHECK(b, DT_ERR_MEMORY, "out of memory for a reward function");
    b->what = what;
    dt_err err = read(b, text[n] ? text + n + 1 : NULL);
    if (err == DT_OK && what->score == accuracy) err = dt_error_lead(dt_unicode_check_forms(), "accuracy: ");
    if (err == DT_OK)
        *out = b;
    else
        dt_builtin_close(b);
    return err;
}

void dt_builtin_close(dt_builtin *b)
{
    if (!b) return;
    dt_pattern_free(b->pattern);
    free(b->words);
    free(b);
}

const dt_builtin_kind *dt_builtin_of(const dt_builtin *b) { return b->what; }
