/* eval_answers.c - extracts the answers of generated texts by regular expressions, and compares them with the target,
 * as the filter "regex" and the metric "exact_match" of lm-evaluation-harness do. */
#include "dtrain/text/pattern.h"
#include "dtrain/text/space.h"
#include "dtrain/text/unicode.h"
#include "eval_private.h"
#include <stdlib.h>
#include <string.h>

#define INVALID "[invalid]" /* the answer of a text without a match */

/* ---- description ------------------------------------------------------------------------------------------------- */

static dt_err compile(const eval_bench *b, eval_key key, const char *pattern, dt_pattern **p)
{
    char where[EVAL_WHERE];
    return dt_error_lead(dt_pattern_compile(p, pattern, strlen(pattern), DT_PATTERN_PYTHON),
                         "%s: ", eval_where(b, key, where));
}

static dt_err parse_list(const eval_bench *b, eval_key key, json_t **list)
{
    const char *text = eval_text(b, key);
    *list = NULL;
    if (!*text) return DT_OK;
    if (dt_json_parse(list, "", text, strlen(text), DT_JSON_RECORD) == DT_OK && json_is_array(*list)) return DT_OK;
    dt_error_clear();
    json_decref(*list);
    *list = NULL;
    return eval_fail(b, key, "expected a JSON array, found %.80s", text);
}

static dt_err add_filter(eval_bench *b, const json_t *one)
{
    const char *name = json_string_value(json_object_get(one, "name")),
               *pattern = json_string_value(json_object_get(one, "regex_pattern"));
    if (!name || !pattern || !*name)
        return eval_fail(b, EVAL_filter, "expected objects with name and regex_pattern, and maybe group_select");
    DT_GROW(b->filter, b->n_filters, "out of memory for filters");
    eval_filter *f = &b->filter[b->n_filters++];
    *f = (eval_filter){.group = (int)json_integer_value(json_object_get(one, "group_select"))};
    DT_COPY_TEXT(f->name, name, "out of memory for filters");
    return compile(b, EVAL_filter, pattern, &f->pattern);
}

static dt_err read_filters(eval_bench *b, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) DT_TRY(add_filter(b, json_array_get(list, i)));
    if (b->n_filters > 0) return DT_OK;
    DT_GROW(b->filter, b->n_filters, "out of memory for filters"); /* the whole text */
    b->filter[b->n_filters++] = (eval_filter){.name = NULL};
    return DT_OK;
}

static dt_err read_ignored(eval_bench *b, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *pattern = json_string_value(json_array_get(list, i));
        if (!pattern) return eval_fail(b, EVAL_regexes_to_ignore, "expected a list of texts");
        DT_GROW(b->ignored, b->n_ignored, "out of memory for regular expressions");
        b->ignored[b->n_ignored++] = NULL;
        DT_TRY(compile(b, EVAL_regexes_to_ignore, pattern, &b->ignored[b->n_ignored - 1]));
    }
    return DT_OK;
}

dt_err eval_read_answers(eval_bench *b)
{
    json_t *list;
    DT_TRY(parse_list(b, EVAL_filter, &list));
    dt_err err = read_filters(b, list);
    json_decref(list);
    DT_TRY(err);
    DT_TRY(parse_list(b, EVAL_regexes_to_ignore, &list));
    err = read_ignored(b, list);
    json_decref(list);
    DT_TRY(err);
    return parse_list(b, EVAL_until, &b->until);
}

void eval_free_answers(eval_bench *b)
{
    for (int i = 0; i < b->n_filters; i++) {
        free(b->filter[i].name);
        dt_pattern_free(b->filter[i].pattern);
    }
    for (int i = 0; i < b->n_ignored; i++) dt_pattern_free(b->ignored[i]);
    free(b->filter), free(b->ignored);
    json_decref(b->until);
}

/* ---- extraction -------------------------------------------------------------------------------------------------- */

/* The match of a filter: number `group` from the start, or from the end if it is negative. */
typedef struct search {
    int wanted, n;
    size_t begin, end;
} search;

/* Python's findall: the whole match, the only group, or, of several groups, the first that is not empty. */
static dt_err note(void *self, const size_t *span, int n_groups)
{
    search *s = self;
    if (s->n++ != s->wanted) return DT_OK;
    s->begin = s->end = SIZE_MAX;
    if (n_groups == 0) s->begin = span[0], s->end = span[1];
    if (n_groups == 1) s->begin = span[2], s->end = span[3];
    for (int g = 1; n_groups > 1 && g <= n_groups && s->begin == SIZE_MAX; g++)
        if (span[2 * g] != SIZE_MAX && span[2 * g + 1] > span[2 * g]) s->begin = span[2 * g], s->end = span[2 * g + 1];
    if (n_groups == 1 && s->begin == SIZE_MAX) s->begin = s->end = 0; /* a group without a match is "" */
    return DT_OK;
}

static dt_err extract(const eval_filter *f, const char *text, dt_text *out)
{
    search s = {.wanted = -1}, found;
    if (!f->pattern) return dt_text_append(out, text, strlen(text)), DT_OK;
    DT_TRY(dt_pattern_each(f->pattern, text, strlen(text), 0, note, &s));
    found = (search){.wanted = f->group < 0 ? s.n + f->group : f->group, .begin = SIZE_MAX};
    if (found.wanted >= 0 && found.wanted < s.n)
        DT_TRY(dt_pattern_each(f->pattern, text, strlen(text), 0, note, &found));
    if (found.begin == SIZE_MAX) return dt_text_append(out, INVALID, strlen(INVALID)), DT_OK;
    const char *at = text + found.begin;
    const size_t n = found.end - found.begin, before = dt_space_before(at, n);
    if (before < n) dt_text_append(out, at + before, dt_space_trimmed(at + before, n - before));
    return DT_OK;
}

/* ---- comparison -------------------------------------------------------------------------------------------------- */

static bool is_on(const eval_bench *b, eval_key key) { return !strcmp(eval_text(b, key), "true"); }

/* Append the text without what the comparison ignores. */
static dt_err reduce(const eval_bench *b, const char *text, dt_text *out)
{
    char *now = strdup(text);
    for (int i = 0; i < b->n_ignored && now; i++) {
        dt_text next = {0};
        const dt_err err = dt_pattern_replace(b->ignored[i], now, strlen(now), "", 0, 0, &next);
        free(now);
        now = dt_text_finish(&next, &(size_t){0});
        if (err != DT_OK) return free(now), err;
    }
    DT_CHECK(now, DT_ERR_MEMORY, "out of memory for an answer");
    for (const char *p = now; *p;) {
        char bytes[4];
        uint32_t c = dt_utf8_next(&p);
        if (is_on(b, EVAL_ignore_punctuation) && c < 128 && strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", (int)c))
            continue;
        if (is_on(b, EVAL_ignore_numbers) && c >= '0' && c <= '9') continue;
        if (is_on(b, EVAL_ignore_case)) c = dt_unicode_lower(c);
        dt_text_append(out, bytes, dt_utf8_put(c, bytes));
    }
    free(now);
    return DT_OK;
}

/* MATH: the answer is between the first and the last dollar sign. */
static dt_err equal_in_math(const char *answer, const char *target, bool *equal)
{
    const char *first = strchr(answer, '$'), *end = strrchr(answer, '$');
    char *inner = first && end > first ? strndup(first + 1, (size_t)(end - first) - 1) : strdup(answer);
    DT_CHECK(inner, DT_ERR_MEMORY, "out of memory for an answer");
    const dt_err err = eval_math_equal(inner, target, equal);
    free(inner);
    return err;
}

static dt_err equal_texts(const eval_bench *b, const char *answer, const char *target, bool *equal)
{
    dt_text one = {0}, two = {0};
    if (!strcmp(eval_text(b, EVAL_compare), "math")) return equal_in_math(answer, target, equal);
    dt_err err = reduce(b, answer, &one);
    if (err == DT_OK) err = reduce(b, target, &two);
    *equal = one.n == two.n && (one.n == 0 || memcmp(one.bytes, two.bytes, one.n) == 0);
    if (err == DT_OK && (one.failed || two.failed)) err = dt_fail(DT_ERR_MEMORY, "out of memory for an answer");
    dt_text_free(&one), dt_text_free(&two);
    return err;
}

dt_err eval_is_correct(const eval_bench *b, int filter, const char *text, const json_t *target, bool *correct)
{
    dt_text extracted = {0};
    const size_t n = json_is_array(target) ? json_array_size(target) : 1;
    dt_err err = extract(&b->filter[filter], text, &extracted);
    const char *answer = eval_string(&extracted);
    *correct = false;
    for (size_t i = 0; i < n && err == DT_OK && !*correct; i++) {
        const char *one = json_string_value(json_is_array(target) ? json_array_get(target, i) : target);
        if (one) err = equal_texts(b, answer, one, correct);
    }
    if (err == DT_OK && extracted.failed) err = dt_fail(DT_ERR_MEMORY, "out of memory for an answer");
    dt_text_free(&extracted);
    return err;
}
