/* eval_prompts.c - the question of a document: description, solved examples, its text, and the continuations that are
 * compared. The rules are those of lm-evaluation-harness 0.4 (api/task.py), so that prompts are equal. */
#include "dtrain/text/space.h"
#include "dtrain/text/utf8.h"
#include "eval_private.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- values of a document ---------------------------------------------------------------------------------------- */

static dt_err need_text(const eval_bench *b, eval_key key, const eval_doc *doc, const json_t *v, const char **text)
{
    *text = v ? json_string_value(v) : "";
    if (!*text) return eval_doc_fail(b, key, doc, "expected a text, found another value");
    return DT_OK;
}

static dt_err text_of(const eval_bench *b, eval_key key, const eval_doc *doc, dt_text *out)
{
    json_t *v;
    const char *text;
    DT_TRY(eval_value_of(b, key, doc, &v));
    const dt_err err = need_text(b, key, doc, v, &text);
    if (err == DT_OK) dt_text_append(out, text, strlen(text));
    json_decref(v);
    return err;
}

static dt_err check_choices(const eval_bench *b, const eval_doc *doc, const json_t *choices)
{
    const size_t n = json_array_size(choices);
    if (!json_is_array(choices) || n == 0)
        return eval_doc_fail(b, EVAL_doc_to_choice, doc, "expected a list of texts, found %s",
                             json_is_array(choices) ? "an empty one" : "another value");
    if (b->n_choices > 0 && n != (size_t)b->n_choices)
        return eval_doc_fail(b, EVAL_doc_to_choice, doc, "expected n_choices = %d choices, found %zu", b->n_choices, n);
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string_value(json_array_get(choices, i));
        if (!text || !*text)
            return eval_doc_fail(b, EVAL_doc_to_choice, doc, "choice %zu: expected a text, found %s", i,
                                 text ? "an empty one" : "another value");
    }
    return DT_OK;
}

static const char *choice(const json_t *choices, int64_t i)
{
    return json_string_value(json_array_get(choices, (size_t)i));
}

/* Index of a choice from a number or its text. */
static dt_err index_of(const eval_bench *b, eval_key key, const eval_doc *doc, const json_t *choices, const json_t *v,
                       int64_t *at)
{
    const int64_t n = (int64_t)json_array_size(choices);
    const char *text = json_string_value(v);
    *at = json_is_integer(v) ? (int64_t)json_integer_value(v) : 0;
    for (; text && *at < n && strcmp(choice(choices, *at), text) != 0; ++*at) continue;
    if (*at >= 0 && *at < n && (text || json_is_integer(v))) return DT_OK;
    if (text)
        return eval_doc_fail(b, key, doc,
                             "expected the index of a choice from 0 to %" PRId64 ", or its text; found '%.80s'", n - 1,
                             text);
    return eval_doc_fail(b, key, doc, "expected the index of a choice from 0 to %" PRId64 ", found %" PRId64, n - 1,
                         *at);
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

static bool is_space_at_end(const char *text, size_t n) { return n > 0 && dt_space_trimmed(text, n) < n; }

/* Append a separator unless white space is at the border of both texts. */
static void delimit(dt_text *out, size_t from, const char *next, const char *delimiter)
{
    if (out->n > from && *next && !is_space_at_end(out->bytes + from, out->n - from) &&
        !dt_space_length(next, strlen(next)))
        dt_text_append(out, delimiter, strlen(delimiter));
}

/* Append the prefix of answers, separated from the question that begins at `from`. */
static dt_err put_prefix(const eval_bench *b, const eval_doc *doc, size_t from, dt_text *out)
{
    dt_text prefix = {0};
    const dt_err err = text_of(b, EVAL_gen_prefix, doc, &prefix);
    delimit(out, from, eval_string(&prefix), eval_text(b, EVAL_target_delimiter));
    dt_text_append(out, prefix.bytes, prefix.n);
    out->failed |= prefix.failed;
    dt_text_free(&prefix);
    return err;
}

/* The text of a document before its answer. at: the choice that it names instead; -1: none. */
static dt_err question_text(const eval_bench *b, const eval_doc *doc, const json_t *choices, json_t **text, int64_t *at)
{
    *at = -1;
    DT_TRY(eval_value_of(b, EVAL_doc_to_text, doc, text));
    return json_is_integer(*text) ? index_of(b, EVAL_doc_to_text, doc, choices, *text, at) : DT_OK;
}

static dt_err choices_of(const eval_bench *b, const eval_doc *doc, json_t **choices)
{
    *choices = NULL;
    if (b->form != EVAL_CHOICES) return DT_OK;
    DT_TRY(eval_value_of(b, EVAL_doc_to_choice, doc, choices));
    return check_choices(b, doc, *choices);
}

/* The answer of an example: a text, a choice, or the first of several. */
static dt_err answer_text(const eval_bench *b, const eval_doc *doc, const json_t *choices, bool input,
                          const json_t *target, const char **answer)
{
    int64_t at;
    if (json_is_array(target)) target = json_array_get(target, 0);
    if (!json_is_integer(target) || !choices || input) return need_text(b, EVAL_doc_to_target, doc, target, answer);
    DT_TRY(index_of(b, EVAL_doc_to_target, doc, choices, target, &at));
    return *answer = choice(choices, at), DT_OK;
}

static dt_err put_example_of(const eval_bench *b, const eval_doc *doc, json_t *v[3], dt_text *out)
{
    int64_t at;
    const char *question, *answer;
    const size_t from = out->n;
    DT_TRY(choices_of(b, doc, &v[0]));
    DT_TRY(question_text(b, doc, v[0], &v[1], &at));
    DT_TRY(eval_value_of(b, EVAL_doc_to_target, doc, &v[2]));
    if (at >= 0)
        question = choice(v[0], at);
    else
        DT_TRY(need_text(b, EVAL_doc_to_text, doc, v[1], &question));
    DT_TRY(answer_text(b, doc, v[0], at >= 0, v[2], &answer));
    dt_text_append(out, question, strlen(question));
    if (*eval_text(b, EVAL_gen_prefix)) {
        DT_TRY(put_prefix(b, doc, from, out));
        delimit(out, from, answer, " ");
    } else if (*answer) {
        dt_text_append(out, eval_text(b, EVAL_target_delimiter), strlen(eval_text(b, EVAL_target_delimiter)));
    }
    dt_text_append(out, answer, strlen(answer));
    if (*answer || *eval_text(b, EVAL_gen_prefix))
        dt_text_append(out, eval_text(b, EVAL_fewshot_delimiter),
                       *answer ? strlen(eval_text(b, EVAL_fewshot_delimiter)) : 0);
    return DT_OK;
}

static dt_err put_example(const eval_bench *b, const eval_doc *doc, dt_text *out)
{
    json_t *v[3] = {NULL, NULL, NULL};
    const dt_err err = put_example_of(b, doc, v, out);
    for (int i = 0; i < 3; i++) json_decref(v[i]);
    return err;
}

/* ---- choosing examples ------------------------------------------------------------------------------------------- */

static bool is_doc(const eval_bench *b, int64_t example, const eval_doc *doc)
{
    return doc && json_equal(b->examples.doc[example].record, doc->record);
}

/* Keep the first k of n examples that are not the document. Returns their number. */
static int keep(const eval_bench *b, const eval_doc *without, int64_t *chosen, int64_t n, int k)
{
    int kept = 0;
    for (int64_t i = 0; i < n && kept < k; i++)
        if (!is_doc(b, chosen[i], without)) chosen[kept++] = chosen[i];
    return kept;
}

static dt_err choose_among(const eval_bench *b, const eval_doc *without, python_random *random, int64_t *chosen)
{
    const int64_t n = b->examples.n;
    const int k = b->n_fewshot;
    int64_t n_left = 0;
    if (!strcmp(eval_text(b, EVAL_fewshot_sampler), "first_n")) {
        for (int64_t i = 0; i < n; i++) chosen[i] = i;
        return keep(b, without, chosen, n, k) == k
                   ? DT_OK
                   : eval_fail(b, EVAL_fewshot_files, "expected %d examples other than the document, found fewer", k);
    }
    DT_TRY(python_random_sample(random, n, k + (without != NULL), chosen));
    if (keep(b, without, chosen, k + (without != NULL), k) == k) return DT_OK;
    int64_t *left;
    DT_ALLOC(left, n, "out of memory for examples");
    for (int64_t i = 0; i < n; i++)
        if (!is_doc(b, i, without)) left[n_left++] = i;
    const dt_err err = n_left >= k ? python_random_sample(random, n_left, k, chosen)
                                   : eval_fail(b, EVAL_fewshot_files,
                                               "expected %d examples other than the document, found "
                                               "%" PRId64,
                                               k, n_left);
    for (int i = 0; i < k && err == DT_OK; i++) chosen[i] = left[chosen[i]];
    free(left);
    return err;
}

static dt_err put_examples(const eval_bench *b, const eval_doc *doc, python_random *random, dt_text *out)
{
    int64_t *chosen;
    const bool without = !strcmp(eval_text(b, EVAL_fewshot_without_doc), "true");
    if (b->n_fewshot == 0) return DT_OK;
    DT_ALLOC(chosen, b->examples.n, "out of memory for examples");
    dt_err err = choose_among(b, without ? doc : NULL, random, chosen);
    for (int i = 0; i < b->n_fewshot && err == DT_OK; i++) err = put_example(b, &b->examples.doc[chosen[i]], out);
    free(chosen);
    return err;
}

/* ---- the question ------------------------------------------------------------------------------------------------ */

static dt_err add(char ***list, int *n, const char *one, size_t n_one, const char *two)
{
    dt_text text = {0};
    DT_GROW(*list, *n, "out of memory for a prompt");
    dt_text_append(&text, one, n_one);
    dt_text_append(&text, two, strlen(two));
    (*list)[*n] = dt_text_finish(&text, &(size_t){0});
    DT_CHECK((*list)[*n], DT_ERR_MEMORY, "out of memory for a prompt");
    ++*n;
    return DT_OK;
}

/* For questions whose choices are in the context, the continuation is the same. */
static dt_err ask_by_context(const eval_bench *b, const eval_doc *doc, const dt_text *before, eval_question *q)
{
    const char *rest, *delimiter = eval_text(b, EVAL_target_delimiter);
    DT_TRY(need_text(b, EVAL_doc_to_target, doc, q->target, &rest));
    for (size_t i = 0; i < json_array_size(q->choices); i++) {
        DT_TRY(add(&q->context, &q->n_contexts, before->bytes, before->n, choice(q->choices, (int64_t)i)));
        DT_TRY(add(&q->continuation, &q->n, delimiter, strlen(delimiter), rest));
    }
    return DT_OK;
}

static dt_err ask(const eval_bench *b, const eval_doc *doc, python_random *random, json_t **text, dt_text *out,
                  eval_question *q)
{
    const char *question, *target, *delimiter = eval_text(b, EVAL_target_delimiter);
    int64_t at;
    DT_TRY(choices_of(b, doc, &q->choices));
    DT_TRY(eval_value_of(b, EVAL_doc_to_target, doc, &q->target));
    DT_TRY(question_text(b, doc, q->choices, text, &at));
    q->at_text = (int)at;
    if (b->form != EVAL_ROLLING) DT_TRY(text_of(b, EVAL_description, doc, out));
    DT_TRY(put_examples(b, doc, random, out));
    if (at >= 0) return ask_by_context(b, doc, out, q);
    const size_t from = out->n;
    DT_TRY(need_text(b, EVAL_doc_to_text, doc, *text, &question));
    if (b->form != EVAL_ROLLING) dt_text_append(out, question, strlen(question));
    if (*eval_text(b, EVAL_gen_prefix)) DT_TRY(put_prefix(b, doc, from, out));
    DT_TRY(add(&q->context, &q->n_contexts, out->bytes, out->n, ""));
    if (b->form == EVAL_GENERATE) return DT_OK;
    if (b->form != EVAL_CHOICES) {
        DT_TRY(need_text(b, EVAL_doc_to_target, doc, q->target, &target));
        if (!*target) return eval_doc_fail(b, EVAL_doc_to_target, doc, "expected a text, found an empty one");
        return add(&q->continuation, &q->n, "", 0, target);
    }
    for (size_t i = 0; i < json_array_size(q->choices); i++)
        DT_TRY(add(&q->continuation, &q->n, delimiter, strlen(delimiter), choice(q->choices, (int64_t)i)));
    return DT_OK;
}

/* The right choices. */
static dt_err find_gold(const eval_bench *b, const eval_doc *doc, const eval_question *q, eval_item *item)
{
    const bool many = json_is_array(q->target);
    item->answer = q->at_text;
    for (size_t i = 0; q->at_text < 0 && i < (many ? json_array_size(q->target) : 1); i++) {
        json_t *v = many ? json_array_get(q->target, i) : json_incref(q->target);
        const char *digits = many ? json_string_value(v) : NULL;
        if (digits && *digits && strspn(digits, "0123456789") == strlen(digits)) /* of a list that Python wrote */
            v = json_integer(atoll(digits));
        else if (many)
            json_incref(v);
        int64_t at;
        const dt_err err = index_of(b, EVAL_doc_to_target, doc, q->choices, v, &at);
        json_decref(v);
        DT_TRY(err);
        if (i == 0) item->answer = (int)at;
        if (many && at < 64) item->gold |= UINT64_C(1) << at;
    }
    if (item->answer < 0)
        return eval_doc_fail(b, EVAL_doc_to_target, doc, "expected the index of a choice, found none");
    if (item->answer < 64) item->gold |= UINT64_C(1) << item->answer;
    return DT_OK;
}

static int32_t n_characters(const char *text)
{
    int32_t n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static dt_err measure_choices(const eval_question *q, eval_item *item)
{
    const int n = (int)json_array_size(q->choices);
    DT_ALLOC(item->length, 2 * n, "out of memory for lengths of choices");
    for (int i = 0; i < n; i++) {
        item->length[i] = n_characters(choice(q->choices, i));
        item->length[n + i] = (int32_t)strlen(choice(q->choices, i));
    }
    return DT_OK;
}

/* As len(re.split(r"\s+", text)). */
static int64_t n_words(const char *text, size_t n)
{
    int64_t words = 1;
    for (size_t i = 0; i < n;) {
        const size_t space = dt_space_before(text + i, n - i);
        words += space > 0;
        i += space ? space : 1;
    }
    return words;
}

static dt_err measure_text(const eval_bench *b, const eval_doc *doc, const eval_question *q, eval_item *item)
{
    dt_text counted = {0};
    const char *text = q->continuation[0];
    if (*eval_text(b, EVAL_doc_to_counted)) DT_TRY(text_of(b, EVAL_doc_to_counted, doc, &counted));
    const bool own = *eval_text(b, EVAL_doc_to_counted);
    item->n_words = n_words(own ? counted.bytes : text, own ? counted.n : strlen(text));
    item->n_bytes = own ? (int64_t)counted.n : (int64_t)strlen(text);
    dt_text_free(&counted);
    return DT_OK;
}

dt_err eval_ask(eval_bench *b, int64_t i, python_random *random, eval_question *q)
{
    const eval_doc *doc = &b->docs.doc[i];
    json_t *text = NULL;
    dt_text out = {0};
    dt_err err = ask(b, doc, random, &text, &out, q);
    if (err == DT_OK && b->form == EVAL_CHOICES) err = find_gold(b, doc, q, &b->item[i]);
    if (err == DT_OK && b->form == EVAL_CHOICES) err = measure_choices(q, &b->item[i]);
    if (err == DT_OK && b->form == EVAL_ROLLING) err = measure_text(b, doc, q, &b->item[i]);
    json_decref(text);
    dt_text_free(&out);
    return err;
}

void eval_free_question(eval_question *q)
{
    dt_list_free(q->context, q->n_contexts);
    dt_list_free(q->continuation, q->n);
    json_decref(q->choices);
    json_decref(q->target);
    *q = (eval_question){0};
}
