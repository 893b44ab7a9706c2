/* tokenizer_files.c - copy the files of a tokenizer. */
#include "tokenizer_files.h"
#include "vision_files.h"
#include "dtrain/pretrained/export.h"
#include "dtrain/io/io.h"
#include "dtrain/io/spec.h"
#include "dtrain/tokenizer/tokenizer.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Each of the first N_VOCABULARIES suffices as a tokenizer; the others supplement it. */
static const char *const FILES[] = {"tokenizer.json",    "tokenizer.model",       "vocab.json",
                                    "merges.txt",        "tokenizer_config.json", "special_tokens_map.json",
                                    "added_tokens.json", "chat_template.jinja",   "generation_config.json",
                                    VISION_PREPROCESSOR, VISION_PROCESSOR};
enum {
    N_FILES = sizeof FILES / sizeof FILES[0],
    N_VOCABULARIES = 3,
    N_COPIED = N_FILES - 2,    /* the files after these are generated */
    GENERATION = N_COPIED - 1, /* belongs to the model */
    TEMPLATE = N_COPIED - 2,
    CONFIG = 4,
    MAX_CONFIG = 64 << 20 /* bytes */
};

bool tokenizer_dir_has_files(const char *dir)
{
    char path[PATH_MAX];
    for (int i = 0; i < N_VOCABULARIES; i++)
        if (dt_join_path(path, dir, FILES[i], "") && dt_is_file(path)) return true;
    return false;
}

dt_err dt_export_check_tokenizer(const char *tokenizer)
{
    if (!tokenizer || !*tokenizer || strcmp(tokenizer, "bytes") == 0 || dt_is_file(tokenizer)) return DT_OK;
    char hint[3 * PATH_MAX];
    DT_CHECK(dt_is_directory(tokenizer), DT_ERR_DATA,
             "%s: expected a tokenizer (a directory, a tokenizer.json, or bytes): %s%s", tokenizer, strerror(errno),
             dt_missing_model_hint(tokenizer, errno, hint, sizeof hint));
    DT_CHECK(tokenizer_dir_has_files(tokenizer), DT_ERR_DATA,
             "%s: expected a tokenizer.json (or tokenizer.model, vocab.json) in this directory, found none", tokenizer);
    return DT_OK;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Copy to DIR/NAME.part. */
static dt_err copy_file(const char *from, const char *dir, const char *name)
{
    char part[PATH_MAX];
    DT_CHECK(dt_join_path(part, dir, name, ".part"), DT_ERR_WRITE, "%s/%s: the path is too long", dir, name);
    return dt_copy_file(from, part);
}

static dt_err write_text(const char *dir, const char *name, const char *text)
{
    char part[PATH_MAX];
    DT_CHECK(dt_join_path(part, dir, name, ".part"), DT_ERR_WRITE, "%s/%s: the path is too long", dir, name);
    return dt_write_file_sync(part, text, strlen(text));
}

static dt_err write_owned_text(const char *dir, const char *name, char *text)
{
    const dt_err err = text ? write_text(dir, name, text) : dt_fail(DT_ERR_MEMORY, "out of memory for %s", name);
    free(text);
    return err;
}

static bool has_part(const char *dir, int i)
{
    char part[PATH_MAX];
    return dt_join_path(part, dir, FILES[i], ".part") && dt_is_file(part);
}

/* Write what stands for a tokenizer.model without a tokenizer.json. A file that is not read stays as it is. */
static dt_err write_json_of_model(const char *tokenizer, const char *dir)
{
    char *text, *config;
    size_t nbytes;
    dt_err err = dt_tokenizer_model_to_json(tokenizer, &text, &nbytes, &config);
    if (err == DT_ERR_DATA) {
        DT_WARN("%s; exported without a tokenizer.json", dt_error_message());
        dt_error_clear();
        return DT_OK;
    }
    if (err == DT_OK && text) err = write_text(dir, FILES[0], text);
    if (err == DT_OK && text) err = write_text(dir, FILES[CONFIG], config);
    free(text);
    free(config);
    return err;
}

static bool is_model(const char *file) { return dt_has_ending(file, ".model"); }

/* from: a directory, or a tokenizer.json or tokenizer.model in it, under any name. */
static dt_err copy_files(const char *from_dir, const char *from, const char *dir)
{
    char path[PATH_MAX];
    const bool is_dir = from == from_dir;
    if (!is_dir) DT_TRY(copy_file(from, dir, FILES[is_model(from)]));
    for (int i = is_dir ? 0 : 1 + is_model(from); i < N_COPIED; i++)
        if (dt_join_path(path, from_dir, FILES[i], "") && dt_is_file(path)) DT_TRY(copy_file(path, dir, FILES[i]));
    return has_part(dir, 0) || !has_part(dir, 1) ? DT_OK : write_json_of_model(from, dir);
}

static dt_err create_tokenizer(const char *tokenizer, const char *dir)
{
    char folder[PATH_MAX];
    if (!tokenizer || !*tokenizer) return DT_OK;
    if (strcmp(tokenizer, "bytes") == 0) {
        DT_TRY(write_owned_text(dir, "tokenizer.json", bytes_tokenizer_json()));
        return write_owned_text(dir, "tokenizer_config.json", bytes_tokenizer_config_json());
    }
    DT_TRY(dt_export_check_tokenizer(tokenizer));
    if (dt_is_directory(tokenizer)) return copy_files(tokenizer, tokenizer, dir);
    const char *slash = strrchr(tokenizer, '/');
    const int len = slash == tokenizer ? 1 : slash ? (int)(slash - tokenizer) : 1;
    DT_CHECK((size_t)snprintf(folder, sizeof folder, "%.*s", len, slash ? tokenizer : ".") < sizeof folder, DT_ERR_DATA,
             "%s: the path is too long", tokenizer);
    return copy_files(folder, tokenizer, dir);
}

/* For a vision-language model; other models and adapters have no such files. */
static dt_err create_vision(const dt_export_options *opt, const char *dir)
{
    char *preprocessor, *processor;
    if (opt->adapter) return DT_OK;
    DT_TRY(vision_make_files(opt, &preprocessor, &processor));
    if (!preprocessor) return DT_OK;
    const dt_err err = write_owned_text(dir, VISION_PREPROCESSOR, preprocessor),
                 other = processor ? write_owned_text(dir, VISION_PROCESSOR, processor) : DT_OK;
    return err != DT_OK ? err : other;
}

/* The code that `auto_map` names is not exported. Without it, transformers reads tokenizer.json as dtrain does. A file
 * that is not JSON stays as it is. */
static dt_err drop_code(const char *dir)
{
    char part[PATH_MAX], *text = NULL, *plain = NULL;
    size_t nbytes;
    dt_spec root;
    if (!has_part(dir, 0) || !has_part(dir, CONFIG) || !dt_join_path(part, dir, FILES[CONFIG], ".part")) return DT_OK;
    if (dt_spec_load(&root, part, MAX_CONFIG, DT_JSON_NUL_KEYS, &text, &nbytes) != DT_OK) {
        dt_error_clear();
        return DT_OK;
    }
    json_t *none = json_object_get(root.value, "auto_map") ? json_object() : NULL;
    dt_err err = DT_OK;
    if (none && !(plain = tokenizer_with_value(text, "auto_map", none)))
        err = dt_fail(DT_ERR_MEMORY, "%s: out of memory for its text", part);
    if (plain) err = dt_write_file_sync(part, plain, strlen(plain));
    free(plain);
    free(text);
    json_decref(none);
    dt_spec_unload(&root);
    return err;
}

dt_err tokenizer_files_create(const dt_export_options *opt, const char *dir)
{
    char path[PATH_MAX];
    const dt_new_tokens none = {0}, *more = opt->new_tokens ? opt->new_tokens : &none;
    DT_TRY(create_tokenizer(opt->tokenizer, dir));
    if (more->tokenizer) DT_TRY(write_text(dir, "tokenizer.json", more->tokenizer));
    if (more->config) DT_TRY(write_text(dir, "tokenizer_config.json", more->config));
    if (more->added_tokens) DT_TRY(write_text(dir, "added_tokens.json", more->added_tokens));
    DT_TRY(drop_code(dir));
    if (opt->chat_template) DT_TRY(write_text(dir, FILES[TEMPLATE], opt->chat_template));
    DT_TRY(create_vision(opt, dir));
    if (!opt->generation_from || has_part(dir, GENERATION)) return DT_OK;
    return dt_join_path(path, opt->generation_from, FILES[GENERATION], "") && dt_is_file(path)
               ? copy_file(path, dir, FILES[GENERATION])
               : DT_OK;
}

dt_err tokenizer_files_publish(const char *dir)
{
    char part[PATH_MAX], path[PATH_MAX];
    bool any = false;
    for (int i = 0; i < GENERATION; i++) any = any || has_part(dir, i);
    for (int i = 0; i < N_FILES; i++) {
        DT_CHECK(dt_join_path(part, dir, FILES[i], ".part") && dt_join_path(path, dir, FILES[i], ""), DT_ERR_WRITE,
                 "%s: the path is too long", dir);
        if (dt_is_file(part))
            DT_TRY(dt_rename_durable(part, path));
        else if (any && unlink(path) != 0 && errno != ENOENT)
            return dt_fail_errno(DT_ERR_WRITE, path, "an earlier tokenizer's file cannot be removed");
    }
    return DT_OK;
}

void tokenizer_files_discard(const char *dir)
{
    char part[PATH_MAX];
    for (int i = 0; i < N_FILES; i++)
        if (dt_join_path(part, dir, FILES[i], ".part")) dt_remove_part(part);
}
