/* unigram.c - the division with the largest sum of scores, by dynamic programming over positions (Viterbi). */
#include "unigram.h"

#include <stdlib.h>

/* Below the score of every token, as in SentencePiece. Tokens are scanned at each byte of a text. */
enum { PENALTY = 10, MAX_TOKEN = 1024 };

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static dt_err read_token(dt_unigram *u, const dt_spec *item, dt_vocab *vocab, int32_t id)
{
    const json_t *text = json_array_get(item->value, 0), *score = json_array_get(item->value, 1);
    const size_t n = json_string_length(text);
    if (json_array_size(item->value) != 2 || !json_is_string(text) || !json_is_number(score) || n > MAX_TOKEN)
        return dt_spec_bad(item, NULL, "a token of at most 1024 bytes, and its score");
    u->score[id] = json_number_value(score);
    if (id == 0 || u->score[id] - PENALTY < u->unknown) u->unknown = u->score[id] - PENALTY;
    DT_TRY(dt_error_prefix(dt_vocab_add(vocab, id, json_string_value(text), n, DT_TOKEN_MODEL), "%s: %s: expected ",
                           item->file, item->where));
    return n > 0 ? dt_trie_add(&u->trie, json_string_value(text), n, id) : DT_OK;
}

dt_err dt_unigram_read(dt_unigram **out, const dt_spec *model, dt_vocab *vocab)
{
    dt_spec list;
    dt_unigram *u = *out = calloc(1, sizeof *u);
    DT_CHECK(u, DT_ERR_MEMORY, "%s: out of memory for its model", model->file);
    DT_TRY(dt_spec_need(model, "vocab", JSON_ARRAY, &list));
    const size_t n = json_array_size(list.value);
    if (n == 0 || n > DT_VOCAB_MAX_ID) return dt_spec_bad(&list, NULL, "1 to 4194303 tokens");
    DT_ALLOC(u->score, n, "%s: out of memory for its scores", model->file);
    u->n = (int32_t)n;
    for (int32_t i = 0; i < u->n; i++) {
        const dt_spec item = dt_spec_item(&list, (size_t)i);
        DT_TRY(read_token(u, &item, vocab, i));
    }
    return DT_OK;
}

size_t dt_unigram_nbytes(const dt_unigram *u)
{
    return u ? u->trie.n_alloc * sizeof *u->trie.node + (size_t)u->n * sizeof *u->score : 0;
}

void dt_unigram_free(dt_unigram *u)
{
    if (!u) return;
    free(u->trie.node);
    free(u->score);
    free(u);
}

/* ---- dividing a text --------------------------------------------------------------------------------------------- */

/* A token from `start` to `end`: keep it if it is better than that found before. */
static void offer(dt_unigram_node *node, size_t start, size_t end, double score, int32_t id)
{
    const double sum = score + node[start].score;
    if (node[end].start < 0 || sum > node[end].score)
        node[end] = (dt_unigram_node){.score = sum, .start = (int32_t)start, .id = id};
}

/* Offer all tokens that begin at `at`. Returns whether one of them is the single character of n_char bytes. */
static bool offer_tokens(const dt_unigram *u, dt_unigram_node *node, const char *text, size_t at, size_t n,
                         size_t n_char)
{
    bool single = false;
    int32_t place = 0;
    for (size_t end = at; end < n && (place = dt_trie_step(&u->trie, place, (unsigned char)text[end])) != 0;) {
        const int32_t id = u->trie.node[place].token;
        end++;
        if (id < 0) continue;
        offer(node, at, end, u->score[id], id);
        single = single || end - at == n_char;
    }
    return single;
}

dt_err dt_unigram_divide(const dt_unigram *u, dt_unigram_work *w, const char *text, size_t n, int32_t unk)
{
    if (w->n_alloc < n + 1) {
        DT_RESIZE(w->node, 2 * (n + 1), "out of memory for a text segment of %zu bytes", n);
        w->n_alloc = 2 * (n + 1);
    }
    dt_unigram_node *node = w->node;
    for (size_t i = 0; i <= n; i++) node[i] = (dt_unigram_node){.start = -1};
    for (size_t i = 0, len; i < n; i += len) {
        len = dt_utf8_length(text + i, n - i);
        if (!len) len = 1;
        if (offer_tokens(u, node, text, i, n, len)) continue;
        DT_CHECK(unk >= 0, DT_ERR_DATA,
                 "the tokenizer has no token for the character `%.*s`, and its model has no unk_id", (int)len,
                 text + i);
        offer(node, i, i + len, u->unknown, unk);
    }
    for (size_t end = n; end > 0; end = (size_t)node[end].start) node[node[end].start].end = (int32_t)end;
    return DT_OK;
}
