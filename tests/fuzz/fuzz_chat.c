/* fuzz_chat.c - any bytes as a chat template, a zero byte, and a record {messages, tools} or {conversations, tools}: it
 * is rendered with and without targets, or an error says why not, and both texts are equal. */
#include "dtrain/chat/chat.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) abort();
}

static size_t length_of(const dt_pieces *p)
{
    size_t n = 0;
    for (int i = 0; i < p->n; i++) n += p->span[i].text ? p->span[i].nbytes : 1;
    return n;
}

static void render(const dt_chat *c, const dt_messages *m)
{
    dt_pieces plain = {0}, taught = {0};
    const dt_err err = dt_chat_render(c, m->item, m->n, m->tools, 0, &plain);
    for (int i = 0; i < m->n; i++) m->item[i].learn = m->item[i].role == DT_ROLE_ASSISTANT ? DT_LEARN_CONTENT : 0;
    const dt_err again = dt_chat_render(c, m->item, m->n, m->tools, 0, &taught);
    must(err == DT_OK || again != DT_OK);
    if (again == DT_OK) must(length_of(&plain) == length_of(&taught));
    if (again != DT_OK) must(dt_error_message()[0] != '\0');
    dt_pieces_free(&plain);
    dt_pieces_free(&taught);
}

static void read_and_render(const dt_chat *c, const json_t *record)
{
    dt_messages m = {.image_text = "<image>"};
    const bool sharegpt = json_object_get(record, "conversations");
    const json_t *list = json_object_get(record, sharegpt ? "conversations" : "messages");
    dt_err err = dt_messages_parse(&m, list, "messages", sharegpt ? "from" : "role", sharegpt ? "value" : "content");
    if (err == DT_OK) err = dt_messages_take_tools(&m, record);
    if (err == DT_OK) err = dt_messages_fit(&m, c);
    if (err == DT_OK) render(c, &m);
    dt_messages_free(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *border = memchr(data, 0, size);
    const size_t n = border ? (size_t)(border - data) : size;
    dt_tokenizer *t;
    dt_chat *c = NULL;
    json_t *text = json_stringn((const char *)data, n), *pair = text ? json_pack("{s:o}", "jinja", text) : NULL,
           *record = NULL;
    char *spec = pair ? json_dumps(pair, JSON_COMPACT) : NULL;
    json_decref(pair);
    if (!spec) return 0; /* not UTF-8 */
    setenv("DTRAIN_LOG", "error", 0);
    dt_error_clear();
    must(dt_tokenizer_open(&t, "bytes") == DT_OK);
    if (dt_chat_open(&c, spec, t) != DT_OK) must(dt_error_message()[0] != '\0' && !c);
    dt_error_clear();
    if (c && border && dt_json_parse(&record, "", (const char *)border + 1, size - n - 1, DT_JSON_NUL) == DT_OK)
        read_and_render(c, record);
    json_decref(record);
    dt_chat_close(c);
    dt_tokenizer_close(t);
    free(spec);
    return 0;
}
