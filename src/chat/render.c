/* render.c - evaluates a template on a conversation, and cuts the text into pieces. */
#include "chat_private.h"

#include "dtrain/text/space.h"
#include "dtrain/text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* ---- variables --------------------------------------------------------------------------------------------------- */

/* A text of a message, with a mark at its end or before the white space at its end. Answers with calls have none. */
static json_t *marked_text(const dt_message *m, const char *from, size_t n, int marks)
{
    const bool answers = m->role == DT_ROLE_ASSISTANT;
    const size_t words = dt_space_trimmed(from, n);
    const int at_words = answers ? DT_CHAT_MARK_WORDS : DT_CHAT_MARK_QUESTION_WORDS,
              at_end = answers ? DT_CHAT_MARK_ENDS : DT_CHAT_MARK_QUESTION_ENDS;
    if (m->calls || !(marks & (at_words | at_end)) || (!answers && words == 0)) return json_stringn_nocheck(from, n);
    const size_t at = marks & at_end ? n : words;
    dt_text marked = {0};
    dt_text_append(&marked, from, at);
    dt_text_append(&marked, answers ? DT_CHAT_END_MARK : DT_CHAT_QUESTION_MARK, DT_CHAT_MARK_NBYTES);
    dt_text_append(&marked, from + at, n - at);
    json_t *value = marked.failed ? NULL : json_stringn_nocheck(marked.bytes, marked.n);
    dt_text_free(&marked);
    return value;
}

/* A content that is a list, with a mark in its last text. */
static json_t *marked_parts(const dt_message *m, int marks)
{
    json_t *copy = json_deep_copy(m->parts);
    for (size_t i = json_array_size(copy); i-- > 0;) {
        json_t *part = json_array_get(copy, i), *text = json_object_get(part, "text");
        if (!json_is_string(text)) continue;
        json_object_set_new(part, "text", marked_text(m, json_string_value(text), json_string_length(text), marks));
        break;
    }
    return copy;
}

/* Does the template take the message's list of parts as it is? */
static bool takes_parts(const dt_chat *c, const dt_message *m)
{
    const json_t *part;
    bool image = false;
    size_t i;
    json_array_foreach(m->parts, i, part) image |= !json_is_string(json_object_get(part, "text"));
    return m->parts && (image ? c->image_parts : c->text_parts);
}

/* NULL: none, or no memory. */
static json_t *content_of(const dt_chat *c, const dt_message *m, int marks)
{
    const dt_content content = m->content == DT_CONTENT_ANY ? c->call_content : m->content;
    if (content == DT_CONTENT_NONE) return NULL;
    if (content == DT_CONTENT_NULL) return json_null();
    if (takes_parts(c, m)) return marked_parts(m, marks);
    json_t *text = marked_text(m, m->text, m->content == DT_CONTENT_ANY ? 0 : m->nbytes, marks);
    return c->parts ? json_pack("[{s:s, s:o*}]", "type", "text", "text", text) : text;
}

/* Add an answer's thoughts under all their names, as transformers does. */
static int put_thoughts(json_t *all, const dt_message *m)
{
    const char *const keys[] = {"thinking", m->thoughts_key, "reasoning_content"};
    int failed = 0;
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
        failed |= json_object_set_new(all, keys[k], json_stringn_nocheck(m->thoughts, m->n_thoughts));
    return failed;
}

static json_t *message_of(const dt_chat *c, const dt_message *m, int marks)
{
    static const char *const names[DT_N_ROLES] = {"system", "user", "assistant", "tool"};
    json_t *all = json_object(), *content = content_of(c, m, marks);
    const bool none = (m->content == DT_CONTENT_ANY ? c->call_content : m->content) == DT_CONTENT_NONE;
    int failed = json_object_set_new(all, "role", json_string(m->developer ? "developer" : names[m->role]));
    if (!none) failed |= json_object_set_new(all, "content", content);
    if (m->name) failed |= json_object_set_new(all, "name", json_string(m->name));
    if (m->call_id) failed |= json_object_set_new(all, "tool_call_id", json_string(m->call_id));
    if (m->calls) failed |= json_object_set(all, "tool_calls", (json_t *)m->calls);
    if (m->thoughts) failed |= put_thoughts(all, m);
    if (!failed) return all;
    json_decref(all);
    return NULL;
}

/* Add the named special tokens, as copies: JSON values must not be shared by threads. */
static int put_tokens(const dt_chat *c, json_t *all)
{
    const char *key;
    json_t *value;
    int failed = 0;
    json_object_foreach((json_t *)dt_tokenizer_get_info(c->tokenizer)->named, key, value) if (json_is_string(value))
        failed |= json_object_set_new(all, key, json_string(json_string_value(value)));
    if (c->bos) failed |= json_object_set_new(all, "bos_token", json_string(c->bos));
    if (c->eos) failed |= json_object_set_new(all, "eos_token", json_string(c->eos));
    return failed;
}

/* What apply_chat_template passes to a template. */
static json_t *variables_of(const dt_chat *c, const dt_message *m, int n, const json_t *tools, unsigned flags,
                            int marks)
{
    json_t *all = json_object(), *messages = json_array();
    int failed = json_object_set(all, "messages", messages);
    for (int i = 0; i < n; i++) failed |= json_array_append_new(messages, message_of(c, &m[i], marks));
    json_decref(messages);
    failed |= json_object_set_new(all, "add_generation_prompt", json_boolean(flags & DT_CHAT_GENERATE));
    if (flags & DT_CHAT_NO_THINK) failed |= json_object_set_new(all, "enable_thinking", json_false());
    if (!c->form) {
        failed |= json_object_set_new(all, "tools",
                                      tools           ? json_incref((json_t *)tools)
                                      : c->test_tools ? json_incref(c->test_tools)
                                                      : json_null()) |
                  json_object_set_new(all, "documents", json_null());
        failed |= put_tokens(c, all);
    }
    if (!failed) return all;
    json_decref(all);
    return NULL;
}

const dt_chat *dt_chat_for(const dt_chat *c, const json_t *tools) { return tools && c->with_tools ? c->with_tools : c; }

dt_err dt_chat_evaluate(const dt_chat *c, const dt_message *messages, int n, const json_t *tools, unsigned flags,
                        int marks, dt_jinja_result *r)
{
    json_t *variables = variables_of(c, messages, n, tools, flags, marks);
    *r = (dt_jinja_result){0};
    DT_CHECK(variables, DT_ERR_MEMORY, "out of memory for the variables of a chat template");
    const dt_err err = dt_jinja_render(c->jinja, variables, c->day, r);
    json_decref(variables);
    return err;
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

size_t dt_chat_token_meant(const char *text)
{
    const size_t n = strncmp(text, "<|", 2) == 0 ? strcspn(text, "> \n") : 0;
    return n > 3 && text[n] == '>' && text[n - 1] == '|' ? n + 1 : 0;
}

size_t dt_chat_token_at(const dt_chat *c, const char *text, int32_t *id)
{
    const dt_tokenizer_info *info = dt_tokenizer_get_info(c->tokenizer);
    const bool bos = c->bos && *c->bos && strncmp(text, c->bos, strlen(c->bos)) == 0,
               eos = !bos && c->eos && *c->eos && strncmp(text, c->eos, strlen(c->eos)) == 0;
    if (bos || eos) return *id = bos ? info->bos : info->eos, strlen(bos ? c->bos : c->eos);
    if (*text != '<' && *text != '[') return 0;
    const char *close = strchr(text, *text == '<' ? '>' : ']');
    char name[64];
    const size_t n = close ? (size_t)(close - text) + 1 : 0;
    if (n < 3 || n >= sizeof name) return 0;
    snprintf(name, sizeof name, "%.*s", (int)n, text);
    const int32_t found = dt_tokenizer_find(c->tokenizer, name);
    if (found < 0 || !dt_tokenizer_is_special(c->tokenizer, found)) return dt_chat_token_meant(text);
    return *id = found, n;
}

/* Add a part of the text, in which marks stand for tokens. */
static dt_err put(const dt_chat *c, const char *text, size_t n, bool target, dt_pieces *out)
{
    const dt_tokenizer_info *info = dt_tokenizer_get_info(c->tokenizer);
    const struct {
        const char *mark;
        int32_t id;
    } marks[] = {{DT_CHAT_BOS_MARK, info->bos}, {DT_CHAT_EOS_MARK, info->eos}};
    const char *tokens[] = {c->bos, c->eos};
    for (size_t k = 0; k < 2; k++) {
        if (!tokens[k] || strcmp(tokens[k], marks[k].mark) != 0) continue;
        for (const char *at; (at = memmem(text, n, marks[k].mark, DT_CHAT_MARK_NBYTES));) {
            const size_t before = (size_t)(at - text), used = before + DT_CHAT_MARK_NBYTES;
            DT_TRY(put(c, text, before, target, out));
            DT_TRY(dt_pieces_token(out, marks[k].id, target));
            text += used;
            n -= used;
        }
    }
    return dt_pieces_text(out, text, n, target);
}

static dt_err cut(const dt_chat *c, const dt_jinja_result *r, const dt_jinja_part *target, int n, dt_pieces *out)
{
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        DT_TRY(put(c, r->text + at, target[i].from - at, false, out));
        DT_TRY(put(c, r->text + target[i].from, target[i].to - target[i].from, true, out));
        at = target[i].to;
    }
    return put(c, r->text + at, r->nbytes - at, false, out);
}

/* Thoughts in a separate field require a template that supports them. */
static dt_err check_thoughts(const dt_chat *c, const dt_message *messages, int n)
{
    for (int i = 0; i < n; i++)
        DT_CHECK(messages[i].n_thoughts == 0 || c->writes_thoughts, DT_ERR_DATA,
                 "message %d: %s: the template %s has no block for thoughts: choose one that has it (--template "
                 "qwen3), put thoughts into the text of the answer, or remove the field to train on the answer only",
                 i, messages[i].thoughts_key, c->name);
    return DT_OK;
}

dt_err dt_chat_render(const dt_chat *c, const dt_message *messages, int n, const json_t *tools, unsigned flags,
                      dt_pieces *out)
{
    dt_jinja_result r;
    dt_jinja_part *target = NULL;
    int n_targets = 0;
    dt_pieces_clear(out);
    c = dt_chat_for(c, tools);
    DT_TRY(check_thoughts(c, messages, n));
    DT_TRY(dt_chat_evaluate(c, messages, n, tools, flags, 0, &r));
    dt_err err = dt_chat_targets(c, messages, n, tools, &r, &target, &n_targets);
    if (err == DT_OK) err = cut(c, &r, target, n_targets, out);
    out->owned = r.text;
    r.text = NULL;
    free(target);
    dt_jinja_result_free(&r);
    return err;
}

dt_err dt_chat_encode(const dt_chat *c, dt_encoder *e, const dt_messages *m, unsigned flags, dt_ids *ids)
{
    dt_pieces p = {0};
    bool parted;
    dt_err err = dt_chat_render(c, m->item, m->n, m->tools, flags, &p);
    if (err == DT_OK) err = dt_pieces_encode(e, c->tokenizer, &p, dt_chat_wrap(c), ids, NULL, &parted);
    dt_pieces_free(&p);
    return err;
}
