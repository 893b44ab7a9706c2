/* chat_source.c - finds a directory's chat template, in the order of transformers 5: chat_template.jinja
 * and additional_chat_templates/NAME.jinja; else the key chat_template of tokenizer_config.json, a text or
 * a list of named texts; else chat_template.json and processor_config.json of a processor. */
#include "tokenizer_json.h"
#include "dtrain/io/io.h"

#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

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

static dt_err note_name(dt_json_tokenizer *j, const char *name)
{
    char *names;
    DT_CHECK(asprintf(&names, "%s%s%.60s", j->chat_template_names ? j->chat_template_names : "",
                      j->chat_template_names ? ", " : "", name) >= 0,
             DT_ERR_MEMORY, "out of memory for a chat template");
    free(j->chat_template_names);
    j->chat_template_names = names;
    return DT_OK;
}

/* Add a named template. The one named `default` is used. */
static dt_err take_named(dt_json_tokenizer *j, const char *name, const char *text, const char *file)
{
    DT_TRY(note_name(j, name));
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

/* Read chat_template.jinja, the default template. */
static dt_err read_file(dt_json_tokenizer *j)
{
    char *path, *text = NULL;
    size_t n;
    DT_CHECK(asprintf(&path, "%s/chat_template.jinja", j->directory) >= 0, DT_ERR_MEMORY, "out of memory for a path");
    dt_err err = access(path, F_OK) == 0 ? dt_read_file(path, MAX_TEMPLATE, &text, &n) : DT_OK;
    if (err == DT_OK && text && strlen(text) != n)
        err = dt_fail(DT_ERR_DATA, "%s: expected text, found a zero byte", path);
    if (err == DT_OK && text) err = keep(j, text, "chat_template.jinja");
    free(text);
    free(path);
    return err;
}

static int is_template(const struct dirent *entry) { return dt_has_ending(entry->d_name, ending); }

/* Only names are recorded: without tools, transformers uses the default template. */
static dt_err read_folder(dt_json_tokenizer *j)
{
    char *path;
    struct dirent **entries = NULL;
    DT_CHECK(asprintf(&path, "%s/%s", j->directory, folder) >= 0, DT_ERR_MEMORY, "out of memory for a path");
    const int n = scandir(path, &entries, is_template, alphasort);
    dt_err err = DT_OK;
    for (int i = 0; i < n; i++) {
        char *name = entries[i]->d_name;
        name[strlen(name) - strlen(ending)] = '\0';
        if (err == DT_OK) err = note_name(j, name);
        free(entries[i]);
    }
    free(entries);
    free(path);
    return err;
}

static dt_err read_json(dt_json_tokenizer *j, const char *file)
{
    char *path;
    dt_spec root = {0};
    DT_CHECK(asprintf(&path, "%s/%s", j->directory, file) >= 0, DT_ERR_MEMORY, "out of memory for a path");
    dt_err err =
        access(path, F_OK) == 0 ? dt_spec_load(&root, path, MAX_TEMPLATE, DT_JSON_NUL_KEYS, NULL, NULL) : DT_OK;
    if (err == DT_OK) err = read_key(j, &root, file);
    dt_spec_unload(&root);
    free(path);
    return err;
}

dt_err dt_tokenizer_read_template(dt_json_tokenizer *j, const dt_spec *config)
{
    DT_TRY(read_file(j));
    DT_TRY(read_folder(j));
    if (!j->chat_template && !j->chat_template_names) DT_TRY(read_key(j, config, "tokenizer_config.json"));
    if (!j->chat_template && !j->chat_template_names) DT_TRY(read_json(j, "chat_template.json"));
    if (!j->chat_template && !j->chat_template_names) DT_TRY(read_json(j, "processor_config.json"));
    return DT_OK;
}
