/* prompts.c - from texts to token ids. */
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

static dt_err append_id(dt_ids *p, int64_t id)
{
    DT_TRY(dt_ids_reserve(p, 1));
    p->id[p->n++] = (int32_t)id;
    return DT_OK;
}

static dt_err parse_ids(dt_ids *p, const place *at, const char *text, size_t nbytes)
{
    char head[512];
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
        DT_TRY(append_id(p, id));
    }
    return DT_OK;
}

static dt_err encode(dt_ids *p, const place *at, const char *text, size_t nbytes, dt_encoder *encoder)
{
    if (!encoder) return parse_ids(p, at, text, nbytes);
    return dt_encode(encoder, &(dt_span){.text = text, .nbytes = nbytes}, 1, DT_ENCODE_WRAP, p, NULL);
}

static dt_err from_json(dt_ids *p, const place *at, const char *text, size_t nbytes, dt_encoder *encoder)
{
    char head[512];
    json_error_t error;
    json_t *object = json_loadb(text, nbytes, JSON_ALLOW_NUL, &error);
    DT_CHECK(object, DT_ERR_DATA, "%s: expected a JSON object: %s", where(at, head, sizeof head), error.text);
    const json_t *prompt = json_object_get(object, "prompt"), *ids = json_object_get(object, "ids");
    dt_err err = DT_OK;
    if (json_is_string(prompt)) {
        err = encode(p, at, json_string_value(prompt), json_string_length(prompt), encoder);
    } else if (json_is_array(ids)) {
        for (size_t i = 0; err == DT_OK && i < json_array_size(ids); i++) {
            const json_t *id = json_array_get(ids, i);
            if (json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) <= INT32_MAX)
                err = append_id(p, json_integer_value(id));
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
                         dt_encoder *encoder, int64_t vocab_size)
{
    char head[512];
    dt_ids *grown = realloc(ps->prompt, ((size_t)ps->n + 1) * sizeof *grown);
    DT_CHECK(grown, DT_ERR_MEMORY, "out of memory for %d prompts", ps->n + 1);
    ps->prompt = grown;
    dt_ids *p = &ps->prompt[ps->n++];
    *p = (dt_ids){0};
    DT_TRY(format == DT_PROMPT_JSONL ? from_json(p, at, text, nbytes, encoder) : encode(p, at, text, nbytes, encoder));
    for (size_t i = 0; i < p->n; i++)
        DT_CHECK(p->id[i] >= 0 && p->id[i] < vocab_size, DT_ERR_DATA,
                 "%s: token %zu is %" PRId32 ", but the model's vocabulary has %" PRId64 " tokens", where(at, head, sizeof head),
                 i, p->id[i], vocab_size);
    return DT_OK;
}

dt_err dt_prompts_parse(dt_prompts *p, const char *name, const char *text, size_t nbytes, dt_prompt_format format,
                        dt_encoder *encoder, int64_t vocab_size)
{
    *p = (dt_prompts){0};
    if (format == DT_PROMPT_WHOLE) return add_prompt(p, &(place){name, 0}, text, nbytes, format, encoder, vocab_size);
    int64_t line = 0;
    for (size_t i = 0; i < nbytes; i++) {
        const char *newline = memchr(text + i, '\n', nbytes - i);
        size_t len = newline ? (size_t)(newline - text) - i : nbytes - i;
        const size_t next = i + len;
        if (len > 0 && text[i + len - 1] == '\r') len--;
        line++;
        if (len > 0) DT_TRY(add_prompt(p, &(place){name, line}, text + i, len, format, encoder, vocab_size));
        i = next;
    }
    DT_CHECK(p->n > 0, DT_ERR_DATA, "%s: expected prompts, found none", name);
    return DT_OK;
}

void dt_prompts_free(dt_prompts *p)
{
    for (int i = 0; i < p->n; i++) free(p->prompt[i].id);
    free(p->prompt);
    *p = (dt_prompts){0};
}
