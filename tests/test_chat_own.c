// NEEDS: PCRE2 UTF8PROC
/* test_chat_own.c - the tokenizer's own chat template: found in its directory, evaluated as it is, its answers found,
 * and exported with a model. */
#include "chat_fixture.h"

/* Open what the fake tokenizer has when this is its own template. */
static char *replaced(const char *text, const char *from, const char *to)
{
    char *out;
    size_t size;
    FILE *f = open_memstream(&out, &size);
    for (const char *found; (found = strstr(text, from)); text = found + strlen(from))
        fprintf(f, "%.*s%s", (int)(found - text), text, to);
    fputs(text, f);
    fclose(f);
    return out;
}

/* A conversation as the template writes it, targets in braces. */
static void writes(const dt_chat *c, const dt_message *m, int n, unsigned flags, bool marks, const char *want)
{
    dt_pieces p = {0};
    dt_error_clear();
    if (dt_chat_render(c, m, n, NULL, flags, &p) != DT_OK) fail_msg("%s", dt_error_message());
    assert_string_equal(shown(&p, marks), want);
    dt_pieces_free(&p);
}

static const dt_message two_turns[] = {{DT_ROLE_USER, "q", 1, 0},
                                       {DT_ROLE_ASSISTANT, "x ", 2, DT_LEARN_CONTENT},
                                       {DT_ROLE_USER, "r", 1, 0},
                                       {DT_ROLE_ASSISTANT, " y", 2, DT_LEARN_CONTENT}};

static void writes_the_cases_of(const char *path)
{
    json_t *cases = read_json(path);
    size_t i;
    const json_t *one;
    json_array_foreach(cases, i, one)
    {
        dt_chat *c;
        dt_messages m = {0};
        const unsigned flags = (json_is_true(json_object_get(one, "generate")) ? DT_CHAT_GENERATE : 0u) |
                               (json_is_true(json_object_get(one, "thinking")) ? 0u : DT_CHAT_NO_THINK);
        c = opened(published(json_string_value(json_object_get(one, "template"))));
        assert_string_equal(dt_chat_source(c), "models/x/tokenizer_config.json");
        assert_int_equal(dt_messages_parse(&m, json_object_get(one, "messages"), "messages", "role", "content"), DT_OK);
        writes(c, m.item, m.n, flags, false, json_string_value(json_object_get(one, "text")));
        dt_messages_free(&m);
        dt_chat_close(c);
    }
    json_decref(cases);
}

/* The texts are those of test_chat.c, and of templates that dtrain has not by name; here the published templates write
 * them. */
TEST(the_text_is_the_template_s_own)
{
    writes_the_cases_of("tests/data/chat/cases.json");
    writes_the_cases_of("tests/data/chat/own.json");
}

/* Gemma calls the assistant "model", and trims what is said. */
TEST(answers_of_gemma_are_found)
{
    static const char *const names[] = {"gemma-2", "gemma-3"};
    for (int i = 0; i < 2; i++) {
        dt_chat *c = opened(published(names[i]));
        writes(c, two_turns, 4, 0, true,
               "<s><start_of_turn>user\nq<end_of_turn>\n<start_of_turn>model\n{x<end_of_turn>}\n"
               "<start_of_turn>user\nr<end_of_turn>\n<start_of_turn>model\n{y<end_of_turn>}\n");
        dt_chat_close(c);
    }
}

/* Published templates have no generation blocks. Their answers are those of dtrain's templates, which have. */
TEST(answers_are_found_in_the_text)
{
    const char *name, *about;
    dt_chat *c, *own;
    for (int i = 1; dt_chat_named(i, &name, &about); i++) {
        dt_pieces p = {0};
        assert_int_equal(dt_chat_open(&c, name, &fake), DT_OK);
        own = opened(published(name));
        assert_int_equal(dt_chat_end_token(own), dt_chat_end_token(c));
        assert_int_equal(dt_chat_render(c, two_turns, 4, NULL, 0, &p), DT_OK);
        char *want = strdup(shown(&p, true));
        writes(own, two_turns, 4, 0, true, want);
        free(want);
        dt_pieces_free(&p);
        dt_chat_close(own);
        dt_chat_close(c);
    }
}

/* Qwen3's template removes thoughts from earlier answers, and begins a last one with an empty block. */
TEST(answers_are_found_where_earlier_text_changes)
{
    static const char first[] = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n{one<|im_end|>}\n"
                                "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n";
    static const char *const last[][2] = {
        {"<think>\nwhy\n</think>\n\ntwo", "{<think>\nwhy\n</think>\n\ntwo<|im_end|>}\n"},
        {" two\n", "<think>\n\n</think>\n\n{ two\n<|im_end|>}\n"},
        {"", "<think>\n\n</think>\n\n{<|im_end|>}\n"},
    };
    static const char thought[] = "<think>\nfirst\n</think>\n\none";
    dt_chat *c;
    char want[300];
    c = opened(published("qwen3"));
    for (size_t i = 0; i < sizeof last / sizeof last[0]; i++) {
        const dt_message m[] = {{DT_ROLE_USER, "q", 1, 0},
                                {DT_ROLE_ASSISTANT, thought, sizeof thought - 1, DT_LEARN_CONTENT},
                                {DT_ROLE_USER, "r", 1, 0},
                                {DT_ROLE_ASSISTANT, last[i][0], strlen(last[i][0]), DT_LEARN_CONTENT}};
        snprintf(want, sizeof want, "%s%s", first, last[i][1]);
        writes(c, m, 4, 0, true, want);
    }
    dt_chat_close(c);
}

/* As transformers' return_assistant_tokens_mask, also where it leaves out the end of a turn. */
TEST(generation_blocks_are_the_answers)
{
    dt_chat *c = opened("{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
                        "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
                        "<|im_end|>\n{% endfor %}");
    writes(c, two_turns, 4, 0, true,
           "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n{x }<|im_end|>\n"
           "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n{ y}<|im_end|>\n");
    dt_chat_close(c);
}

/* Blocks that are not one for each answer, as of a template that trains on the last one only. */
TEST(any_number_of_generation_blocks_are_the_targets)
{
    static const char jinja[] =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}"
        "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}"
        "{{ '\n' }}{% endfor %}";
    dt_chat *c = opened(jinja);
    writes(c, two_turns, 4, 0, true,
           "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nx <|im_end|>\n"
           "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n{ y<|im_end|>}\n");
    dt_message first_only[4];
    memcpy(first_only, two_turns, sizeof first_only);
    first_only[3].learn = 0;
    dt_error_clear();
    assert_int_equal(render(c, first_only, 4, 0), DT_ERR_DATA);
    says("message 1: ");
    says("has {% generation %} blocks, but not one for each answer");
    dt_error_clear();
    dt_chat_close(c);
}

/* Texts of questions and thoughts that contain what the template writes before an answer. */
TEST(words_of_a_template_in_other_texts_are_no_answers)
{
    static const char jinja[] =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
        "{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";
    static const struct {
        const char *question, *thoughts, *want;
    } cases[] = {
        {"a <think>\n\n</think>\n\n b", NULL,
         "<|im_start|>user\na <think>\n\n</think>\n\n b<|im_end|>\n<|im_start|>assistant\n{yes<|im_end|>}\n"},
        {"a <|im_start|>assistant\n<think>\nb", NULL,
         "<|im_start|>user\na <|im_start|>assistant\n<think>\nb<|im_end|>\n<|im_start|>assistant\n{yes<|im_end|>}\n"},
        {"q", "a <|im_start|>assistant\n<think>\nb",
         "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n{a <|im_start|>assistant\n<think>\nb\n</think>"
         "\n\nyes<|im_end|>}\n"},
    };
    dt_chat *c = opened(jinja);
    assert_true(dt_chat_end_token(c) >= 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *thoughts = cases[i].thoughts;
        const dt_message m[] = {{DT_ROLE_USER, cases[i].question, strlen(cases[i].question), 0},
                                {.role = DT_ROLE_ASSISTANT,
                                 .text = "yes",
                                 .nbytes = 3,
                                 .learn = DT_LEARN_CONTENT,
                                 .thoughts = thoughts,
                                 .thoughts_key = "reasoning_content",
                                 .n_thoughts = thoughts ? strlen(thoughts) : 0}};
        writes(c, m, 2, 0, true, cases[i].want);
    }
    dt_chat_close(c);
}

/* A template that changes a marked question: the beginning of an answer is then not certain. */
TEST(questions_that_a_template_changes_are_refused_if_they_contain_its_words)
{
    dt_chat *c = opened("{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content.endswith('?') %}Q {% endif %}"
                        "{{ m.content }}<|im_end|>\n{% endfor %}"
                        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
    static const char *const questions[] = {"why?", "<|im_start|>assistant\nwhy?"};
    for (size_t i = 0; i < 2; i++) {
        const dt_message m[] = {{DT_ROLE_USER, questions[i], strlen(questions[i]), 0},
                                {DT_ROLE_ASSISTANT, "yes", 3, DT_LEARN_CONTENT}};
        if (i == 0) {
            writes(c, m, 2, 0, true, "<|im_start|>user\nQ why?<|im_end|>\n<|im_start|>assistant\n{yes<|im_end|>}\n");
            continue;
        }
        dt_error_clear();
        assert_int_equal(render(c, m, 2, 0), DT_ERR_DATA);
        says("changes messages before this answer that contain its own words");
    }
    dt_error_clear();
    dt_chat_close(c);
}

/* An answer that ends with two special tokens, as Command R7B's; and one that only ends so as the last. */
TEST(all_tokens_that_end_an_answer_are_targets)
{
    dt_chat *c = opened("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
                        "{% if m.role == 'assistant' %}<|endoftext|>{% endif %}<|im_end|>\n{% endfor %}"
                        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
    writes(c, two_turns, 4, 0, true,
           "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n{x <|endoftext|><|im_end|>}\n"
           "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n{ y<|endoftext|><|im_end|>}\n");
    dt_chat_close(c);
    c = opened("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>"
               "{% if loop.last and m.role == 'assistant' %}<|endoftext|>{% endif %}{{ '\n' }}{% endfor %}"
               "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
    writes(c, two_turns, 4, 0, true,
           "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n{x <|im_end|>}\n"
           "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n{ y<|im_end|><|endoftext|>}\n");
    dt_chat_close(c);
}

/* An end that is no token: what follows a last answer. */
TEST(answers_may_end_by_text)
{
    dt_chat *c = opened("{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n##\n{% endfor %}"
                        "{% if add_generation_prompt %}assistant:{% endif %}");
    assert_int_equal(dt_chat_end_token(c), -1);
    writes(c, two_turns, 4, 0, true, "user: q\n##\nassistant:{ x\n##\n}user: r\n##\nassistant:{ y\n##\n}");
    dt_chat_close(c);
}

/* Only if there is something to train on. */
TEST(answers_that_are_not_found_are_refused)
{
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"", "", "message 3: the chat template models/x/tokenizer_config.json begins this answer in another way"},
        {"message['content']|trim", "'no'", "leaves out or changes answers"},
    };
    const dt_message m[] = {{DT_ROLE_SYSTEM, "s", 1, 0},
                            {DT_ROLE_USER, "q", 1, 0},
                            {DT_ROLE_ASSISTANT, "x", 1, DT_LEARN_CONTENT},
                            {DT_ROLE_ASSISTANT, "y", 1, DT_LEARN_CONTENT}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *jinja =
            i ? replaced(published("mistral-v3"), cases[i].from, cases[i].to) : strdup(published("mistral-v3"));
        dt_chat *c = opened(jinja);
        assert_int_equal(render(c, m, 4, 0), DT_ERR_DATA);
        says(cases[i].says);
        says("--template");
        const dt_message prompt[] = {m[0], m[1]};
        writes(c, prompt, 2, DT_CHAT_GENERATE, false, "<s>[INST] s\n\nq[/INST]");
        dt_chat_close(c);
        free(jinja);
    }
}

TEST(a_template_that_cannot_be_used_says_why)
{
    static const struct {
        const char *jinja, *says;
    } cases[] = {
        {"{% for m in messages %}\n{{ m.content | zap }}{% endfor %}", "line 2: unknown or unsupported filter zap"},
        {"{{ raise_exception('never') }}", "line 1: the template refuses: never; choose a template"},
        {"{% for m in messages %}{{ m.role }}{% endfor %}", "it leaves out the text of a question"},
    };
    const dt_message answer = {DT_ROLE_ASSISTANT, "x", 1, 0};
    dt_chat *c;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(open_template(cases[i].jinja, &c), DT_ERR_USAGE);
        says("template: the chat template in models/x cannot be evaluated: ");
        says(cases[i].says);
        assert_null(c);
    }
    c = opened(published("mixtral"));
    assert_int_equal(render(c, &answer, 1, 0), DT_ERR_DATA);
    says("models/x/tokenizer_config.json: line 1: the template refuses: roles must alternate");
    dt_chat_close(c);
}

/* As processors have them. */
TEST(contents_are_passed_as_parts_where_a_template_needs_them)
{
    static const char *const loops[] = {"m.content | selectattr('type', 'equalto', 'text') %}{{ p.text }}",
                                        "m.content %}{{ p['text'] + '' }}"}; /* text by text: empty, and an error */
    for (size_t i = 0; i < sizeof loops / sizeof loops[0]; i++) {
        char jinja[300];
        dt_chat *c;
        snprintf(jinja, sizeof jinja,
                 "{%% for m in messages %%}{{ m.role }}:{%% for p in %s{%% endfor %%};{%% endfor %%}"
                 "{%% if add_generation_prompt %%}assistant:{%% endif %%}",
                 loops[i]);
        c = opened(jinja);
        writes(c, two_turns, 4, 0, true, "user:q;assistant:{x ;}user:r;assistant:{ y;}");
        dt_chat_close(c);
    }
}

TEST(fields_of_messages_are_passed_to_the_template)
{
    const dt_message m[] = {{DT_ROLE_SYSTEM, "s", 1, 0, .developer = true}, {DT_ROLE_USER, "q", 1, 0, .name = "Ann"}};
    char *jinja = replaced(published("chatml"), "message['role'] + '",
                           "message['role'] + (' ' + message.name if message.name else '') + '");
    dt_chat *c = opened(jinja);
    writes(c, m, 2, 0, false, "<|im_start|>developer\ns<|im_end|>\n<|im_start|>user Ann\nq<|im_end|>\n");
    dt_chat_close(c);
    free(jinja);
    assert_int_equal(dt_chat_open(&c, "chatml", &fake), DT_OK);
    writes(c, m, 2, 0, false, "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nq<|im_end|>\n");
    dt_chat_close(c);
}

/* A template that ignores reasoning_content is not used for records with that field; Qwen3's own reads it. */
TEST(thoughts_of_a_field_are_refused_where_the_template_ignores_them)
{
    const dt_message m[] = {{DT_ROLE_USER, "q", 1, 0},
                            {DT_ROLE_ASSISTANT, "a", 1, 0, .thoughts = "why", .n_thoughts = 3, .thoughts_key = "key"}};
    const char *reads =
        "{% for m in messages %}{{ m.role }}:{{ '(' ~ m.reasoning_content ~ ')' if m.reasoning_content }}"
        "{{ m.content }};{% endfor %}";
    dt_chat *c = opened(reads);
    writes(c, m, 2, 0, false, "user:q;assistant:(why)a;");
    dt_chat_close(c);
    c = opened(published("chatml"));
    assert_int_equal(render(c, m, 2, 0), DT_ERR_DATA);
    says("message 1: key: the template models/x/tokenizer_config.json has no block for thoughts");
    dt_error_clear();
    dt_chat_close(c);
}

/* Datasets and checkpoints record the text. */
TEST(the_text_is_recorded)
{
    dt_chat *c, *again;
    char *spec, *jinja;
    c = opened(published("qwen2"));
    assert_int_equal(dt_chat_spec(c, &spec), DT_OK);
    assert_null(strpbrk(spec, "\n#;$"));
    assert_int_equal(dt_chat_open(&again, spec, &fake), DT_OK);
    writes(again, two_turns, 1, DT_CHAT_GENERATE, false,
           "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nq<|im_end|>\n"
           "<|im_start|>assistant\n");
    assert_int_equal(dt_chat_jinja(again, NULL, &jinja), DT_OK);
    assert_string_equal(jinja, published("qwen2"));
    free(jinja);
    free(spec);
    dt_chat_close(again);
    dt_chat_close(c);
}

/* Llama 3.2 writes the date of the day: here always 26 July 2024. */
TEST(the_date_is_a_fixed_day)
{
    char *jinja = replaced(published("llama-3.1"), "'26 Jul 2024'", "strftime_now('%d %b %Y')");
    dt_chat *c = opened(jinja);
    writes(c, two_turns, 1, 0, false,
           "<s><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul "
           "2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nq<|eot_id|>");
    dt_chat_close(c);
    free(jinja);
}

/* The first line is a claim: a file that was edited is evaluated as others are. */
TEST(the_claimed_origin_of_edited_jinja_is_not_trusted)
{
    char edited[2048];
    dt_chat *c;
    const char *first[] = {"plain", "qwen3", "/tmp/template.json", "{\"user\": {}, \"assistant\": {\"end\": \"x\"}}",
                           "{"};
    for (size_t i = 0; i < sizeof first / sizeof first[0]; i++) {
        snprintf(edited, sizeof edited, "{#- Written by dtrain. chat_template = %s #}\n%s", first[i],
                 published("chatml"));
        c = opened(edited);
        assert_string_equal(dt_chat_source(c), "models/x/tokenizer_config.json");
        writes(c, two_turns, 1, 0, false, "<|im_start|>user\nq<|im_end|>\n");
        dt_chat_close(c);
    }
}
static void write_in(const char *folder, const char *name, const char *text)
{
    char file[300];
    snprintf(file, sizeof file, "%s/%s", folder, name);
    if (!text) {
        unlink(file);
        return;
    }
    FILE *f = fopen(file, "we");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* What `auto` finds in a directory, as its source; or what its error says. */
static void found_in(const char *folder, const char *want)
{
    dt_tokenizer *t;
    dt_chat *c;
    dt_error_clear();
    assert_int_equal(dt_tokenizer_open(&t, folder), DT_OK);
    const dt_err err = dt_chat_open(&c, "auto", t);
    const char *text = err == DT_OK ? dt_chat_source(c) : dt_error_message();
    if (!strstr(text, want)) print_message("found %s, expected %s\n", text, want);
    assert_non_null(strstr(text, want));
    dt_chat_close(c);
    dt_tokenizer_close(t);
}

/* A new directory with a tokenizer.json of the tests. */
static void make_folder(char *folder, const char *family)
{
    char from[256], to[256];
    assert_non_null(mkdtemp(folder));
    snprintf(from, sizeof from, "tests/data/tokenizer/%s/tokenizer.json", family);
    snprintf(to, sizeof to, "%s/tokenizer.json", folder);
    char *source = realpath(from, NULL);
    assert_int_equal(symlink(source, to), 0);
    free(source);
}

/* In the order of transformers 5, and plain only where there is none at all. */
TEST(a_directory_s_template_is_found)
{
    const char *chatml = published("chatml"), *qwen2 = published("qwen2"), *qwen3 = published("qwen3");
    char folder[] = "/tmp/dtrain-test-chat-XXXXXX", more[256], where[128];
    make_folder(folder, "smollm");
    found_in(folder, "has no chat template)");
    json_t *one = json_pack("{s:s}", "chat_template", qwen2),
           *named = json_pack("{s:[{s:s,s:s},{s:s,s:s}]}", "chat_template", "name", "rag", "template", chatml, "name",
                              "default", "template", qwen3),
           *others = json_pack("{s:[{s:s,s:s},{s:s,s:s}]}", "chat_template", "name", "rag", "template", chatml, "name",
                               "tool_use", "template", qwen3);
    char *text[] = {json_dumps(one, 0), json_dumps(named, 0), json_dumps(others, 0)};
    write_in(folder, "chat_template.json", text[0]);
    snprintf(where, sizeof where, "%s/chat_template.json", folder);
    found_in(folder, where);
    write_in(folder, "tokenizer_config.json", text[2]);
    found_in(folder,
             "has the chat templates rag, tool_use, but none is named default: choose one of them, one of dtrain's");
    write_in(folder, "tokenizer_config.json", text[1]);
    snprintf(where, sizeof where, "%s/tokenizer_config.json", folder);
    found_in(folder, where);
    snprintf(more, sizeof more, "%s/additional_chat_templates", folder);
    assert_int_equal(mkdir(more, 0700), 0);
    write_in(more, "rag.jinja", qwen2);
    snprintf(where, sizeof where, "%s/additional_chat_templates", folder);
    found_in(folder, where); /* the only one */
    write_in(folder, "chat_template.jinja", chatml);
    snprintf(where, sizeof where, "%s/chat_template.jinja", folder);
    found_in(folder, where);
    write_in(more, "rag.jinja", NULL);
    rmdir(more);
    static const char *const files[] = {"chat_template.jinja", "chat_template.json", "tokenizer_config.json",
                                        "tokenizer.json"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) write_in(folder, files[i], NULL);
    assert_int_equal(rmdir(folder), 0);
    for (size_t i = 0; i < 3; i++) free(text[i]);
    json_decref(one);
    json_decref(named);
    json_decref(others);
}

static char *exported(const char *family, const char *template, int32_t image, const char *jinja)
{
    char folder[] = "/tmp/dtrain-test-chat-XXXXXX", *written;
    make_folder(folder, family);
    write_in(folder, "chat_template.jinja", jinja);
    assert_int_equal(dt_chat_jinja_for(template, folder, image, NULL, &written), DT_OK);
    write_in(folder, "tokenizer.json", NULL);
    write_in(folder, "chat_template.jinja", NULL);
    rmdir(folder);
    return written;
}

/* The tokenizer's own template decides on BOS, by whatever name it is asked for: apply_chat_template encodes its text
 * as it is. With images the processor lets the tokenizer put BOS. */
TEST(the_own_template_decides_on_bos)
{
    static const struct {
        const char *name, *own;
        bool images, bos;
    } cases[] = {{"auto", "chatml", false, false},    {"chatml", "chatml", false, false},
                 {"chatml", "chatml", true, true},    {"chatml", "vicuna", false, true},
                 {"chatml", NULL, false, true},       {"auto", NULL, false, true},
                 {"llama-3", "llama-3", false, true}, {"auto", "llama-3", true, true}};
    dt_ids ids = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_tokenizer t = wrapping;
        dt_encoder *e;
        dt_chat *c;
        dt_message m = {DT_ROLE_USER, "q", 1, 0};
        t.info.chat_template = cases[i].own ? published(cases[i].own) : NULL;
        assert_int_equal(dt_encoder_open(&e, &t), DT_OK);
        assert_int_equal(dt_chat_open(&c, cases[i].name, &t), DT_OK);
        if (cases[i].images) dt_chat_for_images(c);
        ids.n = 0;
        assert_int_equal(dt_chat_encode(c, e, &(dt_messages){.item = &m, .n = 1}, DT_CHAT_GENERATE, &ids), DT_OK);
        assert_int_equal(ids.id[0] == BOS, cases[i].bos);
        for (size_t k = 1; k < ids.n; k++) assert_true(ids.id[k] != BOS && ids.id[k] != EOS);
        dt_chat_close(c);
        dt_encoder_close(e);
    }
    free(ids.id);
}

/* An export keeps the tokenizer's own template. By name it writes what training had: BOS where the tokenizer put it. */
TEST(an_export_keeps_the_own_template)
{
    const char *chatml = published("chatml");
    assert_null(exported("smollm", "auto", -1, chatml));
    assert_null(exported("llama3", "auto", 1, chatml));
    static const struct {
        const char *name;
        bool bos;
    } cases[] = {{"plain", true}, {"chatml", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *written = exported("llama3", cases[i].name, -1, chatml);
        assert_non_null(written);
        assert_int_equal(strstr(written, "<|begin_of_text|>") != NULL, cases[i].bos);
        free(written);
    }
}

int main(void) { return run_listed("chat own", NULL, NULL); }
