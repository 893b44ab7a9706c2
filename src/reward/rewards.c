/* rewards.c - the list of reward functions. Each rank first scores its rows with built-in functions, then with its
 * programs, and finally all ranks together with models. At the end all ranks receive all rewards. */
#include "builtin.h"
#include "program_exchange.h"
#include "scoring_model.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A reward function: exactly one of the three pointers is set. */
typedef struct function {
    char name[64];
    dt_builtin *builtin;
    dt_program *program;
    dt_reward_model *model;
} function;

struct dt_rewards {
    const char *section;
    int n;
    function of[DT_MAX_REWARDS];
    const char *name[DT_MAX_REWARDS];
    double weight[DT_MAX_REWARDS];
    int n_programs;
    dt_program *program[DT_MAX_REWARDS];
    double timeout_s;
    bool warned;               /* that no function applies */
    const dt_catalogue *items; /* NULL: none */
    dt_item_vectors *vectors;  /* NULL: no function needs them */
};

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static dt_err unknown(const char *text)
{
    char list[160] = "";
    for (const dt_builtin_kind *k = dt_builtins; k->name; k++) {
        const size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s, ", k->name);
    }
    return dt_fail(DT_ERR_USAGE,
                   "expected %smodel:DIRECTORY or command:PROGRAM ARGS, found %s (separate functions with commas)",
                   list, text);
}

static dt_err open_program(dt_rewards *w, function *f, const dt_task *t, const char *command)
{
    f->program = calloc(1, sizeof *f->program);
    DT_CHECK(f->program, DT_ERR_MEMORY, "out of memory for a reward function");
    w->program[w->n_programs++] = f->program;
    DT_TRY(dt_program_open(f->program, command, t->comm != NULL)); /* a plan may run on another machine */
    snprintf(f->name, sizeof f->name, "%s", f->program->name);
    return DT_OK;
}

static dt_err open_model(function *f, dt_task *t, const char *path)
{
    DT_CHECK(*path, DT_ERR_USAGE, "model:: expected model:DIRECTORY");
    f->model = calloc(1, sizeof *f->model);
    DT_CHECK(f->model, DT_ERR_MEMORY, "out of memory for a reward function");
    const dt_err err = dt_reward_model_open(f->model, t, path);
    snprintf(f->name, sizeof f->name, "%s", f->model->name);
    return err;
}

/* A catalogue that could not be opened has already been reported. */
static dt_err open_items(dt_rewards *w, dt_task *t, const char *name)
{
    const dt_config *cfg = t->cfg;
    const char *path = cfg->rec_item_embeddings;
    DT_CHECK(w->items || (*cfg->rec_catalogue && !strcmp(w->section, "grpo")), DT_ERR_USAGE,
             "%s compares items, so it needs rec.catalogue and run.task = grpo", name);
    DT_CONFIG_CHECK(*path, cfg, "rec", "item_embeddings", "%s needs the embeddings of the catalogue's items", name);
    if (!w->items || w->vectors) return DT_OK;
    dt_err err = dt_item_vectors_open(&w->vectors, w->items, path, cfg->rec_item_embeddings_array, !t->comm, t->ledger);
    if (err == DT_OK && t->comm) err = dt_task_reads(t, path, dt_item_vectors_fingerprint(w->vectors));
    return dt_config_lead_to(cfg, "rec", "item_embeddings", err);
}

static dt_err open_function(dt_rewards *w, function *f, dt_task *t, const char *text)
{
    static const char command[] = "command:", model[] = "model:";
    if (strncmp(text, command, sizeof command - 1) == 0) return open_program(w, f, t, text + sizeof command - 1);
    if (strncmp(text, model, sizeof model - 1) == 0) return open_model(f, t, text + sizeof model - 1);
    DT_TRY(dt_builtin_open(&f->builtin, text));
    if (!f->builtin) return unknown(text);
    const dt_builtin_kind *kind = dt_builtin_of(f->builtin);
    snprintf(f->name, sizeof f->name, "%s", kind->name);
    return kind->of_items ? open_items(w, t, f->name) : DT_OK;
}

/* Names for metrics: letters, digits and . - _, made unique. */
static void settle_name(dt_rewards *w, int k)
{
    char *name = w->of[k].name, base[48];
    for (char *c = name; *c; c++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_", *c)) *c = '_';
    snprintf(base, sizeof base, "%s", name);
    for (int number = 2, other = 0; other < k;) {
        if (strcmp(name, w->of[other++].name) != 0) continue;
        snprintf(name, sizeof w->of[k].name, "%s-%d", base, number++);
        other = 0;
    }
    w->name[k] = name;
}

static void open_functions(dt_rewards *w, dt_task *t, const char *model, char **items, int n_items)
{
    static const char key[] = "reward_funcs";
    const int n_models = *model != 0, n = n_models + n_items;
    if (n > DT_MAX_REWARDS)
        dt_mistakes_add(t->mistakes, dt_config_fail(t->cfg, w->section, key, "expected at most %d functions, found %d",
                                                    DT_MAX_REWARDS, n));
    for (int k = 0; k < n && k < DT_MAX_REWARDS; k++) {
        const bool is_model = k < n_models;
        const dt_err err =
            is_model ? open_model(&w->of[k], t, model) : open_function(w, &w->of[k], t, items[k - n_models]);
        dt_mistakes_add(t->mistakes, dt_config_lead_to(t->cfg, w->section, is_model ? "reward_path" : key, err));
        w->n = k + 1;
        settle_name(w, k);
    }
}

static dt_err plan(const void *self, const dt_task *t, dt_memory *memory)
{
    (void)t;
    memory->at[DT_MEM_DATA][DT_ON_HOST] += dt_item_vectors_nbytes(((const dt_rewards *)self)->vectors);
    return DT_OK;
}

static dt_err start_programs(dt_rewards *w, const dt_task *t)
{
    DT_TRY(dt_fault("reward.start"));
    for (int k = 0; k < w->n_programs; k++)
        DT_TRY(dt_program_start(w->program[k], t->data->rank, t->data->size, dt_comm_number_on_node(t->comm)));
    return DT_OK;
}

static dt_err begin(void *self, dt_task *t) { return dt_comm_agree(t->comm, start_programs(self, t)); }

static void close_rewards(void *self, dt_task *t)
{
    dt_rewards *w = self;
    (void)t;
    for (int k = 0; k < DT_MAX_REWARDS; k++) {
        function *f = &w->of[k];
        dt_builtin_close(f->builtin);
        if (f->program) dt_program_close(f->program);
        free(f->program);
        free(f->model);
    }
    dt_item_vectors_close(w->vectors);
    free(w);
}

static const dt_task_part_ops part = {.plan = plan, .begin = begin, .close = close_rewards};

dt_rewards *dt_rewards_open(dt_task *t, const char *section, const char *model, const char *funcs, const char *weights,
                            const dt_catalogue *items_of)
{
    char **items = NULL;
    int n_items = 0;
    dt_rewards *w = calloc(1, sizeof *w);
    if (!w) {
        dt_mistakes_add(t->mistakes, dt_fail(DT_ERR_MEMORY, "out of memory for reward functions"));
        return NULL;
    }
    dt_task_hold(t, &part, w);
    w->section = section;
    w->items = items_of;
    w->timeout_s = t->cfg->comm_timeout;
    dt_err err = dt_config_split(funcs, &items, &n_items);
    if (err == DT_OK) {
        open_functions(w, t, model, items, n_items);
        err = dt_reward_weights(t->cfg, section, weights, w->n, "reward functions", w->weight);
    }
    dt_mistakes_add(t->mistakes, err);
    dt_list_free(items, n_items);
    return w;
}

int dt_rewards_n(const dt_rewards *w) { return w->n; }
const char *const *dt_rewards_names(const dt_rewards *w) { return w->name; }
const double *dt_rewards_weights(const dt_rewards *w) { return w->weight; }

/* ---- samples ----------------------------------------------------------------------------------------------------- */

static dt_err sample_of(const dt_rewards *w, dt_rollout *r, int64_t row, dt_reward_sample *s)
{
    const dt_rollout_row *x = dt_rollout_row_of(r, row);
    const int32_t *ids = dt_rollout_ids(r, row);
    *s = (dt_reward_sample){.prompt = dt_rollout_text(r, row, DT_PART_PROMPT, DT_NO_SPECIAL),
                            .completion = dt_rollout_text(r, row, DT_PART_COMPLETION, DT_NO_SPECIAL),
                            .prompt_ids = ids,
                            .completion_ids = ids + x->n_prompt,
                            .n_prompt = x->n_prompt,
                            .n_completion = dt_rollout_n_completion(x),
                            .record = dt_rollout_record(r, row),
                            .items = w->vectors};
    DT_CHECK(s->prompt && s->completion, DT_ERR_MEMORY, "out of memory for the text of a completion");
    return s->record ? DT_OK : DT_ERR_DATA; /* the error is recorded */
}

static dt_err parse_record(const dt_reward_sample *s, json_t **record)
{
    return dt_json_parse(record, "the record of a prompt", s->record, strlen(s->record),
                         DT_JSON_NUL | DT_JSON_LAST_KEY);
}

/* ---- built-in functions ------------------------------------------------------------------------------------------ */

static dt_err score_sample(const dt_rewards *w, const dt_reward_sample *s, double *reward)
{
    json_t *record;
    DT_TRY(parse_record(s, &record));
    dt_err err = DT_OK;
    for (int k = 0; k < w->n && err == DT_OK; k++)
        if (w->of[k].builtin) err = dt_builtin_of(w->of[k].builtin)->score(w->of[k].builtin, s, record, &reward[k]);
    json_decref(record);
    return err;
}

static dt_err score_builtin(const dt_rewards *w, dt_rollout *r, int64_t from, int64_t end, double *reward)
{
    bool any = false;
    for (int k = 0; k < w->n; k++) any |= w->of[k].builtin != NULL;
    for (int64_t row = from; row < end && any; row++) {
        dt_reward_sample s;
        DT_TRY(sample_of(w, r, row, &s));
        DT_TRY(score_sample(w, &s, reward + row * w->n));
    }
    return DT_OK;
}

/* Rows starting at `first` are whole groups. */
static void finish_groups(const dt_rewards *w, const dt_rollout *r, int64_t first, double *reward)
{
    const int n = dt_rollout_group_size(r);
    for (int k = 0; k < w->n; k++) {
        const dt_builtin_kind *kind = w->of[k].builtin ? dt_builtin_of(w->of[k].builtin) : NULL;
        if (!kind || !kind->of_group) continue;
        for (int64_t row = first; row < dt_rollout_n_rows(r); row += n)
            kind->of_group(reward + row * w->n + k, n, w->n);
    }
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

typedef struct share {
    const dt_rewards *rewards;
    dt_rollout *rollout;
    int64_t from; /* first row of this rank */
} share;

static json_t *list_of(const int32_t *ids, int32_t n)
{
    json_t *list = json_array();
    for (int32_t i = 0; list && i < n; i++)
        if (json_array_append_new(list, json_integer(ids[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

/* The request line of one completion. */
static dt_err write_request(const dt_reward_sample *s, char **line)
{
    json_t *record;
    DT_TRY(parse_record(s, &record));
    json_t *object = json_object(); /* in this order; fields of the record with these names are omitted */
    const bool made = object && json_object_set_new(object, "prompt", json_string(s->prompt)) == 0 &&
                      json_object_set_new(object, "completion", json_string(s->completion)) == 0 &&
                      json_object_set_new(object, "prompt_ids", list_of(s->prompt_ids, s->n_prompt)) == 0 &&
                      json_object_set_new(object, "completion_ids", list_of(s->completion_ids, s->n_completion)) == 0 &&
                      json_object_update_missing(object, record) == 0;
    *line = made ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    json_decref(record);
    DT_CHECK(*line, DT_ERR_MEMORY, "out of memory for the input of a reward function");
    return DT_OK;
}

static dt_err request(void *self, int64_t i, char **line)
{
    const share *s = self;
    dt_reward_sample sample;
    DT_TRY(sample_of(s->rewards, s->rollout, s->from + i, &sample));
    return write_request(&sample, line);
}

/* All programs answer concurrently. Each answer is stored for its row and function. */
static dt_err ask_programs(const dt_rewards *w, dt_task *t, dt_rollout *r, int64_t from, int64_t end, dt_err err,
                           double *reward)
{
    share s = {.rewards = w, .rollout = r, .from = from};
    double *of[DT_MAX_REWARDS];
    for (int k = 0, p = 0; k < w->n; k++)
        if (w->of[k].program) of[p++] = reward + from * w->n + k;
    const dt_questions q = {.n = end - from, .request = request, .self = &s, .stride = w->n};
    return dt_programs_ask(w->program, w->n_programs, &q, of, w->timeout_s, err, t->comm, t->phase);
}

/* ---- scoring ----------------------------------------------------------------------------------------------------- */

/* Warn once per run. If the first rows of a rollout have a reward, rows added later do not matter. */
static void warn_of_none(dt_rewards *w, const dt_task *t, const double *reward, int64_t n_rows)
{
    if (w->warned || !dt_comm_first(t->comm)) return;
    for (int64_t i = 0; i < n_rows * w->n; i++)
        if (!isnan(reward[i])) return;
    dt_report_end_line(t->report);
    DT_WARN("[%s] reward_funcs: no function applies to any of the %" PRId64
            " completions of a rollout, so they have no reward. Check that the prompts' records have the fields that "
            "built-in functions need, and that programs do not answer null (docs/rewards.md)",
            w->section, n_rows);
    w->warned = true;
}

dt_err dt_rewards_score(dt_rewards *w, dt_task *t, dt_rollout *r, const int64_t *order, int64_t first, double *out)
{
    const int64_t n_rows = dt_rollout_n_rows(r), n_asked = n_rows - first;
    const int64_t from = first + dt_rollout_first_of(n_asked, t->data->rank, t->data->size),
                  end = first + dt_rollout_first_of(n_asked, t->data->rank + 1, t->data->size);
    const double begin_s = dt_now_s();
    double *const asked = out + first * w->n;
    const size_t nbytes = (size_t)(n_asked * w->n) * sizeof *out;
    memset(asked, 0, nbytes); /* rows of other ranks must be zero for dt_comm_join_host */
    dt_phase_enter(t->phase, "reward", NULL);
    dt_err err = score_builtin(w, r, from, end, out);
    err = ask_programs(w, t, r, from, end, err, out); /* agreed, even without programs */
    if (err == DT_ERR_STOP) dt_rollout_undo(r);
    DT_TRY(err);
    for (int k = 0; k < w->n; k++)
        if (w->of[k].model) DT_TRY(dt_reward_model_score(w->of[k].model, t, r, order, first, out + k, w->n));
    DT_TRY(dt_comm_join_host(t->data, asked, nbytes));
    finish_groups(w, r, first, out);
    dt_rollout_count_reward_time(r, dt_now_s() - begin_s);
    if (first == 0) warn_of_none(w, t, out, n_rows);
    return DT_OK;
}
