// NEEDS: PCRE2 UTF8PROC
/* test_chat_calls.c - conversations that continue token by token: calls are read in the form that a template writes,
 * and what follows an answer is what TRL inserts (tests/data/grpo/agent/turns.json). */
#include "chat_fixture.h"

static void open_with(dt_chat **c, dt_tokenizer *t, const char *jinja, const char *eos)
{
    *t = fake;
    t->info.directory = "models/x";
    t->info.chat_template = jinja;
    t->info.chat_template_file = "tokenizer_config.json";
    if (eos) t->info.eos = fake_find(t, eos);
    dt_error_clear();
    if (dt_chat_open(c, "auto", t) != DT_OK) fail_msg("%s", dt_error_message());
}

/* The functions of calls, as text. */
static char *called(const dt_chat *c, const json_t *tools, const char *text, int *n_bad)
{
    json_t *calls, *functions = json_array(), *one;
    size_t i;
    assert_int_equal(dt_chat_read_calls(c, tools, text, &calls, n_bad), DT_OK);
    json_array_foreach(calls, i, one) json_array_append(functions, json_object_get(one, "function"));
    char *written = json_dumps(functions, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(functions);
    json_decref(calls);
    return written;
}

static char *continued(const dt_chat *c, dt_tokenizer *t, const json_t *messages)
{
    static char text[8192];
    dt_encoder *e;
    dt_ids ids = {0};
    size_t n = 0;
    assert_int_equal(dt_encoder_open(&e, t), DT_OK);
    if (dt_chat_continue(c, e, messages, 0, &ids) != DT_OK) fail_msg("%s", dt_error_message());
    for (size_t i = 0; i < ids.n; i++)
        n += (size_t)(ids.id[i] == AB   ? sprintf(text + n, "ab")
                      : ids.id[i] < 256 ? sprintf(text + n, "%c", ids.id[i])
                                        : sprintf(text + n, "%s", tokens[ids.id[i] - 256]));
    text[n] = '\0';
    free(ids.id);
    dt_encoder_close(e);
    return text;
}

/* Calls in the forms of Qwen and Hermes, Llama, Mistral, DeepSeek, Qwen3.5 and GLM. */
#define HEAD                                                                                                           \
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"                                                 \
    "{% for c in m.tool_calls or [] %}"
#define TAIL "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
#define NAME "{{ c.function.name }}"
#define ARGUMENTS "{{ c.function.arguments | tojson }}"
#define PARTS                                                                                                          \
    HEAD "<tool_call>" NAME "\n{% for k, v in c.function.arguments | items %}<arg_key>{{ k }}</arg_key>\n"             \
         "<arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>" TAIL
static const struct {
    const char *template, *text, *calls;
    int n_bad;
} forms[] = {
    {HEAD "\n<tool_call>\n{\"name\": \"" NAME "\", \"arguments\": " ARGUMENTS "}\n</tool_call>" TAIL,
     "so <tool_call>{\"arguments\":{\"a\":1},\"name\":\"f\"}</tool_call>\n<tool_call>\n{\"name\": "
     "\"g\"}</tool_call><|im_end|>",
     "[{\"arguments\":{\"a\":1},\"name\":\"f\"},{\"arguments\":{},\"name\":\"g\"}]", 0},
    {HEAD "<tool_call>{\"name\": \"" NAME "\", \"arguments\": " ARGUMENTS "}</tool_call>" TAIL,
     "<think><tool_call>{\"name\": \"x\"}</think><tool_call>{\"name\": \"f\", \"arguments\": {</tool_call>"
     "<tool_call>7</tool_call><tool_call>{\"name\": \"f\", \"arguments\": {}}",
     "[{\"arguments\":{},\"name\":\"f\"}]", 2},
    {HEAD "{\"name\": \"" NAME "\", \"parameters\": " ARGUMENTS "}" TAIL,
     "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": \"b\"}}<|im_end|>",
     "[{\"arguments\":{\"a\":\"b\"},\"name\":\"f\"}]", 0},
    {HEAD "{\"name\": \"" NAME "\", \"parameters\": " ARGUMENTS "}" TAIL, "an object {\"name\": \"f\"} {\"a\": 1}",
     "[]", 0},
    {HEAD "[TOOL_CALLS] [{\"name\": \"" NAME "\", \"arguments\": " ARGUMENTS ", \"id\": \"{{ c.id }}\"}]" TAIL,
     "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": [1]}, \"id\": \"1\"}, {\"name\": \"g\"}]</s>",
     "[{\"arguments\":{\"a\":[1]},\"name\":\"f\"},{\"arguments\":{},\"name\":\"g\"}]", 0},
    {HEAD "[TOOL_CALLS]" NAME "[ARGS]" ARGUMENTS TAIL, "[TOOL_CALLS]f[ARGS]{\"a\": 2}[TOOL_CALLS]g[ARGS]nothing",
     "[{\"arguments\":{\"a\":2},\"name\":\"f\"}]", 1},
    {HEAD "<begin>function<sep>" NAME "\n```json\n" ARGUMENTS "\n```<end>" TAIL,
     "<begin>function<sep>f\n```json\n{\"a\": 1}\n```<end>\n<begin>function<sep>g\n```json\n{}\n```<end>",
     "[{\"arguments\":{\"a\":1},\"name\":\"f\"},{\"arguments\":{},\"name\":\"g\"}]", 0},
    {HEAD "<tool_call>\n<function=" NAME
          ">\n{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n{{ v }}\n"
          "</parameter>\n{% endfor %}</function>\n</tool_call>" TAIL,
     "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=city>\nNew "
     "York\n</parameter>\n</function>\n"
     "</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call><|im_end|>",
     "[{\"arguments\":{\"a\":1,\"city\":\"New York\"},\"name\":\"f\"},{\"arguments\":{},\"name\":\"g\"}]", 0},
    {PARTS, "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>[1, 2]</arg_value>\n</tool_call><tool_call> </tool_call>",
     "[{\"arguments\":{\"a\":[1,2]},\"name\":\"f\"}]", 1},
    {HEAD "{% endfor %}{% for c in [] %}" TAIL,
     "{\"name\": \"f\", \"arguments\": {}}\nand\n<tool_call>{\"name\": \"g\"}\n{\"a\": 1}",
     "[{\"arguments\":{},\"name\":\"f\"},{\"arguments\":{},\"name\":\"g\"}]", 0}};

TEST(calls_are_read_in_the_form_of_the_template)
{
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        dt_chat *c;
        dt_tokenizer t;
        int n_bad;
        open_with(&c, &t, forms[i].template, NULL);
        char *found = called(c, NULL, forms[i].text, &n_bad);
        if (strcmp(found, forms[i].calls) != 0 || n_bad != forms[i].n_bad)
            fail_msg("%s: found %s and %d bad ones in %s", forms[i].template, found, n_bad, forms[i].text);
        free(found);
        dt_chat_close(c);
    }
}

/* Keys and values do not tell 75001 from "75001"; the description of the tool does. */
TEST(descriptions_tell_texts_from_numbers)
{
    dt_chat *c;
    dt_tokenizer t;
    int n_bad;
    json_t *tools =
        json_loads("[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"zip\": {\"type\": "
                   "\"string\"}, \"n\": {\"type\": \"integer\"}}}}}]",
                   0, NULL);
    open_with(&c, &t, PARTS, NULL);
    char *found = called(c, tools,
                         "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>75001</arg_value>\n<arg_key>zip</arg_key>\n"
                         "<arg_value>75001</arg_value>\n</tool_call>",
                         &n_bad);
    assert_string_equal(found, "[{\"arguments\":{\"n\":75001,\"zip\":\"75001\"},\"name\":\"f\"}]");
    free(found);
    json_decref(tools);
    dt_chat_close(c);
}

/* The tokens that TRL inserts, by its own template: the end of a turn is a token of its own. */
TEST(conversations_continue_as_in_trl)
{
    json_error_t error;
    json_t *file = json_load_file("tests/data/grpo/agent/turns.json", 0, &error), *one, *text;
    dt_chat *c;
    dt_tokenizer t;
    size_t i, k;
    int n_bad;
    assert_non_null(file);
    open_with(&c, &t, json_string_value(json_object_get(file, "template")), NULL);
    json_array_foreach(json_object_get(file, "turns"), i, one)
    {
        json_t *results = json_object_get(one, "results"), *messages = json_array(), *ids = json_object_get(one, "ids"),
               *id;
        char *found = called(c, NULL, json_string_value(json_object_get(one, "text")), &n_bad),
             *wanted = json_dumps(json_object_get(one, "calls"), JSON_COMPACT | JSON_SORT_KEYS), inserted[512];
        size_t n = 0;
        assert_string_equal(found, wanted);
        json_array_foreach(results, k, text)
            json_array_append_new(messages, json_pack("{s:s, s:s, s:O}", "role", "tool", "name", "f", "content", text));
        json_array_foreach(ids, k, id) n += (size_t)sprintf(inserted + n, "%c", (int)json_integer_value(id));
        assert_string_equal(continued(c, &t, messages), inserted);
        json_decref(messages);
        free(found);
        free(wanted);
    }
    assert_true(i > 3);
    json_decref(file);
    dt_chat_close(c);
}

/* A template may write thoughts only into a last answer, and users may answer. */
TEST(an_answer_that_changes_when_messages_follow_is_no_obstacle)
{
    dt_chat *c;
    dt_tokenizer t;
    json_t *messages = json_loads("[{\"role\": \"user\", \"content\": \"go on\"}]", 0, NULL);
    open_with(&c, &t,
              "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}<think>\n\n"
              "</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}"
              "<|im_start|>assistant\n{% endif %}",
              "<|im_end|>");
    assert_string_equal(continued(c, &t, messages), "\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n");
    json_decref(messages);
    dt_chat_close(c);
}

TEST(messages_that_are_none_are_refused)
{
    dt_chat *c;
    dt_tokenizer t;
    dt_encoder *e;
    dt_ids ids = {0};
    json_t *messages = json_loads("[{\"role\": \"tool\"}]", 0, NULL);
    open_with(&c, &t, forms[0].template, NULL);
    assert_int_equal(dt_encoder_open(&e, &t), DT_OK);
    assert_int_equal(dt_chat_continue(c, e, messages, 0, &ids), DT_ERR_DATA);
    assert_non_null(strstr(dt_error_message(), "message 2"));
    json_decref(messages);
    free(ids.id);
    dt_encoder_close(e);
    dt_chat_close(c);
}

/*DEV*/
int main(void) { return run_listed("chat_calls", NULL, NULL); }
