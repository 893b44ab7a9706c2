// NEEDS: PCRE2 UTF8PROC
/* test_chat_tools.c - tools in conversations: the forms of OpenAI and ShareGPT give the same text, calls are targets,
 * results are not, and a template without tools receives text. */
#include "chat_fixture.h"
#include <time.h>

/* As Qwen's: results of tools are a question. */
static const char hermes[] =
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}<r>{{ m.content }}</r>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{% if not loop.first or m.content %}{{ '\n' }}{% endif %}"
    "<c>{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}</c>{% endfor %}"
    "<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/* As Mistral's: ids of nine letters are required and written, and an answer has no header. */
static const char with_ids[] =
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% elif m.role == 'tool' %}(R {{ m.content }} {{ m.tool_call_id }}[/INST]"
    "{% elif m.tool_calls %}CALLS {% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('id') }}"
    "{% endif %}{{ c.function.name }} {{ c.function.arguments | tojson }} {{ c.id }}{% endfor %}{{ eos_token }}"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}";

#define TOOL "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"a\": 1}}}"
#define Q "{\"role\": \"user\", \"content\": \"q\"}, "
#define END                                                                                                            \
    "{\"role\": \"tool\", \"tool_call_id\": \"aaaaaaaa1\", \"content\": \"12\"}, "                                     \
    "{\"role\": \"assistant\", \"content\": \"x\"}]"

/* Render a record {messages or conversations, tools}; want: the text, its answers in braces, NULL: any. */
static void writes(const dt_chat *c, const char *record, const char *want)
{
    json_error_t e;
    json_t *json = json_loads(record, 0, &e);
    if (!json) fail_msg("%s: %s", record, e.text);
    const bool sharegpt = json_object_get(json, "conversations");
    dt_messages m = {0};
    dt_pieces p = {0};
    dt_error_clear();
    dt_err err = dt_messages_parse(&m, json_object_get(json, sharegpt ? "conversations" : "messages"), "messages",
                                   sharegpt ? "from" : "role", sharegpt ? "value" : "content");
    if (err == DT_OK) err = dt_messages_take_tools(&m, json);
    if (err == DT_OK) err = dt_messages_fit(&m, c);
    for (int i = 0; i < m.n; i++) m.item[i].learn = m.item[i].role == DT_ROLE_ASSISTANT ? DT_LEARN_CONTENT : 0;
    if (err == DT_OK) err = dt_chat_render(c, m.item, m.n, m.tools, 0, &p);
    if (err != DT_OK) fail_msg("%s: %s", record, dt_error_message());
    if (want) assert_string_equal(shown(&p, true), want);
    dt_pieces_free(&p);
    dt_messages_free(&m);
    json_decref(json);
}

#define CALL(arguments) "<c>{\"name\": \"f\", \"arguments\": " arguments "}</c>"
#define ASKED "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
#define ANSWERED "<|im_start|>user<r>12</r><|im_end|>\n<|im_start|>assistant\n{x<|im_end|>}\n"

/* Arguments as an object or as its text; a content that is missing, null or empty; OpenAI's earlier form. */
TEST(openai_s_forms_are_the_same_conversation)
{
    static const char *const calls[] = {
        "\"content\": \"\", \"tool_calls\": [{\"id\": \"aaaaaaaa1\", \"type\": \"function\", \"function\": {\"name\": "
        "\"f\", \"arguments\": {\"a\": 1}}}]",
        "\"content\": \"\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}}]",
        "\"content\": null, \"tool_calls\": [{\"name\": \"f\", \"arguments\": {\"a\": 1}}]",
        "\"tool_calls\": \"[{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"a\\\": 1}}]\"",
        "\"function_call\": {\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}"};
    dt_chat *c;
    char record[600];
    c = opened(hermes);
    assert_true(dt_chat_reads_tools(c, false) && dt_chat_writes_calls(c));
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        snprintf(record, sizeof record, "{\"messages\": [" Q "{\"role\": \"assistant\", %s}, " END "}", calls[i]);
        writes(c, record, ASKED "{" CALL("{\"a\": 1}") "<|im_end|>}\n" ANSWERED);
    }
    dt_chat_close(c);
}

TEST(parallel_calls_thoughts_and_text_are_one_answer)
{
    dt_chat *c = opened(hermes);
    writes(c,
           "{\"messages\": [" Q "{\"role\": \"assistant\", \"content\": \"so\", \"reasoning_content\": \"why\", "
           "\"tool_calls\": [{\"name\": \"f\", \"arguments\": {\"a\": [1, {}]}}, {\"name\": \"f\"}]}, " END "}",
           ASKED "{<think>\nwhy\n</think>\n\nso\n" CALL("{\"a\": [1, {}]}") "\n" CALL("{}") "<|im_end|>}\n" ANSWERED);
    dt_chat_close(c);
}

/* Rounds of a question, a call, its result and an answer. Every third call has no arguments. want: what `wanted`
 * writes; NULL: none. */
static void many_calls(int n_rounds, char *record, char *want, int (*wanted)(char *out, int round, bool arguments))
{
    record += sprintf(record, "{\"messages\": [");
    for (int i = 0; i < n_rounds; i++) {
        char arguments[16] = "";
        if (i % 3) snprintf(arguments, sizeof arguments, "\"a\": %d", i);
        record += sprintf(record,
                          "%s" Q "{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"aaaaaaaa1\", \"name\": \"f\", "
                          "\"arguments\": {%s}}]}, {\"role\": \"tool\", \"tool_call_id\": \"aaaaaaaa1\", "
                          "\"content\": \"12\"}, {\"role\": \"assistant\", \"content\": \"x\"}",
                          i ? ", " : "", arguments);
        if (want) want += wanted(want, i, i % 3);
    }
    strcpy(record, "]}");
}

static int by_hermes(char *out, int round, bool arguments)
{
    char text[16] = "{}";
    if (arguments) snprintf(text, sizeof text, "{\"a\": %d}", round);
    return sprintf(out, ASKED "{" CALL("%s") "<|im_end|>}\n" ANSWERED, text);
}

static const char numbered[] =
    "{% for m in messages %}{% set at = loop.index0 %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}("
    "{% for k in c.function.arguments %}{{ k }}={{ c.function.arguments[k] }}@{{ at }};{% endfor %}){% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

static int by_numbered(char *out, int round, bool arguments)
{
    char text[32] = "";
    if (arguments) snprintf(text, sizeof text, "a=%d@%d;", round, 4 * round + 1);
    return sprintf(
        out, ASKED "{f(%s)<|im_end|>}\n<|im_start|>tool\n12<|im_end|>\n<|im_start|>assistant\n{x<|im_end|>}\n", text);
}

/* One argument more has the same length in all calls of the first template, but not of the second. */
TEST(calls_of_long_conversations_are_found)
{
    char record[8192], want[8192];
    for (int i = 0; i < 2; i++) {
        dt_chat *c = opened(i ? numbered : hermes);
        many_calls(20, record, want, i ? by_numbered : by_hermes);
        writes(c, record, want);
        dt_chat_close(c);
    }
}

static double seconds_of(const dt_chat *c, int n_rounds)
{
    char *record = malloc(512 * (size_t)n_rounds);
    double least = INFINITY;
    many_calls(n_rounds, record, NULL, NULL);
    for (int i = 0; i < 3; i++) {
        const clock_t begin = clock();
        writes(c, record, NULL);
        least = fmin(least, (double)(clock() - begin) / CLOCKS_PER_SEC);
    }
    free(record);
    return least;
}

TEST(the_time_of_many_calls_is_linear)
{
    dt_chat *c = opened(hermes);
    const double few = seconds_of(c, 20), many = seconds_of(c, 160);
    if (many > 24 * few) fail_msg("20 calls: %g s, 160 calls: %g s", few, many);
    dt_chat_close(c);
}

/* Words of the template in a result are not an answer. */
TEST(results_are_never_targets)
{
    dt_chat *c = opened(hermes);
    writes(c,
           "{\"messages\": [" Q "{\"role\": \"assistant\", \"tool_calls\": [{\"name\": \"f\"}]}, {\"role\": \"tool\", "
           "\"content\": \"<|im_start|>assistant\\nno<|im_end|>\"}, {\"role\": \"tool\", \"content\": \"\"}, "
           "{\"role\": \"assistant\", \"content\": \"x\"}]}",
           ASKED "{" CALL("{}") "<|im_end|>}\n<|im_start|>user<r><|im_start|>assistant\nno<|im_end|></r><r></r>"
                                "<|im_end|>\n<|im_start|>assistant\n{x<|im_end|>}\n");
    dt_chat_close(c);
}

TEST(tools_are_descriptions_of_functions)
{
    static const char *const tools[] = {
        "\"tools\": [" TOOL "]", "\"tools\": [{\"name\": \"f\", \"parameters\": {\"a\": 1}}]",
        "\"functions\": [{\"name\": \"f\", \"parameters\": {\"a\": 1}}]",
        "\"tools\": \"[{\\\"name\\\": \\\"f\\\", \\\"parameters\\\": {\\\"a\\\": 1}}]\""};
    dt_chat *c;
    char record[400];
    c = opened(hermes);
    for (size_t i = 0; i < sizeof tools / sizeof tools[0]; i++) {
        snprintf(record, sizeof record, "{\"messages\": [" Q "{\"role\": \"assistant\", \"content\": \"x\"}], %s}",
                 tools[i]);
        writes(c, record, "<|im_start|>system\n" TOOL "\n<|im_end|>\n" ASKED "{x<|im_end|>}\n");
    }
    dt_chat_close(c);
}

#define GLAIVE(calls)                                                                                                  \
    "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": \"function_call\", "                     \
    "\"value\": \"" calls "\"}, {\"from\": \"observation\", \"value\": \"12\"}, "                                      \
    "{\"from\": \"gpt\", \"value\": \"x\"}]}"

/* ShareGPT's records have neither ids nor a role of tools. */
TEST(sharegpt_s_calls_get_ids)
{
    dt_chat *c = opened(hermes);
    writes(c, GLAIVE("{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"a\\\": 1}}"),
           ASKED "{" CALL("{\"a\": 1}") "<|im_end|>}\n" ANSWERED);
    writes(c, GLAIVE("<think>\\nwhy\\n</think>\\n[{\\\"name\\\": \\\"f\\\"}, {\\\"name\\\": \\\"f\\\"}]"),
           ASKED "{<think>\nwhy\n</think>\n\n" CALL("{}") "\n" CALL("{}") "<|im_end|>}\n" ANSWERED);
    writes(c, GLAIVE("no JSON"), ASKED "{no JSON<|im_end|>}\n" ANSWERED);
    dt_chat_close(c);
    c = opened(with_ids);
    writes(c, GLAIVE("{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"a\\\": 1}}"),
           "<s>[INST]q[/INST]{CALLS f {\"a\": 1} call00001</s>}(R 12 call00001[/INST]{ x</s>}");
    dt_chat_close(c);
}

/* As DeepSeek R1's: the arguments are a text, which is kept as it is in the record. */
TEST(arguments_are_text_where_a_template_needs_it)
{
    dt_chat *c =
        opened("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
               "{{ c.function.name + ' ' + c.function.arguments }}{% endfor %}<|im_end|>\n{% endfor %}"
               "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
    writes(c,
           "{\"messages\": [" Q "{\"role\": \"assistant\", \"tool_calls\": [{\"name\": \"f\", \"arguments\": "
           "\"{\\\"a\\\":1}\"}]}]}",
           ASKED "{f {\"a\":1}<|im_end|>}\n");
    writes(c, GLAIVE("{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"a\\\": 1}}"),
           ASKED "{f {\"a\": 1}<|im_end|>}\n<|im_start|>tool\n12<|im_end|>\n<|im_start|>assistant\n{x<|im_end|>}\n");
    dt_chat_close(c);
}

TEST(ids_of_a_record_are_kept)
{
    dt_chat *c = opened(with_ids);
    writes(c,
           "{\"messages\": [" Q "{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"aaaaaaaa1\", \"function\": "
           "{\"name\": \"f\"}}]}, " END "}",
           "<s>[INST]q[/INST]{CALLS f {} aaaaaaaa1</s>}(R 12 aaaaaaaa1[/INST]{ x</s>}");
    dt_chat_close(c);
}

TEST(templates_without_tools_get_text)
{
    dt_chat *c;
    assert_int_equal(dt_chat_open(&c, "plain", &fake), DT_OK);
    assert_false(dt_chat_reads_tools(c, false) || dt_chat_writes_calls(c));
    writes(c,
           "{\"messages\": [" Q "{\"role\": \"assistant\", \"content\": \"so\", \"tool_calls\": [{\"name\": \"f\", "
           "\"arguments\": {\"a\": 1}}]}, " END ", \"tools\": [{\"name\": \"f\"}]}",
           "[{\"name\": \"f\"}]\n\nUser: q\nAssistant:{ so\n{\"name\": \"f\", \"arguments\": {\"a\": "
           "1}}</s>}Tool: 12\nAssistant:{ x</s>}");
    writes(c, GLAIVE("{\\\"name\\\":\\\"f\\\"}"),
           "User: q\nAssistant:{ {\"name\":\"f\"}</s>}Tool: 12\nAssistant:{ x</s>}");
    dt_chat_close(c);
}

/* A template that writes tools in a system message only. A conversation without one gets text. */
TEST(tools_in_the_system_message_only)
{
    dt_chat *c = opened("{% for m in messages %}<{{ m.role }}>{{ m.content }}"
                        "{% if m.role == 'system' and tools %}({{ tools[0].function.name }}){% endif %}</s>{% endfor %}"
                        "{% if add_generation_prompt %}<assistant>{% endif %}");
    assert_true(dt_chat_reads_tools(c, true) && !dt_chat_reads_tools(c, false));
    writes(c,
           "{\"messages\": [{\"role\": \"system\", \"content\": \"be\"}, " Q
           "{\"role\": \"assistant\", \"content\": \"x\"}], \"tools\": [" TOOL "]}",
           "<system>be(f)</s><user>q</s><assistant>{x</s>}");
    writes(c, "{\"messages\": [" Q "{\"role\": \"assistant\", \"content\": \"x\"}], \"tools\": [{\"name\": \"f\"}]}",
           "<system>[{\"name\": \"f\"}]</s><user>q</s><assistant>{x</s>}");
    dt_chat_close(c);
}

/* As OLMo 3's: only the last answer ends with the end-of-text token. */
TEST(calls_that_end_as_a_question_does)
{
    dt_chat *c =
        opened("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
               "{% for c in m.tool_calls or [] %}<c>{{ c.function.name }}({{ c.function.arguments | tojson }})</c>"
               "{% endfor %}{% if m.role == 'assistant' and loop.last %}{{ eos_token }}{% else %}<|im_end|>\n"
               "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
    writes(c, "{\"messages\": [" Q "{\"role\": \"assistant\", \"tool_calls\": [{\"name\": \"f\"}]}, " END "}",
           ASKED "{<c>f({})</c><|im_end|>}\n<|im_start|>tool\n12<|im_end|>\n<|im_start|>assistant\n{x</s>}");
    dt_chat_close(c);
}

/* A template that writes the first of several calls only: training on it would be wrong. */
TEST(calls_that_a_template_leaves_out_are_refused)
{
    dt_chat *c;
    dt_messages m = {0};
    c = opened("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if m.tool_calls %}"
               "{{ m.tool_calls[0].function.name }} {{ m.tool_calls[0].function.arguments | tojson }}{% endif %}"
               "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
    json_t *list =
        json_loads("[" Q "{\"role\": \"assistant\", \"tool_calls\": [{\"name\": \"f\"}, {\"name\": \"g\"}]}]", 0, NULL);
    assert_int_equal(dt_messages_parse(&m, list, "messages", "role", "content"), DT_OK);
    m.item[1].learn = DT_LEARN_CONTENT;
    assert_int_equal(render(c, m.item, 2, 0), DT_ERR_DATA);
    says("message 1: ");
    says("leaves out or changes the tool calls of this answer");
    dt_error_clear();
    dt_messages_free(&m);
    json_decref(list);
    dt_chat_close(c);
}

static void refuses(const dt_chat *c, const char *messages, const char *why)
{
    dt_messages m = {0};
    json_t *list = json_loads(messages, 0, NULL);
    dt_error_clear();
    dt_err err = dt_messages_parse(&m, list, "messages", "role", "content");
    for (int i = 0; i < m.n; i++) m.item[i].learn = m.item[i].role == DT_ROLE_ASSISTANT ? DT_LEARN_CONTENT : 0;
    if (err == DT_OK) err = render(c, m.item, m.n, 0);
    assert_int_equal(err, DT_ERR_DATA);
    says(why);
    dt_error_clear();
    dt_messages_free(&m);
    json_decref(list);
}

/* Here in conversations that are longer than those with which templates are tested. */
TEST(a_template_that_writes_messages_in_another_order_is_refused)
{
    dt_chat *c =
        opened("{% set all = messages | reverse | list if messages | length > 4 else messages %}{% for m in all %}"
               "<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }} "
               "{{ c.function.arguments | tojson }}{% endfor %}<|im_end|>\n{% endfor %}"
               "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
    refuses(c,
            "[" Q "{\"role\": \"assistant\", \"tool_calls\": [{\"name\": \"f\"}]}, "
            "{\"role\": \"tool\", \"content\": \"12\"}, {\"role\": \"assistant\", \"content\": \"x\"}, " Q
            "{\"role\": \"assistant\", \"content\": \"y\"}]",
            "writes messages in another order");
    dt_chat_close(c);
}

#define BYTES "{\"bytes_of_row\": \"\\u00010+7\"}" /* a binary value of a Parquet file */

TEST(calls_have_a_name_and_an_object_or_a_text)
{
    dt_chat *c = opened(hermes);
    static const char *const wrong[] = {"1", "[1]", "true"};
    for (size_t i = 0; i < 3; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "[" Q "{\"role\": \"assistant\", \"tool_calls\": [{\"name\": \"f\", \"arguments\": %s}]}]", wrong[i]);
        refuses(c, text, "message 1: tool_calls: expected {\"function\": {\"name\": TEXT, \"arguments\": {...}}}");
    }
    refuses(c, "[" Q "{\"role\": \"assistant\", \"tool_calls\": [{\"name\": \"f\", \"arguments\": " BYTES "}]}]",
            "message 1: tool_calls: expected texts, found binary values");
    writes(c, "{\"messages\": [" Q "{\"role\": \"assistant\", \"tool_calls\": [{\"name\": \"\"}]}]}",
           ASKED "{<c>{\"name\": \"\", \"arguments\": {}}</c><|im_end|>}\n");
    dt_chat_close(c);
}

/* A question with n images of its record, and the parts before its answer. */
static void renders_parts(const char *parts, int n, const char *expected)
{
    dt_chat *c;
    dt_messages m = {.image_text = "<i>", .image_alias = "<image>"};
    dt_pieces p = {0};
    c = opened("{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}"
               "{% for p in m.content %}{% if p.type == 'image' %}<i>{% else %}{{ p.text }}{% endif %}{% endfor %}"
               "{% endif %}{{ eos_token }}{% endfor %}");
    json_t *content = json_loads(parts, 0, NULL), *list = json_pack("[{s:s, s:o}]", "role", "user", "content", content);
    assert_int_equal(dt_messages_parse(&m, list, "messages", "role", "content"), DT_OK);
    assert_int_equal(dt_messages_place_images(&m, n), DT_OK);
    assert_int_equal(dt_chat_render(c, m.item, m.n, NULL, 0, &p), DT_OK);
    assert_string_equal(shown(&p, true), expected);
    dt_pieces_free(&p);
    dt_messages_free(&m);
    json_decref(list);
    dt_chat_close(c);
}

TEST(binary_values_are_no_tools)
{
    dt_messages m = {0};
    json_t *record = json_loads("{\"tools\": [{\"name\": \"f\", \"parameters\": {\"x\": [" BYTES "]}}]}", 0, NULL);
    assert_int_equal(dt_messages_take_tools(&m, record), DT_ERR_DATA);
    says("tools: expected texts, found binary values");
    dt_messages_free(&m);
    json_decref(record);
}

/* Lists of parts are passed as they are to a template that takes them, unless a part of type text has a placeholder, or
 * images of the record have no place. */
TEST(parts_keep_their_order)
{
    renders_parts("[{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"image\"}, "
                  "{\"type\": \"text\", \"text\": \"b\"}]",
                  1, "user:a<i>b</s>");
    renders_parts("[{\"type\": \"text\", \"text\": \"a<image>\"}, {\"type\": \"text\", \"text\": \"b\"}]", 1,
                  "user:a<i>b</s>");
    renders_parts("[{\"type\": \"text\", \"text\": \"a\"}]", 2, "user:<i><i>a</s>");
    renders_parts("[{\"type\": \"image\"}, {\"type\": \"text\", \"text\": \"<image>b\"}]", 2, "user:<i><i>b</s>");
}

/* As lists of templates of Command R and Hermes 2 Pro: one for conversations with tools, which refuses others. */
TEST(a_template_named_tool_use_renders_conversations_with_tools)
{
    static const char plain[] = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}",
                      tool_use[] = "{% if not tools %}{{ raise_exception('no tools') }}{% endif %}"
                                   "{% for t in tools %}{{ t.function.name }} {% endfor %}{% for m in messages %}"
                                   "{{ m.role }}> {{ m.content }}{{ eos_token }}{% endfor %}",
                      question[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}]}",
                      with_tools[] =
                          "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}], \"tools\": [" TOOL "]}";
    dt_tokenizer t = fake;
    dt_chat *c, *again;
    char *spec;
    json_t *all = json_pack("{s:s, s:s}", "default", plain, "tool_use", tool_use);
    t.info.chat_template = plain;
    t.info.chat_template_file = "tokenizer_config.json";
    t.info.chat_templates = all;
    assert_int_equal(dt_chat_open(&c, "auto", &t), DT_OK);
    assert_non_null(strstr(dt_chat_source(c), "(default, and tool_use for conversations with tools)"));
    assert_int_equal(dt_chat_spec(c, &spec), DT_OK);
    t.info.chat_templates = NULL;
    t.info.chat_template = NULL;
    assert_int_equal(dt_chat_open(&again, spec, &t), DT_OK);
    for (int i = 0; i < 2; i++) {
        writes(i ? again : c, question, "user: q</s>");
        writes(i ? again : c, with_tools, "f user> q</s>");
    }
    dt_chat_close(again);
    dt_chat_close(c);
    t.info.chat_templates = all;
    assert_int_equal(dt_chat_open(&c, "tool_use", &t), DT_ERR_USAGE); /* not without tools */
    assert_int_equal(dt_chat_open(&c, "default", &t), DT_OK);
    dt_chat_close(c);
    json_decref(all);
    free(spec);
}

int main(void) { return run_listed("chat tools", NULL, NULL); }
