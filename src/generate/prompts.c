/* prompts.c - convert texts and JSON records to token ids. */
#include "dtrain/generate/generate.h"
#include "dtrain/io/json.h"
#include "dtrain/text/utf8.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Location of a prompt, for messages. */
typedef struct location {
    const char *name;
    int64_t line, record; /* 0: the whole text; record: number in a JSON array, counted from 1 */
} location;

static const char *where(const location *at, char *out, size_t size)
{
    if (at->line > 0)
        snprintf(out, size, "%s:%" PRId64, at->name, at->line);
    else if (at->record > 0)
        snprintf(out, size, "%s: record %" PRId64, at->name, at->record);
    else
        snprintf(out, size, "%s", at->name);
    return out;
}

/* ---- ids --------------------------------------------------------------------------------------------------------- */

static dt_err append_id(dt_ids *p, int64_t id)
{
    DT_TRY(dt_ids_reserve(p, 1));
    p->id[p->n++] = (int32_t)id;
    return DT_OK;
}

static dt_err parse_ids(dt_ids *p, const location *at, const char *text, size_t nbytes)
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
                 "%s: expected token ids separated by spaces, found '%.*s'", where(at, head, sizeof head),
                 (int)(nbytes - first < 20 ? nbytes - first : 20), text + first);
        DT_TRY(append_id(p, id));
    }
    return DT_OK;
}

static dt_err take_ids(dt_ids *p, const location *at, const json_t *list)
{
    char head[512];
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *id = json_array_get(list, i);
        DT_CHECK(json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) <= INT32_MAX, DT_ERR_DATA,
                 "%s: ids[%zu]: expected a token id", where(at, head, sizeof head), i);
        DT_TRY(append_id(p, json_integer_value(id)));
    }
    return DT_OK;
}

/* ---- texts and messages ------------------------------------------------------------------------------------------ */

/* Add file and line to errors of a record's fields and images. */
static dt_err add_location(const location *at, dt_err err)
{
    char head[512];
    return err == DT_OK ? err : dt_error_prefix(err, "%s: ", where(at, head, sizeof head));
}

/* Add BOS if the tokenizer adds it. An end token is not added, because the text continues. */
static dt_err encode(dt_ids *p, const location *at, const char *text, size_t nbytes, dt_prompt_reader *r)
{
    if (!r->encoder) return parse_ids(p, at, text, nbytes);
    dt_wrap wrap;
    dt_pieces pieces = {0};
    bool parted = false;
    if (nbytes == 0) return DT_OK;
    DT_TRY(dt_wrap_probe(&wrap, r->tokenizer));
    dt_err err = dt_pieces_text(&pieces, text, nbytes, false);
    if (err == DT_OK) err = dt_pieces_encode(r->encoder, r->tokenizer, &pieces, &wrap, p, NULL, &parted);
    dt_pieces_free(&pieces);
    return err;
}

dt_err dt_prompt_reader_chat(dt_prompt_reader *r)
{
    if (r->chat) return DT_OK;
    DT_CHECK(r->encoder, DT_ERR_USAGE, "messages need a tokenizer; choose one with --tokenizer");
    DT_TRY(dt_chat_open(&r->chat, r->chat_template ? r->chat_template : "auto", r->tokenizer));
    if (r->n_image_tokens > 0) dt_chat_for_images(r->chat);
    return DT_OK;
}

void dt_prompt_reader_close(dt_prompt_reader *r)
{
    dt_chat_close(r->chat);
    r->chat = NULL;
}

static bool begins_with_system(const json_t *list)
{
    dt_role role;
    const json_t *name = json_object_get(json_array_get(list, 0), "role");
    return json_is_string(name) && dt_role_parse(json_string_value(name), &role) && role == DT_ROLE_SYSTEM;
}

/* Add the system message, unless a record's messages already start with the same one. */
static dt_err add_system(dt_messages *m, const json_t *record, const json_t *list, const dt_prompt_reader *r)
{
    const json_t *system = NULL;
    DT_TRY(dt_record_system(record, &system));
    if (begins_with_system(list)) {
        DT_CHECK(!system || json_equal(system, json_object_get(json_array_get(list, 0), "content")), DT_ERR_DATA,
                 "system: the messages start with another system message; expected only one");
        return DT_OK;
    }
    if (system) return dt_messages_add(m, DT_ROLE_SYSTEM, json_string_value(system), json_string_length(system));
    return r->system ? dt_messages_add(m, DT_ROLE_SYSTEM, r->system, strlen(r->system)) : DT_OK;
}

static dt_err encode_messages(dt_prompt *p, const location *at, const json_t *list, const char *key,
                              dt_prompt_reader *r)
{
    char head[512], what[600];
    dt_messages m = {.image_text = r->n_image_tokens > 0 ? r->image_text : NULL,
                     .image_alias = r->image_alias,
                     .image_line = r->image_line};
    snprintf(what, sizeof what, "%s: %s", where(at, head, sizeof head), key);
    DT_CHECK(json_array_size(list) > 0, DT_ERR_DATA, "%s: expected messages, found none", what);
    DT_TRY(dt_prompt_reader_chat(r));
    dt_err err = dt_record_check_fields(p->record, DT_FIELDS_CHAT | DT_FIELDS_HISTORY);
    if (err == DT_OK) err = add_system(&m, p->record, list, r);
    if (err == DT_OK) err = dt_messages_parse(&m, list, key, "role", "content");
    if (err == DT_OK) err = dt_messages_take_tools(&m, p->record);
    if (err == DT_OK && !m.tools_text && r->tools) err = dt_messages_take_tools(&m, r->tools);
    const unsigned flags = r->answers ? 0 : DT_CHAT_GENERATE | r->chat_flags;
    if (err == DT_OK) err = dt_image_names_take(&p->images, &m);
    if (err == DT_OK) err = dt_messages_place_images(&m, p->images.n);
    if (err == DT_OK) err = dt_messages_fit(&m, r->chat);
    if (err == DT_OK) err = dt_chat_encode(r->chat, r->encoder, &m, flags, &p->ids);
    dt_messages_free(&m);
    return dt_error_prefix(err, "%s: ", what); /* the error counts messages; add file and line */
}

/* A prompt of messages is followed by messages or by a text. */
static dt_err encode_conversation(dt_prompt *p, const location *at, const json_t *prompt, const json_t *answer,
                                  dt_prompt_reader *r)
{
    json_t *all = json_array();
    bool ok = all && json_array_extend(all, (json_t *)prompt) == 0;
    if (ok && json_is_array(answer))
        ok = json_array_extend(all, (json_t *)answer) == 0;
    else if (ok)
        ok = json_array_append_new(all, json_pack("{sssO}", "role", "assistant", "content", answer)) == 0;
    const dt_err err = ok ? encode_messages(p, at, all, "prompt and answer", r)
                          : dt_fail(DT_ERR_MEMORY, "out of memory for the messages of a conversation");
    json_decref(all);
    return err;
}

static const json_t *answer_of(const json_t *record)
{
    static const char *const keys[] = {"completion", "response", "answer"};
    const json_t *answer = NULL;
    for (size_t i = 0; !answer && i < sizeof keys / sizeof keys[0]; i++) answer = json_object_get(record, keys[i]);
    return answer;
}

/* Prompt and answer as two texts, as in a dataset. */
static dt_err encode_answer(dt_ids *p, const location *at, const json_t *prompt, const json_t *answer,
                            dt_prompt_reader *r)
{
    char head[512];
    DT_CHECK(
        json_is_string(prompt) && json_is_string(answer), DT_ERR_DATA,
        "%s: expected an object with \"prompt\" and \"completion\", \"response\" or \"answer\" (texts, or lists of "
        "messages), \"messages\" (a list of roles and contents) or \"ids\" (a list of integers); for a classifier or "
        "embeddings, with \"text\", or \"text_a\" and \"text_b\"",
        where(at, head, sizeof head));
    DT_CHECK(r->encoder, DT_ERR_USAGE, "texts need a tokenizer; choose one with --tokenizer");
    dt_wrap wrap;
    dt_pieces pieces = {0};
    bool parted = false;
    DT_TRY(dt_wrap_probe(&wrap, r->tokenizer));
    dt_err err = dt_pieces_text(&pieces, json_string_value(prompt), json_string_length(prompt), false);
    if (err == DT_OK) err = dt_pieces_text(&pieces, json_string_value(answer), json_string_length(answer), true);
    if (err == DT_OK) err = dt_pieces_encode(r->encoder, r->tokenizer, &pieces, &wrap, p, NULL, &parted);
    dt_pieces_free(&pieces);
    return err;
}

static dt_err end_text(dt_ids *p, const dt_prompt_reader *r)
{
    const int32_t eos = r->tokenizer ? dt_tokenizer_get_info(r->tokenizer)->eos : -1;
    return eos < 0 || (p->n > 0 && p->id[p->n - 1] == eos) ? DT_OK : append_id(p, eos);
}

/* A text for a classifier or an embedding, or two: the ids that the tokenizer gives them. */
static dt_err encode_texts(dt_prompt *p, const json_t *record, dt_prompt_reader *r)
{
    static const char *const keys[] = {"text", "text_a", "text_b"};
    DT_CHECK(r->encoder, DT_ERR_USAGE, "texts need a tokenizer; choose one with --tokenizer");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const json_t *text = json_object_get(record, keys[i]);
        const dt_span span = {.text = json_string_value(text), .nbytes = json_string_length(text)};
        if (json_is_string(text)) DT_TRY(dt_encode(r->encoder, &span, 1, DT_ENCODE_WRAP, &p->ids, NULL));
    }
    return DT_OK;
}

static dt_err from_answer(dt_prompt *p, const location *at, const json_t *record, dt_prompt_reader *r)
{
    const json_t *ids = json_object_get(record, "ids"), *messages = json_object_get(record, "messages"),
                 *prompt_ids = json_object_get(record, "prompt_ids"), *prompt = json_object_get(record, "prompt"),
                 *answer = answer_of(record);
    if (json_is_array(prompt_ids) && json_is_array(ids)) { /* generated ids, and the record's other fields */
        DT_TRY(take_ids(&p->ids, at, prompt_ids));
        return take_ids(&p->ids, at, ids);
    }
    if (!json_is_array(ids)) DT_TRY(add_location(at, dt_record_check_fields(record, DT_FIELDS_THOUGHTS)));
    if (json_is_array(messages)) return encode_messages(p, at, messages, "messages", r);
    if (json_is_array(ids) && !prompt) return take_ids(&p->ids, at, ids);
    if (json_is_array(prompt) && answer) return encode_conversation(p, at, prompt, answer, r);
    if (!prompt &&
        (json_is_string(json_object_get(record, "text")) || json_is_string(json_object_get(record, "text_a"))))
        return encode_texts(p, record, r);
    DT_TRY(encode_answer(&p->ids, at, prompt, answer, r));
    return end_text(&p->ids, r);
}

/* ---- images ------------------------------------------------------------------------------------------------------ */

/* Prepend placeholders for the prompt's images to a text of *nbytes bytes, unless the text contains placeholders.
 * *with: malloc'ed, and *nbytes its length; NULL: unchanged. */
static dt_err add_placeholders(const dt_prompt *p, const dt_prompt_reader *r, const char *text, size_t *nbytes,
                               char **with)
{
    *with = NULL;
    if (!r->image_text || memmem(text, *nbytes, r->image_text, strlen(r->image_text))) return DT_OK;
    bool done = !r->image_alias || dt_text_replace(text, nbytes, r->image_alias, r->image_text, with);
    if (done && !*with && p->images.n > 0) { /* without images, expand refuses placeholders */
        *with = dt_text_after_images(r->image_text, r->image_line, p->images.n, text, nbytes);
        done = *with;
    }
    DT_CHECK(done, DT_ERR_MEMORY, "out of memory for a prompt of %zu bytes", *nbytes);
    return DT_OK;
}

static dt_err count_cells(dt_prompt *p, const dt_prompt_reader *r)
{
    if (!r->n_cells || p->images.n == 0) return DT_OK;
    p->n_cells = calloc((size_t)p->images.n, sizeof *p->n_cells);
    DT_CHECK(p->n_cells, DT_ERR_MEMORY, "out of memory for %d images", p->images.n);
    for (int i = 0; i < p->images.n; i++) DT_TRY(r->n_cells(r->ctx, p, i, &p->n_cells[i]));
    return DT_OK;
}

/* Expand placeholders to one run per image. given: the prompt was given as ids, possibly with complete runs. */
static dt_err expand(dt_prompt *p, const dt_prompt_reader *r, bool given)
{
    size_t found = 0, whole = 0;
    if (r->n_image_tokens == 0) return DT_OK;
    DT_TRY(count_cells(p, r));
    for (int i = 0; i < p->images.n; i++) whole += (size_t)r->n_image_tokens * (size_t)(p->n_cells ? p->n_cells[i] : 1);
    for (size_t i = 0; i < p->ids.n; i++) found += p->ids.id[i] == r->image_token;
    if (given && found == whole) return DT_OK;
    dt_placeholder_words words;
    DT_CHECK(found == (size_t)p->images.n, DT_ERR_DATA, "%s",
             dt_say_placeholders(&words, r->image_text, (int64_t)found, "the prompt", p->images.n));
    return dt_expand_placeholders(r->image_token, r->n_image_tokens, p->n_cells, p->images.n, &p->ids, NULL, 0);
}

static dt_err from_text(dt_prompt *p, const location *at, const char *text, size_t nbytes, dt_prompt_reader *r)
{
    char *with;
    DT_TRY(add_placeholders(p, r, text, &nbytes, &with));
    const dt_err err = encode(&p->ids, at, with ? with : text, nbytes, r);
    free(with);
    return err;
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

static dt_err from_record(dt_prompt *p, const location *at, const json_t *record, dt_prompt_reader *r)
{
    char head[512];
    const json_t *prompt = json_object_get(record, "prompt"), *ids = json_object_get(record, "ids"),
                 *messages = json_object_get(record, "messages");
    if (r->answers) return from_answer(p, at, record, r);
    if (json_is_array(messages)) return encode_messages(p, at, messages, "messages", r);
    if (json_is_array(prompt)) return encode_messages(p, at, prompt, "prompt", r);
    if (json_is_string(prompt)) {
        const json_t *system = NULL;
        DT_TRY(add_location(at, dt_record_system(record, &system)));
        DT_CHECK(!system, DT_ERR_DATA, "%s: system: a plain-text prompt cannot have a system message; use \"messages\"",
                 where(at, head, sizeof head));
        return from_text(p, at, json_string_value(prompt), json_string_length(prompt), r);
    }
    DT_CHECK(json_is_array(ids), DT_ERR_DATA,
             "%s: expected an object with \"prompt\" (a string), \"messages\" (a list of roles and contents) or "
             "\"ids\" (a list of integers)",
             where(at, head, sizeof head));
    return take_ids(&p->ids, at, ids);
}

static dt_err add_room(dt_prompts *ps)
{
    dt_prompt *grown = realloc(ps->prompt, ((size_t)ps->n + 1) * sizeof *grown);
    DT_CHECK(grown, DT_ERR_MEMORY, "out of memory for %d prompts", ps->n + 1);
    ps->prompt = grown;
    ps->prompt[ps->n++] = (dt_prompt){0};
    return DT_OK;
}

static dt_err check_ids(const dt_prompt *p, const location *at, int64_t vocab_size)
{
    char head[512];
    for (size_t i = 0; i < p->ids.n; i++)
        DT_CHECK(p->ids.id[i] >= 0 && p->ids.id[i] < vocab_size, DT_ERR_DATA,
                 "%s: token %zu is %" PRId32 ", but the model's vocabulary has %" PRId64 " tokens",
                 where(at, head, sizeof head), i, p->ids.id[i], vocab_size);
    return DT_OK;
}

static dt_err add_text(dt_prompts *ps, const location *at, const char *text, size_t nbytes, dt_prompt_reader *r)
{
    DT_TRY(add_room(ps));
    dt_prompt *p = &ps->prompt[ps->n - 1];
    for (int i = 0; i < r->n_images; i++) DT_TRY(dt_image_names_add(&p->images, r->image[i]));
    DT_TRY(from_text(p, at, text, nbytes, r));
    DT_TRY(add_location(at, expand(p, r, !r->encoder)));
    return check_ids(p, at, r->vocab_size);
}

/* Takes ownership of the reference to record. */
static dt_err add_record(dt_prompts *ps, const location *at, json_t *record, dt_prompt_reader *r)
{
    char head[512];
    const dt_err err = add_room(ps);
    if (err != DT_OK) json_decref(record);
    DT_TRY(err);
    dt_prompt *p = &ps->prompt[ps->n - 1];
    p->record = record;
    DT_CHECK(json_is_object(record), DT_ERR_DATA, "%s: expected a JSON object", where(at, head, sizeof head));
    p->file = at->name;
    DT_TRY(add_location(at, dt_record_check_fields(record, DT_FIELDS_MEDIA)));
    if (r->n_image_tokens > 0) DT_TRY(add_location(at, dt_image_names_list(&p->images, record)));
    DT_CHECK(r->n_image_tokens > 0 || !dt_image_key(record), DT_ERR_DATA,
             "%s: %s: the record has an image, but the model does not accept images", where(at, head, sizeof head),
             dt_image_key(record));
    DT_TRY(from_record(p, at, record, r));
    DT_TRY(add_location(at, expand(p, r, json_is_array(json_object_get(record, "ids")))));
    return check_ids(p, at, r->vocab_size);
}

static dt_err parse_array(dt_prompts *ps, const char *name, const char *text, size_t nbytes, dt_prompt_reader *r)
{
    json_t *list;
    DT_TRY(dt_json_parse(&list, name, text, nbytes, DT_JSON_NUL | DT_JSON_LAST_KEY));
    dt_err err = DT_OK;
    for (size_t i = 0; err == DT_OK && i < json_array_size(list); i++)
        err = add_record(ps, &(location){.name = name, .record = (int64_t)i + 1}, json_incref(json_array_get(list, i)),
                         r);
    json_decref(list);
    return err;
}

static bool is_blank(char c) { return c && strchr(" \t\r\n", c); }

/* A prompt per line; empty lines are skipped. */
static dt_err parse_lines(dt_prompts *p, const char *name, const char *text, size_t nbytes, dt_prompt_reader *r)
{
    location at = {.name = name};
    for (size_t i = 0, next; i < nbytes; i = next + 1) {
        const char *newline = memchr(text + i, '\n', nbytes - i);
        next = newline ? (size_t)(newline - text) : nbytes;
        const size_t len = next - i - (next > i && text[next - 1] == '\r');
        at.line++;
        if (len > 0) DT_TRY(add_text(p, &at, text + i, len, r));
    }
    return DT_OK;
}

/* End of the record that begins at i. For an invalid record the end of the text; the parser then reports the error.
 * Adds the number of newlines to *n_lines. */
static size_t record_end(const char *text, size_t i, size_t nbytes, int64_t *n_lines)
{
    dt_json_nesting at = {0};
    for (; i < nbytes; i++) {
        *n_lines += text[i] == '\n';
        if (dt_json_step(&at, text[i])) return nbytes;
        if (at.depth == 0 && (at.last == '}' || at.last == ']')) return i + 1;
    }
    return nbytes;
}

/* Consecutive records, each in one or several lines. */
static dt_err parse_records(dt_prompts *p, const char *name, const char *text, size_t nbytes, dt_prompt_reader *r)
{
    char head[512];
    int64_t line = 1;
    for (size_t i = 0; i < nbytes;) {
        const location at = {.name = name, .line = line};
        if (is_blank(text[i])) {
            line += text[i++] == '\n';
            continue;
        }
        json_t *record;
        const size_t end = record_end(text, i, nbytes, &line);
        DT_TRY(dt_json_parse(&record, where(&at, head, sizeof head), text + i, end - i,
                             DT_JSON_NUL | DT_JSON_LAST_KEY | DT_JSON_RECORD));
        DT_TRY(add_record(p, &at, record, r));
        i = end;
    }
    return DT_OK;
}

dt_err dt_prompts_parse(dt_prompts *p, const char *name, const char *text, size_t nbytes, dt_prompt_format format,
                        dt_prompt_reader *r)
{
    *p = (dt_prompts){0};
    if (format == DT_PROMPT_WHOLE) return add_text(p, &(location){.name = name}, text, nbytes, r);
    if (nbytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) text += 3, nbytes -= 3;
    size_t first = 0;
    while (first < nbytes && is_blank(text[first])) first++;
    const bool records = format == DT_PROMPT_JSONL, array = first < nbytes && text[first] == '[';
    DT_CHECK(!records || array || first == nbytes || text[first] == '{', DT_ERR_DATA,
             "%s: expected JSON lines, found text; for one prompt per line, use dtrain-generate MODEL - < "
             "%s; for one prompt, use --prompt \"$(cat %s)\"",
             name, name, name);
    DT_TRY(!records ? parse_lines(p, name, text, nbytes, r)
           : array  ? parse_array(p, name, text, nbytes, r)
                    : parse_records(p, name, text, nbytes, r));
    DT_CHECK(p->n > 0, DT_ERR_DATA, "%s: expected prompts, found none", name);
    return DT_OK;
}

void dt_prompts_free(dt_prompts *p)
{
    for (int i = 0; i < p->n; i++) {
        free(p->prompt[i].ids.id);
        dt_image_names_free(&p->prompt[i].images);
        free(p->prompt[i].n_cells);
        json_decref(p->prompt[i].record);
    }
    free(p->prompt);
    *p = (dt_prompts){0};
}
