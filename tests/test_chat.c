// NEEDS: PCRE2 UTF8PROC
/* test_chat.c - chat templates: equal to transformers' apply_chat_template (tests/make_chat_fixtures.py), marks of
 * targets, BOS once, templates from files, and tokens that reach across the border between prompt and answer. */
#include "cases.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../src/tokenizer/tokenizer_ops.h"
#include "dtrain/chat/chat.h"
#include "../src/chat/chat_private.h"

#pragma GCC diagnostic ignored "-Wmissing-field-initializers" /* messages omit default fields */

/* ---- a tokenizer with the tokens of all families: bytes, tokens from 256 on, and "ab" as one token --------------- */

static const char *const tokens[] = {
    "<s>",        "</s>",   "<|im_start|>", "<|im_end|>",      "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "[INST]", "[/INST]",      "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"};
enum { N_TOKENS = sizeof tokens / sizeof tokens[0], BOS = 256, EOS = 257, AB = 256 + N_TOKENS };

static bool fake_is_special(const dt_tokenizer *t, int32_t id) { return id >= 256 && id < AB; }
static const char *fake_token(const dt_tokenizer *t, int32_t id)
{
    return fake_is_special(t, id) ? tokens[id - 256] : NULL;
}
static int32_t fake_find(const dt_tokenizer *t, const char *text)
{
    for (int i = 0; i < N_TOKENS; i++)
        if (strcmp(text, tokens[i]) == 0) return 256 + i;
    return -1;
}
static void fake_put(dt_ids *ids, int32_t id)
{
    assert_int_equal(dt_ids_reserve(ids, 1), DT_OK);
    ids->id[ids->n++] = id;
}
/* "ab" is one token, also where a border of pieces lies in it: after a, before b of the next piece. */
static dt_err fake_encode(dt_encoder *e, const dt_span *s, int n, unsigned flags, dt_ids *ids, int64_t *ends)
{
    const bool wraps = e->tokenizer->impl != NULL;
    bool open = false; /* the last id was made of an a */
    if (wraps && flags & DT_ENCODE_WRAP) fake_put(ids, BOS);
    for (int i = 0; i < n; i++) {
        if (!s[i].text) fake_put(ids, s[i].id);
        if (!s[i].text) open = false;
        for (size_t k = 0; s[i].text && k < s[i].nbytes; k++) {
            const bool joins = open && s[i].text[k] == 'b';
            if (joins) ids->id[ids->n - 1] = AB;
            if (joins && k == 0 && i > 0 && ends) ends[i - 1] = -1;
            if (!joins) fake_put(ids, (unsigned char)s[i].text[k]);
            open = !joins && s[i].text[k] == 'a';
        }
        if (ends) ends[i] = (int64_t)ids->n;
    }
    if (wraps && flags & DT_ENCODE_WRAP) fake_put(ids, EOS);
    return DT_OK;
}
static const dt_tokenizer_ops fake_ops = {
    .is_special = fake_is_special, .token = fake_token, .find = fake_find, .encode = fake_encode};
static dt_tokenizer fake = {.ops = &fake_ops,
                            .info = {.name = "fake", .vocab_size = AB + 1, .bos = BOS, .eos = EOS, .pad = -1}},
                    wrapping = {.ops = &fake_ops,
                                .info = {.name = "fake", .vocab_size = AB + 1, .bos = BOS, .eos = EOS, .pad = -1},
                                .impl = &fake};

/* What the pieces say, targets in braces. */
static char *shown(const dt_pieces *p, bool marks)
{
    static char text[8192];
    size_t n = 0;
    for (int i = 0; i < p->n; i++) {
        const dt_span *s = &p->span[i];
        if (marks && p->target[i] && (i == 0 || !p->target[i - 1])) text[n++] = '{';
        const char *bytes = s->text ? s->text : fake_token(&fake, s->id);
        const size_t len = s->text ? s->nbytes : strlen(bytes);
        assert_true(n + len + 3 < sizeof text);
        memcpy(text + n, bytes, len);
        n += len;
        if (marks && p->target[i] && (i + 1 == p->n || !p->target[i + 1])) text[n++] = '}';
    }
    text[n] = '\0';
    return text;
}

static json_t *all; /* templates as published, by dtrain's name */
static const char *published(const char *name) { return json_string_value(json_object_get(all, name)); }

static void says(const char *words)
{
    if (!strstr(dt_error_message(), words)) fail_msg("expected \"%s\", found \"%s\"", words, dt_error_message());
}

static json_t *read_json(const char *path)
{
    json_error_t e;
    json_t *root = json_load_file(path, 0, &e);
    if (!root) print_message("%s: %s\n", path, e.text);
    assert_non_null(root);
    return root;
}

/* Only whether it is rendered. */
static dt_err render(const dt_chat *c, const dt_message *m, int n, unsigned flags)
{
    dt_pieces p = {0};
    const dt_err err = dt_chat_render(c, m, n, flags, &p);
    dt_pieces_free(&p);
    return err;
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

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
        assert_int_equal(dt_chat_render(c, m.item, m.n, flags, &p), DT_OK);
        if (strcmp(shown(&p, false), want) != 0)
            print_message("case %zu, %s\nfound:    %s\nexpected: %s\n", i, name, shown(&p, false), want);
        assert_string_equal(shown(&p, false), want);
        dt_pieces_free(&p);
        dt_messages_free(&m);
        dt_chat_close(c);
    }
    json_decref(cases);
}

static void templates_write_what_transformers_writes(void **state)
{
    const char *path = getenv("DTRAIN_CHAT_CASES");
    must_write_as_transformers(path ? path : "tests/data/chat/cases.json");
}

/* reasoning_content; tests/make_thought_fixtures.py. */
static void thoughts_of_a_field_are_written_as_by_transformers(void **state)
{
    must_write_as_transformers("tests/data/chat/thoughts.json");
}

static dt_err parse(dt_messages *m, const char *text)
{
    json_t *list = json_loads(text, 0, NULL);
    assert_non_null(list);
    dt_error_clear();
    dt_messages_clear(m);
    const dt_err err = dt_messages_parse(m, list, "messages", "role", "content");
    json_decref(list);
    return err;
}

static void a_template_without_thoughts_refuses_them(void **state)
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

/* Fields that other programs read: named, with the message they belong to. Empty ones say nothing. */
static void fields_that_change_a_conversation_are_refused(void **state)
{
    static const struct {
        const char *field, *named; /* NULL: accepted */
    } cases[] = {{"\"tool_calls\": [{\"function\": {\"name\": \"f\"}}]", "message 0: tool_calls: "},
                 {"\"function_call\": {\"name\": \"f\"}", "message 0: function_call: "},
                 {"\"refusal\": \"no\"", "message 0: refusal: "},
                 {"\"audio\": {\"id\": \"x\"}", "message 0: audio: "},
                 {"\"tools\": \"[{}]\"", "message 0: tools: "},
                 {"\"images\": [\"a.png\"]", "message 0: images: "},
                 {"\"weight\": 0.5", "message 0: weight: expected 0 or false"},
                 {"\"loss\": \"no\"", "message 0: loss: expected 0 or false"},
                 {"\"reasoning_content\": 1", "message 0: reasoning_content: expected a text, found a number"},
                 {"\"thinking\": \"a\", \"reasoning\": \"b\"", "message 0: reasoning and thinking: expected only one"},
                 {"\"tool_calls\": null, \"refusal\": null, \"audio\": null, \"weight\": null", NULL},
                 {"\"tool_calls\": [], \"function_call\": {}, \"tools\": \"[]\", \"name\": \"n\"", NULL},
                 {"\"loss\": true, \"weight\": 1, \"train\": true", NULL}};
    dt_messages m = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        snprintf(text, sizeof text, "[{\"role\": \"assistant\", \"content\": \"\", %s}]", cases[i].field);
        assert_int_equal(parse(&m, text), cases[i].named ? DT_ERR_DATA : DT_OK);
        if (cases[i].named) says(cases[i].named);
    }
    assert_int_equal(parse(&m, "[{\"role\": \"assistant\", \"tool_calls\": [{}]}]"), DT_ERR_DATA);
    says("message 0: tool_calls: ");
    assert_int_equal(parse(&m, "[{\"role\": \"user\", \"content\": \"q\", \"train\": true}]"), DT_ERR_DATA);
    says("message 0: train: the loss covers only answers");
    assert_int_equal(parse(&m, "[{\"role\": \"user\", \"content\": \"q\", \"thinking\": \"w\"}]"), DT_ERR_DATA);
    says("message 0: thinking: only answers can have thoughts");
    assert_int_equal(parse(&m, "[{\"role\": \"user\", \"content\": null}]"), DT_ERR_DATA);
    says("message 0: content: expected a text, found null");
    assert_int_equal(parse(&m, "[{\"role\": \"user\", \"content\": [{\"type\": \"video\", \"video\": \"a\"}]}]"),
                     DT_ERR_DATA);
    says("found type video");
    dt_messages_free(&m);
    dt_error_clear();
}

/* Thoughts of the last answer are trained on in the template's form; the block for empty thoughts is not. */
static void thoughts_are_targets(void **state)
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
        assert_int_equal(dt_chat_render(c, m, 2, 0, &p), DT_OK);
        assert_string_equal(strstr(shown(&p, true), "assistant\n") + 10, cases[i].shown);
        dt_pieces_free(&p);
        dt_chat_close(c);
    }
}

/* Open what the fake tokenizer has when this is its own template. */
static dt_err open_with(const char *jinja, dt_chat **c)
{
    static dt_tokenizer t; /* the template keeps it */
    t = fake;
    t.info.directory = "models/x";
    t.info.chat_template = jinja;
    t.info.chat_template_file = "tokenizer_config.json";
    dt_error_clear();
    return dt_chat_open(c, "auto", &t);
}

static void templates_are_recognised(void **state)
{
    json_t *value;
    const char *name;
    char source[128];
    dt_chat *c;
    json_object_foreach(all, name, value)
    {
        assert_int_equal(open_with(json_string_value(value), &c), DT_OK);
        assert_string_equal(dt_chat_name(c), name);
        snprintf(source, sizeof source, "%s (models/x/tokenizer_config.json)", name);
        assert_string_equal(dt_chat_source(c), source);
        dt_chat_close(c);
    }
    assert_int_equal(dt_chat_open(&c, "auto", &fake), DT_OK);
    assert_string_equal(dt_chat_source(c), "plain (fake has no chat template)");
    dt_chat_close(c);
    assert_int_equal(dt_chat_open(&c, "chatml", &fake), DT_OK);
    assert_string_equal(dt_chat_source(c), "chatml (by name)");
    dt_chat_close(c);
    assert_int_equal(dt_chat_open(&c, "wizard", &fake), DT_ERR_USAGE);
    says("qwen2.5");
    says("wizard");
    dt_error_clear();
}

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

/* A text of two answers that the table writes, for comparing what an edit was taken for. */
static char *said_by(const dt_chat *c)
{
    const dt_message m[] = {{DT_ROLE_USER, " q", 2, 0}, {DT_ROLE_ASSISTANT, "x", 1, 0}, {DT_ROLE_USER, "r", 1, 0}};
    dt_pieces p = {0};
    assert_int_equal(dt_chat_render(c, m, 3, DT_CHAT_GENERATE, &p), DT_OK);
    char *text = strdup(shown(&p, false));
    dt_pieces_free(&p);
    return text;
}

/* An edit that changes the text of usual conversations is refused, or is another template that writes just this. One
 * that changes a kind of message only makes that kind refused. */
static void edited_templates_are_not_taken_for_the_original(void **state)
{
    json_t *edits = read_json("tests/data/chat/edited.json"), *edit;
    size_t i;
    int n_refused = 0;
    json_array_foreach(edits, i, edit)
    {
        const char *name, *from, *to, *kind = NULL;
        assert_int_equal(json_unpack(edit, "[sssn]", &name, &from, &to),
                         json_is_null(json_array_get(edit, 3)) ? 0 : -1);
        assert_int_equal(json_unpack(edit, "[sss]", &name, &from, &to), 0);
        kind = json_string_value(json_array_get(edit, 3));
        char *jinja = replaced(published(name), from, to);
        dt_chat *c, *original;
        const dt_err err = open_with(jinja, &c);
        if (err != DT_OK) {
            n_refused++;
            assert_int_equal(err, DT_ERR_USAGE);
            says("models/x");
            assert_true(!kind || strstr(kind, "basic"));
        } else if (kind) {
            assert_true(c->refused & (strstr(kind, "tool") ? DT_KIND_TOOL : DT_KIND_THINK));
        } else { /* default system messages, and templates that differ by the edit */
            assert_int_equal(dt_chat_open(&original, name, &fake), DT_OK);
            char *now = said_by(c), *before = said_by(original);
            if (strcmp(now, before) == 0)
                print_message("%s, %s -> %s is taken for %s\n", name, from, to, dt_chat_name(c));
            assert_string_not_equal(now, before);
            free(now);
            free(before);
            dt_chat_close(original);
        }
        dt_chat_close(c);
        free(jinja);
    }
    assert_true(n_refused > 200);
    json_decref(edits);
}

/* What shows only in long conversations, with a word of the template in the last question or in the system message, or
 * with another named token than BOS and EOS. */
static void rare_differences_are_found(void **state)
{
    static const char *const edits[][2] = {
        {"in messages %}", "in messages[-200:] %}"},
        {"in messages %}", "in messages[:12 * 11] %}"},
        {"assistant\n' }}", "assistant\n' }}{% if messages[-1].content.endswith('/no_think') %}{{ "
                            "'<think>\n\n</think>\n\n' }}{% endif %}"},
        {"assistant\n' }}", "assistant\n' }}{% if '/no_think' in messages[0].content and messages[0].role == 'system' "
                            "%}{{ '<think>\n\n</think>\n\n' }}{% endif %}"},
        {"message['content'] +", "(message['content'] + '!' if message['role'] == 'system' and "
                                 "message['content'].startswith('You are') else message['content']) +"},
        {"{% if add_generation_prompt", "{{ pad_token }}{% if add_generation_prompt"},
    };
    json_t *named = json_pack("{s:s}", "pad_token", "<pad>");
    dt_tokenizer t = fake;
    dt_chat *c;
    t.info.directory = "models/x";
    t.info.named = named;
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        char *jinja = replaced(published("chatml"), edits[i][0], edits[i][1]);
        t.info.chat_template = jinja;
        if (dt_chat_open(&c, "auto", &t) != DT_ERR_USAGE) fail_msg("%s is taken for %s", edits[i][1], dt_chat_name(c));
        free(jinja);
    }
    dt_error_clear();
    json_decref(named);
}

static void a_template_that_changes_the_marks_of_thoughts_is_refused_where_they_are(void **state)
{
    const dt_message m = {.role = DT_ROLE_USER, .text = "<think>q", .nbytes = 8};
    char *jinja = replaced(published("chatml"), "message['content'] +", "message['content'].replace('<think>', '') +");
    dt_chat *c;
    assert_int_equal(open_with(jinja, &c), DT_OK);
    assert_int_equal(render(c, &m, 1, 0), DT_ERR_DATA);
    says("(<think>) outside answers");
    dt_chat_close(c);
    dt_error_clear();
    free(jinja);
}

/* The message shows where the texts part. A template that cannot be evaluated says which line. */
static void a_refused_template_says_where_it_differs(void **state)
{
    static const struct {
        const char *jinja, *says;
    } cases[] = {
        {"{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
         "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
         "The nearest is chatml, but for a question the file writes \"...start|>user\\nHello?<|im_end|>"},
        {"{{ messages }}", "none of dtrain's templates"},
        {"{% for m in messages %}\n{{ m.content | zap }}{% endfor %}", "line 2: unknown or unsupported filter zap"},
        {"{{ raise_exception('never') }}", "it refuses a question; choose a template"},
        {"{% if messages | length > 3 %}{{ raise_exception('too long') }}{% endif %}{% for m in messages %}<|im_start|>"
         "{{ m.role + '\n' + m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
         "{% endif %}",
         "it refuses"},
    };
    dt_chat *c;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(open_with(cases[i].jinja, &c), DT_ERR_USAGE);
        says(cases[i].says);
        assert_null(c);
    }
    dt_error_clear();
}

/* Kinds of messages that the tokenizer's own template writes otherwise are refused, and only with auto. */
static void kinds_that_differ_are_refused(void **state)
{
    static const struct {
        const char *name;
        dt_message message[3];
        unsigned kind;
        const char *says;
    } cases[] = {
        {"chatml", {{DT_ROLE_TOOL, "r", 1, 0}}, 0, NULL},
        {"chatml", {{DT_ROLE_SYSTEM, "d", 1, 0, .developer = true}}, DT_KIND_DEVELOPER, "messages of role developer"},
        {"chatml", {{DT_ROLE_USER, "q", 1, 0}, {DT_ROLE_USER, "r", 1, 0}}, 0, NULL},
        {"llama-3.1", {{DT_ROLE_USER, "q", 1, 0}, {DT_ROLE_TOOL, "r", 1, 0}}, DT_KIND_TOOL, "message 1: "},
        {"llama-3.1",
         {{DT_ROLE_USER, "q", 1, 0}, {DT_ROLE_SYSTEM, "s", 1, 0}},
         DT_KIND_LATER_SYSTEM,
         "after the first"},
        {"mixtral", {{DT_ROLE_SYSTEM, "s", 1, 0}, {DT_ROLE_USER, "q", 1, 0}}, DT_KIND_SYSTEM, "system messages"},
        {"mixtral", {{DT_ROLE_USER, "q", 1, 0}, {DT_ROLE_USER, "r", 1, 0}}, DT_KIND_ROW, "do not alternate"},
        {"mixtral", {{DT_ROLE_USER, "q", 1, 0}, {DT_ROLE_ASSISTANT, "r", 1, 0}, {DT_ROLE_USER, "s", 1, 0}}, 0, NULL},
        {"qwen3-2507", {{DT_ROLE_USER, "q", 1, 0}, {DT_ROLE_ASSISTANT, "<think>a</think>b", 17, 0}}, 0, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_chat *c;
        int n = 1;
        while (n < 3 && cases[i].message[n].text) n++;
        assert_int_equal(open_with(published(cases[i].name), &c), DT_OK);
        assert_int_equal(render(c, cases[i].message, n, 0), cases[i].kind ? DT_ERR_DATA : DT_OK);
        assert_true((c->refused & cases[i].kind) == cases[i].kind);
        if (cases[i].says) says(cases[i].says);
        dt_chat_close(c);
        dt_error_clear();
        assert_int_equal(dt_chat_open(&c, cases[i].name, &fake), DT_OK);
        assert_int_equal(render(c, cases[i].message, n, 0), DT_OK);
        dt_chat_close(c);
    }
}

/* A template that ignores reasoning_content is not used for records with that field; Qwen3's own reads it. */
static void thoughts_of_a_field_are_refused_where_the_template_ignores_them(void **state)
{
    const dt_message m[] = {{DT_ROLE_USER, "q", 1, 0},
                            {DT_ROLE_ASSISTANT, "a", 1, 0, .thoughts = "why", .n_thoughts = 3, .thoughts_key = "key"}};
    const char *ignores = published("qwen3");
    char *reads = replaced(ignores, "{%- if '</think>' in content %}",
                           "{%- if message.reasoning_content is string %}{%- set reasoning_content = "
                           "message.reasoning_content %}{%- elif '</think>' in content %}");
    assert_string_not_equal(reads, ignores);
    for (int k = 0; k < 2; k++) {
        dt_chat *c;
        assert_int_equal(open_with(k ? ignores : reads, &c), DT_OK);
        assert_string_equal(dt_chat_name(c), "qwen3");
        assert_int_equal(c->refused & DT_KIND_THOUGHTS, k ? DT_KIND_THOUGHTS : 0);
        assert_int_equal(render(c, m, 2, 0), k ? DT_ERR_DATA : DT_OK);
        if (k) says("message 1: ");
        if (k) says("(reasoning_content)");
        dt_error_clear();
        dt_chat_close(c);
    }
    free(reads);
}

/* A default system message of the template's own belongs to it, and its spec carries it. */
static void a_default_system_message_is_adopted(void **state)
{
    static const char jinja[] =
        "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\nYou are "
        "\"Small\".<|im_end|>\n"
        "{% endif %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    const dt_message m = {DT_ROLE_USER, "q", 1, 0};
    dt_chat *c, *again;
    dt_pieces p = {0};
    char *spec;
    assert_int_equal(open_with(jinja, &c), DT_OK);
    assert_string_equal(dt_chat_name(c), "chatml");
    assert_int_equal(dt_chat_spec(c, &spec), DT_OK);
    assert_int_equal(dt_chat_open(&again, spec, &fake), DT_OK);
    assert_int_equal(dt_chat_render(again, &m, 1, 0, &p), DT_OK);
    assert_string_equal(shown(&p, false),
                        "<|im_start|>system\nYou are \"Small\".<|im_end|>\n<|im_start|>user\nq<|im_end|>\n");
    free(spec);
    dt_pieces_free(&p);
    dt_chat_close(again);
    dt_chat_close(c);
}

/* Llama 3.2 writes the date of the day: it is Llama 3.1's on 26 July 2024, and an export does not keep it. */
static void a_template_with_the_date_is_one_of_a_fixed_day(void **state)
{
    char *jinja = replaced(published("llama-3.1"), "'26 Jul 2024'", "strftime_now('%d %b %Y')");
    dt_chat *c;
    assert_int_equal(open_with(jinja, &c), DT_OK);
    assert_string_equal(dt_chat_name(c), "llama-3.1");
    assert_true(c->dated);
    dt_chat_close(c);
    free(jinja);
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
    assert_int_equal(dt_chat_render(c, m, 4, 0, &p), DT_OK);
    assert_string_equal(shown(&p, true), want);
    dt_pieces_free(&p);
    dt_chat_close(c);
}

static void targets_are_the_words_and_what_ends_them(void **state)
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

static void tokens_of_a_template_are_ids_where_there_are_any(void **state)
{
    dt_chat *c;
    dt_tokenizer *bytes;
    dt_pieces p = {0};
    const dt_message m = {DT_ROLE_USER, "q", 1, 0};
    assert_int_equal(dt_chat_open(&c, "chatml", &fake), DT_OK);
    assert_int_equal(dt_chat_end_token(c), 256 + 3);
    assert_int_equal(dt_chat_render(c, &m, 1, 0, &p), DT_OK);
    assert_true(!p.span[0].text && p.span[0].id == 256 + 2);
    dt_chat_close(c);
    p.n = 0;
    assert_int_equal(dt_tokenizer_open(&bytes, "bytes"), DT_OK);
    assert_int_equal(dt_chat_open(&c, "chatml", bytes), DT_OK);
    assert_int_equal(dt_chat_end_token(c), -1);
    assert_int_equal(dt_chat_render(c, &m, 1, 0, &p), DT_OK);
    assert_true(p.span[0].text && memcmp(p.span[0].text, "<|im_start|>user\n", 17) == 0);
    dt_chat_close(c);
    dt_pieces_free(&p);
    dt_tokenizer_close(bytes);
}

static void ids_of(const char *name, dt_tokenizer *t, dt_ids *ids)
{
    dt_chat *c;
    dt_encoder *e;
    const dt_message m = {DT_ROLE_USER, "q", 1, 0};
    ids->n = 0;
    assert_int_equal(dt_encoder_open(&e, t), DT_OK);
    assert_int_equal(dt_chat_open(&c, name, t), DT_OK);
    assert_int_equal(dt_chat_encode(c, e, &m, 1, DT_CHAT_GENERATE, ids), DT_OK);
    dt_chat_close(c);
    dt_encoder_close(e);
}

static void bos_stands_at_the_start_once(void **state)
{
    static const char *const names[] = {"llama-3", "llama-2", "mistral", "mistral-v7", "plain", "chatml", "vicuna"};
    dt_ids ids = {0};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        ids_of(names[i], &wrapping, &ids);
        assert_int_equal(ids.id[0], BOS);
        for (size_t k = 1; k < ids.n; k++) assert_true(ids.id[k] != BOS && ids.id[k] != EOS);
    }
    ids_of("chatml", &fake, &ids); /* neither the template nor the tokenizer wants one */
    assert_int_equal(ids.id[0], 256 + 2);
    free(ids.id);
}

static void a_text_that_begins_with_bos_gets_no_other(void **state)
{
    dt_encoder *e;
    dt_wrap wrap;
    dt_ids ids = {0};
    dt_pieces p = {0};
    bool parted;
    assert_int_equal(dt_wrap_probe(&wrap, &wrapping), DT_OK);
    assert_true(wrap.n_before == 1 && wrap.n_after == 1);
    assert_int_equal(dt_encoder_open(&e, &wrapping), DT_OK);
    assert_int_equal(dt_pieces_text(&p, "<s>q", 4, true), DT_OK);
    assert_int_equal(dt_pieces_encode(e, &wrapping, &p, &wrap, &ids, NULL, &parted), DT_OK);
    /* this tokenizer recognises no tokens in texts: no BOS was added is what is looked at */
    assert_int_equal(ids.id[0], '<');
    dt_encoder_close(e);
    dt_pieces_free(&p);
    free(ids.id);
}

static void a_token_across_the_border_parts_the_sides(void **state)
{
    dt_encoder *e;
    dt_ids ids = {0};
    uint8_t *mask = NULL;
    dt_pieces p = {0};
    bool parted;
    assert_int_equal(dt_encoder_open(&e, &fake), DT_OK);
    assert_int_equal(dt_pieces_text(&p, "xa", 2, false), DT_OK);
    assert_int_equal(dt_pieces_text(&p, "bab", 3, true), DT_OK);
    assert_int_equal(dt_pieces_token(&p, EOS, true), DT_OK);
    assert_int_equal(dt_pieces_encode(e, &fake, &p, NULL, &ids, &mask, &parted), DT_OK);
    assert_true(parted);
    const int32_t want[] = {'x', 'a', 'b', AB, EOS};
    const uint8_t want_mask[] = {0, 0, 1, 1, 1};
    assert_int_equal(ids.n, 5);
    assert_memory_equal(ids.id, want, sizeof want);
    assert_memory_equal(mask, want_mask, sizeof want_mask);

    p.n = ids.n = 0; /* where both sides are of one kind, the token stays */
    assert_int_equal(dt_pieces_text(&p, "xa", 2, true), DT_OK);
    assert_int_equal(dt_pieces_text(&p, "b", 1, true), DT_OK);
    assert_int_equal(dt_pieces_encode(e, &fake, &p, NULL, &ids, &mask, &parted), DT_OK);
    assert_true(!parted && ids.n == 2 && ids.id[1] == AB);
    dt_encoder_close(e);
    dt_pieces_free(&p);
    free(mask);
    free(ids.id);
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

static void a_template_can_come_from_a_file(void **state)
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
    assert_string_equal(dt_chat_name(c), "mine");
    assert_int_equal(dt_chat_end_token(c), EOS);
    assert_int_equal(dt_chat_render(c, m, 2, 0, &p), DT_OK);
    assert_string_equal(shown(&p, true), "<s>Q(S) qA{:x</s>|}");
    dt_pieces_free(&p);
    dt_chat_close(c);
}

static void bad_templates_say_what_is_wrong(void **state)
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
    assert_int_equal(dt_chat_open(&c, path, &fake), DT_ERR_DATA);
    dt_error_clear();
}

static void a_system_message_without_its_place_is_an_error(void **state)
{
    dt_chat *c;
    const dt_message m[] = {{DT_ROLE_USER, "q", 1, 0}, {DT_ROLE_SYSTEM, "s", 1, 0}, {DT_ROLE_ASSISTANT, "x", 1, 0}};
    assert_int_equal(dt_chat_open(&c, "llama-2", &fake), DT_OK);
    assert_int_equal(render(c, m, 3, 0), DT_ERR_DATA);
    says("message 1");
    dt_error_clear();
    dt_chat_close(c);
}

static void contents_in_parts_are_joined(void **state)
{
    json_t *list = json_loads(
        "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\\u0000\"}, {\"text\": \"b\"}]}]",
        JSON_ALLOW_NUL, NULL);
    dt_messages m = {0};
    assert_int_equal(dt_messages_parse(&m, list, "messages", "role", "content"), DT_OK);
    assert_true(m.n == 1 && m.item[0].nbytes == 3 && memcmp(m.item[0].text, "a\0b", 3) == 0);
    dt_messages_clear(&m);
    dt_messages_free(&m);
    json_decref(list);
}

/* As bytes; with DTRAIN_CHAT_WRITE the file is written first. tests/check_jinja.py holds the files against
 * transformers. */
static void same_as_kept(const char *name, const char *jinja)
{
    char kept_path[256];
    static char kept[1 << 16];
    snprintf(kept_path, sizeof kept_path, "tests/data/chat/written/%s.jinja", name);
    FILE *f = getenv("DTRAIN_CHAT_WRITE") ? fopen(kept_path, "we") : NULL;
    if (f) assert_int_equal(fputs(jinja, f) < 0 || fclose(f) != 0, 0);
    f = fopen(kept_path, "re");
    assert_non_null(f);
    kept[fread(kept, 1, sizeof kept - 1, f)] = '\0';
    fclose(f);
    if (strcmp(kept, jinja) != 0) print_message("%s: found\n%s\n", kept_path, jinja);
    assert_string_equal(kept, jinja);
}

static void comes_back(const char *jinja, const dt_tokenizer *t, const char *spec)
{
    dt_tokenizer again = *t;
    char *found;
    dt_chat *c;
    again.info.chat_template = jinja;
    assert_int_equal(dt_chat_open(&c, "auto", &again), DT_OK);
    assert_int_equal(dt_chat_spec(c, &found), DT_OK);
    assert_string_equal(found, spec);
    free(found);
    dt_chat_close(c);
}

/* Without its first line the file is a template like any other, and must write what the table writes, for all kinds of
 * messages. */
static void evaluates_to_the_same(const char *jinja, const char *name)
{
    dt_chat *c;
    assert_int_equal(open_with(strchr(jinja, '\n') + 1, &c), DT_OK);
    assert_string_equal(dt_chat_name(c), name);
    assert_int_equal(c->refused, 0);
    dt_chat_close(c);
}

/* Written as Jinja, a template is the file that is kept, and read back it is the same. Closes it. */
static void is_written(dt_chat *c, const char *image, const char *kept, const dt_tokenizer *t, bool named)
{
    char *jinja, *spec;
    assert_int_equal(dt_chat_spec(c, &spec), DT_OK);
    assert_int_equal(dt_chat_jinja(c, image, &jinja), DT_OK);
    same_as_kept(kept, jinja);
    comes_back(jinja, t, spec);
    if (named) assert_string_equal(spec, kept);
    if (named) evaluates_to_the_same(jinja, kept);
    free(jinja);
    free(spec);
    dt_chat_close(c);
}

static void jinja_reproduces_every_template(void **state)
{
    const char *name, *about;
    dt_chat *c;
    for (int i = 0; dt_chat_named(i, &name, &about); i++) {
        assert_int_equal(dt_chat_open(&c, name, &fake), DT_OK);
        is_written(c, NULL, name, &fake, true);
    }
    assert_int_equal(open_file("{\"name\": \"mine #}\", \"begin\": \"'\\\\{% #}\\u001f\", \"trim\": true, "
                               "\"default_system\": \"it's\\n\", \"system_place\": \"last_user\", "
                               "\"system\": {\"after\": \" | \"}, \"user\": {\"open\": \"{{\", \"close\": \"}}\"}, "
                               "\"think_off\": \"-\", \"assistant\": {\"lead\": \":\", \"end\": \"{eos}\"}}",
                               &c),
                     DT_OK);
    unlink(path);
    is_written(c, NULL, "own", &fake, false);
    /* apply_chat_template lets the tokenizer put no BOS, so the template writes it */
    assert_int_equal(dt_chat_open(&c, "plain", &wrapping), DT_OK);
    is_written(c, NULL, "plain-wrapped", &wrapping, false);
}

/* Of a vision-language model: parts of type image are written, too, as dt_messages_read places them. What the file
 * says of images is read back with it, or it would count as edited: no marks tell a template of one's own. */
static void jinja_writes_images(void **state)
{
    dt_chat *c;
    assert_int_equal(dt_chat_open(&c, "qwen3", &fake), DT_OK); /* which looks at contents twice */
    is_written(c, "<image>", "qwen3-images", &fake, false);
    assert_int_equal(
        open_file("{\"name\": \"q\", \"user\": {\"prefix\": \"Q: \"}, \"assistant\": {\"end\": \"{eos}\"}}", &c),
        DT_OK);
    is_written(c, "<an 'image\\>", "own-images", &fake, false);
    unlink(path);
}

/* The first line is a claim: a file that was edited is compared as others are. */
static void the_claimed_origin_of_edited_jinja_is_not_trusted(void **state)
{
    char edited[2048];
    dt_chat *c;
    const char *first[] = {"plain", "qwen3", "/tmp/template.json", "{\"user\": {}, \"assistant\": {\"end\": \"x\"}}",
                           "{"};
    for (size_t i = 0; i < sizeof first / sizeof first[0]; i++) {
        snprintf(edited, sizeof edited, "{#- Written by dtrain. chat_template = %s #}\n%s", first[i],
                 published("chatml"));
        assert_int_equal(open_with(edited, &c), DT_OK);
        assert_string_equal(dt_chat_name(c), "chatml");
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
static void a_directory_s_template_is_found(void **state)
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
    snprintf(where, sizeof where, "qwen2 (%s/chat_template.json)", folder);
    found_in(folder, where);
    write_in(folder, "tokenizer_config.json", text[2]);
    found_in(folder,
             "has the chat templates rag, tool_use, but none is named default: choose one of dtrain's templates");
    write_in(folder, "tokenizer_config.json", text[1]);
    snprintf(where, sizeof where, "qwen3 (%s/tokenizer_config.json)", folder);
    found_in(folder, where);
    snprintf(more, sizeof more, "%s/additional_chat_templates", folder);
    assert_int_equal(mkdir(more, 0700), 0);
    write_in(more, "rag.jinja", qwen2);
    found_in(folder, "has the chat templates rag, but none is named default");
    write_in(folder, "chat_template.jinja", chatml);
    snprintf(where, sizeof where, "chatml (%s/chat_template.jinja)", folder);
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

/* A template that writes the names of messages is used, and messages with a name are refused: dtrain writes none. */
static void names_that_a_template_writes_are_refused(void **state)
{
    const char *chatml = published("chatml");
    static const struct {
        const char *from, *to;
        unsigned refused;
    } edits[] = {{"", "", 0},
                 {"message['role'] + '", "message['role'] + (' ' + message.name if message.name else '') + '",
                  DT_KIND_NAME | DT_KIND_SYSTEM_NAME | DT_KIND_TOOL_NAME},
                 {"message['role'] + '",
                  "message['role'] + (message['name'] if message['role'] == 'user' and 'name' in message else '') + '",
                  DT_KIND_NAME}};
    const dt_message m[] = {{.role = DT_ROLE_USER, .text = "q", .nbytes = 1, .named = true}};
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        char *jinja = i ? replaced(chatml, edits[i].from, edits[i].to) : strdup(chatml);
        dt_chat *c;
        assert_int_equal(open_with(jinja, &c), DT_OK);
        assert_string_equal(dt_chat_name(c), "chatml");
        assert_int_equal(c->refused, edits[i].refused | DT_KIND_DEVELOPER);
        assert_int_equal(render(c, m, 1, DT_CHAT_GENERATE), i ? DT_ERR_DATA : DT_OK);
        assert_true(!i ||
                    strstr(dt_error_message(), "and dtrain's chatml write messages with the field name differently"));
        dt_error_clear();
        dt_chat_close(c);
        free(jinja);
    }
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
static void the_own_template_decides_on_bos(void **state)
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
        const dt_message m = {DT_ROLE_USER, "q", 1, 0};
        t.info.chat_template = cases[i].own ? published(cases[i].own) : NULL;
        assert_int_equal(dt_encoder_open(&e, &t), DT_OK);
        assert_int_equal(dt_chat_open(&c, cases[i].name, &t), DT_OK);
        if (cases[i].images) dt_chat_for_images(c);
        ids.n = 0;
        assert_int_equal(dt_chat_encode(c, e, &m, 1, DT_CHAT_GENERATE, &ids), DT_OK);
        assert_int_equal(ids.id[0] == BOS, cases[i].bos);
        for (size_t k = 1; k < ids.n; k++) assert_true(ids.id[k] != BOS && ids.id[k] != EOS);
        dt_chat_close(c);
        dt_encoder_close(e);
    }
    free(ids.id);
}

/* An export writes what training had: BOS where a template by name got it from the tokenizer, and none where the
 * tokenizer's own template writes none. */
static void an_exported_template_writes_bos(void **state)
{
    const char *chatml = published("chatml");
    assert_null(exported("smollm", "auto", -1, chatml));
    assert_null(exported("llama3", "auto", -1, chatml));
    assert_null(exported("llama3", "chatml", -1, chatml));
    for (int images = 0; images < 2; images++) {
        char *written = exported("llama3", images ? "auto" : "plain", images ? 1 : -1, chatml);
        assert_true(written && strstr(written, "<|begin_of_text|>"));
        free(written);
    }
}

int main(void)
{
    snprintf(path, sizeof path, "/tmp/dtrain-test-chat-%d.json", (int)getpid());
    all = read_json("tests/data/chat/jinja.json");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates_write_what_transformers_writes),
        cmocka_unit_test(thoughts_of_a_field_are_written_as_by_transformers),
        cmocka_unit_test(a_template_without_thoughts_refuses_them),
        cmocka_unit_test(fields_that_change_a_conversation_are_refused),
        cmocka_unit_test(thoughts_are_targets),
        cmocka_unit_test(templates_are_recognised),
        cmocka_unit_test(edited_templates_are_not_taken_for_the_original),
        cmocka_unit_test(rare_differences_are_found),
        cmocka_unit_test(a_template_that_changes_the_marks_of_thoughts_is_refused_where_they_are),
        cmocka_unit_test(a_refused_template_says_where_it_differs),
        cmocka_unit_test(kinds_that_differ_are_refused),
        cmocka_unit_test(thoughts_of_a_field_are_refused_where_the_template_ignores_them),
        cmocka_unit_test(a_default_system_message_is_adopted),
        cmocka_unit_test(a_template_with_the_date_is_one_of_a_fixed_day),
        cmocka_unit_test(targets_are_the_words_and_what_ends_them),
        cmocka_unit_test(tokens_of_a_template_are_ids_where_there_are_any),
        cmocka_unit_test(bos_stands_at_the_start_once),
        cmocka_unit_test(a_text_that_begins_with_bos_gets_no_other),
        cmocka_unit_test(a_token_across_the_border_parts_the_sides),
        cmocka_unit_test(a_template_can_come_from_a_file),
        cmocka_unit_test(bad_templates_say_what_is_wrong),
        cmocka_unit_test(a_system_message_without_its_place_is_an_error),
        cmocka_unit_test(contents_in_parts_are_joined),
        cmocka_unit_test(jinja_reproduces_every_template),
        cmocka_unit_test(jinja_writes_images),
        cmocka_unit_test(the_claimed_origin_of_edited_jinja_is_not_trusted),
        cmocka_unit_test(a_directory_s_template_is_found),
        cmocka_unit_test(names_that_a_template_writes_are_refused),
        cmocka_unit_test(the_own_template_decides_on_bos),
        cmocka_unit_test(an_exported_template_writes_bos),
    };
    const int n_failed = cmocka_run_group_tests_name("chat", tests, NULL, NULL);
    json_decref(all);
    return n_failed;
}
