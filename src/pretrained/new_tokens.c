/* new_tokens.c - add tokens to a tokenizer's files. Only the affected value is replaced in the text; the rest stays
 * unchanged. */
#include "dtrain/pretrained/new_tokens.h"
#include "tokenizer_files.h"
#include "dtrain/io/io.h"
#include "dtrain/io/spec.h"
#include "dtrain/tokenizer/tokenizer.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

enum { MAX_FILE = 1 << 30 }; /* bytes */

/* ---- a value of a JSON text -------------------------------------------------------------------------------------- */

static const char *skip_blanks(const char *at) { return at + strspn(at, " \t\r\n"); }

/* at: points to an opening quote. */
static const char *skip_string(const char *at)
{
    for (at++; *at && *at != '"'; at++)
        if (*at == '\\' && at[1]) at++;
    return *at ? at + 1 : at;
}

static const char *skip_value(const char *at)
{
    int depth = 0;
    for (; *at; at++) {
        if (*at == '"') {
            at = skip_string(at) - 1;
            continue;
        }
        if (depth == 0 && strchr(",]} \t\r\n", *at)) break;
        depth += *at == '[' || *at == '{';
        depth -= *at == ']' || *at == '}';
        if (depth == 0 && (*at == ']' || *at == '}')) return at + 1;
    }
    return at;
}

/* Start of a key's value in the text of a valid JSON object; NULL: no such key. */
static const char *find_value(const char *text, const char *key)
{
    const size_t n = strlen(key);
    const char *at = strchr(text, '{');
    while (at && *at && *at != '}') {
        const char *name = skip_blanks(at + 1);
        if (*name != '"') return NULL;
        const char *end = skip_string(name), *value = skip_blanks(skip_blanks(end) + 1);
        if ((size_t)(end - name) == n + 2 && strncmp(name + 1, key, n) == 0) return value;
        at = skip_blanks(skip_value(value));
    }
    return NULL;
}

char *tokenizer_with_value(const char *text, const char *key, const json_t *value)
{
    const char *old = find_value(text, key), *open = strchr(text, '{');
    char *now = json_dumps(value, JSON_INDENT(2) | JSON_ENCODE_ANY), *out = NULL;
    int n = -1;
    if (now && old)
        n = asprintf(&out, "%.*s%s%s", (int)(old - text), text, now, skip_value(old));
    else if (now && open)
        n = asprintf(&out, "%.*s\n  \"%s\": %s%s%s", (int)(open + 1 - text), text, key, now,
                     *skip_blanks(open + 1) == '}' ? "" : ",", open + 1);
    free(now);
    return n < 0 ? NULL : out;
}

/* ---- a tokenizer's files ----------------------------------------------------------------------------------------- */

typedef struct new_token {
    const char *text;
    int32_t id;
    const dt_added_form *form; /* form of a token that a file other than tokenizer.json defines; NULL: new token */
    bool reached;              /* already an added token */
} new_token;

typedef struct job {
    new_token *tokens;
    size_t n;
} job;

/* Same defaults as transformers for an added token without options, except for level tokens. A normalizer that prepends
 * a space to each text (Llama 2) also does so before tokens matched in normalised text. Only the first level of an SID
 * would then match, so level tokens are not normalised. */
static json_t *make_entry(const new_token *t, bool with_id)
{
    json_t *entry = json_object();
    const size_t n = strlen(t->text);
    const bool level = n > 0 && dt_level_token_len(t->text, n) == n;
    const dt_added_form made = {.normalized = !level}, *form = t->form ? t->form : &made;
    if (with_id) json_object_set_new(entry, "id", json_integer(t->id));
    json_object_set_new(entry, "content", json_string(t->text));
    json_object_set_new(entry, "single_word", json_boolean(form->single_word));
    json_object_set_new(entry, "lstrip", json_boolean(form->lstrip));
    json_object_set_new(entry, "rstrip", json_boolean(form->rstrip));
    json_object_set_new(entry, "normalized", json_boolean(form->normalized));
    json_object_set_new(entry, "special", json_boolean(form->special));
    return entry;
}

static int by_text(const void *key, const void *member) { return strcmp(key, ((const new_token *)member)->text); }

/* Mark the tokens that the list already contains. */
static void mark_reached(const job *j, const json_t *list)
{
    size_t i;
    const json_t *entry;
    json_array_foreach(list, i, entry)
    {
        const char *text = json_string_value(json_object_get(entry, "content"));
        new_token *t = text ? bsearch(text, j->tokens, j->n, sizeof *j->tokens, by_text) : NULL;
        if (t) t->reached = true;
    }
}

/* Insert into a list sorted by id. */
static void insert_entry(json_t *list, const new_token *t)
{
    size_t at = json_array_size(list);
    while (at > 0 && json_integer_value(json_object_get(json_array_get(list, at - 1), "id")) > t->id) at--;
    json_array_insert_new(list, at, make_entry(t, true));
}

/* *text: a text to parse, or NULL: that of the file. Same parser options as the tokenizer's reader. */
static dt_err load(dt_spec *root, const char *file, char **text)
{
    size_t nbytes;
    json_t *value = NULL;
    if (!*text) return dt_spec_load(root, file, MAX_FILE, DT_JSON_NUL_KEYS, text, &nbytes);
    DT_TRY(dt_json_parse(&value, file, *text, strlen(*text), DT_JSON_NUL_KEYS));
    *root = (dt_spec){.file = file, .value = value};
    return DT_OK;
}

/* text: of the file, taken over; NULL: it is read. */
static dt_err edit_tokenizer(job *j, const char *file, char *text, char **out)
{
    dt_spec root;
    DT_TRY(load(&root, file, &text));
    json_t *had = json_object_get(root.value, "added_tokens");
    json_t *list = json_is_array(had) ? json_copy(had) : json_array();
    mark_reached(j, list);
    for (size_t i = 0; i < j->n; i++)
        if (!j->tokens[i].reached) insert_entry(list, &j->tokens[i]);
    *out = tokenizer_with_value(text, "added_tokens", list);
    json_decref(list);
    dt_spec_unload(&root);
    free(text);
    return *out ? DT_OK : dt_fail(DT_ERR_MEMORY, "%s: out of memory for a text with more tokens", file);
}

/* Remove entries whose token has another id than their key. */
static void drop_moved(const job *j, json_t *all)
{
    const char *key;
    json_t *entry;
    void *next;
    json_object_foreach_safe(all, next, key, entry)
    {
        const char *text = json_string_value(json_object_get(entry, "content"));
        const new_token *t = text ? bsearch(text, j->tokens, j->n, sizeof *j->tokens, by_text) : NULL;
        if (t && strtol(key, NULL, 10) != t->id) json_object_del(all, key);
    }
}

/* Older versions of transformers also list added tokens in tokenizer_config.json. */
static dt_err edit_config(const job *j, const char *file, char *text, char **out)
{
    char id[16];
    dt_spec root;
    DT_TRY(load(&root, file, &text));
    json_t *had = json_object_get(root.value, "added_tokens_decoder"),
           *all = json_is_object(had) ? json_copy(had) : NULL;
    if (all) drop_moved(j, all);
    for (size_t i = 0; i < j->n && all; i++) {
        snprintf(id, sizeof id, "%d", (int)j->tokens[i].id);
        if (!json_object_get(all, id)) json_object_set_new(all, id, make_entry(&j->tokens[i], false));
    }
    *out = all ? tokenizer_with_value(text, "added_tokens_decoder", all) : NULL;
    const bool lost = all && !*out;
    json_decref(all);
    dt_spec_unload(&root);
    free(text);
    return lost ? dt_fail(DT_ERR_MEMORY, "%s: out of memory for a text with more tokens", file) : DT_OK;
}

/* added_tokens.json next to a vocab.json maps text to id. */
static dt_err edit_added(const job *j, const char *file, char **out)
{
    dt_spec root;
    DT_TRY(dt_spec_load(&root, file, MAX_FILE, DT_JSON_NUL_KEYS, NULL, NULL));
    json_t *all = json_deep_copy(root.value);
    for (size_t i = 0; i < j->n; i++)
        if (!j->tokens[i].reached) json_object_set_new(all, j->tokens[i].text, json_integer(j->tokens[i].id));
    *out = json_dumps(all, JSON_INDENT(2));
    json_decref(all);
    dt_spec_unload(&root);
    return *out ? DT_OK : dt_fail(DT_ERR_MEMORY, "%s: out of memory for a text with more tokens", file);
}

static dt_err edit_files(dt_new_tokens *t, job *j, const char *tokenizer)
{
    char file[PATH_MAX], folder[PATH_MAX], *text, *config;
    size_t nbytes;
    const char *slash = strrchr(tokenizer, '/');
    const bool is_dir = dt_is_directory(tokenizer);
    const int len = !slash ? 1 : slash == tokenizer ? 1 : (int)(slash - tokenizer);
    DT_CHECK((size_t)snprintf(folder, sizeof folder, "%.*s", is_dir ? (int)strlen(tokenizer) : len,
                              is_dir || slash ? tokenizer : ".") < sizeof folder,
             DT_ERR_DATA, "%s: the path is too long", tokenizer);
    DT_CHECK(!is_dir || dt_is_in(file, tokenizer, "tokenizer.json") || dt_is_in(file, tokenizer, "tokenizer.model"),
             DT_ERR_DATA, "%s: expected a tokenizer.json in it", tokenizer);
    DT_TRY(dt_tokenizer_model_to_json(tokenizer, &text, &nbytes, &config));
    const dt_err err = edit_tokenizer(j, is_dir ? file : tokenizer, text, &t->tokenizer);
    if (err != DT_OK) return free(config), err;
    if (dt_is_in(file, folder, "tokenizer_config.json") || config) DT_TRY(edit_config(j, file, config, &t->config));
    return dt_is_in(file, folder, "added_tokens.json") ? edit_added(j, file, &t->added_tokens) : DT_OK;
}

static int by_texts(const void *a, const void *b)
{
    return strcmp(((const new_token *)a)->text, ((const new_token *)b)->text);
}

/* Ids of added tokens are consecutive across files. Tokens of the other files are therefore inserted before the new
 * ones, in every file. */
static void add_known(job *j, const dt_tokenizer *known, dt_added_form *forms)
{
    const size_t n_new = j->n;
    for (int i = 0; i < dt_tokenizer_n_added(known); i++) {
        forms[i] = dt_tokenizer_added(known, i);
        if (!forms[i].text || bsearch(forms[i].text, j->tokens, n_new, sizeof *j->tokens, by_text)) continue;
        j->tokens[j->n++] = (new_token){.text = forms[i].text, .id = forms[i].id, .form = &forms[i]};
    }
    qsort(j->tokens, j->n, sizeof *j->tokens, by_texts);
}

static dt_err add_all(dt_new_tokens *t, char *const *tokens, int32_t n, const dt_tokenizer *known,
                      const char *tokenizer)
{
    const size_t n_known = (size_t)dt_tokenizer_n_added(known);
    job j = {.tokens = calloc((size_t)n + n_known + 1, sizeof *j.tokens), .n = (size_t)n};
    dt_added_form *forms = calloc(n_known + 1, sizeof *forms);
    if (!j.tokens || !forms) {
        free(j.tokens);
        free(forms);
        return dt_fail(DT_ERR_MEMORY, "out of memory for %d tokens", (int)n);
    }
    t->n_own = dt_tokenizer_get_info(known)->n_own;
    t->n_listed = n;
    t->first_id = dt_tokenizer_get_info(known)->vocab_size;
    for (int32_t i = 0; i < n; i++) {
        const int32_t id = dt_tokenizer_find(known, tokens[i]);
        j.tokens[i] = (new_token){.text = tokens[i], .id = id >= 0 ? id : t->first_id + t->n_added++};
    }
    add_known(&j, known, forms);
    const dt_err err = edit_files(t, &j, tokenizer);
    free(j.tokens);
    free(forms);
    return err;
}

dt_err dt_new_tokens_make(dt_new_tokens *t, char *const *tokens, int32_t n, const char *tokenizer)
{
    dt_tokenizer *known;
    *t = (dt_new_tokens){0};
    DT_CHECK(strcmp(tokenizer, "bytes") != 0, DT_ERR_USAGE,
             "the tokenizer `bytes` has no files for new tokens; choose another tokenizer with --tokenizer");
    DT_TRY(dt_tokenizer_open(&known, tokenizer));
    const dt_err err = add_all(t, tokens, n, known, tokenizer);
    dt_tokenizer_close(known);
    if (err != DT_OK) dt_new_tokens_free(t);
    return err;
}

void dt_new_tokens_free(dt_new_tokens *t)
{
    free(t->tokenizer);
    free(t->config);
    free(t->added_tokens);
    *t = (dt_new_tokens){0};
}
