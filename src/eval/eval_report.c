/* eval_report.c - shows the results of an evaluation: a table, and a line for each document. */
#include "dtrain/io/io.h"
#include "eval_private.h"
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void put_number(char *out, size_t size, double x)
{
    if (isnan(x))
        snprintf(out, size, "-");
    else
        snprintf(out, size, "%.4f", x);
}

void dt_evals_say(const dt_evals *e)
{
    int width = 9;
    char value[40], error[40];
    if (!e || !e->evaluated) return;
    for (int i = 0; i < e->n_benches; i++) width = (int)dt_max_i64(width, (int64_t)strlen(e->bench[i].name));
    DT_INFO("%-*s  shots  documents  %-18s %12s %10s", width, "benchmark", "metric", "value", "stderr");
    for (int i = 0; i < e->n_benches; i++)
        for (int k = 0; k < e->bench[i].n_results; k++) {
            const eval_bench *b = &e->bench[i];
            const eval_result *r = &b->result[k];
            put_number(value, sizeof value, r->value), put_number(error, sizeof error, r->error);
            DT_INFO("%-*s  %5d  %9" PRId64 "  %-18s %12s %10s", width, b->name, b->n_fewshot, b->docs.n, r->name, value,
                    error);
        }
}

/* ---- eval.log_samples -------------------------------------------------------------------------------------------- */

static json_t *ids_of(const dt_evals *e, int64_t at, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n && list; i++)
        if (json_array_append_new(list, json_integer(e->ids.id[at + i])) != 0) return json_decref(list), NULL;
    return list;
}

static json_t *generated(const dt_evals *e, const eval_bench *b, int64_t i)
{
    json_t *context = ids_of(e, b->request[i].at, b->request[i].n_context), *correct = json_array();
    char *text = eval_generated_text(e, b, i);
    for (int f = 0; f < b->n_filters && correct; f++)
        json_array_append_new(correct, json_boolean(b->correct[f * b->n_requests + i] != 0));
    json_t *out = text ? json_pack("{sosssO}", "context_ids", context, "text", text, "correct", correct) : NULL;
    if (out && b->is_judged)
        json_object_set_new(out, "judge", json_pack("[ff]", b->judged[i], b->judged[b->n_requests + i]));
    json_decref(correct);
    free(text);
    return out;
}

static json_t *request_of(const dt_evals *e, const eval_bench *b, int64_t i)
{
    const eval_request *r = &b->request[i];
    json_t *context = ids_of(e, r->at, r->n_context), *rest = ids_of(e, r->at + r->n_context, r->n_continuation);
    return json_pack("{sososfsb}", "context_ids", context, "continuation_ids", rest, "logp", b->logp[i], "greedy",
                     b->greedy[i] != 0);
}

/* {"doc": 0, "answer": 1, "requests": [{"context_ids": [...], "continuation_ids": [...], "logp": -1.5, "greedy":
 * false}, ...]} */
static json_t *line_of(const dt_evals *e, const eval_bench *b, int64_t i)
{
    const eval_item *item = &b->item[i];
    json_t *requests = json_array(), *line = json_pack("{sI}", "doc", (json_int_t)i);
    bool good = requests && line;
    for (int k = 0; k < item->n && good; k++)
        good = json_array_append_new(requests, b->form == EVAL_GENERATE ? generated(e, b, item->first + k)
                                                                        : request_of(e, b, item->first + k)) == 0;
    if (good && b->form == EVAL_CHOICES) good = json_object_set_new(line, "answer", json_integer(item->answer)) == 0;
    good = good && json_object_set(line, "requests", requests) == 0;
    json_decref(requests);
    if (good) return line;
    json_decref(line);
    return NULL;
}

static dt_err write_lines(dt_aside *out, const dt_evals *e, const eval_bench *b)
{
    for (int64_t i = 0; i < b->docs.n; i++) {
        json_t *line = line_of(e, b, i);
        char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
        json_decref(line);
        DT_CHECK(text, DT_ERR_MEMORY, "out of memory for a line of %s", b->name);
        dt_err err = dt_aside_write(out, text, strlen(text));
        free(text);
        if (err == DT_OK) err = dt_aside_write(out, "\n", 1);
        DT_TRY(err);
    }
    return DT_OK;
}

dt_err eval_write_samples(const dt_evals *e, const eval_bench *b, const dt_config *cfg)
{
    char path[PATH_MAX];
    dt_aside out = {0};
    const int n = snprintf(path, sizeof path, "%s/eval/%s.jsonl", cfg->run_output_dir, b->name);
    DT_CHECK(n < PATH_MAX, DT_ERR_USAGE, "%s: the path is too long", cfg->run_output_dir);
    DT_TRY(dt_make_folder_of(path));
    dt_err err = dt_aside_open(&out, path);
    if (err == DT_OK) err = write_lines(&out, e, b);
    if (err == DT_OK) err = dt_aside_commit(&out);
    dt_aside_drop(&out);
    return err;
}
