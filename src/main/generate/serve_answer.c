/* serve_answer.c - answers of dtrain-generate --serve: text, whole and streamed JSON, log-probabilities, errors. */
#include "serve.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void serve_job_free(job *j)
{
    for (choice *c = j->choices; c && c < j->choices + j->n_choices; c++) {
        serve_sequence_free(&c->s);
        dt_text_free(&c->text);
    }
    free(j->choices);
    generate_images_free(&j->images);
    dt_prompts_free(&j->prompts);
    dt_request_free(&j->r);
    free(j);
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* Is a byte inside a character? */
static bool continues(char byte) { return (byte & 0xc0) == 0x80; }

/* The text of a window: its first tokens are repeated as context of the next ones, because a tokenizer may write a
 * token otherwise at the start of a text. Characters at the end that the next token may complete are held back. Later
 * tokens may still change invalid bytes before them (byte fallback): whole answers are decoded again at their end. */
static void decode_window(const app *a, choice *c, bool last)
{
    size_t n_before = 0, n = 0, from;
    char *before = dt_decode(a->tok, c->s.ids + c->first, c->read - c->first, true, &n_before),
         *now = dt_decode(a->tok, c->s.ids + c->first, c->s.n_ids - c->first, true, &n);
    if (!before || !now) c->text.failed = true;
    size_t settled = now ? generate_whole_characters(now, n) : 0;
    const bool whole = settled == n || last;
    from = n_before + c->shown;
    while (now && from < n && continues(now[from])) from++;
    if (whole) settled = n;
    if (now && settled > from) {
        dt_text_append(&c->text, now + from, settled - from);
        c->shown = settled > n_before ? settled - n_before : 0;
    }
    if (whole) c->first = c->read, c->read = c->s.n_ids, c->shown = 0;
    free(before);
    free(now);
}

/* The text as dtrain-generate prints it, of an answer that is not streamed. */
static void decode_again(const app *a, choice *c)
{
    size_t n = 0;
    char *text = generate_completion(a, c->s.ids, c->s.n_prompt, c->s.n_ids, c->of->r.chat, &n);
    c->text.n = 0;
    if (text)
        dt_text_append(&c->text, text, n);
    else
        c->text.failed = true;
    free(text);
}

bool serve_text_grow(const app *a, choice *c, bool last)
{
    const job *j = c->of;
    size_t n_old = c->text.n;
    decode_window(a, c, last);
    if (last && !j->r.stream) decode_again(a, c), n_old = 0;
    const size_t end = c->text.bytes ? generate_find_stop(j->stop, j->n_stop, c->text.bytes, c->text.n, n_old) : 0;
    if (end == c->text.n) return false;
    c->text.n = end;
    return true;
}

/* Bytes that may be streamed: not the beginning of a stop text. */
static size_t sendable(const choice *c)
{
    const job *j = c->of;
    return c->finish || !c->text.bytes ? c->text.n : generate_before_stop(j->stop, j->n_stop, c->text.bytes, c->text.n);
}

/* ---- log-probabilities ------------------------------------------------------------------------------------------- */

/* JSON has no infinity. */
static json_t *real(double x) { return json_real(isfinite(x) ? x : -9999); }

/* Bytes of a token, which may be a part of a character; of a special token its name. */
static const char *bytes_of(const app *a, int32_t id, size_t *n)
{
    const char *bytes = dt_tokenizer_bytes(a->tok, id, n);
    if (bytes && *n > 0) return bytes;
    const char *name = dt_tokenizer_token(a->tok, id);
    *n = name ? strlen(name) : 0;
    return name ? name : "";
}

/* The text of a token; in bytes that are no text, as OpenAI writes them. */
static json_t *token_text(const app *a, int32_t id)
{
    size_t n;
    const char *bytes = bytes_of(a, id, &n);
    json_t *text = json_stringn(bytes, n);
    if (text) return text;
    dt_text t = {0};
    dt_text_printf(&t, "bytes:");
    for (size_t i = 0; i < n; i++) dt_text_printf(&t, "\\x%02x", (unsigned char)bytes[i]);
    text = t.bytes ? json_stringn(t.bytes, t.n) : NULL;
    dt_text_free(&t);
    return text;
}

static int64_t n_characters(const json_t *text)
{
    int64_t n = 0;
    for (const char *at = json_string_value(text), *end = at ? at + json_string_length(text) : NULL; at < end; at++)
        n += !continues(*at);
    return n;
}

/* {token: log-probability} with the token itself. */
static json_t *alternatives(const app *a, const choice *c, int32_t i)
{
    json_t *list = json_object();
    const int32_t n_top = c->s.n_top;
    for (int32_t j = 0; j <= n_top; j++) {
        const int32_t id = j < n_top ? c->s.top_token[(int64_t)i * n_top + j] : c->s.ids[i];
        json_t *key = id >= 0 ? token_text(a, id) : NULL;
        if (key && (j < n_top || !json_object_get(list, json_string_value(key))))
            json_object_set_new(list, json_string_value(key),
                                real((double)(j < n_top ? c->s.top_logp[(int64_t)i * n_top + j] : c->s.logps[i])));
        json_decref(key);
    }
    return list;
}

/* Of tokens from .. end - 1. offset: inout, in characters. */
static json_t *completion_logprobs(const app *a, const choice *c, int32_t from, int32_t end, int64_t *offset)
{
    json_t *tokens = json_array(), *logps = json_array(), *tops = json_array(), *offsets = json_array();
    for (int32_t i = from; i < end; i++) {
        json_t *text = token_text(a, c->s.ids[i]);
        json_array_append_new(offsets, json_integer(*offset));
        *offset += n_characters(text);
        json_array_append_new(tokens, text);
        json_array_append_new(logps, i > 0 ? real((double)c->s.logps[i]) : json_null());
        json_array_append_new(tops, i > 0 ? alternatives(a, c, i) : json_null());
    }
    return json_pack("{s:o,s:o,s:o,s:o}", "tokens", tokens, "token_logprobs", logps, "top_logprobs", tops,
                     "text_offset", offsets);
}

static json_t *chat_logprob(const app *a, int32_t id, double logp)
{
    size_t n;
    const char *bytes = bytes_of(a, id, &n);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    return json_pack("{s:o,s:o,s:o}", "token", token_text(a, id), "logprob", real(logp), "bytes", list);
}

static json_t *chat_logprobs(const app *a, const choice *c, int32_t from, int32_t end)
{
    json_t *content = json_array();
    const int32_t n_top = c->s.n_top;
    for (int32_t i = from; i < end; i++) {
        json_t *one = chat_logprob(a, c->s.ids[i], (double)c->s.logps[i]), *tops = json_array();
        for (int32_t j = 0; j < n_top && c->s.top_token[(int64_t)i * n_top + j] >= 0; j++)
            json_array_append_new(tops, chat_logprob(a, c->s.top_token[(int64_t)i * n_top + j],
                                                     (double)c->s.top_logp[(int64_t)i * n_top + j]));
        json_object_set_new(one, "top_logprobs", tops);
        json_array_append_new(content, one);
    }
    return json_pack("{s:o,s:n}", "content", content, "refusal");
}

static json_t *logprobs(const app *a, const choice *c, int32_t from, int64_t *offset)
{
    const int32_t end = c->s.n_ids - c->n_dropped > from ? c->s.n_ids - c->n_dropped : from;
    if (!c->s.logps) return json_null();
    return c->of->r.chat ? chat_logprobs(a, c, from, end) : completion_logprobs(a, c, from, end, offset);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static char *prompt_text(const app *a, const choice *c, size_t *n)
{
    const json_t *given = json_array_get(c->of->r.prompts, (size_t)(c->index / c->of->r.n));
    if (!json_is_string(given)) return dt_decode(a->tok, c->s.ids, c->s.n_prompt, true, n);
    *n = json_string_length(given);
    char *text = malloc(*n + 1);
    if (text) memcpy(text, json_string_value(given), *n + 1);
    return text;
}

static json_t *text_of(const app *a, const choice *c, size_t from, size_t end, bool with_prompt)
{
    size_t n = 0;
    dt_text t = {0};
    char *prompt = with_prompt ? prompt_text(a, c, &n) : NULL;
    if (prompt) dt_text_append(&t, prompt, n);
    if (end > from) dt_text_append(&t, c->text.bytes + from, end - from);
    dt_text_append(&t, "", 0);
    json_t *text = t.failed ? NULL : json_stringn(t.bytes ? t.bytes : "", t.n);
    dt_text_free(&t);
    free(prompt);
    return text;
}

static json_t *usage_of(const job *j)
{
    int64_t n_new = 0;
    for (const choice *c = j->choices; c < j->choices + j->n_choices; c++)
        n_new += c->s.n_ids - c->n_dropped - c->s.n_prompt;
    return json_pack("{s:I,s:I,s:I}", "prompt_tokens", (json_int_t)j->n_prompt_tok, "completion_tokens",
                     (json_int_t)n_new, "total_tokens", (json_int_t)(j->n_prompt_tok + n_new));
}

static json_t *finish_of(const choice *c) { return c->finish ? json_string(c->finish) : json_null(); }

static json_t *completion(const app *a, const choice *c)
{
    int64_t offset = 0;
    const bool echo = c->of->r.echo;
    return json_pack("{s:i,s:o,s:o,s:o}", "index", c->index, "text", text_of(a, c, 0, c->text.n, echo), "logprobs",
                     logprobs(a, c, echo ? 0 : c->s.n_prompt, &offset), "finish_reason", finish_of(c));
}

/* ---- tool calls -------------------------------------------------------------------------------------------------- */

/* Bytes of the text before the first call, by the name in it. */
static size_t before_calls(const choice *c, const json_t *calls)
{
    static const char tag[] = "<tool_call>";
    const char *name =
        json_string_value(json_object_get(json_object_get(json_array_get(calls, 0), "function"), "name"));
    const char *text = c->text.bytes, *end = text ? memmem(text, c->text.n, name, strlen(name)) : NULL;
    const char *at = text ? memmem(text, c->text.n, tag, strlen(tag)) : NULL;
    for (const char *p = text; !at && p && p < end; p++)
        if (strchr("{[<", *p)) at = p;
    size_t n = at ? (size_t)(at - text) : end ? (size_t)(end - text) : 0;
    while (n > 0 && strchr(" \t\r\n", text[n - 1])) n--;
    return n;
}

/* The calls in an answer as the API has them; NULL: none. n_text: out, bytes of the text without them. */
static json_t *calls_of(const server *s, choice *c, size_t *n_text)
{
    const app *a = s->a;
    size_t n;
    int n_bad;
    json_t *calls = NULL, *one;
    *n_text = c->text.n;
    if (!c->of->r.tools) return NULL;
    char *text = dt_decode(a->tok, c->s.ids + c->s.n_prompt, c->s.n_ids - c->s.n_prompt, false, &n);
    if (!text || dt_chat_read_calls(a->reader.chat, c->of->r.tools, text, &calls, &n_bad) != DT_OK) dt_error_clear();
    free(text);
    if (json_array_size(calls) == 0) return json_decref(calls), NULL;
    *n_text = before_calls(c, calls);
    size_t i;
    json_array_foreach(calls, i, one)
    {
        char id[96];
        json_t *function = json_object_get(one, "function"), *arguments = json_object_get(function, "arguments");
        char *written = json_dumps(arguments, JSON_COMPACT | JSON_ENCODE_ANY);
        snprintf(id, sizeof id, "call-%s-%d-%zu", c->of->id + strlen("chatcmpl-"), c->index, i);
        json_object_set_new(one, "id", json_string(id));
        json_object_set_new(one, "index", json_integer((json_int_t)i));
        json_object_set_new(function, "arguments", json_string(written ? written : "{}"));
        free(written);
    }
    if (strcmp(c->finish, "stop") == 0) c->finish = "tool_calls";
    return calls;
}

static json_t *answer_of(const server *s, choice *c)
{
    const app *a = s->a;
    int64_t offset = 0;
    size_t n, i;
    json_t *calls = calls_of(s, c, &n), *one,
           *message = json_pack("{s:s,s:o,s:n}", "role", "assistant", "content",
                                calls && n == 0 ? json_null() : text_of(a, c, 0, n, false), "refusal");
    json_array_foreach(calls, i, one) json_object_del(one, "index");
    if (calls) json_object_set_new(message, "tool_calls", calls);
    return json_pack("{s:i,s:o,s:o,s:o}", "index", c->index, "message", message, "logprobs",
                     logprobs(a, c, c->s.n_prompt, &offset), "finish_reason", finish_of(c));
}

/* ---- parts of answers -------------------------------------------------------------------------------------------- */

/* An answer, or a part of a stream, without choices and usage. */
static json_t *envelope(const server *s, const job *j, json_t *choices)
{
    const char *kind = !j->r.chat ? "text_completion" : j->r.stream ? "chat.completion.chunk" : "chat.completion";
    return json_pack("{s:s,s:s,s:I,s:s,s:o}", "id", j->id, "object", kind, "created", (json_int_t)j->created, "model",
                     s->a->opt.model, "choices", choices);
}

/* Takes ownership of the object. False: out of memory. */
static bool append_json(dt_exchange *x, json_t *object, const char *before, const char *after)
{
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    if (!text) return false;
    dt_exchange_append(x, before, strlen(before));
    dt_exchange_append(x, text, strlen(text));
    dt_exchange_append(x, after, strlen(after));
    free(text);
    return true;
}

static json_t *error_of(int status, const char *param, const char *code, const char *message)
{
    static const struct {
        int status;
        const char *type;
    } types[] = {{401, "authentication_error"}, {404, "not_found_error"}, {429, "rate_limit_error"},
                 {500, "server_error"},         {503, "server_error"},    {504, "timeout_error"}};
    const char *type = "invalid_request_error";
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].status == status) type = types[i].type;
    return json_pack("{s:{s:s,s:s,s:s?,s:s?}}", "error", "message", message, "type", type, "param", param, "code",
                     code);
}

static void count(server *s, int status) { atomic_fetch_add(&s->n_answers[status / 100 % 6], 1); }

void serve_refuse(server *s, dt_exchange *x, int status, const char *param, const char *code, const char *message)
{
    size_t n;
    char *text = dt_utf8_repair(message, strlen(message), &n);
    count(s, status);
    dt_exchange_begin(x, status, "application/json", false);
    append_json(x, error_of(status, param, code, text ? text : ""), "", "");
    dt_exchange_end(x);
    free(text);
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

static void begin_stream(server *s, job *j)
{
    if (j->begun) return;
    j->begun = true;
    count(s, 200);
    dt_exchange_begin(j->x, 200, "text/event-stream; charset=utf-8", true);
    for (int i = 0; j->r.chat && i < j->n_choices; i++)
        append_json(j->x,
                    envelope(s, j,
                             json_pack("[{s:i,s:{s:s,s:s},s:n,s:n}]", "index", i, "delta", "role", "assistant",
                                       "content", "", "logprobs", "finish_reason")),
                    "data: ", "\n\n");
}

/* With tools, an answer is one part, because its end decides what is a call. */
static void send_part(server *s, choice *c, size_t end)
{
    const app *a = s->a;
    job *j = c->of;
    const bool first = c->n_streamed == 0;
    const int32_t from = c->s.n_prompt + c->n_streamed;
    size_t n_text;
    json_t *calls = c->finish ? calls_of(s, c, &n_text) : NULL, *list = logprobs(a, c, from, &c->offset), *one,
           *text = text_of(a, c, c->sent, calls ? n_text : end, first && j->r.echo);
    if (calls) end = n_text;
    if (j->r.chat) {
        json_t *delta = end > c->sent ? json_pack("{s:o}", "content", text) : json_object();
        if (end <= c->sent) json_decref(text);
        if (calls) json_object_set_new(delta, "tool_calls", calls);
        one = json_pack("{s:i,s:o,s:o,s:o}", "index", c->index, "delta", delta, "logprobs", list, "finish_reason",
                        finish_of(c));
    } else {
        one = json_pack("{s:i,s:o,s:o,s:o}", "index", c->index, "text", text, "logprobs", list, "finish_reason",
                        finish_of(c));
    }
    append_json(j->x, envelope(s, j, json_pack("[o]", one)), "data: ", "\n\n");
    c->sent = end;
    c->n_streamed = c->s.n_ids - c->s.n_prompt;
}

void serve_stream(server *s, choice *c)
{
    begin_stream(s, c->of);
    const size_t end = sendable(c);
    if (c->of->r.tools && !c->finish) return;
    if (end > c->sent || c->finish || c->s.logps) send_part(s, c, end);
}

static void end_stream(server *s, job *j)
{
    begin_stream(s, j);
    if (j->r.with_usage) {
        json_t *last = envelope(s, j, json_array());
        json_object_set_new(last, "usage", usage_of(j));
        append_json(j->x, last, "data: ", "\n\n");
    }
    dt_exchange_append(j->x, "data: [DONE]\n\n", 14);
    dt_exchange_end(j->x);
}

/* ---- whole answers ----------------------------------------------------------------------------------------------- */

static void fail(server *s, job *j)
{
    static const struct {
        const char *finish, *message;
        int status;
    } reasons[] = {{"gone", "the client closed the connection", 503},
                   {"shutdown", "the server is shutting down", 503},
                   {"timeout", "the request exceeded the time limit of the server", 504},
                   {"error", "the model computed no token: its logits are not finite, or no token is allowed", 500}};
    const char *finish = "error";
    size_t i = 0;
    for (const choice *c = j->choices; c < j->choices + j->n_choices; c++)
        for (size_t k = 0; c->finish && k < sizeof reasons / sizeof reasons[0]; k++)
            if (strcmp(c->finish, reasons[k].finish) == 0) finish = c->finish;
    while (strcmp(reasons[i].finish, finish) != 0) i++;
    if (!j->begun) {
        serve_refuse(s, j->x, reasons[i].status, NULL, NULL, reasons[i].message);
        return;
    }
    append_json(j->x, error_of(reasons[i].status, NULL, NULL, reasons[i].message), "data: ", "\n\n");
    dt_exchange_end(j->x);
}

void serve_answer(server *s, job *j)
{
    bool failed = j->failed;
    for (const choice *c = j->choices; c < j->choices + j->n_choices; c++) failed |= c->text.failed;
    if (failed) {
        fail(s, j);
        return;
    }
    if (j->r.stream) {
        for (choice *c = j->choices; c < j->choices + j->n_choices; c++)
            if (c->s.n_ids - c->n_dropped == c->s.n_prompt) serve_stream(s, c);
        end_stream(s, j);
        return;
    }
    json_t *choices = json_array();
    for (choice *c = j->choices; c < j->choices + j->n_choices; c++)
        json_array_append_new(choices, j->r.chat ? answer_of(s, c) : completion(s->a, c));
    json_t *all = envelope(s, j, choices);
    json_object_set_new(all, "usage", usage_of(j));
    count(s, 200);
    dt_exchange_begin(j->x, 200, "application/json", false);
    append_json(j->x, all, "", "");
    dt_exchange_end(j->x);
}
