/* serve.c - dtrain-generate --serve: an endpoint with OpenAI's API. This file has the paths, the key and the start of
 * jobs, which run in the HTTP server's thread, and the service's life. */
#include "serve.h"
#include "dtrain/process/process.h"
#include "dtrain/text/space.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { MAX_CONNECTIONS = 512, PATIENCE_S = 30, SENDING_S = 5, USUAL_TOKENS = 16 };

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* The key given, against every key of the file (one per line, without white space around it). The time depends only on
 * lengths. */
static bool is_key(const server *s, const char *given)
{
    const size_t n = strlen(given);
    unsigned found = 0;
    for (size_t at = 0, line; at < s->n_keys; at += line + 1) {
        at += strspn(s->keys + at, " \t");
        const size_t len = dt_space_trimmed(s->keys + at, line = strcspn(s->keys + at, "\r\n"));
        unsigned differs = (len ^ n) != 0 || len == 0;
        for (size_t i = 0; i < len; i++) differs |= (unsigned)(s->keys[at + i] ^ given[n > 0 ? i % n : 0]);
        found |= !differs;
    }
    return found;
}

static bool is_allowed(const server *s, const char *authorization)
{
    if (!s->keys) return true;
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0) return false;
    return is_key(s, authorization + 7);
}

static dt_err read_keys(server *s)
{
    const char *file = s->a->opt.api_key_file;
    struct stat st;
    if (!file) return DT_OK;
    DT_TRY(dt_read_file(file, 1 << 20, &s->keys, &s->n_keys));
    DT_CHECK(strspn(s->keys, " \t\r\n") < s->n_keys, DT_ERR_USAGE, "--api-key-file: %s has no key", file);
    if (stat(file, &st) == 0 && (st.st_mode & 077)) DT_WARN("--api-key-file: other users can read %s", file);
    return DT_OK;
}

/* ---- jobs: in the HTTP server's thread --------------------------------------------------------------------------- */

static const char *type_of(const json_t *part) { return json_string_value(json_object_get(part, "type")); }

/* An image is in the request, because a name would be a file of this host. */
static bool is_image(const json_t *part)
{
    const char *type = type_of(part),
               *url = json_string_value(json_object_get(json_object_get(part, "image_url"), "url"));
    return type && strcmp(type, "image_url") == 0 && json_object_size(part) == 2 && url && dt_image_is_data(url);
}

/* Parts are texts, or images that the request contains. */
static dt_err check_messages(const json_t *messages, bool images)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *content = json_object_get(json_array_get(messages, i), "content");
        for (size_t k = 0; json_is_array(content) && k < json_array_size(content); k++) {
            const json_t *part = json_array_get(content, k);
            const char *type = type_of(part);
            if (images && is_image(part)) continue;
            DT_CHECK(type && strcmp(type, "text") == 0, DT_ERR_DATA,
                     "messages[%zu].content[%zu]: expected {\"type\": \"text\"}%s", i, k,
                     images ? ", or {\"type\": \"image_url\", \"image_url\": {\"url\": ...}} with a data: URL"
                            : "; this model accepts only texts");
        }
        DT_CHECK(!dt_image_key(json_array_get(messages, i)), DT_ERR_DATA,
                 "messages[%zu]: images are parts of a message's content", i);
    }
    return DT_OK;
}

/* Templates know {"type": "image"}. */
static void name_images(json_t *messages)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *content = json_object_get(json_array_get(messages, i), "content");
        for (size_t k = 0; json_is_array(content) && k < json_array_size(content); k++) {
            json_t *part = json_array_get(content, k),
                   *url = json_object_get(json_object_get(part, "image_url"), "url");
            if (is_image(part)) json_array_set_new(content, k, json_pack("{s:s,s:O}", "type", "image", "url", url));
        }
    }
}

/* The requests' prompts as records of --prompts. */
static json_t *records_of(const dt_api_request *r)
{
    json_t *list = json_array();
    if (r->chat) name_images(r->messages);
    if (r->chat) json_array_append_new(list, json_pack("{s:O,s:O*}", "messages", r->messages, "tools", r->tools));
    for (size_t i = 0; !r->chat && i < json_array_size(r->prompts); i++) {
        json_t *prompt = json_array_get(r->prompts, i);
        json_array_append_new(list, json_pack("{s:O}", json_is_string(prompt) ? "prompt" : "ids", prompt));
    }
    return list;
}

static void list_stops(const options *o, job *j)
{
    for (int i = 0; i < j->r.n_stop; i++) j->stop[j->n_stop++] = j->r.stop[i];
    for (int i = 0; i < o->n_stop; i++) j->stop[j->n_stop++] = o->stop[i];
}

static dt_err encode(server *s, job *j)
{
    app *a = s->a;
    if (j->r.chat) DT_TRY(check_messages(j->r.messages, a->reader.n_image_tokens > 0));
    DT_CHECK(!j->r.chat || s->can_chat, DT_ERR_DATA,
             "the model has no chat template that dtrain can evaluate; use /v1/completions, or start the server with "
             "--chat-template");
    json_t *records = records_of(&j->r);
    char *text = records ? json_dumps(records, JSON_COMPACT) : NULL;
    json_decref(records);
    DT_CHECK(text, DT_ERR_MEMORY, "out of memory for the prompts");
    const dt_err err = dt_prompts_parse(&j->prompts, "request", text, strlen(text), DT_PROMPT_JSONL, &a->reader);
    free(text);
    for (int i = 0; err == DT_OK && i < j->prompts.n; i++) DT_TRY(generate_begin_prompt(a, &j->prompts.prompt[i].ids));
    return err;
}

static dt_err add_image(const app *a, image_list *i, const char *name)
{
    uint8_t *pixels = NULL, *to;
    int64_t n_cells = 0;
    uint32_t grid = 0;
    DT_TRY(generate_load_image(a, name, INT32_MAX, &pixels, &n_cells, &grid));
    const dt_err err = generate_images_add(a, i, n_cells, grid, &to);
    if (err == DT_OK) memcpy(to, pixels, (size_t)n_cells * generate_image_nbytes(a));
    free(pixels);
    return err;
}

/* Images are prepared here, so that an image that cannot be read only fails its request. */
static dt_err add_images(app *a, job *j)
{
    const dt_image_names *names = &j->prompts.prompt[0].images;
    for (int i = 0; i < names->n; i++) {
        DT_CHECK(names->path[i] && dt_image_is_data(names->path[i]), DT_ERR_DATA, "image %d: expected a data: URL", i);
        DT_TRY(add_image(a, &j->images, names->path[i]));
    }
    return DT_OK;
}

/* The limit of --max-new-tokens on the command line. */
static int64_t most_new(const options *o)
{
    const bool given = o->given.max_new && strcmp(o->given.max_new, "generation_config.json") != 0;
    return given ? o->max_new_tokens : INT32_MAX;
}

static dt_err count_new(const server *s, const job *j, int64_t n_prompt, int64_t *n_new)
{
    const int64_t room = s->max_len - n_prompt, most = most_new(&s->a->opt), asked = j->r.max_tokens;
    DT_CHECK(room >= (asked == 0 ? 0 : 1), DT_ERR_DATA,
             "the prompt has %" PRId64 " tokens, but the context of this server has %" PRId32 ", answer included",
             n_prompt, s->max_len);
    DT_CHECK(asked <= room, DT_ERR_DATA,
             "max_tokens: the prompt has %" PRId64 " tokens, so at most %" PRId64 " of the %" PRId32
             " tokens of the context are left; found %" PRId64,
             n_prompt, room, s->max_len, asked);
    DT_CHECK(asked <= most, DT_ERR_DATA, "max_tokens: this server allows at most %" PRId64 ", found %" PRId64, most,
             asked);
    *n_new = asked >= 0 ? asked : dt_min_i64(dt_min_i64(room, most), j->r.chat ? INT32_MAX : USUAL_TOKENS);
    return DT_OK;
}

static dt_err make_choice(const server *s, job *j, int i)
{
    choice *c = &j->choices[i];
    const dt_ids *p = &j->prompts.prompt[i / j->r.n].ids;
    int64_t n_new = 0;
    DT_TRY(count_new(s, j, (int64_t)p->n, &n_new));
    *c = (choice){.of = j, .index = i, .live = -1};
    const bool scored = n_new == 0 && j->r.echo && j->r.logprobs >= 0;
    DT_CHECK(!scored || p->n < (size_t)s->max_len, DT_ERR_DATA,
             "log-probabilities of a prompt need room for one more token in the context of %" PRId32, s->max_len);
    c->n_dropped = scored;
    c->s = (dt_sequence){.number = (uint64_t)i, /* with a seed, else a new one */
                         .seed = j->r.sampling.seed,
                         .n_prompt = (int32_t)p->n,
                         .n_ids = (int32_t)p->n,
                         .max_ids = (int32_t)((int64_t)p->n + n_new + c->n_dropped),
                         .n_top = (int32_t)dt_max_i64(j->r.logprobs, 0),
                         .of_prompt = j->r.echo && j->r.logprobs >= 0};
    c->read = c->s.n_prompt;
    c->first = j->r.chat || c->s.n_prompt < 6 ? (j->r.chat ? c->s.n_prompt : 0) : c->s.n_prompt - 6;
    DT_TRY(serve_sequence_alloc(&c->s, j->r.logprobs >= 0));
    memcpy(c->s.ids, p->id, p->n * sizeof *c->s.ids);
    if (c->s.max_ids == c->s.n_prompt) c->finish = "length", j->n_left--;
    return DT_OK;
}

static dt_err make_choices(const server *s, job *j)
{
    const int n = (int)(j->prompts.n * j->r.n);
    const int most = (int)s->a->opt.max_queue + s->n_live;
    DT_CHECK(n <= most, DT_ERR_DATA, "the request has %d completions, but this server accepts at most %d", n, most);
    DT_ALLOC(j->choices, n, "out of memory for %d completions", n);
    j->n_left = n;
    for (; j->n_choices < n; j->n_choices++) {
        const dt_err err = make_choice(s, j, j->n_choices);
        if (err != DT_OK) return j->n_choices++, err;
        if (j->n_choices % j->r.n == 0) j->n_prompt_tok += j->choices[j->n_choices].s.n_prompt;
    }
    return DT_OK;
}

/* Give the job to the main thread. False: too many sequences wait. */
static bool hand_over(server *s, job *j)
{
    const int n = j->n_left;
    if (atomic_fetch_add(&s->n_waiting, n) + n > s->a->opt.max_queue + s->n_live && n > 0) {
        atomic_fetch_sub(&s->n_waiting, n);
        return false;
    }
    atomic_fetch_add(&s->n_prompt_tok, (uint64_t)j->n_prompt_tok);
    pthread_mutex_lock(&s->lock);
    j->next = s->arrived;
    s->arrived = j;
    pthread_cond_signal(&s->arrival);
    pthread_mutex_unlock(&s->lock);
    return true;
}

static bool knows_model(const server *s, const char *name)
{
    const char *model = s->a->opt.model;
    size_t end = strlen(model);
    if (!name || strcmp(name, model) == 0) return true;
    while (end > 1 && model[end - 1] == '/') end--;
    const char *base = memrchr(model, '/', end);
    const size_t n = base ? end - (size_t)(base + 1 - model) : 0;
    return n > 0 && strlen(name) == n && memcmp(name, base + 1, n) == 0;
}

static void start_job(server *s, dt_exchange *x, const dt_http_request *http, bool chat)
{
    const char *param = NULL;
    job *j = calloc(1, sizeof *j);
    dt_error_clear();
    if (!j) {
        serve_refuse(s, x, 503, NULL, NULL, "out of memory");
        return;
    }
    j->x = x;
    j->since_s = dt_now_s();
    j->end_s = j->since_s + s->a->opt.request_timeout_s;
    j->created = (int64_t)time(NULL);
    snprintf(j->id, sizeof j->id, "%s-%" PRIx64 "%08" PRIx64, chat ? "chatcmpl" : "cmpl", (uint64_t)j->created,
             (uint64_t)atomic_fetch_add(&s->n_requests, 1));
    dt_err err = dt_request_parse(&j->r, chat, http->body, http->nbytes, &s->a->opt.sampling, &param);
    if (err == DT_OK && !knows_model(s, j->r.model)) {
        serve_refuse(s, x, 404, "model", "model_not_found", "no such model; see /v1/models");
        serve_job_free(j);
        return;
    }
    list_stops(&s->a->opt, j);
    if (err == DT_OK) err = encode(s, j);
    if (err == DT_OK) err = make_choices(s, j);
    if (err == DT_OK) err = add_images(s->a, j);
    const bool full = err == DT_OK && !hand_over(s, j);
    if (err == DT_OK && !full) return;
    if (full)
        serve_refuse(s, x, 429, NULL, "queue_full", "too many requests wait; try again later");
    else
        serve_refuse(s, x, err == DT_ERR_MEMORY ? 503 : 400, param, NULL, dt_error_message());
    serve_job_free(j);
}

static void complete(server *s, dt_exchange *x, const dt_http_request *r) { start_job(s, x, r, false); }
static void chat(server *s, dt_exchange *x, const dt_http_request *r) { start_job(s, x, r, true); }

/* ---- other paths ------------------------------------------------------------------------------------------------- */

static void send_text(server *s, dt_exchange *x, const char *type, const char *text)
{
    atomic_fetch_add(&s->n_answers[2], 1);
    dt_exchange_begin(x, 200, type, false);
    dt_exchange_append(x, text, strlen(text));
    dt_exchange_end(x);
}

static void send_json(server *s, dt_exchange *x, json_t *object)
{
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    if (text)
        send_text(s, x, "application/json", text);
    else
        serve_refuse(s, x, 503, NULL, NULL, "out of memory");
    free(text);
}

static json_t *model_object(const server *s)
{
    return json_pack("{s:s,s:s,s:I,s:s,s:i}", "id", s->a->opt.model, "object", "model", "created",
                     (json_int_t)time(NULL), "owned_by", "dtrain", "max_model_len", (int)s->max_len);
}

static void list_models(server *s, dt_exchange *x, const dt_http_request *r)
{
    send_json(s, x, json_pack("{s:s,s:[o]}", "object", "list", "data", model_object(s)));
}

static void show_model(server *s, dt_exchange *x, const dt_http_request *r)
{
    if (knows_model(s, r->path + strlen("/v1/models/")))
        send_json(s, x, model_object(s));
    else
        serve_refuse(s, x, 404, "model", "model_not_found", "no such model; see /v1/models");
}

static void show_health(server *s, dt_exchange *x, const dt_http_request *r)
{
    send_text(s, x, "application/json", "{\"status\":\"ok\"}");
}

static void show_metrics(server *s, dt_exchange *x, const dt_http_request *r)
{
    const int waiting = atomic_load(&s->n_waiting), running = atomic_load(&s->n_running);
    const struct {
        const char *name, *kind, *help;
        double value;
    } all[] = {
        {"requests_total", "counter", "requests for completions", (double)atomic_load(&s->n_requests)},
        {"requests_given_up_total", "counter", "requests that ended without an answer", (double)atomic_load(&s->n_cut)},
        {"requests_running", "gauge", "requests that are not answered", running},
        {"sequences_waiting", "gauge", "sequences without a slot", waiting},
        {"slots", "gauge", "sequences that can run at a time", s->n_live},
        {"prompt_tokens_total", "counter", "tokens of prompts", (double)atomic_load(&s->n_prompt_tok)},
        {"new_tokens_total", "counter", "generated tokens", (double)atomic_load(&s->n_new_tok)},
        {"passes_total", "counter", "forward passes", (double)atomic_load(&s->n_passes)},
        {"answer_seconds_sum", "counter", "time from request to answer", (double)atomic_load(&s->answer_us) * 1e-6},
        {"first_token_seconds_sum", "counter", "time from request to first token",
         (double)atomic_load(&s->first_us) * 1e-6},
        {"first_token_seconds_count", "counter", "sequences with a first token", (double)atomic_load(&s->n_first)},
        {"uptime_seconds", "gauge", "time since the start", dt_now_s() - s->begin_s}};
    dt_text t = {0};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        dt_text_printf(&t, "# HELP dtrain_serve_%s %s\n# TYPE dtrain_serve_%s %s\ndtrain_serve_%s %.17g\n", all[i].name,
                       all[i].help, all[i].name, all[i].kind, all[i].name, all[i].value);
    dt_text_printf(&t, "# HELP dtrain_serve_answers_total answers by class of status\n"
                       "# TYPE dtrain_serve_answers_total counter\n");
    for (int i = 2; i < 6; i++)
        dt_text_printf(&t, "dtrain_serve_answers_total{status=\"%dxx\"} %" PRIu64 "\n", i,
                       (uint64_t)atomic_load(&s->n_answers[i]));
    size_t n;
    char *text = dt_text_finish(&t, &n);
    if (text)
        send_text(s, x, "text/plain; version=0.0.4; charset=utf-8", text);
    else
        serve_refuse(s, x, 503, NULL, NULL, "out of memory");
    free(text);
}

static const struct {
    const char *method, *path;
    bool prefix, open; /* prefix: what follows is a name. open: without a key */
    void (*answer)(server *s, dt_exchange *x, const dt_http_request *r);
} paths[] = {{"POST", "/v1/completions", false, false, complete}, {"POST", "/v1/chat/completions", false, false, chat},
             {"GET", "/v1/models", false, false, list_models},    {"GET", "/v1/models/", true, false, show_model},
             {"GET", "/health", false, true, show_health},        {"GET", "/metrics", false, false, show_metrics}};

static void handle(void *ctx, dt_exchange *x, const dt_http_request *r)
{
    server *s = ctx;
    bool known = false;
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        const size_t n = strlen(paths[i].path);
        if (paths[i].prefix ? strncmp(r->path, paths[i].path, n) != 0 : strcmp(r->path, paths[i].path) != 0) continue;
        known = true;
        if (strcmp(r->method, paths[i].method) != 0) continue;
        if (paths[i].open || is_allowed(s, r->authorization))
            paths[i].answer(s, x, r);
        else
            serve_refuse(s, x, 401, NULL, "invalid_api_key", "expected the header Authorization: Bearer KEY");
        return;
    }
    serve_refuse(s, x, known ? 405 : 404, NULL, NULL, known ? "method not allowed" : "no such path");
}

/* ---- the service ------------------------------------------------------------------------------------------------- */

/* A template that cannot be evaluated only excludes conversations. */
static void open_chat(server *s)
{
    app *a = s->a;
    s->can_chat = dt_prompt_reader_chat(&a->reader) == DT_OK;
    s->turn = s->can_chat ? dt_chat_end_token(a->reader.chat) : -1;
    if (s->can_chat) return;
    DT_WARN("conversations are refused: %s", dt_error_message());
    dt_error_clear();
}

static bool is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strncmp(address, "[::1]", 5) == 0;
}

static dt_err open_service(server *s)
{
    app *a = s->a;
    const dt_http_options opt = {.address = a->opt.serve,
                                 .max_body = (size_t)a->opt.max_body,
                                 .max_connections = MAX_CONNECTIONS,
                                 .patience_s = PATIENCE_S,
                                 .handle = handle,
                                 .ctx = s};
    DT_TRY(read_keys(s));
    open_chat(s);
    s->begin_s = dt_now_s();
    DT_TRY(dt_http_open(&s->http, &opt));
    const char *address = dt_http_address(s->http);
    if (!s->keys && !is_loopback(address))
        DT_WARN("--serve: anyone who can reach %s can use the model; see --api-key-file", address);
    printf("listening on http://%s\n", address);
    return generate_flush(a);
}

static void close_service(server *s)
{
    const double until_s = dt_now_s() + SENDING_S;
    serve_queue_close(s);
    while (s->http && dt_http_busy(s->http) && dt_now_s() < until_s) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        dt_http_check(s->http);
        serve_queue_close(s); /* requests that were being read when the server stopped */
    }
    dt_http_close(s->http);
    serve_live_close(s);
    free(s->keys);
    pthread_cond_destroy(&s->arrival);
    pthread_mutex_destroy(&s->lock);
}

static dt_err run(server *s, const dt_decoder *decoder, const dt_generate_options *g)
{
    app *a = s->a;
    dt_generate_stats stats;
    TOGETHER(a, serve_live_open(s));
    TOGETHER(a, a->comm.rank == 0 ? open_service(s) : DT_OK);
    TOGETHER(a, dt_watchdog_start(&a->watchdog, &a->phase, &a->comm, a->opt.timeout_s));
    const dt_err err = dt_generate(decoder, NULL, 0, g, &stats);
    dt_watchdog_stop(&a->watchdog);
    DT_TRY(err);
    return together(&a->comm, DT_OK);
}

dt_err generate_serve(app *a, const dt_decoder *decoder, dt_generate_options *g, int32_t max_len)
{
    server s = {.a = a, .max_len = max_len, .n_slots = g->n_slots, .turn = -1};
    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.arrival, NULL);
    a->server = &s;
    g->feed = &s.feed;
    g->on_pass = serve_live_on_pass;
    g->on_token = serve_live_on_token;
    g->image = serve_live_image;
    const dt_err err = run(&s, decoder, g);
    close_service(&s);
    a->server = NULL;
    return err;
}
