/* eval_file.c - reads descriptions of benchmarks. An INI file has a section for each benchmark; the keys of [common]
 * belong to all sections that follow. A JSON Lines file has an object for each, with its name in "task". */
#include "dtrain/io/io.h"
#include "dtrain/make/records.h"
#include "dtrain/text/space.h"
#include "eval_private.h"
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EVAL_KEY_NAME(name, otherwise) #name,
#define EVAL_KEY_DEFAULT(name, otherwise) otherwise,
static const char *const key_names[] = {EVAL_KEYS(EVAL_KEY_NAME)};
static const char *const defaults[] = {EVAL_KEYS(EVAL_KEY_DEFAULT)};
static const char *const forms[] = {"multiple_choice", "loglikelihood", "loglikelihood_rolling", "generate_until"};

/* ---- messages ---------------------------------------------------------------------------------------------------- */

const char *eval_where(const eval_bench *b, eval_key key, char out[EVAL_WHERE])
{
    const int line = b->value[key].line ? b->value[key].line : b->line;
    snprintf(out, EVAL_WHERE, "%.300s:%d: [%.40s] %s", b->file, line, b->name, key_names[key]);
    return out;
}

dt_err eval_fail(const eval_bench *b, eval_key key, const char *fmt, ...)
{
    char where[EVAL_WHERE], why[600];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    return dt_fail(DT_ERR_USAGE, "%s: %s", eval_where(b, key, where), why);
}

const char *eval_text(const eval_bench *b, eval_key key)
{
    return b->value[key].text ? b->value[key].text : defaults[key];
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* A value in double quotes is a JSON string. */
static dt_err unquote(char **out, const char *head, const char *text)
{
    text += dt_space_before(text, strlen(text)); /* a long line has it */
    const size_t n = strlen(text);
    json_t *string = NULL;
    if (n >= 2 && text[0] == '"' && text[n - 1] == '"') {
        DT_TRY(dt_error_lead(dt_json_parse(&string, "", text, n, DT_JSON_ANY | DT_JSON_RECORD), "%s: ", head));
        text = json_string_value(string);
    }
    const dt_err err = dt_copy_text(out, text, "%s: out of memory for its value", head);
    json_decref(string);
    return err;
}

static int find_key(const char *name)
{
    for (int i = 0; i < EVAL_N_KEYS; i++)
        if (!strcmp(key_names[i], name)) return i;
    return -1;
}

static dt_err unknown_key(const char *head)
{
    char names[600] = "";
    for (int i = 0; i < EVAL_N_KEYS; i++) {
        const size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", key_names[i]);
    }
    return dt_fail(DT_ERR_USAGE, "%s: unknown key; expected one of %s", head, names);
}

static dt_err set(eval_bench *b, const char *file, int line, const char *name, const char *text, bool quoted)
{
    char head[EVAL_WHERE];
    snprintf(head, sizeof head, "%.300s:%d: [%.40s] %.40s", file, line, b->name, name);
    const int key = find_key(name);
    if (key < 0) return unknown_key(head);
    eval_value *v = &b->value[key];
    DT_CHECK(v->line == 0 || v->line < b->line, DT_ERR_USAGE, "%s: the key is set twice; the first is in line %d", head,
             v->line);
    free(v->text);
    v->line = line;
    return quoted ? unquote(&v->text, head, text) : dt_copy_text(&v->text, text, "%s: out of memory", head);
}

/* ---- INI --------------------------------------------------------------------------------------------------------- */

typedef struct reading {
    dt_evals *e;
    const char *file, *only; /* only: the benchmark to take; NULL: all */
    int first;               /* of this file in e->bench */
    eval_bench common;       /* keys of [common] */
} reading;

static dt_err add_bench(reading *r, const char *name, int line)
{
    dt_evals *e = r->e;
    DT_CHECK(!strchr(name, '/'), DT_ERR_USAGE, "%s:%d: [%s]: expected a name without /, because it names a file",
             r->file, line, name);
    for (int i = 0; i < e->n_benches; i++)
        DT_CHECK(strcmp(e->bench[i].name, name) != 0, DT_ERR_USAGE,
                 "%s:%d: [%s]: a benchmark of this name is described in %s:%d already", r->file, line, name,
                 e->bench[i].file, e->bench[i].line);
    DT_GROW(e->bench, e->n_benches, "out of memory for benchmarks");
    eval_bench *b = &e->bench[e->n_benches++];
    *b = (eval_bench){.line = line};
    DT_COPY_TEXT(b->name, name, "out of memory for benchmarks");
    DT_COPY_TEXT(b->file, r->file, "out of memory for benchmarks");
    for (int k = 0; k < EVAL_N_KEYS; k++) {
        if (!r->common.value[k].text) continue;
        DT_COPY_TEXT(b->value[k].text, r->common.value[k].text, "out of memory for benchmarks");
        b->value[k].line = r->common.value[k].line;
    }
    return DT_OK;
}

static dt_err take_key(void *self, int line, const char *section, const char *name, const char *value)
{
    reading *r = self;
    const bool common = !strcmp(section, "common");
    DT_CHECK(*section, DT_ERR_USAGE, "%s:%d: %s: expected [BENCHMARK] before the first key", r->file, line, name);
    const int last = r->e->n_benches - 1;
    if (!common && r->only && strcmp(r->only, section) != 0) return DT_OK;
    if (!common && (last < r->first || strcmp(r->e->bench[last].name, section) != 0))
        DT_TRY(add_bench(r, section, line));
    return set(common ? &r->common : &r->e->bench[r->e->n_benches - 1], r->file, line, name, value, true);
}

static dt_err read_ini(reading *r)
{
    char *text;
    size_t n;
    dt_mistakes mistakes = {0};
    DT_TRY(dt_read_file(r->file, 1 << 24, &text, &n));
    r->common.name = "common", r->common.line = 1;
    dt_err err = dt_ini_read(r->file, text, true, take_key, r, &mistakes);
    free(text);
    for (int k = 0; k < EVAL_N_KEYS; k++) free(r->common.value[k].text);
    dt_mistakes_add(&mistakes, err);
    err = dt_mistakes_end(&mistakes);
    free(mistakes.text);
    return err;
}

/* ---- JSON Lines -------------------------------------------------------------------------------------------------- */

static dt_err take_fields(reading *r, json_t *record, int line)
{
    const char *name = json_string_value(json_object_get(record, "task")), *key;
    json_t *value;
    DT_CHECK(name && *name, DT_ERR_USAGE, "%s:%d: expected the name of a benchmark in \"task\"", r->file, line);
    if (r->only && strcmp(r->only, name) != 0) return DT_OK;
    DT_TRY(add_bench(r, name, line));
    eval_bench *b = &r->e->bench[r->e->n_benches - 1];
    json_object_foreach(record, key, value)
    {
        if (!strcmp(key, "task")) continue;
        char *dumped = json_is_string(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY);
        const char *text = json_is_string(value) ? json_string_value(value) : dumped;
        const dt_err err = text ? set(b, r->file, line, key, text, false) : dt_fail(DT_ERR_MEMORY, "out of memory");
        free(dumped);
        DT_TRY(err);
    }
    return DT_OK;
}

static dt_err take_record(void *self, json_t *record, int64_t line)
{
    const dt_err err = take_fields(self, record, (int)line);
    json_decref(record);
    return err;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* A list is the same for all documents. */
static dt_err parse_value(eval_bench *b, eval_key key)
{
    eval_value *v = &b->value[key];
    char where[EVAL_WHERE];
    if (*eval_text(b, key) == '[' &&
        dt_json_parse(&v->list, "", eval_text(b, key), strlen(eval_text(b, key)), DT_JSON_RECORD) == DT_OK)
        return DT_OK;
    dt_error_clear();
    return dt_jinja_parse(&v->template, eval_where(b, key, where), eval_text(b, key), strlen(eval_text(b, key)), true);
}

dt_err eval_take_number(const eval_bench *b, eval_key key, int *n)
{
    char *end;
    errno = 0;
    const long x = strtol(eval_text(b, key), &end, 10);
    if (errno || *end || end == eval_text(b, key) || x < 0 || x > 10000)
        return eval_fail(b, key, "expected a number from 0 to 10000, found %s", eval_text(b, key));
    *n = (int)x;
    return DT_OK;
}

dt_err eval_check_word(const eval_bench *b, eval_key key, const char *one, const char *two)
{
    const char *text = eval_text(b, key);
    if (!strcmp(text, one) || !strcmp(text, two)) return DT_OK;
    return eval_fail(b, key, "expected '%s' or '%s', found '%s'", one, two, text);
}

static dt_err check_form(eval_bench *b)
{
    const char *text = eval_text(b, EVAL_output_type);
    for (int i = 0; i < EVAL_N_FORMS; i++)
        if (!strcmp(forms[i], text)) return b->form = (eval_form)i, DT_OK;
    return eval_fail(b, EVAL_output_type,
                     "expected multiple_choice, loglikelihood, loglikelihood_rolling or generate_until, found '%s'",
                     text);
}

static dt_err check_bench(eval_bench *b, const dt_config *cfg)
{
    static const eval_key templates[] = {EVAL_doc_to_text, EVAL_doc_to_target, EVAL_doc_to_choice, EVAL_doc_to_counted,
                                         EVAL_description, EVAL_gen_prefix,    EVAL_judge_text};
    DT_TRY(check_form(b));
    if (!*eval_text(b, EVAL_files)) return eval_fail(b, EVAL_files, "expected the files of the documents, found none");
    if (!*eval_text(b, EVAL_doc_to_target))
        return eval_fail(b, EVAL_doc_to_target, "expected a template or a field, found none");
    if ((b->form == EVAL_CHOICES) != (*eval_text(b, EVAL_doc_to_choice) != '\0'))
        return eval_fail(b, EVAL_doc_to_choice, "expected %s",
                         b->form == EVAL_CHOICES ? "choices, found none" : "none with this output_type");
    for (size_t i = 0; i < sizeof templates / sizeof templates[0]; i++) DT_TRY(parse_value(b, templates[i]));
    DT_TRY(eval_take_number(b, EVAL_n_choices, &b->n_choices));
    if (b->form == EVAL_GENERATE) DT_TRY(eval_read_generation(b, cfg));
    if (*eval_text(b, EVAL_num_fewshot)) DT_TRY(eval_take_number(b, EVAL_num_fewshot, &b->n_fewshot));
    if (*cfg->eval_num_fewshot && (b->n_fewshot > 0 || !*eval_text(b, EVAL_num_fewshot)))
        b->n_fewshot = atoi(cfg->eval_num_fewshot);
    if (b->form == EVAL_ROLLING) b->n_fewshot = 0;
    if (b->n_fewshot > 0 && !*eval_text(b, EVAL_fewshot_files))
        return eval_fail(b, EVAL_fewshot_files, "expected the files of the examples, because num_fewshot = %d",
                         b->n_fewshot);
    DT_TRY(eval_check_word(b, EVAL_process_docs, "", "math"));
    DT_TRY(eval_check_word(b, EVAL_fewshot_without_doc, "false", "true"));
    return eval_check_word(b, EVAL_fewshot_sampler, "default", "first_n");
}

/* ---- the files of eval.tasks ------------------------------------------------------------------------------------- */

/* FILE or FILE:BENCHMARK. A name without a file is one of input/eval. */
static void find_file(const char *item, char path[PATH_MAX], const char **only)
{
    char copy[PATH_MAX];
    const char *colon = dt_is_file(item) ? NULL : strrchr(item, ':');
    snprintf(copy, sizeof copy, "%.*s", colon ? (int)(colon - item) : PATH_MAX - 1, item);
    const char *name = strrchr(copy, '/') ? strrchr(copy, '/') + 1 : copy;
    *only = colon ? colon + 1 : NULL;
    snprintf(path, PATH_MAX, "input/eval/%.200s.ini", name);
    if (dt_is_file(copy) || strchr(name, '.') || !dt_is_file(path)) snprintf(path, PATH_MAX, "%s", copy);
}

static dt_err read_file(dt_evals *e, const char *item)
{
    char path[PATH_MAX];
    reading r = {.e = e, .file = path, .first = e->n_benches};
    find_file(item, path, &r.only);
    DT_CHECK(dt_is_file(path), DT_ERR_USAGE, "%s: expected a file, or a name in input/eval without .ini, found neither",
             path);
    DT_TRY(dt_has_ending(path, ".jsonl") || dt_has_ending(path, ".json") ? dt_records_read(path, take_record, &r)
                                                                         : read_ini(&r));
    DT_CHECK(e->n_benches > r.first, DT_ERR_USAGE, "%s: expected a section%s%s%s, found none", path,
             r.only ? " [" : " for each benchmark", r.only ? r.only : "", r.only ? "]" : "");
    return DT_OK;
}

dt_err eval_read_files(dt_evals *e, const dt_config *cfg)
{
    char **items;
    int n;
    DT_TRY(dt_config_split(cfg->eval_tasks, &items, &n));
    dt_err err = DT_OK;
    for (int i = 0; i < n && err == DT_OK; i++) err = read_file(e, items[i]);
    dt_list_free(items, n);
    DT_TRY(dt_config_lead_to(cfg, "eval", "tasks", err));
    for (int i = 0; i < e->n_benches; i++) DT_TRY(check_bench(&e->bench[i], cfg));
    return DT_OK;
}

static void free_docs(eval_docs *d)
{
    for (int64_t i = 0; i < d->n; i++) json_decref(d->doc[i].record);
    free(d->doc);
}

void eval_free_bench(eval_bench *b)
{
    for (int k = 0; k < EVAL_N_KEYS; k++) {
        free(b->value[k].text);
        json_decref(b->value[k].list);
        dt_jinja_close(b->value[k].template);
    }
    for (int64_t i = 0; b->item && i < b->docs.n; i++) free(b->item[i].length);
    eval_free_answers(b);
    free(b->generated), free(b->correct), free(b->judged);
    if (b->prompt) dt_list_free(b->prompt, (int)b->docs.n);
    free_docs(&b->docs);
    free_docs(&b->examples);
    dt_list_free(b->path, b->n_paths);
    free(b->name), free(b->file);
    free(b->item), free(b->request), free(b->logp), free(b->greedy), free(b->score), free(b->result);
}
