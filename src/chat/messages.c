/* messages.c - parses conversations from JSON. Every value's type is checked, because a partly read
 * conversation would train on wrong data. */
#include "chat_private.h"
#include "dtrain/text/utf8.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    dt_role role;
} roles[] = {{"system", DT_ROLE_SYSTEM},   {"developer", DT_ROLE_SYSTEM},        {"user", DT_ROLE_USER},
             {"human", DT_ROLE_USER},      {"assistant", DT_ROLE_ASSISTANT},     {"gpt", DT_ROLE_ASSISTANT},
             {"model", DT_ROLE_ASSISTANT}, {"function_call", DT_ROLE_ASSISTANT}, {"tool", DT_ROLE_TOOL},
             {"function", DT_ROLE_TOOL},   {"observation", DT_ROLE_TOOL}};
enum { N_ROLE_NAMES = sizeof roles / sizeof roles[0] };

bool dt_role_parse(const char *name, dt_role *role)
{
    for (int i = 0; i < N_ROLE_NAMES; i++)
        if (strcmp(roles[i].name, name) == 0) return *role = roles[i].role, true;
    return false;
}

dt_err dt_messages_add(dt_messages *m, dt_role role, const char *text, size_t nbytes)
{
    DT_GROW(m->item, m->n, "out of memory for %d messages", m->n + 1);
    char *own = NULL;
    DT_CHECK(!m->image_alias || dt_text_replace(text, &nbytes, m->image_alias, m->image_text, &own), DT_ERR_MEMORY,
             "out of memory for a message");
    if (own) DT_TRY(dt_messages_own(m, own));
    m->item[m->n++] = (dt_message){.role = role, .text = own ? own : text, .nbytes = nbytes};
    return DT_OK;
}

dt_err dt_messages_add_first(dt_messages *m, dt_role role, const char *text, size_t nbytes)
{
    DT_TRY(dt_messages_add(m, role, text, nbytes));
    const dt_message first = m->item[m->n - 1];
    memmove(m->item + 1, m->item, (size_t)(m->n - 1) * sizeof *m->item);
    m->item[0] = first;
    return DT_OK;
}

dt_err dt_messages_own(dt_messages *m, char *text)
{
    const dt_err err = text ? dt_grow(&m->owned, m->n_owned, sizeof *m->owned, "out of memory for a message")
                            : dt_fail(DT_ERR_MEMORY, "out of memory for a message");
    if (err == DT_OK)
        m->owned[m->n_owned++] = text;
    else
        free(text);
    return err;
}

static bool is_image(const dt_messages *m, const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return m->image_text && type && (strcmp(type, "image") == 0 || strcmp(type, "image_url") == 0);
}

/* OpenAI's part is {type: image_url, image_url: {url}}. Sizes of Qwen's parts would change the pixels. */
static dt_err note_image(dt_messages *m, const json_t *part, size_t turn, size_t i)
{
    static const char *const keys[] = {"image", "path", "url", "image_url"}, *const sizes[] = {
                                                                                 "min_pixels", "max_pixels",
                                                                                 "resized_height", "resized_width"};
    const char *path = NULL;
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++)
        DT_CHECK(
            !dt_field_is_set(json_object_get(part, sizes[k])), DT_ERR_DATA,
            "message %zu: part %zu of its content: %s: sizes of single images are not supported; remove the field, "
            "or set the size in preprocessor_config.json",
            turn, i, sizes[k]);
    for (size_t k = 0; k < sizeof keys / sizeof keys[0] && !path; k++) {
        const json_t *image = json_object_get(part, keys[k]), *url = json_object_get(image, "url");
        path = dt_image_name_of(url ? url : image);
    }
    return dt_image_names_add(&m->images, path);
}

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {"an object", "a list", "a text", "a number",
                                        "a number",  "true",   "false",  "null"};
    return value ? names[json_typeof(value)] : "nothing";
}

static dt_err refuse_part(const dt_messages *m, const json_t *part, size_t turn, size_t i)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    const bool image = type && strncmp(type, "image", strlen("image")) == 0;
    return dt_fail(
        DT_ERR_DATA,
        "message %zu: part %zu of its content: expected {\"type\": \"text\", \"text\": ...}%s, found %s%.40s%s", turn,
        i, m->image_text ? " or {\"type\": \"image\"}" : "", type ? "type " : type_name(part), type ? type : "",
        image && !m->image_text ? " (images need --images, or a vision-language model)" : "");
}

static dt_err check_parts(dt_messages *m, const json_t *parts, size_t turn, int *n_images)
{
    size_t i;
    const json_t *part;
    *n_images = 0;
    json_array_foreach(parts, i, part)
    {
        if (is_image(m, part)) {
            ++*n_images;
            DT_TRY(note_image(m, part, turn, i));
            continue;
        }
        const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
        if (!json_is_string(text) || (type && (!json_is_string(type) || strcmp(json_string_value(type), "text") != 0)))
            return refuse_part(m, part, turn, i);
    }
    return DT_OK;
}

/* A text, or a list of parts of type text. */
static dt_err read_content(dt_messages *m, const json_t *content, size_t turn, dt_role role)
{
    if (json_is_string(content))
        return dt_messages_add(m, role, json_string_value(content), json_string_length(content));
    DT_CHECK(json_is_array(content), DT_ERR_DATA, "message %zu: content: expected a text, found %s", turn,
             type_name(content));
    size_t nbytes, i;
    int n_images;
    const json_t *part;
    dt_text joined = {0};
    DT_TRY(check_parts(m, content, turn, &n_images));
    json_array_foreach(content, i, part)
    {
        const json_t *words = is_image(m, part) ? NULL : json_object_get(part, "text");
        dt_text_append(&joined, json_string_value(words), json_string_length(words));
    }
    char *text = dt_text_finish(&joined, &nbytes);
    DT_TRY(dt_messages_own(m, text));
    if (n_images > 0) {
        text = dt_text_after_images(m->image_text, m->image_line, n_images, text, &nbytes);
        DT_TRY(dt_messages_own(m, text));
    }
    DT_TRY(dt_messages_add(m, role, text, nbytes));
    dt_message *out = &m->item[m->n - 1];
    if (out->text == text) out->parts = content; /* otherwise a placeholder in a part was replaced */
    return DT_OK;
}

/* Read an answer's thoughts from the fields of DeepSeek and Qwen, OpenRouter, or gpt-oss. */
static dt_err read_thoughts(dt_message *out, const json_t *message, size_t turn)
{
    static const char *const keys[] = {"reasoning_content", "reasoning", "thinking"};
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        const json_t *value = json_object_get(message, keys[k]);
        if (!value || json_is_null(value)) continue;
        DT_CHECK(json_is_string(value), DT_ERR_DATA, "message %zu: %s: expected a text, found %s", turn, keys[k],
                 type_name(value));
        const size_t n = json_string_length(value);
        if (n > 0) {
            DT_CHECK(out->role == DT_ROLE_ASSISTANT, DT_ERR_DATA,
                     "message %zu: %s: only answers can have thoughts; remove the field", turn, keys[k]);
            DT_CHECK(out->n_thoughts == 0, DT_ERR_DATA, "message %zu: %s and %s: expected only one of them", turn,
                     out->thoughts_key, keys[k]);
        }
        if (out->n_thoughts > 0) continue;
        out->thoughts = json_string_value(value);
        out->n_thoughts = n;
        out->thoughts_key = keys[k];
    }
    return DT_OK;
}

/* Read whether the answer is a target: 0 and false exclude it, in the fields of OpenAI, ms-swift and Axolotl. */
static dt_err read_loss(dt_message *out, const json_t *message, size_t turn)
{
    static const char *const keys[] = {"weight", "loss_scale", "loss", "train", "training"};
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        const json_t *value = json_object_get(message, keys[k]);
        if (!value || json_is_null(value)) continue;
        const double number = json_is_number(value) ? json_number_value(value) : json_is_true(value);
        DT_CHECK((json_is_boolean(value) || json_is_number(value)) && (number == 0 || number == 1), DT_ERR_DATA,
                 "message %zu: %s: expected 0 or false (excluded from the loss), or 1 or true; other weights apply to "
                 "whole records (--weight-key)",
                 turn, keys[k]);
        DT_CHECK(number == 0 || out->role == DT_ROLE_ASSISTANT, DT_ERR_DATA,
                 "message %zu: %s: the loss covers only answers: expected 0 or false, or an assistant message (--mask "
                 "full trains on all messages)",
                 turn, keys[k]);
        if (number == 0 && out->role == DT_ROLE_ASSISTANT) out->no_loss = keys[k];
    }
    return DT_OK;
}

static dt_err read_fields(dt_messages *m, const json_t *message, size_t turn)
{
    dt_message *out = &m->item[m->n - 1];
    out->name = json_string_value(json_object_get(message, "name"));
    out->call_id = json_string_value(json_object_get(message, "tool_call_id"));
    DT_TRY(read_thoughts(out, message, turn));
    return read_loss(out, message, turn);
}

static dt_err refuse_message(const json_t *message, size_t turn, const char *role_key, const char *text_key)
{
    char keys[200] = "";
    size_t n = 0;
    for (void *it = json_object_iter((json_t *)message); it && n < sizeof keys;
         it = json_object_iter_next((json_t *)message, it))
        n += (size_t)snprintf(keys + n, sizeof keys - n, "%s%s", n ? ", " : "the keys ", json_object_iter_key(it));
    return dt_fail(DT_ERR_DATA, "message %zu: expected {\"%s\": TEXT, \"%s\": ...}, found %s", turn, role_key, text_key,
                   keys[0] ? keys : type_name(message));
}

static dt_err read_message(dt_messages *m, const json_t *message, size_t turn, const char *role_key,
                           const char *text_key)
{
    const json_t *name = json_object_get(message, role_key), *content = json_object_get(message, text_key), *calls,
                 *given;
    dt_role role = DT_ROLE_USER;
    const char *word = json_string_value(name);
    DT_TRY(dt_message_check_fields(message, turn));
    DT_CHECK(!word || dt_role_parse(word, &role), DT_ERR_DATA,
             "message %zu: unknown role \"%s\": expected system, user, assistant or tool (human, gpt, observation, "
             "function_call)",
             turn, word);
    DT_TRY(dt_message_read_calls(m, message, turn, role, &calls, &given));
    const bool blank = calls && (!content || json_is_null(content));
    if (!word || (!content && !blank)) return refuse_message(message, turn, role_key, text_key);
    DT_TRY(blank ? dt_messages_add(m, role, "", 0) : read_content(m, content, turn, role));
    dt_message *out = &m->item[m->n - 1];
    out->calls = calls;
    out->given_calls = given;
    out->content = blank ? DT_CONTENT_NONE : DT_CONTENT_TEXT;
    out->developer = strcmp(word, "developer") == 0;
    DT_TRY(read_fields(m, message, turn));
    if (strcmp(word, "function_call") == 0 && !calls) return dt_message_read_call_text(m, out);
    return role == DT_ROLE_TOOL ? dt_message_find_call(m, out) : DT_OK;
}

dt_err dt_messages_parse(dt_messages *m, const json_t *list, const char *what, const char *role_key,
                         const char *text_key)
{
    DT_CHECK(json_is_array(list) && json_array_size(list) > 0, DT_ERR_DATA,
             "%s: expected a list of messages, [{\"role\": ..., \"content\": ...}, ...]", what);
    size_t i;
    const json_t *message;
    json_array_foreach(list, i, message) DT_TRY(read_message(m, message, i, role_key, text_key));
    return DT_OK;
}

void dt_messages_clear(dt_messages *m)
{
    for (int i = 0; i < m->n_owned; i++) free(m->owned[i]);
    m->n_owned = m->n = m->images.n = m->n_calls = m->n_results = 0;
    json_decref(m->tools);
    json_decref(m->values);
    m->tools = m->values = NULL;
    m->tools_text = NULL;
    m->tools_are_text = false;
}

void dt_messages_free(dt_messages *m)
{
    dt_messages_clear(m);
    free(m->owned);
    dt_image_names_free(&m->images);
    free(m->item);
    *m = (dt_messages){0};
}
