/* chat_file.c - templates of the user's own, in JSON:
 *
 *     {"name": "mine", "begin": "{bos}", "default_system": "Be brief.", "trim": false, "system_place": "turn",
 *      "system": {"prefix": "", "after": "\n"}, "user": {"prefix": "Q: ", "after": "\n"},
 *      "assistant": {"prefix": "A:", "lead": " ", "end": "{eos}", "after": "\n"}}
 */
#include "chat_template.h"
#include "dtrain/io.h"
#include "dtrain/json.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_NBYTES = 1 << 20 };

static dt_err text(const char *path, const char *where, const char *key, const json_t *value, const char **out)
{
    DT_CHECK(json_is_string(value), DT_ERR_DATA, "%s: %s%s%s: expected a text", path, where, where[0] ? "." : "", key);
    *out = json_string_value(value);
    return DT_OK;
}

static dt_err read_turn(const char *path, const char *role, const json_t *turn, dt_turn_template *f)
{
    DT_CHECK(json_is_object(turn), DT_ERR_DATA, "%s: %s: expected an object with prefix, lead, end, after, open, close",
             path, role);
    const struct {
        const char *key;
        const char **to;
    } keys[] = {{"prefix", &f->prefix}, {"lead", &f->lead}, {"end", &f->end},
                {"after", &f->after},   {"open", &f->open}, {"close", &f->close}};
    enum { N_KEYS = sizeof keys / sizeof keys[0] };
    const char *key;
    const json_t *value;
    for (void *it = json_object_iter((json_t *)turn); it; it = json_object_iter_next((json_t *)turn, it)) {
        key = json_object_iter_key(it);
        value = json_object_iter_value(it);
        int i = 0;
        while (i < N_KEYS && strcmp(keys[i].key, key) != 0) i++;
        DT_CHECK(i < N_KEYS, DT_ERR_DATA, "%s: %s.%s: unknown key: expected prefix, lead, end, after, open or close",
                 path, role, key);
        DT_TRY(text(path, role, key, value, keys[i].to));
    }
    return DT_OK;
}

static dt_err read_place(const char *path, const json_t *value, dt_system_position *place)
{
    static const char *const names[] = {"turn", "first_user", "last_user"};
    for (int i = 0; i < 3; i++)
        if (json_is_string(value) && strcmp(json_string_value(value), names[i]) == 0)
            return *place = (dt_system_position)i, DT_OK;
    return dt_fail(DT_ERR_DATA, "%s: system_place: expected turn, first_user or last_user", path);
}

static dt_err read_key(const char *path, const char *key, const json_t *value, dt_chat_template *f)
{
    static const char *const roles[DT_N_ROLES] = {"system", "user", "assistant", "tool"};
    for (int r = 0; r < DT_N_ROLES; r++)
        if (strcmp(key, roles[r]) == 0) return read_turn(path, roles[r], value, &f->turns[r]);
    const struct {
        const char *key;
        const char **to;
    } keys[] = {{"name", &f->name},           {"begin", &f->begin},           {"default_system", &f->default_system},
                {"think_off", &f->think_off}, {"input_join", &f->input_join}, {"input_system", &f->input_system}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strcmp(key, keys[i].key) == 0) return text(path, "", key, value, keys[i].to);
    if (strcmp(key, "system_place") == 0) return read_place(path, value, &f->system);
    bool *flag = strcmp(key, "trim") == 0 ? &f->trim : strcmp(key, "trim_answer") == 0 ? &f->trim_answer : NULL;
    DT_CHECK(flag, DT_ERR_DATA,
             "%s: %s: unknown key: expected name, begin, default_system, think_off, input_join, input_system, "
             "system_place, trim, "
             "trim_answer, system, user, assistant or tool",
             path, key);
    DT_CHECK(json_is_boolean(value), DT_ERR_DATA, "%s: %s: expected true or false", path, key);
    *flag = json_is_true(value);
    return DT_OK;
}

static dt_err check_form(const char *path, const json_t *root, const dt_chat_template *f)
{
    for (int i = 0; i < 2; i++) {
        static const char *const needed[] = {"user", "assistant"};
        DT_CHECK(json_object_get(root, needed[i]), DT_ERR_DATA, "%s: %s: missing", path, needed[i]);
    }
    const char *end = f->turns[DT_ROLE_ASSISTANT].end;
    DT_CHECK(end && end[0], DT_ERR_DATA, "%s: assistant.end: expected what ends a turn, found nothing", path);
    return DT_OK;
}

dt_err dt_chat_template_parse(const char *name, const char *text, size_t nbytes, dt_chat_template *form, json_t **root)
{
    *form = (dt_chat_template){.name = name};
    *root = NULL;
    DT_TRY(dt_json_parse(root, name, text, nbytes, 0));
    DT_CHECK(json_is_object(*root), DT_ERR_DATA, "%s: expected a JSON object", name);
    for (void *it = json_object_iter(*root); it; it = json_object_iter_next(*root, it))
        DT_TRY(read_key(name, json_object_iter_key(it), json_object_iter_value(it), form));
    return check_form(name, *root, form);
}

dt_err dt_chat_template_read(const char *path, dt_chat_template *form, json_t **root)
{
    char *text;
    size_t n;
    *root = NULL;
    DT_TRY(dt_read_file(path, MAX_NBYTES, &text, &n));
    const dt_err err = dt_chat_template_parse(path, text, n, form, root);
    free(text);
    return err;
}
