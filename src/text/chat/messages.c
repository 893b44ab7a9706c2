/* messages.c - who said what, out of JSON. Every value is checked to be what it should be: a conversation that is half
 * read trains on the wrong thing. */
#include "dtrain/chat.h"

#include <stdlib.h>
#include <string.h>

/* A role's own name comes first. */
static const struct {
    const char *name;
    dt_role role;
} roles[] = {{"system", DT_ROLE_SYSTEM},   {"developer", DT_ROLE_SYSTEM},        {"user", DT_ROLE_USER},
             {"human", DT_ROLE_USER},      {"assistant", DT_ROLE_ASSISTANT},     {"gpt", DT_ROLE_ASSISTANT},
             {"model", DT_ROLE_ASSISTANT}, {"function_call", DT_ROLE_ASSISTANT}, {"tool", DT_ROLE_TOOL},
             {"function", DT_ROLE_TOOL},   {"observation", DT_ROLE_TOOL}};
enum { N_ROLE_NAMES = sizeof roles / sizeof roles[0] };

bool dt_role_named(int i, const char **name, dt_role *role)
{
    if (i < 0 || i >= N_ROLE_NAMES) return false;
    *name = roles[i].name;
    *role = roles[i].role;
    return true;
}

bool dt_role_parse(const char *name, dt_role *role)
{
    for (int i = 0; i < N_ROLE_NAMES; i++)
        if (strcmp(roles[i].name, name) == 0) return *role = roles[i].role, true;
    return false;
}

dt_err dt_messages_add(dt_messages *m, dt_role role, const char *text, size_t nbytes)
{
    if (m->n == m->n_alloc) {
        const int n = m->n_alloc ? 2 * m->n_alloc : 16;
        dt_message *more = realloc(m->item, (size_t)n * sizeof *more);
        DT_CHECK(more, DT_ERR_MEMORY, "no memory for %d messages", n);
        m->item = more;
        m->n_alloc = n;
    }
    m->item[m->n++] = (dt_message){.role = role, .text = text, .nbytes = nbytes};
    return DT_OK;
}

dt_err dt_messages_own(dt_messages *m, char *text)
{
    char **more = text ? realloc(m->owned, ((size_t)m->n_owned + 1) * sizeof *more) : NULL;
    if (more) m->owned = more;
    if (!more) free(text);
    DT_CHECK(more, DT_ERR_MEMORY, "no memory for a message");
    m->owned[m->n_owned++] = text;
    return DT_OK;
}

static bool is_image(const dt_messages *m, const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return m->image_text && type && strcmp(type, "image") == 0;
}

static dt_err note_image(dt_messages *m, const json_t *part)
{
    static const char *const keys[] = {"image", "path", "url"};
    const char *path = NULL;
    for (size_t k = 0; k < sizeof keys / sizeof keys[0] && !path; k++)
        path = dt_image_name_of(json_object_get(part, keys[k]));
    return dt_image_names_add(&m->images, path);
}

static dt_err check_parts(dt_messages *m, const json_t *parts, size_t turn, size_t *nbytes, int *n_images)
{
    size_t i;
    const json_t *part;
    *nbytes = 0;
    *n_images = 0;
    json_array_foreach(parts, i, part)
    {
        if (is_image(m, part)) {
            ++*n_images;
            DT_TRY(note_image(m, part));
            continue;
        }
        const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
        DT_CHECK(json_is_string(text) &&
                     (!type || (json_is_string(type) && strcmp(json_string_value(type), "text") == 0)),
                 DT_ERR_DATA, "message %zu: part %zu of its content: expected {\"type\": \"text\", \"text\": ...}%s",
                 turn, i, m->image_text ? " or {\"type\": \"image\"}" : "");
        *nbytes += json_string_length(text);
    }
    return DT_OK;
}

/* A text, or a list of parts of type text. */
static dt_err read_content(dt_messages *m, const json_t *content, size_t turn, dt_role role)
{
    if (json_is_string(content))
        return dt_messages_add(m, role, json_string_value(content), json_string_length(content));
    DT_CHECK(json_is_array(content), DT_ERR_DATA, "message %zu: content: expected a text", turn);
    size_t nbytes, i;
    int n_images;
    const json_t *part;
    DT_TRY(check_parts(m, content, turn, &nbytes, &n_images));
    char *text = malloc(nbytes + 1), *to = text;
    DT_TRY(dt_messages_own(m, text));
    json_array_foreach(content, i, part)
    {
        if (is_image(m, part)) continue;
        const json_t *words = json_object_get(part, "text");
        memcpy(to, json_string_value(words), json_string_length(words));
        to += json_string_length(words);
    }
    if (n_images > 0) {
        text = dt_text_after_images(m->image_text, n_images, text, &nbytes);
        DT_TRY(dt_messages_own(m, text));
    }
    return dt_messages_add(m, role, text, nbytes);
}

dt_err dt_messages_parse(dt_messages *m, const json_t *list, const char *what, const char *role_key,
                         const char *text_key)
{
    DT_CHECK(json_is_array(list) && json_array_size(list) > 0, DT_ERR_DATA, "%s: expected a list of messages", what);
    size_t i;
    const json_t *message;
    json_array_foreach(list, i, message)
    {
        const json_t *name = json_object_get(message, role_key), *content = json_object_get(message, text_key);
        DT_CHECK(json_is_string(name) && content, DT_ERR_DATA, "message %zu: expected {\"%s\": ..., \"%s\": ...}", i,
                 role_key, text_key);
        dt_role role = DT_ROLE_USER;
        DT_CHECK(dt_role_parse(json_string_value(name), &role), DT_ERR_DATA,
                 "message %zu: unknown role \"%s\": expected system, user, assistant or tool (human, gpt, observation, "
                 "function_call)",
                 i, json_string_value(name));
        DT_TRY(read_content(m, content, i, role));
        m->item[m->n - 1].developer = strcmp(json_string_value(name), "developer") == 0;
    }
    return DT_OK;
}

void dt_messages_clear(dt_messages *m)
{
    for (int i = 0; i < m->n_owned; i++) free(m->owned[i]);
    m->n_owned = m->n = m->images.n = 0;
}

void dt_messages_free(dt_messages *m)
{
    dt_messages_clear(m);
    free(m->owned);
    dt_image_names_free(&m->images);
    free(m->item);
    *m = (dt_messages){0};
}
