/* environment.c - one process, a line for each turn and a line for each answer. Answers may come in another order if
 * they name the episode. Conversations continue token by token: sampled tokens are kept, and the chat template gives
 * those between them (dt_chat_continue). */
#include "dtrain/reward/environment.h"
#include "dtrain/chat/chat.h"
#include "dtrain/io/json.h"
#include "dtrain/tokenizer/tokenizer.h"
#include "program.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A turn and its answer. */
typedef struct question {
    int64_t row;
    uint64_t number;
    char *line;
    json_t *calls;  /* of the turn */
    int n_bad;      /* calls that cannot be read */
    unsigned flags; /* of dt_chat_continue */
    bool answered, delivered;
    dt_observation answer;
    dt_ids ids;
} question;

typedef struct environment {
    dt_turns turns;
    const char *section;
    dt_program program;
    double timeout_s;
    dt_tokenizer *tokenizer; /* these three NULL: not open, as in a plan without files */
    dt_chat *chat;
    dt_encoder *encoder;
    dt_ids no_think; /* the end of a prompt for an answer without thoughts; empty: not known */
    question *of;    /* [n] since the last time when all answers were delivered */
    int64_t n, n_alloc, n_delivered;
} environment;

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static dt_err no_memory(void) { return dt_fail(DT_ERR_MEMORY, "out of memory for the input of an environment"); }

static char *turn_text(const environment *e, const dt_rollout *r, const dt_turn *turn, bool skip_special)
{
    size_t nbytes;
    const int32_t *ids = dt_rollout_ids(r, turn->row) + dt_rollout_row_of(r, turn->row)->n_prompt + turn->from;
    return dt_decode(e->tokenizer, ids, turn->n_tok, skip_special, &nbytes);
}

static dt_err read_calls(environment *e, const dt_rollout *r, const dt_turn *turn, const json_t *record, question *q)
{
    dt_messages m = {0};
    char *text = turn_text(e, r, turn, false);
    dt_err err = text ? dt_messages_take_tools(&m, record) : no_memory();
    if (err == DT_OK) err = dt_chat_read_calls(e->chat, m.tools, text, &q->calls, &q->n_bad);
    dt_messages_free(&m);
    free(text);
    return err;
}

/* In this order; fields of the record with these names are omitted. */
static char *write_line(dt_rollout *r, const dt_turn *turn, const question *q, const char *text, const json_t *record)
{
    const dt_rollout_row *row = dt_rollout_row_of(r, turn->row);
    const char *prompt = dt_rollout_text(r, turn->row, DT_PART_PROMPT, DT_NO_SPECIAL),
               *completion = dt_rollout_text(r, turn->row, DT_PART_COMPLETION, DT_NO_SPECIAL);
    json_t *line = prompt && completion
                       ? json_pack("{s:I, s:i, s:b, s:s, s:O, s:i, s:s, s:s}", "episode", (json_int_t)row->number,
                                   "turn", (int)row->n_turns, "last", (int)turn->last, "text", text, "tool_calls",
                                   q->calls, "unread_calls", q->n_bad, "prompt", prompt, "completion", completion)
                       : NULL;
    char *written =
        line && json_object_update_missing(line, (json_t *)record) == 0 ? json_dumps(line, JSON_COMPACT) : NULL;
    json_decref(line);
    return written;
}

/* Later turns begin as the prompt has begun the first one. */
static unsigned flags_of(const environment *e, const dt_rollout *r, int64_t row)
{
    const int32_t n_prompt = dt_rollout_row_of(r, row)->n_prompt, n = (int32_t)e->no_think.n;
    const bool off = n > 0 && n <= n_prompt &&
                     memcmp(dt_rollout_ids(r, row) + n_prompt - n, e->no_think.id, (size_t)n * sizeof(int32_t)) == 0;
    return off ? DT_CHAT_NO_THINK : 0;
}

static dt_err fill_question(environment *e, dt_rollout *r, const dt_turn *turn, question *q)
{
    const char *of_prompt = dt_rollout_record(r, turn->row);
    json_t *record;
    if (!of_prompt) return DT_ERR_DATA; /* the error is recorded */
    DT_TRY(
        dt_json_parse(&record, "the record of a prompt", of_prompt, strlen(of_prompt), DT_JSON_NUL | DT_JSON_LAST_KEY));
    const dt_err err = read_calls(e, r, turn, record, q);
    char *text = err == DT_OK ? turn_text(e, r, turn, true) : NULL;
    q->line = text ? write_line(r, turn, q, text, record) : NULL;
    free(text);
    json_decref(record);
    return err != DT_OK || q->line ? err : no_memory();
}

static void clear_question(question *q)
{
    free(q->line);
    json_decref(q->calls);
    q->line = NULL, q->calls = NULL;
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static void complain(dt_complaint *what, const char *text) { snprintf(what->text, sizeof what->text, "%s", text); }

/* The question that an answer belongs to: that of its episode, or else the first one without an answer. */
static question *question_of(environment *e, const json_t *answer)
{
    const json_t *episode = json_object_get(answer, "episode");
    for (int64_t k = 0; k < e->n && k < e->program.n_asked; k++) {
        question *q = &e->of[k];
        const bool named = json_is_integer(episode) && json_integer_value(episode) == (json_int_t)q->number;
        if (!q->answered && (!episode || named)) return q;
    }
    return NULL;
}

/* A message of role tool has the name and the id of its call. */
static json_t *message_of(const question *q, const char *role, json_t *content, size_t k)
{
    json_t *message = json_pack("{s:s, s:O}", "role", role, "content", content);
    const json_t *call = json_array_get(q->calls, k);
    json_t *name = json_object_get(json_object_get(call, "function"), "name"), *id = json_object_get(call, "id");
    if (!message || strcmp(role, "tool") != 0) return message;
    if (name) json_object_set(message, "name", name);
    if (json_is_string(id)) json_object_set(message, "tool_call_id", id);
    return message;
}

/* The messages of an answer: a new list, empty without an observation. NULL: invalid. */
static json_t *messages_of(const question *q, const json_t *answer, dt_complaint *what)
{
    json_t *messages = json_object_get(answer, "messages"), *observation = json_object_get(answer, "observation"),
           *list = json_array(), *role = json_object_get(answer, "role");
    const char *name = role ? json_string_value(role) : "tool";
    const size_t n = json_is_array(observation) ? json_array_size(observation) : 1;
    dt_role known;
    bool valid = list && name && dt_role_parse(name, &known) && (known == DT_ROLE_TOOL || known == DT_ROLE_USER);
    if (!valid) complain(what, "role: expected tool or user");
    if (messages) {
        if (!json_is_array(messages)) complain(what, "messages: expected a list of {\"role\": ..., \"content\": ...}");
        if (valid) json_array_extend(list, messages);
    } else if (observation && !json_is_null(observation)) {
        for (size_t k = 0; k < n && valid; k++) {
            json_t *text = json_is_array(observation) ? json_array_get(observation, k) : observation;
            valid = json_is_string(text) && json_array_append_new(list, message_of(q, name, text, k)) == 0;
            if (!valid) complain(what, "observation: expected a text, a list of texts, or null");
        }
    }
    if (!*what->text) return list;
    json_decref(list);
    return NULL;
}

static void check_fields(const json_t *answer, dt_complaint *what)
{
    static const char *const known[] = {"episode", "observation", "messages", "role", "reward", "done", "failures"};
    const json_t *reward = json_object_get(answer, "reward"), *done = json_object_get(answer, "done"),
                 *failures = json_object_get(answer, "failures"), *value;
    const char *key;
    json_object_foreach((json_t *)answer, key, value)
    {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) found |= !strcmp(key, known[i]);
        if (!found)
            snprintf(what->text, sizeof what->text,
                     "unknown field %.40s; known are episode, observation, messages, role, reward, done, failures",
                     key);
    }
    if (reward && !json_is_null(reward) &&
        !(json_is_number(reward) && fabs(json_number_value(reward)) <= DT_MOST_REWARD))
        complain(what, "reward: expected a number from -1e30 to 1e30, or null");
    if (done && !json_is_boolean(done)) complain(what, "done: expected true or false");
    if (failures && !(json_is_integer(failures) && json_integer_value(failures) >= 0 &&
                      json_integer_value(failures) <= INT32_MAX / 2))
        complain(what, "failures: expected the number of tool calls that failed");
}

static dt_err use_answer(environment *e, question *q, const json_t *answer, dt_complaint *what)
{
    const json_t *reward = json_object_get(answer, "reward"), *done = json_object_get(answer, "done");
    json_t *messages = messages_of(q, answer, what);
    if (!messages) return DT_OK;
    const bool empty = json_array_size(messages) == 0;
    if (empty && json_is_false(done)) complain(what, "done is false, but there is no observation to continue with");
    q->ids.n = 0;
    dt_err err =
        empty || json_is_true(done) ? DT_OK : dt_chat_continue(e->chat, e->encoder, messages, q->flags, &q->ids);
    if (err == DT_ERR_DATA) {
        complain(what, dt_error_message());
        dt_error_clear();
        err = DT_OK;
    }
    json_decref(messages);
    q->answered = true;
    q->answer =
        (dt_observation){.row = q->row,
                         .ids = q->ids.id,
                         .n = (int32_t)dt_min_size(q->ids.n, INT32_MAX),
                         .n_calls = (int32_t)json_array_size(q->calls) + q->n_bad,
                         .n_failures = q->n_bad + (int32_t)json_integer_value(json_object_get(answer, "failures")),
                         .reward = json_is_number(reward) ? json_number_value(reward) : (double)NAN};
    return err;
}

/* dt_answer_fn. */
static dt_err take_answer(void *self, const char *line, dt_complaint *what)
{
    environment *e = self;
    json_t *answer = NULL;
    if (strlen(line) > DT_PROGRAM_LINE) {
        snprintf(what->text, sizeof what->text, "expected at most %d bytes", DT_PROGRAM_LINE);
        return DT_OK;
    }
    dt_err err = dt_json_parse(&answer, "", line, strlen(line), DT_JSON_RECORD);
    if (err == DT_ERR_MEMORY) return err;
    dt_error_clear();
    question *q = json_is_object(answer) ? question_of(e, answer) : NULL;
    err = DT_OK;
    if (!json_is_object(answer))
        complain(what, "expected a JSON object such as {\"observation\": \"7\"} or {\"reward\": 1, \"done\": true}");
    else if (!q)
        complain(what, "episode: expected that of a turn without an answer");
    else
        check_fields(answer, what);
    if (q && !*what->text) err = use_answer(e, q, answer, what);
    json_decref(answer);
    return err;
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

static dt_err ask(void *self, dt_rollout *r, const dt_turn *turn)
{
    environment *e = self;
    if (e->n_delivered == e->n) {
        e->n = e->n_delivered = 0;
        dt_program_begin(&e->program, 0, NULL, 0);
    }
    if (e->n == e->n_alloc) {
        const int64_t n = 2 * e->n_alloc + 64;
        question *more = realloc(e->of, (size_t)n * sizeof *more);
        if (!more) return no_memory();
        memset(more + e->n_alloc, 0, (size_t)(n - e->n_alloc) * sizeof *more);
        e->of = more, e->n_alloc = n;
    }
    question *q = &e->of[e->n];
    clear_question(q);
    *q = (question){.row = turn->row,
                    .number = dt_rollout_row_of(r, turn->row)->number,
                    .flags = flags_of(e, r, turn->row),
                    .ids = q->ids};
    DT_TRY(fill_question(e, r, turn, q));
    e->n++;
    dt_program_add(&e->program, take_answer, e);
    return DT_OK;
}

static dt_err request(void *self, int64_t k, char **line)
{
    question *q = &((environment *)self)->of[k];
    *line = q->line;
    q->line = NULL;
    return DT_OK;
}

static bool next_answer(environment *e, dt_observation *o)
{
    for (int64_t k = 0; k < e->n; k++) {
        question *q = &e->of[k];
        if (!q->answered || q->delivered) continue;
        q->delivered = true;
        e->n_delivered++;
        *o = q->answer;
        return true;
    }
    return false;
}

static dt_err answer(void *self, double most_s, dt_observation *o, bool *any)
{
    environment *e = self;
    struct pollfd fds[3];
    bool done;
    *any = next_answer(e, o);
    if (*any || e->n_delivered == e->n) return DT_OK;
    if (most_s > 0) {
        const int n = dt_program_waits_for(&e->program, fds);
        poll(fds, (nfds_t)n, (int)(most_s * 1e3) + 1);
    }
    DT_TRY(dt_fault("environment.answer"));
    DT_TRY(dt_program_go_on(&e->program, request, e, e->timeout_s, &done));
    *any = next_answer(e, o);
    return DT_OK;
}

/* ---- a part of the task ------------------------------------------------------------------------------------------ */

/* The template that wrote the prompts. */
static const char *template_of(const dt_task *t)
{
    const char *data = t->train ? dt_loader_info(t->train)->chat_template : "";
    return *data ? data : *t->cfg->model_chat_template ? t->cfg->model_chat_template : "auto";
}

/* What DT_CHAT_NO_THINK changes. */
static dt_err find_no_think(environment *e)
{
    dt_ids with = {0};
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "dummy");
    dt_err err = messages ? dt_chat_continue(e->chat, e->encoder, messages, 0, &with) : no_memory();
    if (err == DT_OK) err = dt_chat_continue(e->chat, e->encoder, messages, DT_CHAT_NO_THINK, &e->no_think);
    size_t n = 0;
    while (n < with.n && n < e->no_think.n && with.id[n] == e->no_think.id[n]) n++;
    e->no_think.n -= n;
    if (e->no_think.n > 0) memmove(e->no_think.id, e->no_think.id + n, e->no_think.n * sizeof *with.id);
    free(with.id);
    json_decref(messages);
    if (err == DT_ERR_DATA) dt_error_clear(); /* reported with the first observation */
    return err == DT_ERR_DATA ? DT_OK : err;
}

static dt_err open_chat(void *self, dt_task *t, const char *tokenizer, int32_t *end_token)
{
    environment *e = self;
    if (!e->chat && !*tokenizer) {
        DT_CONFIG_CHECK(!t->comm, t->cfg, e->section, "environment",
                        "an environment exchanges texts, so the prompts or the model need a tokenizer; found none");
        return DT_OK;
    }
    if (!e->chat) {
        dt_err err = dt_tokenizer_open(&e->tokenizer, tokenizer);
        if (err == DT_OK) dt_ledger_add(t->ledger, DT_MEM_DATA, DT_ON_HOST, dt_tokenizer_nbytes(e->tokenizer));
        if (err == DT_OK) err = dt_encoder_open(&e->encoder, e->tokenizer);
        if (err == DT_OK) err = dt_chat_open(&e->chat, template_of(t), e->tokenizer);
        if (err == DT_OK) err = find_no_think(e);
        if (err != DT_OK && !t->comm) return dt_error_clear(), DT_OK; /* a plan may run without the files */
        DT_TRY(dt_config_lead_to(t->cfg, e->section, "environment", err));
    }
    *end_token = dt_chat_end_token(e->chat);
    if (t->comm && dt_comm_first(t->comm) && !dt_chat_knows_calls(e->chat) && !t->valid)
        DT_WARN(
            "the chat template %s writes tool calls in a form that dtrain cannot read, so tool_calls is always empty; "
            "the environment must read text",
            dt_chat_source(e->chat));
    return DT_OK;
}

static dt_err plan(const void *self, const dt_task *t, dt_memory *memory)
{
    memory->at[DT_MEM_DATA][DT_ON_HOST] += dt_tokenizer_nbytes(((const environment *)self)->tokenizer);
    return DT_OK;
}

static dt_err begin(void *self, dt_task *t)
{
    environment *e = self;
    dt_err err = dt_fault("environment.start");
    if (err == DT_OK)
        err = dt_program_start(&e->program, t->data->rank, t->data->size, dt_comm_number_on_node(t->comm));
    return dt_comm_agree(t->comm, err);
}

static void close_environment(void *self, dt_task *t)
{
    environment *e = self;
    dt_program_close(&e->program);
    for (int64_t k = 0; k < e->n_alloc; k++) {
        clear_question(&e->of[k]);
        free(e->of[k].ids.id);
    }
    free(e->of);
    free(e->no_think.id);
    dt_chat_close(e->chat);
    dt_encoder_close(e->encoder);
    dt_ledger_sub(t->ledger, DT_MEM_DATA, DT_ON_HOST, dt_tokenizer_nbytes(e->tokenizer));
    dt_tokenizer_close(e->tokenizer);
    free(e);
}

static dt_err open_program(environment *e, const dt_task *t, const char *command)
{
    static const char prefix[] = "command:";
    const bool named = strncmp(command, prefix, sizeof prefix - 1) == 0;
    DT_CONFIG_CHECK(named, t->cfg, e->section, "environment", "expected command:PROGRAM ARGS, found %s", command);
    DT_TRY(dt_config_lead_to(t->cfg, e->section, "environment",
                             dt_program_open(&e->program, command + sizeof prefix - 1, t->comm != NULL)));
    DT_CONFIG_CHECK(t->cfg->mesh_tp <= 1 && t->cfg->mesh_cp <= 1, t->cfg, e->section, "environment",
                    "expected mesh.tp = 1 and mesh.cp = 1: the ranks of a model each have a process, whose answers may "
                    "come at other times");
    return DT_OK;
}

dt_turns *dt_environment_open(dt_task *t, const char *section, const char *command, int64_t max_iterations)
{
    static const dt_task_part_ops part = {.plan = plan, .begin = begin, .close = close_environment};
    environment *e = calloc(1, sizeof *e);
    if (!e) {
        dt_mistakes_add(t->mistakes, dt_fail(DT_ERR_MEMORY, "out of memory for an environment"));
        return NULL;
    }
    dt_task_hold(t, &part, e);
    e->section = section;
    e->timeout_s = t->cfg->comm_timeout;
    const dt_err err = open_program(e, t, command);
    dt_mistakes_add(t->mistakes, err);
    e->turns = (dt_turns){.self = e,
                          .open = open_chat,
                          .ask = ask,
                          .answer = answer,
                          .name = e->program.name,
                          .max_turns = max_iterations ? max_iterations + 1 : 0};
    return err == DT_OK ? &e->turns : NULL;
}
