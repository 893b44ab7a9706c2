/* spm_json.c - the tokenizer.json that stands for a tokenizer.model, as transformers 5.24 makes it
 * (TokenizersBackend._convert_from_sentencepiece, SpmConverter.build_tokenizer_from_spm_proto, generate_merges).
 *
 * LlamaTokenizer merges by ids, and sets its own stages (dt_auto_build). The other classes merge normal pieces by their
 * scores, and have the stages of the file: they encode as SentencePiece does. */
#include "spm.h"

#include <stdlib.h>

typedef struct job {
    dt_spm spm;
    const dt_auto_files *files;
    dt_auto_class class;
    bool chatglm;
    dt_spm_text *name;     /* [n_pieces]: the pieces, or the names that tokenizer_config.json gives them */
    dt_vocab vocab;        /* of the names; DT_TOKEN_ADDED: may be merged */
    json_t *root, *config; /* tokenizer.json and tokenizer_config.json */
    json_t *special;       /* dt_auto_tokens: names */
    dt_added_list added;
} job;

static bool is_llama(const job *j) { return j->class == DT_AUTO_LLAMA || j->class == DT_AUTO_CODE_LLAMA; }

static dt_err no_memory(const job *j) { return dt_fail(DT_ERR_MEMORY, "%s: out of memory for its text", j->spm.file); }

static json_t *string(dt_spm_text t) { return json_stringn(t.bytes, t.n); }

/* ---- class ------------------------------------------------------------------------------------------------------- */

/* Classes of transformers with stages of their own, which are not made from such files here. */
static dt_err check_class(const job *j)
{
    static const char *const others[] = {"Gemma", "T5",    "Albert",  "XLNet",     "Camembert", "XLMRoberta",
                                         "MBart", "XGLM",  "BigBird", "Nllb",      "Pegasus",   "Siglip",
                                         "GPT2",  "Qwen2", "GPTNeoX", "DebertaV2", "Barthez"};
    const char *class = json_string_value(json_object_get(j->files->file[DT_AUTO_CONFIG].value, "tokenizer_class"));
    for (size_t i = 0; class && i < sizeof others / sizeof others[0]; i++) {
        const size_t n = strlen(others[i]);
        DT_CHECK(strncmp(class, others[i], n) != 0 || strncmp(class + n, "Tokenizer", 9) != 0, DT_ERR_DATA,
                 "%s: tokenizer_class: expected LlamaTokenizer or a class without stages of its own for a directory "
                 "without tokenizer.json, found %s; save the fast tokenizer of transformers there (docs/data.md)",
                 j->spm.file, class);
    }
    DT_CHECK(j->spm.model_type == DT_SPM_BPE || !is_llama(j), DT_ERR_DATA,
             "%s: model_type: expected 2 (BPE) for LlamaTokenizer, found 1 (unigram)", j->spm.file);
    DT_CHECK(j->class == DT_AUTO_BACKEND || is_llama(j), DT_ERR_DATA,
             "%s: tokenizer_class: expected LlamaTokenizer or a class without stages of its own, found that of GPT-2 "
             "or Qwen, whose tokens are bytes",
             j->spm.file);
    return DT_OK;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* The name that added_tokens_decoder gives an id; NULL: none. */
static const char *given_name(const job *j, int32_t id)
{
    char key[16];
    snprintf(key, sizeof key, "%d", (int)id);
    return json_string_value(json_object_get(json_object_get(j->files->decoder.value, key), "content"));
}

/* A name that is a piece of an id without a name is not given away. */
static dt_err find_names(job *j)
{
    const dt_spm *s = &j->spm;
    dt_vocab kept = {0};
    dt_err err = DT_OK;
    DT_ALLOC(j->name, s->n_pieces, "%s: out of memory for its pieces", s->file);
    for (int32_t i = 0; i < s->n_pieces; i++) j->name[i] = s->piece[i].text;
    if (is_llama(j) || s->model_type != DT_SPM_BPE || json_object_size(j->files->decoder.value) == 0) return DT_OK;
    for (int32_t i = 0; i < s->n_pieces && err == DT_OK; i++)
        if (!given_name(j, i)) err = dt_vocab_add(&kept, i, j->name[i].bytes, j->name[i].n, DT_TOKEN_MODEL);
    for (int32_t i = 0; i < s->n_pieces && err == DT_OK; i++) {
        const char *name = given_name(j, i);
        if (name && *name && dt_vocab_find(&kept, name, strlen(name), DT_TOKEN_MODEL) < 0)
            j->name[i] = (dt_spm_text){name, strlen(name)};
    }
    dt_vocab_free(&kept);
    return err == DT_ERR_DATA ? dt_error_prefix(err, "%s: expected ", s->file) : err;
}

static dt_err fill_vocab(job *j)
{
    for (int32_t i = 0; i < j->spm.n_pieces; i++) {
        const bool merges = is_llama(j) || j->spm.piece[i].type == DT_SPM_NORMAL;
        const dt_err err = dt_vocab_add(&j->vocab, i, j->name[i].bytes, j->name[i].n,
                                        (uint8_t)(DT_TOKEN_MODEL | (merges ? DT_TOKEN_ADDED : 0)));
        if (err == DT_ERR_DATA) return dt_error_prefix(err, "%s: expected ", j->spm.file);
        DT_TRY(err);
    }
    return DT_OK;
}

/* ---- model ------------------------------------------------------------------------------------------------------- */

typedef struct ranked {
    float score;
    int32_t id;
} ranked;

static int by_rank(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score) : (x->id > y->id) - (x->id < y->id);
}

/* Limits of memory. Published files have about two per piece, and fewer than a million. */
enum { MERGES_PER_PIECE = 32, MAX_MERGES = 1 << 22 };

/* All ways to make a piece of two others, the shortest left one first. */
static bool add_merges(const job *j, json_t *merges, dt_spm_text of)
{
    bool fits = true;
    for (size_t n = 1; n < of.n; n++) {
        if (((unsigned char)of.bytes[n] & 0xc0) == 0x80) continue;
        if (dt_vocab_find(&j->vocab, of.bytes, n, DT_TOKEN_ADDED) < 0 ||
            dt_vocab_find(&j->vocab, of.bytes + n, of.n - n, DT_TOKEN_ADDED) < 0)
            continue;
        json_t *pair = json_pack("[o, o]", json_stringn(of.bytes, n), json_stringn(of.bytes + n, of.n - n));
        fits = fits && pair && json_array_append_new(merges, pair) == 0;
    }
    return fits;
}

static dt_err find_merges(const job *j, json_t *merges)
{
    const int32_t n = j->spm.n_pieces;
    ranked *order;
    DT_ALLOC(order, n, "%s: out of memory for its merges", j->spm.file);
    for (int32_t i = 0; i < n; i++) order[i] = (ranked){is_llama(j) ? 0 : j->spm.piece[i].score, i};
    qsort(order, (size_t)n, sizeof *order, by_rank);
    const int64_t most = dt_min_i64((int64_t)MERGES_PER_PIECE * n, MAX_MERGES);
    bool fits = true;
    for (int32_t i = 0; i < n && (int64_t)json_array_size(merges) <= most; i++) {
        const int32_t id = order[i].id;
        if (j->vocab.entry[id].flags & DT_TOKEN_ADDED) fits = fits && add_merges(j, merges, j->name[id]);
    }
    free(order);
    DT_CHECK((int64_t)json_array_size(merges) <= most, DT_ERR_DATA,
             "%s: expected at most %lld pairs of pieces that form a piece, found more", j->spm.file, (long long)most);
    return fits ? DT_OK : no_memory(j);
}

static bool has_type(const job *j, dt_spm_type type)
{
    for (int32_t i = 0; i < j->spm.n_pieces; i++)
        if (j->spm.piece[i].type == type) return true;
    return false;
}

static dt_err make_bpe(job *j)
{
    json_t *vocab = json_object(), *merges = json_array(),
           *model = json_pack("{s:s, s:n, s:o, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout",
                              "unk_token", string(j->spm.unk), "continuing_subword_prefix", "end_of_word_suffix",
                              "fuse_unk", true, "byte_fallback", j->spm.byte_fallback, "ignore_merges",
                              has_type(j, DT_SPM_USER_DEFINED), "vocab", vocab, "merges", merges);
    DT_CHECK(model && json_object_set_new(j->root, "model", model) == 0, DT_ERR_MEMORY,
             "%s: out of memory for its text", j->spm.file);
    for (int32_t i = 0; i < j->spm.n_pieces; i++) {
        const dt_vocab_entry *e = &j->vocab.entry[i];
        if (json_object_set_new(vocab, dt_vocab_text(&j->vocab, e), json_integer(i)) != 0) return no_memory(j);
    }
    return find_merges(j, merges);
}

static dt_err make_unigram(job *j)
{
    json_t *vocab = json_array(),
           *model = json_pack("{s:s, s:i, s:o, s:b}", "type", "Unigram", "unk_id", (int)j->spm.unk_id, "vocab", vocab,
                              "byte_fallback", j->spm.byte_fallback);
    DT_CHECK(model && json_object_set_new(j->root, "model", model) == 0, DT_ERR_MEMORY,
             "%s: out of memory for its text", j->spm.file);
    for (int32_t i = 0; i < j->spm.n_pieces; i++) {
        json_t *pair = json_pack("[o, f]", string(j->name[i]), (double)j->spm.piece[i].score);
        if (!pair || json_array_append_new(vocab, pair) != 0) return no_memory(j);
    }
    return DT_OK;
}

/* ---- stages ------------------------------------------------------------------------------------------------------ */

static json_t *replace(const char *kind, const char *pattern, const char *content)
{
    return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", kind, pattern, "content", content);
}

static json_t *base64(dt_spm_text t)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    dt_text out = {0};
    size_t n;
    for (size_t i = 0; i < t.n; i += 3) {
        const unsigned char *b = (const unsigned char *)t.bytes + i;
        const size_t left = t.n - i;
        const uint32_t three = (uint32_t)b[0] << 16 | (left > 1 ? (uint32_t)b[1] << 8 : 0) | (left > 2 ? b[2] : 0);
        char four[4];
        for (int k = 0; k < 4; k++) four[k] = (size_t)k <= left ? digits[three >> (18 - 6 * k) & 63] : '=';
        dt_text_append(&out, four, 4);
    }
    char *text = dt_text_finish(&out, &n);
    json_t *value = text ? json_stringn(text, n) : NULL;
    free(text);
    return value;
}

static json_t *sequence(const char *key, json_t *list)
{
    return json_pack("{s:s, s:o}", "type", "Sequence", key, list);
}

static bool legacy(const job *j)
{
    const json_t *v = json_object_get(j->files->file[DT_AUTO_CONFIG].value, "legacy");
    return !v || json_is_true(v);
}

static json_t *make_normalizer(const job *j)
{
    const dt_spm *s = &j->spm;
    json_t *list = json_array();
    if (s->charsmap.n > 0)
        json_array_append_new(
            list, json_pack("{s:s, s:o}", "type", "Precompiled", "precompiled_charsmap", base64(s->charsmap)));
    if (s->trims) {
        json_array_append_new(list, replace("Regex", "\\A +| +\\z", ""));
        json_array_append_new(list, replace("Regex", " {2,}", " "));
    }
    if (s->escapes) json_array_append_new(list, replace("String", " ", DT_SPACE_SIGN));
    if (s->prefix && legacy(j))
        json_array_append_new(list, replace("Regex", "\\A" DT_SPACE_SIGN, DT_SPACE_SIGN DT_SPACE_SIGN));
    return sequence("normalizers", list);
}

static int by_length(const void *a, const void *b)
{
    const dt_spm_text *x = a, *y = b;
    return x->n != y->n ? (x->n < y->n) - (x->n > y->n) : memcmp(x->bytes, y->bytes, x->n);
}

/* User-defined pieces are never merged: the longest first, with escapes. */
static dt_err isolate(const job *j, json_t **out)
{
    dt_spm_text *piece;
    dt_text pattern = {0};
    size_t n = 0, nbytes;
    DT_ALLOC(piece, j->spm.n_pieces, "%s: out of memory for its pieces", j->spm.file);
    for (int32_t i = 0; i < j->spm.n_pieces; i++)
        if (j->spm.piece[i].type == DT_SPM_USER_DEFINED) piece[n++] = j->name[i];
    qsort(piece, n, sizeof *piece, by_length);
    for (size_t i = 0; i < n; i++) {
        if (i > 0) dt_text_append(&pattern, "|", 1);
        for (size_t k = 0; k < piece[i].n; k++) {
            if (strchr("\\.^$*+?()[]{}|", piece[i].bytes[k])) dt_text_append(&pattern, "\\", 1);
            dt_text_append(&pattern, piece[i].bytes + k, 1);
        }
    }
    free(piece);
    char *text = dt_text_finish(&pattern, &nbytes);
    *out = text ? json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex", text, "behavior",
                            "Isolated", "invert", false)
                : NULL;
    free(text);
    return *out ? DT_OK : no_memory(j);
}

static dt_err make_splitter(const job *j, json_t **out)
{
    json_t *list = json_array(), *split = NULL;
    if (j->spm.prefix)
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace", "replacement", DT_SPACE_SIGN,
                                              "prepend_scheme", legacy(j) ? "always" : "first", "split", false));
    if (has_type(j, DT_SPM_USER_DEFINED)) DT_TRY(isolate(j, &split));
    if (split) json_array_append_new(list, split);
    *out = sequence("pretokenizers", list);
    return DT_OK;
}

static dt_err make_stages(job *j)
{
    json_t *splitter = NULL;
    bool changed;
    const dt_spec root = {.file = j->spm.file, .value = j->root};
    if (is_llama(j)) return dt_auto_build(j->class, j->files, &root, &changed);
    DT_TRY(make_splitter(j, &splitter));
    json_object_set_new(j->root, "normalizer", make_normalizer(j));
    json_object_set_new(j->root, "pre_tokenizer", splitter);
    json_object_set_new(j->root, "decoder",
                        dt_auto_decoder(j->spm.byte_fallback, j->spm.prefix || j->spm.byte_fallback, j->spm.prefix));
    return json_object_size(j->root) >= 4 ? DT_OK : no_memory(j);
}

/* ---- added tokens, and tokens around a text ---------------------------------------------------------------------- */

static bool add_token(json_t *list, int32_t id, dt_spm_text text, bool special, bool single)
{
    json_t *token =
        json_pack("{s:i, s:o, s:b, s:b, s:b, s:b, s:b}", "id", (int)id, "content", string(text), "single_word", single,
                  "lstrip", false, "rstrip", false, "normalized", false, "special", special);
    return token && json_array_append_new(list, token) == 0;
}

/* Files that list extra tokens replace those of the model. */
static bool has_extra(const job *j)
{
    const json_t *config = j->files->file[DT_AUTO_CONFIG].value, *map = j->files->file[DT_AUTO_MAP].value;
    const json_t *extra = json_object_get(config, "extra_special_tokens");
    return (extra && !json_is_object(extra)) || json_object_get(config, "additional_special_tokens") ||
           (!j->files->decoder.value && (json_is_array(json_object_get(map, "extra_special_tokens")) ||
                                         json_object_get(map, "additional_special_tokens")));
}

/* Tokens that the code of ChatGLM2 and ChatGLM3 adds to its vocabulary, in this order. */
static const char *const CHATGLM[] = {"[MASK]",   "[gMASK]",       "[sMASK]",        "sop", "eop", "<|system|>",
                                      "<|user|>", "<|assistant|>", "<|observation|>"};

static dt_err add_tokens(job *j)
{
    json_t *list = json_array();
    const bool user = is_llama(j), listed = has_extra(j);
    bool fits = list && json_object_set_new(j->root, "added_tokens", list) == 0;
    for (int32_t i = 0; i < j->spm.n_pieces && !listed; i++) {
        const dt_spm_type type = j->spm.piece[i].type;
        if (type == DT_SPM_CONTROL || (user && type == DT_SPM_USER_DEFINED))
            fits = fits && add_token(list, i, j->name[i], type == DT_SPM_CONTROL, false);
    }
    for (int32_t i = 0; i < (int32_t)(sizeof CHATGLM / sizeof CHATGLM[0]) && j->chatglm; i++)
        fits = fits && add_token(list, j->spm.n_pieces + i, (dt_spm_text){CHATGLM[i], strlen(CHATGLM[i])}, true,
                                 CHATGLM[i][0] != '[' && CHATGLM[i][0] != '<');
    return fits ? DT_OK : no_memory(j);
}

/* Id of a token: of a piece, or of an added token. -1: none. */
static int32_t find_id(const job *j, const char *text, size_t n)
{
    int32_t id = dt_vocab_find(&j->vocab, text, n, DT_TOKEN_MODEL);
    for (int i = 0; i < j->added.n && id < 0; i++)
        if (j->added.item[i].n == n && memcmp(j->added.item[i].content, text, n) == 0) id = j->added.item[i].id;
    return id;
}

/* bos_token or eos_token, if its flag in tokenizer_config.json is true. */
static dt_err add_around(const job *j, const char *flag, const char *key, json_t *single, json_t *special)
{
    const char *text = dt_auto_default(j->class, j->files, key);
    size_t n = strlen(text);
    dt_spec s;
    if (!json_is_true(json_object_get(j->files->file[DT_AUTO_CONFIG].value, flag))) return DT_OK;
    if (dt_auto_token(j->files, key, &s)) DT_TRY(dt_auto_content(&s, &text, &n));
    if (n == 0) return DT_OK;
    const int32_t id = find_id(j, text, n);
    DT_CHECK(id >= 0, DT_ERR_DATA, "%s: %s: expected a token, because %s is true, found %.60s",
             j->files->path[DT_AUTO_CONFIG], key, flag, text);
    json_object_set_new(special, text, json_pack("{s:s, s:[i], s:[s]}", "id", text, "ids", (int)id, "tokens", text));
    json_array_append_new(single, json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", text, "type_id", 0));
    return DT_OK;
}

static void add_text(json_t *single)
{
    json_array_append_new(single, json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A", "type_id", 0));
}

/* ChatGLM's code begins each text with [gMASK] and sop. */
static dt_err make_post_processor(job *j)
{
    json_t *single = json_array(), *special = json_object(),
           *whole = json_pack("{s:s, s:O, s:O, s:o}", "type", "TemplateProcessing", "single", single, "pair", single,
                              "special_tokens", special);
    json_object_set_new(j->root, "post_processor", whole);
    for (int i = 1; i <= 3 && j->chatglm; i += 2) {
        const int id = j->spm.n_pieces + i;
        json_object_set_new(special, CHATGLM[i],
                            json_pack("{s:s, s:[i], s:[s]}", "id", CHATGLM[i], "ids", id, "tokens", CHATGLM[i]));
        json_array_append_new(single, json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", CHATGLM[i], "type_id", 0));
    }
    dt_err err = j->chatglm ? DT_OK : add_around(j, "add_bos_token", "bos_token", single, special);
    add_text(single);
    if (err == DT_OK && !j->chatglm) err = add_around(j, "add_eos_token", "eos_token", single, special);
    json_t *pair = json_deep_copy(single);
    if (pair) json_array_append_new(pair, json_pack("{s:{s:s, s:i}}", "Sequence", "id", "B", "type_id", 1));
    json_object_set_new(whole, "pair", pair);
    json_decref(single);
    DT_TRY(err);
    return whole && pair ? DT_OK : no_memory(j);
}

/* ---- tokenizer_config.json --------------------------------------------------------------------------------------- */

/* Names of tokens that no file gives. */
static dt_err name_tokens(const dt_spm *s, json_t **names)
{
    *names = json_object();
    if (*names && s->bos_id >= 0) json_object_set_new(*names, "bos_token", string(s->bos));
    if (*names && s->eos_id >= 0) json_object_set_new(*names, "eos_token", string(s->eos));
    if (*names) json_object_set_new(*names, "unk_token", string(s->unk));
    DT_CHECK(*names, DT_ERR_MEMORY, "%s: out of memory for its tokens", s->file);
    return DT_OK;
}

static json_t *make_decoder_entry(const dt_added_item *t)
{
    const unsigned f = t->flags;
    return json_pack("{s:s%, s:b, s:b, s:b, s:b, s:b}", "content", t->content, t->n, "lstrip", f & DT_ADDED_LSTRIP,
                     "normalized", f & DT_ADDED_NORMALIZED, "rstrip", f & DT_ADDED_RSTRIP, "single_word",
                     f & DT_ADDED_SINGLE_WORD, "special", f & DT_ADDED_SPECIAL);
}

/* The directory's file, which lists all added tokens and names all special ones. */
static dt_err make_config(job *j)
{
    const json_t *had = j->files->file[DT_AUTO_CONFIG].value;
    json_t *decoder = json_object();
    j->config = had ? json_copy((json_t *)had) : json_object();
    bool fits = j->config && json_object_set_new(j->config, "added_tokens_decoder", decoder) == 0;
    for (int i = 0; i < j->added.n; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", (int)j->added.item[i].id);
        fits = fits && json_object_set_new(decoder, id, make_decoder_entry(&j->added.item[i])) == 0;
    }
    return fits && json_object_update(j->config, j->special) == 0 ? DT_OK : no_memory(j);
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static dt_err make(job *j)
{
    const dt_spec root = {.file = j->spm.file, .value = j->root};
    bool changed;
    int32_t n_own;
    DT_TRY(check_class(j));
    DT_TRY(find_names(j));
    DT_TRY(fill_vocab(j));
    DT_TRY(add_tokens(j));
    DT_TRY(j->spm.model_type == DT_SPM_BPE ? make_bpe(j) : make_unigram(j));
    DT_TRY(make_stages(j));
    DT_TRY(dt_auto_tokens(&j->added, j->class, j->files, &root, &j->vocab, &changed, &n_own, &j->special));
    DT_TRY(make_post_processor(j));
    return make_config(j);
}

/* From here on, the files are those of a directory with a tokenizer.json. */
static void replace_config(dt_auto_files *f, json_t *config)
{
    dt_spec *file = &f->file[DT_AUTO_CONFIG];
    json_decref(f->spm_names);
    f->spm_names = NULL;
    f->from_model = f->raw = false;
    json_decref((json_t *)file->value);
    *file = (dt_spec){.file = f->path[DT_AUTO_CONFIG], .value = json_incref(config)};
    dt_spec_get(file, "added_tokens_decoder", &f->decoder);
}

dt_err dt_spm_to_json(dt_auto_files *f, const char *file, char **text, size_t *nbytes)
{
    job j = {.files = f, .root = json_object()};
    *text = NULL;
    dt_err err = dt_spm_read(&j.spm, file);
    const dt_spec root = {.file = file, .value = j.root};
    f->from_model = true;
    f->raw = j.spm.prefix;
    j.class = dt_auto_class_of(f, &root);
    const char *class = json_string_value(json_object_get(f->file[DT_AUTO_CONFIG].value, "tokenizer_class"));
    j.chatglm = class && strcmp(class, "ChatGLMTokenizer") == 0;
    if (err == DT_OK) err = name_tokens(&j.spm, &f->spm_names);
    if (err == DT_OK && !j.root) err = no_memory(&j);
    if (err == DT_OK) err = make(&j);
    if (err == DT_OK && !(*text = json_dumps(j.root, JSON_COMPACT))) err = no_memory(&j);
    if (err == DT_OK) *nbytes = strlen(*text), replace_config(f, j.config);
    dt_added_list_free(&j.added); /* its texts are the files' */
    json_decref(j.root);
    json_decref(j.config);
    json_decref(j.special);
    free(j.name);
    dt_vocab_free(&j.vocab);
    dt_spm_free(&j.spm);
    return err;
}
