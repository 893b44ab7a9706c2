/* tokenizer_json.c - reads a tokenizer.json and looks up its tokens. */
#include "tokenizer_json.h"

#include "spm.h"
#include "dtrain/io/io.h"
#include "dtrain/text/utf8.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FILE = 256 << 20 };

static bool is_special(const dt_tokenizer *t, int32_t id)
{
    const dt_json_tokenizer *j = t->impl;
    const dt_vocab_entry *e = dt_vocab_get(&j->bpe.vocab, id);
    return !e || (e->flags & DT_TOKEN_SPECIAL);
}

static const char *token(const dt_tokenizer *t, int32_t id)
{
    const dt_json_tokenizer *j = t->impl;
    const dt_vocab_entry *e = dt_vocab_get(&j->bpe.vocab, id);
    return e ? dt_vocab_text(&j->bpe.vocab, e) : NULL;
}

static int32_t find(const dt_tokenizer *t, const char *text)
{
    const dt_json_tokenizer *j = t->impl;
    return dt_vocab_find(&j->bpe.vocab, text, strlen(text), DT_TOKEN_MODEL | DT_TOKEN_ADDED);
}

static int n_added(const dt_tokenizer *t) { return ((const dt_json_tokenizer *)t->impl)->added.n_tokens; }

static dt_added_form added(const dt_tokenizer *t, int i)
{
    const dt_json_tokenizer *j = t->impl;
    const dt_added_token *a = &j->added.token[i];
    return (dt_added_form){.text = token(t, a->id),
                           .id = a->id,
                           .lstrip = a->flags & DT_ADDED_LSTRIP,
                           .rstrip = a->flags & DT_ADDED_RSTRIP,
                           .single_word = a->flags & DT_ADDED_SINGLE_WORD,
                           .normalized = a->flags & DT_ADDED_NORMALIZED,
                           .special = a->flags & DT_ADDED_SPECIAL};
}

static const char *bytes_of(const dt_tokenizer *t, int32_t id, size_t *nbytes)
{
    const dt_json_tokenizer *j = t->impl;
    *nbytes = 0;
    if (is_special(t, id)) return "";
    const size_t begin = id ? j->running.end[id - 1] : 0;
    *nbytes = j->running.end[id] - begin;
    return j->running.text.bytes + begin;
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

static dt_err decode(const dt_json_tokenizer *j, const int32_t *ids, int64_t n, bool skip_special, dt_matcher *m,
                     dt_texts row[2])
{
    for (int64_t i = 0; i < n; i++) {
        const dt_vocab_entry *e = dt_vocab_get(&j->bpe.vocab, ids[i]);
        if (!e || (skip_special && (e->flags & DT_TOKEN_SPECIAL))) continue;
        DT_TRY(dt_texts_append(&row[0], j->bpe.vocab.text.bytes + e->decoded_at, e->decoded_n));
    }
    return dt_id_decoder_run(&j->decoder, m, row, false);
}

static bool has_patterns(const dt_id_decoder *d)
{
    for (int i = 0; i < d->n_steps; i++)
        if (d->step[i].pattern) return true;
    return false;
}

static char *decode_ids(const dt_tokenizer *t, const int32_t *ids, int64_t n, bool skip_special, size_t *nbytes)
{
    const dt_json_tokenizer *j = t->impl;
    dt_texts row[2] = {0};
    dt_matcher *m = NULL;
    dt_err err = has_patterns(&j->decoder) ? dt_matcher_open(&m) : DT_OK;
    if (err == DT_OK) err = decode(j, ids, n, skip_special, m, row);
    dt_matcher_close(m);
    dt_texts_free(&row[1]);
    free(row[0].end);
    if (err == DT_OK) return dt_text_finish(&row[0].text, nbytes);
    free(row[0].text.bytes);
    return NULL;
}

/* Text of each token in the middle of a text. */
static dt_err find_running(dt_json_tokenizer *j, dt_matcher *m, dt_texts row[2])
{
    const dt_vocab *v = &j->bpe.vocab;
    for (int32_t id = 0; id < v->n_ids; id++) {
        const dt_vocab_entry *e = dt_vocab_get(v, id);
        row[0].n = row[0].text.n = 0;
        if (e && !(e->flags & DT_TOKEN_SPECIAL))
            DT_TRY(dt_texts_append(&row[0], v->text.bytes + e->decoded_at, e->decoded_n));
        if (row[0].n) DT_TRY(dt_id_decoder_run(&j->decoder, m, row, true));
        DT_TRY(dt_texts_append(&j->running, row[0].text.bytes ? row[0].text.bytes : "", row[0].text.n));
    }
    return DT_OK;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* A tokenizer modified by files other than tokenizer.json gets another name. */
static void name_by(dt_json_tokenizer *j, const dt_added_list *tokens)
{
    uint64_t hash = 0;
    const size_t at = strlen(j->name) - 16;
    for (int i = 0; i < tokens->n; i++)
        hash = dt_mix64(hash ^ dt_hash_bytes(tokens->item[i].content, tokens->item[i].n) ^
                        ((uint64_t)tokens->item[i].id << 32 | tokens->item[i].flags));
    hash = dt_mix64(hash ^ (uint64_t)j->class) ^ strtoull(j->name + at, NULL, 16);
    snprintf(j->name + at, sizeof j->name - at, "%016llx", (unsigned long long)hash);
}

static dt_err read_added(dt_json_tokenizer *j, const dt_spec *root, bool rebuilt, dt_matcher *m)
{
    dt_added_list tokens;
    bool changed;
    dt_err err = dt_auto_tokens(&tokens, j->class, &j->files, root, &j->bpe.vocab, &changed, &j->n_own, &j->named);
    if (err == DT_OK) err = dt_added_read(&j->added, &tokens, &j->bpe.vocab, &j->normalizer, m);
    if (err == DT_OK && (changed || rebuilt)) name_by(j, &tokens);
    dt_added_list_free(&tokens);
    return err;
}

static dt_err read_stages(dt_json_tokenizer *j, const dt_spec *root, dt_matcher *m)
{
    bool rebuilt;
    dt_spec model;
    dt_texts row[2] = {0};
    j->class = dt_auto_class_of(&j->files, root);
    DT_TRY(dt_auto_build(j->class, &j->files, root, &rebuilt));
    DT_TRY(dt_spec_need(root, "model", JSON_OBJECT, &model));
    DT_TRY(dt_normalizer_read(&j->normalizer, root));
    DT_TRY(dt_splitter_read(&j->splitter, root));
    DT_TRY(dt_bpe_read(&j->bpe, &model, j->splitter.ends_with_bytes));
    if (!j->bpe.of_bytes) DT_TRY(dt_splitter_map_bytes(&j->splitter));
    DT_TRY(read_added(j, root, rebuilt, m));
    DT_TRY(dt_post_processor_read(&j->wrap, root, &j->bpe.vocab));
    DT_TRY(dt_id_decoder_read(&j->decoder, root));
    const dt_err err = find_running(j, m, row);
    dt_texts_free(&row[0]);
    dt_texts_free(&row[1]);
    dt_json_plan_cuts(j);
    return err;
}

static bool is_spm(const char *file) { return dt_has_ending(file, ".model"); }

/* Read a tokenizer.json, or make it of a tokenizer.model. */
static dt_err load(dt_json_tokenizer *j, const char *file, dt_spec *root, char **text, size_t *n)
{
    json_t *value = NULL;
    if (!is_spm(file)) return dt_spec_load(root, file, MAX_FILE, DT_JSON_NUL_KEYS, text, n);
    *root = (dt_spec){.file = file};
    DT_TRY(dt_spm_to_json(&j->files, file, text, n));
    const dt_err err = dt_json_parse(&value, file, *text, *n, DT_JSON_NUL_KEYS);
    root->value = value;
    return err;
}

static dt_err read_file(dt_json_tokenizer *j, const char *file)
{
    dt_spec root;
    char *text = NULL;
    size_t n = 0;
    dt_matcher *m = NULL;
    dt_err err = load(j, file, &root, &text, &n);
    if (err == DT_OK)
        snprintf(j->name, sizeof j->name, "tokenizer.json:%016llx", (unsigned long long)dt_hash_bytes(text, n));
    free(text);
    if (err == DT_OK) err = dt_matcher_open(&m);
    if (err == DT_OK) err = read_stages(j, &root, m);
    if (err == DT_ERR_USAGE) dt_error_lead(err, "%s: ", file); /* built without a library that the file needs */
    dt_matcher_close(m);
    dt_spec_unload(&root);
    return err;
}

static void close_json(dt_tokenizer *t)
{
    dt_json_tokenizer *j = t->impl;
    if (!j) return;
    dt_normalizer_free(&j->normalizer);
    dt_splitter_free(&j->splitter);
    dt_added_free(&j->added);
    dt_bpe_free(&j->bpe);
    dt_id_decoder_free(&j->decoder);
    dt_texts_free(&j->running);
    dt_auto_close(&j->files);
    free(j->directory);
    free(j->chat_template);
    json_decref(j->chat_templates);
    json_decref(j->named);
    free(j);
}

static size_t nbytes_of(const dt_tokenizer *t)
{
    const dt_json_tokenizer *j = t->impl;
    return dt_bpe_nbytes(&j->bpe) + dt_added_nbytes(&j->added) + dt_texts_nbytes(&j->running);
}

static const dt_tokenizer_ops json_ops = {.close = close_json,
                                          .nbytes = nbytes_of,
                                          .is_special = is_special,
                                          .token = token,
                                          .find = find,
                                          .n_added = n_added,
                                          .added = added,
                                          .bytes = bytes_of,
                                          .encoder_open = dt_json_encoder_open,
                                          .encoder_close = dt_json_encoder_close,
                                          .encoder_nbytes = dt_bpe_work_nbytes,
                                          .encode = dt_json_encode,
                                          .cut = dt_json_cut,
                                          .decode = decode_ids};

/* Users often pass a run's directory instead of its model's. */
static dt_err check_is_there(const char *directory, const char *file)
{
    char checkpoints[PATH_MAX];
    struct stat st;
    if (access(file, F_OK) == 0) return DT_OK;
    const int why = errno;
    snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", directory);
    const bool is_run = stat(checkpoints, &st) == 0 && S_ISDIR(st.st_mode);
    return dt_fail(DT_ERR_DATA, "%s: cannot be opened: %s%s%s%s", file, strerror(why),
                   is_run ? "; the tokenizer of a run is stored in its export, " : "", is_run ? directory : "",
                   is_run ? "/hf (checkpoint.export = hf), or in the model that the run started from; for the "
                            "tokenizer bytes, give the word bytes"
                          : "");
}

/* The file's path, and its directory. */
static dt_err find_file(const char *path, char **file, char **directory)
{
    struct stat st;
    char hint[3 * PATH_MAX];
    DT_CHECK(stat(path, &st) == 0, DT_ERR_DATA,
             "tokenizer: expected bytes, a tokenizer.json or a directory with one, found \"%s\" (%s)%s", path,
             strerror(errno), dt_missing_model_hint(path, errno, hint, sizeof hint));
    const char *slash = strrchr(path, '/');
    if (S_ISDIR(st.st_mode)) {
        char model[PATH_MAX];
        const bool has_model = !dt_is_in(model, path, "tokenizer.json") && dt_is_in(model, path, "tokenizer.model");
        *directory = strdup(path);
        if (asprintf(file, "%s/tokenizer.%s", path, has_model ? "model" : "json") < 0) *file = NULL;
    } else {
        *directory = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
        *file = strdup(path);
    }
    DT_CHECK(*file && *directory, DT_ERR_MEMORY, "out of memory for a tokenizer");
    return check_is_there(*directory, *file);
}

static dt_err make_json(const char *file, const char *directory, char **text, size_t *nbytes, char **config)
{
    dt_auto_files files;
    dt_err err = dt_auto_open(&files, directory);
    if (err == DT_OK) err = dt_spm_to_json(&files, file, text, nbytes);
    if (err == DT_OK) *config = json_dumps(files.file[DT_AUTO_CONFIG].value, JSON_INDENT(2));
    if (err == DT_OK && !*config) err = dt_fail(DT_ERR_MEMORY, "%s: out of memory for its text", file);
    dt_auto_close(&files);
    if (err == DT_OK) return DT_OK;
    free(*text);
    *text = NULL;
    return err;
}

dt_err dt_tokenizer_model_to_json(const char *path, char **text, size_t *nbytes, char **config)
{
    char *file = NULL, *directory = NULL;
    *text = *config = NULL;
    dt_err err = find_file(path, &file, &directory);
    if (err == DT_OK && is_spm(file)) err = make_json(file, directory, text, nbytes, config);
    free(file);
    free(directory);
    return err;
}

/* True if the ids are those of "bytes": 0 to 255 the bytes, 256 the end of text. Exports of byte-level
 * models contain such a file (bytes_tokenizer.c). */
static bool stands_for_bytes(const dt_tokenizer *t)
{
    const dt_json_tokenizer *j = t->impl;
    const dt_bpe *b = &j->bpe;
    bool same =
        b->of_bytes && b->vocab.n_ids == 257 && b->vocab.n_used == 257 && t->info.eos == 256 && is_special(t, 256);
    for (int i = 0; i < 256 && same; i++) same = b->byte_symbol[i] == i;
    return same && j->normalizer.n_steps == 0 && j->splitter.n_steps == 0 && j->wrap.n_before + j->wrap.n_after == 0;
}

dt_err dt_tokenizer_open_json(dt_tokenizer *t, const char *path)
{
    char *file = NULL;
    t->ops = &json_ops;
    dt_json_tokenizer *j = t->impl = calloc(1, sizeof *j);
    DT_CHECK(j, DT_ERR_MEMORY, "out of memory for a tokenizer");
    dt_err err = find_file(path, &file, &j->directory);
    if (err == DT_OK) err = dt_auto_open(&j->files, j->directory);
    if (err == DT_OK) err = read_file(j, file);
    free(file);
    DT_TRY(err);
    t->info = (dt_tokenizer_info){
        .name = j->name, .directory = j->directory, .vocab_size = j->bpe.vocab.n_ids, .bos = -1, .eos = -1, .pad = -1};
    err = dt_tokenizer_read_config(t);
    dt_auto_close(&j->files);
    DT_TRY(err);
    if (stands_for_bytes(t)) strcpy(j->name, "bytes"); /* so that datasets of both are interchangeable */
    return DT_OK;
}
