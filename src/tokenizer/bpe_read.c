/* bpe_read.c - reads the model of a tokenizer.json: vocabulary, merges, and which neighbours never share a token. */
#include "bpe.h"
#include "dtrain/text/utf8.h"

#include <stdlib.h>

static const char *const keys = "type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk "
                                "byte_fallback ignore_merges vocab merges";

/* token: buffer for the bytes of the key. */
static dt_err read_entry(dt_bpe *b, const dt_spec *vocab, const char *key, const json_t *id, dt_text *token)
{
    const int64_t value = json_is_integer(id) ? json_integer_value(id) : -1;
    if (value < 0 || value > DT_VOCAB_MAX_ID)
        return dt_fail(DT_ERR_DATA, "%s: model.vocab: expected an id from 0 to %d for \"%.60s\"", vocab->file,
                       DT_VOCAB_MAX_ID, key);
    token->n = 0;
    dt_text_append(token, key, strlen(key));
    DT_CHECK(!token->failed, DT_ERR_MEMORY, "%s: out of memory for a token", vocab->file);
    const dt_err err =
        dt_vocab_add(&b->vocab, (int32_t)value, token->bytes, dt_json_key(key, token->bytes), DT_TOKEN_MODEL);
    const dt_vocab_entry *other = dt_vocab_get(&b->vocab, (int32_t)value);
    if (err != DT_ERR_DATA || !other) return err;
    dt_error_clear();
    return dt_fail(DT_ERR_DATA, "%s: model.vocab: expected one token for id %d, found \"%.60s\" and \"%.60s\"",
                   vocab->file, (int)value, dt_vocab_text(&b->vocab, other), key);
}

static dt_err read_vocab(dt_bpe *b, const dt_spec *model)
{
    dt_spec vocab;
    const char *key;
    json_t *id;
    dt_text token = {0};
    dt_err err = DT_OK;
    DT_TRY(dt_spec_need(model, "vocab", JSON_OBJECT, &vocab));
    json_object_foreach((json_t *)vocab.value, key,
                        id) if ((err = read_entry(b, &vocab, key, id, &token)) != DT_OK) break;
    free(token.bytes);
    DT_TRY(err);
    return b->vocab.n_used ? DT_OK : dt_spec_bad(&vocab, NULL, "tokens");
}

/* ---- merges ------------------------------------------------------------------------------------------------------ */

static uint64_t hash_pair(int32_t left, int32_t right)
{
    return dt_mix64((uint64_t)(uint32_t)left << 32 | (uint32_t)right);
}

static dt_merge *merge_slot(const dt_bpe *b, int32_t left, int32_t right)
{
    size_t i = hash_pair(left, right) & (b->n_merge_slots - 1);
    while (b->merge[i].left >= 0 && (b->merge[i].left != left || b->merge[i].right != right))
        i = (i + 1) & (b->n_merge_slots - 1);
    return &b->merge[i];
}

const dt_merge *dt_bpe_merge(const dt_bpe *b, int32_t left, int32_t right)
{
    const dt_merge *m = merge_slot(b, left, right);
    return m->left >= 0 ? m : NULL;
}

/* "a b", or ["a", "b"]. */
static bool split_merge(const json_t *value, const char *half[2], size_t len[2])
{
    if (json_is_array(value)) {
        for (size_t i = 0; i < 2; i++) {
            const json_t *text = json_array_get(value, i);
            if (!json_is_string(text)) return false;
            half[i] = json_string_value(text), len[i] = json_string_length(text);
        }
        return json_array_size(value) == 2;
    }
    const char *text = json_string_value(value), *end = text + json_string_length(value);
    const char *space = text ? memchr(text, ' ', (size_t)(end - text)) : NULL;
    if (!space || memchr(space + 1, ' ', (size_t)(end - space - 1))) return false;
    half[0] = text, len[0] = (size_t)(space - text), half[1] = space + 1, len[1] = (size_t)(end - space - 1);
    return true;
}

static dt_err read_merge(dt_bpe *b, const dt_spec *item, int32_t rank, dt_text *joined)
{
    const char *half[2];
    size_t len[2];
    if (!split_merge(item->value, half, len)) return dt_spec_bad(item, NULL, "two tokens");
    const size_t prefix = b->prefix ? strlen(b->prefix) : 0;
    const int32_t left = dt_vocab_find(&b->vocab, half[0], len[0], DT_TOKEN_MODEL),
                  right = dt_vocab_find(&b->vocab, half[1], len[1], DT_TOKEN_MODEL);
    if (left < 0 || right < 0 || len[1] < prefix) return dt_spec_bad(item, NULL, "two tokens of the vocabulary");
    joined->n = 0;
    dt_text_append(joined, half[0], len[0]);
    dt_text_append(joined, half[1] + prefix, len[1] - prefix);
    DT_CHECK(!joined->failed, DT_ERR_MEMORY, "%s: no memory", item->file);
    const int32_t id = dt_vocab_find(&b->vocab, joined->bytes, joined->n, DT_TOKEN_MODEL);
    if (id < 0) return dt_spec_bad(item, NULL, "two tokens whose concatenation is a token of the vocabulary");
    *merge_slot(b, left, right) =
        /* of duplicates, the last counts */
        (dt_merge){.left = left, .right = right, .rank = rank, .joined = id};
    return DT_OK;
}

static dt_err read_merges(dt_bpe *b, const dt_spec *model)
{
    dt_spec merges;
    DT_TRY(dt_spec_need(model, "merges", JSON_ARRAY, &merges));
    const size_t n = json_array_size(merges.value);
    if (n > INT32_MAX / 4) return dt_spec_bad(&merges, NULL, "at most 536870911 merges");
    for (b->n_merge_slots = 64; b->n_merge_slots < n + n / 2; b->n_merge_slots *= 2) {
    }
    DT_ALLOC(b->merge, b->n_merge_slots, "%s: out of memory for %zu merges", model->file, n);
    for (size_t i = 0; i < b->n_merge_slots; i++) b->merge[i].left = -1;
    dt_text joined = {0};
    dt_err err = DT_OK;
    for (size_t i = 0; i < n && err == DT_OK; i++) {
        const dt_spec item = dt_spec_item(&merges, i);
        err = read_merge(b, &item, (int32_t)i, &joined);
    }
    free(joined.bytes);
    return err;
}

/* ---- neighbours within tokens ------------------------------------------------------------------------------------ */

static uint64_t pair_bit(const dt_bpe *b, uint32_t x, uint32_t y)
{
    return b->of_bytes ? x << 8 | y : dt_mix64((uint64_t)x << 32 | y) & b->pair_mask;
}

static bool is_symbol(const dt_bpe *b, uint32_t c)
{
    char text[4];
    if (b->of_bytes) return b->byte_symbol[c] >= 0;
    return c < 128 ? b->ascii[c] >= 0 : dt_vocab_find(&b->vocab, text, dt_utf8_put(c, text), DT_TOKEN_MODEL) >= 0;
}

bool dt_bpe_keeps_apart(const dt_bpe *b, uint32_t x, uint32_t y)
{
    if (!b->pair) return false;
    const uint64_t bit = pair_bit(b, x, y);
    if (b->pair[bit / 64] >> (bit % 64) & 1) return false;
    /* dropped characters do not separate their neighbours, and unk may absorb the next character */
    return b->all_known || (is_symbol(b, x) && is_symbol(b, y));
}

static void note_pairs(dt_bpe *b, const dt_vocab_entry *e)
{
    const char *p = dt_vocab_text(&b->vocab, e), *end = p + e->n;
    int64_t before = -1;
    while (p < end) {
        int64_t c = dt_utf8_next(&p);
        if (b->of_bytes) c = dt_char_byte((uint32_t)c);
        if (before >= 0 && c >= 0) {
            const uint64_t bit = pair_bit(b, (uint32_t)before, (uint32_t)c);
            b->pair[bit / 64] |= (uint64_t)1 << (bit % 64);
        }
        before = c;
    }
}

/* Collect pairs of neighbours in tokens that merges create. A piece may be split between other neighbours,
 * because no merge spans them. Pieces are never split if symbols depend on their position, or if merges
 * apply to symbols that differ from the text (characters written as bytes). */
static dt_err find_pairs(dt_bpe *b)
{
    if (b->prefix || b->suffix) return DT_OK;
    size_t n_bits = 1 << 16;
    if (!b->of_bytes)
        for (n_bits = 1 << 12; n_bits < 16 * b->n_merge_slots && n_bits < 1 << 21;) n_bits *= 2;
    b->pair_mask = n_bits - 1;
    DT_ALLOC(b->pair, n_bits / 64, "out of memory for a tokenizer");
    bool literal = true;
    for (size_t i = 0; i < b->n_merge_slots; i++) {
        const dt_merge *m = &b->merge[i];
        if (m->left < 0) continue;
        note_pairs(b, &b->vocab.entry[m->joined]);
        literal = literal && !((b->vocab.entry[m->left].flags | b->vocab.entry[m->right].flags) & DT_TOKEN_STAND_IN);
    }
    if (literal) return DT_OK;
    free(b->pair);
    b->pair = NULL;
    return DT_OK;
}

/* ---- symbols ----------------------------------------------------------------------------------------------------- */

static void find_symbols(dt_bpe *b)
{
    bool all = true;
    for (int i = 0; i < 256; i++) {
        char text[8];
        size_t n = dt_utf8_put(dt_byte_char((unsigned char)i), text);
        if (!b->of_bytes) n = (size_t)snprintf(text, sizeof text, "<0x%02X>", (unsigned)i);
        b->byte_symbol[i] = b->of_bytes || b->byte_fallback ? dt_vocab_find(&b->vocab, text, n, DT_TOKEN_MODEL) : -1;
        if (b->byte_symbol[i] >= 0 && !b->of_bytes) b->vocab.entry[b->byte_symbol[i]].flags |= DT_TOKEN_STAND_IN;
        all = all && b->byte_symbol[i] >= 0;
    }
    for (int i = 0; i < 128; i++)
        b->ascii[i] = b->of_bytes ? -1 : dt_vocab_find(&b->vocab, (char[]){(char)i}, 1, DT_TOKEN_MODEL);
    if (b->unk >= 0) b->vocab.entry[b->unk].flags |= DT_TOKEN_STAND_IN;
    b->all_known = all;
}

static dt_err read_affix(const dt_spec *model, const char *key, char **out)
{
    const char *text = NULL;
    DT_TRY(dt_spec_string(model, key, &text));
    if (!text || !text[0]) return DT_OK;
    if (strlen(text) > 32) return dt_spec_bad(model, key, "at most 32 bytes");
    DT_CHECK((*out = strdup(text)), DT_ERR_MEMORY, "%s: no memory", model->file);
    return DT_OK;
}

static dt_err read_options(dt_bpe *b, const dt_spec *model)
{
    const char *type = "BPE";
    dt_spec dropout;
    DT_TRY(dt_spec_string(model, "type", &type));
    if (strcmp(type, "BPE") != 0) return dt_spec_bad(model, "type", "BPE or Unigram");
    DT_TRY(dt_spec_only(model, keys));
    if (dt_spec_get(model, "dropout", &dropout) &&
        (!json_is_number(dropout.value) || json_number_value(dropout.value) != 0))
        return dt_spec_bad(&dropout, NULL, "null");
    DT_TRY(dt_spec_bool(model, "fuse_unk", &b->fuse_unk));
    DT_TRY(dt_spec_bool(model, "byte_fallback", &b->byte_fallback));
    DT_TRY(dt_spec_bool(model, "ignore_merges", &b->ignore_merges));
    DT_TRY(read_affix(model, "continuing_subword_prefix", &b->prefix));
    DT_TRY(read_affix(model, "end_of_word_suffix", &b->suffix));
    return read_vocab(b, model);
}

/* A missing unk is accepted if all text is known. */
static dt_err read_unk(dt_bpe *b, const dt_spec *model)
{
    const char *unk = NULL;
    DT_TRY(dt_spec_string(model, "unk_token", &unk));
    b->unk = unk && unk[0] ? dt_vocab_find(&b->vocab, unk, strlen(unk), DT_TOKEN_MODEL) : -1;
    find_symbols(b);
    if (b->of_bytes && !b->all_known && b->unk >= 0) { /* unk may be fused, which is defined for characters */
        b->of_bytes = false;
        find_symbols(b);
    }
    return unk && unk[0] && b->unk < 0 && !b->all_known ? dt_spec_bad(model, "unk_token", "a token of the vocabulary")
                                                        : DT_OK;
}

static dt_err read_unigram(dt_bpe *b, const dt_spec *model)
{
    int64_t unk = -1;
    DT_TRY(dt_spec_only(model, "type unk_id vocab byte_fallback"));
    DT_TRY(dt_unigram_read(&b->unigram, model, &b->vocab));
    DT_TRY(dt_spec_int(model, "unk_id", 0, b->unigram->n - 1, &unk));
    DT_TRY(dt_spec_bool(model, "byte_fallback", &b->byte_fallback));
    b->unk = (int32_t)unk;
    find_symbols(b);
    return DT_OK;
}

dt_err dt_bpe_read(dt_bpe *b, const dt_spec *model, bool of_bytes)
{
    const char *type = json_string_value(json_object_get(model->value, "type"));
    *b = (dt_bpe){.unk = -1};
    if (type && strcmp(type, "Unigram") == 0) return read_unigram(b, model);
    DT_TRY(read_options(b, model));
    b->of_bytes = of_bytes && !b->prefix && !b->suffix && !b->byte_fallback;
    DT_TRY(read_unk(b, model));
    DT_TRY(read_merges(b, model));
    return find_pairs(b);
}

size_t dt_bpe_nbytes(const dt_bpe *b)
{
    const size_t n_bits = b->pair ? (size_t)b->pair_mask + 1 : 0;
    return dt_vocab_nbytes(&b->vocab) + b->n_merge_slots * sizeof *b->merge + n_bits / 8 +
           dt_unigram_nbytes(b->unigram);
}

void dt_bpe_free(dt_bpe *b)
{
    dt_vocab_free(&b->vocab);
    dt_unigram_free(b->unigram);
    free(b->merge);
    free(b->pair);
    free(b->prefix);
    free(b->suffix);
    *b = (dt_bpe){0};
}
