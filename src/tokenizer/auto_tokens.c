/* auto_tokens.c - added tokens, collected as in transformers 5.24
 * (PreTrainedTokenizerBase._from_pretrained and TokenizersBackend.__init__) and numbered as in tokenizers
 * 0.23 (AddedVocabulary.add_tokens).
 *
 * A token keeps the id of its text in the vocabulary or among the added tokens. A new token gets the next
 * free id, whatever a file says. The last file determines its flags, but the special flag is never
 * removed. */
#include "auto.h"

#include <stdlib.h>

/* ---- a list ------------------------------------------------------------------------------------------------------ */

static dt_added_item *find(const dt_added_list *l, const char *content, size_t n)
{
    const int32_t i = dt_vocab_find(&l->first, content, n, DT_TOKEN_ADDED);
    return i >= 0 ? &l->item[i] : NULL;
}

static dt_err append(dt_added_list *l, const dt_added_item *t)
{
    DT_GROW(l->item, l->n, "out of memory for %d added tokens", l->n + 1);
    if (!find(l, t->content, t->n)) DT_TRY(dt_vocab_add(&l->first, l->n, t->content, t->n, DT_TOKEN_ADDED));
    l->item[l->n++] = *t;
    return DT_OK;
}

void dt_added_list_free(dt_added_list *l)
{
    free(l->item);
    dt_vocab_free(&l->first);
    *l = (dt_added_list){0};
}

/* ---- one token --------------------------------------------------------------------------------------------------- */

/* Parse a string, or an object with AddedToken's fields. special: default of its flag. */
static dt_err read_item(const dt_spec *s, bool special, dt_added_item *t)
{
    bool lstrip = false, rstrip = false, single = false, normalized;
    *t = (dt_added_item){.id = -1, .from = *s, .is_text = json_is_string(s->value)};
    DT_TRY(dt_auto_content(s, &t->content, &t->n));
    DT_TRY(dt_spec_bool(s, "lstrip", &lstrip));
    DT_TRY(dt_spec_bool(s, "rstrip", &rstrip));
    DT_TRY(dt_spec_bool(s, "single_word", &single));
    DT_TRY(dt_spec_bool(s, "special", &special));
    normalized = !special;
    DT_TRY(dt_spec_bool(s, "normalized", &normalized));
    t->flags = (lstrip ? DT_ADDED_LSTRIP : 0) | (rstrip ? DT_ADDED_RSTRIP : 0) | (single ? DT_ADDED_SINGLE_WORD : 0) |
               (normalized ? DT_ADDED_NORMALIZED : 0) | (special ? DT_ADDED_SPECIAL : 0);
    return DT_OK;
}

typedef struct collector {
    const dt_auto_files *files;
    const dt_vocab *vocab; /* the model's */
    dt_added_list *list, named, extra;
    int32_t largest; /* largest id of an added token, -1: none */
    bool changed;
} collector;

static int32_t next_id(const collector *c, const dt_added_item *t)
{
    const int32_t known = dt_vocab_find(c->vocab, t->content, t->n, DT_TOKEN_MODEL), n = (int32_t)c->vocab->n_used;
    return known >= 0 ? known : c->largest >= n || n == 0 ? c->largest + 1 : n;
}

static dt_err add(collector *c, const dt_added_item *t)
{
    if (t->n == 0) return DT_OK;
    dt_added_item *had = find(c->list, t->content, t->n), made = *t;
    if (had) {
        const unsigned before = had->flags;
        had->flags = t->flags | (before & DT_ADDED_SPECIAL);
        c->changed |= before != had->flags;
        return DT_OK;
    }
    made.id = next_id(c, t);
    if (t->id >= 0 && t->id != made.id)
        DT_WARN("%s: %s: token `%s` has id %d in this file, but gets id %d, by the numbering of transformers",
                t->from.file, t->from.where, t->content, (int)t->id, (int)made.id);
    if (made.id > c->largest) c->largest = made.id;
    c->changed = true;
    return append(c->list, &made);
}

/* ---- tokenizer.json ---------------------------------------------------------------------------------------------- */

static dt_err read_own(collector *c, const dt_spec *root)
{
    dt_spec all;
    if (!dt_spec_get(root, "added_tokens", &all)) return DT_OK;
    if (!json_is_array(all.value)) return dt_spec_bad(root, "added_tokens", "an array");
    for (size_t i = 0; i < json_array_size(all.value); i++) {
        const dt_spec s = dt_spec_item(&all, i);
        dt_added_item t;
        int64_t id = -1;
        DT_TRY(dt_spec_only(&s, "id content single_word lstrip rstrip normalized special"));
        DT_TRY(read_item(&s, false, &t));
        DT_TRY(dt_spec_int(&s, "id", 0, DT_VOCAB_MAX_ID, &id));
        if (id < 0) return dt_spec_bad(&s, "id", "an id");
        if (t.n == 0) return dt_spec_bad(&s, "content", "a string that is not empty");
        t.id = (int32_t)id;
        if (c->files && !find(c->list, t.content, t.n) && t.id != next_id(c, &t))
            DT_WARN("%s: %s: token `%s` has id %d in this file, but transformers assigns id %d", s.file, s.where,
                    t.content, (int)t.id, (int)next_id(c, &t));
        if (t.id > c->largest) c->largest = t.id;
        DT_TRY(append(c->list, &t));
    }
    return DT_OK;
}

/* ---- the other files --------------------------------------------------------------------------------------------- */

static int by_id(const void *a, const void *b)
{
    const dt_added_item *x = a, *y = b;
    return x->id != y->id ? (x->id > y->id) - (x->id < y->id) : (x->order > y->order) - (x->order < y->order);
}

/* For duplicate ids, the last entry counts. */
static dt_err add_sorted(collector *c, dt_added_list *given)
{
    for (int i = 0; i < given->n; i++) given->item[i].order = i;
    if (given->n > 0) qsort(given->item, (size_t)given->n, sizeof *given->item, by_id);
    for (int i = 0; i < given->n; i++) {
        dt_added_item *t = &given->item[i];
        if (i + 1 < given->n && given->item[i + 1].id == t->id) continue;
        if (find(&c->named, t->content, t->n)) t->flags |= DT_ADDED_SPECIAL;
        if (c->files->raw) t->flags &= ~(unsigned)DT_ADDED_NORMALIZED;
        DT_TRY(add(c, t));
    }
    return DT_OK;
}

static dt_err read_decoder(const dt_spec *decoder, dt_added_list *given)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)decoder->value, key, value)
    {
        dt_spec s;
        dt_added_item t;
        char *end;
        const long id = strtol(key, &end, 10);
        if (!*key || *end || id < 0 || id > DT_VOCAB_MAX_ID) return dt_spec_bad(decoder, key, "an id as its key");
        if (!dt_spec_get(decoder, key, &s)) return dt_spec_bad(decoder, key, "a token");
        DT_TRY(read_item(&s, false, &t));
        t.id = (int32_t)id;
        DT_TRY(append(given, &t));
    }
    return DT_OK;
}

/* True if a string in tokenizer_config.json or special_tokens_map.json names the token, under a standard
 * key or as an extra token. */
static bool is_named(const collector *c, const char *content, size_t n)
{
    const char *const map = c->files->file[DT_AUTO_MAP].file;
    const dt_added_list *const lists[] = {&c->named, &c->extra};
    for (int l = 0; l < 2; l++)
        for (int i = 0; i < lists[l]->n; i++) {
            const dt_added_item *t = &lists[l]->item[i];
            const bool counts = t->from.file && !t->is_other && (t->is_text || (map && t->from.file == map));
            if (counts && t->n == n && memcmp(t->content, content, n) == 0) return true;
        }
    return false;
}

/* added_tokens.json: {"text": id}. A token is special if another file names it. */
static dt_err read_added_file(const collector *c, const dt_spec *file, dt_added_list *given)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)file->value, key, value)
    {
        if (!dt_auto_is_id(value)) return dt_spec_bad(file, key, "an id");
        dt_added_item t = {.content = key, .n = strlen(key), .id = (int32_t)json_integer_value(value), .from = *file};
        snprintf(t.from.where, sizeof t.from.where, "%.100s", key);
        t.flags = is_named(c, t.content, t.n) ? DT_ADDED_SPECIAL : DT_ADDED_NORMALIZED;
        DT_TRY(append(given, &t));
    }
    return DT_OK;
}

/* ---- named special tokens ---------------------------------------------------------------------------------------- */

static const char *const NAMES[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};
enum { N_NAMES = sizeof NAMES / sizeof NAMES[0] };

/* Default of a class if no file has the key. */
static const char *default_of(dt_auto_class c, int name)
{
    static const char *const defaults[][N_NAMES] = {
        [DT_AUTO_BACKEND] = {NULL},
        [DT_AUTO_GPT2] = {"<|endoftext|>", "<|endoftext|>", "<|endoftext|>"},
        [DT_AUTO_QWEN2] = {NULL, "<|endoftext|>", "<|endoftext|>", NULL, "<|endoftext|>"},
        [DT_AUTO_QWEN3_5] = {NULL, "<|endoftext|>", "<|endoftext|>", NULL, "<|endoftext|>"},
        [DT_AUTO_LLAMA] = {"<s>", "</s>", "<unk>"},
        [DT_AUTO_CODE_LLAMA] = {"<s>", "</s>", "<unk>"}};
    return defaults[c][name];
}

static bool has_key(const dt_auto_files *f, const char *key)
{
    return json_object_get(f->file[DT_AUTO_CONFIG].value, key) ||
           (!f->decoder.value && json_object_get(f->file[DT_AUTO_MAP].value, key));
}

const char *dt_auto_default(dt_auto_class c, const dt_auto_files *f, const char *key)
{
    if (has_key(f, key)) return "";
    for (int i = 0; i < N_NAMES; i++)
        if (strcmp(NAMES[i], key) == 0 && default_of(c, i)) return default_of(c, i);
    const char *name = c == DT_AUTO_BACKEND ? json_string_value(json_object_get(f->spm_names, key)) : NULL;
    return name ? name : "";
}

/* Strings, and objects of special_tokens_map.json, are special. */
static dt_err read_special(const collector *c, const dt_spec *s, dt_added_item *t)
{
    return read_item(s, json_is_string(s->value) || s->file == c->files->file[DT_AUTO_MAP].file, t);
}

static dt_err name_token(collector *c, const char *key, const dt_spec *s, bool is_other)
{
    dt_added_item t;
    DT_TRY(read_special(c, s, &t));
    t.key = key;
    t.is_other = is_other;
    t.flags |= DT_ADDED_SPECIAL;
    return append(&c->named, &t);
}

static dt_err name_text(collector *c, const char *key, const char *text)
{
    return append(
        &c->named,
        &(dt_added_item){
            .key = key, .content = text, .n = strlen(text), .id = -1, .flags = DT_ADDED_SPECIAL, .is_text = true});
}

/* The token of a standard key: of a file, else the default of the class. Without the key pad_token, the padding section
 * of tokenizer.json names the token. */
static dt_err name_usual(collector *c, dt_auto_class class, const dt_spec *root, const char *key)
{
    const dt_auto_files *f = c->files;
    const char *text = dt_auto_default(class, f, key);
    dt_spec token, padding;
    if (dt_auto_token(f, key, &token)) return name_token(c, key, &token, false);
    if (*text) return name_text(c, key, text);
    const bool padded = strcmp(key, "pad_token") == 0 && class != DT_AUTO_GPT2 && !has_key(f, key) &&
                        dt_spec_get(root, "padding", &padding) && dt_spec_get(&padding, key, &token) &&
                        json_is_string(token.value);
    return padded ? name_token(c, key, &token, false) : DT_OK;
}

static bool is_usual(const char *key)
{
    for (int i = 0; i < N_NAMES; i++)
        if (strcmp(key, NAMES[i]) == 0) return true;
    return false;
}

/* Keys such as image_token: any other key that ends in _token and holds a token. */
static bool is_other_token(const char *key, const json_t *value)
{
    const size_t n = strlen(key);
    const bool is_token =
        json_is_string(value) || (json_is_object(value) && json_is_string(json_object_get(value, "content")));
    return n > 6 && strcmp(key + n - 6, "_token") == 0 && !is_usual(key) && is_token;
}

static dt_err name_others(collector *c, const dt_spec *file)
{
    const char *key;
    json_t *value;
    dt_spec token;
    json_object_foreach((json_t *)file->value, key, value)
    {
        if (is_other_token(key, value) && dt_spec_get(file, key, &token)) DT_TRY(name_token(c, key, &token, true));
    }
    return DT_OK;
}

/* Special tokens as variables of a template, by their keys. Standard keys take precedence, then
 * special_tokens_map.json, then the last entry. */
static dt_err make_names(const collector *c, json_t **names)
{
    const char *const map = c->files->file[DT_AUTO_MAP].file;
    *names = json_object();
    bool failed = !*names;
    for (int pass = 0; pass < 3; pass++)
        for (int i = 0; i < c->named.n; i++) {
            const dt_added_item *t = &c->named.item[i];
            const int precedence = !t->is_other ? 2 : map && t->from.file == map;
            if (precedence == pass) failed |= json_object_set_new(*names, t->key, json_stringn(t->content, t->n)) != 0;
        }
    DT_CHECK(!failed, DT_ERR_MEMORY, "out of memory for a tokenizer");
    return DT_OK;
}

/* ---- tokens with other names ------------------------------------------------------------------------------------- */

/* Read a list of tokens, or an object of named ones. */
static dt_err read_extra(collector *c, const dt_spec *file, const char *key)
{
    const char *name;
    json_t *value;
    dt_spec all, token;
    dt_added_item t;
    if (!dt_spec_get(file, key, &all)) return DT_OK;
    if (json_is_object(all.value)) {
        json_object_foreach((json_t *)all.value, name, value)
        {
            if (dt_spec_get(&all, name, &token)) DT_TRY(name_token(c, name, &token, true));
        }
        return DT_OK;
    }
    if (!json_is_array(all.value)) return dt_spec_bad(file, key, "a list of tokens");
    for (size_t i = 0; i < json_array_size(all.value); i++) {
        token = dt_spec_item(&all, i);
        DT_TRY(read_special(c, &token, &t));
        DT_TRY(append(&c->extra, &t));
    }
    return DT_OK;
}

static bool is_given(const dt_spec *file, const char *key)
{
    const json_t *v = json_object_get(file->value, key);
    return json_is_array(v) ? json_array_size(v) > 0 : json_is_object(v) && json_object_size(v) > 0;
}

/* extra_special_tokens takes precedence over its older name, additional_special_tokens, unless it is an object. */
static dt_err read_extras(collector *c)
{
    static const char extra[] = "extra_special_tokens", additional[] = "additional_special_tokens";
    const dt_spec *config = &c->files->file[DT_AUTO_CONFIG], *map = &c->files->file[DT_AUTO_MAP];
    const json_t *given = json_object_get(config->value, extra);
    const bool older = !is_given(config, extra) && json_object_get(config->value, additional);
    bool has = older || (given && !json_is_object(given));
    DT_TRY(read_extra(c, config, older ? additional : extra));
    if (!c->files->decoder.value) {
        DT_TRY(read_extra(c, map, extra));
        has = has || json_is_array(json_object_get(map->value, extra));
        if (!has && json_object_get(map->value, additional)) return read_extra(c, map, additional);
    }
    return has ? DT_OK : read_extra(c, config, additional);
}

static dt_err read_names(collector *c, dt_auto_class class, const dt_spec *root)
{
    for (int i = 0; i < N_NAMES; i++) DT_TRY(name_usual(c, class, root, NAMES[i]));
    if (!c->files->decoder.value) DT_TRY(name_others(c, &c->files->file[DT_AUTO_MAP]));
    DT_TRY(name_others(c, &c->files->file[DT_AUTO_CONFIG]));
    return read_extras(c);
}

static bool is_among(const dt_added_item *t, const dt_added_item *all, int n)
{
    for (int i = 0; i < n; i++)
        if (all[i].n == t->n && all[i].flags == t->flags && all[i].is_text == t->is_text &&
            memcmp(all[i].content, t->content, t->n) == 0)
            return true;
    return false;
}

/* Add tokens that are not in the list's first n_before. */
static dt_err add_missing(collector *c, const dt_added_list *tokens, int n_before)
{
    for (int i = 0; i < tokens->n; i++) {
        const dt_added_item *t = &tokens->item[i], *had = find(c->list, t->content, t->n);
        const bool known = had && had - c->list->item < n_before;
        if (!known && !is_among(t, tokens->item, i)) DT_TRY(add(c, t));
    }
    return DT_OK;
}

/* Qwen2Tokenizer adds all special tokens a second time, as plain ones. */
static dt_err add_plainly(collector *c, const dt_added_list *tokens)
{
    for (int i = 0; i < tokens->n; i++) {
        dt_added_item t = tokens->item[i];
        t.flags = DT_ADDED_SPECIAL;
        DT_TRY(add(c, &t));
    }
    return DT_OK;
}

/* ---- all tokens -------------------------------------------------------------------------------------------------- */

static dt_err collect_given(collector *c, const dt_spec *root, dt_added_list *given)
{
    if (c->files->decoder.value) return read_decoder(&c->files->decoder, given);
    DT_TRY(read_added_file(c, &c->files->file[DT_AUTO_ADDED], given));
    collector own = {.vocab = c->vocab, .list = given, .largest = -1};
    return read_own(&own, root);
}

static dt_err collect(collector *c, dt_auto_class class, const dt_spec *root, int32_t *n_own)
{
    dt_added_list given = {0};
    DT_TRY(read_names(c, class, root));
    if (class == DT_AUTO_BACKEND || c->files->from_model) DT_TRY(read_own(c, root));
    dt_err err = collect_given(c, root, &given);
    if (err == DT_OK) err = add_sorted(c, &given);
    dt_added_list_free(&given);
    DT_TRY(err);
    *n_own = dt_max_i64(c->vocab->n_ids, c->largest + 1);
    const int n_before = c->list->n;
    DT_TRY(add_missing(c, &c->named, n_before));
    DT_TRY(add_missing(c, &c->extra, n_before));
    if (class != DT_AUTO_QWEN2) return DT_OK;
    DT_TRY(add_plainly(c, &c->named));
    return add_plainly(c, &c->extra);
}

dt_err dt_auto_tokens(dt_added_list *list, dt_auto_class class, const dt_auto_files *f, const dt_spec *root,
                      const dt_vocab *vocab, bool *changed, int32_t *n_own, json_t **names)
{
    bool splits = false;
    collector c = {.files = f, .vocab = vocab, .list = list, .largest = -1};
    *list = (dt_added_list){0};
    *names = NULL;
    dt_err err = collect(&c, class, root, n_own);
    if (err == DT_OK) err = make_names(&c, names);
    if (err == DT_OK) err = dt_spec_bool(&f->file[DT_AUTO_CONFIG], "split_special_tokens", &splits);
    for (int i = 0; i < list->n && splits; i++)
        if (list->item[i].flags & DT_ADDED_SPECIAL) list->item[i].flags |= DT_ADDED_SPLIT;
    *changed = c.changed || splits;
    dt_added_list_free(&c.named);
    dt_added_list_free(&c.extra);
    return err;
}
