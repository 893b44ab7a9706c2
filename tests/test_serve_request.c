/* test_serve_request.c - requests of OpenAI's API: fields, types, limits, and what is refused by name. */
#include "cases.h"
#include "dtrain/serve/request.h"

static const dt_sampling usual = {.temperature = 0.5, .top_p = 0.9, .repetition_penalty = 1, .seed = 7};

static dt_api_request parsed(bool chat, const char *body)
{
    dt_api_request r;
    const char *param;
    dt_error_clear();
    if (dt_request_parse(&r, chat, body, strlen(body), &usual, &param) != DT_OK)
        fail_msg("%s: %s", body, dt_error_message());
    return r;
}

/* An error that names the field, and a message with these words. */
static void refused(bool chat, const char *body, const char *field, const char *words)
{
    dt_api_request r;
    const char *param;
    dt_error_clear();
    const dt_err err = dt_request_parse(&r, chat, body, strlen(body), &usual, &param);
    if (err == DT_OK || !strstr(dt_error_message(), words) || (field ? !param || strcmp(param, field) != 0 : !!param))
        fail_msg("%s: expected \"%s\" about %s, found %d \"%s\" about %s", body, words, field ? field : "nothing", err,
                 dt_error_message(), param ? param : "nothing");
    dt_request_free(&r);
    dt_error_clear();
}

TEST(a_completion_has_the_usual_settings)
{
    dt_api_request r = parsed(false, "{\"prompt\": \"a\", \"model\": null}");
    assert_int_equal(json_array_size(r.prompts), 1);
    assert_true(r.n == 1 && r.max_tokens == -1 && r.logprobs == -1 && r.n_stop == 0 && !r.stream && !r.has_seed);
    assert_true(r.sampling.temperature == 0.5 && r.sampling.top_p == 0.9 && r.sampling.seed == 7 && !r.model);
    dt_request_free(&r);
}

TEST(every_form_of_a_prompt)
{
    static const struct {
        const char *body;
        size_t n;
    } forms[] = {{"{\"prompt\": \"a\"}", 1},
                 {"{\"prompt\": [\"a\", \"b\", \"\"]}", 3},
                 {"{\"prompt\": [1, 2, 3]}", 1},
                 {"{\"prompt\": [[1, 2], [3]]}", 2},
                 {"{\"prompt\": [[1, 2], \"a\"]}", 2}};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        dt_api_request r = parsed(false, forms[i].body);
        assert_int_equal(json_array_size(r.prompts), forms[i].n);
        dt_request_free(&r);
    }
    static const char *const wrong[] = {"{\"prompt\": []}",   "{\"prompt\": 1}",  "{\"prompt\": [1, \"a\"]}",
                                        "{\"prompt\": [[]]}", "{\"prompt\": {}}", "{\"prompt\": [[1.5]]}"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) refused(false, wrong[i], "prompt", "expected a text");
}

TEST(settings_of_a_request)
{
    dt_api_request r =
        parsed(false, "{\"prompt\": \"a\", \"n\": 3, \"max_tokens\": 0, \"temperature\": 0, \"top_p\": 1, "
                      "\"top_k\": -1, \"min_p\": 0.1, \"seed\": -1, \"stop\": [\"x\", null, \"yz\", \"\"], "
                      "\"echo\": true, \"logprobs\": 5, \"repetition_penalty\": 1.2, \"best_of\": 1, "
                      "\"presence_penalty\": 0.0, \"logit_bias\": {}, \"suffix\": null, \"user\": 5}");
    assert_true(r.n == 3 && r.max_tokens == 0 && r.sampling.greedy && r.sampling.top_k == 0 && r.echo);
    assert_true(r.logprobs == 5 && r.has_seed && r.sampling.seed == UINT64_MAX && r.n_stop == 2);
    assert_string_equal(r.stop[1], "yz");
    dt_request_free(&r);
    r = parsed(false, "{\"prompt\": \"a\", \"temperature\": 2.5, \"top_k\": 4, \"stop\": \"q\"}");
    assert_true(!r.sampling.greedy && r.sampling.temperature == 2.5 && r.sampling.top_k == 4 && r.n_stop == 1);
    dt_request_free(&r);
}

#define TALK "\"messages\": [{\"role\": \"user\", \"content\": \"q\"}]"
#define TOOLS "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]"

TEST(settings_of_a_conversation)
{
    dt_api_request r = parsed(true, "{" TALK ", " TOOLS ", \"logprobs\": true, \"top_logprobs\": 2, \"stream\": true, "
                                    "\"stream_options\": {\"include_usage\": true}, \"max_completion_tokens\": 9, "
                                    "\"tool_choice\": \"auto\", \"response_format\": {\"type\": \"text\"}}");
    assert_true(r.tools && r.messages && r.logprobs == 2 && r.stream && r.with_usage && r.max_tokens == 9);
    dt_request_free(&r);
    r = parsed(true, "{" TALK ", " TOOLS ", \"tool_choice\": \"none\", \"logprobs\": false}");
    assert_true(!r.tools && r.logprobs == -1);
    dt_request_free(&r);
    r = parsed(true, "{" TALK ", \"tools\": [], \"logprobs\": true}");
    assert_true(!r.tools && r.logprobs == 0);
    dt_request_free(&r);
}

TEST(what_would_be_ignored_is_refused)
{
    refused(false, "{\"prompt\": \"a\", \"guided_json\": {}}", NULL, "unknown field 'guided_json'");
    refused(false, "{\"prompt\": \"a\", \"messages\": []}", NULL, "unknown field 'messages'");
    refused(true, "{" TALK ", \"echo\": true}", NULL, "unknown field 'echo'");
    refused(false, "{\"prompt\": \"a\", \"presence_penalty\": 0.5}", "presence_penalty", "not supported");
    refused(false, "{\"prompt\": \"a\", \"logit_bias\": {\"5\": 1}}", "logit_bias", "not supported");
    refused(true, "{" TALK ", \"tool_choice\": \"required\"}", "tool_choice", "cannot be forced");
    refused(true, "{" TALK ", \"response_format\": {\"type\": \"json_object\"}}", "response_format", "no other form");
    refused(true, "{" TALK ", \"top_logprobs\": 2}", "top_logprobs", "\"logprobs\": true");
    refused(false, "{\"prompt\": \"a\", \"echo\": true, \"logprobs\": 1, \"stream\": true}", "stream", "streamed");
}

TEST(wrong_types_and_values)
{
    static const struct {
        const char *field, *value, *words;
    } cases[] = {{"n", "0", "from 1 to 128"},
                 {"n", "1.5", "an integer"},
                 {"n", "\"1\"", "an integer"},
                 {"max_tokens", "-1", "from 0"},
                 {"max_tokens", "1e400", "an integer"},
                 {"temperature", "-0.1", "at least 0"},
                 {"temperature", "\"hot\"", "at least 0"},
                 {"top_p", "0", "above 0"},
                 {"top_p", "1.01", "from 0 to 1"},
                 {"top_k", "-2", "-1 for all"},
                 {"min_p", "2", "from 0 to 1"},
                 {"stop", "5", "a text or a list"},
                 {"stop", "[1]", "at most 16"},
                 {"stop", "\"a\\u0000b\"", "at most 16"},
                 {"stream", "1", "true or false"},
                 {"echo", "\"yes\"", "true or false"},
                 {"seed", "1.5", "64 bits"},
                 {"logprobs", "21", "from 0 to 20"},
                 {"logprobs", "true", "an integer"},
                 {"model", "5", "a text"},
                 {"stream_options", "{\"x\": 1}", "include_usage"},
                 {"repetition_penalty", "0", "from 1e-06"},
                 {"temperature", "NaN", "at least 0"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char body[200];
        snprintf(body, sizeof body, "{\"prompt\": \"a\", \"%s\": %s}", cases[i].field, cases[i].value);
        refused(false, body, cases[i].field, cases[i].words);
    }
}

TEST(what_is_no_request)
{
    static const char *const bodies[] = {"", "{", "[]", "\"a\"", "{\"prompt\": \"\\ud800\"}", "\xff\xfe", "nul"};
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) refused(false, bodies[i], NULL, "");
    refused(false, "{}", "prompt", "missing");
    refused(true, "{}", "messages", "missing");
    refused(true, "{\"messages\": []}", "messages", "a list of messages");
    refused(true, "{\"messages\": null}", "messages", "missing");
    refused(false,
            "{\"prompt\": [\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\","
            "\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\","
            "\"a\",\"a\",\"a\"], \"n\": 128}",
            "prompt", "at most 4096");
}

int main(void) { return run_listed(NULL, NULL, NULL); }
