/* chat_file.c - user-defined templates in JSON:
 *
 *     {"name": "mine", "begin": "{bos}", "default_system": "Be brief.", "trim": false,
 *      "system_place": "turn", "system": {"prefix": "", "after": "\n"}, "user": {"prefix": "Q: ", "after": "\n"},
 *      "assistant": {"prefix": "A:", "lead": " ", "end": "{eos}", "after": "\n"}} */
#include "chat_template.h"
#include "dtrain/io/io.h"
#include "dtrain/io/spec.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_NBYTES = 1 << 20 };
static const char *const roles[DT_N_ROLES] = {"system", "user", "assistant", "tool"};
static const char *const positions[] = {"turn", "first_user", "last_user"};

static dt_err read_turn(const dt_spec *root, const char *role, dt_turn_template *t)
{
    dt_spec turn;
    if (!dt_spec_get(root, role, &turn)) return DT_OK;
    DT_TRY(dt_spec_only(&turn, "prefix lead end after open close"));
    DT_TRY(dt_spec_string(&turn, "prefix", &t->prefix));
    DT_TRY(dt_spec_string(&turn, "lead", &t->lead));
    DT_TRY(dt_spec_string(&turn, "end", &t->end));
    DT_TRY(dt_spec_string(&turn, "after", &t->after));
    DT_TRY(dt_spec_string(&turn, "open", &t->open));
    return dt_spec_string(&turn, "close", &t->close);
}

static dt_err read_position(const dt_spec *root, dt_system_position *position)
{
    const char *word = NULL;
    DT_TRY(dt_spec_string(root, "system_place", &word));
    if (!word) return DT_OK;
    for (int i = 0; i < 3; i++)
        if (strcmp(word, positions[i]) == 0) return *position = (dt_system_position)i, DT_OK;
    return dt_spec_bad(root, "system_place", "turn, first_user or last_user");
}

static dt_err read_template(const dt_spec *root, dt_chat_template *t)
{
    DT_TRY(dt_spec_only(root,
                        "name begin default_system think_off generation input_join input_system system_place trim "
                        "trim_answer system user assistant tool"));
    DT_TRY(dt_spec_string(root, "name", &t->name));
    DT_TRY(dt_spec_string(root, "begin", &t->begin));
    DT_TRY(dt_spec_string(root, "default_system", &t->default_system));
    DT_TRY(dt_spec_string(root, "think_off", &t->think_off));
    DT_TRY(dt_spec_string(root, "generation", &t->generation));
    DT_TRY(dt_spec_string(root, "input_join", &t->input_join));
    DT_TRY(dt_spec_string(root, "input_system", &t->input_system));
    DT_TRY(dt_spec_bool(root, "trim", &t->trim));
    DT_TRY(dt_spec_bool(root, "trim_answer", &t->trim_answer));
    DT_TRY(read_position(root, &t->system));
    for (int r = 0; r < DT_N_ROLES; r++) DT_TRY(read_turn(root, roles[r], &t->turns[r]));
    dt_spec turn;
    DT_TRY(dt_spec_need(root, "user", JSON_OBJECT, &turn));
    DT_TRY(dt_spec_need(root, "assistant", JSON_OBJECT, &turn));
    const char *end = t->turns[DT_ROLE_ASSISTANT].end;
    return end && end[0] ? DT_OK : dt_spec_bad(&turn, "end", "the end of a turn");
}

dt_err dt_chat_template_parse(const char *name, const char *text, size_t nbytes, dt_chat_template *form, json_t **root)
{
    *form = (dt_chat_template){.name = name};
    *root = NULL;
    DT_TRY(dt_json_parse(root, name, text, nbytes, 0));
    return read_template(&(dt_spec){.file = name, .value = *root}, form);
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

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static int put(json_t *object, const char *key, const char *text)
{
    return text ? json_object_set_new(object, key, json_string(text)) : 0;
}

static int put_turn(json_t *root, const char *key, const dt_turn_template *t)
{
    json_t *turn = json_object();
    const int failed = put(turn, "prefix", t->prefix) | put(turn, "lead", t->lead) | put(turn, "end", t->end) |
                       put(turn, "after", t->after) | put(turn, "open", t->open) | put(turn, "close", t->close);
    return json_object_set_new(root, key, turn) | failed;
}

char *dt_chat_template_json(const dt_chat_template *form, const char *default_system, size_t nbytes)
{
    json_t *root = json_object();
    int failed = put(root, "name", form->name) | put(root, "begin", form->begin) |
                 json_object_set_new(root, "default_system", json_stringn(default_system, nbytes)) |
                 put(root, "think_off", form->think_off) | put(root, "generation", form->generation) |
                 put(root, "input_join", form->input_join) | put(root, "input_system", form->input_system) |
                 put(root, "system_place", positions[form->system]) |
                 json_object_set_new(root, "trim", json_boolean(form->trim)) |
                 json_object_set_new(root, "trim_answer", json_boolean(form->trim_answer));
    for (int r = 0; r < DT_N_ROLES; r++) failed |= put_turn(root, roles[r], &form->turns[r]);
    char *text = failed ? NULL : json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}
