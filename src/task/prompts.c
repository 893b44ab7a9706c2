/* prompts.c - from texts to token ids and back. */
#include "dtrain/generate.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ------------------------------------------------------------------------------------------------------- */

/* Where a prompt stands, for messages. */
typedef struct place {
    const char *name;
    int64_t line; /* 0: the text as a whole */
} place;

static const char *where(const place *at, char *out, size_t size)
{
    if (at->line > 0)
        snprintf(out, size, "%s:%" PRId64, at->name, at->line);
    else
        snprintf(out, size, "%s", at->name);
    return out;
}

static dt_err append_id(dt_prompt *p, size_t *cap, int64_t id)
{
    if (p->n_ids == *cap) {
        const size_t more = *cap ? 2 * *cap : 64;
        int32_t *ids = realloc(p->ids, more * sizeof *ids);
        DT_CHECK(ids, DT_ERR_MEMORY, "out of memory for a prompt of %zu tokens", more);
        p->ids = ids;
        *cap = more;
    }
    p->ids[p->n_ids++] = (int32_t)id;
    return DT_OK;
}

static dt_err parse_ids(dt_prompt *p, const place *at, const char *text, size_t nbytes)
{
    char head[512];
    size_t cap = 0;
    for (size_t i = 0; i < nbytes;) {
        if (strchr(" \t\r\n,", text[i]) && text[i]) {
            i++;
            continue;
        }
        int64_t id = 0;
        size_t first = i;
        for (; i < nbytes && text[i] >= '0' && text[i] <= '9' && id <= INT32_MAX; i++) id = 10 * id + (text[i] - '0');
        DT_CHECK(i > first && id <= INT32_MAX && (i == nbytes || (strchr(" \t\r\n,", text[i]) && text[i])), DT_ERR_DATA,
                 "%s: expected token ids separated by blanks, found '%.*s'", where(at, head, sizeof head),
                 (int)(nbytes - first < 20 ? nbytes - first : 20), text + first);
        DT_TRY(append_id(p, &cap, id));
    }
    return DT_OK;
}

static dt_err encode(dt_prompt *p, const place *at, const char *text, size_t nbytes, const dt_tokenizer *tok)
{
    size_t cap = 0;
    return tok ? dt_tokenizer_encode(tok, text, nbytes, &p->ids, &p->n_ids, &cap) : parse_ids(p, at, text, nbytes);
}

static dt_err from_json(dt_prompt *p, const place *at, const char *text, size_t nbytes, const dt_tokenizer *tok)
{
    char head[512];
    json_error_t error;
    json_t *object = json_loadb(text, nbytes, JSON_ALLOW_NUL, &error);
    DT_CHECK(object, DT_ERR_DATA, "%s: expected a JSON object: %s", where(at, head, sizeof head), error.text);
    const json_t *prompt = json_object_get(object, "prompt"), *ids = json_object_get(object, "ids");
    dt_err err = DT_OK;
    size_t cap = 0;
    if (json_is_string(prompt)) {
        err = encode(p, at, json_string_value(prompt), json_string_length(prompt), tok);
    } else if (json_is_array(ids)) {
        for (size_t i = 0; err == DT_OK && i < json_array_size(ids); i++) {
            const json_t *id = json_array_get(ids, i);
            if (json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) <= INT32_MAX)
                err = append_id(p, &cap, json_integer_value(id));
            else
                err = dt_fail(DT_ERR_DATA, "%s: ids[%zu]: expected a token id", where(at, head, sizeof head), i);
        }
    } else {
        err = dt_fail(DT_ERR_DATA, "%s: expected an object with \"prompt\" (a string) or \"ids\" (an array)",
                      where(at, head, sizeof head));
    }
    json_decref(object);
    return err;
}

static dt_err add_prompt(dt_prompts *ps, const place *at, const char *text, size_t nbytes, dt_prompt_format format,
                         const dt_tokenizer *tok, int64_t vocab_size)
{
    char head[512];
    dt_prompt *grown = realloc(ps->prompt, ((size_t)ps->n + 1) * sizeof *grown);
    DT_CHECK(grown, DT_ERR_MEMORY, "out of memory for %d prompts", ps->n + 1);
    ps->prompt = grown;
    dt_prompt *p = &ps->prompt[ps->n++];
    *p = (dt_prompt){0};
    DT_TRY(format == DT_PROMPT_JSONL ? from_json(p, at, text, nbytes, tok) : encode(p, at, text, nbytes, tok));
    for (size_t i = 0; i < p->n_ids; i++)
        DT_CHECK(p->ids[i] >= 0 && p->ids[i] < vocab_size, DT_ERR_DATA,
                 "%s: token %zu is %" PRId32 ", but the model's vocabulary has %" PRId64 " tokens", where(at, head, sizeof head),
                 i, p->ids[i], vocab_size);
    return DT_OK;
}

dt_err dt_prompts_parse(dt_prompts *p, const char *name, const char *text, size_t nbytes, dt_prompt_format format,
                        const dt_tokenizer *tok, int64_t vocab_size)
{
    *p = (dt_prompts){0};
    if (format == DT_PROMPT_WHOLE) return add_prompt(p, &(place){name, 0}, text, nbytes, format, tok, vocab_size);
    int64_t line = 0;
    for (size_t i = 0; i < nbytes; i++) {
        const char *newline = memchr(text + i, '\n', nbytes - i);
        size_t len = newline ? (size_t)(newline - text) - i : nbytes - i;
        const size_t next = i + len;
        if (len > 0 && text[i + len - 1] == '\r') len--;
        line++;
        if (len > 0) DT_TRY(add_prompt(p, &(place){name, line}, text + i, len, format, tok, vocab_size));
        i = next;
    }
    DT_CHECK(p->n > 0, DT_ERR_DATA, "%s: expected prompts, found none", name);
    return DT_OK;
}

void dt_prompts_free(dt_prompts *p)
{
    for (int i = 0; i < p->n; i++) free(p->prompt[i].ids);
    free(p->prompt);
    *p = (dt_prompts){0};
}

/* ---- writing ------------------------------------------------------------------------------------------------------- */

typedef struct text {
    char *bytes;
    size_t n, cap;
    bool failed;
} text;

static void append(text *t, const char *bytes, size_t n)
{
    if (t->failed) return;
    if (t->cap - t->n <= n) { /* one more for the 0 at the end */
        const size_t cap = 2 * (t->n + n) + 64;
        char *grown = realloc(t->bytes, cap);
        if (!grown) {
            t->failed = true;
            return;
        }
        t->bytes = grown;
        t->cap = cap;
    }
    if (n > 0) memcpy(t->bytes + t->n, bytes, n);
    t->n += n;
    t->bytes[t->n] = 0;
}

static char *finish(text *t, size_t *nbytes)
{
    append(t, "", 0);
    *nbytes = t->n;
    if (!t->failed) return t->bytes;
    free(t->bytes);
    return NULL;
}

char *dt_render_tokens(const dt_tokenizer *tok, const int32_t *ids, int64_t n, size_t *nbytes)
{
    text t = {0};
    for (int64_t i = 0; i < n; i++) {
        char number[32];
        if (tok && ids[i] >= 0 && ids[i] < dt_tokenizer_vocab_size(tok)) {
            size_t len;
            const char *bytes = dt_tokenizer_bytes(tok, ids[i], &len);
            append(&t, bytes, len);
        } else {
            const int len = snprintf(number, sizeof number, tok ? "<|%" PRId32 "|>" : i ? " %" PRId32 : "%" PRId32, ids[i]);
            append(&t, number, (size_t)len);
        }
    }
    return finish(&t, nbytes);
}

/* Length of the character that begins here, 0 when none does (RFC 3629: no overlong forms, no surrogates, up to U+10FFFF). */
static size_t utf8_length(const unsigned char *p, size_t n)
{
    const size_t len = p[0] < 0x80                   ? 1
                       : p[0] >= 0xc2 && p[0] < 0xe0 ? 2
                       : p[0] >= 0xe0 && p[0] < 0xf0 ? 3
                       : p[0] >= 0xf0 && p[0] < 0xf5 ? 4
                                                     : 0;
    if (len == 0 || len > n) return 0;
    for (size_t i = 1; i < len; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    const bool bad = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
                     (p[0] == 0xf4 && p[1] > 0x8f);
    return bad ? 0 : len;
}

char *dt_utf8_repair(const char *bytes, size_t nbytes, size_t *repaired_nbytes)
{
    text t = {0};
    for (size_t i = 0; i < nbytes;) {
        const size_t len = utf8_length((const unsigned char *)bytes + i, nbytes - i);
        if (len > 0)
            append(&t, bytes + i, len);
        else
            append(&t, "\xef\xbf\xbd", 3);
        i += len ? len : 1;
    }
    return finish(&t, repaired_nbytes);
}
