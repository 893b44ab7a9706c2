/* continuation.c - what a template writes after an answer: the end of its turn, messages, and the begin of the next
 * answer. They are rendered in a conversation of their own. Its answer stands for the sampled one, the tokens of which
 * are kept as they are. TRL does the same. */
#include "chat_private.h"
#include <stdlib.h>
#include <string.h>

enum { ANSWER = 1 }; /* index in that conversation */

/* The answer calls a tool if the first message is a tool's result. */
static json_t *conversation(const dt_chat *c, const json_t *messages)
{
    const json_t *first = json_array_get(messages, 0), *name = json_object_get(first, "name"),
                 *id = json_object_get(first, "tool_call_id");
    const char *role = json_string_value(json_object_get(first, "role")),
               *called = json_is_string(name) ? json_string_value(name) : "tool",
               *numbered = json_is_string(id) ? json_string_value(id) : DT_CHAT_CALL_ID;
    json_t *list = json_pack("[{s:s, s:s}]", "role", "user", "content", "dummy");
    const bool calls = role && !strcmp(role, "tool") && dt_chat_writes_calls(c);
    json_t *answer =
        calls ? json_pack("{s:s, s:s, s:[{s:s, s:s, s:{s:s, s:{}}}]}", "role", "assistant", "content", "", "tool_calls",
                          "type", "function", "id", numbered, "function", "name", called, "arguments")
              : json_pack("{s:s, s:s}", "role", "assistant", "content", "dummy");
    if (list && json_array_append_new(list, answer) == 0 && json_array_extend(list, (json_t *)messages) == 0)
        return list;
    json_decref(list);
    return NULL;
}

/* The number of tokens up to the one that ends the answer, or else up to the answer's last one. */
static size_t end_of_answer(const dt_chat *c, const dt_ids *all, const uint8_t *mask)
{
    const int32_t own = dt_chat_end_token(c), end = own >= 0 ? own : dt_tokenizer_get_info(c->tokenizer)->eos;
    size_t last = all->n;
    while (last > 0 && !mask[last - 1]) last--;
    for (size_t n = last; n > 0 && mask[n - 1]; n--)
        if (all->id[n - 1] == end) return n;
    return last;
}

/* Append the tokens after the answer. */
static dt_err encode_rest(const dt_chat *c, dt_encoder *e, const dt_pieces *p, dt_ids *ids)
{
    dt_ids all = {0};
    uint8_t *mask = NULL;
    bool parted = false;
    dt_err err = dt_pieces_encode(e, c->tokenizer, p, NULL, &all, &mask, &parted);
    const size_t n = err == DT_OK ? end_of_answer(c, &all, mask) : 0;
    if (err == DT_OK) err = dt_ids_reserve(ids, all.n - n);
    if (err == DT_OK && all.n > n) memcpy(ids->id + ids->n, all.id + n, (all.n - n) * sizeof *all.id);
    if (err == DT_OK) ids->n += all.n - n;
    free(all.id);
    free(mask);
    return err;
}

/* Append what the template writes to begin an answer. begin: out, owns the text. */
static dt_err add_begin(const dt_chat *c, const dt_messages *m, unsigned flags, dt_pieces *p, dt_jinja_result *begin)
{
    dt_jinja_result all;
    DT_TRY(dt_chat_evaluate(c, m->item, m->n, NULL, 0, 0, &all));
    const dt_err err = dt_chat_evaluate(c, m->item, m->n, NULL, flags | DT_CHAT_GENERATE, 0, begin);
    const size_t n = all.nbytes;
    const bool follows = err == DT_OK && begin->nbytes >= n && memcmp(begin->text, all.text, n) == 0;
    dt_jinja_result_free(&all);
    DT_TRY(err);
    DT_CHECK(follows, DT_ERR_DATA, "the chat template %s changes messages when an answer begins", dt_chat_source(c));
    return dt_pieces_text(p, begin->text + n, begin->nbytes - n, false);
}

dt_err dt_chat_continue(const dt_chat *c, dt_encoder *e, const json_t *messages, unsigned flags, dt_ids *ids)
{
    dt_messages m = {0};
    dt_pieces p = {0};
    dt_jinja_result begin = {0};
    if (c->with_tools) c = c->with_tools;
    json_t *list = conversation(c, messages);
    dt_err err = list ? dt_messages_parse(&m, list, "messages", "role", "content")
                      : dt_fail(DT_ERR_MEMORY, "out of memory for messages");
    if (err == DT_OK) err = dt_messages_fit(&m, c);
    if (err == DT_OK) m.item[ANSWER].learn = DT_LEARN_CONTENT;
    if (err == DT_OK) err = dt_chat_render(c, m.item, m.n, NULL, 0, &p);
    if (err == DT_OK) err = add_begin(c, &m, flags, &p, &begin);
    if (err == DT_OK) err = encode_rest(c, e, &p, ids);
    dt_pieces_free(&p);
    dt_jinja_result_free(&begin);
    dt_messages_free(&m);
    json_decref(list);
    return err;
}
