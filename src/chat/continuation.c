/* continuation.c - what a template writes after an answer: the end of its turn, messages, and the begin of the next
 * answer. A conversation of its own is rendered twice, without and with the messages. Its answer stands for the sampled
 * one, whose tokens are kept as they are (TRL does the same). */
#include "chat_private.h"
#include <stdlib.h>
#include <string.h>

/* The answer calls a tool if the first message is a tool's result. */
static json_t *answered(const dt_chat *c, const json_t *messages)
{
    const json_t *first = json_array_get(messages, 0), *name = json_object_get(first, "name");
    const char *role = json_string_value(json_object_get(first, "role")),
               *called = json_is_string(name) ? json_string_value(name) : "tool";
    json_t *list = json_pack("[{s:s, s:s}]", "role", "user", "content", "dummy");
    const bool calls = role && !strcmp(role, "tool") && dt_chat_writes_calls(c);
    json_t *answer = calls ? json_pack("{s:s, s:s, s:[{s:s, s:s, s:{s:s, s:{}}}]}", "role", "assistant", "content", "",
                                       "tool_calls", "type", "function", "id", DT_CHAT_CALL_ID, "function", "name",
                                       called, "arguments")
                           : json_pack("{s:s, s:s}", "role", "assistant", "content", "dummy");
    if (list && json_array_append_new(list, answer) == 0) return list;
    json_decref(list);
    return NULL;
}

static dt_err encode(const dt_chat *c, dt_encoder *e, const json_t *list, unsigned flags, dt_ids *ids)
{
    dt_messages m = {0};
    dt_err err = list ? dt_messages_parse(&m, list, "messages", "role", "content")
                      : dt_fail(DT_ERR_MEMORY, "out of memory for messages");
    if (err == DT_OK) err = dt_messages_fit(&m, c);
    if (err == DT_OK) err = dt_chat_encode(c, e, &m, flags, ids);
    dt_messages_free(&m);
    return err;
}

/* Number of ids up to the last token that ends a turn; all if there is none. */
static size_t end_of_turn(const dt_chat *c, const dt_ids *ids)
{
    const int32_t token = dt_chat_end_token(c), end = token >= 0 ? token : dt_tokenizer_get_info(c->tokenizer)->eos;
    for (size_t n = ids->n; n > 0; n--)
        if (ids->id[n - 1] == end) return n;
    return ids->n;
}

static dt_err encode_both(const dt_chat *c, dt_encoder *e, const json_t *messages, unsigned flags, dt_ids *before,
                          dt_ids *all)
{
    json_t *list = answered(c, messages);
    dt_err err = encode(c, e, list, 0, before);
    if (err == DT_OK && json_array_extend(list, (json_t *)messages) != 0)
        err = dt_fail(DT_ERR_MEMORY, "out of memory for messages");
    if (err == DT_OK) err = encode(c, e, list, flags | DT_CHAT_GENERATE, all);
    json_decref(list);
    return err;
}

dt_err dt_chat_continue(const dt_chat *c, dt_encoder *e, const json_t *messages, unsigned flags, dt_ids *ids)
{
    dt_ids before = {0}, all = {0};
    if (c->with_tools) c = c->with_tools;
    dt_err err = encode_both(c, e, messages, flags, &before, &all);
    const size_t n = err == DT_OK ? end_of_turn(c, &before) : 0;
    if (err == DT_OK && (n > all.n || memcmp(before.id, all.id, n * sizeof *all.id) != 0))
        err = dt_fail(DT_ERR_DATA, "the chat template %s changes an answer when messages follow it, so a conversation "
                      "cannot be continued token by token", dt_chat_source(c));
    if (err == DT_OK) err = dt_ids_reserve(ids, all.n - n);
    if (err == DT_OK && all.n > n) {
        memcpy(ids->id + ids->n, all.id + n, (all.n - n) * sizeof *all.id);
        ids->n += all.n - n;
    }
    free(before.id);
    free(all.id);
    return err;
}
