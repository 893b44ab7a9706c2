/* bpe.c - encodes pieces to ids.
 *
 * A long piece is split at positions that no token spans; text without a pre-tokenizer is one piece. Almost all input
 * then consists of words, which repeat; a fixed-size cache stores their ids. Short words that are not cached are merged
 * by repeated search for the lowest rank, long ones with a heap, in O(n log n). */
#include "bpe.h"
#include "dtrain/text/utf8.h"

#include <stdlib.h>

enum { N_CACHED = 1 << 15, KEY_MAX = 42, IDS_MAX = 5, FEW = 24, NO_MERGE = INT32_MAX };

/* One cache line. */
typedef struct cached {
    uint8_t n_key, n_ids; /* n_key 0: empty */
    char key[KEY_MAX];
    int32_t id[IDS_MAX];
} cached;
_Static_assert(sizeof(cached) == 64, "one cache line");

typedef struct symbol {
    int32_t id;
    int32_t rank, joined; /* of the pair with the next symbol */
    uint32_t n;           /* bytes */
    int32_t before, next; /* merge_many: -1 at the ends */
} symbol;

struct dt_bpe_work {
    symbol *symbol;
    size_t n_symbols, n_alloc;
    uint64_t *heap; /* rank << 32 | position */
    size_t n_heap, heap_alloc;
    uint32_t *lens;
    size_t lens_alloc;
    dt_text mapped;
    dt_unigram_work unigram;
    cached cache[N_CACHED];
};

dt_err dt_bpe_work_open(dt_bpe_work **out)
{
    dt_bpe_work *w = *out = aligned_alloc(64, (sizeof *w + 63) / 64 * 64);
    DT_CHECK(w, DT_ERR_MEMORY, "out of memory for an encoder");
    memset(w, 0, sizeof *w);
    return DT_OK;
}

size_t dt_bpe_work_nbytes(void) { return sizeof(dt_bpe_work); }

void dt_bpe_work_close(dt_bpe_work *w)
{
    if (!w) return;
    free(w->symbol);
    free(w->heap);
    free(w->lens);
    free(w->mapped.bytes);
    free(w->unigram.node);
    free(w);
}

/* ---- symbols of a word ------------------------------------------------------------------------------------------- */

static void add(dt_bpe_work *w, int32_t id, size_t n)
{
    w->symbol[w->n_symbols++] = (symbol){.id = id, .n = (uint32_t)n};
}

enum { WITH_MAX = 80 }; /* bytes of a character with both affixes (read_affix), and a terminating 0 */

/* A character with the affixes for its position in the word; the text itself if there are none. */
static const char *with_affixes(const dt_bpe *b, const char *text, bool first, bool last, char with[WITH_MAX],
                                size_t *n)
{
    if (!b->prefix && !b->suffix) return text;
    *n = (size_t)snprintf(with, WITH_MAX, "%s%.*s%s", !first && b->prefix ? b->prefix : "", (int)*n, text,
                          last && b->suffix ? b->suffix : "");
    return with;
}

/* Vocabulary id of a character; -1: none. ASCII without affixes uses a table. */
static int32_t char_symbol(const dt_bpe *b, const char *text, size_t n)
{
    if (n == 1 && !b->prefix && !b->suffix) return b->ascii[(unsigned char)text[0]];
    return dt_vocab_find(&b->vocab, text, n, DT_TOKEN_MODEL);
}

static bool has_bytes(const dt_bpe *b, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (b->byte_symbol[(unsigned char)text[i]] < 0) return false;
    return b->byte_fallback;
}

/* Add a character as byte symbols, including its affixes. The affixes are not part of the text: with
 * affixes, the last symbol accounts for all bytes of the character. */
static void add_bytes(const dt_bpe *b, dt_bpe_work *w, const char *written, size_t n, size_t n_text, size_t dropped)
{
    const bool plain = !b->prefix && !b->suffix;
    for (size_t k = 0; k < n; k++) {
        const size_t own = plain ? 1 + (k ? 0 : dropped) : k + 1 < n ? 0 : n_text + dropped;
        add(w, b->byte_symbol[(unsigned char)written[k]], own);
    }
}

/* An unknown character is kept pending until a known one follows, so that consecutive ones can be fused.
 * A character that is written as bytes leaves it pending. */
static void symbols_of_chars(const dt_bpe *b, dt_bpe_work *w, const char *text, size_t n)
{
    size_t unk_n = 0, dropped = 0;
    for (size_t i = 0, len; i < n; i += len) {
        len = dt_utf8_length(text + i, n - i);
        if (!len) len = 1;
        char with[WITH_MAX];
        size_t n_written = len;
        const char *written = with_affixes(b, text + i, i == 0, i + len == n, with, &n_written);
        const int32_t id = char_symbol(b, written, n_written);
        if (id >= 0) {
            if (unk_n) add(w, b->unk, unk_n), unk_n = 0;
            add(w, id, len + dropped), dropped = 0;
        } else if (has_bytes(b, written, n_written)) {
            add_bytes(b, w, written, n_written, len, dropped), dropped = 0;
        } else if (b->unk >= 0) {
            if (unk_n && !b->fuse_unk) add(w, b->unk, unk_n), unk_n = 0;
            unk_n += len;
        } else {
            dropped += len;
        }
    }
    if (unk_n) add(w, b->unk, unk_n);
    if (dropped && w->n_symbols) w->symbol[w->n_symbols - 1].n += (uint32_t)dropped;
}

/* Byte-level vocabularies: one symbol per byte. A byte that is not in the vocabulary becomes unk; without
 * unk its length counts to the next symbol. */
static void symbols_of_bytes(const dt_bpe *b, dt_bpe_work *w, const char *text, size_t n)
{
    size_t dropped = 0;
    for (size_t i = 0; i < n; i++) {
        const int32_t id = b->byte_symbol[(unsigned char)text[i]];
        if (id >= 0)
            add(w, id, 1 + dropped), dropped = 0;
        else if (b->unk >= 0)
            add(w, b->unk, 1);
        else
            dropped++;
    }
    if (dropped && w->n_symbols) w->symbol[w->n_symbols - 1].n += (uint32_t)dropped;
}

/* Result of merging left and right, and its rank: its index in the list of merges. */
static void find_merge(const dt_bpe *b, symbol *left, const symbol *right)
{
    const dt_merge *m = dt_bpe_merge(b, left->id, right->id);
    left->rank = m ? m->rank : NO_MERGE;
    left->joined = m ? m->joined : 0;
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

/* Apply the merge of lowest rank in the word, leftmost on ties, until there is none. O(n^2), but fastest
 * for short words. */
static void merge_few(const dt_bpe *b, dt_bpe_work *w)
{
    symbol *s = w->symbol;
    for (;;) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < w->n_symbols; i++)
            if (s[i].rank < s[best].rank) best = i;
        if (w->n_symbols < 2 || s[best].rank == NO_MERGE) return;
        s[best].id = s[best].joined;
        s[best].n += s[best + 1].n;
        w->n_symbols--;
        memmove(&s[best + 1], &s[best + 2], (w->n_symbols - best - 1) * sizeof *s);
        if (best + 1 < w->n_symbols) find_merge(b, &s[best], &s[best + 1]);
        if (best > 0) find_merge(b, &s[best - 1], &s[best]);
    }
}

static void heap_push(dt_bpe_work *w, uint64_t key)
{
    size_t i = w->n_heap++;
    for (; i > 0 && w->heap[(i - 1) / 2] > key; i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = key;
}

/* A binary min-heap of rank << 32 | position: lowest rank first, then leftmost. */
static uint64_t heap_pop(dt_bpe_work *w)
{
    const uint64_t top = w->heap[0], key = w->heap[--w->n_heap];
    size_t i = 0, child;
    for (; (child = 2 * i + 1) < w->n_heap; i = child) {
        if (child + 1 < w->n_heap && w->heap[child + 1] < w->heap[child]) child++;
        if (w->heap[child] >= key) break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = key;
    return top;
}

/* Look up the merge of the symbols at a position and after it, and queue it. */
static void offer(const dt_bpe *b, dt_bpe_work *w, int32_t position)
{
    symbol *s = &w->symbol[position];
    if (s->next < 0)
        s->rank = NO_MERGE;
    else
        find_merge(b, s, &w->symbol[s->next]);
    if (s->rank != NO_MERGE) heap_push(w, (uint64_t)(uint32_t)s->rank << 32 | (uint32_t)position);
}

/* A heap entry is stale if its position now has another rank; the same rank implies the same pair. A position merged
 * into the one before has none. There are at most n - 1 initial entries. Each of at most n - 1 merges adds two. */
static dt_err merge_many(const dt_bpe *b, dt_bpe_work *w)
{
    const int32_t n = (int32_t)w->n_symbols;
    if (w->heap_alloc < 3 * w->n_symbols) {
        free(w->heap);
        w->heap_alloc = 0;
        DT_ALLOC(w->heap, 3 * w->n_symbols, "out of memory for merging %d symbols", n);
        w->heap_alloc = 3 * w->n_symbols;
    }
    w->n_heap = 0;
    symbol *s = w->symbol;
    for (int32_t i = 0; i < n; i++) s[i].before = i - 1, s[i].next = i + 1 < n ? i + 1 : -1;
    for (int32_t i = 0; i < n; i++) offer(b, w, i);
    while (w->n_heap > 0) {
        const uint64_t top = heap_pop(w);
        const int32_t i = (int32_t)(uint32_t)top;
        if (s[i].rank != (int32_t)(top >> 32)) continue;
        symbol *gone = &s[s[i].next];
        s[i].id = s[i].joined;
        s[i].n += gone->n;
        s[i].next = gone->next;
        gone->rank = NO_MERGE;
        if (gone->next >= 0) s[gone->next].before = i;
        offer(b, w, i);
        if (s[i].before >= 0) offer(b, w, s[i].before);
    }
    w->n_symbols = 0;
    for (int32_t i = 0; i >= 0; i = s[i].next) s[w->n_symbols++] = s[i];
    return DT_OK;
}

/* Symbols of a unigram model. Consecutive unknown characters are one: a token if their text is one, else bytes or
 * unk. */
static dt_err divide(const dt_bpe *b, dt_bpe_work *w, const char *text, size_t n)
{
    DT_TRY(dt_unigram_divide(b->unigram, &w->unigram, text, n, b->unk));
    const dt_unigram_node *node = w->unigram.node;
    for (size_t at = 0, end; at < n; at = end) {
        end = (size_t)node[at].end;
        int32_t id = node[end].id;
        const bool unknown = id == b->unk;
        while (unknown && end < n && node[node[end].end].id == id) end = (size_t)node[end].end;
        if (unknown) id = dt_vocab_find(&b->vocab, text + at, end - at, DT_TOKEN_MODEL);
        if (id >= 0)
            add(w, id, end - at);
        else if (has_bytes(b, text + at, end - at))
            add_bytes(b, w, text + at, end - at, end - at, 0);
        else
            add(w, b->unk, end - at);
    }
    return DT_OK;
}

/* Upper bound of the number of symbols: one per byte of the text and of each affix. */
static size_t most_symbols(const dt_bpe *b, size_t n)
{
    if (!b->byte_fallback) return n;
    return n + (b->prefix ? n * strlen(b->prefix) : 0) + (b->suffix ? strlen(b->suffix) : 0);
}

/* Merge the symbols of a word, in w->symbol. */
static dt_err merge_word(const dt_bpe *b, dt_bpe_work *w, const char *text, size_t n)
{
    const size_t most = most_symbols(b, n);
    DT_CHECK(most < INT32_MAX / 4, DT_ERR_DATA, "a text segment of %zu bytes is too long for the tokenizer", n);
    if (w->n_alloc < most + 1) {
        DT_RESIZE(w->symbol, 2 * (most + 1), "out of memory for a text segment of %zu bytes", n);
        w->n_alloc = 2 * (most + 1);
    }
    w->n_symbols = 0;
    if (b->unigram) return divide(b, w, text, n);
    (b->of_bytes ? symbols_of_bytes : symbols_of_chars)(b, w, text, n);
    if (w->n_symbols > FEW) return merge_many(b, w);
    for (size_t i = 0; i + 1 < w->n_symbols; i++) find_merge(b, &w->symbol[i], &w->symbol[i + 1]);
    merge_few(b, w);
    return DT_OK;
}

static dt_err append_symbols(const dt_bpe_work *w, dt_ids *ids)
{
    DT_TRY(dt_ids_reserve(ids, w->n_symbols));
    for (size_t i = 0; i < w->n_symbols; i++) ids->id[ids->n + i] = w->symbol[i].id;
    ids->n += w->n_symbols;
    return DT_OK;
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

/* Id of a piece that is in the vocabulary as a whole, -1: none. */
static int32_t whole(const dt_bpe *b, dt_bpe_work *w, const char *text, size_t n)
{
    if (!b->ignore_merges) return -1;
    if (!b->of_bytes) return dt_vocab_find(&b->vocab, text, n, DT_TOKEN_MODEL);
    if (n > 4096) return -1; /* the longest known tokens have a few hundred bytes */
    w->mapped.n = 0;
    dt_text_append_mapped(&w->mapped, text, n);
    return w->mapped.failed ? -1 : dt_vocab_find(&b->vocab, w->mapped.bytes, w->mapped.n, DT_TOKEN_MODEL);
}

static dt_err encode_word(const dt_bpe *b, dt_bpe_work *w, const char *text, size_t n, bool is_piece, dt_ids *ids)
{
    const int32_t id = is_piece ? whole(b, w, text, n) : -1;
    if (id >= 0) {
        DT_TRY(dt_ids_reserve(ids, 1));
        ids->id[ids->n++] = id;
        return DT_OK;
    }
    DT_TRY(merge_word(b, w, text, n));
    return append_symbols(w, ids);
}

static dt_err encode_cached(const dt_bpe *b, dt_bpe_work *w, const char *text, size_t n, dt_ids *ids)
{
    if (n > KEY_MAX) return encode_word(b, w, text, n, true, ids);
    cached *c = &w->cache[dt_hash_bytes(text, n) % N_CACHED];
    if (c->n_key == n && memcmp(c->key, text, n) == 0) {
        DT_TRY(dt_ids_reserve(ids, IDS_MAX));
        memcpy(ids->id + ids->n, c->id, sizeof c->id);
        ids->n += c->n_ids;
        return DT_OK;
    }
    const size_t first = ids->n;
    DT_TRY(encode_word(b, w, text, n, true, ids));
    if (ids->n - first > IDS_MAX) return DT_OK;
    c->n_key = (uint8_t)n;
    c->n_ids = (uint8_t)(ids->n - first);
    memcpy(c->key, text, n);
    if (c->n_ids > 0) memcpy(c->id, ids->id + first, c->n_ids * sizeof c->id[0]);
    return DT_OK;
}

/* End of the first word of a long piece. */
static size_t word_end(const dt_bpe *b, const char *text, size_t n)
{
    const char *p = text, *end = text + n;
    if (!b->pair) return n;
    uint32_t before = b->of_bytes ? (unsigned char)*p++ : dt_utf8_next(&p);
    while (p < end) {
        const char *at = p;
        const uint32_t c = b->of_bytes ? (unsigned char)*p++ : dt_utf8_next(&p);
        if (dt_bpe_keeps_apart(b, before, c)) return (size_t)(at - text);
        before = c;
    }
    return n;
}

static dt_err encode_long(const dt_bpe *b, dt_bpe_work *w, const char *text, size_t n, dt_ids *ids)
{
    const int32_t id = whole(b, w, text, n);
    if (id >= 0 || !b->pair) return encode_word(b, w, text, n, true, ids);
    for (size_t at = 0, len; at < n; at += len) {
        len = word_end(b, text + at, n - at);
        if (b->ignore_merges) /* cached ids are those of a whole piece */
            DT_TRY(encode_word(b, w, text + at, len, false, ids));
        else
            DT_TRY(encode_cached(b, w, text + at, len, ids));
    }
    return DT_OK;
}

/* Encode as one word, because lengths are requested; such pieces are rare. */
static dt_err encode_with_lens(const dt_bpe *b, dt_bpe_work *w, const char *text, size_t n, dt_ids *ids,
                               const uint32_t **lens)
{
    const int32_t id = whole(b, w, text, n);
    if (id >= 0) {
        DT_TRY(merge_word(b, w, "", 0));
        add(w, id, n);
    } else {
        DT_TRY(merge_word(b, w, text, n));
    }
    if (w->lens_alloc < w->n_symbols) {
        free(w->lens);
        w->lens = malloc((w->lens_alloc = 2 * w->n_symbols) * sizeof *w->lens);
        if (!w->lens) w->lens_alloc = 0;
        DT_CHECK(w->lens, DT_ERR_MEMORY, "out of memory for a text segment of %zu bytes", n);
    }
    for (size_t i = 0; i < w->n_symbols; i++) w->lens[i] = w->symbol[i].n;
    *lens = w->lens;
    return append_symbols(w, ids);
}

dt_err dt_bpe_encode(const dt_bpe *b, dt_bpe_work *w, const char *text, size_t n, dt_ids *ids, const uint32_t **lens)
{
    if (n == 0) return DT_OK;
    if (lens) return encode_with_lens(b, w, text, n, ids, lens);
    if (n <= KEY_MAX && (b->of_bytes || b->ignore_merges || b->unigram)) return encode_cached(b, w, text, n, ids);
    return encode_long(b, w, text, n, ids);
}
