/* eval_documents.c - reads the documents of a benchmark, and evaluates the values of its description for them. */
#include "dtrain/io/io.h"
#include "dtrain/make/rec_files.h"
#include "dtrain/make/records.h"
#include "eval_private.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- files ------------------------------------------------------------------------------------------------------- */

typedef struct reading {
    eval_bench *bench;
    eval_docs *docs;
    const char *path;
    int64_t limit; /* 0: none */
} reading;

static dt_err take_doc(void *self, json_t *record, int64_t line)
{
    reading *r = self;
    eval_docs *d = r->docs;
    if (r->limit > 0 && d->n >= r->limit) return json_decref(record), DT_OK;
    const dt_err err = dt_grow(&d->doc, d->n, sizeof *d->doc, "out of memory for the documents of %s", r->path);
    if (err != DT_OK) return json_decref(record), err;
    d->doc[d->n++] = (eval_doc){.record = record, .path = r->path, .line = line};
    return DT_OK;
}

/* A relative path is one of eval.data_path, or next to the description. */
static dt_err full_path(const eval_bench *b, const dt_config *cfg, const char *item, char path[PATH_MAX])
{
    const char *end = strrchr(b->file, '/');
    int n = snprintf(path, PATH_MAX, "%s", item);
    if (*item != '/' && *cfg->eval_data_path)
        n = snprintf(path, PATH_MAX, "%s/%s", cfg->eval_data_path, item);
    else if (*item != '/' && end)
        n = snprintf(path, PATH_MAX, "%.*s/%s", (int)(end - b->file), b->file, item);
    DT_CHECK(n < PATH_MAX, DT_ERR_USAGE, "%s: the path is too long", item);
    return DT_OK;
}

static dt_err read_item(eval_bench *b, const dt_config *cfg, const char *item, eval_docs *docs, int64_t limit)
{
    char path[PATH_MAX], **paths;
    int n;
    DT_TRY(full_path(b, cfg, item, path));
    DT_TRY(dt_glob(path, &paths, &n));
    dt_err err = DT_OK;
    for (int i = 0; i < n && err == DT_OK; i++) {
        err = dt_grow(&b->path, b->n_paths, sizeof *b->path, "out of memory for paths");
        if (err != DT_OK) break;
        b->path[b->n_paths++] = paths[i];
        reading r = {.bench = b, .docs = docs, .path = paths[i], .limit = limit};
        paths[i] = NULL;
        err = dt_records_read(r.path, take_doc, &r);
    }
    dt_list_free(paths, n);
    return err;
}

static dt_err read_docs(eval_bench *b, const dt_config *cfg, eval_key key, eval_docs *docs, int64_t limit)
{
    char **items, where[EVAL_WHERE];
    int n;
    DT_TRY(dt_config_split(eval_text(b, key), &items, &n));
    dt_err err = DT_OK;
    for (int i = 0; i < n && err == DT_OK; i++) err = read_item(b, cfg, items[i], docs, limit);
    dt_list_free(items, n);
    DT_TRY(dt_error_lead(err, "%s: ", eval_where(b, key, where)));
    if (docs->n == 0) return eval_fail(b, key, "expected documents, found none in %s", eval_text(b, key));
    return DT_OK;
}

/* MATH: the field "answer" is the contents of the last box of the field "solution". */
static dt_err add_answers(const eval_bench *b, eval_docs *docs)
{
    for (int64_t i = 0; i < docs->n && !strcmp(eval_text(b, EVAL_process_docs), "math"); i++) {
        size_t n;
        const char *solution = json_string_value(json_object_get(docs->doc[i].record, "solution")),
                   *boxed = solution ? eval_math_boxed(solution, &n) : NULL;
        if (!boxed)
            return eval_doc_fail(b, EVAL_process_docs, &docs->doc[i],
                                 "expected a field solution with \\boxed{...}, found %s",
                                 solution ? "none in it" : "no such field");
        DT_CHECK(json_object_set_new(docs->doc[i].record, "answer", json_stringn(boxed, n)) == 0, DT_ERR_MEMORY,
                 "out of memory for answers");
    }
    return DT_OK;
}

dt_err eval_read_documents(eval_bench *b, const dt_config *cfg)
{
    DT_TRY(read_docs(b, cfg, EVAL_files, &b->docs, cfg->eval_limit));
    DT_TRY(add_answers(b, &b->docs));
    if (b->n_fewshot == 0) return DT_OK;
    DT_TRY(read_docs(b, cfg, EVAL_fewshot_files, &b->examples, 0));
    DT_TRY(add_answers(b, &b->examples));
    const bool without = !strcmp(eval_text(b, EVAL_fewshot_without_doc), "true");
    if (b->examples.n < b->n_fewshot + without)
        return eval_fail(b, EVAL_fewshot_files, "expected at least %d examples, found %" PRId64, b->n_fewshot + without,
                         b->examples.n);
    return DT_OK;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

dt_err eval_doc_fail(const eval_bench *b, eval_key key, const eval_doc *doc, const char *fmt, ...)
{
    char where[EVAL_WHERE], why[600];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    return dt_fail(DT_ERR_DATA, "%s: %s; the document is %s:%" PRId64, eval_where(b, key, where), why, doc->path,
                   doc->line);
}

/* index: digits are the index of a choice. lists: a text in brackets is a list, as Python writes it. */
static dt_err read_text(json_t **value, const char *text, size_t n, bool index, bool lists)
{
    const bool digits = n > 0 && n < 10 && strspn(text, "0123456789") == n;
    if (lists && n >= 2 && text[0] == '[' && text[n - 1] == ']') {
        if (dt_python_list(value, text, n) == DT_OK) return DT_OK;
        dt_error_clear();
    }
    *value = digits && index ? json_integer(atoll(text)) : json_stringn(text, n);
    DT_CHECK(*value, DT_ERR_MEMORY, "out of memory for a text");
    return DT_OK;
}

/* Numbers are texts, except for indices. */
static dt_err read_field(json_t **value, json_t *field, bool index)
{
    if (json_is_boolean(field))
        *value = json_integer(json_is_true(field));
    else if (json_is_number(field) && !(json_is_integer(field) && index)) {
        char *text = json_dumps(field, JSON_ENCODE_ANY);
        *value = text ? json_string(text) : NULL;
        free(text);
    } else
        *value = json_incref(field);
    DT_CHECK(*value, DT_ERR_MEMORY, "out of memory for a text");
    return DT_OK;
}

dt_err eval_value_of(const eval_bench *b, eval_key key, const eval_doc *doc, json_t **value)
{
    const eval_value *v = &b->value[key];
    const bool index = b->form == EVAL_CHOICES && (key == EVAL_doc_to_text || key == EVAL_doc_to_target),
               lists = key == EVAL_doc_to_choice || /* to compare = math, [1,2] is an answer */
                       (key == EVAL_doc_to_target && strcmp(eval_text(b, EVAL_compare), "math") != 0);
    json_t *field = json_object_get(doc->record, eval_text(b, key));
    *value = NULL;
    if (!*eval_text(b, key)) return DT_OK;
    if (v->list) return *value = json_incref(v->list), DT_OK;
    if (json_is_null(field)) return eval_doc_fail(b, key, doc, "the field %s is null", eval_text(b, key));
    if (field) return read_field(value, field, index);
    dt_jinja_result r;
    dt_err err = dt_jinja_render(v->template, doc->record, 0, &r);
    if (err != DT_OK)
        return dt_error_replace(err, "%s; the document is %s:%" PRId64, dt_error_message(), doc->path, doc->line);
    err = read_text(value, r.text, r.nbytes, index, lists);
    dt_jinja_result_free(&r);
    return err;
}
