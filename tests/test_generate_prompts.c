/* test_generate_prompts.c - prompts of dtrain-generate: text, lines and JSON. */
#include "cases.h"

#include "dtrain/generate/generate.h"

static void assert_prompt(const dt_prompts *p, int i, size_t n, const int32_t *ids)
{
    assert_true(i < p->n);
    assert_int_equal(p->prompt[i].ids.n, n);
    for (size_t t = 0; t < n; t++) assert_int_equal(p->prompt[i].ids.id[t], ids[t]);
}

static void assert_text(const dt_prompts *p, int i, const char *text)
{
    assert_int_equal(p->prompt[i].ids.n, strlen(text));
    for (size_t t = 0; text[t]; t++) assert_int_equal(p->prompt[i].ids.id[t], (unsigned char)text[t]);
}

static dt_err parse(dt_prompts *p, const char *text, dt_prompt_format format, dt_prompt_reader *reader)
{
    dt_error_clear();
    reader->vocab_size = 257;
    return dt_prompts_parse(p, "file", text, strlen(text), format, reader);
}

TEST(prompts_come_as_text_lines_and_json)
{
    dt_tokenizer *tok;
    dt_encoder *enc;
    dt_prompts p;
    assert_int_equal(dt_tokenizer_open(&tok, "bytes"), DT_OK);
    assert_int_equal(dt_encoder_open(&enc, tok), DT_OK);
    dt_prompt_reader bytes = {.tokenizer = tok, .encoder = enc, .chat_template = "chatml"}, ids = {0};
    assert_int_equal(parse(&p, "a\nb", DT_PROMPT_WHOLE, &bytes), DT_OK);
    assert_int_equal(p.n, 1);
    assert_prompt(&p, 0, 3, (int32_t[]){'a', '\n', 'b'});
    dt_prompts_free(&p);

    assert_int_equal(parse(&p, "ab\r\n\nc", DT_PROMPT_LINES, &bytes), DT_OK);
    assert_int_equal(p.n, 2);
    assert_prompt(&p, 0, 2, (int32_t[]){'a', 'b'});
    assert_prompt(&p, 1, 1, (int32_t[]){'c'});
    dt_prompts_free(&p);

    assert_int_equal(parse(&p, "{\"prompt\": \"x\\u0000\\u00e9\"}\n\n{\"ids\": [256, 0]}\n{\"prompt\": \"\"}\n",
                           DT_PROMPT_JSONL, &bytes),
                     DT_OK);
    assert_int_equal(p.n, 3);
    assert_prompt(&p, 0, 4, (int32_t[]){'x', 0, 0xc3, 0xa9});
    assert_prompt(&p, 1, 2, (int32_t[]){256, 0});
    assert_prompt(&p, 2, 0, NULL);
    dt_prompts_free(&p);

    assert_int_equal(parse(&p, "1 22,\t 256", DT_PROMPT_WHOLE, &ids), DT_OK);
    assert_prompt(&p, 0, 3, (int32_t[]){1, 22, 256});
    dt_prompts_free(&p);

    /* a JSON array; messages, with and without a system message of their own; other fields are kept */
    assert_int_equal(parse(&p,
                           "\xef\xbb\xbf [{\"prompt\": \"a\", \"answer\": 42},\n {\"messages\": [{\"role\": \"user\", "
                           "\"content\": \"b\"}]}]",
                           DT_PROMPT_JSONL, &bytes),
                     DT_OK);
    assert_int_equal(p.n, 2);
    assert_prompt(&p, 0, 1, (int32_t[]){'a'});
    assert_int_equal(json_integer_value(json_object_get(p.prompt[0].record, "answer")), 42);
    assert_text(&p, 1, "<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n");
    dt_prompts_free(&p);
    bytes.system = "s";
    assert_int_equal(parse(&p,
                           "{\"messages\": [{\"role\": \"user\", \"content\": \"b\"}]}\n{\"prompt\": [{\"role\": "
                           "\"system\", \"content\": \"t\"}]}",
                           DT_PROMPT_JSONL, &bytes),
                     DT_OK);
    assert_int_equal(p.n, 2);
    assert_text(&p, 0, "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n");
    assert_text(&p, 1, "<|im_start|>system\nt<|im_end|>\n<|im_start|>assistant\n");
    dt_prompts_free(&p);
    dt_prompt_reader_close(&bytes);
    dt_encoder_close(enc);
    dt_tokenizer_close(tok);
}

/* As in datasets: what would change the question is used or refused. */
TEST(fields_of_prompts_are_used_or_refused)
{
    static const struct {
        const char *record, *says; /* says: the error, or the text */
        dt_err want;
    } cases[] = {
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}], \"system\": \"s\"}",
         "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n", DT_OK},
        {"{\n \"messages\": [\n  {\"role\": \"user\",\n \"content\": \"q }{\"}\n ]\n}\n",
         "<|im_start|>user\nq }{<|im_end|>\n<|im_start|>assistant\n", DT_OK},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"\", "
         "\"tool_calls\": [{}]}, {\"role\": \"tool\", \"content\": \"r\"}]}",
         "file:1: messages: message 1: tool_calls: ", DT_ERR_DATA},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\", "
         "\"reasoning_content\": \"why\"}, {\"role\": \"user\", \"content\": \"r\"}]}",
         "file:1: messages: message 1: reasoning_content: the template chatml", DT_ERR_DATA},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}], \"tools\": [{\"name\": \"f\"}]}",
         "<|im_start|>system\n[{\"name\": \"f\"}]<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n",
         DT_OK},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}], \"tools\": 1}",
         "file:1: messages: tools: expected a list", DT_ERR_DATA},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}], \"history\": [[\"a\", \"b\"]]}",
         "file:1: messages: history: ", DT_ERR_DATA},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}], \"videos\": [\"v\"]}",
         "file:1: videos: ", DT_ERR_DATA},
        {"{\"prompt\": \"p\", \"image\": \"a.png\"}",
         "file:1: image: the record has an image, but the model does not accept images", DT_ERR_DATA},
        {"{\"prompt\": \"p\", \"system\": \"s\"}", "file:1: system: a plain-text prompt", DT_ERR_DATA},
        {"{\"messages\": [{\"role\": \"system\", \"content\": \"t\"}, {\"role\": \"user\", \"content\": \"q\"}], "
         "\"system\": \"s\"}",
         "system: the messages start with another system message", DT_ERR_DATA},
        {"{\n\"prompt\": \"p\"\n}\n{\n\"prompt\": 1\n}\n", "file:4: expected an object", DT_ERR_DATA},
    };
    dt_tokenizer *tok;
    dt_encoder *enc;
    assert_int_equal(dt_tokenizer_open(&tok, "bytes"), DT_OK);
    assert_int_equal(dt_encoder_open(&enc, tok), DT_OK);
    dt_prompt_reader bytes = {.tokenizer = tok, .encoder = enc, .chat_template = "chatml"};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_prompts p;
        assert_int_equal(parse(&p, cases[i].record, DT_PROMPT_JSONL, &bytes), cases[i].want);
        if (cases[i].want == DT_OK) assert_text(&p, 0, cases[i].says);
        if (cases[i].want != DT_OK && !strstr(dt_error_message(), cases[i].says))
            print_message("%s\n", dt_error_message());
        if (cases[i].want != DT_OK) assert_says(cases[i].says);
        dt_prompts_free(&p);
    }
    dt_error_clear();
    dt_prompt_reader_close(&bytes);
    dt_encoder_close(enc);
    dt_tokenizer_close(tok);
}

TEST(bad_prompts_are_named_by_line)
{
    const struct {
        const char *text;
        dt_prompt_format format;
        const char *message;
    } bad[] = {{"{\"ids\": [1]}\n{\"ids\"", DT_PROMPT_JSONL, "file:2: "},
               {"{\"ids\": [1, -1]}", DT_PROMPT_JSONL, "file:1: ids[1]"},
               {"{\"ids\": 5}", DT_PROMPT_JSONL, "file:1: "},
               {"{\"text\": \"a\"}", DT_PROMPT_JSONL, "\"prompt\""},
               {"\n{\"ids\": [0, 257]}", DT_PROMPT_JSONL, "file:2: token 1 is 257"},
               {"[1]", DT_PROMPT_JSONL, "file: record 1: "},
               {"[{\"ids\": [1]}, ", DT_PROMPT_JSONL, "file:1:15: not valid JSON"},
               {"hello\n", DT_PROMPT_JSONL, "file: expected JSON lines, found text; for one prompt per line, use "},
               {"{\"messages\": []}", DT_PROMPT_JSONL, "file:1: messages: "},
               {"{\"messages\": [{\"role\": \"user\", \"content\": \"b\"}]}", DT_PROMPT_JSONL, "need a tokenizer"},
               {"", DT_PROMPT_JSONL, "found none"},
               {"\n\r\n", DT_PROMPT_LINES, "found none"},
               {"1 2x", DT_PROMPT_WHOLE, "'2x'"},
               {"3\n-1", DT_PROMPT_LINES, "file:2: "},
               {"99999999999999999999", DT_PROMPT_WHOLE, "expected token ids"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        dt_prompts p;
        dt_prompt_reader ids = {0};
        const dt_err err = parse(&p, bad[i].text, bad[i].format, &ids);
        assert_true(err == DT_ERR_DATA || err == DT_ERR_USAGE);
        if (!strstr(dt_error_message(), bad[i].message)) fail_msg("case %zu: %s", i, dt_error_message());
        dt_prompts_free(&p);
    }
}

int main(void) { return run_listed("generate_prompts", NULL, NULL); }
