/* request.c - see request.h. A table names every field. */
#include "dtrain/serve/request.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef enum kind {
    FLAG,    /* bool */
    INTEGER, /* int64_t, from low to high */
    REAL,    /* double, from low to high */
    TEXT,    /* const char * */
    CALL,    /* take */
    NEUTRAL, /* only its neutral value: a number low, or null, false, an empty list or object */
    IGNORED  /* changes no answer */
} kind;

typedef struct field field;
struct field {
    const char *name;
    kind kind;
    bool chat, completions; /* of which requests */
    size_t at;
    double low, high;
    dt_err (*take)(dt_api_request *r, const field *f, json_t *value);
};

static dt_err wrong(const field *f, const char *expected)
{
    return dt_fail(DT_ERR_USAGE, "%s: expected %s", f->name, expected);
}

/* ---- fields with a form of their own ----------------------------------------------------------------------------- */

static bool is_text(const json_t *value)
{
    return json_is_string(value) && strlen(json_string_value(value)) == json_string_length(value);
}

static bool is_ids(const json_t *value)
{
    bool ids = json_is_array(value) && json_array_size(value) > 0;
    for (size_t i = 0; ids && i < json_array_size(value); i++) ids = json_is_integer(json_array_get(value, i));
    return ids;
}

static dt_err take_prompt(dt_api_request *r, const field *f, json_t *value)
{
    const bool one = json_is_string(value) || is_ids(value);
    const size_t n = one ? 1 : json_array_size(value);
    bool ok = (one || json_is_array(value)) && n > 0;
    r->prompts = json_array();
    for (size_t i = 0; ok && i < n; i++) {
        json_t *prompt = one ? value : json_array_get(value, i);
        ok = json_is_string(prompt) || is_ids(prompt);
        if (ok && json_array_append(r->prompts, prompt) != 0) return dt_fail(DT_ERR_MEMORY, "out of memory");
    }
    return ok ? DT_OK : wrong(f, "a text, a list of token ids, or a list of these");
}

static dt_err take_messages(dt_api_request *r, const field *f, json_t *value)
{
    r->messages = value;
    return json_is_array(value) && json_array_size(value) > 0 ? DT_OK : wrong(f, "a list of messages");
}

static dt_err take_tools(dt_api_request *r, const field *f, json_t *value)
{
    if (!json_is_array(value)) return wrong(f, "a list of tools");
    if (json_array_size(value) > 0 && !r->tools) r->tools = value;
    return DT_OK;
}

/* Only "auto" and "none" leave the text of the answer to the model. */
static dt_err take_tool_choice(dt_api_request *r, const field *f, json_t *value)
{
    const char *text = json_string_value(value);
    if (text && strcmp(text, "auto") == 0) return DT_OK;
    if (!text || strcmp(text, "none") != 0) return wrong(f, "\"auto\" or \"none\": answers cannot be forced to call");
    r->tools = NULL;
    return DT_OK;
}

static dt_err take_stop(dt_api_request *r, const field *f, json_t *value)
{
    const bool one = json_is_string(value);
    const size_t n = one ? 1 : json_array_size(value);
    if (!one && !json_is_array(value)) return wrong(f, "a text or a list of texts");
    for (size_t i = 0; i < n; i++) {
        const json_t *text = one ? value : json_array_get(value, i);
        if (json_is_null(text)) continue;
        if (!is_text(text) || r->n_stop == DT_MAX_REQUEST_STOPS) return wrong(f, "a text or at most 16 texts");
        if (json_string_length(text) > 0) r->stop[r->n_stop++] = json_string_value(text);
    }
    return DT_OK;
}

/* Seeds of Python may be negative. */
static dt_err take_seed(dt_api_request *r, const field *f, json_t *value)
{
    if (!json_is_integer(value)) return wrong(f, "an integer of 64 bits");
    r->sampling.seed = (uint64_t)json_integer_value(value);
    r->has_seed = true;
    return DT_OK;
}

static dt_err take_temperature(dt_api_request *r, const field *f, json_t *value)
{
    if (!json_is_number(value) || json_number_value(value) < 0) return wrong(f, "a number of at least 0");
    r->sampling.temperature = json_number_value(value);
    r->sampling.greedy = r->sampling.temperature == 0;
    return DT_OK;
}

/* -1 and 0 are vLLM's words for all tokens. */
static dt_err take_top_k(dt_api_request *r, const field *f, json_t *value)
{
    const json_int_t k = json_integer_value(value);
    if (!json_is_integer(value) || k < -1 || k > INT32_MAX) return wrong(f, "a number of tokens, or -1 for all");
    r->sampling.top_k = k > 0 ? k : 0;
    return DT_OK;
}

/* Conversations: log-probabilities are switched on by a flag. */
static dt_err take_logprobs(dt_api_request *r, const field *f, json_t *value)
{
    if (!json_is_boolean(value)) return wrong(f, "true or false");
    if (json_is_true(value) && r->logprobs < 0) r->logprobs = 0;
    return DT_OK;
}

static dt_err take_stream_options(dt_api_request *r, const field *f, json_t *value)
{
    const char *key;
    json_t *item;
    if (!json_is_object(value)) return wrong(f, "an object with \"include_usage\"");
    json_object_foreach(value, key, item)
    {
        const bool usage = strcmp(key, "include_usage") == 0;
        if (!usage && strcmp(key, "include_obfuscation") != 0 && strcmp(key, "continuous_usage_stats") != 0)
            return wrong(f, "an object with \"include_usage\"");
        if (!json_is_boolean(item) || (!usage && json_is_true(item)))
            return wrong(f, "\"include_usage\": true or false");
        if (usage) r->with_usage = json_is_true(item);
    }
    return DT_OK;
}

static dt_err take_response_format(dt_api_request *r, const field *f, json_t *value)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    (void)r;
    return type && strcmp(type, "text") == 0 ? DT_OK : wrong(f, "{\"type\": \"text\"}: no other form is supported");
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

#define AT(FIELD) .at = offsetof(dt_api_request, FIELD)
#define BOTH .chat = true, .completions = true
#define ONLY_CHAT .chat = true
#define ONLY_COMPLETIONS .completions = true

/* clang-format off */
static const field fields[] = {
    {"model", TEXT, BOTH, AT(model)},
    {"prompt", CALL, ONLY_COMPLETIONS, .take = take_prompt},
    {"messages", CALL, ONLY_CHAT, .take = take_messages},
    {"tools", CALL, ONLY_CHAT, .take = take_tools},
    {"tool_choice", CALL, ONLY_CHAT, .take = take_tool_choice},
    {"n", INTEGER, BOTH, AT(n), 1, DT_MAX_CHOICES},
    {"max_tokens", INTEGER, BOTH, AT(max_tokens), 0, INT32_MAX},
    {"max_completion_tokens", INTEGER, ONLY_CHAT, AT(max_tokens), 0, INT32_MAX},
    {"temperature", CALL, BOTH, .take = take_temperature},
    {"top_p", REAL, BOTH, AT(sampling.top_p), 0, 1},
    {"top_k", CALL, BOTH, .take = take_top_k},
    {"min_p", REAL, BOTH, AT(sampling.min_p), 0, 1},
    {"repetition_penalty", REAL, BOTH, AT(sampling.repetition_penalty), 1e-6, 1e6},
    {"seed", CALL, BOTH, .take = take_seed},
    {"stop", CALL, BOTH, .take = take_stop},
    {"echo", FLAG, ONLY_COMPLETIONS, AT(echo)},
    {"logprobs", INTEGER, ONLY_COMPLETIONS, AT(logprobs), 0, DT_MAX_LOGPROBS},
    {"top_logprobs", INTEGER, ONLY_CHAT, AT(logprobs), 0, DT_MAX_LOGPROBS},
    {"logprobs", CALL, ONLY_CHAT, .take = take_logprobs},
    {"stream", FLAG, BOTH, AT(stream)},
    {"stream_options", CALL, BOTH, .take = take_stream_options},
    {"response_format", CALL, BOTH, .take = take_response_format},
    {"presence_penalty", NEUTRAL, BOTH}, {"frequency_penalty", NEUTRAL, BOTH}, {"logit_bias", NEUTRAL, BOTH},
    {"min_tokens", NEUTRAL, BOTH},
    {"suffix", NEUTRAL, ONLY_COMPLETIONS}, {"best_of", NEUTRAL, ONLY_COMPLETIONS, .low = 1},
    {"functions", NEUTRAL, ONLY_CHAT}, {"function_call", NEUTRAL, ONLY_CHAT}, {"audio", NEUTRAL, ONLY_CHAT},
    {"prediction", NEUTRAL, ONLY_CHAT}, {"reasoning_effort", NEUTRAL, ONLY_CHAT},
    {"web_search_options", NEUTRAL, ONLY_CHAT}, {"verbosity", NEUTRAL, ONLY_CHAT},
    {"parallel_tool_calls", IGNORED, ONLY_CHAT}, {"modalities", IGNORED, ONLY_CHAT}, {"user", IGNORED, BOTH},
    {"metadata", IGNORED, BOTH}, {"store", IGNORED, BOTH}, {"service_tier", IGNORED, BOTH},
    {"safety_identifier", IGNORED, BOTH}, {"prompt_cache_key", IGNORED, BOTH}};
/* clang-format on */

static dt_err take_number(dt_api_request *r, const field *f, json_t *value)
{
    char *const to = (char *)r + f->at;
    const double x = json_number_value(value);
    const bool whole = f->kind == INTEGER;
    if ((whole ? !json_is_integer(value) : !json_is_number(value)) || !(x >= f->low && x <= f->high))
        return dt_fail(DT_ERR_USAGE, "%s: expected %s from %g to %g", f->name, whole ? "an integer" : "a number",
                       f->low, f->high);
    if (whole)
        *(int64_t *)(void *)to = json_integer_value(value);
    else
        *(double *)(void *)to = x;
    return DT_OK;
}

static bool is_neutral(const field *f, const json_t *value)
{
    if (json_is_number(value)) return json_number_value(value) == f->low;
    return json_is_false(value) || ((json_is_array(value) || json_is_object(value)) && json_array_size(value) == 0 &&
                                    json_object_size(value) == 0);
}

static dt_err take(dt_api_request *r, const field *f, json_t *value)
{
    char *const to = (char *)r + f->at;
    switch (f->kind) {
    case FLAG:
        *(bool *)(void *)to = json_is_true(value);
        return json_is_boolean(value) ? DT_OK : wrong(f, "true or false");
    case INTEGER:
    case REAL:
        return take_number(r, f, value);
    case TEXT:
        *(const char **)(void *)to = json_string_value(value);
        return is_text(value) ? DT_OK : wrong(f, "a text");
    case CALL:
        return f->take(r, f, value);
    case NEUTRAL:
        return is_neutral(f, value) ? DT_OK : dt_fail(DT_ERR_USAGE, "%s: not supported by this server", f->name);
    case IGNORED:
        break;
    }
    return DT_OK;
}

enum { N_FIELDS = sizeof fields / sizeof fields[0] };

static bool belongs(const dt_api_request *r, const field *f) { return r->chat ? f->chat : f->completions; }

/* Fields with a value are taken in the order of the table. The first unknown one is an error. */
static dt_err take_all(dt_api_request *r, const char **param)
{
    size_t n_known = 0;
    for (const field *f = fields; f < fields + N_FIELDS; f++) {
        json_t *value = belongs(r, f) ? json_object_get(r->root, f->name) : NULL;
        if (!value) continue;
        n_known++;
        *param = f->name;
        if (!json_is_null(value)) DT_TRY(take(r, f, value));
    }
    *param = NULL;
    if (n_known == json_object_size(r->root)) return DT_OK;
    const char *key;
    json_t *value;
    json_object_foreach(r->root, key, value)
    {
        const field *f = fields;
        while (f < fields + N_FIELDS && (strcmp(f->name, key) != 0 || !belongs(r, f))) f++;
        DT_CHECK(f < fields + N_FIELDS, DT_ERR_USAGE, "unknown field '%.100s'", key);
    }
    return DT_OK;
}

static dt_err check(dt_api_request *r, const char **param)
{
    *param = r->chat ? "messages" : "prompt";
    DT_CHECK(r->chat ? r->messages != NULL : r->prompts != NULL, DT_ERR_USAGE, "%s: missing", *param);
    *param = "top_p";
    DT_CHECK(r->sampling.top_p > 0, DT_ERR_USAGE, "top_p: expected a number above 0 and at most 1");
    *param = "top_logprobs";
    DT_CHECK(!r->chat || r->logprobs <= 0 || json_is_true(json_object_get(r->root, "logprobs")), DT_ERR_USAGE,
             "top_logprobs: expected \"logprobs\": true with it");
    if (r->chat && !json_is_true(json_object_get(r->root, "logprobs"))) r->logprobs = -1;
    *param = "prompt";
    DT_CHECK(r->chat || (int64_t)json_array_size(r->prompts) * r->n <= 4096, DT_ERR_USAGE,
             "prompt: at most 4096 completions in a request");
    *param = "stream";
    DT_CHECK(!r->stream || !r->echo || r->logprobs < 0, DT_ERR_USAGE,
             "stream: log-probabilities of a prompt (echo) cannot be streamed");
    *param = "temperature";
    DT_TRY(dt_sampling_check(&r->sampling));
    *param = NULL;
    return DT_OK;
}

dt_err dt_request_parse(dt_api_request *r, bool chat, const char *body, size_t nbytes, const dt_sampling *usual,
                        const char **param)
{
    *r = (dt_api_request){.chat = chat, .n = 1, .max_tokens = -1, .logprobs = -1, .sampling = *usual};
    *param = NULL;
    DT_CHECK(nbytes > 0, DT_ERR_USAGE, "the body: expected a JSON object, found nothing");
    DT_TRY(dt_json_parse(&r->root, "the body", body, nbytes, DT_JSON_NUL | DT_JSON_LAST_KEY));
    DT_CHECK(json_is_object(r->root), DT_ERR_USAGE, "the body: expected a JSON object");
    DT_TRY(take_all(r, param));
    return check(r, param);
}

void dt_request_free(dt_api_request *r)
{
    json_decref(r->prompts);
    json_decref(r->root);
    *r = (dt_api_request){0};
}
