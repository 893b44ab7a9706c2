/* forms.c - dtrain's own templates (templates/built_in.json) and those of users, which are JSON files:
 *
 *     {"name": "mine", "begin": "{bos}", "default_system": "Be brief.", "trim": false,
 *      "system_place": "turn", "system": {"prefix": "", "after": "\n"}, "user": {"prefix": "Q: ", "after": "\n"},
 *      "assistant": {"prefix": "A:", "lead": " ", "end": "{eos}", "after": "\n"}}
 *
 * A built-in template may name another one as "like", whose missing texts it inherits. Sources of the texts:
 * algorithms.md A.3, and the chat_template of the named models. */
#include "chat_private.h"

#include "dtrain/io/io.h"
#include "dtrain/io/spec.h"
#include <ctype.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define EMBED(name, file)                                                                                              \
    __asm__(".pushsection .rodata\n"                                                                                   \
            ".globl " #name "\n"                                                                                       \
            ".type " #name ", %object\n" #name ":\n"                                                                   \
            ".incbin \"src/chat/templates/" file "\"\n"                                                                \
            ".byte 0\n"                                                                                                \
            ".size " #name ", . - " #name "\n"                                                                         \
            ".popsection\n");                                                                                          \
    extern const char name[]
EMBED(dt_chat_built_in, "built_in.json");
EMBED(dt_chat_form, "form.jinja");

static const char *const roles[DT_N_ROLES] = {"system", "user", "assistant", "tool"};
static const char turn_keys[] = "prefix lead end after open close";

const char *dt_form_text(const json_t *form, const char *key) { return json_string_value(json_object_get(form, key)); }

/* ---- built-in forms ---------------------------------------------------------------------------------------------- */

/* Parsed by the first call, and cached. */
static const json_t *built_in(void)
{
    static _Atomic(json_t *) kept;
    json_t *all = atomic_load(&kept), *before = NULL;
    if (all) return all;
    all = json_loads(dt_chat_built_in, 0, NULL);
    if (all && !atomic_compare_exchange_strong(&kept, &before, all)) {
        json_decref(all);
        all = before;
    }
    return all;
}

bool dt_chat_named(int i, const char **name, const char **help)
{
    const json_t *form = i < 0 ? NULL : json_array_get(built_in(), (size_t)i);
    *name = dt_form_text(form, "name");
    *help = dt_form_text(form, "help");
    return form != NULL;
}

static const json_t *find(const char *name)
{
    size_t i;
    const json_t *form;
    if (strcmp(name, "mistral") == 0) name = "mistral-v1";
    json_array_foreach(built_in(), i, form) if (strcmp(dt_form_text(form, "name"), name) == 0) return form;
    return NULL;
}

/* A copy of the form, with the texts that it inherits ("like"). NULL: no memory. */
static json_t *inherited(const json_t *form)
{
    const char *like = dt_form_text(form, "like");
    json_t *whole = like ? inherited(find(like)) : json_object();
    if (!whole || json_object_update(whole, (json_t *)form) != 0) {
        json_decref(whole);
        return NULL;
    }
    return whole;
}

/* A template name equal to name except for case and punctuation, or with it as prefix: llama3 is llama-3. */
static const char *near_name(const char *name)
{
    const char *one, *about, *longer = NULL;
    for (int i = 0; dt_chat_named(i, &one, &about); i++) {
        const char *a = name, *b = one;
        for (;; a++, b++) {
            while (*a && !isalnum((unsigned char)*a)) a++;
            while (*b && !isalnum((unsigned char)*b)) b++;
            if (!*a || tolower((unsigned char)*a) != tolower((unsigned char)*b)) break;
        }
        if (!*a && !*b) return one;
        if (!*a && !longer) longer = one;
    }
    return longer;
}

static dt_err unknown_name(const char *name)
{
    char names[512] = "";
    const char *one, *about;
    for (int i = 0, n = 0; dt_chat_named(i, &one, &about) && n < (int)sizeof names; i++)
        n += snprintf(names + n, sizeof names - (size_t)n, "%s%s", i ? ", " : "", one);
    const char *near = near_name(name);
    return dt_fail(DT_ERR_USAGE, "template: expected auto, %s, a JSON file, or a Jinja file, found %s%s%s%s", names,
                   name, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

/* ---- users' forms ------------------------------------------------------------------------------------------------ */

static dt_err check_strings(const dt_spec *s, const char *keys)
{
    const char *text;
    char key[32];
    for (int n = 0; sscanf(keys, "%31s%n", key, &n) == 1; keys += n) DT_TRY(dt_spec_string(s, key, &text));
    return DT_OK;
}

static dt_err check_form(const dt_spec *root)
{
    static const char texts[] = "name begin default_system think_off generation input_join input_system";
    bool flag;
    dt_spec turn;
    const char *word = NULL;
    DT_TRY(dt_spec_only(root,
                        "name begin default_system think_off generation input_join input_system system_place trim "
                        "trim_answer system user assistant tool"));
    DT_TRY(check_strings(root, texts));
    DT_TRY(dt_spec_bool(root, "trim", &flag));
    DT_TRY(dt_spec_bool(root, "trim_answer", &flag));
    DT_TRY(dt_spec_string(root, "system_place", &word));
    if (word && strcmp(word, "turn") != 0 && strcmp(word, "first_user") != 0 && strcmp(word, "last_user") != 0)
        return dt_spec_bad(root, "system_place", "turn, first_user or last_user");
    for (int r = 0; r < DT_N_ROLES; r++) {
        if (!dt_spec_get(root, roles[r], &turn)) continue;
        DT_TRY(dt_spec_only(&turn, turn_keys));
        DT_TRY(check_strings(&turn, turn_keys));
    }
    DT_TRY(dt_spec_need(root, "user", JSON_OBJECT, &turn));
    DT_TRY(dt_spec_need(root, "assistant", JSON_OBJECT, &turn));
    const char *end = dt_form_text(turn.value, "end");
    return end && end[0] ? DT_OK : dt_spec_bad(&turn, "end", "the end of a turn");
}

static dt_err parse_form(const char *name, const char *text, size_t nbytes, json_t **root)
{
    DT_TRY(dt_json_parse(root, name, text, nbytes, 0));
    const dt_err err = check_form(&(dt_spec){.file = name, .value = *root});
    if (err == DT_OK && dt_form_text(*root, "name")) return DT_OK;
    if (err == DT_OK) json_object_set_new(*root, "name", json_string(name));
    return err;
}

static dt_err read_form(const char *path, json_t **root)
{
    enum { MAX_NBYTES = 1 << 20 };
    char *text;
    size_t n;
    DT_TRY(dt_read_file(path, MAX_NBYTES, &text, &n));
    const dt_err err = parse_form(path, text, n, root);
    free(text);
    return err;
}

dt_err dt_form_find(const char *name, json_t **form, json_t **spec)
{
    *form = *spec = NULL;
    const bool is_file = *name != '{' && (strchr(name, '/') || dt_has_ending(name, ".json"));
    dt_err err = *name == '{' ? parse_form("template", name, strlen(name), spec)
                 : is_file    ? read_form(name, spec)
                              : DT_OK;
    const json_t *found = *spec ? *spec : err == DT_OK ? find(name) : NULL;
    if (err == DT_OK && !found) err = built_in() ? unknown_name(name) : dt_fail(DT_ERR_MEMORY, "no memory");
    if (err == DT_OK && !*spec) *spec = json_string(dt_form_text(found, "name"));
    if (err == DT_OK) *form = inherited(found);
    if (err == DT_OK && (!*form || !*spec)) err = dt_fail(DT_ERR_MEMORY, "out of memory for a chat template");
    if (err == DT_OK) return DT_OK;
    json_decref(*spec);
    json_decref(*form);
    *form = *spec = NULL;
    return err;
}

/* ---- Jinja ------------------------------------------------------------------------------------------------------- */

/* A text with {bos} and {eos} replaced. */
static json_t *with_tokens(const char *text, const char *bos, const char *eos)
{
    char *found = NULL;
    size_t size;
    FILE *out = open_memstream(&found, &size);
    for (const char *p = text; out && *p; p++) {
        const bool is_bos = strncmp(p, "{bos}", 5) == 0, is_eos = strncmp(p, "{eos}", 5) == 0;
        const char *token = is_bos ? bos : eos;
        if (!is_bos && !is_eos)
            fputc(*p, out);
        else if (token)
            fputs(token, out);
        if (is_bos || is_eos) p += 4;
    }
    json_t *value = out && fclose(out) == 0 ? json_string(found) : NULL;
    free(found);
    return value;
}

static int put_texts(json_t *to, const json_t *from, const char *keys, const char *bos, const char *eos)
{
    char key[32];
    int failed = 0;
    for (int n = 0; sscanf(keys, "%31s%n", key, &n) == 1; keys += n) {
        const char *text = dt_form_text(from, key);
        if (text) failed |= json_object_set_new(to, key, with_tokens(text, bos, eos));
    }
    return failed;
}

char *dt_form_jinja(const json_t *form, const char *bos, const char *eos)
{
    static const char *const kept[] = {"name", "default_system", "system_place", "trim", "trim_answer"};
    json_t *all = json_object();
    int failed = 0;
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++) {
        json_t *value = json_object_get(form, kept[i]);
        if (value && !json_is_null(value)) failed |= json_object_set(all, kept[i], value);
    }
    failed |= put_texts(all, form, "begin think_off generation", bos, eos);
    for (int r = 0; r < DT_N_ROLES; r++) {
        json_t *turn = json_object();
        failed |= put_texts(turn, json_object_get(form, roles[r]), turn_keys, bos, eos);
        failed |= json_object_set_new(all, roles[r], turn);
    }
    char *literal = failed ? NULL : json_dumps(all, JSON_COMPACT), *text = NULL;
    if (!literal || asprintf(&text, "{%%- set form = %s %%}\n%s", literal, dt_chat_form) < 0) text = NULL;
    free(literal);
    json_decref(all);
    return text;
}
