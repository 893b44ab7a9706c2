/* rec_template.c - a JSON file of texts and tasks, validated when it is opened: an unknown name or a
 * misspelt key would silently train on the wrong text. Keys that a task lacks are inherited from the top
 * level. */
#include "rec.h"
#include "dtrain/io/io.h"
#include "dtrain/io/spec.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_NBYTES = 1 << 20 };
#define BIT(value) (1u << (value))

static const char *const value_names[DT_N_REC_VALUES] = {"category",    "sids",        "titles", "sid",   "title",
                                                         "description", "instruction", "input",  "target"};
static const uint32_t of_any = BIT(DT_REC_CATEGORY) | BIT(DT_REC_SID) | BIT(DT_REC_TITLE),
                      of_rows = BIT(DT_REC_SIDS) | BIT(DT_REC_TITLES), of_items = BIT(DT_REC_DESCRIPTION);

int dt_rec_find_value(const char *text, size_t *len)
{
    *len = 1;
    if ((text[0] == '{' && text[1] == '{') || (text[0] == '}' && text[1] == '}')) return *len = 2, -1;
    if (text[0] != '{') return -1;
    const size_t n = strcspn(text + 1, "{}");
    for (int v = 0; v < DT_N_REC_VALUES && text[1 + n] == '}'; v++)
        if (strlen(value_names[v]) == n && strncmp(value_names[v], text + 1, n) == 0) return *len = n + 2, v;
    return -1;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static dt_err bad(const char *task, const char *key, const char *reason)
{
    return dt_fail(DT_ERR_DATA, "%s%s%s: %s", task, task[0] ? "." : "", key, reason);
}

/* Check that every {name} of a text is allowed there. */
static dt_err check_text(const char *task, const char *key, const char *text, uint32_t allowed, uint32_t *uses)
{
    char reason[256];
    for (size_t at = 0, len; text[at]; at += len) {
        const int value = dt_rec_find_value(text + at, &len);
        if (value >= 0 && allowed & BIT(value)) {
            *uses |= BIT(value);
            continue;
        }
        if (value < 0 && (len == 2 || (text[at] != '{' && text[at] != '}'))) continue;
        size_t n = (size_t)snprintf(reason, sizeof reason, "expected");
        for (int v = 0; v < DT_N_REC_VALUES; v++)
            if (allowed & BIT(v)) n += (size_t)snprintf(reason + n, sizeof reason - n, " {%s}", value_names[v]);
        snprintf(reason + n, sizeof reason - n, ", or {{ and }} for braces, found \"%.24s\"", text + at);
        return bad(task, key, reason);
    }
    return DT_OK;
}

typedef struct text_key {
    const char *name;
    const char **text;
    uint32_t allowed;
} text_key;

static dt_err take_text(const dt_rec_template *t, const json_t *json, dt_rec_task *task, const text_key *key)
{
    const json_t *text = json_object_get(json, key->name);
    if (!text) text = json_object_get(t->json, key->name);
    if (!json_is_string(text)) return bad(task->name, key->name, "expected a text");
    *key->text = json_string_value(text);
    return check_text(task->name, key->name, *key->text, key->allowed, &task->uses);
}

/* A text, or a list of texts. */
static dt_err take_instruction(const json_t *json, dt_rec_task *task, uint32_t allowed)
{
    const json_t *one, *all = task->instruction = json_object_get(json, "instruction");
    if (json_is_string(all)) return check_text(task->name, "instruction", json_string_value(all), allowed, &task->uses);
    size_t i;
    if (json_array_size(all) == 0) return bad(task->name, "instruction", "expected a text or a list of texts");
    json_array_foreach(all, i, one)
    {
        if (!json_is_string(one)) return bad(task->name, "instruction", "expected a text or a list of texts");
        DT_TRY(check_text(task->name, "instruction", json_string_value(one), allowed, &task->uses));
    }
    return DT_OK;
}

static dt_err check_keys(const json_t *json, const char *task, const char *const *known, int n_known)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)json, key, value)
    {
        int i = 0;
        while (i < n_known && strcmp(known[i], key) != 0) i++;
        if (i == n_known) return bad(task, key, "unknown template key");
    }
    return DT_OK;
}

static dt_err read_task(const dt_rec_template *t, const char *name, const json_t *json, dt_rec_task *task)
{
    static const char *const known[] = {"of",    "preamble", "prompt", "response", "instruction",
                                        "input", "target",   "quote",  "separator"};
    DT_CHECK(json_is_object(json), DT_ERR_DATA, "tasks.%s: expected an object", name);
    DT_TRY(check_keys(json, name, known, sizeof known / sizeof known[0]));
    const char *of = json_string_value(json_object_get(json, "of"));
    if (!of || (strcmp(of, "rows") != 0 && strcmp(of, "items") != 0))
        return bad(name, "of", "expected \"rows\" or \"items\"");
    *task = (dt_rec_task){.name = name, .of_items = strcmp(of, "items") == 0};
    const uint32_t values = of_any | (task->of_items ? of_items : of_rows);
    const text_key keys[] = {{"preamble", &task->preamble, BIT(DT_REC_INSTRUCTION) | BIT(DT_REC_CATEGORY)},
                             {"prompt", &task->prompt, BIT(DT_REC_INPUT)},
                             {"response", &task->response, BIT(DT_REC_TARGET)},
                             {"input", &task->input, values},
                             {"target", &task->target, values},
                             {"quote", &task->quote, 0},
                             {"separator", &task->separator, 0}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) DT_TRY(take_text(t, json, task, &keys[i]));
    return take_instruction(json, task, values);
}

/* ---- choosing tasks ---------------------------------------------------------------------------------------------- */

/* word is NAME or NAME:SAMPLE. */
static dt_err choose_task(dt_rec_template *t, const char *word)
{
    const char *name;
    json_t *json, *tasks = json_object_get(t->json, "tasks");
    const size_t n = strcspn(word, ":");
    DT_CHECK(t->n_tasks < DT_REC_MAX_TASKS, DT_ERR_USAGE, "tasks: expected at most %d", DT_REC_MAX_TASKS);
    json_object_foreach(tasks, name, json)
    {
        if (strlen(name) != n || strncmp(name, word, n) != 0) continue;
        dt_rec_task *task = &t->task[t->n_tasks++];
        DT_TRY(read_task(t, name, json, task));
        if (!word[n]) return DT_OK;
        char *end;
        task->sample = strtoll(word + n + 1, &end, 10);
        DT_CHECK(task->sample > 0 && !*end, DT_ERR_USAGE, "tasks: expected NAME or NAME:NUMBER, found %s", word);
        return DT_OK;
    }
    char list[400] = "";
    size_t len = 0;
    json_object_foreach(tasks, name, json) if (len < sizeof list) len +=
        (size_t)snprintf(list + len, sizeof list - len, "%s%s", len ? ", " : "", name);
    return dt_fail(DT_ERR_USAGE, "tasks: expected one or more of %s, found %.*s", list, (int)n, word);
}

static dt_err choose_listed(dt_rec_template *t, const char *words)
{
    for (const char *at = words;; at++) {
        char word[128];
        const size_t n = strcspn(at, ",");
        snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word - 1), at);
        DT_TRY(choose_task(t, word));
        at += n;
        if (!*at) return DT_OK;
    }
}

static dt_err choose_tasks(dt_rec_template *t, const char *recipe, const char *tasks)
{
    if (tasks) return choose_listed(t, tasks);
    const json_t *word, *list = json_object_get(t->json, recipe);
    size_t i;
    DT_CHECK(json_array_size(list) > 0, DT_ERR_DATA, "%s: expected a list of tasks (or --tasks)", recipe);
    json_array_foreach(list, i, word)
    {
        DT_CHECK(json_is_string(word), DT_ERR_DATA, "%s: expected a list of task names", recipe);
        DT_TRY(choose_task(t, json_string_value(word)));
    }
    return DT_OK;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static dt_err check_file(const dt_rec_template *t)
{
    static const char *const known[] = {"categories", "preamble", "prompt", "response", "quote",
                                        "separator",  "tasks",    "sft",    "rl",       "eval"};
    DT_TRY(check_keys(t->json, "", known, sizeof known / sizeof known[0]));
    DT_CHECK(json_is_object(json_object_get(t->json, "tasks")), DT_ERR_DATA, "tasks: expected an object");
    const char *name;
    json_t *task;
    /* validate all tasks, also those that are not selected */
    json_object_foreach(json_object_get(t->json, "tasks"), name, task)
    {
        dt_rec_task unused;
        DT_TRY(read_task(t, name, task, &unused));
    }
    return DT_OK;
}

static dt_err parse(dt_rec_template *t, const char *path)
{
    if (!path) return dt_json_parse(&t->json, "minionerec", dt_rec_default, strlen(dt_rec_default), 0);
    dt_spec root;
    DT_TRY(dt_spec_load(&root, path, MAX_NBYTES, 0, NULL, NULL));
    t->json = (json_t *)root.value;
    return DT_OK;
}

dt_err dt_rec_template_open(dt_rec_template *t, const char *name, const char *recipe, const char *tasks,
                            const char *category)
{
    *t = (dt_rec_template){.category = category ? category : "items"};
    const bool own = strcmp(name, "auto") == 0 || strcmp(name, "minionerec") == 0;
    DT_CHECK(own || dt_has_ending(name, ".json"), DT_ERR_USAGE,
             "template: expected minionerec or a JSON file, found %s", name);
    DT_TRY(parse(t, own ? NULL : name));
    DT_TRY(dt_error_prefix(check_file(t), "%s: ", name));
    const json_t *known = json_object_get(json_object_get(t->json, "categories"), t->category);
    if (json_is_string(known)) t->category = json_string_value(known);
    return dt_error_prefix(choose_tasks(t, recipe, tasks), "%s: ", name);
}

void dt_rec_template_close(dt_rec_template *t)
{
    json_decref(t->json);
    *t = (dt_rec_template){0};
}
