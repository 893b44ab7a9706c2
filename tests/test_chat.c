/* test_chat.c - dtrain's chat templates and those of users: equal to transformers' apply_chat_template
 * (tests/make_chat_fixtures.py), targets, BOS once, and templates from files. */
#include "chat_fixture.h"
#include "dtrain/jinja/jinja.h"

static void must_write_as_transformers(const char *path)
{
    json_t *cases = read_json(path);
    size_t i;
    const json_t *one;
    assert_true(json_array_size(cases) > 100);
    json_array_foreach(cases, i, one)
    {
        dt_chat *c;
        dt_messages m = {0};
        dt_pieces p = {0};
        const char *name = json_string_value(json_object_get(one, "template")),
                   *want = json_string_value(json_object_get(one, "text"));
        assert_int_equal(dt_chat_open(&c, name, &fake), DT_OK);
        assert_int_equal(dt_messages_parse(&m, json_object_get(one, "messages"), "messages", "role", "content"), DT_OK);
        const unsigned flags = (json_is_true(json_object_get(one, "generate")) ? DT_CHAT_GENERATE : 0u) |
                               (json_is_true(json_object_get(one, "thinking")) ? 0u : DT_CHAT_NO_THINK);
        assert_int_equal(dt_chat_render(c, m.item, m.n, NULL, flags, &p), DT_OK);
        if (strcmp(shown(&p, false), want) != 0)
            print_message("case %zu, %s\nfound:    %s\nexpected: %s\n", i, name, shown(&p, false), want);
        assert_string_equal(shown(&p, false), want);
        dt_pieces_free(&p);
        dt_messages_free(&m);
        dt_chat_close(c);
    }
    json_decref(cases);
}

TEST(templates_write_what_transformers_writes)
{
    const char *path = getenv("DTRAIN_CHAT_CASES");
    must_write_as_transformers(path ? path : "tests/data/chat/cases.json");
}

/* reasoning_content; tests/make_thought_fixtures.py. */
TEST(thoughts_of_a_field_are_written_as_by_transformers)
{
    must_write_as_transformers("tests/data/chat/thoughts.json");
}

TEST(a_template_without_thoughts_refuses_them)
{
    static const char *const keys[] = {"reasoning_content", "reasoning", "thinking"};
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        char text[256];
        snprintf(text, sizeof text,
                 "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\", \"%s\": "
                 "\"why\"}]",
                 keys[k]);
        json_t *list = json_loads(text, 0, NULL);
        dt_messages m = {0};
        dt_chat *c;
        assert_int_equal(dt_messages_parse(&m, list, "messages", "role", "content"), DT_OK);
        assert_int_equal(dt_chat_open(&c, "chatml", &fake), DT_OK);
        dt_error_clear();
        assert_int_equal(render(c, m.item, m.n, 0), DT_ERR_DATA);
        says("message 1: ");
        says(keys[k]);
        says("template chatml has no block for thoughts");
        dt_error_clear();
        dt_messages_free(&m);
        dt_chat_close(c);
        json_decref(list);
    }
}

/* Thoughts of the last answer are trained on in the template's form; the block for empty thoughts is not. */
TEST(thoughts_are_targets)
{
    static const struct {
        const char *answer, *shown;
    } cases[] = {{"<think>why</think>\nyes", "{<think>\nwhy\n</think>\n\nyes<|im_end|>}\n"},
                 {"\nyes", "<think>\n\n</think>\n\n{yes<|im_end|>}\n"}};
    for (size_t i = 0; i < 2; i++) {
        const dt_message m[] = {{DT_ROLE_USER, "q", 1, 0},
                                {DT_ROLE_ASSISTANT, cases[i].answer, strlen(cases[i].answer), DT_LEARN_CONTENT, false}};
        dt_chat *c;
        dt_pieces p = {0};
        assert_int_equal(dt_chat_open(&c, "qwen3", &fake), DT_OK);
        assert_int_equal(dt_chat_render(c, m, 2, NULL, 0, &p), DT_OK);
        assert_string_equal(strstr(shown(&p, true), "assistant\n") + 10, cases[i].shown);
        dt_pieces_free(&p);
        dt_chat_close(c);
    }
}

/* A conversation of two answers, all turns trained on: content and what ends it, nothing else. */
static void marked(const char *name, const char *want)
{
    dt_chat *c;
    dt_pieces p = {0};
    const dt_message m[] = {{DT_ROLE_USER, "q", 1, 0},
                            {DT_ROLE_ASSISTANT, "x", 1, DT_LEARN_CONTENT, false},
                            {DT_ROLE_USER, "r", 1, 0},
                            {DT_ROLE_ASSISTANT, "y", 1, DT_LEARN_CONTENT, false}};
    assert_int_equal(dt_chat_open(&c, name, &fake), DT_OK);
    assert_int_equal(dt_chat_render(c, m, 4, NULL, 0, &p), DT_OK);
    assert_string_equal(shown(&p, true), want);
    dt_pieces_free(&p);
    dt_chat_close(c);
}

TEST(targets_are_the_words_and_what_ends_them)
{
    marked("plain", "User: q\nAssistant:{ x</s>}User: r\nAssistant:{ y</s>}");
    marked("chatml", "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n{x<|im_end|>}\n"
                     "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n{y<|im_end|>}\n");
    marked("qwen3", "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n{x<|im_end|>}\n"
                    "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n{y<|im_end|>}\n");
    marked("llama-3", "<s><|start_header_id|>user<|end_header_id|>\n\nq<|eot_id|>"
                      "<|start_header_id|>assistant<|end_header_id|>\n\n{x<|eot_id|>}"
                      "<|start_header_id|>user<|end_header_id|>\n\nr<|eot_id|>"
                      "<|start_header_id|>assistant<|end_header_id|>\n\n{y<|eot_id|>}");
    marked("llama-2", "<s>[INST] q [/INST]{ x </s>}<s>[INST] r [/INST]{ y </s>}");
    marked("mistral", "<s>[INST] q [/INST]{ x</s>}[INST] r [/INST]{ y</s>}");
}

/* A completion of several messages is one target, but for an empty block of thoughts and an answer without loss. */
TEST(a_completion_is_a_target_to_its_end)
{
    enum { ALL = DT_LEARN_HEADER | DT_LEARN_CONTENT | DT_LEARN_AFTER };
    static const struct {
        const char *name, *want;
        unsigned learn[4];
    } cases[] = {
        {"chatml",
         "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n{x<|im_end|>\n<|im_start|>tool\nr<|im_end|>\n"
         "<|im_start|>assistant\ny<|im_end|>\n}",
         {0, DT_LEARN_CONTENT | DT_LEARN_AFTER, ALL, ALL}},
        {"chatml",
         "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n{x<|im_end|>\n<|im_start|>tool\nr<|im_end|>\n}"
         "<|im_start|>assistant\ny<|im_end|>\n",
         {0, DT_LEARN_CONTENT | DT_LEARN_AFTER, ALL, 0}},
        {"qwen3",
         "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n{x<|im_end|>\n<|im_start|>user\n"
         "<tool_response>\nr\n</tool_response><|im_end|>\n<|im_start|>assistant\n}<think>\n\n</"
         "think>\n\n{y<|im_end|>\n}",
         {0, DT_LEARN_CONTENT | DT_LEARN_AFTER, ALL, ALL}},
        {"qwen3",
         "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nx<|im_end|>\n{<|im_start|>user\n<tool_response>\nr\n"
         "</tool_response><|im_end|>\n<|im_start|>assistant\n}<think>\n\n</think>\n\n{y<|im_end|>\n}",
         {0, 0, ALL, ALL}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const unsigned *learn = cases[i].learn;
        const dt_message m[] = {{DT_ROLE_USER, "q", 1, learn[0]},
                                {DT_ROLE_ASSISTANT, "x", 1, learn[1]},
                                {DT_ROLE_TOOL, "r", 1, learn[2]},
                                {DT_ROLE_ASSISTANT, "y", 1, learn[3]}};
        dt_chat *c;
        dt_pieces p = {0};
        assert_int_equal(dt_chat_open(&c, cases[i].name, &fake), DT_OK);
        assert_int_equal(dt_chat_render(c, m, 4, NULL, 0, &p), DT_OK);
        assert_string_equal(shown(&p, true), cases[i].want);
        dt_pieces_free(&p);
        dt_chat_close(c);
    }
}
TEST(tokens_of_a_template_are_ids_where_there_are_any)
{
    dt_chat *c;
    dt_tokenizer *bytes;
    dt_pieces p = {0};
    const dt_message m = {DT_ROLE_USER, "q", 1, 0};
    assert_int_equal(dt_chat_open(&c, "chatml", &fake), DT_OK);
    assert_int_equal(dt_chat_end_token(c), IM_END);
    dt_chat_close(c);
    assert_int_equal(dt_tokenizer_open(&bytes, "bytes"), DT_OK);
    assert_int_equal(dt_chat_open(&c, "chatml", bytes), DT_OK);
    assert_int_equal(dt_chat_end_token(c), -1);
    assert_int_equal(dt_chat_render(c, &m, 1, NULL, 0, &p), DT_OK);
    assert_true(p.span[0].text && memcmp(p.span[0].text, "<|im_start|>user\n", 17) == 0);
    dt_chat_close(c);
    dt_pieces_free(&p);
    dt_tokenizer_close(bytes);
}

static void ids_of(const char *name, dt_tokenizer *t, dt_ids *ids)
{
    dt_chat *c;
    dt_encoder *e;
    dt_message m = {DT_ROLE_USER, "q", 1, 0};
    ids->n = 0;
    assert_int_equal(dt_encoder_open(&e, t), DT_OK);
    assert_int_equal(dt_chat_open(&c, name, t), DT_OK);
    assert_int_equal(dt_chat_encode(c, e, &(dt_messages){.item = &m, .n = 1}, DT_CHAT_GENERATE, ids), DT_OK);
    dt_chat_close(c);
    dt_encoder_close(e);
}

TEST(bos_stands_at_the_start_once)
{
    static const char *const names[] = {"llama-3", "llama-2", "mistral", "mistral-v7", "plain", "chatml", "vicuna"};
    dt_ids ids = {0};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        ids_of(names[i], &wrapping, &ids);
        assert_int_equal(ids.id[0], BOS);
        for (size_t k = 1; k < ids.n; k++) assert_true(ids.id[k] != BOS && ids.id[k] != EOS);
    }
    ids_of("chatml", &fake, &ids); /* neither the template nor the tokenizer wants one */
    assert_int_equal(ids.id[0], IM_START);
    free(ids.id);
}

/* What dtrain-data prints. */
TEST(a_template_names_its_source)
{
    dt_chat *c;
    assert_int_equal(dt_chat_open(&c, "auto", &fake), DT_OK);
    assert_string_equal(dt_chat_source(c), "plain (fake has no chat template)");
    dt_chat_close(c);
    assert_int_equal(dt_chat_open(&c, "chatml", &fake), DT_OK);
    assert_string_equal(dt_chat_source(c), "chatml (by name)");
    dt_chat_close(c);
    assert_int_equal(dt_chat_open(&c, "wizard", &fake), DT_ERR_USAGE);
    says("qwen2.5");
    says("wizard");
}

static char path[64];

static dt_err open_file(const char *text, dt_chat **c)
{
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
    dt_error_clear();
    return dt_chat_open(c, path, &fake);
}

TEST(a_template_can_come_from_a_file)
{
    dt_chat *c;
    dt_pieces p = {0};
    const dt_message m[] = {{DT_ROLE_USER, " q ", 3, 0},
                            {DT_ROLE_ASSISTANT, "x", 1, DT_LEARN_CONTENT | DT_LEARN_AFTER, false}};
    assert_int_equal(
        open_file("{\"name\": \"mine\", \"begin\": \"{bos}\", \"default_system\": \"S\", \"trim\": true, "
                  "\"system_place\": \"first_user\","
                  "\"system\": {\"prefix\": \"(\", \"after\": \")\"}, \"user\": {\"prefix\": \"Q\"},"
                  "\"assistant\": {\"prefix\": \"A\", \"lead\": \":\", \"end\": \"{eos}\", \"after\": \"|\"}}",
                  &c),
        DT_OK);
    assert_non_null(strstr(dt_chat_source(c), "mine (by name)"));
    assert_int_equal(dt_chat_end_token(c), EOS);
    assert_int_equal(dt_chat_render(c, m, 2, NULL, 0, &p), DT_OK);
    assert_string_equal(shown(&p, true), "<s>Q(S) qA{:x</s>|}");
    dt_pieces_free(&p);
    dt_chat_close(c);
}

TEST(bad_templates_say_what_is_wrong)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"{", "not valid JSON"},
        {"[]", ".json: expected an object, found []"},
        {"{\"user\": {}}", "assistant: expected an object, found nothing"},
        {"{\"assistant\": {\"end\": \"x\"}}", "user: expected an object, found nothing"},
        {"{\"user\": {}, \"assistant\": {}}", "assistant.end"},
        {"{\"user\": {\"prefx\": \"\"}, \"assistant\": {\"end\": \"x\"}}", "user.prefx"},
        {"{\"user\": {\"prefix\": 1}, \"assistant\": {\"end\": \"x\"}}", "user.prefix: expected a string, found 1"},
        {"{\"user\": 1, \"assistant\": {\"end\": \"x\"}}", "user: expected an object"},
        {"{\"jinja\": \"\"}", "jinja: expected a known key (one of name begin"},
        {"{\"trim\": 1}", "trim"},
        {"{\"system_place\": \"top\"}", "system_place"}};
    dt_chat *c;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(open_file(cases[i].text, &c), DT_ERR_DATA);
        says(cases[i].says);
        says(path);
        assert_null(c);
    }
    unlink(path);
    dt_error_clear();
    assert_fails(dt_chat_open(&c, path, &fake), DT_ERR_DATA, "");
}

TEST(a_system_message_without_its_place_is_an_error)
{
    dt_chat *c;
    const dt_message m[] = {{DT_ROLE_USER, "q", 1, 0}, {DT_ROLE_SYSTEM, "s", 1, 0}, {DT_ROLE_ASSISTANT, "x", 1, 0}};
    assert_int_equal(dt_chat_open(&c, "llama-2", &fake), DT_OK);
    assert_int_equal(render(c, m, 3, 0), DT_ERR_DATA);
    says("message 1");
    dt_error_clear();
    dt_chat_close(c);
}

static char *text_of(const dt_chat *c)
{
    static const dt_message m[] = {{DT_ROLE_SYSTEM, " s ", 3, 0},
                                   {DT_ROLE_USER, " q\n", 3, 0},
                                   {DT_ROLE_ASSISTANT, "<think>w</think> x ", 19, 0},
                                   {DT_ROLE_TOOL, "t", 1, 0},
                                   {DT_ROLE_USER, "", 0, 0}};
    dt_pieces p = {0};
    assert_int_equal(dt_chat_render(c, m, 5, NULL, DT_CHAT_GENERATE, &p), DT_OK);
    char *text = strdup(shown(&p, false));
    dt_pieces_free(&p);
    return text;
}

/* Exported and read back a template is the same; and without the first line, which names it, it writes the same.
 * tests/check_jinja.py holds exported files against transformers. Closes it. */
static void comes_back(dt_chat *c, const char *image, const dt_tokenizer *t, const char *before)
{
    dt_tokenizer again = *t;
    char *jinja, *spec, *found, *text = text_of(c);
    dt_chat *back;
    assert_int_equal(dt_chat_spec(c, &spec), DT_OK);
    assert_int_equal(dt_chat_jinja(c, image, &jinja), DT_OK);
    again.info.chat_template = jinja;
    assert_int_equal(dt_chat_open(&back, "auto", &again), DT_OK);
    assert_int_equal(dt_chat_spec(back, &found), DT_OK);
    assert_string_equal(found, spec);
    dt_chat_close(back);
    again.info.chat_template = strchr(jinja, '\n') + 1;
    assert_int_equal(dt_chat_open(&back, "auto", &again), DT_OK);
    char *written = text_of(back);
    assert_true(strncmp(written, before, strlen(before)) == 0);
    assert_string_equal(written + strlen(before), text);
    dt_chat_close(back);
    dt_chat_close(c);
    free(written);
    free(jinja);
    free(found);
    free(spec);
    free(text);
}

TEST(exported_templates_are_read_back)
{
    const char *name, *about;
    dt_chat *c;
    for (int i = 0; dt_chat_named(i, &name, &about); i++) {
        assert_int_equal(dt_chat_open(&c, name, &fake), DT_OK);
        comes_back(c, NULL, &fake, "");
    }
    assert_int_equal(open_file("{\"name\": \"mine #}\", \"begin\": \"'\\\\{% #}\\u001f\", \"trim\": true, "
                               "\"default_system\": \"it's\\n\", \"system_place\": \"last_user\", "
                               "\"system\": {\"after\": \" | \"}, \"user\": {\"open\": \"{{\", \"close\": \"}}\"}, "
                               "\"think_off\": \"-\", \"assistant\": {\"lead\": \":\", \"end\": \"{eos}\"}}",
                               &c),
                     DT_OK);
    unlink(path);
    comes_back(c, "<an 'image\\>", &fake, "");
    /* apply_chat_template lets the tokenizer put no BOS, so the template writes it */
    assert_int_equal(dt_chat_open(&c, "plain", &wrapping), DT_OK);
    comes_back(c, NULL, &wrapping, "<s>");
}

/* Of a vision-language model: parts of type image are written, too, as dt_messages_parse places them. */
TEST(exported_templates_write_images)
{
    dt_chat *c;
    char *jinja;
    assert_int_equal(dt_chat_open(&c, "qwen3", &fake), DT_OK);
    assert_int_equal(dt_chat_jinja(c, "<image>", &jinja), DT_OK);
    dt_jinja *t;
    dt_jinja_result r;
    json_t *talk =
        json_pack("{s:[{s:s,s:[{s:s,s:s},{s:s},{s:s,s:s},{s:s}]}]}", "messages", "role", "user", "content", "type",
                  "text", "text", "a", "type", "image", "type", "text", "text", "b", "type", "image");
    assert_int_equal(dt_jinja_parse(&t, "T", jinja, strlen(jinja), false), DT_OK);
    assert_int_equal(dt_jinja_render(t, talk, 0, &r), DT_OK);
    assert_string_equal(r.text, "<|im_start|>user\n<image>\n<image>\nab<|im_end|>\n");
    dt_jinja_result_free(&r);
    dt_jinja_close(t);
    json_decref(talk);
    free(jinja);
    comes_back(c, "<image>", &fake, "");
}
int main(void)
{
    snprintf(path, sizeof path, "/tmp/dtrain-test-chat-%d.json", (int)getpid());
    return run_listed("chat", NULL, NULL);
}
