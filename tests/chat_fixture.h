/* chat_fixture.h - a tokenizer with the tokens of all families: bytes, tokens from 256 on, and "ab" as one token. */
#ifndef CHAT_FIXTURE_H
#define CHAT_FIXTURE_H

#include "cases.h"
#include <sys/stat.h>
#include "../src/tokenizer/tokenizer_ops.h"
#include "dtrain/chat/chat.h"

#pragma GCC diagnostic ignored "-Wmissing-field-initializers" /* messages omit default fields */
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-variable"

static const char *const tokens[] = {
    "<s>",          "</s>",   "<|im_start|>", "<|im_end|>",      "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>",   "[INST]", "[/INST]",      "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",    "<start_of_turn>",
    "<end_of_turn>"};
enum { N_TOKENS = sizeof tokens / sizeof tokens[0], BOS = 256, EOS = 257, IM_START, IM_END, AB = 256 + N_TOKENS };

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
static int32_t token_here(const char *text, size_t n)
{
    for (int i = 0; i < N_TOKENS; i++)
        if (n >= strlen(tokens[i]) && memcmp(text, tokens[i], strlen(tokens[i])) == 0) return 256 + i;
    return -1;
}
/* Tokens are recognised in a text. "ab" is one token, also where a border of pieces lies in it: after a, before b of
 * the next piece. */
static dt_err fake_encode(dt_encoder *e, const dt_span *s, int n, unsigned flags, dt_ids *ids, int64_t *ends)
{
    const bool wraps = e->tokenizer->impl != NULL;
    bool open = false; /* the last id was made of an a */
    if (wraps && flags & DT_ENCODE_WRAP) fake_put(ids, BOS);
    for (int i = 0; i < n; i++) {
        if (!s[i].text) fake_put(ids, s[i].id);
        if (!s[i].text) open = false;
        for (size_t k = 0; s[i].text && k < s[i].nbytes; k++) {
            const int32_t token = token_here(s[i].text + k, s[i].nbytes - k);
            const bool joins = open && s[i].text[k] == 'b';
            if (joins) ids->id[ids->n - 1] = AB;
            if (joins && k == 0 && i > 0 && ends) ends[i - 1] = -1;
            if (!joins) fake_put(ids, token >= 0 ? token : (unsigned char)s[i].text[k]);
            open = !joins && s[i].text[k] == 'a';
            if (token >= 0) k += strlen(tokens[token - 256]) - 1;
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
    const dt_err err = dt_chat_render(c, m, n, NULL, flags, &p);
    dt_pieces_free(&p);
    return err;
}

/* A published template, by dtrain's name for it. */
static const char *published(const char *name)
{
    static json_t *all;
    if (!all) all = read_json("tests/data/chat/jinja.json");
    const char *text = json_string_value(json_object_get(all, name));
    assert_non_null(text);
    return text;
}

/* Opens a chat with a tokenizer's own template, which is stored in tokenizer_config.json. */
static dt_err open_template(const char *jinja, dt_chat **c)
{
    static dt_tokenizer t; /* the template keeps it */
    t = fake;
    t.info.directory = "models/x";
    t.info.chat_template = jinja;
    t.info.chat_template_file = "tokenizer_config.json";
    dt_error_clear();
    return dt_chat_open(c, "auto", &t);
}

static dt_chat *opened(const char *jinja)
{
    dt_chat *c;
    if (open_template(jinja, &c) != DT_OK) fail_msg("%s", dt_error_message());
    return c;
}

#endif
