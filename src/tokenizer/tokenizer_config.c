/* tokenizer_config.c - tokens around texts, and the settings in files next to tokenizer.json.
 *
 * tokenizer_config.json takes precedence over special_tokens_map.json. Without either, BOS is the first token that the
 * post-processor adds and EOS the last, else a special token with a common name. */
#include "tokenizer_json.h"

/* ---- post_processor ---------------------------------------------------------------------------------------------- */

static dt_err read_id(const dt_spec *s, const json_t *value, const char *expected, const dt_vocab *vocab, int32_t *id)
{
    if (!dt_auto_is_id(value)) return dt_spec_bad(s, NULL, expected);
    *id = (int32_t)json_integer_value(value);
    return dt_vocab_get(vocab, *id) ? DT_OK : dt_spec_bad(s, NULL, "ids of the vocabulary");
}

static dt_err add_special(dt_post_processor *w, const dt_spec *processor, const char *name, const dt_vocab *vocab,
                          bool after)
{
    dt_spec all, one, ids;
    DT_TRY(dt_spec_need(processor, "special_tokens", JSON_OBJECT, &all));
    DT_TRY(dt_spec_need(&all, name, JSON_OBJECT, &one));
    DT_TRY(dt_spec_need(&one, "ids", JSON_ARRAY, &ids));
    for (size_t i = 0; i < json_array_size(ids.value); i++) {
        const dt_spec item = dt_spec_item(&ids, i);
        int *n = after ? &w->n_after : &w->n_before;
        int32_t id;
        DT_TRY(read_id(&item, item.value, "an id", vocab, &id));
        if (*n == DT_POST_PROCESSOR_MAX) return dt_spec_bad(&ids, NULL, "at most 16 tokens around a text");
        (after ? w->after : w->before)[(*n)++] = id;
    }
    return DT_OK;
}

static dt_err read_template(dt_post_processor *w, const dt_spec *s, const dt_vocab *vocab)
{
    dt_spec single, part;
    const char *name;
    bool after = false;
    DT_TRY(dt_spec_only(s, "type single pair special_tokens"));
    DT_TRY(dt_spec_need(s, "single", JSON_ARRAY, &single));
    for (size_t i = 0; i < json_array_size(single.value); i++) {
        const dt_spec item = dt_spec_item(&single, i);
        if (dt_spec_get(&item, "SpecialToken", &part)) {
            DT_TRY(dt_spec_need_string(&part, "id", &name));
            DT_TRY(add_special(w, s, name, vocab, after));
        } else {
            DT_TRY(dt_spec_need(&item, "Sequence", JSON_OBJECT, &part));
            DT_TRY(dt_spec_need_string(&part, "id", &name));
            if (strcmp(name, "A") != 0 || after) return dt_spec_bad(&item, NULL, "the sequence A exactly once");
            after = true;
        }
    }
    return after ? DT_OK : dt_spec_bad(&single, NULL, "the sequence A");
}

/* A pair as in ["[SEP]", 2]. */
static dt_err read_pair(const dt_spec *s, const char *key, const dt_vocab *vocab, int32_t *id)
{
    dt_spec pair;
    DT_TRY(dt_spec_need(s, key, JSON_ARRAY, &pair));
    return read_id(&pair, json_array_get(pair.value, 1), "a token and its id", vocab, id);
}

typedef struct reader {
    dt_post_processor *wrap;
    const dt_vocab *vocab;
} reader;

/* A later processor puts its tokens around those of the ones before it. */
static dt_err read_processor(void *self, const dt_spec *s, const char *type)
{
    const reader *r = self;
    dt_post_processor *w = r->wrap, outer = {0};
    if (strcmp(type, "ByteLevel") == 0) return dt_spec_only(s, "type add_prefix_space trim_offsets use_regex");
    if (strcmp(type, "TemplateProcessing") == 0) {
        DT_TRY(read_template(&outer, s, r->vocab));
    } else if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0) {
        DT_TRY(dt_spec_only(s, "type sep cls trim_offsets add_prefix_space"));
        DT_TRY(read_pair(s, "cls", r->vocab, &outer.before[0]));
        DT_TRY(read_pair(s, "sep", r->vocab, &outer.after[0]));
        outer.n_before = outer.n_after = 1;
    } else {
        return dt_spec_bad(s, "type", "ByteLevel, TemplateProcessing, RobertaProcessing, BertProcessing or Sequence");
    }
    if (w->n_before + outer.n_before > DT_POST_PROCESSOR_MAX || w->n_after + outer.n_after > DT_POST_PROCESSOR_MAX)
        return dt_spec_bad(s, NULL, "at most 16 tokens around a text");
    memmove(w->before + outer.n_before, w->before, (size_t)w->n_before * sizeof w->before[0]);
    memcpy(w->before, outer.before, (size_t)outer.n_before * sizeof outer.before[0]);
    memcpy(w->after + w->n_after, outer.after, (size_t)outer.n_after * sizeof outer.after[0]);
    w->n_before += outer.n_before;
    w->n_after += outer.n_after;
    return DT_OK;
}

dt_err dt_post_processor_read(dt_post_processor *w, const dt_spec *root, const dt_vocab *vocab)
{
    dt_spec s;
    *w = (dt_post_processor){0};
    if (!dt_spec_get(root, "post_processor", &s)) return DT_OK;
    return dt_stage_read(&(reader){w, vocab}, &s, "processors", read_processor);
}

/* ---- files next to tokenizer.json -------------------------------------------------------------------------------- */

/* Id of a named token, which is in the vocabulary (auto_tokens.c). */
static dt_err read_token(const dt_tokenizer *t, const dt_auto_files *f, const char *key, int32_t *id)
{
    const dt_json_tokenizer *j = t->impl;
    const char *text = dt_auto_default(j->class, f, key);
    size_t n = strlen(text);
    dt_spec s;
    if (*text) *id = dt_vocab_find(&j->bpe.vocab, text, n, DT_TOKEN_MODEL | DT_TOKEN_ADDED);
    if (!dt_auto_token(f, key, &s)) return DT_OK;
    DT_TRY(dt_auto_content(&s, &text, &n));
    *id = dt_vocab_find(&j->bpe.vocab, text, n, DT_TOKEN_MODEL | DT_TOKEN_ADDED);
    return *id >= 0 ? DT_OK : dt_spec_bad(&s, NULL, "a token that is not empty");
}

static int32_t usual(const dt_tokenizer *t, const char *const names[], size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const int32_t id = t->ops->find(t, names[i]);
        if (id >= 0 && t->ops->is_special(t, id)) return id;
    }
    return -1;
}

/* Choose the padding token (algorithms.md A.2): the named one, else a token with a common name, else a
 * reserved or unused one, else EOS. A named token that is not in the vocabulary is not used: the model
 * would grow for a token that is never a target. */
static int32_t choose_pad(const dt_tokenizer *t, const dt_auto_files *f)
{
    static const char *const names[] = {"<pad>",       "<|pad|>",      "[PAD]", "<PAD>", "<|finetune_right_pad_id|>",
                                        "<｜▁pad▁｜>", "<|PAD_TOKEN|>"};
    const dt_json_tokenizer *j = t->impl;
    int32_t id = -1;
    if (read_token(t, f, "pad_token", &id) != DT_OK) {
        DT_WARN("%s; another padding token is used", dt_error_message());
        dt_error_clear();
        id = -1;
    }
    if (id < 0 || id >= j->n_own) id = usual(t, names, sizeof names / sizeof names[0]);
    if (id >= j->n_own) id = -1;
    for (int32_t i = 0; i < j->bpe.vocab.n_ids && id < 0; i++) {
        const dt_vocab_entry *e = i < j->n_own ? dt_vocab_get(&j->bpe.vocab, i) : NULL;
        if (!e || !(e->flags & DT_TOKEN_SPECIAL)) continue;
        const char *text = dt_vocab_text(&j->bpe.vocab, e);
        if (strstr(text, "reserved") || strstr(text, "unused")) id = i;
    }
    return id >= 0 ? id : t->info.eos;
}

static dt_err check_flags(const dt_spec *config)
{
    bool ignored = false; /* the post-processor of tokenizer.json takes precedence */
    DT_TRY(dt_spec_bool(config, "add_bos_token", &ignored));
    return dt_spec_bool(config, "add_eos_token", &ignored);
}

dt_err dt_tokenizer_read_config(dt_tokenizer *t)
{
    static const char *const names[] = {"</s>",  "<|endoftext|>",         "<|end_of_text|>",
                                        "<eos>", "<｜end▁of▁sentence｜>", "[EOS]"};
    dt_json_tokenizer *j = t->impl;
    const dt_auto_files *f = &j->files;
    const dt_post_processor *w = &j->wrap;
    t->info.bos = w->n_before ? w->before[0] : -1;
    t->info.eos = w->n_after ? w->after[w->n_after - 1] : -1;
    t->info.n_own = j->n_own;
    if (!f->file[DT_AUTO_CONFIG].value && !f->file[DT_AUTO_MAP].value && t->info.eos < 0)
        t->info.eos = usual(t, names, sizeof names / sizeof names[0]);
    DT_TRY(read_token(t, f, "bos_token", &t->info.bos));
    DT_TRY(read_token(t, f, "eos_token", &t->info.eos));
    t->info.pad = choose_pad(t, f);
    DT_TRY(check_flags(&f->file[DT_AUTO_CONFIG]));
    DT_TRY(dt_tokenizer_read_template(j, &f->file[DT_AUTO_CONFIG]));
    t->info.named = j->named;
    t->info.chat_template = j->chat_template;
    t->info.chat_template_file = j->chat_template_file;
    t->info.chat_templates = j->chat_templates;
    return DT_OK;
}
