/* cut.c - finds positions where a text may be cut such that its parts encode to the ids of the whole.
 *
 * Two kinds of positions are considered. The first is between a newline and a letter, if the character before the
 * newline is not a space. The second is before a space between two letters. The split expressions of known model
 * families always split there (splitter_read.c). Without such an expression, the model must have no token with both
 * neighbours. No added token may touch or span the position. */
#include "tokenizer_json.h"
#include "dtrain/text/utf8.h"

#include <stdlib.h>

static dt_split_there plan(const dt_json_tokenizer *j, bool line)
{
    bool replaced = false, mapped = false;
    for (int i = 0; i < j->normalizer.n_steps; i++) replaced = replaced || j->normalizer.step[i].kind == DT_REPLACE;
    if (!dt_normalizer_is_local(&j->normalizer)) return DT_THERE_UNKNOWN;
    for (int i = 0; i < j->splitter.n_steps; i++) {
        const dt_split_step *s = &j->splitter.step[i];
        const dt_split_there there = line ? s->at_line : s->at_space;
        const bool own = i > 0 && s[-1].kind == DT_SPLIT_SPACES && s->behavior == DT_SPLIT_WITH_NEXT;
        if (there == DT_THERE_UNKNOWN || mapped) return DT_THERE_UNKNOWN;
        /* the expression sees modified text */
        if (s->kind == DT_SPLIT_PATTERN && replaced && !own) return DT_THERE_UNKNOWN;
        if (there == DT_THERE_SPLIT) {
            /* the next part would lack the prefix of its first piece */
            for (int k = i + 1; k < j->splitter.n_steps; k++)
                if (j->splitter.step[k].kind == DT_SPLIT_SPACES && j->splitter.step[k].where == DT_PREFIX_ALWAYS)
                    return DT_THERE_UNKNOWN;
            return DT_THERE_SPLIT;
        }
        if (s->kind == DT_SPLIT_SPACES && s->where == DT_PREFIX_ALWAYS && i > 0) return DT_THERE_UNKNOWN;
        replaced = replaced || (s->kind == DT_SPLIT_SPACES && s->replaces);
        mapped = mapped || s->kind == DT_SPLIT_MAP;
    }
    return j->bpe.pair && !j->bpe.ignore_merges && !mapped ? DT_THERE_LOCAL : DT_THERE_UNKNOWN;
}

void dt_json_plan_cuts(dt_json_tokenizer *j)
{
    j->at_line = plan(j, true);
    j->at_space = plan(j, false);
}

/* ---- checking a position ----------------------------------------------------------------------------------------- */

static size_t char_before(const char *text, size_t at)
{
    size_t i = at;
    while (i > 0 && at - i < 4 && ((unsigned char)text[--i] & 0xc0) == 0x80) {
    }
    return dt_utf8_length(text + i, at - i) == at - i ? i : at;
}

static bool is_letter(const char *text, size_t at, size_t n)
{
    if (at >= n || !dt_utf8_length(text + at, n - at)) return false;
    const char *p = text + at;
    const uint32_t c = dt_utf8_next(&p);
    if (c < 0x80) return (c | 32) >= 'a' && (c | 32) <= 'z';
    return dt_unicode_is_letter(c);
}

static bool is_line_place(const char *text, size_t at, size_t n)
{
    if (at < 2 || text[at - 1] != '\n' || !is_letter(text, at, n)) return false;
    const size_t before = char_before(text, at - 1);
    const char *p = text + before;
    return before < at - 1 && !dt_unicode_is_space(dt_utf8_next(&p));
}

static bool is_space_place(const char *text, size_t at, size_t n)
{
    if (at == 0 || text[at] != ' ' || !is_letter(text, at + 1, n)) return false;
    const size_t before = char_before(text, at);
    return before < at && is_letter(text, before, at);
}

/* All normaliser steps except NFC, prepending and replacing may change a letter. */
static bool keeps_letters(const dt_normalizer *n)
{
    for (int i = 0; i < n->n_steps; i++)
        if (n->step[i].kind != DT_NFC && n->step[i].kind != DT_PREPEND && n->step[i].kind != DT_REPLACE) return false;
    return true;
}

static bool keeps_place(const dt_json_tokenizer *j, const char *text, size_t at, size_t n)
{
    const unsigned char after = (unsigned char)text[at + (text[at] == ' ')];
    return after < 0x80 || keeps_letters(&j->normalizer);
}

typedef struct window {
    dt_text buffer[2];
    dt_segment piece;
} window;

/* Normalise the text on one side of a position, at least as long as the longest added token, unless the text ends. */
static bool normalized_side(const dt_json_tokenizer *j, const char *text, size_t from, size_t to, window *w)
{
    *w = (window){.piece = {.text = text, .from = from, .to = to}};
    if (dt_utf8_valid(text + from, to - from) != to - from) return false;
    return dt_normalize(&j->normalizer, NULL, w->buffer, &w->piece, true) == DT_OK && w->piece.to > w->piece.from;
}

static bool model_keeps_apart(const dt_json_tokenizer *j, const dt_segment *left, const dt_segment *right)
{
    const char *before = left->text + char_before(left->text, left->to), *after = right->text + right->from;
    for (int i = 0; i < j->splitter.n_steps; i++)
        if (j->splitter.step[i].kind == DT_SPLIT_SPACES && j->splitter.step[i].replaces && *after == ' ')
            after = j->splitter.step[i].prefix;
    if (j->bpe.of_bytes)
        return dt_bpe_keeps_apart(&j->bpe, (unsigned char)left->text[left->to - 1], (unsigned char)*after);
    return dt_bpe_keeps_apart(&j->bpe, dt_utf8_next(&before), dt_utf8_next(&after));
}

static bool sides_allow(const dt_json_tokenizer *j, const dt_segment *left, const dt_segment *right, bool line,
                        bool by_model)
{
    dt_text both = {0};
    dt_text_append(&both, left->text + left->from, left->to - left->from);
    const size_t at = both.n;
    dt_text_append(&both, right->text + right->from, right->to - right->from);
    const bool free_of_tokens = !both.failed && !dt_trie_touches(&j->added.trie[1], both.bytes, both.n, at - line, at);
    free(both.bytes);
    return free_of_tokens && (!by_model || model_keeps_apart(j, left, right));
}

static bool allows(const dt_json_tokenizer *j, const char *text, size_t at, size_t n, bool line)
{
    const size_t reach = 4 * j->added.trie[1].longest + 64;
    const bool by_model = (line ? j->at_line : j->at_space) == DT_THERE_LOCAL;
    if (dt_trie_touches(&j->added.trie[0], text, n, at - line, at) || !keeps_place(j, text, at, n)) return false;
    if (!by_model && !j->added.trie[1].longest) return true;
    size_t from = at > reach ? at - reach : 0, to = n - at > reach ? at + reach : n;
    while (from < at && ((unsigned char)text[from] & 0xc0) == 0x80) from++;
    const size_t valid = dt_utf8_valid(text + at, to - at);
    if (to - at - valid > 3) return false; /* more than a truncated character */
    to = at + valid;
    window left, right;
    const bool whole = normalized_side(j, text, from, at, &left);
    const bool yes =
        normalized_side(j, text, at, to, &right) && whole && sides_allow(j, &left.piece, &right.piece, line, by_model);
    for (int i = 0; i < 2; i++) free(left.buffer[i].bytes), free(right.buffer[i].bytes);
    return yes;
}

size_t dt_json_cut(const dt_tokenizer *t, const char *text, size_t nbytes)
{
    const dt_json_tokenizer *j = t->impl;
    const size_t longest =
        j->added.trie[0].longest > j->added.trie[1].longest ? j->added.trie[0].longest : j->added.trie[1].longest;
    if (nbytes <= longest + 8) return 0;
    for (size_t at = nbytes - longest - 8; at > 0; at--) {
        if (j->at_line != DT_THERE_UNKNOWN && is_line_place(text, at, nbytes) && allows(j, text, at, nbytes, true))
            return at;
        if (j->at_space != DT_THERE_UNKNOWN && is_space_place(text, at, nbytes) && allows(j, text, at, nbytes, false))
            return at;
    }
    return 0;
}
