/* chat_source.c - finds a directory's chat template, in the order of transformers 5: chat_template.jinja
 * and additional_chat_templates/NAME.jinja; else the key chat_template of tokenizer_config.json, a text or
 * a list of named texts; else chat_template.json and processor_config.json of a processor. */
#include "tokenizer_json.h"
#include "dtrain/io/io.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>

enum { MAX_TEMPLATE = 16 << 20 };
static const char folder[] = "additional_chat_templates", ending[] = ".jinja";

static dt_err keep(dt_json_tokenizer *j, const char *text, const char *file)
{
    free(j->chat_template);
    j->chat_template = strdup(text);
    j->chat_template_file = file;
    DT_CHECK(j->chat_template, DT_ERR_MEMORY, "out of memory for a chat template");
    return DT_OK;
}

/* Add a named template. The one named `default` is used, unless the record has tools and one is named `tool_use`. */
static dt_err take_named(dt_json_tokenizer *j, const char *name, const char *text, const char *file)
{
    if (!j->chat_templates) j->chat_templates = json_object();
    DT_CHECK(json_object_set_new(j->chat_templates, name, json_string(text)) == 0, DT_ERR_MEMORY,
             "out of memory for a chat template");
    j->chat_template_file = file;
    return strcmp(name, "default") == 0 ? keep(j, text, file) : DT_OK;
}

/* The key chat_template: a text, a list of {name, template}, or an object of names and texts. */
static dt_err read_key(dt_json_tokenizer *j, const dt_spec *root, const char *file)
{
    dt_spec v;
    const char *text = NULL, *name;
    json_t *value;
    if (!dt_spec_get(root, "chat_template", &v)) return DT_OK;
    if (json_is_array(v.value)) {
        for (size_t i = 0; i < json_array_size(v.value); i++) {
            const dt_spec item = dt_spec_item(&v, i);
            DT_TRY(dt_spec_need_string(&item, "name", &name));
            DT_TRY(dt_spec_need_string(&item, "template", &text));
            DT_TRY(take_named(j, name, text, file));
        }
        return DT_OK;
    }
    if (json_is_object(v.value)) {
        json_object_foreach((json_t *)v.value, name, value)
        {
            DT_TRY(dt_spec_need_string(&v, name, &text));
            DT_TRY(take_named(j, name, text, file));
        }
        return DT_OK;
    }
    DT_TRY(dt_spec_string(root, "chat_template", &text));
    return text ? keep(j, text, file) : DT_OK;
}

/* Read the text of a Jinja file, if it exists. text: out, malloc'ed; NULL: it does not. */
static dt_err read_jinja(const char *directory, const char *name, char **text)
{
    char path[PATH_MAX];
    size_t n;
    *text = NULL;
    if (!dt_is_in(path, directory, name)) return DT_OK;
    DT_TRY(dt_read_file(path, MAX_TEMPLATE, text, &n));
    DT_CHECK(strlen(*text) == n, DT_ERR_DATA, "%s: expected text, found a zero byte", path);
    return DT_OK;
}

/* Read chat_template.jinja, the default template. */
static dt_err read_file(dt_json_tokenizer *j)
{
    char *text;
    dt_err err = read_jinja(j->directory, "chat_template.jinja", &text);
    if (err == DT_OK && text) err = keep(j, text, "chat_template.jinja");
    free(text);
    return err;
}

static int is_template(const struct dirent *entry) { return dt_has_ending(entry->d_name, ending); }

static dt_err read_folder_file(dt_json_tokenizer *j, const char *path, char *name)
{
    char *text;
    const char *before = j->chat_template_file;
    dt_err err = read_jinja(path, name, &text);
    name[strlen(name) - strlen(ending)] = '\0';
    if (err == DT_OK && text) err = take_named(j, name, text, folder);
    if (before) j->chat_template_file = before;
    free(text);
    return err;
}

static dt_err read_folder(dt_json_tokenizer *j)
{
    char path[PATH_MAX];
    struct dirent **entries = NULL;
    const int n = dt_is_in(path, j->directory, folder) ? scandir(path, &entries, is_template, alphasort) : 0;
    dt_err err = DT_OK;
    for (int i = 0; i < n; i++) {
        if (err == DT_OK) err = read_folder_file(j, path, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return err;
}

static dt_err read_json(dt_json_tokenizer *j, const char *file)
{
    char path[PATH_MAX];
    dt_spec root = {0};
    if (!dt_is_in(path, j->directory, file)) return DT_OK;
    dt_err err = dt_spec_load(&root, path, MAX_TEMPLATE, DT_JSON_NUL_KEYS, NULL, NULL);
    if (err == DT_OK) err = read_key(j, &root, file);
    dt_spec_unload(&root);
    return err;
}

dt_err dt_tokenizer_read_template(dt_json_tokenizer *j, const dt_spec *config)
{
    DT_TRY(read_file(j));
    DT_TRY(read_folder(j));
    if (!j->chat_template && !j->chat_templates) DT_TRY(read_key(j, config, "tokenizer_config.json"));
    if (!j->chat_template && !j->chat_templates) DT_TRY(read_json(j, "chat_template.json"));
    if (!j->chat_template && !j->chat_templates) DT_TRY(read_json(j, "processor_config.json"));
    return DT_OK;
}
